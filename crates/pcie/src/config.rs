//! Configuration space of a type 0 function (PCIe 6.0 §7.5.1).
//!
//! Most of the 4096 bytes never change. [`ConfigLayout`] is the immutable description: initial values, which bits
//! software writes, which it clears by writing one, which survive a function-level reset. What changes is one to a
//! few dozen dwords, [`ConfigState`]: plain data of [`ConfigState::BYTES`] bytes that an owner may keep, copy and
//! commit wherever it keeps its other state. [`ConfigSpace`] joins the two for owners without such a place; owners
//! with one use [`ConfigLayout::write`] and [`ConfigLayout::slot`] directly.
//!
//! A write answers with a [`ConfigEffect`]: what the device has to look at again.

mod builder;
mod registers;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::capability::msix::MsixLocation;
use crate::spec::header::{BAR_0, BAR_COUNT, COMMAND, CONFIG_BYTES};
use crate::spec::{DWORD_BYTES, capability};
pub use builder::ConfigBuilder;
pub use registers::{Bar, Command, DeviceControl, MsixControl, PowerState, Registers};

/// Dwords of configuration space.
const DWORDS: usize = CONFIG_BYTES / DWORD_BYTES;
/// What a register without a place in the state has in the table of slots.
const NO_SLOT: u8 = u8::MAX;

/// A memory BAR as the device asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarLayout {
    /// Bytes: a power of two, at least 16.
    pub size: u64,
    /// Takes a 64-bit address, and the next BAR's place for its upper half.
    pub wide: bool,
    /// Reads have no side effects.
    pub prefetchable: bool,
}

/// The dwords of a layout that change, in a fixed order: plain data, cheap to copy and to store elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigState(pub [u32; Self::DWORDS]);

impl ConfigState {
    /// Places for registers that change; a layout may use fewer.
    pub const DWORDS: usize = 64;
    /// Bytes of the state.
    pub const BYTES: usize = Self::DWORDS * DWORD_BYTES;
}

const _: () = assert!(size_of::<ConfigState>() == ConfigState::BYTES);
const _: () = assert!(ConfigState::DWORDS < NO_SLOT as usize);

/// What a configuration write changed that a device acts on. Values are read again through [`Registers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigEffect {
    /// Bit n: BAR n has another address (a 64-bit BAR is named by its lower half). Sizing a BAR moves it twice;
    /// owners look at the command's memory-space bit before they map anything.
    pub bars_moved: u8,
    /// A bit of the command register changed: memory space, bus master, interrupt disable.
    pub command_changed: bool,
    /// MSI-X enable or function mask changed.
    pub msix_changed: bool,
    /// Maximum payload, maximum read request or another bit of the device control register changed.
    pub device_control_changed: bool,
    /// The function went to D0 or D3hot.
    pub power_state_changed: bool,
    /// A function-level reset was initiated (PCIe 6.0 §6.6.2). The owner resets the function and calls
    /// [`ConfigLayout::function_level_reset`].
    pub function_level_reset: bool,
}

impl ConfigEffect {
    /// Whether there is nothing to do.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Both effects.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bars_moved: self.bars_moved | other.bars_moved,
            command_changed: self.command_changed | other.command_changed,
            msix_changed: self.msix_changed | other.msix_changed,
            device_control_changed: self.device_control_changed | other.device_control_changed,
            power_state_changed: self.power_state_changed | other.power_state_changed,
            function_level_reset: self.function_level_reset | other.function_level_reset,
        }
    }
}

/// The immutable description of a configuration space; made by [`ConfigBuilder`].
#[derive(Clone, Debug)]
pub struct ConfigLayout {
    dwords: Box<[DwordLayout; DWORDS]>,
    /// The registers that change, by slot: byte offsets.
    mutable: Vec<u16>,
    bars: [Option<BarLayout>; BAR_COUNT],
    offsets: CapabilityOffsets,
    msix: Option<MsixLocation>,
}

/// One dword of a layout. Bits in neither mask are read-only, unless the device itself changes them.
#[derive(Clone, Copy, Debug)]
struct DwordLayout {
    initial: u32,
    /// Software writes these bits.
    writable: u32,
    /// Software clears these bits by writing one (RW1C).
    clearable: u32,
    /// These bits survive a function-level reset.
    sticky: u32,
    slot: u8,
}

/// Where the capabilities that have behaviour are: byte offsets, if present.
#[derive(Clone, Copy, Debug, Default)]
struct CapabilityOffsets {
    power: Option<u16>,
    express: Option<u16>,
    msix: Option<u16>,
    aer: Option<u16>,
}

