//! Transaction layer packets: the owned [`Header`], the checked view [`TlpView`] over received bytes, and the
//! errors of both.
//!
//! One rule holds throughout: a packet that parses has exactly one encoding, the bytes it came from; but for its
//! digest, which is not a part of the header. Reserved bits
//! therefore must be zero, and fields that a receiver may check are checked ([`Header::check`]); the same check
//! guards what this side encodes.

mod common;
mod completion;
mod config;
mod memory;
mod message;
mod outstanding;
mod split;
#[cfg(test)]
mod tests;
mod unparsed;

use crate::id::{Bdf, Tag};
use crate::spec::{DATA_CREDIT_BYTES, DWORD_BYTES, HEADER_BYTES_MAX, HEADER_BYTES_MIN, fmt_type};
use common::Dword0;
pub use common::{AddressType, Attributes};
pub use completion::{Completion, CompletionStatus};
pub use config::{ConfigKind, ConfigRequest};
pub use memory::{MemoryRequest, RequestError, replace_address};
pub use message::{Message, MessageCode, MessageRouting};
pub use outstanding::{Outstanding, Progress, Unexpected};
pub use split::{CompletionPart, ReadCompletionBoundary, Split};
pub use unparsed::Unparsed;

/// The three kinds of traffic that ordering and credits tell apart (PCIe 6.0 §2.4.1, §2.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowClass {
    /// Memory writes and messages: nobody answers.
    Posted,
    /// Reads and configuration requests: each is answered by completions.
    NonPosted,
    /// The answers.
    Completion,
}

impl FlowClass {
    /// All classes, in the order of [`FlowClass::index`].
    pub const ALL: [Self; 3] = [Self::Posted, Self::NonPosted, Self::Completion];

    /// A dense index for tables, 0 to 2.
    #[inline]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The header of any supported TLP, in its owned form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// MRd.
    MemoryRead(MemoryRequest),
    /// MWr.
    MemoryWrite(MemoryRequest),
    /// CfgRd0 and CfgRd1.
    ConfigRead(ConfigRequest),
    /// CfgWr0 and CfgWr1.
    ConfigWrite(ConfigRequest),
    /// Cpl and CplD.
    Completion(Completion),
    /// Msg and MsgD.
    Message(Message),
}

impl Header {
    /// Decodes a header from the start of `bytes`, which need not hold the payload.
    ///
    /// # Errors
    /// As [`TlpView::parse`], except that a missing payload is none; [`ParseError::Unsupported`] where a digest
    /// follows.
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Self, ParseError> {
        let [d0, d1, d2] = dwords(bytes, 0)?;
        let fmt_type = (d0 >> 24) as u8;
        let first = Dword0::decode(d0);
        let header = match fmt_type {
            fmt_type::MEMORY_READ_32 => Self::MemoryRead(MemoryRequest::decode(first, d1, u64::from(d2))),
            fmt_type::MEMORY_WRITE_32 => Self::MemoryWrite(MemoryRequest::decode(first, d1, u64::from(d2))),
            fmt_type::MEMORY_READ_64 => Self::MemoryRead(MemoryRequest::decode_64(first, d1, d2, bytes)?),
            fmt_type::MEMORY_WRITE_64 => Self::MemoryWrite(MemoryRequest::decode_64(first, d1, d2, bytes)?),
            fmt_type::COMPLETION | fmt_type::COMPLETION_DATA => {
                Self::Completion(Completion::decode(first, fmt_type, d1, d2)?)
            }
            fmt_type::CONFIG_READ_0 | fmt_type::CONFIG_READ_1 => {
                Self::ConfigRead(ConfigRequest::decode(first, fmt_type, d1, d2)?)
            }
            fmt_type::CONFIG_WRITE_0 | fmt_type::CONFIG_WRITE_1 => {
                Self::ConfigWrite(ConfigRequest::decode(first, fmt_type, d1, d2)?)
            }
            _ if Message::is_message(fmt_type) => {
                let [d3] = dwords(bytes, 12)?;
                Self::Message(Message::decode(first, fmt_type, [d1, d2, d3])?)
            }
            _ => return Err(ParseError::Unsupported { fmt_type }),
        };
        first.check(fmt_type)?;
        header.check()?;
        Ok(header)
    }

