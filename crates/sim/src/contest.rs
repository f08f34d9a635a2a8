//! In some worlds a third node wants what the borrower has. Either gives back and comes again, is killed with its
//! program, stays away for a moment or for longer than the hold time, or cannot be reached; and the lender is started
//! anew while both want its function.

use base::Random;
use base::times::HOLD;

use crate::checkers::names;
use crate::world::{BORROWER, Event, LENDER, RIVAL, World};

/// Told from other seeds.
const CONTEST: u64 = 0xc0_7e57_0000;
/// Nanoseconds that a node has to give everything back.
const GIVE_BACK: u64 = 8_000_000_000;
/// What is longer than a world's other absences.
const LONG: u64 = 1_000_000_000;

/// What a borrower does next, or what is done to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// It gives everything back.
    Leave(usize),
    /// Its program is killed, and started again after so long.
    Die(usize, u64),
    /// Nobody reaches it for so long.
    Part(usize, u64),
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
    /// Until then somebody is away for long.
    away_until: u64,
}

impl Contest {
    /// In a fifth of all worlds.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        // Dice of its own: the other worlds stay what they are.
        let mut random = Random::new(seed ^ CONTEST);
        random.chance(200).then(|| Self {
            moves: random.range(2, 12) as u32,
            long: random.below(3) as u32,
            restarts: random.chance(500),
            random,
            away_until: 0,
            moments: 800,
        })
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

    /// The next move, if it is time for one. `holder` is who has a loan that both want.
    fn next_move(&mut self, now: u64, loans: usize, holder: impl Fn(usize) -> Option<usize>) -> Option<Move> {
        if self.moves == 0 || self.away_until > now {
            return None;
        }
        self.moves -= 1;
        let dice = self.random.below(100);
        let node = self.any_borrower();
        let loan = self.random.index(loans);
        if self.long > 0
            && self.random.chance(600)
            && let Some(holder) = holder(loan)
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
    fn absence(&mut self) -> u64 {
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

    /// Whether somebody stays away for long: faults are rare then.
    pub(crate) fn is_waiting(&self, now: u64) -> bool {
        self.away_until > now + LONG
    }
}

impl World<'_> {
    pub(crate) fn begin_contest(&mut self) {
        let Some(contest) = &mut self.contest else { return };
        let (late, first) = (contest.random.below(20_000_000), contest.random.range(2_000_000, 20_000_000));
        if contest.random.chance(500) {
            self.nodes[RIVAL].is_away = true;
            self.clock.after(late, Event::Return(RIVAL));
        }
        self.clock.after(first, Event::Contest);
    }

    /// What the borrowers do next.
    pub(crate) fn next_move(&mut self) {
        let Some(contest) = &mut self.contest else { return };
        if self.faults.are_over() {
            self.settle();
            return self.clock.after(20_000_000, Event::Contest);
        }
        let after = contest.random.range(5_000_000, 60_000_000);
        let (loans, clients) = (&self.loans, &self.clients);
        let holder = |loan: usize| {
            let is_wanted = |node: &usize| clients.want(*node, loan);
            loans[loan].tenure.holder.filter(is_wanted).filter(|node| is_wanted(&(BORROWER + RIVAL - node)))
        };
        match contest.next_move(self.clock.now, loans.len(), holder) {
            Some(Move::Leave(node)) => self.give_everything_back(node),
            Some(Move::Die(node, lasts)) => self.kill_program(node, lasts),
            Some(Move::Part(node, lasts)) => self.isolate(node, lasts),
            Some(Move::RestartLender) => self.lose_ledger(LENDER),
            None => {}
        }
        self.clock.after(after, Event::Contest);
    }

    /// A node is asked to end, and gives back what it has.
    fn give_everything_back(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        if this.is_away || this.agent.is_shutting_down() {
            return;
        }
        this.agent.handle_shut_down();
        this.gives_back = vec![true; self.loans.len()];
        self.report.log.event(self.clock.now, Some(node), "leave", 0, 0);
        let life = self.nodes[node].who();
        for lent in &mut self.loans {
            lent.owner.gives_back(life);
        }
        self.clock.after(GIVE_BACK, Event::Gone(node, life.number));
        self.drive_agent(node);
        if self.nodes[node].card.is_some() {
            self.service(node);
        }
    }

    /// A loan was given back, or there was nothing to give back.
    pub(crate) fn given_back(&mut self, node: usize, loan: usize, has_lost: bool) {
        if !self.nodes[node].agent.is_shutting_down() {
            return self
                .report
                .fail(names::ASSERTION, format!("node {node} has given loan {loan} back unasked"));
        }
        self.report.log.event(self.clock.now, Some(node), "back", loan as u64, has_lost.into());
        self.nodes[node].gives_back[loan] = false;
        if self.loans[loan].tenure.holder == Some(node) {
            self.loans[loan].shared.model.given_back();
        }
        if self.nodes[node].gives_back.iter().all(|open| !open) {
            self.clock.after(100_000, Event::Gone(node, self.nodes[node].life));
        }
    }

    /// A node that gives back what it has is done with that, or takes too long.
    pub(crate) fn end_program(&mut self, node: usize, life: u64) {
        if self.nodes[node].life == life {
            let lasts = self.contest.as_mut().map_or(0, Contest::absence);
            self.kill_program(node, lasts);
        }
    }

    /// A node's program ends, with whatever it has, and is started again after `lasts`, or never.
    fn kill_program(&mut self, node: usize, lasts: u64) {
        if self.nodes[node].is_away {
            return;
        }
        self.report.log.event(self.clock.now, Some(node), "gone", self.nodes[node].life, lasts);
        self.nodes[node].is_away = true;
        self.lose_ledger(node);
        let Some(contest) = &mut self.contest else { return };
        if contest.random.chance(100) {
            self.clients.give_up(node);
        } else if !self.faults.are_over() {
            contest.wait(self.clock.now + lasts);
            self.clock.after(lasts, Event::Return(node));
        }
    }

    pub(crate) fn start_program(&mut self, node: usize) {
        if !core::mem::take(&mut self.nodes[node].is_away) {
            return;
        }
        self.wake_agent(node);
        for client in self.clients.at(node) {
            self.clock.after(1_000_000, Event::Think(client));
        }
    }

    /// Nobody reaches a node for a while.
    fn isolate(&mut self, node: usize, lasts: u64) {
        if self.network.islands[node] {
            return;
        }
        self.contest.iter_mut().for_each(|contest| contest.wait(self.clock.now + lasts));
        self.network.islands[node] = true;
        self.report.log.event(self.clock.now, Some(node), "island", lasts, 0);
        self.clock.after(lasts, Event::Join(node));
    }

    /// Faults are over: everybody comes back who wants anything, and whoever wants nothing more of a loan gives back
    /// what another one waits for.
    fn settle(&mut self) {
        for node in [BORROWER, RIVAL] {
            let other = BORROWER + RIVAL - node;
            let loans = 0..self.loans.len();
            let is_waited_for = |loan: usize| {
                self.loans[loan].tenure.holder == Some(node)
                    && !self.clients.want(node, loan)
                    && self.clients.want(other, loan)
            };
            if self.nodes[node].is_away {
                if loans.clone().any(|loan| self.clients.want(node, loan)) {
                    self.start_program(node);
                }
            } else if loans.clone().any(is_waited_for) {
                self.give_everything_back(node);
            }
        }
    }
}
