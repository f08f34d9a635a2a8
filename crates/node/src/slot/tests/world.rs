//! Two cards joined directly, the kernel's account of a slot's socket, an agent with descriptors, and the memory of a
//! guest. Either card can be killed before any store, to its ledger or to the guest's memory, and is followed by
//! another one.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::rc::Rc;
use std::sync::Once;

use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId, RailId};
use base::ledger::{Arena, Hook, RawMemory, Span};
use base::{Instant, Random, RuleSet};
use device::MediaKind;
use device::nvme::WriteCache;
use host::vfio_user::{DescriptorId, Peeked, SessionCells};
use link::pair::FunctionId;
use link::{Name, NodeKey, Secret, Tenancy};
use spec::vfio_user::{Command, Errno, MessageHeader};
use zerocopy::IntoBytes;

use crate::card::{Card, CardEvent};
use crate::{
    Address, BorrowEdge, CardConfig, DriveConfig, EdgeGauges, EndCells, GuestMemory, LendConfig, LoanConfig,
    LoanRole, NodeLedger, RailConfig, Route, SlotCells, Title,
};

pub(super) const LENDER: usize = 0;
pub(super) const BORROWER: usize = 1;
pub(super) const BLOCKS: u64 = 2048;
pub(super) const RAM_BYTES: usize = 1 << 20;
const PEER: Address = Address([1; 28]);
const TICK: Duration = Duration::from_micros(20);

struct Killed;

/// Kills a card before a store.
#[derive(Default)]
pub(super) struct Switch {
    /// Stores that it may still make, if it is to die.
    left: Cell<Option<u64>>,
    pub(super) stores: Cell<u64>,
    /// Stores until an assertion fails, if one is to.
    pub(super) fault: Cell<Option<u64>>,
}

/// An assertion that fails.
struct Injected;

impl Switch {
    pub(super) fn arm(&self, stores: u64) {
        self.left.set(Some(stores));
    }

    pub(super) fn disarm(&self) {
        self.left.set(None);
    }

    pub(super) fn is_armed(&self) -> bool {
        self.left.get().is_some()
    }
}

impl Hook for Switch {
    fn before_store(&self) {
        self.stores.set(self.stores.get() + 1);
        match self.fault.get() {
            Some(0) => {
                self.fault.set(None);
                panic_any(Injected);
            }
            left => self.fault.set(left.map(|left| left - 1)),
        }
        self.kill_now();
    }
}

impl Switch {
    /// The card dies here, if it is its turn.
    fn kill_now(&self) {
        match self.left.get() {
            Some(0) => {
                self.left.set(None);
                panic_any(Killed);
            }
            left => self.left.set(left.map(|left| left - 1)),
        }
    }
}

/// A store into the guest's memory.
#[derive(Clone, Debug, PartialEq)]
struct Store {
    at: u64,
    bytes: Vec<u8>,
}

/// The guest's memory, which descriptors are parts of.
pub(super) struct Ram<'m> {
    pub(super) bytes: RefCell<Vec<u8>>,
    /// Where each open descriptor begins.
    pub(super) descriptors: RefCell<BTreeMap<u32, u64>>,
    switch: &'m Switch,
    /// The last store, and whether it came to its end; `None` at the end once the card is known to have lived on.
    last: RefCell<Option<(Store, bool)>>,
    /// Cards died since that store.
    succeeded: Cell<bool>,
    pub(super) repeated: Cell<u64>,
    pub(super) stores: Cell<u64>,
}

