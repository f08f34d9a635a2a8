//! The table of all cases.

use program::exit::Failure;

use super::case::{
    Better, Case, Drives, GuestCase, Kind, LoansCase, Measure, Medium, Paper, Setup, Target, Traffic,
    Transport, Work,
};
use super::forwarding::{Between, Measure as Measured};

/// In place of a name: all that the papers have measured.
pub(super) const PAPERS: &str = "papers";

/// The cases with these names, in their order here; for none all but those that are measured only when asked for.
pub(super) fn select(names: &[String]) -> Result<Vec<&'static Case>, Failure> {
    let unknown = names.iter().find(|name| *name != PAPERS && !CASES.iter().any(|case| case.id == **name));
    if let Some(unknown) = unknown {
        let known: Vec<_> = CASES.iter().map(|case| case.id).collect();
        return Err(Failure::usage(format_args!(
            "there is no case `{unknown}`; there are {PAPERS}, {}",
            known.join(", ")
        )));
    }
    let is_named = |case: &Case, name: &String| name == case.id || name == PAPERS && case.paper.is_some();
    let is_chosen = |case: &&Case| match names {
        [] => !case.only_asked,
        names => names.iter().any(|name| is_named(case, name)),
    };
    Ok(CASES.iter().filter(is_chosen).collect())
}

/// The copies of a byte that the card's own driver reads, from a medium in memory, in their order. They were found by
/// reading the code along its way, not measured; sealing and opening work in place and are none.
const NATIVE_COPIES: &[&str] = &[
    "medium to the lender's page (io::files)",
    "page to frame (link::record)",
    "frame to socket buffer: sendmmsg (io::rail::send)",
    "socket buffer to receive buffer: recvmmsg (io::rail::receive)",
    "receive buffer to the borrower's page (base::ledger::pages)",
];

/// The same through memory that both cards share.
const SHM_COPIES: &[&str] = &[
    NATIVE_COPIES[0],
    "page to the shared ring (link::record)",
    "shared ring to the reader's frame (io::shm::ring)",
    "frame to the borrower's page (base::ledger::pages)",
];

/// The same for a client of the NBD socket.
const NBD_COPIES: &[&str] = &[
    NATIVE_COPIES[0],
    NATIVE_COPIES[1],
    NATIVE_COPIES[2],
    NATIVE_COPIES[3],
    NATIVE_COPIES[4],
    "page to the NBD socket: sendmsg (io::stream_socket)",
    "NBD socket to the client's memory: recv in the client",
];

/// Without a fabric.
const DIRECT_COPIES: &[&str] = &[NATIVE_COPIES[0], "the device's page to the host's page (io::native)"];

/// The same for a guest's own driver, which has no page of the card's in between.
const GUEST_COPIES: &[&str] = &[
    NATIVE_COPIES[0],
    NATIVE_COPIES[1],
    NATIVE_COPIES[2],
    NATIVE_COPIES[3],
    "receive buffer to the guest's page (io::guest_memory)",
];

const GUEST_SHM_COPIES: &[&str] =
    &[SHM_COPIES[0], SHM_COPIES[1], SHM_COPIES[2], "frame to the guest's page (io::guest_memory)"];

const SYSTEM_CALL_COPIES: &[&str] = &["medium to the reader's memory: preadv"];

const READ: u8 = 0;
const MIXED: u8 = 30;
const WRITE: u8 = 100;
const RANDOM: bool = false;
const SEQUENTIAL: bool = true;
/// Requests under way at each module of a flash card, as in the paper.
const FLASH_DEPTH: u16 = 64;
/// What the rates of a flash card are divided by: so much slower, four of them are what UDP carries on two cores.
const FLASH_SCALE: u64 = 8;

const INSECURE: Transport = Transport::Udp { sealed: false };
const SEALED: Transport = Transport::Udp { sealed: true };
const NBD_SEALED: Transport = Transport::Nbd { sealed: true };
const NBD_INSECURE: Transport = Transport::Nbd { sealed: false };
const PLAIN: Transport = Transport::Nbdkit { tls: false };
const TLS: Transport = Transport::Nbdkit { tls: true };

