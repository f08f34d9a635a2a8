//! What happens, for whoever follows: a ring of so many events, of which a slow follower is told how many it has lost.

use manager::model::{Name, WallTime};
use tokio::sync::broadcast;

use crate::shapes::Event;
use crate::wire::NodeEvent;

/// Events that wait for the slowest follower.
pub(super) const RING: usize = 4096;
/// Characters of a text that a node says; what is longer is cut.
const TEXT_MAX: usize = 1000;

/// The ring.
#[derive(Clone, Debug)]
pub(super) struct Events(broadcast::Sender<Event>);

impl Events {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(RING))
    }

    /// Something has happened at the manager, or it says something about a node.
    pub(super) fn tell(&self, at: WallTime, node: Option<&Name>, name: &str, is_trouble: bool, text: String) {
        let node = node.map(ToString::to_string);
        if is_trouble {
            tracing::warn!(node, event = name, "{text}");
        } else {
            tracing::info!(node, event = name, "{text}");
        }
        // Nobody may follow.
        let _ = self.0.send(Event { at: at.to_string(), node, name: name.to_owned(), is_trouble, text });
    }

    /// A node says what has happened there.
    pub(super) fn relay(&self, node: &Name, event: NodeEvent) {
        let cut = |text: String| text.chars().take(TEXT_MAX).collect();
        let NodeEvent { at, name, is_trouble, text } = event;
        let (at, node) = (at.to_string(), Some(node.to_string()));
        let _ = self.0.send(Event { at, node, name: cut(name), is_trouble, text: cut(text) });
    }

    pub(super) fn follow(&self) -> Follower {
        Follower(self.0.subscribe())
    }
}

/// Somebody who follows.
pub(super) struct Follower(broadcast::Receiver<Event>);

impl Follower {
    /// The next event. `None`: there will be no more.
    pub(super) async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Closed) => None,
            Err(broadcast::error::RecvError::Lagged(lost)) => Some(Event {
                at: crate::clock::wall().to_string(),
                node: None,
                name: "lost".to_owned(),
                is_trouble: true,
                text: format!("{lost} events were lost before this: they were not taken fast enough"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_follower_is_told_how_many_it_lost() {
        let events = Events::new();
        let mut follower = events.follow();
        for number in 0..RING as u64 + 3 {
            events.tell(WallTime(number), None, "test", false, number.to_string());
        }
        let lost = follower.next().await.unwrap();
        assert!(lost.name == "lost" && lost.text.starts_with("3 events"), "{lost:?}");
        assert_eq!(follower.next().await.unwrap().text, "3");
    }

    #[tokio::test]
    async fn what_a_node_says_is_cut() {
        let events = Events::new();
        let mut follower = events.follow();
        let text = "ä".repeat(TEXT_MAX + 1);
        let event = NodeEvent { at: WallTime(0), name: "n".to_owned(), is_trouble: true, text };
        events.relay(&"desk".parse().unwrap(), event);
        assert_eq!(follower.next().await.unwrap().text.chars().count(), TEXT_MAX);
    }
}
