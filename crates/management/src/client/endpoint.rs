//! A manager's address, and connections to it.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{ClientError, Credentials, error};
use crate::trust::trusting;
use crate::url::{BadUrl, host_of};

/// The longest answer: a backup of the greatest fabric has some 20 MiB, and a page less.
const DOCUMENT_MAX: usize = 256 << 20;

/// A connection of HTTP.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// How long a manager is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Until a connection is there, encrypted.
    pub(super) connect: Duration,
    /// Until an answer begins: the manager itself waits 5 s for a lender.
    pub(super) answer: Duration,
    /// Between two pieces of an answer.
    pub(super) piece: Duration,
    /// The first pause before something is tried again; each is twice the one before.
    pub(super) pause: Duration,
    /// Between two signs of life of a stream of events.
    pub(super) events: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            piece: Duration::from_secs(10),
            pause: Duration::from_millis(250),
            events: Duration::from_secs(45),
        }
    }
}

/// Where a manager is, and how it is known.
pub(super) struct Endpoint {
    pub(super) url: String,
    /// `HOST:PORT`.
    authority: String,
    host: String,
    port: u16,
    server: ServerName<'static>,
    tls: Arc<ClientConfig>,
    /// `Bearer TOKEN`.
    authorization: hyper::header::HeaderValue,
    pub(super) patience: Patience,
}

impl Endpoint {
    pub(super) fn new(credentials: &Credentials, patience: Patience) -> Result<Self, ClientError> {
        let wrong = |why: String| ClientError::Credentials(why);
        let no_url = |error: BadUrl| wrong(error.to_string());
        let (host, port) = host_of(&credentials.url).map_err(no_url)?;
        let url = credentials.url.trim_end_matches('/');
        let server = ServerName::try_from(host.clone()).map_err(|error| wrong(error.to_string()))?;
        let token = format!("Bearer {}", credentials.token);
        let mut authorization = hyper::header::HeaderValue::from_str(&token)
            .map_err(|_| wrong("the token has characters that no token has".to_owned()))?;
        authorization.set_sensitive(true);
        Ok(Self {
            url: url.to_owned(),
            authority: url.trim_start_matches("https://").to_owned(),
            host,
            port,
            server,
            tls: Arc::new(
                trusting(&credentials.authority)
                    .ok_or_else(|| wrong("the authority is no certificate in PEM".to_owned()))?,
            ),
            authorization,
            patience,
        })
    }

    pub(super) fn unreachable(&self, why: impl ToString) -> ClientError {
        ClientError::Unreachable { url: self.url.clone(), why: why.to_string() }
    }

    pub(super) fn nonsense(&self, why: impl ToString) -> ClientError {
        ClientError::Answer { url: self.url.clone(), why: why.to_string() }
    }

    /// A request to this manager, of which method, path and body are still to be said.
    pub(super) fn request(&self) -> hyper::http::request::Builder {
        Request::builder()
            .header(hyper::header::HOST, &self.authority)
            .header(hyper::header::AUTHORIZATION, self.authorization.clone())
    }

    /// A new connection, by which the manager is proven to be of the fabric.
    pub(super) async fn connect(&self) -> Result<Sender, ClientError> {
        let seconds = self.patience.connect.as_secs();
        let silent = || self.unreachable(format_args!("nothing comes within {seconds} s"));
        timeout(self.patience.connect, self.connect_now()).await.map_err(|_| silent())?
    }

    async fn connect_now(&self) -> Result<Sender, ClientError> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| self.unconnected(&error))?;
        // What it fails for shows when something is sent.
        let _ = tcp.set_nodelay(true);
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(self.server.clone(), tcp).await;
        let tls = tls.map_err(|error| match tls_error(&error) {
            Some(error) => error::of_tls(&self.url, error),
            None => self.unreachable(format_args!("the connection broke at its beginning ({error})")),
        })?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(tls)).await.map_err(|error| self.broken(&error))?;
        // What becomes of it the answer tells.
        drop(tokio::spawn(connection));
        Ok(sender)
    }

    fn unconnected(&self, error: &io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                self.unreachable("nobody listens there: does `causeway manager` run, with this address?")
            }
            _ => self.unreachable(error),
        }
    }

    /// What a failed exchange of HTTP means.
    pub(super) fn broken(&self, error: &hyper::Error) -> ClientError {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
        match cause.and_then(tls_error) {
            Some(error) => error::of_tls(&self.url, error),
            None if error.is_parse() => self.nonsense(error),
            None => self.unreachable(format_args!("the connection broke ({error})")),
        }
    }

    /// The rest of an answer.
    pub(super) async fn document(&self, mut body: Incoming) -> Result<Vec<u8>, ClientError> {
        let mut text = Vec::new();
        while let Some(piece) = self.piece(&mut body, self.patience.piece).await? {
            if text.len() + piece.len() > DOCUMENT_MAX {
                return Err(self.nonsense("it does not come to an end"));
            }
            text.extend_from_slice(&piece);
        }
        Ok(text)
    }

    /// The next piece of an answer, which may take so long; `None` behind the last.
    pub(super) async fn piece(
        &self,
        body: &mut Incoming,
        patience: Duration,
    ) -> Result<Option<Bytes>, ClientError> {
        match timeout(patience, body.frame()).await {
            Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
            Ok(Some(Err(error))) => Err(self.broken(&error)),
            Ok(None) => Ok(None),
            Err(_) => {
                Err(self
                    .unreachable(format_args!("it has stopped in the middle of an answer ({patience:?})")))
            }
        }
    }

    /// The problem that an answer is.
    pub(super) fn problem(&self, status: StatusCode, text: &[u8]) -> ClientError {
        match serde_json::from_slice(text) {
            Ok(problem) => ClientError::Problem(problem),
            Err(_) => self.nonsense(format_args!("it says {status} without a problem document")),
        }
    }
}

/// What TLS has found, within an error of the system.
fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}