const fn work(bytes: u32, write_percent: u8, sequential: bool, depth: u16) -> Work {
    Work { bytes, write_percent, sequential, depth }
}

const fn traffic(id: &'static str, ours: Transport, peer: Transport, work: Work) -> Case {
    let copies = match ours {
        Transport::Native => DIRECT_COPIES,
        Transport::Udp { .. } => NATIVE_COPIES,
        Transport::Shm => SHM_COPIES,
        Transport::Nbd { .. } => NBD_COPIES,
        Transport::SystemCalls | Transport::Nbdkit { .. } => SYSTEM_CALL_COPIES,
    };
    let ours = Setup { transport: ours, drives: Drives::Image };
    let peer = Setup { transport: peer, drives: Drives::Image };
    Case {
        id,
        kind: Kind::Traffic(Traffic { ours, peer, work, measure: Measure::Rate }),
        unit: "IOPS",
        better: Better::Higher,
        target: None,
        rounds: 5,
        copies,
        paper: None,
        only_asked: false,
    }
}

/// Flash cards over UDP, beside the same without a fabric.
const fn flash(id: &'static str, cards: usize, bytes: u32, write_percent: u8, sequential: bool) -> Case {
    let drives = Drives::Flash { modules: 2 * cards, hosts: 1, scale: FLASH_SCALE };
    let case = traffic(id, INSECURE, Transport::Native, work(bytes, write_percent, sequential, FLASH_DEPTH));
    case.on(drives, drives)
}

/// The same work on one, two and four flash cards, with one target; more than one only where somebody asks. Names and
/// rows are made of literals, which no function could join.
macro_rules! cards {
    ($id:literal, ($($work:expr),*), $target:expr, $figure:expr, $row:literal, $results:expr) => {{
        const RESULTS: [&str; 3] = $results;
        let one = flash($id, 1, $($work),*).at_least($target);
        let two = flash(concat!($id, "-2-cards"), 2, $($work),*).at_least($target).asked();
        let four = flash(concat!($id, "-4-cards"), 4, $($work),*).at_least($target).asked();
        [
            one.paper($figure, concat!($row, "1 card"), RESULTS[0]),
            two.paper($figure, concat!($row, "2 cards"), RESULTS[1]),
            four.paper($figure, concat!($row, "4 cards"), RESULTS[2]),
        ]
    }};
}

/// Flash cards over UDP: shared, beside as many with a host each. The totals are to be the same, but for 2 %.
const fn shared(id: &'static str, ours: (usize, usize), peer: (usize, usize), write_percent: u8) -> Case {
    let ours = Drives::Flash { modules: 2 * ours.0, hosts: ours.1, scale: FLASH_SCALE };
    let peer = Drives::Flash { modules: 2 * peer.0, hosts: peer.1, scale: FLASH_SCALE };
    let case = traffic(id, INSECURE, INSECURE, work(65536, write_percent, SEQUENTIAL, FLASH_DEPTH));
    case.on(ours, peer).at_least(0.98)
}

impl Case {
    /// Wherever the cores are.
    const fn at_least(self, ratio: f64) -> Self {
        self.near_and_far(ratio, ratio)
    }

    const fn near_and_far(self, near: f64, far: f64) -> Self {
        Self { target: Some(Target::Ratio { near, far: Some(far) }), ..self }
    }

    const fn near(self, near: f64) -> Self {
        Self { target: Some(Target::Ratio { near, far: None }), ..self }
    }

    const fn on(self, ours: Drives, peer: Drives) -> Self {
        let Kind::Traffic(traffic) = self.kind else { return self };
        let traffic = Traffic {
            ours: Setup { drives: ours, ..traffic.ours },
            peer: Setup { drives: peer, ..traffic.peer },
            ..traffic
        };
        Self { kind: Kind::Traffic(traffic), ..self }
    }

