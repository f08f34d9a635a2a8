//! Receiving: one system call fills a bounded set of buffers; what arrived coalesced is split again.

use std::io;
use std::os::fd::RawFd;
use std::ptr;

use rustix::io::Errno;

use super::name::{Control, Envelope, RawName, control_of};
use super::send::last_errno;
use super::udp::MAX_SEGMENTS;
use super::{RailCounters, is_fatal};
use crate::address::RailAddress;

/// Messages taken in one system call.
const MAX_MESSAGES: usize = 16;
/// Messages that are asked for where many come.
const MOST_ASKED: usize = 4;
/// Room for one message: as large as any UDP datagram, coalesced or not.
const BUFFER_BYTES: usize = 65_536;
/// Errors in a row after which a call gives up: each consumes one report of the kernel, so more is not expected.
const MAX_ERRORS_PER_CALL: usize = 64;

/// What one call of [`super::RailSocket::receive`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Datagrams given to the caller.
    pub datagrams: usize,
    /// There may be more than this call has taken: call again before sleeping.
    pub more: bool,
}

/// Buffers and headers, made once, and what of them is not yet given to the caller.
pub(super) struct ReceiveBatch {
    messages: Box<[libc::mmsghdr]>,
    names: Box<[RawName]>,
    controls: Box<[Control]>,
    pieces: Box<[libc::iovec]>,
    buffers: Box<[u8]>,
    /// Messages that the next system call asks for: the kernel takes as long to find that there is no further one as
    /// to hand one over, so where few come few are asked for.
    asked: usize,
    /// Messages the kernel filled in the last call, and the position of the next datagram in them.
    filled: usize,
    message: usize,
    offset: usize,
}

// SAFETY: the raw pointers inside point to memory of the batch itself and are set before each system call.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    pub(super) fn new() -> Self {
        let piece = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Self {
            // SAFETY: a message header is plain C data for which zero bytes are a value.
            messages: vec![unsafe { std::mem::zeroed() }; MAX_MESSAGES].into(),
            names: vec![RawName::empty(); MAX_MESSAGES].into(),
            controls: vec![Control::EMPTY; MAX_MESSAGES].into(),
            pieces: vec![piece; MAX_MESSAGES].into(),
            buffers: vec![0; MAX_MESSAGES * BUFFER_BYTES].into(),
            asked: 1,
            filled: 0,
            message: 0,
            offset: 0,
        }
    }

    pub(super) fn receive(
        &mut self,
        fd: RawFd,
        envelope: &impl Envelope,
        counters: &mut RailCounters,
        limit: usize,
        take: &mut dyn FnMut(RailAddress, &mut [u8]),
    ) -> io::Result<Received> {
        let before = counters.received;
        let given = |counters: &RailCounters| (counters.received - before) as usize;
        let (mut taken, mut errors) = (0, 0);
        loop {
            taken += self.hand_out(envelope, counters, limit - taken, take);
            if taken == limit {
                return Ok(Received { datagrams: given(counters), more: true });
            }
            // Later messages may hold up to MAX_SEGMENTS datagrams each; asking for few keeps little back.
            let most = (limit - taken).div_ceil(MAX_SEGMENTS).max(MOST_ASKED).min(limit - taken);
            let messages = self.asked.min(most).min(MAX_MESSAGES);
            match self.take_messages(fd, messages) {
                Ok(filled) => {
                    (self.filled, self.message, self.offset) = (filled, 0, 0);
                    self.asked = if filled < messages { filled } else { self.asked * 2 }.clamp(1, MOST_ASKED);
                    if filled < messages || messages == 1 {
                        self.hand_out(envelope, counters, limit - taken, take);
                        return Ok(Received {
                            datagrams: given(counters),
                            more: filled == messages || self.has_left(),
                        });
                    }
                }
                Err(Errno::AGAIN) => {
                    self.asked = (self.asked / 2).max(1);
                    return Ok(Received { datagrams: given(counters), more: false });
                }
                Err(error) if is_fatal(error) => return Err(error.into()),
                Err(error) => {
                    counters.receive_errors += u64::from(error != Errno::INTR);
                    errors += 1;
                    if errors == MAX_ERRORS_PER_CALL {
                        return Ok(Received { datagrams: given(counters), more: true });
                    }
                }
            }
        }
    }

    /// Whether there are datagrams that were taken and not given out.
    fn has_left(&self) -> bool {
        self.message < self.filled
    }

    /// Gives out what the kernel has filled, at most `limit` datagrams with those that are dropped; how many.
    fn hand_out(
        &mut self,
        envelope: &impl Envelope,
        counters: &mut RailCounters,
        limit: usize,
        take: &mut dyn FnMut(RailAddress, &mut [u8]),
    ) -> usize {
        let mut taken = 0;
        while self.has_left() && taken < limit {
            let header = &self.messages[self.message].msg_hdr;
            let bytes = (self.messages[self.message].msg_len as usize).min(BUFFER_BYTES);
            let buffer = &mut self.buffers[self.message * BUFFER_BYTES..][..bytes];
            let is_whole = header.msg_flags & libc::MSG_TRUNC == 0;
            let opened = envelope.open(header, &self.names[self.message], buffer).filter(|_| is_whole);
            let Some((from, buffer)) = opened else {
                *(if is_whole { &mut counters.foreign } else { &mut counters.truncated }) += 1;
                self.message += 1;
                taken += 1;
                continue;
            };
            let bytes = buffer.len();
            let segment = segment_size(header).unwrap_or(bytes).max(1);
            loop {
                if taken == limit {
                    return taken;
                }
                let end = self.offset.saturating_add(segment).min(bytes);
                take(from, &mut buffer[self.offset..end]);
                taken += 1;
                counters.received += 1;
                self.offset = end;
                if end == bytes {
                    break;
                }
            }
            (self.message, self.offset) = (self.message + 1, 0);
        }
        taken
    }

    fn take_messages(&mut self, fd: RawFd, count: usize) -> Result<usize, Errno> {
        for index in 0..count {
            let buffer = &mut self.buffers[index * BUFFER_BYTES..][..BUFFER_BYTES];
            self.pieces[index] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: BUFFER_BYTES };
            let header = &mut self.messages[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = RawName::CAPACITY;
            header.msg_iov = &raw mut self.pieces[index];
            header.msg_iovlen = 1;
            header.msg_control = (&raw mut self.controls[index]).cast();
            header.msg_controllen = size_of::<Control>() as _;
            header.msg_flags = 0;
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the first `count` headers were just pointed at memory of this batch, of the lengths given there.
        let filled = unsafe {
            libc::recvmmsg(fd, self.messages.as_mut_ptr(), count as u32, flags as _, ptr::null_mut())
        };
        usize::try_from(filled).map_err(|_| last_errno())
    }
}

/// The size the kernel coalesced by, if it did: an int, though one fits 16 bits.
fn segment_size(header: &libc::msghdr) -> Option<usize> {
    let size = control_of::<libc::c_int>(header, libc::SOL_UDP, libc::UDP_GRO)?;
    usize::try_from(size).ok().filter(|size| *size > 0)
}
