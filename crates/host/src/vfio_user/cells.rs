//! What a session keeps in the ledger.

use base::coded;
use base::ledger::{Bytes, Cell, Code, Counter, Fifo, Journal, STEP_ENTRIES, SlotCells};
use pcie::spec::header::COMMAND_BUS_MASTER;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{DmaMapping, Phase};

/// Bytes that were received and are not understood yet.
pub const INPUT_BYTES: usize = 64 << 10;
/// Most bytes of data of one access, as the client is told.
pub const TRANSFER_BYTES: u32 = 4096;
/// DMA maps of a slot, as the client is told.
pub const MAPS: usize = 2048;
/// Most vectors of MSI-X.
pub const VECTORS: usize = 2048;
/// Most descriptors of one message, as the client is told.
pub const MESSAGE_DESCRIPTORS: usize = 16;
/// Commands that are not answered, posted writes included.
pub const COMMANDS: usize = 256;
/// Accesses to memory of the client by message that are under way.
pub const TRANSFERS: usize = 16;

/// Words of the undo log beyond which a session begins nothing more in a step: what is begun may take several times as
/// many.
pub(super) const STEP_WORDS: usize = STEP_ENTRIES / 8;
/// The longest message that is read as a whole: what is longer is refused and passed over.
pub(super) const MESSAGE_BYTES: usize = 8192;
/// The longest message that the agent takes.
pub(super) const TAKEN_BYTES: usize = 128;
/// Replies, and data of writes that the device has not got.
pub(super) const RING_BYTES: usize = 64 << 10;
/// Messages to the client that are not sent.
pub(super) const OUTPUTS: usize = 512;
/// Places of the table of maps: twice what is used, since unmapped ones stay while copies run.
pub(super) const MAP_PLACES: usize = 2 * MAPS;
pub(super) const MAP_WORDS: usize = MAP_PLACES / 64;
pub(super) const VECTOR_WORDS: usize = VECTORS / 64;
/// Descriptors that nobody uses any more and that the agent has not closed.
pub(super) const RELEASED: usize = 16384;
/// Dwords of configuration space that the session has of its own.
pub(super) const LOCAL_DWORDS: usize = 64;
/// Which of them is the command register, all of whose bits are zero after a reset: nothing comes before it.
pub(super) const COMMAND_LOCAL: usize = 0;
/// Places of transfers: twice what is used, which is [`TRANSFERS`] under way and as many late writes, since one that a
/// step frees is used again only after the commit.
pub(super) const TRANSFER_PLACES: usize = 64;
/// The longest message of a transfer.
pub(super) const TRANSFER_MESSAGE: usize = 32 + TRANSFER_BYTES as usize;

const _: () = {
    assert!(INPUT_BYTES.is_power_of_two() && INPUT_BYTES >= 2 * MESSAGE_BYTES);
    assert!(RING_BYTES >= 4 * MESSAGE_BYTES && 4 * TRANSFERS <= TRANSFER_PLACES);
    assert!(size_of::<CommandCells>() == size_of::<Command>());
    // Everything that can be held, and one message more.
    assert!(RELEASED >= 2 * (MAP_PLACES + VECTORS + 1) + MESSAGE_DESCRIPTORS);
};

