use super::*;
use crate::agent::test_loans;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::io::IoSlice;
use std::os::unix::net::UnixStream;

fn send(to: &UnixStream, bytes: &[u8], with: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(with.is_empty() || control.push(SendAncillaryMessage::ScmRights(with)));
    rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

fn place(ours: UnixStream) -> Slots {
    let mut slots = Slots::new(MAX_SLOTS);
    slots.places[0].client = Some(Client::new(ours.into(), 0));
    slots
}

#[test]
fn a_message_is_taken_with_its_descriptors_and_told_again() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut slots = place(ours);
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let memory = crate::memory::create("guest", 8192).unwrap();
    send(&theirs, b"first message", &[memory.as_fd(), memory.as_fd(), event.as_fd(), event.as_fd()]);
    send(&theirs, b"next", &[]);
    let told = slots.take(0, 1, 13, "nvme0");
    let [ToSlot::Descriptors { ids }, ToSlot::Taken { number: 1, bytes, .. }] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((ids.len(), &bytes.0[..]), (4, &b"first message"[..]));
    let Enclosure::Descriptors(enclosed) = slots.enclosure(0, &told[0]) else {
        panic!("four travel with it")
    };
    let numbers: Vec<i32> = enclosed.iter().map(std::os::fd::AsRawFd::as_raw_fd).collect();
    assert_eq!(numbers[0], numbers[1], "one file is kept once");
    assert_ne!(numbers[2], numbers[3], "an eventfd is not a file");
    // A number that has been, and one that cannot be.
    assert_eq!(slots.take(0, 1, 4, "nvme0"), [ToSlot::Lost]);
    let ids = ids.clone();
    slots.release(0, &ids[..3]);
    assert_eq!(slots.places[0].descriptors.len(), 1);
    assert!(slots.places[0].files.is_empty());
    assert!(matches!(slots.enclosure(0, &told[0]), Enclosure::Gone));
    assert_eq!(slots.take(0, 2, 4, "nvme0").len(), 1);
    assert_eq!(slots.take(0, 3, 4, "nvme0"), [ToSlot::Lost], "nothing is there");
}

#[test]
fn too_many_descriptors_are_closed() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut slots = place(ours);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    send(&theirs, b"many", &[writer.as_fd(); 40]);
    drop(writer);
    slots.take(0, 1, 4, "nvme0");
    assert_eq!(slots.places[0].descriptors.len(), DESCRIPTORS);
    let ids: Vec<u32> = slots.places[0].descriptors.keys().copied().collect();
    slots.release(0, &ids);
    // With the last writer gone there is an end.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
}

#[test]
fn what_is_too_much_for_a_slot_comes_without_descriptors() {
    crate::raise_descriptor_limit();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut slots = Slots { share: 30, ..place(ours) };
    let memory = |_| crate::memory::create("guest", 4096).unwrap();
    let files: Vec<_> = (0..20).map(memory).collect();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let mut number = 0;
    let mut kept = |slots: &mut Slots, with: &[BorrowedFd<'_>]| {
        number += 1;
        send(&theirs, b"next", with);
        slots.take(0, number, 4, "nvme0");
        slots.places[0].last.ids.len()
    };
    assert!(files.iter().all(|file| kept(&mut slots, &[file.as_fd()]) == 1));
    assert!((0..10).all(|_| kept(&mut slots, &[event.as_fd()]) == 1));
    assert_eq!(kept(&mut slots, &[event.as_fd()]), 0);
    assert_eq!(kept(&mut slots, &[memory(0).as_fd()]), 0);
    assert_eq!(kept(&mut slots, &[files[3].as_fd()]), 1, "a file that it has already costs nothing");
    let event = *slots.places[0].descriptors.last_key_value().unwrap().0 - 1;
    slots.release(0, &[event]);
    assert_eq!(kept(&mut slots, &[memory(0).as_fd()]), 1, "there is room again");
}

#[test]
fn one_process_is_told_from_another() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let (again, _theirs) = UnixStream::pair().unwrap();
    let [first, mut second] = [ours, again].map(|socket| Client::new(socket.into(), 0));
    assert!(first.is_same(&second) && first.since == start_of(std::process::id() as i32));
    assert!(start_of(1).is_some() && start_of(-1).is_none());
    second.since = second.since.map(|since| since + 1);
    assert!(!first.is_same(&second), "the number was given to another process");
    (second.pid, second.since) = (Some(1), first.since);
    assert!(!first.is_same(&second));
    let nobody = || Client { pid: None, since: None, ..Client::new(UnixStream::pair().unwrap().0.into(), 0) };
    assert!(!nobody().is_same(&nobody()), "whoever cannot be recognised");
}

