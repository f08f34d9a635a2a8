//! The handshake phase: greeting, options and their replies (NBD «Protocol phases», «Option types», «Option reply
//! types»).

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{MAX_STRING, WrongMagic, check_magic};
use crate::fields::{bitfields, open_values};

/// The first eight bytes a server sends: `NBDMAGIC` in ASCII (INIT_PASSWD).
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// Begins newstyle negotiation and every option of the client: `IHAVEOPT` in ASCII.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Begins every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Zero bytes behind [`ExportNameReply`] unless both sides agreed on NO_ZEROES.
pub const EXPORT_NAME_PADDING: usize = 124;

/// What a newstyle server greets with, 18 bytes. The client answers with 32 bits of [`ClientFlags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ServerHello {
    /// [`NBDMAGIC`].
    pub magic: U64,
    /// [`IHAVEOPT`]; anything else is oldstyle negotiation.
    pub style: U64,
    /// [`HandshakeFlags`].
    pub flags: U16,
}

const _: () = assert!(size_of::<ServerHello>() == 18);

impl ServerHello {
    /// A greeting.
    #[must_use]
    pub fn new(flags: HandshakeFlags) -> Self {
        Self { magic: NBDMAGIC.into(), style: IHAVEOPT.into(), flags: flags.0.into() }
    }

    /// Reads a greeting and checks both magic numbers.
    pub fn parse(bytes: &[u8; 18]) -> Result<&Self, WrongMagic> {
        let hello: &Self = zerocopy::transmute_ref!(bytes);
        check_magic(NBDMAGIC, hello.magic.get())?;
        check_magic(IHAVEOPT, hello.style.get())?;
        Ok(hello)
    }

    /// The flags of the server.
    #[must_use]
    pub fn flags(&self) -> HandshakeFlags {
        HandshakeFlags(self.flags.get())
    }
}

bitfields! {
    /// Handshake flags of the server.
    pub struct HandshakeFlags(u16) {
        /// Fixed newstyle: every option is answered.
        fixed_newstyle, with_fixed_newstyle: bool = 0;
        /// The padding behind [`ExportNameReply`] can be left out.
        no_zeroes, with_no_zeroes: bool = 1;
    }
}

bitfields! {
    /// Flags of the client, sent as 32 bits. A server drops a client that sets a flag which is reserved or that it did
    /// not offer.
    pub struct ClientFlags(u32) {
        /// The client speaks fixed newstyle.
        fixed_newstyle, with_fixed_newstyle: bool = 0;
        /// The padding behind [`ExportNameReply`] is left out.
        no_zeroes, with_no_zeroes: bool = 1;
    }
}

bitfields! {
    /// Transmission flags: what an export can do.
    pub struct TransmissionFlags(u16) {
        /// Always set.
        has_flags, with_has_flags: bool = 0;
        /// The export is read only.
        read_only, with_read_only: bool = 1;
        /// FLUSH is understood.
        send_flush, with_send_flush: bool = 2;
        /// The FUA flag is understood.
        send_fua, with_send_fua: bool = 3;
        /// The medium rotates.
        rotational, with_rotational: bool = 4;
        /// TRIM is understood.
        send_trim, with_send_trim: bool = 5;
        /// WRITE_ZEROES is understood.
        send_write_zeroes, with_send_write_zeroes: bool = 6;
        /// The DF flag is understood; only with structured replies.
        send_df, with_send_df: bool = 7;
        /// Several connections are safe: a flush or FUA on one covers what any of them completed.
        can_multi_conn, with_can_multi_conn: bool = 8;
        /// RESIZE is understood (experimental).
        send_resize, with_send_resize: bool = 9;
        /// CACHE is understood.
        send_cache, with_send_cache: bool = 10;
        /// The FAST_ZERO flag is understood.
        send_fast_zero, with_send_fast_zero: bool = 11;
        /// A payload of BLOCK_STATUS is understood (experimental).
        block_status_payload, with_block_status_payload: bool = 12;
    }
}

open_values! {
    /// Option types.
    pub struct OptionCode(u32) {
        /// Choose an export and begin transmission; cannot be refused but by disconnecting.
        EXPORT_NAME = 1;
        /// End the negotiation.
        ABORT = 2;
        /// List the exports.
        LIST = 3;
        /// Withdrawn.
        PEEK_EXPORT = 4;
        /// Begin TLS.
        STARTTLS = 5;
        /// Ask about an export.
        INFO = 6;
        /// Ask about an export, and begin transmission.
        GO = 7;
        /// Use structured replies.
        STRUCTURED_REPLY = 8;
        /// List metadata contexts.
        LIST_META_CONTEXT = 9;
        /// Choose metadata contexts.
        SET_META_CONTEXT = 10;
        /// Use 64-bit lengths (experimental).
        EXTENDED_HEADERS = 11;
    }
}

