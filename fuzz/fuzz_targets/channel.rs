//! Frames against both ends of a live, sealed channel with a stream: lost, repeated, changed, held back, or any bytes.
//! Every TLP arrives at most once and in order, and when the network is good again, all do.
#![no_main]

use core::time::Duration;

use base::Instant;
use base::ledger::Arena;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use link::frame::MAX_FRAME;
use rigs::channels::{End, Role};

/// Keys change soon.
const REKEY_FRAMES: u64 = 40;

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
            end.handle_timeout(self.now);
            let replies = std::mem::take(&mut end.replies);
            self.frames.extend(replies.into_iter().map(|reply| (1 - index, reply)));
            while let Some(frame) = end.poll_transmit(self.now, &mut self.buffer) {
                self.frames.push((1 - index, frame));
            }
        }
    }

    fn deliver(&mut self, to: usize, frame: &mut [u8]) {
        self.ends[to].handle_frame(self.now, frame, &[to as u8]);
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
            let is_in_order = log.iter().enumerate().all(|(index, &address)| address == index as u64 * 4);
            assert!(is_in_order, "{log:x?} has come to {to}");
            assert!(log.len() as u64 <= self.ends[from].written);
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let arenas = [Arena::default(), Arena::default()];
    let ends = [(0, Role::Borrower), (1, Role::Lender)]
        .map(|(arena, role)| End::new(&arenas[arena], role, 2, REKEY_FRAMES));
    let mut world = World { ends, now: rigs::START, frames: Vec::new(), buffer: vec![0; MAX_FRAME] };
    while world.ends.iter().any(|end| !end.is_open()) {
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
