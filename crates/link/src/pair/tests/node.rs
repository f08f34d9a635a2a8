//! The composed test node.

use core::cell::Cell as Volatile;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LifeId, LoanGeneration, NodeId, RailId,
    StreamId,
};
use base::ledger::{Arena, Cell, Hook, Journal, Ledger, PageCells, Pages, RawMemory};
use base::{Instant, Payload, RuleSet};
use pcie::{Bdf, CompletionStatus, FlowClass, Header as TlpHeader, MemoryRequest, Tag, TlpView};
use zerocopy::FromBytes;

use crate::certificate::Members;
use crate::frame::{Header, Kind, MAX_FRAME, MAX_RAILS};
use crate::handshake::{Answer, Proposal};
use crate::identity::NodeKey;
use crate::name::Name;
use crate::pair::*;
use crate::paths::{PathConfig, PathId, SHM_PATH};
use crate::stream::{Port, Sink, State, Stream, StreamCells};
use crate::tenancy::Tenancy;
use crate::{Protection, REKEY_FRAMES, RailMode, Transmit};

/// Places of a node.
const LOANS: usize = 260;
const PEERS: usize = 4;

/// Words that a function may change with each TLP: as many as one can.
pub(super) const WORDS: usize = 9_000;

/// Between two steps of everybody.
pub(super) const TICK: Duration = Duration::from_micros(200);

#[derive(FromBytes)]
#[repr(C)]
pub(super) struct Root {
    lobby: LobbyCells,
    channels: [ChannelCells; PEERS],
    loans: [LoanCells; LOANS],
    pages: PageCells,
    /// What a function may change.
    words: [Cell<u64>; WORDS],
}

#[derive(FromBytes)]
#[repr(C)]
struct LoanCells {
    stream: StreamCells,
    claim: ClaimCells,
    offer: OfferCells,
    /// The address of the next write that is queued, and of the next one that is to come.
    sent: Cell<u64>,
    received: Cell<u64>,
    /// Writes that the sink keeps.
    kept: Cell<u64>,
}

/// Takes writes: each has to be the next one.
pub(super) struct Log<'m> {
    cells: &'m LoanCells,
    journal: Journal<'m>,
    /// Keeps what it accepts, so that no credit returns.
    pub(super) is_stuck: bool,
    /// Its peer is broken: anything may come.
    pub(super) is_lenient: bool,
    /// It changes all words with each write.
    pub(super) is_busy: bool,
    words: &'m [Cell<u64>],
    /// Writes that have come to this card, and how requests have ended.
    pub(super) accepted: u64,
    pub(super) completions: Vec<CompletionStatus>,
}

impl<'m> Log<'m> {
    fn new(cells: &'m LoanCells, words: &'m [Cell<u64>], journal: Journal<'m>) -> Self {
        let (is_stuck, is_lenient, is_busy, accepted) = (false, false, false, 0);
        Self { cells, journal, is_stuck, is_lenient, is_busy, words, accepted, completions: Vec::new() }
    }
}

impl<'m> Sink<'m> for Log<'m> {
    fn accept(&mut self, _now: Instant, port: &mut Port<'m>, tlp: &TlpView<'_>) {
        if let TlpHeader::Completion(completion) = tlp.header() {
            self.completions.push(completion.status);
        }
        let TlpHeader::MemoryWrite(write) = tlp.header() else { return };
        self.accepted += 1;
        if self.is_lenient {
            return;
        }
        let place = port.rail.in_address(self.cells.received.get());
        assert_eq!(write.address, place, "each write once and in order, over the rail that it was sent to");
        self.cells.received.update(self.journal, |received| received + 64);
        if self.is_busy {
            self.words.iter().for_each(|word| _ = word.update(self.journal, |word| word + 1));
        }
        if self.is_stuck {
            port.held.keep(tlp.header().data_credits());
            self.cells.kept.update(self.journal, |kept| kept + 1);
        }
    }
}

pub(super) enum End<'m> {
    Claim(Claim<'m>),
    Offer(Offer<'m>),
}

/// A loan of a node's configuration.
#[derive(Clone)]
pub(super) enum Loan {
    Borrow { lender: usize, config: ClaimConfig },
    Lend(OfferConfig),
}

pub(super) struct TestLoan<'m> {
    pub(super) end: End<'m>,
    pub(super) stream: Stream<'m>,
    pub(super) log: Log<'m>,
    /// Whose stream it is.
    slot: Option<usize>,
    /// How long the function takes to end what was before.
    quiet_at: Option<Instant>,
    pub(super) refusals: Vec<OpenRefusal>,
    pub(super) resets: u32,
    pub(super) informed: u32,
}

