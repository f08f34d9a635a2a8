//! Byte streams that go on at the exact byte after the process at them was killed.
//!
//! A plain `read` moves bytes out of the socket first and tells the program how many afterwards;
//! killed in between, nobody knows. Here the kernel itself writes the count into shared memory: a
//! `recvmmsg` or `sendmmsg` of one message stores the bytes moved in `mmsghdr.msg_len`, and it
//! finishes that before SIGKILL takes effect. The header lies in the [`StreamAccount`], the
//! account in memory that outlives the process, and so do the bytes.
//!
//! ```text
//!     position = slots[current].base + slots[current].msg_len        always, between any two stores
//!
//!     before a call, if slots[current].msg_len is not zero:
//!         other.base = position;  other.msg_len = 0;  current = other
//!     the call:  the kernel adds to slots[current].msg_len (from zero) what it moved
//! ```
//!
//! The memory of the account and of the bytes must be present (see
//! [`crate::memory::Mapping::populate`]): a page fault under SIGKILL fails, and the kernel could
//! not leave its note.

use base::ledger::Layout;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use rustix::io::Errno;

/// The account of one direction of one stream. Zero bytes are the account of a stream at position 0.
///
/// Its cells are written by the kernel and by the one process that uses the stream; they are never part of an undo.
#[repr(C)]
#[derive(Layout, Debug, Default)]
pub struct StreamAccount {
    slots: [Slot; 2],
    current: AtomicU32,
    reserved: AtomicU32,
}

/// A position and, in the kernel's own layout, a message that adds to it.
#[repr(C)]
#[derive(Layout, Debug, Default)]
struct Slot {
    base: AtomicU64,
    /// A `struct mmsghdr`: the last eight bytes hold `msg_len`.
    message: [AtomicU64; 8],
}

const _: () = assert!(size_of::<StreamAccount>() == 152 && align_of::<StreamAccount>() == 8);
const _: () = assert!(size_of::<libc::mmsghdr>() == size_of::<[AtomicU64; 8]>());
const _: () = assert!(align_of::<libc::mmsghdr>() <= align_of::<AtomicU64>());

/// What a call moved.
#[derive(Debug)]
pub enum StreamProgress {
    /// This many bytes, at least one; the position went on by as many.
    Progressed(usize),
    /// None now: wait for readiness.
    WouldBlock,
    /// None ever: the other end closed, or reset, the stream.
    Closed,
    /// The call failed; the position did not change.
    Failed(io::Error),
}

impl StreamAccount {
    /// Bytes moved since the stream began.
    #[must_use]
    pub fn position(&self) -> u64 {
        let slot = &self.slots[self.index()];
        slot.base.load(Ordering::Acquire).wrapping_add(u64::from(slot.moved().load(Ordering::Acquire)))
    }

    /// Starts the account of a new stream. Only while no process uses it.
    pub fn reset(&self) {
        for slot in &self.slots {
            slot.base.store(0, Ordering::Relaxed);
            slot.moved().store(0, Ordering::Relaxed);
        }
        self.current.store(0, Ordering::Release);
    }

    fn index(&self) -> usize {
        (self.current.load(Ordering::Acquire) & 1) as usize
    }

    /// A slot whose `msg_len` is zero and whose base is the position, made current. `after_store` is where a kill could
    /// fall: the position is the same there.
    fn fresh(&self, mut after_store: impl FnMut()) -> &Slot {
        let index = self.index();
        if self.slots[index].moved().load(Ordering::Acquire) == 0 {
            return &self.slots[index];
        }
        let other = &self.slots[1 - index];
        // The order matters to a successor: it sees the old slot, whole, until `current` has changed.
        other.base.store(self.position(), Ordering::Release);
        after_store();
        other.moved().store(0, Ordering::Release);
        after_store();
        self.current.store(1 - index as u32, Ordering::Release);
        after_store();
        other
    }
}

impl Slot {
    fn header(&self) -> *mut libc::mmsghdr {
        self.message[0].as_ptr().cast()
    }

    fn moved(&self) -> &AtomicU32 {
        // SAFETY: the message has the size and alignment of an mmsghdr, as asserted above, so its `msg_len` lies
        // inside; it is only accessed atomically here, and by the kernel during a call.
        unsafe {
            AtomicU32::from_ptr(&raw mut (*self.message.as_ptr().cast_mut().cast::<libc::mmsghdr>()).msg_len)
        }
    }

