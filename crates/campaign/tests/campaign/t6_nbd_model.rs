//! T6: random requests of all kinds and sizes on several connections, some of which hang up in the middle, against a
//! plain array; end to end, through two nodes.

use base::Random;
use campaign::causeway::{Borrower, Lender, START_TIMEOUT, card, status};
use campaign::load::connect;
use campaign::nbd_client::{Errno, Handle, NbdClient, Request};
use campaign::process::poll_until;
use campaign::world::{World, WorldConfig};
use campaign::{gate, scale};
use std::path::PathBuf;

const SIZE: u64 = 32 << 20;
const SECTOR: u64 = 512;
/// The unit in which requests in flight are kept apart.
const SLOT: u64 = 16 << 10;
const CONNECTIONS: usize = 4;
const IN_FLIGHT: usize = 8;

/// What the drive must hold, and what is uncertain.
struct Plain {
    bytes: Vec<u8>,
    /// Slots with a request in flight.
    busy: Vec<bool>,
    /// Changes whose connection hung up, by offset: their slots are never used again, and each sector is as before or
    /// as that request makes it.
    orphans: Vec<(u64, Vec<u8>)>,
    /// Requests of any kind whose connection hung up.
    given_up: u64,
}

/// A request in flight.
struct Pending {
    handle: Handle,
    offset: u64,
    kind: Kind,
}

enum Kind {
    Read(Vec<u8>),
    Change(Vec<u8>),
    /// Only that it does not fail is asked.
    Flush,
    /// Of so many bytes. Content is anyone's guess until it is written again, which follows at once.
    Trim(usize),
}

struct Test {
    socket: PathBuf,
    random: Random,
    plain: Plain,
    clients: Vec<(NbdClient, Vec<Pending>)>,
    /// Reads, writes, zeroes, trims, flushes, nonsense.
    counts: [u64; 6],
}

#[test]
fn t6_random_requests_equal_an_array() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let machine = world.left();
    let listen = ["--listen", "127.0.0.1"];
    let lender = Lender::start(machine, &["ram:32M"], &listen).unwrap();
    let borrower = Borrower::start(machine, &lender.lines[0], &[]).unwrap();
    let mut test = Test::new(borrower.socket.clone(), seed);
    let steps = if scale::is_soak() { 400_000 } else { 40_000 };
    for step in 0..steps {
        test.step();
        if step % 1000 == 999 {
            test.hang_up();
        }
        if step % 500 == 499 {
            test.ask_nonsense();
        }
    }
    test.finish();
    assert!(test.counts.iter().all(|&count| count > 50), "some kind was hardly tried: {:?}", test.counts);
    assert!(test.plain.given_up > 50, "{} requests were given up", test.plain.given_up);
    for name in ["lender", "borrower"] {
        assert_eq!(card(&status(machine, name).unwrap()).unwrap().restarts, 0, "the card of {name} died");
    }
    let (counts, given_up) = (test.counts, test.plain.given_up);
    scale::report(&format!("t6: seed {seed}, {steps} steps, {counts:?}, {given_up} requests given up"));
}

