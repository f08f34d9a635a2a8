//! The NVM command set: checks of the arguments, and what each command needs (NVM CS 1.0 §3.2).

mod compare;
mod copy;
mod ranges;
mod zeroes;

use base::Rule;
use base::ledger::{Journal, PAGE_SIZE, Pages};
use spec::nvme::{DatasetManagementRange, NSID_ALL, NvmOpcode, Status, SubmissionEntry};

pub(crate) use compare::{FUSED_MAX, next as next_comparison};
pub(crate) use copy::{COPY_RANGES, copy_blocks};
pub(crate) use ranges::PIECE_MAX;

use crate::function::MediaKind;
use crate::nvme::cells::{DATA_MAX, Statistics};
use crate::nvme::command::{CommandCells, MediaWork, Next, State, Target, Work};
use crate::nvme::config::WriteCache;
use crate::nvme::limit::RateLimit;
use crate::nvme::subsystem::{Namespace, Subsystem};

const RANGE_BYTES: usize = size_of::<DatasetManagementRange>();
const _: () = assert!(DatasetManagementRange::MAX * RANGE_BYTES <= PAGE_SIZE, "all ranges fit into one page");

/// What commands of I/O queues ask for, and what they need next. Where one of them stands is in its cells.
pub(crate) struct NvmCommands<'m> {
    subsystem: Subsystem<'m>,
    /// Which controller of the drive it is.
    index: u16,
    journal: Journal<'m>,
    pages: Pages<'m>,
    statistics: &'m Statistics,
}

impl<'m> NvmCommands<'m> {
    pub(crate) fn new(
        subsystem: &Subsystem<'m>,
        index: u16,
        pages: Pages<'m>,
        statistics: &'m Statistics,
    ) -> Self {
        Self { subsystem: subsystem.clone(), index, journal: subsystem.journal, pages, statistics }
    }

    /// Executes one command, alone or as a half of a fused operation.
    pub(crate) fn execute(
        &self,
        command: &CommandCells,
        entry: &SubmissionEntry,
        limit: &mut RateLimit<'_>,
    ) -> Result<Next, Status> {
        let (opcode, nsid) = (entry.nvm_opcode(), entry.nsid.get());
        if !has_command(opcode, &self.subsystem) {
            return Err(Status::INVALID_OPCODE);
        } else if opcode == NvmOpcode::FLUSH && nsid == NSID_ALL {
            return Ok(self.flush(command));
        }
        let namespace = self.subsystem.active_namespace(nsid, self.index)?;
        if namespace.formatting {
            return Err(Status::FORMAT_IN_PROGRESS);
        }
        command.epoch.set(self.journal, namespace.epoch);
        command.target.set(self.journal, Target { nsid, ..Target::default() });
        let deallocates = opcode == NvmOpcode::DATASET_MANAGEMENT && entry.dsm_attributes().ad();
        let writes = deallocates || matches!(opcode, NvmOpcode::WRITE | NvmOpcode::WRITE_ZEROES);
        if writes && namespace.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        match opcode {
            NvmOpcode::FLUSH => Ok(self.flush(command)),
            NvmOpcode::READ => self.transfer(command, entry, &namespace, Work::Read, limit),
            NvmOpcode::COMPARE => self.transfer(command, entry, &namespace, Work::Compare, limit),
            NvmOpcode::WRITE => self.transfer(command, entry, &namespace, Work::Write, limit),
            NvmOpcode::WRITE_ZEROES => self.write_zeroes(command, entry, &namespace, limit),
            NvmOpcode::WRITE_UNCORRECTABLE => {
                let target = self.set_target(command, entry, &namespace)?;
                if namespace.read_only {
                    Err(Status::NAMESPACE_WRITE_PROTECTED)
                } else if !self.subsystem.mark_bad(target.offset, target.len.into()) {
                    Err(Status::WRITE_FAULT)
                } else {
                    Ok(Next::Keep(0))
                }
            }
            NvmOpcode::VERIFY => {
                let target = self.set_target(command, entry, &namespace)?;
                limit.charge_bytes(target.len);
                Ok(command.want_pages(self.journal, Work::Verify, target.len))
            }
            NvmOpcode::COPY => copy::check(entry, &namespace),
            _ if deallocates => Ok(Next::Transfer(Work::Deallocate, entry.dsm_ranges() * RANGE_BYTES as u32)),
            // Without the deallocate attribute the command is a hint, and this controller has no use for it.
            _ => Ok(Next::Complete(0)),
        }
    }

    fn flush(&self, command: &CommandCells) -> Next {
        command.work.set(self.journal, Work::Flush.into());
        Next::flush()
    }

    /// Finds the blocks of a command on the medium.
    fn set_target(
        &self,
        command: &CommandCells,
        entry: &SubmissionEntry,
        namespace: &Namespace,
    ) -> Result<Target, Status> {
        // PRINFO says what to do with protection information, which no namespace here is formatted for: it means
        // nothing (NVM CS 1.0 §5.2).
        if entry.io_control().dtype() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let (offset, len) = namespace.byte_range(entry.slba(), entry.nlb())?;
        let target = Target { offset, len, nsid: namespace.nsid };
        command.target.set(self.journal, target);
        Ok(target)
    }

