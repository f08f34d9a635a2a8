//! Where the checkers look: after each step, at each frame, before each event, and in the end.

use std::collections::BTreeSet;

use base::ids::{DomainId, RailId};
use link::State;
use link::frame::{Header, Kind};
use link::pair::Channel;
use node::{Address, Card, LoanParts, MediaWork, NodeLedger};

use crate::checkers::freshness::{Origin, Peer};
use crate::checkers::names;
use crate::checkers::single_owner::{Change, Life};
use crate::checkers::streams::{StreamId, committed_truly, granted_truly};
use crate::disk::author;
use crate::marks::Mark;
use crate::network::Frame;
use crate::world::{BORROWER, LENDER, World};

/// The place of the peer that a sealed frame of this card is for.
fn place_of(card: &Card<'_>, header: &Header) -> Option<usize> {
    let is_its = |place: &usize| {
        let peer = card.channel(*place).and_then(Channel::peer);
        peer.is_some_and(|(.., domain)| domain == header.destination.domain)
    };
    let is_sealed = matches!(header.kind, Kind::Sealed | Kind::Shm);
    card.peers().map(|(place, _)| place).find(is_its).filter(|_| is_sealed)
}

/// The node in a domain.
fn node_in(domain: DomainId) -> usize {
    (domain.0 as usize).wrapping_sub(1)
}

impl<'w> World<'w> {
    /// The life that a card of `node` has met, as far as the streams between the two have been seen at both ends.
    pub(crate) fn peer_of(&self, node: usize, loan: usize, card: &Card<'_>) -> Option<Life> {
        let meeting = self.meetings.get(&card.stream(loan).name()?)?;
        meeting[usize::from(node == LENDER)]
    }

    /// The stream that `node` sends.
    fn stream_from(&self, node: usize, loan: usize, card: &Card<'_>) -> Option<StreamId> {
        Some(StreamId { loan, is_lenders: node == LENDER, name: card.stream(loan).name()? })
    }

    /// The stream that `node` receives.
    pub(crate) fn stream_to(&self, node: usize, loan: usize, card: &Card<'_>) -> Option<StreamId> {
        Some(StreamId { is_lenders: node != LENDER, ..self.stream_from(node, loan, card)? })
    }

    /// After each step of a card.
    pub(crate) fn check_step(&mut self, node: usize) {
        let Some(card) = self.nodes[node].card.take() else { return };
        for loan in 0..self.loans.len() {
            self.check_streams(node, loan, &card);
        }
        for loan in 0..self.loans.len() {
            if node != LENDER {
                self.watch_driver(node, loan, &card);
            }
        }
        self.nodes[node].card = Some(card);
        for loan in 0..self.loans.len() {
            self.check_beliefs(loan);
            self.check_strays(node, loan);
        }
        if self.nodes[node].switch.take_mismatch().is_some() {
            self.fail(names::ROLL_BACK, "a roll-back where there was none".into());
        }
    }

    /// What a borrower's driver begins, and has done: the model has to know.
    fn watch_driver(&mut self, node: usize, loan: usize, card: &Card<'_>) {
        let is_ready = card.borrowed(loan).is_some_and(|drive| drive.driver.is_ready());
        let to_present = self.peer_of(node, loan, card) == Some(self.life_of(LENDER));
        if let Some(drive) = card.borrowed(loan) {
            let stream = self.stream_to(node, loan, card);
            let begun = drive.driver.counters().resets.get();
            self.nodes[node].outrun[loan].driver(begun, drive.driver.state(), stream);
        }
        let was_ready = core::mem::replace(&mut self.nodes[node].was_ready[loan], is_ready);
        if let Some(drive) = card.borrowed(loan).filter(|_| self.media.is_some()) {
            self.watch_losses(loan, drive.driver.counters().lost.get());
        }
        let lent = &mut self.loans[loan];
        if lent.holder.is_some_and(|holder| holder != node) {
            return;
        }
        if was_ready && !is_ready {
            lent.shared.tick += 1;
            lent.shared.model.begins_anew(lent.shared.tick);
            self.log.note(format_args!("the driver begins anew"));
        }
        if is_ready && to_present && lent.shared.model.is_mending() {
            lent.shared.model.mended();
            self.log.note(format_args!("the driver has written everything again"));
        }
    }

