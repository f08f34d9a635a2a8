//! An NVMe 2.0 I/O controller with one namespace, in front of any medium.
//!
//! All state is in [`NvmeCells`], in the ledger; a [`Controller`] borrows it and adds only what it can find out again: lines of
//! commands that have something to send (`line`), and which queues have entries. A command lives in a table of
//! [`COMMANDS`] slots and moves through the states of `command::State`; every verb moves some commands a little, and the two
//! polls give out what they want from the host and from the medium.
//!
//! - `registers`, `config_space`, `cmb`, `interrupts`: what the host sees of the function.
//! - `queues`, `dma`: what goes to and comes from the host's memory.
//! - `admin`, `io_commands`, `features`, `identify`, `log`, `events`: commands.
//! - `prp`, `media`, `flow`: how a command gets its addresses, its pages and its work done.
//! - `reset`: how all of that ends.
//!
//! Memory pages are 4 KiB (CC.MPS is 0), and a command has at most 128 KiB of data. What of a step is not logged, and why
//! that is right, stands with the cells.
//!
//! Left out: metadata, SGLs, fused operations, namespace management, firmware, several namespaces, pin interrupts.

mod admin;
mod cells;
mod cmb;
mod command;
mod config_space;
mod dma;
mod events;
mod features;
mod flow;
mod identify;
mod interrupts;
mod io_commands;
mod line;
mod log;
mod media;
mod prp;
mod queues;
mod registers;
mod reset;
#[cfg(test)]
mod tests;

use base::Instant;
use base::ledger::{Journal, PageIndex, Pages};
use pcie::ConfigLayout;

pub use cells::{
    COMMANDS, DATA_MAX, DATA_PAGES, IO_QUEUES, MEMORY_BUFFER_BYTES, NvmeCells, QUEUE_ENTRIES, VECTORS,
};
pub use config_space::{MEMORY_BUFFER_BAR, REGISTERS_BAR};
pub use registers::{BAR_BYTES, PENDING_OFFSET, VECTORS_OFFSET};

use self::command::State;
use self::line::Line;
use crate::function::{Dma, DmaError, DmaId, Function, MediaError, MediaId, MediaOp};

/// What a controller is made for. The same for every card on one ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Logical blocks of the namespace, at least 1.
    pub blocks: u64,
    /// Bytes of a block: 512 or 4096.
    pub block_size: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// What was written is durable only after a flush. Without it the medium keeps every completed write, and a FUA needs no
    /// flush.
    pub volatile_cache: bool,
    /// Whether there is a controller memory buffer: for native borrowers.
    pub memory_buffer: bool,
    /// Serial number: ASCII, at most 20 characters are used.
    pub serial: String,
    /// Model number: ASCII, at most 40 characters are used.
    pub model: String,
    /// Firmware revision: ASCII, at most 8 characters are used.
    pub firmware: String,
    /// An EUI-64: the namespace's and the function's (Device Serial Number). Never reused for another namespace.
    pub unique_id: u64,
}

impl Config {
    /// A writable namespace with a volatile cache and a controller memory buffer.
    pub fn new(blocks: u64, block_size: u32, unique_id: u64) -> Self {
        Self {
            blocks,
            block_size,
            read_only: false,
            volatile_cache: true,
            memory_buffer: true,
            serial: format!("{unique_id:016x}"),
            model: "Causeway NVMe".into(),
            firmware: env!("CARGO_PKG_VERSION").into(),
            unique_id,
        }
    }

    fn block_shift(&self) -> u32 {
        self.block_size.trailing_zeros()
    }
}

/// The controller of one card. See the module.
pub struct Controller<'m> {
    cells: &'m NvmeCells,
    pages: Pages<'m>,
    journal: Journal<'m>,
    config: Config,
    layout: ConfigLayout,
    /// Commands with something to send to the host.
    sending: Line,
    /// Commands whose completion queue is full.
    held: Line,
    /// Commands that wait for pages.
    waiting: Line,
    /// Commands whose media work this card has not given out.
    media: Line,
    /// Submission queues with entries to fetch.
    ready: u128,
    /// Where the round robin goes on.
    next_queue: u16,
    /// The pages of the last `MediaOp`.
    media_pages: [PageIndex; DATA_PAGES],
    /// Why this card last set Controller Fatal Status.
    last_failure: Option<&'static str>,
}

