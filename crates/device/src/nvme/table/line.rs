//! A line of command slots.

use std::collections::VecDeque;

use crate::nvme::cells::SLOTS;

/// Command slots in the order in which something is to be done for them. Lives in the card only: a new card rebuilds
/// its lines from the states and stamps in the ledger. A slot is in a line at most once, so a line cannot overflow. One
/// that nothing was ever in has no memory: most of hundreds of controllers do nothing.
pub(crate) struct Line(VecDeque<u16>);

impl Line {
    pub(crate) const fn new() -> Self {
        Self(VecDeque::new())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn front(&self) -> Option<u16> {
        self.get(0)
    }

    pub(crate) fn get(&self, position: usize) -> Option<u16> {
        self.0.get(position).copied()
    }

    pub(crate) fn push(&mut self, slot: u16) {
        assert!(self.0.len() < SLOTS, "a slot is in a line at most once");
        self.0.push_back(slot);
    }

    pub(crate) fn pop(&mut self) -> Option<u16> {
        self.0.pop_front()
    }

    /// Takes `slot` out, wherever it stands; it may be absent. Nearly always it is the first.
    pub(crate) fn remove(&mut self, slot: u16) {
        if self.front() == Some(slot) {
            self.pop();
        } else if let Some(place) = self.0.iter().position(|it| *it == slot) {
            self.0.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_leaves_from_the_middle_without_disturbing_the_order() {
        let mut line = Line::new();
        (0..600).for_each(|slot| {
            line.push(slot);
            if slot > 3 {
                line.pop();
            }
        });
        line.remove(597);
        line.remove(5);
        assert_eq!(std::iter::from_fn(|| line.pop()).collect::<Vec<_>>(), [596, 598, 599]);
        assert_eq!(line.len(), 0);
    }
}
