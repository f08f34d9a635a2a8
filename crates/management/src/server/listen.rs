//! Connections: TCP, TLS 1.3, HTTP/1.1, with a time and a number for each.

use core::ops::RangeInclusive;
use core::time::Duration;
use std::sync::{Arc, RwLock};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use manager::model::WallTime;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Ending;
use super::core::Handle;
use super::events::Events;
use super::unproven::Source;
use crate::authority::Authority;
use crate::authority::certificate::{BadCertificate, RENEW};

/// How long a TLS handshake takes at most.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long the head of a request takes at most, also the first byte of the next one on a connection.
const HEAD: Duration = Duration::from_secs(30);
/// What is sent and not acknowledged for so long has nobody who takes it.
const UNTAKEN_MS: u32 = 30_000;
/// How long connections are waited for when the process ends.
pub(super) const LINGER: Duration = Duration::from_secs(5);
/// Pause when the system has no more descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Descriptors beside those of connections: files, listeners, the runtime's own.
const OTHER_DESCRIPTORS: u64 = 64;

/// The certificate that connections begin with, which changes while the process runs.
#[derive(Debug)]
pub(super) struct Tls {
    current: Arc<Current>,
    config: Arc<ServerConfig>,
}

#[derive(Debug)]
struct Current(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().ok().map(|current| Arc::clone(&current))
    }
}

impl Tls {
    /// Signs the first one, good by the clock and by the last time in the log.
    pub(super) fn new(
        authority: &Authority,
        names: &[String],
        log: WallTime,
    ) -> Result<Self, BadCertificate> {
        let first = authority.sign(names, both(log))?;
        let current = Arc::new(Current(RwLock::new(first)));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| BadCertificate::Sign { why: error.to_string() })?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Current>::clone(&current));
        Ok(Self { current, config: Arc::new(config) })
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    /// Signs a new one each day, until the process ends. Connections that are there go on.
    pub(super) async fn renew(
        self,
        authority: Authority,
        names: Vec<String>,
        events: Events,
        core: Handle,
        mut ending: Ending,
    ) {
        while tokio::time::timeout(RENEW, ending.wait()).await.is_err() {
            let now = crate::clock::wall();
            // Without a core nothing is in the log that was not there before.
            let log = core.look(|view| Ok(view.state().at())).await.unwrap_or(now);
            match authority.sign(&names, both(log)) {
                Ok(next) => self.current.0.write().map(|mut current| *current = next).unwrap_or_default(),
                Err(error) => events.tell(now, None, "certificate", true, error.to_string()),
            }
        }
    }
}

/// From the earlier one of log and clock to the later one.
fn both(log: WallTime) -> RangeInclusive<WallTime> {
    let now = crate::clock::wall();
    now.min(log)..=now.max(log)
}

/// Lets the process have so many connections, as far as the system does.
pub(super) fn raise_limit(connections: usize) {
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = (connections as u64).saturating_add(OTHER_DESCRIPTORS);
    let allowed = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_some_and(|current| current < allowed) {
        limit.current = Some(allowed);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!("the limit of open files cannot be raised to {allowed}: {error}");
        }
    }
}

/// Takes connections until the process ends, and waits for those that are there.
pub(super) async fn listen(
    listener: TcpListener,
    tls: TlsAcceptor,
    router: Router,
    room: Arc<Semaphore>,
    mut ending: Ending,
) {
    let mut connections = JoinSet::new();
    loop {
        // Those for whom there is no room wait in the listener's queue, which the system limits.
        let accepted = async {
            let permit = Arc::clone(&room).acquire_owned().await.ok()?;
            Some((listener.accept().await, permit))
        };
        tokio::select! {
            () = ending.wait() => break,
            accepted = accepted => match accepted {
                Some((Ok((stream, peer)), permit)) => {
                    let router = router.clone().layer(axum::Extension(Source::of(peer.ip())));
                    connections.spawn(connection(stream, tls.clone(), router, permit, ending.clone()));
                }
                Some((Err(error), _)) => {
                    tracing::warn!("a connection was not taken: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
                None => break,
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// One connection, to its end.
async fn connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    router: Router,
    permit: OwnedSemaphorePermit,
    mut ending: Ending,
) {
    // Without these it works, only slower, or a dead peer is noticed later.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNTAKEN_MS);
    let Ok(Ok(stream)) = timeout(HANDSHAKE, tls.accept(stream)).await else { return };
    // A WebSocket outlives the request that it came by, and takes the connection's place with it.
    let permit = Arc::new(permit);
    let router = router.layer(axum::Extension(Place(permit)));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let served =
        http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).with_upgrades();
    let mut served = core::pin::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = ending.wait() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!("a connection has ended: {error}");
    }
}

/// The place of a connection among those that there may be.
#[derive(Clone, Debug)]
pub(super) struct Place(#[allow(dead_code, reason = "held, not read")] Arc<OwnedSemaphorePermit>);
