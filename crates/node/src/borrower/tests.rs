//! What a lender reaches of its borrower's memory: a drive in front of a controller that says no more than it must.

use base::Payload;
use base::ids::{DomainId, RailId};
use base::ledger::Arena;
use fabric::FabricAddress;
use host::nvme::FunctionError;
use host::{Access, BlockKind, BlockRequest};
use pcie::Tag;
use spec::nvme::registers::{self, Cap};
use spec::nvme::{AdminOpcode, CompletionEntry, PCI_CLASS_CODE, Status, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::cells::{EndCells, LoanKind, parts_of};

const NOW: Instant = Instant::from_nanos(1);
const DOMAIN: DomainId = DomainId(7);
/// Where the driver's queues lie in its queue memory: admin submissions, admin completions, I/O completions, identify
/// data.
const ADMIN_CQ: u64 = QUEUE_MEMORY + 0x1000;
const IO_CQ: u64 = QUEUE_MEMORY + 0x2000;
const IDENTIFY: u64 = QUEUE_MEMORY + 0x3000;
const IO_SQ: u64 = QUEUE_MEMORY + 0x4000;

/// The lender's side of a drive.
#[derive(Default)]
struct Lender {
    enabled: bool,
    answered: u16,
    /// What it says in place of the truth: by register of configuration space, and of the controller.
    config: Vec<(u16, u32)>,
    registers: Vec<(u64, u64)>,
    /// Asynchronous events are announced; the request for them is kept.
    events: bool,
    /// Blocks of the namespace, if not 1024.
    blocks: Option<u64>,
}

impl Lender {
    /// Answers everything that the driver asks, but no I/O command.
    fn serve(&mut self, drive: &mut BorrowedDrive<'_>) {
        while let Some(access) = drive.driver.poll_access(NOW) {
            if let Access::Read { bar, offset, .. } | Access::Write { bar, offset, .. } = &access {
                assert!(crate::apertures::bar_address(*bar, *offset).is_some(), "{access:?} can be sent");
            }
            match access {
                Access::ConfigRead { id, register } => {
                    let said = self.config.iter().find(|(at, _)| *at == register);
                    let honest = if register == 8 { PCI_CLASS_CODE << 8 } else { 0 };
                    let value = said.map_or(honest, |(_, value)| *value);
                    drive.driver.handle_access(NOW, id, Ok(&value.to_le_bytes()));
                }
                Access::ConfigWrite { id, .. } => drive.driver.handle_access(NOW, id, Ok(&[])),
                Access::Read { id, offset, len, .. } => {
                    let said = self.registers.iter().find(|(at, _)| *at == offset);
                    let honest = match offset {
                        registers::CAP => Cap(0).with_mqes(0xff).0,
                        _ => self.enabled.into(),
                    };
                    let value = said.map_or(honest, |(_, value)| *value);
                    drive.driver.handle_access(NOW, id, Ok(&value.to_le_bytes()[..len.into()]));
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
        if entry.admin_opcode() == AdminOpcode::ASYNC_EVENT_REQUEST {
            return;
        }
        if self.events && entry.admin_opcode() == AdminOpcode::IDENTIFY && entry.cdw10.get() == 1 {
            write(drive, IDENTIFY + 92, &(1_u32 << 8).to_le_bytes());
        } else if entry.admin_opcode() == AdminOpcode::IDENTIFY && entry.cdw10.get() == 2 {
            write(drive, IDENTIFY, &1_u32.to_le_bytes());
        } else if entry.admin_opcode() == AdminOpcode::IDENTIFY && entry.cdw10.get() == 0 {
            // Blocks of 512 bytes.
            write(drive, IDENTIFY, &self.blocks.unwrap_or(1024).to_le_bytes());
            write(drive, IDENTIFY + 128, &[0, 0, 9, 0]);
        }
        let done = CompletionEntry::new(0, 0, entry.cid.get(), Status::SUCCESS, 0, true);
        write(drive, ADMIN_CQ + u64::from(self.answered) * 16, done.as_bytes());
        self.answered += 1;
    }
}

/// The lender writes to the borrower. True if it was let.
fn write(drive: &mut BorrowedDrive<'_>, offset: u64, bytes: &[u8]) -> bool {
    let address = FabricAddress { domain: DOMAIN, rail: RailId::default(), offset }.encode();
    let request =
        MemoryRequest::new(transaction::requester_of(0), Tag::default(), address, bytes.len()).unwrap();
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
    let (mut drive, _) = new_drive(&arena);
    let mut lender = Lender::default();
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

/// Runs `test` with a drive that is not started yet.
fn with_drive(test: impl FnOnce(&mut BorrowedDrive<'_>, Journal<'_>)) {
    let arena = Arena::default();
    let (mut drive, journal) = new_drive(&arena);
    test(&mut drive, journal);
}

fn new_drive(arena: &Arena) -> (BorrowedDrive<'_>, Journal<'_>) {
    let (journal, parts) = parts_of(arena, LoanKind::Drive);
    let EndCells::Drive { driver, server } = parts.end else { unreachable!("it was made for a drive") };
    let (pages, gauges) = (Pages::new(parts.pages, journal), &parts.cells.edge);
    let drive = BorrowedDrive::new(
        (driver, server),
        gauges,
        pages,
        journal,
        (0, transaction::requester_of(0)),
        Duration::from_secs(1),
    );
    (drive, journal)
}

#[test]
fn a_lender_that_names_a_bar_that_cannot_be_is_refused() {
    let capabilities = (0x04, 0x0010_0000);
    for bar in [6, 7] {
        with_drive(|drive, _| {
            let msix = vec![capabilities, (0x34, 0x40), (0x40, 0x0003_0011), (0x44, 0x2000 | bar)];
            drive.driver.start(NOW);
            Lender { config: msix, ..Lender::default() }.serve(drive);
            assert_eq!(drive.driver.unusable(), Some(FunctionError::VectorTable(bar as u8)));
            assert!(!drive.driver.is_ready());
        });
    }
    // Sizes are in units of 4 KiB to 64 GiB, and so are offsets.
    for (location, size) in [(6, 0x0010_0003), (7, 0x0010_0003), (0xffff_f000, 0x0010_0603)] {
        with_drive(|drive, _| {
            let cap = Cap(0).with_mqes(0xff).with_cmbs(true).0;
            let said = vec![
                (registers::CAP, cap),
                (registers::CSTS, 0),
                (registers::CMBLOC, location),
                (registers::CMBSZ, size),
            ];
            drive.driver.start(NOW);
            Lender { registers: said, ..Lender::default() }.serve(drive);
            assert_eq!(drive.driver.unusable(), Some(FunctionError::MemoryBuffer(location as u8 & 7)));
        });
    }
}

#[test]
fn a_namespace_whose_bytes_cannot_be_counted_is_refused() {
    for (blocks, is_usable) in [(u64::MAX, false), (1 << 55, false), ((1 << 54) - 1, true)] {
        with_drive(|drive, _| {
            drive.driver.start(NOW);
            Lender { blocks: Some(blocks), ..Lender::default() }.serve(drive);
            assert_eq!((drive.driver.is_ready(), drive.driver.geometry().is_some()), (is_usable, is_usable));
        });
    }
}

#[test]
fn more_admin_completions_than_the_driver_can_answer_wait() {
    with_drive(|drive, journal| {
        let mut lender = Lender { events: true, ..Lender::default() };
        drive.driver.start(NOW);
        lender.serve(drive);
        assert!(drive.driver.is_ready(), "{:?}", drive.driver.state());
        write(drive, IDENTIFY, &1_u64.to_le_bytes());
        journal.commit();
        // All TLPs of a frame are taken before the driver is asked what it wants.
        for count in 0..20_u16 {
            let cid = if count % 4 == 0 { 0xffff } else { 0xfffe };
            let at = lender.answered + count;
            let done = CompletionEntry::new(0, 0, cid, Status::SUCCESS, 0, at < 16);
            assert!(write(drive, ADMIN_CQ + u64::from(at % 16) * 16, done.as_bytes()));
        }
        let left = core::iter::from_fn(|| drive.driver.poll_access(NOW)).count();
        assert!(left > 16, "what waited was taken when there was room: {left}");
    });
}
