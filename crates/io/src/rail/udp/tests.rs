//! Real sockets on loopback.

use super::*;
use std::io::IoSlice;
use std::time::{Duration, Instant};

fn pair(host: &str, offload: bool) -> (UdpSocket, UdpSocket) {
    let options = RailOptions { offload, ..RailOptions::default() };
    let bind = || UdpSocket::bind(format!("{host}:0").parse().unwrap(), &options).unwrap();
    (bind(), bind())
}

/// The contents of datagram `index`: recognisable, and `bytes` long.
fn contents(index: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (index * 31 + at * 7) as u8).collect()
}

fn receive_all(socket: &mut UdpSocket, count: usize, limit: usize) -> Vec<(RailAddress, Vec<u8>)> {
    let mut all = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(5);
    while all.len() < count {
        assert!(Instant::now() < deadline, "only {} of {count} datagrams came", all.len());
        let before = all.len();
        let received = socket.receive(limit, &mut |from, bytes| all.push((from, bytes.to_vec()))).unwrap();
        assert_eq!(received.datagrams, all.len() - before);
        assert!(received.datagrams <= limit);
    }
    all
}

fn send_all(socket: &mut UdpSocket, to: RailAddress, contents: &[Vec<u8>]) {
    let parts: Vec<[IoSlice<'_>; 2]> = contents
        .iter()
        .map(|bytes| [IoSlice::new(&bytes[..bytes.len() / 3]), IoSlice::new(&bytes[bytes.len() / 3..])])
        .collect();
    let datagrams: Vec<Datagram<'_>> = parts.iter().map(|parts| Datagram { to, parts }).collect();
    assert_eq!(socket.send_batch(&datagrams).unwrap(), contents.len());
}

#[test]
fn datagrams_arrive_whole_in_every_combination() {
    let sizes = [1200, 1200, 1200, 700, 1, 0, 0, 65_487, 65_487, 9000, 9000, 9001, 16, 16, 16, 16];
    for host in ["127.0.0.1", "[::1]"] {
        for (send_offload, receive_offload) in [(true, true), (true, false), (false, true), (false, false)] {
            let (mut sender, _) = pair(host, send_offload);
            let (mut receiver, _) = pair(host, receive_offload);
            assert_eq!(sender.features().gso, send_offload);
            assert_eq!(receiver.features().gro, receive_offload);
            let all: Vec<_> = sizes.iter().enumerate().map(|(at, bytes)| contents(at, *bytes)).collect();
            send_all(&mut sender, receiver.local(), &all);
            for limit in [1, 3, 1000] {
                if limit != 1 {
                    send_all(&mut sender, receiver.local(), &all);
                }
                let got = receive_all(&mut receiver, all.len(), limit);
                assert!(got.iter().all(|(from, _)| *from == sender.local()));
                assert!(got.iter().map(|(_, bytes)| bytes).eq(&all), "limit {limit}");
            }
            assert_eq!(sender.counters().sent, 3 * sizes.len() as u64);
            assert_eq!(receiver.counters().received, 3 * sizes.len() as u64);
            assert_eq!(sender.features().gso, send_offload);
        }
    }
}

#[test]
fn limit_keeps_the_rest_for_the_next_call() {
    let (mut sender, mut receiver) = pair("127.0.0.1", true);
    let all: Vec<_> = (0..64).map(|at| contents(at, 1000)).collect();
    send_all(&mut sender, receiver.local(), &all);
    let mut got = Vec::new();
    let received = receiver.receive(10, &mut |_, bytes| got.push(bytes.to_vec())).unwrap();
    assert_eq!(received, Received { datagrams: 10, more: true });
    let received = receiver.receive(1000, &mut |_, bytes| got.push(bytes.to_vec())).unwrap();
    assert_eq!(received, Received { datagrams: 54, more: false });
    assert_eq!(got, all);
    assert_eq!(receiver.receive(5, &mut |_, _| panic!("nothing is left")).unwrap(), Received::default());
}

#[test]
fn one_that_comes_alone_is_handed_on_before_the_kernel_is_asked_for_more() {
    let (mut sender, mut receiver) = pair("127.0.0.1", false);
    for round in 0..3 {
        send_all(&mut sender, receiver.local(), &[contents(round, 100)]);
        assert_eq!(receiver.receive(64, &mut |_, _| {}).unwrap(), Received { datagrams: 1, more: true });
        assert_eq!(receiver.receive(64, &mut |_, _| {}).unwrap(), Received::default());
    }
    // Where many come soon many are asked for.
    let all: Vec<_> = (0..40).map(|at| contents(at, 100)).collect();
    send_all(&mut sender, receiver.local(), &all);
    let mut calls = 0;
    let mut got = Vec::new();
    while receiver.receive(64, &mut |_, bytes| got.push(bytes.to_vec())).unwrap().more {
        calls += 1;
    }
    assert_eq!((got, calls), (all, 1));
}

#[test]
fn refusals_are_counted_and_the_rest_is_sent() {
    let (mut sender, mut receiver) = pair("127.0.0.1", true);
    let bytes = contents(1, 65_508);
    let (small, large) = ([IoSlice::new(&bytes[..100])], [IoSlice::new(&bytes)]);
    let to = receiver.local();
    let nowhere: RailAddress = "[::1]:9".parse().unwrap();
    let broadcast: RailAddress = "255.255.255.255:9".parse().unwrap();
    let batch = [
        Datagram { to, parts: &small },
        Datagram { to: broadcast, parts: &small },
        Datagram { to: broadcast, parts: &small },
        Datagram { to, parts: &large },
        Datagram { to: nowhere, parts: &small },
        Datagram { to, parts: &small },
    ];
    assert_eq!(sender.send_batch(&batch).unwrap(), batch.len());
    assert_eq!(receive_all(&mut receiver, 2, 100).len(), 2);
    let counters = sender.counters();
    assert_eq!((counters.sent, counters.too_large, counters.unreachable, counters.other), (2, 1, 2, 1));
    assert!(sender.features().gso);
}

#[test]
fn full_receiver_loses_datagrams_and_nobody_fails() {
    let options = RailOptions { receive_buffer_bytes: 64 << 10, ..RailOptions::default() };
    let mut receiver = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let (mut sender, _) = pair("127.0.0.1", true);
    let bytes = contents(0, 30_000);
    let parts = [IoSlice::new(&bytes)];
    let batch = [Datagram { to: receiver.local(), parts: &parts }; 200];
    assert_eq!(sender.send_batch(&batch).unwrap(), batch.len());
    let received = receiver.receive(1000, &mut |_, got| assert_eq!(got, bytes)).unwrap();
    assert!(received.datagrams > 0 && received.datagrams < batch.len(), "{received:?}");
}

#[test]
fn socket_is_taken_over_with_its_queue() {
    let (mut sender, receiver) = pair("127.0.0.1", true);
    let all: Vec<_> = (0..20).map(|at| contents(at, 500)).collect();
    send_all(&mut sender, receiver.local(), &all);
    let (local, copy) = (receiver.local(), receiver.as_fd().try_clone_to_owned().unwrap());
    drop(receiver);
    let mut successor = UdpSocket::from_fd(copy, true).unwrap();
    assert_eq!(successor.local(), local);
    assert!(successor.features().gro && successor.features().gso);
    assert_eq!(receive_all(&mut successor, 20, 100).len(), 20);
    assert!(UdpSocket::from_fd(std::fs::File::open("/dev/null").unwrap().into(), true).is_err());
}

#[test]
fn path_mtu_is_the_interfaces() {
    for host in ["127.0.0.1", "[::1]"] {
        let (one, two) = pair(host, true);
        let mtu = one.path_mtu(two.address()).unwrap();
        let expected: u32 = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse().unwrap();
        // An IP packet has at most 65535 bytes, whatever the interface says.
        assert_eq!(mtu, expected.min(65_535));
        let headers = if two.address().is_ipv4() { 28 } else { 48 };
        assert_eq!(max_datagram_bytes(two.address(), 1500), 1500 - headers);
        assert_eq!(max_datagram_bytes(two.address(), 65_536), MAX_DATAGRAM_BYTES.min(65_536 - headers));
    }
}

#[test]
fn buffers_are_reported() {
    let (socket, _) = pair("127.0.0.1", true);
    let features = socket.features();
    assert!(
        features.receive_buffer_bytes >= 200 << 10 && features.send_buffer_bytes >= 200 << 10,
        "{features:?}"
    );
}

/// Prints datagrams a second, one thread sending and receiving in turn:
/// `cargo test --release -p causeway-io -- --ignored rate`
#[test]
#[ignore = "a measurement"]
fn rate() {
    for (bytes, batch) in [(64, 64), (1472, 44), (4096 + 100, 15), (65_000, 4)] {
        for offload in [true, false] {
            let (mut sender, mut receiver) = pair("127.0.0.1", offload);
            let data = contents(0, bytes);
            let parts = [IoSlice::new(&data)];
            let datagrams = vec![Datagram { to: receiver.local(), parts: &parts }; batch];
            let (mut sending, mut receiving, mut count) = (Duration::ZERO, Duration::ZERO, 0u32);
            let mut got = 0;
            while sending + receiving < Duration::from_millis(400) {
                let start = Instant::now();
                count += sender.send_batch(&datagrams).unwrap() as u32;
                let middle = Instant::now();
                got += receiver.receive(10_000, &mut |_, _| {}).unwrap().datagrams;
                sending += middle - start;
                receiving += middle.elapsed();
            }
            assert_eq!(got, count as usize);
            println!(
                "{bytes} bytes, offload {offload}: send {:?} + receive {:?} a datagram",
                sending / count,
                receiving / count
            );
        }
    }
}
