//! The drive behind one or more controllers (an NVM subsystem): its namespaces, who has which, and what is kept for
//! good.
//!
//! Controllers do not see each other. What one does to a namespace the others find in the cells they share, and tell
//! their hosts by an event. A namespace's work for the medium can be owned by one command alone, for a fused compare
//! and write, a format or a deletion: it begins when the work of all others has ended, and others wait until it is
//! over.

mod bad;
pub(crate) mod cells;
mod divide;
mod fair_share;
mod namespaces;
pub(crate) mod record;

use core::cell::{Cell as StdCell, OnceCell};
use std::rc::Rc;

use base::ledger::{Cell, Journal};
use pcie::ConfigLayout;

pub use cells::{CONTROLLERS, NAMESPACES, SubsystemCells};
pub use fair_share::FairShare;
pub(crate) use namespaces::{Namespace, NewNamespace};

use self::cells::{ALIGNMENT, SharedControllerCells, flag};
use crate::nvme::Config;
use crate::nvme::control::config_space;

/// A drive, shared by its controllers. Copies are the same drive.
#[derive(Clone)]
pub struct Subsystem<'m> {
    pub(crate) cells: &'m SubsystemCells,
    pub(crate) journal: Journal<'m>,
    pub(crate) config: Rc<Config>,
    /// The last change that this card has given out to be kept.
    given: Rc<StdCell<u64>>,
    /// The configuration space of its virtual functions, which look all the same.
    virtual_layout: Rc<OnceCell<Rc<ConfigLayout>>>,
    /// Notes that this card has left with controllers.
    notes: Rc<StdCell<u64>>,
}

/// What the owner shall keep until the drive is made again, in place of all before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Persist {
    /// Comes back when it is kept.
    pub version: u64,
    /// At most some 20 KiB: for [`Config::saved`].
    pub bytes: Vec<u8>,
}

/// Who owns a namespace's work: a slot of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner(pub(crate) u32);

impl Owner {
    pub(crate) const NOBODY: Self = Self(0);

    pub(crate) fn new(controller: u16, slot: u16) -> Self {
        Self((u32::from(controller) + 1) << 16 | u32::from(slot))
    }
}

impl<'m> Subsystem<'m> {
    /// The drive over `cells`: made anew if they are zeroes, from what was saved if there is something, else as
    /// `config` says.
    ///
    /// # Panics
    /// If [`Config::check`] finds something.
    pub fn new(cells: &'m SubsystemCells, journal: Journal<'m>, config: Config) -> Self {
        if let Err(error) = config.check() {
            panic!("{error}");
        }
        let (config, given) = (Rc::new(config), Rc::default());
        let (virtual_layout, notes) = Default::default();
        let subsystem = Self { cells, journal, config, given, virtual_layout, notes };
        if cells.capacity.get() == 0 {
            subsystem.make();
        }
        subsystem.divide();
        subsystem
    }

    /// The layout of the configuration space of controller `index`.
    pub(crate) fn config_layout(&self, index: u16) -> Rc<ConfigLayout> {
        let make = || Rc::new(config_space::layout(&self.config, index));
        if index == 0 { make() } else { Rc::clone(self.virtual_layout.get_or_init(make)) }
    }

    fn make(&self) {
        self.cells.capacity.set(self.journal, self.config.bytes());
        if let Some(saved) = &self.config.saved {
            record::restore(self, saved);
            // The medium may have grown while nobody looked.
            let only = self.only_namespace();
            if self.config.namespaces.is_empty()
                && !self.config.is_empty
                && only.is_some_and(|it| it.serial == 1)
            {
                self.extend_only();
            }
            return;
        }
        if self.config.namespaces.is_empty() && !self.config.is_empty {
            let shift = self.config.block_size.trailing_zeros() as u8;
            let flags = if self.config.read_only { flag::READ_ONLY } else { 0 };
            self.place(1, NewNamespace { start: 0, bytes: self.config.bytes(), shift, flags });
            return self.attach(1, 0);
        }
        let mut start = 0_u64;
        for (nsid, namespace) in (1..).zip(&self.config.namespaces) {
            let bytes = namespace.blocks * u64::from(namespace.block_size);
            let shared = if namespace.shared { flag::SHARED } else { 0 };
            let read_only = if namespace.read_only || self.config.read_only { flag::READ_ONLY } else { 0 };
            let shift = namespace.block_size.trailing_zeros() as u8;
            self.place(nsid, NewNamespace { start, bytes, shift, flags: shared | read_only });
            namespace.controllers.iter().for_each(|controller| self.attach(nsid, *controller));
            start = (start + bytes).next_multiple_of(4096);
        }
        // Where namespaces lie is kept from the beginning: a medium of another size must not move them later.
        if self.config.keeps_state {
            self.want_persisted();
        }
    }

    /// Whether the medium has work for a namespace, or one is a command's alone; for checkers.
    pub fn is_busy(&self) -> bool {
        self.allocated().any(|it| {
            let cells = self.namespace_cells(it.nsid);
            cells.busy.get() != 0 || Owner(cells.owner.get()) != Owner::NOBODY
        })
    }

