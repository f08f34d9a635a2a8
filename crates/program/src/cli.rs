//! The command line: the commands of nodes, their arguments, and the values they can have.
//!
//! Names and meanings are fixed by the interface; clap's own usage errors end with 2. What needs a machine to
//! judge (does the file exist, is the port free) is judged later, by the command.

mod access;
mod completions;
mod events;
mod hide;
mod join;
mod link;
mod manager;
mod protection;
mod reload;
mod run;
mod slot;
mod slots;
mod source;
mod switch_ctl;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use ::manager::model::OnSilence;
use base::ids::{Group, NodeId};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use io::address::RailAddress;

use crate::config::Cache;
use crate::line::{FunctionName, LineArgument};
use crate::switch_control::SwitchUrl;
pub use access::{SocketAccess, mode as socket_mode};
pub use completions::CompletionsArgs;
pub(crate) use events::over;
pub use hide::hide_line;
pub use join::JoinArgs;
pub(crate) use join::join;
pub use manager::*;
pub(crate) use protection::protection;
pub use protection::{OnlyCipher, ProtectionArgs};
pub use run::{print, read_line, run};
pub use slot::SlotName;
pub use source::Source;
pub use values::{ByteSize, Listen, NodeName, ValueError, check_socket_path, socket_path};
pub(crate) use values::{check_gateway, gateway};

/// The port a lender takes first; if it is in use, the next free one.
pub const PORT_FIRST: u16 = 7411;
/// How long requests wait for a peer before they fail, in seconds, when nobody chose.
pub const IO_TIMEOUT_DEFAULT_S: u64 = 30;

const EXITS: &str = "\
Exit codes: 0 done, or ended by SIGTERM or SIGINT in order; 1 a verification failed or data was lost;
2 wrong usage or configuration; 3 refused (in use, not permitted, not found); 4 peer or node unreachable.";

const RELOAD: &str = "\
Devices, loans, domains and their slots come and go, access lists and limits change; all of it or nothing.
Rails and the keys of the node itself take a restart. What others have to do first, such as giving a
device back or answering as a lender, is waited for, and said again by each reload until it is done:
`status` and `events` show it. SIGHUP to a node does the same. Exit codes: 2 the file is wrong, 3 it
cannot be done; nothing has changed then.";

/// PCI Express in software, for ordinary machines: lend devices, borrow them, keep them when networks and
/// processes fail.
#[derive(Debug, Parser)]
#[command(name = "causeway", version, subcommand_required = true, after_help = EXITS)]
pub struct Cli<C: Subcommand> {
    /// How log lines on standard error look: text or json
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    #[arg(hide_possible_values = true, help_heading = "Logging")]
    pub log_format: LogFormat,
    /// The least important log lines to show: error, warn, info, debug or trace
    #[arg(long, global = true, value_enum, value_name = "LEVEL", default_value = "info")]
    #[arg(hide_possible_values = true, help_heading = "Logging")]
    pub log_level: LogLevel,
    /// What to do.
    #[command(subcommand)]
    pub command: C,
}

/// The commands of nodes.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lend files, block devices or memory as NVMe drives
    Lend(LendArgs),
    /// Borrow a drive, for programs or for a virtual machine on this machine
    Borrow(BorrowArgs),
    /// Run a node as its configuration file says: several rails, devices and loans; or look at the nodes of a fabric
    Node(NodeArgs),
    /// Run a switch as its configuration file says: forward frames between nodes that do not reach each other
    Switch(SwitchArgs),
    /// Run the nodes of a rack on this machine, each as its own configuration file says, and their manager, if it has
    /// one
    Up(UpArgs),
    /// Show how a node on this machine is doing
    Status(StatusArgs),
    /// Have a node on this machine read its configuration file again, and do what has changed there
    Reload(ReloadArgs),
    /// Show what has happened in a node on this machine, or what happens in all nodes of a fabric
    Events(EventsArgs),
    /// Look at the links of a node or a switch on this machine, and capture what goes over them
    #[command(subcommand)]
    Link(LinkCommand),
    /// Show the nodes that a node on this machine hears on its rails
    Peers(PeersArgs),
    /// Show the fabric as a node on this machine knows it: nodes, rails, switches, loans, and what is dead
    Topo(TopoArgs),
    /// Have a node on this machine belong to a fabric, whose manager says what it lends and borrows
    Join(JoinArgs),
    /// Print the id of a node on this machine, by which lenders may let it in
    Id(IdArgs),
    /// Change what a function that is lent on this machine may do
    Limit(LimitArgs),
    /// See to a device that is lent on this machine, or look at those of a fabric
    #[command(subcommand)]
    Device(DeviceCommand),
    /// Attach a function to a slot of a virtual machine that a node on this machine knows
    Attach(AttachArgs),
    /// Take the function out of a slot, in order if the guest lets go of it
    Detach(DetachArgs),
    /// Print what QEMU is to be started with for borrowed functions
    QemuArgs(QemuArgs),
    #[command(flatten)]
    #[allow(missing_docs, reason = "its comment would be taken for the help of a command")]
    Fabric(FabricCommand),
}

