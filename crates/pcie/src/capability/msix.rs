//! The MSI-X capability (PCIe 6.0 §7.7.2): where table and pending bits are. Their contents: [`crate::msix`].

use crate::config::{BarLayout, ConfigBuilder};
use crate::msix::{pending_bytes, table_bytes};
use crate::spec::capability as spec;
use crate::spec::header::BAR_COUNT;

/// Where a function keeps its vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixLocation {
    /// Vectors of the table, 1 to 2048.
    pub vectors: u16,
    /// BAR (BIR) of the table.
    pub table_bar: u8,
    /// Its offset there in bytes, a multiple of 8.
    pub table_offset: u32,
    /// BAR (BIR) of the pending bits.
    pub pending_bar: u8,
    /// Their offset there in bytes, a multiple of 8.
    pub pending_offset: u32,
}

impl MsixLocation {
    /// Reads the capability at `offset` of any function. `read` returns a dword by its byte offset. The numbers are
    /// the device's: neither BAR nor offset is checked against anything.
    pub fn decode(read: impl Fn(u16) -> u32, offset: u16) -> Self {
        let place = |register: u16| {
            let value = read(offset.wrapping_add(register));
            (value as u8 & 0x7, value & !0x7)
        };
        let (table_bar, table_offset) = place(spec::MSIX_TABLE);
        let (pending_bar, pending_offset) = place(spec::MSIX_PENDING);
        let vectors = (read(offset) >> 16) as u16 % spec::MSIX_VECTORS_MAX + 1;
        Self { vectors, table_bar, table_offset, pending_bar, pending_offset }
    }

    /// Refuses a location outside of the BARs.
    pub(crate) fn check(&self, bars: &[Option<BarLayout>; BAR_COUNT]) {
        assert!((1..=spec::MSIX_VECTORS_MAX).contains(&self.vectors), "{} vectors", self.vectors);
        let table = (self.table_bar, self.table_offset, table_bytes(self.vectors));
        let pending = (self.pending_bar, self.pending_offset, pending_bytes(self.vectors));
        for (bar, offset, bytes) in [table, pending] {
            let size = bars.get(usize::from(bar)).copied().flatten().map_or(0, |bar| bar.size);
            assert!(offset.is_multiple_of(8), "offset {offset:#x} is no multiple of 8");
            assert!(
                u64::from(offset) + bytes as u64 <= size,
                "{bytes} bytes at {offset:#x} outside of BAR {bar}"
            );
        }
    }
}

pub(crate) fn add(builder: &mut ConfigBuilder, location: MsixLocation) -> u16 {
    let offset = builder.capability(spec::MSIX, location.vectors - 1, spec::MSIX_BYTES);
    builder.writable(offset, spec::MSIX_CONTROL_WRITABLE);
    builder.set(offset + spec::MSIX_TABLE, location.table_offset | u32::from(location.table_bar));
    builder.set(offset + spec::MSIX_PENDING, location.pending_offset | u32::from(location.pending_bar));
    offset
}
