//! Completions (PCIe 6.0 §2.2.9): Cpl and CplD.

use super::common::{AddressType, Attributes, Dword0, FirstFields};
use super::split::{ReadCompletionBoundary, Split};
use super::{EncodedHeader, Malformed, MemoryRequest};
use crate::id::{Bdf, Tag};
use crate::spec::{
    BYTE_COUNT_MAX, DWORD_BYTES, LENGTH_DW_MAX, LOWER_ADDRESS_MASK, TRAFFIC_CLASS_MAX, completion, fmt_type,
};

/// How a request ended (PCIe 6.0 §2.2.9.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionStatus {
    /// SC.
    Success,
    /// UR: nobody is there, or it does not take such requests.
    UnsupportedRequest,
    /// RRS: a configuration request to repeat later.
    RequestRetry,
    /// CA: the completer broke off.
    CompleterAbort,
    /// 011b, 101b, 110b or 111b; requesters treat it as UR.
    Reserved(u8),
}

impl CompletionStatus {
    /// From the three bits of the field; higher bits are ignored.
    #[inline]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0x7 {
            0b000 => Self::Success,
            0b001 => Self::UnsupportedRequest,
            0b010 => Self::RequestRetry,
            0b100 => Self::CompleterAbort,
            other => Self::Reserved(other),
        }
    }

    /// The value of the field.
    #[inline]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Success => 0b000,
            Self::UnsupportedRequest => 0b001,
            Self::RequestRetry => 0b010,
            Self::CompleterAbort => 0b100,
            Self::Reserved(bits) => bits,
        }
    }
}

/// The answer to a non-posted request, or one part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Completion {
    /// Who answers.
    pub completer: Bdf,
    /// Whom the answer goes to.
    pub requester: Bdf,
    /// The request's tag.
    pub tag: Tag,
    /// How it ended.
    pub status: CompletionStatus,
    /// Bytes that were still to come before this completion, these included: 1 to 4096. 4 for everything but memory
    /// reads.
    pub byte_count: u16,
    /// Low 7 bits of the address of the first byte; 0 for everything but memory reads.
    pub lower_address: u8,
    /// Dwords of payload, 1 to 1024, or 0 for a completion without data.
    pub length_dw: u16,
    /// 0 to 7, as in the request.
    pub traffic_class: u8,
    /// As in the request.
    pub attributes: Attributes,
    /// The payload is damaged (EP).
    pub poisoned: bool,
}

impl Completion {
    /// Byte Count of completions of everything but memory reads (PCIe 6.0 §2.2.9).
    pub const BYTE_COUNT_OTHER: u16 = DWORD_BYTES as u16;

    /// A completion without data: the answer to a configuration write, or the failure of any request that is no
    /// memory read (for those, see [`Completion::failure`]).
    #[inline]
    pub fn without_data(requester: Bdf, tag: Tag, completer: Bdf, status: CompletionStatus) -> Self {
        Self {
            completer,
            requester,
            tag,
            status,
            byte_count: Self::BYTE_COUNT_OTHER,
            lower_address: 0,
            length_dw: 0,
            traffic_class: 0,
            attributes: Attributes::NONE,
            poisoned: false,
        }
    }

    /// The answer to a configuration read: one dword.
    #[inline]
    pub fn config_data(requester: Bdf, tag: Tag, completer: Bdf) -> Self {
        Self { length_dw: 1, ..Self::without_data(requester, tag, completer, CompletionStatus::Success) }
    }

    /// The answer to a memory read that fails as a whole.
    #[inline]
    pub fn failure(request: &MemoryRequest, completer: Bdf, status: CompletionStatus) -> Self {
        let (address, bytes) = request.byte_range();
        Self {
            byte_count: bytes.clamp(1, usize::from(BYTE_COUNT_MAX)) as u16,
            lower_address: address as u8 & LOWER_ADDRESS_MASK,
            traffic_class: request.traffic_class,
            attributes: request.attributes,
            ..Self::without_data(request.requester, request.tag, completer, status)
        }
    }

    /// The successful completions of a memory read, in address order; see [`Split`].
    ///
    /// `max_payload` is in bytes.
    ///
    /// # Panics
    /// If `max_payload` is below `boundary` or no multiple of 4: it is the link's own number.
    #[inline]
    pub fn split(
        request: &MemoryRequest,
        completer: Bdf,
        max_payload: usize,
        boundary: ReadCompletionBoundary,
    ) -> Split {
        Split::new(request, completer, max_payload, boundary)
    }

    /// Bytes between the start of the payload and the first byte asked for: 0 to 3.
    #[inline]
    pub fn padding(&self) -> usize {
        usize::from(self.lower_address) % DWORD_BYTES
    }

    /// Bytes of the answer in this completion: the payload without the padding before and after it.
    #[inline]
    pub fn data_len(&self) -> usize {
        let payload = usize::from(self.length_dw) * DWORD_BYTES;
        payload.saturating_sub(self.padding()).min(usize::from(self.byte_count))
    }

