//! Guests in QEMU, with QEMU's own drives: the harness itself. The fabric's are in `crates/campaign`.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod boot;
mod nvme;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Two guests run at once, whatever the test runner's threads do: more would only wait for each other's processors.
fn place() -> MutexGuard<'static, ()> {
    static PLACES: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let place = &PLACES[NEXT.fetch_add(1, Ordering::Relaxed) % PLACES.len()];
    place.lock().unwrap_or_else(PoisonError::into_inner)
}
