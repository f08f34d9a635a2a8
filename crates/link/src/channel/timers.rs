//! Time passes: probes, heartbeats, hellos and handshakes.

use base::times::{HELLO, HELLO_MAX, INFORMATION, SILENCE};
use base::{Instant, Rule};

use super::{Channel, Role};
use crate::sealing::Wear;

impl Channel<'_> {
    /// When [`Channel::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let tags = self.stream.port.tags.poll_timeout();
        let handshake = [self.handshake.next, self.silence_ends(), self.probe_ends()];
        let candidates = handshake.into_iter().chain([tags]).flatten();
        if self.current.is_none() {
            return candidates.min();
        }
        // While keys are renewed nothing is sent but that question.
        let is_sending = !self.is_renewing();
        let paths = self.paths.poll_timeout(is_sending);
        let information = (is_sending && self.information.is_some()).then_some(self.next_information);
        let rest = [self.greeting.next, self.stream.probe_at(), information].into_iter().flatten();
        candidates.chain(paths).chain(rest).min()
    }

    /// Time has come. Overdue tags are the composing card's to ask for: [`Port::tags`](crate::Port::tags).
    pub fn handle_timeout(&mut self, now: Instant) {
        self.watch_silence(now);
        if self.handshake.next.is_some_and(|next| next <= now) {
            // Who has given the function back wants nothing more.
            if self.begins() {
                self.begin_handshake(now);
            } else {
                self.handshake.next = None;
            }
        }
        self.end_probe(now);
        if self.current.is_none() {
            return;
        }
        self.watch_paths(now);
        self.probe_uncommitted(now);
        if self.greeting.next.is_some_and(|next| next <= now) {
            self.greeting.due = self.paths.all_there();
            let again = self.journal.rule(Rule::HelloUntilAnswered) || self.goodbye;
            self.greeting.next = again.then_some(now + self.greeting.wait);
            self.greeting.wait = (self.greeting.wait * 2).min(HELLO_MAX);
        }
    }

    /// Says hello, or goodbye, now and until it is heard.
    pub(super) fn greet(&mut self, now: Instant) {
        self.greeting.next = Some(now);
        self.greeting.wait = HELLO;
    }

    /// The borrower begins anew when nothing authentic has been heard for long, or when the keys grow old.
    fn watch_silence(&mut self, now: Instant) {
        let worn = self.wear.is_over(self.config.rekey_frames);
        let silent = self.silence_ends().is_some_and(|end| end <= now);
        if self.begins() && self.handshake.next.is_none() && (silent || worn) {
            self.handshake.next = Some(now);
            self.wear = Wear::default();
        }
    }

    fn silence_ends(&self) -> Option<Instant> {
        let watching =
            self.config.role == Role::Borrower && self.current.is_some() && self.handshake.next.is_none();
        // A new card listens for as long as any other before it calls the peer silent.
        let since = self.handshake.last_heard.max(self.handshake.listens_since);
        let round_trip = self.paths.best_round_trip().unwrap_or_default();
        let wait = SILENCE + round_trip.max(self.handshake.round_trip);
        (watching && self.begins()).then(|| since + wait)
    }

    fn watch_paths(&mut self, now: Instant) {
        let stream = &mut self.stream;
        self.paths.handle_timeout(now, &mut |carried| stream.handle_lost(carried));
    }

    /// Part of every step: while something lies past committed, waits for credit or would have to, a probe is armed, so
    /// that no lost acknowledgement and no lost card can leave it there.
    pub(super) fn watch_uncommitted(&mut self, now: Instant) {
        let watch = self.stream.awaits_status() && self.journal.rule(Rule::ProbeUncommitted);
        if !watch {
            self.stream.disarm_probe();
        } else if self.stream.probe_at().is_none() {
            self.stream.arm_probe(now, self.paths.best_round_trip());
        }
    }

    /// The probe is due: nothing has brought news for long, so ask.
    fn probe_uncommitted(&mut self, now: Instant) {
        if self.stream.probe_at().is_some_and(|at| at <= now) {
            let path = self.paths.best();
            self.paths[path].ping = true;
            self.stream.probe_again(now, self.paths.best_round_trip());
        }
    }

    /// Whether information is due; it is then taken as sent.
    pub(super) fn take_information(&mut self, now: Instant) -> Option<crate::record::Information> {
        let information = self.information.filter(|_| self.next_information <= now)?;
        self.next_information = now + INFORMATION;
        Some(information)
    }
}
