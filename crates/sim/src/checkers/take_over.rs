//! A function is taken from a life by another one of the same node only when that life has left a question of the
//! lender unanswered for so long that it is taken for gone; by one that was refused as its twin, only when the hold
//! time is over. Once everything was given back there is nothing to keep from a twin, and the lender knows it no more.
//!
//! What counts is what was said: the newest packet of the lender that a life has acknowledged, in a frame that the
//! lender has accepted, shows how long ago the two last spoke to each other.

use std::collections::BTreeMap;

use base::times::{HANDSHAKE_RETRY_MAX, HOLD, RAIL_VERDICT, SILENCE};
use link::PathId;

use super::Verdict;
use super::single_owner::{HEARD_STEP, Life};

/// How long a function is kept from a twin at least.
const KEPT: u64 = HOLD.as_nanos() as u64 - HEARD_STEP;

/// A packet of the lender: the node that it is for, its card, path and number.
pub(crate) type Packet = (usize, u64, PathId, u64);

/// Of one loan.
#[derive(Default)]
pub(crate) struct TakeOver {
    /// When the lender has sent a packet.
    sent: BTreeMap<Packet, u64>,
    /// By life: when the newest packet was sent that it has acknowledged; 0 for one that was heard at least.
    answered: BTreeMap<Life, u64>,
    /// Who has the function, and has not given it back.
    holder: Option<Life>,
    /// When the lender's present life began; the first one knows of nobody.
    began: Option<u64>,
    /// The lives that have a function of it then, this one or another: each of them has come when those before it were
    /// gone, and another one as well if it was before.
    known: Vec<Life>,
    /// Lives that were refused as twins by the lender's present life, or are known as such from the one before.
    twins: Vec<Life>,
}

impl TakeOver {
    /// The lender sends a packet.
    pub(crate) fn sends(&mut self, now: u64, packet: Packet) {
        self.sent.insert(packet, now);
    }

    /// When the lender has sent the newest of these packets.
    pub(crate) fn newest(&self, packets: impl Iterator<Item = Packet>) -> Option<u64> {
        packets.filter_map(|packet| self.sent.get(&packet).copied()).max()
    }

    /// The lender has accepted a frame of `life`, which acknowledges what was sent at `asked`.
    pub(crate) fn hears(&mut self, life: Life, asked: Option<u64>) {
        let answered = self.answered.entry(life).or_default();
        *answered = asked.unwrap_or(0).max(*answered);
    }

    /// The lender's next life begins, with what its state folder says of who has the function, and of who is a twin:
    /// of nobody, where nobody has anything.
    pub(crate) fn lender_began(&mut self, now: u64, holder: Option<Life>, known: &[Life], twins: &[Life]) {
        let twins = if known.is_empty() { Vec::new() } else { twins.to_vec() };
        let known = known.to_vec();
        *self = Self { holder, began: Some(now), known, twins, ..Self::default() };
    }

    /// This life has heard from the lender that it is a twin.
    pub(crate) fn is_twin(&mut self, life: Life) {
        self.twins.push(life);
    }

    /// The function is `taker`'s from now on. If it was another life's, returns that one.
    ///
    /// # Errors
    /// That one was there.
    pub(crate) fn changes(&mut self, now: u64, taker: Life) -> Result<Option<Life>, String> {
        let Some(former) = self.holder.replace(taker).filter(|former| *former != taker) else {
            return Ok(None);
        };
        self.judge(now, former, taker).map(|()| Some(former))
    }

    /// Whoever had the function has given it back.
    pub(crate) fn ends(&mut self) {
        self.holder = None;
    }

    /// Whether anybody has the function.
    pub(crate) fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    /// Nobody has any function of the lender: there is nothing to keep from twins.
    pub(crate) fn forget_twins(&mut self) {
        self.twins.clear();
    }

