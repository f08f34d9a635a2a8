//! A switch in real time: sockets that frames come in by, a queue for each port that they leave by, and what is said of
//! those that are dropped. What becomes of a frame is decided by [`node::switch`].
//!
//! ```text
//!  socket ── recvmmsg ──> port by sender's address ──> decision ──> queue of a port ── sendmmsg ──> its socket
//! ```
//!
//! A port is a socket and the address of whoever is behind it, which the configuration says: what comes from another
//! address is dropped, and nothing is ever sent to it. Several ports may share a socket. Frames are copied once, into
//! the queue of the port where they leave; what a socket does not take waits there, and is marked as congested.

mod queue;
mod report;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use base::Instant;
use base::ids::Group;
use node::switch::{
    Decision, HELLO_EVERY, MAX_PORTS, PortCounters, PortId, Reason, Switch as Core, Table, congestion, mark,
};

use self::queue::Queue;
use self::report::Report;
pub use self::report::Said;
use crate::address::RailAddress;
use crate::capture::{self, Captures, Kept};
use crate::card::now;
use crate::event::Event;
use crate::rail::ethernet::Interface;
use crate::rail::{RailOptions, RailSocket};
use crate::wait::{Hint, Interest, SpinTimes, Turn, Waiter};

/// Datagrams taken from one socket at a time, so that no other waits for long.
const RECEIVE_LIMIT: usize = 64;
/// The same where they are large: a queue has room for so many.
const RECEIVE_LIMIT_LARGE: usize = 8;
/// Bytes of a frame that is large.
const LARGE: usize = Queue::ROOM / RECEIVE_LIMIT;
/// A socket that was heard is read without asking for so long.
const HOT: Duration = Duration::from_micros(200);
/// Between two looks at interfaces and counters.
const LOOK: Duration = Duration::from_millis(500);
/// What the descriptors of whoever drives the switch are registered as.
const OTHERS: u64 = 1 << 32;

/// What the sockets of a switch ask of the kernel: few bytes wait where the switch does not see them.
pub const OPTIONS: RailOptions =
    RailOptions { receive_buffer_bytes: 8 << 20, send_buffer_bytes: 1 << 20, offload: true };

/// A socket of a switch.
pub struct Door {
    /// The socket, which is open.
    pub socket: Box<dyn RailSocket>,
    /// Its interface, if it is one of Ethernet.
    pub interface: Option<String>,
}

/// Where a port of the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The place of its socket among the doors.
    pub door: usize,
    /// Whoever is behind it; `None`: nobody has said so yet, and nothing passes.
    pub peer: Option<RailAddress>,
    /// The switch says there who it is.
    pub announces: bool,
}

/// A switch with its sockets.
pub struct Switch {
    core: Core,
    doors: Vec<Door>,
    states: Vec<DoorState>,
    /// By port.
    places: Vec<Place>,
    exits: Vec<Exit>,
    /// Ports whose queues are not empty.
    waiting: Vec<PortId>,
    waiter: Waiter,
    report: Report,
    next_look: Instant,
    next_hello: Instant,
    /// There is somebody who is told whether he is heard.
    has_hellos: bool,
    /// Who looks on: the memory of each, and what writes there.
    kept: Kept,
    captures: Captures,
}

/// What is known of a socket.
struct DoorState {
    /// Its ports by the address of whoever is behind them, sorted.
    ports: Vec<(RailAddress, PortId)>,
    /// The last call left datagrams that raise no readiness.
    more: bool,
    hot_until: Instant,
    /// Datagrams to take at a time.
    limit: usize,
    /// It has no room: it is asked again when it says so.
    is_full: bool,
    /// What came from addresses that are no port's.
    strangers: u64,
}

/// Where frames leave.
struct Exit {
    queue: Queue,
    /// Bytes of the largest frame that the port carries, as far as the kernel knows; `None`: it is not known where to.
    max_frame: Option<usize>,
}

