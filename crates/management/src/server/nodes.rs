//! What the manager knows of its nodes for now, beside the log: who is connected, and what each is like.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use base::ids::NodeId;
use link::Certificate;
use manager::model::{Block, WallTime};
use manager::report::{Preset, PresetsId};
use manager::state::State;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::rivals::Rivals;
use super::unproven::Source;
use crate::authority::certificate::RENEW;
use crate::wire::{About, PORTS_MAX, Placed, SWITCHES_MAX, ToNode};

/// Messages on their way to a node: one that takes so few of them has its connection closed, and comes again.
pub(super) const OUTBOX: usize = 64;
/// Between two times that borrowers are told of other addresses of their lenders.
const RETELL: Duration = Duration::from_secs(1);
/// Places of an outbox that are left to what cannot wait.
const OUTBOX_SPARE: usize = OUTBOX / 2;
/// Rails that a node may say it has, domains, and slots over all its domains.
const RAILS_MAX: usize = 16;
const DOMAINS_MAX: usize = 256;
const SLOTS_MAX: usize = 1024;
/// Bytes of a text that a node says of itself.
const TEXT_MAX: usize = 512;

/// A connection of a node.
#[derive(Debug)]
pub(super) struct Connection {
    /// Which one: a node that comes anew has another one.
    pub(super) number: u64,
    /// What is put in here it is told. Dropped, the connection is closed.
    pub(super) outbox: mpsc::Sender<ToNode>,
    /// Where it comes from, and since when.
    pub(super) from: Source,
    pub(super) since: Instant,
    /// The version of its program.
    pub(super) program: String,
    /// What is wrong with its clock.
    pub(super) clock: Option<String>,
    /// What proves that it belongs to the fabric, if the manager does not know that.
    pub(super) certificate: Option<Certificate>,
}

/// A node.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) connection: Option<Connection>,
    /// What it said last, also on a connection before.
    pub(super) about: About,
    /// It was greeted on its connection.
    is_greeted: bool,
    /// When it was told of its certificate; `None`: not since it was greeted.
    certified: Option<WallTime>,
    /// What it was told last of its slots.
    told: Option<(PresetsId, Vec<Preset>)>,
    /// When it was silent last.
    pub(super) silent_since: Option<WallTime>,
    /// What is known of connections that were displaced.
    pub(super) rivals: Rivals,
}

/// All that were heard since the manager has started.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    known: BTreeMap<NodeId, Known>,
    /// Borrowers that were told addresses which are others by now.
    outdated: BTreeSet<NodeId>,
    /// When borrowers were last told again.
    retold: Option<Instant>,
}

impl Nodes {
    pub(super) fn get(&self, node: NodeId) -> Option<&Known> {
        self.known.get(&node)
    }

    /// Whether a node has said what it is like since the manager was started.
    pub(super) fn has_heard(&self, node: NodeId) -> bool {
        self.known.get(&node).is_some_and(|known| known.about != About::default())
    }

    /// Whether this is the connection that the node has.
    pub(super) fn is_current(&self, node: NodeId, number: u64) -> bool {
        let connection = self.known.get(&node).and_then(|known| known.connection.as_ref());
        connection.is_some_and(|connection| connection.number == number)
    }

    /// A node has this connection from now on; one that it had is closed. Returns what people should hear of that.
    pub(super) fn connect(&mut self, node: NodeId, connection: Connection) -> Option<&str> {
        let known = self.known.entry(node).or_default();
        (known.told, known.is_greeted) = (None, false);
        let (from, since) = (connection.from, connection.since);
        let before = known.connection.replace(connection)?;
        refuse(&before.outbox, "the node has connected again");
        known.rivals.displaced(since, (before.from, before.since), from)
    }

    /// The connection is closed, without a word or with this one.
    pub(super) fn disconnect(&mut self, node: NodeId, why: Option<&str>) {
        let connection = self.known.get_mut(&node).and_then(|known| known.connection.take());
        if let (Some(connection), Some(why)) = (connection, why) {
            refuse(&connection.outbox, why);
        }
    }