/// A session's state in the ledger. All zeroes: no client, the function is there and its configuration space as after a
/// reset.
#[derive(FromBytes, base::ledger::Layout)]
#[repr(C)]
pub struct SessionCells {
    /// Position in the stream up to which the input is understood. Messages that the agent took do not count.
    pub(super) parsed: Marked,
    /// Up to where the ring is free.
    pub(super) ring_head: Marked,
    pub(super) ring_tail: Cell<u64>,
    /// Position in the stream behind the last message to the client.
    pub(super) output_end: Cell<u64>,
    /// Bytes of input that belong to nothing.
    pub(super) skip: Cell<u64>,
    /// The number of the last message that the agent took and the session has seen. Outlives clients.
    pub(super) taken: Cell<u64>,
    /// Until when everything is refused that has piled up behind what timed out, in nanoseconds.
    pub(super) refuse_until: Cell<u64>,
    /// Commands that were answered: the number of the oldest that is not.
    pub(super) head: Cell<u32>,
    pub(super) tail: Cell<u32>,
    /// The first command with something to emit.
    pub(super) emit: Cell<u32>,
    /// One more than the number of the reset that is under way; 0 for none.
    pub(super) resetting: Cell<u32>,
    pub(super) phase: Cell<Code<Phase>>,
    /// 1 once the function was removed.
    pub(super) absent: Cell<u32>,
    /// What the client receives at most: bytes of an access.
    pub(super) peer_transfer: Cell<u32>,
    /// Descriptors that the session has.
    pub(super) held: Cell<u32>,
    /// 1 since a command had no answer in time, until the function is heard of again.
    pub(super) silent: Cell<u32>,
    pub(super) misled: Cell<Code<Misled>>,
    /// 1 once a posted write for the function was dropped, until the card knows.
    pub(super) lost: Cell<u32>,
    pub(super) reserved: Cell<u32>,
    pub(super) commands: [CommandCells; COMMANDS],
    pub(super) outputs: Fifo<Output, OUTPUTS>,
    pub(super) released: Fifo<u32, RELEASED>,
    pub(super) interrupts: InterruptCells,
    pub(super) maps: MapTable,
    pub(super) transfers: TransferTable,
    /// Own registers of configuration space, each relative to its value after a reset.
    pub(super) local: [Cell<u32>; LOCAL_DWORDS],
    /// What the session has counted.
    pub counters: SessionCounters,
    /// Written where the ring is free.
    pub(super) ring: Bytes<RING_BYTES>,
    /// Written by the kernel behind what is committed as understood.
    pub(super) input: Bytes<INPUT_BYTES>,
}

impl SessionCells {
    /// Whether the function has left a command without an answer, and was not heard of since.
    pub fn is_silent(&self) -> bool {
        self.silent.get() != 0
    }

    /// How many maps the client has.
    pub fn map_count(&self) -> usize {
        (self.maps.count.get() as usize).min(MAPS)
    }

    /// One of them, in the order of addresses, for who looks while a card works: it may be gone, or be another one.
    pub fn map(&self, position: usize) -> Option<DmaMapping> {
        let place = self.maps.order.get(position)?.get();
        let map = self.maps.maps.get(usize::from(place))?.get();
        (map.state == Code::from(MapState::Live)).then(|| map.mapping())
    }

    /// Whether a driver has the function: it lets it reach memory, or be interrupted by it. One that lets go of it ends
    /// both.
    pub fn has_driver(&self) -> bool {
        let is_master = self.local[COMMAND_LOCAL].get() & u32::from(COMMAND_BUS_MASTER) != 0;
        is_master || self.interrupts.vectors.iter().any(|vector| vector.get().descriptor != 0)
    }
}

/// What a session counts.
#[derive(FromBytes, base::ledger::Layout)]
#[repr(C)]
pub struct SessionCounters {
    /// Clients that connected.
    pub clients: Counter,
    /// Messages of clients that were read completely.
    pub messages: Counter,
    /// Commands that were answered with an error, or would have been if a reply had been wanted.
    pub errors: Counter,
    /// Commands that failed because the function did not answer in time.
    pub timeouts: Counter,
    /// Times that the function was silent until its client had read a register as all-ones.
    pub blackouts: Counter,
    /// Posted writes that were dropped: the function was silent or gone, or they were none of the client's business.
    pub dropped_writes: Counter,
    /// Maps refused: misaligned, overlapping, beyond the aperture, or too many.
    pub refused_maps: Counter,
    /// Accesses to memory that is not mapped, or not for that.
    pub denied_accesses: Counter,
    /// Interrupts of vectors that the function does not have.
    pub stray_interrupts: Counter,
    /// Clients whose messages could not be understood any further.
    pub protocol_errors: Counter,
    /// Accesses to memory of clients by message.
    pub transfers: Counter,
    /// Those that clients refused or did not answer in time, and questions without an answer.
    pub failed_transfers: Counter,
}

/// Whether the client has read registers, and not only configuration space, as all-ones since the function is silent.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Misled {
    Not,
    /// It has, and the card does not know.
    Untold,
    Told,
}
coded!(Misled: Not, Untold, Told);

/// A position that only grows, and what it was at the last commit: payload memory before that one is free.
#[derive(FromBytes, base::ledger::Layout)]
#[repr(C)]
pub(super) struct Marked {
    now: Cell<u64>,
    /// As step `step` found it.
    before: Cell<u64>,
    /// One more than the step, so that zeroes mean none.
    step: Cell<u64>,
}

impl Marked {
    pub(super) fn get(&self) -> u64 {
        self.now.get()
    }

    pub(super) fn at_commit(&self, journal: Journal<'_>) -> u64 {
        if self.step.get() == journal.step() + 1 { self.before.get() } else { self.now.get() }
    }

