//! Who takes the TLPs of a loan, so that an assertion that fails meanwhile ends the loan and neither the channel that
//! it shares with others nor the card.

use core::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::Instant;
use link::{Port, Sink};
use pcie::TlpView;

use crate::apertures::Gate;
use crate::endpoint::Endpoint;

/// The endpoint of a loan, behind its stream.
pub(crate) struct Contained<'m> {
    end: Box<dyn Endpoint<'m> + 'm>,
    pub(crate) gate: Gate<'m>,
    /// Whether an assertion that fails in a step of this loan ends the loan, and not the card.
    contained: bool,
    /// One has failed, and nothing is taken any more.
    has_faulted: bool,
}

impl<'m> Contained<'m> {
    pub(crate) fn new(end: Box<dyn Endpoint<'m> + 'm>, gate: Gate<'m>) -> Self {
        Self { end, gate, contained: false, has_faulted: false }
    }

    pub(crate) fn contain(&mut self) {
        self.contained = true;
    }

    pub(crate) fn is_contained(&self) -> bool {
        self.contained
    }
}

impl<'m> Sink<'m> for Contained<'m> {
    fn accept(&mut self, now: Instant, port: &mut Port<'m>, tlp: &TlpView<'_>) {
        if self.has_faulted {
            return;
        }
        let (end, gate) = (&mut self.end, &self.gate);
        let mut take = || {
            if let Some(header) = gate.admit(port, tlp.header(), end.completer()) {
                end.take(now, port, &header, tlp.payload());
            }
        };
        if !self.contained {
            return take();
        }
        // What is broken in memory is this end, of which nothing is used again, and its stream, whose loan ends.
        if catch_unwind(AssertUnwindSafe(take)).is_err() {
            self.has_faulted = true;
        }
    }

    fn has_failed(&self) -> bool {
        self.has_faulted
    }
}

impl<'m> Deref for Contained<'m> {
    type Target = Box<dyn Endpoint<'m> + 'm>;

    fn deref(&self) -> &Self::Target {
        &self.end
    }
}

impl DerefMut for Contained<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.end
    }
}
