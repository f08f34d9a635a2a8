//! From `kill -9` of a card to the next I/O: what a program that uses a drive sees, be it alone or among others.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::Random;
use program::exit::Failure;
use program::status::Card;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::time::Timespec;

use super::core_to_core::round_trip_ns;
use super::loans::{Nodes, Pair};
use super::report::Round;
use crate::local::{Halt, Interrupt, NETWORK_ONLY, Node, Scratch};
use crate::nbd_client::{Handle, NbdClient, NbdError, Request};

/// Requests under way all the time where there is one loan.
const DEPTH: usize = 8;
const BLOCK: u32 = 4096;
/// Traffic before a kill, and up to so much more: a card that had a short life would be followed more slowly.
const SETTLE: Duration = Duration::from_millis(60);
const SETTLE_MORE: Duration = Duration::from_millis(40);
/// An I/O that takes longer is a failure.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(1);

/// Two nodes, with requests between them.
pub(super) struct Recovery<'a> {
    lender: Node,
    borrower: Node,
    /// On so many of their loans.
    traffic: Vec<Traffic>,
    interrupt: &'a Interrupt,
    kills: usize,
    core_to_core_ns: Option<f64>,
}

impl<'a> Recovery<'a> {
    /// Lends and borrows `source`.
    pub(super) fn start(source: &Path, scratch: &Scratch, interrupt: &'a Interrupt) -> Result<Self, Halt> {
        let (lender, line) = Node::lend(scratch, source, 1, &[NETWORK_ONLY], interrupt)?;
        let (borrower, socket) = Node::borrow(scratch, &line, &[NETWORK_ONLY], interrupt)?;
        Self::of(lender, borrower, &[socket], DEPTH, interrupt)
    }

    /// With `depth` requests under way on each of the first `busy` loans of a pair of nodes.
    pub(super) fn of_pair(
        pair: Pair,
        busy: usize,
        depth: usize,
        interrupt: &'a Interrupt,
    ) -> Result<(Self, Scratch), Halt> {
        let Pair { nodes: Nodes { lender, borrower, sockets, .. }, scratch } = pair;
        let busy = &sockets[..busy.min(sockets.len())];
        Ok((Self::of(lender, borrower, busy, depth, interrupt)?, scratch))
    }

    fn of(
        lender: Node,
        borrower: Node,
        sockets: &[PathBuf],
        depth: usize,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let traffic = |socket: &PathBuf| Ok(Traffic::new(NbdClient::connect(socket, PATIENCE)?, depth));
        let traffic = sockets.iter().map(traffic).collect::<Result<_, NbdError>>()?;
        Ok(Self { lender, borrower, traffic, interrupt, kills: 0, core_to_core_ns: round_trip_ns() })
    }

    /// How the lender drives its medium: `memory`, or how it reaches a disk.
    pub(super) fn medium(&self) -> Result<String, Failure> {
        let device = self.lender.status()?.devices.into_iter().next();
        Ok(device.map(|device| device.io).unwrap_or_default())
    }

    /// Kills a card, the other node's each time, and measures, another loan each time.
    pub(super) fn round(&mut self) -> Result<Round, Halt> {
        self.interrupt.check()?;
        let kills_lender = self.kills % 2 == 1;
        self.kills += 1;
        let more = SETTLE_MORE.mul_f64((self.kills * 7 % 10) as f64 / 10.0);
        run(&mut self.traffic, SETTLE + more)?;
        let node = if kills_lender { &self.lender } else { &self.borrower };
        let card = node.card()?;
        // Each of them with kills of either card.
        let measured = self.kills / 2 % self.traffic.len();
        let took = kill(node, &card, &mut self.traffic, measured)?;
        self.traffic.iter_mut().try_for_each(Traffic::drain)?;
        let successor = self.wait_for_successor(kills_lender, &card)?;
        let before = std::mem::replace(&mut self.core_to_core_ns, round_trip_ns());
        Ok(Round {
            value: took.as_secs_f64() * 1e3,
            core_to_core_ns: super::mean(before, self.core_to_core_ns),
            card_ms: successor.last_recovery_s.map(|seconds| seconds * 1e3),
            victim: Some(if kills_lender { "lender" } else { "borrower" }),
            ..Round::default()
        })
    }

