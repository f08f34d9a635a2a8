//! The gate in front of the medium. Work for a namespace passes through it: one that is another command's alone lets
//! nobody else in, and one that has gone or changed fails what was meant for it.

use base::Rule;
use spec::nvme::Status;

use super::command::{CommandCells, Work};
use crate::function::{MediaError, MediaKind};
use crate::nvme::subsystem::{Owner, Subsystem};

/// Whether a command may give the medium its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    Now,
    Later,
    /// The namespace is not what it was when the command was decoded.
    Never,
}

/// What one controller may do at the medium that it shares with others. Who is at a namespace lies in the cells of the
/// drive.
pub(crate) struct MediaGate<'m> {
    subsystem: Subsystem<'m>,
    /// Which controller of the drive it is.
    index: u16,
}

impl<'m> MediaGate<'m> {
    pub(crate) fn new(subsystem: &Subsystem<'m>, index: u16) -> Self {
        Self { subsystem: subsystem.clone(), index }
    }

    /// Whether a command's work may begin. A namespace that is to be its alone is reserved for it.
    pub(crate) fn admission(&self, slot: u16, command: &CommandCells) -> Admission {
        let Some(nsid) = counted_for(command) else { return Admission::Now };
        let cells = self.subsystem.namespace_cells(nsid);
        let administers = matches!(command.work(), Work::Format | Work::Delete);
        let present = cells.bytes.get() != 0 && cells.epoch.get() == command.epoch.get();
        if !present || !(administers || self.subsystem.is_attached(nsid, self.index)) {
            return Admission::Never;
        }
        let (me, owner) = (Owner::new(self.index, slot), Owner(cells.owner.get()));
        if owner == Owner::NOBODY && command.exclusive.get() != 0 {
            cells.owner.set(self.subsystem.journal, me.0);
        } else if owner == Owner::NOBODY {
            return Admission::Now;
        } else if owner != me {
            return Admission::Later;
        }
        if cells.busy.get() == 0 { Admission::Now } else { Admission::Later }
    }

    /// The medium has work for a command.
    pub(crate) fn enter(&self, command: &CommandCells) {
        if let Some(nsid) = counted_for(command) {
            self.subsystem.namespace_cells(nsid).busy.update(self.subsystem.journal, |busy| busy + 1);
        }
    }

    /// The medium has ended that. Returns what it has come to, and whether that means that something is lost. An error
    /// of a flush tells of any write, of any function, and a system tells it only once: so it holds for each flush that
    /// ends from now on.
    pub(crate) fn leave(
        &self,
        command: &CommandCells,
        result: Result<(), MediaError>,
    ) -> (Result<(), MediaError>, bool) {
        if let Some(nsid) = counted_for(command) {
            self.subsystem.namespace_cells(nsid).busy.update(self.subsystem.journal, |busy| {
                busy.checked_sub(1).expect("work was counted when it was decided")
            });
        }
        let flush = command.media.get().kind.get() == MediaKind::Flush;
        match result {
            _ if !self.subsystem.journal.rule(Rule::LatchLosses) => (result, false),
            Err(error) if flush || error == MediaError::Lost => {
                self.subsystem.note_fault();
                (result, true)
            }
            Ok(()) if flush && self.subsystem.has_fault() => (Err(MediaError::Lost), true),
            _ => (result, false),
        }
    }

    /// The namespace is no longer this command's alone. A format that ends before its time leaves it as it is: in its
    /// old format, some of it erased.
    pub(crate) fn release(&self, slot: u16, command: &CommandCells) {
        let nsid = command.target.get().nsid;
        if command.exclusive.get() == 0 || nsid == 0 {
            return;
        }
        if command.work() == Work::Format {
            self.subsystem.set_formatting(nsid, false);
        }
        command.exclusive.set(self.subsystem.journal, 0);
        let cells = self.subsystem.namespace_cells(nsid);
        if Owner(cells.owner.get()) == Owner::new(self.index, slot) {
            cells.owner.set(self.subsystem.journal, Owner::NOBODY.0);
        }
    }

    /// Hands a namespace that is one command's alone to another.
    pub(crate) fn hand_over(&self, (from, first): (u16, &CommandCells), (to, second): (u16, &CommandCells)) {
        let journal = self.subsystem.journal;
        let cells = self.subsystem.namespace_cells(first.target.get().nsid);
        debug_assert_eq!(Owner(cells.owner.get()), Owner::new(self.index, from));
        cells.owner.set(journal, Owner::new(self.index, to).0);
        first.exclusive.set(journal, 0);
        second.exclusive.set(journal, 1);
    }
}

/// The namespace whose work the medium does for a command: none for flushes and for the drive's own.
fn counted_for(command: &CommandCells) -> Option<u32> {
    let nsid = command.target.get().nsid;
    let flush = command.media.get().kind.get() == MediaKind::Flush;
    (nsid != 0 && (!flush || command.work() == Work::Delete)).then_some(nsid)
}

/// How a command ends that the medium has failed.
pub(crate) fn media_status(error: MediaError, command: &CommandCells) -> Status {
    let reads = command.media.get().kind.get() == MediaKind::Read;
    match error {
        MediaError::NoSpace => Status::CAPACITY_EXCEEDED,
        MediaError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED,
        MediaError::Io if reads => Status::UNRECOVERED_READ_ERROR,
        MediaError::Io | MediaError::Lost => Status::WRITE_FAULT,
    }
}
