//! Random clients against a plain array, with bytes in random pieces, disconnects and killed cards.

use base::Random;
use base::ledger::Arena;
use proptest::prelude::*;
use spec::nbd::Command;

use super::world::World;
use super::{GO, STRUCTURED, request};
use crate::testing::Killer;

const CLIENTS: usize = 3;
/// Requests of a client that are under way at once, each in a part of the disk of its own.
const LANES: usize = 3;
const LANE_BYTES: usize = 256 << 10;
const HELLO_BYTES: usize = 18;
const GO_REPLY_BYTES: usize = 20 + 12 + 20 + 14 + 20;

struct Operation {
    command: Command,
    offset: usize,
    data: Vec<u8>,
}

#[derive(Default)]
struct Client {
    structured: bool,
    ready: bool,
    leaving: bool,
    lanes: [Option<Operation>; LANES],
    left: usize,
}

struct Model<'m> {
    world: World<'m>,
    random: Random,
    expected: Vec<u8>,
    clients: [Client; CLIENTS],
}

impl Model<'_> {
    fn connect(&mut self, slot: usize) {
        let client = &mut self.clients[slot];
        client.structured = self.random.below(2) == 0;
        (client.ready, client.leaving) = (false, false);
        self.world.open(slot);
        let outgoing = &mut self.world.streams[slot].outgoing;
        outgoing.extend(b"\0\0\0\x03");
        outgoing.extend(if self.clients[slot].structured { STRUCTURED } else { b"" });
        outgoing.extend(GO);
    }

    /// A new request in a free lane.
    fn ask(&mut self, slot: usize) {
        let lane = self.random.below(LANES as u64) as usize;
        let client = &mut self.clients[slot];
        if !client.ready || client.leaving || client.left == 0 || client.lanes[lane].is_some() {
            return;
        }
        client.left -= 1;
        let most = [4096, 20_000, LANE_BYTES][self.random.below(3) as usize];
        let len = (1 + self.random.below(most as u64 / 512) as usize) * 512;
        let start = self.random.below((LANE_BYTES - len) as u64 / 512 + 1) as usize * 512;
        let offset = (slot * LANES + lane) * LANE_BYTES + start;
        let (command, flags) = [
            (Command::READ, 0),
            (Command::WRITE, 0),
            (Command::WRITE, 1),
            (Command::TRIM, 1),
            (Command::WRITE_ZEROES, 2),
            (Command::FLUSH, 0),
        ][self.random.below(6) as usize];
        let data: Vec<u8> = match command {
            Command::WRITE => (0..len).map(|_| self.random.next_u64() as u8).collect(),
            Command::TRIM => vec![0xdd; len],
            Command::WRITE_ZEROES => vec![0; len],
            Command::READ => self.expected[offset..offset + len].to_vec(),
            _ => Vec::new(),
        };
        let outgoing = &mut self.world.streams[slot].outgoing;
        let length = if command == Command::FLUSH { 0 } else { len as u32 };
        outgoing.extend(request(command, flags, lane as u64, offset as u64, length));
        if command == Command::WRITE {
            outgoing.extend(&data);
        }
        self.clients[slot].lanes[lane] = Some(Operation { command, offset, data });
    }

    /// Takes the replies that are there.
    fn listen(&mut self, slot: usize) {
        while let Some(len) = self.reply(slot) {
            self.world.streams[slot].incoming.drain(..len);
        }
    }

    /// The length of the first reply, if all of it is there.
    fn reply(&mut self, slot: usize) -> Option<usize> {
        let bytes = &self.world.streams[slot].incoming;
        let client = &mut self.clients[slot];
        if !client.ready {
            let len = HELLO_BYTES + GO_REPLY_BYTES + if client.structured { 20 } else { 0 };
            client.ready = bytes.len() >= len;
            return client.ready.then_some(len);
        }
        let header = if client.structured { 20 } else { 16 };
        let lane = *bytes.get(..header)?.get(15)? as usize;
        let operation = client.lanes[lane].as_ref().expect("a reply answers a request, once");
        let reads = operation.command == Command::READ;
        let data = if reads { operation.data.len() } else { 0 };
        let offset = if reads && client.structured { 8 } else { 0 };
        let body = bytes.get(header..header + offset + data)?;
        if client.structured {
            assert_eq!(bytes[4..8], [0, 1, 0, u8::from(reads)]);
        } else {
            assert_eq!(bytes[4..8], [0; 4]);
        }
        assert!(!reads || body[offset..] == operation.data, "data of a read at {}", operation.offset);
        let range = operation.offset..operation.offset + operation.data.len();
        self.expected[range].copy_from_slice(&operation.data);
        client.lanes[lane] = None;
        Some(header + offset + data)
    }

    fn leave(&mut self, slot: usize) {
        self.clients[slot].leaving = true;
        self.world.close(slot);
    }

    /// Once nothing of a client that left is under way, each block is as before or as it wrote; then it comes back.
    fn come_back(&mut self, slot: usize) {
        let quiet = self.world.server.is_idle(slot)
            && self.world.server.abandoned() == 0
            && self.world.inputs.is_empty();
        if !self.clients[slot].leaving || !quiet {
            return;
        }
        for lane in 0..LANES {
            let Some(operation) = self.clients[slot].lanes[lane].take() else { continue };
            for (index, new) in operation.data.chunks(512).enumerate() {
                let at = operation.offset + index * 512;
                let (found, old) = (&self.world.disk[at..at + 512], &mut self.expected[at..at + 512]);
                assert!(found == new || found == &*old, "block at {at} after a disconnect");
                old.copy_from_slice(found);
            }
        }
        self.connect(slot);
    }

    fn turn(&mut self, killer: &Killer, kills: bool) {
        let slot = self.random.below(CLIENTS as u64) as usize;
        match self.random.below(40) {
            0 if kills => killer.at.set(Some(killer.stores.get() + self.random.below(300))),
            1 if self.random.below(4) == 0 && !self.clients[slot].leaving => self.leave(slot),
            2..8 => self.ask(slot),
            8..16 => self.world.move_bytes(Some(&mut self.random)),
            16..24 if !self.world.orders.is_empty() => {
                let index = self.random.below(self.world.orders.len() as u64) as usize;
                self.world.execute(index);
            }
            _ => self.world.step(),
        }
        self.listen(slot);
        self.come_back(slot);
    }

    fn is_done(&self) -> bool {
        self.clients
            .iter()
            .all(|client| client.left == 0 && !client.leaving && client.lanes.iter().all(Option::is_none))
    }
}

