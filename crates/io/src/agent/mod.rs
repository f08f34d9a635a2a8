//! The agent: creates and keeps every descriptor, holds the ledger's memory, and starts a card whenever there is none.
//!
//! It moves no data. A card that dies is reaped, the ring is drained, the generation is raised, and the next card goes
//! on: same ledger, same sockets, same files. The agent itself is a value that a role of the program drives: wait
//! until [`Agent::as_fd`] is readable, then call [`Agent::turn`].

mod attach;
mod change;
mod clients;
mod divide;
mod drives;
mod entries;
mod heard;
mod kept;
mod lenders;
mod life;
mod log;
mod neighbours;
mod rails;
mod slots;
mod standby;
mod start;
#[cfg(test)]
mod test_loans;
mod view;
mod watchdog;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::RuleSet;
use base::ids::{DomainBlock, DomainId, LifeId, LoanGeneration, NodeId, RailId};
pub use node::agent::{CardRecord, Condition};
use node::{
    Applied, DriveConfig, FlashConfig, LendConfig, Lender, LoanConfig, LoanKind, NodeKey, NodeLedger, Notice,
    Protection, RailMode, Refusal, Secret, Tenancy, Whereabouts,
};
use tracing::debug;

use self::change::Leaving;
pub use self::change::{Arrivals, Withdrawn};
use self::clients::Clients;
pub use self::divide::{ZEROINGS_MAX, Zeroing};
pub use self::drives::DriveEnd;
use self::drives::Images;
use self::entries::Entries;
use self::heard::LendersAt;
use self::life::LiveCard;
use self::neighbours::{Context, Neighbours};
use self::slots::Slots;
pub use self::slots::{descriptors_for, slots_by_descriptors};
use self::standby::Standby;
pub use self::view::{LoanView, View};
use crate::address::{Addresses, RailAddress};
use crate::capture::{self, Kept};
use crate::carrier::Carriers;
use crate::event::{Event, seconds};
use crate::files::{Image, LastWrites};
use crate::load::{LoadResult, LoadSpec};
use crate::memory::{self, Mapping};
use crate::messages::{self, FromDrive, FromLoan, FromPeer, Hex, LoanId, ToAgent, ToCard, ToLoan};
use crate::plan::{LEDGER_OFFSET, MediumKind, SharedCells};
use crate::rail::RailSocket;
use crate::rate_limited::RateLimited;
use crate::ring::{Ring, RingError};
use crate::vm_generation::{News, VmGeneration};
use crate::wait::{Interest, SpinTimes, Waiter};

/// Requests that the ring holds.
const RING_ENTRIES: u32 = 512;
/// How long clients wait who could not be accepted for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How many clients of one socket a turn looks at, since there is more to do: who waits is told of again.
const ACCEPTS_A_TURN: usize = 16;

/// Information frames that wait for the role.
const HEARD_MAX: usize = 256;
/// Notices that wait for the role.
const NOTICES_MAX: usize = 64;

/// A node as its role wants it.
pub struct NodeSpec {
    /// Its name.
    pub name: String,
    /// Who it is.
    pub identity: NodeKey,
    /// Its own domain, and those of its virtual machines.
    pub domains: DomainBlock,
    /// Which life of its ledger this is.
    pub incarnation: u64,
    /// The rails, in the order of their ids.
    pub rails: Vec<Rail>,
    /// The drives of which it lends functions; `None`: no drive is in this place any more.
    pub drives: Vec<Option<DriveSpec>>,
    /// What it lends and borrows.
    pub loans: Vec<LoanSpec>,
    /// Where those are who have something of it, as was made durable.
    pub holders: Vec<Whereabouts>,
    /// What it accepts as protection of frames.
    pub protection: Protection,
    /// How it uses several rails.
    pub rail_mode: RailMode,
    /// Whether it shares memory with nodes on the same machine that it has a channel with.
    pub shared_memory: bool,
    /// When images were written last: its life is the incarnation, and it has an entry for each drive, in their order.
    pub last_writes: LastWrites,
    /// Bytes that the ledger may have; `None`: as many as its loans need.
    pub ledger: Option<u64>,
    /// Drives may come while it runs: a card has the ring for disks from its start, or never.
    pub drives_may_come: bool,
    /// What it knows of its fabric, if it belongs to one; see [`Agent::set_fabric`].
    pub fabric: Option<node::Members>,
}

impl NodeSpec {
    /// The drive in this place, if there is one.
    pub fn drive(&self, drive: usize) -> Option<&DriveSpec> {
        self.drives.get(drive)?.as_ref()
    }

