//! An attacker on a wire, who has seen everything that crossed it: sends forgeries made from it, at a steady rate,
//! beside the true traffic and with the true addresses.

use super::impair::Datagram;
use base::Random;
use std::collections::VecDeque;

/// Datagrams that the attacker remembers of a wire.
const SEEN_MAX: usize = 256;

/// Forgeries of one turn at most, so that the true traffic has its turn too.
const BURST: u64 = 64;

/// Bytes of a frame's header, which switches read and anybody may write.
const HEADER: usize = 64;

/// Kinds of forgeries, and their names in the statistics.
pub const KINDS: [&str; 11] = [
    "replayed",
    "forged",
    "truncated",
    "oversized",
    "wrong_version",
    "wrong_key",
    "initiation",
    "noise",
    "call_replayed",
    "call_forged",
    "call_reflected",
];

/// How many of them are made of whatever crosses the wire; the others are of messages of handshakes.
pub const GENERAL: usize = 8;

/// Messages of handshakes that the attacker remembers of a wire.
const CALLS_MAX: usize = 64;

/// The ports that stand for the many addresses from which handshakes are called for.
pub(super) const CALLERS: core::ops::Range<u64> = 20_000..20_100;

/// What a header says of the first message of a handshake, at its second byte.
const INITIATION: u8 = 1;

/// What an attacker on one wire knows and does.
pub struct Flood {
    random: Random,
    seen: VecDeque<Datagram>,
    /// Frames of another channel, sealed under another key.
    foreign: Vec<Datagram>,
    /// True messages of handshakes, whenever they came.
    calls: VecDeque<Datagram>,
    /// Those that crossed the wire the other way, turned round.
    reflected: VecDeque<Datagram>,
    /// Nothing but messages of handshakes is sent.
    only_calls: bool,
    per_second: u64,
    since_ns: u64,
    sent: u64,
    counts: [u64; KINDS.len()],
    longest_call: usize,
}

impl Flood {
    /// One who only listens.
    pub fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0xf100d);
        Self {
            random,
            seen: VecDeque::new(),
            foreign: Vec::new(),
            calls: VecDeque::new(),
            reflected: VecDeque::new(),
            only_calls: false,
            per_second: 0,
            since_ns: 0,
            sent: 0,
            counts: [0; KINDS.len()],
            longest_call: 0,
        }
    }

    /// Something crosses the wire.
    pub fn see(&mut self, datagram: &Datagram) {
        if self.seen.len() == SEEN_MAX {
            self.seen.pop_front();
        }
        self.seen.push_back(datagram.clone());
        remember(&mut self.calls, datagram);
    }

    /// Something crosses the wire the other way.
    pub fn see_opposite(&mut self, datagram: &Datagram) {
        let Datagram { source_port, target_port, ref payload } = *datagram;
        let payload = payload.clone();
        let turned = Datagram { source_port: target_port, target_port: source_port, payload };
        remember(&mut self.reflected, &turned);
    }

    /// What was seen so far becomes what is sent as sealed under another key. Meant for the time between two channels.
    pub fn keep_as_foreign(&mut self) {
        self.foreign = self.seen.drain(..).collect();
    }

    /// From now on, so many forgeries a second; 0 ends it. With `only_calls` they are messages of handshakes, from many
    /// addresses.
    pub fn set_rate(&mut self, now_ns: u64, per_second: u64, only_calls: bool) {
        (self.per_second, self.since_ns, self.sent, self.only_calls) = (per_second, now_ns, 0, only_calls);
    }

    /// Whether forgeries are to be sent at all.
    pub fn is_active(&self) -> bool {
        let has_models = if self.only_calls { !self.calls.is_empty() } else { !self.seen.is_empty() };
        self.per_second > 0 && has_models
    }

    /// Forgeries made so far, by kind.
    pub fn counts(&self) -> [u64; KINDS.len()] {
        self.counts
    }

    /// Bytes of the longest message of a handshake that was sent.
    pub fn longest_call(&self) -> usize {
        self.longest_call
    }

    /// Those that are due.
    pub fn poll(&mut self, now_ns: u64) -> Vec<Datagram> {
        if !self.is_active() {
            return Vec::new();
        }
        let due =
            u128::from(now_ns.saturating_sub(self.since_ns)) * u128::from(self.per_second) / 1_000_000_000;
        let count = u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.sent).min(BURST);
        self.sent += count;
        (0..count).map(|_| if self.only_calls { self.call() } else { self.forge() }).collect()
    }

    /// A message of a handshake that came before: as it was, changed, or back to where it came from.
    fn call(&mut self) -> Datagram {
        let kinds = if self.reflected.is_empty() { 2 } else { 3 };
        let kind = self.random.below(kinds) as usize;
        self.counts[GENERAL + kind] += 1;
        let models = if kind == 2 { &self.reflected } else { &self.calls };
        let mut datagram = models[self.random.below(models.len() as u64) as usize].clone();
        datagram.source_port = (CALLERS.start + self.random.below(CALLERS.end - CALLERS.start)) as u16;
        let length = datagram.payload.len() as u64;
        self.longest_call = self.longest_call.max(datagram.payload.len());
        if kind == 1
            && let Some(byte) = datagram.payload.get_mut(self.random.below(length.max(1)) as usize)
        {
            *byte ^= 1 << self.random.below(8);
        }
        datagram
    }

    /// Bytes of a first message of a handshake: shorter ones are not looked at.
    fn first_message(&self) -> usize {
        let first = self.calls.iter().map(|call| &call.payload).filter(|it| it.get(1) == Some(&INITIATION));
        first.map(Vec::len).min().unwrap_or(HEADER)
    }

    fn forge(&mut self) -> Datagram {
        let which = self.random.below(self.seen.len() as u64) as usize;
        let mut datagram = self.seen[which].clone();
        let kind = self.random.below(GENERAL as u64) as usize;
        self.counts[kind] += 1;
        let bytes = &mut datagram.payload;
        let length = bytes.len() as u64;
        match kind {
            0 => {}
            1 => {
                let at = self.random.below(length.max(1)) as usize;
                // The version has a kind of its own.
                if let Some(byte) = bytes.get_mut(at.max(1)) {
                    *byte ^= 1 << self.random.below(8);
                }
            }
            2 => bytes.truncate(self.random.below(length.max(1)) as usize),
            3 => {
                let mut more = vec![0; 1 + self.random.below(8000) as usize];
                self.random.fill(&mut more);
                bytes.append(&mut more);
            }
            4 => {
                if let Some(version) = bytes.first_mut() {
                    *version = 2 + self.random.below(254) as u8;
                }
            }
            5 => self.seal_with_another_key(bytes),
            6 => {
                // As a true one, but for the mark of who knows the lender's public key.
                bytes.resize(self.first_message() + self.random.below(200) as usize, 0);
                bytes[1] = INITIATION;
                self.random.fill(&mut bytes[HEADER..]);
                [2..3, 20..24, 48..HEADER].into_iter().for_each(|free| bytes[free].fill(0));
            }
            _ => {
                bytes.resize(self.random.below(1500) as usize, 0);
                self.random.fill(bytes);
            }
        }
        datagram
    }

    /// The header stays, with a packet number that no replay protection knows; behind it lies a body of another
    /// channel.
    fn seal_with_another_key(&mut self, bytes: &mut Vec<u8>) {
        if bytes.len() < HEADER {
            return;
        }
        let ahead = 1 + self.random.below(1000);
        let number = bytes[56..HEADER].first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
        bytes[56..HEADER].copy_from_slice(&number.wrapping_add(ahead).to_le_bytes());
        bytes.truncate(HEADER);
        if self.foreign.is_empty() {
            let mut body = [0; 100];
            self.random.fill(&mut body);
            return bytes.extend(body);
        }
        let which = self.random.below(self.foreign.len() as u64) as usize;
        bytes.extend(self.foreign[which].payload.iter().skip(HEADER));
    }
}

