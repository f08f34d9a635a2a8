//! Captures as they are sent: taken out of the ring as the client reads.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream;
use io::capture::LinkCount;
use tokio::sync::watch;

use crate::control::capture::{Capture, put_counts, put_frame, put_head};

/// How long a client waits for what was captured just now: the ring holds what the fastest rail carries meanwhile. Who
/// captures wakes nobody.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A capture on its way to its client. It ends when the client is gone, since the body is dropped then.
pub(super) struct Sending {
    capture: Capture,
    /// What was said of drops last.
    told: Option<Vec<LinkCount>>,
    ended: watch::Receiver<()>,
    is_over: bool,
}

impl Sending {
    /// Until the node has `ended`.
    pub(super) fn new(capture: Capture, ended: watch::Receiver<()>) -> Self {
        Self { capture, told: None, ended, is_over: false }
    }

    pub(super) fn into_body(self) -> Body {
        Body::from_stream(stream::unfold(self, |mut sending| async move {
            let piece = sending.piece().await?;
            Some((Ok::<_, Infallible>(piece), sending))
        }))
    }

    /// What there is to send, as soon as there is something; `None` after the end.
    async fn piece(&mut self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        if self.told.is_none() {
            put_head(&self.capture.head, &mut out);
        }
        loop {
            let read = self.capture.reader.read(|captured, frame| put_frame(captured, frame, &mut out));
            let is_sound = read.is_ok();
            let counts = self.capture.reader.counts();
            if self.told.as_ref() != Some(&counts) {
                put_counts(&counts, &mut out);
                self.told = Some(counts);
            }
            if !out.is_empty() {
                return Some(out);
            }
            if self.is_over || !is_sound {
                return None;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                _ = self.ended.changed() => self.is_over = true,
            }
        }
    }
}
