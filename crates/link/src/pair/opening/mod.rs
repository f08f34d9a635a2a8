//! How a stream begins and ends: a [`Claim`] is its borrower's end, an [`Offer`] its lender's.
//!
//! They speak over stream 0 of the channel that joins their nodes, in records that may come twice or not at all. What
//! they have agreed lies in the ledger; what they say they repeat until it is answered.

mod claim;
mod offer;

use core::time::Duration;

use base::Instant;
use base::times::{HANDSHAKE_RETRY, HANDSHAKE_RETRY_MAX};

pub use claim::{Claim, ClaimCells, ClaimConfig, ClaimEvent, ClaimState};
pub use offer::{Asking, Offer, OfferCells, OfferConfig, OfferEvent, OfferState};

/// When to say something again that was not answered: ever more seldom.
#[derive(Clone, Copy, Default)]
struct Repeat {
    next: Option<Instant>,
    wait: Duration,
}

impl Repeat {
    /// At once, and then from the shortest time on.
    fn begin(&mut self, now: Instant) {
        *self = Self { next: Some(now), wait: HANDSHAKE_RETRY };
    }

    /// It was answered.
    fn end(&mut self) {
        self.next = None;
    }

    /// It was answered, and is said again then.
    fn rest(&mut self, until: Instant) {
        *self = Self { next: Some(until), wait: HANDSHAKE_RETRY };
    }

    /// Whether it is to be said now; the next time comes later.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next.is_some_and(|next| next <= now);
        if is_due {
            self.next = Some(now + self.wait);
            self.wait = (self.wait * 2).min(HANDSHAKE_RETRY_MAX);
        }
        is_due
    }
}
