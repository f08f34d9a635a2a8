//! Dataset Management: the ranges to deallocate (NVM CS 1.0 §3.2.3).

use base::Rule;
use spec::nvme::{DatasetManagementRange, Status};
use zerocopy::FromBytes;

use super::RANGE_BYTES;
use crate::function::MediaKind;
use crate::nvme::command::RangeCursor;
use crate::nvme::subsystem::Namespace;
use crate::nvme::{Controller, WriteCache};

/// Longest piece of a range that the medium is given at once, in bytes: a power of two, so whole blocks.
pub(crate) const PIECE_MAX: u32 = 1 << 30;

impl Controller<'_> {
    /// Gives the medium the next range of a Dataset Management command, or completes it.
    pub(crate) fn continue_ranges(&mut self, slot: u16) {
        let command = self.command(slot);
        let count = command.entry().dsm_ranges();
        let Some(namespace) = self.subsystem.active(command.target.get().nsid, self.index) else {
            return self.complete(slot, 0, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        };
        let mut cursor = command.ranges.get();
        while cursor.range < count {
            let mut bytes = [0; RANGE_BYTES];
            self.pages.read(command.page(0), cursor.range as usize * RANGE_BYTES, &mut bytes);
            let range = DatasetManagementRange::read_from_bytes(&bytes).unwrap_or_default();
            let (slba, nlb) = (range.slba.get(), range.nlb.get());
            if slba.checked_add(nlb.into()).is_none_or(|end| end > namespace.blocks()) {
                return self.complete(slot, 0, Status::LBA_OUT_OF_RANGE.with_dnr());
            }
            let blocks = nlb.saturating_sub(cursor.blocks).min(PIECE_MAX >> namespace.shift);
            if blocks != 0 {
                command.ranges.set(self.journal, cursor);
                let offset = namespace.start + ((slba + u64::from(cursor.blocks)) << namespace.shift);
                return self.begin_media(slot, MediaKind::Trim, offset, blocks << namespace.shift);
            }
            cursor = RangeCursor { range: cursor.range + 1, blocks: 0 };
        }
        if self.writes_through() || self.must_keep_trims(&namespace) {
            return self.begin_media(slot, MediaKind::Flush, 0, 0);
        }
        self.complete_write(slot);
    }

    /// Whether what is deallocated has to be durable before that is answered. There is no FUA here with which a host
    /// could ask for it, and where others write too, none can do it again after the medium has forgotten it.
    fn must_keep_trims(&self, namespace: &Namespace) -> bool {
        namespace.shared
            && self.config.cache != WriteCache::Absent
            && self.journal.rule(Rule::DurableBeforeAnswer)
    }

    pub(crate) fn end_range(&mut self, slot: u16, len: u32) {
        let command = self.command(slot);
        let shift =
            self.subsystem.namespace(command.target.get().nsid).map_or(9, |namespace| namespace.shift);
        command.ranges.update(self.journal, |mut cursor| {
            cursor.blocks += len >> shift;
            cursor
        });
        self.continue_ranges(slot);
    }
}
