//! Shadow doorbells (Doorbell Buffer Config, NVMe 2.0 §5.8, §8.5): the host keeps its doorbells in its own memory and
//! rings the real ones only when they pass the event index that the controller has written there.
//!
//! After each real doorbell of an I/O queue the controller writes the event index of what it has seen, then reads the
//! shadow: the read pushes the write ahead of it, so whatever the host has stored without seeing the new index is in
//! what the read brings. Completion queues are looked at only when they seem full.
//!
//! A real doorbell may overtake what a read brings, as a posted write may pass a completion (PCIe 6.0 §2.4.1): the
//! shadow was read before the host stored what it then rang. Such a read is ignored, and the shadow is read again. And
//! a real doorbell may come after a shadow that is newer: the memory of a virtual machine is read while what it has
//! written to registers is still on its way through its monitor. A doorbell that would go backwards only says that the
//! shadow is to be read.

use base::Payload;
use base::coded;
use base::ledger::{Cell, Code, Journal, Layout, PAGE_SIZE};
use spec::nvme::{Status, SubmissionEntry};
use zerocopy::FromBytes;

use crate::function::{Dma, DmaId};
use crate::nvme::Controller;
use crate::nvme::cells::{QUEUES, SLOTS};
use crate::nvme::command::{dma_id, raw_slot};
use crate::nvme::events;

/// Bytes of a doorbell.
const BYTES: usize = 4;

const _: () = assert!(SLOTS + 2 * QUEUES <= 512, "the names of shadow reads lie behind those of commands");

/// What is to be done about a shadow doorbell.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Idle,
    /// The event index is to be written.
    Tell,
    /// The shadow is to be read.
    Look,
    /// The shadow is on its way.
    Looking,
    /// The same, but the real doorbell has been rung since: what comes may be older.
    Outdated,
}
coded!(State: Idle, Tell, Look, Looking, Outdated);

/// What is going on with one shadow doorbell.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct ShadowCells {
    state: Cell<Code<State>>,
    /// How often the queue was made: a part of the names of reads.
    uses: Cell<u16>,
    /// The event index that was written last.
    told: Cell<u32>,
}

impl ShadowCells {
    /// The queue is new.
    pub(super) fn begin(&self, journal: Journal<'_>) {
        self.state.set(journal, State::Idle.into());
        self.uses.update(journal, |uses| uses.wrapping_add(1));
        self.told.set(journal, 0);
    }

    /// The queue has gone, or the buffers have.
    pub(super) fn end(&self, journal: Journal<'_>) {
        self.state.set(journal, State::Idle.into());
    }
}

/// A doorbell's place among all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bell {
    queue: u16,
    is_cq: bool,
}

impl Bell {
    fn number(self) -> u16 {
        self.queue * 2 + u16::from(self.is_cq)
    }

    fn from_number(number: u16) -> Self {
        Self { queue: number / 2, is_cq: number % 2 == 1 }
    }

    fn offset(self) -> u64 {
        u64::from(self.number()) * BYTES as u64
    }
}