/// Keeps a message of a handshake, in place of the oldest one.
fn remember(calls: &mut VecDeque<Datagram>, datagram: &Datagram) {
    let is_call = matches!(datagram.payload.get(1), Some(1 | 2)) && datagram.payload.len() > HEADER;
    if is_call {
        if calls.len() == CALLS_MAX {
            calls.pop_front();
        }
        calls.push_back(datagram.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else all that can be shown is that they are dropped for their length.
    #[test]
    fn a_forged_first_message_is_as_long_as_a_true_one() {
        let mut flood = Flood::new(1);
        let mut payload = vec![0; 704];
        payload[1] = INITIATION;
        flood.see(&Datagram { source_port: 1, target_port: 2, payload });
        flood.see(&Datagram { source_port: 1, target_port: 2, payload: vec![0; 100] });
        let kind = KINDS.iter().position(|kind| *kind == "initiation").unwrap();
        let mut forged = 0;
        for _ in 0..1000 {
            let before = flood.counts[kind];
            let datagram = flood.forge();
            if flood.counts[kind] > before {
                forged += 1;
                assert!((704..904).contains(&datagram.payload.len()), "{}", datagram.payload.len());
            }
        }
        assert!(forged > 10);
    }

    #[test]
    fn forgeries_come_at_the_rate_asked_and_of_every_kind() {
        let mut flood = Flood::new(1);
        flood.set_rate(0, 10_000, false);
        assert!(flood.poll(1_000_000_000).is_empty(), "who has seen nothing has nothing to forge");
        let datagram = Datagram { source_port: 1, target_port: 2, payload: vec![1; 200] };
        flood.see(&datagram);
        let sent: usize = (0..1000u64).map(|turn| flood.poll(turn * 1_000_000).len()).sum();
        assert!((9_900..=10_000).contains(&sent), "{sent}");
        let general = flood.counts();
        assert!(general[..GENERAL].iter().all(|&count| count > 1000), "{general:?}");
        // Of messages of handshakes alone, which come from elsewhere each time, or from where they went to.
        flood.set_rate(0, 10_000, true);
        flood.see_opposite(&Datagram { target_port: 3, ..datagram });
        let calls: Vec<Datagram> = (0..1000u64).flat_map(|turn| flood.poll(turn * 1_000_000)).collect();
        let is_from_elsewhere = |call: &Datagram| CALLERS.contains(&call.source_port.into());
        assert!(calls.iter().all(is_from_elsewhere) && calls.iter().any(|call| call.target_port == 1));
        let counts = flood.counts();
        assert!(counts[GENERAL..].iter().all(|&count| count > 2500), "{counts:?}");
        assert_eq!(counts[..GENERAL], general[..GENERAL]);
        flood.set_rate(0, 0, false);
        assert!(flood.poll(u64::MAX).is_empty());
    }
}
