//! What happens, for whoever follows. The last [`KEPT`] events are kept, so one whose connection breaks and comes again
//! hears the rest, and a slow one is told how many it has lost. What one node says beyond its [`Quotas`] displaces
//! nothing: it is counted, and that is told.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use base::ids::NodeId;
use base::{Bucket, Instant};
use manager::model::{Name, WallTime};
use tokio::sync::broadcast;

use crate::shapes::Event;
use crate::wire::{EVENTS_MAX, NodeEvent};

/// Events that are kept, and that wait for the slowest follower.
pub(super) const KEPT: usize = 4096;
/// Characters of a text that a node says; what is longer is cut.
const TEXT_MAX: usize = 1000;
/// Events of one node at once: those of a message, for one that is heard again says what has happened meanwhile.
const BURST: u32 = EVENTS_MAX as u32;
/// And then one more each time.
const ONE_MORE: Duration = Duration::from_millis(50);
/// Once one is left out, all are until there is room for so many. So what is told of these is no flood itself.
const ROOM: u32 = 16;

/// Which event: `RUN-NUMBER`, as `Last-Event-ID` says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EventId {
    /// Of the process: when it has started, in milliseconds since 1970.
    run: u64,
    /// From 1 on.
    number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.run, self.number)
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (run, number) = text.split_once('-').ok_or(())?;
        Ok(Self { run: run.parse().map_err(drop)?, number: number.parse().map_err(drop)? })
    }
}

/// An event, and its number.
type Numbered = (u64, Arc<Event>);

/// What has happened, and who is told.
#[derive(Clone, Debug)]
pub(super) struct Events(Arc<Mutex<Ring>>);

#[derive(Debug)]
struct Ring {
    run: u64,
    /// The number of the last one.
    last: u64,
    kept: VecDeque<Numbered>,
    followers: broadcast::Sender<Numbered>,
}

impl Events {
    pub(super) fn new() -> Self {
        let (run, followers) = (crate::clock::wall().0, broadcast::Sender::new(KEPT));
        Self(Arc::new(Mutex::new(Ring { run, last: 0, kept: VecDeque::new(), followers })))
    }

    /// Something has happened at the manager, or it says something about a node.
    pub(super) fn tell(&self, at: WallTime, node: Option<&Name>, name: &str, is_trouble: bool, text: String) {
        let node = node.map(ToString::to_string);
        if is_trouble {
            tracing::warn!(node, event = name, "{text}");
        } else {
            tracing::info!(node, event = name, "{text}");
        }
        self.add(Event { at: at.to_string(), node, name: name.to_owned(), is_trouble, text });
    }

    /// A node says what has happened there.
    pub(super) fn relay(&self, node: &Name, event: NodeEvent) {
        let cut = |text: String| text.chars().take(TEXT_MAX).collect();
        let NodeEvent { at, name, is_trouble, text } = event;
        let (at, node) = (cut(at), Some(node.to_string()));
        self.add(Event { at, node, name: cut(name), is_trouble, text: cut(text) });
    }

    fn add(&self, event: Event) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last += 1;
        let numbered = (ring.last, Arc::new(event));
        if ring.kept.len() >= KEPT {
            ring.kept.pop_front();
        }
        ring.kept.push_back(numbered.clone());
        // Nobody may follow.
        let _ = ring.followers.send(numbered);
    }

    /// From now on; or from behind the event that somebody names, as far as that is known.
    pub(super) fn follow(&self, last: Option<&str>) -> Follower {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut follower =
            Follower { run: ring.run, missed: None, past: VecDeque::new(), next: ring.followers.subscribe() };
        let Some(last) = last else { return follower };
        let of_this_run = |id: &EventId| id.run == ring.run && id.number <= ring.last;
        let behind = match last.parse::<EventId>().ok().filter(of_this_run) {
            Some(id) => id.number,
            None => {
                let text =
                    "the manager was started again: what had happened before, and was not told, is lost";
                follower.missed = Some(lost(text.to_owned()));
                0
            }
        };
        follower.past = ring.kept.iter().filter(|(number, _)| *number > behind).cloned().collect();
        let first = follower.past.front().map_or(ring.last + 1, |(number, _)| *number);
        match first - behind - 1 {
            0 => {}
            many => {
                follower.missed =
                    Some(lost(format!("{many} events were lost before this: so many are not kept")));
            }
        }
        follower
    }
}

