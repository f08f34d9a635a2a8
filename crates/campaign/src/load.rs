//! Load on a drive that knows what it wrote: the laboratory's [`Workload`] on single blocks.

use crate::Error;
use crate::nbd_client::{NbdClient, NbdError};
use lab::workload::{Mix, REPLY_TIMEOUT, Recorder, Workload};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use lab::workload::{BLOCK, Model};

/// What a load has done.
#[derive(Debug)]
pub struct Report {
    /// Requests that succeeded.
    pub done: u64,
    /// Requests that failed with an error of the drive, flushes aside.
    pub failed: u64,
    /// Flushes that failed: the honest answer when what they should make durable is gone.
    pub failed_flushes: u64,
    /// The longest time without any reply, since it was asked for last.
    pub longest_gap: Duration,
    /// Why it ended before it was told to: the connection was lost.
    pub lost: Option<String>,
    /// What the region holds now.
    pub model: Model,
}

/// A client in a thread of its own that writes, reads, verifies and flushes until it is stopped.
pub struct Load {
    workload: Workload,
    recorder: Arc<Recorder>,
}

impl Load {
    /// Starts on the edge at `socket`, with `depth` requests in flight.
    pub fn start(socket: &Path, model: Model, depth: usize) -> Result<Self, Error> {
        let recorder = Arc::new(Recorder::new(Instant::now()));
        let mix = Mix { depth, ..Mix::SMALL };
        let workload = Workload::start(socket, model, mix, Arc::clone(&recorder));
        Ok(Self { workload: workload.map_err(Error::unexpected)?, recorder })
    }

    /// Requests that have succeeded so far.
    pub fn done(&self) -> u64 {
        self.recorder.peek().completions
    }

    /// Requests that have failed so far, of any kind.
    pub fn failed(&self) -> u64 {
        self.recorder.peek().io_errors
    }

    /// The longest gap since the last call.
    pub fn take_longest_gap(&self) -> Duration {
        self.recorder.take_longest_gap()
    }

    /// Lets what is in flight end, and sends nothing more. See [`Load::stop`].
    pub fn begin_stop(&self) {
        self.workload.begin_stop();
    }

    /// Waits until `count` more requests have succeeded.
    pub fn wait_done(&self, count: u64, timeout: Duration) -> Result<(), Error> {
        let target = self.done() + count;
        crate::process::poll_until(&format!("{count} more requests to succeed"), timeout, || {
            if !self.workload.is_running() {
                return Err(Error::unexpected("the load has ended by itself"));
            }
            Ok((self.done() >= target).then_some(()))
        })
    }

    /// Waits for what is in flight, and reads again all that was written. It is an error where any request failed or
    /// the connection was lost, or a byte is wrong.
    pub fn stop_whole(self, socket: &Path) -> Result<Report, Error> {
        let mut report = self.stop()?;
        let Report { failed, failed_flushes, lost, .. } = &report;
        if (*failed, *failed_flushes, lost) != (0, 0, &None) {
            let what = format!("{failed} requests and {failed_flushes} flushes failed; lost: {lost:?}");
            return Err(Error::unexpected(what));
        }
        report.model.verify(&mut connect(socket)?).map_err(Error::unexpected)?;
        Ok(report)
    }

    /// Waits for what is in flight, and reports. Wrong bytes are an error.
    pub fn stop(self) -> Result<Report, Error> {
        let ended = self.workload.stop().map_err(Error::unexpected)?;
        let wrong = ended.wrong.or(ended.error.clone().filter(|_| !ended.is_lost));
        if let Some(wrong) = wrong {
            return Err(Error::unexpected(wrong));
        }
        let tally = self.recorder.peek();
        Ok(Report {
            done: tally.completions,
            failed: tally.io_errors - tally.failed_flushes,
            failed_flushes: tally.failed_flushes,
            longest_gap: tally.longest_gap,
            lost: ended.error,
            model: ended.model,
        })
    }
}

/// Connects to an edge.
pub fn connect(socket: &Path) -> Result<NbdClient, Error> {
    let refused = |error: NbdError| Error::unexpected(format!("cannot connect: {error}"));
    NbdClient::connect(socket, REPLY_TIMEOUT).map_err(refused)
}
