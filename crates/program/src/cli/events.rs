//! `causeway events`: what has happened in a node, and what happens.

use std::io;
use std::os::fd::AsFd;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use tokio::sync::oneshot;

use super::{EventsArgs, Output};
use crate::control::{find, runtime_dir};
use crate::events::{Record, render};
use crate::exit::Failure;
use crate::roles::{Hangup, Signals};

/// Prints events until there are no more, the node has ended, nobody reads them, or a signal comes.
pub(super) fn run(args: &EventsArgs) -> Result<(), Failure> {
    let unheard = |error: io::Error| Failure::io("cannot watch for signals", &error);
    let signals = Signals::listen(Hangup::Ends).map_err(unheard)?;
    let client = find(&runtime_dir(), args.name.as_ref())?;
    let mut over = over(signals, true).map_err(unheard)?;
    client.run(async {
        let mut events = client.events(args.follow).await?;
        loop {
            let event = tokio::select! {
                biased;
                _ = &mut over => return Ok(()),
                event = events.next() => event?,
            };
            match event {
                Some(event) => super::print(&line(&event, args.output.format))?,
                None => return Ok(()),
            }
        }
    })
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

/// Tells when a signal has come, or, where something `prints`, nobody is there any more to read that. A thread waits
/// for it, until the process ends.
pub(crate) fn over(signals: Signals, prints: bool) -> io::Result<oneshot::Receiver<()>> {
    let (sender, over) = oneshot::channel();
    let wait = move || {
        let out = io::stdout();
        let mut watched = [
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            // Of a pipe the system tells in any case that its reader is gone.
            PollFd::new(&out, PollFlags::empty()),
        ];
        let watched = if prints { &mut watched[..] } else { &mut watched[..1] };
        while poll(watched, None) == Err(rustix::io::Errno::INTR) {}
        // Whoever printed has ended.
        let _ = sender.send(());
    };
    thread::Builder::new().name("over".to_owned()).spawn(wait)?;
    Ok(over)
}