/// How a port is doing.
pub struct PortView<'a> {
    /// Its place in the table.
    pub id: PortId,
    /// Its name.
    pub name: &'a str,
    /// That of its partition.
    pub partition: &'a str,
    /// Where it listens.
    pub local: RailAddress,
    /// Whoever is behind it, if that is known.
    pub peer: Option<RailAddress>,
    /// Somebody behind it was heard lately.
    pub is_up: bool,
    /// The name of the port that it stands by for.
    pub standby_for: Option<&'a str>,
    /// Bytes that wait to leave.
    pub queued_bytes: usize,
    /// What was counted.
    pub counters: &'a PortCounters,
}

impl Switch {
    /// A switch with these sockets; `places` says where each port of the table is.
    ///
    /// # Errors
    /// What the system refused.
    ///
    /// # Panics
    /// If not each port has a place with a door.
    pub fn new(table: Table, doors: Vec<Door>, places: Vec<Place>) -> io::Result<Self> {
        assert!(
            table.ports().count() == places.len() && places.iter().all(|it| it.door < doors.len()),
            "each port has a place with a door"
        );
        let waiter = Waiter::new(SpinTimes::default())?;
        let mut states = Vec::new();
        for (at, door) in doors.iter().enumerate() {
            waiter.register(door.socket.as_fd(), at as u64, Interest::READ)?;
            let ports = ports_at(at, table.ports().map(|(port, ..)| port).zip(&places));
            let (hot_until, limit) = (Instant::ZERO, RECEIVE_LIMIT_LARGE);
            states.push(DoorState { ports, more: true, hot_until, limit, is_full: false, strangers: 0 });
        }
        let max_frame = |place: &Place| place.peer.map(|_| usize::MAX);
        let exits = places.iter().map(|it| Exit { queue: Queue::new(), max_frame: max_frame(it) }).collect();
        let report = Report::new(&table, doors.len());
        let waiting = Vec::with_capacity(MAX_PORTS);
        let core = Core::new(table);
        let (kept, captures) = (Kept::default(), Captures::default());
        Ok(Self {
            core,
            doors,
            states,
            places,
            exits,
            waiting,
            waiter,
            report,
            next_look: Instant::ZERO,
            next_hello: Instant::ZERO,
            has_hellos: false,
            kept,
            captures,
        })
    }