    const fn latency(self) -> Self {
        let Kind::Traffic(traffic) = self.kind else { return self };
        let kind = Kind::Traffic(Traffic { measure: Measure::Latency, ..traffic });
        Self { kind, unit: "us", better: Better::Lower, ..self }
    }

    const fn paper(self, place: &'static str, row: &'static str, result: &'static str) -> Self {
        Self { paper: Some(Paper { place, row, result }), ..self }
    }

    const fn asked(self) -> Self {
        Self { only_asked: true, ..self }
    }
}

const fn recovery(id: &'static str, medium: Medium, target_ms: f64) -> Case {
    Case {
        kind: Kind::Recovery(medium),
        unit: "ms",
        better: Better::Lower,
        target: Some(Target::Median(target_ms)),
        rounds: 100,
        ..plain(id)
    }
}

const fn idle(id: &'static str, kind: Kind, unit: &'static str, target: f64) -> Case {
    Case { kind, unit, better: Better::Lower, target: Some(Target::Median(target)), ..plain(id) }
}

/// Many loans, beside one.
const fn loans(id: &'static str, case: LoansCase, transport: Transport) -> Case {
    let (unit, target, rounds) = match case {
        LoansCase::IdleCpu => ("% of a core", 1.0, 5),
        LoansCase::IdleMemory => ("KiB a loan", 256.0, 5),
        LoansCase::Recovery => ("ms", 10.0, 100),
    };
    Case { rounds, ..idle(id, Kind::Loans(case, transport), unit, target) }
}

const fn attach_gap(id: &'static str, transport: Transport) -> Case {
    Case { kind: Kind::AttachGap(transport), unit: "ms", better: Better::Lower, ..plain(id) }.at_least(0.9)
}

const fn manager_kill(id: &'static str, transport: Transport) -> Case {
    let kind = Kind::ManagerKill(transport);
    Case { kind, unit: "ms", better: Better::Lower, rounds: 10, ..plain(id) }.at_least(0.9)
}

const fn forwarding(id: &'static str, between: Between, measure: Measured) -> Case {
    let (unit, better, target) = match measure {
        Measured::Frames => ("frames/s", Better::Higher, 0.8),
        // At most one and a half times as much as the loop adds.
        Measured::RoundTrip => ("us", Better::Lower, 0.667),
    };
    // Interfaces take a network of their own.
    let only_asked = matches!(between, Between::Ethernet);
    Case { kind: Kind::Forwarding(between, measure), unit, better, only_asked, ..plain(id) }.at_least(target)
}

const fn copy(id: &'static str, write: bool) -> Case {
    Case { kind: Kind::Copy { write }, unit: "s", better: Better::Lower, copies: NBD_COPIES, ..plain(id) }
}

/// With a virtual machine.
const fn guest(id: &'static str, case: GuestCase, unit: &'static str, better: Better) -> Case {
    Case { kind: Kind::Guest(case), unit, better, ..plain(id) }
}

const fn guest_traffic(id: &'static str, transport: Transport, work: Work) -> Case {
    let copies = if matches!(transport, Transport::Shm) { GUEST_SHM_COPIES } else { GUEST_COPIES };
    Case { copies, ..guest(id, GuestCase::Traffic(transport, work), "IOPS", Better::Higher) }
}

/// What the others begin with.
const fn plain(id: &'static str) -> Case {
    Case {
        id,
        kind: Kind::IdleCpu,
        unit: "",
        better: Better::Higher,
        target: None,
        rounds: 5,
        copies: &[],
        paper: None,
        only_asked: false,
    }
}

