//! The sockets of a node's rails.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use base::ids::RailId;
use io::address::{Addresses, RailAddress};
use io::agent;
use io::event::Event;
use io::rail::ethernet::{self, EthernetSocket, Interface};
use io::rail::udp::UdpSocket;
use io::rail::{self, RailOptions, RailSocket};
use rustix::io::Errno;

use crate::cli::{Listen, PORT_FIRST};
use crate::config::Rail;
use crate::exit::{Exit, Failure};
use crate::line::RAILS_MAX;
use crate::state_dir::StateDir;

/// Ports tried from the first one on.
const PORTS_TRIED: u16 = 1000;

/// Binds the addresses that were chosen, else the machine's global ones, else loopback. Addresses without a port share
/// one: that of the last time, so that lines stay what they are, else the first that is free.
pub(super) fn listen(chosen: &[Rail], state: &mut StateDir) -> Result<Vec<agent::Rail>, Failure> {
    let chosen = if chosen.is_empty() { named(default_addresses()) } else { chosen.to_vec() };
    if let Some(rail) = stands_twice(&chosen) {
        return Err(Failure::usage(format!(
            "{} stands twice among the addresses to listen at; each rail needs one of its own",
            rail.listen
        )));
    }
    if chosen.iter().all(|rail| rail.listen.is_whole()) {
        return bind_all(&chosen, 0);
    }
    if let Some(port) = state.port() {
        return bind_all(&chosen, port).map_err(|failure| {
            let advice =
                "the line names this port; end whoever has it, or choose one with --listen ADDR:PORT";
            Failure::new(failure.exit(), format!("{}; {advice}", failure.message()))
        });
    }
    for port in PORT_FIRST..PORT_FIRST + PORTS_TRIED {
        match bind_all(&chosen, port) {
            Ok(rails) => {
                state.set_port(port).map_err(Failure::refused)?;
                return Ok(rails);
            }
            Err(failure) if failure.exit() == Exit::Refused && is_taken(&chosen, port) => {}
            Err(failure) => return Err(failure),
        }
    }
    let last = PORT_FIRST + PORTS_TRIED - 1;
    Err(Failure::refused(format!(
        "no UDP port from {PORT_FIRST} to {last} is free; choose one with --listen ADDR:PORT"
    )))
}

