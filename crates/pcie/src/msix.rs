//! MSI-X vectors (PCIe 6.0 §7.7.2): the layout of table entries and pending bits, and when a vector interrupts.
//!
//! There is no storage here: the table lies in the owner's memory, in a BAR that the capability names
//! ([`crate::capability::msix`]). An interrupt is a posted write of four bytes ([`Entry::message`]).

use crate::config::{MsixControl, byte_mask};
use crate::id::{Bdf, Tag};
use crate::spec::DWORD_BYTES;
use crate::tlp::MemoryRequest;

/// Bytes of a table entry.
pub const ENTRY_BYTES: usize = 16;
/// Vectors of one quadword of pending bits.
const PENDING_VECTORS: u16 = 64;
/// The bits of an entry that software writes, by dword: address, upper address, data, vector control.
const WRITABLE: [u32; 4] = [0xffff_fffc, 0xffff_ffff, 0xffff_ffff, Entry::MASK_BIT];

/// Bytes of a table of so many vectors.
pub const fn table_bytes(vectors: u16) -> usize {
    vectors as usize * ENTRY_BYTES
}

/// Bytes of the pending bits of so many vectors: whole quadwords.
pub const fn pending_bytes(vectors: u16) -> usize {
    vectors.div_ceil(PENDING_VECTORS) as usize * 8
}

/// Byte of the pending bit array that holds a vector's bit, and the bit's mask in it.
pub const fn pending_bit(vector: u16) -> (usize, u8) {
    (vector as usize / 8, 1 << (vector % 8))
}

/// One table entry (PCIe 6.0 §7.7.2.5 to §7.7.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where the message goes: a multiple of 4.
    pub address: u64,
    /// What is written there.
    pub data: u32,
    /// Vector control; bit 0 masks.
    pub control: u32,
}

const _: () = assert!(size_of::<Entry>() == ENTRY_BYTES);

/// What to do when a vector's event occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Send the message and clear the pending bit.
    Send,
    /// Set the pending bit, and send when both masks are clear.
    Pend,
    /// MSI-X is off: nothing happens.
    Off,
}

impl Entry {
    /// Mask Bit of the vector control.
    pub const MASK_BIT: u32 = 1;
    /// An entry after reset: masked.
    pub const RESET: Self = Self { address: 0, data: 0, control: Self::MASK_BIT };

    /// Reads an entry as it lies in memory, little endian.
    #[inline]
    pub fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Self {
        let mut dwords = [0; 4];
        for (dword, four) in dwords.iter_mut().zip(bytes.as_chunks::<DWORD_BYTES>().0) {
            *dword = u32::from_le_bytes(*four);
        }
        Self::from_dwords(dwords)
    }

    /// The entry as it lies in memory.
    #[inline]
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        for (four, dword) in bytes.chunks_exact_mut(DWORD_BYTES).zip(self.to_dwords()) {
            four.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }

    /// The entry after software writes `value` to the enabled bytes of its dword `index` (0 to 3; others are
    /// ignored).
    #[must_use]
    pub fn write(self, index: usize, value: u32, byte_enables: u8) -> Self {
        let mut dwords = self.to_dwords();
        if let (Some(dword), Some(writable)) = (dwords.get_mut(index), WRITABLE.get(index)) {
            let mask = writable & byte_mask(byte_enables);
            *dword = *dword & !mask | value & mask;
        }
        Self::from_dwords(dwords)
    }

    /// Whether this vector is masked by itself.
    #[inline]
    pub fn is_masked(&self) -> bool {
        self.control & Self::MASK_BIT != 0
    }

    /// What an event of this vector leads to (PCIe 6.0 §6.1.4.5).
    #[inline]
    pub fn deliver(&self, control: MsixControl) -> Delivery {
        match (control.enabled, control.masked || self.is_masked()) {
            (false, _) => Delivery::Off,
            (true, true) => Delivery::Pend,
            (true, false) => Delivery::Send,
        }
    }

    /// The memory write that is the interrupt; its payload is `data`, little endian.
    #[inline]
    pub fn message(&self, requester: Bdf) -> MemoryRequest {
        MemoryRequest { first_be: 0xf, ..MemoryRequest::flush(requester, Tag::ZERO, self.address) }
    }

    #[inline]
    fn from_dwords([low, high, data, control]: [u32; 4]) -> Self {
        Self { address: u64::from(high) << 32 | u64::from(low), data, control }
    }

    #[inline]
    fn to_dwords(self) -> [u32; 4] {
        [self.address as u32, (self.address >> 32) as u32, self.data, self.control]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlp::Header;

    #[test]
    fn entries_lie_in_memory_as_specified() {
        let bytes = [0x04, 0x10, 0xe0, 0xfe, 1, 0, 0, 0, 0x41, 0x40, 0, 0, 1, 0, 0, 0];
        let entry = Entry::from_bytes(&bytes);
        assert_eq!(entry, Entry { address: 0x1_fee0_1004, data: 0x4041, control: 1 });
        assert_eq!(entry.to_bytes(), bytes);
    }

    #[test]
    fn writes_reach_only_what_software_owns() {
        let entry = Entry::RESET.write(0, 0xfee0_1007, 0xf).write(1, 0x0102_0304, 0b0011);
        assert_eq!(entry.address, 0x0304_fee0_1004);
        assert_eq!(entry.write(3, 0xffff_fffe, 0xf).control, 0);
        assert_eq!(entry.write(3, 0, 0b1110).control, 1);
        assert_eq!(entry.write(4, 0, 0xf), entry);
    }

    #[test]
    fn delivery() {
        let control = MsixControl { enabled: true, masked: false, vectors: 4 };
        let open = Entry { control: 0, ..Entry::RESET };
        assert_eq!(open.deliver(control), Delivery::Send);
        assert_eq!(Entry::RESET.deliver(control), Delivery::Pend);
        assert_eq!(open.deliver(MsixControl { masked: true, ..control }), Delivery::Pend);
        assert_eq!(open.deliver(MsixControl { enabled: false, ..control }), Delivery::Off);
    }

    #[test]
    fn the_message_is_one_dword() {
        let entry = Entry { address: 0x1_fee0_1004, data: 1, control: 0 };
        let header = Header::MemoryWrite(entry.message(Bdf(0x0100)));
        assert_eq!(header.check(), Ok(()));
        assert_eq!(header.payload_len(), 4);
        assert_eq!(entry.message(Bdf(0x0100)).byte_range(), (0x1_fee0_1004, 4));
    }

    #[test]
    fn sizes() {
        assert_eq!((table_bytes(2048), pending_bytes(2048)), (32768, 256));
        assert_eq!((pending_bytes(1), pending_bytes(64), pending_bytes(65)), (8, 8, 16));
        assert_eq!(pending_bit(77), (9, 0x20));
    }
}
