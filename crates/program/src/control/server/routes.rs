//! What can be asked, and at which door.
//!
//! | door | route | answer |
//! |---|---|---|
//! | control socket | `POST /request`, a [`Request`] in JSON | an [`Answer`] in JSON |
//! | control socket | `GET /events`, `?follow=true` | what has happened, a JSON object a line |
//! | control socket | `POST /capture`, a [`CaptureOrder`] in JSON | frames, in [items](crate::control::capture) |
//! | both | `GET /metrics` | numbers, for Prometheus |
//! | both | `GET /healthz` | 200 while the data plane runs |
//!
//! 400 is the answer to what this node does not know, 413 to a request that is too long, 503 where somebody is to come
//! back, 410 where the node has just ended, 409 to a capture that cannot be. Each of them says why.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Extension, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::FOLLOWERS_MAX;
use super::captures::Sending;
use super::connections::Place;
use super::events::Reader;
use super::questions::{Asker, Unanswered};
use crate::control::capture::CaptureOrder;
use crate::control::{REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, Request, Response as Answer};
use crate::events::Recent;
use crate::status::{METRICS_TYPE, Status, render_metrics};

/// Most questions of scrapes that wait for the node at a time: they leave room for orders.
const SCRAPES_MAX: usize = 4;
/// A node whose loop has not come by for so long is not well.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is served.
pub(super) struct Served {
    asker: Asker,
    recent: Recent,
    ended: watch::Receiver<()>,
    followers: Arc<Semaphore>,
    scrapes: Semaphore,
}

impl Served {
    /// What `asker` is told and what was said, until the node has `ended`.
    pub(super) fn new(asker: Asker, recent: Recent, ended: watch::Receiver<()>) -> Arc<Self> {
        let followers = Arc::new(Semaphore::new(FOLLOWERS_MAX));
        Arc::new(Self { asker, recent, ended, followers, scrapes: Semaphore::new(SCRAPES_MAX) })
    }

    /// Tells of the node's end.
    pub(super) fn ended(&self) -> watch::Receiver<()> {
        self.ended.clone()
    }

    async fn status(&self) -> Result<Status, String> {
        let Ok(_permit) = self.scrapes.try_acquire() else {
            return Err("too many questions at once".to_owned());
        };
        match timeout(PATIENCE, self.asker.ask(Request::Status)).await {
            Ok(Ok(Answer::Status { status })) => Ok(*status),
            Ok(Ok(other)) => Err(format!("the node answers {other:?} when asked for its status")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the node has said nothing for {} s", PATIENCE.as_secs())),
        }
    }
}

/// What is behind the control socket.
pub(super) fn of_control(served: &Arc<Served>) -> Router {
    let limit = DefaultBodyLimit::max(REQUEST_BYTES_MAX);
    let orders = Router::new().route("/request", post(answer)).route("/capture", post(capture)).layer(limit);
    let orders = orders.route("/events", get(show_events));
    orders.with_state(Arc::clone(served)).merge(of_port(served))
}

/// What is behind the port, where everybody on this machine comes in.
pub(super) fn of_port(served: &Arc<Served>) -> Router {
    let numbers = Router::new().route("/metrics", get(show_metrics)).route("/healthz", get(show_health));
    numbers.with_state(Arc::clone(served))
}

async fn answer(State(served): State<Arc<Served>>, body: Result<Bytes, BytesRejection>) -> Response {
    let Ok(body) = body else {
        let why = format!("a request has at most {REQUEST_BYTES_MAX} bytes");
        return refused(StatusCode::PAYLOAD_TOO_LARGE, why);
    };
    let request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return refused(StatusCode::BAD_REQUEST, format!("no request: {error}")),
    };
    match served.asker.ask(request).await {
        Ok(answer) => json(StatusCode::OK, &answer),
        Err(error @ Unanswered::Busy) => refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        Err(error @ Unanswered::Ended) => refused(StatusCode::GONE, error.to_string()),
    }
}

async fn capture(
    State(served): State<Arc<Served>>,
    Extension(place): Extension<Place>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let order: CaptureOrder =
        match body.map_err(|_| ()).and_then(|it| serde_json::from_slice(&it).map_err(|_| ())) {
            Ok(order) => order,
            Err(()) => return refused(StatusCode::BAD_REQUEST, "no order for a capture".to_owned()),
        };
    match served.asker.capture(order).await {
        Ok(Ok(capture)) => {
            // There are fewer captures than places, also beside those who follow events.
            place.keep();
            let sending = Sending::new(capture, served.ended());
            ([(header::CONTENT_TYPE, "application/octet-stream")], sending.into_body()).into_response()
        }
        Ok(Err(why)) => refused(StatusCode::CONFLICT, why),
        Err(error @ Unanswered::Busy) => refused(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        Err(error @ Unanswered::Ended) => refused(StatusCode::GONE, error.to_string()),
    }
}

async fn show_events(
    State(served): State<Arc<Served>>,
    Extension(place): Extension<Place>,
    RawQuery(query): RawQuery,
) -> Response {
    let permit = match query.as_deref() {
        None | Some("follow=false") => None,
        Some("follow=true") => {
            let Ok(permit) = Arc::clone(&served.followers).try_acquire_owned() else {
                let why = format!(
                    "{FOLLOWERS_MAX} programs follow the events of this node already; end one of them"
                );
                return refused(StatusCode::SERVICE_UNAVAILABLE, why);
            };
            place.keep();
            Some(permit)
        }
        Some(other) => return refused(StatusCode::BAD_REQUEST, format!("no request: events?{other}")),
    };
    let events = Reader::new(served.recent.clone(), served.ended(), permit);
    ([(header::CONTENT_TYPE, "application/x-ndjson")], events.into_body()).into_response()
}

async fn show_metrics(State(served): State<Arc<Served>>) -> Response {
    match served.status().await {
        Ok(status) => ([(header::CONTENT_TYPE, METRICS_TYPE)], render_metrics(&status)).into_response(),
        Err(why) => unavailable(&why),
    }
}

async fn show_health(State(served): State<Arc<Served>>) -> Response {
    match served.status().await.and_then(|status| health(&status)) {
        Ok(()) => "ok\n".into_response(),
        Err(why) => unavailable(&why),
    }
}

/// A node is well when its data plane runs; what peers do is not its fault.
fn health(status: &Status) -> Result<(), String> {
    match status.cards.iter().find(|card| card.state != "running") {
        None => Ok(()),
        Some(card) => Err(format!("card of generation {} is {}", card.generation, card.state)),
    }
}

fn unavailable(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

fn refused(status: StatusCode, why: String) -> Response {
    json(status, &Answer::Refused { why })
}

/// An answer; one that is too long is refused instead.
fn json(status: StatusCode, answer: &Answer) -> Response {
    let mut text = match serde_json::to_vec(answer) {
        Ok(text) if text.len() < RESPONSE_BYTES_MAX => text,
        Ok(text) => {
            let why = format!("the answer has {} bytes, too many to send", text.len());
            return refused(StatusCode::INTERNAL_SERVER_ERROR, why);
        }
        Err(error) => {
            let why = format!("the answer cannot be written: {error}");
            return refused(StatusCode::INTERNAL_SERVER_ERROR, why);
        }
    };
    text.push(b'\n');
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}
