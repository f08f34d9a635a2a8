//! Whom a node has heard of on its rails, and when it says something of itself there (information frames,
//! [`link::information`]).
//!
//! Nothing here is proven: it says where to call. So nothing is decided by it, what is kept of it is bounded, and what
//! was not heard again for [`PATIENCE`] times the interval that its sender named is forgotten. When somebody unknown is
//! heard the node speaks soon, so that a newcomer need not wait for an interval.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use base::ids::{Group, Incarnation, NodeId, RailId};
use base::{Bucket, Instant};
use link::information::{Announcer, Item, Role, read};
use link::{GroupKey, Name, Notice, PublicKey};

use crate::gateway::Gateway;
use crate::{Address, MAX_RAILS};

/// How often a node says something of itself.
pub const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);
/// So many intervals of silence, and one is forgotten.
pub(crate) const PATIENCE: u32 = 3;
/// Shortest interval that is believed, or anybody could have anybody forgotten, and longest.
const INTERVAL_MIN: u16 = ANNOUNCE_EVERY.as_secs() as u16;
const INTERVAL_MAX: u16 = 600;
/// After this a newcomer is told, and at most so often.
const SOON: Duration = Duration::from_millis(200);
/// Most nodes that are known; who was heard longest ago makes room.
pub const NODES_MAX: usize = 4096;
/// Most functions of one of them, and of all.
const FUNCTIONS_MAX: usize = 256;
const ALL_FUNCTIONS_MAX: usize = 16_384;
/// Most addresses of a switch.
const PORTS_MAX: usize = 64;
/// Most addresses where a rail is remembered to have been.
const PLACES_MAX: usize = 4;
/// Notices to all that are heeded at once, and after what time there may be one more. What is not heeded costs time
/// only.
const NOTICES: u32 = 64;
const NOTICE_EVERY: Duration = Duration::from_millis(10);
/// Most members of whom the last notice is remembered, be they forgotten otherwise: it must not be taken once more.
const PROVEN_MAX: usize = 4 * NODES_MAX;
/// For how long an earlier one is not taken. A member whose state folder is an older one, or in whose name another
/// member has said what no later one can be later than, is heeded again after that; and what was recorded is taken once
/// more, which costs a question each time.
const PROVEN_FOR: Duration = Duration::from_secs(60);

/// A node that was heard.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// What it says it is.
    pub role: Role,
    /// Whom it says it is.
    pub key: PublicKey,
    /// What it calls itself.
    pub name: Name,
    /// First and number of its domains.
    pub domains: (u32, u32),
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Since when it is known without a gap.
    pub since: Instant,
    /// When it was heard last.
    pub heard: Instant,
    /// By rail of this node: when it was heard there last.
    pub heard_on: [Option<Instant>; MAX_RAILS],
    /// Its rails, by id.
    pub rails: [Option<NeighbourRail>; MAX_RAILS],
    /// Where it takes frames, if it is a switch, each with when that was heard.
    pub ports: Vec<(Address, Instant)>,
    /// What it lends.
    pub functions: BTreeMap<(Group, [u8; 32]), NeighbourFunction>,
    /// Two who differ say that they are it, heard as late as this.
    pub contested: Option<Instant>,
    /// It has the key of this node's group, heard as late as this.
    pub member: Option<Instant>,
    interval: Duration,
}

/// A rail that it says it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourRail {
    /// Where it receives.
    pub address: Address,
    /// The port of a switch that it sends everything to.
    pub gateway: Option<Address>,
    /// Its interface has a carrier.
    pub is_up: bool,
    heard: Instant,
    /// Where it was said to be before, until when that counts.
    before: [Option<(Address, Instant)>; PLACES_MAX],
}

