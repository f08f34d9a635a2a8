//! Properties of the codec as a whole; the golden vectors are in `tests/golden.rs`.

use proptest::prelude::*;

use super::*;

fn bdf() -> impl Strategy<Value = Bdf> {
    any::<u16>().prop_map(Bdf)
}

fn tag() -> impl Strategy<Value = Tag> {
    (0..1024_u16).prop_map(|value| Tag::new(value).unwrap())
}

fn attributes() -> impl Strategy<Value = Attributes> {
    (0..8_u8).prop_map(|bits| Attributes::from_bits(bits).unwrap())
}

/// An address in one of the two formats, also close to the border between them.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..1_u64 << 32, (1_u64 << 32) - 8192..(1_u64 << 32) + 8192]
}

/// Byte enables as `new` makes them, or any pair that the rules may or may not allow.
fn memory_request() -> impl Strategy<Value = MemoryRequest> {
    let range = (address(), 1..=4096_usize).prop_map(|(address, bytes)| {
        let room = 4096 - (address % 4096) as usize;
        MemoryRequest::new(Bdf(0), Tag::ZERO, address, bytes.min(room)).unwrap()
    });
    let enables = prop_oneof![Just(None), any::<[u8; 2]>().prop_map(Some)];
    (range, enables, (bdf(), tag(), 0..8_u8, attributes(), 0..3_u32, any::<bool>())).prop_map(
        |(range, enables, (requester, tag, traffic_class, attributes, at, poisoned))| {
            let address_type = AddressType::from_bits(at);
            let request =
                MemoryRequest { requester, tag, traffic_class, attributes, address_type, poisoned, ..range };
            let Some([first_be, last_be]) = enables else { return request };
            MemoryRequest { first_be: first_be & 0xf, last_be: last_be & 0xf, ..request }
        },
    )
}

fn config_request() -> impl Strategy<Value = ConfigRequest> {
    (bdf(), tag(), bdf(), 0..1024_u16, 0..16_u8, any::<bool>(), any::<bool>()).prop_map(
        |(requester, tag, target, dword, first_be, far, poisoned)| ConfigRequest {
            requester,
            tag,
            target,
            register: dword * 4,
            first_be,
            kind: if far { ConfigKind::Type1 } else { ConfigKind::Type0 },
            poisoned,
        },
    )
}

fn completion() -> impl Strategy<Value = Completion> {
    let data = (0..8_u8, 1..=4096_u16, 0..128_u8, 0..=1024_u16);
    (bdf(), bdf(), tag(), data, 0..8_u8, attributes(), any::<bool>()).prop_map(
        |(completer, requester, tag, data, traffic_class, attributes, poisoned)| {
            let (status, byte_count, lower_address, length_dw) = data;
            let status = CompletionStatus::from_bits(status);
            Completion {
                completer,
                requester,
                tag,
                status,
                byte_count,
                lower_address,
                length_dw,
                traffic_class,
                attributes,
                poisoned,
            }
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let words = (any::<u8>(), 0..8_u8, 0..=1024_u16, any::<u32>(), any::<u32>());
    (bdf(), tag(), words, 0..8_u8, attributes(), any::<bool>()).prop_map(
        |(requester, tag, words, traffic_class, attributes, poisoned)| {
            let (code, routing, length_dw, dw2, dw3) = words;
            let (code, routing) = (MessageCode(code), MessageRouting::from_bits(routing));
            Message {
                requester,
                tag,
                code,
                routing,
                length_dw,
                dw2,
                dw3,
                traffic_class,
                attributes,
                poisoned,
            }
        },
    )
}

/// Headers of all kinds, some of them malformed.
fn header() -> impl Strategy<Value = Header> {
    prop_oneof![
        memory_request().prop_map(Header::MemoryRead),
        memory_request().prop_map(Header::MemoryWrite),
        config_request().prop_map(Header::ConfigRead),
        config_request().prop_map(Header::ConfigWrite),
        completion().prop_map(Header::Completion),
        message().prop_map(Header::Message),
    ]
}

/// Bytes that look like a packet more often than chance allows: a known first byte, few bits set elsewhere.
fn wire() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        0x00, 0x20, 0x40, 0x60, 0x04, 0x05, 0x44, 0x45, 0x0a, 0x4a, 0x30, 0x34, 0x70, 0x74_u8,
    ]);
    let sparse = (any::<u8>(), any::<u8>(), any::<u8>()).prop_map(|(a, b, c)| a & b & c);
    (known, prop::collection::vec(prop_oneof![sparse, Just(0)], 0..160)).prop_map(|(first, mut bytes)| {
        bytes.insert(0, first);
        bytes
    })
}

