//! The life of a node's cards: when one starts, and what must have ended before it does.

use core::time::Duration;

use base::{Instant, Rule, RuleSet};

use super::event::Event;
use super::watchdog::{Beat, Condition, Finding, Process, Watchdog};
use super::{Effect, Output};

/// How long the agent waits at a stretch for the disk requests of a dead card: nearly all disks are done by then.
const FIRST_SLICE: Duration = Duration::from_millis(20);
/// How long after that, each time it looks.
const NEXT_SLICE: Duration = Duration::from_millis(1);
/// How often it looks.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);
/// A disk that takes longer than this is worth a line in the log,
const DRAIN_QUIET: Duration = Duration::from_secs(1);
/// and another one each time this is over.
const DRAIN_REPEAT: Duration = Duration::from_secs(10);
/// A card that dies sooner than this has hardly begun.
const SHORT_LIFE: Duration = Duration::from_millis(50);
/// So many short lives in a row, and the next card waits for [`RESTART_PAUSE`].
const SHORT_LIVES: u32 = 10;
/// Also the first pause after a start that failed; each further failure doubles it, six times at most.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const RESTART_DOUBLINGS: u32 = 6;

/// What became of the cards so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct CardRecord {
    /// The present card's process, if there is one.
    pub pid: Option<i32>,
    /// Its generation.
    pub generation: u64,
    /// How many cards have died.
    pub restarts: u32,
    /// Whether it serves.
    pub running: bool,
    /// From the last death to the moment the successor served.
    pub last_recovery: Option<Duration>,
    /// Disk requests of the dead card that are still in flight: the next card waits for them.
    pub draining: Option<u32>,
    /// How the present card is doing.
    pub condition: Condition,
    /// Starts in a row that failed: there is no card, and the next one is tried again and again.
    pub failed_starts: u32,
}

/// How a card ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this status.
    Status(i32),
    /// This signal ended it.
    Signal(i32),
}

/// The disks have not ended yet what a dead card has asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// How many requests there still are.
    pub in_flight: u32,
    /// What the system said, if it could not wait; else empty.
    pub why: String,
}

/// Where the card's life stands.
///
/// ```text
///  Due --time has come--> Starting --started--> Serving --card dies--> Draining --nothing in flight--> Due
///   ^                       |   |                                       ^    |
///   +--not started: later---+   +--started half-way, and killed---------+    +--the node ends--> Over
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The next card is to be started at this time.
    Due(Instant),
    /// It was asked for.
    Starting,
    /// A card runs.
    Serving,
    /// Disk requests of the dead card may still have an effect, so there must be no successor yet. There is no upper
    /// bound: whoever hangs the disk decides.
    Draining(Drain),
    /// The last card is dead, and nothing that it has asked for has an effect any more.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Drain {
    since: Instant,
    /// `None`: somebody is looking just now.
    look_at: Option<Instant>,
    speak_at: Instant,
}

/// What tells how soon the next card may start.
#[derive(Default)]
struct Setbacks {
    /// Cards in a row that hardly lived.
    short_lives: u32,
    /// Starts in a row that failed.
    failed_starts: u32,
}

impl Setbacks {
    fn pause(&self) -> Duration {
        match (self.failed_starts, self.short_lives) {
            (0, lives) if lives < SHORT_LIVES => Duration::ZERO,
            (0, _) => RESTART_PAUSE,
            (failures, _) => RESTART_PAUSE * (1 << (failures - 1).min(RESTART_DOUBLINGS)),
        }
    }
}

/// The life of a node's cards.
pub(super) struct Life {
    rules: RuleSet,
    phase: Phase,
    setbacks: Setbacks,
    watchdog: Watchdog,
    /// When the card is to be looked at.
    look_at: Option<Instant>,
    started_at: Option<Instant>,
    died_at: Option<Instant>,
    /// No card follows the present one.
    is_last: bool,
    pub(super) record: CardRecord,
}

