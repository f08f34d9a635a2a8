//! The clients of slots: the card reads and writes their sockets itself, the kernel keeps the account, and the agent
//! receives what comes with descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use base::Instant;
use node::{Card, DescriptorId, Peeked};

use super::parked::Parked;
use super::{HOT, bytes, token};
use crate::guest_memory::GuestDescriptors;
use crate::messages::{FromSlot, ToAgent};
use crate::outbox::Outbox;
use crate::plan::{EdgeAccounts, SharedCells};
use crate::stream_socket::{self, StreamProgress, hang_up};
use crate::wait::{Ready, Waiter};

/// Bytes in one send: the kernel takes so many at once or none, and QEMU gives up on half a header.
const SEND_BYTES: usize = 64 << 10;
/// Bytes that are looked at before they are received: many short messages.
const PEEK_BYTES: usize = 16 << 10;
/// How long a client that is to be parked may take to be between two messages.
const PARTING: Duration = Duration::from_secs(1);

/// The slots of a card.
pub(super) struct Slots<'m> {
    shared: &'m SharedCells,
    /// Loans that are slots.
    loans: Vec<usize>,
    /// By loan.
    connections: Vec<Option<Connection>>,
    /// Loans of which descriptors were given back to the agent, who has not closed them yet.
    releasing: Vec<usize>,
    descriptors: Rc<GuestDescriptors>,
    parked: Parked<'m>,
    peeked: Box<[u8; PEEK_BYTES]>,
    /// There is no agent any more: nobody takes messages, nobody keeps descriptors.
    alone: bool,
}

struct Connection {
    socket: OwnedFd,
    /// Something may be there that was not looked at, or could not be received.
    readable: bool,
    /// What did not fit when last tried may fit now.
    writable: bool,
    /// The client sends nothing more.
    ended: bool,
    /// The client is gone.
    hung_up: bool,
    /// The agent was asked for the next message, which is this.
    asked: Option<Vec<u8>>,
    /// It is to be parked as soon as it is between two messages; until then.
    parting: Option<Instant>,
    /// Until then it is looked at without asking.
    hot_until: Instant,
}

/// What came of an attempt to move bytes.
enum Outcome {
    Moved,
    Nothing,
    /// The client sends nothing more.
    Ended,
    Failed,
}

/// What verbs of slots act on.
pub(super) struct Context<'a, 'm> {
    pub(super) card: &'a mut Card<'m>,
    pub(super) now: Instant,
    pub(super) waiter: &'a Waiter,
    pub(super) to_agent: &'a mut Outbox<ToAgent>,
}

impl<'m> Slots<'m> {
    /// Those of a card with `places` places, of which `loans` are slots.
    pub(super) fn new(shared: &'m SharedCells, loans: Vec<usize>, places: usize) -> Self {
        Self {
            shared,
            loans,
            connections: (0..places).map(|_| None).collect(),
            releasing: Vec::new(),
            descriptors: Rc::default(),
            parked: Parked::new(&shared.in_hand),
            peeked: Box::new([0; PEEK_BYTES]),
            alone: false,
        }
    }

    /// There is another place, behind the others.
    pub(super) fn append_place(&mut self) {
        self.connections.push(None);
    }

    /// What came over the sockets and is kept by the agent.
    pub(super) fn descriptors(&self) -> &Rc<GuestDescriptors> {
        &self.descriptors
    }

    /// Whether any virtual machine is connected.
    pub(super) fn has_clients(&self) -> bool {
        !self.parked.is_empty() || self.connections.iter().any(Option::is_some)
    }

