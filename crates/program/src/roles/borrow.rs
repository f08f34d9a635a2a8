//! What a node borrows, and what it says about it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use base::ids::NodeId;
use io::address::Addresses;
use io::agent::{AgentEvent, Edge, LoanEnd, LoanSpec};

use manager::model::OnSilence;

use super::{lend, serve, socket};
use node::{FunctionId, LoanConfig, Refusal, Secret, Title};

use crate::assigned::Assigned;
use crate::cli::SocketAccess;
use crate::config::{Loan, LoanEdge};
use crate::exit::Failure;
use crate::line::{FunctionName, Line};

/// A loan that this node is to take.
pub struct Wanted {
    pub(super) line: Line,
    pub(super) edge: LoanEdge,
    pub(super) io_timeout: Duration,
    /// For how long its lender may be silent; `None`: for ever.
    pub(super) hold: Option<Duration>,
    /// Of a slot: which of the node's virtual machines has it.
    pub(super) machine: u32,
}

impl Wanted {
    /// What a configuration file asks for. Each virtual machine that it names only by a socket is taken for another
    /// one: its number comes from `machines`.
    pub(super) fn of_preset(loan: &Loan, machines: &mut dyn Iterator<Item = u32>) -> Self {
        let (line, edge, io_timeout) = (loan.line.clone(), loan.edge.clone(), loan.io_timeout);
        let machine = match edge {
            LoanEdge::Vm { .. } => machines.next().unwrap_or(u32::MAX),
            LoanEdge::Nbd { .. } => 0,
        };
        Self { line, edge, io_timeout, hold: loan.on_silence.map(OnSilence::hold), machine }
    }
}

/// What gives this node a function.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Claim {
    /// Its line.
    Line(Box<Line>),
    /// A manager has assigned it to a slot of this node.
    Assigned(Box<Assigned>),
}

impl From<&Line> for Claim {
    fn from(line: &Line) -> Self {
        Self::Line(Box::new(line.clone()))
    }
}

impl Claim {
    /// How its lender calls the function.
    pub(super) fn function(&self) -> &FunctionName {
        match self {
            Self::Line(line) => line.function(),
            Self::Assigned(assigned) => &assigned.function,
        }
    }

    /// How nodes name it.
    pub(super) fn function_id(&self) -> FunctionId {
        match self {
            Self::Line(line) => lend::function_id(line.secret().reveal()),
            Self::Assigned(assigned) => assigned.number,
        }
    }

    /// The loan of it, for whoever uses it.
    pub(super) fn loan(&self, edge: Edge, io_timeout: Duration) -> LoanSpec {
        match self {
            Self::Line(line) => with_edge(line, edge, io_timeout),
            Self::Assigned(assigned) => {
                let Assigned { generation, slot, number, group, lender, addresses, .. } = **assigned;
                let end = LoanEnd::Borrow { lender, peers: addresses, edge, io_timeout };
                let config = LoanConfig::by(Title::Entry { generation, slot }, number, end);
                let function = assigned.function.as_str().to_owned();
                LoanSpec { function, config: LoanConfig { group, ..config }, hold: None }
            }
        }
    }
}

/// The loan of a line. Its socket path must be free, or left by someone dead.
pub(super) fn loan(wanted: &Wanted) -> Result<LoanSpec, Failure> {
    let edge = match wanted.edge.clone() {
        LoanEdge::Nbd { path } => {
            let listener = Some(socket::bind(&path, &SocketAccess::default())?);
            Edge::Nbd { path, listener }
        }
        LoanEdge::Vm { path, access } => {
            let listener = Some(socket::bind(&path, &access)?);
            Edge::Vm { path, listener, machine: wanted.machine }
        }
    };
    Ok(LoanSpec { hold: wanted.hold, ..with_edge(&wanted.line, edge, wanted.io_timeout) })
}

/// The loan of a line, for whoever uses it.
pub fn with_edge(line: &Line, edge: Edge, io_timeout: Duration) -> LoanSpec {
    let secret = *line.secret().reveal();
    let end = LoanEnd::Borrow { lender: line.lender(), peers: *line.addresses(), edge, io_timeout };
    let config = LoanConfig::new(Secret(secret), lend::function_id(&secret), end);
    let config = LoanConfig { group: line.group(), ..config };
    LoanSpec { function: line.function().as_str().to_owned(), config, hold: None }
}