    pub(super) fn set(&self, journal: Journal<'_>, position: u64) {
        if self.now.get() == position {
            return;
        }
        let step = journal.step() + 1;
        if self.step.get() != step {
            self.before.set(journal, self.now.get());
            self.step.set(journal, step);
        }
        self.now.set(journal, position);
    }

    pub(super) fn reset(&self, journal: Journal<'_>) {
        self.now.set(journal, 0);
        self.step.set(journal, 0);
    }
}

/// The place of a command.
#[derive(FromBytes, base::ledger::Layout)]
#[repr(C)]
pub(super) struct CommandCells {
    fixed: Cell<[u64; 6]>,
    /// What changes while it is done: apart, so that a change of it is small.
    progress: Cell<[u64; 2]>,
}

impl CommandCells {
    pub(super) fn get(&self) -> Command {
        let ([a, b, c, d, e, f], [g, h]) = (self.fixed.get(), self.progress.get());
        zerocopy::transmute!([a, b, c, d, e, f, g, h])
    }

    pub(super) fn set(&self, journal: Journal<'_>, command: Command) {
        let [a, b, c, d, e, f, g, h]: [u64; 8] = zerocopy::transmute!(command);
        self.fixed.set(journal, [a, b, c, d, e, f]);
        self.progress.set(journal, [g, h]);
    }
}

/// A command of the client: something for the function, something that waits, or a reply whose turn has not come.
#[derive(Clone, Copy, PartialEq, Default, Debug, FromBytes, IntoBytes, Immutable, base::ledger::Layout)]
#[repr(C)]
pub(super) struct Command {
    /// When it arrived, in nanoseconds.
    pub(super) started: u64,
    /// First byte in the region.
    pub(super) offset: u64,
    /// Its place in the ring: first the reply's header and fixed part, then data, of a write or to be read.
    pub(super) ring: u64,
    /// Bytes of its place.
    pub(super) room: u32,
    /// Bytes of the reply's payload.
    pub(super) payload: u32,
    /// Bytes to be accessed.
    pub(super) len: u32,
    /// The client's number.
    pub(super) id: u16,
    /// The code on the wire.
    pub(super) code: u16,
    pub(super) kind: Code<Kind>,
    /// Region of an access.
    pub(super) region: u8,
    pub(super) reserved: [u8; 6],
    /// Bytes that have been emitted.
    pub(super) emitted: u32,
    /// Requests to the function, or maps, that it waits for.
    pub(super) outstanding: u32,
    /// Errno, or 0.
    pub(super) error: u32,
    /// Bits of [`flag`].
    pub(super) flags: u32,
}

/// What a [`Command`] wants.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Nothing but a reply.
    Answer,
    Read,
    Write,
    /// DEVICE_RESET.
    Reset,
    /// DMA_UNMAP that waits for running copies.
    Unmap,
}
coded!(Kind: Answer, Read, Write, Reset, Unmap);

/// Bits of [`Command::flags`].
pub(super) mod flag {
    pub(in super::super) const NO_REPLY: u32 = 1;
    /// Nothing is left to do but to reply.
    pub(in super::super) const DONE: u32 = 2;
    /// It resets the function.
    pub(in super::super) const RESETS: u32 = 4;
}