fn run(seed: u64, kills: bool) -> usize {
    let (arena, killer) = (Arena::default(), Killer::new(None));
    let bytes = CLIENTS * LANES * LANE_BYTES;
    let mut model = Model {
        world: World::new(&arena, &killer, bytes / 512),
        random: Random::new(seed),
        expected: vec![0; bytes],
        clients: core::array::from_fn(|_| Client { left: 40, ..Client::default() }),
    };
    (0..CLIENTS).for_each(|slot| model.connect(slot));
    let mut turns = 0;
    while !model.is_done() {
        model.turn(&killer, kills);
        turns += 1;
        if turns % 5000 == 0 {
            killer.at.set(None);
            model.world.settle();
            (0..CLIENTS).for_each(|slot| model.listen(slot));
        }
        assert!(turns < 2_000_000, "requests end");
    }
    killer.at.set(None);
    model.world.settle();
    assert!(model.world.disk == model.expected, "the disk is as written");
    let server = &model.world.server;
    assert_eq!((server.in_flight(), server.abandoned(), model.world.pool().used()), (0, 0, 0));
    model.world.lives
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn clients_see_a_plain_array(seed: u64) {
        run(seed, false);
    }

    #[test]
    fn clients_see_a_plain_array_though_cards_die(seed: u64) {
        run(seed, true);
    }
}

#[test]
fn cards_do_die_in_the_model() {
    assert!(run(1, true) > 20);
}