#[test]
fn who_connects_once_more_gets_the_slot_when_the_first_connection_is_parked() {
    let pair = || UnixStream::pair().unwrap();
    let [(first, _a), (second, _b), (third, mut c)] = [pair(), pair(), pair()];
    let mut slots = place(first);
    let number = rustix::net::sockopt::socket_cookie(&slots.places[0].client.as_ref().unwrap().socket);
    let (number, waiting) = (number.unwrap(), rustix::net::sockopt::socket_cookie(&second).unwrap());
    slots.places[0].next = Some(Client::new(second.into(), 0));
    assert!(slots.park(0, "nvme0"));
    let holds =
        |slots: &Slots| rustix::net::sockopt::socket_cookie(&slots.places[0].client.as_ref().unwrap().socket);
    assert_eq!(holds(&slots).unwrap(), waiting);
    assert!(matches!(slots.parked(number), Enclosure::Descriptor(_)));
    // A mistake: the device is in use.
    slots.places[0].next = Some(Client::new(third.into(), 0));
    slots.keep(0, "nvme0");
    assert_eq!(std::io::Read::read(&mut c, &mut [0; 1]).unwrap(), 0, "sent away in order");
    assert_eq!(holds(&slots).unwrap(), waiting);
    assert!(!slots.vacate(0, "nvme0") && slots.has_clients());
    slots.unpark(number);
    assert!(!slots.has_clients());
}

/// A connection of a process, and its other end, which does not block.
fn connection_of(pid: i32) -> (Client, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    (
        Client {
            socket: ours.into(),
            loan: 0,
            pid: Some(pid),
            since: Some(1),
            warned: false,
            known: Default::default(),
        },
        theirs,
    )
}

fn is_open(mut end: &UnixStream) -> bool {
    std::io::Read::read(&mut end, &mut [0; 1]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn who_connects_again_and_again_cuts_off_nobody() {
    let mut slots = Slots { room: MOST, ..Slots::new(MAX_SLOTS) };
    let (other, other_end) = connection_of(1);
    assert_eq!(slots.admit(1, other, "nvme1"), Accepted::Client);
    slots.park(1, "nvme1");
    let mut ends: Vec<UnixStream> = Vec::new();
    for round in 0..PARKED_OF_ONE + 50 {
        let (again, end) = connection_of(2);
        match slots.admit(0, again, "nvme0") {
            Accepted::Client => assert_eq!(round, 0),
            Accepted::SameClient => assert!(slots.park(0, "nvme0")),
            Accepted::Nobody => assert!(!is_open(&end), "sent away in order"),
        }
        ends.push(end);
    }
    assert!(is_open(&other_end));
    assert_eq!(ends.iter().take_while(|end| is_open(end)).count(), PARKED_OF_ONE + 1, "the first stay");
    assert_eq!(slots.parked.len(), PARKED_OF_ONE + 1);
    // Whoever else comes is welcome, also another process with the same number.
    let (mut another, another_end) = connection_of(2);
    another.since = Some(2);
    assert_eq!(slots.admit(1, another, "nvme1"), Accepted::Client);
    assert!(is_open(&another_end));
    // When the first are gone, there may be others.
    let numbers: Vec<u64> = slots.parked.keys().copied().collect();
    numbers.into_iter().for_each(|number| slots.unpark(number));
    assert_eq!(slots.admit(0, connection_of(2).0, "nvme0"), Accepted::SameClient);
}

#[test]
fn connections_without_a_slot_do_not_pile_up() {
    assert!((FEWEST..=MOST).contains(&room()));
    // The others keep what is theirs.
    let mut slots = Slots { room: 100 + CONNECTIONS_EACH * (MAX_SLOTS - 1), ..Slots::new(MAX_SLOTS) };
    let mut ends = Vec::new();
    for pid in 1..200 {
        let (newcomer, end) = connection_of(pid);
        if slots.admit(0, newcomer, "nvme0") == Accepted::Client {
            slots.renew(0);
        }
        ends.push(end);
    }
    assert_eq!(slots.parked.len(), 100);
    assert_eq!(ends.iter().take_while(|end| is_open(end)).count(), 100, "who is there stays");
    assert!(ends[100..].iter().all(|end| !is_open(end)));
    for loan in 1..MAX_SLOTS {
        let (mut newcomer, end) = connection_of(7);
        newcomer.loan = loan;
        assert_eq!(slots.admit(loan, newcomer, "another"), Accepted::Client, "the slot of {loan}");
        assert!(is_open(&end));
    }
}

#[test]
fn no_turn_is_longer_than_the_others_can_wait() {
    let edge = |path, listener| Edge::Vm { path, listener, machine: 0 };
    let (loans, callers) = test_loans::listening("vm", 3 * ACCEPTS_A_TURN + 1, edge);
    let mut slots = Slots::new(MAX_SLOTS);
    slots.places[0].client = Some(connection_of(1).0);
    for turn in 1..=3 {
        assert_eq!(slots.accept(&loans, 0).unwrap(), Accepted::Nobody);
        assert_eq!(test_loans::ends(&callers), turn * ACCEPTS_A_TURN);
    }
}
