//! Virtual machines whose slots functions are attached to while the node runs.
//!
//! Each slot is a loan of the node, vacant or not, as long as it is in the node's file. What somebody decides about it
//! is durable before anything follows from it, so that a node that is started again goes on with it.
//!
//! ```text
//! Vacant --attach--> Attaching --usable--> Attached --detach--> Leaving --guest is done--> Returning --given back-->
//! Vacant
//!                        `-----------------detach or refused------------------------------^
//! ```
//! A lender that is silent for too long ends it, too ([`silence`]).

mod assigning;
mod blackouts;
mod changing;
mod coming;
mod holds;
mod machine;
mod replaced;
mod silence;
mod unguarded;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use base::ids::DomainBlock;
use io::agent::{Agent, AgentEvent, Edge, LoanSpec};
use io::event::Event;
use node::agent::Patience;
use qmp::Error;

use self::blackouts::Blackouts;
pub(super) use self::changing::Changing;
use self::changing::Next;
pub(super) use self::coming::Opened;
use self::holds::{Change, Hold};
use self::machine::{Machine, WATCH};
use self::replaced::Replaced;
use self::unguarded::Unguarded;
use super::borrow::Claim;
use super::monitor::{Monitor, Outcome, Subject, Task};
use super::socket;
use crate::assigned::Assigned;
use crate::cli::{IO_TIMEOUT_DEFAULT_S, SlotName};
use crate::config::{Domain, Slot};
use crate::control::{Response, SlotReport, SlotState};
use crate::exit::Failure;
use crate::line::Line;
use crate::qmp::{Plug, QmpError};
use crate::state_dir::StateDir;
use crate::state_dir::slot::{Attached, Attachment};
use crate::status::Loan;

/// How long a guest has after its function has gone, before QEMU is given up on: longer than the 5 s for which pciehp
/// waits.
const SURPRISE: Duration = Duration::from_secs(10);
/// How long giving back may take.
const GIVE_BACK: Duration = Duration::from_secs(8);
/// How long a machine that was started with the device may take to connect, before it is plugged in.
const SETTLE: Duration = Duration::from_millis(300);
/// A function that no driver has had for so long was let go of: longer than a driver takes to begin anew with it.
const LET_GO: Duration = Duration::from_secs(2);
/// Between two looks at a slot whose guest is leaving.
const LOOK: Duration = Duration::from_millis(50);

/// All slots of a node.
#[derive(Default)]
pub(super) struct Domains {
    /// By loan.
    places: BTreeMap<usize, Entry>,
    /// By number of the machine, of those that have one.
    monitors: BTreeMap<u32, Monitor>,
    blackouts: Blackouts,
    replaced: Replaced,
    unguarded: Unguarded,
    /// What nobody was told of yet: which lenders were silent for too long.
    lost: Vec<(usize, Duration)>,
}

struct Entry {
    name: SlotName,
    /// By which a manager knows it, among those of its machine.
    number: u16,
    /// What a manager has assigned to it, as long as that is attached.
    assigned: Option<Assigned>,
    /// What is assigned could not be attached: when that is tried again.
    assign_at: Option<Instant>,
    /// The number of its machine.
    domain: u32,
    slot: Slot,
    remove_after: Duration,
    generation: u64,
    phase: Phase,
    trouble: Option<String>,
    /// Somebody has asked for it in this life of the node, and is told if it cannot be had.
    is_asked_for: bool,
    /// When it is to be plugged in, unless somebody has connected.
    plug_at: Option<Instant>,
    awaited: Awaited,
    /// Whether the machine is known to be away: its function is plugged in when it is back.
    machine: Machine,
    /// Whether the machine is kept from being saved and migrated.
    hold: Hold,
    /// Since when no driver has the function that is to be let go of.
    unused: Option<Instant>,
    /// How long its lender was waited for.
    patience: Patience,
    /// That was too long: it is given back when its lender is heard, however long that takes.
    is_lost: bool,
    /// A manager wants nothing here any more, as far as was looked.
    is_unwanted: bool,
    /// Accesses without an answer that the guest has been told of, or is just being told of.
    told_timeouts: u64,
    /// It is not in the file any more.
    is_leaving: bool,
    /// What it is to be, as the file says, when who uses it has let go of it.
    next: Option<Next>,
}

