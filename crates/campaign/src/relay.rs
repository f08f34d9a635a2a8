//! The test's own network between two machines: it drops, repeats, reorders, delays and flips bits by seeded chance,
//! and records what it saw.
//!
//! [`impair`] decides what happens to a datagram, [`flood`] what an attacker sends beside it, [`detour`] leads by two
//! sockets of its own, [`forward`] moves datagrams and Ethernet frames (in the process `causeway-relay`), [`Relay`]
//! here is the test's hold on that process.

pub mod detour;
pub mod flood;
pub mod forward;
pub mod impair;
mod segment;

use crate::Error;
use crate::process::Process;
use crate::world::Direction;
use base::Impairment;
use impair::WireCounts;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The relay answers at once; this is for a machine that is busy with something else.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// A running relay. Dropped, it ends.
pub struct Relay {
    process: Process,
    rails: u8,
    capture: Option<PathBuf>,
}

/// What each wire has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayStats {
    /// By rail and direction.
    pub wires: Vec<(u8, Direction, WireCounts)>,
    /// Datagrams that the system refused to send.
    pub send_errors: u64,
    /// Forgeries made, by [`flood::KINDS`].
    pub floods: Vec<u64>,
    /// What was sent to addresses that only an attacker has.
    pub answers: u64,
    /// Bytes of the longest of it,
    pub longest_answer: u64,
    /// and of the longest message of a handshake that was sent from there.
    pub longest_call: u64,
}

impl RelayStats {
    /// The sum over all wires.
    pub fn total(&self) -> WireCounts {
        self.wires.iter().fold(WireCounts::default(), |sum, (_, _, wire)| WireCounts {
            received: sum.received + wire.received,
            sent: sum.sent + wire.sent,
            dropped: sum.dropped + wire.dropped,
            repeated: sum.repeated + wire.repeated,
            reordered: sum.reordered + wire.reordered,
            corrupted: sum.corrupted + wire.corrupted,
            overflowed: sum.overflowed + wire.overflowed,
        })
    }
}

impl Relay {
    /// Starts `command`, which runs `causeway-relay` with its arguments, and waits until its sockets are there.
    pub fn start(command: Command, rails: u8, capture: Option<PathBuf>, log: &Path) -> Result<Self, Error> {
        let mut process = Process::spawn_piped(command, log)?;
        process.wait_line("\"ready\"", ANSWER_TIMEOUT, |line| line == "ready")?;
        Ok(Self { process, rails, capture })
    }

    /// Changes one wire.
    pub fn set(&mut self, rail: u8, direction: Direction, impairment: Impairment) -> Result<(), Error> {
        let impairment = serde_json::to_string(&impairment).expect("plain numbers always serialise");
        self.command(&format!("set {rail} {direction} {impairment}")).map(drop)
    }

    /// Changes both directions of one rail.
    pub fn set_rail(&mut self, rail: u8, impairment: Impairment) -> Result<(), Error> {
        self.set(rail, Direction::LeftToRight, impairment)?;
        self.set(rail, Direction::RightToLeft, impairment)
    }

    /// Changes every wire.
    pub fn set_all(&mut self, impairment: Impairment) -> Result<(), Error> {
        (0..self.rails).try_for_each(|rail| self.set_rail(rail, impairment))
    }

    /// Delivers a forged datagram, as if the machine at the wire's beginning had sent it.
    pub fn inject(
        &mut self,
        rail: u8,
        direction: Direction,
        source_port: u16,
        target_port: u16,
        payload: &[u8],
    ) -> Result<(), Error> {
        let mut line = format!("inject {rail} {direction} {source_port} {target_port} ");
        for byte in payload {
            write!(line, "{byte:02x}").expect("writing to a String does not fail");
        }
        self.command(&line).map(drop)
    }

    /// From now on an attacker sends so many forgeries a second over a wire, of what crosses it; 0 ends it.
    pub fn flood(&mut self, rail: u8, direction: Direction, per_second: u64) -> Result<(), Error> {
        self.command(&format!("flood {rail} {direction} {per_second}")).map(drop)
    }

    /// The same with nothing but messages of handshakes: replayed, forged and reflected, from many addresses.
    pub fn flood_calls(&mut self, rail: u8, direction: Direction, per_second: u64) -> Result<(), Error> {
        self.command(&format!("calls {rail} {direction} {per_second}")).map(drop)
    }

    /// The attacker takes what it has seen on all wires for frames under another key: to be called between two
    /// channels.
    pub fn keep_as_foreign(&mut self) -> Result<(), Error> {
        for rail in 0..self.rails {
            for direction in [Direction::LeftToRight, Direction::RightToLeft] {
                self.command(&format!("keep {rail} {direction}"))?;
            }
        }
        Ok(())
    }

    /// What happened so far. Afterwards everything received before is in the capture file.
    pub fn stats(&mut self) -> Result<RelayStats, Error> {
        let line = self.command("stats")?;
        parse_stats(&line)
            .ok_or_else(|| Error::unexpected(format!("the relay's statistics are unreadable: {line}")))
    }

    /// The capture file, if there is one. See [`crate::capture::read`].
    pub fn capture(&self) -> Option<&Path> {
        self.capture.as_deref()
    }

    fn command(&mut self, line: &str) -> Result<String, Error> {
        let stdin =
            self.process.stdin().ok_or_else(|| Error::unexpected("the relay has no standard input"))?;
        stdin.write_all(format!("{line}\n").as_bytes()).map_err(Error::io("cannot command the relay"))?;
        let answer = self.process.wait_line("an answer", ANSWER_TIMEOUT, |_| true)?;
        match answer.strip_prefix("error ") {
            Some(what) => Err(Error::unexpected(format!("the relay refused {line:?}: {what}"))),
            None => Ok(answer),
        }
    }
}

fn parse_stats(line: &str) -> Option<RelayStats> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    let wires = value["wires"].as_array()?.iter().map(|wire| {
        let count = |name: &str| wire[name].as_u64();
        let counts = WireCounts {
            received: count("received")?,
            sent: count("sent")?,
            dropped: count("dropped")?,
            repeated: count("repeated")?,
            reordered: count("reordered")?,
            corrupted: count("corrupted")?,
            overflowed: count("overflowed")?,
        };
        Some((u8::try_from(count("rail")?).ok()?, wire["direction"].as_str()?.parse().ok()?, counts))
    });
    let floods = value["floods"].as_array()?.iter().map(serde_json::Value::as_u64).collect::<Option<_>>()?;
    let number = |name: &str| value[name].as_u64();
    Some(RelayStats {
        wires: wires.collect::<Option<_>>()?,
        send_errors: number("send_errors")?,
        floods,
        answers: number("answers")?,
        longest_answer: number("longest_answer")?,
        longest_call: number("longest_call")?,
    })
}
