//! A node: its agent's side of a card's life, its state folder, and the card while one lives.

use std::collections::BTreeSet;

use base::ids::{Incarnation, LifeId, NodeId};
use base::ledger::{Arena, Journal, RawMemory};
use base::{Instant, RuleSet};
use node::agent::Agent;
use node::{Card, NodeKey, NodeLedger, Whereabouts};

use crate::checkers::Verdict;
use crate::checkers::single_owner::Life;
use crate::clock::Alarm;
use crate::death::Switch;
use crate::identity::life_id;

/// A node: an agent's side of it, and a card while one lives.
pub(crate) struct Node<'w> {
    index: usize,
    pub(crate) rules: RuleSet,
    pub(crate) memory: RawMemory<'w>,
    pub(crate) switch: &'w Switch<'w>,
    pub(crate) card: Option<Card<'w>>,
    pub(crate) identity: NodeKey,
    /// Counts its lives, whatever it calls them itself.
    pub(crate) life: u64,
    pub(crate) incarnation: u64,
    /// The last incarnation that its state folder knows of.
    pub(crate) folder: u64,
    /// Where those are who have something of it, as the folder has it.
    pub(crate) holders: Vec<Whereabouts>,
    /// What its agent decides.
    pub(crate) agent: Agent,
    /// When the agent is to be woken.
    pub(crate) agent_wake: Alarm,
    /// Cards started.
    pub(crate) cards: u64,
    /// Its program does not run: nobody starts a card.
    pub(crate) is_away: bool,
    /// By loan: that one is still to be given back.
    pub(crate) gives_back: Vec<bool>,
    /// When its card is to be woken.
    pub(crate) wake: Alarm,
}

impl<'w> Node<'w> {
    /// A node whose cards run on this memory.
    pub(crate) fn new(
        index: usize,
        memory: RawMemory<'w>,
        switch: &'w Switch<'w>,
        (rules, now): (RuleSet, Instant),
    ) -> Self {
        let identity = NodeKey::numbered(index as u64 + 1);
        NodeLedger::entitle(memory, identity.id());
        switch.set_memory(memory);
        Self {
            index,
            rules,
            memory,
            switch,
            card: None,
            identity,
            life: 1,
            incarnation: 1,
            folder: 1,
            holders: Vec::new(),
            agent: Agent::new(rules, now),
            agent_wake: Alarm::default(),
            cards: 0,
            is_away: false,
            gives_back: Vec::new(),
            wake: Alarm::default(),
        }
    }

    /// Its number, if it has a card, which is to be served then.
    pub(crate) fn with_card(&self) -> Option<usize> {
        self.card.as_ref().map(|_| self.index)
    }

    /// The generation of its card.
    pub(crate) fn generation(&self) -> u64 {
        self.agent.record().generation
    }

    /// Its present life.
    pub(crate) fn who(&self) -> Life {
        Life { node: self.index, number: self.life }
    }

    /// What it calls that.
    pub(crate) fn life_id(&self) -> LifeId {
        life_id(self.who())
    }

    /// Its ledger, as others than its card see it.
    pub(crate) fn ledger(&self) -> NodeLedger<'w> {
        NodeLedger::new(self.memory, None, self.rules)
    }

    /// The kernel's stores are never killed and never logged.
    pub(crate) fn kernel(&self) -> Journal<'w> {
        self.ledger().journal
    }

    /// Its agent has died, and with it the ledger: another one begins another life.
    pub(crate) fn begin_life(&mut self, arena: &'w Arena, now: Instant) {
        self.memory = arena.zeroed_bytes(self.memory.len());
        self.switch.set_memory(self.memory);
        self.life += 1;
        self.folder += 1;
        self.incarnation = self.folder;
        NodeLedger::entitle(self.memory, self.identity.id());
        self.agent = Agent::new(self.rules, now);
        self.agent_wake.stop();
    }

    /// Its folder has a greater incarnation than a lender has seen.
    pub(crate) fn raise_incarnation(&mut self, loan: usize, seen: u64) {
        if self.folder <= seen {
            self.folder = seen + 1;
        }
        self.agent.handle_incarnation_raised(loan, self.folder);
    }

    /// Its folder has who has something of it.
    pub(crate) fn keep_holder(&mut self, now: Instant, holder: Whereabouts) {
        self.holders.retain(|known| known.key != holder.key);
        self.holders.push(holder);
        self.agent.handle_holder_stored(now, holder.node(), Ok(()));
    }

    /// Nothing leaves before its commit.
    pub(crate) fn check_commit(&self) -> Verdict {
        match self.card.as_ref().map_or(0, Card::uncommitted) {
            0 => Ok(()),
            uncommitted => Err(format!("{uncommitted} words are changed and not committed")),
        }
    }

    /// On so many rails the peer of a loan has an address that has answered a challenge.
    pub(crate) fn known_rails(&self, loan: usize) -> usize {
        let ledger = self.ledger();
        let place = ledger.loan(loan, 0).and_then(|parts| parts.cells.peer());
        let peer = place.and_then(|place| ledger.peer(place));
        let Some(peer) = peer else { return 0 };
        let rails = peer.addresses().filter_map(|(path, _)| path.rails());
        rails.map(|(_, rail)| rail).collect::<BTreeSet<_>>().len()
    }

    /// As whom others meet it, who may have been asked to call it by a greater number.
    pub(crate) fn known_as(&self, loans: usize) -> (NodeId, Incarnation) {
        let least = (0..loans).map(|loan| self.agent.least_incarnation(loan)).max().unwrap_or_default();
        (self.identity.id(), Incarnation(self.incarnation.max(least)))
    }

    /// The place of another one among the peers of its card.
    pub(crate) fn place_of(&self, other: &Self) -> Option<usize> {
        let other = other.identity.public();
        let mut peers = self.card.as_ref()?.peers();
        peers.find(|(_, key)| *key == other).map(|(place, _)| place)
    }
}
