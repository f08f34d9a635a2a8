//! What each command of the client means.

use pcie::spec::header::BAR_COUNT;
use spec::vfio_user::access::WRITE_MULTI_MAX;
use spec::vfio_user::{
    Capabilities, Command as WireCommand, DeviceFlags, DeviceInfo, DmaUnmap, Errno, HEADER_BYTES, IrqFlags,
    IrqIndex, IrqInfo, MessageFlags, MessageHeader, RegionAccess, RegionFlags, RegionIndex, RegionInfo,
    VERSION_MAJOR, VERSION_MINOR, VersionHeader, WriteMultiEntry, WriteMultiHeader,
};
use zerocopy::{FromBytes, IntoBytes};

use super::cells::{Command, Kind, MAPS, MESSAGE_BYTES, MESSAGE_DESCRIPTORS, TRANSFER_BYTES, flag};
use super::queue::{DATA, Need};
use super::{DescriptorId, Phase, Session};

/// Room of a command whose reply is short: the longest is that with our capabilities.
const SHORT_BYTES: usize = 512;
const SHORT: Need = Need::new(1, SHORT_BYTES);
/// Kinds of interrupts that there may be: neither of the two of VFIO itself, errors and requests. QEMU warns of a
/// device that names them and has none ("Could not enable error recovery"), and stops its machine when one comes.
const INTERRUPT_KINDS: u32 = IrqIndex::MSIX.0 + 1;
/// Page sizes of DMA maps.
const PAGE_SIZES: u64 = 4096;

