//! Log lines: on standard error, so that standard output carries results alone.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::LevelFilter;

use crate::cli::{LogFormat, LogLevel};

/// Sends what `tracing` is told to standard error from now on. Later calls change nothing.
///
/// Text is coloured on a terminal, unless `NO_COLOR` is set; JSON is one object a line. No field of any line may
/// hold a key: keys have a `Debug` that shows nothing.
pub(crate) fn start(format: LogFormat, level: LogLevel) {
    let builder = tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(filter(level));
    // The only way to fail is that somebody was faster, and then there is a log already.
    let _ = match format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Text => {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            builder.with_target(false).with_ansi(io::stderr().is_terminal() && !no_color).try_init()
        }
    };
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
