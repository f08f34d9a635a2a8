//! A borrower whose card reads and writes on its own: what `causeway bench` measures the native driver with.

use std::fs::File;
use std::time::{Duration, Instant};

use base::ids::NodeId;
use io::agent::{AgentEvent, Edge};
use io::files::{Collapser, Image};
use io::load::{LoadResult, LoadSpec};
use io::native::NativeDrive;
use program::cli::{NodeName, Source, print, read_line};
use program::exit::Failure;
use program::line::Line;
use program::roles::{self, Borrower, HeardAt, Observer};

use crate::cli::{LoadArgs, NativeArgs, WorkArgs};

/// How long requests wait for the lender, and how long the whole may take beyond the time it was given.
const PATIENCE: Duration = Duration::from_secs(15);

/// Borrows, has the card read or write for a while, prints what came of it and gives back.
pub(crate) fn run(args: &LoadArgs) -> Result<(), Failure> {
    let lines = args.lines.iter().map(read_line).collect::<Result<Vec<_>, _>>()?;
    let borrower = Borrower {
        name: args.name.clone().unwrap_or_else(|| NodeName::cleaned("load")),
        state_dir: args.state_dir.as_deref(),
        protection: args.protection.protection(),
        shared_memory: !args.no_shm,
        ethernet: &args.ethernet,
        switches: &[],
        listen: &[],
        machines: &[],
    };
    borrower.serve(&roles::addresses_of(lines.iter().map(Line::addresses)), |own| {
        let loan = |line| roles::loan(line, Edge::Load(spec(&args.work)), PATIENCE);
        Ok((lines.iter().map(loan).collect(), Measure::new(own, args)))
    })
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
pub(crate) fn native(args: &NativeArgs) -> Result<(), Failure> {
    // Without a lock, as the other peers of a bench.
    let open = |source: &Source| match source.path() {
        None => {
            let size = source.memory().expect("what is no file is memory");
            Image::ram(size.0)
                .map_err(|error| Failure::io(format_args!("cannot have {size} of memory"), &error))
        }
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
    print_json(&result)
}

fn print_json(result: &LoadResult) -> Result<(), Failure> {
    let json = serde_json::to_string(result).map_err(Failure::failed)?;
    print(&format!("{json}\n"))
}

/// Waits for the results, prints them as one JSON document and ends the node.
struct Measure {
    /// This node.
    own: NodeId,
    deadline: Instant,
    wanted: usize,
    results: Vec<LoadResult>,
}

impl Measure {
    fn new(own: NodeId, args: &LoadArgs) -> Self {
        let deadline = Instant::now() + Duration::from_secs_f64(args.work.seconds) + PATIENCE;
        Self { own, deadline, wanted: args.lines.len(), results: Vec::new() }
    }
}

impl Observer for Measure {
    fn handle(&mut self, event: &AgentEvent) -> Result<(), Failure> {
        match event {
            AgentEvent::LoadEnded(_, result) => {
                self.results.push(result.clone());
                if self.has_done() {
                    print_json(&LoadResult::together(&self.results))?;
                }
            }
            AgentEvent::Refused { refusal, .. } => {
                if let Some(why) = roles::refusal_words("the function", refusal, self.own) {
                    return Err(Failure::refused(why));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        (!self.has_done()).then_some(self.deadline)
    }

    fn overdue(&self, _has_met: bool, _heard_at: &mut HeardAt<'_>) -> Failure {
        Failure::unreachable("the load did not end in time")
    }

    fn has_done(&self) -> bool {
        self.results.len() >= self.wanted
    }
}
