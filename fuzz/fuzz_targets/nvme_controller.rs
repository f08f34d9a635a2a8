//! Whatever hosts write to the registers of two functions of a drive, leave in their memory or complete wrongly, the
//! controllers stand.
#![no_main]

use std::collections::VecDeque;

use base::ledger::{Arena, PageCells};
use base::{Instant, Payload};
use device::nvme::{Config, Controller, Limit, NamespaceConfig, NvmeCells, Subsystem, SubsystemCells};
use device::{Dma, DmaError, DmaId, Function, MediaError, MediaFunction, MediaId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rigs::Rig;
use zerocopy::FromBytes;

const BLOCKS: u64 = 64;
const FUNCTIONS: usize = 2;

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    drive: SubsystemCells,
    functions: [Function0; FUNCTIONS],
}

#[derive(FromBytes)]
#[repr(C)]
struct Function0 {
    pages: PageCells,
    nvme: NvmeCells,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Host(HostStep),
    Answer(AnswerStep),
    Other(OtherStep),
}

/// What a host does: accesses, and what it has in its memory.
#[derive(Arbitrary, Debug)]
enum HostStep {
    Register {
        offset: u16,
        value: u32,
    },
    Wide {
        offset: u16,
        value: u64,
    },
    Doorbell {
        index: u8,
        value: u8,
    },
    Buffer {
        offset: u16,
        bytes: Vec<u8>,
    },
    Read {
        bar: u8,
        offset: u32,
        len: u8,
    },
    ConfigRead(u16),
    ConfigWrite {
        register: u16,
        value: u32,
        enables: u8,
    },
    /// The host's memory holds this command where the controller looks next.
    Command {
        opcode: u8,
        flags: u8,
        namespace: u8,
        prp1: u32,
        prp2: u32,
        dwords: [u16; 6],
    },
    /// What the host's memory holds where lists are read: addresses or descriptors of an SGL.
    List(Vec<(u8, u16, u16)>),
}

/// What comes of the controller's own accesses and of its medium's work.
#[derive(Arbitrary, Debug)]
enum AnswerStep {
    /// A part of the data of the oldest read.
    Data {
        bytes: Vec<u8>,
        offset: u16,
        last: bool,
    },
    /// The whole of it.
    Fill(u64),
    Failed(u8),
    Media {
        failed: u8,
    },
}

/// Time, and what the drive's owner does.
#[derive(Arbitrary, Debug)]
enum OtherStep {
    Timeout,
    Wait(u32),
    Limit {
        iops: u16,
        bytes_per_s: u32,
    },
    /// The owner has kept what it was given last, or could not.
    Persisted(bool),
    Grow(u8),
    /// The other function is next.
    Turn,
    Reset,
    Enable,
}

struct Seat<'m> {
    controller: Controller<'m>,
    reads: VecDeque<(DmaId, usize)>,
    media: VecDeque<MediaId>,
}

struct World<'m> {
    seats: Vec<Seat<'m>>,
    turn: usize,
    rig: &'m Rig<'m, Root>,
    drive: Subsystem<'m>,
    persist: Option<u64>,
    now: Instant,
    blocks: u64,
    command: [u8; 64],
    list: Vec<u8>,
}

