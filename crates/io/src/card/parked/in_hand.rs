//! How far the answer to a message of a parked connection has come: in memory that a successor finds.
//!
//! ```text
//!     number = 0                                         no message is in hand
//!     number = its connection, both positions 0          nothing was done: it is still there, and is answered anew
//!     sent > 0, received < size                          it was answered, and what is left of it is received
//!     sent = 0, 0 < received < size                      it wants no answer, and what is left of it is received
//!     received = size                                    nothing is left to do
//! ```
//!
//! The kernel keeps both positions, so each of these is told from the others wherever a card is killed.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use super::MESSAGE_BYTES;
use crate::stream_socket::{self, StreamAccount, StreamProgress};
use base::ledger::Layout;

/// The message that a card answers. It has one in hand at a time, of all parked connections; zero bytes are none.
#[repr(C)]
#[derive(Layout, Debug, Default)]
pub(crate) struct InHand {
    /// The kernel's number of its connection, or 0.
    number: AtomicU64,
    size: AtomicU64,
    sent: StreamAccount,
    received: StreamAccount,
}

impl InHand {
    /// The connection that it came from.
    pub(super) fn number(&self) -> Option<u64> {
        Some(self.number.load(Ordering::Acquire)).filter(|number| *number != 0)
    }

    /// The first `size` bytes that connection `number` has are a message, which is going to be answered.
    pub(super) fn take(&self, number: u64, size: usize) {
        assert!(self.number().is_none(), "one message is in hand at a time");
        assert!(size <= MESSAGE_BYTES, "longer ones are not answered");
        // Until the number is there, nothing of this means anything.
        compiler_fence(Ordering::SeqCst);
        self.size.store(size as u64, Ordering::Relaxed);
        self.sent.reset();
        self.received.reset();
        self.number.store(number, Ordering::Release);
    }

    /// It is done with, or cannot be done.
    pub(super) fn put_down(&self) {
        self.number.store(0, Ordering::Release);
    }

    /// Sends the answer, all of it or nothing.
    pub(super) fn send(&self, socket: BorrowedFd<'_>, reply: &[u8]) -> StreamProgress {
        stream_socket::send(socket, &self.sent, &[IoSlice::new(reply)])
    }

    /// A predecessor may have had a message of connection `number` in hand: what it has begun is ended, and the next
    /// bytes begin a message.
    pub(super) fn resume(&self, number: u64, socket: BorrowedFd<'_>) {
        if self.number() != Some(number) {
            return;
        }
        if (self.sent.position(), self.received.position()) != (0, 0) {
            // If there is nothing left of it, that will be noticed like everything else.
            let _ = self.receive_rest(socket);
        }
        self.put_down();
    }