    /// Whether the fields are a packet that may be sent: the rules a receiver checks.
    ///
    /// # Errors
    /// The first rule that is broken.
    #[inline]
    pub fn check(&self) -> Result<(), Malformed> {
        match self {
            Self::MemoryRead(request) => request.check(false),
            Self::MemoryWrite(request) => request.check(true),
            Self::ConfigRead(request) | Self::ConfigWrite(request) => request.check(),
            Self::Completion(completion) => completion.check(),
            Self::Message(message) => message.check(),
        }
    }

    /// Encodes the header.
    ///
    /// # Panics
    /// If [`Header::check`] refuses the fields: whoever builds a header from outside values checks them first. A
    /// header that was parsed, or built by a constructor, encodes.
    #[inline]
    pub fn encode(&self) -> EncodedHeader {
        let checked = self.check();
        assert!(checked.is_ok(), "encoding a header that is malformed: {checked:?} in {self:?}");
        match self {
            Self::MemoryRead(request) => request.encode(0),
            Self::MemoryWrite(request) => request.encode(fmt_type::WITH_DATA),
            Self::ConfigRead(request) => request.encode(fmt_type::CONFIG_READ_0),
            Self::ConfigWrite(request) => request.encode(fmt_type::CONFIG_WRITE_0),
            Self::Completion(completion) => completion.encode(),
            Self::Message(message) => message.encode(),
        }
    }

    /// Bytes of the encoded header: 12 or 16.
    #[inline]
    pub fn header_len(&self) -> usize {
        match self {
            Self::MemoryRead(request) | Self::MemoryWrite(request) => request.header_len(),
            Self::ConfigRead(_) | Self::ConfigWrite(_) | Self::Completion(_) => HEADER_BYTES_MIN,
            Self::Message(_) => HEADER_BYTES_MAX,
        }
    }

    /// Bytes of payload that follow the header: a multiple of 4, 0 to 4096.
    #[inline]
    pub fn payload_len(&self) -> usize {
        let length_dw = match self {
            Self::MemoryRead(_) | Self::ConfigRead(_) => 0,
            Self::MemoryWrite(request) => request.length_dw,
            Self::ConfigWrite(_) => 1,
            Self::Completion(completion) => completion.length_dw,
            Self::Message(message) => message.length_dw,
        };
        usize::from(length_dw) * DWORD_BYTES
    }

    /// Bytes of the whole packet.
    #[inline]
    pub fn total_len(&self) -> usize {
        self.header_len() + self.payload_len()
    }

    /// The queue and the credits this packet uses.
    #[inline]
    pub fn class(&self) -> FlowClass {
        match self {
            Self::MemoryWrite(_) | Self::Message(_) => FlowClass::Posted,
            Self::MemoryRead(_) | Self::ConfigRead(_) | Self::ConfigWrite(_) => FlowClass::NonPosted,
            Self::Completion(_) => FlowClass::Completion,
        }
    }

    /// Data credits the payload uses, in units of 16 bytes, rounded up (PCIe 6.0 §2.6.1); the header uses one
    /// header credit of its class.
    #[inline]
    pub fn data_credits(&self) -> u16 {
        // At most 4096 / 16.
        self.payload_len().div_ceil(DATA_CREDIT_BYTES) as u16
    }

    /// Who asked; for a completion, whom it goes back to.
    #[inline]
    pub fn requester(&self) -> Bdf {
        match self {
            Self::MemoryRead(request) | Self::MemoryWrite(request) => request.requester,
            Self::ConfigRead(request) | Self::ConfigWrite(request) => request.requester,
            Self::Completion(completion) => completion.requester,
            Self::Message(message) => message.requester,
        }
    }

    /// The tag of the request, or the one a completion answers.
    #[inline]
    pub fn tag(&self) -> Tag {
        match self {
            Self::MemoryRead(request) | Self::MemoryWrite(request) => request.tag,
            Self::ConfigRead(request) | Self::ConfigWrite(request) => request.tag,
            Self::Completion(completion) => completion.tag,
            Self::Message(message) => message.tag,
        }
    }

