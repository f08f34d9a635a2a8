//! What both ends of a loan have in common: requester ids, what is refused, and how reads are completed.

use base::ledger::{PageIndex, Pages};
use base::{INLINE_MAX, PageSlice, Payload};
use fabric::AccessKind;
use link::Port;
use pcie::{Bdf, Completion, CompletionStatus, ConfigRequest, Header, MemoryRequest, ReadCompletionBoundary};

use crate::cells::EdgeGauges;
use crate::denial::Right;

/// Functions behind one bus, and buses behind the root complex.
const BUSES: usize = 255;

/// What requests of the other end of the loan in this place bear, and completions for it: by that they are told from
/// those of all other loans of the domain. Bus 0 is the domain's own.
pub fn requester_of(place: usize) -> Bdf {
    Bdf((((place % BUSES + 1) << 8) | (place / BUSES)) as u16)
}

/// Completes a read with a status other than success.
pub(crate) fn fail_read(
    port: &mut Port<'_>,
    request: &MemoryRequest,
    completer: Bdf,
    status: CompletionStatus,
) {
    complete(port, Completion::failure(request, completer, status), Payload::None, true);
}

/// Refuses a request as unsupported, and counts it.
pub(crate) fn refuse(port: &mut Port<'_>, gauges: &EdgeGauges, header: &Header, completer: Bdf) {
    match header {
        Header::MemoryRead(request) => {
            gauges.deny(request.requester, request.byte_range().0, AccessKind::Read);
            fail_read(port, request, completer, CompletionStatus::UnsupportedRequest);
        }
        Header::MemoryWrite(request) => {
            gauges.deny(request.requester, request.byte_range().0, AccessKind::Write);
        }
        Header::ConfigRead(request) | Header::ConfigWrite(request) => {
            refuse_config(port, gauges, request, completer);
        }
        Header::Completion(_) | Header::Message(_) => {}
    }
}

/// Refuses a configuration request: of another requester than the stream's, or of a function, for which a host has no
/// configuration space of its own to look at.
pub(crate) fn refuse_config(
    port: &mut Port<'_>,
    gauges: &EdgeGauges,
    request: &ConfigRequest,
    completer: Bdf,
) {
    let (requester, tag) = (request.requester, request.tag);
    gauges.deny(requester, u64::from(request.register) * 4, Right::Config);
    let refusal = Completion::without_data(requester, tag, completer, CompletionStatus::UnsupportedRequest);
    port.sender.push_completion(refusal, Payload::None, true);
}

/// Completes a configuration request, with a dword for a read.
pub(crate) fn complete_config(
    port: &mut Port<'_>,
    request: &pcie::ConfigRequest,
    completer: Bdf,
    value: Option<u32>,
) {
    let (requester, tag) = (request.requester, request.tag);
    match value {
        Some(value) => {
            let header = Completion::config_data(requester, tag, completer);
            complete(port, header, Payload::inline(&value.to_le_bytes()), true);
        }
        None => {
            let header = Completion::without_data(requester, tag, completer, CompletionStatus::Success);
            complete(port, header, Payload::None, true);
        }
    }
}

/// Completes a read of at most [`INLINE_MAX`] bytes, given with the padding up to whole dwords.
pub(crate) fn complete_inline(
    port: &mut Port<'_>,
    request: &MemoryRequest,
    completer: Bdf,
    max_payload: usize,
    dwords: &[u8],
) {
    let mut parts =
        Completion::split(request, completer, max_payload, ReadCompletionBoundary::Bytes64).peekable();
    while let Some(part) = parts.next() {
        let start = (request.padding() + part.offset) / 4 * 4;
        let payload = Payload::inline(&dwords[start..start + part.payload_len()]);
        complete(port, part.completion, payload, parts.peek().is_none());
    }
}

/// Completes a read with the bytes that lie at `offset` of a page, which is at the same place of a dword as the
/// address.
pub(crate) fn complete_page(
    port: &mut Port<'_>,
    request: &MemoryRequest,
    completer: Bdf,
    max_payload: usize,
    (page, offset): (PageIndex, usize),
) {
    let mut parts =
        Completion::split(request, completer, max_payload, ReadCompletionBoundary::Bytes64).peekable();
    while let Some(part) = parts.next() {
        let start = (offset + part.offset) / 4 * 4;
        let slice = PageSlice { page, offset: start as u16, len: part.payload_len() as u16 };
        complete(port, part.completion, Payload::Page(slice), parts.peek().is_none());
    }
}

/// Completes a read whose bytes `read` copies to a buffer: by value where they are few, else by way of a page.
pub(crate) fn complete_copied(
    port: &mut Port<'_>,
    pages: &Pages<'_>,
    request: &MemoryRequest,
    completer: Bdf,
    max_payload: usize,
    read: impl FnOnce(&mut [u8]),
) {
    let read = |out: &mut [u8]| {
        read(out);
        true
    };
    complete_found(port, pages, request, completer, max_payload, read);
}

/// The same of a read whose bytes may turn out not to be there. False if it was refused for that.
pub(crate) fn complete_found(
    port: &mut Port<'_>,
    pages: &Pages<'_>,
    request: &MemoryRequest,
    completer: Bdf,
    max_payload: usize,
    read: impl FnOnce(&mut [u8]) -> bool,
) -> bool {
    let len = usize::from(request.length_dw) * 4;
    let mut bytes = [0; 4096];
    // A request has 1024 dwords at most, those included whose bytes are not wanted (`MemoryRequest`, PCIe 6.0 §2.2.2).
    let (_, wanted) = request.byte_range();
    if !read(&mut bytes[request.padding()..request.padding() + wanted]) {
        fail_read(port, request, completer, CompletionStatus::UnsupportedRequest);
        return false;
    }
    if len <= INLINE_MAX {
        complete_inline(port, request, completer, max_payload, &bytes[..len]);
    } else if let Some(page) = pages.alloc() {
        pages.write(page, 0, &bytes[..len]);
        complete_page(port, request, completer, max_payload, (page, request.padding()));
        pages.release(page);
    } else {
        fail_read(port, request, completer, CompletionStatus::CompleterAbort);
    }
    true
}

/// Queues a completion.
fn complete(port: &mut Port<'_>, completion: Completion, payload: Payload, last: bool) {
    port.sender.push_completion(completion, payload, last);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_places_have_one_requester_and_none_is_on_the_domains_own_bus() {
        let mut seen = std::collections::BTreeSet::new();
        for place in 0..BUSES * 256 {
            let requester = requester_of(place);
            assert!(requester.0 >> 8 != 0 && seen.insert(requester.0), "{place}");
        }
        assert_eq!(requester_of(0), Bdf(0x0100));
    }
}