    /// Begins a command whose data are the blocks it names.
    fn transfer(
        &self,
        command: &CommandCells,
        entry: &SubmissionEntry,
        namespace: &Namespace,
        work: Work,
        limit: &mut RateLimit<'_>,
    ) -> Result<Next, Status> {
        if u64::from(entry.nlb()) << namespace.shift > u64::from(DATA_MAX) {
            return Err(Status::INVALID_FIELD);
        }
        let target = self.set_target(command, entry, namespace)?;
        limit.charge_bytes(target.len);
        Ok(Next::Transfer(work, target.len))
    }

    /// All data of a command have come from the host. `has_cache`: completed writes may wait for a flush.
    pub(crate) fn loaded(
        &self,
        command: &CommandCells,
        has_cache: bool,
        limit: &mut RateLimit<'_>,
    ) -> Result<Next, Status> {
        match command.work() {
            Work::Deallocate => self.next_range(command, has_cache),
            Work::Copy => self.begin_copy(command, limit),
            Work::Compare => Ok(next_comparison(command)),
            _ => Ok(write(command)),
        }
    }

    /// The medium has ended a piece of work for a command.
    pub(crate) fn ended(&self, command: &CommandCells, has_cache: bool) -> Result<Next, Status> {
        let work = command.media.get();
        match (command.work(), work.kind.get()) {
            (_, MediaKind::Read) if self.subsystem.is_bad(work.offset, work.len.into()) => {
                self.statistics.media_errors.add(1);
                Err(Status::UNRECOVERED_READ_ERROR)
            }
            (Work::Read, _) => {
                self.statistics.note_read(work.len);
                Ok(Next::Store)
            }
            (Work::Deallocate, MediaKind::Trim) => {
                self.end_range(command, work.len);
                self.next_range(command, has_cache)
            }
            (Work::Verify, _) if self.advance(command, work.len) => Ok(next_piece(command)),
            (Work::Verify, _) => Ok(Next::Complete(0)),
            (Work::Compare, _) => self.compare(command, &work),
            (Work::Copy, MediaKind::Read) => self.end_copy_read(command, &work),
            (Work::Zeroes, MediaKind::Zero { .. }) if self.advance(command, work.len) => {
                Ok(zeroes::next(command))
            }
            (Work::Zeroes, MediaKind::Zero { .. }) | (Work::Write | Work::Copy, MediaKind::Write) => {
                self.statistics.note_write(command.target.get().len);
                let fua = self.subsystem.config.cache != WriteCache::Absent && command.entry().fua();
                let is_durable = fua || self.writes_through(has_cache);
                Ok(if is_durable { Next::flush() } else { end_write(command) })
            }
            _ => Ok(end_write(command)),
        }
    }

    /// Whether whatever changes the medium has to be durable before it completes.
    fn writes_through(&self, has_cache: bool) -> bool {
        self.subsystem.config.cache != WriteCache::Absent
            && !has_cache
            && self.journal.rule(Rule::DurableBeforeAnswer)
    }

    /// Counts a piece of `len` bytes as done. Whether the target has more of them.
    fn advance(&self, command: &CommandCells, len: u32) -> bool {
        let progress = command.progress.update(self.journal, |mut progress| {
            progress.arrived += len;
            progress
        });
        progress.arrived < command.target.get().len
    }

    /// What was written is readable again, however bad it was.
    pub(crate) fn note_written(&self, command: &CommandCells) {
        let work = command.media.get();
        let writes = matches!(work.kind.get(), MediaKind::Write | MediaKind::Zero { .. } | MediaKind::Trim);
        if writes && self.subsystem.clear_bad(work.offset, work.len.into()) {
            if command.state() == State::Orphan {
                self.subsystem.want_persisted();
            } else {
                command.set_healed(self.journal);
            }
        }
    }
}

/// Whether a command exists here. What must outlast the ledger exists where the owner keeps it.
pub(crate) fn has_command(opcode: NvmOpcode, subsystem: &Subsystem<'_>) -> bool {
    match opcode {
        NvmOpcode::WRITE_UNCORRECTABLE => subsystem.config.keeps_state,
        NvmOpcode::FLUSH
        | NvmOpcode::READ
        | NvmOpcode::WRITE
        | NvmOpcode::COMPARE
        | NvmOpcode::WRITE_ZEROES
        | NvmOpcode::DATASET_MANAGEMENT
        | NvmOpcode::VERIFY
        | NvmOpcode::COPY => true,
        // Reservations among them: ONCS says so too.
        _ => false,
    }
}

/// Reads the next piece of what was asked for, of a command that has its pages.
pub(crate) fn next_piece(command: &CommandCells) -> Next {
    let (target, done) = (command.target.get(), command.progress.get().arrived);
    let len = (target.len - done).min(command.counts.get().len);
    Next::Media(MediaWork::new(MediaKind::Read, target.offset + u64::from(done), len))
}

/// Reads the blocks of a command.
pub(crate) fn read(command: &CommandCells) -> Next {
    let target = command.target.get();
    Next::Media(MediaWork::new(MediaKind::Read, target.offset, target.len))
}

/// Writes the data of a command.
pub(crate) fn write(command: &CommandCells) -> Next {
    let target = command.target.get();
    Next::Media(MediaWork::new(MediaKind::Write, target.offset, target.len))
}

/// Ends a command that may have made bad blocks readable again, which is to be kept too.
fn end_write(command: &CommandCells) -> Next {
    if command.is_healed() { Next::Keep(0) } else { Next::Complete(0) }
}
