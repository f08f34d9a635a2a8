//! What runs a node: the agent's side of each command, and the card.

mod borrow;
mod domains;
mod image;
mod lend;
pub(crate) mod lines;
mod managed;
mod manager;
mod map;
mod monitor;
mod neighbourhood;
mod rails;
mod refusal;
mod report;
mod serve;
mod signals;
mod socket;
mod switch;
mod trouble;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ::manager::model::OnSilence;
use base::ids::{DomainBlock, NodeId};
use io::address::{Addresses, RailAddress};
use io::agent::LoanSpec;
use io::rail::ethernet::EthernetSocket;
use node::Protection;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use self::lines::Lines;
use crate::cli::{BorrowArgs, LendArgs, Listen, NodeName, UpArgs};
use crate::config::{Config, Domain, LoanEdge, Slot};
use crate::exit::Failure;
use crate::line::Line;
use crate::rack::LogStyle;
use crate::state_dir::StateDir;
pub use borrow::{addresses_of, with_edge as loan};
pub(crate) use manager::{backup_of_files, found, write_backup};
pub use manager::{init, manager, rebuild, restore};
pub use refusal::words as refusal_words;
pub use serve::{HeardAt, Observer};
pub(crate) use signals::{Hangup, Signals};
pub use switch::switch;

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
    let rails =
        rails::listen(&rails::with_switches(rails::named(args.listen.clone()), &args.switch)?, &mut state)?;
    let domains = domains_of(&state, None)?;
    let lines =
        lend::lines(state.identity().lends_in(domains.node()), &lent.loans, lend::addresses_of(&rails))?;
    let parts = serve::Parts {
        lent,
        protection: args.protection.protection(),
        shared_memory: !args.no_shm,
        ..serve::Parts::bare(name, domains, state, control, rails)
    };
    let node = serve::Node::start(parts)?;
    Lines::to(args.line_file.as_deref()).tell(&lines, &BTreeSet::new())?;
    node.serve(&mut serve::Nothing)
}

/// Where the lender of a line, which calls itself `node`, is now: the line with those addresses. It is listened for
/// over UDP on all interfaces, and over Ethernet on these.
///
/// # Errors
/// It was not heard in time, or is somebody else; there is no such interface.
pub fn locate(node: &str, line: &Line, ethernet: &[String], patience: Duration) -> Result<Line, Failure> {
    let listen =
        |name: &String| EthernetSocket::for_everybody(name).map_err(|error| rails::unopened(name, &error));
    let sockets = ethernet.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    neighbourhood::locate(node, line, sockets, patience)
}

/// `causeway borrow`: serves until SIGTERM.
pub fn borrow(args: &BorrowArgs, line: Line) -> Result<(), Failure> {
    let name = args.node_name(&line);
    let machine = machine_of(args, &name, &line);
    let borrower = Borrower {
        name,
        state_dir: args.state_dir.as_deref(),
        protection: args.protection.protection(),
        shared_memory: !args.no_shm,
        ethernet: &args.ethernet,
        switches: &args.switch,
        listen: &args.listen,
        machines: machine.as_slice(),
    };
    let addresses = *line.addresses();
    let wanted = borrow::Wanted {
        line,
        edge: match (&args.vm, &args.nbd) {
            (Some(path), _) => LoanEdge::Vm { path: path.clone(), access: args.access.clone() },
            (None, Some(path)) => LoanEdge::Nbd { path: path.clone() },
            (None, None) => return Err(Failure::usage("give --nbd PATH or --vm PATH")),
        },
        io_timeout: args.io_timeout(),
        hold: args.on_silence.map(OnSilence::hold),
        machine: 0,
    };
    borrower.serve(&addresses, |own| {
        // What a slot holds comes with its machine.
        let loans = if machine.is_some() { Vec::new() } else { vec![borrow::loan(&wanted)?] };
        Ok((loans, borrow::Announce::new(own, vec![wanted])))
    })
}

/// The machine that `causeway borrow` plugs the function into, if it is told its monitor: as one of a node's file.
fn machine_of(args: &BorrowArgs, name: &NodeName, line: &Line) -> Option<Domain> {
    let (socket, qmp) = args.vm.clone().zip(args.qmp.clone())?;
    let slot = Slot {
        name: NodeName::cleaned("slot"),
        socket,
        access: args.access.clone(),
        bus: Some(args.bus.clone().unwrap_or_else(|| crate::qemu_args::port(0))),
        // As in a machine that was started with it.
        device: crate::qemu_args::device_id(0),
        preset: Some(line.clone()),
        on_silence: args.on_silence,
    };
    Some(Domain::of_slot(name.clone(), qmp, slot))
}