impl NeighbourRail {
    /// It is said to be at `address` now: whether there are two who say where it is. One that has moved does not come
    /// back at once, nor move on and on; two who speak in turn do, be it that one says something else each time.
    fn go_to(&mut self, now: Instant, address: Address, until: Instant) -> bool {
        for place in &mut self.before {
            place.take_if(|(_, until)| now >= *until);
        }
        if self.address == address {
            return false;
        }
        let is_back = self.before.iter().flatten().any(|(place, _)| *place == address);
        let is_restless = self.before.iter().all(Option::is_some);
        if let Some(oldest) = self.before.iter_mut().min_by_key(|place| place.map(|(_, until)| until)) {
            *oldest = Some((self.address, until));
        }
        self.address = address;
        is_back || is_restless
    }
}

/// A function that it says it lends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourFunction {
    /// Its name.
    pub name: Name,
    /// Bytes of the drive.
    pub bytes: u64,
    /// Nobody can write there.
    pub read_only: bool,
    /// Who has it.
    pub lent_to: Option<NodeId>,
    heard: Instant,
}

impl Neighbour {
    /// Whether what was heard at `heard` still counts.
    pub fn is_fresh(&self, now: Instant, heard: Instant) -> bool {
        !self.is_over(now, heard)
    }

    /// The rails of this node, as bits, on which it was heard lately.
    fn heard_over(&self, now: Instant) -> u8 {
        let is_fresh = |rail: &usize| self.heard_on[*rail].is_some_and(|at| self.is_fresh(now, at));
        (0..MAX_RAILS).filter(is_fresh).fold(0, |rails, rail| rails | 1 << rail)
    }

    /// Whether it is time to forget what was heard at `heard`.
    fn is_over(&self, now: Instant, heard: Instant) -> bool {
        now.since(heard) > self.patience()
    }

    /// How long what it says counts.
    pub(crate) fn patience(&self) -> Duration {
        self.interval * PATIENCE
    }
}

/// Everybody who was heard.
#[derive(Debug)]
pub struct Neighbourhood {
    own: NodeId,
    nodes: BTreeMap<NodeId, Neighbour>,
    /// Who was heard longest ago comes first.
    by_age: BTreeSet<(Instant, NodeId)>,
    functions: usize,
    /// By rail: the switch that it leads to.
    gateways: [Option<Gateway>; MAX_RAILS],
    next: Instant,
    spoken: Option<Instant>,
    /// When what is over was forgotten last.
    forgotten: Instant,
    group_key: Option<GroupKey>,
    /// Notices to all that have come, and how many more may.
    notices: Vec<Notice>,
    room: Bucket,
    /// Life and number of the last frame with a notice of each member, and when it was heeded. Only who has the group's
    /// key gets in, so nobody else can drive a member out.
    proven: BTreeMap<NodeId, ((Incarnation, u64), Instant)>,
    /// Frames that were read, and those that were none.
    pub heard: u64,
    /// Frames that could not be read.
    pub malformed: u64,
}

impl Neighbourhood {
    /// Nobody yet; the node says something of itself at once. With a key it heeds notices to all.
    pub fn new(now: Instant, own: NodeId, group_key: Option<GroupKey>) -> Self {
        Self {
            own,
            nodes: BTreeMap::new(),
            by_age: BTreeSet::new(),
            functions: 0,
            gateways: [const { None }; MAX_RAILS],
            next: now,
            spoken: None,
            forgotten: now,
            group_key,
            notices: Vec::new(),
            room: Bucket::full(NOTICES, NOTICE_EVERY, now),
            proven: BTreeMap::new(),
            heard: 0,
            malformed: 0,
        }
    }

    /// These are the ports of switches that the node's rails lead to now.
    pub fn lead(&mut self, to: [Option<Address>; MAX_RAILS]) {
        for (known, address) in self.gateways.iter_mut().zip(to) {
            if known.as_ref().map(|it| it.address) != address {
                *known = address.map(Gateway::new);
            }
        }
    }

    /// The switches that rails lead to.
    pub fn gateways(&self) -> impl Iterator<Item = (RailId, &Gateway)> {
        let all = RailId::ALL.into_iter().zip(&self.gateways);
        all.filter_map(|(rail, gateway)| Some((rail, gateway.as_ref()?)))
    }

