//! Information frames on a node's rails: it says there what it is and lends, and hears others
//! ([`node::Neighbourhood`]).
//!
//! They go by multicast that leaves no segment (over UDP with TTL 1), from a socket of their own for each rail: they
//! take nothing from the sockets that cards read, and no card knows of them. A rail that is bound to no address in
//! particular only listens, on all interfaces. On one that leads to a switch they go to that, which passes them on to
//! all others; what comes there comes among the frames that the card takes, which hands it on ([`Discovery::hear`]).

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant as SystemInstant};

use base::ids::{DomainBlock, Group, Incarnation, NodeId, RailId};
use base::{Bucket, Instant};
use node::information::{Announcer, INFORMATION_MAX, Item, Role, write};
use node::switch::{INFORMATION_BURST, INFORMATION_EVERY};
use node::{
    ANNOUNCE_EVERY, Address, Gateway, GroupKey, MAX_RAILS, Name, Neighbour, Neighbourhood, Notice, PublicKey,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::address::RailAddress;
use crate::agent::Rail;
use crate::event::Event;
use crate::filter::{self, set_option};
use crate::net::{Found, interfaces};
use crate::rail::ethernet::{EVERYBODY, EthernetSocket, interface_name};
use crate::rail::{self, Datagram, Device, RailSocket};

/// Where information frames go over UDP: groups of a site (RFC 2365 §6.1) and of a link (RFC 4291 §2.7).
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 136, 181);
/// The same over IPv6.
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x88b5);
/// The port, at both ends.
pub const PORT: u16 = 7410;

/// What was heard is looked at so often at most.
const NEWS_EVERY: Duration = Duration::from_millis(100);

/// Frames taken from one rail before others have their turn.
const AT_A_TIME: usize = 64;

/// What a node says of itself, by group.
pub struct Said {
    /// Its key.
    pub key: PublicKey,
    /// Its domains.
    pub domains: DomainBlock,
    /// Its name.
    pub name: Name,
    /// Its life.
    pub incarnation: Incarnation,
    /// Its rails.
    pub rails: Vec<Item>,
    /// What it lends in each group that it has to do with. Each is told of the rails.
    pub functions: Vec<(Group, Vec<Item>)>,
}

impl Said {
    /// Who says it in a frame of this number.
    fn on(&self, rail: RailId, group: Group, number: u64) -> Announcer {
        Announcer {
            role: Role::Node,
            key: self.key,
            domains: self.domains,
            name: self.name,
            interval_s: ANNOUNCE_EVERY.as_secs() as u16,
            incarnation: self.incarnation,
            number,
            rail,
            group,
        }
    }
}

/// The moment at which it was looked who was heard.
#[derive(Clone, Copy)]
pub struct Ago(Instant);

impl Ago {
    /// It.
    pub fn now(self) -> Instant {
        self.0
    }

    /// Seconds from `at` to it.
    pub fn seconds(self, at: Instant) -> f64 {
        self.0.since(at).as_secs_f64()
    }
}

/// The sockets of a node's rails, and what was heard there.
pub struct Discovery {
    known: Neighbourhood,
    began: SystemInstant,
    ends: Vec<End>,
    number: u64,
    /// How much had been heard when it was looked what is new, and when that was.
    looked: (u64, Instant),
    notices_sent: u64,
    notices_heard: u64,
}

/// What a node has heard and said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Information frames that could be read.
    pub heard: u64,
    /// Others that came where those come.
    pub malformed: u64,
    /// Notices to all.
    pub notices_sent: u64,
    /// Those of others.
    pub notices_heard: u64,
}

/// A rail.
struct End {
    rail: RailId,
    local: RailAddress,
    gateway: Option<RailAddress>,
    /// `None`: it could not be opened.
    way: Option<Way>,
    /// How many more frames may be heard here: as many as a switch passes on, not as many as somebody may send.
    room: Bucket,
}