    fn check_streams(&mut self, node: usize, loan: usize, card: &Card<'_>) {
        let flow = card.stream(loan);
        let accepted = flow.receiver().take_accepted();
        let (Some(from), Some(to)) = (self.stream_from(node, loan, card), self.stream_to(node, loan, card))
        else {
            return;
        };
        self.nodes[node].outrun[loan].accepted(to, self.streams.queued(to, &accepted));
        let me = self.life_of(node);
        self.meetings.entry(from.name).or_default()[usize::from(node != LENDER)] = Some(me);
        let verdict = self.streams.accepted(to, &accepted);
        self.judge(names::EXACTLY_ONCE, verdict);
        let verdict = self.streams.committed(from, flow);
        self.judge(names::COMMITTED, verdict);
        let verdict = self.streams.numbered(from, flow);
        self.judge(names::EXACTLY_ONCE, verdict);
        let verdict = self.streams.credits(from, flow);
        self.judge(names::CREDITS, verdict);
        let verdict = self.ordering.check(from, flow);
        self.judge(names::ORDERING, verdict);
        let blocked = flow.state() == State::Open && flow.port.sender.is_blocked();
        self.marks.set_if(Mark::Blocked, blocked);
        self.marks.set_if(Mark::ReorderBuffer, flow.receiver().has_ahead());
    }

    /// What the ends of a loan believe of each other, while both live and mean the same streams.
    fn check_beliefs(&mut self, loan: usize) {
        for borrower in BORROWER..self.nodes.len() {
            self.check_beliefs_of(borrower, loan);
        }
    }

    fn check_beliefs_of(&mut self, borrower: usize, loan: usize) {
        let ends = [LENDER, borrower];
        let [Some(one), Some(other)] = ends.map(|node| self.nodes[node].card.as_ref()) else { return };
        let cards = [one, other];
        let verdicts = [0, 1].map(|end: usize| {
            let id = self.stream_from(ends[end], loan, cards[end]);
            let same = id.is_some() && id == self.stream_to(ends[1 - end], loan, cards[1 - end]);
            let (sender, receiver) = (cards[end].stream(loan), cards[1 - end].stream(loan));
            same.then(|| (committed_truly(sender, receiver), granted_truly(sender, receiver)))
        });
        if verdicts.iter().flatten().any(|v| v.0.is_err() || v.1.is_err()) {
            for (node, card) in ends.into_iter().zip(cards) {
                let (channel, flow) = (card.channel_of(loan), card.stream(loan));
                self.log.note(format_args!(
                    "{node} {loan} {:?} {:?} {:?} {} {}",
                    channel.and_then(Channel::newest_peer),
                    card.state(loan),
                    channel.and_then(Channel::key_fingerprint),
                    flow.port.sender.next(),
                    flow.receiver().expected()
                ));
            }
        }
        for (committed, granted) in verdicts.into_iter().flatten() {
            self.judge(names::COMMITTED, committed);
            self.judge(names::CREDITS, granted);
        }
    }

