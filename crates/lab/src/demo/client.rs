//! The load as an NBD client in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use program::exit::Failure;

use super::load::{Finished, Load};
use super::show::Show;
use crate::local::Halt;
use crate::workload::{Mix, Model, Recorder, Tally, Workload};

/// The workload and what it counts.
pub(super) struct Client {
    workload: Workload,
    recorder: Arc<Recorder>,
}

impl Client {
    /// Connects to the NBD socket and starts.
    pub(super) fn start(socket: &Path, model: Model) -> Result<Self, Failure> {
        let recorder = Arc::new(Recorder::new(Instant::now()));
        let workload = Workload::start(socket, model, Mix::LARGE, Arc::clone(&recorder))
            .map_err(|why| Failure::failed(format_args!("the borrowed drive cannot be used: {why}")))?;
        Ok(Self { workload, recorder })
    }
}

impl Load for Client {
    fn origin(&self) -> Instant {
        self.recorder.origin()
    }

    fn begin(&mut self) -> Result<(), Halt> {
        // It works from its start on.
        Ok(())
    }

    fn check(&mut self) -> Result<(), Failure> {
        match self.workload.is_running() {
            true => Ok(()),
            // Its own error says why; it is known when it is stopped.
            false => Err(Failure::failed("the verifying client could not go on")),
        }
    }

    fn so_far(&mut self) -> Tally {
        self.recorder.peek()
    }

    fn killed(&mut self, now: Instant) {
        self.recorder.killed(now);
    }

    fn is_recovering(&mut self) -> Result<bool, Failure> {
        Ok(self.recorder.is_recovering())
    }

    fn end(&mut self) -> Tally {
        self.recorder.take(Instant::now())
    }

    fn finish(self: Box<Self>, show: &Show) -> Finished {
        show.doing("flushing");
        let ended = self.workload.stop();
        let mut finished = Finished {
            rest: self.recorder.take(Instant::now()),
            timeline: self.recorder.timeline(),
            ..Finished::default()
        };
        match ended {
            Ok(ended) => {
                finished.rest.io_errors += ended.unanswered;
                finished.problems.extend(ended.wrong.into_iter().chain(ended.error));
                finished.model = Some(ended.model);
            }
            Err(why) => finished.problems.push(why),
        }
        finished
    }
}
