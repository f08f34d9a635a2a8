//! Random clients that keep to the protocol, against a simple model, with bytes in random pieces, late answers, running
//! copies, disconnects and killed cards.

use std::collections::{BTreeMap, BTreeSet};

use base::Random;
use base::ledger::Arena;
use proptest::prelude::*;
use spec::vfio_user::{Command, Errno};

use super::memory::{map_payload, unmap_payload};
use super::world::{Input, VECTOR_COUNT, World, config};
use super::{access, error, message, read, read_reply, ready, reply, silent, words, write, write_reply};
use crate::testing::Killer;
use crate::vfio_user::{DmaAccessKind, MapId};

const PAGES: u64 = 24;
const VECTORS: usize = VECTOR_COUNT as usize;
/// Registers below the vectors.
const BAR: usize = 0x2000;

#[derive(Clone, Default)]
struct Vector {
    descriptor: Option<u32>,
    masked: bool,
    /// It has interrupted, and nobody has heard it.
    owed: bool,
    /// What it had since the last look.
    had: BTreeSet<u32>,
}

struct Model<'m> {
    world: World<'m>,
    random: Random,
    /// What the client will have read.
    expected: Vec<u8>,
    bar: Vec<u8>,
    /// BAR 0 as configuration space shows it.
    placed: u32,
    /// By first page: pages, and the descriptor.
    maps: BTreeMap<u64, (u64, u32)>,
    vectors: Vec<Vector>,
    using: Vec<(MapId, u32)>,
    next_descriptor: u32,
    number: u16,
}

