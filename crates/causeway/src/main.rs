//! The program `causeway`: the commands of nodes ([`program`]) and of the laboratory ([`lab`]) under one name.

use std::process::ExitCode;

use clap::Subcommand;
use program::{cli, roles};

/// All commands.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, while it is parsed")]
enum Command {
    #[command(flatten)]
    Node(cli::Command),
    #[command(flatten)]
    Lab(lab::Command),
    /// Print a script by which a shell completes commands and options
    Completions(cli::CompletionsArgs),
}

fn main() -> ExitCode {
    // A card must be up within milliseconds of its predecessor's death: nothing slow comes before this.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "__card") {
        return roles::card_main();
    }
    cli::run(std::env::args_os(), |command: &Command, log| match command {
        Command::Node(command) => command.run(log),
        Command::Lab(command) => command.run(),
        Command::Completions(args) => args.run::<Command>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn clap_finds_the_definition_consistent() {
        cli::Cli::<Command>::command().debug_assert();
    }
}
