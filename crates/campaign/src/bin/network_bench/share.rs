//! Reads over an Ethernet rail while a TCP connection sends through the same port of a bridge.

use super::{Round, ethernet};
use campaign::Error;
use campaign::tcp::Flow;
use campaign::world::Mesh;

/// Long enough that what a connection begins with hardly counts.
const SECONDS: u32 = 30;

pub(super) fn measure(rounds: usize) -> Result<Vec<Round>, Error> {
    let mesh = Mesh::new(2, 2)?;
    let [left, right] = mesh.machines() else { return Err(Error::unexpected("two machines")) };
    mesh.narrow(1, 0)?;
    let pair = ethernet::Pair::start([left, right], "ethernet", ["ethernet = \"rail0\""; 2])?;
    let one = || -> Result<Round, Error> {
        let flow = Flow::start(right, left, SECONDS)?;
        let ours = ethernet::reads_for(SECONDS, left, &pair.socket, ("64k", 16))? * 65536.0;
        Ok(Round { ours: ours / 1e6, peer: flow.rate()? / 1e6 })
    };
    (0..rounds).map(|_| one()).collect()
}
