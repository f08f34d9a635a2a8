//! QEMU and a kernel, fetched the first time.

use std::ops::ControlFlow;

use guest::{Error, FETCH_BYTES, Fetching, Kit};
use program::exit::Failure;

use super::super::show::Show;
use crate::local::{Halt, Interrupt};

const WHAT: &str = "QEMU and a Debian kernel";

/// Finds them, or fetches them.
///
/// # Errors
/// Refused where they cannot be had, with the reason.
pub(in super::super) fn kit(show: &Show, interrupt: &Interrupt) -> Result<Kit, Halt> {
    show.doing("looking for QEMU");
    let mut is_told = false;
    let kit = Kit::fetch(|news| {
        if !std::mem::replace(&mut is_told, true) {
            show.note(&format!("fetching {WHAT} with apt, this once; nothing is installed"));
        }
        match news {
            Fetching::Said(line) => show.note(&format!("  {line}")),
            // Never as if it were done: unpacking comes after it.
            Fetching::Bytes(bytes) => show.fetching(WHAT, bytes.min(FETCH_BYTES - 1), FETCH_BYTES),
        }
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if is_told {
        show.fetching(WHAT, FETCH_BYTES, FETCH_BYTES);
    }
    kit.map_err(|error| match error {
        Error::Abandoned => Halt::Interrupted,
        // A group of processes is interrupted as one.
        _ if interrupt.is_set() => Halt::Interrupted,
        error => unusable(error).into(),
    })
}

/// Nothing has begun, and why: refused where this machine is the reason.
pub(super) fn unusable(error: Error) -> Failure {
    if !matches!(error, Error::Io { .. } | Error::Missing(_)) {
        return super::broken(error);
    }
    Failure::refused(format_args!(
        "there can be no virtual machine here: {error}\n(`causeway demo` without --vm needs none; docs/guest.md has \
         what --vm needs)"
    ))
}
