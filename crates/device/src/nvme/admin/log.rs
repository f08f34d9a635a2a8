//! Get Log Page (NVMe 2.0 §5.16). Every page here is shorter than 4 KiB.

use spec::nvme::identify::{SIZE, fill_ascii};
use spec::nvme::log::{CommandEffects, CriticalWarning};
use spec::nvme::{
    AdminOpcode, CommandsSupportedAndEffects, ErrorLogEntry, FeatureId, FirmwareSlotLog, GetLogPage,
    LogPageId, NSID_ALL, NvmOpcode, SmartLog, Status,
};
use zerocopy::little_endian::U128;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use base::ledger::{Cell, Layout};

use super::Admin;
use super::features::{Features, TEMPERATURE};
use crate::nvme::cells::{ERRORS, Part};
use crate::nvme::command::CommandCells;
use crate::nvme::subsystem::cells::NAMESPACES;

use crate::nvme::cells::DATA_MAX;
use crate::nvme::io::has_command;

/// Bytes of the error log.
const ERROR_LOG_BYTES: usize = 64 * ERRORS;
/// Parameter Error Location of an error that is of no parameter in particular.
const NO_PARAMETER: u16 = 0xffff;
/// CSE of a command that has to be alone on its namespace.
const ALONE_ON_NAMESPACE: u8 = 1;
/// Bytes of SMART and firmware slot log.
const SHORT_BYTES: usize = 512;
/// Bytes of the pages with one dword for each of 256 numbers.
const TABLE_BYTES: usize = 1024;
/// Bytes of the unit of data units read and written.
const DATA_UNIT: u64 = 512_000;
/// Bit of the Supported Log Pages and the Feature Identifiers pages: it exists.
const SUPPORTED: u32 = 1;
/// Bit of the Feature Identifiers page: its scope is the controller.
const CONTROLLER_SCOPE: u32 = 1 << 21;

const PAGES: [(LogPageId, usize); 8] = [
    (LogPageId::SUPPORTED_LOG_PAGES, TABLE_BYTES),
    (LogPageId::ERROR_INFORMATION, ERROR_LOG_BYTES),
    (LogPageId::SMART, SHORT_BYTES),
    (LogPageId::FIRMWARE_SLOT, SHORT_BYTES),
    (LogPageId::CHANGED_NAMESPACE_LIST, SIZE),
    (LogPageId::DEVICE_SELF_TEST, size_of::<spec::nvme::SelfTestLog>()),
    (LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, SIZE),
    (LogPageId::FEATURES_SUPPORTED_AND_EFFECTS, TABLE_BYTES),
];

