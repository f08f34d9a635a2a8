use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use node::{EDGE_CONNECTIONS, MAX_LOANS};

use super::{Edge, LoanEnd, LoanSpec};

/// A copy of each client's connection, for the successor of a dead card.
pub(super) struct Clients {
    connections: Vec<[Option<OwnedFd>; EDGE_CONNECTIONS]>,
}

/// The listening sockets of the edges, by loan. They do not block from now on.
pub(super) fn listeners(loans: &[LoanSpec]) -> io::Result<Vec<(usize, BorrowedFd<'_>)>> {
    let mut found = Vec::new();
    for (loan, spec) in loans.iter().enumerate() {
        if let Some(listener) = listener(spec) {
            listener.set_nonblocking(true)?;
            found.push((loan, listener.as_fd()));
        }
    }
    Ok(found)
}

/// Nobody new may connect; the sockets disappear from the file system.
pub(super) fn stop_listening(loans: &mut [LoanSpec]) {
    for loan in loans {
        if let LoanEnd::Borrow { edge: Edge::Nbd { path, listener }, .. } = &mut loan.end
            && listener.take().is_some()
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn listener(loan: &LoanSpec) -> Option<&UnixListener> {
    match &loan.end {
        LoanEnd::Borrow { edge: Edge::Nbd { listener, .. }, .. } => listener.as_ref(),
        _ => None,
    }
}

impl Clients {
    pub(super) fn new() -> Self {
        Self { connections: (0..MAX_LOANS).map(|_| Default::default()).collect() }
    }

    /// The next client of `loan`, with a free slot. One client too many is told so by an end of the stream.
    pub(super) fn accept(&self, loans: &[LoanSpec], loan: usize) -> Option<(usize, OwnedFd)> {
        let (stream, _) = listener(loans.get(loan)?)?.accept().ok()?;
        let slot = self.connections[loan].iter().position(Option::is_none)?;
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
