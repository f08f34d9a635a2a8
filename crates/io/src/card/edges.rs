use std::io;
use std::os::fd::{AsFd, OwnedFd};

use base::Instant;
use node::{Card, EDGE_CONNECTIONS};

use super::input::Present;
use super::{HOT, bytes, token};
use crate::messages::{FromLoan, ToAgent};
use crate::outbox::Outbox;
use crate::plan::{EdgeAccounts, SharedCells};
use crate::stream_socket::StreamProgress;
use crate::wait::{Interest, Waiter};

/// The connections of clients: the card reads and writes their sockets itself, the kernel keeps the account.
pub(super) struct Edges<'m> {
    shared: &'m SharedCells,
    /// By loan and slot. Boxes, since most of what there could be is not there.
    connections: Vec<Option<Box<Connection>>>,
    /// By loan, the slots that have one, as bits.
    open: Vec<u16>,
    /// Those that are read without asking, in no order.
    hot: Vec<usize>,
    /// Those that may have something to send, or room to read, that they did not have before, in no order.
    due: Vec<usize>,
}

const _: () = assert!(EDGE_CONNECTIONS == u16::BITS as usize);

struct Connection {
    socket: OwnedFd,
    interest: Interest,
    /// Until then it is read without asking.
    hot_until: Instant,
    /// Whether it is in [`Edges::hot`].
    is_hot: bool,
    /// Whether it is in [`Edges::due`].
    is_due: bool,
    /// The client is gone, but for what it has asked for before it said so. Nothing is read and nobody is told of
    /// replies.
    is_gone: bool,
    present: Present,
}

/// Where a connection stands after an attempt to move bytes.
enum Outcome {
    Moved,
    Nothing,
    /// The client sends nothing more.
    HalfClosed,
    Ended,
}

impl<'m> Edges<'m> {
    /// Those of a card with so many places.
    pub(super) fn new(shared: &'m SharedCells, places: usize) -> Self {
        let connections = (0..places * EDGE_CONNECTIONS).map(|_| None).collect();
        Self { shared, connections, open: vec![0; places], hot: Vec::new(), due: Vec::new() }
    }

    /// There is another place, behind the others.
    pub(super) fn append_place(&mut self) {
        self.connections.resize_with(self.connections.len() + EDGE_CONNECTIONS, || None);
        self.open.push(0);
    }

