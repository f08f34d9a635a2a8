//! The card: one thread that moves data, in a process that may be killed at any moment.
//!
//! It owns no state that matters. It maps the ledger, takes over the descriptors that the agent keeps, and drives
//! [`node::Card`]: whatever is ready is handed in, each verb commits, and what is polled afterwards leaves.

mod bytes;
mod edges;
pub(crate) mod flash;
mod flushes;
mod heard;
mod input;
mod load;
pub(crate) mod media;
mod orphan;
mod parked;
mod rails;
mod shm;
mod slots;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use base::Instant;
use base::ids::RailId;
use base::ledger::RawMemory;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use node::{Card, CardEvent, LoanConfig, Members, Persist};

pub(crate) use self::media::lost_by;
pub(crate) use self::parked::InHand;

use self::edges::Edges;
use self::load::Load;
use self::media::Media;
use self::rails::Rails;
use self::shm::{Beside, ShmPaths};
use self::slots::{Context, Slots};
use crate::capture::Captures;
use crate::memory::Mapping;
use crate::messages::{
    self, FromDrive, FromLoan, FromPeer, Hex, LoanId, TakeOver, ToAgent, ToCard, ToDrive, ToLoan, ToPeer,
    ToRail, ToSlot,
};
use crate::outbox::{Enclosure, Outbox};
use crate::plan::{self, Allowed, DriveComing, LEDGER_OFFSET, Plan, REACH, descriptor, parts_of};
use crate::process::{die_with_parent, inherited, outlive_parent};
use crate::pulse::Pulse;
use crate::shm::{Shared, Side};
use crate::time_slice;
use crate::wait::{Hint, Interest, SpinTimes, Turn, Waiter};

/// How long the card goes without asking epoll while it is awake. What it hears from often it reads directly;
/// everything else may wait so long.
const POLL_EVERY: Duration = Duration::from_micros(20);
/// A socket that moved something so recently is read without asking whether it can be.
const HOT: Duration = Duration::from_millis(1);

/// What epoll reports, by kind: the rest of the token is an index.
mod token {
    pub(super) const MESSAGES: u64 = 0;
    pub(super) const RING: u64 = 1;
    pub(super) const THREADS: u64 = 2;
    pub(super) const RAIL: u64 = 1 << 32;
    pub(super) const EDGE: u64 = 2 << 32;
    pub(super) const SHM: u64 = 3 << 32;
    pub(super) const SLOT: u64 = 4 << 32;
    pub(super) const PARKED: u64 = 5 << 32;
}

/// After what time a card has met its peers, and how long it sleeps where nothing is asked of it.
const SETTLED: Duration = Duration::from_secs(2);
const LONG_SLEEP: Duration = Duration::from_millis(20);

/// Runs a card in this process until the agent or a signal ends it. The descriptors of [`crate::plan`] are inherited.
///
/// # Errors
/// What kept it from starting, or made it stop; the agent starts another one.
pub fn run() -> io::Result<()> {
    crate::harden();
    // SAFETY: the agent has given exactly these descriptors at these numbers, and nothing else in this new process owns
    // them.
    let (memory, plan, to_agent) = unsafe {
        (inherited(descriptor::MEMORY)?, inherited(descriptor::PLAN)?, inherited(descriptor::MESSAGES)?)
    };
    let mut plan = Plan::take(plan)?;
    die_with_parent(plan.agent_pid)?;
    let mut mapping = Mapping::growing(memory.as_fd(), REACH)?;
    if !has_news(&to_agent)? {
        // Nobody needs it yet. The pages of the ledger are found beforehand, or else when they are used.
        mapping.find_present(memory.as_fd());
    }
    let order = wait_for_order(&to_agent)?;
    let given = receive_given(&to_agent, plan.rails.len() + plan.media.len())?;
    let renews_keys = order.renews_keys;
    plan.take_over(order);
    // A virtual machine may die of a connection that is cut off, so who serves some ends in order: see `orphan`.
    if plan.slots().next().is_some() {
        outlive_parent()?;
    }
    if rustix::fs::fstat(&memory)?.st_size.cast_unsigned() != mapping.len() as u64 {
        mapping = Mapping::growing(memory.as_fd(), REACH)?;
    }
    let driver = Driver::new(&plan, renews_keys, given, (memory, &mapping), to_agent)?;
    // The keys are where they are used by now.
    drop(plan);
    // After the threads that need no haste were started; without it everything works, only slower.
    let _ = time_slice::ask_for_short();
    driver.run()
}

