//! The function's configuration space: what `pcie` describes, with the registers that change in the ledger.

use std::rc::Rc;

use base::ledger::{Cell, Journal, Layout};
use pcie::capability::express::ExpressOptions;
use pcie::capability::msix::MsixLocation;
use pcie::capability::sriov::SrIovOptions;
use pcie::config::{ConfigEffect, MsixControl};
use pcie::{ConfigBuilder, ConfigLayout, ConfigState};
use spec::nvme::PCI_CLASS_CODE;
use zerocopy::FromBytes;

use crate::nvme::Config;
use crate::nvme::cells::{MEMORY_BUFFER_BYTES, VECTORS};
use crate::nvme::registers::{BAR_BYTES, PENDING_OFFSET, VECTORS_OFFSET};

/// The BAR of registers, doorbells, vector table and pending bits.
pub const REGISTERS_BAR: u8 = 0;
/// The BAR of the controller memory buffer.
pub const MEMORY_BUFFER_BAR: u8 = 4;
/// Vendor and device id. Nobody has been assigned this vendor id; drivers bind by class code. QEMU's ids would bring
/// the quirks that drivers keep for its controller, such as no Write Zeroes and no trust in namespace identifiers.
const VENDOR_ID: u16 = 0xca05;
const DEVICE_ID: u16 = 0x0001;

/// The registers that change, each stored relative to its value after reset, so that zeroes are the state after
/// power-on.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct ConfigSpaceCells {
    slots: [Cell<u32>; ConfigState::DWORDS],
}

/// The layout of the configuration space of controller `index`. A virtual function looks like any other to whoever
/// borrows it; the physical one tells how many there are.
pub(crate) fn layout(config: &Config, index: u16) -> ConfigLayout {
    let mut builder = ConfigBuilder::endpoint(VENDOR_ID, DEVICE_ID)
        .class(PCI_CLASS_CODE, 0)
        .subsystem(VENDOR_ID, DEVICE_ID)
        .bar_64(usize::from(REGISTERS_BAR), BAR_BYTES, false);
    if config.memory_buffer {
        builder = builder.bar_64(usize::from(MEMORY_BUFFER_BAR), MEMORY_BUFFER_BYTES as u64, true);
    }
    builder = builder
        .power_management()
        .express(ExpressOptions::default())
        .msix(MsixLocation {
            vectors: VECTORS as u16,
            table_bar: REGISTERS_BAR,
            table_offset: VECTORS_OFFSET as u32,
            pending_bar: REGISTERS_BAR,
            pending_offset: PENDING_OFFSET as u32,
        })
        .advanced_error_reporting()
        .serial_number(config.shown_id());
    if index == 0 && config.functions > 0 {
        let mut bars = vec![(usize::from(REGISTERS_BAR), BAR_BYTES, false)];
        if config.memory_buffer {
            bars.push((usize::from(MEMORY_BUFFER_BAR), MEMORY_BUFFER_BYTES as u64, true));
        }
        builder = builder.sriov(&SrIovOptions {
            total: config.functions,
            first_offset: 1,
            stride: 1,
            device: DEVICE_ID,
            bars,
        });
    }
    builder.build()
}

/// The configuration space of one function.
pub(crate) struct ConfigSpace<'m> {
    cells: &'m ConfigSpaceCells,
    journal: Journal<'m>,
    pub(crate) layout: Rc<ConfigLayout>,
}

impl<'m> ConfigSpace<'m> {
    pub(crate) fn new(cells: &'m ConfigSpaceCells, journal: Journal<'m>, layout: Rc<ConfigLayout>) -> Self {
        Self { cells, journal, layout }
    }

    pub(crate) fn read(&self, register: u16) -> u32 {
        let initial = self.layout.initial(register);
        self.layout.slot(register).map_or(initial, |slot| self.cells.slots[slot].get() ^ initial)
    }

    /// A configuration write, and what it does to the function.
    pub(crate) fn write(&self, register: u16, value: u32, byte_enables: u8) -> ConfigEffect {
        let Some(slot) = self.layout.slot(register) else { return ConfigEffect::default() };
        let before = self.read(register);
        let after = self.layout.write(before, register, value, byte_enables);
        self.cells.slots[slot].set(self.journal, after ^ self.layout.initial(register));
        self.layout.effect(register, before, after, value, byte_enables)
    }

    /// What a function level reset leaves.
    pub(crate) fn after_function_level_reset(&self) -> ConfigState {
        let mut state = self.layout.reset();
        for (value, register) in state.0.iter_mut().zip(self.layout.mutable_registers()) {
            *value = self.read(*register);
        }
        self.layout.function_level_reset(&state)
    }

    pub(crate) fn set(&self, state: &ConfigState) {
        for (slot, register) in self.layout.mutable_registers().iter().enumerate() {
            self.cells.slots[slot].set(self.journal, state.0[slot] ^ self.layout.initial(*register));
        }
    }

    pub(crate) fn bus_master(&self) -> bool {
        self.layout.registers(|register| self.read(register)).command().bus_master()
    }

    pub(crate) fn msix_control(&self) -> MsixControl {
        let control = self.layout.registers(|register| self.read(register)).msix_control();
        control.unwrap_or(MsixControl { enabled: false, masked: false, vectors: 0 })
    }
}
