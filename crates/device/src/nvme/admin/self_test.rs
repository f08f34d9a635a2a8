//! Device Self-test (NVMe 2.0 §5.9): the medium has to answer the read of its first page. Short and extended are the
//! same, and over when the command completes.

use base::ledger::{Cell, Layout, PAGE_SIZE};
use spec::nvme::{NSID_ALL, SelfTestLog, SelfTestResult, Status, SubmissionEntry};
use zerocopy::{FromBytes, FromZeros};

use super::Admin;
use crate::nvme::cells::{Part, SELF_TESTS};
use crate::nvme::command::{CommandCells, Next, Target, Work};

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
struct ResultCells {
    nsid: Cell<u32>,
    code: Cell<u16>,
    failed: Cell<u16>,
}

/// Self-tests ever, and the results of the last.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct SelfTestCells {
    count: Cell<u64>,
    results: [ResultCells; SELF_TESTS],
}

/// What self-tests have found.
pub(crate) type SelfTests<'m> = Part<'m, SelfTestCells>;

impl SelfTests<'_> {
    /// A self-test has ended.
    pub(crate) fn note(&self, entry: &SubmissionEntry, passed: bool) {
        let (count, journal) = (&self.cells.count, self.journal);
        let result = &self.cells.results[(count.get() % SELF_TESTS as u64) as usize];
        result.nsid.set(journal, entry.nsid.get());
        result.code.set(journal, entry.cdw10.get() as u16 & 0xf);
        result.failed.set(journal, u16::from(!passed));
        count.update(journal, |count| count + 1);
    }

    /// The log page: the last result first.
    pub(super) fn page(&self) -> SelfTestLog {
        let count = self.cells.count.get();
        let mut log = SelfTestLog::new_zeroed();
        for (back, entry) in (1..).zip(&mut log.results) {
            entry.status = SelfTestResult::UNUSED;
            let Some(number) = count.checked_sub(back) else { continue };
            let result = &self.cells.results[(number % SELF_TESTS as u64) as usize];
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

impl Admin<'_> {
    pub(super) fn self_test(&self, command: &CommandCells, entry: &SubmissionEntry) -> Result<Next, Status> {
        let nsid = entry.nsid.get();
        if nsid != 0 && nsid != NSID_ALL {
            self.subsystem.active_namespace(nsid, self.index)?;
        }
        match entry.cdw10.get() as u8 & 0xf {
            SHORT | EXTENDED => {
                let len = PAGE_SIZE as u32;
                let len = len.min(u32::try_from(self.subsystem.cells.capacity.get()).unwrap_or(len));
                command.target.set(self.journal, Target { len, ..Target::default() });
                Ok(command.want_pages(self.journal, Work::SelfTest, len))
            }
            // There never is one to abort.
            ABORT => Ok(Next::Complete(0)),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}
