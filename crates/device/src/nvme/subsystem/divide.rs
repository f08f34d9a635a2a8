//! Functions that come to a drive, and go from it, after it was declared.
//!
//! A card has a drive as it is configured when the card begins. What its owner has added since the card before, or
//! taken away, is settled then, in one step, and kept as every change of namespaces is: whoever dies in between has a
//! successor that finds the same difference.
//!
//! Nobody else makes namespaces of such controllers: the physical function of a drive with virtual ones is its owner's.

use super::cells::{CONTROLLERS, flag};
use super::{NewNamespace, Subsystem, contains};
use crate::nvme::{MadeFunction, MadeNamespace};

impl Subsystem<'_> {
    /// Makes the namespaces of functions that have come, and deletes those of functions that have gone.
    pub(super) fn divide(&self) {
        let mut has_changed = false;
        let allocated: Vec<u32> = self.allocated().map(|it| it.nsid).collect();
        for nsid in allocated {
            // A controller that another function has now has nothing of the one before.
            let is_its = |controller: u16| self.cells.is_as_made(nsid, controller, &self.config.made);
            let gone: Vec<u16> = self.made_attached(nsid).filter(|it| !is_its(*it)).collect();
            gone.iter().for_each(|controller| self.detach(nsid, *controller));
            has_changed |= !gone.is_empty();
            // One that may be shared is the drive's, whoever has it.
            let is_own = self.namespace(nsid).is_some_and(|it| !it.shared);
            if is_own && !gone.is_empty() {
                self.remove(nsid);
            }
        }
        for made in self.config.made.iter().filter(|made| !self.has_any(made.controller)) {
            has_changed |= self.furnish(made);
        }
        if has_changed && self.config.keeps_state {
            self.want_persisted();
        }
    }

    /// Controllers of functions that were made, now or earlier, that a namespace is attached to.
    pub(super) fn made_attached(&self, nsid: u32) -> impl Iterator<Item = u16> + '_ {
        let attached = &self.namespace_cells(nsid).attached;
        (self.config.functions + 1..CONTROLLERS as u16).filter(move |it| contains(attached, *it))
    }

    fn has_any(&self, controller: u16) -> bool {
        self.allocated().any(|it| self.is_attached(it.nsid, controller))
    }

    /// Gives a function that has come its namespace. False where its place is not free, or there is no such one: then
    /// it has none.
    fn furnish(&self, made: &MadeFunction) -> bool {
        let nsid = match made.namespace {
            MadeNamespace::Own { start, bytes } => {
                let nsid = (1..=self.last_nsid()).find(|nsid| self.namespace(*nsid).is_none());
                // Nobody has cleared any other place for it.
                let Some(nsid) = nsid.filter(|_| self.cells.is_free(start, bytes)) else { return false };
                let shift = self.config.block_size.trailing_zeros() as u8;
                let flags = if self.config.read_only { flag::READ_ONLY } else { 0 };
                self.place(nsid, NewNamespace { start, bytes, shift, flags });
                // Whoever had the number has gone, and with it what it had under way.
                let (cells, journal) = (self.namespace_cells(nsid), self.journal);
                cells.busy.set(journal, 0);
                cells.owner.set(journal, 0);
                nsid
            }
            MadeNamespace::Shared { nsid } => match self.namespace(nsid).filter(|it| it.shared) {
                Some(shared) => shared.nsid,
                None => return false,
            },
        };
        // What the controller of an earlier function has left is none of this one's.
        let (left, journal) = (self.controller(made.controller), self.journal);
        left.changed.iter().for_each(|word| word.set(journal, 0));
        left.saved.iter().for_each(|word| word.set(journal, 0));
        left.announce.set(journal, 0);
        self.attach(nsid, made.controller);
        true
    }
}
