//! What the kernel is told of a datagram beside its bytes, and tells. Kept in place: a batch allocates nothing.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::Datagram;
use crate::address::RailAddress;

/// Room for an IPv4 or IPv6 address as the kernel reads and writes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union RawName {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawName {
    /// Bytes the kernel may write here.
    pub(super) const CAPACITY: libc::socklen_t = size_of::<Self>() as libc::socklen_t;

    pub(super) fn empty() -> Self {
        // SAFETY: both forms are plain integers, for which zero bytes are values.
        unsafe { std::mem::zeroed() }
    }

    /// Writes an address here and returns how many bytes it takes.
    pub(super) fn set(&mut self, address: &SocketAddr) -> libc::socklen_t {
        match address {
            SocketAddr::V4(address) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>() as libc::socklen_t
            }
            SocketAddr::V6(address) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                size_of::<libc::sockaddr_in6>() as libc::socklen_t
            }
        }
    }

    /// Makes it one that no UDP socket takes, and returns how many bytes it has.
    pub(super) fn set_foreign(&mut self) -> libc::socklen_t {
        let length = self.set(&SocketAddr::from(([0; 4], 0)));
        self.v4.sin_family = libc::AF_PACKET as libc::sa_family_t;
        length
    }

    /// Reads what the kernel wrote, of which `length` bytes are meant. `None` for another family.
    pub(super) fn get(&self, length: libc::socklen_t) -> Option<SocketAddr> {
        // SAFETY: both forms begin with the family, and every bit pattern is a value of it.
        let family = libc::c_int::from(unsafe { self.v4.sin_family });
        match family {
            libc::AF_INET if length as usize >= size_of::<libc::sockaddr_in>() => {
                // SAFETY: the family says that the kernel wrote this form; all bit patterns are values of it.
                let raw = unsafe { self.v4 };
                let ip = Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(raw.sin_port))))
            }
            libc::AF_INET6 if length as usize >= size_of::<libc::sockaddr_in6>() => {
                // SAFETY: the family says that the kernel wrote this form; all bit patterns are values of it.
                let raw = unsafe { self.v6 };
                let ip = Ipv6Addr::from(raw.sin6_addr.s6_addr);
                let (port, scope) = (u16::from_be(raw.sin6_port), raw.sin6_scope_id);
                Some(SocketAddr::V6(SocketAddrV6::new(ip, port, raw.sin6_flowinfo, scope)))
            }
            _ => None,
        }
    }
}

/// Room for the one control message used here, a segment size or a frame's tag, aligned as the kernel wants it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control([u8; 48]);

impl Control {
    pub(super) const EMPTY: Self = Self([0; 48]);
}

/// What a control message of this level and type holds, if there is one in the header's used control memory.
pub(super) fn control_of<T: Copy>(header: &libc::msghdr, level: libc::c_int, kind: libc::c_int) -> Option<T> {
    // SAFETY: the kernel filled the header's control memory, which its batch owns, and set its used length; the macros
    // stay within that length, and what is read is no longer than the message says.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            let is_it = (*control).cmsg_level == level && (*control).cmsg_type == kind;
            if is_it && (*control).cmsg_len as usize >= libc::CMSG_LEN(size_of::<T>() as u32) as usize {
                return Some(libc::CMSG_DATA(control).cast::<T>().read_unaligned());
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

/// What a medium has around datagrams.
pub(super) trait Envelope {
    /// Bytes in front of each one that leaves, at most [`HEAD_MAX`].
    const HEAD: usize;

    /// Says whom a datagram goes to: by a name, of which so many bytes count, or in the head. An address of another
    /// medium becomes what the kernel refuses.
    fn close(
        &self,
        datagram: &Datagram<'_>,
        name: &mut RawName,
        head: &mut [u8; HEAD_MAX],
    ) -> libc::socklen_t;

    /// Who has sent a message, and its contents; `None`: it is nothing for us.
    fn open<'b>(
        &self,
        header: &libc::msghdr,
        name: &RawName,
        bytes: &'b mut [u8],
    ) -> Option<(RailAddress, &'b mut [u8])>;
}

/// Most bytes that a medium has in front of a datagram.
pub(super) const HEAD_MAX: usize = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["127.0.0.1:7411", "255.1.2.3:65535", "[::1]:1", "[fe80::1%7]:7411"] {
            let address: SocketAddr = text.parse().unwrap();
            let mut raw = RawName::empty();
            let length = raw.set(&address);
            assert_eq!(raw.get(length), Some(address));
            assert_eq!(raw.get(length - 1), None);
        }
        let mut raw = RawName::empty();
        assert_eq!(raw.get(28), None);
        let length = raw.set_foreign();
        assert_eq!(raw.get(length), None);
    }
}
