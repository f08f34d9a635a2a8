//! Memory requests (PCIe 6.0 §2.2.7): MRd and MWr with a 32 or 64-bit address.

use super::common::{AddressType, Attributes, Dword0, FirstFields};
use super::{EncodedHeader, Malformed, ParseError, dwords};
use crate::id::{Bdf, Tag};
use crate::spec::{
    ADDRESS_64_MIN, BYTE_ENABLES_ALL, DWORD_BYTES, HEADER_BYTES_MAX, HEADER_BYTES_MIN, LENGTH_DW_MAX,
    PAYLOAD_BYTES_MAX, REQUEST_BOUNDARY_BYTES, TRAFFIC_CLASS_MAX, fmt_type,
};

/// A memory read or write; which of the two, the [`Header`](super::Header) says.
///
/// The format follows the address: 32-bit below 4 GiB, 64-bit from there on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryRequest {
    /// Who asks.
    pub requester: Bdf,
    /// Ties completions to a read; a write needs none.
    pub tag: Tag,
    /// Address of the first dword: a multiple of 4.
    pub address: u64,
    /// Dwords touched, 1 to 1024.
    pub length_dw: u16,
    /// Bytes enabled in the first dword, bit 0 for the lowest address.
    pub first_be: u8,
    /// Bytes enabled in the last dword; 0 if there is only one.
    pub last_be: u8,
    /// 0 to 7.
    pub traffic_class: u8,
    /// Ordering and snooping.
    pub attributes: Attributes,
    /// What the address is.
    pub address_type: AddressType,
    /// The payload is damaged (EP).
    pub poisoned: bool,
}

/// Why a byte range is not one memory request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There are no bytes; [`MemoryRequest::flush`] builds the read of none.
    #[error("a memory request of no bytes")]
    Empty,
    /// More than 4096 bytes.
    #[error("a memory request of {bytes} bytes; the most is 4096")]
    TooLong {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The range crosses a 4 KiB boundary.
    #[error("a memory request of {bytes} bytes at {address:#x} crosses a 4 KiB boundary; split it there")]
    CrossesBoundary {
        /// First byte asked for.
        address: u64,
        /// Bytes asked for.
        bytes: usize,
    },
}

impl MemoryRequest {
    /// A request for `bytes` bytes from byte address `address`, with byte enables for exactly these. Traffic class
    /// 0, no attributes, untranslated, not poisoned.
    ///
    /// # Errors
    /// If the range is empty, longer than 4096 bytes or crosses a 4 KiB boundary.
    #[inline]
    pub fn new(requester: Bdf, tag: Tag, address: u64, bytes: usize) -> Result<Self, RequestError> {
        if bytes == 0 {
            return Err(RequestError::Empty);
        }
        if bytes > PAYLOAD_BYTES_MAX {
            return Err(RequestError::TooLong { bytes });
        }
        let in_page = (address % REQUEST_BOUNDARY_BYTES) as usize;
        if in_page + bytes > REQUEST_BOUNDARY_BYTES as usize {
            return Err(RequestError::CrossesBoundary { address, bytes });
        }
        let lead = in_page % DWORD_BYTES;
        let length = (lead + bytes).div_ceil(DWORD_BYTES);
        let trail = length * DWORD_BYTES - lead - bytes;
        let first = BYTE_ENABLES_ALL << lead & BYTE_ENABLES_ALL;
        let last = BYTE_ENABLES_ALL >> trail;
        let (first_be, last_be) = if length == 1 { (first & last, 0) } else { (first, last) };
        Ok(Self { first_be, last_be, length_dw: length as u16, ..Self::flush(requester, tag, address) })
    }

    /// The zero-length request for the dword that holds `address`: as a read, a flush of the posted writes before
    /// it (PCIe 6.0 §2.2.5). Its completion carries one dword without meaning.
    #[inline]
    pub fn flush(requester: Bdf, tag: Tag, address: u64) -> Self {
        Self {
            requester,
            tag,
            address: address & !0x3,
            length_dw: 1,
            first_be: 0,
            last_be: 0,
            traffic_class: 0,
            attributes: Attributes::NONE,
            address_type: AddressType::Untranslated,
            poisoned: false,
        }
    }

