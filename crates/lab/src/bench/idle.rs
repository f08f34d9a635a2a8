//! What two nodes use that have nothing to do.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use program::exit::Failure;

use super::bound::Share;
use super::core_to_core::round_trip_ns;
use super::loans::{Nodes, Pair};
use super::report::Round;
use super::usage::{self, CpuTime};
use crate::local::{Halt, Interrupt, NETWORK_ONLY, Node, Scratch};
use crate::nbd_client::NbdClient;

/// How long the processor time of a round is watched.
const WINDOW: Duration = Duration::from_secs(10);
/// Between two looks at the memory.
const PAUSE: Duration = Duration::from_secs(1);
/// After the last request, before anything is measured.
const CALM: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(10);
/// See [`Before`], of a loan that is alone.
const TRAFFIC: u64 = 64 << 20;
const PIECE: u32 = 128 << 10;

/// The processes, in the order of [`Idle::nodes`].
pub(super) const NAMES: [&str; 4] =
    ["lender's agent", "lender's card", "borrower's agent", "borrower's card"];

/// What is written and read of each drive before, so that the memory is that of nodes that have worked.
#[derive(Clone, Copy)]
pub(super) struct Before {
    pub(super) bytes: u64,
    /// Bytes of a request.
    pub(super) piece: u32,
}

/// Two nodes that have worked and are idle.
pub(super) struct Idle<'a> {
    lender: Node,
    borrower: Node,
    /// Connected, as a kernel or a VM would be.
    clients: Vec<NbdClient>,
    interrupt: &'a Interrupt,
}

impl<'a> Idle<'a> {
    /// Lends and borrows `source` over two rails, and has it work for a moment.
    pub(super) fn start(source: &Path, scratch: &Scratch, interrupt: &'a Interrupt) -> Result<Self, Halt> {
        let (lender, line) = Node::lend(scratch, source, 2, &[NETWORK_ONLY], interrupt)?;
        let (borrower, socket) = Node::borrow(scratch, &line, &[NETWORK_ONLY], interrupt)?;
        Self::of(lender, borrower, &[socket], Before { bytes: TRAFFIC, piece: PIECE }, interrupt)
    }

    /// The same with all loans of a pair of nodes, each of which works for a moment.
    pub(super) fn of_pair(
        pair: Pair,
        before: Before,
        interrupt: &'a Interrupt,
    ) -> Result<(Self, Scratch), Halt> {
        let Pair { nodes: Nodes { lender, borrower, sockets, .. }, scratch } = pair;
        Ok((Self::of(lender, borrower, &sockets, before, interrupt)?, scratch))
    }

    fn of(
        lender: Node,
        borrower: Node,
        sockets: &[PathBuf],
        before: Before,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let clients = sockets.iter().map(|socket| work(socket, before)).collect::<Result<_, _>>()?;
        let idle = Self { lender, borrower, clients, interrupt };
        idle.wait(CALM)?;
        Ok(idle)
    }

    /// Percent of a core that the busier of the two nodes uses.
    pub(super) fn cpu_round(&self) -> Result<Round, Halt> {
        let pids = self.nodes()?.concat();
        let before = round_trip_ns();
        let start = Instant::now();
        let used: Vec<_> = pids.iter().map(|pid| usage::fine_cpu_time(&[*pid])).collect();
        self.wait(WINDOW)?;
        let elapsed = start.elapsed();
        let used =
            pids.iter().zip(used).map(|(pid, used)| usage::fine_cpu_time(&[*pid]).saturating_sub(used));
        // Of so little time the kernel keeps no account of where it was spent.
        let shares = used
            .zip(NAMES)
            .map(|(time, name)| Share::of(name, CpuTime { user: time, system: Duration::ZERO }, elapsed));
        let cpu_shares: Vec<Share> = shares.collect();
        let percent = |node: &[Share]| node.iter().map(|share| share.user * 100.0).sum::<f64>();
        let value = cpu_shares.chunks(2).map(percent).fold(0.0, f64::max);
        Ok(Round {
            value,
            core_to_core_ns: super::mean(before, round_trip_ns()),
            cpu_shares,
            ..Round::default()
        })
    }

    /// MiB that the larger of the two nodes has in memory.
    pub(super) fn memory_round(&self) -> Result<Round, Halt> {
        self.wait(PAUSE)?;
        let bytes = self.nodes()?.map(|pids| usage::resident_bytes(&pids));
        let value = bytes[0].max(bytes[1]) as f64 / f64::from(1 << 20);
        Ok(Round { value, core_to_core_ns: round_trip_ns(), ..Round::default() })
    }

    /// Bytes that each process has in memory, page tables included, as [`NAMES`] has them.
    pub(super) fn memory(&self) -> Result<[u64; 4], Halt> {
        self.wait(PAUSE)?;
        let pids = self.nodes()?;
        let of = |pid: u32| usage::resident_bytes(&[pid]) + usage::page_table_bytes(&[pid]);
        Ok([of(pids[0][0]), of(pids[0][1]), of(pids[1][0]), of(pids[1][1])])
    }

    /// The processes of each node.
    fn nodes(&self) -> Result<[[u32; 2]; 2], Failure> {
        Ok([usage::processes(&self.lender)?, usage::processes(&self.borrower)?])
    }

    fn wait(&self, duration: Duration) -> Result<(), Halt> {
        let end = Instant::now() + duration;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.interrupt.check()?;
            std::thread::sleep(left.min(TICK));
        }
        Ok(())
    }

    /// Ends both nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        drop(self.clients);
        self.borrower.stop()?;
        self.lender.stop()
    }
}

fn work(socket: &Path, before: Before) -> Result<NbdClient, crate::nbd_client::NbdError> {
    let mut client = NbdClient::connect(socket, PATIENCE)?;
    let mut data = vec![0x5a; before.piece as usize];
    for offset in (0..before.bytes.min(client.size())).step_by(before.piece as usize) {
        client.write(offset, &data)?;
        client.read(offset, before.piece, &mut data)?;
    }
    client.flush()?;
    Ok(client)
}
