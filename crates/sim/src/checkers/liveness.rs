//! Who has something to tell or to ask does not keep still.

use super::Verdict;

/// A new card that its peer has not heard sends something at least so often; hellos are at most 16 ms apart.
const GREETING_GAP: u64 = 20_000_000;
/// Who waits for a commit or for credit asks at least once in so long after the last news. Heartbeats are rarer.
const PROBE_GAP: u64 = 70_000_000;

/// One end of a loan.
#[derive(Default)]
pub(crate) struct Liveness {
    last_sent: u64,
    started: u64,
    /// Changes whenever there is news.
    news: u64,
    news_at: u64,
    /// The last event.
    checked: u64,
}

impl Liveness {
    /// A new card.
    pub(crate) fn started(&mut self, now: u64) {
        *self = Self { last_sent: now, started: now, news: self.news, news_at: now, checked: now };
    }

    /// It knows no address to which it may send: whoever is there has to tell where.
    pub(crate) fn excused(&mut self, now: u64) {
        (self.last_sent, self.news_at, self.checked) = (now, now, now);
    }

    /// A frame leaves.
    pub(crate) fn sent(&mut self, now: u64) {
        self.last_sent = now;
    }

    /// Before each event. `unheard`: the peer does not know this card, though it could. `waits`: something lies past
    /// committed, or lacks credit. `news`: how far the peer has committed; when that grows, and when a wait begins, the
    /// next probe is not backed off.
    pub(crate) fn check(&mut self, now: u64, unheard: bool, waits: bool, news: u64) -> Verdict {
        if unheard && now - self.last_sent > GREETING_GAP {
            return Err(format!("a card started at {} was silent since {}", self.started, self.last_sent));
        }
        if news != self.news || !waits {
            // It came with the event before this one.
            (self.news, self.news_at) = (news, self.checked);
        }
        self.checked = now;
        if waits && self.last_sent <= self.news_at && now - self.news_at > PROBE_GAP {
            return Err(format!(
                "nobody has asked since {} what became of number {news} and above",
                self.news_at
            ));
        }
        Ok(())
    }
}
