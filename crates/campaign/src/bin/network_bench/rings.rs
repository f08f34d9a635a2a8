//! Frames between two interfaces, handed over many in a call as rails do (`sendmmsg`, `recvmmsg`), beside rings of
//! memory that are shared with the kernel (packet_mmap, TPACKET_V2 and V3).
//!
//! One thread sends and receives, in a network namespace of its own, so that what a frame costs is all that counts.
#![expect(unsafe_code, reason = "rings of packet sockets have no safe form here")]

use super::{Round, json};
use campaign::Error;
use campaign::process::run;
use campaign::world::Mesh;
use io::address::RailAddress;
use io::rail::ethernet::{EthernetSocket, Mac};
use io::rail::{Datagram, RailOptions, RailSocket};
use std::ffi::CString;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The first argument of the program where it measures by itself.
pub(super) const CHILD: &str = "__rings";

const ROUND: Duration = Duration::from_millis(700);
/// Bytes of a frame: as many as fit into most networks' packets.
const BYTES: usize = 1400;
/// Frames under way, and handed to the kernel at once.
const WINDOW: usize = 256;
const BATCH: usize = 32;
/// What has not come by then is lost.
const LOST: Duration = Duration::from_millis(50);

const INTERFACES: [&str; 2] = ["ring0", "ring1"];
const MACS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Frames in a second.
    Frames,
    /// How long one takes there and back, in us.
    RoundTrip,
}

/// Of what kind the rings are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// A place for each frame.
    V2 = 1,
    /// Blocks, which the kernel gives when they are full or a millisecond old.
    V3 = 2,
}

/// Ours by calls, the peer's by rings.
pub(super) fn measure(rounds: usize, version: Version, what: What) -> Result<Vec<Round>, Error> {
    let mesh = Mesh::new(1, 1)?;
    let program = std::env::current_exe().map_err(Error::io("cannot find this program"))?;
    let mut command = mesh.machines()[0].command(program);
    let words = [
        if version == Version::V2 { "2" } else { "3" },
        if what == What::Frames { "frames" } else { "trip" },
    ];
    command.arg(CHILD).arg(rounds.to_string()).args(words);
    let told = run(command)?;
    let round = |line: &str| -> Result<Round, Error> {
        let value = json(line)?;
        let of = |key: &str| value[key].as_f64().ok_or_else(|| Error::unexpected(line.to_owned()));
        Ok(Round { ours: of("ours")?, peer: of("peer")? })
    };
    told.lines().map(round).collect()
}

/// Measures in the namespace that this process is in, and prints each round.
pub(super) fn child(arguments: &[String]) -> Result<(), Error> {
    let wrong = || Error::unexpected("usage: __rings ROUNDS 2|3 frames|trip");
    let [rounds, version, what] = arguments else { return Err(wrong()) };
    let rounds: usize = rounds.parse().map_err(|_| wrong())?;
    let version = if version == "2" { Version::V2 } else { Version::V3 };
    let ip = |words: &str| {
        let mut command = Command::new("ip");
        command.args(words.split(' '));
        run(command).map(drop)
    };
    let [one, two] = INTERFACES;
    ip(&format!("link add {one} address {} type veth peer name {two} address {}", MACS[0], MACS[1]))?;
    INTERFACES.iter().try_for_each(|name| ip(&format!("link set {name} up")))?;
    let failed = |error: std::io::Error| Error::io("cannot send frames")(error);
    let mut calls = [Calls::open(0).map_err(failed)?, Calls::open(1).map_err(failed)?];
    let mut rings = [Rings::open(0, version)?, Rings::open(1, version)?];
    for round in 0..rounds {
        let mut value = |is_ours: bool| match (is_ours, what == "frames") {
            (true, true) => frames(&mut calls),
            (false, true) => frames(&mut rings),
            (true, false) => round_trip(&mut calls),
            (false, false) => round_trip(&mut rings),
        };
        let (ours, peer) = match round % 2 {
            0 => (value(true)?, value(false)?),
            _ => {
                let peer = value(false)?;
                (value(true)?, peer)
            }
        };
        println!("{}", serde_json::json!({ "ours": ours, "peer": peer }));
    }
    Ok(())
}

/// One end: hands over so many frames, and takes what has come.
trait End {
    /// How many were taken.
    fn send(&mut self, count: usize, bytes: usize) -> Result<usize, Error>;
    /// How many came, and something of their bytes.
    fn receive(&mut self) -> Result<(usize, u64), Error>;
}

