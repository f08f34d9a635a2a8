//! Puts a [`ConfigLayout`] together: header, BARs, then capabilities in the order they are asked for.

use super::{BarLayout, CapabilityOffsets, ConfigLayout, ConfigState, DWORDS, DwordLayout, NO_SLOT};
use crate::capability::{aer, express, msix, power, serial_number, sriov};
use crate::spec::header::{
    BAR_0, BAR_64, BAR_COUNT, BAR_PREFETCHABLE, CACHE_LINE, CAPABILITIES_POINTER, CLASS, COMMAND,
    COMMAND_BUS_MASTER, COMMAND_INTERRUPT_DISABLE, COMMAND_MEMORY_SPACE, COMMAND_PARITY_ERROR_RESPONSE,
    COMMAND_SERR, CONFIG_BYTES, ID, INTERRUPT, STATUS_CAPABILITIES, STATUS_CLEARABLE, SUBSYSTEM,
};
use crate::spec::{DWORD_BYTES, capability};

/// Builds the configuration space of an endpoint. Mistakes in what is asked for are mistakes in the program, and
/// panic.
#[derive(Debug)]
pub struct ConfigBuilder {
    dwords: Box<[DwordLayout; DWORDS]>,
    /// Registers the device changes though software cannot.
    variable: Vec<u16>,
    bars: [Option<BarLayout>; BAR_COUNT],
    offsets: CapabilityOffsets,
    msix: Option<msix::MsixLocation>,
    /// Where the next capability goes, and the offset of the link that will point to it.
    next: u16,
    last_link: u16,
    next_extended: u16,
    last_extended: Option<u16>,
}

impl ConfigBuilder {
    /// The type 0 header of a function with these ids and nothing else.
    pub fn endpoint(vendor: u16, device: u16) -> Self {
        let empty = DwordLayout { initial: 0, writable: 0, clearable: 0, sticky: 0, slot: NO_SLOT };
        let mut builder = Self {
            dwords: Box::new([empty; DWORDS]),
            variable: Vec::new(),
            bars: [None; BAR_COUNT],
            offsets: CapabilityOffsets::default(),
            msix: None,
            next: capability::FIRST,
            last_link: CAPABILITIES_POINTER,
            next_extended: capability::EXTENDED_FIRST,
            last_extended: None,
        };
        builder.set(ID, u32::from(device) << 16 | u32::from(vendor));
        let command = COMMAND_MEMORY_SPACE
            | COMMAND_BUS_MASTER
            | COMMAND_PARITY_ERROR_RESPONSE
            | COMMAND_SERR
            | COMMAND_INTERRUPT_DISABLE;
        builder.writable(COMMAND, u32::from(command));
        builder.clearable(COMMAND, u32::from(STATUS_CLEARABLE) << 16);
        // Without effect in PCI Express, but legacy software writes and reads it back (PCIe 6.0 §7.5.1.1.7).
        builder.writable(CACHE_LINE, 0xff);
        builder.writable(INTERRUPT, 0xff);
        builder
    }

    /// Class code: base class in bits 23:16, sub-class 15:8, programming interface 7:0; and the revision id.
    #[must_use]
    pub fn class(mut self, code: u32, revision: u8) -> Self {
        assert!(code < 1 << 24, "a class code has 24 bits, not {code:#x}");
        self.set(CLASS, code << 8 | u32::from(revision));
        self
    }

    /// Subsystem vendor id and subsystem id.
    #[must_use]
    pub fn subsystem(mut self, vendor: u16, id: u16) -> Self {
        self.set(SUBSYSTEM, u32::from(id) << 16 | u32::from(vendor));
        self
    }

    /// The pin of legacy interrupts, 1 for INTA.
    #[must_use]
    pub fn interrupt_pin(mut self, pin: u8) -> Self {
        self.set(INTERRUPT, u32::from(pin) << 8);
        self
    }

    /// A 32-bit memory BAR of `size` bytes, a power of two from 16 to 2 GiB.
    #[must_use]
    pub fn bar_32(self, index: usize, size: u64) -> Self {
        assert!(size <= 1 << 31, "a 32-bit BAR has at most 2 GiB, not {size}");
        self.bar(index, BarLayout { size, wide: false, prefetchable: false })
    }

    /// A 64-bit memory BAR of `size` bytes, a power of two from 16; takes the places `index` and `index + 1`.
    #[must_use]
    pub fn bar_64(self, index: usize, size: u64, prefetchable: bool) -> Self {
        assert!(index + 1 < BAR_COUNT, "a 64-bit BAR needs two places from {index}");
        self.bar(index, BarLayout { size, wide: true, prefetchable })
    }

