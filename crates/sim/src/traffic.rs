//! Frames on their way: from a card over the network, or through memory, to another one.

use base::Random;
use base::ids::RailId;
use link::frame::{Header, Kind};
use node::{Address, Card, Egress, Notice, NoticeCause};

use crate::chance::Chance;
use crate::checkers::freshness::Origin;
use crate::death::survive;
use crate::identity::Identity;
use crate::marks::Mark;
use crate::neighbours::Neighbours;
use crate::network::{Fate, Frame, Network};
use crate::siege::Siege;
use crate::spoof::Spoofer;
use crate::stage::{Event, LENDER, Stage};
use crate::watch::{Before, proof_in};

/// What carries frames, and who else sees and sends them.
pub(crate) struct Traffic {
    pub(crate) network: Network,
    /// In some worlds the nodes are on one machine.
    pub(crate) neighbours: Option<Neighbours>,
    /// In some worlds old first messages keep the borrower out.
    pub(crate) siege: Siege,
    /// In some, somebody repeats frames faster than the network.
    spoofer: Option<Spoofer>,
    /// Which nodes hear of a carrier that is lost, or believe that one is.
    carriers: Random,
    buffer: Vec<u8>,
}

impl Traffic {
    pub(crate) fn new(seed: u64, network: Network, neighbours: Option<Neighbours>) -> Self {
        let buffer = vec![0; link::frame::MAX_FRAME];
        let (spoofer, carriers) = (Spoofer::of(seed), Chance::Carriers.of(seed));
        Self { network, neighbours, siege: Siege::default(), spoofer, carriers, buffer }
    }

    /// Somebody repeats frames faster than the network.
    pub(crate) fn has_spoofer(&self) -> bool {
        self.spoofer.is_some()
    }

