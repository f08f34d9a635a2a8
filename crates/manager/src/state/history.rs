use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, Request};
use crate::model::RequestId;

/// Requests that are remembered: at a thousand a second those of a minute, which is longer than a client repeats one.
pub const HISTORY_MAX: usize = 65_536;

/// Entries that are remembered, as to who has done what, beside requests: refusals, and what nodes have caused.
pub const NOTED_MAX: usize = 4096;

/// An entry that is remembered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The index of its entry.
    pub index: u64,
    /// Who, when, what, and the answer.
    pub entry: Entry,
}

/// The last requests that were done.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct History {
    records: VecDeque<Record>,
    /// What nobody has asked for, and people should know. Apart from requests, of which it pushes out none.
    noted: VecDeque<Record>,
    /// The index of the entry of each. Follows from `records`.
    by_id: BTreeMap<RequestId, u64>,
}

impl History {
    pub(super) fn records(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.iter()
    }

    pub(super) fn noted(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.noted.iter()
    }

    pub(super) fn find(&self, id: RequestId) -> Option<&Record> {
        let index = self.by_id.get(&id)?;
        let at = self.records.binary_search_by_key(index, |record| record.index).ok()?;
        self.records.get(at)
    }

    /// Remembers an entry that a request has caused, or that people should know of, and forgets the oldest where there
    /// are too many. `false`: the
    /// request is there already.
    pub(super) fn push(&mut self, record: Record) -> bool {
        let Some(Request { id, .. }) = record.entry.request else {
            if record.entry.change.is_noteworthy() {
                if self.noted.len() >= NOTED_MAX {
                    self.noted.pop_front();
                }
                self.noted.push_back(record);
            }
            return true;
        };
        if self.by_id.contains_key(&id) {
            return false;
        }
        if self.records.len() >= HISTORY_MAX
            && let Some(oldest) = self.records.pop_front()
            && let Some(request) = oldest.entry.request
        {
            self.by_id.remove(&request.id);
        }
        self.by_id.insert(id, record.index);
        self.records.push_back(record);
        true
    }
}
