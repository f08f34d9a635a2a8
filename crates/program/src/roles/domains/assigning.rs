//! Slots that a manager fills: each comes to hold what is assigned to it, whatever it held before, and is emptied when
//! that is taken back. What was told last holds, also after a restart and with no manager there.

use std::time::{Duration, Instant};

use base::ids::{DomainBlock, DomainId};
use io::agent::Agent;
use io::event::Event;

use super::{Domains, Entry, Phase};
use crate::assigned::Assigned;
use crate::control::SlotState;
use crate::roles::borrow::Claim;
use crate::state_dir::StateDir;
use crate::state_dir::slot::{Attached, Attachment};

/// Before a slot is tried again that could not be filled.
const AGAIN: Duration = Duration::from_secs(5);

/// A slot, as a manager knows it.
pub(in crate::roles) struct SlotOf {
    /// The name of its machine.
    pub(in crate::roles) machine: String,
    /// The domain of that.
    pub(in crate::roles) domain: DomainId,
    /// Its name.
    pub(in crate::roles) slot: String,
    /// Its number.
    pub(in crate::roles) number: u16,
    /// How it is doing.
    pub(in crate::roles) state: SlotState,
    /// What keeps it from what it is to be.
    pub(in crate::roles) trouble: Option<String>,
}

/// What a place shall have.
pub(in crate::roles) type Wanted<'a> = dyn Fn(DomainId, u16) -> Option<&'a Assigned> + 'a;

/// What brings a slot closer to what a manager wants there.
#[derive(Debug, PartialEq)]
enum Step<'a> {
    /// It is that, or it is not time.
    Nothing,
    /// It is that, and where its lender is has changed, or what becomes of it in silence.
    Note(Assigned),
    /// What is assigned is to go.
    Empty(Assigned),
    /// That has gone.
    Emptied,
    /// It is vacant, and is not to be.
    Fill(&'a Assigned),
    /// Somebody else has attached something.
    Complain(&'a Assigned),
    /// Something is just leaving.
    Wait,
}

/// That of a slot in this phase, which `has` what was assigned. One that could not be filled is tried again at `again`.
fn step<'a>(
    has: Option<&Assigned>,
    wanted: Option<&'a Assigned>,
    phase: Phase,
    again: Option<Instant>,
    now: Instant,
) -> Step<'a> {
    let is_there = matches!(phase, Phase::Attaching | Phase::Attached);
    match (has, wanted) {
        (None, None) => Step::Nothing,
        (Some(has), Some(wanted)) if is_there && has.is_same(wanted) => {
            let news = has.renewed(wanted);
            if news != *has { Step::Note(news) } else { Step::Nothing }
        }
        (Some(has), _) if is_there => Step::Empty(has.clone()),
        (Some(_), None) if phase == Phase::Vacant => Step::Emptied,
        (_, Some(_)) if phase == Phase::Vacant && again.is_some_and(|at| at > now) => Step::Nothing,
        (_, Some(wanted)) if phase == Phase::Vacant => Step::Fill(wanted),
        (None, Some(wanted)) => Step::Complain(wanted),
        (Some(_), _) => Step::Wait,
    }
}

impl Domains {
    /// All slots.
    pub(in crate::roles) fn slots(&self, block: DomainBlock) -> Vec<SlotOf> {
        let slot = |place: &Entry| {
            let domain = block.machine(place.domain)?;
            let (machine, slot) = (place.name.domain.to_string(), place.name.slot.to_string());
            let (state, trouble) = (self.report(place).state, place.trouble.clone());
            Some(SlotOf { machine, domain, slot, number: place.number, state, trouble })
        };
        self.places.values().filter_map(slot).collect()
    }

    /// Has each slot come to what a manager wants there: part of every turn, for it takes until those who use it have
    /// let go. Whether any is on its way still.
    pub(in crate::roles) fn follow_assigned(
        &mut self,
        wanted: &Wanted<'_>,
        agent: &mut Agent,
        state: &StateDir,
    ) -> bool {
        let block = agent.view().spec().domains;
        let loans: Vec<usize> = self.places.keys().copied().collect();
        let mut is_waiting = false;
        for loan in loans {
            let Some(place) = self.places.get_mut(&loan).filter(|place| !place.is_leaving) else { continue };
            let wanted = block.machine(place.domain).and_then(|domain| wanted(domain, place.number));
            // An event says that it was given back.
            if place.awaits_lost(wanted) {
                continue;
            }
            is_waiting |= self.follow_one(loan, wanted, agent, state);
        }
        is_waiting
    }

    fn follow_one(
        &mut self,
        loan: usize,
        wanted: Option<&Assigned>,
        agent: &mut Agent,
        state: &StateDir,
    ) -> bool {
        let Some(place) = self.places.get_mut(&loan) else { return false };
        let step = step(place.assigned.as_ref(), wanted, place.phase, place.assign_at, Instant::now());
        match step {
            Step::Nothing => {}
            Step::Note(news) => place.keep_news(news, state),
            Step::Empty(has) => {
                let (slot, function) = (place.name.to_string(), has.function.to_string());
                // It is decided durably first: a node that is started meanwhile does not have it again.
                if let Err(failure) = place.decide(Attached::Nothing, state) {
                    place.trouble = Some(failure.message().to_owned());
                } else {
                    Event::SlotUnassigned { slot, function }.say();
                    self.take_out(loan, agent);
                }
                return true;
            }
            Step::Emptied => place.assigned = None,
            Step::Fill(wanted) => {
                self.assign(loan, wanted, agent, state);
                return true;
            }
            Step::Complain(wanted) => {
                let why = format!(
                    "the manager of the fabric has assigned {} to it, and something else is attached: \
                     `causeway detach {}` makes room",
                    wanted.function, place.name
                );
                place.complain(why);
                return true;
            }
            Step::Wait => return true,
        }
        false
    }

