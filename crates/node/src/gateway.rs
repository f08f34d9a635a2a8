//! The switch that a rail leads to: whether it is there, as far as it says so.
//!
//! A switch says at its ports who it is, and no other switch passes that on, so what is heard on a rail that leads to
//! one is of that one. Who it was is known for as long as the rail leads there, be it silent. One that has never said
//! who it is may be told not to, and nothing follows from its silence.

use core::time::Duration;

use base::Instant;
use base::ids::NodeId;
use link::Name;
use link::information::Role;

use crate::Address;
use crate::neighbourhood::{ANNOUNCE_EVERY, Neighbour, PATIENCE};

/// Where all frames of a rail go, and what was heard from there.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The port of the switch.
    pub address: Address,
    /// Who has said last that it takes frames there.
    pub switch: Option<GatewaySwitch>,
    /// When anything has come from there last: of the switch itself, or what it has passed on.
    passed: Option<Instant>,
}

/// A switch that has said who it is.
#[derive(Clone, Debug)]
pub struct GatewaySwitch {
    /// Whom it says it is.
    pub node: NodeId,
    /// What it calls itself.
    pub name: Name,
    /// Where it takes frames.
    pub ports: Vec<Address>,
    /// When it was heard last.
    pub heard: Instant,
    /// So long that counts.
    patience: Duration,
}

/// Whether a switch is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GatewayState {
    /// It says so.
    Heard,
    /// It said so, and nothing comes from there any more.
    Silent,
    /// It has never said so, or says so no more and passes frames on.
    Unknown,
}

impl Gateway {
    pub(crate) fn new(address: Address) -> Self {
        Self { address, switch: None, passed: None }
    }

    /// A frame of this one has come from there.
    pub(crate) fn hear(&mut self, now: Instant, node: NodeId, it: &Neighbour) {
        self.passed = Some(now);
        if it.role == Role::Switch && it.ports.iter().any(|(port, _)| *port == self.address) {
            let ports = it.ports.iter().map(|(port, _)| *port).collect();
            let (name, patience) = (it.name, it.patience());
            self.switch = Some(GatewaySwitch { node, name, ports, heard: now, patience });
        }
    }

    /// Whether it is there.
    pub fn state(&self, now: Instant) -> GatewayState {
        let is_within = |at: Instant, limit| now.since(at) <= limit;
        match &self.switch {
            None => GatewayState::Unknown,
            Some(it) if is_within(it.heard, it.patience) => GatewayState::Heard,
            // It may have been told to say nothing of itself meanwhile.
            Some(_) if self.passed.is_some_and(|at| is_within(at, ANNOUNCE_EVERY * PATIENCE)) => {
                GatewayState::Unknown
            }
            Some(_) => GatewayState::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ids::{DomainBlock, Group, Incarnation, RailId};
    use link::NodeKey;
    use link::information::{Announcer, Item, write};

    use super::*;
    use crate::{MAX_RAILS, Neighbourhood};

    const HERE: Address = Address([7; 28]);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// A node whose second rail leads to a switch.
    fn behind(address: Address) -> Neighbourhood {
        let mut all = Neighbourhood::new(at(0), NodeId::default(), None);
        all.lead(lead(address));
        all
    }

    fn lead(address: Address) -> [Option<Address>; MAX_RAILS] {
        let mut gateways = [None; MAX_RAILS];
        gateways[1] = Some(address);
        gateways
    }

    fn hear(all: &mut Neighbourhood, ms: u64, (role, number): (Role, u64), items: &[Item]) {
        let key = NodeKey::numbered(number).public();
        let announcer = Announcer {
            role,
            key,
            domains: DomainBlock::of(key.id()),
            name: Name::new("s1"),
            interval_s: 5,
            incarnation: Incarnation(1),
            number: ms,
            rail: RailId::ALL[0],
            group: Group::DEFAULT,
        };
        let frame = write(&announcer, items).0;
        all.hear(at(ms), RailId::ALL[1], &frame, |address| Some(Address(address)));
    }

    fn state(all: &Neighbourhood, ms: u64) -> GatewayState {
        let all: Vec<_> = all.gateways().collect();
        let [(rail, gateway)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((*rail, gateway.address), (RailId::ALL[1], HERE));
        gateway.state(at(ms))
    }

    #[test]
    fn a_switch_that_was_heard_is_known_when_it_is_silent() {
        let mut all = behind(HERE);
        assert_eq!(state(&all, 0), GatewayState::Unknown);
        hear(&mut all, 1_000, (Role::Switch, 1), &[Item::Port(HERE.0), Item::Port([8; 28])]);
        assert_eq!([1_000, 16_000].map(|ms| state(&all, ms)), [GatewayState::Heard; 2]);
        assert_eq!(all.nodes(at(60_000_000)).count(), 0);
        assert_eq!([16_001, 60_000_000].map(|ms| state(&all, ms)), [GatewayState::Silent; 2]);
        let switch = all.gateways().next().and_then(|(_, it)| it.switch.clone()).unwrap();
        assert_eq!((switch.node, switch.heard), (NodeKey::numbered(1).public().id(), at(1_000)));
        assert_eq!((switch.name, switch.ports), (Name::new("s1"), vec![HERE, Address([8; 28])]));
        // It is back; another one is in its place; the rail leads elsewhere, and back.
        hear(&mut all, 60_000_001, (Role::Switch, 1), &[Item::Port(HERE.0)]);
        assert_eq!(state(&all, 60_000_001), GatewayState::Heard);
        hear(&mut all, 60_000_002, (Role::Switch, 2), &[Item::Port(HERE.0)]);
        let node = |all: &Neighbourhood| all.gateways().next()?.1.switch.as_ref().map(|it| it.node);
        assert_eq!(node(&all), Some(NodeKey::numbered(2).public().id()));
        all.lead(lead(HERE));
        assert!(node(&all).is_some());
        all.lead(lead(Address([9; 28])));
        all.lead(lead(HERE));
        assert_eq!(state(&all, 60_000_003), GatewayState::Unknown);
    }

    #[test]
    fn nothing_follows_from_the_silence_of_one_that_says_nothing_of_itself() {
        let mut all = behind(HERE);
        // A node behind it, another switch, and one that is nobody's gateway here.
        hear(&mut all, 0, (Role::Node, 1), &[Item::Port(HERE.0)]);
        hear(&mut all, 0, (Role::Switch, 2), &[Item::Port([8; 28])]);
        assert_eq!([0, 60_000].map(|ms| state(&all, ms)), [GatewayState::Unknown; 2]);
        // It was started anew by a file by which it says nothing, and passes on what others say, until it dies.
        hear(&mut all, 0, (Role::Switch, 3), &[Item::Port(HERE.0)]);
        hear(&mut all, 14_000, (Role::Node, 1), &[]);
        assert_eq!(
            [15_000, 15_001, 29_000, 29_001].map(|ms| state(&all, ms)),
            [GatewayState::Heard, GatewayState::Unknown, GatewayState::Unknown, GatewayState::Silent]
        );
    }
}
