//! Rails that come to a node that runs, and leave it. The next card finds them in its plan; the present one is told.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::{NodeId, RailId};
use node::{Address, CardConfig, MAX_RAILS, Notice, NoticeCause, RailConfig};

use super::lenders::Lenders;
use super::{Agent, LoanEnd, LoanSpec, Rail};
use crate::event::Event;
use crate::messages::{ToCard, ToRail};
use crate::plan::RailPlan;

/// What a card is told of these rails, by id.
pub(super) fn configs(rails: &[Rail]) -> node::Rails {
    RailId::ALL.map(|id| rails.iter().find(|rail| rail.id == id).map(config))
}

/// Frames may be as large as the socket takes. What a way to a lender takes is in its routes, and the borrower says it.
fn config(rail: &Rail) -> RailConfig {
    RailConfig { max_frame: rail.socket.largest_frame() }
}

/// What a card is told of the socket.
pub(super) fn plan(rail: &Rail) -> RailPlan {
    RailPlan { offload: rail.socket.features().gso, gateway: rail.gateway }
}

impl Agent {
    /// Whether what this rail carries is less than what the node's own rails carry, which others were promised.
    pub fn is_too_small(&self, rail: &Rail) -> bool {
        let present = self.spec.rails.iter().map(|rail| rail.socket.largest_frame());
        CardConfig::max_payload([rail.socket.largest_frame()]) < CardConfig::max_payload(present)
    }

    /// A borrowed function whose lender would be reached over this rail by smaller frames than those that the two nodes
    /// have agreed on.
    pub fn too_small_for(&self, rail: RailId) -> Option<&str> {
        let mut lenders = Lenders::of(&self.spec.loans, &self.spec.rails);
        let has = |id: RailId| self.spec.rails.iter().any(|rail| rail.id == id);
        for loan in &self.spec.loans {
            let LoanEnd::Borrow { peers, .. } = &loan.config.role else { continue };
            let routes = lenders.routes(peers);
            let Some(new) = routes.iter().find(|route| route.rail == rail) else { continue };
            let present = routes.iter().filter(|route| has(route.rail)).map(|route| route.max_frame);
            if CardConfig::max_payload([new.max_frame]) < CardConfig::max_payload(present) {
                return Some(&loan.function);
            }
        }
        None
    }

    /// These rails come, and those of these ids go: what was under way there is sent again over others.
    ///
    /// # Panics
    /// If one comes that is there, or none would be left.
    pub fn change_rails(&mut self, come: Vec<Rail>, go: &[RailId]) {
        let stays = |rail: &&Rail| !go.contains(&rail.id);
        let ids: Vec<RailId> =
            self.spec.rails.iter().filter(stays).chain(&come).map(|rail| rail.id).collect();
        let is_twice = ids.iter().enumerate().any(|(at, id)| ids[..at].contains(id));
        assert!(!is_twice && !ids.is_empty(), "each rail has an id of its own, and one is left");
        // Those that come are there before any goes. One that goes may have the id of one that comes.
        let gone: Vec<RailId> =
            go.iter().filter(|id| !come.iter().any(|rail| rail.id == **id)).copied().collect();
        let mut said = Vec::new();
        for rail in come {
            let what = ToRail::Come { config: config(&rail), plan: plan(&rail) };
            said.push(ToCard::Rail(rail.id, what));
            self.spec.rails.retain(|it| it.id != rail.id);
            // Another one of this id had its own faults.
            self.shared().impairments[rail.id.index()].set_all(0);
            self.shared().impairments[rail.id.index()].cut(false, false);
            self.spec.rails.push(rail);
        }
        self.spec.rails.retain(|rail| !gone.contains(&rail.id));
        self.spec.rails.sort_by_key(|rail| rail.id);
        said.extend(gone.into_iter().map(|id| ToCard::Rail(id, ToRail::Go)));
        said.into_iter().for_each(|message| self.tell(message));
        self.look_at_carriers();
    }

    /// Whether the interface of this rail has a carrier, as far as the system has told.
    pub fn has_carrier(&self, rail: RailId) -> bool {
        self.carriers.lost() >> rail.index() & 1 == 0
    }

    /// Rails that seem to have failed, as this node has found out since this was asked last: all who hear notices to
    /// all are to be told, and the fabric's manager.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The card has heard of another node that a rail seems to have failed.
    pub(super) fn note_doubt(&mut self, notice: Notice) {
        let (rail, peer) = (notice.rail.get(), notice.node.to_string());
        let cause = match notice.cause {
            NoticeCause::Silence => "it is silent",
            NoticeCause::Carrier => "it has no carrier",
        };
        self.doubted.say(|others| Event::RailDoubted { rail, peer, cause, others }.say());
    }

    /// Nodes say that they are at these addresses today, by rail: those that this one borrows from are called there,
    /// too, when they do not answer where they were, for as long as that is said.
    pub fn hear_of(&mut self, at: impl FnMut(NodeId) -> Option<[Option<Address>; MAX_RAILS]>) {
        let lenders: BTreeSet<NodeId> = self.spec.loans.iter().filter_map(LoanSpec::lender).collect();
        let news = self.lenders_at.follow(&lenders, at);
        if let Some(card) = &mut self.card {
            news.into_iter().for_each(|(node, at)| card.outbox.push(ToCard::Heard(node, at)));
        }
        self.tell_card();
    }

    /// These nodes hear notices to all now, each on these rails of this one, as bits.
    pub fn set_members(&mut self, members: BTreeMap<NodeId, u8>) {
        let before = std::mem::replace(&mut self.members, members);
        if let Some(card) = &mut self.card {
            let gone = before.keys().filter(|node| !self.members.contains_key(node)).map(|node| (node, &0));
            let news = self.members.iter().filter(|(node, rails)| before.get(node) != Some(rails));
            gone.chain(news).for_each(|(node, rails)| card.outbox.push(ToCard::Member(*node, *rails)));
        }
        self.tell_card();
    }

    /// A node that hears notices to all has sent one. What the card has to be told before is more urgent, and one that
    /// is lost costs time only.
    pub fn heed(&mut self, notice: Notice) {
        if let Some(card) = self.card.as_mut().filter(|card| card.outbox.is_empty()) {
            card.outbox.push(ToCard::Notice(notice));
            self.tell_card();
        }
    }

    /// Finds out which rails have a carrier, and tells the card what has changed.
    pub(super) fn look_at_carriers(&mut self) {
        let before = self.carriers.lost();
        if self.carriers.look(&self.spec.rails) {
            let lost = self.carriers.lost();
            let (node, cause) = (self.spec.identity.id(), NoticeCause::Carrier);
            let news = RailId::ALL.into_iter().filter(|rail| lost & !before & 1 << rail.get() != 0);
            // The card does not have to tell those who hear this.
            self.notices.extend(news.map(|rail| Notice { node, rail, cause }));
            self.tell(ToCard::Carriers(lost));
        }
    }
}
