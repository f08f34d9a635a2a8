//! What a card shows to its agent now and then, and what it looks at on that occasion.

use base::Instant;
use base::ids::{Group, LifeId, NodeId};

use super::{Card, CardEvent};
use crate::gauges::ChannelGauges;
use crate::loan_table::{Asker, LoanSet};

impl Card<'_> {
    /// Renews the gauges of loans that have changed since, and what the others show of channels that have: those that
    /// do nothing cost nothing.
    pub(super) fn publish(&mut self, now: Instant) {
        // Of each channel once: it may carry many loans.
        let seen: Vec<_> = (0..self.peers.len())
            .map(|peer| self.guarded_peer(peer, |card| ChannelGauges::of(now, &card.peers[peer].channel)))
            .collect();
        let changed = self.changed_with_drives();
        for index in 0..self.loans.len() {
            let peer = self.loans.get(index).and_then(|loan| loan.peer());
            let channel = peer.and_then(|peer| seen.get(peer)?.as_ref());
            let is_shown = self.loans.get(index).is_none_or(|loan| loan.shows_its_state());
            if changed.has(index) || !is_shown {
                let publish = |card: &mut Self| Some(card.loans.peek_mut(index)?.publish(now, channel));
                if self.guarded(now, index, publish).flatten() == Some(true) {
                    self.loans.note_change(index);
                }
                self.loans.note_known(Asker::Gauges, index);
            } else if channel.is_some() && channel != peer.and_then(|peer| self.shown.get(peer)?.as_ref()) {
                self.loans.get(index).into_iter().for_each(|loan| loan.show(channel));
            }
        }
        self.shown = seen;
    }

    /// The loans that may have changed since they were asked for last. What functions of one drive show depends on each
    /// other.
    fn changed_with_drives(&self) -> LoanSet {
        let changed = self.loans.take_changed(Asker::Gauges);
        let has_changed = |loan: &usize| changed.has(*loan);
        let drives = self.drives.iter().flatten().filter(|drive| drive.loans().iter().any(has_changed));
        drives.flat_map(|drive| drive.loans()).for_each(|loan| changed.set(*loan, true));
        changed
    }

    /// Who has something of this node is called where it has proven to be, and the agent keeps where that is.
    pub(super) fn call_holders(&mut self, now: Instant) {
        if !self.loans.take_changed(Asker::Holders).is_empty() {
            let mut holders: Vec<_> = self.find_holders().collect();
            holders.sort_unstable();
            holders.dedup();
            self.holders = holders;
        }
        let located = self.peers.set_holders(now, self.ledger.journal, &self.holders);
        self.events.extend(located.into_iter().map(CardEvent::Located));
    }

    /// Which lives of which nodes have something of this one, in which group, as is durable.
    pub(super) fn find_holders(&self) -> impl Iterator<Item = (NodeId, Group, LifeId)> {
        let loans = self.config.loans.iter().enumerate();
        loans.filter_map(|(place, config)| {
            let (node, life) = self.loans.get(place)?.holder()?;
            Some((node, config.zone(), life))
        })
    }
}
