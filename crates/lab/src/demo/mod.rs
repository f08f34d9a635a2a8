//! `causeway demo`: a drive is lent, borrowed and used on this machine, while its network and its processes fail.
//!
//! Two nodes run as children of the same program, and are reached only in the ways that anybody has: the line, the NBD
//! or vfio-user socket, the control socket, signals. A [`load`] reads, writes and verifies through them: a [`client`]
//! in this process, or with `--vm` a [`vm`] with fio in it. [`phases`] does the harm; [`report`], [`words`], [`page`]
//! and [`plot`] say what came out. At the end both nodes are stopped in order and the image is compared on disk.
//!
//! Everything lies in a private folder that goes with the demo, also when it is interrupted. Left out: performance,
//! which `causeway bench` measures.

mod client;
mod image;
mod load;
mod network;
mod page;
mod phases;
mod plot;
mod report;
mod show;
mod vm;
mod words;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use program::cli::{ByteSize, Output, print};
use program::exit::Failure;
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::{DemoArgs, choose_seed};
use crate::local::{Halt, Interrupt, Node, Scratch};
use crate::workload::{Model, Tally, Timeline};
use client::Client;
use image::Image;
use load::Load;
use network::Network;
use phases::Stage;
use report::Report;
use show::Show;
use vm::Machine;

/// How often a second signal is looked for.
const IMPATIENCE: Duration = Duration::from_millis(20);

/// Runs the demo, prints its result and writes its page.
///
/// # Errors
/// Exit 1 when a byte was wrong, an I/O failed or a node misbehaved; 2 to 4 when it could not begin. An interruption is
/// no error: what ran until then is judged.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let interrupt = Interrupt::install()?;
    let seed = args.seed.map_or_else(choose_seed, Ok)?;
    let mut demo = Demo {
        report: Report { version: report::VERSION, seed, ..Report::default() },
        timeline: Timeline::new(),
        show: Show::start(if args.vm { &words::GUEST } else { &words::CLIENT }),
        interrupt,
    };
    let result = demo.perform(args);
    demo.show.finish();
    match result {
        Ok(()) => {}
        Err(Halt::Interrupted) => demo.report.interrupted = true,
        Err(Halt::Failed(failure)) => return Err(failure),
    }
    demo.conclude(started);
    let report = &demo.report;
    print(&match args.output.format {
        Output::Text => report.text(),
        Output::Json => report.json(),
    })?;
    match report.problems.as_slice() {
        [] => Ok(()),
        problems => Err(Failure::failed(format_args!("the demo found: {}", problems.join("; ")))),
    }
}

struct Demo {
    report: Report,
    timeline: Timeline,
    show: Show,
    interrupt: Interrupt,
}

impl Demo {
    /// From the image to its comparison. An error means that nothing ran that could be judged.
    fn perform(&mut self, args: &DemoArgs) -> Result<(), Halt> {
        let seed = self.report.seed;
        let scratch = Scratch::create("demo")?;
        self.show.doing("preparing the image");
        let image = Image::prepare(&scratch, args.image.as_deref(), seed, &self.interrupt)?;
        self.report.image.source.clone_from(&image.description);
        let kit = args.vm.then(|| vm::kit(&self.show, &self.interrupt)).transpose()?;
        self.show.doing("starting the manager and the switches");
        let interrupt = self.interrupt.clone();
        let mut network = Network::start(&scratch, &interrupt)?;
        self.show.doing("starting the lender");
        let (lender, line) = network.lend(&image.path)?;
        self.show.doing("starting the borrower");
        let (borrower, socket) = network.borrow(&line, args.vm)?;
        self.show.note(&format!(
            "lending {} to a second node over two sealed rails of this machine, one by two switches; seed {seed}",
            image.description
        ));
        let mut load: Box<dyn Load> = match kit {
            None => Box::new(Client::start(&socket, image.model(seed)?)?),
            Some(kit) => Box::new(Machine::start(&kit, &socket, &image, seed, &self.show, &self.interrupt)?),
        };

        self.phases((&lender, &borrower), &mut network, &mut *load, args.pace);
        // From here on, a signal means that this takes too long.
        self.interrupt.take();
        let model = self.finish_unless_hurried(load, [lender.pid(), borrower.pid()]);
        for node in [borrower, lender] {
            self.show.doing(&format!("stopping the {}", node.role()));
            let stopped = node.stop_unless(&|| self.interrupt.is_set());
            self.note_problem(stopped);
        }
        self.note_problem(network.stop());
        if let Some(model) = model {
            self.compare(&image, model);
        }
        Ok(())
    }

