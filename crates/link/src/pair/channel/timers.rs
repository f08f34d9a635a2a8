//! Time passes: probes, heartbeats, hellos and handshakes.

use base::ids::StreamId;
use base::times::SILENCE;
use base::{Instant, Rule};

use super::{Channel, Side, Streams};
use crate::sealing::Wear;
use crate::stream::Stream;

impl<'m> Channel<'m> {
    /// When [`Channel::handle_timeout`] is to be called. Each stream has a time of its own:
    /// [`Stream::poll_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let handshake = [self.handshake.next, self.silence_ends(), self.probe_ends()];
        let candidates = handshake.into_iter().flatten();
        if self.current.is_none() {
            return candidates.min();
        }
        // While keys are renewed nothing is sent but that question.
        let paths = self.paths.poll_timeout(!self.is_renewing());
        candidates.chain(paths).chain(self.greeting.next).min()
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant, streams: &mut dyn Streams<'m>) {
        self.watch_silence(now);
        if self.handshake.next.is_some_and(|next| next <= now) {
            self.begin_handshake(now, streams);
        }
        self.end_probe(now, streams);
        if self.current.is_none() {
            return;
        }
        let fates = &mut self.fates;
        self.paths.handle_timeout(now, &mut |carried| fates.push_back((carried, false)));
        self.report_silent();
        self.settle(streams);
        let again = self.journal.rule(Rule::HelloUntilAnswered);
        self.greeting.handle_timeout(now, self.paths.all_there(), again);
    }

    /// Who calls begins anew when nothing authentic has been heard for long. Keys that are worn are replaced by either
    /// end: by the first one a little earlier, so that not both begin.
    fn watch_silence(&mut self, now: Instant) {
        let frames = self.config.rekey_frames;
        let allowed = if self.side == Side::First { frames } else { frames + frames / 8 };
        let worn = self.wear.is_over(allowed);
        let silent = self.silence_ends().is_some_and(|end| end <= now);
        if self.handshake.next.is_none() && (silent || worn) {
            self.call(now);
            self.wear = Wear::default();
        }
    }

    fn silence_ends(&self) -> Option<Instant> {
        let watching = self.config.calls && self.current.is_some() && self.handshake.next.is_none();
        // A new card listens for as long as any other before it calls the peer silent.
        let since = self.handshake.last_heard.max(self.handshake.listens_since);
        let round_trip = self.paths.best_round_trip().unwrap_or_default();
        let wait = SILENCE + round_trip.max(self.handshake.round_trip);
        watching.then(|| since + wait)
    }

    /// While something lies past committed, waits for credit or would have to, a probe is armed, so that no lost
    /// acknowledgement and no lost card can leave it there. When it is due nothing has brought news for long: the peer
    /// is asked, in a frame of that stream.
    pub(super) fn watch_uncommitted(&mut self, now: Instant, id: StreamId, stream: &mut Stream<'m>) {
        let watch = stream.awaits_status() && self.journal.rule(Rule::ProbeUncommitted);
        let round_trip = self.paths.longest_round_trip();
        if !watch {
            stream.disarm_probe();
        } else if stream.probe_at().is_none() {
            stream.arm_probe(now, round_trip);
        } else if stream.probe_at().is_some_and(|at| at <= now) {
            stream.probe_again(now, round_trip);
            if !self.pings.contains(&id) {
                self.pings.push_back(id);
            }
        }
    }
}
