//! A node's connection: `/v1/agent`, from the challenge to its end. What is said is in [`crate::wire`].

use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use base::ids::{BASE32, NodeId};
use futures_util::{SinkExt, StreamExt};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use link::Certificate;
use manager::model::{PublicKey, WallTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::create_response_with_body;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use super::App;
use super::core::{By, Quota, Wish};
use super::listen::Place;
use super::nodes::{Connection, OUTBOX};
use super::problem::{Failure, Kind};
use super::unproven::{Guest, Source};
use crate::authority::certificate::untimely;
use crate::keys::{is_proof, node_id, random, shared};
use crate::shapes::Problem;
use crate::wire::{self, FromNode, HEARTBEAT, MESSAGE_MAX, SILENT, ToNode, proof_text};

/// How long a node takes at most to say who it is.
const HELLO: Duration = Duration::from_secs(10);
/// Bytes that are taken of a connection before it has proven to be a node's; a hello has some 300.
const UNPROVEN_BYTES: usize = 4096;
/// Bytes that are read at once.
const READ: usize = 16 << 10;
/// By how much clocks may differ before people are told.
pub(super) const CLOCKS_DIFFER_MS: u64 = 60_000;
/// Characters of a version.
const VERSION_MAX: usize = 64;

/// A number for each connection of this process.
static NUMBER: AtomicU64 = AtomicU64::new(1);

/// Takes the connection of a node.
#[utoipa::path(get, path = "/v1/agent", tag = "nodes", responses(
    (status = 101, description = "A WebSocket: docs/manager.md says what a node and the manager say to each other"),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
), security(()))]
pub(super) async fn agent(
    State(app): State<Arc<App>>,
    axum::Extension(place): axum::Extension<Place>,
    axum::Extension(source): axum::Extension<Source>,
    request: Request,
) -> Result<Response, Failure> {
    let busy = || Failure::new(Kind::Busy, "too many nodes have yet to prove who they are: try again");
    let guest = app.unproven.enter(source).ok_or_else(busy)?;
    let (head, _) = request.into_parts();
    let mut request = hyper::Request::from_parts(head, ());
    let response = create_response_with_body(&request, Body::empty);
    let response = response.map_err(|error| Failure::malformed(format!("this is a WebSocket: {error}")))?;
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let io = Metered { io: TokioIo::new(upgraded), left: Some(UNPROVEN_BYTES) };
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_MAX))
            .max_frame_size(Some(MESSAGE_MAX))
            .read_buffer_size(READ);
        let mut line = Line(WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await);
        if let Err(Some(why)) = talk(&app, &mut line, guest).await {
            // It may be gone already.
            let _ = line.say(&ToNode::Refused { why }).await;
        }
        let _ = timeout(SILENT, line.0.send(Message::Close(None))).await;
        drop(place);
    });
    Ok(response)
}

