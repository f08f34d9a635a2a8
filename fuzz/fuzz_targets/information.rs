//! Information frames, which anybody can make: whole ones, some of whose bytes are others, come to a node that keeps
//! account of who is there.
#![no_main]

use base::ids::{NodeId, RailId};
use core::time::Duration;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use link::frame::{Header, Kind, TAG_LEN};
use node::information::{Announcer, Item, Role, tag, write};
use node::{Address, GroupKey, Name, Neighbourhood, NodeKey};

#[derive(Arbitrary, Debug)]
struct Step {
    after_ms: u16,
    key: u8,
    is_switch: bool,
    interval_s: u16,
    incarnation: u8,
    number: u8,
    rail: u8,
    rails: Vec<(u8, bool, u8, u8)>,
    ports: Vec<u8>,
    changes: Vec<(u16, u8)>,
    /// Whether the digest fits what has become of the frame.
    is_whole: bool,
}

fn frame_of(step: &Step) -> Vec<u8> {
    let key = NodeKey::numbered(step.key.into());
    let rail = |id: u8| RailId::ALL[usize::from(id) % RailId::ALL.len()];
    let announcer = Announcer {
        role: if step.is_switch { Role::Switch } else { Role::Node },
        key: key.public(),
        domains: base::ids::DomainBlock::of(key.id()),
        name: Name::new("node"),
        interval_s: step.interval_s,
        incarnation: base::ids::Incarnation(step.incarnation.into()),
        number: step.number.into(),
        rail: rail(step.rail),
        group: Default::default(),
    };
    let rails = step.rails.iter().map(|&(id, is_up, address, gateway)| Item::Rail {
        rail: rail(id),
        is_up,
        address: [address; 28],
        gateway: [gateway; 28],
    });
    let ports = step.ports.iter().map(|port| Item::Port([*port; 28]));
    let (mut frame, _) = write(&announcer, &rails.chain(ports).collect::<Vec<_>>());
    for &(at, value) in &step.changes {
        let at = usize::from(at) % frame.len();
        frame[at] = value;
    }
    if step.is_whole {
        let end = frame.len() - TAG_LEN;
        let tag = tag(&frame[..end]);
        frame[end..].copy_from_slice(&tag);
    }
    frame
}

fuzz_target!(|steps: Vec<Step>| {
    let mut now = base::Instant::ZERO;
    let key = GroupKey::new(&[7; GroupKey::BYTES]);
    let mut known = Neighbourhood::new(now, NodeId::numbered(1), Some(key));
    for step in steps {
        now += Duration::from_millis(step.after_ms.into());
        let frame = frame_of(&step);
        let is_information = Header::parse(&frame).is_ok_and(|header| header.kind == Kind::Information);
        let before = known.heard;
        known.hear(now, RailId::ALL[usize::from(step.rail) % RailId::ALL.len()], &frame, |address| {
            Some(Address(address))
        });
        assert!(is_information || known.heard == before);
        known.take_notices();
        let who: Vec<NodeId> = known.nodes(now).map(|(node, _)| node).collect();
        assert!(who.len() <= node::NODES_MAX);
        for node in who {
            known.place_of(now, node);
        }
    }
});
