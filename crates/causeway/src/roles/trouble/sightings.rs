//! Nodes that were refused, and two programs with one identity.

use std::collections::BTreeMap;
use std::time::Duration;

use base::ids::NodeId;
use io::address::RailAddress;
use io::event::Event;
use node::Cause;

/// What has gone on all the time is said once; when it has stopped for so long it is news again.
const GONE: Duration = Duration::from_secs(60);
/// So many nodes that were refused are said at once,
const BURST: u32 = 8;
/// and then one more each time: anybody who has a line can be as many nodes as he likes.
const PAUSE: Duration = Duration::from_secs(10);

/// Something that was seen, perhaps more than once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::roles) struct Seen {
    pub(in crate::roles) cause: Cause,
    pub(in crate::roles) node: NodeId,
    /// What it has asked for, if that is lent here.
    pub(in crate::roles) function: Option<String>,
    /// Where it was.
    pub(in crate::roles) at: Option<RailAddress>,
    /// Of two with one identity: where the one is that this node has to do with, which may be itself.
    pub(in crate::roles) met: Vec<RailAddress>,
    /// How often it was seen.
    pub(in crate::roles) count: u64,
}

/// What has been said of them.
#[derive(Debug)]
pub(super) struct Watch {
    said: BTreeMap<(usize, NodeId, Option<String>), Said>,
    left: u32,
    since: Duration,
}

#[derive(Debug)]
struct Said {
    count: u64,
    /// When it was seen last.
    at: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self { said: BTreeMap::new(), left: BURST, since: Duration::ZERO }
    }
}

impl Watch {
    pub(super) fn look(&mut self, now: Duration, seen: &[Seen], news: &mut Vec<Event>) {
        let key_of = |it: &Seen| (it.cause as usize, it.node, it.function.clone());
        self.said.retain(|key, _| seen.iter().any(|it| key_of(it) == *key));
        for it in seen {
            let before = self.said.get(&key_of(it));
            if before.is_some_and(|said| said.count == it.count) {
                continue;
            }
            if before.is_none_or(|said| now >= said.at + GONE) {
                if is_refusal(it.cause) && !self.may_speak(now) {
                    continue;
                }
                news.push(event(it));
            }
            self.said.insert(key_of(it), Said { count: it.count, at: now });
        }
    }

    fn may_speak(&mut self, now: Duration) -> bool {
        let more = (now.saturating_sub(self.since).as_secs() / PAUSE.as_secs()).min(BURST.into()) as u32;
        self.left = (self.left + more).min(BURST);
        self.since = if self.left == BURST { now } else { self.since + PAUSE * more };
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

fn is_refusal(cause: Cause) -> bool {
    matches!(cause, Cause::NotAllowed | Cause::Unproven)
}

fn event(Seen { cause, node, function, at, met, count }: &Seen) -> Event {
    let text = |addresses: &[RailAddress]| {
        let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        (!all.is_empty()).then(|| all.join(" and "))
    };
    let (at, met) = (text(at.as_slice()), text(met));
    let place = |at: &Option<String>| at.clone().unwrap_or_else(|| "an unknown address".to_owned());
    let (of, by, here) = (function.clone(), place(&at), place(&met));
    let node = node.to_string();
    let (met_by_peer, what) = match cause {
        Cause::NotAllowed => {
            let what = of.unwrap_or_else(|| "something of this node".to_owned());
            let what = format!(
                "node {node} at {by} has asked for {what} and was refused: it is not among the nodes that may have it. To let it \
                 in, put its id into `allow` of the device, or behind --allow"
            );
            let (function, reason) = (function.clone(), "not-allowed");
            return Event::CallerRefused { node, at, reason, function, count: *count, what };
        }
        Cause::Unproven => {
            let what = of.unwrap_or_else(|| "a function that is not lent here".to_owned());
            let what = format!(
                "node {node} at {by} has asked for {what} and was refused, as its line is not the present one: give it the line \
                 that was printed last, or find out who that is"
            );
            let (function, reason) = (function.clone(), "not-lent");
            return Event::CallerRefused { node, at, reason, function, count: *count, what };
        }
        Cause::Twin => {
            let what = format!(
                "two programs have one identity, node {node}: this node goes on with the one at {here}, and refuses the one at {by}"
            );
            (None, what)
        }
        Cause::OwnTwin => {
            let what = format!(
                "another program has the identity of this node, {node}: it is at {by} and was refused by a peer that goes on with \
                 this one, at {here}"
            );
            (None, what)
        }
        Cause::OwnRefusal => {
            let what = format!(
                "another program has the identity of this node, {node}: the peer at {by} goes on with that one and refuses this \
                 one, at {here}"
            );
            (at.clone(), what)
        }
    };
    let other = at.filter(|_| met_by_peer.is_none());
    Event::IdentityShared { node, at: met, other, refused_by: met_by_peer, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(cause: Cause, node: u64, count: u64) -> Seen {
        let at = |host: u8| RailAddress::from(std::net::SocketAddr::from(([10, 0, 0, host], 7411)));
        Seen { cause, node: NodeId::numbered(node), function: None, at: Some(at(2)), met: vec![at(1)], count }
    }

    #[test]
    fn who_is_refused_again_and_again_is_named_once() {
        let mut watch = Watch::default();
        let mut look = |second, it: Seen| {
            let mut news = Vec::new();
            watch.look(Duration::from_secs(second), &[it], &mut news);
            news
        };
        let said = look(1, seen(Cause::NotAllowed, 7, 1));
        let [Event::CallerRefused { node, at, reason: "not-allowed", .. }] = &said[..] else {
            panic!("{said:?}")
        };
        assert_eq!((node.clone(), at.as_deref()), (NodeId::numbered(7).to_string(), Some("10.0.0.2:7411")));
        let words = said[0].to_string();
        assert!(words.contains(&NodeId::numbered(7).to_string()) && words.contains("`allow`"), "{words}");
        assert!((2..500).all(|second| look(second, seen(Cause::NotAllowed, 7, second)).is_empty()));
        assert!(
            (500..560).all(|second| look(second, seen(Cause::NotAllowed, 7, 499)).is_empty()),
            "it is over"
        );
        assert_eq!(look(561, seen(Cause::NotAllowed, 7, 500)).len(), 1, "it has come back");
    }

    #[test]
    fn a_crowd_does_not_fill_the_log_and_hides_no_twin() {
        let mut watch = Watch::default();
        let mut news = Vec::new();
        for second in 1..=100 {
            let crowd: Vec<_> = (0..30).map(|node| seen(Cause::Unproven, 1000 * second + node, 1)).collect();
            watch.look(Duration::from_secs(second), &crowd, &mut news);
        }
        assert!((8..=19).contains(&news.len()), "{} lines", news.len());
        news.clear();
        watch.look(Duration::from_secs(101), &[seen(Cause::Twin, 7, 1)], &mut news);
        assert_eq!(news.len(), 1);
    }

    #[test]
    fn two_lives_of_one_identity_are_named_with_their_addresses() {
        for cause in [Cause::Twin, Cause::OwnTwin, Cause::OwnRefusal] {
            let mut news = Vec::new();
            Watch::default().look(Duration::ZERO, &[seen(cause, 7, 3)], &mut news);
            let [event @ Event::IdentityShared { .. }] = &news[..] else { panic!("{news:?}") };
            let words = event.to_string();
            for part in [&NodeId::numbered(7).to_string(), "10.0.0.1:7411", "10.0.0.2:7411", "--state-dir"] {
                assert!(words.contains(part), "{words}");
            }
        }
    }
}
