//! A rail over UDP: one bound, non-blocking socket that sends and receives datagrams in batches.
//!
//! The cost of a datagram is nearly all in the kernel's stack, so both ways go through it once
//! for many: consecutive datagrams of one size to one peer leave as a single segmented message
//! (`UDP_SEGMENT`), and what arrives together is handed up together (`UDP_GRO`), each where the
//! kernel allows it. Nothing is ever fragmented: the don't-fragment rule is set, and a frame that
//! does not fit the path is counted, not cut.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::batch::Batched;
use super::name::{Envelope, HEAD_MAX, RawName};
use super::receive::Received;
use super::send::Datagram;
use super::{Device, RailCounters, RailFeatures, RailOptions, RailSocket, enlarge_buffers};
use crate::address::RailAddress;

/// Most bytes a UDP datagram over IPv4 carries: 65535 less an IPv4 and a UDP header (RFC 768, RFC 791 §3.1).
pub const MAX_DATAGRAM_BYTES: usize = 65_507;
/// Most datagrams in one segmented send: what kernels before 6.9 allow (`UDP_MAX_SEGMENTS`).
pub const MAX_SEGMENTS: usize = 64;
/// Most bytes of an IP packet, whatever an interface's MTU says (jumbograms are not used).
const MAX_PACKET_BYTES: u32 = 65_535;
/// Bytes of an IPv4 and a UDP header: what a datagram has less than the path's MTU.
pub const IPV4_UDP_HEADER_BYTES: u32 = 28;
/// Bytes of an IPv6 and a UDP header.
pub const IPV6_UDP_HEADER_BYTES: u32 = 48;

/// A bound UDP socket with its batches.
pub struct UdpSocket {
    socket: Batched<Names>,
    local: SocketAddr,
}

/// The kernel knows everybody by name, and adds what else there is.
struct Names;

impl Envelope for Names {
    const HEAD: usize = 0;

    fn close(&self, datagram: &Datagram<'_>, name: &mut RawName, _: &mut [u8; HEAD_MAX]) -> libc::socklen_t {
        match &datagram.to {
            RailAddress::Udp(to) => name.set(to),
            RailAddress::Ethernet(_) => name.set_foreign(),
        }
    }

    fn open<'b>(
        &self,
        header: &libc::msghdr,
        name: &RawName,
        bytes: &'b mut [u8],
    ) -> Option<(RailAddress, &'b mut [u8])> {
        Some((name.get(header.msg_namelen)?.into(), bytes))
    }
}

impl UdpSocket {
    /// Binds a socket to `local` (port 0: one chosen by the system). IPv6 sockets take IPv6 only.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL` and whatever else socket or bind returned. Options that a kernel lacks are no
    /// errors: see [`RailSocket::features`].
    pub fn bind(local: SocketAddr, options: &RailOptions) -> io::Result<Self> {
        let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        if local.is_ipv6() {
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        forbid_fragments(fd.as_fd(), local)?;
        enlarge_buffers(fd.as_fd(), options);
        if options.offload {
            // Kernels before 5.0 refuse: then datagrams arrive one by one.
            let _ = set_udp_option(fd.as_fd(), libc::UDP_GRO, 1);
        }
        rustix::net::bind(&fd, &local)?;
        Self::adopt(fd, options.offload)
    }

    /// Takes over a bound socket made by [`UdpSocket::bind`] in another process, with its options as they are.
    ///
    /// # Errors
    /// `ENOTSOCK` or `EINVAL` if this is not a bound UDP socket over IPv4 or IPv6.
    pub fn from_fd(fd: OwnedFd, offload: bool) -> io::Result<Self> {
        if sockopt::socket_type(&fd)? != SocketType::DGRAM {
            return Err(Errno::INVAL.into());
        }
        rustix::io::ioctl_fionbio(&fd, true)?;
        Self::adopt(fd, offload)
    }

    fn adopt(fd: OwnedFd, offload: bool) -> io::Result<Self> {
        let local = SocketAddr::try_from(rustix::net::getsockname(&fd)?).map_err(|_| Errno::INVAL)?;
        let gso = offload && udp_option(fd.as_fd(), libc::UDP_SEGMENT).is_ok();
        let gro = udp_option(fd.as_fd(), libc::UDP_GRO).is_ok_and(|on| on != 0);
        Ok(Self { socket: Batched::new(fd, Names, gso, gro)?, local })
    }

    /// The address the socket is bound to, with the port the system chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.local
    }

