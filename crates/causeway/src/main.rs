//! The program: everything is in the library of the same name.

use std::process::ExitCode;

use causeway::{cli, roles};

fn main() -> ExitCode {
    // A card must be up within milliseconds of its predecessor's death: nothing slow comes before this.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "__card") {
        return roles::card_main();
    }
    cli::run(std::env::args_os())
}