    /// Has [`Switch::turn`] return when there is something to read from `fd`.
    ///
    /// # Errors
    /// As of [`Waiter::register`].
    pub fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.waiter.register(fd, OTHERS, Interest::READ)
    }

    /// Forwards what has come, or waits for something to come, half a second at most. Returns whether frames came: then
    /// more of them may be there.
    ///
    /// # Errors
    /// What makes a socket useless.
    pub fn turn(&mut self) -> io::Result<bool> {
        let at = now();
        if at >= self.next_look {
            self.next_look = at + LOOK;
            self.look(at);
        }
        if at >= self.next_hello {
            self.next_hello = at + HELLO_EVERY;
            self.say_hello(at);
        }
        let mut busy = false;
        for door in 0..self.doors.len() {
            if self.states[door].more || at < self.states[door].hot_until {
                busy |= self.receive(door, at)?;
                // What has come from one is not to find the queues full of what has come from another.
                busy |= self.send()?;
            }
        }
        busy |= self.send()?;
        if busy {
            self.waiter.busy();
            return Ok(true);
        }
        let until = if self.has_hellos { self.next_look.min(self.next_hello) } else { self.next_look };
        match self.waiter.idle(at, Hint::Idle, || Some(until.since(now())))? {
            Turn::Spun | Turn::TimedOut => Ok(false),
            Turn::Ready(_) => {
                // Those of others are for others.
                let ready: [Option<crate::wait::Ready>; crate::wait::MAX_READY] = {
                    let mut found = self.waiter.ready();
                    core::array::from_fn(|_| found.next())
                };
                for it in ready.into_iter().flatten() {
                    let Some(door) = usize::try_from(it.token).ok().filter(|door| *door < self.doors.len())
                    else {
                        continue;
                    };
                    if it.write && self.states[door].is_full {
                        self.states[door].is_full = false;
                        self.waiter.modify(self.doors[door].socket.as_fd(), it.token, Interest::READ)?;
                    }
                    if it.read {
                        self.receive(door, now())?;
                    }
                    self.send()?;
                }
                Ok(true)
            }
        }
    }

    /// Takes what has come to a socket, and puts into queues what is to leave.
    fn receive(&mut self, door: usize, at: Instant) -> io::Result<bool> {
        let Self { core, doors, states, exits, waiting, captures, .. } = self;
        let state = &mut states[door];
        let (ports, strangers) = (&state.ports, &mut state.strangers);
        let (mut has_large, is_captured) = (false, captures.are_active());
        let received = doors[door].socket.receive(state.limit, &mut |from, bytes| {
            has_large |= bytes.len() > LARGE;
            let Ok(found) = ports.binary_search_by_key(&from, |(peer, _)| *peer) else {
                *strangers += 1;
                return;
            };
            let port = ports[found].1;
            if is_captured {
                // As it came, whatever becomes of it.
                captures.record(port.index(), false, bytes, &mut sealed);
            }
            match core.forward(at, port, bytes) {
                // Another switch says who it is: nobody here asks.
                Decision::Drop(_) | Decision::Take => {}
                Decision::Forward(port) => enqueue(core, exits, waiting, port, bytes),
                // Nobody behind a port that waits to be told its peer was meant by what is for all.
                Decision::Copy(ports) => {
                    for port in ports.iter() {
                        if exits[port.index()].max_frame.is_some() {
                            enqueue(core, exits, waiting, port, bytes);
                        }
                    }
                }
            }
        })?;
        state.more = received.more;
        if received.datagrams > 0 {
            state.hot_until = at + HOT;
            state.limit = if has_large { RECEIVE_LIMIT_LARGE } else { RECEIVE_LIMIT };
        }
        Ok(received.datagrams > 0 || received.more)
    }

    /// Hands what waits to the kernel, as far as that takes it. True if it took anything.
    fn send(&mut self) -> io::Result<bool> {
        let Self { core, doors, states, places, exits, waiting, waiter, captures, .. } = self;
        let mut busy = false;
        let mut at = 0;
        while let Some(port) = waiting.get(at).copied() {
            let Place { door, peer: Some(peer), .. } = places[port.index()] else {
                waiting.swap_remove(at);
                continue;
            };
            let queue = &mut exits[port.index()].queue;
            if !states[door].is_full {
                busy |= send_queue(core, &mut *doors[door].socket, (port, peer), queue, captures)?;
                if !queue.is_empty() {
                    states[door].is_full = true;
                    waiter.modify(doors[door].socket.as_fd(), door as u64, Interest::BOTH)?;
                }
            }
            if queue.is_empty() {
                waiting.swap_remove(at);
            } else {
                at += 1;
            }
        }
        Ok(busy)
    }

    /// Tells the switches at the other ends of links whether anything comes by them.
    fn say_hello(&mut self, at: Instant) {
        let Self { core, places, exits, waiting, has_hellos, .. } = self;
        let hellos: Vec<_> =
            core.hellos(at).filter(|(port, _)| places[port.index()].peer.is_some()).collect();
        *has_hellos = !hellos.is_empty();
        hellos.iter().for_each(|(port, hello)| enqueue(core, exits, waiting, *port, hello));
    }

    /// Sends whoever is behind the ports what `write` makes for the first group that may pass there.
    ///
    /// # Errors
    /// What makes a socket useless.
    pub fn announce(&mut self, write: &mut dyn FnMut(Group) -> Vec<Vec<u8>>) -> io::Result<()> {
        let Self { core, places, exits, waiting, .. } = self;
        let ports: Vec<PortId> = core.table().ports().map(|(port, ..)| port).collect();
        let mut written: Vec<(Group, Vec<Vec<u8>>)> = Vec::new();
        for (port, _) in
            ports.into_iter().zip(places).filter(|(_, place)| place.announces && place.peer.is_some())
        {
            let Some(group) = core.table().first_group(port) else { continue };
            let known = written.iter().position(|(of, _)| *of == group).unwrap_or_else(|| {
                written.push((group, write(group)));
                written.len() - 1
            });
            written[known].1.iter().for_each(|frame| enqueue(core, exits, waiting, port, frame));
        }
        self.send().map(drop)
    }

    /// Captures what comes in by one port and leaves by it, or by all, until the reader is dropped. Links are ports, by
    /// their place in the table; nothing is opened. `None`: there are too many captures.
    ///
    /// # Errors
    /// There is no memory for the frames.
    pub fn capture(&mut self, link: Option<u8>) -> io::Result<Option<capture::Reader>> {
        let wish = capture::Wish { link, opened: false };
        let Some((place, reader)) = self.kept.begin(wish)? else { return Ok(None) };
        let memory = self.kept.memory(place).expect("it has just begun there");
        self.captures.begin(place, wish, memory.try_clone()?)?;
        Ok(Some(reader))
    }

    /// Looks at interfaces and counters, and says what somebody should know.
    fn look(&mut self, at: Instant) {
        self.captures.forget_ended();
        self.kept.forget_ended();
        for (number, door) in self.doors.iter().enumerate() {
            let Some(name) = &door.interface else { continue };
            let is_running = Interface::find(name).is_ok_and(|interface| interface.is_running);
            for (_, port) in &self.states[number].ports {
                self.core.set_running(*port, is_running);
            }
            self.report.interface(number, name, is_running);
        }
        for (place, exit) in self.places.iter().zip(&mut self.exits) {
            // Where there is no way for now, what is sent is refused and counted.
            let socket = &self.doors[place.door].socket;
            exit.max_frame = place.peer.map(|peer| socket.max_frame(peer).unwrap_or(usize::MAX));
        }
        for (port, name, _) in self.core.table().ports() {
            self.report.drops(at, port, name, self.core.counters(port));
            let Some(standby) = self.core.table().standby_of(port) else { continue };
            let is_used = !self.core.is_up(at, port) && self.core.is_up(at, standby);
            let standby = self.core.table().ports().find(|(id, ..)| *id == standby);
            self.report.standby(port, name, standby.map_or("", |(_, name, _)| name), is_used);
        }
        for (number, state) in self.states.iter().enumerate() {
            let counters = self.doors[number].socket.counters();
            // What a socket drops by itself was of no port, or of no group.
            let count = state.strangers + counters.foreign + counters.truncated;
            self.report.strangers(at, number, self.doors[number].socket.local(), count);
        }
    }

    /// Ports are in other partitions from the next frame on; no frame is lost for that.
    ///
    /// # Panics
    /// If the table has not the same ports.
    pub fn set_table(&mut self, table: Table) {
        self.core.set_table(table);
    }

    /// Another one is behind the port in this place of the table from the next frame on.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn set_peer(&mut self, port: usize, peer: RailAddress) {
        if self.places[port].peer.replace(peer) != Some(peer)
            && let Some(port) = PortId::new(port)
        {
            self.core.forget_peer(port);
        }
        self.exits[port].max_frame = Some(usize::MAX);
        let door = self.places[port].door;
        let all = self.core.table().ports().map(|(port, ..)| port).zip(&self.places);
        self.states[door].ports = ports_at(door, all);
        self.next_look = Instant::ZERO;
    }

    /// How each port is doing.
    pub fn ports(&self) -> impl Iterator<Item = PortView<'_>> {
        let at = now();
        let table = self.core.table();
        table.ports().zip(&self.places).map(move |((port, name, partition), place)| PortView {
            id: port,
            name,
            partition,
            local: self.doors[place.door].socket.local(),
            peer: place.peer,
            is_up: self.core.is_up(at, port),
            standby_for: table
                .stands_by_for(port)
                .and_then(|of| table.ports().find(|(id, ..)| *id == of))
                .map(|it| it.1),
            queued_bytes: self.exits[port.index()].queue.used(),
            counters: self.core.counters(port),
        })
    }

    /// Where it listens, and how many datagrams came there that are no port's.
    pub fn doors(&self) -> impl Iterator<Item = (RailAddress, u64)> {
        self.doors.iter().zip(&self.states).map(|(door, state)| {
            let counters = door.socket.counters();
            (door.socket.local(), state.strangers + counters.foreign + counters.truncated)
        })
    }
}

