//! Commands in flight: issued, ended, tried again, issued anew after a reset.

use base::{Instant, Payload};
use spec::nvme::registers::Csts;
use spec::nvme::{Status, StatusCodeType};
use zerocopy::IntoBytes;

use super::cells::{COMMANDS, Command, Done, SUBMISSION_BYTES, flag};
use super::init::State;
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

/// Whether the same command may succeed if it is issued again.
fn is_transient(status: Status) -> bool {
    let code = status.code();
    !status.dnr()
        && (code.sct() == StatusCodeType::PATH
            || matches!(
                code,
                Status::ABORT_REQUESTED
                    | Status::ABORTED_POWER_LOSS
                    | Status::ABORTED_SQ_DELETION
                    | Status::DATA_TRANSFER_ERROR
                    | Status::INTERNAL_ERROR
                    | Status::NAMESPACE_NOT_READY
                    | Status::COMMAND_INTERRUPTED
                    | Status::TRANSIENT_TRANSPORT_ERROR
            ))
}

impl Driver<'_> {
    /// The next write that issues the first pending command, or `None` when that took no write (more).
    pub(super) fn issue(&mut self, now: Instant, cid: u16) -> Option<Access> {
        let (cells, journal) = (self.cells, self.journal);
        let mut command = self.command(cid).head.get();
        if let Some(result) = self.ends_here(&command) {
            cells.pending.pop(journal);
            self.finish(cid, code(result));
            return None;
        }
        if let Some(write) = self.place_list(cid, &command) {
            return Some(write);
        }
        cells.pending.pop(journal);
        cells.piece.set(journal, 0);
        command.issued = 1;
        command.issued_at = now.as_nanos();
        self.command(cid).head.set(journal, command);
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
        let bytes = u64::from(command.blocks) * u64::from(self.cells.block_size.get());
        let fits = bytes <= pages << 12 && bytes > (pages << 12).saturating_sub(1 << 12);
        match command.kind() {
            BlockKind::Flush => None,
            BlockKind::Read | BlockKind::Write => (!fits).then_some(Err(BlockError::Invalid)),
            _ if command.blocks == 0 => Some(Err(BlockError::Invalid)),
            // Deallocation is advice.
            BlockKind::Trim => (!self.has_flag(flag::DEALLOCATE)).then_some(Ok(())),
            BlockKind::WriteZeroes if command.blocks > WRITE_ZEROES_MAX => Some(Err(BlockError::Invalid)),
            BlockKind::WriteZeroes => (!self.has_flag(flag::WRITE_ZEROES)).then_some(Err(BlockError::Io)),
        }
    }

    /// Command `cid` has ended at the controller.
    pub(super) fn complete(&mut self, cid: u16, status: Status) {
        let known = usize::from(cid) < COMMANDS && self.slots.is_used(cid);
        let mut command =
            if known { self.command(cid).head.get() } else { return self.cells.counters.ignored.add(1) };
        if command.issued == 0 {
            return self.cells.counters.ignored.add(1);
        }
        if is_transient(status) && command.retried == 0 {
            command.retried = 1;
            command.issued = 0;
            self.command(cid).head.set(self.journal, command);
            self.cells.issued.update(self.journal, |issued| issued - 1);
            self.cells.pending.push(self.journal, cid);
            self.cells.counters.retries.add(1);
            return;
        }
        self.finish(cid, code(error_of(status)));
    }

    /// Ends command `cid` and frees its identifier.
    pub(super) fn finish(&mut self, cid: u16, result: u32) {
        let (cells, journal) = (self.cells, self.journal);
        let command = self.command(cid).head.get();
        if command.issued != 0 {
            cells.issued.update(journal, |issued| issued - 1);
        }
        if command.internal != 0 {
            cells.flushed.set(journal, 1);
        } else {
            cells.done.push(journal, Done { id: command.id, result });
        }
        self.slots.free(cid);
        cells.counters.commands.add(1);
        cells.counters.errors.add((result != 0).into());
    }

    /// Everything in flight waits for new queues.
    pub(super) fn requeue(&mut self) {
        let (cells, journal) = (self.cells, self.journal);
        cells.pending.clear(journal);
        for cid in self.slots.iter() {
            let head = &self.command(cid).head;
            cells.counters.reissued.add(head.get().issued.into());
            head.update(journal, |command| Command { issued: 0, ..command });
            cells.pending.push(journal, cid);
        }
        cells.issued.set(journal, 0);
        cells.piece.set(journal, 0);
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
            (command.issued != 0).then_some(Instant::from_nanos(command.issued_at))
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
