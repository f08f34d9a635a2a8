//! A switch's channel of control: who may take its partitions and move its ports, over UDP ([`node::errand`]).
//!
//! It has a thread of its own, so that frames wait neither for a handshake nor for a disk. What is changed is durable
//! before it is applied, and applied, between two frames, before it is answered.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as SystemInstant};

use base::Instant;
use base::ids::NodeId;
use io::address::RailAddress;
use io::event::Event;
use io::rate_limited::RateLimited;
use io::switch::{Said, Switch};
use node::errand::{Answerer, Dropped, Source};
use node::switch::{Change, OwnedPartition, Owner, Ownership, Table};
use node::{Address, PublicKey};
use rustix::event::{EventfdFlags, eventfd};

use crate::config::{SwitchPort, peer_problem};
use crate::exit::Failure;
use crate::state_dir::{self, StateDir, StateError, partitions};
use crate::status::SwitchPartition;
use crate::switch_control::{Order, Reply, SwitchUrl};

/// Most bytes of a datagram.
const DATAGRAM_MAX: usize = 65_535;
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(200);

/// The partitions and what is counted, as `status` tells of them.
#[derive(Clone, Default)]
pub(super) struct Listed(Arc<Shared>);

#[derive(Default)]
struct Shared {
    partitions: Mutex<Vec<SwitchPartition>>,
    dropped: AtomicU64,
    refused: AtomicU64,
}

impl Listed {
    /// All partitions.
    pub(super) fn get(&self) -> Vec<SwitchPartition> {
        self.0.partitions.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, partitions: Vec<SwitchPartition>) {
        *self.0.partitions.lock().unwrap_or_else(PoisonError::into_inner) = partitions;
    }

