//! A card with a server, the kernel's account of its streams, and a drive on plain memory.

use std::collections::VecDeque;

use base::Random;
use base::ledger::{Arena, Ledger, PageCells, RawMemory};
use zerocopy::FromBytes;

use super::super::*;
use crate::BlockKind;
use crate::testing::{Killer, run_step};

pub(super) const BLOCK: usize = 512;
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(FromBytes)]
#[repr(C)]
pub(super) struct Root {
    server: ServerCells,
    pages: PageCells,
}

/// What happens to the card, one step each. Positions are those of the account when the step runs.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Geometry(Option<Geometry>),
    Open(usize),
    Closed(usize),
    Received(usize),
    Sent(usize),
    Completed(u32, Result<(), BlockError>),
    Tick,
}

/// A block request that the drive has.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) id: u32,
    pub(super) kind: BlockKind,
    pub(super) lba: u64,
    pub(super) blocks: u32,
    pub(super) fua: bool,
    pub(super) pages: Vec<PageIndex>,
}

/// A stream as the kernel and the client see it.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) open: bool,
    received: u64,
    sent: u64,
    /// Bytes the client has written and the card has not received.
    pub(super) outgoing: VecDeque<u8>,
    /// Bytes the client has received and not read.
    pub(super) incoming: Vec<u8>,
}

pub(super) struct World<'m> {
    memory: RawMemory<'m>,
    killer: &'m Killer,
    pub(super) server: Server<'m>,
    pub(super) now: Instant,
    pub(super) inputs: VecDeque<Input>,
    pub(super) streams: [Stream; CONNECTIONS],
    pub(super) orders: Vec<Order>,
    pub(super) disk: Vec<u8>,
    /// The drive keeps what it gets.
    pub(super) hang: bool,
    pub(super) result: Result<(), BlockError>,
    /// Identifiers that the drive was told to be given up.
    pub(super) given_up: Vec<RangeInclusive<u32>>,
    pub(super) log: Vec<(BlockKind, u64, u32, bool)>,
    /// Clients that do not read.
    pub(super) deaf: bool,
    pub(super) lives: usize,
}

pub(super) fn geometry(blocks: usize) -> Geometry {
    Geometry { block_size: BLOCK as u32, blocks: blocks as u64, read_only: false, volatile_cache: true }
}

fn server<'m>(memory: RawMemory<'m>, killer: &'m Killer) -> Server<'m> {
    let ledger = memory.ledger::<Root>(Some(killer), base::RuleSet::ALL);
    Server::new(
        &ledger.root.server,
        Pages::new(&ledger.root.pages, ledger.journal),
        ledger.journal,
        IO_TIMEOUT,
    )
}

impl<'m> World<'m> {
    pub(super) fn new(arena: &'m Arena, killer: &'m Killer, blocks: usize) -> Self {
        let memory = arena.zeroed::<Root>();
        Self {
            memory,
            killer,
            server: server(memory, killer),
            now: Instant::from_nanos(1),
            inputs: VecDeque::from([Input::Geometry(Some(geometry(blocks)))]),
            streams: Default::default(),
            orders: Vec::new(),
            disk: vec![0; blocks * BLOCK],
            hang: false,
            result: Ok(()),
            given_up: Vec::new(),
            log: Vec::new(),
            deaf: false,
            lives: 1,
        }
    }

