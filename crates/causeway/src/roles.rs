//! What runs a node: the agent's side of each command, and the card.

use std::process::ExitCode;

use crate::cli::{BenchArgs, BorrowArgs, DemoArgs, LendArgs, SimArgs};
use crate::config::Config;
use crate::exit::Failure;
use crate::line::Line;

/// The data-plane process that an agent starts.
pub fn card_main() -> ExitCode {
    ExitCode::FAILURE
}

/// `causeway lend`: serves until SIGTERM.
pub fn lend(_args: &LendArgs) -> Result<(), Failure> {
    not_built()
}

/// `causeway borrow`: serves until SIGTERM.
pub fn borrow(_args: &BorrowArgs, _line: Line) -> Result<(), Failure> {
    not_built()
}

/// `causeway node`: serves until SIGTERM.
pub fn node(_config: Config) -> Result<(), Failure> {
    not_built()
}

/// `causeway demo`.
pub fn demo(_args: &DemoArgs) -> Result<(), Failure> {
    not_built()
}

/// `causeway bench`.
pub fn bench(_args: &BenchArgs) -> Result<(), Failure> {
    not_built()
}

/// `causeway sim`.
pub fn sim(_args: &SimArgs) -> Result<(), Failure> {
    not_built()
}

fn not_built() -> Result<(), Failure> {
    Err(Failure::refused("this command is not built yet"))
}