    /// A connection from the agent: new, or one that a dead card has served.
    pub(super) fn attach(
        &mut self,
        loan: usize,
        slot: usize,
        socket: OwnedFd,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<()> {
        let key = key(loan, slot);
        let accounts = self.accounts(key);
        let (received, sent) = (accounts.received.position(), accounts.sent.position());
        let fresh = received == 0 && sent == 0;
        if card.edge_is_idle(loan, slot) && !fresh {
            // A predecessor had closed it and died before it could say so.
            tell_closed(to_agent, key);
            return Ok(());
        }
        waiter.register(socket.as_fd(), token::EDGE + key as u64, Interest::READ)?;
        self.connections[key] = Some(Box::new(Connection {
            socket,
            interest: Interest::READ,
            hot_until: Instant::ZERO,
            is_hot: false,
            is_due: false,
            is_gone: false,
            present: Present::from(received),
        }));
        self.open[loan] |= 1 << slot;
        self.keep_hot(key, now);
        self.note_due(key);
        card.edge_resume(now, loan, slot, Some([received, sent]));
        Ok(())
    }

    /// Reads connections that were in use lately. True if anything came of it.
    pub(super) fn receive_hot(
        &mut self,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<bool> {
        let mut busy = false;
        // From the end, because one that has cooled down takes its place away.
        for place in (0..self.hot.len()).rev() {
            let key = self.hot[place];
            match &mut self.connections[key] {
                Some(connection) if now < connection.hot_until => {
                    busy |= self.read(key, card, now, waiter, to_agent)?;
                    continue;
                }
                Some(connection) => connection.is_hot = false,
                None => {}
            }
            self.hot.swap_remove(place);
        }
        Ok(busy)
    }

    /// Connection `key` can be read or written, or has ended. True if anything came of it.
    pub(super) fn receive(
        &mut self,
        key: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<bool> {
        self.note_due(key);
        self.read(key, card, now, waiter, to_agent)
    }

    fn read(
        &mut self,
        key: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<bool> {
        match self.receive_some(key, card, now) {
            Outcome::Moved => self.keep_hot(key, now),
            Outcome::Nothing => return Ok(false),
            // A client may close its half and still wait for replies.
            Outcome::HalfClosed => {
                let (loan, slot) = place(key);
                card.edge_ended(now, loan, slot);
            }
            Outcome::Ended => self.part(key, card, now, waiter, to_agent)?,
        }
        Ok(true)
    }

    /// The client of connection `key` is gone, which epoll goes on saying: its end is taken note of at once, even if
    /// there is no room for what it said last. Whatever can be read is read first.
    pub(super) fn hang_up(
        &mut self,
        key: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<()> {
        match self.receive_some(key, card, now) {
            Outcome::Moved => self.keep_hot(key, now),
            Outcome::Nothing | Outcome::HalfClosed | Outcome::Ended => {
                self.part(key, card, now, waiter, to_agent)?;
            }
        }
        Ok(())
    }

    /// The client of connection `key` is gone. What it wanted ends with that, unless it has said before that it goes.
    fn part(
        &mut self,
        key: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<()> {
        let (loan, slot) = place(key);
        match self.connections.get_mut(key).and_then(Option::as_mut) {
            Some(connection) if card.edge_is_leaving(loan, slot) => {
                (connection.is_gone, connection.hot_until) = (true, Instant::ZERO);
                // It would go on saying that it is gone.
                waiter.deregister(connection.socket.as_fd())?;
                // What it is owed is taken as sent.
                self.note_due(key);
                Ok(())
            }
            _ => self.close(key, card, now, waiter, to_agent),
        }
    }

    fn receive_some(&mut self, key: usize, card: &mut Card<'_>, now: Instant) -> Outcome {
        let accounts = self.accounts(key);
        let (loan, slot) = place(key);
        let connection = self.connections.get_mut(key).and_then(Option::as_mut);
        let Some(connection) = connection.filter(|it| !it.is_gone) else { return Outcome::Nothing };
        let position = accounts.received.position();
        let room = connection.present.offer(position, card.edge_receive_spans(loan, slot, position));
        match bytes::receive(connection.socket.as_fd(), &accounts.received, room) {
            StreamProgress::Progressed(_) => {
                card.edge_received(now, loan, slot, accounts.received.position());
                Outcome::Moved
            }
            StreamProgress::WouldBlock => Outcome::Nothing,
            StreamProgress::Closed => Outcome::HalfClosed,
            StreamProgress::Failed(_) => Outcome::Ended,
        }
    }

    /// Sends replies, ends what wants to be ended, and keeps the interest of each connection of which that may have
    /// changed: hundreds that do nothing cost nothing. True if bytes were moved.
    pub(super) fn send(
        &mut self,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<bool> {
        let mut busy = false;
        for loan in card.poll_stirred() {
            let mut open = self.open.get(loan).copied().unwrap_or_default();
            while open != 0 {
                self.note_due(key(loan, open.trailing_zeros() as usize));
                open &= open - 1;
            }
        }
        let mut due = std::mem::take(&mut self.due);
        for key in due.drain(..) {
            let Some(connection) = &mut self.connections[key] else { continue };
            connection.is_due = false;
            let (loan, slot) = self::place(key);
            let outcome = self.send_some(key, card, now);
            if card.edge_wants_close(loan, slot) {
                self.close(key, card, now, waiter, to_agent)?;
                busy = true;
                continue;
            } else if matches!(outcome, Outcome::Ended) {
                self.part(key, card, now, waiter, to_agent)?;
                busy = true;
                continue;
            }
            if matches!(outcome, Outcome::Moved) {
                self.keep_hot(key, now);
                busy = true;
            }
            self.keep_interest(key, card, waiter)?;
        }
        due.append(&mut self.due);
        self.due = due;
        Ok(busy)
    }

    fn send_some(&mut self, key: usize, card: &mut Card<'_>, now: Instant) -> Outcome {
        let accounts = self.accounts(key);
        let (loan, slot) = place(key);
        let Some(connection) = &self.connections[key] else { return Outcome::Nothing };
        let position = accounts.sent.position();
        let end = card.edge_output_end(loan, slot);
        if position >= end {
            return Outcome::Nothing;
        }
        if connection.is_gone {
            card.edge_sent(now, loan, slot, end);
            return Outcome::Nothing;
        }
        let owed = |spans: &mut [_]| card.edge_send_spans(loan, slot, position, spans);
        match bytes::send(connection.socket.as_fd(), &accounts.sent, usize::MAX, owed) {
            Some(StreamProgress::Progressed(_)) => {
                card.edge_sent(now, loan, slot, accounts.sent.position());
                Outcome::Moved
            }
            Some(StreamProgress::WouldBlock) | None => Outcome::Nothing,
            Some(StreamProgress::Closed | StreamProgress::Failed(_)) => Outcome::Ended,
        }
    }

    /// Reading is asked for while there is room, writing while something is owed: readiness is level-triggered.
    fn keep_interest(&mut self, key: usize, card: &Card<'_>, waiter: &Waiter) -> io::Result<()> {
        let accounts = self.accounts(key);
        let (loan, slot) = place(key);
        let spans = card.edge_receive_spans(loan, slot, accounts.received.position());
        let wanted = Interest {
            read: spans.iter().any(Option::is_some),
            write: accounts.sent.position() < card.edge_output_end(loan, slot),
        };
        if let Some(connection) = &mut self.connections[key]
            && connection.interest != wanted
            && !connection.is_gone
        {
            waiter.modify(connection.socket.as_fd(), token::EDGE + key as u64, wanted)?;
            connection.interest = wanted;
        }
        Ok(())
    }

    fn close(
        &mut self,
        key: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<()> {
        let (loan, slot) = place(key);
        if let Some(connection) = self.connections[key].take() {
            self.open[loan] &= !(1 << slot);
            if !connection.is_gone {
                waiter.deregister(connection.socket.as_fd())?;
            }
            // The agent holds a copy, so closing ours would not end the connection.
            let _ = rustix::net::shutdown(&connection.socket, rustix::net::Shutdown::Both);
            card.edge_closed(now, loan, slot);
            tell_closed(to_agent, key);
        }
        Ok(())
    }

    fn keep_hot(&mut self, key: usize, now: Instant) {
        if let Some(connection) = &mut self.connections[key] {
            connection.hot_until = now + HOT;
            if !std::mem::replace(&mut connection.is_hot, true) {
                self.hot.push(key);
            }
        }
    }

    fn note_due(&mut self, key: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(key)
            && !std::mem::replace(&mut connection.is_due, true)
        {
            self.due.push(key);
        }
    }

    fn accounts(&self, key: usize) -> &'m EdgeAccounts {
        let (loan, slot) = place(key);
        &self.shared.edges[loan][slot]
    }
}

fn tell_closed(to_agent: &mut Outbox<ToAgent>, key: usize) {
    let (loan, slot) = place(key);
    to_agent.push_of(loan, FromLoan::Disconnected { slot });
}

fn key(loan: usize, slot: usize) -> usize {
    loan * EDGE_CONNECTIONS + slot
}

fn place(key: usize) -> (usize, usize) {
    (key / EDGE_CONNECTIONS, key % EDGE_CONNECTIONS)
}
