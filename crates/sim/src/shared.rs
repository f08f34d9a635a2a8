//! In some worlds the functions of a drive have one namespace together. Each loan's clients write an area of their own,
//! which is a disk of its own here; two of three clients of each loan read the other's.

use base::Random;
use device::MediaKind;
use node::MediaWork;

use crate::chance::Chance;
use crate::client::Seat;
use crate::loans::{DiskMode, Loan};
use crate::marks::Mark;
use crate::slot::has_guests;
use crate::stage::{LENDER, Stage};

/// Loans that have a namespace together.
pub(crate) const LOANS: usize = 2;

/// Of a thousand writes of memory, in how many the card dies.
const DEATHS: u64 = 250;

/// A world in which the loans have a namespace together.
pub(crate) struct Shared {
    random: Random,
    /// Until then the card has a piece of work in hand: memory takes time, too, and requests of others come meanwhile.
    busy_until: u64,
}

impl Shared {
    /// If the world of a seed is one.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Chance::Shared.of(seed);
        (!has_guests(seed) && random.chance(100)).then_some(Self { random, busy_until: 0 })
    }

    /// Whether the card still has a piece of work in hand.
    pub(crate) fn is_busy(&self, stage: &mut Stage<'_>) -> bool {
        let is_busy = stage.clock.now < self.busy_until;
        if is_busy {
            stage.wake_at(LENDER, self.busy_until);
        }
        is_busy
    }

    /// The card begins a piece of work.
    pub(crate) fn begin_work(&mut self, now: u64) {
        self.busy_until = now + self.random.range(10_000, 300_000);
    }

    /// Whether the card dies in the middle of a write, which other functions may read.
    pub(crate) fn dies_writing(&mut self, stage: &mut Stage<'_>, work: &MediaWork<'_>) -> bool {
        let writes = !matches!(work.kind, MediaKind::Read | MediaKind::Flush);
        let dies = !stage.is_calm() && writes && self.random.chance(DEATHS);
        if dies {
            stage.report.marks.set(Mark::EffectKilled);
            stage.bury(LENDER);
        }
        dies
    }
}

/// Two loans of one kind: mostly of memory, where a card that dies may leave half of a write.
pub(crate) fn loans<'w>(random: &mut Random) -> Vec<Loan<'w>> {
    let geometry = Loan::geometry(random);
    let mode = if random.chance(900) { DiskMode::Inline } else { DiskMode::Ring };
    let mut loans: Vec<_> = (0..LOANS).map(|index| Loan::with(index, geometry, mode, false)).collect();
    loans.iter_mut().for_each(|loan| loan.shared.model.keeping_nothing());
    loans
}

/// The drive with the namespace of all loans, one area behind the other.
pub(crate) fn drive(loans: &mut [Loan<'_>]) -> device::nvme::Config {
    let mut end = 0;
    for loan in loans.iter_mut() {
        loan.base = end;
        end += loan.config.bytes();
    }
    let block = loans[0].config.block_size;
    let mut drive = device::nvme::Config::new(end / 512, 512, 0x2000);
    drive.memory_buffer = loans.iter().all(|loan| loan.config.memory_buffer);
    drive.functions = loans.len() as u16;
    drive.namespaces = vec![device::nvme::NamespaceConfig {
        blocks: end / u64::from(block),
        block_size: block,
        read_only: false,
        shared: true,
        controllers: (1..=drive.functions).collect(),
    }];
    drive
}

/// Who sits where a loan has its clients.
pub(crate) fn seats(node: usize, loan: usize, is_shared: bool) -> [Seat; 3] {
    let own = Seat { node, loan, area: loan };
    let other = Seat { area: if is_shared { LOANS - 1 - loan } else { loan }, ..own };
    [own, other, other]
}
