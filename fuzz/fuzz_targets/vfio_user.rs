//! Messages, bytes and descriptors of a virtual machine, in any pieces, against the session of a slot; the function
//! answers in any order, the client reads when it likes, and cards follow each other.
#![no_main]

use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use base::ledger::{Arena, Span};
use host::vfio_user::{
    COMMANDS, DMA_END, DescriptorId, DmaAccessKind, INPUT_BYTES, MESSAGE_DESCRIPTORS, Peeked, Request,
    Session, SessionCells, SlotConfig, TRANSFERS,
};
use host::{Access, AccessError, AccessId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use pcie::capability::express::ExpressOptions;
use pcie::capability::msix::MsixLocation;
use pcie::{ConfigBuilder, ConfigLayout};
use rigs::Rig;
use spec::vfio_user::{Command, Errno, HEADER_BYTES, MessageFlags, MessageHeader};
use zerocopy::{FromBytes, IntoBytes};

const VECTORS: u16 = 8;
/// What is in the socket at most.
const SOCKET_BYTES: usize = 4 * INPUT_BYTES;
/// Messages to the client of which it remembers the numbers.
const ASKED: usize = 2 * TRANSFERS;

/// Tokens of transfers.
const OF_WRITE: u32 = 1;
const OF_READ: u32 = 2;
/// What they write, and what the client has in its memory.
const WRITTEN: u8 = 3;
const READ: u8 = 4;

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    session: SessionCells,
}

#[derive(Arbitrary, Debug)]
struct Input {
    /// Whether the client has data where older versions of QEMU do. `None`: that is to be found out.
    old_transfers: Option<bool>,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Client(ClientStep),
    Other(OtherStep),
}

/// What a client writes.
#[derive(Arbitrary, Debug)]
enum ClientStep {
    /// Anything at all: from here on it is not known what is to be answered.
    Bytes(Vec<u8>, u8),
    Message {
        command: u8,
        flags: u8,
        payload: Vec<u8>,
        descriptors: u8,
    },
    Access {
        write: bool,
        posted: bool,
        region: u8,
        offset: u16,
        count: u16,
    },
    Map {
        page: u8,
        pages: u8,
        offset: u8,
        rights: u8,
        descriptors: u8,
    },
    Unmap {
        page: u8,
        pages: u8,
        all: bool,
    },
    Interrupts {
        flags: u8,
        index: u8,
        start: u8,
        count: u8,
        descriptors: u8,
    },
    /// To one of the last messages that it was sent, which it may have answered before: the newest is 0.
    Reply {
        which: u8,
        reply: Reply,
    },
    /// To a message that it may never have been sent.
    Stray {
        id: u16,
        write: bool,
        len: u16,
    },
}

#[derive(Arbitrary, Debug)]
enum Reply {
    /// As the document has it.
    Whole,
    /// A header.
    Bare,
    Failed(u8),
    /// With so many bytes.
    Bytes(u16),
}

/// What the driver does, or the function.
#[derive(Arbitrary, Debug)]
enum OtherStep {
    Open {
        greets: bool,
    },
    Close,
    Ended,
    /// So many bytes of the socket are looked at.
    Arrive(u16),
    /// The client reads all that was sent.
    Read,
    Done {
        which: u8,
        error: u8,
        short: bool,
    },
    Stale(u32),
    Interrupt(u16),
    Present(bool),
    Reset,
    Transfer {
        write: bool,
        page: u8,
        len: u16,
        /// The client replies at once to the last message that it was sent.
        reply: Option<Reply>,
    },
    Use {
        page: u8,
    },
    EndUse,
    Wait(u16),
    Successor,
}

/// A message that the client was sent.
#[derive(Clone, Copy)]
struct Asked {
    id: u16,
    command: Command,
    len: usize,
}

struct World<'m> {
    rig: &'m Rig<'m, Root>,
    config: SlotConfig,
    session: Session<'m>,
    now: base::Instant,
    received: u64,
    sent: u64,
    /// What nobody has received, with the descriptors that come with each byte.
    socket: VecDeque<(u8, u8)>,
    incoming: Vec<u8>,
    /// The last messages that the client was sent.
    asked: VecDeque<Asked>,
    /// Transfers that have begun and have not ended.
    transfers: usize,
    /// What was sent in sound messages, and is to be answered in this order: number and command.
    owed: VecDeque<(u16, u16)>,
    /// Nothing is known any more of what is to be answered.
    wild: bool,
    number: u16,
    taken: u64,
    /// Descriptors that the agent keeps.
    open: BTreeSet<u32>,
    next_descriptor: u32,
    requests: VecDeque<Request>,
    uses: Vec<host::vfio_user::MapId>,
}

