//! Device Self-test (NVMe 2.0 §5.9): the medium has to answer the read of its first page. Short and extended are the
//! same, and over when the command completes.

use base::ledger::{Cell, Layout, PAGE_SIZE};
use spec::nvme::{NSID_ALL, SelfTestLog, SelfTestResult, Status, SubmissionEntry};
use zerocopy::{FromBytes, FromZeros};

use crate::nvme::Controller;
use crate::nvme::cells::SELF_TESTS;
use crate::nvme::command::{Target, Work};

/// Self-test Codes.
const SHORT: u8 = 1;
const EXTENDED: u8 = 2;
const ABORT: u8 = 0xf;
/// Results.
const PASSED: u8 = 0;
const SEGMENT_FAILED: u8 = 7;
/// SCT and SC of the result are valid.
const STATUS_VALID: u8 = 0xc;

/// The result of a self-test.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct SelfTestCells {
    nsid: Cell<u32>,
    code: Cell<u16>,
    failed: Cell<u16>,
}

impl Controller<'_> {
    pub(super) fn begin_self_test(&mut self, slot: u16, entry: &SubmissionEntry) -> Result<(), Status> {
        let nsid = entry.nsid.get();
        if nsid != 0 && nsid != NSID_ALL {
            self.active_namespace(nsid)?;
        }
        match entry.cdw10.get() as u8 & 0xf {
            SHORT | EXTENDED => {
                let len = PAGE_SIZE as u32;
                let len = len.min(u32::try_from(self.subsystem.cells.capacity.get()).unwrap_or(len));
                self.command(slot).target.set(self.journal, Target { len, ..Target::default() });
                self.begin_reading(slot, Work::SelfTest, len);
            }
            // There never is one to abort.
            ABORT => self.complete(slot, 0, Status::SUCCESS),
            _ => return Err(Status::INVALID_FIELD),
        }
        Ok(())
    }

    pub(crate) fn end_self_test(&mut self, slot: u16, passed: bool) {
        let (cells, journal) = (&self.cells.admin, self.journal);
        let entry = self.command(slot).entry();
        let number = cells.self_test_count.get();
        let result = &cells.self_tests[(number % SELF_TESTS as u64) as usize];
        result.nsid.set(journal, entry.nsid.get());
        result.code.set(journal, entry.cdw10.get() as u16 & 0xf);
        result.failed.set(journal, u16::from(!passed));
        cells.self_test_count.set(journal, number + 1);
        self.complete(slot, 0, Status::SUCCESS);
    }

    pub(super) fn self_test_log(&self) -> SelfTestLog {
        let cells = &self.cells.admin;
        let count = cells.self_test_count.get();
        let mut log = SelfTestLog::new_zeroed();
        for (back, entry) in (1..).zip(&mut log.results) {
            entry.status = SelfTestResult::UNUSED;
            let Some(number) = count.checked_sub(back) else { continue };
            let result = &cells.self_tests[(number % SELF_TESTS as u64) as usize];
            let failed = result.failed.get() != 0;
            entry.status = (result.code.get() as u8) << 4 | if failed { SEGMENT_FAILED } else { PASSED };
            entry.nsid = result.nsid.get().into();
            if failed {
                entry.segment = 1;
                entry.valid = STATUS_VALID;
                entry.sct = Status::UNRECOVERED_READ_ERROR.sct().0;
                entry.sc = Status::UNRECOVERED_READ_ERROR.sc();
            }
        }
        log
    }
}