    /// The drives with their places.
    pub fn drives(&self) -> impl Iterator<Item = (usize, &DriveSpec)> {
        self.drives.iter().enumerate().filter_map(|(place, drive)| Some((place, drive.as_ref()?)))
    }

    /// The domain that a loan belongs to at this node.
    pub fn domain_of(&self, loan: &LoanSpec) -> DomainId {
        match loan.config.role.edge() {
            Some(Edge::Vm { machine, .. }) => self.domain_of_machine(*machine),
            _ => self.domains.node(),
        }
    }

    /// The domain of a virtual machine. One for which there is none has the node's own, as if it were a program: roles
    /// do not let it come so far.
    pub fn domain_of_machine(&self, machine: u32) -> DomainId {
        self.domains.machine(machine).unwrap_or(self.domains.node())
    }
}

/// A drive as a role wants it.
pub struct DriveSpec {
    /// Its name: of the function that a drive with a single one has.
    pub name: String,
    /// The image, with its lock.
    pub image: Image,
    /// What it is made for; [`DriveConfig::check`] finds nothing.
    pub config: DriveConfig,
    /// The flash card whose time it takes.
    pub flash: Option<FlashConfig>,
    /// As `status` names it.
    pub source: String,
    /// An earlier life of the node has lost something of it, or may have, and no operator has seen to it since.
    pub has_lost: bool,
}

/// One rail of a node.
pub struct Rail {
    /// Its id, as both ends of a loan know it: no other one of the node has it.
    pub id: RailId,
    /// Its name in `status` and logs.
    pub name: String,
    /// Its socket, which is open.
    pub socket: Box<dyn RailSocket>,
    /// The port of a switch that everything is sent to, whoever it is for.
    pub gateway: Option<RailAddress>,
    /// The node says there that it is there, and hears others.
    pub announces: bool,
}

/// A loan as a role wants it.
pub struct LoanSpec {
    /// The function's name.
    pub function: String,
    /// What cards are told of it, but that they know its side as a [`LoanRole`].
    pub config: LoanConfig<LoanEnd>,
    /// Of what is borrowed, beside what fills slots of machines: for how long its lender may be silent, as whoever
    /// looks after the node goes by; `None`: for ever.
    pub hold: Option<Duration>,
}

/// The side of a loan, with its resources.
pub enum LoanEnd {
    /// Lends a function of one of [`NodeSpec::drives`].
    Lend(LendConfig),
    /// Borrows a drive.
    Borrow {
        /// Whose it is.
        lender: Lender,
        /// The lender's addresses, by rail.
        peers: Addresses,
        /// Who uses it.
        edge: Edge,
        /// How long a request may wait for the lender.
        io_timeout: Duration,
    },
    /// There is no loan, until [`Agent::attach`] or [`Agent::admit`].
    Vacant {
        /// Who uses what will be there, and may still be connected to what was; `None`: nobody is, and anything may
        /// come.
        edge: Option<Edge>,
    },
}

impl LoanEnd {
    /// Who uses what is borrowed, or will be.
    pub fn edge(&self) -> Option<&Edge> {
        match self {
            Self::Borrow { edge, .. } => Some(edge),
            Self::Vacant { edge } => edge.as_ref(),
            Self::Lend { .. } => None,
        }
    }

    /// What there is room for in the ledger: a slot has it before its loan comes, so that a card can take that, and
    /// until its machine is gone.
    pub fn reserved_kind(&self) -> Option<LoanKind> {
        match self {
            Self::Vacant { edge: Some(Edge::Vm { .. }) } => Some(LoanKind::Slot),
            _ => self.kind(),
        }
    }

    /// As [`node::LoanRole::kind`].
    pub(super) fn kind(&self) -> Option<LoanKind> {
        match self {
            Self::Lend { .. } => Some(LoanKind::Lend),
            Self::Borrow { edge: Edge::Vm { .. }, .. } => Some(LoanKind::Slot),
            Self::Borrow { edge: Edge::Nbd { .. } | Edge::Load(_), .. } => Some(LoanKind::Drive),
            Self::Vacant { .. } => None,
        }
    }
}

/// Who uses a borrowed drive.
pub enum Edge {
    /// Clients that connect to a socket.
    Nbd {
        /// Where it lies; removed when the node ends.
        path: PathBuf,
        /// The listening socket; none when the node is ending.
        listener: Option<UnixListener>,
    },
    /// A virtual machine, which finds the function behind a vfio-user socket.
    Vm {
        /// Where it lies; removed when the node ends.
        path: PathBuf,
        /// The listening socket; none when the node is ending. Who connects waits until the function is usable.
        listener: Option<UnixListener>,
        /// Which of the node's virtual machines this is: names its domain ([`DomainBlock::machine`]).
        machine: u32,
    },
    /// The card itself, to measure it.
    Load(LoadSpec),
}

