//! What a node says of its loans. Cards say again what their predecessors have said, lenders what they have said
//! before, and peers and clients can come and go as often as they like: an event is what is news to whoever reads it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::ids::NodeId;
use io::agent::{AgentEvent, View};
use io::event::Event;
use node::{Cause, Sighting, Tenancy};
use tracing::debug;

use crate::roles::{refusal, report};

/// So many events of a loan are said at once,
const BURST: u32 = 8;
/// and then one more each time.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a drive does not hold what was left there.
const BY_OTHERS: &str = "another node has used the drive meanwhile, or it was made anew";
const BY_TWIN: &str = "another program with this lender's identity (a copied state folder?) lends it now, or another \
                       node has used the drive meanwhile";

/// The loan that an event of the agent is about.
pub(super) struct About {
    place: usize,
    life: u64,
    function: String,
    group: u16,
    is_lent: bool,
    /// Who is at the other end, if that is known.
    peer: Option<NodeId>,
    /// Two programs with its identity have been seen.
    has_twin: bool,
    /// This node.
    own: NodeId,
}

impl About {
    /// The one in this place.
    pub(super) fn of(view: &View<'_>, place: usize) -> Option<Self> {
        let (loan, _) = view.loan(place)?;
        let peer = report::peer_of(view, place);
        let is_twin = |it: Sighting| it.cause == Cause::Twin && Some(it.node) == peer;
        Some(Self {
            place,
            life: loan.config.life,
            function: loan.function.clone(),
            group: loan.zone().0,
            is_lent: loan.lent().is_some(),
            peer,
            has_twin: view.sightings().any(is_twin),
            own: view.spec().identity.id(),
        })
    }
}

/// What has been said of all loans.
#[derive(Default)]
pub(super) struct Told {
    /// By place.
    loans: BTreeMap<usize, OfLoan>,
}

/// Of one.
#[derive(Default)]
struct OfLoan {
    /// Which loan of its place.
    life: u64,
    is_usable: bool,
    refused: Option<Refused>,
    tenancy: Option<Tenancy>,
    speech: Speech,
}

/// A refusal: for which reason, and who has the function. All else of it changes with time alone.
#[derive(PartialEq, Eq)]
struct Refused(&'static str, Option<String>, Option<String>);

impl Told {
    /// What is to be said now that this has happened to a loan.
    pub(super) fn handle(&mut self, now: Instant, event: &AgentEvent, about: &About) -> Vec<Event> {
        let told = self.loans.entry(about.place).or_default();
        if told.life != about.life {
            let speech = std::mem::take(&mut told.speech);
            *told = OfLoan { life: about.life, speech, ..OfLoan::default() };
        }
        let news = told.news(event, about);
        news.map_or_else(Vec::new, |event| told.speech.say(now, &about.function, event))
    }

    /// Whether the last that was heard of this loan is that it is refused.
    pub(super) fn is_refused(&self, place: usize, life: u64) -> bool {
        self.loans.get(&place).is_some_and(|told| told.life == life && told.refused.is_some())
    }

    /// What waits and may be said now.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Event> {
        self.loans.values_mut().flat_map(|told| told.speech.handle_timeout(now)).collect()
    }

    /// What waits, at the end of the node.
    pub(super) fn conclude(&mut self) -> Vec<Event> {
        self.loans.values_mut().flat_map(|told| told.speech.conclude()).collect()
    }

    /// When [`Told::handle_timeout`] has something to say.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.loans.values().filter_map(|told| told.speech.poll_timeout()).min()
    }
}

