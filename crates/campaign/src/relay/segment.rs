//! One end of an Ethernet segment: frames of the product's protocol that a machine sends there are taken whole, and
//! what is put there comes to it (packet(7)).
#![expect(unsafe_code, reason = "the system calls of packet sockets have no safe form here")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::Error;

/// Destination, source and protocol.
const HEADER: usize = 14;
/// The product's, as its documents say.
const ETHERTYPE: [u8; 2] = 0x88b5_u16.to_be_bytes();
/// Of the tag in front of it (IEEE 802.1Q §9.6).
const TAG_ETHERTYPE: [u8; 2] = 0x8100_u16.to_be_bytes();
/// Longer than any frame.
const FRAME_MAX: usize = 64 << 10;

/// A packet socket on one interface.
pub(super) struct Segment {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Segment {
    /// On the interface of this name, in the network namespace that this thread is in.
    pub(super) fn open(interface: &str) -> Result<Self, Error> {
        let name = CString::new(interface).map_err(|_| Error::unexpected("a name with a zero in it"))?;
        let wrong = |what: &str| Error::io(format!("{what} {interface}"))(io::Error::last_os_error());
        // SAFETY: the name is a C string, which the call only reads.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(wrong("there is no interface"));
        }
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Only sockets of all protocols get what is tagged, and without its tag.
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
        if fd < 0 {
            return Err(wrong("cannot open a packet socket for"));
        }
        // SAFETY: the descriptor was just opened and is nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        super::forward::large_buffer(&socket);
        // SAFETY: plain C data for which zero bytes are a value.
        let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        at.sll_family = libc::AF_PACKET as libc::sa_family_t;
        at.sll_protocol = all;
        at.sll_ifindex = index as libc::c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: an address of that length, which the call only reads.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), len) } != 0 {
            return Err(wrong("cannot take what comes on"));
        }
        Ok(Self { socket, buffer: vec![0; FRAME_MAX] })
    }

    /// The next frame from there, with a tag of the group that it names: the kernel has taken its own off.
    pub(super) fn receive(&mut self) -> Option<Vec<u8>> {
        loop {
            // SAFETY: plain C data for which zero bytes are a value.
            let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
            let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            // SAFETY: a buffer and an address of these lengths.
            let received = unsafe {
                libc::recvfrom(
                    self.socket.as_raw_fd(),
                    self.buffer.as_mut_ptr().cast(),
                    self.buffer.len(),
                    0,
                    (&raw mut from).cast(),
                    &mut len,
                )
            };
            let frame = self.buffer.get(..usize::try_from(received).ok()?)?;
            let Some((header, body)) = frame.split_at_checked(HEADER) else { continue };
            if from.sll_pkttype == libc::PACKET_OUTGOING || header[12..] != ETHERTYPE {
                continue;
            }
            let Some(group) = node::group_of(body) else { continue };
            return Some([&header[..12], &TAG_ETHERTYPE, &group.0.to_be_bytes(), &ETHERTYPE, body].concat());
        }
    }

    /// Puts a frame there.
    pub(super) fn send(&self, frame: &[u8]) -> Result<(), Error> {
        // SAFETY: bytes of this length, which the call only reads.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if sent < 0 { Err(Error::io("cannot send")(io::Error::last_os_error())) } else { Ok(()) }
    }
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
