//! The answering side, for a loop that must never wait.
//!
//! All descriptors hang in one epoll instance, which is what the node's loop watches ([`ControlServer::as_fd`]);
//! when it is readable, [`ControlServer::turn`] does a bounded piece of work. A client that does not read gets
//! nothing more until it does; a client too many takes the place of the one that was silent longest.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{Timespec, epoll};

use super::client::name_of;
use super::{ControlError, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, Request, Response, io_error, place};

/// Most clients at a time.
pub const CLIENTS_MAX: usize = 16;
/// The listener's mark in the epoll instance; clients have theirs from 1 on.
const LISTENER: u64 = 0;
const EVENTS_A_TURN: usize = CLIENTS_MAX + 1;
const ACCEPTS_A_TURN: usize = 4;

/// A node's control socket.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    listener: UnixListener,
    epoll: OwnedFd,
    clients: Vec<Client>,
    /// The mark of the client that comes next, never used twice: a late event meets nobody instead of another.
    mark_next: u64,
    turn: u64,
    /// Held, never read: says that the node of this name lives.
    _lock: File,
}

impl ControlServer {
    /// Listens at `path`, whose folder it makes and keeps private.
    ///
    /// A socket left by a dead node is replaced; that of a living one is [`ControlError::InUse`]. What tells them
    /// apart is the lock on `NAME.lock` beside it, so that two nodes starting at once cannot both win.
    pub fn new(path: &Path) -> Result<Self, ControlError> {
        place::prepare(path)?;
        let lock = take_lock(path)?;
        remove_dead_socket(path)?;
        let listener = UnixListener::bind(path).map_err(io_error("listen at", path))?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(io_error("protect", path))?;
        listener.set_nonblocking(true).map_err(io_error("listen at", path))?;
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|watch| {
            epoll::add(&watch, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
            Ok(watch)
        });
        let epoll = watched.map_err(|errno| io_error("watch", path)(errno.into()))?;
        let (clients, path) = (Vec::with_capacity(CLIENTS_MAX), path.to_owned());
        Ok(Self { path, listener, epoll, clients, mark_next: LISTENER + 1, turn: 0, _lock: lock })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Readable when [`ControlServer::turn`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does what can be done without waiting: accepts, reads, has `handle` answer, writes. What one client does
    /// ends at worst that client.
    pub fn turn(&mut self, handle: &mut dyn FnMut(Request) -> Response) {
        self.turn += 1;
        for mark in self.ready() {
            if mark == LISTENER {
                self.accept();
            } else {
                self.serve(mark, handle);
            }
        }
    }

    fn ready(&self) -> Vec<u64> {
        let mut events = Vec::with_capacity(EVENTS_A_TURN);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted wait is an empty one: whatever is ready stays so.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&at_once));
        events.iter().map(|event: &epoll::Event| event.data.u64()).collect()
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_A_TURN {
            let Ok((stream, _)) = self.listener.accept() else { return };
            if self.clients.len() == CLIENTS_MAX {
                self.drop_most_silent();
            }
            let mark = self.mark_next;
            self.mark_next += 1;
            let data = epoll::EventData::new_u64(mark);
            let watched = stream.set_nonblocking(true).is_ok()
                && epoll::add(&self.epoll, &stream, data, epoll::EventFlags::IN).is_ok();
            if watched {
                let (input, output) = (Vec::new(), Vec::new());
                self.clients.push(Client { mark, stream, input, output, sent: 0, last_turn: self.turn });
            }
        }
    }

    fn drop_most_silent(&mut self) {
        let most_silent = (0..self.clients.len()).min_by_key(|&at| self.clients[at].last_turn);
        if let Some(at) = most_silent {
            // Closing the stream takes it out of the epoll instance, too.
            self.clients.swap_remove(at);
        }
    }

