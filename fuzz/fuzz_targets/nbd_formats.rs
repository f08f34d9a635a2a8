//! The formats of NBD: what parses says the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::nbd::handshake::parse_name;
use spec::nbd::{
    ChunkHeader, ChunkType, ErrorPayload, InfoRequest, MetaContextRequest, OptionHeader, OptionReplyHeader,
    RequestHeader, ServerHello, SimpleReply,
};
use zerocopy::IntoBytes;

fuzz_target!(|bytes: &[u8]| {
    if let Some(Ok(hello)) = bytes.first_chunk().map(ServerHello::parse) {
        assert_eq!(ServerHello::new(hello.flags()).as_bytes(), hello.as_bytes());
    }
    if let Some(Ok(option)) = bytes.first_chunk().map(OptionHeader::parse) {
        let again = OptionHeader::new(option.option(), option.length.get());
        assert_eq!(again.as_bytes(), option.as_bytes());
    }
    if let Some(Ok(reply)) = bytes.first_chunk().map(OptionReplyHeader::parse) {
        let again = OptionReplyHeader::new(reply.option(), reply.reply(), reply.length.get());
        assert_eq!(again.as_bytes(), reply.as_bytes());
    }
    if let Some(Ok(request)) = bytes.first_chunk().map(RequestHeader::parse) {
        let (offset, length) = (request.offset.get(), request.length.get());
        let again =
            RequestHeader::new(request.command(), request.flags(), request.cookie.get(), offset, length);
        assert_eq!(again.as_bytes(), request.as_bytes());
        assert!(request.payload_length() <= length);
    }
    if let Some(Ok(reply)) = bytes.first_chunk().map(SimpleReply::parse) {
        assert_eq!(SimpleReply::new(reply.cookie.get(), reply.error()).as_bytes(), reply.as_bytes());
    }
    if let Some(Ok(chunk)) = bytes.first_chunk().map(ChunkHeader::parse) {
        let _ = (chunk.chunk(), chunk.is_done());
    }
    for code in [ChunkType::ERROR, ChunkType::ERROR_OFFSET] {
        if let Ok(error) = ErrorPayload::parse(code, bytes) {
            let mut again = Vec::new();
            error.encode(&mut again);
            assert_eq!(again, bytes);
        }
    }
    let _ = parse_name(bytes);
    if let Ok(request) = InfoRequest::parse(bytes) {
        assert!(request.requests().count() <= bytes.len());
    }
    if let Ok(request) = MetaContextRequest::parse(bytes) {
        assert!(request.queries().count() <= bytes.len());
    }
});
