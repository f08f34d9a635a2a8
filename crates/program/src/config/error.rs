//! What is wrong with a configuration file, and where.

use std::fmt;
use std::io;
use std::path::PathBuf;

use manager::model::nearest_text;
use thiserror::Error;

use crate::exit::{Exit, Failure};
use crate::line::redact;

/// Why a configuration file cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is longer than any configuration.
    #[error("{} is longer than 1 MiB, too long for a configuration", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// Something in it is wrong.
    #[error("{}", listed(path, problems))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// At least one problem.
        problems: Vec<Problem>,
    },
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Usage, error)
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub what: String,
    /// The file with a line that is named there, and is not there: a rack may be about to make it.
    pub absent: Option<PathBuf>,
}

impl Problem {
    /// A problem at a byte of the text.
    pub(crate) fn at(text: &str, byte: usize, what: impl fmt::Display) -> Self {
        // Places come from the parser, and could lie within a character only if it were wrong.
        let before = text.get(..byte).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            what: redact(&what.to_string()),
            absent: None,
        }
    }
}

fn listed(path: &std::path::Path, problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| {
        let Problem { line, column, what, .. } = problem;
        format!("{}:{line}:{column}: {what}", path.display())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A problem that the TOML parser or serde found. Only their short message is used: the long one quotes the line,
/// and with it perhaps a key.
pub(crate) fn from_toml(text: &str, error: &toml::de::Error) -> Problem {
    let byte = error.span().map_or(text.len(), |span| span.start);
    Problem::at(text, byte, reworded(error.message()))
}

/// serde says "unknown field `x`, expected one of `a`, `b`"; add which of them was probably meant.
fn reworded(message: &str) -> String {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match (message.split_once(" field `"), quoted.split_first()) {
        (Some(("unknown", _)), Some((wrong, known))) => {
            let hint = match nearest_text(wrong, known.iter().copied()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!("possible here: {}", known.join(", ")),
            };
            format!("unknown key `{wrong}`; {hint}")
        }
        (Some(("missing", _)), Some((missing, _))) => format!("the key `{missing}` is missing here"),
        _ => message.lines().collect::<Vec<_>>().join("; "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_lines_and_characters() {
        let text = "ä = 1\nüü x\n";
        let place = |byte| {
            let problem = Problem::at(text, byte, "");
            (problem.line, problem.column)
        };
        assert_eq!(place(0), (1, 1));
        assert_eq!(place(text.find('x').unwrap()), (2, 4));
        assert_eq!(place(text.len()), (3, 1));
        assert_eq!(place(1000), (3, 1));
    }
}
