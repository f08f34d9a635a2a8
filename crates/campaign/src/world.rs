//! Two machines made of namespaces, and the relay between them.
//!
//! ```text
//!   left machine          facing left         facing right         right machine
//!   10.77.R.1  ── veth ── 10.77.R.2  [relay]  10.77.R.1  ── veth ── 10.77.R.2
//! ```
//!
//! Each rail R is a wire of its own. A machine has its own network and mount namespace: it shares no socket, no file
//! and no shared memory with the other. Its folder has the same path inside and outside, so that the test sees
//! everything; `/run`, `/dev/shm` and `/var/lib` are its own.
//!
//! A namespace lives as long as the process that holds it, a `cat` which ends with its standard input, so with the
//! test. As root no more is needed; others get a user namespace of their own first, where the system allows it.

mod medium;
mod mesh;

pub use medium::Medium;
pub use mesh::Mesh;

use crate::Error;
use crate::gate::{self, Permit};
use crate::process::{Process, run};
use crate::relay::Relay;
use std::fmt;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// For one step of the set-up; each takes milliseconds.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// The ports that Causeway takes first: the relay waits on them for a machine that speaks first.
const FIRST_PORTS: [u16; 4] = [7411, 7412, 7413, 7414];

/// One of the two machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// By custom the borrower.
    Left,
    /// By custom the lender.
    Right,
}

/// A way over a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// What the left machine sends.
    LeftToRight,
    /// What the right machine sends.
    RightToLeft,
}

impl Direction {
    /// The way that ends at `side`.
    pub fn toward(side: Side) -> Self {
        match side {
            Side::Left => Self::RightToLeft,
            Side::Right => Self::LeftToRight,
        }
    }

    /// The way that begins at `side`.
    pub fn from_side(side: Side) -> Self {
        match side {
            Side::Left => Self::LeftToRight,
            Side::Right => Self::RightToLeft,
        }
    }

    /// The other way.
    pub fn opposite(self) -> Self {
        Self::toward(self.source())
    }

    /// Who sends.
    pub fn source(self) -> Side {
        match self {
            Self::LeftToRight => Side::Left,
            Self::RightToLeft => Side::Right,
        }
    }

    /// Who receives.
    pub fn target(self) -> Side {
        match self {
            Self::LeftToRight => Side::Right,
            Self::RightToLeft => Side::Left,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftToRight => "left-to-right",
            Self::RightToLeft => "right-to-left",
        })
    }
}

impl FromStr for Direction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "left-to-right" => Ok(Self::LeftToRight),
            "right-to-left" => Ok(Self::RightToLeft),
            _ => Err(format!("{text} is not a direction")),
        }
    }
}

/// A machine's address on a rail.
pub fn rail_address(rail: u8, side: Side) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, rail, if side == Side::Left { 1 } else { 2 })
}

/// What a world is made of.
#[derive(Clone, Debug)]
pub struct WorldConfig {
    /// Wires between the machines, 1 to 16.
    pub rails: u8,
    /// Largest IP packet of every wire, in bytes.
    pub mtu: u32,
    /// Seed of the relay's chances.
    pub seed: u64,
    /// Record everything that the machines send, over UDP.
    pub capture: bool,
    /// What joins them.
    pub medium: Medium,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self { rails: 2, mtu: 1500, seed: 1, capture: false, medium: Medium::chosen() }
    }
}

/// Two machines and the relay. Dropped, all of it is gone, the folder too (unless the thread is panicking: then the
/// folder with the logs stays, and its path is printed).
pub struct World {
    // Dropped in this order: the relay's sockets before the namespaces they are in.
    relay: Relay,
    _switches: Vec<Process>,
    left: Machine,
    right: Machine,
    _facing: [Holder; 2],
    _user: Option<Holder>,
    dir: PathBuf,
    _permit: Permit,
}

impl World {
    /// Builds everything. All wires are good at first.
    pub fn new(config: &WorldConfig) -> Result<Self, Error> {
        assert!((1..=16).contains(&config.rails), "1 to 16 rails");
        let place = gate::waits();
        let dir = make_folder()?;
        let user = if rustix::process::geteuid().is_root() { None } else { Some(Holder::user(&dir)?) };
        let user_pid = user.as_ref().map(Holder::pid);
        let addresses = |side| (0..config.rails).map(|rail| rail_address(rail, side)).collect();
        let mut left = Machine::new("left", &["right"], addresses(Side::Left), &dir, user_pid)?;
        let mut right = Machine::new("right", &["left"], addresses(Side::Right), &dir, user_pid)?;
        let facing_left = Holder::namespaces("facing-left", "", &dir, user_pid)?;
        let facing_right = Holder::namespaces("facing-right", "", &dir, user_pid)?;
        for rail in 0..config.rails {
            connect(rail, Side::Left, &left.holder, &facing_left, config.mtu)?;
            connect(rail, Side::Right, &right.holder, &facing_right, config.mtu)?;
        }
        let relay = start_relay(config, &dir, user_pid, [&facing_left, &facing_right])?;
        let switches = config.medium.join(&mut left, &mut right)?;
        Ok(Self {
            relay,
            _switches: switches,
            left,
            right,
            _facing: [facing_left, facing_right],
            _user: user,
            dir,
            _permit: place,
        })
    }

