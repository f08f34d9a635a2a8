//! The clients of slots: virtual machines, one a slot.
//!
//! The agent keeps what must outlive a card: the socket, every descriptor that came with a message, and the last of those
//! messages, which the card may not have committed. It receives such a message when the card asks for it, since a descriptor
//! belongs to the process that receives it, and reads nothing else.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use node::MAX_LOANS;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tracing::{info, warn};

use super::{Edge, LoanEnd, LoanSpec, token};
use crate::guest_memory::{self, FileKey};
use crate::messages::{DESCRIPTORS, Hex, ToCard};
use crate::outbox::{Enclosure, Outbox};
use crate::stream_socket::hang_up;
use crate::wait::{Interest, Waiter};

/// Longer messages with descriptors make no sense.
const MESSAGE_BYTES: usize = 4096;

/// All slots of a node, by loan.
pub(super) struct Slots {
    places: Vec<Place>,
}

/// What is kept for one slot.
#[derive(Default)]
struct Place {
    /// Its drive has been usable: clients are taken.
    is_open: bool,
    client: Option<Client>,
    /// The last message that was taken, which a successor is told of again.
    last: Taken,
    descriptors: BTreeMap<u32, Arc<OwnedFd>>,
    /// Files among them, of which one descriptor each is kept however often they were sent.
    files: BTreeMap<FileKey, Arc<OwnedFd>>,
    next_id: u32,
}

struct Client {
    socket: OwnedFd,
    pid: Option<i32>,
    /// It was said that its memory is not shared.
    warned: bool,
}

