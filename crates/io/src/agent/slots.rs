//! The clients of slots: virtual machines, one a slot.
//!
//! The agent keeps what must outlive a card: the socket, every descriptor that came with a message, and the last of
//! those messages, which the card may not have committed. It receives such a message when the card asks for it, since a
//! descriptor belongs to the process that receives it, and reads nothing else.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use node::MAX_SLOTS;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Resource, getrlimit};

use super::{ACCEPTS_A_TURN, Agent, Edge, LoanSpec, clients};
use crate::event::Event;
use crate::guest_memory::{self, FileKey};
use crate::messages::{DESCRIPTORS, FromSlot, Hex, SlotTrouble, ToCard, ToSlot};
use crate::outbox::{Enclosure, Outbox};
use crate::rate_limited::RateLimited;
use crate::stream_socket::hang_up;
use crate::wait::Waiter;

/// Longer messages with descriptors make no sense.
const MESSAGE_BYTES: usize = 4096;

/// Connections without a slot that one process may have before it gets no other one: a machine has one more each time
/// that it lets go of a device and takes it again.
const PARKED_OF_ONE: usize = 256;
/// Connections of a node, with a slot and without, beyond which nobody is taken,
const MOST: usize = 1024;
/// or a smaller number, since they take at most this part of the descriptors that the agent, and each card, may have:
const DESCRIPTOR_PART: u64 = 4;
/// but always so many, which is a machine and its successor for each place.
const FEWEST: usize = 2 * MAX_SLOTS;

/// Descriptors of this part of those that the agent, and each card, may have are for the clients of slots, each the
/// same,
const SHARE_PART: u64 = 2;
/// but always so many, which is all vectors of a drive and many times the files of a machine: a node has no more slots
/// than that leaves descriptors for.
const SHARE_FEWEST: usize = 256;
/// Connections that each slot can have, whatever others do: a machine and its successor.
const CONNECTIONS_EACH: usize = FEWEST / MAX_SLOTS;

/// All slots of a node, by loan.
pub(super) struct Slots {
    places: Vec<Entry>,
    /// Connections of devices that are gone, by the kernel's numbers: machines end that cannot say anything there.
    /// None is cut off as long as its machine lives.
    parked: BTreeMap<u64, Client>,
    /// With so many connections nobody else is taken.
    room: usize,
    /// Most descriptors of the client of one slot.
    share: usize,
}

/// Who has connected to a slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    /// Nobody.
    Nobody,
    /// A virtual machine, which has the slot now.
    Client,
    /// The one that has it already, which waits for what the card says.
    SameClient,
}

/// What is kept for one slot.
#[derive(Default)]
struct Entry {
    /// Its drive has been usable: clients are taken.
    is_open: bool,
    client: Option<Client>,
    /// The same machine, which has connected once more: its device at the first connection is gone, or this is a
    /// mistake.
    next: Option<Client>,
    /// The last message that was taken, which a successor is told of again.
    last: Taken,
    descriptors: BTreeMap<u32, Arc<OwnedFd>>,
    /// Files among them, of which one descriptor each is kept however often they were sent.
    files: BTreeMap<FileKey, Arc<OwnedFd>>,
    next_id: u32,
    lines: Lines,
}

/// What the log has of a slot's clients, who may come and go as often as they can.
#[derive(Default)]
struct Lines {
    connected: RateLimited,
    refused: RateLimited,
    parked: RateLimited,
    again: RateLimited,
    left: RateLimited,
    broken: RateLimited,
    unshared: RateLimited,
    crowded: RateLimited,
}

struct Client {
    socket: OwnedFd,
    /// The slot that it has connected to.
    loan: usize,
    pid: Option<i32>,
    /// When that process began, in the kernel's ticks: another one may get its number.
    since: Option<u64>,
    /// It was said that its memory is not shared.
    warned: bool,
    /// Which files it has mapped for itself.
    known: guest_memory::Known,
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
    /// Those of a node with so many places.
    pub(super) fn new(places: usize) -> Self {
        Self {
            places: (0..places).map(|_| Entry::default()).collect(),
            parked: BTreeMap::new(),
            room: room(),
            share: share(),
        }
    }