    /// When the node has to say something of itself.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// It says something now; the next time comes after an interval.
    pub fn speak(&mut self, now: Instant) {
        (self.next, self.spoken) = (now + ANNOUNCE_EVERY, Some(now));
    }

    /// A frame has come on `rail`; `place` makes the address of a rail whole, which may name none but that of whoever
    /// sent the frame. Whether it was from somebody new.
    pub fn hear(
        &mut self,
        now: Instant,
        rail: RailId,
        frame: &[u8],
        mut place: impl FnMut([u8; 28]) -> Option<Address>,
    ) -> bool {
        let Some((announcer, items)) = read(frame) else {
            self.malformed += 1;
            return false;
        };
        self.heard += 1;
        let id = announcer.key.id();
        if id == self.own {
            return false;
        }
        if now.since(self.forgotten) >= ANNOUNCE_EVERY {
            // What is over takes no room from others, though nobody asks who is there.
            self.forget(now);
        }
        items.iter().for_each(|item| self.heed(now, &announcer, item));
        let known = self.nodes.get(&id).map(|it| it.incarnation);
        let is_new = known.is_none_or(|incarnation| incarnation != announcer.incarnation);
        if known.is_none() && self.nodes.len() >= NODES_MAX {
            self.make_room();
        }
        let neighbour = self.nodes.entry(id).or_insert_with(|| Neighbour::new(now, &announcer));
        self.by_age.remove(&(neighbour.heard, id));
        self.by_age.insert((now, id));
        neighbour.hear(now, rail, &announcer);
        for item in items {
            if let (Item::Member(mark), Some(key)) = (&item, &self.group_key) {
                neighbour.member = (*mark == key.mark(id)).then_some(now);
            }
            let had = neighbour.functions.len();
            neighbour.note(now, announcer.group, item, self.functions < ALL_FUNCTIONS_MAX, &mut place);
            self.functions += neighbour.functions.len() - had;
        }
        if let Some(gateway) = &mut self.gateways[rail.index()] {
            gateway.hear(now, id, neighbour);
        }
        if is_new {
            let soon = self.spoken.map_or(now, |spoken| (spoken + SOON * PATIENCE).max(now)) + SOON;
            self.next = self.next.min(soon);
        }
        is_new
    }

    /// Takes a notice of a member that it has not sent before.
    fn heed(&mut self, now: Instant, announcer: &Announcer, item: &Item) {
        let Item::Notice(notice, proof) = item else { return };
        let (id, frame) = (announcer.key.id(), (announcer.incarnation, announcer.number));
        let known = self.proven.get(&id);
        // What was heard before is said by somebody else now, or by a switch once more.
        let is_later = known.is_none_or(|(last, at)| frame > *last || now.since(*at) >= PROVEN_FOR);
        let proves = |key: &GroupKey| key.proves(announcer, notice, proof);
        if !is_later || !self.group_key.as_ref().is_some_and(proves) || !self.room.take(now) {
            return;
        }
        if known.is_none() && self.proven.len() >= PROVEN_MAX {
            let oldest = self.proven.iter().min_by_key(|(_, (_, at))| *at).map(|(id, _)| *id);
            oldest.and_then(|id| self.proven.remove(&id));
        }
        self.proven.insert(id, (frame, now));
        self.notices.push(*notice);
    }

