//! The answering side: one HTTP server, on a thread of its own.
//!
//! It has two doors. Behind the control socket, which is the node's user's alone, is everything; behind a TCP port on
//! localhost are numbers and names, never a key, and nothing that changes anything ([`routes`]). Its thread
//! hands what it is asked to the node's loop, which answers in its turn and never waits for anybody ([`questions`]);
//! what has happened it reads from the ring itself ([`events`]). Who connects and says nothing, or asks and does not
//! read, keeps nobody out ([`connections`]).

mod captures;
mod connections;
mod events;
mod questions;
mod routes;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::capture::{Capture, CaptureOrder};
use super::socket::Socket;
use super::{ControlError, Request, Response, io_error};
use crate::events::Recent;
use questions::Questions;
use routes::Served;

/// Most connections to the control socket at a time.
pub const CLIENTS_MAX: usize = 16;
/// Most among them that follow events, so that others always find a place.
pub const FOLLOWERS_MAX: usize = 8;
/// Most connections to the port at a time.
const SCRAPERS_MAX: usize = 32;

/// Who answers for a node.
pub trait Answers {
    /// What a request comes to.
    fn answer(&mut self, request: Request) -> Response;

    /// Begins a capture.
    ///
    /// # Errors
    /// Why it is refused, for a person.
    fn capture(&mut self, order: &CaptureOrder) -> Result<Capture, String>;
}

/// Of what has no links.
impl<F: FnMut(Request) -> Response> Answers for F {
    fn answer(&mut self, request: Request) -> Response {
        self(request)
    }

    fn capture(&mut self, _: &CaptureOrder) -> Result<Capture, String> {
        Err("it has no links that can be captured; ask a node that has (`--name NODE`)".to_owned())
    }
}

/// A node's server. When it is dropped, who follows gets what was said last.
#[derive(Debug)]
pub struct ControlServer {
    address: SocketAddr,
    // In this order: who has asked is told that nobody will answer, then the thread ends, then the socket goes.
    questions: Questions,
    _thread: Thread,
    _socket: Socket,
}

impl ControlServer {
    /// Serves at the control socket `path`, and on localhost at a port that the system chooses.
    ///
    /// # Errors
    /// A node of this name runs, `path` cannot be had for it alone, or the system refuses something.
    pub fn new(path: &Path) -> Result<Self, ControlError> {
        let (socket, listener) = Socket::listen(path)?;
        let (asker, questions) = questions::queue().map_err(io_error("serve", path))?;
        let (end, ended) = watch::channel(());
        let served = Served::new(asker, Recent::of_process(), ended);
        let started = start(listener, served).map_err(io_error("serve localhost and", path));
        let (address, handle) = started?;
        let thread = Thread { end: Some(end), handle: Some(handle) };
        Ok(Self { address, questions, _thread: thread, _socket: socket })
    }

    /// Where `/metrics` and `/healthz` are.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Readable when [`ControlServer::turn`] has something to do.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.questions.as_fd()
    }

    /// Has `node` answer what was asked since. Waits for nobody.
    pub fn turn(&mut self, node: &mut dyn Answers) {
        self.questions.turn(node);
    }
}

fn start(control: UnixListener, served: Arc<Served>) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let doors = runtime.block_on(async {
        let control = tokio::net::UnixListener::from_std(control)?;
        io::Result::Ok((control, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?))
    });
    let (control, port) = doors?;
    let address = port.local_addr()?;
    let serve = move || {
        runtime.block_on(async {
            tokio::join!(
                connections::serve(control, CLIENTS_MAX, routes::of_control(&served), served.ended()),
                connections::serve(port, SCRAPERS_MAX, routes::of_port(&served), served.ended()),
            );
        });
    };
    Ok((address, thread::Builder::new().name("control".to_owned()).spawn(serve)?))
}

/// The thread that serves. It ends with this value, and waits only for a moment for who does not read.
#[derive(Debug)]
struct Thread {
    /// Nothing is ever sent: that it is gone is the sign.
    end: Option<watch::Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.end = None;
        // What it has panicked about it has said.
        let _ = self.handle.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests;