    /// A new card lives: what the old one has handed on is what the ledger says, and what is to be sent again is what
    /// was sent.
    pub(crate) fn check_recovery(&mut self, node: usize) {
        let Some(card) = self.nodes[node].card.take() else { return };
        for (id, accepted) in core::mem::take(&mut self.nodes[node].torn) {
            let expected = card.stream(id.loan).receiver().expected();
            if self.stream_to(node, id.loan, &card) == Some(id) {
                // What was rolled back comes again. But counters are not rolled back: it may have been denied already.
                self.nodes[node].outrun[id.loan].accepted(id, self.streams.queued(id, &accepted));
                let kept: Vec<_> = accepted.into_iter().filter(|&(number, _)| number < expected).collect();
                let verdict = self.streams.accepted(id, &kept);
                self.judge(names::EXACTLY_ONCE, verdict);
            }
        }
        for loan in 0..self.loans.len() {
            self.check_streams(node, loan, &card);
            let (Some(from), Some(to)) =
                (self.stream_from(node, loan, &card), self.stream_to(node, loan, &card))
            else {
                continue;
            };
            let flow = card.stream(loan);
            let verdict = self.streams.expects(to, flow.receiver().expected());
            self.judge(names::EXACTLY_ONCE, verdict);
            let sender = &flow.port.sender;
            let (first, count) = (sender.committed(), sender.next() - sender.committed());
            let verdict = self.streams.transmitted(from, flow, first, count);
            self.judge(names::REPLAY_BYTES, verdict);
        }
        self.nodes[node].card = Some(card);
    }

    /// Nothing leaves before its commit.
    pub(crate) fn check_commit(&mut self, node: usize) {
        let uncommitted = self.nodes[node].card.as_ref().map_or(0, Card::uncommitted);
        if uncommitted > 0 {
            self.fail(
                names::COMMIT_BEFORE_SEND,
                format!("{uncommitted} words are changed and not committed"),
            );
        }
    }

    /// A frame leaves.
    pub(crate) fn check_frame(&mut self, node: usize, frame: &[u8]) {
        self.check_commit(node);
        let Ok(header) = Header::parse(frame) else {
            return self.fail(names::ASSERTION, "what leaves is no frame".into());
        };
        self.log.event(self.now, Some(node), "tx", header.path().index() as u64, header.packet_number);
        let Some(card) = self.nodes[node].card.take() else { return };
        let place = place_of(&card, &header);
        // Who is greeted has a channel, and who is asked a stream in it. What is for a rail without a proven address is
        // dropped before anybody sees it.
        for loan in 0..self.loans.len() {
            if node != LENDER || (place.is_some() && card.peer_of(loan) == place) {
                let is_of_it = header.stream.0 != 0 && card.stream_id(loan) == Some(header.stream);
                let asks = is_of_it || (node == LENDER && !self.knows_all_rails(loan));
                self.nodes[node].liveness[loan].sent(self.now, asks);
            }
        }
        if let Some(place) = place {
            self.check_sealed(node, &card, place, &header);
        } else if matches!(header.kind, Kind::Sealed | Kind::Shm) {
            self.fail(
                names::ASSERTION,
                format!("a frame is for nobody whom node {node} has met: {header:?}"),
            );
        }
        self.nodes[node].card = Some(card);
        if node == LENDER && header.kind == Kind::Sealed {
            let to = node_in(header.destination.domain);
            let packet = (to, header.card_generation.0, header.path(), header.packet_number);
            self.loans.iter_mut().for_each(|lent| lent.take_over.sends(self.now, packet));
        }
    }

    /// A sealed frame leaves for the peer in `place`.
    fn check_sealed(&mut self, node: usize, card: &Card<'_>, place: usize, header: &Header) {
        let Some(channel) = card.channel(place) else { return };
        if let Some(key) = channel.key_fingerprint() {
            let verdict = self.nonces.sent(key, header);
            self.judge(names::NONCES, verdict);
        }
        let (stream, first, count) = channel.last_carried();
        if count == 0 {
            return;
        }
        let loan = card.loans_with(place).find(|loan| card.stream_id(*loan) == Some(stream));
        let Some((loan, id)) = loan.and_then(|loan| Some((loan, self.stream_from(node, loan, card)?))) else {
            let what = format!("node {node} sends TLPs in stream {stream:?}, which no loan has");
            return self.fail(names::REPLAY_BYTES, what);
        };
        if header.stream != stream {
            let what = format!("TLPs of stream {stream:?} are in a frame of stream {:?}", header.stream);
            self.fail(names::REPLAY_BYTES, what);
        }
        let verdict = self.streams.transmitted(id, card.stream(loan), first, count.into());
        self.judge(names::REPLAY_BYTES, verdict);
    }

