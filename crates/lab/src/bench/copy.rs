//! A file is copied, as with `cp`: from a borrowed drive or to it, beside the same with the drive's image itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use program::exit::Failure;

use super::case::Transport;
use super::core_to_core::round_trip_ns;
use super::report::Round;
use super::watch::{BORROWER, LENDER, Watch, node_processes};
use crate::local::{Halt, Interrupt, Node, Scratch};
use crate::nbd_client::NbdClient;

/// Bytes of the file, as in the paper; what the drive has where it is smaller.
const FILE_BYTES: u64 = 712_000_000;
/// Bytes that are moved at a time.
const PIECE: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);
/// The way to the borrowed drive, as the papers' table says.
const WAY: Transport = Transport::Nbd { sealed: true };
/// What this process is called while it copies.
const COPIER: &str = "copying process";

/// A drive that is lent and borrowed, its image, and a file in memory.
pub(super) struct Copies<'a> {
    write: bool,
    lender: Node,
    borrower: Node,
    drive: NbdClient,
    image: File,
    file: File,
    bytes: u64,
    rounds: u32,
    interrupt: &'a Interrupt,
    /// The nodes' folder, with the sockets on which they are asked how they do: it is there as long as they are.
    scratch: Scratch,
}

impl<'a> Copies<'a> {
    /// Lends and borrows `image`, and makes the file beside it.
    pub(super) fn start(
        write: bool,
        image: &Path,
        scratch: &Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let scratch = Scratch::create_in(scratch.path(), "copy")?;
        let (lender, line) = Node::lend(&scratch, image, 1, WAY.options(), interrupt)?;
        let (borrower, socket) = Node::borrow(&scratch, &line, WAY.options(), interrupt)?;
        let drive = NbdClient::connect(&socket, PATIENCE)?;
        let failed = |error: std::io::Error| Failure::io("cannot have a file to copy", &error);
        let path = image.with_file_name("file");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let (file, image) = (file.map_err(failed)?, File::options().read(true).write(true).open(image));
        let image = image.map_err(failed)?;
        let bytes = FILE_BYTES.min(drive.size()) / PIECE as u64 * PIECE as u64;
        let copies =
            Self { write, lender, borrower, drive, image, file, bytes, rounds: 0, interrupt, scratch };
        // Once before: the first copy would also have to find memory for the file.
        copies.direct(false)?;
        Ok(copies)
    }

    /// One copy from or to the drive, and one from or to its image; ours first every other time.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        let round = self.rounds;
        self.rounds += 1;
        let nodes =
            [node_processes(&self.borrower, BORROWER)?, node_processes(&self.lender, LENDER)?].concat();
        let both = super::in_turns(
            round,
            self,
            |copies| copies.measured(&nodes, Self::borrowed),
            |copies| copies.measured(&[], |copies| copies.direct(copies.write)),
        )?;
        // Two nodes of one machine take the shortest way they may, and then it is not the network that was measured.
        match self.borrower.status()?.rails.iter().find(|rail| rail.medium != "udp") {
            Some(rail) => Err(Failure::failed(format_args!("the copy went by way of {}", rail.name)).into()),
            None => Ok(both),
        }
    }

    /// A copy with the distance of the cores before and after, and the processor time of this process and of `others`.
    fn measured(
        &mut self,
        others: &[(u32, &'static str)],
        copy: impl FnOnce(&mut Self) -> Result<f64, Halt>,
    ) -> Result<Round, Halt> {
        let before = round_trip_ns();
        let watch = Watch::begin(&[&[(std::process::id(), COPIER)], others].concat());
        let value = copy(self)?;
        let (cpu_shares, cpu) = watch.end(&[]);
        Ok(Round {
            value,
            core_to_core_ns: super::mean(before, round_trip_ns()),
            // A request moves one piece.
            cpu_us_per_io: Some(cpu.as_secs_f64() * 1e6 / (self.bytes / PIECE as u64) as f64),
            cpu_shares,
            ..Round::default()
        })
    }

    /// Seconds that a copy from or to the borrowed drive takes, durable as far as the drive says so.
    fn borrowed(&mut self) -> Result<f64, Halt> {
        let (mut buffer, start) = (vec![0; PIECE], Instant::now());
        for at in (0..self.bytes).step_by(PIECE) {
            self.interrupt.check()?;
            if self.write {
                self.file.read_exact_at(&mut buffer, at).map_err(broken)?;
                self.drive.write(at, &buffer)?;
            } else {
                self.drive.read(at, PIECE as u32, &mut buffer)?;
                self.file.write_all_at(&buffer, at).map_err(broken)?;
            }
        }
        if self.write {
            self.drive.flush()?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// The same without the fabric.
    fn direct(&self, write: bool) -> Result<f64, Halt> {
        let (mut buffer, start) = (vec![0; PIECE], Instant::now());
        let (from, to) = if write { (&self.file, &self.image) } else { (&self.image, &self.file) };
        for at in (0..self.bytes).step_by(PIECE) {
            self.interrupt.check()?;
            from.read_exact_at(&mut buffer, at).map_err(broken)?;
            to.write_all_at(&buffer, at).map_err(broken)?;
        }
        if write {
            to.sync_data().map_err(broken)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Ends our nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        let Self { lender, borrower, drive, scratch, .. } = self;
        drop(drive);
        let ended = borrower.stop().and(lender.stop());
        drop(scratch);
        ended
    }
}

fn broken(error: std::io::Error) -> Failure {
    Failure::io("cannot copy", &error)
}