    /// There is another place, behind the others.
    pub(super) fn append_place(&mut self) {
        self.places.push(Entry::default());
    }

    /// The drive of `loan` is usable: if it is a slot, its clients are taken from now on.
    pub(super) fn open(&mut self, loans: &[LoanSpec], loan: usize, waiter: &Waiter) -> io::Result<()> {
        let Some(place) = self.places.get_mut(loan).filter(|place| !place.is_open) else { return Ok(()) };
        if let Some(listener) = loans.get(loan).and_then(listener) {
            place.is_open = true;
            clients::watch(listener, loan, waiter)?;
        }
        Ok(())
    }

    /// Watches the listening sockets of all slots that are open.
    pub(super) fn listen(&self, loans: &[LoanSpec], waiter: &Waiter) -> io::Result<()> {
        self.listeners(loans).try_for_each(|(loan, listener)| clients::watch(listener, loan, waiter))
    }

    /// Watches them no longer.
    pub(super) fn ignore(&self, loans: &[LoanSpec], waiter: &Waiter) {
        for (_, listener) in self.listeners(loans) {
            // One that is not in the set is just as good.
            let _ = waiter.deregister(listener.as_fd());
        }
    }

    /// Watches the listening socket of `loan`, if it is open.
    pub(super) fn listen_one(&self, loans: &[LoanSpec], loan: usize, waiter: &Waiter) -> io::Result<()> {
        let mut listeners = self.listeners(loans).filter(|(place, _)| *place == loan);
        listeners.try_for_each(|(loan, listener)| clients::watch(listener, loan, waiter))
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

    /// Takes the next client of `loan`; who waits behind it, or behind a number of others, is for the next turn.
    /// Whoever comes while there is one, from another machine, is sent away in order, and so is who has too many
    /// connections.
    ///
    /// # Errors
    /// Want of descriptors or memory: who waits goes on waiting.
    pub(super) fn accept(&mut self, loans: &[LoanSpec], loan: usize) -> io::Result<Accepted> {
        let Some(listener) = loans.get(loan).and_then(listener) else { return Ok(Accepted::Nobody) };
        let function = &loans[loan].function;
        for _ in 0..ACCEPTS_A_TURN {
            let socket: OwnedFd = match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    stream.into()
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(Accepted::Nobody),
                    // The client has gone again, or a signal came.
                    Some(libc::ECONNABORTED | libc::EINTR) => continue,
                    _ => return Err(error),
                },
            };
            match self.admit(loan, Client::new(socket, loan), function) {
                Accepted::Nobody => {}
                accepted => return Ok(accepted),
            }
        }
        Ok(Accepted::Nobody)
    }

    /// Gives the slot to a newcomer, or lets it wait for it, or sends it away: then it is nobody.
    fn admit(&mut self, loan: usize, newcomer: Client, function: &str) -> Accepted {
        if let Some(why) = self.why_not(loan, &newcomer) {
            refuse(&mut self.places[loan].lines.refused, &newcomer, function, &why);
            return Accepted::Nobody;
        }
        let place = &mut self.places[loan];
        if place.client.is_some() {
            place.next = Some(newcomer);
            return Accepted::SameClient;
        }
        place.lines.connected.say(|others| {
            Event::GuestConnected { function: function.to_owned(), pid: newcomer.pid, others }.say();
        });
        place.client = Some(newcomer);
        Accepted::Client
    }

    /// Why a newcomer is sent away. A connection that is kept never makes room, since that would end its machine.
    fn why_not(&self, loan: usize, newcomer: &Client) -> Option<String> {
        let place = &self.places[loan];
        if place.client.as_ref().is_some_and(|client| place.next.is_some() || !client.is_same(newcomer)) {
            return Some("another one has the slot".to_owned());
        }
        let parked = self.parked.values().filter(|client| client.is_same(newcomer)).count();
        if parked >= PARKED_OF_ONE {
            return Some(format!("it keeps {parked} connections of devices that are gone, until it ends"));
        }
        self.is_crowded(loan).then(|| {
            format!(
                "the node has room for {} connections of virtual machines, and those left are for others",
                self.room
            )
        })
    }

    /// Whether another connection to the slot of `loan` would take what is for others: each slot can always have a few.
    fn is_crowded(&self, loan: usize) -> bool {
        let mut of = vec![0; self.places.len()];
        let attached = self.places.iter().flat_map(|place| [&place.client, &place.next]).flatten();
        let mut count = 0;
        for client in attached.chain(self.parked.values()) {
            count += 1;
            // A client is one of a slot that there is.
            of[client.loan] += 1;
        }
        // Those that have none may still come.
        let has_any = |other: &usize| *other != loan && of[*other] > 0;
        let with_some = (0..self.places.len()).filter(has_any);
        let others = (MAX_SLOTS - 1).saturating_sub(with_some.clone().count()) * CONNECTIONS_EACH;
        let kept: usize = with_some.map(|other| CONNECTIONS_EACH.saturating_sub(of[other])).sum();
        count + kept + others >= self.room
    }

    /// The card has taken the slot from the client of `loan`, and goes on answering it. Returns whether another one has
    /// it now.
    pub(super) fn park(&mut self, loan: usize, function: &str) -> bool {
        let Some(place) = self.places.get_mut(loan) else { return false };
        if let Some(client) = place.client.take() {
            place.lines.parked.say(|others| {
                Event::GuestParked { function: function.to_owned(), pid: client.pid, others }.say();
            });
            keep_parked(&mut self.parked, client);
        }
        place.promote(function)
    }

    /// The client of `loan` uses its device: it keeps the slot, and who has connected once more is sent away.
    pub(super) fn keep(&mut self, loan: usize, function: &str) {
        let Some(place) = self.places.get_mut(loan) else { return };
        if let Some(next) = place.next.take() {
            refuse(
                &mut place.lines.refused,
                &next,
                function,
                "it has the slot already, for a device that it uses",
            );
        }
    }

    /// The client of a parked connection is gone.
    pub(super) fn unpark(&mut self, number: u64) {
        self.parked.remove(&number);
    }

    /// The card has closed the connection to the client of `loan`. Returns whether another one has the slot now.
    pub(super) fn vacate(&mut self, loan: usize, function: &str) -> bool {
        let Some(place) = self.places.get_mut(loan) else { return false };
        if let Some(client) = place.client.take() {
            place.lines.left.say(|others| {
                Event::GuestLeft { function: function.to_owned(), pid: client.pid, others }.say();
            });
            hang_up(client.socket.as_fd());
        }
        place.promote(function)
    }

    /// Receives the message that the card has asked for, and says what the card is to be told of it.
    pub(super) fn take(&mut self, loan: usize, number: u64, len: usize, function: &str) -> Vec<ToSlot> {
        let Some(place) = self.places.get_mut(loan) else { return Vec::new() };
        let Some(client) = &mut place.client else { return Vec::new() };
        if number != place.last.number + 1 || len > MESSAGE_BYTES {
            return vec![ToSlot::Lost];
        }
        let (bytes, mut descriptors) = match receive(client.socket.as_fd(), len) {
            Ok(received) => received,
            Err(error) => {
                place.lines.broken.say(|others| {
                    let (function, error) = (function.to_owned(), error.to_string());
                    Event::GuestBroken { function, error, others }.say();
                });
                return vec![ToSlot::Lost];
            }
        };
        let is_unshared = place.is_unshared(&bytes, &descriptors, function);
        if is_unshared == Some(true) {
            // What lies there is not what the guest sees: the machine has to be asked for that.
            descriptors.clear();
        }
        if is_unshared.is_none() || !place.has_room(&descriptors, self.share) {
            // Memory is reached by messages then, and an interrupt is refused.
            descriptors.clear();
            let function = function.to_owned();
            place.lines.crowded.say(|others| Event::GuestCrowded { function, others }.say());
        }
        let ids = descriptors.into_iter().map(|descriptor| place.keep(descriptor)).collect();
        place.last = Taken { number, bytes, ids };
        place.tell_last(true)
    }

    /// Whether a virtual machine is connected.
    pub(super) fn has_client(&self, loan: usize) -> bool {
        self.places.get(loan).is_some_and(|place| place.client.is_some())
    }

    /// The process that is the client of `loan`, if there is a client, as far as the kernel tells.
    pub(super) fn client(&self, loan: usize) -> Option<Option<i32>> {
        Some(self.places.get(loan)?.client.as_ref()?.pid)
    }

    /// Another loan has the place: whatever was kept for the one before is not wanted any more.
    pub(super) fn renew(&mut self, loan: usize) {
        if let Some(place) = self.places.get_mut(loan) {
            for client in [place.client.take(), place.next.take()].into_iter().flatten() {
                keep_parked(&mut self.parked, client);
            }
            *place = Entry::default();
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
                outbox.push_of(loan, ToSlot::Descriptors { ids: ids.to_vec() });
            }
        }
        outbox.push(ToCard::Begin);
        for (loan, place) in self.places.iter().enumerate() {
            place.tell_last(false).into_iter().for_each(|what| outbox.push_of(loan, what));
            if place.client.is_some() {
                outbox.push_of(loan, ToSlot::Client);
            }
            if place.next.is_some() {
                outbox.push_of(loan, ToSlot::Park);
            }
        }
        self.parked.keys().for_each(|&number| outbox.push(ToCard::Parked { number }));
        outbox.push(ToCard::AllParked);
    }

    /// What travels with a message about the client of a slot.
    pub(super) fn enclosure(&self, loan: usize, message: &ToSlot) -> Enclosure<'_> {
        match message {
            ToSlot::Client => self.places[loan]
                .client
                .as_ref()
                .map_or(Enclosure::Gone, |client| Enclosure::Descriptor(client.socket.as_fd())),
            ToSlot::Descriptors { ids } => {
                let kept = &self.places[loan].descriptors;
                let found = ids.iter().map(|id| kept.get(id).map(|descriptor| descriptor.as_fd()));
                found.collect::<Option<_>>().map_or(Enclosure::Gone, Enclosure::Descriptors)
            }
            ToSlot::Park | ToSlot::Taken { .. } | ToSlot::Lost | ToSlot::Closed { .. } => Enclosure::None,
        }
    }

    /// The socket of a parked connection.
    pub(super) fn parked(&self, number: u64) -> Enclosure<'_> {
        let socket = self.parked.get(&number).map(|client| client.socket.as_fd());
        socket.map_or(Enclosure::Gone, Enclosure::Descriptor)
    }

    /// Whether any virtual machine would suffer if its connection ended.
    pub(super) fn has_clients(&self) -> bool {
        !self.parked.is_empty() || self.places.iter().any(|place| place.client.is_some())
    }

    /// Ends all connections, each so that its client sees an end: see [`hang_up`].
    pub(super) fn hang_up_all(&mut self) {
        self.hang_up_waiting();
        for client in self.places.iter_mut().filter_map(|place| place.client.take()) {
            hang_up(client.socket.as_fd());
        }
        std::mem::take(&mut self.parked).into_values().for_each(|client| hang_up(client.socket.as_fd()));
    }

    /// Ends connections that no card knows.
    pub(super) fn hang_up_waiting(&mut self) {
        for client in self.places.iter_mut().filter_map(|place| place.next.take()) {
            hang_up(client.socket.as_fd());
        }
    }
}

