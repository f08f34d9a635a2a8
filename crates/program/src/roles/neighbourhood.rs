//! What a node says of itself on its rails, whom it hears there, and where a node that is named is today.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::ids::{Group, NodeId, RailId};
use io::address::{Addresses, RailAddress};
use io::agent::{Agent, Rail};
use io::discovery::{Counts, Discovery, Said};
use io::rail::ethernet::EthernetSocket;
use management::wire::{PORTS_MAX, SWITCHES_MAX, SwitchSaid};
use node::information::{Item, Role};
use node::{Address, GatewayState, MAX_RAILS, Name, Neighbour};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::report;
use crate::exit::Failure;
use crate::line::Line;
use crate::status::{self, Peer, PeerFunction, PeerGateway, PeerRail, Peers};

/// What a node says of itself.
pub(super) fn said(agent: &Agent) -> Said {
    let view = agent.view();
    let spec = view.spec();
    let rail = |rail: &Rail| Item::Rail {
        rail: rail.id,
        is_up: agent.has_carrier(rail.id),
        address: Address::from(rail.socket.local()).0,
        gateway: rail.gateway.map_or([0; 28], |gateway| Address::from(gateway).0),
    };
    let mut functions: Vec<(Group, Vec<Item>)> = Vec::new();
    for (loan, cells) in view.loans().filter(|(loan, _)| !loan.is_vacant()) {
        let lent = loan.lent().map(|_| {
            let (bytes, read_only) = report::extent(&view, loan, cells);
            let lent_to = report::is_open(cells).then(|| cells.edge().peer()).flatten().map(|(node, _)| node);
            Item::Function { name: Name::new(&loan.function), bytes, read_only, lent_to }
        });
        match functions.iter_mut().find(|(group, _)| *group == loan.zone()) {
            Some((_, items)) => items.extend(lent),
            None => functions.push((loan.zone(), lent.into_iter().collect())),
        }
    }
    if functions.is_empty() {
        functions.push((Group::DEFAULT, Vec::new()));
    }
    Said {
        key: spec.identity.public(),
        domains: spec.domains,
        name: Name::new(&spec.name),
        incarnation: base::ids::Incarnation(spec.incarnation),
        rails: spec.rails.iter().map(rail).collect(),
        functions,
    }
}

/// Whom a node has heard.
pub(super) fn peers(agent: &Agent, discovery: &mut Discovery) -> Peers {
    let view = agent.view();
    let rails = &view.spec().rails;
    let name = |rail: &Rail| rail.name.clone();
    let takes_part = |rail: &&Rail| discovery.takes_part(rail.id);
    let own = rails.iter().filter(takes_part).map(name).collect();
    let Counts { heard, malformed, notices_sent, notices_heard } = discovery.counts();
    let gateways = gateways(rails, discovery);
    let (ago, nodes) = discovery.nodes();
    let peer = |(id, it): (NodeId, &Neighbour)| {
        let is_heard =
            |rail: &&Rail| it.heard_on[rail.id.index()].is_some_and(|at| it.is_fresh(ago.now(), at));
        Peer {
            role: if it.role == Role::Switch { "switch" } else { "node" }.to_owned(),
            name: it.name.to_string(),
            node: id.to_string(),
            domains: format!("{}/{}", it.domains.0, it.domains.1),
            since_s: ago.seconds(it.since),
            heard_s: ago.seconds(it.heard),
            contested: it.contested.is_some(),
            member: it.member.is_some_and(|at| it.is_fresh(ago.now(), at)),
            over: rails.iter().filter(is_heard).map(name).collect(),
            rails: it.rails.iter().enumerate().filter_map(|(at, rail)| Some(rail_of(at, (*rail)?))).collect(),
            ports: it.ports.iter().map(|(address, _)| text_of(*address)).collect(),
            functions: it.functions.iter().map(|((group, _), it)| function_of(*group, it)).collect(),
        }
    };
    Peers {
        version: status::VERSION,
        node: view.spec().name.clone(),
        rails: own,
        peers: nodes.map(peer).collect(),
        gateways,
        heard_frames: heard,
        malformed_frames: malformed,
        notices_sent,
        notices_heard,
    }
}

