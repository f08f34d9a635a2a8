//! Unmodified guests, for tests, `causeway demo` and `causeway bench`: a Linux in QEMU, and what one says to either of
//! them.
//!
//! A [`Kit`] is what `tests/guest/fetch.sh` has fetched; that script and those beside it are part of this crate.
//! [`Vm::builder`] describes a machine and starts it. Then [`Vm::run`] runs commands in the guest, [`Vm::qmp`] talks to
//! QEMU, [`Vm::kernel_log`] has what the guest's kernel said. What this leaves out: devices. They come as QEMU's own
//! arguments, by [`Builder::device`] or [`Vm::hot_add`].
//!
//! No QEMU outlives the program, not even one that is killed. A test that fails leaves its machine's folder behind,
//! with all logs, and says where.
//!
//! Where a guest cannot be had, a test is skipped and says so; with `CI=true` that is a failure. See [`kit`].

mod accelerator;
mod builder;
mod error;
mod fetch;
mod kit;
mod log;
mod machine;
mod process;
mod scripts;
mod shell;
mod stream;
mod vm;

pub use accelerator::Accelerator;
pub use builder::{Boot, Builder, HotPlug};
pub use error::Error;
pub use fetch::{FETCH_BYTES, Fetching};
pub use kit::{Kit, kit};
pub use log::{Message, parse_kernel_log};
pub use qmp::{Error as QmpError, Event, Qmp};
pub use shell::{Job, Output, Shell};
pub use vm::Vm;