impl GuestMemory for Ram<'_> {
    fn read(&self, loan: usize, descriptor: DescriptorId, offset: u64, out: &mut [u8]) -> bool {
        assert_eq!(loan, 0);
        let Some(base) = self.descriptors.borrow().get(&descriptor.0).copied() else { return false };
        let start = (base + offset) as usize;
        out.copy_from_slice(&self.bytes.borrow()[start..start + out.len()]);
        true
    }

    fn write(&self, loan: usize, descriptor: DescriptorId, offset: u64, bytes: &[u8]) -> bool {
        assert_eq!(loan, 0);
        let Some(base) = self.descriptors.borrow().get(&descriptor.0).copied() else { return false };
        let store = Store { at: base + offset, bytes: bytes.to_vec() };
        self.judge(&store);
        *self.last.borrow_mut() = Some((store, false));
        self.stores.set(self.stores.get() + 1);
        let start = (base + offset) as usize;
        let half = bytes.len() / 2;
        self.switch.kill_now();
        self.bytes.borrow_mut()[start..start + half].copy_from_slice(&bytes[..half]);
        self.switch.kill_now();
        self.bytes.borrow_mut()[start + half..start + bytes.len()].copy_from_slice(&bytes[half..]);
        self.last.borrow_mut().as_mut().unwrap().1 = true;
        self.switch.kill_now();
        true
    }
}

impl Ram<'_> {
    /// The first store of a new card is the one that was in doubt, if it had not come to its end.
    fn judge(&self, store: &Store) {
        if !self.succeeded.replace(false) {
            return;
        }
        if let Some((last, whole)) = &*self.last.borrow() {
            assert!(*whole || last == store, "a half-made store is made again before any other");
            self.repeated.set(self.repeated.get() + u64::from(last == store));
        }
    }
}

/// One of the nodes.
pub(super) struct Seat<'m> {
    pub(super) memory: RawMemory<'m>,
    pub(super) switch: &'m Switch,
    pub(super) card: Option<Card<'m>>,
    pub(super) incarnation: u64,
    generation: u64,
    incoming: VecDeque<Vec<u8>>,
    /// The other node hears nothing of it.
    pub(super) is_silent: bool,
    pub(super) deaths: u64,
}

/// What QEMU does about memory that it does not share.
#[derive(Default)]
pub(super) struct Machine {
    /// What it has mapped without a descriptor: DMA addresses, and whether it may be written.
    pub(super) maps: Vec<(Range<u64>, bool)>,
    /// Where that memory begins.
    pub(super) base: u64,
    /// A processor waits for a register: nothing is answered as long.
    pub(super) holds: bool,
    pub(super) is_silent: bool,
    /// It does not come to writes.
    pub(super) keeps_writes: bool,
    /// It has data where older versions of QEMU have them.
    pub(super) is_old: bool,
    /// The command that is refused.
    pub(super) refuses: Option<Command>,
    pub(super) reads: u64,
    pub(super) writes: u64,
}

impl Machine {
    /// Does what a message asks for, and returns the reply.
    fn answer(&mut self, message: &[u8], ram: &mut [u8]) -> Vec<u8> {
        let header = *MessageHeader::view(message.first_chunk().unwrap());
        let (command, payload) = (header.command(), &message[16..]);
        if self.refuses == Some(command) {
            return MessageHeader::error_reply(header.id.get(), command, Errno::EFAULT).as_bytes().to_vec();
        }
        let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
        let (address, len) = (word(0), u64::from(word(8) as u32));
        let is_write = command == Command::DMA_WRITE;
        let is_mapped = self.maps.iter().any(|(range, writable)| {
            range.contains(&address) && address + len <= range.end && (*writable || !is_write)
        });
        assert!(is_mapped, "{command:?} of {len} bytes at {address:#x}, of {:x?}", self.maps);
        let data = if self.is_old { 12 } else { 16 };
        let start = (address - self.base) as usize;
        let bytes = &mut ram[start..start + len as usize];
        if is_write {
            assert_eq!(payload.len(), 16 + bytes.len());
            bytes.copy_from_slice(&payload[data..data + bytes.len()]);
            self.writes += 1;
            let answer = if self.is_old { &[][..] } else { &payload[..16] };
            let header = MessageHeader::reply(header.id.get(), command, answer.len() as u32);
            return [header.as_bytes(), answer].concat();
        }
        assert_eq!(command, Command::DMA_READ);
        self.reads += 1;
        let answer = [&payload[..data], bytes, &[0; 4][..16 - data]].concat();
        let header = MessageHeader::reply(header.id.get(), command, answer.len() as u32);
        [header.as_bytes(), &answer].concat()
    }
}

