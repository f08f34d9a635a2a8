//! Rails: sockets that carry frames between machines, a medium each, behind one trait.
//!
//! | medium | socket | a frame is | its size |
//! |---|---|---|---|
//! | [`udp`] | UDP over IPv4 or IPv6 | a datagram | MTU less IP and UDP header |
//! | [`ethernet`] | `AF_PACKET` on one interface | the payload of a tagged Ethernet frame | MTU |
//!
//! Both hand many datagrams to the kernel in one call and take many in one (`send`, `receive`). The agent opens the
//! socket; a card takes it over with [`take_over`]. A socket's queue survives its reader; datagrams that a killed card
//! had taken but not used are lost, which is what a network may do at any time. Memory that two nodes of one machine
//! share is no rail: frames are built where the peer reads them, and nothing is sent (`shm`).

mod batch;
pub mod ethernet;
mod name;
mod receive;
mod send;
pub mod udp;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, sockopt};

use crate::address::RailAddress;
pub use receive::Received;
pub use send::Datagram;

/// What a rail asks of its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailOptions {
    /// Receive buffer wanted, in bytes of payload and kernel bookkeeping.
    pub receive_buffer_bytes: usize,
    /// Send buffer wanted, in bytes.
    pub send_buffer_bytes: usize,
    /// Whether to send segmented and receive coalesced, where the kernel can.
    pub offload: bool,
}

impl Default for RailOptions {
    fn default() -> Self {
        Self { receive_buffer_bytes: 8 << 20, send_buffer_bytes: 4 << 20, offload: true }
    }
}

/// What the kernel granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailFeatures {
    /// Receive buffer as the kernel accounts it (twice what it grants for payload).
    pub receive_buffer_bytes: usize,
    /// Send buffer as the kernel accounts it.
    pub send_buffer_bytes: usize,
    /// Consecutive datagrams of one size leave as one message.
    pub gso: bool,
    /// Datagrams that arrived together are taken together.
    pub gro: bool,
}

/// What happened to datagrams other than arriving. All count datagrams since the socket was opened or taken over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RailCounters {
    /// Handed to the kernel.
    pub sent: u64,
    /// Given to the receiver.
    pub received: u64,
    /// Refused with `EMSGSIZE`: larger than the path allows.
    pub too_large: u64,
    /// Refused because the peer, its network or a filter says no (`ECONNREFUSED`, `ENETUNREACH`, `EPERM`, ...).
    pub unreachable: u64,
    /// Refused for want of kernel memory or a full device queue (`ENOBUFS`, `ENOMEM`).
    pub no_buffer: u64,
    /// Refused for any other reason: an address of another medium among them.
    pub other: u64,
    /// Cut by the kernel on arrival because they were larger than a receive buffer, and dropped here.
    pub truncated: u64,
    /// Dropped on arrival: of another group than their tag says, or of nobody who could be answered.
    pub foreign: u64,
    /// Errors the kernel reported on receiving (a late ICMP message, an interface that goes down).
    pub receive_errors: u64,
}

/// Where what a socket sends leaves a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// Wherever routes lead.
    Any,
    /// The interface that has this address.
    Holding(IpAddr),
    /// The interface that the kernel gives this number.
    Index(u32),
}

/// A socket that carries frames. No call allocates.
pub trait RailSocket: AsFd + Send {
    /// Where it receives.
    fn local(&self) -> RailAddress;

    /// Where what it sends leaves this machine.
    fn device(&self) -> Device;

    /// What the kernel granted. `gso` turns false when a device on the way turns out not to do it.
    fn features(&self) -> RailFeatures;

    /// What was sent, received and refused so far.
    fn counters(&self) -> RailCounters;

    /// Bytes of the largest frame that it sends and receives, whoever the peer is.
    fn largest_frame(&self) -> usize;

    /// Bytes of the largest frame that reaches `peer` as a whole, as far as the kernel knows now.
    ///
    /// # Errors
    /// There is no way there: no route, no interface, an address of another medium.
    fn max_frame(&self, peer: RailAddress) -> io::Result<usize>;

    /// Hands datagrams to the kernel, in order, until it has no room.
    ///
    /// Returns how many were taken from the front of `datagrams`: fewer than given means the socket is full. A
    /// datagram the kernel refuses for its own sake (peer unreachable, too large) is taken and counted, like one
    /// the network lost.
    ///
    /// # Errors
    /// Only what makes the socket useless: `EBADF`, `ENOTSOCK`, `EFAULT`.
    fn send_batch(&mut self, datagrams: &[Datagram<'_>]) -> io::Result<usize>;

    /// Takes at most `limit` datagrams that have arrived and gives each to `take` with its sender, but for those that
    /// are counted as foreign or truncated.
    ///
    /// Datagrams beyond the limit that the kernel handed over together with others are kept for the next call, and
    /// [`Received::more`] says so: no readiness event will come for them.
    ///
    /// # Errors
    /// Only what makes the socket useless: `EBADF`, `ENOTSOCK`, `EFAULT`.
    fn receive(&mut self, limit: usize, take: &mut dyn FnMut(RailAddress, &mut [u8]))
    -> io::Result<Received>;
}

/// Takes over a rail's socket that was opened in another process, with its options as they are.
///
/// # Errors
/// `ENOTSOCK` or `EINVAL` if this is no rail's socket.
pub fn take_over(fd: OwnedFd, offload: bool) -> io::Result<Box<dyn RailSocket>> {
    match sockopt::socket_domain(&fd)? {
        AddressFamily::PACKET => Ok(Box::new(ethernet::EthernetSocket::from_fd(fd)?)),
        _ => Ok(Box::new(udp::UdpSocket::from_fd(fd, offload)?)),
    }
}

/// Whether an error concerns the caller's arguments rather than the network.
fn is_fatal(error: Errno) -> bool {
    matches!(error, Errno::BADF | Errno::NOTSOCK | Errno::FAULT)
}

/// Asks for the wanted sizes beyond the system's limit (needs CAP_NET_ADMIN), else up to it.
fn enlarge_buffers(fd: BorrowedFd<'_>, options: &RailOptions) {
    let (receive, send) = (options.receive_buffer_bytes, options.send_buffer_bytes);
    if sockopt::set_socket_recv_buffer_size_force(fd, receive).is_err() {
        let _ = sockopt::set_socket_recv_buffer_size(fd, receive);
    }
    if sockopt::set_socket_send_buffer_size_force(fd, send).is_err() {
        let _ = sockopt::set_socket_send_buffer_size(fd, send);
    }
}
