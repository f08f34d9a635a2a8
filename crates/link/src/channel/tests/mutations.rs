//! Frames under valid keys with any content, as from a peer that knows the key and means no good: nothing panics,
//! nothing grows.

use proptest::prelude::*;
use zerocopy::IntoBytes as _;

use super::*;
use crate::frame::{HEADER_LEN, Kind, TAG_LEN};
use crate::record::{Status, Writer};
use crate::seal::Nonce;

/// What the body of a frame holds.
#[derive(Clone, Debug)]
enum Body {
    /// Any bytes behind an honest status.
    Records(Vec<u8>),
    /// Any bytes at all.
    Bytes(Vec<u8>),
    /// One stream record, `skip` numbers beyond what is expected.
    Stream { skip: u64, count: u16, tlps: Vec<u8> },
}

fn body() -> impl Strategy<Value = Body> {
    let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
    // First bytes of headers, so that more than the first check is reached.
    let kinds = vec![0x00_u8, 0x20, 0x40, 0x60, 0x04, 0x44, 0x0a, 0x4a, 0x34, 0x02, 0x4c, 0x80];
    let tlp = (proptest::sample::select(kinds), 0..4_u8, bytes(40))
        .prop_map(|(kind, len, rest)| [&[kind, 0, 0, len][..], &rest].concat());
    let tlps = proptest::collection::vec(tlp, 0..6).prop_map(|tlps| tlps.concat());
    let skip = prop_oneof![3 => Just(0), 1 => 0..3000_u64, 1 => any::<u64>()];
    prop_oneof![
        1 => bytes(200).prop_map(Body::Records),
        1 => bytes(200).prop_map(Body::Bytes),
        4 => (skip, 0..8_u16, tlps).prop_map(|(skip, count, tlps)| Body::Stream { skip, count, tlps }),
    ]
}

/// A frame of the borrower's present card with this body.
fn seal(ends: &[End<'_>; 2], number: u64, body: &Body) -> Vec<u8> {
    let channel = &ends[0].channel;
    let mut bytes = vec![0; 2048];
    let len = match body {
        Body::Bytes(raw) => {
            bytes[..raw.len()].copy_from_slice(raw);
            raw.len()
        }
        Body::Records(raw) => {
            let status = Status::default();
            bytes[..size_of::<Status>()].copy_from_slice(status.as_bytes());
            bytes[size_of::<Status>()..][..raw.len()].copy_from_slice(raw);
            size_of::<Status>() + raw.len()
        }
        Body::Stream { skip, count, tlps } => {
            let mut writer = Writer::new(&mut bytes, Status::default());
            let first = ends[1].channel.stream.receiver().expected().saturating_add(*skip);
            writer.stream(first, |room| {
                room[..tlps.len()].copy_from_slice(tlps);
                (*count, tlps.len())
            });
            writer.len()
        }
    };
    let sealing = channel.current.as_ref().unwrap();
    let config = &channel.config;
    let to = Destination::of_keys(&channel.cells.current.get());
    let header = channel.header(Kind::Sealed, 0, to, config.incarnation, (sealing.id, number));
    let mut frame = vec![0; HEADER_LEN + len + TAG_LEN];
    header.write(&mut frame);
    frame[HEADER_LEN..HEADER_LEN + len].copy_from_slice(&bytes[..len]);
    sealing.send.seal(&mut frame, Nonce::new(0, number));
    frame
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_content_under_valid_keys_is_taken_without_panic_or_growth(
        bodies in proptest::collection::vec(body(), 1..40),
    ) {
        let arena = Arena::default();
        let mut ends = pair(&arena);
        let mut now = Instant::ZERO;
        run(&mut now, &mut ends, &mut |_, _| true, 50);
        let mut buffer = vec![0; MAX_FRAME];
        for (number, body) in (1_000..).zip(&bodies) {
            let mut frame = seal(&ends, number, body);
            now += Duration::from_micros(100);
            let lender = &mut ends[1];
            lender.channel.handle_frame(now, &mut frame, &mut lender.log);
            lender.step(now);
            let mut sent = 0;
            while lender.channel.poll_transmit(now, &mut buffer).is_some() {
                sent += 1;
                prop_assert!(sent < 64, "one frame is answered with few");
            }
        }
        let sender = &ends[1].channel.stream.port.sender;
        prop_assert!(sender.next() - sender.committed() <= 256, "no more than the requests that were granted");
        prop_assert_eq!(sender.unplaced(), 0);
    }
}

/// Two stream records of 13 bytes that claim 65,535 TLPs each and hold none: each would be counted as one that was
/// accepted.
#[test]
fn a_record_that_counts_more_than_its_bytes_can_hold_is_malformed() {
    let arena = Arena::default();
    let mut ends = pair(&arena);
    let mut now = Instant::ZERO;
    run(&mut now, &mut ends, &mut |_, _| true, 50);
    let expected = ends[1].channel.stream.receiver().expected();
    let record = |first: u64, count: u16, tlps: &[u8]| {
        let mut raw = vec![0x82];
        raw.extend((tlps.len() as u16 + 10).to_le_bytes());
        raw.extend(count.to_le_bytes());
        raw.extend(first.to_le_bytes());
        raw.extend(tlps);
        raw
    };
    let empty = [record(expected, u16::MAX, &[]), record(expected + 65_535, u16::MAX, &[])].concat();
    for (number, records) in [(5_000, empty), (5_001, record(expected, 3, &[0; 35]))] {
        let mut frame = seal(&ends, number, &Body::Records(records));
        let lender = &mut ends[1];
        lender.channel.handle_frame(now, &mut frame, &mut lender.log);
        assert_eq!(lender.channel.stream.receiver().expected(), expected);
        assert!(lender.ledger.journal.pending() < 100, "{} words", lender.ledger.journal.pending());
    }
    assert_eq!(ends[1].channel.stats().dropped_malformed.get(), 2);
}