    fn assign(&mut self, loan: usize, wanted: &Assigned, agent: &mut Agent, state: &StateDir) {
        let claim = Claim::Assigned(Box::new(wanted.clone()));
        let decides = |place: &mut Entry| place.decide(Attached::Assigned(Box::new(wanted.clone())), state);
        let attached = self.begin_if(loan, &claim, None, agent, state, decides);
        let Some(place) = self.places.get_mut(&loan) else { return };
        match attached {
            Ok(()) => {
                let (slot, function) = (place.name.to_string(), wanted.function.to_string());
                Event::SlotAssigned { slot, function, generation: wanted.generation.0 }.say();
            }
            Err(failure) => {
                place.assign_at = Some(Instant::now() + AGAIN);
                place.complain(failure.message().to_owned());
            }
        }
    }
}

impl Entry {
    /// Where the lender is now, for the next start: only a hint, so that the old one does where it cannot be kept.
    fn keep_news(&mut self, news: Assigned, state: &StateDir) {
        let attached = Attached::Assigned(Box::new(news.clone()));
        let _ = state.set_attachment(&self.name, &Attachment { generation: self.generation, attached });
        self.assigned = Some(news);
    }

    /// Whether nothing is done here before what was lost is given back, however long that takes: not where a manager
    /// wants something else here instead of what it had assigned.
    fn awaits_lost(&mut self, wanted: Option<&Assigned>) -> bool {
        self.is_unwanted = wanted.is_none();
        let is_wanted_instead = match (&self.assigned, wanted) {
            (_, None) => false,
            (Some(has), Some(wanted)) => !has.is_same(wanted),
            // A line has attached it: who did so says what becomes of it, and hears that it is in the way.
            (None, Some(_)) => return false,
        };
        if is_wanted_instead {
            self.forget_loss();
        }
        self.is_lost
    }

    /// Says what is wrong, once.
    pub(super) fn complain(&mut self, why: String) {
        if self.trouble.as_ref() != Some(&why) {
            Event::SlotRefused { slot: self.name.to_string(), why: why.clone() }.say();
            self.trouble = Some(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_could_not_be_filled_is_tried_again_after_a_while() {
        let (wanted, now) = (crate::assigned::tests::example(), Instant::now());
        let vacant = |has, at| step(has, Some(&wanted), Phase::Vacant, Some(now + AGAIN), at);
        for has in [None, Some(&wanted)] {
            assert_eq!(vacant(has, now), Step::Nothing);
            assert_eq!(vacant(has, now + AGAIN - Duration::from_millis(1)), Step::Nothing);
            assert_eq!(vacant(has, now + AGAIN), Step::Fill(&wanted));
            assert_eq!(step(has, Some(&wanted), Phase::Vacant, None, now), Step::Fill(&wanted), "at first");
        }
    }

    #[test]
    fn what_was_lost_is_waited_for_unless_something_else_is_wanted_instead() {
        let one = crate::assigned::tests::example();
        let other = Assigned { generation: base::ids::LoanGeneration(1), ..one.clone() };
        let moved = Assigned { addresses: io::address::Addresses::NONE, ..one.clone() };
        let lost = |assigned: Option<&Assigned>| {
            let mut place = super::super::coming::tests::vacant();
            (place.is_lost, place.assigned) = (true, assigned.cloned());
            place.trouble = Some("its lender was silent".to_owned());
            place.phase = Phase::Returning { since: Instant::now(), abandoned: false };
            place
        };
        let mut place = lost(Some(&one));
        for wanted in [&one, &moved] {
            assert!(place.awaits_lost(Some(wanted)) && place.is_lost && !place.may_be_forgotten());
        }
        assert!(place.awaits_lost(None) && place.may_be_forgotten(), "it may be detached by hand");
        assert!(!place.awaits_lost(Some(&other)), "its lender may never come back");
        assert!(!place.is_lost && place.trouble.is_none());
        let mut place = lost(None);
        assert!(place.awaits_lost(None));
        assert!(
            !place.awaits_lost(Some(&other)) && place.is_lost,
            "whoever attached it hears that it is in the way"
        );
    }

    #[test]
    fn a_slot_comes_to_what_is_wanted_there() {
        let (one, now) = (crate::assigned::tests::example(), Instant::now());
        let other = Assigned { generation: base::ids::LoanGeneration(1), ..one.clone() };
        let returning = Phase::Returning { since: now, abandoned: false };
        let next = |has, wanted, phase| step(has, wanted, phase, None, now);
        assert_eq!(
            next(None, None, Phase::Attached),
            Step::Nothing,
            "that is nobody's but whoever attached it"
        );
        assert_eq!(next(Some(&one), Some(&one), Phase::Attached), Step::Nothing);
        assert_eq!(next(Some(&one), Some(&other), Phase::Attached), Step::Empty(one.clone()));
        assert_eq!(next(Some(&one), None, Phase::Attaching), Step::Empty(one.clone()));
        assert_eq!(next(Some(&one), Some(&other), returning), Step::Wait);
        assert_eq!(next(Some(&one), Some(&other), Phase::Vacant), Step::Fill(&other));
        assert_eq!(next(Some(&one), None, Phase::Vacant), Step::Emptied);
        assert_eq!(next(None, Some(&one), Phase::Attached), Step::Complain(&one));
    }
}
