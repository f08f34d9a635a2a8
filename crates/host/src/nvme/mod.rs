//! A native NVMe driver: block requests in, register accesses and queue memory out.
//!
//! One pair of I/O queues. Submissions are posted writes into the controller memory buffer where there is one, so that
//! a command and its doorbell travel together and the controller fetches nothing; without one they lie in the driver's
//! queue memory. Completions are noticed because the controller writes them into that memory.
//!
//! A request never fails because the controller is away: a lost access, a command that is too old and a fatal status
//! all lead to a reset, and everything in flight is issued again afterwards. Whoever submits decides how long to wait,
//! and says when that is over ([`Driver::abandon`]): what was given up happens before anything that is submitted later,
//! or never. What has ended and is not flushed is kept, and written again before that: the controller may have lost it.
//!
//! All state lies in [`DriverCells`]; a driver made over the cells of a dead card goes on exactly there. Bounds:
//! [`Driver::IN_FLIGHT`] requests, [`Driver::KEPT_PAGES`] pages kept, [`QUEUE_MEMORY_SIZE`] bytes of queues.
//!
//! Left out: several queues, SGLs, metadata, controllers that move less than 128 KiB a command, namespaces but the
//! first that is attached.

mod cells;
mod commands;
mod covered;
mod events;
pub mod guest_view;
mod init;
mod namespace;
mod prp;
mod queues;
mod registers;
mod running;
#[cfg(test)]
mod tests;
mod unflushed;
mod unusable;

use core::ops::RangeInclusive;
use core::time::Duration;

use base::ledger::{Journal, PageIndex, Pages, Slots};
use base::{Instant, times};

use crate::{Access, AccessError, AccessId, BlockError, BlockRequest, Geometry};
use cells::{ACCESSES_RESERVED, ADMIN_ENTRIES, IN_FLIGHT, Owner, region};
pub use cells::{DriverCells, DriverCounters, QUEUE_MEMORY_SIZE};
use commands::Commands;
use events::{Events, FIRST_OF_EVENTS};
pub use init::State;
use init::{Event, Initialiser, Next};
use namespace::Namespace;
use prp::Lists;
use queues::{Queues, read_area};
use registers::Registers;
use running::Running;
use unflushed::Unflushed;
pub use unusable::FunctionError;

/// Longest an access may stay unanswered. The stream's own time-out comes first; this one is for a stream that is gone.
pub const ACCESS_TIMEOUT: Duration = times::COMPLETION_TIMEOUT.saturating_mul(2);
/// A command that has not ended by then resets the controller.
pub const COMMAND_TIMEOUT: Duration = times::COMPLETION_TIMEOUT.saturating_mul(4);
/// Between two looks at the age of the commands; one that is older is asked about (`CSTS`).
pub const WATCH: Duration = times::COMPLETION_TIMEOUT;
/// An orderly shutdown is given up after this.
pub const SHUTDOWN_TIMEOUT: Duration = times::COMPLETION_TIMEOUT.saturating_mul(2);

const _: () = assert!(
    COMMAND_TIMEOUT.as_nanos() < times::IO_TIMEOUT.as_nanos(),
    "a reset comes before the edge gives up"
);

/// Where the driver's memory lies as the function sees it.
#[derive(Clone, Copy, Debug)]
pub struct DriverConfig {
    /// Bus address of the queue memory, [`QUEUE_MEMORY_SIZE`] bytes, page aligned.
    pub queue_memory: u64,
    /// Bus address of page 0 of the pool; page `i` lies `i * 4096` behind it.
    pub data_memory: u64,
    /// Bus address that interrupt messages are written to; their data is the vector.
    pub interrupt: u64,
    /// Most bytes of a BAR that can be accessed: no access goes beyond.
    pub bar_bytes: u64,
}

/// The driver of one NVMe function: its parts, and what they have to do with each other.
///
/// The drain contract: after any verb call [`poll_access`](Self::poll_access) and
/// [`poll_completion`](Self::poll_completion) until they return `None`, commit, then act on what was polled.
pub struct Driver<'m> {
    cells: &'m DriverCells,
    pages: Pages<'m>,
    init: Initialiser<'m>,
    commands: Commands<'m>,
    events: Events<'m>,
    queues: Queues<'m>,
    namespace: Namespace<'m>,
    registers: Registers<'m>,
}

