//! The admin command set (NVMe 2.0 §5): what each command checks, and where it goes on.

pub(crate) mod events;
mod feature_data;
pub(crate) mod features;
mod format;
mod identify;
mod log;
mod namespaces;
mod self_test;

use base::Instant;
use base::ledger::{Cell, Layout, PAGE_SIZE};
use core::time::Duration;
use spec::nvme::{
    Abort, AdminOpcode, DeleteIoQueue, GetLogPage, Identify, NamespaceAttachment, NamespaceManagement,
    NamespaceManagementSelect, Status, SubmissionEntry,
};
use zerocopy::FromBytes;

use self::log::ErrorCells;
use self::self_test::SelfTestCells;
use crate::nvme::Controller;
use crate::nvme::cells::{ERRORS, SELF_TESTS};
use crate::nvme::command::{State, Work};

/// What admin commands have left behind.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct AdminCells {
    /// Shadow doorbells and event indexes in host memory; 0 for none.
    pub(crate) shadow_doorbells: Cell<u64>,
    pub(crate) event_indexes: Cell<u64>,
    /// Milliseconds of the timestamp, when they were set, and where they came from.
    timestamp: Cell<u64>,
    timestamp_at: Cell<u64>,
    timestamp_origin: Cell<u64>,
    host_identifier: [Cell<u64>; 2],
    /// Errors ever, and the last of them: error `n` is at `(n - 1) % ERRORS`.
    error_count: Cell<u64>,
    errors: [ErrorCells; ERRORS],
    /// Self-tests ever, and the results of the last.
    self_test_count: Cell<u64>,
    self_tests: [SelfTestCells; SELF_TESTS],
    /// Host Behavior Support: its first eight bytes.
    host_behavior: Cell<u64>,
    /// Whether there was a card before: the first one takes over what was saved.
    pub(crate) made: Cell<u64>,
}

