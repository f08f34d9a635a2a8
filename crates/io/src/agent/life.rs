use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use base::times::WATCHDOG;
use tracing::{error, info, warn};

use super::watchdog::{self, Condition, Fault, Finding};
use super::{Agent, token};
use crate::messages::{self, ToCard};
use crate::outbox::{Enclosure, Outbox};
use crate::process::{Child, Exit};
use crate::ring::DrainError;
use crate::wait::Interest;

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

/// Where the card's life stands.
///
/// ```text
/// Serving --card dies--> Draining --nothing in flight--> Due --time has come, started--> Serving
///                           ^                             ^ |
///                           +---- started half-way -------+ +--not started: later--> Due
/// ```
pub(super) enum Phase {
    /// A card runs.
    Serving,
    /// Disk requests of the dead card may still have an effect, so there must be no successor yet. There is no upper
    /// bound: whoever hangs the disk decides.
    Draining(Drain),
    /// The next card is to be started at this time.
    Due(Instant),
}

pub(super) struct Drain {
    since: Instant,
    look_at: Instant,
    speak_at: Instant,
}

/// A card that runs.
pub(super) struct LiveCard {
    pub(super) child: Child,
    pub(super) messages: OwnedFd,
    pub(super) outbox: Outbox<ToCard>,
    /// Places that were given to other loans since it was started. It is to end, and what it still says of them is of
    /// the loans before.
    pub(super) outdated: BTreeSet<usize>,
    started: Instant,
}

/// What tells how soon the next card may start.
#[derive(Default)]
pub(super) struct Setbacks {
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

impl Agent {
    /// When [`Agent::advance_life`] is to be called.
    pub(super) fn next_of_life(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Serving => {
                let retry_at = self.card.as_ref().and_then(|card| card.outbox.retry_at());
                [retry_at, self.look_at].into_iter().flatten().min()
            }
            Phase::Draining(drain) => Some(drain.look_at),
            Phase::Due(at) => Some(*at),
        }
    }

    /// Does what is due for the card, or for there to be one.
    ///
    /// # Errors
    /// A child that cannot be reaped.
    pub(super) fn advance_life(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if let Phase::Draining(drain) = &self.phase
            && drain.look_at <= now
        {
            self.drain();
        }
        match self.phase {
            Phase::Due(at) if at <= now => self.restart(),
            Phase::Serving => {
                self.tell_card();
                self.watch_card()
            }
            _ => Ok(()),
        }
    }

    /// Looks whether the card works, if it is time to.
    fn watch_card(&mut self) -> io::Result<()> {
        if self.look_at.is_none_or(|at| Instant::now() < at) {
            return Ok(());
        }
        let Some(card) = &self.card else { return Ok(()) };
        let (pid, generation) = (card.child.pid(), self.record.generation);
        let beat = self.shared().pulse.beat();
        let finding = self.watchdog.look(crate::card::now(), beat, || watchdog::ask(pid));
        self.record.condition = self.watchdog.condition();
        self.look_at = Some(Instant::now() + self.watchdog.pause());
        match finding {
            Finding::Nothing => return Ok(()),
            Finding::Stuck(state) => {
                warn!(
                    pid,
                    generation,
                    ?state,
                    "the card has been in one system call for {WATCHDOG:?} and serves nobody meanwhile; it is left alone, since \
                     killing it would not end the call: look at the disk behind what is lent"
                );
                return Ok(());
            }
            Finding::Free(after) => {
                info!(pid, generation, ?after, "the card goes on");
                return Ok(());
            }
            Finding::Replace(Fault::Stopped) => {
                warn!(
                    pid,
                    generation, "the card was stopped by a signal (SIGSTOP): it is killed and replaced"
                );
            }
            Finding::Replace(Fault::Spins) => error!(
                pid,
                generation,
                "the card runs and makes no turn: it is killed and replaced. Please report this with the log"
            ),
            Finding::Replace(Fault::Oversleeps) => warn!(
                pid,
                generation,
                "the card did not wake up when it was to, though it had a processor: it is killed and replaced"
            ),
        }
        card.child.kill()
    }

    /// Starts a card; what has to be said to it waits in its outbox. After an error there may be a card that is not
    /// watched.
    pub(super) fn start_card(&mut self) -> io::Result<()> {
        self.record.generation += 1;
        self.shared().pulse.wake();
        self.watchdog.begin(crate::card::now());
        self.look_at = Some(Instant::now() + self.watchdog.pause());
        self.images.ask_witnesses();
        let (ours, theirs) = messages::pair()?;
        let plan = self.write_plan()?;
        let child = self.spawn(&theirs, &plan)?;
        self.record.pid = Some(child.pid());
        let mut outbox = Outbox::new();
        self.slots.tell_all(&self.spec.loans, &mut outbox);
        for (loan, slot, _) in self.clients.connections() {
            outbox.push(ToCard::Connection { loan, slot });
        }
        self.neighbours.sharing().for_each(|loan| outbox.push(ToCard::Shared { loan }));
        if self.shutting_down {
            outbox.push(ToCard::ShutDown);
        }
        self.standing.tell(&mut outbox);
        let card =
            LiveCard { child, messages: ours, outbox, outdated: BTreeSet::new(), started: Instant::now() };
        let card = self.card.insert(card);
        self.waiter.register(card.child.as_fd(), token::CARD, Interest::READ)?;
        self.waiter.register(card.messages.as_fd(), token::MESSAGES, Interest::READ)?;
        self.tell_all_growth();
        self.tell_card();
        Ok(())
    }

