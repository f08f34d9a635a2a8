//! A node that belongs to a fabric: what its manager says, and what comes of it here.
//!
//! What it is to do is the affair of a core ([`manager::member`]); here that meets the state folder, the agent and the
//! slots. The data plane waits for nothing of it: without a manager all goes on as was told last.

mod about;
mod clearing;
mod made;
mod places;
mod rails;

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::ids::{BASE32, DomainId, LoanGeneration, NodeId};
use io::agent::{Agent, AgentEvent, LoanSpec};
use io::discovery::Discovery;
use io::event::Event;
use management::authority;
use management::keys;
use management::session::{self, Heard, Session};
use management::trust::authority_key_of;
use management::wire::{About, EVENTS_MAX, FromNode, NodeEvent, ToNode};
use manager::machine::RAILS_TOLD_MAX;
use manager::member::{Effect, Kept, Member, Row, Told};
use manager::model::WallTime;
use manager::report::Holder;
use node::{Address, Applied, Certificate, Entry, Limit, MAX_RAILS, Members, Notice, Possession};

use self::made::Maker;
use self::places::Places;
use self::rails::Rails;
use super::domains::Domains;
use super::neighbourhood;
use crate::config::Device;
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
    maker: Maker,
    /// Rails that it finds dead.
    rails: Rails,
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
    /// The same of the certificate.
    certify_at: Option<Instant>,
    /// Of whom the card knows that they have to show a certificate.
    assigned: BTreeSet<NodeId>,
}