impl<'m> World<'m> {
    fn seat(&mut self) -> &mut Seat<'m> {
        &mut self.seats[self.turn]
    }

    fn register(&mut self, offset: u64, value: u32) {
        let now = self.now;
        self.seat().controller.write(now, 0, offset, &value.to_le_bytes());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Host(step) => self.host_does(step),
            Step::Answer(step) => self.answer(step),
            Step::Other(step) => self.happens(step),
        }
        self.drain();
    }

    fn host_does(&mut self, step: &HostStep) {
        let now = self.now;
        let controller = &mut self.seats[self.turn].controller;
        match step {
            HostStep::Register { offset, value } => {
                controller.write(now, 0, (*offset).into(), &value.to_le_bytes())
            }
            HostStep::Wide { offset, value } => {
                controller.write(now, 0, (*offset).into(), &value.to_le_bytes())
            }
            HostStep::Doorbell { index, value } => {
                self.register(0x1000 + u64::from(*index % 8) * 4, (*value).into())
            }
            HostStep::Buffer { offset, bytes } => controller.write(now, 4, (*offset).into(), bytes),
            HostStep::Read { bar, offset, len } => {
                controller.read(now, *bar, (*offset).into(), &mut vec![0; usize::from(*len)]);
            }
            HostStep::ConfigRead(register) => drop(controller.config_read(*register & 0xffc)),
            HostStep::ConfigWrite { register, value, enables } => {
                controller.config_write(now, *register & 0xffc, *value, *enables & 0xf);
            }
            HostStep::Command { opcode, flags, namespace, prp1, prp2, dwords } => {
                self.command = [0; 64];
                self.command[..2].copy_from_slice(&[*opcode, *flags]);
                self.command[4] = *namespace;
                self.command[24..28].copy_from_slice(&prp1.to_le_bytes());
                self.command[32..36].copy_from_slice(&prp2.to_le_bytes());
                for (field, dword) in self.command[40..].chunks_exact_mut(4).zip(dwords) {
                    field[..2].copy_from_slice(&dword.to_le_bytes());
                }
            }
            HostStep::List(entries) => {
                let entry = |(kind, page, length): &(u8, u16, u16)| {
                    let mut bytes = [0; 16];
                    bytes[..8].copy_from_slice(&(u64::from(*page) << 8).to_le_bytes());
                    bytes[8..10].copy_from_slice(&length.to_le_bytes());
                    bytes[15] = *kind;
                    bytes
                };
                self.list = entries.iter().flat_map(entry).collect();
            }
        }
    }

    fn answer(&mut self, step: &AnswerStep) {
        let now = self.now;
        let Seat { controller, reads, media } = &mut self.seats[self.turn];
        match step {
            AnswerStep::Data { bytes, offset, last } => {
                if let Some(&(id, len)) = reads.front() {
                    // The card above checks completions against the request, so parts lie inside of it.
                    let offset = usize::from(*offset) % len;
                    let bytes = &bytes[..bytes.len().min(len - offset)];
                    controller.handle_dma_data(now, id, offset, bytes, *last);
                    if *last {
                        reads.pop_front();
                    }
                }
            }
            AnswerStep::Fill(pattern) => {
                if let Some((id, len)) = reads.pop_front() {
                    let pattern = pattern.to_le_bytes();
                    let bytes: Vec<u8> = match len {
                        64 => self.command.to_vec(),
                        _ if !self.list.is_empty() => self.list.iter().copied().cycle().take(len).collect(),
                        _ => pattern.iter().copied().cycle().take(len).collect(),
                    };
                    controller.handle_dma_data(now, id, 0, &bytes, true);
                }
            }
            AnswerStep::Failed(kind) => {
                let errors = [DmaError::UnsupportedRequest, DmaError::Aborted, DmaError::Timeout];
                if let Some((id, _)) = reads.pop_front() {
                    controller.handle_dma_error(now, id, errors[usize::from(*kind % 3)]);
                }
            }
            AnswerStep::Media { failed } => {
                if let Some(id) = media.pop_front() {
                    let result = match failed {
                        0 => Err(MediaError::Io),
                        1 => Err(MediaError::NoSpace),
                        2 => Err(MediaError::ReadOnly),
                        _ => Ok(()),
                    };
                    controller.handle_media(now, id, result);
                }
            }
        }
    }

    fn happens(&mut self, step: &OtherStep) {
        let now = self.now;
        let Seat { controller, reads, .. } = &mut self.seats[self.turn];
        match step {
            OtherStep::Timeout => controller.handle_timeout(now),
            OtherStep::Wait(micros) => {
                self.now += core::time::Duration::from_micros((*micros).into());
                controller.handle_timeout(self.now);
            }
            OtherStep::Limit { iops, bytes_per_s } => {
                let limit = Limit::new(
                    (*iops != 0).then_some(u64::from(*iops)),
                    (*bytes_per_s != 0).then_some(u64::from(*bytes_per_s)),
                );
                controller.set_limit(now, limit.expect("zero means none here"));
            }
            OtherStep::Persisted(kept) => {
                if let Some(version) = self.persist.take() {
                    self.drive.handle_persisted(version, *kept);
                }
            }
            OtherStep::Grow(blocks) => {
                self.blocks = self.blocks.max((*blocks).into());
                self.drive.grow((*blocks).into());
            }
            OtherStep::Turn => self.turn = (self.turn + 1) % FUNCTIONS,
            OtherStep::Reset => {
                controller.reset(now);
                reads.clear();
            }
            OtherStep::Enable => self.enable(),
        }
    }

    /// Memory space and bus master, admin queues of 16 entries, enable.
    fn enable(&mut self) {
        let now = self.now;
        self.seat().controller.config_write(now, 4, 0x6, 0x3);
        for (offset, value) in [(0x24, 0x000f_000f), (0x28, 0x1000), (0x2c, 0), (0x30, 0x2000), (0x34, 0)] {
            self.register(offset, value);
        }
        self.register(0x14, 0x0046_0001);
    }

    fn drain(&mut self) {
        let (now, bytes) = (self.now, self.blocks * 512);
        for Seat { controller, reads, media } in &mut self.seats {
            for _ in 0..4 {
                if controller.poll_timeout().is_none_or(|at| at > now) {
                    break;
                }
                controller.handle_timeout(now);
            }
            for _ in 0..1000 {
                match controller.poll_dma(now, 1024) {
                    Some(Dma::Read { id, address, len }) => {
                        assert!((1..=4096).contains(&len), "a read has bytes");
                        assert!(address % 4096 + u64::from(len) <= 4096, "a read stays inside of a page");
                        reads.push_back((id, len.into()));
                    }
                    Some(Dma::Write { address, payload }) => {
                        assert!(payload.len() <= 1024);
                        assert!(address % 4096 + payload.len() as u64 <= 4096, "so does a write");
                        if let Payload::Page(slice) = payload {
                            assert!(usize::from(slice.offset) + usize::from(slice.len) <= 4096);
                        }
                    }
                    None => break,
                }
            }
            while let Some(op) = controller.poll_media() {
                assert!(op.offset + u64::from(op.len) <= bytes, "work stays inside of the medium");
                media.push_back(op.id);
            }
        }
        self.rig.journal.commit();
        if let Some(persist) = self.drive.poll_persist() {
            let saved = Config { saved: Some(persist.bytes), ..config(self.blocks) };
            assert_eq!(saved.check(), Ok(()), "what is kept can be restored");
            self.persist = Some(persist.version);
        }
    }
}

