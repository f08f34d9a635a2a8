//! Nodes that were refused, and two programs with one identity.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base::ids::NodeId;
use io::address::RailAddress;
use io::event::Event;
use node::Cause;

/// What has gone on all the time is said once; when it has stopped for so long it is news again.
const GONE: Duration = Duration::from_secs(60);
/// So much is said at once,
const BURST: u32 = 8;
/// and then once more each time: anybody who has a line can be as many nodes as he likes, and a peer can say of any
/// address that a program with the identity of this node is there.
const PAUSE: Duration = Duration::from_secs(10);
/// So many addresses of an identity are remembered: what goes on at several is no news each time.
const ADDRESSES: usize = 8;

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
#[derive(Debug, Default)]
pub(super) struct Watch {
    all: BTreeMap<Key, Known>,
    refusals: Bucket,
    identities: Bucket,
    /// What was said last of an identity was about this node's own.
    was_own: bool,
}

/// Cause, node and function.
type Key = (Cause, NodeId, Option<String>);

/// Something that is seen.
#[derive(Debug)]
struct Known {
    count: u64,
    /// When it was seen last.
    at: Duration,
    said: Option<Said>,
    /// It is to be said.
    is_news: bool,
}

/// What was said of it.
#[derive(Debug)]
struct Said {
    when: Duration,
    /// Where it was, the last one last.
    at: VecDeque<RailAddress>,
    met: Vec<RailAddress>,
}

/// How much may be said.
#[derive(Debug)]
struct Bucket {
    left: u32,
    since: Duration,
}

impl Watch {
    pub(super) fn look(&mut self, now: Duration, seen: &[Seen], news: &mut Vec<Event>) {
        self.all.retain(|key, _| seen.iter().any(|it| it.key() == *key));
        for it in seen {
            self.all.entry(it.key()).or_insert_with(|| Known::new(now)).note(now, it);
        }
        let due = seen.iter().filter(|it| self.known(it).is_some_and(|known| known.is_news));
        let (refusals, mut identities): (Vec<_>, Vec<_>) = due.partition(|it| it.is_refusal());
        for it in refusals {
            if self.refusals.take(now) {
                self.say(now, it, news);
            }
        }
        while let Some(next) = self.next_of(&identities)
            && self.identities.take(now)
        {
            let it = identities.swap_remove(next);
            self.was_own = it.is_own();
            self.say(now, it, news);
        }
    }

    /// Whether one of two programs with this identity was refused just now.
    pub(super) fn is_shared(&self, now: Duration, node: NodeId) -> bool {
        [Cause::Twin, Cause::OwnTwin, Cause::OwnRefusal].into_iter().any(|cause| {
            let known = self.all.get(&(cause, node, None));
            known.is_some_and(|known| now < known.at + GONE)
        })
    }

    /// Own identity and others in turn, and what was said longest ago, so that none of both hides the other.
    fn next_of(&self, due: &[&Seen]) -> Option<usize> {
        let said = |it: &Seen| self.known(it).and_then(|known| known.said.as_ref()).map(|said| said.when);
        (0..due.len()).min_by_key(|at| (due[*at].is_own() == self.was_own, said(due[*at])))
    }

    fn known(&self, it: &Seen) -> Option<&Known> {
        self.all.get(&it.key())
    }

    fn say(&mut self, now: Duration, it: &Seen, news: &mut Vec<Event>) {
        news.push(event(it));
        if let Some(known) = self.all.get_mut(&it.key()) {
            known.note_said(now, it);
        }
    }
}

impl Known {
    fn new(now: Duration) -> Self {
        Self { count: 0, at: now, said: None, is_news: false }
    }

    fn note(&mut self, now: Duration, it: &Seen) {
        if self.count == it.count {
            return;
        }
        // What has come back is news.
        self.said.take_if(|_| now >= self.at + GONE);
        (self.count, self.at) = (it.count, now);
        self.is_news = self.said.as_ref().is_none_or(|said| said.is_old(it));
    }

    fn note_said(&mut self, now: Duration, it: &Seen) {
        let before = self.said.take().filter(|said| !said.is_exchanged(it));
        let mut at = before.map(|said| said.at).unwrap_or_default();
        at.extend(it.at);
        at.drain(..at.len().saturating_sub(ADDRESSES));
        self.said = Some(Said { when: now, at, met: it.met.clone() });
        self.is_news = false;
    }
}

impl Said {
    /// It is not how it is any more. Of who was refused it does not matter where he is.
    fn is_old(&self, it: &Seen) -> bool {
        let is_elsewhere = it.at.is_some_and(|at| !self.at.contains(&at));
        !it.is_refusal() && (is_elsewhere || self.is_exchanged(it))
    }

    /// This node goes on with another one: none of its addresses is the same.
    fn is_exchanged(&self, it: &Seen) -> bool {
        let are_known = !self.met.is_empty() && !it.met.is_empty();
        are_known && !it.met.iter().any(|at| self.met.contains(at))
    }
}

impl Default for Bucket {
    fn default() -> Self {
        Self { left: BURST, since: Duration::ZERO }
    }
}

