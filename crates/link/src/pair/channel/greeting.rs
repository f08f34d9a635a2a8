//! The hello of a card that is new, or has other rails than before.

use core::time::Duration;

use base::Instant;
use base::times::{HELLO, HELLO_MAX};

use crate::paths::{PathId, PathSet};

/// Says hello on all paths until it is answered, ever more seldom, so that a peer that is gone costs nothing.
#[derive(Default)]
pub(super) struct Greeting {
    /// When to say hello next; none once it is answered.
    pub(super) next: Option<Instant>,
    wait: Duration,
    /// Paths that shall carry the hello now.
    pub(super) due: PathSet,
    /// The peer's card whose hello is to be answered, and the edition of its rails.
    pub(super) answer: Option<(u64, u32)>,
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
    pub(super) fn handle_timeout(&mut self, now: Instant, paths: PathSet, again: bool) {
        if self.next.is_some_and(|next| next <= now) {
            self.due = paths;
            self.next = again.then_some(now + self.wait);
            self.wait = (self.wait * 2).min(HELLO_MAX);
        }
    }

    /// A path that is to carry it now.
    pub(super) fn take_path(&mut self) -> Option<PathId> {
        self.due.pop()
    }
}