    /// The same header under another requester id and tag: what a window does to a packet that passes.
    #[must_use]
    #[inline]
    pub fn with_transaction(mut self, requester: Bdf, tag: Tag) -> Self {
        let (its_requester, its_tag) = match &mut self {
            Self::MemoryRead(request) | Self::MemoryWrite(request) => {
                (&mut request.requester, &mut request.tag)
            }
            Self::ConfigRead(request) | Self::ConfigWrite(request) => {
                (&mut request.requester, &mut request.tag)
            }
            Self::Completion(completion) => (&mut completion.requester, &mut completion.tag),
            Self::Message(message) => (&mut message.requester, &mut message.tag),
        };
        *its_requester = requester;
        *its_tag = tag;
        self
    }

    /// The traffic class, 0 to 7; configuration requests have 0.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        match self {
            Self::MemoryRead(request) | Self::MemoryWrite(request) => request.traffic_class,
            Self::ConfigRead(_) | Self::ConfigWrite(_) => 0,
            Self::Completion(completion) => completion.traffic_class,
            Self::Message(message) => message.traffic_class,
        }
    }

    /// The ordering and snooping attributes; configuration requests have none.
    #[inline]
    pub fn attributes(&self) -> Attributes {
        match self {
            Self::MemoryRead(request) | Self::MemoryWrite(request) => request.attributes,
            Self::ConfigRead(_) | Self::ConfigWrite(_) => Attributes::NONE,
            Self::Completion(completion) => completion.attributes,
            Self::Message(message) => message.attributes,
        }
    }

    /// Whether the sender marked the payload as damaged (EP, PCIe 6.0 §2.7.2).
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        match self {
            Self::MemoryRead(request) | Self::MemoryWrite(request) => request.poisoned,
            Self::ConfigRead(request) | Self::ConfigWrite(request) => request.poisoned,
            Self::Completion(completion) => completion.poisoned,
            Self::Message(message) => message.poisoned,
        }
    }
}

/// The bytes of one header, 12 or 16, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EncodedHeader {
    /// Zero behind `len`, so that equality of values is equality of headers.
    bytes: [u8; HEADER_BYTES_MAX],
    len: u8,
}

impl EncodedHeader {
    /// Takes over bytes that were encoded before, for example from a ledger. Bytes behind the header are ignored.
    ///
    /// # Errors
    /// As [`Header::decode`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ParseError> {
        let header = Header::decode(bytes)?;
        Ok(header.encode())
    }

    /// The encoded bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// A header of three dwords.
    #[inline]
    pub(crate) fn three(dwords: [u32; 3]) -> Self {
        Self::of([dwords[0], dwords[1], dwords[2], 0], HEADER_BYTES_MIN)
    }

    /// A header of four dwords.
    #[inline]
    pub(crate) fn four(dwords: [u32; 4]) -> Self {
        Self::of(dwords, HEADER_BYTES_MAX)
    }

    #[inline]
    fn of(dwords: [u32; 4], len: usize) -> Self {
        let mut bytes = [0; HEADER_BYTES_MAX];
        for (field, dword) in bytes.chunks_exact_mut(DWORD_BYTES).zip(dwords) {
            field.copy_from_slice(&dword.to_be_bytes());
        }
        Self { bytes, len: len as u8 }
    }
}

impl AsRef<[u8]> for EncodedHeader {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// A TLP that was checked, over the bytes it lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlpView<'a> {
    header: Header,
    header_len: usize,
    /// Bytes of header and payload; what follows of `bytes` is the digest.
    digest_at: usize,
    /// Exactly the packet.
    bytes: &'a [u8],
}