    /// By custom the borrower's machine.
    pub fn left(&self) -> &Machine {
        &self.left
    }

    /// By custom the lender's machine.
    pub fn right(&self) -> &Machine {
        &self.right
    }

    /// The network between them.
    pub fn relay(&mut self) -> &mut Relay {
        &mut self.relay
    }

    /// The world's folder, seen from outside.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for World {
    fn drop(&mut self) {
        remove_folder(&self.dir);
    }
}

/// Removes a world's folder, unless its test has failed.
fn remove_folder(dir: &Path) {
    if std::thread::panicking() {
        eprintln!("the logs of this failure are in {}", dir.display());
    } else if let Err(error) = std::fs::remove_dir_all(dir) {
        eprintln!("cannot remove {}: {error}", dir.display());
    }
}

/// One machine.
pub struct Machine {
    holder: Holder,
    addresses: Vec<Ipv4Addr>,
    dir: PathBuf,
    rails: medium::Rails,
}

impl Machine {
    /// The machine `name` of a world, to which the machines `others` are hidden.
    fn new(
        name: &str,
        others: &[&str],
        addresses: Vec<Ipv4Addr>,
        world: &Path,
        user: Option<u32>,
    ) -> Result<Self, Error> {
        let dir = world.join(name);
        for folder in ["tmp", "run", "state", "var-lib", "logs"] {
            let folder = dir.join(folder);
            std::fs::create_dir_all(&folder)
                .map_err(Error::io(format!("cannot create {}", folder.display())))?;
        }
        // The words are ours: a path made by make_folder holds nothing that a shell would read otherwise.
        let mut mounts = String::new();
        for other in others {
            let hidden = world.join(other);
            std::fs::create_dir_all(&hidden)
                .map_err(Error::io(format!("cannot create {}", hidden.display())))?;
            mounts += &format!("mount -t tmpfs hidden '{}'; ", hidden.display());
        }
        let var_lib = dir.join("var-lib");
        mounts += "mount -t tmpfs run /run; mount -t tmpfs shm /dev/shm; ";
        mounts += &format!("mount --bind '{}' /var/lib", var_lib.display());
        let holder = Holder::namespaces(name, &mounts, world, user)?;
        let rails = medium::Rails::over_udp(&addresses);
        Ok(Self { holder, addresses, dir, rails })
    }

    /// A command that will run in this machine, with folders of its own in its environment. The pid of the started
    /// process is the program's own.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.holder.enter();
        command.args(["setpriv", "--pdeathsig", "KILL", "--"]).arg(program.as_ref());
        command.env("HOME", &self.dir).env("TMPDIR", self.dir.join("tmp"));
        command.env("XDG_RUNTIME_DIR", self.dir.join("run")).env("XDG_STATE_HOME", self.dir.join("state"));
        command.current_dir(&self.dir);
        command
    }

    /// Starts a program here; its output goes to the log `NAME.log`.
    pub fn spawn(&self, name: &str, command: Command) -> Result<Process, Error> {
        Process::spawn(command, &self.dir.join("logs").join(format!("{name}.log")))
    }

    /// From now on the machine looks as if it had been started `round` times more.
    pub fn boot(&self, round: u32) -> Result<(), Error> {
        let id = self.dir.join(format!("boot-id-{round}"));
        let written = std::fs::write(&id, format!("00000000-0000-4000-8000-{round:012x}\n"));
        written.map_err(Error::io(format!("cannot write {}", id.display())))?;
        let mut command = self.command("mount");
        command.arg("--bind").arg(&id).arg("/proc/sys/kernel/random/boot_id");
        run(command).map(drop)
    }

    /// This machine's folder: the same path inside and outside, and invisible from the other machine.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The arguments by which `causeway lend` is at all of its rails.
    pub fn lends_at(&self) -> &[String] {
        &self.rails.lend
    }

    /// Those by which `causeway borrow` is.
    pub fn borrows_at(&self) -> &[String] {
        &self.rails.borrow
    }

    /// Its address on each rail.
    pub fn addresses(&self) -> &[Ipv4Addr] {
        &self.addresses
    }
}

