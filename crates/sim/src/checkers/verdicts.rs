//! A rail is said to be silent only where frames were lost on it: a card that is dead, or has just begun, answers
//! nowhere, and a rail that loses nothing is well.

use std::collections::BTreeMap;

use super::Verdict;

/// A card that asks without an answer does so again after so long at most, unless it takes round trips to be long.
const ASKED_AGAIN: u64 = 100_000_000;
/// So many of the last questions had no answer, for whatever reason.
const QUESTIONS: u64 = 4;

/// A node, and the id of one of its rails.
pub(crate) type RailOf = (usize, u8);

/// What is known of rails.
#[derive(Default)]
pub(crate) struct Verdicts {
    /// Until when something that another node had sent there, or was sent from there to it, was lost, harmed or late.
    troubled: BTreeMap<(RailOf, usize), u64>,
    /// By node: when its present card began.
    began: BTreeMap<usize, u64>,
}

impl Verdicts {
    /// A frame between two rails is lost, or harmed, or arrives as late as `until`.
    pub(crate) fn trouble(&mut self, until: u64, from: RailOf, to: RailOf) {
        for key in [(from, to.0), (to, from.0)] {
            let known = self.troubled.entry(key).or_default();
            *known = until.max(*known);
        }
    }

    /// A card of `node` begins.
    pub(crate) fn card_began(&mut self, now: u64, node: usize) {
        self.began.insert(node, now);
    }

    /// Whether a card of `peer` has begun since then and may have had something late on another rail. It answers that,
    /// and not what was sent with it and came in time: then nobody was there.
    fn may_have_missed(&self, since: u64, peer: usize, (node, rail): RailOf) -> bool {
        let began = self.began.get(&peer).copied().filter(|began| *began >= since);
        let is_other = |key: &(RailOf, usize)| key.0.0 == peer && key.0.1 != rail && key.1 == node;
        let is_late = |began| self.troubled.iter().any(|(key, at)| is_other(key) && *at >= began);
        began.is_some_and(is_late)
    }

    /// `node` says that it has no answer on a rail of somebody who is one of `peers`, whose rails it takes to be so far
    /// away.
    pub(crate) fn says_of_peer(
        &self,
        now: u64,
        round_trip: u64,
        (node, rail): RailOf,
        peers: impl IntoIterator<Item = usize>,
    ) -> Verdict {
        let since = now.saturating_sub(QUESTIONS * (ASKED_AGAIN + 2 * round_trip));
        let is_lossy = |peer: usize| self.troubled.get(&((peer, rail), node)).is_some_and(|at| *at >= since);
        if peers.into_iter().any(|peer| is_lossy(peer) || self.may_have_missed(since, peer, (node, rail))) {
            return Ok(());
        }
        Err(format!(
            "node {node} takes rail {rail} of another one for dead, on which nothing was lost since {since}"
        ))
    }

    /// `node` says the same of a rail of its own.
    pub(crate) fn says_of_own(
        &self,
        now: u64,
        round_trip: u64,
        (node, rail): RailOf,
        nodes: usize,
    ) -> Verdict {
        let since = now.saturating_sub(QUESTIONS * (ASKED_AGAIN + 2 * round_trip));
        let is_lossy =
            |peer: &usize| self.troubled.get(&((node, rail), *peer)).is_some_and(|at| *at >= since);
        match (0..nodes).filter(is_lossy).count() {
            0 | 1 => Err(format!(
                "node {node} takes its own rail {rail} for dead, on which not two have lost anything since {since}"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_rail_is_dead_only_where_frames_were_lost_lately() {
        let mut rails = Verdicts::default();
        rails.trouble(1_000 * MS, (0, 1), (2, 3));
        let says = |now: u64, node, rail, peer: usize| rails.says_of_peer(now * MS, 0, (node, rail), [peer]);
        says(1_000, 0, 3, 2).unwrap();
        says(1_000, 2, 1, 0).unwrap();
        says(1_400, 2, 1, 0).unwrap();
        says(1_401, 2, 1, 0).unwrap_err();
        says(1_000, 2, 3, 0).unwrap_err();
        says(1_000, 1, 1, 0).unwrap_err();
    }

    #[test]
    fn a_card_that_has_just_begun_may_answer_what_came_late_elsewhere_and_nothing_else() {
        let mut rails = Verdicts::default();
        rails.card_began(1_000 * MS, 0);
        let says = |rails: &Verdicts, now| rails.says_of_peer(now * MS, 0, (2, 1), [0]);
        says(&rails, 1_003).unwrap_err();
        // What another node has sent tells nothing, nor what came before the card began.
        rails.trouble(1_002 * MS, (1, 0), (0, 0));
        rails.trouble(999 * MS, (2, 0), (0, 0));
        says(&rails, 1_003).unwrap_err();
        rails.trouble(1_002 * MS, (2, 0), (0, 0));
        says(&rails, 1_003).unwrap();
        says(&rails, 1_401).unwrap_err();
    }

    #[test]
    fn a_rail_is_ones_own_only_where_two_have_lost_something_there() {
        let mut rails = Verdicts::default();
        rails.trouble(1_000 * MS, (0, 1), (2, 1));
        rails.says_of_own(1_000 * MS, 0, (0, 1), 3).unwrap_err();
        rails.trouble(1_000 * MS, (1, 1), (0, 1));
        rails.says_of_own(1_000 * MS, 0, (0, 1), 3).unwrap();
        rails.says_of_own(1_401 * MS, 0, (0, 1), 3).unwrap_err();
        rails.says_of_own(1_401 * MS, MS, (0, 1), 3).unwrap();
    }
}