/// The switches that a node hears, or has heard, for its manager.
pub(super) fn switches(agent: &Agent, discovery: &mut Discovery) -> Vec<SwitchSaid> {
    let view = agent.view();
    let rails = &view.spec().rails;
    let (ago, led) = discovery.gateways();
    let mut switches: BTreeMap<NodeId, SwitchSaid> = BTreeMap::new();
    for (id, gateway) in led {
        let (Some(rail), Some(it)) = (rails.iter().find(|rail| rail.id == id), &gateway.switch) else {
            continue;
        };
        let ports = it.ports.iter().map(|port| text_of(*port)).collect();
        let is_heard = gateway.state(ago.now()) == GatewayState::Heard;
        add_switch(&mut switches, it.node, &it.name, is_heard, core::slice::from_ref(&rail.name), ports);
    }
    let (ago, nodes) = discovery.nodes();
    for (id, it) in nodes.filter(|(_, it)| it.role == Role::Switch) {
        let is_heard =
            |rail: &&Rail| it.heard_on[rail.id.index()].is_some_and(|at| it.is_fresh(ago.now(), at));
        let over: Vec<String> = rails.iter().filter(is_heard).map(|rail| rail.name.clone()).collect();
        let ports = it.ports.iter().map(|(address, _)| text_of(*address)).collect();
        add_switch(&mut switches, id, &it.name, !over.is_empty(), &over, ports);
    }
    switches.into_values().take(SWITCHES_MAX).collect()
}

fn add_switch(
    switches: &mut BTreeMap<NodeId, SwitchSaid>,
    node: NodeId,
    name: &Name,
    is_heard: bool,
    rails: &[String],
    ports: Vec<String>,
) {
    let empty = || {
        let (name, rails, ports) = (name.to_string(), Vec::new(), Vec::new());
        SwitchSaid { node, name, is_heard: false, rails, ports }
    };
    let known = switches.entry(node).or_insert_with(empty);
    known.is_heard |= is_heard;
    for (list, more, most) in
        [(&mut known.rails, rails.to_vec(), MAX_RAILS), (&mut known.ports, ports, PORTS_MAX)]
    {
        list.extend(more);
        list.sort_unstable();
        list.dedup();
        list.truncate(most);
    }
}

/// The switches that these rails lead to.
fn gateways(rails: &[Rail], discovery: &Discovery) -> Vec<PeerGateway> {
    let (ago, all) = discovery.gateways();
    let gateway = |(id, it): (RailId, &node::Gateway)| {
        let rail = rails.iter().find(|rail| rail.id == id)?.name.clone();
        let switch = it.switch.as_ref();
        let state = match it.state(ago.now()) {
            GatewayState::Heard => "heard",
            GatewayState::Silent => "silent",
            GatewayState::Unknown => "unknown",
        };
        Some(PeerGateway {
            rail,
            address: text_of(it.address),
            state: state.to_owned(),
            node: switch.map(|switch| switch.node.to_string()),
            name: switch.map(|switch| switch.name.to_string()).unwrap_or_default(),
            heard_s: switch.map(|switch| ago.seconds(switch.heard)),
            ports: switch.iter().flat_map(|switch| &switch.ports).map(|port| text_of(*port)).collect(),
        })
    };
    all.filter_map(gateway).collect()
}

fn text_of(address: Address) -> String {
    RailAddress::try_from(address).map_or_else(|why| why.to_string(), |address| address.to_string())
}