    /// When the lender has sent the newest packet that a frame acknowledges.
    pub(crate) fn proof_in(&self, node: usize, frame: &[u8]) -> Option<u64> {
        let header =
            Header::parse(frame).ok().filter(|header| node != LENDER && header.kind == Kind::Sealed)?;
        let card = self.nodes[node].card.as_ref()?;
        let (generation, paths) = card.channel(place_of(card, &header)?)?.last_acked();
        let packets = paths.iter().map(|&(path, number)| (node, generation.0, path, number));
        // It knows the same of each loan.
        self.loans.first()?.take_over.newest(packets)
    }

    /// Where a frame of the lender goes.
    pub(crate) fn check_destination(&mut self, to: Address, rail: u8, frame: &[u8]) {
        let Ok(header) = Header::parse(frame) else { return };
        let card = self.nodes[LENDER].card.as_ref();
        let place = card.and_then(|card| place_of(card, &header));
        match (header.kind, place) {
            (Kind::Sealed, Some(place)) => self.check_address(to, place, frame.len()),
            (Kind::Response, _) => self.check_refusal(to, rail),
            _ => {}
        }
    }

    /// A frame arrives: it has an effect only if it may.
    pub(crate) fn arrive(&mut self, frame: Frame) {
        let Frame { to: node, rail, at, from, mut bytes, origin, first, sent, by, proof } = frame;
        let header = Header::parse(&bytes).ok();
        let place = header.map_or(usize::MAX, |header| (header.channel.0 as usize).wrapping_sub(1));
        let packet = header.map_or(0, |header| header.packet_number);
        self.log.event(self.now, Some(node), "rx", rail.into(), packet);
        let is_sealed = |header: &Header| matches!(header.kind, Kind::Sealed | Kind::Shm);
        let sealed = header.filter(is_sealed);
        let before = sealed.and_then(|_| self.reception(node, place));
        let repeats = sealed.and_then(|_| self.repeats(node, place));
        let answered = self.keys_with(node, place);
        let original = bytes.clone();
        if self.dies_here(node)
            || !self.act(node, |card, now| {
                card.handle_frame(now, RailId::ALL[usize::from(at)], from, &mut bytes);
            })
        {
            return;
        }
        // A lender calls, too: it asks where the answer has come from.
        if header.is_some_and(|header| header.kind == Kind::Response)
            && self.keys_with(node, place) != answered
            && node == LENDER
        {
            self.note_spoofed(place, rail, from, original.len());
        }
        let after = sealed.and_then(|_| self.reception(node, place));
        let count = |reception: Option<(u64, _)>| reception.map_or(0, |(count, _)| count);
        if node == LENDER && origin == Origin::Peer && count(after) > count(before) {
            for lent in &mut self.loans {
                lent.owner.heard(by.node, sent);
                lent.take_over.hears(by, proof);
            }
            self.note_spoofed(place, rail, from, original.len());
        } else if node == LENDER && sealed.and_then(|_| self.repeats(node, place)) > repeats {
            self.note_repeated(place, rail, from, original.len());
        }
        if let (Some(header), Some((count, newest)), Some((count_after, newest_after))) =
            (sealed, before, after)
            && count_after > count
        {
            // What it acknowledges, and what acknowledges it, seems to have been on its way for so long.
            for end in [node, by.node] {
                self.nodes[end].liveness.iter_mut().for_each(|loan| loan.heard(self.now, rail, first));
            }
            let source = self.nodes[by.node].identity.id();
            let freshness = &mut self.nodes[node].freshness;
            let verdict = freshness.accepted((origin, source), &original, &header, newest, newest_after);
            self.judge(names::FRESHNESS, verdict);
        }
        if let (Some(header), Some((count, Some(newest))), Some((count_after, _))) = (sealed, before, after) {
            let (_, incarnation, card) = newest;
            let old = header.incarnation == incarnation && header.card_generation < card;
            self.marks.set_if(Mark::OldGenerationRefused, old && count_after == count);
        }
        self.service(node);
    }