/// What a guest's function has come to, so that it has to get a new one.
#[derive(Clone, Copy)]
enum Loss {
    /// It was silent until its guest has read all-ones, and answers again.
    Silence,
    /// It is another one: what it held may be lost.
    Replaced,
}

impl Loss {
    /// What programs know it by.
    fn name(self) -> &'static str {
        match self {
            Self::Silence => "silence",
            Self::Replaced => "replaced",
        }
    }

    /// What has happened.
    fn what(self) -> &'static str {
        match self {
            Self::Silence => {
                "its guest has read all-ones of the function, which was silent or was started again just then, and \
                 answers now; a driver may have given it up"
            }
            Self::Replaced => {
                "what the drive held may not be there any more: its content was replaced, another node has used it, or \
                 its lender has lost writes that were answered and not flushed. So its drive is another one from now \
                 on, and the guest does not have the one any more that it had"
            }
        }
    }

    /// What is to be done where the node cannot do it.
    fn by_hand(self) -> &'static str {
        match self {
            Self::Silence => {
                "if its guest does not use it again by itself, take the device out and plug it in again, in QEMU's \
                 monitor by `info mtree -f`, `device_del` and `device_add`, or in a Linux guest by writing 1 to the \
                 device's `remove` and then to /sys/bus/pci/rescan; a node with `qmp` does it by itself"
            }
            Self::Replaced => {
                "take the device out and plug it in again, in QEMU's monitor by `info mtree -f`, `device_del` and \
                 `device_add`, then check what is on the drive; a node with `qmp` plugs it in by itself"
            }
        }
    }
}

/// What the monitor has been told to do and has not answered.
#[derive(Clone, Copy, Default)]
struct Awaited {
    plug: bool,
    unplug: bool,
    look: bool,
    report: bool,
    release: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Vacant,
    Attaching,
    Attached,
    Leaving {
        since: Instant,
        /// The function has been taken away.
        surprised: bool,
    },
    Returning {
        since: Instant,
        /// Nobody waits for its lender any more.
        abandoned: bool,
    },
}

/// The numbers of the machines of these domains.
pub(super) fn numbers(domains: &[Domain], block: DomainBlock, state: &StateDir) -> Result<Vec<u32>, Failure> {
    let mut free: BTreeSet<u32> = (0..block.machines()).collect();
    let mut numbers = Vec::with_capacity(domains.len());
    for domain in domains {
        // That there are too many is found, and told, by whoever gives each a domain of its own.
        let number = state.machine_number(&domain.name, &free)?;
        let number = number.unwrap_or(block.machines() + numbers.len() as u32);
        free.remove(&number);
        numbers.push(number);
    }
    Ok(numbers)
}

impl Domains {
    /// The slots of `domains`, and their loans.
    pub(super) fn open(
        domains: &[Domain],
        block: DomainBlock,
        state: &StateDir,
    ) -> Result<(Self, Vec<LoanSpec>), Failure> {
        let (mut all, mut loans) = (Self::default(), Vec::new());
        for (domain, machine) in domains.iter().zip(numbers(domains, block, state)?) {
            let opened = Opened::open(domain, &domain.slots, machine, true, state)?;
            let places = all.places.len()..;
            loans.extend(opened.admit(places, &mut all).into_iter().map(|(_, loan)| loan));
        }
        Ok((all, loans))
    }

