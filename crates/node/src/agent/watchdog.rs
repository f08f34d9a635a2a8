//! Whether a card that lives also works, from outside: FTGM's watchdog.
//!
//! The intuition: a card says in shared memory how many turns it has made, and before it sleeps until when at most. The
//! agent looks now and then. A card that has made a turn since the last look is well, and nothing more is asked. One
//! that has not is looked at with the kernel's help, and what speaks against it is added up:
//!
//! - it is awake, or its promised time has come: the processor time that it has used. Time in which it waited for a
//!   processor is not its fault, and a busy machine kills nobody;
//! - it sleeps behind the time that it promised: the time between two looks, less what it waited for a processor;
//! - it is awake and sleeps: it waits for somebody in a system call that a signal ends. The time between two looks;
//! - it is stopped (SIGSTOP).
//!
//! Two looks are never further apart than they count, so that a machine that stood still as a whole speaks against
//! nobody. A card with a debugger is left alone, and so is one that waits in the kernel: to kill that does not end its
//! system call.

use core::time::Duration;

use base::Instant;
use base::times::WATCHDOG;

/// Between two looks at a card that is awake, or does not do as it should.
const LOOK_CLOSELY: Duration = Duration::from_millis(250);
/// Between two looks at one that sleeps.
const LOOK: Duration = Duration::from_secs(1);
/// A card that is found stopped for so long is replaced: nobody who wants it back waits longer.
const STOPPED: Duration = Duration::from_millis(250);
/// How often the patience doubles: a step that takes long is done again by the successor, and must come to its end at
/// last.
const DOUBLINGS: u32 = 6;
/// A card that has worked for so long owes nothing to those before it.
const PROVEN: Duration = Duration::from_secs(60);

/// What an agent sees of a card's pulse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Turns that it has made.
    pub turns: u64,
    /// Whether it rests.
    pub rest: Rest,
}

/// Whether a card rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It does not.
    Awake,
    /// Until this time, unless something comes.
    Until(Instant),
    /// Until something comes.
    Unpromised,
}

/// What the kernel says of the card's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// What it does.
    pub state: State,
    /// A debugger has it.
    pub traced: bool,
    /// Processor time it has used.
    pub used: Duration,
    /// Time it has waited for a processor.
    pub waited: Duration,
}

/// The state of a thread (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// `R`: it runs, or waits for a processor.
    Running,
    /// `S`.
    Sleeping,
    /// `D`: in the kernel, and no signal gets it out.
    InKernel,
    /// `T`.
    Stopped,
    /// It is dying, or something that is not known.
    Other,
}

/// What is wrong with a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Somebody has stopped it.
    Stopped,
    /// It runs and makes no turn.
    Spins,
    /// It sleeps past the time that it promised.
    Oversleeps,
    /// It waits for somebody in a system call, though it never should.
    Waits,
}

/// What a look has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing that would have to be said.
    Nothing,
    /// It is to be killed.
    Replace(Fault),
    /// It has been in the kernel for [`WATCHDOG`]. Said once.
    Stuck(State),
    /// It has come out of it after so long.
    Free(Duration),
}

/// How a card is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// It does what it should, or there is none.
    #[default]
    Well,
    /// Somebody has stopped it.
    Stopped,
    /// It makes no turn.
    Hung,
}

/// What was seen at the last look.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    turns: u64,
    /// Only of a card that had made no turn.
    process: Option<Process>,
}

/// The watchdog of a node's card.
#[derive(Debug, Default)]
pub(super) struct Watchdog {
    last: Option<Seen>,
    /// What speaks against the card since its last turn.
    spun: Duration,
    overslept: Duration,
    stopped: Duration,
    /// Time in which it waited in system calls that a signal ends,
    waited: Duration,
    /// and in one that none ends.
    stuck: Duration,
    /// It is killed, and dies when the kernel lets it.
    condemned: bool,
    began: Instant,
    /// Cards killed in a row because they made no turn.
    strikes: u32,
    close: bool,
}