/// Frames in a second, from the first end to the second.
fn frames<E: End>(ends: &mut [E; 2]) -> Result<f64, Error> {
    let (start, mut last) = (Instant::now(), Instant::now());
    let (mut under_way, mut arrived, mut sum) = (0, 0_u64, 0_u64);
    while start.elapsed() < ROUND {
        if under_way + BATCH <= WINDOW {
            under_way += ends[0].send(BATCH, BYTES)?;
        }
        let (received, bytes) = ends[1].receive()?;
        (arrived, sum) = (arrived + received as u64, sum.wrapping_add(bytes));
        if received > 0 {
            (under_way, last) = (under_way.saturating_sub(received), Instant::now());
        } else if last.elapsed() > LOST {
            (under_way, last) = (0, Instant::now());
        }
    }
    std::hint::black_box(sum);
    Ok(arrived as f64 / start.elapsed().as_secs_f64())
}

/// How long a small frame takes there and back, in us.
fn round_trip<E: End>(ends: &mut [E; 2]) -> Result<f64, Error> {
    let (start, mut trips) = (Instant::now(), 0_u32);
    while start.elapsed() < ROUND {
        for way in [0, 1] {
            ends[way].send(1, 200)?;
            let sent = Instant::now();
            while ends[1 - way].receive()?.0 == 0 {
                if sent.elapsed() > LOST {
                    return Err(Error::unexpected("a frame was lost"));
                }
            }
        }
        trips += 1;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(trips))
}

/// As a rail does it.
struct Calls {
    socket: EthernetSocket,
    to: RailAddress,
    frame: Vec<u8>,
}

impl Calls {
    fn open(end: usize) -> std::io::Result<Self> {
        let socket = EthernetSocket::open(INTERFACES[end], &RailOptions::default())?;
        Ok(Self { socket, to: RailAddress::Ethernet(MACS[1 - end]), frame: frame(BYTES) })
    }
}

impl End for Calls {
    fn send(&mut self, count: usize, bytes: usize) -> Result<usize, Error> {
        let parts = [IoSlice::new(&self.frame[..bytes])];
        let batch = [Datagram { to: self.to, parts: &parts }; BATCH];
        self.socket.send_batch(&batch[..count]).map_err(Error::io("cannot send"))
    }

    fn receive(&mut self) -> Result<(usize, u64), Error> {
        let mut sum = 0_u64;
        let received = self.socket.receive(WINDOW, &mut |_, bytes| sum += looked_at(bytes));
        Ok((received.map_err(Error::io("cannot receive"))?.datagrams, sum))
    }
}

/// A header of group 1, and nothing behind it.
fn frame(bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    (frame[0], frame[1], frame[16]) = (1, 3, 1);
    frame
}

fn looked_at(bytes: &[u8]) -> u64 {
    bytes.chunks(64).map(|line| u64::from(line[0])).sum()
}

const PACKET_VERSION: libc::c_int = 10;
const PACKET_RX_RING: libc::c_int = 5;
const PACKET_TX_RING: libc::c_int = 13;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Whose a place is: in a ring to receive by the kernel's if zero, in one to send by ours.
const USER: u32 = 1;
const SEND_REQUEST: u32 = 1;
const FREE: u32 = 0;

/// A place for a frame of a usual MTU.
const PLACE: usize = 2048;
const PLACES: usize = 1024;
/// Of some ten frames, so that few wait in one that is not full.
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = PLACE * PLACES / BLOCK;
/// Where bytes begin in a place to send from: behind `struct tpacket2_hdr`.
const TO_SEND: usize = 32;
/// Ends, tag and protocol before a frame.
const HEAD: usize = 18;

/// The same by rings: one to send, one to receive, each of a socket of its own.
struct Rings {
    version: Version,
    send: Ring,
    receive: Ring,
    head: [u8; HEAD],
    frame: Vec<u8>,
}

/// Memory that is shared with the kernel, until the process ends.
struct Ring {
    socket: OwnedFd,
    memory: *mut u8,
    next: usize,
}

impl Rings {
    fn open(end: usize, version: Version) -> Result<Self, Error> {
        let mut head = [0; HEAD];
        head[..6].copy_from_slice(&MACS[1 - end].0);
        head[6..12].copy_from_slice(&MACS[end].0);
        head[12..].copy_from_slice(&[0x81, 0, 0, 1, 0x88, 0xb5]);
        let send = Ring::open(INTERFACES[end], Version::V2, PACKET_TX_RING)?;
        let receive = Ring::open(INTERFACES[end], version, PACKET_RX_RING)?;
        Ok(Self { version, send, receive, head, frame: frame(BYTES) })
    }
}