impl Agent {
    /// What a card wants for a slot.
    pub(super) fn serve_slot(&mut self, loan: usize, message: FromSlot) {
        let Some(function) = self.spec.loans.get(loan).map(|loan| loan.function.as_str()) else { return };
        let (mut is_taken_again, mut answers) = (false, Vec::new());
        match message {
            FromSlot::Vacant => is_taken_again = self.slots.vacate(loan, function),
            FromSlot::Parked => is_taken_again = self.slots.park(loan, function),
            FromSlot::Take { number, len } => answers = self.slots.take(loan, number, len, function),
            FromSlot::Release { ids } => {
                self.slots.release(loan, &ids);
                answers.push(ToSlot::Closed { ids });
            }
            FromSlot::Kept => self.slots.keep(loan, function),
            FromSlot::Trouble { what, others } => {
                let (function, others) = (function.to_owned(), NonZero::new(others));
                let event = match what {
                    SlotTrouble::OnDisk => Event::GuestOnDisk { function, others },
                    SlotTrouble::Large => Event::GuestLarge { function, others },
                    SlotTrouble::Short => Event::GuestMemoryShort { function, others },
                    SlotTrouble::Blocking(errno) => {
                        let error = std::io::Error::from_raw_os_error(errno).to_string();
                        Event::GuestMayBlock { function, error, others }
                    }
                };
                event.say();
            }
        }
        if is_taken_again {
            self.begin_slot(loan);
        }
        if let Some(card) = &mut self.card {
            answers.into_iter().for_each(|answer| card.outbox.push_of(loan, answer));
        }
    }

