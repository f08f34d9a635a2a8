//! Connections, so many at a time: who says nothing, or reads nothing, does not keep others out.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::serve::Listener;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

/// For so long a connection has its place for certain. A question takes milliseconds.
const CERTAIN: Duration = Duration::from_millis(500);
/// How long the end of a node waits for who does not read.
const FLUSH: Duration = Duration::from_millis(200);
/// Of a connection, for each direction: a head of a request has to fit in, and what is not read costs no more.
const BUFFER_BYTES: usize = 16 << 10;

/// The place of a connection.
#[derive(Clone, Default)]
pub(super) struct Place(Arc<AtomicBool>);

impl Place {
    /// Nobody else gets it as long as the connection lasts.
    pub(super) fn keep(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_kept(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Serves at most `most` connections at a time until the node has `ended`, and then those that are being answered, for
/// a moment.
pub(super) async fn serve<L: Listener>(
    mut listener: L,
    most: usize,
    routes: Router,
    ended: watch::Receiver<()>,
) {
    let mut connections = Connections { most, open: VecDeque::with_capacity(most), tasks: JoinSet::new() };
    let mut end = ended.clone();
    tokio::select! {
        () = connections.accept(&mut listener, &routes, &ended) => {}
        _ = end.changed() => {}
    }
    drop(listener);
    let _ = timeout(FLUSH, async { while connections.tasks.join_next().await.is_some() {} }).await;
}

struct Connections {
    most: usize,
    /// The oldest first.
    open: VecDeque<Open>,
    tasks: JoinSet<()>,
}

struct Open {
    since: Instant,
    place: Place,
    task: AbortHandle,
}

impl Connections {
    /// Accepts for ever.
    async fn accept<L: Listener>(&mut self, listener: &mut L, routes: &Router, ended: &watch::Receiver<()>) {
        loop {
            let (stream, _) = listener.accept().await;
            self.make_room().await;
            let place = Place::default();
            let routes = routes.clone().layer(Extension(place.clone()));
            let task = self.tasks.spawn(connection(stream, routes, ended.clone()));
            self.open.push_back(Open { since: Instant::now(), place, task });
        }
    }

    /// Waits until there is room for one more. That of the oldest is taken which is not certain of it.
    async fn make_room(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.open.retain(|it| !it.task.is_finished());
            let oldest = self.open.iter().find(|it| !it.place.is_kept());
            let Some(oldest) = oldest.filter(|_| self.open.len() >= self.most) else { return };
            let left = timeout_at(oldest.since + CERTAIN, self.tasks.join_next()).await;
            // It may have begun to follow meanwhile.
            if left.is_err() && !oldest.place.is_kept() {
                oldest.task.abort();
                self.tasks.join_next().await;
            }
        }
    }
}

/// A connection, from its first request to its last.
async fn connection<I>(stream: I, routes: Router, mut ended: watch::Receiver<()>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut http = http1::Builder::new();
    http.max_buf_size(BUFFER_BYTES);
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    // Whatever a client does wrong is its own trouble.
    tokio::select! {
        _ = served.as_mut() => return,
        _ = ended.changed() => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}