impl Admin<'_> {
    /// The bytes that a command asks for, if the page exists and the arguments make sense.
    pub(super) fn check_log_page(log: &GetLogPage) -> Result<u32, Status> {
        let Some((_, size)) = PAGES.iter().find(|(id, _)| *id == log.lid) else {
            return Err(Status::INVALID_LOG_PAGE);
        };
        let len = log.dwords * 4;
        let misplaced = !log.offset.is_multiple_of(4) || log.offset > *size as u64 || log.offset_is_index;
        // There is no log page of one namespace (LPA), and a limit of what is returned at once (MDTS).
        let of_namespace = ![0, NSID_ALL].contains(&log.nsid);
        if misplaced || of_namespace || len > u64::from(DATA_MAX) {
            return Err(Status::INVALID_FIELD);
        }
        Ok(len as u32)
    }

    /// The whole of a page that exists.
    pub(super) fn log_page(&self, id: LogPageId, shows_cache: bool) -> [u8; SIZE] {
        let mut data = [0; SIZE];
        let mut fill = |bytes: &[u8]| data[..bytes.len()].copy_from_slice(bytes);
        match id {
            LogPageId::SUPPORTED_LOG_PAGES => {
                let mut table = [[0; 4]; TABLE_BYTES / 4];
                PAGES.iter().for_each(|(id, _)| table[usize::from(id.0)] = SUPPORTED.to_le_bytes());
                fill(table.as_flattened());
            }
            LogPageId::ERROR_INFORMATION => fill(self.errors.page().as_bytes()),
            LogPageId::CHANGED_NAMESPACE_LIST => fill(&self.changed_namespaces()),
            LogPageId::DEVICE_SELF_TEST => fill(self.self_tests.page().as_bytes()),
            LogPageId::SMART => fill(self.smart_log().as_bytes()),
            LogPageId::FIRMWARE_SLOT => {
                let mut log = FirmwareSlotLog::new_zeroed();
                log.active = 1;
                fill_ascii(&mut log.revisions[0], &self.subsystem.config.firmware);
                fill(log.as_bytes());
            }
            LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS => fill(self.effects().as_bytes()),
            LogPageId::FEATURES_SUPPORTED_AND_EFFECTS => {
                let mut table = [[0; 4]; TABLE_BYTES / 4];
                for id in FeatureId::KNOWN.iter().filter(|id| Features::has(**id, shows_cache)) {
                    table[usize::from(id.0)] = (SUPPORTED | CONTROLLER_SCOPE).to_le_bytes();
                }
                fill(table.as_flattened());
            }
            _ => {}
        }
        data
    }

    /// Reading the log page of an event lets it be reported again, unless the command says otherwise.
    pub(super) fn note_log_read(&self, log: &GetLogPage) {
        if log.lid == LogPageId::CHANGED_NAMESPACE_LIST && !log.rae {
            let changed = &self.subsystem.controller(self.index).changed;
            changed.iter().for_each(|word| word.set(self.journal, 0));
        }
        if !log.rae {
            self.events.rearm(log.lid);
        }
    }

    fn changed_namespaces(&self) -> [u8; SIZE] {
        let changed = &self.subsystem.controller(self.index).changed;
        let mut data = [0; SIZE];
        let numbers =
            (1..=NAMESPACES as u16).filter(|nsid| crate::nvme::subsystem::contains(changed, nsid - 1));
        for (place, nsid) in data.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&u32::from(nsid).to_le_bytes());
        }
        data
    }

    fn smart_log(&self) -> SmartLog {
        let statistics = self.statistics;
        let units = |bytes: u64| U128::new(u128::from(bytes.div_ceil(DATA_UNIT)));
        let count = |counter: &base::ledger::Counter| U128::new(counter.get().into());
        let mut log = SmartLog::new_zeroed();
        log.critical_warning = CriticalWarning(0)
            .with_read_only(self.subsystem.config.read_only)
            .with_temperature(self.features.is_too_hot_or_cold())
            .with_reliability(self.subsystem.has_fault())
            .0;
        log.composite_temperature = TEMPERATURE.into();
        log.available_spare = 100;
        log.available_spare_threshold = 10;
        log.data_units_read = units(statistics.read_bytes.get());
        log.data_units_written = units(statistics.written_bytes.get());
        log.host_read_commands = count(&statistics.read_commands);
        log.host_write_commands = count(&statistics.write_commands);
        log.media_errors = count(&statistics.media_errors);
        log.error_log_entries = U128::new(self.errors.cells.count.get().into());
        log
    }

    fn effects(&self) -> CommandsSupportedAndEffects {
        let mut log = CommandsSupportedAndEffects::new_zeroed();
        for opcode in AdminOpcode::KNOWN.iter().filter(|opcode| self.has_command(**opcode)) {
            let supported = CommandEffects(0).with_csupp(true);
            let effects = match *opcode {
                AdminOpcode::FORMAT_NVM => {
                    supported.with_lbcc(true).with_ncc(true).with_cse(ALONE_ON_NAMESPACE)
                }
                AdminOpcode::NAMESPACE_MANAGEMENT | AdminOpcode::NAMESPACE_ATTACHMENT => {
                    supported.with_nic(true)
                }
                _ => supported,
            };
            log.admin[usize::from(opcode.0)] = effects.0.into();
        }
        for opcode in NvmOpcode::KNOWN.iter().filter(|opcode| has_command(**opcode, &self.subsystem)) {
            let writes = !matches!(
                *opcode,
                NvmOpcode::FLUSH | NvmOpcode::READ | NvmOpcode::COMPARE | NvmOpcode::VERIFY
            );
            log.io[usize::from(opcode.0)] = CommandEffects(0).with_csupp(true).with_lbcc(writes).0.into();
        }
        log
    }
}

/// An error of a command.
#[derive(FromBytes, Layout)]
#[repr(C)]
struct ErrorCells {
    lba: Cell<u64>,
    nsid: Cell<u32>,
    sq: Cell<u16>,
    cid: Cell<u16>,
    status: Cell<u16>,
    reserved: [Cell<u16>; 3],
}

/// Errors ever, and the last of them: error `n` is at `(n - 1) % ERRORS`.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct ErrorLogCells {
    count: Cell<u64>,
    errors: [ErrorCells; ERRORS],
}

/// How commands have failed.
pub(crate) type ErrorLog<'m> = Part<'m, ErrorLogCells>;

impl ErrorLog<'_> {
    /// Notes how a command has failed.
    pub(crate) fn note(&self, command: &CommandCells, status: Status) {
        let (entry, origin, journal) = (command.entry(), command.origin.get(), self.journal);
        let count = &self.cells.count;
        let error = &self.cells.errors[(count.get() % ERRORS as u64) as usize];
        error.sq.set(journal, origin.sq);
        error.cid.set(journal, origin.cid);
        error.status.set(journal, status.bits());
        error.nsid.set(journal, entry.nsid.get());
        let ranged = origin.sq != 0 && entry.nvm_opcode() != NvmOpcode::DATASET_MANAGEMENT;
        error.lba.set(journal, if ranged { entry.slba() } else { 0 });
        count.update(journal, |count| count + 1);
    }

    /// The log page: the last error first.
    fn page(&self) -> [ErrorLogEntry; ERRORS] {
        let mut log = [ErrorLogEntry::default(); ERRORS];
        let count = self.cells.count.get();
        for (back, entry) in (0..count).zip(&mut log) {
            let number = count - back;
            let error = &self.cells.errors[((number - 1) % ERRORS as u64) as usize];
            entry.error_count = number.into();
            entry.sq_id = error.sq.get().into();
            entry.cid = error.cid.get().into();
            entry.status_and_phase = (error.status.get() << 1).into();
            entry.parameter_location = NO_PARAMETER.into();
            entry.lba = error.lba.get().into();
            entry.nsid = error.nsid.get().into();
        }
        log
    }
}
