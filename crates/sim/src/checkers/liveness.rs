//! Who has something to tell or to ask does not keep still.

use super::Verdict;

/// A new card that its peer has not heard sends something at least so often; hellos go out every 2 ms.
const GREETING_GAP: u64 = 20_000_000;
/// Who waits for a commit or for credit asks at least once in so long after the last news. Heartbeats are rarer.
const PROBE_GAP: u64 = 70_000_000;

/// One end of a loan.
#[derive(Default)]
pub(crate) struct Liveness {
    last_sent: u64,
    started: u64,
    /// Changes whenever there is news.
    news: [u64; 5],
    news_at: u64,
    asked: bool,
}

impl Liveness {
    /// A new card.
    pub(crate) fn started(&mut self, now: u64) {
        *self = Self { last_sent: now, started: now, news: self.news, news_at: now, asked: false };
    }

    /// A frame leaves.
    pub(crate) fn sent(&mut self, now: u64) {
        self.last_sent = now;
        self.asked = true;
    }

    /// Before each event. `unheard`: the peer does not know this card, though it could. `waits`: something lies past
    /// committed, or lacks credit. `news`: whatever changes when the wait makes progress.
    pub(crate) fn check(&mut self, now: u64, unheard: bool, waits: bool, news: [u64; 5]) -> Verdict {
        if unheard && now - self.last_sent > GREETING_GAP {
            return Err(format!("a card started at {} was silent since {}", self.started, self.last_sent));
        }
        if news != self.news || !waits {
            (self.news, self.news_at, self.asked) = (news, now, false);
        }
        if waits && !self.asked && now - self.news_at > PROBE_GAP {
            return Err(format!("nobody has asked since {} what became of {news:?}", self.news_at));
        }
        Ok(())
    }
}
