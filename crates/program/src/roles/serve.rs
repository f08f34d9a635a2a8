//! A running node: its agent, its control socket and its signals.

mod kept;
mod reload;
mod tell;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use base::ids::DomainBlock;
use io::agent::{Agent, AgentEvent, DriveSpec, Edge, LoanEnd, LoanSpec, LoanView, NodeSpec, Rail, Withdrawn};
use io::event::Event;
use io::files::LastWrites;
use node::{EdgeGauges, Limit, Protection};
use rustix::event::{PollFd, PollFlags, Timespec};
use tracing::debug;

use super::domains::Domains;
use super::signals::{Asked, Hangup, Hangups, Signals};
use super::{borrow, lend, map, report, trouble};
use crate::cli::NodeName;
use crate::control::{ControlServer, Impairment, Request, Response, socket_path};
use crate::exit::Failure;
use crate::http::HttpServer;
use crate::line::FunctionName;
use crate::state_dir::StateDir;
pub(super) use reload::Reload;

/// How long giving back may take before the node ends without it.
const GIVE_BACK: Duration = Duration::from_secs(8);

/// An end that takes longer says what it waits for.
const GIVE_BACK_QUIET: Duration = Duration::from_millis(500);

/// Between two looks for trouble.
const LOOK: Duration = Duration::from_secs(1);
/// After that what was only needed to start is not needed any more.
const STARTED: Duration = Duration::from_secs(2);

