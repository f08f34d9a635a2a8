//! Connections of devices that are gone, which their machines have not closed.
//!
//! QEMU goes on telling such a device of every change of its memory, also when it was unplugged, and ends the whole
//! machine if it cannot. So a connection is not closed while the client lives: it loses its slot, and is answered here
//! until the client is gone. A message is answered when all of it is there, and received after that, so that a
//! successor finds it again. Only how far the one in hand has come is kept ([`InHand`]): it is answered once, wherever
//! a card is killed.

mod in_hand;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use spec::vfio_user::{Command, Errno, HEADER_BYTES, MessageFlags, MessageHeader};
use zerocopy::IntoBytes;

pub(crate) use self::in_hand::InHand;
use super::token;
use crate::messages::ToAgent;
use crate::outbox::Outbox;
use crate::stream_socket::{self, StreamProgress, hang_up};
use crate::wait::{Ready, Waiter};

/// The longest message that is answered: more than any that the sessions of slots take.
const MESSAGE_BYTES: usize = 16 << 10;
/// Messages of one connection that are answered at once.
const AT_ONCE: usize = 16;

/// All of them, by the number that the kernel has given to each connection.
pub(super) struct Parked<'m> {
    connections: BTreeMap<u64, Connection>,
    next: u64,
    in_hand: &'m InHand,
    /// One of them may be ready. Nearly never: each turn of the card asks.
    is_ready: bool,
}

struct Connection {
    socket: OwnedFd,
    /// What epoll calls it.
    token: u64,
    /// Something may be there, or there may be room again.
    ready: bool,
    /// Nothing more can come: the client has closed its end.
    hung_up: bool,
}

/// What came of looking at a connection.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// A message was answered.
    Answered,
    /// Nothing whole is there, or its answer finds no room.
    Nothing,
    /// The client is gone, or makes no sense.
    Gone,
}

impl<'m> Parked<'m> {
    pub(super) fn new(in_hand: &'m InHand) -> Self {
        Self { connections: BTreeMap::new(), next: 0, in_hand, is_ready: false }
    }

    /// Takes a connection, of which the next bytes begin a message, unless a predecessor had one of it in hand.
    pub(super) fn add(&mut self, socket: OwnedFd, waiter: &Waiter) -> io::Result<()> {
        let token = token::PARKED + self.next;
        self.next += 1;
        waiter.register_edges(socket.as_fd(), token)?;
        let number = rustix::net::sockopt::socket_cookie(&socket)?;
        self.in_hand.resume(number, socket.as_fd());
        self.connections.insert(number, Connection { socket, token, ready: true, hung_up: false });
        self.is_ready = true;
        Ok(())
    }

