//! The load as a virtual machine: Debian's kernel in QEMU uses the borrowed drive with its own NVMe driver, and [`fio`]
//! writes, reads back and verifies in it.
//!
//! Two fio share the write area, each in a loop of its own: a pass writes its half in random order several times, and
//! reads all of it back after each. A phase ends when the last passes have, so all that was written in it was read. The
//! source is not touched; whether it is still what it was is compared on disk at the end.
//!
//! fio measures in the guest. Its clock is set against ours once ([`clock`]), so that kills can be found among its
//! [`waits`]. Left out: what needs no guest, which the tests of `crates/campaign` have.

mod clock;
mod fio;
mod kernel_log;
mod kit;
mod waits;

use std::path::Path;
use std::time::{Duration, Instant};

use base::Random;
use guest::{Accelerator, Error, Job, Kit, Vm};
use program::exit::Failure;

use super::image::{Image, WRITE_AREA};
use super::load::{Finished, Load};
use super::report::{FileSystem, Guest};
use super::show::Show;
use crate::local::{Halt, Interrupt};
use crate::workload::{Model, Tally, Timeline, cover};
use clock::Clock;
use fio::Pass;
pub(super) use kit::kit;
use waits::Kill;

/// fio that run at the same time: while one begins a pass, the other has requests under way.
const LOOPS: u64 = 2;
/// How often the guest is asked how far it is.
const LOOK: Duration = Duration::from_millis(300);
/// Steps of a wait that an interruption may end.
const STEP: Duration = Duration::from_millis(200);
/// From QEMU's start to the drive; many times what it takes.
const BOOT_MAX: Duration = Duration::from_secs(120);
/// For the first requests of a phase.
const BEGIN_MAX: Duration = Duration::from_secs(60);
/// For the passes under way at a phase's end.
const END_MAX: Duration = Duration::from_secs(60);
/// Of the guest's own check of the file system: what takes longer than a few seconds is left to the host.
const CHECKED_BYTES_MAX: u64 = 256 << 20;
const DRIVE: &str = "/dev/nvme0n1";

/// A running machine.
pub(super) struct Machine {
    vm: Vm,
    interrupt: Interrupt,
    origin: Instant,
    clock: Clock,
    /// Where in the drive each fio writes.
    areas: [fio::Area; LOOPS as usize],
    random: Random,
    jobs: Vec<Job>,
    /// Counted by the guest's kernel when the phase began, and when it was last asked.
    begun: Counters,
    seen: Counters,
    looked: Instant,
    /// The next look must see more completions than this for I/O to have gone on after a kill.
    goal: Option<u64>,
    kills: Vec<Kill>,
    timeline: Timeline,
    model: Model,
    is_ext: bool,
    facts: Guest,
    problems: Vec<String>,
}

/// Of the block device, from its first request on.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    completions: u64,
    bytes_read: u64,
}

impl Machine {
    /// Starts QEMU and waits until the guest has its drive.
    pub(super) fn start(
        kit: &Kit,
        socket: &Path,
        image: &Image,
        seed: u64,
        show: &Show,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        show.doing("starting the virtual machine");
        let started = Instant::now();
        let mut model = image.model(seed)?;
        model.leave_region();
        let accelerator = Accelerator::here().map_err(kit::unusable)?;
        let device = program::qemu_args::device("drive", Some("rp1"), socket).to_string();
        let mut vm = Vm::builder(kit).name("demo").device(&device).launch().map_err(kit::unusable)?;
        let kernel = until(interrupt, started + BOOT_MAX, |step| vm.wait_ready_for(step))?;
        until(interrupt, started + BOOT_MAX, |step| vm.wait_for(step, &format!("[ -b {DRIVE} ]")))?;
        let boot_s = started.elapsed().as_secs_f64();
        let qemu = vm.qmp().version().map(|part| part.to_string()).join(".");
        show.note(&format!("Linux {kernel} in QEMU {qemu} has found the drive after {boot_s:.1} s"));
        let clock = Clock::set(&mut vm).map_err(broken)?;
        let origin = Instant::now();
        let half = WRITE_AREA / LOOPS;
        let area = |index: u64| fio::Area { offset: model.start() + index * half, bytes: half };
        Ok(Self {
            vm,
            interrupt: interrupt.clone(),
            origin,
            clock,
            areas: std::array::from_fn(|index| area(index as u64)),
            random: Random::of(seed, "guest"),
            jobs: Vec::new(),
            begun: Counters::default(),
            seen: Counters::default(),
            looked: origin,
            goal: None,
            kills: Vec::new(),
            timeline: Timeline::new(),
            model,
            is_ext: image.is_ext() && image.source_bytes()? <= CHECKED_BYTES_MAX,
            facts: Guest {
                qemu,
                accelerator: accelerator.name().to_owned(),
                kernel,
                boot_s,
                ..Guest::default()
            },
            problems: Vec::new(),
        })
    }

