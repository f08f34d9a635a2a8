//! Functions of virtual machines that were silent until their guests read all-ones of them.

use io::agent::{Agent, Edge, LoanEnd};

/// By loan: how many such times are over and were told of.
#[derive(Default)]
pub(super) struct Blackouts {
    told: Vec<u64>,
    has_slots: bool,
}

impl Blackouts {
    /// Whether any loan of the node is a slot, as far as is known.
    pub(super) fn has_slots(&self) -> bool {
        self.has_slots
    }

    /// The loans whose function is heard again after that, each once.
    pub(super) fn over(&mut self, agent: &Agent) -> Vec<usize> {
        let mut over = Vec::new();
        self.has_slots = agent.view().has_slots();
        if !self.has_slots {
            return over;
        }
        for (loan, (spec, cells)) in agent.view().loans().enumerate() {
            if self.told.len() <= loan {
                self.told.push(0);
            }
            let LoanEnd::Borrow { edge: Edge::Vm { .. }, .. } = &spec.config.role else { continue };
            let Some(session) = cells.session() else { continue };
            let counted = session.counters.blackouts.get();
            // A function that was attached anew counts from zero.
            let is_new = counted > self.told[loan];
            if is_new && session.is_silent() {
                continue;
            }
            self.told[loan] = counted;
            // Whoever has left finds the function as after a reset when it comes back.
            if is_new && agent.has_guest(loan) {
                over.push(loan);
            }
        }
        over
    }
}