    /// Somebody has connected to the slot of `loan`.
    pub(super) fn accept_guest(&mut self, loan: usize) {
        match self.slots.accept(&self.spec.loans, loan) {
            Ok(Accepted::Nobody) => {}
            Ok(Accepted::Client) => self.begin_slot(loan),
            Ok(Accepted::SameClient) => {
                self.tell_of(loan, ToSlot::Park);
            }
            Err(error) => self.stop_accepting(&error),
        }
    }

    /// Gives the slot of `loan` to the client that has it now.
    fn begin_slot(&mut self, loan: usize) {
        // The card has said that it is done with the one before, so the account may begin anew.
        let accounts = &self.shared().edges[loan][0];
        accounts.received.reset();
        accounts.sent.reset();
        // It finds the function, as any new client does.
        self.core.handle_client(loan);
        self.tell_of(loan, ToSlot::Client);
    }
}

impl Client {
    fn new(socket: OwnedFd, loan: usize) -> Self {
        let pid = crate::process::peer_pid(socket.as_fd()).ok().flatten();
        Self { socket, loan, pid, since: pid.and_then(start_of), warned: false, known: Default::default() }
    }

    /// Whether both are connections of one process.
    fn is_same(&self, other: &Self) -> bool {
        self.since.is_some() && (self.pid, self.since) == (other.pid, other.since)
    }
}