/// What a role has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentEvent {
    /// The drive of the loan is usable.
    Ready(usize),
    /// The lender refuses.
    Refused {
        /// The loan.
        loan: usize,
        /// Why.
        refusal: Refusal,
    },
    /// Somebody else than before has taken what the loan lends, or it was given back: who did it waits until that is
    /// durable.
    Tenant {
        /// The loan.
        loan: usize,
        /// Who has it now.
        tenancy: Tenancy,
    },
    /// This tenancy of the loan is to be made durable; [`Agent::tenancy_stored`] follows.
    StoreTenancy {
        /// The loan.
        loan: usize,
        /// In place of what is kept.
        tenancy: Tenancy,
    },
    /// How far the card is with the [entry](Agent::set_entry) of a loan has changed: by which one it acts, and who has
    /// what is lent.
    Applied {
        /// The loan.
        loan: usize,
        /// What the card says.
        applied: Applied,
    },
    /// The node that a loan is assigned to was silent for longer than its entry says. Once, until it is heard again.
    HoldOver {
        /// The loan.
        loan: usize,
        /// By which generation it has it.
        generation: LoanGeneration,
    },
    /// A node that has something of this one is there, which is to be made durable in place of what is kept of that
    /// node; [`Agent::holder_stored`] follows.
    StoreHolder(Whereabouts),
    /// This node has nothing of this one any more: where it is need not be kept.
    ForgetHolder(NodeId),
    /// The lender has seen a later life of this node than the state folder knew of: an incarnation greater than that is
    /// to be made durable, and [`Agent::incarnation_raised`] follows, unless that cannot be.
    RaiseIncarnation {
        /// The loan.
        loan: usize,
        /// What the lender has seen.
        seen: u64,
    },
    /// Another node has used the borrowed drive meanwhile: what was not flushed is lost.
    Overtaken(usize),
    /// The lent function cannot be used, for this reason.
    Unusable {
        /// The loan.
        loan: usize,
        /// A sentence.
        why: String,
    },
    /// The loan was given back.
    GivenBack {
        /// The loan.
        loan: usize,
        /// Of a borrowed drive: writes that were answered could not be made durable, and no flush has said so.
        has_lost: bool,
    },
    /// The load of a loan has ended.
    LoadEnded(usize, LoadResult),
    /// The medium of this one of [`NodeSpec::drives`] has lost something that was answered, or may have: each flush of
    /// its functions fails until [`Agent::clear_fault`]. Each card says it anew.
    MediaFault(usize),
    /// The image of this one of [`NodeSpec::drives`] has grown.
    Grown(usize),
    /// Somebody else has changed the image of this one of [`NodeSpec::drives`] while it is lent: it is not what it was.
    Altered(usize),
    /// This is to be kept of a drive, in place of all before, for [`DriveConfig::saved`]; [`Agent::persisted`] follows.
    Persist {
        /// Which of [`NodeSpec::drives`].
        drive: usize,
        /// Comes back with the answer.
        version: u64,
        /// At most some 20 KiB.
        bytes: Vec<u8>,
    },
}

/// The agent of a node.
pub struct Agent {
    spec: NodeSpec,
    /// Tells this run of the node from all others, whatever state folder they were started from.
    life: LifeId,
    memory: OwnedFd,
    mapping: Mapping,
    ring: Option<Ring>,
    clients: Clients,
    slots: Slots,
    neighbours: Neighbours,
    captures: Kept,
    waiter: Waiter,
    vm_generation: VmGeneration,
    carriers: Carriers,
    /// The machine was restored while this agent lived, or may have been: no card goes on with the keys of the one
    /// before.
    was_restored: bool,
    /// The life that it calls itself by since.
    restored_as: Option<LifeId>,
    card: Option<LiveCard>,
    standby: Standby,
    /// What decides.
    core: node::agent::Agent,
    /// What says what has happened.
    log: log::Log,
    /// Information frames that the role has not taken yet.
    heard: Vec<(RailId, Vec<u8>)>,
    /// Notices to all that the role has not sent yet.
    notices: Vec<Notice>,
    /// Those who hear them, each with the rails of this node, as bits, on which it does.
    members: BTreeMap<NodeId, u8>,
    doubted: RateLimited,
    /// Clients cannot be accepted.
    crowded: RateLimited,
    /// How far the card is with what the node's table says.
    entries: Entries,
    /// Where lenders say that they are today.
    lenders_at: LendersAt,
    /// What it wants of the role.
    wants: Vec<AgentEvent>,
    /// What has gone wrong since the last turn.
    failure: Option<io::Error>,
    /// Until then nobody is accepted.
    accept_at: Option<Instant>,
    images: Images,
    /// A ring cannot be had here.
    is_ring_refused: bool,
    /// Drives that no card is to have any more, until the present one is gone.
    leaving: Vec<Leaving>,
    /// What became of those that have left.
    withdrawn: Vec<Withdrawn>,
}