    /// Sends what waits for the card.
    pub(super) fn tell_card(&mut self) {
        if let Some(card) = &mut self.card {
            let (clients, neighbours, slots) = (&self.clients, &self.neighbours, &self.slots);
            card.outbox.flush(card.messages.as_fd(), |message| match message {
                ToCard::Connection { loan, slot } => {
                    clients.connection(*loan, *slot).map_or(Enclosure::Gone, Enclosure::Descriptor)
                }
                ToCard::Shared { loan } => neighbours.shared(*loan).map_or(Enclosure::Gone, |shared| {
                    Enclosure::Descriptors(vec![shared.memory.as_fd(), shared.bell.as_fd()])
                }),
                message => slots.enclosure(message),
            });
        }
    }

    /// The card is dead, or is to be: nothing of it may have an effect any more before its successor starts.
    ///
    /// # Errors
    /// It cannot be reaped.
    pub(super) fn bury_card(&mut self) -> io::Result<()> {
        let Some(mut card) = self.card.take() else { return Ok(()) };
        let now = Instant::now();
        self.died_at.get_or_insert(now);
        // A card that could not be watched is not in the set.
        let _ = self.waiter.deregister(card.child.as_fd());
        let _ = self.waiter.deregister(card.messages.as_fd());
        match card.child.reap()? {
            Exit::Signal(signal) => warn!(signal, generation = self.record.generation, "card was killed"),
            Exit::Status(status) => error!(status, generation = self.record.generation, "card has ended"),
        }
        self.record.restarts += 1;
        self.record.running = false;
        self.record.pid = None;
        self.record.condition = Condition::Well;
        let short = card.started.elapsed() < SHORT_LIFE;
        self.setbacks.short_lives = if short { self.setbacks.short_lives + 1 } else { 0 };
        self.phase = Phase::Draining(Drain { since: now, look_at: now, speak_at: now + DRAIN_QUIET });
        Ok(())
    }

    fn drain(&mut self) {
        let Phase::Draining(drain) = &mut self.phase else { return };
        let first = self.record.draining.is_none();
        let slice = if first { FIRST_SLICE } else { NEXT_SLICE };
        let drained = self.ring.as_mut().map_or(Ok(()), |ring| ring.drain(slice).map(|_| ()));
        let now = Instant::now();
        match drained {
            Ok(()) => {
                if drain.speak_at <= now {
                    info!(after = ?drain.since.elapsed(), "the disk requests of the old card have ended");
                }
                self.record.draining = None;
                self.phase = Phase::Due(now + self.setbacks.pause());
            }
            Err(DrainError { in_flight, source }) => {
                self.record.draining = Some(in_flight);
                drain.look_at = now + DRAIN_PAUSE;
                if drain.speak_at <= now {
                    drain.speak_at = now + DRAIN_REPEAT;
                    let why = source.map(|error| error.to_string()).unwrap_or_default();
                    warn!(
                        in_flight, since = ?drain.since.elapsed(), why,
                        "waiting for disk requests of the old card, which must end before the next card may start: \
                         look at the disk"
                    );
                }
            }
        }
    }

    /// The last card is dead: waits until the disks have ended what it has asked for, however long that takes.
    pub(super) fn drain_all(&mut self) {
        let now = Instant::now();
        self.phase = Phase::Draining(Drain { since: now, look_at: now, speak_at: now + DRAIN_QUIET });
        self.drain();
        while let Phase::Draining(_) = self.phase {
            std::thread::sleep(DRAIN_PAUSE);
            self.drain();
        }
    }

    fn restart(&mut self) -> io::Result<()> {
        let Err(error) = self.start_card() else {
            self.setbacks.failed_starts = 0;
            self.record.failed_starts = 0;
            self.phase = Phase::Serving;
            return Ok(());
        };
        self.setbacks.failed_starts = self.setbacks.failed_starts.saturating_add(1);
        self.record.failed_starts = self.setbacks.failed_starts;
        let pause = self.setbacks.pause();
        warn!(%error, again_in = ?pause, "the next card could not be started");
        self.phase = Phase::Due(Instant::now() + pause);
        if let Some(card) = &self.card {
            card.child.kill()?;
            self.bury_card()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_failures_and_end_growing() {
        let pause = |short_lives, failed_starts| Setbacks { short_lives, failed_starts }.pause();
        assert_eq!(pause(0, 0), Duration::ZERO);
        assert_eq!(pause(SHORT_LIVES - 1, 0), Duration::ZERO);
        assert_eq!(pause(SHORT_LIVES, 0), RESTART_PAUSE);
        assert_eq!([pause(0, 1), pause(0, 2), pause(99, 3)], [1, 2, 4].map(|factor| RESTART_PAUSE * factor));
        assert_eq!(pause(0, 7), RESTART_PAUSE * 64);
        assert_eq!(pause(0, u32::MAX), RESTART_PAUSE * 64);
    }
}
