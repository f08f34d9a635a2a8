//! From arguments to an exit code.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use serde::Serialize;

use super::{
    BorrowArgs, Cli, Command, DeviceCommand, IdArgs, LimitArgs, LogFormat, NodeArgs, NodeName, Output,
    PeersArgs, StatusArgs, SwitchArgs, SwitchCommand, TopoArgs, TopoOutput, events, hide_line, join, link,
    manager, reload, slots, switch_ctl,
};
use crate::config::{Config, SwitchConfig};
use crate::control::{ControlError, Request, Response, find, running, runtime_dir};
use crate::exit::{Exit, Failure};
use crate::line::{Line, LineArgument, ReadLineError, redact};
use crate::rack::LogStyle;
use crate::state_dir::{self, StateDir};
use crate::status::{self, Map, Peers, Status, Topo};
use crate::{logging, roles};

/// Runs the command that the arguments (the program's name first) say, with `command`, and returns what the process
/// ends with.
pub fn run<C: Subcommand>(
    arguments: impl IntoIterator<Item = OsString>,
    command: impl FnOnce(&C, LogStyle) -> Result<(), Failure>,
) -> ExitCode {
    let cli = match Cli::<C>::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    logging::start(cli.log_format, cli.log_level);
    match command(&cli.command, LogStyle { format: cli.log_format, level: cli.log_level }) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            report(&failure, cli.log_format);
            failure.exit().into()
        }
    }
}

/// Writes a result to standard output. A reader that has gone, as `head` does, is no failure.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::io("cannot write to standard output", &error))
        }
        _ => Ok(()),
    }
}

impl Command {
    /// Does what it says; `log` is the style of this process's log.
    ///
    /// # Errors
    /// Why it did not come to its end in order.
    pub fn run(&self, log: LogStyle) -> Result<(), Failure> {
        match self {
            Self::Lend(args) => roles::lend(args),
            Self::Borrow(args) => borrow(args),
            Self::Node(args) => node(args),
            Self::Switch(args) => switch(args),
            Self::Up(args) => roles::up(args, log),
            Self::Status(args) => show_status(args),
            Self::Reload(args) => reload::run(args),
            Self::Events(args) => match &args.manager {
                None => events::run(args),
                Some(file) => manager::follow(args, file.clone()),
            },
            Self::Link(command) => link::run(command),
            Self::Peers(args) => peers(args),
            Self::Topo(args) => topo(args),
            Self::Join(args) => join::run(args),
            Self::Id(args) => show_id(args),
            Self::Limit(args) => limit(args),
            Self::Device(DeviceCommand::Clear(args)) => {
                order(args.name.as_ref(), &Request::ClearFault { device: args.device.clone() })
            }
            Self::Device(DeviceCommand::List(args)) => manager::devices(args),
            Self::Device(DeviceCommand::Show(args)) => manager::show_device(args),
            Self::Attach(args) => slots::attach(args, &read_hidden(&args.line)?),
            Self::Detach(args) => slots::detach(args),
            Self::QemuArgs(args) => crate::qemu_args::run(args),
            Self::Fabric(command) => command.run(),
        }
    }
}

fn borrow(args: &BorrowArgs) -> Result<(), Failure> {
    if args.nbd.is_none() && args.vm.is_none() {
        return Err(Failure::usage(
            "borrow for whom? Give --nbd PATH for programs that speak NBD, or --vm PATH for a virtual machine",
        ));
    }
    let line = match &args.secret {
        None => read_hidden(&args.line)?,
        Some(secret) => locate(args, secret)?,
    };
    roles::borrow(args, line)
}

/// The line of `NODE/FUNCTION`, whose secret another line knows.
fn locate(args: &BorrowArgs, secret: &LineArgument) -> Result<Line, Failure> {
    let named = match &args.line {
        LineArgument::Text(text) if !text.contains(':') => text.split_once('/'),
        _ => None,
    };
    let (node, function) = named.filter(|(node, _)| !node.is_empty()).ok_or_else(|| {
        Failure::usage("with --secret the function is named as NODE/FUNCTION, as `causeway peers` shows it")
    })?;
    let line = read_hidden(secret)?;
    if line.function().as_str() != function {
        return Err(Failure::usage(format!(
            "the line after --secret is for {}, not for {}: each function has a secret of its own",
            line.function(),
            function.escape_debug()
        )));
    }
    // Behind a switch it is called by who it is, wherever it says that it is.
    if !args.switch.is_empty() {
        return Ok(line);
    }
    roles::locate(node, &line, &args.ethernet, args.io_timeout())
}

