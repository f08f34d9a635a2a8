use crate::nvme::cells::SLOTS;

const CAPACITY: usize = SLOTS.next_power_of_two();

/// Command slots in the order in which something is to be done for them. Lives in the card only: a new card rebuilds
/// its lines from the states and stamps in the ledger. A slot is in a line at most once, so a line cannot overflow.
pub(crate) struct Line {
    slots: [u16; CAPACITY],
    head: usize,
    len: usize,
}

impl Line {
    pub(crate) const fn new() -> Self {
        Self { slots: [0; CAPACITY], head: 0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn front(&self) -> Option<u16> {
        self.get(0)
    }

    pub(crate) fn get(&self, position: usize) -> Option<u16> {
        (position < self.len).then(|| self.slots[(self.head + position) % CAPACITY])
    }

    pub(crate) fn push(&mut self, slot: u16) {
        assert!(self.len < SLOTS, "a slot is in a line at most once");
        self.slots[(self.head + self.len) % CAPACITY] = slot;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<u16> {
        let slot = self.front()?;
        self.head = (self.head + 1) % CAPACITY;
        self.len -= 1;
        Some(slot)
    }

    /// Takes `slot` out, wherever it stands; it may be absent. Nearly always it is the first.
    pub(crate) fn remove(&mut self, slot: u16) {
        let Some(place) = (0..self.len).find(|place| self.get(*place) == Some(slot)) else { return };
        for place in (0..place).rev() {
            self.slots[(self.head + place + 1) % CAPACITY] = self.slots[(self.head + place) % CAPACITY];
        }
        self.head = (self.head + 1) % CAPACITY;
        self.len -= 1;
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
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
