//! Asynchronous events (NVMe 2.0 §5.2): only those of the error type exist here.

use spec::nvme::{AsyncEvent, Status};

use super::Controller;
use super::cells::ASYNC_EVENT_REQUESTS;
use super::command::{Event, State};

/// A doorbell that does not exist was written.
pub(super) const INVALID_DOORBELL_REGISTER: u32 = 1 << 0;
/// A doorbell was written with a value out of range.
pub(super) const INVALID_DOORBELL_VALUE: u32 = 1 << 1;

impl Controller<'_> {
    /// An event has happened.
    pub(super) fn raise_event(&mut self, event: u32) {
        self.cells.events.update(self.journal, |events| events | event);
        self.report_event();
    }

    /// The log page of the events has been read: they may be reported again.
    pub(super) fn rearm_events(&mut self) {
        self.cells.events_masked.set(self.journal, 0);
        self.report_event();
    }

    /// An Asynchronous Event Request: held until there is something to report.
    pub(super) fn hold_event_request(&mut self, slot: u16) -> Result<(), Status> {
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

    fn report_event(&mut self) {
        let events = self.cells.events.get();
        if events == 0 || self.cells.events_masked.get() != 0 {
            return;
        }
        let Some(slot) = self.held_requests().next() else { return };
        let (bit, event) = match events & INVALID_DOORBELL_REGISTER {
            0 => (INVALID_DOORBELL_VALUE, AsyncEvent::INVALID_DOORBELL_VALUE),
            bit => (bit, AsyncEvent::INVALID_DOORBELL_REGISTER),
        };
        self.cells.events.set(self.journal, events & !bit);
        self.cells.events_masked.set(self.journal, 1);
        self.complete(slot, event.0, Status::SUCCESS);
    }
}