    /// When something is to be done although nothing is ready.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.connections.iter().flatten().filter_map(|connection| connection.parting).min()
    }

    /// Descriptors that the agent keeps.
    pub(super) fn learn(&self, loan: usize, ids: &[u32], descriptors: impl Iterator<Item = OwnedFd>) {
        for (id, descriptor) in ids.iter().zip(descriptors) {
            self.descriptors.insert(loan, *id, descriptor);
        }
    }

    /// Another loan has the place, which no machine is connected to: a slot, or something else.
    pub(super) fn renew(&mut self, loan: usize, is_slot: bool) {
        self.connections[loan] = None;
        self.loans.retain(|slot| *slot != loan);
        self.loans.extend(is_slot.then_some(loan));
        self.releasing.retain(|releasing| *releasing != loan);
        self.descriptors.forget(loan);
    }

    /// A client from the agent: new, or one that a dead card has served.
    pub(super) fn attach(
        &mut self,
        loan: usize,
        socket: OwnedFd,
        context: Context<'_, 'm>,
    ) -> io::Result<()> {
        let Context { card, now, waiter, to_agent } = context;
        let accounts = self.accounts(loan);
        let (received, sent) = (accounts.received.position(), accounts.sent.position());
        let is_idle = card.slot_is_idle(loan);
        if is_idle && (received, sent) != (0, 0) {
            // A predecessor had parked or closed it, and died before it could say so.
            self.parked.add(socket, waiter)?;
            to_agent.push_of(loan, FromSlot::Parked);
            return Ok(());
        }
        waiter.register_edges(socket.as_fd(), token::SLOT + loan as u64)?;
        self.connections[loan] = Some(Connection {
            socket,
            readable: true,
            writable: true,
            ended: false,
            hung_up: false,
            asked: None,
            parting: None,
            hot_until: now + HOT,
        });
        card.slot_resume(now, loan, Some([received, sent]));
        populate(card, loan, received);
        if card.slot_is_idle(loan) {
            // The function is not known to this card.
            self.close(loan, &mut Context { card, now, waiter, to_agent })?;
        }
        Ok(())
    }

    /// The agent has received the message that it was asked for, or tells of it again.
    pub(super) fn take(
        &mut self,
        loan: usize,
        number: u64,
        bytes: &[u8],
        ids: &[u32],
        context: Context<'_, 'm>,
    ) {
        let ids: Vec<_> = ids.iter().copied().map(DescriptorId).collect();
        context.card.slot_taken(context.now, loan, number, bytes, &ids);
        if let Some(connection) = &mut self.connections[loan] {
            connection.asked = None;
            connection.hot_until = context.now + HOT;
        }
    }

    /// The agent has closed what was given back.
    pub(super) fn closed(&mut self, loan: usize, ids: &[u32], card: &mut Card<'_>, now: Instant) {
        self.releasing.retain(|releasing| *releasing != loan);
        for id in ids {
            self.descriptors.remove(loan, *id);
            card.slot_descriptor_closed(now, loan, DescriptorId(*id));
        }
    }

    /// Epoll has something to say of a slot, or of a parked connection.
    pub(super) fn note(&mut self, ready: Ready) {
        if ready.token >= token::PARKED {
            return self.parked.note(ready);
        }
        let loan = (ready.token - token::SLOT) as usize;
        if let Some(connection) = self.connections.get_mut(loan).and_then(Option::as_mut) {
            connection.readable |= ready.read;
            connection.writable |= ready.write;
            connection.ended |= ready.ended;
            connection.hung_up |= ready.hangup;
        }
    }

    /// Looks at what may have something. True if anything came of it.
    pub(super) fn receive(&mut self, mut context: Context<'_, 'm>) -> io::Result<bool> {
        let mut busy = self.parked.serve(context.waiter, context.to_agent)?;
        for place in 0..self.loans.len() {
            let loan = self.loans[place];
            let Some(connection) = &self.connections[loan] else { continue };
            let hot = context.now < connection.hot_until;
            if connection.asked.is_some() || !(connection.readable || connection.hung_up || hot) {
                continue;
            }
            let hung_up = connection.hung_up;
            match self.receive_some(loan, &mut context) {
                Outcome::Moved => {
                    self.keep_hot(loan, context.now);
                    busy = true;
                }
                Outcome::Nothing if !hung_up => {}
                Outcome::Ended if !hung_up => {
                    if let Some(connection) = &mut self.connections[loan] {
                        // Said once: the end stays readable.
                        (connection.readable, connection.hot_until) = (false, Instant::ZERO);
                        connection.ended = false;
                    }
                    context.card.slot_ended(context.now, loan);
                    busy = true;
                }
                _ => {
                    self.close(loan, &mut context)?;
                    busy = true;
                }
            }
        }
        Ok(busy)
    }

    fn receive_some(&mut self, loan: usize, context: &mut Context<'_, 'm>) -> Outcome {
        let accounts = self.accounts(loan);
        let Some(connection) = &mut self.connections[loan] else { return Outcome::Nothing };
        let len = match stream_socket::peek(connection.socket.as_fd(), &mut self.peeked[..]) {
            StreamProgress::Progressed(len) => len,
            StreamProgress::WouldBlock => {
                connection.readable = false;
                return Outcome::Nothing;
            }
            StreamProgress::Closed => return Outcome::Ended,
            StreamProgress::Failed(_) => return Outcome::Failed,
        };
        let (card, position) = (&mut *context.card, accounts.received.position());
        let number = card.slot_taken_count(loan);
        match card.slot_peeked(loan, position, number, &self.peeked[..len]) {
            Peeked::Consume(len) => {
                let spans = card.slot_receive_spans(loan, position, len);
                let progress = bytes::receive(connection.socket.as_fd(), &accounts.received, spans);
                if let StreamProgress::Closed | StreamProgress::Failed(_) = progress {
                    return Outcome::Failed;
                }
                card.slot_received(context.now, loan, accounts.received.position());
                let has_moved = matches!(progress, StreamProgress::Progressed(_));
                if has_moved { Outcome::Moved } else { Outcome::Nothing }
            }
            Peeked::AgentTakes { len } if self.alone => {
                let mut bytes = vec![0; len];
                let len = stream_socket::receive_alone(connection.socket.as_fd(), &mut bytes);
                card.slot_taken(context.now, loan, number + 1, &bytes[..len], &[]);
                Outcome::Moved
            }
            Peeked::AgentTakes { len } => {
                connection.asked = Some(self.peeked[..len].to_vec());
                context.to_agent.push_of(loan, FromSlot::Take { number: number + 1, len });
                Outcome::Moved
            }
            // The rest does not come any more.
            Peeked::NeedMore if connection.ended => Outcome::Ended,
            // It is told when there is more.
            Peeked::NeedMore => {
                connection.readable = false;
                Outcome::Nothing
            }
            // Something else has to happen first, and then this is tried again.
            Peeked::Wait => {
                connection.readable = true;
                Outcome::Nothing
            }
        }
    }

    /// Interrupts guests, sends replies, gives descriptors back, and closes what wants to be closed. True if anything
    /// was done.
    pub(super) fn send(&mut self, mut context: Context<'_, 'm>) -> io::Result<bool> {
        let mut busy = false;
        while let Some((loan, id)) = context.card.poll_signal() {
            self.descriptors.signal(loan, id);
            busy = true;
        }
        for (loan, what, others) in self.descriptors.take_troubles() {
            context.to_agent.push_of(loan, FromSlot::Trouble { what, others });
        }
        for place in 0..self.loans.len() {
            let loan = self.loans[place];
            self.give_back(loan, &mut context);
            if self.connections[loan].is_none() {
                continue;
            }
            match self.send_some(loan, &mut context) {
                Outcome::Failed | Outcome::Ended => self.close(loan, &mut context)?,
                _ if context.card.slot_wants_close(loan) => self.close(loan, &mut context)?,
                _ if self.can_park(loan, &context) => self.park(loan, &mut context)?,
                _ if self.is_overdue(loan, context.now) => self.close(loan, &mut context)?,
                Outcome::Moved => self.keep_hot(loan, context.now),
                Outcome::Nothing => continue,
            }
            busy = true;
        }
        Ok(busy)
    }

    fn send_some(&mut self, loan: usize, context: &mut Context<'_, 'm>) -> Outcome {
        let accounts = self.accounts(loan);
        let Some(connection) = self.connections[loan].as_mut().filter(|it| it.writable) else {
            return Outcome::Nothing;
        };
        let (card, position) = (&mut *context.card, accounts.sent.position());
        if position >= card.slot_output_end(loan) {
            return Outcome::Nothing;
        }
        let owed = |spans: &mut [_]| card.slot_send_spans(loan, position, spans);
        match bytes::send(connection.socket.as_fd(), &accounts.sent, SEND_BYTES, owed) {
            None => Outcome::Nothing,
            Some(StreamProgress::Progressed(_)) => {
                card.slot_sent(context.now, loan, accounts.sent.position());
                Outcome::Moved
            }
            Some(StreamProgress::WouldBlock) => {
                connection.writable = false;
                Outcome::Nothing
            }
            Some(StreamProgress::Closed | StreamProgress::Failed(_)) => Outcome::Failed,
        }
    }

    /// Asks the agent to close descriptors that the slot needs no more.
    fn give_back(&mut self, loan: usize, context: &mut Context<'_, 'm>) {
        if self.releasing.contains(&loan) {
            return;
        }
        let released = context.card.slot_released(loan);
        if released.is_empty() {
            return;
        }
        let ids = released.into_iter().map(|id| id.0).collect::<Vec<_>>();
        if self.alone {
            return self.closed(loan, &ids, context.card, context.now);
        }
        self.releasing.push(loan);
        context.to_agent.push_of(loan, FromSlot::Release { ids });
    }

    /// Everything is given back: the machines find their functions gone, and are answered until they end.
    pub(super) fn shut_down(&mut self, card: &mut Card<'_>, now: Instant) {
        for place in 0..self.loans.len() {
            self.end(self.loans[place], card, now);
        }
    }

    /// The function of `loan` goes: what its client asks for is answered with errors, and it loses the slot.
    pub(super) fn end(&mut self, loan: usize, card: &mut Card<'_>, now: Instant) {
        if self.loans.contains(&loan) {
            card.slot_set_present(now, loan, false);
            if let Some(connection) = &mut self.connections[loan] {
                connection.parting.get_or_insert(now + PARTING);
            }
        }
    }

    /// The client of `loan` has connected once more. If its device is in use that is a mistake, and otherwise the
    /// device is gone.
    pub(super) fn part(&mut self, loan: usize, context: &mut Context<'_, 'm>) {
        if self.connections[loan].as_ref().is_none_or(|connection| connection.parting.is_some()) {
            return;
        }
        if context.card.slot_is_in_use(loan) {
            context.to_agent.push_of(loan, FromSlot::Kept);
        } else {
            self.end(loan, context.card, context.now);
        }
    }

    /// A connection that a predecessor has parked.
    pub(super) fn keep_parked(&mut self, socket: OwnedFd, context: &Context<'_, 'm>) -> io::Result<()> {
        self.parked.add(socket, context.waiter)
    }

    /// So was every other one that a predecessor knew.
    pub(super) fn all_parked(&self) {
        self.parked.begin();
    }

    /// Whether the client of `loan` is to be parked, and is between two messages.
    fn can_park(&self, loan: usize, context: &Context<'_, 'm>) -> bool {
        let sent = self.accounts(loan).sent.position();
        let connection = self.connections[loan].as_ref().filter(|it| it.parting.is_some());
        connection.is_some_and(|it| it.asked.is_none())
            && context.card.slot_is_at_rest(loan)
            && sent >= context.card.slot_output_end(loan)
    }

    fn is_overdue(&self, loan: usize, now: Instant) -> bool {
        self.connections[loan].as_ref().and_then(|it| it.parting).is_some_and(|until| until <= now)
    }

    /// Takes the slot from its client, who is answered from now on as somebody whose device is gone.
    fn park(&mut self, loan: usize, context: &mut Context<'_, 'm>) -> io::Result<()> {
        if let Some(connection) = self.connections[loan].take() {
            context.waiter.deregister(connection.socket.as_fd())?;
            context.card.slot_closed(context.now, loan);
            self.parked.add(connection.socket, context.waiter)?;
            context.to_agent.push_of(loan, FromSlot::Parked);
        }
        Ok(())
    }

    /// The agent is dead: what comes from now on is answered with errors.
    pub(super) fn outlive_agent(&mut self, card: &mut Card<'_>, now: Instant) {
        self.alone = true;
        // Nobody tells of more.
        self.parked.begin();
        for &loan in &self.loans {
            card.slot_set_present(now, loan, false);
            if let Some(connection) = &mut self.connections[loan] {
                connection.readable = true;
                let Some(message) = connection.asked.take() else { continue };
                // If the agent has taken it, its descriptors have gone with it, but not the client who waits for the
                // answer.
                if !is_next(connection.socket.as_fd(), &message) {
                    card.slot_taken(now, loan, card.slot_taken_count(loan) + 1, &message, &[]);
                }
            }
        }
    }

    /// Closes the connection to the client of `loan`, if there is one.
    pub(super) fn close(&mut self, loan: usize, context: &mut Context<'_, 'm>) -> io::Result<()> {
        if let Some(connection) = self.connections[loan].take() {
            context.waiter.deregister(connection.socket.as_fd())?;
            hang_up(connection.socket.as_fd());
            context.card.slot_closed(context.now, loan);
            context.to_agent.push_of(loan, FromSlot::Vacant);
        }
        Ok(())
    }

    fn keep_hot(&mut self, loan: usize, now: Instant) {
        if let Some(connection) = &mut self.connections[loan] {
            connection.hot_until = now + HOT;
        }
    }

    fn accounts(&self, loan: usize) -> &'m EdgeAccounts {
        &self.shared.edges[loan][0]
    }
}