/// The socket of the slot as the kernel and the agent have it.
#[derive(Default)]
struct Socket {
    connected: bool,
    /// Bytes that the client has written and nobody has received, each with the descriptors that come with it.
    outgoing: VecDeque<(u8, Vec<u32>)>,
    /// Bytes for the client.
    incoming: Vec<u8>,
    /// Replies to it.
    replies: VecDeque<Vec<u8>>,
    /// What it is asked for.
    asked: VecDeque<Vec<u8>>,
    received: u64,
    sent: u64,
}

pub(super) struct World<'m> {
    arena: &'m Arena,
    pub(super) now: Instant,
    pub(super) seats: [Seat<'m>; 2],
    pub(super) medium: Vec<u8>,
    /// What is left of it when the power fails.
    pub(super) durable: Vec<u8>,
    pub(super) ram: Rc<Ram<'m>>,
    socket: Socket,
    /// The message that the agent has taken last, and how many there were.
    mail: Option<(u64, Vec<u8>, Vec<DescriptorId>)>,
    mails: u64,
    /// Descriptors that the agent keeps.
    pub(super) open: BTreeSet<u32>,
    /// How often each was signalled.
    pub(super) signals: BTreeMap<u32, u64>,
    pub(super) events: Vec<CardEvent>,
    buffer: Vec<u8>,
    /// Something has happened in this turn.
    busy: bool,
    pub(super) machine: Machine,
    /// Of a thousand frames, how many are lost, and how many come late.
    pub(super) loss: u64,
    /// Bytes of the largest frame.
    frame: usize,
    cache: WriteCache,
    /// What the lender's drive holds has been replaced.
    pub(super) is_renewed: bool,
    /// Another node has the function, by the table of a lender that begins.
    pub(super) is_taken: bool,
    random: Random,
}

fn silence_kills() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Killed>() && !info.payload().is::<Injected>() {
                usual(info);
            }
        }));
    });
}

