mod coming;
mod edges;
mod frames;
mod publish;
mod rails;
mod slots;

pub use rails::RailsError;
#[cfg(test)]
mod tests;

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use base::ids::{Group, Incarnation, LifeId, NodeId, RailId, StreamId};
use base::ledger::{Hook, LedgerError, PAGE_SIZE, Pages, RawMemory, RegionError, Span};
use base::times::HOLD;
use base::{Bucket, Instant, Rule};
use device::{Limit, MEDIA_PAGES, MediaError, MediaFunction, MediaId, MediaKind, MediaOp};
use fabric::{Decoder, WindowError};
use host::vfio_user::SlotConfigError;
use link::pair::{Channel, FunctionId, Lobby};
use link::{Applied, KEY_BYTES, Notice, PublicKey, Secret, State, Stream, Tenancy};

use crate::apertures::Target;
use crate::borrower::BorrowedDrive;

use crate::MAX_RAILS;
use crate::card::frames::Reply;
use crate::cells::{Address, LedgerLoans, LoanParts, NodeLedger, drive_owner};
use crate::config::{CardConfig, LoanConfig, LoanRole};
use crate::drive::Drive;
use crate::endpoint::Remains;
use crate::gauges::ChannelGauges;
use crate::loan::Loan;
use crate::loan_table::{Found, LoanSet, LoanTable};
use crate::parts::{DriveDriver, DriveError, Persist};
use crate::peers::Peers;
use crate::refusal::Refusal;
use crate::slot::GuestMemory;
use crate::whereabouts::Whereabouts;

/// How many loans without anything under way take a step in one turn for what is news to all of them.
const BEHIND_PER_TURN: usize = 16;
/// How often the gauges for the agent are renewed.
const PUBLISH: Duration = Duration::from_millis(50);

/// What the agent has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardEvent {
    /// The lender refuses the loan, or its node does not meet this one.
    Refused(usize, Refusal),
    /// The drive of the loan is usable, or the slot's socket may be served.
    Ready(usize),
    /// The stream to this life of this peer is open: news to this card, perhaps not to the one before it.
    Met(usize, NodeId, Incarnation),
    /// The card has a channel with this life of a node, in this place: news to this card, perhaps not to the one before
    /// it.
    Joined(usize, NodeId, Incarnation),
    /// The channel with the peer in this place is given up.
    Left(usize),
    /// A rail seems to have failed: those who hear [notices to all](Card::set_member) are to be told, and the manager
    /// of the node's fabric.
    Notice(Notice),
    /// Somebody else says that a rail seems to have failed over which this card has a channel: others are used until it
    /// has answered.
    Doubted(Notice),
    /// A node that has something of this one, which is durable, has proven to be there: the agent keeps that for the
    /// next life. A new card says what its agent does not know.
    Located(Whereabouts),
    /// Who has what the loan lends has changed: somebody else has taken it, or it was given back. That has an effect
    /// once the agent has made this durable and said so with [`Card::set_tenancy`]; a new card asks again.
    Tenant(usize, Tenancy),
    /// How far a lent function is with its entry in this node's table: news to this card, perhaps not to the one before
    /// it.
    Applied(usize, Applied),
    /// The borrowed drive no longer holds what this node left there: another node has used it meanwhile, or it was made
    /// anew. What was not flushed is lost, requests under way fail, and clients are disconnected. A new card says it
    /// again unless the drive has been in use since.
    Overtaken(usize),
    /// The medium of this drive has lost something that was answered, or may have: each flush of its functions fails
    /// until [`Card::clear_fault`]. A new card says it again.
    MediaFault(usize),
    /// This drive is lent no more, and nothing of it is with its medium: see [`Card::withdraw`].
    Withdrawn(usize),
    /// The lent function is none that can be used.
    Unusable(usize, Unusable),
    /// The loan has ended in order.
    Closed {
        /// The loan.
        loan: usize,
        /// Of a borrower: writes that were answered could not be made durable, and no flush has said so.
        has_lost: bool,
    },
}

/// Why a lent function cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// It cannot be shown to a virtual machine, or there is none: its slot is not to be served.
    Slot(SlotConfigError),
    /// The driver of a drive can do nothing with it.
    Drive(DriveError),
    /// An assertion has failed in a step of the loan: see [`Card::contain_faults`].
    Fault,
    /// Its lender tells that it lies where nothing can lie.
    Window(WindowError),
    /// There is no room in the ledger for what it needs.
    NoRoom(RegionError),
}

impl core::fmt::Display for Unusable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Slot(error) => write!(f, "the function cannot be given to a virtual machine: {error}"),
            Self::Drive(error) => write!(f, "the function cannot be used as a drive: {error}"),
            Self::Window(error) => write!(
                f,
                "its lender says that the function lies where nothing can ({error}): it is not used. Ask who \
                 runs the lender"
            ),
            Self::NoRoom(error) => write!(
                f,
                "there is no memory for the loan ({error}): it is left alone, and the others go on. The next card \
                 tries again"
            ),
            Self::Fault => write!(
                f,
                "an assertion of this program has failed while it served the loan (the log says which), perhaps by \
                 what its peer or its client has sent: the loan is left alone until the node is started again, and the \
                 others go on. Please report it"
            ),
        }
    }
}

