//! Many loans between few nodes, half of which come into trouble: the others notice nothing of it.

use base::Random;

use super::client::Claim;
use super::{Plan, START, Shape, World};

/// Functions that are lent, all together.
const FUNCTIONS: usize = 256;
/// What a receiver grants before anything has come, where a read of a page has two completions: posted headers, posted
/// data, non-posted headers.
const WHOLE: [u64; 3] = [1024, 1024 * 256, 256];

impl Shape {
    /// Two or three nodes, of which each lends to the others as much as these have places for.
    pub(super) fn of_crowd(random: &mut Random) -> Self {
        let first = random.range(FUNCTIONS as u64 / 4, FUNCTIONS as u64 * 3 / 4) as usize;
        let nodes = if random.chance(500) {
            vec![(first, FUNCTIONS - first), (FUNCTIONS - first, first)]
        } else {
            // The third one borrows from both, and lends a few.
            let (few, rest) = (32, FUNCTIONS - 32);
            let first = first.min(rest);
            vec![(first, rest - first), (rest - first, first), (few, FUNCTIONS)]
        };
        let plan = Plan {
            peace: 80_000_000,
            fault: 12_000_000,
            moves: 1_200_000,
            end: START + random.range(300_000_000, 400_000_000),
            lending: 0,
            cut: 20_000_000,
            reboots: false,
            think: 2_000_000,
        };
        Self { nodes, plan, is_crowd: true, is_managed: false }
    }
}

impl World<'_> {
    /// Every function is borrowed, by a node with room for it.
    pub(super) fn gather(&mut self) {
        for function in 0..self.functions.len() {
            let lender = self.functions[function].lender;
            let others = (0..self.members.len()).filter(|node| *node != lender);
            let vacant: Vec<_> = others
                .flat_map(|node| {
                    self.members[node].vacant_places().into_iter().map(move |place| (node, place))
                })
                .collect();
            let (node, place) = vacant[self.random.index(vacant.len())];
            self.claims += 1;
            self.functions[function].claim = Some((node, place));
            self.functions[function].last_user = Some(node);
            self.attach_to(node, place, Claim::new(self.claims, function));
        }
    }

    /// One more loan is given back, ends in the middle of everything, or stands still, as long as half of all are left.
    pub(super) fn trouble(&mut self) {
        let left: Vec<usize> =
            (0..self.functions.len()).filter(|function| !self.functions[*function].is_troubled).collect();
        if left.len() <= self.functions.len() / 2 {
            return;
        }
        let function = left[self.random.index(left.len())];
        let Some((node, place)) = self.functions[function].claim else { return };
        self.functions[function].is_troubled = true;
        match self.random.below(4) {
            0 => self.begin_detach(node, place, false),
            1 => self.begin_detach(node, place, true),
            2 => {
                self.fleet.stuck += 1;
                self.stop_program(node, place, true);
            }
            _ => {
                self.fleet.stuck += 1;
                self.functions[function].is_stuck = true;
            }
        }
    }

    /// What stood still goes on. The others have not waited for it.
    pub(super) fn go_on(&mut self) {
        for function in 0..self.functions.len() {
            self.functions[function].is_stuck = false;
            if let Some((node, place)) = self.functions[function].claim {
                self.stop_program(node, place, false);
            }
        }
        let others = self.functions.iter().filter(|function| !function.is_troubled);
        self.fleet.going = others.filter(|function| function.verified > 0).count() as u64;
    }

    /// Why not all credit has been granted again, when nothing is on its way.
    pub(super) fn owed(&self) -> Option<String> {
        self.functions.iter().find_map(|function| {
            let (node, place) = function.claim?;
            let (lender, borrower) = (&self.members[function.lender], &self.members[node]);
            let (lent, borrowed) =
                (lender.stream(function.place)?, borrower.stream(borrower.loan_of(place))?);
            [(lent, borrowed), (borrowed, lent)].into_iter().find_map(|(sender, receiver)| {
                let ((used, _), granted) = (sender.port.sender.credits(), receiver.receiver().granted());
                let left: Vec<u64> =
                    granted.iter().zip(used).map(|(granted, used)| granted.wrapping_sub(used)).collect();
                let what =
                    || format!("function {} of node {}: credit of {left:?}", function.place, function.lender);
                (left != WHOLE).then(what)
            })
        })
    }
}
