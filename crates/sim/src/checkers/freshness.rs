//! Which frames may have an effect.

use std::collections::BTreeSet;

use base::ids::{CardGeneration, Incarnation, NodeId};
use link::frame::{Header, ROUTE};
use link::tlp_digest;

use super::Verdict;

/// Where a frame comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// The peer has sent it, this moment or long ago.
    Peer,
    /// Nobody who knows the key.
    Forger,
}

/// A card of a node.
pub(crate) type Peer = (NodeId, Incarnation, CardGeneration);

/// The frames that the cards of one node have accepted, all of them: a frame names key, card and packet, so no two are
/// equal. What a card accepted in a step that it did not live to commit does not count.
#[derive(Default)]
pub(crate) struct Freshness(BTreeSet<u64>);

impl Freshness {
    /// The card has accepted a sealed frame of `source`. `newest` is the newest peer that it knew before
    /// and after it.
    pub(crate) fn accepted(
        &mut self,
        (origin, source): (Origin, NodeId),
        frame: &[u8],
        header: &Header,
        newest: [Option<Peer>; 2],
    ) -> Verdict {
        if origin == Origin::Forger {
            return Err(format!("a forged frame was accepted: {header:?}"));
        }
        let stale = |newest: Option<Peer>| {
            newest.is_some_and(|(node, incarnation, card)| {
                node == source && (header.incarnation, header.card_generation) < (incarnation, card)
            })
        };
        if newest.into_iter().any(stale) {
            return Err(format!("a frame of {header:?} was accepted, the newest known was {:?}", newest[0]));
        }
        let mut as_sent = frame.to_vec();
        as_sent[ROUTE] = 0;
        if !self.0.insert(tlp_digest(&as_sent)) {
            return Err(format!("a frame was accepted twice: {header:?}"));
        }
        Ok(())
    }
}
