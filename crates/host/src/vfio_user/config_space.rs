//! The borrower's view of configuration space: which registers are the session's own, and what reaches the function.
//!
//! Own are the BARs, the command register, MSI-X control, the control registers of PCI Express and all of Advanced
//! Error Reporting; SR-IOV can be read only. The rest is the function's.

use base::ledger::{Cell, Journal};
use pcie::capability::aer;
use pcie::spec::capability as capabilities;
use pcie::spec::header::{
    BAR_0, BAR_COUNT, BAR_FLAGS, CACHE_LINE, COMMAND, COMMAND_BUS_MASTER, COMMAND_INTERRUPT_DISABLE,
    COMMAND_MEMORY_SPACE, COMMAND_PARITY_ERROR_RESPONSE, COMMAND_SERR, INTERRUPT,
};

use super::cells::LOCAL_DWORDS;
use super::slot_config::{AER_DWORDS, SRIOV_DWORDS, SlotConfig};
use super::{Request, ResetKind};
use crate::{Access, AccessId};

/// Own registers, each relative to its value after a reset. All zeroes: as after a reset.
pub(super) type ConfigCells = [Cell<u32>; LOCAL_DWORDS];

/// Expansion ROM base address: there is none.
const ROM: u16 = 0x30;
/// Byte enables of the status half of a register: its bits are cleared by writing one, at the function.
const STATUS_BYTES: u8 = 0b1100;
/// Byte enables of a command or control half.
const CONTROL_BYTES: u8 = 0b0011;

/// A dword with something of the session's own.
#[derive(Clone, Copy, Debug)]
struct Local {
    register: u16,
    /// Bits that come from here; the others are the function's.
    own: u32,
    initial: u32,
    writable: u32,
    clearable: u32,
    /// Byte enables of what reaches the function.
    pass: u8,
    /// A reset leaves it alone.
    sticky: bool,
}

impl Local {
    fn fixed(register: u16, value: u32) -> Self {
        let own = u32::MAX;
        Self { register, own, initial: value, writable: 0, clearable: 0, pass: 0, sticky: false }
    }
}

/// The dwords with something of the session's own, by register.
fn locals(config: &SlotConfig) -> Vec<Local> {
    let mut locals = header(config);
    if let Some((at, _)) = config.msix {
        let own = capabilities::MSIX_CONTROL_WRITABLE;
        locals.push(Local { own, writable: own, ..Local::fixed(at, 0) });
    }
    if let Some(at) = config.express {
        let control = [
            (capabilities::DEVICE_CONTROL, 0xffff & !capabilities::INITIATE_FLR),
            (capabilities::LINK_CONTROL, capabilities::LINK_CONTROL_WRITABLE),
            (capabilities::DEVICE_CONTROL_2, 0xffff),
            (capabilities::LINK_CONTROL_2, 0xf),
        ];
        for (register, writable) in control {
            let register = at + register;
            let initial = config.initial(register) & 0xffff & !capabilities::INITIATE_FLR;
            let local =
                Local { own: 0xffff, writable, pass: STATUS_BYTES, ..Local::fixed(register, initial) };
            locals.push(local);
        }
    }
    if let Some(at) = config.aer {
        let registers = (0..AER_DWORDS).filter(|dword| config.keeps(at + 4 * dword));
        locals.extend(registers.map(|dword| error_register(config, at, 4 * dword)));
    }
    if let Some(at) = config.sriov {
        let registers = (0..SRIOV_DWORDS).map(|dword| at + 4 * dword).filter(|at| config.keeps(*at));
        locals.extend(registers.map(|register| Local::fixed(register, config.initial(register))));
    }
    locals.sort_by_key(|local| local.register);
    // A function whose capabilities overlap gets one of them.
    locals.dedup_by_key(|local| local.register);
    locals.truncate(LOCAL_DWORDS);
    locals
}

fn header(config: &SlotConfig) -> Vec<Local> {
    let command = COMMAND_MEMORY_SPACE
        | COMMAND_BUS_MASTER
        | COMMAND_PARITY_ERROR_RESPONSE
        | COMMAND_SERR
        | COMMAND_INTERRUPT_DISABLE;
    let pin = u32::from(config.intx) << 8;
    let mut locals = vec![
        Local {
            own: 0xffff,
            writable: command.into(),
            pass: CONTROL_BYTES | STATUS_BYTES,
            ..Local::fixed(COMMAND, 0)
        },
        // A header of type 0 of a function without others.
        Local { writable: 0xff, ..Local::fixed(CACHE_LINE, 0) },
        Local::fixed(ROM, 0),
        Local { writable: 0xff, ..Local::fixed(INTERRUPT, pin) },
    ];
    let mut upper = 0;
    for bar in 0..BAR_COUNT {
        let register = BAR_0 + 4 * bar as u16;
        let size = config.bars[bar];
        let (initial, address) = if upper != 0 {
            (0, core::mem::take(&mut upper))
        } else if size == 0 {
            (0, 0)
        } else {
            let flags = config.initial(register) & BAR_FLAGS & !1;
            let address = !(size - 1);
            upper = if flags & pcie::spec::header::BAR_64 != 0 { (address >> 32) as u32 } else { 0 };
            (flags, address as u32)
        };
        locals.push(Local { writable: address, ..Local::fixed(register, initial) });
    }
    locals
}