impl Bucket {
    fn take(&mut self, now: Duration) -> bool {
        let more = (now.saturating_sub(self.since).as_secs() / PAUSE.as_secs()).min(BURST.into()) as u32;
        self.left = (self.left + more).min(BURST);
        self.since = if self.left == BURST { now } else { self.since + PAUSE * more };
        let is_left = self.left > 0;
        self.left -= u32::from(is_left);
        is_left
    }
}

impl Seen {
    fn key(&self) -> Key {
        (self.cause, self.node, self.function.clone())
    }

    fn is_refusal(&self) -> bool {
        matches!(
            self.cause,
            Cause::NotAllowed
                | Cause::Unproven
                | Cause::NoRoom
                | Cause::UnknownGeneration
                | Cause::Certificate(_)
        )
    }

    /// It is about the identity of this node.
    fn is_own(&self) -> bool {
        matches!(self.cause, Cause::OwnTwin | Cause::OwnRefusal)
    }
}

/// Addresses in words, each once: a node has one for each of its rails. One of this node may name no machine; of what
/// somebody else has said that would be no news of this machine.
fn text(addresses: &[RailAddress], are_own: bool) -> Option<String> {
    let mut all = Vec::new();
    for address in addresses {
        let text = match address {
            RailAddress::Udp(at) if are_own && at.ip().is_unspecified() => {
                format!("port {} of this machine", at.port())
            }
            address => address.to_string(),
        };
        if !all.contains(&text) {
            all.push(text);
        }
    }
    (!all.is_empty()).then(|| all.join(" and "))
}

