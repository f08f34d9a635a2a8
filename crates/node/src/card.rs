mod slots;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use base::ids::{Incarnation, LifeId, NodeId};
use base::ledger::{Hook, LedgerError, Owner, PAGE_SIZE, Pages, RawMemory, RegionError, Span};
use base::{Instant, Rule};
use device::nvme::{DATA_PAGES, Limit, Persist, SubsystemCells};
use device::{Function, MediaError, MediaId, MediaKind, MediaOp};
use host::nvme::FunctionError;
use host::vfio_user::SlotConfigError;
use link::frame::{FrameError, Header, Kind};
use link::{Channel, PathId, Refusal, Room, State, Tenancy};

use crate::borrower::BorrowedDrive;
use crate::bucket::Bucket;
use crate::cells::{Address, LoanParts, NodeLedger, drive_owners};
use crate::config::{CardConfig, LoanConfig, LoanRole};
use crate::drive::Drive;
use crate::lender::LentFunction;
use crate::loan::{End, Loan, seed_of};
use crate::places::Places;
use crate::slot::GuestMemory;

/// Frames that a loan sends before another one that has some is asked: enough for segmentation offload.
const FRAMES_PER_TURN: usize = 32;

/// First messages of handshakes that may be opened at once, and after what time there is one more: each costs three key
/// agreements, and as many nodes may come back together.
const CALLS: u32 = 256;
const ONE_MORE_CALL: Duration = Duration::from_millis(2);
/// How often the gauges for the agent are renewed.
const PUBLISH: Duration = Duration::from_millis(50);

/// What the agent has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardEvent {
    /// The lender refuses the loan.
    Refused(usize, Refusal),
    /// The drive of the loan is usable, or the slot's socket may be served.
    Ready(usize),
    /// The streams to this life of this peer are open: news to this card, perhaps not to the one before it.
    Met(usize, NodeId, Incarnation),
    /// Who has what the loan lends has changed: somebody else has taken it, or it was given back. That has an effect
    /// once the agent has made this durable and said so with [`Card::set_tenancy`]; a new card asks again.
    Tenant(usize, Tenancy),
    /// The borrowed drive no longer holds what this node left there: another node has used it meanwhile, or it was made
    /// anew. What was not flushed is lost, requests under way fail, and clients are disconnected.
    Overtaken(usize),
    /// The medium of this drive has lost something that was answered, or may have: each flush of its functions fails
    /// until [`Card::clear_fault`]. A new card says it again.
    MediaFault(usize),
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
    Drive(FunctionError),
    /// An assertion has failed in a step of the loan: see [`Card::contain_faults`].
    Fault,
    /// There is no room in the ledger for what it needs.
    NoRoom(RegionError),
}

impl core::fmt::Display for Unusable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Slot(error) => write!(f, "the function cannot be given to a virtual machine: {error}"),
            Self::Drive(error) => write!(f, "the function cannot be used as a drive: {error}"),
            Self::NoRoom(error) => write!(
                f,
                "there is no memory for the loan ({error}): it is left alone, and the others go on. The next card tries again"
            ),
            Self::Fault => write!(
                f,
                "an assertion of this program has failed while it served the loan (the log says which), perhaps by what its peer or \
                 its client has sent: the loan is left alone until the node is started again, and the others go on. Please report it"
            ),
        }
    }
}

/// The way that a frame takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Rail of this number.
    Rail(u8),
    /// Through the memory that this loan shares with its peer.
    Private(usize),
}

/// Where frames are built.
pub trait Rooms {
    /// Memory for the largest frame that goes this way. It is written only. Where there is none, the frame is lost: it
    /// is built elsewhere, and comes again when the time for its acknowledgement has passed.
    fn of(&mut self, way: Way) -> &mut [u8];
}

impl Rooms for [u8] {
    fn of(&mut self, _way: Way) -> &mut [u8] {
        self
    }
}

impl Rooms for Vec<u8> {
    fn of(&mut self, _way: Way) -> &mut [u8] {
        self
    }
}