    fn serve(&mut self, mark: u64, handle: &mut dyn FnMut(Request) -> Response) {
        let Some(at) = self.clients.iter().position(|client| client.mark == mark) else { return };
        let client = &mut self.clients[at];
        client.last_turn = self.turn;
        let goes_on = client.turn(handle).and_then(|()| {
            let flags = if client.output.is_empty() { epoll::EventFlags::IN } else { epoll::EventFlags::OUT };
            epoll::modify(&self.epoll, &client.stream, epoll::EventData::new_u64(mark), flags)
                .map_err(|_| Gone)
        });
        if goes_on.is_err() {
            self.clients.swap_remove(at);
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // The lock is still held, so this is our own socket. If it fails, the next start removes it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The client is gone, or is to go.
#[derive(Debug)]
struct Gone;

#[derive(Debug)]
struct Client {
    mark: u64,
    stream: UnixStream,
    /// The beginning of a request, at most [`REQUEST_BYTES_MAX`] and what one read adds.
    input: Vec<u8>,
    /// Answers, of which `sent` bytes are on their way.
    output: Vec<u8>,
    sent: usize,
    last_turn: u64,
}

impl Client {
    fn turn(&mut self, handle: &mut dyn FnMut(Request) -> Response) -> Result<(), Gone> {
        self.write()?;
        self.answer_lines(handle)?;
        if self.output.is_empty() {
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Gone),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) => still_there(&error)?,
            }
            self.answer_lines(handle)?;
        }
        Ok(())
    }

    /// Answers the whole lines of the input, as long as the client takes the answers.
    fn answer_lines(&mut self, handle: &mut dyn FnMut(Request) -> Response) -> Result<(), Gone> {
        while self.output.is_empty() {
            let Some(end) = self.input.iter().position(|&byte| byte == b'\n') else { break };
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let response = match serde_json::from_slice::<Request>(&line) {
                Ok(request) => handle(request),
                Err(error) => Response::Refused { why: format!("no request: {error}") },
            };
            self.output = encoded(&response);
            self.write()?;
        }
        let unfinished_is_too_long =
            self.input.len() > REQUEST_BYTES_MAX && !self.input[..=REQUEST_BYTES_MAX].contains(&b'\n');
        if unfinished_is_too_long { Err(Gone) } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), Gone> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) => return still_there(&error),
            }
        }
        self.output = Vec::new();
        self.sent = 0;
        Ok(())
    }
}

fn still_there(error: &io::Error) -> Result<(), Gone> {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
        _ => Err(Gone),
    }
}

fn encoded(response: &Response) -> Vec<u8> {
    let refused = |why: String| {
        serde_json::to_vec(&Response::Refused { why }).expect("a text always serialises, without map keys")
    };
    let mut line = match serde_json::to_vec(response) {
        Ok(line) if line.len() < RESPONSE_BYTES_MAX => line,
        Ok(line) => refused(format!("the answer has {} bytes, too many to send", line.len())),
        Err(error) => refused(format!("the answer cannot be written: {error}")),
    };
    line.push(b'\n');
    line
}

fn take_lock(socket: &Path) -> Result<File, ControlError> {
    let path = socket.with_extension("lock");
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut lock = open.map_err(io_error("open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = lock.take(16).read_to_string(&mut text);
            let pid = read.ok().and_then(|_| text.trim_end().parse().ok());
            return Err(ControlError::InUse { name: name_of(socket), pid });
        }
        Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
    }
    // Only for the message of whoever is refused.
    let pid = format!("{}\n", std::process::id());
    let written = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(pid.as_bytes()));
    written.map_err(io_error("write", &path))?;
    Ok(lock)
}

/// With the lock held nobody of ours listens. Somebody else might: refuse what answers.
fn remove_dead_socket(path: &Path) -> Result<(), ControlError> {
    match UnixStream::connect(path) {
        Ok(_) => Err(ControlError::InUse { name: name_of(path), pid: None }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => fs::remove_file(path).map_err(io_error("replace", path)),
    }
}
