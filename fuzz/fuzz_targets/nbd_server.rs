//! Bytes of several NBD clients, in any pieces, against the server on a ledger; the drive answers in any order.
#![no_main]

use core::time::Duration;
use std::collections::VecDeque;

use base::ledger::{Arena, PageCells, Span};
use host::nbd::{CONNECTIONS, Server, ServerCells};
use host::{BlockError, Geometry};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use rigs::Rig;
use spec::nbd::{Command, CommandFlags, RequestHeader};
use zerocopy::{FromBytes, IntoBytes};

const BLOCKS: u64 = 64;

#[derive(FromBytes)]
#[repr(C)]
struct Root {
    server: ServerCells,
    pages: PageCells,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Open(u8),
    Close(u8),
    /// The usual beginning of a client: flags, then GO.
    Greet(u8),
    Bytes(u8, Vec<u8>),
    Option {
        slot: u8,
        option: u8,
        data: Vec<u8>,
    },
    Request {
        slot: u8,
        command: u8,
        flags: u8,
        offset: u16,
        length: u32,
        data: Vec<u8>,
    },
    /// The client takes up to so many bytes.
    Take(u8, u16),
    Complete {
        which: u8,
        failed: bool,
    },
    Wait {
        millis: u16,
    },
    Geometry(u8),
    Successor,
}

struct World<'m> {
    rig: &'m Rig<'m, Root>,
    server: Server<'m>,
    now: base::Instant,
    received: [u64; CONNECTIONS],
    sent: [u64; CONNECTIONS],
    orders: VecDeque<u32>,
}

impl<'m> World<'m> {
    fn new(rig: &'m Rig<'m, Root>) -> Self {
        Self {
            rig,
            server: server(rig),
            now: rigs::START,
            received: [0; CONNECTIONS],
            sent: [0; CONNECTIONS],
            orders: VecDeque::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Open(slot) => self.open(*slot),
            Step::Close(slot) => self.server.closed(self.now, index(*slot)),
            Step::Greet(slot) => {
                self.open(*slot);
                self.deliver(*slot, &[0, 0, 0, 3]);
                self.option(*slot, 7, &[0; 6]);
            }
            Step::Bytes(slot, bytes) => self.deliver(*slot, bytes),
            Step::Option { slot, option, data } => self.option(*slot, (*option).into(), data),
            Step::Request { slot, command, flags, offset, length, data } => {
                let (command, flags) = (Command((*command % 9).into()), CommandFlags((*flags).into()));
                let header = RequestHeader::new(command, flags, 7, (*offset).into(), *length % 0x10_0000);
                self.deliver(*slot, header.as_bytes());
                self.deliver(*slot, data);
            }
            Step::Take(slot, bytes) => self.take(index(*slot), (*bytes).into()),
            Step::Complete { which, failed } => {
                let which = usize::from(*which) % self.orders.len().max(1);
                if let Some(id) = self.orders.remove(which) {
                    let result = if *failed { Err(BlockError::Io) } else { Ok(()) };
                    self.server.handle_completion(self.now, id, result);
                }
            }
            Step::Wait { millis } => {
                self.now += Duration::from_millis((*millis).into());
                self.server.handle_timeout(self.now);
            }
            Step::Geometry(which) => {
                let block_size = if which % 4 == 3 { 4096 } else { 512 };
                let known =
                    Geometry { block_size, blocks: BLOCKS, read_only: which % 4 == 2, volatile_cache: true };
                self.server.set_geometry(self.now, (which % 4 != 0).then_some(known));
            }
            Step::Successor => self.succeed(),
        }
        self.drain();
    }

    fn open(&mut self, slot: u8) {
        let slot = index(slot);
        if self.server.is_idle(slot) {
            (self.received[slot], self.sent[slot]) = (0, 0);
            self.server.open(self.now, slot);
            self.drain();
        }
    }

    fn option(&mut self, slot: u8, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.deliver(slot, &bytes);
    }

    /// Puts as much as there is room for where the kernel would.
    fn deliver(&mut self, slot: u8, mut bytes: &[u8]) {
        let slot = index(slot);
        for span in self.server.receive_spans(slot, self.received[slot]) {
            let len = span.len().min(bytes.len());
            span.part(0, len).write(self.rig.journal, &bytes[..len]);
            self.received[slot] += len as u64;
            bytes = &bytes[len..];
        }
        if !self.server.is_idle(slot) {
            self.server.handle_received(self.now, slot, self.received[slot]);
        }
        self.drain();
    }

    fn take(&mut self, slot: usize, most: usize) {
        if self.server.is_idle(slot) {
            return;
        }
        let mut spans = [Span::empty(); 8];
        let count = self.server.send_spans(slot, self.sent[slot], &mut spans);
        let ready: usize = spans[..count].iter().map(Span::len).sum();
        assert!(self.sent[slot] + ready as u64 <= self.server.output_end(slot));
        self.sent[slot] += ready.min(most) as u64;
        self.server.handle_sent(self.now, slot, self.sent[slot]);
    }

    /// Another card goes on over the same ledger.
    fn succeed(&mut self) {
        self.server = server(self.rig);
        for slot in (0..CONNECTIONS).filter(|slot| !self.server.is_idle(*slot)).collect::<Vec<_>>() {
            self.server.handle_received(self.now, slot, self.received[slot]);
            self.server.handle_sent(self.now, slot, self.sent[slot]);
        }
    }

    fn drain(&mut self) {
        while let Some(request) = self.server.poll_request() {
            assert!(request.pages.len() <= host::BlockRequest::MAX_PAGES);
            self.orders.push_back(request.id);
        }
        self.rig.journal.commit();
        for slot in 0..CONNECTIONS {
            if self.server.wants_close(slot) {
                self.server.closed(self.now, slot);
            }
        }
        self.rig.journal.commit();
    }
}

fn index(slot: u8) -> usize {
    usize::from(slot % 3)
}

fn server<'m>(rig: &'m Rig<'m, Root>) -> Server<'m> {
    let pages = rig.pages(&rig.root.pages);
    Server::new(&rig.root.server, pages, rig.journal, Duration::from_secs(30))
}

fuzz_target!(|steps: Vec<Step>| {
    let arena = Arena::default();
    let rig = Rig::<Root>::new(&arena);
    let mut world = World::new(&rig);
    world.step(&Step::Geometry(1));
    world.step(&Step::Greet(0));
    steps.iter().take(100).for_each(|step| world.step(step));
    // When everybody has gone and the drive has let go, nothing is held.
    (0..CONNECTIONS).for_each(|slot| world.server.closed(world.now, slot));
    world.drain();
    while let Some(id) = world.orders.pop_front() {
        world.server.handle_completion(world.now, id, Ok(()));
    }
    world.drain();
    assert_eq!((world.server.in_flight(), world.server.abandoned()), (0, 0));
    assert_eq!(rig.pages(&rig.root.pages).used(), 0, "every page is given back");
});
