//! A model of QEMU and of the NVMe driver in its guest: it speaks bytes of vfio-user, and keeps its queues in its
//! memory.

use core::ops::Range;
use core::time::Duration;

use pcie::spec::header::{BAR_0, COMMAND, COMMAND_BUS_MASTER, COMMAND_MEMORY_SPACE};
use spec::nvme::registers::{ACQ, AQA, ASQ, Aqa, CAP, CC, CSTS, Cap, Cc, Csts, doorbell};
use spec::nvme::{AdminOpcode, CompletionEntry, Status, SubmissionEntry};
use spec::vfio_user::{Command, Errno, HEADER_BYTES, MessageHeader};
use zerocopy::{FromBytes, IntoBytes};

use super::world::{RAM_BYTES, World};

pub(super) const CONFIG: u32 = 7;
/// Where the guest's memory lies in its DMA address space: not where it lies in its descriptor.
pub(super) const DMA_BASE: u64 = 0x1_0000_0000;
/// Longer than anything takes that succeeds, shorter than a guest's patience.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The descriptor of its memory. The ones behind are eventfds.
pub(super) const RAM_FD: u32 = 1;
/// Entries of every queue.
const ENTRIES: u16 = 16;
const NO_REPLY: u8 = 0x10;
/// Where data begin in its memory, behind queues.
pub(super) const DATA: u64 = 0x1_0000;

/// What a command came to.
pub(super) type Outcome = Result<Vec<u8>, Errno>;

struct Queue {
    id: u16,
    sq: u64,
    cq: u64,
    tail: u16,
    head: u16,
    phase: bool,
    /// The eventfd of its vector.
    event: u32,
    /// Signals of it that were noticed.
    seen: u64,
    cid: u16,
}

pub(super) struct Guest {
    number: u16,
    next_descriptor: u32,
    queues: Vec<Queue>,
    /// Signals that had something to tell.
    pub(super) interrupts: u64,
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Guest {
    /// Connects, agrees upon the version, and maps its memory.
    pub(super) fn connect(world: &mut World<'_>) -> Self {
        Self::connect_with(world, 1 << 20)
    }

    /// The same, with a machine that takes at most so many bytes in a message.
    pub(super) fn connect_with(world: &mut World<'_>, transfer: u32) -> Self {
        world.connect();
        let next_descriptor = 10 + world.open.last().copied().unwrap_or(0);
        let mut guest = Self { number: 0, next_descriptor, queues: Vec::new(), interrupts: 0 };
        let data = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":16,\"max_data_xfer_size\":{transfer},\"pgsizes\":4096,\
            \"max_dma_maps\":65535,\"write_multiple\":true}}}}\0"
        );
        guest.ask(world, Command::VERSION, &[&[0; 4], data.as_bytes()].concat(), &[]).unwrap();
        guest
    }

    /// The same, and maps all memory without waiting for an answer before.
    pub(super) fn connect_and_map(world: &mut World<'_>) -> Self {
        world.connect();
        let next_descriptor = 10 + world.open.last().copied().unwrap_or(0);
        let mut guest = Self { number: 2, next_descriptor, queues: Vec::new(), interrupts: 0 };
        let descriptor = guest.descriptor();
        world.ram.descriptors.borrow_mut().insert(descriptor, 0);
        let version = MessageHeader::request(1, Command::VERSION, 4);
        world.write(&[version.as_bytes(), &[0; 4]].concat(), &[]);
        let map = [words(&[32, 3]), [0, DMA_BASE, RAM_BYTES as u64].map(u64::to_le_bytes).concat()].concat();
        let header = MessageHeader::request(2, Command::DMA_MAP, map.len() as u32);
        world.write(&[header.as_bytes(), &map].concat(), &[descriptor]);
        for _ in 0..2 {
            let answered = world.run(PATIENCE, |world| world.message().is_some());
            assert!(answered, "both are answered");
        }
        guest
    }

    pub(super) fn descriptor(&mut self) -> u32 {
        self.next_descriptor += 1;
        self.next_descriptor
    }

