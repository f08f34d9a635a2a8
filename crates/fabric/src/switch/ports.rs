//! Ports, sets of them, and which of two is used.

use core::time::Duration;

use base::times::RAIL_VERDICT;
use base::{Bucket, Instant};

use super::hello::{ANSWERED, Hello, REFUTED};
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
    /// When the switch behind it last said that something comes there,
    hears: Option<Instant>,
    /// and that nothing does.
    is_deaf: Option<Instant>,
    /// When it last asked to be told the same.
    asked: Option<Instant>,
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
            hears: None,
            is_deaf: None,
            asked: None,
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
    pub(super) fn hear_hello(&mut self, now: Instant, said: Hello) {
        self.arrived = Some(now);
        *(if said.hears { &mut self.hears } else { &mut self.is_deaf }) = Some(now);
        self.asked = if said.asks { Some(now) } else { self.asked };
    }

    /// Another one is behind it.
    pub(super) fn forget_peer(&mut self) {
        (self.heard, self.arrived, self.hears, self.is_deaf, self.asked) = (None, None, None, None, None);
    }

    /// Something has come by it lately.
    pub(super) fn carries(&self, now: Instant) -> bool {
        is_within(RAIL_VERDICT, self.arrived, now)
    }

    /// Somebody asked there to be told hello, and is there still.
    pub(super) fn is_asked(&self, now: Instant) -> bool {
        self.asked.is_some() && [self.asked, self.heard].iter().any(|at| is_within(ANSWERED, *at, now))
    }

    /// The switch there has not said lately that nothing comes to it by this link.
    fn hears_us(&self, now: Instant) -> bool {
        !is_within(RAIL_VERDICT, self.is_deaf, now) || is_within(REFUTED, self.hears, now)
    }

    /// As far as is known its interface runs.
    fn runs(&self, _: Instant) -> bool {
        !self.is_down
    }

    /// A frame of who is behind it has come lately.
    pub(super) fn is_heard(&self, now: Instant) -> bool {
        is_within(RAIL_VERDICT, self.heard, now) && self.runs(now)
    }

    pub(super) fn is_up(&self, now: Instant) -> bool {
        self.is_heard(now) && self.hears_us(now)
    }
}

fn is_within(time: Duration, at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.since(at) < time)
}

/// Which of two ports that lead to the same is used: the first while it is known to be up, else the second if that is.
/// While neither is, one that is known to carry nothing is not used; else they take turns, so that whoever is behind
/// one of them is reached, and answers, and tells so.
pub(super) fn choose(now: Instant, ports: [(PortId, &PortState); 2]) -> PortId {
    let [(first, first_state), (second, second_state)] = ports;
    let prefer = |first_is_better: bool| if first_is_better { first } else { second };
    let of_both = |is: fn(&PortState, Instant) -> bool| [is(first_state, now), is(second_state, now)];
    // The most telling first. Where only one says hello, that tells nothing of the other.
    let (up, runs, hears_us) =
        (of_both(PortState::is_up), of_both(PortState::runs), of_both(PortState::hears_us));
    let both_ask = first_state.asked.is_some() && second_state.asked.is_some();
    let carries = if both_ask { of_both(PortState::carries) } else { [true; 2] };
    for [is_first, is_second] in [up, runs, hears_us, carries] {
        if is_first != is_second {
            return prefer(is_first);
        }
    }
    let turn = now.as_nanos() / RAIL_VERDICT.as_nanos() as u64;
    prefer(first_state.is_up(now) || turn.is_multiple_of(2))
}