/// Rails of a node that attaches what it does not know yet, if nobody says more.
pub(super) const SPARE_RAILS: usize = 2;

/// On each rail an address of one of the lenders that have one there: a node needs these rails.
pub fn addresses_of<'a>(lenders: impl Iterator<Item = &'a Addresses>) -> Addresses {
    let mut some = Addresses::NONE;
    lenders.flat_map(Addresses::iter).for_each(|(rail, address)| some.set(rail, address));
    some
}

/// The same of the lenders of loans.
pub(super) fn lenders<'a>(loans: impl Iterator<Item = &'a LoanSpec>) -> Addresses {
    addresses_of(loans.filter_map(|loan| match &loan.config.role {
        LoanEnd::Borrow { peers, .. } => Some(peers),
        LoanEnd::Lend { .. } | LoanEnd::Vacant { .. } => None,
    }))
}

/// Prints each edge once its drive is usable, and ends the node where a loan cannot be had.
pub(super) struct Announce {
    /// This node.
    own: NodeId,
    /// What is borrowed, by place.
    loans: BTreeMap<usize, Announced>,
    started: Instant,
    /// A single loan is all the node is for, in this place: it ends when that cannot be had.
    alone: Option<usize>,
    /// What was given back without all that was answered.
    lost: BTreeSet<String>,
    /// Why the lender has refused it last, which may pass.
    refusal: Option<String>,
    /// The loan that the node is for is lost: its lender was silent for so long.
    silent: Option<Duration>,
}

struct Announced {
    wanted: Wanted,
    is_printed: bool,
}

impl Announce {
    /// For `causeway borrow`.
    pub(super) fn new(own: NodeId, wanted: Vec<Wanted>) -> Self {
        Self { alone: Some(0), ..Self::behind(own, 0, wanted) }
    }

    /// For a node with `first` other loans.
    pub(super) fn behind(own: NodeId, first: usize, wanted: Vec<Wanted>) -> Self {
        let loans = wanted.into_iter().map(|wanted| Announced { wanted, is_printed: false });
        let loans = (first..).zip(loans).collect();
        let (lost, started) = (BTreeSet::new(), Instant::now());
        Self { own, loans, started, alone: None, lost, refusal: None, silent: None }
    }

    /// The loan that the node is for, as long as it has not been had.
    fn awaited(&self) -> Option<&Wanted> {
        self.alone.and_then(|place| self.unprinted(place))
    }

    fn unprinted(&self, place: usize) -> Option<&Wanted> {
        self.loans.get(&place).filter(|loan| !loan.is_printed).map(|loan| &loan.wanted)
    }

    /// Why a node ends that was for one loan, when its lender, which was waited for in vain, has the function back.
    fn is_over(&self, place: usize, silent: Duration) -> Failure {
        let function = self.loans.get(&place).map_or("it", |loan| loan.wanted.line.function().as_str());
        Failure::unreachable(format!(
            "the lender of {function} was silent for {} s, so the loan has ended; it is heard again, and has the \
             function back: start this command again to borrow it anew",
            silent.as_secs()
        ))
    }

    fn refused(&mut self, place: usize, refusal: &Refusal) -> Result<(), Failure> {
        let Some(wanted) = self.unprinted(place) else { return Ok(()) };
        match super::refusal::words(wanted.line.function().as_str(), refusal, self.own) {
            // That may pass: the lender is asked again until the time is over.
            Some(why) if matches!(refusal, Refusal::NotLent | Refusal::NoRoom) => {
                self.refusal = Some(why);
                Ok(())
            }
            Some(why) if self.alone.is_some() => Err(Failure::refused(why)),
            // The log has it, and the lender may think of it otherwise later.
            _ => Ok(()),
        }
    }
}