/// How information frames come and go on a rail.
enum Way {
    /// By multicast over UDP; without an address to send to it only listens.
    Udp(OwnedFd, Option<SocketAddr>),
    /// To everybody on the segment.
    Ethernet(Box<EthernetSocket>),
    /// To the switch, from the rail's own socket. What comes there the card takes.
    Switch(Box<dyn RailSocket>, RailAddress),
}

impl Discovery {
    /// Of the node with this id, which has no rail yet. With a key it says and hears notices to all who have that.
    pub fn new(own: NodeId, group_key: Option<GroupKey>) -> Self {
        let known = Neighbourhood::new(Instant::ZERO, own, group_key);
        Self {
            known,
            began: SystemInstant::now(),
            ends: Vec::new(),
            number: 0,
            looked: (0, Instant::ZERO),
            notices_sent: 0,
            notices_heard: 0,
        }
    }

    /// One that only listens, for whoever is no node yet: over UDP on all interfaces, and over Ethernet by these, which
    /// are [`EthernetSocket::for_everybody`].
    pub fn listening(own: NodeId, ethernet: Vec<EthernetSocket>) -> Self {
        let mut all = Self::new(own, None);
        let anywhere = [SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), (Ipv6Addr::UNSPECIFIED, 0).into()];
        let udp = anywhere.into_iter().map(|at| (RailAddress::from(at), open(at, Device::Any)));
        let ethernet =
            ethernet.into_iter().map(|socket| (socket.local(), Ok(Way::Ethernet(Box::new(socket)))));
        for (rail, (local, way)) in RailId::ALL.into_iter().cycle().zip(udp.chain(ethernet)) {
            // Where one of them cannot be, the others may.
            let Ok(way) = way else { continue };
            all.ends.push(End::new(all.now(), rail, (local, None), Some(way)));
        }
        all
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.began.elapsed()
    }

    /// These are the rails now.
    pub fn follow(&mut self, rails: &[Rail]) {
        let takes_part = |rail: &&Rail| rail.announces;
        let is_there = |end: &End| {
            let mut rails = rails.iter().filter(takes_part);
            rails.any(|it| (it.id, it.socket.local(), it.gateway) == (end.rail, end.local, end.gateway))
        };
        self.ends.retain(is_there);
        for rail in rails.iter().filter(takes_part) {
            if self.ends.iter().any(|end| end.rail == rail.id) {
                continue;
            }
            let way = way(rail).map_err(|error| {
                Event::RailUnannounced { rail: rail.name.clone(), error: error.to_string() }.say();
            });
            let (local, gateway) = (rail.socket.local(), rail.gateway);
            self.ends.push(End::new(self.now(), rail.id, (local, gateway), way.ok()));
        }
        let mut gateways = [None; MAX_RAILS];
        for end in &self.ends {
            gateways[end.rail.index()] = end.gateway.map(Address::from);
        }
        self.known.lead(gateways);
    }

    /// What becomes readable when something has come.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ends.iter().filter_map(|end| match end.way.as_ref()? {
            Way::Udp(socket, _) => Some(socket.as_fd()),
            Way::Ethernet(socket) => Some(socket.as_fd()),
            Way::Switch(..) => None,
        })
    }

    /// When the node has to speak; `None`: there is nowhere to.
    pub fn poll_timeout(&self) -> Option<SystemInstant> {
        let speaks = self.ends.iter().any(End::speaks);
        speaks.then(|| self.began + self.known.next().since(Instant::ZERO))
    }

    /// Whether it is time to speak.
    pub fn is_due(&self) -> bool {
        self.poll_timeout().is_some_and(|at| at <= SystemInstant::now())
    }

    /// Hears whatever has come.
    pub fn receive(&mut self) {
        let now = self.now();
        let mut bytes = [0; INFORMATION_MAX + 1];
        for end in &mut self.ends {
            match &mut end.way {
                Some(Way::Udp(socket, _)) => {
                    for _ in 0..AT_A_TIME {
                        let received = rustix::net::recvfrom(&*socket, &mut bytes, RecvFlags::DONTWAIT);
                        let Ok((_, len, Some(from))) = received else { break };
                        let Ok(from) = SocketAddr::try_from(from) else { continue };
                        if end.room.take(now) {
                            self.known.hear(now, end.rail, &bytes[..len], |address| place(address, from));
                        }
                    }
                }
                Some(Way::Ethernet(socket)) => {
                    // An interface that is gone says so for ever; the rail of it does as well.
                    let _ = socket.receive(AT_A_TIME, &mut |_, bytes| {
                        if end.room.take(now) {
                            self.known.hear(now, end.rail, bytes, as_it_is);
                        }
                    });
                }
                Some(Way::Switch(..)) | None => {}
            }
        }
    }

    /// Hears what a card has taken on a rail that leads to a switch.
    pub fn hear(&mut self, rail: RailId, frame: &[u8]) {
        let now = self.now();
        // It may have gone meanwhile, or not take part.
        let end = self.ends.iter_mut().find(|end| end.rail == rail && end.way.is_some());
        if end.is_some_and(|end| end.room.take(now)) {
            self.known.hear(now, rail, frame, as_it_is);
        }
    }

    /// Says on all rails, in each group of the node, that a rail seems to have failed, to all who have the group's key.
    pub fn warn(&mut self, said: &Said, notice: Notice) {
        let Some(key) = self.known.group_key() else { return };
        self.notices_sent += 1;
        // Whoever hears it on several rails, or in several groups, has heard it once.
        self.number += 1;
        for (group, _) in &said.functions {
            for end in self.ends.iter_mut().filter(|end| end.speaks()) {
                let announcer = said.on(end.rail, *group, self.number);
                let proof = key.proof(&announcer, &notice);
                end.send(&write(&announcer, &[Item::Notice(notice, proof)]).0);
            }
        }
    }

    /// Notices to all that were heard since this was asked last.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        let notices = self.known.take_notices();
        self.notices_heard += notices.len() as u64;
        notices
    }

    /// Whether anything was heard since this was asked last, or time has passed. Often asked, it is rarely so.
    pub fn has_news(&mut self) -> bool {
        let (heard, now) = (self.known.heard, self.now());
        let (before, since) = self.looked;
        let is_due = now.since(since) >= if heard == before { ANNOUNCE_EVERY } else { NEWS_EVERY };
        if is_due {
            self.looked = (heard, now);
        }
        is_due
    }

    /// Where a node says that it is now, by rail, if only one says so.
    pub fn place_of(&self, node: NodeId) -> Option<[Option<Address>; MAX_RAILS]> {
        self.known.place_of(self.now(), node)
    }

    /// Those who hear notices to all, each with the rails of this node, as bits, on which it does: it is heard there,
    /// and this node speaks there.
    pub fn members(&self) -> BTreeMap<NodeId, u8> {
        let spoken = self.ends.iter().filter(|end| end.speaks());
        let spoken = spoken.fold(0, |rails, end| rails | 1 << end.rail.get());
        let heard = self.known.members(self.now()).map(|(node, rails)| (node, rails & spoken));
        heard.filter(|(_, rails)| *rails != 0).collect()
    }

    /// Says all this on all rails.
    pub fn announce(&mut self, said: &Said) {
        self.known.speak(self.now());
        let member = self.known.group_key().map(|key| Item::Member(key.mark(said.key.id())));
        for (group, functions) in &said.functions {
            let items: Vec<Item> = said.rails.iter().chain(&member).chain(functions).copied().collect();
            let mut left = &items[..];
            loop {
                let mut fitted = 0;
                for end in self.ends.iter_mut().filter(|end| end.speaks()) {
                    self.number += 1;
                    let (frame, taken) = write(&said.on(end.rail, *group, self.number), left);
                    fitted = taken;
                    end.send(&frame);
                }
                left = &left[fitted..];
                if left.is_empty() || fitted == 0 {
                    break;
                }
            }
        }
    }

    /// Those that were heard lately, with how long ago something was.
    pub fn nodes(&mut self) -> (Ago, impl Iterator<Item = (NodeId, &Neighbour)>) {
        let now = self.now();
        (Ago(now), self.known.nodes(now))
    }

    /// Which node says that it is at this address, if one does.
    pub fn who_is_at(&mut self, address: RailAddress) -> Option<NodeId> {
        let (now, address) = (self.now(), Address::from(address));
        let is_there = |it: &Neighbour| it.rails.iter().flatten().any(|rail| rail.address == address);
        self.known.nodes(now).find(|(_, it)| is_there(it)).map(|(node, _)| node)
    }

    /// The switches that rails lead to.
    pub fn gateways(&self) -> (Ago, impl Iterator<Item = (RailId, &Gateway)>) {
        (Ago(self.now()), self.known.gateways())
    }

    /// Whether others are heard on this rail.
    pub fn takes_part(&self, rail: RailId) -> bool {
        self.ends.iter().any(|end| end.rail == rail && end.way.is_some())
    }

    /// What has come, and what was said.
    pub fn counts(&self) -> Counts {
        Counts {
            heard: self.known.heard,
            malformed: self.known.malformed,
            notices_sent: self.notices_sent,
            notices_heard: self.notices_heard,
        }
    }
}

