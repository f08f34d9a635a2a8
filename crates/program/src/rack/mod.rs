//! `causeway up`: the nodes of a rack on this machine, each a process tree of its own.
//!
//! Nodes start in the order of the file, each when the one before has printed its lines, and end in the opposite order,
//! so that what is borrowed is given back while its lender is still there; a second signal kills whoever is left. A
//! node that dies is started again; one that refuses to run ends the rack.

mod child;
mod file;
mod log;

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tracing::info;

use crate::cli::UpArgs;
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::halt::{Halt, Interrupt};
use child::{Event, Supervised};
use file::Rack;
pub(crate) use log::LogStyle;

/// How often a signal is looked for.
const POLL: Duration = Duration::from_millis(50);
/// How long a node may take until it has printed its lines.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the rack until a signal comes, or until all its nodes have ended.
///
/// # Errors
/// A wrong file, the refusal of a node, or one that did not end in order; the other nodes are ended before.
pub(crate) fn run(args: &UpArgs, log: LogStyle) -> Result<(), Failure> {
    let rack = Rack::load(&args.rack)?;
    let interrupt = Interrupt::install()?;
    let mut nodes = Vec::new();
    let result = serve(&rack, &mut nodes, log, &interrupt);
    // From here on, a signal means that this takes too long.
    interrupt.take();
    let ends: Vec<_> = nodes.into_iter().rev().map(|node| node.stop(&interrupt)).collect();
    match result {
        Ok(()) | Err(Halt::Interrupted) => ends.into_iter().collect(),
        Err(Halt::Failed(failure)) => Err(failure),
    }
}

fn serve(rack: &Rack, nodes: &mut Vec<Supervised>, log: LogStyle, interrupt: &Interrupt) -> Result<(), Halt> {
    let (sender, events) = channel();
    let log = (log, rack.name_width());
    let mut names: Vec<String> = Vec::new();
    for (index, path) in rack.configs.iter().enumerate() {
        let config = Config::load(path).map_err(Failure::from)?;
        let name = config.name.to_string();
        if names.contains(&name) {
            return Err(rack.twice(index, &name).into());
        }
        names.push(name.clone());
        nodes.push(Supervised::start(index, name, path.clone(), log, sender.clone())?);
        // A line for each function, of which a device may have several.
        let lines = config.devices.iter().map(|device| device.layout.functions()).sum();
        wait_for_lines(rack, &names, &events, (index, lines), interrupt)?;
    }
    info!(nodes = names.len(), "the rack is up");
    while nodes.iter().any(|node| !node.has_ended()) {
        if let Some(event) = next(&events, interrupt)? {
            act(rack, &names, event)?;
        }
    }
    Ok(())
}

/// Waits until node `awaited.0` has printed `awaited.1` lines.
fn wait_for_lines(
    rack: &Rack,
    names: &[String],
    events: &Receiver<Event>,
    (index, mut lines): (usize, usize),
    interrupt: &Interrupt,
) -> Result<(), Halt> {
    let deadline = std::time::Instant::now() + START_TIMEOUT;
    while lines > 0 {
        let event = next(events, interrupt)?;
        if matches!(&event, Some(Event::Lends { node, .. }) if *node == index) {
            lines -= 1;
        }
        if let Some(event) = event {
            act(rack, names, event)?;
        }
        if std::time::Instant::now() > deadline {
            let (name, seconds) = (&names[index], START_TIMEOUT.as_secs());
            let why =
                format!("the node {name} has not printed its lines after {seconds} s; its log is above");
            return Err(Failure::unreachable(why).into());
        }
    }
    Ok(())
}

fn next(events: &Receiver<Event>, interrupt: &Interrupt) -> Result<Option<Event>, Halt> {
    interrupt.check()?;
    match events.recv_timeout(POLL) {
        Ok(event) => Ok(Some(event)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
    }
}

fn act(rack: &Rack, names: &[String], event: Event) -> Result<(), Failure> {
    match event {
        Event::Lends { node, line } => {
            let path = rack.keep_line(&names[node], &line)?;
            crate::cli::print(&format!("{} lends {}\n", names[node], path.display()))
        }
        Event::Serves { node, edge } => crate::cli::print(&format!("{} serves {edge}\n", names[node])),
        Event::Refused { node, code } => {
            let exit = [Exit::Usage, Exit::Refused].into_iter().find(|exit| exit.code() == code);
            let name = &names[node];
            Err(Failure::new(
                exit.unwrap_or(Exit::Failed),
                format_args!("the node {name} does not run (exit {code}); its log is above"),
            ))
        }
        Event::Ended => Ok(()),
    }
}