    /// A frame comes through memory.
    pub(crate) fn arrive_shm(&mut self, node: usize, bytes: &mut [u8]) {
        let Ok(header) = Header::parse(bytes) else { return };
        self.log.event(self.now, Some(node), "rx", header.path().index() as u64, header.packet_number);
        let Some(place) = self.neighbour_place(node) else { return };
        let before = self.reception(node, place);
        let original = bytes.to_vec();
        if self.dies_here(node) || !self.act(node, |card, now| card.handle_shm_frame(now, place, bytes)) {
            return;
        }
        if let (Some((count, newest)), Some((count_after, newest_after))) =
            (before, self.reception(node, place))
            && count_after > count
        {
            self.marks.set(Mark::MemoryUsed);
            if node == LENDER {
                let by = self.life_of(BORROWER);
                self.loans.iter_mut().for_each(|lent| lent.take_over.hears(by, None));
            }
            // Only these two share memory.
            let source = self.nodes[LENDER + BORROWER - node].identity.id();
            let freshness = &mut self.nodes[node].freshness;
            let verdict =
                freshness.accepted((Origin::Peer, source), &original, &header, newest, newest_after);
            self.judge(names::FRESHNESS, verdict);
        }
    }

    /// How many frames of a peer a card has accepted, and from whom at last.
    fn reception(&self, node: usize, place: usize) -> Option<(u64, Option<Peer>)> {
        let channel = self.nodes[node].card.as_ref()?.channel(place)?;
        let newest = channel.peer().zip(channel.newest_peer());
        let newest = newest.map(|((peer, ..), (incarnation, card))| (peer, incarnation, card));
        Some((channel.stats().received_frames.get(), newest))
    }

    /// Under which keys a card sends to a peer.
    fn keys_with(&self, node: usize, place: usize) -> Option<u64> {
        self.nodes[node].card.as_ref()?.channel(place)?.key_fingerprint()
    }

    /// How many frames that had come before a card has seen.
    fn repeats(&self, node: usize, place: usize) -> Option<u64> {
        let card = self.nodes[node].card.as_ref()?;
        Some(card.channel(place)?.stats().dropped_replay.get())
    }

    /// Before each event: nobody has kept still for too long.
    pub(crate) fn watch(&mut self) {
        for node in 0..self.nodes.len() {
            for loan in 0..self.loans.len() {
                let Some(card) = self.nodes[node].card.as_ref() else { continue };
                if node == LENDER && !self.knows_borrower(loan) {
                    self.nodes[node].liveness[loan].excused(self.now);
                    continue;
                }
                let flow = card.stream(loan);
                let unheard = self.is_unheard(node, loan, card);
                let sender = &flow.port.sender;
                let waits = flow.state() == State::Open && !sender.is_empty();
                let news = sender.committed();
                let now = self.now;
                let round_trip = card.channel_of(loan).and_then(Channel::round_trip).unwrap_or_default();
                let round_trip = round_trip.as_nanos() as u64;
                let verdict = self.nodes[node].liveness[loan].check(now, unheard, waits, news, round_trip);
                self.judge(
                    names::LIVENESS,
                    verdict.map_err(|what| format!("node {node}, loan {loan}: {what}")),
                );
            }
        }
    }