/// Runs a test in a new world.
pub(super) fn with_world(test: impl FnOnce(&mut World<'_>)) {
    with_frames(9000, test);
}

/// With frames of this size: those of less than 8192 bytes make payloads of 1024.
pub(super) fn with_frames(frame: usize, test: impl FnOnce(&mut World<'_>)) {
    with(frame, WriteCache::Hidden, test);
}

/// With a drive that has this cache.
pub(super) fn with_cache(cache: WriteCache, test: impl FnOnce(&mut World<'_>)) {
    with(9000, cache, test);
}

/// What the ledger has of the slot.
pub(super) struct Cells<'m> {
    pub(super) session: &'m SessionCells,
    pub(super) slot: &'m SlotCells,
    pub(super) edge: &'m EdgeGauges,
}

fn with(frame: usize, cache: WriteCache, test: impl FnOnce(&mut World<'_>)) {
    silence_kills();
    let (arena, switches) = (Arena::default(), [Switch::default(), Switch::default()]);
    test(&mut World::new(&arena, [&switches[0], &switches[1]], frame, cache));
}

impl<'m> World<'m> {
    fn new(arena: &'m Arena, switches: [&'m Switch; 2], frame: usize, cache: WriteCache) -> Self {
        let seat = |node: usize| Seat {
            memory: config(node, 1, 0, (frame, cache)).new_memory(arena),
            switch: switches[node],
            card: None,
            incarnation: 1,
            generation: 0,
            incoming: VecDeque::new(),
            is_silent: false,
            deaths: 0,
        };
        let ram = Ram {
            bytes: RefCell::new(vec![0; RAM_BYTES]),
            descriptors: RefCell::default(),
            switch: switches[BORROWER],
            last: RefCell::default(),
            succeeded: Cell::new(false),
            repeated: Cell::new(0),
            stores: Cell::new(0),
        };
        let mut world = Self {
            arena,
            now: Instant::from_nanos(1),
            seats: [seat(LENDER), seat(BORROWER)],
            medium: vec![0; BLOCKS as usize * 512],
            durable: vec![0; BLOCKS as usize * 512],
            ram: Rc::new(ram),
            socket: Socket::default(),
            mail: None,
            mails: 0,
            open: BTreeSet::new(),
            signals: BTreeMap::new(),
            events: Vec::new(),
            buffer: vec![0; 1 << 16],
            busy: false,
            machine: Machine::default(),
            loss: 0,
            frame,
            cache,
            is_renewed: false,
            is_taken: false,
            random: Random::new(1),
        };
        world.start(LENDER);
        world.start(BORROWER);
        world
    }

    fn ledger(&self, node: usize) -> NodeLedger<'m> {
        NodeLedger::new(self.seats[node].memory, None, RuleSet::ALL)
    }

    /// The cells of the slot.
    pub(super) fn cells(&self) -> Cells<'m> {
        let parts = self.ledger(BORROWER).loan(0, 0).expect("each card has begun with them");
        let EndCells::Slot { session, slot } = parts.end else { unreachable!("the borrower has a slot") };
        Cells { session, slot, edge: &parts.cells.edge }
    }

    pub(super) fn card(&self) -> &Card<'m> {
        self.seats[BORROWER].card.as_ref().expect("a card that died has a successor")
    }

    /// The next card of a node, on what the one before it has left; it may die at once.
    fn start(&mut self, node: usize) {
        loop {
            let seat = &mut self.seats[node];
            seat.generation += 1;
            let mut config = config(node, seat.incarnation, seat.generation, (self.frame, self.cache));
            let renewed = |loan: &mut LoanConfig| loan.tenancy = loan.tenancy.renewed(LifeId::default());
            config.loans.iter_mut().filter(|_| self.is_renewed).for_each(renewed);
            if self.is_taken && node == LENDER {
                let (other, life) = (NodeKey::numbered(9).id(), LifeId([9; 16]));
                let tenancy = &mut config.loans[0].tenancy;
                *tenancy = tenancy.taken_by(other, life, Name::new("other"), LifeId::default());
            }
            let (memory, switch, now) = (seat.memory, seat.switch, self.now);
            let hook: &dyn Hook = switch;
            match catch_unwind(AssertUnwindSafe(|| Card::new(memory, Some(hook), config, now))) {
                Ok(card) => self.seats[node].card = Some(card.expect("the memory was made for it")),
                Err(payload) if payload.is::<Killed>() => {
                    self.seats[node].deaths += 1;
                    continue;
                }
                Err(payload) => resume_unwind(payload),
            }
            if node == LENDER || self.tell_all() {
                return;
            }
        }
    }

    /// Tells a new card what its agent knows of the slot. False if it dies of that.
    fn tell_all(&mut self) -> bool {
        let memory = Rc::clone(&self.ram);
        self.seats[BORROWER].card.as_mut().unwrap().set_guest_memory(memory);
        let Socket { connected, received, sent, .. } = self.socket;
        let mail = self.mail.clone().filter(|_| connected && !self.card().slot_is_idle(0));
        let moved = connected.then_some([received, sent]);
        self.try_act(BORROWER, |card, now| card.slot_resume(now, 0, moved))
            && mail.is_none_or(|(number, bytes, descriptors)| {
                self.try_act(BORROWER, |card, now| card.slot_taken(now, 0, number, &bytes, &descriptors))
            })
    }

    /// Lets a card do something. False if it dies of that.
    fn try_act(&mut self, node: usize, work: impl FnOnce(&mut Card<'m>, Instant)) -> bool {
        let now = self.now;
        let card = self.seats[node].card.as_mut().expect("a card that died has a successor");
        match catch_unwind(AssertUnwindSafe(|| work(card, now))) {
            Ok(()) => {
                assert_eq!(card.uncommitted(), 0, "every verb ends with a commit");
                true
            }
            Err(payload) if payload.is::<Killed>() => {
                let seat = &mut self.seats[node];
                (seat.card, seat.deaths) = (None, seat.deaths + 1);
                if node == BORROWER {
                    self.ram.succeeded.set(true);
                }
                false
            }
            Err(payload) => resume_unwind(payload),
        }
    }

    /// Lets a card do something, and if it dies of that starts the next one.
    pub(super) fn act(&mut self, node: usize, work: impl FnOnce(&mut Card<'m>, Instant)) -> bool {
        self.busy = true;
        let lives = self.try_act(node, work);
        if !lives {
            self.start(node);
        }
        lives
    }

    /// Everything that is due now, once; then time goes on.
    pub(super) fn turn(&mut self) {
        self.busy = false;
        for node in [LENDER, BORROWER] {
            self.serve(node);
        }
        self.serve_socket();
        self.serve_machine();
        self.serve_descriptors();
        for node in [LENDER, BORROWER] {
            self.transmit(node);
        }
        let due = self.seats.iter().filter_map(|seat| seat.card.as_ref()?.poll_timeout()).min();
        self.now = match due {
            Some(at) if !self.busy && at > self.now + TICK => at,
            _ => self.now + TICK,
        };
    }

    fn serve(&mut self, node: usize) {
        while let Some(mut frame) = self.seats[node].incoming.pop_front() {
            self.act(node, |card, now| card.handle_frame(now, RailId::ALL[0], PEER, &mut frame));
        }
        let due = self.seats[node].card.as_ref().and_then(Card::poll_timeout);
        if due.is_some_and(|at| at <= self.now) {
            self.act(node, Card::handle_timeout);
        }
        while let Some(event) = self.seats[node].card.as_mut().and_then(Card::poll_event) {
            if let CardEvent::Tenant(loan, tenancy) = event {
                self.act(node, |card, now| card.set_tenancy(now, loan, tenancy));
            }
            self.events.push(event);
        }
        self.serve_media(node);
    }

    fn serve_media(&mut self, node: usize) {
        loop {
            let mut work = None;
            if !self.try_act(node, |card, _| work = card.poll_media()) {
                self.start(node);
                continue;
            }
            let Some(work) = work else { return };
            self.busy = true;
            if work.kind == MediaKind::Flush {
                self.durable.clone_from(&self.medium);
            }
            let mut at = work.offset as usize;
            for span in work.spans() {
                let part = &mut self.medium[at..at + span.len()];
                at += span.len();
                match work.kind {
                    MediaKind::Write => span.read(part),
                    MediaKind::Read => {
                        let ledger = NodeLedger::new(self.seats[node].memory, None, RuleSet::ALL);
                        span.write(ledger.journal, part);
                    }
                    _ => {}
                }
            }
            self.act(node, |card, now| card.handle_media(now, work.loan, work.id, Ok(())));
        }
    }

    fn transmit(&mut self, node: usize) {
        let now = self.now;
        let Some(card) = self.seats[node].card.as_mut() else { return };
        let mut sent = Vec::new();
        while let Some(outgoing) = card.poll_transmit(now, &mut self.buffer) {
            sent.push(self.buffer[..outgoing.len].to_vec());
        }
        self.busy |= !sent.is_empty();
        if self.seats[node].is_silent {
            return;
        }
        for frame in sent {
            let (lost, late) = (self.chance(), self.chance());
            let incoming = &mut self.seats[1 - node].incoming;
            if late {
                incoming.push_front(frame);
            } else if !lost {
                incoming.push_back(frame);
            }
        }
    }

    fn chance(&mut self) -> bool {
        self.random.chance(self.loss)
    }

    /// The kernel moves bytes.
    fn serve_socket(&mut self) {
        if !self.socket.connected {
            return;
        }
        self.send();
        let seen: Vec<u8> = self.socket.outgoing.iter().take(4096).map(|(byte, _)| *byte).collect();
        if seen.is_empty() {
            return;
        }
        match self.card().slot_peeked(0, self.socket.received, self.mails, &seen) {
            Peeked::Consume(len) => self.receive(len),
            Peeked::AgentTakes { len } => self.take(len),
            Peeked::NeedMore | Peeked::Wait => {}
        }
    }

    fn send(&mut self) {
        let mut spans = [Span::empty(); 5];
        let count = self.card().slot_send_spans(0, self.socket.sent, &mut spans);
        for span in &spans[..count] {
            let mut bytes = vec![0; span.len()];
            span.read(&mut bytes);
            self.socket.sent += bytes.len() as u64;
            self.socket.incoming.extend(bytes);
        }
        if count > 0 {
            let sent = self.socket.sent;
            self.act(BORROWER, |card, now| card.slot_sent(now, 0, sent));
        }
    }

    fn receive(&mut self, mut most: usize) {
        let journal = self.ledger(BORROWER).journal;
        for span in self.card().slot_receive_spans(0, self.socket.received, most).into_iter().flatten() {
            let len = span.len().min(most);
            let bytes: Vec<(u8, Vec<u32>)> = self.socket.outgoing.drain(..len).collect();
            assert!(bytes.iter().all(|(_, descriptors)| descriptors.is_empty()), "descriptors are lost");
            let bytes: Vec<u8> = bytes.into_iter().map(|(byte, _)| byte).collect();
            span.part(0, len).write(journal, &bytes);
            self.socket.received += len as u64;
            most -= len;
        }
        let received = self.socket.received;
        self.act(BORROWER, |card, now| card.slot_received(now, 0, received));
    }

    fn take(&mut self, len: usize) {
        let bytes: Vec<(u8, Vec<u32>)> = self.socket.outgoing.drain(..len).collect();
        let descriptors: Vec<u32> = bytes.iter().flat_map(|(_, descriptors)| descriptors.clone()).collect();
        self.open.extend(&descriptors);
        let bytes: Vec<u8> = bytes.into_iter().map(|(byte, _)| byte).collect();
        let descriptors: Vec<_> = descriptors.into_iter().map(DescriptorId).collect();
        self.mails += 1;
        self.mail = Some((self.mails, bytes.clone(), descriptors.clone()));
        let number = self.mails;
        self.act(BORROWER, |card, now| card.slot_taken(now, 0, number, &bytes, &descriptors));
    }

    /// The agent signals and closes.
    fn serve_descriptors(&mut self) {
        while let Some((loan, descriptor)) = self.seats[BORROWER].card.as_mut().and_then(Card::poll_signal) {
            assert_eq!(loan, 0);
            self.busy = true;
            *self.signals.entry(descriptor.0).or_default() += 1;
        }
        for descriptor in self.card().slot_released(0) {
            self.open.remove(&descriptor.0);
            self.ram.descriptors.borrow_mut().remove(&descriptor.0);
            if !self.act(BORROWER, |card, now| card.slot_descriptor_closed(now, 0, descriptor)) {
                return;
            }
        }
    }

    /// Runs until something holds. False if it does not within `time`.
    pub(super) fn run(&mut self, time: Duration, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now + time;
        while !holds(self) {
            if self.now >= until {
                return false;
            }
            self.turn();
        }
        true
    }

    /// A client connects.
    pub(super) fn connect(&mut self) {
        self.socket = Socket { connected: true, ..Socket::default() };
        self.machine.maps.clear();
        self.act(BORROWER, |card, now| card.slot_open(now, 0));
    }

    /// The client goes.
    pub(super) fn disconnect(&mut self) {
        self.socket = Socket::default();
        self.act(BORROWER, |card, now| card.slot_closed(now, 0));
    }

    /// The client writes a message with descriptors.
    pub(super) fn write(&mut self, bytes: &[u8], descriptors: &[u32]) {
        let start = self.socket.outgoing.len();
        self.socket.outgoing.extend(bytes.iter().map(|byte| (*byte, Vec::new())));
        self.socket.outgoing[start].1.extend(descriptors);
    }

    /// The next reply to the client, if it is there.
    pub(super) fn message(&mut self) -> Option<Vec<u8>> {
        self.socket.replies.pop_front()
    }

    /// Takes apart what has come for the machine, and answers what it is asked for, unless its main loop holds still.
    fn serve_machine(&mut self) {
        while let Some(len) = self.socket.incoming.get(4..8) {
            let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
            if self.socket.incoming.len() < len {
                break;
            }
            let message: Vec<u8> = self.socket.incoming.drain(..len).collect();
            let is_reply = message[8] & 0xf == 1;
            if is_reply { &mut self.socket.replies } else { &mut self.socket.asked }.push_back(message);
            self.busy = true;
        }
        if self.machine.holds || self.machine.is_silent {
            return;
        }
        let is_kept = |message: &Vec<u8>| {
            let header = MessageHeader::view(message.first_chunk().unwrap());
            self.machine.keeps_writes && header.command() == Command::DMA_WRITE
        };
        if self.socket.asked.front().is_some_and(is_kept) {
            return;
        }
        let Some(message) = self.socket.asked.pop_front() else { return };
        self.busy = true;
        let answer = self.machine.answer(&message, &mut self.ram.bytes.borrow_mut());
        self.socket.outgoing.extend(answer.into_iter().map(|byte| (byte, Vec::new())));
    }

    /// Whether the machine is asked for something that it has not answered.
    pub(super) fn is_asked(&self) -> bool {
        !self.socket.asked.is_empty()
    }

    /// The lender's machine loses its power: its ledger, and what its disk's volatile cache held.
    pub(super) fn lose_power(&mut self) {
        self.medium.clone_from(&self.durable);
        if let WriteCache::Shown { keeper } = &mut self.cache {
            *keeper += 1;
        }
        self.reboot(LENDER);
    }

    /// A node loses its ledger.
    pub(super) fn reboot(&mut self, node: usize) {
        let seat = &mut self.seats[node];
        (seat.incarnation, seat.generation) = (seat.incarnation + 1, 0);
        let config = config(node, seat.incarnation, seat.generation, (self.frame, self.cache));
        (seat.memory, seat.card) = (config.new_memory(self.arena), None);
        seat.incoming.clear();
        self.start(node);
    }
}

/// The domain of the borrower's machine.
const MACHINE: DomainId = DomainId(77);

fn config(node: usize, incarnation: u64, generation: u64, (frame, cache): (usize, WriteCache)) -> CardConfig {
    let key = |node: usize| NodeKey::numbered(node as u64 + 1);
    let life = |node: usize, incarnation: u64| {
        LifeId((u128::from(incarnation) << 8 | (node as u128 + 1)).to_le_bytes())
    };
    let drive = || DriveConfig { cache, ..DriveConfig::new(BLOCKS, 512, 7) };
    let role = if node == LENDER {
        LoanRole::Lend(LendConfig::of(0))
    } else {
        let io_timeout = Duration::from_secs(30);
        LoanRole::Borrow {
            lender: key(LENDER).lends_in(DomainId(LENDER as u32 + 1)),
            routes: vec![Route { rail: RailId::ALL[0], peer: PEER, max_frame: frame }],
            io_timeout,
            edge: BorrowEdge::Slot { domain: MACHINE },
        }
    };
    let loan = LoanConfig {
        title: Title::Line(Secret([5; 32])),
        function: FunctionId(7),
        group: Group::DEFAULT,
        tenancy: Tenancy::default().taken_by(
            key(BORROWER).id(),
            life(BORROWER, 1),
            Name::new("node"),
            LifeId::default(),
        ),
        life: 0,
        least_incarnation: Incarnation(0),
        role,
    };
    let mut seed = [node as u8; 32];
    seed[1..9].copy_from_slice(&generation.to_le_bytes());
    CardConfig {
        identity: key(node),
        name: Name::new("node"),
        domain: DomainId(node as u32 + 1),
        incarnation: Incarnation(incarnation),
        life: life(node, incarnation),
        restored_as: None,
        protection: link::Protection::Insecure,
        rail_mode: link::RailMode::default(),
        lost_carriers: 0,
        generation: CardGeneration(generation),
        seed: Secret(seed),
        rails: RailConfig::first(1, frame),
        drives: (node == LENDER).then(|| Some(drive())).into_iter().collect(),
        loans: vec![loan],
        holders: Vec::new(),
        rekey_frames: link::REKEY_FRAMES,
        rules: RuleSet::ALL,
    }
}
