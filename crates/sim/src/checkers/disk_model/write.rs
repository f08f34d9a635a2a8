//! Writes to a block, and which of them a read may return.

/// A write to a block, or what stands for one.
#[derive(Clone)]
pub(super) struct Write {
    /// What a read returns of it: the request's number, or 0 for zeroes.
    pub(super) value: u64,
    pub(super) request: u64,
    pub(super) start: u64,
    /// By then it has happened, if it ever does.
    pub(super) end: Option<u64>,
    /// The end of the first read that has returned it.
    pub(super) observed: Option<u64>,
    /// Nobody knows whether it has happened: its client is gone.
    pub(super) maybe: bool,
    /// It was durable when it ended.
    pub(super) durable: bool,
    /// The end of a read that proves that something later has replaced it.
    pub(super) replaced: Option<u64>,
    /// The same, where nobody had been told that what replaced it has happened.
    pub(super) eclipses: Vec<Eclipse>,
    /// The medium has failed it: done or not, what is kept of earlier ones may come back over it.
    pub(super) failed: bool,
}

/// A read has returned a write that nobody had been told of, and so replaced another one.
#[derive(Clone, Copy)]
pub(super) struct Eclipse {
    pub(super) request: u64,
    /// When the read ended.
    pub(super) at: u64,
    /// The power has failed since, and has left the other one.
    pub(super) is_taken: bool,
    /// If nobody is ever told of it, the borrower still keeps it, since it was under way.
    pub(super) is_kept: bool,
}

impl Eclipse {
    /// Whether it has gone with the power, and comes back no more.
    pub(super) fn is_over(&self, writes: &[Write]) -> bool {
        let is_in_doubt = |write: &Write| write.failed || (!self.is_kept && !write.was_answered());
        self.is_taken && writes.iter().any(|write| write.request == self.request && is_in_doubt(write))
    }
}

/// In place of a request: the medium has lost something, and the block has again what it had before.
pub(super) const WENT_BACK: u64 = u64::MAX;

impl core::fmt::Debug for Write {
    /// `value(request) start..end`, then when it was seen, replaced, eclipsed, and whether abandoned, durable.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}({}) {}..", self.value, self.request, self.start)?;
        self.end.map_or(Ok(()), |end| write!(f, "{end}"))?;
        self.observed.map_or(Ok(()), |at| write!(f, " seen {at}"))?;
        self.replaced.map_or(Ok(()), |at| write!(f, " replaced {at}"))?;
        self.eclipses.iter().try_for_each(|by| write!(f, " eclipsed {} by {}", by.at, by.request))?;
        f.write_str(if self.maybe { " abandoned" } else { "" })?;
        f.write_str(if self.durable { " durable" } else { "" })
    }
}

impl Write {
    /// One that begins.
    pub(super) fn new(value: u64, request: u64, start: u64) -> Self {
        Self {
            value,
            request,
            start,
            end: None,
            observed: None,
            maybe: false,
            durable: false,
            replaced: None,
            eclipses: Vec::new(),
            failed: false,
        }
    }

    pub(super) fn effective_end(&self) -> u64 {
        self.end.unwrap_or(u64::MAX).min(self.observed.unwrap_or(u64::MAX))
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Nothing writes it again: it had ended when a flush began that has ended.
    pub(super) fn is_settled(&self, flushed: u64) -> bool {
        self.end.is_some_and(|end| end < flushed)
    }

    pub(super) fn has_happened(&self) -> bool {
        self.observed.is_some() || (self.end.is_some() && !self.maybe)
    }

    /// Whether a client was told that it has happened.
    pub(super) fn was_answered(&self) -> bool {
        self.has_ended() && !self.maybe
    }

    /// Whether a read that begins at `start` comes behind what has replaced it. `writes` are those of the same block.
    pub(super) fn is_replaced(&self, start: u64, writes: &[Self]) -> bool {
        self.replaced.is_some_and(|at| at < start)
            || self.eclipses.iter().any(|by| by.at < start && !by.is_over(writes))
    }

    /// Whether it is over `earlier` if it began after the end of that one. What nobody waits for can happen behind a
    /// loss: only who asks for the same blocks waits for it.
    pub(super) fn hides(&self, earlier: &Self) -> bool {
        self.has_happened() && (self.request != WENT_BACK || !earlier.maybe)
    }
}

/// Whether a read from `start` to `end` may return write `index`.
pub(super) fn admissible(writes: &[Write], index: usize, start: u64, end: u64) -> bool {
    let write = &writes[index];
    let over = write.effective_end();
    write.start <= end
        && !write.is_replaced(start, writes)
        && !writes.iter().any(|w| w.hides(write) && w.start > over && w.effective_end() < start)
}
