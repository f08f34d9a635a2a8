//! The edges: the kernel's sockets between NBD clients and the borrowing cards.
//!
//! The kernel's account of a socket survives the card: how many bytes it has put into the ledger, and how many it has
//! taken out. A successor is told both again.

use base::Random;
use base::ledger::{Journal, Span};
use node::{Card, EDGE_CONNECTIONS};

use crate::checkers::names;
use crate::checkers::single_owner::Life;
use crate::client::{Client, Seat, Shared};
use crate::disks::Disks;
use crate::marks::Mark;
use crate::stage::{Event, Stage};

/// The clients of a world, and their connections.
pub(crate) struct Clients {
    list: Vec<(Seat, Client)>,
    /// By node, loan and slot of its edge.
    sockets: Vec<Vec<[Option<Socket>; EDGE_CONNECTIONS]>>,
}

/// A slot of a loan's edge at a node.
#[derive(Clone, Copy)]
struct Edge {
    node: usize,
    loan: usize,
    slot: usize,
}

/// A connected client's socket.
#[derive(Clone, Copy, Default)]
struct Socket {
    client: usize,
    /// Bytes that the kernel has put into the ledger.
    received: u64,
    /// Bytes that the kernel has taken from it.
    sent: u64,
}

/// What the kernel has put into the ledger, all in all, and whether the client has more.
struct Put {
    position: u64,
    has_more: bool,
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

impl Clients {
    /// These, at so many nodes with so many loans.
    pub(crate) fn new(list: Vec<(Seat, Client)>, nodes: usize, loans: usize) -> Self {
        Self { list, sockets: vec![vec![[None; EDGE_CONNECTIONS]; loans]; nodes] }
    }