/// What a role does about events.
pub trait Observer {
    /// An event of the agent. A failure ends the node, in order.
    fn handle(&mut self, _event: &AgentEvent) -> Result<(), Failure> {
        Ok(())
    }
    /// Something more is borrowed, in this place.
    fn comes(&mut self, _place: usize, _wanted: borrow::Wanted) {}
    /// What was borrowed in this place is not any more.
    fn goes(&mut self, _place: usize) {}
    /// When `overdue` is to be asked.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    /// The deadline has passed; `has_met` says whether any lender has answered. What it says ends the node, in order.
    fn overdue(&self, _has_met: bool) -> Failure {
        Failure::unreachable("what was waited for did not come in time")
    }
    /// Whether the node has done what it was for, and ends by itself.
    fn has_done(&self) -> bool {
        false
    }
    /// Everything was given back: how that went.
    fn conclude(&self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The observer of a node that only lends.
pub(super) struct Nothing;

impl Observer for Nothing {}

/// The control socket of a node of this name; refused if one is running.
pub(super) fn control_socket(name: &NodeName) -> Result<ControlServer, Failure> {
    ControlServer::new(&socket_path(name)).map_err(Failure::refused)
}

/// What a node is made of.
pub(super) struct Parts {
    pub(super) name: NodeName,
    pub(super) domains: DomainBlock,
    pub(super) state: StateDir,
    pub(super) rails: Vec<Rail>,
    /// What it lends.
    pub(super) lent: lend::Opened,
    /// What it borrows from its start to its end.
    pub(super) borrowed: Vec<LoanSpec>,
    /// Where functions are attached and detached while it runs.
    pub(super) slots: (Domains, Vec<LoanSpec>),
    pub(super) protection: Protection,
    pub(super) shared_memory: bool,
    /// Bytes that the ledger may have.
    pub(super) ledger: Option<u64>,
    pub(super) control: ControlServer,
    /// The file that it can read again.
    pub(super) reload: Option<Reload>,
}

impl Parts {
    /// Of a node that neither lends nor borrows anything yet.
    pub(super) fn bare(name: NodeName, state: StateDir, control: ControlServer, rails: Vec<Rail>) -> Self {
        Self {
            name,
            domains: DomainBlock::of(state.identity().id()),
            state,
            rails,
            lent: lend::Opened::default(),
            borrowed: Vec::new(),
            slots: (Domains::default(), Vec::new()),
            protection: Protection::default(),
            shared_memory: true,
            ledger: None,
            control,
            reload: None,
        }
    }
}

/// A node that runs.
pub(super) struct Node {
    agent: Agent,
    state: StateDir,
    domains: Domains,
    /// Until the node serves.
    control: Option<ControlServer>,
    reload: Option<Reload>,
    /// Asks for the file to be read again.
    hangups: Option<Hangups>,
    /// By drive: what stands for its layout there.
    layouts: Vec<(FunctionName, u64)>,
    http: HttpServer,
    signals: Signals,
    /// Since the node was asked to end.
    ending: Option<Instant>,
    /// Why it ends, if that is a failure.
    failure: Option<Failure>,
    /// Loans that were given back, by place: in which life of it.
    returned: BTreeMap<usize, u32>,
    /// What the log has said of loans.
    told: tell::Told,
    trouble: trouble::Watch,
    started: Instant,
    look_at: Instant,
    /// By place: when a loan came that was not there from the start.
    came: BTreeMap<usize, Instant>,
    /// What was only needed to start is still mapped.
    starts: bool,
    /// Somebody has asked for the end once more, and does not want to wait.
    hurried: bool,
    /// When it is said what the end waits for.
    explain_at: Option<Instant>,
    /// Drives that have lost something, as the log has said.
    faults: BTreeSet<usize>,
    /// By loan: accesses that were denied, as the log has said.
    denied: BTreeMap<usize, u64>,
    /// What became of each drive that has left is kept.
    is_kept: bool,
}

impl Node {
    pub(super) fn start(parts: Parts) -> Result<Self, Failure> {
        let Parts { name, domains: block, mut state, rails, mut lent, borrowed, .. } = parts;
        let Parts { slots: (mut domains, slots), protection, shared_memory, control, reload, ledger, .. } =
            parts;
        let mut loans = std::mem::take(&mut lent.loans);
        loans.extend(borrowed);
        domains.follow(loans.len());
        loans.extend(slots);
        if loans.len() > node::MAX_LOANS {
            let most = node::MAX_LOANS;
            return Err(Failure::usage(format!(
                "a node has at most {most} loans; start another node for the rest"
            )));
        }
        homeless(block, &loans).map_or(Ok(()), Err)?;
        if let Some(function) = stands_twice(&loans) {
            return Err(Failure::usage(format!(
                "{function} stands twice among what this node lends and borrows"
            )));
        }
        let unheard = |error: std::io::Error| Failure::io("cannot watch for signals", &error);
        let hangup = if reload.is_some() { Hangup::Reloads } else { Hangup::Ends };
        let signals = Signals::listen(hangup).map_err(unheard)?;
        let hangups = reload.as_ref().map(|_| Hangups::listen()).transpose().map_err(unheard)?;
        let http = HttpServer::start(control.path())?;
        lent.begin(&state)?;
        let lend::Opened { drives, layouts, last_writes, .. } = lent;
        let last_writes = last_writes.map_or_else(|| writes_of_memory(&state, &drives), Ok);
        let last_writes =
            last_writes.map_err(|error| Failure::io("cannot have memory for the node", &error))?;
        let held = loans.iter().map(|loan| loan.config.tenancy).filter(|tenancy| tenancy.is_held);
        state.forget_strangers()?;
        let holders = state.holders(&held.map(|tenancy| tenancy.node).collect())?;
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
            shared_memory,
            last_writes,
            ledger,
            drives_may_come: reload.is_some(),
        };
        let agent = Agent::start(spec).map_err(|error| {
            lend::withdraw(&layouts, &state);
            Failure::io("cannot start the node", &error)
        })?;
        state.keep();
        Ok(Self {
            agent,
            state,
            domains,
            control: Some(control),
            reload,
            hangups,
            layouts,
            http,
            signals,
            ending: None,
            failure: None,
            returned: BTreeMap::new(),
            told: tell::Told::default(),
            trouble: trouble::Watch::default(),
            started: Instant::now(),
            look_at: Instant::now() + LOOK,
            came: BTreeMap::new(),
            starts: true,
            hurried: false,
            explain_at: None,
            faults: BTreeSet::new(),
            denied: BTreeMap::new(),
            is_kept: true,
        })
    }

    /// Serves until the node has ended.
    pub(super) fn serve(mut self, observer: &mut dyn Observer) -> Result<(), Failure> {
        let mut control = self.control.take().expect("a node serves once");
        loop {
            self.wait(&control, observer.deadline())?;
            if let Some(asked) = self.signals.take() {
                if asked == Asked::Again {
                    Event::NodeHurried {}.say();
                    self.hurried = true;
                }
                self.begin_end();
            }
            let events = self.agent.turn().map_err(|error| Failure::io("the node cannot go on", &error))?;
            for event in &events {
                self.log_event(event);
                self.keep(event);
                match event {
                    AgentEvent::Altered(drive) | AgentEvent::Grown(drive) => self.note_image(event, *drive),
                    AgentEvent::GivenBack { loan, .. } => self.note_returned(*loan),
                    _ => {}
                }
                self.domains.handle(event, &mut self.agent, &self.state);
                if let Err(failure) = observer.handle(event) {
                    self.fail(failure);
                }
                self.note_leaving(event, observer);
            }
            let turned = self.domains.turn(&mut self.agent, &self.state);
            turned.map_err(|error| Failure::io("the node cannot go on", &error))?;
            self.follow_leaving(observer);
            if self.hangups.as_mut().is_some_and(Hangups::take) {
                // What came of it is said as events.
                self.reload(false, observer);
            }
            let mut stop = false;
            control.turn(&mut |request| self.answer(&request, observer, &mut stop));
            if observer.has_done() || stop {
                self.begin_end();
            }
            let overdue = observer.deadline().is_some_and(|deadline| deadline <= Instant::now());
            if overdue && self.ending.is_none() {
                self.fail(observer.overdue(self.has_met()));
            }
            let is_over =
                |since: Instant| self.has_returned_all() || self.hurried || since.elapsed() >= GIVE_BACK;
            if self.ending.is_some_and(is_over) {
                return self.end(&mut control, observer);
            }
            self.told.handle_timeout(Instant::now()).iter().for_each(Event::say);
            self.look_for_trouble();
            self.explain_end();
            control.publish();
        }
    }

    fn wait(&mut self, control: &ControlServer, deadline: Option<Instant>) -> Result<(), Failure> {
        let ends = self.ending.map(|since| since + GIVE_BACK);
        // A node that ends looks for trouble no more.
        let look_at = Some(self.look_at).filter(|_| self.ending.is_none());
        let own = [deadline, ends, self.explain_at, look_at, self.told.poll_timeout()];
        let parts = [self.agent.poll_timeout(), self.domains.poll_timeout(), self.leaving_poll_timeout()];
        let deadlines = own.into_iter().chain(parts);
        let deadline = deadlines.flatten().min();
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let hangups = self.hangups.iter().map(AsFd::as_fd);
        let watched = [self.agent.as_fd(), control.as_fd(), self.signals.as_fd()].into_iter();
        let watched = watched.chain(self.domains.wake_ups()).chain(hangups);
        let mut watched: Vec<_> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Failure::io("cannot wait", &errno.into())),
        }
    }

    fn begin_end(&mut self) {
        if self.ending.is_none() {
            Event::NodeEnding {}.say();
            self.ending = Some(Instant::now());
            self.explain_at = Some(Instant::now() + GIVE_BACK_QUIET);
            for (function, borrower) in report::in_use(&self.agent.view()) {
                Event::LoanInterrupted { function: function.to_owned(), borrower }.say();
            }
            self.agent.shut_down();
        }
    }

    /// Says what has become worse, or well again, since the last look.
    fn look_for_trouble(&mut self) {
        let now = Instant::now();
        if now < self.look_at || self.ending.is_some() {
            return;
        }
        self.look_at = now + LOOK;
        if now - self.started >= STARTED && core::mem::take(&mut self.starts) {
            // Only a matter of memory: without it the node works as well.
            let _ = io::code::give_up_unused();
        }
        let (view, running) = (self.agent.view(), now - self.started);
        let waited = |place: usize| self.came.get(&place).map_or(running, |came| now - *came);
        let seen = trouble::Seen {
            peers: report::peers(&view),
            wanted: report::wanted(&view, waited, |place, life| self.told.is_refused(place, life)),
            kept: report::kept(&view),
            domains: Some(report::domains(&view)),
            sightings: report::sightings(&view),
            strangers: view.gauges().dropped_unknown.get(),
        };
        let news = self.trouble.look(running, SystemTime::now(), &seen);
        news.iter().chain(&report::denied(&view, &mut self.denied)).for_each(Event::say);
    }

    /// An end that takes its time says what for, and how to have it sooner.
    fn explain_end(&mut self) {
        if self.explain_at.is_none_or(|at| Instant::now() < at) {
            return;
        }
        self.explain_at = None;
        let borrowed = self.borrowed().filter(|(loan, _)| !self.is_returned(*loan));
        let loans = &self.agent.view().spec().loans;
        let waiting: Vec<_> = borrowed.map(|(loan, _)| loans[loan].function.as_str()).collect();
        Event::NodeWaiting { functions: waiting.join(", "), up_to_s: GIVE_BACK.as_secs() }.say();
    }

    fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
        self.begin_end();
    }

    /// Whether any lender has answered.
    fn has_met(&self) -> bool {
        self.borrowed().any(|(_, cells)| cells.edge().peer().is_some())
    }

    /// Loans that were never taken count too: they are given back at once.
    fn has_returned_all(&self) -> bool {
        self.borrowed().all(|(loan, _)| self.is_returned(loan))
    }

    /// A place may have another loan since one was given back.
    fn is_returned(&self, loan: usize) -> bool {
        self.agent
            .view()
            .spec()
            .loans
            .get(loan)
            .is_some_and(|it| self.returned.get(&loan) == Some(&it.config.life))
    }

    fn note_returned(&mut self, loan: usize) {
        let life = self.agent.view().spec().loans.get(loan).map(|it| it.config.life);
        self.returned.extend(life.map(|life| (loan, life)));
    }

    fn borrowed(&self) -> impl Iterator<Item = (usize, LoanView<'_>)> {
        let loans = self.agent.view().loans().enumerate();
        loans.filter_map(|(index, (loan, cells))| match loan.config.role {
            LoanEnd::Borrow { .. } => Some((index, cells)),
            LoanEnd::Vacant { .. } | LoanEnd::Lend { .. } => None,
        })
    }

    /// The medium of a drive has lost something: once, though each card says it anew.
    fn say_fault(&mut self, drive: usize) {
        let spec = self.agent.view().spec();
        if let Some(lent) = spec.drive(drive).filter(|_| self.faults.insert(drive)) {
            let (source, drive) = (lent.source.clone(), lent.name.clone());
            Event::MediaFault { source, drive, node: spec.name.clone() }.say();
        }
    }

    /// What the agent's event is to the log.
    fn log_event(&mut self, event: &AgentEvent) {
        let loan = match event {
            AgentEvent::Ready(loan) | AgentEvent::Overtaken(loan) | AgentEvent::LoadEnded(loan, _) => *loan,
            AgentEvent::Tenant { loan, .. } | AgentEvent::GivenBack { loan, .. } => *loan,
            AgentEvent::Unusable { loan, .. } | AgentEvent::Refused { loan, .. } => *loan,
            AgentEvent::MediaFault(drive) => return self.say_fault(*drive),
            // The agent has said more.
            AgentEvent::Altered(drive) | AgentEvent::Grown(drive) => {
                return debug!(drive, "the image has changed");
            }
            AgentEvent::Persist { drive, version, .. } => {
                return debug!(drive, version, "the state of a drive is to be kept");
            }
            // Whoever keeps it says how that went.
            AgentEvent::StoreTenancy { .. } | AgentEvent::RaiseIncarnation { .. } => return,
            AgentEvent::StoreHolder(_) | AgentEvent::ForgetHolder(_) => return,
        };
        if let Some(about) = tell::About::of(&self.agent.view(), loan) {
            self.told.handle(Instant::now(), event, &about).iter().for_each(Event::say);
        }
    }

    /// What was lent is made durable; dropping the agent ends the card.
    fn end(mut self, control: &mut ControlServer, observer: &dyn Observer) -> Result<(), Failure> {
        if let Err(error) = self.signals.end_when_asked_again() {
            Event::SignalsUnheard { error: error.to_string() }.say();
        }
        self.keep_tenancies();
        self.told.conclude().iter().for_each(Event::say);
        let unsynced = self.conclude_drives();
        // Who does not read at once has missed the end.
        control.publish();
        if let Some(failure) = unsynced {
            return Err(failure);
        }
        match self.failure.take() {
            Some(failure) => Err(failure),
            None if self.has_returned_all() => observer.conclude(),
            None => Err(self.unreturned()),
        }
    }

    /// Each drive is made durable, whatever became of the others, and what it came to is kept for the next life.
    fn conclude_drives(&mut self) -> Option<Failure> {
        let mut failures = Vec::new();
        for ended in &self.agent.conclude() {
            if let Err(error) = &ended.end.synced {
                failures.push(format!("{} cannot be made durable: {error}", ended.spec.source));
            }
            self.is_kept &= keep_end(&self.state, ended) && ended.end.identity.is_some();
        }
        if self.is_kept {
            self.agent.forget_writes();
        }
        (!failures.is_empty()).then(|| {
            let what = failures.join("; ");
            Failure::failed(format_args!(
                "{what}. Writes that had been answered may be lost, and flushes fail after the next start until that \
                 was seen to: look at the disk, then say `causeway device clear`"
            ))
        })
    }

    /// The image of a drive has grown, or somebody else has changed it.
    fn note_image(&self, event: &AgentEvent, drive: usize) {
        let spec = self.agent.view().spec();
        let Some(((name, _), drive)) = self.layouts.get(drive).zip(spec.drive(drive)) else { return };
        let noted = match event {
            AgentEvent::Grown(_) => lend::medium::note_grown(&self.state, name, &drive.image),
            _ => lend::medium::note_altered(&self.state, name),
        };
        if let Err(error) = noted {
            Event::ImageChangeUnkept { drive: name.to_string(), error: error.to_string() }.say();
        }
    }

    /// What it means that a lender did not take its drive back in time.
    fn unreturned(&self) -> Failure {
        let is_lost = |gauges: &EdgeGauges| gauges.has_lost.get() != 0 || gauges.kept_writes.get() != 0;
        if self.borrowed().any(|(_, cells)| is_lost(cells.edge())) {
            return Failure::failed(
                "the lender has not taken the drive back, and writes that were answered but never flushed may be lost, \
                 unless it has made them durable itself: check the data. The lender keeps the drive for this node",
            );
        }
        Failure::unreachable(
            "the lender did not answer, so the drive was not given back; nothing that was answered is lost, and the \
             lender keeps the drive for this node until its hold time is over",
        )
    }
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