    /// Points the message at pieces of memory; leaves `msg_len` as it is.
    fn aim(&self, pieces: *mut libc::iovec, count: usize) {
        // SAFETY: a message header is plain C data for which zero bytes are a value.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = pieces;
        header.msg_iovlen = count as _;
        // SAFETY: the header lies in the slot, which one process uses at a time, in cells that allow writing
        // through a shared reference.
        unsafe { (&raw mut (*self.header()).msg_hdr).write(header) };
        // Everything of the account is in place before the kernel reads it.
        compiler_fence(Ordering::SeqCst);
    }
}

/// Receives into `buffers`, which lie in memory that outlives this process, at the account's position. Never blocks.
///
/// # Panics
/// If the buffers have no room: the end of the stream could not be told from it.
pub fn receive(
    fd: BorrowedFd<'_>,
    account: &StreamAccount,
    buffers: &mut [IoSliceMut<'_>],
) -> StreamProgress {
    assert!(buffers.iter().any(|buffer| !buffer.is_empty()), "a receive needs room");
    let slot = account.fresh(|| {});
    slot.aim(buffers.as_mut_ptr().cast(), buffers.len());
    // SAFETY: the header was just aimed at the buffers (an IoSliceMut has the layout of an iovec), which live across
    // the call; its `msg_len` lies in the account.
    let messages =
        unsafe { libc::recvmmsg(fd.as_raw_fd(), slot.header(), 1, libc::MSG_DONTWAIT as _, ptr::null_mut()) };
    finish(slot, messages)
}

/// Sends from `buffers`, the bytes of the stream from the account's position on. Never blocks; may send a part.
///
/// # Panics
/// If there is nothing to send.
pub fn send(fd: BorrowedFd<'_>, account: &StreamAccount, buffers: &[IoSlice<'_>]) -> StreamProgress {
    assert!(buffers.iter().any(|buffer| !buffer.is_empty()), "a send needs bytes");
    let slot = account.fresh(|| {});
    slot.aim(buffers.as_ptr().cast_mut().cast(), buffers.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header was just aimed at the buffers (an IoSlice has the layout of an iovec), which live across the
    // call and are only read; its `msg_len` lies in the account.
    let messages = unsafe { libc::sendmmsg(fd.as_raw_fd(), slot.header(), 1, flags as _) };
    finish(slot, messages)
}

/// Copies what can be received to `room`, and leaves it where it is. The account is not concerned: the position stays.
pub(crate) fn peek(fd: BorrowedFd<'_>, room: &mut [u8]) -> StreamProgress {
    use rustix::net::RecvFlags;
    match rustix::net::recv(fd, room, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => StreamProgress::Closed,
        Ok((bytes, _)) => StreamProgress::Progressed(bytes),
        Err(Errno::AGAIN | Errno::INTR) => StreamProgress::WouldBlock,
        Err(Errno::CONNRESET | Errno::PIPE) => StreamProgress::Closed,
        Err(errno) => StreamProgress::Failed(errno.into()),
    }
}

/// Receives and forgets at most `room` bytes, outside of every account. Descriptors among them are closed by the
/// kernel.
pub(crate) fn receive_alone(fd: BorrowedFd<'_>, room: &mut [u8]) -> usize {
    rustix::net::recv(fd, room, rustix::net::RecvFlags::DONTWAIT).map_or(0, |(bytes, _)| bytes)
}

/// Ends a connection so that the other end sees an end of the stream, also if it has sent what nobody has read: a
/// socket that is closed with something unread in it resets the connection, and QEMU does not survive that. Other
/// copies of the socket may exist; none of them needs to be read any more.
pub(crate) fn hang_up(fd: BorrowedFd<'_>) {
    // From here on nothing can be sent to it, so what lies in it is all there will be.
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Both);
    let mut room = [0; 4096];
    while receive_alone(fd, &mut room) > 0 {}
}

fn finish(slot: &Slot, messages: libc::c_int) -> StreamProgress {
    if messages == 1 {
        return match slot.moved().load(Ordering::Acquire) {
            0 => StreamProgress::Closed,
            moved => StreamProgress::Progressed(moved as usize),
        };
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => StreamProgress::WouldBlock,
        Some(libc::EPIPE | libc::ECONNRESET) => StreamProgress::Closed,
        _ => StreamProgress::Failed(error),
    }
}

#[cfg(test)]
mod tests;