impl serve::Observer for Announce {
    fn handle(&mut self, event: &AgentEvent) -> Result<(), Failure> {
        match event {
            AgentEvent::Ready(loan) => {
                if let Some(loan) = self.loans.get_mut(loan)
                    && !std::mem::replace(&mut loan.is_printed, true)
                {
                    let printed = crate::cli::print(&format!("{}\n", loan.wanted.edge.uri()));
                    // A node with a file serves on, whoever reads what it prints.
                    printed.or_else(|failure| if self.alone.is_some() { Err(failure) } else { Ok(()) })?;
                }
            }
            AgentEvent::Refused { loan, refusal } => {
                self.refused(*loan, refusal)?;
            }
            AgentEvent::GivenBack { loan, has_lost } => {
                let lost = self.loans.get(loan).filter(|_| *has_lost);
                self.lost.extend(lost.map(|loan| loan.wanted.line.function().to_string()));
                if let Some(silent) = self.silent.filter(|_| self.alone == Some(*loan)) {
                    return Err(self.is_over(*loan, silent));
                }
            }
            AgentEvent::Unusable { loan, why } => {
                if let Some(wanted) = self.unprinted(*loan).filter(|_| self.alone.is_some()) {
                    let function = wanted.line.function();
                    return Err(Failure::refused(format!("{function}: {why}")));
                }
            }
            AgentEvent::Tenant { .. }
            | AgentEvent::Applied { .. }
            | AgentEvent::HoldOver { .. }
            | AgentEvent::StoreTenancy { .. }
            | AgentEvent::StoreHolder(_)
            | AgentEvent::ForgetHolder(_)
            | AgentEvent::RaiseIncarnation { .. }
            | AgentEvent::Overtaken(_)
            | AgentEvent::Altered(_)
            | AgentEvent::Grown(_)
            | AgentEvent::LoadEnded(..)
            | AgentEvent::MediaFault(_)
            | AgentEvent::Persist { .. } => {}
        }
        Ok(())
    }

    fn comes(&mut self, place: usize, wanted: Wanted) {
        self.loans.insert(place, Announced { wanted, is_printed: false });
    }

    fn goes(&mut self, place: usize) {
        self.loans.remove(&place);
    }

    fn lost(&mut self, place: usize, waited: Duration) {
        if self.alone == Some(place) {
            self.silent = Some(waited);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.awaited().map(|wanted| self.started + wanted.io_timeout)
    }

    fn overdue(&self, has_met: bool, heard_at: &mut serve::HeardAt<'_>) -> Failure {
        let Some(wanted) = self.awaited() else {
            return Failure::unreachable("the lender did not answer in time");
        };
        if let Some(why) = &self.refusal {
            return Failure::refused(why.clone());
        }
        let (function, seconds) = (wanted.line.function(), wanted.io_timeout.as_secs());
        let tried: Vec<String> =
            wanted.line.addresses().iter().map(|(_, address)| address.to_string()).collect();
        let tried = tried.join(" and ");
        let node = wanted.line.lender().key.id();
        let others = wanted.line.addresses().iter();
        let mut others = others.filter_map(|(_, at)| Some((at, heard_at(at).filter(|it| *it != node)?)));
        if let Some((at, other)) = others.next().filter(|_| !has_met) {
            return Failure::unreachable(format!(
                "the lender of {function} did not answer within {seconds} s; tried {tried}. The line is of node \
                 {node}, and at {at} node {other} says that it is there: use the line that this one has printed, or \
                 have the other one back, whose state folder makes it what it was"
            ));
        }
        Failure::unreachable(if has_met {
            format!(
                "the lender of {function} at {tried} answers, but the drive was not usable within {seconds} s: its log \
                 says why"
            )
        } else {
            format!(
                "nobody answered for {function} within {seconds} s; tried {tried}: is `causeway lend` running \
                 there, is this the line that it printed last (it is of node {node}, as `causeway id` says there), and \
                 do firewalls on the way let it pass?"
            )
        })
    }

    fn conclude(&self) -> Result<(), Failure> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = self.lost.iter().map(String::as_str).collect();
        Err(Failure::failed(format!(
            "{} was given back, but writes that were answered and never flushed could not be made durable, and may be \
             lost; look at the lender's log and check the data",
            names.join(", ")
        )))
    }
}
