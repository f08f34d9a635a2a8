//! What is asked of a running node over its control socket.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use io::agent::{Agent, LoanSpec};
use io::capture::{MEMORY_LINK, Wish};
use io::event::Event;
use node::Limit;

use super::super::managed::Managed;
use super::super::{map, neighbourhood, report};
use super::{Node, Observer};
use crate::control::capture::{Capture, CaptureOrder, Link};
use crate::control::{Answers, Impairment, Request, Response};
use crate::exit::Failure;
use crate::line::FunctionName;
use crate::state_dir::StateDir;

/// As `status` names the memory that is shared with other nodes.
const MEMORY: &str = "shm";

/// A node that is asked.
pub(super) struct Answering<'a> {
    pub(super) node: &'a mut Node,
    pub(super) observer: &'a mut dyn Observer,
    /// It is to end.
    pub(super) stop: &'a mut bool,
}

impl Answers for Answering<'_> {
    fn answer(&mut self, request: Request) -> Response {
        self.node.answer(&request, self.observer, self.stop)
    }

    fn capture(&mut self, order: &CaptureOrder) -> Result<Capture, String> {
        capture(&mut self.node.agent, order)
    }
}

fn capture(agent: &mut Agent, order: &CaptureOrder) -> Result<Capture, String> {
    let view = agent.view();
    let mut links: Vec<Link> = view
        .spec()
        .rails
        .iter()
        .map(|rail| {
            let local = rail.socket.local();
            let (medium, local) = (report::medium_of(local).to_owned(), local.to_string());
            Link { number: rail.id.index(), name: rail.name.clone(), medium, local }
        })
        .collect();
    if view.spec().shared_memory {
        links.push(Link {
            number: MEMORY_LINK,
            name: MEMORY.to_owned(),
            medium: "shm".to_owned(),
            local: String::new(),
        });
    }
    let name = view.spec().name.clone();
    Capture::begin(name, links, order, |link| agent.capture(Wish { link, opened: order.opened }))
}

impl Node {
    /// What a request comes to; `stop` is set where the node is to end.
    pub(super) fn answer(
        &mut self,
        request: &Request,
        observer: &mut dyn Observer,
        stop: &mut bool,
    ) -> Response {
        let (agent, domains, state) = (&mut self.agent, &mut self.domains, &self.state);
        match request {
            Request::Attach { slot, line } => domains.attach(slot, line, agent, state),
            Request::Detach { slot } => domains.detach(slot, agent, state),
            Request::Slot { slot } => domains.look(slot, agent),
            Request::Status => {
                let (loans, devices) = self.leaving();
                let leaving = report::Leaving { loans, devices };
                let view = self.agent.view();
                let is_shared = |node| self.said.is_shared(node);
                let mut status = report::status(&view, self.http, &self.domains, &leaving, &is_shared);
                status.fabric = self.managed.as_ref().map(Managed::said);
                Response::Status { status: Box::new(status) }
            }
            Request::Map => Response::Map { map: Box::new(map::map(&agent.view(), domains)) },
            Request::Peers => {
                let peers = neighbourhood::peers(agent, &mut self.discovery);
                Response::Peers { peers: Box::new(peers) }
            }
            Request::Impair(impairment) => impair(agent, impairment),
            Request::ClearFault { device } => clear_fault(agent, state, self.said.faults(), device),
            Request::Limit { function, iops, bytes_per_s } => {
                limit(agent, self.managed.as_ref(), function, *iops, *bytes_per_s)
            }
            Request::Reload { dry_run } => {
                Response::Reload { report: Box::new(self.reload(*dry_run, observer)) }
            }
            Request::Stop => {
                *stop = true;
                Response::Done
            }
        }
    }
}

fn limit(
    agent: &mut Agent,
    managed: Option<&Managed>,
    function: &str,
    iops: Option<u64>,
    bytes_per_s: Option<u64>,
) -> Response {
    let limit = match Limit::new(iops, bytes_per_s) {
        Ok(limit) => limit,
        Err(error) => return Response::Refused { why: error.to_string() },
    };
    let lent = |loan: &LoanSpec| loan.lent().is_some() && loan.function == function;
    let view = agent.view();
    let loan = view.spec().loans.iter().position(lent);
    let number = loan.map(|loan| view.spec().loans[loan].config.function.0);
    if number.zip(managed).is_some_and(|(number, managed)| managed.is_limited(number, function)) {
        return Response::Refused {
            why: format!(
                "{function} is limited by the manager of the fabric: `causeway function limit NODE/{function}` changes \
                 that"
            ),
        };
    }
    match loan {
        Some(loan) if agent.set_limit(loan, limit) => {
            Event::LimitChanged { function: function.to_owned(), iops, bytes_per_s }.say();
            Response::Done
        }
        _ => Response::Refused {
            why: format!("this node lends no function {function}; `causeway status` lists them"),
        },
    }
}

/// What a drive has lost was seen to: it may lose something else, and that is news.
fn clear_fault(agent: &mut Agent, state: &StateDir, faults: &mut BTreeSet<usize>, device: &str) -> Response {
    let spec = agent.view().spec();
    let lends = |drive: usize| {
        spec.loans
            .iter()
            .any(|loan| loan.lent().is_some_and(|lent| lent.drive == drive) && loan.function == device)
    };
    let mut named =
        spec.drives().filter(|(place, it)| it.name == device || it.source == device || lends(*place));
    let refused = |why: String| Response::Refused { why };
    let found = named.next().map(|(drive, it)| (drive, it.name.parse::<FunctionName>()));
    drop(named);
    let Some((drive, name)) = found else {
        return refused(format!(
            "this node lends no device {device}; `causeway status` lists functions and sources"
        ));
    };
    if !agent.clear_fault(drive) {
        return refused("its card has just died and is being replaced; try again".to_owned());
    }
    faults.remove(&drive);
    Event::MediaCleared { device: device.to_owned() }.say();
    match name.map_err(Failure::usage).and_then(|name| Ok(state.set_fault(&name, false)?)) {
        Ok(()) => Response::Done,
        Err(error) => refused(format!("flushes fail again after the next start of the node: {error}")),
    }
}

fn impair(agent: &Agent, wanted: &Impairment) -> Response {
    let view = agent.view();
    let Some(target) = view.impairment(&wanted.rail) else {
        return Response::Refused { why: format!("there is no rail `{}`", wanted.rail) };
    };
    let ratios = [
        (&target.drop_ppm, wanted.drop_ppm),
        (&target.repeat_ppm, wanted.repeat_ppm),
        (&target.reorder_ppm, wanted.reorder_ppm),
        (&target.corrupt_ppm, wanted.corrupt_ppm),
        (&target.hold_packets, 4),
        (&target.hold_us, 2_000),
    ];
    ratios.iter().for_each(|(field, value)| field.store(*value, Ordering::Relaxed));
    target.cut(wanted.cut_out, wanted.cut_in);
    Response::Done
}