/// A drive with a namespace for each function and one for both.
fn config(blocks: u64) -> Config {
    let namespace = |blocks, block_size, shared, controllers: &[u16]| NamespaceConfig {
        blocks,
        block_size,
        read_only: false,
        shared,
        controllers: controllers.to_vec(),
    };
    Config {
        functions: 1,
        keeps_state: true,
        namespaces: vec![
            namespace(16, 512, false, &[0]),
            namespace(2, 4096, false, &[1]),
            namespace(16, 512, true, &[0, 1]),
        ],
        ..Config::new(blocks, 512, 1)
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let arena = Arena::default();
    let rig = Rig::<Root>::new(&arena);
    let drive = Subsystem::new(&rig.root.drive, rig.journal, config(BLOCKS));
    let seats = rig.root.functions.iter().zip(0..).map(|(function, index)| Seat {
        controller: Controller::in_subsystem(&function.nvme, rig.pages(&function.pages), &drive, index),
        reads: VecDeque::new(),
        media: VecDeque::new(),
    });
    let mut world = World {
        seats: seats.collect(),
        turn: 0,
        rig: &rig,
        drive: drive.clone(),
        persist: None,
        now: rigs::START,
        blocks: BLOCKS,
        command: [0; 64],
        list: Vec::new(),
    };
    (0..FUNCTIONS).for_each(|_| {
        world.step(&Step::Other(OtherStep::Enable));
        world.step(&Step::Other(OtherStep::Turn));
    });
    steps.iter().take(100).for_each(|step| world.step(step));
    // Resets, and the end of what the medium had, leave nothing behind.
    for _ in 0..FUNCTIONS {
        world.step(&Step::Other(OtherStep::Reset));
        world.step(&Step::Other(OtherStep::Turn));
    }
    for _ in 0..FUNCTIONS {
        while !world.seat().media.is_empty() {
            world.step(&Step::Answer(AnswerStep::Media { failed: 9 }));
        }
        world.step(&Step::Other(OtherStep::Turn));
    }
    for (function, seat) in rig.root.functions.iter().zip(&world.seats) {
        assert!(seat.controller.is_quiescent());
        assert_eq!(rig.pages(&function.pages).used(), 0, "every page is given back");
    }
});