impl<'m> TestLoan<'m> {
    fn stream_id(&self) -> Option<(Course, StreamId)> {
        match &self.end {
            End::Claim(claim) => claim.stream(),
            End::Offer(offer) => offer.stream(),
        }
    }

    pub(super) fn slot_index(&self) -> Option<usize> {
        self.slot
    }

    pub(super) fn stream_number(&self) -> u32 {
        self.stream_id().map_or(0, |(_, id)| id.0)
    }

    pub(super) fn is_open(&self) -> bool {
        self.stream.state() == State::Open
    }

    /// Queues a posted write of so many bytes, if there is room.
    pub(super) fn write(&mut self, len: usize) -> bool {
        let is_open = self.is_open();
        let sender = &mut self.stream.port.sender;
        if !is_open || !sender.has_room(FlowClass::Posted) {
            return false;
        }
        let address = self.log.cells.sent.get();
        let request = MemoryRequest::new(Bdf(8), Tag::new(0).unwrap(), address, len).unwrap();
        sender.push(&TlpHeader::MemoryWrite(request), Payload::inline(&[1; 64][..len]), false);
        self.log.cells.sent.set(self.log.journal, address + 64);
        true
    }

    /// Writes that were queued, and that have come, since the stream began.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.log.cells.sent.get() / 64, self.log.cells.received.get() / 64)
    }

    fn forget(&mut self) {
        let Log { cells, journal, .. } = self.log;
        [&cells.sent, &cells.received, &cells.kept].iter().for_each(|cell| cell.set(journal, 0));
    }

    /// What a sink has kept is done.
    pub(super) fn release_kept(&mut self) {
        let Log { cells, journal, .. } = self.log;
        for _ in 0..cells.kept.get() {
            self.stream.port.held.give_back(1);
        }
        cells.kept.set(journal, 0);
    }

    pub(super) fn claim(&mut self) -> &mut Claim<'m> {
        let End::Claim(claim) = &mut self.end else { panic!("it lends") };
        claim
    }

    pub(super) fn offer(&self) -> &Offer<'m> {
        let End::Offer(offer) = &self.end else { panic!("it borrows") };
        offer
    }
}

/// The streams of one channel, in its present course.
struct View<'a, 'm> {
    places: &'a mut [TestLoan<'m>],
    slot: usize,
    course: Option<Course>,
}

impl<'a, 'm> View<'a, 'm> {
    fn of(places: &'a mut [TestLoan<'m>], slot: usize, channel: &Channel<'m>) -> Self {
        Self { places, slot, course: channel.course() }
    }
}

impl<'m> Streams<'m> for View<'_, 'm> {
    fn stream(&mut self, id: StreamId) -> Option<(&mut Stream<'m>, &mut dyn Sink<'m>)> {
        let key = (self.course?, id);
        let slot = self.slot;
        let is_it = |place: &&mut TestLoan<'m>| place.stream_id() == Some(key) && place.slot == Some(slot);
        let place = self.places.iter_mut().find(is_it)?;
        Some((&mut place.stream, &mut place.log))
    }

    fn each(&mut self, visit: &mut dyn FnMut(StreamId, &mut Stream<'m>)) {
        for place in self.places.iter_mut() {
            if let Some((course, id)) = place.stream_id()
                && (Some(course), place.slot) == (self.course, Some(self.slot))
            {
                visit(id, &mut place.stream);
            }
        }
    }
}

/// The paths between equal rails.
pub(super) const PATHS: [PathId; 2] =
    [PathId::new(RailId::ALL[0], RailId::ALL[0]), PathId::new(RailId::ALL[1], RailId::ALL[1])];

/// A channel of a node, and with whom it is.
pub(super) struct Slot<'m> {
    pub(super) peer: usize,
    calls: bool,
    pub(super) channel: Channel<'m>,
    pub(super) events: Vec<Event>,
    /// The step after which a frame was built that was said to be the last one.
    was_last: Option<u64>,
}

