//! Features whose values are data: Timestamp, Host Identifier, Host Behavior Support (NVMe 2.0 §5.27.1).

use base::Instant;
use base::ledger::{Cell, Layout};
use spec::nvme::{FeatureId, SetFeatures, Status};
use zerocopy::FromBytes;

use crate::nvme::cells::Part;

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

/// The values.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct FeatureDataCells {
    /// Milliseconds of the timestamp, when they were set, and where they came from.
    timestamp: Cell<u64>,
    timestamp_at: Cell<u64>,
    timestamp_origin: Cell<u64>,
    host_identifier: [Cell<u64>; 2],
    /// The first eight bytes of Host Behavior Support.
    host_behavior: Cell<u64>,
}

/// What the host has told in data.
pub(crate) type FeatureData<'m> = Part<'m, FeatureDataCells>;

impl FeatureData<'_> {
    /// Bytes of the data of a feature, if its value is data.
    pub(super) fn bytes(id: FeatureId, dw11: u32) -> Option<u32> {
        match id {
            FeatureId::TIMESTAMP => Some(TIMESTAMP_BYTES),
            FeatureId::HOST_IDENTIFIER if dw11 & EXHID != 0 => Some(16),
            FeatureId::HOST_IDENTIFIER => Some(8),
            FeatureId::HOST_BEHAVIOR_SUPPORT => Some(BEHAVIOR_BYTES),
            _ => None,
        }
    }

    /// The current value of a feature, for the host; the rest of `out` stays zero.
    pub(super) fn get(&self, id: FeatureId, now: Instant, out: &mut [u8]) {
        let cells = self.cells;
        let mut fill = |words: &[u64]| {
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            out.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        };
        match id {
            FeatureId::TIMESTAMP => {
                let since = now.since(Instant::from_nanos(cells.timestamp_at.get()));
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

    /// The data of a Set Features, by words.
    pub(super) fn set(
        &self,
        set: &SetFeatures,
        now: Instant,
        word: impl Fn(usize) -> u64,
    ) -> Result<(), Status> {
        let (cells, journal) = (self.cells, self.journal);
        match set.fid {
            FeatureId::TIMESTAMP => {
                cells.timestamp.set(journal, word(0) & TIMESTAMP_MASK);
                cells.timestamp_at.set(journal, now.as_nanos());
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
        Ok(())
    }

    /// A controller level reset. The time goes on from zero (NVMe 2.0 §5.27.1.11).
    pub(crate) fn reset(&self, now: Instant) {
        let (cells, journal) = (self.cells, self.journal);
        cells.host_identifier.iter().for_each(|word| word.set(journal, 0));
        cells.host_behavior.set(journal, 0);
        cells.timestamp.set(journal, 0);
        cells.timestamp_origin.set(journal, 0);
        cells.timestamp_at.set(journal, now.as_nanos());
    }
}
