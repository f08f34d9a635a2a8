//! Frames under valid keys with any content, as from a peer that knows the key and means no good: nothing panics,
//! nothing grows.

use core::time::Duration;

use base::ids::StreamId;
use base::ledger::Arena;
use proptest::prelude::*;
use zerocopy::IntoBytes as _;

use super::*;
use crate::record::{Status, Writer};

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

impl Body {
    fn encode(&self, expected: u64) -> Vec<u8> {
        match self {
            Self::Bytes(raw) => raw.clone(),
            Self::Records(raw) => [Status::default().as_bytes(), raw].concat(),
            Self::Stream { skip, count, tlps } => {
                let mut bytes = vec![0; 2048];
                let mut writer = Writer::new(&mut bytes, Status::default());
                writer.stream(expected.saturating_add(*skip), |room| {
                    room[..tlps.len()].copy_from_slice(tlps);
                    (*count, tlps.len())
                });
                let len = writer.len();
                bytes.truncate(len);
                bytes
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_content_under_valid_keys_is_taken_without_panic_or_growth(
        bodies in proptest::collection::vec((0..3_usize, body()), 1..40),
    ) {
        let arena = Arena::default();
        let mut world = World::pair(&arena, 2);
        world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
        world.nodes[1].places.iter_mut().for_each(|place| place.log.is_lenient = true);
        for (place, body) in &bodies {
            // Of a stream that is there, or of none.
            let stream = world.nodes[0].places.get(*place);
            let id = StreamId(stream.map_or(4_001, TestLoan::stream_number));
            let lent = world.nodes[1].places.get(*place);
            let expected = lent.map_or(0, |place| place.stream.receiver().expected());
            let frame = world.nodes[0].channel(1).write_for_test(id, &body.encode(expected));
            world.now += TICK / 2;
            world.give(1, &frame);
            prop_assert!(world.frames_of(1).len() < 64, "one frame is answered with few");
        }
        for place in &world.nodes[1].places {
            let sender = &place.stream.port.sender;
            prop_assert!(sender.next() - sender.committed() <= 256, "no more than was granted");
            prop_assert_eq!(sender.unplaced(), 0);
        }
    }
}
