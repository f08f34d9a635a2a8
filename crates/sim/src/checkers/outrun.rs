//! Accesses of a lent function that were right when they were made, and come to a host that has begun its driver anew,
//! or ended it by force.
//!
//! A function waits long for its host's memory, so what it asks for may be on its way for as long. A driver that begins
//! anew takes its pages back at once, and the function hears of that later. So what comes until the driver knows that
//! its controller is disabled may be denied; and of what comes behind that, what was queued before the completion that
//! told it, which may pass reads; nothing else. A driver that has given up its shutdown has taken its pages back, too,
//! and tells no controller: what comes by this stream may be denied until it begins again. In an orderly shutdown
//! nothing is in flight.

use host::nvme::State as Driver;

use super::streams::{Queued, StreamId};

/// What one host excuses of the function of one loan.
#[derive(Default)]
pub(crate) struct Outrun {
    /// How often its driver had begun when last seen.
    begun: u64,
    /// What it was doing then.
    state: Option<Driver>,
    /// The function's stream then: one that is new is of a function that was made anew, and has asked for nothing
    /// before.
    stream: Option<StreamId>,
    /// It has begun anew or ended by force, and its controller may not know: what comes by this stream.
    open: Option<StreamId>,
    /// The same, of an earlier time: what was queued before this place.
    before: Option<(StreamId, u64)>,
    /// TLPs that have come since the last look.
    fresh: Vec<(StreamId, Queued)>,
    /// Accesses that were denied by then, and how many of them may be.
    denied: u64,
    excused: u64,
}

impl Outrun {
    /// These TLPs have been handed on.
    pub(crate) fn accepted(&mut self, id: StreamId, tlps: impl Iterator<Item = Queued>) {
        self.fresh.extend(tlps.map(|queued| (id, queued)));
    }

    /// The driver has begun so many times, and is doing this; and the function's stream.
    pub(crate) fn driver(&mut self, begun: u64, state: Driver, stream: Option<StreamId>) {
        let had_begun = core::mem::replace(&mut self.begun, begun);
        let was = self.state.replace(state);
        let had_ended = matches!(was, None | Some(Driver::Stopped | Driver::ShuttingDown | Driver::ShutDown));
        let has_given_up = state == Driver::ShutDown && !had_ended;
        let is_same = core::mem::replace(&mut self.stream, stream) == stream;
        if had_begun > 0 && begun > had_begun || has_given_up {
            self.open = stream.filter(|_| is_same);
        }
        // Until then it does not know that its controller is disabled.
        let is_told = state as u32 > Driver::Disabling as u32 && state != Driver::ShutDown;
        if is_told && let Some(id) = self.open.take() {
            let told = self.fresh.iter().rev().find(|(of, queued)| *of == id && queued.is_completion);
            self.before = told.map(|(_, queued)| (id, queued.order));
        }
    }

    /// After so many denied accesses: how many of them have no excuse.
    pub(crate) fn strays(&mut self, denied: u64) -> u64 {
        let (open, before) = (self.open, self.before);
        let is_late = |(id, queued): &(StreamId, Queued)| {
            !queued.is_completion
                && (open == Some(*id) || before.is_some_and(|(of, end)| of == *id && queued.order < end))
        };
        let late = self.fresh.drain(..).filter(is_late).count() as u64;
        let news = denied.saturating_sub(core::mem::replace(&mut self.denied, denied));
        self.excused += news.min(late);
        denied.saturating_sub(self.excused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId { loan: 0, is_lenders: true, name: 7 };
    const OTHER: StreamId = StreamId { name: 8, ..STREAM };

    fn comes(outrun: &mut Outrun, id: StreamId, order: u64) {
        outrun.accepted(id, [Queued { order, is_completion: false }].into_iter());
    }

    /// A driver that is ready.
    fn ready() -> Outrun {
        let mut outrun = Outrun::default();
        outrun.driver(1, Driver::Disabling, Some(STREAM));
        comes(&mut outrun, STREAM, 9);
        outrun.driver(1, Driver::Ready, Some(STREAM));
        assert_eq!(outrun.strays(0), 0);
        outrun
    }

    #[test]
    fn what_was_asked_for_before_the_controller_was_disabled_may_be_denied() {
        let mut outrun = ready();
        outrun.driver(2, Driver::Disabling, Some(STREAM));
        comes(&mut outrun, STREAM, 10);
        assert_eq!(outrun.strays(1), 0);
        // It may even come behind the completion that says so.
        outrun.accepted(STREAM, [Queued { order: 14, is_completion: true }].into_iter());
        outrun.driver(2, Driver::Enabling, Some(STREAM));
        comes(&mut outrun, STREAM, 11);
        comes(&mut outrun, STREAM, 13);
        assert_eq!(outrun.strays(3), 0);
        comes(&mut outrun, STREAM, 15);
        assert_eq!(outrun.strays(4), 1);
    }

    #[test]
    fn what_was_asked_for_before_the_driver_ended_by_force_may_be_denied() {
        let mut outrun = ready();
        outrun.driver(1, Driver::ShutDown, Some(STREAM));
        comes(&mut outrun, STREAM, 10);
        assert_eq!(outrun.strays(1), 0);
        // However late: nothing tells the controller.
        outrun.accepted(STREAM, [Queued { order: 14, is_completion: true }].into_iter());
        outrun.driver(1, Driver::ShutDown, Some(STREAM));
        comes(&mut outrun, STREAM, 15);
        assert_eq!(outrun.strays(2), 0);
        outrun.driver(1, Driver::ShutDown, Some(OTHER));
        comes(&mut outrun, OTHER, 0);
        assert_eq!(outrun.strays(3), 1, "a function that was made anew has asked for nothing before");
        // It may give up while it begins anew.
        let mut outrun = ready();
        outrun.driver(2, Driver::Identity, Some(STREAM));
        outrun.driver(2, Driver::ShutDown, Some(STREAM));
        comes(&mut outrun, STREAM, 10);
        assert_eq!(outrun.strays(1), 0);
        let mut outrun = ready();
        outrun.driver(1, Driver::ShuttingDown, Some(STREAM));
        outrun.driver(1, Driver::ShutDown, Some(STREAM));
        comes(&mut outrun, STREAM, 10);
        assert_eq!(outrun.strays(1), 1, "in an orderly shutdown nothing is in flight");
    }

    #[test]
    fn nothing_else_is_excused() {
        let mut outrun = ready();
        comes(&mut outrun, STREAM, 10);
        assert_eq!(outrun.strays(1), 1, "the driver has not begun anew");
        let mut outrun = ready();
        outrun.driver(2, Driver::Disabling, Some(OTHER));
        comes(&mut outrun, OTHER, 0);
        assert_eq!(outrun.strays(1), 1, "a function that was made anew has asked for nothing before");
        let mut outrun = ready();
        outrun.driver(2, Driver::Disabling, Some(STREAM));
        comes(&mut outrun, STREAM, 10);
        assert_eq!(outrun.strays(2), 1, "one TLP is one access");
        let mut outrun = Outrun::default();
        outrun.driver(1, Driver::Disabling, Some(STREAM));
        comes(&mut outrun, STREAM, 10);
        assert_eq!(outrun.strays(1), 1, "it begins for the first time");
    }
}
