//! Frames against both ends of a live, sealed channel: lost, repeated, changed, held back, or any bytes. Every TLP
//! arrives at most once and in order, and when the network is good again, all do.
#![no_main]

use core::time::Duration;

use base::ledger::Arena;
use base::{Instant, Payload};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use link::frame::MAX_FRAME;
use link::{Channel, ChannelConfig, Event, PathConfig, Port, Role, Sink, State};
use pcie::{Bdf, Header, MemoryRequest, Tag, TlpView};
use rigs::Rig;
use rigs::channels::Root;

#[derive(Arbitrary, Debug)]
enum Step {
    Write {
        end: bool,
    },
    /// Time passes, and both ends send what they have.
    Tick {
        millis: u8,
    },
    /// What becomes of the frames on their way, in turn.
    Fates(Vec<Fate>),
    Bytes {
        end: bool,
        bytes: Vec<u8>,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Fate {
    Arrive,
    Vanish,
    Twice,
    Later,
    Flip(u16),
    Cut(u16),
    /// To whoever sent it.
    Back,
}

#[derive(Default)]
struct Log(Vec<u64>);

impl<'m> Sink<'m> for Log {
    fn accept(&mut self, _: Instant, _: &mut Port<'m>, tlp: &TlpView<'_>) {
        if let Header::MemoryWrite(write) = tlp.header() {
            self.0.push(write.address);
        }
    }
}

struct End<'m> {
    rig: Rig<'m, Root>,
    channel: Channel<'m>,
    log: Log,
    written: u64,
}

impl<'m> End<'m> {
    fn new(arena: &'m Arena, role: Role) -> Self {
        let rig = Rig::<Root>::new(arena);
        // Two paths, and keys that change soon.
        let paths = vec![PathConfig { max_frame: 9000 }; 2];
        let config = ChannelConfig { paths, rekey_frames: 40, ..rigs::channels::config(role) };
        let pages = rig.pages(&rig.root.pages);
        let channel = Channel::new(&rig.root.channel, pages, rig.journal, config, rigs::START);
        Self { rig, channel, log: Log::default(), written: 0 }
    }

    fn settle(&mut self, now: Instant) {
        while self.channel.deliver_ahead(now, &mut self.log) {}
        self.channel.assign_numbers(now);
        while let Some(event) = self.channel.poll_event() {
            if event == Event::Reset {
                self.channel.open();
            }
        }
        self.rig.journal.commit();
    }

    fn write(&mut self) {
        if self.channel.stream.port.sender.room(pcie::FlowClass::Posted) == 0 {
            return;
        }
        let tag = Tag::default();
        let write = MemoryRequest::new(Bdf(8), tag, self.written * 4, 4).expect("four bytes in a page");
        self.channel.stream.port.sender.push(&Header::MemoryWrite(write), Payload::inline(&[1; 4]), false);
        self.rig.journal.commit();
        self.written += 1;
    }
}

struct World<'m> {
    ends: [End<'m>; 2],
    now: Instant,
    /// To whom, and the bytes.
    frames: Vec<(usize, Vec<u8>)>,
    buffer: Vec<u8>,
}

impl World<'_> {
    fn tick(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        for (index, end) in self.ends.iter_mut().enumerate() {
            end.channel.handle_timeout(self.now);
            end.settle(self.now);
            while let Some(out) = end.channel.poll_transmit(self.now, &mut self.buffer) {
                self.frames.push((1 - index, self.buffer[..out.len].to_vec()));
            }
        }
    }

    fn deliver(&mut self, to: usize, frame: &mut [u8]) {
        let end = &mut self.ends[to];
        end.channel.handle_frame(self.now, frame, &mut end.log);
        end.settle(self.now);
    }

    fn fates(&mut self, fates: &[Fate]) {
        let mut fates = fates.iter().copied().cycle();
        let mut later = Vec::new();
        for (to, mut frame) in std::mem::take(&mut self.frames) {
            let bytes = frame.len();
            match fates.next().unwrap_or(Fate::Arrive) {
                Fate::Arrive => self.deliver(to, &mut frame),
                Fate::Vanish => {}
                Fate::Twice => {
                    self.deliver(to, &mut frame.clone());
                    self.deliver(to, &mut frame);
                }
                Fate::Later => later.push((to, frame)),
                Fate::Flip(bit) => {
                    let bit = usize::from(bit) % (bytes * 8);
                    frame[bit / 8] ^= 1 << (bit % 8);
                    self.deliver(to, &mut frame);
                }
                Fate::Cut(len) => self.deliver(to, &mut frame[..usize::from(len) % bytes]),
                Fate::Back => self.deliver(1 - to, &mut frame),
            }
        }
        // A network holds only so much.
        later.truncate(256);
        self.frames = later;
    }

    fn check(&self) {
        for (from, to) in [(0, 1), (1, 0)] {
            let log = &self.ends[to].log.0;
            assert!(log.iter().enumerate().all(|(index, &address)| address == index as u64 * 4));
            assert!(log.len() as u64 <= self.ends[from].written);
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let arenas = [Arena::default(), Arena::default()];
    let ends = [End::new(&arenas[0], Role::Borrower), End::new(&arenas[1], Role::Lender)];
    let mut world = World { ends, now: rigs::START, frames: Vec::new(), buffer: vec![0; MAX_FRAME] };
    while world.ends.iter().any(|end| end.channel.state() != State::Open) {
        world.tick(500);
        world.fates(&[]);
    }
    for step in steps.iter().take(100) {
        match step {
            Step::Write { end } => world.ends[usize::from(*end)].write(),
            Step::Tick { millis } => world.tick(u64::from(*millis) * 1000 + 200),
            Step::Fates(fates) => world.fates(fates),
            Step::Bytes { end, bytes } => world.deliver((*end).into(), &mut bytes.clone()),
        }
        world.check();
    }
    for _ in 0..40_000 {
        world.tick(500);
        world.fates(&[]);
        let done = |from: usize| world.ends[1 - from].log.0.len() as u64 == world.ends[from].written;
        if done(0) && done(1) {
            return world.check();
        }
    }
    panic!("over a good network everything arrives");
});