    /// Notices to all that have come since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        core::mem::take(&mut self.notices)
    }

    /// Those that hear a notice to all, each with the rails of this node, as bits, on which it was heard lately: there
    /// it hears this one.
    pub fn members(&self, now: Instant) -> impl Iterator<Item = (NodeId, u8)> {
        let is_member = move |it: &Neighbour| it.member.is_some_and(|at| it.is_fresh(now, at));
        self.nodes.iter().filter(move |(_, it)| is_member(it)).map(move |(id, it)| (*id, it.heard_over(now)))
    }

    /// With what it was made.
    pub fn group_key(&self) -> Option<&GroupKey> {
        self.group_key.as_ref()
    }

    fn make_room(&mut self) {
        let oldest = self.by_age.pop_first();
        if let Some(gone) = oldest.and_then(|(_, id)| self.nodes.remove(&id)) {
            self.functions -= gone.functions.len();
        }
    }

    /// Where a node says that it is now, by rail, if only one says so. What is behind a switch is called by who it is.
    pub fn place_of(&self, now: Instant, node: NodeId) -> Option<[Option<Address>; MAX_RAILS]> {
        let it = self.nodes.get(&node).filter(|it| it.is_fresh(now, it.heard))?;
        if it.contested.is_some_and(|at| it.is_fresh(now, at)) {
            return None;
        }
        let counts = |rail: &NeighbourRail| rail.gateway.is_none() && it.is_fresh(now, rail.heard);
        Some(it.rails.map(|rail| rail.filter(counts).map(|rail| rail.address)))
    }

    /// Those that are not forgotten.
    pub fn nodes(&mut self, now: Instant) -> impl Iterator<Item = (NodeId, &Neighbour)> {
        self.forget(now);
        self.nodes.iter().map(|(id, it)| (*id, it))
    }

    fn forget(&mut self, now: Instant) {
        self.forgotten = now;
        self.nodes.retain(|_, it| !it.is_over(now, it.heard));
        self.by_age.retain(|(_, id)| self.nodes.contains_key(id));
        for it in self.nodes.values_mut() {
            let limit = it.interval * PATIENCE;
            it.functions.retain(|_, function| now.since(function.heard) <= limit);
            it.ports.retain(|(_, heard)| now.since(*heard) <= limit);
            for rail in &mut it.rails {
                rail.take_if(|rail| now.since(rail.heard) > limit);
            }
            it.contested = it.contested.filter(|at| now.since(*at) <= limit);
        }
        self.functions = self.nodes.values().map(|it| it.functions.len()).sum();
    }
}

impl Neighbour {
    fn new(now: Instant, announcer: &Announcer) -> Self {
        Self {
            role: announcer.role,
            key: announcer.key,
            name: announcer.name,
            domains: (announcer.domains.base(), announcer.domains.len()),
            incarnation: announcer.incarnation,
            since: now,
            heard: now,
            heard_on: [None; MAX_RAILS],
            rails: [None; MAX_RAILS],
            ports: Vec::new(),
            functions: BTreeMap::new(),
            contested: None,
            member: None,
            interval: Duration::ZERO,
        }
    }

    fn hear(&mut self, now: Instant, rail: RailId, announcer: &Announcer) {
        if self.is_over(now, self.heard) {
            self.since = now;
        }
        (self.role, self.name) = (announcer.role, announcer.name);
        (self.incarnation, self.heard) = (announcer.incarnation, now);
        self.domains = (announcer.domains.base(), announcer.domains.len());
        self.interval = Duration::from_secs(announcer.interval_s.clamp(INTERVAL_MIN, INTERVAL_MAX).into());
        self.heard_on[rail.index()] = Some(now);
    }