    fn bar(mut self, index: usize, bar: BarLayout) -> Self {
        assert!(bar.size.is_power_of_two() && bar.size >= 16, "no BAR can have {} bytes", bar.size);
        let taken = self.bars[index].is_some()
            || bar.wide && self.bars[index + 1].is_some()
            || index > 0 && self.bars[index - 1].is_some_and(|bar| bar.wide);
        assert!(!taken, "BAR {index} is taken");
        let register = BAR_0 + (index * DWORD_BYTES) as u16;
        let flags = if bar.wide { BAR_64 } else { 0 } | if bar.prefetchable { BAR_PREFETCHABLE } else { 0 };
        let address = !(bar.size - 1);
        self.set(register, flags);
        self.writable(register, address as u32);
        if bar.wide {
            self.writable(register + DWORD_BYTES as u16, (address >> 32) as u32);
        }
        self.bars[index] = Some(bar);
        self
    }

    /// Adds the Power Management capability: D0 and D3hot, no reset between them.
    #[must_use]
    pub fn power_management(mut self) -> Self {
        self.offsets.power = Some(power::add(&mut self));
        self
    }

    /// Adds the PCI Express capability of an endpoint with function-level reset.
    #[must_use]
    pub fn express(mut self, options: express::ExpressOptions) -> Self {
        self.offsets.express = Some(express::add(&mut self, options));
        self
    }

    /// Adds the MSI-X capability; the BARs it points to must be there already.
    #[must_use]
    pub fn msix(mut self, location: msix::MsixLocation) -> Self {
        location.check(&self.bars);
        self.offsets.msix = Some(msix::add(&mut self, location));
        self.msix = Some(location);
        self
    }

    /// Adds the Advanced Error Reporting capability.
    #[must_use]
    pub fn advanced_error_reporting(mut self) -> Self {
        self.offsets.aer = Some(aer::add(&mut self));
        self
    }

    /// Adds the Device Serial Number capability.
    #[must_use]
    pub fn serial_number(mut self, number: u64) -> Self {
        serial_number::add(&mut self, number);
        self
    }

    /// Adds the Single Root I/O Virtualization capability of a physical function, and ARI in front of it.
    #[must_use]
    pub fn sriov(mut self, options: &sriov::SrIovOptions) -> Self {
        sriov::add_ari(&mut self);
        sriov::add(&mut self, options);
        self
    }

    /// The finished layout.
    pub fn build(mut self) -> ConfigLayout {
        let mut mutable = Vec::new();
        for (index, dword) in self.dwords.iter_mut().enumerate() {
            let register = (index * DWORD_BYTES) as u16;
            if dword.writable | dword.clearable != 0 || self.variable.contains(&register) {
                assert!(
                    mutable.len() < ConfigState::DWORDS,
                    "more registers change than the state has places"
                );
                dword.slot = mutable.len() as u8;
                mutable.push(register);
            }
        }
        let Self { dwords, bars, offsets, msix, .. } = self;
        ConfigLayout { dwords, mutable, bars, offsets, msix }
    }

    /// Reserves `len` bytes for a capability and links it; returns its offset. `upper` are the 16 bits behind id
    /// and link.
    pub(crate) fn capability(&mut self, id: u8, upper: u16, len: u16) -> u16 {
        let offset = self.next;
        self.next += len.next_multiple_of(DWORD_BYTES as u16);
        assert!(self.next <= capability::END, "the capabilities do not fit");
        let link_shift = if self.last_link == CAPABILITIES_POINTER { 0 } else { 8 };
        self.set(self.last_link, u32::from(offset) << link_shift);
        self.set(COMMAND, u32::from(STATUS_CAPABILITIES) << 16);
        self.set(offset, u32::from(upper) << 16 | u32::from(id));
        self.last_link = offset;
        offset
    }

    /// As [`ConfigBuilder::capability`], for the extended chain.
    pub(crate) fn extended(&mut self, id: u16, version: u8, len: u16) -> u16 {
        let offset = self.next_extended;
        self.next_extended += len.next_multiple_of(DWORD_BYTES as u16);
        assert!(usize::from(self.next_extended) <= CONFIG_BYTES, "the extended capabilities do not fit");
        if let Some(last) = self.last_extended {
            self.set(last, u32::from(offset) << capability::EXTENDED_NEXT_SHIFT);
        }
        self.set(offset, u32::from(version) << 16 | u32::from(id));
        self.last_extended = Some(offset);
        offset
    }

    /// Sets initial bits.
    pub(crate) fn set(&mut self, register: u16, bits: u32) {
        self.dword(register).initial |= bits;
    }

    /// Lets software write bits.
    pub(crate) fn writable(&mut self, register: u16, bits: u32) {
        self.dword(register).writable |= bits;
    }

    /// Lets software clear bits by writing one.
    pub(crate) fn clearable(&mut self, register: u16, bits: u32) {
        self.dword(register).clearable |= bits;
    }

    /// Keeps bits over a function-level reset.
    pub(crate) fn sticky(&mut self, register: u16, bits: u32) {
        self.dword(register).sticky |= bits;
    }

    /// Lets the device change a register that software cannot.
    pub(crate) fn variable(&mut self, register: u16) {
        self.variable.push(register);
    }

    fn dword(&mut self, register: u16) -> &mut DwordLayout {
        &mut self.dwords[usize::from(register) / DWORD_BYTES]
    }
}