    /// The same where slots hold what `domains` says, whatever was decided in an earlier life of the node: no file says
    /// it, but whoever has started the node.
    pub(super) fn open_as_said(
        domains: &[Domain],
        block: DomainBlock,
        state: &StateDir,
    ) -> Result<(Self, Vec<LoanSpec>), Failure> {
        for qmp in domains.iter().filter_map(|domain| domain.qmp.as_deref()) {
            socket::check_client(qmp)?;
            socket::check_folder(qmp)?;
        }
        for domain in domains {
            for slot in &domain.slots {
                let name = SlotName { domain: domain.name.clone(), slot: slot.name.clone() };
                match state.attachment(&name)? {
                    None | Some(Attachment { attached: Attached::Preset, .. }) => {}
                    Some(Attachment { attached: Attached::Assigned(_), .. }) => {
                        return Err(Failure::refused(format!(
                            "what is in {name} is the manager's to say: have it taken back (`causeway unassign`), or \
                             choose another --name"
                        )));
                    }
                    Some(Attachment { generation, .. }) => {
                        let attached = Attached::Preset;
                        state.set_attachment(&name, &Attachment { generation: generation + 1, attached })?;
                    }
                }
            }
        }
        Self::open(domains, block, state)
    }

    /// The node has `loans` others before these.
    pub(super) fn follow(&mut self, loans: usize) {
        let places = std::mem::take(&mut self.places).into_iter();
        self.places = places.map(|(place, it)| (loans + place, it)).collect();
    }