impl<'m> Controller<'m> {
    /// A controller over `cells`: new if they are zeroes, otherwise the successor of whoever left them. `config` is always
    /// the same for the same cells.
    ///
    /// # Panics
    /// If the configuration makes no sense: no blocks, more than 2^63 bytes, another block size than 512 or 4096.
    pub fn new(cells: &'m NvmeCells, pages: Pages<'m>, journal: Journal<'m>, config: Config) -> Self {
        assert!(matches!(config.block_size, 512 | 4096), "blocks have 512 or 4096 bytes");
        assert!((1..=i64::MAX as u64 / 4096).contains(&config.blocks), "a namespace has 1 to 2^51 blocks");
        let layout = config_space::layout(&config);
        let mut controller = Self {
            cells,
            pages,
            journal,
            config,
            layout,
            sending: Line::new(),
            held: Line::new(),
            waiting: Line::new(),
            media: Line::new(),
            ready: 0,
            next_queue: 0,
            media_pages: [PageIndex::default(); DATA_PAGES],
            last_failure: None,
        };
        controller.rebuild_lines();
        (0..cells::QUEUES as u16).for_each(|queue| controller.note_ready(queue));
        controller
    }

    /// Why this card last set Controller Fatal Status, for a log; `None` after a reset.
    pub fn failure(&self) -> Option<&'static str> {
        self.last_failure
    }

    /// Whether the host has enabled the controller and it serves its queues.
    pub fn is_ready(&self) -> bool {
        self.is_processing()
    }

    /// What the function asks for in its configuration space.
    pub fn layout(&self) -> &ConfigLayout {
        &self.layout
    }
}

impl Function for Controller<'_> {
    fn write(&mut self, _now: Instant, bar: u8, offset: u64, bytes: &[u8]) {
        match bar {
            REGISTERS_BAR if offset.is_multiple_of(4) && offset < BAR_BYTES => {
                for (dword, offset) in bytes.as_chunks::<4>().0.iter().zip((offset..BAR_BYTES).step_by(4)) {
                    self.write_register(offset, u32::from_le_bytes(*dword));
                }
            }
            MEMORY_BUFFER_BAR if self.config.memory_buffer => self.write_buffer(offset, bytes),
            _ => {}
        }
    }

    fn read(&mut self, _now: Instant, bar: u8, offset: u64, out: &mut [u8]) {
        match bar {
            REGISTERS_BAR => {
                for (byte, at) in out.iter_mut().zip(offset..) {
                    let dword = if at < BAR_BYTES { self.read_register(at & !3) } else { 0 };
                    *byte = dword.to_le_bytes()[(at & 3) as usize];
                }
            }
            MEMORY_BUFFER_BAR if self.config.memory_buffer => self.read_buffer(offset, out),
            _ => out.fill(0),
        }
    }

    fn config_read(&mut self, register: u16) -> u32 {
        self.read_config(register)
    }

    fn config_write(&mut self, _now: Instant, register: u16, value: u32, byte_enables: u8) {
        self.write_config(register, value, byte_enables);
    }

    fn poll_dma(&mut self, _now: Instant, max_payload: usize) -> Option<Dma> {
        self.next_dma(max_payload)
    }

    fn handle_dma_data(&mut self, _now: Instant, id: DmaId, offset: usize, data: &[u8], last: bool) {
        self.take_dma_data(id, offset, data, last);
    }

    fn handle_dma_error(&mut self, _now: Instant, id: DmaId, error: DmaError) {
        self.take_dma_error(id, error);
    }

    fn poll_media(&mut self) -> Option<MediaOp<'_>> {
        self.next_media()
    }

    fn handle_media(&mut self, _now: Instant, id: MediaId, result: Result<(), MediaError>) {
        self.take_media_result(id, result);
    }

    /// At once when pages have become free for a command that waits for them: others give pages back too, and what a step
    /// frees can be had only after its commit.
    fn poll_timeout(&self) -> Option<Instant> {
        self.can_serve_waiting().then_some(Instant::ZERO)
    }

    fn handle_timeout(&mut self, _now: Instant) {
        self.serve_waiting();
    }

    fn reset(&mut self, _now: Instant) {
        self.reset_function(|controller| controller.layout.reset());
    }

    fn is_quiescent(&self) -> bool {
        !self.journal.rule(base::Rule::EndOldIncarnation)
            || !self
                .busy_slots()
                .any(|slot| matches!(self.command(slot).state(), State::Media | State::Orphan))
    }
}