/// The way that a frame takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Egress {
    /// Our rail of this id.
    Rail(RailId),
    /// Through the memory that is shared with the peer in this place.
    Shm(usize),
}

/// Where frames are built.
pub trait FrameBuffers {
    /// Memory for the largest frame that goes this way. It is written only. Where there is none, the frame is lost: it
    /// is built elsewhere, and comes again when the time for its acknowledgement has passed.
    fn of(&mut self, egress: Egress) -> &mut [u8];
}

impl FrameBuffers for [u8] {
    fn of(&mut self, _way: Egress) -> &mut [u8] {
        self
    }
}

impl FrameBuffers for Vec<u8> {
    fn of(&mut self, _way: Egress) -> &mut [u8] {
        self
    }
}

/// Whether a function is lent twice, or borrowed twice: whoever speaks of it could mean either.
fn has_twins(loans: &[LoanConfig]) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    loans.iter().filter_map(name_of).any(|name| !seen.insert(name))
}

/// Whose function it is, nobody's being one's own, and which. `None` of a vacant place.
fn name_of(loan: &LoanConfig) -> Option<(Option<[u8; KEY_BYTES]>, FunctionId)> {
    match &loan.role {
        LoanRole::Lend { .. } => Some((None, loan.function)),
        LoanRole::Borrow { lender, .. } => Some((Some(lender.key.0), loan.function)),
        LoanRole::Vacant | LoanRole::VacantSlot => None,
    }
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Which way.
    pub egress: Egress,
    /// Where to, on a rail.
    pub to: Option<Address>,
    /// Bytes of the frame.
    pub len: usize,
    /// Nothing is known that would leave behind it at once: whoever gathers frames need not wait for another one.
    pub is_last: bool,
}

/// Work for the medium of a lent function. To be done after the commit that came before; executing it twice in a row is
/// the same as executing it once.
#[derive(Clone, Copy, Debug)]
pub struct MediaWork<'m> {
    /// The loan.
    pub loan: usize,
    /// Comes back with the result.
    pub id: MediaId,
    /// What to do.
    pub kind: MediaKind,
    /// First byte of the medium.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// A dead card may have done half of it: it is done before anything else is asked for.
    pub redo: bool,
    /// The pool that its pages lie in.
    memory: Span<'m>,
    /// Its pages: the first of so many that lie behind each other. Kept short, because work is moved about.
    runs: [(u16, u16); MEDIA_PAGES],
}

impl<'m> MediaWork<'m> {
    /// What a function of `loan` asks for, with its pages.
    pub(crate) fn new(loan: usize, op: &MediaOp<'_>, pages: &Pages<'m>, redo: bool) -> Self {
        let mut runs = [(0, 0); MEDIA_PAGES];
        // Pages that lie behind each other are one piece: the kernel counts pieces, not pages.
        for (kept, run) in runs.iter_mut().zip(op.pages.chunk_by(|one, next| next.0 == one.0 + 1)) {
            *kept = (run[0].0, run.len() as u16);
        }
        let (id, kind, offset, len) = (op.id, op.kind, op.offset, op.len);
        Self { loan, id, kind, offset, len, redo, memory: pages.memory(), runs }
    }

    /// The memory of a read or a write: `len` bytes in all.
    pub fn spans(&self) -> impl Iterator<Item = Span<'m>> + '_ {
        let (memory, mut left) = (self.memory, self.len as usize);
        self.runs.iter().take_while(|(_, count)| *count > 0).map(move |&(first, count)| {
            let len = left.min(usize::from(count) * PAGE_SIZE);
            left -= len;
            memory.part(usize::from(first) * PAGE_SIZE, len)
        })
    }
}