impl Test {
    fn new(socket: PathBuf, seed: u64) -> Self {
        let slots = (SIZE / SLOT) as usize;
        let plain = Plain {
            bytes: vec![0; SIZE as usize],
            busy: vec![false; slots],
            orphans: Vec::new(),
            given_up: 0,
        };
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| (connect(&socket).unwrap(), Vec::new())).collect();
        assert_eq!(u64::from(clients[0].0.block_sizes().minimum), SECTOR);
        Self { socket, random: Random::new(seed), plain, clients, counts: [0; 6] }
    }

    /// Sends a request on some connection, or takes a reply there.
    fn step(&mut self) {
        let which = self.random.below(CONNECTIONS as u64) as usize;
        let full = self.clients[which].1.len() >= IN_FLIGHT;
        if full || (!self.clients[which].1.is_empty() && self.random.chance(400)) {
            return self.take(which);
        }
        self.send(which);
    }

    fn send(&mut self, which: usize) {
        let kind = self.random.below(6);
        let (client, pending) = &mut self.clients[which];
        if kind == 5 {
            let handle = client.submit(Request::Flush).unwrap();
            pending.push(Pending { handle, offset: 0, kind: Kind::Flush });
            self.counts[4] += 1;
            return;
        }
        // Mostly small, now and then of up to 1 MiB; begin and end at any sector.
        let most = if self.random.chance(20) { 12 } else { 8 };
        let bits = self.random.below(most);
        let sectors = 1 + self.random.below(1 << bits);
        let first = self.random.below(SIZE / SECTOR);
        let sectors = sectors.min(SIZE / SECTOR - first);
        let (offset, length) = (first * SECTOR, sectors * SECTOR);
        let slots = (offset / SLOT) as usize..=((offset + length - 1) / SLOT) as usize;
        if self.plain.busy[slots.clone()].iter().any(|&busy| busy) {
            return;
        }
        let range = offset as usize..(offset + length) as usize;
        let fua = self.random.chance(100);
        let (handle, kind) = match kind {
            0 | 1 => {
                let handle = client.submit(Request::Read { offset, length: length as u32 }).unwrap();
                (handle, Kind::Read(self.plain.bytes[range].to_vec()))
            }
            2 => {
                let mut data = vec![0; length as usize];
                self.random.fill(&mut data);
                (client.submit(Request::Write { offset, data: &data, fua }).unwrap(), Kind::Change(data))
            }
            3 => {
                let no_hole = self.random.chance(500);
                let length = length as u32;
                let handle = client.submit(Request::WriteZeroes { offset, length, no_hole, fua }).unwrap();
                (handle, Kind::Change(vec![0; length as usize]))
            }
            _ => {
                let handle = client.submit(Request::Trim { offset, length: length as u32 }).unwrap();
                (handle, Kind::Trim(length as usize))
            }
        };
        self.counts[match kind {
            Kind::Read(_) => 0,
            Kind::Change(ref data) if data.iter().any(|&byte| byte != 0) => 1,
            Kind::Change(_) => 2,
            _ => 3,
        }] += 1;
        self.plain.busy[slots].fill(true);
        pending.push(Pending { handle, offset, kind });
    }

    /// Takes one reply and compares.
    fn take(&mut self, which: usize) {
        let mut data = Vec::new();
        let (client, pending) = &mut self.clients[which];
        let reply = client.next_reply(&mut data).unwrap();
        reply.result.unwrap();
        let at = pending.iter().position(|pending| pending.handle == reply.handle).unwrap();
        let Pending { offset, kind, .. } = pending.swap_remove(at);
        let length = match kind {
            Kind::Read(expected) => {
                assert!(data == expected, "wrong data at {offset}, {} bytes", expected.len());
                expected.len()
            }
            Kind::Change(content) => {
                self.plain.bytes[offset as usize..offset as usize + content.len()].copy_from_slice(&content);
                content.len()
            }
            Kind::Trim(length) => {
                // The slots stay busy until the content is known again.
                let mut data = vec![0; length];
                self.random.fill(&mut data);
                let handle = client.submit(Request::Write { offset, data: &data, fua: false }).unwrap();
                pending.push(Pending { handle, offset, kind: Kind::Change(data) });
                return;
            }
            Kind::Flush => return,
        };
        self.free(offset, length);
    }

    fn free(&mut self, offset: u64, length: usize) {
        let slots = (offset / SLOT) as usize..=((offset + length as u64 - 1) / SLOT) as usize;
        self.plain.busy[slots].fill(false);
    }

    /// One connection ends without a word, with requests in flight, half of the time in the middle of a write.
    fn hang_up(&mut self) {
        let which = self.random.below(CONNECTIONS as u64) as usize;
        if self.random.chance(500) {
            self.send_half_a_write(which);
        }
        for Pending { offset, kind, .. } in std::mem::take(&mut self.clients[which].1) {
            self.plain.given_up += 1;
            match kind {
                Kind::Read(expected) => self.free(offset, expected.len()),
                Kind::Change(content) => self.plain.orphans.push((offset, content)),
                Kind::Trim(length) => self.plain.orphans.push((offset, vec![0; length])),
                Kind::Flush => {}
            }
        }
        // The place of the one that went may be taken for a moment.
        let socket = self.socket.clone();
        let client = poll_until("a new connection", START_TIMEOUT, || Ok(connect(&socket).ok())).unwrap();
        // The old one is dropped here, and with it its socket.
        self.clients[which] = (client, Vec::new());
    }

    fn send_half_a_write(&mut self, which: usize) {
        let offset = self.random.below(SIZE / SLOT) * SLOT;
        if self.plain.busy[(offset / SLOT) as usize] {
            return;
        }
        self.plain.busy[(offset / SLOT) as usize] = true;
        let mut data = vec![0; SLOT as usize];
        self.random.fill(&mut data);
        let mut request = raw_request(1, offset, SLOT as u32);
        request.extend(&data[..self.random.below(SLOT) as usize]);
        self.clients[which].0.send_raw(&request).unwrap();
        self.plain.orphans.push((offset, data));
    }

    /// Requests that no drive can do are answered with an error each, and harm nothing; on a connection of their own,
    /// beside all others.
    fn ask_nonsense(&mut self) {
        let socket = self.socket.clone();
        let mut client =
            poll_until("one more connection", START_TIMEOUT, || Ok(connect(&socket).ok())).unwrap();
        let mut data = Vec::new();
        let beyond = SIZE - SECTOR;
        let length = 2 * SECTOR as u32;
        let requests = [
            Request::Read { offset: beyond, length },
            Request::Write { offset: beyond, data: &[1; 2 * SECTOR as usize], fua: false },
            Request::Trim { offset: beyond, length },
            Request::WriteZeroes { offset: beyond, length, no_hole: false, fua: true },
            Request::Read { offset: 1 << 63, length },
        ];
        for request in requests {
            client.submit(request).unwrap();
            let reply = client.next_reply(&mut data).unwrap();
            let refused = matches!(reply.result, Err(Errno::EINVAL | Errno::ENOSPC));
            assert!(refused, "{:?} beyond the end", reply.result);
            self.counts[5] += 1;
        }
        client.read(beyond, SECTOR as u32, &mut data).unwrap();
        // A command that does not exist; its reply names a handle that the client does not know.
        client.send_raw(&raw_request(77, 0, 512)).unwrap();
        let error = client.next_reply(&mut data).unwrap_err();
        assert!(!error.to_string().contains("closed"), "an unknown command is answered: {error}");
    }

    /// Takes all replies, then compares the whole drive.
    fn finish(&mut self) {
        for which in 0..CONNECTIONS {
            while !self.clients[which].1.is_empty() {
                self.take(which);
            }
        }
        let mut client = connect(&self.socket).unwrap();
        let mut found = Vec::new();
        let mut all = Vec::new();
        for offset in (0..SIZE).step_by(1 << 20) {
            client.read(offset, 1 << 20, &mut found).unwrap();
            all.extend_from_slice(&found);
        }
        let mut candidates: Vec<Option<(u64, usize)>> = vec![None; (SIZE / SECTOR) as usize];
        for (number, (offset, content)) in self.plain.orphans.iter().enumerate() {
            let length = content.len() as u64;
            for sector in offset / SECTOR..(offset + length) / SECTOR {
                assert!(candidates[sector as usize].is_none(), "orphans do not overlap");
                candidates[sector as usize] = Some((*offset, number));
            }
        }
        for (sector, candidate) in candidates.iter().enumerate() {
            let at = sector * SECTOR as usize;
            let here = &all[at..at + SECTOR as usize];
            let orphan = candidate.and_then(|(offset, number)| {
                let content = &self.plain.orphans[number].1;
                content.get(at - offset as usize..at - offset as usize + SECTOR as usize)
            });
            let is_right = here == &self.plain.bytes[at..at + SECTOR as usize] || orphan == Some(here);
            assert!(is_right, "sector {sector} at the end (given up: {})", candidate.is_some());
        }
    }
}

/// `NBD §Request message`, for what the client would not send.
fn raw_request(command: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
    request.extend([0; 2]);
    request.extend(command.to_be_bytes());
    request.extend(0x7777_7777_7777_7777u64.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(length.to_be_bytes());
    request
}
