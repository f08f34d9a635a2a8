//! Frames that are opened once more for a capture.

use base::ledger::Arena;
use core::time::Duration;

use super::*;
use crate::Protection;
use crate::frame::{HEADER_LEN, Header, Kind, ROUTE, TAG_LEN};
use crate::record::{parse, parse_control};

/// Whether a body is what the header says: a status and records.
fn has_records(frame: &[u8]) -> bool {
    let header = Header::parse(frame).unwrap();
    let body = &frame[HEADER_LEN..frame.len() - TAG_LEN];
    let mut records = match header.stream.0 {
        0 => parse_control(body),
        _ => parse(body).unwrap().1,
    };
    records.all(|record| record.is_ok())
}

#[test]
fn either_end_opens_what_was_sent_and_nobody_what_was_changed() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.record = Some(Vec::new());
    world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
    for _ in 0..20 {
        world.write_all(0);
        world.run(10);
    }
    let (mut of_streams, mut others) = (0, 0);
    for (from, bytes) in world.record.take().unwrap() {
        let header = Header::parse(&bytes).unwrap();
        let mut reveal = |node: usize, frame: &mut [u8]| {
            let channel = world.nodes[node].channel(1 - node);
            channel.reveal(frame, node == from)
        };
        let [mut sent, mut taken, mut changed] = [(); 3].map(|()| bytes.clone());
        taken[ROUTE] ^= 0x15;
        let route = taken[ROUTE];
        changed[HEADER_LEN] ^= 1;
        assert!(!reveal(from, &mut changed) && !reveal(1 - from, &mut changed));
        let is_sealed = header.kind == Kind::Sealed;
        assert_eq!((reveal(from, &mut sent), reveal(1 - from, &mut taken)), (is_sealed, is_sealed));
        if !is_sealed {
            others += 1;
            continue;
        }
        of_streams += u32::from(header.stream.0 != 0);
        assert!(has_records(&sent) && sent[sent.len() - TAG_LEN..] == [0; TAG_LEN]);
        assert_eq!((taken[ROUTE], &taken[ROUTE + 1..]), (route, &sent[ROUTE + 1..]));
    }
    assert!(of_streams > 10 && others > 1, "{of_streams} {others}");
}

#[test]
fn what_is_not_sealed_stays_as_it_is() {
    let arena = Arena::default();
    let insecure = |config: &mut NodeConfig| config.protection = Protection::Insecure;
    let mut world = World::pair_with(&arena, 1, insecure);
    world.record = Some(Vec::new());
    world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
    for (from, bytes) in world.record.take().unwrap() {
        let mut copy = bytes.clone();
        assert!(!world.nodes[from].channel(1 - from).reveal(&mut copy, true));
        assert_eq!(copy, bytes);
    }
}