/// What a node knows of itself.
#[derive(Clone)]
pub(super) struct NodeConfig {
    pub(super) index: usize,
    pub(super) domain: u32,
    pub(super) incarnation: u64,
    pub(super) life: u8,
    pub(super) generation: u64,
    pub(super) seed: u8,
    pub(super) protection: Protection,
    pub(super) rekey_frames: u64,
    pub(super) max_streams: u32,
    pub(super) max_frame: usize,
    /// Ids of its rails, and of those of whom it calls, as it is told.
    pub(super) rails: Vec<u8>,
    pub(super) rail_mode: RailMode,
    pub(super) said: Vec<u8>,
    /// Peers that are called, and that are there at all.
    pub(super) calls: [bool; PEERS],
    pub(super) peers: [bool; PEERS],
    pub(super) allowed: Option<Vec<NodeId>>,
    pub(super) members: Option<Rc<Members>>,
    pub(super) loans: Vec<Loan>,
    /// Of each loan that lends: what is durable.
    pub(super) disk: Vec<Tenancy>,
    pub(super) disk_is_full: bool,
    /// What a function takes to end.
    pub(super) quiet_after: Duration,
    pub(super) is_under_load: bool,
    pub(super) is_its_own_peer: bool,
}

pub(super) struct Node<'m> {
    memory: RawMemory<'m>,
    pub(super) config: NodeConfig,
    pub(super) ledger: Ledger<'m, Root>,
    killer: &'static Killer,
    pub(super) lobby: Lobby<'m>,
    pub(super) slots: Vec<Slot<'m>>,
    pub(super) places: Vec<TestLoan<'m>>,
    /// Replies of the lobby that wait to be sent: to whom, on which path.
    replies: Vec<(usize, PathId, Vec<u8>)>,
    buffer: Vec<u8>,
    /// Something has happened since the last step.
    pub(super) is_awake: bool,
    /// A step has been made since nothing more was to be sent.
    pub(super) may_send: bool,
    /// What the last frame was.
    pub(super) heard: Heard,
    /// Words that the largest step has changed.
    pub(super) largest_step: usize,
    /// Frames with TLPs that have left on each rail.
    pub(super) sent_tlps: [u64; MAX_RAILS],
}

/// Kills a card at a store.
#[derive(Default)]
pub(super) struct Killer {
    /// Stores that are left; 0: all.
    left: Volatile<u64>,
}

struct Killed;

impl Hook for Killer {
    fn before_store(&self) {
        match self.left.get() {
            0 => {}
            1 => {
                self.left.set(0);
                resume_unwind(Box::new(Killed));
            }
            left => self.left.set(left - 1),
        }
    }
}

pub(super) fn key_of(index: usize) -> NodeKey {
    NodeKey::numbered(index as u64 + 1)
}

pub(super) fn config_of(index: usize) -> NodeConfig {
    NodeConfig {
        index,
        domain: index as u32 + 1,
        incarnation: 1,
        life: index as u8 + 1,
        generation: 1,
        seed: index as u8 + 1,
        protection: Protection::Aegis,
        rekey_frames: REKEY_FRAMES,
        max_streams: MAX_STREAMS,
        max_frame: 9000,
        rails: vec![0, 1],
        rail_mode: RailMode::default(),
        said: vec![0, 1],
        calls: [false; PEERS],
        peers: [false; PEERS],
        allowed: None,
        members: None,
        loans: Vec::new(),
        disk: Vec::new(),
        disk_is_full: false,
        quiet_after: Duration::ZERO,
        is_under_load: false,
        is_its_own_peer: false,
    }
}

impl NodeConfig {
    fn life(&self) -> LifeId {
        LifeId([self.life; 16])
    }

    /// Different for each card.
    fn seed(&self, what: u8) -> [u8; 32] {
        let mut seed = [self.seed; 32];
        seed[..8].copy_from_slice(&self.generation.to_le_bytes());
        (seed[8], seed[9]) = (what, self.life);
        seed
    }

    fn lobby(&self) -> LobbyConfig {
        LobbyConfig {
            identity: key_of(self.index),
            protection: self.protection,
            fabric: 0,
            groups: vec![Group::DEFAULT],
            domain: DomainId(self.domain),
            incarnation: Incarnation(self.incarnation),
            life: self.life(),
            seed: self.seed(0),
            tenants: self
                .disk
                .iter()
                .filter(|tenancy| tenancy.is_held)
                .map(|tenancy| (tenancy.node, tenancy.life))
                .collect(),
        }
    }

