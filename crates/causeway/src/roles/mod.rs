//! What runs a node: the agent's side of each command, and the card.

mod borrow;
mod domains;
mod image;
mod lend;
mod lines;
mod load;
mod map;
mod monitor;
mod rails;
mod refusal;
mod report;
mod serve;
mod signals;
mod socket;
mod trouble;

use std::process::ExitCode;

use base::ids::DomainBlock;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::cli::{
    BenchArgs, BorrowArgs, DemoArgs, LendArgs, LoadArgs, NativeArgs, NodeName, SimArgs, UpArgs,
};
use crate::config::{Config, LoanEdge};
use crate::exit::Failure;
use crate::line::Line;
use crate::rack::LogStyle;
use crate::state_dir::StateDir;
pub(crate) use signals::{Hangup, Signals};

/// The data-plane process that an agent starts.
pub fn card_main() -> ExitCode {
    match io::card::run() {
        Ok(()) => ExitCode::SUCCESS,
        // The other end of a card's messages is its agent: without it there is nothing to be a card for.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("causeway card: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `causeway lend`: serves until SIGTERM.
pub fn lend(args: &LendArgs) -> Result<(), Failure> {
    let name = args.node_name();
    let devices = lend::devices(args);
    lend::check(&devices)?;
    let mut state = open_state(args.state_dir.as_deref(), &name)?;
    let control = serve::control_socket(&name)?;
    let lent = lend::open(&devices, &state)?;
    let rails = rails::listen(&rails::named(args.listen.clone()), &mut state)?;
    let domains = DomainBlock::of(state.identity().id());
    let lines =
        lend::lines(state.identity().lends_in(domains.node()), &lent.loans, lend::addresses_of(&rails))?;
    let parts = serve::Parts {
        lent,
        protection: args.protection.protection(),
        shared_memory: !args.no_shm,
        ..serve::Parts::bare(name, state, control, rails)
    };
    let node = serve::Node::start(parts)?;
    match &args.line_file {
        Some(path) => lines::keep(path, &lines)?,
        None => lines::print(&lines)?,
    }
    node.serve(&mut serve::Nothing)
}

/// `causeway borrow`: serves until SIGTERM.
pub fn borrow(args: &BorrowArgs, line: Line) -> Result<(), Failure> {
    let name = args.node_name(&line);
    let state = open_state(args.state_dir.as_deref(), &name)?;
    let control = serve::control_socket(&name)?;
    let wanted = borrow::Wanted {
        line,
        edge: match (&args.vm, &args.nbd) {
            (Some(path), _) => LoanEdge::Vm { path: path.clone(), access: args.access.clone() },
            (None, Some(path)) => LoanEdge::Nbd { path: path.clone() },
            (None, None) => return Err(Failure::usage("give --nbd PATH or --vm PATH")),
        },
        io_timeout: args.io_timeout(),
        machine: 0,
    };
    let (rails, own) = (rails::toward(wanted.line.addresses(), 0)?, state.identity().id());
    let loans = vec![borrow::loan(&wanted)?];
    let parts = serve::Parts {
        borrowed: loans,
        protection: args.protection.protection(),
        shared_memory: !args.no_shm,
        ..serve::Parts::bare(name, state, control, rails)
    };
    let node = serve::Node::start(parts)?;
    node.serve(&mut borrow::Announce::new(own, vec![wanted]))
}

/// `causeway node`: serves until SIGTERM.
pub fn node(config: Config, file: &std::path::Path) -> Result<(), Failure> {
    let devices = &config.devices;
    lend::check(devices)?;
    let mut state = open_state(config.state_dir.as_deref(), &config.name)?;
    let control = serve::control_socket(&config.name)?;
    let mut machines = config.domains.len() as u32..;
    let wanted: Vec<_> =
        config.loans.iter().map(|loan| borrow::Wanted::of_preset(loan, &mut machines)).collect();
    let lent = lend::open(devices, &state)?;
    let first = lent.loans.len();
    let only_borrows = config.devices.is_empty() && config.rails.is_empty();
    let listening = if only_borrows { None } else { Some(rails::listen(&config.rails, &mut state)?) };
    let borrowed: Vec<_> = wanted.iter().map(borrow::loan).collect::<Result<_, _>>()?;
    let attaches = !config.domains.is_empty();
    let slots = domains::Domains::open(&config.domains, &state)?;
    let rails = match listening {
        Some(rails) => rails,
        None => {
            let lenders = borrow::lenders(borrowed.iter().chain(&slots.1));
            rails::toward(&lenders, if attaches { borrow::SPARE_RAILS } else { 0 })?
        }
    };
    let own = state.identity().id();
    let domains = config.domain_block.unwrap_or(DomainBlock::of(own));
    let lines =
        lend::lines(state.identity().lends_in(domains.node()), &lent.loans, lend::addresses_of(&rails))?;
    let node = serve::Node::start(serve::Parts {
        name: config.name.clone(),
        domains,
        state,
        rails,
        lent,
        borrowed,
        slots,
        protection: config.protection,
        shared_memory: config.shared_memory,
        ledger: config.ledger.map(|size| size.0),
        control,
        reload: Some(serve::Reload::new(file, config, !only_borrows)),
    })?;
    lines::print(&lines)?;
    node.serve(&mut borrow::Announce::behind(own, first, wanted))
}

/// `causeway up`: serves until SIGTERM.
pub(crate) fn up(args: &UpArgs, log: LogStyle) -> Result<(), Failure> {
    crate::rack::run(args, log)
}

/// Ends this node in order when `parent`, which has started it, ends: a rack whose supervisor is killed leaves nothing
/// behind.
pub fn end_with(parent: u32) -> Result<(), Failure> {
    let watched = set_parent_process_death_signal(Some(Signal::TERM));
    watched.map_err(|errno| Failure::io("cannot watch the rack", &errno.into()))?;
    match getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()) {
        Some(pid) if pid == parent => Ok(()),
        _ => Err(Failure::refused("the rack that this node belongs to has ended")),
    }
}

/// `causeway demo`.
pub fn demo(args: &DemoArgs) -> Result<(), Failure> {
    crate::demo::run(args)
}

/// `causeway bench`.
pub fn bench(args: &BenchArgs) -> Result<(), Failure> {
    crate::bench::run(args)
}

/// `causeway __load`, for `bench`: borrows, reads or writes for a while, prints what came of it and gives back.
pub fn load(args: &LoadArgs, lines: Vec<Line>) -> Result<(), Failure> {
    let name = args.name.clone().unwrap_or_else(|| NodeName::cleaned("load"));
    let state = open_state(args.state_dir.as_deref(), &name)?;
    let control = serve::control_socket(&name)?;
    let addresses = borrow::addresses_of(lines.iter().map(Line::addresses));
    let (rails, own) = (rails::toward(&addresses, 0)?, state.identity().id());
    let loans = lines.iter().map(|line| load::loan(args, line)).collect();
    let parts = serve::Parts {
        borrowed: loans,
        protection: args.protection.protection(),
        shared_memory: !args.no_shm,
        ..serve::Parts::bare(name, state, control, rails)
    };
    let node = serve::Node::start(parts)?;
    node.serve(&mut load::Measure::new(own, args))
}

/// `causeway __native`, for `bench`.
pub(crate) fn native(args: &NativeArgs) -> Result<(), Failure> {
    load::native(args)
}

/// `causeway sim`.
pub fn sim(args: &SimArgs) -> Result<(), Failure> {
    crate::sim_command::run(args, crate::bench::commit())
}

fn open_state(chosen: Option<&std::path::Path>, name: &crate::cli::NodeName) -> Result<StateDir, Failure> {
    let path = match chosen {
        Some(path) => path.to_owned(),
        None => crate::state_dir::default_path(name).map_err(Failure::refused)?,
    };
    StateDir::open_on_trial(&path).map_err(Failure::refused)
}
