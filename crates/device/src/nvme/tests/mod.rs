//! A host, a disk and a stream's stand-in around a controller, which may die before any store.

mod commands;
mod conformance;
mod faults;
mod fused;
mod kills;
mod made;
mod model;
mod queues;
mod resets;
mod sgls;
mod shared;
mod zeroes;

use std::cell::{Cell as StdCell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, set_hook, take_hook};
use std::sync::Once;

use base::ledger::{Arena, Cell, Hook, Ledger, PAGE_SIZE, PageCells, PageIndex, Pages, RawMemory};
use base::{Instant, Payload, Random, RuleSet};
use spec::nvme::registers::{self, doorbell};
use spec::nvme::{
    CompletionEntry, CreateIoCompletionQueue, CreateIoSubmissionQueue, QueuePriority, Status, SubmissionEntry,
};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    Config, Controller, MEMORY_BUFFER_BAR, NvmeCells, REGISTERS_BAR, Subsystem, SubsystemCells,
    VECTORS_OFFSET, WriteCache,
};
use crate::MediaFunction;
use crate::function::{Dma, DmaError, DmaId, Function, MediaError, MediaId, MediaKind};

const NOW: Instant = Instant::ZERO;
const HOST_BYTES: usize = 4 << 20;
/// Identify Controller's and others' answers, and data.
const DATA: u64 = 0x10_0000;
const MESSAGES: u64 = 0xfee0_0000;
/// Where the buffer's BAR lies on the host's bus.
const BUFFER: u64 = 0x10_0000_0000;
const QUEUE_ENTRIES: u32 = 8;
const MAX_PAYLOAD: usize = 1024;

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    drive: SubsystemCells,
    functions: [Function0; FUNCTIONS],
    /// The last input that was taken in.
    done: Cell<u64>,
}

/// One function with a pool of its own.
#[derive(FromBytes)]
#[repr(C)]
struct Function0 {
    pages: PageCells,
    nvme: NvmeCells,
}

/// Controllers of the drive that the tests can have.
const FUNCTIONS: usize = 3;

/// A host with its own function of the drive.
struct Seat<'m> {
    controller: Controller<'m>,
    host: Vec<u8>,
    reads: VecDeque<(DmaId, u64, usize, Option<Vec<u8>>)>,
    media: VecDeque<Op>,
    messages: Vec<(u64, u32)>,
    queues: Vec<Queue>,
}

struct Killed;

/// Kills before the `left`-th store; never at `u64::MAX`.
#[derive(Default)]
struct KillAt {
    left: StdCell<u64>,
}

impl Hook for KillAt {
    fn before_store(&self) {
        match self.left.get() {
            0 => {
                self.left.set(u64::MAX);
                panic_any(Killed)
            }
            u64::MAX => {}
            left => self.left.set(left - 1),
        }
    }
}

#[derive(Clone, Debug)]
enum Input {
    Write(u8, u64, Vec<u8>),
    Config(u16, u32),
    Data(DmaId, usize, Vec<u8>, bool),
    Error(DmaId),
    Media(MediaId, Result<(), MediaError>),
    Release(Vec<PageIndex>),
    Timeout,
    Reset,
    Persisted(u64, bool),
    Grow(u64),
    ClearFault(u64),
}

#[derive(Clone, Debug)]
struct Op {
    id: MediaId,
    kind: MediaKind,
    offset: usize,
    len: usize,
    pages: Vec<PageIndex>,
}

impl Op {
    fn new(op: &crate::function::MediaOp<'_>) -> Self {
        let (offset, len) = (op.offset as usize, op.len as usize);
        Self { id: op.id, kind: op.kind, offset, len, pages: op.pages.to_vec() }
    }
}

struct Queue {
    sq: u64,
    cq: u64,
    size: u32,
    tail: u32,
    head: u32,
    phase: bool,
    in_buffer: bool,
}