    /// Its rails.
    pub(super) fn path_configs(&self) -> [Option<PathConfig>; MAX_RAILS] {
        let path = PathConfig { max_frame: self.max_frame };
        RailId::ALL.map(|rail| self.rails.contains(&rail.get()).then_some(path))
    }

    fn channel(&self, place: usize, peer: usize, calls: bool) -> ChannelConfig {
        let path = PathConfig { max_frame: self.max_frame };
        let said = |rail: RailId| self.said.contains(&rail.get()).then_some(path);
        ChannelConfig {
            peer: key_of(peer).public(),
            peer_domain: DomainId::default(),
            calls,
            protection: self.protection,
            fabric: 0,
            group: Group::DEFAULT,
            index: ChannelIndex(place as u32 + 1),
            identity: key_of(self.index),
            name: Name::new(&format!("node{}", self.index)),
            domain: DomainId(self.domain),
            incarnation: Incarnation(self.incarnation),
            life: self.life(),
            generation: CardGeneration(self.generation),
            seed: self.seed(place as u8 + 1),
            rekey_frames: self.rekey_frames,
            rails: self.path_configs(),
            peer_rails: if calls { RailId::ALL.map(said) } else { Default::default() },
            rail_mode: self.rail_mode,
            lost_carriers: 0,
            max_payload: if self.max_frame < 8192 { 1024 } else { 4096 },
            max_streams: self.max_streams,
        }
    }
}

impl<'m> Node<'m> {
    pub(super) fn new(arena: &'m Arena, config: NodeConfig, now: Instant) -> Self {
        Self::start(arena.zeroed::<Root>(), Box::leak(Box::default()), config, now)
    }

    fn start(memory: RawMemory<'m>, killer: &'static Killer, mut config: NodeConfig, now: Instant) -> Self {
        let ledger = memory.ledger::<Root>(Some(killer), RuleSet::ALL);
        ledger.journal.roll_back().unwrap();
        let (root, journal) = (ledger.root, ledger.journal);
        config.disk.resize(config.loans.len(), Tenancy::default());
        let mut lobby = Lobby::new(&root.lobby, journal, config.lobby(), now);
        lobby.set_members(config.members.clone());
        let members = config.members.clone();
        let peers = (0..PEERS).filter(|peer| config.peers[*peer]).map(|peer| (peer, config.calls[peer]));
        // A node has two channels with itself.
        let itself = [(config.index, true), (config.index, false)];
        let itself = itself.into_iter().filter(|_| config.is_its_own_peer);
        let slots = peers.chain(itself).enumerate().map(|(place, (peer, calls))| {
            let config = config.channel(place, peer, calls);
            let mut channel = Channel::new(&root.channels[place], journal, config, now);
            channel.set_members(members.clone());
            Slot { peer, calls, channel, events: Vec::new(), was_last: None }
        });
        let slots = slots.collect();
        let pages = Pages::new(&root.pages, journal);
        let places = config.loans.iter().zip(&config.disk).zip(&root.loans);
        let places = places.map(|((loan, tenancy), cells)| {
            let end = match loan {
                Loan::Borrow { config, .. } => {
                    let mut claim = Claim::new(&cells.claim, journal, config.clone(), now);
                    if claim.state() == ClaimState::Idle {
                        claim.open(now);
                    }
                    End::Claim(claim)
                }
                Loan::Lend(config) => {
                    let config = OfferConfig { tenancy: *tenancy, ..config.clone() };
                    let mut offer = Offer::new(&cells.offer, journal, config, now);
                    let name = Name::new("drive").to_bytes();
                    offer.set_information(
                        now,
                        crate::Information { bytes: 7.into(), kind: 1, flags: 0, name },
                    );
                    End::Offer(offer)
                }
            };
            let mut stream = Stream::new(&cells.stream, pages, journal, Duration::from_secs(3), 4096);
            stream.set_generation(match &end {
                End::Claim(claim) => claim.generation(),
                End::Offer(offer) => offer.generation(),
            });
            let log = Log::new(cells, &root.words, journal);
            let (slot, quiet_at, refusals) = (None, None, Vec::new());
            TestLoan { end, stream, log, slot, quiet_at, refusals, resets: 0, informed: 0 }
        });
        let places = places.collect();
        journal.commit();
        let buffer = vec![0; MAX_FRAME];
        let replies = Vec::new();
        let (is_awake, may_send, heard) = (true, true, Heard::Nothing);
        let mut node = Self {
            memory,
            config,
            ledger,
            killer,
            lobby,
            slots,
            places,
            replies,
            buffer,
            is_awake,
            may_send,
            heard,
            largest_step: 0,
            sent_tlps: [0; MAX_RAILS],
        };
        (0..node.places.len()).for_each(|index| _ = node.find_slot(index));
        node
    }

