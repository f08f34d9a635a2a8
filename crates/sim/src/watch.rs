//! Where the checkers look: after each step of a card, before each event, and when a card has died.
//! [`frames`] has what they see of frames.

mod frames;

use std::collections::BTreeMap;

use link::pair::Channel;
use link::{State, Tenancy};
use node::{Card, LoanParts};

use crate::checkers::addresses::Addresses;
use crate::checkers::excuses::Excuses;
use crate::checkers::freshness::Freshness;
use crate::checkers::liveness::Liveness;
use crate::checkers::names;
use crate::checkers::nonces::Nonces;
use crate::checkers::ordering::Ordering;
use crate::checkers::outrun::Outrun;
use crate::checkers::single_owner::Life;
use crate::checkers::streams::{StreamId, Streams, committed_truly, granted_truly};
use crate::checkers::verdicts::Verdicts;
use crate::guest::SharedMemories;
use crate::identity::holder_of;
use crate::loans::Loan;
use crate::marks::Mark;
use crate::nodes::Node;
use crate::report::Report;
use crate::stage::{BORROWER, LENDER};
pub(crate) use frames::{Before, proof_in};

/// What the checkers look at.
pub(crate) struct Scene<'a, 'w> {
    pub(crate) now: u64,
    pub(crate) nodes: &'a [Node<'w>],
    pub(crate) loans: &'a mut [Loan<'w>],
    pub(crate) report: &'a mut Report,
}

/// The checkers of what cards say and do.
pub(crate) struct Watch<'w> {
    streams: Streams,
    /// By the name of their streams: the lender's and the borrower's lives that met.
    meetings: BTreeMap<u64, [Option<Life>; 2]>,
    ordering: Ordering,
    nonces: Nonces,
    addresses: Addresses,
    verdicts: Verdicts,
    /// By node.
    ends: Vec<End>,
    /// Rails of those who borrow.
    rails: usize,
    /// Whether media fail here, so that drivers lose what they keep.
    has_media: bool,
    /// By node the memory of its guests, and by node and loan what may be denied to their functions.
    memories: Vec<SharedMemories<'w>>,
    pub(crate) excuses: Vec<Vec<Excuses>>,
}

/// What is known of a node.
#[derive(Default)]
struct End {
    freshness: Freshness,
    /// By loan.
    loans: Vec<LoanEnd>,
    /// What the last card had handed on when it died, with the stream's name.
    torn: Vec<(StreamId, Vec<(u64, u64)>)>,
}

/// What is known of an end of a loan.
#[derive(Default)]
struct LoanEnd {
    liveness: Liveness,
    /// What its driver has taken back while the function was asking for it.
    outrun: Outrun,
    /// Whether its driver was issuing requests when last seen.
    was_ready: bool,
    /// The stream that came to the card before the verb under way, which may end it and be taken back.
    flowing: Option<StreamId>,
}

impl Scene<'_, '_> {
    /// Another life has a function, or nobody any more. Who gave it back just now may have taken it just before, so
    /// that nothing was told of that.
    pub(crate) fn check_take_over(&mut self, loan: usize, tenancy: &Tenancy) {
        let taker = holder_of(tenancy);
        if let Some(life) = taker {
            self.check_taker(loan, tenancy, life);
        }
        if !tenancy.is_held {
            self.loans[loan].take_over.ends();
            if !self.loans.iter().any(|lent| lent.take_over.is_held()) {
                self.loans.iter_mut().for_each(|lent| lent.take_over.forget_twins());
            }
        }
    }

    fn check_taker(&mut self, loan: usize, tenancy: &Tenancy, taker: Life) {
        let is_twin = self.nodes[taker.node].identity.id() == tenancy.node;
        match self.loans[loan].take_over.changes(self.now, taker) {
            Ok(Some(former)) if is_twin && self.nodes[former.node].identity.id() == tenancy.node => {
                self.report.marks.set_if(Mark::TwinTookOver, taker.node != former.node);
                self.loans[loan].owner.gives_back(former);
            }
            Ok(_) => {}
            Err(what) if is_twin => self.report.fail(names::TAKE_OVER, what),
            Err(_) => {}
        }
    }
}

/// The stream that `node` sends.
fn stream_from(node: usize, loan: usize, card: &Card<'_>) -> Option<StreamId> {
    Some(StreamId { loan, is_lenders: node == LENDER, name: card.stream(loan).name()? })
}

/// The stream that `node` receives.
fn stream_to(node: usize, loan: usize, card: &Card<'_>) -> Option<StreamId> {
    Some(StreamId { is_lenders: node != LENDER, ..stream_from(node, loan, card)? })
}