impl Watchdog {
    /// Another card begins.
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self { began: now, strikes: self.strikes, ..Self::default() };
    }

    /// How long until the next look.
    pub(super) fn pause(&self) -> Duration {
        if self.close { LOOK_CLOSELY } else { LOOK }
    }

    /// How the card is doing.
    pub(super) fn condition(&self) -> Condition {
        let hung = self.condemned || self.stuck >= WATCHDOG;
        match (self.stopped > Duration::ZERO || self.is_stopped(), hung) {
            (true, _) => Condition::Stopped,
            (false, true) => Condition::Hung,
            (false, false) => Condition::Well,
        }
    }

    /// Looks. `ask` tells what the kernel says of the card, if that is needed; `None` where there is no such process
    /// any more.
    pub(super) fn look(
        &mut self,
        now: Instant,
        beat: Beat,
        ask: impl FnOnce() -> Option<Process>,
    ) -> Finding {
        if self.condemned {
            return Finding::Nothing;
        }
        let awake = beat.rest == Rest::Awake;
        let Some(last) = self.last.filter(|last| last.turns == beat.turns) else {
            let finding = self.absolve();
            if now.since(self.began) >= PROVEN {
                self.strikes = 0;
            }
            self.last = Some(Seen { at: now, turns: beat.turns, process: None });
            self.close = awake;
            return finding;
        };
        let due = match beat.rest {
            Rest::Awake => Some(last.at),
            Rest::Until(at) => Some(at).filter(|at| *at <= now),
            Rest::Unpromised => None,
        };
        let process = ask();
        self.last = Some(Seen { at: now, process, ..last });
        let Some(process) = process.filter(|process| !process.traced) else {
            self.close = false;
            return self.absolve();
        };
        self.close = awake || due.is_some() || process.state == State::Stopped;
        let step = now.since(last.at).min(LOOK_CLOSELY);
        self.weigh(now, awake, due, process, last.process, step)
    }

    /// Adds what has happened since the last look to what speaks against the card.
    fn weigh(
        &mut self,
        now: Instant,
        awake: bool,
        due: Option<Instant>,
        process: Process,
        before: Option<Process>,
        step: Duration,
    ) -> Finding {
        let Some(before) = before else { return Finding::Nothing };
        let again = before.state == process.state;
        match (process.state, due) {
            (State::Stopped, _) if again => self.stopped += step,
            (State::Stopped | State::Other, _) | (_, None) => {}
            (State::Running, Some(_)) => self.spun += process.used.saturating_sub(before.used),
            (State::Sleeping, Some(_)) if awake && again => self.waited += step,
            (State::InKernel, Some(_)) if awake && again => self.stuck += step,
            (State::Sleeping | State::InKernel, Some(_)) if awake => {}
            (State::Sleeping, Some(due)) if again => {
                let waited = process.waited.saturating_sub(before.waited);
                self.overslept += step.min(now.since(due)).saturating_sub(waited);
            }
            (State::Sleeping | State::InKernel, Some(_)) => {}
        }
        if process.state != State::Stopped {
            self.stopped = Duration::ZERO;
        }
        self.judge(process.state)
    }

    fn judge(&mut self, state: State) -> Finding {
        let patience = WATCHDOG * (1 << self.strikes.min(DOUBLINGS));
        let fault = match () {
            () if self.stopped >= STOPPED => Fault::Stopped,
            () if self.spun >= patience => Fault::Spins,
            () if self.overslept >= patience => Fault::Oversleeps,
            () if self.waited >= patience => Fault::Waits,
            () => {
                let step_over =
                    self.stuck >= WATCHDOG && self.stuck - LOOK_CLOSELY.min(self.stuck) < WATCHDOG;
                return if step_over && state == State::InKernel {
                    Finding::Stuck(state)
                } else {
                    Finding::Nothing
                };
            }
        };
        self.condemned = true;
        self.strikes = self.strikes.saturating_add(u32::from(fault != Fault::Stopped));
        Finding::Replace(fault)
    }

    /// Nothing speaks against the card any more.
    fn absolve(&mut self) -> Finding {
        let stuck = core::mem::take(&mut self.stuck);
        (self.spun, self.overslept, self.stopped, self.waited) = Default::default();
        if stuck >= WATCHDOG { Finding::Free(stuck) } else { Finding::Nothing }
    }

    /// Found stopped, by whomever.
    fn is_stopped(&self) -> bool {
        self.last.and_then(|last| last.process).is_some_and(|process| process.state == State::Stopped)
    }
}

#[cfg(test)]
mod tests;