/// `causeway lend`.
#[derive(Debug, Args)]
pub struct LendArgs {
    /// A file, a block device, ram:SIZE (such as ram:512M), or flash:SOURCE[?scale=N], as slow as a flash card
    #[arg(required = true, value_name = "SOURCE", value_parser = OsStringValueParser::new().try_map(Source::from_os))]
    pub sources: Vec<Source>,
    /// Name of this node [default: from the first SOURCE, `disk` for /srv/disk.img]
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// Address to lend at, one a rail, or eth:INTERFACE for raw Ethernet [default: the machine's global addresses, else
    /// loopback; port 7411 or the next free one]
    #[arg(long, value_name = "ADDR[:PORT]")]
    pub listen: Vec<Listen>,
    /// The port of a switch (ADDR:PORT or eth:MAC) that all borrowers are behind, one for each --listen
    #[arg(long, value_name = "ADDRESS", requires = "listen")]
    pub switch: Vec<RailAddress>,
    /// Split each SOURCE into N namespaces of one size, and lend each as a virtual function of its own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(node::FUNCTIONS_MAX)))]
    pub functions: Option<u16>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// What virtual machines see as a write cache: with `none` each write is durable before it is answered
    #[arg(long, value_enum, default_value_t)]
    pub cache: Cache,
    /// Lend to this node only, as its `causeway id` names it; may be given several times [default: to all that have a
    /// line]
    #[arg(long, value_name = "ID")]
    pub allow: Vec<NodeId>,
    /// The zone that they are lent in, 1 to 4094: nodes of others see nothing of them
    #[arg(long, value_name = "N", default_value_t = Group::DEFAULT, value_parser = values::group)]
    pub group: Group,
    /// How frames are protected.
    #[command(flatten)]
    pub protection: ProtectionArgs,
    /// Do not share memory with a peer on this machine, but send it frames as to any other
    #[arg(long)]
    pub no_shm: bool,
    /// Write the lines to this file, which only this user can read, instead of to standard output; it is replaced at
    /// each start
    #[arg(long, value_name = "PATH")]
    pub line_file: Option<PathBuf>,
    /// Where key, identity and generations are kept [default: $XDG_STATE_HOME/causeway/NAME, for root
    /// /var/lib/causeway/NAME]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl LendArgs {
    /// The node's name: the one given, else the first source's file name without its ending.
    pub fn node_name(&self) -> NodeName {
        let suggested = self.sources.first().map(Source::suggested_name);
        self.name.clone().or(suggested).unwrap_or_else(|| NodeName::cleaned("lend"))
    }
}