fn layout() -> ConfigLayout {
    let msix = MsixLocation {
        vectors: VECTORS,
        table_bar: 0,
        table_offset: 0x2000,
        pending_bar: 0,
        pending_offset: 0x3000,
    };
    let builder = ConfigBuilder::endpoint(0xca05, 1).class(0x01_0802, 0).bar_64(0, 0x4000, false);
    let builder = builder.power_management().express(ExpressOptions::default()).msix(msix);
    builder.advanced_error_reporting().build()
}

impl<'m> World<'m> {
    fn new(rig: &'m Rig<'m, Root>, old_transfers: Option<bool>) -> Self {
        let layout = layout();
        let config = SlotConfig::probe(|register| layout.initial(register), [0x4000, 0, 0, 0, 0, 0]);
        let config = SlotConfig { old_transfers, ..config.expect("the layout has been written by hand") };
        Self {
            rig,
            session: Session::new(&rig.root.session, rig.journal, &config),
            config,
            now: rigs::START,
            received: 0,
            sent: 0,
            socket: VecDeque::new(),
            incoming: Vec::new(),
            asked: VecDeque::new(),
            transfers: 0,
            owed: VecDeque::new(),
            wild: false,
            number: 0,
            taken: 0,
            open: BTreeSet::new(),
            next_descriptor: 0,
            requests: VecDeque::new(),
            uses: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Client(step) => self.client_says(step),
            Step::Other(step) => self.happens(step),
        }
        self.drain();
    }

    fn client_says(&mut self, step: &ClientStep) {
        match step {
            ClientStep::Bytes(bytes, descriptors) => {
                self.wild = true;
                self.write(bytes, *descriptors);
            }
            ClientStep::Message { command, flags, payload, descriptors } => {
                self.message(Command(u16::from(*command % 20)), flags & 0x10 != 0, payload, *descriptors);
            }
            ClientStep::Access { write, posted, region, offset, count } => {
                let mut payload = u64::from(*offset).to_le_bytes().to_vec();
                payload.extend(
                    [u32::from(region % 10), u32::from(*count % 5000)].map(u32::to_le_bytes).concat(),
                );
                if *write {
                    payload.resize(16 + usize::from(*count % 5000), 0x5a);
                }
                let command = if *write { Command::REGION_WRITE } else { Command::REGION_READ };
                self.message(command, *posted, &payload, 0);
            }
            ClientStep::Map { page, pages, offset, rights, descriptors } => {
                let numbers =
                    [*offset, *page, *pages].map(|pages| (u64::from(pages) << 12).to_le_bytes()).concat();
                let payload =
                    [&[32, u32::from(rights % 5)].map(u32::to_le_bytes).concat()[..], &numbers].concat();
                self.message(Command::DMA_MAP, false, &payload, *descriptors % 3);
            }
            ClientStep::Unmap { page, pages, all } => {
                let (page, pages) = if *all { (0, 0) } else { (*page, *pages) };
                let numbers = [page, pages].map(|pages| (u64::from(pages) << 12).to_le_bytes()).concat();
                let flags = if *all { 2_u32 } else { 0 };
                let payload = [&[24, flags].map(u32::to_le_bytes).concat()[..], &numbers].concat();
                self.message(Command::DMA_UNMAP, false, &payload, 0);
            }
            ClientStep::Interrupts { flags, index, start, count, descriptors } => {
                let words = [20, (*flags).into(), (*index % 5).into(), (*start).into(), (*count).into()];
                let payload = words.map(u32::to_le_bytes).concat();
                self.message(Command::DEVICE_SET_IRQS, false, &payload, *descriptors);
            }
            ClientStep::Reply { which, reply } => self.reply((*which).into(), reply),
            ClientStep::Stray { id, write, len } => {
                let command = if *write { Command::DMA_WRITE } else { Command::DMA_READ };
                let header = MessageHeader::reply(*id, command, (*len % 5000).into());
                self.write(&[header.as_bytes(), &vec![READ; usize::from(*len % 5000)]].concat(), 0);
            }
        }
    }