mod token {
    pub(super) const CARD: u64 = 0;
    pub(super) const MESSAGES: u64 = 1;
    pub(super) const VM_GENERATION: u64 = 2;
    pub(super) const STANDBY: u64 = 3;
    pub(super) const CARRIERS: u64 = 4;
    pub(super) const LISTENER: u64 = 1 << 32;
    /// Who listens for neighbours; then peers and callers, each with an index.
    pub(super) const NEIGHBOURS: u64 = 2 << 32;
    pub(super) const PLACES: u64 = 3 << 32;
    pub(super) const STRANGERS: u64 = 4 << 32;
}

impl Agent {
    /// Makes the ledger, the ring and the edges, and starts the first card.
    ///
    /// # Errors
    /// What the system refused.
    pub fn start(mut spec: NodeSpec) -> io::Result<Self> {
        spec.fabric = spec.fabric.map(change::timed);
        crate::harden();
        crate::raise_descriptor_limit();
        let bytes = ledger_end(kinds_of(&spec), spec.drives.len(), None, spec.ledger)?;
        let memory = memory::create_growing("causeway-ledger", bytes)?;
        let mapping = Mapping::shared(memory.as_fd())?;
        let waiter = Waiter::new(SpinTimes { idle: Duration::ZERO, expecting: Duration::ZERO })?;
        clients::listen(&spec.loans, &waiter)?;
        let (ring, is_ring_refused) = match make_ring(&spec) {
            Ok(ring) => (ring, false),
            // Nobody is served worse for it yet.
            Err(error) if !has_disks(&spec) => {
                debug!("disks that come are served without io_uring: {error}");
                (None, true)
            }
            Err(RingError::Unavailable(error)) => {
                Event::RingUnavailable { error: error.to_string() }.say();
                (None, true)
            }
            Err(RingError::System(error)) => return Err(error),
        };
        let neighbours = Neighbours::new(&spec, &waiter);
        let images = Images::new(&spec.drives);
        let vm_generation = watch_vm_generation(&waiter);
        let carriers = watch_carriers(&waiter, &spec.rails);
        let mut life = LifeId::default();
        fill_random(&mut life.0)?;
        let places = spec.loans.len();
        let mut agent = Self {
            spec,
            life,
            memory,
            mapping,
            ring,
            clients: Clients::new(places),
            slots: Slots::new(places),
            neighbours,
            captures: Kept::default(),
            waiter,
            vm_generation,
            carriers,
            was_restored: false,
            restored_as: None,
            card: None,
            standby: Standby::default(),
            core: node::agent::Agent::new(RuleSet::ALL, crate::card::now()),
            wants: Vec::new(),
            failure: None,
            accept_at: None,
            images,
            is_ring_refused,
            leaving: Vec::new(),
            withdrawn: Vec::new(),
            log: log::Log::default(),
            heard: Vec::new(),
            notices: Vec::new(),
            members: BTreeMap::new(),
            doubted: RateLimited::default(),
            crowded: RateLimited::of_trouble(),
            entries: Entries::default(),
            lenders_at: LendersAt::default(),
        };
        agent.tell_of_ring();
        agent.start_first_card()?;
        agent.spec.last_writes.keep();
        Ok(agent)
    }

