//! What happens, for whoever follows. The last [`KEPT`] events are kept, so one whose connection breaks and comes again
//! hears the rest, and a slow one is told how many it has lost.

use core::fmt;
use core::str::FromStr;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use manager::model::{Name, WallTime};
use tokio::sync::broadcast;

use crate::shapes::Event;
use crate::wire::NodeEvent;

/// Events that are kept, and that wait for the slowest follower.
pub(super) const KEPT: usize = 4096;
/// Characters of a text that a node says; what is longer is cut.
const TEXT_MAX: usize = 1000;

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

#[cfg(test)]
mod tests {
    use super::*;

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