fn peers(args: &PeersArgs) -> Result<(), Failure> {
    let peers = ask_peers(args.name.as_ref())?;
    match args.output.format {
        Output::Text => print(&status::render_peers(&peers)),
        Output::Json => print_json(&peers),
    }
}

fn topo(args: &TopoArgs) -> Result<(), Failure> {
    let status = ask_status(args.name.as_ref())?;
    if status.switch.is_some() {
        return Err(Failure::usage(format!(
            "{} is a switch, which knows no nodes: ask a node, or see `causeway status --name {0}`",
            status.node.name
        )));
    }
    let peers = ask_peers(args.name.as_ref())?;
    let topo = Topo::new(&status, &peers);
    match args.format {
        TopoOutput::Text => print(&status::render_topo(&topo)),
        TopoOutput::Json => print_json(&topo),
        TopoOutput::Dot => print(&status::render_dot(&topo)),
    }
}

/// Reads a line, and takes one that was typed as an argument out of the process list.
fn read_hidden(argument: &LineArgument) -> Result<Line, Failure> {
    let line = read_line(argument)?;
    if let LineArgument::Text(text) = argument {
        tracing::warn!(
            "a line given as an argument shows in the process list, if only for a moment, and stays in the shell's \
             history: give it as @FILE, or as - on standard input"
        );
        let error = hide_line(text);
        tracing::warn!(%error, "the line with its key stays in the process list");
    }
    Ok(line)
}

/// Reads a line from where the argument says.
///
/// # Errors
/// It cannot be read, or is none.
pub fn read_line(line: &LineArgument) -> Result<Line, Failure> {
    line.read().map_err(|error| match &error {
        ReadLineError::Read { error: cause, .. } => Failure::new(Exit::of_io(cause), &error),
        ReadLineError::Empty { .. } | ReadLineError::Line(_) => Failure::usage(&error),
    })
}

fn node(args: &NodeArgs) -> Result<(), Failure> {
    let config = match (&args.command, &args.config) {
        (Some(command), _) => return command.run(),
        (None, Some(config)) => config,
        (None, None) => return Err(Failure::usage("which node? Give --config NODE.toml")),
    };
    if let Some(parent) = args.end_with {
        roles::end_with(parent)?;
    }
    roles::node(Config::load(config)?, config, args.line_file.as_deref())
}

fn switch(args: &SwitchArgs) -> Result<(), Failure> {
    let config = match (&args.command, &args.config) {
        (Some(SwitchCommand::Ctl(args)), _) => return switch_ctl::run(args),
        (Some(SwitchCommand::List(args)), _) => return manager::switches(args),
        (Some(SwitchCommand::Show(args)), _) => return manager::show_switch(args),
        (None, Some(config)) => config,
        (None, None) => return Err(Failure::usage("which switch? Give --config S.toml")),
    };
    if let Some(parent) = args.end_with {
        roles::end_with(parent)?;
    }
    roles::switch(SwitchConfig::load(config)?)
}

fn ask_peers(name: Option<&NodeName>) -> Result<Box<Peers>, Failure> {
    let client = find(&runtime_dir(), name)?;
    match client.call(&Request::Peers)? {
        Response::Peers { peers } => Ok(peers),
        Response::Refused { why } => Err(Failure::refused(format_args!("the node refused: {why}"))),
        _ => Err(ControlError::Answer { name: "asked".to_owned(), why: "no peers".to_owned() }.into()),
    }
}