impl End {
    fn new(
        now: Instant,
        rail: RailId,
        (local, gateway): (RailAddress, Option<RailAddress>),
        way: Option<Way>,
    ) -> Self {
        let room = Bucket::full(INFORMATION_BURST, INFORMATION_EVERY, now);
        Self { rail, local, gateway, way, room }
    }

    fn speaks(&self) -> bool {
        self.way.as_ref().is_some_and(|way| !matches!(way, Way::Udp(_, None)))
    }

    /// One that is lost comes again.
    fn send(&mut self, frame: &[u8]) {
        let send = |socket: &mut dyn RailSocket, to| {
            let _ = socket.send_batch(&[Datagram { to, parts: &[IoSlice::new(frame)] }]);
        };
        match &mut self.way {
            Some(Way::Udp(socket, Some(to))) => {
                let _ = rustix::net::sendto(&*socket, frame, SendFlags::DONTWAIT, to);
            }
            Some(Way::Ethernet(socket)) => send(&mut **socket, RailAddress::Ethernet(EVERYBODY)),
            Some(Way::Switch(socket, gateway)) => send(&mut **socket, *gateway),
            Some(Way::Udp(_, None)) | None => {}
        }
    }
}

/// The way of a rail.
fn way(rail: &Rail) -> io::Result<Way> {
    match (rail.gateway, rail.socket.local(), rail.socket.device()) {
        (Some(gateway), ..) => {
            let copy = rail.socket.as_fd().try_clone_to_owned()?;
            Ok(Way::Switch(rail::take_over(copy, false)?, gateway))
        }
        (None, RailAddress::Ethernet(_), Device::Index(index)) => {
            let name = interface_name(index).ok_or(rustix::io::Errno::NODEV)?;
            EthernetSocket::for_everybody(&name).map(|it| Way::Ethernet(Box::new(it)))
        }
        (None, local, device) => open(local.udp().ok_or(rustix::io::Errno::AFNOSUPPORT)?, device),
    }
}