/// A register of Advanced Error Reporting. All bits are taken for writable: whoever reads them back sees what was
/// written.
fn error_register(config: &SlotConfig, start: u16, at: u16) -> Local {
    let register = start + at;
    let local = Local { sticky: true, ..Local::fixed(register, config.initial(register)) };
    match at {
        aer::UNCORRECTABLE_STATUS | aer::CORRECTABLE_STATUS => {
            Local { initial: 0, clearable: u32::MAX, ..local }
        }
        aer::UNCORRECTABLE_MASK | aer::UNCORRECTABLE_SEVERITY | aer::CORRECTABLE_MASK => {
            Local { writable: u32::MAX, ..local }
        }
        _ => local,
    }
}

/// The bits of the bytes in `byte_enables`.
fn mask_of(byte_enables: u8) -> u32 {
    (0..4).filter(|byte| byte_enables >> byte & 1 != 0).fold(0, |mask, byte| mask | 0xff << (8 * byte))
}

/// The borrower's view of the function's configuration space.
pub struct ConfigSpace<'m> {
    cells: &'m ConfigCells,
    locals: Vec<Local>,
    journal: Journal<'m>,
    /// Device Control of PCI Express.
    device_control: Option<u16>,
    aer: Option<u16>,
}

impl<'m> ConfigSpace<'m> {
    pub(super) fn new(cells: &'m ConfigCells, journal: Journal<'m>, config: &SlotConfig) -> Self {
        let device_control = config.express.map(|at| at + capabilities::DEVICE_CONTROL);
        Self { cells, locals: locals(config), journal, device_control, aer: config.aer }
    }

    /// The command register as the client has set it: what the function's has to be after a reset that the client does
    /// not know of.
    pub fn command_register(&self) -> u16 {
        self.find(COMMAND).map_or(0, |index| self.get(index)) as u16
    }

    /// The fabric has seen errors of the function: sets bits of a status register of Advanced Error Reporting, which is
    /// `status` bytes into the capability ([`aer::UNCORRECTABLE_STATUS`], [`aer::CORRECTABLE_STATUS`]).
    pub fn record_error(&self, status: u16, bits: u32) {
        let Some(index) = self.aer.and_then(|at| self.find(at + status)) else { return };
        self.set(index, self.get(index) | bits);
    }

    fn find(&self, register: u16) -> Option<usize> {
        self.locals.binary_search_by_key(&register, |local| local.register).ok()
    }

    fn get(&self, index: usize) -> u32 {
        self.cells[index].get() ^ self.locals[index].initial
    }

    fn set(&self, index: usize, value: u32) {
        self.cells[index].set(self.journal, value ^ self.locals[index].initial);
    }

    /// The value of a register that is the session's own, all of it.
    pub(super) fn own(&self, register: u16) -> Option<u32> {
        let index = self.find(register)?;
        (self.locals[index].own == u32::MAX).then(|| self.get(index))
    }

    /// What the borrower sees where the function has `value`.
    pub(super) fn merge(&self, register: u16, value: u32) -> u32 {
        let Some(index) = self.find(register) else { return value };
        let own = self.locals[index].own;
        value & !own | self.get(index) & own
    }

    /// What the function gets of a write, if anything, as request `id`.
    pub(super) fn passed(
        &self,
        id: AccessId,
        register: u16,
        value: u32,
        byte_enables: u8,
    ) -> Option<Request> {
        let write = |value, byte_enables| {
            Some(Request::Access(Access::ConfigWrite { id, register, value, byte_enables }))
        };
        let Some(index) = self.find(register) else { return write(value, byte_enables) };
        let initiates = value & mask_of(byte_enables) & capabilities::INITIATE_FLR != 0;
        if Some(register) == self.device_control && initiates {
            return Some(Request::Reset { id, kind: ResetKind::FunctionLevel });
        }
        match (register, byte_enables & self.locals[index].pass) {
            (_, 0) => None,
            // Its window in the fabric needs the function's memory space.
            (COMMAND, passed) if passed & 1 != 0 => write(value | u32::from(COMMAND_MEMORY_SPACE), passed),
            (_, passed) => write(value, passed),
        }
    }

    /// Writes what is the session's own of a register.
    pub(super) fn write(&self, register: u16, value: u32, byte_enables: u8) {
        let Some(index) = self.find(register) else { return };
        let local = &self.locals[index];
        let enabled = mask_of(byte_enables);
        let written = self.get(index) & !(local.writable & enabled) | value & local.writable & enabled;
        self.set(index, written & !(value & local.clearable & enabled));
    }

    /// The function has been reset.
    pub(super) fn reset(&self) {
        for (index, _) in self.locals.iter().enumerate().filter(|(_, local)| !local.sticky) {
            self.cells[index].set(self.journal, 0);
        }
    }
}