    /// The ledger of a node, as others than its card see it.
    pub(crate) fn ledger(&self, node: usize) -> NodeLedger<'w> {
        NodeLedger::new(self.nodes[node].memory, None, self.rules)
    }

    /// Whether an address of the borrower has answered a challenge.
    fn knows_borrower(&self, loan: usize) -> bool {
        self.known_rails(loan) > 0
    }

    fn knows_all_rails(&self, loan: usize) -> bool {
        self.known_rails(loan) == self.rails[1].count_ones() as usize
    }

    /// On so many rails one has.
    fn known_rails(&self, loan: usize) -> usize {
        let ledger = self.ledger(LENDER);
        let place = ledger.loan(loan, 0).and_then(|parts| parts.cells.peer());
        let peer = place.and_then(|place| ledger.peer(place));
        let Some(peer) = peer else { return 0 };
        let rails = peer.addresses().filter_map(|(path, _)| path.rails());
        rails.map(|(_, rail)| rail).collect::<BTreeSet<_>>().len()
    }

    /// The peer knows an older card of the same life: it has the keys, and only needs to be told.
    fn is_unheard(&self, node: usize, loan: usize, card: &Card<'_>) -> bool {
        let Some(peer) = self.peer_of(node, loan, card) else { return false };
        let Some(other) = self.nodes[peer.node].card.as_ref() else { return false };
        let Some((_, known)) = other.channel_of(loan).and_then(Channel::newest_peer) else { return false };
        let knows_us = self.peer_of(peer.node, loan, other) == Some(self.life_of(node));
        knows_us && peer == self.life_of(peer.node) && known.0 > 0 && known.0 < self.nodes[node].generation()
    }

    /// Work for the disk takes effect: its borrower is the one that is served.
    pub(crate) fn check_incarnation(&mut self, loan: usize, borrower: Option<Life>) {
        let Some(card) = self.nodes[LENDER].card.as_ref() else { return };
        let open = card.state(loan) == State::Open;
        let served = self.tenant_of(loan);
        if open && served != borrower {
            let what = format!("work of {borrower:?} is done while {served:?} is served");
            self.fail(names::INCARNATION, what);
        }
    }

    /// Work for the disk takes effect: its borrower has the function.
    pub(crate) fn check_owner(&mut self, work: &MediaWork<'_>, borrower: Option<Life>) {
        let Some(borrower) = borrower.filter(|_| work.kind != device::MediaKind::Flush) else { return };
        let lent = &self.loans[work.loan];
        let mut lives = BTreeSet::from([borrower]);
        // Whose data a write has, it says itself.
        if work.kind == device::MediaKind::Write {
            let block = lent.drive.block as usize;
            let mut bytes = Vec::with_capacity(work.len as usize);
            for span in work.spans() {
                let start = bytes.len();
                bytes.resize(start + span.len(), 0);
                span.read(&mut bytes[start..]);
            }
            let first = work.offset / block as u64;
            let requests = (first..).zip(bytes.chunks(block)).filter_map(|(lba, bytes)| author(lba, bytes));
            lives.extend(requests.filter_map(|request| lent.shared.author(request)));
        }
        for life in lives {
            match self.loans[work.loan].owner.effect(self.now, life) {
                Ok(change) => self.marks.set_if(Mark::HoldOver, change == Change::HoldOver),
                Err(what) => self.fail(names::SINGLE_OWNER, what),
            }
        }
    }

    /// The lending node has lost its power.
    pub(crate) fn lose_power(&mut self) {
        self.forget_errors();
        if let Some(volatile) = &mut self.volatile {
            volatile.lose_power();
        }
        for loan in 0..self.loans.len() {
            let lent = &mut self.loans[loan];
            lent.unmarked.clear();
            let lost = lent.disk.power_off(&mut self.random);
            self.marks.set_if(Mark::CacheLost, lost);
            lent.shared.tick += 1;
            let tick = lent.shared.tick;
            let verdict = lent.shared.model.power_failed(lent.disk.blocks(), tick);
            if !self.guests.is_empty() {
                // Nobody writes anything again.
                lent.shared.model.mended();
            }
            self.judge(names::DURABILITY, verdict);
            self.forget_drive(loan);
        }
    }

    /// Whether everything has ended as it should.
    pub(crate) fn is_quiet(&self) -> bool {
        let is_idle = |node: usize| self.nodes[node].card.as_ref().is_some_and(Card::is_idle);
        self.media_are_quiet()
            && self.clients.iter().all(|(_, client)| client.is_done() && client.is_away())
            && self.guests.iter().all(|guest| guest.is_done() && guest.is_away())
            && (0..self.loans.len()).all(|loan| {
                let holder = self.loans[loan].holder.unwrap_or(BORROWER);
                // With a rival, the last one may have gone with or without a word: then nobody hears the lender.
                (self.contest.is_some() && self.nodes[holder].is_away)
                    || (is_idle(LENDER)
                        && is_idle(holder)
                        && self.is_settled(holder, loan)
                        && self.pages_used(LENDER, loan) == 0
                        && self.pages_used(holder, loan) == self.pages_kept(holder, loan)
                        && self.credits_are_whole(holder, loan))
            })
    }

    /// Whether a borrower has its stream, or has given it back: one that asks for it may have to write again what it
    /// keeps.
    fn is_settled(&self, borrower: usize, loan: usize) -> bool {
        let card = self.nodes[borrower].card.as_ref();
        card.is_some_and(|card| matches!(card.state(loan), State::Open | State::Closed))
    }

    /// Pages of writes that the borrower keeps until they are flushed.
    fn pages_kept(&self, node: usize, loan: usize) -> usize {
        let drive = self.nodes[node].card.as_ref().and_then(|card| card.borrowed(loan));
        drive.map_or(0, |drive| drive.driver.kept().1)
    }

    fn pages_used(&self, node: usize, loan: usize) -> usize {
        self.nodes[node].card.as_ref().map_or(usize::MAX, |card| card.pages(loan).used())
    }

    /// All that was used was granted again, and for non-posted requests that is as much as at the beginning. Of the
    /// last of it a sender may not know: a frame that told of it was lost, and who needs it asks.
    fn credits_are_whole(&self, borrower: usize, loan: usize) -> bool {
        let [Some(lender), Some(borrower)] = [LENDER, borrower].map(|node| self.nodes[node].card.as_ref())
        else {
            return false;
        };
        [(lender, borrower), (borrower, lender)].iter().all(|(sender, receiver)| {
            let (used, believed) = sender.stream(loan).port.sender.credits();
            let granted = receiver.stream(loan).receiver().granted();
            let fresh = granted[2] >= used[2] + 2 && granted[0] >= used[0] + 3;
            let is_true = believed.iter().zip(&granted).all(|(believed, granted)| believed <= granted);
            is_true && fresh
        })
    }

    /// Why it is not quiet, for a report.
    pub(crate) fn unrest(&self) -> String {
        let clients: Vec<_> = self
            .clients
            .iter()
            .filter(|(_, client)| !client.is_done() || !client.is_away())
            .map(|(seat, client)| format!("{seat:?}: {}", client.unanswered()))
            .collect();
        let guests =
            self.memories.iter().flat_map(|memory| self.guests.iter().map(|guest| guest.unanswered(memory)));
        let guests: Vec<_> = guests.collect();
        let mut text = format!("clients {clients:?}, guests {guests:?}");
        for (node, loan) in
            (0..self.nodes.len()).flat_map(|node| (0..self.loans.len()).map(move |loan| (node, loan)))
        {
            let Some(card) = self.nodes[node].card.as_ref() else { continue };
            let flow = card.stream(loan);
            let sender = &flow.port.sender;
            text += &format!(
                "; node {node} loan {loan}: {:?}, next {} committed {} blocked {} tags {} expected {} pages {} credits \
                 {:?} grants {:?}",
                card.state(loan),
                sender.next(),
                sender.committed(),
                sender.is_blocked(),
                flow.port.tags.outstanding(),
                flow.receiver().expected(),
                card.pages(loan).used(),
                sender.credits(),
                flow.receiver().granted(),
            );
            if let Some(session) = card.slot(loan).and_then(|slot| slot.session()) {
                let counters = session.counters();
                text += &format!(
                    " slot in flight {} transfers {} failed {} time-outs {} dropped writes {}",
                    session.in_flight(),
                    counters.transfers.get(),
                    counters.failed_transfers.get(),
                    counters.timeouts.get(),
                    counters.dropped_writes.get()
                );
            }
            if let Some(drive) = card.borrowed(loan) {
                let (driver, server) = (&drive.driver, &drive.server);
                text += &format!(
                    " driver {:?} in flight {} server in flight {} abandoned {}",
                    driver.state(),
                    driver.in_flight(),
                    server.in_flight(),
                    server.abandoned()
                );
            }
        }
        text
    }

    /// It is quiet: the disk is what the model says, and nothing has strayed.
    pub(crate) fn finish(&mut self) {
        for loan in 0..self.loans.len() {
            let lent = &mut self.loans[loan];
            lent.shared.tick += 1;
            let tick = lent.shared.tick;
            let verdict = lent.shared.model.finally(lent.disk.blocks(), tick);
            self.judge(names::DISK, verdict.map_err(|what| format!("in the end, {what}")));
            for node in 0..self.nodes.len() {
                self.check_gauges(node, loan);
            }
        }
    }

    /// Nothing has reached for what it was not granted, and nothing was completed that nobody asked for. What was given
    /// up after a completion time-out may still arrive where nothing is any more.
    fn check_strays(&mut self, node: usize, loan: usize) {
        let Some(LoanParts { cells, .. }) = self.ledger(node).loan(loan, 0) else { return };
        let edge = &cells.edge;
        self.loans[loan].timed_out |= edge.completion_timeouts.get() > 0;
        let denied = edge.denied_accesses.get();
        let denied = if node == BORROWER { self.check_function(loan, denied) } else { denied };
        let denied = self.nodes[node].outrun[loan].strays(denied);
        let denied = if self.loans[loan].timed_out { 0 } else { denied };
        let strays = [denied, edge.unexpected_completions.get(), edge.malformed_tlps.get()];
        if strays != [0; 3] {
            let what = format!("node {node}, loan {loan}: denied, unexpected, malformed: {strays:?}");
            self.fail(names::STRAYS, what);
        }
        let stats = cells.stream.stats();
        let unplaced =
            self.nodes[node].card.as_ref().map_or(0, |card| card.stream(loan).port.sender.unplaced());
        let broken = [stats.malformed_tlps.get(), stats.credit_violations.get(), unplaced];
        if broken != [0; 3] {
            let what =
                format!("node {node}, loan {loan}: malformed, beyond credit, without room: {broken:?}");
            self.fail(names::STRAYS, what);
        }
    }

    /// So many accesses of a function have been denied: how many of them may not have been.
    fn check_function(&mut self, loan: usize, denied: u64) -> u64 {
        if let Some(what) = self.memories.as_ref().and_then(|memory| memory.strayed(loan)) {
            self.fail(
                names::STRAYS,
                format!("loan {loan}: {what} were written, which their guest had taken back"),
            );
        }
        let slot = self.nodes[BORROWER].card.as_ref().and_then(|card| card.slot(loan));
        let Some((slot, socket)) = slot.zip(self.slots.get_mut(loan)) else { return denied };
        let failed = slot.session().map_or(0, |session| session.counters().failed_transfers.get());
        let is_closed_out = socket.is_connected() && slot.is_closed_out();
        socket.excuses.step(denied, failed, is_closed_out);
        denied.saturating_sub(socket.excuses.count())
    }

    fn check_gauges(&mut self, node: usize, loan: usize) {
        let Some(LoanParts { cells, .. }) = self.ledger(node).loan(loan, 0) else { return };
        let edge = &cells.edge;
        self.marks.set_if(Mark::CompletionTimeout, edge.completion_timeouts.get() > 0);
        let Some(card) = self.nodes[node].card.as_ref() else { return };
        let again = card.stream(loan).stats().retransmissions.get();
        self.marks.set_if(Mark::Retransmission, again > 0);
        let Some(stats) = card.channel_of(loan).map(Channel::stats) else { return };
        self.marks.set_if(Mark::ForgeryRefused, stats.dropped_auth.get() > 0);
        self.marks.set_if(Mark::ReplayRefused, stats.dropped_replay.get() > 0);
        self.marks.set_if(Mark::HandshakeDuringIo, stats.handshakes.get() > 1);
    }
}
