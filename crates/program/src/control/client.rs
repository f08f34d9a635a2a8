//! The asking side: finds running nodes, and asks one of them.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{ControlError, RESPONSE_BYTES_MAX, Request, Response, UNKNOWN, io_error, place};
use crate::cli::NodeName;

/// How long a node may take to answer: its loop comes by many times a second.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a node on this machine.
#[derive(Debug)]
pub struct ControlClient {
    name: String,
    /// Who serves the socket, where the kernel tells.
    pid: Option<u32>,
    stream: BufReader<UnixStream>,
}

impl ControlClient {
    /// Connects to the socket at `path`. Nobody listening there is [`ControlError::NotRunning`].
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let name = name_of(path);
        let stream = match UnixStream::connect(path) {
            Ok(stream) => stream,
            Err(error) if is_dead(&error) => {
                return Err(ControlError::NotRunning { name, running: Vec::new() });
            }
            Err(error) => return Err(io_error("connect to", path)(error)),
        };
        let limited = stream.set_read_timeout(Some(TIMEOUT)).and(stream.set_write_timeout(Some(TIMEOUT)));
        limited.map_err(io_error("set a time limit on", path))?;
        let credentials = rustix::net::sockopt::socket_peercred(&stream).ok();
        let pid = credentials.and_then(|peer| u32::try_from(peer.pid.as_raw_nonzero().get()).ok());
        Ok(Self { name, pid, stream: BufReader::new(stream) })
    }

    /// Asks, and waits for the answer; a few seconds at most for each piece of it.
    pub fn call(&mut self, request: &Request) -> Result<Response, ControlError> {
        self.ask(request)?;
        self.answer()
    }

    /// Asks; [`ControlClient::answer`] follows.
    pub fn ask(&mut self, request: &Request) -> Result<(), ControlError> {
        let mut line =
            serde_json::to_vec(request).expect("requests are plain structs, which always serialise");
        line.push(b'\n');
        self.stream.get_mut().write_all(&line).map_err(|error| self.silent(error))
    }

    /// Waits for an answer, or for another one where there are several.
    pub fn answer(&mut self) -> Result<Response, ControlError> {
        let mut answer = Vec::new();
        let limit = RESPONSE_BYTES_MAX as u64 + 1;
        let read = self.stream.by_ref().take(limit).read_until(b'\n', &mut answer);
        read.map_err(|error| self.silent(error))?;
        let name = self.name.clone();
        match answer.last() {
            Some(b'\n') => match serde_json::from_slice(&answer) {
                Ok(Response::Refused { why }) if why.starts_with(UNKNOWN) => {
                    Err(ControlError::Older { name })
                }
                Ok(response) => Ok(response),
                Err(error) => Err(ControlError::Answer { name, why: error.to_string() }),
            },
            Some(_) if answer.len() as u64 == limit => {
                Err(ControlError::Answer { name, why: "endless".to_owned() })
            }
            _ => Err(self.silent(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Whether part of an answer has been read already: then the descriptor says nothing of it.
    pub fn has_begun(&self) -> bool {
        !self.stream.buffer().is_empty()
    }

    /// The node's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn silent(&self, error: io::Error) -> ControlError {
        let name = self.name.clone();
        match self.pid.filter(|pid| is_stopped(*pid)) {
            Some(pid) => ControlError::Stopped { name, pid },
            None => ControlError::Silent { name, error },
        }
    }
}

impl AsFd for ControlClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
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

/// Connects to the node of that name, or to the only one that runs.
pub fn find(folder: &Path, name: Option<&NodeName>) -> Result<ControlClient, ControlError> {
    let names = |nodes: &[(String, PathBuf)]| nodes.iter().map(|(name, _)| name.clone()).collect();
    let nodes = running(folder)?;
    if let Some(name) = name {
        return match nodes.iter().find(|(running, _)| running == name.as_str()) {
            Some((_, path)) => ControlClient::connect(path),
            None => Err(ControlError::NotRunning { name: name.to_string(), running: names(&nodes) }),
        };
    }
    match nodes.as_slice() {
        [] => Err(ControlError::NoneRunning { folder: folder.to_owned() }),
        [(_, path)] => ControlClient::connect(path),
        _ => Err(ControlError::Several { running: names(&nodes) }),
    }
}

/// A socket nobody listens at any more, or that is gone.
fn is_dead(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
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
