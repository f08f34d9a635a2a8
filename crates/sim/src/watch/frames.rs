//! What the checkers see of frames: who sends them, where they go, and whether they have an effect only if they may.

use base::Instant;
use base::ids::{DomainId, LifeId, RailId};
use link::frame::{Header, Kind};
use link::pair::Channel;
use node::{Address, Card, Notice, NoticeCause};

use super::{Scene, Watch, stream_from};
use crate::checkers::freshness::{Origin, Peer};
use crate::checkers::names;
use crate::loans::Loan;
use crate::marks::Mark;
use crate::network::{Fate, Frame, Network};
use crate::nodes::Node;
use crate::spoof::Spoofer;
use crate::stage::{BORROWER, LENDER};

/// Nanoseconds after which a frame that arrives is late. That is more than any network here takes, and less than after
/// what time a card asks again.
const LATE: u64 = 1_000_000;

/// The place of the peer that a sealed frame of this card is for.
fn place_of(card: &Card<'_>, header: &Header) -> Option<usize> {
    let is_its = |place: &usize| {
        let peer = card.channel(*place).and_then(Channel::peer);
        peer.is_some_and(|(.., domain)| domain == header.destination.domain)
    };
    card.peers().map(|(place, _)| place).find(is_its).filter(|_| is_sealed(header))
}

fn is_sealed(header: &Header) -> bool {
    matches!(header.kind, Kind::Sealed | Kind::Shm)
}

/// The node in a domain.
fn node_in(domain: DomainId) -> usize {
    (domain.0 as usize).wrapping_sub(1)
}

/// What a card has of the peer in a place.
#[derive(Clone, Copy, Default)]
struct Reception {
    /// How many frames it has accepted, and from whom at last; nothing without a channel.
    accepted: Option<(u64, Option<Peer>)>,
    /// Which life of the peer it has met.
    life: Option<LifeId>,
    /// How many frames that had come before it has seen.
    repeats: Option<u64>,
    keys: Option<u64>,
}

impl Reception {
    fn of(node: &Node<'_>, place: usize) -> Self {
        let Some(channel) = node.card.as_ref().and_then(|card| card.channel(place)) else {
            return Self::default();
        };
        let newest = channel.peer().zip(channel.newest_peer());
        let newest = newest.map(|((peer, ..), (incarnation, card))| (peer, incarnation, card));
        Self {
            accepted: Some((channel.stats().received_frames.get(), newest)),
            life: channel.peer_life(),
            repeats: Some(channel.stats().dropped_replay.get()),
            keys: channel.key_fingerprint(),
        }
    }

    fn count(&self) -> u64 {
        self.accepted.map_or(0, |(count, _)| count)
    }

    /// If it has accepted one more since `before`: from whom at last, then and now. Whoever takes over from another
    /// life may have its incarnation, and fewer cards.
    fn newest_since(&self, before: &Self) -> Option<[Option<Peer>; 2]> {
        let ((_, then), (_, now)) = before.accepted.zip(self.accepted)?;
        let then = then.filter(|_| before.life == self.life);
        (self.count() > before.count()).then_some([then, now])
    }
}

/// What a card has of the sender before a frame comes.
pub(crate) struct Before {
    header: Option<Header>,
    place: usize,
    reception: Reception,
}

impl Before {
    /// Before a frame comes over the network.
    pub(crate) fn arrival(node: &Node<'_>, bytes: &[u8]) -> Self {
        let header = Header::parse(bytes).ok();
        let place = header.map_or(usize::MAX, |header| (header.channel.0 as usize).wrapping_sub(1));
        Self { header, place, reception: Reception::of(node, place) }
    }

    /// Before one comes through memory of the peer in `place`.
    pub(crate) fn in_memory(node: &Node<'_>, place: usize, header: Header) -> Self {
        Self { header: Some(header), place, reception: Reception::of(node, place) }
    }

    pub(crate) fn packet(&self) -> u64 {
        self.header.map_or(0, |header| header.packet_number)
    }
}

/// When the lender has sent the newest packet that a frame of another node acknowledges.
pub(crate) fn proof_in(node: &Node<'_>, loans: &[Loan<'_>], frame: &[u8]) -> Option<u64> {
    let header = Header::parse(frame).ok().filter(|header| header.kind == Kind::Sealed)?;
    let card = node.card.as_ref()?;
    let (generation, paths) = card.channel(place_of(card, &header)?)?.last_acked();
    let packets = paths.iter().map(|&(path, number)| (node.who().node, generation.0, path, number));
    // It knows the same of each loan.
    loans.first()?.take_over.newest(packets)
}

