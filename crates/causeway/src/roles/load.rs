//! A borrower whose card reads and writes on its own: what `causeway bench` measures the native driver with.

use std::time::{Duration, Instant};

use io::agent::{AgentEvent, Edge, LoanSpec};
use io::load::{LoadResult, LoadSpec};

use super::{borrow, serve};
use crate::cli::LoadArgs;
use crate::exit::Failure;
use crate::line::Line;

/// How long requests wait for the lender, and how long the whole may take beyond the time it was given.
const PATIENCE: Duration = Duration::from_secs(15);

/// The loan of a line, used by the card itself.
pub(super) fn loan(args: &LoadArgs, line: &Line) -> LoanSpec {
    let load = LoadSpec {
        bytes: args.bytes,
        write_percent: args.write_percent,
        sequential: args.sequential,
        depth: args.depth,
        duration_ms: (args.seconds * 1e3) as u64,
    };
    borrow::with_edge(line, Edge::Load(load), PATIENCE, args.insecure)
}

/// Waits for the result, prints it as one JSON document and ends the node.
pub(super) struct Measure {
    deadline: Instant,
    result: Option<LoadResult>,
}

impl Measure {
    pub(super) fn new(args: &LoadArgs) -> Self {
        let deadline = Instant::now() + Duration::from_secs_f64(args.seconds) + PATIENCE;
        Self { deadline, result: None }
    }
}

impl serve::Observer for Measure {
    fn handle(&mut self, event: &AgentEvent) -> Result<(), Failure> {
        match event {
            AgentEvent::LoadEnded(_, result) => {
                self.result = Some(*result);
                let json = serde_json::to_string(result).map_err(Failure::failed)?;
                crate::cli::print(&format!("{json}\n"))?;
            }
            AgentEvent::Refused { .. } => {
                return Err(Failure::refused("the lender refuses: in use, or only one side is insecure"));
            }
            AgentEvent::Ready(_)
            | AgentEvent::Tenant { .. }
            | AgentEvent::Overtaken(_)
            | AgentEvent::GivenBack { .. }
            | AgentEvent::Persist { .. } => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.result.is_none().then_some(self.deadline)
    }

    fn overdue(&self, _has_met: bool) -> Failure {
        Failure::unreachable("the load did not end in time")
    }

    fn has_done(&self) -> bool {
        self.result.is_some()
    }
}