    fn reply(&mut self, which: usize, reply: &Reply) {
        self.read();
        let newest = self.asked.len().saturating_sub(1);
        let Some(&Asked { id, command, len }) = self.asked.get(newest - which % (newest + 1)) else { return };
        let sound = if command == Command::DMA_READ { 16 + len } else { 16 };
        let (len, errno) = match reply {
            Reply::Whole => (sound, None),
            Reply::Bare => (0, None),
            Reply::Failed(errno) => (0, Some(Errno((*errno).into()))),
            Reply::Bytes(len) => (usize::from(*len % 5000), None),
        };
        let header = errno.map_or(MessageHeader::reply(id, command, len as u32), |errno| {
            MessageHeader::error_reply(id, command, errno)
        });
        self.write(&[header.as_bytes(), &vec![READ; len]].concat(), 0);
        self.drain();
        self.arrive(usize::MAX);
    }

    fn happens(&mut self, step: &OtherStep) {
        let now = self.now;
        match step {
            OtherStep::Open { greets } => self.open(*greets),
            OtherStep::Close => self.close(),
            OtherStep::Ended => {
                self.session.ended(now);
                self.wild = true;
            }
            OtherStep::Arrive(most) => self.arrive((*most).into()),
            OtherStep::Read => self.read(),
            OtherStep::Done { which, error, short } => self.done((*which).into(), *error, *short),
            OtherStep::Stale(id) => self.session.handle_done(now, AccessId(*id), Ok(&[0; 4])),
            OtherStep::Interrupt(vector) => {
                if let Some(descriptor) = self.session.interrupts.raise(*vector % (VECTORS + 2)) {
                    assert!(self.open.contains(&descriptor.0), "what is signalled is open");
                }
            }
            OtherStep::Present(present) => self.session.set_present(now, *present),
            OtherStep::Reset => self.session.handle_function_reset(now),
            OtherStep::Transfer { write, page, len, reply } => {
                let (address, len) = (u64::from(*page) << 12, usize::from(*len % 5000));
                let begun = match write {
                    true => self.session.transfers.write(now, OF_WRITE, address, &vec![WRITTEN; len]),
                    false => self.session.transfers.read(now, OF_READ, address, len),
                };
                self.transfers += usize::from(begun.is_ok());
                if let Some(reply) = reply {
                    self.drain();
                    self.reply(0, reply);
                }
            }
            OtherStep::Use { page } => {
                let address = u64::from(*page) << 12;
                if let Ok(piece) = self.session.maps.lookup(address, 64, DmaAccessKind::Read)
                    && self.uses.len() < 8
                {
                    self.session.maps.begin_use(piece.map);
                    self.uses.push(piece.map);
                }
            }
            OtherStep::EndUse => {
                if let Some(map) = self.uses.pop() {
                    self.session.end_use(map);
                }
            }
            OtherStep::Wait(millis) => {
                self.now += Duration::from_millis((*millis % 5000).into());
                self.session.handle_timeout(self.now);
            }
            OtherStep::Successor => self.succeed(),
        }
    }

    /// Whether nothing is under way.
    fn is_settled(&self) -> bool {
        let is_answered = self.owed.is_empty() && self.session.in_flight() == 0;
        is_answered && self.transfers == 0 && self.uses.is_empty()
    }

    fn open(&mut self, greets: bool) {
        if self.session.is_idle() {
            (self.received, self.sent, self.wild) = (0, 0, false);
            self.socket.clear();
            self.incoming.clear();
            self.owed.clear();
            self.session.open(self.now);
            if greets {
                self.message(Command::VERSION, false, &[0; 4], 0);
            }
        }
    }

    fn close(&mut self) {
        self.socket.clear();
        self.incoming.clear();
        self.session.closed(self.now);
        (self.received, self.sent, self.wild) = (0, 0, true);
    }

    fn write(&mut self, bytes: &[u8], descriptors: u8) {
        if self.session.is_idle() || self.socket.len() + bytes.len() > SOCKET_BYTES {
            self.wild = true;
            return;
        }
        let start = self.socket.len();
        self.socket.extend(bytes.iter().map(|byte| (*byte, 0)));
        if let Some(first) = self.socket.get_mut(start) {
            first.1 = descriptors;
        }
    }

    fn message(&mut self, command: Command, posted: bool, payload: &[u8], descriptors: u8) {
        self.number = self.number.wrapping_add(1);
        let mut header = MessageHeader::request(self.number, command, payload.len() as u32);
        header.flags = MessageFlags(0).with_no_reply(posted).0.into();
        if !posted {
            self.owed.push_back((self.number, command.0));
        }
        // A version that is not ours ends the session.
        self.wild |= command == Command::VERSION && payload.first_chunk() != Some(&[0, 0]);
        self.write(&[header.as_bytes(), payload].concat(), descriptors);
        self.drain();
        self.arrive(usize::MAX);
    }