    /// They come, a moment after the beginning.
    pub(crate) fn begin(&self, stage: &mut Stage<'_>) {
        for client in 0..self.list.len() {
            stage.clock.after(stage.random.below(2_000_000), Event::Think(client));
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Client> {
        self.list.iter().map(|(_, client)| client)
    }

    /// Those that have not ended, for a report.
    pub(crate) fn unanswered(&self) -> Vec<String> {
        let (is_left, list) = (|client: &Client| !client.is_done() || !client.is_away(), self.list.iter());
        let left = list.filter(|(_, client)| is_left(client));
        left.map(|(seat, client)| format!("{seat:?}: {}", client.unanswered())).collect()
    }

    /// Those of a loan at a node.
    fn of(&self, node: usize, loan: usize) -> impl Iterator<Item = &(Seat, Client)> {
        self.list.iter().filter(move |(seat, _)| (seat.node, seat.loan) == (node, loan))
    }

    /// Whether clients of a node have something left to do with a loan.
    pub(crate) fn want(&self, node: usize, loan: usize) -> bool {
        self.of(node, loan).any(|(seat, client)| seat.area == loan && !client.is_done())
    }

    /// Those of a node want nothing any more.
    pub(crate) fn give_up(&mut self, node: usize) {
        let its = self.list.iter_mut().filter(|(seat, _)| seat.node == node);
        its.for_each(|(_, client)| client.give_up());
    }

    /// Another borrower has the loan: what those of `who` wait for happens before that one is served, or never.
    pub(crate) fn abandon_writes(&self, loan: usize, who: Life, shared: &mut Shared) {
        self.of(who.node, loan).for_each(|(_, client)| client.abandon_writes(shared, who));
    }

    /// Whether something was served that was asked for since then.
    pub(crate) fn are_served(&self, node: usize, loan: usize, since: u64) -> bool {
        self.of(node, loan).any(|(_, client)| client.served_of >= since)
    }

    fn socket(&mut self, edge: Edge) -> Option<&mut Socket> {
        self.sockets[edge.node][edge.loan][edge.slot].as_mut()
    }

    /// A slot for another client.
    fn vacancy(&self, card: Option<&Card<'_>>, node: usize, loan: usize) -> Option<usize> {
        let sockets = &self.sockets[node][loan];
        let is_idle = |slot: &usize| card.is_some_and(|card| card.edge_is_idle(loan, *slot));
        (0..sockets.len()).find(|slot| sockets[*slot].is_none() && is_idle(slot))
    }

    /// Bytes of the client go to the card, if there are any and there is room.
    fn put(&mut self, edge: Edge, card: &Card<'_>, journal: Journal<'_>, random: &mut Random) -> Option<Put> {
        let socket = self.sockets[edge.node][edge.loan][edge.slot].as_mut()?;
        let outbox = &mut self.list[socket.client].1.outbox;
        let (waiting, spans) = (outbox.len(), card.edge_receive_spans(edge.loan, edge.slot, socket.received));
        let room = room_in(&spans);
        if waiting == 0 || room == 0 {
            return None;
        }
        let len = random.portion(waiting.min(room));
        let bytes: Vec<u8> = outbox.drain(..len).collect();
        write(&spans, journal, &bytes);
        socket.received += len as u64;
        Some(Put { position: socket.received, has_more: len < waiting })
    }

    /// A client comes, or thinks of requests. Returns its node, if the card is to be served.
    pub(crate) fn think(&mut self, stage: &mut Stage<'_>, client: usize) -> Option<usize> {
        let (Seat { node, area, .. }, this) = &mut self.list[client];
        let shared = &mut stage.loans[*area].shared;
        if this.is_away() {
            return if this.is_done() { None } else { self.connect(stage, client) };
        }
        if this.ask(shared, stage.nodes[*node].who()) {
            let requests = shared.requests;
            stage.log(None, "ask", client as u64, requests);
            stage.wake_at(*node, stage.clock.now);
        }
        None
    }

    fn connect(&mut self, stage: &mut Stage<'_>, client: usize) -> Option<usize> {
        let Seat { node, loan, .. } = self.list[client].0;
        let borrower = &stage.nodes[node];
        if borrower.is_away || borrower.agent.is_shutting_down() {
            stage.clock.after(500_000_000, Event::Think(client));
            return None;
        }
        let Some(slot) = self.vacancy(borrower.card.as_ref(), node, loan) else {
            stage.clock.after(3_000_000, Event::Think(client));
            return None;
        };
        stage.log(None, "open", client as u64, slot as u64);
        self.sockets[node][loan][slot] = Some(Socket { client, ..Socket::default() });
        self.list[client].1.connected();
        stage.act(node, |card, now| card.edge_open(now, loan, slot)).then_some(node)
    }

    /// A client's connection ends, by whomever.
    fn hang_up(&mut self, stage: &mut Stage<'_>, edge: Edge) {
        let socket = self.sockets[edge.node][edge.loan][edge.slot].take();
        let Some(number) = socket.map(|socket| socket.client) else { return };
        let (seat, client) = &mut self.list[number];
        stage.report.marks.set_if(Mark::ClientLeft, client.in_flight() > 0);
        client.disconnected(&mut stage.loans[seat.area].shared, stage.nodes[edge.node].who());
        stage.log(None, "close", number as u64, edge.slot as u64);
        if !client.is_done() {
            let after = stage.random.range(100_000, 5_000_000);
            stage.clock.after(after, Event::Think(number));
        }
    }

    /// A client leaves in the middle of everything, if there is one. Returns its node, if the card is to be served.
    pub(crate) fn leave(
        &mut self,
        stage: &mut Stage<'_>,
        dice: &mut Random,
        (node, loan): (usize, usize),
    ) -> Option<usize> {
        let sockets = &self.sockets[node][loan];
        let slots: Vec<usize> = (0..sockets.len()).filter(|slot| sockets[*slot].is_some()).collect();
        if slots.is_empty() {
            return None;
        }
        let slot = slots[dice.index(slots.len())];
        self.hang_up(stage, Edge { node, loan, slot });
        self.closed(stage, Edge { node, loan, slot }).then_some(node)
    }

    /// The card hears that a client has gone: false if it does not live.
    fn closed(&self, stage: &mut Stage<'_>, Edge { node, loan, slot }: Edge) -> bool {
        !stage.dies_here(node) && stage.act(node, |card, now| card.edge_closed(now, loan, slot))
    }

    /// A node has lost its ledger and its sockets.
    pub(crate) fn lose_node(&mut self, stage: &mut Stage<'_>, node: usize) {
        for loan in 0..stage.loans.len() {
            (0..EDGE_CONNECTIONS).for_each(|slot| self.hang_up(stage, Edge { node, loan, slot }));
            if stage.loans[loan].tenure.holder == Some(node) {
                stage.loans[loan].lose_kept(stage.nodes[node].who());
            }
        }
    }

    /// Its program runs again.
    pub(crate) fn come_back(&self, stage: &mut Stage<'_>, node: usize) {
        for client in (0..self.list.len()).filter(|client| self.list[*client].0.node == node) {
            stage.clock.after(1_000_000, Event::Think(client));
        }
    }

    /// The agent tells a new card of its sockets.
    pub(crate) fn tell(&self, stage: &mut Stage<'_>, node: usize, loan: usize) {
        for slot in 0..EDGE_CONNECTIONS {
            let moved = self.sockets[node][loan][slot].map(|socket| [socket.received, socket.sent]);
            if !stage.act(node, |card, now| card.edge_resume(now, loan, slot, moved)) {
                return;
            }
        }
    }

    /// Bytes of clients go to the card, and its bytes to them.
    pub(crate) fn serve(&mut self, stage: &mut Stage<'_>, disks: &Disks<'_>, node: usize, loan: usize) {
        for slot in 0..EDGE_CONNECTIONS {
            if stage.nodes[node].card.is_none() || stage.report.has_failed() {
                return;
            }
            let edge = Edge { node, loan, slot };
            if self.socket(edge).is_some() {
                let _ = self.fill(stage, edge)
                    && self.drain(stage, disks, edge)
                    && self.close_if_wanted(stage, edge);
            }
        }
        // Of what a write that nobody waits for has become, a function knows, and the others do not.
        if disks.shared.is_none() {
            self.end_orphans(stage, node, loan);
        }
    }

    /// Bytes of the client go to the card.
    fn fill(&mut self, stage: &mut Stage<'_>, edge: Edge) -> bool {
        let Edge { node, loan, slot } = edge;
        let Some(card) = &stage.nodes[node].card else { return false };
        let put = self.put(edge, card, stage.nodes[node].kernel(), &mut stage.random);
        let Some(Put { position, has_more }) = put else { return true };
        if has_more {
            stage.wake_soon(node);
        }
        !stage.dies_here(node) && stage.act(node, |card, now| card.edge_received(now, loan, slot, position))
    }

    /// Bytes of the card go to the client.
    fn drain(&mut self, stage: &mut Stage<'_>, disks: &Disks<'_>, edge: Edge) -> bool {
        let Edge { node, loan, slot } = edge;
        let (Some(card), Some(socket)) = (&stage.nodes[node].card, self.socket(edge)) else {
            return false;
        };
        if card.edge_output_end(loan, slot) <= socket.sent {
            return true;
        }
        stage.report.judge(names::COMMIT_BEFORE_SEND, stage.nodes[node].check_commit());
        let mut bytes = output(card, edge, socket.sent);
        if bytes.is_empty() {
            let what = "there are bytes for a client, but they are nowhere";
            stage.report.fail(names::COMPLETIONS, what.into());
            return false;
        }
        bytes.truncate(stage.random.portion(bytes.len()));
        socket.sent += bytes.len() as u64;
        let (client, position) = (socket.client, socket.sent);
        self.deliver(stage, disks, (edge, client), &bytes);
        stage.wake_soon(node);
        !stage.report.has_failed()
            && !stage.dies_here(node)
            && stage.act(node, |card, now| card.edge_sent(now, loan, slot, position))
    }

    fn deliver(
        &mut self,
        stage: &mut Stage<'_>,
        disks: &Disks<'_>,
        (Edge { node, loan, .. }, number): (Edge, usize),
        bytes: &[u8],
    ) {
        let excuse = stage.loans[loan].tenure.excuse(node, stage.nodes[node].agent.is_shutting_down());
        let (Seat { area, .. }, client) = &mut self.list[number];
        let (area, shared) = (*area, &mut stage.loans[*area].shared);
        let served = client.served;
        let received = client.receive(bytes, shared, excuse);
        stage.report.marks.set_if(Mark::RequestTimeout, shared.timeouts > 0);
        match received {
            Ok(ended) => {
                if ended {
                    stage.report.log.event(stage.clock.now, None, "got", number as u64, shared.tick);
                    if client.served > served && area == loan {
                        shared.end_orphans_of_others(stage.nodes[node].who());
                    }
                }
                disks.judge_flushes(stage, area);
                let after = stage.random.below(150_000);
                stage.clock.after(after, Event::Think(number));
            }
            Err((checker, what)) => stage.report.fail(checker, what),
        }
    }

    fn close_if_wanted(&mut self, stage: &mut Stage<'_>, edge: Edge) -> bool {
        let Some(card) = stage.nodes[edge.node].card.as_ref() else { return false };
        if !card.edge_wants_close(edge.loan, edge.slot) {
            return true;
        }
        self.hang_up(stage, edge);
        self.closed(stage, edge)
    }

    /// The card knows of all clients that have gone: their writes come before whatever is asked from now on, or never.
    fn end_orphans(&self, stage: &mut Stage<'_>, node: usize, loan: usize) {
        if stage.loans[loan].shared.orphans.is_empty() {
            return;
        }
        let Some(card) = stage.nodes[node].card.as_ref() else { return };
        let sockets = &self.sockets[node][loan];
        if (0..sockets.len()).all(|slot| sockets[slot].is_some() || card.edge_is_idle(loan, slot)) {
            stage.loans[loan].shared.end_orphans_of(stage.nodes[node].who());
        }
    }
}

/// Bytes of the card for a client, from where the kernel has taken the last ones.
fn output(card: &Card<'_>, edge: Edge, sent: u64) -> Vec<u8> {
    let mut spans = [Span::empty(); 8];
    let count = card.edge_send_spans(edge.loan, edge.slot, sent, &mut spans);
    read(&spans[..count])
}
