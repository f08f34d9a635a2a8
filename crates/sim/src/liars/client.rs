//! What somebody does with a drive: one block a request, whatever the dice say.

use std::collections::BTreeMap;

use base::Instant;
use base::ledger::{Journal, PageIndex, Pages};
use host::{BlockKind, BlockRequest};

use super::{BLOCK, BLOCKS, Dice};
use crate::disk::{author, pattern};

/// Requests that are under way at most.
const UNDER_WAY: usize = 6;

/// What somebody wants of a drive.
pub(crate) struct Client {
    /// By request: what it is for, block, page, and who wrote last if it is a read.
    requests: BTreeMap<u32, (BlockKind, u64, PageIndex, u64)>,
    /// By block: the request that wrote it last.
    written: Vec<u64>,
    next: u32,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self { requests: BTreeMap::new(), written: vec![0; BLOCKS as usize], next: 1 }
    }

    /// It asks for nothing more.
    pub(crate) fn stop(&mut self) {
        self.next = u32::MAX;
    }

    /// Requests that have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.requests.len()
    }

    /// Takes what has ended and asks for more. Returns how many blocks were compared, or what was wrong with one.
    pub(crate) fn act(
        &mut self,
        now: Instant,
        dice: &mut dyn Dice,
        driver: &mut host::nvme::Driver<'_>,
        pages: Pages<'_>,
        journal: Journal<'_>,
    ) -> Result<u64, String> {
        let (mut verified, mut found) = (0, Ok(()));
        while let Some((id, result)) = driver.poll_completion() {
            let Some((kind, lba, page, wanted)) = self.requests.remove(&id) else {
                found = found.and(Err(format!("request {id} has ended, which is none")));
                continue;
            };
            let mut bytes = [0; BLOCK];
            pages.read(page, 0, &mut bytes);
            pages.release(page);
            if let Err(error) = result {
                found = found.and(Err(format!("{kind:?} of block {lba} has failed: {error:?}")));
            } else if kind == BlockKind::Read {
                verified += 1;
                let read = author(lba, &bytes);
                if read != Some(wanted) {
                    found = found.and(Err(format!("block {lba} is of {read:?}, not of {wanted}")));
                }
            }
        }
        while driver.room() > 0 && self.requests.len() < UNDER_WAY && self.next < u32::MAX {
            let lba = dice.below(BLOCKS);
            if self.requests.values().any(|(_, busy, ..)| *busy == lba) || dice.chance(300) {
                break;
            }
            let Some(page) = pages.alloc() else { break };
            let (id, kind) = (self.next, if dice.chance(500) { BlockKind::Write } else { BlockKind::Read });
            self.next += 1;
            if kind == BlockKind::Write {
                let mut bytes = [0; BLOCK];
                pattern(id.into(), lba, &mut bytes);
                pages.span(page, 0, BLOCK).write(journal, &bytes);
                self.written[lba as usize] = id.into();
            }
            let fua = dice.chance(200);
            self.requests.insert(id, (kind, lba, page, self.written[lba as usize]));
            driver.submit(now, BlockRequest { id, kind, lba, blocks: 1, fua, pages: &[page] });
        }
        found.map(|()| verified)
    }
}
