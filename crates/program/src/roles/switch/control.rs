//! A switch's channel of control: who may take its partitions and move its ports, over UDP ([`node::errand`]).
//!
//! What is changed is durable before it is applied, and applied before it is answered.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant as SystemInstant;

use base::Instant;
use base::ids::NodeId;
use io::event::Event;
use io::rate_limited::RateLimited;
use io::switch::Switch;
use node::PublicKey;
use node::errand::Answerer;
use node::switch::{Change, OwnedPartition, Owner, Ownership};

use crate::exit::Failure;
use crate::state_dir::{self, StateDir, partitions};
use crate::status::SwitchPartition;
use crate::switch_control::{Order, Reply, SwitchUrl};

/// Datagrams taken at a time: frames do not wait for long.
const AT_A_TIME: usize = 16;
/// Most bytes of a datagram.
const DATAGRAM_MAX: usize = 65_535;

/// The partitions of a switch, as it keeps them.
pub(super) struct Partitions {
    ownership: Ownership,
    refused: RateLimited,
}

/// Where it is told of them.
pub(super) struct Control {
    socket: UdpSocket,
    answerer: Answerer<SocketAddr>,
    began: SystemInstant,
    buffer: Box<[u8]>,
    pub(super) url: SwitchUrl,
}

impl Partitions {
    /// Those of the configuration, but as they were when the switch ran last.
    pub(super) fn new(ownership: Ownership, state: &StateDir) -> Result<(Self, Option<Change>), Failure> {
        let kept = partitions::read(state)?;
        let restored = kept.map(|kept| restored(&ownership, &kept)).transpose().map_err(|why| {
            let file = state.path().join("partitions");
            Failure::refused(format_args!(
                "what was kept of the partitions of this switch does not fit its file: {why}. Put back into the file \
                 what it named, or remove {} and have the owners take their partitions anew, by greater epochs",
                file.display()
            ))
        })?;
        Ok((Self { ownership, refused: RateLimited::default() }, restored))
    }

    /// What was restored is so.
    pub(super) fn apply(&mut self, change: Change) -> node::switch::Table {
        self.ownership.apply(change)
    }

    /// As `status` and owners see them.
    pub(super) fn listed(&self) -> Vec<SwitchPartition> {
        self.ownership.partitions().iter().map(shown).collect()
    }

    /// Does what `who` asks for.
    fn act(&mut self, who: NodeId, question: &[u8], state: &StateDir, switch: &mut Switch) -> Reply {
        let done = self.decide(who, question).and_then(|(change, event)| {
            if let Some(change) = change {
                let next: Vec<SwitchPartition> = change.partitions().iter().map(shown).collect();
                partitions::write(state, &next).map_err(|error| format!("it cannot be kept: {error}"))?;
                switch.set_table(self.ownership.apply(change));
            }
            Ok(event)
        });
        match done {
            Ok(events) => {
                events.iter().for_each(Event::say);
                Reply::Done { partitions: self.listed() }
            }
            Err(why) => {
                if let Some(others) = self.refused.may_speak() {
                    Event::ControlRefused { node: who.to_string(), why: why.clone(), others }.say();
                }
                Reply::Refused { why }
            }
        }
    }

    fn decide(&self, who: NodeId, question: &[u8]) -> Result<(Option<Change>, Vec<Event>), String> {
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
                Ok((Some(change), taken))
            }
            Order::Move { ports, to, epochs } => {
                let moved = self.ownership.move_ports(who, &ports, &to, &epochs);
                let change = moved.map_err(|it| it.to_string())?;
                let event = Event::PortsMoved { ports: ports.join(", "), partition: to, node };
                Ok((Some(change), vec![event]))
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

impl Control {
    /// Listens at this address, as the node of this folder.
    pub(super) fn listen(at: SocketAddr, state: &StateDir) -> Result<Self, Failure> {
        let socket = UdpSocket::bind(at).map_err(|error| super::super::rails::unbound(at, &error))?;
        let opened = socket.set_nonblocking(true).and_then(|()| socket.local_addr());
        let at = opened.map_err(|error| Failure::io(format_args!("cannot listen at {at}"), &error))?;
        let key = state.identity().public();
        Ok(Self {
            socket,
            answerer: Answerer::new(state.identity().clone(), Instant::ZERO),
            began: SystemInstant::now(),
            buffer: vec![0; DATAGRAM_MAX].into(),
            url: SwitchUrl { key, at },
        })
    }

    /// Does what was asked since.
    pub(super) fn turn(&mut self, partitions: &mut Partitions, state: &StateDir, switch: &mut Switch) {
        let now = Instant::ZERO + self.began.elapsed();
        for _ in 0..AT_A_TIME {
            let (len, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                // What one of those who are gone has left behind.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            // Without random numbers nobody is answered.
            let Ok(entropy) = state_dir::random(state.path()) else { return };
            let mut act = |key: &PublicKey, question: &[u8]| {
                let reply = partitions.act(key.id(), question, state, switch);
                serde_json::to_vec(&reply).expect("a reply is plain structs, which serialise")
            };
            let reply = self.answerer.handle(now, from, &self.buffer[..len], entropy, &mut act);
            if let Some(reply) = reply {
                // One that is lost is asked for again.
                let _ = self.socket.send_to(&reply, from);
            }
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
