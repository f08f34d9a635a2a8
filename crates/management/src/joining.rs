//! How a node comes to belong to a fabric: with a join token it proves its key, and is told its name, its domains and
//! whom it belongs to. The token pins the authority, so nobody in between can take the manager's place.

use core::time::Duration;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use manager::model::RequestId;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use thiserror::Error as ThisError;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::clock::wall;
use crate::keys::{self, JoinToken, NodeKey};
use crate::shapes::{Introduction, Join, Joined, Problem, join_text};
use crate::url::host_of;

/// How long one manager has for all of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const ANSWER_MAX: usize = 64 << 10;

/// Why a node has not joined.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
pub enum JoinError {
    /// No manager has answered.
    #[error("{0}")]
    Unreachable(String),
    /// A manager has said no.
    #[error("{0}")]
    Refused(String),
}

/// A node belongs to a fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// What it was told.
    pub joined: Joined,
    /// The certificate of the authority, PEM.
    pub authority: String,
}

/// Joins the fabric of the token, as the node of this key. Asked again with the same `request`, it is done once.
///
/// # Errors
/// See [`JoinError`].
pub fn join(token: &JoinToken, pair: &NodeKey, name: &str, request: RequestId) -> Result<Welcome, JoinError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| JoinError::Unreachable(format!("the system says no: {error}")))?;
    let mut last = JoinError::Unreachable("the token names no manager".to_owned());
    for url in &token.urls {
        let asked = runtime.block_on(async { timeout(PATIENCE, ask(token, pair, name, request, url)).await });
        match asked {
            Ok(Ok(welcome)) => return Ok(welcome),
            Ok(Err(JoinError::Refused(why))) => return Err(JoinError::Refused(why)),
            Ok(Err(JoinError::Unreachable(why))) => {
                last = JoinError::Unreachable(format!("manager {url}: {why}"));
            }
            Err(_) => {
                let why = format!("manager {url} did not answer within {} s", PATIENCE.as_secs());
                last = JoinError::Unreachable(why);
            }
        }
    }
    Err(last)
}

async fn ask(
    token: &JoinToken,
    pair: &NodeKey,
    name: &str,
    request: RequestId,
    url: &str,
) -> Result<Welcome, JoinError> {
    let unreachable =
        |what: &str, error: &dyn core::fmt::Display| JoinError::Unreachable(format!("{what}: {error}"));
    let (host, port) = host_of(url).map_err(|error| JoinError::Unreachable(error.to_string()))?;
    let stream = TcpStream::connect((host.as_str(), port)).await;
    let stream = stream.map_err(|error| unreachable("it cannot be reached", &error))?;
    let server =
        ServerName::try_from(host.clone()).map_err(|error| unreachable("its name is none", &error))?;
    let pinned = Arc::new(Pinned::new(token.authority));
    let connector = connector(&pinned).map_err(|error| unreachable("no TLS", &error))?;
    let stream = connector.connect(server, stream).await;
    let stream = stream.map_err(|error| unreachable("it is not the one that has made this token", &error))?;
    let authority =
        pinned.found().ok_or_else(|| JoinError::Unreachable("it shows no authority".to_owned()))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable("it speaks no HTTP", &error))?;
    tokio::spawn(connection);

    let manager = manager_key(&mut sender, &host).await?;
    let shared = keys::shared(pair, manager).map_err(|error| JoinError::Refused(error.to_string()))?;
    let key = keys::public(pair);
    let proof = keys::prove(&shared, &join_text(token.token.hash(), name, &key.0));
    let body = Join {
        name: name.to_owned(),
        key: key.to_string(),
        proof: base::ids::BASE32.encode(&proof),
        now: wall().0,
    };
    let body = serde_json::to_vec(&body).map_err(|error| JoinError::Refused(error.to_string()))?;
    let asked = Request::post("/v1/join")
        .header("host", &host)
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {}", token.token.reveal()))
        .header("idempotency-key", request.to_string())
        .body(Full::new(Bytes::from(body)));
    let asked = asked.map_err(|error| JoinError::Refused(error.to_string()))?;
    let (status, bytes) = exchange(&mut sender, asked).await?;
    if !status.is_success() {
        return Err(refusal(status, &bytes));
    }
    let joined: Joined = serde_json::from_slice(&bytes)
        .map_err(|error| unreachable("it answers what this version does not know", &error))?;
    if joined.manager != manager.to_string() {
        return Err(JoinError::Unreachable("it names another key than it has proven".to_owned()));
    }
    Ok(Welcome { joined, authority })
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// The manager's public key: what the node proves its own with. Whoever has the pinned certificate says it.
async fn manager_key(sender: &mut Sender, host: &str) -> Result<manager::model::PublicKey, JoinError> {
    let asked = Request::get("/v1/join").header("host", host).body(Full::default());
    let asked = asked.map_err(|error| JoinError::Refused(error.to_string()))?;
    let (status, bytes) = exchange(sender, asked).await?;
    if !status.is_success() {
        return Err(refusal(status, &bytes));
    }
    let odd =
        |why: String| JoinError::Unreachable(format!("it answers what this version does not know: {why}"));
    let introduction: Introduction =
        serde_json::from_slice(&bytes).map_err(|error| odd(error.to_string()))?;
    introduction.manager.parse().map_err(|why: &str| odd(why.to_owned()))
}

async fn exchange(
    sender: &mut Sender,
    asked: Request<Full<Bytes>>,
) -> Result<(StatusCode, Bytes), JoinError> {
    let ended =
        |error: &dyn core::fmt::Display| JoinError::Unreachable(format!("the connection has ended: {error}"));
    let answer = sender.send_request(asked).await.map_err(|error| ended(&error))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
    Ok((status, body.map_err(|error| ended(&error))?.to_bytes()))
}

fn refusal(status: StatusCode, bytes: &[u8]) -> JoinError {
    match serde_json::from_slice::<Problem>(bytes) {
        Ok(problem) if status == StatusCode::SERVICE_UNAVAILABLE => JoinError::Unreachable(problem.detail),
        Ok(problem) => JoinError::Refused(problem.detail),
        Err(_) => JoinError::Unreachable(format!("it answers with status {status}")),
    }
}

fn connector(pinned: &Arc<Pinned>) -> Result<TlsConnector, Error> {
    let verifier: Arc<dyn ServerCertVerifier> = Arc::<Pinned>::clone(pinned);
    let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&pinned.provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Believes the authority whose certificate has this sum, which the manager shows, and nobody else.
#[derive(Debug)]
struct Pinned {
    sum: [u8; 32],
    provider: Arc<CryptoProvider>,
    found: Mutex<Option<CertificateDer<'static>>>,
}

impl Pinned {
    fn new(sum: [u8; 32]) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        Self { sum, provider, found: Mutex::new(None) }
    }

    /// The authority's certificate as PEM (RFC 7468).
    fn found(&self) -> Option<String> {
        let found = self.found.lock().ok()?.clone()?;
        let text = data_encoding::BASE64.encode(&found);
        let lines: Vec<&str> =
            text.as_bytes().chunks(64).filter_map(|it| core::str::from_utf8(it).ok()).collect();
        Some(format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n")))
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates.iter().find(|it| keys::sha256(it) == self.sum);
        let authority = authority.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider));
        let verifier = verifier.build().map_err(|error| Error::General(error.to_string()))?;
        let verified =
            verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        if let Ok(mut found) = self.found.lock() {
            *found = Some(authority.clone().into_owned());
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
