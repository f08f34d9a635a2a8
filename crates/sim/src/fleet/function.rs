//! What a node lends: a disk, who has it, and what its blocks may hold.

use std::collections::BTreeSet;

use base::ids::LoanGeneration;
use node::{Entry, Holder, MediaWork, Tenancy};

use super::lending::Lending;
use super::managed::Had;
use crate::disk::{Disk, author};

/// Bytes and number of a drive's blocks.
pub(super) const BLOCK: usize = 512;
pub(super) const BLOCKS: u64 = 48;

/// A function, as the world knows it.
pub(super) struct Function<'w> {
    pub(super) lender: usize,
    /// The place of its loan there, and its drive.
    pub(super) place: usize,
    pub(super) disk: Disk<'w>,
    pub(super) lending: Lending,
    /// Which loan its place has.
    pub(super) life: u64,
    /// Who has it, as its lender's agent has made durable.
    pub(super) tenancy: Tenancy,
    /// In a managed fleet: the entry that was decided last, and the one in its lender's table.
    pub(super) decided: Option<Entry>,
    /// See [`Function::decided`].
    pub(super) entry: Option<Entry>,
    /// Who had a stream of it when that was looked at last.
    pub(super) had: Option<Had>,
    /// Who borrows it: node and place.
    pub(super) claim: Option<(usize, usize)>,
    /// The node that has given it back and whose lender may not know that: he keeps it for that one.
    pub(super) kept_for: Option<usize>,
    /// Of a crowd: it is one of those that do not simply go on.
    pub(super) is_troubled: bool,
    /// Its medium stands still.
    pub(super) is_stuck: bool,
    /// Blocks that were read and compared.
    pub(super) verified: u64,
    /// The node that has borrowed it last.
    pub(super) last_user: Option<usize>,
    /// By block: the requests that may have written what it holds.
    contents: Vec<BTreeSet<u64>>,
    /// The last claim of which a write took effect.
    newest: u64,
}

impl Function<'_> {
    pub(super) fn new((lender, place): (usize, usize), is_managed: bool) -> Self {
        let entry = is_managed.then_some(Entry { generation: LoanGeneration(1), holder: Holder::Nobody });
        Self {
            lender,
            place,
            disk: Disk::new(BLOCKS as usize, BLOCK),
            lending: Lending::Here,
            life: 0,
            tenancy: Tenancy::default(),
            decided: entry,
            entry,
            had: None,
            claim: None,
            kept_for: None,
            is_troubled: false,
            is_stuck: false,
            verified: 0,
            last_user: None,
            contents: vec![BTreeSet::from([0]); BLOCKS as usize],
            newest: 0,
        }
    }

    /// A write is under way: the block may hold it from now on.
    pub(super) fn begin_write(&mut self, request: u64, lba: u64) {
        self.contents[lba as usize].insert(request);
    }

    /// It was answered: the block holds it.
    pub(super) fn end_write(&mut self, request: u64, lba: u64) {
        self.contents[lba as usize] = BTreeSet::from([request]);
    }

    /// A block was read, while nothing was written there.
    pub(super) fn check_read(&mut self, lba: u64, bytes: &[u8]) -> Result<(), String> {
        let known = &mut self.contents[lba as usize];
        let read = author(lba, bytes);
        match read.filter(|read| known.contains(read)) {
            Some(read) => *known = BTreeSet::from([read]),
            None => return Err(format!("block {lba} is of {read:?}, not of {known:?}")),
        }
        Ok(())
    }

    /// Work for the medium takes effect: nobody's who had the function before.
    pub(super) fn check_effect(&mut self, work: &MediaWork<'_>, authors: &[u64]) -> Result<(), String> {
        if work.kind != device::MediaKind::Write {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(work.len as usize);
        for span in work.spans() {
            let start = bytes.len();
            bytes.resize(start + span.len(), 0);
            span.read(&mut bytes[start..]);
        }
        for (lba, block) in (work.offset / BLOCK as u64..).zip(bytes.chunks(BLOCK)) {
            let Some(request) = author(lba, block).filter(|request| *request > 0) else {
                return Err(format!("block {lba} gets what nobody has written"));
            };
            let claim = authors[request as usize];
            if claim < self.newest {
                return Err(format!("claim {claim} writes block {lba} after claim {}", self.newest));
            }
            self.newest = claim;
        }
        Ok(())
    }
}
