//! The peers of a card, by place. Who is borrowed from has a place as long as the loan is there; whoever calls gets one
//! while there is any, and keeps it as long as a stream is open.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::Instant;
use base::ids::{Group, LifeId, NodeId};
use base::ledger::{Journal, RegionError};
use base::times::SILENCE;
use link::pair::{COPIES, Channel, Known, Presence};
use link::{Members, PublicKey, State, derive};

use crate::cells::{NodeLedger, PeerCells, SPARE_PEERS, peer_places};
use crate::config::{CardConfig, LoanRole};
use crate::loan_table::LoanTable;
use crate::peer::{ByRail, Peer};
use crate::whereabouts::Whereabouts;

/// How long a node that has called keeps its place without a stream: time to ask for one.
const WITHOUT_STREAM: Duration = Duration::from_millis(200);

/// With fewer places left than this, who calls has to show that it is where it seems to be: recorded calls would keep
/// newcomers out.
const SCARCE: usize = SPARE_PEERS / 2;

/// What seeds of channels are derived with.
const CHANNELS: u64 = u64::from_le_bytes(*b"channels");

/// The peers of a card.
pub(crate) struct Peers<'m> {
    /// By place; `None`: nobody has it.
    places: Vec<Option<Peer<'m>>>,
    /// Channels that this card has made, so that no two have the same seed.
    made: u64,
    /// Where somebody has said that nodes are today.
    heard: BTreeMap<NodeId, ByRail>,
    /// What this node knows of its fabric, if it belongs to one.
    members: Option<Rc<Members>>,
}

/// Nodes of which that is remembered: more than a card borrows from.
const HEARD_MAX: usize = crate::MAX_LOANS;

/// A place for a node that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It has this one.
    Present(usize),
    /// It may have this one, whoever has it now.
    Vacant(usize),
    /// There is none.
    Full,
}

impl<'m> Peers<'m> {
    /// Those that the ledger has, but for whom this card has nothing to do with any more.
    pub(crate) fn new(ledger: &NodeLedger<'m>, card: &CardConfig, now: Instant) -> Self {
        let mut peers = Self { places: Vec::new(), made: 0, heard: BTreeMap::new(), members: None };
        for (place, cells) in ledger.peers() {
            if let Some(key) = cells.key().filter(|key| card.may_meet(key.id(), cells.group())) {
                peers.occupy(place, (key, cells), ledger.journal, card, now);
            } else {
                cells.set_key(ledger.journal, None);
            }
        }
        peers
    }

    /// The peer that a loan of the configuration borrows from, in steps of their own; who has a place already does not
    /// hear here of loans that have come ([`Peer::follow`]).
    ///
    /// # Errors
    /// There is no room for it, or the ledger is corrupt.
    pub(crate) fn lender(
        &mut self,
        (lender, group): (PublicKey, Group),
        ledger: &NodeLedger<'m>,
        card: &CardConfig,
        now: Instant,
    ) -> Result<usize, RegionError> {
        let is_own = lender == card.identity.public();
        let is_lender = |peer: &Peer<'_>| (peer.key(), peer.group()) == (lender, group);
        let is_it = |peer: &Peer<'_>| is_lender(peer) && (!is_own || peer.calls_itself());
        if let Some(place) = self.position(is_it) {
            return Ok(place);
        }
        let vacant = self.vacant(ledger);
        self.admit(vacant, (lender, group, is_own), ledger, card, now)?;
        Ok(vacant)
    }

    /// A node that has something of this one in a group gets a place, so that it is called where it was last. In steps
    /// of their own.
    ///
    /// # Errors
    /// The ledger is corrupt.
    pub(crate) fn expect(
        &mut self,
        (holder, group): (&Whereabouts, Group),
        ledger: &NodeLedger<'m>,
        card: &CardConfig,
        now: Instant,
    ) -> Result<(), RegionError> {
        let is_here = self.position(|peer| (peer.key(), peer.group()) == (holder.key, group)).is_some();
        if is_here || holder.key == card.identity.public() || !card.may_meet(holder.node(), group) {
            return Ok(());
        }
        match self.admit(self.vacant(ledger), (holder.key, group, false), ledger, card, now) {
            // It calls itself, and others may go by then.
            Err(RegionError::Full(_) | RegionError::TableFull) => Ok(()),
            other => other,
        }
    }

    /// Whether a node has something of this one has changed: where it is will be said once more.
    pub(crate) fn forget_located(&mut self, node: NodeId) {
        let peers = self.places.iter_mut().flatten().filter(|peer| peer.node() == node);
        peers.for_each(Peer::forget_located);
    }

    /// Which lives of which nodes have something of this one, in which group, in ascending order. In a step of its own:
    /// what is news of where they are.
    pub(crate) fn set_holders(
        &mut self,
        now: Instant,
        journal: Journal<'m>,
        holders: &[(NodeId, Group, LifeId)],
    ) -> Vec<Whereabouts> {
        // Who lends nothing has nobody to keep anything for, and this is done all the time.
        let copies = if holders.is_empty() { BTreeMap::new() } else { self.copies() };
        let peers = self.places.iter_mut().flatten().filter(|peer| !peer.has_failed());
        let located = peers.filter_map(|peer| {
            let of = (peer.node(), peer.group());
            let copies = copies.get(&peer.node()).copied().unwrap_or_default();
            let first = holders.partition_point(|&(node, group, _)| (node, group) < of);
            let lives = holders[first..].iter().take_while(|&&(node, group, _)| (node, group) == of);
            peer.set_holder(now, lives.map(|(.., life)| *life), copies)
        });
        let located = located.collect();
        journal.commit();
        located
    }