fn rail_of(at: usize, rail: node::NeighbourRail) -> PeerRail {
    PeerRail {
        rail: at as u8,
        address: text_of(rail.address),
        switch: rail.gateway.map(text_of),
        state: if rail.is_up { "up" } else { "down" }.to_owned(),
    }
}

fn function_of(group: Group, function: &node::NeighbourFunction) -> PeerFunction {
    PeerFunction {
        function: function.name.to_string(),
        group: group.0,
        bytes: function.bytes,
        read_only: function.read_only,
        lent_to: function.lent_to.map(|node| node.to_string()),
    }
}

/// The line of a function at the addresses where its lender, which calls itself `name`, says it is now. The addresses
/// of `line` are not used; that it is the lender's is shown when it answers, by the line's key.
///
/// # Errors
/// It was not heard within `patience`, or says what does not fit.
pub(super) fn locate(
    name: &str,
    line: &Line,
    interfaces: Vec<EthernetSocket>,
    patience: Duration,
) -> Result<Line, Failure> {
    let key = line.lender().key;
    let over_ethernet = !interfaces.is_empty();
    let mut discovery = Discovery::listening(NodeId::default(), interfaces);
    if discovery.sockets().next().is_none() {
        return Err(Failure::refused(
            "cannot listen for nodes: no interface of this machine takes multicast; borrow by the whole line",
        ));
    }
    let until = Instant::now() + patience;
    // Of names that somebody else has.
    let mut other = None;
    loop {
        wait(&discovery, until)?;
        discovery.receive();
        let (_, nodes) = discovery.nodes();
        for (id, it) in nodes {
            let is_it = it.key == key;
            let calls_itself_so = it.name.to_string() == name;
            if is_it && !calls_itself_so {
                return Err(Failure::refused(format!(
                    "the lender of this line, {id}, calls itself {} and not {name}",
                    status::shown(&it.name.to_string())
                )));
            }
            if is_it && it.contested.is_some() {
                return Err(Failure::refused(format!(
                    "two nodes say that they are {name}, at different addresses: end one of them, or borrow by the \
                     whole line"
                )));
            }
            other = other.or((calls_itself_so && !is_it).then_some(id));
            let addresses = addresses_of(it, over_ethernet);
            if is_it && !addresses.is_empty() {
                let found =
                    Line::new(line.lender(), line.secret().clone(), addresses, line.function().clone());
                return Ok(found.map_err(Failure::refused)?.in_group(line.group()));
            }
        }
        if until <= Instant::now() {
            let seconds = patience.as_secs();
            return Err(match other {
                Some(id) => Failure::refused(format!(
                    "a node that calls itself {name} is there, but it is {id}, and the line's lender is {}",
                    key.id()
                )),
                None => Failure::unreachable(format!(
                    "no node called {name} was heard within {seconds} s: is it running, on a network that this machine \
                     is on, and does it announce itself there (`causeway peers` on its side)?"
                )),
            });
        }
    }
}

/// Where it can be called from here: not by way of a switch, and over Ethernet only by an interface that was named.
fn addresses_of(it: &Neighbour, over_ethernet: bool) -> Addresses {
    let mut addresses = Addresses::NONE;
    for (id, rail) in RailId::ALL.into_iter().zip(&it.rails) {
        let usable = rail.filter(|rail| rail.gateway.is_none() && rail.is_up);
        let address = usable.and_then(|rail| RailAddress::try_from(rail.address).ok());
        let is_reached = |address: &RailAddress| match address {
            RailAddress::Udp(at) => at.port() > 0,
            RailAddress::Ethernet(_) => over_ethernet,
        };
        if let Some(address) = address.filter(is_reached) {
            addresses.set(id, address);
        }
    }
    addresses
}

fn wait(discovery: &Discovery, until: Instant) -> Result<(), Failure> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut watched: Vec<_> =
        discovery.sockets().map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)).collect();
    match rustix::event::poll(&mut watched, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(Failure::io("cannot wait for nodes", &errno.into())),
    }
}
