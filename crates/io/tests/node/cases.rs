use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use io::MediumKind;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::Client;
use crate::disk::Scratch;
use crate::pair::Pair;
use crate::skip;

const MIB: u64 = 1 << 20;

pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8).collect()
}

pub(crate) fn disk_through_the_ring() {
    disk_through(MediumKind::Ring);
}

pub(crate) fn disk_through_threads() {
    disk_through(MediumKind::Threads);
}

/// Every kind of request, and a card that dies in between.
fn disk_through(medium: MediumKind) {
    let place = Scratch::new("disk");
    let pair = Pair::start(&place.image(8 * MIB), &place.path(""));
    match pair.lender.medium() {
        Some(MediumKind::Inline) => return skip("the build lies in memory, and there is no disk to use"),
        Some(MediumKind::Threads) if medium == MediumKind::Ring => return skip("io_uring is not available"),
        found => assert_eq!(found, Some(medium)),
    }
    let mut client = Client::connect(&pair.socket);
    assert_eq!(client.bytes, 8 * MIB);
    for seed in 0..16 {
        assert_eq!(client.write(seed * 300_032, &pattern(seed, 200_192)), 0);
        if seed % 4 == 1 {
            assert_eq!(client.flush(), 0);
        }
        if seed % 8 == 3 {
            pair.lender.kill_card();
        }
    }
    pair.lender.wait_until("the card was replaced", |record| record.running && record.restarts > 0);
    for seed in 0..16 {
        assert!(client.read(seed * 300_032, 200_192) == pattern(seed, 200_192), "write {seed}");
    }
    assert_eq!(client.trim(7 * MIB, MIB as usize), 0);
    assert!(client.read(7 * MIB, 4096).iter().all(|byte| *byte == 0));
}

pub(crate) fn full_disk_through_the_ring() {
    const NO_SPACE: u32 = 28;
    let place = match Scratch::ext4("full", 24 * MIB) {
        Ok(place) => place,
        Err(why) => return skip(&why),
    };
    let filler = place.path("filler");
    std::fs::write(&filler, vec![1; 8 << 20]).unwrap();
    let folder = Scratch::new("full-socket");
    let pair = Pair::start(&place.image(64 * MIB), &folder.path(""));
    if pair.lender.medium() != Some(MediumKind::Ring) {
        return skip("io_uring is not available");
    }
    let mut client = Client::connect(&pair.socket);
    let results: Vec<u32> = (0..64)
        .map(|at| client.write(at * MIB, &pattern(at, MIB as usize)))
        .take_while(|end| *end == 0)
        .collect();
    let full_at = results.len() as u64;
    assert!((4..24).contains(&full_at), "the disk took {full_at} MiB");
    assert_eq!(client.write(full_at * MIB, &pattern(full_at, MIB as usize)), NO_SPACE);
    // What was there is there, nobody has died, and space that comes back is used.
    assert_eq!(client.flush(), 0);
    for at in 0..full_at {
        assert!(client.read(at * MIB, MIB as usize) == pattern(at, MIB as usize), "MiB {at}");
    }
    std::fs::remove_file(&filler).unwrap();
    rustix::fs::syncfs(std::fs::File::open(place.path("image")).unwrap()).unwrap();
    assert_eq!(client.write(full_at * MIB, &pattern(full_at, MIB as usize)), 0);
    assert!(client.read(full_at * MIB, MIB as usize) == pattern(full_at, MIB as usize));
    assert_eq!((pair.lender.record().restarts, pair.borrower.record().restarts), (0, 0));
}

