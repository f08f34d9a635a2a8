//! `causeway completions`: what a shell completes.

use clap::{Args, CommandFactory, Subcommand};
use clap_complete::Shell;

use super::Cli;
use super::run::print;
use crate::exit::Failure;

/// `causeway completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell: bash, zsh, fish, elvish or powershell
    #[arg(value_name = "SHELL", value_enum, hide_possible_values = true)]
    pub shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script for all commands of the program.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn run<C: Subcommand>(&self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::<C>::command(), "causeway", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
