//! Which stream sends next, and which one owes its status.

use std::collections::VecDeque;

use base::ids::StreamId;

/// What there is of some streams, in order. Most come and go with each frame, which takes no memory from the system.
struct ByStream<T>(Vec<(StreamId, T)>);

impl<T> Default for ByStream<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByStream<T> {
    fn find(&self, id: StreamId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, |(of, _)| *of)
    }

    fn get(&self, id: StreamId) -> Option<&T> {
        self.find(id).ok().map(|at| &self.0[at].1)
    }

    fn get_mut(&mut self, id: StreamId) -> Option<&mut T> {
        self.find(id).ok().map(|at| &mut self.0[at].1)
    }

    /// What there is of the stream, or this from now on. True: there was nothing.
    fn get_or_insert(&mut self, id: StreamId, value: T) -> (&mut T, bool) {
        let (at, is_new) = self.find(id).map_or_else(|at| (at, true), |at| (at, false));
        if is_new {
            self.0.insert(at, (id, value));
        }
        (&mut self.0[at].1, is_new)
    }

    fn remove(&mut self, id: StreamId) -> Option<T> {
        self.find(id).ok().map(|at| self.0.remove(at).1)
    }
}

/// Deficit round robin by bytes, with an urgent and a bulk list: a stream that has just got something to send is urgent
/// until it has sent as much as the others may in a turn (RFC 8290 §4.2: new and old flows). One that falls idle in
/// the urgent list passes through the bulk list before it is forgotten, so that nobody is urgent again and again.
#[derive(Default)]
pub(super) struct Schedule {
    urgent: VecDeque<StreamId>,
    bulk: VecDeque<StreamId>,
    /// Those in a list, with the bytes that they may still send.
    flows: ByStream<i64>,
}

impl Schedule {
    /// The stream may have something to send.
    pub(super) fn wake(&mut self, id: StreamId, quantum: usize) {
        let (_, is_new) = self.flows.get_or_insert(id, quantum as i64);
        if is_new {
            self.urgent.push_back(id);
        }
    }

    /// Whose turn it is.
    pub(super) fn next(&mut self, quantum: usize) -> Option<StreamId> {
        loop {
            let is_urgent = !self.urgent.is_empty();
            let list = if is_urgent { &mut self.urgent } else { &mut self.bulk };
            let &id = list.front()?;
            // Who is in a list has an entry.
            let (left, _) = self.flows.get_or_insert(id, 0);
            if *left > 0 {
                return Some(id);
            }
            *left += quantum as i64;
            list.pop_front();
            self.bulk.push_back(id);
        }
    }

    /// Whether a stream beside this one may have something to send.
    pub(super) fn has_others(&self, id: StreamId) -> bool {
        self.flows.0.iter().any(|(of, _)| *of != id)
    }

    /// The stream whose turn it is has sent so many bytes.
    pub(super) fn spend(&mut self, id: StreamId, bytes: usize) {
        if let Some(left) = self.flows.get_mut(id) {
            *left -= bytes as i64;
        }
    }

    /// The stream whose turn it is has nothing to send.
    pub(super) fn sleep(&mut self, id: StreamId) {
        if self.urgent.front() == Some(&id) {
            self.urgent.pop_front();
            self.bulk.push_back(id);
        } else if self.bulk.front() == Some(&id) {
            self.bulk.pop_front();
            self.flows.remove(id);
        }
    }

    /// Nobody has anything to send any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Streams whose status the peer is to be told.
#[derive(Default)]
pub(super) struct Debts {
    queue: VecDeque<StreamId>,
    /// Those that owe; true: the peer has asked, or has sent something.
    owing: ByStream<bool>,
    due: usize,
}

impl Debts {
    /// The status of a stream has changed: the next frame tells it. `due`: there is to be one.
    pub(super) fn owe(&mut self, id: StreamId, due: bool) {
        let (is_due, is_new) = self.owing.get_or_insert(id, false);
        if is_new {
            self.queue.push_back(id);
        }
        self.due += usize::from(due && !*is_due);
        *is_due |= due;
    }

    /// Whether a frame is to be sent for this.
    pub(super) fn is_due(&self) -> bool {
        self.due > 0
    }

    /// Who owes longest.
    pub(super) fn first(&mut self) -> Option<StreamId> {
        while let Some(&id) = self.queue.front() {
            if self.owing.get(id).is_some() {
                return Some(id);
            }
            self.queue.pop_front();
        }
        None
    }

    /// The status of this stream is in a frame.
    pub(super) fn pay(&mut self, id: StreamId) {
        if self.owing.remove(id) == Some(true) {
            self.due -= 1;
        }
        // What was paid out of turn leaves its place behind.
        if self.queue.len() > 2 * self.owing.0.len() + 64 {
            self.queue.retain(|id| self.owing.get(*id).is_some());
        }
    }

    /// Nobody owes anything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUANTUM: usize = 1000;

    /// Bytes that each of these streams has sent after so many frames; they always have more, in frames of these sizes.
    fn share(frames: &[usize], turns: usize) -> Vec<usize> {
        let mut schedule = Schedule::default();
        let mut sent = vec![0; frames.len()];
        for turn in 0..turns {
            (0..frames.len()).for_each(|id| {
                if turn == 0 {
                    schedule.wake(StreamId(id as u32), QUANTUM);
                }
            });
            let id = schedule.next(QUANTUM).unwrap();
            sent[id.0 as usize] += frames[id.0 as usize];
            schedule.spend(id, frames[id.0 as usize]);
        }
        sent
    }

    #[test]
    fn streams_with_frames_of_any_size_have_equal_shares_of_bytes() {
        let sent = share(&[1000, 100, 10, 999], 20_000);
        let (least, most) = (sent.iter().min().unwrap(), sent.iter().max().unwrap());
        assert!(most - least <= 2 * QUANTUM, "{sent:?}");
    }

    #[test]
    fn who_has_been_idle_comes_before_who_sends_all_the_time_but_not_again_and_again() {
        let mut schedule = Schedule::default();
        let [bulk, rare] = [StreamId(1), StreamId(2)];
        schedule.wake(bulk, QUANTUM);
        for _ in 0..10 {
            assert_eq!(schedule.next(QUANTUM), Some(bulk));
            schedule.spend(bulk, QUANTUM);
        }
        schedule.wake(rare, QUANTUM);
        assert_eq!(schedule.next(QUANTUM), Some(rare));
        schedule.spend(rare, 100);
        // Nothing more: it goes behind the other one, where waking it again changes nothing.
        schedule.sleep(rare);
        schedule.wake(rare, QUANTUM);
        assert!(schedule.urgent.is_empty());
        assert_eq!(schedule.bulk.back(), Some(&rare));
    }

    #[test]
    fn a_debt_is_paid_once_in_or_out_of_turn() {
        let mut debts = Debts::default();
        let [one, two] = [StreamId(1), StreamId(2)];
        debts.owe(one, false);
        assert!(!debts.is_due());
        debts.owe(two, true);
        debts.owe(one, true);
        assert_eq!((debts.first(), debts.due), (Some(one), 2));
        debts.pay(two);
        debts.pay(one);
        assert_eq!((debts.first(), debts.is_due()), (None, false));
        for _ in 0..1000 {
            debts.owe(two, true);
            debts.pay(two);
        }
        assert!(debts.queue.len() <= 64);
    }
}