/// The header of an option, 16 bytes; `length` bytes of payload follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`IHAVEOPT`].
    pub magic: U64,
    /// [`OptionCode`].
    pub option: U32,
    /// Bytes of payload. Unchecked: a server decides how much it is willing to take.
    pub length: U32,
}

const _: () = assert!(size_of::<OptionHeader>() == 16);

impl OptionHeader {
    /// A header for `length` bytes of payload.
    #[must_use]
    pub fn new(option: OptionCode, length: u32) -> Self {
        Self { magic: IHAVEOPT.into(), option: option.0.into(), length: length.into() }
    }

    /// Reads a header and checks its magic number.
    pub fn parse(bytes: &[u8; 16]) -> Result<&Self, WrongMagic> {
        let header: &Self = zerocopy::transmute_ref!(bytes);
        check_magic(IHAVEOPT, header.magic.get())?;
        Ok(header)
    }

    /// The option.
    #[must_use]
    pub fn option(&self) -> OptionCode {
        OptionCode(self.option.get())
    }
}

open_values! {
    /// Option reply types.
    pub struct OptionReplyType(u32) {
        /// The option succeeded, and is over.
        ACK = 1;
        /// One export, in reply to LIST.
        SERVER = 2;
        /// One piece of information, in reply to INFO and GO.
        INFO = 3;
        /// One metadata context.
        META_CONTEXT = 4;
        /// The option is not known here.
        ERR_UNSUP = 1 << 31 | 1;
        /// Forbidden here.
        ERR_POLICY = 1 << 31 | 2;
        /// The request makes no sense.
        ERR_INVALID = 1 << 31 | 3;
        /// Not supported on this platform.
        ERR_PLATFORM = 1 << 31 | 4;
        /// TLS must be begun first.
        ERR_TLS_REQD = 1 << 31 | 5;
        /// The export does not exist.
        ERR_UNKNOWN = 1 << 31 | 6;
        /// The server is shutting down.
        ERR_SHUTDOWN = 1 << 31 | 7;
        /// The client must ask for the block size.
        ERR_BLOCK_SIZE_REQD = 1 << 31 | 8;
        /// The request or its reply is too large.
        ERR_TOO_BIG = 1 << 31 | 9;
        /// Extended headers must be negotiated first (experimental).
        ERR_EXT_HEADER_REQD = 1 << 31 | 10;
    }
}

impl OptionReplyType {
    /// The option failed. Any payload is a text for people.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 >> 31 != 0
    }
}

/// The header of a reply to an option, 20 bytes; `length` bytes of payload follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`].
    pub magic: U64,
    /// The option as the client sent it.
    pub option: U32,
    /// [`OptionReplyType`].
    pub reply: U32,
    /// Bytes of payload.
    pub length: U32,
}

const _: () = assert!(size_of::<OptionReplyHeader>() == 20);

impl OptionReplyHeader {
    /// A header for `length` bytes of payload.
    #[must_use]
    pub fn new(option: OptionCode, reply: OptionReplyType, length: u32) -> Self {
        let magic = OPTION_REPLY_MAGIC.into();
        Self { magic, option: option.0.into(), reply: reply.0.into(), length: length.into() }
    }

    /// Reads a header and checks its magic number.
    pub fn parse(bytes: &[u8; 20]) -> Result<&Self, WrongMagic> {
        let header: &Self = zerocopy::transmute_ref!(bytes);
        check_magic(OPTION_REPLY_MAGIC, header.magic.get())?;
        Ok(header)
    }

    /// The option this replies to.
    #[must_use]
    pub fn option(&self) -> OptionCode {
        OptionCode(self.option.get())
    }

    /// The kind of reply.
    #[must_use]
    pub fn reply(&self) -> OptionReplyType {
        OptionReplyType(self.reply.get())
    }
}

/// What follows EXPORT_NAME instead of a reply, 10 bytes and [`EXPORT_NAME_PADDING`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExportNameReply {
    /// Size of the export in bytes.
    pub size: U64,
    /// [`TransmissionFlags`].
    pub flags: U16,
}

const _: () = assert!(size_of::<ExportNameReply>() == 10);

impl ExportNameReply {
    /// Describes an export.
    #[must_use]
    pub fn new(size: u64, flags: TransmissionFlags) -> Self {
        Self { size: size.into(), flags: flags.0.into() }
    }
}