pub(super) fn ask_status(name: Option<&NodeName>) -> Result<Box<Status>, Failure> {
    let client = find(&runtime_dir(), name)?;
    match client.call(&Request::Status)? {
        Response::Status { status } => Ok(status),
        Response::Refused { why } => Err(Failure::refused(format_args!("the node refused: {why}"))),
        _ => {
            let why = "no status".to_owned();
            Err(ControlError::Answer { name: "asked".to_owned(), why }.into())
        }
    }
}

/// A node that runs is asked. Of one that does not the folder is looked at, and made if it is missing: whoever is to be
/// let in has an id before it calls.
fn show_id(args: &IdArgs) -> Result<(), Failure> {
    let folder = match (&args.state_dir, &args.name) {
        (Some(folder), _) => Some(folder.clone()),
        (None, Some(name)) if !is_running(name)? => Some(state_dir::default_path(name)?),
        (None, _) => None,
    };
    let id = match folder {
        None => ask_status(args.name.as_ref())?.node.id,
        Some(folder) => match StateDir::identify(&folder)? {
            Some(id) => id.to_string(),
            None => {
                let state = StateDir::open(&folder)?;
                let state_dir = folder.display();
                tracing::info!(%state_dir, "a new node, which is to be started with this folder");
                state.identity().id().to_string()
            }
        },
    };
    print(&format!("{id}\n"))
}

fn is_running(name: &NodeName) -> Result<bool, Failure> {
    Ok(running(&runtime_dir())?.iter().any(|(running, _)| running == name.as_str()))
}

fn show_status(args: &StatusArgs) -> Result<(), Failure> {
    let name = args.name.as_ref();
    match (args.output.format, args.map) {
        (Output::Text, false) => print(&status::render(&*ask_status(name)?)),
        (Output::Text, true) => print(&status::render_map(&*ask_map(name)?)),
        (Output::Json, map) => {
            let document =
                Document { status: ask_status(name)?, map: map.then(|| ask_map(name)).transpose()? };
            print_json(&document)
        }
    }
}

pub(super) fn print_json(document: &impl Serialize) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(document);
    let json = json.map_err(|error| Failure::unreachable(format_args!("no document: {error}")))?;
    print(&format!("{json}\n"))
}

/// What `status -o json` prints.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    status: Box<Status>,
    #[serde(flatten)]
    map: Option<Box<Map>>,
}

fn ask_map(name: Option<&NodeName>) -> Result<Box<Map>, Failure> {
    match find(&runtime_dir(), name)?.call(&Request::Map)? {
        Response::Map { map } => Ok(map),
        Response::Refused { why } => Err(Failure::refused(format_args!("the node refused: {why}"))),
        _ => Err(ControlError::Answer { name: "asked".to_owned(), why: "no map".to_owned() }.into()),
    }
}

fn limit(args: &LimitArgs) -> Result<(), Failure> {
    node::Limit::new(args.iops, args.bytes_per_s).map_err(Failure::usage)?;
    let function = args.function.to_string();
    let request = Request::Limit { function, iops: args.iops, bytes_per_s: args.bytes_per_s };
    order(args.name.as_ref(), &request)
}

/// Asks a node for something that it does or refuses.
pub(super) fn order(name: Option<&NodeName>, request: &Request) -> Result<(), Failure> {
    let client = find(&runtime_dir(), name)?;
    match client.call(request)? {
        Response::Done => Ok(()),
        Response::Refused { why } => Err(Failure::refused(format_args!("the node refused: {why}"))),
        _ => {
            let why = "something else".to_owned();
            Err(ControlError::Answer { name: "asked".to_owned(), why }.into())
        }
    }
}

/// clap's help goes to standard output; its complaints go to standard error, without what looks like a key.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Exit::Done.into()
        }
        _ => {
            let rendered = error.render();
            let text =
                if io::stderr().is_terminal() { rendered.ansi().to_string() } else { rendered.to_string() };
            let _ = io::stderr().write_all(redact(&text).as_bytes());
            Exit::Usage.into()
        }
    }
}

fn report(failure: &Failure, format: LogFormat) {
    match format {
        LogFormat::Json => tracing::error!(exit = failure.exit().code(), "{failure}"),
        LogFormat::Text => {
            let _ = writeln!(io::stderr(), "causeway: {failure}");
        }
    }
}