    /// Readable when [`Domains::turn`] has something to do.
    pub(super) fn wake_ups(&self) -> impl Iterator<Item = std::os::fd::BorrowedFd<'_>> {
        self.monitors.values().map(Monitor::as_fd)
    }

    /// When [`Domains::turn`] has something to do although nothing is readable.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let waits = |place: &Entry| {
            // Of what was lost an event says that it was given back.
            let is_going = match place.phase {
                Phase::Leaving { .. } => true,
                Phase::Returning { .. } => !place.is_lost,
                Phase::Vacant | Phase::Attaching | Phase::Attached => false,
            };
            is_going || place.plug_at.is_some() || place.next.is_some()
        };
        let is_watched = |place: &Entry| {
            let is_of_interest = place.phase == Phase::Attached || place.hold != Hold::Free;
            is_of_interest && self.monitors.contains_key(&place.domain)
        };
        let pause = if self.places.values().any(waits) {
            LOOK
        } else if self.blackouts.has_slots() || self.places.values().any(is_watched) {
            WATCH
        } else {
            return None;
        };
        Some(Instant::now() + pause)
    }

    /// An event of the agent.
    pub(super) fn handle(&mut self, event: &AgentEvent, agent: &mut Agent, state: &StateDir) {
        match event {
            AgentEvent::Ready(loan) => self.usable(*loan, agent),
            AgentEvent::Refused { loan, refusal } if self.lost_is_refused(*loan, refusal, agent) => {}
            AgentEvent::Refused { loan, refusal } => {
                // Of one that is outdated the node makes the best itself.
                if let Some(why) = super::refusal::words("the function", refusal, state.identity().id()) {
                    self.refused(*loan, why, agent, state);
                }
            }
            AgentEvent::Unusable { loan, why } => self.refused(*loan, why.clone(), agent, state),
            AgentEvent::GivenBack { loan, .. } => {
                if let Some(place) = self.place(*loan) {
                    place.phase = Phase::Vacant;
                    place.end_loss(state);
                    Event::SlotVacant { slot: place.name.to_string() }.say();
                }
            }
            _ => {}
        }
    }

    fn place(&mut self, loan: usize) -> Option<&mut Entry> {
        self.places.get_mut(&loan)
    }

    fn usable(&mut self, loan: usize, agent: &mut Agent) {
        let Some(place) = self.place(loan).filter(|place| place.phase == Phase::Attaching) else { return };
        if place.is_lost {
            return place.give_back(loan, agent);
        }
        if place.is_asked_for {
            let function = agent.view().spec().loans[loan].function.clone();
            Event::SlotAttached { slot: place.name.to_string(), function }.say();
        }
        place.phase = Phase::Attached;
        place.plug_at = Some(Instant::now() + SETTLE);
        place.patience = Patience::new(agent.view().now());
    }

    fn refused(&mut self, loan: usize, why: String, agent: &mut Agent, state: &StateDir) {
        let Some(place) = self.place(loan) else { return };
        if place.is_owed() {
            place.give_back(loan, agent);
        } else if place.phase == Phase::Attaching && !place.is_asked_for {
            // What was decided earlier stays decided: the lender may think of it otherwise later.
            Event::SlotRefused { slot: place.name.to_string(), why: why.clone() }.say();
            place.trouble = Some(why);
        } else if place.phase == Phase::Attaching {
            place.trouble = Some(why);
            let decided = place.decide(Attached::Nothing, state);
            if let Err(error) = decided {
                Event::SlotUndecided { slot: place.name.to_string(), error: error.to_string() }.say();
            }
            place.phase = Phase::Returning { since: Instant::now(), abandoned: false };
            agent.detach(loan);
        }
    }

    /// Takes what QEMU has said, and lets time pass.
    pub(super) fn turn(&mut self, agent: &mut Agent, state: &StateDir) {
        let answers: Vec<_> = self.monitors.values_mut().flat_map(Monitor::answers).collect();
        for (subject, outcome) in answers {
            self.answered(subject, outcome, agent);
        }
        for (&loan, place) in &mut self.places {
            match place.phase {
                Phase::Attached if place.plug_at.is_some_and(|at| at <= Instant::now()) => {
                    place.plug_at = None;
                    match self.monitors.get(&place.domain) {
                        // It was started with the device.
                        Some(monitor) if agent.has_guest(loan) => {
                            monitor.order(place.subject(loan), Task::Hold(place.plug()));
                            place.hold = Hold::begin();
                        }
                        Some(monitor) => {
                            monitor.order(place.subject(loan), Task::Plug(place.plug()));
                            place.awaited.plug = true;
                        }
                        None => {}
                    }
                }
                Phase::Leaving { since, surprised } => {
                    let is_let_go = place.is_let_go(agent.has_driver(loan));
                    let is_gone = !place.awaited.unplug && (is_let_go || !agent.has_guest(loan));
                    if is_gone || (surprised && since.elapsed() >= place.remove_after + SURPRISE) {
                        place.give_back(loan, agent);
                    } else if !surprised && since.elapsed() >= place.remove_after {
                        Event::SlotSurprised { slot: place.name.to_string() }.say();
                        agent.set_present(loan, false);
                        place.phase = Phase::Leaving { since, surprised: true };
                    }
                }
                Phase::Returning { since, abandoned: false }
                    if !place.is_lost && since.elapsed() >= GIVE_BACK =>
                {
                    Event::SlotAbandoned { slot: place.name.to_string() }.say();
                    place.phase = Phase::Returning { since, abandoned: true };
                    agent.abandon(loan);
                }
                _ => {}
            }
        }
        self.follow_changes(agent, state);
        self.look_after_lenders(agent, state);
        self.look_after_machines(agent);
        self.hold_machines(agent);
        self.report_timeouts(agent);
        let (places, monitors) = (&self.places, &self.monitors);
        let is_guarded = |loan: usize| places.get(&loan).is_some_and(|it| monitors.contains_key(&it.domain));
        self.unguarded.look(agent, is_guarded);
        let is_plugging = |loan: usize| {
            let place = places.get(&loan);
            place.is_some_and(|place| place.plug_at.is_some() || place.awaited.plug)
        };
        let replaced = self.replaced.news(agent, is_plugging);
        for loan in &replaced {
            self.renew(*loan, Loss::Replaced, agent);
        }
        for loan in self.blackouts.over(agent).into_iter().filter(|loan| !replaced.contains(loan)) {
            self.renew(loan, Loss::Silence, agent);
        }
    }

    /// What a machine has of `loan` is worth nothing any more: the device is taken out of it, which its guest notices,
    /// and plugged in again as a new one. By hand where no monitor is known. Who cannot let the guest go on with the
    /// old one until then takes the function away as well ([`Agent::set_present`]).
    fn renew(&mut self, loan: usize, loss: Loss, agent: &mut Agent) {
        let function = agent.view().spec().loans[loan].function.clone();
        let (what, name) = (loss.what(), loss.name());
        let place = self.places.get_mut(&loan).filter(|place| place.phase == Phase::Attached);
        if let Some((place, monitor)) = place.and_then(|place| {
            let monitor = self.monitors.get(&place.domain)?;
            Some((place, monitor))
        }) {
            Event::SlotRenewed { slot: place.name.to_string(), function, loss: name, what }.say();
            agent.set_present(loan, false);
            place.plug_at = None;
            monitor.order(place.subject(loan), Task::Plug(place.plug()));
            place.awaited.plug = true;
        } else if self.places.get(&loan).is_none_or(|place| place.phase == Phase::Attached) {
            Event::SlotWornOut { function, loss: name, what, by_hand: loss.by_hand() }.say();
        }
    }

    /// Notices machines that end, and finds out when they are back.
    fn look_after_machines(&mut self, agent: &Agent) {
        for (&loan, place) in &mut self.places {
            let Some(monitor) = self.monitors.get(&place.domain) else { continue };
            let is_waiting = place.plug_at.is_some() || place.awaited.plug || place.awaited.look;
            if place.phase == Phase::Attached
                && !is_waiting
                && place.machine.follow(agent.has_guest(loan), Instant::now())
            {
                monitor.order(place.subject(loan), Task::Look);
                place.awaited.look = true;
            }
        }
    }

    /// Keeps machines from being saved and migrated that have a device, and lets those go that have it no more.
    fn hold_machines(&mut self, agent: &Agent) {
        for (&loan, place) in &mut self.places {
            let Some(monitor) = self.monitors.get(&place.domain) else { continue };
            let awaited = place.awaited;
            if place.plug_at.is_some() || awaited.plug || awaited.unplug || awaited.release {
                continue;
            }
            let has_function = matches!(place.phase, Phase::Attached | Phase::Leaving { .. });
            let is_used = has_function && agent.has_driver(loan);
            match place.hold.follow(is_used, Instant::now()) {
                Some(Change::Hold) => monitor.order(place.subject(loan), Task::Hold(place.plug())),
                Some(Change::Release) => {
                    monitor.order(place.subject(loan), Task::Release(place.plug()));
                    place.awaited.release = true;
                }
                None => {}
            }
        }
    }

    /// Lets guests know, by the ports that their functions are plugged into, of accesses without an answer.
    fn report_timeouts(&mut self, agent: &Agent) {
        if self.monitors.is_empty() {
            return;
        }
        for (loan, (_, cells)) in agent.view().loans().enumerate() {
            let Some(place) = self.places.get_mut(&loan) else { continue };
            let timeouts = cells.session().map_or(0, |session| session.counters.timeouts.get());
            let is_news = timeouts > place.told_timeouts && !place.awaited.report;
            if let Some(monitor) = self.monitors.get(&place.domain)
                && is_news
                && place.phase == Phase::Attached
                && agent.has_guest(loan)
            {
                monitor.order(place.subject(loan), Task::ReportTimeout(place.plug()));
                place.awaited.report = true;
            }
            // Also where there is nobody to be told; and a function attached anew counts from zero.
            place.told_timeouts = timeouts;
        }
    }

    fn answered(&mut self, subject: Subject, outcome: Outcome, agent: &mut Agent) {
        let loan = subject.place;
        let Some(place) = self.places.get_mut(&loan) else { return };
        // What was decided since then has orders of its own.
        if subject.generation != place.generation {
            return;
        }
        let slot = place.name.to_string();
        match outcome {
            Outcome::Plugged => {
                Event::SlotPlugged { slot }.say();
                place.awaited.plug = false;
                place.trouble = None;
                place.hold = Hold::begin();
            }
            Outcome::NotPlugged(error) => {
                Event::SlotNotPlugged { slot, error: error.to_string() }.say();
                place.awaited.plug = false;
                if matches!(error, QmpError::Qmp(Error::Connect { .. } | Error::Silent { .. })) {
                    place.machine = Machine::Away { asked: Instant::now() };
                }
                place.trouble = Some(error.to_string());
            }
            Outcome::Removed | Outcome::LeftBehind(_) => {
                match outcome {
                    Outcome::LeftBehind(why) => Event::SlotLeftBehind { slot, why: why.to_string() }.say(),
                    _ => {
                        Event::SlotUnplugged { slot }.say();
                        place.hold = Hold::Free;
                    }
                }
                place.awaited.unplug = false;
                if let Phase::Leaving { .. } = place.phase {
                    place.give_back(loan, agent);
                }
            }
            Outcome::NotRemoved(error) => {
                Event::SlotNotUnplugged { slot, error: error.to_string() }.say();
                place.awaited.unplug = false;
                place.trouble = Some(error.to_string());
            }
            Outcome::NotHeld(error) => Event::MachineNotHeld { slot, error: error.to_string() }.say(),
            Outcome::StillThere => place.awaited.release = false,
            Outcome::Released(was_held) => {
                place.awaited.release = false;
                place.hold = Hold::Free;
                if was_held {
                    Event::MachineReleased { slot }.say();
                }
            }
            Outcome::Reported(failed) => {
                place.awaited.report = false;
                match failed {
                    None => Event::GuestTold { slot }.say(),
                    Some(why) => Event::GuestNotTold { slot, why: why.to_string() }.say(),
                }
            }
            Outcome::Looked(is_running) => {
                place.awaited.look = false;
                let is_back = is_running.is_some_and(|it| place.machine.looked(it, Instant::now()));
                if is_back && place.phase == Phase::Attached {
                    Event::MachineBack { slot }.say();
                    place.plug_at = Some(Instant::now() + SETTLE);
                }
            }
        }
    }

    /// Attaches the function of a line to a slot.
    pub(super) fn attach(&mut self, slot: &str, line: &str, agent: &mut Agent, state: &StateDir) -> Response {
        let (loan, line) = match (self.find(slot), line.parse::<Line>()) {
            (Ok(loan), Ok(line)) => (loan, line),
            (Err(why), _) => return Response::Refused { why },
            (_, Err(error)) => return Response::Refused { why: error.to_string() },
        };
        let Some(place) = self.places.get(&loan).filter(|place| !place.is_leaving) else {
            return Response::Refused { why: format!("{slot} is not in the node's file any more") };
        };
        if place.phase != Phase::Vacant {
            let why = format!("{slot} is taken; `causeway detach {slot}` makes it vacant");
            return Response::Refused { why };
        }
        let decides = |place: &mut Entry| place.decide(Attached::Line(Box::new(line.clone())), state);
        let attached = self.begin_if(loan, &Claim::from(&line), None, agent, state, decides);
        match attached {
            Ok(()) => self.look(slot, agent),
            Err(failure) => Response::Refused { why: failure.message().to_owned() },
        }
    }

    /// What the file says is attached to a vacant slot, whose socket may be there already.
    fn begin(
        &mut self,
        loan: usize,
        line: &Line,
        listener: Option<UnixListener>,
        agent: &mut Agent,
        state: &StateDir,
    ) -> Result<(), Failure> {
        self.begin_if(loan, &Claim::from(line), listener, agent, state, |_| Ok(()))
    }

    /// Attaches something to a vacant slot when `decide` has made that durable.
    fn begin_if(
        &mut self,
        loan: usize,
        claim: &Claim,
        listener: Option<UnixListener>,
        agent: &mut Agent,
        state: &StateDir,
        decide: impl FnOnce(&mut Entry) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.may_attach(claim, agent)?;
        let place = self.places.get_mut(&loan).ok_or_else(|| Failure::refused("the slot is gone"))?;
        // What a manager has assigned stays, whatever its lender thinks of it yet.
        place.is_asked_for = matches!(claim, Claim::Line(_));
        let attached = place.loan(claim, listener).and_then(|mut spec| {
            spec.config.life = state.begin_life()?;
            decide(place)?;
            agent.attach(loan, spec).map_err(|error| Failure::io("the loan cannot begin", &error))
        });
        let slot = place.name.to_string();
        if attached.is_ok() {
            place.trouble = None;
        } else if agent.view().spec().loans[loan].is_vacant() {
            place.phase = Phase::Vacant;
            // The next start of the node would attach it; if this cannot be written either, it may.
            if let Err(failure) = place.decide(Attached::Nothing, state) {
                Event::SlotUndecided { slot, error: failure.message().to_owned() }.say();
            }
        }
        attached
    }

    /// Whether this node can have a function.
    fn may_attach(&self, claim: &Claim, agent: &Agent) -> Result<(), Failure> {
        if agent.is_shutting_down() {
            return Err(Failure::refused("the node is ending; attach when it runs again"));
        }
        let view = agent.view();
        let function = claim.function_id();
        let is_it = |other: &LoanSpec| !other.is_vacant() && other.config.function == function;
        let has_it = |(at, other): (usize, &LoanSpec)| is_it(other).then_some(at);
        if let Some(at) = view.spec().loans.iter().enumerate().find_map(has_it) {
            let holder =
                self.places.get(&at).map_or("another loan".to_owned(), |holder| holder.name.to_string());
            let why = format!("this node has {} already, in {holder}", claim.function());
            return Err(Failure::refused(why));
        }
        Ok(())
    }

    /// Takes what is attached out of a slot.
    pub(super) fn detach(&mut self, slot: &str, agent: &mut Agent, state: &StateDir) -> Response {
        let loan = match self.find(slot) {
            Ok(loan) => loan,
            Err(why) => return Response::Refused { why },
        };
        let Some(place) = self.places.get_mut(&loan).filter(|place| place.phase != Phase::Vacant) else {
            return Response::Refused { why: format!("nothing is attached to {slot}") };
        };
        if let Some(Assigned { function, .. }) = place.assigned.as_ref().filter(|_| !place.may_be_forgotten())
        {
            let why = format!(
                "{function} in {slot} is assigned by the manager of the fabric: `causeway unassign` takes it out"
            );
            return Response::Refused { why };
        }
        if let Err(failure) = place.decide(Attached::Nothing, state) {
            return Response::Refused { why: failure.message().to_owned() };
        }
        if let Some(next) = &mut place.next {
            next.attach_nothing();
        }
        self.take_out(loan, agent);
        self.look(slot, agent)
    }

    /// The machine is to let go of what is attached, and then it is given back.
    fn take_out(&mut self, loan: usize, agent: &mut Agent) {
        let Some(place) = self.places.get_mut(&loan) else { return };
        place.forget_loss();
        if matches!(place.phase, Phase::Attaching | Phase::Attached) {
            place.trouble = None;
            let was_plugging = place.awaited.plug;
            place.await_nothing();
            if agent.has_guest(loan) || was_plugging {
                place.phase = Phase::Leaving { since: Instant::now(), surprised: false };
                place.unused = None;
                if let Some(monitor) = self.monitors.get(&place.domain) {
                    monitor.order(place.subject(loan), Task::Unplug(place.plug()));
                    place.awaited.unplug = true;
                }
            } else {
                place.give_back(loan, agent);
            }
        }
    }

    /// How a slot is doing.
    pub(super) fn look(&self, slot: &str, agent: &Agent) -> Response {
        match self.find(slot) {
            Ok(loan) => {
                let met = super::report::peer_of(&agent.view(), loan).is_some();
                Response::Slot { slot: SlotReport { met, ..self.report(&self.places[&loan]) } }
            }
            Err(why) => Response::Refused { why },
        }
    }

    /// Says which slot a loan is, if it is one.
    pub(super) fn annotate(&self, place: usize, loan: &mut Loan) {
        if let Some(slot) = self.places.get(&place) {
            loan.slot = Some(slot.name.to_string());
        }
    }

    /// Which slot a loan is.
    pub(super) fn slot_of(&self, loan: usize) -> Option<String> {
        Some(self.places.get(&loan)?.name.to_string())
    }

    fn find(&self, slot: &str) -> Result<usize, String> {
        let found = self.places.iter().find(|(_, place)| place.name.to_string() == slot);
        found.map(|(loan, _)| *loan).ok_or_else(|| {
            let known: Vec<String> = self.places.values().map(|place| place.name.to_string()).collect();
            match known.len() {
                0 => format!("this node has no slot {slot}: its configuration has no [[domains]]"),
                _ => format!("this node has no slot {slot}; it has {}", known.join(", ")),
            }
        })
    }

    fn report(&self, place: &Entry) -> SlotReport {
        let plug = place.plug();
        let by_hand = !self.monitors.contains_key(&place.domain);
        SlotReport {
            state: match place.phase {
                Phase::Attaching if place.is_owed() => SlotState::Returning,
                Phase::Vacant => SlotState::Vacant,
                Phase::Attaching => SlotState::Attaching,
                Phase::Attached => SlotState::Attached,
                Phase::Leaving { .. } => SlotState::Leaving,
                Phase::Returning { .. } => SlotState::Returning,
            },
            edge: crate::edge::vfio_user(&place.slot.socket),
            met: false,
            plugging: !by_hand && (place.plug_at.is_some() || place.awaited.plug),
            plug: by_hand.then(|| format!(r#"{{"execute":"device_add","arguments":{}}}"#, plug.argument())),
            unplug: by_hand.then(|| format!("info mtree -f, then device_del {}", plug.id)),
            trouble: place.trouble.clone(),
        }
    }
}

impl Entry {
    fn plug(&self) -> Plug {
        let socket = std::path::absolute(&self.slot.socket).unwrap_or_else(|_| self.slot.socket.clone());
        Plug { id: self.slot.device.clone(), bus: self.slot.bus.clone(), socket }
    }

    /// The loan of a function, with the socket, which may be there already.
    fn loan(&mut self, claim: &Claim, listener: Option<UnixListener>) -> Result<LoanSpec, Failure> {
        let path = self.slot.socket.clone();
        let listener = match listener {
            // Nobody is to have what is owed. One of a node that was killed before it had taken it away may lie there;
            // somebody else's stays.
            None if self.is_lost => {
                let _ = socket::clear(&path);
                None
            }
            None => Some(socket::bind(&path, &self.slot.access)?),
            some => some,
        };
        self.phase = Phase::Attaching;
        self.machine = Machine::Unseen;
        self.await_nothing();
        let timeout = Duration::from_secs(IO_TIMEOUT_DEFAULT_S);
        let edge = Edge::Vm { path, listener, machine: self.domain };
        self.assigned = match claim {
            Claim::Line(_) => None,
            Claim::Assigned(assigned) => Some((**assigned).clone()),
        };
        Ok(claim.loan(edge, timeout))
    }

    fn vacancy(&self) -> LoanSpec {
        let path = self.slot.socket.clone();
        LoanSpec::vacant(Some(Edge::Vm { path, listener: None, machine: self.domain }))
    }

    /// Makes durable what is attached from now on.
    fn decide(&mut self, attached: Attached, state: &StateDir) -> Result<(), Failure> {
        let attachment = Attachment { generation: self.generation + 1, attached };
        state.set_attachment(&self.name, &attachment)?;
        self.generation = attachment.generation;
        Ok(())
    }

    fn subject(&self, place: usize) -> Subject {
        Subject { place, generation: self.generation }
    }

    /// Something else was decided: nothing that the monitor says of what was before counts.
    fn await_nothing(&mut self) {
        self.plug_at = None;
        self.awaited = Awaited::default();
    }

    /// Whether the guest has let go of the function, by whether a driver has it now: asked at each look. QEMU keeps its
    /// connection, and nothing else says so.
    fn is_let_go(&mut self, has_driver: bool) -> bool {
        if has_driver {
            self.unused = None;
            return false;
        }
        self.unused.get_or_insert_with(Instant::now).elapsed() >= LET_GO
    }

    fn give_back(&mut self, loan: usize, agent: &mut Agent) {
        self.await_nothing();
        self.phase = Phase::Returning { since: Instant::now(), abandoned: false };
        agent.detach(loan);
    }
}
