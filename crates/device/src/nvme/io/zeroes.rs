//! Write Zeroes (NVM CS 1.0 §3.2.8).

use spec::nvme::{Status, SubmissionEntry};

use crate::function::MediaKind;
use crate::nvme::Controller;
use crate::nvme::command::Work;
use crate::nvme::subsystem::Namespace;

use super::PIECE_MAX;

/// Longest piece of zeroes that keep their space, in bytes. Memory is given them as data, in the card's own time.
const WRITTEN_PIECE_MAX: u32 = 1 << 20;

impl Controller<'_> {
    pub(super) fn begin_zeroes(
        &mut self,
        slot: u16,
        entry: &SubmissionEntry,
        namespace: &Namespace,
    ) -> Result<(), Status> {
        let target = self.set_target(slot, entry, namespace)?;
        // What keeps its space may have to be written.
        if !entry.deac() {
            self.limit.charge_bytes(target.len);
        }
        self.set_work(slot, Work::Zeroes);
        self.continue_zeroes(slot);
        Ok(())
    }

    /// Gives the medium the next piece.
    fn continue_zeroes(&mut self, slot: u16) {
        let command = self.command(slot);
        let (target, done) = (command.target.get(), command.progress.get().arrived);
        let deallocate = command.entry().deac();
        let most = if deallocate { PIECE_MAX } else { WRITTEN_PIECE_MAX };
        let len = (target.len - done).min(most);
        self.begin_media(slot, MediaKind::Zero { deallocate }, target.offset + u64::from(done), len);
    }

    /// A piece of `len` bytes is done.
    pub(crate) fn end_zeroed(&mut self, slot: u16, len: u32) {
        if self.advance(slot, len) {
            self.continue_zeroes(slot);
        } else {
            self.end_written(slot);
        }
    }
}
