//! A running node: its agent, its control server and its signals.

mod ending;
mod kept;
mod orders;
mod reload;
mod said;
mod silence;
mod start;
mod tell;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use base::ids::NodeId;
use io::address::RailAddress;
use io::agent::{Agent, AgentEvent, LoanEnd, LoanView, Withdrawn};
use io::discovery::Discovery;
use io::event::Event;
use node::EdgeGauges;
use rustix::event::{PollFd, PollFlags, Timespec};

use self::ending::{Ending, GIVE_BACK};
use self::said::Said;
use self::silence::Silences;
use super::domains::Domains;
use super::managed::{Hands, Managed};
use super::signals::{Asked, Hangups, Signals};
use super::{borrow, lend, neighbourhood, report};
use crate::cli::NodeName;
use crate::config::Device;
use crate::control::{ControlServer, socket_path};
use crate::exit::Failure;
use crate::line::FunctionName;
use crate::state_dir::StateDir;
pub(super) use reload::Reload;
pub(super) use start::Parts;

/// After that what was only needed to start is not needed any more.
const STARTED: Duration = Duration::from_secs(2);

/// Which node says that it is at an address, if one does.
pub type HeardAt<'a> = dyn FnMut(RailAddress) -> Option<NodeId> + 'a;

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
    /// The lender of what was borrowed in this place was silent for so long that the loan ends.
    fn lost(&mut self, _place: usize, _waited: Duration) {}
    /// When `overdue` is to be asked.
    fn deadline(&self) -> Option<Instant> {
        None
    }
    /// The deadline has passed; `has_met` says whether any lender has answered, and `heard_at` which node says that it
    /// is at an address. What it says ends the node, in order.
    fn overdue(&self, _has_met: bool, _heard_at: &mut HeardAt<'_>) -> Failure {
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

/// The control server of a node of this name; refused if one is running.
pub(super) fn control_socket(name: &NodeName) -> Result<ControlServer, Failure> {
    ControlServer::new(&socket_path(name)).map_err(Failure::refused)
}

/// A node that runs.
pub(super) struct Node {
    agent: Agent,
    state: StateDir,
    domains: Domains,
    /// Where it belongs to a fabric.
    managed: Option<Managed>,
    /// What it says on its rails, and whom it hears there.
    discovery: Discovery,
    /// Until the node serves.
    control: Option<ControlServer>,
    reload: Option<Reload>,
    /// Asks for the file to be read again.
    hangups: Option<Hangups>,
    /// By drive: what stands for its layout there.
    layouts: Vec<(FunctionName, u64)>,
    /// What it lends, as it was declared.
    devices: Vec<Device>,
    /// Where its metrics are.
    http: SocketAddr,
    signals: Signals,
    ending: Ending,
    /// Loans that were given back, by place: in which life of it.
    returned: BTreeMap<usize, u64>,
    said: Said,
    /// Lenders of what is borrowed.
    silences: Silences,
    /// What was only needed to start is still mapped.
    starts: bool,
    /// What became of each drive that has left is kept.
    is_kept: bool,
}

impl Node {
    /// Serves until the node has ended.
    pub(super) fn serve(mut self, observer: &mut dyn Observer) -> Result<(), Failure> {
        let mut control = self.control.take().expect("a node serves once");
        loop {
            self.wait(&control, observer.deadline())?;
            if let Some(asked) = self.signals.take() {
                if asked == Asked::Again {
                    Event::NodeHurried {}.say();
                    self.ending.hurry();
                }
                self.begin_end();
            }
            let events = self.agent.turn().map_err(|error| Failure::io("the node cannot go on", &error))?;
            for event in &events {
                self.said.handle(&self.agent.view(), event);
                self.keep(event);
                match event {
                    AgentEvent::Altered(drive) | AgentEvent::Grown(drive) => self.note_image(event, *drive),
                    AgentEvent::GivenBack { loan, .. } => self.note_returned(*loan),
                    _ => {}
                }
                self.silences.handle(event, &self.agent);
                self.domains.handle(event, &mut self.agent, &self.state);
                if let Some(managed) = &mut self.managed {
                    managed.handle(event, &self.agent);
                }
                if let Err(failure) = observer.handle(event) {
                    self.fail(failure);
                }
                self.note_leaving(event, observer);
            }
            let lost = if self.ending.has_begun() { Vec::new() } else { self.silences.turn(&mut self.agent) };
            self.domains.turn(&mut self.agent, &self.state);
            for (place, waited) in lost.into_iter().chain(self.domains.take_lost()) {
                observer.lost(place, waited);
            }
            self.turn_managed();
            self.follow_leaving();
            self.turn_discovery();
            if self.hangups.as_mut().is_some_and(Hangups::take) {
                // What came of it is said as events.
                self.reload(false, observer);
            }
            let mut stop = false;
            control.turn(&mut orders::Answering { node: &mut self, observer, stop: &mut stop });
            if observer.has_done() || stop {
                self.begin_end();
            }
            let overdue = observer.deadline().is_some_and(|deadline| deadline <= Instant::now());
            if overdue && !self.ending.has_begun() {
                let has_met = self.has_met();
                let failure = observer.overdue(has_met, &mut |address| self.discovery.who_is_at(address));
                self.fail(failure);
            }
            if self.ending.is_over(self.has_returned_all()) {
                return self.end(observer);
            }
            self.said.handle_timeout();
            self.look_for_trouble();
            self.explain_end();
        }
    }

    fn wait(&mut self, control: &ControlServer, deadline: Option<Instant>) -> Result<(), Failure> {
        let own = [deadline, self.ending.poll_timeout(), self.said.poll_timeout(!self.ending.has_begun())];
        let parts = [
            self.agent.poll_timeout(),
            self.domains.poll_timeout(),
            self.leaving_poll_timeout(),
            self.discovery.poll_timeout(),
            self.managed.as_ref().filter(|_| !self.ending.has_begun()).map(Managed::poll_timeout),
        ];
        let deadlines = own.into_iter().chain(parts);
        let deadline = deadlines.flatten().min();
        let timeout = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let hangups = self.hangups.iter().map(AsFd::as_fd);
        let watched = [self.agent.as_fd(), control.as_fd(), self.signals.as_fd()].into_iter();
        let managed = self.managed.iter().filter(|_| !self.ending.has_begun()).map(Managed::as_fd);
        let watched = watched
            .chain(self.domains.wake_ups())
            .chain(managed)
            .chain(hangups)
            .chain(self.discovery.sockets());
        let mut watched: Vec<_> = watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Failure::io("cannot wait", &errno.into())),
        }
    }

    /// What the manager of the fabric has decided; a node that ends heeds nothing new.
    fn turn_managed(&mut self) {
        let Some(managed) = self.managed.as_mut().filter(|_| !self.ending.has_begun()) else { return };
        let mut hands = Hands {
            agent: &mut self.agent,
            domains: &mut self.domains,
            state: &self.state,
            devices: &self.devices,
            discovery: &mut self.discovery,
        };
        managed.turn(&mut hands);
    }

    /// Hears others, and says what the node is where it is time for that.
    fn turn_discovery(&mut self) {
        self.discovery.follow(&self.agent.view().spec().rails);
        self.discovery.receive();
        for (rail, frame) in self.agent.take_heard() {
            self.discovery.hear(rail, &frame);
        }
        self.discovery.take_notices().into_iter().for_each(|notice| self.agent.heed(notice));
        if self.discovery.has_news() {
            self.agent.set_members(self.discovery.members());
            let managed = self.managed.as_ref();
            let told = |node| managed.and_then(|managed| managed.place_of(node));
            self.agent.hear_of(|node| self.discovery.place_of(node).or_else(|| told(node)));
        }
        for notice in self.agent.take_notices() {
            self.managed.iter_mut().for_each(|managed| managed.note_rail(notice));
            self.discovery.warn(&neighbourhood::said(&self.agent), notice);
        }
        if self.discovery.is_due() && !self.ending.has_begun() {
            self.discovery.announce(&neighbourhood::said(&self.agent));
        }
    }

    fn begin_end(&mut self) {
        if !self.ending.begin() {
            return;
        }
        Event::NodeEnding {}.say();
        for (function, borrower) in report::in_use(&self.agent.view()) {
            Event::LoanInterrupted { function: function.to_owned(), borrower }.say();
        }
        self.agent.shut_down();
    }

    /// A node that ends looks for trouble no more.
    fn look_for_trouble(&mut self) {
        let has_looked = !self.ending.has_begun() && self.said.look_for_trouble(&self.agent.view());
        if has_looked && self.said.running() >= STARTED && core::mem::take(&mut self.starts) {
            // Only a matter of memory: without it the node works as well.
            let _ = io::code::give_up_unused();
        }
    }

    /// An end that takes its time says what for, and how to have it sooner.
    fn explain_end(&mut self) {
        if !self.ending.is_to_explain() {
            return;
        }
        let borrowed = self.borrowed().filter(|(loan, _)| !self.is_returned(*loan));
        let loans = &self.agent.view().spec().loans;
        let waiting: Vec<_> = borrowed.map(|(loan, _)| loans[loan].function.as_str()).collect();
        Event::NodeWaiting { functions: waiting.join(", "), up_to_s: GIVE_BACK.as_secs() }.say();
    }

    fn fail(&mut self, failure: Failure) {
        self.ending.fail(failure);
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

    /// What was lent is made durable; dropping the agent ends the card.
    fn end(mut self, observer: &dyn Observer) -> Result<(), Failure> {
        if let Err(error) = self.signals.end_when_asked_again() {
            Event::SignalsUnheard { error: error.to_string() }.say();
        }
        self.keep_tenancies();
        self.said.conclude();
        let unsynced = self.conclude_drives();
        if let Some(failure) = unsynced {
            return Err(failure);
        }
        match self.ending.take_failure() {
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