/// The rooms of one loan.
pub(crate) struct LoanRooms<'r, R: ?Sized> {
    rooms: &'r mut R,
    loan: usize,
}

impl<R: Rooms + ?Sized> Room for LoanRooms<'_, R> {
    fn of(&mut self, path: PathId) -> &mut [u8] {
        self.rooms.of(way(path, self.loan))
    }
}

/// Whether two loans have one stream: what is lent could not be told apart by who calls it.
fn has_twins(loans: &[LoanConfig]) -> bool {
    let mut seen = std::collections::BTreeSet::new();
    loans.iter().any(|loan| loan.role.kind().is_some() && !seen.insert(loan.stream.0))
}

/// The way that `path` of a loan's channel stands for.
pub(crate) fn way(path: PathId, loan: usize) -> Way {
    if path == link::PRIVATE_PATH { Way::Private(loan) } else { Way::Rail(path) }
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// Which way.
    pub way: Way,
    /// Where to, on a rail.
    pub to: Address,
    /// Bytes of the frame.
    pub len: usize,
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
    runs: [(u16, u16); DATA_PAGES],
}

impl<'m> MediaWork<'m> {
    /// What a function of `loan` asks for, with its pages.
    pub(crate) fn new(loan: usize, op: &MediaOp<'_>, pages: &Pages<'m>, redo: bool) -> Self {
        let mut runs = [(0, 0); DATA_PAGES];
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
    /// By drive, whose its cells are.
    drive_owners: Vec<Owner>,
    /// By drive, as its cells go.
    drive_cells: Vec<&'m SubsystemCells>,
    drives: Vec<Drive<'m>>,
    /// By place, as its cells go.
    parts: Vec<Option<LoanParts<'m>>>,
    loans: Places<'m>,
    /// Places whose loans there is no room for.
    without_room: Vec<usize>,
    /// See [`Card::contain_faults`].
    contains_faults: bool,
    /// See [`Card::set_guest_memory`].
    guest_memory: Option<Rc<dyn GuestMemory + 'm>>,
    /// First messages of handshakes that may be opened.
    calls: Bucket,
    events: std::collections::VecDeque<CardEvent>,
    next_publish: Instant,
    next_loan: usize,
    /// Frames that the loan whose turn it is has sent in this turn.
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
    /// It is no ledger of this node and this program ([`NodeLedger::entitle`]), and is left as it is; or it is corrupt; or
    /// too small for its drives ([`crate::ledger_bytes`]). A loan for which it is too small is unusable.
    ///
    /// # Panics
    /// If the configuration has more rails than [`crate::MAX_RAILS`], a drive that cannot be, or two loans of one stream.
    pub fn new(
        memory: RawMemory<'m>,
        hook: Option<&'m dyn Hook>,
        config: CardConfig,
        now: Instant,
    ) -> Result<Self, LedgerError> {
        assert!(config.rails.len() <= crate::MAX_RAILS);
        assert!(!has_twins(&config.loans), "frames name a loan by its stream");
        memory.check(NodeLedger::LAYOUT, config.identity.id())?;
        let ledger = NodeLedger::new(memory, hook, config.rules);
        let (journal, gauges) = (ledger.journal, &ledger.root.gauges);
        let restored = journal.roll_back()?;
        gauges.rolled_back.set(restored as u64);
        ledger.used_bytes()?;
        let drive_owners = drive_owners(&config.loans, config.drives.len());
        ledger.retain(&config.loans, &drive_owners)?;
        let drive_cells =
            drive_owners.iter().map(|owner| ledger.obtain_drive(*owner)).collect::<Result<Vec<_>, _>>()?;
        let places = config.loans.len();
        let mut card = Self {
            ledger,
            config,
            drive_owners,
            drive_cells,
            drives: Vec::new(),
            parts: vec![None; places],
            loans: Places::vacant(places),
            without_room: Vec::new(),
            contains_faults: false,
            guest_memory: None,
            calls: Bucket::full(CALLS, ONE_MORE_CALL, now),
            events: std::collections::VecDeque::new(),
            next_publish: now,
            next_loan: 0,
            sent_in_turn: 0,
            next_drive: 0,
            now,
        };
        for place in 0..places {
            card.obtain(place)?;
        }
        let drives = card.config.drives.iter().zip(&card.drive_cells).enumerate();
        card.drives = drives
            .map(|(index, (drive, cells))| {
                Drive::new(index, cells, journal, drive.clone(), &card.config.loans)
            })
            .collect();
        for (place, parts) in card.parts.iter().enumerate() {
            if let Some(parts) = *parts {
                card.loans.occupy(place, Loan::new(parts, journal, &card.config, place, &card.drives, now));
            }
        }
        journal.commit();
        card.step_each(now, |_| ());
        gauges.recovered_at.set(now.as_nanos());
        Ok(card)
    }

    /// Has the cells of a place's loan, or makes its place vacant for everybody here if there is no room for them.
    fn obtain(&mut self, place: usize) -> Result<Option<LoanParts<'m>>, RegionError> {
        self.parts[place] = match self.ledger.parts(place, &self.config.loans[place]) {
            Err(error @ (RegionError::Full(_) | RegionError::TableFull)) => {
                self.config.loans[place].role = LoanRole::Vacant;
                self.without_room.push(place);
                self.events.push_back(CardEvent::Unusable(place, Unusable::NoRoom(error)));
                None
            }
            found => found?,
        };
        Ok(self.parts[place])
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

    /// A frame has come on `rail` from `from`. It is opened in place.
    pub fn handle_frame(&mut self, now: Instant, rail: u8, from: Address, frame: &mut [u8]) {
        let header = match Header::parse(frame) {
            Ok(header) => header,
            Err(FrameError::Version(_)) => return self.ledger.root.gauges.dropped_version.add(1),
            Err(FrameError::Malformed) => return self.ledger.root.gauges.dropped_malformed.add(1),
        };
        if (header.source.rail, header.destination.rail) != (rail, rail) {
            return self.ledger.root.gauges.dropped_misdirected.add(1);
        }
        let Some(index) = self.loan_of(&header) else {
            return self.ledger.root.gauges.dropped_unknown.add(1);
        };
        // Whoever knows this node can make it do sums, with true messages that are repeated, too: only so often.
        let is_call = self.loans.get(index).is_some_and(|loan| loan.channel.is_call(&header, frame));
        if is_call && !self.calls.take(now) {
            return self.ledger.root.gauges.dropped_calls.add(1);
        }
        self.step_one(now, index, |card| {
            card.loans[index].handle_frame(now, rail, from, frame);
        });
    }

    /// The loan that a frame is for: of the channel that it names, if that has this stream. Who begins a handshake
    /// does not know our channels yet, and calls what is lent.
    fn loan_of(&self, header: &Header) -> Option<usize> {
        // A vacant place may still have the name of its last loan, which may have another place now.
        let is_meant = |loan: &LoanConfig| loan.stream == header.stream && loan.role.kind().is_some();
        if header.kind == Kind::Initiation {
            let is_called = |loan: &LoanConfig| is_meant(loan) && matches!(loan.role, LoanRole::Lend { .. });
            return self.config.loans.iter().position(is_called);
        }
        let index = (header.channel.0 as usize).checked_sub(1)?;
        self.config.loans.get(index).is_some_and(is_meant).then_some(index)
    }

    /// A frame has come through the memory that `loan` shares with its peer. `frame` is a private copy: the peer can
    /// change what lies in shared memory at any time.
    pub fn handle_private_frame(&mut self, now: Instant, loan: usize, frame: &mut [u8]) {
        if !Header::parse(frame).is_ok_and(|header| self.loan_of(&header) == Some(loan)) {
            return self.ledger.root.gauges.dropped_malformed.add(1);
        }
        self.step_one(now, loan, |card| card.loans[loan].handle_private_frame(now, frame));
    }

    /// `loan` shares memory with its peer from now on, or other memory than before; or none any more.
    pub fn set_private(&mut self, now: Instant, loan: usize, is_there: bool) {
        self.step_one(now, loan, |card| card.loans[loan].channel.set_private(now, is_there));
    }

    /// The medium has ended work `id` of loan `loan`.
    pub fn handle_media(&mut self, now: Instant, loan: usize, id: MediaId, result: Result<(), MediaError>) {
        let Some(this) = self.loans.get_mut(loan) else { return };
        this.note_ended(id);
        let ended = self.step_one(now, loan, |card| {
            if let End::Lent(function) = &mut card.loans[loan].end {
                function.controller.handle_media(now, id, result);
            }
        });
        if ended.is_none() {
            self.in_failed(loan, |card| card.loans[loan].end_media(now, id, result));
        }
    }

    /// Time has come: for the loans that have something to do, each in a step of its own.
    pub fn handle_timeout(&mut self, now: Instant) {
        for index in 0..self.loans.len() {
            let deadline = self.loans.get(index).and_then(Loan::poll_timeout);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.step_one(now, index, |card| card.loans[index].handle_timeout(now));
            }
        }
        if self.next_publish <= now {
            self.next_publish = now + PUBLISH;
            for index in 0..self.loans.len() {
                self.guarded(now, index, |card| card.loans[index].publish(now));
            }
        }
    }

