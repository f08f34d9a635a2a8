//! What the main loop of a guest's machine does: it reads and writes memory that the machine does not share, when
//! messages ask for it.
//!
//! It holds still while a processor waits for a register. When that has its value either may go on first: the
//! processor, which acts on the value, or the loop. Some loops refuse a message now and then, or stand still for longer
//! than a card waits.

use std::collections::VecDeque;

use base::Random;
use spec::vfio_user::{Command, DmaAccess, Errno, HEADER_BYTES, MessageHeader};
use zerocopy::{FromBytes, IntoBytes};

use super::{BUFFERS, DMA_BASE, Memories, RAM_BYTES};
use crate::checkers::names;
use crate::client::Finding;

/// A loop that is so far behind comes before any processor, in nanoseconds: a card gives messages up some time later,
/// and what is done of them then may come when the function has ended.
const BEHIND: u64 = 2_000_000_000;
/// How long one stands still, from and to: longer than a card waits for it.
const STANDSTILL: [u64; 2] = [3_600_000_000, 5_000_000_000];
/// Of a thousand messages, how many are not done while faults are left; and of a thousand of these, how many it stands
/// still over.
const FAULTY: u64 = 50;
const STANDS: u64 = 300;

/// A message of the card.
struct Asked {
    message: Vec<u8>,
    /// When it came.
    at: u64,
    /// How often the guest had taken its memory back then.
    taken: u64,
}

/// A machine's main loop.
pub(crate) struct Machine {
    loan: usize,
    random: Random,
    /// Of queues and of buffers: whether the machine keeps that memory to itself.
    pub(super) by_message: [bool; 2],
    /// It has data in messages where older versions of QEMU have them.
    pub(super) is_old: bool,
    /// What it has not come to yet.
    asked: VecDeque<Asked>,
    /// How many messages it still refuses, or stands still over.
    pub(super) faults: u32,
    /// It stands still until then, and refuses whatever has come meanwhile.
    stands_until: Option<u64>,
    /// Messages that it has done.
    served: u64,
    /// Messages that it has refused.
    refused: u64,
}

impl Machine {
    pub(super) fn new(random: &mut Random, loan: usize) -> Self {
        let by_message = [(); 2].map(|()| random.chance(450));
        let is_old = random.chance(300);
        let faults = if random.chance(600) { random.range(1, 3) as u32 } else { 0 };
        Self {
            loan,
            random: random.fork(),
            by_message,
            is_old,
            asked: VecDeque::new(),
            faults,
            stands_until: None,
            served: 0,
            refused: 0,
        }
    }

    /// Whether it needs no messages.
    pub(super) fn shares_all(&self) -> bool {
        self.by_message == [false; 2]
    }

    /// Whether memory from byte `start` on is reached by messages only.
    pub(super) fn holds_back(&self, start: usize) -> bool {
        self.by_message[usize::from(start >= BUFFERS)]
    }

    pub(crate) fn has_served(&self) -> bool {
        self.served > 0
    }

    pub(crate) fn has_refused(&self) -> bool {
        self.refused > 0
    }

    /// Whether it has something to do.
    pub(crate) fn is_behind(&self) -> bool {
        !self.asked.is_empty()
    }

    /// What it does, for a report.
    pub(super) fn report(&self) -> String {
        let (done, refused, wait) = (self.served, self.refused, self.asked.len());
        format!("by message {:?}: {done} done, {refused} refused, {wait} wait", self.by_message)
    }

    /// The machine has ended.
    pub(super) fn gone(&mut self) {
        self.asked.clear();
        self.stands_until = None;
    }

    /// It does whatever it is asked for from now on.
    pub(super) fn calm(&mut self) {
        self.faults = 0;
    }

    /// A message has come.
    pub(super) fn asked(&mut self, now: u64, message: Vec<u8>, memory: &Memories<'_>) {
        self.asked.push_back(Asked { message, at: now, taken: memory.taken(self.loan) });
    }

