//! A guest of a virtual machine with an NVMe driver: bytes of vfio-user, queues in its own memory, several requests at
//! a time, and the same judgement of every answer as of an NBD client's.
//!
//! It counts every completion. A controller that is silent for too long, or has failed because its own requests had no
//! answer in time, it disables, enables and asks again, as Linux does, and likewise after the lending node was
//! rebooted. It keeps nothing that was answered. With the borrowing node its machine ends, and starts again.
//!
//! Some machines share nothing, or only a part of their memory: they read and write the rest when they are asked to
//! ([`machine`]), and not while they wait for an answer themselves.

mod machine;
mod memories;
mod requests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use base::Random;
use spec::nvme::registers::{ACQ, AQA, ASQ, Aqa, CC, CSTS, Cc, Csts, doorbell};
use spec::nvme::{AdminOpcode, SubmissionEntry};
use spec::vfio_user::{Command, Errno, HEADER_BYTES, MessageFlags, MessageHeader};
use zerocopy::IntoBytes;

use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::client::{Drive, Finding, Request, Shared};
use crate::slot::Slot;
use machine::Machine;
pub(crate) use memories::{Memories, SharedMemories};

/// Bytes of a guest's memory, and where it lies in its DMA address space.
const RAM_BYTES: usize = 0x8_0000;
const DMA_BASE: u64 = 0x1_0000_0000;
/// Queues: admin, then I/O; each with its submissions and, a page behind, its completions.
const QUEUES: [usize; 2] = [0x1000, 0x3000];
const ENTRIES: u16 = 16;
/// Where the buffers of requests begin, two pages each.
const BUFFERS: usize = 0x1_0000;
const BUFFER_BYTES: usize = 0x2000;
/// Most requests at a time.
const DEPTH: u64 = 12;
const CONFIG: u32 = 7;
const NO_REPLY: u8 = 0x10;
/// A driver that has heard nothing for so long begins anew: longer than a completion time-out, shorter than the world's
/// patience.
const WATCHDOG_NS: u64 = 8_000_000_000;
/// Of a thousand times that it thinks of something, how often that is a reset, while it has any left.
const WHIM: u64 = 40;

/// What a guest is doing: each step waits for the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Away,
    Version,
    Map,
    Vectors,
    /// Waits until the controller is not ready.
    Disable,
    Enable,
    CreateCompletions,
    CreateSubmissions,
    Running,
    /// Everything has been answered.
    Leaving,
}

#[derive(Clone, Copy, Default)]
struct Queue {
    tail: u16,
    head: u16,
    /// How often the head has come round.
    turns: u16,
}

/// A byte for the card, with the descriptors that come with it.
pub(crate) type Sent = (u8, Vec<u32>);

pub(crate) struct Guest {
    /// The node whose slot it has, and the loan.
    pub(crate) node: usize,
    pub(crate) loan: usize,
    /// The node's life in which its machine runs.
    who: Life,
    nsid: u32,
    random: Random,
    drive: Drive,
    phase: Phase,
    depth: usize,
    number: u16,
    /// Requests still to be made.
    pub(crate) left: u32,
    pub(crate) ended: u32,
    /// The tick at which the newest request was asked that has succeeded.
    pub(crate) served_of: u64,
    pub(crate) outbox: VecDeque<Sent>,
    inbox: Vec<u8>,
    queues: [Queue; 2],
    /// By command identifier.
    asked: BTreeMap<u16, Request>,
    /// The first of its descriptors: memory, then an eventfd for each queue.
    descriptor: u32,
    /// When it last heard anything, in nanoseconds.
    heard: u64,
    machine: Machine,
    /// What is still to be mapped.
    unmapped: Vec<Range<usize>>,
    /// The numbers of the machine's commands that wait for replies, which come in the order of the commands. There are
    /// several if it has begun anew while it waited.
    waiting: VecDeque<u16>,
    /// How often it will disable its controller in the middle of everything, though nothing is wrong.
    whims: u32,
    /// The lending node has rebooted: what was read of its function at that moment has no answer.
    pub(crate) lender_rebooted: bool,
    /// It is shown a volatile write cache, and flushes.
    flushes: bool,
    /// When its queues were made.
    enabled: u64,
    /// It has seen something of the drive that it was given.
    has_met: bool,
    /// The drive that it has is no more since then: the power has taken what was not flushed, another node has it, or
    /// somebody has replaced what it held.
    gone_since: Option<u64>,
    /// Another node has it, and it has used it.
    is_taken: bool,
    /// It asks for nothing until then.
    rests_until: u64,
    /// It has had answers since its queues were made last.
    has_used: bool,
    /// Such a thing has happened, or others want its drive: it may be taken from it at any time.
    may_lose_drive: bool,
    /// How often it has.
    pub(crate) followed: u64,
    /// How often it began anew, for whatever reason.
    pub(crate) resets: u64,
    /// Completions, and signals that told of some.
    pub(crate) completions: u64,
    pub(crate) interrupts: u64,
}

