//! What is borrowed for programs, and for machines without slots, of lenders that are silent for longer than they are
//! waited for: as [`crate::roles::domains`] does for slots. The loan ends here, its socket and its clients are gone,
//! and its lender gets the function back, with what was kept for it, when it is heard: however long that takes.

use std::collections::BTreeMap;
use std::time::Duration;

use io::agent::{Agent, AgentEvent};
use io::event::Event;
use node::agent::Patience;

/// Lenders that are waited for.
#[derive(Default)]
pub(super) struct Silences {
    /// By place of the loan; `None`: it was for too long, and the loan ends.
    waits: BTreeMap<usize, Option<Patience>>,
}

impl Silences {
    /// A loan is there, or is not any more.
    pub(super) fn handle(&mut self, event: &AgentEvent, agent: &Agent) {
        match event {
            // Another card says it again: the time goes on.
            AgentEvent::Ready(loan) => {
                self.waits.entry(*loan).or_insert_with(|| Some(Patience::new(agent.view().now())));
            }
            AgentEvent::GivenBack { loan, .. } => drop(self.waits.remove(loan)),
            _ => {}
        }
    }

    /// Ends those loans of which it is time, and says which they are and how long their lenders were waited for.
    pub(super) fn turn(&mut self, agent: &mut Agent) -> Vec<(usize, Duration)> {
        let mut lost = Vec::new();
        {
            let view = agent.view();
            self.waits.retain(|&loan, patience| {
                let Some((spec, cells)) = view.loan(loan) else { return false };
                let Some(hold) = spec.hold else { return false };
                let (silence, listens) = (view.silence(cells), view.card.running);
                let look = |it: &mut Patience| it.look(view.now(), silence, listens, hold);
                if let Some(waited) = patience.as_mut().and_then(look) {
                    *patience = None;
                    lost.push((loan, spec.function.clone(), waited));
                }
                true
            });
        }
        let end = |(loan, function, waited): (usize, String, Duration)| {
            agent.close_edge(loan);
            agent.set_present(loan, false);
            // Whoever hears of it finds it done.
            Event::LoanLost { function, silent_s: waited.as_secs() }.say();
            agent.detach(loan);
            (loan, waited)
        };
        lost.into_iter().map(end).collect()
    }
}
