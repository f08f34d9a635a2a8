//! Sending: datagrams are gathered into messages, messages into one system call.

use std::io::{self, IoSlice};
use std::os::fd::RawFd;
use std::ptr;

use rustix::io::Errno;

use super::name::{Control, Envelope, HEAD_MAX, RawName};
use super::udp::{MAX_DATAGRAM_BYTES, MAX_SEGMENTS};
use super::{RailCounters, is_fatal};
use crate::address::RailAddress;

/// Most pieces a datagram may consist of.
pub(super) const MAX_PARTS: usize = 64;
/// Messages in one system call.
const MAX_MESSAGES: usize = 64;
/// Pieces of memory in one message (`UIO_MAXIOV`).
const MAX_PIECES_PER_MESSAGE: usize = 1024;
/// Pieces of memory in one system call.
const MAX_PIECES: usize = 2048;
// SAFETY: the macro behind this function only computes with its argument.
const SEGMENT_CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;
const _: () = assert!(SEGMENT_CONTROL_BYTES <= size_of::<Control>());

/// One datagram to send: where to, and its bytes in pieces (header and payload need not lie together).
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The receiver.
    pub to: RailAddress,
    /// Its contents, in order; at most 64 pieces.
    pub parts: &'a [IoSlice<'a>],
}

impl Datagram<'_> {
    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }
}

/// The memory of a batch: headers, names and piece tables, made once.
pub(super) struct SendBatch {
    messages: Box<[libc::mmsghdr]>,
    names: Box<[RawName]>,
    heads: Box<[[u8; HEAD_MAX]]>,
    controls: Box<[Control]>,
    pieces: Box<[libc::iovec]>,
    /// Datagrams in each message.
    counts: [usize; MAX_MESSAGES],
}

// SAFETY: the raw pointers inside are only valid, and only used, within one call of `Sender::send`.
unsafe impl Send for SendBatch {}

impl SendBatch {
    pub(super) fn new() -> Self {
        let piece = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Self {
            // SAFETY: a message header is plain C data for which zero bytes are a value.
            messages: vec![unsafe { std::mem::zeroed() }; MAX_MESSAGES].into(),
            names: vec![RawName::empty(); MAX_MESSAGES].into(),
            heads: vec![[0; HEAD_MAX]; MAX_MESSAGES].into(),
            controls: vec![Control::EMPTY; MAX_MESSAGES].into(),
            pieces: vec![piece; MAX_PIECES].into(),
            counts: [0; MAX_MESSAGES],
        }
    }

