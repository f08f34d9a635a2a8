//! The NVM command set: checks of the arguments, and what each command needs (NVM CS 1.0 §3.2).

mod compare;
mod copy;
mod ranges;
mod zeroes;

use base::Rule;
use base::ledger::PAGE_SIZE;
use spec::nvme::{DatasetManagementRange, FusedOperation, NSID_ALL, NvmOpcode, Status, SubmissionEntry};

pub(crate) use compare::FUSED_MAX;
pub(crate) use copy::{COPY_RANGES, copy_blocks};
pub(crate) use ranges::PIECE_MAX;

use crate::function::MediaKind;
use crate::nvme::Controller;
use crate::nvme::cells::DATA_MAX;
use crate::nvme::command::{Counts, Event, Target, Work};
use crate::nvme::config::WriteCache;
use crate::nvme::subsystem::Namespace;

const RANGE_BYTES: usize = size_of::<DatasetManagementRange>();
const _: () = assert!(DatasetManagementRange::MAX * RANGE_BYTES <= PAGE_SIZE, "all ranges fit into one page");
/// PSDT of commands with an SGL: the metadata, which there are none of, as a buffer or as an SGL.
const SGL: core::ops::RangeInclusive<u8> = 1..=2;

impl Controller<'_> {
    /// Does what a decoded command says.
    pub(crate) fn execute(&mut self, slot: u16) {
        let command = self.command(slot);
        let entry = command.entry();
        let origin = command.origin.update(self.journal, |mut origin| {
            origin.cid = entry.cid.get();
            origin
        });
        let outcome = match (origin.sq, entry.psdt()) {
            // No SGLs on the admin queue (NVMe 2.0 §4.1).
            (0, 0) if entry.fused() == FusedOperation::NORMAL => self.execute_admin(slot, &entry),
            (0, _) => Err(Status::INVALID_FIELD),
            (_, psdt) if psdt == 0 || SGL.contains(&psdt) => self.execute_queued(slot, &entry),
            _ => Err(Status::INVALID_FIELD),
        };
        if let Err(status) = outcome {
            self.complete(slot, 0, status.with_dnr());
        }
    }

    /// The status of a namespace number that no command of this controller can use (NVMe 2.0 §3.2.1).
    pub(crate) fn active_namespace(&self, nsid: u32) -> Result<Namespace, Status> {
        if nsid == 0 || nsid > self.subsystem.last_nsid() {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        self.subsystem.active(nsid, self.index).ok_or(Status::INVALID_FIELD)
    }

    /// Executes one command of an I/O queue, alone or as a half of a fused operation.
    pub(crate) fn execute_io(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let (opcode, nsid) = (entry.nvm_opcode(), entry.nsid.get());
        if !self.has_io_command(opcode) {
            return Err(Status::INVALID_OPCODE);
        } else if opcode == NvmOpcode::FLUSH && nsid == NSID_ALL {
            self.begin_flush(slot);
            return Ok(());
        }
        let namespace = self.active_namespace(nsid)?;
        if namespace.formatting {
            return Err(Status::FORMAT_IN_PROGRESS);
        }
        self.command(slot).epoch.set(self.journal, namespace.epoch);
        self.command(slot).target.set(self.journal, Target { nsid, ..Target::default() });
        match opcode {
            NvmOpcode::FLUSH => self.begin_flush(slot),
            NvmOpcode::READ => self.begin_block_transfer(slot, entry, &namespace, Work::Read)?,
            NvmOpcode::COMPARE => self.begin_block_transfer(slot, entry, &namespace, Work::Compare)?,
            NvmOpcode::WRITE => {
                refuse_read_only(&namespace)?;
                self.begin_block_transfer(slot, entry, &namespace, Work::Write)?;
            }
            NvmOpcode::WRITE_ZEROES => {
                refuse_read_only(&namespace)?;
                self.begin_zeroes(slot, entry, &namespace)?;
            }
            NvmOpcode::WRITE_UNCORRECTABLE => {
                let target = self.set_target(slot, entry, &namespace)?;
                refuse_read_only(&namespace)?;
                if !self.subsystem.mark_bad(target.offset, target.len.into()) {
                    return Err(Status::WRITE_FAULT);
                }
                self.complete_kept(slot, 0);
            }
            NvmOpcode::VERIFY => self.begin_verify(slot, entry, &namespace)?,
            NvmOpcode::COPY => self.check_copy(slot, entry, &namespace)?,
            _ if entry.dsm_attributes().ad() => {
                refuse_read_only(&namespace)?;
                let len = entry.dsm_ranges() * RANGE_BYTES as u32;
                self.begin_transfer(slot, Work::Deallocate, len)?;
            }
            // Without the deallocate attribute the command is a hint, and this controller has no use for it.
            _ => self.complete(slot, 0, Status::SUCCESS),
        }
        Ok(())
    }

    /// Whether a command exists here. What must outlast the ledger exists where the owner keeps it.
    pub(crate) fn has_io_command(&self, opcode: NvmOpcode) -> bool {
        match opcode {
            NvmOpcode::WRITE_UNCORRECTABLE => self.config.keeps_state,
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

    fn begin_flush(&mut self, slot: u16) {
        self.set_work(slot, Work::Flush);
        self.begin_media(slot, MediaKind::Flush, 0, 0);
    }

    /// Finds the blocks of a command on the medium.
    fn set_target(
        &self,
        slot: u16,
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
        self.command(slot).target.set(self.journal, target);
        Ok(target)
    }

    /// Begins a command whose data are the blocks it names.
    fn begin_block_transfer(
        &mut self,
        slot: u16,
        entry: &SubmissionEntry,
        namespace: &Namespace,
        work: Work,
    ) -> Result<(), Status> {
        if u64::from(entry.nlb()) << namespace.shift > u64::from(DATA_MAX) {
            return Err(Status::INVALID_FIELD);
        }
        let target = self.set_target(slot, entry, namespace)?;
        self.limit.charge_bytes(target.len);
        self.begin_transfer(slot, work, target.len)
    }

    /// Whether a write has to be durable before it completes: because it says so, or because there is no cache for its
    /// host.
    pub(crate) fn is_durable_write(&self, slot: u16) -> bool {
        (self.config.cache != WriteCache::Absent && self.command(slot).entry().fua()) || self.writes_through()
    }

    /// Whether whatever changes the medium has to be durable before it completes.
    pub(crate) fn writes_through(&self) -> bool {
        self.config.cache != WriteCache::Absent
            && !(self.registers.shows_cache() && self.features.write_cache())
            && self.journal.rule(Rule::DurableBeforeAnswer)
    }

    fn begin_verify(
        &mut self,
        slot: u16,
        entry: &SubmissionEntry,
        namespace: &Namespace,
    ) -> Result<(), Status> {
        let target = self.set_target(slot, entry, namespace)?;
        self.limit.charge_bytes(target.len);
        self.begin_reading(slot, Work::Verify, target.len);
        Ok(())
    }

    /// Begins work that reads the medium and gives nobody the data.
    pub(crate) fn begin_reading(&mut self, slot: u16, work: Work, len: u32) {
        self.set_work(slot, work);
        self.command(slot).counts.set(self.journal, Counts { len: len.min(DATA_MAX), prps: 0, pages: 0 });
        self.table.step(slot, Event::NeedPages);
        self.serve_waiting();
    }

    /// The read of the next piece of a Verify or a self-test, which has its pages.
    pub(crate) fn continue_verify(&mut self, slot: u16) {
        let command = self.command(slot);
        let (target, done) = (command.target.get(), command.progress.get().arrived);
        let len = (target.len - done).min(command.counts.get().len);
        self.begin_media(slot, MediaKind::Read, target.offset + u64::from(done), len);
    }

    pub(crate) fn end_verified(&mut self, slot: u16, len: u32) {
        let command = self.command(slot);
        let work = command.media.get();
        if self.subsystem.is_bad(work.offset, work.len.into()) {
            return self.complete_unreadable(slot);
        }
        if self.advance(slot, len) {
            self.continue_verify(slot);
        } else {
            self.complete(slot, 0, Status::SUCCESS);
        }
    }

    /// Counts a piece of `len` bytes as done. Whether the target has more of them.
    fn advance(&self, slot: u16, len: u32) -> bool {
        let command = self.command(slot);
        let progress = command.progress.update(self.journal, |mut progress| {
            progress.arrived += len;
            progress
        });
        progress.arrived < command.target.get().len
    }
}

pub(crate) fn refuse_read_only(namespace: &Namespace) -> Result<(), Status> {
    if namespace.read_only { Err(Status::NAMESPACE_WRITE_PROTECTED) } else { Ok(()) }
}
