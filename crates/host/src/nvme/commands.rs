//! Commands in flight: issued, ended, tried again, issued anew after a reset.

use core::ops::RangeInclusive;

use base::ledger::{Journal, Slots};
use base::{Instant, Rule};
use spec::nvme::{Status, StatusCodeType};

use super::DriverCounters;
use super::cells::{
    COMMAND_WORDS, COMMANDS, Command, CommandCells, Done, IN_FLIGHT, Owner, Stage, TableCells,
};
use super::covered::Covered;
use super::init::{after, backoff_ms, is_due};
use super::namespace::{Namespace, flag};
use super::prp::Lists;
use super::queues::Queues;
use super::running::Running;
use super::unflushed::Unflushed;
use crate::{Access, BlockError, BlockKind, BlockRequest};

/// The errors of a [`Done`], in the order of their codes from 1 on.
pub(super) const ERRORS: [BlockError; 4] =
    [BlockError::Invalid, BlockError::NoSpace, BlockError::ReadOnly, BlockError::Io];

/// How a result lies in the ledger.
pub(super) fn code(result: Result<(), BlockError>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(BlockError::Invalid) => 1,
        Err(BlockError::NoSpace) => 2,
        Err(BlockError::ReadOnly) => 3,
        Err(BlockError::Io) => 4,
    }
}

/// The result that `code` made.
pub(super) fn result(code: u32) -> Result<(), BlockError> {
    match code {
        0 => Ok(()),
        code => Err(ERRORS.get(code as usize - 1).copied().unwrap_or(BlockError::Io)),
    }
}

/// What a status means to the requester.
pub(super) fn error_of(status: Status) -> Result<(), BlockError> {
    match status.code() {
        Status::SUCCESS => Ok(()),
        Status::LBA_OUT_OF_RANGE => Err(BlockError::Invalid),
        Status::CAPACITY_EXCEEDED => Err(BlockError::NoSpace),
        Status::NAMESPACE_WRITE_PROTECTED | Status::WRITE_TO_READ_ONLY_RANGE => Err(BlockError::ReadOnly),
        _ => Err(BlockError::Io),
    }
}

/// What is to be done about a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// The command would end like this again.
    Final,
    /// It may be worth another try.
    Once,
    /// Something on the way to the medium was absent: the command is tried until it is not.
    Again,
}

fn verdict(status: Status) -> Verdict {
    let code = status.code();
    let is_transient = code.sct() == StatusCodeType::PATH
        || matches!(
            code,
            Status::ABORT_REQUESTED
                | Status::ABORTED_POWER_LOSS
                | Status::ABORTED_SQ_DELETION
                | Status::DATA_TRANSFER_ERROR
                | Status::NAMESPACE_NOT_READY
                | Status::COMMAND_INTERRUPTED
                | Status::TRANSIENT_TRANSPORT_ERROR
        );
    match code {
        _ if status.dnr() => Verdict::Final,
        _ if is_transient => Verdict::Again,
        Status::INTERNAL_ERROR => Verdict::Once,
        _ => Verdict::Final,
    }
}

/// The commands of a driver, from their request to their completion.
pub(super) struct Commands<'m> {
    pub(super) cells: &'m TableCells,
    pub(super) slots: Slots<'m, COMMAND_WORDS>,
    pub(super) unflushed: Unflushed<'m>,
    /// Blocks that need not be written again, because newer writes have them, while that goes on.
    pub(super) newer: Covered,
    pub(super) running: Running,
    pub(super) lists: Lists<'m>,
    pub(super) queues: Queues<'m>,
    pub(super) namespace: Namespace<'m>,
    pub(super) counters: &'m DriverCounters,
    pub(super) journal: Journal<'m>,
}

impl<'m> Commands<'m> {
    /// Counts what is at the controller, for a card that has not issued it itself.
    pub(super) fn recount(&mut self) {
        for cid in self.slots.iter() {
            let command = self.command(cid).head.get();
            if command.stage == Stage::Issued {
                self.running.begin(&command, self.command(cid), self.is_kept(&command));
            }
        }
    }

    /// How many requests can be taken now.
    pub(super) fn room(&self) -> usize {
        // The driver's own commands come on top, and what a step frees is taken again only after it.
        let left = IN_FLIGHT.saturating_sub(self.slots.used() + self.cells.done.len());
        if self.slots.can_alloc() { left } else { 0 }
    }

