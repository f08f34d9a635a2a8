//! What stands behind a stream of a card.

use base::Instant;
use fabric::Window;
use link::Port;
use pcie::{Bdf, Header};

/// What stands behind a stream, and takes its TLPs.
pub(crate) trait Endpoint<'m> {
    /// Takes a TLP that has come, which bears the requester id of the stream and is for this endpoint
    /// ([`crate::apertures::Gate`]). What the requester may do here is the endpoint's own word. Never waits and never
    /// refuses to take it.
    fn take(&mut self, now: Instant, port: &mut Port<'m>, header: &Header, payload: &[u8]);

    /// The way to the other end, once there is one.
    fn window(&self) -> Option<&Window>;

    /// What completions for the other end bear: as that knows this one.
    fn completer(&self) -> Bdf {
        self.window().map_or(Bdf(0), Window::requester)
    }
}
