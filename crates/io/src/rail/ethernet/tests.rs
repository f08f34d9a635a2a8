//! Real sockets on two ends of a virtual wire, in a network namespace of the test's own.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use super::*;
use crate::net::own::{self, ip};
use crate::rail::take_over;

/// As long as the smallest frame, with this group in its header.
fn frame(group: u16, len: usize, fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; len];
    bytes[16..18].copy_from_slice(&group.to_le_bytes());
    bytes
}

fn open(name: &str) -> EthernetSocket {
    EthernetSocket::open(name, &RailOptions::default()).unwrap()
}

fn send(socket: &mut dyn RailSocket, to: RailAddress, frames: &[Vec<u8>]) {
    let parts: Vec<[IoSlice<'_>; 1]> = frames.iter().map(|frame| [IoSlice::new(frame)]).collect();
    let datagrams: Vec<Datagram<'_>> = parts.iter().map(|parts| Datagram { to, parts }).collect();
    assert_eq!(socket.send_batch(&datagrams).unwrap(), frames.len());
}

/// What comes until `count` frames have, each from `from`.
fn receive(socket: &mut dyn RailSocket, from: RailAddress, count: usize) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while all.len() < count {
        assert!(Instant::now() < deadline, "{} of {count} came, {:?}", all.len(), socket.counters());
        socket
            .receive(7, &mut |sender, bytes| {
                assert_eq!(sender, from);
                all.push(bytes.to_vec());
            })
            .unwrap();
    }
    all
}

#[test]
fn frames_travel_between_interfaces() {
    own::run("rail::ethernet::tests::in_a_network_of_its_own");
}

#[test]
#[ignore = "runs as a child of the test above"]
fn in_a_network_of_its_own() {
    ip("link add left mtu 9000 type veth peer name right mtu 1500");
    ip("link set left up");
    assert!(!Interface::find("left").unwrap().is_running, "the other end is down");
    ip("link set right up");
    // The kernel tells of a carrier a little later.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !Interface::find("left").unwrap().is_running {
        assert!(Instant::now() < deadline, "it has no carrier");
        std::thread::yield_now();
    }
    let (mut left, mut right) = (open("left"), open("right"));
    let (here, there) = (left.local(), right.local());
    assert_eq!((left.max_frame(there).unwrap(), right.max_frame(here).unwrap()), (9000, 1500));
    assert_eq!((left.largest_frame(), right.largest_frame()), (9000, 1500));
    assert_eq!(left.interface().as_deref(), Some("left"));

    whole_frames_arrive(&mut left, &mut right);
    what_is_for_everybody_comes_apart(&mut left, &mut right);
    only_ours_are_taken(&mut left, &mut right);
    refusals_are_counted(&mut left, &mut right);

    // A card that takes over finds what has come.
    send(&mut left, there, &[frame(1, 200, 9)]);
    let copy = right.as_fd().try_clone_to_owned().unwrap();
    drop(right);
    let mut successor = take_over(copy, true).unwrap();
    assert_eq!(successor.local(), there);
    assert_eq!(receive(&mut *successor, here, 1), [frame(1, 200, 9)]);

    sockets_are_refused_by_name();
    ip("link del left");
    assert_eq!(left.max_frame(there).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    // A card that takes over has a rail that leads nowhere, and the others.
    let mut successor = take_over(left.as_fd().try_clone_to_owned().unwrap(), true).unwrap();
    assert_eq!(successor.largest_frame(), MIN_MTU as usize);
    for socket in [&mut left as &mut dyn RailSocket, &mut *successor] {
        let before = socket.counters();
        send(socket, there, &[frame(1, 100, 1)]);
        assert_eq!(socket.receive(1, &mut |_, _| panic!("nobody is there")).unwrap(), Received::default());
        assert_eq!((socket.counters().sent, socket.counters().other), (before.sent, before.other + 1));
    }
}

fn whole_frames_arrive(left: &mut EthernetSocket, right: &mut EthernetSocket) {
    let (here, there) = (left.local(), right.local());
    let sizes = [80, 81, 1280, 1499, 1500];
    let frames: Vec<_> = sizes.iter().zip(0..).map(|(len, fill)| frame(4094, *len, fill)).collect();
    send(left, there, &frames);
    assert_eq!(receive(right, here, frames.len()), frames);
    send(right, here, &frames);
    assert_eq!(receive(left, there, frames.len()), frames);
    let many: Vec<_> = (0..500).map(|at| frame(1, 1000, at as u8)).collect();
    send(left, there, &many);
    assert_eq!(receive(right, here, many.len()), many);
    // Nobody hears himself.
    assert_eq!(left.receive(9, &mut |_, _| panic!("it has sent that itself")).unwrap(), Received::default());
    assert_eq!(left.counters().sent, 505);
}