impl OfLoan {
    /// The event, if it is news.
    fn news(&mut self, event: &AgentEvent, about: &About) -> Option<Event> {
        let function = about.function.clone();
        Some(match event {
            AgentEvent::Ready(_) => {
                self.refused = None;
                if std::mem::replace(&mut self.is_usable, true) {
                    debug!(function, "drive is usable to the new card too");
                    return None;
                }
                Event::LoanUsable { function, group: about.group }
            }
            AgentEvent::Refused { refusal, .. } => {
                self.is_usable = false;
                let event = refusal::event(function, refusal, about.own)?;
                let Event::LoanRefused { reason, ref holder, ref node, .. } = event else { return None };
                // Its claim asks again and again.
                let refused = Some(Refused(reason, holder.clone(), node.clone()));
                if self.refused == refused {
                    return None;
                }
                self.refused = refused;
                event
            }
            AgentEvent::Tenant { tenancy, .. } => {
                if self.tenancy.replace(*tenancy) == Some(*tenancy) {
                    return None;
                }
                let (by, node) = (tenancy.name.to_string(), tenancy.node.to_string());
                match tenancy.is_held {
                    true => Event::LoanTaken { function, group: about.group, by, node },
                    false => {
                        Event::LoanReturned { function, has_lost: false, by: Some(by), node: Some(node) }
                    }
                }
            }
            AgentEvent::GivenBack { has_lost, .. } => {
                self.refused = None;
                match (about.is_lent, std::mem::take(&mut self.is_usable)) {
                    // Whose it was is said when that is durable.
                    (true, _) => return None,
                    (false, true) => {
                        Event::LoanReturned { function, has_lost: *has_lost, by: None, node: None }
                    }
                    (false, false) => Event::LoanUnwanted { function },
                }
            }
            AgentEvent::Overtaken(_) => {
                let cause = if about.has_twin { BY_TWIN } else { BY_OTHERS };
                Event::LoanOvertaken { function, cause }
            }
            AgentEvent::Unusable { why, .. } => {
                let peer = about.peer.map(|peer| peer.to_string());
                Event::LoanUnusable { function, peer, why: why.clone() }
            }
            AgentEvent::LoadEnded(..) => Event::LoadEnded { function },
            AgentEvent::MediaFault(_)
            | AgentEvent::Altered(_)
            | AgentEvent::Grown(_)
            | AgentEvent::Persist { .. }
            | AgentEvent::Applied { .. }
            | AgentEvent::HoldOver { .. }
            | AgentEvent::StoreTenancy { .. }
            | AgentEvent::StoreHolder(_)
            | AgentEvent::ForgetHolder(_)
            | AgentEvent::RaiseIncarnation { .. } => return None,
        })
    }
}

/// Says events of one loan, not too many: the newest is always said, be it later.
struct Speech {
    /// So many may be said at once, as it was then.
    left: u32,
    since: Option<Instant>,
    /// The function and its newest event.
    waiting: Option<(String, Event)>,
    /// By kind, how many others were not said since the last one that was.
    unsaid: BTreeMap<&'static str, u64>,
}

impl Default for Speech {
    fn default() -> Self {
        Self { left: BURST, since: None, waiting: None, unsaid: BTreeMap::new() }
    }
}

impl Speech {
    fn say(&mut self, now: Instant, function: &str, event: Event) -> Vec<Event> {
        if let Some((_, before)) = self.waiting.replace((function.to_owned(), event)) {
            *self.unsaid.entry(before.kind()).or_default() += 1;
        }
        self.handle_timeout(now)
    }

    fn handle_timeout(&mut self, now: Instant) -> Vec<Event> {
        if self.waiting.is_none() || self.left(now) == 0 {
            return Vec::new();
        }
        self.left -= 1;
        self.conclude()
    }

    fn conclude(&mut self) -> Vec<Event> {
        let Some((function, newest)) = self.waiting.take() else { return Vec::new() };
        let unsaid = std::mem::take(&mut self.unsaid).into_iter();
        let unsaid =
            unsaid.map(|(what, unsaid)| Event::Repeated { function: function.clone(), what, unsaid });
        unsaid.chain([newest]).collect()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.since.filter(|_| self.waiting.is_some()).map(|since| since + PAUSE)
    }

    fn left(&mut self, now: Instant) -> u32 {
        let since = *self.since.get_or_insert(now);
        let more = u32::try_from((now - since).as_millis() / PAUSE.as_millis()).unwrap_or(BURST).min(BURST);
        self.left = (self.left + more).min(BURST);
        self.since = Some(if self.left == BURST { now } else { since + PAUSE * more });
        self.left
    }
}

#[cfg(test)]
mod tests {
    use base::ids::LifeId;
    use node::{Name, Refusal};

    use super::*;

    fn about(is_lent: bool, life: u64) -> About {
        let (function, own) = ("nvme0".to_owned(), NodeId::numbered(1));
        About { place: 3, life, function, group: 1, is_lent, peer: None, has_twin: false, own }
    }

    fn refused(node: u64, seconds: u64) -> AgentEvent {
        let since = Some(Duration::from_secs(seconds));
        let (by, node) = (Name::new("first"), NodeId::numbered(node));
        AgentEvent::Refused { loan: 3, refusal: Refusal::InUse { by, node, since, hold: None } }
    }

    /// What a life of a node makes of the function.
    fn tenant(node: u64, is_held: bool) -> AgentEvent {
        let (name, life) = (Name::new(&format!("p{node}")), LifeId([node as u8; 16]));
        let tenancy = Tenancy { number: node, node: NodeId::numbered(node), life, name, is_held };
        AgentEvent::Tenant { loan: 3, tenancy }
    }