/// The data plane of a node: all loans, without I/O.
pub struct Card<'m> {
    ledger: NodeLedger<'m>,
    config: CardConfig,
    /// By place.
    drives: Vec<Option<Drive<'m>>>,
    /// By place, as its cells go.
    parts: Vec<Option<LoanParts<'m>>>,
    loans: LoanTable<'m>,
    /// Who answers for which address: made anew whenever loans come or go.
    decoder: Rc<Decoder<Target>>,
    peers: Peers<'m>,
    /// Judges first messages of handshakes.
    lobby: Lobby<'m>,
    /// Loans whose next step is still to come, for what is news to all of them: who has something under way is first.
    behind: LoanSet,
    /// Drives that are lent no more, and of which a medium still has work.
    leaving: Vec<usize>,
    /// The places of loans for which there is no room.
    without_room: Vec<usize>,
    /// See [`Card::contain_faults`].
    contains_faults: bool,
    /// See [`Card::set_guest_memory`].
    guest_memory: Option<Rc<dyn GuestMemory + 'm>>,
    /// First messages of handshakes that may be opened.
    calls: Bucket,
    /// What the lobby answers.
    replies: VecDeque<Reply>,
    events: VecDeque<CardEvent>,
    /// Nodes that hear notices to all, each with the rails of this node, as bits, on which it does.
    members: BTreeMap<NodeId, u8>,
    /// When it was said last that several do not answer on this rail of this node.
    silent: [Option<Instant>; MAX_RAILS],
    /// Loans of the step under way, kept for its memory.
    touched: Vec<usize>,
    next_publish: Instant,
    /// By peer, what its loans show of it.
    shown: Vec<Option<ChannelGauges>>,
    /// See [`Card::call_holders`].
    holders: Vec<(NodeId, Group, LifeId)>,
    next_peer: usize,
    /// Frames that the peer whose turn it is was sent in this turn.
    sent_in_turn: usize,
    next_drive: usize,
    /// The latest time that a verb has told.
    now: Instant,
}

impl<'m> Card<'m> {
    /// A card on the ledger in `memory`, new or left by another card, whose unfinished step is taken back first. What
    /// earlier loans had there is given back, and new ones get what they need.
    ///
    /// # Errors
    /// It is no ledger of this node and this program ([`NodeLedger::entitle`]), and is left as it is; or it is corrupt;
    /// or too small for its drives ([`crate::ledger_bytes`]). A loan for which it is too small is unusable.
    ///
    /// # Panics
    /// If the configuration has no rail, a drive that cannot be, or two loans of one function.
    pub fn new(
        memory: RawMemory<'m>,
        hook: Option<&'m dyn Hook>,
        config: CardConfig,
        now: Instant,
    ) -> Result<Self, LedgerError> {
        assert!(config.rails.iter().any(Option::is_some), "a node has a rail");
        assert!(!has_twins(&config.loans), "nodes speak of a function by its name");
        memory.check(NodeLedger::LAYOUT, config.identity.id())?;
        let ledger = NodeLedger::new(memory, hook, config.rules);
        let (journal, gauges) = (ledger.journal, &ledger.root.gauges);
        let restored = journal.roll_back_within(memory.len())?;
        gauges.rolled_back.set(restored as u64);
        ledger.used_bytes()?;
        let drives = config.drives.iter().enumerate();
        let lent = drives.filter_map(|(at, drive)| {
            let drive = drive.clone()?;
            let owner = drive_owner(at, drive.life);
            Some((at, drive, owner))
        });
        let lent: Vec<_> = lent.collect();
        ledger.retain(&config.loans, lent.iter().map(|(.., owner)| *owner));
        let cells = lent.iter().map(|(.., owner)| ledger.obtain_drive(*owner));
        let cells = cells.collect::<Result<Vec<_>, _>>()?;
        let places = config.loans.len();
        let peers = Peers::new(&ledger, &config, now);
        let lobby = Lobby::new(&ledger.root.lobby, journal, frames::lobby_config(&config), now);
        journal.commit();
        let mut card = Self {
            ledger,
            config,
            drives: Vec::new(),
            parts: vec![None; places],
            loans: LoanTable::vacant(places),
            decoder: Rc::default(),
            peers,
            lobby,
            behind: LoanSet::default(),
            leaving: Vec::new(),
            without_room: Vec::new(),
            contains_faults: false,
            guest_memory: None,
            calls: frames::calls(now),
            replies: VecDeque::new(),
            events: VecDeque::new(),
            members: BTreeMap::new(),
            silent: Default::default(),
            touched: Vec::new(),
            next_publish: now,
            shown: Vec::new(),
            holders: Vec::new(),
            next_peer: 0,
            sent_in_turn: 0,
            next_drive: 0,
            now,
        };
        let known = card.ledger.loans();
        for place in 0..places {
            card.obtain(place, &known)?;
        }
        card.drives.resize_with(card.config.drives.len(), || None);
        for ((at, drive, owner), cells) in lent.into_iter().zip(cells) {
            card.drives[at] = Some(Drive::new(at, (owner, cells), journal, drive, &card.config.loans));
        }
        journal.commit();
        card.decode();
        for place in 0..places {
            card.occupy(place)?;
            journal.commit();
        }
        let untold = card.loans.iter_with_places().filter(|(_, loan)| loan.is_untold());
        card.events.extend(untold.map(|(place, _)| CardEvent::Overtaken(place)));
        card.expect_holders()?;
        for peer in 0..card.peers.len() {
            card.report_joined(peer);
        }
        (0..places).for_each(|place| card.behind.set(place, true));
        card.step_urgent(now);
        gauges.recovered_at.set(now.as_nanos());
        Ok(card)
    }