struct Rig<'m> {
    memory: RawMemory<'m>,
    hook: &'m KillAt,
    rules: RuleSet,
    config: Config,
    ledger: Ledger<'m, Root>,
    controller: Controller<'m>,
    host: Vec<u8>,
    disk: Vec<u8>,
    reads: VecDeque<(DmaId, u64, usize, Option<Vec<u8>>)>,
    media: VecDeque<Op>,
    messages: Vec<(u64, u32)>,
    queues: Vec<Queue>,
    flushes: usize,
    /// Length of each zeroing, and whether it may deallocate.
    zeroed: Vec<(usize, bool)>,
    inputs: u64,
    deaths: u64,
    /// Every step is killed before each of its stores.
    deadly: bool,
    /// The host names addresses that it does not have.
    lenient: bool,
    /// What the medium answers.
    media_result: Result<(), MediaError>,
    /// The present time.
    now: Instant,
    /// Which function the fields above belong to, and the others.
    selected: usize,
    others: Vec<Option<Seat<'m>>>,
    /// What the owner has kept last, and whether it can.
    kept: Option<Vec<u8>>,
    keeps: bool,
    /// Offers the work of the media in another order than it was given.
    shuffle: Option<Random>,
}

fn silence_kills() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if !info.payload().is::<Killed>() {
                usual(info);
            }
        }));
    });
}