    /// Asks the guest's kernel how many requests of the drive have completed.
    fn look(&mut self) -> Result<(), Failure> {
        // Without a program: starting one takes a translated processor long.
        let text = self.vm.check("read -r line </sys/block/nvme0n1/stat; echo $line").map_err(broken)?;
        self.seen = Counters::parse(&text)
            .ok_or_else(|| Failure::failed(format_args!("the guest counts its requests as `{text}`")))?;
        self.looked = Instant::now();
        Ok(())
    }

    /// Waits for both fio and takes what they found.
    fn collect(&mut self) -> Result<Tally, Failure> {
        self.vm.check(&fio::stop()).map_err(broken)?;
        for job in std::mem::take(&mut self.jobs) {
            // How it ended is in its reports.
            self.vm.wait(job, END_MAX).map_err(broken)?;
        }
        let passes = fio::parse(&self.vm.check(&fio::collect()).map_err(broken)?);
        let mut tally = Tally::default();
        for pass in &passes {
            self.add(&mut tally, pass);
        }
        let waits: Vec<_> =
            passes.iter().flat_map(|pass| &pass.waits).map(|wait| self.clock.translate(wait)).collect();
        let waits = waits::since(self.origin, &waits);
        for wait in &waits {
            cover(&mut self.timeline, wait.end, wait.length);
            tally.longest_gap = tally.longest_gap.max(wait.length);
        }
        let kills = std::mem::take(&mut self.kills);
        tally.recoveries = kills.iter().map(|kill| kill.recovery(&waits)).collect();
        Ok(tally)
    }

    fn add(&mut self, tally: &mut Tally, pass: &Pass) {
        tally.completions += pass.completions;
        tally.bytes_verified += pass.bytes_verified;
        tally.corrupted_bytes += pass.corrupted_bytes;
        tally.io_errors += pass.io_errors;
        self.problems.extend(pass.complaint.clone());
    }

    /// The guest's kernel log, or what came from its console when nobody answers in it.
    fn take_kernel_log(&mut self) {
        let messages = self.vm.kernel_log().unwrap_or_else(|error| {
            self.problems.push(format!("the guest's kernel log is that of its console: {error}"));
            guest::parse_kernel_log(&self.vm.console())
        });
        let text = |chosen: fn(&guest::Message) -> bool| {
            messages.iter().filter(|message| chosen(message)).map(|message| message.text.clone()).collect()
        };
        self.facts.trouble = text(kernel_log::is_of_the_drive);
        self.facts.highlights = text(kernel_log::is_highlight);
        self.facts.kernel_log = text(|_| true);
        let lines = &self.facts.trouble;
        if let Some(first) = lines.first() {
            let count = lines.len();
            self.problems
                .push(format!("{count} lines of the guest's kernel log are trouble, such as: {first}"));
        }
    }

    fn check_file_system(&mut self) {
        let found = self.vm.run_for(END_MAX, &format!("e2fsck -fn {DRIVE}"));
        match found {
            Ok(output) => {
                let found = FileSystem::checked(output.status == 0, &output.text);
                if !found.clean {
                    self.problems
                        .push(format!("the file system is not clean in the guest: {}", found.summary));
                }
                self.facts.file_system = Some(found);
            }
            Err(error) => self.problems.push(format!("the guest cannot check the file system: {error}")),
        }
    }
}

impl Load for Machine {
    fn origin(&self) -> Instant {
        self.origin
    }