impl Ring {
    fn open(interface: &str, version: Version, which: libc::c_int) -> Result<Self, Error> {
        let failed =
            |what: &str| Error::io(format!("cannot {what} for {interface}"))(std::io::Error::last_os_error());
        let name = CString::new(interface).expect("the names of the interfaces here have no zeroes");
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: a plain system call. Protocol 0: nothing comes before the ring is there.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(failed("open a packet socket"));
        }
        // SAFETY: the descriptor was just opened and is nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let set = |option: libc::c_int, value: &[u32]| {
            let len = size_of_val(value) as libc::socklen_t;
            // SAFETY: as many bytes as said, which the call only reads.
            let done = unsafe { libc::setsockopt(fd, libc::SOL_PACKET, option, value.as_ptr().cast(), len) };
            if done == 0 { Ok(()) } else { Err(failed("make a ring")) }
        };
        set(PACKET_VERSION, &[version as u32])?;
        let is_received = which == PACKET_RX_RING;
        if is_received {
            set(PACKET_IGNORE_OUTGOING, &[1])?;
        }
        let sizes = [BLOCK, BLOCKS, PLACE, PLACES].map(|size| size as u32);
        match version {
            Version::V2 => set(which, &sizes)?,
            // A block is given after a millisecond at the latest.
            Version::V3 => set(which, &[&sizes[..], &[1, 0, 0]].concat())?,
        }
        // SAFETY: new memory for a ring of this size.
        let memory = unsafe {
            let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            libc::mmap(std::ptr::null_mut(), PLACE * PLACES, rights, kind, fd, 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(failed("map a ring"));
        }
        // SAFETY: plain C data for which zero bytes are a value.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as libc::sa_family_t;
        at.sll_protocol = if is_received { (libc::ETH_P_ALL as u16).to_be() } else { 0 };
        // SAFETY: the name is a C string, which the call only reads.
        at.sll_ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) } as libc::c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: an address of that length, which the call only reads.
        if unsafe { libc::bind(fd, (&raw const at).cast(), len) } != 0 {
            return Err(failed("bind a packet socket"));
        }
        Ok(Self { socket, memory: memory.cast(), next: 0 })
    }

    /// The word at a place of the ring, which the kernel changes, too.
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= PLACE * PLACES && at.is_multiple_of(4), "inside of the ring");
        // SAFETY: it lies inside of the mapping, which is never unmapped, and is aligned, as just seen.
        unsafe { &*self.memory.add(at).cast::<AtomicU32>() }
    }

    /// Bytes of the ring that the kernel has given.
    fn bytes(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= PLACE * PLACES, "inside of the ring");
        // SAFETY: they lie inside of the mapping, which is never unmapped, and the kernel does not write there now.
        unsafe { std::slice::from_raw_parts(self.memory.add(at), len) }
    }

    fn half(&self, at: usize) -> usize {
        let bytes = self.bytes(at, 2);
        u16::from_ne_bytes([bytes[0], bytes[1]]).into()
    }

    fn number(&self, at: usize) -> usize {
        self.word(at).load(Ordering::Relaxed) as usize
    }
}

impl End for Rings {
    fn send(&mut self, count: usize, bytes: usize) -> Result<usize, Error> {
        let (ring, mut taken) = (&mut self.send, 0);
        for _ in 0..count {
            let at = ring.next * PLACE;
            if ring.word(at).load(Ordering::Acquire) != FREE {
                break;
            }
            // SAFETY: the place is ours, and has room for a frame with what stands before it.
            unsafe {
                let to = ring.memory.add(at + TO_SEND);
                to.copy_from_nonoverlapping(self.head.as_ptr(), HEAD);
                to.add(HEAD).copy_from_nonoverlapping(self.frame[..bytes].as_ptr(), bytes);
            }
            ring.word(at + 4).store((HEAD + bytes) as u32, Ordering::Relaxed);
            ring.word(at).store(SEND_REQUEST, Ordering::Release);
            ring.next = (ring.next + 1) % PLACES;
            taken += 1;
        }
        // SAFETY: no bytes; the kernel looks into the ring.
        let sent = unsafe { libc::send(ring.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
        let error = std::io::Error::last_os_error();
        if sent < 0 && error.kind() != std::io::ErrorKind::WouldBlock {
            return Err(Error::io("cannot send from a ring")(error));
        }
        Ok(taken)
    }

    fn receive(&mut self) -> Result<(usize, u64), Error> {
        let (ring, mut count, mut sum) = (&mut self.receive, 0, 0);
        match self.version {
            Version::V2 => loop {
                let at = ring.next * PLACE;
                if ring.word(at).load(Ordering::Acquire) & USER == 0 {
                    return Ok((count, sum));
                }
                let (len, begin) = (ring.number(at + 8), ring.half(at + 12));
                sum += looked_at(ring.bytes(at + begin, len));
                count += 1;
                ring.word(at).store(0, Ordering::Release);
                ring.next = (ring.next + 1) % PLACES;
            },
            Version::V3 => loop {
                let block = ring.next * BLOCK;
                if ring.word(block + 8).load(Ordering::Acquire) & USER == 0 {
                    return Ok((count, sum));
                }
                let mut at = block + ring.number(block + 16);
                for _ in 0..ring.number(block + 12) {
                    let (len, begin) = (ring.number(at + 12), ring.half(at + 24));
                    sum += looked_at(ring.bytes(at + begin, len));
                    count += 1;
                    at += ring.number(at);
                }
                ring.word(block + 8).store(0, Ordering::Release);
                ring.next = (ring.next + 1) % BLOCKS;
            },
        }
    }
}