    /// What was counted, by the names of the document.
    pub(super) fn counts(&self) -> [(&'static str, u64); 2] {
        let Shared { dropped, refused, .. } = &*self.0;
        [("control_dropped", dropped), ("control_refused", refused)]
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }

    /// One more is dropped: how many that are.
    fn note_dropped(&self) -> u64 {
        self.0.dropped.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn note_refused(&self) {
        self.0.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// What frames are forwarded by from now on.
enum Placing {
    Table(Table),
    /// Somebody else is behind the port in this place.
    Peer(usize, RailAddress),
}

/// That, and who waits until it is so.
struct Placed {
    what: Placing,
    done: SyncSender<()>,
}

/// What follows from an order.
enum Decision {
    Change(Change),
    Peer(usize, SocketAddr),
}

/// Where what was decided is kept, durably.
trait Keep {
    fn partitions(&self, partitions: &[SwitchPartition]) -> Result<(), StateError>;
    fn peers(&self, peers: &BTreeMap<String, SocketAddr>) -> Result<(), StateError>;
}

impl Keep for StateDir {
    fn partitions(&self, partitions: &[SwitchPartition]) -> Result<(), StateError> {
        partitions::write(self, partitions)
    }

    fn peers(&self, peers: &BTreeMap<String, SocketAddr>) -> Result<(), StateError> {
        partitions::write_peers(self, peers)
    }
}

/// Of what it is not known whether what is kept is what the switch goes by: the system said no when it was too late to
/// leave the old.
#[derive(Default)]
struct Doubts {
    partitions: bool,
    peers: bool,
}

/// What came of keeping something.
fn settled(done: Result<(), StateError>, is_in_doubt: &mut bool) -> Result<(), String> {
    let error = match done {
        Ok(()) => {
            *is_in_doubt = false;
            return Ok(());
        }
        Err(error) => error,
    };
    *is_in_doubt |= matches!(error, StateError::Unsettled { .. });
    Err(if *is_in_doubt {
        format!(
            "{error}. What was asked for is not so, but may be after the next start of the switch; until it can keep \
             again what it goes by, it changes nothing: see to its state folder, and ask it again"
        )
    } else {
        format!("it cannot be kept: {error}")
    })
}

/// The partitions of a switch, as it keeps them.
pub(super) struct Partitions {
    ownership: Ownership,
    /// In the order of the table.
    ports: Vec<SwitchPort>,
    /// Who was told to be behind which of them.
    peers: BTreeMap<String, SocketAddr>,
    doubts: Doubts,
    listed: Listed,
    refused: RateLimited,
}

impl Partitions {
    /// Those of the configuration, but as they were when the switch ran last; and the table of that, if it was kept.
    pub(super) fn new(
        mut ownership: Ownership,
        ports: Vec<SwitchPort>,
        state: &StateDir,
    ) -> Result<(Self, Option<Table>), Failure> {
        let kept = partitions::read(state)?;
        let restored = kept.map(|kept| restored(&ownership, &kept)).transpose().map_err(|why| {
            let file = state.path().join("partitions");
            Failure::refused(format_args!(
                "what was kept of the partitions of this switch does not fit its file: {why}. Put back into the file \
                 what it named, or remove {} and have the owners take their partitions anew, by greater epochs",
                file.display()
            ))
        })?;
        let table = restored.map(|restored| ownership.apply(restored));
        let peers = partitions::read_peers(state)?;
        let (doubts, listed, refused) = (Doubts::default(), Listed::default(), RateLimited::default());
        let mut all = Self { ownership, ports, peers: BTreeMap::new(), doubts, listed, refused };
        all.restore_peers(peers).map_err(|why| {
            let file = state.path().join("peers");
            Failure::refused(format_args!(
                "what was told of the peers of this switch's ports does not fit its file: {why}. Put back into the \
                 file what it named, or remove {} and have them told anew",
                file.display()
            ))
        })?;
        all.list();
        Ok((all, table))
    }

    fn restore_peers(&mut self, peers: BTreeMap<String, SocketAddr>) -> Result<(), String> {
        let place = |(name, peer): (&String, &SocketAddr)| {
            let at = self.ports.iter().position(|port| port.name == *name);
            at.map(|at| (at, *peer)).ok_or_else(|| format!("there is no port `{name}`"))
        };
        let placed = peers.iter().map(place).collect::<Result<Vec<_>, String>>()?;
        for &(at, peer) in &placed {
            self.ports[at].peer = Some(peer.into());
        }
        // Not one by one: what the file says of a port that was told another one is in nobody's way.
        placed.into_iter().try_for_each(|(at, peer)| self.check_peer(at, peer))?;
        self.peers = peers;
        Ok(())
    }

    /// Whether this can be behind the port in a place.
    fn check_peer(&self, at: usize, peer: SocketAddr) -> Result<(), String> {
        let port = &self.ports[at];
        let others =
            self.ports.iter().enumerate().filter(|(other, it)| *other != at && it.listen == port.listen);
        let mut others = others.filter(|(_, it)| it.peer == Some(peer.into()));
        match (peer_problem(peer.into(), Some(&port.listen)), others.next()) {
            (Some(why), _) => Err(format!("behind port `{}`, {peer}: {why}", port.name)),
            (None, Some((_, other))) => Err(format!(
                "{peer} cannot be behind port `{}`: it is behind port `{}` already, and what comes from there can be \
                 of one port only",
                port.name, other.name
            )),
            (None, None) => Ok(()),
        }
    }

    /// The ports, in the order of the table.
    pub(super) fn ports(&self) -> &[SwitchPort] {
        &self.ports
    }

    /// As `status` sees them.
    pub(super) fn listed(&self) -> Listed {
        self.listed.clone()
    }

    fn list(&self) {
        self.listed.set(self.ownership.partitions().iter().map(shown).collect());
    }

    /// Does what `who` asks for; `place` has the switch forward by it.
    fn act(
        &mut self,
        who: NodeId,
        question: &[u8],
        kept: &dyn Keep,
        place: &dyn Fn(Placing) -> Result<(), String>,
    ) -> Reply {
        let done = self.decide(who, question).and_then(|(decision, events)| {
            if decision.is_some() {
                self.settle(kept)?;
            }
            match decision {
                None => {}
                Some(Decision::Change(change)) => {
                    let next: Vec<SwitchPartition> = change.partitions().iter().map(shown).collect();
                    settled(kept.partitions(&next), &mut self.doubts.partitions)?;
                    place(Placing::Table(self.ownership.apply(change)))?;
                    self.list();
                }
                Some(Decision::Peer(at, peer)) => {
                    let mut peers = self.peers.clone();
                    peers.insert(self.ports[at].name.clone(), peer);
                    settled(kept.peers(&peers), &mut self.doubts.peers)?;
                    (self.peers, self.ports[at].peer) = (peers, Some(peer.into()));
                    place(Placing::Peer(at, peer.into()))?;
                }
            }
            Ok(events)
        });
        match done {
            Ok(events) => {
                events.iter().for_each(Event::say);
                Reply::Done { partitions: self.listed.get() }
            }
            Err(why) => {
                self.listed.note_refused();
                self.refused.say(|others| {
                    Event::ControlRefused { node: who.to_string(), why: why.clone(), others }.say();
                });
                Reply::Refused { why }
            }
        }
    }

    /// Keeps what the switch goes by where something else may be kept: what comes next builds on it.
    fn settle(&mut self, kept: &dyn Keep) -> Result<(), String> {
        if self.doubts.partitions {
            let present: Vec<SwitchPartition> = self.ownership.partitions().iter().map(shown).collect();
            settled(kept.partitions(&present), &mut self.doubts.partitions)?;
        }
        if self.doubts.peers {
            settled(kept.peers(&self.peers), &mut self.doubts.peers)?;
        }
        Ok(())
    }

    fn decide(&self, who: NodeId, question: &[u8]) -> Result<(Option<Decision>, Vec<Event>), String> {
        if !self.ownership.is_known(who) {
            return Err(format!(
                "{who} may take no partition here: name it in `owners` of one, in the switch's file"
            ));
        }
        let order: Order = serde_json::from_slice(question)
            .map_err(|_| "it is no order that this version knows".to_owned())?;
        let node = who.to_string();
        match order {
            Order::Show {} => Ok((None, Vec::new())),
            Order::Take { partitions, epoch } => {
                let change = self.ownership.take(who, &partitions, epoch).map_err(|it| it.to_string())?;
                let now = change.partitions();
                let taken = now.into_iter().filter(|it| partitions.contains(&it.name)).map(|it| {
                    let (partition, epoch) = (it.name, it.owner.epoch);
                    Event::PartitionTaken { partition, node: node.clone(), epoch }
                });
                let taken = taken.collect();
                Ok((Some(Decision::Change(change)), taken))
            }
            Order::Move { ports, to, epochs } => {
                let moved = self.ownership.move_ports(who, &ports, &to, &epochs);
                let change = moved.map_err(|it| it.to_string())?;
                let event = Event::PortsMoved { ports: ports.join(", "), partition: to, node };
                Ok((Some(Decision::Change(change)), vec![event]))
            }
            Order::Peer { port, peer, epochs } => {
                let at = self.ownership.port(who, &port, &epochs).map_err(|it| it.to_string())?;
                self.check_peer(at, peer)?;
                let event = Event::PeerTold { port, peer: peer.to_string(), node };
                Ok((Some(Decision::Peer(at, peer)), vec![event]))
            }
        }
    }
}

fn restored(ownership: &Ownership, kept: &[SwitchPartition]) -> Result<Change, String> {
    let owned = |it: &SwitchPartition| {
        let node = it.owner.as_ref().map(|owner| owner.parse::<NodeId>()).transpose();
        let node = node.map_err(|_| format!("`{}` has an owner that is no node", it.name))?;
        let owner = Owner { node, epoch: it.epoch };
        Ok(OwnedPartition { name: it.name.clone(), owner, ports: it.ports.clone() })
    };
    let kept = kept.iter().map(owned).collect::<Result<Vec<_>, String>>()?;
    ownership.restore(&kept).map_err(|error| error.to_string())
}

fn shown(it: &OwnedPartition) -> SwitchPartition {
    SwitchPartition {
        name: it.name.clone(),
        owner: it.owner.node.map(|node| node.to_string()),
        epoch: it.owner.epoch,
        ports: it.ports.clone(),
    }
}

/// Where a switch is told of its partitions. Dropped, it is told no more.
pub(super) struct Control {
    pub(super) url: SwitchUrl,
    placed: Receiver<Placed>,
    wake: Arc<OwnedFd>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// The socket of one at this address.
    pub(super) fn bind(at: SocketAddr) -> Result<UdpSocket, Failure> {
        UdpSocket::bind(at).map_err(|error| super::super::rails::unbound(at, &error))
    }

    /// Listens there, as the node of this folder.
    pub(super) fn start(
        socket: UdpSocket,
        partitions: Partitions,
        state: &Arc<StateDir>,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::io("cannot listen for who moves ports", &error);
        socket.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let url = SwitchUrl { key: state.identity().public(), at: socket.local_addr().map_err(failed)? };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(|error| failed(error.into()))?);
        let (sender, placed) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let mut own = Thread {
            socket,
            answerer: Answerer::new(
                state.identity().clone(),
                Instant::ZERO,
                state_dir::random(state.path())?,
            ),
            partitions,
            dropped: Said::default(),
            state: Arc::clone(state),
            to_switch: sender,
            wake: Arc::clone(&wake),
        };
        let until = Arc::clone(&ends);
        let thread = std::thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || own.run(&until)).map_err(failed)?;
        Ok(Self { url, placed, wake, ends, thread: Some(thread) })
    }

    /// Applies what was decided since, between two frames.
    pub(super) fn turn(&self, switch: &mut Switch) {
        // It only wakes.
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        for Placed { what, done } in self.placed.try_iter() {
            match what {
                Placing::Table(table) => switch.set_table(table),
                Placing::Peer(port, peer) => switch.set_peer(port, peer),
            }
            let _ = done.send(());
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Who waits for a table to be applied is told that it is not.
        self.placed = channel().1;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Thread {
    socket: UdpSocket,
    answerer: Answerer,
    partitions: Partitions,
    /// Of what is not answered.
    dropped: Said,
    state: Arc<StateDir>,
    to_switch: Sender<Placed>,
    wake: Arc<OwnedFd>,
}

impl Thread {
    fn run(&mut self, ends: &AtomicBool) {
        let began = SystemInstant::now();
        let mut buffer = vec![0; DATAGRAM_MAX];
        while !ends.load(Ordering::Relaxed) {
            let (len, from) = match self.socket.recv_from(&mut buffer) {
                Ok(received) => received,
                Err(error) => {
                    let is_usual = matches!(
                        error.kind(),
                        // Nothing came, or one of those who are gone has left that behind.
                        ErrorKind::WouldBlock
                            | ErrorKind::TimedOut
                            | ErrorKind::Interrupted
                            | ErrorKind::ConnectionRefused
                    );
                    if !is_usual {
                        std::thread::sleep(LOOK);
                    }
                    continue;
                }
            };
            if let Some(reply) = self.hear(Instant::ZERO + began.elapsed(), from, &buffer[..len]) {
                // One that is lost is asked for again.
                let _ = self.socket.send_to(&reply, from);
            }
        }
    }

    /// What goes back for a datagram.
    fn hear(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        // Without random numbers nobody is answered.
        let entropy = state_dir::random(self.state.path()).ok()?;
        let Self { partitions, state, to_switch, wake, .. } = self;
        let place = |what| place(to_switch, wake, what);
        let mut act = |key: &PublicKey, question: &[u8]| {
            let reply = partitions.act(key.id(), question, &**state, &place);
            serde_json::to_vec(&reply).expect("a reply is plain structs, which serialise")
        };
        match self.answerer.handle(now, source(from), datagram, entropy, &mut act) {
            Ok(reply) => Some(reply),
            Err(why) => {
                self.note_dropped(now, from, why);
                None
            }
        }
    }

    /// Who sends what is not answered may do so as often as he likes: he is counted, and spoken of now and then.
    fn note_dropped(&mut self, now: Instant, from: SocketAddr, why: Dropped) {
        let count = self.partitions.listed.note_dropped();
        if self.dropped.is_due(now, count) {
            let listen = self.socket.local_addr().map(|at| at.to_string()).unwrap_or_default();
            let (from, reason, words) = (from.to_string(), why.name(), why.words());
            Event::ControlDropped { listen, from, reason, count, words }.say();
        }
    }
}

/// Where that is to who counts hosts: an address of IPv4, or the network of 64 bits of one of IPv6, in which one
/// machine may have any number of them.
fn source(from: SocketAddr) -> Source {
    let host = match from.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => (u128::from(ip) >> 64 << 64).to_be_bytes(),
    };
    Source { address: Address::from(RailAddress::from(from)).0, host }
}

/// Has the switch forward by that, and waits until it does.
fn place(to_switch: &Sender<Placed>, wake: &OwnedFd, what: Placing) -> Result<(), String> {
    let ending = || "the switch is ending: ask it again when it is back".to_owned();
    let (done, is_done) = sync_channel(1);
    to_switch.send(Placed { what, done }).map_err(|_| ending())?;
    // It is only a matter of time until it looks.
    let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
    is_done.recv().map_err(|_| ending())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::path::Path;

    use node::NodeKey;
    use node::errand::{Asker, Heard};
    use tracing_subscriber::Layer;
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::config::SwitchConfig;
    use crate::events::Recent;

    const X: &str = "10.0.0.1:7411";
    const Y: &str = "10.0.0.2:7411";
    const Z: &str = "10.0.0.4:7411";

    fn owner() -> NodeId {
        NodeId::numbered(1)
    }

    /// Ports a and b at one address and c at another, with these peers, in a partition that a node may have.
    fn config(a: &str, b: &str, c: &str) -> SwitchConfig {
        let port = |name: &str, listen: &str, peer: &str, base: u32| {
            format!(
                "[[ports]]\nname = \"{name}\"\nlisten = \"{listen}\"\npeer = \"{peer}\"\ndomains = [\"{base}/16\"]\n"
            )
        };
        let text = [
            "control = \"10.0.0.9:7412\"\n".to_owned(),
            port("a", "10.0.0.3:7411", a, 4096),
            port("b", "10.0.0.3:7411", b, 4112),
            port("c", "10.0.1.3:7411", c, 4128),
            format!(
                "[[partitions]]\nname = \"red\"\nports = [\"a\", \"b\", \"c\"]\nowners = [\"{}\"]\n",
                owner()
            ),
        ];
        SwitchConfig::parse(&text.concat(), Path::new("s1.toml")).unwrap()
    }

    fn partitions(config: SwitchConfig, state: &StateDir) -> Result<Partitions, Failure> {
        let SwitchConfig { spec, owners, ports, .. } = config;
        Partitions::new(Ownership::new(spec, owners), ports, state).map(|(partitions, _)| partitions)
    }

    /// One that its owner has taken.
    fn taken(config: SwitchConfig, state: &StateDir) -> Partitions {
        let mut partitions = partitions(config, state).ok().unwrap();
        let take = Order::Take { partitions: vec!["red".to_owned()], epoch: 1 };
        assert!(matches!(order(&mut partitions, state, &take), Reply::Done { .. }));
        partitions
    }

    fn order(partitions: &mut Partitions, kept: &dyn Keep, order: &Order) -> Reply {
        partitions.act(owner(), &serde_json::to_vec(order).unwrap(), kept, &|_| Ok(()))
    }

    fn peer(partitions: &mut Partitions, state: &dyn Keep, port: &str, peer: &str) -> Reply {
        let epochs = BTreeMap::from([("red".to_owned(), 1)]);
        order(partitions, state, &Order::Peer { port: port.to_owned(), peer: peer.parse().unwrap(), epochs })
    }

    fn peers(partitions: &Partitions) -> Vec<String> {
        partitions.ports().iter().map(|port| port.peer.unwrap().to_string()).collect()
    }

    #[test]
    fn a_peer_that_went_from_port_to_port_is_there_after_a_kill() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let mut before = taken(config(X, Y, X), &state);
        let refused = peer(&mut before, &state, "a", Y);
        assert!(
            matches!(refused, Reply::Refused { why } if why.contains("port `a`") && why.contains("port `b`"))
        );
        // Y is free when b has another one.
        assert!(matches!(peer(&mut before, &state, "b", Z), Reply::Done { .. }));
        assert!(matches!(peer(&mut before, &state, "a", Y), Reply::Done { .. }));
        assert_eq!(peers(&before), [Y, Z, X]);
        drop(before);
        let after = partitions(config(X, Y, X), &state).map_err(|failure| failure.to_string());
        assert_eq!(after.as_ref().map(peers).map_err(String::as_str), Ok(vec![Y.into(), Z.into(), X.into()]));
    }

    #[test]
    fn a_file_with_the_peer_that_another_port_was_told_is_refused_by_both() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let mut before = taken(config(X, Y, X), &state);
        assert!(matches!(peer(&mut before, &state, "b", Z), Reply::Done { .. }));
        drop(before);
        // The operator has given Z to the other port of the same address.
        let said = partitions(config(Z, Y, X), &state).err().unwrap().to_string();
        for part in ["port `a`", "port `b`", Z, "remove", "peers"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(partitions(config(X, Y, Z), &state).is_ok(), "at another address it is another port's");
    }

    /// Somebody who knows where a switch takes orders, and no key of it; and one who has its key and may do nothing.
    #[test]
    fn what_is_no_order_is_counted_and_said_once_and_never_answered() {
        let folder = tempfile::tempdir().unwrap();
        let state = Arc::new(StateDir::open(&folder.path().join("state")).unwrap());
        let partitions = partitions(config(X, Y, X), &state).ok().unwrap();
        let listed = partitions.listed();
        let mut thread = Thread {
            socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
            answerer: Answerer::new(state.identity().clone(), Instant::ZERO, [5; 32]),
            partitions,
            dropped: Said::default(),
            state: Arc::clone(&state),
            to_switch: channel().0,
            wake: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
        };
        let asker = |called: PublicKey, number: u64| {
            let order = serde_json::to_vec(&Order::Show {}).unwrap();
            Asker::new(&NodeKey::numbered(2), called, order, (number, [number as u8; 32])).unwrap()
        };
        let mut random =
            std::iter::successors(Some(1_u64), |it| Some(it.wrapping_mul(0x5851_f42d_4c95_7f2d) + 1));
        let mut rubbish = || -> Vec<u8> {
            let len = random.next().unwrap() as usize % 200;
            random.by_ref().flat_map(|it| (it >> 32).to_le_bytes()).take(len).collect()
        };
        let recent = Recent::default();
        let log = tracing_subscriber::registry().with(recent.clone().with_filter(LevelFilter::INFO));
        let from: SocketAddr = X.parse().unwrap();
        tracing::subscriber::with_default(log, || {
            for number in 0..100 {
                let at = Instant::ZERO + Duration::from_millis(number);
                assert_eq!(thread.hear(at, from, &rubbish()), None);
                let call = asker(NodeKey::numbered(3).public(), number);
                assert_eq!(thread.hear(at, from, call.saying()), None);
            }
            assert_eq!(listed.counts(), [("control_dropped", 200), ("control_refused", 0)]);
            let mut known = asker(state.identity().public(), 500);
            let mut heard = Heard::Answer;
            while heard == Heard::Answer {
                let back = thread.hear(Instant::ZERO, from, known.saying()).unwrap();
                heard = known.handle(&back);
            }
            let Heard::Reply(reply) = heard else { panic!("{heard:?}") };
            assert!(matches!(serde_json::from_slice(&reply), Ok(Reply::Refused { .. })));
        });
        assert_eq!(listed.counts(), [("control_dropped", 200), ("control_refused", 1)]);
        let kinds: Vec<String> = recent.lock().read(1, 100).1.into_iter().map(|it| it.kind.clone()).collect();
        assert_eq!(kinds, ["control-dropped", "control-refused"]);
    }

    #[test]
    fn a_host_is_an_address_or_a_network_of_64_bits() {
        let of = |text: &str| source(text.parse().unwrap());
        let (one, other_port) = (of("10.0.0.1:1"), of("10.0.0.1:2"));
        assert!(one.host == other_port.host && one.address != other_port.address);
        assert_eq!(of("[::ffff:10.0.0.1]:1").host, one.host);
        assert_ne!(of("10.0.0.2:1").host, one.host);
        let (one, beside) = (of("[fd00::1]:1"), of("[fd00::2]:1"));
        assert!(one.host == beside.host && one.address != beside.address);
        assert_ne!(of("[fd00:0:0:1::1]:1").host, one.host);
    }

    /// A disk that says no, so that it is not known what is kept; and what came there.
    #[derive(Default)]
    struct Disk {
        fails: Cell<bool>,
        partitions: RefCell<Vec<Vec<SwitchPartition>>>,
        peers: RefCell<Vec<BTreeMap<String, SocketAddr>>>,
    }

    impl Disk {
        fn result(&self) -> Result<(), StateError> {
            let error = std::io::Error::from_raw_os_error(5);
            if self.fails.get() { Err(StateError::Unsettled { file: "kept".into(), error }) } else { Ok(()) }
        }
    }

    impl Keep for Disk {
        fn partitions(&self, partitions: &[SwitchPartition]) -> Result<(), StateError> {
            self.partitions.borrow_mut().push(partitions.to_vec());
            self.result()
        }

        fn peers(&self, peers: &BTreeMap<String, SocketAddr>) -> Result<(), StateError> {
            self.peers.borrow_mut().push(peers.clone());
            self.result()
        }
    }

    #[test]
    fn where_it_is_not_known_what_is_kept_nothing_is_done_until_that_is() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let mut partitions = taken(config(X, Y, X), &state);
        let take = |epoch| Order::Take { partitions: vec!["red".to_owned()], epoch };
        let refused = |reply| matches!(reply, Reply::Refused { why } if why.contains("after the next start"));
        let disk = Disk::default();
        disk.fails.set(true);
        assert!(refused(peer(&mut partitions, &disk, "b", Z)));
        assert!(refused(order(&mut partitions, &disk, &take(2))));
        assert_eq!(disk.partitions.borrow().len(), 0, "what is not known of the peers comes first");
        assert!(
            matches!(order(&mut partitions, &disk, &Order::Show {}), Reply::Done { .. }),
            "nothing to keep"
        );
        disk.fails.set(false);
        assert!(matches!(order(&mut partitions, &disk, &take(2)), Reply::Done { .. }));
        let none = BTreeMap::new();
        assert_eq!(disk.peers.borrow()[1..], [none.clone(), none], "what the switch goes by");
        assert_eq!(peers(&partitions), [X, Y, X]);
        disk.fails.set(true);
        assert!(refused(order(&mut partitions, &disk, &take(3))));
        disk.fails.set(false);
        assert!(matches!(order(&mut partitions, &disk, &take(3)), Reply::Done { .. }));
        let epochs: Vec<u64> = disk.partitions.borrow().iter().map(|it| it[0].epoch).collect();
        assert_eq!(epochs, [2, 3, 2, 3]);
    }
}