fn lost(text: String) -> Event {
    let at = crate::clock::wall().to_string();
    Event { at, node: None, name: "lost".to_owned(), is_trouble: true, text }
}

/// Somebody who follows.
pub(super) struct Follower {
    run: u64,
    /// That something is missing, told first.
    missed: Option<Event>,
    past: VecDeque<Numbered>,
    next: broadcast::Receiver<Numbered>,
}

impl Follower {
    /// The next event, with its id if it has one. `None`: there will be no more.
    pub(super) async fn next(&mut self) -> Option<(Option<EventId>, Arc<Event>)> {
        if let Some(missed) = self.missed.take() {
            return Some((None, Arc::new(missed)));
        }
        let next = match self.past.pop_front() {
            Some(past) => Ok(past),
            None => self.next.recv().await,
        };
        match next {
            Ok((number, event)) => Some((Some(EventId { run: self.run, number }), event)),
            Err(broadcast::error::RecvError::Closed) => None,
            Err(broadcast::error::RecvError::Lagged(many)) => {
                let text = format!("{many} events were lost before this: they were not taken fast enough");
                Some((None, Arc::new(lost(text))))
            }
        }
    }
}

/// How much nodes may say: [`BURST`] events at once and one each [`ONE_MORE`]. Others of a node are left out, and
/// counted.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    buckets: BTreeMap<NodeId, Bucket>,
    left_out: BTreeMap<NodeId, LeftOut>,
}

/// Events of a node that were left out.
#[derive(Debug)]
struct LeftOut {
    many: u64,
    /// When there is room for [`ROOM`] others.
    until: Instant,
}

impl Quotas {
    /// Whether one more event of a node is told. Else it is counted.
    pub(super) fn admit(&mut self, node: NodeId, now: Instant) -> bool {
        if let Some(left_out) = self.left_out.get_mut(&node) {
            left_out.many += 1;
            return false;
        }
        let full = || Bucket::full(BURST, ONE_MORE, now);
        let is_admitted = self.buckets.entry(node).or_insert_with(full).take(now);
        if !is_admitted {
            self.left_out.insert(node, LeftOut { many: 1, until: now + ONE_MORE * ROOM });
        }
        is_admitted
    }

    /// When [`Quotas::take_left_out`] has something.
    pub(super) fn timeout(&self) -> Option<Instant> {
        self.left_out.values().map(|it| it.until).min()
    }

    /// Of which nodes there is room for events again, and how many were left out until now.
    pub(super) fn take_left_out(&mut self, now: Instant) -> Vec<(NodeId, u64)> {
        let due: Vec<_> =
            self.left_out.iter().filter(|(_, it)| it.until <= now).map(|(node, _)| *node).collect();
        due.into_iter().filter_map(|node| Some((node, self.left_out.remove(&node)?.many))).collect()
    }

    /// Forgets all nodes but these.
    pub(super) fn retain(&mut self, stays: impl Fn(NodeId) -> bool) {
        self.buckets.retain(|node, _| stays(*node));
        self.left_out.retain(|node, _| stays(*node));
    }
}