/// The process that keeps namespaces alive.
struct Holder {
    process: Process,
    user: Option<u32>,
}

impl Holder {
    /// A user namespace in which this user is root, for those who are not.
    fn user(dir: &Path) -> Result<Self, Error> {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "sh", "-c", "echo ready; exec cat"]);
        Self::start(command, "user", dir, None)
    }

    /// A network and a mount namespace, the latter changed by `mounts`.
    fn namespaces(name: &str, mounts: &str, dir: &Path, user: Option<u32>) -> Result<Self, Error> {
        let mut command = inside(user, None);
        let script = format!("set -e; {mounts}\nip link set lo up; echo ready; exec cat");
        command.args(["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", &script]);
        Self::start(command, name, dir, user)
    }

    fn start(command: Command, name: &str, dir: &Path, user: Option<u32>) -> Result<Self, Error> {
        let mut process = Process::spawn_piped(with_sbin(command), &dir.join(format!("{name}.log")))?;
        process.wait_line("namespaces (root, or user namespaces allowed)", STEP_TIMEOUT, |line| {
            line == "ready"
        })?;
        Ok(Self { process, user })
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The beginning of a command that runs inside.
    fn enter(&self) -> Command {
        with_sbin(inside(self.user, Some(self.pid())))
    }

    /// Runs `ip` inside.
    fn ip(&self, words: &str) -> Result<(), Error> {
        let mut command = self.enter();
        command.arg("ip").args(words.split(' '));
        crate::process::run(command).map(drop)
    }
}

/// `env` with what enters the user namespace `user` and the network and mount namespaces of `holder`, as far as given.
fn inside(user: Option<u32>, holder: Option<u32>) -> Command {
    let mut command = Command::new("env");
    if let Some(pid) = user {
        command.args(["nsenter", "--target", &pid.to_string(), "--user", "--preserve-credentials", "--"]);
    }
    if let Some(pid) = holder {
        command.args(["nsenter", "--target", &pid.to_string(), "--net", "--mount", "--"]);
    }
    command
}

/// Debian keeps `ip` and its kind where the search path of others than root does not lead.
fn with_sbin(mut command: Command) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"));
    command
}

/// A wire between a machine and the namespace that faces it and carries the other machine's address.
fn connect(rail: u8, side: Side, machine: &Holder, facing: &Holder, mtu: u32) -> Result<(), Error> {
    let other = if side == Side::Left { Side::Right } else { Side::Left };
    let device = format!("rail{rail}");
    machine.ip(&format!(
        "link add {device} mtu {mtu} type veth peer name {device} mtu {mtu} netns {}",
        facing.pid()
    ))?;
    for (holder, owner) in [(facing, other), (machine, side)] {
        holder.ip(&format!("addr add {}/24 dev {device}", rail_address(rail, owner)))?;
        holder.ip(&format!("link set {device} up"))?;
    }
    Ok(())
}

fn start_relay(
    config: &WorldConfig,
    dir: &Path,
    user: Option<u32>,
    facing: [&Holder; 2],
) -> Result<Relay, Error> {
    let capture = config.capture.then(|| dir.join("capture.pcap"));
    let mut command = with_sbin(inside(user, None));
    command.arg(support_program("causeway-relay")?);
    command.args(facing.map(|holder| holder.pid().to_string()));
    command.args([config.rails.to_string(), config.seed.to_string()]);
    let ports = FIRST_PORTS.into_iter().chain([medium::SWITCH_PORT]).map(|port| port.to_string());
    match config.medium {
        Medium::Ethernet => command.arg("ethernet"),
        Medium::Udp | Medium::Switch => command.arg(ports.collect::<Vec<_>>().join(",")),
    };
    command.args(&capture);
    Relay::start(command, config.rails, capture, &dir.join("relay.log"))
}

/// A program of this crate lies beside the folder of the test executables; cargo builds it with this crate's tests.
pub(crate) fn support_program(name: &str) -> Result<PathBuf, Error> {
    let test = std::env::current_exe().map_err(Error::io("cannot find the test executable"))?;
    let candidates = test.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let near = test.display();
        Error::unexpected(format!("no {name} near {near}: run cargo build -p causeway-campaign"))
    })
}

/// A folder of this process alone. Short, because socket paths must be.
fn make_folder() -> Result<PathBuf, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("cw-{}-{number}", std::process::id()));
    if dir.to_string_lossy().contains('\'') {
        return Err(Error::unexpected(format!(
            "TMPDIR must not contain a quotation mark: {}",
            dir.display()
        )));
    }
    // A folder of that name can only be one that a failed run of an earlier process with this pid left for inspection.
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir(&dir).map_err(Error::io(format!("cannot create {}", dir.display())))?;
    Ok(dir)
}
