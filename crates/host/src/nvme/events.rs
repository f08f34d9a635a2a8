//! Asynchronous events of a running controller (NVMe 2.0 §5.2): a namespace that has changed is looked at again.
//!
//! One Asynchronous Event Request stands at the controller. When it completes, its log page is read, which lets the
//! controller report the next event of that type, then the namespace is identified anew; then the request is made
//! again. These commands have identifiers of their own beside the one of the initialisation, and no timer: a controller
//! that does not answer them is found out by its I/O.

use base::{Instant, coded};
use spec::nvme::{
    AdminOpcode, AsyncEvent, Cns, CompletionEntry, GetLogPage, Identify, LogPageId, SubmissionEntry,
};
use zerocopy::FromZeros;

use super::Driver;
use super::cells::flag;
use super::init::State;

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

impl Driver<'_> {
    /// Nothing of an older life is awaited.
    pub(super) fn forget_events(&self) {
        self.cells.event_stage.set(self.journal, EventStage::Nothing.into());
    }

    /// The controller serves: it may report events from now on.
    pub(super) fn request_events(&mut self) {
        if self.has_flag(flag::NAMESPACE_EVENTS) {
            let mut entry = SubmissionEntry::new_zeroed();
            entry.opcode = AdminOpcode::ASYNC_EVENT_REQUEST.0;
            self.follow(EventStage::Requested, REQUEST, entry);
        }
    }

    /// If the completion belongs to events: takes it, and goes on. True if it does.
    pub(super) fn take_event(&mut self, now: Instant, entry: &CompletionEntry) -> bool {
        let cid = entry.cid.get();
        if cid < FIRST_OF_EVENTS {
            return false;
        }
        let (at, success) = (self.cells.event_stage.value(), entry.status().is_success());
        let awaited = if at == EventStage::Requested { REQUEST } else { FOLLOW_UP };
        if at == EventStage::Nothing || cid != awaited || self.state() != State::Ready {
            self.cells.counters.ignored.add(1);
            return true;
        }
        match at {
            EventStage::Requested if success => {
                let page = AsyncEvent(entry.dw0.get()).log_page();
                let entry = GetLogPage::new(LogPageId(page), spec::nvme::NSID_ALL, 1024).entry(0);
                self.follow(EventStage::Log, FOLLOW_UP, entry.with_prps(self.identify_address(), 0));
            }
            // It has more requests than it takes, or knows none: nothing will be reported.
            EventStage::Requested => self.forget_events(),
            EventStage::Log => {
                let entry = Identify::new(Cns::ACTIVE_NAMESPACES, 0).entry(0);
                self.follow(EventStage::List, FOLLOW_UP, entry.with_prps(self.identify_address(), 0));
            }
            // Whatever is attached now, it is not what was driven.
            EventStage::List if success && self.first_namespace() != self.cells.nsid.get() => self.begin(now),
            EventStage::List => {
                let entry = Identify::new(Cns::NAMESPACE, self.cells.nsid.get()).entry(0);
                self.follow(EventStage::Namespace, FOLLOW_UP, entry.with_prps(self.identify_address(), 0));
            }
            // What is under way was issued under other rules.
            _ if success && self.is_shared_namespace() != self.has_flag(flag::SHARED) => self.begin(now),
            _ if success && !self.read_namespace() => self.begin(now),
            _ => self.request_events(),
        }
        true
    }

    fn follow(&mut self, stage: EventStage, cid: u16, entry: SubmissionEntry) {
        self.cells.event_stage.set(self.journal, stage.into());
        self.submit_admin(cid, entry);
    }
}