impl Node {
    fn answer(&mut self, request: &Request, observer: &mut dyn Observer, stop: &mut bool) -> Response {
        let (agent, domains, state) = (&mut self.agent, &mut self.domains, &self.state);
        match request {
            Request::Attach { slot, line } => domains.attach(slot, line, agent, state),
            Request::Detach { slot } => domains.detach(slot, agent, state),
            Request::Slot { slot } => domains.look(slot, agent),
            Request::Status => {
                let (loans, devices) = self.leaving();
                let leaving = report::Leaving { loans, devices };
                let view = self.agent.view();
                let is_shared = |node| self.trouble.is_shared(self.started.elapsed(), node);
                let status = report::status(&view, self.http.address(), &self.domains, &leaving, &is_shared);
                Response::Status { status: Box::new(status) }
            }
            Request::Map => Response::Map { map: Box::new(map::map(&agent.view(), domains)) },
            Request::Impair(impairment) => impair(agent, impairment),
            Request::ClearFault { device } => clear_fault(agent, state, &mut self.faults, device),
            Request::Limit { function, iops, bytes_per_s } => limit(agent, function, *iops, *bytes_per_s),
            Request::Reload { dry_run } => {
                Response::Reload { report: Box::new(self.reload(*dry_run, observer)) }
            }
            // Its own server answers that.
            Request::Events { .. } => Response::Done,
            Request::Stop => {
                *stop = true;
                Response::Done
            }
        }
    }
}