/// The present, on the monotonic clock, which goes on from one card to the next.
pub(crate) fn now() -> Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Drives a card in real time.
struct Driver<'m> {
    card: Card<'m>,
    memory: Memory<'m>,
    /// Of each place, the life of the loan that this card has there.
    lives: Vec<u64>,
    rails: Rails<'m>,
    shm: ShmPaths,
    edges: Edges<'m>,
    slots: Slots<'m>,
    pulse: &'m Pulse,
    media: Media<'m>,
    loads: Vec<Load>,
    captures: Captures,
    waiter: Waiter,
    messages: OwnedFd,
    to_agent: Outbox<ToAgent>,
    now: Instant,
    /// When epoll is to be asked next, however busy the card is.
    poll_at: Instant,
    /// The waiter has events that it slept for.
    woken: bool,
    /// Of a card that has nothing to do: it need not find that out again in each turn while it spins.
    calm: Option<Calm>,
    /// When the code that was needed to start is given up, once the card has nothing to do.
    settles_at: Option<Instant>,
}

/// What a card that has nothing to do knows.
#[derive(Clone, Copy)]
struct Calm {
    /// When that ends if nothing comes in.
    until: Option<Instant>,
    /// Whether it awaits something.
    hint: Hint,
}

impl<'m> Driver<'m> {
    fn new(
        plan: &Plan,
        renews_keys: bool,
        given: Vec<OwnedFd>,
        (memory_fd, mapping): (OwnedFd, &'m Mapping),
        messages: OwnedFd,
    ) -> io::Result<Self> {
        // SAFETY: this is the only thread that touches the ledger, and the agent, which reaps a card before it starts
        // the next, only reads what it was promised that it may.
        let (memory, shared) = unsafe { parts_of(mapping) }?;
        let waiter = Waiter::new(SpinTimes::default())?;
        waiter.register(messages.as_fd(), token::MESSAGES, Interest::READ)?;
        let mut given = given.into_iter();
        let rails = Rails::take_over(plan, given.by_ref().take(plan.rails.len()), shared, &waiter)?;
        let mut media = Media::take_over(plan, given, shared, &waiter)?;
        let now = now();
        let slots = Slots::new(shared, plan.slots().collect(), plan.card.loans.len());
        if plan.slots().next().is_some() {
            learn_descriptors(&messages, &slots)?;
        }
        let mut card = Card::new(memory, None, plan.card.clone(), now).map_err(io::Error::other)?;
        card.set_members(now, plan.fabric.clone());
        if renews_keys {
            card.renew_keys(now, plan.card.seed.0, None);
        }
        card.set_guest_memory(slots.descriptors().clone());
        card.contain_faults();
        media.heed_predecessors(plan, &mut card, now);
        let loads = Load::of_plan(plan);
        let edges = Edges::new(shared, plan.card.loans.len());
        let lives: Vec<u64> = plan.card.loans.iter().map(|loan| loan.life).collect();
        let to_agent = Outbox::new(lives.clone());
        Ok(Self {
            card,
            memory: Memory { fd: memory_fd, ledger: memory, reach: mapping.reach() },
            lives,
            rails,
            shm: ShmPaths::new(),
            edges,
            slots,
            pulse: &shared.pulse,
            media,
            loads,
            captures: Captures::default(),
            waiter,
            messages,
            to_agent,
            now,
            poll_at: now,
            woken: false,
            calm: None,
            settles_at: Some(now + SETTLED),
        })
    }

    fn run(mut self) -> io::Result<()> {
        self.to_agent.push(ToAgent::Running { reach: self.memory.reach });
        loop {
            match self.cycle() {
                Ok(()) => {}
                // The other end of the messages is closed.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.slots.has_clients() => {
                    return self.outlive_agent();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes in what is ready, does what is due, lets out what follows, and rests if that was nothing.
    fn cycle(&mut self) -> io::Result<()> {
        self.pulse.turn();
        let mut busy = self.turn()?;
        if busy {
            self.now = now();
        } else if self.calm.is_some_and(|calm| calm.until.is_none_or(|until| self.now < until)) {
            return self.rest();
        }
        self.calm = None;
        busy |= self.media.drive(&mut self.card, self.now)?;
        busy |= self.drive_load();
        busy |= self.edges.send(&mut self.card, self.now, &self.waiter, &mut self.to_agent)?;
        busy |= self.with_slots(Slots::send)?;
        busy |= self.rails.send(&mut self.card, &mut self.shm, &mut self.captures, self.now)?;
        // Deadlines come behind what somebody waits for. What follows from them leaves in the next cycle.
        let is_due = busy && self.card.is_publishing_due(self.now);
        if is_due || self.card.poll_timeout().is_some_and(|deadline| deadline <= self.now) {
            self.card.handle_timeout(self.now);
            busy = true;
        }
        busy |= self.give_persist();
        self.report()?;
        if busy {
            self.waiter.busy();
            // Whoever always finds something to do must still see deadlines pass, and ask epoll.
            self.now = now();
            return Ok(());
        }
        self.calm = Some(self.calm());
        self.rest()
    }

    /// What holds while nothing comes in, now that there is nothing to do.
    fn calm(&self) -> Calm {
        let hint = if self.card.is_waiting() || self.media.is_busy() { Hint::Expecting } else { Hint::Idle };
        let (card, rails, media, slots) = (&self.card, &self.rails, &self.media, &self.slots);
        let deadlines =
            [card.poll_timeout(), rails.poll_timeout(), media.poll_timeout(), slots.poll_timeout()];
        let retries = [media.retry_after(), self.to_agent.retry_after()];
        let retries = retries.into_iter().flatten().map(|after| self.now + after);
        Calm { until: deadlines.into_iter().flatten().chain(retries).min(), hint }
    }

    fn with_slots<T>(&mut self, act: impl FnOnce(&mut Slots<'m>, Context<'_, 'm>) -> T) -> T {
        let (card, waiter, to_agent) = (&mut self.card, &self.waiter, &mut self.to_agent);
        act(&mut self.slots, Context { card, now: self.now, waiter, to_agent })
    }

    /// Takes in whatever is ready. True if anything was. What is likely to be is tried at once, since asking costs as
    /// much as trying; epoll is asked now and then for the rest.
    fn turn(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.woken) {
            let busy = self.receive_shm()? | self.take_ready()?;
            return Ok(busy | self.with_slots(Slots::receive)?);
        }
        let mut busy = self.receive_shm()?;
        busy |= self.rails.receive_hot(&mut self.card, &mut self.captures, self.now)?;
        busy |= self.edges.receive_hot(&mut self.card, self.now, &self.waiter, &mut self.to_agent)?;
        busy |= self.media.take_ring_results(&mut self.card, self.now)?;
        // Not before who was just heard has an answer, unless that goes on and on.
        let poll_at = if busy { self.poll_at + POLL_EVERY } else { self.poll_at };
        if poll_at <= self.now {
            self.waiter.poll()?;
            busy |= self.take_ready()?;
        }
        busy |= self.with_slots(Slots::receive)?;
        Ok(busy)
    }

    /// Takes in what the waiter has found. True if that was anything.
    fn take_ready(&mut self) -> io::Result<bool> {
        let mut ready = [None; crate::wait::MAX_READY];
        let mut count = 0;
        for event in self.waiter.ready() {
            ready[count] = Some(event);
            count += 1;
        }
        for event in ready.into_iter().flatten() {
            match event.token {
                token::MESSAGES => self.take_messages()?,
                token::RING => _ = self.media.take_ring_results(&mut self.card, self.now)?,
                token::THREADS => self.media.take_thread_results(&mut self.card, self.now)?,
                what if what >= token::SLOT => self.slots.note(event),
                what if what >= token::SHM => {
                    let peer = (what - token::SHM) as usize;
                    self.with_shm(|shm, mut beside| shm.hear(peer, &mut beside))?;
                }
                what if what >= token::EDGE => {
                    let key = (what - token::EDGE) as usize;
                    let (card, waiter, to_agent) = (&mut self.card, &self.waiter, &mut self.to_agent);
                    if event.hangup {
                        self.edges.hang_up(key, card, self.now, waiter, to_agent)?;
                    } else {
                        self.edges.receive(key, card, self.now, waiter, to_agent)?;
                    }
                }
                what => {
                    let rail = (what - token::RAIL) as usize;
                    self.rails.receive(rail, &mut self.card, &mut self.captures, self.now)?;
                }
            }
        }
        self.poll_at = self.now + POLL_EVERY;
        Ok(count > 0)
    }

    fn receive_shm(&mut self) -> io::Result<bool> {
        self.with_shm(|shm, mut beside| shm.receive(&mut beside))
    }

    fn with_shm<T>(&mut self, act: impl FnOnce(&mut ShmPaths, Beside<'_, 'm>) -> T) -> T {
        let (card, waiter, to_agent) = (&mut self.card, &self.waiter, &mut self.to_agent);
        let captures = &mut self.captures;
        act(&mut self.shm, Beside { card, now: self.now, waiter, to_agent, captures })
    }

    /// Ends and begins requests of loads. True if there were any.
    fn drive_load(&mut self) -> bool {
        let mut busy = false;
        for load in &mut self.loads {
            busy |= load.drive(&mut self.card, self.now);
            if let Some((loan, result)) = load.take_result() {
                self.to_agent.push_of(loan, FromLoan::LoadEnded(result));
            }
        }
        busy
    }

    /// A place has another loan, unless it had that when the card began.
    fn attach(&mut self, loan: usize, config: LoanConfig) -> io::Result<()> {
        if self.has(loan, config.life) {
            return Ok(());
        }
        self.make_room([(loan, &config)])?;
        self.card.attach(self.now, loan, config).map_err(io::Error::other)
    }

    /// A drive is lent from now on, unless it was when the card began.
    fn lend(&mut self, drive: usize, image: OwnedFd, paper: OwnedFd) -> io::Result<()> {
        let (_, DriveComing { config, medium, loans, holders }) = plan::take(paper)?;
        config.check().map_err(io::Error::other)?;
        if loans.iter().any(|(place, loan)| self.has(*place, loan.life)) {
            return Ok(());
        }
        self.make_room(loans.iter().map(|(place, loan)| (*place, loan)))?;
        let places: Vec<usize> = loans.iter().map(|(place, _)| *place).collect();
        self.media.come(drive, (&config, &medium), image, &places, &self.waiter)?;
        self.card.lend(self.now, drive, config, loans, &holders).map_err(io::Error::other)?;
        self.card.clear_fault(self.now, drive, medium.cleared);
        if medium.has_lost {
            self.card.note_fault(self.now, drive);
        }
        Ok(())
    }

    /// Whether a place has this loan or a later one.
    fn has(&self, loan: usize, life: u64) -> bool {
        self.lives.get(loan).is_some_and(|known| *known >= life)
    }

    /// These places have these loans from now on.
    fn make_room<'a>(&mut self, loans: impl IntoIterator<Item = (usize, &'a LoanConfig)>) -> io::Result<()> {
        // What the card has said of the loans before is of those.
        self.report()?;
        for (loan, config) in loans {
            // Nobody has told of places that are vacant.
            while self.lives.len() <= loan {
                self.lives.push(0);
                self.slots.append_place();
                self.edges.append_place();
                self.media.append_place();
            }
            if config.role.is_slot() {
                // A virtual machine may die of a connection that is cut off.
                outlive_parent()?;
            }
            self.slots.renew(loan, config.role.is_slot());
            self.lives[loan] = config.life;
            self.to_agent.renew(loan, config.life);
        }
        self.card.grow_ledger(self.memory.present()?);
        Ok(())
    }

    /// All that there are. What follows one that takes its time, and others would wait for it, comes in the next turn.
    fn take_messages(&mut self) -> io::Result<()> {
        while let Some((message, enclosed)) = messages::receive::<ToCard>(&self.messages)? {
            let mut enclosed = enclosed.into_iter();
            let takes_time =
                matches!(message, ToCard::Loan(_, ToLoan::Attach(_)) | ToCard::Drive(_, ToDrive::Lend));
            match message {
                ToCard::Loan(loan, what) => self.hear_of_loan(loan, what, enclosed)?,
                ToCard::Drive(drive, what) => self.hear_of_drive(drive, what, enclosed)?,
                ToCard::Peer(peer, what) => self.hear_of_peer(peer, what, enclosed)?,
                ToCard::Rail(rail, what) => self.hear_of_rail(rail, what, enclosed)?,
                ToCard::Carriers(lost) => self.card.set_lost_carriers(self.now, lost),
                ToCard::Heard(node, at) => self.card.hear_of(node, at),
                ToCard::Member(node, rails) => self.card.set_member(node, rails),
                ToCard::Fabric => {
                    if let Some(paper) = enclosed.next() {
                        // Told twice at once, it was read and wiped by the first.
                        if let Ok((_, members)) = plan::take::<Members>(paper) {
                            self.card.set_members(self.now, Some(members));
                        }
                    }
                }
                ToCard::Notice(notice) => self.card.heed_member(self.now, notice),
                ToCard::RenewKeys { seed, life } => self.card.renew_keys(self.now, seed.0, life),
                ToCard::ShutDown => {
                    self.slots.shut_down(&mut self.card, self.now);
                    self.card.shut_down(self.now);
                }
                // Of those who have begun nobody waits for them.
                ToCard::TakeOver(_) | ToCard::Given | ToCard::Begin => {}
                ToCard::Parked { .. } => {
                    if let Some(socket) = enclosed.next() {
                        self.with_slots(|slots, context| slots.keep_parked(socket, &context))?;
                    }
                }
                ToCard::AllParked => self.slots.all_parked(),
                ToCard::Capture { place, wish } => {
                    // Without room for the descriptor or the memory nothing is captured, and nothing else is worse.
                    if let Some(memory) = enclosed.next() {
                        let _ = self.captures.begin(place, wish, memory);
                    }
                }
            }
            if takes_time {
                break;
            }
        }
        Ok(())
    }

    fn hear_of_loan(
        &mut self,
        LoanId { place: loan, life }: LoanId,
        what: ToLoan,
        mut enclosed: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<()> {
        let is_coming = matches!(what, ToLoan::Attach(_));
        // Of a loan that has come since: the next card is told everything of it.
        if !is_coming && self.lives.get(loan) != Some(&life) {
            return Ok(());
        }
        match what {
            ToLoan::Attach(config) => self.attach(loan, *config)?,
            ToLoan::Connection { slot } => {
                let (card, waiter) = (&mut self.card, &self.waiter);
                if let Some(socket) = enclosed.next() {
                    self.edges.attach(loan, slot, socket, card, self.now, waiter, &mut self.to_agent)?;
                }
            }
            ToLoan::Limit(limit) => self.card.set_limit(self.now, loan, limit),
            ToLoan::Tenancy(tenancy) => self.card.set_tenancy(self.now, loan, tenancy),
            ToLoan::Entry(entry) => self.card.set_entry(self.now, loan, entry),
            ToLoan::Incarnation(incarnation) => self.card.raise_incarnation(self.now, loan, incarnation),
            ToLoan::GiveBack => {
                self.slots.end(loan, &mut self.card, self.now);
                self.card.give_back(self.now, loan);
            }
            ToLoan::Forget => {
                self.slots.end(loan, &mut self.card, self.now);
                self.card.forget(self.now, loan);
            }
            ToLoan::Present(is_present) => {
                self.card.slot_set_present(self.now, loan, is_present);
                if !is_present {
                    self.card.edge_leave(self.now, loan);
                }
            }
            ToLoan::Slot(what) => self.hear_of_slot(loan, what, enclosed)?,
        }
        Ok(())
    }

    fn hear_of_slot(
        &mut self,
        loan: usize,
        what: ToSlot,
        mut enclosed: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<()> {
        match what {
            ToSlot::Client => {
                if let Some(socket) = enclosed.next() {
                    self.with_slots(|slots, context| slots.attach(loan, socket, context))?;
                }
            }
            ToSlot::Park => self.with_slots(|slots, mut context| slots.part(loan, &mut context)),
            ToSlot::Descriptors { ids } => self.slots.learn(loan, &ids, enclosed),
            ToSlot::Taken { number, bytes, ids } => {
                self.with_slots(|slots, context| slots.take(loan, number, &bytes.0, &ids, context));
            }
            ToSlot::Lost => self.with_slots(|slots, mut context| slots.close(loan, &mut context))?,
            ToSlot::Closed { ids } => self.slots.closed(loan, &ids, &mut self.card, self.now),
        }
        Ok(())
    }

    fn hear_of_drive(
        &mut self,
        drive: usize,
        what: ToDrive,
        mut enclosed: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<()> {
        // The next card has room for the descriptors, or the one after it.
        let missing = || io::Error::other("there is no room for descriptors");
        match what {
            ToDrive::Lend => {
                let image = enclosed.next().ok_or_else(missing)?;
                self.lend(drive, image, enclosed.next().ok_or_else(missing)?)?;
            }
            ToDrive::Allow => {
                let (_, allowed) = plan::take::<Allowed>(enclosed.next().ok_or_else(missing)?)?;
                self.card.set_allowed(self.now, drive, allowed.as_deref());
            }
            ToDrive::Withdraw => self.card.withdraw(self.now, drive),
            ToDrive::Grow { blocks } => {
                self.media.grow(drive, blocks);
                self.card.grow(self.now, drive, blocks);
            }
            ToDrive::Cut { bytes } => self.media.cut(drive, bytes),
            ToDrive::ClearFault { order } => self.card.clear_fault(self.now, drive, order),
            ToDrive::Fault => self.card.note_fault(self.now, drive),
            ToDrive::Persisted { version, kept } => {
                self.card.handle_persisted(self.now, drive, version, kept);
            }
        }
        Ok(())
    }

    fn hear_of_peer(
        &mut self,
        peer: usize,
        what: ToPeer,
        mut enclosed: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<()> {
        match what {
            ToPeer::Shared { node, calls } => {
                let side = if calls { Side::Caller } else { Side::Called };
                let Some((memory, bell)) = enclosed.next().zip(enclosed.next()) else {
                    // There was no room for the descriptors.
                    self.to_agent.push(ToAgent::Peer(peer, FromPeer::Invalid));
                    return Ok(());
                };
                let (whom, shared) = ((peer, node), Shared { memory, bell });
                self.with_shm(|shm, mut beside| shm.attach(whom, side, shared, &mut beside))
            }
            ToPeer::Parted => self.with_shm(|shm, mut beside| shm.detach(peer, &mut beside)),
        }
    }

    fn hear_of_rail(
        &mut self,
        rail: RailId,
        what: ToRail,
        mut enclosed: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<()> {
        match what {
            ToRail::Come { config, plan } => {
                // The next card has room for the descriptor, or the one after it.
                let no_room = || io::Error::other("there is no room for descriptors");
                let socket = enclosed.next().ok_or_else(no_room)?;
                self.rails.add(rail, config, plan, socket, &self.waiter)?;
            }
            ToRail::Go => self.rails.remove(rail, &self.waiter),
        }
        self.card.set_rails(self.now, self.rails.configs()).map_err(io::Error::other)
    }

    /// Gives the agent what it is to keep of drives. True if there was any.
    fn give_persist(&mut self) -> bool {
        let Some((drive, Persist { version, bytes })) = self.card.poll_persist() else { return false };
        self.to_agent.push(ToAgent::Drive(drive, FromDrive::Persist { version, record: Hex(bytes) }));
        true
    }

    fn report(&mut self) -> io::Result<()> {
        while let Some(event) = self.card.poll_event() {
            let of = |loan, what| self.to_agent.of(loan, what);
            let message = match event {
                CardEvent::Ready(loan) => of(loan, FromLoan::Ready),
                CardEvent::Tenant(loan, tenancy) => of(loan, FromLoan::Tenant(tenancy)),
                CardEvent::Applied(loan, applied) => of(loan, FromLoan::Applied(applied)),
                CardEvent::Overtaken(loan) => of(loan, FromLoan::Overtaken),
                CardEvent::Closed { loan, has_lost } => of(loan, FromLoan::GivenBack { has_lost }),
                CardEvent::Unusable(loan, error) => of(loan, FromLoan::Unusable { why: error.to_string() }),
                CardEvent::Refused(loan, refusal) => of(loan, FromLoan::Refused(refusal)),
                CardEvent::Joined(peer, node, incarnation) => {
                    self.with_shm(|shm, mut beside| shm.renew(peer, Some(node), &mut beside))?;
                    ToAgent::Peer(peer, FromPeer::Joined { node, incarnation })
                }
                CardEvent::Left(peer) => {
                    self.with_shm(|shm, mut beside| shm.renew(peer, None, &mut beside))?;
                    ToAgent::Peer(peer, FromPeer::Left)
                }
                CardEvent::Notice(notice) => ToAgent::Notice(notice),
                CardEvent::Doubted(notice) => ToAgent::Doubted(notice),
                // The agent cares for nodes, not for streams.
                CardEvent::Met(..) => continue,
                CardEvent::Located(holder) => ToAgent::Located(holder),
                CardEvent::Withdrawn(drive) => {
                    self.media.go(drive);
                    ToAgent::Drive(drive, FromDrive::Withdrawn)
                }
                CardEvent::MediaFault(drive) => ToAgent::Drive(drive, FromDrive::MediaFault),
            };
            self.to_agent.push(message);
        }
        while let Some(message) = self.media.take_trouble() {
            self.to_agent.push(message);
        }
        if self.to_agent.is_due() {
            self.to_agent.flush(self.messages.as_fd(), |_| Enclosure::None);
        }
        // What the agent cares for more does not wait for these.
        while self.to_agent.is_empty() {
            let Some((rail, frame)) = self.rails.heard().next() else { break };
            self.to_agent.push(ToAgent::Heard(rail, Hex(frame)));
            self.to_agent.flush(self.messages.as_fd(), |_| Enclosure::None);
        }
        Ok(())
    }

    fn rest(&mut self) -> io::Result<()> {
        let Calm { until, hint } = self.calm.unwrap_or_else(|| self.calm());
        let (shm, pulse, now_before) = (&self.shm, self.pulse, self.now);
        let turn = self.waiter.idle(now_before, hint, || {
            let time = until.map(|until| sleep_time(until.since(now_before)));
            let time = if shm.prepare_sleep() { time } else { Some(Duration::ZERO) };
            if time != Some(Duration::ZERO) {
                pulse.sleep(now_before, time);
            }
            time
        })?;
        if turn != Turn::Spun {
            pulse.wake();
        }
        shm.wake();
        self.woken = turn != Turn::Spun;
        self.now = now();
        self.settle(now_before);
        Ok(())
    }

    /// A card that has slept since `asleep_since` has time to give up what it needed only to start.
    fn settle(&mut self, asleep_since: Instant) {
        let is_due = self.settles_at.is_some_and(|at| at <= self.now);
        if is_due && self.now.since(asleep_since) >= LONG_SLEEP {
            self.settles_at = None;
            // Only a matter of memory: without it the card works as well.
            let _ = crate::code::give_up_unused();
        }
    }
}

/// The memory of the ledger, which the agent makes larger before it tells of what needs that.
struct Memory<'m> {
    fd: OwnedFd,
    ledger: RawMemory<'m>,
    /// Bytes of the whole that show where it is mapped as soon as they are there.
    reach: usize,
}

impl<'m> Memory<'m> {
    /// The ledger, as large as it is by now.
    fn present(&mut self) -> io::Result<RawMemory<'m>> {
        let bytes = rustix::fs::fstat(&self.fd)?.st_size.cast_unsigned() as usize;
        // SAFETY: the memory has so many bytes, and never becomes smaller.
        self.ledger = unsafe { self.ledger.grown(bytes.saturating_sub(LEDGER_OFFSET)) };
        Ok(self.ledger)
    }
}

/// Waits for the word that this is the card of its node.
fn wait_for_order(messages: &OwnedFd) -> io::Result<TakeOver> {
    match next_message(messages)? {
        (ToCard::TakeOver(order), _) => Ok(order),
        _ => Err(io::Error::other("the agent has told something else before who takes over")),
    }
}

/// Waits for the rails and images of the plan, which are so many.
fn receive_given(messages: &OwnedFd, count: usize) -> io::Result<Vec<OwnedFd>> {
    let mut given = Vec::with_capacity(count);
    while given.len() < count {
        match next_message(messages)? {
            (ToCard::Given, some) if !some.is_empty() => given.extend(some),
            (ToCard::Given, _) => return Err(io::Error::other("there is no room for descriptors")),
            _ => {
                return Err(io::Error::other(
                    "the agent has told something else before all rails and images",
                ));
            }
        }
    }
    Ok(given)
}

/// Waits for all descriptors that the agent keeps for slots: what the card does first may need them.
fn learn_descriptors(messages: &OwnedFd, slots: &Slots<'_>) -> io::Result<()> {
    loop {
        match next_message(messages)? {
            (ToCard::Begin, _) => return Ok(()),
            (ToCard::Loan(loan, ToLoan::Slot(ToSlot::Descriptors { ids })), enclosed) => {
                slots.learn(loan.place, &ids, enclosed.into_iter());
            }
            // They come first.
            _ => {
                return Err(io::Error::other("the agent has told something else before the descriptors"));
            }
        }
    }
}

/// Waits for the next message.
fn next_message(messages: &OwnedFd) -> io::Result<(ToCard, Vec<OwnedFd>)> {
    loop {
        if let Some(message) = messages::receive(messages)? {
            return Ok(message);
        }
        has_news_within(messages, None)?;
    }
}

/// Whether the agent has said something, or has gone.
fn has_news(messages: &OwnedFd) -> io::Result<bool> {
    has_news_within(messages, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
}

/// The same, waited for so long.
fn has_news_within(messages: &OwnedFd, time: Option<&Timespec>) -> io::Result<bool> {
    let mut watched = [PollFd::from_borrowed_fd(messages.as_fd(), PollFlags::IN)];
    match rustix::event::poll(&mut watched, time) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// How long to sleep where there is so much time: what is nearer than a sleep costs is waited for awake.
fn sleep_time(left: Duration) -> Duration {
    if left < Duration::from_micros(20) { Duration::ZERO } else { left }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_time_is_waited_for_awake() {
        assert_eq!(sleep_time(Duration::from_micros(19)), Duration::ZERO);
        assert_eq!(sleep_time(Duration::from_micros(20)), Duration::from_micros(20));
    }
}
