use std::time::Duration;

use base::Instant;
use base::ledger::PageIndex;
use node::{BlockKind, BlockRequest, Card};
use rustix::time::{ClockId, clock_gettime};

use crate::load::{DEPTH_MAX, Histogram, LoadResult, LoadSpec, READ_BYTES};
use crate::plan::{Plan, RolePlan};

/// The load of a card: keeps reads under way for the time it is given, once.
///
/// It keeps nothing in the ledger. A successor of a card that died finds reads under way that are not its own, and
/// says so as errors instead of beginning anew.
pub(super) struct Load {
    loan: usize,
    spec: LoadSpec,
    phase: Phase,
    random: u64,
    /// By the id of a request: its page, and when it was submitted.
    under_way: Vec<(PageIndex, Instant)>,
    in_flight: usize,
    latencies: Histogram,
    result: LoadResult,
}

/// ```text
/// Waiting --drive usable--> Running --last completion--> Ended --told--> Told
/// Waiting --a predecessor has begun--> Ended
/// ```
enum Phase {
    Waiting,
    Running { since: Instant, cpu: Duration },
    Ended,
    Told,
}

impl Load {
    /// The load that the plan has, if any; its drive is then used by it alone.
    pub(super) fn of_plan(plan: &Plan, card: &mut Card<'_>) -> Option<Self> {
        let (loan, spec) = plan.loans.iter().enumerate().find_map(|(index, loan)| match &loan.role {
            RolePlan::Borrow { load, .. } => load.map(|load| (index, load)),
            RolePlan::Lend { .. } => None,
        })?;
        card.use_directly(loan);
        let seed = u64::from_le_bytes(plan.seed[..8].try_into().expect("a seed has 32 bytes"));
        Some(Self {
            loan,
            spec: LoadSpec { depth: spec.depth.clamp(1, DEPTH_MAX), ..spec },
            phase: Phase::Waiting,
            random: seed | 1,
            under_way: Vec::new(),
            in_flight: 0,
            latencies: Histogram::new(),
            result: LoadResult::default(),
        })
    }

    /// Ends what has completed and submits more. True if there was anything.
    pub(super) fn drive(&mut self, card: &mut Card<'_>, now: Instant) -> bool {
        match self.phase {
            Phase::Waiting => self.begin(card, now),
            Phase::Running { since, cpu } => self.go_on(card, now, since, cpu),
            Phase::Ended | Phase::Told => false,
        }
    }

    /// What came of it, once, when it has ended.
    pub(super) fn take_result(&mut self) -> Option<(usize, LoadResult)> {
        matches!(self.phase, Phase::Ended).then(|| {
            self.phase = Phase::Told;
            (self.loan, self.result)
        })
    }

    fn begin(&mut self, card: &mut Card<'_>, now: Instant) -> bool {
        let Some(drive) = card.borrowed(self.loan) else { return false };
        if !drive.driver.is_ready() || drive.driver.geometry().is_none() {
            return false;
        }
        if card.pages(self.loan).used() > 0 {
            self.result.errors = u64::from(self.spec.depth);
            self.phase = Phase::Ended;
            return true;
        }
        self.phase = Phase::Running { since: now, cpu: cpu_time() };
        card.drive_step(now, self.loan, |driver, pages| {
            for id in 0..u32::from(self.spec.depth) {
                let page = pages.alloc().expect("an unused pool has a page for each read");
                self.under_way.push((page, now));
                self.submit(driver, id, now);
            }
        });
        true
    }

    fn go_on(&mut self, card: &mut Card<'_>, now: Instant, since: Instant, cpu: Duration) -> bool {
        // Without this look every turn of a spinning card would be a step with a commit.
        if card.borrowed(self.loan).is_none_or(|drive| drive.driver.in_flight() == self.in_flight) {
            return false;
        }
        let is_over = now.since(since) >= Duration::from_millis(self.spec.duration_ms);
        card.drive_step(now, self.loan, |driver, pages| {
            while let Some((id, result)) = driver.poll_completion() {
                let Some((page, submitted)) = self.under_way.get(id as usize).copied() else { continue };
                self.in_flight -= 1;
                match result {
                    Ok(()) => self.result.reads += 1,
                    Err(_) => self.result.errors += 1,
                }
                self.latencies.add(now.since(submitted));
                // A drive that refuses is not asked again.
                if is_over || result.is_err() {
                    pages.release(page);
                } else {
                    self.submit(driver, id, now);
                }
            }
        });
        if self.in_flight == 0 {
            self.end(now.since(since), cpu_time().saturating_sub(cpu));
        }
        true
    }

    fn submit(&mut self, driver: &mut node::DriveDriver<'_>, id: u32, now: Instant) {
        let Some(geometry) = driver.geometry() else { return };
        let blocks = READ_BYTES / geometry.block_size;
        let places = geometry.blocks / u64::from(blocks);
        let lba = self.next_random() % places.max(1) * u64::from(blocks);
        let (page, submitted) = &mut self.under_way[id as usize];
        *submitted = now;
        self.in_flight += 1;
        driver.submit(
            now,
            BlockRequest { id, kind: BlockKind::Read, lba, blocks, fua: false, pages: &[*page] },
        );
    }

    fn end(&mut self, elapsed: Duration, cpu: Duration) {
        self.result.elapsed_ns = elapsed.as_nanos() as u64;
        self.result.cpu_ns = cpu.as_nanos() as u64;
        self.result.p50_ns = self.latencies.quantile_ns(0.5);
        self.result.p99_ns = self.latencies.quantile_ns(0.99);
        self.result.p999_ns = self.latencies.quantile_ns(0.999);
        self.result.max_ns = self.latencies.max_ns();
        self.phase = Phase::Ended;
    }

    /// A linear congruential generator; its upper half is random enough to choose places.
    fn next_random(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 32
    }
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
