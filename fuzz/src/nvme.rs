//! A controller on a ledger of its own.

use base::ledger::{Arena, PageCells};
use device::nvme::{Config, Controller, NvmeCells};
use zerocopy::FromBytes;

use crate::Rig;

/// The cells of one controller.
#[derive(FromBytes)]
#[repr(C)]
pub struct Root {
    pub pages: PageCells,
    pub nvme: NvmeCells,
}

/// A ledger with a controller's cells.
pub fn rig(arena: &Arena) -> Rig<'_, Root> {
    Rig::new(arena)
}

/// A controller of a drive of so many blocks of 512 bytes.
pub fn controller<'m>(rig: &Rig<'m, Root>, blocks: u64) -> Controller<'m> {
    let pages = rig.pages(&rig.root.pages);
    Controller::new(&rig.root.nvme, pages, rig.journal, Config::new(blocks, 512, 1))
}
