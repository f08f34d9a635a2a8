//! What waits to leave by a port: frames one behind another in memory of a fixed size.

use std::io::{self, IoSlice};
use std::ops::Range;

use base::frame::MAX_FRAME;

use crate::address::RailAddress;
use crate::rail::Datagram;

/// Frames that are handed to the kernel in one call.
const BATCH: usize = 64;
/// Most frames that wait.
const FRAMES: usize = 2048;

/// Frames that wait, in order.
pub(super) struct Queue {
    bytes: Box<[u8]>,
    /// Where each begins and ends; those before `first` have left.
    frames: Vec<Range<usize>>,
    first: usize,
}

impl Queue {
    /// Bytes of frames that wait at most.
    pub(super) const ROOM: usize = 512 << 10;

    pub(super) fn new() -> Self {
        Self { bytes: vec![0; Self::ROOM].into(), frames: Vec::with_capacity(FRAMES), first: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == self.frames.len()
    }

    /// Bytes that wait.
    pub(super) fn used(&self) -> usize {
        let begin = self.frames.get(self.first).map_or(0, |frame| frame.start);
        self.end() - begin
    }

    fn end(&self) -> usize {
        self.frames.last().map_or(0, |frame| frame.end)
    }

    /// A copy of `frame` waits from now on; `None`: there is no room for it.
    pub(super) fn push(&mut self, frame: &[u8]) -> Option<&mut [u8]> {
        if self.end() + frame.len() > Self::ROOM || self.frames.len() == FRAMES {
            self.move_up();
        }
        let start = self.end();
        let copy = self.bytes.get_mut(start..start + frame.len()).filter(|_| self.frames.len() < FRAMES)?;
        copy.copy_from_slice(frame);
        self.frames.push(start..start + frame.len());
        Some(copy)
    }

    /// What waits moves to where nothing waits any more.
    fn move_up(&mut self) {
        let Some(begin) = self.frames.get(self.first).map(|frame| frame.start) else { return };
        // Rarely, so that a queue that stays full is not moved for each frame.
        if self.first < FRAMES / 4 && begin < Self::ROOM / 4 {
            return;
        }
        self.bytes.copy_within(begin..self.end(), 0);
        self.frames.drain(..self.first);
        self.frames.iter_mut().for_each(|frame| *frame = frame.start - begin..frame.end - begin);
        self.first = 0;
    }

    /// Gives the first ones to `send`, which says how many it has taken: how many were given, how many taken, and the
    /// bytes of those.
    pub(super) fn send(
        &mut self,
        to: RailAddress,
        send: impl FnOnce(&[Datagram<'_>]) -> io::Result<usize>,
    ) -> io::Result<(usize, usize, u64)> {
        let frames = &self.frames[self.first..];
        let given = frames.len().min(BATCH);
        let mut parts = [[IoSlice::new(&[])]; BATCH];
        for (part, frame) in parts.iter_mut().zip(frames) {
            *part = [IoSlice::new(&self.bytes[frame.clone()])];
        }
        let mut datagrams = [Datagram { to, parts: &[] }; BATCH];
        datagrams.iter_mut().zip(&parts).for_each(|(datagram, part)| datagram.parts = part);
        let taken = send(&datagrams[..given])?.min(given);
        let bytes = frames[..taken].iter().map(|frame| frame.len() as u64).sum();
        self.first += taken;
        if self.is_empty() {
            self.frames.clear();
            self.first = 0;
        }
        Ok((given, taken, bytes))
    }
}

const _: () = assert!(MAX_FRAME * 8 <= Queue::ROOM, "a queue has room for some of the largest frames");

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames come and leave in their order, whatever the kernel takes, and no more wait than there is room for.
    #[test]
    fn frames_leave_in_their_order_or_find_no_room() {
        let to = RailAddress::Udp("127.0.0.1:9".parse().unwrap());
        let mut queue = Queue::new();
        let (mut pushed, mut seen, mut refused) = (Vec::new(), Vec::new(), 0);
        let mut random = base::Random::new(5);
        for number in 0..60_000_u32 {
            let mut frame = vec![0; 80 + random.below(9000) as usize];
            frame[..4].copy_from_slice(&number.to_le_bytes());
            match queue.push(&frame) {
                Some(copy) => {
                    assert_eq!(*copy, *frame);
                    pushed.push(frame[..4].to_vec());
                }
                None => refused += 1,
            }
            assert!(queue.used() <= Queue::ROOM);
            if random.chance(20) {
                let take = random.below(90) as usize;
                let sent = queue.send(to, |datagrams| {
                    let taken = &datagrams[..take.min(datagrams.len())];
                    seen.extend(taken.iter().map(|it| it.parts[0][..4].to_vec()));
                    Ok(taken.len())
                });
                let (given, taken, bytes) = sent.unwrap();
                assert!(taken <= given && (bytes == 0) == (taken == 0));
            }
        }
        while !queue.is_empty() {
            queue
                .send(to, |all| {
                    seen.extend(all.iter().map(|it| it.parts[0][..4].to_vec()));
                    Ok(all.len())
                })
                .unwrap();
        }
        assert!(refused > 1000 && pushed.len() > 10_000, "{refused} refused, {} not", pushed.len());
        assert!(pushed == seen);
        assert_eq!(queue.used(), 0);
    }
}