open_values! {
    /// Information types of INFO and GO.
    pub struct InfoType(u16) {
        /// [`InfoExport`], always sent.
        EXPORT = 0;
        /// The canonical name: the type, then a string.
        NAME = 1;
        /// A description for people: the type, then a string.
        DESCRIPTION = 2;
        /// [`InfoBlockSize`].
        BLOCK_SIZE = 3;
    }
}

/// Payload of an INFO reply of type EXPORT, 12 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InfoExport {
    /// [`InfoType::EXPORT`].
    pub info: U16,
    /// Size of the export in bytes.
    pub size: U64,
    /// [`TransmissionFlags`].
    pub flags: U16,
}

const _: () = assert!(size_of::<InfoExport>() == 12);

impl InfoExport {
    /// Describes an export.
    #[must_use]
    pub fn new(size: u64, flags: TransmissionFlags) -> Self {
        Self { info: InfoType::EXPORT.0.into(), size: size.into(), flags: flags.0.into() }
    }
}

/// Payload of an INFO reply of type BLOCK_SIZE, 14 bytes. All sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InfoBlockSize {
    /// [`InfoType::BLOCK_SIZE`].
    pub info: U16,
    /// Minimum block size: a power of two, at most 64 KiB.
    pub minimum: U32,
    /// Preferred block size: a power of two, at least the minimum and 512.
    pub preferred: U32,
    /// Maximum payload: a multiple of the minimum, or 0xffffffff for no limit.
    pub maximum: U32,
}

const _: () = assert!(size_of::<InfoBlockSize>() == 14);

impl InfoBlockSize {
    /// Describes the size constraints of an export.
    #[must_use]
    pub fn new(minimum: u32, preferred: u32, maximum: u32) -> Self {
        let info = InfoType::BLOCK_SIZE.0.into();
        Self { info, minimum: minimum.into(), preferred: preferred.into(), maximum: maximum.into() }
    }
}

/// Why the payload of an option is refused. Each is ERR_INVALID to the client, but [`Self::NameTooLong`] is
/// ERR_TOO_BIG.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// A length reaches past the end.
    #[error("the option's payload ends before what its lengths announce")]
    Truncated,
    /// Bytes are left over.
    #[error("the option's payload goes on behind what its lengths announce")]
    Trailing,
    /// A string is longer than [`MAX_STRING`].
    #[error("a string in the option's payload is longer than 4096 bytes")]
    NameTooLong,
    /// A string is no UTF-8.
    #[error("a string in the option's payload is not UTF-8")]
    NotUtf8,
}

impl PayloadError {
    /// The reply that tells the client.
    #[must_use]
    pub const fn reply(self) -> OptionReplyType {
        match self {
            Self::NameTooLong => OptionReplyType::ERR_TOO_BIG,
            Self::Truncated | Self::Trailing | Self::NotUtf8 => OptionReplyType::ERR_INVALID,
        }
    }
}

/// Reads a string that is a whole payload, as that of EXPORT_NAME.
pub fn parse_name(payload: &[u8]) -> Result<&str, PayloadError> {
    if payload.len() > MAX_STRING {
        return Err(PayloadError::NameTooLong);
    }
    core::str::from_utf8(payload).map_err(|_| PayloadError::NotUtf8)
}

/// Payload of INFO and GO, checked and viewed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export; empty for the default one.
    pub name: &'a str,
    requests: &'a [U16],
}

impl<'a> InfoRequest<'a> {
    /// Reads a payload: length of name, name, number of requests, requests; nothing may be left.
    pub fn parse(payload: &'a [u8]) -> Result<Self, PayloadError> {
        let (name, rest) = split_string(payload)?;
        let (count, rest) = U16::ref_from_prefix(rest).map_err(|_| PayloadError::Truncated)?;
        let (requests, rest) = <[U16]>::ref_from_prefix_with_elems(rest, count.get().into())
            .map_err(|_| PayloadError::Truncated)?;
        ended(rest)?;
        Ok(Self { name, requests })
    }

    /// The information the client asks for, in its order.
    pub fn requests(&self) -> impl Iterator<Item = InfoType> + use<'a> {
        self.requests.iter().map(|info| InfoType(info.get()))
    }

    /// Appends a payload. Panics if the name or the list is longer than the protocol allows.
    pub fn encode(name: &str, requests: &[InfoType], payload: &mut Vec<u8>) {
        let count = u16::try_from(requests.len()).expect("there are only 65536 information types");
        append_string(name, payload);
        payload.extend_from_slice(&count.to_be_bytes());
        payload.extend(requests.iter().flat_map(|info| info.0.to_be_bytes()));
    }
}

