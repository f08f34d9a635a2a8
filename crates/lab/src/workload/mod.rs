//! A client whose data must survive: verified reads and writes over NBD, several at a time, all the time.
//!
//! [`model`](Model) says what the drive must hold, [`tally`](Recorder) counts. The demo and the campaign use the same,
//! in another [`Mix`].

mod model;
mod tally;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::Random;

use crate::nbd_client::{Errno, Handle, NbdClient, NbdError, Request};
pub(crate) use model::fill;
pub use model::{BLOCK, Compared, Model};
pub use tally::{Recorder, Tally, Timeline};
pub(crate) use tally::{SLOT, cover};

/// Longer than a node lets a request wait before it fails it.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Tries to find blocks that no other request uses.
const RESERVE_TRIES: u32 = 16;
/// Offsets of reads are multiples of this, where the server allows it.
const SECTOR: u64 = 512;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// Requests outstanding.
    pub depth: usize,
    /// The largest request, in blocks.
    pub blocks_max: u64,
    /// Of 256 requests so many are flushes.
    pub flushes: u64,
    /// So many read what is never written, if there is any.
    pub source_reads: u64,
    /// So many read the region; the rest writes to it.
    pub reads: u64,
    /// One write in this many asks for stable storage.
    pub fua_one_in: u64,
    /// At the end it flushes, and says that it goes.
    pub takes_leave: bool,
}

impl Mix {
    /// Up to 64 KiB. Half of the requests read what is never written.
    pub const LARGE: Self = Self {
        depth: 8,
        blocks_max: 16,
        flushes: 1,
        source_reads: 128,
        reads: 64,
        fua_one_in: 16,
        takes_leave: true,
    };
    /// Single blocks, often made durable, and an end that makes nothing durable.
    pub const SMALL: Self = Self {
        depth: 8,
        blocks_max: 1,
        flushes: 8,
        source_reads: 0,
        reads: 120,
        fua_one_in: 10,
        takes_leave: false,
    };
}

/// The workload, running in its thread.
pub struct Workload {
    thread: JoinHandle<Ended>,
    stop: Arc<AtomicBool>,
}

/// How the workload ended.
pub struct Ended {
    /// What the drive must contain now.
    pub model: Model,
    /// Why it ended before it was told to.
    pub error: Option<String>,
    /// The drive has gone, and that is all that went wrong.
    pub is_lost: bool,
    /// Requests that were not answered.
    pub unanswered: u64,
    /// What was read wrong first.
    pub wrong: Option<String>,
}

impl Workload {
    /// Connects to the NBD socket and starts.
    ///
    /// # Errors
    /// What is wrong with the server, for a person.
    pub fn start(socket: &Path, model: Model, mix: Mix, recorder: Arc<Recorder>) -> Result<Self, String> {
        let client = NbdClient::connect(socket, REPLY_TIMEOUT).map_err(|error| error.to_string())?;
        check_geometry(&client, &model)?;
        let stop = Arc::new(AtomicBool::new(false));
        let driver = Driver::new(client, model, mix, recorder);
        let stopped = Arc::clone(&stop);
        let builder = std::thread::Builder::new().name("workload".to_owned());
        let thread = builder.spawn(move || driver.run(&stopped));
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { thread, stop })
    }

    /// False once it has failed.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Lets it finish what it began, and begin nothing more.
    pub fn begin_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The same, and waits for it.
    ///
    /// # Errors
    /// A panic of its thread.
    pub fn stop(self) -> Result<Ended, String> {
        self.begin_stop();
        self.thread.join().map_err(|_| "the verifying client panicked".to_owned())
    }
}

fn check_geometry(client: &NbdClient, model: &Model) -> Result<(), String> {
    if !model.fits(client.size()) {
        return Err(format!("the drive has {} bytes, the image {}", client.size(), model.end()));
    }
    let sizes = client.block_sizes();
    if u64::from(sizes.minimum) > BLOCK || u64::from(sizes.maximum) < BLOCK {
        return Err(format!("the drive takes no requests of {BLOCK} bytes"));
    }
    Ok(())
}

