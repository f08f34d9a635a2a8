//! The relay's process: sockets in the two namespaces that face the machines, and its command loop.
//!
//! The namespace that faces the left machine carries the right machine's addresses, and the other way round. A socket
//! there stands in for a port of the machine it hides; datagrams to it go over a [`Wire`] and leave from the socket
//! that stands in for their sender. So both machines see each other's true addresses and ports.
//!
//! Where nodes use raw Ethernet, the interfaces there are the two ends of one [`Segment`]: each frame of the product's
//! protocol goes over a [`Wire`] as it is, and so do the machines' own addresses.

use super::flood::{CALLERS, Flood, KINDS};
use super::impair::{Datagram, Wire};
use super::segment::Segment;
use crate::Error;
use crate::capture::CaptureWriter;
use crate::world::{Direction, Side, rail_address};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Sockets at most. For one more, that of the port goes which has been silent longest, waiting ones excepted.
const SOCKETS_MAX: usize = 256;

/// Datagrams taken from one socket before the others have their turn.
const BURST: usize = 64;

/// The receive buffer of a socket: a burst of a whole congestion window must fit.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Between two looks at what a flood has to send, in nanoseconds.
const FLOOD_STEP_NS: i64 = 500_000;

/// A command line longer than this is a mistake.
const COMMAND_MAX: usize = 256 << 10;

/// How the relay is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// Pid of a process in the namespace that faces the left machine.
    pub facing_left: u32,
    /// Pid of a process in the namespace that faces the right machine.
    pub facing_right: u32,
    /// Number of rails.
    pub rails: u8,
    /// Seed of every chance.
    pub seed: u64,
    /// Where to record what the machines sent, if anywhere.
    pub capture: Option<PathBuf>,
    /// What it carries.
    pub carries: Carries,
}

/// What a relay carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carries {
    /// Datagrams. These ports wait for a first one, on both machines and every rail.
    Udp(Vec<u16>),
    /// Ethernet frames.
    Ethernet,
}

/// Which end a socket stands in for.
type Owner = (u8, Side, u16);

/// A socket that stands in for a port.
struct StandIn {
    socket: UdpSocket,
    /// When something last came to it or left from it; of one that waits for whoever comes, never over.
    used_ns: u64,
}

/// The running relay.
pub struct Forwarder {
    rails: u8,
    namespaces: [File; 2],
    sockets: BTreeMap<Owner, StandIn>,
    /// By rail and the machine that each faces.
    segments: BTreeMap<(u8, Side), Segment>,
    wires: BTreeMap<(u8, Direction), Wire>,
    floods: BTreeMap<(u8, Direction), Flood>,
    capture: Option<CaptureWriter>,
    start: Instant,
    send_errors: u64,
    /// What came to addresses that only an attacker has: how many, and bytes of the longest.
    answers: (u64, usize),
    buffer: Vec<u8>,
}

impl Forwarder {
    /// Opens the namespaces, the waiting sockets and the capture.
    pub fn new(config: &RelayConfig) -> Result<Self, Error> {
        let namespace = |pid: u32| {
            let path = format!("/proc/{pid}/ns/net");
            File::open(&path).map_err(Error::io(format!("cannot open the namespace {path}")))
        };
        let mut wires = BTreeMap::new();
        let mut floods = BTreeMap::new();
        for rail in 0..config.rails {
            for direction in [Direction::LeftToRight, Direction::RightToLeft] {
                let stream = u64::from(rail) << 1 | u64::from(direction == Direction::RightToLeft);
                floods.insert((rail, direction), Flood::new(config.seed ^ stream << 32));
                wires.insert(
                    (rail, direction),
                    Wire::new(config.seed.wrapping_mul(0x1_0000_0001) ^ stream << 32),
                );
            }
        }
        let mut forwarder = Self {
            rails: config.rails,
            namespaces: [namespace(config.facing_left)?, namespace(config.facing_right)?],
            sockets: BTreeMap::new(),
            segments: BTreeMap::new(),
            wires,
            floods,
            capture: config.capture.as_deref().map(CaptureWriter::create).transpose()?,
            start: Instant::now(),
            send_errors: 0,
            answers: (0, 0),
            buffer: vec![0; 1 << 16],
        };
        for rail in 0..config.rails {
            for side in [Side::Left, Side::Right] {
                match &config.carries {
                    Carries::Udp(ports) => {
                        for &port in ports {
                            forwarder.open((rail, side, port), u64::MAX)?;
                        }
                    }
                    Carries::Ethernet => {
                        forwarder.enter_facing(side)?;
                        forwarder.segments.insert((rail, side), Segment::open(&format!("rail{rail}"))?);
                    }
                }
            }
        }
        Ok(forwarder)
    }