    /// First enabled byte and the number of bytes up to the last enabled one. These are exactly the enabled bytes
    /// if the enables are contiguous; a request without enabled bytes has none, at its dword's address.
    #[inline]
    pub fn byte_range(&self) -> (u64, usize) {
        if self.first_be == 0 && self.length_dw == 1 {
            return (self.address, 0);
        }
        let lead = self.padding();
        let last = if self.length_dw == 1 { self.first_be } else { self.last_be };
        // A nibble of a byte: four of its leading zeros are never enables.
        let trail = (last & BYTE_ENABLES_ALL).leading_zeros() as usize - 4;
        let bytes = (usize::from(self.length_dw) * DWORD_BYTES).saturating_sub(lead + trail);
        (self.address.wrapping_add(lead as u64), bytes)
    }

    /// Bytes between the start of the payload, which is aligned to dwords, and the first enabled byte: 0 to 3.
    #[inline]
    pub fn padding(&self) -> usize {
        match self.first_be & BYTE_ENABLES_ALL {
            0 => 0,
            enables => enables.trailing_zeros() as usize,
        }
    }

    /// Whether the enabled bytes have no gap, so that [`MemoryRequest::byte_range`] is exact. Only requests of one
    /// or two dwords may have gaps.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        if self.length_dw == 1 {
            let run = self.first_be >> self.padding();
            return run & run.wrapping_add(1) == 0;
        }
        reaches_end(self.first_be) && reaches_start(self.last_be)
    }

    /// Whether byte `index` of the payload is enabled; false outside of it.
    #[inline]
    pub fn is_enabled(&self, index: usize) -> bool {
        let dword = index / DWORD_BYTES;
        let enables = if dword >= usize::from(self.length_dw) {
            0
        } else if dword == 0 {
            self.first_be
        } else if dword + 1 == usize::from(self.length_dw) {
            self.last_be
        } else {
            BYTE_ENABLES_ALL
        };
        enables >> (index % DWORD_BYTES) & 1 == 1
    }

    /// Bytes of the encoded header.
    #[inline]
    pub(super) fn header_len(&self) -> usize {
        if self.address < ADDRESS_64_MIN { HEADER_BYTES_MIN } else { HEADER_BYTES_MAX }
    }

    #[inline]
    pub(super) fn decode(first: Dword0, d1: u32, address: u64) -> Self {
        Self {
            requester: Bdf((d1 >> 16) as u16),
            tag: first.tag((d1 >> 8) as u8),
            address,
            length_dw: first.length_dw(),
            first_be: d1 as u8 & 0xf,
            last_be: d1 as u8 >> 4,
            traffic_class: first.traffic_class(),
            attributes: first.attributes(),
            address_type: first.address_type(),
            poisoned: first.poisoned(),
        }
    }

    #[inline]
    pub(super) fn decode_64(first: Dword0, d1: u32, d2: u32, bytes: &[u8]) -> Result<Self, ParseError> {
        let [d3] = dwords(bytes, 12)?;
        let address = u64::from(d2) << 32 | u64::from(d3);
        if address < ADDRESS_64_MIN {
            return Err(Malformed::Address.into());
        }
        Ok(Self::decode(first, d1, address))
    }

    #[inline]
    pub(super) fn check(&self, write: bool) -> Result<(), Malformed> {
        if self.address & 0x3 != 0 {
            return Err(Malformed::Address);
        }
        if self.length_dw == 0 || self.length_dw > LENGTH_DW_MAX {
            return Err(Malformed::Length);
        }
        let bytes = u64::from(self.length_dw) * DWORD_BYTES as u64;
        if self.address % REQUEST_BOUNDARY_BYTES + bytes > REQUEST_BOUNDARY_BYTES {
            return Err(Malformed::CrossesBoundary);
        }
        if self.traffic_class > TRAFFIC_CLASS_MAX {
            return Err(Malformed::TrafficClass);
        }
        match self.address_type {
            AddressType::Untranslated | AddressType::Translated => {}
            AddressType::TranslationRequest if !write => {}
            AddressType::TranslationRequest | AddressType::Reserved => return Err(Malformed::AddressType),
        }
        if self.byte_enables_allowed() { Ok(()) } else { Err(Malformed::ByteEnables) }
    }

    /// The rules of PCIe 6.0 §2.2.5: one dword has no last byte enables and any first; more dwords have both; gaps
    /// are allowed in one dword and in an aligned quadword, elsewhere the enabled bytes are one run.
    #[inline]
    fn byte_enables_allowed(&self) -> bool {
        let (first, last) = (self.first_be, self.last_be);
        if first > BYTE_ENABLES_ALL || last > BYTE_ENABLES_ALL {
            return false;
        }
        match self.length_dw {
            1 => last == 0,
            2 if self.address.is_multiple_of(8) => first != 0 && last != 0,
            _ => reaches_end(first) && reaches_start(last),
        }
    }

    /// `with_data` is [`fmt_type::WITH_DATA`] or 0.
    #[inline]
    pub(super) fn encode(&self, with_data: u8) -> EncodedHeader {
        let four = self.address >= ADDRESS_64_MIN;
        let fields = FirstFields {
            fmt_type: fmt_type::MEMORY_READ_32 | with_data | if four { fmt_type::FOUR_DW } else { 0 },
            tag: self.tag,
            traffic_class: self.traffic_class,
            attributes: self.attributes,
            address_type: self.address_type,
            poisoned: self.poisoned,
            length_dw: self.length_dw,
        };
        let d1 = u32::from(self.requester.0) << 16
            | self.tag.low() << 8
            | u32::from(self.last_be) << 4
            | u32::from(self.first_be);
        let (high, low) = ((self.address >> 32) as u32, self.address as u32);
        if four {
            EncodedHeader::four([fields.encode(), d1, high, low])
        } else {
            EncodedHeader::three([fields.encode(), d1, low])
        }
    }
}