impl Life {
    /// The first card is due.
    pub(super) fn new(rules: RuleSet, now: Instant) -> Self {
        Self {
            rules,
            phase: Phase::Due(now),
            setbacks: Setbacks::default(),
            watchdog: Watchdog::default(),
            look_at: None,
            started_at: None,
            died_at: None,
            is_last: false,
            record: CardRecord::default(),
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::Due(at) => Some(at),
            Phase::Serving => self.look_at,
            Phase::Draining(drain) => drain.look_at,
            Phase::Starting | Phase::Over => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, out: &mut Output) {
        match &mut self.phase {
            Phase::Due(at) if *at <= now => self.start(out),
            Phase::Draining(drain) if drain.look_at.is_some_and(|at| at <= now) => {
                drain.look_at = None;
                let first = self.record.draining.is_none();
                out.effect(Effect::Drain { wait: if first { FIRST_SLICE } else { NEXT_SLICE } });
            }
            Phase::Serving if self.look_at.is_some_and(|at| at <= now) => {
                self.look_at = None;
                out.effect(Effect::Look);
            }
            _ => {}
        }
    }

    /// The generation is raised before each card, so that no two cards seal with one key.
    fn start(&mut self, out: &mut Output) {
        let is_raised = self.rules.has(Rule::RaiseGeneration) || self.record.generation == 0;
        self.record.generation += u64::from(is_raised);
        self.phase = Phase::Starting;
        out.effect(Effect::Start { generation: self.record.generation });
    }

    pub(super) fn handle_started(&mut self, now: Instant, pid: i32) {
        self.phase = Phase::Serving;
        self.setbacks.failed_starts = 0;
        self.record.failed_starts = 0;
        self.record.pid = Some(pid);
        self.started_at = Some(now);
        self.watchdog.begin(now);
        self.look_at = Some(now + self.watchdog.pause());
    }

    pub(super) fn handle_start_failed(&mut self, now: Instant, error: String, out: &mut Output) {
        self.setbacks.failed_starts = self.setbacks.failed_starts.saturating_add(1);
        self.record.failed_starts = self.setbacks.failed_starts;
        let again_in = self.setbacks.pause();
        self.phase = Phase::Due(now + again_in);
        out.event(Event::StartFailed { error, again_in });
    }

    pub(super) fn handle_running(&mut self, now: Instant, out: &mut Output) {
        self.record.running = true;
        let Some(died_at) = self.died_at.take() else { return };
        let after = now.since(died_at);
        self.record.last_recovery = Some(after);
        out.event(Event::CardRecovered { generation: self.record.generation, after });
    }

    pub(super) fn handle_exit(&mut self, now: Instant, exit: Exit, out: &mut Output) {
        let generation = self.record.generation;
        out.event(match exit {
            Exit::Signal(signal) => Event::CardKilled { signal, generation },
            Exit::Status(status) => Event::CardEnded { status, generation },
        });
        self.died_at.get_or_insert(now);
        self.record.restarts += 1;
        let is_short = self.started_at.take().is_none_or(|at| now.since(at) < SHORT_LIFE);
        self.setbacks.short_lives = if is_short { self.setbacks.short_lives + 1 } else { 0 };
        self.forget_card();
        if self.rules.has(Rule::DrainBeforeStart) {
            self.begin_drain(now);
        } else {
            self.phase = Phase::Due(now + self.setbacks.pause());
        }
        self.handle_timeout(now, out);
    }

    fn forget_card(&mut self) {
        self.look_at = None;
        self.record.running = false;
        self.record.pid = None;
        self.record.condition = Condition::Well;
    }

    fn begin_drain(&mut self, now: Instant) {
        self.phase = Phase::Draining(Drain { since: now, look_at: Some(now), speak_at: now + DRAIN_QUIET });
    }

    pub(super) fn handle_drained(&mut self, now: Instant, result: Result<(), Unfinished>, out: &mut Output) {
        let Phase::Draining(drain) = &mut self.phase else { return };
        let since = now.since(drain.since);
        match result {
            Err(Unfinished { in_flight, why }) => {
                self.record.draining = Some(in_flight);
                drain.look_at = Some(now + DRAIN_PAUSE);
                if drain.speak_at <= now {
                    drain.speak_at = now + DRAIN_REPEAT;
                    out.event(Event::Draining { in_flight, since, why });
                }
            }
            Ok(()) => {
                if since >= DRAIN_QUIET {
                    out.event(Event::Drained { after: since });
                }
                self.record.draining = None;
                let due = Phase::Due(now + self.setbacks.pause());
                self.phase = if self.is_last { Phase::Over } else { due };
                self.handle_timeout(now, out);
            }
        }
    }

    pub(super) fn handle_beat(
        &mut self,
        now: Instant,
        beat: Beat,
        ask: impl FnOnce() -> Option<Process>,
        out: &mut Output,
    ) {
        let Some(pid) = self.record.pid else { return };
        let generation = self.record.generation;
        let finding = self.watchdog.look(now, beat, ask);
        self.record.condition = self.watchdog.condition();
        self.look_at = Some(now + self.watchdog.pause());
        match finding {
            Finding::Nothing => {}
            Finding::Stuck(state) => out.event(Event::CardStuck { pid, generation, state }),
            Finding::Free(after) => out.event(Event::CardFree { pid, generation, after }),
            Finding::Replace(fault) => {
                out.event(Event::CardReplaced { pid, generation, fault });
                out.effect(Effect::Kill);
            }
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    pub(super) fn handle_end(&mut self, now: Instant, out: &mut Output) {
        self.is_last = true;
        self.forget_card();
        self.begin_drain(now);
        self.handle_timeout(now, out);
    }
}
