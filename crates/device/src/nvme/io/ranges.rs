//! Dataset Management: the ranges to deallocate (NVM CS 1.0 §3.2.3).

use base::Rule;
use spec::nvme::{DatasetManagementRange, Status};
use zerocopy::FromBytes;

use super::{NvmCommands, RANGE_BYTES, end_write};
use crate::function::MediaKind;
use crate::nvme::WriteCache;
use crate::nvme::command::{CommandCells, MediaWork, Next, RangeCursor};
use crate::nvme::subsystem::Namespace;

/// Longest piece of a range that the medium is given at once, in bytes: a power of two, so whole blocks.
pub(crate) const PIECE_MAX: u32 = 1 << 30;

impl NvmCommands<'_> {
    /// Gives the medium the next range of a Dataset Management command, or ends it.
    pub(super) fn next_range(&self, command: &CommandCells, has_cache: bool) -> Result<Next, Status> {
        let count = command.entry().dsm_ranges();
        let namespace = self.subsystem.active(command.target.get().nsid, self.index);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT)?;
        let mut cursor = command.ranges.get();
        while cursor.range < count {
            let mut bytes = [0; RANGE_BYTES];
            self.pages.read(command.page(0), cursor.range as usize * RANGE_BYTES, &mut bytes);
            let range = DatasetManagementRange::read_from_bytes(&bytes).unwrap_or_default();
            let (slba, nlb) = (range.slba.get(), range.nlb.get());
            if slba.checked_add(nlb.into()).is_none_or(|end| end > namespace.blocks()) {
                return Err(Status::LBA_OUT_OF_RANGE);
            }
            let blocks = nlb.saturating_sub(cursor.blocks).min(PIECE_MAX >> namespace.shift);
            if blocks != 0 {
                command.ranges.set(self.journal, cursor);
                let offset = namespace.start + ((slba + u64::from(cursor.blocks)) << namespace.shift);
                return Ok(Next::Media(MediaWork::new(MediaKind::Trim, offset, blocks << namespace.shift)));
            }
            cursor = RangeCursor { range: cursor.range + 1, blocks: 0 };
        }
        let is_durable = self.writes_through(has_cache) || self.must_keep_trims(&namespace);
        Ok(if is_durable { Next::flush() } else { end_write(command) })
    }

    /// Whether what is deallocated has to be durable before that is answered. There is no FUA here with which a host
    /// could ask for it, and where others write too, none can do it again after the medium has forgotten it.
    fn must_keep_trims(&self, namespace: &Namespace) -> bool {
        namespace.shared
            && self.subsystem.config.cache != WriteCache::Absent
            && self.journal.rule(Rule::DurableBeforeAnswer)
    }

    pub(super) fn end_range(&self, command: &CommandCells, len: u32) {
        let namespace = self.subsystem.namespace(command.target.get().nsid);
        let shift = namespace.map_or(9, |namespace| namespace.shift);
        command.ranges.update(self.journal, |mut cursor| {
            cursor.blocks += len >> shift;
            cursor
        });
    }
}
