//! A request without an answer, of a client or of a guest, and what becomes of it.

use core::ops::Range;

use super::{Finding, Orphan, Shared};
use crate::checkers::names;
use crate::checkers::single_owner::Life;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
    Zeroes,
    Trim,
    Flush,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Its number.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    /// What it writes is durable when it ends.
    pub(crate) fua: bool,
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// The tick at which it was asked.
    pub(crate) start: u64,
}

impl Request {
    pub(crate) fn blocks(&self) -> Range<u64> {
        self.first..self.first + self.count
    }

    /// The model has to know of it.
    pub(crate) fn begin(&self, shared: &mut Shared) {
        match self.kind {
            Kind::Read => shared.model.read_started(self.start),
            Kind::Write => shared.model.write_started(self.id, self.id, self.blocks(), self.start),
            Kind::Zeroes | Kind::Trim => {
                shared.model.write_started(self.id, 0, self.blocks(), self.start);
            }
            Kind::Flush => {}
        }
    }

    /// A write for which nobody waits any more has happened, or happens yet.
    pub(crate) fn abandon_write(&self, shared: &mut Shared, who: Life) {
        if !matches!(self.kind, Kind::Read | Kind::Flush) {
            shared.model.write_abandoned(self.id, self.blocks());
            shared.orphans.push(Orphan { request: self.id, blocks: self.blocks(), who });
        }
    }

    /// The same of any request.
    pub(crate) fn abandon(&self, shared: &mut Shared, who: Life) {
        if self.kind == Kind::Read {
            shared.model.read_abandoned(self.start);
        }
        self.abandon_write(shared, who);
    }

    /// The medium has failed it.
    pub(crate) fn fail(&self, shared: &mut Shared) {
        match self.kind {
            Kind::Read => shared.model.read_abandoned(self.start),
            Kind::Flush => {}
            _ => shared.model.write_failed(self.id, self.blocks(), shared.tick),
        }
    }

    /// A read of blocks of so many bytes has brought these.
    pub(crate) fn check_read(&self, block: u64, data: &[u8], shared: &mut Shared) -> Result<(), Finding> {
        let verdict = shared.model.read_ended(self.first, block as usize, data, self.start, shared.tick);
        verdict.map_err(|what| (names::DISK, format!("request {}: {what}", self.id)))
    }

    /// A flush has succeeded, or what implies one.
    pub(crate) fn must_not_fail(&self, shared: &Shared) -> Result<(), Finding> {
        let verdict = shared.trouble.allows_success(self.start);
        verdict.map_err(|what| (names::MEDIA, format!("{:?} {}: {what}", self.kind, self.id)))
    }
}
