//! An NVMe 2.0 I/O controller, alone or one of several of a drive, in front of any medium.
//!
//! All state is in [`NvmeCells`] and [`SubsystemCells`], in the ledger. A [`Controller`] has parts, each with its cells
//! and what it can find out again: none of them knows the controller, and what one needs of another it is given. Every
//! verb moves some commands a little; whoever knows a command says what is next for it (`command::Next`), and the
//! controller does that (`Controller::follow`).
//!
//! - `flow`, `fused`: the way of a command through the parts.
//! - `control`: what the host sees of the function, and how all of it ends.
//! - `queues`: doorbells, entries and completions.
//! - `table`: [`COMMANDS`] slots, the lines in which commands stand, and the gate of the medium.
//! - `transfer`: PRPs and SGLs, by which data go to and come from the host's memory.
//! - `admin`, `io`: what commands mean.
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
use spec::nvme::Status;

pub use cells::{
    COMMANDS, DATA_MAX, DATA_PAGES, IO_QUEUES, MEMORY_BUFFER_BYTES, NvmeCells, QUEUE_ENTRIES, VECTORS,
};
pub use config::{
    Config, ConfigError, FUNCTIONS_MAX, MadeFunction, MadeNamespace, NamespaceConfig, WriteCache,
};
pub use config_space::{MEMORY_BUFFER_BAR, REGISTERS_BAR};
pub use limit::{Limit, LimitError};
pub use registers::{BAR_BYTES, PENDING_OFFSET, VECTORS_OFFSET};
pub use subsystem::{CONTROLLERS, FairShare, NAMESPACES, Persist, Subsystem, SubsystemCells};

