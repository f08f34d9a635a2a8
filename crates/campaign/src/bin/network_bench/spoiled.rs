//! Reads over two rails of 100 Mbit/s each of which one is spoiled, beside the good one alone.

use super::{Round, ethernet, tool};
use base::Impairment;
use campaign::Error;
use campaign::causeway::{Borrower, Lender};
use campaign::world::{World, WorldConfig};
use std::time::Duration;

/// Longer than a rail takes to lose its traffic or to get it back.
const SETTLED: Duration = Duration::from_millis(1500);

/// One of twenty datagrams is lost, either way.
pub(super) fn loss(rounds: usize) -> Result<Vec<Round>, Error> {
    measure(rounds, Impairment { drop_ppm: 50_000, ..Impairment::NONE })
}

/// Each datagram takes 20 ms, either way.
pub(super) fn delay(rounds: usize) -> Result<Vec<Round>, Error> {
    measure(rounds, Impairment { delay_ns: 20_000_000, ..Impairment::NONE })
}

fn measure(rounds: usize, harm: Impairment) -> Result<Vec<Round>, Error> {
    let mut world = World::new(&WorldConfig::default())?;
    for device in ["rail0", "rail1"] {
        let shaped = ["rate", "100mbit", "burst", "32kb", "latency", "20ms"];
        tool(world.right(), &[&["tc", "qdisc", "add", "dev", device, "root", "tbf"], &shaped[..]].concat())?;
    }
    let lender = Lender::start(world.right(), &["ram:64M"], &[])?;
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[])?;
    let mut megabytes = |other: Impairment| {
        world.relay().set_rail(1, other)?;
        std::thread::sleep(SETTLED);
        Ok::<f64, Error>(ethernet::reads(world.left(), &borrower.socket, ("64k", 16))? * 65536.0 / 1e6)
    };
    (0..rounds).map(|_| Ok(Round { ours: megabytes(harm)?, peer: megabytes(Impairment::CUT)? })).collect()
}