/// A message that was taken.
#[derive(Default)]
struct Taken {
    /// How many were, with this one: 0 for none.
    number: u64,
    bytes: Vec<u8>,
    ids: Vec<u32>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { places: (0..MAX_LOANS).map(|_| Place::default()).collect() }
    }

    /// The drive of `loan` is usable: if it is a slot, its clients are taken from now on.
    pub(super) fn open(&mut self, loans: &[LoanSpec], loan: usize, waiter: &Waiter) -> io::Result<()> {
        let Some(place) = self.places.get_mut(loan).filter(|place| !place.is_open) else { return Ok(()) };
        if let Some(listener) = loans.get(loan).and_then(listener) {
            place.is_open = true;
            listen_at(loan, listener, waiter)?;
        }
        Ok(())
    }

    /// Watches the listening sockets of all slots that are open.
    pub(super) fn listen(&self, loans: &[LoanSpec], waiter: &Waiter) -> io::Result<()> {
        self.listeners(loans).try_for_each(|(loan, listener)| listen_at(loan, listener, waiter))
    }

    /// Watches them no longer.
    pub(super) fn ignore(&self, loans: &[LoanSpec], waiter: &Waiter) {
        for (_, listener) in self.listeners(loans) {
            // One that is not in the set is just as good.
            let _ = waiter.deregister(listener.as_fd());
        }
    }

    /// Watches the listening socket of `loan` no longer.
    pub(super) fn ignore_one(&self, loans: &[LoanSpec], loan: usize, waiter: &Waiter) {
        if let Some(listener) = loans.get(loan).and_then(listener) {
            let _ = waiter.deregister(listener.as_fd());
        }
    }

    fn listeners<'a>(&'a self, loans: &'a [LoanSpec]) -> impl Iterator<Item = (usize, &'a UnixListener)> {
        let open = loans.iter().enumerate().filter(|(loan, _)| self.places[*loan].is_open);
        open.filter_map(|(loan, spec)| Some((loan, listener(spec)?)))
    }

    /// Takes the next client of `loan`; false if nobody waits. Whoever comes while there is one is sent away in order.
    ///
    /// # Errors
    /// Want of descriptors or memory: who waits goes on waiting.
    pub(super) fn accept(&mut self, loans: &[LoanSpec], loan: usize) -> io::Result<bool> {
        let Some(listener) = loans.get(loan).and_then(listener) else { return Ok(false) };
        let place = &mut self.places[loan];
        loop {
            let socket: OwnedFd = match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    stream.into()
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(false),
                    // The client has gone again, or a signal came.
                    Some(libc::ECONNABORTED | libc::EINTR) => continue,
                    _ => return Err(error),
                },
            };
            let pid = rustix::net::sockopt::socket_peercred(&socket);
            let pid = pid.ok().map(|peer| peer.pid.as_raw_nonzero().get());
            let function = &loans[loan].function;
            if place.client.is_some() {
                warn!(function, pid, "a virtual machine was sent away: another one has the slot");
                hang_up(socket.as_fd());
                continue;
            }
            info!(function, pid, "a virtual machine has connected to the slot");
            place.client = Some(Client { socket, pid, warned: false });
            return Ok(true);
        }
    }

    /// The card has closed the connection to the client of `loan`.
    pub(super) fn vacate(&mut self, loan: usize, function: &str) {
        if let Some(client) = self.places.get_mut(loan).and_then(|place| place.client.take()) {
            info!(function, pid = client.pid, "the virtual machine has left the slot");
            hang_up(client.socket.as_fd());
        }
    }

    /// Receives the message that the card has asked for, and says what the card is to be told of it.
    pub(super) fn take(&mut self, loan: usize, number: u64, len: usize, function: &str) -> Vec<ToCard> {
        let Some(place) = self.places.get_mut(loan) else { return Vec::new() };
        let Some(client) = &mut place.client else { return Vec::new() };
        if number != place.last.number + 1 || len > MESSAGE_BYTES {
            return vec![ToCard::Lost { loan }];
        }
        let (bytes, descriptors) = match receive(client.socket.as_fd(), len) {
            Ok(received) => received,
            Err(error) => {
                warn!(function, %error, "a message of a virtual machine cannot be received: it is disconnected");
                return vec![ToCard::Lost { loan }];
            }
        };
        if place.is_unshared(&bytes, &descriptors, function) {
            return vec![ToCard::Lost { loan }];
        }
        let ids = descriptors.into_iter().map(|descriptor| place.keep(descriptor)).collect();
        place.last = Taken { number, bytes, ids };
        place.tell_last(loan, true)
    }

    /// Whether a virtual machine is connected.
    pub(super) fn has_client(&self, loan: usize) -> bool {
        self.places.get(loan).is_some_and(|place| place.client.is_some())
    }

    /// Another loan has the place: whatever was kept for the one before is not wanted any more.
    pub(super) fn renew(&mut self, loan: usize) {
        if let Some(place) = self.places.get_mut(loan) {
            if let Some(client) = place.client.take() {
                hang_up(client.socket.as_fd());
            }
            *place = Place::default();
        }
    }

    /// The card needs these no more.
    pub(super) fn release(&mut self, loan: usize, ids: &[u32]) {
        let Some(place) = self.places.get_mut(loan) else { return };
        ids.iter().for_each(|id| _ = place.descriptors.remove(id));
        place.files.retain(|_, file| Arc::strong_count(file) > 1);
    }

    /// What a new card has to know: first all descriptors.
    pub(super) fn tell_all(&self, loans: &[LoanSpec], outbox: &mut Outbox<ToCard>) {
        if !loans.iter().any(is_slot) {
            return;
        }
        for (loan, place) in self.places.iter().enumerate() {
            let ids: Vec<u32> = place.descriptors.keys().copied().collect();
            for ids in ids.chunks(DESCRIPTORS) {
                outbox.push(ToCard::Descriptors { loan, ids: ids.to_vec() });
            }
        }
        outbox.push(ToCard::Begin);
        for (loan, place) in self.places.iter().enumerate() {
            place.tell_last(loan, false).into_iter().for_each(|message| outbox.push(message));
            if place.client.is_some() {
                outbox.push(ToCard::Slot { loan });
            }
        }
    }

    /// What travels with a message about slots.
    pub(super) fn enclosure(&self, message: &ToCard) -> Enclosure<'_> {
        match message {
            ToCard::Slot { loan } => self.places[*loan]
                .client
                .as_ref()
                .map_or(Enclosure::Gone, |client| Enclosure::Descriptor(client.socket.as_fd())),
            ToCard::Descriptors { loan, ids } => {
                let kept = &self.places[*loan].descriptors;
                let found = ids.iter().map(|id| kept.get(id).map(|descriptor| descriptor.as_fd()));
                found.collect::<Option<_>>().map_or(Enclosure::Gone, Enclosure::Descriptors)
            }
            _ => Enclosure::None,
        }
    }

    /// Ends all connections so that no client is hurt by it: see [`hang_up`].
    pub(super) fn hang_up_all(&mut self) {
        for client in self.places.iter_mut().filter_map(|place| place.client.take()) {
            hang_up(client.socket.as_fd());
        }
    }
}

impl Place {
    /// A name for a descriptor that is kept until the card gives it back.
    fn keep(&mut self, descriptor: OwnedFd) -> u32 {
        let id = self.next_id;
        self.next_id = (self.next_id + 1) % u32::MAX;
        let descriptor = Arc::new(descriptor);
        let kept = match FileKey::of(descriptor.as_fd()) {
            Some(key) => Arc::clone(self.files.entry(key).or_insert(descriptor)),
            None => descriptor,
        };
        self.descriptors.insert(id, kept);
        id
    }

    /// Whether a message maps memory that the client keeps to itself: its guest writes to copies that no other process sees.
    /// Says so, and also of memory that comes without a descriptor.
    fn is_unshared(&mut self, bytes: &[u8], descriptors: &[OwnedFd], function: &str) -> bool {
        let Some(client) = &mut self.client else { return false };
        let Some(len) = guest_memory::mapped_bytes(bytes) else { return false };
        let is_new = |key: &FileKey| !self.files.contains_key(key);
        let file = descriptors.first().and_then(|descriptor| FileKey::of(descriptor.as_fd())).filter(is_new);
        let is_private = file.zip(client.pid).is_some_and(|(file, pid)| file.is_private_to(pid));
        let is_missing =
            descriptors.is_empty() && self.files.is_empty() && len >= guest_memory::WORTH_SHARING;
        if (is_private || is_missing) && !std::mem::replace(&mut client.warned, true) {
            warn!(
                function,
                pid = client.pid,
                "the memory of this virtual machine is not shared, so no borrowed drive can reach it: give it \
                 -object memory-backend-memfd,...,share=on (`causeway qemu-args` prints all of it), or in libvirt \
                 <memoryBacking> <source type='memfd'/> <access mode='shared'/> </memoryBacking>"
            );
        }
        is_private
    }

