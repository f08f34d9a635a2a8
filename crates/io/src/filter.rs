//! Filters of sockets: what they do not let through wakes nobody (Linux `Documentation/networking/filter.rst`).

use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, AsRawFd};

/// Loads four bytes from a place in the packet.
pub(crate) const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// Loads two.
pub(crate) const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
/// Goes on behind so many steps if what is loaded is this, or else behind so many.
pub(crate) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
/// Lets so many bytes through.
pub(crate) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Where the destination is in a header (RFC 8200 §3).
const DESTINATION: u32 = 24;

/// A step of a filter.
pub(crate) fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

/// From now on the socket takes what these steps let through.
pub(crate) fn attach(socket: impl AsFd, steps: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// From now on a socket of IPv6 takes what was sent to `address` alone.
pub(crate) fn take_for(socket: impl AsFd, address: Ipv6Addr) -> io::Result<()> {
    let words = [96, 64, 32, 0].map(|bits| (address.to_bits() >> bits) as u32);
    // What is loaded from there on is of the packet's header, which a socket of UDP does not see else.
    let places = (libc::SKF_NET_OFF as u32 + DESTINATION..).step_by(4);
    // So many steps further on is the one that lets nothing through.
    let steps = words.into_iter().zip(places).zip([7, 5, 3, 1]).flat_map(|((word, place), further)| {
        [step(LOAD_WORD, 0, 0, place), step(IF_EQUAL, 0, further, word)]
    });
    let ends = [step(RETURN, 0, 0, u32::MAX), step(RETURN, 0, 0, 0)];
    attach(socket, &mut steps.chain(ends).collect::<Vec<_>>())
}

/// Sets an option of a socket.
pub(crate) fn set_option<T>(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let (fd, len) = (socket.as_fd().as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: a value of that length, which the call only reads, with what it points to.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const *value).cast(), len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn what_is_for_one_address_comes_and_nothing_else() {
        // A machine may be without IPv6.
        let Ok(socket) = UdpSocket::bind("[::1]:0") else { return };
        socket.set_nonblocking(true).unwrap();
        let other = |at: usize| {
            let mut octets = Ipv6Addr::LOCALHOST.octets();
            octets[at] ^= 1;
            Ipv6Addr::from(octets)
        };
        let comes = |address| {
            take_for(&socket, address).unwrap();
            socket.send_to(&[1], socket.local_addr().unwrap()).unwrap();
            socket.recv(&mut [0; 2]).is_ok()
        };
        assert!((0..16).all(|at| !comes(other(at))));
        assert!(comes(Ipv6Addr::LOCALHOST));
    }
}