fn event(Seen { cause, node, function, at, met, count }: &Seen) -> Event {
    let (at, met) = (text(at.as_slice(), false), text(met, *cause != Cause::Twin));
    let place = |at: &Option<String>| at.clone().unwrap_or_else(|| "an unknown address".to_owned());
    let (of, by, here) = (function.clone(), place(&at), place(&met));
    let node = node.to_string();
    let (met_by_peer, what) = match cause {
        Cause::NotAllowed => {
            let what = of.unwrap_or_else(|| "something of this node".to_owned());
            let what = format!(
                "node {node} at {by} has asked for {what} and was refused: it is not among the nodes that may have it. \
                 To let it in, put its id into `allow` of the device, or behind --allow"
            );
            let (function, reason) = (function.clone(), "not-allowed");
            return Event::CallerRefused { node, at, reason, function, count: *count, what };
        }
        Cause::Unproven => {
            let what = of.unwrap_or_else(|| "a function that is not lent here".to_owned());
            let what = format!(
                "node {node} at {by} has asked for {what} and was refused: that is not lent any more, or the line of \
                 that node is an old one. Have it ask no more, or give it the line that was printed last, or find out \
                 who that is"
            );
            let (function, reason) = (function.clone(), "not-lent");
            return Event::CallerRefused { node, at, reason, function, count: *count, what };
        }
        Cause::UnknownGeneration => {
            let what = of.unwrap_or_else(|| "a function of this node".to_owned());
            let what = format!(
                "node {node} at {by} asks for {what} by a generation that this lender does not know, and was refused: \
                 this node has not heard of it yet, or its table is an older one"
            );
            let (function, reason) = (function.clone(), "unknown-generation");
            return Event::CallerRefused { node, at, reason, function, count: *count, what };
        }
        Cause::Certificate(fault) => {
            let why = super::super::refusal::fault_words(*fault, management::clock::wall());
            let what = format!("node {node} at {by} was refused: {why}");
            return Event::CallerRefused {
                node,
                at,
                reason: "certificate",
                function: None,
                count: *count,
                what,
            };
        }
        Cause::NoRoom => {
            let what = of.unwrap_or_else(|| "something of this node".to_owned());
            let what = format!(
                "node {node} at {by} has asked for {what} and was refused: it has as many streams with this node as \
                 the two have agreed on, or there is no memory for another one. Have it give something back, give this \
                 node a larger `ledger`, or find out who that is"
            );
            let (function, reason) = (function.clone(), "no-room");
            return Event::CallerRefused { node, at, reason, function, count: *count, what };
        }
        Cause::OwnOutdated => {
            let what = format!(
                "node {node} at {by} has something of this node and refuses it, since it has seen a later life of it, \
                 as it says. If the state directory here was restored or copied, and the later one is gone for good, \
                 give that node the line that is printed here; if that one is there, stop this one"
            );
            return Event::StateRefused { node, at, what };
        }
        Cause::Twin => {
            let what = format!(
                "two programs have one identity, node {node}: this node goes on with the one at {here}, and refuses \
                 the one at {by}"
            );
            (None, what)
        }
        Cause::OwnTwin => {
            let what = format!(
                "another program has the identity of this node, {node}: it is at {by} and was refused by a peer that \
                 goes on with this one, at {here}"
            );
            (None, what)
        }
        Cause::OwnRefusal => {
            let what = format!(
                "another program has the identity of this node, {node}: the peer at {by} goes on with that one and \
                 refuses this one, at {here}"
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
        let said = look(562, seen(Cause::NoRoom, 7, 1));
        assert!(matches!(&said[..], [Event::CallerRefused { reason: "no-room", .. }]), "{said:?}");
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

    fn address(host: u32, port: u16) -> RailAddress {
        std::net::SocketAddr::from((std::net::Ipv4Addr::from(host), port)).into()
    }

    /// A node that is at `at`, where this node goes on with the one at `met`.
    fn twin(cause: Cause, node: u64, count: u64, [at, met]: [u32; 2]) -> Seen {
        Seen { at: Some(address(at, 7411)), met: vec![address(met, 7411)], ..seen(cause, node, count) }
    }

    fn identities(news: &[Event]) -> Vec<(String, String)> {
        let of = |event: &Event| match event {
            Event::IdentityShared { node, other, refused_by, .. } => {
                Some((node.clone(), other.clone().or(refused_by.clone())?))
            }
            _ => None,
        };
        news.iter().filter_map(of).collect()
    }

    #[test]
    fn a_copy_elsewhere_and_an_exchange_of_roles_are_news() {
        let mut watch = Watch::default();
        let mut look = |second, [at, met]: [u32; 2]| {
            let mut news = Vec::new();
            watch.look(Duration::from_secs(second), &[twin(Cause::Twin, 7, second, [at, met])], &mut news);
            news.len()
        };
        assert_eq!(look(1, [2, 1]), 1);
        assert!((2..30).all(|second| look(second, [2, 1]) == 0));
        assert_eq!(look(30, [3, 1]), 1, "a second copy, or it has moved");
        assert!((31..60).all(|second| look(second, [2 + second as u32 % 2, 1]) == 0), "both go on");
        assert_eq!(look(60, [1, 2]), 1, "the one that was refused is the one that is met");
        assert_eq!(look(61, [1, 2]), 0);
    }

    #[test]
    fn a_crowd_of_twins_does_not_fill_the_log_and_hides_none_of_this_node() {
        let mut watch = Watch::default();
        let (mut news, mut own) = (Vec::new(), Vec::new());
        for second in 1..=1000 {
            let addresses = [2 + second as u32, 1];
            let mut all: Vec<_> =
                (0..29).map(|node| twin(Cause::Twin, 100 * second + node, 1, addresses)).collect();
            // Whoever it is that says it: it is somewhere else each time.
            all.push(twin(Cause::OwnTwin, 1, second, addresses));
            if second >= 500 {
                all.push(twin(Cause::OwnRefusal, 1, second, [70_000, 1]));
            }
            let before = news.len();
            watch.look(Duration::from_secs(second), &all, &mut news);
            let said = identities(&news[before..]);
            own.extend(said.iter().filter(|it| it.1 == "0.1.17.112:7411").map(|_| second));
        }
        assert!((90..=110).contains(&news.len()), "{} lines", news.len());
        let others = identities(&news).iter().filter(|it| it.0 != NodeId::numbered(1).to_string()).count();
        assert!(others >= 45, "{others} of others");
        assert!(own.first().is_some_and(|second| *second <= 540) && own.len() == 1, "{own:?}");
    }

    #[test]
    fn an_address_is_said_once_and_one_that_names_no_machine_is_this_machines() {
        let words = |met: &[RailAddress]| {
            let mut news = Vec::new();
            let it = Seen { at: Some(address(0, 1)), met: met.to_vec(), ..seen(Cause::OwnTwin, 7, 1) };
            Watch::default().look(Duration::ZERO, &[it], &mut news);
            news[0].to_string()
        };
        let said = words(&[address(9, 7411), address(9, 7411), address(8, 7411), address(9, 7411)]);
        assert!(said.contains("at 0.0.0.9:7411 and 0.0.0.8:7411. The"), "{said}");
        let said = words(&[address(0, 7411), address(0, 7411)]);
        assert!(said.contains("at port 7411 of this machine. The"), "{said}");
        assert!(said.contains("it is at 0.0.0.0:1 "), "this is what the peer says: {said}");
    }

    #[test]
    fn what_is_not_lent_any_more_is_not_put_down_to_an_old_line_alone() {
        let mut news = Vec::new();
        Watch::default().look(Duration::ZERO, &[seen(Cause::Unproven, 7, 1)], &mut news);
        let said = news[0].to_string();
        assert!(said.contains("not lent any more") && said.contains("printed last"), "{said}");
    }

    #[test]
    fn an_identity_is_shared_while_a_twin_calls() {
        let mut watch = Watch::default();
        watch.look(
            Duration::from_secs(5),
            &[seen(Cause::Twin, 7, 1), seen(Cause::OwnTwin, 1, 1)],
            &mut Vec::new(),
        );
        let is = |second, node| watch.is_shared(Duration::from_secs(second), NodeId::numbered(node));
        assert_eq!([is(6, 7), is(64, 7), is(6, 1)], [true; 3]);
        assert_eq!([is(65, 7), is(6, 8)], [false; 2]);
    }
}
