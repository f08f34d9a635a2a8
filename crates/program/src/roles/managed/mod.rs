//! A node that belongs to a fabric: what its manager says, and what comes of it here.
//!
//! What it is to do is the affair of a core ([`manager::member`]); here that meets the state folder, the agent and the
//! slots. The data plane waits for nothing of it: without a manager all goes on as was told last.

mod about;
mod places;

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::ids::{BASE32, DomainId, LoanGeneration, NodeId};
use io::agent::{Agent, AgentEvent, LoanSpec};
use io::event::Event;
use management::keys;
use management::session::{self, Heard, Session};
use management::trust::authority_key_of;
use management::wire::{About, EVENTS_MAX, FromNode, NodeEvent, ToNode};
use manager::member::{Effect, Member, Row, Told};
use manager::model::WallTime;
use manager::report::Holder;
use node::{Address, Applied, Certificate, Entry, Limit, MAX_RAILS, Members, Possession};

use self::places::Places;
use super::domains::Domains;
use crate::events::Recent;
use crate::exit::Failure;
use crate::state_dir::StateDir;
use crate::state_dir::membership::{Certified, Membership};

/// Between two looks at what the manager may like to know.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks at slots that wait for somebody.
const FOLLOW: Duration = Duration::from_millis(50);
/// Before something that could not be kept is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two reports of all that there is.
const INVENTORY: Duration = Duration::from_secs(60);

/// A node that belongs to a fabric.
pub(super) struct Managed {
    membership: Membership,
    /// What it shows to others, and who was removed.
    certified: Certified,
    /// As the session knows it.
    certificate: Arc<Mutex<String>>,
    only_members: bool,
    /// What was wrong with the certificate's times when that was looked at last.
    unfit: Option<String>,
    member: Member,
    session: Session,
    is_connected: bool,
    /// What its slots shall hold.
    places: Places,
    /// What was said of the node last.
    about: Option<About>,
    recent: Recent,
    /// The next event that the manager has not heard of.
    next_event: u64,
    looks_at: Instant,
    /// When slots are looked at that wait for somebody.
    follows_at: Option<Instant>,
    reports_at: Instant,
    /// Something could not be kept: when that is tried again.
    anew_at: Option<Instant>,
}

/// What of the node it acts on.
pub(super) struct Hands<'a> {
    pub(super) agent: &'a mut Agent,
    pub(super) domains: &'a mut Domains,
    pub(super) state: &'a StateDir,
}

impl Managed {
    /// The node of this folder, if it belongs to a fabric.
    ///
    /// # Errors
    /// What was kept cannot be read, or the system has no thread for it.
    pub(super) fn start(state: &StateDir, only_members: bool) -> Result<Option<Self>, Failure> {
        let Some(membership) = state.membership()? else { return Ok(None) };
        if only_members && authority_key_of(&membership.authority).is_none() {
            return Err(Failure::refused(
                "`only_members` asks for certificates, and the authority of this node's fabric, of an earlier release, \
                 signs none that nodes can check: found the fabric anew, or leave the key out",
            ));
        }
        let pair = state.identity().clone();
        let identity = membership.identity(keys::public(&pair));
        let certified = state.certified()?;
        let certificate = Arc::new(Mutex::new(certified.certificate.clone()));
        let session = Session::start(session::Membership {
            fabric: membership.fabric,
            urls: membership.urls.clone(),
            authority: membership.authority.clone(),
            manager: membership.manager,
            pair,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            certificate: Arc::clone(&certificate),
        });
        let session = session.map_err(|error| Failure::io("cannot speak to the manager", &error))?;
        let kept = state.managed()?;
        let places = Places::new(kept.presets(), &state.placed()?);
        let now = Instant::now();
        Ok(Some(Self {
            membership,
            certified,
            certificate,
            only_members,
            unfit: None,
            member: Member::new(identity, kept),
            session,
            is_connected: false,
            places,
            about: None,
            recent: Recent::of_process(),
            next_event: 1,
            looks_at: now,
            follows_at: Some(now),
            reports_at: now + INVENTORY,
            anew_at: None,
        }))
    }

    /// Readable when [`Managed::turn`] has something to do.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }

    /// When it has something to do although nothing is readable.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.follows_at.map_or(self.looks_at, |at| at.min(self.looks_at))
    }

    /// How the manager is heard, for `status`.
    pub(super) fn said(&self) -> crate::status::Fabric {
        crate::status::Fabric {
            fabric: self.membership.fabric.to_string(),
            name: self.membership.name.to_string(),
            epoch: self.member.kept().epoch,
            connected: self.is_connected,
        }
    }

    /// Where the manager says that a lender is.
    pub(super) fn place_of(&self, node: NodeId) -> Option<[Option<Address>; MAX_RAILS]> {
        self.places.place_of(node)
    }

    /// An event of the agent.
    pub(super) fn handle(&mut self, event: &AgentEvent, agent: &Agent) {
        match event {
            AgentEvent::Applied { loan, applied } => {
                if let Some(number) = number_of(agent, *loan) {
                    self.note(number, applied);
                }
            }
            AgentEvent::HoldOver { loan, generation } => {
                if let Some(number) = number_of(agent, *loan) {
                    self.member.handle_hold_over(number, *generation);
                }
            }
            _ => {}
        }
    }

    /// The card is so far with a function.
    fn note(&mut self, number: u32, applied: &Applied) {
        let row = self.member.kept().row(number);
        if row.generation != applied.generation {
            return;
        }
        self.member.handle_acted(number, row);
        if applied.held == Possession::Nobody {
            self.member.handle_let_go(number, applied.generation);
        }
        match applied.is_overdue {
            Some(true) => self.member.handle_hold_over(number, applied.generation),
            Some(false) => self.member.handle_heard(number),
            None => {}
        }
    }

    /// Hears the manager and does what comes of it.
    pub(super) fn turn(&mut self, hands: &mut Hands<'_>) {
        while let Some(heard) = self.session.take() {
            self.hear(heard, hands);
        }
        let now = Instant::now();
        if self.looks_at <= now {
            (self.looks_at, self.follows_at) = (now + LOOK, Some(now));
            self.member.set_functions(about::functions(&hands.agent.view()));
            self.tell_about(hands);
            self.tell_events();
            self.look_at_clock(hands.agent);
        }
        if self.reports_at <= now {
            self.reports_at = now + INVENTORY;
            self.member.say_inventory();
        }
        self.act(hands);
        if self.follows_at.is_some_and(|at| at <= now) {
            let places = &self.places;
            let wanted = |domain: DomainId, slot: u16| places.wanted(domain, slot);
            let is_waiting = hands.domains.follow_assigned(&wanted, hands.agent, hands.state);
            self.follows_at = is_waiting.then_some(now + FOLLOW);
        }
    }

    fn hear(&mut self, heard: Heard, hands: &mut Hands<'_>) {
        let state = hands.state;
        match heard {
            Heard::Connected { url } => {
                Event::ManagerConnected { manager: url }.say();
                (self.is_connected, self.about) = (true, None);
                self.looks_at = Instant::now();
            }
            Heard::Lost { why } => {
                Event::ManagerLost { why }.say();
                self.is_connected = false;
            }
            Heard::Told(ToNode::Greet { epoch }) => self.member.handle_told(&Told::Greet { epoch }),
            Heard::Told(ToNode::Lender { epoch, orders }) => {
                self.member.handle_told(&Told::Orders { epoch, orders });
            }
            Heard::Told(ToNode::Borrower { id, presets: placed }) => {
                // Where lenders are is known before it is durable that something of them is to be here.
                if let Err(error) = state.keep_placed(&placed) {
                    return Event::DecisionUnkept { error: error.to_string() }.say();
                }
                let presets = placed.iter().map(|placed| placed.preset).collect();
                self.places.learn(&placed);
                self.member.handle_told(&Told::Presets { id, presets });
                self.follows_at = Some(Instant::now());
            }
            Heard::Told(ToNode::Member { certificate, revoked }) => {
                self.certify(self.certified.renewed(certificate, revoked), hands);
            }
            // The session does with these what there is to do.
            Heard::Told(ToNode::Challenge { .. } | ToNode::Refused { .. }) => {}
        }
    }

    /// The node has another certificate, or others were removed: that is durable, and then the card goes by it.
    fn certify(&mut self, certified: Certified, hands: &mut Hands<'_>) {
        if certified == self.certified {
            return;
        }
        if let Err(error) = hands.state.keep_certified(&certified) {
            // It counts all the same, and is told again.
            Event::DecisionUnkept { error: error.to_string() }.say();
        }
        for node in certified.revoked.iter().filter(|node| !self.certified.revoked.contains(node)) {
            Event::NodeRemoved { node: node.to_string() }.say();
        }
        if let Ok(mut shared) = self.certificate.lock() {
            shared.clone_from(&certified.certificate);
        }
        self.certified = certified;
        if let Some(Err(error)) = self.members().map(|members| hands.agent.set_fabric(members)) {
            Event::DecisionUnkept { error: error.to_string() }.say();
        }
    }

    /// What the node shows to others of its fabric, and whom it believes.
    pub(super) fn members(&self) -> Option<Members> {
        let authority = authority_key_of(&self.membership.authority)?;
        Some(Members {
            fabric: self.membership.fabric.0,
            authority,
            certificate: self.certificate().unwrap_or_default().into(),
            revoked: self.certified.revoked.clone().into(),
            only_members: self.only_members,
            clock_ahead_ms: 0,
        })
    }

    fn certificate(&self) -> Option<Vec<u8>> {
        BASE32.decode(self.certified.certificate.as_bytes()).ok()
    }

    /// The clock may have been set, and the node's own certificate may not be good by it.
    fn look_at_clock(&mut self, agent: &mut Agent) {
        if let Err(error) = agent.look_at_clock() {
            Event::DecisionUnkept { error: error.to_string() }.say();
        }
        let authority = authority_key_of(&self.membership.authority);
        let own = self.certificate().zip(authority);
        let own = own.and_then(|(bytes, authority)| Certificate::read(&bytes, &authority));
        let unfit = own.and_then(|own| untimely(&own, management::clock::wall()));
        if unfit.is_some() != self.unfit.is_some()
            && let Some(why) = unfit.clone()
        {
            Event::CertificateUnfit { why }.say();
        }
        self.unfit = unfit;
    }

    fn act(&mut self, hands: &mut Hands<'_>) {
        if let Some(at) = self.anew_at {
            if at > Instant::now() {
                return;
            }
            self.begin_anew(hands);
        }
        while let Some(effect) = self.member.poll_effect() {
            match effect {
                Effect::Keep(change) => match hands.state.keep_managed(&change) {
                    Ok(()) => self.member.handle_kept(),
                    Err(error) => {
                        Event::DecisionUnkept { error: error.to_string() }.say();
                        self.anew_at = Some(Instant::now() + AGAIN);
                        return;
                    }
                },
                Effect::Act { number, row } => self.act_by(number, row, hands.agent),
                Effect::Plug => {
                    self.places.set(self.member.kept().presets());
                    self.follows_at = Some(Instant::now());
                }
                Effect::Say(report) => drop(self.session.say(FromNode::Report(report))),
            }
        }
    }

    /// Something could not be kept: the member goes on from what is durable, and is told again what was told since.
    /// Whatever the disk says, the loans of the node go on.
    fn begin_anew(&mut self, hands: &Hands<'_>) {
        match hands.state.managed() {
            Ok(kept) => {
                self.anew_at = None;
                self.member.begin_anew(kept);
                self.places.set(self.member.kept().presets());
                self.follows_at = Some(Instant::now());
            }
            Err(_) => self.anew_at = Some(Instant::now() + AGAIN),
        }
    }

    fn act_by(&mut self, number: u32, row: Row, agent: &mut Agent) {
        let Some(loan) = loan_of(agent, number) else {
            // It is not lent now; when it is again, that is by this row.
            return self.member.handle_acted(number, row);
        };
        if let Some(limit) = limit_of(&row) {
            Self::limit(loan, limit, agent);
        }
        // Only its limits were ever told.
        let Some(entry) = entry_of(&row) else { return self.member.handle_acted(number, row) };
        let spec = &agent.view().spec().loans[loan];
        let is_news = spec.lent().is_some_and(|lent| lent.entry != Some(entry));
        let (function, generation) = (spec.function.clone(), row.generation.0);
        if let Holder::Assigned(to) = row.holder
            && to.group != spec.config.group
            && is_news
        {
            let (asked, own) = (to.group, spec.config.group);
            let why = format!(
                "the manager has assigned it in group {asked}, and this node lends it in group {own}: nobody gets it \
                 before it is assigned in that group"
            );
            Event::DecisionUnfit { function: function.clone(), why }.say();
        }
        if is_news {
            Event::FunctionManaged { function, generation, what: what_of(&row) }.say();
        }
        agent.set_entry(loan, entry);
        // Where the card is as far as that already, it has nothing new to say.
        if let Some(applied) = agent.applied(loan) {
            self.note(number, &applied);
        }
    }

    /// The card that runs is told, and each next one has it in its plan.
    fn limit(loan: usize, limit: Limit, agent: &mut Agent) {
        let spec = &agent.view().spec().loans[loan];
        let function = spec.function.clone();
        if spec.lent().is_some_and(|lent| lent.limit != limit) && agent.set_limit(loan, limit) {
            let (iops, bytes_per_s) = (limit.iops(), limit.bytes_per_s());
            Event::LimitChanged { function, iops, bytes_per_s }.say();
        }
    }

    /// Whether the manager limits the function of this number, so that nobody else does.
    pub(super) fn is_limited(&self, number: u32) -> bool {
        self.member.kept().row(number).limits.is_some()
    }

    fn tell_about(&mut self, hands: &Hands<'_>) {
        let about = about::about(hands.agent, hands.domains);
        if self.is_connected
            && self.about.as_ref() != Some(&about)
            && self.session.say(FromNode::About(about.clone()))
        {
            self.about = Some(about);
        }
    }

    fn tell_events(&mut self) {
        if !self.is_connected {
            return;
        }
        let (next, records) = self.recent.lock().read(self.next_event, EVENTS_MAX);
        if records.is_empty() {
            return;
        }
        let events = records.into_iter().map(|record| NodeEvent {
            at: record.time,
            name: record.kind,
            is_trouble: record.severity != "info",
            text: record.message,
        });
        if self.session.say(FromNode::Events(events.collect())) {
            self.next_event = next;
        }
    }
}

