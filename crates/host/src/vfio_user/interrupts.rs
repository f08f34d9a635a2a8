//! Interrupts: what the client has set up, what is pending, and what is to be signalled.
//!
//! A vector that interrupts while it is masked, or while it has no descriptor, is pending, and is signalled when
//! neither is so any more: clients take all vectors back for a moment when they want more of them.

use spec::vfio_user::interrupt::{IrqAction, IrqData};
use spec::vfio_user::{Errno, IrqIndex, IrqSet};
use zerocopy::FromBytes;

use super::cells::{VECTORS, Vector, vector};
use super::{DescriptorId, Session};

/// Where the interrupt is that a DEVICE_SET_IRQS speaks of.
#[derive(Clone, Copy)]
enum Interrupt {
    Pin,
    Vector(u16),
}

impl Session<'_> {
    /// The function has interrupted with `vector`. Returns what is to be signalled after the commit.
    pub fn interrupt(&mut self, vector: u16) -> Option<DescriptorId> {
        if vector >= self.config.vectors() {
            self.cells.counters.stray_interrupts.add(1);
            return None;
        }
        let interrupt = Interrupt::Vector(vector);
        let state = self.interrupt_cell(interrupt);
        if state.descriptor == 0 || state.is(vector::MASKED) {
            self.set_interrupt(interrupt, Vector { flags: state.flags | vector::PENDING, ..state });
            return None;
        }
        Some(DescriptorId(state.descriptor - 1))
    }

    /// The function asserts its interrupt pin, or deasserts it. Returns what is to be signalled after the commit.
    pub fn interrupt_pin(&mut self, asserted: bool) -> Option<DescriptorId> {
        if !self.config.intx {
            self.cells.counters.stray_interrupts.add(1);
            return None;
        }
        let state = self.cells.interrupts.intx.get();
        let pending = if asserted { vector::PENDING } else { 0 };
        self.set_interrupt(
            Interrupt::Pin,
            Vector { flags: state.flags & !vector::PENDING | pending, ..state },
        );
        self.fire_pin()
    }

    /// Every enabled vector is to be signalled once: a dead card may not have done so.
    pub fn signal_all(&mut self) {
        for number in 0..self.config.vectors() {
            let interrupt = Interrupt::Vector(number);
            let state = self.interrupt_cell(interrupt);
            if state.descriptor != 0 {
                self.set_interrupt(interrupt, Vector { flags: state.flags | vector::PENDING, ..state });
                self.signal_pending(interrupt);
            }
        }
        let pin = self.cells.interrupts.intx.get();
        // The pin masks itself when it is signalled, so that nobody knows whether it was.
        if pin.descriptor != 0 && pin.is(vector::PENDING) {
            self.cells.interrupts.intx_signal.set(self.journal, 1);
        }
    }

    /// What else is to be signalled after the commit, each once.
    pub fn poll_signal(&mut self) -> Option<DescriptorId> {
        let interrupts = &self.cells.interrupts;
        if interrupts.intx_signal.get() != 0 {
            interrupts.intx_signal.set(self.journal, 0);
            let pin = interrupts.intx.get();
            if let Some(descriptor) = pin.descriptor.checked_sub(1) {
                self.set_interrupt(Interrupt::Pin, Vector { flags: pin.flags | vector::MASKED, ..pin });
                return Some(DescriptorId(descriptor));
            }
        }
        loop {
            let number = self.take_bit(&interrupts.signals, &interrupts.signal_count)?;
            // In the meantime the client may have masked it or taken it back.
            if let Some(descriptor) = self.interrupt(number) {
                return Some(descriptor);
            }
        }
    }

    /// Whether [`poll_vector`](Self::poll_vector) has something.
    pub fn has_vector_change(&self) -> bool {
        self.cells.interrupts.changed_count.get() > 0
    }

    /// A vector that the client has enabled or disabled, and whether it is enabled now; each change once. The card sets
    /// the function's own vector up for it. Masks are the session's business.
    pub fn poll_vector(&mut self) -> Option<(u16, bool)> {
        let interrupts = &self.cells.interrupts;
        let number = self.take_bit(&interrupts.changed, &interrupts.changed_count)?;
        Some((number, self.is_enabled(number)))
    }

    /// Whether the client has given a descriptor for a vector.
    pub fn is_enabled(&self, vector: u16) -> bool {
        usize::from(vector) < VECTORS && self.interrupt_cell(Interrupt::Vector(vector)).descriptor != 0
    }

    /// Interrupts of a kind. Errors and requests for the device are never offered: QEMU stops the machine at the one.
    pub(super) fn interrupt_count(&self, index: u32) -> u32 {
        match IrqIndex(index) {
            IrqIndex::INTX => self.config.intx.into(),
            IrqIndex::MSIX => self.config.vectors().into(),
            _ => 0,
        }
    }

    /// DEVICE_SET_IRQS. On success the descriptors are the session's.
    pub(super) fn set_irqs(&mut self, payload: &[u8], descriptors: &[DescriptorId]) -> Result<(), Errno> {
        let (set, rest) = IrqSet::read_from_prefix(payload).map_err(|_| Errno::EINVAL)?;
        let (data, action) = set.flags().decode().ok_or(Errno::EINVAL)?;
        let (index, start, count) = (set.index.get(), set.start.get(), set.count.get());
        let available = self.interrupt_count(index);
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
        &mut self,
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

    fn act(&mut self, interrupt: Interrupt, action: IrqAction) {
        let state = self.interrupt_cell(interrupt);
        match action {
            IrqAction::Mask => {
                self.set_interrupt(interrupt, Vector { flags: state.flags | vector::MASKED, ..state });
            }
            IrqAction::Unmask => {
                self.set_interrupt(interrupt, Vector { flags: state.flags & !vector::MASKED, ..state });
                self.signal_pending(interrupt);
            }
            IrqAction::Trigger => match interrupt {
                Interrupt::Pin => self.cells.interrupts.intx_signal.set(self.journal, 1),
                Interrupt::Vector(number) if state.descriptor != 0 => self.set_signal(number),
                Interrupt::Vector(_) => {}
            },
        }
    }

    /// Gives a descriptor to an interrupt, or takes it away.
    fn set_descriptor(&self, interrupt: Interrupt, descriptor: Option<DescriptorId>) {
        let state = self.interrupt_cell(interrupt);
        let stored = descriptor.map_or(0, |descriptor| self.hold(descriptor));
        self.release(state.descriptor);
        // Who sets an interrupt up anew has not masked it.
        let flags =
            if state.descriptor == 0 || stored == 0 { state.flags & !vector::MASKED } else { state.flags };
        self.set_interrupt(interrupt, Vector { descriptor: stored, flags });
        if let Interrupt::Vector(number) = interrupt
            && (state.descriptor == 0) != (stored == 0)
        {
            let interrupts = &self.cells.interrupts;
            self.set_bit(&interrupts.changed, &interrupts.changed_count, number);
        }
        self.signal_pending(interrupt);
    }

    /// Signals what is pending and can be signalled.
    fn signal_pending(&self, interrupt: Interrupt) {
        let state = self.interrupt_cell(interrupt);
        if state.descriptor == 0 || state.is(vector::MASKED) || !state.is(vector::PENDING) {
            return;
        }
        match interrupt {
            Interrupt::Pin => self.cells.interrupts.intx_signal.set(self.journal, 1),
            Interrupt::Vector(number) => {
                self.set_interrupt(interrupt, Vector { flags: state.flags & !vector::PENDING, ..state });
                self.set_signal(number);
            }
        }
    }

    /// Signals the pin, which masks itself, if it is asserted and not masked.
    fn fire_pin(&self) -> Option<DescriptorId> {
        let state = self.cells.interrupts.intx.get();
        let fires = state.is(vector::PENDING) && !state.is(vector::MASKED);
        let descriptor = state.descriptor.checked_sub(1).filter(|_| fires)?;
        self.set_interrupt(Interrupt::Pin, Vector { flags: state.flags | vector::MASKED, ..state });
        Some(DescriptorId(descriptor))
    }

    /// The client has gone.
    pub(super) fn release_vectors(&mut self) {
        (0..self.config.vectors()).for_each(|number| self.set_descriptor(Interrupt::Vector(number), None));
        self.set_descriptor(Interrupt::Pin, None);
        self.cells.interrupts.intx_signal.set(self.journal, 0);
        self.forget_pending();
    }

    /// The function has been reset: what it wanted to say it does not want to say any more.
    pub(super) fn forget_pending(&self) {
        for interrupt in (0..self.config.vectors()).map(Interrupt::Vector).chain([Interrupt::Pin]) {
            let state = self.interrupt_cell(interrupt);
            self.set_interrupt(interrupt, Vector { flags: state.flags & !vector::PENDING, ..state });
        }
    }

    /// Byte `index` of the pending bits.
    pub(super) fn pending_byte(&self, index: usize) -> u8 {
        let is_pending = |bit: usize| {
            let vector = self.cells.interrupts.vectors.get(8 * index + bit);
            vector.is_some_and(|vector| vector.get().is(vector::PENDING))
        };
        (0..8).fold(0, |byte, bit| byte | u8::from(is_pending(bit)) << bit)
    }

    fn interrupt_cell(&self, interrupt: Interrupt) -> Vector {
        match interrupt {
            Interrupt::Pin => self.cells.interrupts.intx.get(),
            Interrupt::Vector(number) => self.cells.interrupts.vectors[usize::from(number)].get(),
        }
    }

    fn set_interrupt(&self, interrupt: Interrupt, state: Vector) {
        match interrupt {
            Interrupt::Pin => self.cells.interrupts.intx.set(self.journal, state),
            Interrupt::Vector(number) => {
                self.cells.interrupts.vectors[usize::from(number)].set(self.journal, state);
            }
        }
    }

    fn set_signal(&self, number: u16) {
        let interrupts = &self.cells.interrupts;
        self.set_bit(&interrupts.signals, &interrupts.signal_count, number);
    }
}
