//! A switch: takes frames at its ports and says, by their header alone, where they leave.
//!
//! It is what lies between bridges in a PCI Express switch (PCIe 6.0 §1.3.3): each port has base and limit over
//! prefixes of destinations. It keeps no state of connections, has no keys for what it forwards, and changes of a frame
//! the byte `route` only. What it remembers of a port is when that was heard last, which decides between two ports that
//! lead to the same range; a switch that is started anew knows nothing and forwards at once.
//!
//! For each frame, in this order, whatever it is dropped for being counted at the port where it came:
//!
//! 1. It has a header of our version and fabric. A [hello] is taken.
//! 2. Its group is one of the port's partition.
//! 3. Its source lies behind the port: the range of the source leads back to where the frame came in. So nobody can
//!    speak for others, and frames that go round a loop are dropped by the first switch that knows better.
//! 4. Its destination lies in a range of the partition, else it leaves by the default port; never where it came in.
//! 5. It may pass one switch more.
//!
//! Information frames name no destination: each leaves by all ways of the partition but the one that it came by, if it
//! has come by the port in use toward its source, so that of two ports that lead to the same one only passes it on. A
//! port takes [`INFORMATION_BURST`] of them at once, and then one each [`INFORMATION_EVERY`]. One whose source is no
//! domain either is what another switch says of itself: it is for whoever it was sent to, and goes no further.
//!
//! At the ports of a pair it says [ten times a second](hello) whether anything comes by them, and at any other port
//! where it is asked: so a link that carries frames one way only is left at both ends.
//!
//! So no more frames leave than come, but for these and for multicast: at most one for each other port of the
//! partition. Of multicast a port takes [`MULTICAST_BURST`] frames at once, and then one each [`MULTICAST_EVERY`]: who
//! sends at the rate of his link does not fill those of all others.
//!
//! Left out: sockets, queues and addresses (`io::switch`).

mod counters;
mod hello;
mod ownership;
mod ports;
mod table;

use core::time::Duration;

use base::Instant;
use base::frame::{
    HEADER_LEN, HELLO, INFORMATION, MAX_FRAME, OVERHEAD, Prefix, ROUTE, RawHeader, Route, VERSION,
};
use base::ids::{DomainId, Group};
use base::times::RAIL_VERDICT;
use base::{Rule, RuleSet};
use zerocopy::FromBytes;

pub use counters::{PortCounters, Reason};
use hello::Hello;
pub use hello::{HELLO_EVERY, HELLO_LEN};
pub use ownership::{Change, EPOCH_STRIDE, OwnedPartition, Owner, Ownership, OwnershipError};
use ports::PortState;
pub use ports::{PortId, PortSet};
use table::Target;
pub use table::{
    GroupSet, MulticastSpec, PartitionSpec, PortSpec, PrefixRange, Subject, Table, TableError, TableProblem,
    TableSpec,
};

/// Most ports of a switch.
pub const MAX_PORTS: usize = 256;
/// Most ranges of its ports and multicast groups together.
pub const MAX_RANGES: usize = 4096;
/// Most partitions of it.
pub const MAX_PARTITIONS: usize = 64;
/// Most multicast groups.
pub const MAX_MULTICASTS: usize = 256;

/// Most information frames that a port takes at once.
pub const INFORMATION_BURST: u32 = 4096;
/// After that there is one more.
pub const INFORMATION_EVERY: Duration = Duration::from_millis(1);
/// Most frames to multicast groups that a port takes at once.
pub const MULTICAST_BURST: u32 = 4096;
/// After that there is one more.
pub const MULTICAST_EVERY: Duration = Duration::from_micros(100);

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It leaves nowhere, and was counted.
    Drop(Reason),
    /// It leaves nowhere: it was for this switch.
    Take,
    /// It leaves by this port.
    Forward(PortId),
    /// It leaves by each of these, among which is not the one that it came in by.
    Copy(PortSet),
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    rules: RuleSet,
    table: Table,
    ports: Vec<PortState>,
    /// Since when it says hello.
    begun: Option<Instant>,
}

impl Switch {
    /// One with this table, of which no port has been heard.
    pub fn new(table: Table) -> Self {
        Self::under(RuleSet::ALL, table)
    }

    /// The same under these rules: all but for canaries.
    pub fn under(rules: RuleSet, table: Table) -> Self {
        let ports = table.ports().map(|_| PortState::new()).collect();
        Self { rules, table, ports, begun: None }
    }