impl DriverConfig {
    /// Where the controller puts data of the initialisation.
    fn identify_address(&self) -> u64 {
        self.queue_memory + region::IDENTIFY as u64
    }
}

impl<'m> Driver<'m> {
    /// Most requests that are accepted and not ended.
    pub const IN_FLIGHT: usize = IN_FLIGHT;
    /// Most pages of writes that have ended and are kept until they are flushed.
    pub const KEPT_PAGES: usize = unflushed::KEPT_PAGES;

    /// The driver over `cells`; on zeroes it waits for [`start`](Self::start), on what a dead card left it goes on.
    pub fn new(cells: &'m DriverCells, pages: Pages<'m>, journal: Journal<'m>, config: DriverConfig) -> Self {
        assert!(
            (config.queue_memory | config.data_memory).is_multiple_of(base::ledger::PAGE_SIZE as u64),
            "memory is granted in pages"
        );
        let counters = &cells.counters;
        let registers = Registers::new(&cells.registers, journal);
        let namespace = Namespace::new(&cells.namespace, &cells.identify, journal);
        let (admin, io) = (&cells.admin, &cells.io);
        let queues = Queues { cells: &cells.queues, admin, io, registers, journal };
        let (memory, piece) = (&cells.lists, &cells.piece);
        let lists = Lists { memory, piece, registers, namespace, journal, config };
        let unflushed = Unflushed::new(&cells.unflushed, pages, journal);
        let mut commands = Commands {
            cells: &cells.table,
            slots: Slots::new(&cells.table.slots, journal),
            unflushed,
            newer: unflushed.newer(),
            running: Running::new(),
            lists,
            queues,
            namespace,
            counters,
            journal,
        };
        commands.recount();
        let (stage, address) = (&cells.event_stage, config.identify_address());
        let events = Events { stage, queues, namespace, counters, journal, address };
        let init =
            Initialiser { cells: &cells.init, registers, queues, namespace, journal, config, unusable: None };
        Self { cells, pages, init, commands, events, queues, namespace, registers }
    }

    /// Initialises the function, at first or after a shutdown. Ignored while the driver runs.
    pub fn start(&mut self, now: Instant) {
        if matches!(self.state(), State::Stopped | State::ShutDown) {
            self.init.reopen();
            self.commands.reopen();
            self.begin(now);
        }
    }

    /// The function was reset or the stream to it began anew: initialises it and issues again whatever is in flight.
    pub fn handle_reset(&mut self, now: Instant) {
        if !matches!(self.state(), State::Stopped | State::ShutDown) {
            self.begin(now);
        }
    }

    /// Another host has used the drive meanwhile: what is kept must not be written over what it wrote and is lost, and
    /// everything in flight ends with [`BlockError::Io`]. Then as [`handle_reset`](Self::handle_reset).
    pub fn forget(&mut self, now: Instant) {
        self.commands.drop_own();
        self.commands.fail_all();
        self.handle_reset(now);
    }

    /// Ends in order: accepts nothing more, waits for what is in flight, flushes, and shuts the controller down
    /// (NVMe 2.0 §3.6). Ends by force after [`SHUTDOWN_TIMEOUT`]; what is then in flight fails with
    /// [`BlockError::Io`].
    pub fn shutdown(&mut self, now: Instant) {
        match self.state() {
            State::ShutDown => {}
            State::Stopped => self.init.shut_down(),
            _ if self.init.is_closing() => {}
            _ => {
                self.init.close(now);
                self.shut_down_when_idle(now);
            }
        }
    }

    /// Ends by force, at once: nobody waits for the controller any more. What is in flight fails with
    /// [`BlockError::Io`], and what is kept nobody will flush.
    pub fn give_up(&mut self) {
        if !self.is_shut_down() {
            self.commands.drop_own();
            self.commands.fail_all();
            self.init.give_up();
        }
    }

    /// Whether [`shutdown`](Self::shutdown) has ended, in order or by force.
    pub fn is_shut_down(&self) -> bool {
        self.state() == State::ShutDown
    }

    /// Whether requests are being issued. They are accepted before that, and wait.
    pub fn is_ready(&self) -> bool {
        self.state() == State::Ready && !self.commands.unflushed.is_rewriting()
    }

    /// Why the function cannot be used, as far as this card has found out.
    pub fn unusable(&self) -> Option<FunctionError> {
        self.init.unusable
    }

    /// What the driver is doing, for status and logs.
    pub fn state(&self) -> State {
        self.init.state()
    }

