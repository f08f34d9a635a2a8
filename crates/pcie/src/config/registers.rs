//! The registers a device and its owner act on, decoded from wherever they are stored.

use super::{ConfigLayout, at};
use crate::spec::header::{
    BAR_0, BAR_COUNT, BAR_FLAGS, COMMAND, COMMAND_BUS_MASTER, COMMAND_INTERRUPT_DISABLE, COMMAND_MEMORY_SPACE,
};
use crate::spec::{DWORD_BYTES, capability};

/// Decodes the registers of `layout`; `read` returns a dword by its byte offset.
#[derive(Clone, Copy, Debug)]
pub struct Registers<'a, F> {
    layout: &'a ConfigLayout,
    read: F,
}

/// The command register (PCIe 6.0 §7.5.1.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command(pub u16);

impl Command {
    /// The function answers to its BARs.
    pub fn memory_space(self) -> bool {
        self.0 & COMMAND_MEMORY_SPACE != 0
    }

    /// The function may send memory requests, MSI-X among them.
    pub fn bus_master(self) -> bool {
        self.0 & COMMAND_BUS_MASTER != 0
    }

    /// The function may not assert INTx.
    pub fn interrupt_disabled(self) -> bool {
        self.0 & COMMAND_INTERRUPT_DISABLE != 0
    }
}

/// A BAR as software has placed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// First byte; only meaningful while memory space is enabled.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

impl Bar {
    /// Where `address` lies in this BAR, if it does.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.address).filter(|&offset| offset < self.size)
    }
}

/// The message control register of MSI-X (PCIe 6.0 §7.7.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixControl {
    /// The function interrupts with MSI-X.
    pub enabled: bool,
    /// All vectors are masked.
    pub masked: bool,
    /// Vectors of the table, 1 to 2048.
    pub vectors: u16,
}

/// The device control register of the PCI Express capability (PCIe 6.0 §7.5.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceControl {
    /// Largest payload the function may send, in bytes.
    pub max_payload: usize,
    /// Largest read the function may ask for, in bytes.
    pub max_read_request: usize,
    /// The function may set relaxed ordering.
    pub relaxed_ordering: bool,
    /// The function may set no snoop.
    pub no_snoop: bool,
    /// The function may use 8-bit tags.
    pub extended_tags: bool,
}

/// D-states this crate's functions have (PCIe 6.0 §5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerState {
    /// Works.
    D0,
    /// Only configuration requests are answered.
    D3Hot,
}

impl<'a, F: Fn(u16) -> u32> Registers<'a, F> {
    pub(super) fn new(layout: &'a ConfigLayout, read: F) -> Self {
        Self { layout, read }
    }

    /// The command register.
    pub fn command(&self) -> Command {
        Command((self.read)(COMMAND) as u16)
    }

    /// Where BAR `index` lies; `None` if there is none or it is the upper half of another.
    pub fn bar(&self, index: usize) -> Option<Bar> {
        let layout = (*self.layout.bars.get(index)?)?;
        let register = BAR_0 + (index * DWORD_BYTES) as u16;
        let low = u64::from((self.read)(register) & !BAR_FLAGS);
        let high = if layout.wide { u64::from((self.read)(register + DWORD_BYTES as u16)) } else { 0 };
        Some(Bar { address: high << 32 | low, size: layout.size })
    }

    /// The BAR an address hits, and the offset in it, if memory space is enabled.
    pub fn decode(&self, address: u64) -> Option<(usize, u64)> {
        if !self.command().memory_space() {
            return None;
        }
        (0..BAR_COUNT).find_map(|index| Some((index, self.bar(index)?.offset_of(address)?)))
    }

    /// The control register of MSI-X, if the function has it.
    pub fn msix_control(&self) -> Option<MsixControl> {
        let value = (self.read)(self.layout.offsets.msix?);
        Some(MsixControl {
            enabled: value & capability::MSIX_ENABLE != 0,
            masked: value & capability::MSIX_FUNCTION_MASK != 0,
            vectors: (value >> 16) as u16 % capability::MSIX_VECTORS_MAX + 1,
        })
    }

    /// The device control register, if the function has the PCI Express capability.
    pub fn device_control(&self) -> Option<DeviceControl> {
        let value = (self.read)(at(self.layout.offsets.express, capability::DEVICE_CONTROL)?);
        // 110b and 111b are reserved; 4096 is the largest size.
        let size = |shift: u32| 128 << (value >> shift & 0x7).min(5);
        Some(DeviceControl {
            max_payload: size(capability::MAX_PAYLOAD_SHIFT),
            max_read_request: size(capability::MAX_READ_REQUEST_SHIFT),
            relaxed_ordering: value & capability::RELAXED_ORDERING != 0,
            no_snoop: value & capability::NO_SNOOP != 0,
            extended_tags: value & capability::EXTENDED_TAGS != 0,
        })
    }

    /// The power state; D0 for a function without power management.
    pub fn power_state(&self) -> PowerState {
        let control = at(self.layout.offsets.power, capability::POWER_CONTROL).map(&self.read);
        match control.map(|value| value & capability::POWER_STATE) {
            Some(capability::POWER_D3_HOT) => PowerState::D3Hot,
            _ => PowerState::D0,
        }
    }
}
