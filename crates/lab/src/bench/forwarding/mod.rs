//! What a switch forwards, beside a loop that does nothing but copy from one socket to the other, on sockets of the
//! same kind: the system's calls are what both are made of.
//!
//! One thread sends and receives at both ends; the switch, or the loop, has another processor.

mod ground;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::frame::{OVERHEAD, Prefix, RawHeader, Route, VERSION};
use base::ids::{DomainId, Group, RailId};
use io::address::RailAddress;
use io::rail::{Datagram, RailSocket};
use program::exit::Failure;
use zerocopy::{FromBytes, IntoBytes};

use super::core_to_core::round_trip_ns;
use super::report::Round;
use crate::local::{Halt, Interrupt, Node, Scratch};

pub(super) use ground::Between;
use ground::{Ground, Port};

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// Frames in a second.
    Frames,
    /// What it adds to a round trip.
    RoundTrip,
}

const ROUND: Duration = Duration::from_millis(700);
/// Bytes of a frame: as many as fit into most networks' packets.
const BYTES: usize = 1400;
/// Frames under way.
const WINDOW: usize = 256;
/// Frames handed to the kernel at once.
const BATCH: usize = 32;
/// What has not come by then is lost.
const LOST: Duration = Duration::from_millis(20);
/// Datagrams that the loop takes at once, as the switch does.
const LIMIT: usize = 64;
const LEFT: u32 = 16;
const RIGHT: u32 = 32;

/// The two ends, and what is between them.
pub(super) struct Forwarding<'a> {
    measure: Measure,
    ends: [Box<dyn RailSocket>; 2],
    switch: Node,
    bare: Loop,
    ground: Ground,
    rounds: u32,
    interrupt: &'a Interrupt,
    /// Dropped last: the switch lives there.
    _scratch: Scratch,
}

/// Where the two ends send to.
#[derive(Clone, Copy)]
enum By {
    Nothing,
    Switch,
    Loop,
}

impl<'a> Forwarding<'a> {
    /// Starts the switch and the loop.
    pub(super) fn start(
        (between, measure): (Between, Measure),
        scratch: &Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let ground = Ground::new(between)?;
        let port = |name: &str, listen: Port, peer: Port, domain: u32| {
            let keys = ground.keys(listen, peer);
            format!("[[ports]]\nname = '{name}'\n{keys}domains = ['{domain}/16']\n")
        };
        let text = port("left", Port::SwitchLeft, Port::Left, LEFT)
            + &port("right", Port::SwitchRight, Port::Right, RIGHT);
        let scratch = Scratch::create_in(scratch.path(), "switch")?;
        let switch = Node::start_switch(&scratch, "switch", &text, interrupt)?;
        let bare = Loop::start([
            (ground.bind(Port::LoopLeft)?, ground.address(Port::Left)),
            (ground.bind(Port::LoopRight)?, ground.address(Port::Right)),
        ])?;
        let ends = [ground.bind(Port::Left)?, ground.bind(Port::Right)?];
        Ok(Self { measure, ends, switch, bare, ground, rounds: 0, interrupt, _scratch: scratch })
    }

