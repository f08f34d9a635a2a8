//! Asynchronous events (NVMe 2.0 §5.2): of the error, health and notice types.

use base::ledger::{Cell, Layout};
use spec::nvme::{AsyncEvent, AsyncEventType, LogPageId};
use zerocopy::FromBytes;

use crate::nvme::cells::Part;

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

/// Which events have happened.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub(crate) struct EventCells {
    /// Those that have not been reported, as bits.
    raised: Cell<u32>,
    /// The types of events of which one was reported and its log page not read since: then no more of the type are
    /// (NVMe 2.0 §5.2).
    masked: Cell<u32>,
}

/// The events of one controller.
pub(crate) type Events<'m> = Part<'m, EventCells>;

impl Events<'_> {
    /// An event has happened.
    pub(crate) fn raise(&self, event: u32) {
        self.cells.raised.update(self.journal, |events| events | event);
    }

    /// The log page of events has been read: its type may be reported again.
    pub(crate) fn rearm(&self, page: LogPageId) {
        let kinds = EVENTS.iter().filter(|(_, event)| event.log_page() == page.0);
        let types = kinds.fold(0, |types, (_, event)| types | 1 << event.event_type());
        self.cells.masked.update(self.journal, |masked| masked & !types);
    }

    /// Takes the next event that is to be reported.
    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let (events, masked) = (self.cells.raised.get(), self.cells.masked.get());
        let due =
            |(bit, event): &(u32, AsyncEvent)| events & bit != 0 && masked & 1 << event.event_type() == 0;
        let (bit, event) = EVENTS.into_iter().find(due)?;
        self.cells.raised.set(self.journal, events & !bit);
        self.cells.masked.set(self.journal, masked | 1 << event.event_type());
        Some(event)
    }

    /// A controller level reset.
    pub(crate) fn reset(&self) {
        self.cells.raised.set(self.journal, 0);
        self.cells.masked.set(self.journal, 0);
    }
}

const _: () = assert!(AsyncEventType::NOTICE.0 < 32);
