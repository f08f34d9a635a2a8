//! Accesses to regions: what of them the session does itself, and how the rest is cut for the function.

use base::InlineBytes;
use pcie::msix::{pending_bytes, table_bytes};
use pcie::spec::header::{BAR_COUNT, CONFIG_BYTES};
use spec::vfio_user::{Errno, RegionIndex};

use super::cells::{Command, Kind, flag};
use super::config_space::Passed;
use super::{AccessId, Request, ResetKind, Session};

/// No part of an access to a BAR crosses a multiple of this.
const BAR_UNIT: u64 = 64;
/// No part of an access to configuration space crosses a multiple of this.
const CONFIG_UNIT: u64 = 4;

/// A part of an access.
#[derive(Clone, Copy)]
struct Part {
    index: u32,
    /// First byte in the region.
    offset: u64,
    /// First byte in the data.
    data: usize,
    len: usize,
}

/// What has been done of a command.
enum Emitted {
    /// A part that the function has nothing to do with.
    Own,
    Request(Request),
}

impl Command {
    fn unit(&self) -> u64 {
        if u32::from(self.region) == RegionIndex::CONFIG.0 { CONFIG_UNIT } else { BAR_UNIT }
    }

    /// The part that begins `data` bytes into the access.
    fn part_at(&self, data: u32) -> Part {
        let unit = self.unit();
        let offset = self.offset + u64::from(data);
        let len = (unit - offset % unit).min(u64::from(self.len - data));
        Part {
            index: (offset / unit - self.offset / unit) as u32,
            offset,
            data: data as usize,
            len: len as usize,
        }
    }

    /// The part with this index, if it has been emitted.
    fn part(&self, index: u32) -> Option<Part> {
        let unit = self.unit();
        let start = match index {
            0 => 0,
            _ => (self.offset / unit + u64::from(index)) * unit - self.offset,
        };
        (start < u64::from(self.emitted)).then(|| self.part_at(start as u32))
    }

    fn is_config(&self) -> bool {
        self.unit() == CONFIG_UNIT
    }
}