    /// What the namespace was at the last initialisation, or when the controller last announced a change; `None` before
    /// the first.
    pub fn geometry(&self) -> Option<Geometry> {
        self.namespace.geometry()
    }

    /// How many requests can be submitted now.
    pub fn room(&self) -> usize {
        if self.init.is_closing() || matches!(self.state(), State::Stopped | State::ShutDown) {
            return 0;
        }
        self.commands.room()
    }

    /// Requests that are accepted and have not ended.
    pub fn in_flight(&self) -> usize {
        self.commands.in_flight()
    }

    /// Writes that have ended and are kept until they are flushed, and the pages that the driver holds for them.
    pub fn kept(&self) -> (usize, usize) {
        self.commands.unflushed.len()
    }

    /// Whether something that was answered with success is lost, and no flush has reported it.
    pub fn has_lost(&self) -> bool {
        self.commands.unflushed.has_lost()
    }

    /// Asks for a flush of the driver's own, so that the pages of what is kept come free, if there are any.
    pub fn flush_kept(&mut self) {
        self.commands.flush_kept();
    }

    /// The requester no longer waits for the requests whose identifiers lie in `ids`. What the controller does not have
    /// ends at once with [`BlockError::Io`]; what it has ends as it may, but is not issued again, and no flush and
    /// nothing that is about the same blocks is issued before. So a write that was given up comes before whatever is
    /// submitted afterwards, or never.
    pub fn abandon(&mut self, ids: impl Iterator<Item = RangeInclusive<u32>>) {
        self.commands.abandon(ids);
    }

    /// Whether the function may read a page now: a write of it is at the controller.
    pub fn may_read(&self, page: PageIndex) -> bool {
        self.commands.running.may_read(page)
    }

    /// Whether the function may write a page now: a read into it is at the controller.
    pub fn may_write(&self, page: PageIndex) -> bool {
        self.commands.running.may_write(page)
    }

    /// Accepts a request; the caller has asked for [`room`](Self::room).
    ///
    /// # Panics
    /// When there is no room, and when a page of the request is not live.
    pub fn submit(&mut self, now: Instant, request: BlockRequest<'_>) {
        assert!(self.room() > 0, "a request is submitted only while there is room");
        assert!(request.pages.len() <= BlockRequest::MAX_PAGES, "a request has at most 32 pages");
        assert!(
            request.pages.iter().all(|page| self.pages.references(*page) > 0),
            "the requester keeps its pages until the completion"
        );
        self.commands.submit(now, &request);
    }

    /// Whether [`Driver::poll_completion`] has one.
    pub fn has_completion(&self) -> bool {
        self.commands.has_done()
    }

    /// The next request that has ended, each once.
    pub fn poll_completion(&mut self) -> Option<(u32, Result<(), BlockError>)> {
        self.commands.poll_done()
    }

    /// The next access to the function.
    pub fn poll_access(&mut self, now: Instant) -> Option<Access> {
        if self.registers.is_empty() {
            // What had no room before has it now.
            self.take_admin(now);
        }
        if let Some(access) = self.registers.poll() {
            return Some(access);
        }
        if self.state().has_admin_queue()
            && let Some(access) = self.queues.poll_admin_head()
        {
            return Some(access);
        }
        if self.state() != State::Ready {
            return None;
        }
        self.commands.make_own(now);
        let issued = self.commands.issue_next(now);
        if self.commands.has_issued() {
            self.init.arm_watch(now);
        }
        if let Some(access) = issued.or_else(|| self.queues.poll_doorbell()) {
            return Some(access);
        }
        // What could not be issued may have ended without the controller.
        if self.init.is_closing() && self.commands.is_idle() {
            self.shut_down_when_idle(now);
            return self.poll_access(now);
        }
        None
    }

    /// Access `id` has ended: with its data, or without for a configuration write. Late answers are ignored.
    pub fn handle_access(&mut self, now: Instant, id: AccessId, result: Result<&[u8], AccessError>) {
        if !self.registers.awaits(id) {
            return self.cells.counters.ignored.add(1);
        }
        let event = self.init.take_answer(result);
        self.transition(now, event);
    }

