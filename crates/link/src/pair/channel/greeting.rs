//! The hello of a new card.

use core::time::Duration;

use base::Instant;
use base::times::{HELLO, HELLO_MAX};

/// Says hello on all paths until it is answered, ever more seldom, so that a peer that is gone costs nothing.
#[derive(Default)]
pub(super) struct Greeting {
    /// When to say hello next; none once it is answered.
    pub(super) next: Option<Instant>,
    wait: Duration,
    /// Paths that shall carry the hello now, as bits.
    pub(super) due: u8,
    /// The peer's card whose hello is to be answered.
    pub(super) answer: Option<u64>,
}

impl Greeting {
    /// Says hello, now and until it is heard.
    pub(super) fn begin(&mut self, now: Instant) {
        (self.next, self.wait) = (Some(now), HELLO);
    }

    /// It was heard.
    pub(super) fn end(&mut self) {
        self.next = None;
    }

    /// Time has come: hello is said on `paths`, and `again` if it is not heard.
    pub(super) fn handle_timeout(&mut self, now: Instant, paths: u8, again: bool) {
        if self.next.is_some_and(|next| next <= now) {
            self.due = paths;
            self.next = again.then_some(now + self.wait);
            self.wait = (self.wait * 2).min(HELLO_MAX);
        }
    }

    /// The number of a path that is to carry it now.
    pub(super) fn take_path(&mut self) -> Option<u8> {
        let due = self.due;
        self.due &= due.wrapping_sub(1);
        (due != 0).then(|| due.trailing_zeros() as u8)
    }
}