    /// Commands that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        self.slots.used()
    }

    /// Whether nothing waits and nothing is at the controller.
    pub(super) fn is_idle(&self) -> bool {
        self.cells.pending.is_empty() && self.slots.used() == 0
    }

    /// Whether anything is at the controller.
    pub(super) fn has_issued(&self) -> bool {
        self.cells.issued.get() > 0
    }

    /// Whether the shutdown's own flush has ended.
    pub(super) fn is_flushed(&self) -> bool {
        self.cells.flushed.get() != 0
    }

    /// No shutdown is wanted any more.
    pub(super) fn reopen(&self) {
        self.cells.flushed.set(self.journal, 0);
    }

    /// When the first command may be tried again, in nanoseconds; 0 for never.
    pub(super) fn retry_at(&self) -> u64 {
        self.cells.retry.get()
    }

    /// Takes a request, for which there is room.
    pub(super) fn submit(&self, now: Instant, request: &BlockRequest<'_>) {
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
        // Whoever submits asks `Driver::room` before, the driver itself `Slots::can_alloc`.
        let cid = self.slots.alloc().expect("room was asked for");
        self.command(cid).head.set(self.journal, command);
        self.cells.pending.push(self.journal, cid);
        for (cell, page) in self.command(cid).pages.iter().zip(request.pages) {
            cell.set(self.journal, page.0);
        }
    }

    /// Whether a request has ended.
    pub(super) fn has_done(&self) -> bool {
        !self.cells.done.is_empty()
    }

    /// The next request that has ended.
    pub(super) fn poll_done(&self) -> Option<(u32, Result<(), BlockError>)> {
        let done = self.cells.done.pop(self.journal)?;
        Some((done.id, result(done.result)))
    }

    /// Everything kept is lost, and everything in flight fails. What the driver has asked for itself (queues,
    /// identities) is over by then.
    pub(super) fn fail_all(&mut self) {
        self.lose_all();
        self.cells.pending.clear(self.journal);
        self.cells.retry.set(self.journal, 0);
        for cid in self.slots.iter() {
            self.finish(cid, code(Err(BlockError::Io)));
        }
    }

    /// The write that issues pending commands, as far as one does; nothing if none may be issued now.
    pub(super) fn issue_next(&mut self, now: Instant) -> Option<Access> {
        while let Some(cid) = self.next_pending() {
            if self.cells.issued.get() >= u32::from(self.queues.entries()) - 1 {
                break;
            }
            if let Some(access) = self.issue(now, cid) {
                return Some(access);
            }
        }
        None
    }

    /// The next write that issues the first pending command, or `None` when that took no write (more).
    fn issue(&mut self, now: Instant, cid: u16) -> Option<Access> {
        let mut command = self.command(cid).head.get();
        if let Some(result) = self.ends_here(&command) {
            self.leave_pending(&command);
            self.finish(cid, code(result));
            return None;
        }
        let cells = self.command(cid);
        if let Some(write) = self.lists.place(cid, &command, &cells.pages) {
            return Some(write);
        }
        self.leave_pending(&command);
        self.lists.rewind();
        command.stage = Stage::Issued.into();
        command.at = now.as_nanos();
        if command.kind() == BlockKind::Flush {
            command.lba = self.unflushed.appended();
        }
        cells.head.set(self.journal, command);
        self.running.begin(&command, cells, self.is_kept(&command));
        self.cells.issued.update(self.journal, |issued| issued + 1);
        self.queues.submit(&self.lists.submission(cid, &command, &cells.pages))
    }

    /// The result of a command that the controller cannot be asked.
    fn ends_here(&self, command: &Command) -> Option<Result<(), BlockError>> {
        const { assert!(BlockRequest::MAX_BYTES / 512 <= WRITE_ZEROES_MAX) };
        let pages = u64::from(command.pages);
        let bytes =
            u64::from(command.offset) + u64::from(command.blocks) * u64::from(self.namespace.block_size());
        let fits = bytes <= pages << 12 && bytes > (pages << 12).saturating_sub(1 << 12);
        match command.kind() {
            BlockKind::Flush => None,
            BlockKind::Read | BlockKind::Write => (!fits).then_some(Err(BlockError::Invalid)),
            _ if command.blocks == 0 => Some(Err(BlockError::Invalid)),
            // Deallocation is advice.
            BlockKind::Trim => (!self.namespace.has(flag::DEALLOCATE)).then_some(Ok(())),
            BlockKind::WriteZeroes { .. } if command.blocks > WRITE_ZEROES_MAX => {
                Some(Err(BlockError::Invalid))
            }
            BlockKind::WriteZeroes { .. } => {
                (!self.namespace.has(flag::WRITE_ZEROES)).then_some(Err(BlockError::Io))
            }
        }
    }

    /// The first command that waits for the submission queue waits no longer.
    fn leave_pending(&self, command: &Command) {
        if command.is_own() {
            self.cells.own.pop(self.journal);
        } else {
            self.cells.pending.pop(self.journal);
        }
    }

    /// The command is the last to wait for the submission queue.
    fn join_pending(&self, cid: u16, command: &Command) {
        if command.is_own() {
            self.cells.own.push(self.journal, cid);
        } else {
            self.cells.pending.push(self.journal, cid);
        }
    }

    /// The next command to be issued, if one may be.
    fn next_pending(&self) -> Option<u16> {
        let cells = self.cells;
        if let Some(own) = cells.own.front() {
            return Some(own);
        }
        if self.unflushed.is_rewriting() {
            return None;
        }
        cells.pending.front().filter(|cid| {
            let command = self.command(*cid).head.get();
            self.can_keep(&command) && !self.is_held(&command)
        })
    }

    /// Whether the controller still has a write to the same blocks that was given up: it would not be known which is
    /// later. A flush waits for all of them.
    fn is_held(&self, command: &Command) -> bool {
        self.running.has_given_up()
            && self.slots.iter().any(|cid| {
                let other = self.command(cid).head.get();
                let is_running = other.is_given_up() && other.stage == Stage::Issued;
                // A flush is about all blocks: what it finds undone must not be done behind it.
                let concerns = command.kind() == BlockKind::Flush || other.overlaps(command);
                is_running && other.is_write() && concerns
            })
    }

    /// The requester no longer waits for the requests whose identifiers lie in `ids`. What the controller does not have
    /// ends at once with [`BlockError::Io`]; what it has ends as it may, but is not issued again, and no flush and
    /// nothing that is about the same blocks is issued before. So a write that was given up comes before whatever is
    /// submitted afterwards, or never.
    pub(super) fn abandon(&mut self, ids: impl Iterator<Item = RangeInclusive<u32>>) {
        let mut waiting = false;
        for ids in ids.filter(|_| self.journal.rule(Rule::TakeBack)) {
            for cid in self.slots.iter() {
                let head = &self.command(cid).head;
                let command = head.get();
                if command.owner != Owner::Requester || !ids.contains(&command.id) {
                    continue;
                }
                let command = Command { owner: Owner::Nobody.into(), ..command };
                head.set(self.journal, command);
                if command.stage == Stage::Issued {
                    self.running.give_up(&command);
                } else {
                    waiting = true;
                }
            }
        }
        if waiting {
            self.end_waiting();
        }
    }

    /// Ends what was given up and is not at the controller.
    fn end_waiting(&mut self) {
        let (cells, journal) = (self.cells, self.journal);
        // The first may have been written to the controller's memory in part.
        self.lists.rewind();
        for _ in 0..cells.pending.len() {
            if let Some(cid) = cells.pending.pop(journal)
                && !self.command(cid).head.get().is_given_up()
            {
                cells.pending.push(journal, cid);
            }
        }
        for cid in self.slots.iter() {
            let command = self.command(cid).head.get();
            if command.is_given_up() && command.stage != Stage::Issued {
                self.finish(cid, code(Err(BlockError::Io)));
            }
        }
    }

    /// Command `cid` has ended at the controller.
    pub(super) fn complete(&mut self, now: Instant, cid: u16, status: Status) {
        let known = usize::from(cid) < COMMANDS && self.slots.is_used(cid);
        let command = if known { self.command(cid).head.get() } else { return self.counters.ignored.add(1) };
        if command.stage != Stage::Issued {
            return self.counters.ignored.add(1);
        }
        match verdict(status) {
            Verdict::Again => return self.try_again(now, cid),
            Verdict::Once if command.tries == 0 => return self.try_again(now, cid),
            Verdict::Once | Verdict::Final => {}
        }
        let ended = error_of(status);
        let result = if !command.is_own() && ended.is_ok() { self.settle(cid, &command) } else { ended };
        self.finish(cid, code(result));
    }

    /// Issues a command again: the first time at once, then after growing waits. Whoever submitted it decides for how
    /// long.
    fn try_again(&mut self, now: Instant, cid: u16) {
        if self.command(cid).head.get().is_given_up() {
            return self.finish(cid, code(Err(BlockError::Io)));
        }
        let mut command = self.leave_controller(cid);
        self.counters.retries.add(1);
        let stage = if command.tries == 0 { Stage::Pending } else { Stage::Delayed };
        command.stage = stage.into();
        if command.stage == Stage::Delayed {
            command.at = after(now, backoff_ms(command.tries.into()));
            self.arm_retry(command.at);
        } else {
            self.join_pending(cid, &command);
        }
        command.tries = command.tries.saturating_add(1);
        self.command(cid).head.set(self.journal, command);
    }

    /// Commands that have waited long enough are issued again.
    pub(super) fn resume_delayed(&self, now: Instant) {
        let (cells, journal) = (self.cells, self.journal);
        if !is_due(&cells.retry, now) {
            return;
        }
        cells.retry.set(journal, 0);
        for cid in self.slots.iter() {
            let head = &self.command(cid).head;
            let command = head.get();
            if command.stage != Stage::Delayed {
                continue;
            }
            if command.at > now.as_nanos() {
                self.arm_retry(command.at);
                continue;
            }
            head.set(journal, Command { stage: Stage::Pending.into(), ..command });
            self.join_pending(cid, &command);
        }
    }

    /// Looks at the delayed commands at `at`, or earlier.
    fn arm_retry(&self, at: u64) {
        let retry = self.cells.retry.get();
        if retry == 0 || at < retry {
            self.cells.retry.set(self.journal, at);
        }
    }

    /// Ends command `cid` and frees its identifier.
    pub(super) fn finish(&mut self, cid: u16, result: u32) {
        let (cells, journal) = (self.cells, self.journal);
        let command = self.leave_controller(cid);
        if command.is_own() {
            self.own_ended(&command, result == 0);
        } else {
            cells.done.push(journal, Done { id: command.id, result });
        }
        self.slots.free(cid);
        self.counters.commands.add(1);
        self.counters.errors.add((result != 0).into());
    }

    /// If the controller has command `cid`, it is not to have it any more. Returns the command as it was.
    pub(super) fn leave_controller(&mut self, cid: u16) -> Command {
        let cells = self.command(cid);
        let command = cells.head.get();
        if command.stage == Stage::Issued {
            self.cells.issued.update(self.journal, |issued| issued - 1);
            self.running.end(&command, cells, self.is_kept(&command));
        }
        command
    }

    /// Everything in flight waits for new queues; what the driver itself wanted, it will want again, and what was given
    /// up ends.
    pub(super) fn requeue(&mut self) {
        let (cells, journal) = (self.cells, self.journal);
        self.drop_own();
        cells.pending.clear(journal);
        for cid in self.slots.iter() {
            if self.command(cid).head.get().is_given_up() {
                self.take_back(cid);
                continue;
            }
            let command = self.leave_controller(cid);
            self.counters.reissued.add((command.stage == Stage::Issued).into());
            self.command(cid).head.set(journal, Command { stage: Stage::Pending.into(), ..command });
            cells.pending.push(journal, cid);
        }
        cells.retry.set(journal, 0);
        self.lists.rewind();
    }

    /// The controller begins anew with command `cid`, which was given up. Nobody knows whether it has been done, and
    /// once seen it must not vanish with the controller's power: so it is kept like the others, and nothing is issued
    /// before those.
    fn take_back(&mut self, cid: u16) {
        let command = self.command(cid).head.get();
        self.keep(cid, &command);
        self.finish(cid, code(Err(BlockError::Io)));
    }

    /// Since when the oldest command is at the controller.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let issued_at = |cid| {
            let command = self.command(cid).head.get();
            (command.stage == Stage::Issued).then_some(Instant::from_nanos(command.at))
        };
        self.slots.iter().filter_map(issued_at).min()
    }

    pub(super) fn command(&self, cid: u16) -> &'m CommandCells {
        const { assert!(COMMANDS <= u16::MAX as usize) };
        &self.cells.commands[cid as usize]
    }
}

/// Most blocks of Write Zeroes.
const WRITE_ZEROES_MAX: u32 = 1 << 16;