    /// Readable when [`Agent::turn`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiter.as_fd()
    }

    /// When [`Agent::turn`] is to be called although nothing is readable.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let told = (!self.wants.is_empty() || self.failure.is_some()).then(Instant::now);
        let own = [self.next_of_life(), self.accept_at, told];
        let others =
            [self.images.look_at(), self.neighbours.poll_timeout(), self.vm_generation.poll_timeout()];
        let times = own.into_iter().chain(others);
        times.flatten().min()
    }

    /// Does what is due, without waiting; returns what the role has to know.
    ///
    /// # Errors
    /// What leaves the node without a card for good.
    pub fn turn(&mut self) -> io::Result<Vec<AgentEvent>> {
        self.failure.take().map_or(Ok(()), Err)?;
        let mut events = Vec::new();
        self.waiter.poll()?;
        let ready: Vec<u64> = self.waiter.ready().map(|ready| ready.token).collect();
        for what in ready {
            match what {
                // What it said before it died counts, so messages are read first.
                token::CARD => {
                    self.take_messages(&mut events);
                    self.bury_card()?;
                }
                token::MESSAGES => self.take_messages(&mut events),
                token::STANDBY => self.lose_standby(),
                token::CARRIERS => self.look_at_carriers(),
                token::VM_GENERATION => self.hear_of_restorations()?,
                what if what >= token::NEIGHBOURS => {
                    let context = context(&self.spec, &self.waiter, &self.mapping);
                    self.neighbours.handle_ready(what, context);
                }
                listener => {
                    let loan = (listener - token::LISTENER) as usize;
                    if self.spec.loans.get(loan).is_some_and(slots::is_slot) {
                        self.accept_guest(loan);
                    } else {
                        self.accept(loan);
                    }
                }
            }
        }
        if self.accept_at.is_some_and(|at| at <= Instant::now()) {
            self.accept_at = None;
            clients::listen(&self.spec.loans, &self.waiter)?;
            self.slots.listen(&self.spec.loans, &self.waiter)?;
        }
        if self.vm_generation.poll_timeout().is_some_and(|at| at <= Instant::now()) {
            self.hear_of_restorations()?;
        }
        let context = context(&self.spec, &self.waiter, &self.mapping);
        self.neighbours.handle_timeout(Instant::now(), context);
        self.tell_neighbours();
        self.captures.forget_ended();
        events.extend(self.look_at_images());
        self.advance_life()?;
        events.append(&mut self.wants);
        Ok(events)
    }

    fn hear_of_restorations(&mut self) -> io::Result<()> {
        let news = self.vm_generation.news(Instant::now());
        match news {
            News::None => return Ok(()),
            News::Missed => Event::MachinePerhapsRestored {}.say(),
            News::Restored => Event::MachineRestored {}.say(),
        }
        self.renew_keys(news == News::Restored)
    }

    /// Tells the card of whom it shares memory with now. One that is not there is followed by one that is told
    /// everything.
    fn tell_neighbours(&mut self) {
        while let Some(message) = self.neighbours.take_changed() {
            if let Some(card) = &mut self.card {
                card.outbox.push(message);
            }
        }
    }

    /// Information frames that the card has taken from switches since this was asked last, with their rails.
    pub fn take_heard(&mut self) -> Vec<(RailId, Vec<u8>)> {
        std::mem::take(&mut self.heard)
    }

    /// Asks the card to give everything back: [`AgentEvent::GivenBack`] follows for each borrowed loan that was
    /// reached.
    pub fn shut_down(&mut self) {
        clients::stop_listening(&mut self.spec.loans);
        self.core.handle_shut_down();
        self.follow();
    }

    /// This machine may go on somewhere else, too, from the same memory: the keys of frames are made anew, from random
    /// numbers that nobody else has. If it is certain that it was restored, it calls itself by a life of its own from
    /// here on, which others let in when the one before does not answer.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn renew_keys(&mut self, was_restored: bool) -> io::Result<()> {
        self.was_restored = true;
        let (mut seed, mut life) = (Secret([0; 32]), LifeId::default());
        fill_random(&mut seed.0)?;
        fill_random(&mut life.0)?;
        let life = was_restored.then_some(life);
        self.restored_as = life.or(self.restored_as);
        if let Some(card) = &mut self.card {
            card.outbox.push(ToCard::RenewKeys { seed, life: self.restored_as });
        }
        self.tell_card();
        Ok(())
    }

    /// Captures frames until the reader is dropped, also those of the next card. `None`: there are too many captures.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn capture(&mut self, wish: capture::Wish) -> io::Result<Option<capture::Reader>> {
        let Some((place, reader)) = self.captures.begin(wish)? else { return Ok(None) };
        // A card that is not there is followed by one that is told of all captures.
        if let Some(card) = &mut self.card {
            card.outbox.push(ToCard::Capture { place, wish });
        }
        self.tell_card();
        Ok(Some(reader))
    }

    /// The state of the data plane.
    pub fn view(&self) -> View<'_> {
        let cards = (*self.core.record(), self.standby.pid());
        View::new(&self.mapping, &self.spec, cards, self.neighbours.sharing().collect())
    }

    /// Makes the memory large enough for what the ledger is to have, with the loans that are to come to these places
    /// and so many drives, also while a card lives: that one goes on with what it has mapped.
    ///
    /// # Errors
    /// There is no room, or the ledger is corrupt: nothing has changed.
    fn reserve(&mut self, coming: &[(usize, LoanSpec)], drives: usize) -> io::Result<()> {
        let places: Vec<usize> = coming.iter().map(|(place, _)| *place).collect();
        let kinds = coming.iter().filter_map(|(_, loan)| loan.config.role.reserved_kind());
        self.grow_to(self.memory_for(&places, kinds, drives)?)
    }

    fn grow_to(&mut self, bytes: usize) -> io::Result<()> {
        if bytes > self.mapping.len() {
            self.mapping = memory::grow(self.memory.as_fd(), bytes)?;
        }
        Ok(())
    }

    /// Bytes of memory that are needed when loans of these kinds have come to these places.
    fn memory_for(
        &self,
        places: &[usize],
        coming: impl Iterator<Item = LoanKind>,
        drives: usize,
    ) -> io::Result<usize> {
        let ledger = view::ledger(&self.mapping);
        let present = self.spec.loans.iter().enumerate().filter(|(place, _)| !places.contains(place));
        let present = present.filter_map(|(_, loan)| loan.config.role.reserved_kind());
        // The card keeps what a loan had that is over until it hears of another one in that place: clients may still
        // be connected.
        let is_over = |place: usize, life| match self.spec.loans.get(place) {
            Some(loan) if loan.config.life == life => loan.config.role.reserved_kind().is_none(),
            _ => true,
        };
        let known = ledger.loans();
        let kept = known.borrowed().filter(|(place, life, _)| is_over(*place, *life)).map(|(.., kind)| kind);
        // What is leaving has its memory until it has left.
        let leaving = self.leaving.iter().flat_map(|leaving| leaving.loans.iter().map(|_| LoanKind::Lend));
        let kinds = present.chain(coming).chain(leaving).chain(kept);
        ledger_end(kinds, drives, Some(ledger), self.spec.ledger)
    }

    fn shared(&self) -> &SharedCells {
        // SAFETY: inside of the mapping; everything is atomic but `ring`, which is written while no card is there.
        unsafe { &*self.mapping.at::<SharedCells>(0) }
    }

    /// Before a card is there: puts down for it what the ring is known by.
    fn tell_of_ring(&mut self) {
        if let Some(ring) = &self.ring {
            // SAFETY: the cell lies inside of the mapping, and no card exists.
            unsafe { (*self.mapping.at::<SharedCells>(0)).ring = ring.parameters() };
        }
    }

    /// The first disk may have come to a node that had none when it was started. Without a ring it is served all the
    /// same.
    fn have_ring(&mut self) {
        if self.ring.is_some() || self.is_ring_refused {
            return;
        }
        match make_ring(&self.spec) {
            Ok(ring) => self.ring = ring,
            Err(RingError::Unavailable(error) | RingError::System(error)) => {
                Event::RingUnavailable { error: error.to_string() }.say();
                self.is_ring_refused = true;
            }
        }
        self.tell_of_ring();
    }

    fn take_messages(&mut self, events: &mut Vec<AgentEvent>) {
        while let Some(message) = self.next_message() {
            match message {
                ToAgent::Loan(LoanId { place, life }, what) if is_present(&self.spec.loans, place, life) => {
                    self.hear_of_loan(place, what, events);
                }
                ToAgent::Loan(LoanId { place, life }, _) => self.core.handle_stale(place, life),
                ToAgent::Drive(drive, what) => match what {
                    FromDrive::Withdrawn => self.conclude_one(drive),
                    FromDrive::MediaFault => events.push(AgentEvent::MediaFault(drive)),
                    FromDrive::Persist { version, record: Hex(bytes) } => {
                        events.push(AgentEvent::Persist { drive, version, bytes });
                    }
                    FromDrive::Medium(trouble) => events.extend(self.note_medium(drive, trouble)),
                },
                ToAgent::Peer(peer, what) => match what {
                    FromPeer::Joined { node, incarnation } => {
                        let context = context(&self.spec, &self.waiter, &self.mapping);
                        self.neighbours.join(peer, (node, incarnation.0), context);
                    }
                    FromPeer::Left => self.neighbours.leave(peer),
                    FromPeer::Invalid => self.neighbours.lose(peer),
                },
                ToAgent::Running { reach } => {
                    self.core.handle_running(crate::card::now());
                    self.standby.note_served();
                    if let Some(card) = &mut self.card {
                        card.memory_bytes = card.memory_bytes.max(reach);
                    }
                    // The card before may have died before it said who has left.
                    self.neighbours.compare(context(&self.spec, &self.waiter, &self.mapping));
                }
                ToAgent::Located(holder) => self.note_holder(holder),
                ToAgent::Unparked { number } => self.slots.unpark(number),
                // Who does not take them in time hears them again.
                ToAgent::Heard(rail, Hex(frame)) if self.heard.len() < HEARD_MAX => {
                    self.heard.push((rail, frame));
                }
                ToAgent::Heard(..) => {}
                ToAgent::Notice(notice) if self.notices.len() < NOTICES_MAX => self.notices.push(notice),
                ToAgent::Notice(_) => {}
                ToAgent::Doubted(notice) => self.note_doubt(notice),
            }
        }
        self.tell_card();
    }

    /// What the card says of the loan that has this place.
    fn hear_of_loan(&mut self, loan: usize, what: FromLoan, events: &mut Vec<AgentEvent>) {
        // A drive that was withdrawn meanwhile has nobody any more, and a vacant place nothing to give back.
        let is_vacant = self.spec.loans[loan].is_vacant();
        match what {
            FromLoan::Ready => {
                if let Err(error) = self.slots.open(&self.spec.loans, loan, &self.waiter) {
                    let function = self.spec.loans[loan].function.clone();
                    Event::SlotUnwatched { function, error: error.to_string() }.say();
                }
                // A slot that nothing is in yet may have its machine already, but nothing that can be used.
                events.extend((!is_vacant).then_some(AgentEvent::Ready(loan)));
            }
            FromLoan::Tenant(_) | FromLoan::GivenBack { .. } | FromLoan::Applied(_) if is_vacant => {}
            FromLoan::Applied(applied) => events.extend(self.entries.note(loan, applied)),
            FromLoan::Tenant(tenancy) => {
                events.push(AgentEvent::Tenant { loan, tenancy });
                self.core.handle_tenant(crate::card::now(), loan, tenancy);
            }
            FromLoan::GivenBack { has_lost } => {
                self.core.handle_given_back(loan);
                self.follow();
                events.push(AgentEvent::GivenBack { loan, has_lost });
            }
            FromLoan::Overtaken => events.push(AgentEvent::Overtaken(loan)),
            FromLoan::LoadEnded(result) => events.push(AgentEvent::LoadEnded(loan, result)),
            FromLoan::Refused(refusal) => {
                if let Refusal::Outdated { seen } = &refusal {
                    self.core.handle_outdated(crate::card::now(), loan, seen.0);
                }
                events.push(AgentEvent::Refused { loan, refusal });
            }
            FromLoan::Disconnected { slot } => self.clients.disconnected(loan, slot),
            FromLoan::Unusable { why } => events.push(AgentEvent::Unusable { loan, why }),
            FromLoan::Slot(what) => self.serve_slot(loan, what),
        }
    }

    /// The next message of the card, if there is any. One that is going says nothing more, and its pidfd the rest; one
    /// that cannot be understood is replaced.
    fn next_message(&mut self) -> Option<ToAgent> {
        let card = self.card.as_mut()?;
        match messages::receive(&card.messages) {
            Ok(message) => message.map(|(message, _)| message),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Event::CardUnintelligible { error: error.to_string() }.say();
                // Whoever cannot be killed is dead.
                let _ = card.child.kill();
                None
            }
            Err(_) => None,
        }
    }

    fn accept(&mut self, loan: usize) {
        let mut looks = ACCEPTS_A_TURN;
        loop {
            let (slot, socket) = match self.clients.accept(&self.spec.loans, loan, &mut looks) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return,
                Err(error) => return self.stop_accepting(&error),
            };
            // Nobody serves the slot, so its account may begin anew.
            let accounts = &self.shared().edges[loan][slot];
            accounts.received.reset();
            accounts.sent.reset();
            self.clients.keep(loan, slot, socket);
            // A card that is not there is followed by one that is given all connections.
            self.tell_of(loan, ToLoan::Connection { slot });
        }
    }

    /// Clients wait in the queues of their sockets, which would stay readable all the time.
    fn stop_accepting(&mut self, error: &io::Error) {
        self.crowded.say(|others| {
            Event::ClientsWaiting { error: error.to_string(), again_in_s: seconds(ACCEPT_PAUSE), others }
                .say();
        });
        clients::ignore(&self.spec.loans, &self.waiter);
        self.slots.ignore(&self.spec.loans, &self.waiter);
        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        clients::stop_listening(&mut self.spec.loans);
        self.tell_card();
        match self.card.take_if(|_| self.core.record().running && self.slots.has_clients()) {
            // It answers them until they are gone: the end of its messages tells it to.
            Some(card) => {
                self.slots.hang_up_waiting();
                card.child.leave();
            }
            // Before the card ends, which would close them as they are.
            None => self.slots.hang_up_all(),
        }
    }
}

