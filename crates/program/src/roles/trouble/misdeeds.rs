//! What peers do that the protocol forbids: said once for each node and kind, until that has stopped for a minute. It
//! is dropped where it comes in, and harms nobody.

use std::collections::BTreeMap;
use std::time::Duration;

use io::event::Event;

use super::STRANGERS_GONE;

/// A kind of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::roles) enum Misdeed {
    /// A stream is opened that is open already, or by a number that is not its own to give.
    Stream,
    /// What it was never sent is confirmed.
    Status,
    /// More is sent than it was given credit for.
    Credit,
}

impl Misdeed {
    /// What programs know it by, and in words.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Stream => {
                ("stream", "opens streams that are open already, or by numbers that are not its own")
            }
            Self::Status => ("status", "confirms what it was never sent"),
            Self::Credit => ("credit", "sends more than it was given credit for"),
        }
    }
}

/// How often each node did what, so far: by its name.
pub(in crate::roles) type Counts = BTreeMap<(String, Misdeed), u64>;

#[derive(Debug)]
struct Row {
    count: u64,
    /// When the last one was seen.
    last: Duration,
    is_said: bool,
}

/// What has been said so far.
#[derive(Debug, Default)]
pub(super) struct Watch(BTreeMap<(String, Misdeed), Row>);

impl Watch {
    pub(super) fn look(&mut self, now: Duration, counts: &Counts) -> Vec<Event> {
        self.0.retain(|key, _| counts.contains_key(key));
        let mut news = Vec::new();
        for (key, &count) in counts {
            let row = self.0.entry(key.clone()).or_insert(Row { count: 0, last: now, is_said: false });
            // Another loan in its place counts from zero.
            let came = count > std::mem::replace(&mut row.count, count);
            row.is_said &= now < row.last + STRANGERS_GONE;
            if came {
                row.last = now;
                if !std::mem::replace(&mut row.is_said, true) {
                    let (node, (what, words)) = (key.0.clone(), key.1.words());
                    news.push(Event::PeerMisbehaves { node, what, count, words });
                }
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_breaks_a_rule_is_named_once_until_that_has_stopped() {
        let mut watch = Watch::default();
        let mut look = |second: u64, streams: u64, credits: u64| {
            let row = |what, count| (("desk".to_owned(), what), count);
            let counts = [row(Misdeed::Stream, streams), row(Misdeed::Credit, credits)];
            let said = watch.look(Duration::from_secs(second), &counts.into());
            let what = |event: Event| match event {
                Event::PeerMisbehaves { node, what, count, .. } => (node, what, count),
                other => panic!("{other:?}"),
            };
            said.into_iter().map(what).collect::<Vec<_>>()
        };
        let desk = |what, count| ("desk".to_owned(), what, count);
        assert_eq!(look(1, 0, 0), []);
        assert_eq!(look(2, 3, 0), [desk("stream", 3)]);
        assert!((3..100).all(|second| look(second, second + 1, 0).is_empty()), "it goes on");
        assert_eq!(look(100, 100, 1), [desk("credit", 1)], "something else");
        assert!((101..200).all(|second| look(second, 100, 1).is_empty()));
        assert_eq!(look(200, 101, 1), [desk("stream", 101)], "it has begun again");
        assert_eq!(look(201, 2, 1), [], "another loan");
    }
}