    /// Sends a command and waits for its reply.
    pub(super) fn ask(
        &mut self,
        world: &mut World<'_>,
        command: Command,
        payload: &[u8],
        descriptors: &[u32],
    ) -> Outcome {
        self.number = self.number.wrapping_add(1);
        let header = MessageHeader::request(self.number, command, payload.len() as u32);
        world.write(&[header.as_bytes(), payload].concat(), descriptors);
        let mut answer = None;
        world.machine.holds = true;
        let answered = world.run(PATIENCE, |world| {
            answer = world.message();
            answer.is_some()
        });
        world.machine.holds = false;
        assert!(answered, "{command:?} is answered");
        let (answer, number) = (answer.unwrap(), self.number);
        let header = MessageHeader::view(answer.first_chunk().unwrap());
        assert_eq!((header.id.get(), header.command()), (number, command), "replies come in order");
        match header.error() {
            Some(error) => Err(error),
            None => Ok(answer[HEADER_BYTES..].to_vec()),
        }
    }

    pub(super) fn read(&mut self, world: &mut World<'_>, region: u32, offset: u64, len: u32) -> Outcome {
        let access = [&offset.to_le_bytes()[..], &words(&[region, len])].concat();
        let answer = self.ask(world, Command::REGION_READ, &access, &[])?;
        assert_eq!(answer.len(), 16 + len as usize);
        Ok(answer[16..].to_vec())
    }

