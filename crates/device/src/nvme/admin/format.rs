//! Format NVM (NVMe 2.0 §5.14): another block size, and nothing left of what was there.

use spec::nvme::{FormatNvm, Status, SubmissionEntry};

use super::Admin;
use crate::function::MediaKind;
use crate::nvme::command::{CommandCells, MediaWork, Next, Work};
use crate::nvme::config::{Config, WriteCache};
use crate::nvme::io::PIECE_MAX;

/// Bytes of a block by LBA format, as powers of two.
const FORMATS: [u8; 2] = [9, 12];
/// Secure Erase Settings.
const NO_SECURE_ERASE: u8 = 0;
const USER_DATA_ERASE: u8 = 1;

/// The formats that namespaces of a drive can have.
pub(super) fn formats(config: &Config) -> &'static [u8] {
    if config.block_size == 4096 { &FORMATS[1..] } else { &FORMATS }
}

impl Admin<'_> {
    /// Bytes of a block in format `index`, as a power of two.
    pub(super) fn format_shift(&self, index: usize) -> Option<u8> {
        formats(&self.subsystem.config).get(index).copied()
    }

    pub(super) fn format(&self, command: &CommandCells, entry: &SubmissionEntry) -> Result<Next, Status> {
        let format = FormatNvm::parse(entry);
        // One namespace at a time (FNA).
        let namespace = self.subsystem.active_namespace(format.nsid, self.index)?;
        if namespace.read_only || self.subsystem.config.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        let shift = self.format_shift(format.lba_format.into()).ok_or(Status::INVALID_FORMAT)?;
        if format.protection != 0 || format.extended_metadata || namespace.bytes >> shift == 0 {
            return Err(Status::INVALID_FORMAT);
        } else if ![NO_SECURE_ERASE, USER_DATA_ERASE].contains(&format.secure_erase) {
            return Err(Status::INVALID_FIELD);
        } else if namespace.formatting {
            return Err(Status::FORMAT_IN_PROGRESS);
        }
        // A namespace that others have too is not this controller's to erase.
        if self.index != 0 && self.subsystem.attached(namespace.nsid).any(|other| other != self.index) {
            return Err(Status::OPERATION_DENIED);
        }
        command.claim(self.journal, Work::Format, &namespace);
        // The slot's last command may have left the address of its list here.
        command.list.set(self.journal, 0);
        self.subsystem.set_formatting(namespace.nsid, true);
        self.continue_format(command)
    }

    /// Erases the next piece of the namespace, or ends. `list` counts the bytes that are done.
    fn continue_format(&self, command: &CommandCells) -> Result<Next, Status> {
        let namespace = self.subsystem.namespace(command.target.get().nsid);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
        let done = command.list.get();
        let left = namespace.bytes.saturating_sub(done);
        if left == 0 && self.subsystem.config.cache == WriteCache::Absent {
            return Ok(self.finish_format(command));
        } else if left == 0 {
            // The new format is kept for good, and what was there in the old one must not come back under it.
            return Ok(Next::flush());
        }
        let len = left.min(PIECE_MAX.into()) as u32;
        // Zeroes also where no erasure is asked for: what was there must not be seen in blocks of another size. A
        // formatted namespace is deallocated (NVMe 2.0 §5.14).
        Ok(Next::Media(MediaWork::new(MediaKind::Zero { deallocate: true }, namespace.start + done, len)))
    }

    /// A piece of a format has ended.
    pub(super) fn end_format(&self, command: &CommandCells) -> Result<Next, Status> {
        let work = command.media.get();
        if work.kind.get() == MediaKind::Flush {
            return Ok(self.finish_format(command));
        }
        command.list.update(self.journal, |done| done + u64::from(work.len));
        self.continue_format(command)
    }

    fn finish_format(&self, command: &CommandCells) -> Next {
        let format = FormatNvm::parse(&command.entry());
        let nsid = command.target.get().nsid;
        let cells = self.subsystem.namespace_cells(nsid);
        if let Some(shift) = self.format_shift(format.lba_format.into()) {
            cells.shift.set(self.journal, shift);
        }
        self.subsystem.set_formatting(nsid, false);
        cells.epoch.update(self.journal, |epoch| epoch.wrapping_add(1));
        self.subsystem.note_changed(nsid, Some(self.index));
        Next::Keep(0)
    }
}
