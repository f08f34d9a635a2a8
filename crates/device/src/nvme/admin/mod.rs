//! The admin command set (NVMe 2.0 §5): what each command checks, and where it goes on.

pub(crate) mod events;
pub(crate) mod feature_data;
pub(crate) mod features;
mod format;
mod identify;
pub(crate) mod keep_alive;
pub(crate) mod log;
mod namespaces;
pub(crate) mod self_test;

use base::Instant;
use base::ledger::PAGE_SIZE;
use spec::nvme::log::CriticalWarning;
use spec::nvme::{
    Abort, AdminOpcode, FeatureId, FeatureSelect, GetFeatures, GetLogPage, Identify, NSID_ALL,
    NamespaceAttachment, NamespaceManagement, NamespaceManagementSelect, SetFeatures, Status,
    SubmissionEntry,
};

use self::feature_data::FeatureData;
use self::features::Features;
use crate::nvme::Controller;
use crate::nvme::cells::{ASYNC_EVENT_REQUESTS, SHUTDOWN_SLOT};
use crate::nvme::command::{Event, State, Work};
use crate::nvme::queues::QueueMemory;

impl Controller<'_> {
    pub(crate) fn execute_admin(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        if !self.has_admin_command(entry.admin_opcode()) {
            return Err(Status::INVALID_OPCODE);
        }
        match entry.admin_opcode() {
            AdminOpcode::DELETE_IO_SQ => return self.delete_submission_queue(slot, entry),
            AdminOpcode::CREATE_IO_SQ | AdminOpcode::CREATE_IO_CQ => {
                if let Some((list, len)) = self.queues.check_create(entry, self.registers.cc())? {
                    return self.begin_queue_list(slot, list, len);
                }
                self.create_queue(entry, QueueMemory::Host)?;
            }
            AdminOpcode::DELETE_IO_CQ => self.remove_queue(self.queues.check_delete(entry)?),
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
            AdminOpcode::KEEP_ALIVE => self.keep_alive.hear(self.now),
            AdminOpcode::DOORBELL_BUFFER_CONFIG => self.shadows.configure(entry, &self.buffer)?,
            AdminOpcode::NAMESPACE_MANAGEMENT => return self.manage_namespace(slot, entry),
            AdminOpcode::NAMESPACE_ATTACHMENT => return self.begin_attachment(slot, entry),
            AdminOpcode::FORMAT_NVM => return self.begin_format(slot, entry),
            AdminOpcode::DEVICE_SELF_TEST => return self.begin_self_test(slot, entry),
            _ => return Err(Status::INVALID_OPCODE),
        }
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }

    fn create_queue(&mut self, entry: &SubmissionEntry, place: QueueMemory) -> Result<(), Status> {
        self.shadows.begin(self.queues.create(entry, place, &self.buffer)?);
        Ok(())
    }

    /// The list of a queue's pages has been read.
    pub(crate) fn finish_create_queue(&mut self, slot: u16) -> Result<(), Status> {
        let command = self.command(slot);
        self.queues.take_pages(command, self.registers.cc())?;
        self.create_queue(&command.entry(), QueueMemory::Listed)?;
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }

    /// Ends a queue's commands, and completes when the medium is done with them: then nothing of them has an effect
    /// any more, on the host's memory or on the disk.
    fn delete_submission_queue(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let bell = self.queues.check_delete(entry)?;
        self.remove_queue(bell);
        for slot in self.table.busy().filter(|slot| *slot != SHUTDOWN_SLOT) {
            if self.command(slot).origin.get().sq == bell.queue {
                self.abandon(slot);
            }
        }
        if self.table.has_orphans_of(bell.queue) {
            self.table.step(slot, Event::Drain);
        } else {
            self.complete(slot, 0, Status::SUCCESS);
        }
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
        let found = self.table.busy().find(|slot| {
            let command = self.command(*slot);
            let origin = command.origin.get();
            origin.sq == abort.sqid && origin.cid == abort.command && command.state().can_be_aborted()
        });
        let Some(slot) = found else { return Abort::NOT_ABORTED };
        debug_assert_ne!(self.command(slot).state(), State::Media);
        self.complete(slot, 0, Status::ABORT_REQUESTED);
        0
    }

    /// When the host has to have sent a Keep Alive, if there is a timer.
    pub(crate) fn keep_alive_timeout(&self) -> Option<Instant> {
        let timer = self.features.keep_alive_timer();
        self.keep_alive.timeout(timer).filter(|_| self.registers.is_processing())
    }

    /// The time is what it is now.
    pub(crate) fn see(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.keep_alive.see(self.now, self.features.keep_alive_timer());
    }

    pub(crate) fn check_keep_alive(&mut self) {
        if self.keep_alive_timeout().is_some_and(|at| at <= self.now) {
            self.keep_alive.stop();
            self.registers.fail("no keep alive in time");
        }
    }

    /// An event has happened.
    pub(crate) fn raise_event(&mut self, event: u32) {
        self.events.raise(event);
        self.report_events();
    }

    /// Tells what there is to tell, as far as the host has asked.
    fn report_events(&mut self) {
        while self.events.is_due() {
            let Some(slot) = self.table.in_state(State::Held).next() else { return };
            let Some(event) = self.events.take() else { return };
            self.complete(slot, event.0, Status::SUCCESS);
        }
    }

    /// An Asynchronous Event Request: held until there is something to report.
    fn hold_event_request(&mut self, slot: u16) -> Result<(), Status> {
        if self.table.in_state(State::Held).count() >= ASYNC_EVENT_REQUESTS {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        }
        self.table.step(slot, Event::Hold);
        self.report_events();
        Ok(())
    }

    /// What other controllers have done to namespaces of this one.
    pub(crate) fn announce_changes(&mut self) {
        if !self.can_announce() {
            return;
        }
        self.subsystem.controller(self.index).announce.set(self.journal, 0);
        if self.registers.is_processing() && self.features.events().namespace_attribute() {
            self.raise_event(events::NAMESPACE_CHANGED);
        }
    }

    /// Whether there is something to announce.
    pub(crate) fn can_announce(&self) -> bool {
        self.subsystem.controller(self.index).announce.get() != 0
    }

    /// A threshold has been set.
    fn check_temperature(&mut self) {
        let wanted = CriticalWarning(self.features.events().smart()).temperature();
        if wanted && self.features.is_too_hot_or_cold() {
            self.raise_event(events::TEMPERATURE);
        }
    }

    fn get_features(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let get = GetFeatures::parse(entry);
        // There is no one value of what each namespace has for itself (NVMe 2.0 §5.15).
        if get.fid == FeatureId::ERROR_RECOVERY && get.nsid == NSID_ALL {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        self.check_feature_namespace(get.fid, get.nsid)?;
        let capabilities = get.select == FeatureSelect::SUPPORTED_CAPABILITIES;
        if let Some(len) = FeatureData::bytes(get.fid, get.dw11).filter(|_| !capabilities) {
            if get.select.0 > FeatureSelect::SUPPORTED_CAPABILITIES.0 {
                return Err(Status::INVALID_FIELD);
            }
            return self.begin_transfer(slot, Work::Report, len);
        } else if !Features::has(get.fid, self.registers.shows_cache()) {
            return Err(Status::INVALID_FIELD);
        }
        let result = self.features.get(&get)?;
        self.complete(slot, result, Status::SUCCESS);
        Ok(())
    }

    fn set_features(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let set = SetFeatures::parse(entry);
        if !Features::has(set.fid, self.registers.shows_cache()) {
            return Err(Status::INVALID_FIELD);
        } else if set.save && !self.features.is_saveable(set.fid) {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        self.check_feature_namespace(set.fid, set.nsid)?;
        if let Some(len) = FeatureData::bytes(set.fid, set.dw11) {
            return self.begin_transfer(slot, Work::Admin, len);
        }
        let result = if set.fid == FeatureId::NUMBER_OF_QUEUES {
            features::agree_on_queues(set.dw11, self.queues.has_io())?
        } else {
            self.features.set(set.fid, set.dw11)?;
            0
        };
        match set.fid {
            FeatureId::TEMPERATURE_THRESHOLD | FeatureId::ASYNC_EVENT_CONFIGURATION => {
                self.check_temperature();
            }
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.hear(self.now),
            _ => {}
        }
        if set.save {
            self.features.save(set.fid);
            self.complete_kept(slot, result);
        } else {
            self.complete(slot, result, Status::SUCCESS);
        }
        Ok(())
    }

    /// Features are the controller's, but for Error Recovery: that is a namespace's, and all of them have the same.
    fn check_feature_namespace(&self, id: FeatureId, nsid: u32) -> Result<(), Status> {
        let is_of_namespaces = id == FeatureId::ERROR_RECOVERY;
        match nsid {
            0 if is_of_namespaces => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
            0 | NSID_ALL => Ok(()),
            _ => {
                self.active_namespace(nsid)?;
                if is_of_namespaces { Ok(()) } else { Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC) }
            }
        }
    }

    /// The data of a Set Features have come.
    fn take_feature_data(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let (page, pages) = (self.command(slot).page(0), self.pages);
        self.feature_data.set(&SetFeatures::parse(entry), self.now, |index| {
            let mut bytes = [0; 8];
            pages.read(page, index * 8, &mut bytes);
            u64::from_le_bytes(bytes)
        })?;
        self.complete(slot, 0, Status::SUCCESS);
        Ok(())
    }

    /// The medium has answered a self-test, or could not.
    pub(crate) fn end_self_test(&mut self, slot: u16, passed: bool) {
        self.self_tests.note(&self.command(slot).entry(), passed);
        self.complete(slot, 0, Status::SUCCESS);
    }
}