/// What is told of events that were left out.
pub(super) fn left_out_text(many: u64) -> String {
    let a_second = Duration::from_secs(1).as_millis() / ONE_MORE.as_millis();
    format!(
        "{many} events of it were left out before this: no more than {BURST} at once and {a_second} a second are told \
         of one node; `causeway events` there has them"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_beyond_its_quota_is_counted_and_no_other_node_suffers() {
        let (flooding, other) = (NodeId([1; 20]), NodeId([2; 20]));
        let start = Instant::from_nanos(7);
        let mut quotas = Quotas::default();
        let admitted = (0..100_000).filter(|_| quotas.admit(flooding, start)).count();
        assert_eq!((admitted, quotas.admit(other, start)), (BURST as usize, true));
        // It goes on, and there is no room until there is some for several.
        let soon = start + ONE_MORE * (ROOM - 1);
        assert!(!quotas.admit(flooding, soon) && quotas.take_left_out(soon).is_empty());
        let until = quotas.timeout().unwrap();
        assert_eq!(until, start + ONE_MORE * ROOM);
        let left_out = 100_000 - u64::from(BURST) + 1;
        assert_eq!(quotas.take_left_out(until), [(flooding, left_out)]);
        assert_eq!((0..100).filter(|_| quotas.admit(flooding, until)).count(), ROOM as usize);
        let again = quotas.timeout().unwrap();
        assert_eq!(quotas.take_left_out(again), [(flooding, 100 - u64::from(ROOM))], "counted from then on");
        assert_eq!((quotas.timeout(), quotas.take_left_out(again)), (None, vec![]));
        quotas.retain(|node| node == other);
        assert!(quotas.buckets.keys().eq([&other]));
    }

    #[tokio::test]
    async fn a_slow_follower_is_told_how_many_it_lost() {
        let events = Events::new();
        let mut follower = events.follow(None);
        for number in 0..KEPT as u64 + 3 {
            events.tell(WallTime(number), None, "test", false, number.to_string());
        }
        let lost = follower.next().await.unwrap().1;
        assert!(lost.name == "lost" && lost.text.starts_with("3 events"), "{lost:?}");
        assert_eq!(follower.next().await.unwrap().1.text, "3");
    }

    #[tokio::test]
    async fn who_comes_again_hears_the_rest_or_what_is_lost() {
        let events = Events::new();
        let tell = |number: u64| events.tell(WallTime(number), None, "test", false, number.to_string());
        let mut follower = events.follow(None);
        tell(1);
        let (id, _) = follower.next().await.unwrap();
        let id = id.unwrap().to_string();
        // Nothing has happened meanwhile, and then something.
        let mut again = events.follow(Some(&id));
        (2..5).for_each(tell);
        assert_eq!(again.next().await.unwrap().1.text, "2");
        let mut again = events.follow(Some(&id));
        tell(5);
        for number in 2..6_u64 {
            let (id, event) = again.next().await.unwrap();
            assert_eq!((id.unwrap().number, event.text.clone()), (number, number.to_string()));
        }
        // More than are kept.
        (6..8 + KEPT as u64).for_each(tell);
        let mut late = events.follow(Some(&id));
        let (id_of_lost, lost) = late.next().await.unwrap();
        assert!(id_of_lost.is_none() && lost.name == "lost" && lost.text.starts_with("6 events"), "{lost:?}");
        assert_eq!(late.next().await.unwrap().1.text, "8");
        // Of another run of the manager, of one to come, and of none.
        for other in ["1-1", &id.replace("-1", "-99999"), "x", ""] {
            let mut other_run = events.follow(Some(other));
            let lost = other_run.next().await.unwrap().1;
            assert!(lost.name == "lost", "{other}: {lost:?}");
        }
    }

    #[tokio::test]
    async fn what_a_node_says_is_cut() {
        let events = Events::new();
        let mut follower = events.follow(None);
        let text = "ä".repeat(TEXT_MAX + 1);
        let event = NodeEvent { at: String::new(), name: "n".to_owned(), is_trouble: true, text };
        events.relay(&"desk".parse().unwrap(), event);
        assert_eq!(follower.next().await.unwrap().1.text.chars().count(), TEXT_MAX);
    }
}