    /// What this drive is made for.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Controllers, the physical function's included.
    pub fn controllers(&self) -> u16 {
        let made = self.config.made.iter().map(|it| it.controller).max();
        self.config.functions.max(made.unwrap_or(0)) + 1
    }

    pub(crate) fn controller(&self, index: u16) -> &'m SharedControllerCells {
        &self.cells.controllers[usize::from(index)]
    }

    /// What has changed since the owner has kept it, once a card; after a kill again. Commands whose effect it holds
    /// complete only when [`Subsystem::handle_persisted`] has told that it is kept.
    pub fn poll_persist(&self) -> Option<Persist> {
        let version = self.cells.wanted.get();
        if version == self.cells.kept.get() || version == self.given.get() || !self.config.keeps_state {
            return None;
        }
        self.given.set(version);
        Some(Persist { version, bytes: record::encode(self) })
    }

    /// The record of `version` is kept, or could not be: then the commands that wait for it fail, and it is given out
    /// again with the next change.
    pub fn handle_persisted(&self, version: u64, kept: bool) {
        let version = version.min(self.cells.wanted.get());
        if version <= self.cells.kept.get() {
            return;
        }
        self.cells.kept.set(self.journal, version);
        if !kept {
            self.cells.failed.set(self.journal, version);
        }
    }

    /// Something changed that is to be kept. Returns its version.
    pub(crate) fn want_persisted(&self) -> u64 {
        self.cells.wanted.update(self.journal, |wanted| wanted + 1)
    }

    /// Whether a version is kept (`Some(true)`) or has failed (`Some(false)`).
    pub(crate) fn is_persisted(&self, version: u64) -> Option<bool> {
        (version <= self.cells.kept.get()).then(|| version > self.cells.failed.get())
    }

    /// Whether the medium has lost something that was answered, or may have: each flush fails, for all controllers.
    pub fn has_fault(&self) -> bool {
        self.cells.fault.get() != 0
    }

    /// The medium has lost something, or may have. Returns the change that keeps this: a new one also where it could
    /// not be kept before.
    pub fn note_fault(&self) -> u64 {
        let noted = self.cells.fault.get();
        if noted != 0 && self.is_persisted(noted) != Some(false) {
            return noted;
        }
        let version = self.want_persisted();
        self.cells.fault.set(self.journal, version);
        version
    }

    /// An operator has seen to the medium: flushes say again what it says. `order` counts his orders from 1; each has
    /// its effect once, whoever repeats it: what the medium loses afterwards is news.
    pub fn clear_fault(&self, order: u64) {
        if order <= self.cells.cleared.get() {
            return;
        }
        self.cells.cleared.set(self.journal, order);
        if self.has_fault() {
            self.cells.fault.set(self.journal, 0);
            self.want_persisted();
        }
    }

    /// The medium has grown to `blocks` of the configuration's: what is new is free for namespaces, and goes to the
    /// namespace of a drive that has a single one, if that reaches the end: what is free behind it may be planned for a
    /// function that is not made yet. A medium that has shrunk stays as it was: what is missing fails.
    pub fn grow(&self, blocks: u64) {
        let bytes = blocks.saturating_mul(self.config.block_size.into()).min(i64::MAX as u64);
        if bytes <= self.cells.capacity.get() {
            return;
        }
        let former = self.cells.capacity.get();
        self.cells.capacity.set(self.journal, bytes);
        let reaches = |it: Namespace| (it.start + it.bytes).next_multiple_of(ALIGNMENT) >= former;
        if !self.config.is_empty || self.only_namespace().is_some_and(reaches) {
            self.extend_only();
        }
    }

    /// The namespace of a drive that has a single one. That of a function that was made keeps the size that it was
    /// made with.
    fn only_namespace(&self) -> Option<Namespace> {
        let mut allocated = self.allocated();
        let only = allocated.next().filter(|_| allocated.next().is_none());
        only.filter(|it| self.made_attached(it.nsid).next().is_none())
    }

    /// Gives the end of the medium to the namespace of a drive that has a single one.
    fn extend_only(&self) {
        let Some(only) = self.only_namespace() else { return };
        let whole = (self.cells.capacity.get() - only.start) >> only.shift << only.shift;
        if whole > only.bytes {
            self.namespace_cells(only.nsid).bytes.set(self.journal, whole);
            self.note_changed(only.nsid, None);
            self.want_persisted();
        }
    }
}

/// Whether `member` (below 128) is in the set.
pub(crate) fn contains(set: &[Cell<u64>; cells::WORDS], member: u16) -> bool {
    set.get(usize::from(member / 64)).is_some_and(|word| word.get() >> (member % 64) & 1 == 1)
}

/// Puts `member` (below 128) into the set or takes it out.
pub(crate) fn set_member(set: &[Cell<u64>; cells::WORDS], journal: Journal<'_>, member: u16, present: bool) {
    if let Some(word) = set.get(usize::from(member / 64)) {
        let bit = 1 << (member % 64);
        word.update(journal, |old| if present { old | bit } else { old & !bit });
    }
}
