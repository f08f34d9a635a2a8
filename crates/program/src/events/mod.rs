//! What has happened in a node: the newest events, for `causeway events`.
//!
//! A node says each [`io::event::Event`] once, to its log. [`Recent`] listens to that log and keeps the newest events,
//! whatever level of it is shown; the control server reads them from there ([`Ring::read`]). A follower has no queue of
//! its own: it has read up to some number, and the ring is what waits for it. So one that does not read costs nothing
//! and holds nobody up; it is told how many it has missed.

mod record;
mod render;
mod ring;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::Context;

pub use record::{Record, Values};
pub(crate) use render::render;
pub use ring::{RECORDS_MAX, Ring};

/// Longest text of a record, in bytes: errors and names are shorter, and nothing from outside makes it longer.
const TEXT_BYTES_MAX: usize = 2048;

/// The newest events of this process. Copies are of the same ones.
#[derive(Debug, Clone, Default)]
pub struct Recent(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    ring: Mutex<Ring>,
    said: Notify,
}

impl Recent {
    /// Those of this process; an empty place of its own where no log was started.
    pub fn of_process() -> Self {
        tracing::dispatcher::get_default(|log| log.downcast_ref::<Self>().cloned()).unwrap_or_default()
    }

    /// The events, held only as long as it takes to copy some.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ring> {
        // Whoever panicked while it had them has left them whole: each change is one call.
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an event that is said after this call.
    pub(crate) fn said(&self) -> Notified<'_> {
        self.0.said.notified()
    }
}

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let Some(kind) = event.metadata().target().strip_prefix(io::event::TARGET) else { return };
        let mut said = Said::default();
        event.record(&mut said);
        let severity = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warning",
            _ => "info",
        };
        let Said { message, values } = said;
        self.lock().push(|seq| Record {
            seq,
            time: now(),
            severity: severity.to_owned(),
            kind: kind.to_owned(),
            message,
            values,
        });
        self.0.said.notify_waiters();
    }
}

/// The time as lines of the log have it.
fn now() -> String {
    let mut text = String::new();
    // A clock before 1970 has no such time; a text takes everything.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Message and values of a line.
#[derive(Default)]
struct Said {
    message: String,
    values: Values,
}

impl Said {
    fn value(&mut self, field: &Field, value: impl Into<Value>) {
        self.values.push(field.name(), value.into());
    }
}

impl Visit for Said {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.value(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.value(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.value(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.value(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.value(field, bounded(value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = bounded(format!("{value:?}"));
        if field.name() == "message" { self.message = text } else { self.value(field, text) }
    }
}

fn bounded(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use io::event::Event;
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// What `say` has said, and what of it was kept.
    fn kept(say: impl FnOnce()) -> Vec<Record> {
        let recent = Recent::default();
        let log = tracing_subscriber::registry().with(recent.clone().with_filter(LevelFilter::INFO));
        tracing::subscriber::with_default(log, || {
            say();
            let found = Recent::of_process().lock().read(1, 100);
            assert_eq!(found, recent.lock().read(1, 100));
        });
        recent.lock().read(1, 100).1
    }

    #[test]
    fn what_is_said_is_kept_with_its_values() {
        let records = kept(|| {
            Event::CardKilled { signal: 9, generation: 3 }.say();
            tracing::warn!("a line of the log that is no event");
            Event::LimitChanged { function: "nvme0".into(), iops: Some(7), bytes_per_s: None }.say();
        });
        let [killed, limited] = &records[..] else { panic!("{records:?}") };
        assert_eq!((killed.seq, limited.seq), (1, 2));
        assert_eq!(
            (&*killed.severity, &*killed.kind, &*killed.message),
            ("warning", "card-killed", "card was killed")
        );
        assert!(
            killed.time.ends_with('Z') && killed.time.len() == "2026-01-01T00:00:00.000000Z".len(),
            "{killed:?}"
        );
        let json = serde_json::to_string(limited).unwrap();
        assert!(
            json.ends_with(
                r#""kind":"limit-changed","message":"limit changed","function":"nvme0","iops":7}"#
            ),
            "{json}"
        );
        assert_eq!(&serde_json::from_str::<Record>(&json).unwrap(), limited);
    }

    #[test]
    fn no_text_is_endless() {
        let error = "ä".repeat(TEXT_BYTES_MAX);
        let records = kept(|| Event::CardStartFailed { error, again_in_s: 0.5 }.say());
        assert!(serde_json::to_string(&records[0]).unwrap().len() < TEXT_BYTES_MAX + 300);
    }
}
