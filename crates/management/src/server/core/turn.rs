//! One turn: what has come is handled, then what the core says is done.

use std::time::Instant;

use base::ids::{BASE32, NodeId};
use link::Certificate;
use manager::entry::{Change, Entry};
use manager::model::{Block, Groups, Name, PublicKey};
use manager::report::{Event, Identity, Preset, PresetsId, Said};
use manager::{Effect, Progress, Reply, Ticket};

use super::{By, Core, Done, Message, Preparing, View, Wish};
use crate::authority::certificate::issued;
use crate::server::core::Answering;
use crate::server::events::left_out_text;
use crate::server::nodes::{Connection, check_about};
use crate::server::problem::Failure;
use crate::server::routes::node_name;
use crate::store::StoreError;
use crate::wire::{EVENTS_MAX, FromNode, ToNode};

/// What somebody is told who does not belong to the fabric.
const STRANGER: &str =
    "the node does not belong to the fabric, or does not any more: it joins with a new key";

/// Who a node is by its certificate; `None`: nobody could be that.
fn identity(certificate: &Certificate) -> Option<Identity> {
    Some(Identity {
        name: certificate.name.parse().ok()?,
        key: PublicKey(certificate.key.0),
        block: Block::new(certificate.base, certificate.domains)?,
        groups: Groups::new(certificate.groups.iter().copied())?,
        issued: issued(certificate),
    })
}