/// What is wrong with the times of a certificate of this node, in words with all of them.
fn untimely(own: &Certificate, now: WallTime) -> Option<String> {
    let (from, until) = (WallTime(own.not_before), WallTime(own.not_after));
    let fault = match now {
        now if now < from => format!("is good from {from} on only"),
        now if now >= until => format!("was good until {until}"),
        _ => return None,
    };
    Some(format!(
        "the certificate of this node {fault}, and its clock says {now}: other nodes of the fabric let in nothing new \
         of it; set the clock if it is wrong, else see to it that the manager can be reached, which gives it another one"
    ))
}

/// The entry of a row; `None`: nothing was ever told of the function.
pub(super) fn entry_of(row: &Row) -> Option<Entry> {
    let of = |it: manager::model::Assignment| node::Assignment {
        node: it.borrower,
        domain: it.place.domain,
        slot: it.place.slot,
        hold: match it.on_silence {
            manager::model::OnSilence::Hold { seconds } => Duration::from_secs(seconds.into()),
            manager::model::OnSilence::Remove => Duration::ZERO,
        },
    };
    let holder = match row.holder {
        Holder::Nobody => node::Holder::Nobody,
        Holder::Assigned(to) => node::Holder::Assigned(of(to)),
        Holder::Leaving { from, forced } => node::Holder::Leaving { from: of(from), forced },
    };
    (row.generation != LoanGeneration(0)).then_some(Entry { generation: row.generation, holder })
}