impl<'w> Watch<'w> {
    /// Looks at so many nodes with so many loans, of which those that borrow have so many rails, and at the memory of
    /// guests.
    pub(crate) fn new(
        (nodes, count): (usize, usize),
        rails: usize,
        has_media: bool,
        memories: Vec<SharedMemories<'w>>,
    ) -> Self {
        let loans = || (0..count).map(|_| LoanEnd::default()).collect();
        Self {
            streams: Streams::default(),
            meetings: BTreeMap::new(),
            ordering: Ordering::default(),
            nonces: Nonces::default(),
            addresses: Addresses::default(),
            verdicts: Verdicts::default(),
            ends: (0..nodes).map(|_| End { loans: loans(), ..End::default() }).collect(),
            rails,
            has_media,
            memories,
            excuses: (0..nodes).map(|_| (0..count).map(|_| Excuses::default()).collect()).collect(),
        }
    }

    /// The life that a card of `node` has met, as far as the streams between the two have been seen at both ends.
    pub(crate) fn peer_of(&self, node: usize, loan: usize, card: &Card<'_>) -> Option<Life> {
        let meeting = self.meetings.get(&card.stream(loan).name()?)?;
        meeting[usize::from(node == LENDER)]
    }

    /// The life of a borrower that a lender serves.
    pub(crate) fn tenant_of(&self, lender: &Node<'_>, loan: usize) -> Option<Life> {
        self.peer_of(LENDER, loan, lender.card.as_ref()?)
    }

    /// A card is about to do something.
    pub(crate) fn begin_step(&mut self, node: usize, card: &Card<'_>) {
        for (loan, end) in self.ends[node].loans.iter_mut().enumerate() {
            end.flowing = stream_to(node, loan, card);
        }
    }

    /// It has: its streams, and what the ends believe of each other.
    pub(crate) fn end_step(&mut self, scene: &mut Scene<'_, '_>, node: usize) {
        let Some(card) = &scene.nodes[node].card else { return };
        let loans = scene.loans.len();
        (0..loans).for_each(|loan| self.check_streams(scene, node, loan, card));
        if node != LENDER {
            (0..loans).for_each(|loan| self.watch_driver(scene, node, loan, card));
        }
    }

    /// A card has died: what it had not committed is to be seen by its successor only.
    pub(crate) fn card_died(&mut self, node: usize, card: &Card<'_>) {
        let end = &mut self.ends[node];
        for (loan, flowing) in end.loans.iter().map(|loan| loan.flowing).enumerate() {
            let accepted = card.stream(loan).receiver().take_accepted();
            // Nothing flows in a stream in the verb that begins it.
            let id = flowing.or(stream_to(node, loan, card));
            end.torn.extend(id.map(|id| (id, accepted)));
        }
    }

    /// A node begins another life, with another ledger.
    pub(crate) fn life_began(&mut self, node: usize) {
        let end = &mut self.ends[node];
        end.torn.clear();
        end.loans.iter_mut().for_each(|loan| (loan.was_ready, loan.outrun) = (false, Outrun::default()));
    }

    /// A new card lives: what the old one has handed on is what the ledger says, and what is to be sent again is what
    /// was sent.
    pub(crate) fn card_began(&mut self, scene: &mut Scene<'_, '_>, node: usize) {
        let Some(card) = &scene.nodes[node].card else { return };
        for (id, accepted) in core::mem::take(&mut self.ends[node].torn) {
            let expected = card.stream(id.loan).receiver().expected();
            if stream_to(node, id.loan, card) == Some(id) {
                // What was rolled back comes again. But counters are not rolled back: it may have been denied already.
                let outrun = &mut self.ends[node].loans[id.loan].outrun;
                outrun.accepted(id, self.streams.queued(id, &accepted));
                let kept: Vec<_> = accepted.into_iter().filter(|&(number, _)| number < expected).collect();
                scene.report.judge(names::EXACTLY_ONCE, self.streams.accepted(id, &kept));
            }
        }
        for loan in 0..scene.loans.len() {
            self.check_streams(scene, node, loan, card);
            let (Some(from), Some(to)) = (stream_from(node, loan, card), stream_to(node, loan, card)) else {
                continue;
            };
            let flow = card.stream(loan);
            let verdict = self.streams.expects(to, flow.receiver().expected());
            scene.report.judge(names::EXACTLY_ONCE, verdict);
            let sender = &flow.port.sender;
            let (first, count) = (sender.committed(), sender.next() - sender.committed());
            let verdict = self.streams.transmitted(from, flow, first, count);
            scene.report.judge(names::REPLAY_BYTES, verdict);
        }
    }

