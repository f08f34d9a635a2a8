//! Two nodes of one machine, and the memory that they share.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Random;
use base::ids::NodeId;
use io::memory::Mapping;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::cases::pattern;
use crate::client::Client;
use crate::disk::Scratch;
use crate::log;
use crate::pair::{Pair, borrower_key, lender_key};

const MIB: u64 = 1 << 20;
/// Kills of cards, half of each node.
const KILLS: u64 = 100;
/// Bytes of the memory that two nodes share: nothing else here has this size and cannot change it.
const MEMORY_BYTES: i64 = 512 << 10;

/// A file in memory, so that the card's work is its own.
fn image(place: &Scratch) -> std::path::PathBuf {
    place.image(8 * MIB)
}

pub(crate) fn share_memory_and_survive_kills() {
    let place = Scratch::new("neighbours");
    let pair = Pair::start_sharing(&image(&place), &place.path(""), [true, true]);
    let mut client = Client::connect(&pair.socket);
    pair.wait_shared();
    let mut random = Random::new(1);
    for kill in 0..KILLS {
        let victim = if kill % 2 == 0 { &pair.lender } else { &pair.borrower };
        let offset = random.below(7) * MIB;
        client.begin_write(offset, &pattern(kill, 300_032));
        // Somewhere in the middle of it.
        let (start, wait) = (Instant::now(), Duration::from_nanos(random.below(300_000)));
        while start.elapsed() < wait {
            std::hint::spin_loop();
        }
        let before = victim.record();
        victim.kill_card();
        assert_eq!(client.reply(), 0, "kill {kill}");
        victim.wait_until("the card was replaced", |record| {
            record.running && record.restarts > before.restarts
        });
        assert!(client.read(offset, 300_032) == pattern(kill, 300_032), "kill {kill}");
    }
    // The successors share it without any new agreement.
    pair.wait_shared();
    assert_eq!(client.flush(), 0);
    assert_eq!(pair.lender.record().restarts + pair.borrower.record().restarts, KILLS as u32);
}

pub(crate) fn find_a_new_agent() {
    let place = Scratch::new("new-agent");
    let image = image(&place);
    let mut pair = Pair::start_sharing(&image, &place.path(""), [true, true]);
    let mut client = Client::connect(&pair.socket);
    pair.wait_shared();
    assert_eq!(client.write(MIB, &pattern(1, 65_536)), 0);
    let port = pair.lender.port();
    pair.restart_lender(&image, port);
    assert!(client.read(MIB, 65_536) == pattern(1, 65_536));
    pair.wait_shared();
    assert_eq!(client.write(MIB, &pattern(2, 65_536)), 0);
    assert!(client.read(MIB, 65_536) == pattern(2, 65_536));
}

/// The lender begins anew on another port: its borrower cannot find it there, and is called.
pub(crate) fn are_called_by_a_lender_that_has_moved() {
    let place = Scratch::new("moved");
    let image = image(&place);
    let mut pair = Pair::start(&image, &place.path(""));
    let mut client = Client::connect(&pair.socket);
    assert_eq!(client.write(MIB, &pattern(1, 65_536)), 0);
    pair.wait_located();
    let before = pair.lender.port();
    pair.restart_lender(&image, 0);
    assert_ne!(pair.lender.port(), before);
    assert!(client.read(MIB, 65_536) == pattern(1, 65_536));
    assert_eq!(client.write(MIB, &pattern(2, 65_536)), 0);
    assert!(client.read(MIB, 65_536) == pattern(2, 65_536));
}

/// A loan that was given up without its lender has no memory any more.
/// Both cards go on, and share their memory for as long as they hear of each other: another loan finds it there.
pub(crate) fn that_are_abandoned_go_on() {
    let place = Scratch::new("abandoned");
    let pair = Pair::start_sharing(&image(&place), &place.path(""), [true, true]);
    pair.wait_shared();
    pair.borrower.abandon();
    pair.borrower.wait_until("the place is vacant", |_| pair.borrower.is_vacant());
    assert_eq!(pair.lender.memory(), Some(true));
    assert_eq!((pair.lender.record().restarts, pair.borrower.record().restarts), (0, 0));
}

pub(crate) fn that_do_not_want_to_share_nothing() {
    for wants in [[false, true], [true, false]] {
        let place = Scratch::new(if wants[0] { "unwilling-borrower" } else { "unwilling-lender" });
        let pair = Pair::start_sharing(&image(&place), &place.path(""), wants);
        let mut client = Client::connect(&pair.socket);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) {
            assert_eq!(client.write(MIB, &pattern(1, 65_536)), 0);
            assert_eq!([pair.lender.memory(), pair.borrower.memory()], [None, None]);
        }
    }
}

/// Whoever calls a node and knows no key of the channel is turned away, whatever it says; loans go on, and the log is
/// not filled.
pub(crate) fn without_the_key_get_nothing() {
    let place = Scratch::new("no-key");
    let pair = Pair::start_sharing(&image(&place), &place.path(""), [true, true]);
    let mut client = Client::connect(&pair.socket);
    pair.wait_shared();
    let start = Instant::now();
    let mut random = Random::new(7);
    let mut sockets = Vec::new();
    for attempt in 0..200_usize {
        let Some(socket) = call() else {
            sockets.clear();
            continue;
        };
        // A call, and then a proof of nothing; or noise.
        let mut message = impostor();
        if attempt % 3 == 0 {
            message.truncate(random.index(message.len()) + 1);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&socket, &message, flags);
        let _ = rustix::net::send(&socket, &[0; 32], flags);
        sockets.push(socket);
    }
    assert_eq!(client.write(MIB, &pattern(1, 65_536)), 0);
    assert!(client.read(MIB, 65_536) == pattern(1, 65_536));
    assert_eq!([pair.lender.memory(), pair.borrower.memory()], [Some(true); 2], "the agreement stands");
    assert_eq!((pair.lender.record().restarts, pair.borrower.record().restarts), (0, 0));
    // Those above were perhaps turned away unheard, or gone when they were answered.
    drop(sockets);
    let count = || log::count("passes itself off as a node that it is not");
    pair.lender.wait_until("a patient caller is turned away", |_| {
        call_patiently();
        count() > 0
    });
    let lines = count();
    let most = 1 + start.elapsed().as_secs() as usize;
    assert!((1..=most).contains(&lines), "{lines} lines in {:?}", start.elapsed());
}