impl Core<'_> {
    /// Handles a message. What comes of it is done by [`Core::turn`].
    pub(super) fn handle(&mut self, message: Message) {
        match message {
            Message::Read(reading) => self.reading.push(reading),
            Message::Ask(wish, prepare, answer) => self.ask(wish, prepare, answer),
            Message::Refused(wish, why) => self.note(&wish, &why),
            Message::Connected(node, key, connection) => self.connected(node, key, connection),
            Message::Said(node, number, said, place) => {
                place.give_back();
                // Not one from a connection that another one has displaced.
                if self.nodes.is_current(node, number) {
                    self.said(node, said);
                }
            }
            Message::Closed(node, number) if self.nodes.is_current(node, number) => self.silence(node, None),
            // The end of all is looked at before.
            Message::Closed(..) | Message::End => {}
        }
    }

    /// Does all there is to do. When it ends, everything that is decided is durable.
    pub(super) fn turn(&mut self) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.manager.handle_timeout(now);
        for (node, many) in self.quotas.take_left_out(now.clock) {
            self.tell(node, "left-out", true, left_out_text(many));
        }
        self.act()?;
        if core::mem::take(&mut self.has_removed) {
            self.close_removed();
        }
        self.certify();
        self.act()?;
        self.nodes.retell(self.manager.state(), tokio::time::Instant::now());
        let reading = core::mem::take(&mut self.reading);
        let view = self.view();
        reading.into_iter().for_each(|reading| reading(Ok(&view)));
        if self.store.is_long() {
            self.snapshot()?;
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), StoreError> {
        while let Some(effect) = self.manager.poll_effect(self.clock.now()) {
            self.effect(effect)?;
        }
        Ok(())
    }

    fn view(&self) -> View<'_> {
        let (manager, nodes, disk, now) = (&self.manager, &self.nodes, &self.disk, self.clock.now().wall);
        View { manager, nodes, disk, now, rails_told: self.rails_told, store: self.store }
    }

    fn ask(&mut self, wish: Wish, prepare: Preparing, answer: Answering) {
        match prepare(&self.view()) {
            Ok(asked) => {
                self.next_ticket += 1;
                let ticket = Ticket(self.next_ticket);
                self.waiting.insert(ticket, (wish, answer));
                self.manager.handle_command(self.clock.now(), ticket, &asked);
            }
            Err(failure) => {
                self.note_failure(&wish, &failure);
                // Whoever has gone hears nothing.
                drop(answer.send(Err(failure)));
            }
        }
    }

    fn note_failure(&mut self, wish: &Wish, failure: &Failure) {
        if failure.is_noted() {
            self.note(wish, failure.detail());
        }
    }

    /// The log says who was refused what, if that is somebody who is known.
    fn note(&mut self, wish: &Wish, why: &str) {
        let Some(who) = wish.who(self.manager.state()) else { return };
        let is_new = self.manager.handle_note(self.clock.now(), who, &wish.what, &format!("refused: {why}"));
        if let (By::Key(node), true) = (wish.by, is_new) {
            self.tell(node, "refused", true, why.to_owned());
        }
    }

    fn connected(&mut self, node: NodeId, key: PublicKey, connection: Connection) {
        // It may have been removed since its key was looked up.
        let known = self.manager.state().node(node);
        let belongs = match known {
            Some(it) => it.is_joined() && it.key == key,
            None => connection.certificate.is_some(),
        };
        if let Some(trouble) = connection.clock.clone() {
            self.tell(node, "clock", true, trouble);
        }
        if let Some(text) = self.nodes.connect(node, connection).map(str::to_owned) {
            self.tell(node, "rival", true, text);
        }
        if belongs {
            self.manager.handle_reachable(node);
        } else {
            self.nodes.disconnect(node, Some(STRANGER));
        }
    }

    fn said(&mut self, node: NodeId, said: FromNode) {
        match said {
            FromNode::Report(mut report) => {
                if let Said::Inventory { identity: said, .. } = &mut report.said {
                    let certified = self.nodes.certificate(node).and_then(identity);
                    said.issued = certified.as_ref().map(|it| it.issued).unwrap_or_default();
                    // Who is not known is what its certificate says, whatever it says itself.
                    if let Some(certified) = certified.filter(|_| self.manager.state().joined(node).is_none())
                    {
                        *said = certified;
                    }
                }
                self.manager.handle_report(self.clock.now(), node, &report);
            }
            FromNode::Events(events) if events.len() > EVENTS_MAX => {
                self.silence(node, Some("there are too many events in a message"));
            }
            FromNode::Events(events) => self.relay(node, events),
            FromNode::About(about) => {
                let known = self.manager.state().joined(node).map(|node| node.block);
                // One that is yet to be taken over says what it is like only once.
                let certified = || self.nodes.certificate(node).and_then(identity).map(|it| it.block);
                let Some(block) = known.or_else(certified) else { return };
                match check_about(&about, block) {
                    Ok(()) => self.nodes.hear_about(node, about),
                    Err(why) => {
                        self.tell(node, "refused", true, why.clone());
                        self.silence(node, Some(&why));
                    }
                }
            }
            FromNode::Hello { .. } => self.silence(node, Some("a node says hello once a connection")),
        }
    }

    fn relay(&mut self, node: NodeId, events: Vec<crate::wire::NodeEvent>) {
        let Some(name) = self.name(node) else { return };
        let now = self.clock.now().clock;
        for event in events {
            if self.quotas.admit(node, now) {
                self.events.relay(&name, event);
            }
        }
    }

    /// A node is not heard any more, or is not listened to.
    fn silence(&mut self, node: NodeId, why: Option<&str>) {
        self.nodes.disconnect(node, why);
        self.manager.handle_silent(node);
    }

    fn effect(&mut self, effect: Effect) -> Result<(), StoreError> {
        match effect {
            Effect::Append { first, entries } => self.append(first, &entries)?,
            Effect::Answer { ticket, reply } => {
                if let Some((wish, answer)) = self.waiting.remove(&ticket) {
                    let done = reply.map(|reply| self.done(reply)).map_err(Failure::from);
                    if let Err(failure) = &done {
                        self.note_failure(&wish, failure);
                    }
                    // Whoever has gone hears nothing.
                    let _ = answer.send(done);
                }
            }
            Effect::Greet { node, epoch } => {
                self.send(node, ToNode::Greet { epoch });
                self.nodes.certify_again(node);
            }
            Effect::Recall { node, epoch } => self.send(node, ToNode::Recall { epoch }),
            Effect::TellLender { node, epoch, orders } => self.send(node, ToNode::Lender { epoch, orders }),
            Effect::TellBorrower { node, id, presets } => self.tell_borrower(node, id, presets),
            Effect::TellMaker { node, epoch, list } => self.send(node, ToNode::Functions { epoch, list }),
            Effect::TellRails { nodes, rails } => {
                self.rails_told += rails.len() as u64;
                nodes.into_iter().for_each(|node| self.nodes.hint(node, ToNode::Rails(rails.clone())));
            }
            Effect::Event(event) => self.event(event),
        }
        Ok(())
    }

    fn append(&mut self, first: u64, entries: &[Entry]) -> Result<(), StoreError> {
        let begun = Instant::now();
        self.store.append(entries)?;
        self.disk.durable += begun.elapsed();
        self.disk.records += 1;
        self.disk.entries += entries.len() as u64;
        self.disk.log_bytes = self.store.log_len();
        if !self.has_begun {
            // The first entry of a core begins its epoch, and a restored one is one for good from then on.
            self.has_begun = true;
            self.store.has_begun()?;
        }
        let removes =
            |entry: &Entry| matches!(entry.change, Change::NodeRemoved { .. } | Change::NodeDisplaced { .. });
        self.has_removed |= entries.iter().any(removes);
        self.has_members |= entries.iter().any(|entry| {
            use Change::{GroupsSet, NodeAdopted, NodeDisplaced, NodeJoined, NodeRemoved};
            matches!(
                entry.change,
                NodeRemoved { .. }
                    | NodeDisplaced { .. }
                    | GroupsSet { .. }
                    | NodeJoined { .. }
                    | NodeAdopted { .. }
            )
        });
        self.manager.handle_durable(first + entries.len() as u64 - 1);
        Ok(())
    }

    fn done(&self, reply: Reply) -> Done {
        let waits_for = match reply.progress {
            Progress::Pending { lender, .. } => self.name(lender),
            Progress::Done | Progress::Overtaken => None,
        };
        Done { reply, waits_for }
    }

    fn send(&mut self, node: NodeId, message: ToNode) {
        if !self.nodes.send(node, message) {
            self.tell(
                node,
                "slow",
                true,
                "it does not take what it is told: its connection is closed".to_owned(),
            );
            self.manager.handle_silent(node);
        }
    }

    fn tell_borrower(&mut self, node: NodeId, id: PresetsId, presets: Vec<Preset>) {
        if !self.nodes.tell_borrower(self.manager.state(), node, id, presets) {
            self.manager.handle_silent(node);
        }
    }

    /// Tells nodes by what they show that they belong to the fabric, and who does not any more: all of them when that
    /// has changed, else those that were greeted, or have what they have for a day.
    fn certify(&mut self) {
        let (now, is_news) = (self.clock.now().wall, core::mem::take(&mut self.has_members));
        let due = self.nodes.to_be_certified(now, is_news);
        if due.is_empty() {
            return;
        }
        let state = self.manager.state();
        let revoked: Vec<NodeId> = state.nodes().filter(|node| !node.is_joined()).map(|it| it.id).collect();
        let mut refused = Vec::new();
        for node in due {
            let Some(of) = self.manager.state().joined(node) else { continue };
            match self.authority.certify(of, now) {
                Ok(certificate) => {
                    let certificate = BASE32.encode(&certificate);
                    self.send(node, ToNode::Member { certificate, revoked: revoked.clone() });
                    self.nodes.has_certificate(node, now);
                }
                Err(error) => refused.push((node, error.to_string())),
            }
        }
        for (node, why) in refused {
            // Not with each turn, but when the next one is due.
            self.nodes.has_certificate(node, now);
            self.note(&Wish { by: By::Key(node), what: "have another certificate".to_owned() }, &why);
        }
    }

    fn close_removed(&mut self) {
        let connected: Vec<NodeId> = self.nodes.connected().collect();
        for node in connected.into_iter().filter(|node| self.manager.state().joined(*node).is_none()) {
            self.nodes.forget(node, STRANGER);
        }
        let state = self.manager.state();
        self.quotas.retain(|node| state.joined(node).is_some());
    }

    fn snapshot(&mut self) -> Result<(), StoreError> {
        match self.store.snapshot(self.manager.state()) {
            Err(error) if self.store.is_broken() => Err(error),
            Err(error) => {
                let text = format!("no snapshot could be made, so the log grows: {error}");
                self.events.tell(self.clock.now().wall, None, "snapshot", true, text);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Reachable(node) => self.tell(node, "reachable", false, "it is heard".to_owned()),
            Event::Silent(node) => {
                self.nodes.fell_silent(node, self.clock.now().wall);
                self.tell(node, "silent", true, "it is not heard any more".to_owned());
            }
            Event::Alarm { node, alarm } => self.tell(node, "alarm", true, alarm.to_string()),
            Event::RailDead { rail, by } => {
                let by: Vec<String> = by.into_iter().map(|it| node_name(self.manager.state(), it)).collect();
                let (number, why, by) = (rail.rail, rail.cause.text(), by.join(", "));
                let text =
                    format!("its rail {number} seems to be dead, since {why}, as {by} says: all use others");
                self.tell(rail.node, "rail-dead", true, text);
            }
            Event::RailBack { node, rail } => {
                self.tell(
                    node,
                    "rail-back",
                    false,
                    format!("nobody says any more that its rail {rail} is dead"),
                );
            }
        }
    }

    fn tell(&self, node: NodeId, name: &str, is_trouble: bool, text: String) {
        let called = self.name(node).or_else(|| node.to_string().parse().ok());
        self.events.tell(self.clock.now().wall, called.as_ref(), name, is_trouble, text);
    }

    fn name(&self, node: NodeId) -> Option<Name> {
        self.manager.state().node(node).map(|node| node.name.clone())
    }
}