/// Rails toward lenders, `least` of them at least: those that these addresses are on, and what lies between them.
/// `interfaces` lead to those on Ethernet, in their order. What cannot be used is left out if there are other ways.
pub(super) fn toward(
    addresses: &Addresses,
    least: usize,
    interfaces: &[String],
) -> Result<Vec<agent::Rail>, Failure> {
    let on_ethernet = addresses.iter().filter(|(_, address)| address.udp().is_none()).count();
    if let Some(interface) = interfaces.get(on_ethernet) {
        return Err(Failure::usage(format!(
            "interface {interface} leads to no address: the line has {on_ethernet} that begin with `eth:`"
        )));
    }
    let has_others = addresses.len() > on_ethernet;
    let mut interfaces = interfaces.iter();
    let mut rails = Vec::new();
    for id in RailId::ALL.into_iter().take(addresses.rails().max(least)) {
        let name = format!("rail{id}");
        let bound = match addresses.get(id) {
            Some(lender @ RailAddress::Ethernet(_)) => {
                let interface = interfaces.next().cloned().map_or_else(only_interface, Ok);
                interface.and_then(|interface| toward_ethernet(interface, lender))
            }
            other => bind(&any_address(other), 0, true),
        };
        match bound {
            Ok(socket) => rails.push(agent::Rail { id, name, socket, gateway: None, announces: true }),
            Err(failure) if has_others && addresses.get(id).is_some_and(|it| it.udp().is_none()) => {
                Event::RailUnused { rail: name, why: failure.message().to_owned() }.say();
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(rails)
}

/// A rail by this interface to a lender on its segment.
fn toward_ethernet(interface: String, lender: RailAddress) -> Result<Box<dyn RailSocket>, Failure> {
    let socket = bind(&Listen::Ethernet { interface: interface.clone() }, 0, true)?;
    if socket.local() == lender {
        return Err(Failure::refused(format!(
            "{lender} is {interface} of this very machine, and nodes do not hear each other by an Ethernet interface \
             that both use: have the lender listen at an address of UDP as well, such as --listen 127.0.0.1"
        )));
    }
    Ok(socket)
}

/// Rails behind these ports of switches, in their order, at the places of `listen`, which the switches know.
pub(super) fn behind(switches: &[RailAddress], listen: &[Listen]) -> Result<Vec<Rail>, Failure> {
    if listen.len() > switches.len() || switches.len() > RAILS_MAX {
        return Err(Failure::usage(format!(
            "there are {} --listen and {} --switch: each rail has one of both, and there are at most {RAILS_MAX}",
            listen.len(),
            switches.len()
        )));
    }
    let mut listen = listen.iter().cloned();
    let places = switches.iter().map(|switch| match (listen.next(), switch) {
        (Some(listen), _) => Ok(with_port(listen)),
        (None, RailAddress::Ethernet(_)) => Ok(Listen::Ethernet { interface: only_interface()? }),
        (None, RailAddress::Udp(_)) => Err(Failure::usage(format!(
            "the switch {switch} sends only to where it knows this node to be: say the `peer` of its port as --listen \
             ADDR[:PORT]"
        ))),
    });
    with_switches(named(places.collect::<Result<_, Failure>>()?), switches)
}

/// The usual port, where none was chosen: the switch has to know it.
fn with_port(listen: Listen) -> Listen {
    match listen {
        Listen::Udp { address, port } => Listen::Udp { address, port: port.or(Some(PORT_FIRST)) },
        listen => listen,
    }
}

/// The rails of a node that has one switch for each, or none at all.
pub(super) fn with_switches(mut rails: Vec<Rail>, switches: &[RailAddress]) -> Result<Vec<Rail>, Failure> {
    if switches.is_empty() {
        return Ok(rails);
    }
    if rails.len() != switches.len() {
        return Err(Failure::usage(format!(
            "there are {} --listen and {} --switch: each rail has one of both",
            rails.len(),
            switches.len()
        )));
    }
    for (rail, switch) in rails.iter_mut().zip(switches) {
        crate::cli::check_gateway(*switch, &rail.listen).map_err(Failure::usage)?;
        rail.switch = Some(*switch);
        rail.listen = with_port(rail.listen.clone());
    }
    Ok(rails)
}

/// From anywhere on this machine to an address of this kind.
fn any_address(to: Option<RailAddress>) -> Listen {
    let address = match to.and_then(RailAddress::udp) {
        Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    Listen::Udp { address, port: Some(0) }
}

/// The one Ethernet interface that leads anywhere.
fn only_interface() -> Result<String, Failure> {
    let mut running = io::net::ethernet_interfaces();
    match (running.pop(), running.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(Failure::refused(
            "the lender is reached over Ethernet, and no Ethernet interface of this machine is up; bring one up (`ip \
             link set eth1 up`)",
        )),
        (Some(last), false) => {
            running.push(last);
            let names = running.join(", ");
            Err(Failure::usage(format!(
                "the lender is reached over Ethernet, and several interfaces are up here: {names}; say which leads \
                 there, as --ethernet {}",
                running[0]
            )))
        }
    }
}

/// Rails that nobody has named: `rail0`, `rail1`, ... in the order of the line.
pub(super) fn named(listen: Vec<Listen>) -> Vec<Rail> {
    let rails = listen.into_iter().enumerate();
    rails
        .map(|(index, listen)| Rail {
            name: format!("rail{index}"),
            listen,
            id: None,
            switch: None,
            announce: true,
            offload: true,
        })
        .collect()
}

/// A rail with the address of one before it.
fn stands_twice(rails: &[Rail]) -> Option<&Rail> {
    let mut rails_behind = rails.iter().enumerate();
    let found = rails_behind.find(|(at, rail)| rails[..*at].iter().any(|it| it.listen == rail.listen));
    found.map(|(_, rail)| rail)
}

fn default_addresses() -> Vec<Listen> {
    let mut addresses = io::net::global_addresses();
    addresses.truncate(RAILS_MAX);
    if addresses.is_empty() {
        addresses.push(Ipv4Addr::LOCALHOST.into());
    }
    addresses.into_iter().map(|address| Listen::Udp { address, port: None }).collect()
}

fn bind_all(chosen: &[Rail], port: u16) -> Result<Vec<agent::Rail>, Failure> {
    let bound = chosen.iter().zip(ids(chosen, &[])?).map(|(rail, id)| {
        let (name, socket) = (rail.name.clone(), bind(&rail.listen, port, rail.offload)?);
        Ok(agent::Rail { id, name, socket, gateway: rail.switch, announces: rail.announce })
    });
    let mut bound: Vec<agent::Rail> = bound.collect::<Result<_, Failure>>()?;
    bound.sort_by_key(|rail| rail.id);
    Ok(bound)
}

/// The ids of rails beside those that are `taken`: what they say, else the lowest that are free.
fn ids(chosen: &[Rail], taken: &[RailId]) -> Result<Vec<RailId>, Failure> {
    let mut taken: Vec<RailId> =
        taken.iter().copied().chain(chosen.iter().filter_map(|rail| rail.id)).collect();
    let id = |rail: &Rail| {
        let free = || {
            let free = RailId::ALL.into_iter().find(|id| !taken.contains(id))?;
            taken.push(free);
            Some(free)
        };
        let full = || Failure::refused(format!("a node has at most {RAILS_MAX} rails"));
        rail.id.or_else(free).ok_or_else(full)
    };
    chosen.iter().map(id).collect()
}

/// Binds rails that come to a node that has these, whose ids they do not take. One that comes where one of those that
/// go listens has that one's socket and id: it is known by them to whoever calls there.
pub(super) fn listen_more(
    chosen: &[Rail],
    present: &[&agent::Rail],
    going: &[&agent::Rail],
    state: &StateDir,
) -> Result<Vec<agent::Rail>, Failure> {
    let taken: Vec<RailId> = present.iter().map(|rail| rail.id).collect();
    if let Some((rail, id)) =
        chosen.iter().find_map(|rail| Some((rail, rail.id.filter(|id| taken.contains(id))?)))
    {
        let other = present.iter().find(|it| it.id == id).map_or("", |it| it.name.as_str());
        return Err(Failure::refused(format!(
            "rail {} cannot have id {id} while rail {other} has it: take that one out of the file and reload first, or \
             choose another id",
            rail.name
        )));
    }
    // All that say nothing else share a port, as at a start.
    let ports = present.iter().chain(going).filter_map(|rail| rail.socket.local().udp());
    let port = state.port().or(ports.map(|local| local.port()).next()).unwrap_or(PORT_FIRST);
    let mut chosen = chosen.to_vec();
    let locals: Vec<Option<RailAddress>> = chosen.iter().map(|rail| local(&rail.listen, port)).collect();
    for at in 0..chosen.len() {
        let before = going.iter().find(|rail| Some(rail.socket.local()) == locals[at]);
        let is_free = |id: RailId| chosen.iter().all(|other| other.id != Some(id));
        if let Some(before) = before.filter(|before| chosen[at].id.is_none() && is_free(before.id)) {
            chosen[at].id = Some(before.id);
        }
    }
    let bound = chosen.iter().zip(locals).zip(ids(&chosen, &taken)?).map(|((rail, local), id)| {
        let before = going.iter().find(|rail| Some(rail.socket.local()) == local && rail.id == id);
        let socket = match before {
            Some(before) => handed_over(&*before.socket, rail.offload)?,
            None => bind(&rail.listen, port, rail.offload).map_err(|failure| {
                let stay = present.iter().map(|rail| (*rail, false));
                let own = stay.chain(going.iter().map(|rail| (*rail, true)));
                local.and_then(|local| in_the_way(&rail.name, local, own)).unwrap_or(failure)
            })?,
        };
        Ok(agent::Rail {
            id,
            name: rail.name.clone(),
            socket,
            gateway: rail.switch,
            announces: rail.announce,
        })
    });
    bound.collect()
}

/// What a rail's socket is to have as its address; `None`: its interface is not there.
fn local(listen: &Listen, port: u16) -> Option<RailAddress> {
    match listen {
        Listen::Udp { address, port: chosen } => {
            Some(SocketAddr::new(*address, chosen.unwrap_or(port)).into())
        }
        Listen::Ethernet { interface } => Some(RailAddress::Ethernet(Interface::find(interface).ok()?.mac)),
    }
}

/// The socket of a rail that goes, for the one that comes at its address.
fn handed_over(socket: &dyn RailSocket, offload: bool) -> Result<Box<dyn RailSocket>, Failure> {
    let fd = socket.as_fd().try_clone_to_owned();
    let copy = fd.and_then(|fd| rail::take_over(fd, offload));
    copy.map_err(|error| Failure::io(format!("cannot go on listening at {}", socket.local()), &error))
}

/// What is to be said where one of the node's own rails, which may be going, listens where another one is to.
fn in_the_way<'a>(
    name: &str,
    local: RailAddress,
    mut own: impl Iterator<Item = (&'a agent::Rail, bool)>,
) -> Option<Failure> {
    let is_there = |rail: &agent::Rail| {
        let (RailAddress::Udp(other), RailAddress::Udp(local)) = (rail.socket.local(), local) else {
            return rail.socket.local() == local;
        };
        let overlaps = other.ip() == local.ip() || other.ip().is_unspecified() || local.ip().is_unspecified();
        other.port() == local.port() && other.is_ipv4() == local.is_ipv4() && overlaps
    };
    let (rail, is_going) = own.find(|(rail, _)| is_there(rail))?;
    let (before, at, id) = (&rail.name, rail.socket.local(), rail.id);
    Some(Failure::refused(if is_going {
        format!(
            "rail {name} cannot listen at {local} yet: rail {before} of this node listens at {at} with id {id} until \
             it has gone. Give {name} that address and no other id, so that it takes both over, or another port; or \
             leave both out of the file and reload, if another rail stays, and then reload with {name}"
        )
    } else {
        format!(
            "rail {name} cannot listen at {local}: rail {before} of this node listens at {at}; choose another \
             address or port"
        )
    }))
}

fn is_taken(chosen: &[Rail], port: u16) -> bool {
    let probe = |rail: &Rail| {
        let at = local(&rail.listen, port).and_then(RailAddress::udp);
        at.map_or(Ok(()), |at| std::net::UdpSocket::bind(at).map(drop))
    };
    chosen.iter().any(|rail| probe(rail).is_err_and(|error| error.kind() == ErrorKind::AddrInUse))
}

/// Opens the socket of a rail, at `port` where it has chosen none.
fn bind(listen: &Listen, port: u16, offload: bool) -> Result<Box<dyn RailSocket>, Failure> {
    open(listen, port, &RailOptions { offload, ..RailOptions::default() })
}

/// Opens a socket, at `port` where none is chosen.
pub(super) fn open(
    listen: &Listen,
    port: u16,
    options: &RailOptions,
) -> Result<Box<dyn RailSocket>, Failure> {
    match listen {
        Listen::Udp { address, port: chosen } => {
            let local = SocketAddr::new(*address, chosen.unwrap_or(port));
            let socket = UdpSocket::bind(local, options);
            Ok(Box::new(socket.map_err(|error| unbound(local, &error))?))
        }
        Listen::Ethernet { interface } => {
            let socket = EthernetSocket::open(interface, options);
            Ok(Box::new(socket.map_err(|error| unopened(interface, &error))?))
        }
    }
}

/// What it means that a UDP socket cannot be bound there.
pub(super) fn unbound(local: SocketAddr, error: &std::io::Error) -> Failure {
    let address = local.ip();
    match error.kind() {
        ErrorKind::AddrInUse => Failure::refused(format!("UDP address {local} is in use by another program")),
        ErrorKind::AddrNotAvailable => Failure::refused(format!("{address} is no address of this machine")),
        _ => Failure::io(format!("cannot listen at {local}"), error),
    }
}

/// What it means that a socket on this interface cannot be opened.
pub(super) fn unopened(interface: &str, error: &std::io::Error) -> Failure {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    if is(Errno::NODEV) {
        return Failure::refused(format!(
            "there is no interface {interface} on this machine; `ip link` lists them"
        ));
    }
    if is(Errno::OPNOTSUPP) {
        return Failure::refused(format!(
            "{interface} is no Ethernet interface: frames of a rail need one, not loopback or a tunnel"
        ));
    }
    if is(Errno::MSGSIZE) {
        let least = ethernet::MIN_MTU;
        return Failure::refused(format!(
            "the MTU of {interface} is below {least}, too small for frames; raise it, as by `ip link set {interface} \
             mtu 1500`"
        ));
    }
    if is(Errno::PERM) {
        return Failure::refused(format!(
            "a rail over Ethernet ({interface}) takes the capability CAP_NET_RAW, which this process lacks: run it as \
             root, put AmbientCapabilities=CAP_NET_RAW into its systemd unit, or grant it to the program with \
             `setcap cap_net_raw=ep` and the path of causeway"
        ));
    }
    Failure::io(format!("cannot use interface {interface}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rails_have_the_ids_they_say_and_others_the_lowest_free_ones() {
        let rail = |id: Option<u8>| Rail {
            name: "r".to_owned(),
            listen: "127.0.0.1".parse().unwrap(),
            id: id.map(|id| RailId::new(id).unwrap()),
            switch: None,
            announce: true,
            offload: true,
        };
        let of = |chosen: &[Option<u8>], taken: &[u8]| {
            let chosen: Vec<Rail> = chosen.iter().map(|id| rail(*id)).collect();
            let taken: Vec<RailId> = taken.iter().map(|id| RailId::new(*id).unwrap()).collect();
            let ids = ids(&chosen, &taken).map_err(|failure| failure.message().to_owned())?;
            Ok::<Vec<u8>, String>(ids.into_iter().map(RailId::get).collect())
        };
        assert_eq!(of(&[None, None], &[]), Ok(vec![0, 1]));
        assert_eq!(of(&[None, Some(0), None], &[]), Ok(vec![1, 0, 2]));
        assert_eq!(of(&[None], &[0, 2]), Ok(vec![1]));
        assert!(of(&[None], &[0, 1, 2, 3]).unwrap_err().contains("at most 4"));
    }

    fn port_of(rail: &agent::Rail) -> u16 {
        rail.socket.local().udp().unwrap().port()
    }

    /// Nothing has changed then.
    #[test]
    fn an_id_that_another_rail_has_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let chosen = |name: &str, port, id| Rail {
            name: name.to_owned(),
            listen: Listen::Udp { address: Ipv4Addr::LOCALHOST.into(), port: Some(port) },
            id,
            switch: None,
            announce: true,
            offload: true,
        };
        let present = bind_all(&[chosen("left", 0, None)], 0).unwrap();
        let present: Vec<&agent::Rail> = present.iter().collect();
        let more = |rail| {
            listen_more(&[rail], &present, &[], &state).map_err(|failure| failure.message().to_owned())
        };
        let why = more(chosen("right", 0, Some(RailId::default()))).err().unwrap();
        assert!(why.contains("rail right cannot have id 0 while rail left has it"), "{why}");
        let taken = port_of(present[0]);
        let why = more(chosen("right", taken, None)).err().unwrap();
        assert!(why.contains("rail left of this node listens at"), "{why}");
        assert_eq!(more(chosen("right", 0, None)).unwrap()[0].id.get(), 1);
    }

    /// It is the node's own rail: what comes has its socket, or the message says what is in the way.
    #[test]
    fn a_rail_that_goes_hands_its_address_over() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let chosen = |name: &str, address: Ipv4Addr, port, id| Rail {
            name: name.to_owned(),
            listen: Listen::Udp { address: address.into(), port: Some(port) },
            id: RailId::new(id).filter(|_| id != 9),
            switch: None,
            announce: true,
            offload: true,
        };
        let here = Ipv4Addr::LOCALHOST;
        let present = bind_all(&[chosen("stays", here, 0, 0), chosen("old", here, 0, 2)], 0).unwrap();
        let (stays, old) = (&present[0], &present[1]);
        let local = old.socket.local().udp().unwrap();
        let more = |rails: &[Rail]| {
            let bound = listen_more(rails, &[stays], &[old], &state);
            bound.map_err(|failure| failure.message().to_owned())
        };
        for id in [9, 2] {
            let new = more(&[chosen("new", here, local.port(), id)]).unwrap().remove(0);
            assert_eq!((new.name.as_str(), new.id, new.socket.local()), ("new", old.id, local.into()));
        }
        let why = more(&[chosen("new", here, local.port(), 1)]).err().unwrap();
        assert!(why.contains("rail old of this node") && why.contains("with id 2"), "{why}");
        let why = more(&[chosen("new", Ipv4Addr::UNSPECIFIED, local.port(), 9)]).err().unwrap();
        assert!(why.contains("rail old of this node"), "{why}");
        let beside = [chosen("new", here, local.port(), 9), chosen("other", here, 0, 2)];
        assert!(more(&beside).err().unwrap().contains("rail old of this node"));
        let somebody = std::net::UdpSocket::bind((here, 0)).unwrap();
        let taken = somebody.local_addr().unwrap().port();
        assert!(more(&[chosen("new", here, taken, 9)]).err().unwrap().contains("by another program"));
    }
}