const CALLS: Transport = Transport::SystemCalls;
const FIGURES_10: &str = "PCIeOE figures 10 and 11: 512 B random, IOPS";
const FIGURES_12: &str = "PCIeOE figures 12 and 13: 4 KiB random, 70 % reads, IOPS";
const FIGURES_14: &str = "PCIeOE figures 14 and 15: 64 KiB sequential";
const FIGURE_16: &str = "PCIeOE figure 16: oversubscription, 64 KiB sequential";
const FIGURE_6: &str = "ExpressEther figure 6: a file of 712 MB is copied";
const DX: &str = "Dolphin DX: a device in another box";

/// All cases.
pub(super) static CASES: [Case; count(PARTS)] = joined(PARTS);

const PARTS: &[&[Case]] = &[TRAFFIC, FLASH[0], FLASH[1], FLASH[2], FLASH[3], FLASH[4], GUESTS, OTHERS];

const fn count(mut parts: &[&[Case]]) -> usize {
    let mut count = 0;
    while let [part, rest @ ..] = parts {
        (count, parts) = (count + part.len(), rest);
    }
    count
}

/// The parts one after the other.
const fn joined<const N: usize>(mut parts: &[&[Case]]) -> [Case; N] {
    let mut all = [plain(""); N];
    let mut at = 0;
    while let [part, rest @ ..] = parts {
        let mut part = *part;
        while let [case, behind @ ..] = part {
            all[at] = *case;
            (at, part) = (at + 1, behind);
        }
        parts = rest;
    }
    all
}

