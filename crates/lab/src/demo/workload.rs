//! The client whose data must survive: verified reads and writes over NBD, several at a time, all the time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::model::{BLOCK, Model, WRITE_AREA};
use super::random::Random;
use super::tally::Recorder;
use crate::nbd_client::{Errno, Handle, NbdClient, NbdError, Request};

/// Requests outstanding.
pub(super) const QUEUE_DEPTH: usize = 8;
/// The largest request, in blocks: 64 KiB.
const BLOCKS_MAX: u64 = 16;
/// Longer than a node lets a request wait before it fails it.
const REPLY_TIMEOUT: Duration = Duration::from_secs(45);
/// Tries to find blocks that no other request uses.
const RESERVE_TRIES: u32 = 16;
/// Offsets of reads are multiples of this, where the server allows it.
const SECTOR: u64 = 512;
/// One write in this many asks for stable storage.
const FUA_ONE_IN: u64 = 16;

/// The workload, running in its thread.
pub(super) struct Workload {
    thread: JoinHandle<Ended>,
    stop: Arc<AtomicBool>,
}

/// How the workload ended.
pub(super) struct Ended {
    /// What the image must contain now.
    pub model: Model,
    /// Why it ended before it was told to.
    pub error: Option<String>,
}

impl Workload {
    /// Connects to the NBD socket and starts.
    ///
    /// # Errors
    /// What is wrong with the server, for a person.
    pub(super) fn start(
        socket: &Path,
        seed: u64,
        model: Model,
        recorder: Arc<Recorder>,
    ) -> Result<Self, String> {
        let client = NbdClient::connect(socket, REPLY_TIMEOUT).map_err(|error| error.to_string())?;
        check_geometry(&client, &model)?;
        let stop = Arc::new(AtomicBool::new(false));
        let driver = Driver::new(client, seed, model, recorder);
        let stopped = Arc::clone(&stop);
        let builder = std::thread::Builder::new().name("workload".to_owned());
        let thread = builder.spawn(move || driver.run(&stopped));
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { thread, stop })
    }

    /// False once it has failed.
    pub(super) fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Lets it finish what it began, flush and disconnect.
    ///
    /// # Errors
    /// A panic of its thread.
    pub(super) fn stop(self) -> Result<Ended, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the verifying client panicked".to_owned())
    }
}

fn check_geometry(client: &NbdClient, model: &Model) -> Result<(), String> {
    if client.size() != model.bytes() {
        return Err(format!("the drive has {} bytes, the image {}", client.size(), model.bytes()));
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
    recorder: Arc<Recorder>,
    random: Random,
    pending: BTreeMap<u64, Pending>,
    data: Vec<u8>,
}

struct Pending {
    submitted: Instant,
    operation: Operation,
}

/// A request; blocks are counted from the start of the write area, other numbers are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    ReadSource { offset: u64, length: u64 },
    ReadBlocks { first: u64, count: u64 },
    WriteBlocks { first: u64, count: u64, fua: bool },
    Flush,
}

impl Driver {
    fn new(client: NbdClient, seed: u64, model: Model, recorder: Arc<Recorder>) -> Self {
        let random = Random::new(seed, "workload");
        Self { client, model, recorder, random, pending: BTreeMap::new(), data: Vec::new() }
    }

    fn run(mut self, stop: &AtomicBool) -> Ended {
        let error = self.drive(stop).err();
        if error.is_some() {
            self.abandon();
            return Ended { model: self.model, error };
        }
        let goodbye = match self.client.flags().flush() {
            true => self.client.flush().and_then(|()| self.client.disconnect()),
            false => self.client.disconnect(),
        };
        Ended { model: self.model, error: goodbye.err().map(|error| format!("at the end, {error}")) }
    }

    fn drive(&mut self, stop: &AtomicBool) -> Result<(), String> {
        loop {
            while self.pending.len() < QUEUE_DEPTH && !stop.load(Ordering::Relaxed) {
                let operation = self.choose();
                self.submit(operation).map_err(|error| error.to_string())?;
            }
            if self.pending.is_empty() {
                return Ok(());
            }
            self.complete()?;
        }
    }

    fn choose(&mut self) -> Operation {
        let blocks_max = BLOCKS_MAX.min(u64::from(self.client.block_sizes().maximum) / BLOCK);
        let count = 1 + self.random.below(blocks_max);
        let flags = self.client.flags();
        // Half of the requests read the source; the others share the write area.
        let kind = self.random.below(256);
        if kind == 0 && flags.flush() {
            return Operation::Flush;
        }
        let reserved = if kind < 128 { self.reserve(count) } else { None };
        match reserved {
            Some(first) if kind < 64 => Operation::ReadBlocks { first, count },
            Some(first) => {
                let fua = flags.fua() && self.random.below(FUA_ONE_IN) == 0;
                Operation::WriteBlocks { first, count, fua }
            }
            None => self.read_source(count),
        }
    }