    fn phases(&mut self, nodes: (&Node, &Node), network: &mut Network<'_>, load: &mut dyn Load, pace: u8) {
        let chosen = (self.report.seed, pace);
        let mut stage = Stage::new(nodes, network, load, &self.interrupt, &mut self.show, chosen);
        let result = stage.run();
        (self.report.phases, self.report.events) = (stage.phases, stage.marks);
        match result {
            Ok(()) => {}
            Err(Halt::Interrupted) => self.report.interrupted = true,
            Err(Halt::Failed(failure)) => self.note_problem(Err(failure)),
        }
    }

    /// Ends the load, which may wait for the nodes as long as a request may; a second signal kills them, and it ends at
    /// once.
    fn finish_unless_hurried(&mut self, load: Box<dyn Load>, nodes: [u32; 2]) -> Option<Model> {
        let (interrupt, has_ended) = (self.interrupt.clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    if interrupt.is_set() {
                        // Both are our children, and nobody has waited for them yet.
                        let pids = nodes.iter().filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?));
                        return pids.for_each(|pid| _ = kill_process(pid, Signal::KILL));
                    }
                    std::thread::sleep(IMPATIENCE);
                }
            });
            let model = self.finish(load);
            has_ended.store(true, Ordering::Relaxed);
            model
        })
    }

    /// Ends the load and sums up; returns what the image must contain.
    fn finish(&mut self, load: Box<dyn Load>) -> Option<Model> {
        let finished = load.finish(&self.show);
        self.timeline = finished.timeline;
        self.report.guest = finished.guest;
        self.sum_up(&finished.rest);
        self.report.problems.extend(finished.problems);
        finished.model
    }

    /// `rest` is what the load did after the last phase.
    fn sum_up(&mut self, rest: &Tally) {
        let report = &mut self.report;
        let sum = |count: fn(&report::Phase) -> u64| report.phases.iter().map(count).sum::<u64>();
        let verified = sum(|phase| phase.bytes_verified) + rest.bytes_verified;
        let errors = sum(|phase| phase.io_errors) + rest.io_errors;
        let corrupted = sum(|phase| phase.corrupted_bytes) + rest.corrupted_bytes;
        (report.bytes_verified, report.io_errors, report.corrupted_bytes) = (verified, errors, corrupted);
        if errors > 0 {
            report.problems.push(format!("{errors} requests failed"));
        }
        if corrupted > 0 {
            report.problems.push(format!("{corrupted} bytes were read wrong"));
        }
        let idle = report.phases.iter().filter(|phase| phase.completions == 0);
        let idle: Vec<_> =
            idle.map(|phase| format!("no request completed in phase {}", phase.name)).collect();
        if !report.interrupted {
            report.problems.extend(idle);
        }
    }

    /// Compares the image on disk, which nobody has open any more, with the model.
    fn compare(&mut self, image: &Image, mut model: Model) {
        let total = ByteSize(model.end());
        let show = &self.show;
        let compared = model.check_file(&image.path, |done| {
            show.doing(&format!("comparing the image on disk, {} of {total}", ByteSize(done)));
        });
        match compared {
            Ok(compared) => {
                self.report.image.compared_bytes = compared.bytes;
                self.report.image.corrupted_bytes = compared.corrupted;
                self.report.corrupted_bytes += compared.corrupted;
                if compared.corrupted > 0 {
                    let text = format!("{} bytes of the image are wrong on disk", compared.corrupted);
                    self.report.problems.push(text);
                }
            }
            Err(error) => self.report.problems.push(format!("the image cannot be compared: {error}")),
        }
        if let Some(path) = image.changed_source().filter(|_| self.report.corrupted_bytes > 0) {
            let text = format!("{} was changed by somebody else meanwhile, which can be why", path.display());
            self.report.problems.push(text);
        }
        self.show.doing("checking the file system");
        self.report.image.file_system = image.file_system_check();
    }

    /// The verdict and the page.
    fn conclude(&mut self, started: Instant) {
        let report = &mut self.report;
        report.ok = report.problems.is_empty() && !report.interrupted;
        report.seconds = started.elapsed().as_secs_f64();
        if report.interrupted {
            self.show.note("interrupted; the result is that of what ran until then");
        }
        match page::write(report, &self.timeline) {
            Ok(path) => report.report = path.display().to_string(),
            Err(error) => tracing::warn!(%error, "the page cannot be written"),
        }
    }

    fn note_problem(&mut self, result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.report.problems.push(failure.message().to_owned());
        }
    }
}