    fn judge(&self, now: u64, former: Life, taker: Life) -> Verdict {
        let waited = match (self.answered.get(&former), self.began) {
            (Some(answered), _) => now.saturating_sub(*answered) >= RAIL_VERDICT.as_nanos() as u64,
            // One that could not be asked was waited for, unless who comes had something here, too.
            (None, Some(_)) if self.known.contains(&taker) => true,
            (None, Some(began)) => now - began >= (SILENCE + HANDSHAKE_RETRY_MAX).as_nanos() as u64,
            (None, None) => true,
        };
        let (answered, began) = (self.answered.get(&former), self.began);
        // Who has something here, too, and calls first after a start of the lender, is not asked.
        let is_free = answered.is_none() && self.known.contains(&taker);
        let kept_since = answered.copied().or(began).unwrap_or_default();
        if self.twins.contains(&taker) && !is_free && now - kept_since < KEPT {
            return Err(format!(
                "{taker:?} takes the function from {former:?}, as whose twin it was refused"
            ));
        }
        if waited {
            return Ok(());
        }
        Err(format!(
            "{taker:?} takes the function from {former:?}, whose last answer was to {answered:?}; the lender began at \
             {began:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use base::ids::RailId;

    use super::*;

    const PATH: PathId = PathId::new(RailId::ALL[0], RailId::ALL[0]);
    const OTHER: PathId = PathId::new(RailId::ALL[1], RailId::ALL[1]);

    const FIRST: Life = Life { node: 1, number: 1 };
    const SECOND: Life = Life { node: 2, number: 1 };
    const VERDICT: u64 = RAIL_VERDICT.as_nanos() as u64;

    #[test]
    fn who_has_answered_lately_loses_nothing() {
        let mut function = TakeOver::default();
        assert_eq!(function.changes(0, FIRST), Ok(None));
        function.sends(10, (1, 1, PATH, 5));
        function.sends(20, (1, 1, OTHER, 5));
        let asked = function.newest([(1, 1, PATH, 5), (2, 1, OTHER, 5)].into_iter());
        assert_eq!(asked, Some(10));
        function.hears(FIRST, asked);
        function.hears(FIRST, None);
        let before = function.answered.clone();
        function.changes(9 + VERDICT, SECOND).unwrap_err();
        (function.holder, function.answered) = (Some(FIRST), before);
        assert_eq!(function.changes(10 + VERDICT, SECOND), Ok(Some(FIRST)));
    }

    #[test]
    fn what_was_given_back_is_free_and_a_new_lender_waits() {
        let mut function = TakeOver::default();
        function.changes(0, FIRST).unwrap();
        function.hears(FIRST, Some(5));
        function.ends();
        assert_eq!(function.changes(7, SECOND), Ok(None));
        function.lender_began(100, Some(SECOND), &[SECOND], &[]);
        function.changes(101 + VERDICT, FIRST).unwrap_err();
    }

    #[test]
    fn a_twin_waits_for_the_hold_time_over_starts_of_the_lender() {
        let mut function = TakeOver::default();
        function.changes(0, FIRST).unwrap();
        function.sends(10, (1, 1, PATH, 5));
        function.hears(FIRST, Some(10));
        function.is_twin(SECOND);
        function.changes(9 + KEPT, SECOND).unwrap_err();
        function.holder = Some(FIRST);
        function.changes(10 + KEPT, SECOND).unwrap();
        function.lender_began(20, Some(FIRST), &[FIRST], &[SECOND]);
        function.changes(19 + KEPT, SECOND).unwrap_err();
        function.lender_began(20, Some(FIRST), &[FIRST], &[]);
        function.changes(19 + KEPT, SECOND).unwrap();
    }

    #[test]
    fn who_was_a_twin_before_everything_was_given_back_is_any_other_life() {
        let mut function = TakeOver::default();
        function.changes(0, FIRST).unwrap();
        function.is_twin(SECOND);
        function.ends();
        // Another function may still be had.
        function.changes(5, FIRST).unwrap();
        function.changes(6 + VERDICT, SECOND).unwrap_err();
        function.ends();
        function.forget_twins();
        function.changes(10, FIRST).unwrap();
        function.sends(20, (1, 1, PATH, 5));
        function.hears(FIRST, Some(20));
        function.changes(19 + VERDICT, SECOND).unwrap_err();
        function.holder = Some(FIRST);
        function.changes(20 + VERDICT, SECOND).unwrap();
        // So it is where the lender was started anew meanwhile, and its folder still names the twin.
        function.lender_began(100, None, &[], &[SECOND]);
        function.changes(110, FIRST).unwrap();
        function.sends(120, (1, 1, PATH, 5));
        function.hears(FIRST, Some(120));
        function.changes(120 + VERDICT, SECOND).unwrap();
    }
}
