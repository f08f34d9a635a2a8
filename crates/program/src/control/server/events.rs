//! Events as they are sent: a JSON object a line.

use std::convert::Infallible;

use axum::body::Body;
use futures_util::stream;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::events::{Recent, Record};

/// Most events that are taken out of the ring at once.
const EVENTS_A_PIECE: usize = 32;

/// How far a client has read. It has no queue: what it does not read stays in the ring, or is counted there.
pub(super) struct Reader {
    recent: Recent,
    /// The number of the next one.
    next: u64,
    reads: Reads,
}

/// What a client wants of it.
enum Reads {
    /// All up to this number.
    Until(u64),
    /// Those that come, too, as long as there is a node.
    On { ended: watch::Receiver<()>, has_ended: bool, _permit: OwnedSemaphorePermit },
}

impl Reader {
    /// Reads what there is.
    pub(super) fn of_past(recent: Recent) -> Self {
        let ring = recent.lock();
        let (next, newest) = (ring.oldest(), ring.newest());
        drop(ring);
        Self { recent, next, reads: Reads::Until(newest) }
    }

    /// Follows until the node has `ended`.
    pub(super) fn follow(recent: Recent, ended: watch::Receiver<()>, permit: OwnedSemaphorePermit) -> Self {
        let next = recent.lock().oldest();
        Self { recent, next, reads: Reads::On { ended, has_ended: false, _permit: permit } }
    }

    /// What is sent: taken from the ring as the client reads.
    pub(super) fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut reader| async move {
            let piece = reader.read().await?;
            Some((Ok::<_, Infallible>(piece), reader))
        }))
    }

    /// The next events, as soon as there are some; `None` after the last.
    async fn read(&mut self) -> Option<Vec<u8>> {
        loop {
            // Before the look: what is said after it is not missed.
            let said = self.recent.said();
            let most = match self.reads {
                Reads::Until(last) => {
                    usize::try_from((last + 1).saturating_sub(self.next)).unwrap_or(usize::MAX)
                }
                Reads::On { .. } => usize::MAX,
            };
            let (next, events) = self.recent.lock().read(self.next, most.min(EVENTS_A_PIECE));
            self.next = next;
            if !events.is_empty() {
                return Some(lines(&events));
            }
            match &mut self.reads {
                Reads::Until(_) | Reads::On { has_ended: true, .. } => return None,
                Reads::On { ended, has_ended, .. } => tokio::select! {
                    () = said => {}
                    // And a last look.
                    _ = ended.changed() => *has_ended = true,
                },
            }
        }
    }
}

fn lines(events: &[Record]) -> Vec<u8> {
    let mut text = Vec::new();
    for event in events {
        serde_json::to_writer(&mut text, event)
            .expect("records are texts and numbers, which always serialise");
        text.push(b'\n');
    }
    text
}
