//! The admin command set (NVMe 2.0 §5): what each command checks, and where it goes on.

pub(crate) mod events;
pub(crate) mod feature_data;
pub(crate) mod features;
mod format;
mod identify;
pub(crate) mod keep_alive;
pub(crate) mod log;
mod namespaces;
mod queues;
pub(crate) mod self_test;

use base::Instant;
use base::ledger::{Journal, PAGE_SIZE, Pages};
use spec::nvme::log::CriticalWarning;
use spec::nvme::{
    AdminOpcode, FeatureId, FeatureSelect, GetFeatures, GetLogPage, Identify, NSID_ALL, NamespaceManagement,
    NamespaceManagementSelect, SetFeatures, Status, SubmissionEntry,
};

use self::events::Events;
use self::feature_data::FeatureData;
use self::features::Features;
use self::keep_alive::KeepAlive;
use self::log::ErrorLog;
use self::self_test::SelfTests;
use super::cells::{NvmeCells, Part, Statistics};
use super::command::{CommandCells, Next, Work};
use super::control::config_space::ConfigSpace;
use super::control::registers::Registers;
use super::subsystem::Subsystem;

/// What the admin commands have of the function, beside what is theirs.
pub(crate) struct HostView<'a> {
    pub(crate) config_space: &'a ConfigSpace<'a>,
    pub(crate) registers: &'a Registers<'a>,
    pub(crate) now: Instant,
}

/// The admin commands that need neither queues nor other commands, and what they leave behind.
pub(crate) struct Admin<'m> {
    subsystem: Subsystem<'m>,
    /// Which controller of the drive it is.
    index: u16,
    journal: Journal<'m>,
    pages: Pages<'m>,
    statistics: &'m Statistics,
    pub(crate) features: Features<'m>,
    feature_data: FeatureData<'m>,
    pub(crate) events: Events<'m>,
    pub(crate) errors: ErrorLog<'m>,
    self_tests: SelfTests<'m>,
    pub(crate) keep_alive: KeepAlive,
}

impl<'m> Admin<'m> {
    pub(crate) fn new(cells: &'m NvmeCells, subsystem: &Subsystem<'m>, index: u16, pages: Pages<'m>) -> Self {
        let journal = subsystem.journal;
        let admin = Self {
            subsystem: subsystem.clone(),
            index,
            journal,
            pages,
            statistics: &cells.statistics,
            features: Features::new(&cells.features, subsystem, index),
            feature_data: Part { cells: &cells.feature_data, journal },
            events: Part { cells: &cells.events, journal },
            errors: Part { cells: &cells.errors, journal },
            self_tests: Part { cells: &cells.self_tests, journal },
            keep_alive: KeepAlive::default(),
        };
        if cells.made.get() == 0 {
            cells.made.set(journal, 1);
            admin.features.reset();
        }
        admin
    }

