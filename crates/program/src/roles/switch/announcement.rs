//! What a switch says of itself to whoever is behind its ports: who it is, and where it takes frames, so that they know
//! its addresses for those of one switch.

use std::time::Instant;

use base::ids::{DomainBlock, Group, Incarnation, RailId};
use io::switch::Switch;
use node::information::{Announcer, Item, Role, write};
use node::{ANNOUNCE_EVERY, Address, Name};

use crate::state_dir::StateDir;

/// It, and when it is said again.
pub(super) struct Announcement {
    announcer: Announcer,
    items: Vec<Item>,
    next: Instant,
}

impl Announcement {
    /// Of the switch of this name, to be said at once.
    pub(super) fn new(name: &str, state: &StateDir, switch: &Switch) -> Self {
        let key = state.identity().public();
        let announcer = Announcer {
            role: Role::Switch,
            key,
            domains: DomainBlock::of(key.id()),
            name: Name::new(name),
            interval_s: ANNOUNCE_EVERY.as_secs() as u16,
            incarnation: Incarnation(state.incarnation()),
            number: 0,
            rail: RailId::ALL[0],
            group: Group::DEFAULT,
        };
        let items = switch.doors().map(|(local, _)| Item::Port(Address::from(local).0)).collect();
        Self { announcer, items, next: Instant::now() }
    }

    /// Says it if it is time to.
    pub(super) fn turn(&mut self, switch: &mut Switch) -> std::io::Result<()> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + ANNOUNCE_EVERY;
        switch.announce(&mut |group| self.frames(group))
    }

    /// As many as it takes to name all addresses.
    fn frames(&mut self, group: Group) -> Vec<Vec<u8>> {
        let (mut frames, mut left) = (Vec::new(), &self.items[..]);
        loop {
            self.announcer.number += 1;
            let (frame, fitted) = write(&Announcer { group, ..self.announcer }, left);
            frames.push(frame);
            left = &left[fitted..];
            if left.is_empty() || fitted == 0 {
                return frames;
            }
        }
    }
}
