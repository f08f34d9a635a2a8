use std::time::Duration;

use base::Instant;
use base::ledger::{PAGE_SIZE, PageIndex, Pages};
use node::{BlockKind, BlockRequest, Card};
use rustix::time::{ClockId, clock_gettime};

use crate::load::{DEPTH_MAX, Histogram, LoadResult, LoadSpec, REQUEST_MAX};
use crate::plan::{Plan, RolePlan};

/// The load of a card: keeps requests under way for the time it is given, once.
///
/// It keeps nothing in the ledger. A successor of a card that died finds requests under way that are not its own, and
/// says so as errors instead of beginning anew.
pub(super) struct Load {
    loan: usize,
    spec: LoadSpec,
    phase: Phase,
    random: u64,
    /// Which request comes next, for a sequential load.
    next: u64,
    /// By the id of a request.
    under_way: Vec<UnderWay>,
    in_flight: usize,
    latencies: Histogram,
    result: LoadResult,
}

/// A place among the requests under way: its pages, used again for each request, and when it was last submitted.
struct UnderWay {
    pages: Vec<PageIndex>,
    submitted: Instant,
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
            spec: LoadSpec {
                depth: spec.depth.clamp(1, DEPTH_MAX),
                bytes: spec.bytes.clamp(1, REQUEST_MAX),
                ..spec
            },
            phase: Phase::Waiting,
            random: seed | 1,
            next: 0,
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
            const { assert!(DEPTH_MAX as usize * (REQUEST_MAX as usize / PAGE_SIZE) <= Pages::CAPACITY) };
            let count = (self.spec.bytes as usize).div_ceil(PAGE_SIZE);
            for id in 0..u32::from(self.spec.depth) {
                let page = |_| pages.alloc().expect("an unused pool has the pages of all requests");
                self.under_way.push(UnderWay { pages: (0..count).map(page).collect(), submitted: now });
                self.submit(driver, id, now);
            }
        });
        true
    }

    fn go_on(&mut self, card: &mut Card<'_>, now: Instant, since: Instant, cpu: Duration) -> bool {
        // Without this look every turn of a spinning card would be a step with a commit.
        if card.borrowed(self.loan).is_none_or(|drive| !drive.driver.has_completion()) {
            return false;
        }
        let is_over = now.since(since) >= Duration::from_millis(self.spec.duration_ms);
        card.drive_step(now, self.loan, |driver, pages| {
            while let Some((id, result)) = driver.poll_completion() {
                let Some(place) = self.under_way.get(id as usize) else { continue };
                self.in_flight -= 1;
                match result {
                    Ok(()) => self.result.requests += 1,
                    Err(_) => self.result.errors += 1,
                }
                self.latencies.add(now.since(place.submitted));
                // A drive that refuses is not asked again.
                if is_over || result.is_err() {
                    place.pages.iter().for_each(|page| pages.release(*page));
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
        let blocks = self.spec.bytes / geometry.block_size;
        let places = geometry.blocks / u64::from(blocks).max(1);
        let place = if self.spec.sequential { self.next } else { self.next_random() };
        self.next += 1;
        let is_write = self.next_random() % 100 < self.spec.write_percent.into();
        let kind = if is_write { BlockKind::Write } else { BlockKind::Read };
        let lba = place % places.max(1) * u64::from(blocks);
        let under_way = &mut self.under_way[id as usize];
        under_way.submitted = now;
        self.in_flight += 1;
        driver.submit(now, BlockRequest { id, kind, lba, blocks, fua: false, pages: &under_way.pages });
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