use self::admin::Admin;
use self::cells::{Part, SHUTDOWN_SLOT, Statistics};
use self::command::{Event, Next, State, Work, dma_target, media_target};
use self::control::cmb::MemoryBuffer;
use self::control::config_space::ConfigSpace;
use self::control::interrupts::Interrupts;
use self::control::registers::Registers;
use self::control::{config_space, registers};
use self::gate::{Admission, MediaGate, media_status};
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
            interrupts: Part { cells: &cells.interrupts, journal },
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
        self.registers.failure
    }

    /// What the function asks for in its configuration space.
    pub fn layout(&self) -> &ConfigLayout {
        &self.config_space.layout
    }

    /// The time is what it is now.
    fn see(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.admin.keep_alive.see(self.now, self.admin.features.keep_alive_timer());
    }

    /// When the host has to have sent a Keep Alive, if there is a timer.
    fn keep_alive_timeout(&self) -> Option<Instant> {
        let timer = self.admin.features.keep_alive_timer();
        self.admin.keep_alive.timeout(timer).filter(|_| self.registers.is_processing())
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

    /// Commands in line one after the other, each up to its end; an interrupt after the completions it stands for,
    /// before anything else. The one place that decides the order of everything that leaves.
    fn poll_dma(&mut self, now: Instant, max_payload: usize) -> Option<Dma> {
        self.see(now);
        if self.registers.csts().cfs() || !self.config_space.bus_master() {
            return None;
        }
        self.serve_waiting();
        self.serve_saving();
        self.fetch_entries();
        loop {
            if let Some(dma) = self.shadows.next(&self.queues) {
                return Some(dma);
            }
            let Some(slot) = self.table.sending.front() else {
                if let Some(message) = self.interrupts.take(&self.config_space) {
                    return Some(message);
                } else if self.fetch_entries() {
                    continue;
                }
                return None;
            };
            let state = self.command(slot).state();
            if state != State::Complete
                && let Some(message) = self.interrupts.take(&self.config_space)
            {
                return Some(message);
            }
            let (dma, next) = match state {
                State::Fetch => (self.fetch(slot), Ok(Next::Step(Event::Sent))),
                State::List => (self.pointer(slot).send_list_read(), Ok(Next::Step(Event::Sent))),
                State::Load => self.pointer(slot).send_data_read(),
                State::Store => self.pointer(slot).send_data_write(max_payload),
                State::Complete => match self.post(slot) {
                    Some(dma) => (dma, Ok(Next::Step(Event::Sent))),
                    None => continue,
                },
                // `step` keeps all others out of the line.
                other => unreachable!("a command in state {other:?} sends nothing"),
            };
            self.follow(slot, next);
            return Some(dma);
        }
    }

    /// What is not expected any more is dropped.
    fn handle_dma_data(&mut self, now: Instant, id: DmaId, offset: usize, data: &[u8], last: bool) {
        self.see(now);
        if ShadowDoorbells::is_read(id) {
            return self.take_shadow(id, offset, data, last);
        }
        let Some((slot, piece)) = dma_target(id, |slot| self.command(slot).uses.get()) else { return };
        let next = match self.command(slot).state() {
            State::Fetching => return self.take_entry(slot, offset, data, last),
            State::Listing => self.pointer(slot).take_list(offset, data, last),
            State::Load | State::Loading => {
                self.pointer(slot).take_data((piece, offset), data, last, self.pages)
            }
            _ => return,
        };
        self.follow(slot, next);
    }

    /// Without its commands a controller cannot go on; without its data a command cannot.
    fn handle_dma_error(&mut self, _now: Instant, id: DmaId, _error: DmaError) {
        if ShadowDoorbells::is_read(id) {
            return self.shadows.fail(id);
        }
        let Some((slot, _)) = dma_target(id, |slot| self.command(slot).uses.get()) else { return };
        match self.command(slot).state() {
            State::Fetching => self.registers.fail("a submission queue entry could not be read"),
            State::Listing | State::Load | State::Loading => {
                self.follow(slot, Err(Status::DATA_TRANSFER_ERROR));
            }
            _ => {}
        }
    }

    fn poll_media(&mut self) -> Option<MediaOp<'_>> {
        self.prepare_media();
        self.table.take_media()
    }

    fn handle_media(&mut self, now: Instant, id: MediaId, result: Result<(), MediaError>) {
        self.see(now);
        let Some(slot) = media_target(id, |slot| self.command(slot).uses.get()) else { return };
        let command = self.command(slot);
        let state = command.state();
        if !matches!(state, State::Media | State::Orphan) {
            return;
        }
        if result.is_ok() {
            self.nvm.note_written(command);
        }
        match (self.gate.leave(command, result), command.work()) {
            _ if state == State::Orphan => {
                self.forget(slot);
                if slot == SHUTDOWN_SLOT {
                    self.continue_shutdown();
                }
            }
            ((Ok(()), _), _) => self.end_media(slot),
            (_, Work::SelfTest) => {
                let next = self.admin.ended(command, false);
                self.follow(slot, next);
            }
            ((Err(error), is_lost), work) => {
                self.statistics.media_errors.add(1);
                let status = media_status(error, command).with_dnr();
                match work {
                    Work::Shutdown => self.fail_shutdown(),
                    _ if is_lost => self.complete_lost(slot, status),
                    _ => self.complete(slot, 0, status),
                }
            }
        }
        self.serve_parked();
    }

    /// At once when something that commands wait for has come from elsewhere: pages, which others give back too, and
    /// what a step frees can be had only after its commit; a namespace that another controller had alone; what the
    /// owner has kept. Else when a limit lets the next command in, or the host's time to send a Keep Alive is over.
    fn poll_timeout(&self) -> Option<Instant> {
        let is_kept = |slot| self.subsystem.is_persisted(self.command(slot).list.get()).is_some();
        let is_free = |slot| self.gate.admission(slot, self.command(slot)) != Admission::Later;
        let at_once = self.table.has_pages()
            || (0..).map_while(|position| self.table.parked.get(position)).any(is_free)
            || (self.table.saving != 0 && self.table.in_state(State::Saving).any(is_kept))
            || self.admin.can_announce();
        if at_once {
            return Some(Instant::ZERO);
        }
        let limited = self.queues.has_io_entries() && self.registers.is_processing();
        let limit = limited.then(|| self.limit.timeout(self.now)).flatten();
        [limit, self.keep_alive_timeout()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.see(now);
        self.serve_waiting();
        self.serve_parked();
        self.serve_saving();
        if self.admin.can_announce() {
            self.admin.announce(self.registers.is_processing());
            self.report_events();
        }
        if self.keep_alive_timeout().is_some_and(|at| at <= self.now) {
            self.admin.keep_alive.stop();
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
        self.table.sending.len()
    }

    fn depends_on_others(&self) -> bool {
        self.table.parked.len() > 0 || self.table.saving != 0 || self.admin.can_announce()
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
