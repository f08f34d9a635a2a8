//! A fabric with a manager, by its commands.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::Error;
use crate::causeway::{START_TIMEOUT, binary};
use crate::process::{Process, poll_until};
use crate::world::Machine;

/// A manager on a machine, and what its administrator has.
pub struct Fabric<'a> {
    machine: &'a Machine,
    /// The manager's process.
    pub manager: Process,
    /// `https://ADDR:PORT`
    pub url: String,
}

impl<'a> Fabric<'a> {
    /// Founds a fabric in `MACHINE/fabric`, and starts its manager.
    ///
    /// # Errors
    /// That fails.
    pub fn found(machine: &'a Machine) -> Result<Self, Error> {
        // Networks of machines are their own, so a port that is free here is free there.
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr());
        let address = free.map_err(Error::io("cannot find a free port"))?.to_string();
        Self::found_with(machine, &["--listen", &address])
    }

    /// The same; other machines reach the manager at this address.
    ///
    /// # Errors
    /// That fails.
    pub fn found_for_others(machine: &'a Machine, address: Ipv4Addr) -> Result<Self, Error> {
        let address = address.to_string();
        Self::found_with(machine, &["--listen", &format!("{address}:7500"), "--name", &address])
    }

    fn found_with(machine: &'a Machine, arguments: &[&str]) -> Result<Self, Error> {
        let mut command = machine.command(binary()?);
        command.arg("init").arg(machine.dir().join("fabric")).args(arguments);
        expect(&mut command)?;
        let (manager, url) = start(machine)?;
        Ok(Self { machine, manager, url })
    }

    /// Another process of the manager, after the last one has ended.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_again(&mut self) -> Result<(), Error> {
        (self.manager, self.url) = start(self.machine)?;
        Ok(())
    }

    /// A command of the administrator.
    ///
    /// # Errors
    /// There is no program.
    pub fn command(&self, arguments: &[&str]) -> Result<Command, Error> {
        let mut command = self.machine.command(binary()?);
        command.args(arguments).env("CAUSEWAY_MANAGER", self.machine.dir().join("fabric/admin.toml"));
        Ok(command)
    }

    /// What such a command comes to.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn ask(&self, arguments: &[&str]) -> Result<Output, Error> {
        self.command(arguments)?.output().map_err(Error::io("cannot run causeway"))
    }

    /// What one prints that has to succeed.
    ///
    /// # Errors
    /// It does not.
    pub fn told(&self, arguments: &[&str]) -> Result<String, Error> {
        expect(&mut self.command(arguments)?)
    }

    /// The rows of a list.
    ///
    /// # Errors
    /// The command fails, or prints no list.
    pub fn list(&self, of: &str) -> Result<Vec<Value>, Error> {
        let text = self.told(&[of, "list", "-o", "json"])?;
        let page: Value =
            serde_json::from_str(&text).map_err(|error| Error::unexpected(error.to_string()))?;
        let key = if of == "switch" { "switches".to_owned() } else { format!("{of}s") };
        let rows = page[key].as_array().cloned();
        rows.ok_or_else(|| Error::unexpected(format!("no list: {text}")))
    }

    /// The row of that name, as soon as it is as `is_so` says.
    ///
    /// # Errors
    /// That takes too long.
    pub fn wait_row(
        &self,
        of: &str,
        name: &str,
        timeout: Duration,
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<Value, Error> {
        let what = format!("{of} {name} as it shall be");
        poll_until(&what, timeout, || {
            let rows = self.list(of).unwrap_or_default();
            Ok(rows.into_iter().find(|row| row["name"] == name && is_so(row)))
        })
    }

    /// A node of this name belongs to the fabric from now on; its folder is `MACHINE/state/NAME`.
    ///
    /// # Errors
    /// It was not let in.
    pub fn join(&self, machine: &Machine, name: &str) -> Result<PathBuf, Error> {
        let token = self.told(&["join-token", "make"])?;
        let file = machine.dir().join(format!("{name}.token"));
        std::fs::write(&file, token.trim()).map_err(Error::io("cannot write a token"))?;
        let folder = machine.dir().join("state").join(name);
        let mut command = machine.command(binary()?);
        command.arg("join").arg(format!("@{}", file.display())).args(["--name", name]);
        command.arg("--state-dir").arg(&folder);
        expect(&mut command)?;
        Ok(folder)
    }
}

fn start(machine: &Machine) -> Result<(Process, String), Error> {
    let mut command = machine.command(binary()?);
    command.args(["manager", "--config"]).arg(machine.dir().join("fabric/manager.toml"));
    let mut manager = machine.spawn("manager", command)?;
    let url =
        manager.wait_line("where the manager is", START_TIMEOUT, |line| line.starts_with("https://"))?;
    Ok((manager, url))
}

fn expect(command: &mut Command) -> Result<String, Error> {
    let output = command.output().map_err(Error::io("cannot run causeway"))?;
    if !output.status.success() {
        return Err(Error::unexpected(format!("{command:?}: {output:?}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
