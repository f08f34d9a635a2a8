//! Connections of one node that displace one another: two lives of it, as of a state folder that was copied.

use core::time::Duration;

use tokio::time::Instant;

use super::unproven::Source;

/// Whoever is alive and has a connection does not open another one so soon: it takes longer to give the first one up.
const SOON: Duration = Duration::from_secs(3);
/// So many in a row that were displaced so soon are of two who take turns.
const TURNS: u32 = 4;
/// It is an alarm for so long after the last turn, and an event as often while it goes on.
const ALARM: Duration = Duration::from_secs(60);

const _: () = assert!(SOON.as_nanos() < crate::wire::SILENT.as_nanos());

/// What is known of a node's connections that were displaced.
#[derive(Debug, Default)]
pub(super) struct Rivals {
    turns: u32,
    last: Option<Instant>,
    told: Option<Instant>,
    text: String,
}

impl Rivals {
    /// A connection from `before`, which was there `since`, is displaced by one from `after`. Returns what people
    /// should hear of that.
    pub(super) fn displaced(
        &mut self,
        now: Instant,
        (before, since): (Source, Instant),
        after: Source,
    ) -> Option<&str> {
        if now.duration_since(since) >= SOON {
            self.turns = 0;
            return None;
        }
        let is_in_a_row = self.last.replace(now).is_some_and(|last| now.duration_since(last) < ALARM);
        self.turns = if is_in_a_row { self.turns.saturating_add(1) } else { 1 };
        if self.turns < TURNS {
            return None;
        }
        let from = if before == after { after.to_string() } else { format!("{before} and {after}") };
        self.text = format!(
            "it connects from {from} again and again while it is connected: two programs have its key, as when a state \
             folder was copied; end one of them, and let that machine join as a node of its own"
        );
        let is_news = self.told.is_none_or(|told| now.duration_since(told) >= ALARM);
        is_news.then(|| {
            self.told = Some(now);
            self.text.as_str()
        })
    }

    /// The same, while it goes on.
    pub(super) fn alarm(&self, now: Instant) -> Option<&str> {
        let goes_on = self.last.is_some_and(|last| now.duration_since(last) < ALARM);
        (goes_on && self.turns >= TURNS).then_some(self.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn two_who_take_turns_are_told_once_a_minute() {
        let (mut rivals, mut now) = (Rivals::default(), Instant::now());
        let ends = [source("10.0.0.1"), source("10.0.0.2")];
        let mut told = Vec::new();
        for turn in 0..90 {
            let [before, after] = [turn % 2, (turn + 1) % 2].map(|end| ends[end]);
            if let Some(text) = rivals.displaced(now + SECOND, (before, now), after) {
                assert!(text.contains("10.0.0.1") && text.contains("10.0.0.2"), "{text}");
                told.push(turn);
            }
            now += SECOND;
        }
        assert_eq!(told, [3, 63]);
        assert!(rivals.alarm(now).is_some() && rivals.alarm(now + ALARM).is_none());
    }

    #[test]
    fn who_gives_a_connection_up_and_comes_again_is_no_rival() {
        let (mut rivals, mut now) = (Rivals::default(), Instant::now());
        let own = source("10.0.0.1");
        for _ in 0..20 {
            // A network that fails: the manager has not noticed yet that the connection is dead.
            for after in [SECOND, crate::wire::SILENT] {
                assert_eq!(rivals.displaced(now + after, (own, now), own), None);
                now += after;
            }
        }
        assert_eq!(rivals.alarm(now), None);
        // Nor who does so once an hour, because its network forgets connections.
        for _ in 0..20 {
            assert_eq!(rivals.displaced(now + SECOND, (own, now), own), None);
            now += 60 * ALARM;
        }
        assert_eq!(rivals.alarm(now), None);
    }
}
