use std::collections::VecDeque;

use super::{Record, Values, now};

/// How many events a node keeps.
pub const RECORDS_MAX: usize = 1024;

/// The newest events, in order. Numbers have no gaps.
#[derive(Debug, Default)]
pub struct Ring {
    records: VecDeque<Record>,
    /// How many there were, with those that are gone.
    count: u64,
}

impl Ring {
    /// Adds the event that is made for this number; the oldest makes room for it.
    pub fn push(&mut self, record: impl FnOnce(u64) -> Record) {
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.count += 1;
        self.records.push_back(record(self.count));
    }

    /// The number of the newest event; 0 before the first.
    pub fn newest(&self) -> u64 {
        self.count
    }

    /// The number of the oldest event that is kept, or that would be.
    pub fn oldest(&self) -> u64 {
        self.count + 1 - self.records.len() as u64
    }

    /// At most `most` events from number `from` on, and the number behind them. In place of those that are gone stands
    /// one that says how many they were.
    pub fn read(&self, from: u64, most: usize) -> (u64, Vec<Record>) {
        if most == 0 {
            return (from, Vec::new());
        }
        let first = from.max(self.oldest());
        let gone = (first > from).then(|| missed(first - 1, first - from));
        let skip = usize::try_from(first - self.oldest()).unwrap_or(usize::MAX);
        let room = most.saturating_sub(gone.iter().count());
        let kept: Vec<Record> = self.records.iter().skip(skip).take(room).cloned().collect();
        (first + kept.len() as u64, gone.into_iter().chain(kept).collect())
    }
}

/// Stands for the last `count` events up to number `seq`.
fn missed(seq: u64, count: u64) -> Record {
    let mut values = Values::default();
    values.push("missed", count.into());
    Record {
        seq,
        time: now(),
        severity: "warning".to_owned(),
        kind: "events-missed".to_owned(),
        message: "events came faster than they were read, and are not kept any more".to_owned(),
        values,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(seq: u64) -> Record {
        let text = |text: &str| text.to_owned();
        let values = Values::default();
        Record { seq, time: text("t"), severity: text("info"), kind: text("k"), message: text("m"), values }
    }

    fn numbers(records: &[Record]) -> Vec<u64> {
        records.iter().map(|record| record.seq).collect()
    }

    #[test]
    fn events_are_read_in_order_and_each_once() {
        let mut ring = Ring::default();
        assert_eq!((ring.oldest(), ring.newest(), ring.read(1, 9)), (1, 0, (1, Vec::new())));
        (0..5).for_each(|_| ring.push(record));
        let (next, first) = ring.read(1, 3);
        assert_eq!((next, numbers(&first)), (4, vec![1, 2, 3]));
        let (next, rest) = ring.read(next, 3);
        assert_eq!((next, numbers(&rest)), (6, vec![4, 5]));
        assert_eq!(ring.read(next, 3), (6, Vec::new()));
        ring.push(record);
        assert_eq!(numbers(&ring.read(next, 3).1), [6]);
    }

    #[test]
    fn the_newest_are_kept_and_who_is_late_is_told() {
        let mut ring = Ring::default();
        let pushed = RECORDS_MAX as u64 + 10;
        (0..pushed).for_each(|_| ring.push(record));
        assert_eq!((ring.records.len(), ring.oldest(), ring.newest()), (RECORDS_MAX, 11, pushed));
        let (next, read) = ring.read(4, 3);
        assert_eq!((next, numbers(&read)), (13, vec![10, 11, 12]));
        assert_eq!(
            (read[0].kind.as_str(), read[0].values.iter().next()),
            ("events-missed", Some(("missed", &7.into())))
        );
        // All of them, and the number stays that of the newest.
        let (next, read) = ring.read(1, usize::MAX);
        assert_eq!((next, read.len()), (pushed + 1, RECORDS_MAX + 1));
    }
}