    fn wait_for_successor(&self, of_lender: bool, dead: &Card) -> Result<Card, Halt> {
        let node = if of_lender { &self.lender } else { &self.borrower };
        let deadline = Instant::now() + PATIENCE;
        loop {
            let card = node.card()?;
            if card.generation > dead.generation && card.pid.is_some() && card.state == "running" {
                return Ok(card);
            }
            if Instant::now() > deadline {
                return Err(Failure::failed(format_args!("the {} got no new card", node.role())).into());
            }
            self.interrupt.check()?;
            std::thread::sleep(POLL);
        }
    }

    /// Ends both nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        drop(self.traffic);
        self.borrower.stop()?;
        self.lender.stop()
    }
}

/// From the signal to the answer to a request of one loan that was sent when the process had died.
fn kill(node: &Node, card: &Card, traffic: &mut [Traffic], measured: usize) -> Result<Duration, Halt> {
    let pid = card.pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::failed("a node has no card"))?;
    let process = pidfd_open(pid, PidfdFlags::empty())
        .map_err(|errno| Failure::io("cannot watch a card", &errno.into()))?;
    traffic.iter_mut().try_for_each(Traffic::fill)?;
    let start = Instant::now();
    node.kill_card(card)?;
    let patience = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut watched = [PollFd::new(&process, PollFlags::IN)];
    match poll(&mut watched, Some(&patience)) {
        Ok(1) => {}
        _ => return Err(Failure::failed("a card that was killed does not die").into()),
    }
    let traffic = &mut traffic[measured];
    let first = traffic.submit()?;
    traffic.wait_for(first)?;
    Ok(start.elapsed())
}

/// All loans in turns, for so long.
fn run(traffic: &mut [Traffic], duration: Duration) -> Result<(), NbdError> {
    let end = Instant::now() + duration;
    while Instant::now() < end {
        traffic.iter_mut().try_for_each(Traffic::fill)?;
        traffic.iter_mut().try_for_each(|traffic| traffic.take().map(drop))?;
    }
    Ok(())
}

/// Reads and writes all over the drive, on one connection.
struct Traffic {
    client: NbdClient,
    /// Requests under way all the time.
    depth: usize,
    blocks: u64,
    random: Random,
    data: Vec<u8>,
}

impl Traffic {
    fn new(client: NbdClient, depth: usize) -> Self {
        let blocks = client.size() / u64::from(BLOCK);
        Self { client, depth, blocks, random: Random::new(1), data: vec![0x5a; BLOCK as usize] }
    }

    /// As many requests as belong under way.
    fn fill(&mut self) -> Result<(), NbdError> {
        while self.client.in_flight() < self.depth {
            self.submit()?;
        }
        Ok(())
    }

    /// Every third request is a write.
    fn submit(&mut self) -> Result<Handle, NbdError> {
        let offset = self.random.below(self.blocks.max(1)) * u64::from(BLOCK);
        if self.random.below(3) == 0 {
            self.data.resize(BLOCK as usize, 0x5a);
            self.client.submit(Request::Write { offset, data: &self.data, fua: false })
        } else {
            self.client.submit(Request::Read { offset, length: BLOCK })
        }
    }

    fn take(&mut self) -> Result<Handle, NbdError> {
        let reply = self.client.next_reply(&mut self.data)?;
        let refused = |errno| NbdError::Refused { request: "a request", errno };
        reply.result.map(|()| reply.handle).map_err(refused)
    }

    fn wait_for(&mut self, wanted: Handle) -> Result<(), NbdError> {
        while self.take()? != wanted {}
        Ok(())
    }

    fn drain(&mut self) -> Result<(), NbdError> {
        while self.client.in_flight() > 0 {
            self.take()?;
        }
        Ok(())
    }
}