impl ConfigLayout {
    /// The value of a dword after a conventional reset. `register` is a byte offset; its low two bits are ignored,
    /// as everywhere here, and what lies beyond 4096 reads as all ones.
    #[inline]
    pub fn initial(&self, register: u16) -> u32 {
        self.dword(register).map_or(u32::MAX, |dword| dword.initial)
    }

    /// The place of a register in [`ConfigState`], or `None` if it never changes.
    #[inline]
    pub fn slot(&self, register: u16) -> Option<usize> {
        let slot = self.dword(register)?.slot;
        (slot != NO_SLOT).then_some(usize::from(slot))
    }

    /// The registers that change, as byte offsets in the order of their slots.
    pub fn mutable_registers(&self) -> &[u16] {
        &self.mutable
    }

    /// The value of a dword that was `current`, after software writes `value` to the bytes in `byte_enables` (bit 0
    /// for the lowest offset). Pure; registers that never change stay as they are.
    #[inline]
    pub fn write(&self, current: u32, register: u16, value: u32, byte_enables: u8) -> u32 {
        let Some(dword) = self.dword(register) else { return current };
        let enabled = byte_mask(byte_enables);
        let written = current & !(dword.writable & enabled) | value & dword.writable & enabled;
        let next = written & !(value & dword.clearable & enabled);
        let power_state = self.offsets.power.map(|offset| offset + capability::POWER_CONTROL);
        if power_state == Some(register & !0x3) { keep_known_power_state(current, next) } else { next }
    }

    /// What the write of `value` means for the device, given the register before and after.
    pub fn effect(
        &self,
        register: u16,
        before: u32,
        after: u32,
        value: u32,
        byte_enables: u8,
    ) -> ConfigEffect {
        let register = register & !0x3;
        let changed = before ^ after;
        let mut effect = ConfigEffect::default();
        let bar = usize::from(register.wrapping_sub(BAR_0)) / DWORD_BYTES;
        if bar < BAR_COUNT && changed != 0 {
            let upper = bar > 0 && self.bars[bar - 1].is_some_and(|bar| bar.wide);
            effect.bars_moved = 1 << if upper { bar - 1 } else { bar };
        } else if register == COMMAND {
            effect.command_changed = changed & 0xffff != 0;
        } else if at(self.offsets.msix, 0) == Some(register) {
            effect.msix_changed = changed & capability::MSIX_CONTROL_WRITABLE != 0;
        } else if at(self.offsets.power, capability::POWER_CONTROL) == Some(register) {
            effect.power_state_changed = changed & capability::POWER_STATE != 0;
        } else if at(self.offsets.express, capability::DEVICE_CONTROL) == Some(register) {
            effect.device_control_changed = changed & 0xffff != 0;
            effect.function_level_reset = value & byte_mask(byte_enables) & capability::INITIATE_FLR != 0;
        }
        effect
    }

    /// The state after a conventional reset.
    pub fn reset(&self) -> ConfigState {
        let mut state = ConfigState([0; ConfigState::DWORDS]);
        for (slot, &register) in state.0.iter_mut().zip(&self.mutable) {
            *slot = self.initial(register);
        }
        state
    }

    /// The state after a function-level reset: sticky bits and the fields that belong to the link stay (PCIe 6.0
    /// §6.6.2).
    pub fn function_level_reset(&self, state: &ConfigState) -> ConfigState {
        let mut next = self.reset();
        for (slot, &register) in self.mutable.iter().enumerate() {
            let sticky = self.dword(register).map_or(0, |dword| dword.sticky);
            next.0[slot] = next.0[slot] & !sticky | state.0[slot] & sticky;
        }
        next
    }

    /// Reads one dword.
    #[inline]
    pub fn read_register(&self, state: &ConfigState, register: u16) -> u32 {
        match self.slot(register) {
            Some(slot) => state.0[slot],
            None => self.initial(register),
        }
    }

    /// Reads any range. Bytes beyond 4096 read as all ones.
    pub fn read(&self, state: &ConfigState, offset: usize, out: &mut [u8]) {
        for (index, byte) in out.iter_mut().enumerate() {
            let at = offset.saturating_add(index);
            *byte = match u16::try_from(at) {
                Ok(register) => self.read_register(state, register).to_le_bytes()[at % DWORD_BYTES],
                Err(_) => u8::MAX,
            };
        }
    }

    /// Writes any range, dword by dword. Bytes beyond 4096 go nowhere.
    pub fn write_bytes(&self, state: &mut ConfigState, offset: usize, bytes: &[u8]) -> ConfigEffect {
        let mut effect = ConfigEffect::default();
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() && at < CONFIG_BYTES {
            let lead = at % DWORD_BYTES;
            let (now, later) = rest.split_at(rest.len().min(DWORD_BYTES - lead));
            let mut value = [0; DWORD_BYTES];
            value[lead..lead + now.len()].copy_from_slice(now);
            let enables = ((1 << now.len()) - 1) << lead;
            // Below 4096.
            let register = (at - lead) as u16;
            effect = effect.and(self.write_register(state, register, u32::from_le_bytes(value), enables));
            at += now.len();
            rest = later;
        }
        effect
    }

