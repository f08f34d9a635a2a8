//! What the log of a node has said, so that everything is said once: of loans, of trouble, of drives that have lost
//! something, and of accesses that were denied.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use base::ids::NodeId;
use io::agent::{AgentEvent, View};
use io::event::Event;
use io::rate_limited::RateLimited;
use tracing::debug;

use super::super::{report, trouble};
use super::tell;

/// Between two looks for trouble.
const LOOK: Duration = Duration::from_secs(1);

/// What was said.
pub(super) struct Said {
    loans: tell::Told,
    trouble: trouble::Watch,
    started: Instant,
    look_at: Instant,
    /// By place: when a loan came that was not there from the start.
    came: BTreeMap<usize, Instant>,
    /// Drives that have lost something.
    faults: BTreeSet<usize>,
    /// By loan: accesses that were denied.
    denied: BTreeMap<usize, u64>,
    /// The state of a drive cannot be kept: each flush of its users may try it again.
    unkept: RateLimited,
}

impl Said {
    /// Nothing, of a node that starts now.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            loans: tell::Told::default(),
            trouble: trouble::Watch::default(),
            started: now,
            look_at: now + LOOK,
            came: BTreeMap::new(),
            faults: BTreeSet::new(),
            denied: BTreeMap::new(),
            unkept: RateLimited::of_trouble(),
        }
    }

    /// The line about states of drives that cannot be kept.
    pub(super) fn unkept(&mut self) -> &mut RateLimited {
        &mut self.unkept
    }

    /// How long the node has been running.
    pub(super) fn running(&self) -> Duration {
        self.started.elapsed()
    }

    /// A loan has come to this place.
    pub(super) fn note_come(&mut self, place: usize) {
        self.came.insert(place, Instant::now());
    }

    /// Whether two programs with this identity were seen lately.
    pub(super) fn is_shared(&self, node: NodeId) -> bool {
        self.trouble.is_shared(self.running(), node)
    }

    /// Drives that have lost something.
    pub(super) fn faults(&mut self) -> &mut BTreeSet<usize> {
        &mut self.faults
    }

    /// Says what an event of the agent is to the log.
    pub(super) fn handle(&mut self, view: &View<'_>, event: &AgentEvent) {
        let loan = match event {
            AgentEvent::Ready(loan) | AgentEvent::Overtaken(loan) | AgentEvent::LoadEnded(loan, _) => *loan,
            AgentEvent::Tenant { loan, .. } | AgentEvent::GivenBack { loan, .. } => *loan,
            AgentEvent::Unusable { loan, .. } | AgentEvent::Refused { loan, .. } => *loan,
            AgentEvent::MediaFault(drive) => return self.say_fault(view, *drive),
            // The agent has said more.
            AgentEvent::Altered(drive) | AgentEvent::Grown(drive) => {
                return debug!(drive, "the image has changed");
            }
            AgentEvent::Persist { drive, version, .. } => {
                return debug!(drive, version, "the state of a drive is to be kept");
            }
            // Whoever keeps it says how that went.
            AgentEvent::Applied { .. } | AgentEvent::HoldOver { .. } => return,
            AgentEvent::StoreTenancy { .. } | AgentEvent::RaiseIncarnation { .. } => return,
            AgentEvent::StoreHolder(_) | AgentEvent::ForgetHolder(_) => return,
        };
        if let Some(about) = tell::About::of(view, loan) {
            self.loans.handle(Instant::now(), event, &about).iter().for_each(Event::say);
        }
    }

    /// The medium of a drive has lost something: once, though each card says it anew.
    fn say_fault(&mut self, view: &View<'_>, drive: usize) {
        let spec = view.spec();
        if let Some(lent) = spec.drive(drive).filter(|_| self.faults.insert(drive)) {
            let (source, drive) = (lent.source.clone(), lent.name.clone());
            Event::MediaFault { source, drive, node: spec.name.clone() }.say();
        }
    }

    /// Says what had to wait.
    pub(super) fn handle_timeout(&mut self) {
        self.loans.handle_timeout(Instant::now()).iter().for_each(Event::say);
    }

    /// When something is to be said or looked at; trouble only `looks_for_trouble`.
    pub(super) fn poll_timeout(&self, looks_for_trouble: bool) -> Option<Instant> {
        let look_at = Some(self.look_at).filter(|_| looks_for_trouble);
        [look_at, self.loans.poll_timeout()].into_iter().flatten().min()
    }

    /// Says what has become worse, or well again, since the last look, if it is time for one. True if it was.
    pub(super) fn look_for_trouble(&mut self, view: &View<'_>) -> bool {
        let now = Instant::now();
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK;
        let running = now - self.started;
        let waited = |place: usize| self.came.get(&place).map_or(running, |came| now - *came);
        let seen = trouble::Seen {
            peers: report::peers(view),
            wanted: report::wanted(view, waited, |place, life| self.loans.is_refused(place, life)),
            kept: report::kept(view),
            domains: Some(report::domains(view)),
            sightings: report::sightings(view),
            misdeeds: report::misdeeds(view),
            strangers: view.gauges().dropped_unknown.get(),
        };
        let news = self.trouble.look(running, SystemTime::now(), &seen);
        news.iter().chain(&report::denied(view, &mut self.denied)).for_each(Event::say);
        true
    }

    /// The node ends: what had to wait is said now.
    pub(super) fn conclude(&mut self) {
        self.loans.conclude().iter().for_each(Event::say);
    }
}