/// Replaces the address in the encoded header of a memory request, whose format follows it. Bytes of the header then;
/// `None`, and nothing has changed, if it is another kind.
#[inline]
pub fn replace_address(
    header: &mut [u8; HEADER_BYTES_MAX],
    change: impl FnOnce(u64) -> u64,
) -> Option<usize> {
    const FORMATS: u8 = fmt_type::WITH_DATA | fmt_type::FOUR_DW;
    if header[0] & !FORMATS != fmt_type::MEMORY_READ_32 {
        return None;
    }
    let [.., one, two] = dwords::<4>(header, 0).ok()?;
    let is_long = header[0] & fmt_type::FOUR_DW != 0;
    let address = change(if is_long { u64::from(one) << 32 | u64::from(two) } else { one.into() });
    if address >= ADDRESS_64_MIN {
        header[0] |= fmt_type::FOUR_DW;
        header[8..].copy_from_slice(&address.to_be_bytes());
        Some(HEADER_BYTES_MAX)
    } else {
        header[0] &= !fmt_type::FOUR_DW;
        header[8..HEADER_BYTES_MIN].copy_from_slice(&(address as u32).to_be_bytes());
        Some(HEADER_BYTES_MIN)
    }
}

/// The enabled bytes run up to the end of the dword, and there are some.
#[inline]
fn reaches_end(enables: u8) -> bool {
    matches!(enables, 0b1111 | 0b1110 | 0b1100 | 0b1000)
}