/// Whether `message`, which was at the beginning of what the socket has, is still there.
fn is_next(socket: BorrowedFd<'_>, message: &[u8]) -> bool {
    let mut bytes = vec![0; message.len()];
    // A client that has another message there has counted it up.
    matches!(stream_socket::peek(socket, &mut bytes), StreamProgress::Progressed(len) if len == message.len())
        && bytes == message
}

/// Makes the memory present that the kernel writes for this connection: what it writes for a dying process must not
/// fault.
fn populate(card: &Card<'_>, loan: usize, position: u64) {
    for span in card.slot_receive_spans(loan, position, usize::MAX).into_iter().flatten() {
        super::input::populate(&span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_message_that_somebody_else_has_taken_is_not_next() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert!(!is_next(ours.as_fd(), b"first"), "nothing has come");
        theirs.write_all(b"first").unwrap();
        assert!(is_next(ours.as_fd(), b"first"));
        theirs.write_all(b"other").unwrap();
        assert!(is_next(ours.as_fd(), b"first"));
        ours.read_exact(&mut [0; 5]).unwrap();
        assert!(!is_next(ours.as_fd(), b"first"));
        ours.read_exact(&mut [0; 2]).unwrap();
        assert!(!is_next(ours.as_fd(), b"other"));
        drop(theirs);
        ours.read_exact(&mut [0; 3]).unwrap();
        assert!(!is_next(ours.as_fd(), b"first"));
    }
}
