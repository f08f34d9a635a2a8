//! What goes wrong, and how often.

use base::Random;

/// How a world is.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    /// Whether anything goes wrong now.
    pub(super) is_on: bool,
    /// Messages that are lost, of a thousand.
    pub(super) loss: u64,
    /// Messages that come twice.
    pub(super) repeat: u64,
    /// Messages that take up to 20 s.
    pub(super) late: u64,
    /// Effects after which the manager dies.
    pub(super) death: u64,
    /// How long a record takes to be durable, at most, in milliseconds.
    pub(super) disk_ms: u64,
    /// Whether a backup is made, and put back.
    pub(super) restore: bool,
    /// Whether lenders raise generations by themselves.
    pub(super) lies: bool,
    /// Whether nodes are removed and join.
    pub(super) members: bool,
    /// Whether older copies of nodes' folders are put back.
    pub(super) copies: bool,
}

impl Faults {
    pub(super) fn new(random: &mut Random) -> Self {
        let restore = random.chance(330);
        Self {
            is_on: true,
            loss: [0, 20, 200][random.index(3)],
            repeat: [0, 50, 300][random.index(3)],
            late: [0, 20, 100][random.index(3)],
            death: [2, 10, 40][random.index(3)],
            disk_ms: [1, 20, 400][random.index(3)],
            restore,
            lies: random.chance(300),
            members: random.chance(400),
            // Of a lender and a manager that both forget nobody knows what was.
            copies: !restore && random.chance(300),
        }
    }

    /// How long a message takes, in microseconds; `None`: it is lost.
    pub(super) fn delay_us(&self, random: &mut Random) -> Option<u64> {
        if self.is_on && random.chance(self.loss) {
            return None;
        }
        let is_late = self.is_on && random.chance(self.late);
        Some(if is_late { random.range(1_000, 20_000_000) } else { random.range(100, 30_000) })
    }

    pub(super) fn happens(&self, random: &mut Random, permille: u64) -> bool {
        self.is_on && random.chance(permille)
    }
}
