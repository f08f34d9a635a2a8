//! `causeway events`: what has happened in a node, and what happens.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};

use super::{EventsArgs, Output};
use crate::control::{ControlClient, ControlError, Request, Response, find, runtime_dir};
use crate::events::{Record, render};
use crate::exit::Failure;
use crate::roles::{Hangup, Signals};

/// What to do after an answer.
#[derive(PartialEq, Eq)]
enum Next {
    Read,
    End,
}

/// Prints events until there are no more, the node has ended, nobody reads them, or a signal comes.
pub(super) fn run(args: &EventsArgs) -> Result<(), Failure> {
    let unheard = |error: std::io::Error| Failure::io("cannot watch for signals", &error);
    let mut signals = Signals::listen(Hangup::Ends).map_err(unheard)?;
    let mut client = find(&runtime_dir(), args.name.as_ref())?;
    client.ask(&Request::Events { follow: args.follow })?;
    // Only who follows has to wait long for an answer.
    while !args.follow || wait(&client, &mut signals)? == Next::Read {
        let events = match client.answer() {
            Ok(Response::Events { events }) => events,
            Ok(Response::Done) if !args.follow => return Ok(()),
            Ok(Response::Refused { why }) => {
                return Err(Failure::refused(format_args!("the node refused: {why}")));
            }
            Ok(_) => {
                let (name, why) = (client.name().to_owned(), "no events".to_owned());
                return Err(ControlError::Answer { name, why }.into());
            }
            Err(ControlError::Silent { name, error }) if args.follow && is_end(&error) => {
                return Err(ControlError::Ended { name }.into());
            }
            Err(error) => return Err(error.into()),
        };
        for event in &events {
            super::print(&line(event, args.output.format))?;
        }
    }
    Ok(())
}

fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

fn line(event: &Record, format: Output) -> String {
    match format {
        Output::Text => render(event),
        Output::Json => {
            serde_json::to_string(event).expect("records are texts and numbers, which always serialise")
                + "\n"
        }
    }
}

/// Waits until the node says something, or is gone. Nothing more is to be read when a signal has come, or when nobody
/// is there to read it.
fn wait(client: &ControlClient, signals: &mut Signals) -> Result<Next, Failure> {
    let out = io::stdout();
    loop {
        let is_asked_to_end = signals.take().is_some();
        if is_asked_to_end || client.has_begun() {
            return Ok(if is_asked_to_end { Next::End } else { Next::Read });
        }
        let mut watched = [
            PollFd::new(client, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            // Of a pipe the system tells in any case that its reader is gone.
            PollFd::new(&out, PollFlags::empty()),
        ];
        match poll(&mut watched, None) {
            Ok(_) if watched[2].revents().intersects(PollFlags::ERR | PollFlags::HUP) => {
                return Ok(Next::End);
            }
            Ok(_) if !watched[0].revents().is_empty() => return Ok(Next::Read),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Failure::io("cannot wait", &errno.into())),
        }
    }
}