    /// The card dies and the next one starts on the same ledger.
    /// It knows this of its fabric from now on.
    pub(super) fn set_members(&mut self, members: Members) {
        let members = Some(Rc::new(members));
        self.lobby.set_members(members.clone());
        self.slots.iter_mut().for_each(|slot| slot.channel.set_members(members.clone()));
        self.config.members = members;
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.killer.left.set(0);
        self.config.generation += 1;
        let before: Vec<_> = self.places.iter().map(|place| (place.log.is_stuck, place.resets)).collect();
        *self = Self::start(self.memory, self.killer, self.config.clone(), now);
        for (place, (stuck, resets)) in self.places.iter_mut().zip(before) {
            (place.log.is_stuck, place.resets) = (stuck, place.resets + resets);
        }
    }

    /// The node is started anew: nothing is left but its state folder.
    pub(super) fn reboot(&mut self, arena: &'m Arena, now: Instant, life: u8) {
        self.config.incarnation += 1;
        self.config.life = life;
        self.config.generation = 1;
        *self = Self::new(arena, self.config.clone(), now);
    }

    /// Somebody has done something to it.
    pub(super) fn wake(&mut self) {
        self.is_awake = true;
    }

    /// So many stores from now on the card dies.
    pub(super) fn kill_after(&self, stores: u64) {
        self.killer.left.set(stores);
    }

    /// Runs one verb of the card, which may die meanwhile.
    pub(super) fn guarded(&mut self, now: Instant, verb: impl FnOnce(&mut Self)) {
        let done = catch_unwind(AssertUnwindSafe(|| verb(self)));
        match done {
            Ok(()) => {}
            Err(panic) if panic.is::<Killed>() => self.restart(now),
            Err(panic) => resume_unwind(panic),
        }
    }

    pub(super) fn slot_of(&self, peer: usize) -> Option<usize> {
        self.slots.iter().position(|slot| slot.peer == peer)
    }