/// Keeps what became of a drive for the next life of the node. Whether that was possible.
fn keep_end(state: &StateDir, ended: &Withdrawn) -> bool {
    let Withdrawn { spec, end, .. } = ended;
    if !spec.config.keeps_state {
        return true;
    }
    let name = spec.name.parse::<FunctionName>().map_err(Failure::usage);
    let kept = name.and_then(|name| Ok(lend::medium::conclude(state, &name, end)?));
    if let Err(failure) = &kept {
        let (source, error) = (spec.source.clone(), failure.message().to_owned());
        Event::DriveEndUnkept { source, error }.say();
    }
    kept.is_ok()
}

/// Of a node that lends memory alone, as yet: these drives.
fn writes_of_memory(state: &StateDir, drives: &[Option<DriveSpec>]) -> std::io::Result<LastWrites> {
    let page = LastWrites::in_memory()?;
    page.begin(state.incarnation(), drives.iter().flatten().map(lend::written));
    Ok(page)
}

fn limit(agent: &mut Agent, function: &str, iops: Option<u64>, bytes_per_s: Option<u64>) -> Response {
    let limit = match Limit::new(iops, bytes_per_s) {
        Ok(limit) => limit,
        Err(error) => return Response::Refused { why: error.to_string() },
    };
    let lent = |loan: &LoanSpec| loan.lent().is_some() && loan.function == function;
    let loan = agent.view().spec().loans.iter().position(lent);
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
