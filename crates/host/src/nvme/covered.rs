//! Which blocks newer writes have: what an older one still has to write is what lies between them.

use std::collections::BTreeMap;

/// Ranges of blocks, none of which touch: start and end. At most as many as there are kept writes.
#[derive(Default)]
pub(super) struct Covered(BTreeMap<u64, u64>);

impl Covered {
    /// Adds the blocks from `start` to before `end`.
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
        // From the last one down: those that touch the range become a part of it.
        while let Some((&first, &last)) = self.0.range(..=end).next_back()
            && last >= start
        {
            (start, end) = (start.min(first), end.max(last));
            self.0.remove(&first);
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    /// The first blocks of `start..end` that are not covered: their start and end.
    pub(super) fn gap(&self, mut start: u64, end: u64) -> Option<(u64, u64)> {
        if let Some((_, &last)) = self.0.range(..=start).next_back() {
            start = start.max(last);
        }
        let next = self.0.range(start..).next().map_or(end, |(&first, _)| first.min(end));
        (start < end).then_some((start, next))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gaps_are_what_no_range_has(
            ranges in proptest::collection::vec((0_u64..60, 0_u64..12), 0..20),
            start in 0_u64..60,
            len in 0_u64..30,
        ) {
            let mut covered = Covered::default();
            let mut blocks = [false; 100];
            for (start, len) in ranges {
                covered.insert(start, start + len);
                blocks[start as usize..(start + len) as usize].fill(true);
            }
            let end = start + len;
            let mut at = start;
            let mut gaps = [false; 100];
            while let Some((first, last)) = covered.gap(at, end) {
                prop_assert!(at <= first && first < last && last <= end);
                gaps[first as usize..last as usize].fill(true);
                at = last;
            }
            for block in start..end {
                prop_assert_eq!(gaps[block as usize], !blocks[block as usize], "block {}", block);
            }
            let ends: Vec<_> = covered.0.iter().collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "ranges that touch are one");
        }
    }
}