/// The identity both ways, and the accessors, on bytes that parse.
fn check_parsed(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(view) = TlpView::parse(bytes) else { return Ok(()) };
    let header = view.header();
    let encoded = header.encode();
    let total_len = header.total_len() + view.digest().map_or(0, |_| 4);
    let mut plain = bytes[..header.header_len()].to_vec();
    plain[2] &= !(u8::from(view.digest().is_some()) << 7);
    prop_assert_eq!(encoded.as_bytes(), &plain);
    prop_assert_eq!(view.total_len(), total_len);
    prop_assert_eq!(view.bytes(), &bytes[..total_len]);
    prop_assert_eq!(view.payload(), &bytes[header.header_len()..header.total_len()]);
    prop_assert_eq!(EncodedHeader::from_bytes(&plain), Ok(encoded));
    prop_assert_eq!(TlpView::parse(view.bytes()), Ok(view));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        check_parsed(&bytes)?;
    }

    #[test]
    fn what_parses_encodes_to_the_same_bytes(bytes in wire()) {
        check_parsed(&bytes)?;
    }

    #[test]
    fn what_encodes_parses_to_the_same_fields(header in header()) {
        if header.check().is_err() {
            return Ok(());
        }
        let mut bytes = header.encode().as_bytes().to_vec();
        prop_assert_eq!(bytes.len(), header.header_len());
        prop_assert_eq!(Header::decode(&bytes), Ok(header));
        let payload: Vec<u8> = (0..header.payload_len()).map(|index| index as u8).collect();
        bytes.extend_from_slice(&payload);
        for end in [0, 1, 11, 12, bytes.len() - 1] {
            if end < bytes.len() {
                let truncated = matches!(TlpView::parse(&bytes[..end]), Err(ParseError::Truncated { .. }));
                prop_assert!(truncated, "cut at {}", end);
            }
        }
        bytes.extend_from_slice(&[0xee; 3]);
        let view = TlpView::parse(&bytes).unwrap();
        prop_assert_eq!(view.header(), header);
        prop_assert_eq!(view.payload(), &payload[..]);
        prop_assert_eq!(view.total_len(), bytes.len() - 3);
    }

    /// One flipped bit gives an error or other fields, never the same packet.
    #[test]
    fn no_bit_of_a_header_is_ignored(header in header(), bit in 0..128_usize) {
        if header.check().is_err() {
            return Ok(());
        }
        let mut bytes = header.encode().as_bytes().to_vec();
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
            prop_assert_ne!(Header::decode(&bytes), Ok(header));
        }
    }

    #[test]
    fn split_covers_every_byte_exactly_once(
        start in any::<u64>(),
        bytes in 1..=4096_usize,
        payload_dw in 32..=1024_usize,
        small in any::<bool>(),
    ) {
        let room = 4096 - (start % 4096) as usize;
        let bytes = bytes.min(room);
        let request = MemoryRequest::new(Bdf(1), Tag::ZERO, start, bytes).unwrap();
        let boundary =
            if small { ReadCompletionBoundary::Bytes64 } else { ReadCompletionBoundary::Bytes128 };
        let mut outstanding = Outstanding::new(&Header::MemoryRead(request)).unwrap();
        let mut next = 0;
        for part in Completion::split(&request, Bdf(2), payload_dw * 4, boundary) {
            prop_assert_eq!(Header::Completion(part.completion).check(), Ok(()));
            prop_assert_eq!(part.offset, next);
            prop_assert!(part.bytes > 0 && part.payload_len() <= payload_dw * 4);
            prop_assert_eq!(usize::from(part.completion.byte_count), bytes - next);
            next += part.bytes;
            let end = u128::from(start) + next as u128;
            prop_assert!(next == bytes || end.is_multiple_of(boundary.bytes() as u128));
            let progress = outstanding.accept(&part.completion);
            let expected = Progress::Data {
                offset: part.offset,
                padding: part.completion.padding(),
                bytes: part.bytes,
                last: next == bytes,
                poisoned: false,
            };
            prop_assert_eq!(progress, Ok(expected));
        }
        prop_assert_eq!(next, bytes);
    }

    /// Whatever completions come, what is accepted lies in the range, each byte once.
    #[test]
    fn arbitrary_completions_stay_in_the_range(
        bytes in 1..=512_usize,
        start in 0..128_u64,
        completions in prop::collection::vec((completion(), any::<bool>()), 0..40),
    ) {
        let request = MemoryRequest::new(Bdf(1), Tag::ZERO, start, bytes).unwrap();
        let mut outstanding = Outstanding::new(&Header::MemoryRead(request)).unwrap();
        let mut next = 0;
        for (completion, fitting) in completions {
            let mut completion = Completion { requester: Bdf(1), tag: Tag::ZERO, ..completion };
            if fitting {
                completion.byte_count = outstanding.remaining;
                completion.lower_address = outstanding.lower_address;
                completion.status = CompletionStatus::Success;
                completion.length_dw = completion.length_dw % 8 + 1;
            }
            if let Ok(Progress::Data { offset, bytes: got, last, .. }) = outstanding.accept(&completion) {
                prop_assert_eq!(offset, next);
                next += got;
                prop_assert!(next <= bytes);
                prop_assert_eq!(last, next == bytes);
            }
        }
    }
}

