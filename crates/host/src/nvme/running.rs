//! What the commands at the controller entitle it to: which pages it may read and write, and what they will leave to be
//! kept.
//!
//! Not in the ledger, because it follows from the issued commands: each card counts them anew.

use base::ledger::{PageIndex, Pages};

use super::cells::{Command, CommandCells};
use crate::BlockKind;

/// The commands at the controller, in sum.
pub(super) struct Running {
    /// By page.
    rights: Vec<Rights>,
    writes: usize,
    pages: usize,
    flushes: usize,
    /// Writes that nobody waits for.
    given_up: usize,
}

/// How many commands let the controller read a page, and write it.
#[derive(Clone, Copy, Default)]
struct Rights {
    read: u16,
    write: u16,
}

impl Running {
    pub(super) fn new() -> Self {
        Self { rights: Vec::new(), writes: 0, pages: 0, flushes: 0, given_up: 0 }
    }

    /// A command is issued. `is_kept` says whether it is to be kept when it has ended.
    pub(super) fn begin(&mut self, command: &Command, cells: &CommandCells, is_kept: bool) {
        self.count(command, cells, is_kept, |count, by| *count += by);
    }

    /// The command is no longer at the controller.
    pub(super) fn end(&mut self, command: &Command, cells: &CommandCells, is_kept: bool) {
        self.count(command, cells, is_kept, |count, by| *count -= by);
    }

    fn count(
        &mut self,
        command: &Command,
        cells: &CommandCells,
        is_kept: bool,
        change: impl Fn(&mut usize, usize),
    ) {
        let kind = command.kind();
        // Of commands that this driver has made: a controller names them by their number alone, which `complete` looks
        // up.
        for page in &cells.pages[..usize::from(command.pages)] {
            let page = usize::from(page.get());
            assert!(page < Pages::CAPACITY, "commands have pages of the pool");
            if page >= self.rights.len() {
                self.rights.resize(page + 1, Rights::default());
            }
            let rights = &mut self.rights[page];
            let right = if kind == BlockKind::Read { &mut rights.write } else { &mut rights.read };
            let mut count = usize::from(*right);
            change(&mut count, 1);
            *right = count as u16;
        }
        if is_kept {
            change(&mut self.writes, 1);
            change(&mut self.pages, command.pages.into());
        }
        change(&mut self.flushes, (kind == BlockKind::Flush).into());
        change(&mut self.given_up, (command.is_given_up() && command.is_write()).into());
    }

    /// A command that has begun was given up.
    pub(super) fn give_up(&mut self, command: &Command) {
        self.given_up += usize::from(command.is_write());
    }

    /// Whether a write that was given up is at the controller.
    pub(super) fn has_given_up(&self) -> bool {
        self.given_up > 0
    }

    /// Writes that will be kept when they end, and their pages.
    pub(super) fn to_be_kept(&self) -> (usize, usize) {
        (self.writes, self.pages)
    }

    /// Whether a flush is at the controller.
    pub(super) fn has_flush(&self) -> bool {
        self.flushes > 0
    }

    pub(super) fn may_read(&self, page: PageIndex) -> bool {
        self.rights.get(usize::from(page.0)).is_some_and(|rights| rights.read > 0)
    }

    pub(super) fn may_write(&self, page: PageIndex) -> bool {
        self.rights.get(usize::from(page.0)).is_some_and(|rights| rights.write > 0)
    }
}