/// Whether a place has the loan of this life.
fn is_present(loans: &[LoanSpec], place: usize, life: u64) -> bool {
    loans.get(place).is_some_and(|loan| loan.config.life == life)
}

/// Hears of it when the machine is restored from a snapshot, where that is permitted.
fn watch_vm_generation(waiter: &Waiter) -> VmGeneration {
    let listening = VmGeneration::listen();
    for (what, error) in listening.deaf() {
        debug!("that a snapshot of this machine is restored is not heard from the kernel's {what}: {error}");
    }
    if let Some(error) = listening.unheard() {
        Event::RestorationUnheard { error: error.to_string() }.say();
    }
    for fd in listening.fds() {
        if let Err(error) = waiter.register(fd, token::VM_GENERATION, Interest::READ) {
            debug!("keys may not be renewed when a snapshot of this machine is restored: {error}");
        }
    }
    listening
}

/// Hears of interfaces that come up and go down, where that is permitted.
fn watch_carriers(waiter: &Waiter, rails: &[Rail]) -> Carriers {
    let mut carriers = Carriers::listen();
    if let Some(socket) = carriers.as_fd()
        && let Err(error) = waiter.register(socket, token::CARRIERS, Interest::READ)
    {
        debug!("a carrier that is lost is not known at once: {error}");
    }
    carriers.look(rails);
    carriers
}

