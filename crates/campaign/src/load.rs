//! Load on a drive that knows what it wrote: a client over NBD with a [`Model`] of its region.
//!
//! Each block carries versions, 1, 2, 3 ..; what a read finds tells which one it was. A write counts for a block from
//! the moment it was sent (`issued`), surely from its reply on (`completed`), and even through the loss of everything
//! volatile from the end of a flush after it, or of itself if it was written with FUA (`durable`).

use crate::Error;
use crate::nbd_client::{NbdClient, NbdError, Request};
use crate::random::Random;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// Longer than any request may wait in a test.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// What a region of a drive holds.
#[derive(Clone, Debug)]
pub struct Model {
    offset: u64,
    seed: u64,
    blocks: Vec<Versions>,
}

/// The versions of one block: `durable <= completed <= issued`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Versions {
    issued: u64,
    completed: u64,
    durable: u64,
}

/// What may have happened to a drive before it is compared with its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// Nothing: every completed write must be there.
    Nothing,
    /// The loss of everything that was not made durable.
    VolatileLoss,
}

impl Model {
    /// A region that holds zeroes so far. `offset` and `size` in bytes, multiples of [`BLOCK`].
    pub fn new(offset: u64, size: u64, seed: u64) -> Self {
        assert!(offset.is_multiple_of(BLOCK) && size.is_multiple_of(BLOCK) && size > 0);
        Self { offset, seed, blocks: vec![Versions::default(); (size / BLOCK) as usize] }
    }

    /// Reads the whole region and compares. What was uncertain is known afterwards.
    pub fn verify(&mut self, client: &mut NbdClient, since: Since) -> Result<(), Error> {
        let mut data = Vec::new();
        for index in 0..self.blocks.len() {
            let offset = self.offset + index as u64 * BLOCK;
            client.read(offset, BLOCK as u32, &mut data).map_err(unexpected("a read to verify"))?;
            let found = self.check(index, &data, since)?;
            let versions = &mut self.blocks[index];
            versions.completed = found;
            versions.issued = found;
            versions.durable = versions.durable.min(found);
        }
        Ok(())
    }

    /// Blocks with a write that is not durable.
    pub fn volatile_blocks(&self) -> usize {
        self.blocks.iter().filter(|versions| versions.completed > versions.durable).count()
    }

    /// Blocks with a durable write.
    pub fn durable_blocks(&self) -> usize {
        self.blocks.iter().filter(|versions| versions.durable > 0).count()
    }

    /// The version that `data` is, if it is one that may be there.
    fn check(&self, index: usize, data: &[u8], since: Since) -> Result<u64, Error> {
        let versions = self.blocks[index];
        let oldest = if since == Since::Nothing { versions.completed } else { versions.durable };
        let found = data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if (oldest..=versions.issued).contains(&found) && data == self.content(index, found) {
            return Ok(found);
        }
        let what = if found <= versions.issued && data == self.content(index, found) {
            format!("version {found}")
        } else {
            format!("foreign bytes {:02x?}..", &data[..data.len().min(16)])
        };
        let offset = self.offset + index as u64 * BLOCK;
        Err(Error::unexpected(format!("the block at {offset} holds {what}; {versions:?}, since {since:?}")))
    }

    fn content(&self, index: usize, version: u64) -> Vec<u8> {
        let mut content = vec![0; BLOCK as usize];
        if version > 0 {
            content[..8].copy_from_slice(&version.to_le_bytes());
            Random::new(self.seed ^ (index as u64) << 40 ^ version).fill(&mut content[8..]);
        }
        content
    }
}

/// What a load has done.
#[derive(Debug)]
pub struct Report {
    /// Requests that succeeded.
    pub done: u64,
    /// Requests that failed with an error of the drive, flushes aside.
    pub failed: u64,
    /// Flushes that failed: the honest answer when what they should make durable is gone.
    pub failed_flushes: u64,
    /// The longest time without any reply, while requests were out.
    pub longest_gap: Duration,
    /// Why it ended before it was told to: the connection was lost.
    pub lost: Option<String>,
    /// What the region holds now.
    pub model: Model,
}

/// A client in a thread of its own that writes, reads, verifies and flushes until it is stopped.
pub struct Load {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Report, Error>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    volatile_loss: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
    failed_flushes: AtomicU64,
    /// Nanoseconds.
    longest_gap: AtomicU64,
}

impl Load {
    /// Starts on the edge at `socket`, with `depth` requests in flight.
    pub fn start(socket: &Path, model: Model, depth: usize) -> Result<Self, Error> {
        let client = connect(socket)?;
        let shared = Arc::new(Shared::default());
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || Worker::new(client, model, depth, for_thread).run());
        Ok(Self { shared, thread })
    }

    /// Requests that have succeeded so far.
    pub fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Acquire)
    }

    /// Requests that have failed so far, of any kind.
    pub fn failed(&self) -> u64 {
        self.shared.failed.load(Ordering::Acquire) + self.shared.failed_flushes.load(Ordering::Acquire)
    }

    /// The longest gap since the last call.
    pub fn take_longest_gap(&self) -> Duration {
        Duration::from_nanos(self.shared.longest_gap.swap(0, Ordering::AcqRel))
    }

    /// From now on, what was not durable may be gone.
    pub fn expect_volatile_loss(&self) {
        self.shared.volatile_loss.store(true, Ordering::Release);
    }

    /// Lets what is in flight end, and sends nothing more. See [`Load::stop`].
    pub fn begin_stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Waits until `count` more requests have succeeded.
    pub fn wait_done(&self, count: u64, timeout: Duration) -> Result<(), Error> {
        let target = self.done() + count;
        crate::process::poll_until(&format!("{count} more requests to succeed"), timeout, || {
            if self.thread.is_finished() {
                return Err(Error::unexpected("the load has ended by itself"));
            }
            Ok((self.done() >= target).then_some(()))
        })
    }

    /// Waits for what is in flight, and reports. Wrong bytes are an error.
    pub fn stop(self) -> Result<Report, Error> {
        self.shared.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| Error::unexpected("the load panicked"))?
    }
}