/// Recoveries, and one drive beside a yardstick or a peer.
const TRAFFIC: &[Case] = &[
    recovery("recovery-memory", Medium::Memory, 5.0),
    recovery("recovery-disk", Medium::Disk, 20.0),
    // The yardstick.
    traffic("native-512-read-qd1", Transport::Native, CALLS, work(512, READ, RANDOM, 1)),
    traffic("native-512-read-qd32", Transport::Native, CALLS, work(512, READ, RANDOM, 32)),
    traffic("native-512-write-qd1", Transport::Native, CALLS, work(512, WRITE, RANDOM, 1)),
    traffic("native-512-write-qd32", Transport::Native, CALLS, work(512, WRITE, RANDOM, 32)),
    traffic("native-512-mixed-qd1", Transport::Native, CALLS, work(512, MIXED, RANDOM, 1)),
    traffic("native-512-mixed-qd32", Transport::Native, CALLS, work(512, MIXED, RANDOM, 32)),
    traffic("native-4k-read-qd1", Transport::Native, CALLS, work(4096, READ, RANDOM, 1)),
    traffic("native-4k-read-qd32", Transport::Native, CALLS, work(4096, READ, RANDOM, 32)).at_least(0.7),
    traffic("native-4k-write-qd1", Transport::Native, CALLS, work(4096, WRITE, RANDOM, 1)),
    traffic("native-4k-write-qd32", Transport::Native, CALLS, work(4096, WRITE, RANDOM, 32)).at_least(0.7),
    traffic("native-4k-mixed-qd1", Transport::Native, CALLS, work(4096, MIXED, RANDOM, 1)),
    traffic("native-4k-mixed-qd32", Transport::Native, CALLS, work(4096, MIXED, RANDOM, 32)).at_least(0.7),
    traffic("native-64k-read-qd1", Transport::Native, CALLS, work(65536, READ, RANDOM, 1)),
    traffic("native-64k-read-qd32", Transport::Native, CALLS, work(65536, READ, RANDOM, 32)).at_least(0.7),
    traffic("native-64k-write-qd1", Transport::Native, CALLS, work(65536, WRITE, RANDOM, 1)),
    traffic("native-64k-write-qd32", Transport::Native, CALLS, work(65536, WRITE, RANDOM, 32)).at_least(0.7),
    traffic("native-64k-mixed-qd1", Transport::Native, CALLS, work(65536, MIXED, RANDOM, 1)),
    traffic("native-64k-mixed-qd32", Transport::Native, CALLS, work(65536, MIXED, RANDOM, 32)).at_least(0.7),
    traffic("native-udp-insecure-4k-read-qd1-vs-calls", INSECURE, CALLS, work(4096, READ, RANDOM, 1)),
    traffic("native-udp-insecure-4k-read-qd32-vs-calls", INSECURE, CALLS, work(4096, READ, RANDOM, 32)),
    traffic("native-udp-insecure-64k-read-qd32-vs-calls", INSECURE, CALLS, work(65536, READ, RANDOM, 32)),
    // Shared memory between two nodes, beside the same without a fabric.
    traffic("shm-512-read-qd1", Transport::Shm, Transport::Native, work(512, READ, RANDOM, 1)),
    traffic("shm-512-read-qd32", Transport::Shm, Transport::Native, work(512, READ, RANDOM, 32)).near(0.85),
    traffic("shm-4k-read-qd1", Transport::Shm, Transport::Native, work(4096, READ, RANDOM, 1)),
    traffic("shm-4k-read-qd32", Transport::Shm, Transport::Native, work(4096, READ, RANDOM, 32)).near(0.85),
    traffic("shm-4k-mixed-qd32", Transport::Shm, Transport::Native, work(4096, MIXED, RANDOM, 32)).near(0.85),
    traffic("shm-64k-read-qd1", Transport::Shm, Transport::Native, work(65536, READ, RANDOM, 1)),
    traffic("shm-64k-read-qd32", Transport::Shm, Transport::Native, work(65536, READ, RANDOM, 32)).near(0.95),
    traffic("shm-64k-write-qd32", Transport::Shm, Transport::Native, work(65536, WRITE, RANDOM, 32))
        .near(0.95),
    traffic("shm-4k-read-qd32-vs-calls", Transport::Shm, CALLS, work(4096, READ, RANDOM, 32)),
    traffic("shm-64k-read-qd32-vs-calls", Transport::Shm, CALLS, work(65536, READ, RANDOM, 32)),
    // Insecure UDP beside nbdkit.
    traffic("native-udp-insecure-4k-read-qd1", INSECURE, PLAIN, work(4096, READ, RANDOM, 1)).at_least(3.0),
    traffic("native-udp-insecure-4k-read-qd4", INSECURE, PLAIN, work(4096, READ, RANDOM, 4)),
    traffic("native-udp-insecure-4k-read-qd16", INSECURE, PLAIN, work(4096, READ, RANDOM, 16)),
    traffic("native-udp-insecure-4k-read-qd32", INSECURE, PLAIN, work(4096, READ, RANDOM, 32)),
    traffic("native-udp-insecure-4k-read-qd64", INSECURE, PLAIN, work(4096, READ, RANDOM, 64)),
    traffic("native-udp-insecure-4k-mixed-qd32", INSECURE, PLAIN, work(4096, MIXED, RANDOM, 32))
        .at_least(3.0),
    traffic("native-udp-insecure-64k-read-qd16", INSECURE, PLAIN, work(65536, READ, SEQUENTIAL, 16))
        .near_and_far(1.5, 1.0),
    traffic("native-udp-insecure-64k-write-qd16", INSECURE, PLAIN, work(65536, WRITE, SEQUENTIAL, 16))
        .near_and_far(1.3, 1.0),
    // Sealed UDP beside nbdkit without and with TLS.
    traffic("native-udp-sealed-4k-read-qd1", SEALED, PLAIN, work(4096, READ, RANDOM, 1)).at_least(2.0),
    traffic("native-udp-sealed-4k-read-qd32", SEALED, PLAIN, work(4096, READ, RANDOM, 32)),
    traffic("native-udp-sealed-4k-mixed-qd32", SEALED, PLAIN, work(4096, MIXED, RANDOM, 32)).at_least(2.0),
    traffic("native-udp-sealed-64k-read-qd16", SEALED, PLAIN, work(65536, READ, SEQUENTIAL, 16))
        .at_least(0.9),
    traffic("native-udp-sealed-64k-write-qd16", SEALED, PLAIN, work(65536, WRITE, SEQUENTIAL, 16))
        .at_least(0.9),
    traffic("native-udp-sealed-4k-read-qd1-vs-tls", SEALED, TLS, work(4096, READ, RANDOM, 1)).at_least(3.0),
    traffic("native-udp-sealed-4k-mixed-qd32-vs-tls", SEALED, TLS, work(4096, MIXED, RANDOM, 32))
        .at_least(3.0),
    traffic("native-udp-sealed-64k-read-qd16-vs-tls", SEALED, TLS, work(65536, READ, SEQUENTIAL, 16))
        .at_least(1.5),
    traffic("native-udp-sealed-64k-write-qd16-vs-tls", SEALED, TLS, work(65536, WRITE, SEQUENTIAL, 16))
        .at_least(1.3),
    // fio through our NBD socket, one more hop with the same client, beside nbdkit without and with TLS.
    traffic("nbd-sealed-4k-read-qd1", NBD_SEALED, PLAIN, work(4096, READ, RANDOM, 1)).at_least(0.6),
    traffic("nbd-sealed-4k-read-qd32", NBD_SEALED, PLAIN, work(4096, READ, RANDOM, 32)).at_least(1.0),
    traffic("nbd-sealed-64k-read-qd16", NBD_SEALED, PLAIN, work(65536, READ, SEQUENTIAL, 16)).at_least(1.0),
    traffic("nbd-sealed-64k-write-qd16", NBD_SEALED, PLAIN, work(65536, WRITE, SEQUENTIAL, 16)).at_least(1.0),
    traffic("nbd-sealed-4k-read-qd1-vs-tls", NBD_SEALED, TLS, work(4096, READ, RANDOM, 1)).at_least(0.6),
    traffic("nbd-sealed-4k-read-qd32-vs-tls", NBD_SEALED, TLS, work(4096, READ, RANDOM, 32)).at_least(1.0),
    traffic("nbd-sealed-64k-read-qd16-vs-tls", NBD_SEALED, TLS, work(65536, READ, SEQUENTIAL, 16))
        .at_least(1.0),
    traffic("nbd-sealed-64k-write-qd16-vs-tls", NBD_SEALED, TLS, work(65536, WRITE, SEQUENTIAL, 16))
        .at_least(1.0),
    traffic("nbd-insecure-4k-read-qd1", NBD_INSECURE, PLAIN, work(4096, READ, RANDOM, 1)),
    traffic("nbd-insecure-4k-read-qd32", NBD_INSECURE, PLAIN, work(4096, READ, RANDOM, 32)),
];

