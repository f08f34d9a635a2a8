//! The logs of all nodes in one: each line bears the node's name.

use std::ffi::OsString;
use std::io::Write;

use clap::ValueEnum;

use crate::cli::{LogFormat, LogLevel};

/// How log lines look, and which of them are shown: the same for the rack and for its nodes.
#[derive(Debug, Clone, Copy)]
pub struct LogStyle {
    pub(crate) format: LogFormat,
    pub(crate) level: LogLevel,
}

impl LogStyle {
    /// The arguments by which a node is told.
    pub(super) fn arguments(self) -> impl Iterator<Item = OsString> {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map(|value| value.get_name().to_owned()).unwrap_or_default().into()
        };
        let (format, level) = (self.format.to_possible_value(), self.level.to_possible_value());
        ["--log-format".into(), name(format), "--log-level".into(), name(level)].into_iter()
    }
}

/// The log of one node.
#[derive(Debug, Clone)]
pub(super) struct NodeLog {
    pub(super) style: LogStyle,
    pub(super) node: String,
    /// The width of the column of names.
    pub(super) width: usize,
}

impl NodeLog {
    /// Passes on a line of the node, or says something about it.
    pub(super) fn write(&self, line: &str) {
        // One write, so that lines of several nodes do not mix. Without a standard error nobody is told.
        let _ = std::io::stderr().lock().write_all(self.line(line).as_bytes());
    }

    fn line(&self, line: &str) -> String {
        let (node, width) = (&self.node, self.width);
        match self.style.format {
            LogFormat::Text => format!("{node:width$} | {line}\n"),
            LogFormat::Json => match line.strip_prefix('{') {
                // Names of nodes have no letter that JSON would escape.
                Some(fields) => format!("{{\"node\":\"{node}\",{fields}\n"),
                None => format!("{}\n", serde_json::json!({ "node": node, "message": line })),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_its_node() {
        let log = |format| {
            let style = LogStyle { format, level: LogLevel::Debug };
            NodeLog { style, node: "desk".to_owned(), width: 6 }
        };
        assert_eq!(log(LogFormat::Text).line("it is up"), "desk   | it is up\n");
        let json = log(LogFormat::Json);
        for (line, message) in [(r#"{"message":"up"}"#, "up"), ("no \"object\"", "no \"object\"")] {
            let found: serde_json::Value = serde_json::from_str(&json.line(line)).unwrap();
            assert_eq!((&found["node"], &found["message"]), (&"desk".into(), &message.into()));
        }
        let arguments: Vec<OsString> = json.style.arguments().collect();
        assert_eq!(arguments, ["--log-format", "json", "--log-level", "debug"]);
    }
}
