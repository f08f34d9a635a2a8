//! The namespaces of a drive: where they lie, who has them, and their way in and out.

use spec::nvme::Status;

use super::cells::{NAMESPACES, NamespaceCells, flag};
use super::{Subsystem, contains, set_member};

/// What a command needs to know of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Namespace {
    pub(crate) nsid: u32,
    /// First byte on the medium.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Bytes of a block, as a power of two.
    pub(crate) shift: u32,
    pub(crate) read_only: bool,
    pub(crate) shared: bool,
    pub(crate) formatting: bool,
    pub(crate) serial: u32,
    pub(crate) epoch: u32,
}

impl Namespace {
    pub(crate) fn blocks(&self) -> u64 {
        self.bytes >> self.shift
    }

    /// First byte on the medium and length of a range of blocks (at most 65,536), if they exist.
    pub(crate) fn byte_range(&self, slba: u64, blocks: u32) -> Result<(u64, u32), Status> {
        let end = slba.checked_add(blocks.into()).ok_or(Status::LBA_OUT_OF_RANGE)?;
        if end > self.blocks() {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        Ok((self.start + (slba << self.shift), blocks << self.shift))
    }
}

/// Where and how a namespace is made.
#[derive(Clone, Copy)]
pub(crate) struct NewNamespace {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) shift: u8,
    pub(crate) flags: u8,
}

