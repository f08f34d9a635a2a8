//! What joins the two machines of a world: UDP, raw Ethernet, or one of the product's switches on each rail.

use super::{Error, Ipv4Addr, Machine, Side, rail_address};
use crate::causeway::{START_TIMEOUT, binary, state_dir};
use crate::process::{Process, run};
use std::fmt::Write as _;

/// Where a rail's switch is, on the right machine. What goes to it from the left one crosses the relay.
pub(super) const SWITCH_PORT: u16 = 7590;
/// The port of a node, of which a machine behind a switch has one.
const NODE_PORT: u16 = 7411;
/// The nodes that a switch leads to. Each machine runs one of them at a time.
const NODES: [(Side, &[&str]); 2] =
    [(Side::Left, &["borrower", "another", "slot"]), (Side::Right, &["lender"])];

/// What joins two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Datagrams, and each machine has the other's address.
    Udp,
    /// Raw Ethernet frames.
    Ethernet,
    /// Datagrams to a switch on each rail, and through it.
    Switch,
}

impl Medium {
    /// What `CAUSEWAY_MEDIUM` names, `ethernet` or `switch`; else UDP. With it any campaign of two nodes runs there.
    ///
    /// # Panics
    /// It names something else: a campaign that is told so must not run over what nobody asked for.
    pub fn chosen() -> Self {
        match std::env::var("CAUSEWAY_MEDIUM").ok().as_deref() {
            None | Some("" | "udp") => Self::Udp,
            Some("ethernet") => Self::Ethernet,
            Some("switch") => Self::Switch,
            Some(other) => panic!("CAUSEWAY_MEDIUM is udp, ethernet or switch, not {other}"),
        }
    }

    /// Tells both machines how nodes there find each other. What has to run for it is returned.
    pub(super) fn join(self, left: &mut Machine, right: &mut Machine) -> Result<Vec<Process>, Error> {
        let rails = 0..u8::try_from(left.addresses.len()).expect("at most 16 rails");
        match self {
            Self::Udp => Ok(Vec::new()),
            Self::Ethernet => {
                for machine in [left, right] {
                    machine.rails = Rails::over_ethernet(rails.clone());
                }
                Ok(Vec::new())
            }
            Self::Switch => {
                let ids = [ids(left, NODES[0].1)?, ids(right, NODES[1].1)?];
                for (machine, side) in [(&mut *left, Side::Left), (&mut *right, Side::Right)] {
                    machine.rails = Rails::through_switches(rails.clone(), side);
                }
                rails.map(|rail| start_switch(right, rail, &ids)).collect()
            }
        }
    }
}

/// How nodes of a machine are told of its rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rails {
    /// By `causeway lend`.
    pub(super) lend: Vec<String>,
    /// By `causeway borrow`.
    pub(super) borrow: Vec<String>,
}

impl Rails {
    /// A lender names its addresses; a borrower finds its own by the lender's.
    pub(super) fn over_udp(addresses: &[Ipv4Addr]) -> Self {
        let listen = addresses.iter().flat_map(|address| ["--listen".to_owned(), address.to_string()]);
        Self { lend: listen.collect(), borrow: Vec::new() }
    }

    fn over_ethernet(rails: impl Iterator<Item = u8> + Clone) -> Self {
        let lend = rails.clone().flat_map(|rail| ["--listen".to_owned(), format!("eth:rail{rail}")]);
        let borrow = rails.flat_map(|rail| ["--ethernet".to_owned(), format!("rail{rail}")]);
        Self { lend: lend.collect(), borrow: borrow.collect() }
    }

    fn through_switches(rails: impl Iterator<Item = u8>, side: Side) -> Self {
        let both = rails.flat_map(|rail| {
            let (own, switch) = (rail_address(rail, side), rail_address(rail, Side::Right));
            let listen = format!("{own}:{NODE_PORT}");
            ["--listen".to_owned(), listen, "--switch".to_owned(), format!("{switch}:{SWITCH_PORT}")]
        });
        let both: Vec<String> = both.collect();
        Self { lend: both.clone(), borrow: both }
    }
}

/// Which nodes these are going to be, as a configuration lists them.
fn ids(machine: &Machine, names: &[&str]) -> Result<String, Error> {
    let id = |name: &&str| {
        let mut command = machine.command(binary()?);
        command.args(["id", "--state-dir"]).arg(state_dir(machine, name));
        Ok(format!("'{}'", run(command)?.trim()))
    };
    Ok(names.iter().map(id).collect::<Result<Vec<_>, Error>>()?.join(", "))
}

/// The switch of a rail, which leads to these nodes of the left and the right machine.
fn start_switch(machine: &Machine, rail: u8, ids: &[String; 2]) -> Result<Process, Error> {
    let listen = format!("{}:{SWITCH_PORT}", rail_address(rail, Side::Right));
    let mut text = format!("state_dir = '{}'\n", state_dir(machine, &format!("switch{rail}")).display());
    for ((name, side), ids) in [("left", Side::Left), ("right", Side::Right)].into_iter().zip(ids) {
        let peer = format!("{}:{NODE_PORT}", rail_address(rail, side));
        let port =
            format!("[[ports]]\nname = '{name}'\nlisten = '{listen}'\npeer = '{peer}'\nnodes = [{ids}]\n");
        text.write_str(&port).expect("writing to a String does not fail");
    }
    let name = format!("switch{rail}");
    let file = machine.dir().join(format!("{name}.toml"));
    std::fs::write(&file, text).map_err(Error::io(format!("cannot write {}", file.display())))?;
    let mut command = machine.command(binary()?);
    command.args(["switch", "--config"]).arg(&file);
    let mut process = machine.spawn(&name, command)?;
    process.wait_line("that the switch is there", START_TIMEOUT, |line| {
        line.starts_with(&format!("switch {name}, "))
    })?;
    Ok(process)
}