/// What the manager lets a function do; `None`: it has not said.
pub(super) fn limit_of(row: &Row) -> Option<Limit> {
    let limits = row.limits?.limits;
    // There is no limit of zero, which is the only one that is none.
    Limit::new(limits.iops.map(NonZeroU64::get), limits.bytes_per_s.map(NonZeroU64::get)).ok()
}

fn what_of(row: &Row) -> String {
    match row.holder {
        Holder::Nobody => "is nobody's".to_owned(),
        Holder::Assigned(to) => format!("is for node {} in slot {}", to.borrower, to.place),
        Holder::Leaving { from, forced: false } => format!("is taken back from node {}", from.borrower),
        Holder::Leaving { from, forced: true } => format!("is taken from node {} by force", from.borrower),
    }
}

/// The number of the function that is lent in a place.
fn number_of(agent: &Agent, loan: usize) -> Option<u32> {
    let view = agent.view();
    let spec = view.spec().loans.get(loan)?;
    spec.lent().map(|_| spec.config.function.0)
}

/// Where the function of this number is lent.
fn loan_of(agent: &Agent, number: u32) -> Option<usize> {
    let is_it = |loan: &LoanSpec| loan.lent().is_some() && loan.config.function.0 == number;
    agent.view().spec().loans.iter().position(is_it)
}
