//! Who has something to tell or to ask does not keep still.

use base::ids::RailId;

use super::Verdict;

/// A new card that its peer has not heard sends something at least so often; hellos are at most 16 ms apart.
const GREETING_GAP: u64 = 20_000_000;
/// Who waits for a commit or for credit asks at least once in so long after the last news. Heartbeats are rarer.
const PROBE_GAP: u64 = 70_000_000;
/// No frame takes so long, unless somebody sends it again.
const LATE: u64 = 5_000_000;
/// At least once in so long a card that hears its peer has a sample of the round trip: heartbeats are acknowledged.
const SAMPLE: u64 = 200_000_000;

/// One end of a loan.
#[derive(Default)]
pub(crate) struct Liveness {
    /// When a frame left for the peer.
    last_sent: u64,
    /// The same, of this loan's stream.
    last_asked: u64,
    started: u64,
    /// Changes whenever there is news.
    news: u64,
    news_at: u64,
    /// The last event.
    checked: u64,
    /// What the card took for a round trip before it, and at most since the last news: a probe is armed with what
    /// it is then.
    round_trip: u64,
    longest: u64,
    /// By rail, the longest way of a frame that came late: the card takes it for a part of a round trip, of which each
    /// later one leaves less.
    latest: [u64; RailId::COUNT],
    /// By rail, when it last became less.
    lessened: [u64; RailId::COUNT],
}

impl Liveness {
    /// A new card.
    pub(crate) fn started(&mut self, now: u64) {
        let news = self.news;
        let (last_sent, last_asked, started) = (now, now, now);
        *self = Self { last_sent, last_asked, started, news, news_at: now, checked: now, ..Self::default() };
    }

    /// It knows no address to which it may send: whoever is there has to tell where.
    pub(crate) fn excused(&mut self, now: u64) {
        (self.last_sent, self.last_asked, self.news_at, self.checked) = (now, now, now, now);
    }

    /// A frame has come that was first sent at `first`: one that was lost and that somebody has sent again much later
    /// is new all the same. What was sent before this card began says nothing of what it has sent.
    pub(crate) fn heard(&mut self, now: u64, rail: u8, first: u64) {
        let (way, rail) = (now - first, usize::from(rail));
        if first < self.started {
            return;
        }
        if way > LATE {
            self.latest[rail] = self.latest[rail].max(way);
            self.lessened[rail] = now;
        } else if now - self.lessened[rail] > SAMPLE {
            // As a card smooths its round trips.
            self.latest[rail] -= self.latest[rail] / 8;
            self.lessened[rail] = now;
        }
    }

    /// A frame leaves for the peer; `asks`: one of this loan's stream.
    pub(crate) fn sent(&mut self, now: u64, asks: bool) {
        self.last_sent = now;
        if asks {
            self.last_asked = now;
        }
    }

    /// Before each event. `unheard`: the peer does not know this card, though it could. `waits`: something lies past
    /// committed, or lacks credit. `news`: how far the peer has committed; when that grows, and when a wait begins, the
    /// next probe is not backed off. `round_trip`: what the card takes for one, on the slowest path that it
    /// waits for. It may be long where acknowledgements were lost, though no frame was late; longer than heartbeats are
    /// apart it is not for that.
    pub(crate) fn check(
        &mut self,
        now: u64,
        unheard: bool,
        waits: bool,
        news: u64,
        round_trip: u64,
    ) -> Verdict {
        if unheard && now - self.last_sent > GREETING_GAP {
            return Err(format!("a card started at {} was silent since {}", self.started, self.last_sent));
        }
        if news != self.news || !waits {
            // It came with the event before this one.
            (self.news, self.news_at) = (news, self.checked);
            self.longest = self.round_trip;
        }
        self.longest = self.longest.max(round_trip);
        (self.checked, self.round_trip) = (now, round_trip);
        // A probe waits for twice the round trip.
        let latest = self.latest.iter().max().copied().unwrap_or_default();
        let gap = PROBE_GAP + 2 * latest.max(self.longest.min(SAMPLE));
        if waits && self.last_asked <= self.news_at && now - self.news_at > gap {
            return Err(format!(
                "nobody has asked since {} what became of number {news} and above",
                self.news_at
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A card that began at 100 ms has heard a frame at 200 ms that was first sent at `first`, and nothing since.
    fn waits_until(first: u64, now: u64) -> Verdict {
        let mut end = Liveness::default();
        end.started(100 * MS);
        end.heard(200 * MS, 0, first);
        end.check(200 * MS, false, false, 7, 0)?;
        end.check(200 * MS, false, false, 7, 0)?;
        end.check(now, false, true, 7, 0)
    }

    #[test]
    fn who_knows_a_long_round_trip_may_wait_for_two_of_them_and_not_for_ever() {
        let waits_until = |now, round_trip| {
            let mut end = Liveness::default();
            end.started(100 * MS);
            end.check(200 * MS, false, false, 7, round_trip)?;
            end.check(200 * MS, false, false, 7, round_trip)?;
            // A shorter one is known by then, and the probe armed.
            end.check(200 * MS, false, true, 7, MS)?;
            end.check(now, false, true, 7, MS)
        };
        waits_until(429 * MS, 80 * MS).unwrap();
        waits_until(431 * MS, 80 * MS).unwrap_err();
        waits_until(671 * MS, 60_000 * MS).unwrap_err();
    }

    #[test]
    fn who_waits_asks_soon_and_later_only_where_a_frame_came_late() {
        let on_time = 199 * MS;
        waits_until(on_time, 270 * MS).unwrap();
        waits_until(on_time, 272 * MS).unwrap_err();
        let late = 160 * MS;
        waits_until(late, 350 * MS).unwrap();
        waits_until(late, 352 * MS).unwrap_err();
        let before_the_card = 90 * MS;
        waits_until(before_the_card, 272 * MS).unwrap_err();
    }

    /// What came late once is forgotten as the card forgets it, and not because something came on another rail.
    #[test]
    fn what_came_late_excuses_nobody_for_ever() {
        let ends_silent = |rail: u8, seconds: u64| {
            let mut end = Liveness::default();
            end.started(100 * MS);
            end.heard(1_200 * MS, 0, 200 * MS);
            let mut now = 1_200 * MS;
            for _ in 0..seconds * 4 {
                now += 250 * MS;
                end.heard(now, rail, now - MS);
            }
            end.check(now, false, false, 7, 0)?;
            end.check(now, false, false, 7, 0)?;
            end.check(now + 500 * MS, false, true, 7, 0)
        };
        ends_silent(0, 0).unwrap();
        ends_silent(0, 1).unwrap();
        ends_silent(0, 20).unwrap_err();
        ends_silent(1, 20).unwrap();
    }
}
