//! Who runs beside whom: the tests of a program are threads of one process, and there are more of them than cores.
//!
//! Most tests wait most of the time, and run beside any other: [`crate::world::World`] has the permit for them. One
//! that computes, above all with a guest, begins with [`computes`]; one whose times others would spoil begins with
//! [`alone`]. Nothing else is shared: each world has namespaces and a folder of its own, and no test changes its
//! process (environment, current folder, limits, signals). One that had to would be a program of its own. A test makes
//! its worlds in its own thread, and keeps the first one as long as any.

use std::num::NonZero;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{ThreadId, available_parallelism, current};

/// What a test does to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Waits,
    Computes,
    Alone,
}

/// A test's permit to run beside the others, until it is dropped.
#[must_use = "a permit is held as long as it lives"]
pub struct Permit {
    /// None in a thread that has one already.
    thread: Option<ThreadId>,
}

/// For a test that waits most of the time. Where its thread has one already, that counts.
pub fn waits() -> Permit {
    GATE.enter(Kind::Waits)
}

/// For a test that needs a core: one more than there are cores run at once, so that none of these idles.
pub fn computes() -> Permit {
    GATE.enter(Kind::Computes)
}

/// For a test that measures: no other one runs meanwhile.
pub fn alone() -> Permit {
    GATE.enter(Kind::Alone)
}

static GATE: Gate = Gate {
    state: Mutex::new(State { inside: Vec::new(), measuring: 0, came: 0, served: 0 }),
    changed: Condvar::new(),
};

struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    inside: Vec<(ThreadId, Kind)>,
    /// Tests that are alone, or wait to be: nobody else goes in before they have gone.
    measuring: usize,
    /// Tests that compute have come, and were let in, in that order.
    came: usize,
    served: usize,
}

impl Gate {
    fn enter(&self, kind: Kind) -> Permit {
        let (mut state, thread) = (self.lock(), current().id());
        if state.inside.iter().any(|(inside, _)| *inside == thread) {
            assert!(kind == Kind::Waits, "a test has its permit before it makes a world");
            return Permit { thread: None };
        }
        let number = state.came;
        state.measuring += usize::from(kind == Kind::Alone);
        state.came += usize::from(kind == Kind::Computes);
        while !state.admits(kind, number) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.served += usize::from(kind == Kind::Computes);
        state.inside.push((thread, kind));
        drop(state);
        // The next one may fit beside this one.
        self.changed.notify_all();
        Permit { thread: Some(thread) }
    }

    /// A test that failed says nothing about the next one.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether a test may go in, and if it computes whether it is its turn.
    fn admits(&self, kind: Kind, number: usize) -> bool {
        let most = available_parallelism().map_or(1, NonZero::get) + 1;
        match kind {
            Kind::Alone => self.inside.is_empty(),
            Kind::Waits => self.measuring == 0,
            Kind::Computes => {
                let computing = self.inside.iter().filter(|(_, kind)| *kind == Kind::Computes).count();
                self.measuring == 0 && computing < most && self.served == number
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(thread) = self.thread else { return };
        let mut state = GATE.lock();
        if let Some(at) = state.inside.iter().position(|(inside, _)| *inside == thread) {
            let (_, kind) = state.inside.swap_remove(at);
            state.measuring -= usize::from(kind == Kind::Alone);
        }
        drop(state);
        GATE.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn who_measures_is_alone_and_cores_are_shared() {
        let (inside, most_computing) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (inside, most_computing) = (&inside, &most_computing);
        let cores = available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for number in 0..64 {
                scope.spawn(move || {
                    let measures = number % 8 == 7;
                    let _permit = if measures { alone() } else { computes() };
                    // A world within takes no other one.
                    let _within = waits();
                    let count = inside.fetch_add(1, Ordering::SeqCst) + 1;
                    most_computing.fetch_max(count, Ordering::SeqCst);
                    std::thread::yield_now();
                    assert!(!measures || inside.load(Ordering::SeqCst) == 1, "it is not alone");
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        assert!(most_computing.load(Ordering::SeqCst) <= cores + 1);
    }
}