    /// Ports are in other partitions from the next frame on. What is known of each, and was counted, stays.
    ///
    /// # Panics
    /// If the table is not one of these ports: the driver's own mistake.
    pub fn set_table(&mut self, table: Table) {
        assert!(table.ports().count() == self.ports.len(), "ports are moved, and neither come nor go");
        self.table = table;
    }

    /// What it was made by.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Where `frame`, which has come in by `port`, is to leave. If it leaves, its header says that it may pass one
    /// switch less.
    ///
    /// # Panics
    /// If there is no such port: the driver's own mistake.
    pub fn forward(&mut self, now: Instant, port: PortId, frame: &mut [u8]) -> Decision {
        let counters = &mut self.ports[port.index()].counters;
        counters.received += 1;
        counters.received_bytes += frame.len() as u64;
        match self.decide(now, port, frame) {
            Ok(decision) => decision,
            Err(reason) => {
                self.drop(port, reason);
                Decision::Drop(reason)
            }
        }
    }

    fn decide(&mut self, now: Instant, port: PortId, frame: &mut [u8]) -> Result<Decision, Reason> {
        let header = Header::read(frame, self.table.fabric())?;
        // Of whatever group it is, it goes no further.
        if header.kind == HELLO {
            let said = Hello::read(frame).filter(|_| header.names_no_domain()).ok_or(Reason::Malformed)?;
            let is_believed = self.table.is_of_pair(port) && self.rules.has(Rule::LeaveWhatIsNotHeard);
            self.ports[port.index()].hear_hello(now, Hello { hears: said.hears || !is_believed, ..said });
            return Ok(Decision::Take);
        }
        let partition = self.table.partition_of(port);
        if !partition.groups.contains(header.group) {
            return Err(Reason::ForeignGroup);
        }
        if header.kind == INFORMATION && header.names_no_domain() {
            return Ok(Decision::Take);
        }
        let home = match partition.find(header.source) {
            Some(Target::Port(home)) if self.table.is_way(home, port) => home,
            _ if !self.rules.has(Rule::CheckSources) => port,
            _ => return Err(Reason::ForgedSource),
        };
        self.ports[port.index()].hear(now);
        if header.destination & DOMAIN_BITS == 0 && header.kind != INFORMATION {
            return Err(Reason::Unaddressed);
        }
        let decision = match header.destination & DOMAIN_BITS {
            0 => self.flood(now, port, home)?,
            _ => match partition.find(header.destination).ok_or(Reason::NoRoute)? {
                Target::Port(home) if self.table.is_way(home, port) => return Err(Reason::Returning),
                Target::Port(home) => Decision::Forward(self.way(now, home)),
                Target::Multicast(_) if !self.ports[port.index()].multicast.take(now) => {
                    return Err(Reason::TooOften);
                }
                Target::Multicast(multicast) => self.copy(now, port, self.table.members(multicast))?,
            },
        };
        let hops_left = match header.route.hops_left.checked_sub(1) {
            None if self.rules.has(Rule::CountHops) => return Err(Reason::Hops),
            less => less.unwrap_or_default(),
        };
        // The header was read from there: the frame is as long.
        frame[ROUTE] = Route { hops_left, ..header.route }.byte();
        Ok(decision)
    }

    /// What becomes of a frame for all others of the partition that has come in by `port`, from behind `home`.
    fn flood(&mut self, now: Instant, port: PortId, home: PortId) -> Result<Decision, Reason> {
        // It comes by both, or round a circle of pairs: one is enough, and what leaves there may take the other.
        if let Some(standby) = self.table.standby_of(home) {
            let heard = [home, standby].into_iter().find(|it| self.ports[it.index()].is_heard(now));
            if heard.unwrap_or_else(|| self.way(now, home)) != port {
                return Err(Reason::Duplicate);
            }
        }
        if !self.ports[port.index()].information.take(now) {
            return Err(Reason::TooOften);
        }
        self.copy(now, port, self.table.partition_of(port).homes)
    }

    /// What becomes of a frame for all of `homes` that has come in by `port`.
    fn copy(&self, now: Instant, port: PortId, homes: PortSet) -> Result<Decision, Reason> {
        let others = homes.iter().filter(|home| !self.table.is_way(*home, port));
        let ways: PortSet = others.map(|home| self.way(now, home)).collect();
        if ways.is_empty() { Err(Reason::Returning) } else { Ok(Decision::Copy(ways)) }
    }

    /// The port by which frames for `home` leave now: itself, or the one that stands by for it.
    fn way(&self, now: Instant, home: PortId) -> PortId {
        let Some(standby) = self.table.standby_of(home) else { return home };
        if !self.rules.has(Rule::UseWhatIsHeard) {
            return home;
        }
        let [first, second] = [home, standby].map(|port| &self.ports[port.index()]);
        ports::choose(now, [(home, first), (standby, second)])
    }

