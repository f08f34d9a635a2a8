//! Keeps a line typed as an argument out of the process list.
//!
//! Everybody on a machine can read the arguments of every process. `-` and `@FILE` avoid that; for a line typed as
//! an argument the process starts itself anew with `-` in its place and the line in a pipe as standard input. Same
//! process id, same terminal, and from a few milliseconds after the start on nothing to read. (The shell's history
//! keeps what was typed; the manual says so.)

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Replaces this process by one with `-` instead of the argument `line`, which it finds on its standard input.
///
/// Returns only when that is not possible, with the reason; going on with the line visible is then better than
/// not going on.
pub fn hide_line(line: &str) -> io::Error {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| OsString::from("causeway"));
    match replacement(line, arguments) {
        Ok(mut command) => command.arg0(program).exec(),
        Err(error) => error,
    }
}

fn replacement(line: &str, arguments: impl Iterator<Item = OsString>) -> io::Result<Command> {
    let in_option = format!("--secret={line}");
    let mut is_found = false;
    let mut hide = |argument: OsString| {
        let hidden = match argument {
            _ if argument == line => "-",
            _ if *argument == *in_option => "--secret=-",
            _ => return argument,
        };
        is_found = true;
        OsString::from(hidden)
    };
    let arguments: Vec<OsString> = arguments.map(&mut hide).collect();
    // Started anew with the same arguments it would come here again.
    if !is_found {
        return Err(io::Error::other("it is no argument of its own"));
    }
    // A line is far smaller than a pipe's buffer, so that writing never waits for the reader to come.
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(line.as_bytes())?;
    drop(writer);
    let mut command = Command::new(std::env::current_exe()?);
    command.args(arguments).stdin(Stdio::from(reader));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_moves_from_the_arguments_into_a_pipe() {
        let line = crate::line::tests::example().reveal();
        let arguments = ["borrow", &line, "--nbd", "/tmp/s"].map(OsString::from);
        let command = replacement(&line, arguments.into_iter()).unwrap();
        let shown: Vec<_> = command.get_args().collect();
        assert_eq!(shown, ["borrow", "-", "--nbd", "/tmp/s"]);
        let arguments = ["borrow", "left/nvme0", &format!("--secret={line}")].map(OsString::from);
        let command = replacement(&line, arguments.into_iter()).unwrap();
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["borrow", "left/nvme0", "--secret=-"]);
    }

    #[test]
    fn nobody_starts_anew_with_the_same_arguments() {
        let line = crate::line::tests::example().reveal();
        let arguments = [format!("--other={line}")].map(OsString::from);
        replacement(&line, arguments.into_iter()).unwrap_err();
    }
}
