//! Asynchronous events (NVMe 2.0 §5.2): of the error, health and notice types.

use spec::nvme::feature::AsyncEventConfiguration;
use spec::nvme::log::CriticalWarning;
use spec::nvme::{AsyncEvent, AsyncEventType, LogPageId, Status};

use super::features;
use crate::nvme::Controller;
use crate::nvme::cells::ASYNC_EVENT_REQUESTS;
use crate::nvme::command::{Event, State};

/// A doorbell that does not exist was written.
pub(crate) const INVALID_DOORBELL_REGISTER: u32 = 1 << 0;
/// A doorbell was written with a value out of range.
pub(crate) const INVALID_DOORBELL_VALUE: u32 = 1 << 1;
/// The temperature is beyond a threshold.
pub(crate) const TEMPERATURE: u32 = 1 << 2;
/// A namespace was attached, detached, resized or formatted.
pub(crate) const NAMESPACE_CHANGED: u32 = 1 << 3;

/// Every event, in the order in which they are told.
const EVENTS: [(u32, AsyncEvent); 4] = [
    (INVALID_DOORBELL_REGISTER, AsyncEvent::INVALID_DOORBELL_REGISTER),
    (INVALID_DOORBELL_VALUE, AsyncEvent::INVALID_DOORBELL_VALUE),
    (TEMPERATURE, AsyncEvent::TEMPERATURE_THRESHOLD),
    (NAMESPACE_CHANGED, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED),
];

impl Controller<'_> {
    /// An event has happened.
    pub(crate) fn raise_event(&mut self, event: u32) {
        self.cells.events.update(self.journal, |events| events | event);
        self.report_event();
    }

    /// What other controllers have done to namespaces of this one.
    pub(crate) fn announce_changes(&mut self) {
        let cells = self.subsystem.controller(self.index);
        if cells.announce.get() == 0 {
            return;
        }
        cells.announce.set(self.journal, 0);
        let configured = AsyncEventConfiguration(features::event_configuration(self));
        if self.is_processing() && configured.namespace_attribute() {
            self.raise_event(NAMESPACE_CHANGED);
        }
    }

    /// Whether there is something to announce.
    pub(crate) fn can_announce(&self) -> bool {
        self.subsystem.controller(self.index).announce.get() != 0
    }

    /// A threshold has been set.
    pub(crate) fn check_temperature(&mut self) {
        let configured = AsyncEventConfiguration(features::event_configuration(self));
        let wanted = CriticalWarning(configured.smart()).temperature();
        if wanted && self.is_too_hot_or_cold() {
            self.raise_event(TEMPERATURE);
        }
    }

    /// The log page of events has been read: its type may be reported again.
    pub(crate) fn rearm_events(&mut self, page: LogPageId) {
        let kinds = EVENTS.iter().filter(|(_, event)| event.log_page() == page.0);
        let types = kinds.fold(0, |types, (_, event)| types | 1 << event.event_type());
        self.cells.events_masked.update(self.journal, |masked| masked & !types);
        self.report_event();
    }

    /// An Asynchronous Event Request: held until there is something to report.
    pub(crate) fn hold_event_request(&mut self, slot: u16) -> Result<(), Status> {
        if self.held_requests().count() >= ASYNC_EVENT_REQUESTS {
            return Err(Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        }
        self.step(slot, Event::Hold);
        self.report_event();
        Ok(())
    }

    fn held_requests(&self) -> impl Iterator<Item = u16> {
        let cells = self.cells;
        self.busy_slots().filter(move |slot| cells.commands[usize::from(*slot)].state() == State::Held)
    }

    /// Tells what there is to tell, as far as the host has asked.
    fn report_event(&mut self) {
        loop {
            let (events, masked) = (self.cells.events.get(), self.cells.events_masked.get());
            let due = |(bit, event): &&(u32, AsyncEvent)| {
                events & bit != 0 && masked & 1 << event.event_type() == 0
            };
            let Some((bit, event)) = EVENTS.iter().find(due) else { return };
            let Some(slot) = self.held_requests().next() else { return };
            self.cells.events.set(self.journal, events & !bit);
            self.cells.events_masked.set(self.journal, masked | 1 << event.event_type());
            self.complete(slot, event.0, Status::SUCCESS);
        }
    }
}

const _: () = assert!(AsyncEventType::NOTICE.0 < 32);
