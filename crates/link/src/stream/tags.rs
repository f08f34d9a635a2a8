use core::time::Duration;
use std::collections::VecDeque;

use base::Instant;
use base::Rule;
use base::ledger::{Cell, Journal, Layout, SlotCells, Slots};
use pcie::{Bdf, Completion, Tag};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Words of the map of tags.
const WORDS: usize = 8;
/// Tags of a requester: half of what ten bits name; each reserves room for its completion at both ends.
const TAGS: usize = WORDS * 64;

/// The storage of [`Tags`]. All zeroes: every tag is free.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct TagCells {
    slots: SlotCells<WORDS>,
    requests: [Cell<Request>; TAGS],
}

/// What a tag stands for.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
struct Request {
    deadline: u64,
    /// The requester's own name for the request.
    context: u32,
    /// Told apart from an earlier use of the tag.
    use_count: u32,
    requester: u16,
    /// Bytes requested; zero for a request that is completed without data.
    len: u16,
    received: u16,
    /// Set by a time-out: nobody waits any more, but the completion may still come.
    quarantined: u16,
}

/// A completion has been matched with its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// The context given to [`Tags::alloc`].
    pub context: u32,
    /// Bytes of the request that came before.
    pub offset: usize,
    /// Whether the request has ended.
    pub last: bool,
    /// False for a quarantined tag: the completion is dropped.
    pub wanted: bool,
}

/// A request has had no completion in time (PCIe 6.0 §2.8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimedOut {
    /// The context given to [`Tags::alloc`].
    pub context: u32,
}

/// The tags of a requester: each reserves the space for its completion, also in the quarantine after a time-out.
pub struct Tags<'m> {
    cells: &'m TagCells,
    slots: Slots<'m, WORDS>,
    journal: Journal<'m>,
    patience: Duration,
    /// Deadlines in order, since all requests wait equally long. Rebuilt by each card.
    deadlines: VecDeque<(Instant, u16, u32)>,
}

impl<'m> Tags<'m> {
    /// The tags in `cells`, of a requester that waits so long for a completion.
    pub fn new(cells: &'m TagCells, journal: Journal<'m>, patience: Duration) -> Self {
        let slots = Slots::new(&cells.slots, journal);
        let mut deadlines: Vec<_> = slots
            .iter()
            .map(|tag| (tag, cells.requests[tag as usize].get()))
            .filter(|(_, request)| request.quarantined == 0)
            .map(|(tag, request)| (Instant::from_nanos(request.deadline), tag, request.use_count))
            .collect();
        deadlines.sort_unstable_by_key(|&(deadline, ..)| deadline);
        Self { cells, slots, journal, patience, deadlines: deadlines.into() }
    }

    /// Takes a tag for a request of `len` bytes that `context` names; `None` when all are out.
    pub fn alloc(&mut self, now: Instant, requester: Bdf, context: u32, len: usize) -> Option<Tag> {
        let slot = self.slots.alloc()?;
        let cell = &self.cells.requests[slot as usize];
        let (deadline, use_count) = (now + self.patience, cell.get().use_count.wrapping_add(1));
        let request = Request {
            deadline: deadline.as_nanos(),
            context,
            use_count,
            requester: requester.0,
            len: len as u16,
            received: 0,
            quarantined: 0,
        };
        cell.set(self.journal, request);
        if self.deadlines.len() >= 4 * TAGS {
            self.forget_completed();
        }
        self.deadlines.push_back((deadline, slot, use_count));
        Some(Tag::new(slot).expect("there are fewer slots than tags"))
    }

    /// Gives back a tag whose request was never queued.
    pub fn cancel(&mut self, tag: Tag) {
        self.slots.free(tag.get());
    }

    /// Whether a tag can be had in this step.
    pub fn has_room(&self) -> bool {
        self.slots.can_alloc()
    }

    /// Whether no tag can be had in this step, but in the next.
    pub(crate) fn has_room_after_commit(&self) -> bool {
        !self.slots.can_alloc() && self.slots.used() < TAGS
    }

    /// Requests whose completion is still to come, the quarantined ones among them.
    pub fn outstanding(&self) -> usize {
        self.slots.used()
    }

    /// Matches a completion; `None` for an unexpected one (PCIe 6.0 §2.3.2), which is to be dropped and counted.
    pub fn complete(&mut self, completion: &Completion) -> Option<Completed> {
        let tag = completion.tag.get();
        if tag as usize >= TAGS || !self.slots.is_used(tag) {
            return None;
        }
        // Checked: a tag that is out.
        let cell = &self.cells.requests[tag as usize];
        let mut request = cell.get();
        let data = completion.data_len() as u16;
        let success = completion.status == pcie::CompletionStatus::Success;
        let left = request.len.saturating_sub(request.received);
        let fits =
            !success || request.len == 0 || (data > 0 && data <= left && completion.byte_count == left);
        if completion.requester.0 != request.requester || !fits {
            return None;
        }
        let offset = usize::from(request.received);
        let last = !success || data >= left;
        if last {
            self.slots.free(tag);
        } else {
            request.received += data;
            cell.set(self.journal, request);
        }
        Some(Completed { context: request.context, offset, last, wanted: request.quarantined == 0 })
    }

    /// When the next request times out.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.front().map(|&(deadline, ..)| deadline)
    }

    /// A request that is overdue at `now`; its tag stays in quarantine.
    pub fn poll_timed_out(&mut self, now: Instant) -> Option<TimedOut> {
        while let Some(&(deadline, tag, use_count)) = self.deadlines.front() {
            let cell = &self.cells.requests[tag as usize];
            let mut request = cell.get();
            let live = self.is_live(tag, use_count);
            if live && deadline > now {
                return None;
            }
            self.deadlines.pop_front();
            if live {
                if self.journal.rule(Rule::QuarantineTags) {
                    request.quarantined = 1;
                    cell.set(self.journal, request);
                } else {
                    self.slots.free(tag);
                }
                return Some(TimedOut { context: request.context });
            }
        }
        None
    }

    fn is_live(&self, tag: u16, use_count: u32) -> bool {
        let request = self.cells.requests[tag as usize].get();
        self.slots.is_used(tag) && request.use_count == use_count && request.quarantined == 0
    }

    /// Drops the deadlines of requests that have ended, which keeps their number bounded by that of the tags.
    fn forget_completed(&mut self) {
        let mut deadlines = core::mem::take(&mut self.deadlines);
        deadlines.retain(|&(_, tag, use_count)| self.is_live(tag, use_count));
        self.deadlines = deadlines;
    }

    /// The stream is reset: no completion of its requests can come any more.
    pub fn reset(&mut self) {
        for tag in self.slots.iter() {
            self.slots.free(tag);
        }
        self.deadlines.clear();
    }
}