impl Entry {
    /// Gives the slot to who waits for it, if it is vacant. Returns whether that was so.
    fn promote(&mut self, function: &str) -> bool {
        if self.client.is_some() {
            return false;
        }
        self.client = self.next.take();
        if let Some(client) = &self.client {
            self.lines.again.say(|others| {
                Event::GuestAgain { function: function.to_owned(), pid: client.pid, others }.say();
            });
        }
        self.client.is_some()
    }

    /// Whether these can be kept beside what is kept already: at most so many descriptors of a slot, and so many files
    /// that the card can map all of them.
    fn has_room(&self, descriptors: &[OwnedFd], share: usize) -> bool {
        let keys: Vec<_> = descriptors.iter().map(|descriptor| FileKey::of(descriptor.as_fd())).collect();
        let files =
            self.files.len() + keys.iter().flatten().filter(|key| !self.files.contains_key(key)).count();
        // What is no file is kept for one message only.
        let others = self.descriptors.values().filter(|kept| Arc::strong_count(kept) == 1).count();
        let others = others + keys.iter().filter(|key| key.is_none()).count();
        files <= guest_memory::FILES && files + others <= share
    }

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

    /// Whether a message maps memory that the client keeps to itself: its guest writes to copies that no other process
    /// sees. Says so, and also of memory that comes without a descriptor. `None`: it has come with too many files to
    /// find out.
    fn is_unshared(&mut self, bytes: &[u8], descriptors: &[OwnedFd], function: &str) -> Option<bool> {
        let Some(client) = &mut self.client else { return Some(false) };
        let Some((len, is_writable)) = guest_memory::mapped_bytes(bytes) else { return Some(false) };
        let is_new = |key: &FileKey| !self.files.contains_key(key);
        let file = descriptors.first().and_then(|descriptor| FileKey::of(descriptor.as_fd())).filter(is_new);
        let file = file.zip(client.pid);
        let is_private = file.map_or(Some(false), |(file, pid)| client.known.is_private(file, pid))?;
        let is_large = is_writable && len >= guest_memory::WORTH_SHARING;
        let is_missing = descriptors.is_empty() && self.files.is_empty() && is_large;
        if (is_private || is_missing) && !std::mem::replace(&mut client.warned, true) {
            let (function, pid) = (function.to_owned(), client.pid);
            self.lines.unshared.say(|others| Event::GuestUnshared { function, pid, others }.say());
        }
        Some(is_private)
    }

