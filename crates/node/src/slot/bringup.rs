//! What a slot asks of its function on its own account: what it looks like, once, and its set-up after every reset.
//!
//! Every stage is a list of requests that may be repeated: if one of them has no answer in time, the stage begins again
//! under a new epoch, and late answers mean nothing. As many are under way at once as [`WINDOW`] says.

use core::time::Duration;

use base::ledger::Cell;
use base::{Instant, Payload, Rule, coded};
use fabric::Window;
use host::vfio_user::{Session, SlotConfig, SlotConfigError};
use host::{Access, AccessError, AccessId};
use link::Port;
use pcie::FlowClass;
use pcie::capability::{find, find_extended, msix::MsixLocation};
use pcie::msix::{ENTRY_BYTES, Entry};
use pcie::spec::capability as capabilities;
use pcie::spec::header::{
    BAR_0, BAR_64, BAR_COUNT, BAR_FLAGS, COMMAND, COMMAND_MEMORY_SPACE, CONFIG_BYTES, ID,
};

use super::BorrowedSlot;
use super::cells::{REGISTERS, SERIAL_DWORDS};
use super::memory::DOORBELL;
use crate::apertures::BAR_BYTES_MAX;
use crate::parts::guest_view;
use crate::requests;

/// Requests under way at once.
const WINDOW: u32 = 64;
/// Between two questions whether a function is back from a reset.
const RETRY: Duration = Duration::from_millis(10);
/// How often it is asked: ten times the 100 ms that it has (PCIe 6.0 §6.6.2).
const TRIES: u32 = 100;
/// Marks the names of these requests; those of the session have this bit clear.
const OWN: u32 = 1 << 31;
const EPOCH_SHIFT: u32 = 16;
const EPOCH_MASK: u32 = 0x7fff;
/// The type of a BAR for I/O space (PCIe 6.0 §7.5.1.2.1).
const BAR_IO: u32 = 1;
/// Writes that make an entry of a vector table.
const ENTRY_WRITES: usize = 2;
const ALL_BYTES: u8 = 0xf;
const LOWER_BYTES: u8 = 0b0011;
const UPPER_BYTES: u8 = 0b1100;

/// What a slot is doing with its function.
///
/// ```text
///  Waiting --new pair--> Snapshot -> Ones -> Sizes -> Addresses ---> Setup -> Running
///                                                     |               ^        | reset asked for, client gone
///                                                     v               |        v
///                                                  Unusable  Back -> Serial   Reset -> Back
///                                                                     ^
///                                                                  new pair
/// ```
/// A new pair of incarnations means that the lender has reset the function: Snapshot begins, or once that is over,
/// Serial, which no reset leaves out. There the slot finds out whether the function is the one that its guest knows: a
/// drive whose lender may have lost what was answered and not flushed has another device serial number
/// ([`crate::DriveConfig::shown_id`]). The guest reaches no function before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The streams have never been open.
    Waiting = 0,
    /// All of configuration space is read.
    Snapshot,
    /// All ones are written to the BARs.
    Ones,
    /// They are read, which tells their sizes.
    Sizes,
    /// They get what they had.
    Addresses,
    /// A function-level reset is initiated.
    Reset,
    /// The function is asked until it answers.
    Back,
    /// The device serial number is read.
    Serial,
    /// Vectors, command register and MSI-X control are written.
    Setup,
    /// The session has the function.
    Running,
    /// There is no function, or none that could be shown.
    Unusable,
}

coded!(Stage: Waiting, Snapshot, Ones, Sizes, Addresses, Reset, Back, Serial, Setup, Running, Unusable);

/// What a stage wants next.
enum Next {
    Access(Access),
    /// An entry of the vector table, which is posted.
    Vector(u16),
    /// Nothing, or nothing now.
    Nothing,
}

/// Whether a request is one of these, and not the session's.
pub(super) fn is_own(id: AccessId) -> bool {
    id.0 & OWN != 0
}

impl<'m> BorrowedSlot<'m> {
    pub(super) fn stage(&self) -> Stage {
        self.cells.stage.value()
    }

    fn begin(&mut self, stage: Stage) {
        let (cells, journal) = (self.cells, self.journal);
        cells.stage.set(journal, stage.into());
        cells.epoch.update(journal, |epoch| epoch.wrapping_add(1));
        cells.next.set(journal, 0);
        cells.done.set(journal, 0);
        cells.retry_at.set(journal, 0);
    }