    fn kinds(events: &[Event]) -> Vec<&'static str> {
        events.iter().map(Event::kind).collect()
    }

    #[test]
    fn a_refusal_is_said_once() {
        let (mut told, begin) = (Told::default(), Instant::now());
        let mut hear = |second, event: &AgentEvent, life| {
            let now = begin + Duration::from_secs(second);
            let said = told.handle(now, event, &about(false, life));
            assert_eq!(told.handle_timeout(now), []);
            said
        };
        assert_eq!(kinds(&hear(0, &refused(7, 1), 0)), ["loan-refused"]);
        assert!((1..3600).all(|second| hear(second, &refused(7, second), 0).is_empty()));
        assert_eq!(kinds(&hear(3600, &refused(8, 1), 0)), ["loan-refused"], "another node has it");
        assert_eq!(kinds(&hear(3601, &AgentEvent::Ready(3), 0)), ["loan-usable"]);
        assert_eq!(kinds(&hear(3602, &refused(8, 2), 0)), ["loan-refused"], "it was had in between");
        assert_eq!(kinds(&hear(3603, &refused(8, 3), 1)), ["loan-refused"], "it is another loan");
    }

    #[test]
    fn a_refusal_counts_until_the_loan_can_be_used() {
        let mut told = Told::default();
        let mut hear = |event: &AgentEvent| {
            told.handle(Instant::now(), event, &about(false, 2));
            [told.is_refused(3, 2), told.is_refused(3, 1), told.is_refused(4, 2)]
        };
        assert_eq!(hear(&refused(7, 1)), [true, false, false]);
        assert_eq!(hear(&AgentEvent::Ready(3)), [false; 3]);
    }

    #[test]
    fn a_drive_of_another_program_with_its_lenders_identity_is_told_as_such() {
        let said = |has_twin| {
            let about = About { has_twin, ..about(false, 0) };
            Told::default().handle(Instant::now(), &AgentEvent::Overtaken(3), &about)[0].to_string()
        };
        assert!(said(false).contains("left there: another node has used"), "{}", said(false));
        assert!(
            said(true).contains("left there: another program with this lender's identity"),
            "{}",
            said(true)
        );
    }

    #[test]
    fn what_was_said_last_is_how_it_is() {
        let (mut told, begin) = (Told::default(), Instant::now());
        let mut said = Vec::new();
        for (ms, event) in [(0, tenant(1, true)), (9000, tenant(1, false)), (9300, tenant(2, true))] {
            said.extend(told.handle(begin + Duration::from_millis(ms), &event, &about(true, 0)));
            let back = AgentEvent::GivenBack { loan: 3, has_lost: false };
            assert_eq!(told.handle(begin, &back, &about(true, 0)), [], "the lender has given nothing back");
        }
        assert_eq!(kinds(&said), ["loan-taken", "loan-returned", "loan-taken"]);
        assert!(matches!(&said[1], Event::LoanReturned { by: Some(by), .. } if by == "p1"), "{said:?}");
        assert!(matches!(&said[2], Event::LoanTaken { by, .. } if by == "p2"), "{said:?}");
        let again = told.handle(begin + Duration::from_secs(60), &tenant(2, true), &about(true, 0));
        assert_eq!(again, [], "another card says it once more");
    }

    #[test]
    fn whoever_takes_and_gives_back_all_the_time_does_not_fill_the_log() {
        let (mut told, begin) = (Told::default(), Instant::now());
        let mut said = Vec::new();
        for ms in 0..5000 {
            let now = begin + Duration::from_millis(ms);
            said.extend(told.handle_timeout(now));
            said.extend(told.handle(now, &tenant(1 + ms / 2, ms % 2 == 0), &about(true, 0)));
        }
        assert!(said.len() < 8 + 3 * 6, "{} events", said.len());
        assert!(told.poll_timeout().is_some());
        said.extend(told.handle_timeout(begin + Duration::from_secs(6)));
        assert_eq!(kinds(&said).last(), Some(&"loan-returned"), "the last one counts");
        assert_eq!(told.poll_timeout(), None);
        let count = |event: &Event| match event {
            Event::Repeated { what, unsaid, .. } => {
                assert!(Event::KINDS.contains(what), "{what}");
                *unsaid
            }
            _ => 1,
        };
        assert_eq!(said.iter().map(count).sum::<u64>(), 5000);
    }
}