impl Command {
    pub(super) fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// A message to the client, in the order of the stream.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, base::ledger::Layout)]
#[repr(C)]
pub(super) struct Output {
    /// Position of its first byte in the stream.
    pub(super) start: u64,
    /// Its place in the ring, or the place of its transfer.
    pub(super) place: u64,
    /// Bytes.
    pub(super) len: u32,
    /// 0 for the ring, 1 for a transfer.
    pub(super) transfer: u32,
}

impl Output {
    /// Position behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }
}

/// Interrupts as the client has set them up.
#[derive(FromBytes, base::ledger::Layout)]
#[repr(C)]
pub(super) struct InterruptCells {
    pub(super) vectors: [Cell<Vector>; VECTORS],
    pub(super) intx: Cell<Vector>,
    /// Vectors that are to be signalled.
    pub(super) signals: [Cell<u64>; VECTOR_WORDS],
    /// Vectors that were enabled or disabled.
    pub(super) changed: [Cell<u64>; VECTOR_WORDS],
    /// Bits set in `signals`.
    pub(super) signal_count: Cell<u32>,
    /// Bits set in `changed`.
    pub(super) changed_count: Cell<u32>,
    /// 1 if the pin is to be signalled.
    pub(super) intx_signal: Cell<u32>,
    pub(super) reserved: Cell<u32>,
}

/// One interrupt.
#[derive(Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable, base::ledger::Layout)]
#[repr(C)]
pub(super) struct Vector {
    /// One more than the descriptor; 0 for none.
    pub(super) descriptor: u32,
    /// Bits of [`vector`].
    pub(super) flags: u32,
}

/// Bits of [`Vector::flags`].
pub(super) mod vector {
    pub(in super::super) const MASKED: u32 = 1;
    /// It has interrupted and not been signalled; of the pin: it is asserted.
    pub(in super::super) const PENDING: u32 = 2;
}

impl Vector {
    pub(super) fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// The DMA address space.
#[derive(FromBytes, base::ledger::Layout)]
#[repr(C)]
pub(super) struct MapTable {
    pub(super) slots: SlotCells<MAP_WORDS>,
    pub(super) maps: [Cell<Map>; MAP_PLACES],
    pub(super) uses: [Cell<u32>; MAP_PLACES],
    /// Places of the living ones, by address.
    pub(super) order: [Cell<u16>; MAPS],
    /// Places that changed.
    pub(super) changed: [Cell<u64>; MAP_WORDS],
    pub(super) count: Cell<u32>,
    /// Bits set in `changed`.
    pub(super) changed_count: Cell<u32>,
}

/// One map.
#[derive(Clone, Copy, PartialEq, Default, Debug, FromBytes, IntoBytes, Immutable, base::ledger::Layout)]
#[repr(C)]
pub(super) struct Map {
    /// First DMA address.
    pub(super) start: u64,
    /// Bytes.
    pub(super) len: u64,
    /// Where it begins in the descriptor.
    pub(super) offset: u64,
    /// One more than the descriptor; 0 for none.
    pub(super) descriptor: u32,
    /// One more than the number of the unmap that waits for its copies; 0 for none.
    pub(super) waiter: u32,
    /// Bits as in the protocol.
    pub(super) rights: u32,
    pub(super) state: Code<MapState>,
    pub(super) reserved: [u8; 3],
}

/// What a [`Map`] is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MapState {
    Free,
    Live,
    /// Unmapped, but copies run.
    Dying,
}
coded!(MapState: Free, Live, Dying);

/// Accesses to memory of the client by message.
#[derive(FromBytes, base::ledger::Layout)]
#[repr(C)]
pub(super) struct TransferTable {
    pub(super) slots: SlotCells<1>,
    pub(super) heads: [Cell<Transfer>; TRANSFER_PLACES],
    /// Counts up with every transfer, so that late replies are recognised.
    pub(super) generation: Cell<u32>,
    /// Transfers that have ended and the device has not been told of.
    pub(super) ended: Cell<u32>,
    pub(super) layout: Cell<Code<Layout>>,
    /// Writes whose time is over, and which the client may do all the same.
    pub(super) late: Cell<u32>,
    pub(super) messages: [Bytes<TRANSFER_MESSAGE>; TRANSFER_PLACES],
}

/// Where the client has data in DMA messages.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Layout {
    Unknown,
    /// A write of nothing is under way, whose reply tells.
    Asked,
    Document,
    Old,
    /// The client was asked and did not answer, of which the device has not been told.
    Silent,
}
coded!(Layout: Unknown, Asked, Document, Old, Silent);

/// What a [`Transfer`] is for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TransferKind {
    Read,
    Write,
    /// A write of nothing that tells the layout.
    Question,
}
coded!(TransferKind: Read, Write, Question);

/// How far a [`Transfer`] is.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum TransferState {
    Running,
    Ended,
    /// Whoever began it was told of its end.
    Told,
}
coded!(TransferState: Running, Ended, Told);

/// One of them.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, base::ledger::Layout)]
#[repr(C)]
pub(super) struct Transfer {
    /// When it began, in nanoseconds.
    pub(super) started: u64,
    /// What it is to whoever began it.
    pub(super) token: u32,
    /// Bytes.
    pub(super) len: u32,
    /// Errno, or 0.
    pub(super) error: u32,
    /// The number of its message.
    pub(super) id: u16,
    pub(super) kind: Code<TransferKind>,
    pub(super) state: Code<TransferState>,
    /// 1 while its message is not sent.
    pub(super) unsent: u32,
    /// 1 while it is one of [`TransferTable::late`].
    pub(super) late: u32,
}
