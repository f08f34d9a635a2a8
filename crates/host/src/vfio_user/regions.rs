//! The regions of the function: how an access is cut for it, and what of it the session does itself.

use base::Payload;
use base::ledger::Journal;
use pcie::capability::msix::MsixLocation;
use pcie::msix::{pending_bytes, table_bytes};
use pcie::spec::header::{BAR_COUNT, CONFIG_BYTES};
use spec::vfio_user::{Errno, RegionAccess, RegionFlags, RegionIndex, RegionInfo};
use zerocopy::FromBytes;

use super::cells::TRANSFER_BYTES;
use super::commands::Command;
use super::config_space::ConfigSpace;
use super::{Interrupts, Request, SessionCells, SessionCounters, SlotConfig};
use crate::{Access, AccessId};

/// No part of an access to a BAR crosses a multiple of this.
pub(super) const BAR_UNIT: usize = 64;
/// No part of an access to configuration space crosses a multiple of this.
const CONFIG_UNIT: u64 = 4;

const _: () = assert!(BAR_COUNT as u32 == RegionIndex::ROM.0);

/// A part of an access.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    region: u8,
    pub(super) index: u32,
    /// First byte in the region.
    offset: u64,
    /// First byte in the data.
    pub(super) data: usize,
    pub(super) len: usize,
}

impl Command {
    /// The next part of an access that is to be emitted.
    pub(super) fn next_piece(&self) -> Piece {
        self.piece_at(self.emitted)
    }

    /// The part with this index, if it has been emitted.
    pub(super) fn piece(&self, index: u32) -> Option<Piece> {
        let unit = self.unit();
        let start = match index {
            0 => 0,
            _ => (self.offset / unit + u64::from(index)) * unit - self.offset,
        };
        (start < u64::from(self.emitted)).then(|| self.piece_at(start as u32))
    }

    fn piece_at(&self, data: u32) -> Piece {
        let unit = self.unit();
        let offset = self.offset + u64::from(data);
        Piece {
            region: self.region,
            index: (offset / unit - self.offset / unit) as u32,
            offset,
            data: data as usize,
            len: (unit - offset % unit).min(u64::from(self.len - data)) as usize,
        }
    }

    fn unit(&self) -> u64 {
        if is_config(self.region) { CONFIG_UNIT } else { BAR_UNIT as u64 }
    }
}

impl Piece {
    /// Base address register and byte offset, if it lies in one.
    pub(super) fn bar(&self) -> Option<(u8, u64)> {
        (!is_config(self.region)).then_some((self.region, self.offset))
    }

    /// The register of configuration space, and where in it the part begins.
    fn register(&self) -> (u16, usize) {
        (self.offset as u16 & !0x3, self.offset as usize % 4)
    }

    /// What a write has for its register: register, value and byte enables.
    fn dword(&self, bytes: &[u8]) -> (u16, u32, u8) {
        let (register, start) = self.register();
        let mut dword = [0; 4];
        dword[start..start + self.len].copy_from_slice(bytes);
        (register, u32::from_le_bytes(dword), ((1_u8 << self.len) - 1) << start)
    }

    /// Takes what a read wants of its register.
    fn take(&self, value: u32, out: &mut [u8]) {
        let (_, start) = self.register();
        out.copy_from_slice(&value.to_le_bytes()[start..start + self.len]);
    }
}

/// The regions of a slot.
pub(super) struct Regions<'m> {
    bars: [u64; BAR_COUNT],
    msix: Option<MsixLocation>,
    counters: &'m SessionCounters,
    pub(super) config_space: ConfigSpace<'m>,
}

impl<'m> Regions<'m> {
    pub(super) fn new(cells: &'m SessionCells, journal: Journal<'m>, config: &SlotConfig) -> Self {
        let config_space = ConfigSpace::new(&cells.config_space, journal, config);
        let msix = config.msix.map(|(_, location)| location);
        Self { bars: config.bars, msix, counters: &cells.counters, config_space }
    }

    /// DEVICE_GET_REGION_INFO.
    pub(super) fn info(&self, payload: &[u8]) -> Result<RegionInfo, Errno> {
        let asked = RegionInfo::read_from_bytes(payload).map_err(|_| Errno::EINVAL)?;
        let index = asked.index.get();
        if index >= RegionIndex::COUNT || (asked.argsz.get() as usize) < size_of::<RegionInfo>() {
            return Err(Errno::EINVAL);
        }
        let size = self.bytes(index);
        // Never to be mapped: one such region would make all writes synchronous.
        let flags = RegionFlags(0).with_read(size > 0).with_write(size > 0);
        Ok(RegionInfo {
            argsz: (size_of::<RegionInfo>() as u32).into(),
            flags: flags.0.into(),
            index: index.into(),
            cap_offset: 0.into(),
            size: size.into(),
            offset: 0.into(),
        })
    }

