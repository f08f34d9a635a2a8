//! What a requester remembers of a non-posted request, and how it judges the completions that come.
//!
//! Completions of one request arrive in address order (PCIe 6.0 §2.4.1), so the next one is known down to its byte
//! count and lower address; anything else is an unexpected completion (PCIe 6.0 §2.3.2) or a broken completer.

use super::{Completion, CompletionStatus, Header};
use crate::id::{Bdf, Tag};
use crate::spec::LOWER_ADDRESS_MASK;

/// An unanswered request, small and plain so that its owner may keep it anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outstanding {
    /// Who asked.
    pub requester: Bdf,
    /// With which tag.
    pub tag: Tag,
    /// Byte count the next completion must have: 1 to 4096.
    pub remaining: u16,
    /// Bytes of the range that have come.
    pub received: u16,
    /// Lower address the next completion must have.
    pub lower_address: u8,
    /// Whether success brings data.
    pub reads: bool,
    /// Whether the request is the zero-length read, whose one dword has no meaning.
    pub zero_length: bool,
}

/// What an accepted completion brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Data: the payload's bytes from `padding` on, `bytes` of them, belong at `offset` of the range asked for.
    Data {
        /// Where they belong in the range.
        offset: usize,
        /// Bytes of the payload before them.
        padding: usize,
        /// How many.
        bytes: usize,
        /// Whether the request is answered and its tag free.
        last: bool,
        /// Whether the completer marked them as damaged.
        poisoned: bool,
    },
    /// A request without data in its answer succeeded; its tag is free.
    Done,
    /// The request failed, and its tag is free. Data that came before is void.
    Failed(CompletionStatus),
}

/// Why a completion does not answer the request. The request stays as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unexpected {
    /// Requester id or tag are another's.
    #[error("the completion answers another request")]
    Transaction,
    /// Data for a request that brings none, or success without the data asked for.
    #[error("the completion has data where none is expected, or has none")]
    Kind,
    /// Byte count, lower address or length are not those of the next part.
    #[error("the completion is not the next part of the answer")]
    Sequence,
}

impl Outstanding {
    /// What to remember of `request`; `None` for posted requests and completions, which nobody answers.
    #[inline]
    pub fn new(request: &Header) -> Option<Self> {
        let (remaining, lower_address, reads, zero_length) = match request {
            Header::MemoryRead(request) => {
                let (address, bytes) = request.byte_range();
                (bytes.max(1) as u16, address as u8 & LOWER_ADDRESS_MASK, true, bytes == 0)
            }
            Header::ConfigRead(_) => (Completion::BYTE_COUNT_OTHER, 0, true, false),
            Header::ConfigWrite(_) => (Completion::BYTE_COUNT_OTHER, 0, false, false),
            Header::MemoryWrite(_) | Header::Completion(_) | Header::Message(_) => return None,
        };
        Some(Self {
            requester: request.requester(),
            tag: request.tag(),
            remaining,
            received: 0,
            lower_address,
            reads,
            zero_length,
        })
    }