    pub(super) fn channel(&mut self, peer: usize) -> &mut Channel<'m> {
        let slot = self.slot_of(peer).unwrap();
        &mut self.slots[slot].channel
    }

    /// When the node is to be looked at, whatever comes.
    fn poll_timeout(&self) -> Option<Instant> {
        if self.is_awake || !self.replies.is_empty() {
            return Some(Instant::ZERO);
        }
        let channels = self.slots.iter().filter_map(|slot| slot.channel.poll_timeout());
        let places = self.places.iter().flat_map(|place| {
            let end = match (&place.end, place.slot) {
                (End::Claim(claim), Some(slot)) => claim.poll_timeout(&self.slots[slot].channel),
                (End::Offer(offer), slot) => offer.poll_timeout(slot.map(|slot| &self.slots[slot].channel)),
                (End::Claim(_), None) => None,
            };
            let ahead = place.stream.receiver().has_ahead().then_some(Instant::ZERO);
            let after_commit = place.stream.port.has_room_after_commit().then_some(Instant::ZERO);
            [end, ahead, after_commit, place.quiet_at, place.stream.poll_timeout()].into_iter().flatten()
        });
        channels.chain(places).min()
    }

    /// A step, if it is time for one.
    pub(super) fn step_if_due(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.step(now);
        }
    }

    pub(super) fn step(&mut self, now: Instant) {
        (self.is_awake, self.may_send) = (false, true);
        self.guarded(now, |node| {
            for (index, slot) in node.slots.iter_mut().enumerate() {
                let mut view = View::of(&mut node.places, index, &slot.channel);
                slot.channel.handle_timeout(now, &mut view);
            }
            node.drive(now);
            node.end_step();
            node.save(now);
        });
    }

    /// The agent makes durable who has what.
    fn save(&mut self, now: Instant) {
        if self.config.disk_is_full {
            return;
        }
        for index in 0..self.places.len() {
            let End::Offer(offer) = &mut self.places[index].end else { continue };
            if let Some(tenancy) = offer.unsaved_tenancy() {
                self.config.disk[index] = tenancy;
                offer.set_tenancy(tenancy);
            }
        }
        self.drive(now);
        self.end_step();
    }

    /// What follows from a verb.
    pub(super) fn drive(&mut self, now: Instant) {
        for slot in 0..self.slots.len() {
            while let Some(event) = self.slots[slot].channel.poll_event() {
                if event == Event::Met {
                    let channel = &self.slots[slot].channel;
                    let ((node, ..), (incarnation, _)) =
                        (channel.peer().unwrap(), channel.newest_peer().unwrap());
                    self.lobby.note_met(node, Group::DEFAULT, incarnation, channel.peer_life().unwrap());
                }
                self.slots[slot].events.push(event);
            }
            while self.slots[slot].channel.poll_touched().is_some() {}
            while let Some(said) = self.slots[slot].channel.poll_said() {
                self.handle_said(now, slot, &said);
            }
        }
        for index in 0..self.places.len() {
            self.drive_place(now, index);
        }
    }

    fn handle_said(&mut self, now: Instant, slot: usize, said: &Said) {
        if let Some(function) = said.function() {
            let is_it = |place: &TestLoan<'_>| matches!(&place.end, End::Offer(offer) if offer.function() == function);
            let Some(index) = self.places.iter().position(is_it) else {
                return self.slots[slot].channel.handle_stray(now, said);
            };
            let holder = self.find_slot(index).filter(|holder| *holder != slot);
            let place = &mut self.places[index];
            let End::Offer(offer) = &mut place.end else { unreachable!() };
            let stream = &mut place.stream;
            match holder {
                None => {
                    let channel = &mut self.slots[slot].channel;
                    offer.handle_asking(now, Asking { said, channel, holder: None, stream });
                }
                Some(holder) => {
                    let [asks, holds] = self.slots.get_disjoint_mut([slot, holder]).unwrap();
                    let (channel, holder) = (&mut asks.channel, Some(&mut holds.channel));
                    offer.handle_asking(now, Asking { said, channel, holder, stream });
                }
            }
            return;
        }
        let channel = &mut self.slots[slot].channel;
        let key = channel.course().map(|course| (course, said.stream()));
        let is_it = |place: &&mut TestLoan<'m>| place.stream_id() == key && place.slot == Some(slot);
        let Some(place) = self.places.iter_mut().find(is_it) else {
            return channel.handle_stray(now, said);
        };
        match &mut place.end {
            End::Claim(claim) => claim.handle_said(now, said, channel, &mut place.stream),
            End::Offer(offer) => offer.handle_said(now, said, channel, &mut place.stream),
        }
    }

    /// The channel that a place's stream belongs to, or will.
    fn find_slot(&mut self, index: usize) -> Option<usize> {
        let course = self.places[index].stream_id().map(|(course, _)| course);
        let slot = match &self.config.loans[index] {
            Loan::Borrow { lender, .. } => self.slot_of(*lender),
            // Of the two with this node itself, the one that was called.
            Loan::Lend(_) => {
                self.slots.iter().rposition(|slot| course.is_some() && slot.channel.course() == course)
            }
        };
        self.places[index].slot = slot;
        slot
    }

    fn drive_place(&mut self, now: Instant, index: usize) {
        let slot = self.find_slot(index);
        let place = &mut self.places[index];
        if place.quiet_at.is_some_and(|at| at <= now) {
            place.quiet_at = None;
            if let End::Offer(offer) = &mut place.end {
                offer.quiet(Bdf(index as u16), (index as u64) << 20);
            }
        }
        let channel = slot.map(|slot| &mut self.slots[slot].channel);
        match (&mut place.end, channel) {
            (End::Claim(claim), Some(channel)) => claim.advance(now, channel, &mut place.stream),
            (End::Offer(offer), channel) => offer.advance(now, channel, &mut place.stream),
            (End::Claim(_), None) => {}
        }
        place.handle_events(now, self.config.quiet_after);
        let (Some(slot), Some((_, id))) = (slot, self.places[index].stream_id()) else { return };
        let (place, channel) = (&mut self.places[index], &mut self.slots[slot].channel);
        while channel.deliver_ahead(now, id, &mut place.stream, &mut place.log) {}
        channel.tend(now, id, &mut place.stream);
    }

    /// A frame has come from a node.
    pub(super) fn handle_frame(&mut self, now: Instant, from: usize, path: PathId, frame: &mut [u8]) {
        self.guarded(now, |node| node.take_frame(now, from, path, frame));
        (self.is_awake, self.may_send) = (true, true);
    }

    fn take_frame(&mut self, now: Instant, from: usize, path: PathId, frame: &mut [u8]) {
        self.heard = Heard::Nothing;
        let Ok(header) = Header::parse(frame) else { return };
        if header.kind == Kind::Initiation {
            self.take_call(now, from, path, frame);
        } else {
            let is_it = |(index, slot): &(usize, &mut Slot<'m>)| match header.kind {
                Kind::Cookie => slot.channel.awaits_cookie(&header),
                _ => header.channel.0 == *index as u32 + 1,
            };
            let found = self.slots.iter_mut().enumerate().find(is_it);
            let Some((index, slot)) = found else { return };
            let view = &mut View::of(&mut self.places, index, &slot.channel);
            self.heard = match path {
                SHM_PATH => slot.channel.handle_shm_frame(now, frame, view),
                _ => slot.channel.handle_frame(now, frame, view),
            };
        }
        self.drive(now);
        self.ledger.journal.commit();
    }

    fn end_step(&mut self) {
        self.largest_step = self.largest_step.max(self.ledger.journal.pending());
        self.commit();
    }

    /// A frame comes to the first channel, whatever it says for whom it is.
    pub(super) fn take_misdirected(&mut self, now: Instant, path: PathId, frame: &mut [u8]) -> Heard {
        let slot = &mut self.slots[0];
        let view = &mut View::of(&mut self.places, 0, &slot.channel);
        let heard = match path {
            SHM_PATH => slot.channel.handle_shm_frame(now, frame, view),
            _ => slot.channel.handle_frame(now, frame, view),
        };
        self.drive(now);
        self.ledger.journal.commit();
        heard
    }

    /// What the first channel would answer.
    pub(super) fn answer_to(&mut self, proposal: &Proposal) -> Answer {
        let slot = &self.slots[0];
        slot.channel.answer_for_test(proposal, &mut View::of(&mut self.places, 0, &slot.channel))
    }

    /// The next frame of the first channel: its path, the challenge that it brings.
    pub(super) fn next_frame(&mut self, now: Instant) -> Option<(PathId, Option<u64>, Vec<u8>)> {
        let slot = &mut self.slots[0];
        let view = &mut View::of(&mut self.places, 0, &slot.channel);
        let sent = slot.channel.poll_transmit(now, &mut self.buffer, view)?;
        Some((sent.path, sent.challenge, self.buffer[..sent.len].to_vec()))
    }

    /// All that it sends now.
    pub(super) fn frames(&mut self, now: Instant) -> Vec<(PathId, Vec<u8>)> {
        core::iter::from_fn(|| self.poll_transmit(now).map(|(_, path, bytes)| (path, bytes))).collect()
    }

    fn take_call(&mut self, now: Instant, from: usize, path: PathId, frame: &mut [u8]) {
        let (slots, allowed) = (&self.slots, &self.config.allowed);
        let presence = |node: NodeId, _| {
            if allowed.as_ref().is_some_and(|allowed| !allowed.contains(&node)) {
                return Presence::NotAllowed;
            }
            let slot = slots.iter().rfind(|slot| key_of(slot.peer).id() == node);
            slot.map_or(Presence::NoRoom, |slot| Presence::Channel(slot.channel.known_call()))
        };
        let address = [from as u8, path.index() as u8];
        let reception = self.lobby.handle_call(now, frame, &address, self.config.is_under_load, &presence);
        let reception = match reception {
            Reception::Call(call) => {
                let index = self.called_slot(call.node()).unwrap();
                let slot = &mut self.slots[index];
                let mut view = View::of(&mut self.places, index, &slot.channel);
                match slot.channel.take_call(now, call, &mut view) {
                    Ok(heard) => {
                        self.heard = heard;
                        Reception::Nothing
                    }
                    Err((call, why)) => self.lobby.refuse(now, call, why, &address, frame),
                }
            }
            Reception::Again(node, _, call) => {
                if let Some(slot) = self.called_slot(node) {
                    self.heard = self.slots[slot].channel.hear_again(path, call);
                }
                Reception::Nothing
            }
            other => other,
        };
        if let Reception::Reply(len) = reception {
            assert!(len <= frame.len(), "no answer is longer than what it answers");
            self.replies.push((from, path, frame[..len].to_vec()));
        }
    }

    /// The channel that a call of this node is for: of a node with itself the one that does not call.
    fn called_slot(&self, node: NodeId) -> Option<usize> {
        let is_it =
            |slot: &Slot<'_>| key_of(slot.peer).id() == node && !(slot.calls && self.config.is_its_own_peer);
        self.slots.iter().position(is_it)
    }

    /// What the agents of the two nodes prove to each other.
    pub(super) fn secret(&self, peer: usize) -> Option<[u8; 32]> {
        self.ledger.root.channels[self.slot_of(peer)?].secret()
    }

    /// The next frame: to whom, and which way.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<(usize, PathId, Vec<u8>)> {
        if let Some(reply) = self.replies.pop() {
            return Some(reply);
        }
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let view = &mut View::of(&mut self.places, index, &slot.channel);
            let pending = self.ledger.journal.pending();
            if let Some(Transmit { path, len, is_last, .. }) =
                slot.channel.poll_transmit(now, &mut self.buffer, view)
            {
                assert_eq!(self.ledger.journal.pending(), pending, "what leaves changes nothing");
                let carries = slot.channel.last_carried().2 > 0;
                if let Some((own, _)) = path.rails() {
                    self.sent_tlps[own.index()] += u64::from(carries);
                }
                let step = self.ledger.journal.step();
                assert!(!carries || slot.was_last != Some(step), "TLPs leave behind the last frame");
                slot.was_last = is_last.then_some(step);
                return Some((slot.peer, path, self.buffer[..len].to_vec()));
            }
        }
        None
    }

    /// When the node is to be looked at next, for those who count frames.
    pub(super) fn commit(&self) {
        self.ledger.journal.commit();
    }

    pub(super) fn is_open(&self) -> bool {
        self.places.iter().all(TestLoan::is_open)
    }
}

