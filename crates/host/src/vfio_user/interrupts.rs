//! Interrupts: what the client has set up, what is pending, and what is to be signalled.
//!
//! A vector that interrupts while it is masked, or while it has no descriptor, is pending, and is signalled when
//! neither is so any more: clients take all vectors back for a moment when they want more of them.

use base::ledger::{Cell, Journal, Layout};
use spec::vfio_user::interrupt::{IrqAction, IrqData};
use spec::vfio_user::{Errno, IrqFlags, IrqIndex, IrqInfo, IrqSet};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::bits::NumberSet;
use super::cells::VECTORS;
use super::descriptors::Descriptors;
use super::{DescriptorId, SessionCells, SessionCounters, SlotConfig};

/// Kinds of interrupts that there may be: neither of the two of VFIO itself, errors and requests. QEMU warns of a
/// device that names them and has none ("Could not enable error recovery"), and stops its machine when one comes.
pub(super) const INTERRUPT_KINDS: u32 = IrqIndex::MSIX.0 + 1;

/// Interrupts as the client has set them up. All zeroes: none is.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct InterruptCells {
    vectors: [Cell<Vector>; VECTORS],
    pin: Cell<Vector>,
    /// Vectors that are to be signalled.
    signals: NumberSet<{ VECTORS / 64 }>,
    /// Vectors that were enabled or disabled.
    changed: NumberSet<{ VECTORS / 64 }>,
    /// 1 if the pin is to be signalled.
    pin_signal: Cell<u64>,
}

impl InterruptCells {
    /// Whether the client wants to be interrupted by any vector.
    pub(super) fn is_any_enabled(&self) -> bool {
        self.vectors.iter().any(|vector| vector.get().descriptor != 0)
    }
}

/// One interrupt.
#[derive(Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct Vector {
    /// One more than the descriptor; 0 for none.
    descriptor: u32,
    /// Bits of [`vector`].
    flags: u32,
}

/// Bits of [`Vector::flags`].
mod vector {
    pub(super) const MASKED: u32 = 1;
    /// It has interrupted and not been signalled; of the pin: it is asserted.
    pub(super) const PENDING: u32 = 2;
}

impl Vector {
    fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }
}

/// Where the interrupt is that a DEVICE_SET_IRQS speaks of.
#[derive(Clone, Copy)]
enum Interrupt {
    Pin,
    Vector(u16),
}

/// The interrupts of a slot.
pub struct Interrupts<'m> {
    cells: &'m InterruptCells,
    descriptors: Descriptors<'m>,
    counters: &'m SessionCounters,
    journal: Journal<'m>,
    /// How many vectors there are.
    vectors: u16,
    /// Whether there is a pin.
    has_pin: bool,
}

impl<'m> Interrupts<'m> {
    pub(super) fn new(
        cells: &'m SessionCells,
        descriptors: Descriptors<'m>,
        journal: Journal<'m>,
        config: &SlotConfig,
    ) -> Self {
        let (vectors, has_pin) = (config.vectors(), config.intx);
        let counters = &cells.counters;
        Self { cells: &cells.interrupts, descriptors, counters, journal, vectors, has_pin }
    }

    /// The function has interrupted with `vector`. Returns what is to be signalled after the commit.
    pub fn raise(&self, vector: u16) -> Option<DescriptorId> {
        if vector >= self.vectors {
            self.counters.stray_interrupts.add(1);
            return None;
        }
        let interrupt = Interrupt::Vector(vector);
        let state = self.get(interrupt);
        if state.descriptor == 0 || state.is(vector::MASKED) {
            self.set(interrupt, Vector { flags: state.flags | vector::PENDING, ..state });
            return None;
        }
        Some(DescriptorId(state.descriptor - 1))
    }

    /// The function asserts its interrupt pin, or deasserts it. Returns what is to be signalled after the commit.
    pub fn set_pin(&self, asserted: bool) -> Option<DescriptorId> {
        if !self.has_pin {
            self.counters.stray_interrupts.add(1);
            return None;
        }
        let state = self.cells.pin.get();
        let pending = if asserted { vector::PENDING } else { 0 };
        self.set(Interrupt::Pin, Vector { flags: state.flags & !vector::PENDING | pending, ..state });
        self.fire_pin()
    }

    /// Every enabled vector is to be signalled once: a dead card may not have done so.
    pub fn signal_all(&self) {
        for number in 0..self.vectors {
            let interrupt = Interrupt::Vector(number);
            let state = self.get(interrupt);
            if state.descriptor != 0 {
                self.set(interrupt, Vector { flags: state.flags | vector::PENDING, ..state });
                self.signal_pending(interrupt);
            }
        }
        let pin = self.cells.pin.get();
        // The pin masks itself when it is signalled, so that nobody knows whether it was.
        if pin.descriptor != 0 && pin.is(vector::PENDING) {
            self.cells.pin_signal.set(self.journal, 1);
        }
    }