/// An address as a frame has it.
fn as_it_is(address: [u8; 28]) -> Option<Address> {
    RailAddress::try_from(Address(address)).ok().map(Address::from)
}

/// An address as a frame has it, with the IP address of who sent that where it names none.
fn place(address: [u8; 28], from: SocketAddr) -> Option<Address> {
    let mut address = RailAddress::try_from(Address(address)).ok()?;
    if let RailAddress::Udp(at) = &mut address {
        if at.ip().is_unspecified() {
            at.set_ip(from.ip());
        }
        // A link-local address is of the link that it was heard on.
        if let (SocketAddr::V6(at), SocketAddr::V6(from)) = (at, from)
            && at.ip().is_unicast_link_local()
        {
            at.set_scope_id(from.scope_id());
        }
    }
    Some(address.into())
}

/// The way of a rail at `local`.
fn open(local: SocketAddr, device: Device) -> io::Result<Way> {
    let found = interfaces();
    let is_open = local.ip().is_unspecified();
    let leads_there = |it: &&Found| match local.ip() {
        ip if ip.is_unspecified() => it.is_running,
        ip => it.carries(device) || (ip.is_loopback() && it.is_loopback()),
    };
    let mut indices: Vec<u32> = found.iter().filter(leads_there).map(|it| it.index).collect();
    indices.sort_unstable();
    indices.dedup();
    if indices.is_empty() {
        return Err(rustix::io::Errno::NODEV.into());
    }
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    let joined = |joined: rustix::io::Result<()>| joined.is_ok();
    let first = indices[0];
    let (to, is_in) = match local {
        SocketAddr::V4(local) => {
            // Only what comes on interfaces that this socket has joined on.
            set_option(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0_i32)?;
            rustix::net::bind(&socket, &SocketAddrV4::new(GROUP_V4, PORT))?;
            let join = |index: &u32| {
                sockopt::set_ip_add_membership_with_ifindex(
                    &socket,
                    &GROUP_V4,
                    &Ipv4Addr::UNSPECIFIED,
                    *index,
                )
            };
            let is_in = indices.iter().filter(|index| joined(join(index))).count() > 0;
            if !is_open {
                sockopt::set_ip_multicast_if_with_ifindex(&socket, &GROUP_V4, local.ip(), first)?;
            }
            (SocketAddr::from(SocketAddrV4::new(GROUP_V4, PORT)), is_in)
        }
        SocketAddr::V6(_) => {
            sockopt::set_ipv6_v6only(&socket, true)?;
            // An address of a link is bound on one link only. What is for this machine alone may be from beyond it.
            if is_open {
                filter::take_for(&socket, GROUP_V6)?;
            }
            let (group, link) = if is_open { (Ipv6Addr::UNSPECIFIED, 0) } else { (GROUP_V6, first) };
            rustix::net::bind(&socket, &SocketAddrV6::new(group, PORT, 0, link))?;
            let join = |index: &u32| sockopt::set_ipv6_add_membership(&socket, &GROUP_V6, *index);
            let is_in = indices.iter().filter(|index| joined(join(index))).count() > 0;
            if !is_open {
                sockopt::set_ipv6_multicast_if(&socket, first)?;
            }
            (SocketAddrV6::new(GROUP_V6, PORT, 0, first).into(), is_in)
        }
    };
    is_in.then_some(()).ok_or(rustix::io::Errno::NODEV)?;
    Ok(Way::Udp(socket, (!is_open).then_some(to)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::own::{self, ip};
    use crate::rail::RailOptions;
    use crate::rail::udp::UdpSocket;
    use node::information::read;
    use node::{NodeKey, NoticeCause};

    fn rail(address: &str) -> Rail {
        let options = RailOptions::default();
        let socket = Box::new(UdpSocket::bind(address.parse().unwrap(), &options).unwrap());
        Rail { id: RailId::ALL[0], name: "rail0".to_owned(), socket, gateway: None, announces: true }
    }

    fn said(key: &NodeKey, rails: &[Rail]) -> Said {
        let rail = |rail: &Rail| Item::Rail {
            rail: rail.id,
            is_up: true,
            address: Address::from(rail.socket.local()).0,
            gateway: [0; 28],
        };
        let function = |at: u64| Item::Function {
            name: Name::new(&format!("nvme{at}")),
            bytes: at,
            read_only: false,
            lent_to: None,
        };
        Said {
            key: key.public(),
            domains: DomainBlock::of(key.id()),
            name: Name::new("store"),
            incarnation: Incarnation(3),
            rails: rails.iter().map(rail).collect(),
            functions: vec![(Group::DEFAULT, (0..40).map(function).collect())],
        }
    }

    /// Waits until `hearer` knows of so many functions of the node.
    fn hears(hearer: &mut Discovery, node: NodeId, count: usize) -> Neighbour {
        let until = SystemInstant::now() + std::time::Duration::from_secs(10);
        loop {
            hearer.receive();
            let (_, mut nodes) = hearer.nodes();
            if let Some((_, it)) = nodes.find(|(id, it)| *id == node && it.functions.len() == count) {
                return it.clone();
            }
            drop(nodes);
            assert!(SystemInstant::now() < until, "it is not heard");
            std::thread::yield_now();
        }
    }

    /// Others may speak on loopback at the same time.
    #[test]
    fn nodes_hear_each_other_on_a_rail_and_from_everywhere() {
        let key = NodeKey::new([3; 32]);
        let rails = [rail("127.0.0.1:0")];
        let mut speaker = Discovery::new(key.id(), None);
        speaker.follow(&rails);
        assert!(speaker.is_due());
        let mut beside = Discovery::new(NodeId::numbered(1), None);
        beside.follow(&[rail("127.0.0.1:0")]);
        let mut anywhere = Discovery::new(NodeId::numbered(2), None);
        anywhere.follow(&[rail("0.0.0.0:0")]);
        let mut second = Discovery::new(NodeId::numbered(3), None);
        second.follow(&[rail("127.0.0.2:0")]);
        assert_eq!(anywhere.poll_timeout(), None, "who is nowhere in particular does not say so");
        speaker.announce(&said(&key, &rails));
        assert!(!speaker.is_due());
        for hearer in [&mut beside, &mut anywhere, &mut second] {
            let heard = hears(hearer, key.id(), 40);
            let address = heard.rails[0].unwrap().address;
            assert_eq!(RailAddress::try_from(address), Ok(rails[0].socket.local()));
            assert!(heard.heard_on[0].is_some());
        }
        beside.follow(&[Rail { announces: false, ..rail("127.0.0.1:0") }]);
        assert_eq!((beside.sockets().count(), beside.poll_timeout()), (0, None));
    }

    /// It says to the switch what it says, from its rail's own socket, and hears what the card took there.
    #[test]
    fn behind_a_switch_all_is_said_to_the_switch() {
        let key = NodeKey::new([3; 32]);
        let switch = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        switch.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let gateway = Some(RailAddress::from(switch.local_addr().unwrap()));
        let behind = Rail { gateway, ..rail("127.0.0.1:0") };
        let local = behind.socket.local();
        let rails = [behind];
        let mut speaker = Discovery::new(key.id(), None);
        speaker.follow(&rails);
        assert_eq!(speaker.sockets().count(), 0, "what comes there is the card's");
        assert!(speaker.is_due());
        speaker.announce(&said(&key, &rails));
        let mut frame = [0; INFORMATION_MAX];
        let (len, from) = switch.recv_from(&mut frame).unwrap();
        assert_eq!(RailAddress::from(from), local);
        let mut hearer = Discovery::new(NodeId::numbered(1), None);
        hearer.follow(&[Rail { gateway, ..rail("127.0.0.1:0") }]);
        hearer.hear(RailId::ALL[0], &frame[..len]);
        hearer.hear(RailId::ALL[1], &frame[..len]);
        assert_eq!(hearer.counts(), Counts { heard: 1, ..Counts::default() }, "it has no other rail");
        assert!(hearer.nodes().1.any(|(id, it)| id == key.id() && it.rails[0].is_some()));
    }

    /// Who hears one group only hears it as well, and who hears both takes it once.
    #[test]
    fn a_notice_goes_out_in_each_group_of_the_node_with_one_number() {
        let (key, secret) = (NodeKey::new([3; 32]), GroupKey::new(&[1; 32]));
        let switch = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        switch.set_nonblocking(true).unwrap();
        let gateway = Some(RailAddress::from(switch.local_addr().unwrap()));
        let rails = [Rail { gateway, ..rail("127.0.0.1:0") }];
        let mut speaker = Discovery::new(key.id(), Some(secret.clone()));
        speaker.follow(&rails);
        let mut hearer = Discovery::new(NodeId::numbered(1), Some(secret));
        hearer.follow(&rails);
        let notice = Notice { node: key.id(), rail: RailId::ALL[1], cause: NoticeCause::Carrier };
        let groups = [Group::DEFAULT, Group(9)];
        for so_many in [1, 2] {
            let functions = groups[..so_many].iter().map(|group| (*group, Vec::new())).collect();
            speaker.warn(&Said { functions, ..said(&key, &rails) }, notice);
            let (mut frame, mut said) = ([0; INFORMATION_MAX], Vec::new());
            // On loopback they are there as soon as they are sent.
            while let Ok(len) = switch.recv(&mut frame) {
                let (announcer, _) = read(&frame[..len]).unwrap();
                said.push((announcer.group, announcer.number));
                hearer.hear(RailId::ALL[0], &frame[..len]);
            }
            let number = said[0].1;
            assert_eq!(said, groups[..so_many].iter().map(|group| (*group, number)).collect::<Vec<_>>());
            assert_eq!(hearer.take_notices(), [notice]);
        }
        assert_eq!((speaker.counts().notices_sent, hearer.counts().notices_heard), (2, 2));
    }

    /// A member is reached only where it is heard and spoken to.
    #[test]
    fn of_a_member_the_rails_count_on_which_this_node_speaks() {
        let (key, secret) = (NodeKey::new([3; 32]), GroupKey::new(&[1; 32]));
        let switch = Some("127.0.0.1:9".parse().unwrap());
        let rails = |first: &str| {
            let second = Rail { id: RailId::ALL[1], gateway: switch, ..rail("127.0.0.1:0") };
            [rail(first), second]
        };
        let frame = |rail| {
            let announcer = said(&key, &[]).on(rail, Group::DEFAULT, 1);
            write(&announcer, &[Item::Member(secret.mark(key.id()))]).0
        };
        for (first, expected) in [("127.0.0.1:0", 0b11), ("0.0.0.0:0", 0b10)] {
            let mut hearer = Discovery::new(NodeId::numbered(1), Some(secret.clone()));
            hearer.follow(&rails(first));
            RailId::ALL[..2].iter().for_each(|rail| hearer.hear(*rail, &frame(*rail)));
            assert_eq!(hearer.members(), BTreeMap::from([(key.id(), expected)]), "{first}");
        }
    }

    #[test]
    fn over_ipv6_all_on_the_segment_hear_each_other() {
        // A machine may be without it.
        if std::net::UdpSocket::bind("[::]:0").is_err() {
            return;
        }
        own::run("discovery::tests::over_ipv6_in_a_network_of_its_own");
    }

    #[test]
    #[ignore = "runs as a child of the test above"]
    fn over_ipv6_in_a_network_of_its_own() {
        ip("link add left type veth peer name right");
        for (name, address) in [("left", "fd00::1/64"), ("right", "fd00::2/64")] {
            ip(&format!("address add {address} dev {name} nodad"));
            ip(&format!("link set {name} up"));
        }
        let until = SystemInstant::now() + Duration::from_secs(10);
        while interfaces().iter().filter(|it| it.is_running && it.name != "lo").count() < 2 {
            assert!(SystemInstant::now() < until, "they have no carrier");
            std::thread::yield_now();
        }
        let key = NodeKey::new([3; 32]);
        let rails = [rail("[fd00::1]:0")];
        let mut speaker = Discovery::new(key.id(), None);
        speaker.follow(&rails);
        let mut hearers = ["[fd00::1]:0", "[fd00::2]:0", "[::]:0", "[::]:0"].map(|at| {
            let mut hearer = Discovery::new(NodeId::numbered(1), None);
            hearer.follow(&[rail(at)]);
            hearer
        });
        hearers[3] = Discovery::listening(NodeId::numbered(1), Vec::new());
        speaker.announce(&said(&key, &rails));
        for hearer in &mut hearers {
            let heard = hears(hearer, key.id(), 40);
            assert_eq!(RailAddress::try_from(heard.rails[0].unwrap().address), Ok(rails[0].socket.local()));
        }
    }

    #[test]
    fn whoever_is_no_node_yet_listens_over_both_kinds_of_ip() {
        let has_ipv6 = std::net::UdpSocket::bind("[::]:0").is_ok();
        assert_eq!(
            Discovery::listening(NodeId::default(), Vec::new()).sockets().count(),
            1 + usize::from(has_ipv6)
        );
    }

    #[test]
    fn on_a_rail_so_many_are_heard_and_no_more() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = socket.local_addr().unwrap();
        let mut hearer = Discovery::new(NodeId::numbered(1), None);
        let way = Some(Way::Udp(socket.into(), None));
        let (began, rail) = (SystemInstant::now(), RailId::ALL[0]);
        hearer.ends.push(End::new(hearer.now(), rail, (at.into(), None), way));
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let frame = write(&said(&NodeKey::new([3; 32]), &[]).on(rail, Group::DEFAULT, 1), &[]).0;
        for sent in 1..=2 * INFORMATION_BURST {
            sender.send_to(&frame, at).unwrap();
            if sent % AT_A_TIME as u32 == 0 {
                hearer.receive();
            }
        }
        let most = u128::from(INFORMATION_BURST) + began.elapsed().as_millis() + 1;
        let heard = hearer.counts().heard;
        assert!(heard > 0 && u128::from(heard) <= most, "{heard} of {most}");
    }

    /// It may come from beyond the link.
    #[test]
    fn what_is_for_this_machine_alone_is_not_heard() {
        let key = NodeKey::new([3; 32]);
        let frame = write(&said(&key, &[]).on(RailId::ALL[0], Group::DEFAULT, 1), &[]).0;
        for (anywhere, own) in [("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "::1")] {
            // A machine may be without IPv6.
            let Ok(sender) = std::net::UdpSocket::bind((own, 0)) else { continue };
            let mut hearer = Discovery::new(NodeId::numbered(1), None);
            hearer.follow(&[rail(anywhere)]);
            assert_eq!(hearer.sockets().count(), 1);
            sender.send_to(&frame, (own, PORT)).unwrap();
            hearer.receive();
            // Others may speak there meanwhile.
            assert!(hearer.nodes().1.all(|(id, _)| id != key.id()), "{anywhere}");
        }
    }

    #[test]
    fn an_address_that_names_no_host_is_that_of_who_says_it() {
        let from = "10.0.0.7:7410".parse().unwrap();
        let placed = |text: &str| {
            let address = Address::from(text.parse::<RailAddress>().unwrap());
            RailAddress::try_from(place(address.0, from).unwrap()).unwrap().to_string()
        };
        assert_eq!(placed("0.0.0.0:7411"), "10.0.0.7:7411");
        assert_eq!(placed("10.0.0.8:7411"), "10.0.0.8:7411");
        assert_eq!(placed("eth:02:00:5e:10:00:01"), "eth:02:00:5e:10:00:01");
        assert_eq!(place([9; 28], from), None);
    }
}
