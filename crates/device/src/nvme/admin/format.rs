//! Format NVM (NVMe 2.0 §5.14): another block size, and nothing left of what was there.

use spec::nvme::{FormatNvm, Status, SubmissionEntry};

use crate::function::MediaKind;
use crate::nvme::Controller;
use crate::nvme::command::{Target, Work};
use crate::nvme::config::WriteCache;
use crate::nvme::io::PIECE_MAX;

/// Bytes of a block by LBA format, as powers of two.
pub(super) const FORMATS: [u8; 2] = [9, 12];
/// Secure Erase Settings.
const NO_SECURE_ERASE: u8 = 0;
const USER_DATA_ERASE: u8 = 1;

impl Controller<'_> {
    /// The formats that namespaces of this drive can have.
    pub(super) fn formats(&self) -> &'static [u8] {
        if self.config.block_size == 4096 { &FORMATS[1..] } else { &FORMATS }
    }

    /// Bytes of a block in format `index`, as a power of two.
    pub(super) fn format_shift(&self, index: usize) -> Option<u8> {
        self.formats().get(index).copied()
    }

    /// The format of blocks of `1 << shift` bytes.
    pub(super) fn format_index(&self, shift: u32) -> usize {
        self.formats().iter().position(|format| u32::from(*format) == shift).unwrap_or(0)
    }

    pub(super) fn begin_format(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let format = FormatNvm::parse(entry);
        // One namespace at a time (FNA).
        let namespace = self.active_namespace(format.nsid)?;
        if namespace.read_only || self.config.read_only {
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
        let command = self.command(slot);
        self.set_work(slot, Work::Format);
        command.target.set(self.journal, Target { nsid: namespace.nsid, ..Target::default() });
        command.epoch.set(self.journal, namespace.epoch);
        // The slot's last command may have left the address of its list here.
        command.list.set(self.journal, 0);
        command.exclusive.set(self.journal, 1);
        self.subsystem.set_formatting(namespace.nsid, true);
        self.continue_format(slot);
        Ok(())
    }

    /// Erases the next piece of the namespace, or ends. `list` counts the bytes that are done.
    fn continue_format(&mut self, slot: u16) {
        let command = self.command(slot);
        let nsid = command.target.get().nsid;
        let Some(namespace) = self.subsystem.namespace(nsid) else {
            return self.complete(slot, 0, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        };
        let done = command.list.get();
        let left = namespace.bytes.saturating_sub(done);
        if left == 0 && self.config.cache == WriteCache::Absent {
            return self.finish_format(slot);
        } else if left == 0 {
            // The new format is kept for good, and what was there in the old one must not come back under it.
            return self.begin_media(slot, MediaKind::Flush, 0, 0);
        }
        let len = left.min(PIECE_MAX.into()) as u32;
        // Zeroes also where no erasure is asked for: what was there must not be seen in blocks of another size. A
        // formatted namespace is deallocated (NVMe 2.0 §5.14).
        self.begin_media(slot, MediaKind::Zero { deallocate: true }, namespace.start + done, len);
    }

    pub(crate) fn end_formatted(&mut self, slot: u16, len: u32) {
        let command = self.command(slot);
        command.list.update(self.journal, |done| done + u64::from(len));
        self.continue_format(slot);
    }

    pub(crate) fn finish_format(&mut self, slot: u16) {
        let command = self.command(slot);
        let format = FormatNvm::parse(&command.entry());
        let nsid = command.target.get().nsid;
        let cells = self.subsystem.namespace_cells(nsid);
        if let Some(shift) = self.format_shift(format.lba_format.into()) {
            cells.shift.set(self.journal, shift);
        }
        self.subsystem.set_formatting(nsid, false);
        cells.epoch.update(self.journal, |epoch| epoch.wrapping_add(1));
        self.subsystem.note_changed(nsid, Some(self.index));
        self.complete_kept(slot, 0);
    }
}