/// What of the node it acts on.
pub(super) struct Hands<'a> {
    pub(super) agent: &'a mut Agent,
    pub(super) domains: &'a mut Domains,
    pub(super) state: &'a StateDir,
    /// What the node lends of its own, as it was declared.
    pub(super) devices: &'a [Device],
    pub(super) discovery: &'a mut Discovery,
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
        let assigned = assigned(&kept);
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
            maker: Maker::new(state.made()?),
            rails: Rails::default(),
            about: None,
            recent: Recent::of_process(),
            next_event: 1,
            looks_at: now,
            follows_at: Some(now),
            reports_at: now + INVENTORY,
            anew_at: None,
            certify_at: None,
            assigned,
        }))
    }

    /// Readable when [`Managed::turn`] has something to do.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.session.as_fd()
    }

    /// When it has something to do although nothing is readable.
    pub(super) fn poll_timeout(&self) -> Instant {
        [self.follows_at, self.maker.poll_timeout()].into_iter().flatten().fold(self.looks_at, Instant::min)
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

    /// This node has found out that a rail seems to have failed: the manager hears of it at once.
    pub(super) fn note_rail(&mut self, notice: Notice) {
        self.rails.note(Instant::now(), notice);
        self.member.set_rails(self.rails.said());
    }

    /// Hears the manager and does what comes of it.
    pub(super) fn turn(&mut self, hands: &mut Hands<'_>) {
        while let Some(heard) = self.session.take() {
            self.hear(heard, hands);
        }
        let now = Instant::now();
        if self.looks_at <= now {
            (self.looks_at, self.follows_at) = (now + LOOK, Some(now));
            self.member.set_functions(about::functions(&hands.agent.view(), |loan| self.maker.made(loan)));
            self.tell_about(hands);
            self.tell_events();
            self.look_at_clock(hands.agent);
            if self.certify_at.is_some_and(|at| at <= now) {
                self.certify_at = keep_certified(hands.state, &self.certified, now);
            }
            self.rails.look(now, hands.agent);
            self.member.set_rails(self.rails.said());
        }
        if self.reports_at <= now {
            self.reports_at = now + INVENTORY;
            self.member.say_inventory();
        }
        self.act(hands);
        self.maker.turn(&mut self.member, hands);
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
            Heard::Told(ToNode::Recall { epoch }) => {
                self.member.set_revoked(self.certified.revoked.clone());
                self.member.handle_told(&Told::Recall { epoch });
            }
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
            Heard::Told(ToNode::Functions { epoch, list }) => {
                self.member.handle_told(&Told::Made { epoch, list });
            }
            Heard::Told(ToNode::Member { certificate, revoked }) => {
                let certificate = self.better(certificate);
                self.certify(self.certified.renewed(certificate, revoked), hands);
            }
            Heard::Told(ToNode::Rails(rails)) => {
                let rails = rails.into_iter().take(RAILS_TOLD_MAX);
                rails.for_each(|rail| hands.agent.heed(rails::notice(rail)));
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
        // It counts all the same.
        self.certify_at = keep_certified(hands.state, &certified, Instant::now());
        for node in certified.revoked.iter().filter(|node| !self.certified.revoked.contains(node)) {
            Event::NodeRemoved { node: node.to_string() }.say();
        }
        if let Ok(mut shared) = self.certificate.lock() {
            shared.clone_from(&certified.certificate);
        }
        self.certified = certified;
        self.tell_members(hands.agent);
    }

    /// The one of both certificates that counts: that of a manager with a wrong clock does not take the place of one
    /// that is good.
    fn better(&self, told: String) -> String {
        let Some(authority) = authority_key_of(&self.membership.authority) else { return told };
        let read = |text: &str| Certificate::read(&BASE32.decode(text.as_bytes()).ok()?, &authority);
        let (present, new) = (read(&self.certified.certificate), read(&told));
        match is_better(present.as_ref(), new.as_ref(), management::clock::wall()) {
            Ok(()) => told,
            Err(why) => {
                Event::CertificateUnfit { why }.say();
                self.certified.certificate.clone()
            }
        }
    }

    /// Others have something by the manager's word now, or this node has something of others.
    fn look_at_members(&mut self, agent: &mut Agent) {
        let assigned = assigned(self.member.kept());
        if assigned != self.assigned {
            self.assigned = assigned;
            self.tell_members(agent);
        }
    }

    fn tell_members(&self, agent: &mut Agent) {
        if let Some(Err(error)) = self.members().map(|members| agent.set_fabric(members)) {
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
            assigned: assigned(self.member.kept()).into_iter().collect(),
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
                Effect::Act { number, row } => {
                    self.look_at_members(hands.agent);
                    self.act_by(number, row, hands.agent);
                }
                Effect::Plug => {
                    self.look_at_members(hands.agent);
                    self.places.set(self.member.kept().presets());
                    self.follows_at = Some(Instant::now());
                }
                Effect::Make => self.maker.begin(),
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
    pub(super) fn is_limited(&self, number: u32, name: &str) -> bool {
        self.member.kept().row(number).limits.is_some() || self.maker.has(name)
    }

    /// The functions of a device that the manager has made, or is having made.
    pub(super) fn made_on<'a>(&'a self, device: &'a str) -> impl Iterator<Item = &'a str> {
        self.maker.made_on(device)
    }

    /// The node's file was read again: devices may have come.
    pub(super) fn handle_reloaded(&mut self) {
        self.maker.begin();
    }

    fn tell_about(&mut self, hands: &mut Hands<'_>) {
        let switches = neighbourhood::switches(hands.agent, hands.discovery);
        let about = about::about(hands.agent, hands.domains, switches);
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

/// Who has something of this node by its manager's word, and of whom this one has something by it.
fn assigned(kept: &Kept) -> BTreeSet<NodeId> {
    let borrower = |row: &Row| match row.holder {
        Holder::Nobody => None,
        Holder::Assigned(of) | Holder::Leaving { from: of, .. } => Some(of.borrower),
    };
    let lenders = kept.presets().iter().map(|preset| preset.function.node);
    kept.rows.values().filter_map(borrower).chain(lenders).collect()
}

/// What is wrong with the times of a certificate of this node, in words with all of them.
fn untimely(own: &Certificate, now: WallTime) -> Option<String> {
    let fault = authority::certificate::untimely(own, now)?;
    Some(format!(
        "the certificate of this node {fault} by its clock: other nodes of the fabric let in nothing new of it; set \
         the clock if it is wrong, else see to it that the manager can be reached, which gives it another one"
    ))
}

/// Whether the certificate that a manager gives takes the place of the present one; else why not, for people.
fn is_better(present: Option<&Certificate>, new: Option<&Certificate>, now: WallTime) -> Result<(), String> {
    let Some(present) = present else { return Ok(()) };
    let fault = match new {
        None => "is not signed by the fabric's authority".to_owned(),
        Some(new) => match authority::certificate::untimely(new, now) {
            Some(fault) if authority::certificate::untimely(present, now).is_none() => {
                format!("{fault} by this node's clock")
            }
            // Where both say the same, that is a renewal, which lasts longer.
            None if is_same(present, new) && new.not_after < present.not_after => {
                format!("is good until {} only", WallTime(new.not_after))
            }
            _ => return Ok(()),
        },
    };
    Err(format!(
        "a certificate that the manager has given this node {fault}; the one before stays, which is good until {}: \
         look at the manager's clock",
        WallTime(present.not_after)
    ))
}

/// Whether two certificates say the same of a node, but for when.
fn is_same(one: &Certificate, other: &Certificate) -> bool {
    let Certificate { serial, not_before, not_after, .. } = *one;
    *one == Certificate { serial, not_before, not_after, ..other.clone() }
}

/// Keeps by what the node shows that it belongs to its fabric. When that is to be tried again, if it could not be.
fn keep_certified(state: &StateDir, certified: &Certified, now: Instant) -> Option<Instant> {
    let error = state.keep_certified(certified).err()?;
    Event::DecisionUnkept { error: error.to_string() }.say();
    Some(now + AGAIN)
}

/// The entry of a row; `None`: nothing was ever told of the function.
pub(super) fn entry_of(row: &Row) -> Option<Entry> {
    let of = |it: manager::model::Assignment| node::Assignment {
        node: it.borrower,
        domain: it.place.domain,
        slot: it.place.slot,
        group: it.group,
        hold: it.on_silence.hold(),
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

#[cfg(test)]
mod tests {
    use base::ids::Group;
    use manager::member::Change;
    use manager::model::{Assignment, FunctionKey, OnSilence, Place, PublicKey};
    use manager::report::{Preset, PresetsId};
    use node::PublicKey as NodePublicKey;

    use super::*;

    const DAY: u64 = 86_400_000;

    /// Issued on this day, for so many groups.
    fn certificate(day: u64, groups: u16) -> Certificate {
        Certificate {
            fabric: [7; 16],
            key: NodePublicKey([9; 32]),
            serial: day,
            not_before: (day - 1) * DAY,
            not_after: (day + 30) * DAY,
            base: 64,
            domains: 64,
            name: "store".to_owned(),
            groups: (1..=groups).map(Group).collect(),
        }
    }

    #[test]
    fn a_certificate_of_a_manager_with_a_wrong_clock_does_not_replace_one_that_is_good() {
        let better = |present: Option<&Certificate>, new, day| is_better(present, new, WallTime(day * DAY));
        let (present, next) = (certificate(1000, 1), certificate(1001, 1));
        assert_eq!(better(Some(&present), Some(&next), 1001), Ok(()));
        assert_eq!(better(None, None, 1001), Ok(()), "there is no other one");
        let (slow, fast) = (certificate(900, 1), certificate(2000, 1));
        for (wrong, word) in
            [(Some(&slow), "was good until"), (Some(&fast), "is good from"), (None, "signed")]
        {
            let why = better(Some(&present), wrong, 1001).unwrap_err();
            assert!(why.contains(word) && why.contains("manager's clock"), "{why}");
        }
        // A clock that is a little slow: it would only be good for less long.
        let [shorter, other] = [1, 2].map(|groups| certificate(995, groups));
        assert!(better(Some(&present), Some(&shorter), 1001).is_err());
        assert_eq!(better(Some(&present), Some(&other), 1001), Ok(()), "it says something else");
        // Where the present one is good no more there is nothing to lose.
        assert_eq!(better(Some(&present), Some(&fast), 1100), Ok(()));
    }

    #[test]
    fn what_could_not_be_kept_is_kept_later() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let certified = Certified { certificate: "a".to_owned(), revoked: vec![NodeId::numbered(3)] };
        let now = Instant::now();
        // A folder is where the file is to be.
        let obstacle = state.path().join("certificate");
        std::fs::create_dir(&obstacle).unwrap();
        let again = keep_certified(&state, &certified, now);
        assert_eq!(again, Some(now + AGAIN));
        std::fs::remove_dir(&obstacle).unwrap();
        assert_eq!(keep_certified(&state, &certified, now + AGAIN), None);
        assert_eq!(state.certified().unwrap(), certified);
    }

    #[test]
    fn who_has_something_by_the_managers_word_is_known_by_the_table_and_the_slots() {
        let place = Place { domain: DomainId(65), slot: 3 };
        let of = |node| Assignment {
            borrower: NodeId::numbered(node),
            place,
            group: Group::DEFAULT,
            on_silence: OnSilence::default(),
        };
        let mut kept = Kept::default();
        let holders = [
            Holder::Assigned(of(5)),
            Holder::Leaving { from: of(4), forced: false },
            Holder::Nobody,
            Holder::Assigned(of(5)),
        ];
        for (number, holder) in (0..).zip(holders) {
            kept.apply(&Change::Row {
                number,
                row: Row { holder, generation: LoanGeneration(1), limits: None },
            });
        }
        let function = FunctionKey { node: NodeId::numbered(7), number: 0 };
        let (lender, generation, group) = (PublicKey([1; 32]), LoanGeneration(1), Group::DEFAULT);
        let presets =
            vec![Preset { place, function, lender, generation, group, on_silence: OnSilence::default() }];
        kept.apply(&Change::Presets { id: PresetsId { epoch: 1, index: 1 }, presets });
        let expected: BTreeSet<NodeId> = [4, 5, 7].map(NodeId::numbered).into();
        assert_eq!(assigned(&kept), expected);
        // As the card looks them up.
        assert!(assigned(&kept).into_iter().collect::<Box<[NodeId]>>().is_sorted());
    }
}