    /// By node, which lives of it are copies in any of its groups, in ascending order: else those of one group would
    /// be news for another, and what is kept of the node would change with each of them.
    fn copies(&self) -> BTreeMap<NodeId, [LifeId; COPIES]> {
        let mut all: BTreeMap<NodeId, BTreeSet<LifeId>> = BTreeMap::new();
        for peer in self.places.iter().flatten() {
            let copies = peer.channel.copies().into_iter().filter(|life| *life != LifeId::default());
            all.entry(peer.node()).or_default().extend(copies);
        }
        let first = |lives: BTreeSet<LifeId>| {
            let mut lives = lives.into_iter();
            core::array::from_fn(|_| lives.next().unwrap_or_default())
        };
        all.into_iter().map(|(node, lives)| (node, first(lives))).collect()
    }

    /// Whether a node that calls in a group has a place, or could have one.
    pub(crate) fn room_for(
        &self,
        (node, group): (NodeId, Group),
        ledger: &NodeLedger<'m>,
        card: &CardConfig,
        loans: &LoanTable<'m>,
        now: Instant,
    ) -> Entry {
        let is_own = node == card.identity.id();
        let is_node = |peer: &Peer<'_>| (peer.node(), peer.group()) == (node, group);
        let is_it = |peer: &Peer<'_>| is_node(peer) && !(is_own && peer.calls_itself());
        if let Some(place) = self.position(is_it) {
            return Entry::Present(place);
        }
        let vacant = self.vacant(ledger);
        if vacant < places_of(card) {
            return Entry::Vacant(vacant);
        }
        // Whoever has no stream makes room, who was heard first before all others.
        let wanted = self.wanted(now, card, loans);
        let idle = self.iter().filter(|(place, peer)| {
            !wanted[*place] && now.since(peer.channel.listens_since()) >= WITHOUT_STREAM
        });
        let oldest = idle.min_by_key(|(_, peer)| peer.channel.last_heard());
        oldest.map_or(Entry::Full, |(place, _)| Entry::Vacant(place))
    }

    /// Whether so few places are left that nobody gets one, or takes one from somebody else, who may be a recording.
    pub(crate) fn are_scarce(&self, card: &CardConfig) -> bool {
        self.iter().count() + SCARCE > places_of(card)
    }

    /// By place, whether a loan has a stream with the peer or wants one, or the peer is called because it has one.
    fn wanted(&self, now: Instant, card: &CardConfig, loans: &LoanTable<'m>) -> Vec<bool> {
        let is_called = |peer: &Option<Peer<'_>>| peer.as_ref().is_some_and(|it| it.is_called_as_holder(now));
        let mut wanted: Vec<bool> = self.places.iter().map(is_called).collect();
        for (loan, config) in card.loans.iter().enumerate() {
            let Some(loan) = loans.get(loan) else { continue };
            let borrows = matches!(config.role, LoanRole::Borrow { .. }) && loan.state() != State::Closed;
            let is_wanted = borrows || loan.stream_id().is_some();
            if let Some(place) = loan.peer().and_then(|place| wanted.get_mut(place)) {
                *place |= is_wanted;
            }
        }
        wanted
    }

    /// Gives up whoever has no stream and is silent, each in a step of its own: their places.
    pub(crate) fn forget_silent(
        &mut self,
        now: Instant,
        journal: Journal<'m>,
        card: &CardConfig,
        loans: &LoanTable<'m>,
    ) -> Vec<usize> {
        let since = |peer: &Peer<'_>| peer.channel.last_heard().max(peer.channel.listens_since());
        let silent = self.iter().filter(|(_, peer)| now.since(since(peer)) >= SILENCE);
        let mut left: Vec<usize> = silent.map(|(place, _)| place).collect();
        if !left.is_empty() {
            let wanted = self.wanted(now, card, loans);
            left.retain(|place| !wanted[*place]);
        }
        for &place in &left {
            self[place].leave();
            journal.commit();
            self.places[place] = None;
        }
        left
    }

    /// What the lobby is to know of a node.
    pub(crate) fn known_call(&self, room: Entry) -> Presence {
        match room {
            Entry::Present(place) => Presence::Channel(self.known(place)),
            Entry::Vacant(_) => Presence::Channel(None),
            Entry::Full => Presence::NoRoom,
        }
    }

    fn known(&self, place: usize) -> Option<Known> {
        self.get(place).and_then(|peer| peer.channel.known_call())
    }

