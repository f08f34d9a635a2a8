//! Asynchronous events of a running controller (NVMe 2.0 §5.2): a namespace that has changed is looked at again.
//!
//! One Asynchronous Event Request stands at the controller. When it completes, its log page is read, which lets the
//! controller report the next event of that type, then the namespace is identified anew; then the request is made
//! again. These commands have identifiers of their own beside the one of the initialisation, and no timer: a controller
//! that does not answer them is found out by its I/O.

use base::coded;
use base::ledger::{Cell, Code, Journal};
use spec::nvme::{
    AdminOpcode, AsyncEvent, Cns, CompletionEntry, GetLogPage, Identify, LogPageId, SubmissionEntry,
};
use zerocopy::FromZeros;

use super::DriverCounters;
use super::init::Next;
use super::namespace::{Identified, Namespace, flag};
use super::queues::Queues;

/// The identifier of the request, and that of whatever follows from it; those of the initialisation are below.
const REQUEST: u16 = 0xffff;
const FOLLOW_UP: u16 = 0xfffe;
/// The first identifier that the initialisation does not use.
pub(super) const FIRST_OF_EVENTS: u16 = FOLLOW_UP;

/// What is awaited of events.
///
/// ```text
/// Nothing --ready--> Requested --event--> Log --> List --> Namespace --> Requested
///    ^-------------------+---- refused, reset
/// ```
#[derive(Clone, Copy, PartialEq)]
pub(super) enum EventStage {
    Nothing,
    /// The controller holds our request.
    Requested,
    /// The log page is read.
    Log,
    /// The list of attached namespaces is read.
    List,
    /// The namespace is identified.
    Namespace,
}
coded!(EventStage: Nothing, Requested, Log, List, Namespace);

/// What is asked of a running controller about its namespaces.
pub(super) struct Events<'m> {
    pub(super) stage: &'m Cell<Code<EventStage>>,
    pub(super) queues: Queues<'m>,
    pub(super) namespace: Namespace<'m>,
    pub(super) counters: &'m DriverCounters,
    pub(super) journal: Journal<'m>,
    /// Where the controller puts data.
    pub(super) address: u64,
}

impl Events<'_> {
    /// Nothing of an older life is awaited.
    pub(super) fn forget(&self) {
        self.stage.set(self.journal, EventStage::Nothing.into());
    }

    /// The controller serves: it may report events from now on.
    pub(super) fn request(&self) {
        if self.namespace.has(flag::NAMESPACE_EVENTS) {
            let mut entry = SubmissionEntry::new_zeroed();
            entry.opcode = AdminOpcode::ASYNC_EVENT_REQUEST.0;
            self.stage.set(self.journal, EventStage::Requested.into());
            self.queues.submit_admin(REQUEST, entry);
        }
    }

    /// A completion that belongs to events: takes it if the controller serves, and goes on.
    pub(super) fn take(&self, entry: &CompletionEntry, is_ready: bool) -> Option<Next> {
        let (at, success) = (self.stage.value(), entry.status().is_success());
        let awaited = if at == EventStage::Requested { REQUEST } else { FOLLOW_UP };
        if at == EventStage::Nothing || entry.cid.get() != awaited || !is_ready {
            self.counters.ignored.add(1);
            return None;
        }
        let (namespace, nsid) = (&self.namespace, self.namespace.nsid());
        match at {
            EventStage::Requested if success => {
                let page = AsyncEvent(entry.dw0.get()).log_page();
                let entry = GetLogPage::new(LogPageId(page), spec::nvme::NSID_ALL, 1024).entry(0);
                self.follow(EventStage::Log, entry);
            }
            // It has more requests than it takes, or knows none: nothing will be reported.
            EventStage::Requested => self.forget(),
            EventStage::Log => {
                self.follow(EventStage::List, Identify::new(Cns::ACTIVE_NAMESPACES, 0).entry(0));
            }
            // Whatever is attached now, it is not what was driven.
            EventStage::List if success && namespace.first() != nsid => return Some(Next::Begin),
            EventStage::List => {
                self.follow(EventStage::Namespace, Identify::new(Cns::NAMESPACE, nsid).entry(0));
            }
            // What is under way was issued under other rules.
            _ if success && namespace.is_shared() != namespace.has(flag::SHARED) => return Some(Next::Begin),
            _ => {
                let identified = if success { namespace.read() } else { Identified::Usable };
                if identified == Identified::Unusable {
                    return Some(Next::Begin);
                }
                self.request();
                return (identified == Identified::Resized).then_some(Next::Resized);
            }
        }
        None
    }

    fn follow(&self, stage: EventStage, entry: SubmissionEntry) {
        self.stage.set(self.journal, stage.into());
        self.queues.submit_admin(FOLLOW_UP, entry.with_prps(self.address, 0));
    }
}
