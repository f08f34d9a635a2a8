//! The manager's process: one thread with the core and the files, and connections that speak to it.
//!
//! ```text
//!   clients ── HTTPS ──► routes ─► inbox of clients ─┐      ┌─► store (append, fdatasync)
//!                                                    ├─► core
//!   nodes ── WebSocket ─► agent ─► inbox of nodes ───┘      └─► outbox of each node
//! ```
//!
//! All three are bounded. Clients come first in each turn of the core, and of the inbox of nodes no connection has more
//! than a few places, so whoever floods keeps out itself only.
//!
//! Nothing that comes from a network waits for another one of it: a queue that is full refuses (clients), makes its
//! sender wait (what a node says), or closes the connection (what a node is told). Nobody can make the process
//! hang or end: requests have a longest length and time, heads of requests and TLS handshakes a time, and there are so
//! many connections at most.

mod agent;
mod core;
mod events;
mod listen;
mod metrics;
mod nodes;
mod problem;
mod rivals;
mod routes;
mod slots;
mod unproven;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use manager::model::FabricId;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use self::core::{Handle, Running};
use self::events::Events;
use self::listen::Tls;
use self::metrics::Counters;
use self::unproven::Unproven;
use crate::authority::certificate::BadCertificate;
use crate::authority::{Authority, BadConfig, Config};
use crate::keys::NodeKey;
use crate::store::{Store, StoreError};

pub use routes::openapi;

/// Why a manager does not run, or does not any more.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Its configuration, or a file that it names.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// Its certificate.
    #[error(transparent)]
    Certificate(#[from] BadCertificate),
    /// Its files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It cannot listen.
    #[error("{address} cannot be listened on: {error}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        error: std::io::Error,
    },
    /// The system gives it no thread.
    #[error("the manager's thread cannot be started: {error}")]
    Thread {
        /// Why.
        error: std::io::Error,
    },
    /// A mistake in the program.
    #[error("the manager's thread has ended by a mistake in this program: see its log, and start it again")]
    Mistake,
}

/// What all connections have in common.
#[derive(Debug)]
struct App {
    core: Handle,
    events: Events,
    counters: Counters,
    fabric: FabricId,
    key: NodeKey,
    authority: Arc<Authority>,
    urls: Vec<String>,
    unproven: Unproven,
    ending: Ending,
}

/// Whether the process ends.
#[derive(Clone, Debug)]
struct Ending(watch::Receiver<bool>);

impl Ending {
    /// Waits until it does.
    async fn wait(&mut self) {
        // Whoever would say so is gone: it ends, too.
        let _ = self.0.wait_for(|ends| *ends).await;
    }
}

/// A manager that runs.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    app: Arc<App>,
    /// Who listens, and who renews the certificate. Dropped, all of it ends at once.
    tasks: JoinSet<()>,
    ended: oneshot::Receiver<Result<(), ServeError>>,
    end: watch::Sender<bool>,
}

impl Server {
    /// Opens the files, begins an epoch, and listens. To be called where tokio runs, with its timers and network.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn start(config: &Config) -> Result<Self, ServeError> {
        let (authority, key) = (Arc::new(config.authority()?), config.key()?);
        let (store, opened) = Store::open(&config.state, config.fabric)?;
        let tls = Tls::new(&authority, &config.names, opened.state.at())?;
        if opened.torn > 0 {
            let torn = opened.torn;
            tracing::warn!(torn, "the log's last record was not whole and was cut: nobody had heard of it");
        }
        // Before the core begins: a manager that nobody can reach changes nothing.
        let mut listeners = Vec::new();
        for address in &config.listen {
            let refused = |error| ServeError::Listen { address: *address, error };
            listeners.push(TcpListener::bind(address).await.map_err(refused)?);
        }
        let addresses = listeners.iter().filter_map(|it| it.local_addr().ok()).collect();
        let (end, ending) = watch::channel(false);
        let events = Events::new();
        let Running { handle, ended } = core::start(store, opened, events.clone(), Arc::clone(&authority))?;
        let (counters, urls) = (Counters::default(), config.urls.clone());
        let app = App {
            core: handle,
            events,
            counters,
            fabric: config.fabric,
            key,
            authority: Arc::clone(&authority),
            urls,
            unproven: Unproven::default(),
            ending: Ending(ending),
        };
        let app = Arc::new(app);
        let mut tasks = JoinSet::new();
        let router = routes::router(Arc::clone(&app));
        listen::raise_limit(config.connections);
        let room = Arc::new(tokio::sync::Semaphore::new(config.connections));
        for listener in listeners {
            let (tls, router, room) = (tls.acceptor(), router.clone(), Arc::clone(&room));
            tasks.spawn(listen::listen(listener, tls, router, room, app.ending.clone()));
        }
        let (events, core, ending) = (app.events.clone(), app.core.clone(), app.ending.clone());
        tasks.spawn(tls.renew(authority, config.names.clone(), events, core, ending));
        Ok(Self { addresses, app, tasks, ended, end })
    }

    /// Where it listens: with the port that the system chose, where it was left to it.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Runs until `shutdown` is there, then ends in order: no new connections, what was asked for is answered, the
    /// files are closed.
    ///
    /// # Errors
    /// The files are damaged, or cannot be closed. That a disk is full for a while is none.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        tokio::select! {
            () = shutdown => {}
            ended = &mut self.ended => return ended.unwrap_or(Err(ServeError::Mistake)),
        }
        // Nobody may listen for it any more.
        let _ = self.end.send(true);
        let wait = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(listen::LINGER, wait).await.is_err() {
            tracing::warn!("connections did not end in time and are cut");
        }
        self.app.core.end().await;
        self.ended.await.unwrap_or(Err(ServeError::Mistake))
    }
}

/// Runs a manager until `shutdown` is there: see [`Server`].
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(config: Config, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
    Server::start(&config).await?.run(shutdown).await
}
