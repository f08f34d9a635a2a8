//! `causeway up`: the nodes of a rack on this machine, each a process tree of its own, and their manager.
//!
//! The manager starts first, when the rack has one, and nodes in the order of the file, each when the one before has
//! printed its lines; one that shall belong to the manager's fabric joins it before its first start. They end in the
//! opposite order, so that what is borrowed is given back while its lender is still there, and the manager hears of it;
//! a second signal kills whoever is left. What dies is started again; what refuses to run ends the rack.

mod child;
mod fabric;
mod file;
mod log;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tracing::info;

use crate::cli::{UpArgs, print};
use crate::config::{Config, ConfigError};
use crate::exit::{Exit, Failure};
use crate::halt::{Halt, Interrupt};
use child::{Event, Kind, Supervised};
use fabric::Fabric;
use file::{Node, Rack};
pub(crate) use log::LogStyle;

/// What the manager is called beside the nodes.
const MANAGER: &str = "manager";
/// How often a signal is looked for.
const POLL: Duration = Duration::from_millis(50);
/// How long one may take until it has printed its lines.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the rack until a signal comes, or until all its nodes have ended, with which its manager ends.
///
/// # Errors
/// A wrong file, the refusal of a node, or one that did not end in order; the other nodes are ended before.
pub(crate) fn run(args: &UpArgs, log: LogStyle) -> Result<(), Failure> {
    let rack = Rack::load(&args.rack)?;
    if args.dry_run {
        return print(&plan(&rack)?);
    }
    let interrupt = Interrupt::install()?;
    let mut processes = Vec::new();
    let result = serve(&rack, &mut processes, log, &interrupt);
    // From here on, a signal means that this takes too long.
    interrupt.take();
    let ends: Vec<_> = processes.into_iter().rev().map(|process| process.stop(&interrupt)).collect();
    match result {
        Ok(()) | Err(Halt::Interrupted) => ends.into_iter().collect(),
        Err(Halt::Failed(failure)) => Err(failure),
    }
}

