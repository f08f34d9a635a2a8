//! Whatever a host writes to the registers, leaves in its memory or completes wrongly, the controller stands.
#![no_main]

use std::collections::VecDeque;

use base::ledger::Arena;
use base::{Instant, Payload};
use device::nvme::Controller;
use device::{Dma, DmaError, DmaId, Function, MediaError, MediaId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rigs::Rig;
use rigs::nvme::Root;

const BLOCKS: u64 = 64;
const NOW: Instant = rigs::START;

#[derive(Arbitrary, Debug)]
enum Step {
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
        namespace: u8,
        prp1: u32,
        prp2: u32,
        dwords: [u16; 6],
    },
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
    Timeout,
    Reset,
    Enable,
}

struct World<'m> {
    controller: Controller<'m>,
    rig: &'m Rig<'m, Root>,
    reads: VecDeque<(DmaId, usize)>,
    media: VecDeque<MediaId>,
    command: [u8; 64],
}

impl World<'_> {
    fn register(&mut self, offset: u64, value: u32) {
        self.controller.write(NOW, 0, offset, &value.to_le_bytes());
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Timeout => self.controller.handle_timeout(NOW),
            Step::Reset => {
                self.controller.reset(NOW);
                self.reads.clear();
            }
            Step::Enable => self.enable(),
            Step::Command { .. } => self.prepare(step),
            Step::Data { .. } | Step::Fill(_) | Step::Failed(_) => self.complete_dma(step),
            Step::Media { failed } => self.complete_media(*failed),
            _ => self.access(step),
        }
        self.drain();
    }

    /// The host reads and writes registers, the buffer or configuration space.
    fn access(&mut self, step: &Step) {
        let controller = &mut self.controller;
        match step {
            Step::Register { offset, value } => {
                controller.write(NOW, 0, (*offset).into(), &value.to_le_bytes())
            }
            Step::Wide { offset, value } => controller.write(NOW, 0, (*offset).into(), &value.to_le_bytes()),
            Step::Doorbell { index, value } => {
                self.register(0x1000 + u64::from(*index % 8) * 4, (*value).into())
            }
            Step::Buffer { offset, bytes } => controller.write(NOW, 4, (*offset).into(), bytes),
            Step::Read { bar, offset, len } => {
                controller.read(NOW, *bar, (*offset).into(), &mut vec![0; usize::from(*len)]);
            }
            Step::ConfigRead(register) => drop(controller.config_read(*register & 0xffc)),
            Step::ConfigWrite { register, value, enables } => {
                controller.config_write(NOW, *register & 0xffc, *value, *enables & 0xf);
            }
            other => unreachable!("{other:?} is no access"),
        }
    }

    /// The host leaves a command where the controller looks next.
    fn prepare(&mut self, step: &Step) {
        let Step::Command { opcode, namespace, prp1, prp2, dwords } = step else { return };
        self.command = [0; 64];
        self.command[0] = *opcode;
        self.command[4] = *namespace;
        self.command[24..28].copy_from_slice(&prp1.to_le_bytes());
        self.command[32..36].copy_from_slice(&prp2.to_le_bytes());
        for (field, dword) in self.command[40..].chunks_exact_mut(4).zip(dwords) {
            field[..2].copy_from_slice(&dword.to_le_bytes());
        }
    }

    /// The oldest read of the host's memory gets a part of its data, all of it, or an error.
    fn complete_dma(&mut self, step: &Step) {
        let Some(&(id, len)) = self.reads.front() else { return };
        let controller = &mut self.controller;
        let mut is_over = true;
        match step {
            Step::Data { bytes, offset, last } => {
                // The card above checks completions against the request, so parts lie inside of it.
                let offset = usize::from(*offset) % len;
                let bytes = &bytes[..bytes.len().min(len - offset)];
                controller.handle_dma_data(NOW, id, offset, bytes, *last);
                is_over = *last;
            }
            Step::Fill(pattern) => {
                let bytes: Vec<u8> = match len {
                    64 => self.command.to_vec(),
                    _ => pattern.to_le_bytes().iter().copied().cycle().take(len).collect(),
                };
                controller.handle_dma_data(NOW, id, 0, &bytes, true);
            }
            Step::Failed(kind) => {
                let errors = [DmaError::UnsupportedRequest, DmaError::Aborted, DmaError::Timeout];
                controller.handle_dma_error(NOW, id, errors[usize::from(*kind % 3)]);
            }
            other => unreachable!("{other:?} is no end of a read"),
        }
        if is_over {
            self.reads.pop_front();
        }
    }

    /// The medium has done its oldest work, or failed.
    fn complete_media(&mut self, failed: u8) {
        let Some(id) = self.media.pop_front() else { return };
        let result = match failed {
            0 => Err(MediaError::Io),
            1 => Err(MediaError::NoSpace),
            2 => Err(MediaError::ReadOnly),
            _ => Ok(()),
        };
        self.controller.handle_media(NOW, id, result);
    }

    /// Memory space and bus master, admin queues of 16 entries, enable.
    fn enable(&mut self) {
        self.controller.config_write(NOW, 4, 0x6, 0x3);
        for (offset, value) in [(0x24, 0x000f_000f), (0x28, 0x1000), (0x2c, 0), (0x30, 0x2000), (0x34, 0)] {
            self.register(offset, value);
        }
        self.register(0x14, 0x0046_0001);
    }

    fn drain(&mut self) {
        for _ in 0..1000 {
            match self.controller.poll_dma(NOW, 1024) {
                Some(Dma::Read { id, len, .. }) => {
                    assert!((1..=4096).contains(&len), "a read stays inside of a page");
                    self.reads.push_back((id, len.into()));
                }
                Some(Dma::Write { payload, .. }) => {
                    assert!(payload.len() <= 1024);
                    if let Payload::Page(slice) = payload {
                        assert!(usize::from(slice.offset) + usize::from(slice.len) <= 4096);
                    }
                }
                None => break,
            }
        }
        while let Some(op) = self.controller.poll_media() {
            assert!(op.offset + u64::from(op.len) <= BLOCKS * 512, "work stays inside of the medium");
            self.media.push_back(op.id);
        }
        self.rig.journal.commit();
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let arena = Arena::default();
    let rig = rigs::nvme::rig(&arena);
    let controller = rigs::nvme::controller(&rig, BLOCKS);
    let (reads, media) = (VecDeque::new(), VecDeque::new());
    let mut world = World { controller, rig: &rig, reads, media, command: [0; 64] };
    world.step(&Step::Enable);
    steps.iter().take(100).for_each(|step| world.step(step));
    // A reset, and the end of what the medium had, leave nothing behind.
    world.step(&Step::Reset);
    while !world.media.is_empty() {
        world.step(&Step::Media { failed: 9 });
    }
    assert!(world.controller.is_quiescent());
    assert_eq!(rig.pages(&rig.root.pages).used(), 0, "every page is given back");
});
