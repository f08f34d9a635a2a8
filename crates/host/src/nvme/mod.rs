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
mod init;
mod prp;
mod queues;
mod running;
#[cfg(test)]
mod tests;
mod unflushed;
mod unusable;

use core::time::Duration;

use base::ledger::{Cell, Journal, PageIndex, Pages, Slots};
use base::{Instant, times};

use crate::{Access, AccessError, AccessId, BlockError, BlockRequest, Geometry};
use cells::{COMMAND_WORDS, COMMANDS, Command, IN_FLIGHT, Owner, Stage, flag};
pub use cells::{DriverCells, DriverCounters, QUEUE_MEMORY_SIZE};
use covered::Covered;
pub use init::State;
use init::{Event, millis};
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

/// The driver of one NVMe function.
///
/// The drain contract: after any verb call [`poll_access`](Self::poll_access) and
/// [`poll_completion`](Self::poll_completion) until they return `None`, commit, then act on what was polled.
pub struct Driver<'m> {
    cells: &'m DriverCells,
    slots: Slots<'m, COMMAND_WORDS>,
    pages: Pages<'m>,
    unflushed: Unflushed<'m>,
    /// Blocks that need not be written again, because newer writes have them, while that goes on.
    newer: Covered,
    running: Running,
    journal: Journal<'m>,
    config: DriverConfig,
    /// Why the last attempt to use the function came to nothing, if nothing can be done about that.
    unusable: Option<FunctionError>,
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
        let slots = Slots::new(&cells.slots, journal);
        let unflushed = Unflushed::new(&cells.unflushed, pages, journal);
        let mut driver = Self {
            cells,
            slots,
            pages,
            unflushed,
            newer: unflushed.newer(),
            running: Running::new(),
            journal,
            config,
            unusable: None,
        };
        for cid in driver.slots.iter() {
            let command = driver.command(cid).head.get();
            if command.stage == Stage::Issued {
                driver.running.begin(&command, driver.command(cid), driver.is_kept(&command));
            }
        }
        driver
    }

    /// Initialises the function, at first or after a shutdown. Ignored while the driver runs.
    pub fn start(&mut self, now: Instant) {
        if matches!(self.state(), State::Stopped | State::ShutDown) {
            self.cells.shutdown_limit.set(self.journal, 0);
            self.cells.flushed.set(self.journal, 0);
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
        self.drop_own();
        self.fail_all();
        self.handle_reset(now);
    }

    /// Ends in order: accepts nothing more, waits for what is in flight, flushes, and shuts the controller down
    /// (NVMe 2.0 §3.6). Ends by force after [`SHUTDOWN_TIMEOUT`]; what is then in flight fails with
    /// [`BlockError::Io`].
    pub fn shutdown(&mut self, now: Instant) {
        match self.state() {
            State::ShutDown => {}
            State::Stopped => self.set_state(State::ShutDown),
            _ if self.cells.shutdown_limit.get() != 0 => {}
            _ => {
                self.cells.shutdown_limit.set(self.journal, (now + SHUTDOWN_TIMEOUT).as_nanos());
                self.transition(now, Event::Idle);
            }
        }
    }

    /// Whether [`shutdown`](Self::shutdown) has ended, in order or by force.
    pub fn is_shut_down(&self) -> bool {
        self.state() == State::ShutDown
    }

    /// Whether requests are being issued. They are accepted before that, and wait.
    pub fn is_ready(&self) -> bool {
        self.state() == State::Ready && !self.unflushed.is_rewriting()
    }

    /// Why the function cannot be used, as far as this card has found out.
    pub fn unusable(&self) -> Option<FunctionError> {
        self.unusable
    }

    /// What the driver is doing, for status and logs.
    pub fn state(&self) -> State {
        self.cells.state.value()
    }

    /// What the namespace was at the last initialisation, or when the controller last announced a change; `None` before
    /// the first.
    pub fn geometry(&self) -> Option<Geometry> {
        let cells = self.cells;
        (cells.block_size.get() != 0).then(|| Geometry {
            block_size: cells.block_size.get(),
            blocks: cells.blocks.get(),
            read_only: self.has_flag(flag::READ_ONLY),
            volatile_cache: self.has_flag(flag::VOLATILE_CACHE),
        })
    }

    /// How many requests can be submitted now.
    pub fn room(&self) -> usize {
        if self.cells.shutdown_limit.get() != 0 || matches!(self.state(), State::Stopped | State::ShutDown) {
            return 0;
        }
        // The driver's own commands come on top, and what a step frees is taken again only after it.
        let left = IN_FLIGHT.saturating_sub(self.slots.used() + self.cells.done.len());
        if self.slots.can_alloc() { left } else { 0 }
    }

    /// Requests that are accepted and have not ended.
    pub fn in_flight(&self) -> usize {
        self.slots.used()
    }

    /// Writes that have ended and are kept until they are flushed, and the pages that the driver holds for them.
    pub fn kept(&self) -> (usize, usize) {
        self.unflushed.len()
    }

    /// Whether something that was answered with success is lost, and no flush has reported it.
    pub fn has_lost(&self) -> bool {
        self.unflushed.has_lost()
    }

    /// Whether the function may read a page now: a write of it is at the controller.
    pub fn may_read(&self, page: PageIndex) -> bool {
        self.running.may_read(page)
    }

    /// Whether the function may write a page now: a read into it is at the controller.
    pub fn may_write(&self, page: PageIndex) -> bool {
        self.running.may_write(page)
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
        let command = Command {
            lba: request.lba,
            at: now.as_nanos(),
            blocks: request.blocks,
            id: request.id,
            offset: 0,
            kind: request.kind.into(),
            fua: request.fua.into(),
            pages: request.pages.len() as u8,
            stage: Stage::Pending.into(),
            tries: 0,
            owner: Owner::Requester.into(),
        };
        let cid = self.enqueue(command);
        for (cell, page) in self.cells.commands[cid as usize].pages.iter().zip(request.pages) {
            cell.set(self.journal, page.0);
        }
    }

    /// Whether [`Driver::poll_completion`] has one.
    pub fn has_completion(&self) -> bool {
        !self.cells.done.is_empty()
    }

    /// The next request that has ended, each once.
    pub fn poll_completion(&mut self) -> Option<(u32, Result<(), BlockError>)> {
        let done = self.cells.done.pop(self.journal)?;
        Some((done.id, commands::result(done.result)))
    }

    /// The next access to the function.
    pub fn poll_access(&mut self, now: Instant) -> Option<Access> {
        if self.cells.out.is_empty() {
            // What had no room before has it now.
            self.take_admin(now);
        }
        if let Some(record) = self.cells.out.pop(self.journal) {
            return Some(init::access_of(&record));
        }
        if let Some(access) = self.poll_admin_head() {
            return Some(access);
        }
        if self.state() == State::Ready { self.poll_queues(now) } else { None }
    }

    /// Access `id` has ended: with its data, or without for a configuration write. Late answers are ignored.
    pub fn handle_access(&mut self, now: Instant, id: AccessId, result: Result<&[u8], AccessError>) {
        if id.0 == 0 || id.0 != self.cells.awaited.get() {
            self.cells.counters.ignored.add(1);
            return;
        }
        self.cells.awaited.set(self.journal, 0);
        self.cells.timer.set(self.journal, 0);
        let event = match result {
            Ok([]) => Event::Answer(0),
            Ok(&[a, b, c, d]) => Event::Answer(u32::from_le_bytes([a, b, c, d]).into()),
            Ok(&[a, b, c, d, e, f, g, h]) => Event::Answer(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
            Ok(_) | Err(_) => Event::Failed,
        };
        self.transition(now, event);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called, if at all.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let cells = self.cells;
        [&cells.timer, &cells.watch, &cells.retry, &cells.shutdown_limit]
            .into_iter()
            .map(Cell::get)
            .filter(|at| *at != 0)
            .min()
            .map(Instant::from_nanos)
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        let due = |at: u64| at != 0 && at <= now.as_nanos();
        if due(self.cells.shutdown_limit.get()) {
            self.give_up();
            return;
        }
        if due(self.cells.timer.get()) {
            self.cells.timer.set(self.journal, 0);
            let unanswered = self.cells.awaited.get() != 0;
            self.cells.awaited.set(self.journal, 0);
            self.transition(now, if unanswered { Event::Failed } else { Event::Timer });
        }
        if due(self.cells.retry.get()) {
            self.resume_delayed(now);
        }
        if due(self.cells.watch.get()) {
            self.check_ages(now);
        }
    }

    /// The statistics.
    pub fn counters(&self) -> &'m DriverCounters {
        &self.cells.counters
    }

    /// Ends by force: what is kept nobody will flush any more.
    fn give_up(&mut self) {
        self.drop_own();
        self.fail_all();
        self.cells.out.clear(self.journal);
        self.cells.awaited.set(self.journal, 0);
        self.cells.watch.set(self.journal, 0);
        self.set_state(State::ShutDown);
    }

    /// Everything kept is lost, and everything in flight fails; the driver has nothing of its own in flight.
    fn fail_all(&mut self) {
        self.lose_all();
        self.cells.pending.clear(self.journal);
        self.cells.retry.set(self.journal, 0);
        for cid in self.slots.iter() {
            self.finish(cid, commands::code(Err(BlockError::Io)));
        }
    }

    fn enqueue(&mut self, command: Command) -> u16 {
        // Whoever submits asks `Driver::room` before, the driver itself `Slots::can_alloc`.
        let cid = self.slots.alloc().expect("room was asked for");
        self.cells.commands[cid as usize].head.set(self.journal, command);
        self.cells.pending.push(self.journal, cid);
        cid
    }

    fn set_state(&self, state: State) {
        self.cells.state.set(self.journal, state.into());
        if state == State::ShutDown {
            self.cells.timer.set(self.journal, 0);
            self.cells.shutdown_limit.set(self.journal, 0);
        }
    }

    fn has_flag(&self, bit: u32) -> bool {
        self.cells.flags.get() & bit != 0
    }

    fn command(&self, cid: u16) -> &'m cells::CommandCells {
        const { assert!(COMMANDS <= u16::MAX as usize) };
        &self.cells.commands[cid as usize]
    }

    fn after(&self, now: Instant, milliseconds: u64) -> u64 {
        (now + millis(milliseconds)).as_nanos()
    }
}
