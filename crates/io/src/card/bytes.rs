//! Bytes of a client on their way between its socket and the ledger. The kernel moves them, and keeps the account.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use base::ledger::Span;

use crate::stream_socket::{self, StreamAccount, StreamProgress};

/// Pieces of memory in one send.
const SEND_SPANS: usize = 64;

/// Receives into free input space; that there is none is as if nothing had come.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    account: &StreamAccount,
    room: [Option<Span<'_>>; 2],
) -> StreamProgress {
    let mut pieces = room.map(|span| IoSliceMut::new(span.map_or(&mut [], |span| writable(&span))));
    if pieces.iter().all(|piece| piece.is_empty()) {
        return StreamProgress::WouldBlock;
    }
    stream_socket::receive(socket, account, &mut pieces)
}

/// Sends what is owed to a client: of the spans that `owed` fills in as many as have `most` bytes, but at least one.
/// `None` if it fills in none.
pub(super) fn send<'m>(
    socket: BorrowedFd<'_>,
    account: &StreamAccount,
    most: usize,
    owed: impl FnOnce(&mut [Span<'m>]) -> usize,
) -> Option<StreamProgress> {
    let mut spans = [Span::empty(); SEND_SPANS];
    let count = owed(&mut spans);
    let mut pieces = [IoSlice::new(&[]); SEND_SPANS];
    let (mut gathered, mut bytes) = (0, 0);
    for (piece, span) in pieces.iter_mut().zip(&spans[..count]) {
        bytes += span.len();
        if gathered > 0 && bytes > most {
            break;
        }
        // SAFETY: what is owed to a client is not written before it was sent; the kernel only reads it.
        *piece = IoSlice::new(unsafe { std::slice::from_raw_parts(span.as_ptr(), span.len()) });
        gathered += 1;
    }
    (gathered > 0).then(|| stream_socket::send(socket, account, &pieces[..gathered]))
}

/// The span as the kernel is given it.
fn writable<'a>(span: &Span<'a>) -> &'a mut [u8] {
    // SAFETY: free input space of a connection: nothing else reads or writes it during the call it is made for.
    unsafe { std::slice::from_raw_parts_mut(span.as_ptr(), span.len()) }
}