    /// What else is to be signalled after the commit, each once.
    pub fn poll_signal(&self) -> Option<DescriptorId> {
        if self.cells.pin_signal.get() != 0 {
            self.cells.pin_signal.set(self.journal, 0);
            let pin = self.cells.pin.get();
            if let Some(descriptor) = pin.descriptor.checked_sub(1) {
                self.set(Interrupt::Pin, Vector { flags: pin.flags | vector::MASKED, ..pin });
                return Some(DescriptorId(descriptor));
            }
        }
        loop {
            let number = self.cells.signals.take(self.journal)?;
            // In the meantime the client may have masked it or taken it back.
            if let Some(descriptor) = self.raise(number) {
                return Some(descriptor);
            }
        }
    }

    /// Whether [`poll_change`](Self::poll_change) has something.
    pub fn has_change(&self) -> bool {
        !self.cells.changed.is_empty()
    }

    /// A vector that the client has enabled or disabled, and whether it is enabled now; each change once. The card sets
    /// the function's own vector up for it. Masks are the session's business.
    pub fn poll_change(&self) -> Option<(u16, bool)> {
        let number = self.cells.changed.take(self.journal)?;
        Some((number, self.is_enabled(number)))
    }

    /// Whether the client has given a descriptor for a vector.
    pub fn is_enabled(&self, vector: u16) -> bool {
        usize::from(vector) < VECTORS && self.get(Interrupt::Vector(vector)).descriptor != 0
    }

    /// Whether the client has given a descriptor for any vector.
    pub(super) fn is_any_enabled(&self) -> bool {
        (0..self.vectors).any(|vector| self.is_enabled(vector))
    }

    /// DEVICE_GET_IRQ_INFO.
    pub(super) fn info(&self, payload: &[u8]) -> Result<IrqInfo, Errno> {
        let asked = IrqInfo::read_from_bytes(payload).map_err(|_| Errno::EINVAL)?;
        let index = asked.index.get();
        if index >= INTERRUPT_KINDS || (asked.argsz.get() as usize) < size_of::<IrqInfo>() {
            return Err(Errno::EINVAL);
        }
        let count = self.count(index);
        let offered =
            IrqFlags(0).with_eventfd(true).with_maskable(true).with_automasked(index == IrqIndex::INTX.0);
        let flags = if count > 0 { offered } else { IrqFlags(0) };
        Ok(IrqInfo {
            argsz: (size_of::<IrqInfo>() as u32).into(),
            flags: flags.0.into(),
            index: index.into(),
            count: count.into(),
        })
    }

    /// Interrupts of a kind. Errors and requests for the device are never offered: QEMU stops the machine at the one.
    fn count(&self, index: u32) -> u32 {
        match IrqIndex(index) {
            IrqIndex::INTX => self.has_pin.into(),
            IrqIndex::MSIX => self.vectors.into(),
            _ => 0,
        }
    }

    /// DEVICE_SET_IRQS. On success the descriptors are the session's.
    pub(super) fn set_up(&self, payload: &[u8], descriptors: &[DescriptorId]) -> Result<(), Errno> {
        let (set, rest) = IrqSet::read_from_prefix(payload).map_err(|_| Errno::EINVAL)?;
        let (data, action) = set.flags().decode().ok_or(Errno::EINVAL)?;
        let (index, start, count) = (set.index.get(), set.start.get(), set.count.get());
        let available = self.count(index);
        let inside = start.checked_add(count).is_some_and(|end| end <= available);
        let fits = match data {
            IrqData::Bool => rest.len() == count as usize,
            _ => rest.is_empty(),
        };
        if !inside || !fits || (data != IrqData::Eventfd && !descriptors.is_empty()) {
            return Err(Errno::EINVAL);
        }
        let interrupt = |number: u32| {
            if index == IrqIndex::INTX.0 { Interrupt::Pin } else { Interrupt::Vector(number as u16) }
        };
        if data == IrqData::Eventfd {
            return self.set_descriptors(
                (start..start + count).map(interrupt),
                count as usize,
                action,
                descriptors,
            );
        }
        if count == 0 {
            // Everything of the kind is switched off, whether there is any or not.
            return match (data, action, start) {
                (IrqData::None, IrqAction::Trigger, 0) => {
                    (0..available).for_each(|number| self.set_descriptor(interrupt(number), None));
                    Ok(())
                }
                _ => Err(Errno::EINVAL),
            };
        }
        for number in start..start + count {
            // `fits`: a byte for each, and `inside`: each is a vector of ours.
            let chosen = data == IrqData::None || rest[(number - start) as usize] != 0;
            if chosen {
                self.act(interrupt(number), action);
            }
        }
        Ok(())
    }

