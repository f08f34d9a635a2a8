//! Log lines: on standard error, so that standard output carries results alone.

use std::io::{self, IsTerminal};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::cli::{LogFormat, LogLevel};
use crate::events::Recent;

/// Sends what `tracing` is told to standard error from now on. Later calls change nothing.
///
/// Text is coloured on a terminal, unless `NO_COLOR` is set; JSON is one object a line. No field of any line may
/// hold a key: keys have a `Debug` that shows nothing. What is an event is kept as well, whatever level is shown.
pub(crate) fn start(format: LogFormat, level: LogLevel) {
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let log = match format {
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).boxed(),
        LogFormat::Text => {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            log.with_target(false).with_ansi(io::stderr().is_terminal() && !no_color).boxed()
        }
    };
    let recent = Recent::default().with_filter(LevelFilter::INFO);
    // The only way to fail is that somebody was faster, and then there is a log already.
    let _ = tracing_subscriber::registry().with(log.with_filter(filter(level))).with(recent).try_init();
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
