//! A fabric with a manager, of this machine's own: founded, run, joined and asked by the program's commands, as anybody
//! would.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use program::exit::Failure;
use serde_json::Value;

use super::nodes::{name_of, program};
use super::{Halt, Interrupt, Node, Scratch};

/// How long a node may take to speak to a manager, or to do what that says.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A fabric, whose manager runs or was killed.
pub(crate) struct Fabric<'a> {
    scratch: &'a Scratch,
    interrupt: &'a Interrupt,
    manager: Option<Node>,
}

impl<'a> Fabric<'a> {
    /// Founds one, and starts its manager.
    pub(crate) fn found(
        scratch: &'a Scratch,
        listen: SocketAddr,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Halt> {
        let mut fabric = Self { scratch, interrupt, manager: None };
        let folder = fabric.folder();
        fabric.ask(&["init", &folder, "--listen", &listen.to_string()])?;
        fabric.start()?;
        Ok(fabric)
    }

    /// Starts the manager, which does not run.
    pub(crate) fn start(&mut self) -> Result<(), Halt> {
        let config = format!("{}/manager.toml", self.folder());
        let arguments = vec!["manager".into(), "--config".into(), config.into()];
        let (manager, _url) = Node::launch(self.scratch, "manager", arguments, "https://", self.interrupt)?;
        self.manager = Some(manager);
        Ok(())
    }

    /// Kills it with SIGKILL; returns its process id, if it ran.
    pub(crate) fn kill(&mut self) -> Option<u32> {
        self.manager.take().map(Node::kill)
    }

    /// Ends it as an operator would.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        self.manager.map_or(Ok(()), Node::stop)
    }

    /// Has the node join that is to be started in this role; returns its domains, as `BASE/LEN`.
    pub(crate) fn join(&self, role: &str) -> Result<String, Failure> {
        let token = self.ask(&["join-token", "make"])?;
        let token = Node::named_line_file(self.scratch, &format!("{role}.join"), &token)?;
        let (token, state) = (token.to_string_lossy(), self.scratch.join(&format!("{role}.state")));
        let state = state.display().to_string();
        let said = self.ask(&["join", &token, "--name", &name_of(role), "--state-dir", &state])?;
        let domains = said.split_whitespace().next_back().filter(|word| word.contains('/'));
        domains.map(str::to_owned).ok_or_else(|| {
            Failure::failed(format_args!("`causeway join` does not say which domains the node has: {said}"))
        })
    }

    /// Assigns a function of the node in the role `lender` to a slot of the one in the role `borrower`, or takes it
    /// back; returns when its lender has done it.
    pub(crate) fn assign(&self, function: &str, slot: Option<&str>) -> Result<(), Failure> {
        let function = format!("{}/{function}", name_of("lender"));
        let said = match slot {
            Some(slot) => self.ask(&["assign", &function, &format!("{}/{slot}", name_of("borrower"))])?,
            None => self.ask(&["unassign", &function])?,
        };
        match said.starts_with("pending") {
            true => Err(Failure::failed(format_args!("a lender that is there did not do it: {said}"))),
            false => Ok(()),
        }
    }

    /// Waits until the manager hears both nodes.
    pub(crate) fn wait_reachable(&self) -> Result<(), Halt> {
        for role in ["lender", "borrower"] {
            self.until(&format!("the manager to hear the {role}"), || {
                let shown = self.ask(&["node", "show", &name_of(role), "-o", "json"])?;
                let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
                Ok(shown["state"] == "reachable")
            })?;
        }
        Ok(())
    }

    /// Waits until it knows a function of the lender, and a machine of the borrower, too.
    pub(crate) fn wait_known(&self, function: &str, machine: &str) -> Result<(), Halt> {
        self.wait_reachable()?;
        for (kind, role, name) in [("function", "lender", function), ("domain", "borrower", machine)] {
            let name = format!("{}/{name}", name_of(role));
            self.until(&format!("the manager to know {name}"), || {
                Ok(self.ask(&[kind, "show", &name]).is_ok())
            })?;
        }
        Ok(())
    }

    /// Waits until that is so.
    pub(crate) fn until(
        &self,
        what: &str,
        mut is_so: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<(), Halt> {
        let deadline = Instant::now() + PATIENCE;
        while !is_so()? {
            self.interrupt.check()?;
            if Instant::now() > deadline {
                let seconds = PATIENCE.as_secs();
                return Err(Failure::failed(format_args!("waited {seconds} s in vain for {what}")).into());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// What a command of the administrator prints.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = self.command(arguments)?;
        // A signal of the terminal is for the demo, which ends what it has begun.
        let output = command.process_group(0).stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure::io("cannot run a command of the program", &error))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => {
                let (command, why) = (arguments.join(" "), text(&output.stderr));
                Err(Failure::failed(format_args!("`causeway {command}` did not succeed: {why}")))
            }
        }
    }

    fn command(&self, arguments: &[&str]) -> Result<Command, Failure> {
        let mut command = Command::new(program()?);
        command.args(arguments).env("XDG_RUNTIME_DIR", self.scratch.path());
        command.env("CAUSEWAY_MANAGER", format!("{}/admin.toml", self.folder()));
        Ok(command)
    }

    fn folder(&self) -> String {
        self.scratch.join("fabric").display().to_string()
    }
}