    /// A node is not heard any more from now on.
    pub(super) fn fell_silent(&mut self, node: NodeId, now: WallTime) {
        if let Some(known) = self.known.get_mut(&node) {
            known.silent_since = Some(now);
        }
    }

    /// A node is not remembered any more.
    pub(super) fn forget(&mut self, node: NodeId, why: &str) {
        self.disconnect(node, Some(why));
        self.known.remove(&node);
    }

    /// All that were heard, with what they have said.
    pub(super) fn all(&self) -> impl Iterator<Item = (NodeId, &About)> {
        self.known.iter().map(|(node, known)| (*node, &known.about))
    }

    /// Those that are connected.
    pub(super) fn connected(&self) -> impl Iterator<Item = NodeId> {
        self.known.iter().filter(|(_, known)| known.connection.is_some()).map(|(node, _)| *node)
    }

    /// The certificate of a node that the manager does not know.
    pub(super) fn certificate(&self, node: NodeId) -> Option<&Certificate> {
        self.known.get(&node)?.connection.as_ref()?.certificate.as_ref()
    }

    /// A node was greeted: it is told of its certificate.
    pub(super) fn certify_again(&mut self, node: NodeId) {
        let known = self.known.entry(node).or_default();
        (known.is_greeted, known.certified) = (true, None);
    }

    /// A node was told of its certificate.
    pub(super) fn has_certificate(&mut self, node: NodeId, now: WallTime) {
        self.known.entry(node).or_default().certified = Some(now);
    }

    /// Connected nodes that are to be told of their certificates: all that were greeted, if there is news.
    pub(super) fn to_be_certified(&self, now: WallTime, is_news: bool) -> Vec<NodeId> {
        let renew = u64::try_from(RENEW.as_millis()).unwrap_or(u64::MAX);
        let is_old = |at: WallTime| now.0.abs_diff(at.0) >= renew;
        let is_due = |known: &Known| is_news || known.certified.is_none_or(is_old);
        let is_there = |known: &Known| known.connection.is_some() && known.is_greeted;
        let due = self.known.iter().filter(|(_, known)| is_there(known) && is_due(known));
        due.map(|(node, _)| *node).collect()
    }

    /// Puts a message on its way. `false`: the node takes none, and its connection is closed.
    pub(super) fn send(&mut self, node: NodeId, message: ToNode) -> bool {
        let Some(known) = self.known.get_mut(&node) else { return true };
        let Some(connection) = &known.connection else { return true };
        if connection.outbox.try_send(message).is_err() {
            known.connection = None;
            return false;
        }
        true
    }

    /// Tells a node something that it does without: where little room is left for what cannot wait, it is not told.
    pub(super) fn hint(&mut self, node: NodeId, message: ToNode) {
        let connection = self.known.get(&node).and_then(|known| known.connection.as_ref());
        if let Some(connection) = connection.filter(|it| it.outbox.capacity() >= OUTBOX_SPARE) {
            // It may have gone just now.
            let _ = connection.outbox.try_send(message);
        }
    }

    /// Tells a node what is in its slots. `false` as of [`Nodes::send`].
    pub(super) fn tell_borrower(
        &mut self,
        state: &State,
        node: NodeId,
        id: PresetsId,
        presets: Vec<Preset>,
    ) -> bool {
        self.outdated.remove(&node);
        let placed = presets.iter().filter_map(|preset| self.placed(state, preset)).collect();
        if let Some(known) = self.known.get_mut(&node) {
            known.told = Some((id, presets));
        }
        self.send(node, ToNode::Borrower { id, presets: placed })
    }

