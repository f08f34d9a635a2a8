use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use node::{EDGE_CONNECTIONS, MAX_LOANS};

use super::{Edge, LoanEnd, LoanSpec};

/// The clients of all edges: the listening sockets, and a copy of each connection for the successor of a dead card.
pub(super) struct Clients {
    listeners: Vec<Option<UnixListener>>,
    connections: Vec<[Option<OwnedFd>; EDGE_CONNECTIONS]>,
    paths: Vec<std::path::PathBuf>,
}

impl Clients {
    pub(super) fn listen(loans: &[LoanSpec]) -> io::Result<Self> {
        let (mut listeners, mut paths) = (Vec::new(), Vec::new());
        for loan in loans {
            listeners.push(match &loan.end {
                LoanEnd::Borrow { edge: Edge::Nbd(nbd), .. } => {
                    let listener = UnixListener::bind(nbd)?;
                    listener.set_nonblocking(true)?;
                    paths.push(nbd.clone());
                    Some(listener)
                }
                LoanEnd::Lend { .. } | LoanEnd::Borrow { edge: Edge::Load(_), .. } => None,
            });
        }
        let connections = (0..MAX_LOANS).map(|_| Default::default()).collect();
        Ok(Self { listeners, connections, paths })
    }

    pub(super) fn listeners(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.listeners
            .iter()
            .enumerate()
            .filter_map(|(loan, listener)| Some((loan, listener.as_ref()?.as_fd())))
    }

    /// Nobody new may connect; the sockets disappear from the file system.
    pub(super) fn stop_listening(&mut self) {
        self.listeners.iter_mut().for_each(|listener| *listener = None);
        for path in self.paths.drain(..) {
            let _ = std::fs::remove_file(path);
        }
    }

    /// The next client of `loan`, with a free slot. With all slots taken, clients wait in the kernel's queue, which is bounded too.
    pub(super) fn accept(&mut self, loan: usize) -> Option<(usize, OwnedFd)> {
        let listener = self.listeners.get(loan)?.as_ref()?;
        let slot = self.connections[loan].iter().position(Option::is_none);
        let (stream, _) = listener.accept().ok()?;
        // One client too many is told so by an end of the stream.
        let slot = slot?;
        stream.set_nonblocking(true).ok()?;
        Some((slot, stream.into()))
    }

    pub(super) fn keep(&mut self, loan: usize, slot: usize, socket: OwnedFd) {
        self.connections[loan][slot] = Some(socket);
    }

    pub(super) fn disconnected(&mut self, loan: usize, slot: usize) {
        if let Some(connection) = self.connections.get_mut(loan).and_then(|slots| slots.get_mut(slot)) {
            *connection = None;
        }
    }

    pub(super) fn connections(&self) -> impl Iterator<Item = (usize, usize, BorrowedFd<'_>)> {
        self.connections.iter().enumerate().flat_map(|(loan, slots)| {
            slots
                .iter()
                .enumerate()
                .filter_map(move |(slot, socket)| Some((loan, slot, socket.as_ref()?.as_fd())))
        })
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop_listening();
    }
}