    /// Writes one dword, as a configuration write with these byte enables does.
    pub fn write_register(
        &self,
        state: &mut ConfigState,
        register: u16,
        value: u32,
        byte_enables: u8,
    ) -> ConfigEffect {
        let Some(slot) = self.slot(register) else { return ConfigEffect::default() };
        let before = state.0[slot];
        let after = self.write(before, register, value, byte_enables);
        state.0[slot] = after;
        self.effect(register, before, after, value, byte_enables)
    }

    /// Decodes registers that `read` returns by byte offset, wherever they are stored.
    pub fn registers<F: Fn(u16) -> u32>(&self, read: F) -> Registers<'_, F> {
        Registers::new(self, read)
    }

    /// The BARs; `None` also for the upper half of a 64-bit one.
    pub fn bars(&self) -> &[Option<BarLayout>; BAR_COUNT] {
        &self.bars
    }

    /// Where the MSI-X table and pending bits are.
    pub fn msix(&self) -> Option<MsixLocation> {
        self.msix
    }

    /// Byte offset of the Advanced Error Reporting capability.
    pub fn aer_offset(&self) -> Option<u16> {
        self.offsets.aer
    }

    /// Byte offset of the PCI Express capability.
    pub fn express_offset(&self) -> Option<u16> {
        self.offsets.express
    }

    #[inline]
    fn dword(&self, register: u16) -> Option<&DwordLayout> {
        self.dwords.get(usize::from(register) / DWORD_BYTES)
    }
}

/// A layout together with its state.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    layout: Arc<ConfigLayout>,
    state: ConfigState,
}

impl ConfigSpace {
    /// A space as after a conventional reset.
    pub fn new(layout: Arc<ConfigLayout>) -> Self {
        let state = layout.reset();
        Self { layout, state }
    }

    /// A space that goes on from a state saved before, which must come from the same layout.
    pub fn with_state(layout: Arc<ConfigLayout>, state: ConfigState) -> Self {
        Self { layout, state }
    }

    /// The description.
    pub fn layout(&self) -> &Arc<ConfigLayout> {
        &self.layout
    }

    /// What changes, to be saved.
    pub fn state(&self) -> &ConfigState {
        &self.state
    }

    /// Reads any range; see [`ConfigLayout::read`].
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        self.layout.read(&self.state, offset, out);
    }

    /// Writes any range; see [`ConfigLayout::write_bytes`].
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> ConfigEffect {
        self.layout.write_bytes(&mut self.state, offset, bytes)
    }

    /// Replaces the bits in `mask`: how the device itself changes a register (an error status, a header log),
    /// whatever software may do with it.
    ///
    /// # Panics
    /// If the register is one that never changes: a mistake of the device's author.
    pub fn set(&mut self, register: u16, mask: u32, bits: u32) {
        let slot = self.layout.slot(register);
        let slot = slot.expect("a device changes only registers its layout declares as changing");
        self.state.0[slot] = self.state.0[slot] & !mask | bits & mask;
    }

    /// Resets the registers for a function-level reset.
    pub fn function_level_reset(&mut self) {
        self.state = self.layout.function_level_reset(&self.state);
    }

    /// Resets the registers for a conventional reset.
    pub fn reset(&mut self) {
        self.state = self.layout.reset();
    }

    /// The decoded registers.
    pub fn registers(&self) -> Registers<'_, impl Fn(u16) -> u32 + '_> {
        self.layout.registers(|register| self.layout.read_register(&self.state, register))
    }
}

/// Widens four byte enables to the bits of a dword.
#[inline]
pub(crate) fn byte_mask(byte_enables: u8) -> u32 {
    let byte = |index: u32| if byte_enables >> index & 1 == 1 { 0xff << (8 * index) } else { 0 };
    byte(0) | byte(1) | byte(2) | byte(3)
}

#[inline]
fn at(capability: Option<u16>, offset: u16) -> Option<u16> {
    capability.map(|start| start + offset)
}

/// The write of an optional state that the function does not have, here D1 and D2, completes normally and changes
/// no state (PCIe 6.0 §7.5.2.2).
#[inline]
fn keep_known_power_state(current: u32, next: u32) -> u32 {
    match next & capability::POWER_STATE {
        capability::POWER_D0 | capability::POWER_D3_HOT => next,
        _ => next & !capability::POWER_STATE | current & capability::POWER_STATE,
    }
}