fn with_rig(config: Config, test: impl FnOnce(&mut Rig<'_>)) {
    silence_kills();
    let hook = KillAt { left: StdCell::new(u64::MAX) };
    let arena = Arena::default();
    test(&mut Rig::new(&arena, &hook, config, RuleSet::ALL));
}

fn config() -> Config {
    Config { cache: WriteCache::Shown { keeper: 0 }, ..Config::new(2048, 512, 0x0200_00ff_fe00_0001) }
}

impl<'m> Rig<'m> {
    fn new(arena: &'m Arena, hook: &'m KillAt, config: Config, rules: RuleSet) -> Self {
        let memory = arena.zeroed::<Root>();
        let ledger = memory.ledger::<Root>(Some(hook), rules);
        let disk = vec![0; (config.blocks * u64::from(config.block_size)) as usize];
        let others = (0..=usize::from(config.functions))
            .map(|index| {
                (index > 0).then(|| Seat {
                    controller: Self::card(&ledger, &config, index),
                    host: vec![0; HOST_BYTES],
                    reads: VecDeque::new(),
                    media: VecDeque::new(),
                    messages: Vec::new(),
                    queues: Vec::new(),
                })
            })
            .collect();
        Self {
            memory,
            hook,
            rules,
            controller: Self::card(&ledger, &config, 0),
            ledger,
            config,
            host: vec![0; HOST_BYTES],
            disk,
            reads: VecDeque::new(),
            media: VecDeque::new(),
            messages: Vec::new(),
            queues: Vec::new(),
            flushes: 0,
            zeroed: Vec::new(),
            inputs: 0,
            deaths: 0,
            deadly: false,
            lenient: false,
            media_result: Ok(()),
            now: NOW,
            selected: 0,
            others,
            kept: None,
            keeps: true,
            shuffle: None,
        }
    }

    /// Turns to another function and its host.
    fn select(&mut self, index: usize) {
        if index == self.selected {
            return;
        }
        let mut seat = self.others[index].take().expect("the drive has that function");
        std::mem::swap(&mut seat.controller, &mut self.controller);
        std::mem::swap(&mut seat.host, &mut self.host);
        std::mem::swap(&mut seat.reads, &mut self.reads);
        std::mem::swap(&mut seat.media, &mut self.media);
        std::mem::swap(&mut seat.messages, &mut self.messages);
        std::mem::swap(&mut seat.queues, &mut self.queues);
        self.others[self.selected] = Some(seat);
        self.selected = index;
        self.wake();
    }

    /// What became due while another function was looked at.
    fn wake(&mut self) {
        while self.controller.poll_timeout().is_some_and(|at| at <= self.now) {
            self.step(Input::Timeout);
        }
    }

    fn card(ledger: &Ledger<'m, Root>, config: &Config, index: usize) -> Controller<'m> {
        let function = &ledger.root.functions[index];
        let pages = Pages::new(&function.pages, ledger.journal);
        if config.functions == 0 {
            return Controller::new(&function.nvme, pages, ledger.journal, config.clone());
        }
        let drive = Subsystem::new(&ledger.root.drive, ledger.journal, config.clone());
        Controller::in_subsystem(&function.nvme, pages, &drive, index as u16)
    }

    fn pages(&self) -> Pages<'m> {
        Pages::new(&self.ledger.root.functions[self.selected].pages, self.ledger.journal)
    }

    /// The old card is dead: whatever it gave to the medium may or may not have happened.
    fn replace_card(&mut self) {
        self.deaths += 1;
        for (number, op) in std::mem::take(&mut self.media).into_iter().enumerate() {
            if (self.deaths + number as u64).is_multiple_of(2) {
                self.execute(&op);
            }
        }
        self.ledger = self.memory.ledger::<Root>(Some(self.hook), self.rules);
        self.ledger.journal.roll_back().unwrap();
        self.controller = Self::card(&self.ledger, &self.config, self.selected);
        for index in 0..self.others.len() {
            let Some(mut seat) = self.others[index].take() else { continue };
            seat.controller = Self::card(&self.ledger, &self.config, index);
            seat.media.clear();
            while let Some(op) = seat.controller.poll_media() {
                seat.media.push_back(Op::new(&op));
            }
            self.others[index] = Some(seat);
        }
    }

    /// One step: the input, the drain contract, the commit; then the outputs have their effect.
    fn step(&mut self, input: Input) {
        self.inputs += 1;
        for kill in 0.. {
            self.hook.left.set(if self.deadly { kill } else { u64::MAX });
            let sent = RefCell::new(Vec::new());
            let mut ops = Vec::new();
            let ended = catch_unwind(AssertUnwindSafe(|| {
                self.attempt(&input, &sent, &mut ops);
                self.ledger.journal.commit();
            }));
            self.hook.left.set(u64::MAX);
            match ended {
                Ok(()) => self.media.extend(ops),
                Err(panic) if panic.is::<Killed>() => {
                    self.replace_card();
                    if self.ledger.root.done.get() != self.inputs {
                        continue;
                    }
                    // The commit was the step's last but one store; the successor gives the media work again.
                    self.drain_media();
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
            let released = self.deliver(sent.into_inner());
            if !released.is_empty() {
                self.step(Input::Release(released));
            }
            if self.controller.poll_timeout().is_some_and(|at| at <= self.now) {
                self.step(Input::Timeout);
            }
            if let Some(persist) = self.controller.subsystem().poll_persist() {
                if self.keeps {
                    self.kept = Some(persist.bytes);
                }
                self.step(Input::Persisted(persist.version, self.keeps));
            }
            return;
        }
    }

    fn attempt(&mut self, input: &Input, sent: &RefCell<Vec<Dma>>, ops: &mut Vec<Op>) {
        let (pages, now) = (self.pages(), self.now);
        match input.clone() {
            Input::Write(bar, offset, bytes) => self.controller.write(now, bar, offset, &bytes),
            Input::Config(register, value) => self.controller.config_write(now, register, value, 0xf),
            Input::Data(id, offset, data, last) => {
                self.controller.handle_dma_data(now, id, offset, &data, last);
            }
            Input::Error(id) => {
                self.controller.handle_dma_error(now, id, DmaError::UnsupportedRequest);
            }
            Input::Media(id, result) => self.controller.handle_media(now, id, result),
            Input::Release(released) => released.iter().for_each(|page| pages.release(*page)),
            Input::Timeout => self.controller.handle_timeout(now),
            Input::Reset => self.controller.reset(now),
            Input::Persisted(version, kept) => self.controller.subsystem().handle_persisted(version, kept),
            Input::ClearFault(order) => self.controller.subsystem().clear_fault(order),
            Input::Grow(blocks) => self.controller.subsystem().grow(blocks),
        }
        self.ledger.root.done.set(self.ledger.journal, self.inputs);
        loop {
            let before = (sent.borrow().len(), ops.len());
            while let Some(dma) = self.controller.poll_dma(now, MAX_PAYLOAD) {
                if let Dma::Write { payload: Payload::Page(slice), .. } = &dma {
                    pages.retain(slice.page);
                }
                sent.borrow_mut().push(dma);
            }
            while let Some(op) = self.controller.poll_media() {
                ops.push(Op::new(&op));
            }
            if (sent.borrow().len(), ops.len()) == before {
                return;
            }
        }
    }

    fn drain_media(&mut self) {
        while let Some(op) = self.controller.poll_media() {
            let op = Op::new(&op);
            self.media.push_back(op);
        }
    }

    /// Lets what was sent happen; returns the pages that are no longer needed.
    fn deliver(&mut self, sent: Vec<Dma>) -> Vec<PageIndex> {
        let mut released = Vec::new();
        for dma in sent {
            match dma {
                Dma::Read { id, address, len } => {
                    assert!((address % 4096) as usize + usize::from(len) <= 4096, "{dma:?} crosses a page");
                    // A shadow doorbell is read when the read arrives: what is written to a register later may overtake
                    // it.
                    let early = self.host.get(address as usize..).and_then(|rest| rest.get(..4));
                    let early = early.filter(|_| len == 4).map(<[u8]>::to_vec);
                    self.reads.push_back((id, address, usize::from(len), early));
                }
                Dma::Write { address, payload } => {
                    assert!((address % 4096) as usize + payload.len() <= 4096, "{dma:?} crosses a page");
                    assert!(payload.len() <= MAX_PAYLOAD);
                    let mut bytes = vec![0; payload.len()];
                    match payload {
                        Payload::Page(slice) => {
                            self.pages().read(slice.page, slice.offset.into(), &mut bytes);
                            released.push(slice.page);
                        }
                        Payload::Inline(inline) => bytes.copy_from_slice(inline.as_slice()),
                        Payload::None => panic!("a write carries something"),
                    }
                    if (MESSAGES..MESSAGES + 4096).contains(&address) {
                        self.messages.push((address, u32::from_le_bytes(bytes.try_into().unwrap())));
                    } else {
                        let host = self.host.get_mut(address as usize..);
                        match host.and_then(|rest| rest.get_mut(..bytes.len())) {
                            Some(place) => place.copy_from_slice(&bytes),
                            None => assert!(self.lenient, "a write to {address:#x}"),
                        }
                    }
                }
            }
        }
        released
    }

    fn execute(&mut self, op: &Op) {
        let pages = self.pages();
        assert!(op.offset + op.len <= self.disk.len());
        let pieces = op.pages.iter().zip((0..op.len).step_by(PAGE_SIZE));
        match op.kind {
            MediaKind::Read | MediaKind::Write => {
                assert_eq!(op.pages.len(), op.len.div_ceil(PAGE_SIZE));
                for (page, start) in pieces {
                    let len = (op.len - start).min(PAGE_SIZE);
                    let range = op.offset + start..op.offset + start + len;
                    if op.kind == MediaKind::Write {
                        pages.read(*page, 0, &mut self.disk[range]);
                    } else {
                        pages.write(*page, 0, &self.disk[range]);
                    }
                }
            }
            MediaKind::Flush => self.flushes += 1,
            MediaKind::Trim => self.disk[op.offset..op.offset + op.len].fill(0),
            MediaKind::Zero { deallocate } => {
                self.disk[op.offset..op.offset + op.len].fill(0);
                self.zeroed.push((op.len, deallocate));
            }
        }
    }

    /// Answers one read of the function, in two parts if it is long.
    fn answer(&mut self) -> bool {
        let Some((id, address, len, early)) = self.reads.pop_front() else { return false };
        let Some(data) = self.host.get(address as usize..).and_then(|rest| rest.get(..len)) else {
            self.step(Input::Error(id));
            return true;
        };
        let data = early.unwrap_or_else(|| data.to_vec());
        if len <= 64 {
            self.step(Input::Data(id, 0, data, true));
        } else {
            let middle = len / 8 * 4;
            self.step(Input::Data(id, 0, data[..middle].to_vec(), false));
            self.step(Input::Data(id, middle, data[middle..].to_vec(), true));
        }
        true
    }

    /// Ends one piece of work of the medium.
    fn end_media(&mut self) -> bool {
        if self.media.is_empty() {
            return false;
        }
        let at = self.shuffle.as_mut().map_or(0, |random| random.index(self.media.len()));
        let op = self.media[at].clone();
        if self.media_result.is_ok() {
            self.execute(&op);
        }
        self.media.remove(at);
        self.step(Input::Media(op.id, self.media_result));
        true
    }

    fn settle(&mut self) {
        while self.answer() || self.end_media() {}
    }

    fn write32(&mut self, offset: u64, value: u32) {
        self.step(Input::Write(REGISTERS_BAR, offset, value.to_le_bytes().to_vec()));
    }

    fn write64(&mut self, offset: u64, value: u64) {
        self.step(Input::Write(REGISTERS_BAR, offset, value.to_le_bytes().to_vec()));
    }

    fn read32(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.controller.read(self.now, REGISTERS_BAR, offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn csts(&mut self) -> registers::Csts {
        registers::Csts(self.read32(registers::CSTS))
    }

    /// What a driver does until the controller is ready and interrupts.
    fn enable(&mut self) {
        self.step(Input::Config(0x04, 0x6));
        let msix = self.capability(0x11);
        self.step(Input::Config(msix, 1 << 31));
        for vector in 0..4 {
            let entry = VECTORS_OFFSET + vector * 16;
            self.write64(entry, MESSAGES + vector * 4);
            self.write32(entry + 8, 0x40 + vector as u32);
            self.write32(entry + 12, 0);
        }
        let control = registers::CmbMsc(BUFFER).with_cre(true).with_cmse(true);
        self.write64(registers::CMBMSC, control.0);
        self.write32(registers::AQA, (QUEUE_ENTRIES - 1) << 16 | (QUEUE_ENTRIES - 1));
        self.write64(registers::ASQ, 0x1000);
        self.write64(registers::ACQ, 0x2000);
        self.host[0x1000..0x3000].fill(0);
        self.queues = vec![queue(0x1000, 0x2000, false)];
        self.write32(registers::CC, 0x0046_0001);
    }

    fn capability(&mut self, id: u8) -> u16 {
        let mut at = self.controller.config_read(0x34) as u16 & 0xfc;
        while at != 0 {
            let header = self.controller.config_read(at);
            if header as u8 == id {
                return at;
            }
            at = (header >> 8) as u16 & 0xfc;
        }
        panic!("no capability {id:#x}")
    }

    /// Creates an I/O queue pair, in host memory or with its submission queue in the controller's buffer.
    fn create(&mut self, qid: u16, in_buffer: bool) {
        let at = 0x1_0000 + u64::from(qid) * 0x2000;
        let (sq, cq) = (if in_buffer { u64::from(qid) * 0x1000 } else { at }, at + 0x1000);
        self.host[cq as usize..][..4096].fill(0);
        let completion = CreateIoCompletionQueue {
            qid,
            entries: QUEUE_ENTRIES,
            vector: qid % crate::nvme::VECTORS as u16,
            interrupts: true,
            contiguous: true,
            base: cq,
        };
        assert_eq!(self.admin(completion.entry(0)).status(), Status::SUCCESS);
        let submission = CreateIoSubmissionQueue {
            qid,
            entries: QUEUE_ENTRIES,
            cqid: qid,
            priority: QueuePriority::URGENT,
            contiguous: true,
            nvm_set: 0,
            base: if in_buffer { BUFFER + sq } else { sq },
        };
        assert_eq!(self.admin(submission.entry(0)).status(), Status::SUCCESS);
        assert_eq!(self.queues.len(), usize::from(qid));
        self.queues.push(queue(sq, cq, in_buffer));
    }

    /// Puts an entry into a queue and rings; nothing else happens yet.
    fn submit(&mut self, qid: usize, entry: SubmissionEntry) {
        let queue = &mut self.queues[qid];
        let at = queue.sq + u64::from(queue.tail) * 64;
        queue.tail = (queue.tail + 1) % queue.size;
        let (tail, in_buffer) = (queue.tail, queue.in_buffer);
        if in_buffer {
            self.step(Input::Write(MEMORY_BUFFER_BAR, at, entry.as_bytes().to_vec()));
        } else {
            self.host[at as usize..][..64].copy_from_slice(entry.as_bytes());
        }
        self.write32(doorbell(qid as u16, false, 0), tail);
    }

    /// The completions that have come, without ringing.
    fn peek(&mut self, qid: usize) -> Vec<CompletionEntry> {
        let mut seen = Vec::new();
        let queue = &mut self.queues[qid];
        loop {
            let at = (queue.cq + u64::from(queue.head) * 16) as usize;
            let entry = CompletionEntry::read_from_bytes(&self.host[at..at + 16]).unwrap();
            if entry.phase() != queue.phase {
                return seen;
            }
            assert_eq!(entry.sq_id.get(), qid as u16);
            seen.push(entry);
            queue.head = (queue.head + 1) % queue.size;
            queue.phase ^= queue.head == 0;
        }
    }

    fn reap(&mut self, qid: usize) -> Vec<CompletionEntry> {
        let seen = self.peek(qid);
        if !seen.is_empty() {
            let head = self.queues[qid].head;
            self.write32(doorbell(qid as u16, true, 0), head);
        }
        seen
    }

    /// Executes one command alone.
    fn run(&mut self, qid: usize, entry: SubmissionEntry) -> CompletionEntry {
        self.submit(qid, entry);
        self.settle();
        let seen = self.reap(qid);
        assert_eq!(
            seen.len(),
            1,
            "one completion for {entry:?}, controller: {:?}",
            self.controller.failure()
        );
        assert_eq!(seen[0].cid, entry.cid);
        seen[0]
    }

    fn admin(&mut self, entry: SubmissionEntry) -> CompletionEntry {
        self.run(0, entry)
    }

    /// Enabled, with I/O queue 1 in host memory and 2 in the buffer.
    fn start(&mut self) {
        self.enable();
        assert!(self.csts().rdy() && !self.csts().cfs());
        self.create(1, false);
        self.create(2, self.config.memory_buffer);
    }

    /// Nothing is under way: pages and slots are all free.
    fn assert_idle(&self) {
        assert_eq!(self.pages().used(), 0, "pages are left");
        assert_eq!(self.controller.table.slots().used(), 0, "slots are left");
        assert!(self.controller.is_quiescent());
    }
}

fn queue(sq: u64, cq: u64, in_buffer: bool) -> Queue {
    Queue { sq, cq, size: QUEUE_ENTRIES, tail: 0, head: 0, phase: true, in_buffer }
}

/// Bytes that differ everywhere.
fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9) >> 7) as u8 ^ (at >> 9) as u8).collect()
}

/// The PRP entries for `len` bytes at `address`, page by page; a list, if needed, is written to `list`.
fn prps(rig: &mut Rig<'_>, entry: SubmissionEntry, address: u64, len: usize, list: u64) -> SubmissionEntry {
    let mut pages = Vec::new();
    let mut at = (address & !4095) + 4096;
    while at < address + len as u64 {
        pages.push(at);
        at += 4096;
    }
    let mut place = list as usize;
    match pages.len() {
        0 => return entry.with_prps(address, 0),
        1 => return entry.with_prps(address, pages[0]),
        _ => {}
    }
    for (index, page) in pages.iter().enumerate() {
        if (place + 8).is_multiple_of(4096) && index + 1 < pages.len() {
            let next = (place + 8 + 4096) as u64;
            rig.host[place..place + 8].copy_from_slice(&next.to_le_bytes());
            place = next as usize;
        }
        rig.host[place..place + 8].copy_from_slice(&page.to_le_bytes());
        place += 8;
    }
    entry.with_prps(address, list)
}