    /// Whether an access lies in its region.
    pub(super) fn check(&self, access: &RegionAccess) -> Result<(), Errno> {
        let size = self.bytes(access.region.get());
        let end = access.offset.get().checked_add(access.count.get().into());
        if access.count.get() > TRANSFER_BYTES {
            return Err(Errno::E2BIG);
        }
        if size > 0 && end.is_some_and(|end| end <= size) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Bytes of a region; 0 of one that is not there.
    fn bytes(&self, region: u32) -> u64 {
        match RegionIndex(region) {
            RegionIndex::CONFIG => CONFIG_BYTES as u64,
            RegionIndex(bar) if (bar as usize) < BAR_COUNT => self.bars[bar as usize],
            _ => 0,
        }
    }

    /// A part of a read: what the function is to be asked for by request `id`. If nothing, `out` has it.
    pub(super) fn read(
        &self,
        id: AccessId,
        piece: &Piece,
        interrupts: &Interrupts<'_>,
        out: &mut [u8],
    ) -> Option<Request> {
        let Some((bar, offset)) = piece.bar() else {
            let (register, _) = piece.register();
            let Some(value) = self.config_space.own(register) else {
                return Some(Request::Access(Access::ConfigRead { id, register }));
            };
            piece.take(value, out);
            return None;
        };
        let len = piece.len as u8;
        let is_own = self.overlay(bar, offset, interrupts, out) == piece.len;
        (!is_own).then_some(Request::Access(Access::Read { id, bar, offset, len }))
    }

    /// A part of a write: what of it the function gets by request `id`, if anything.
    pub(super) fn write(
        &self,
        id: AccessId,
        piece: &Piece,
        interrupts: &Interrupts<'_>,
        bytes: &[u8],
    ) -> Option<Request> {
        let Some((bar, offset)) = piece.bar() else {
            let (register, value, byte_enables) = piece.dword(bytes);
            return self.config_space.passed(id, register, value, byte_enables);
        };
        // The function's vectors are the card's: whoever writes there writes nothing.
        if self.overlay(bar, offset, interrupts, &mut [0; BAR_UNIT][..piece.len]) > 0 {
            self.counters.dropped_writes.add(1);
            return None;
        }
        Some(Request::Access(Access::Write { bar, offset, payload: Payload::inline(bytes) }))
    }

    /// Does what of a part of a write is the session's own.
    pub(super) fn write_own(&self, piece: &Piece, bytes: &[u8]) {
        if piece.bar().is_none() {
            let (register, value, byte_enables) = piece.dword(bytes);
            self.config_space.write(register, value, byte_enables);
        }
    }

    /// The function has answered a part of a read: turns that into what the client sees. A function that answers with
    /// more or less has not answered.
    pub(super) fn complete(
        &self,
        piece: &Piece,
        interrupts: &Interrupts<'_>,
        answer: &[u8],
        out: &mut [u8],
    ) -> Result<(), Errno> {
        let Some((bar, offset)) = piece.bar() else {
            let value = u32::from_le_bytes(answer.try_into().map_err(|_| Errno::EIO)?);
            piece.take(self.config_space.merge(piece.register().0, value), out);
            return Ok(());
        };
        if answer.len() != out.len() {
            return Err(Errno::EIO);
        }
        out.copy_from_slice(answer);
        self.overlay(bar, offset, interrupts, out);
        Ok(())
    }

    /// Replaces what lies in the vector table, which reads as all ones, and in the pending bits. Returns how many bytes
    /// do.
    fn overlay(&self, bar: u8, offset: u64, interrupts: &Interrupts<'_>, bytes: &mut [u8]) -> usize {
        let Some(msix) = self.msix else { return 0 };
        let table =
            u64::from(msix.table_offset)..u64::from(msix.table_offset) + table_bytes(msix.vectors) as u64;
        let pending = u64::from(msix.pending_offset);
        let pending = pending..pending + pending_bytes(msix.vectors) as u64;
        let mut own = 0;
        for (at, byte) in (offset..).zip(bytes) {
            if msix.table_bar == bar && table.contains(&at) {
                (*byte, own) = (u8::MAX, own + 1);
            } else if msix.pending_bar == bar && pending.contains(&at) {
                (*byte, own) = (interrupts.pending_byte((at - pending.start) as usize), own + 1);
            }
        }
        own
    }
}

fn is_config(region: u8) -> bool {
    u32::from(region) == RegionIndex::CONFIG.0
}
