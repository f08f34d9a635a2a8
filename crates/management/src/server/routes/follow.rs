//! What is no document: events as they happen, a backup, metrics, and whether all is well.

use core::convert::Infallible;
use core::time::Duration;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, unfold};
use manager::model::{Role, TokenHash};
use tokio::time::{Instant, sleep_until};

use super::asked::Bearer;
use crate::server::core::Handle;
use crate::server::events::{EventId, Follower};
use crate::server::metrics;
use crate::server::problem::{Failure, Kind};
use crate::server::{App, Ending};
use crate::shapes::{Event, Problem};

/// How often it is looked up whether a token that follows is still there.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Somebody who follows events.
struct Following {
    follower: Follower,
    core: Handle,
    token: TokenHash,
    look_at: Instant,
    ending: Ending,
}

impl Following {
    /// The next event. `None`: its token is gone, or the process ends.
    async fn next(&mut self) -> Option<(Option<EventId>, Arc<Event>)> {
        loop {
            let Self { follower, ending, look_at, .. } = self;
            tokio::select! {
                event = follower.next() => return event,
                () = ending.wait() => return None,
                () = sleep_until(*look_at) => {}
            }
            if !self.may().await {
                return None;
            }
            self.look_at = Instant::now() + LOOK_AGAIN;
        }
    }

    /// Whether its token still lets it. That the manager cannot be asked at present is not its fault.
    async fn may(&self) -> bool {
        let looked =
            self.core.look(|view| Ok(view.state().api_tokens().map(|(_, it)| it.hash).collect::<Vec<_>>()));
        looked.await.map_or(true, |hashes| hashes.contains(&self.token))
    }
}

/// By which header a client says what it has heard last.
const LAST_EVENT_ID: &str = "last-event-id";

/// Events of the manager and of all nodes, from now on.
#[utoipa::path(get, path = "/v1/events", tag = "fabric", params(
    ("Last-Event-ID" = Option<String>, Header, description = "From behind this one on; what is not kept is said"),
), responses(
    (status = 200, description = "Server-sent events, each an `Event`", body = Event,
        content_type = "text/event-stream"),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn events(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<sse::Event, Infallible>>>, Failure> {
    // Before the token is looked up, so that nothing is missed of what happens after the answer.
    let last = headers.get(LAST_EVENT_ID).map(|last| last.to_str().unwrap_or_default());
    let follower = app.events.follow(last);
    app.core.look_as(token, Role::ReadOnly, |_| Ok(())).await?;
    let (core, ending) = (app.core.clone(), app.ending.clone());
    let following = Following { follower, core, token, look_at: Instant::now() + LOOK_AGAIN, ending };
    let stream = unfold(following, async |mut following| {
        let (id, event) = following.next().await?;
        // Types of this crate have no errors of their own.
        let text = serde_json::to_string(&*event).ok()?;
        let event = sse::Event::default().data(text);
        let event = match id {
            Some(id) => event.id(id.to_string()),
            None => event,
        };
        Some((Ok(event), following))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

/// A backup of all that is decided. Keys and certificates are not in it.
#[utoipa::path(get, path = "/v1/backup", tag = "fabric", responses(
    (status = 200, description = "The file of `causeway manager restore`", body = [u8],
        content_type = "application/octet-stream"),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn backup(State(app): State<Arc<App>>, Bearer(token): Bearer) -> Result<Response, Failure> {
    let bytes = app.core.look_as(token, Role::Administrator, |view| Ok(view.backup())).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], bytes).into_response())
}

/// Numbers, as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", tag = "health", security(()), responses(
    (status = 200, description = "OpenMetrics 1.0", body = String, content_type = "application/openmetrics-text"),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let counters = app.counters.clone();
    let text = app.core.look(move |view| Ok(counters.render(view))).await?;
    Ok((StatusCode::OK, [(header::CONTENT_TYPE, metrics::TYPE)], text).into_response())
}

/// Whether changes can be made.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses(
    (status = 200, description = "They can", body = String, content_type = "text/plain"),
    (status = 503, description = "They cannot, and why", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn health(State(app): State<Arc<App>>) -> Result<&'static str, Failure> {
    match app.core.trouble() {
        Some(why) => Err(Failure::new(Kind::Unavailable, why)),
        // It has to answer, too.
        None => app.core.look(|_| Ok("ok\n")).await,
    }
}