impl Watch<'_> {
    /// A frame leaves.
    pub(crate) fn frame_leaves(&mut self, scene: &mut Scene<'_, '_>, node: usize, frame: &[u8]) {
        let (now, this) = (scene.now, &scene.nodes[node]);
        scene.report.judge(names::COMMIT_BEFORE_SEND, this.check_commit());
        let Ok(header) = Header::parse(frame) else {
            return scene.report.fail(names::ASSERTION, "what leaves is no frame".into());
        };
        scene.report.log.event(now, Some(node), "tx", header.path().index() as u64, header.packet_number);
        let Some(card) = &this.card else { return };
        let place = place_of(card, &header);
        // Who is greeted has a channel, and who is asked a stream in it. What is for a rail without a proven address is
        // dropped before anybody sees it.
        for (loan, end) in self.ends[node].loans.iter_mut().enumerate() {
            if node != LENDER || (place.is_some() && card.peer_of(loan) == place) {
                let is_of_it = header.stream.0 != 0 && card.stream_id(loan) == Some(header.stream);
                let asks = is_of_it || (node == LENDER && this.known_rails(loan) != self.rails);
                end.liveness.sent(now, asks);
            }
        }
        if let Some(place) = place {
            self.check_sealed(scene, node, card, place, &header);
        } else if is_sealed(&header) {
            let what = format!("a frame is for nobody whom node {node} has met: {header:?}");
            scene.report.fail(names::ASSERTION, what);
        }
        if node == LENDER && header.kind == Kind::Sealed {
            let to = node_in(header.destination.domain);
            let packet = (to, header.card_generation.0, header.path(), header.packet_number);
            scene.loans.iter_mut().for_each(|lent| lent.take_over.sends(now, packet));
        }
    }

    /// What becomes of a frame of the network.
    pub(crate) fn frame_fares(&mut self, now: u64, frame: &Frame, fates: &[Fate]) {
        let nodes = self.ends.len();
        for fate in fates {
            let until = match fate {
                Fate::Lost => now,
                Fate::Arrives(after, it) if *after > LATE || it.origin == Origin::Forger => now + after,
                Fate::Arrives(..) => continue,
            };
            // What goes to whoever has repeated something may have been for any of the others.
            let meant = (0..nodes).filter(|node| frame.to == *node || frame.to >= nodes);
            meant.for_each(|to| self.verdicts.trouble(until, (frame.by.node, frame.rail), (to, frame.at)));
        }
    }

    /// A card tells others of a rail: that it does not answer is true.
    pub(crate) fn check_notice(&self, scene: &mut Scene<'_, '_>, node: usize, notice: Notice) {
        let Notice { node: whose, rail, cause: NoticeCause::Silence } = notice else { return };
        let (now, this) = (scene.now, &scene.nodes[node]);
        let Some(card) = &this.card else { return };
        let channels = card.peers().filter_map(|(place, _)| card.channel(place));
        let at = Instant::from_nanos(now);
        let ways = channels.flat_map(|it| RailId::ALL.map(|rail| it.rail_status(rail, at))).flatten();
        let round_trip = ways.filter_map(|(_, status)| status.round_trip).max().unwrap_or_default();
        let (round_trip, rail) = (round_trip.as_nanos() as u64, (node, rail.get()));
        let verdict = if whose == this.identity.id() {
            self.verdicts.says_of_own(now, round_trip, rail, scene.nodes.len())
        } else {
            let is_it = |other: &usize| scene.nodes[*other].identity.id() == whose;
            self.verdicts.says_of_peer(now, round_trip, rail, (0..scene.nodes.len()).filter(is_it))
        };
        scene.report.marks.set(Mark::RailSilent);
        scene.report.judge(names::RAILS, verdict);
    }

    /// A sealed frame leaves for the peer in `place`.
    fn check_sealed(
        &mut self,
        scene: &mut Scene<'_, '_>,
        node: usize,
        card: &Card<'_>,
        place: usize,
        header: &Header,
    ) {
        let Some(channel) = card.channel(place) else { return };
        if let Some(key) = channel.key_fingerprint() {
            scene.report.judge(names::NONCES, self.nonces.sent(key, header));
        }
        let (stream, first, count) = channel.last_carried();
        if count == 0 {
            return;
        }
        let loan = card.loans_with(place).find(|loan| card.stream_id(*loan) == Some(stream));
        let Some((loan, id)) = loan.and_then(|loan| Some((loan, stream_from(node, loan, card)?))) else {
            let what = format!("node {node} sends TLPs in stream {stream:?}, which no loan has");
            return scene.report.fail(names::REPLAY_BYTES, what);
        };
        if header.stream != stream {
            let what = format!("TLPs of stream {stream:?} are in a frame of stream {:?}", header.stream);
            scene.report.fail(names::REPLAY_BYTES, what);
        }
        let verdict = self.streams.transmitted(id, card.stream(loan), first, count.into());
        scene.report.judge(names::REPLAY_BYTES, verdict);
    }

    /// A sealed frame of the lender goes to this address, which is none that has proven nothing, or may get so much.
    pub(crate) fn check_address(&mut self, scene: &mut Scene<'_, '_>, to: Address, frame: &[u8]) {
        let card = scene.nodes[LENDER].card.as_ref();
        let header = Header::parse(frame).ok().filter(|header| header.kind == Kind::Sealed);
        let place = card.zip(header).and_then(|(card, header)| place_of(card, &header));
        let rail = Network::rail_of(to);
        if let Some(place) = place.filter(|_| to == Spoofer::address(rail)) {
            scene.report.judge(names::ADDRESSES, self.addresses.sends((place, rail), frame.len()));
        }
    }

    /// A card has had a frame: it had an effect only if it may.
    pub(crate) fn frame_came(&mut self, scene: &mut Scene<'_, '_>, frame: &Frame, before: &Before) {
        let (node, place, by) = (frame.to, before.place, frame.by);
        let (before, header) = (&before.reception, before.header);
        let sealed = header.filter(is_sealed);
        let after = Reception::of(&scene.nodes[node], place);
        let is_answer = header.is_some_and(|header| header.kind == Kind::Response);
        // A lender calls, too: it asks where the answer has come from.
        if node == LENDER && is_answer && after.keys != before.keys {
            self.note_accepted(scene, frame, place);
        }
        let Some(header) = sealed else { return };
        if node == LENDER && frame.origin == Origin::Peer && after.count() > before.count() {
            for lent in &mut *scene.loans {
                lent.owner.heard(by.node, frame.sent);
                lent.take_over.hears(by, frame.proof);
            }
            self.note_accepted(scene, frame, place);
        } else if node == LENDER
            && after.repeats > before.repeats
            && frame.from == Spoofer::address(frame.rail)
        {
            self.addresses.repeated((place, frame.rail), frame.bytes.len());
        }
        if let Some(newest) = after.newest_since(before) {
            // What it acknowledges, and what acknowledges it, seems to have been on its way for so long.
            for end in [node, by.node] {
                let ends = self.ends[end].loans.iter_mut();
                ends.for_each(|end| end.liveness.heard(scene.now, frame.rail, frame.first));
            }
            let source = scene.nodes[by.node].identity.id();
            let freshness = &mut self.ends[node].freshness;
            let verdict = freshness.accepted((frame.origin, source), &frame.bytes, &header, newest);
            scene.report.judge(names::FRESHNESS, verdict);
        }
        if let (Some((count, Some((_, incarnation, card)))), Some((count_after, _))) =
            (before.accepted, after.accepted)
        {
            let is_old = header.incarnation == incarnation && header.card_generation < card;
            scene.report.marks.set_if(Mark::OldGenerationRefused, is_old && count_after == count);
        }
    }

    /// The lender has accepted a frame: it counts for the address that it came from, and data go to none that has
    /// proven nothing.
    fn note_accepted(&mut self, scene: &mut Scene<'_, '_>, frame: &Frame, place: usize) {
        if frame.from == Spoofer::address(frame.rail) {
            self.addresses.accepted((place, frame.rail), frame.bytes.len());
            scene.report.marks.set(Mark::Spoofed);
        }
        let ledger = scene.nodes[LENDER].ledger();
        let Some(peer) = ledger.peer(place) else { return };
        if peer.addresses().any(|(_, address)| Spoofer::is_at(address)) {
            let what = format!("data for peer {place} go to an address that has answered nothing");
            scene.report.fail(names::ADDRESSES, what);
        }
    }

    /// A card has had a frame of the node that it shares memory with.
    pub(crate) fn frame_came_in_memory(
        &mut self,
        scene: &mut Scene<'_, '_>,
        node: usize,
        frame: &[u8],
        before: &Before,
    ) {
        let after = Reception::of(&scene.nodes[node], before.place);
        let newest = after.newest_since(&before.reception);
        let Some((header, newest)) = before.header.zip(newest) else { return };
        scene.report.marks.set(Mark::MemoryUsed);
        if node == LENDER {
            let by = scene.nodes[BORROWER].who();
            scene.loans.iter_mut().for_each(|lent| lent.take_over.hears(by, None));
        }
        // Only these two share memory.
        let source = scene.nodes[LENDER + BORROWER - node].identity.id();
        let freshness = &mut self.ends[node].freshness;
        let verdict = freshness.accepted((Origin::Peer, source), frame, &header, newest);
        scene.report.judge(names::FRESHNESS, verdict);
    }
}
