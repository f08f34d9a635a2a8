use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use node::EDGE_CONNECTIONS;

use super::{Edge, LoanEnd, LoanSpec, token};
use crate::wait::{Interest, Waiter};

/// A copy of each client's connection, for the successor of a dead card.
pub(super) struct Clients {
    connections: Vec<[Option<OwnedFd>; EDGE_CONNECTIONS]>,
}

/// Watches the listening sockets of the edges. They do not block from now on.
pub(super) fn listen(loans: &[LoanSpec], waiter: &Waiter) -> io::Result<()> {
    for (loan, listener) in listeners(loans) {
        watch(listener, loan, waiter)?;
    }
    Ok(())
}

/// Watches the listening socket of one loan, if clients connect to it from its beginning on.
pub(super) fn listen_one(loans: &[LoanSpec], loan: usize, waiter: &Waiter) -> io::Result<()> {
    let Some(listener) = loans.get(loan).and_then(listener) else { return Ok(()) };
    watch(listener, loan, waiter)
}

/// Watches a listening socket, which may be watched already.
pub(super) fn watch(listener: &UnixListener, loan: usize, waiter: &Waiter) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    match waiter.register(listener.as_fd(), token::LISTENER + loan as u64, Interest::READ) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Watches them no longer.
pub(super) fn ignore(loans: &[LoanSpec], waiter: &Waiter) {
    for (_, listener) in listeners(loans) {
        // One that is not in the set is just as good.
        let _ = waiter.deregister(listener.as_fd());
    }
}

fn listeners(loans: &[LoanSpec]) -> impl Iterator<Item = (usize, &UnixListener)> {
    loans.iter().enumerate().filter_map(|(loan, spec)| Some((loan, listener(spec)?)))
}

/// Nobody new may connect; the sockets disappear from the file system.
pub(super) fn stop_listening(loans: &mut [LoanSpec]) {
    for loan in loans {
        if let LoanEnd::Borrow {
            edge: Edge::Nbd { path, listener } | Edge::Vm { path, listener, .. }, ..
        } = &mut loan.config.role
        {
            stop_listening_at(path, listener);
        }
    }
}

/// The same of one socket.
pub(super) fn stop_listening_at(path: &Path, listener: &mut Option<UnixListener>) {
    if listener.take().is_some() {
        let _ = std::fs::remove_file(path);
    }
}

fn listener(loan: &LoanSpec) -> Option<&UnixListener> {
    match &loan.config.role {
        LoanEnd::Borrow { edge: Edge::Nbd { listener, .. }, .. } => listener.as_ref(),
        _ => None,
    }
}

impl Clients {
    /// Those of a node with so many places.
    pub(super) fn new(places: usize) -> Self {
        Self { connections: (0..places).map(|_| Default::default()).collect() }
    }

    /// There is another place, behind the others.
    pub(super) fn append_place(&mut self) {
        self.connections.push(Default::default());
    }

    /// The next client of `loan`, with a free slot; none if nobody waits, or if there are no `looks` left, of which
    /// each who waits takes one. One client too many is told so by an end of the stream.
    ///
    /// # Errors
    /// Want of descriptors or memory: who waits goes on waiting.
    pub(super) fn accept(
        &self,
        loans: &[LoanSpec],
        loan: usize,
        looks: &mut usize,
    ) -> io::Result<Option<(usize, OwnedFd)>> {
        let Some(listener) = loans.get(loan).and_then(listener) else { return Ok(None) };
        while *looks > 0 {
            *looks -= 1;
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    // The client has gone again, or a signal came.
                    Some(libc::ECONNABORTED | libc::EINTR) => continue,
                    _ => return Err(error),
                },
            };
            if let Some(slot) = self.connections[loan].iter().position(Option::is_none) {
                stream.set_nonblocking(true)?;
                return Ok(Some((slot, stream.into())));
            }
        }
        Ok(None)
    }

    pub(super) fn keep(&mut self, loan: usize, slot: usize, socket: OwnedFd) {
        self.connections[loan][slot] = Some(socket);
    }

    /// Whether anybody is connected to `loan`, as far as the card has told.
    pub(super) fn has_any(&self, loan: usize) -> bool {
        self.connections.get(loan).is_some_and(|slots| slots.iter().any(Option::is_some))
    }

    /// Another loan has the place.
    pub(super) fn renew(&mut self, loan: usize) {
        if let Some(connections) = self.connections.get_mut(loan) {
            *connections = Default::default();
        }
    }

    pub(super) fn disconnected(&mut self, loan: usize, slot: usize) {
        if let Some(connection) = self.connections.get_mut(loan).and_then(|slots| slots.get_mut(slot)) {
            *connection = None;
        }
    }

    pub(super) fn connection(&self, loan: usize, slot: usize) -> Option<BorrowedFd<'_>> {
        self.connections.get(loan)?.get(slot)?.as_ref().map(AsFd::as_fd)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::test_loans::{ends, listening};

    /// A loan may come while nobody is accepted for want of descriptors: then all are watched again a moment later.
    #[test]
    fn a_socket_that_is_watched_already_is_watched() {
        let (loans, _callers) = listening("twice", 0, |path, listener| Edge::Nbd { path, listener });
        let times =
            crate::wait::SpinTimes { idle: std::time::Duration::ZERO, expecting: std::time::Duration::ZERO };
        let waiter = Waiter::new(times).unwrap();
        listen_one(&loans, 0, &waiter).unwrap();
        listen(&loans, &waiter).unwrap();
        ignore(&loans, &waiter);
        listen(&loans, &waiter).unwrap();
    }

    #[test]
    fn no_turn_is_longer_than_the_others_can_wait() {
        let (loans, callers) = listening("nbd", 40, |path, listener| Edge::Nbd { path, listener });
        let mut clients = Clients::new(1);
        let mut looks = 2 + EDGE_CONNECTIONS;
        while let Some((slot, socket)) = clients.accept(&loans, 0, &mut looks).unwrap() {
            clients.keep(0, slot, socket);
        }
        // All places are taken, and two more have been looked at.
        assert_eq!((looks, clients.connections().count(), ends(&callers)), (0, EDGE_CONNECTIONS, 2));
        assert!(clients.accept(&loans, 0, &mut 5).unwrap().is_none());
        assert_eq!(ends(&callers), 7);
    }
}