    /// The card looks at the first bytes of the socket.
    fn arrive(&mut self, most: usize) {
        for _ in 0..64 {
            if self.session.is_idle() || self.socket.is_empty() {
                return;
            }
            let seen: Vec<u8> = self.socket.iter().take(most).map(|(byte, _)| *byte).collect();
            match self.session.handle_peeked(self.received, self.taken, &seen) {
                Peeked::Consume(len) => {
                    assert!((1..=seen.len()).contains(&len));
                    self.receive(len);
                }
                Peeked::AgentTakes { len } => {
                    assert!((HEADER_BYTES..=seen.len()).contains(&len), "all of it is there");
                    self.take(len);
                }
                Peeked::NeedMore | Peeked::Wait => return,
            }
            self.drain();
        }
    }

    fn receive(&mut self, mut most: usize) {
        for span in self.session.receive_spans(self.received, most) {
            let len = span.len().min(most);
            let bytes: Vec<u8> = self.socket.drain(..len).map(|(byte, _)| byte).collect();
            span.part(0, len).write(self.rig.journal, &bytes);
            self.received += len as u64;
            most -= len;
        }
        self.session.handle_received(self.now, self.received);
    }

    fn take(&mut self, len: usize) {
        let taken: Vec<(u8, u8)> = self.socket.drain(..len).collect();
        let count = taken.iter().map(|(_, descriptors)| usize::from(*descriptors)).sum::<usize>();
        let ids: Vec<DescriptorId> = (0..count.min(MESSAGE_DESCRIPTORS))
            .map(|_| {
                self.next_descriptor += 1;
                self.open.insert(self.next_descriptor);
                DescriptorId(self.next_descriptor)
            })
            .collect();
        let bytes: Vec<u8> = taken.into_iter().map(|(byte, _)| byte).collect();
        self.taken += 1;
        self.session.handle_taken(self.now, self.taken, &bytes, &ids);
        // A successor may be told again.
        self.session.handle_taken(self.now, self.taken, &bytes, &ids);
    }

    fn read(&mut self) {
        loop {
            let mut spans = [Span::empty(); 8];
            let count = self.session.send_spans(self.sent, &mut spans);
            assert_eq!(count == 0, self.sent == self.session.output_end());
            if count == 0 {
                break;
            }
            for span in &spans[..count] {
                let mut bytes = vec![0; span.len()];
                span.read(&mut bytes);
                self.sent += bytes.len() as u64;
                self.incoming.extend(bytes);
            }
            self.session.handle_sent(self.now, self.sent);
            self.drain();
        }
        while let Some(header) = self.incoming.first_chunk::<HEADER_BYTES>() {
            let header = *MessageHeader::view(header);
            let size = header.size.get() as usize;
            assert!((HEADER_BYTES..=HEADER_BYTES + 16 + 8192).contains(&size) && size <= self.incoming.len());
            let message: Vec<u8> = self.incoming.drain(..size).collect();
            if header.flags().kind() == MessageFlags::COMMAND {
                self.is_asked(&header, &message[HEADER_BYTES..]);
            }
            if header.flags().kind() == MessageFlags::REPLY && !self.wild {
                let owed = self.owed.pop_front();
                assert_eq!(
                    owed,
                    Some((header.id.get(), header.command().0)),
                    "each is answered once, in order"
                );
            }
        }
    }

    /// A message to the client: looks at it, and keeps its number.
    fn is_asked(&mut self, header: &MessageHeader, payload: &[u8]) {
        let command = header.command();
        let is_write = command == Command::DMA_WRITE;
        assert!(is_write || command == Command::DMA_READ);
        // Of older versions of QEMU, the data lie in the upper half of the count.
        let (_, count) = payload[..12].split_at(8);
        let len = u32::from_le_bytes(count.try_into().expect("four bytes")) as usize;
        let data = if is_write { len } else { 0 };
        assert_eq!(payload.len(), 16 + data);
        let places = match self.config.old_transfers {
            Some(true) => &[12][..],
            Some(false) => &[16],
            None => &[12, 16],
        };
        let is_there = |place: &usize| payload[*place..][..data].iter().all(|byte| *byte == WRITTEN);
        assert!(places.iter().any(is_there), "the data lie where they are expected");
        self.asked.push_back(Asked { id: header.id.get(), command, len });
        if self.asked.len() > ASKED {
            self.asked.pop_front();
        }
    }

