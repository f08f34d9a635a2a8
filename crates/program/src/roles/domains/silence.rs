//! Functions of lenders that are silent for longer than they are waited for.
//!
//! The guest loses the function, as one that is pulled out, and the loan ends here. The lender hears of it when it is
//! heard again, however long that takes: until then the slot is returning. What a manager has assigned is attached anew
//! then, since it is still assigned; what a line has attached is gone for good, which is durable before anything
//! follows.

use std::time::{Duration, Instant};

use io::agent::{Agent, LoanSpec};
use io::event::Event;
use node::Refusal;

use super::{Domains, Entry, Phase, Task};
use crate::config::Slot;
use crate::line::Line;
use crate::state_dir::StateDir;
use crate::state_dir::slot::{Attached, Attachment};

impl Domains {
    /// Ends the loans of lenders that were silent for as long as they are waited for.
    pub(super) fn look_after_lenders(&mut self, agent: &mut Agent, state: &StateDir) {
        let mut lost = Vec::new();
        {
            let view = agent.view();
            for (loan, (_, cells)) in view.loans().enumerate() {
                let Some(place) = self.places.get_mut(&loan) else { continue };
                let Some(hold) = place.hold_time() else { continue };
                let (silence, listens) = (view.silence(cells), view.card.running);
                if let Some(waited) = place.patience.look(view.now(), silence, listens, hold)
                    && place.phase == Phase::Attached
                    && !place.is_leaving
                {
                    lost.push((loan, waited));
                }
            }
        }
        lost.into_iter().for_each(|(loan, waited)| self.lose(loan, waited, agent, state));
    }

    /// The function is pulled out of its machine, and given back as soon as its lender is heard.
    fn lose(&mut self, loan: usize, waited: Duration, agent: &mut Agent, state: &StateDir) {
        let function = agent.view().spec().loans[loan].function.clone();
        let Some(place) = self.places.get_mut(&loan) else { return };
        if let Err(why) = place.decide_to_lose(state) {
            // It is tried again at each look.
            return place.complain(why);
        }
        let (slot, silent_s) = (place.name.to_string(), waited.as_secs());
        let then = if place.assigned.is_some() {
            "and attached again when its lender is heard, as long as it is assigned"
        } else {
            "for good; its lender gets to know when it is heard"
        };
        place.trouble =
            Some(format!("the lender of {function} was silent for {silent_s} s: it is taken out, {then}"));
        (place.is_lost, place.is_unwanted) = (true, false);
        self.lost.push((loan, waited));
        let was_plugging = place.awaited.plug;
        place.await_nothing();
        agent.set_present(loan, false);
        agent.close_edge(loan);
        // Whoever hears of it finds it done.
        Event::SlotLost { slot, function, silent_s, then }.say();
        if agent.has_guest(loan) || was_plugging {
            place.phase = Phase::Leaving { since: Instant::now(), surprised: true };
            place.unused = None;
            if let Some(monitor) = self.monitors.get(&place.domain) {
                monitor.order(place.subject(loan), Task::Unplug(place.plug()));
                place.awaited.unplug = true;
            }
        } else {
            place.give_back(loan, agent);
        }
    }

    /// Slots that have been lost so since the last call, and how long their lenders were waited for.
    pub(in crate::roles) fn take_lost(&mut self) -> Vec<(usize, Duration)> {
        std::mem::take(&mut self.lost)
    }

    /// Slots that owe what a node of these `loans` has elsewhere, as its file says by now, are vacant: where it is had,
    /// its lender hears of it. [`Domains::end_debts`] makes that durable.
    pub(in crate::roles) fn settle_debts(&mut self, loans: &mut [LoanSpec]) -> Vec<usize> {
        let mut settled = Vec::new();
        for (&at, place) in self.places.iter_mut().filter(|(_, place)| place.is_owed()) {
            let function = loans[at].config.function;
            let has_it = |(other, loan): (usize, &LoanSpec)| {
                other != at && !loan.is_vacant() && loan.config.function == function
            };
            if loans.iter().enumerate().any(has_it) {
                loans[at] = place.vacancy();
                place.phase = Phase::Vacant;
                settled.push(at);
            }
        }
        settled
    }

    /// What these slots owed is settled.
    pub(in crate::roles) fn end_debts(&mut self, settled: &[usize], state: &StateDir) {
        for at in settled {
            if let Some(place) = self.places.get_mut(at) {
                place.end_loss(state);
            }
        }
    }

    /// The lender of what was lost says something else than that it is there. True if that is all there is to it.
    pub(super) fn lost_is_refused(&mut self, loan: usize, refusal: &Refusal, agent: &mut Agent) -> bool {
        let Some(place) = self.places.get_mut(&loan).filter(|place| place.is_owed()) else { return false };
        if is_of_another(refusal) {
            place.give_back(loan, agent);
        }
        true
    }
}

/// Whether a refusal says that a function is not this node's any more. Else its lender may say otherwise later: when it
/// lends it again, has room, or both clocks are right.
fn is_of_another(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::InUse { .. } | Refusal::Generation | Refusal::Managed | Refusal::NotAllowed)
}