    /// A card sends what it has to send.
    pub(crate) fn transmit(&mut self, stage: &mut Stage<'_>, identity: &mut Option<Identity>, node: usize) {
        let mut buffer = core::mem::take(&mut self.buffer);
        while !stage.report.has_failed() && !stage.dies_here(node) {
            let now = stage.clock.instant();
            let Some(card) = stage.nodes[node].card.as_mut() else { break };
            match survive(|| card.poll_transmit(now, &mut buffer)) {
                Ok(Some(sent)) => {
                    self.send(stage, identity, (node, sent.egress, sent.to), &buffer[..sent.len]);
                }
                Ok(None) => break,
                Err(end) => {
                    stage.end_card(node, end);
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    fn send(
        &mut self,
        stage: &mut Stage<'_>,
        identity: &mut Option<Identity>,
        (node, egress, to): (usize, Egress, Option<Address>),
        bytes: &[u8],
    ) {
        let (watch, mut scene) = stage.scene();
        watch.frame_leaves(&mut scene, node, bytes);
        let (Egress::Rail(rail), Some(to)) = (egress, to) else {
            return self.write_memory(stage, node, bytes);
        };
        let rail = rail.get();
        if node == LENDER {
            if Header::parse(bytes).is_ok_and(|header| header.kind == Kind::Response) {
                self.siege.answer_leaves(stage, to);
                identity.iter_mut().for_each(|identity| identity.check_refusal(stage, to, rail));
            }
            let (watch, mut scene) = stage.scene();
            watch.check_address(&mut scene, to, bytes);
        }
        let (this, now) = (&stage.nodes[node], stage.clock.now);
        let (at, from) = (Network::rail_of(to), Network::address(node, rail.into()));
        let to = (usize::from(to.0[0]).wrapping_sub(1), at);
        let proof = proof_in(this, &stage.loans, bytes).filter(|_| node != LENDER);
        let frame = Frame { proof, ..Frame::new(now, this.who(), to, (from, rail), bytes) };
        let mut fates = self.network.send(frame.clone());
        self.spoofer.iter_mut().for_each(|spoofer| spoofer.repeat(&frame, &mut fates));
        if let Some(identity) = identity {
            identity.delay_answer(&frame, &mut fates, &mut self.network, &mut stage.report.marks);
        }
        stage.watch.frame_fares(now, &frame, &fates);
        for fate in fates {
            match fate {
                Fate::Lost => stage.log(Some(node), "lost", rail.into(), 0),
                Fate::Arrives(after, frame) => stage.clock.after(after, Event::Arrival(frame)),
            }
        }
    }

    /// A frame arrives: it has an effect only if it may. Returns the node, if its card is to be served.
    pub(crate) fn arrive(stage: &mut Stage<'_>, frame: Frame) -> Option<usize> {
        let (node, at, from) = (frame.to, usize::from(frame.at), frame.from);
        let before = Before::arrival(&stage.nodes[node], &frame.bytes);
        stage.log(Some(node), "rx", frame.rail.into(), before.packet());
        let mut bytes = frame.bytes.clone();
        let hears = |card: &mut Card<'_>, now| card.handle_frame(now, RailId::ALL[at], from, &mut bytes);
        if stage.dies_here(node) || !stage.act(node, hears) {
            return None;
        }
        let (watch, mut scene) = stage.scene();
        watch.frame_came(&mut scene, &frame, &before);
        Some(node)
    }

    /// `node` has written a frame into memory.
    fn write_memory(&mut self, stage: &mut Stage<'_>, node: usize, bytes: &[u8]) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let (to, after) = neighbours.write(node, bytes);
        let (by, from) = (stage.nodes[node].who(), (Network::address(node, 0), 0));
        // Over a network it is a forgery, whenever.
        let frame = Frame::new(stage.clock.now, by, (to, 0), from, bytes);
        self.network.keep_foreign(node, Frame { origin: Origin::Forger, ..frame });
        stage.clock.after(after, Event::Memory(to));
    }

    /// Old frames are sent again, or false ones, as often as `dice` say.
    pub(crate) fn inject(&mut self, stage: &mut Stage<'_>, dice: &mut Random, forged: bool) {
        if !forged && self.siege.has_recorded() && dice.chance(200) {
            self.siege.repeat(stage, 2_000_000);
        }
        for _ in 0..dice.range(1, 12) {
            let frame = if forged { self.network.forge() } else { self.network.replay() };
            let Some(frame) = frame else { return };
            let after = dice.below(2_000_000);
            let what = if forged { "forged" } else { "old" };
            stage.log(None, what, frame.to as u64, after);
            stage.clock.after(after, Event::Arrival(frame));
        }
    }

    /// Rails go, for a while.
    pub(crate) fn cut(&mut self, stage: &mut Stage<'_>, (rails, lasts): (u64, u64)) {
        self.network.cut(rails);
        stage.log(None, "cut", rails, lasts);
        stage.report.marks.set_if(Mark::BothRailsCut, self.network.are_both_cut());
        stage.report.marks.set_if(Mark::OneWayCut, rails.count_ones() == 1);
        stage.clock.after(lasts, Event::Mend(rails));
        self.tell_of_carriers(stage);
    }

    pub(crate) fn mend(&mut self, stage: &mut Stage<'_>, rails: u64) {
        stage.log(None, "mend", rails, 0);
        self.network.mend(rails);
        self.tell_of_carriers(stage);
    }

    /// Nothing goes wrong from now on.
    pub(crate) fn calm(&mut self, stage: &mut Stage<'_>) {
        self.network.calm();
        (0..stage.nodes.len()).for_each(|node| stage.clock.after(0, Event::Carriers(node, 0)));
    }

    /// The system of a node may say which of its rails have no carrier, some time; and it may be wrong.
    fn tell_of_carriers(&mut self, stage: &mut Stage<'_>) {
        for node in 0..stage.nodes.len() {
            if !self.carriers.chance(500) {
                continue;
            }
            let is_wrong = self.carriers.chance(100);
            let lost = if is_wrong { self.carriers.below(4) as u8 } else { self.network.lost_carriers(node) };
            stage.clock.after(self.carriers.below(3_000_000), Event::Carriers(node, lost));
            let whose = self.carriers.below(stage.nodes.len() as u64) as usize;
            let rail = RailId::ALL[self.carriers.below(2) as usize];
            let notice = Notice { node: stage.nodes[whose].identity.id(), rail, cause: NoticeCause::Carrier };
            stage.clock.after(self.carriers.below(3_000_000), Event::Notice(node, notice));
        }
    }

    /// A node hears a notice to all, of which nothing is true but that somebody has the key.
    pub(crate) fn hear_of_rail(stage: &mut Stage<'_>, node: usize, notice: Notice) -> Option<usize> {
        stage.log(Some(node), "notice", notice.rail.get().into(), 0);
        stage.act(node, |card, now| card.heed_member(now, notice)).then_some(node)
    }

    /// A node hears it. Returns the node, if its card is to be served.
    pub(crate) fn hear_of_carriers(stage: &mut Stage<'_>, node: usize, lost: u8) -> Option<usize> {
        let lost = if stage.is_calm() { 0 } else { lost };
        stage.log(Some(node), "carriers", lost.into(), 0);
        stage.report.marks.set_if(Mark::CarrierLost, lost != 0);
        stage.act(node, |card, now| card.set_lost_carriers(now, lost)).then_some(node)
    }
}