impl Controller<'_> {
    pub(crate) fn execute_admin(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        if !self.has_admin_command(entry.admin_opcode()) {
            return Err(Status::INVALID_OPCODE);
        }
        match entry.admin_opcode() {
            AdminOpcode::DELETE_IO_SQ => return self.delete_submission_queue(slot, entry),
            AdminOpcode::CREATE_IO_SQ | AdminOpcode::CREATE_IO_CQ => {
                return self.begin_create_queue(slot, entry);
            }
            AdminOpcode::DELETE_IO_CQ => self.delete_io_cq(DeleteIoQueue::parse(entry).qid)?,
            AdminOpcode::IDENTIFY => {
                self.check_identify(&Identify::parse(entry))?;
                return self.begin_transfer(slot, Work::Report, PAGE_SIZE as u32);
            }
            AdminOpcode::GET_LOG_PAGE => {
                let len = self.check_log_page(&GetLogPage::parse(entry))?;
                return self.begin_transfer(slot, Work::Report, len);
            }
            AdminOpcode::ABORT => {
                let result = self.abort(Abort::parse(entry));
                self.complete(slot, result, Status::SUCCESS);
                return Ok(());
            }
            AdminOpcode::GET_FEATURES => return self.get_features(slot, entry),
            AdminOpcode::SET_FEATURES => return self.set_features(slot, entry),
            AdminOpcode::ASYNC_EVENT_REQUEST => return self.hold_event_request(slot),
            AdminOpcode::KEEP_ALIVE => self.keep_alive(),
            AdminOpcode::DOORBELL_BUFFER_CONFIG => self.set_doorbell_buffers(entry)?,
            AdminOpcode::NAMESPACE_MANAGEMENT => return self.manage_namespace(slot, entry),
            AdminOpcode::NAMESPACE_ATTACHMENT => return self.begin_attachment(slot, entry),
            AdminOpcode::FORMAT_NVM => return self.begin_format(slot, entry),
            AdminOpcode::DEVICE_SELF_TEST => return self.begin_self_test(slot, entry),
            _ => return Err(Status::INVALID_OPCODE),
        }
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }

    /// Whether a command exists here. Sanitize, firmware, security, directives and the rest do not: OACS says so too.
    pub(crate) fn has_admin_command(&self, opcode: AdminOpcode) -> bool {
        match opcode {
            AdminOpcode::DELETE_IO_SQ
            | AdminOpcode::CREATE_IO_SQ
            | AdminOpcode::GET_LOG_PAGE
            | AdminOpcode::DELETE_IO_CQ
            | AdminOpcode::CREATE_IO_CQ
            | AdminOpcode::IDENTIFY
            | AdminOpcode::ABORT
            | AdminOpcode::SET_FEATURES
            | AdminOpcode::GET_FEATURES
            | AdminOpcode::ASYNC_EVENT_REQUEST
            | AdminOpcode::KEEP_ALIVE
            | AdminOpcode::DEVICE_SELF_TEST => true,
            AdminOpcode::DOORBELL_BUFFER_CONFIG => self.config.doorbell_buffer,
            AdminOpcode::FORMAT_NVM => self.config.keeps_state,
            AdminOpcode::NAMESPACE_MANAGEMENT | AdminOpcode::NAMESPACE_ATTACHMENT => {
                self.manages_namespaces()
            }
            _ => false,
        }
    }

    /// Whether this controller may change what belongs to all: the physical function alone.
    pub(crate) fn manages_namespaces(&self) -> bool {
        self.config.keeps_state && self.index == 0
    }

    /// The data of an admin command have come from the host.
    pub(crate) fn execute_admin_data(&mut self, slot: u16) {
        let entry = self.command(slot).entry();
        let outcome = match entry.admin_opcode() {
            AdminOpcode::SET_FEATURES => self.take_feature_data(slot, &entry),
            AdminOpcode::NAMESPACE_MANAGEMENT
                if NamespaceManagement::parse(&entry).select == NamespaceManagementSelect::CREATE =>
            {
                self.create_namespace(slot)
            }
            AdminOpcode::NAMESPACE_ATTACHMENT => {
                self.attach_namespace(slot, &NamespaceAttachment::parse(&entry))
            }
            _ => Err(Status::INTERNAL_ERROR),
        };
        if let Err(status) = outcome {
            self.complete(slot, 0, status.with_dnr());
        }
    }

    /// Ends a command that has not come to the medium or to its answer. Returns dword 0 of the completion.
    fn abort(&mut self, abort: Abort) -> u32 {
        let found = self.busy_slots().find(|slot| {
            let command = self.command(*slot);
            let origin = command.origin.get();
            origin.sq == abort.sqid && origin.cid == abort.command && command.state().can_be_aborted()
        });
        let Some(slot) = found else { return Abort::NOT_ABORTED };
        debug_assert_ne!(self.command(slot).state(), State::Media);
        self.complete(slot, 0, Status::ABORT_REQUESTED);
        0
    }

    /// The host lives.
    fn keep_alive(&mut self) {
        self.alive_at = Some(self.now);
    }

    /// When the host has to have sent a Keep Alive, if there is a timer.
    pub(crate) fn keep_alive_timeout(&self) -> Option<Instant> {
        let timer = u64::from(self.keep_alive_timer());
        let running = timer != 0 && self.is_processing();
        let since = self.alive_at.filter(|_| running)?;
        Some(since + Duration::from_millis(timer))
    }

    /// The time is what it is now. A new card gives the host the whole time again.
    pub(crate) fn see(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.alive_at.is_none() && self.keep_alive_timer() != 0 {
            self.alive_at = Some(self.now);
        }
    }

    /// The host of whom nothing was heard has to find out by itself (NVMe 2.0 §3.9).
    pub(crate) fn check_keep_alive(&mut self) {
        if self.keep_alive_timeout().is_some_and(|at| at <= self.now) {
            self.alive_at = None;
            self.fail("no keep alive in time");
        }
    }

    /// What a controller level reset takes away.
    pub(crate) fn reset_admin(&mut self) {
        let (cells, journal) = (&self.cells.admin, self.journal);
        cells.shadow_doorbells.set(journal, 0);
        cells.event_indexes.set(journal, 0);
        cells.host_identifier.iter().for_each(|word| word.set(journal, 0));
        cells.host_behavior.set(journal, 0);
        // The time goes on from zero (NVMe 2.0 §5.27.1.11).
        cells.timestamp.set(journal, 0);
        cells.timestamp_origin.set(journal, 0);
        cells.timestamp_at.set(journal, self.now.as_nanos());
        self.alive_at = None;
    }
}
