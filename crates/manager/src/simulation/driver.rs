//! What a program around the core has to be: a disk, and a manager that lives and dies.

use base::Random;

use super::setting::fabric;
use crate::entry::Entry;
use crate::log::{Base, Damage, HEADER_LEN, Recovered, Writer, read, read_snapshot, snapshot};
use crate::machine::{Manager, Now, Start};
use crate::state::State;

/// Two files, and what is on its way to the log.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) snapshot: Option<Vec<u8>>,
    pub(super) log: Vec<u8>,
}

/// A record that is not durable yet.
#[derive(Debug)]
pub(super) struct Pending {
    bytes: Vec<u8>,
    writer: Writer,
    pub(super) first: u64,
    pub(super) entries: Vec<Entry>,
}

#[derive(Debug)]
pub(super) struct Driver {
    pub(super) disk: Disk,
    pub(super) manager: Option<Manager>,
    writer: Writer,
    pub(super) pending: Option<Pending>,
    /// Which life of the manager this is.
    pub(super) life: u64,
}

impl Driver {
    pub(super) fn new(log: Vec<u8>) -> Self {
        let writer = Writer::new(fabric(), 0, 0);
        Self { disk: Disk { snapshot: None, log }, manager: None, writer, pending: None, life: 0 }
    }

    pub(super) fn read(&self, acknowledged: u64) -> Result<Recovered, Damage> {
        let base = match &self.disk.snapshot {
            Some(bytes) => read_snapshot(bytes, fabric())?,
            None => Base::new(fabric()),
        };
        read(&self.disk.log, base, acknowledged)
    }

    /// Starts a manager with what the disk has.
    pub(super) fn start(&mut self, now: Now, start: Start, acknowledged: u64) -> Result<State, Damage> {
        let found = self.read(acknowledged)?;
        self.disk.log.truncate(found.len);
        self.writer = found.writer;
        self.life += 1;
        self.manager = Some(Manager::start(now, found.state.clone(), start));
        Ok(found.state)
    }

    pub(super) fn append(&mut self, first: u64, entries: Vec<Entry>) {
        let mut writer = self.writer;
        let bytes = writer.record(&entries);
        self.pending = Some(Pending { bytes, writer, first, entries });
    }

    /// The record is durable. Returns it.
    pub(super) fn settle(&mut self) -> Option<Pending> {
        let pending = self.pending.take()?;
        self.disk.log.extend(&pending.bytes);
        self.writer = pending.writer;
        Some(pending)
    }

    /// The manager dies. What was on its way is there, in part, or not. Returns what is there as a whole.
    pub(super) fn die(&mut self, random: &mut Random) -> Option<Pending> {
        self.manager = None;
        match (random.below(4), &self.pending) {
            (_, None) | (0, _) => {}
            (1, Some(_)) => return self.settle(),
            (2, Some(pending)) => self.disk.log.extend(&pending.bytes[..random.index(pending.bytes.len())]),
            (_, Some(pending)) => {
                // The file is as long as it was to be, and some sectors never were written.
                let start = self.disk.log.len();
                self.disk.log.extend(&pending.bytes);
                let (first, last) = (start / 512, (self.disk.log.len() - 1) / 512);
                let missing = random.range(first as u64, last as u64) as usize;
                let end = self.disk.log.len();
                self.disk.log[start.max(missing * 512)..end.min((missing + 1) * 512)].fill(0);
            }
        }
        self.pending = None;
        None
    }

    /// Something on the disk is not what was written. `None`: there is nothing that was acknowledged.
    pub(super) fn flip(&mut self, random: &mut Random, durable: usize) -> Option<(usize, u8)> {
        let range = durable.checked_sub(HEADER_LEN).filter(|len| *len > 0)?;
        let (at, bit) = (HEADER_LEN + random.index(range), 1 << random.below(8));
        self.disk.log[at] ^= bit;
        Some((at, bit))
    }

    /// Makes a snapshot, and begins another log behind it, if everything is durable.
    pub(super) fn compact(&mut self) {
        let Some(manager) = &self.manager else { return };
        if manager.state().index() == manager.durable() && self.pending.is_none() {
            self.disk.snapshot = Some(snapshot(manager.state(), &self.writer));
            self.disk.log = self.writer.header();
        }
    }
}