    pub(super) fn calm(&self) -> Ledger<'m, Root> {
        self.memory.ledger(None, base::RuleSet::ALL)
    }

    pub(super) fn pool(&self) -> Pages<'m> {
        Pages::new(&self.calm().root.pages, self.calm().journal)
    }

    pub(super) fn open(&mut self, slot: usize) {
        self.streams[slot] = Stream { open: true, ..Stream::default() };
        self.inputs.push_back(Input::Open(slot));
    }

    pub(super) fn close(&mut self, slot: usize) {
        self.streams[slot] = Stream::default();
        self.inputs.retain(
            |input| !matches!(input, Input::Received(s) | Input::Sent(s) | Input::Open(s) if *s == slot),
        );
        self.inputs.push_back(Input::Closed(slot));
    }

    /// Sends bytes, lets everything happen, and takes what has come back.
    pub(super) fn exchange(&mut self, slot: usize, bytes: &[u8]) -> Vec<u8> {
        self.streams[slot].outgoing.extend(bytes);
        self.settle();
        std::mem::take(&mut self.streams[slot].incoming)
    }

    /// What the test itself has done to the ledger stays.
    pub(super) fn commit(&self) {
        self.memory.ledger::<Root>(None, base::RuleSet::ALL).journal.commit();
    }

    /// Runs until nothing happens but time.
    pub(super) fn settle(&mut self) {
        loop {
            while !self.inputs.is_empty() {
                self.step();
            }
            self.move_bytes(None);
            while !self.hang && !self.orders.is_empty() {
                self.execute(0);
            }
            if self.inputs.is_empty() && self.server.poll_timeout().is_some_and(|at| at <= self.now) {
                self.inputs.push_back(Input::Tick);
            }
            if self.inputs.is_empty() {
                return;
            }
        }
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.inputs.push_back(Input::Tick);
        self.settle();
    }

    /// The first input, as one step of the card.
    pub(super) fn step(&mut self) {
        let Some(input) = self.inputs.front().cloned() else { return };
        let (now, server, streams) = (self.now, &mut self.server, &self.streams);
        let (mut orders, mut given_up) = (Vec::new(), Vec::new());
        let (lived, happened) = run_step::<Root>(self.memory, self.killer, |_| {
            match input {
                Input::Geometry(geometry) => server.set_geometry(now, geometry),
                Input::Open(slot) => server.open(now, slot),
                Input::Closed(slot) => server.closed(now, slot),
                Input::Received(slot) => server.handle_received(now, slot, streams[slot].received),
                Input::Sent(slot) => server.handle_sent(now, slot, streams[slot].sent),
                Input::Completed(id, result) => server.handle_completion(now, id, result),
                Input::Tick => server.handle_timeout(now),
            }
            while let Some(ids) = server.poll_abandoned() {
                given_up.push(ids);
            }
            while let Some(request) = server.poll_request() {
                let BlockRequest { id, kind, lba, blocks, fua, pages } = request;
                orders.push(Order { id, kind, lba, blocks, fua, pages: pages.to_vec() });
            }
        });
        if happened {
            self.inputs.pop_front();
            self.log.extend(orders.iter().map(|order| (order.kind, order.lba, order.blocks, order.fua)));
            self.orders.extend(orders);
            self.given_up.extend(given_up);
        }
        if !lived {
            self.lives += 1;
            self.server = server_again(self.memory, self.killer);
            for slot in (0..CONNECTIONS).filter(|slot| !self.server.is_idle(*slot)) {
                self.inputs.push_front(Input::Received(slot));
                self.inputs.push_front(Input::Sent(slot));
            }
        }
    }

    /// The kernel moves bytes: all it can, or random pieces.
    pub(super) fn move_bytes(&mut self, mut random: Option<&mut Random>) {
        for slot in 0..CONNECTIONS {
            // A stream exists for the card from its `open` on, and no longer once its end is known.
            if !self.streams[slot].open || self.server.is_idle(slot) || self.ends(slot) {
                continue;
            }
            let mut most = || random.as_mut().map_or(usize::MAX, |random| random.below(20_000) as usize);
            let (into, from) = (most(), most());
            self.receive(slot, into);
            if !self.deaf {
                self.send(slot, from);
            }
            if self.server.wants_close(slot) {
                self.inputs.push_back(Input::Closed(slot));
                self.streams[slot].open = false;
            }
        }
    }

    fn ends(&self, slot: usize) -> bool {
        self.inputs.iter().any(|input| matches!(input, Input::Open(s) | Input::Closed(s) if *s == slot))
    }

    fn receive(&mut self, slot: usize, mut most: usize) {
        let stream = &mut self.streams[slot];
        for span in self.server.receive_spans(slot, stream.received) {
            let len = span.len().min(stream.outgoing.len()).min(most);
            let bytes: Vec<u8> = stream.outgoing.drain(..len).collect();
            span.part(0, len).write(self.memory.ledger::<Root>(None, base::RuleSet::ALL).journal, &bytes);
            stream.received += len as u64;
            most -= len;
            if len > 0 {
                self.inputs.push_back(Input::Received(slot));
            }
        }
    }

    fn send(&mut self, slot: usize, mut most: usize) {
        let mut spans = [self.server.receive_spans(slot, 0)[1].part(0, 0); 7];
        let stream = &mut self.streams[slot];
        let count = self.server.send_spans(slot, stream.sent, &mut spans);
        assert_eq!(count == 0, stream.sent == self.server.output_end(slot));
        for span in &spans[..count] {
            let len = span.len().min(most);
            let mut bytes = vec![0; len];
            span.part(0, len).read(&mut bytes);
            stream.incoming.extend(bytes);
            stream.sent += len as u64;
            most -= len;
            if len < span.len() {
                break;
            }
        }
        if count > 0 {
            self.inputs.push_back(Input::Sent(slot));
        }
    }

    /// The drive executes an order.
    pub(super) fn execute(&mut self, index: usize) {
        let order = self.orders.remove(index);
        let (start, len) = (order.lba as usize * BLOCK, order.blocks as usize * BLOCK);
        let (pool, disk) = (self.pool(), &mut self.disk);
        if self.result.is_ok() && order.kind != BlockKind::Flush {
            let range = &mut disk[start..start + len];
            match order.kind {
                BlockKind::Read | BlockKind::Write => assert_eq!(order.pages.len(), len.div_ceil(4096)),
                BlockKind::Trim => range.fill(0xdd),
                _ => range.fill(0),
            }
            for (page, part) in order.pages.iter().zip(range.chunks_mut(4096)) {
                match order.kind {
                    BlockKind::Read => pool.write(*page, 0, part),
                    _ => pool.read(*page, 0, part),
                }
            }
        }
        self.inputs.push_back(Input::Completed(order.id, self.result));
    }
}

fn server_again<'m>(memory: RawMemory<'m>, killer: &'m Killer) -> Server<'m> {
    server(memory, killer)
}

pub(super) fn with_world(blocks: usize, test: impl FnOnce(&mut World<'_>)) {
    let (arena, killer) = (Arena::default(), Killer::new(None));
    test(&mut World::new(&arena, &killer, blocks));
}
