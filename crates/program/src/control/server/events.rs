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
    /// That of the last one, where there is one.
    last: Option<u64>,
    ended: watch::Receiver<()>,
    /// To follow.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Reader {
    /// Reads what there is; with a permit also what comes, until the node has `ended`.
    pub(super) fn new(
        recent: Recent,
        ended: watch::Receiver<()>,
        permit: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let ring = recent.lock();
        let (next, last) = (ring.oldest(), permit.is_none().then_some(ring.newest()));
        drop(ring);
        Self { recent, next, last, ended, _permit: permit }
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
            let left = self.last.map_or(u64::MAX, |last| (last + 1).saturating_sub(self.next));
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(EVENTS_A_PIECE);
            let (next, events) = self.recent.lock().read(self.next, most);
            self.next = next;
            if !events.is_empty() {
                return Some(lines(&events));
            }
            if self.last.is_some() {
                return None;
            }
            tokio::select! {
                () = said => {}
                _ = self.ended.changed() => self.last = Some(self.recent.lock().newest()),
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