/// Those of a door, by the addresses of whoever is behind them.
fn ports_at<'a>(door: usize, all: impl Iterator<Item = (PortId, &'a Place)>) -> Vec<(RailAddress, PortId)> {
    let here = all.filter(|(_, place)| place.door == door);
    let mut ports: Vec<_> = here.filter_map(|(port, place)| Some((place.peer?, port))).collect();
    ports.sort_unstable();
    ports
}

/// A switch has no key of what it forwards.
fn sealed(_: &mut [u8], _: bool) -> bool {
    false
}

/// Puts a frame into the queue of the port where it leaves.
fn enqueue(core: &mut Core, exits: &mut [Exit], waiting: &mut Vec<PortId>, port: PortId, frame: &[u8]) {
    let exit = &mut exits[port.index()];
    match exit.max_frame {
        None => return core.drop(port, Reason::Unreachable),
        Some(most) if frame.len() > most => return core.drop(port, Reason::TooLarge),
        Some(_) => {}
    }
    let level = congestion(exit.queue.used(), Queue::ROOM);
    let was_empty = exit.queue.is_empty();
    let Some(copy) = exit.queue.push(frame) else { return core.drop(port, Reason::QueueFull) };
    if mark(copy, level) {
        core.marked(port);
    }
    if was_empty {
        waiting.push(port);
    }
}