/// `causeway borrow`.
#[derive(Debug, Args)]
pub struct BorrowArgs {
    /// The line that `causeway lend` printed; `-` reads it from standard input, `@FILE` from a file
    /// Or NODE/FUNCTION with --secret: of the node of that name, wherever it is on the networks of this machine
    #[arg(value_name = "LINE|-|@FILE|NODE/FUNCTION")]
    pub line: LineArgument,
    /// The line, for who its lender is and for the function's secret, when the function is named as NODE/FUNCTION
    #[arg(long, value_name = "LINE|-|@FILE")]
    pub secret: Option<LineArgument>,
    /// Serve the drive as NBD on a Unix socket at this path
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().try_map(socket_path))]
    #[arg(conflicts_with = "vm")]
    pub nbd: Option<PathBuf>,
    /// Serve the function to a virtual machine, on a vfio-user socket at this path; `qemu-args` prints what QEMU needs
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().try_map(socket_path))]
    pub vm: Option<PathBuf>,
    /// Who may connect to it.
    #[command(flatten)]
    pub access: SocketAccess,
    /// Plug the function into the running machine that has this QMP socket, and out of it, and have savevm and
    /// migration refused meanwhile
    #[arg(long, value_name = "SOCKET", value_parser = OsStringValueParser::new().try_map(socket_path))]
    #[arg(requires = "vm", conflicts_with = "nbd")]
    pub qmp: Option<PathBuf>,
    /// The root port that it is plugged into [default: the one that `qemu-args` makes]
    #[arg(long, value_name = "PORT", requires = "qmp", conflicts_with = "nbd")]
    pub bus: Option<String>,
    /// Name of this node [default: `borrow-` and the function's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// How long requests of NBD wait for the lender before they fail, and this command before it gives up
    #[arg(long, value_name = "SECONDS", default_value_t = IO_TIMEOUT_DEFAULT_S)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub io_timeout: u64,
    /// What becomes of the loan when the lender is silent: 'hold(SECONDS)' ends it after that, and remove after 2 s;
    /// the lender has the function back when it is heard, and this command ends [default: it is kept, however long]
    #[arg(long, value_name = "WHAT", value_parser = values::on_silence)]
    pub on_silence: Option<OnSilence>,
    /// How frames are protected.
    #[command(flatten)]
    pub protection: ProtectionArgs,
    /// The port of a switch (ADDR:PORT or eth:MAC) that the lender is behind; may be given several times, one a rail
    #[arg(long, value_name = "ADDRESS", conflicts_with = "ethernet")]
    pub switch: Vec<RailAddress>,
    /// Where this node is, as the switch knows it, one for each --switch; or eth:INTERFACE
    #[arg(long, value_name = "ADDR[:PORT]", requires = "switch")]
    pub listen: Vec<Listen>,
    /// Interface that leads to a lender on Ethernet, one for each address that begins with `eth:` [default: the one
    /// that is up, if there is no other]
    #[arg(long, value_name = "INTERFACE")]
    pub ethernet: Vec<String>,
    /// Do not share memory with a peer on this machine, but send it frames as to any other
    #[arg(long)]
    pub no_shm: bool,
    /// Where identity and incarnation are kept [default: $XDG_STATE_HOME/causeway/NAME, for root
    /// /var/lib/causeway/NAME]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

impl BorrowArgs {
    /// The node's name: the one given, else from the line's function.
    pub fn node_name(&self, line: &crate::line::Line) -> NodeName {
        let suggested = || NodeName::cleaned(&format!("borrow-{}", line.function()));
        self.name.clone().unwrap_or_else(suggested)
    }

    /// `--io-timeout` as a duration.
    pub fn io_timeout(&self) -> Duration {
        Duration::from_secs(self.io_timeout)
    }
}

/// `causeway node`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct NodeArgs {
    /// What to do with nodes of a fabric.
    #[command(subcommand)]
    pub command: Option<NodeCommand>,
    /// The configuration file; examples/ has commented ones
    #[arg(long, value_name = "NODE.toml", required = true)]
    pub config: Option<PathBuf>,
    /// Write the lines of what is lent to this file, which only this user can read, instead of to standard output; it
    /// is replaced at each start, and by `causeway reload`
    #[arg(long, value_name = "PATH")]
    pub line_file: Option<PathBuf>,
    /// End when this process, which has started us, ends
    #[arg(long, value_name = "PID", hide = true)]
    pub end_with: Option<u32>,
}