    /// A node says what it is like. If its addresses are others now, those who have functions of it are told once more
    /// what is in their slots: soon, see [`Nodes::retell`].
    pub(super) fn hear_about(&mut self, node: NodeId, about: About) {
        let Some(known) = self.known.get_mut(&node) else { return };
        let before = core::mem::replace(&mut known.about, about);
        if before.addresses == known.about.addresses {
            return;
        }
        let has = |presets: &[Preset]| presets.iter().any(|preset| preset.function.node == node);
        let told = self.known.iter().filter(|(_, known)| known.told.as_ref().is_some_and(|(_, it)| has(it)));
        self.outdated.extend(told.map(|(borrower, _)| *borrower));
    }

    /// When [`Nodes::retell`] has something to do.
    pub(super) fn retell_at(&self) -> Option<Instant> {
        (!self.outdated.is_empty()).then(|| self.retold.map_or_else(Instant::now, |at| at + RETELL))
    }

    /// Tells borrowers the addresses that their lenders have now, once in a while: however often a lender says others,
    /// and however little a borrower takes, that costs neither of them its connection.
    pub(super) fn retell(&mut self, state: &State, now: Instant) {
        if self.outdated.is_empty() || self.retold.is_some_and(|at| now < at + RETELL) {
            return;
        }
        self.retold = Some(now);
        for node in core::mem::take(&mut self.outdated) {
            let Some(known) = self.known.get(&node) else { continue };
            let (Some(connection), Some((id, presets))) = (&known.connection, known.told.clone()) else {
                // It is told when it has come.
                continue;
            };
            if connection.outbox.capacity() >= OUTBOX_SPARE {
                self.tell_borrower(state, node, id, presets);
            } else {
                self.outdated.insert(node);
            }
        }
    }

    fn placed(&self, state: &State, preset: &Preset) -> Option<Placed> {
        let lender = state.joined(preset.function.node)?;
        let function = state.function(preset.function)?;
        let addresses = self.known.get(&lender.id).map(|known| known.about.addresses.clone());
        Some(Placed {
            preset: *preset,
            function: function.name.clone(),
            lender: lender.name.clone(),
            domain: base::ids::DomainId(lender.block.base()),
            addresses: addresses.unwrap_or_default(),
        })
    }
}

fn refuse(outbox: &mpsc::Sender<ToNode>, why: &str) {
    // One that takes nothing is closed without a word.
    let _ = outbox.try_send(ToNode::Refused { why: why.to_owned() });
}