    /// Fills messages from the front of `datagrams`; returns how many messages.
    fn fill<E: Envelope>(&mut self, datagrams: &[Datagram<'_>], gso: bool, envelope: &E) -> usize {
        let (mut message, mut piece, mut next) = (0, 0, 0);
        while next < datagrams.len() && message < MAX_MESSAGES {
            let (count, pieces) =
                if gso { mergeable(&datagrams[next..]) } else { (1, datagrams[next].parts.len()) };
            assert!(pieces <= MAX_PIECES_PER_MESSAGE, "a datagram has at most {MAX_PARTS} parts");
            let pieces = pieces + usize::from(E::HEAD > 0);
            if piece + pieces > MAX_PIECES {
                break;
            }
            self.fill_message(message, piece, &datagrams[next..next + count], envelope);
            self.counts[message] = count;
            piece += pieces;
            next += count;
            message += 1;
        }
        message
    }

    /// Several datagrams are one message only of a medium that has nothing in front of each.
    fn fill_message<E: Envelope>(
        &mut self,
        index: usize,
        first_piece: usize,
        group: &[Datagram<'_>],
        envelope: &E,
    ) {
        let name_bytes = envelope.close(&group[0], &mut self.names[index], &mut self.heads[index]);
        let mut used = 0;
        if E::HEAD > 0 {
            let base = self.heads[index].as_mut_ptr().cast();
            self.pieces[first_piece] = libc::iovec { iov_base: base, iov_len: E::HEAD };
            used = 1;
        }
        for part in group.iter().flat_map(|datagram| datagram.parts) {
            let base = part.as_ptr().cast_mut().cast();
            self.pieces[first_piece + used] = libc::iovec { iov_base: base, iov_len: part.len() };
            used += 1;
        }
        let control = &mut self.controls[index];
        let header = &mut self.messages[index].msg_hdr;
        header.msg_name = (&raw mut self.names[index]).cast();
        header.msg_namelen = name_bytes;
        header.msg_iov = self.pieces[first_piece..].as_mut_ptr();
        header.msg_iovlen = used as _;
        header.msg_control = (&raw mut *control).cast();
        header.msg_controllen = 0;
        header.msg_flags = 0;
        if group.len() > 1 {
            header.msg_controllen = SEGMENT_CONTROL_BYTES as _;
            let bytes =
                u16::try_from(group[0].bytes()).expect("mergeable() bounds the sum of a group by 65507");
            set_segment_size(header, bytes);
        }
    }
}

/// Writes the control message that tells the kernel where to cut.
fn set_segment_size(header: &mut libc::msghdr, bytes: u16) {
    // SAFETY: the header's control memory is SEGMENT_CONTROL_BYTES long, checked against its type above, aligned
    // for a control header, and exclusively ours; so the first header and its two bytes of data lie inside.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(header);
        (*control).cmsg_level = libc::SOL_UDP;
        (*control).cmsg_type = libc::UDP_SEGMENT;
        (*control).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(control).cast::<u16>().write_unaligned(bytes);
    }
}

/// How many datagrams from the front can leave as one segmented message, and of how many pieces it consists: same
/// peer, all of one size but the last, which may be shorter.
fn mergeable(datagrams: &[Datagram<'_>]) -> (usize, usize) {
    let first = &datagrams[0];
    let segment = first.bytes();
    let (mut count, mut total, mut pieces) = (1, segment, first.parts.len());
    if segment == 0 {
        return (count, pieces);
    }
    for datagram in datagrams[1..].iter().take(MAX_SEGMENTS - 1) {
        let bytes = datagram.bytes();
        total += bytes;
        let fits = total <= MAX_DATAGRAM_BYTES && pieces + datagram.parts.len() <= MAX_PIECES_PER_MESSAGE;
        if datagram.to != first.to || bytes > segment || bytes == 0 || !fits {
            break;
        }
        count += 1;
        pieces += datagram.parts.len();
        if bytes < segment {
            break;
        }
    }
    (count, pieces)
}

/// One call's view of the socket.
pub(super) struct Sender<'a, E> {
    pub(super) fd: RawFd,
    pub(super) envelope: &'a E,
    pub(super) batch: &'a mut SendBatch,
    pub(super) gso: &'a mut bool,
    pub(super) counters: &'a mut RailCounters,
}

impl<E: Envelope> Sender<'_, E> {
    pub(super) fn send(&mut self, datagrams: &[Datagram<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < datagrams.len() {
            let messages = self.batch.fill(&datagrams[taken..], *self.gso, self.envelope);
            let mut done = 0;
            while done < messages {
                match self.send_messages(done, messages) {
                    Ok(sent) => {
                        let count: usize = self.batch.counts[done..done + sent].iter().sum();
                        self.counters.sent += count as u64;
                        taken += count;
                        done += sent;
                    }
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(taken),
                    Err(error) if is_fatal(error) => return Err(error.into()),
                    Err(error) if self.batch.counts[done] > 1 => {
                        // Sending one by one reuses the batch's memory, so the rest is filled anew.
                        let group = &datagrams[taken..taken + self.batch.counts[done]];
                        let sent = self.send_singly(group, error)?;
                        taken += sent;
                        if sent < group.len() {
                            return Ok(taken);
                        }
                        break;
                    }
                    Err(error) => {
                        self.count_refusal(error);
                        taken += 1;
                        done += 1;
                    }
                }
            }
        }
        Ok(taken)
    }

    fn send_messages(&mut self, from: usize, to: usize) -> Result<usize, Errno> {
        let messages = &mut self.batch.messages[from..to];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        if let [libc::mmsghdr { msg_hdr: it, .. }] = messages
            && it.msg_iovlen == 1
            && it.msg_controllen == 0
        {
            // One piece for one receiver: the kernel need not read tables.
            // SAFETY: as below; a message of one piece has that at its head.
            let sent = unsafe {
                let libc::iovec { iov_base, iov_len } = *it.msg_iov;
                libc::sendto(self.fd, iov_base, iov_len, flags, it.msg_name.cast(), it.msg_namelen)
            };
            return if sent < 0 { Err(last_errno()) } else { Ok(1) };
        }
        // SAFETY: every header in the range was filled by `fill_message` in this call of `send`: its name,
        // control and piece tables lie in the batch, and the pieces in datagrams borrowed for the whole call.
        let sent =
            unsafe { libc::sendmmsg(self.fd, messages.as_mut_ptr(), messages.len() as u32, flags as _) };
        usize::try_from(sent).map_err(|_| last_errno())
    }

    /// A segmented message was refused. Its datagrams go one by one; if that works, segments are what the way does
    /// not take, and no more are made.
    fn send_singly(&mut self, group: &[Datagram<'_>], refusal: Errno) -> io::Result<usize> {
        let mut taken = 0;
        let before = self.counters.sent;
        while taken < group.len() {
            self.batch.fill(&group[taken..=taken], false, self.envelope);
            match self.send_messages(0, 1) {
                Ok(_) => {
                    self.counters.sent += 1;
                    taken += 1;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) if is_fatal(error) => return Err(error.into()),
                Err(error) => {
                    self.count_refusal(error);
                    taken += 1;
                }
            }
        }
        let about_segments = matches!(refusal, Errno::IO | Errno::INVAL | Errno::OPNOTSUPP | Errno::MSGSIZE);
        if about_segments && self.counters.sent > before {
            *self.gso = false;
        }
        Ok(taken)
    }

    fn count_refusal(&mut self, error: Errno) {
        let counter = match error {
            Errno::MSGSIZE => &mut self.counters.too_large,
            Errno::NOBUFS | Errno::NOMEM => &mut self.counters.no_buffer,
            Errno::CONNREFUSED
            | Errno::NETUNREACH
            | Errno::HOSTUNREACH
            | Errno::NETDOWN
            | Errno::HOSTDOWN
            | Errno::ADDRNOTAVAIL
            | Errno::ACCESS
            | Errno::PERM => &mut self.counters.unreachable,
            _ => &mut self.counters.other,
        };
        *counter += 1;
    }
}

pub(super) fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn sizes(of: &[(u16, usize)]) -> (usize, usize) {
        let bytes = vec![0u8; MAX_DATAGRAM_BYTES + 1];
        let parts: Vec<[IoSlice<'_>; 1]> =
            of.iter().map(|(_, size)| [IoSlice::new(&bytes[..*size])]).collect();
        let datagrams: Vec<Datagram<'_>> = of
            .iter()
            .zip(&parts)
            .map(|((port, _), parts)| Datagram {
                to: SocketAddr::from(([127, 0, 0, 1], *port)).into(),
                parts,
            })
            .collect();
        mergeable(&datagrams)
    }

    #[test]
    fn groups_end_where_the_kernel_could_not_cut() {
        assert_eq!(sizes(&[(1, 100), (1, 100), (1, 100)]), (3, 3));
        assert_eq!(sizes(&[(1, 100), (1, 40), (1, 100)]), (2, 2));
        assert_eq!(sizes(&[(1, 100), (1, 101)]), (1, 1));
        assert_eq!(sizes(&[(1, 100), (2, 100)]), (1, 1));
        assert_eq!(sizes(&[(1, 0), (1, 0)]), (1, 1));
        assert_eq!(sizes(&[(1, 9), (1, 0)]), (1, 1));
        assert_eq!(sizes(&[(1, 1400); 100]), (46, 46));
        assert_eq!(sizes(&[(1, 10); 100]), (64, 64));
        assert_eq!(sizes(&[(1, MAX_DATAGRAM_BYTES), (1, 1)]), (1, 1));
    }
}
