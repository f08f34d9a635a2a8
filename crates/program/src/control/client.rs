//! The asking side: finds running nodes, and asks one of them.

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Method, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::socket_peercred;
use tokio::time::timeout;

use super::capture::{self, CaptureOrder, Item};
use super::{ControlError, RESPONSE_BYTES_MAX, Request, Response, io_error, place};
use crate::cli::NodeName;
use crate::events::Record;

/// How long a node may take to answer: its loop comes by many times a second.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// Asks a node on this machine. Each question has a connection of its own.
#[derive(Debug, Clone)]
pub struct ControlClient {
    path: PathBuf,
}

impl ControlClient {
    /// Asks at the socket at `path`.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// The node's name.
    pub fn name(&self) -> String {
        name_of(&self.path)
    }

    /// Asks, and waits for the answer; a few seconds at most for each piece of it. Nobody listening at the socket is
    /// [`ControlError::NotRunning`].
    pub fn call(&self, request: &Request) -> Result<Response, ControlError> {
        let body = serde_json::to_vec(request).expect("requests are plain structs, which always serialise");
        self.run(async { self.ask(Method::POST, "/request", body).await?.response().await })
    }

    /// Asks what has happened; who `follows` hears what happens, too. For [`ControlClient::run`].
    pub async fn events(&self, follows: bool) -> Result<Events, ControlError> {
        let what = if follows { "/events?follow=true" } else { "/events" };
        let mut answer = self.ask(Method::GET, what, Vec::new()).await?;
        if answer.status == StatusCode::OK {
            if follows {
                answer.patience = Duration::MAX;
            }
            return Ok(Events { answer, input: Vec::new(), follows });
        }
        match answer.response().await? {
            Response::Refused { why } => Err(ControlError::Refused { why }),
            _ => Err(self.nonsense("no events")),
        }
    }

    /// Begins a capture. For [`ControlClient::run`].
    pub async fn capture(&self, order: &CaptureOrder) -> Result<CaptureItems, ControlError> {
        let body = serde_json::to_vec(order).expect("orders are plain structs, which always serialise");
        let mut answer = self.ask(Method::POST, "/capture", body).await?;
        if answer.status == StatusCode::OK {
            answer.patience = Duration::MAX;
            return Ok(CaptureItems { answer, input: Vec::new() });
        }
        match answer.response().await? {
            Response::Refused { why } => Err(ControlError::Refused { why }),
            _ => Err(self.nonsense("no capture")),
        }
    }

    /// Runs what asks this node, and waits for it.
    pub fn run<T, E: From<ControlError>>(&self, asks: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // Connections end with it.
        runtime.map_err(io_error("ask at", &self.path))?.block_on(asks)
    }

    async fn ask(&self, method: Method, what: &str, body: Vec<u8>) -> Result<Answer, ControlError> {
        let stream = match tokio::net::UnixStream::connect(&self.path).await {
            Err(error) if is_dead(&error) => {
                return Err(ControlError::NotRunning { name: self.name(), running: Vec::new() });
            }
            connected => connected.map_err(io_error("connect to", &self.path))?,
        };
        let request = hyper::Request::builder().method(method).uri(what).header(header::HOST, "localhost");
        let request = request.body(Full::new(Bytes::from(body))).expect("each part is ours, and valid");
        let exchange = async {
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
            // What becomes of it the answer tells.
            drop(tokio::spawn(connection));
            sender.send_request(request).await
        };
        let (head, body) = self.in_time(TIMEOUT, exchange).await?.into_parts();
        match head.status {
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
                Err(ControlError::Older { name: self.name() })
            }
            StatusCode::GONE => Err(ControlError::Ended { name: self.name() }),
            status => Ok(Answer { client: self.clone(), status, body, patience: TIMEOUT }),
        }
    }

    /// What comes of an exchange with the node, which may take so long.
    async fn in_time<T>(
        &self,
        patience: Duration,
        exchange: impl Future<Output = Result<T, hyper::Error>>,
    ) -> Result<T, ControlError> {
        match timeout(patience, exchange).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) if error.is_parse() => Err(self.nonsense(error)),
            Ok(Err(error)) => {
                let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
                Err(self.silent(cause.map_or(io::ErrorKind::UnexpectedEof, io::Error::kind)))
            }
            Err(_) => Err(self.silent(io::ErrorKind::TimedOut)),
        }
    }

    fn silent(&self, error: io::ErrorKind) -> ControlError {
        // The kernel tells who serves the socket, also of a process that is stopped.
        let peer = UnixStream::connect(&self.path).ok().and_then(|stream| socket_peercred(&stream).ok());
        let pid = peer.and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
        match pid.filter(|pid| is_stopped(*pid)) {
            Some(pid) => ControlError::Stopped { name: self.name(), pid },
            None => ControlError::Silent { name: self.name(), error: error.into() },
        }
    }

    fn nonsense(&self, why: impl ToString) -> ControlError {
        ControlError::Answer { name: self.name(), why: why.to_string() }
    }

    fn check_length(&self, text: &[u8]) -> Result<(), ControlError> {
        if text.len() > RESPONSE_BYTES_MAX { Err(self.nonsense("endless")) } else { Ok(()) }
    }
}