/// Flash cards, as the papers have measured them.
const FLASH: [&[Case]; 5] = [
    &cards!(
        "flash-512-read",
        (512, READ, RANDOM),
        0.995,
        FIGURES_10,
        "read, ",
        ["close to 100 %", "close to 100 %", "not valid"]
    ),
    &cards!(
        "flash-512-write",
        (512, WRITE, RANDOM),
        0.995,
        FIGURES_10,
        "write, ",
        ["120 %", "close to 100 %", "not valid"]
    ),
    &cards!("flash-4k-mixed", (4096, MIXED, RANDOM), 0.995, FIGURES_12, "", ["100 +- 0.5 %"; 3]),
    &cards!(
        "flash-64k-read",
        (65536, READ, SEQUENTIAL),
        0.98,
        FIGURES_14,
        "read, ",
        ["83 %", "83 %", "slightly below 83 %"]
    ),
    &cards!("flash-64k-write", (65536, WRITE, SEQUENTIAL), 0.98, FIGURES_14, "write, ", ["90 to 102 %"; 3]),
];

/// Virtual machines. Those that share one follow each other.
const GUESTS: &[Case] = &[
    guest_traffic("guest-4k-read-qd1", SEALED, work(4096, READ, RANDOM, 1)).at_least(0.6),
    guest_traffic("guest-4k-read-qd32", SEALED, work(4096, READ, RANDOM, 32)).at_least(1.0),
    guest_traffic("guest-4k-write-qd32", SEALED, work(4096, WRITE, RANDOM, 32)).at_least(1.0),
    guest_traffic("guest-64k-read-qd16", SEALED, work(65536, READ, SEQUENTIAL, 16)).at_least(1.0),
    guest_traffic("guest-64k-write-qd16", SEALED, work(65536, WRITE, SEQUENTIAL, 16)).at_least(1.0),
    guest("guest-register-read", GuestCase::Registers, "us", Better::Lower),
    Case {
        target: Some(Target::Median(20.0)),
        rounds: 20,
        ..guest("guest-recovery", GuestCase::Recovery, "ms", Better::Lower)
    },
    guest_traffic("guest-shm-4k-read-qd1", Transport::Shm, work(4096, READ, RANDOM, 1)).at_least(0.6),
    guest_traffic("guest-shm-4k-read-qd32", Transport::Shm, work(4096, READ, RANDOM, 32)).at_least(1.0),
    guest_traffic("guest-shm-4k-write-qd32", Transport::Shm, work(4096, WRITE, RANDOM, 32)).at_least(1.0),
    guest_traffic("guest-shm-64k-read-qd16", Transport::Shm, work(65536, READ, SEQUENTIAL, 16)).at_least(1.0),
    guest_traffic("guest-shm-64k-write-qd16", Transport::Shm, work(65536, WRITE, SEQUENTIAL, 16))
        .at_least(1.0),
    guest("guest-memory-4g", GuestCase::Memory, "MiB", Better::Lower).at_least(0.95),
    guest("guest-map-4g", GuestCase::MapTime, "ms", Better::Lower).at_least(0.8),
];