impl Session<'_> {
    /// Bytes of a region; 0 of one that is not there.
    pub(super) fn region_bytes(&self, region: u32) -> u64 {
        match RegionIndex(region) {
            RegionIndex::CONFIG => CONFIG_BYTES as u64,
            RegionIndex(bar) if (bar as usize) < BAR_COUNT => self.config.bars[bar as usize],
            _ => 0,
        }
    }

    /// Does what needs no function, in order.
    pub(super) fn pump(&mut self) {
        while let Some(Emitted::Own) = self.emit(false) {}
        self.settle();
    }

    /// The next request to the function.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        let request = loop {
            match self.emit(true)? {
                Emitted::Own => {}
                Emitted::Request(request) => break request,
            }
        };
        self.pump();
        Some(request)
    }

    /// Does the next part of the first command that has one; nothing if that needs the function and `outward` is not
    /// set.
    fn emit(&mut self, outward: bool) -> Option<Emitted> {
        if self.cells.resetting.get() != 0 || self.is_spent() {
            return None;
        }
        loop {
            let number = self.cells.emit.get();
            if number == self.cells.tail.get() {
                return None;
            }
            let command = self.command(number);
            let more = match command.kind.get() {
                Kind::Reset => command.outstanding == 0,
                Kind::Read | Kind::Write => command.emitted < command.len,
                _ => false,
            };
            if more && !command.is(flag::DONE) {
                return self.emit_part(number, &command, outward);
            }
            self.cells.emit.set(self.journal, number.wrapping_add(1));
        }
    }

    fn emit_part(&mut self, number: u32, command: &Command, outward: bool) -> Option<Emitted> {
        if command.kind == Kind::Reset {
            return outward.then(|| self.begin_reset(number, command, (0, 0), ResetKind::Bus));
        }
        let part = command.part_at(command.emitted);
        match (command.kind.get(), command.is_config()) {
            (Kind::Read, true) => self.read_config(number, command, part, outward),
            (Kind::Read, false) => self.read_bar(number, command, part, outward),
            (Kind::Write, true) => self.write_config(number, command, part, outward),
            (Kind::Write, false) => self.write_bar(number, command, part, outward),
            (Kind::Answer | Kind::Reset | Kind::Unmap, _) => None,
        }
    }

    /// Notes that a part has been emitted, and whether the function answers it.
    fn emitted(&self, number: u32, command: &Command, len: usize, answered: bool) -> Emitted {
        let emitted = command.emitted + len as u32;
        let outstanding = command.outstanding + u32::from(answered);
        let done = if emitted == command.len && outstanding == 0 { flag::DONE } else { 0 };
        self.set_command(number, Command { emitted, outstanding, flags: command.flags | done, ..*command });
        Emitted::Own
    }

    /// Gives a reset to the function; `len` bytes of the command are done with it.
    fn begin_reset(
        &self,
        number: u32,
        command: &Command,
        (part, len): (u32, usize),
        kind: ResetKind,
    ) -> Emitted {
        let command = Command { flags: command.flags | flag::RESETS, ..*command };
        self.emitted(number, &command, len, true);
        self.cells.resetting.set(self.journal, number.wrapping_add(1));
        Emitted::Request(Request::Reset { id: Self::access_id(number, part), kind })
    }

    fn read_config(&self, number: u32, command: &Command, part: Part, outward: bool) -> Option<Emitted> {
        let register = part.offset as u16 & !0x3;
        let id = Self::access_id(number, part.index);
        if let Some(value) = self.own_register(register) {
            self.store_config(command, part, value);
            return Some(self.emitted(number, command, part.len, false));
        }
        outward.then(|| {
            self.emitted(number, command, part.len, true);
            Emitted::Request(Request::ConfigRead { id, register })
        })
    }

    /// Puts what a read wants of a register into its data.
    fn store_config(&self, command: &Command, part: Part, value: u32) {
        let start = part.offset as usize % 4;
        let bytes = &value.to_le_bytes()[start..start + part.len];
        self.cells.ring.write(self.journal, self.data_place(command, part.data), bytes);
    }

    fn write_config(&self, number: u32, command: &Command, part: Part, outward: bool) -> Option<Emitted> {
        let register = part.offset as u16 & !0x3;
        let start = part.offset as usize % 4;
        let mut bytes = [0; 4];
        let place = self.data_place(command, part.data);
        self.cells.ring.read(place, &mut bytes[start..start + part.len]);
        let (value, enables) = (u32::from_le_bytes(bytes), ((1_u8 << part.len) - 1) << start);
        let passed = self.passed(register, value, enables);
        if passed != Passed::Nothing && !outward {
            return None;
        }
        self.write_own(register, value, enables);
        Some(match passed {
            Passed::Nothing => self.emitted(number, command, part.len, false),
            Passed::Reset => {
                let done = (part.index, part.len);
                self.begin_reset(number, command, done, ResetKind::FunctionLevel)
            }
            Passed::Write { value, byte_enables } => {
                self.emitted(number, command, part.len, true);
                let id = Self::access_id(number, part.index);
                Emitted::Request(Request::ConfigWrite { id, register, value, byte_enables })
            }
        })
    }

    fn read_bar(&self, number: u32, command: &Command, part: Part, outward: bool) -> Option<Emitted> {
        let mut bytes = [0; BAR_UNIT as usize];
        let bytes = &mut bytes[..part.len];
        if self.overlay(command.region, part.offset, bytes) == part.len {
            self.cells.ring.write(self.journal, self.data_place(command, part.data), bytes);
            return Some(self.emitted(number, command, part.len, false));
        }
        outward.then(|| {
            self.emitted(number, command, part.len, true);
            let id = Self::access_id(number, part.index);
            let (bar, offset, len) = (command.region, part.offset, part.len as u8);
            Emitted::Request(Request::Read { id, bar, offset, len })
        })
    }

    fn write_bar(&self, number: u32, command: &Command, part: Part, outward: bool) -> Option<Emitted> {
        let mut bytes = [0; BAR_UNIT as usize];
        let bytes = &mut bytes[..part.len];
        // The function's vectors are the card's: whoever writes there writes nothing.
        if self.overlay(command.region, part.offset, bytes) > 0 {
            self.cells.counters.dropped_writes.add(1);
            return Some(self.emitted(number, command, part.len, false));
        }
        outward.then(|| {
            self.cells.ring.read(self.data_place(command, part.data), bytes);
            self.emitted(number, command, part.len, false);
            let (bar, offset, bytes) = (command.region, part.offset, InlineBytes::new(bytes));
            Emitted::Request(Request::Write { bar, offset, bytes })
        })
    }

    /// Replaces what lies in the vector table, which reads as all ones, and in the pending bits. Returns how many bytes
    /// do.
    fn overlay(&self, bar: u8, offset: u64, bytes: &mut [u8]) -> usize {
        let Some((_, msix)) = self.config.msix else { return 0 };
        let table =
            u64::from(msix.table_offset)..u64::from(msix.table_offset) + table_bytes(msix.vectors) as u64;
        let pending = u64::from(msix.pending_offset);
        let pending = pending..pending + pending_bytes(msix.vectors) as u64;
        let mut own = 0;
        for (at, byte) in (offset..).zip(bytes) {
            if msix.table_bar == bar && table.contains(&at) {
                (*byte, own) = (u8::MAX, own + 1);
            } else if msix.pending_bar == bar && pending.contains(&at) {
                (*byte, own) = (self.pending_byte((at - pending.start) as usize), own + 1);
            }
        }
        own
    }

    /// Where the part of a BAR begins that a request reads.
    pub(super) fn find_bar_read(&self, id: AccessId) -> Option<(u8, u64)> {
        let (number, index) = self.command_of(id)?;
        let command = self.command(number);
        let reads = command.kind == Kind::Read && !command.is_config() && !command.is(flag::DONE);
        let part = command.part(index).filter(|_| reads)?;
        Some((command.region, part.offset))
    }

    /// The function has answered a part.
    pub(super) fn request_done(&mut self, id: AccessId, result: Result<&[u8], Errno>) {
        let Some((number, index)) = self.command_of(id) else { return };
        let command = self.command(number);
        let resets = command.is(flag::RESETS) && self.cells.resetting.get() == number.wrapping_add(1);
        let part = if command.kind == Kind::Reset { None } else { command.part(index) };
        let known = part.is_some() || command.kind == Kind::Reset;
        if command.is(flag::DONE) || command.outstanding == 0 || !known {
            return;
        }
        if resets {
            self.cells.resetting.set(self.journal, 0);
            if result.is_ok() {
                self.reset_registers();
                self.forget_pending();
            }
        }
        let stored = result.and_then(|bytes| match part {
            Some(part) if command.kind == Kind::Read => self.store(&command, part, bytes),
            _ => Ok(()),
        });
        let command = Command { outstanding: command.outstanding - 1, ..command };
        self.set_command(number, command);
        match stored {
            Err(error) => self.finish(number, Some(error)),
            Ok(()) if command.outstanding == 0 && command.emitted == command.len => self.finish(number, None),
            Ok(()) => {}
        }
        self.settle();
    }

    /// Takes the data of a part of a read. A function that answers with more or less has not answered.
    fn store(&self, command: &Command, part: Part, bytes: &[u8]) -> Result<(), Errno> {
        if command.is_config() {
            let register = part.offset as u16 & !0x3;
            let value = u32::from_le_bytes(bytes.try_into().map_err(|_| Errno::EIO)?);
            self.store_config(command, part, self.merge_register(register, value));
            return Ok(());
        }
        let mut data = [0; BAR_UNIT as usize];
        let data = data.get_mut(..bytes.len()).filter(|_| bytes.len() == part.len).ok_or(Errno::EIO)?;
        data.copy_from_slice(bytes);
        self.overlay(command.region, part.offset, data);
        self.cells.ring.write(self.journal, self.data_place(command, part.data), data);
        Ok(())
    }
}