/// Why nobody takes what a node says of itself, if so.
pub(super) fn check_about(about: &About, block: Block) -> Result<(), String> {
    let slots: usize = about.domains.iter().map(|domain| domain.slots.len()).sum();
    let ports = about.switches.iter().map(|switch| switch.ports.len()).max().unwrap_or(0);
    let on = about.switches.iter().map(|switch| switch.rails.len()).max().unwrap_or(0);
    if about.switches.len() > SWITCHES_MAX || ports > PORTS_MAX || on > RAILS_MAX {
        return Err(format!("a node hears {SWITCHES_MAX} switches, of {PORTS_MAX} ports each, at most"));
    }
    if about.rails.len() > RAILS_MAX || about.domains.len() > DOMAINS_MAX || slots > SLOTS_MAX {
        return Err(format!(
            "a node has {RAILS_MAX} rails, {DOMAINS_MAX} domains, {SLOTS_MAX} slots at most"
        ));
    }
    let rails = about.rails.iter().flat_map(|rail| [&rail.name, &rail.medium, &rail.address]);
    let slots = about.domains.iter().flat_map(|domain| &domain.slots);
    let slots = slots.flat_map(|slot| [Some(&slot.state), slot.trouble.as_ref()]).flatten();
    let switches = about.switches.iter();
    let switches = switches.flat_map(|it| it.rails.iter().chain(&it.ports).chain([&it.name]));
    if rails.chain(slots).chain(switches).chain([&about.addresses]).any(|text| text.len() > TEXT_MAX) {
        return Err(format!("a text about a node has {TEXT_MAX} bytes at most"));
    }
    match about.domains.iter().find(|domain| !block.contains(domain.domain)) {
        Some(domain) => Err(format!("domain {} (`{}`) is not the node's", domain.domain, domain.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use manager::model::{FabricId, OnSilence};

    use super::*;

    const LENDER: NodeId = NodeId([1; NodeId::BYTES]);
    const BORROWER: NodeId = NodeId([2; NodeId::BYTES]);

    fn connection(number: u64) -> (Connection, mpsc::Receiver<ToNode>) {
        let (outbox, inbox) = mpsc::channel(OUTBOX);
        let from = Source::of(core::net::Ipv4Addr::LOCALHOST.into());
        let (program, since) = (String::new(), Instant::now());
        (Connection { number, outbox, from, since, program, clock: None, certificate: None }, inbox)
    }

    fn preset() -> Preset {
        let function = manager::model::FunctionKey { node: LENDER, number: 0 };
        let group = base::ids::Group::DEFAULT;
        let (generation, lender) = (base::ids::LoanGeneration(1), manager::model::PublicKey::default());
        let place = manager::model::Place { domain: base::ids::DomainId(1), slot: 0 };
        Preset { place, function, lender, generation, group, on_silence: OnSilence::default() }
    }

    fn about(address: usize) -> About {
        About { addresses: address.to_string(), ..About::default() }
    }

    #[test]
    fn hints_leave_room_for_what_cannot_wait() {
        let mut nodes = Nodes::default();
        let (desk, mut told) = connection(1);
        nodes.connect(BORROWER, desk);
        (0..2 * OUTBOX).for_each(|_| nodes.hint(BORROWER, ToNode::Rails(Vec::new())));
        assert!(nodes.send(BORROWER, ToNode::Greet { epoch: 1 }), "there is room for what cannot wait");
        let all: Vec<ToNode> = core::iter::from_fn(|| told.try_recv().ok()).collect();
        assert!(all.len() > OUTBOX_SPARE && all.len() < OUTBOX, "{}", all.len());
        nodes.hint(BORROWER, ToNode::Rails(Vec::new()));
        assert_eq!(told.try_recv(), Ok(ToNode::Rails(Vec::new())));
    }

    #[test]
    fn a_lender_that_moves_without_pause_costs_nobody_a_connection() {
        let (state, mut nodes) = (State::new(FabricId([0; 16])), Nodes::default());
        let ((lender, _lender), (borrower, mut told)) = (connection(1), connection(2));
        nodes.connect(LENDER, lender);
        nodes.connect(BORROWER, borrower);
        let id = PresetsId { epoch: 1, index: 1 };
        assert!(nodes.tell_borrower(&state, BORROWER, id, vec![preset()]));
        assert!(told.try_recv().is_ok());
        let begun = Instant::now();
        for address in 0..10 * OUTBOX {
            nodes.hear_about(LENDER, about(address));
            nodes.retell(&state, begun);
        }
        assert!(nodes.is_current(BORROWER, 2), "it is still connected");
        assert!(told.try_recv().is_ok(), "it hears the first one at once");
        assert!(told.try_recv().is_err(), "and the others not at once");
        assert_eq!(nodes.retell_at(), Some(begun + RETELL));
        nodes.retell(&state, begun + RETELL);
        assert!(told.try_recv().is_ok() && told.try_recv().is_err(), "then once, of all the rest");
        assert_eq!(nodes.retell_at(), None);
        // One that takes nothing is told when there is room, and nothing of this fills its outbox.
        for round in 2..2 + 2 * OUTBOX as u32 {
            nodes.hear_about(LENDER, about(1000 + round as usize));
            nodes.retell(&state, begun + round * RETELL);
        }
        assert!(nodes.is_current(BORROWER, 2), "it is still connected");
        assert!(nodes.retell_at().is_some());
        assert!(nodes.send(BORROWER, ToNode::Greet { epoch: 1 }), "there is room for what cannot wait");
    }
}