    /// The last message, with its descriptors if the card does not have them.
    fn tell_last(&self, with_descriptors: bool) -> Vec<ToSlot> {
        let Taken { number, bytes, ids } = &self.last;
        let mut messages = Vec::new();
        if with_descriptors && !ids.is_empty() {
            messages.push(ToSlot::Descriptors { ids: ids.clone() });
        }
        if *number > 0 {
            let bytes = Hex(bytes.clone());
            messages.push(ToSlot::Taken { number: *number, bytes, ids: ids.clone() });
        }
        messages
    }
}

/// Sends a client away, so that it sees an end.
fn refuse(line: &mut RateLimited, client: &Client, function: &str, why: &str) {
    let (function, why) = (function.to_owned(), why.to_owned());
    line.say(|others| Event::GuestRefused { function, pid: client.pid, others, why }.say());
    hang_up(client.socket.as_fd());
}

/// Keeps a connection that has no slot any more. How many there can be was decided when it was taken.
fn keep_parked(parked: &mut BTreeMap<u64, Client>, client: Client) {
    if let Ok(number) = rustix::net::sockopt::socket_cookie(&client.socket) {
        parked.insert(number, client);
    }
}

/// How many connections a node has room for.
fn room() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / DESCRIPTOR_PART).unwrap_or(MOST).clamp(FEWEST, MOST)
}

/// How many slots of virtual machines there can be without one's client taking descriptors that are for others, and how
/// many descriptors this process may open.
pub fn slots_by_descriptors() -> (usize, u64) {
    // The agent raises its limit to that.
    let descriptors = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let slots = descriptors / SHARE_PART / SHARE_FEWEST as u64;
    (usize::try_from(slots).unwrap_or(usize::MAX), descriptors)
}

/// Descriptors that this process has to be able to open so that there can be so many slots.
pub fn descriptors_for(slots: usize) -> u64 {
    (slots * SHARE_FEWEST) as u64 * SHARE_PART
}

/// How many descriptors the client of a slot may have kept.
fn share() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / SHARE_PART;
    usize::try_from(descriptors).unwrap_or(usize::MAX).div_euclid(MAX_SLOTS).max(SHARE_FEWEST)
}

/// When a process began, in the kernel's ticks.
fn start_of(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The 22nd field; the 2nd one is a name in brackets, which may have any characters (proc_pid_stat(5)).
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

pub(super) fn is_slot(loan: &LoanSpec) -> bool {
    matches!(loan.config.role.edge(), Some(Edge::Vm { .. }))
}

fn listener(loan: &LoanSpec) -> Option<&UnixListener> {
    match loan.config.role.edge() {
        Some(Edge::Vm { listener, .. }) => listener.as_ref(),
        _ => None,
    }
}

/// Receives exactly `len` bytes that are there, and the first [`DESCRIPTORS`] descriptors among them; the kernel closes
/// others.
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
mod tests;
