//! Write Zeroes (NVM CS 1.0 §3.2.8).

use spec::nvme::{Status, SubmissionEntry};

use super::{NvmCommands, PIECE_MAX};
use crate::function::MediaKind;
use crate::nvme::command::{CommandCells, MediaWork, Next, Work};
use crate::nvme::limit::RateLimit;
use crate::nvme::subsystem::Namespace;

/// Longest piece of zeroes that keep their space, in bytes. Memory is given them as data, in the card's own time.
const WRITTEN_PIECE_MAX: u32 = 1 << 20;

impl NvmCommands<'_> {
    pub(super) fn write_zeroes(
        &self,
        command: &CommandCells,
        entry: &SubmissionEntry,
        namespace: &Namespace,
        limit: &mut RateLimit<'_>,
    ) -> Result<Next, Status> {
        let target = self.set_target(command, entry, namespace)?;
        // What keeps its space may have to be written.
        if !entry.deac() {
            limit.charge_bytes(target.len);
        }
        command.work.set(self.journal, Work::Zeroes.into());
        Ok(next(command))
    }
}

/// Gives the medium the next piece.
pub(super) fn next(command: &CommandCells) -> Next {
    let (target, done) = (command.target.get(), command.progress.get().arrived);
    let deallocate = command.entry().deac();
    let most = if deallocate { PIECE_MAX } else { WRITTEN_PIECE_MAX };
    let len = (target.len - done).min(most);
    Next::Media(MediaWork::new(MediaKind::Zero { deallocate }, target.offset + u64::from(done), len))
}
