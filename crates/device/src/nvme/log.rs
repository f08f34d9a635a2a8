//! Get Log Page (NVMe 2.0 §5.16). Every page here is shorter than 4 KiB.

use spec::nvme::identify::{SIZE, fill_ascii};
use spec::nvme::log::{CommandEffects, CriticalWarning};
use spec::nvme::{
    AdminOpcode, CommandsSupportedAndEffects, FeatureId, FirmwareSlotLog, GetLogPage, LogPageId, NSID_ALL,
    NvmOpcode, SmartLog, Status,
};
use zerocopy::little_endian::U128;
use zerocopy::{FromZeros, IntoBytes};

use super::Controller;
use super::cells::DATA_MAX;

/// Bytes of an entry of the error log; it has one, which is always empty: errors are told in completions only.
const ERROR_LOG_BYTES: usize = 64;
/// Bytes of SMART and firmware slot log.
const SHORT_BYTES: usize = 512;
/// Bytes of the pages with one dword for each of 256 numbers.
const TABLE_BYTES: usize = 1024;
/// Kelvins of a drive that has no temperature: 40 °C.
const TEMPERATURE: u16 = 313;
/// Bytes of the unit of data units read and written.
const DATA_UNIT: u64 = 512_000;
/// Bit of the Supported Log Pages and the Feature Identifiers pages: it exists.
const SUPPORTED: u32 = 1;
/// Bit of the Feature Identifiers page: its scope is the controller.
const CONTROLLER_SCOPE: u32 = 1 << 21;

const PAGES: [(LogPageId, usize); 6] = [
    (LogPageId::SUPPORTED_LOG_PAGES, TABLE_BYTES),
    (LogPageId::ERROR_INFORMATION, ERROR_LOG_BYTES),
    (LogPageId::SMART, SHORT_BYTES),
    (LogPageId::FIRMWARE_SLOT, SHORT_BYTES),
    (LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, SIZE),
    (LogPageId::FEATURES_SUPPORTED_AND_EFFECTS, TABLE_BYTES),
];

impl Controller<'_> {
    /// The bytes that a command asks for, if the page exists and the arguments make sense.
    pub(super) fn check_log_page(&self, log: &GetLogPage) -> Result<u32, Status> {
        let Some((_, size)) = PAGES.iter().find(|(id, _)| *id == log.lid) else {
            return Err(Status::INVALID_LOG_PAGE);
        };
        let len = log.dwords * 4;
        let misplaced = !log.offset.is_multiple_of(4) || log.offset > *size as u64 || log.offset_is_index;
        let of_namespace = ![0, NSID_ALL].contains(&log.nsid);
        if misplaced || of_namespace || len > u64::from(DATA_MAX) {
            return Err(Status::INVALID_FIELD);
        }
        Ok(len as u32)
    }

    /// The whole of a page that exists.
    pub(super) fn log_page(&self, id: LogPageId) -> [u8; SIZE] {
        let mut data = [0; SIZE];
        let mut fill = |bytes: &[u8]| data[..bytes.len()].copy_from_slice(bytes);
        match id {
            LogPageId::SUPPORTED_LOG_PAGES => {
                let mut table = [[0; 4]; TABLE_BYTES / 4];
                PAGES.iter().for_each(|(id, _)| table[usize::from(id.0)] = SUPPORTED.to_le_bytes());
                fill(table.as_flattened());
            }
            LogPageId::SMART => fill(self.smart_log().as_bytes()),
            LogPageId::FIRMWARE_SLOT => {
                let mut log = FirmwareSlotLog::new_zeroed();
                log.active = 1;
                fill_ascii(&mut log.revisions[0], &self.config.firmware);
                fill(log.as_bytes());
            }
            LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS => fill(effects().as_bytes()),
            LogPageId::FEATURES_SUPPORTED_AND_EFFECTS => {
                let mut table = [[0; 4]; TABLE_BYTES / 4];
                for id in FeatureId::KNOWN.iter().filter(|id| self.has_feature(**id)) {
                    table[usize::from(id.0)] = (SUPPORTED | CONTROLLER_SCOPE).to_le_bytes();
                }
                fill(table.as_flattened());
            }
            _ => {}
        }
        data
    }

    /// Reading the log page of an event lets it be reported again, unless the command says otherwise.
    pub(super) fn note_log_read(&mut self, log: &GetLogPage) {
        if log.lid == LogPageId::ERROR_INFORMATION && !log.rae {
            self.rearm_events();
        }
    }

    fn smart_log(&self) -> SmartLog {
        let statistics = &self.cells.statistics;
        let units = |bytes: u64| U128::new(u128::from(bytes.div_ceil(DATA_UNIT)));
        let count = |counter: &base::ledger::Counter| U128::new(counter.get().into());
        let mut log = SmartLog::new_zeroed();
        log.critical_warning = CriticalWarning(0).with_read_only(self.config.read_only).0;
        log.composite_temperature = TEMPERATURE.into();
        log.available_spare = 100;
        log.available_spare_threshold = 10;
        log.data_units_read = units(statistics.read_bytes.get());
        log.data_units_written = units(statistics.written_bytes.get());
        log.host_read_commands = count(&statistics.read_commands);
        log.host_write_commands = count(&statistics.write_commands);
        log.media_errors = count(&statistics.media_errors);
        log
    }
}

fn effects() -> CommandsSupportedAndEffects {
    let supported = CommandEffects(0).with_csupp(true);
    let mut log = CommandsSupportedAndEffects::new_zeroed();
    for opcode in [
        AdminOpcode::DELETE_IO_SQ,
        AdminOpcode::CREATE_IO_SQ,
        AdminOpcode::GET_LOG_PAGE,
        AdminOpcode::DELETE_IO_CQ,
        AdminOpcode::CREATE_IO_CQ,
        AdminOpcode::IDENTIFY,
        AdminOpcode::ABORT,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::GET_FEATURES,
        AdminOpcode::ASYNC_EVENT_REQUEST,
    ] {
        log.admin[usize::from(opcode.0)] = supported.0.into();
    }
    for opcode in [NvmOpcode::FLUSH, NvmOpcode::READ] {
        log.io[usize::from(opcode.0)] = supported.0.into();
    }
    for opcode in [NvmOpcode::WRITE, NvmOpcode::WRITE_ZEROES, NvmOpcode::DATASET_MANAGEMENT] {
        log.io[usize::from(opcode.0)] = supported.with_lbcc(true).0.into();
    }
    log
}