/// What a node has answered: the head is there, the rest may come.
struct Answer {
    client: ControlClient,
    status: StatusCode,
    body: Incoming,
    /// For a piece of it.
    patience: Duration,
}

impl Answer {
    /// The next piece of it; `None` behind the last.
    async fn piece(&mut self) -> Result<Option<Bytes>, ControlError> {
        let frame = async { self.body.frame().await.transpose() };
        let frame = self.client.in_time(self.patience, frame).await?;
        Ok(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    async fn response(mut self) -> Result<Response, ControlError> {
        let mut text = Vec::new();
        while let Some(piece) = self.piece().await? {
            text.extend_from_slice(&piece);
            self.client.check_length(&text)?;
        }
        serde_json::from_slice(&text).map_err(|error| self.client.nonsense(error))
    }
}

/// What has happened in a node, as it says it.
pub struct Events {
    answer: Answer,
    /// Of lines that were not taken yet.
    input: Vec<u8>,
    follows: bool,
}

impl Events {
    /// The next one; `None` after the last. For who follows there is no last one, but the end of the node. Whoever
    /// stops waiting for it loses nothing.
    pub async fn next(&mut self) -> Result<Option<Record>, ControlError> {
        loop {
            let client = &self.answer.client;
            if let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.input.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(|error| client.nonsense(error));
            }
            client.check_length(&self.input)?;
            match self.answer.piece().await {
                Ok(Some(piece)) => self.input.extend_from_slice(&piece),
                Ok(None) if !self.follows => return Ok(None),
                Ok(None) => return Err(ControlError::Ended { name: self.answer.client.name() }),
                Err(ControlError::Silent { name, error }) if self.follows && is_end(&error) => {
                    return Err(ControlError::Ended { name });
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// What is captured at a node, as it sends that.
pub struct CaptureItems {
    answer: Answer,
    /// Of an item that is not complete.
    input: Vec<u8>,
}

impl CaptureItems {
    /// What has come, at least one item. There is no last one, but the end of the node. Whoever stops waiting loses
    /// nothing.
    pub async fn next(&mut self) -> Result<Vec<Item>, ControlError> {
        let mut items = Vec::new();
        while items.is_empty() {
            let piece = match self.answer.piece().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Err(ControlError::Ended { name: self.answer.client.name() }),
                Err(ControlError::Silent { name, error }) if is_end(&error) => {
                    return Err(ControlError::Ended { name });
                }
                Err(error) => return Err(error),
            };
            self.input.extend_from_slice(&piece);
            let mut rest = &self.input[..];
            let mut next = || capture::take(&mut rest).map_err(|_| self.answer.client.nonsense("no frames"));
            while let Some(item) = next()? {
                items.push(item);
            }
            let taken = self.input.len() - rest.len();
            self.input.drain(..taken);
        }
        Ok(items)
    }
}

/// The names and sockets of the nodes that run in a folder, in order of their names.
pub fn running(folder: &Path) -> Result<Vec<(String, PathBuf)>, ControlError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io_error("look into", folder)(error)),
    };
    place::check_private(folder)?;
    let sockets = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let sockets = sockets.filter(|path| path.extension().is_some_and(|ending| ending == "sock"));
    let mut nodes: Vec<(String, PathBuf)> = sockets
        // Whatever answers with anything but "nobody" is a node, be it one in trouble.
        .filter(|path| !UnixStream::connect(path).is_err_and(|error| is_dead(&error)))
        .map(|path| (name_of(&path), path))
        .collect();
    nodes.sort();
    Ok(nodes)
}

/// Finds the node of that name, or the only one that runs.
pub fn find(folder: &Path, name: Option<&NodeName>) -> Result<ControlClient, ControlError> {
    let names = |nodes: &[(String, PathBuf)]| nodes.iter().map(|(name, _)| name.clone()).collect();
    let nodes = running(folder)?;
    if let Some(name) = name {
        return match nodes.iter().find(|(running, _)| running == name.as_str()) {
            Some((_, path)) => Ok(ControlClient::new(path)),
            None => Err(ControlError::NotRunning { name: name.to_string(), running: names(&nodes) }),
        };
    }
    match nodes.as_slice() {
        [] => Err(ControlError::NoneRunning { folder: folder.to_owned() }),
        [(_, path)] => Ok(ControlClient::new(path)),
        _ => Err(ControlError::Several { running: names(&nodes) }),
    }
}

/// A socket nobody listens at any more, or that is gone.
fn is_dead(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

/// The node has closed the connection.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// Whether a process is stopped, by a signal or a debugger (proc_pid_stat(5), the third field; the second may hold
/// anything but ends at the last bracket).
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['T', 't']))
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