impl<'m> Subsystem<'m> {
    /// The cells of a number that a namespace can have: a host's is looked up before (`active_namespace`,
    /// `check_nsid`), one of a record was checked when that was read.
    pub(crate) fn namespace_cells(&self, nsid: u32) -> &'m NamespaceCells {
        &self.cells.namespaces[nsid as usize - 1]
    }

    /// An allocated namespace.
    pub(crate) fn namespace(&self, nsid: u32) -> Option<Namespace> {
        let cells = self.cells.namespaces.get((nsid as usize).checked_sub(1)?)?;
        let (bytes, flags) = (cells.bytes.get(), cells.flags.get());
        (bytes != 0).then(|| Namespace {
            nsid,
            start: cells.start.get(),
            bytes,
            shift: cells.shift.get().into(),
            read_only: flags & flag::READ_ONLY != 0 || self.config.read_only,
            shared: flags & flag::SHARED != 0,
            formatting: flags & flag::FORMATTING != 0,
            serial: cells.serial.get(),
            epoch: cells.epoch.get(),
        })
    }

    /// A namespace that is attached to a controller.
    pub(crate) fn active(&self, nsid: u32, controller: u16) -> Option<Namespace> {
        self.namespace(nsid).filter(|_| self.is_attached(nsid, controller))
    }

    /// The same, or the status of a number that no command of the controller can use (NVMe 2.0 §3.2.1).
    pub(crate) fn active_namespace(&self, nsid: u32, controller: u16) -> Result<Namespace, Status> {
        if nsid == 0 || nsid > self.last_nsid() {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        self.active(nsid, controller).ok_or(Status::INVALID_FIELD)
    }

    /// Every allocated namespace, by number.
    pub(crate) fn allocated(&self) -> impl Iterator<Item = Namespace> + '_ {
        (1..=NAMESPACES as u32).filter_map(|nsid| self.namespace(nsid))
    }

    pub(crate) fn is_attached(&self, nsid: u32, controller: u16) -> bool {
        contains(&self.namespace_cells(nsid).attached, controller)
    }

    /// The controllers that a namespace is attached to.
    pub(crate) fn attached(&self, nsid: u32) -> impl Iterator<Item = u16> + '_ {
        (0..self.controllers()).filter(move |controller| self.is_attached(nsid, *controller))
    }

    /// The greatest number a namespace of this drive can have.
    pub(crate) fn last_nsid(&self) -> u32 {
        let grows = self.config.keeps_state || self.config.is_empty || !self.config.made.is_empty();
        if grows { NAMESPACES as u32 } else { self.config.namespaces.len().max(1) as u32 }
    }

    /// Makes a namespace whose place was found.
    pub(crate) fn place(&self, nsid: u32, new: NewNamespace) {
        let serial = self.cells.serials.update(self.journal, |serials| serials + 1);
        self.place_again(nsid, new, serial);
    }

    /// Makes a namespace that there was before.
    pub(crate) fn place_again(&self, nsid: u32, new: NewNamespace, serial: u32) {
        let (cells, journal) = (self.namespace_cells(nsid), self.journal);
        cells.start.set(journal, new.start);
        cells.bytes.set(journal, new.bytes);
        cells.shift.set(journal, new.shift);
        cells.flags.set(journal, new.flags);
        cells.serial.set(journal, serial);
        cells.epoch.update(journal, |epoch| epoch.wrapping_add(1));
        cells.attached.iter().for_each(|word| word.set(journal, 0));
    }

    /// Makes a namespace of `bytes` where there is room: the first gap that holds it. Returns its number.
    pub(crate) fn create(&self, bytes: u64, shift: u8, flags: u8) -> Result<u32, Status> {
        let nsid = (1..=self.last_nsid()).find(|nsid| self.namespace(*nsid).is_none());
        let nsid = nsid.ok_or(Status::NAMESPACE_ID_UNAVAILABLE)?;
        let start = self.find_gap(bytes).ok_or(Status::NAMESPACE_INSUFFICIENT_CAPACITY)?;
        self.place(nsid, NewNamespace { start, bytes, shift, flags });
        Ok(nsid)
    }

    /// The start of the first gap of so many bytes.
    pub(crate) fn find_gap(&self, bytes: u64) -> Option<u64> {
        self.cells.gap(bytes, &[])
    }

    /// Bytes of the medium in no namespace.
    pub(crate) fn unallocated(&self) -> u64 {
        self.cells.unallocated()
    }

    pub(crate) fn attach(&self, nsid: u32, controller: u16) {
        set_member(&self.namespace_cells(nsid).attached, self.journal, controller, true);
    }

    pub(crate) fn detach(&self, nsid: u32, controller: u16) {
        set_member(&self.namespace_cells(nsid).attached, self.journal, controller, false);
    }

    /// A format of the namespace has begun, or is over.
    pub(crate) fn set_formatting(&self, nsid: u32, on: bool) {
        self.namespace_cells(nsid).flags.update(self.journal, |flags| {
            if on { flags | flag::FORMATTING } else { flags & !flag::FORMATTING }
        });
    }

    /// Takes a namespace away; its owner has seen to it that the medium has no work for it.
    pub(crate) fn remove(&self, nsid: u32) {
        let (cells, journal) = (self.namespace_cells(nsid), self.journal);
        self.note_changed(nsid, None);
        if let Some(namespace) = self.namespace(nsid) {
            self.clear_bad(namespace.start, namespace.bytes);
        }
        cells.bytes.set(journal, 0);
        cells.flags.set(journal, 0);
        cells.epoch.update(journal, |epoch| epoch.wrapping_add(1));
        cells.attached.iter().for_each(|word| word.set(journal, 0));
    }

    /// Leaves a note with every controller that has the namespace, but for the one whose host has done it.
    pub(crate) fn note_changed(&self, nsid: u32, by: Option<u16>) {
        for controller in self.attached(nsid).filter(|controller| Some(*controller) != by) {
            self.note_change_for(nsid, controller);
        }
    }

    /// Leaves a note with one controller.
    pub(crate) fn note_change_for(&self, nsid: u32, controller: u16) {
        let cells = self.controller(controller);
        set_member(&cells.changed, self.journal, nsid as u16 - 1, true);
        cells.announce.set(self.journal, 1);
        self.notes.set(self.notes.get() + 1);
    }

    /// Goes up whenever a controller has something to do because of what happened elsewhere in the drive, and else only
    /// in steps of its own: see [`MediaFunction::depends_on_others`](crate::MediaFunction::depends_on_others).
    pub fn notes(&self) -> u64 {
        self.notes.get()
    }

    /// The identifier that no other namespace ever has: NGUID, big-endian.
    pub(crate) fn nguid(&self, serial: u32) -> [u8; 16] {
        (u128::from(self.config.shown_id()) << 64 | u128::from(serial)).to_be_bytes()
    }

    /// The same as a UUID of version 8 (RFC 9562 §5.8): the bits that version and variant take lie where the NGUID has
    /// none.
    pub(crate) fn uuid(&self, serial: u32) -> [u8; 16] {
        let mut uuid = self.nguid(serial);
        uuid[9] = uuid[6] >> 4;
        uuid[6] = 0x80 | uuid[6] & 0xf;
        uuid[8] = 0x80;
        uuid
    }

    /// The EUI-64 of the first namespace; the others have an NGUID alone.
    pub(crate) fn eui64(&self, serial: u32) -> Option<[u8; 8]> {
        (serial == 1).then(|| self.config.shown_id().to_be_bytes())
    }
}