/// `causeway switch`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SwitchArgs {
    /// What to do with one that runs.
    #[command(subcommand)]
    pub command: Option<SwitchCommand>,
    /// The configuration file; docs/switch.md shows one
    #[arg(long, value_name = "S.toml", required = true)]
    pub config: Option<PathBuf>,
    /// End when this process, which has started us, ends
    #[arg(long, value_name = "PID", hide = true)]
    pub end_with: Option<u32>,
}

/// What can be done with a switch that runs.
#[derive(Debug, Subcommand)]
pub enum SwitchCommand {
    /// Take partitions of a switch, which lets this node in, and move ports between them
    Ctl(CtlArgs),
    /// List the switches that nodes of a fabric hear, as its manager knows
    List(manager::ListArgs),
    /// Show one of them, by its name or its id
    Show(manager::SwitchNamedArgs),
}

/// `causeway switch ctl`.
#[derive(Debug, Args)]
pub struct CtlArgs {
    /// The switch, as it prints when it starts
    #[arg(value_name = "causeway-switch://KEY@ADDR:PORT")]
    pub url: SwitchUrl,
    /// The node of this machine as which to ask
    #[arg(long, value_name = "NAME", global = true)]
    pub name: Option<NodeName>,
    /// Where the key of that node is kept [default: $XDG_STATE_HOME/causeway/NAME, for root /var/lib/causeway/NAME]
    #[arg(long, value_name = "DIR", global = true)]
    pub state_dir: Option<PathBuf>,
    /// What to ask for.
    #[command(subcommand)]
    pub order: CtlOrder,
}

/// What can be asked of a switch.
#[derive(Debug, Subcommand)]
pub enum CtlOrder {
    /// Show the partitions, their owners, epochs and ports
    Show {
        /// What to print.
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Take partitions, from whoever has them
    Take {
        /// Their names
        #[arg(required = true, value_name = "PARTITION")]
        partitions: Vec<String>,
        /// Greater than the present one [default: the next]
        #[arg(long, value_name = "N")]
        epoch: Option<u64>,
    },
    /// Say who is behind a port over UDP, whatever the switch's file says; this node has to have its partition
    Peer {
        /// The port's name
        #[arg(value_name = "PORT")]
        port: String,
        /// The address of whoever is behind it
        #[arg(value_name = "ADDR:PORT")]
        peer: std::net::SocketAddr,
        /// By which epoch the partition is had [default: as the switch says]
        #[arg(long, value_name = "N")]
        epoch: Option<u64>,
    },
    /// Move ports into another partition, all or none; this node has to have all that are touched
    Move {
        /// Their names
        #[arg(required = true, value_name = "PORT")]
        ports: Vec<String>,
        /// The partition
        #[arg(long, value_name = "PARTITION")]
        to: String,
        /// By which epoch the partitions are had [default: as the switch says]
        #[arg(long, value_name = "N")]
        epoch: Option<u64>,
    },
}

/// `causeway up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// The file that names the nodes; examples/ has a commented one
    #[arg(value_name = "RACK.toml")]
    pub rack: PathBuf,
    /// Read all files, print what would be started, and do nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `causeway status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The node to ask; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// Draw who reaches what: domains, windows out of the node, grants at it; with json as further keys
    #[arg(long)]
    pub map: bool,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway reload`.
#[derive(Debug, Args)]
#[command(after_help = RELOAD)]
pub struct ReloadArgs {
    /// Print what has changed in the file and whether the node could do it, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// The node to tell; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway events`.
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Go on with what happens from now on, until the node ends
    #[arg(long, short)]
    pub follow: bool,
    /// The node to ask; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// Ask the manager of a fabric for what happens in all its nodes, with the credentials in FILE, or in the usual
    /// place
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "name")]
    #[allow(clippy::option_option, reason = "clap's form of an option whose value may be left out")]
    pub manager: Option<Option<PathBuf>>,
    /// What to print: with json one object a line.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway peers`.
#[derive(Debug, Args)]
pub struct PeersArgs {
    /// The node to ask; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway topo`.
#[derive(Debug, Args)]
pub struct TopoArgs {
    /// The node to ask; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// What to print: text, json, or dot, which Graphviz draws
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT")]
    #[arg(default_value = "text", hide_possible_values = true)]
    pub format: TopoOutput,
}

/// What `causeway topo` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopoOutput {
    /// For people.
    Text,
    /// One JSON document and nothing else.
    Json,
    /// A graph in the language of Graphviz.
    Dot,
}