fn context<'a>(spec: &'a NodeSpec, waiter: &'a Waiter, mapping: &'a Mapping) -> Context<'a> {
    Context { spec, waiter, mapping }
}

/// Bytes of shared memory that a node needs for such loans with what its ledger has now, if there is one.
///
/// # Errors
/// That one is corrupt.
fn ledger_end(
    kinds: impl IntoIterator<Item = LoanKind>,
    drives: usize,
    before: Option<NodeLedger<'_>>,
    limit: Option<u64>,
) -> io::Result<usize> {
    let bytes = node::ledger_bytes(before, kinds, drives).map_err(io::Error::other)?;
    if let Some(limit) = limit.filter(|limit| bytes as u64 > *limit) {
        let [takes, has] = [bytes as u64, limit].map(|bytes| bytes.div_ceil(1 << 20));
        let what =
            format!("the node's ledger would take {takes} MiB, and `ledger` allows {has} MiB: raise that");
        return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
    }
    Ok(LEDGER_OFFSET + bytes)
}

/// What there is room for in the ledger of a new node.
fn kinds_of(spec: &NodeSpec) -> impl Iterator<Item = LoanKind> {
    spec.loans.iter().filter_map(|loan| loan.config.role.reserved_kind())
}

fn medium_of(image: &Image, has_ring: bool) -> MediumKind {
    match (image.info().memory_backed, has_ring) {
        (true, _) => MediumKind::Inline,
        (false, true) => MediumKind::Ring,
        (false, false) => MediumKind::Threads,
    }
}

/// Whether any image is not in memory.
fn has_disks(spec: &NodeSpec) -> bool {
    spec.drives().any(|(_, drive)| !drive.image.info().memory_backed)
}

/// The ring for the disks among the images; none where there is none and none will come.
fn make_ring(spec: &NodeSpec) -> Result<Option<Ring>, RingError> {
    if !has_disks(spec) && !spec.drives_may_come {
        return Ok(None);
    }
    Ring::create(RING_ENTRIES).map(Some)
}

fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_is_as_large_as_its_loans_need_and_no_larger_than_the_node_allows() {
        let end = |loans: usize, limit| ledger_end((0..loans).map(|_| LoanKind::Drive), 0, None, limit);
        let [none, one, two] = [0, 1, 2].map(|loans| (end(loans, None).unwrap() - LEDGER_OFFSET) as u64);
        assert!(none < one && one < two);
        assert_eq!(end(1, Some(one)).unwrap(), end(1, None).unwrap());
        let refused = end(2, Some(two - 1)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::OutOfMemory);
        assert!(refused.to_string().contains("allows"), "{refused}");
    }
}
