//! Features whose values are data: Timestamp, Host Identifier, Host Behavior Support (NVMe 2.0 §5.27.1).

use base::Instant;
use spec::nvme::{FeatureId, GetFeatures, SetFeatures, Status, SubmissionEntry};

use crate::nvme::Controller;

/// Bytes of the values.
const TIMESTAMP_BYTES: u32 = 8;
const BEHAVIOR_BYTES: u32 = 512;
/// Extended Host Identifier: 16 bytes.
const EXHID: u32 = 1;
/// Where a timestamp comes from, in bits 3:1 of its byte 6: the host.
const ORIGIN_HOST: u64 = 1;
/// A timestamp has 48 bits.
const TIMESTAMP_MASK: u64 = (1 << 48) - 1;
/// Byte 0 of Host Behavior Support: Advanced Command Retry Enable. This controller has no delays to offer.
const BEHAVIOR_MASK: u64 = 0xff;

impl Controller<'_> {
    /// Bytes of the data of a feature, if its value is data.
    pub(super) fn feature_bytes(&self, id: FeatureId, dw11: u32) -> Option<u32> {
        match id {
            FeatureId::TIMESTAMP => Some(TIMESTAMP_BYTES),
            FeatureId::HOST_IDENTIFIER if dw11 & EXHID != 0 => Some(16),
            FeatureId::HOST_IDENTIFIER => Some(8),
            FeatureId::HOST_BEHAVIOR_SUPPORT => Some(BEHAVIOR_BYTES),
            _ => None,
        }
    }

    /// The data of a Get Features, for the host; the rest of `out` stays zero.
    pub(super) fn feature_data(&self, get: &GetFeatures, is_default: bool, out: &mut [u8]) {
        let cells = &self.cells.admin;
        let mut fill = |words: &[u64]| {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        };
        match get.fid {
            _ if is_default => {}
            FeatureId::TIMESTAMP => {
                let since = self.now.since(Instant::from_nanos(cells.timestamp_at.get()));
                let passed = u64::try_from(since.as_millis()).unwrap_or(TIMESTAMP_MASK);
                let millis = cells.timestamp.get().saturating_add(passed) & TIMESTAMP_MASK;
                fill(&[millis | cells.timestamp_origin.get() << 49]);
            }
            FeatureId::HOST_IDENTIFIER => {
                fill(&[cells.host_identifier[0].get(), cells.host_identifier[1].get()]);
            }
            _ => fill(&[cells.host_behavior.get()]),
        }
    }

    /// The data of a Set Features have come.
    pub(super) fn take_feature_data(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let set = SetFeatures::parse(entry);
        let (cells, journal) = (&self.cells.admin, self.journal);
        let word = |index: usize| {
            let mut bytes = [0; 8];
            self.pages.read(self.command(slot).page(0), index * 8, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        match set.fid {
            FeatureId::TIMESTAMP => {
                cells.timestamp.set(journal, word(0) & TIMESTAMP_MASK);
                cells.timestamp_at.set(journal, self.now.as_nanos());
                cells.timestamp_origin.set(journal, ORIGIN_HOST);
            }
            FeatureId::HOST_IDENTIFIER => {
                cells.host_identifier[0].set(journal, word(0));
                let upper = if set.dw11 & EXHID != 0 { word(1) } else { 0 };
                cells.host_identifier[1].set(journal, upper);
            }
            FeatureId::HOST_BEHAVIOR_SUPPORT if word(0) & BEHAVIOR_MASK > 1 => {
                return Err(Status::INVALID_FIELD);
            }
            _ => cells.host_behavior.set(journal, word(0) & BEHAVIOR_MASK),
        }
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }
}
