//! What a lender reaches of its borrower's memory: a drive in front of a controller that says no more than it must.

use base::Payload;
use base::ledger::{Arena, Ledger};
use fabric::FabricAddress;
use host::{Access, BlockKind, BlockRequest};
use pcie::Tag;
use spec::nvme::registers::{self, Cap};
use spec::nvme::{AdminOpcode, CompletionEntry, PCI_CLASS_CODE, Status, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::NodeCells;

const NOW: Instant = Instant::from_nanos(1);
const DOMAIN: DomainId = DomainId(7);
/// Where the driver's queues lie in its queue memory: admin submissions, admin completions, I/O completions, identify data.
const ADMIN_CQ: u64 = QUEUE_MEMORY + 0x1000;
const IO_CQ: u64 = QUEUE_MEMORY + 0x2000;
const IDENTIFY: u64 = QUEUE_MEMORY + 0x3000;
const IO_SQ: u64 = QUEUE_MEMORY + 0x4000;

/// The lender's side of a drive.
struct Lender {
    enabled: bool,
    answered: u16,
}

impl Lender {
    /// Answers everything that the driver asks, but no I/O command.
    fn serve(&mut self, drive: &mut BorrowedDrive<'_>) {
        while let Some(access) = drive.driver.poll_access(NOW) {
            match access {
                Access::ConfigRead { id, register } => {
                    let value = if register == 8 { PCI_CLASS_CODE << 8 } else { 0 };
                    drive.driver.handle_access(NOW, id, Ok(&value.to_le_bytes()));
                }
                Access::ConfigWrite { id, .. } => drive.driver.handle_access(NOW, id, Ok(&[])),
                Access::Read { id, offset: registers::CAP, .. } => {
                    drive.driver.handle_access(NOW, id, Ok(&Cap(0).with_mqes(0xff).0.to_le_bytes()));
                }
                Access::Read { id, .. } => {
                    drive.driver.handle_access(NOW, id, Ok(&u32::from(self.enabled).to_le_bytes()));
                }
                Access::Write { offset: registers::CC, payload: Payload::Inline(bytes), .. } => {
                    self.enabled = bytes.as_slice()[0] & 1 != 0;
                }
                // The admin queue's doorbell.
                Access::Write { offset: 0x1000, .. } => self.admin(drive),
                Access::Write { .. } => {}
            }
        }
    }

    fn admin(&mut self, drive: &mut BorrowedDrive<'_>) {
        let mut bytes = [0; size_of::<SubmissionEntry>()];
        drive.driver.memory_read(u64::from(self.answered % 16) * 64, &mut bytes);
        let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
        if entry.admin_opcode() == AdminOpcode::IDENTIFY && entry.cdw10.get() == 2 {
            write(drive, IDENTIFY, &1_u32.to_le_bytes());
        } else if entry.admin_opcode() == AdminOpcode::IDENTIFY && entry.cdw10.get() == 0 {
            // 1024 blocks of 512 bytes.
            write(drive, IDENTIFY, &1024_u64.to_le_bytes());
            write(drive, IDENTIFY + 128, &[0, 0, 9, 0]);
        }
        let done = CompletionEntry::new(0, 0, entry.cid.get(), Status::SUCCESS, 0, true);
        write(drive, ADMIN_CQ + u64::from(self.answered) * 16, done.as_bytes());
        self.answered += 1;
    }
}

/// The lender writes to the borrower. True if it was let.
fn write(drive: &mut BorrowedDrive<'_>, offset: u64, bytes: &[u8]) -> bool {
    let address = FabricAddress { domain: DOMAIN, rail: Rail::default(), offset }.encode();
    let request = MemoryRequest::new(FUNCTION, Tag::default(), address, bytes.len()).unwrap();
    let before = drive.gauges.denied_accesses.get();
    drive.memory_write(NOW, &request, bytes);
    drive.gauges.denied_accesses.get() == before
}

fn submit(drive: &mut BorrowedDrive<'_>, id: u32, kind: BlockKind) -> u64 {
    let page = drive.pages.alloc().unwrap();
    drive.pages.write(page, 0, &[id as u8; PAGE_SIZE]);
    drive.driver.submit(NOW, BlockRequest { id, kind, lba: 0, blocks: 8, fua: false, pages: &[page] });
    DATA_MEMORY + u64::from(page.0) * PAGE_SIZE as u64
}

/// The lender ends the I/O command at place `index` of the queue.
fn end(drive: &mut BorrowedDrive<'_>, index: u64) {
    let mut bytes = [0; size_of::<SubmissionEntry>()];
    drive.driver.memory_read(IO_SQ - QUEUE_MEMORY + index * 64, &mut bytes);
    let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
    let done = CompletionEntry::new(1, 0, entry.cid.get(), Status::SUCCESS, 0, true);
    assert!(write(drive, IO_CQ + index * 16, done.as_bytes()));
}

#[test]
fn a_lender_reaches_the_pages_of_running_commands_in_their_direction_only() {
    let arena = Arena::default();
    let Ledger { journal, root } = arena.zeroed::<NodeCells>().ledger::<NodeCells>(None, base::RuleSet::ALL);
    let cells = &root.loans[0];
    let pages = Pages::new(&cells.pages, journal);
    let mut drive = BorrowedDrive::new(cells, pages, journal, DOMAIN, Duration::from_secs(1));
    let mut lender = Lender { enabled: false, answered: 0 };
    drive.driver.start(NOW);
    lender.serve(&mut drive);
    assert!(drive.driver.is_ready(), "{:?}", drive.driver.state());

    let (written, read) = (submit(&mut drive, 1, BlockKind::Write), submit(&mut drive, 2, BlockKind::Read));
    assert!(!write(&mut drive, read, &[0xee; 8]), "nothing is issued yet");
    lender.serve(&mut drive);
    assert!(!write(&mut drive, written, &[0xee; 8]), "a page of a running write was written");
    assert!(write(&mut drive, read, &[0xee; 8]) && !write(&mut drive, read + 4096, &[0xee; 8]));
    let reached = |drive: &BorrowedDrive<'_>, address| {
        let page = page_of(address - DATA_MEMORY).0;
        (drive.driver.may_read(page), drive.driver.may_write(page))
    };
    assert_eq!((reached(&drive, written), reached(&drive, read)), ((true, false), (false, true)));
    end(&mut drive, 0);
    end(&mut drive, 1);
    // Both pages live, as long as the requester does not give them back.
    assert!(!write(&mut drive, read, &[0xee; 8]) && !write(&mut drive, written, &[0xee; 8]));
    assert_eq!((reached(&drive, written), reached(&drive, read)), ((false, false), (false, false)));
    assert_eq!(drive.pages.used(), 2);
}