    /// Whether it has its turn before the processors, where either may go on.
    pub(super) fn goes_first(&mut self, now: u64) -> bool {
        let Some(front) = self.asked.front() else { return false };
        now > front.at + BEHIND || self.random.chance(500)
    }

    /// Does what it was asked for. Returns the bytes of the answers.
    pub(super) fn serve(&mut self, now: u64, memory: &Memories<'_>) -> Result<Vec<u8>, Finding> {
        let mut answers = Vec::new();
        if self.stands_until.is_some_and(|until| now < until) {
            return Ok(answers);
        }
        let is_late = self.stands_until.take().is_some();
        while let Some(asked) = self.asked.pop_front() {
            let header = asked.message.first_chunk().map(|header| *MessageHeader::view(header));
            let payload = asked.message.get(HEADER_BYTES..).unwrap_or_default();
            let access = DmaAccess::read_from_prefix(payload).ok().map(|(access, _)| access);
            let Some((header, access)) = header.zip(access) else {
                return Err((names::STRAYS, "a message that is too short".to_owned()));
            };
            // The question where data lie is about no memory.
            let is_question = access.count.get() == 0;
            if !is_question && (is_late || self.is_faulty()) {
                if !is_late && self.random.chance(STANDS) {
                    self.stands_until = Some(now + self.random.range(STANDSTILL[0], STANDSTILL[1]));
                    self.asked.push_front(asked);
                    break;
                }
                self.refused += 1;
                let refusal = MessageHeader::error_reply(header.id.get(), header.command(), Errno::EFAULT);
                answers.extend_from_slice(refusal.as_bytes());
                continue;
            }
            let is_lent = is_question || memory.is_lent_since(self.loan, asked.taken);
            if !is_lent && header.command() == Command::DMA_WRITE {
                let (count, address) = (access.count.get(), access.address.get());
                let what = format!("{count} bytes at {address:#x} are written, which were taken back");
                return Err((names::STRAYS, what));
            }
            let answer = self.answer(header.command(), &access, payload, memory)?;
            let header = MessageHeader::reply(header.id.get(), header.command(), answer.len() as u32);
            answers.extend([header.as_bytes(), &answer].concat());
        }
        Ok(answers)
    }

    fn is_faulty(&mut self) -> bool {
        let is_faulty = self.faults > 0 && self.random.chance(FAULTY);
        self.faults -= u32::from(is_faulty);
        is_faulty
    }

    /// Reads or writes. Returns what the reply has behind its header.
    fn answer(
        &mut self,
        command: Command,
        access: &DmaAccess,
        payload: &[u8],
        memory: &Memories<'_>,
    ) -> Result<Vec<u8>, Finding> {
        const ACCESS: usize = size_of::<DmaAccess>();
        let data = if self.is_old { DmaAccess::OLD_QEMU_DATA } else { ACCESS };
        // Data follow the lower half of a count where older versions have them.
        let count = if self.is_old { access.count.get() & u64::from(u32::MAX) } else { access.count.get() };
        let (len, start) = (count as usize, access.address.get().wrapping_sub(DMA_BASE) as usize);
        let end = if start < BUFFERS { BUFFERS } else { RAM_BYTES };
        let sent = payload.get(data..).and_then(|bytes| bytes.get(..len));
        let is_write = command == Command::DMA_WRITE;
        let is_short = is_write && sent.is_none();
        if !self.holds_back(start) || start.saturating_add(len) > end || is_short {
            let what = format!("{command:?} of {count} bytes at {:#x}", access.address);
            return Err((names::STRAYS, what));
        }
        self.served += 1;
        if let Some(bytes) = sent.filter(|_| is_write) {
            memory.write(self.loan, start, bytes);
            return Ok(if self.is_old { Vec::new() } else { payload[..ACCESS].to_vec() });
        }
        let mut answer = payload[..data].to_vec();
        answer.extend(memory.read(self.loan, start, len));
        // As long as the document has it.
        answer.resize(ACCESS + len, 0);
        Ok(answer)
    }
}