/// A node that borrows what no file names.
pub struct Borrower<'a> {
    /// What it is called.
    pub name: NodeName,
    /// Where its state is kept, if not in its usual place.
    pub state_dir: Option<&'a Path>,
    /// What it accepts.
    pub protection: Protection,
    /// Whether it shares memory with lenders on this machine.
    pub shared_memory: bool,
    /// Interfaces that lead to lenders on Ethernet, in the order of their addresses.
    pub ethernet: &'a [String],
    /// Ports of switches that the lenders are behind, one a rail; none: they are reached themselves.
    pub switches: &'a [RailAddress],
    /// Where it is for these.
    pub listen: &'a [Listen],
    /// Virtual machines with slots, each of which holds what is said here.
    pub machines: &'a [Domain],
}

impl Borrower<'_> {
    /// Borrows from lenders at `addresses` the loans that `prepare` gives, and what its machines have, and serves until
    /// SIGTERM or until the observer has done, which is made for the node's id.
    ///
    /// # Errors
    /// It cannot start or go on, `prepare` fails, or the observer says so.
    pub fn serve<O: Observer>(
        self,
        addresses: &Addresses,
        prepare: impl FnOnce(NodeId) -> Result<(Vec<LoanSpec>, O), Failure>,
    ) -> Result<(), Failure> {
        let mut state = open_state(self.state_dir, &self.name)?;
        let control = serve::control_socket(&self.name)?;
        let rails = if self.switches.is_empty() {
            rails::toward(addresses, 0, self.ethernet)?
        } else {
            rails::listen(&rails::behind(self.switches, self.listen)?, &mut state)?
        };
        let (borrowed, mut observer) = prepare(state.identity().id())?;
        let domains = domains_of(&state, None)?;
        let node = serve::Node::start(serve::Parts {
            borrowed,
            slots: domains::Domains::open_as_said(self.machines, domains, &state)?,
            protection: self.protection,
            shared_memory: self.shared_memory,
            ..serve::Parts::bare(self.name, domains, state, control, rails)
        })?;
        node.serve(&mut observer)
    }
}

/// `causeway node`: serves until SIGTERM. Its lines go to that file, else to standard output.
pub fn node(config: Config, file: &Path, line_file: Option<&Path>) -> Result<(), Failure> {
    let devices = &config.devices;
    lend::check(devices)?;
    let mut state = open_state(config.state_dir.as_deref(), &config.name)?;
    let control = serve::control_socket(&config.name)?;
    let block = domains_of(&state, config.domain_block)?;
    let numbered = domains::numbers(&config.domains, block, &state)?;
    let mut machines = (0..).filter(|machine| !numbered.contains(machine));
    let wanted: Vec<_> =
        config.loans.iter().map(|loan| borrow::Wanted::of_preset(loan, &mut machines)).collect();
    let lent = lend::open(devices, &state)?;
    let first = lent.loans.len();
    let only_borrows = config.devices.is_empty() && config.rails.is_empty();
    let listening = if only_borrows { None } else { Some(rails::listen(&config.rails, &mut state)?) };
    let borrowed: Vec<_> = wanted.iter().map(borrow::loan).collect::<Result<_, _>>()?;
    let attaches = !config.domains.is_empty();
    let slots = domains::Domains::open(&config.domains, block, &state)?;
    let rails = match listening {
        Some(rails) => rails,
        None => {
            let lenders = borrow::lenders(borrowed.iter().chain(&slots.1));
            rails::toward(&lenders, if attaches { borrow::SPARE_RAILS } else { 0 }, &[])?
        }
    };
    let own = state.identity().id();
    let lines =
        lend::lines(state.identity().lends_in(block.node()), &lent.loans, lend::addresses_of(&rails))?;
    let mut node = serve::Node::start(serve::Parts {
        name: config.name.clone(),
        domains: block,
        state,
        rails,
        lent,
        borrowed,
        slots,
        protection: config.protection,
        rail_mode: config.rail_mode,
        shared_memory: config.shared_memory,
        only_members: config.only_members,
        group_key: config.group_key.clone(),
        ledger: config.ledger.map(|size| size.0),
        control,
        reload: Some(serve::Reload::new(file, config, !only_borrows, Lines::to(line_file))),
    })?;
    node.tell_lines(&lines)?;
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

/// The domains of a node: those that its fabric has given it, else those of its file, else those that follow from its
/// id.
fn domains_of(state: &StateDir, wanted: Option<DomainBlock>) -> Result<DomainBlock, Failure> {
    let given = state.membership()?.map(|membership| membership.block);
    let given = given.and_then(|block| DomainBlock::new(block.base(), block.len()));
    match (given, wanted) {
        (Some(given), Some(wanted)) if given != wanted => Err(Failure::usage(format!(
            "the fabric has given this node the domains {given}, and its configuration file says {wanted}: take \
             `domain_block` out of the file"
        ))),
        (given, wanted) => Ok(given.or(wanted).unwrap_or(DomainBlock::of(state.identity().id()))),
    }
}

fn open_state(chosen: Option<&Path>, name: &NodeName) -> Result<StateDir, Failure> {
    let path = match chosen {
        Some(path) => path.to_owned(),
        None => crate::state_dir::default_path(name).map_err(Failure::refused)?,
    };
    StateDir::open_on_trial(&path).map_err(Failure::refused)
}
