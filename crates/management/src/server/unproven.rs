//! Connections at `/v1/agent` of which nobody knows yet whether a node is behind them: so many at once, and so many
//! from one source, that strangers keep no node out.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Of all sources.
const UNPROVEN_MAX: usize = 1024;
/// From one source: a machine, or a network of IPv6 that one customer has.
const OF_SOURCE_MAX: usize = 128;

/// Where a connection comes from, as far as that tells one stranger from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            // The first 64 bits: whoever has one address of them has them all (RFC 4291 §2.5.4).
            IpAddr::V6(address) => {
                let network = address.to_bits() >> 64 << 64;
                Self(IpAddr::V6(Ipv6Addr::from_bits(network)))
            }
            address => Self(address),
        }
    }
}

impl core::fmt::Display for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(network) => write!(f, "{network}/64"),
        }
    }
}

/// Those that there are.
#[derive(Clone, Debug, Default)]
pub(super) struct Unproven(Arc<Mutex<BTreeMap<Source, usize>>>);

impl Unproven {
    /// One more, unless there are enough of them.
    pub(super) fn enter(&self, source: Source) -> Option<Guest> {
        let mut there = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = there.get(&source).copied().unwrap_or(0);
        if own >= OF_SOURCE_MAX || there.values().sum::<usize>() >= UNPROVEN_MAX {
            return None;
        }
        there.insert(source, own + 1);
        drop(there);
        Some(Guest { all: self.clone(), source })
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Guest {
    all: Unproven,
    source: Source,
}

impl Guest {
    /// Where it comes from.
    pub(super) fn source(&self) -> Source {
        self.source
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut there = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        match there.get_mut(&self.source) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(there.remove(&self.source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn one_source_keeps_no_other_one_out() {
        let unproven = Unproven::default();
        let mut guests = Vec::new();
        while let Some(guest) = unproven.enter(source("10.0.0.1")) {
            guests.push(guest);
        }
        assert_eq!(guests.len(), OF_SOURCE_MAX);
        assert!(unproven.enter(source("10.0.0.2")).is_some());
        // Who has proven itself, or is gone, makes room.
        guests.pop();
        assert!(unproven.enter(source("10.0.0.1")).is_some());
        drop(guests);
        assert!(unproven.0.lock().unwrap().is_empty());
    }

    #[test]
    fn there_are_so_many_of_all_sources() {
        let unproven = Unproven::default();
        let from = |number: usize| source(&format!("10.0.{}.{}", number / 256, number % 256));
        let guests: Vec<_> = (0..UNPROVEN_MAX).map(|number| unproven.enter(from(number)).unwrap()).collect();
        assert!(unproven.enter(from(UNPROVEN_MAX)).is_none());
        drop(guests);
    }

    #[test]
    fn addresses_of_one_network_are_one_source() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_eq!(source("2001:db8::1").to_string(), "2001:db8::/64");
    }
}
