//! `/metrics` and `/healthz` of a node, on localhost.
//!
//! They are answered by a thread of their own, which asks the node over its control socket as `causeway status` does:
//! the node's loop knows nothing of HTTP, and a scrape that hangs holds nobody up. What is out there is numbers and
//! names, never a key, and nothing can be changed.

mod connections;
mod metrics;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use io::event::Event;
use tokio::sync::Semaphore;

use crate::control::{ControlClient, Request, Response as Answer};
use crate::exit::Failure;
use crate::status::Status;
use connections::Bounded;

/// Questions to the node at a time; more of them are told to come back.
const AT_ONCE: usize = 4;
/// Connections at a time; more of them wait.
const CONNECTIONS: usize = 32;
/// After which a connection is closed, whatever it does. A scrape takes milliseconds, and the next one connects anew.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(10);

/// A node's HTTP server. It lives as long as the process.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
}

impl HttpServer {
    /// Serves on localhost, at a port that the system chooses, what the node with that control socket says.
    ///
    /// # Errors
    /// What the system refused: a socket, or a thread.
    pub fn start(control: &Path) -> Result<Self, Failure> {
        let refused = |error| Failure::io("cannot serve metrics on localhost", &error);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(AT_ONCE)
            .build()
            .map_err(refused)?;
        let node = Arc::new(Node { control: control.to_owned(), questions: Semaphore::new(AT_ONCE) });
        let serve = move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                let listener = Bounded::new(listener, CONNECTIONS, CONNECTION_LIFETIME);
                axum::serve(listener, router(node)).await
            })
        };
        let run = move || {
            if let Err(error) = serve() {
                Event::MetricsEnded { error: error.to_string() }.say();
            }
        };
        thread::Builder::new().name("http".to_owned()).spawn(run).map_err(refused)?;
        Ok(Self { address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

struct Node {
    control: PathBuf,
    questions: Semaphore,
}

fn router(node: Arc<Node>) -> Router {
    Router::new().route("/metrics", get(show_metrics)).route("/healthz", get(show_health)).with_state(node)
}

async fn show_metrics(State(node): State<Arc<Node>>) -> Response {
    match node.status().await {
        Ok(status) => {
            ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics::render(&status)).into_response()
        }
        Err(why) => unavailable(&why),
    }
}

async fn show_health(State(node): State<Arc<Node>>) -> Response {
    match node.status().await.and_then(|status| health(&status)) {
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

impl Node {
    async fn status(&self) -> Result<Status, String> {
        let Ok(_permit) = self.questions.try_acquire() else {
            return Err("too many questions at once".to_owned());
        };
        let control = self.control.clone();
        let asked = tokio::task::spawn_blocking(move || ask(&control)).await;
        asked.map_err(|error| error.to_string())?.map_err(|failure| failure.to_string())
    }
}

fn ask(control: &Path) -> Result<Status, Failure> {
    match ControlClient::connect(control)?.call(&Request::Status)? {
        Answer::Status { status } => Ok(*status),
        other => {
            Err(Failure::unreachable(format_args!("the node answers {other:?} when asked for its status")))
        }
    }
}

#[cfg(test)]
mod tests;