/// Payload of LIST_META_CONTEXT and SET_META_CONTEXT, checked and viewed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaContextRequest<'a> {
    /// Name of the export.
    pub name: &'a str,
    queries: &'a [u8],
}

impl<'a> MetaContextRequest<'a> {
    /// Reads a payload: length of name, name, number of queries, and of each its length and text; nothing may be left.
    pub fn parse(payload: &'a [u8]) -> Result<Self, PayloadError> {
        let (name, rest) = split_string(payload)?;
        let (count, queries) = U32::ref_from_prefix(rest).map_err(|_| PayloadError::Truncated)?;
        let mut rest = queries;
        // A count beyond what the payload can hold ends at its first missing query.
        for _ in 0..count.get() {
            (_, rest) = split_string(rest)?;
        }
        ended(rest)?;
        Ok(Self { name, queries })
    }

    /// The queries, in the client's order.
    pub fn queries(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut rest = self.queries;
        core::iter::from_fn(move || {
            // `parse` has found nothing but whole strings here.
            let (query, behind) = split_string(rest).ok()?;
            rest = behind;
            Some(query)
        })
    }
}

/// Appends the payload of a SERVER reply: an export's name, and an optional description. Panics if the name is longer
/// than [`MAX_STRING`].
pub fn encode_server(name: &str, description: &str, payload: &mut Vec<u8>) {
    append_string(name, payload);
    payload.extend_from_slice(description.as_bytes());
}

/// Splits off a string that stands behind its 32-bit length.
fn split_string(bytes: &[u8]) -> Result<(&str, &[u8]), PayloadError> {
    let (length, rest) = U32::ref_from_prefix(bytes).map_err(|_| PayloadError::Truncated)?;
    let length = usize::try_from(length.get()).map_err(|_| PayloadError::Truncated)?;
    let (string, rest) = rest.split_at_checked(length).ok_or(PayloadError::Truncated)?;
    Ok((parse_name(string)?, rest))
}

fn append_string(string: &str, payload: &mut Vec<u8>) {
    assert!(string.len() <= MAX_STRING, "strings of NBD have at most {MAX_STRING} bytes");
    payload.extend_from_slice(&(string.len() as u32).to_be_bytes());
    payload.extend_from_slice(string.as_bytes());
}