    /// Executes a command that exists here. `has_queues`: there are I/O queues.
    pub(crate) fn execute(
        &mut self,
        command: &CommandCells,
        entry: &SubmissionEntry,
        host: &HostView<'_>,
        has_queues: bool,
    ) -> Result<Next, Status> {
        match entry.admin_opcode() {
            AdminOpcode::IDENTIFY => {
                self.check_identify(&Identify::parse(entry))?;
                Ok(Next::Transfer(Work::Report, PAGE_SIZE as u32))
            }
            AdminOpcode::GET_LOG_PAGE => {
                Ok(Next::Transfer(Work::Report, Self::check_log_page(&GetLogPage::parse(entry))?))
            }
            AdminOpcode::GET_FEATURES => self.get_features(&GetFeatures::parse(entry), host),
            AdminOpcode::SET_FEATURES => self.set_features(&SetFeatures::parse(entry), host, has_queues),
            AdminOpcode::KEEP_ALIVE => {
                self.keep_alive.hear(host.now);
                Ok(Next::Complete(0))
            }
            AdminOpcode::NAMESPACE_MANAGEMENT => self.manage_namespace(command, entry),
            AdminOpcode::NAMESPACE_ATTACHMENT => self.check_attachment(entry),
            AdminOpcode::FORMAT_NVM => self.format(command, entry),
            AdminOpcode::DEVICE_SELF_TEST => self.self_test(command, entry),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Whether a command exists here. Sanitize, firmware, security, directives and the rest do not: OACS says so too.
    pub(crate) fn has_command(&self, opcode: AdminOpcode) -> bool {
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
            AdminOpcode::DOORBELL_BUFFER_CONFIG => self.subsystem.config.doorbell_buffer,
            AdminOpcode::FORMAT_NVM => self.subsystem.config.keeps_state,
            AdminOpcode::NAMESPACE_MANAGEMENT | AdminOpcode::NAMESPACE_ATTACHMENT => {
                self.manages_namespaces()
            }
            _ => false,
        }
    }

    /// Whether this controller may change what belongs to all: the physical function alone.
    fn manages_namespaces(&self) -> bool {
        self.subsystem.config.keeps_state && self.index == 0
    }

    /// The data of a command have come from the host.
    pub(crate) fn loaded(&self, command: &CommandCells, now: Instant) -> Result<Next, Status> {
        let entry = command.entry();
        match entry.admin_opcode() {
            AdminOpcode::SET_FEATURES => {
                self.feature_data.set(&SetFeatures::parse(&entry), now, |index| {
                    let mut bytes = [0; 8];
                    self.pages.read(command.page(0), index * 8, &mut bytes);
                    u64::from_le_bytes(bytes)
                })?;
                Ok(Next::Complete(0))
            }
            AdminOpcode::NAMESPACE_MANAGEMENT
                if NamespaceManagement::parse(&entry).select == NamespaceManagementSelect::CREATE =>
            {
                self.create_namespace(command)
            }
            AdminOpcode::NAMESPACE_ATTACHMENT => self.attach_namespace(command),
            _ => Err(Status::INTERNAL_ERROR),
        }
    }

    /// The medium has ended a piece of work for a command. Only a self-test goes on where that has failed.
    pub(crate) fn ended(&self, command: &CommandCells, passed: bool) -> Result<Next, Status> {
        if command.work() == Work::Format {
            return self.end_format(command);
        }
        self.self_tests.note(&command.entry(), passed);
        Ok(Next::Complete(0))
    }

    /// Makes the data of an Identify, Get Log Page or Get Features, whose arguments were checked and whose pages are
    /// there.
    pub(crate) fn report(&self, command: &CommandCells, host: &HostView<'_>) {
        let entry = command.entry();
        let len = command.counts.get().len as usize;
        match entry.admin_opcode() {
            AdminOpcode::IDENTIFY => {
                command.write_data(self.pages, 0, &self.identify(&Identify::parse(&entry), host));
            }
            AdminOpcode::GET_FEATURES => {
                let get = GetFeatures::parse(&entry);
                let mut data = [0; PAGE_SIZE];
                // The command was given as many bytes as the feature has. What was never saved is the default: zeroes.
                let data = &mut data[..len];
                if get.select == FeatureSelect::CURRENT {
                    self.feature_data.get(get.fid, host.now, data);
                }
                command.write_data(self.pages, 0, data);
            }
            _ => {
                let log = GetLogPage::parse(&entry);
                let page = self.log_page(log.lid, host.registers.shows_cache());
                let offset = usize::try_from(log.offset).unwrap_or(usize::MAX).min(page.len());
                let part = &page[offset..page.len().min(offset.saturating_add(len))];
                command.write_data(self.pages, 0, part);
                // What lies behind the end of the page is zero.
                for position in (part.len()..len).step_by(PAGE_SIZE) {
                    let zeroes = &[0; PAGE_SIZE][..(len - position).min(PAGE_SIZE)];
                    command.write_data(self.pages, position, zeroes);
                }
                self.note_log_read(&log);
            }
        }
    }

    fn get_features(&self, get: &GetFeatures, host: &HostView<'_>) -> Result<Next, Status> {
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
            return Ok(Next::Transfer(Work::Report, len));
        } else if !Features::has(get.fid, host.registers.shows_cache()) {
            return Err(Status::INVALID_FIELD);
        }
        Ok(Next::Complete(self.features.get(get)?))
    }

    fn set_features(
        &mut self,
        set: &SetFeatures,
        host: &HostView<'_>,
        has_queues: bool,
    ) -> Result<Next, Status> {
        if !Features::has(set.fid, host.registers.shows_cache()) {
            return Err(Status::INVALID_FIELD);
        } else if set.save && !self.features.is_saveable(set.fid) {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        self.check_feature_namespace(set.fid, set.nsid)?;
        if let Some(len) = FeatureData::bytes(set.fid, set.dw11) {
            return Ok(Next::Transfer(Work::Admin, len));
        } else if set.fid == FeatureId::NUMBER_OF_QUEUES {
            return Ok(Next::Complete(features::agree_on_queues(set.dw11, has_queues)?));
        }
        self.features.set(set.fid, set.dw11)?;
        match set.fid {
            FeatureId::TEMPERATURE_THRESHOLD | FeatureId::ASYNC_EVENT_CONFIGURATION => {
                let wanted = CriticalWarning(self.features.events().smart()).temperature();
                if wanted && self.features.is_too_hot_or_cold() {
                    self.events.raise(events::TEMPERATURE);
                }
            }
            FeatureId::KEEP_ALIVE_TIMER => self.keep_alive.hear(host.now),
            _ => {}
        }
        if !set.save {
            return Ok(Next::Complete(0));
        }
        self.features.save(set.fid);
        Ok(Next::Keep(0))
    }

    /// Features are the controller's, but for Error Recovery: that is a namespace's, and all of them have the same.
    fn check_feature_namespace(&self, id: FeatureId, nsid: u32) -> Result<(), Status> {
        let is_of_namespaces = id == FeatureId::ERROR_RECOVERY;
        match nsid {
            0 if is_of_namespaces => Err(Status::INVALID_NAMESPACE_OR_FORMAT),
            0 | NSID_ALL => Ok(()),
            _ => {
                self.subsystem.active_namespace(nsid, self.index)?;
                if is_of_namespaces { Ok(()) } else { Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC) }
            }
        }
    }

    /// Whether other controllers have done something to namespaces of this one.
    pub(crate) fn can_announce(&self) -> bool {
        self.subsystem.controller(self.index).announce.get() != 0
    }

    /// Makes an event of that, for a host that is served and wants it.
    pub(crate) fn announce(&self, is_processing: bool) {
        self.subsystem.controller(self.index).announce.set(self.journal, 0);
        if is_processing && self.features.events().namespace_attribute() {
            self.events.raise(events::NAMESPACE_CHANGED);
        }
    }

    /// A controller level reset.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.features.reset();
        self.feature_data.reset(now);
        self.keep_alive.stop();
        self.events.reset();
    }
}
