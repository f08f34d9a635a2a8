//! The memory that the kernel receives into: present before it is offered, and no more of it than clients fill.

use base::ledger::Span;
use node::EDGE_INPUT_BYTES;

/// Bytes that are offered to a client who has sent nothing to this card yet: some requests without data.
const LEAST: u64 = 4096;

/// How much of a connection's input this card has made present, by positions in its stream: what the kernel writes for
/// a dying process must not fault. The memory is a ring, so all of it is, once that is as much as the ring has.
///
/// A client that fills what it is offered gets half as much again: one that sends much soon has all, one that has sent
/// 64 KiB once has not cost as much again, and of hundreds that have nothing to send a new card touches one page each.
pub(super) struct Present {
    from: u64,
    to: u64,
}

impl Present {
    /// Nothing, of a stream that goes on from `position`.
    pub(super) fn from(position: u64) -> Self {
        Self { from: position, to: position }
    }

    /// What of `spans`, which is room from `position` on, may be received into now.
    pub(super) fn offer<'m>(&mut self, position: u64, spans: [Option<Span<'m>>; 2]) -> [Option<Span<'m>>; 2] {
        let present = self.to - self.from;
        if present >= EDGE_INPUT_BYTES as u64 {
            return spans;
        }
        if self.to <= position {
            let room: usize = spans.iter().flatten().map(Span::len).sum();
            self.to = position + (present / 2).max(LEAST).min(room as u64);
            cut(spans, self.to - position).iter().flatten().for_each(populate);
        }
        cut(spans, self.to - position)
    }
}

/// The first bytes of room that consists of two spans.
fn cut(spans: [Option<Span<'_>>; 2], bytes: u64) -> [Option<Span<'_>>; 2] {
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    spans.map(|span| {
        let span = span?.part(0, left);
        left -= span.len();
        (!span.is_empty()).then_some(span)
    })
}

/// Makes the pages of a piece of the ledger present.
pub(super) fn populate(span: &Span<'_>) {
    let page = rustix::param::page_size();
    let start = span.as_ptr().addr() / page * page;
    let end = (span.as_ptr().addr() + span.len()).next_multiple_of(page);
    // SAFETY: the range is inside the mapping, whose ends are page aligned; populating changes no content. Older
    // kernels refuse, and the pages are then present from the first life of the slot on.
    unsafe { libc::madvise(span.as_ptr().with_addr(start).cast(), end - start, libc::MADV_POPULATE_WRITE) };
}

#[cfg(test)]
mod tests {
    use base::RuleSet;
    use base::ledger::{Arena, Bytes};

    use super::*;

    const RING: usize = EDGE_INPUT_BYTES;

    /// All room of a ring from `position` on.
    fn room(ring: &Bytes<RING>, position: u64) -> [Option<Span<'_>>; 2] {
        let start = position as usize % RING;
        [ring.span(start, RING - start), ring.span(0, start)].map(|span| (!span.is_empty()).then_some(span))
    }

    fn bytes(spans: [Option<Span<'_>>; 2]) -> usize {
        spans.iter().flatten().map(Span::len).sum()
    }

    #[test]
    fn who_sends_much_is_offered_all_and_who_sends_little_a_page() {
        let arena = Arena::default();
        let ring = arena.zeroed::<Bytes<RING>>().ledger::<Bytes<RING>>(None, RuleSet::ALL).root;
        let start = RING as u64 - 5000;
        let (mut present, mut position) = (Present::from(start), start);
        assert_eq!(bytes(present.offer(position, room(ring, position))), 4096);
        position += 28;
        assert_eq!(bytes(present.offer(position, room(ring, position))), 4068, "the rest of it");
        let mut offers = Vec::new();
        while position < start + 2 * RING as u64 {
            let offered = bytes(present.offer(position, room(ring, position)));
            offers.push(offered);
            position += offered as u64;
        }
        assert_eq!(offers[..6], [4068, 4096, 4096, 6144, 9216, 13824]);
        assert!(offers[12..].iter().all(|offered| *offered == RING), "all of it was present once");
    }

    #[test]
    fn nothing_is_offered_that_is_no_room() {
        let arena = Arena::default();
        let ring = arena.zeroed::<Bytes<RING>>().ledger::<Bytes<RING>>(None, RuleSet::ALL).root;
        let mut present = Present::from(0);
        assert_eq!(bytes(present.offer(0, [None; 2])), 0);
        let little = [Some(ring.span(0, 100)), None];
        assert_eq!(bytes(present.offer(0, little)), 100);
        assert_eq!(bytes(present.offer(100, [None; 2])), 0);
        assert_eq!(bytes(present.offer(100, room(ring, 100))), 4096, "no more than that was made present");
    }
}
