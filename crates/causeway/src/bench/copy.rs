//! A file is copied, as with `cp`: from a borrowed drive or to it, beside the same with the drive's image itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::core_to_core::round_trip_ns;
use super::report::Round;
use crate::exit::Failure;
use crate::local::{Halt, Interrupt, Node, Scratch};
use crate::nbd_client::NbdClient;

/// Bytes of the file, as in the paper; what the drive has where it is smaller.
const FILE_BYTES: u64 = 712_000_000;
/// Bytes that are moved at a time.
const PIECE: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A drive that is lent and borrowed, its image, and a file in memory.
pub(super) struct Copies<'a> {
    write: bool,
    lender: Node,
    borrower: Node,
    drive: NbdClient,
    image: File,
    file: File,
    bytes: u64,
    interrupt: &'a Interrupt,
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
        let (lender, line) = Node::lend(&scratch, image, 1, &[], interrupt)?;
        let (borrower, socket) = Node::borrow(&scratch, &line, &[], interrupt)?;
        let drive = NbdClient::connect(&socket, PATIENCE)
            .map_err(|error| Failure::failed(format_args!("the drive failed: {error}")))?;
        let failed = |error: std::io::Error| Failure::io("cannot have a file to copy", &error);
        let path = image.with_file_name("file");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let (file, image) = (file.map_err(failed)?, File::options().read(true).write(true).open(image));
        let image = image.map_err(failed)?;
        let bytes = FILE_BYTES.min(drive.size()) / PIECE as u64 * PIECE as u64;
        let copies = Self { write, lender, borrower, drive, image, file, bytes, interrupt };
        // Once before: the first copy would also have to find memory for the file.
        copies.direct(false)?;
        Ok(copies)
    }

    /// One copy each way: from or to the drive, and its image.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        let before = round_trip_ns();
        let ours = self.borrowed()?;
        let between = round_trip_ns();
        let peer = self.direct(self.write)?;
        let after = round_trip_ns();
        let round = |value, before, after| Round {
            value,
            core_to_core_ns: super::mean(before, after),
            ..Round::default()
        };
        Ok((round(ours, before, between), round(peer, between, after)))
    }

    /// Seconds that a copy from or to the borrowed drive takes, durable as far as the drive says so.
    fn borrowed(&mut self) -> Result<f64, Halt> {
        let (mut buffer, start) = (vec![0; PIECE], Instant::now());
        let failed =
            |error: crate::nbd_client::NbdError| Failure::failed(format_args!("the drive failed: {error}"));
        for at in (0..self.bytes).step_by(PIECE) {
            self.interrupt.check()?;
            if self.write {
                self.file.read_exact_at(&mut buffer, at).map_err(broken)?;
                self.drive.write(at, &buffer).map_err(failed)?;
            } else {
                self.drive.read(at, PIECE as u32, &mut buffer).map_err(failed)?;
                self.file.write_all_at(&buffer, at).map_err(broken)?;
            }
        }
        if self.write {
            self.drive.flush().map_err(failed)?;
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
        drop(self.drive);
        self.borrower.stop().and(self.lender.stop())
    }
}

fn broken(error: std::io::Error) -> Failure {
    Failure::io("cannot copy", &error)
}
