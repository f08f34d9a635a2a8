//! What the controller says of itself and of the namespace that is driven.

use base::ledger::{Bytes, Cell, Journal, Layout};
use spec::nvme::feature::AsyncEventConfiguration;
use spec::nvme::identify::{HOST_KEEPS_OFFERED, Oncs};
use spec::nvme::{IdentifyController, IdentifyNamespace};
use zerocopy::FromBytes;

use crate::{BlockRequest, Geometry};

/// What was identified. All zeroes: nothing was yet.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(super) struct NamespaceCells {
    /// Namespace size in logical blocks; valid with `block_size`.
    blocks: Cell<u64>,
    /// 0 before the first initialisation.
    block_size: Cell<u32>,
    /// Bits of [`flag`].
    pub(super) flags: Cell<u32>,
    /// The namespace that is driven.
    nsid: Cell<u64>,
}

/// Bits of [`NamespaceCells::flags`].
pub(super) mod flag {
    pub(in super::super) const READ_ONLY: u32 = 1;
    pub(in super::super) const VOLATILE_CACHE: u32 = 2;
    pub(in super::super) const DEALLOCATE: u32 = 4;
    pub(in super::super) const WRITE_ZEROES: u32 = 8;
    pub(in super::super) const NAMESPACE_EVENTS: u32 = 16;
    pub(in super::super) const SHARED: u32 = 32;
    /// There is a volatile write cache for hosts that keep what is not flushed.
    pub(in super::super) const HIDDEN_CACHE: u32 = 64;
}

/// What came of identifying a namespace.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Identified {
    /// It has a format this driver cannot use.
    Unusable,
    Usable,
    /// It is usable, and its blocks have another size than before.
    Resized,
}

/// The namespace that is driven.
#[derive(Clone, Copy)]
pub(super) struct Namespace<'m> {
    cells: &'m NamespaceCells,
    /// Data of an Identify command, complete when its completion arrives, and read in that very step.
    data: &'m Bytes<4096>,
    journal: Journal<'m>,
}

impl<'m> Namespace<'m> {
    pub(super) fn new(cells: &'m NamespaceCells, data: &'m Bytes<4096>, journal: Journal<'m>) -> Self {
        Self { cells, data, journal }
    }

    pub(super) fn geometry(&self) -> Option<Geometry> {
        (self.block_size() != 0).then(|| Geometry {
            block_size: self.block_size(),
            blocks: self.cells.blocks.get(),
            read_only: self.has(flag::READ_ONLY),
            volatile_cache: self.has(flag::VOLATILE_CACHE),
        })
    }

    pub(super) fn block_size(&self) -> u32 {
        self.cells.block_size.get()
    }

    pub(super) fn has(&self, bit: u32) -> bool {
        self.cells.flags.get() & bit != 0
    }

    pub(super) fn nsid(&self) -> u32 {
        self.cells.nsid.get() as u32
    }

    /// Drives the first namespace of the list that was read. Returns its number, if there is one.
    pub(super) fn choose(&self) -> Option<u32> {
        let nsid = self.first();
        if nsid == 0 {
            return None;
        }
        self.cells.nsid.set(self.journal, nsid.into());
        Some(nsid)
    }

    /// The controller writes data of an Identify command.
    pub(super) fn store(&self, start: usize, bytes: &[u8]) {
        self.data.write(self.journal, start, &bytes[..bytes.len().min(4096 - start)]);
    }

    /// Takes what matters of Identify Controller; `false` for a controller this driver cannot use.
    pub(super) fn read_controller(&self) -> bool {
        let mut bytes = [0; 4096];
        self.data.read(0, &mut bytes);
        let Ok(controller) = IdentifyController::ref_from_bytes(&bytes) else { return false };
        let needed = BlockRequest::MAX_PAGES.ilog2() as u8;
        let oncs = Oncs(controller.oncs.get());
        let offers_cache = controller.vendor.starts_with(&HOST_KEEPS_OFFERED);
        let events = AsyncEventConfiguration(controller.oaes.get());
        let flags = [
            (flag::VOLATILE_CACHE, controller.vwc & 1 != 0 || offers_cache),
            (flag::HIDDEN_CACHE, offers_cache),
            (flag::DEALLOCATE, oncs.dataset_management()),
            (flag::WRITE_ZEROES, oncs.write_zeroes()),
            (flag::NAMESPACE_EVENTS, events.namespace_attribute()),
        ];
        let flags = flags.iter().filter(|(_, is_set)| *is_set).fold(0, |flags, (bit, _)| flags | bit);
        self.cells.flags.set(self.journal, flags);
        controller.mdts == 0 || controller.mdts >= needed
    }

    /// The lowest number in the list of attached namespaces; 0 for none.
    pub(super) fn first(&self) -> u32 {
        let mut first = [0; 4];
        self.data.read(0, &mut first);
        u32::from_le_bytes(first)
    }

    /// Whether other controllers may have the namespace that was identified.
    pub(super) fn is_shared(&self) -> bool {
        let mut nmic = [0];
        self.data.read(core::mem::offset_of!(IdentifyNamespace, nmic), &mut nmic);
        nmic[0] & 1 != 0
    }

    /// Takes size and format of the namespace.
    pub(super) fn read(&self) -> Identified {
        let mut bytes = [0; 4096];
        self.data.read(0, &mut bytes);
        let Ok(namespace) = IdentifyNamespace::ref_from_bytes(&bytes) else { return Identified::Unusable };
        let (format, blocks) = (namespace.current_format(), namespace.nsze.get());
        let Some(block_size @ (512 | 4096)) = format.block_size() else { return Identified::Unusable };
        // Sizes in bytes are computed everywhere, and clients keep them in 63 bits.
        let is_too_large = blocks > i64::MAX as u64 / u64::from(block_size);
        if format.ms.get() != 0 || blocks == 0 || is_too_large {
            return Identified::Unusable;
        }
        let read_only = if namespace.nsattr & 1 != 0 { flag::READ_ONLY } else { 0 };
        let shared = if self.is_shared() { flag::SHARED } else { 0 };
        let old = flag::READ_ONLY | flag::SHARED;
        self.cells.flags.update(self.journal, |flags| flags & !old | read_only | shared);
        let old = self.block_size();
        self.cells.block_size.set(self.journal, block_size);
        self.cells.blocks.set(self.journal, blocks);
        if old != 0 && old != block_size { Identified::Resized } else { Identified::Usable }
    }
}
