//! How a completer answers one memory read with several completions (PCIe 6.0 §2.3.1.1).
//!
//! A completion is limited by the maximum payload, and may end inside the range that was asked for only where the
//! address is a multiple of the read completion boundary. So the first completion brings the address to a boundary,
//! the ones between are as long as the payload allows, and the last ends with the range.

use super::{Completion, CompletionStatus, MemoryRequest};
use crate::id::Bdf;
use crate::spec::{DWORD_BYTES, LOWER_ADDRESS_MASK, PAYLOAD_BYTES_MAX};

/// RCB: where completions of a read may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadCompletionBoundary {
    /// 64 bytes: a root complex may choose it.
    Bytes64,
    /// 128 bytes: everything else, and a root complex may.
    Bytes128,
}

impl ReadCompletionBoundary {
    /// The boundary in bytes.
    #[inline]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bytes64 => 64,
            Self::Bytes128 => 128,
        }
    }
}

/// One completion of a read, and the part of the range it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionPart {
    /// The header to send; its payload starts with [`Completion::padding`] bytes without meaning, and is filled up
    /// to [`CompletionPart::payload_len`].
    pub completion: Completion,
    /// Bytes of the range before this part: where it begins in the data of [`MemoryRequest::byte_range`].
    pub offset: usize,
    /// Bytes of the range in this part; 0 only in the answer to a zero-length read.
    pub bytes: usize,
}

impl CompletionPart {
    /// Bytes of payload to send, a multiple of 4.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(self.completion.length_dw) * DWORD_BYTES
    }
}

/// The completions of a read in address order: an iterator of [`CompletionPart`], at least one and finite.
#[derive(Clone, Debug)]
pub struct Split {
    /// Header of the next completion but for byte count, lower address and length.
    template: Completion,
    /// Address of the next byte to answer.
    address: u64,
    /// Bytes answered so far.
    offset: usize,
    /// Bytes of the range that were not answered yet.
    remaining: usize,
    max_payload: usize,
    boundary: usize,
    done: bool,
}

impl Split {
    pub(super) fn new(
        request: &MemoryRequest,
        completer: Bdf,
        max_payload: usize,
        boundary: ReadCompletionBoundary,
    ) -> Self {
        assert!(
            max_payload >= boundary.bytes() && max_payload.is_multiple_of(DWORD_BYTES),
            "a maximum payload of {max_payload} bytes cannot reach the next read completion boundary",
        );
        let (address, remaining) = request.byte_range();
        Self {
            template: Completion::failure(request, completer, CompletionStatus::Success),
            address,
            offset: 0,
            remaining,
            max_payload: max_payload.min(PAYLOAD_BYTES_MAX),
            boundary: boundary.bytes(),
            done: false,
        }
    }

    /// Bytes of the range that the next completion takes.
    #[inline]
    fn next_bytes(&self) -> usize {
        let padding = (self.address % DWORD_BYTES as u64) as usize;
        if padding + self.remaining <= self.max_payload {
            return self.remaining;
        }
        // The furthest boundary the payload reaches from its start, the dword of `address`. It lies ahead, as the
        // payload is at least as long as the distance of boundaries.
        let from_boundary = (self.address % self.boundary as u64) as usize;
        let reach = from_boundary - padding + self.max_payload;
        reach / self.boundary * self.boundary - from_boundary
    }
}

impl Iterator for Split {
    type Item = CompletionPart;

    #[inline]
    fn next(&mut self) -> Option<CompletionPart> {
        if self.done {
            return None;
        }
        let bytes = self.next_bytes();
        let padding = (self.address % DWORD_BYTES as u64) as usize;
        // The answer to a zero-length read has a byte count of 1 and one dword (PCIe 6.0 §2.2.9, §2.2.5).
        let length_dw = (padding + bytes.max(1)).div_ceil(DWORD_BYTES) as u16;
        let completion = Completion {
            byte_count: self.remaining.max(1) as u16,
            lower_address: self.address as u8 & LOWER_ADDRESS_MASK,
            length_dw,
            ..self.template
        };
        let part = CompletionPart { completion, offset: self.offset, bytes };
        // At the very end of the address space there is no next address, and none is needed.
        self.address = self.address.wrapping_add(bytes as u64);
        self.offset += bytes;
        self.remaining -= bytes;
        self.done = self.remaining == 0;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Tag;

    fn split(address: u64, bytes: usize, max_payload: usize) -> Vec<(usize, usize, u16, u8, u16)> {
        let request = MemoryRequest::new(Bdf(1), Tag::ZERO, address, bytes).unwrap();
        Completion::split(&request, Bdf(2), max_payload, ReadCompletionBoundary::Bytes64)
            .map(|part| {
                let completion = part.completion;
                assert_eq!(completion.data_len(), part.bytes);
                (
                    part.offset,
                    part.bytes,
                    completion.byte_count,
                    completion.lower_address,
                    completion.length_dw,
                )
            })
            .collect()
    }

    #[test]
    fn one_completion_if_it_fits() {
        assert_eq!(split(0x1_0004, 4, 128), [(0, 4, 4, 0x04, 1)]);
        assert_eq!(split(0x1_0003, 1, 128), [(0, 1, 1, 0x03, 1)]);
        assert_eq!(split(0x1_0000, 4096, 4096), [(0, 4096, 4096, 0, 1024)]);
    }

    /// The example of PCIe 6.0 §2.3.1.1: 256 bytes from 1 0020h, of which RCB 64 allows cuts at 40h, 80h, ...
    #[test]
    fn cuts_lie_on_boundaries() {
        assert_eq!(
            split(0x1_0020, 256, 128),
            [(0, 96, 256, 0x20, 24), (96, 128, 160, 0x00, 32), (224, 32, 32, 0x00, 8)]
        );
        assert_eq!(
            split(0x1_003e, 68, 64),
            [(0, 2, 68, 0x3e, 1), (2, 64, 66, 0x40, 16), (66, 2, 2, 0x00, 1)]
        );
    }

    #[test]
    fn unaligned_start_counts_against_the_payload() {
        // 1 + 64 bytes do not fit 64 bytes of payload, though 64 do.
        assert_eq!(split(0x1_0001, 64, 64), [(0, 63, 64, 1, 16), (63, 1, 1, 0x40, 1)]);
    }

    #[test]
    fn zero_length_read_is_answered_with_one_dword() {
        let request = MemoryRequest::flush(Bdf(1), Tag::ZERO, 0x2044);
        let parts: Vec<_> =
            Completion::split(&request, Bdf(2), 128, ReadCompletionBoundary::Bytes128).collect();
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].offset, parts[0].bytes, parts[0].payload_len()), (0, 0, 4));
        assert_eq!((parts[0].completion.byte_count, parts[0].completion.lower_address), (1, 0x44));
    }

    #[test]
    fn the_end_of_the_address_space_is_no_trap() {
        assert_eq!(split(u64::MAX - 127, 128, 64), [(0, 64, 128, 0, 16), (64, 64, 64, 0x40, 16)]);
    }
}
