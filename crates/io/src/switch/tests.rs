//! A switch between sockets of this machine.

use std::net::UdpSocket as Plain;

use base::frame::{HEADER_LEN, ROUTE};
use base::ids::RailId;
use node::switch::{GroupSet, MulticastSpec, PartitionSpec, PortSpec, PrefixRange, TableSpec};

use super::*;
use crate::rail::udp::UdpSocket;

/// Nodes with the domains 1, 2 and 3, of which the second and the third share a socket of the switch; domain 9 is for
/// all of them.
struct World {
    switch: Switch,
    nodes: [Plain; 3],
}

fn world() -> World {
    let bind = || Plain::bind("127.0.0.1:0").unwrap();
    let nodes = [bind(), bind(), bind()];
    let range = |domain| PrefixRange::new(RailId::default(), domain, 1).unwrap();
    let port = |domain: u32| PortSpec {
        name: format!("p{domain}"),
        ranges: vec![range(domain)],
        is_default: false,
        standby_for: None,
    };
    let mut groups = GroupSet::none();
    groups.insert(base::ids::Group(1));
    let spec = TableSpec {
        fabric: 0,
        ports: (1..=3).map(port).collect(),
        partitions: vec![PartitionSpec { name: "one".to_owned(), ports: vec![0, 1, 2], groups }],
        multicasts: vec![MulticastSpec {
            name: "all".to_owned(),
            ranges: vec![range(9)],
            ports: vec![0, 1, 2],
        }],
    };
    let door = || {
        let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &OPTIONS).unwrap();
        Door::new("door", Box::new(socket), None)
    };
    let place = |(door, node): (usize, &Plain)| {
        let peer = Some(node.local_addr().unwrap().into());
        Place { door, peer, announces: true }
    };
    let places = [0, 1, 1].into_iter().zip(&nodes).map(place).collect();
    let switch = Switch::new(Table::new(spec).unwrap(), vec![door(), door()], places).unwrap();
    nodes.iter().for_each(|node| node.set_nonblocking(true).unwrap());
    World { switch, nodes }
}

fn frame(from: u32, to: u32, number: u8) -> Vec<u8> {
    let mut frame = vec![number; 200];
    frame[..HEADER_LEN].fill(0);
    (frame[0], frame[ROUTE], frame[16]) = (1, 5 << 2, 1);
    frame[8..12].copy_from_slice(&to.to_le_bytes());
    frame[12..16].copy_from_slice(&from.to_le_bytes());
    frame
}

impl World {
    fn send(&self, from: &Plain, door: usize, frame: &[u8]) {
        let to = self.switch.doors[door].socket.local().udp().unwrap();
        from.send_to(frame, to).unwrap();
    }

    /// Turns until so many datagrams were seen by the ports together, and so many by none.
    fn turn_until(&mut self, received: u64, strangers: u64) {
        for _ in 0..20_000 {
            self.switch.turn().unwrap();
            let seen: u64 = self.switch.ports().map(|port| port.counters.received).sum();
            let others: u64 = self.switch.doors().map(|(_, count)| count).sum();
            if (seen, others) == (received, strangers) && self.switch.waiting.is_empty() {
                return;
            }
        }
        panic!("not all has come");
    }

    fn got(&self, node: usize) -> Vec<u8> {
        let mut bytes = [0; 2000];
        let mut numbers = Vec::new();
        while let Ok((len, from)) = self.nodes[node].recv_from(&mut bytes) {
            let door = usize::from(node > 0);
            assert_eq!(RailAddress::from(from), self.switch.doors[door].socket.local(), "its own port sends");
            assert_eq!((len, bytes[ROUTE]), (200, 4 << 2));
            numbers.push(bytes[len - 1]);
        }
        numbers
    }
}

#[test]
fn frames_leave_by_the_port_of_their_destination() {
    let mut world = world();
    for number in 0..100 {
        world.send(&world.nodes[0], 0, &frame(1, 2 + u32::from(number % 2), number));
        world.send(&world.nodes[1], 1, &frame(2, 3, number));
    }
    world.turn_until(200, 0);
    assert!(world.got(0).is_empty());
    assert_eq!(world.got(1), (0..100).step_by(2).collect::<Vec<u8>>());
    let mut third = world.got(2);
    third.sort_unstable();
    let mut expected: Vec<u8> = (0..100).chain((1..100).step_by(2)).collect();
    expected.sort_unstable();
    assert_eq!(third, expected, "two ports share a socket");
    let sent: Vec<_> =
        world.switch.ports().map(|port| (port.counters.sent, port.counters.sent_bytes)).collect();
    assert_eq!(sent, [(0, 0), (50, 10_000), (150, 30_000)]);
    assert!(world.switch.ports().all(|port| port.queued_bytes == 0 && port.counters.marked == 0));
}

#[test]
fn what_is_for_several_is_copied_and_what_comes_from_nobody_is_dropped() {
    let mut world = world();
    world.send(&world.nodes[2], 1, &frame(3, 9, 7));
    let stranger = Plain::bind("127.0.0.1:0").unwrap();
    world.send(&stranger, 0, &frame(1, 2, 1));
    world.send(&stranger, 1, &frame(2, 9, 1));
    // A node at the door of another.
    world.send(&world.nodes[0], 1, &frame(1, 2, 1));
    // One that speaks for another at the same door.
    world.send(&world.nodes[1], 1, &frame(3, 1, 1));
    world.send(&world.nodes[1], 1, b"no frame");
    world.turn_until(3, 3);
    assert_eq!([world.got(0), world.got(1), world.got(2)], [vec![7], vec![7], vec![]]);
    let second = world.switch.ports().nth(1).unwrap();
    let dropped = |reason: Reason| second.counters.dropped[reason.index()];
    assert_eq!((dropped(Reason::ForgedSource), dropped(Reason::Malformed)), (1, 1));
}