    fn note(
        &mut self,
        now: Instant,
        group: Group,
        item: Item,
        has_room: bool,
        place: &mut dyn FnMut([u8; 28]) -> Option<Address>,
    ) {
        match item {
            Item::Rail { rail, is_up, address, gateway } => {
                let Some(address) = place(address) else { return };
                let gateway = (gateway != [0; 28]).then_some(Address(gateway));
                let until = now + self.interval * PATIENCE;
                let known = &mut self.rails[rail.index()];
                if known.as_mut().is_some_and(|known| known.go_to(now, address, until)) {
                    self.contested = Some(now);
                }
                let before = known.map_or([None; PLACES_MAX], |known| known.before);
                *known = Some(NeighbourRail { address, gateway, is_up, heard: now, before });
            }
            Item::Function { name, bytes, read_only, lent_to } => {
                let key = (group, name.to_bytes());
                let is_full = !has_room || self.functions.len() >= FUNCTIONS_MAX;
                if is_full && !self.functions.contains_key(&key) {
                    return;
                }
                let function = NeighbourFunction { name, bytes, read_only, lent_to, heard: now };
                self.functions.insert(key, function);
            }
            Item::Port(address) => {
                let Some(address) = place(address) else { return };
                if let Some((_, heard)) = self.ports.iter_mut().find(|(known, _)| *known == address) {
                    *heard = now;
                } else if self.ports.len() < PORTS_MAX {
                    self.ports.push((address, now));
                }
            }
            // They are of the group.
            Item::Member(_) | Item::Notice(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ids::DomainBlock;
    use link::information::write;
    use link::{NodeKey, NoticeCause};

    use super::*;

    const RAIL: RailId = RailId::ALL[0];

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn announcer(number: u16) -> Announcer {
        let mut secret = [1; 32];
        // Three bits of the first byte say nothing (RFC 7748 §5).
        secret[1..3].copy_from_slice(&number.to_le_bytes());
        let key = NodeKey::new(secret).public();
        Announcer {
            role: Role::Node,
            key,
            domains: DomainBlock::of(key.id()),
            name: Name::new(&format!("node{number}")),
            interval_s: 5,
            incarnation: Incarnation(1),
            number: 0,
            rail: RAIL,
            group: Group::DEFAULT,
        }
    }

    fn rail(last: u8) -> Item {
        Item::Rail { rail: RAIL, is_up: true, address: [last; 28], gateway: [0; 28] }
    }

    fn function(name: &str) -> Item {
        Item::Function { name: Name::new(name), bytes: 512, read_only: false, lent_to: None }
    }

    #[test]
    fn a_switch_is_heard_with_the_addresses_where_it_takes_frames() {
        let mut known = Neighbourhood::new(at(0), NodeId::default(), None);
        let switch = Announcer { role: Role::Switch, ..announcer(1) };
        let ports =
            |range: core::ops::Range<u8>| range.map(|port| Item::Port([port; 28])).collect::<Vec<_>>();
        assert!(hear(&mut known, 0, &switch, &ports(1..20)));
        hear(&mut known, 14_000, &switch, &ports(10..30));
        let count = |known: &mut Neighbourhood, ms| {
            let all: Vec<_> = known.nodes(at(ms)).map(|(_, it)| (it.role, it.ports.len())).collect();
            all
        };
        assert_eq!(count(&mut known, 14_000), [(Role::Switch, 29)]);
        // Of what was not said again nothing is left.
        assert_eq!(count(&mut known, 16_000), [(Role::Switch, 20)]);
        for round in 0..10 {
            hear(&mut known, 16_000, &switch, &ports(20 * round..20 * round + 20));
        }
        assert_eq!(count(&mut known, 16_000), [(Role::Switch, PORTS_MAX)]);
    }

    fn hear(neighbourhood: &mut Neighbourhood, ms: u64, announcer: &Announcer, items: &[Item]) -> bool {
        let frame = write(announcer, items).0;
        neighbourhood.hear(at(ms), RAIL, &frame, |address| Some(Address(address)))
    }

    fn empty() -> Neighbourhood {
        Neighbourhood::new(at(0), announcer(0).key.id(), None)
    }

    #[test]
    fn a_notice_to_all_is_heeded_once_and_of_a_member_only() {
        let key = GroupKey::new(&[1; 32]);
        let mut all = Neighbourhood::new(at(0), announcer(0).key.id(), Some(key.clone()));
        let notice = Notice { node: NodeId::numbered(7), rail: RailId::ALL[1], cause: NoticeCause::Silence };
        let from = |number| Announcer { number, ..announcer(1) };
        let item =
            |key: &GroupKey, announcer: &Announcer| Item::Notice(notice, key.proof(announcer, &notice));
        let id = announcer(1).key.id();
        let other = GroupKey::new(&[2; 32]);
        hear(&mut all, 1, &from(9), &[item(&other, &from(9)), Item::Member(other.mark(id))]);
        assert_eq!((all.take_notices(), all.members(at(1)).count()), (vec![], 0), "of another group");
        hear(&mut all, 2, &from(5), &[item(&key, &from(5)), Item::Member(key.mark(id))]);
        assert_eq!((all.take_notices(), all.members(at(2)).next()), (vec![notice], Some((id, 0b01))));
        hear(&mut all, 3, &from(5), &[item(&key, &from(5))]);
        hear(&mut all, 3, &from(4), &[item(&key, &from(4))]);
        hear(&mut all, 3, &from(6), &[item(&key, &from(5))]);
        let elsewhere = Announcer { group: Group(9), ..from(5) };
        hear(&mut all, 3, &elsewhere, &[item(&key, &elsewhere)]);
        assert_eq!(all.take_notices(), vec![], "it was heard, in whichever group, or is of another frame");
        assert_eq!(all.members(at(15_100)).count(), 0, "it says so no more");
        // Anybody can have it forgotten.
        for (ms, until) in [(3, 3_100), (3_200, 20_000)] {
            hear(&mut all, ms, &Announcer { interval_s: 1, ..from(9) }, &[]);
            all.nodes(at(until)).for_each(drop);
            hear(&mut all, until + 100, &from(5), &[item(&key, &from(5))]);
            assert_eq!(all.take_notices(), vec![], "it was heard before its sender was forgotten");
        }
        for number in 7..500 {
            hear(&mut all, 20_100, &from(number), &[item(&key, &from(number))]);
        }
        assert_eq!(all.take_notices().len(), NOTICES as usize, "a member may lie, too");
        let mut without = empty();
        hear(&mut without, 1, &from(1), &[item(&key, &from(1))]);
        assert_eq!(without.take_notices(), vec![]);
    }

    #[test]
    fn of_a_member_it_is_known_on_which_rails_it_is_heard() {
        let key = GroupKey::new(&[1; 32]);
        let mut all = Neighbourhood::new(at(0), announcer(0).key.id(), Some(key.clone()));
        let id = announcer(1).key.id();
        let mut hear_on = |ms, rail: usize| {
            let frame = write(&announcer(1), &[Item::Member(key.mark(id))]).0;
            all.hear(at(ms), RailId::ALL[rail], &frame, |address| Some(Address(address)));
            all.members(at(ms)).collect::<Vec<_>>()
        };
        assert_eq!(hear_on(0, 1), [(id, 0b0010)]);
        assert_eq!(hear_on(5_000, 3), [(id, 0b1010)]);
        assert_eq!(hear_on(15_001, 3), [(id, 0b1000)], "on the other one it is silent");
    }

    #[test]
    fn of_members_the_last_notice_is_remembered_and_of_no_one_else() {
        let key = GroupKey::new(&[1; 32]);
        let mut all = Neighbourhood::new(at(0), announcer(0).key.id(), Some(key.clone()));
        let notice = Notice { node: NodeId::numbered(7), rail: RailId::ALL[1], cause: NoticeCause::Silence };
        let say = |all: &mut Neighbourhood, ms, node, key: &GroupKey| {
            let from = Announcer { number: 1, ..announcer(node) };
            hear(all, ms, &from, &[Item::Notice(notice, key.proof(&from, &notice))]);
            all.take_notices().len()
        };
        assert_eq!(say(&mut all, 0, 1, &key), 1);
        let other = GroupKey::new(&[2; 32]);
        let others = 2..2 + PROVEN_MAX as u16;
        assert!(others.clone().take(100).all(|node| say(&mut all, 10, node, &other) == 0));
        assert_eq!((say(&mut all, 20, 1, &key), all.proven.len()), (0, 1), "they have no proof");
        let mut ms = 20;
        for node in others {
            ms += 10;
            assert_eq!(say(&mut all, ms, node, &key), 1);
        }
        assert_eq!(all.proven.len(), PROVEN_MAX);
        assert!(!all.proven.contains_key(&announcer(1).key.id()), "who has sent none for longest makes room");
    }

    /// A member speaks in the name of another one, or that has an older state folder.
    #[test]
    fn no_member_is_unheeded_for_good() {
        let key = GroupKey::new(&[1; 32]);
        let mut all = Neighbourhood::new(at(0), announcer(0).key.id(), Some(key.clone()));
        let notice = Notice { node: NodeId::numbered(7), rail: RailId::ALL[1], cause: NoticeCause::Silence };
        let mut say = |ms, incarnation, number| {
            let from = Announcer { incarnation: Incarnation(incarnation), number, ..announcer(1) };
            hear(&mut all, ms, &from, &[Item::Notice(notice, key.proof(&from, &notice))]);
            all.take_notices().len()
        };
        assert_eq!(say(0, u64::MAX, u64::MAX), 1);
        assert_eq!((say(10, 3, 1), say(59_999, 3, 2), say(60_000, 3, 3)), (0, 0, 1));
        assert_eq!((say(60_010, 3, 3), say(60_020, 3, 4)), (0, 1), "and goes on from there");
    }

    #[test]
    fn who_is_heard_is_known_until_it_is_silent_for_three_intervals() {
        let mut all = empty();
        assert!(hear(&mut all, 10, &announcer(1), &[rail(1), function("a"), function("b")]));
        assert!(!hear(&mut all, 5_000, &announcer(1), &[rail(1), function("a")]));
        assert!(!hear(&mut all, 5_000, &announcer(0), &[]), "its own frames are nobody's");
        let (id, it) = all.nodes(at(15_011)).next().unwrap();
        assert_eq!((id, it.since, it.heard), (announcer(1).key.id(), at(10), at(5_000)));
        assert_eq!(it.functions.len(), 1, "what it says no more is forgotten");
        assert_eq!(it.rails[0].unwrap().address, Address([1; 28]));
        assert_eq!(all.nodes(at(20_001)).count(), 0);
        assert_eq!(all.functions, 0);
    }

    #[test]
    fn a_newcomer_is_told_soon_and_many_do_not_make_a_node_talk() {
        let mut all = empty();
        assert_eq!(all.next(), at(0));
        all.speak(at(0));
        assert_eq!(all.next(), at(5_000));
        hear(&mut all, 2_000, &announcer(1), &[]);
        assert_eq!(all.next(), at(2_200));
        all.speak(at(2_200));
        // Another life of it.
        let again = Announcer { incarnation: Incarnation(2), ..announcer(1) };
        assert!(hear(&mut all, 2_300, &again, &[]));
        let mut spoken = 0;
        for number in 0..1000 {
            let now = 2_300 + u64::from(number);
            hear(&mut all, now, &announcer(2 + number), &[]);
            if all.next() <= at(now) {
                all.speak(at(now));
                spoken += 1;
            }
        }
        assert!((1..=2).contains(&spoken), "{spoken}");
    }

    #[test]
    fn two_who_say_they_are_one_are_told_from_one_that_moves() {
        let mut all = empty();
        let contested = |all: &mut Neighbourhood, ms| all.nodes(at(ms)).next().unwrap().1.contested.is_some();
        for (ms, place) in [(0, 1), (100, 2), (200, 2)] {
            hear(&mut all, ms, &announcer(1), &[rail(place)]);
            assert!(!contested(&mut all, ms), "{ms}");
        }
        hear(&mut all, 300, &announcer(1), &[rail(1)]);
        assert!(contested(&mut all, 300));
        hear(&mut all, 15_000, &announcer(1), &[rail(1)]);
        assert!(!contested(&mut all, 15_400), "the other one is silent");
        // Who is said to be somewhere else each time is no less contested.
        let mut all = empty();
        for (ms, place) in (0..).zip([1, 2, 3, 1, 4, 5, 1]) {
            hear(&mut all, ms, &announcer(1), &[rail(place)]);
            assert_eq!(contested(&mut all, ms), ms >= 3, "{ms}");
        }
        let mut all = empty();
        for ms in 0..6 {
            hear(&mut all, ms, &announcer(1), &[rail(ms as u8)]);
        }
        assert!(contested(&mut all, 6), "nobody moves so often");
        // Nor who speaks after it each time and has it forgotten.
        let mut all = empty();
        for (ms, place, interval_s) in [(0, 1, 5), (10, 2, 1), (5_000, 1, 5), (5_010, 3, 1)] {
            hear(&mut all, ms, &Announcer { interval_s, ..announcer(1) }, &[rail(place)]);
            all.nodes(at(ms + 4_900)).for_each(drop);
        }
        assert!(contested(&mut all, 9_910));
    }

    #[test]
    fn where_a_node_is_counts_as_long_as_one_alone_says_so() {
        let mut all = empty();
        let node = announcer(1).key.id();
        let first = |all: &Neighbourhood, ms| all.place_of(at(ms), node).map(|rails| rails[0]);
        assert_eq!(first(&all, 0), None);
        hear(&mut all, 0, &announcer(1), &[rail(1)]);
        assert_eq!(first(&all, 15_000), Some(Some(Address([1; 28]))));
        assert_eq!(first(&all, 15_001), None, "it is silent");
        hear(&mut all, 4_000, &announcer(1), &[]);
        assert_eq!(first(&all, 15_001), Some(None), "it does not say so any more");
        for (ms, place) in [(16_000, 1), (16_001, 2), (16_002, 1)] {
            hear(&mut all, ms, &announcer(1), &[rail(place)]);
        }
        assert_eq!(first(&all, 16_002), None, "two say so");
        hear(&mut all, 31_000, &announcer(1), &[rail(1)]);
        assert_eq!(first(&all, 31_003), Some(Some(Address([1; 28]))));
        let behind = Item::Rail { rail: RAIL, is_up: true, address: [1; 28], gateway: [2; 28] };
        hear(&mut all, 31_004, &announcer(1), &[behind]);
        assert_eq!(first(&all, 31_004), Some(None), "it is called by who it is");
    }

    #[test]
    fn one_that_moves_now_and_then_is_not_contested() {
        let mut all = empty();
        for round in 0..100 {
            let ms = 5_000 * round;
            hear(&mut all, ms, &announcer(1), &[rail((round / 4) as u8)]);
            assert!(all.nodes(at(ms)).all(|(_, it)| it.contested.is_none()), "{ms}");
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_rubbish_is_counted() {
        let mut all = empty();
        all.hear(at(0), RAIL, &[6; 200], |address| Some(Address(address)));
        assert_eq!((all.malformed, all.heard), (1, 0));
        for batch in 0..40 {
            let items: Vec<Item> = (0..10).map(|at| function(&format!("f{batch}-{at}"))).collect();
            hear(&mut all, 1, &announcer(1), &items);
        }
        assert_eq!(all.functions, FUNCTIONS_MAX);
        hear(&mut all, 15_100, &announcer(2), &[]);
        assert_eq!((all.nodes.len(), all.functions), (1, 0), "what is over takes no room");
        hear(&mut all, 15_100, &announcer(1), &[function("a")]);
        for number in 0..NODES_MAX as u16 {
            hear(&mut all, 15_101 + u64::from(number), &announcer(number + 2), &[]);
        }
        assert_eq!((all.nodes.len(), all.functions), (NODES_MAX, 0), "who was heard longest ago makes room");
        assert!(!all.nodes.contains_key(&announcer(1).key.id()));
        let of_nodes: BTreeSet<_> = all.nodes.iter().map(|(id, it)| (it.heard, *id)).collect();
        assert_eq!(all.by_age, of_nodes);
        all.nodes(at(60_000)).for_each(drop);
        assert!(all.by_age.is_empty());
    }
}