pub(crate) fn hanging_disk_leaves_the_agent_awake() {
    // A file system on a loop device on a file system: when the outer one is frozen, the disk of the inner one hangs.
    let disk = match Scratch::ext4("hanging", 64 * MIB) {
        Ok(disk) => disk,
        Err(why) => return skip(&why),
    };
    let place = match disk.ext4_within(32 * MIB) {
        Ok(place) => place,
        Err(why) => return skip(&why),
    };
    let folder = Scratch::new("hanging-socket");
    let pair = Pair::start(&place.image(8 * MIB), &folder.path(""));
    if pair.lender.medium() != Some(MediumKind::Ring) {
        return skip("io_uring is not available");
    }
    let mut client = Client::connect(&pair.socket);
    assert_eq!(client.write(0, &pattern(1, 65536)), 0);
    assert_eq!(client.flush(), 0);
    let frozen = match disk.freeze() {
        Ok(frozen) => frozen,
        Err(why) => return skip(&why),
    };
    client.begin_write(0, &pattern(2, 65536));
    // A card may die before the write has reached the disk; its successor writes it again.
    loop {
        let restarts = pair.lender.record().restarts;
        pair.lender.kill_card();
        let record = pair.lender.wait_until("the card is dead", |record| {
            record.draining.is_some() || record.running && record.restarts > restarts
        });
        if record.draining.is_some() {
            break;
        }
    }
    let (turns, start) = (pair.lender.turns(), Instant::now());
    while pair.lender.turns() < turns + 10 {
        assert!(
            start.elapsed() < Duration::from_secs(15),
            "the agent waits for the disk and for nothing else"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    let record = pair.lender.record();
    assert_eq!(
        (record.running, record.pid),
        (false, None),
        "a card was started while the disk hangs: {record:?}"
    );
    drop(frozen);
    pair.lender.wait_until("the card was replaced", |record| record.running && record.draining.is_none());
    assert_eq!(client.reply(), 0);
    assert!(client.read(0, 65536) == pattern(2, 65536));
}

/// Lowers the number of descriptors this process may have to what it has, until it is dropped.
struct NoDescriptors(Rlimit);

impl NoDescriptors {
    fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        let lowest_free = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let current = Some(lowest_free.as_raw_fd() as u64);
        setrlimit(Resource::Nofile, Rlimit { current, maximum: before.maximum }).unwrap();
        Self(before)
    }
}

impl Drop for NoDescriptors {
    fn drop(&mut self) {
        let before = Rlimit { current: self.0.current, maximum: self.0.maximum };
        setrlimit(Resource::Nofile, before).unwrap();
    }
}

pub(crate) fn start_that_fails_is_tried_again() {
    let place = Scratch::new("restart");
    let pair = Pair::start(&place.image(MIB), &place.path(""));
    let mut client = Client::connect(&pair.socket);
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    pair.borrower.wait_standby();
    let limit = NoDescriptors::new();
    pair.borrower.kill_standby();
    pair.borrower.kill_card();
    let dead = pair.borrower.wait_until("the card is dead", |record| record.restarts == 1);
    pair.borrower.wait_until("a start has failed twice", |record| record.generation >= dead.generation + 2);
    assert!(!pair.borrower.record().running);
    drop(limit);
    pair.borrower.wait_until("the card was replaced", |record| record.running);
    assert!(client.read(0, 4096) == pattern(1, 4096));
}

pub(crate) fn clients_wait_for_descriptors() {
    let place = Scratch::new("accept");
    let pair = Pair::start(&place.image(MIB), &place.path(""));
    // Usable before the limit falls: the first client waits for that.
    drop(Client::connect(&pair.socket));
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .unwrap();
    let limit = NoDescriptors::new();
    rustix::net::connect(socket.as_fd(), &SocketAddrUnix::new(&pair.socket).unwrap()).unwrap();
    let (turns, start) = (pair.borrower.turns(), Instant::now());
    std::thread::sleep(Duration::from_millis(500));
    let rate = (pair.borrower.turns() - turns) as f64 / start.elapsed().as_secs_f64();
    // The driver of the test looks 50 times a second by itself.
    assert!(rate < 200.0, "the agent asks {rate} times a second for a client that it cannot have");
    drop(limit);
    assert_eq!(Client::on(socket).bytes, MIB);
}

pub(crate) fn killed_client_with_a_full_ring_costs_nothing() {
    let place = Scratch::new("hang-up");
    let pair = Pair::start(&place.image(MIB), &place.path(""));
    let mut client = Client::connect(&pair.socket);
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    pair.lender.stop_card();
    client.begin_reads_until_full();
    drop(client);
    let (before, start) = (pair.borrower.card_cpu_time(), Instant::now());
    while start.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let used = pair.borrower.card_cpu_time() - before;
    pair.lender.continue_card();
    assert!(used < Duration::from_millis(150), "the card has used {used:?} of a second for nothing");
    assert!(Client::connect(&pair.socket).read(0, 4096) == pattern(1, 4096));
    assert_eq!((pair.lender.record().restarts, pair.borrower.record().restarts), (0, 0));
}

/// NBD: "The server MUST handle all outstanding requests" when it is told that the client goes, whatever that does
/// then.
pub(crate) fn farewell_loses_nothing_that_was_asked_for_before() {
    const WRITES: u64 = 20;
    let place = Scratch::new("farewell");
    // In memory: what nobody was told of is not kept for a disk's sake.
    let image = std::path::PathBuf::from(format!("/dev/shm/causeway-farewell-{}", std::process::id()));
    std::fs::File::create(&image).unwrap().set_len(MIB).unwrap();
    let mut pair = Pair::start(&image, &place.path(""));
    assert_eq!(Client::connect(&pair.socket).write(0, &pattern(99, 4096)), 0);
    let port = pair.lender.port();
    pair.lender.end();
    let mut client = Client::connect(&pair.socket);
    (0..WRITES).for_each(|at| client.begin_write(at * 4096, &pattern(at, 4096)));
    client.leave();
    // Long enough for the card to notice that it is gone, and for a successor to be told.
    std::thread::sleep(Duration::from_millis(200));
    pair.borrower.kill_card();
    pair.start_lender(&image, port);
    let mut client = Client::connect(&pair.socket);
    let (mut left, start) = ((0..WRITES).collect::<Vec<_>>(), Instant::now());
    while !left.is_empty() && start.elapsed() < Duration::from_secs(10) {
        left.retain(|at| client.read(at * 4096, 4096) != pattern(*at, 4096));
    }
    std::fs::remove_file(&image).unwrap();
    assert!(left.is_empty(), "nothing came of {left:?}");
}
