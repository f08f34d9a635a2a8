//! What is counted while the workload runs: bytes, errors, the gaps between completions, recoveries.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Width of a slot of the timeline.
pub(crate) const SLOT: Duration = Duration::from_millis(10);
/// Slots kept; what comes later counts into the last one.
const SLOTS_MAX: usize = 30 * 60 * 100;

/// What was counted over one phase.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Requests that were answered.
    pub completions: u64,
    /// Bytes that were read and right.
    pub bytes_verified: u64,
    /// Bytes that were read and wrong.
    pub corrupted_bytes: u64,
    /// Requests that were answered with an error, or not at all.
    pub io_errors: u64,
    /// Of these, flushes: the honest answer where what they should make durable is gone.
    pub failed_flushes: u64,
    /// The longest time without a completion.
    pub longest_gap: Duration,
    /// For each kill: from it to the first completion of a request that was sent after it.
    pub recoveries: Vec<Duration>,
}

/// The longest gap that touches each slot of time, from the recorder's start; zero before the first completion.
pub type Timeline = Vec<Duration>;

/// Shared by the workload, which reports to it, and the phases, which read it.
#[derive(Debug)]
pub struct Recorder {
    origin: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tally: Tally,
    last_completion: Option<Instant>,
    kill: Option<Instant>,
    timeline: Timeline,
}

impl Recorder {
    /// Begins to count, at `origin`.
    pub fn new(origin: Instant) -> Self {
        Self { origin, state: Mutex::default() }
    }

    /// When it began.
    pub fn origin(&self) -> Instant {
        self.origin
    }

    /// A request sent at `submitted` completed: `verified` bytes of it were right and `corrupted` wrong.
    pub fn completed(&self, submitted: Instant, now: Instant, verified: u64, corrupted: u64) {
        let mut state = self.lock();
        state.tally.completions += 1;
        state.tally.bytes_verified += verified;
        state.tally.corrupted_bytes += corrupted;
        if let Some(kill) = state.kill.filter(|kill| submitted >= *kill) {
            state.tally.recoveries.push(now - kill);
            state.kill = None;
        }
        let gap = state.last_completion.map_or(Duration::ZERO, |last| now - last);
        state.last_completion = Some(now);
        state.tally.longest_gap = state.tally.longest_gap.max(gap);
        cover(&mut state.timeline, now.saturating_duration_since(self.origin), gap);
    }

    /// A request failed. A failure is no completion: it ends no gap and no recovery.
    pub fn failed(&self, is_flush: bool) {
        let tally = &mut self.lock().tally;
        tally.io_errors += 1;
        tally.failed_flushes += u64::from(is_flush);
    }

    /// A card was killed just now.
    pub fn killed(&self, now: Instant) {
        self.lock().kill = Some(now);
    }

    /// A card was killed, and no request sent after that has completed.
    pub fn is_recovering(&self) -> bool {
        self.lock().kill.is_some()
    }

    /// What was counted since the last [`take`](Self::take).
    pub fn peek(&self) -> Tally {
        self.lock().tally.clone()
    }

    /// The longest gap since the last call.
    pub fn take_longest_gap(&self) -> Duration {
        std::mem::take(&mut self.lock().tally.longest_gap)
    }

    /// Ends a phase: returns what was counted, and counts from zero. A gap or a recovery that has not ended counts as
    /// long as it is now.
    pub fn take(&self, now: Instant) -> Tally {
        let mut state = self.lock();
        let mut tally = std::mem::take(&mut state.tally);
        if let Some(last) = state.last_completion {
            tally.longest_gap = tally.longest_gap.max(now.saturating_duration_since(last));
        }
        tally.recoveries.extend(state.kill.take().map(|kill| now - kill));
        tally
    }

    /// The gaps over time, so far.
    pub fn timeline(&self) -> Timeline {
        self.lock().timeline.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Counters have no invariant that a panic elsewhere could have broken.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Puts a gap that ended at `end` into a timeline. It covers all of its time, so that a long one shows as long.
pub(crate) fn cover(timeline: &mut Timeline, end: Duration, gap: Duration) {
    let slot = |at: Duration| (at.as_nanos() / SLOT.as_nanos()).min(SLOTS_MAX as u128 - 1) as usize;
    let (first, last) = (slot(end.saturating_sub(gap)), slot(end));
    if timeline.len() <= last {
        timeline.resize(last + 1, Duration::ZERO);
    }
    for covered in &mut timeline[first..=last] {
        *covered = gap.max(*covered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(origin: Instant, milliseconds: u64) -> Instant {
        origin + Duration::from_millis(milliseconds)
    }

    #[test]
    fn gaps_are_between_completions_and_belong_to_their_phase() {
        let start = Instant::now();
        let recorder = Recorder::new(start);
        for end in [5, 8, 48, 50] {
            recorder.completed(start, at(start, end), 4096, 0);
        }
        let tally = recorder.take(at(start, 55));
        assert_eq!((tally.completions, tally.bytes_verified), (4, 16384));
        assert_eq!(tally.longest_gap, Duration::from_millis(40));
        recorder.completed(start, at(start, 57), 0, 3);
        let tally = recorder.take(at(start, 77));
        assert_eq!(tally.longest_gap, Duration::from_millis(20), "a gap that has not ended counts");
        assert_eq!((tally.completions, tally.corrupted_bytes), (1, 3));
        let milliseconds: Vec<_> = recorder.timeline().iter().map(Duration::as_millis).collect();
        assert_eq!(milliseconds, [40, 40, 40, 40, 40, 7]);
    }

    #[test]
    fn a_recovery_ends_with_a_request_sent_after_the_kill() {
        let start = Instant::now();
        let recorder = Recorder::new(start);
        recorder.killed(at(start, 10));
        // This answer lay in the socket when the card died.
        recorder.completed(at(start, 9), at(start, 11), 0, 0);
        assert!(recorder.is_recovering());
        recorder.completed(at(start, 12), at(start, 16), 0, 0);
        recorder.completed(at(start, 13), at(start, 17), 0, 0);
        assert!(!recorder.is_recovering());
        assert_eq!(recorder.take(at(start, 20)).recoveries, [Duration::from_millis(6)]);
    }

    #[test]
    fn a_recovery_that_never_ends_is_reported() {
        let start = Instant::now();
        let recorder = Recorder::new(start);
        recorder.killed(at(start, 10));
        (0..8).for_each(|_| recorder.failed(false));
        let tally = recorder.take(at(start, 90));
        assert_eq!((tally.recoveries, tally.io_errors), (vec![Duration::from_millis(80)], 8));
        assert!(!recorder.is_recovering());
    }
}
