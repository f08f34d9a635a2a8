//! An NVMe 2.0 I/O controller, alone or one of several of a drive, in front of any medium.
//!
//! All state is in [`NvmeCells`] and [`SubsystemCells`], in the ledger; a [`Controller`] borrows it and adds only what
//! it can find out again: lines of commands that have something to send (`table::line`), and which queues have entries.
//! A command lives in a table of [`COMMANDS`] slots and moves through the states of `command::State`; every verb moves
//! some commands a little, and the two polls give out what they want from the host and from the medium.
//!
//! - `control`: what the host sees of the function, and how all of it ends.
//! - `queues`: doorbells, entries and completions.
//! - `table`: commands, their pages, and their work for the medium.
//! - `transfer`: PRPs and SGLs, and what goes to and comes from the host's memory.
//! - `admin`, `io`: commands.
//! - `subsystem`: what the controllers of a drive share, and what is kept for good.
//! - `limit`: how much a function may do.
//!
//! Memory pages are 4 KiB (CC.MPS is 0), and a command has at most 128 KiB of data. What of a step is not logged, and
//! why that is right, stands with the cells.
//!
//! Left out: metadata and protection information, reservations, sanitize, firmware, security, directives, ANA, weighted
//! arbitration, pin interrupts.

mod admin;
mod config;
mod control;
mod flow;
mod fused;
mod io;
mod limit;
mod queues;
mod subsystem;
mod table;
#[cfg(test)]
mod tests;
mod transfer;

use base::Instant;
use base::ledger::{Journal, Pages};
use pcie::ConfigLayout;

pub use cells::{
    COMMANDS, DATA_MAX, DATA_PAGES, IO_QUEUES, MEMORY_BUFFER_BYTES, NvmeCells, QUEUE_ENTRIES, VECTORS,
};
pub use config::{Config, ConfigError, FUNCTIONS_MAX, NamespaceConfig, WriteCache};
pub use config_space::{MEMORY_BUFFER_BAR, REGISTERS_BAR};
pub use limit::{Limit, LimitError};
pub use registers::{BAR_BYTES, PENDING_OFFSET, VECTORS_OFFSET};
pub use subsystem::{CONTROLLERS, FairShare, NAMESPACES, Persist, Subsystem, SubsystemCells};

use self::admin::Admin;
use self::cells::Statistics;
use self::command::State;
use self::control::cmb::MemoryBuffer;
use self::control::config_space::ConfigSpace;
use self::control::interrupts::Interrupts;
use self::control::registers::Registers;
use self::control::{config_space, registers};
use self::gate::MediaGate;
use self::io::NvmCommands;
use self::limit::RateLimit;
use self::queues::Queues;
use self::queues::shadow::ShadowDoorbells;
use self::table::{CommandTable, cells, command, gate};
use crate::function::{Dma, DmaError, DmaId, Function, MediaError, MediaFunction, MediaId, MediaOp};

/// The controller of one card: its parts, and what goes between them. See the module.
pub struct Controller<'m> {
    journal: Journal<'m>,
    pages: Pages<'m>,
    subsystem: Subsystem<'m>,
    /// Which controller of the drive it is.
    index: u16,
    registers: Registers<'m>,
    buffer: MemoryBuffer<'m>,
    config_space: ConfigSpace<'m>,
    interrupts: Interrupts<'m>,
    queues: Queues<'m>,
    shadows: ShadowDoorbells<'m>,
    limit: RateLimit<'m>,
    table: CommandTable<'m>,
    gate: MediaGate<'m>,
    nvm: NvmCommands<'m>,
    admin: Admin<'m>,
    statistics: &'m Statistics,
    /// The latest time that a verb has told.
    now: Instant,
}

impl<'m> Controller<'m> {
    /// The one controller of a drive, over `cells`: new if they are zeroes, otherwise the successor of whoever left
    /// them. `config` is always the same for the same cells.
    ///
    /// # Panics
    /// If [`Config::check`] finds something.
    pub fn new(cells: &'m NvmeCells, pages: Pages<'m>, journal: Journal<'m>, config: Config) -> Self {
        let subsystem = Subsystem::new(&cells.own_subsystem, journal, config);
        Self::in_subsystem(cells, pages, &subsystem, 0)
    }

    /// Controller `index` of a drive, over `cells`: 0 is the physical function's, the others are those of virtual
    /// functions. Cells of one drive belong to one ledger.
    ///
    /// # Panics
    /// If the drive has no such controller.
    pub fn in_subsystem(
        cells: &'m NvmeCells,
        pages: Pages<'m>,
        subsystem: &Subsystem<'m>,
        index: u16,
    ) -> Self {
        assert!(index < subsystem.controllers(), "the drive has no controller {index}");
        let (config, journal, statistics) = (&subsystem.config, subsystem.journal, &cells.statistics);
        Self {
            journal,
            pages,
            subsystem: subsystem.clone(),
            index,
            registers: Registers::new(&cells.registers, journal, config),
            buffer: MemoryBuffer::new(&cells.buffer, &cells.memory_buffer, journal, config.memory_buffer),
            config_space: ConfigSpace::new(&cells.config_space, journal, subsystem.config_layout(index)),
            interrupts: Interrupts::new(&cells.interrupts, journal),
            queues: Queues::new(&cells.submission, &cells.completion, journal),
            shadows: ShadowDoorbells::new(&cells.shadows, journal),
            limit: RateLimit::new(&cells.limit, journal, config.limit),
            table: CommandTable::new(&cells.table, &cells.commands, journal, pages),
            gate: MediaGate::new(subsystem, index),
            nvm: NvmCommands::new(subsystem, index, pages, statistics),
            admin: Admin::new(cells, subsystem, index, pages),
            statistics,
            now: Instant::ZERO,
        }
    }

