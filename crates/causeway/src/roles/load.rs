//! A borrower whose card reads and writes on its own: what `causeway bench` measures the native driver with.

use std::fs::File;
use std::time::{Duration, Instant};

use base::ids::NodeId;
use io::agent::{AgentEvent, Edge, LoanSpec};
use io::files::{Collapser, Image};
use io::load::{LoadResult, LoadSpec};
use io::native::NativeDrive;

use super::{borrow, image, serve};
use crate::cli::{LoadArgs, NativeArgs, Source, WorkArgs};
use crate::exit::Failure;
use crate::line::Line;

const BLOCK_SIZE: u32 = 512;
/// How long requests wait for the lender, and how long the whole may take beyond the time it was given.
const PATIENCE: Duration = Duration::from_secs(15);

/// The loan of a line, used by the card itself.
pub(super) fn loan(args: &LoadArgs, line: &Line) -> LoanSpec {
    borrow::with_edge(line, Edge::Load(spec(&args.work)), PATIENCE)
}

/// What the arguments say.
fn spec(work: &WorkArgs) -> LoadSpec {
    LoadSpec {
        bytes: work.bytes,
        write_percent: work.write_percent,
        sequential: work.sequential,
        depth: work.depth,
        duration_ms: (work.seconds * 1e3) as u64,
    }
}

/// A load on a drive of this process, or with system calls alone: prints what came of it.
pub(super) fn native(args: &NativeArgs) -> Result<(), Failure> {
    // Without a lock, as the other peers of a bench.
    let open = |source: &Source| match source.path() {
        None => image::open(source, false, BLOCK_SIZE, image::LOCK_PATIENCE),
        Some(path) => {
            let file = File::options().read(true).write(true).open(path);
            let image = file.and_then(|file| Image::from_fd(file.into()));
            image.map_err(|error| Failure::io(format_args!("cannot open {}", path.display()), &error))
        }
    };
    let mut images = args.images.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    if !args.plain {
        // As a card does it with time.
        let mapped = Collapser::start().and_then(|collapser| {
            images.iter_mut().try_for_each(|image| image.map(&collapser).map(|()| image.warm_up()))
        });
        mapped.map_err(|error| Failure::io("cannot map the image", &error))?;
    }
    let spec = spec(&args.work);
    let seed = u64::from(std::process::id());
    let result = match args.plain {
        true => io::native::run_plain(&images[0], spec, seed),
        false => {
            let drives = images.iter().zip(&args.images);
            let drives = drives.map(|(image, source)| NativeDrive { image, flash: source.card() });
            let results = io::native::run(&drives.collect::<Vec<_>>(), spec, seed);
            results.map(|results| LoadResult::together(&results))
        }
    };
    let result = result.map_err(|error| Failure::io("the load failed", &error))?;
    let json = serde_json::to_string(&result).map_err(Failure::failed)?;
    crate::cli::print(&format!("{json}\n"))
}

/// Waits for the results, prints them as one JSON document and ends the node.
pub(super) struct Measure {
    /// This node.
    own: NodeId,
    deadline: Instant,
    wanted: usize,
    results: Vec<LoadResult>,
}

impl Measure {
    pub(super) fn new(own: NodeId, args: &LoadArgs) -> Self {
        let deadline = Instant::now() + Duration::from_secs_f64(args.work.seconds) + PATIENCE;
        Self { own, deadline, wanted: args.lines.len(), results: Vec::new() }
    }
}

impl serve::Observer for Measure {
    fn handle(&mut self, event: &AgentEvent) -> Result<(), Failure> {
        match event {
            AgentEvent::LoadEnded(_, result) => {
                self.results.push(result.clone());
                if self.has_done() {
                    let all = LoadResult::together(&self.results);
                    let json = serde_json::to_string(&all).map_err(Failure::failed)?;
                    crate::cli::print(&format!("{json}\n"))?;
                }
            }
            AgentEvent::Refused { refusal, .. } => {
                if let Some(why) = super::refusal::words("the function", refusal, self.own) {
                    return Err(Failure::refused(why));
                }
            }
            AgentEvent::Ready(_)
            | AgentEvent::Tenant { .. }
            | AgentEvent::StoreTenancy { .. }
            | AgentEvent::StoreHolder(_)
            | AgentEvent::ForgetHolder(_)
            | AgentEvent::RaiseIncarnation { .. }
            | AgentEvent::Overtaken(_)
            | AgentEvent::Altered(_)
            | AgentEvent::Grown(_)
            | AgentEvent::GivenBack { .. }
            | AgentEvent::Unusable { .. }
            | AgentEvent::MediaFault(_)
            | AgentEvent::Persist { .. } => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.has_done()).then_some(self.deadline)
    }

    fn overdue(&self, _has_met: bool) -> Failure {
        Failure::unreachable("the load did not end in time")
    }

    fn has_done(&self) -> bool {
        self.results.len() >= self.wanted
    }
}