impl Model<'_> {
    fn below(&mut self, end: u64) -> u64 {
        self.random.below(end)
    }

    fn descriptor(&mut self) -> u32 {
        self.next_descriptor += 1;
        self.next_descriptor
    }

    fn send(&mut self, bytes: &[u8], descriptors: &[u32], reply: &[u8]) {
        self.world.write(bytes, descriptors);
        self.expected.extend(reply);
    }

    /// The client sends one more command.
    fn ask(&mut self) {
        self.number = self.number.wrapping_add(1);
        let id = self.number;
        match self.below(20) {
            0..5 => self.read(id),
            5..10 => self.write(id),
            10 => self.write_multi(id),
            11 => self.place(id),
            12..15 => self.map(id),
            15..17 => self.unmap(id),
            17 => self.set_descriptors(id),
            18 => self.mask(id),
            _ => self.other(id),
        }
    }

    fn range(&mut self) -> (usize, usize) {
        let len = [1, 4, 8, 300][self.below(4) as usize];
        (self.below((BAR - len) as u64) as usize, len)
    }

    fn read(&mut self, id: u16) {
        let (offset, len) = self.range();
        let answer = read_reply(id, 0, offset as u64, &self.bar[offset..offset + len]);
        self.send(&read(id, 0, offset as u64, len as u32), &[], &answer);
    }

    fn write(&mut self, id: u16) {
        let (offset, len) = self.range();
        let data: Vec<u8> = (0..len).map(|_| self.random.next_u64() as u8).collect();
        self.bar[offset..offset + len].copy_from_slice(&data);
        let bytes = write(id, 0, offset as u64, &data);
        if self.below(4) > 0 {
            self.send(&silent(bytes), &[], b"");
        } else {
            self.send(&bytes, &[], &write_reply(id, 0, offset as u64, len as u32));
        }
    }

    fn write_multi(&mut self, id: u16) {
        let count = self.below(9);
        let mut payload = count.to_le_bytes().to_vec();
        for _ in 0..count {
            let (offset, data) = (self.below(BAR as u64 - 8), self.random.next_u64().to_le_bytes());
            let len = 1 + self.below(8) as usize;
            self.bar[offset as usize..][..len].copy_from_slice(&data[..len]);
            payload.extend(access(offset, 0, len as u32));
            payload.extend(data);
        }
        let answer = reply(id, Command::REGION_WRITE_MULTI, &count.to_le_bytes());
        self.send(&message(id, Command::REGION_WRITE_MULTI, &payload), &[], &answer);
    }

    /// Moves the BAR, or looks where it is.
    fn place(&mut self, id: u16) {
        if self.below(2) == 0 {
            let address = self.random.next_u64() as u32;
            self.placed = address & !0x3fff | 4;
            self.send(&write(id, 7, 0x10, &address.to_le_bytes()), &[], &write_reply(id, 7, 0x10, 4));
        } else {
            self.send(&read(id, 7, 0x10, 4), &[], &read_reply(id, 7, 0x10, &self.placed.to_le_bytes()));
        }
    }

    fn pages(&mut self) -> (u64, u64) {
        let first = self.below(PAGES);
        (first, 1 + self.below(4))
    }

    fn map(&mut self, id: u16) {
        let (first, count) = self.pages();
        let overlaps =
            self.maps.iter().any(|(start, (pages, _))| *start < first + count && first < start + pages);
        let descriptor = self.descriptor();
        let bytes = message(id, Command::DMA_MAP, &map_payload(3, 0, first << 12, count << 12));
        if overlaps {
            return self.send(&bytes, &[descriptor], &error(id, Command::DMA_MAP, Errno::EEXIST));
        }
        self.maps.insert(first, (count, descriptor));
        self.send(&bytes, &[descriptor], &reply(id, Command::DMA_MAP, b""));
    }

    fn unmap(&mut self, id: u16) {
        let all = self.below(8) == 0;
        let chosen = self.below(self.maps.len().max(1) as u64) as usize;
        let exact = self.maps.iter().nth(chosen).map(|(start, (pages, _))| (*start, *pages));
        let (first, count) = exact.filter(|_| chosen % 4 != 3).unwrap_or((chosen as u64, 3));
        let inside = |start: u64, pages: u64| first <= start && start + pages <= first + count;
        let touched = |start: u64, pages: u64| start < first + count && first < start + pages;
        let cut =
            self.maps.iter().any(|(start, (pages, _))| touched(*start, *pages) && !inside(*start, *pages));
        let none = !self.maps.iter().any(|(start, (pages, _))| touched(*start, *pages));
        let payload = if all { unmap_payload(2, 0, 0) } else { unmap_payload(0, first << 12, count << 12) };
        let bytes = message(id, Command::DMA_UNMAP, &payload);
        let answer = match (all, cut, none) {
            (false, true, _) => error(id, Command::DMA_UNMAP, Errno::EINVAL),
            (false, false, true) => error(id, Command::DMA_UNMAP, Errno::ENOENT),
            _ => {
                self.maps.retain(|start, (pages, _)| !(all || inside(*start, *pages)));
                reply(id, Command::DMA_UNMAP, &payload)
            }
        };
        self.send(&bytes, &[], &answer);
    }

    fn set_irqs(&mut self, id: u16, flags: u32, start: u32, count: u32, descriptors: &[u32]) {
        let bytes = message(id, Command::DEVICE_SET_IRQS, &words(&[20, flags, 2, start, count]));
        self.send(&bytes, descriptors, &reply(id, Command::DEVICE_SET_IRQS, b""));
    }

    fn set_descriptors(&mut self, id: u16) {
        let start = self.below(VECTORS as u64) as usize;
        let count = 1 + self.below((VECTORS - start) as u64) as usize;
        if self.below(6) == 0 {
            self.vectors.iter_mut().for_each(|vector| (vector.descriptor, vector.masked) = (None, false));
            return self.set_irqs(id, 0x21, 0, 0, &[]);
        }
        let take_back = self.below(3) == 0;
        let mut descriptors = Vec::new();
        for number in start..start + count {
            let given = (!take_back).then(|| self.descriptor());
            descriptors.extend(given);
            let vector = &mut self.vectors[number];
            if vector.descriptor.is_none() || given.is_none() {
                vector.masked = false;
            }
            vector.descriptor = given;
            vector.had.extend(given);
        }
        self.set_irqs(id, 0x24, start as u32, count as u32, &descriptors);
    }

    fn mask(&mut self, id: u16) {
        let (number, masked) = (self.below(VECTORS as u64) as usize, self.below(2) == 0);
        self.vectors[number].masked = masked;
        self.set_irqs(id, if masked { 0x09 } else { 0x11 }, number as u32, 1, &[]);
    }

    fn other(&mut self, id: u16) {
        if self.below(4) == 0 {
            self.vectors.iter_mut().for_each(|vector| vector.owed = false);
            self.placed = 4;
            return self.send(
                &message(id, Command::DEVICE_RESET, b""),
                &[],
                &reply(id, Command::DEVICE_RESET, b""),
            );
        }
        let bytes = message(id, Command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]));
        self.send(&bytes, &[], &reply(id, Command::DEVICE_GET_INFO, &words(&[16, 3, 9, 3])));
    }

    /// Whatever came back is what was expected.
    fn listen(&mut self) {
        let incoming = std::mem::take(&mut self.world.incoming);
        assert!(
            self.expected.starts_with(&incoming),
            "{incoming:x?} is not the start of {:x?}",
            self.expected
        );
        self.expected.drain(..incoming.len());
    }

    fn turn(&mut self, killer: &Killer, kills: bool) {
        match self.below(40) {
            0 if kills => killer.at.set(Some(killer.stores.get() + self.below(300))),
            1..9 => self.ask(),
            9..20 => self.world.move_bytes(),
            20..28 if !self.world.requests.is_empty() => {
                let request = self.world.requests.remove(0);
                self.world.execute(request);
            }
            28 if self.world.inputs.len() > 1 => {
                // Completions pass each other.
                let last = self.world.inputs.len() - 1;
                if matches!(
                    (&self.world.inputs[last - 1], &self.world.inputs[last]),
                    (Input::Done(..), Input::Done(..))
                ) {
                    self.world.inputs.swap(last - 1, last);
                }
            }
            _ => {
                self.world.batch = 1 + self.below(3) as usize;
                self.world.step();
                self.world.batch = 1;
            }
        }
        self.listen();
    }

    /// Lets everything come to an end, and looks at all there is.
    fn look(&mut self) {
        self.world.settle();
        for (map, times) in std::mem::take(&mut self.using) {
            (0..times).for_each(|_| self.world.input(Input::EndUse(map)));
        }
        self.world.settle();
        self.listen();
        assert_eq!(self.expected, b"", "everything is answered");
        let session = &self.world.session;
        assert_eq!((session.in_flight(), self.world.lost), (0, 0));
        let maps: Vec<_> = session
            .maps
            .iter()
            .map(|(_, map)| (map.start >> 12, (map.len >> 12, map.descriptor.unwrap().0)))
            .collect();
        assert_eq!(maps, self.maps.clone().into_iter().collect::<Vec<_>>());
        let held = self.maps.values().map(|(_, descriptor)| *descriptor);
        let held: BTreeSet<u32> =
            held.chain(self.vectors.iter().filter_map(|vector| vector.descriptor)).collect();
        assert_eq!(self.world.open, held);
        assert!(self.world.bar[..BAR] == self.bar, "registers are as written");
        self.interrupt();
    }

    fn interrupt(&mut self) {
        let heard: BTreeSet<u32> = self.world.signals.drain(..).map(|id| id.0).collect();
        for number in 0..VECTORS {
            let vector = &mut self.vectors[number];
            assert_eq!(self.world.session.interrupts.is_enabled(number as u16), vector.descriptor.is_some());
            if vector.owed && !vector.had.is_disjoint(&heard) {
                vector.owed = false;
            }
            assert!(
                !vector.owed || vector.masked || vector.descriptor.is_none(),
                "vector {number} was not heard"
            );
            vector.had = vector.descriptor.into_iter().collect();
            if self.random.below(3) == 0 {
                self.world.input(Input::Interrupt(number as u16));
                let heard = self.world.signals.iter().any(|id| Some(id.0) == vector.descriptor);
                assert!(vector.masked || vector.descriptor.is_none() || heard);
                vector.owed |= !heard;
            }
        }
        self.world.signals.clear();
    }

    /// Copies begin to use memory.
    fn begin_uses(&mut self) {
        for _ in 0..self.below(3) {
            let address = self.below(PAGES << 12);
            if let Ok(piece) = self.world.session.maps.lookup(address, 1, DmaAccessKind::Read) {
                let found =
                    self.maps.range(..=address >> 12).next_back().map(|(_, (_, descriptor))| *descriptor);
                assert_eq!(piece.descriptor.map(|id| id.0), found);
                self.world.input(Input::Use(piece.map));
                self.using.push((piece.map, 1));
            }
        }
    }

    fn leave(&mut self) {
        for _ in 0..self.below(5) {
            self.ask();
            self.world.move_bytes();
            self.world.step();
        }
        self.world.hang = true;
        self.world.disconnect();
        self.world.requests.clear();
        self.world.hang = false;
        self.expected.clear();
        self.maps.clear();
        self.vectors = vec![Vector::default(); VECTORS];
        for (map, _) in std::mem::take(&mut self.using) {
            self.world.input(Input::EndUse(map));
        }
        assert!(self.world.open.is_empty());
        self.bar.copy_from_slice(&self.world.bar[..BAR]);
        ready(&mut self.world);
        let place = self.world.exchange(&read(1, 7, 0x10, 4));
        self.placed = u32::from_le_bytes(place[32..].try_into().unwrap());
        self.world.signals.clear();
    }
}

fn run(seed: u64, kills: bool) -> usize {
    let (arena, killer) = (Arena::default(), Killer::new(None));
    let world = World::new(&arena, &killer, config());
    let mut model = Model {
        bar: world.bar[..BAR].to_vec(),
        world,
        random: Random::new(seed),
        expected: Vec::new(),
        placed: 4,
        maps: BTreeMap::new(),
        vectors: vec![Vector::default(); VECTORS],
        using: Vec::new(),
        next_descriptor: 0,
        number: 0,
    };
    ready(&mut model.world);
    model.world.pieces = Some(Random::new(seed ^ 0x55));
    for round in 0..30 {
        (0..150).for_each(|_| model.turn(&killer, kills));
        killer.at.set(None);
        model.look();
        model.begin_uses();
        if round % 7 == 6 {
            model.leave();
        }
    }
    model.world.lives
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_sessions_follow_the_model(seed: u64) {
        prop_assert_eq!(run(seed, false), 1);
    }

    #[test]
    fn and_do_so_when_cards_are_killed(seed: u64) {
        prop_assert!(run(seed, true) > 1);
    }
}