    /// Has the cells of a place's loan, or makes its place vacant for everybody here if there is no room for them.
    fn obtain(&mut self, place: usize, known: &LedgerLoans<'m>) -> Result<(), RegionError> {
        self.parts[place] = match self.ledger.parts(place, &self.config.loans[place], known) {
            Err(error) => self.leave_out(place, error)?,
            Ok(parts) => parts,
        };
        Ok(())
    }

    /// There may be no room for the loan of a place.
    fn leave_out(&mut self, place: usize, error: RegionError) -> Result<Option<LoanParts<'m>>, RegionError> {
        if !matches!(error, RegionError::Full(_) | RegionError::TableFull) {
            return Err(error);
        }
        self.config.loans[place].vacate();
        self.decode();
        self.without_room.push(place);
        self.events.push_back(CardEvent::Unusable(place, Unusable::NoRoom(error)));
        Ok(None)
    }

    /// Loans have come or gone: finds out who answers for which address.
    fn decode(&mut self) {
        self.decoder = Rc::new(self.config.decoder());
        self.loans.iter_mut().for_each(|(_, loan)| loan.end.gate.set_decoder(Rc::clone(&self.decoder)));
    }

    /// Makes the loan of a place that has its cells, and has the peer that it borrows from.
    fn occupy(&mut self, place: usize) -> Result<(), RegionError> {
        if self.parts[place].is_none() {
            return Ok(());
        }
        if let LoanRole::Borrow { lender, .. } = &self.config.loans[place].role {
            let lender = (lender.key, self.config.loans[place].group);
            match self.peers.lender(lender, &self.ledger, &self.config, self.now) {
                Ok(peer) => self.set_lender(place, peer),
                Err(error) => self.parts[place] = self.leave_out(place, error)?,
            }
        }
        if let Some(loan) = self.new_loan(place) {
            self.loans.occupy(place, loan);
        }
        Ok(())
    }

    /// The places of those that have something of this node, which may have been started anew, and elsewhere.
    fn expect_holders(&mut self) -> Result<(), RegionError> {
        let held: BTreeSet<_> = self.find_holders().map(|(node, group, _)| (node, group)).collect();
        for (node, group) in held {
            if let Some(holder) = self.config.holders.iter().find(|holder| holder.node() == node) {
                self.peers.expect((holder, group), &self.ledger, &self.config, self.now)?;
            }
        }
        (0..self.peers.len()).for_each(|place| self.tell_copies(place));
        self.call_holders(self.now);
        Ok(())
    }

    /// What is kept for whoever has something of this node is kept from the copies that the agent knows of, for the
    /// hold time since this node began to wait for that one. In a step of its own.
    fn tell_copies(&mut self, place: usize) {
        let Some(peer) = self.peers.get_mut(place) else { return };
        let waits = self.loans.iter().filter_map(|loan| loan.waits_for(peer.node())).max();
        let Some(since) = waits.filter(|since| self.now.since(*since) < HOLD) else { return };
        if let Some(holder) = self.config.holders.iter().find(|holder| holder.key == peer.key()) {
            peer.channel.set_copies(since, &holder.copies);
            self.ledger.journal.commit();
        }
    }

    fn set_lender(&self, place: usize, peer: usize) {
        if let Some(parts) = &self.parts[place] {
            parts.cells.peer.set(self.ledger.journal, peer as u32 + 1);
        }
    }

    /// The loan of a place, as it is committed.
    fn new_loan(&self, place: usize) -> Option<Loan<'m>> {
        let parts = self.parts[place]?;
        let peer = parts.cells.peer().and_then(|peer| self.peers.get(peer));
        let (journal, channel) = (self.ledger.journal, peer.map(|peer| &peer.channel));
        let decoder = Rc::clone(&self.decoder);
        Some(Loan::new(parts, journal, &self.config, place, (&self.drives, channel), decoder, self.now))
    }

    /// From now on an assertion that fails in a step of a loan ends that loan, and not the card with all others: what
    /// the step has changed is taken back, nothing of it has left, and the peer hears nothing of this card any more.
    /// [`Unusable::Fault`] tells of it. A lent function shows fatal status then, and ends its work for the medium; the
    /// machine of a slot is answered as by a function that is gone, and if that fails too, the card dies. The next card
    /// tries the loan again. To be said right after [`Card::new`]; where panics abort, it changes nothing.
    pub fn contain_faults(&mut self) {
        self.contains_faults = true;
        self.loans.iter_mut().for_each(|(_, loan)| loan.contain_faults());
    }

    /// The medium has ended work `id` of loan `loan`.
    pub fn handle_media(&mut self, now: Instant, loan: usize, id: MediaId, result: Result<(), MediaError>) {
        let Some(this) = self.loans.get_mut(loan) else { return };
        this.note_ended(id);
        let ended = self.step_one(now, loan, |card| {
            card.loans[loan].handle_media(now, id, result);
        });
        if ended.is_none() {
            self.in_failed(loan, |card| card.loans[loan].end_media(now, id, result));
        }
    }

    /// Time has come: for the peers and loans that have something to do, each in a step of its own.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.handle_peer_timeouts(now);
        self.step_some(now);
        self.look_at_changed();
        let is_due = |found: Found| found.deadline.is_some_and(|deadline| deadline <= now);
        let count = if self.loans.all_found().any(is_due) { self.loans.len() } else { 0 };
        for index in 0..count {
            if is_due(self.found(index)) {
                self.step_one(now, index, |card| card.loans[index].handle_timeout(now));
            }
        }
        if self.is_publishing_due(now) {
            self.next_publish = now + PUBLISH;
            self.publish(now);
            self.call_holders(now);
            let left = self.peers.forget_silent(now, self.ledger.journal, &self.config, &self.loans);
            self.events.extend(left.into_iter().map(CardEvent::Left));
        }
    }

    /// Whether gauges are to be renewed. It is no reason to wake up, since nothing has changed while nobody is awake;
    /// but of a card that is never idle no deadline may pass for long.
    pub fn is_publishing_due(&self, now: Instant) -> bool {
        self.next_publish <= now
    }

    /// What a turn has to know of a loan.
    fn found(&self, index: usize) -> Found {
        self.loans.found(index, || {
            let Some(loan) = self.loans.get(index) else { return (Found::default(), true) };
            let deadline = loan.poll_timeout(self.peer_of(index).map(|peer| &self.peers[peer].channel));
            (Found { deadline, waits: loan.is_waiting() }, loan.is_steady())
        })
    }

    /// Finds anew what may have changed of loans.
    fn look_at_changed(&self) {
        for drive in self.drives.iter().flatten().filter(|drive| drive.take_notes()) {
            drive.loans().iter().for_each(|loan| self.loans.note_stale(*loan));
        }
        self.loans.stale().for_each(|loan| _ = self.found(loan));
    }

    /// When [`Card::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if !self.behind.is_empty() {
            return Some(Instant::ZERO);
        }
        self.look_at_changed();
        let loans = self.loans.all_found().filter_map(|found| found.deadline);
        let peers = self.peers.iter().filter_map(|(_, peer)| peer.poll_timeout());
        loans.chain(peers).min()
    }

    /// The next work for a medium. Functions of a drive get fair shares of it, drives take turns. What asking for it
    /// has changed is committed.
    pub fn poll_media(&mut self) -> Option<MediaWork<'m>> {
        loop {
            let mut asked = 0;
            // What is broken in memory is the loan that was asked: see `guarded`.
            let picked = catch_unwind(AssertUnwindSafe(|| self.pick_media(&mut asked)));
            match picked {
                Ok(work) => return work,
                Err(fault) if self.loans.get(asked).is_none_or(|loan| !loan.contains_faults()) => {
                    resume_unwind(fault)
                }
                Err(_) if self.loans[asked].has_failed() => self.leave(asked),
                Err(_) => self.contain(self.now, asked, self.events.len()),
            }
        }
    }

    fn pick_media(&mut self, asked: &mut usize) -> Option<MediaWork<'m>> {
        let count = self.drives.len();
        let work = (0..count).find_map(|turn| {
            let drive = (self.next_drive + turn) % count;
            *asked = self.drives[drive].as_mut()?.pick(&mut self.loans, asked)?;
            self.next_drive = (drive + 1) % count;
            self.loans[*asked].poll_media(*asked)
        });
        self.ledger.journal.commit();
        if let Some(work) = &work {
            self.loans[work.loan].note_given(work.id);
        }
        work
    }

    /// What is to be kept of a drive for good, in place of all before, with the drive's index. It is committed, and
    /// once kept [`Card::handle_persisted`] is to be told; a successor gives it out again.
    pub fn poll_persist(&mut self) -> Option<(usize, Persist)> {
        let drives = self.drives.iter().enumerate();
        let lent = drives.filter_map(|(index, drive)| Some((index, drive.as_ref()?)));
        let lent = lent.filter(|(_, drive)| !drive.loans().is_empty());
        lent.filter_map(|(index, drive)| Some((index, drive.subsystem.poll_persist()?))).next()
    }

    /// What [`Card::poll_persist`] gave out is kept, or could not be.
    pub fn handle_persisted(&mut self, now: Instant, drive: usize, version: u64, kept: bool) {
        self.lent_drive_step(now, drive, |drive| drive.subsystem.handle_persisted(version, kept));
    }

    fn drive(&self, drive: usize) -> Option<&Drive<'m>> {
        self.drives.get(drive)?.as_ref()
    }

    /// Whether each flush of a drive's functions fails because its medium has lost something.
    pub fn has_fault(&self, drive: usize) -> bool {
        self.drive(drive).is_some_and(|drive| drive.subsystem.has_fault())
    }

    /// The medium of a drive has lost something, or may have: a flush of a dead card has said so, or its system.
    pub fn note_fault(&mut self, now: Instant, drive: usize) {
        self.lent_drive_step(now, drive, |drive| _ = drive.subsystem.note_fault());
    }

    /// An operator has seen to the medium of a drive: flushes say again what it says. `order` counts such orders for
    /// this drive, from 1; one that has had its effect, perhaps under an earlier card, has none again.
    pub fn clear_fault(&mut self, now: Instant, drive: usize, order: u64) {
        self.lent_drive_step(now, drive, |drive| drive.clear_fault(order));
    }

    /// The medium of a drive has grown to so many blocks of its configuration's. One that has shrunk stays as it was:
    /// what is missing fails.
    pub fn grow(&mut self, now: Instant, drive: usize, blocks: u64) {
        self.lent_drive_step(now, drive, |drive| drive.subsystem.grow(blocks));
    }

    /// This machine may go on somewhere else, too, from the same memory: each channel gets keys that depend on `seed`,
    /// which is new and random. If it is certain that it was restored, it is another `life` from here on.
    pub fn renew_keys(&mut self, now: Instant, seed: [u8; 32], life: Option<LifeId>) {
        self.config.restored_as = life.or(self.config.restored_as);
        self.config.seed = Secret(seed);
        let config = frames::lobby_config(&self.config);
        self.lobby.renew(config.incarnation, config.life, seed);
        for place in 0..self.peers.len() {
            let seed = self.peers.new_seed(&self.config);
            self.peer_step(now, place, |peer, _| peer.channel.renew_keys(now, seed, life));
        }
    }

    /// What the function of a lent loan may do from now on.
    pub fn set_limit(&mut self, now: Instant, loan: usize, limit: Limit) {
        if loan < self.loans.len() {
            self.step_one(now, loan, |card| {
                if let Some(function) = card.loans[loan].end.function_mut() {
                    function.set_limit(now, limit);
                }
            });
        }
    }

    /// The next event for the agent.
    pub fn poll_event(&mut self) -> Option<CardEvent> {
        self.conclude_leaving();
        let tells = |drive: &mut Option<Drive<'_>>| drive.as_mut().is_some_and(Drive::take_fault);
        let fault = || self.drives.iter_mut().position(tells).map(CardEvent::MediaFault);
        self.events.pop_front().or_else(fault)
    }

    /// One step of a program that uses the drive of `loan` itself: `act` polls completions from the driver, takes and
    /// gives back pages, and submits requests. It must not call other verbs of the driver.
    pub fn drive_step(
        &mut self,
        now: Instant,
        loan: usize,
        act: impl FnOnce(&mut DriveDriver<'m>, Pages<'m>),
    ) {
        self.step_one(now, loan, |card| {
            let loan = &mut card.loans[loan];
            if let Some(drive) = loan.end.drive_mut() {
                act(&mut drive.driver, loan.pages);
            }
        });
    }

    /// The agent has made durable who has what `loan` lends.
    pub fn set_tenancy(&mut self, now: Instant, loan: usize, tenancy: Tenancy) {
        self.step_one(now, loan, |card| card.loans[loan].set_tenancy(tenancy));
        self.peers.forget_located(tenancy.node);
    }

    /// From now on this node calls itself by a greater incarnation when it calls the lender of a borrowed loan, which
    /// has seen a greater one than it had.
    pub fn raise_incarnation(&mut self, now: Instant, loan: usize, incarnation: Incarnation) {
        if let Some(config) = self.config.loans.get_mut(loan) {
            config.least_incarnation = config.least_incarnation.max(incarnation);
        }
        if let Some(peer) = self.peer_of(loan) {
            self.peer_step(now, peer, |peer, _| peer.channel.raise_incarnation(now, incarnation));
        }
    }

    /// Gives everything borrowed back: flushes, shuts the functions down, then says goodbye.
    pub fn shut_down(&mut self, now: Instant) {
        self.step_each(now, |loan| loan.begin_closing(now));
        (0..self.loans.len()).for_each(|loan| self.close_failed(loan));
    }

    /// Gives what one loan has borrowed back, in the same way.
    pub fn give_back(&mut self, now: Instant, loan: usize) {
        self.step_one(now, loan, |card| card.loans[loan].begin_closing(now));
        self.close_failed(loan);
    }

    /// Ends what one loan has borrowed without its lender, who does not answer and keeps the function for this node:
    /// [`CardEvent::Closed`] follows at once. The other loans notice nothing of it.
    pub fn forget(&mut self, now: Instant, loan: usize) {
        self.step_one(now, loan, |card| {
            let peer = card.peer_of(loan).filter(|peer| !card.peers[*peer].has_failed());
            let channel = peer.and_then(|peer| card.peers.get_mut(peer)).map(|peer| &mut peer.channel);
            card.loans[loan].forget(now, channel);
        });
        self.close_failed(loan);
    }

    /// Nobody can give back what a failed loan has borrowed: its lender keeps it for this node. One without room has
    /// nothing.
    fn close_failed(&mut self, loan: usize) {
        if self.loans.get(loan).is_some_and(Loan::has_failed) {
            let kept = self.borrowed(loan).map_or(0, |drive| drive.driver.kept().0);
            self.events.push_back(CardEvent::Closed { loan, has_lost: kept > 0 });
        }
        if self.without_room.contains(&loan) {
            self.events.push_back(CardEvent::Closed { loan, has_lost: false });
        }
    }

    /// Whether a request or a TLP is out whose answer is awaited: the driver spins longer then.
    pub fn is_waiting(&self) -> bool {
        self.look_at_changed();
        self.loans.all_found().any(|found| found.waits)
    }

    /// Whether nothing of a loan is on its way or waiting, for the simulator.
    pub fn is_idle(&self) -> bool {
        self.loans.iter().all(|loan| loan.stream.is_idle())
    }

    /// Words that have been changed since the last commit, for checkers: none whenever anything leaves.
    pub fn uncommitted(&self) -> usize {
        self.ledger.journal.pending()
    }

    /// The stream of a loan, for checkers.
    ///
    /// # Panics
    /// If the place is vacant.
    pub fn stream(&self, loan: usize) -> &Stream<'m> {
        &self.loans[loan].stream
    }

    /// What frames name the stream of a loan by in its peer's channel, while it has one there.
    pub fn stream_id(&self, loan: usize) -> Option<StreamId> {
        let (course, id) = self.loans.get(loan)?.stream_id()?;
        (self.channel_of(loan)?.course() == Some(course)).then_some(id)
    }

    /// Where a loan stands.
    ///
    /// # Panics
    /// If the place is vacant.
    pub fn state(&self, loan: usize) -> State {
        self.loans[loan].state()
    }

    /// The place of the peer that a loan's stream is with, or was last.
    pub fn peer_of(&self, loan: usize) -> Option<usize> {
        self.loans.get(loan)?.peer().filter(|peer| self.peers.get(*peer).is_some())
    }

    /// The channel with that peer.
    pub fn channel_of(&self, loan: usize) -> Option<&Channel<'m>> {
        self.channel(self.peer_of(loan)?)
    }

    /// The channel with the peer in a place.
    pub fn channel(&self, peer: usize) -> Option<&Channel<'m>> {
        self.peers.get(peer).map(|peer| &peer.channel)
    }

    /// The places of all peers, with their keys.
    pub fn peers(&self) -> impl Iterator<Item = (usize, PublicKey)> {
        self.peers.iter().map(|(place, peer)| (place, peer.key()))
    }

    /// The loans with the peer in a place, as far as they have streams or ask for them.
    pub fn loans_with(&self, peer: usize) -> impl Iterator<Item = usize> {
        (0..self.loans.len()).filter(move |loan| self.peer_of(*loan) == Some(peer))
    }

    /// The function lent by `loan`, for checkers.
    pub fn lent(&self, loan: usize) -> Option<&(dyn MediaFunction + 'm)> {
        self.loans.get(loan)?.end.function()
    }

    /// The drive borrowed by `loan`.
    pub fn borrowed(&self, loan: usize) -> Option<&BorrowedDrive<'m>> {
        self.loans.get(loan)?.end.drive()
    }

    /// The pages of a loan, for checkers.
    ///
    /// # Panics
    /// If the place is vacant.
    pub fn pages(&self, loan: usize) -> Pages<'m> {
        self.loans[loan].pages
    }

    /// A step for each loan: one for all of them could fill the undo log.
    fn step_each(&mut self, now: Instant, act: impl Fn(&mut Loan<'m>)) {
        for index in 0..self.loans.len() {
            self.step_one(now, index, |card| act(&mut card.loans[index]));
        }
    }

    /// Steps of those that are [behind](Card::behind): of who has something under way at once, and of some others.
    fn step_urgent(&mut self, now: Instant) {
        let urgent = |place: &usize| {
            let found = self.found(*place);
            found.waits || found.deadline.is_some_and(|deadline| deadline <= now)
        };
        let urgent: Vec<usize> = self.behind.iter().filter(urgent).collect();
        urgent.into_iter().for_each(|place| self.step_behind(now, place));
        self.step_some(now);
    }

    /// The same of some of them: hundreds at once would keep those waiting who have something to do.
    fn step_some(&mut self, now: Instant) {
        let some: Vec<usize> = self.behind.iter().take(BEHIND_PER_TURN).collect();
        some.into_iter().for_each(|place| self.step_behind(now, place));
    }

    fn step_behind(&mut self, now: Instant, place: usize) {
        self.behind.set(place, false);
        self.step_one(now, place, |_| ());
    }

    /// Nothing if the loan has failed, perhaps just now. One that is [behind](Card::behind) first takes the step that
    /// it owes: what is done to a loan is done to one that knows what has become of its peer.
    fn step_one(&mut self, now: Instant, loan: usize, act: impl FnOnce(&mut Self)) -> Option<()> {
        if loan < self.loans.len() && self.behind.has(loan) {
            self.step_behind(now, loan);
        }
        self.guarded(now, loan, |card| card.step(Some(loan), act))
    }

    /// Does something for one loan, unless that has failed. If it fails now, all that is taken back.
    fn guarded<T>(&mut self, now: Instant, loan: usize, act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.now = now;
        let this = self.loans.get(loan).filter(|loan| loan.takes_steps())?;
        if !this.contains_faults() {
            return Some(act(self));
        }
        let known = self.events.len();
        // What is broken in memory is the loan, of which nothing is used again; what loans share lies in the ledger,
        // and a channel remembers of a loan's step no more than that there is something to send.
        if let Ok(done) = catch_unwind(AssertUnwindSafe(|| act(self))) {
            return Some(done);
        }
        self.contain(now, loan, known);
        None
    }

    /// A step of one of [`CardConfig::drives`], if there is such a one, that is no loan's. If it fails, so does all
    /// that is lent of the drive.
    fn lent_drive_step(&mut self, now: Instant, index: usize, act: impl FnOnce(&mut Drive<'m>)) {
        let Some(drive) = self.drive(index) else { return };
        let (loans, cells) = (drive.loans().to_vec(), (drive.owner, drive.cells));
        self.now = now;
        loans.iter().for_each(|loan| self.loans.note_stale(*loan));
        let step = |card: &mut Self| card.step(None, |card| card.drives[index].as_mut().map_or((), act));
        if !loans.iter().all(|loan| self.loans[*loan].contains_faults()) {
            return step(self);
        }
        // What is broken in memory is the drive, which is made anew from what is committed.
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_ok() {
            return;
        }
        self.take_back();
        let journal = self.ledger.journal;
        let anew = |config| Drive::new(index, cells, journal, config, &self.config.loans);
        self.drives[index] = self.config.drives[index].clone().map(anew);
        for loan in loans {
            if !self.loans[loan].has_failed() {
                self.contain(now, loan, self.events.len());
            }
        }
    }

    /// An assertion has failed in a step of a loan, before which there were `known` events. What others may wait for is
    /// made anew from what is committed, as in a new card, and brought to an end.
    fn contain(&mut self, now: Instant, loan: usize, known: usize) {
        self.take_back();
        self.loans[loan].fail();
        let (peer, id) = (self.peer_of(loan), self.stream_id(loan));
        if let Some(peer) = peer.and_then(|peer| self.peers.get_mut(peer)) {
            peer.channel.unsay(id);
        }
        self.events.truncate(known);
        self.events.push_back(CardEvent::Unusable(loan, Unusable::Fault));
        self.now = now;
        let has_client = self.loans[loan].end.remains() == Remains::Client;
        let replace = |card: &mut Self| {
            let fresh = card.new_loan(loan).expect("a loan has had its cells since the card began");
            let failed = core::mem::replace(&mut card.loans[loan], fresh);
            card.step(Some(loan), |card| card.loans[loan].replace(now, &failed));
        };
        match has_client {
            // If that fails, nobody is left to answer it.
            true => replace(self),
            false => self.in_failed(loan, replace),
        }
    }

    /// Does something for a loan that has failed. If that fails too, nothing of it is looked at any more.
    fn in_failed(&mut self, loan: usize, act: impl FnOnce(&mut Self)) {
        let done = catch_unwind(AssertUnwindSafe(|| {
            act(self);
            self.ledger.journal.commit();
        }));
        if done.is_err() {
            self.leave(loan);
        }
    }

    /// Takes back what the step under way has changed.
    fn take_back(&self) {
        self.loans.note_all_stale();
        self.ledger.journal.roll_back().expect("this card has written the undo log, and nobody else does");
    }

    fn leave(&mut self, loan: usize) {
        self.take_back();
        self.loans[loan].fail();
    }

    /// One step: `act`, then whatever follows from it for the loan it is of, then the commit. Loans share nothing but
    /// drives and channels; what others have left to do, or can do now, [`Card::poll_timeout`] asks for.
    fn step(&mut self, loan: Option<usize>, act: impl FnOnce(&mut Self)) {
        let in_order = self.config.rules.has(Rule::CommitBeforeSend);
        if !in_order {
            // What the step before has caused to be sent has left by now.
            self.ledger.journal.commit();
        }
        act(self);
        if let Some(loan) = loan {
            self.advance(loan);
            assert!(!self.loans[loan].has_faulted(), "see the assertion that has failed before this one");
        }
        if in_order {
            self.ledger.journal.commit();
        }
    }

    fn advance(&mut self, loan: usize) {
        self.behind.set(loan, false);
        let peer = self.peer_of(loan).filter(|peer| !self.peers[*peer].has_failed());
        let peer = peer.and_then(|peer| self.peers.get_mut(peer));
        let channel = peer.map(|peer| {
            peer.wake();
            &mut peer.channel
        });
        self.loans[loan].advance(self.now, loan, channel, &mut self.events);
    }
}
