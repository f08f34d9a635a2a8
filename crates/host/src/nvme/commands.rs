//! Commands in flight: issued, ended, tried again, issued anew after a reset.

use core::ops::RangeInclusive;

use base::{Instant, Payload, Rule};
use spec::nvme::registers::Csts;
use spec::nvme::{Status, StatusCodeType};
use zerocopy::IntoBytes;

use super::cells::{COMMANDS, Command, Done, Owner, SUBMISSION_BYTES, Stage, flag};
use super::init::{State, backoff_ms};
use super::{COMMAND_TIMEOUT, Driver, WATCH};
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

impl Driver<'_> {
    /// The next write that issues the first pending command, or `None` when that took no write (more).
    pub(super) fn issue(&mut self, now: Instant, cid: u16) -> Option<Access> {
        let (cells, journal) = (self.cells, self.journal);
        let mut command = self.command(cid).head.get();
        if let Some(result) = self.ends_here(&command) {
            self.leave_pending(&command);
            self.finish(cid, code(result));
            return None;
        }
        if let Some(write) = self.place_list(cid, &command) {
            return Some(write);
        }
        self.leave_pending(&command);
        cells.piece.set(journal, 0);
        command.stage = Stage::Issued.into();
        command.at = now.as_nanos();
        if command.kind() == BlockKind::Flush {
            command.lba = self.unflushed.appended();
        }
        self.command(cid).head.set(journal, command);
        self.running.begin(&command, self.command(cid), self.is_kept(&command));
        cells.issued.update(journal, |issued| issued + 1);
        self.arm_watch(now);
        let slot = cells.sq_tail.get();
        cells.sq_tail.set(journal, (slot + 1) % cells.io_entries.get());
        let entry = self.submission(cid, &command);
        let at = usize::from(slot) * SUBMISSION_BYTES;
        if self.has_cmb() {
            let (bar, base) = self.cmb_place();
            return Some(Access::Write {
                bar,
                offset: base + at as u64,
                payload: Payload::inline(entry.as_bytes()),
            });
        }
        cells.io_sq.write(journal, at, entry.as_bytes());
        None
    }

    /// The result of a command that the controller cannot be asked.
    fn ends_here(&self, command: &Command) -> Option<Result<(), BlockError>> {
        const { assert!(BlockRequest::MAX_BYTES / 512 <= WRITE_ZEROES_MAX) };
        let pages = u64::from(command.pages);
        let bytes =
            u64::from(command.offset) + u64::from(command.blocks) * u64::from(self.cells.block_size.get());
        let fits = bytes <= pages << 12 && bytes > (pages << 12).saturating_sub(1 << 12);
        match command.kind() {
            BlockKind::Flush => None,
            BlockKind::Read | BlockKind::Write => (!fits).then_some(Err(BlockError::Invalid)),
            _ if command.blocks == 0 => Some(Err(BlockError::Invalid)),
            // Deallocation is advice.
            BlockKind::Trim => (!self.has_flag(flag::DEALLOCATE)).then_some(Ok(())),
            BlockKind::WriteZeroes { .. } if command.blocks > WRITE_ZEROES_MAX => {
                Some(Err(BlockError::Invalid))
            }
            BlockKind::WriteZeroes { .. } => {
                (!self.has_flag(flag::WRITE_ZEROES)).then_some(Err(BlockError::Io))
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
    pub(super) fn next_pending(&self) -> Option<u16> {
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
    pub fn abandon(&mut self, ids: impl Iterator<Item = RangeInclusive<u32>>) {
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
        cells.piece.set(journal, 0);
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
        let command =
            if known { self.command(cid).head.get() } else { return self.cells.counters.ignored.add(1) };
        if command.stage != Stage::Issued {
            return self.cells.counters.ignored.add(1);
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
        let (cells, journal) = (self.cells, self.journal);
        if self.command(cid).head.get().is_given_up() {
            return self.finish(cid, code(Err(BlockError::Io)));
        }
        let mut command = self.leave_controller(cid);
        cells.counters.retries.add(1);
        let stage = if command.tries == 0 { Stage::Pending } else { Stage::Delayed };
        command.stage = stage.into();
        if command.stage == Stage::Delayed {
            command.at = self.after(now, backoff_ms(command.tries.into()));
            self.arm_retry(command.at);
        } else {
            self.join_pending(cid, &command);
        }
        command.tries = command.tries.saturating_add(1);
        self.command(cid).head.set(journal, command);
    }

    /// Commands that have waited long enough are issued again.
    pub(super) fn resume_delayed(&mut self, now: Instant) {
        let (cells, journal) = (self.cells, self.journal);
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
        cells.counters.commands.add(1);
        cells.counters.errors.add((result != 0).into());
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
            cells.counters.reissued.add((command.stage == Stage::Issued).into());
            self.command(cid).head.set(journal, Command { stage: Stage::Pending.into(), ..command });
            cells.pending.push(journal, cid);
        }
        cells.retry.set(journal, 0);
        cells.piece.set(journal, 0);
    }

    /// The controller begins anew with command `cid`, which was given up. Nobody knows whether it has been done, and
    /// once seen it must not vanish with the controller's power: so it is kept like the others, and nothing is issued
    /// before those.
    fn take_back(&mut self, cid: u16) {
        let command = self.command(cid).head.get();
        self.keep(cid, &command);
        self.finish(cid, code(Err(BlockError::Io)));
    }

    /// The ages are looked at while something is issued.
    pub(super) fn arm_watch(&self, now: Instant) {
        if self.cells.watch.get() == 0 && self.cells.issued.get() > 0 {
            self.cells.watch.set(self.journal, (now + WATCH).as_nanos());
        }
    }

    /// Resets when a command is too old; asks for the controller's health when one is old.
    pub(super) fn check_ages(&mut self, now: Instant) {
        self.cells.watch.set(self.journal, 0);
        let issued_at = |cid| {
            let command = self.command(cid).head.get();
            (command.stage == Stage::Issued).then_some(Instant::from_nanos(command.at))
        };
        let Some(oldest) = self.slots.iter().filter_map(issued_at).min() else { return };
        let age = now.since(oldest);
        if age >= COMMAND_TIMEOUT {
            return self.fail(now);
        }
        self.arm_watch(now);
        if age >= WATCH && self.cells.awaited.get() == 0 && self.state() == State::Ready {
            self.read(now, State::Ready, spec::nvme::registers::CSTS, 4);
        }
    }

    /// The controller's status while commands are old.
    pub(super) fn check_health(&mut self, now: Instant, csts: u64) {
        let status = Csts(csts as u32);
        if status.0 == u32::MAX || status.cfs() || !status.rdy() {
            self.fail(now);
        }
    }
}

/// Most blocks of Write Zeroes.
const WRITE_ZEROES_MAX: u32 = 1 << 16;
