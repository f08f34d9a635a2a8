//! Whatever a function answers and writes to the host's queues, the driver stands and forgets no request.
#![no_main]

use core::time::Duration;
use std::collections::VecDeque;

use base::ledger::{Arena, PageCells};
use host::nvme::{Driver, DriverCells, DriverConfig, QUEUE_MEMORY_SIZE};
use host::{Access, AccessError, AccessId, BlockKind, BlockRequest};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rigs::Rig;
use zerocopy::FromBytes;

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    driver: DriverCells,
    pages: PageCells,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Answer {
        bytes: [u8; 8],
        short: bool,
    },
    /// As a controller in good health would: version, capabilities, ready.
    Healthy,
    Failed(u8),
    Stale(u32),
    Memory {
        offset: u16,
        bytes: Vec<u8>,
    },
    /// A completion queue entry, of the admin queue or the other one.
    Completion {
        io: bool,
        slot: u8,
        cid: u16,
        status: u16,
        head: u8,
        phase: bool,
    },
    /// Identify data that makes sense, up to the byte that does not.
    Identify {
        at: u16,
        value: u8,
    },
    Interrupt(u32),
    Read {
        offset: u16,
        len: u8,
    },
    Submit {
        kind: u8,
        lba: u32,
        blocks: u8,
        fua: bool,
    },
    Wait {
        millis: u16,
    },
    Reset,
    Shutdown,
    Start,
}

struct World<'m> {
    driver: Driver<'m>,
    rig: &'m Rig<'m, Root>,
    now: base::Instant,
    awaited: VecDeque<(AccessId, Access)>,
    next: u32,
    open: std::collections::BTreeMap<u32, Vec<base::ledger::PageIndex>>,
}

