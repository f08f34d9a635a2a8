//! The longest time without an answer when one of two rails is cut, beside a connection of the kernel's MPTCP over the
//! same two networks under the same cut. Both rails are cut in turns, and the longer of the two counts: a client that
//! uses one of them feels one of the cuts only.

use super::mptcp::Connection;
use super::{Round, tool};
use campaign::Error;
use campaign::causeway::{Borrower, Lender, status};
use campaign::load::{Load, Model};
use campaign::world::{Machine, Mesh};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Traffic before a cut, and how long one lasts.
const BEFORE: Duration = Duration::from_millis(300);
const CUT: Duration = Duration::from_secs(1);
/// After a cut both use both networks again.
const AFTER: Duration = Duration::from_secs(3);

/// Whether the system is told.
#[derive(Clone, Copy)]
enum Cut {
    Carrier,
    Blackhole,
}

impl Cut {
    fn set(self, machine: &Machine, rail: usize) -> Result<(), Error> {
        let device = format!("rail{rail}");
        match self {
            Self::Carrier => tool(machine, &["ip", "link", "set", &device, "down"]).map(drop),
            Self::Blackhole => {
                let rules = format!(
                    "table inet cut {{ chain in {{ type filter hook input priority 0; iifname {device} drop; }}; \
                     chain out {{ type filter hook output priority 0; oifname {device} drop; }}; }}"
                );
                tool(machine, &["nft", &rules]).map(drop)
            }
        }
    }

    fn end(self, machine: &Machine, rail: usize) -> Result<(), Error> {
        match self {
            Self::Carrier => tool(machine, &["ip", "link", "set", &format!("rail{rail}"), "up"]).map(drop),
            Self::Blackhole => tool(machine, &["nft", "delete table inet cut"]).map(drop),
        }
    }
}

pub(super) fn carrier(rounds: usize) -> Result<Vec<Round>, Error> {
    measure(rounds, Cut::Carrier)
}

pub(super) fn blackhole(rounds: usize) -> Result<Vec<Round>, Error> {
    measure(rounds, Cut::Blackhole)
}

/// The gap beside ten round trips of the same loan under the same load, by what its borrower has measured just before:
/// of the rail that takes longer.
pub(super) fn carrier_by_round_trips(rounds: usize) -> Result<Vec<Round>, Error> {
    const ROUND_TRIPS: f64 = 10.0;
    let mesh = Mesh::new(2, 2)?;
    let [left, right] = mesh.machines() else { return Err(Error::unexpected("two machines")) };
    let (_lender, borrower) = start(left, right)?;
    let (mut measured, mut model) = (Vec::new(), Model::new(0, 4 * MIB, 1));
    for _ in 0..rounds {
        let load = Load::start(&borrower.socket, model, 8)?;
        std::thread::sleep(AFTER);
        let rails = status(left, "borrower")?["rails"].take();
        let times = rails.as_array().into_iter().flatten().filter_map(|rail| rail["rtt_us"].as_f64());
        let peer = ROUND_TRIPS * times.fold(0.0, f64::max) / 1e3;
        let ours = longest(Cut::Carrier, right, || Ok(load.take_longest_gap()))?;
        model = load.stop_whole(&borrower.socket)?.model;
        measured.push(Round { ours, peer });
    }
    Ok(measured)
}

/// A lender on two networks, and who borrows of it.
fn start(left: &Machine, right: &Machine) -> Result<(Lender, Borrower), Error> {
    let listen: Vec<String> =
        right.addresses().iter().flat_map(|address| ["--listen".to_owned(), address.to_string()]).collect();
    let listen: Vec<&str> = listen.iter().map(String::as_str).collect();
    let lender = Lender::start(right, &["ram:16M"], &listen)?;
    let borrower = Borrower::start(left, &lender.lines[0], &[])?;
    Ok((lender, borrower))
}

fn measure(rounds: usize, cut: Cut) -> Result<Vec<Round>, Error> {
    let mesh = Mesh::new(2, 2)?;
    let [left, right] = mesh.machines() else { return Err(Error::unexpected("two machines")) };
    let (_lender, borrower) = start(left, right)?;
    let mut connection = Connection::start(left, right)?;
    let (mut measured, mut model) = (Vec::new(), Model::new(0, 4 * MIB, 1));
    for _ in 0..rounds {
        let load = Load::start(&borrower.socket, model, 8)?;
        let ours = longest(cut, right, || Ok(load.take_longest_gap()))?;
        model = load.stop_whole(&borrower.socket)?.model;
        connection.go_on()?;
        let peer = longest(cut, right, || connection.take_longest_gap())?;
        connection.pause()?;
        measured.push(Round { ours, peer });
    }
    Ok(measured)
}

/// Milliseconds.
fn longest(
    cut: Cut,
    machine: &Machine,
    mut take: impl FnMut() -> Result<Duration, Error>,
) -> Result<f64, Error> {
    let mut longest = Duration::ZERO;
    for rail in 0..2 {
        std::thread::sleep(AFTER);
        take()?;
        std::thread::sleep(BEFORE);
        cut.set(machine, rail)?;
        std::thread::sleep(CUT);
        longest = longest.max(take()?);
        cut.end(machine, rail)?;
    }
    Ok(longest.as_secs_f64() * 1e3)
}
