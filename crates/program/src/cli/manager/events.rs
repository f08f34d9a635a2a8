//! `causeway events --manager`: what happens in all nodes of a fabric.

use std::path::PathBuf;

use management::client::Told;
use management::shapes::Event;

use super::Session;
use super::args::Asker;
use crate::cli::events::over;
use crate::cli::run::print;
use crate::cli::{EventsArgs, Output};
use crate::exit::Failure;
use crate::roles::{Hangup, Signals};
use crate::status::shown;

/// Prints events until the manager refuses, nobody reads them, or a signal comes.
pub(in crate::cli) fn follow(args: &EventsArgs, file: Option<PathBuf>) -> Result<(), Failure> {
    if !args.follow {
        return Err(Failure::usage(
            "events of a fabric are followed: --follow shows what happens from now on, `causeway audit` what was \
             changed, and `causeway events` on a node what has happened there",
        ));
    }
    let unheard = |error: std::io::Error| Failure::io("cannot watch for signals", &error);
    let signals = Signals::listen(Hangup::Ends).map_err(unheard)?;
    let mut over = over(signals, true).map_err(unheard)?;
    let session = Session::open(&Asker { manager: file })?;
    let mut events = session.client().events();
    session.client().run(async {
        loop {
            let told = tokio::select! {
                biased;
                _ = &mut over => return Ok(()),
                told = events.next() => told.map_err(|error| session.failure(&error))?,
            };
            match told {
                Told::Event(event) => print(&line(&event, args.output.format))?,
                Told::Away(why) => {
                    let url = session.client().url();
                    tracing::warn!(url, why, "the manager is away, and is looked for");
                }
                Told::Back => tracing::warn!(
                    "the manager is back: what has happened meanwhile follows, as far as it knows"
                ),
            }
        }
    })
}

/// An event as a line, alike to those of a node's log.
fn line(event: &Event, format: Output) -> String {
    match format {
        Output::Text => {
            let level = if event.is_trouble { "WARN" } else { "INFO" };
            let node = event.node.as_deref().unwrap_or("manager");
            shown(&format!("{} {level:>5} {node}: {} ({})", event.at, event.text, event.name)) + "\n"
        }
        Output::Json => {
            serde_json::to_string(event).expect("events are texts, which always serialise") + "\n"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_where_and_what() {
        let mut event = Event {
            at: "2026-11-28T02:00:00Z".to_owned(),
            node: Some("desk".to_owned()),
            name: "rail-dead".to_owned(),
            is_trouble: true,
            text: "rail0\u{1b} is dead".to_owned(),
        };
        assert_eq!(
            line(&event, Output::Text),
            "2026-11-28T02:00:00Z  WARN desk: rail0? is dead (rail-dead)\n"
        );
        (event.node, event.is_trouble) = (None, false);
        assert!(line(&event, Output::Text).contains(" INFO manager: "));
        assert!(
            line(&event, Output::Json).starts_with("{\"at\":") && line(&event, Output::Json).ends_with("}\n")
        );
    }
}
