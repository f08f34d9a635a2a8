//! What the function looks like to whoever borrows it.

use core::time::Duration;

use base::times;
use pcie::capability::msix::MsixLocation;
use pcie::capability::{find, find_extended};
use pcie::msix::{pending_bytes, table_bytes};
use pcie::spec::capability as capabilities;
use pcie::spec::header::{BAR_0, BAR_64, BAR_COUNT, CONFIG_BYTES, ID};

use super::cells::VECTORS;

/// What a slot shows: the same for every card on one ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotConfig {
    /// Bytes of each BAR: 0 or a power of two from 16. A 64-bit one has 0 behind it.
    pub bars: [u64; BAR_COUNT],
    /// Where vectors and pending bits of the function are, and where in configuration space that is said.
    pub msix: Option<(u16, MsixLocation)>,
    /// Whether the legacy interrupt pin is offered.
    pub intx: bool,
    /// Byte offset of the PCI Express capability.
    pub express: Option<u16>,
    /// Byte offset of Advanced Error Reporting.
    pub aer: Option<u16>,
    /// Byte offset of Single Root I/O Virtualization.
    pub sriov: Option<u16>,
    /// Registers of the function of which the session keeps a copy, as they are after a reset, by byte offset.
    pub registers: Vec<(u16, u32)>,
    /// How long a command waits for the function.
    pub timeout: Duration,
    /// Whether the client puts data of DMA messages where older versions of QEMU do ([`spec::vfio_user::DmaAccess`]).
    /// `None`: it is found out.
    pub old_transfers: Option<bool>,
}

/// Dwords of the capabilities of which the session keeps a copy of its own.
pub(super) const AER_DWORDS: u16 = 0x48 / 4;
pub(super) const SRIOV_DWORDS: u16 = 0x40 / 4;

/// Why a function cannot be shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotConfigError {
    /// There is no function: everything reads as all ones.
    Absent,
    /// A BAR has a size that none can have, or no place for its upper half.
    Bar(usize),
    /// Its vectors or pending bits lie outside of its BARs.
    Msix,
}

impl core::fmt::Display for SlotConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Absent => write!(f, "the function does not answer to configuration reads"),
            Self::Bar(index) => write!(f, "BAR {index} of the function has a size that no BAR can have"),
            Self::Msix => write!(f, "the function's MSI-X table or pending bits lie outside of its BARs"),
        }
    }
}

impl core::error::Error for SlotConfigError {}

impl SlotConfig {
    /// Looks at a function just after a reset. `read` returns a dword of its configuration space by byte offset; `bars`
    /// are the sizes of its BARs in bytes. The function is somebody else's, and nothing it says is trusted.
    pub fn probe(read: impl Fn(u16) -> u32, bars: [u64; BAR_COUNT]) -> Result<Self, SlotConfigError> {
        if read(ID) == u32::MAX {
            return Err(SlotConfigError::Absent);
        }
        let msix = find(&read, capabilities::MSIX).map(|at| (at, MsixLocation::decode(&read, at)));
        let express = find(&read, capabilities::EXPRESS);
        let aer = find_extended(&read, capabilities::EXTENDED_AER);
        let sriov = find_extended(&read, capabilities::EXTENDED_SRIOV);
        let mut registers: Vec<u16> = (0..BAR_COUNT as u16).map(|bar| BAR_0 + 4 * bar).collect();
        let extended = |start: u16, dwords: u16| {
            // A capability of an older version is shorter, and another one follows.
            let next = (read(start) >> capabilities::EXTENDED_NEXT_SHIFT) as u16 & 0xffc;
            let end = start + 4 * dwords;
            (start..if next > start { end.min(next) } else { end }).step_by(4)
        };
        registers
            .extend(express.into_iter().flat_map(|at| (at..at + capabilities::EXPRESS_BYTES).step_by(4)));
        registers.extend(aer.into_iter().flat_map(|at| extended(at, AER_DWORDS)));
        registers.extend(sriov.into_iter().flat_map(|at| extended(at, SRIOV_DWORDS)));
        let config = Self {
            bars,
            msix,
            intx: false,
            express,
            aer,
            sriov,
            registers: registers
                .into_iter()
                .filter(|register| usize::from(*register) < CONFIG_BYTES)
                .map(|register| (register, read(register)))
                .collect(),
            timeout: times::COMPLETION_TIMEOUT,
            old_transfers: None,
        };
        config.check().map(|()| config)
    }

    /// What makes no sense, if anything.
    pub fn check(&self) -> Result<(), SlotConfigError> {
        for (index, size) in self.bars.iter().enumerate().filter(|(_, size)| **size != 0) {
            let wide = self.initial(BAR_0 + 4 * index as u16) & BAR_64 != 0;
            let upper = self.bars.get(index + 1).copied();
            let fits = if wide { upper == Some(0) } else { *size <= 1 << 31 };
            if !size.is_power_of_two() || *size < 16 || !fits {
                return Err(SlotConfigError::Bar(index));
            }
        }
        let Some((_, msix)) = self.msix else { return Ok(()) };
        let ranges = [
            (msix.table_bar, msix.table_offset, table_bytes(msix.vectors)),
            (msix.pending_bar, msix.pending_offset, pending_bytes(msix.vectors)),
        ];
        let inside = ranges.iter().all(|(bar, offset, bytes)| {
            let size = self.bars.get(usize::from(*bar)).copied().unwrap_or(0);
            u64::from(*offset) + *bytes as u64 <= size
        });
        if inside && usize::from(msix.vectors) <= VECTORS { Ok(()) } else { Err(SlotConfigError::Msix) }
    }

    /// Vectors of MSI-X.
    pub fn vectors(&self) -> u16 {
        self.msix.map_or(0, |(_, location)| location.vectors)
    }

    /// What a register is after a reset, as far as that is known here.
    pub(super) fn initial(&self, register: u16) -> u32 {
        self.registers.iter().find(|(at, _)| *at == register).map_or(0, |(_, value)| *value)
    }
    /// Whether a register is one of those of which the session keeps a copy.
    pub(super) fn keeps(&self, register: u16) -> bool {
        self.registers.iter().any(|(at, _)| *at == register)
    }
}