    fn begin(&mut self) -> Result<(), Halt> {
        self.look()?;
        self.begun = self.seen;
        self.vm.check(&fio::prepare()).map_err(broken)?;
        for (index, area) in self.areas.into_iter().enumerate() {
            let seed = self.random.below(1 << 31);
            let job = self.vm.start(&fio::work(DRIVE, index, area, seed)).map_err(broken)?;
            self.jobs.push(job);
        }
        // Both are at work when more requests have completed than one can have under way.
        let deadline = Instant::now() + BEGIN_MAX;
        while self.seen.completions <= self.begun.completions + fio::DEPTH {
            self.interrupt.check()?;
            if Instant::now() > deadline {
                let seconds = BEGIN_MAX.as_secs();
                return Err(Failure::failed(format_args!(
                    "fio in the guest has done nothing in {seconds} s"
                ))
                .into());
            }
            self.check()?;
            self.look()?;
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Failure> {
        for job in &self.jobs {
            if self.vm.has_ended(job).map_err(broken)? {
                // Its report says why.
                return Err(Failure::failed("fio in the guest could not go on"));
            }
        }
        if self.looked.elapsed() > LOOK {
            self.look()?;
        }
        Ok(())
    }

    fn so_far(&mut self) -> Tally {
        // Nothing reads but the fio that verify.
        let read = self.seen.bytes_read.saturating_sub(self.begun.bytes_read);
        Tally { bytes_verified: read, ..Tally::default() }
    }

    fn killed(&mut self, now: Instant) {
        self.kills.push(Kill { at: now.saturating_duration_since(self.origin) });
        self.goal = Some(u64::MAX);
    }

    fn is_recovering(&mut self) -> Result<bool, Failure> {
        let Some(goal) = self.goal else { return Ok(false) };
        self.look()?;
        if goal == u64::MAX {
            // Whatever was under way may have been done before the kill.
            self.goal = Some(self.seen.completions + LOOPS * fio::DEPTH);
        } else if self.seen.completions > goal {
            self.goal = None;
        }
        Ok(self.goal.is_some())
    }

    fn end(&mut self) -> Tally {
        self.goal = None;
        self.collect().unwrap_or_else(|failure| {
            self.problems.push(failure.message().to_owned());
            // Requests that nobody knows the end of.
            Tally { io_errors: 1, ..Tally::default() }
        })
    }

    fn finish(mut self: Box<Self>, show: &Show) -> Finished {
        if self.is_ext && self.problems.is_empty() {
            show.doing("checking the file system in the guest");
            self.check_file_system();
        }
        show.doing("powering the guest off");
        self.take_kernel_log();
        let Self { vm, timeline, model, facts, mut problems, .. } = *self;
        if let Err(error) = vm.shutdown() {
            problems.push(format!("the virtual machine did not end in order: {error}"));
        }
        Finished { rest: Tally::default(), timeline, model: Some(model), guest: Some(facts), problems }
    }
}

impl Counters {
    /// Of the kernel's `stat` (Documentation/block/stat.rst): reads, merges, sectors read, time, writes and so on.
    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let (reads, sectors, writes) = (numbers.first()?, numbers.get(2)?, numbers.get(4)?);
        Some(Self { completions: reads.checked_add(*writes)?, bytes_read: sectors.checked_mul(512)? })
    }
}

/// Tries again and again, a step at a time, until somebody interrupts or the time is over.
fn until<T>(
    interrupt: &Interrupt,
    deadline: Instant,
    mut attempt: impl FnMut(Duration) -> Result<T, Error>,
) -> Result<T, Halt> {
    loop {
        let result = attempt(STEP);
        interrupt.check()?;
        match result {
            Ok(value) => return Ok(value),
            Err(Error::TimedOut { .. }) if Instant::now() < deadline => {}
            Err(error) => return Err(broken(error).into()),
        }
    }
}

/// Of a machine that does not do what it should.
fn broken(error: Error) -> Failure {
    Failure::failed(format_args!("the virtual machine: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_are_read() {
        let counters = Counters::parse("7736 0 529432 2625 7568 0 360448 3206 0 4248").unwrap();
        assert_eq!((counters.completions, counters.bytes_read), (7736 + 7568, 529_432 * 512));
        for wrong in ["", "1 2 3", "1 2 x 4 5", "1 0 18446744073709551615 0 1"] {
            assert!(Counters::parse(wrong).is_none(), "{wrong}");
        }
    }
}
