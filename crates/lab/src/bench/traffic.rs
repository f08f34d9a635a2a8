//! Reads and writes: two sides in turns, of the same drives.

use std::path::Path;
use std::time::Duration;

use program::exit::Failure;

use super::case::{Measure, Traffic, Transport};
use super::core_to_core::round_trip_ns;
use super::report::Round;
use super::sides::Side;
use crate::local::{Halt, Interrupt, Scratch};

/// How long a side works in a round.
const DURATION: Duration = Duration::from_millis(1500);
/// The same without sockets, where less is left to chance.
const SHORT: Duration = Duration::from_millis(700);

/// Both sides, ready.
pub(super) struct Both<'a> {
    traffic: Traffic,
    ours: Side<'a>,
    peer: Side<'a>,
    rounds: u32,
}

impl<'a> Both<'a> {
    /// Starts both sides; `image` is what they read and write, unless they have flash cards.
    pub(super) fn start(
        traffic: Traffic,
        image: Option<&Path>,
        scratch: &Scratch,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        // Peers take no lock, so one image serves both.
        let ours = Side::start(traffic.ours, image, scratch, interrupt)?;
        let peer = Side::start(traffic.peer, image, scratch, interrupt)?;
        Ok(Self { traffic, ours, peer, rounds: 0 })
    }

    /// One measurement of each, ours first every other time.
    pub(super) fn round(&mut self) -> Result<(Round, Round), Halt> {
        let round = self.rounds;
        self.rounds += 1;
        super::in_turns(round, self, |both| both.between(&both.ours), |both| both.between(&both.peer))
    }

    /// A measurement with the distance of the cores before and after.
    fn between(&self, side: &Side<'_>) -> Result<Round, Halt> {
        let alone = [self.traffic.ours.transport, self.traffic.peer.transport]
            .iter()
            .all(|transport| matches!(transport, Transport::Native | Transport::SystemCalls));
        let before = round_trip_ns();
        let round = side.round(self.traffic.work, if alone { SHORT } else { DURATION })?;
        let round = Round { core_to_core_ns: super::mean(before, round_trip_ns()), ..round };
        Ok(match self.traffic.measure {
            Measure::Rate => round,
            Measure::Latency => Round { value: round.p50_us.unwrap_or_default(), ..round },
        })
    }

    /// Ends our nodes in order.
    pub(super) fn stop(self) -> Result<(), Failure> {
        self.ours.stop().and(self.peer.stop())
    }
}