    /// What the guest sees: all ones where there is an error.
    pub(super) fn read_u32(&mut self, world: &mut World<'_>, region: u32, offset: u64) -> u32 {
        let bytes = self.read(world, region, offset, 4).ok();
        bytes.map_or(u32::MAX, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()))
    }

    /// A posted write, as QEMU makes them.
    pub(super) fn write(&mut self, world: &mut World<'_>, region: u32, offset: u64, bytes: &[u8]) {
        self.number = self.number.wrapping_add(1);
        let access = [&offset.to_le_bytes()[..], &words(&[region, bytes.len() as u32])].concat();
        let header =
            MessageHeader::request(self.number, Command::REGION_WRITE, (access.len() + bytes.len()) as u32);
        let mut message = [header.as_bytes(), &access, bytes].concat();
        message[8] |= NO_REPLY;
        world.write(&message, &[]);
    }

    /// Maps memory of a descriptor.
    pub(super) fn map(
        &mut self,
        world: &mut World<'_>,
        (descriptor, base): (u32, u64),
        flags: u32,
        address: u64,
        len: u64,
    ) -> Outcome {
        world.ram.descriptors.borrow_mut().insert(descriptor, base);
        let numbers = [0, address, len].map(u64::to_le_bytes).concat();
        self.ask(world, Command::DMA_MAP, &[words(&[32, flags]), numbers].concat(), &[descriptor])
    }

    /// Maps memory that can be reached by messages only.
    pub(super) fn map_by_message(&mut self, world: &mut World<'_>, flags: u32, range: Range<u64>) {
        let numbers = [0, range.start, range.end - range.start].map(u64::to_le_bytes).concat();
        self.ask(world, Command::DMA_MAP, &[words(&[32, flags]), numbers].concat(), &[]).unwrap();
        world.machine.base = DMA_BASE;
        world.machine.maps.push((range, flags & 2 != 0));
    }

    /// The same as [`Guest::bring_up`], with queues, or data, or both mapped so, and the rest with a descriptor.
    pub(super) fn bring_up_by_message(&mut self, world: &mut World<'_>, by_message: [bool; 2]) -> Vec<u32> {
        for (range, by_message) in [0..DATA, DATA..RAM_BYTES as u64].into_iter().zip(by_message) {
            let place = DMA_BASE + range.start..DMA_BASE + range.end;
            if by_message {
                self.map_by_message(world, 3, place);
            } else {
                let descriptor = self.descriptor();
                self.map(world, (descriptor, range.start), 3, place.start, range.end - range.start).unwrap();
            }
        }
        let events = self.enable_vectors(world, 2);
        self.start(world, &events);
        events
    }

    pub(super) fn unmap(&mut self, world: &mut World<'_>, address: u64, len: u64) -> Outcome {
        let numbers = [address, len].map(u64::to_le_bytes).concat();
        self.ask(world, Command::DMA_UNMAP, &[words(&[24, 0]), numbers].concat(), &[])
    }

    /// Sends the same and does not wait. Returns the message's number.
    pub(super) fn send_unmap(&mut self, world: &mut World<'_>, address: u64, len: u64) -> u16 {
        self.number = self.number.wrapping_add(1);
        let payload = [words(&[24, 0]), [address, len].map(u64::to_le_bytes).concat()].concat();
        let header = MessageHeader::request(self.number, Command::DMA_UNMAP, payload.len() as u32);
        world.write(&[header.as_bytes(), &payload].concat(), &[]);
        self.number
    }

    /// Asks for four bytes and does not wait.
    pub(super) fn send_read(&mut self, world: &mut World<'_>, region: u32, offset: u64) {
        self.number = self.number.wrapping_add(1);
        let access = [&offset.to_le_bytes()[..], &words(&[region, 4])].concat();
        let header = MessageHeader::request(self.number, Command::REGION_READ, access.len() as u32);
        world.write(&[header.as_bytes(), &access].concat(), &[]);
    }

    /// Gives eventfds to the first `count` vectors.
    pub(super) fn enable_vectors(&mut self, world: &mut World<'_>, count: u32) -> Vec<u32> {
        let descriptors: Vec<u32> = (0..count).map(|_| self.descriptor()).collect();
        let payload = words(&[20, 0x24, 2, 0, count]);
        self.ask(world, Command::DEVICE_SET_IRQS, &payload, &descriptors).unwrap();
        descriptors
    }

    /// As Linux does it: finds the function, maps memory, enables vectors and the controller, makes a queue for I/O.
    /// Returns the eventfds.
    pub(super) fn bring_up(&mut self, world: &mut World<'_>) -> Vec<u32> {
        let descriptor = self.descriptor();
        self.map(world, (descriptor, 0), 3, DMA_BASE, RAM_BYTES as u64).unwrap();
        assert_eq!(self.read_u32(world, CONFIG, 8) >> 8, 0x01_0802);
        let events = self.enable_vectors(world, 2);
        self.start(world, &events);
        events
    }

    /// Enables the controller, whose vectors are set up.
    pub(super) fn start(&mut self, world: &mut World<'_>, events: &[u32]) {
        let command = COMMAND_MEMORY_SPACE | COMMAND_BUS_MASTER;
        self.write(world, CONFIG, COMMAND.into(), &command.to_le_bytes());
        self.restart(world, events);
    }

    /// The same for a controller that lost its state: its configuration space is left alone.
    pub(super) fn restart(&mut self, world: &mut World<'_>, events: &[u32]) {
        self.queues.clear();
        world.ram.bytes.borrow_mut()[..0x10000].fill(0);
        let cap = self.read(world, 0, CAP, 8).unwrap();
        let cap = Cap(u64::from_le_bytes(cap.try_into().unwrap()));
        assert!(!cap.cmbs() && cap.mqes() >= ENTRIES);
        self.write(world, 0, CC, &0_u32.to_le_bytes());
        self.wait_ready(world, false);
        let queue = |id: u16, sq: u64, event: u32| {
            let (cq, seen) = (sq + 0x1000, world.signals.get(&event).copied().unwrap_or(0));
            Queue { id, sq, cq, tail: 0, head: 0, phase: true, event, seen, cid: 0 }
        };
        self.queues = vec![queue(0, 0x1000, events[0]), queue(1, 0x3000, events[1])];
        let aqa = Aqa(0).with_asqs(ENTRIES - 1).with_acqs(ENTRIES - 1);
        self.write(world, 0, AQA, &aqa.0.to_le_bytes());
        self.write(world, 0, ASQ, &(DMA_BASE + 0x1000).to_le_bytes());
        self.write(world, 0, ACQ, &(DMA_BASE + 0x2000).to_le_bytes());
        let cc = Cc(0).with_en(true).with_iosqes(6).with_iocqes(4);
        self.write(world, 0, CC, &cc.0.to_le_bytes());
        self.wait_ready(world, true);
        let size = u32::from(ENTRIES - 1) << 16 | 1;
        let mut entry = SubmissionEntry::admin(AdminOpcode::CREATE_IO_CQ, 0, 0);
        // Contiguous, with interrupts, vector 1.
        (entry.cdw10, entry.cdw11) = (size.into(), (1 << 16 | 3).into());
        assert!(self.execute(world, 0, entry.with_prps(DMA_BASE + 0x4000, 0)).status().is_success());
        let mut entry = SubmissionEntry::admin(AdminOpcode::CREATE_IO_SQ, 0, 0);
        (entry.cdw10, entry.cdw11) = (size.into(), (1 << 16 | 1).into());
        assert!(self.execute(world, 0, entry.with_prps(DMA_BASE + 0x3000, 0)).status().is_success());
    }

    pub(super) fn csts(&mut self, world: &mut World<'_>) -> Csts {
        Csts(self.read_u32(world, 0, CSTS))
    }

    pub(super) fn wait_ready(&mut self, world: &mut World<'_>, ready: bool) {
        for _ in 0..1000 {
            if self.csts(world).rdy() == ready {
                return;
            }
            // Nobody waits for a register for a moment.
            world.turn();
        }
        panic!("the controller does not become ready or idle");
    }

    /// Submits a command.
    pub(super) fn submit(&mut self, world: &mut World<'_>, queue: usize, mut entry: SubmissionEntry) -> u16 {
        let queue = &mut self.queues[queue];
        queue.cid = queue.cid.wrapping_add(1);
        entry.cid = queue.cid.into();
        let at = queue.sq as usize + usize::from(queue.tail) * 64;
        world.ram.bytes.borrow_mut()[at..at + 64].copy_from_slice(entry.as_bytes());
        queue.tail = (queue.tail + 1) % ENTRIES;
        let (id, tail, cid) = (queue.id, queue.tail, queue.cid);
        self.write(world, 0, doorbell(id, false, 0), &u32::from(tail).to_le_bytes());
        cid
    }

    /// Waits for an interrupt and takes the completion that it tells of. `None` if none comes in time.
    pub(super) fn complete(
        &mut self,
        world: &mut World<'_>,
        queue: usize,
        patience: Duration,
    ) -> Option<CompletionEntry> {
        let own = &mut self.queues[queue];
        let mut found = None;
        world.run(patience, |world| {
            let signals = world.signals.get(&own.event).copied().unwrap_or(0);
            if signals == own.seen {
                return false;
            }
            own.seen = signals;
            let at = own.cq as usize + usize::from(own.head) * 16;
            let entry = CompletionEntry::read_from_bytes(&world.ram.bytes.borrow()[at..at + 16]).unwrap();
            if entry.phase() == own.phase {
                found = Some(entry);
            }
            found.is_some()
        });
        let entry = found?;
        self.interrupts += 1;
        own.head = (own.head + 1) % ENTRIES;
        own.phase ^= own.head == 0;
        let (id, head) = (own.id, own.head);
        self.write(world, 0, doorbell(id, true, 0), &u32::from(head).to_le_bytes());
        Some(entry)
    }

    /// Submits a command and waits for its completion.
    pub(super) fn execute(
        &mut self,
        world: &mut World<'_>,
        queue: usize,
        entry: SubmissionEntry,
    ) -> CompletionEntry {
        let cid = self.submit(world, queue, entry);
        let done = self.complete(world, queue, PATIENCE).expect("a command is completed");
        assert_eq!(done.cid.get(), cid, "each command is completed once");
        done
    }

    /// Writes blocks of one page from the guest's memory, reads them into other memory, and compares. `salt` makes them
    /// different from what was there.
    pub(super) fn round_trip(&mut self, world: &mut World<'_>, salt: u64) {
        let (source, target) = (0x2_0000_usize, 0x3_0000_usize);
        let data: Vec<u8> = (0..512_u64).flat_map(|at| (salt << 16 ^ at).to_le_bytes()).collect();
        world.ram.bytes.borrow_mut()[source..source + 4096].copy_from_slice(&data);
        world.ram.bytes.borrow_mut()[target..target + 4096].fill(0xee);
        let lba = salt % 64 * 8;
        let entry = SubmissionEntry::write(0, 1, lba, 8).with_prps(DMA_BASE + source as u64, 0);
        assert_eq!(self.execute(world, 1, entry).status(), Status::SUCCESS);
        assert_eq!(world.medium[lba as usize * 512..][..4096], data, "what is written is on the medium");
        let entry = SubmissionEntry::read(0, 1, lba, 8).with_prps(DMA_BASE + target as u64, 0);
        assert_eq!(self.execute(world, 1, entry).status(), Status::SUCCESS);
        assert_eq!(world.ram.bytes.borrow()[target..target + 4096], data, "what is read is what was written");
    }

    /// The size of a BAR, as a guest's firmware finds it.
    pub(super) fn bar_size(&mut self, world: &mut World<'_>, bar: u16) -> u32 {
        let register = u64::from(BAR_0 + 4 * bar);
        self.write(world, CONFIG, register, &u32::MAX.to_le_bytes());
        let value = self.read_u32(world, CONFIG, register) & !0xf;
        self.write(world, CONFIG, register, &0_u32.to_le_bytes());
        value.wrapping_neg()
    }
}
