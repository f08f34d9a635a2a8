//! How cards die: a switch that fires before a chosen store or at a chosen effect, and the card's own undo log kept a
//! second time, so that a roll-back can be checked.

use core::cell::{Cell, RefCell};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Once;

use base::ledger::{Hook, RawMemory};

/// Never.
const OFF: u64 = u64::MAX;

/// What a card that is killed unwinds with.
struct Killed;

/// One for each node: the hook of its cards.
#[derive(Default)]
pub(crate) struct Switch<'w> {
    stores: Cell<u64>,
    effects: Cell<u64>,
    armed: Cell<bool>,
    memory: Cell<Option<RawMemory<'w>>>,
    /// What the step under way has changed: offset, length, the old bytes.
    changes: RefCell<Vec<(usize, u8, [u8; 8])>>,
    /// Where a roll-back did not restore what the last commit had.
    mismatch: Cell<Option<usize>>,
    rollbacks: Cell<u64>,
}

impl<'w> Switch<'w> {
    /// From now on the cards of the node run on `memory`.
    pub(crate) fn set_memory(&self, memory: RawMemory<'w>) {
        self.memory.set(Some(memory));
        self.changes.borrow_mut().clear();
    }

    /// Kills before the store that comes after `stores` others.
    pub(crate) fn arm_store(&self, stores: u64) {
        self.arm(stores, OFF);
    }

    /// Kills at the effect that comes after `effects` others.
    pub(crate) fn arm_effect(&self, effects: u64) {
        self.arm(OFF, effects);
    }

    fn arm(&self, stores: u64, effects: u64) {
        self.stores.set(stores);
        self.effects.set(effects);
        self.armed.set(true);
    }

    pub(crate) fn disarm(&self) {
        self.armed.set(false);
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed.get()
    }

    /// The driver is before or behind an effect: true if the card dies here.
    pub(crate) fn dies_at_effect(&self) -> bool {
        if !self.armed.get() || self.effects.get() == OFF {
            return false;
        }
        let left = self.effects.get();
        self.effects.set(left.saturating_sub(1));
        if left == 0 {
            self.disarm();
        }
        left == 0
    }

    /// An offset where a roll-back went wrong, each once.
    pub(crate) fn take_mismatch(&self) -> Option<usize> {
        self.mismatch.take()
    }

    /// Roll-backs that had something to take back.
    pub(crate) fn rollbacks(&self) -> u64 {
        self.rollbacks.get()
    }
}

impl Hook for Switch<'_> {
    fn before_store(&self) {
        if !self.armed.get() || self.stores.get() == OFF {
            return;
        }
        match self.stores.get() {
            0 => {
                self.disarm();
                panic_any(Killed);
            }
            left => self.stores.set(left - 1),
        }
    }

    fn before_change(&self, offset: usize, old: &[u8]) {
        let mut bytes = [0; 8];
        bytes[..old.len()].copy_from_slice(old);
        self.changes.borrow_mut().push((offset, old.len() as u8, bytes));
    }

    fn committed(&self) {
        self.changes.borrow_mut().clear();
    }

    fn rolled_back(&self) {
        let mut changes = self.changes.borrow_mut();
        let Some(memory) = self.memory.get() else { return };
        self.rollbacks.set(self.rollbacks.get() + u64::from(!changes.is_empty()));
        // Only the first change of a place tells what the last commit had there.
        changes.sort_by_key(|&(offset, ..)| offset);
        changes.dedup_by_key(|&mut (offset, ..)| offset);
        for &(offset, len, old) in changes.iter() {
            let mut now = [0; 8];
            memory.read(offset, &mut now[..len as usize]);
            if now != old {
                self.mismatch.set(Some(offset));
            }
        }
        changes.clear();
    }
}

/// How a piece of a card's work ended, if not in order.
pub(crate) enum End {
    /// The switch has fired.
    Killed,
    /// An assertion of the card has failed.
    Panicked(String),
}

/// Runs a piece of a card's work that may die.
pub(crate) fn survive<T>(work: impl FnOnce() -> T) -> Result<T, End> {
    silence_panics();
    let before = SIMULATING.replace(true);
    if !before {
        // Both ends of each handshake are in this thread.
        link::remember_agreements();
    }
    let result = catch_unwind(AssertUnwindSafe(work));
    SIMULATING.set(before);
    result.map_err(
        |payload| if payload.is::<Killed>() { End::Killed } else { End::Panicked(message(&*payload)) },
    )
}

thread_local! {
    static SIMULATING: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Deaths and failures of simulated cards are results, not something to print.
fn silence_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !SIMULATING.get() {
                return previous(info);
            }
            let place = info.location().map(|place| format!("{}:{}", place.file(), place.line()));
            PLACE.with_borrow_mut(|last| *last = place.unwrap_or_default());
        }));
    });
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    PLACE.with_borrow(|place| format!("{text} ({place})"))
}