impl Entry {
    /// For how long its lender is waited for; `None`: for ever.
    fn hold_time(&self) -> Option<Duration> {
        let on_silence = match &self.assigned {
            Some(assigned) => Some(assigned.on_silence),
            None => self.slot.on_silence,
        };
        on_silence.map(|it| it.hold())
    }

    /// What was lost in an earlier life of the node is taken only to be given back.
    pub(super) fn is_owed(&self) -> bool {
        self.is_lost && self.phase == Phase::Attaching
    }

    fn decide_to_lose(&mut self, state: &StateDir) -> Result<(), String> {
        let kept = match &self.assigned {
            Some(assigned) => Attached::Assigned(Box::new(assigned.clone())),
            None => {
                let before = state.attachment(&self.name).map_err(|error| error.to_string())?;
                let Some(line) = line_of(before, &self.slot) else { return Ok(()) };
                Attached::Owed(Box::new(line))
            }
        };
        self.decide(kept, state).map_err(|failure| failure.message().to_owned())
    }

    /// Whether nobody wants any more what was assigned here and lost: only its lender is still to hear of it.
    pub(super) fn may_be_forgotten(&self) -> bool {
        self.is_lost && self.is_unwanted
    }

    /// Nobody waits any longer for the lender of what was lost than for others.
    pub(super) fn forget_loss(&mut self) {
        if std::mem::take(&mut self.is_lost) {
            self.trouble = None;
        }
    }

    /// What was lost was given back, or is nobody's to give.
    pub(super) fn end_loss(&mut self, state: &StateDir) {
        let was_lost = self.is_lost;
        self.forget_loss();
        if was_lost
            && self.assigned.is_none()
            && let Err(failure) = self.decide(Attached::Nothing, state)
        {
            // The next start asks its lender once more, and hears that there is nothing to give back.
            let slot = self.name.to_string();
            Event::SlotUndecided { slot, error: failure.message().to_owned() }.say();
        }
    }
}

/// By which line something is attached to a slot, if it is by one.
fn line_of(decided: Option<Attachment>, slot: &Slot) -> Option<Line> {
    match decided.map(|decided| decided.attached) {
        None | Some(Attached::Preset) => slot.preset.clone(),
        Some(Attached::Line(line) | Attached::Owed(line)) => Some(*line),
        Some(Attached::Nothing | Attached::Assigned(_)) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use base::ids::DomainBlock;
    use io::agent::Edge;

    use super::*;
    use crate::config::Config;
    use crate::roles::borrow::Claim;

    #[test]
    fn what_is_owed_is_forgotten_where_it_is_somebody_elses_only() {
        let certificate = Refusal::Certificate { fault: node::Fault::NotYet { not_before: 1 }, clock: 0 };
        let unknown = Refusal::Unknown { verdict: 99 };
        for waits in [Refusal::NotLent, Refusal::NoRoom, Refusal::Version, certificate, unknown] {
            assert!(!is_of_another(&waits), "{waits:?}");
        }
        for ends in [Refusal::Generation, Refusal::Managed, Refusal::NotAllowed] {
            assert!(is_of_another(&ends), "{ends:?}");
        }
    }

    #[test]
    fn what_is_owed_and_had_elsewhere_is_owed_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let line = crate::line::tests::example();
        let owes = Attached::Owed(Box::new(line.clone()));
        state
            .set_attachment(&"vm/a".parse().unwrap(), &Attachment { generation: 7, attached: owes })
            .unwrap();
        let slot = |name: &str| {
            let socket = folder.path().join(name);
            format!("[[domains.slots]]\nname = '{name}'\nsocket = '{}'\n", socket.display())
        };
        let text = format!("[[domains]]\nname = 'vm'\nkind = 'vm'\n{}{}", slot("a"), slot("b"));
        let config = Config::parse(&text, Path::new("n.toml")).unwrap();
        let block = DomainBlock::new(64, 4).unwrap();
        let (mut domains, mut slots) = Domains::open(&config.domains, block, &state).unwrap();
        assert!(domains.settle_debts(&mut slots).is_empty(), "nobody else has it");
        assert!(domains.places[&0].is_owed());
        let edge = Edge::Nbd { path: folder.path().join("nbd"), listener: None };
        let mut loans = vec![Claim::Line(Box::new(line)).loan(edge, Duration::ZERO)];
        loans.extend(slots);
        domains.follow(1);
        let settled = domains.settle_debts(&mut loans);
        assert_eq!(settled, [1]);
        assert_eq!(loans.iter().map(LoanSpec::is_vacant).collect::<Vec<_>>(), [false, true, true]);
        assert!(domains.places[&1].phase == Phase::Vacant);
        domains.end_debts(&settled, &state);
        let kept = state.attachment(&"vm/a".parse().unwrap()).unwrap().unwrap();
        assert_eq!((kept.generation, kept.attached), (8, Attached::Nothing));
    }
}
