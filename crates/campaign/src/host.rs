//! The machine that runs virtual machines: a node with slots, and what a guest does with a drive.
//!
//! Guests themselves are `crates/guest`'s; here is what the program under test and the tests say to each other about
//! them.

use crate::Error;
use crate::causeway::{START_TIMEOUT, binary, status};
use crate::process::{Process, poll_until};
use crate::world::Machine;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A domain of one slot, `disk`.
#[derive(Clone, Copy, Debug)]
pub struct Domain<'a> {
    /// Its name; the slot's socket lies at MACHINE/NAME.sock.
    pub name: &'a str,
    /// QEMU's QMP socket, if the node is to know it.
    pub qmp: Option<&'a Path>,
    /// How long a guest may take to let go of a function, in seconds.
    pub remove_after_s: u32,
    /// The port that its slot is plugged into.
    pub bus: &'a str,
}

/// A running `causeway node` named `host` with domains.
pub struct Host {
    /// The node's process.
    pub process: Process,
}

impl Host {
    /// The node's name.
    pub const NAME: &'static str = "host";

    /// Starts it in `machine`, and waits until it answers.
    pub fn start(machine: &Machine, domains: &[Domain<'_>]) -> Result<Self, Error> {
        Self::start_with(machine, &domains.iter().map(|domain| domain.table(machine)).collect::<String>())
    }

    /// The same with tables of a configuration.
    pub fn start_with(machine: &Machine, tables: &str) -> Result<Self, Error> {
        let file = machine.dir().join("host.toml");
        let text = format!(
            "name = '{}'\nstate_dir = '{}/state-host'\n{tables}",
            Self::NAME,
            machine.dir().display()
        );
        std::fs::write(&file, text).map_err(Error::io(format!("cannot write {}", file.display())))?;
        let mut command = machine.command(binary()?);
        command.args(["node", "--config"]).arg(file);
        let process = machine.spawn(Self::NAME, command)?;
        let answers =
            poll_until("the node's first status", START_TIMEOUT, || Ok(status(machine, Self::NAME).ok()));
        answers.map_err(|error| Error::unexpected(format!("{error}\n{}", process.tail())))?;
        Ok(Self { process })
    }

    /// Where the socket of a domain's slot lies.
    pub fn socket(machine: &Machine, domain: &str) -> PathBuf {
        machine.dir().join(format!("{domain}.sock"))
    }

    /// `causeway attach`, to the slot of a domain.
    pub fn attach(machine: &Machine, domain: &str, line: &str) -> Result<Command, Error> {
        let mut command = machine.command(binary()?);
        command.args(["attach", line, &format!("{domain}/disk"), "--name", Self::NAME]);
        Ok(command)
    }

    /// `causeway detach`, from the slot of a domain.
    pub fn detach(machine: &Machine, domain: &str) -> Result<Command, Error> {
        let mut command = machine.command(binary()?);
        command.args(["detach", &format!("{domain}/disk"), "--name", Self::NAME]);
        Ok(command)
    }
}

impl Domain<'_> {
    fn table(&self, machine: &Machine) -> String {
        let Self { name, qmp, remove_after_s, bus } = self;
        let mut table =
            format!("[[domains]]\nname = '{name}'\nkind = 'vm'\nremove_after_s = {remove_after_s}\n");
        if let Some(qmp) = qmp {
            writeln!(table, "qmp = '{}'", qmp.display()).expect("writing to a String does not fail");
        }
        let socket = Host::socket(machine, name);
        table + &format!("[[domains.slots]]\nname = 'disk'\nsocket = '{}'\nbus = '{bus}'\n", socket.display())
    }
}

/// fio's command in a guest: random writes, each verified.
pub fn guest_fio(what: &str) -> String {
    format!(
        "fio --name=job --direct=1 --ioengine=libaio --rw=randwrite --verify=crc32c --verify_fatal=1 --thread \
         --output-format=json {what}"
    )
}

/// Requests that have ended, by fio's report of a job without an error that has verified what it wrote.
pub fn guest_fio_verified(text: &str) -> Result<u64, Error> {
    // What it says of a signal comes before.
    let report = text.find('{').map_or("", |begin| &text[begin..]);
    let wrong = |why: &str| Error::unexpected(format!("{why}: {text}"));
    let report: Value = serde_json::from_str(report).map_err(|_| wrong("this is no report of fio"))?;
    let job = &report["jobs"][0];
    let count = |way: &str| job[way]["total_ios"].as_u64();
    match (job["error"].as_u64(), count("write"), count("read")) {
        (Some(0), Some(written @ 1..), Some(read @ 1..)) => Ok(written + read),
        _ => Err(wrong("fio has not verified what it wrote")),
    }
}