    #[inline]
    pub(super) fn decode(first: Dword0, fmt_type: u8, d1: u32, d2: u32) -> Result<Self, Malformed> {
        if d1 & completion::BYTE_COUNT_MODIFIED != 0 || d2 & completion::RESERVED != 0 {
            return Err(Malformed::Reserved);
        }
        if first.address_type() != AddressType::Untranslated {
            return Err(Malformed::AddressType);
        }
        let with_data = fmt_type == fmt_type::COMPLETION_DATA;
        if !with_data && first.length_raw() != 0 {
            return Err(Malformed::Length);
        }
        let byte_count = (d1 & completion::BYTE_COUNT_MASK) as u16;
        Ok(Self {
            completer: Bdf((d1 >> 16) as u16),
            requester: Bdf((d2 >> 16) as u16),
            tag: first.tag((d2 >> 8) as u8),
            status: CompletionStatus::from_bits((d1 >> completion::STATUS_SHIFT) as u8),
            byte_count: if byte_count == 0 { BYTE_COUNT_MAX } else { byte_count },
            lower_address: d2 as u8 & LOWER_ADDRESS_MASK,
            length_dw: if with_data { first.length_dw() } else { 0 },
            traffic_class: first.traffic_class(),
            attributes: first.attributes(),
            poisoned: first.poisoned(),
        })
    }

    #[inline]
    pub(super) fn check(&self) -> Result<(), Malformed> {
        if self.byte_count == 0 || self.byte_count > BYTE_COUNT_MAX {
            return Err(Malformed::ByteCount);
        }
        if self.length_dw > LENGTH_DW_MAX {
            return Err(Malformed::Length);
        }
        if self.lower_address > LOWER_ADDRESS_MASK {
            return Err(Malformed::Address);
        }
        if self.traffic_class > TRAFFIC_CLASS_MAX {
            return Err(Malformed::TrafficClass);
        }
        // A number that has a name, or does not fit the field, would come back as another status.
        if self.status != CompletionStatus::from_bits(self.status.bits()) {
            return Err(Malformed::Status);
        }
        if self.length_dw == 0 {
            return Ok(());
        }
        if self.status != CompletionStatus::Success {
            return Err(Malformed::Status);
        }
        let whole = (self.padding() + usize::from(self.byte_count)).div_ceil(DWORD_BYTES);
        if usize::from(self.length_dw) > whole { Err(Malformed::ByteCount) } else { Ok(()) }
    }

    #[inline]
    pub(super) fn encode(&self) -> EncodedHeader {
        let fields = FirstFields {
            fmt_type: if self.length_dw == 0 { fmt_type::COMPLETION } else { fmt_type::COMPLETION_DATA },
            tag: self.tag,
            traffic_class: self.traffic_class,
            attributes: self.attributes,
            address_type: AddressType::Untranslated,
            poisoned: self.poisoned,
            length_dw: self.length_dw,
        };
        let d1 = u32::from(self.completer.0) << 16
            | u32::from(self.status.bits()) << completion::STATUS_SHIFT
            | u32::from(self.byte_count) & completion::BYTE_COUNT_MASK;
        let d2 = u32::from(self.requester.0) << 16 | self.tag.low() << 8 | u32::from(self.lower_address);
        EncodedHeader::three([fields.encode(), d1, d2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlp::Header;

    fn data(byte_count: u16, lower_address: u8, length_dw: u16) -> Completion {
        let plain = Completion::config_data(Bdf(1), Tag::ZERO, Bdf(2));
        Completion { byte_count, lower_address, length_dw, ..plain }
    }

    #[test]
    fn data_may_not_exceed_the_byte_count() {
        assert_eq!(data(4, 0, 1).check(), Ok(()));
        assert_eq!(data(4, 0, 2).check(), Err(Malformed::ByteCount));
        assert_eq!(data(4, 1, 2).check(), Ok(()), "four bytes across two dwords");
        assert_eq!(data(1, 3, 2).check(), Err(Malformed::ByteCount));
        assert_eq!(data(4096, 0, 1024).check(), Ok(()));
        assert_eq!(data(0, 0, 1).check(), Err(Malformed::ByteCount));
        assert_eq!(data(4097, 0, 1).check(), Err(Malformed::ByteCount));
        assert_eq!(data(4096, 0, 1025).check(), Err(Malformed::Length));
        assert_eq!(data(4, 128, 1).check(), Err(Malformed::Address));
    }

    #[test]
    fn failures_carry_no_data() {
        let failed = Completion { status: CompletionStatus::CompleterAbort, ..data(4, 0, 1) };
        assert_eq!(failed.check(), Err(Malformed::Status));
        assert_eq!(Completion { length_dw: 0, ..failed }.check(), Ok(()));
        for status in [CompletionStatus::Reserved(0), CompletionStatus::Reserved(8)] {
            let misnamed = Completion { status, ..data(4, 0, 0) };
            assert_eq!(misnamed.check(), Err(Malformed::Status));
        }
    }

    #[test]
    fn data_len_leaves_out_padding() {
        assert_eq!((data(300, 0x21, 24).padding(), data(300, 0x21, 24).data_len()), (1, 95));
        assert_eq!(data(1, 0x7f, 1).data_len(), 1);
        assert_eq!(data(4, 3, 0).data_len(), 0);
    }

    #[test]
    fn reserved_bits_and_lengths_are_refused() {
        let with = |completion: Completion, index: usize, bit: u8| {
            let mut bytes = Header::Completion(completion).encode().as_bytes().to_vec();
            bytes[index] |= bit;
            Header::decode(&bytes)
        };
        assert_eq!(with(data(4, 0, 1), 6, 0x10), Err(Malformed::Reserved.into()), "BCM");
        assert_eq!(with(data(4, 0, 1), 11, 0x80), Err(Malformed::Reserved.into()));
        assert_eq!(with(data(4, 0, 1), 2, 0x08), Err(Malformed::AddressType.into()));
        assert_eq!(with(data(4, 0, 0), 3, 0x01), Err(Malformed::Length.into()), "a length without data");
    }
}