/// A rail is not kept busy by what all on its segment are told, and who listens for that hears nothing else.
fn what_is_for_everybody_comes_apart(left: &mut EthernetSocket, right: &mut EthernetSocket) {
    let (here, there) = (left.local(), right.local());
    let mut listening = EthernetSocket::for_everybody("right").unwrap();
    assert_eq!(EthernetSocket::for_everybody("lo").err().unwrap().raw_os_error(), Some(libc::EOPNOTSUPP));
    let (to_all, to_one) = (frame(5, 300, 1), frame(5, 300, 2));
    for _ in 0..2 {
        send(left, RailAddress::Ethernet(EVERYBODY), std::slice::from_ref(&to_all));
        send(left, there, std::slice::from_ref(&to_one));
    }
    assert_eq!(receive(&mut listening, here, 2), vec![to_all.clone(); 2]);
    assert_eq!(receive(right, here, 2), vec![to_one; 2]);
    // It can speak as well.
    send(&mut listening, here, std::slice::from_ref(&to_all));
    assert_eq!(receive(left, there, 1), [to_all]);
}

/// A frame whose tag says otherwise than its header, one without a tag, and others' traffic.
fn only_ours_are_taken(left: &mut EthernetSocket, right: &mut EthernetSocket) {
    let (RailAddress::Ethernet(here), RailAddress::Ethernet(there)) = (left.local(), right.local()) else {
        panic!("both are on Ethernet")
    };
    let wire = |tag: &[u16], ethertype: u16, from: Mac, body: &[u8]| {
        let mut bytes = [there.0, from.0].concat();
        for part in tag.iter().chain([&ethertype]) {
            bytes.extend_from_slice(&part.to_be_bytes());
        }
        [bytes, body.to_vec()].concat()
    };
    let body = frame(7, 100, 3);
    let group = Mac([here.0[0] | 1, 0, 0, 0, 0, 1]);
    for (bytes, counts) in [
        (wire(&[0x8100, 8], ETHERTYPE, here, &body), 1),
        (wire(&[0x8100, 7], ETHERTYPE, here, &body[..63]), 1),
        (wire(&[0x8100, 7], ETHERTYPE, group, &body), 1),
        (wire(&[], ETHERTYPE, here, &body), 0),
        (wire(&[0x8100, 7], 0x0800, here, &body), 0),
    ] {
        let before = right.counters().foreign;
        let sent = rustix::net::send(&*left, &bytes, rustix::net::SendFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
        // What stands behind it has come through the same queue.
        send(left, RailAddress::Ethernet(there), std::slice::from_ref(&body));
        assert_eq!(receive(right, RailAddress::Ethernet(here), 1), std::slice::from_ref(&body));
        assert_eq!(right.counters().foreign - before, counts, "{bytes:02x?}");
    }
    // Who sends nothing else keeps nobody busy: each counts as one that was taken.
    for _ in 0..200 {
        let wrong = wire(&[0x8100, 8], ETHERTYPE, here, &body);
        rustix::net::send(&*left, &wrong, rustix::net::SendFlags::empty()).unwrap();
    }
    let before = right.counters().foreign;
    let received = right.receive(7, &mut |_, _| panic!("it is of another group")).unwrap();
    assert_eq!((received, right.counters().foreign - before), (Received { datagrams: 0, more: true }, 7));
    while right.receive(7, &mut |_, _| panic!("it is of another group")).unwrap().more {}
    // The priority of a tag is none of the group.
    let urgent = wire(&[0x8100, 0xe007], ETHERTYPE, here, &body);
    rustix::net::send(&*left, &urgent, rustix::net::SendFlags::empty()).unwrap();
    assert_eq!(receive(right, RailAddress::Ethernet(here), 1), [body]);
}

fn refusals_are_counted(left: &mut EthernetSocket, right: &mut EthernetSocket) {
    let (here, there) = (left.local(), right.local());
    let before = right.counters();
    let nowhere: RailAddress = "127.0.0.1:9".parse().unwrap();
    let (small, large) = (frame(1, 100, 1), frame(1, 1501, 2));
    let parts = [[IoSlice::new(&small)], [IoSlice::new(&large)], [IoSlice::new(&small)]];
    let batch = [
        Datagram { to: here, parts: &parts[1] },
        Datagram { to: nowhere, parts: &parts[0] },
        Datagram { to: here, parts: &parts[2] },
    ];
    assert_eq!(right.send_batch(&batch).unwrap(), 3);
    assert_eq!(receive(left, there, 1), [small]);
    let after = right.counters();
    let counted = |of: fn(&RailCounters) -> u64| of(&after) - of(&before);
    assert_eq!(
        (counted(|it| it.sent), counted(|it| it.too_large), counted(|it| it.other)),
        (1, 1, 1),
        "{after:?}"
    );
}

fn sockets_are_refused_by_name() {
    let refused = |name: &str| {
        let error = EthernetSocket::open(name, &RailOptions::default()).err().unwrap();
        error.raw_os_error()
    };
    assert_eq!(refused("lo"), Some(libc::EOPNOTSUPP));
    for name in ["none", "", "a-name-that-is-too-long", "with\0zero"] {
        assert_eq!(refused(name), Some(libc::ENODEV), "{name:?}");
    }
    ip("link set left mtu 1279");
    assert_eq!(refused("left"), Some(libc::EMSGSIZE));
    assert!(take_over(std::fs::File::open("/dev/null").unwrap().into(), true).is_err());
}