    /// When [`Card::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.loans.iter().filter_map(Loan::poll_timeout).min()
    }

    /// The next frame to send, built where `rooms` says. Loans take turns of some frames each.
    pub fn poll_transmit(&mut self, now: Instant, rooms: &mut (impl Rooms + ?Sized)) -> Option<Outgoing> {
        let count = self.loans.len();
        for turn in 0..count {
            let index = (self.next_loan + turn) % count;
            let mut room = LoanRooms { rooms: &mut *rooms, loan: index };
            let outgoing =
                self.guarded(now, index, |card| card.loans[index].poll_transmit(now, index, &mut room));
            if let Some(outgoing) = outgoing.flatten() {
                self.sent_in_turn = if turn == 0 { self.sent_in_turn + 1 } else { 1 };
                let is_over = self.sent_in_turn >= FRAMES_PER_TURN;
                self.sent_in_turn = if is_over { 0 } else { self.sent_in_turn };
                self.next_loan = if is_over { (index + 1) % count } else { index };
                return Some(outgoing);
            }
        }
        (self.next_loan, self.sent_in_turn) = (if count == 0 { 0 } else { (self.next_loan + 1) % count }, 0);
        None
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
            *asked = self.drives[drive].pick(&mut self.loans, asked)?;
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
        drives.filter_map(|(index, drive)| Some((index, drive.subsystem.poll_persist()?))).next()
    }

    /// What [`Card::poll_persist`] gave out is kept, or could not be.
    pub fn handle_persisted(&mut self, now: Instant, drive: usize, version: u64, kept: bool) {
        self.lent_drive_step(now, drive, |drive| drive.subsystem.handle_persisted(version, kept));
    }

    /// Whether each flush of a drive's functions fails because its medium has lost something.
    pub fn has_fault(&self, drive: usize) -> bool {
        self.drives.get(drive).is_some_and(|drive| drive.subsystem.has_fault())
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

    /// This machine may go on somewhere else, too, from the same memory: each loan gets keys that depend on `seed`,
    /// which is new and random. If it is certain that it was restored, what is borrowed is borrowed in another `life`.
    pub fn renew_keys(&mut self, now: Instant, seed: [u8; 32], life: Option<LifeId>) {
        self.config.borrows_as = life.or(self.config.borrows_as);
        self.config.seed = seed;
        for loan in 0..self.loans.len() {
            let seed = seed_of(&self.config, loan);
            self.step_one(now, loan, |card| card.loans[loan].channel.renew_keys(now, seed, life));
        }
    }

    /// A place has another loan from now on, which borrows; the others notice nothing of it. The one before is over, and
    /// what it has left is given back. A card that dies meanwhile has a successor that finds it in its configuration. A
    /// loan for which there is no room is [`Unusable::NoRoom`], and its place stays vacant. The place may be the next one
    /// behind those that there are.
    ///
    /// # Errors
    /// The ledger is corrupt.
    ///
    /// # Panics
    /// If there is no such place, the loan lends, or another one has its stream.
    pub fn attach(&mut self, now: Instant, place: usize, loan: LoanConfig) -> Result<(), RegionError> {
        assert!(
            matches!(loan.role, LoanRole::Borrow { .. }),
            "what is lent belongs to a drive from the start"
        );
        // A place whose loan is over has its name until another one comes.
        let is_over = |other| {
            self.loans
                .get(other)
                .is_none_or(|loan| loan.has_failed() || loan.channel.state() == State::Closed)
        };
        let present = (0..self.loans.len()).filter(|other| *other != place && !is_over(*other));
        let twins =
            present.map(|other| &self.config.loans[other]).filter(|other| other.stream == loan.stream);
        assert_eq!(twins.count(), 0, "frames name a loan by its stream");
        self.now = now;
        if place == self.loans.len() {
            self.loans.append_vacant();
            self.parts.push(None);
            self.config.loans.push(loan);
        } else {
            self.loans.vacate(place);
            self.parts[place] = None;
            self.without_room.retain(|without| *without != place);
            self.config.loans[place] = loan;
        }
        self.ledger.retain(&self.config.loans, &self.drive_owners)?;
        let Some(parts) = self.obtain(place)? else { return Ok(()) };
        let mut loan = Loan::new(parts, self.ledger.journal, &self.config, place, &self.drives, now);
        if self.contains_faults {
            loan.contain_faults();
        }
        self.loans.occupy(place, loan);
        self.reach_guest(place);
        self.ledger.journal.commit();
        self.step_one(now, place, |_| ());
        Ok(())
    }

    /// What the function of a lent loan may do from now on.
    pub fn set_limit(&mut self, now: Instant, loan: usize, limit: Limit) {
        if loan < self.loans.len() {
            self.step_one(now, loan, |card| {
                if let End::Lent(function) = &mut card.loans[loan].end {
                    function.controller.set_limit(now, limit);
                }
            });
        }
    }

    /// The next event for the agent.
    pub fn poll_event(&mut self) -> Option<CardEvent> {
        let fault = || self.drives.iter_mut().position(Drive::take_fault).map(CardEvent::MediaFault);
        self.events.pop_front().or_else(fault)
    }

    /// A client has connected to the edge of `loan`; `slot` is idle.
    pub fn edge_open(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| {
            if server.is_idle(slot) {
                server.open(now, slot);
            }
        });
    }

    /// The client in `slot` has gone, or was closed.
    pub fn edge_closed(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| server.closed(now, slot));
    }

    /// The client in `slot` will send nothing more.
    pub fn edge_ended(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| server.ended(now, slot));
    }

    /// The kernel has put bytes of the client up to `position` where [`Card::edge_receive_spans`] said.
    pub fn edge_received(&mut self, now: Instant, loan: usize, slot: usize, position: u64) {
        self.edge_step(now, loan, |server| server.handle_received(now, slot, position));
    }

    /// The kernel has taken bytes for the client up to `position`.
    pub fn edge_sent(&mut self, now: Instant, loan: usize, slot: usize, position: u64) {
        self.edge_step(now, loan, |server| server.handle_sent(now, slot, position));
    }

    /// Where bytes of the client from `position` on may be put.
    pub fn edge_receive_spans(&self, loan: usize, slot: usize, position: u64) -> [Option<Span<'m>>; 2] {
        let Some(server) = self.server(loan) else { return [None; 2] };
        server.receive_spans(slot, position).map(|span| (!span.is_empty()).then_some(span))
    }

    /// Fills `spans` with what is to be sent from `position` on; returns how many were filled.
    pub fn edge_send_spans(&self, loan: usize, slot: usize, position: u64, spans: &mut [Span<'m>]) -> usize {
        self.server(loan).map_or(0, |server| server.send_spans(slot, position, spans))
    }

    /// Where the stream to the client in `slot` ends at present.
    pub fn edge_output_end(&self, loan: usize, slot: usize) -> u64 {
        self.server(loan).map_or(0, |server| server.output_end(slot))
    }

    /// Whether nobody is connected in `slot`, as the ledger has it.
    pub fn edge_is_idle(&self, loan: usize, slot: usize) -> bool {
        self.server(loan).is_none_or(|server| server.is_idle(slot))
    }

    /// Whether the client in `slot` is to be disconnected.
    pub fn edge_wants_close(&self, loan: usize, slot: usize) -> bool {
        let has_failed = self.loans.get(loan).is_none_or(Loan::has_failed);
        has_failed || self.server(loan).is_some_and(|server| server.wants_close(slot))
    }

    /// Whether the client in `slot` has said that it goes, and requests of it have not ended, which are done even if it
    /// is gone.
    pub fn edge_is_leaving(&self, loan: usize, slot: usize) -> bool {
        self.server(loan).is_some_and(|server| server.is_leaving(slot))
    }

    /// One step of a program that uses the drive of `loan` itself: `act` polls completions from the driver, takes and
    /// gives back pages, and submits requests. It must not call other verbs of the driver.
    pub fn drive_step(
        &mut self,
        now: Instant,
        loan: usize,
        act: impl FnOnce(&mut host::nvme::Driver<'m>, Pages<'m>),
    ) {
        self.step_one(now, loan, |card| {
            let loan = &mut card.loans[loan];
            if let End::Borrowed(drive) = &mut loan.end {
                act(&mut drive.driver, loan.pages);
            }
        });
    }

    /// The agent has made durable who has what `loan` lends.
    pub fn set_tenancy(&mut self, now: Instant, loan: usize, tenancy: Tenancy) {
        self.step_one(now, loan, |card| card.loans[loan].channel.set_tenancy(tenancy));
    }

    /// From now on this node calls itself by a greater incarnation in a borrowed loan, whose lender has seen a greater
    /// one than it had.
    pub fn raise_incarnation(&mut self, now: Instant, loan: usize, incarnation: Incarnation) {
        if loan < self.loans.len() {
            self.step_one(now, loan, |card| card.loans[loan].channel.raise_incarnation(now, incarnation));
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
        self.loans.iter().filter(|loan| !loan.has_failed()).any(|loan| match &loan.end {
            End::Borrowed(drive) => drive.driver.in_flight() > 0,
            End::Lent(_) | End::Slot(_) => loan.channel.stream.port.tags.outstanding() > 0,
        })
    }

    /// Whether nothing of a loan is on its way or waiting, for the simulator.
    pub fn is_idle(&self) -> bool {
        self.loans.iter().all(|loan| loan.channel.stream.is_idle())
    }

    /// Words that have been changed since the last commit, for checkers: none whenever anything leaves.
    pub fn uncommitted(&self) -> usize {
        self.ledger.journal.pending()
    }

    /// The channel of a loan, for status and checkers.
    ///
    /// # Panics
    /// If the place is vacant.
    pub fn channel(&self, loan: usize) -> &Channel<'m> {
        &self.loans[loan].channel
    }

    /// The function lent by `loan`, for checkers.
    pub fn lent(&self, loan: usize) -> Option<&LentFunction<'m>> {
        match &self.loans.get(loan)?.end {
            End::Lent(function) => Some(function),
            End::Borrowed(_) | End::Slot(_) => None,
        }
    }

    /// The drive borrowed by `loan`.
    pub fn borrowed(&self, loan: usize) -> Option<&BorrowedDrive<'m>> {
        match &self.loans.get(loan)?.end {
            End::Borrowed(drive) => Some(drive),
            End::Lent(_) | End::Slot(_) => None,
        }
    }

    /// The pages of a loan, for checkers.
    ///
    /// # Panics
    /// If the place is vacant.
    pub fn pages(&self, loan: usize) -> Pages<'m> {
        self.loans[loan].pages
    }

    fn server(&self, loan: usize) -> Option<&host::nbd::Server<'m>> {
        let is_there = |_: &&BorrowedDrive<'_>| self.loans.get(loan).is_some_and(|loan| !loan.has_failed());
        self.borrowed(loan).filter(is_there).map(|drive| &drive.server)
    }

    fn edge_step(&mut self, now: Instant, loan: usize, act: impl FnOnce(&mut host::nbd::Server<'m>)) {
        self.step_one(now, loan, |card| {
            if let End::Borrowed(drive) = &mut card.loans[loan].end {
                act(&mut drive.server);
            }
        });
    }

    /// A step for each loan: one for all of them could fill the undo log.
    fn step_each(&mut self, now: Instant, act: impl Fn(&mut Loan<'m>)) {
        for index in 0..self.loans.len() {
            self.step_one(now, index, |card| act(&mut card.loans[index]));
        }
    }

    /// Nothing if the loan has failed, perhaps just now.
    fn step_one(&mut self, now: Instant, loan: usize, act: impl FnOnce(&mut Self)) -> Option<()> {
        self.guarded(now, loan, |card| card.step(now, loan..loan + 1, act))
    }

    /// Does something for one loan, unless that has failed. If it fails now, all that is taken back.
    fn guarded<T>(&mut self, now: Instant, loan: usize, act: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.now = now;
        let this = self.loans.get(loan).filter(|loan| loan.takes_steps())?;
        if !this.contains_faults() {
            return Some(act(self));
        }
        let known = self.events.len();
        // What is broken in memory is the loan, of which nothing is used again; what loans share lies in the ledger.
        if let Ok(done) = catch_unwind(AssertUnwindSafe(|| act(self))) {
            return Some(done);
        }
        self.contain(now, loan, known);
        None
    }

    /// A step of one of [`CardConfig::drives`], if there is such a one, that is no loan's. If it fails, so does all
    /// that is lent of the drive.
    fn lent_drive_step(&mut self, now: Instant, index: usize, act: impl FnOnce(&mut Drive<'m>)) {
        let Some(drive) = self.drives.get(index) else { return };
        self.now = now;
        let loans = drive.loans().to_vec();
        let step = |card: &mut Self| card.step(now, 0..0, |card| act(&mut card.drives[index]));
        if !loans.iter().all(|loan| self.loans[*loan].contains_faults()) {
            return step(self);
        }
        // What is broken in memory is the drive, which is made anew from what is committed.
        if catch_unwind(AssertUnwindSafe(|| step(self))).is_ok() {
            return;
        }
        self.take_back();
        let (cells, config) = (self.drive_cells[index], self.config.drives[index].clone());
        self.drives[index] = Drive::new(index, cells, self.ledger.journal, config, &self.config.loans);
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
        self.events.truncate(known);
        self.events.push_back(CardEvent::Unusable(loan, Unusable::Fault));
        let is_slot = matches!(self.loans[loan].end, End::Slot(_));
        let replace = |card: &mut Self| {
            let parts = card.parts[loan].expect("a loan has had its cells since the card began");
            let fresh = Loan::new(parts, card.ledger.journal, &card.config, loan, &card.drives, now);
            let failed = core::mem::replace(&mut card.loans[loan], fresh);
            card.step(now, loan..loan + 1, |card| card.loans[loan].replace(now, &failed));
        };
        match is_slot {
            // If that fails, nobody is left to answer its machine.
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
        self.ledger.journal.roll_back().expect("this card has written the undo log, and nobody else does");
    }

    fn leave(&mut self, loan: usize) {
        self.take_back();
        self.loans[loan].fail();
    }

    /// One step: `act`, then whatever follows from it for the loans it touches, then the commit. Loans share nothing
    /// but drives; what others have left to do, or can do now, [`Card::poll_timeout`] asks for.
    fn step(&mut self, now: Instant, touched: Range<usize>, act: impl FnOnce(&mut Self)) {
        let in_order = self.config.rules.has(Rule::CommitBeforeSend);
        if !in_order {
            // What the step before has caused to be sent has left by now.
            self.ledger.journal.commit();
        }
        act(self);
        for index in touched {
            self.loans[index].advance(now, index, &mut self.events);
        }
        if in_order {
            self.ledger.journal.commit();
        }
    }
}