    /// The drive: what it wants to have kept, and its growth.
    pub fn subsystem(&self) -> &Subsystem<'m> {
        &self.subsystem
    }

    /// Why this card last set Controller Fatal Status, for a log; `None` after a reset.
    pub fn failure(&self) -> Option<&'static str> {
        self.registers.failure()
    }

    /// What the function asks for in its configuration space.
    pub fn layout(&self) -> &ConfigLayout {
        &self.config_space.layout
    }

    /// The time is what it is now.
    fn see(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.admin.see(self.now);
    }

    /// When the host has to have sent a Keep Alive, if there is a timer.
    fn keep_alive_timeout(&self) -> Option<Instant> {
        self.admin.keep_alive_timeout().filter(|_| self.registers.is_processing())
    }
}

impl Function for Controller<'_> {
    fn write(&mut self, now: Instant, bar: u8, offset: u64, bytes: &[u8]) {
        self.see(now);
        match bar {
            REGISTERS_BAR if offset.is_multiple_of(4) && offset < BAR_BYTES => {
                for (dword, offset) in bytes.as_chunks::<4>().0.iter().zip((offset..BAR_BYTES).step_by(4)) {
                    self.write_register(offset, u32::from_le_bytes(*dword));
                }
            }
            MEMORY_BUFFER_BAR => self.buffer.write(offset, bytes),
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
            MEMORY_BUFFER_BAR => self.buffer.read(offset, out),
            _ => out.fill(0),
        }
    }

    fn config_read(&mut self, register: u16) -> u32 {
        self.config_space.read(register)
    }

    fn config_write(&mut self, _now: Instant, register: u16, value: u32, byte_enables: u8) {
        let effect = self.config_space.write(register, value, byte_enables);
        if effect.function_level_reset {
            self.reset_function(&self.config_space.after_function_level_reset());
        } else if effect.msix_changed && !self.config_space.msix_control().enabled {
            self.interrupts.clear();
        }
    }

    fn poll_dma(&mut self, now: Instant, max_payload: usize) -> Option<Dma> {
        self.see(now);
        self.next_dma(max_payload)
    }

    fn handle_dma_data(&mut self, now: Instant, id: DmaId, offset: usize, data: &[u8], last: bool) {
        self.see(now);
        self.take_dma_data(id, offset, data, last);
    }

    fn handle_dma_error(&mut self, _now: Instant, id: DmaId, _error: DmaError) {
        self.take_dma_error(id);
    }

    fn poll_media(&mut self) -> Option<MediaOp<'_>> {
        self.prepare_media();
        self.table.take_media()
    }

    fn handle_media(&mut self, now: Instant, id: MediaId, result: Result<(), MediaError>) {
        self.see(now);
        self.take_media_result(id, result);
    }

    /// At once when something that commands wait for has come from elsewhere: pages, which others give back too, and
    /// what a step frees can be had only after its commit; a namespace that another controller had alone; what the
    /// owner has kept. Else when a limit lets the next command in, or the host's time to send a Keep Alive is over.
    fn poll_timeout(&self) -> Option<Instant> {
        if self.can_serve() {
            return Some(Instant::ZERO);
        }
        let limited = self.queues.has_io_entries() && self.registers.is_processing();
        let limit = limited.then(|| self.limit.timeout(self.now)).flatten();
        [limit, self.keep_alive_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.see(now);
        self.serve();
        if self.keep_alive_timeout().is_some_and(|at| at <= self.now) {
            self.admin.stop_keep_alive();
            self.registers.fail("no keep alive in time");
        }
    }

    fn reset(&mut self, now: Instant) {
        self.see(now);
        self.reset_function(&self.config_space.layout.reset());
    }

    fn is_quiescent(&self) -> bool {
        !self.journal.rule(base::Rule::EndOldIncarnation)
            || !self
                .table
                .busy()
                .any(|slot| matches!(self.command(slot).state(), State::Media | State::Orphan))
    }
}

impl MediaFunction for Controller<'_> {
    fn peek_media(&mut self) -> Option<u32> {
        self.prepare_media();
        self.table.peek_media()
    }

    fn must_redo(&self) -> bool {
        self.table.must_redo()
    }

    fn sending(&self) -> usize {
        self.table.sending()
    }

    fn depends_on_others(&self) -> bool {
        self.table.parked(0).is_some() || self.table.is_saving() || self.admin.can_announce()
    }

    fn is_ready(&self) -> bool {
        self.registers.is_processing()
    }

    fn capacity(&self) -> (u64, bool) {
        let active = self.subsystem.allocated().filter(|it| self.subsystem.is_attached(it.nsid, self.index));
        active.fold((0, true), |(bytes, read_only), it| (bytes + it.bytes, read_only && it.read_only))
    }

    fn has_fault(&self) -> bool {
        self.subsystem.has_fault()
    }

    fn limit(&self) -> Limit {
        self.limit.limit()
    }

    fn set_limit(&mut self, now: Instant, limit: Limit) {
        self.see(now);
        self.limit.set(now, limit);
    }

    fn give_up(&mut self, now: Instant, is_given: &dyn Fn(MediaId) -> bool) {
        self.see(now);
        self.table.keep_media(is_given);
        self.reset_controller();
        if self.registers.cc().en() {
            self.registers.fail("an assertion has failed in its card");
        }
    }
}