struct Driver {
    client: NbdClient,
    model: Model,
    mix: Mix,
    recorder: Arc<Recorder>,
    random: Random,
    pending: BTreeMap<u64, Pending>,
    data: Vec<u8>,
    wrong: Option<String>,
}

struct Pending {
    submitted: Instant,
    operation: Operation,
}

/// A request; blocks are counted from the start of the region, other numbers are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    ReadSource { offset: u64, length: u64 },
    ReadBlocks { first: u64, count: u64 },
    WriteBlocks { first: u64, count: u64, fua: bool },
    Flush,
}

impl Operation {
    /// Gives the blocks back that it has reserved.
    fn release(self, model: &mut Model) {
        match self {
            Self::ReadBlocks { first, count } | Self::WriteBlocks { first, count, .. } => {
                model.release(first, count);
            }
            Self::ReadSource { .. } | Self::Flush => {}
        }
    }
}

/// Why it cannot go on.
enum Stopped {
    /// The drive has gone.
    Lost(String),
    Failed(String),
}

impl From<NbdError> for Stopped {
    fn from(error: NbdError) -> Self {
        match error {
            NbdError::Closed { .. } | NbdError::Io(_) => Self::Lost(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl Driver {
    fn new(client: NbdClient, model: Model, mix: Mix, recorder: Arc<Recorder>) -> Self {
        let random = model.random("workload");
        let (pending, data) = (BTreeMap::new(), Vec::new());
        Self { client, model, mix, recorder, random, pending, data, wrong: None }
    }

    fn run(mut self, stop: &AtomicBool) -> Ended {
        let driven = self.drive(stop);
        let Self { client, mut model, mix, pending, wrong, .. } = self;
        let unanswered = pending.len() as u64;
        pending.into_values().for_each(|Pending { operation, .. }| operation.release(&mut model));
        let (is_lost, error) = match driven.and_then(|()| Ok(take_leave(client, mix)?)) {
            Ok(()) => (false, None),
            Err(Stopped::Lost(why)) => (true, Some(why)),
            Err(Stopped::Failed(why)) => (false, Some(why)),
        };
        Ended { model, error, is_lost, unanswered, wrong }
    }

    fn drive(&mut self, stop: &AtomicBool) -> Result<(), Stopped> {
        loop {
            while self.pending.len() < self.mix.depth && !stop.load(Ordering::Relaxed) {
                let operation = self.choose();
                self.submit(operation)?;
            }
            if self.pending.is_empty() {
                return Ok(());
            }
            self.complete()?;
        }
    }

    fn choose(&mut self) -> Operation {
        let Mix { flushes, source_reads, reads, fua_one_in, .. } = self.mix;
        let blocks_max = self.mix.blocks_max.min(u64::from(self.client.block_sizes().maximum) / BLOCK);
        let count = 1 + self.random.below(blocks_max);
        let flags = self.client.flags();
        let kind = self.random.below(256);
        if kind < flushes && flags.flush() {
            return Operation::Flush;
        }
        let kind = kind.saturating_sub(flushes);
        let reserved = if kind < source_reads { None } else { self.reserve(count) };
        match reserved {
            Some(first) if kind < source_reads + reads => Operation::ReadBlocks { first, count },
            Some(first) => {
                let fua = flags.fua() && self.random.below(fua_one_in) == 0;
                Operation::WriteBlocks { first, count, fua }
            }
            None if self.model.source_bytes() == 0 => Operation::Flush,
            None => self.read_source(count),
        }
    }

    fn reserve(&mut self, count: u64) -> Option<u64> {
        let starts = self.model.blocks() - count + 1;
        (0..RESERVE_TRIES).find_map(|_| {
            let first = self.random.below(starts);
            self.model.reserve(first, count).then_some(first)
        })
    }

    fn read_source(&mut self, count: u64) -> Operation {
        let bytes = self.model.source_bytes();
        let length = (count * BLOCK).min(bytes);
        let alignment = SECTOR.max(u64::from(self.client.block_sizes().minimum));
        let offset = self.random.below((bytes - length) / alignment + 1) * alignment;
        Operation::ReadSource { offset, length }
    }

    fn submit(&mut self, operation: Operation) -> Result<(), NbdError> {
        let start = self.model.start();
        if let Operation::WriteBlocks { first, count, .. } = operation {
            self.model.write(first, count, &mut self.data);
        }
        let request = match operation {
            // Lengths are at most `blocks_max` blocks.
            Operation::ReadSource { offset, length } => Request::Read { offset, length: length as u32 },
            Operation::ReadBlocks { first, count } => {
                Request::Read { offset: start + first * BLOCK, length: (count * BLOCK) as u32 }
            }
            Operation::WriteBlocks { first, fua, .. } => {
                Request::Write { offset: start + first * BLOCK, data: &self.data, fua }
            }
            Operation::Flush => Request::Flush,
        };
        let submitted = Instant::now();
        let Handle(handle) =
            self.client.submit(request).inspect_err(|_| operation.release(&mut self.model))?;
        self.pending.insert(handle, Pending { submitted, operation });
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Stopped> {
        let reply = self.client.next_reply(&mut self.data)?;
        let now = Instant::now();
        let Pending { submitted, operation } =
            self.pending.remove(&reply.handle.0).expect("the client answers only what is in flight");
        operation.release(&mut self.model);
        if let Err(errno) = reply.result {
            tracing::debug!(?operation, ?errno, "a request failed");
            self.recorder.failed(operation == Operation::Flush);
            return give_up_on(errno);
        }
        let offset = match operation {
            Operation::ReadSource { offset, .. } => Some(offset),
            Operation::ReadBlocks { first, .. } => Some(self.model.start() + first * BLOCK),
            Operation::WriteBlocks { first, count, .. } => {
                self.model.written(first, count);
                None
            }
            Operation::Flush => None,
        };
        let compared = offset.map(|offset| self.model.check(offset, &self.data)).transpose();
        let compared =
            compared.map_err(|error| Stopped::Failed(format!("cannot read the source again: {error}")))?;
        let Compared { bytes, corrupted, first } = compared.unwrap_or_default();
        self.recorder.completed(submitted, now, bytes - corrupted, corrupted);
        self.wrong = self.wrong.take().or(first);
        Ok(())
    }
}

fn take_leave(mut client: NbdClient, mix: Mix) -> Result<(), NbdError> {
    if !mix.takes_leave {
        return Ok(());
    }
    if client.flags().flush() {
        client.flush()?;
    }
    client.disconnect()
}

/// A server that is about to go answers everything so, as fast as it can be asked.
fn give_up_on(errno: Errno) -> Result<(), Stopped> {
    match errno {
        Errno::ESHUTDOWN => Err(Stopped::Lost(format!("the drive answers {errno:?}"))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// nbdkit as the server: the workload is held against something that is not ours.
    struct Server {
        child: Child,
        folder: tempfile::TempDir,
    }

    impl Server {
        fn start(arguments: &[&str]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let source: Vec<u8> = (0..300 * 512_u32).map(|at| (at % 253) as u8).collect();
            std::fs::write(folder.path().join("source"), &source).unwrap();
            let image = File::create(folder.path().join("image")).unwrap();
            image.write_all_at(&source, 0).unwrap();
            image.set_len(model(&folder).end()).unwrap();
            let mut command = Command::new("nbdkit");
            command.current_dir(&folder).args(["--foreground", "--unix", "socket", "file", "file=image"]);
            let mut child =
                command.args(arguments).stderr(Stdio::null()).spawn().expect("nbdkit is installed");
            let started = Instant::now();
            while NbdClient::connect(&folder.path().join("socket"), REPLY_TIMEOUT).is_err() {
                assert!(child.try_wait().unwrap().is_none(), "nbdkit ended");
                assert!(started.elapsed() < Duration::from_secs(20), "nbdkit does not listen");
                std::thread::sleep(Duration::from_millis(5));
            }
            Self { child, folder }
        }

        fn image(&self) -> PathBuf {
            self.folder.path().join("image")
        }

        /// Runs the workload until `enough`, then stops it.
        fn work(&self, enough: impl Fn(&Recorder) -> bool) -> (Ended, Arc<Recorder>) {
            let recorder = Arc::new(Recorder::new(Instant::now()));
            let socket = self.folder.path().join("socket");
            let workload =
                Workload::start(&socket, model(&self.folder), Mix::LARGE, Arc::clone(&recorder)).unwrap();
            while workload.is_running() && !enough(&recorder) {
                std::thread::sleep(Duration::from_millis(2));
            }
            (workload.stop().unwrap(), recorder)
        }
    }

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn model(folder: &tempfile::TempDir) -> Model {
        Model::behind(File::open(folder.path().join("source")).unwrap(), 8 << 20, 5).unwrap()
    }

    #[test]
    fn a_good_server_passes() {
        let server = Server::start(&[]);
        let (mut ended, recorder) = server.work(|recorder| recorder.peek().completions > 5000);
        assert_eq!(ended.error, None);
        let tally = recorder.take(Instant::now());
        assert_eq!((tally.corrupted_bytes, tally.io_errors), (0, 0));
        assert!(tally.bytes_verified > 50 << 20, "{tally:?}");
        assert!(tally.longest_gap > Duration::ZERO);
        let compared = ended.model.check_file(&server.image(), drop).unwrap();
        assert_eq!((compared.bytes, compared.corrupted), (ended.model.end(), 0));
    }

    #[test]
    fn a_byte_that_changes_behind_its_back_is_found() {
        let server = Server::start(&[]);
        let image = File::options().write(true).open(server.image()).unwrap();
        image.write_all_at(b"!", 70_000).unwrap();
        let (mut ended, recorder) = server.work(|recorder| recorder.peek().corrupted_bytes > 2);
        assert_eq!(ended.error, None);
        assert!(recorder.take(Instant::now()).corrupted_bytes > 2);
        assert_eq!(ended.model.check_file(&server.image(), drop).unwrap().corrupted, 1);
    }

    #[test]
    fn failing_requests_are_counted_and_do_not_confuse_the_model() {
        let server = Server::start(&["--filter=error", "error-pwrite=EIO", "error-pwrite-rate=30%"]);
        let (mut ended, recorder) = server.work(|recorder| recorder.peek().completions > 3000);
        assert_eq!(ended.error, None);
        let tally = recorder.take(Instant::now());
        assert!(tally.io_errors > 50, "{tally:?}");
        assert_eq!(tally.corrupted_bytes, 0);
        assert_eq!(ended.model.check_file(&server.image(), drop).unwrap().corrupted, 0);
    }

    #[test]
    fn a_server_that_dies_ends_the_workload() {
        let mut server = Server::start(&[]);
        let recorder = Arc::new(Recorder::new(Instant::now()));
        let socket = server.folder.path().join("socket");
        let workload =
            Workload::start(&socket, model(&server.folder), Mix::LARGE, Arc::clone(&recorder)).unwrap();
        while recorder.peek().completions < 100 {
            std::thread::sleep(Duration::from_millis(1));
        }
        server.child.kill().unwrap();
        let started = Instant::now();
        while workload.is_running() {
            assert!(started.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = workload.stop().unwrap();
        assert!(ended.error.is_some() && ended.is_lost);
        assert!((1..=Mix::LARGE.depth as u64).contains(&ended.unanswered));
        assert_eq!(recorder.peek().io_errors, 0);
    }

    #[test]
    fn a_drive_of_another_size_is_refused() {
        let server = Server::start(&[]);
        let recorder = Arc::new(Recorder::new(Instant::now()));
        let other = Model::behind(tempfile::tempfile().unwrap(), 4 << 20, 5).unwrap();
        let refused = Workload::start(&server.folder.path().join("socket"), other, Mix::LARGE, recorder);
        assert!(refused.err().is_some_and(|why| why.contains("bytes")));
    }
}