    /// What is to be said each [`HELLO_EVERY`]: by which port, and the frame.
    pub fn hellos(&mut self, now: Instant) -> impl Iterator<Item = (PortId, [u8; HELLO_LEN])> {
        // Who has just begun was not there to hear anything.
        let is_new = now.since(*self.begun.get_or_insert(now)) < RAIL_VERDICT;
        let (table, ports) = (&self.table, &self.ports);
        table.ports().filter_map(move |(port, ..)| {
            let (state, asks) = (&ports[port.index()], table.is_of_pair(port));
            let group = table.first_group(port).filter(|_| asks || state.is_asked(now))?;
            Some((port, Hello { hears: is_new || state.carries(now), asks }.write(table.fabric(), group)))
        })
    }

    /// Somebody else is behind a port from now on: what is known of who was there is forgotten.
    pub fn forget_peer(&mut self, port: PortId) {
        self.ports[port.index()].forget_peer();
    }

    /// Whether a port is known to be up: its interface runs, and somebody behind it was heard lately, and did not say
    /// that nothing comes there.
    pub fn is_up(&self, now: Instant, port: PortId) -> bool {
        self.ports[port.index()].is_up(now)
    }

    /// What the driver knows of a port's interface: whether it runs. It does until something else is said.
    pub fn set_running(&mut self, port: PortId, is_running: bool) {
        self.ports[port.index()].is_down = !is_running;
    }

    /// So many frames, of so many bytes together, have left by `port`.
    pub fn sent(&mut self, port: PortId, frames: u64, bytes: u64) {
        let counters = &mut self.ports[port.index()].counters;
        counters.sent += frames;
        counters.sent_bytes += bytes;
    }

    /// A frame was dropped at `port`, for a reason of the driver's.
    pub fn drop(&mut self, port: PortId, reason: Reason) {
        self.ports[port.index()].counters.dropped[reason.index()] += 1;
    }

    /// A frame that leaves by `port` bears the mark of a long queue.
    pub fn marked(&mut self, port: PortId) {
        self.ports[port.index()].counters.marked += 1;
    }

    /// What was counted at a port.
    pub fn counters(&self, port: PortId) -> &PortCounters {
        &self.ports[port.index()].counters
    }
}

/// How much of a queue counts as congestion: 0 below a quarter of its room, up to 3 from three quarters on.
pub const fn congestion(used: usize, room: usize) -> u8 {
    match room / 4 {
        0 => 3,
        quarter if used / quarter > 3 => 3,
        quarter => (used / quarter) as u8,
    }
}

/// Marks a frame that has waited in a queue of this congestion, unless an earlier switch has seen worse: whether it
/// bears more than before.
pub fn mark(frame: &mut [u8], congestion: u8) -> bool {
    let Some(byte) = frame.get_mut(ROUTE) else { return false };
    let route = Route::from_byte(*byte);
    let is_worse = congestion.min(3) > route.congestion;
    if is_worse {
        *byte = Route { congestion: congestion.min(3), ..route }.byte();
    }
    is_worse
}

/// Bits of a prefix that name its domain.
const DOMAIN_BITS: u32 = (1 << DomainId::BITS) - 1;

/// What a switch reads of a frame.
struct Header {
    kind: u8,
    route: Route,
    destination: u32,
    source: u32,
    group: Group,
}

impl Header {
    /// It is what a switch says to another one.
    fn names_no_domain(&self) -> bool {
        (self.source | self.destination) & DOMAIN_BITS == 0
    }

    fn read(frame: &[u8], fabric: u32) -> Result<Self, Reason> {
        if !(OVERHEAD..=MAX_FRAME).contains(&frame.len()) {
            return Err(Reason::Malformed);
        }
        let (raw, _) = RawHeader::ref_from_prefix(frame).map_err(|_| Reason::Malformed)?;
        if raw.version != VERSION {
            return Err(Reason::Version);
        }
        let (destination, source) = (raw.destination.get(), raw.source.get());
        if (destination | source) >> Prefix::BITS != 0 {
            return Err(Reason::Malformed);
        }
        if raw.fabric.get() != fabric {
            return Err(Reason::OtherFabric);
        }
        let (kind, route) = (raw.kind, Route::from_byte(raw.route));
        Ok(Self { kind, route, destination, source, group: Group(raw.group.get()) })
    }
}

// What is read and written of a frame lies in what every frame has.
const _: () = assert!(ROUTE < HEADER_LEN && HEADER_LEN <= OVERHEAD);

#[cfg(test)]
mod tests;
