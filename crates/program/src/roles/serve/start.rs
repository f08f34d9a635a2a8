//! What a node is made of, and how it begins.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::DomainBlock;
use io::agent::{Agent, DriveSpec, Edge, LoanSpec, NodeSpec, Rail};
use io::discovery::Discovery;
use io::files::LastWrites;
use node::{GroupKey, Protection, RailMode, Secret};

use super::super::domains::Domains;
use super::super::lend;
use super::super::managed::Managed;
use super::super::signals::{Hangup, Hangups, Signals};
use super::ending::Ending;
use super::said::Said;
use super::{Node, Reload, Silences};
use crate::cli::NodeName;
use crate::control::ControlServer;
use crate::exit::Failure;
use crate::state_dir::StateDir;

/// What a node is made of.
pub(in crate::roles) struct Parts {
    pub(in crate::roles) name: NodeName,
    pub(in crate::roles) domains: DomainBlock,
    pub(in crate::roles) state: StateDir,
    pub(in crate::roles) rails: Vec<Rail>,
    /// What it lends.
    pub(in crate::roles) lent: lend::Opened,
    /// What it borrows from its start to its end.
    pub(in crate::roles) borrowed: Vec<LoanSpec>,
    /// Where functions are attached and detached while it runs.
    pub(in crate::roles) slots: (Domains, Vec<LoanSpec>),
    pub(in crate::roles) protection: Protection,
    pub(in crate::roles) rail_mode: RailMode,
    pub(in crate::roles) shared_memory: bool,
    /// See [`crate::config::Config::only_members`].
    pub(in crate::roles) only_members: bool,
    /// For notices to all.
    pub(in crate::roles) group_key: Option<Secret>,
    /// Bytes that the ledger may have.
    pub(in crate::roles) ledger: Option<u64>,
    pub(in crate::roles) control: ControlServer,
    /// The file that it can read again.
    pub(in crate::roles) reload: Option<Reload>,
}

impl Parts {
    /// Of a node with these domains that neither lends nor borrows anything yet.
    pub(in crate::roles) fn bare(
        name: NodeName,
        domains: DomainBlock,
        state: StateDir,
        control: ControlServer,
        rails: Vec<Rail>,
    ) -> Self {
        Self {
            name,
            domains,
            state,
            rails,
            lent: lend::Opened::default(),
            borrowed: Vec::new(),
            slots: (Domains::default(), Vec::new()),
            protection: Protection::default(),
            rail_mode: RailMode::default(),
            shared_memory: true,
            only_members: false,
            group_key: None,
            ledger: None,
            control,
            reload: None,
        }
    }
}

impl Node {
    /// A node of these parts.
    ///
    /// # Errors
    /// It cannot be, or what it needs cannot be had; nothing durable has changed then.
    pub(in crate::roles) fn start(parts: Parts) -> Result<Self, Failure> {
        let Parts { name, domains: block, mut state, rails, mut lent, borrowed, .. } = parts;
        let Parts { slots: (mut domains, slots), protection, rail_mode, shared_memory, .. } = parts;
        let Parts { control, reload, ledger, group_key, only_members, .. } = parts;
        let mut loans = std::mem::take(&mut lent.loans);
        loans.extend(borrowed);
        domains.follow(loans.len());
        loans.extend(slots);
        let settled = domains.settle_debts(&mut loans);
        check(block, &loans)?;
        let unheard = |error: std::io::Error| Failure::io("cannot watch for signals", &error);
        let hangup = if reload.is_some() { Hangup::Reloads } else { Hangup::Ends };
        let signals = Signals::listen(hangup).map_err(unheard)?;
        let hangups = reload.as_ref().map(|_| Hangups::listen()).transpose().map_err(unheard)?;
        let held = loans.iter().map(|loan| loan.config.tenancy).filter(|tenancy| tenancy.is_held);
        state.forget_strangers()?;
        let holders = state.holders(&held.map(|tenancy| tenancy.node).collect())?;
        let managed = Managed::start(&state, only_members)?;
        let memory = lent.last_writes.is_none().then(|| writes_of_memory(&state, &lent.drives)).transpose();
        let memory = memory.map_err(|error| Failure::io("cannot have memory for the node", &error))?;
        // Whatever fails from here on is taken back: an image counts as written to by a card from then on.
        lent.begin(&state).inspect_err(|_| lend::withdraw(&lent.layouts, &state))?;
        let lend::Opened { drives, layouts, devices, last_writes, .. } = lent;
        let last_writes = last_writes.or(memory).expect("memory where there is no page");
        let spec = NodeSpec {
            name: name.to_string(),
            identity: state.identity().clone(),
            domains: block,
            incarnation: state.incarnation(),
            rails,
            drives,
            loans,
            holders,
            protection,
            rail_mode,
            shared_memory,
            last_writes,
            ledger,
            drives_may_come: reload.is_some(),
            fabric: managed.as_ref().and_then(Managed::members),
        };
        let agent = Agent::start(spec).map_err(|error| {
            lend::withdraw(&layouts, &state);
            Failure::io("cannot start the node", &error)
        })?;
        state.keep();
        domains.end_debts(&settled, &state);
        Ok(Self {
            discovery: Discovery::new(
                agent.view().spec().identity.id(),
                group_key.map(|key| GroupKey::new(&key.0)),
            ),
            agent,
            managed,
            state,
            domains,
            http: control.address(),
            control: Some(control),
            reload,
            hangups,
            layouts,
            devices,
            signals,
            ending: Ending::default(),
            said: Said::new(),
            silences: Silences::default(),
            starts: true,
            returned: BTreeMap::new(),
            is_kept: true,
        })
    }
}

/// Whether one node can have all these loans.
fn check(block: DomainBlock, loans: &[LoanSpec]) -> Result<(), Failure> {
    if loans.len() > node::MAX_LOANS {
        let most = node::MAX_LOANS;
        return Err(Failure::usage(format!(
            "a node has at most {most} loans; start another node for the rest"
        )));
    }
    homeless(block, loans).map_or(Ok(()), Err)?;
    stands_twice(loans).map_or(Ok(()), |function| {
        Err(Failure::usage(format!("{function} stands twice among what this node lends and borrows")))
    })
}

/// Why not all virtual machines of a node can have a domain of their own, if so.
fn homeless(block: DomainBlock, loans: &[LoanSpec]) -> Option<Failure> {
    let machine = |loan: &LoanSpec| match loan.config.role.edge() {
        Some(Edge::Vm { machine, .. }) => Some(*machine),
        _ => None,
    };
    let last = loans.iter().filter_map(machine).max().filter(|last| block.machine(*last).is_none())?;
    let (wanted, most) = (u64::from(last) + 1, block.machines());
    Some(Failure::usage(format!(
        "this node has {wanted} virtual machines, and domains for {most}: give it more with `domain_block` in its \
         configuration file"
    )))
}

/// A function with two loans on this node: whoever speaks of it could mean either.
fn stands_twice(loans: &[LoanSpec]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    let mut filled = loans.iter().filter(|loan| !loan.is_vacant());
    filled.find(|loan| !seen.insert(loan.config.function)).map(|loan| loan.function.as_str())
}

/// Of a node that lends memory alone, as yet: these drives.
fn writes_of_memory(state: &StateDir, drives: &[Option<DriveSpec>]) -> std::io::Result<LastWrites> {
    let page = LastWrites::in_memory()?;
    page.begin(state.incarnation(), drives.iter().flatten().map(lend::written));
    Ok(page)
}