    /// By the switch, and by the loop.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        self.interrupt.check()?;
        self.rounds += 1;
        super::in_turns(self.rounds - 1, self, |it| it.measured(By::Switch), |it| it.measured(By::Loop))
    }

    fn measured(&mut self, by: By) -> Result<Round, Halt> {
        let before = round_trip_ns();
        let value = match self.measure {
            Measure::Frames => self.frames(by)?,
            Measure::RoundTrip => self.round_trip(by)? - self.round_trip(By::Nothing)?,
        };
        let core_to_core_ns = super::mean(before, round_trip_ns());
        Ok(Round { value, core_to_core_ns, ..Round::default() })
    }

    /// Where each end sends to.
    fn toward(&self, by: By) -> [RailAddress; 2] {
        let ports = match by {
            By::Nothing => [Port::Right, Port::Left],
            By::Switch => [Port::SwitchLeft, Port::SwitchRight],
            By::Loop => [Port::LoopLeft, Port::LoopRight],
        };
        ports.map(|port| self.ground.address(port))
    }

    /// Frames in a second, from left to right.
    fn frames(&mut self, by: By) -> Result<f64, Halt> {
        let (to, frame) = (self.toward(by)[0], frame(LEFT, RIGHT, BYTES));
        let parts = [IoSlice::new(&frame)];
        let batch: Vec<Datagram<'_>> = (0..BATCH).map(|_| Datagram { to, parts: &parts }).collect();
        let [left, right] = &mut self.ends;
        let failed = |error: std::io::Error| Failure::io("cannot send frames", &error);
        let (start, mut last) = (Instant::now(), Instant::now());
        let (mut under_way, mut arrived) = (0, 0_u64);
        loop {
            let now = Instant::now();
            let elapsed = now.duration_since(start);
            if elapsed >= ROUND {
                return Ok(arrived as f64 / elapsed.as_secs_f64());
            }
            if under_way + BATCH <= WINDOW {
                under_way += left.send_batch(&batch).map_err(failed)?;
            }
            let received = right.receive(WINDOW, &mut |_, _| {}).map_err(failed)?.datagrams;
            arrived += received as u64;
            if received > 0 {
                (under_way, last) = (under_way.saturating_sub(received), now);
            } else if now.duration_since(last) > LOST {
                (under_way, last) = (0, now);
            }
        }
    }

    /// How long a small frame takes there and back, in us.
    fn round_trip(&mut self, by: By) -> Result<f64, Halt> {
        let to = self.toward(by);
        let frames = [frame(LEFT, RIGHT, 200), frame(RIGHT, LEFT, 200)];
        let failed = |error: std::io::Error| Failure::io("cannot send frames", &error);
        let (start, mut trips) = (Instant::now(), 0_u32);
        while start.elapsed() < ROUND / 2 {
            for way in [0, 1] {
                let parts = [IoSlice::new(&frames[way])];
                self.ends[way].send_batch(&[Datagram { to: to[way], parts: &parts }]).map_err(failed)?;
                let sent = Instant::now();
                let other = &mut self.ends[1 - way];
                while other.receive(1, &mut |_, _| {}).map_err(failed)?.datagrams == 0 {
                    if sent.elapsed() > LOST {
                        return Err(Failure::failed("a frame was lost on loopback").into());
                    }
                }
            }
            trips += 1;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(trips))
    }

    /// Ends the switch in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        drop(self.bare);
        self.switch.stop()
    }
}

/// A frame as a switch sees it.
fn frame(source: u32, destination: u32, len: usize) -> Vec<u8> {
    let prefix = |domain: u32| Prefix { rail: RailId::ALL[0], domain: DomainId(domain) }.bits();
    let raw = RawHeader {
        version: VERSION,
        kind: 3,
        route: Route::START.byte(),
        source: prefix(source).into(),
        destination: prefix(destination).into(),
        group: Group::DEFAULT.0.into(),
        ..FromBytes::read_from_bytes(&[0; size_of::<RawHeader>()][..]).expect("a header of zeroes")
    };
    let mut frame = vec![0; len.max(OVERHEAD)];
    frame[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
    frame
}

/// The loop that only copies; dropping it ends it.
struct Loop {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Loop {
    /// Between two sockets, with whoever is at each.
    fn start(mut sides: [(Box<dyn RailSocket>, RailAddress); 2]) -> Result<Self, Failure> {
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = std::thread::Builder::new().name("loop".to_owned()).spawn(move || {
            let mut heard = Instant::now();
            while !until.load(Ordering::Relaxed) {
                let mut busy = false;
                for from in [0, 1] {
                    busy |= copy(&mut sides, from);
                }
                let now = Instant::now();
                if busy {
                    heard = now;
                } else if now.duration_since(heard) > LOST {
                    // Nobody uses it now: the processor is the switch's.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        let thread = thread.map_err(|error| Failure::io("cannot start a thread", &error))?;
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What has come at one side leaves by the other. Whether anything had.
fn copy(sides: &mut [(Box<dyn RailSocket>, RailAddress); 2], from: usize) -> bool {
    let (mut bytes, mut sizes) = (Vec::with_capacity(LIMIT * BYTES), Vec::with_capacity(LIMIT));
    let taken = sides[from].0.receive(LIMIT, &mut |_, frame| {
        bytes.extend_from_slice(frame);
        sizes.push(frame.len());
    });
    let (socket, to) = &mut sides[1 - from];
    let mut rest = &bytes[..];
    let frames = sizes.iter().map(|size| {
        let (frame, behind) = rest.split_at(*size);
        rest = behind;
        [IoSlice::new(frame)]
    });
    let frames: Vec<[IoSlice<'_>; 1]> = frames.collect();
    let datagrams: Vec<Datagram<'_>> = frames.iter().map(|parts| Datagram { to: *to, parts }).collect();
    // What finds no room is lost, as on any network.
    let _ = socket.send_batch(&datagrams);
    taken.is_ok_and(|taken| taken.datagrams > 0 || taken.more)
}
