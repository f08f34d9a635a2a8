//! What the tests of both cores share: killed steps and numbers that look random.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};
use std::sync::Once;

use base::RuleSet;
use base::ledger::{Hook, Ledger, RawMemory};
use zerocopy::FromBytes;

/// The payload of a kill.
pub(crate) struct Killed;

/// Kills the card before the store with number `at`, once.
pub(crate) struct Killer {
    pub(crate) stores: Cell<u64>,
    pub(crate) at: Cell<Option<u64>>,
    committing: Cell<bool>,
}

impl Killer {
    pub(crate) fn new(at: Option<u64>) -> Self {
        static QUIET: Once = Once::new();
        QUIET.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                if !info.payload().is::<Killed>() {
                    report(info);
                }
            }));
        });
        Self { stores: Cell::new(0), at: Cell::new(at), committing: Cell::new(false) }
    }
}

impl Hook for Killer {
    fn before_store(&self) {
        let store = self.stores.get();
        self.stores.set(store + 1);
        if self.at.get().is_some_and(|at| store >= at) {
            self.at.set(None);
            panic_any(Killed);
        }
    }
}

/// Runs `step` and commits, as a card would. Returns whether the card lived, and whether the step has happened.
pub(crate) fn run_step<'m, R: FromBytes + 'm>(
    memory: RawMemory<'m>,
    killer: &'m Killer,
    step: impl FnOnce(Ledger<'m, R>),
) -> (bool, bool) {
    let ledger = memory.ledger::<R>(Some(killer), RuleSet::ALL);
    let journal = ledger.journal;
    killer.committing.set(false);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        step(ledger);
        killer.committing.set(true);
        journal.commit();
    }));
    let calm = memory.ledger::<R>(None, RuleSet::ALL);
    match ended {
        Ok(()) => (true, true),
        Err(payload) if payload.is::<Killed>() => {
            // The commit is one store; a card killed right behind it has committed.
            let happened = killer.committing.get() && calm.journal.pending() == 0;
            calm.journal.roll_back().unwrap();
            (false, happened)
        }
        Err(payload) => resume_unwind(payload),
    }
}