/// `causeway link`.
#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// Write the frames of a link, or of all, to a file of pcapng, for Wireshark and tshark
    Capture(CaptureArgs),
    /// List the links of a node, or the ports of a switch, and how each is doing
    List(LinkListArgs),
    /// Carry nothing on a rail until it is told to be up, or the node is started anew: others take over
    Down(LinkArgs),
    /// Carry frames on a rail again, as if it had never been down or impaired
    Up(LinkArgs),
}

/// `causeway link list`.
#[derive(Debug, Args)]
pub struct LinkListArgs {
    /// The node to ask; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway link down`, `causeway link up`.
#[derive(Debug, Args)]
pub struct LinkArgs {
    /// The rail, as `causeway link list` names it
    #[arg(value_name = "RAIL")]
    pub rail: String,
    /// The node that has it; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
}

/// `causeway link capture`.
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// The rail, `shm` for memory that is shared with nodes on this machine, or the port of a switch [default: all]
    #[arg(value_name = "LINK")]
    pub link: Option<String>,
    /// Where to: a file, which is replaced and only this user can read; `-` for standard output
    #[arg(short, long, value_name = "FILE")]
    pub write: PathBuf,
    /// End after so many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400_000))]
    pub seconds: Option<u64>,
    /// Open the frames with this node's keys: the file then has the data as they are
    #[arg(long)]
    pub opened: bool,
    /// The node to look at; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
}

/// `causeway id`.
#[derive(Debug, Args)]
pub struct IdArgs {
    /// The node; needed unless a single one runs. One that does not run has an id from now on
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// Where key, identity and generations of a node that does not run are kept [default:
    /// $XDG_STATE_HOME/causeway/NAME, for root /var/lib/causeway/NAME]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// `causeway limit`.
#[derive(Debug, Args)]
pub struct LimitArgs {
    /// The function, as `status` names it
    #[arg(value_name = "FUNCTION")]
    pub function: FunctionName,
    /// Most I/O commands a second [default: no limit]
    #[arg(long, value_name = "N")]
    pub iops: Option<u64>,
    /// Most bytes read and written a second [default: no limit]
    #[arg(long, value_name = "N")]
    pub bytes_per_s: Option<u64>,
    /// The node to tell; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
}

/// `causeway device`.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Let flushes succeed again after the medium of a drive has lost something and was seen to
    Clear(ClearArgs),
    /// List what the nodes of a fabric lend, by lender
    List(ListArgs),
    /// Show what one node of a fabric lends
    Show(NamedArgs),
}

/// `causeway device clear`.
#[derive(Debug, Args)]
pub struct ClearArgs {
    /// One of its functions, or its source, as `status` names them
    #[arg(value_name = "FUNCTION|SOURCE")]
    pub device: String,
    /// The node to tell; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
}

/// `causeway attach`.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// The line that `causeway lend` printed; `-` reads it from standard input, `@FILE` from a file
    #[arg(value_name = "LINE|-|@FILE")]
    pub line: LineArgument,
    /// Where to
    #[arg(value_name = "DOMAIN/SLOT")]
    pub slot: SlotName,
    /// The node to tell; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
}

/// `causeway detach`.
#[derive(Debug, Args)]
pub struct DetachArgs {
    /// Of which slot
    #[arg(value_name = "DOMAIN/SLOT")]
    pub slot: SlotName,
    /// The node to tell; needed where several run
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
}