/// Who of the two calls, and who is called: the smaller id calls.
fn caller_and_called() -> [NodeId; 2] {
    let mut ids = [lender_key().id(), borrower_key().id()];
    ids.sort();
    ids
}

/// A call that names both nodes.
fn impostor() -> Vec<u8> {
    let [caller, called] = caller_and_called();
    let mut message = Vec::from(b"CWSHARE4");
    message.extend(called.0);
    message.extend(caller.0);
    message.extend(1_u64.to_le_bytes());
    message.extend([0; 32]);
    message
}

/// Calls, and proves nothing when it is answered.
fn call_patiently() {
    let Some(socket) = call() else { return };
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let _ = rustix::net::send(&socket, &impostor(), flags);
    let timeout = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&timeout));
    let _ = rustix::net::send(&socket, &[0; 32], flags);
}

fn call() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let name = format!("causeway/{}", caller_and_called()[1]);
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    rustix::net::connect(&socket, &address).ok().map(|()| socket)
}

/// A peer that writes anything anywhere in the memory that it shares hurts its own loan at most: no card dies, no agent
/// gives up, and another loan goes on.
pub(crate) fn that_write_rubbish_hurt_themselves() {
    let (place, bystanders) = (Scratch::new("rubbish"), Scratch::new("bystanders"));
    let bystander = Pair::start_sharing(&image(&bystanders), &bystanders.path(""), [false, false]);
    let pair = Pair::start_sharing(&image(&place), &place.path(""), [true, true]);
    let mut by = Client::connect(&bystander.socket);
    let mut victim = Client::connect(&pair.socket);
    pair.wait_shared();
    let end = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&end);
    let traffic = std::thread::spawn(move || {
        let mut writes = 0;
        while !ended.load(Ordering::Relaxed) && victim.try_write(0, &pattern(writes, 65_536)).is_ok() {
            writes += 1;
        }
        writes
    });
    let mut random = Random::new(3);
    let start = Instant::now();
    let mut rounds = 0_u64;
    while start.elapsed() < Duration::from_secs(4) {
        rounds += 1;
        // Whenever the two have agreed anew, that is spoilt too.
        let memory = shared_memory();
        for _ in 0..if memory.is_some() { 200 } else { 0 } {
            // The positions of both rings more often than what lies between.
            let ring = random.below(2) * (MEMORY_BYTES as u64 / 2);
            let reach = if random.below(8) == 0 { MEMORY_BYTES as u64 / 2 } else { 4096 + 64 };
            let at = (ring + random.below(reach)) / 8 * 8;
            // SAFETY: inside of the mapping and aligned; the memory is shared and both ends expect anything there.
            let word = unsafe { &*memory.as_ref().unwrap().at::<AtomicU64>(at as usize) };
            let value = if random.chance(500) { random.below(1 << 20) & !63 } else { random.next_u64() };
            word.store(value, Ordering::Relaxed);
        }
        let seed = rounds % 50;
        assert_eq!(by.write(seed * 65_536, &pattern(seed, 65_536)), 0);
        assert!(by.read(seed * 65_536, 65_536) == pattern(seed, 65_536), "a bystander's data");
    }
    end.store(true, Ordering::Relaxed);
    println!("{rounds} rounds of rubbish, {} writes before the loan had enough", traffic.join().unwrap());
    for node in [&pair.lender, &pair.borrower, &bystander.lender, &bystander.borrower] {
        assert_eq!(node.record().restarts, 0, "a card has died of it");
        assert!(node.record().running);
    }
}

/// The memory that the agents, which are threads of this process, have agreed on.
fn shared_memory() -> Option<Mapping> {
    let found = (3..256).find_map(|number| {
        // SAFETY: only to be copied; whoever owns it goes on doing so.
        let fd = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned().ok()?;
        let seals = rustix::fs::fcntl_get_seals(&fd).ok()?;
        let is_sealed = seals.contains(rustix::fs::SealFlags::SHRINK);
        (is_sealed && rustix::fs::fstat(&fd).ok()?.st_size == MEMORY_BYTES).then_some(fd)
    });
    Mapping::shared(found?.as_fd()).ok()
}

/// Requests with pauses that are long enough for both cards to fall asleep: each is woken, and answers without any
/// timer.
pub(crate) fn that_sleep_are_woken() {
    let place = Scratch::new("sleepers");
    let pair = Pair::start_sharing(&image(&place), &place.path(""), [true, true]);
    let mut client = Client::connect(&pair.socket);
    pair.wait_shared();
    let mut latencies: Vec<Duration> = (0..200)
        .map(|request| {
            std::thread::sleep(Duration::from_millis(3));
            let start = Instant::now();
            assert_eq!(client.write(request % 64 * 4096, &pattern(request, 4096)), 0);
            start.elapsed()
        })
        .collect();
    latencies.sort();
    // Who is not woken is helped by a probe, later than this. A busy machine makes nearly all slow, but not all.
    let quick = latencies[2];
    assert!(quick < Duration::from_micros(1_200), "requests wait for a timer: {quick:?}, {latencies:?}");
}
