//! A wire between two UDP addresses of this machine, which can be cut and made long.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Datagrams taken from one side before the other has its turn.
const AT_A_TIME: usize = 64;
/// Datagrams on their way in one direction; what finds no room is lost, as in any queue.
const LENGTH_MAX: usize = 4096;
/// Most bytes of a datagram.
const DATAGRAM_MAX: usize = 65_535;
const BUFFER_BYTES: usize = 4 << 20;

/// The wire; dropping it takes it away.
pub(crate) struct Wire {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    is_cut: AtomicBool,
    delay_us: AtomicU64,
    ends: AtomicBool,
}

/// One end of it: a socket, and whoever is plugged in there.
pub(crate) struct End {
    /// Where the wire takes what it sends.
    pub at: SocketAddr,
    /// Who sends there, and hears what comes from the other end.
    pub plugged: SocketAddr,
}

impl Wire {
    /// One between two ends. What others send to it is dropped.
    ///
    /// # Errors
    /// An address cannot be had.
    pub(crate) fn between(ends: [End; 2]) -> io::Result<Self> {
        let [first, second] = ends;
        let sides = [Side::open(first)?, Side::open(second)?];
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread =
            std::thread::Builder::new().name("wire".to_owned()).spawn(move || carry(sides, &shared))?;
        Ok(Self { state, thread: Some(thread) })
    }

    /// Nothing passes from now on, or all does.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Each datagram takes so long from now on, in either direction.
    pub(crate) fn slow(&self, delay: Duration) {
        self.state.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.state.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Side {
    socket: UdpSocket,
    plugged: SocketAddr,
    /// What came in at the other side, and when it is to leave here.
    under_way: VecDeque<(Instant, Vec<u8>)>,
}

impl Side {
    fn open(end: End) -> io::Result<Self> {
        let socket = UdpSocket::bind(end.at)?;
        socket.set_nonblocking(true)?;
        // Whoever may have no larger ones loses more.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_BYTES);
        let _ = sockopt::set_socket_send_buffer_size_force(&socket, BUFFER_BYTES);
        Ok(Self { socket, plugged: end.plugged, under_way: VecDeque::new() })
    }

    /// Lets out what is due.
    fn send(&mut self) {
        let now = Instant::now();
        while self.under_way.front().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, bytes)) = self.under_way.pop_front() {
                // What cannot leave is lost.
                let _ = self.socket.send_to(&bytes, self.plugged);
            }
        }
    }
}

fn carry(mut sides: [Side; 2], state: &State) {
    let mut buffer = vec![0; DATAGRAM_MAX];
    while !state.ends.load(Ordering::Relaxed) {
        for from in [0, 1] {
            for _ in 0..AT_A_TIME {
                let Ok((len, sender)) = sides[from].socket.recv_from(&mut buffer) else { break };
                let passes = sender == sides[from].plugged && !state.is_cut.load(Ordering::Relaxed);
                let to = &mut sides[1 - from];
                if passes && to.under_way.len() < LENGTH_MAX {
                    let delay = Duration::from_micros(state.delay_us.load(Ordering::Relaxed));
                    // One that is sent when the wire has become short does not overtake.
                    let last = to.under_way.back().map(|(due, _)| *due);
                    let due = (Instant::now() + delay).max(last.unwrap_or_else(Instant::now));
                    to.under_way.push_back((due, buffer[..len].to_vec()));
                }
            }
        }
        sides.iter_mut().for_each(Side::send);
        let due = sides.iter().filter_map(|side| side.under_way.front().map(|(due, _)| *due)).min();
        let wait = due.map_or(LOOK, |due| due.saturating_duration_since(Instant::now()).min(LOOK));
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut watched =
            [&sides[0], &sides[1]].map(|side| PollFd::from_borrowed_fd(side.socket.as_fd(), PollFlags::IN));
        // A signal only makes it look again.
        let _ = poll(&mut watched, Some(&timeout));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets with a wire between them, and where each of them sends to.
    fn joined() -> (Wire, [(UdpSocket, SocketAddr); 2]) {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            socket
        };
        let free = || socket().local_addr().unwrap();
        let (sockets, at) = ([socket(), socket()], [free(), free()]);
        let end = |of: usize| End { at: at[of], plugged: sockets[of].local_addr().unwrap() };
        let wire = Wire::between([end(0), end(1)]).unwrap();
        let [first, second] = sockets;
        (wire, [(first, at[0]), (second, at[1])])
    }

    fn received(socket: &UdpSocket) -> Option<Vec<u8>> {
        let mut bytes = [0; 100];
        socket.recv(&mut bytes).ok().map(|len| bytes[..len].to_vec())
    }

    #[test]
    fn a_wire_carries_both_ways_is_cut_and_becomes_long() {
        let (wire, [(left, to_right), (right, to_left)]) = joined();
        left.send_to(b"there", to_right).unwrap();
        assert_eq!(received(&right).unwrap(), b"there");
        right.send_to(b"back", to_left).unwrap();
        assert_eq!(received(&left).unwrap(), b"back");
        // Whoever is not plugged in is not heard.
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(b"strange", to_right).unwrap();
        wire.slow(Duration::from_millis(30));
        let sent = Instant::now();
        left.send_to(b"late", to_right).unwrap();
        assert_eq!(received(&right).unwrap(), b"late");
        assert!(sent.elapsed() >= Duration::from_millis(30));
        wire.slow(Duration::ZERO);
        wire.cut(true);
        left.send_to(b"lost", to_right).unwrap();
        right.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(received(&right), None);
        wire.cut(false);
        left.send_to(b"again", to_right).unwrap();
        right.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(received(&right).unwrap(), b"again");
    }
}
