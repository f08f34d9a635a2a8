//! What each message of the client means.

use spec::vfio_user::access::WRITE_MULTI_MAX;
use spec::vfio_user::{
    Capabilities, Command as WireCommand, DeviceFlags, DeviceInfo, DmaUnmap, Errno, HEADER_BYTES,
    MessageFlags, MessageHeader, RegionAccess, RegionIndex, VERSION_MAJOR, VERSION_MINOR, VersionHeader,
    WriteMultiEntry, WriteMultiHeader,
};
use zerocopy::{FromBytes, IntoBytes};

use super::cells::{MAPS, MESSAGE_BYTES, MESSAGE_DESCRIPTORS, TRANSFER_BYTES};
use super::commands::{Command, DATA, Kind, Need, flag};
use super::interrupts::INTERRUPT_KINDS;
use super::{DescriptorId, Phase, Session};

/// Room of a command whose reply is short: the longest is that with our capabilities.
const SHORT_BYTES: usize = 512;
const SHORT: Need = Need::new(1, SHORT_BYTES);
/// Page sizes of DMA maps.
const PAGE_SIZES: u64 = 4096;

impl Session<'_> {
    /// Does what a message says, or queues it. Returns whether there was room.
    pub(super) fn handle_message(&mut self, header: &MessageHeader, payload: &[u8]) -> bool {
        if header.flags().kind() == MessageFlags::REPLY {
            self.transfers.replied(header, payload);
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
                self.commands.answer(self.now, header, info.as_ref().map(IntoBytes::as_bytes));
            }
            WireCommand::DEVICE_GET_REGION_INFO => {
                let info = self.regions.info(payload);
                self.commands.answer(self.now, header, info.as_ref().map(IntoBytes::as_bytes));
            }
            WireCommand::DEVICE_GET_IRQ_INFO => {
                let info = self.interrupts.info(payload);
                self.commands.answer(self.now, header, info.as_ref().map(IntoBytes::as_bytes));
            }
            WireCommand::DEVICE_SET_IRQS => {
                let result = self.interrupts.set_up(payload, &[]);
                self.commands.answer(self.now, header, result.as_ref().map(|()| &[][..]));
            }
            // With its descriptors, if any, it would have come through the agent: it has a senseless size.
            WireCommand::DMA_MAP => self.commands.answer(self.now, header, Err(&Errno::EINVAL)),
            _ => self.commands.answer(self.now, header, Err(&unsupported(code))),
        }
        true
    }

    /// A message that the agent took. There is room.
    pub(super) fn take(&mut self, bytes: &[u8], descriptors: &[DescriptorId]) {
        let fits = self.commands.fits(Need::TAKEN, self.output.used());
        assert!(fits, "an agent takes a message only when the session has said so");
        let header = bytes.first_chunk().map(MessageHeader::view);
        let whole = header.filter(|header| header.size.get() as usize == bytes.len());
        let (Some(header), true) = (whole, self.is_ready()) else {
            descriptors.iter().for_each(|descriptor| self.descriptors.give_back(*descriptor));
            if let Some(header) = whole.filter(|_| self.phase() == Phase::Version) {
                self.commands.answer(self.now, header, Err(&Errno::EINVAL));
            }
            return;
        };
        self.cells.counters.messages.add(1);
        // It has a header.
        let payload = &bytes[HEADER_BYTES..];
        let result = match header.command() {
            WireCommand::DMA_MAP => self.maps.map(payload, descriptors),
            WireCommand::DEVICE_SET_IRQS => self.interrupts.set_up(payload, descriptors),
            _ => Err(Errno::EINVAL),
        };
        if result.is_err() {
            descriptors.iter().for_each(|descriptor| self.descriptors.give_back(*descriptor));
        }
        self.commands.answer(self.now, header, result.as_ref().map(|()| &[][..]));
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
        self.commands.answer(self.now, header, Err(if long { &Errno::E2BIG } else { &Errno::EINVAL }));
        true
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
                self.commands.answer(self.now, header, Err(&error));
                return self.break_off();
            }
        };
        let transfer = proposed.max_data_xfer_size.or(Capabilities::DEFAULT.max_data_xfer_size).unwrap_or(0);
        let transfer = transfer.min(TRANSFER_BYTES.into()) as u32;
        self.transfers.set_limit(transfer);
        let version = VersionHeader { major: VERSION_MAJOR.into(), minor: VERSION_MINOR.into() };
        let data = if silent { String::new() } else { own_capabilities(&proposed).encode() };
        self.set_phase(Phase::Ready);
        self.commands.answer(self.now, header, Ok(&[version.as_bytes(), data.as_bytes()].concat()));
    }

    fn reset(&mut self, header: &MessageHeader) {
        if let Some(error) = self.presence.refusal(self.now) {
            return self.commands.answer(self.now, header, Err(&error));
        }
        self.commands.push(self.now, Command::new(header, Kind::Reset, 0), &[]);
    }

    fn dma_unmap(&mut self, header: &MessageHeader, payload: &[u8]) {
        let number = self.commands.next_number();
        let unmapped = match DmaUnmap::read_from_bytes(payload) {
            Ok(unmap) => self.maps.unmap(&unmap, number),
            // With a dirty bitmap it is longer.
            Err(_) => match DmaUnmap::read_from_prefix(payload) {
                Ok((unmap, _)) if unmap.flags().dirty_bitmap() => Err(Errno::EOPNOTSUPP),
                _ => Err(Errno::EINVAL),
            },
        };
        match unmapped {
            Err(error) => self.commands.answer(self.now, header, Err(&error)),
            Ok(0) => self.commands.answer(self.now, header, Ok(payload)),
            Ok(outstanding) => {
                let command = Command::new(header, Kind::Unmap, payload.len());
                let command = Command { outstanding, ..command };
                self.commands.push(self.now, command, &[(HEADER_BYTES, payload)]);
            }
        }
    }

    fn region_read(&mut self, header: &MessageHeader, payload: &[u8]) -> bool {
        let Ok(access) = RegionAccess::read_from_bytes(payload) else { return self.refuse_message(header) };
        let count = access.count.get().min(TRANSFER_BYTES);
        if !self.has_room(Need::new(1, DATA + count as usize)) {
            return false;
        }
        let refused = || self.presence.refusal(self.now).map_or(Ok(()), Err);
        if let Err(error) = self.regions.check(&access).and_then(|()| refused()) {
            if error == Errno::ETIMEDOUT {
                self.presence.mislead(access.region.get());
            }
            self.commands.answer(self.now, header, Err(&error));
            return true;
        }
        let command = Command::access(header, Kind::Read, &access);
        // Nobody would see what was read.
        let len = if header.flags().no_reply() { 0 } else { count };
        let command = Command { len, payload: command.payload + count, ..command };
        self.commands.push(self.now, command, &[(HEADER_BYTES, payload)]);
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
        let checked = if whole { self.regions.check(&access) } else { Err(Errno::EINVAL) };
        if let Err(error) = checked {
            self.cells.counters.dropped_writes.add(1);
            self.commands.answer(self.now, header, Err(&error));
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
            write.count.get() as usize <= write.data.len() && self.regions.check(&access_of(write)).is_ok()
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
        self.commands.answer(self.now, header, Ok(multi.as_bytes()));
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
        let (now, presence) = (self.now, &self.presence);
        let posted = flags & flag::NO_REPLY != 0 || header.flags().no_reply();
        let dropped = if posted { presence.posted_refusal(now) } else { presence.refusal(now) };
        let silent = presence.is_absent() || posted;
        match dropped {
            Some(_) if silent => presence.drop_write(),
            Some(_) => self.cells.counters.dropped_writes.add(1),
            None => {}
        }
        let command = Command::access(header, Kind::Write, access);
        let command = Command {
            len: if dropped.is_some() { 0 } else { command.len },
            flags: command.flags | flags,
            error: dropped.filter(|_| !silent).map_or(0, |error| error.0),
            ..command
        };
        self.commands.push(now, command, parts);
    }
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