    /// The last message, with its descriptors if the card does not have them.
    fn tell_last(&self, loan: usize, with_descriptors: bool) -> Vec<ToCard> {
        let Taken { number, bytes, ids } = &self.last;
        let mut messages = Vec::new();
        if with_descriptors && !ids.is_empty() {
            messages.push(ToCard::Descriptors { loan, ids: ids.clone() });
        }
        if *number > 0 {
            let bytes = Hex(bytes.clone());
            messages.push(ToCard::Taken { loan, number: *number, bytes, ids: ids.clone() });
        }
        messages
    }
}

pub(super) fn is_slot(loan: &LoanSpec) -> bool {
    matches!(loan.end, LoanEnd::Borrow { edge: Edge::Vm { .. }, .. })
}

fn listener(loan: &LoanSpec) -> Option<&UnixListener> {
    match &loan.end {
        LoanEnd::Borrow { edge: Edge::Vm { listener, .. }, .. } => listener.as_ref(),
        _ => None,
    }
}

fn listen_at(loan: usize, listener: &UnixListener, waiter: &Waiter) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    waiter.register(listener.as_fd(), token::LISTENER + loan as u64, Interest::READ)
}

/// Receives exactly `len` bytes that are there, and the first [`DESCRIPTORS`] descriptors among them; the kernel closes others.
fn receive(socket: BorrowedFd<'_>, len: usize) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; len];
    let mut descriptors = Vec::new();
    let mut filled = 0;
    while filled < len {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut bytes[filled..])];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match rustix::net::recvmsg(socket, &mut pieces, &mut control, flags) {
            Ok(received) if received.bytes > 0 => filled += received.bytes,
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        descriptors.truncate(DESCRIPTORS);
    }
    Ok((bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::io::IoSlice;
    use std::os::unix::net::UnixStream;

    fn send(to: &UnixStream, bytes: &[u8], with: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(with.is_empty() || control.push(SendAncillaryMessage::ScmRights(with)));
        rustix::net::sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    }

    fn place(ours: UnixStream) -> Slots {
        let mut slots = Slots::new();
        slots.places[0].client = Some(Client { socket: ours.into(), pid: None, warned: false });
        slots
    }

    #[test]
    fn a_message_is_taken_with_its_descriptors_and_told_again() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut slots = place(ours);
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let memory = crate::memory::create("guest", 8192).unwrap();
        send(&theirs, b"first message", &[memory.as_fd(), memory.as_fd(), event.as_fd(), event.as_fd()]);
        send(&theirs, b"next", &[]);
        let told = slots.take(0, 1, 13, "nvme0");
        let [ToCard::Descriptors { ids, .. }, ToCard::Taken { number: 1, bytes, .. }] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!((ids.len(), &bytes.0[..]), (4, &b"first message"[..]));
        let Enclosure::Descriptors(enclosed) = slots.enclosure(&told[0]) else {
            panic!("four travel with it")
        };
        let numbers: Vec<i32> = enclosed.iter().map(std::os::fd::AsRawFd::as_raw_fd).collect();
        assert_eq!(numbers[0], numbers[1], "one file is kept once");
        assert_ne!(numbers[2], numbers[3], "an eventfd is not a file");
        // A number that has been, and one that cannot be.
        assert_eq!(slots.take(0, 1, 4, "nvme0"), [ToCard::Lost { loan: 0 }]);
        let ids = ids.clone();
        slots.release(0, &ids[..3]);
        assert_eq!(slots.places[0].descriptors.len(), 1);
        assert!(slots.places[0].files.is_empty());
        assert!(matches!(slots.enclosure(&told[0]), Enclosure::Gone));
        assert_eq!(slots.take(0, 2, 4, "nvme0").len(), 1);
        assert_eq!(slots.take(0, 3, 4, "nvme0"), [ToCard::Lost { loan: 0 }], "nothing is there");
    }

    #[test]
    fn too_many_descriptors_are_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut slots = place(ours);
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        send(&theirs, b"many", &[writer.as_fd(); 40]);
        drop(writer);
        slots.take(0, 1, 4, "nvme0");
        assert_eq!(slots.places[0].descriptors.len(), DESCRIPTORS);
        let ids: Vec<u32> = slots.places[0].descriptors.keys().copied().collect();
        slots.release(0, &ids);
        // With the last writer gone there is an end.
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
    }
}
