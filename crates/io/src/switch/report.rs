//! What a switch says: each reason of each port once, and again at most once a minute while it goes on.

use std::time::Duration;

use base::Instant;
use node::switch::{PortCounters, PortId, Reason, Table};

use crate::address::RailAddress;
use crate::event::Event;

/// Between two events of one port and reason.
const PAUSE: Duration = Duration::from_secs(60);

/// What was said of something that is counted: the first of it, and then at most once a minute while it goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    count: u64,
    at: Option<Instant>,
}

impl Said {
    /// Whether `count` is to be said now.
    pub fn is_due(&mut self, at: Instant, count: u64) -> bool {
        let is_due = count > self.count && self.at.is_none_or(|last| at.since(last) >= PAUSE);
        if is_due {
            *self = Self { count, at: Some(at) };
        }
        is_due
    }
}

/// What was said.
pub(super) struct Report {
    /// By port and reason.
    drops: Vec<[Said; Reason::COUNT]>,
    /// By port: the one that stands by for it is used.
    standby: Vec<bool>,
    /// By door.
    strangers: Vec<Said>,
    /// By door: its interface runs, as far as was said. The first look says nothing: whoever opened it did.
    interfaces: Vec<Option<bool>>,
}

impl Report {
    pub(super) fn new(table: &Table, doors: usize) -> Self {
        let ports = table.ports().count();
        Self {
            drops: vec![[Said::default(); Reason::COUNT]; ports],
            standby: vec![false; ports],
            strangers: vec![Said::default(); doors],
            interfaces: vec![None; doors],
        }
    }

    pub(super) fn drops(&mut self, at: Instant, port: PortId, name: &str, counters: &PortCounters) {
        for reason in Reason::ALL.into_iter().filter(|reason| !reason.is_expected()) {
            let count = counters.dropped[reason.index()];
            if self.drops[port.index()][reason.index()].is_due(at, count) {
                let (port, reason, words) = (name.to_owned(), reason.name(), reason.words());
                Event::SwitchDrops { port, reason, count, words }.say();
            }
        }
    }

    pub(super) fn standby(&mut self, port: PortId, name: &str, standby: &str, is_used: bool) {
        let was_used = std::mem::replace(&mut self.standby[port.index()], is_used);
        let (port, standby) = (name.to_owned(), standby.to_owned());
        match (was_used, is_used) {
            (false, true) => Event::SwitchStandby { port, standby }.say(),
            (true, false) => Event::SwitchStandbyEnds { port, standby }.say(),
            _ => {}
        }
    }

    pub(super) fn strangers(&mut self, at: Instant, door: usize, local: RailAddress, count: u64) {
        if self.strangers[door].is_due(at, count) {
            Event::SwitchStrangers { listen: local.to_string(), count }.say();
        }
    }

    pub(super) fn interface(&mut self, door: usize, name: &str, is_running: bool) {
        let before = self.interfaces[door].replace(is_running);
        if before.is_some_and(|before| before != is_running) {
            let interface = name.to_owned();
            match is_running {
                true => Event::SwitchInterfaceUp { interface }.say(),
                false => Event::SwitchInterfaceDown { interface }.say(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_said_once_a_minute() {
        let mut said = Said::default();
        let mut at = |s, count| said.is_due(Instant::ZERO + Duration::from_secs(s), count);
        assert_eq!([at(0, 0), at(1, 3), at(2, 4), at(60, 900)], [false, true, false, false]);
        assert_eq!([at(61, 901), at(200, 901), at(201, 902)], [true, false, true]);
    }
}
