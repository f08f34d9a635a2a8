use std::time::Duration;

use base::ledger::{PAGE_SIZE, PageIndex, Pages};
use base::{Instant, Random};
use node::{BlockKind, BlockRequest, DriveDriver, Geometry};
use rustix::time::{ClockId, clock_gettime};

use super::{DEPTH_MAX, Histogram, LoadResult, LoadSpec, REQUEST_MAX};

/// A load at work on a driver: keeps requests under way for the time it is given, once.
pub(crate) struct Run {
    spec: LoadSpec,
    pattern: Pattern,
    since: Instant,
    cpu: Duration,
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

impl Run {
    /// Submits the first requests. The driver has a geometry and is not used by anyone else.
    pub(crate) fn begin(
        spec: LoadSpec,
        seed: u64,
        driver: &mut DriveDriver<'_>,
        pages: Pages<'_>,
        now: Instant,
    ) -> Self {
        const { assert!(DEPTH_MAX as usize * (REQUEST_MAX as usize / PAGE_SIZE) <= Pages::CAPACITY) };
        let spec = spec.within_bounds();
        let mut run = Self {
            spec,
            pattern: Pattern::new(spec, seed),
            since: now,
            cpu: cpu_time(),
            under_way: Vec::new(),
            in_flight: 0,
            latencies: Histogram::new(),
            result: LoadResult::default(),
        };
        let count = (spec.bytes as usize).div_ceil(PAGE_SIZE);
        for id in 0..u32::from(spec.depth) {
            let page = |_| pages.alloc().expect("an unused pool has the pages of all requests");
            run.under_way.push(UnderWay { pages: (0..count).map(page).collect(), submitted: now });
            run.submit(driver, id, now);
        }
        run
    }

    /// Ends what has completed and submits more.
    pub(crate) fn go_on(&mut self, driver: &mut DriveDriver<'_>, pages: Pages<'_>, now: Instant) {
        let is_over = now.since(self.since) >= Duration::from_millis(self.spec.duration_ms);
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
    }

    /// What came of it, once nothing is under way any more.
    pub(crate) fn result(&self, now: Instant) -> Option<LoadResult> {
        let cpu = || cpu_time().saturating_sub(self.cpu);
        (self.in_flight == 0)
            .then(|| self.result.clone().with_times(now.since(self.since), cpu(), &self.latencies))
    }

    fn submit(&mut self, driver: &mut DriveDriver<'_>, id: u32, now: Instant) {
        let Some(geometry) = driver.geometry() else { return };
        let (kind, lba) = self.pattern.next(geometry);
        let blocks = self.spec.bytes / geometry.block_size;
        let under_way = &mut self.under_way[id as usize];
        under_way.submitted = now;
        self.in_flight += 1;
        driver.submit(now, BlockRequest { id, kind, lba, blocks, fua: false, pages: &under_way.pages });
    }
}

/// What comes next, and where.
pub(crate) struct Pattern {
    spec: LoadSpec,
    random: Random,
    /// Which request comes next, for a sequential load.
    next: u64,
}

impl Pattern {
    pub(crate) fn new(spec: LoadSpec, seed: u64) -> Self {
        Self { spec, random: Random::new(seed), next: 0 }
    }

    /// Reading or writing, and the first block.
    pub(crate) fn next(&mut self, geometry: Geometry) -> (BlockKind, u64) {
        let blocks = u64::from(self.spec.bytes / geometry.block_size).max(1);
        let pattern = (geometry.blocks / blocks).max(1);
        let place = if self.spec.sequential { self.next } else { self.random.next_u64() };
        self.next += 1;
        // A load of one kind needs no lot.
        let is_write = match self.spec.write_percent {
            0 => false,
            100.. => true,
            percent => self.random.below(100) < percent.into(),
        };
        let kind = if is_write { BlockKind::Write } else { BlockKind::Read };
        (kind, place % pattern * blocks)
    }
}

/// Processor time of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVE: Geometry =
        Geometry { block_size: 512, blocks: 803, read_only: false, volatile_cache: false };

    fn spec(write_percent: u8, sequential: bool) -> LoadSpec {
        LoadSpec { bytes: 4096, write_percent, sequential, depth: 1, duration_ms: 1 }
    }

    #[test]
    fn sequential_places_follow_each_other_and_begin_again() {
        let mut pattern = Pattern::new(spec(0, true), 7);
        let found: Vec<u64> = (0..102).map(|_| pattern.next(DRIVE).1).collect();
        assert_eq!((found[0], found[1], found[99], found[100]), (0, 8, 792, 0));
    }

    #[test]
    fn random_places_are_whole_and_inside_and_mixed_as_told() {
        let mut pattern = Pattern::new(spec(30, false), 7);
        let found: Vec<(BlockKind, u64)> = (0..10_000).map(|_| pattern.next(DRIVE)).collect();
        assert!(found.iter().all(|(_, lba)| lba % 8 == 0 && lba + 8 <= DRIVE.blocks));
        let writes = found.iter().filter(|(kind, _)| *kind == BlockKind::Write).count();
        assert!((2800..3200).contains(&writes), "{writes}");
        let mut writer = Pattern::new(spec(100, false), 7);
        assert!((0..100).all(|_| writer.next(DRIVE).0 == BlockKind::Write));
    }
}
