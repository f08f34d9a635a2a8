//! The function's configuration space: what `pcie` describes, with the registers that change in the ledger.

use base::ledger::{Cell, Layout};
use pcie::capability::express::ExpressOptions;
use pcie::capability::msix::MsixLocation;
use pcie::capability::sriov::SrIovOptions;
use pcie::config::MsixControl;
use pcie::{ConfigBuilder, ConfigLayout, ConfigState};
use spec::nvme::PCI_CLASS_CODE;
use zerocopy::FromBytes;

use crate::nvme::cells::{MEMORY_BUFFER_BYTES, VECTORS};
use crate::nvme::registers::{BAR_BYTES, PENDING_OFFSET, VECTORS_OFFSET};
use crate::nvme::{Config, Controller};

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

impl Controller<'_> {
    pub(crate) fn read_config(&self, register: u16) -> u32 {
        let initial = self.layout.initial(register);
        self.layout.slot(register).map_or(initial, |slot| self.cells.config_space.slots[slot].get() ^ initial)
    }

    /// A configuration write; a function-level reset happens here.
    pub(crate) fn write_config(&mut self, register: u16, value: u32, byte_enables: u8) {
        let Some(slot) = self.layout.slot(register) else { return };
        let before = self.read_config(register);
        let after = self.layout.write(before, register, value, byte_enables);
        let stored = after ^ self.layout.initial(register);
        self.cells.config_space.slots[slot].set(self.journal, stored);
        let effect = self.layout.effect(register, before, after, value, byte_enables);
        if effect.function_level_reset {
            self.reset_function(|controller| {
                controller.layout.function_level_reset(&controller.config_state())
            });
        } else if effect.msix_changed && !self.msix_control().enabled {
            self.cells.pending_vectors.set(self.journal, 0);
        }
    }

    fn config_state(&self) -> ConfigState {
        let mut state = self.layout.reset();
        for (value, register) in state.0.iter_mut().zip(self.layout.mutable_registers()) {
            *value = self.read_config(*register);
        }
        state
    }

    pub(crate) fn set_config_state(&mut self, state: &ConfigState) {
        for (slot, register) in self.layout.mutable_registers().iter().enumerate() {
            let stored = state.0[slot] ^ self.layout.initial(*register);
            self.cells.config_space.slots[slot].set(self.journal, stored);
        }
    }

    pub(crate) fn bus_master(&self) -> bool {
        self.layout.registers(|register| self.read_config(register)).command().bus_master()
    }

    pub(crate) fn msix_control(&self) -> MsixControl {
        let control = self.layout.registers(|register| self.read_config(register)).msix_control();
        control.unwrap_or(MsixControl { enabled: false, masked: false, vectors: 0 })
    }
}