    /// Nobody has been given the function yet. What is not known of it is still to be found out, and what was asked for
    /// that has no answer any more.
    pub(super) fn begin_again(&mut self) {
        self.begin(self.stage());
    }

    /// A new pair of incarnations: the lender has reset the function.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        self.backlog.outlive();
        self.cells.failed.set(self.journal, 0);
        let Some(session) = &mut self.session else {
            self.unusable = None;
            return self.begin(Stage::Snapshot);
        };
        session.handle_function_reset(now);
        self.view.lose();
        self.begin_setup();
    }

    /// The function was reset, and is set up once it is known to be the same.
    fn begin_setup(&mut self) {
        self.begin(if self.serial().is_some() { Stage::Serial } else { Stage::Setup });
    }

    /// Whether the function is the one that was seen before. What another one does is not for a guest that was given
    /// this one: it would take what is lost for written.
    fn compare_serial(&mut self, now: Instant) {
        let (cells, journal) = (self.cells, self.journal);
        let Some(known) = self.serial() else { return };
        let is_same = known.iter().zip(&cells.serial).all(|(known, found)| known.get() == found.get());
        if is_same || !journal.rule(Rule::CompareSerial) {
            return;
        }
        known.iter().zip(&cells.serial).for_each(|(known, found)| known.set(journal, found.get()));
        self.note_replaced(now);
    }

    /// What the guest was given is not there any more: neither is the function, for this guest.
    pub(crate) fn note_replaced(&mut self, now: Instant) {
        if let Some(session) = self.session.as_mut().filter(|session| !session.is_idle()) {
            self.cells.replaced.set(self.journal, 1);
            self.cells.replacements.add(1);
            session.set_present(now, false);
        }
    }

    /// The session wants a reset of the function.
    pub(super) fn reset_for(&mut self, now: Instant, id: AccessId) {
        if self.can_reset() {
            self.cells.answers.set(self.journal, u64::from(id.0) + 1);
            self.begin_reset();
        } else if let Some(session) = &mut self.session {
            session.handle_done(now, id, Err(AccessError::UnsupportedRequest));
        }
    }

    /// Nobody uses the function any more.
    pub(super) fn reset_unasked(&mut self) {
        self.cells.answers.set(self.journal, 0);
        self.view.reset();
        // While it is being set up, it was reset just now.
        if self.stage() == Stage::Running && self.can_reset() {
            self.begin_reset();
        }
    }

    /// Whether nothing that the function does is for the guest.
    pub fn is_closed_out(&self) -> bool {
        self.cells.is_closed_out()
    }

    /// A write of the function is lost, and so is everything behind it: the guest has a function that has lost its
    /// state, and it is made so.
    pub(super) fn fail_function(&mut self, now: Instant) {
        self.backlog.abandon();
        self.reach.close();
        self.cells.failed.set(self.journal, 1);
        // A reset that is under way ends that; one that is over came before it.
        if self.stage() == Stage::Reset {
            return;
        }
        self.view.lose();
        if !self.can_reset() {
            return self.set_present(now, false);
        }
        if let Some(session) = &mut self.session {
            session.handle_function_reset(now);
        }
        self.cells.answers.set(self.journal, 0);
        self.cells.tries.set(self.journal, 0);
        self.begin(Stage::Reset);
    }

    fn begin_reset(&mut self) {
        self.cells.tries.set(self.journal, 0);
        self.begin(Stage::Reset);
    }

    fn can_reset(&self) -> bool {
        let express = self.express().map(|at| at + capabilities::DEVICE_CAPABILITIES);
        express.is_some_and(|at| self.register(at) & capabilities::FLR_CAPABLE != 0)
    }

    /// When the function is asked again, while nobody asks it.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let at = self.cells.retry_at.get();
        (at != 0).then(|| Instant::from_nanos(at))
    }

    /// The function may be asked again when its time has come, as soon as there is a way to it.
    pub(super) fn end_pause(&mut self, now: Instant) {
        if self.retry_at().is_some_and(|at| at <= now) {
            self.cells.retry_at.set(self.journal, 0);
        }
    }

    /// Queues the next request of the stage, for which there is room. False if there is none now.
    pub(super) fn bring_up(&mut self, now: Instant, port: &mut Port<'m>, window: &Window) -> bool {
        if !Self::can_program(port) {
            return false;
        }
        match self.take_next() {
            Next::Nothing => return false,
            Next::Access(access) => {
                // All requests of a stage are of configuration space (`take_next`), which needs no address and is
                // aligned; `can_program` has found room.
                requests::issue(now, port, (window, self.reach.function()), access)
                    .expect("configuration space can be reached");
            }
            Next::Vector(vector) => {
                if self.session.as_ref().is_some_and(|session| session.interrupts.is_enabled(vector)) {
                    self.program_vector(now, port, window, vector, true);
                }
                self.request_done(now);
            }
        }
        true
    }

    fn take_next(&mut self) -> Next {
        let (cells, stage) = (self.cells, self.stage());
        let (next, done) = (cells.next.get(), cells.done.get());
        if self.retry_at().is_some() || next >= self.requests(stage) || next - done >= WINDOW {
            return Next::Nothing;
        }
        cells.next.set(self.journal, next + 1);
        let id = AccessId(OWN | (cells.epoch.get() & EPOCH_MASK) << EPOCH_SHIFT | next);
        self.request(stage, next, id).map_or(Next::Vector(next as u16), Next::Access)
    }

    /// The next request without the fabric, for tests: its name, the register, and what is written there.
    #[cfg(test)]
    pub(super) fn next_for_tests(&mut self) -> Option<(AccessId, u16, Option<u32>)> {
        self.end_pause(Instant::from_nanos(u64::MAX));
        loop {
            match self.take_next() {
                Next::Access(Access::ConfigRead { id, register }) => return Some((id, register, None)),
                Next::Access(Access::ConfigWrite { id, register, value, .. }) => {
                    return Some((id, register, Some(value)));
                }
                Next::Vector(_) => self.request_done(Instant::ZERO),
                Next::Access(_) | Next::Nothing => return None,
            }
        }
    }

    #[cfg(test)]
    pub(super) fn bar_sizes_for_tests(&self) -> [u64; BAR_COUNT] {
        self.slot_config().expect("a session has a configuration").bars
    }

    /// How many requests a stage has.
    fn requests(&self, stage: Stage) -> u32 {
        match stage {
            Stage::Waiting | Stage::Running | Stage::Unusable => 0,
            Stage::Snapshot => REGISTERS as u32,
            Stage::Ones | Stage::Sizes | Stage::Addresses => BAR_COUNT as u32,
            Stage::Reset | Stage::Back => 1,
            Stage::Serial => SERIAL_DWORDS as u32,
            Stage::Setup => self.vectors() + if self.msix().is_some() { 2 } else { 1 },
        }
    }

    /// Request `index` of a stage; `None` for a vector, which is posted.
    fn request(&self, stage: Stage, index: u32, id: AccessId) -> Option<Access> {
        let bar = BAR_0 + 4 * index as u16;
        let write = |register, value, byte_enables| Access::ConfigWrite { id, register, value, byte_enables };
        Some(match stage {
            Stage::Snapshot => Access::ConfigRead { id, register: 4 * index as u16 },
            Stage::Ones => write(bar, u32::MAX, ALL_BYTES),
            Stage::Sizes => Access::ConfigRead { id, register: bar },
            Stage::Addresses => write(bar, self.register(bar), ALL_BYTES),
            Stage::Reset => {
                let control = self.express().unwrap_or_default() + capabilities::DEVICE_CONTROL;
                write(control, self.register(control) | capabilities::INITIATE_FLR, LOWER_BYTES)
            }
            Stage::Back => Access::ConfigRead { id, register: ID },
            Stage::Serial => Access::ConfigRead { id, register: self.serial_at()? + 4 * index as u16 },
            Stage::Setup if index < self.vectors() => return None,
            Stage::Setup if index == self.vectors() => write(COMMAND, self.command().into(), LOWER_BYTES),
            Stage::Setup => {
                let control = self.msix().map_or(0, |(at, _)| at);
                write(control, capabilities::MSIX_ENABLE, UPPER_BYTES)
            }
            Stage::Waiting | Stage::Running | Stage::Unusable => return None,
        })
    }

    /// What the function's command register has to be: its guest's, unless that wanted the reset, and the window in the
    /// fabric needs memory space.
    fn command(&self) -> u16 {
        let guest = self.session.as_ref().filter(|_| self.cells.answers.get() == 0);
        COMMAND_MEMORY_SPACE | guest.map_or(0, |session| session.config_space().command_register())
    }

    /// A request of a stage has been answered, or has not.
    pub(super) fn brought(&mut self, now: Instant, id: AccessId, result: Result<&[u8], AccessError>) {
        let (epoch, index) = (id.0 >> EPOCH_SHIFT & EPOCH_MASK, id.0 & ((1 << EPOCH_SHIFT) - 1));
        let stage = self.stage();
        if epoch != self.cells.epoch.get() & EPOCH_MASK || index >= self.requests(stage) {
            return;
        }
        if result == Err(AccessError::Timeout) {
            return self.begin(stage);
        }
        // Whatever is not there reads as all ones. The index is one that the stage has, as was found above.
        let value = result.ok().and_then(|bytes| bytes.try_into().ok()).map_or(u32::MAX, u32::from_le_bytes);
        match stage {
            Stage::Snapshot => self.cells.registers[index as usize].set(self.journal, value),
            Stage::Sizes => self.cells.sizes[index as usize].set(self.journal, value),
            Stage::Serial => self.cells.serial[index as usize].set(self.journal, value),
            Stage::Back if value == u32::MAX => return self.ask_again(now),
            _ => {}
        }
        self.request_done(now);
    }

    fn ask_again(&mut self, now: Instant) {
        let tries = self.cells.tries.update(self.journal, |tries| tries + 1);
        if tries < TRIES {
            self.begin(Stage::Back);
            return self.cells.retry_at.set(self.journal, (now + RETRY).as_nanos());
        }
        // It does not come back: what it was asked for fails, and so does everything from now on.
        self.begin(Stage::Running);
        self.answer(now, Err(AccessError::Timeout));
        self.set_present(now, false);
    }

    fn request_done(&mut self, now: Instant) {
        let stage = self.stage();
        let done = self.cells.done.update(self.journal, |done| done + 1);
        if done < self.requests(stage) {
            return;
        }
        match stage {
            Stage::Snapshot => self.begin(Stage::Ones),
            Stage::Ones => self.begin(Stage::Sizes),
            Stage::Sizes => self.begin(Stage::Addresses),
            Stage::Addresses => {
                self.recognise();
                self.begin(if self.session.is_some() { Stage::Setup } else { Stage::Unusable });
            }
            Stage::Reset => {
                // All that it did before has come before this answer.
                self.backlog.abandon();
                self.cells.failed.set(self.journal, 0);
                self.begin(Stage::Back);
            }
            Stage::Back => self.begin_setup(),
            Stage::Serial => {
                self.compare_serial(now);
                self.begin(Stage::Setup);
            }
            Stage::Setup if self.is_given_up() => {
                self.view.lose();
                self.cells.answers.set(self.journal, 0);
                self.begin(Stage::Setup);
            }
            Stage::Setup => {
                self.begin(Stage::Running);
                self.answer(now, Ok(&[]));
            }
            Stage::Waiting | Stage::Running | Stage::Unusable => {}
        }
    }

    /// Whether the session waits no longer for the reset that it wanted: its registers are as before, and so have the
    /// function's to be, which has lost its state.
    fn is_given_up(&self) -> bool {
        self.cells.answers.get() != 0 && self.session.as_ref().is_some_and(|it| !it.awaits_reset())
    }

    /// Tells the session what came of the reset that it wanted.
    fn answer(&mut self, now: Instant, result: Result<&[u8], AccessError>) {
        let waiting = self.cells.answers.get();
        self.cells.answers.set(self.journal, 0);
        if waiting != 0 && result.is_ok() {
            self.view.reset();
        }
        if let (Some(id), Some(session)) = (waiting.checked_sub(1), &mut self.session) {
            session.handle_done(now, AccessId(id as u32), result);
        }
    }

    /// Makes the session of what is known of the function, or finds that there can be none.
    pub(super) fn recognise(&mut self) {
        match self.slot_config() {
            Ok(config) => {
                self.cells.probed.set(self.journal, 1);
                let session = Session::new(self.session_cells, self.journal, &config);
                self.reach.rebuild(&session.maps, self.is_closed_out());
                self.session = Some(session);
            }
            Err(error) => self.unusable = Some(error),
        }
    }

    fn slot_config(&self) -> Result<SlotConfig, SlotConfigError> {
        let mut bars = [0; BAR_COUNT];
        let mut index = 0;
        while index < BAR_COUNT {
            let (size, is_wide) = self.bar_size(index);
            if size > BAR_BYTES_MAX {
                return Err(SlotConfigError::Bar(index));
            }
            bars[index] = size;
            index += if is_wide { 2 } else { 1 };
        }
        let read = |register| self.register(register);
        if guest_view::is_controller(read) {
            let location = self.msix().map(|(_, location)| location);
            let vectors = location.map_or([0; 2], |location| [location.table_bar, location.pending_bar]);
            guest_view::hide_bars(&mut bars, vectors);
        }
        SlotConfig::probe(read, bars)
    }

    /// Bytes of a BAR, and whether the next one is its upper half (PCIe 6.0 §7.5.1.2.1). What is not memory is not
    /// shown.
    fn bar_size(&self, index: usize) -> (u64, bool) {
        let mask = |index: usize| self.cells.sizes.get(index).map_or(0, base::ledger::Cell::get);
        let low = mask(index);
        let is_wide = low & (BAR_64 | BAR_IO) == BAR_64;
        if low & BAR_IO != 0 || low & (BAR_64 | !BAR_FLAGS) == 0 {
            return (0, false);
        }
        let upper = if is_wide { mask(index + 1) } else { u32::MAX };
        let writable = u64::from(upper) << 32 | u64::from(low & !BAR_FLAGS);
        // The lowest bit that can be written is the size.
        (writable & writable.wrapping_neg(), is_wide)
    }

    /// Whether an entry of the vector table can be written in this step.
    pub(super) fn can_program(port: &Port<'_>) -> bool {
        port.sender.room(FlowClass::Posted) >= ENTRY_WRITES
    }

    /// Writes an entry of the function's vector table: its messages come to our doorbell, and say which vector they
    /// are. There is room. Two writes, since an entry need not be aligned to more than eight bytes (PCIe 6.0 §7.7.2.3),
    /// and no request crosses 4 KiB; the one that unmasks comes last.
    pub(super) fn program_vector(
        &self,
        now: Instant,
        port: &mut Port<'m>,
        window: &Window,
        vector: u16,
        enabled: bool,
    ) {
        let Some((_, location)) = self.msix() else { return };
        let control = if enabled { 0 } else { Entry::MASK_BIT };
        let entry = Entry { address: DOORBELL, data: vector.into(), control };
        let start = u64::from(location.table_offset) + u64::from(vector) * ENTRY_BYTES as u64;
        let parts = entry.to_bytes();
        for (part, offset) in parts.chunks_exact(ENTRY_BYTES / ENTRY_WRITES).zip((start..).step_by(8)) {
            // `SlotConfig::check` has found the table inside of its BAR, before a vector can be enabled.
            let (bar, payload) = (location.table_bar, Payload::inline(part));
            let access = Access::Write { bar, offset, payload };
            let written = requests::issue(now, port, (window, self.reach.function()), access);
            written.expect("the table lies in a BAR that can be reached");
        }
    }

    fn vectors(&self) -> u32 {
        self.msix().map_or(0, |(_, location)| location.vectors.into())
    }

    fn msix(&self) -> Option<(u16, MsixLocation)> {
        let read = |register| self.register(register);
        find(read, capabilities::MSIX).map(|at| (at, MsixLocation::decode(read, at)))
    }

    /// Where the device serial number stands.
    fn serial_at(&self) -> Option<u16> {
        let capability = find_extended(|at| self.register(at), capabilities::EXTENDED_SERIAL_NUMBER)?;
        (usize::from(capability) + 4 * SERIAL_DWORDS < CONFIG_BYTES).then_some(capability + 4)
    }

    /// The device serial number as it was found when nobody had the function.
    fn serial(&self) -> Option<&'m [Cell<u32>]> {
        let first = usize::from(self.serial_at()?) / 4;
        self.cells.registers.get(first..first + SERIAL_DWORDS)
    }

    fn express(&self) -> Option<u16> {
        find(|register| self.register(register), capabilities::EXPRESS)
    }

    pub(super) fn knows_class(&self) -> bool {
        guest_view::is_controller(|register| self.register(register))
    }

    /// A register as after a reset.
    fn register(&self, register: u16) -> u32 {
        self.cells.registers.get(usize::from(register) / 4).map_or(u32::MAX, base::ledger::Cell::get)
    }
}
