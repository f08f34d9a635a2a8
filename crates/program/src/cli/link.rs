//! `causeway link`: the links of a node that runs.

mod capture;
mod pcapng;

use super::LinkCommand;
use crate::exit::Failure;

pub(super) fn run(command: &LinkCommand) -> Result<(), Failure> {
    match command {
        LinkCommand::Capture(args) => capture::run(args),
    }
}
