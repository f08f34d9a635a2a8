//! In some worlds a third node wants what the borrower has. Either gives back and comes again, is killed with its
//! program, stays away for a moment or for longer than the hold time, or cannot be reached; and the lender is started
//! anew while both want its function.

use base::Random;
use base::times::HOLD;

use crate::chance::Chance;
use crate::slot::has_guests;
use crate::stage::{BORROWER, Event, RIVAL, Stage};
use crate::traffic::Traffic;

/// What is longer than a world's other absences.
const LONG: u64 = 1_000_000_000;

/// What a borrower does next, or what is done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Move {
    /// It gives everything back.
    Leave(usize),
    /// Its program is killed, and started again after so long.
    Die(usize, u64),
    /// Nobody reaches it for so long.
    Part(usize, u64),
    /// Its program is started again.
    Return(usize),
    /// The lender's program is killed and started again; its machine, and what its files have, stay.
    RestartLender,
}

/// The plan of a contest.
pub(crate) struct Contest {
    random: Random,
    /// Moves that are left.
    moves: u32,
    /// Absences for longer than the hold time that are left.
    long: u32,
    /// Whether the lender is started anew.
    restarts: bool,
    /// Of a thousand absences, so many are only for a moment.
    moments: u64,
    /// How many times as long pauses between moves are.
    pace: u64,
    /// Until then somebody is away for long.
    away_until: u64,
}

impl Contest {
    /// In a fifth of all worlds; with guests, of whom there are few, in two fifths, where somebody is away for long.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let (mut random, has_guests) = (Chance::Contest.of(seed), has_guests(seed));
        random.chance(if has_guests { 400 } else { 200 }).then(|| Self {
            moves: random.range(2, 12) as u32,
            long: (random.below(3) as u32).max(has_guests.into()),
            restarts: random.chance(500),
            random,
            away_until: 0,
            moments: 800,
            // A slot takes its time until a guest can have it.
            pace: if has_guests { 4 } else { 1 },
        })
    }

    /// A rival that makes no moves.
    #[cfg(test)]
    pub(crate) fn without_moves() -> Self {
        Self {
            moves: 0,
            long: 0,
            restarts: false,
            random: Random::new(0),
            away_until: 0,
            moments: 0,
            pace: 1,
        }
    }

    /// Nobody stays away for longer than the hold time, but often for long enough to be taken for gone, and there are
    /// more moves.
    pub(crate) fn keep_short(&mut self) {
        self.long = 0;
        self.moves *= 2;
        self.moments = 400;
    }

    /// Either borrower.
    pub(crate) fn any_borrower(&mut self) -> usize {
        self.random.range(BORROWER as u64, RIVAL as u64) as usize
    }

    /// Begins; the rival may come late.
    pub(crate) fn begin(&mut self, stage: &mut Stage<'_>) {
        let (late, first) = (self.random.below(20_000_000), self.random.range(2_000_000, 20_000_000));
        if self.random.chance(500) {
            stage.nodes[RIVAL].is_away = true;
            stage.clock.after(late, Event::Return(RIVAL));
        }
        stage.clock.after(first, Event::Contest);
    }

    /// How long it is to the move after this one.
    pub(crate) fn pause(&mut self) -> u64 {
        self.pace * self.random.range(5_000_000, 60_000_000)
    }

    /// The next move, if it is time for one. `want` says whether anybody at a node wants a loan.
    pub(crate) fn next_move(
        &mut self,
        stage: &Stage<'_>,
        want: impl Fn(usize, usize) -> bool,
    ) -> Option<Move> {
        if self.moves == 0 || self.away_until > stage.clock.now {
            return None;
        }
        self.moves -= 1;
        let dice = self.random.below(100);
        let node = self.any_borrower();
        let loan = self.random.index(stage.loans.len());
        // Who has a loan that both want.
        let holder = || {
            let is_wanted = |node: usize| want(node, loan);
            let holder = stage.loans[loan].tenure.holder?;
            (is_wanted(holder) && is_wanted(BORROWER + RIVAL - holder)).then_some(holder)
        };
        if self.long > 0
            && self.random.chance(600)
            && let Some(holder) = holder()
        {
            self.long -= 1;
            let lasts = HOLD.as_nanos() as u64 + self.random.below(20_000_000_000);
            let dies = self.random.chance(400);
            return Some(if dies { Move::Die(holder, lasts) } else { Move::Part(holder, lasts) });
        }
        let lasts = self.absence();
        match dice {
            0..30 => Some(Move::Leave(node)),
            30..50 => Some(Move::Die(node, lasts)),
            50..80 => Some(Move::Part(node, lasts)),
            _ => self.restarts.then_some(Move::RestartLender),
        }
    }

    /// How long a node stays away.
    pub(crate) fn absence(&mut self) -> u64 {
        let random = &mut self.random;
        if random.chance(self.moments) {
            random.range(1_000_000, 300_000_000)
        } else {
            random.range(300_000_000, 4_000_000_000)
        }
    }

    /// Somebody is not to be reached until then.
    fn wait(&mut self, until: u64) {
        self.away_until = self.away_until.max(until);
    }

    /// Nobody reaches a node for a while.
    pub(crate) fn isolate(&mut self, stage: &mut Stage<'_>, traffic: &mut Traffic, node: usize, lasts: u64) {
        if !traffic.network.islands[node] {
            self.wait(stage.clock.now + lasts);
            traffic.network.islands[node] = true;
            stage.log(Some(node), "island", lasts, 0);
            stage.clock.after(lasts, Event::Join(node));
        }
    }

    /// Who is away for long is not, from then on.
    pub(crate) fn wait_no_longer(&mut self, until: u64) {
        self.away_until = self.away_until.min(until);
    }

    /// The program of a node has been killed: it is started again after `lasts`, or never, and then this is false.
    pub(crate) fn was_killed(&mut self, stage: &mut Stage<'_>, node: usize, lasts: u64) -> bool {
        let comes_back = !self.random.chance(100);
        if comes_back && !stage.is_calm() {
            self.wait(stage.clock.now + lasts);
            stage.clock.after(lasts, Event::Return(node));
        }
        comes_back
    }

    /// Faults are over: what a borrower does then. It comes back if it wants anything, and whoever wants nothing more
    /// of a loan gives back what the other one waits for.
    pub(crate) fn settle(
        stage: &Stage<'_>,
        want: impl Fn(usize, usize) -> bool,
        node: usize,
    ) -> Option<Move> {
        let (other, mut loans) = (BORROWER + RIVAL - node, 0..stage.loans.len());
        let is_waited_for = |loan: usize| {
            stage.loans[loan].tenure.holder == Some(node) && !want(node, loan) && want(other, loan)
        };
        if stage.nodes[node].is_away {
            loans.any(|loan| want(node, loan)).then_some(Move::Return(node))
        } else {
            loans.any(is_waited_for).then_some(Move::Leave(node))
        }
    }

    /// Whether somebody stays away for long: faults are rare then.
    pub(crate) fn is_waiting(&self, now: u64) -> bool {
        self.away_until > now + LONG
    }
}
