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
use crate::marks::Mark;
use crate::world::{Event, World};

/// The clients of a world, and their connections.
pub(crate) struct Clients {
    list: Vec<(Seat, Client)>,
    /// By node, loan and slot of its edge.
    sockets: Vec<Vec<[Option<Socket>; EDGE_CONNECTIONS]>>,
}

/// A slot of a loan's edge at a node.
#[derive(Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) node: usize,
    pub(crate) loan: usize,
    pub(crate) slot: usize,
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

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &(Seat, Client)> {
        self.list.iter()
    }

    /// Those of a loan at a node.
    fn of(&self, node: usize, loan: usize) -> impl Iterator<Item = &(Seat, Client)> {
        self.list.iter().filter(move |(seat, _)| (seat.node, seat.loan) == (node, loan))
    }

    /// Those of a node, by number.
    pub(crate) fn at(&self, node: usize) -> impl Iterator<Item = usize> {
        (0..self.list.len()).filter(move |client| self.list[*client].0.node == node)
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

    /// The slots of a loan's edge that have a client.
    pub(crate) fn connected(&self, node: usize, loan: usize) -> impl Iterator<Item = usize> + use<> {
        let sockets = self.sockets[node][loan];
        (0..sockets.len()).filter(move |slot| sockets[*slot].is_some())
    }

    /// A slot for another client.
    fn vacancy(&self, card: Option<&Card<'_>>, node: usize, loan: usize) -> Option<usize> {
        let sockets = &self.sockets[node][loan];
        let is_idle = |slot: &usize| card.is_some_and(|card| card.edge_is_idle(loan, *slot));
        (0..sockets.len()).find(|slot| sockets[*slot].is_none() && is_idle(slot))
    }

    fn connect(&mut self, edge: Edge, client: usize) {
        self.sockets[edge.node][edge.loan][edge.slot] = Some(Socket { client, ..Socket::default() });
        self.list[client].1.connected();
    }

    /// What the agent tells a new card of a slot's socket.
    fn moved(&mut self, edge: Edge) -> Option<[u64; 2]> {
        self.socket(edge).map(|socket| [socket.received, socket.sent])
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
}

/// Bytes of the card for a client, from where the kernel has taken the last ones.
fn output(card: &Card<'_>, edge: Edge, sent: u64) -> Vec<u8> {
    let mut spans = [Span::empty(); 8];
    let count = card.edge_send_spans(edge.loan, edge.slot, sent, &mut spans);
    read(&spans[..count])
}

impl World<'_> {
    /// A client comes, or thinks of requests.
    pub(crate) fn think(&mut self, client: usize) {
        let (Seat { node, area, .. }, this) = &mut self.clients.list[client];
        let shared = &mut self.loans[*area].shared;
        if this.is_away() {
            if !this.is_done() {
                self.connect(client);
            }
        } else if this.ask(shared, self.nodes[*node].who()) {
            self.report.log.event(self.clock.now, None, "ask", client as u64, shared.requests);
            let node = *node;
            self.wake_at(node, self.clock.now);
        }
    }

    fn connect(&mut self, client: usize) {
        let Seat { node, loan, .. } = self.clients.list[client].0;
        let borrower = &self.nodes[node];
        if borrower.is_away || borrower.agent.is_shutting_down() {
            return self.clock.after(500_000_000, Event::Think(client));
        }
        let Some(slot) = self.clients.vacancy(borrower.card.as_ref(), node, loan) else {
            return self.clock.after(3_000_000, Event::Think(client));
        };
        self.report.log.event(self.clock.now, None, "open", client as u64, slot as u64);
        self.clients.connect(Edge { node, loan, slot }, client);
        if self.act(node, |card, now| card.edge_open(now, loan, slot)) {
            self.service(node);
        }
    }

    /// A client's connection ends, by whomever.
    pub(crate) fn hang_up(&mut self, edge: Edge) {
        let socket = self.clients.sockets[edge.node][edge.loan][edge.slot].take();
        let Some(number) = socket.map(|socket| socket.client) else { return };
        let (seat, client) = &mut self.clients.list[number];
        self.report.marks.set_if(Mark::ClientLeft, client.in_flight() > 0);
        client.disconnected(&mut self.loans[seat.area].shared, self.nodes[edge.node].who());
        self.report.log.event(self.clock.now, None, "close", number as u64, edge.slot as u64);
        if !client.is_done() {
            let after = self.random.range(100_000, 5_000_000);
            self.clock.after(after, Event::Think(number));
        }
    }

    /// The agent tells a new card of its sockets.
    pub(crate) fn tell_edges(&mut self, node: usize, loan: usize) {
        for slot in 0..EDGE_CONNECTIONS {
            let moved = self.clients.moved(Edge { node, loan, slot });
            if !self.act(node, |card, now| card.edge_resume(now, loan, slot, moved)) {
                return;
            }
        }
    }

    pub(crate) fn serve_edges(&mut self, node: usize, loan: usize) {
        for slot in 0..EDGE_CONNECTIONS {
            if self.nodes[node].card.is_none() || self.report.has_failed() {
                return;
            }
            let edge = Edge { node, loan, slot };
            if self.clients.socket(edge).is_some() {
                let _ = self.fill(edge) && self.drain(edge) && self.close_if_wanted(edge);
            }
        }
        self.end_orphans(node, loan);
    }

    /// Bytes of the client go to the card.
    fn fill(&mut self, edge: Edge) -> bool {
        let Edge { node, loan, slot } = edge;
        let Some(card) = &self.nodes[node].card else { return false };
        let Some(put) = self.clients.put(edge, card, self.nodes[node].kernel(), &mut self.random) else {
            return true;
        };
        if put.has_more {
            self.wake_soon(node);
        }
        let position = put.position;
        !self.dies_here(node) && self.act(node, |card, now| card.edge_received(now, loan, slot, position))
    }

    /// Bytes of the card go to the client.
    fn drain(&mut self, edge: Edge) -> bool {
        let Edge { node, loan, slot } = edge;
        let (Some(card), Some(socket)) = (&self.nodes[node].card, self.clients.socket(edge)) else {
            return false;
        };
        if card.edge_output_end(loan, slot) <= socket.sent {
            return true;
        }
        self.report.judge(names::COMMIT_BEFORE_SEND, self.nodes[node].check_commit());
        let mut bytes = output(card, edge, socket.sent);
        if bytes.is_empty() {
            let what = "there are bytes for a client, but they are nowhere";
            self.report.fail(names::COMPLETIONS, what.into());
            return false;
        }
        bytes.truncate(self.random.portion(bytes.len()));
        socket.sent += bytes.len() as u64;
        let (client, position) = (socket.client, socket.sent);
        self.deliver(node, loan, client, &bytes);
        self.wake_soon(node);
        !self.report.has_failed()
            && !self.dies_here(node)
            && self.act(node, |card, now| card.edge_sent(now, loan, slot, position))
    }

    fn deliver(&mut self, node: usize, loan: usize, number: usize, bytes: &[u8]) {
        let excuse = self.loans[loan].tenure.excuse(node, self.nodes[node].agent.is_shutting_down());
        let (Seat { area, .. }, client) = &mut self.clients.list[number];
        let (area, shared) = (*area, &mut self.loans[*area].shared);
        let served = client.served;
        let received = client.receive(bytes, shared, excuse);
        self.report.marks.set_if(Mark::RequestTimeout, shared.timeouts > 0);
        match received {
            Ok(ended) => {
                if ended {
                    self.report.log.event(self.clock.now, None, "got", number as u64, shared.tick);
                    if client.served > served && area == loan {
                        shared.end_orphans_of_others(self.nodes[node].who());
                    }
                }
                self.judge_flushes(area);
                let after = self.random.below(150_000);
                self.clock.after(after, Event::Think(number));
            }
            Err((checker, what)) => self.report.fail(checker, what),
        }
    }

    fn close_if_wanted(&mut self, edge: Edge) -> bool {
        let Edge { node, loan, slot } = edge;
        let Some(card) = self.nodes[node].card.as_ref() else { return false };
        if !card.edge_wants_close(loan, slot) {
            return true;
        }
        self.hang_up(edge);
        !self.dies_here(node) && self.act(node, |card, now| card.edge_closed(now, loan, slot))
    }

    /// The card knows of all clients that have gone: their writes come before whatever is asked from now on, or never.
    fn end_orphans(&mut self, node: usize, loan: usize) {
        // Of what a write that nobody waits for has become, a function knows, and the others do not.
        if self.loans[loan].shared.orphans.is_empty() || self.shared.is_some() {
            return;
        }
        let Some(card) = self.nodes[node].card.as_ref() else { return };
        let sockets = &self.clients.sockets[node][loan];
        if (0..sockets.len()).all(|slot| sockets[slot].is_some() || card.edge_is_idle(loan, slot)) {
            self.loans[loan].shared.end_orphans_of(self.nodes[node].who());
        }
    }

    pub(crate) fn wake_soon(&mut self, node: usize) {
        let at = self.clock.now + self.random.range(1_000, 20_000);
        self.wake_at(node, at);
    }
}