impl TestLoan<'_> {
    fn handle_events(&mut self, now: Instant, quiet_after: Duration) {
        loop {
            let (forget, begins) = match &mut self.end {
                End::Claim(claim) => match claim.poll_event() {
                    None => return,
                    Some(ClaimEvent::Reset) => (true, true),
                    Some(ClaimEvent::Refused(refusal)) => {
                        self.refusals.push(refusal);
                        (false, false)
                    }
                    Some(ClaimEvent::Information(_)) => {
                        self.informed += 1;
                        (false, false)
                    }
                    Some(ClaimEvent::Closed | ClaimEvent::Opened { .. }) => (false, false),
                },
                End::Offer(offer) => match offer.poll_event() {
                    None => return,
                    Some(OfferEvent::Reset { .. }) => (true, true),
                    Some(OfferEvent::Opened) => (false, false),
                    Some(OfferEvent::Ended | OfferEvent::Closed) => (true, false),
                },
            };
            if forget {
                self.forget();
            }
            if begins {
                self.resets += 1;
                self.quiet_at = Some(now + quiet_after);
            }
        }
    }
}

/// What a lender of function `function` has in its configuration, and its borrower.
pub(super) fn lend(function: u32, lender_life: u8) -> OfferConfig {
    OfferConfig {
        function: FunctionId(function),
        secret: Some([function as u8 ^ 0x55; 32]),
        entry: None,
        allowed: None,
        tenancy: Tenancy::default(),
        life: LifeId([lender_life; 16]),
    }
}

pub(super) fn borrow(function: u32) -> ClaimConfig {
    let wish = Wish {
        function: FunctionId(function),
        generation: LoanGeneration(0),
        domain: DomainId(9),
        slot: function as u16,
        host: Bdf(function as u16),
    };
    ClaimConfig { wish, secret: Some([function as u8 ^ 0x55; 32]) }
}