    /// The path's MTU to `peer` as the kernel knows it now (of the outgoing interface until it learned less), in
    /// bytes with all headers. See [`max_datagram_bytes`] for what is left for a frame.
    ///
    /// # Errors
    /// `ENETUNREACH` and others of a connect to the peer: there is no route.
    fn path_mtu(&self, peer: SocketAddr) -> io::Result<u32> {
        let mut source = self.local;
        source.set_port(0);
        probed_mtu(Some(source), peer)
    }
}

/// Consecutive datagrams to the same peer and of the same size (the last may be shorter) go as one message, at most
/// [`MAX_SEGMENTS`] and [`MAX_DATAGRAM_BYTES`].
impl RailSocket for UdpSocket {
    fn local(&self) -> RailAddress {
        self.local.into()
    }

    fn device(&self) -> Device {
        let address = self.local.ip();
        if address.is_unspecified() { Device::Any } else { Device::Holding(address) }
    }

    fn features(&self) -> RailFeatures {
        self.socket.features
    }

    fn counters(&self) -> RailCounters {
        self.socket.counters
    }

    fn largest_frame(&self) -> usize {
        MAX_DATAGRAM_BYTES
    }

    fn max_frame(&self, peer: RailAddress) -> io::Result<usize> {
        let RailAddress::Udp(peer) = peer else { return Err(Errno::AFNOSUPPORT.into()) };
        Ok(max_datagram_bytes(peer, self.path_mtu(peer)?))
    }

    fn send_batch(&mut self, datagrams: &[Datagram<'_>]) -> io::Result<usize> {
        self.socket.send(datagrams)
    }

    fn receive(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(RailAddress, &mut [u8]),
    ) -> io::Result<Received> {
        self.socket.receive(limit, take)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Bytes of the largest frame that reaches `peer` from wherever the kernel would send.
///
/// # Errors
/// `ENETUNREACH` and others of a connect to the peer: there is no route.
pub fn max_frame(peer: SocketAddr) -> io::Result<usize> {
    Ok(max_datagram_bytes(peer, probed_mtu(None, peer)?))
}

/// A connected socket of its own tells the MTU of a route and sends nothing.
fn probed_mtu(source: Option<SocketAddr>, peer: SocketAddr) -> io::Result<u32> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if let Some(source) = source {
        rustix::net::bind(&probe, &source)?;
    }
    rustix::net::connect(&probe, &peer)?;
    let mtu = if peer.is_ipv4() { sockopt::ip_mtu(&probe)? } else { sockopt::ipv6_mtu(&probe)? };
    Ok(mtu.min(MAX_PACKET_BYTES))
}

/// The largest datagram that passes a path of `mtu` bytes to this peer unfragmented.
fn max_datagram_bytes(peer: SocketAddr, mtu: u32) -> usize {
    let headers = if peer.is_ipv4() { IPV4_UDP_HEADER_BYTES } else { IPV6_UDP_HEADER_BYTES };
    (mtu.saturating_sub(headers) as usize).min(MAX_DATAGRAM_BYTES)
}

/// Sets don't-fragment and ignores what ICMP says about MTUs: frames are probed for size by their own protocol,
/// and anybody can forge an ICMP message (RFC 8899 §1.1).
fn forbid_fragments(fd: BorrowedFd<'_>, local: SocketAddr) -> io::Result<()> {
    if local.is_ipv4() {
        sockopt::set_ip_mtu_discover(fd, sockopt::Ipv4PathMtuDiscovery::PROBE)?;
    } else {
        sockopt::set_ipv6_mtu_discover(fd, sockopt::Ipv6PathMtuDiscovery::PROBE)?;
    }
    Ok(())
}

fn set_udp_option(fd: BorrowedFd<'_>, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is one int, which lives across the call.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_UDP, option, (&raw const value).cast(), size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn udp_option(fd: BorrowedFd<'_>, option: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `size` bytes, one int, to a variable that lives across the call.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_UDP, option, (&raw mut value).cast(), &mut size)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
