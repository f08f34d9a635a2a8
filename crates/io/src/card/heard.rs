//! Information frames, and hellos of switches, that come among what a card takes: on a rail that leads to a switch
//! there is one socket.

use std::collections::VecDeque;

use base::frame::{HELLO, INFORMATION};
use base::ids::RailId;
use base::{Bucket, Instant};
use node::information::INFORMATION_MAX;
use node::switch::{INFORMATION_BURST, INFORMATION_EVERY};

use crate::address::RailAddress;

/// Frames that wait for the agent: what finds no room comes again.
const HEARD_MAX: usize = 64;

/// Information frames that have come from switches: they are the agent's.
pub(super) struct Heard {
    waiting: VecDeque<(RailId, Vec<u8>)>,
    room: Bucket,
}

impl Heard {
    pub(super) fn new(now: Instant) -> Self {
        Self { waiting: VecDeque::new(), room: Bucket::full(INFORMATION_BURST, INFORMATION_EVERY, now) }
    }

    /// Takes a frame that has come on a rail that leads to `gateway`, if it is one of these. As many as a switch passes
    /// on are kept, not as many as somebody may send.
    pub(super) fn take(
        &mut self,
        now: Instant,
        rail: RailId,
        (from, gateway): (RailAddress, Option<RailAddress>),
        frame: &[u8],
    ) -> bool {
        let kind =
            frame.get(1).copied().filter(|kind| gateway.is_some() && [HELLO, INFORMATION].contains(kind));
        let Some(kind) = kind else { return false };
        // What switches say to each other is for nobody here.
        let is_kept = kind == INFORMATION
            && gateway == Some(from)
            && frame.len() <= INFORMATION_MAX
            && self.waiting.len() < HEARD_MAX
            && self.room.take(now);
        if is_kept {
            self.waiting.push_back((rail, frame.to_vec()));
        }
        true
    }

    /// The one that came first.
    pub(super) fn next(&mut self) -> Option<(RailId, Vec<u8>)> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_switch_passes_on_is_kept_and_no_more_of_it_than_that() {
        let switch: RailAddress = "10.0.0.1:7411".parse().unwrap();
        let other: RailAddress = "10.0.0.2:7411".parse().unwrap();
        let frame = [1, INFORMATION, 0, 0];
        let mut heard = Heard::new(Instant::ZERO);
        let rail = RailId::ALL[2];
        let take = |heard: &mut Heard, ends, frame: &[u8]| heard.take(Instant::ZERO, rail, ends, frame);
        assert!(!take(&mut heard, (switch, None), &frame), "others are heard by a socket of their own");
        assert!(
            !take(&mut heard, (switch, Some(switch)), &[1, 3, 0, 0])
                && !take(&mut heard, (switch, Some(switch)), &[])
        );
        assert!(take(&mut heard, (other, Some(switch)), &frame), "it is for no card");
        assert!(take(
            &mut heard,
            (switch, Some(switch)),
            &[frame.as_slice(), &[0; INFORMATION_MAX]].concat()
        ));
        assert_eq!(heard.next(), None);
        (0..100).for_each(|_| assert!(take(&mut heard, (switch, Some(switch)), &frame)));
        assert_eq!(std::iter::from_fn(|| heard.next()).count(), HEARD_MAX);
        for _ in 0..2 * INFORMATION_BURST {
            take(&mut heard, (switch, Some(switch)), &frame);
            heard.next();
        }
        take(&mut heard, (switch, Some(switch)), &frame);
        assert_eq!(heard.next(), None, "a burst is over");
    }
}