    /// A node gets this place, in steps of their own; whoever has had it has left.
    ///
    /// # Errors
    /// There is no room for it, or the ledger is corrupt.
    pub(crate) fn admit(
        &mut self,
        place: usize,
        (key, group, calls_itself): (PublicKey, Group, bool),
        ledger: &NodeLedger<'m>,
        card: &CardConfig,
        now: Instant,
    ) -> Result<(), RegionError> {
        let journal = ledger.journal;
        ledger.obtain_peer(place)?;
        if let Some(peer) = self.get(place) {
            peer.leave();
            journal.commit();
        }
        // It is nobody's: if this is cut short, whoever comes next does it again.
        let cells = ledger.clear_peer(place)?;
        cells.set_key(journal, Some(key));
        cells.calls_itself.set(journal, calls_itself.into());
        cells.group.set(journal, group.0);
        self.occupy(place, (key, cells), journal, card, now);
        journal.commit();
        Ok(())
    }

    fn occupy(
        &mut self,
        place: usize,
        cells: (PublicKey, &'m PeerCells),
        journal: Journal<'m>,
        card: &CardConfig,
        now: Instant,
    ) {
        if self.places.len() <= place {
            self.places.resize_with(place + 1, || None);
        }
        self.made += 1;
        let seed = self.seed(card, self.made);
        let mut peer = Peer::new(cells, journal, card, place, seed, now);
        peer.hear_of(self.heard.get(&peer.node()).copied().unwrap_or_default());
        peer.believe(self.members.clone());
        self.places[place] = Some(peer);
    }

    /// Whether this node belongs to a fabric.
    pub(crate) fn is_member(&self) -> bool {
        self.members.is_some()
    }

    /// What this node knows of its fabric from now on.
    pub(crate) fn set_members(&mut self, members: Option<Rc<Members>>) {
        self.members = members;
        for peer in self.places.iter_mut().flatten() {
            peer.believe(self.members.clone());
        }
    }

    /// Somebody says that a node is here, by rail; or nobody does any more.
    pub(crate) fn hear_of(&mut self, node: NodeId, heard: ByRail) {
        if heard == ByRail::default() {
            // What is taken back takes no room from others.
            self.heard.remove(&node);
        } else if self.heard.len() < HEARD_MAX || self.heard.contains_key(&node) {
            self.heard.insert(node, heard);
        }
        let peers = self.places.iter_mut().flatten().filter(|peer| peer.node() == node);
        peers.for_each(|peer| peer.hear_of(heard));
    }

    /// What is random in one channel must not be known from another, nor from the one that had its place before.
    fn seed(&self, card: &CardConfig, made: u64) -> [u8; 32] {
        derive(&derive(&card.seed.0, CHANNELS), made)
    }

    /// Another seed for a channel that there is.
    pub(crate) fn new_seed(&mut self, card: &CardConfig) -> [u8; 32] {
        self.made += 1;
        self.seed(card, self.made)
    }

    /// The first place that nobody has.
    fn vacant(&self, ledger: &NodeLedger<'m>) -> usize {
        // Those that have cells first.
        let is_vacant = |place: &usize| self.get(*place).is_none();
        let mut with_cells = ledger.peer_regions().map(|(place, _)| place).filter(is_vacant);
        let first = with_cells.next();
        first.unwrap_or_else(|| self.places.iter().position(Option::is_none).unwrap_or(self.places.len()))
    }

    fn position(&self, is_it: impl Fn(&Peer<'_>) -> bool) -> Option<usize> {
        self.iter().find(|(_, peer)| is_it(peer)).map(|(place, _)| place)
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn get(&self, place: usize) -> Option<&Peer<'m>> {
        self.places.get(place)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, place: usize) -> Option<&mut Peer<'m>> {
        self.places.get_mut(place)?.as_mut()
    }

    /// The channels of two peers.
    pub(crate) fn channels(
        &mut self,
        one: usize,
        other: Option<usize>,
    ) -> (&mut Channel<'m>, Option<&mut Channel<'m>>) {
        let is_there = |place: &usize| self.places.get(*place).is_some_and(Option::is_some);
        let gone = "only a peer that is there is asked for";
        match other.filter(|other| *other != one && is_there(other)) {
            None => (&mut self[one].channel, None),
            Some(other) => {
                let [one, other] = self.places.get_disjoint_mut([one, other]).expect("two places");
                let [one, other] = [one, other].map(|peer| &mut peer.as_mut().expect(gone).channel);
                (one, Some(other))
            }
        }
    }

    /// Those that are there, with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Peer<'m>)> {
        self.places.iter().enumerate().filter_map(|(place, peer)| Some((place, peer.as_ref()?)))
    }
}

/// How many peers there may be.
fn places_of(card: &CardConfig) -> usize {
    peer_places(card.loans.iter().filter(|loan| loan.role.kind().is_some()).count())
}

impl<'m> core::ops::Index<usize> for Peers<'m> {
    type Output = Peer<'m>;

    fn index(&self, place: usize) -> &Peer<'m> {
        self.get(place).expect("only a peer that is there is asked for")
    }
}

impl core::ops::IndexMut<usize> for Peers<'_> {
    fn index_mut(&mut self, place: usize) -> &mut Self::Output {
        self.get_mut(place).expect("only a peer that is there is asked for")
    }
}
