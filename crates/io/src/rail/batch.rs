//! What the sockets of all media have in common: many datagrams enter and leave the kernel in one call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt;

use super::name::Envelope;
use super::receive::{ReceiveBatch, Received};
use super::send::{Datagram, SendBatch, Sender};
use super::{RailCounters, RailFeatures};
use crate::address::RailAddress;

/// A socket with its batches and counters. Sizes are fixed at construction; no call allocates.
pub(super) struct Batched<E> {
    fd: OwnedFd,
    pub(super) envelope: E,
    pub(super) features: RailFeatures,
    pub(super) counters: RailCounters,
    outgoing: SendBatch,
    incoming: ReceiveBatch,
}

impl<E: Envelope> Batched<E> {
    /// Takes a socket that is open; `gso` and `gro`: what the kernel does for it.
    pub(super) fn new(fd: OwnedFd, envelope: E, gso: bool, gro: bool) -> io::Result<Self> {
        let features = RailFeatures {
            receive_buffer_bytes: sockopt::socket_recv_buffer_size(&fd)?,
            send_buffer_bytes: sockopt::socket_send_buffer_size(&fd)?,
            gso,
            gro,
        };
        let (outgoing, incoming) = (SendBatch::new(), ReceiveBatch::new());
        Ok(Self { fd, envelope, features, counters: RailCounters::default(), outgoing, incoming })
    }

    pub(super) fn send(&mut self, datagrams: &[Datagram<'_>]) -> io::Result<usize> {
        let mut sender = Sender {
            fd: self.fd.as_raw_fd(),
            envelope: &self.envelope,
            batch: &mut self.outgoing,
            gso: &mut self.features.gso,
            counters: &mut self.counters,
        };
        sender.send(datagrams)
    }

    pub(super) fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(RailAddress, &mut [u8]),
    ) -> io::Result<Received> {
        self.incoming.receive(self.fd.as_raw_fd(), &self.envelope, &mut self.counters, limit, take)
    }
}

impl<E> AsFd for Batched<E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