/// Connects to an edge.
pub fn connect(socket: &Path) -> Result<NbdClient, Error> {
    let path = PathBuf::from(socket);
    NbdClient::connect(&path, REPLY_TIMEOUT).map_err(unexpected("cannot connect"))
}

/// What is out.
enum Out {
    Read(usize),
    Write {
        index: usize,
        fua: bool,
    },
    /// With the versions that had been completed when it was sent.
    Flush(Vec<u64>),
}

struct Worker {
    client: NbdClient,
    model: Model,
    depth: usize,
    shared: Arc<Shared>,
    random: Random,
    out: BTreeMap<u64, Out>,
    busy: Vec<bool>,
    longest_gap: Duration,
}

impl Worker {
    fn new(client: NbdClient, model: Model, depth: usize, shared: Arc<Shared>) -> Self {
        let busy = vec![false; model.blocks.len()];
        assert!(depth > 0 && depth < busy.len(), "each request in flight has a block of its own");
        let random = Random::new(model.seed ^ 0x10ad);
        Self { client, model, depth, shared, random, out: BTreeMap::new(), busy, longest_gap: Duration::ZERO }
    }

    fn run(mut self) -> Result<Report, Error> {
        let mut data = Vec::new();
        let mut last = Instant::now();
        let lost = loop {
            let stopping = self.shared.stop.load(Ordering::Acquire);
            if stopping && self.out.is_empty() {
                break None;
            }
            if !stopping && self.out.len() < self.depth {
                match self.submit() {
                    Ok(()) => continue,
                    Err(error) => break Some(lost(error)?),
                }
            }
            let reply = match self.client.next_reply(&mut data) {
                Ok(reply) => reply,
                Err(error) => break Some(lost(error)?),
            };
            let now = Instant::now();
            let gap = now - last;
            last = now;
            self.longest_gap = self.longest_gap.max(gap);
            self.shared.longest_gap.fetch_max(gap.as_nanos() as u64, Ordering::AcqRel);
            let out = self.out.remove(&reply.handle.0);
            let out = out.ok_or_else(|| Error::unexpected("a reply to nothing"))?;
            self.take(&out, reply.result.is_ok(), &data)?;
        };
        let count = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        let [done, failed, failed_flushes] =
            [&self.shared.done, &self.shared.failed, &self.shared.failed_flushes].map(count);
        Ok(Report { done, failed, failed_flushes, longest_gap: self.longest_gap, lost, model: self.model })
    }

    fn submit(&mut self) -> Result<(), NbdError> {
        let kind = self.random.below(100);
        if kind < 3 {
            let completed = self.model.blocks.iter().map(|versions| versions.completed).collect();
            let handle = self.client.submit(Request::Flush)?;
            self.out.insert(handle.0, Out::Flush(completed));
            return Ok(());
        }
        let index = loop {
            let index = self.random.below(self.busy.len() as u64) as usize;
            if !self.busy[index] {
                break index;
            }
        };
        let offset = self.model.offset + index as u64 * BLOCK;
        let (request, out);
        let content;
        if kind < 50 {
            (request, out) = (Request::Read { offset, length: BLOCK as u32 }, Out::Read(index));
        } else {
            let fua = kind < 55;
            let versions = &mut self.model.blocks[index];
            versions.issued += 1;
            content = self.model.content(index, self.model.blocks[index].issued);
            (request, out) = (Request::Write { offset, data: &content, fua }, Out::Write { index, fua });
        }
        let handle = self.client.submit(request)?;
        self.busy[index] = true;
        self.out.insert(handle.0, out);
        Ok(())
    }

    fn take(&mut self, out: &Out, succeeded: bool, data: &[u8]) -> Result<(), Error> {
        if let Out::Read(index) | Out::Write { index, .. } = out {
            self.busy[*index] = false;
        }
        let counter = match (succeeded, out) {
            (true, _) => &self.shared.done,
            (false, Out::Flush(_)) => &self.shared.failed_flushes,
            (false, _) => &self.shared.failed,
        };
        counter.fetch_add(1, Ordering::AcqRel);
        if !succeeded {
            return Ok(());
        }
        match out {
            Out::Read(index) => {
                // A write that failed may still be on its way to the drive, so this settles nothing.
                let lost = self.shared.volatile_loss.load(Ordering::Acquire);
                let since = if lost { Since::VolatileLoss } else { Since::Nothing };
                self.model.check(*index, data, since).map(drop)?;
            }
            Out::Write { index, fua } => {
                let versions = &mut self.model.blocks[*index];
                versions.completed = versions.issued;
                if *fua {
                    versions.durable = versions.issued;
                }
            }
            Out::Flush(completed) => {
                for (versions, completed) in self.model.blocks.iter_mut().zip(completed) {
                    versions.durable = versions.durable.max(*completed);
                }
            }
        }
        Ok(())
    }
}

/// The end of the connection is something a test may want; anything else is an error.
fn lost(error: NbdError) -> Result<String, Error> {
    match error {
        NbdError::Closed { .. } | NbdError::Io(_) => Ok(error.to_string()),
        other => Err(unexpected("the edge")(other)),
    }
}

fn unexpected(what: &str) -> impl FnOnce(NbdError) -> Error {
    move |error| Error::unexpected(format!("{what}: {error}"))
}
