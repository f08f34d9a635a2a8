//! A node's connection to its manager: a thread that connects, proves who the node is, and connects again, for as long
//! as the node lives. The node itself waits for nothing: what it says is queued, what it hears it takes when
//! [`Session::as_fd`] is readable.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};

use futures_util::{SinkExt, StreamExt};
use manager::model::{FabricId, PublicKey};
use rustix::event::EventfdFlags;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::clock::wall;
use crate::keys::{self, NodeKey};
use crate::trust::trusting;
use crate::url::host_of;
use crate::wire::{FromNode, HEARTBEAT, MESSAGE_MAX, SILENT, ToNode, VERSION, proof_text};

/// How long connecting to one address of a manager may take, with TLS and proofs.
const PATIENCE: Duration = Duration::from_secs(5);
/// First pause before it is tried again; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(200);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// What waits in either direction at most.
const QUEUE: usize = 1024;

/// Whom a node belongs to, and how it shows that.
#[derive(Clone)]
pub struct Membership {
    /// The fabric.
    pub fabric: FabricId,
    /// URLs of its managers.
    pub urls: Vec<String>,
    /// The certificate that theirs lead to, PEM.
    pub authority: String,
    /// The manager's public key.
    pub manager: PublicKey,
    /// The node's pair of keys.
    pub pair: NodeKey,
    /// The version of its program.
    pub program: String,
    /// Its certificate, in base 32, as it is at the time of a connection.
    pub certificate: Arc<Mutex<String>>,
}

/// What a node hears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// There is a connection, over which nothing was said yet.
    Connected {
        /// To which manager.
        url: String,
    },
    /// The manager says this.
    Told(ToNode),
    /// There is no connection, and why; told once, until there is another reason.
    Lost {
        /// For people.
        why: String,
    },
}

/// The connection, from the node's side.
pub struct Session {
    say: mpsc::Sender<FromNode>,
    heard: Receiver<Heard>,
    wake: Arc<OwnedFd>,
}