impl World<'_> {
    fn step(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::Answer { bytes, short } => self.answer(Ok(&bytes[..if *short { 4 } else { 8 }])),
            Step::Healthy => self.answer_well(),
            Step::Failed(kind) => {
                let errors = [AccessError::UnsupportedRequest, AccessError::Aborted, AccessError::Timeout];
                self.answer(Err(errors[usize::from(kind % 3)]));
            }
            Step::Stale(id) => self.driver.handle_access(now, AccessId(*id), Ok(&[0; 4])),
            Step::Memory { offset, bytes } => {
                let offset = usize::from(*offset) % QUEUE_MEMORY_SIZE;
                let bytes = &bytes[..bytes.len().min(QUEUE_MEMORY_SIZE - offset)];
                self.driver.memory_write(now, offset as u64, bytes);
            }
            Step::Completion { io, slot, cid, status, head, phase } => {
                let mut entry = [0; 16];
                entry[8] = *head;
                entry[12..14].copy_from_slice(&cid.to_le_bytes());
                entry[14..16].copy_from_slice(&(status << 1 | u16::from(*phase)).to_le_bytes());
                let offset = if *io { 0x2000 } else { 0x1000 } + u64::from(*slot % 16) * 16;
                self.driver.memory_write(now, offset, &entry);
            }
            Step::Identify { at, value } => {
                let mut bytes = [0; 4096];
                // Size, capacity and use of a namespace; its formats; the sizes of entries and the namespaces.
                bytes[..24].copy_from_slice(&[64_u64.to_le_bytes(); 3].concat());
                (bytes[130], bytes[512], bytes[513], bytes[516]) = (9, 0x66, 0x44, 1);
                bytes[usize::from(*at) % 4096] = *value;
                self.driver.memory_write(now, 0x3000, &bytes);
            }
            Step::Interrupt(vector) => self.driver.interrupt(now, *vector),
            Step::Read { offset, len } => {
                let offset = usize::from(*offset) % (QUEUE_MEMORY_SIZE - 256);
                self.driver.memory_read(offset as u64, &mut vec![0; usize::from(*len)]);
            }
            Step::Submit { kind, lba, blocks, fua } => self.submit(*kind, *lba, *blocks, *fua),
            Step::Wait { millis } => {
                self.now += Duration::from_millis((*millis).into());
                self.driver.handle_timeout(self.now);
            }
            Step::Reset => self.driver.handle_reset(now),
            Step::Shutdown => self.driver.shutdown(now),
            Step::Start => self.driver.start(now),
        }
        self.drain();
    }

    fn answer(&mut self, result: Result<&[u8], AccessError>) {
        if let Some((id, _)) = self.awaited.pop_front() {
            self.driver.handle_access(self.now, id, result);
        }
    }

    fn answer_well(&mut self) {
        let Some((id, access)) = self.awaited.pop_front() else { return };
        let value: u64 = match access {
            Access::ConfigRead { register: 0, .. } => 0x0001_ca05,
            Access::ConfigRead { register: 8, .. } => 0x0108_0200,
            Access::Read { offset: 0, .. } => 0x0000_0020_1401_00ff,
            Access::Read { offset: 8, .. } => 0x0002_0000,
            Access::Read { offset: 0x1c, .. } => 1,
            _ => 0,
        };
        let bytes = value.to_le_bytes();
        let len = match access {
            Access::Read { len, .. } => usize::from(len).min(8),
            Access::ConfigRead { .. } => 4,
            _ => 0,
        };
        self.driver.handle_access(self.now, id, Ok(&bytes[..len]));
    }

    fn submit(&mut self, kind: u8, lba: u32, blocks: u8, fua: bool) {
        let Some(geometry) = self.driver.geometry().filter(|_| self.driver.room() > 0) else { return };
        let kinds = [
            BlockKind::Read,
            BlockKind::Write,
            BlockKind::Flush,
            BlockKind::Trim,
            BlockKind::WriteZeroes { deallocate: false },
            BlockKind::WriteZeroes { deallocate: true },
        ];
        let kind = kinds[usize::from(kind) % kinds.len()];
        let most = (BlockRequest::MAX_BYTES / geometry.block_size).min(255);
        let blocks = if kind == BlockKind::Flush { 0 } else { u32::from(blocks) % most + 1 };
        let data = matches!(kind, BlockKind::Read | BlockKind::Write);
        let count = if data { (blocks * geometry.block_size).div_ceil(4096) } else { 0 };
        let pool = self.rig.pages(&self.rig.root.pages);
        let pages: Vec<_> = (0..count).map_while(|_| pool.alloc()).collect();
        if pages.len() < count as usize {
            return pages.into_iter().for_each(|page| pool.release(page));
        }
        let id = self.next;
        self.next += 1;
        self.driver.submit(self.now, BlockRequest { id, kind, lba: lba.into(), blocks, fua, pages: &pages });
        self.open.insert(id, pages);
    }

    fn drain(&mut self) {
        for _ in 0..1000 {
            let Some(access) = self.driver.poll_access(self.now) else { break };
            match access {
                Access::Read { id, .. } | Access::ConfigRead { id, .. } | Access::ConfigWrite { id, .. } => {
                    self.awaited.push_back((id, access));
                }
                Access::Write { .. } => {}
            }
        }
        while let Some((id, _)) = self.driver.poll_completion() {
            let pages = self.open.remove(&id).expect("a request ends once");
            pages.into_iter().for_each(|page| self.rig.pages(&self.rig.root.pages).release(page));
        }
        self.rig.journal.commit();
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let arena = Arena::default();
    let rig = Rig::<Root>::new(&arena);
    let config = DriverConfig {
        queue_memory: 0x1000_0000,
        data_memory: 0x4000_0000,
        interrupt: 0x2000_0000,
        bar_bytes: 1 << 40,
    };
    let driver = Driver::new(&rig.root.driver, rig.pages(&rig.root.pages), rig.journal, config);
    let (awaited, open) = (VecDeque::new(), Default::default());
    let mut world = World { driver, rig: &rig, now: rigs::START, awaited, next: 0, open };
    world.step(&Step::Start);
    steps.iter().take(100).for_each(|step| world.step(step));
    // Asked to end, it does, by force if need be, and every request ends with it.
    world.step(&Step::Shutdown);
    for _ in 0..20 {
        world.step(&Step::Wait { millis: 10_000 });
    }
    assert!(world.driver.is_shut_down());
    assert!(world.open.is_empty(), "every request has ended");
});