    /// A card begins to be heard.
    pub(crate) fn listen(&mut self, now: u64, node: usize, card: &Card<'_>) {
        self.verdicts.card_began(now, node);
        for (loan, end) in self.ends[node].loans.iter_mut().enumerate() {
            card.stream(loan).receiver().watch_accepted();
            end.liveness.started(now);
        }
    }

    /// What a borrower's driver begins, and has done: the model has to know.
    fn watch_driver(&mut self, scene: &mut Scene<'_, '_>, node: usize, loan: usize, card: &Card<'_>) {
        let to_present = self.peer_of(node, loan, card) == Some(scene.nodes[LENDER].who());
        let (drive, end) = (card.borrowed(loan), &mut self.ends[node].loans[loan]);
        let is_ready = drive.is_some_and(|drive| drive.driver.is_ready());
        if let Some(drive) = drive {
            let begun = drive.driver.counters().resets.get();
            end.outrun.driver(begun, drive.driver.state(), stream_to(node, loan, card));
        }
        let was_ready = core::mem::replace(&mut end.was_ready, is_ready);
        let lent = &mut scene.loans[loan];
        if let Some(drive) = drive.filter(|_| self.has_media) {
            lent.note_lost(drive.driver.counters().lost.get());
        }
        if lent.tenure.holder.is_some_and(|holder| holder != node) {
            return;
        }
        if was_ready && !is_ready {
            lent.shared.tick += 1;
            lent.shared.model.begins_anew(lent.shared.tick);
            scene.report.log.note(format_args!("the driver begins anew"));
        }
        if is_ready && to_present && lent.shared.model.is_mending() {
            lent.shared.model.mended();
            scene.report.log.note(format_args!("the driver has written everything again"));
        }
    }

    fn check_streams(&mut self, scene: &mut Scene<'_, '_>, node: usize, loan: usize, card: &Card<'_>) {
        let flow = card.stream(loan);
        let accepted = flow.receiver().take_accepted();
        let (Some(from), Some(to)) = (stream_from(node, loan, card), stream_to(node, loan, card)) else {
            return;
        };
        let (streams, report) = (&mut self.streams, &mut *scene.report);
        self.ends[node].loans[loan].outrun.accepted(to, streams.queued(to, &accepted));
        let me = scene.nodes[node].who();
        self.meetings.entry(from.name).or_default()[usize::from(node != LENDER)] = Some(me);
        report.judge(names::EXACTLY_ONCE, streams.accepted(to, &accepted));
        report.judge(names::COMMITTED, streams.committed(from, flow));
        report.judge(names::EXACTLY_ONCE, streams.numbered(from, flow));
        report.judge(names::CREDITS, streams.credits(from, flow));
        report.judge(names::ORDERING, self.ordering.check(from, flow));
        let blocked = flow.state() == State::Open && flow.port.sender.is_blocked();
        report.marks.set_if(Mark::Blocked, blocked);
        report.marks.set_if(Mark::ReorderBuffer, flow.receiver().has_ahead());
    }

