//! The edges: the kernel's sockets between clients and the borrowing card, and the disks under the lending card.
//!
//! The kernel's account of a socket survives the card: how many bytes it has put into the ledger, and how many it has
//! taken out. A successor is told both again.

use base::ledger::{Journal, Span};
use base::{Instant, Rule};
use node::MediaWork;

use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::client::{Excuse, Seat};
use crate::disk::Submitted;
use crate::loans::DiskMode;
use crate::marks::Mark;
use crate::world::{Event, LENDER, World};

/// A connected client's socket.
#[derive(Clone, Copy, Default)]
pub(crate) struct Socket {
    pub(crate) client: usize,
    /// Bytes that the kernel has put into the ledger.
    received: u64,
    /// Bytes that the kernel has taken from it.
    sent: u64,
}

/// How many bytes the kernel can put there.
pub(crate) fn room_in(spans: &[Option<Span<'_>>]) -> usize {
    spans.iter().flatten().map(Span::len).sum()
}

/// The kernel puts bytes there, for which there is room.
pub(crate) fn write(spans: &[Option<Span<'_>>], journal: Journal<'_>, mut bytes: &[u8]) {
    for span in spans.iter().flatten() {
        let part = span.part(0, bytes.len());
        let (now, later) = bytes.split_at(part.len());
        part.write(journal, now);
        bytes = later;
    }
}

/// All bytes that the kernel finds there.
pub(crate) fn read(spans: &[Span<'_>]) -> Vec<u8> {
    let bytes = |span: &Span<'_>| {
        let mut bytes = vec![0; span.len()];
        span.read(&mut bytes);
        bytes
    };
    spans.iter().flat_map(bytes).collect()
}

impl<'w> World<'w> {
    /// The kernel's stores are never killed and never logged.
    pub(crate) fn kernel(&self, node: usize) -> Journal<'w> {
        self.ledger(node).journal
    }

    /// A client comes, or thinks of requests.
    pub(crate) fn think(&mut self, client: usize) {
        let Seat { node, area, .. } = self.clients[client].0;
        let who = self.life_of(node);
        let this = &mut self.clients[client].1;
        if this.is_away() {
            if !this.is_done() {
                self.connect(client);
            }
        } else if this.ask(&mut self.loans[area].shared, who) {
            self.log.event(self.now, None, "ask", client as u64, self.loans[area].shared.requests);
            self.wake_at(node, self.now);
        }
    }

    fn connect(&mut self, client: usize) {
        let Seat { node, loan, .. } = self.clients[client].0;
        let borrower = &self.nodes[node];
        if borrower.is_away || borrower.agent.is_shutting_down() {
            return self.schedule(500_000_000, Event::Think(client));
        }
        let idle = |slot: &usize| {
            borrower.sockets[loan][*slot].is_none()
                && borrower.card.as_ref().is_some_and(|card| card.edge_is_idle(loan, *slot))
        };
        let Some(slot) = (0..node::EDGE_CONNECTIONS).find(idle) else {
            return self.schedule(3_000_000, Event::Think(client));
        };
        self.nodes[node].sockets[loan][slot] = Some(Socket { client, ..Socket::default() });
        self.log.event(self.now, None, "open", client as u64, slot as u64);
        self.clients[client].1.connected();
        if self.act(node, |card, now| card.edge_open(now, loan, slot)) {
            self.service(node);
        }
    }

    /// Which requests of a borrower's clients may fail.
    fn excuse(&self, node: usize, loan: usize) -> Excuse {
        let lent = &self.loans[loan];
        if self.nodes[node].agent.is_shutting_down()
            || ((lent.displaced[node] || lent.has_lost[node]) && lent.holder != Some(node))
        {
            return Excuse { before: u64::MAX, flushes: true };
        }
        Excuse { before: lent.taken_again[node], flushes: lent.has_lost[node] }
    }

    /// A client's connection ends, by whomever.
    pub(crate) fn hang_up(&mut self, node: usize, loan: usize, slot: usize) {
        let Some(socket) = self.nodes[node].sockets[loan][slot].take() else { return };
        let who = self.life_of(node);
        let (seat, client) = &mut self.clients[socket.client];
        self.marks.set_if(Mark::ClientLeft, client.in_flight() > 0);
        client.disconnected(&mut self.loans[seat.area].shared, who);
        self.log.event(self.now, None, "close", socket.client as u64, slot as u64);
        if !client.is_done() {
            let after = self.random.range(100_000, 5_000_000);
            self.schedule(after, Event::Think(socket.client));
        }
    }

    /// The agent tells a new card of its sockets.
    pub(crate) fn tell_edges(&mut self, node: usize, loan: usize) {
        for slot in 0..node::EDGE_CONNECTIONS {
            let moved = self.nodes[node].sockets[loan][slot].map(|socket| [socket.received, socket.sent]);
            if !self.act(node, |card, now| card.edge_resume(now, loan, slot, moved)) {
                return;
            }
        }
    }

    pub(crate) fn serve_edges(&mut self, node: usize, loan: usize) {
        for slot in 0..node::EDGE_CONNECTIONS {
            if self.nodes[node].card.is_none() || self.failure.is_some() {
                return;
            }
            if self.nodes[node].sockets[loan][slot].is_some() {
                let _ = self.receive(node, loan, slot)
                    && self.send(node, loan, slot)
                    && self.close_if_wanted(node, loan, slot);
            }
        }
        self.end_orphans(node, loan);
    }

    /// Bytes of the client go to the card.
    fn receive(&mut self, node: usize, loan: usize, slot: usize) -> bool {
        let Some(socket) = self.nodes[node].sockets[loan][slot] else { return false };
        let Some(card) = self.nodes[node].card.as_ref() else { return false };
        let waiting = self.clients[socket.client].1.outbox.len();
        let spans = card.edge_receive_spans(loan, slot, socket.received);
        let room = room_in(&spans);
        if waiting == 0 || room == 0 {
            return true;
        }
        let len = self.portion(waiting.min(room));
        let bytes: Vec<u8> = self.clients[socket.client].1.outbox.drain(..len).collect();
        write(&spans, self.kernel(node), &bytes);
        let position = socket.received + len as u64;
        if let Some(socket) = &mut self.nodes[node].sockets[loan][slot] {
            socket.received = position;
        }
        if len < waiting {
            self.wake_soon(node);
        }
        !self.dies_here(node) && self.act(node, |card, now| card.edge_received(now, loan, slot, position))
    }

    /// Bytes of the card go to the client.
    fn send(&mut self, node: usize, loan: usize, slot: usize) -> bool {
        let Some(socket) = self.nodes[node].sockets[loan][slot] else { return false };
        let Some(card) = self.nodes[node].card.as_ref() else { return false };
        if card.edge_output_end(loan, slot) <= socket.sent {
            return true;
        }
        self.check_commit(node);
        let Some(card) = self.nodes[node].card.as_ref() else { return false };
        let mut spans = [Span::empty(); 8];
        let count = card.edge_send_spans(loan, slot, socket.sent, &mut spans);
        let mut bytes = read(&spans[..count]);
        if bytes.is_empty() {
            self.fail(names::COMPLETIONS, "there are bytes for a client, but they are nowhere".into());
            return false;
        }
        bytes.truncate(self.portion(bytes.len()));
        self.deliver(node, loan, socket.client, &bytes);
        let position = socket.sent + bytes.len() as u64;
        if let Some(socket) = &mut self.nodes[node].sockets[loan][slot] {
            socket.sent = position;
        }
        self.wake_soon(node);
        self.failure.is_none()
            && !self.dies_here(node)
            && self.act(node, |card, now| card.edge_sent(now, loan, slot, position))
    }

    fn deliver(&mut self, node: usize, loan: usize, client: usize, bytes: &[u8]) {
        let area = self.clients[client].0.area;
        let excuse = self.excuse(node, loan);
        let shared = &mut self.loans[area].shared;
        let served = self.clients[client].1.served;
        let received = self.clients[client].1.receive(bytes, shared, excuse);
        self.marks.set_if(Mark::RequestTimeout, shared.timeouts > 0);
        match received {
            Ok(ended) => {
                if ended {
                    self.log.event(self.now, None, "got", client as u64, shared.tick);
                    if self.clients[client].1.served > served && area == loan {
                        self.end_older_orphans(loan, self.life_of(node));
                    }
                }
                self.judge_flushes(area);
                let after = self.random.below(150_000);
                self.schedule(after, Event::Think(client));
            }
            Err((checker, what)) => self.fail(checker, what),
        }
    }

    fn close_if_wanted(&mut self, node: usize, loan: usize, slot: usize) -> bool {
        let Some(card) = self.nodes[node].card.as_ref() else { return false };
        if !card.edge_wants_close(loan, slot) {
            return true;
        }
        self.hang_up(node, loan, slot);
        !self.dies_here(node) && self.act(node, |card, now| card.edge_closed(now, loan, slot))
    }

    /// A new borrower is served: writes of its predecessor have happened by now, or never will.
    pub(crate) fn end_older_orphans(&mut self, loan: usize, who: Life) {
        let shared = &mut self.loans[loan].shared;
        let (model, tick) = (&mut shared.model, shared.tick);
        shared.orphans.retain(|orphan| {
            if orphan.who != who {
                model.abandoned_ended(orphan.request, orphan.blocks.clone(), tick);
            }
            orphan.who == who
        });
    }

    /// The card knows of all clients that have gone: their writes come before whatever is asked from now on, or never.
    fn end_orphans(&mut self, node: usize, loan: usize) {
        // Of what a write that nobody waits for has become, a function knows, and the others do not.
        if self.loans[loan].shared.orphans.is_empty() || self.shared.is_some() {
            return;
        }
        let Some(card) = self.nodes[node].card.as_ref() else { return };
        let sockets = &self.nodes[node].sockets[loan];
        let told = (0..sockets.len()).all(|slot| sockets[slot].is_some() || card.edge_is_idle(loan, slot));
        if told {
            let who = self.life_of(node);
            let shared = &mut self.loans[loan].shared;
            shared.tick += 1;
            let (model, tick) = (&mut shared.model, shared.tick);
            shared.orphans.retain(|orphan| {
                if orphan.who == who {
                    model.abandoned_ended(orphan.request, orphan.blocks.clone(), tick);
                }
                orphan.who != who
            });
        }
    }

    pub(crate) fn portion(&mut self, len: usize) -> usize {
        if self.random.chance(600) { len } else { 1 + self.random.index(len) }
    }

    pub(crate) fn wake_soon(&mut self, node: usize) {
        let at = self.now + self.random.range(1_000, 20_000);
        self.wake_at(node, at);
    }

    /// The card's work for a disk.
    pub(crate) fn serve_media(&mut self, loan: usize) {
        let _ = loan;
        while self.failure.is_none() && !self.dies_here(LENDER) && !self.is_busy_with_memory() {
            let Some(card) = self.nodes[LENDER].card.as_mut() else { return };
            match crate::death::survive(|| card.poll_media()) {
                Ok(Some(work)) => self.do_media(work),
                Ok(None) => return,
                Err(end) => return self.end_card(LENDER, end),
            }
        }
    }

    fn do_media(&mut self, mut work: MediaWork<'w>) {
        // A flush is for the whole medium; the other functions' parts of it are disks of their own here.
        let area = self.area_of(&work);
        if work.kind != device::MediaKind::Flush {
            work.offset -= self.loans[area].base;
        }
        self.check_commit(LENDER);
        if self.dies_here(LENDER) {
            return;
        }
        self.log.event(
            self.now,
            Some(LENDER),
            "media",
            work.offset,
            u64::from(work.len) << 3 | kind_number(work.kind),
        );
        self.log.note(format_args!(
            "{:?} {:?} {}+{} of {}, area {area}",
            work.id, work.kind, work.offset, work.len, work.loan
        ));
        let loan = work.loan;
        if self.loans[loan].mode == DiskMode::Ring {
            if !self.waits_for_flush(&work) {
                self.submit(area, work);
            }
            return;
        }
        self.begin_with_memory();
        let journal = self.kernel(LENDER);
        self.check_owner(&work, self.tenant_of(loan));
        if self.dies_here(LENDER) || self.dies_writing(&work) {
            if self.media.is_some() {
                // What a card hears that dies of it, nobody else hears from it.
                let _ = self.execute(area, &work, journal);
                return;
            }
            let done = self.random.below(u64::from(work.len) + 1) as usize;
            let is_half = self.loans[area].disk.execute_part(&work, journal, done);
            self.log.note(format_args!("loan {loan} died in the middle of {}+{}", work.offset, work.len));
            return self.marks.set_if(Mark::HalfWritten, is_half);
        }
        let result = self.execute(area, &work, journal);
        if self.dies_hearing(&work, result) {
            return;
        }
        if !self.rules.has(Rule::MarkEffects) {
            self.loans[loan].unmarked.push(work.id);
            let after = self.random.below(6_000_000);
            return self.schedule(after, Event::Mark(loan));
        }
        if self.act(LENDER, |card, now| card.handle_media(now, loan, work.id, result)) {
            self.wake_at(LENDER, self.now);
        }
    }

    /// Without the rule that an effect is marked before the next one, marks come late and in any order.
    pub(crate) fn mark_late(&mut self, loan: usize) {
        if self.loans[loan].unmarked.is_empty() || self.nodes[LENDER].card.is_none() {
            return;
        }
        let index = self.random.index(self.loans[loan].unmarked.len());
        let id = self.loans[loan].unmarked.swap_remove(index);
        if self.act(LENDER, |card, now: Instant| card.handle_media(now, loan, id, Ok(()))) {
            self.service(LENDER);
        }
    }

    fn submit(&mut self, area: usize, work: MediaWork<'w>) {
        let loan = work.loan;
        let submitted = Submitted {
            work,
            journal: self.kernel(LENDER),
            card: self.nodes[LENDER].cards,
            borrower: self.tenant_of(loan),
        };
        let after = match self.random.below(10) {
            0 => self.random.range(1_000_000, 25_000_000),
            _ => self.random.range(5_000, 600_000),
        };
        let ring = &mut self.loans[area].disk.ring;
        let number = ring.last_key_value().map_or(0, |(last, _)| last + 1).max(self.now << 8);
        ring.insert(number, submitted);
        self.schedule(after, Event::Ring(area, number));
    }

    /// The borrower's life that the lender serves.
    pub(crate) fn tenant_of(&self, loan: usize) -> Option<Life> {
        let card = self.nodes[LENDER].card.as_ref()?;
        self.peer_of(LENDER, loan, card)
    }

    /// The disk has done something.
    pub(crate) fn ring_done(&mut self, area: usize, number: u64) {
        let Some(submitted) = self.loans[area].disk.ring.remove(&number) else { return };
        let loan = submitted.work.loan;
        self.check_incarnation(loan, submitted.borrower);
        self.check_owner(&submitted.work, submitted.borrower);
        let result = self.execute(area, &submitted.work, submitted.journal);
        self.log.event(self.now, Some(LENDER), "done", submitted.work.offset, number);
        self.log.note(format_args!("{:?}", submitted.work.id));
        if self.nodes[LENDER].card.is_none() {
            self.marks.set(Mark::DiskOutlivedCard);
        }
        if submitted.card != self.nodes[LENDER].cards
            || self.dies_here(LENDER)
            || self.dies_hearing(&submitted.work, result)
        {
            return self.leave_result(&submitted.work, result);
        }
        let (ended, next) = self.flush_ended(&submitted.work);
        for work in ended {
            if !self.act(LENDER, |card, now| card.handle_media(now, work.loan, work.id, result)) {
                return self.leave_result(&submitted.work, result);
            }
        }
        if let Some(next) = next {
            self.submit(next.loan, next);
        }
        self.service(LENDER);
    }

    /// How many requests the disks have not ended yet.
    pub(crate) fn in_rings(&self) -> usize {
        self.loans.iter().map(|loan| loan.disk.ring.len()).sum()
    }

    /// The disks end everything at once, in any order; the results are no one's any more.
    pub(crate) fn drain_rings(&mut self) {
        for loan in 0..self.loans.len() {
            while !self.loans[loan].disk.ring.is_empty() {
                let keys: Vec<u64> = self.loans[loan].disk.ring.keys().copied().collect();
                let key = keys[self.random.index(keys.len())];
                let Some(submitted) = self.loans[loan].disk.ring.remove(&key) else { break };
                self.check_owner(&submitted.work, submitted.borrower);
                let result = self.execute(loan, &submitted.work, submitted.journal);
                self.leave_result(&submitted.work, result);
                self.log.event(self.now, Some(LENDER), "drain", submitted.work.offset, key);
                self.marks.set(Mark::DiskOutlivedCard);
            }
        }
    }
}

/// What stands for a kind in the log's hash.
fn kind_number(kind: device::MediaKind) -> u64 {
    match kind {
        device::MediaKind::Read => 0,
        device::MediaKind::Write => 1,
        device::MediaKind::Flush => 2,
        device::MediaKind::Trim => 3,
        device::MediaKind::Zero { deallocate } => 4 + u64::from(deallocate),
    }
}