impl Session {
    /// Begins to connect.
    ///
    /// # Errors
    /// The system has no thread or descriptor for it, or the authority is no certificate.
    pub fn start(membership: Membership) -> io::Result<Self> {
        let no_authority =
            || io::Error::new(io::ErrorKind::InvalidData, "the fabric's authority is no certificate");
        let tls = trusting(&membership.authority).ok_or_else(no_authority)?;
        let connector = TlsConnector::from(Arc::new(tls));
        let wake = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (say, said) = mpsc::channel(QUEUE);
        let (tell, heard) = sync_channel(QUEUE);
        let ear = Ear { tell, wake: Arc::clone(&wake), last: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let link = Link { membership, connector, ear, said };
        std::thread::Builder::new().name("manager".to_owned()).spawn(move || runtime.block_on(link.run()))?;
        Ok(Self { say, heard, wake })
    }

    /// Says something, if there is room for it: what gets lost is said again when the manager asks.
    pub fn say(&self, what: FromNode) -> bool {
        self.say.try_send(what).is_ok()
    }

    /// The next thing that was heard.
    pub fn take(&self) -> Option<Heard> {
        // It counts what was heard; what it says is looked up.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        match self.heard.try_recv() {
            Ok(heard) => {
                // There may be more.
                ring(&self.wake);
                Some(heard)
            }
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => None,
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

fn ring(wake: &OwnedFd) {
    // It only fails where it is readable already.
    let _ = rustix::io::write(wake, &1_u64.to_ne_bytes());
}

/// The node's ear.
struct Ear {
    tell: SyncSender<Heard>,
    wake: Arc<OwnedFd>,
    /// Why there was no connection last.
    last: Option<String>,
}

/// The node is there no more.
struct Gone;

impl Ear {
    /// Whether there was room for it.
    fn tell(&mut self, heard: Heard) -> Result<bool, Gone> {
        let sent = self.tell.try_send(heard);
        ring(&self.wake);
        match sent {
            Ok(()) => Ok(true),
            Err(TrySendError::Full(_)) => Ok(false),
            Err(TrySendError::Disconnected(_)) => Err(Gone),
        }
    }

    fn lost(&mut self, why: String) -> Result<(), Gone> {
        if self.last.as_ref() == Some(&why) {
            return Ok(());
        }
        self.last = Some(why.clone());
        self.tell(Heard::Lost { why }).map(|_| ())
    }
}

struct Link {
    membership: Membership,
    connector: TlsConnector,
    ear: Ear,
    said: mpsc::Receiver<FromNode>,
}

type Socket = WebSocketStream<TlsStream<TcpStream>>;

impl Link {
    async fn run(mut self) {
        let mut pause = PAUSE;
        loop {
            for url in self.membership.urls.clone() {
                let ended = match timeout(PATIENCE, self.connect(&url)).await {
                    Ok(Ok((socket, first))) => {
                        pause = PAUSE;
                        self.serve(&url, socket, first).await
                    }
                    Ok(Err(why)) => Ok(why),
                    Err(_) => Ok(format!("it did not answer within {} s", PATIENCE.as_secs())),
                };
                let Ok(why) = ended else { return };
                if self.ear.lost(format!("manager {url}: {why}")).is_err() {
                    return;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            // What was to be said over the last connection is not said over the next one.
            while self.said.try_recv().is_ok() {}
            if self.said.is_closed() {
                return;
            }
        }
    }

    /// A connection over which both know with whom they speak, and what the manager says first to a node that it takes:
    /// one that it refuses calls less and less often.
    async fn connect(&self, url: &str) -> Result<(Socket, ToNode), String> {
        let (host, port) = host_of(url).map_err(|error| error.to_string())?;
        let stream = TcpStream::connect((host.as_str(), port)).await;
        let stream = stream.map_err(|error| format!("it cannot be reached: {error}"))?;
        // A small message is not kept back for the next one; if it is, that costs time only.
        let _ = stream.set_nodelay(true);
        let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
        let stream = self.connector.connect(name, stream).await;
        let stream =
            stream.map_err(|error| format!("it does not show a certificate of this fabric: {error}"))?;
        let path = format!("{}/v1/agent", url.trim_end_matches('/').replacen("https://", "wss://", 1));
        let request = path.into_client_request().map_err(|error| error.to_string())?;
        let config =
            WebSocketConfig::default().max_message_size(Some(MESSAGE_MAX)).max_frame_size(Some(MESSAGE_MAX));
        let connected = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
        let (mut socket, _) = connected.map_err(|error| format!("it takes no connection: {error}"))?;
        let hello = self.hello(next(&mut socket).await?)?;
        send(&mut socket, &hello).await?;
        match next(&mut socket).await? {
            ToNode::Refused { why } => Err(why),
            first => Ok((socket, first)),
        }
    }

    fn hello(&self, first: ToNode) -> Result<FromNode, String> {
        let Membership { fabric: own, manager, pair, program, .. } = &self.membership;
        let (fabric, key, nonce) = match first {
            ToNode::Challenge { version: VERSION, fabric, key, nonce } => (fabric, key, nonce),
            ToNode::Challenge { version, .. } => {
                return Err(format!("it speaks version {version}, and this node version {VERSION}"));
            }
            ToNode::Refused { why } => return Err(why),
            _ => return Err("it does not begin as a manager does".to_owned()),
        };
        if fabric != *own || key != *manager {
            return Err(format!("it is the manager of another fabric, {fabric}"));
        }
        let node = pair.id();
        let shared = keys::shared(pair, key).map_err(|error| error.to_string())?;
        let proof = keys::prove(&shared, &proof_text(fabric, node, &nonce));
        let (now, program) = (wall(), program.clone());
        // Nobody panics who has it.
        let certificate = self.membership.certificate.lock().map(|it| it.clone()).unwrap_or_default();
        Ok(FromNode::Hello { version: VERSION, node, proof, now, program, certificate })
    }

    /// Speaks until the connection ends, and says why it did.
    async fn serve(&mut self, url: &str, mut socket: Socket, first: ToNode) -> Result<String, Gone> {
        self.ear.last = None;
        self.ear.tell(Heard::Connected { url: url.to_owned() })?;
        if let Err(why) = self.pass_on(first)? {
            return Ok(why);
        }
        let mut beat = interval(HEARTBEAT);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                said = self.said.recv() => {
                    let Some(said) = said else { return Err(Gone) };
                    if let Err(why) = send(&mut socket, &said).await {
                        return Ok(why);
                    }
                }
                message = socket.next() => {
                    heard = Instant::now();
                    match message {
                        None => return Ok("it has closed the connection".to_owned()),
                        Some(Err(error)) => return Ok(ended(&error)),
                        Some(Ok(Message::Text(text))) => {
                            let passed = match parse(&text) {
                                Ok(told) => self.pass_on(told)?,
                                Err(why) => Err(why),
                            };
                            if let Err(why) = passed {
                                return Ok(why);
                            }
                        }
                        Some(Ok(_)) => {}
                    }
                }
                _ = beat.tick() => {
                    if heard.elapsed() > SILENT {
                        return Ok(format!("it was not heard for {} s", SILENT.as_secs()));
                    }
                    if let Err(why) = timed(socket.send(Message::Ping(Vec::new().into()))).await {
                        return Ok(why);
                    }
                }
            }
        }
    }
}

impl Link {
    /// Passes on what the manager has said; or says why the connection ends.
    fn pass_on(&mut self, told: ToNode) -> Result<Result<(), String>, Gone> {
        if let ToNode::Refused { why } = told {
            return Ok(Err(why));
        }
        // What there is no room for is told anew over the next connection.
        let has_room = self.ear.tell(Heard::Told(told))?;
        Ok(if has_room { Ok(()) } else { Err("this node takes nothing".to_owned()) })
    }
}

/// What the manager has said, or why the connection ends.
fn parse(text: &str) -> Result<ToNode, String> {
    serde_json::from_str(text).map_err(|error| format!("it says what this version does not know: {error}"))
}

async fn next(socket: &mut Socket) -> Result<ToNode, String> {
    loop {
        match socket.next().await {
            None => return Err("it has closed the connection".to_owned()),
            Some(Err(error)) => return Err(ended(&error)),
            Some(Ok(Message::Text(text))) => return parse(&text),
            Some(Ok(_)) => {}
        }
    }
}

async fn send(socket: &mut Socket, what: &FromNode) -> Result<(), String> {
    let text = serde_json::to_string(what).map_err(|error| error.to_string())?;
    timed(socket.send(Message::Text(text.into()))).await
}

fn ended(error: &tungstenite::Error) -> String {
    match error {
        tungstenite::Error::Io(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
            "it has ended".to_owned()
        }
        error => format!("the connection has ended: {error}"),
    }
}

/// A manager that takes nothing is as good as none.
async fn timed<E: core::fmt::Display>(sending: impl Future<Output = Result<(), E>>) -> Result<(), String> {
    match timeout(SILENT, sending).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("the connection has ended: {error}")),
        Err(_) => Err(format!("it took nothing for {} s", SILENT.as_secs())),
    }
}