    /// Judges a completion and, if it is the next one, moves on.
    ///
    /// # Errors
    /// If it does not answer this request, or not in order. Nothing is changed then; the caller counts it and lets
    /// the completion timeout decide.
    #[inline]
    pub fn accept(&mut self, completion: &Completion) -> Result<Progress, Unexpected> {
        if completion.requester != self.requester || completion.tag != self.tag {
            return Err(Unexpected::Transaction);
        }
        if completion.status != CompletionStatus::Success {
            return Ok(Progress::Failed(completion.status));
        }
        if (completion.length_dw != 0) != self.reads {
            return Err(Unexpected::Kind);
        }
        if !self.reads {
            return Ok(Progress::Done);
        }
        if completion.byte_count != self.remaining || completion.lower_address != self.lower_address {
            return Err(Unexpected::Sequence);
        }
        let bytes = completion.data_len();
        // Nothing, or data behind the range: excluded by the check of every parsed header, and cheap to exclude here.
        if bytes == 0 || bytes > usize::from(self.remaining) {
            return Err(Unexpected::Sequence);
        }
        let offset = usize::from(self.received);
        // `bytes` is at most `remaining`, which is at most 4096.
        self.remaining -= bytes as u16;
        self.received += bytes as u16;
        self.lower_address = self.lower_address.wrapping_add(bytes as u8) & LOWER_ADDRESS_MASK;
        Ok(Progress::Data {
            offset,
            padding: completion.padding(),
            bytes: if self.zero_length { 0 } else { bytes },
            last: self.remaining == 0,
            poisoned: completion.poisoned,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tlp::{ConfigKind, ConfigRequest, MemoryRequest, ReadCompletionBoundary};

    const COMPLETER: Bdf = Bdf(0x0200);

    fn read(address: u64, bytes: usize) -> MemoryRequest {
        MemoryRequest::new(Bdf(0x0100), Tag::new(700).unwrap(), address, bytes).unwrap()
    }

    #[test]
    fn parts_are_taken_once_and_in_order() {
        let request = read(0x1_0021, 300);
        let parts: Vec<_> =
            Completion::split(&request, COMPLETER, 128, ReadCompletionBoundary::Bytes64).collect();
        assert_eq!(parts.len(), 3);
        let mut outstanding = Outstanding::new(&Header::MemoryRead(request)).unwrap();
        for (index, part) in parts.iter().enumerate() {
            for (other, wrong) in parts.iter().enumerate() {
                if other != index {
                    assert_eq!(outstanding.accept(&wrong.completion), Err(Unexpected::Sequence));
                }
            }
            let expected = Progress::Data {
                offset: part.offset,
                padding: part.completion.padding(),
                bytes: part.bytes,
                last: index == 2,
                poisoned: false,
            };
            assert_eq!(outstanding.accept(&part.completion), Ok(expected));
        }
        assert_eq!(outstanding.received, 300);
        assert_eq!(outstanding.accept(&parts[2].completion), Err(Unexpected::Sequence));
    }

    #[test]
    fn others_and_wrong_kinds_are_unexpected() {
        let request = read(0x1000, 4);
        let mut outstanding = Outstanding::new(&Header::MemoryRead(request)).unwrap();
        let good = Completion::split(&request, COMPLETER, 128, ReadCompletionBoundary::Bytes128)
            .next()
            .unwrap()
            .completion;
        let mut judge = |completion| outstanding.accept(&completion);
        assert_eq!(judge(Completion { requester: Bdf(1), ..good }), Err(Unexpected::Transaction));
        assert_eq!(judge(Completion { tag: Tag::ZERO, ..good }), Err(Unexpected::Transaction));
        assert_eq!(judge(Completion { length_dw: 0, ..good }), Err(Unexpected::Kind));
        assert_eq!(judge(Completion { byte_count: 8, ..good }), Err(Unexpected::Sequence));
        assert_eq!(judge(Completion { lower_address: 4, ..good }), Err(Unexpected::Sequence));
        let aborted = Completion::failure(&request, COMPLETER, CompletionStatus::CompleterAbort);
        assert_eq!(judge(aborted), Ok(Progress::Failed(CompletionStatus::CompleterAbort)));
        assert!(matches!(judge(good), Ok(Progress::Data { bytes: 4, last: true, .. })));
    }

    #[test]
    fn zero_length_read_brings_no_bytes() {
        let request = MemoryRequest::flush(Bdf(1), Tag::ZERO, 0x2040);
        let mut outstanding = Outstanding::new(&Header::MemoryRead(request)).unwrap();
        let part =
            Completion::split(&request, COMPLETER, 128, ReadCompletionBoundary::Bytes64).next().unwrap();
        assert!(matches!(
            outstanding.accept(&part.completion),
            Ok(Progress::Data { bytes: 0, last: true, .. })
        ));
    }

    #[test]
    fn configuration_requests() {
        let request = ConfigRequest {
            requester: Bdf(1),
            tag: Tag::ZERO,
            target: COMPLETER,
            register: 0x10,
            first_be: 0xf,
            kind: ConfigKind::Type0,
            poisoned: false,
        };
        let mut write = Outstanding::new(&Header::ConfigWrite(request)).unwrap();
        let data = Completion::config_data(Bdf(1), Tag::ZERO, COMPLETER);
        let done = Completion::without_data(Bdf(1), Tag::ZERO, COMPLETER, CompletionStatus::Success);
        assert_eq!(write.accept(&data), Err(Unexpected::Kind));
        assert_eq!(write.accept(&done), Ok(Progress::Done));
        let mut read = Outstanding::new(&Header::ConfigRead(request)).unwrap();
        assert_eq!(read.accept(&done), Err(Unexpected::Kind));
        assert!(matches!(read.accept(&data), Ok(Progress::Data { bytes: 4, last: true, .. })));
        assert_eq!(Outstanding::new(&Header::MemoryWrite(self::read(0x1000, 4))), None);
    }
}
