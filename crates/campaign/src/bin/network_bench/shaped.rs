//! Reads over two rails of 100 Mbit/s each, beside one.

use super::{Round, ethernet, tool};
use campaign::Error;
use campaign::causeway::{Borrower, Lender};
use campaign::world::Mesh;

pub(super) fn measure(rounds: usize) -> Result<Vec<Round>, Error> {
    let mesh = Mesh::new(2, 2)?;
    let [left, right] = mesh.machines() else { return Err(Error::unexpected("two machines")) };
    for device in ["rail0", "rail1"] {
        let shaped = ["rate", "100mbit", "burst", "32kb", "latency", "20ms"];
        tool(right, &[&["tc", "qdisc", "add", "dev", device, "root", "tbf"], &shaped[..]].concat())?;
    }
    let at = |rail: usize, port: u16| format!("{}:{port}", right.addresses()[rail]);
    let lend = |name: &str, listen: &[&str]| Lender::start_as(right, name, &["ram:64M"], listen);
    let two = lend("two", &["--listen", &at(0, 7411), "--listen", &at(1, 7411)])?;
    let one = lend("one", &["--listen", &at(0, 7412)])?;
    let by_two = Borrower::start_as(left, "by-two", &two.lines[0], &[])?;
    let by_one = Borrower::start_as(left, "by-one", &one.lines[0], &[])?;
    let megabytes = |borrower: &Borrower| {
        Ok::<f64, Error>(ethernet::reads(left, &borrower.socket, ("64k", 16))? * 65536.0 / 1e6)
    };
    (0..rounds).map(|_| Ok(Round { ours: megabytes(&by_two)?, peer: megabytes(&by_one)? })).collect()
}
