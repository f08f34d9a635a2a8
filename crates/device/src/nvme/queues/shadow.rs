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

use super::{Doorbell, Queues};
use crate::function::{Dma, DmaId};
use crate::nvme::cells::{QUEUES, SLOTS};
use crate::nvme::command::{dma_id, raw_slot};
use crate::nvme::control::cmb::MemoryBuffer;

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
struct BellCells {
    state: Cell<Code<State>>,
    /// How often the queue was made: a part of the names of reads.
    uses: Cell<u16>,
    /// The event index that was written last.
    told: Cell<u32>,
}

/// Where the shadows lie in host memory, and what is going on with them.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct ShadowCells {
    /// Bus addresses; 0 for none.
    doorbells: Cell<u64>,
    event_indexes: Cell<u64>,
    bells: [BellCells; 2 * QUEUES],
}

impl Doorbell {
    /// Its place among all of them.
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

/// What the read of a shadow has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shadow {
    /// Nothing that counts.
    Nothing,
    WrongLength,
    Moved(Doorbell, u32),
}

/// The shadow doorbells of one controller.
pub(crate) struct ShadowDoorbells<'m> {
    cells: &'m ShadowCells,
    journal: Journal<'m>,
    /// Whether one may have something to send.
    is_due: bool,
}

impl<'m> ShadowDoorbells<'m> {
    pub(crate) fn new(cells: &'m ShadowCells, journal: Journal<'m>) -> Self {
        Self { cells, journal, is_due: true }
    }

    /// Doorbell Buffer Config.
    pub(crate) fn configure(&self, entry: &SubmissionEntry, buffer: &MemoryBuffer<'_>) -> Result<(), Status> {
        let (shadow, events) = (entry.prp1.get(), entry.prp2.get());
        let aligned = |address: u64| address != 0 && address.is_multiple_of(PAGE_SIZE as u64);
        if !aligned(shadow) || !aligned(events) {
            return Err(Status::INVALID_FIELD);
        }
        buffer.refuse(shadow)?;
        buffer.refuse(events)?;
        self.cells.doorbells.set(self.journal, shadow);
        self.cells.event_indexes.set(self.journal, events);
        Ok(())
    }

    /// A controller level reset.
    pub(crate) fn reset(&self) {
        self.cells.doorbells.set(self.journal, 0);
        self.cells.event_indexes.set(self.journal, 0);
    }

    fn bell(&self, bell: Doorbell) -> &'m BellCells {
        &self.cells.bells[usize::from(bell.number())]
    }

    /// The queue is new.
    pub(crate) fn begin(&self, bell: Doorbell) {
        let cells = self.bell(bell);
        cells.state.set(self.journal, State::Idle.into());
        cells.uses.update(self.journal, |uses| uses.wrapping_add(1));
        cells.told.set(self.journal, 0);
    }

    /// The queue has gone.
    pub(crate) fn end(&self, bell: Doorbell) {
        self.bell(bell).state.set(self.journal, State::Idle.into());
    }

    /// Whether an I/O queue has a shadow.
    fn has_shadow(&self, bell: Doorbell) -> bool {
        bell.queue != 0 && self.cells.doorbells.get() != 0
    }

    /// The shadow of an I/O queue's doorbell is to be looked at, unless that is under way.
    pub(crate) fn want(&mut self, bell: Doorbell) {
        if self.has_shadow(bell) && self.bell(bell).state.value() == State::Idle {
            self.bell(bell).state.set(self.journal, State::Tell.into());
            self.is_due = true;
        }
    }

    /// The real doorbell was rung: what is on its way may be from before. Whether the ring is late: it does not lead
    /// forward from what the shadow has shown already, or so far that one cannot tell.
    pub(crate) fn ring(&mut self, bell: Doorbell, value: u32, queues: &Queues<'_>) -> bool {
        let state = &self.bell(bell).state;
        if state.value() == State::Looking {
            state.set(self.journal, State::Outdated.into());
        }
        let size = queues.size(bell);
        if !self.has_shadow(bell) || value >= size {
            return false;
        }
        let is_late = (value + size - queues.value(bell)) % size >= size.div_ceil(2);
        if is_late {
            self.want(bell);
        }
        is_late
    }

    /// The next access to shadow or event index, if any is due.
    pub(crate) fn next(&mut self, queues: &Queues<'_>) -> Option<Dma> {
        if !self.has_to_send() {
            return None;
        }
        for number in 2..2 * QUEUES as u16 {
            let bell = Doorbell::from_number(number);
            let cells = self.bell(bell);
            match cells.state.value() {
                State::Tell => {
                    let value = queues.value(bell);
                    cells.told.set(self.journal, value);
                    cells.state.set(self.journal, State::Look.into());
                    let address = self.cells.event_indexes.get() + bell.offset();
                    return Some(Dma::Write { address, payload: Payload::inline(&value.to_le_bytes()) });
                }
                State::Look => {
                    cells.state.set(self.journal, State::Looking.into());
                    let address = self.cells.doorbells.get() + bell.offset();
                    let id = dma_id(SLOTS as u16 + number, 0, cells.uses.get().into());
                    return Some(Dma::Read { id, address, len: BYTES as u16 });
                }
                State::Idle | State::Looking | State::Outdated => {}
            }
        }
        self.is_due = false;
        None
    }

    /// Whether one may be due.
    pub(crate) fn has_to_send(&self) -> bool {
        self.is_due && self.cells.doorbells.get() != 0
    }

    /// Whether a read is one of a shadow.
    pub(crate) fn is_read(id: DmaId) -> bool {
        usize::from(raw_slot(id)) >= SLOTS
    }

    fn bell_of(&self, id: DmaId) -> Option<Doorbell> {
        let number = raw_slot(id).checked_sub(SLOTS as u16)?;
        let cells = self.cells.bells.get(usize::from(number))?;
        let is_looking = [State::Looking, State::Outdated].contains(&cells.state.value());
        let is_this = dma_id(SLOTS as u16 + number, 0, cells.uses.get().into()) == id;
        (is_looking && is_this).then(|| Doorbell::from_number(number))
    }

    /// Takes the shadow of a doorbell.
    pub(crate) fn take(
        &mut self,
        id: DmaId,
        offset: usize,
        data: &[u8],
        last: bool,
        queues: &Queues<'_>,
    ) -> Shadow {
        let Some(bell) = self.bell_of(id) else { return Shadow::Nothing };
        let value = match data.first_chunk() {
            Some(bytes) if offset == 0 && last => u32::from_le_bytes(*bytes) & 0xffff,
            _ => return Shadow::WrongLength,
        };
        let is_outdated = self.bell(bell).state.value() == State::Outdated;
        self.end(bell);
        if is_outdated {
            self.want(bell);
            return Shadow::Nothing;
        } else if value != queues.value(bell) {
            return Shadow::Moved(bell, value);
        }
        self.note_told(bell, queues);
        Shadow::Nothing
    }

    /// The event index may not be what the host was told last.
    pub(crate) fn note_told(&mut self, bell: Doorbell, queues: &Queues<'_>) {
        if queues.value(bell) != self.bell(bell).told.get() {
            self.want(bell);
        }
    }

    /// A shadow could not be read: from now on the real doorbells have to do.
    pub(crate) fn fail(&self, id: DmaId) {
        if let Some(bell) = self.bell_of(id) {
            self.end(bell);
        }
    }
}
