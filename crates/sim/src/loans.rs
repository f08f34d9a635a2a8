//! A loan, as the world sees it: a drive, its disk, and who has it.

use core::time::Duration;
use std::collections::BTreeSet;

use base::Random;
use device::MediaKind;
use link::Protection;
use node::MediaWork;

use crate::checkers::disk_model::DiskModel;
use crate::checkers::names;
use crate::checkers::single_owner::{Change, Life, SingleOwner};
use crate::checkers::take_over::TakeOver;
use crate::client::{Drive, Orphan, Shared};
use crate::disk::{Disk, author};
use crate::marks::Mark;
use crate::media::Trouble;
use crate::report::Report;
use crate::stage::{BORROWER, NODES};
use crate::tenure::{Tenure, Told};

/// How a lent disk is driven.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskMode {
    Inline,
    Ring,
}

/// A loan, as the world sees it.
pub(crate) struct Loan<'w> {
    pub(crate) disk: Disk<'w>,
    pub(crate) mode: DiskMode,
    pub(crate) drive: Drive,
    pub(crate) tenure: Tenure,
    pub(crate) owner: SingleOwner,
    pub(crate) take_over: TakeOver,
    pub(crate) shared: Shared,
    /// Whether a request of either end had no completion in time, ever.
    pub(crate) timed_out: bool,
    /// When an operator has last cleared the medium, in ticks.
    pub(crate) cleared: u64,
    /// Writes that the borrower's driver has lost, as it says.
    pub(crate) lost: u64,
    /// Executed and not marked.
    pub(crate) unmarked: Vec<device::MediaId>,
    pub(crate) config: device::nvme::Config,
    /// Where the loan's namespace begins on its drive's medium.
    pub(crate) base: u64,
}

/// What the lender and those who borrow accept: mostly all that there is.
pub(crate) fn protection(random: &mut Random) -> [Protection; 2] {
    match random.below(10) {
        0 | 1 => [Protection::Insecure; 2],
        2 => [Protection::Aes256Gcm; 2],
        3 => [Protection::Aes256Gcm, Protection::Aegis],
        4 => [Protection::Aegis, Protection::Aes256Gcm],
        _ => [Protection::Aegis; 2],
    }
}

/// A drive with a virtual function and a namespace for each loan.
pub(crate) fn common_drive(loans: &mut [Loan<'_>]) -> device::nvme::Config {
    let mut end = 0_u64;
    let mut namespaces = Vec::new();
    for (loan, controller) in loans.iter_mut().zip(1..) {
        loan.base = end.next_multiple_of(4096);
        end = loan.base + loan.config.bytes();
        namespaces.push(device::nvme::NamespaceConfig {
            blocks: loan.config.blocks,
            block_size: loan.config.block_size,
            read_only: false,
            shared: false,
            controllers: vec![controller],
        });
    }
    let mut drive = device::nvme::Config::new(end / 512, 512, 0x2000);
    drive.memory_buffer = loans.iter().all(|loan| loan.config.memory_buffer);
    drive.functions = loans.len() as u16;
    drive.namespaces = namespaces;
    drive
}

/// How many requests the disks have not ended yet.
pub(crate) fn in_rings(loans: &[Loan<'_>]) -> usize {
    loans.iter().map(|loan| loan.disk.ring.len()).sum()
}

impl Loan<'_> {
    /// How long the borrower lets a request wait: for ever, or so short that many fail.
    pub(crate) fn io_timeout(&self) -> Duration {
        if self.drive.impatient { Duration::from_millis(150) } else { Duration::from_secs(3600) }
    }

    /// What a borrower kept until it is flushed is gone, with its ledger or because another one has the drive.
    pub(crate) fn lose_kept(&mut self, who: Life) {
        let (blocks, shared) = (0..self.drive.blocks, &mut self.shared);
        let tick = shared.next_tick();
        shared.begin_request(who);
        let request = shared.requests;
        if shared.model.borrower_lost(request, tick) {
            shared.orphans.push(Orphan { request, blocks, who });
        }
    }

    /// A card of `who` says that another node has used its drive. `is_served` says whether anything was served that its
    /// clients have asked for since a tick. False if it is only said again.
    pub(crate) fn is_overtaken(
        &mut self,
        who: Life,
        is_served: impl FnOnce(u64) -> bool,
        report: &mut Report,
    ) -> bool {
        match self.tenure.is_told(who.node, is_served) {
            Told::Rightly => {}
            Told::Again => return false,
            Told::Wrongly => {
                let node = who.node;
                let what =
                    format!("node {node} was told that another one has used its drive, and nobody has");
                report.fail(names::SINGLE_OWNER, what);
            }
        }
        if self.tenure.holder == Some(who.node) {
            self.lose_kept(who);
        }
        self.tenure.has_lost(who.node, self.shared.tick + 1);
        true
    }

    /// Work for its disk takes effect: its borrower has the function.
    pub(crate) fn check_owner(
        &mut self,
        now: u64,
        work: &MediaWork<'_>,
        borrower: Option<Life>,
        report: &mut Report,
    ) {
        let Some(borrower) = borrower.filter(|_| work.kind != MediaKind::Flush) else { return };
        let mut lives = BTreeSet::from([borrower]);
        // Whose data a write has, it says itself.
        if work.kind == MediaKind::Write {
            let block = self.drive.block as usize;
            let mut bytes = Vec::with_capacity(work.len as usize);
            for span in work.spans() {
                let start = bytes.len();
                bytes.resize(start + span.len(), 0);
                span.read(&mut bytes[start..]);
            }
            let first = work.offset / block as u64;
            let requests = (first..).zip(bytes.chunks(block)).filter_map(|(lba, bytes)| author(lba, bytes));
            lives.extend(requests.filter_map(|request| self.shared.author(request)));
        }
        for life in lives {
            match self.owner.effect(now, life) {
                Ok(change) => report.marks.set_if(Mark::HoldOver, change == Change::HoldOver),
                Err(what) => report.fail(names::SINGLE_OWNER, what),
            }
        }
    }

    /// Blocks and their bytes, and whether there is a memory buffer.
    pub(crate) fn geometry(random: &mut Random) -> (u64, u32, bool) {
        let (blocks, block) = if random.chance(500) { (640, 512) } else { (160, 4096) };
        (blocks, block, random.chance(600))
    }

    pub(crate) fn new(random: &mut Random, index: usize, impatient: bool) -> Self {
        let geometry = Self::geometry(random);
        let mode = if random.chance(500) { DiskMode::Ring } else { DiskMode::Inline };
        Self::with(index, geometry, mode, impatient)
    }

    pub(crate) fn with(
        index: usize,
        (blocks, block, memory_buffer): (u64, u32, bool),
        mode: DiskMode,
        impatient: bool,
    ) -> Self {
        let mut config = device::nvme::Config::new(blocks, block, 0x1000 + index as u64);
        config.memory_buffer = memory_buffer;
        Self {
            disk: Disk::new(blocks as usize, block as usize),
            mode,
            timed_out: false,
            drive: Drive { blocks, block: block.into(), impatient },
            tenure: Tenure::default(),
            owner: SingleOwner::new(NODES),
            take_over: TakeOver::default(),
            shared: Shared {
                tick: 1,
                requests: 0,
                model: DiskModel::new(blocks as usize, mode == DiskMode::Inline),
                orphans: Vec::new(),
                bytes: 0,
                timeouts: 0,
                authors: vec![Life { node: BORROWER, number: 0 }],
                trouble: Trouble::default(),
            },
            cleared: 0,
            lost: 0,
            unmarked: Vec::new(),
            config,
            base: 0,
        }
    }
}
