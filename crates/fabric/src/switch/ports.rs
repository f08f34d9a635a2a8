//! Ports, sets of them, and which of two is used.

use base::times::RAIL_VERDICT;
use base::{Bucket, Instant};

use super::{
    INFORMATION_BURST, INFORMATION_EVERY, MAX_PORTS, MULTICAST_BURST, MULTICAST_EVERY, PortCounters,
};

/// A port: its place in the switch's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PortId(u8);

const _: () = assert!(MAX_PORTS == 1 << u8::BITS);

impl PortId {
    /// The port in this place, if there can be one.
    pub fn new(index: usize) -> Option<Self> {
        u8::try_from(index).ok().map(Self)
    }

    /// Its place in lists by port.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Some ports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortSet([u64; MAX_PORTS / 64]);

impl PortSet {
    /// Puts one in.
    pub fn insert(&mut self, port: PortId) {
        self.0[port.index() / 64] |= 1 << (port.index() % 64);
    }

    /// Whether one is in it.
    pub fn contains(&self, port: PortId) -> bool {
        self.0[port.index() / 64] >> (port.index() % 64) & 1 == 1
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; MAX_PORTS / 64]
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// All, in order.
    pub fn iter(self) -> impl Iterator<Item = PortId> {
        let mut words = self.0;
        core::iter::from_fn(move || {
            let (at, word) = words.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
            let bit = word.trailing_zeros() as usize;
            *word &= *word - 1;
            PortId::new(at * 64 + bit)
        })
    }
}

impl FromIterator<PortId> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortId>>(ports: I) -> Self {
        let mut set = Self::default();
        ports.into_iter().for_each(|port| set.insert(port));
        set
    }
}

/// What a switch remembers of a port.
#[derive(Debug)]
pub(super) struct PortState {
    pub(super) counters: PortCounters,
    /// When a frame of who is behind it has come last. The hello of a switch that leads nowhere is none.
    heard: Option<Instant>,
    /// When anything has come by it last.
    arrived: Option<Instant>,
    /// When somebody behind it last said whether anything comes there, and what.
    hello: Option<(Instant, bool)>,
    /// Somebody there says hello, and is told the same.
    pub(super) says_hello: bool,
    /// Its interface does not run.
    pub(super) is_down: bool,
    /// How many information frames it takes.
    pub(super) information: Bucket,
    /// How many frames to multicast groups.
    pub(super) multicast: Bucket,
}

impl PortState {
    pub(super) fn new() -> Self {
        let information = Bucket::full(INFORMATION_BURST, INFORMATION_EVERY, Instant::ZERO);
        let multicast = Bucket::full(MULTICAST_BURST, MULTICAST_EVERY, Instant::ZERO);
        Self {
            counters: PortCounters::default(),
            heard: None,
            arrived: None,
            hello: None,
            says_hello: false,
            is_down: false,
            information,
            multicast,
        }
    }

    /// A frame has come of somebody behind it.
    pub(super) fn hear(&mut self, now: Instant) {
        (self.heard, self.arrived) = (Some(now), Some(now));
    }

    /// The switch there says whether anything comes to it by this link.
    pub(super) fn hear_hello(&mut self, now: Instant, hears_us: bool) {
        (self.arrived, self.hello, self.says_hello) = (Some(now), Some((now, hears_us)), true);
    }

    /// Something has come by it lately.
    pub(super) fn carries(&self, now: Instant) -> bool {
        self.arrived.is_some_and(|arrived| now.since(arrived) < RAIL_VERDICT)
    }

    /// The switch there has not said lately that nothing comes to it by this link.
    fn hears_us(&self, now: Instant) -> bool {
        self.hello.is_none_or(|(at, hears_us)| hears_us || now.since(at) >= RAIL_VERDICT)
    }

    /// As far as is known its interface runs.
    fn runs(&self, _: Instant) -> bool {
        !self.is_down
    }

    pub(super) fn is_up(&self, now: Instant) -> bool {
        let is_heard = self.heard.is_some_and(|heard| now.since(heard) < RAIL_VERDICT);
        is_heard && self.runs(now) && self.hears_us(now)
    }
}

/// Which of two ports that lead to the same is used: the first while it is known to be up, else the second if that is.
/// While neither is, one that is known to carry nothing is not used; else they take turns, so that whoever is behind
/// one of them is reached, and answers, and tells so.
pub(super) fn choose(now: Instant, ports: [(PortId, &PortState); 2]) -> PortId {
    let [(first, first_state), (second, second_state)] = ports;
    let prefer = |first_is_better: bool| if first_is_better { first } else { second };
    let of_both = |is: fn(&PortState, Instant) -> bool| [is(first_state, now), is(second_state, now)];
    // The most telling first.
    let known = [PortState::is_up, PortState::runs, PortState::hears_us, PortState::carries].map(of_both);
    for [is_first, is_second] in known {
        if is_first != is_second {
            return prefer(is_first);
        }
    }
    let turn = now.as_nanos() / RAIL_VERDICT.as_nanos() as u64;
    prefer(first_state.is_up(now) || turn.is_multiple_of(2))
}