impl Session<'_> {
    /// Does what a message says, or queues it. Returns whether there was room.
    pub(super) fn handle_message(&mut self, header: &MessageHeader, payload: &[u8]) -> bool {
        if header.flags().kind() == MessageFlags::REPLY {
            self.transfer_replied(header, payload);
            return true;
        }
        let code = header.command();
        if (self.phase() == Phase::Version) != (code == WireCommand::VERSION) {
            return self.refuse_message(header);
        }
        match code {
            WireCommand::REGION_READ => return self.region_read(header, payload),
            WireCommand::REGION_WRITE => return self.region_write(header, payload),
            WireCommand::REGION_WRITE_MULTI => return self.region_write_multi(header, payload),
            _ if !self.has_room(SHORT) => return false,
            WireCommand::VERSION => self.version(header, payload),
            WireCommand::DEVICE_RESET => self.reset(header),
            WireCommand::DMA_UNMAP => self.dma_unmap(header, payload),
            WireCommand::DEVICE_GET_INFO => {
                let info = device_info(payload);
                self.answer(header, info.as_ref().map(IntoBytes::as_bytes));
            }
            WireCommand::DEVICE_GET_REGION_INFO => {
                let info = self.region_info(payload);
                self.answer(header, info.as_ref().map(IntoBytes::as_bytes));
            }
            WireCommand::DEVICE_GET_IRQ_INFO => {
                let info = self.irq_info(payload);
                self.answer(header, info.as_ref().map(IntoBytes::as_bytes));
            }
            WireCommand::DEVICE_SET_IRQS => {
                let result = self.set_irqs(payload, &[]);
                self.answer(header, result.as_ref().map(|()| &[][..]));
            }
            // With its descriptors, if any, it would have come through the agent: it has a senseless size.
            WireCommand::DMA_MAP => self.answer(header, Err(&Errno::EINVAL)),
            _ => self.answer(header, Err(&unsupported(code))),
        }
        true
    }

    /// A message that the agent took. There is room.
    pub(super) fn take(&mut self, bytes: &[u8], descriptors: &[DescriptorId]) {
        let fits = self.fits(Need::TAKEN, self.cells.ring_head.at_commit(self.journal));
        assert!(fits, "an agent takes a message only when the session has said so");
        let header = bytes.first_chunk().map(MessageHeader::view);
        let whole = header.filter(|header| header.size.get() as usize == bytes.len());
        let (Some(header), true) = (whole, self.is_ready()) else {
            descriptors.iter().for_each(|descriptor| self.return_descriptor(*descriptor));
            if let Some(header) = whole.filter(|_| self.phase() == Phase::Version) {
                self.answer(header, Err(&Errno::EINVAL));
            }
            return;
        };
        self.cells.counters.messages.add(1);
        // It has a header.
        let payload = &bytes[HEADER_BYTES..];
        let result = match header.command() {
            WireCommand::DMA_MAP => self.dma_map(payload, descriptors),
            WireCommand::DEVICE_SET_IRQS => self.set_irqs(payload, descriptors),
            _ => Err(Errno::EINVAL),
        };
        if result.is_err() {
            descriptors.iter().for_each(|descriptor| self.return_descriptor(*descriptor));
        }
        self.answer(header, result.as_ref().map(|()| &[][..]));
    }

    /// Refuses a message that can not be done at all. Returns whether there was room.
    pub(super) fn refuse_message(&mut self, header: &MessageHeader) -> bool {
        if header.flags().kind() == MessageFlags::REPLY {
            return true;
        }
        if !self.has_room(SHORT) {
            return false;
        }
        let long = header.size.get() as usize > MESSAGE_BYTES;
        self.answer(header, Err(if long { &Errno::E2BIG } else { &Errno::EINVAL }));
        true
    }

    /// Queues the reply to a command that is done.
    fn answer(&self, header: &MessageHeader, result: Result<&[u8], &Errno>) {
        let payload = result.unwrap_or_default();
        let error = result.err().map_or(0, |error| error.0);
        let command = Command {
            room: (HEADER_BYTES + payload.len()) as u32,
            payload: payload.len() as u32,
            error,
            ..command_of(header, Kind::Answer, flag::DONE)
        };
        self.push_command(command, &[(HEADER_BYTES, payload)]);
        self.settle();
    }

    fn version(&mut self, header: &MessageHeader, payload: &[u8]) {
        let agreed =
            VersionHeader::ref_from_prefix(payload).map_err(|_| Errno::EINVAL).and_then(|(version, data)| {
                if version.major.get() != VERSION_MAJOR {
                    return Err(Errno::EOPNOTSUPP);
                }
                Capabilities::parse(data)
                    .map(|proposed| (proposed, data.is_empty()))
                    .map_err(|_| Errno::EINVAL)
            });
        let (proposed, silent) = match agreed {
            Ok(agreed) => agreed,
            Err(error) => {
                self.answer(header, Err(&error));
                return self.break_off();
            }
        };
        let transfer = proposed.max_data_xfer_size.or(Capabilities::DEFAULT.max_data_xfer_size).unwrap_or(0);
        let transfer = transfer.min(TRANSFER_BYTES.into()) as u32;
        self.cells.peer_transfer.set(self.journal, transfer);
        let version = VersionHeader { major: VERSION_MAJOR.into(), minor: VERSION_MINOR.into() };
        let data = if silent { String::new() } else { own_capabilities(&proposed).encode() };
        self.set_phase(Phase::Ready);
        self.answer(header, Ok(&[version.as_bytes(), data.as_bytes()].concat()));
    }

    fn reset(&mut self, header: &MessageHeader) {
        if let Some(error) = self.refusal() {
            return self.answer(header, Err(&error));
        }
        let command = command_of(header, Kind::Reset, 0);
        self.push_command(Command { room: HEADER_BYTES as u32, ..command }, &[]);
    }

    fn dma_unmap(&mut self, header: &MessageHeader, payload: &[u8]) {
        let number = self.cells.tail.get();
        let unmapped = match DmaUnmap::read_from_bytes(payload) {
            Ok(unmap) => self.unmap(&unmap, number),
            // With a dirty bitmap it is longer.
            Err(_) => match DmaUnmap::read_from_prefix(payload) {
                Ok((unmap, _)) if unmap.flags().dirty_bitmap() => Err(Errno::EOPNOTSUPP),
                _ => Err(Errno::EINVAL),
            },
        };
        match unmapped {
            Err(error) => self.answer(header, Err(&error)),
            Ok(0) => self.answer(header, Ok(payload)),
            Ok(outstanding) => {
                let command = Command {
                    room: (HEADER_BYTES + payload.len()) as u32,
                    payload: payload.len() as u32,
                    outstanding,
                    ..command_of(header, Kind::Unmap, 0)
                };
                self.push_command(command, &[(HEADER_BYTES, payload)]);
            }
        }
    }

    fn region_info(&self, payload: &[u8]) -> Result<RegionInfo, Errno> {
        let asked = RegionInfo::read_from_bytes(payload).map_err(|_| Errno::EINVAL)?;
        let index = asked.index.get();
        if index >= RegionIndex::COUNT || (asked.argsz.get() as usize) < size_of::<RegionInfo>() {
            return Err(Errno::EINVAL);
        }
        let size = self.region_bytes(index);
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

    fn irq_info(&self, payload: &[u8]) -> Result<IrqInfo, Errno> {
        let asked = IrqInfo::read_from_bytes(payload).map_err(|_| Errno::EINVAL)?;
        let index = asked.index.get();
        if index >= INTERRUPT_KINDS || (asked.argsz.get() as usize) < size_of::<IrqInfo>() {
            return Err(Errno::EINVAL);
        }
        let count = self.interrupt_count(index);
        let offered =
            IrqFlags(0).with_eventfd(true).with_maskable(true).with_automasked(index == IrqIndex::INTX.0);
        let flags = if count > 0 { offered } else { IrqFlags(0) };
        Ok(IrqInfo {
            argsz: (size_of::<IrqInfo>() as u32).into(),
            flags: flags.0.into(),
            index: index.into(),
            count: count.into(),
        })
    }

    fn region_read(&mut self, header: &MessageHeader, payload: &[u8]) -> bool {
        let Ok(access) = RegionAccess::read_from_bytes(payload) else { return self.refuse_message(header) };
        let count = access.count.get().min(TRANSFER_BYTES);
        if !self.has_room(Need::new(1, DATA + count as usize)) {
            return false;
        }
        if let Err(error) = self.check_access(&access).and_then(|()| self.refusal().map_or(Ok(()), Err)) {
            if error == Errno::ETIMEDOUT {
                self.mislead(access.region.get());
            }
            self.answer(header, Err(&error));
            return true;
        }
        let silent = header.flags().no_reply();
        let command = Command {
            room: DATA as u32 + count,
            payload: size_of::<RegionAccess>() as u32 + count,
            // Nobody would see what was read.
            len: if silent { 0 } else { count },
            ..region_command(header, Kind::Read, &access)
        };
        self.queue(command, &[(HEADER_BYTES, payload)]);
        true
    }

    fn region_write(&mut self, header: &MessageHeader, payload: &[u8]) -> bool {
        let Ok((access, data)) = RegionAccess::read_from_prefix(payload) else {
            return self.refuse_message(header);
        };
        if !self.has_room(Need::new(1, DATA + data.len())) {
            return false;
        }
        let whole = data.len() == access.count.get() as usize;
        let checked = if whole { self.check_access(&access) } else { Err(Errno::EINVAL) };
        if let Err(error) = checked {
            self.cells.counters.dropped_writes.add(1);
            self.answer(header, Err(&error));
            return true;
        }
        let fixed = access.as_bytes();
        self.queue_write(header, &access, &[(HEADER_BYTES, fixed), (DATA, data)], 0);
        true
    }

    fn region_write_multi(&mut self, header: &MessageHeader, payload: &[u8]) -> bool {
        let parsed = WriteMultiHeader::ref_from_prefix(payload).ok().and_then(|(multi, rest)| {
            let writes = <[WriteMultiEntry]>::ref_from_bytes(rest).ok()?;
            (writes.len() as u64 == multi.count.get() && writes.len() <= WRITE_MULTI_MAX)
                .then_some((multi, writes))
        });
        let sensible = |write: &WriteMultiEntry| {
            write.count.get() as usize <= write.data.len() && self.check_access(&access_of(write)).is_ok()
        };
        let Some((multi, writes)) = parsed.filter(|(_, writes)| writes.iter().all(sensible)) else {
            return self.refuse_message(header);
        };
        if !self.has_room(Need::new(writes.len() + 1, writes.len() * (DATA + 8) + SHORT_BYTES)) {
            return false;
        }
        for write in writes {
            // `sensible`: no more than there is room for in an entry.
            let data = &write.data[..write.count.get() as usize];
            self.queue_write(header, &access_of(write), &[(DATA, data)], flag::NO_REPLY);
        }
        self.answer(header, Ok(multi.as_bytes()));
        true
    }

    /// Queues a write that makes sense; to a function that is gone or silent it is dropped, which is no error.
    fn queue_write(
        &mut self,
        header: &MessageHeader,
        access: &RegionAccess,
        parts: &[(usize, &[u8])],
        flags: u32,
    ) {
        let count = access.count.get();
        let posted = flags & flag::NO_REPLY != 0 || header.flags().no_reply();
        let dropped = if posted { self.posted_refusal() } else { self.refusal() };
        let silent = self.is_absent() || posted;
        match dropped {
            Some(_) if silent => self.drop_write(),
            Some(_) => self.cells.counters.dropped_writes.add(1),
            None => {}
        }
        let error = dropped.filter(|_| !silent).map_or(0, |error| error.0);
        let command = region_command(header, Kind::Write, access);
        let command = Command {
            room: DATA as u32 + count,
            payload: size_of::<RegionAccess>() as u32,
            len: if dropped.is_some() { 0 } else { count },
            flags: command.flags | flags,
            error,
            ..command
        };
        self.queue(command, parts);
    }

    /// Queues an access; one of nothing is done at once.
    fn queue(&mut self, command: Command, parts: &[(usize, &[u8])]) {
        let done = if command.len == 0 { flag::DONE } else { 0 };
        self.push_command(Command { flags: command.flags | done, ..command }, parts);
    }

    /// Whether an access lies in its region.
    fn check_access(&self, access: &RegionAccess) -> Result<(), Errno> {
        let size = self.region_bytes(access.region.get());
        let end = access.offset.get().checked_add(access.count.get().into());
        if access.count.get() > TRANSFER_BYTES {
            return Err(Errno::E2BIG);
        }
        if size > 0 && end.is_some_and(|end| end <= size) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// What stands in the queue for a command.
fn command_of(header: &MessageHeader, kind: Kind, flags: u32) -> Command {
    let silent = if header.flags().no_reply() { flag::NO_REPLY } else { 0 };
    let (id, code) = (header.id.get(), header.command.get());
    Command { id, code, kind: kind.into(), flags: flags | silent, ..Command::default() }
}

fn region_command(header: &MessageHeader, kind: Kind, access: &RegionAccess) -> Command {
    // Checked to be one that there is.
    let region = access.region.get() as u8;
    Command { offset: access.offset.get(), region, ..command_of(header, kind, 0) }
}

fn access_of(write: &WriteMultiEntry) -> RegionAccess {
    RegionAccess { offset: write.offset, region: write.region, count: write.count }
}

fn device_info(payload: &[u8]) -> Result<DeviceInfo, Errno> {
    let asked = DeviceInfo::read_from_bytes(payload).map_err(|_| Errno::EINVAL)?;
    if (asked.argsz.get() as usize) < size_of::<DeviceInfo>() {
        return Err(Errno::EINVAL);
    }
    Ok(DeviceInfo {
        argsz: (size_of::<DeviceInfo>() as u32).into(),
        flags: DeviceFlags(0).with_pci(true).with_reset(true).0.into(),
        num_regions: RegionIndex::COUNT.into(),
        num_irqs: INTERRUPT_KINDS.into(),
    })
}

/// Our capabilities: of those that the client has named, so that the reply is never longer than what QEMU has room for.
fn own_capabilities(proposed: &Capabilities) -> Capabilities {
    let lower = |proposed: Option<u64>, own: u64| proposed.map(|proposed| proposed.min(own));
    Capabilities {
        max_msg_fds: lower(proposed.max_msg_fds, MESSAGE_DESCRIPTORS as u64),
        max_data_xfer_size: lower(proposed.max_data_xfer_size, TRANSFER_BYTES.into()),
        pgsizes: proposed.pgsizes.map(|_| PAGE_SIZES),
        max_dma_maps: lower(proposed.max_dma_maps, MAPS as u64),
        write_multiple: proposed.write_multiple,
    }
}

fn unsupported(code: WireCommand) -> Errno {
    match code {
        // Of the server.
        WireCommand::DMA_READ | WireCommand::DMA_WRITE => Errno::EINVAL,
        _ if code.name().is_some() => Errno::EOPNOTSUPP,
        _ => Errno::ENOSYS,
    }
}

const _: () = assert!(BAR_COUNT as u32 == RegionIndex::ROM.0);