/// `causeway qemu-args`.
#[derive(Debug, Args)]
pub struct QemuArgs {
    /// A socket made by `borrow --vm`, which need not be there yet; or the name of a node that runs, for all its slots
    #[arg(value_name = "DOMAIN|SOCKET")]
    pub target: std::ffi::OsString,
    /// Memory of the virtual machine
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: ByteSize,
    /// Let QEMU make this QMP socket, which a domain of a node's file has as `qmp`, and `borrow` as --qmp
    #[arg(long, value_name = "PATH", value_parser = OsStringValueParser::new().try_map(socket_path))]
    pub qmp: Option<PathBuf>,
    /// Print the <qemu:commandline> element for a domain of libvirt, which makes memory itself
    #[arg(long, conflicts_with_all = ["memory", "format"])]
    pub libvirt: bool,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `-o`, the same for each command that prints a document.
#[derive(Debug, Clone, Copy, Args)]
pub struct OutputArgs {
    /// What to print: text or json
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT")]
    #[arg(default_value = "text", hide_possible_values = true)]
    pub format: Output,
}

/// What goes to standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// One JSON document and nothing else.
    Json,
}

/// What log lines look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How important a log line must be to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "the names are their own explanation")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(arguments: &str) -> Result<Command, clap::Error> {
        let arguments = std::iter::once("causeway").chain(arguments.split_whitespace());
        Cli::<Command>::try_parse_from(arguments).map(|cli| cli.command)
    }

    #[test]
    fn clap_finds_the_definition_consistent() {
        Cli::<Command>::command().debug_assert();
    }

    #[test]
    fn lend_takes_everything_the_interface_names() {
        let Command::Lend(args) = parse(
            "lend /srv/my.disk.img /dev/sdb ram:1G --listen 10.0.0.1 --listen [fd00::1]:9 --read-only --insecure \
             --group 4094 --state-dir /tmp/s",
        )
        .unwrap() else {
            panic!("not lend")
        };
        assert_eq!(args.sources[2], Source::Ram(ByteSize(1 << 30)));
        assert_eq!(args.listen.len(), 2);
        assert_eq!(args.listen[1], "[fd00::1]:9".parse().unwrap());
        assert!(args.read_only && args.protection.insecure && args.group == Group::MAX);
        assert_eq!(args.node_name().as_str(), "my.disk");
    }

    #[test]
    fn names_are_derived_when_nobody_chose() {
        let lend = |arguments: &str| match parse(arguments).unwrap() {
            Command::Lend(args) => args.node_name().to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(lend("lend ram:64k"), "ram");
        assert_eq!(lend("lend /dev/nvme0n1"), "nvme0n1");
        assert_eq!(lend("lend ./.hidden"), "hidden");
        assert_eq!(lend("lend a.img --name b"), "b");
        let Command::Borrow(args) = parse("borrow - --nbd /tmp/s").unwrap() else { panic!("not borrow") };
        assert_eq!(args.node_name(&crate::line::tests::example()).as_str(), "borrow-nvme0");
        assert_eq!(args.io_timeout(), Duration::from_secs(30));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for wrong in [
            "",
            "lend",
            "lend ram:0",
            "lend ram:12Q",
            "lend a --listen nowhere",
            "lend a --name a/b",
            "lend a --functions 0",
            "lend a --functions 65",
            "lend a --group",
            "lend a --group 0",
            "lend a --group 4095",
            "lend a --group vm",
            "device",
            "device clear",
            "limit",
            "limit Nvme0",
            "limit nvme0 --iops many",
            "borrow --nbd /tmp/s",
            "borrow - --nbd /tmp/s --io-timeout 0",
            "borrow - --nbd /tmp/s --io-timeout soon",
            "borrow - --nbd /tmp/s --qmp /tmp/q",
            "borrow - --qmp /tmp/q",
            "borrow - --vm /tmp/s --bus rp1",
            "node",
            "status -o yaml",
            "bogus",
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
        let long = format!("borrow - --nbd /tmp/{}", "x".repeat(104));
        assert!(parse(&long).unwrap_err().to_string().contains("107"), "names the limit");
    }

    #[test]
    fn global_options_stand_anywhere() {
        for arguments in
            ["--log-format json --log-level debug status", "status --log-level debug --log-format json"]
        {
            let arguments = std::iter::once("causeway").chain(arguments.split_whitespace());
            let cli = Cli::<Command>::try_parse_from(arguments).unwrap();
            assert_eq!((cli.log_format, cli.log_level), (LogFormat::Json, LogLevel::Debug));
        }
    }
}
