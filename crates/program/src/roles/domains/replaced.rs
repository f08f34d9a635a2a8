//! Functions of virtual machines that turned out to be other ones than their guests were given.

use io::agent::{Agent, Edge, LoanEnd};

/// By loan: how many were seen to.
#[derive(Default)]
pub(super) struct Replaced {
    seen: Vec<u64>,
}

impl Replaced {
    /// The loans of which that is news, and whose guest is still there, each once. Those of which `is_plugging` says
    /// that a new device is under way are looked at when it is there: it may have the function as it is now.
    pub(super) fn news(&mut self, agent: &Agent, is_plugging: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut news = Vec::new();
        if !agent.view().has_slots() {
            return news;
        }
        for (loan, (spec, cells)) in agent.view().loans().enumerate() {
            if self.seen.len() <= loan {
                self.seen.push(0);
            }
            let LoanEnd::Borrow { edge: Edge::Vm { .. }, .. } = &spec.config.role else { continue };
            let Some((_, slot)) = cells.slot().filter(|_| !is_plugging(loan)) else { continue };
            // A function that was attached anew counts from zero.
            let counted = slot.replacements();
            let is_new = counted > std::mem::replace(&mut self.seen[loan], counted);
            if is_new && slot.is_replaced() && agent.has_guest(loan) {
                news.push(loan);
            }
        }
        news
    }
}