impl Controller<'_> {
    /// Doorbell Buffer Config.
    pub(crate) fn set_doorbell_buffers(&mut self, entry: &SubmissionEntry) -> Result<(), Status> {
        if !self.config.doorbell_buffer {
            return Err(Status::INVALID_OPCODE);
        }
        let (shadow, events) = (entry.prp1.get(), entry.prp2.get());
        let aligned = |address: u64| address != 0 && address.is_multiple_of(PAGE_SIZE as u64);
        if !aligned(shadow) || !aligned(events) {
            return Err(Status::INVALID_FIELD);
        }
        self.buffer.refuse(shadow)?;
        self.buffer.refuse(events)?;
        self.cells.shadow_doorbells.set(self.journal, shadow);
        self.cells.event_indexes.set(self.journal, events);
        Ok(())
    }

    fn shadow(&self, bell: Bell) -> &ShadowCells {
        if bell.is_cq { &self.completion(bell.queue).shadow } else { &self.submission(bell.queue).shadow }
    }

    /// What the controller knows of a doorbell.
    fn bell_value(&self, bell: Bell) -> u32 {
        if bell.is_cq {
            self.completion(bell.queue).head.get()
        } else {
            self.submission(bell.queue).tail.get()
        }
    }

    /// The shadow of an I/O queue's doorbell is to be looked at, unless that is under way.
    pub(super) fn want_shadow(&mut self, queue: u16, is_cq: bool) {
        let bell = Bell { queue, is_cq };
        if queue == 0
            || self.cells.shadow_doorbells.get() == 0
            || self.shadow(bell).state.value() != State::Idle
        {
            return;
        }
        self.shadow(bell).state.set(self.journal, State::Tell.into());
        self.shadows = true;
    }

    /// The real doorbell was rung: what is on its way may be from before.
    pub(super) fn outdate_shadow(&self, queue: u16, is_cq: bool) {
        let state = &self.shadow(Bell { queue, is_cq }).state;
        if state.value() == State::Looking {
            state.set(self.journal, State::Outdated.into());
        }
    }

    /// Whether a real doorbell does not lead forward from what the shadow has shown already, or so far that one cannot
    /// tell.
    pub(super) fn is_late(&self, queue: u16, is_cq: bool, value: u32) -> bool {
        let size = if is_cq { self.completion(queue).size.get() } else { self.submission(queue).size.get() };
        if queue == 0 || self.cells.shadow_doorbells.get() == 0 || value >= size {
            return false;
        }
        let forward = (value + size - self.bell_value(Bell { queue, is_cq })) % size;
        forward >= size.div_ceil(2)
    }

    /// The next access to shadow or event index, if any is due.
    pub(crate) fn send_shadow(&mut self) -> Option<Dma> {
        if !self.has_shadow_to_send() {
            return None;
        }
        for number in 2..2 * QUEUES as u16 {
            let bell = Bell::from_number(number);
            let cells = self.shadow(bell);
            match cells.state.value() {
                State::Tell => {
                    let value = self.bell_value(bell);
                    cells.told.set(self.journal, value);
                    cells.state.set(self.journal, State::Look.into());
                    let address = self.cells.event_indexes.get() + bell.offset();
                    return Some(Dma::Write { address, payload: Payload::inline(&value.to_le_bytes()) });
                }
                State::Look => {
                    cells.state.set(self.journal, State::Looking.into());
                    let address = self.cells.shadow_doorbells.get() + bell.offset();
                    let id = dma_id(SLOTS as u16 + number, 0, cells.uses.get().into());
                    return Some(Dma::Read { id, address, len: BYTES as u16 });
                }
                State::Idle | State::Looking | State::Outdated => {}
            }
        }
        self.shadows = false;
        None
    }

    /// Whether one may be due.
    pub(crate) fn has_shadow_to_send(&self) -> bool {
        self.shadows && self.cells.shadow_doorbells.get() != 0
    }

    fn bell_of(&self, id: DmaId) -> Option<Bell> {
        let number = raw_slot(id).checked_sub(SLOTS as u16)?;
        let bell = Bell::from_number(number);
        let known = usize::from(bell.queue) < QUEUES;
        let uses = known.then(|| self.shadow(bell).uses.get().into())?;
        let is_looking =
            known && [State::Looking, State::Outdated].contains(&self.shadow(bell).state.value());
        (is_looking && dma_id(SLOTS as u16 + number, 0, uses) == id).then_some(bell)
    }

    /// Takes the shadow of a doorbell. False if the read was for something else.
    pub(crate) fn take_shadow(&mut self, id: DmaId, offset: usize, data: &[u8], last: bool) -> bool {
        let Some(bell) = self.bell_of(id) else { return usize::from(raw_slot(id)) >= SLOTS };
        let value = match data.first_chunk() {
            Some(bytes) if offset == 0 && last => u32::from_le_bytes(*bytes) & 0xffff,
            _ => {
                self.registers.fail("a shadow doorbell came with a wrong length");
                return true;
            }
        };
        let is_outdated = self.shadow(bell).state.value() == State::Outdated;
        self.shadow(bell).state.set(self.journal, State::Idle.into());
        if is_outdated {
            self.want_shadow(bell.queue, bell.is_cq);
            return true;
        }
        let moved = value != self.bell_value(bell);
        if moved && !self.move_bell(bell, value) {
            self.raise_event(events::INVALID_DOORBELL_VALUE);
        } else if self.bell_value(bell) != self.shadow(bell).told.get() {
            self.want_shadow(bell.queue, bell.is_cq);
        }
        true
    }

    fn move_bell(&mut self, bell: Bell, value: u32) -> bool {
        if bell.is_cq { self.move_head(bell.queue, value) } else { self.move_tail(bell.queue, value) }
    }

    /// A shadow could not be read: from now on the real doorbells have to do.
    pub(crate) fn fail_shadow(&mut self, id: DmaId) -> bool {
        if let Some(bell) = self.bell_of(id) {
            self.shadow(bell).state.set(self.journal, State::Idle.into());
        }
        usize::from(raw_slot(id)) >= SLOTS
    }
}
