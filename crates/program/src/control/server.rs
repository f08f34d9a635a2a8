//! The answering side, for a loop that must never wait.
//!
//! All descriptors hang in one epoll instance, which is what the node's loop watches ([`ControlServer::as_fd`]);
//! when it is readable, [`ControlServer::turn`] does a bounded piece of work. A client that does not read gets
//! nothing more until it does; a client too many takes the place of the one that was silent longest, unless that one
//! follows events, which is silence.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{Timespec, epoll};

use super::client::name_of;
use super::{
    ControlError, REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, Request, Response, UNKNOWN, io_error, place,
};
use crate::events::Recent;

/// Most clients at a time.
pub const CLIENTS_MAX: usize = 16;
/// Most clients among them that follow events, so that others always find a place.
pub const FOLLOWERS_MAX: usize = 8;
/// Most events of one answer.
const EVENTS_AN_ANSWER: usize = 32;
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
    /// What the node has said.
    recent: Recent,
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
        let recent = Recent::of_process();
        Ok(Self { path, listener, epoll, clients, mark_next: LISTENER + 1, turn: 0, recent, _lock: lock })
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
        self.publish();
    }

    /// Sends to followers what has been said since, as far as they read.
    pub fn publish(&mut self) {
        let newest = self.recent.lock().newest();
        // Those that are swapped to where one has gone were looked at already.
        for at in (0..self.clients.len()).rev() {
            if self.clients[at].lacks(newest) {
                let goes_on = self.clients[at].read_on(&self.recent);
                self.settle(at, goes_on);
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
                let last_turn = self.turn;
                self.clients.push(Client { mark, stream, input, output, sent: 0, reader: None, last_turn });
            }
        }
    }

    fn drop_most_silent(&mut self) {
        let others = (0..self.clients.len()).filter(|&at| !self.clients[at].follows());
        let most_silent = others.min_by_key(|&at| self.clients[at].last_turn);
        if let Some(at) = most_silent {
            // Closing the stream takes it out of the epoll instance, too.
            self.clients.swap_remove(at);
        }
    }

    fn serve(&mut self, mark: u64, handle: &mut dyn FnMut(Request) -> Response) {
        let Some(at) = self.clients.iter().position(|client| client.mark == mark) else { return };
        let may_follow = self.clients.iter().filter(|client| client.follows()).count() < FOLLOWERS_MAX;
        let recent = self.recent.clone();
        let client = &mut self.clients[at];
        client.last_turn = self.turn;
        let mut handle = |request, reader: &mut Option<Reader>| match request {
            Request::Events { follow: true } if !may_follow => Some(Response::Refused {
                why: format!(
                    "{FOLLOWERS_MAX} programs follow the events of this node already; end one of them"
                ),
            }),
            Request::Events { follow } => {
                let ring = recent.lock();
                *reader = Some(Reader { next: ring.oldest(), last: (!follow).then(|| ring.newest()) });
                None
            }
            request => Some(handle(request)),
        };
        let goes_on = client.turn(&mut handle, &self.recent);
        self.settle(at, goes_on);
    }

    /// Waits for what the client does next, or does without it.
    fn settle(&mut self, at: usize, goes_on: Result<(), Gone>) {
        let client = &self.clients[at];
        let watched = goes_on.and_then(|()| {
            let flags = if client.output.is_empty() { epoll::EventFlags::IN } else { epoll::EventFlags::OUT };
            epoll::modify(&self.epoll, &client.stream, epoll::EventData::new_u64(client.mark), flags)
                .map_err(|_| Gone)
        });
        if watched.is_err() {
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
    /// The beginning of a request, or what waits behind one, at most [`REQUEST_BYTES_MAX`] and what one read adds.
    input: Vec<u8>,
    /// Answers, of which `sent` bytes are on their way.
    output: Vec<u8>,
    sent: usize,
    /// It is being answered with events.
    reader: Option<Reader>,
    last_turn: u64,
}

/// How far a client has read events.
#[derive(Debug, Clone, Copy)]
struct Reader {
    /// The number of the next one.
    next: u64,
    /// That of the last one it wants; `None`: all that come.
    last: Option<u64>,
}

/// Answers a request, or has it answered with events.
type Handle<'a> = dyn FnMut(Request, &mut Option<Reader>) -> Option<Response> + 'a;

impl Client {
    /// Whether it gets events as they come.
    fn follows(&self) -> bool {
        self.reader.is_some_and(|reader| reader.last.is_none())
    }

    /// Whether it follows, and has taken all but the newest.
    fn lacks(&self, newest: u64) -> bool {
        self.output.is_empty() && self.follows() && self.reader.is_some_and(|reader| reader.next <= newest)
    }

    /// Sends events as long as it takes them.
    fn read_on(&mut self, recent: &Recent) -> Result<(), Gone> {
        while let Some(reader) = self.reader.filter(|_| self.output.is_empty()) {
            let wanted = reader.last.map_or(u64::MAX, |last| (last + 1).saturating_sub(reader.next));
            let most = usize::try_from(wanted).unwrap_or(usize::MAX).min(EVENTS_AN_ANSWER);
            let (next, events) = recent.lock().read(reader.next, most);
            let answer = match (events.is_empty(), reader.last) {
                (true, None) => return Ok(()),
                (true, Some(_)) => {
                    self.reader = None;
                    Response::Done
                }
                (false, _) => {
                    self.reader = Some(Reader { next, ..reader });
                    Response::Events { events }
                }
            };
            self.output = encoded(&answer);
            self.write()?;
        }
        Ok(())
    }

    fn turn(&mut self, handle: &mut Handle<'_>, recent: &Recent) -> Result<(), Gone> {
        self.write()?;
        self.answer_lines(handle, recent)?;
        if self.output.is_empty() {
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Gone),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(error) => still_there(&error)?,
            }
            self.answer_lines(handle, recent)?;
        }
        Ok(())
    }

    /// Answers the whole lines of the input, as long as the client takes the answers.
    fn answer_lines(&mut self, handle: &mut Handle<'_>, recent: &Recent) -> Result<(), Gone> {
        self.read_on(recent)?;
        while self.output.is_empty() && self.reader.is_none() {
            let Some(end) = self.input.iter().position(|&byte| byte == b'\n') else { break };
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let response = match serde_json::from_slice::<Request>(&line) {
                Ok(request) => handle(request, &mut self.reader),
                Err(error) => Some(Response::Refused { why: format!("{UNKNOWN}{error}") }),
            };
            if let Some(response) = response {
                self.output = encoded(&response);
                self.write()?;
            }
            self.read_on(recent)?;
        }
        let is_too_much = self.input.len() > REQUEST_BYTES_MAX
            && (self.reader.is_some() || !self.input[..=REQUEST_BYTES_MAX].contains(&b'\n'));
        if is_too_much { Err(Gone) } else { Ok(()) }
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