/// Whether a register is not there.
fn is_all_ones(payload: &[u8]) -> bool {
    payload.get(16..20).is_some_and(|status| status == [0xff; 4])
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl Guest {
    pub(crate) fn new(
        mut random: Random,
        (node, loan): (usize, usize),
        nsid: u32,
        drive: Drive,
        requests: u32,
    ) -> Self {
        let depth = random.range(1, DEPTH) as usize;
        let machine = Machine::new(&mut random, loan);
        let whims = if random.chance(500) { random.range(1, 3) as u32 } else { 0 };
        Self {
            node,
            loan,
            who: Life { node, number: 1 },
            nsid,
            random,
            drive,
            phase: Phase::Away,
            depth,
            number: 0,
            left: requests,
            ended: 0,
            served_of: 0,
            outbox: VecDeque::new(),
            inbox: Vec::new(),
            queues: Default::default(),
            asked: BTreeMap::new(),
            descriptor: 0,
            heard: 0,
            machine,
            unmapped: Vec::new(),
            waiting: VecDeque::new(),
            whims,
            lender_rebooted: false,
            flushes: false,
            enabled: 0,
            has_met: false,
            gone_since: None,
            is_taken: false,
            rests_until: 0,
            has_used: false,
            may_lose_drive: false,
            followed: 0,
            resets: 0,
            completions: 0,
            interrupts: 0,
        }
    }

    /// It has a drive with a volatile write cache.
    pub(crate) fn flushing(self) -> Self {
        Self { flushes: true, ..self }
    }

    /// Others want its drive, or are taken for its node.
    pub(crate) fn contested(self) -> Self {
        Self { may_lose_drive: true, ..self }
    }

    /// The drive has become another one at `tick`. True if the guest has the one before. One that has seen nothing of
    /// that has none to lose.
    pub(crate) fn drive_is_gone(&mut self, tick: u64) -> bool {
        self.may_lose_drive = true;
        let has_it = !self.is_away() && self.has_met;
        if has_it {
            self.gone_since.get_or_insert(tick);
        }
        has_it
    }

    /// The same, since another node has it.
    pub(crate) fn drive_is_taken(&mut self, tick: u64) {
        let has_used = self.has_used_drive();
        self.is_taken |= self.drive_is_gone(tick) && has_used;
    }

    /// Whether it has, or had, a drive that another node has taken from it, and has used that.
    pub(crate) fn drive_was_taken(&self) -> bool {
        self.is_taken
    }

    /// Whether its driver is set up and has had answers.
    pub(crate) fn has_used_drive(&self) -> bool {
        self.phase == Phase::Running && self.has_used
    }

    /// It asks for nothing until then.
    pub(crate) fn rest(&mut self, until: u64) {
        self.rests_until = until;
    }

    /// Whether it asks for nothing.
    pub(crate) fn rests(&self, now: u64) -> bool {
        now < self.rests_until
    }

    /// Whether it has a drive that is no more.
    pub(crate) fn has_lost_drive(&self) -> bool {
        self.gone_since.is_some()
    }

    /// Whether its drive may be taken from it.
    pub(crate) fn may_lose_drive(&self) -> bool {
        self.may_lose_drive
    }

    /// It wants nothing any more.
    pub(crate) fn give_up(&mut self) {
        self.ended += core::mem::take(&mut self.left);
    }

    /// Another borrower has the drive: what is under way happens before that one is served, or never.
    pub(crate) fn abandon_writes(&self, shared: &mut Shared, who: Life) {
        self.asked.values().for_each(|asked| asked.abandon_write(shared, who));
    }

    /// Its slot knows the drive that there is: who connects from now on finds no other one.
    pub(crate) fn finds_the_drive(&mut self) {
        self.may_lose_drive = false;
    }

    /// Where it is.
    pub(crate) fn slot(&self) -> Slot {
        Slot { node: self.node, loan: self.loan }
    }

    pub(crate) fn is_away(&self) -> bool {
        self.phase == Phase::Away
    }

    pub(crate) fn is_done(&self) -> bool {
        self.left == 0 && self.asked.is_empty()
    }

    pub(crate) fn wants_to_leave(&self) -> bool {
        self.phase == Phase::Leaving
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.asked.len()
    }

    /// The machine starts, in this life of its node; `descriptor` and the two behind it are its own.
    pub(crate) fn connected(&mut self, descriptor: u32, who: Life) {
        (self.phase, self.who, self.has_met) = (Phase::Version, who, false);
        self.descriptor = descriptor;
        self.unmapped.clear();
        if self.machine.shares_all() {
            self.unmapped.push(0..RAM_BYTES);
        } else {
            self.unmapped.extend([BUFFERS..RAM_BYTES, 0..BUFFERS]);
        }
        let data = "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576,\"pgsizes\":4096,\
            \"max_dma_maps\":65535,\"write_multiple\":true}}\0";
        self.send(Command::VERSION, &[&[0; 4], data.as_bytes()].concat(), &[], false);
    }

    /// The machine has ended.
    pub(crate) fn gone(&mut self, memory: &Memories<'_>) {
        memory.take_back(self.loan);
        self.phase = Phase::Away;
        (self.gone_since, self.is_taken) = (None, false);
        self.outbox.clear();
        self.inbox.clear();
        self.machine.gone();
        self.waiting.clear();
    }

    /// The machine has ended in the middle of everything: nobody waits for what was under way, which may have happened
    /// or happen yet.
    pub(crate) fn crash(&mut self, who: Life, shared: &mut Shared, memory: &Memories<'_>) {
        for (_, asked) in core::mem::take(&mut self.asked) {
            self.ended += 1;
            asked.abandon(shared, who);
        }
        if !self.is_away() {
            self.gone(memory);
        }
    }

    /// Faults are over: its machine does whatever it is asked for from now on, and its driver does not rest.
    pub(crate) fn calm(&mut self) {
        self.rests_until = 0;
        self.machine.calm();
    }

    /// Whether one of its processors waits for a register, and for nothing else before that.
    pub(crate) fn waits_for_register(&self) -> bool {
        matches!(self.phase, Phase::Disable | Phase::Enable) && self.waiting.len() == 1
    }

    pub(crate) fn machine(&self) -> &Machine {
        &self.machine
    }

    fn send(&mut self, command: Command, payload: &[u8], descriptors: &[u32], posted: bool) {
        self.number = self.number.wrapping_add(1);
        let header = MessageHeader::request(self.number, command, payload.len() as u32);
        let mut message = [header.as_bytes(), payload].concat();
        message[8] |= if posted { NO_REPLY } else { 0 };
        self.waiting.extend((!posted).then_some(self.number));
        let start = self.outbox.len();
        self.outbox.extend(message.into_iter().map(|byte| (byte, Vec::new())));
        self.outbox[start].1.extend(descriptors);
    }

    fn write(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let access = [&offset.to_le_bytes()[..], &words(&[region, bytes.len() as u32])].concat();
        self.send(Command::REGION_WRITE, &[&access, bytes].concat(), &[], true);
    }

    fn read_status(&mut self) {
        let access = [&CSTS.to_le_bytes()[..], &words(&[0, 4])].concat();
        self.send(Command::REGION_READ, &access, &[], false);
    }

    /// Bytes have come from the card.
    pub(crate) fn receive(&mut self, now: u64, bytes: &[u8], memory: &Memories<'_>) -> Result<(), Finding> {
        self.inbox.extend_from_slice(bytes);
        while let Some(header) = self.inbox.first_chunk::<HEADER_BYTES>() {
            let header = *MessageHeader::view(header);
            let len = header.size.get() as usize;
            if self.inbox.len() < len {
                break;
            }
            let message: Vec<u8> = self.inbox.drain(..len).collect();
            if header.flags().kind() == MessageFlags::COMMAND {
                self.machine.asked(now, message, memory);
                if self.machine.goes_first(now) {
                    self.serve(now, memory)?;
                }
            } else {
                self.replied(now, &header, &message[HEADER_BYTES..], memory)?;
            }
        }
        Ok(())
    }

    /// One of its commands has been answered.
    fn replied(
        &mut self,
        now: u64,
        header: &MessageHeader,
        payload: &[u8],
        memory: &Memories<'_>,
    ) -> Result<(), Finding> {
        let expected = self.waiting.pop_front();
        if expected != Some(header.id.get()) {
            return Err((names::COMPLETIONS, format!("reply {}, not {expected:?}", header.id)));
        }
        if self.machine.goes_first(now) {
            self.serve(now, memory)?;
        }
        let asks = matches!(self.phase, Phase::Disable | Phase::Enable);
        // Its function may fail because of memory that this machine has held back, or lose its state with the lending
        // node.
        let may_fail =
            (!self.machine.shares_all() || self.lender_rebooted) && header.error() == Some(Errno::EIO);
        let is_gone = match header.error() {
            Some(error) => [Errno::EIO, Errno::ETIMEDOUT].contains(&error),
            None => is_all_ones(payload),
        };
        if self.may_lose_drive && header.command() == Command::REGION_READ && is_gone {
            // It is not there any more, and will be unplugged; or this driver will find that it takes long.
            return Ok(());
        }
        let failed = asks && (may_fail || header.error() == Some(Errno::ETIMEDOUT));
        if let Some(error) = header.error().filter(|_| !failed) {
            return Err((names::COMPLETIONS, format!("{:?} failed: {error:?}", header.command())));
        }
        if !self.waiting.is_empty() {
            // It has begun anew since, and waits for what it has asked then.
        } else if failed {
            // All ones, to a driver: it asks again.
            self.read_status();
        } else {
            self.answered(payload, memory);
        }
        Ok(())
    }

    /// The main loop of its machine comes to its turn, unless a processor waits for something. True if that has
    /// answered anything.
    pub(crate) fn serve(&mut self, now: u64, memory: &Memories<'_>) -> Result<bool, Finding> {
        if !self.waiting.is_empty() {
            return Ok(false);
        }
        let answers = self.machine.serve(now, memory)?;
        let any = !answers.is_empty();
        self.outbox.extend(answers.into_iter().map(|byte| (byte, Vec::new())));
        Ok(any)
    }

    /// Maps the next part of its memory.
    fn map(&mut self) {
        let Some(range) = self.unmapped.pop() else { return };
        let by_message = self.machine.holds_back(range.start);
        let start = range.start as u64;
        // What is reached by messages is in no descriptor.
        let offset = if by_message { 0 } else { start };
        let numbers = [offset, DMA_BASE + start, range.len() as u64].map(u64::to_le_bytes).concat();
        let descriptors = [self.descriptor];
        let descriptors = if by_message { &[][..] } else { &descriptors };
        self.send(Command::DMA_MAP, &[words(&[32, 3]), numbers].concat(), descriptors, false);
    }

    /// The next step of the machine's start.
    fn answered(&mut self, payload: &[u8], memory: &Memories<'_>) {
        let status =
            payload.get(16..20).and_then(|bytes| bytes.first_chunk()).map(|b| u32::from_le_bytes(*b));
        let ready = status.is_some_and(|status| Csts(status).rdy());
        let asks = matches!(self.phase, Phase::Disable | Phase::Enable);
        self.has_met |= asks && status.is_some() && !is_all_ones(payload);
        match self.phase {
            Phase::Version => {
                self.map();
                self.phase = Phase::Map;
            }
            Phase::Map if !self.unmapped.is_empty() => self.map(),
            Phase::Map => {
                let events = [self.descriptor + 1, self.descriptor + 2];
                self.send(Command::DEVICE_SET_IRQS, &words(&[20, 0x24, 2, 0, 2]), &events, false);
                self.phase = Phase::Vectors;
            }
            Phase::Vectors => {
                self.write(CONFIG, 4, &6_u16.to_le_bytes());
                self.disable();
            }
            Phase::Disable if ready => self.read_status(),
            Phase::Disable => self.enable(memory),
            Phase::Enable if !ready => self.read_status(),
            Phase::Enable => {
                let mut entry = SubmissionEntry::admin(AdminOpcode::CREATE_IO_CQ, 1, 0);
                (entry.cdw10, entry.cdw11) =
                    ((u32::from(ENTRIES - 1) << 16 | 1).into(), (1 << 16 | 3).into());
                self.phase = Phase::CreateCompletions;
                self.submit(0, entry.with_prps(DMA_BASE + QUEUES[1] as u64 + 0x1000, 0), memory);
            }
            _ => {}
        }
    }

    fn disable(&mut self) {
        self.write(0, CC, &0_u32.to_le_bytes());
        self.read_status();
        self.phase = Phase::Disable;
    }

    /// Looks whether it has waited too long. True if it begins anew.
    pub(crate) fn watch(&mut self, now: u64, shared: &mut Shared) -> bool {
        let waits = !matches!(self.phase, Phase::Away | Phase::Version | Phase::Map | Phase::Vectors)
            && (self.phase != Phase::Running || !self.asked.is_empty());
        if !waits || self.phase == Phase::Leaving {
            self.heard = now;
        }
        let begins = now > self.heard + WATCHDOG_NS || self.follows_a_whim();
        if begins {
            self.heard = now;
            self.begin_anew(shared);
        }
        begins
    }

    /// Whether it resets its controller without need, as its user may want it.
    fn follows_a_whim(&mut self) -> bool {
        let does = self.whims > 0
            && self.phase == Phase::Running
            && !self.asked.is_empty()
            && self.random.chance(WHIM);
        self.whims -= u32::from(does);
        self.followed += u64::from(does);
        does
    }

    fn begin_anew(&mut self, shared: &mut Shared) {
        self.resets += 1;
        shared.tick += 1;
        // Whoever has the drive by now goes on with what it has asked for.
        if self.gone_since.is_none() && self.has_met {
            shared.model.asked_again(shared.tick);
        }
        self.disable();
    }

    /// The controller has ended: whatever it could write is the guest's again.
    fn enable(&mut self, memory: &Memories<'_>) {
        memory.take_back(self.loan);
        self.has_used = false;
        self.queues = Default::default();
        memory.write(self.loan, QUEUES[0], &[0; 0x4000]);
        let aqa = Aqa(0).with_asqs(ENTRIES - 1).with_acqs(ENTRIES - 1);
        let base = DMA_BASE + QUEUES[0] as u64;
        let cc = Cc(0).with_en(true).with_iosqes(6).with_iocqes(4);
        self.write(0, AQA, &aqa.0.to_le_bytes());
        self.write(0, ASQ, &base.to_le_bytes());
        self.write(0, ACQ, &(base + 0x1000).to_le_bytes());
        self.write(0, CC, &cc.0.to_le_bytes());
        self.read_status();
        self.phase = Phase::Enable;
    }

    fn submit(&mut self, queue: usize, entry: SubmissionEntry, memory: &Memories<'_>) {
        memory.lend(self.loan);
        let tail = self.queues[queue].tail;
        memory.write(self.loan, QUEUES[queue] + usize::from(tail) * 64, entry.as_bytes());
        self.queues[queue].tail = (tail + 1) % ENTRIES;
        self.write(0, doorbell(queue as u16, false, 0), &u32::from((tail + 1) % ENTRIES).to_le_bytes());
    }

    /// What it waits for, for a report.
    pub(crate) fn unanswered(&self, memory: &Memories<'_>) -> String {
        let at = QUEUES[1] + 0x1000 + usize::from(self.queues[1].head) * 16;
        let next = memory.read(self.loan, at, 16);
        let is_new = (next[14] & 1 != 0) == self.queues[1].turns.is_multiple_of(2);
        let (tail, head) = (self.queues[1].tail, self.queues[1].head);
        format!(
            "{:?}, {} to ask, tail {tail} head {head}, next completion there: {is_new}, {}, waits for {} replies, {} \
             bytes to send, unanswered {:?}",
            self.phase,
            self.left,
            self.machine.report(),
            self.waiting.len(),
            self.outbox.len(),
            self.asked
        )
    }
}

#[cfg(test)]
mod tests;