    fn done(&mut self, which: usize, error: u8, short: bool) {
        let Some(request) = self.requests.remove(which % self.requests.len().max(1)) else { return };
        let (id, len) = match request {
            Request::Access(Access::Read { id, len, .. }) => (id, usize::from(len)),
            Request::Access(Access::ConfigRead { id, .. }) => (id, 4),
            Request::Access(Access::ConfigWrite { id, .. }) | Request::Reset { id, .. } => (id, 0),
            Request::Access(Access::Write { .. }) => return,
        };
        let errors = [AccessError::UnsupportedRequest, AccessError::Aborted, AccessError::Timeout];
        let bytes = vec![9; if short { len / 2 } else { len }];
        let result = errors.get(usize::from(error)).map_or(Ok(&bytes[..]), |error| Err(*error));
        self.session.handle_done(self.now, id, result);
    }

    fn succeed(&mut self) {
        self.session = Session::new(&self.rig.root.session, self.rig.journal, &self.config);
        if !self.session.is_idle() {
            self.session.handle_sent(self.now, self.sent);
            self.session.handle_received(self.now, self.received);
            self.session.interrupts.signal_all();
        }
    }

    /// Takes what the session has for others, and looks at what must hold.
    fn drain(&mut self) {
        while let Some(request) = self.session.poll_request() {
            match request {
                Request::Access(Access::Write { offset, payload, .. }) => {
                    assert!(offset as usize + payload.len() <= 0x4000);
                }
                Request::Access(Access::Read { offset, len, .. }) => {
                    assert!(offset + u64::from(len) <= 0x4000);
                }
                Request::Access(_) | Request::Reset { .. } => {}
            }
            if request.id().is_some() {
                self.requests.push_back(request);
            }
        }
        while let Some(signal) = self.session.interrupts.poll_signal() {
            assert!(self.open.contains(&signal.0));
        }
        while self.session.interrupts.poll_change().is_some() || self.session.maps.poll_change().is_some() {}
        let mut ended = 0;
        while let Some(done) = self.session.transfers.poll_done() {
            ended += 1;
            let Ok(span) = done.result else { continue };
            assert!(done.token == OF_READ || span.is_empty());
            let mut bytes = vec![0; span.len()];
            span.read(&mut bytes);
            assert!(
                self.wild || bytes.iter().all(|byte| *byte == READ),
                "what was read is what the client has"
            );
        }
        // What could not begin for want of an answer may be asked for again.
        self.session.transfers.poll_silence();
        self.transfers = self.transfers.checked_sub(ended).expect("a transfer ends once");
        assert!(ended + self.transfers <= TRANSFERS && self.session.in_flight() <= COMMANDS);
        self.rig.journal.commit();
        let released: Vec<_> = self.session.descriptors.released().take(4).collect();
        for descriptor in released {
            assert!(self.open.remove(&descriptor.0), "each is given back once");
            self.session.descriptors.handle_closed(descriptor);
        }
        self.rig.journal.commit();
        let mut end = 0;
        for (_, map) in self.session.maps.iter() {
            assert!(map.start >= end && map.start + map.len <= DMA_END, "maps do not overlap");
            end = map.start + map.len;
            assert!(map.descriptor.is_none_or(|descriptor| self.open.contains(&descriptor.0)));
            let found = self.session.maps.lookup(map.start, map.len, DmaAccessKind::Read);
            assert_eq!(found.is_ok(), map.readable);
        }
    }
}

fuzz_target!(|input: Input| {
    let arena = Arena::default();
    let rig = Rig::<Root>::new(&arena);
    let mut world = World::new(&rig, input.old_transfers);
    world.step(&Step::Other(OtherStep::Open { greets: true }));
    input.steps.iter().take(200).for_each(|step| world.step(step));
    // With time, whatever can be answered has been.
    for _ in 0..COMMANDS {
        if world.is_settled() {
            break;
        }
        world.step(&Step::Other(OtherStep::Wait(4999)));
        world.step(&Step::Other(OtherStep::Arrive(u16::MAX)));
        world.step(&Step::Other(OtherStep::EndUse));
        world.step(&Step::Other(OtherStep::Read));
    }
    if !world.wild && !world.session.is_idle() {
        assert!(world.owed.is_empty() && world.session.in_flight() == 0, "everything is answered");
    }
    // When the client has gone and copies have ended, nothing is held.
    world.close();
    world.drain();
    assert!(world.transfers == 0 && !world.session.transfers.has_late_writes(), "every transfer has ended");
    while !world.uses.is_empty() {
        world.step(&Step::Other(OtherStep::EndUse));
    }
    while !world.open.is_empty() {
        let before = world.open.len();
        world.drain();
        assert!(world.open.len() < before, "every descriptor is given back");
    }
});
