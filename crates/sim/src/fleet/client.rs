//! What a program of a node does with a drive that the node borrows.

use std::collections::BTreeMap;

use base::ledger::{Journal, PageIndex, Pages};
use base::{Instant, Random};
use host::{BlockKind, BlockRequest};

use super::function::{BLOCK, BLOCKS, Function};
use crate::disk::pattern;

/// Requests under way at most.
const UNDER_WAY: usize = 5;

/// By what a function is borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    Line,
    /// The entry of this generation.
    Entry(u64),
}

/// A function that a node borrows, and the program that uses it.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// Counts all claims: a later one of a function has a greater number. A node that reboots has another one.
    pub(super) number: u64,
    pub(super) function: usize,
    pub(super) by: By,
    /// It asks for what is not its own.
    pub(super) is_intruder: bool,
    /// By request: what it is for, block and page.
    requests: BTreeMap<u32, (BlockKind, u64, PageIndex)>,
    /// It asks for nothing more.
    pub(super) is_leaving: bool,
    /// The agent was told to give it back.
    pub(super) is_returning: bool,
    /// When nobody waits for its lender any more, if it has not taken it back by then,
    pub(super) gives_up_at: Option<u64>,
    /// and that has come.
    pub(super) is_abandoned: bool,
    /// It was ready to be used, some time.
    pub(super) was_ready: bool,
    /// An earlier life of the node has it, and the present one has not had it yet; or its lender did not lend it for a
    /// while. If it were given back now, its lender would keep it for who had it.
    pub(super) is_former: bool,
    /// Its program stands still.
    pub(super) is_stuck: bool,
}

/// What an act of a program has shown.
#[derive(Default)]
pub(super) struct Act {
    pub(super) verified: u64,
    pub(super) wrong: Option<String>,
    /// Who has sent the requests that were submitted, in their order.
    pub(super) authors: Vec<u64>,
}

impl Claim {
    pub(super) fn new(number: u64, function: usize) -> Self {
        Self::by(By::Line, number, function)
    }

    pub(super) fn by(by: By, number: u64, function: usize) -> Self {
        let requests = BTreeMap::new();
        let (is_leaving, is_returning, is_former, is_stuck) = (false, false, false, false);
        let (is_intruder, is_abandoned, was_ready, gives_up_at) = (false, false, false, None);
        Self {
            number,
            function,
            by,
            is_intruder,
            requests,
            is_leaving,
            is_returning,
            gives_up_at,
            is_abandoned,
            was_ready,
            is_former,
            is_stuck,
        }
    }

    /// The same by who has no right to it.
    pub(super) fn intruding(self) -> Self {
        Self { is_intruder: true, is_stuck: true, ..self }
    }

    /// The node has lost its ledger, and everything that was under way with it.
    pub(super) fn again(&self, number: u64) -> Self {
        let (is_intruder, is_stuck) = (self.is_intruder, self.is_intruder);
        Self { is_former: true, is_intruder, is_stuck, ..Self::by(self.by, number, self.function) }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.requests.is_empty()
    }

    /// Takes what has ended and, if it `asks`, asks for more. `first` is the number of the next request of all.
    pub(super) fn act(
        &mut self,
        now: Instant,
        random: &mut Random,
        (function, first): (&mut Function<'_>, usize),
        asks: bool,
        driver: &mut host::nvme::Driver<'_>,
        pages: Pages<'_>,
        journal: Journal<'_>,
    ) -> Act {
        let mut act = Act::default();
        while let Some((id, result)) = driver.poll_completion() {
            let Some((kind, lba, page)) = self.requests.remove(&id) else {
                act.wrong = Some(format!("request {id} has ended, which is none"));
                continue;
            };
            let mut bytes = [0; BLOCK];
            pages.read(page, 0, &mut bytes);
            pages.release(page);
            let ended = match (result, kind) {
                // Whoever gives back what is under way may lose it.
                (Err(_), _) if self.is_returning => Ok(()),
                (Err(error), _) => Err(format!("{kind:?} of block {lba} has failed: {error:?}")),
                (Ok(()), BlockKind::Read) => function.check_read(lba, &bytes),
                (Ok(()), BlockKind::Write) => {
                    function.end_write(id.into(), lba);
                    Ok(())
                }
                (Ok(()), _) => Ok(()),
            };
            act.verified += u64::from(kind == BlockKind::Read && ended.is_ok());
            act.wrong = act.wrong.or(ended.err());
        }
        while asks && driver.room() > 0 && self.requests.len() < UNDER_WAY {
            let lba = random.below(BLOCKS);
            if self.requests.values().any(|(_, busy, _)| *busy == lba) || random.chance(300) {
                break;
            }
            let Some(page) = pages.alloc() else { break };
            let id = (first + act.authors.len()) as u32;
            act.authors.push(self.number);
            let kind = match random.below(10) {
                0 => BlockKind::Flush,
                1..6 => BlockKind::Write,
                _ => BlockKind::Read,
            };
            if kind == BlockKind::Write {
                let mut bytes = [0; BLOCK];
                pattern(id.into(), lba, &mut bytes);
                pages.span(page, 0, BLOCK).write(journal, &bytes);
                function.begin_write(id.into(), lba);
            }
            self.requests.insert(id, (kind, lba, page));
            let fua = kind == BlockKind::Write && random.chance(200);
            let (blocks, block) = if kind == BlockKind::Flush { (0, 0) } else { (1, lba) };
            let pages: &[PageIndex] = if kind == BlockKind::Flush { &[] } else { &[page] };
            driver.submit(now, BlockRequest { id, kind, lba: block, blocks, fua, pages });
        }
        act
    }
}