fn ended(rest: &[u8]) -> Result<(), PayloadError> {
    if rest.is_empty() { Ok(()) } else { Err(PayloadError::Trailing) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn magics_are_ascii() {
        assert_eq!(NBDMAGIC.to_be_bytes(), *b"NBDMAGIC");
        assert_eq!(IHAVEOPT.to_be_bytes(), *b"IHAVEOPT");
        assert_eq!(OPTION_REPLY_MAGIC, 0x3e889045565a9);
    }

    #[test]
    fn golden_greeting() {
        let hello = ServerHello::new(HandshakeFlags(0).with_fixed_newstyle(true).with_no_zeroes(true));
        assert_eq!(hello.as_bytes(), b"NBDMAGICIHAVEOPT\x00\x03");
        assert_eq!(ServerHello::parse(b"NBDMAGICIHAVEOPT\x00\x03"), Ok(&hello));
        let oldstyle = WrongMagic { expected: IHAVEOPT, found: 0x0042_0281_8612_5300 };
        assert_eq!(ServerHello::parse(b"NBDMAGIC\x00\x42\x02\x81\x86\x12\x53\x00\x00\x03"), Err(oldstyle));
        assert_eq!(ClientFlags(0x7).reserved_bits(), 4);
    }

    #[test]
    fn golden_option_and_reply() {
        let header = OptionHeader::new(OptionCode::GO, 6);
        assert_eq!(header.as_bytes(), b"IHAVEOPT\0\0\0\x07\0\0\0\x06");
        assert_eq!(OptionHeader::parse(b"IHAVEOPT\0\0\0\x07\0\0\0\x06").unwrap().option(), OptionCode::GO);
        assert!(OptionHeader::parse(b"IHAVEOPU\0\0\0\x07\0\0\0\x06").is_err());
        let reply = OptionReplyHeader::new(OptionCode::STARTTLS, OptionReplyType::ERR_UNSUP, 0);
        let bytes = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x05\x80\0\0\x01\0\0\0\0";
        assert_eq!(reply.as_bytes(), bytes);
        assert_eq!(OptionReplyHeader::parse(bytes), Ok(&reply));
        assert!(OptionReplyType::ERR_TOO_BIG.is_error() && !OptionReplyType::INFO.is_error());
    }

    #[test]
    fn golden_information() {
        // Flush, FUA, trim, write zeroes, several connections.
        let flags = TransmissionFlags(0)
            .with_has_flags(true)
            .with_send_flush(true)
            .with_send_fua(true)
            .with_send_trim(true)
            .with_send_write_zeroes(true)
            .with_can_multi_conn(true);
        assert_eq!(flags.0, 0x016d);
        assert_eq!(InfoExport::new(1 << 30, flags).as_bytes(), b"\0\0\0\0\0\0\x40\0\0\0\x01\x6d");
        assert_eq!(ExportNameReply::new(512, flags).as_bytes(), b"\0\0\0\0\0\0\x02\0\x01\x6d");
        let sizes = InfoBlockSize::new(512, 4096, 32 << 20);
        assert_eq!(sizes.as_bytes(), b"\0\x03\0\0\x02\0\0\0\x10\0\x02\0\0\0");
    }

    #[test]
    fn golden_go() {
        let payload = b"\0\0\0\x02hd\0\x02\0\x03\0\x09";
        let go = InfoRequest::parse(payload).unwrap();
        assert_eq!(go.name, "hd");
        assert_eq!(go.requests().collect::<Vec<_>>(), [InfoType::BLOCK_SIZE, InfoType(9)]);
        assert_eq!(InfoRequest::parse(b"\0\0\0\0\0\0").unwrap().name, "");
        assert_eq!(InfoRequest::parse(b""), Err(PayloadError::Truncated));
        assert_eq!(InfoRequest::parse(b"\0\0\0\x03hd\0\0"), Err(PayloadError::Truncated));
        assert_eq!(InfoRequest::parse(b"\xff\xff\xff\xffhd\0\0"), Err(PayloadError::Truncated));
        assert_eq!(InfoRequest::parse(b"\0\0\0\x02hd\0\x02\0\x03"), Err(PayloadError::Truncated));
        assert_eq!(InfoRequest::parse(b"\0\0\0\x02hd\0\0\0"), Err(PayloadError::Trailing));
        assert_eq!(InfoRequest::parse(b"\0\0\0\x01\xff\0\0"), Err(PayloadError::NotUtf8));
        let mut long = vec![0, 0, 0x10, 0x01];
        long.resize(4 + 4097 + 2, b'a');
        assert_eq!(InfoRequest::parse(&long), Err(PayloadError::NameTooLong));
        assert_eq!(PayloadError::NameTooLong.reply(), OptionReplyType::ERR_TOO_BIG);
    }

    #[test]
    fn golden_meta_context() {
        let payload = b"\0\0\0\x01x\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x02q:";
        let request = MetaContextRequest::parse(payload).unwrap();
        assert_eq!(request.name, "x");
        assert_eq!(request.queries().collect::<Vec<_>>(), ["base:allocation", "q:"]);
        assert_eq!(MetaContextRequest::parse(b"\0\0\0\0\xff\xff\xff\xff"), Err(PayloadError::Truncated));
        assert_eq!(MetaContextRequest::parse(b"\0\0\0\0\0\0\0\0x"), Err(PayloadError::Trailing));
    }

    #[test]
    fn golden_server() {
        let mut payload = Vec::new();
        encode_server("hd", "disk", &mut payload);
        assert_eq!(payload, b"\0\0\0\x02hddisk");
    }

    proptest! {
        #[test]
        fn requests_round_trip(name in ".{0,40}", codes: Vec<u16>) {
            let requests: Vec<_> = codes.into_iter().map(InfoType).collect();
            let mut payload = Vec::new();
            InfoRequest::encode(&name, &requests, &mut payload);
            let seen = InfoRequest::parse(&payload).unwrap();
            prop_assert_eq!(seen.name, name);
            prop_assert_eq!(seen.requests().collect::<Vec<_>>(), requests);
        }

        #[test]
        fn any_payload_is_answered(mut payload: Vec<u8>, small in any::<bool>()) {
            // Small lengths make the deeper paths likely.
            if small {
                payload.iter_mut().for_each(|byte| *byte &= 1);
            }
            if let Ok(request) = InfoRequest::parse(&payload) {
                prop_assert_eq!(6 + request.name.len() + 2 * request.requests().count(), payload.len());
            }
            if let Ok(request) = MetaContextRequest::parse(&payload) {
                let queries: usize = request.queries().map(|query| 4 + query.len()).sum();
                prop_assert_eq!(8 + request.name.len() + queries, payload.len());
            }
        }

        #[test]
        fn any_header_is_answered(hello: [u8; 18], option: [u8; 16], reply: [u8; 20]) {
            let _ = (ServerHello::parse(&hello), OptionHeader::parse(&option), OptionReplyHeader::parse(&reply));
        }
    }
}