    /// The function writes to the queue memory: completions, and the data of the initialisation. Elsewhere it is
    /// ignored.
    pub fn memory_write(&mut self, now: Instant, offset: u64, bytes: &[u8]) {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        match offset & !0xfff {
            region::IO_CQ => {
                self.queues.store_io(offset - region::IO_CQ, bytes);
                self.take_completions(now);
            }
            region::ADMIN_CQ => {
                self.queues.store_admin(offset - region::ADMIN_CQ, bytes);
                self.take_admin(now);
            }
            // The start lies in the region's 4096 bytes.
            region::IDENTIFY if self.state().has_admin_queue() => {
                self.namespace.store(offset - region::IDENTIFY, bytes);
            }
            _ => self.cells.counters.ignored.add(1),
        }
    }

    /// The function reads the queue memory: fills `out`; what holds nothing reads as zeroes.
    pub fn memory_read(&self, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        read_area(&self.cells.admin.sq, region::ADMIN_SQ, start, out);
        read_area(&self.cells.io.sq, region::IO_SQ, start, out);
        read_area(&self.cells.lists, region::LISTS, start, out);
    }

    /// The function signals a vector. Completions were noticed when they were written; this only looks again.
    pub fn interrupt(&mut self, now: Instant, _vector: u32) {
        self.take_admin(now);
        self.take_completions(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, if at all.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let times = self.init.times().into_iter().chain([self.commands.retry_at()]);
        times.filter(|at| *at != 0).min().map(Instant::from_nanos)
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.init.is_overdue(now) {
            return self.give_up();
        }
        if let Some(event) = self.init.take_timer(now) {
            self.transition(now, event);
        }
        self.commands.resume_delayed(now);
        if self.init.take_watch(now)
            && let Some(oldest) = self.commands.oldest()
        {
            self.init.check_age(now, now.since(oldest));
        }
    }

    /// The statistics.
    pub fn counters(&self) -> &'m DriverCounters {
        &self.cells.counters
    }

    fn transition(&mut self, now: Instant, event: Event) {
        let next = self.init.handle(now, event);
        self.go_on(now, next);
    }

    /// Does what a part has left to do.
    fn go_on(&mut self, now: Instant, next: Option<Next>) {
        match next {
            None => {}
            Some(Next::Begin) => self.begin(now),
            Some(Next::Resized) => {
                self.commands.fail_all();
                // What was under way is still at the controller, by names that others would get.
                if self.state() == State::Ready {
                    self.begin(now);
                }
            }
            Some(Next::Ready) => {
                self.events.request();
                self.commands.rewrite_all();
                self.shut_down_when_idle(now);
            }
            Some(Next::Lost) => {
                self.commands.lose_all();
                self.init.shut_down();
            }
        }
    }

    /// Forgets the function's old life and begins a new one; commands in flight wait for its queues.
    fn begin(&mut self, now: Instant) {
        self.cells.counters.resets.add(1);
        self.init.forget();
        self.events.forget();
        self.commands.requeue();
        self.init.begin(now);
    }

    /// Nothing may be in flight any more, and a shutdown is wanted: flushes, and shuts the controller down.
    fn shut_down_when_idle(&mut self, now: Instant) {
        let commands = &mut self.commands;
        let is_busy = commands.in_flight() > 0 || commands.unflushed.is_rewriting();
        if self.init.state() != State::Ready || !self.init.is_closing() || is_busy {
            return;
        }
        if commands.is_flushed() {
            self.init.begin_shutdown(now);
        } else {
            commands.submit_flush(now, Owner::LastFlush);
        }
    }

    /// Takes what has come in the admin completion queue, as long as there is room for what may follow from it.
    fn take_admin(&mut self, now: Instant) {
        for _ in 0..ADMIN_ENTRIES {
            if !self.state().has_admin_queue() || self.registers.room() < ACCESSES_RESERVED {
                return;
            }
            let Some(entry) = self.queues.take_admin() else { return };
            if entry.cid.get() >= FIRST_OF_EVENTS {
                let next = self.events.take(&entry, self.state() == State::Ready);
                self.go_on(now, next);
            } else if self.init.take_command(&entry) {
                self.transition(now, Event::Admin(entry));
            } else {
                self.cells.counters.ignored.add(1);
            }
        }
    }

    fn take_completions(&mut self, now: Instant) {
        if self.state() != State::Ready {
            return;
        }
        for _ in 0..self.queues.entries() {
            let Some(entry) = self.queues.take() else { break };
            self.commands.complete(now, entry.cid.get(), entry.status());
        }
        self.shut_down_when_idle(now);
    }
}