#[test]
fn unsupported_kinds_are_named() {
    // Locked read, I/O, AtomicOp, deferrable write, locked completion, prefix, reserved Fmt.
    for fmt_type in [0x01, 0x02, 0x42, 0x4c, 0x4d, 0x6e, 0x5b, 0x0b, 0x4b, 0x80, 0x9e, 0xa0, 0xff_u8] {
        let mut bytes = [0; 16];
        bytes[0] = fmt_type;
        assert_eq!(TlpView::parse(&bytes), Err(ParseError::Unsupported { fmt_type }));
    }
}

#[test]
fn a_digest_is_read_and_no_part_of_the_payload() {
    let request = MemoryRequest::new(Bdf(1), Tag::ZERO, 0x1000, 8).unwrap();
    for (header, payload) in [
        (Header::MemoryRead(request), &[][..]),
        (Header::MemoryWrite(request), &[1, 2, 3, 4, 5, 6, 7, 8]),
        (Header::MemoryWrite(MemoryRequest { address: 1 << 32, ..request }), &[1, 2, 3, 4, 5, 6, 7, 8]),
    ] {
        let mut bytes = [header.encode().as_bytes(), payload, &[0xde, 0xad, 0xbe, 0xef, 0xff]].concat();
        let plain = TlpView::parse(&bytes).unwrap();
        assert_eq!((plain.digest(), plain.total_len()), (None, header.total_len()));
        bytes[2] |= 0x80;
        let view = TlpView::parse(&bytes).unwrap();
        assert_eq!((view.header(), view.payload()), (header, payload));
        assert_eq!((view.digest(), view.total_len()), (Some(0xdead_beef), header.total_len() + 4));
        assert_eq!(view.bytes(), &bytes[..bytes.len() - 1]);
        let needed = view.total_len();
        let cut = TlpView::parse(&bytes[..needed - 1]);
        assert_eq!(cut, Err(ParseError::Truncated { needed, have: needed - 1 }));
        assert_eq!(Header::decode(&bytes), Err(ParseError::Unsupported { fmt_type: bytes[0] }));
    }
}

#[test]
fn hints_are_unsupported_and_reserved_bits_refused() {
    let request = MemoryRequest::new(Bdf(1), Tag::ZERO, 0x1000, 4).unwrap();
    let good = Header::MemoryRead(request).encode();
    let with = |index: usize, bit: u8| {
        let mut bytes = good.as_bytes().to_vec();
        bytes[index] |= bit;
        TlpView::parse(&bytes).map(|view| view.header())
    };
    assert_eq!(with(1, 0x01), Err(ParseError::Unsupported { fmt_type: 0 }), "TH");
    assert_eq!(with(1, 0x02), Err(Malformed::Reserved.into()), "R, once LN");
    assert_eq!(with(11, 0x01), Err(Malformed::Address.into()), "PH");
    assert_eq!(with(2, 0x0c), Err(Malformed::AddressType.into()), "AT 11b");
}

#[test]
fn long_format_below_four_gigabytes_is_malformed() {
    let request = MemoryRequest::new(Bdf(1), Tag::ZERO, 1 << 32, 4).unwrap();
    let mut bytes = Header::MemoryRead(request).encode().as_bytes().to_vec();
    bytes[11] = 0;
    bytes[15] = 0x10;
    assert_eq!(Header::decode(&bytes), Err(Malformed::Address.into()));
}

#[test]
fn classes_and_credits() {
    let request = MemoryRequest::new(Bdf(1), Tag::ZERO, 0x1004, 20).unwrap();
    let write = Header::MemoryWrite(request);
    assert_eq!((write.class(), write.data_credits()), (FlowClass::Posted, 2));
    let read = Header::MemoryRead(request);
    assert_eq!((read.class(), read.data_credits()), (FlowClass::NonPosted, 0));
    let longest = MemoryRequest::new(Bdf(1), Tag::ZERO, 0x1000, 4096).unwrap();
    assert_eq!(Header::MemoryWrite(longest).data_credits(), 256);
    let moved = write.with_transaction(Bdf(9), Tag::new(1023).unwrap());
    assert_eq!((moved.requester(), moved.tag().get()), (Bdf(9), 1023));
}

#[test]
#[should_panic(expected = "malformed")]
fn encoding_a_malformed_header_is_a_mistake_of_ours() {
    let request = MemoryRequest::new(Bdf(1), Tag::ZERO, 0x1000, 4).unwrap();
    Header::MemoryRead(MemoryRequest { length_dw: 0, ..request }).encode();
}