/// What is larger than the interface carries is refused at the door where it would leave.
#[test]
fn a_frame_that_is_too_large_for_its_way_out_is_counted_there() {
    let mut world = world();
    world.switch.turn().unwrap();
    world.switch.exits[1].max_frame = Some(150);
    world.switch.next_look = Instant::FAR_FUTURE;
    world.send(&world.nodes[0], 0, &frame(1, 2, 1));
    world.send(&world.nodes[0], 0, &frame(1, 3, 1));
    world.turn_until(2, 0);
    assert_eq!([world.got(1), world.got(2)], [vec![], vec![1]]);
    assert_eq!(world.switch.core.counters(PortId::new(1).unwrap()).dropped[Reason::TooLarge.index()], 1);
}

/// What is for all is not for a port that waits to be told its peer; what names somebody there is counted.
#[test]
fn a_port_that_was_not_told_its_peer_is_not_meant_by_what_is_for_all() {
    let mut world = world();
    world.switch.turn().unwrap();
    world.switch.exits[1].max_frame = None;
    world.switch.next_look = Instant::FAR_FUTURE;
    let unreachable = |world: &World| {
        world.switch.core.counters(PortId::new(1).unwrap()).dropped[Reason::Unreachable.index()]
    };
    world.send(&world.nodes[0], 0, &frame(1, 9, 1));
    world.turn_until(1, 0);
    assert_eq!(([world.got(1), world.got(2)], unreachable(&world)), ([vec![], vec![1]], 0));
    world.send(&world.nodes[0], 0, &frame(1, 2, 1));
    world.turn_until(2, 0);
    assert_eq!(unreachable(&world), 1);
}

/// A queue that the kernel does not take fills up: frames are marked more and more, then dropped, and nothing is lost
/// of what waits.
#[test]
fn what_waits_long_is_marked_and_what_finds_no_room_is_dropped() {
    let mut world = world();
    let port = PortId::new(1).unwrap();
    for number in 0..2500_usize {
        let Switch { core, exits, waiting, .. } = &mut world.switch;
        enqueue(core, exits, waiting, port, &frame(1, 2, number as u8));
    }
    assert_eq!(world.switch.waiting, [port], "once");
    let counters = *world.switch.core.counters(port);
    assert_eq!(counters.dropped[Reason::QueueFull.index()], 2500 - 2048);
    // The first quarter of the room is not marked.
    assert!((500..1500).contains(&counters.marked), "{}", counters.marked);
    world.switch.turn().unwrap();
    assert_eq!(world.switch.core.counters(port).sent, 2048);
    assert!(world.switch.waiting.is_empty());
}

/// Frames that were captured: by which port, whether they left, whether they may pass fewer switches, their last byte.
fn captured(reader: &mut capture::Reader) -> Vec<(usize, bool, bool, u8)> {
    let mut all = Vec::new();
    while reader
        .read(|of, frame| all.push((of.link, of.is_sent, frame[ROUTE] == 4 << 2, frame[frame.len() - 1])))
        .unwrap()
        > 0
    {}
    all
}

#[test]
fn frames_are_captured_as_they_come_and_as_they_leave() {
    let mut world = world();
    world.send(&world.nodes[0], 0, &frame(1, 2, 1));
    world.turn_until(1, 0);
    let mut all = world.switch.capture(None).unwrap().unwrap();
    let mut one = world.switch.capture(Some(2)).unwrap().unwrap();
    world.send(&world.nodes[0], 0, &frame(1, 2, 2));
    world.turn_until(2, 0);
    // For several, and one that is dropped; what no port's peer has sent is of no link.
    world.send(&world.nodes[1], 1, &frame(2, 9, 3));
    world.turn_until(3, 0);
    world.send(&world.nodes[2], 1, &frame(1, 2, 4));
    world.send(&world.nodes[0], 1, &frame(1, 2, 5));
    world.turn_until(4, 1);
    let mut seen = captured(&mut all);
    // By which port a copy leaves first is nobody's business.
    seen[3..5].sort_unstable();
    let expected = [
        (0, false, false, 2),
        (1, true, true, 2),
        (1, false, false, 3),
        (0, true, true, 3),
        (2, true, true, 3),
        (2, false, false, 4),
    ];
    assert_eq!(seen, expected);
    assert_eq!(captured(&mut one), [(2, true, true, 3), (2, false, false, 4)]);
    assert_eq!(one.counts().last(), Some(&capture::LinkCount { seen: 2, dropped: 0 }));
}

/// Who looks on ends or falls asleep: the switch waits for neither, and keeps no memory for who is gone.
#[test]
fn a_capture_holds_up_nothing_and_ends_with_its_reader() {
    let mut world = world();
    let asleep = world.switch.capture(Some(0)).unwrap().unwrap();
    let more: Vec<_> =
        (1..capture::CAPTURES_MAX).map(|_| world.switch.capture(None).unwrap().unwrap()).collect();
    assert!(world.switch.capture(None).unwrap().is_none(), "so many and no more");
    let (mut sent, mut got) = (0, 0);
    while asleep.counts().first().is_none_or(|count| count.dropped == 0) {
        for _ in 0..64 {
            world.send(&world.nodes[0], 0, &frame(1, 2, 7));
        }
        sent += 64;
        world.turn_until(sent, 0);
        got += world.got(1).len();
        assert!(sent < 1 << 20, "the ring has an end");
    }
    assert_eq!(got as u64, sent);
    drop((asleep, more));
    assert!(world.switch.captures.are_active());
    world.switch.look(now());
    assert!(
        !world.switch.captures.are_active() && world.switch.kept.all().count() == 0,
        "where nothing comes"
    );
}