/// A connection of which so many bytes are read, and then no more until somebody says so.
struct Metered<S> {
    io: S,
    /// How many; `None`: all there are.
    left: Option<usize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == Some(0) {
            return Poll::Ready(Err(io::ErrorKind::QuotaExceeded.into()));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        let len = into.filled().len() - before;
        self.left = self.left.map(|left| left.saturating_sub(len));
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// Why a connection ends: with a word to the node, or without one, for it is gone.
type Ends = Option<String>;

/// Who has said hello, and has proven it.
struct Hello {
    node: NodeId,
    key: PublicKey,
    program: String,
    clock: Option<String>,
    /// By which a manager that was restored knows it, or how long it has belonged to the fabric.
    certificate: Option<Certificate>,
}

async fn talk(app: &App, line: &mut Line, guest: Guest) -> Result<(), Ends> {
    let greeted = timeout(HELLO, greet(app, line)).await;
    let hello = greeted.map_err(|_| Some("no hello came in time".to_owned()))??;
    line.0.get_mut().left = None;
    let from = guest.source();
    drop(guest);
    let (number, node) = (NUMBER.fetch_add(1, Ordering::Relaxed), hello.node);
    let (outbox, mut inbox) = mpsc::channel(OUTBOX);
    let Hello { program, clock, certificate, .. } = hello;
    let connection = Connection { number, outbox, from, since: Instant::now(), program, clock, certificate };
    if !app.core.connected(node, hello.key, connection).await {
        return Err(Some("the manager ends".to_owned()));
    }
    let result = exchange(app, line, node, number, &mut inbox).await;
    app.core.closed(node, number).await;
    result
}

/// Asks who it is, and has it proven.
async fn greet(app: &App, line: &mut Line) -> Result<Hello, Ends> {
    let nonce = random();
    let (version, fabric, key) = (wire::VERSION, app.fabric, crate::keys::public(&app.key));
    line.say(&ToNode::Challenge { version, fabric, key, nonce }).await?;
    let heard = line.hear().await;
    let heard = heard.map_err(|ends| line.is_spent().then(|| MUCH.to_owned()).or(ends))?;
    let Some(FromNode::Hello { version, node, proof, now, program, certificate }) = heard else {
        return Err(Some("a node says hello first".to_owned()));
    };
    if version != wire::VERSION {
        let ours = wire::VERSION;
        let why = format!("the node speaks version {version}, and the manager {ours}: use equal programs");
        return Err(Some(why));
    }
    // That a node is unknown, and that its proof is wrong, it hears in the same words: strangers learn nothing.
    let unproven =
        || Some("the node does not belong to this fabric, or not with this key: let it join".to_owned());
    let look = move |view: &super::core::View<'_>| {
        let known = view.state().node(node).map(|node| (node.key, node.is_joined()));
        let restore = view.state().restore().filter(|restore| restore.is_closed);
        Ok((known, restore.map(|restore| restore.any_time)))
    };
    let (known, restored) = app
        .core
        .of_nodes()
        .look(look)
        .await
        .map_err(|_| Some("the manager cannot look at present".to_owned()))?;
    // What a manager that was restored or rebuilt does not know, the certificate of the node says.
    let certified = || {
        let bytes = BASE32.decode(certificate.as_bytes()).ok()?;
        let certificate = app.authority.read(&bytes)?;
        let key = PublicKey(certificate.key.0);
        (node_id(key) == node).then_some((key, certificate))
    };
    let certified = restored.and_then(|_| certified());
    let key = known.map(|(key, _)| key).or(certified.as_ref().map(|(key, _)| *key)).ok_or_else(unproven)?;
    let secret = shared(&app.key, key).map_err(|_| unproven())?;
    if !is_proof(&secret, &proof_text(app.fabric, node, &nonce), &proof) {
        return Err(unproven());
    }
    if known.is_some_and(|(_, is_joined)| !is_joined) {
        let wish = Wish { by: By::Key(node), what: "connect".to_owned() };
        app.core.refused(wish, "it was removed from the fabric".to_owned()).await;
        return Err(unproven());
    }
    let certificate = certified.map(|(_, certificate)| certificate);
    let faulty = certificate.as_ref().and_then(|it| untimely(it, crate::clock::wall()));
    if let Some(times) = faulty.filter(|_| known.is_none() && restored != Some(true)) {
        let why = format!(
            "its certificate {times} by the manager's clock, so this manager, which was restored or rebuilt, does not \
             know that it belongs to the fabric: set the manager's clock if that is wrong, else begin once more with \
             `causeway manager rebuild --any-time`"
        );
        let wish = Wish { by: By::Key(node), what: "connect".to_owned() };
        app.core.refused(wish, why.clone()).await;
        return Err(Some(why));
    }
    let program = program.chars().take(VERSION_MAX).collect();
    Ok(Hello { node, key, program, clock: clocks_differ(now), certificate })
}

/// What is said of clocks that differ.
pub(super) fn clocks_differ(theirs: WallTime) -> Option<String> {
    let ours = crate::clock::wall();
    (ours.0.abs_diff(theirs.0) > CLOCKS_DIFFER_MS)
        .then(|| format!("its clock says {theirs}, and the manager's {ours}: set the one that is wrong"))
}

/// Both say what they have to, until one of them ends it.
async fn exchange(
    app: &App,
    line: &mut Line,
    node: NodeId,
    number: u64,
    inbox: &mut mpsc::Receiver<ToNode>,
) -> Result<(), Ends> {
    let mut ending = app.ending.clone();
    let mut beat = interval(HEARTBEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent_at = Instant::now() + SILENT;
    let quota = Quota::new();
    loop {
        tokio::select! {
            () = ending.wait() => return Err(Some("the manager ends".to_owned())),
            () = sleep_until(silent_at) => return Err(None),
            _ = beat.tick() => line.send(Message::Ping(Vec::new().into())).await?,
            message = inbox.recv() => match message {
                Some(message) => line.say(&message).await?,
                // The core has closed this connection.
                None => return Err(None),
            },
            heard = line.next() => {
                if let Some(said) = heard?
                    && !app.core.said(&quota, node, number, said).await
                {
                    return Err(Some("the manager ends".to_owned()));
                }
                // After it was handed on: the time that the core took is not the node's.
                silent_at = Instant::now() + SILENT;
            }
        }
    }
}

/// A WebSocket of which each text is a message.
struct Line(WebSocketStream<Metered<TokioIo<Upgraded>>>);

/// What somebody hears who says more than a hello before it.
const MUCH: &str = "a node says hello first, and no more than that";

impl Line {
    /// Whether all is read that may be, as yet.
    fn is_spent(&self) -> bool {
        self.0.get_ref().left == Some(0)
    }

    async fn say(&mut self, message: &ToNode) -> Result<(), Ends> {
        // Types of these crates have string keys only and no errors of their own.
        let text = serde_json::to_string(message).map_err(|_| None)?;
        self.send(Message::Text(text.into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Ends> {
        match timeout(SILENT, self.0.send(message)).await {
            Ok(Ok(())) => Ok(()),
            // It takes nothing, or is gone.
            Ok(Err(_)) | Err(_) => Err(None),
        }
    }

    /// The next message that is none of the WebSocket's own.
    async fn hear(&mut self) -> Result<Option<FromNode>, Ends> {
        loop {
            if let Some(said) = self.next().await? {
                return Ok(Some(said));
            }
        }
    }

    /// What comes next. `None`: a sign of life only.
    async fn next(&mut self) -> Result<Option<FromNode>, Ends> {
        match self.0.next().await {
            Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                Ok(said) => Ok(Some(said)),
                Err(error) => Err(Some(format!("the message is none that a manager knows: {error}"))),
            },
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(None),
            Some(Ok(Message::Binary(_))) => Err(Some("messages are texts".to_owned())),
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(None),
        }
    }
}
