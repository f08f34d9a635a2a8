//! Fair shares of a medium among the functions of a drive: deficit round robin over pieces of work.

/// Bytes that a piece of work costs beside its own, so that small ones are not free.
const BASE_COST: u64 = 4096;
/// What a function gets when it is its turn. Not less than the most expensive piece, so that a turn never ends without
/// one.
const QUANTUM: u64 = 128 << 10;
/// Nothing costs more, however long the range of a deallocation.
const COST_MAX: u64 = QUANTUM;

/// Decides whose work the medium gets next. Volatile: a new card begins with a new round.
#[derive(Clone, Debug)]
pub struct FairShare {
    credits: Vec<u64>,
    turn: usize,
    /// Whether the one whose turn it is has had its quantum.
    served: bool,
}

impl FairShare {
    /// Shares among `functions` functions, which are told apart by index.
    pub fn new(functions: usize) -> Self {
        Self { credits: vec![0; functions], turn: 0, served: false }
    }

    /// Whose piece of work is next, if anybody has one: `cost` tells the bytes of a function's next piece. The caller
    /// takes that piece. Asks each function at most twice.
    pub fn pick(&mut self, mut cost: impl FnMut(usize) -> Option<u32>) -> Option<usize> {
        let count = self.credits.len();
        for _ in 0..=count {
            if count == 0 {
                return None;
            }
            let turn = self.turn;
            match cost(turn).map(|bytes| (BASE_COST + u64::from(bytes)).min(COST_MAX)) {
                Some(cost) => {
                    if !self.served {
                        self.credits[turn] += QUANTUM;
                        self.served = true;
                    }
                    if let Some(left) = self.credits[turn].checked_sub(cost) {
                        self.credits[turn] = left;
                        return Some(turn);
                    }
                }
                // Who wants nothing saves nothing up.
                None => self.credits[turn] = 0,
            }
            self.turn = (turn + 1) % count;
            self.served = false;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who gets how many pieces of 10,000, when all always want.
    fn shares(costs: &[Option<u32>]) -> Vec<u64> {
        let mut share = FairShare::new(costs.len());
        let mut bytes = vec![0; costs.len()];
        for _ in 0..10_000 {
            let picked = share.pick(|function| costs[function]).unwrap();
            bytes[picked] += BASE_COST + u64::from(costs[picked].unwrap());
        }
        bytes
    }

    #[test]
    fn large_pieces_get_no_more_of_the_medium_than_small_ones() {
        let bytes = shares(&[Some(512), Some(126_976), None, Some(4096)]);
        assert_eq!(bytes[2], 0);
        let (least, most) = ([bytes[0], bytes[1], bytes[3]].into_iter().min(), bytes.iter().max());
        assert!(*most.unwrap() - least.unwrap() <= 2 * QUANTUM, "{bytes:?}");
    }

    #[test]
    fn sixty_four_functions_and_a_noisy_one() {
        let costs: Vec<_> =
            (0..65).map(|function| Some(if function == 7 { 131_072 } else { 4096 })).collect();
        let bytes = shares(&costs);
        assert!(bytes.iter().max().unwrap() - bytes.iter().min().unwrap() <= 2 * QUANTUM);
    }

    #[test]
    fn nobody_wants_anything() {
        assert_eq!(FairShare::new(3).pick(|_| None), None);
        assert_eq!(FairShare::new(0).pick(|_| Some(1)), None);
        // A late comer is served at once.
        let mut share = FairShare::new(2);
        assert_eq!(share.pick(|function| (function == 1).then_some(u32::MAX)), Some(1));
        assert_eq!(share.pick(|function| (function == 0).then_some(1)), Some(0));
    }
}