    fn reserve(&mut self, count: u64) -> Option<u64> {
        let starts = WRITE_AREA / BLOCK - count + 1;
        (0..RESERVE_TRIES).find_map(|_| {
            let first = self.random.below(starts);
            self.model.reserve(first, count).then_some(first)
        })
    }

    fn read_source(&mut self, count: u64) -> Operation {
        let bytes = self.model.write_start();
        let length = (count * BLOCK).min(bytes);
        let alignment = SECTOR.max(u64::from(self.client.block_sizes().minimum));
        let offset = self.random.below((bytes - length) / alignment + 1) * alignment;
        Operation::ReadSource { offset, length }
    }

    fn submit(&mut self, operation: Operation) -> Result<(), NbdError> {
        let start = self.model.write_start();
        if let Operation::WriteBlocks { first, count, .. } = operation {
            self.model.next_content(first, count, &mut self.data);
        }
        let request = match operation {
            // Lengths are at most BLOCKS_MAX blocks.
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
        match self.client.submit(request) {
            Ok(Handle(handle)) => {
                self.pending.insert(handle, Pending { submitted, operation });
                Ok(())
            }
            Err(error) => {
                self.fail(operation);
                Err(error)
            }
        }
    }

    fn complete(&mut self) -> Result<(), String> {
        let reply = self.client.next_reply(&mut self.data).map_err(|error| error.to_string())?;
        let now = Instant::now();
        let Pending { submitted, operation } =
            self.pending.remove(&reply.handle.0).expect("the client answers only what is in flight");
        if let Err(errno) = reply.result {
            tracing::debug!(?operation, ?errno, "a request failed");
            self.fail(operation);
            return give_up_on(errno);
        }
        let offset = match operation {
            Operation::ReadSource { offset, .. } => Some(offset),
            Operation::ReadBlocks { first, .. } => Some(self.model.write_start() + first * BLOCK),
            Operation::WriteBlocks { first, count, .. } => {
                self.model.written(first, count, true);
                None
            }
            Operation::Flush => None,
        };
        let compared = offset.map(|offset| self.model.check(offset, &self.data)).transpose();
        let compared = compared.map_err(|error| format!("cannot read the source again: {error}"))?;
        let compared = compared.unwrap_or_default();
        self.recorder.completed(submitted, now, compared.bytes - compared.corrupted, compared.corrupted);
        self.release(operation);
        Ok(())
    }

    fn fail(&mut self, operation: Operation) {
        self.recorder.failed(1);
        if let Operation::WriteBlocks { first, count, .. } = operation {
            self.model.written(first, count, false);
        }
        self.release(operation);
    }

    fn release(&mut self, operation: Operation) {
        match operation {
            Operation::ReadBlocks { first, count } | Operation::WriteBlocks { first, count, .. } => {
                self.model.release(first, count);
            }
            Operation::ReadSource { .. } | Operation::Flush => {}
        }
    }

    /// The connection is gone: what was in flight has failed.
    fn abandon(&mut self) {
        for Pending { operation, .. } in std::mem::take(&mut self.pending).into_values() {
            self.fail(operation);
        }
    }
}

/// A server that is about to go answers everything so, as fast as it can be asked.
fn give_up_on(errno: Errno) -> Result<(), String> {
    match errno {
        Errno::ESHUTDOWN => Err(format!("the drive answers {errno:?}")),
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
            image.set_len(model(&folder).bytes()).unwrap();
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
            let workload = Workload::start(&socket, 5, model(&self.folder), Arc::clone(&recorder)).unwrap();
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
        Model::new(5, File::open(folder.path().join("source")).unwrap()).unwrap()
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
        assert_eq!((compared.bytes, compared.corrupted), (ended.model.bytes(), 0));
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
        let workload = Workload::start(&socket, 5, model(&server.folder), Arc::clone(&recorder)).unwrap();
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
        assert!(ended.error.is_some());
        assert!((1..=QUEUE_DEPTH as u64).contains(&recorder.take(Instant::now()).io_errors));
    }

    #[test]
    fn a_drive_of_another_size_is_refused() {
        let server = Server::start(&[]);
        let recorder = Arc::new(Recorder::new(Instant::now()));
        let other = Model::new(5, tempfile::tempfile().unwrap()).unwrap();
        let refused = Workload::start(&server.folder.path().join("socket"), 5, other, recorder);
        assert!(refused.err().is_some_and(|why| why.contains("bytes")));
    }
}
