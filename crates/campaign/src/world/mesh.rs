//! Several machines of which each reaches each other one, by way of a bridge in a namespace of its own.
//!
//! ```text
//!   10.78.R.1  ── veth ──┐
//!   10.78.R.2  ── veth ──┤ bridge of rail R
//!   10.78.R.3  ── veth ──┘
//! ```

use super::{
    Command, Error, Holder, Ipv4Addr, Machine, Path, PathBuf, Permit, gate, make_folder, remove_folder, run,
};

/// The machines and their bridges. Dropped, all of it is gone, as a [`super::World`].
pub struct Mesh {
    machines: Vec<Machine>,
    bridges: Holder,
    _user: Option<Holder>,
    dir: PathBuf,
    _permit: Permit,
}

impl Mesh {
    /// Makes `count` machines, at most 200, that share `rails` networks.
    pub fn new(count: u8, rails: u8) -> Result<Self, Error> {
        assert!((1..=200).contains(&count), "each machine has an address");
        let place = gate::waits();
        let dir = make_folder()?;
        let user = if rustix::process::geteuid().is_root() { None } else { Some(Holder::user(&dir)?) };
        let user_pid = user.as_ref().map(Holder::pid);
        let bridges = Holder::namespaces("bridges", "", &dir, user_pid)?;
        for rail in 0..rails {
            bridges.ip(&format!("link add bridge{rail} type bridge"))?;
            bridges.ip(&format!("link set bridge{rail} up"))?;
        }
        let names: Vec<String> = (1..=count).map(|number| format!("m{number}")).collect();
        let mut machines = Vec::new();
        for (number, name) in (1..=count).zip(&names) {
            let others: Vec<&str> = names.iter().filter(|other| *other != name).map(String::as_str).collect();
            let addresses: Vec<_> = (0..rails).map(|rail| Ipv4Addr::new(10, 78, rail, number)).collect();
            let machine = Machine::new(name, &others, addresses, &dir, user_pid)?;
            for (rail, address) in machine.addresses().iter().enumerate() {
                plug_in(&machine.holder, &bridges, (rail, number), *address)?;
            }
            machines.push(machine);
        }
        Ok(Self { machines, bridges, _user: user, dir, _permit: place })
    }

    /// The machines.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// The beginning of a command that runs where the bridges are: rail R of machine N has the port `mNrR` there.
    pub fn bridges(&self) -> Command {
        self.bridges.enter()
    }

    /// The port toward machine `number`, counted from one, on a rail carries 100 Mbit/s from now on; what comes faster
    /// waits there for 20 ms at most. It lies between the machines, as a switch's does: a queue on a sender's own
    /// interface would be one that its TCP keeps short.
    pub fn narrow(&self, number: u8, rail: u8) -> Result<(), Error> {
        let mut command = self.bridges();
        command.args(["tc", "qdisc", "add", "dev", &format!("m{number}r{rail}"), "root", "tbf"]);
        command.args(["rate", "100mbit", "burst", "32kb", "latency", "20ms"]);
        run(command).map(drop)
    }

    /// The folder of all, seen from outside.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        remove_folder(&self.dir);
    }
}

/// A wire from a machine to the bridge of a rail.
fn plug_in(
    machine: &Holder,
    bridges: &Holder,
    (rail, number): (usize, u8),
    address: Ipv4Addr,
) -> Result<(), Error> {
    let (device, port) = (format!("rail{rail}"), format!("m{number}r{rail}"));
    machine.ip(&format!("link add {device} type veth peer name {port} netns {}", bridges.pid()))?;
    bridges.ip(&format!("link set {port} master bridge{rail}"))?;
    bridges.ip(&format!("link set {port} up"))?;
    machine.ip(&format!("addr add {address}/24 dev {device}"))?;
    machine.ip(&format!("link set {device} up"))
}