    /// Carries datagrams and obeys commands until `commands` ends. Each command is answered by one line.
    pub fn run(&mut self, mut commands: impl Read + AsFd, mut answers: impl Write) -> Result<(), Error> {
        let mut text = Vec::new();
        loop {
            let (commands_ready, ready) = self.wait(&commands)?;
            for owner in ready {
                self.receive(owner);
            }
            self.receive_frames();
            self.deliver();
            if commands_ready && !read_commands(&mut commands, &mut text)? {
                return self.flush();
            }
            while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let answer = match self.obey(String::from_utf8_lossy(&line).trim()) {
                    Ok(answer) => answer,
                    Err(what) => format!("error {what}"),
                };
                writeln!(answers, "{answer}")
                    .and_then(|()| answers.flush())
                    .map_err(Error::io("cannot answer"))?;
            }
        }
    }

    /// Sleeps until something is to be done: whether a command came, and which sockets have datagrams.
    fn wait(&self, commands: &impl AsFd) -> Result<(bool, Vec<Owner>), Error> {
        let timeout = self.wires.values().filter_map(Wire::next_due_ns).min().map(|due| {
            let left = Duration::from_nanos(due.saturating_sub(self.now_ns()));
            Timespec::try_from(left).expect("a due time lies seconds ahead, not centuries")
        });
        // A flood has something to send all the time.
        let soon = self.floods.values().any(Flood::is_active);
        let soon = soon.then_some(Timespec { tv_sec: 0, tv_nsec: FLOOD_STEP_NS });
        let timeout = match (timeout, soon) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let mut descriptors = vec![PollFd::new(commands, PollFlags::IN)];
        descriptors.extend(self.sockets.values().map(|one| PollFd::new(&one.socket, PollFlags::IN)));
        descriptors.extend(self.segments.values().map(|one| PollFd::new(one, PollFlags::IN)));
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::io("cannot poll")(errno.into())),
        }
        let mut ready = descriptors.iter().map(|descriptor| !descriptor.revents().is_empty());
        let commands_ready = ready.next().unwrap_or(false);
        let owners = self.sockets.keys().zip(ready).filter(|(_, ready)| *ready).map(|(owner, _)| *owner);
        Ok((commands_ready, owners.collect()))
    }

    fn receive(&mut self, owner: Owner) {
        let (rail, side, target_port) = owner;
        let direction = Direction::toward(side);
        for _ in 0..BURST {
            // An error here is an ICMP answer to something sent before: that datagram is lost, as on any network.
            let Some(Ok((length, source))) =
                self.sockets.get(&owner).map(|one| one.socket.recv_from(&mut self.buffer))
            else {
                return;
            };
            if CALLERS.contains(&target_port.into()) {
                self.answers = (self.answers.0 + 1, self.answers.1.max(length));
            }
            let payload = self.buffer[..length].to_vec();
            let datagram = Datagram { source_port: source.port(), target_port, payload };
            let now_ns = self.now_ns();
            if let Some(one) = self.sockets.get_mut(&owner) {
                one.used_ns = one.used_ns.max(now_ns);
            }
            if let Some(capture) = &mut self.capture {
                capture.record(now_ns, rail, direction, &datagram);
            }
            if let Some(flood) = self.floods.get_mut(&(rail, direction)) {
                flood.see(&datagram);
            }
            if let Some(flood) = self.floods.get_mut(&(rail, direction.opposite())) {
                flood.see_opposite(&datagram);
            }
            if let Some(wire) = self.wires.get_mut(&(rail, direction)) {
                wire.handle(now_ns, datagram);
            }
        }
    }

    /// What has come on Ethernet, of each segment a burst.
    fn receive_frames(&mut self) {
        let now_ns = self.now_ns();
        for (&(rail, side), segment) in &mut self.segments {
            let Some(wire) = self.wires.get_mut(&(rail, Direction::from_side(side))) else { continue };
            for _ in 0..BURST {
                let Some(payload) = segment.receive() else { break };
                wire.handle(now_ns, Datagram { source_port: 0, target_port: 0, payload });
            }
        }
    }

    fn deliver(&mut self) {
        let now_ns = self.now_ns();
        let mut due = Vec::new();
        for (key, wire) in &mut self.wires {
            for forgery in self.floods.get_mut(key).map(|flood| flood.poll(now_ns)).unwrap_or_default() {
                wire.inject(now_ns, forgery);
            }
        }
        for (&(rail, direction), wire) in &mut self.wires {
            due.extend(std::iter::from_fn(|| wire.poll(now_ns)).map(|datagram| (rail, direction, datagram)));
        }
        for (rail, direction, datagram) in due {
            if self.send(rail, direction, &datagram).is_err() {
                self.send_errors += 1;
            }
        }
    }

    fn send(&mut self, rail: u8, direction: Direction, datagram: &Datagram) -> Result<(), Error> {
        if let Some(segment) = self.segments.get(&(rail, direction.target())) {
            return segment.send(&datagram.payload);
        }
        let target = SocketAddrV4::new(rail_address(rail, direction.target()), datagram.target_port);
        let now_ns = self.now_ns();
        let socket = self.open((rail, direction.source(), datagram.source_port), now_ns)?;
        let sent = match socket.send_to(&datagram.payload, target) {
            // A pending ICMP answer is reported once, to the next sender; the second attempt is the datagram's own.
            Err(_) => socket.send_to(&datagram.payload, target),
            sent => sent,
        };
        sent.map(|_| ()).map_err(Error::io("cannot send"))
    }

    /// The socket that stands in for a port, made when it is first needed.
    fn open(&mut self, owner: Owner, now_ns: u64) -> Result<&UdpSocket, Error> {
        if !self.sockets.contains_key(&owner) {
            if self.sockets.len() >= SOCKETS_MAX {
                self.close_one()?;
            }
            let socket = self.bind(owner)?;
            self.sockets.insert(owner, StandIn { socket, used_ns: now_ns });
        }
        let one = self.sockets.get_mut(&owner).expect("it was just made, if there was none");
        one.used_ns = one.used_ns.max(now_ns);
        Ok(&one.socket)
    }

    fn close_one(&mut self) -> Result<(), Error> {
        let silent = self.sockets.iter().filter(|(_, one)| one.used_ns != u64::MAX);
        let (&owner, _) =
            silent.min_by_key(|(_, one)| one.used_ns).ok_or_else(|| Error::unexpected("too many ports"))?;
        self.sockets.remove(&owner);
        Ok(())
    }

    /// From now on this process opens sockets in the namespace that faces a machine.
    fn enter_facing(&self, side: Side) -> Result<(), Error> {
        let namespace = match side {
            Side::Left => &self.namespaces[0],
            Side::Right => &self.namespaces[1],
        };
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| Error::io("cannot enter a network namespace")(errno.into()))
    }

    fn bind(&self, (rail, side, port): Owner) -> Result<UdpSocket, Error> {
        // It stands in for a machine, so it faces the other one.
        self.enter_facing(Direction::from_side(side).target())?;
        let address = SocketAddr::from((rail_address(rail, side), port));
        let socket = UdpSocket::bind(address).map_err(Error::io(format!("cannot stand in for {address}")))?;
        socket.set_nonblocking(true).map_err(Error::io("cannot make a socket non-blocking"))?;
        large_buffer(&socket);
        Ok(socket)
    }

    fn obey(&mut self, line: &str) -> Result<String, String> {
        let mut words = line.splitn(4, ' ');
        let verb = words.next().unwrap_or_default();
        match verb {
            "stats" => {
                self.flush().map_err(|error| error.to_string())?;
                return Ok(self.stats());
            }
            "set" | "inject" | "flood" | "calls" | "keep" => {}
            _ => return Err(format!("unknown command {verb:?}")),
        }
        let rail = words.next().and_then(|word| word.parse().ok()).filter(|&rail: &u8| rail < self.rails);
        let rail = rail.ok_or("the second word is not a rail")?;
        let direction: Direction = words.next().ok_or("a direction is missing")?.parse()?;
        let rest = words.next().unwrap_or_default();
        let now_ns = self.now_ns();
        let flood = self.floods.get_mut(&(rail, direction)).ok_or("no such wire")?;
        let wire = self.wires.get_mut(&(rail, direction)).ok_or("no such wire")?;
        match verb {
            "set" => wire.set(serde_json::from_str(rest).map_err(|error| error.to_string())?),
            "keep" => flood.keep_as_foreign(),
            "flood" | "calls" => {
                let rate = rest.parse().map_err(|_| format!("{rest} is not a rate"))?;
                flood.set_rate(now_ns, rate, verb == "calls");
            }
            _ => wire.inject(now_ns, parse_datagram(rest)?),
        }
        Ok("ok".into())
    }

    /// One line of JSON, see [`super::RelayStats`].
    fn stats(&self) -> String {
        let wires: Vec<_> = self
            .wires
            .iter()
            .map(|(&(rail, direction), wire)| {
                let counts = wire.counts();
                serde_json::json!({
                    "rail": rail, "direction": direction.to_string(), "received": counts.received,
                    "sent": counts.sent, "dropped": counts.dropped, "repeated": counts.repeated,
                    "reordered": counts.reordered, "corrupted": counts.corrupted, "overflowed": counts.overflowed,
                })
            })
            .collect();
        let mut floods = [0; KINDS.len()];
        for counts in self.floods.values().map(Flood::counts) {
            floods.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let longest_call = self.floods.values().map(Flood::longest_call).max();
        serde_json::json!({
            "wires": wires, "send_errors": self.send_errors, "floods": floods,
            "answers": self.answers.0, "longest_answer": self.answers.1, "longest_call": longest_call.unwrap_or(0),
        })
        .to_string()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.capture.as_mut().map_or(Ok(()), CaptureWriter::flush)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Gives a socket room for a burst.
pub(super) fn large_buffer(socket: &impl AsFd) {
    // Only a privileged relay may go above the system's limit; a smaller buffer is a worse network, no failure.
    if set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        let _ = set_socket_recv_buffer_size(socket, RECEIVE_BUFFER);
    }
}

/// Appends what has come; false at the end of the commands.
pub(super) fn read_commands(commands: &mut impl Read, text: &mut Vec<u8>) -> Result<bool, Error> {
    let mut chunk = [0; 4096];
    match commands.read(&mut chunk) {
        Ok(0) => Ok(false),
        Ok(count) if text.len() + count <= COMMAND_MAX => {
            text.extend_from_slice(&chunk[..count]);
            Ok(true)
        }
        Ok(_) => Err(Error::unexpected(format!("a command above {COMMAND_MAX} bytes"))),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(error) => Err(Error::io("cannot read commands")(error)),
    }
}

/// `SOURCE_PORT TARGET_PORT HEX`.
fn parse_datagram(text: &str) -> Result<Datagram, String> {
    let words: Vec<_> = text.split(' ').collect();
    let [source, target, hex] = words[..] else { return Err("inject takes two ports and hex bytes".into()) };
    let port = |word: &str| word.parse().map_err(|_| format!("{word} is not a port"));
    let digits: Option<Vec<u8>> =
        hex.chars().map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0).ok_or("not hex bytes")?;
    let payload = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    Ok(Datagram { source_port: port(source)?, target_port: port(target)?, payload })
}
