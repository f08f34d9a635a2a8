//! The longest time that a busy loan is without an answer while others come and go beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use program::exit::Failure;

use super::case::Transport;
use super::core_to_core::round_trip_ns;
use super::loans::Pair;
use super::report::Round;
use crate::local::{Halt, Interrupt, Node, Scratch};
use crate::nbd_client::{NbdClient, NbdError, Request};

/// How often a function is attached and detached in a round, of which there are five.
const CYCLES: usize = 20;
/// Functions that come and go, one after the other: of one that has changed hands twice in a second a lender's agent
/// writes down the next change only when that is over, so that a cycle of the same one would take as long.
const FUNCTIONS: usize = 2 * CYCLES;
pub(super) const BLOCK: u32 = 4096;
/// Requests under way on the busy loan.
const DEPTH: usize = 8;
const PATIENCE: Duration = Duration::from_secs(20);
/// Traffic before anything is measured.
const SETTLE: Duration = Duration::from_millis(500);
const SLOT: &str = "machine/slot";

/// Two nodes with a busy loan, and a slot beside it.
pub(super) struct AttachGap<'a> {
    pair: Pair,
    client: NbdClient,
    blocks: u64,
    next: u64,
    /// Attached so far.
    attached: usize,
    rounds: u32,
    /// How long the last cycles took, in all: for so long a round without them is watched.
    took: Duration,
    interrupt: &'a Interrupt,
}

impl<'a> AttachGap<'a> {
    /// Lends and borrows.
    pub(super) fn start(
        transport: Transport,
        scratch: &Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let domains = "[[domains]]\nname = 'machine'\nkind = 'vm'\n\
                       [[domains.slots]]\nname = 'slot'\nsocket = 'slot.sock'\n";
        let pair = Pair::start((1, FUNCTIONS), transport, domains, scratch, interrupt)?;
        let client = NbdClient::connect(&pair.nodes.sockets[0], PATIENCE)?;
        let blocks = client.size() / u64::from(BLOCK);
        let (took, attached) = (Duration::ZERO, 0);
        let mut gap = Self { pair, client, blocks, next: 0, attached, rounds: 0, took, interrupt };
        // Both take longer when they are first.
        gap.with_cycles()?;
        Ok(gap)
    }

    /// Milliseconds with cycles, and in as much time without.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        self.rounds += 1;
        super::in_turns(self.rounds - 1, self, Self::with_cycles, Self::without)
    }

    fn with_cycles(&mut self) -> Result<Round, Halt> {
        let lines = (self.attached..).map(|at| self.pair.nodes.spare[at % FUNCTIONS].clone());
        let lines: Vec<String> = lines.take(CYCLES).collect();
        self.attached += CYCLES;
        self.measured(|node, interrupt| {
            for line in &lines {
                interrupt.check()?;
                node.set_slot(SLOT, Some(line))?;
                node.set_slot(SLOT, None)?;
            }
            Ok(())
        })
    }

    fn without(&mut self) -> Result<Round, Halt> {
        let took = self.took;
        self.measured(|_, interrupt| {
            let end = Instant::now() + took;
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                interrupt.check()?;
                std::thread::sleep(left.min(Duration::from_millis(20)));
            }
            Ok(())
        })
    }

    /// The longest gap between two answers while something else is done.
    fn measured(
        &mut self,
        beside: impl FnOnce(&Node, &Interrupt) -> Result<(), Halt>,
    ) -> Result<Round, Halt> {
        let before = round_trip_ns();
        let until = Instant::now() + SETTLE;
        self.work(|| Instant::now() < until)?;
        let (node, interrupt, is_over) = (&self.pair.nodes.borrower, self.interrupt, AtomicBool::new(false));
        let (client, blocks, next) = (&mut self.client, self.blocks, &mut self.next);
        let start = Instant::now();
        let (done, longest) = std::thread::scope(|scope| {
            let goes_on = || !is_over.load(Ordering::Relaxed);
            let longest = scope.spawn(move || work(client, (blocks, next), goes_on));
            let done = beside(node, interrupt);
            is_over.store(true, Ordering::Relaxed);
            (done, longest.join().expect("reading a drive does not panic"))
        });
        done?;
        self.took = start.elapsed();
        let value = longest?.as_secs_f64() * 1e3;
        let core_to_core_ns = super::mean(before, round_trip_ns());
        Ok(Round { value, core_to_core_ns, ..Round::default() })
    }

    fn work(&mut self, goes_on: impl Fn() -> bool) -> Result<Duration, NbdError> {
        work(&mut self.client, (self.blocks, &mut self.next), goes_on)
    }

    /// Ends both nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        drop(self.client);
        self.pair.nodes.borrower.stop()?;
        self.pair.nodes.lender.stop()
    }
}

/// Reads all over the drive; the longest time between two answers.
pub(super) fn work(
    client: &mut NbdClient,
    (blocks, next): (u64, &mut u64),
    goes_on: impl Fn() -> bool,
) -> Result<Duration, NbdError> {
    let mut longest = Duration::ZERO;
    each_gap(client, (blocks, next), goes_on, |gap| longest = longest.max(gap))?;
    Ok(longest)
}

/// Reads all over the drive, and tells the time between any two answers.
pub(super) fn each_gap(
    client: &mut NbdClient,
    (blocks, next): (u64, &mut u64),
    goes_on: impl Fn() -> bool,
    mut tell: impl FnMut(Duration),
) -> Result<(), NbdError> {
    let (mut last, mut data) = (None::<Instant>, Vec::new());
    while goes_on() {
        while client.in_flight() < DEPTH {
            *next = next.wrapping_add(97);
            client.submit(Request::Read { offset: *next % blocks * u64::from(BLOCK), length: BLOCK })?;
        }
        let reply = client.next_reply(&mut data)?;
        reply.result.map_err(|errno| NbdError::Refused { request: "a read", errno })?;
        let now = Instant::now();
        last.replace(now).into_iter().for_each(|last| tell(now.duration_since(last)));
    }
    while client.in_flight() > 0 {
        client.next_reply(&mut data)?;
    }
    Ok(())
}
