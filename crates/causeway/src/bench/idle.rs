//! What two nodes use that have nothing to do.

use std::path::Path;
use std::time::{Duration, Instant};

use super::bound::Share;
use super::core_to_core::round_trip_ns;
use super::report::Round;
use super::usage::{self, CpuTime};
use crate::exit::Failure;
use crate::local::{Halt, Interrupt, Node, Scratch};
use crate::nbd_client::NbdClient;

/// How long the processor time of a round is watched.
const WINDOW: Duration = Duration::from_secs(10);
/// Between two looks at the memory.
const PAUSE: Duration = Duration::from_secs(1);
/// After the last request, before anything is measured.
const CALM: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(10);
/// Written and read before, so that the memory is that of nodes that have worked.
const TRAFFIC: u64 = 64 << 20;
const PIECE: u32 = 128 << 10;

/// The processes, in the order of [`Idle::nodes`].
const NAMES: [&str; 4] = ["lender's agent", "lender's card", "borrower's agent", "borrower's card"];

/// Two nodes that have worked and are idle.
pub(super) struct Idle<'a> {
    lender: Node,
    borrower: Node,
    /// Connected, as a kernel or a VM would be.
    client: NbdClient,
    interrupt: &'a Interrupt,
}

impl<'a> Idle<'a> {
    /// Lends and borrows `source` over two rails, and has it work for a moment.
    pub(super) fn start(source: &Path, scratch: &Scratch, interrupt: &'a Interrupt) -> Result<Self, Halt> {
        let (lender, line) = Node::lend(scratch, source, 2, &[], interrupt)?;
        let (borrower, socket) = Node::borrow(scratch, &line, &[], interrupt)?;
        let client =
            work(&socket).map_err(|error| Failure::failed(format_args!("the drive failed: {error}")))?;
        let idle = Self { lender, borrower, client, interrupt };
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
        drop(self.client);
        self.borrower.stop()?;
        self.lender.stop()
    }
}

fn work(socket: &Path) -> Result<NbdClient, crate::nbd_client::NbdError> {
    let mut client = NbdClient::connect(socket, PATIENCE)?;
    let mut data = vec![0x5a; PIECE as usize];
    for offset in (0..TRAFFIC.min(client.size())).step_by(PIECE as usize) {
        client.write(offset, &data)?;
        client.read(offset, PIECE, &mut data)?;
    }
    client.flush()?;
    Ok(client)
}
