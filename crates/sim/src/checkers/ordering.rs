//! PCIe's order inside of a stream (PCIe 6.0 §2.4.1).

use std::collections::BTreeMap;

use link::Stream as Flow;
use pcie::FlowClass;

use super::Verdict;
use super::streams::StreamId;

/// Looks at numbers as they are given.
#[derive(Default)]
pub(crate) struct Ordering {
    /// By stream: the first number that was not looked at.
    seen: BTreeMap<StreamId, u64>,
}

impl Ordering {
    /// After each commit of the sender.
    pub(crate) fn check(&mut self, id: StreamId, flow: &Flow<'_>) -> Verdict {
        let sender = &flow.port.sender;
        let waiting = sender.first_waiting(FlowClass::Posted);
        if flow.state() == link::State::Open && waiting.is_some_and(|(_, has_credit)| has_credit) {
            return Err(format!("{id:?}: a posted write has credit and no number"));
        }
        let seen = self.seen.entry(id).or_default();
        for number in (*seen).max(sender.committed())..sender.next() {
            let (class, order) = sender.order_of(number);
            if let Some((posted, _)) =
                waiting.filter(|(posted, _)| class != FlowClass::Posted && *posted < order)
            {
                return Err(format!("{id:?}: {class:?} {order} has passed posted write {posted}"));
            }
        }
        *seen = (*seen).max(sender.next());
        Ok(())
    }
}