/// The enabled bytes run from the start of the dword, and there are some.
#[inline]
fn reaches_start(enables: u8) -> bool {
    matches!(enables, 0b1111 | 0b0111 | 0b0011 | 0b0001)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(address: u64, bytes: usize) -> MemoryRequest {
        MemoryRequest::new(Bdf(0), Tag::ZERO, address, bytes).unwrap()
    }

    #[test]
    fn new_enables_exactly_the_bytes_asked_for() {
        for address in 0x1000..0x1010_u64 {
            for bytes in 1..40 {
                let request = request(address, bytes);
                assert_eq!(request.check(false), Ok(()));
                assert_eq!(request.byte_range(), (address, bytes));
                assert!(request.is_contiguous());
                let payload = usize::from(request.length_dw) * 4;
                let enabled: Vec<u64> = (0..payload + 8)
                    .filter(|&index| request.is_enabled(index))
                    .map(|index| request.address + index as u64)
                    .collect();
                assert_eq!(enabled, (address..address + bytes as u64).collect::<Vec<_>>());
                assert_eq!(request.padding() as u64, address % 4);
            }
        }
    }

    #[test]
    fn another_address_is_that_of_the_request_that_has_it() {
        use crate::tlp::Header;
        let encoded = |header: Header| {
            let mut bytes = [0x5a; HEADER_BYTES_MAX];
            let encoded = header.encode();
            bytes[..encoded.as_bytes().len()].copy_from_slice(encoded.as_bytes());
            bytes
        };
        let addresses = [0x1000, 0xffff_f000, 1 << 32, 3 << 62 | 5 << 44 | 0x2000];
        for kind in [Header::MemoryRead as fn(_) -> _, Header::MemoryWrite] {
            for (before, after) in addresses.into_iter().flat_map(|one| addresses.map(|other| (one, other))) {
                let mut bytes = encoded(kind(request(before, 64)));
                let replace = |address| {
                    assert_eq!(address, before);
                    after
                };
                let len = replace_address(&mut bytes, replace).unwrap();
                assert_eq!(&bytes[..len], kind(request(after, 64)).encode().as_bytes());
            }
        }
        let completion = crate::tlp::Completion::config_data(Bdf(0), Tag::ZERO, Bdf(1));
        let mut bytes = encoded(Header::Completion(completion));
        let before = bytes;
        assert_eq!((replace_address(&mut bytes, |_| 0), bytes), (None, before));
    }

    #[test]
    fn new_refuses_what_is_not_one_request() {
        let new = |address, bytes| MemoryRequest::new(Bdf(0), Tag::ZERO, address, bytes);
        assert_eq!(new(0, 0), Err(RequestError::Empty));
        assert_eq!(new(0, 4097), Err(RequestError::TooLong { bytes: 4097 }));
        assert_eq!(new(0, usize::MAX), Err(RequestError::TooLong { bytes: usize::MAX }));
        assert_eq!(new(1, 4096), Err(RequestError::CrossesBoundary { address: 1, bytes: 4096 }));
        assert_eq!(new(u64::MAX, 2), Err(RequestError::CrossesBoundary { address: u64::MAX, bytes: 2 }));
        assert_eq!(request(u64::MAX, 1).byte_range(), (u64::MAX, 1));
        assert_eq!(request(0x1000, 4096).length_dw, 1024);
    }

    #[test]
    fn byte_enable_rules() {
        let check = |address, length_dw, first_be, last_be| {
            MemoryRequest { length_dw, first_be, last_be, ..request(address, 4) }.check(false)
        };
        let refused = Err(Malformed::ByteEnables);
        assert_eq!(check(0, 1, 0b0101, 0), Ok(()), "one dword may have gaps");
        assert_eq!(check(0, 1, 0, 0), Ok(()), "the zero-length request");
        assert_eq!(check(0, 1, 0xf, 1), refused);
        assert_eq!(check(8, 2, 0b0101, 0b1010), Ok(()), "an aligned quadword may have gaps");
        assert_eq!(check(4, 2, 0b0101, 0b1010), refused);
        assert_eq!(check(4, 2, 0b1000, 0b0001), Ok(()));
        assert_eq!(check(8, 2, 0, 0xf), refused);
        assert_eq!(check(8, 2, 0xf, 0), refused);
        assert_eq!(check(8, 3, 0b0111, 0xf), refused);
        assert_eq!(check(8, 3, 0xf, 0b1110), refused);
        assert_eq!(check(0, 1, 0x1f, 0), refused);
    }

    #[test]
    fn gaps_span_from_first_to_last_enabled_byte() {
        let gaps = MemoryRequest { first_be: 0b1010, ..request(0x40, 4) };
        assert_eq!(gaps.byte_range(), (0x41, 3));
        assert!(!gaps.is_contiguous());
        let quad = MemoryRequest { length_dw: 2, first_be: 0b0110, last_be: 0b0100, ..request(0x40, 4) };
        assert_eq!(quad.byte_range(), (0x41, 6));
        assert!(!quad.is_contiguous());
        assert_eq!(MemoryRequest::flush(Bdf(0), Tag::ZERO, 0x47).byte_range(), (0x44, 0));
    }

    #[test]
    fn field_rules() {
        let good = request(0x1000, 16);
        assert_eq!(MemoryRequest { address: 0x1001, ..good }.check(false), Err(Malformed::Address));
        assert_eq!(MemoryRequest { length_dw: 0, ..good }.check(false), Err(Malformed::Length));
        assert_eq!(MemoryRequest { length_dw: 1025, ..good }.check(false), Err(Malformed::Length));
        assert_eq!(MemoryRequest { address: 0x1ff4, ..good }.check(false), Err(Malformed::CrossesBoundary));
        assert_eq!(MemoryRequest { traffic_class: 8, ..good }.check(false), Err(Malformed::TrafficClass));
        let translation = MemoryRequest { address_type: AddressType::TranslationRequest, ..good };
        assert_eq!(translation.check(false), Ok(()));
        assert_eq!(translation.check(true), Err(Malformed::AddressType));
    }
}