/// What else the papers have measured, and nodes that do nothing.
const OTHERS: &[Case] = &[
    shared("flash-two-hosts-one-card-read", (1, 2), (1, 1), READ).paper(
        FIGURE_16,
        "read, 2 hosts on 1 card",
        "slightly above 1 host on 1 card",
    ),
    shared("flash-two-hosts-one-card-write", (1, 2), (1, 1), WRITE).paper(
        FIGURE_16,
        "write, 2 hosts on 1 card",
        "slightly above 1 host on 1 card",
    ),
    shared("flash-one-host-two-cards-read", (2, 1), (2, 2), READ).paper(
        FIGURE_16,
        "read, 1 host on 2 cards",
        "above 1 host on 1 card, not twice",
    ),
    shared("flash-one-host-two-cards-write", (2, 1), (2, 2), WRITE).paper(
        FIGURE_16,
        "write, 1 host on 2 cards",
        "above 1 host on 1 card, not twice",
    ),
    copy("copy-read", false).paper(FIGURE_6, "read", "as fast as direct"),
    copy("copy-write", true).paper(FIGURE_6, "write", "at most 16 % slower than direct"),
    traffic("added-latency", INSECURE, Transport::Native, work(512, READ, RANDOM, 1)).latency().paper(
        DX,
        "latency of a 512 B read",
        "0 to 1.5 us more",
    ),
    traffic("lost-bandwidth", INSECURE, Transport::Native, work(65536, READ, SEQUENTIAL, 32)).paper(
        DX,
        "bandwidth of 64 KiB reads",
        "1 to 5 % less",
    ),
    idle("idle-cpu", Kind::IdleCpu, "% of a core", 1.0),
    idle("idle-memory", Kind::IdleMemory, "MiB", 64.0),
    loans("loans-256-idle-cpu", LoansCase::IdleCpu, SEALED),
    loans("loans-256-idle-memory", LoansCase::IdleMemory, SEALED),
    loans("loans-256-recovery", LoansCase::Recovery, SEALED),
    attach_gap("attach-gap", SEALED),
    loans("shm-loans-256-idle-cpu", LoansCase::IdleCpu, Transport::Shm),
    loans("shm-loans-256-idle-memory", LoansCase::IdleMemory, Transport::Shm),
    loans("shm-loans-256-recovery", LoansCase::Recovery, Transport::Shm),
    attach_gap("shm-attach-gap", Transport::Shm),
    Case { rounds: 20, ..idle("rail-cut-gap", Kind::CutGap, "ms", 5.0) },
    Case { rounds: 100, ..idle("assign", Kind::Assign, "ms", 500.0) },
    manager_kill("manager-kill", SEALED),
    manager_kill("shm-manager-kill", Transport::Shm),
    forwarding("switch-frames", Between::Udp, Measured::Frames),
    forwarding("switch-round-trip", Between::Udp, Measured::RoundTrip),
    forwarding("switch-frames-ethernet", Between::Ethernet, Measured::Frames),
    forwarding("switch-round-trip-ethernet", Between::Ethernet, Measured::RoundTrip),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_kebab_case() {
        let is_plain =
            |id: &str| id.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        for (index, case) in CASES.iter().enumerate() {
            assert!(is_plain(case.id), "{}", case.id);
            assert!(CASES[..index].iter().all(|other| other.id != case.id), "{}", case.id);
        }
    }

    #[test]
    fn rounds_suffice_and_targets_are_those_of_one_card() {
        assert!(CASES.iter().all(|case| case.rounds >= 5));
        let target = |id: &str| CASES.iter().find(|case| case.id == id).unwrap().target;
        let mut several = 0;
        for case in &CASES {
            for cards in ["-2-cards", "-4-cards"] {
                let Some(one) = case.id.strip_suffix(cards) else { continue };
                several += 1;
                assert!(
                    case.only_asked && case.target.is_some() && case.target == target(one),
                    "{}",
                    case.id
                );
            }
        }
        assert_eq!(several, 10);
    }

    #[test]
    fn our_nbd_socket_has_the_same_targets_beside_nbdkit_with_tls() {
        let plain = CASES.iter().filter(|case| case.id.starts_with("nbd-sealed-"));
        let (tls, plain): (Vec<&Case>, Vec<&Case>) = plain.partition(|case| case.id.ends_with("-vs-tls"));
        assert_eq!((tls.len(), plain.len()), (4, 4));
        for (tls, plain) in tls.iter().zip(plain) {
            assert_eq!(tls.id.strip_suffix("-vs-tls"), Some(plain.id));
            assert!(tls.target.is_some() && tls.target == plain.target, "{}", tls.id);
            let (Kind::Traffic(tls), Kind::Traffic(plain)) = (tls.kind, plain.kind) else { panic!() };
            assert_eq!((tls.ours, tls.work), (plain.ours, plain.work));
            assert_eq!((tls.peer.transport, plain.peer.transport), (TLS, PLAIN));
        }
    }

    #[test]
    fn whoever_goes_over_udp_does_not_share_memory() {
        for case in &CASES {
            let Kind::Traffic(traffic) = case.kind else { continue };
            for transport in [traffic.ours.transport, traffic.peer.transport] {
                let is_network = matches!(transport, Transport::Udp { .. } | Transport::Nbd { .. });
                assert_eq!(
                    transport.options().contains(&crate::local::NETWORK_ONLY),
                    is_network,
                    "{transport:?}"
                );
            }
        }
    }

    #[test]
    fn chosen_cases_are_found_and_others_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let by_default = CASES.iter().filter(|case| !case.only_asked).count();
        assert_eq!(select(&[]).unwrap().len(), by_default);
        let papers = select(&names(&["papers"])).unwrap();
        assert!(papers.iter().all(|case| case.paper.is_some()) && papers.len() >= 23, "{}", papers.len());
        let two = select(&names(&["idle-cpu", "recovery-disk"])).unwrap();
        assert_eq!(two.iter().map(|case| case.id).collect::<Vec<_>>(), ["recovery-disk", "idle-cpu"]);
        let failure = select(&names(&["idle"])).unwrap_err();
        assert_eq!(failure.exit(), program::exit::Exit::Usage);
        assert!(failure.message().contains("idle-memory"));
    }
}