    /// What the ends of a loan believe of each other, while both live and mean the same streams.
    pub(crate) fn check_beliefs(&self, scene: &mut Scene<'_, '_>, loan: usize) {
        for borrower in BORROWER..scene.nodes.len() {
            let ends = [LENDER, borrower];
            let [Some(one), Some(other)] = ends.map(|node| scene.nodes[node].card.as_ref()) else { continue };
            let cards = [one, other];
            let verdicts = [0, 1].map(|end: usize| {
                let id = stream_from(ends[end], loan, cards[end]);
                let same = id.is_some() && id == stream_to(ends[1 - end], loan, cards[1 - end]);
                let (sender, receiver) = (cards[end].stream(loan), cards[1 - end].stream(loan));
                same.then(|| (committed_truly(sender, receiver), granted_truly(sender, receiver)))
            });
            if verdicts.iter().flatten().any(|v| v.0.is_err() || v.1.is_err()) {
                for (node, card) in ends.into_iter().zip(cards) {
                    let (channel, flow) = (card.channel_of(loan), card.stream(loan));
                    scene.report.log.note(format_args!(
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
                scene.report.judge(names::COMMITTED, committed);
                scene.report.judge(names::CREDITS, granted);
            }
        }
    }

    /// Nothing has reached for what it was not granted, and nothing was completed that nobody asked for. What was given
    /// up after a completion time-out may still arrive where nothing is any more.
    pub(crate) fn check_strays(&mut self, scene: &mut Scene<'_, '_>, node: usize, loan: usize) {
        let this = &scene.nodes[node];
        let Some(LoanParts { cells, .. }) = this.ledger().loan(loan, 0) else { return };
        let (edge, denied) = (&cells.edge, cells.edge.denied_accesses.get());
        let excused = self.excuse(scene, (node, loan), denied);
        let denied = denied.saturating_sub(excused);
        let lent = &mut scene.loans[loan];
        lent.timed_out |= edge.completion_timeouts.get() > 0;
        let denied = self.ends[node].loans[loan].outrun.strays(denied);
        let denied = if lent.timed_out { 0 } else { denied };
        let strays = [denied, edge.unexpected_completions.get(), edge.malformed_tlps.get()];
        if strays != [0; 3] {
            let what = format!("node {node}, loan {loan}: denied, unexpected, malformed: {strays:?}");
            scene.report.fail(names::STRAYS, what);
        }
        let stats = cells.stream.stats();
        let unplaced = this.card.as_ref().map_or(0, |card| card.stream(loan).port.sender.unplaced());
        let broken = [stats.malformed_tlps.get(), stats.credit_violations.get(), unplaced];
        if broken != [0; 3] {
            let what =
                format!("node {node}, loan {loan}: malformed, beyond credit, without room: {broken:?}");
            scene.report.fail(names::STRAYS, what);
        }
    }

    /// How many of so many accesses of a guest's function were right when they were made, though they were denied.
    fn excuse(&mut self, scene: &mut Scene<'_, '_>, (node, loan): (usize, usize), denied: u64) -> u64 {
        let Some(memories) = &self.memories[node] else { return 0 };
        if let Some(what) = memories.strayed(loan) {
            let what = format!("loan {loan}: {what} were written, which their guest had taken back");
            scene.report.fail(names::STRAYS, what);
        }
        let slot = scene.nodes[node].card.as_ref().and_then(|card| card.slot(loan));
        slot.map_or(0, |slot| self.excuses[node][loan].excuse(slot, denied))
    }

    /// Before each event: nobody has kept still for too long.
    pub(crate) fn check_silence(&mut self, scene: &mut Scene<'_, '_>) {
        for (node, this) in scene.nodes.iter().enumerate() {
            let Some(card) = &this.card else { continue };
            for loan in 0..scene.loans.len() {
                if node == LENDER && this.known_rails(loan) == 0 {
                    self.ends[node].loans[loan].liveness.excused(scene.now);
                    continue;
                }
                let unheard = self.is_unheard(scene.nodes, node, loan, card);
                let flow = card.stream(loan);
                let sender = &flow.port.sender;
                let waits = flow.state() == State::Open && !sender.is_empty();
                let news = sender.committed();
                let round_trip =
                    card.channel_of(loan).and_then(Channel::longest_round_trip).unwrap_or_default();
                let round_trip = round_trip.as_nanos() as u64;
                let liveness = &mut self.ends[node].loans[loan].liveness;
                let verdict = liveness.check(scene.now, unheard, waits, news, round_trip);
                let verdict = verdict.map_err(|what| format!("node {node}, loan {loan}: {what}"));
                scene.report.judge(names::LIVENESS, verdict);
            }
        }
    }

    /// The peer knows an older card of the same life: it has the keys, and only needs to be told.
    fn is_unheard(&self, nodes: &[Node<'_>], node: usize, loan: usize, card: &Card<'_>) -> bool {
        let Some(peer) = self.peer_of(node, loan, card) else { return false };
        let Some(other) = nodes[peer.node].card.as_ref() else { return false };
        let Some((_, known)) = other.channel_of(loan).and_then(Channel::newest_peer) else { return false };
        let knows_us = self.peer_of(peer.node, loan, other) == Some(nodes[node].who());
        let is_older = known.0 > 0 && known.0 < nodes[node].generation();
        knows_us && peer == nodes[peer.node].who() && is_older
    }

    /// Work for the disk takes effect: its borrower is the one that is served.
    pub(crate) fn check_incarnation(&self, scene: &mut Scene<'_, '_>, loan: usize, borrower: Option<Life>) {
        let Some(card) = &scene.nodes[LENDER].card else { return };
        let served = self.peer_of(LENDER, loan, card);
        if card.state(loan) == State::Open && served != borrower {
            let what = format!("work of {borrower:?} is done while {served:?} is served");
            scene.report.fail(names::INCARNATION, what);
        }
    }
}