/// Hands a queue to the kernel until that takes no more. True if it took anything.
fn send_queue(
    core: &mut Core,
    socket: &mut dyn RailSocket,
    (port, peer): (PortId, RailAddress),
    queue: &mut Queue,
    captures: &mut Captures,
) -> io::Result<bool> {
    let mut busy = false;
    while !queue.is_empty() {
        let before = socket.counters();
        let (given, taken, bytes) = queue.send(peer, |datagrams| {
            let taken = socket.send_batch(datagrams)?;
            if captures.are_active() {
                let frames = datagrams.iter().take(taken).flat_map(|datagram| datagram.parts);
                frames.for_each(|frame| captures.record(port.index(), true, frame, &mut sealed));
            }
            Ok(taken)
        })?;
        let after = socket.counters();
        // All of them were for one port, so whatever was refused was refused to it.
        let refused = [
            (Reason::TooLarge, after.too_large - before.too_large),
            (Reason::QueueFull, after.no_buffer - before.no_buffer),
            (Reason::Unreachable, after.unreachable + after.other - before.unreachable - before.other),
        ];
        let mut left = taken as u64;
        for (reason, count) in refused {
            (0..count).for_each(|_| core.drop(port, reason));
            left = left.saturating_sub(count);
        }
        core.sent(port, left, bytes);
        busy |= taken > 0;
        if taken < given {
            break;
        }
    }
    Ok(busy)
}

impl AsFd for Switch {
    /// Readable when [`Switch::turn`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiter.as_fd()
    }
}

impl Door {
    /// A socket that is not of Ethernet, or of this interface; says so if that carries nothing yet.
    pub fn new(name: &str, socket: Box<dyn RailSocket>, interface: Option<String>) -> Self {
        let is_down = |interface: &String| !Interface::find(interface).is_ok_and(|it| it.is_running);
        if let Some(interface) = interface.clone().filter(is_down) {
            Event::InterfaceDown { rail: name.to_owned(), interface }.say();
        }
        Self { socket, interface }
    }
}

#[cfg(test)]
mod tests;
