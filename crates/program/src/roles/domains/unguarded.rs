//! Machines that nobody keeps from being saved or migrated: those whose monitor is not known.

use std::collections::BTreeMap;

use io::agent::{Agent, Edge, LoanEnd};
use io::event::Event;
use io::rate_limited::RateLimited;

use crate::qemu_args::has_image;

/// By loan of a slot.
#[derive(Default)]
pub(super) struct Unguarded {
    slots: BTreeMap<usize, Slot>,
}

#[derive(Default)]
struct Slot {
    /// It was said of the machine that has it.
    is_told: bool,
    /// Machines may come and go as often as they can.
    line: RateLimited,
}

impl Unguarded {
    /// Says it of each machine whose driver has a function, once, where `is_guarded` does not know of the loan that
    /// the monitor of its machine is there.
    pub(super) fn look(&mut self, agent: &Agent, is_guarded: impl Fn(usize) -> bool) {
        if !agent.view().has_slots() {
            return;
        }
        for (loan, (spec, _)) in agent.view().loans().enumerate() {
            let LoanEnd::Borrow { edge: Edge::Vm { .. }, .. } = &spec.config.role else { continue };
            let slot = self.slots.entry(loan).or_default();
            let Some(pid) = agent.guest(loan) else {
                slot.is_told = false;
                continue;
            };
            if is_guarded(loan) {
                slot.is_told = false;
            } else if agent.has_driver(loan) && !std::mem::replace(&mut slot.is_told, true) {
                // As `causeway qemu-args` says that it is to be started.
                if !pid.is_some_and(has_image) {
                    let function = spec.function.clone();
                    slot.line.say(|others| Event::MachineUnguarded { function, others }.say());
                }
            }
        }
    }
}