    /// Receives what is left of the message, and forgets it. False if it is not there.
    pub(super) fn receive_rest(&self, socket: BorrowedFd<'_>) -> bool {
        let mut bytes = [0; MESSAGE_BYTES];
        loop {
            let left = self.size.load(Ordering::Relaxed).saturating_sub(self.received.position());
            // It is never more, for `take` takes no longer one. But a card that died of what it finds here would have
            // successors that die of it, too.
            let room = &mut bytes[..MESSAGE_BYTES.min(left as usize)];
            if room.is_empty() {
                return true;
            }
            let received = stream_socket::receive(socket, &self.received, &mut [IoSliceMut::new(room)]);
            if !matches!(received, StreamProgress::Progressed(_)) {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Look, answer};
    use super::*;
    use crate::memory::{self, Mapping};
    use spec::vfio_user::{Command, HEADER_BYTES, MessageFlags, MessageHeader};
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};
    use zerocopy::IntoBytes;

    const NUMBER: u64 = 5;
    const PAYLOAD: usize = 24;
    const SIZE: usize = HEADER_BYTES + PAYLOAD;
    const KILLS: u32 = 300;

    /// What a card does before it ends.
    type Step<'a> = &'a dyn Fn(&InHand, &UnixStream);

    fn pair() -> (UnixStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        (ours, theirs)
    }

    fn ask(theirs: &mut UnixStream, id: u16) -> bool {
        let header = MessageHeader::request(id, Command::DMA_UNMAP, PAYLOAD as u32);
        theirs.write_all(&[header.as_bytes(), &[7; PAYLOAD]].concat()).is_ok()
    }

    /// The next reply that has come; whose it is.
    fn reply(theirs: &mut UnixStream) -> Option<u16> {
        let mut bytes = [0; HEADER_BYTES];
        match theirs.read_exact(&mut bytes) {
            Ok(()) => Some(MessageHeader::view(&bytes).id.get()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                None
            }
        }
    }

    /// What a card does with a connection that it is told of.
    fn serve(in_hand: &InHand, ours: &UnixStream) {
        in_hand.resume(NUMBER, ours.as_fd());
        while answer(ours.as_fd(), NUMBER, in_hand) == Look::Answered {}
    }

    /// A process that goes on until it is killed, which it is in any case.
    struct Child(libc::pid_t);

    impl Child {
        fn new(work: impl Fn()) -> Self {
            // SAFETY: the child makes system calls and touches shared memory, and never returns.
            let pid = unsafe { crate::process::fork_with_our_descriptors() };
            if pid == 0 {
                loop {
                    work();
                }
            }
            Self(pid)
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            // SAFETY: plain system calls on our own child.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    /// A card that ends here: after each of its steps.
    #[test]
    fn whoever_comes_next_goes_on_from_each_step() {
        let answer_of_1 = MessageHeader::reply(1, Command::DMA_UNMAP, 0);
        let steps: [Step<'_>; 5] = [
            &|in_hand, _| in_hand.take(NUMBER, SIZE),
            &|in_hand, ours| {
                in_hand.take(NUMBER, SIZE);
                in_hand.send(ours.as_fd(), answer_of_1.as_bytes());
            },
            &|in_hand, ours| {
                in_hand.take(NUMBER, SIZE);
                in_hand.send(ours.as_fd(), answer_of_1.as_bytes());
                let mut some = [0; 20];
                stream_socket::receive(ours.as_fd(), &in_hand.received, &mut [IoSliceMut::new(&mut some)]);
            },
            &|in_hand, ours| {
                in_hand.take(NUMBER, SIZE);
                in_hand.send(ours.as_fd(), answer_of_1.as_bytes());
                assert!(in_hand.receive_rest(ours.as_fd()));
            },
            &|in_hand, ours| assert_eq!(answer(ours.as_fd(), NUMBER, in_hand), Look::Answered),
        ];
        for (index, step) in steps.iter().enumerate() {
            let (in_hand, (ours, mut theirs)) = (InHand::default(), pair());
            assert!(ask(&mut theirs, 1) && ask(&mut theirs, 2));
            step(&in_hand, &ours);
            serve(&in_hand, &ours);
            let replies: Vec<u16> = std::iter::from_fn(|| reply(&mut theirs)).collect();
            assert_eq!(replies, [1, 2], "after step {index}");
        }
    }

    /// The same for a message that wants no answer: only the first one does not.
    #[test]
    fn whoever_comes_next_receives_what_wants_no_answer() {
        for received in [0, 1, HEADER_BYTES, SIZE - 1, SIZE] {
            let (in_hand, (ours, mut theirs)) = (InHand::default(), pair());
            let mut header = MessageHeader::request(1, Command::REGION_WRITE, PAYLOAD as u32);
            header.flags = MessageFlags(0).with_no_reply(true).0.into();
            theirs.write_all(&[header.as_bytes(), &[7; PAYLOAD]].concat()).unwrap();
            assert!(ask(&mut theirs, 2));
            in_hand.take(NUMBER, SIZE);
            let mut some = vec![0; received];
            if received > 0 {
                stream_socket::receive(ours.as_fd(), &in_hand.received, &mut [IoSliceMut::new(&mut some)]);
            }
            assert_eq!((in_hand.sent.position(), in_hand.received.position()), (0, received as u64));
            serve(&in_hand, &ours);
            let replies: Vec<u16> = std::iter::from_fn(|| reply(&mut theirs)).collect();
            assert_eq!(replies, [2], "after {received} bytes");
        }
    }

    #[test]
    fn whoever_is_killed_has_answered_once() {
        let memory = memory::create("parked-test", 4096).unwrap();
        let mapping = Mapping::shared(memory.as_fd()).unwrap();
        mapping.populate().unwrap();
        // SAFETY: the cells lie in the live mapping, and its zero bytes are a value.
        let in_hand = unsafe { &*mapping.at::<InHand>(0) };
        let (ours, mut theirs) = pair();
        let (mut asked, mut answered) = (0_u16, 0_u16);
        let mut exchange = |theirs: &mut UnixStream| {
            while asked.wrapping_sub(answered) < 200 && ask(theirs, asked) {
                asked = asked.wrapping_add(1);
            }
            while let Some(id) = reply(theirs) {
                assert_eq!(id, answered, "a request is answered once");
                answered = answered.wrapping_add(1);
            }
            (asked, answered)
        };
        for round in 0..KILLS {
            let (_, before) = exchange(&mut theirs);
            let child = Child::new(|| serve(in_hand, &ours));
            let deadline = Instant::now() + Duration::from_secs(20);
            while exchange(&mut theirs).1 == before {
                assert!(Instant::now() < deadline, "the child answers nothing");
            }
            // It has enough to do for all that time.
            let start = Instant::now();
            while start.elapsed() < Duration::from_nanos(u64::from(round * 7919 % 100_000)) {
                std::hint::spin_loop();
            }
            drop(child);
        }
        serve(in_hand, &ours);
        let (asked, _) = exchange(&mut theirs);
        serve(in_hand, &ours);
        assert!(exchange(&mut theirs).1 >= asked, "none is without an answer");
    }
}