    fn set_descriptors(
        &self,
        interrupts: impl Iterator<Item = Interrupt>,
        count: usize,
        action: IrqAction,
        descriptors: &[DescriptorId],
    ) -> Result<(), Errno> {
        if action != IrqAction::Trigger {
            return Err(Errno::EOPNOTSUPP);
        }
        if count == 0 || !(descriptors.is_empty() || descriptors.len() == count) {
            return Err(Errno::EINVAL);
        }
        for (position, interrupt) in interrupts.enumerate() {
            self.set_descriptor(interrupt, descriptors.get(position).copied());
        }
        Ok(())
    }

    fn act(&self, interrupt: Interrupt, action: IrqAction) {
        let state = self.get(interrupt);
        match action {
            IrqAction::Mask => {
                self.set(interrupt, Vector { flags: state.flags | vector::MASKED, ..state });
            }
            IrqAction::Unmask => {
                self.set(interrupt, Vector { flags: state.flags & !vector::MASKED, ..state });
                self.signal_pending(interrupt);
            }
            IrqAction::Trigger => match interrupt {
                Interrupt::Pin => self.cells.pin_signal.set(self.journal, 1),
                Interrupt::Vector(number) if state.descriptor != 0 => {
                    self.cells.signals.insert(self.journal, number);
                }
                Interrupt::Vector(_) => {}
            },
        }
    }

    /// Gives a descriptor to an interrupt, or takes it away.
    fn set_descriptor(&self, interrupt: Interrupt, descriptor: Option<DescriptorId>) {
        let state = self.get(interrupt);
        let stored = descriptor.map_or(0, |descriptor| self.descriptors.hold(descriptor));
        self.descriptors.release(state.descriptor);
        // Who sets an interrupt up anew has not masked it.
        let flags =
            if state.descriptor == 0 || stored == 0 { state.flags & !vector::MASKED } else { state.flags };
        self.set(interrupt, Vector { descriptor: stored, flags });
        if let Interrupt::Vector(number) = interrupt
            && (state.descriptor == 0) != (stored == 0)
        {
            self.cells.changed.insert(self.journal, number);
        }
        self.signal_pending(interrupt);
    }

    /// Signals what is pending and can be signalled.
    fn signal_pending(&self, interrupt: Interrupt) {
        let state = self.get(interrupt);
        if state.descriptor == 0 || state.is(vector::MASKED) || !state.is(vector::PENDING) {
            return;
        }
        match interrupt {
            Interrupt::Pin => self.cells.pin_signal.set(self.journal, 1),
            Interrupt::Vector(number) => {
                self.set(interrupt, Vector { flags: state.flags & !vector::PENDING, ..state });
                self.cells.signals.insert(self.journal, number);
            }
        }
    }

    /// Signals the pin, which masks itself, if it is asserted and not masked.
    fn fire_pin(&self) -> Option<DescriptorId> {
        let state = self.cells.pin.get();
        let fires = state.is(vector::PENDING) && !state.is(vector::MASKED);
        let descriptor = state.descriptor.checked_sub(1).filter(|_| fires)?;
        self.set(Interrupt::Pin, Vector { flags: state.flags | vector::MASKED, ..state });
        Some(DescriptorId(descriptor))
    }

    /// The client has gone.
    pub(super) fn release(&self) {
        (0..self.vectors).for_each(|number| self.set_descriptor(Interrupt::Vector(number), None));
        self.set_descriptor(Interrupt::Pin, None);
        self.cells.pin_signal.set(self.journal, 0);
        self.forget_pending();
    }

    /// The function has been reset: what it wanted to say it does not want to say any more.
    pub(super) fn forget_pending(&self) {
        for interrupt in (0..self.vectors).map(Interrupt::Vector).chain([Interrupt::Pin]) {
            let state = self.get(interrupt);
            self.set(interrupt, Vector { flags: state.flags & !vector::PENDING, ..state });
        }
    }

    /// Byte `index` of the pending bits.
    pub(super) fn pending_byte(&self, index: usize) -> u8 {
        let is_pending = |bit: usize| {
            let vector = self.cells.vectors.get(8 * index + bit);
            vector.is_some_and(|vector| vector.get().is(vector::PENDING))
        };
        (0..8).fold(0, |byte, bit| byte | u8::from(is_pending(bit)) << bit)
    }

    fn get(&self, interrupt: Interrupt) -> Vector {
        match interrupt {
            Interrupt::Pin => self.cells.pin.get(),
            Interrupt::Vector(number) => self.cells.vectors[usize::from(number)].get(),
        }
    }

    fn set(&self, interrupt: Interrupt, state: Vector) {
        match interrupt {
            Interrupt::Pin => self.cells.pin.set(self.journal, state),
            Interrupt::Vector(number) => {
                self.cells.vectors[usize::from(number)].set(self.journal, state);
            }
        }
    }
}
