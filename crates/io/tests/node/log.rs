//! What agents, which are threads of this process, write to the log.

use std::fmt::Debug;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines kept. Whoever writes more has written too many.
const LINES: usize = 10_000;

static LINES_SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on the warnings of this process are kept.
pub(crate) fn listen() {
    tracing::subscriber::set_global_default(Warnings).unwrap();
}

/// How many warnings there were that contain `text`.
pub(crate) fn count(text: &str) -> usize {
    LINES_SAID.lock().unwrap().iter().filter(|line| line.contains(text)).count()
}

struct Warnings;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        let mut lines = LINES_SAID.lock().unwrap();
        if lines.len() < LINES {
            lines.push(message.0);
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
