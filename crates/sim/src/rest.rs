//! In some worlds with guests and a rival a guest rests: it asks for nothing, and lives. Meanwhile nobody reaches its
//! node, for longer than the hold time, so the rival gets the drive. Then the node can be reached again and the guest
//! goes on: its drive is another one, which it has to be told before anything that it asks for succeeds.
//!
//! A lender cannot tell what somebody has recorded and repeats from what its borrower says late, if it has not had it
//! before: who repeats such frames keeps a drive for its borrower. So nobody does while a guest rests.

use base::times::HOLD;
use base::{Random, RuleSet};

use crate::chance::Chance;
use crate::clock::Alarm;
use crate::setting::Setting;
use crate::slot::has_guests;
use crate::stage::{Event, LENDER, Stage};

const SECOND: u64 = 1_000_000_000;
/// Of a thousand worlds with guests and a rival, in how many a guest rests: such a world takes as long as a hundred
/// others.
const SHARE: u64 = 50;
/// How often it is looked whether there is a guest that could rest, at least: who has a drive may soon be done with it.
const SIGHT: u64 = 2_000_000;
/// How often it is looked whether something has ended: what was under way, or that somebody wants a drive.
const LOOK: u64 = 20_000_000;
/// How long faults go on, at most, when the node can be reached again.
const FAULTS_AFTER: u64 = 3 * SECOND;

/// Whether in the world of a seed a guest rests while another node takes its drive.
pub fn has_rest(seed: u64) -> bool {
    has_guests(seed) && Setting::of(seed, RuleSet::ALL, &mut Random::new(seed)).rest.is_some()
}

/// How far a rest is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// There is no guest yet that has a drive which another node wants.
    Planned,
    /// The guests of a node rest. Of them one has the drive of this loan.
    Begun { node: usize, loan: usize },
    /// Nobody reaches the node until then.
    Away { node: usize, until: u64 },
    /// The node can be reached.
    Over,
}

/// What is to be done next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The guests of a node rest until then.
    Rest(usize, u64),
    /// Nobody reaches a node for so long, and its guests rest until then.
    Part(usize, u64, u64),
    /// This node can be reached again.
    Return(usize),
    /// Whoever has a drive that it wants no more gives it back.
    Settle,
}

/// The plan of a rest.
pub(crate) struct Rest {
    random: Random,
    state: State,
    alarm: Alarm,
    /// The lender is started anew meanwhile, and hears nobody for another hold time.
    renews: bool,
    /// The node can be reached again as soon as another one has taken its drive.
    is_short: bool,
    /// What is under way ends before nobody reaches the node.
    waits: bool,
}

impl Rest {
    /// In some of the worlds with guests and a rival.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Chance::Rest.of(seed);
        random.chance(SHARE).then(|| Self {
            state: State::Planned,
            alarm: Alarm::default(),
            renews: random.chance(200),
            is_short: random.chance(500),
            waits: random.chance(800),
            random,
        })
    }

    /// Its next turn is then.
    pub(crate) fn look_at(&mut self, stage: &mut Stage<'_>, at: u64) {
        if self.alarm.set(at) {
            stage.clock.at(at, Event::Rest);
        }
    }

    /// What is next. `guest_of` says of a node and a loan whether a guest has used a drive that the other node wants,
    /// and then whether anything of that is under way.
    pub(crate) fn turn(
        &mut self,
        stage: &mut Stage<'_>,
        guest_of: impl Fn(usize, usize) -> Option<bool>,
    ) -> Option<Step> {
        let now = stage.clock.now;
        if !self.alarm.rings(now) {
            return None;
        }
        let (step, next) = match self.state {
            _ if stage.is_calm() => return None,
            State::Planned => {
                let found = holders(stage).find(|(node, loan)| guest_of(*node, *loan).is_some());
                let begin = |(node, loan)| {
                    self.state = State::Begun { node, loan };
                    Step::Rest(node, u64::MAX)
                };
                (found.map(begin), now + 1 + self.random.below(SIGHT))
            }
            State::Begun { node, loan } if guest_of(node, loan) == Some(true) && self.waits => {
                (None, now + LOOK)
            }
            State::Begun { node, loan } if guest_of(node, loan).is_some() => {
                let holds = if self.renews { 2 } else { 1 };
                let lasts = holds * HOLD.as_nanos() as u64 + self.random.below(20 * SECOND);
                let until = now + lasts;
                self.state = State::Away { node, until };
                (Some(Step::Part(node, lasts, self.wakes_at(until))), until)
            }
            State::Begun { node, .. } => {
                self.state = State::Planned;
                (Some(Step::Rest(node, now)), now + LOOK)
            }
            State::Away { until, .. } if now < until => (None, until),
            State::Away { node, .. } => {
                self.state = State::Over;
                (Some(Step::Return(node)), now + LOOK)
            }
            State::Over => (Some(Step::Settle), now + LOOK),
        };
        self.look_at(stage, next);
        step
    }

    /// When a guest goes on whose node can be reached again at `until`: mostly soon after that.
    fn wakes_at(&mut self, until: u64) -> u64 {
        let random = &mut self.random;
        match random.below(4) {
            0 => until - random.below(5 * SECOND),
            1 | 2 => until + random.below(SECOND / 5),
            _ => until + random.below(10 * SECOND),
        }
    }

    /// Another node has the drive of a loan now, which `former` had. Perhaps that can be reached again soon: when that
    /// is, and until when its guests rest.
    pub(crate) fn drive_is_taken(&mut self, stage: &mut Stage<'_>, former: usize) -> Option<(u64, u64)> {
        let State::Away { node, until } = self.state else { return None };
        let soon = stage.clock.now + self.random.below(SECOND / 10);
        if node != former || !self.is_short || soon >= until {
            return None;
        }
        self.state = State::Away { node, until: soon };
        self.look_at(stage, soon);
        Some((soon, self.wakes_at(soon)))
    }

    /// Nobody reaches a node.
    pub(crate) fn is_away(&self) -> bool {
        matches!(self.state, State::Away { .. })
    }

    /// Whether a node is not to end now: its guests rest, or it keeps their drive for them.
    pub(crate) fn spares(&self, node: usize) -> bool {
        match self.state {
            State::Away { node: resting, .. } => node == resting || (node == LENDER && !self.renews),
            _ => false,
        }
    }

    /// Until when faults go on at least.
    pub(crate) fn faults_until(&self) -> Option<u64> {
        if let State::Away { until, .. } = self.state { Some(until + FAULTS_AFTER) } else { None }
    }
}

/// Who has which loan.
fn holders(stage: &Stage<'_>) -> impl Iterator<Item = (usize, usize)> {
    let holder = |loan: usize| Some((stage.loans[loan].tenure.holder?, loan));
    (0..stage.loans.len()).filter_map(holder)
}

#[cfg(test)]
mod tests;