impl<'a> TlpView<'a> {
    /// Reads the packet at the start of `bytes`; further bytes may follow ([`TlpView::total_len`] says from where).
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if header or payload is not all there, [`ParseError::Unsupported`] for kinds this
    /// crate leaves out, [`ParseError::Malformed`] for a broken rule.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let has_digest = bytes.get(DIGEST_BYTE).is_some_and(|byte| byte & DIGEST_BIT != 0);
        let header = if has_digest { decode_without_digest(bytes)? } else { Header::decode(bytes)? };
        let header_len = header.header_len();
        let digest_at = header_len + header.payload_len();
        let needed = digest_at + if has_digest { DWORD_BYTES } else { 0 };
        match bytes.get(..needed) {
            Some(bytes) => Ok(Self { header, header_len, digest_at, bytes }),
            None => Err(ParseError::Truncated { needed, have: bytes.len() }),
        }
    }

    /// The decoded header.
    #[inline]
    pub fn header(&self) -> Header {
        self.header
    }

    /// The payload: whole dwords, in the order of memory.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[self.header_len..self.digest_at]
    }

    /// The digest behind the payload (ECRC, PCIe 6.0 §2.7.1), if there is one: as it came, and not checked.
    #[inline]
    pub fn digest(&self) -> Option<u32> {
        self.bytes[self.digest_at..].first_chunk().map(|digest| u32::from_be_bytes(*digest))
    }

    /// Bytes of the packet: header, payload and digest.
    #[inline]
    pub fn total_len(&self) -> usize {
        self.bytes.len()
    }

    /// The packet itself.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Where the first dword says that a digest follows (TD, [`crate::spec::dword0::DIGEST`]).
const DIGEST_BYTE: usize = 2;
const DIGEST_BIT: u8 = (crate::spec::dword0::DIGEST >> 8) as u8;

/// Decodes a header as if it did not say that a digest follows.
fn decode_without_digest(bytes: &[u8]) -> Result<Header, ParseError> {
    let mut plain = [0; HEADER_BYTES_MAX];
    let len = bytes.len().min(plain.len());
    plain[..len].copy_from_slice(&bytes[..len]);
    plain[DIGEST_BYTE] &= !DIGEST_BIT;
    Header::decode(&plain[..len])
}

/// Why bytes are no TLP this fabric carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes end before the packet does.
    #[error("the packet needs {needed} bytes and {have} are there")]
    Truncated {
        /// Bytes needed, as far as is known: of the header, or of the whole packet.
        needed: usize,
        /// Bytes given.
        have: usize,
    },
    /// A kind or a processing hint that is left out (see the crate documentation), or a reserved kind.
    #[error("packets of fmt and type {fmt_type:#04x} with these options are not supported")]
    Unsupported {
        /// The first byte of the header.
        fmt_type: u8,
    },
    /// A rule of the specification is broken: a Malformed TLP (PCIe 6.0 §2.3).
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The rule that a header breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// A reserved bit or value is used.
    #[error("a reserved bit is set")]
    Reserved,
    /// A length of no dwords, or above 1024, or one this kind may not have (PCIe 6.0 §2.2.2).
    #[error("the length is not allowed for this kind")]
    Length,
    /// The request crosses a 4 KiB boundary (PCIe 6.0 §2.2.7).
    #[error("the request crosses a 4 KiB boundary")]
    CrossesBoundary,
    /// The address has low bits set, or is below 4 GiB in the 64-bit format (PCIe 6.0 §2.2.4.1).
    #[error("the address does not fit the format")]
    Address,
    /// The address type is reserved for this kind (PCIe 6.0 §2.2.4.1).
    #[error("the address type is not allowed for this kind")]
    AddressType,
    /// The byte enables contradict the length or are not contiguous where they must be (PCIe 6.0 §2.2.5).
    #[error("the byte enables contradict the length")]
    ByteEnables,
    /// The traffic class is not 0 where it must be, or above 7.
    #[error("the traffic class is not allowed for this kind")]
    TrafficClass,
    /// Attributes on a kind that may have none.
    #[error("attributes are not allowed for this kind")]
    Attributes,
    /// A completion whose data is more than its byte count, or a byte count out of range (PCIe 6.0 §2.2.9).
    #[error("the byte count contradicts the length")]
    ByteCount,
    /// A completion with data that reports a failure.
    #[error("a failed completion carries data")]
    Status,
}

/// Reads `N` dwords at `offset`.
#[inline]
fn dwords<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u32; N], ParseError> {
    let needed = offset + N * DWORD_BYTES;
    let Some(field) = bytes.get(offset..needed) else {
        return Err(ParseError::Truncated { needed, have: bytes.len() });
    };
    let mut dwords = [0; N];
    for (dword, four) in dwords.iter_mut().zip(field.as_chunks::<DWORD_BYTES>().0) {
        *dword = u32::from_be_bytes(*four);
    }
    Ok(dwords)
}
