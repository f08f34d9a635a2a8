//! Rails come to a card that runs, and leave it.

use core::fmt;
use core::time::Duration;

use base::Instant;
use base::ids::{NodeId, RailId};
use link::{Notice, NoticeCause};

use super::{Card, CardEvent};
use crate::MAX_RAILS;
use crate::cells::Address;
use crate::config::{CardConfig, Rails};
use crate::peer::Peer;

/// A rail of this node's own that others do not answer on is not spoken of again for so long.
const SAID_AGAIN: Duration = Duration::from_secs(1);

/// Why a node cannot have these rails while it runs. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailsError {
    /// It would have none, and be reached by nobody: also not through shared memory, since that is agreed on over a
    /// rail.
    NoneLeft,
    /// A rail takes smaller frames than those that peers have been promised.
    TooSmall(RailId),
}

impl fmt::Display for RailsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoneLeft => {
                write!(f, "the last rail cannot go: nobody would reach the node; let another one come first")
            }
            Self::TooSmall(rail) => write!(
                f,
                "rail {rail} takes smaller frames than this node has agreed on with others: give it a larger MTU, or \
                 start the node anew with it"
            ),
        }
    }
}

impl core::error::Error for RailsError {}

impl Card<'_> {
    /// These are the node's rails from now on; those that stay notice nothing. What was in flight on one that is gone
    /// is sent again on another one. One that has come carries data when it has answered. In steps of their own.
    ///
    /// # Errors
    /// See [`RailsError`].
    pub fn set_rails(&mut self, now: Instant, rails: Rails) -> Result<(), RailsError> {
        let agreed = self.config.own_payload();
        if rails.iter().all(Option::is_none) {
            return Err(RailsError::NoneLeft);
        }
        let is_small =
            |(_, rail): &(_, &crate::RailConfig)| CardConfig::max_payload([rail.max_frame]) < agreed;
        if let Some((rail, _)) = RailId::present(&rails).find(is_small) {
            return Err(RailsError::TooSmall(rail));
        }
        self.config.rails = rails;
        self.replies.retain(|reply| rails[reply.rail().index()].is_some());
        for place in 0..self.peers.len() {
            if self.peers.get(place).is_some() {
                self.peer_step(now, place, |peer, _| peer.set_rails(now, &rails));
            }
        }
        Ok(())
    }

    /// These rails of the node, as bits, have no carrier from now on: others take over until something is answered
    /// there all the same, and peers are told. The members of its group are told by whoever says so to this card.
    pub fn set_lost_carriers(&mut self, now: Instant, rails: u8) {
        let news = rails & !core::mem::replace(&mut self.config.lost_carriers, rails);
        for place in 0..self.peers.len() {
            if self.peers.get(place).is_some() {
                self.peer_step(now, place, |peer, _| peer.channel.set_lost_carriers(now, rails));
            }
        }
        let node = self.config.identity.id();
        for rail in RailId::ALL.into_iter().filter(|rail| news & 1 << rail.get() != 0) {
            self.tell_others(Notice { node, rail, cause: NoticeCause::Carrier });
        }
    }

    /// Somebody says that a node is at these addresses today, by rail: it is called there as well. Nothing proves it
    /// but its answer.
    pub fn hear_of(&mut self, node: NodeId, addresses: [Option<Address>; MAX_RAILS]) {
        self.peers.hear_of(node, addresses);
    }

    /// This node hears notices to all on these rails of this one, as bits, so that one frame is enough for all such;
    /// with none it does no more.
    pub fn set_member(&mut self, node: NodeId, rails: u8) {
        if rails != 0 {
            self.members.insert(node, rails);
        } else {
            self.members.remove(&node);
        }
    }

    /// Tells every node that this one has met of a rail that seems to have failed, but for the members of its group
    /// that hear it on another one. Whose rail it is nobody knows for sure: so that of the same id does not count.
    fn tell_others(&mut self, notice: Notice) {
        let gone = self.config.lost_carriers | 1 << notice.rail.get();
        let hears = |rails: &u8| rails & !gone != 0;
        for place in 0..self.peers.len() {
            let node = self.peers.get(place).map(Peer::node);
            if node.is_some_and(|node| !self.members.get(&node).is_some_and(hears)) {
                self.peers[place].channel.notify(notice);
                self.peers[place].wake();
            }
        }
    }

    /// The peer in a place does not answer on one of its rails, though it does on another. Where a second one does not
    /// either, it is this node's own rail: all who are reached over that are asked at once.
    pub(super) fn judge(&mut self, place: usize, rail: RailId) {
        let (now, peer) = (self.now, self.peers[place].node());
        let is_silent = |other: usize| {
            let other = self.peers.get(other).filter(|other| other.node() != peer);
            other.is_some_and(|other| other.channel.is_silent_on(rail))
        };
        let is_own = self.peers[place].channel.is_silent_on(rail) && (0..self.peers.len()).any(is_silent);
        if is_own {
            for other in 0..self.peers.len() {
                if self.peers.get(other).is_some() {
                    self.peers[other].channel.doubt(now, Some(rail), None, false);
                    self.peers[other].wake();
                }
            }
        }
        // Also of a peer's: one that answers and does not, in turns, would have everybody told all the time.
        let said = if is_own { &mut self.silent } else { &mut self.peers[place].silent };
        if said[rail.index()].is_some_and(|since| now.since(since) < SAID_AGAIN) {
            return;
        }
        said[rail.index()] = Some(now);
        let node = if is_own { self.config.identity.id() } else { peer };
        let notice = Notice { node, rail, cause: NoticeCause::Silence };
        // The agent has a manager to tell, too, if the node belongs to a fabric.
        if !self.members.is_empty() || self.peers.is_member() {
            self.events.push_back(CardEvent::Notice(notice));
        }
        self.tell_others(notice);
    }

    /// A member of the node's group has told all of them that a rail seems to have failed. Which of them, nothing
    /// proves.
    pub fn heed_member(&mut self, now: Instant, notice: Notice) {
        let is_own = notice.node == self.config.identity.id();
        let mut is_known = false;
        for place in 0..self.peers.len() {
            if self.peers.get(place).is_some_and(|peer| is_own || peer.node() == notice.node) {
                let (own, peer) = if is_own { (Some(notice.rail), None) } else { (None, Some(notice.rail)) };
                self.peer_step(now, place, |it, _| it.channel.doubt(now, own, peer, false));
                is_known = true;
            }
        }
        if is_known {
            self.events.push_back(CardEvent::Doubted(notice));
        }
    }

    /// The peer in a place says that a rail seems to have failed: its own, or one of a node that both know, which is
    /// asked; or one of this node, of which it can only know that the two do not hear each other there.
    pub(super) fn heed(&mut self, place: usize, notice: Notice) {
        let (now, rail) = (self.now, Some(notice.rail));
        if notice.node == self.config.identity.id() {
            self.peers[place].channel.doubt(now, rail, None, false);
            self.peers[place].wake();
            return self.events.push_back(CardEvent::Doubted(notice));
        }
        let mut is_known = false;
        for other in 0..self.peers.len() {
            if self.peers.get(other).is_some_and(|peer| peer.node() == notice.node) {
                let is_its_own = other == place && notice.cause == NoticeCause::Carrier;
                self.peers[other].channel.doubt(now, None, rail, is_its_own);
                self.peers[other].wake();
                is_known = true;
            }
        }
        if is_known {
            self.events.push_back(CardEvent::Doubted(notice));
        }
    }
}