    /// All connections that predecessors had were added.
    pub(super) fn begin(&self) {
        self.in_hand.put_down();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Epoll has something to say of a connection.
    pub(super) fn note(&mut self, ready: Ready) {
        if let Some(connection) = self.connections.values_mut().find(|it| it.token == ready.token) {
            connection.ready = true;
            connection.hung_up |= ready.hangup;
            self.is_ready = true;
        }
    }

    /// Answers what has come. True if that was anything.
    pub(super) fn serve(&mut self, waiter: &Waiter, to_agent: &mut Outbox<ToAgent>) -> io::Result<bool> {
        // What a predecessor had in hand comes before everything else: there is one place for it.
        if !self.is_ready || self.in_hand.number().is_some() {
            return Ok(false);
        }
        let mut busy = false;
        let mut gone = Vec::new();
        for (number, connection) in self.connections.iter_mut().filter(|(_, it)| it.ready) {
            for _ in 0..AT_ONCE {
                match answer(connection.socket.as_fd(), *number, self.in_hand) {
                    Look::Answered => {}
                    Look::Nothing if !connection.hung_up => connection.ready = false,
                    // What is not whole by now never will be, and epoll does not say again that the client is gone.
                    Look::Nothing | Look::Gone => {
                        connection.ready = false;
                        gone.push(*number);
                    }
                }
                busy = true;
                if !connection.ready {
                    break;
                }
            }
        }
        for number in gone {
            if let Some(connection) = self.connections.remove(&number) {
                waiter.deregister(connection.socket.as_fd())?;
                hang_up(connection.socket.as_fd());
                to_agent.push(ToAgent::Unparked { number });
            }
        }
        self.is_ready = self.connections.values().any(|it| it.ready);
        Ok(busy)
    }
}

/// Answers the next message of connection `number`, if all of it is there.
fn answer(socket: BorrowedFd<'_>, number: u64, in_hand: &InHand) -> Look {
    let mut bytes = [0; MESSAGE_BYTES];
    let available = match stream_socket::peek(socket, &mut bytes) {
        StreamProgress::Progressed(available) => available,
        StreamProgress::WouldBlock => return Look::Nothing,
        StreamProgress::Closed | StreamProgress::Failed(_) => return Look::Gone,
    };
    let Some(header) = bytes[..available].first_chunk::<HEADER_BYTES>().map(MessageHeader::view) else {
        return Look::Nothing;
    };
    let size = header.size.get() as usize;
    if !(HEADER_BYTES..=MESSAGE_BYTES).contains(&size) || header.flags().kind() > MessageFlags::REPLY {
        return Look::Gone;
    }
    if available < size {
        return Look::Nothing;
    }
    in_hand.take(number, size);
    let look = if header.flags().kind() == MessageFlags::COMMAND && !header.flags().no_reply() {
        match in_hand.send(socket, reply_to(header).as_bytes()) {
            StreamProgress::Progressed(HEADER_BYTES) => Look::Answered,
            StreamProgress::WouldBlock => Look::Nothing,
            _ => Look::Gone,
        }
    } else {
        Look::Answered
    };
    let is_done = look != Look::Answered || in_hand.receive_rest(socket);
    in_hand.put_down();
    if is_done { look } else { Look::Gone }
}

/// What a device that is gone says: what the client takes back or gives is fine, and nothing can be had.
fn reply_to(header: &MessageHeader) -> MessageHeader {
    let (id, command) = (header.id.get(), header.command());
    match command {
        Command::DMA_MAP | Command::DMA_UNMAP | Command::DEVICE_SET_IRQS | Command::DEVICE_RESET => {
            MessageHeader::reply(id, command, 0)
        }
        _ => MessageHeader::error_reply(id, command, Errno::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::SpinTimes;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (Parked<'static>, Waiter, Outbox<ToAgent>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        for end in [&ours, &theirs] {
            end.set_nonblocking(true).unwrap();
        }
        let waiter = Waiter::new(SpinTimes::default()).unwrap();
        let mut parked = Parked::new(Box::leak(Box::default()));
        parked.add(ours.into(), &waiter).unwrap();
        (parked, waiter, Outbox::new(Vec::new()), theirs)
    }

    fn command(id: u16, command: Command, payload: usize) -> Vec<u8> {
        let mut bytes = MessageHeader::request(id, command, payload as u32).as_bytes().to_vec();
        bytes.extend(vec![7; payload]);
        bytes
    }

    fn reply(theirs: &mut UnixStream) -> MessageHeader {
        let mut bytes = [0; HEADER_BYTES];
        theirs.read_exact(&mut bytes).unwrap();
        *MessageHeader::view(&bytes)
    }

    /// Closes the client's end at once: to drop it does not while another test's child, not yet executed, has a copy.
    fn leave(theirs: &UnixStream) {
        theirs.shutdown(std::net::Shutdown::Both).unwrap();
    }

    fn may_go_on(token: u64) -> Ready {
        Ready { token, read: true, write: true, hangup: false, ended: false }
    }

    #[test]
    fn every_command_is_answered_once_and_in_order() {
        let (mut parked, waiter, mut outbox, mut theirs) = pair();
        let commands = [Command::DMA_UNMAP, Command::DMA_MAP, Command::REGION_READ, Command::DEVICE_SET_IRQS];
        for (id, code) in commands.into_iter().enumerate() {
            theirs.write_all(&command(id as u16, code, 16 + id)).unwrap();
        }
        // What wants no answer, and an answer to nothing.
        let mut posted = MessageHeader::request(9, Command::REGION_WRITE, 0);
        posted.flags = MessageFlags(0).with_no_reply(true).0.into();
        theirs.write_all(posted.as_bytes()).unwrap();
        theirs.write_all(MessageHeader::reply(9, Command::DMA_READ, 0).as_bytes()).unwrap();
        // Another one in two pieces.
        let split = command(20, Command::DEVICE_RESET, 100);
        theirs.write_all(&split[..50]).unwrap();
        assert!(parked.serve(&waiter, &mut outbox).unwrap());
        theirs.write_all(&split[50..]).unwrap();
        assert!(!parked.serve(&waiter, &mut outbox).unwrap(), "nothing was said to have come");
        let token = parked.connections.values().next().unwrap().token;
        parked.note(may_go_on(token));
        parked.serve(&waiter, &mut outbox).unwrap();
        for (id, code) in commands.into_iter().enumerate() {
            let reply = reply(&mut theirs);
            assert_eq!((usize::from(reply.id.get()), reply.command()), (id, code));
            assert_eq!(reply.error(), (code == Command::REGION_READ).then_some(Errno::EIO));
        }
        assert_eq!(reply(&mut theirs).id.get(), 20);
        assert_eq!(theirs.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!parked.is_empty());
    }

    #[test]
    fn what_a_predecessor_had_in_hand_comes_first() {
        let (mut parked, waiter, mut outbox, mut theirs) = pair();
        parked.in_hand.take(u64::MAX, HEADER_BYTES);
        theirs.write_all(&command(1, Command::DMA_UNMAP, 24)).unwrap();
        assert!(!parked.serve(&waiter, &mut outbox).unwrap());
        // The agent knows no such connection.
        parked.begin();
        assert!(parked.serve(&waiter, &mut outbox).unwrap());
        assert_eq!(reply(&mut theirs).id.get(), 1);
    }

    #[test]
    fn who_reads_nothing_is_waited_for() {
        let (mut parked, waiter, mut outbox, mut theirs) = pair();
        let message = command(1, Command::DMA_UNMAP, 24);
        let (mut sent, mut seen) = (0, 0);
        // Both directions are full at the end.
        for _ in 0..100_000 {
            let wrote = theirs.write_all(&message).is_ok();
            sent += u32::from(wrote);
            let token = parked.connections.values().next().unwrap().token;
            parked.note(may_go_on(token));
            parked.serve(&waiter, &mut outbox).unwrap();
            if !wrote {
                break;
            }
        }
        while seen < sent {
            match theirs.read(&mut [0; HEADER_BYTES]) {
                Ok(bytes) => seen += u32::from(bytes == HEADER_BYTES),
                Err(_) => {
                    let token = parked.connections.values().next().unwrap().token;
                    parked.note(may_go_on(token));
                    assert!(parked.serve(&waiter, &mut outbox).unwrap(), "{seen} of {sent}");
                }
            }
        }
    }

    #[test]
    fn who_is_gone_or_makes_no_sense_is_forgotten() {
        for nonsense in [None, Some([0; HEADER_BYTES]), Some([0xff; HEADER_BYTES])] {
            let (mut parked, waiter, mut outbox, mut theirs) = pair();
            match nonsense {
                Some(bytes) => theirs.write_all(&bytes).unwrap(),
                None => leave(&theirs),
            }
            parked.serve(&waiter, &mut outbox).unwrap();
            assert!(parked.is_empty() && outbox.is_due());
        }
    }

    #[test]
    fn who_leaves_in_the_middle_of_a_message_is_forgotten() {
        for cut in [1, HEADER_BYTES - 1, HEADER_BYTES, 20, 39] {
            let (mut parked, mut waiter, mut outbox, mut theirs) = pair();
            theirs.write_all(&command(1, Command::DMA_UNMAP, 24)).unwrap();
            theirs.write_all(&command(2, Command::DMA_UNMAP, 24)[..cut]).unwrap();
            parked.serve(&waiter, &mut outbox).unwrap();
            assert_eq!(reply(&mut theirs).id.get(), 1);
            assert!(!parked.is_empty() && !outbox.is_due(), "the rest may still come");
            leave(&theirs);
            waiter.poll().unwrap();
            let ready: Vec<Ready> = waiter.ready().collect();
            ready.into_iter().for_each(|ready| parked.note(ready));
            parked.serve(&waiter, &mut outbox).unwrap();
            assert!(parked.is_empty() && outbox.is_due(), "after {cut} bytes");
        }
    }
}