/// What would be started, in words. Nothing is changed.
fn plan(rack: &Rack) -> Result<String, Failure> {
    let fabric = Fabric::find(rack)?;
    let (mut names, mut text) = (Vec::new(), String::new());
    if let Some(manager) = &rack.manager {
        let folder = manager.folder.display();
        let how = if fabric.is_some() { "runs" } else { "founds a fabric, and runs" };
        text.push_str(&format!("{MANAGER}: {how} in {folder}\n"));
        names.push(MANAGER.to_owned());
    }
    for node in &rack.nodes {
        let file = node.config.display();
        let config = match Config::load(&node.config) {
            Ok(config) => config,
            // The rest of that file is right.
            Err(ConfigError::Wrong { problems, .. })
                if problems.iter().all(|it| will_be(rack, it, &names)) =>
            {
                let lines = problems.iter().filter_map(|problem| problem.absent.as_ref());
                let lines: Vec<_> = lines.map(|line| line.display().to_string()).collect();
                text.push_str(&format!("{file}: runs when there is {}\n", lines.join(", ")));
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let name = name_of(rack, node, &config, &names)?;
        let joins = match (&fabric, node.joins) {
            (_, false) => "",
            (Some(fabric), true) if fabric.has(&config)? => ", and belongs to the fabric",
            (_, true) => ", and joins the fabric",
        };
        text.push_str(&format!("{name}: runs by {file}{joins}\n"));
        names.push(name);
    }
    Ok(text)
}

/// A problem that is none once the nodes run that stand before.
fn will_be(rack: &Rack, problem: &crate::config::Problem, names: &[String]) -> bool {
    problem.absent.as_ref().is_some_and(|line| rack.will_have(line, names))
}

/// The node's name, which nobody else has.
fn name_of(rack: &Rack, node: &Node, config: &Config, names: &[String]) -> Result<String, Failure> {
    let name = config.name.to_string();
    if names.contains(&name) { Err(rack.twice(node, &name)) } else { Ok(name) }
}

fn serve(
    rack: &Rack,
    processes: &mut Vec<Supervised>,
    log: LogStyle,
    interrupt: &Interrupt,
) -> Result<(), Halt> {
    let (sender, events) = channel();
    let mut serving = Serving { rack, log, sender, events, interrupt, names: Vec::new(), processes };
    let fabric = Fabric::ready(rack)?;
    if let Some(fabric) = &fabric {
        serving.start((Kind::Manager, MANAGER.to_owned()), fabric.config_file())?;
        serving.wait_for(1, |event| matches!(event, Event::Serves { .. }))?;
        info!("to ask the manager: export CAUSEWAY_MANAGER={}", fabric.admin_file().display());
    }
    for node in &rack.nodes {
        let config = Config::load(&node.config).map_err(Failure::from)?;
        let name = name_of(rack, node, &config, &serving.names)?;
        if let Some(fabric) = fabric.as_ref().filter(|_| node.joins) {
            fabric.join(&config)?;
        }
        serving.start((Kind::Node, name), node.config.clone())?;
        // A line for each function, of which a device may have several.
        let lines = config.devices.iter().map(|device| device.layout.functions()).sum();
        serving.wait_for(lines, |event| matches!(event, Event::Lends { .. }))?;
    }
    info!(nodes = rack.nodes.len(), "the rack is up");
    while serving.processes.iter().any(|process| process.is_node() && !process.has_ended()) {
        if let Some(event) = serving.next()? {
            serving.act(event)?;
        }
    }
    Ok(())
}

/// What runs so far.
struct Serving<'a> {
    rack: &'a Rack,
    log: LogStyle,
    sender: Sender<Event>,
    events: Receiver<Event>,
    interrupt: &'a Interrupt,
    /// By process.
    names: Vec<String>,
    processes: &'a mut Vec<Supervised>,
}

impl Serving<'_> {
    fn start(&mut self, (kind, name): (Kind, String), config: std::path::PathBuf) -> Result<(), Failure> {
        let (index, log) = (self.processes.len(), (self.log, self.rack.name_width()));
        self.names.push(name.clone());
        self.processes.push(Supervised::start(index, (kind, name), config, log, self.sender.clone())?);
        Ok(())
    }

    /// Waits until the process that was started last has had so many of these events.
    fn wait_for(&mut self, mut count: usize, is_one: impl Fn(&Event) -> bool) -> Result<(), Halt> {
        let deadline = Instant::now() + START_TIMEOUT;
        let last = self.processes.len() - 1;
        while count > 0 {
            if let Some(event) = self.next()? {
                count -= usize::from(event.process() == Some(last) && is_one(&event));
                self.act(event)?;
            }
            if count > 0 && Instant::now() > deadline {
                let (called, seconds) = (self.called(last), START_TIMEOUT.as_secs());
                let why = format!("{called} has not printed its lines after {seconds} s; its log is above");
                return Err(Failure::unreachable(why).into());
            }
        }
        Ok(())
    }

    fn next(&self) -> Result<Option<Event>, Halt> {
        self.interrupt.check()?;
        match self.events.recv_timeout(POLL) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Ok(None),
        }
    }

    fn act(&self, event: Event) -> Result<(), Failure> {
        match event {
            Event::Lends { process, line } => {
                let name = &self.names[process];
                let path = self.rack.keep_line(name, &line)?;
                print(&format!("{name} lends {}\n", path.display()))
            }
            Event::Serves { process, edge } => print(&format!("{} serves {edge}\n", self.names[process])),
            Event::Refused { process, code } => {
                let exit = [Exit::Usage, Exit::Refused].into_iter().find(|exit| exit.code() == code);
                let called = self.called(process);
                Err(Failure::new(
                    exit.unwrap_or(Exit::Failed),
                    format_args!("{called} does not run (exit {code}); its log is above"),
                ))
            }
            Event::Ended => Ok(()),
        }
    }

    fn called(&self, process: usize) -> String {
        self.processes.get(process).map(Supervised::called).unwrap_or_default()
    }
}
