//! `NODE.toml`: what `causeway node --config` runs.
//!
//! Reading has two steps. `raw` mirrors the file as serde sees it, each value with its place; this module turns
//! that into a [`Config`] in which everything that can be judged without the machine has been judged. Errors name
//! file, line, column, what is wrong and what would be right; unknown keys are errors. All problems of the second
//! step are reported at once.
//!
//! ```toml
//! name = "store1"                     # default: the file's name without its ending
//! state_dir = "/var/lib/causeway/store1"
//! insecure = false
//! cipher = "aes-256-gcm"              # default: the faster AEGIS-128X2 where both ends have instructions for AES
//! shm = true                          # share memory with peers on this machine
//! only_members = false                # of a node that has joined a fabric: nothing with nodes that have not
//!
//! [[rails]]
//! name = "left"
//! listen = "10.0.0.1"                 # or "10.0.0.1:7411"; or, for raw Ethernet, ethernet = "eth1"
//! switch = "10.0.0.254:7411"          # or "eth:MAC": all other nodes are behind this port of a switch
//! offload = false                     # hand frames over one by one: for a driver that segments them wrongly
//! announce = false                    # say nothing of this node there (`causeway peers`), and hear nothing
//!
//! [[devices]]
//! function = "nvme0"
//! source = "/srv/disk.img"            # or "ram:1G"
//! read_only = false
//! block_size = 512                    # or 4096
//! cache = "none"                      # or "volatile": what virtual machines see
//! allow = ["9s3e...", "0hx2..."]      # ids of nodes (`causeway id`); all that have a line if left out
//! iops = 20000                        # limits of each function; none if left out
//! bytes_per_s = 500000000
//! functions = 4                       # equal parts, as nvme0-1 to nvme0-4; or, one by one:
//!
//! [[devices.functions]]
//! name = "alice"
//! size = "10G"                        # a namespace of its own, or
//! namespace = "data"                  # one of these
//! iops = 1000
//!
//! [[devices.namespaces]]
//! name = "data"
//! size = "1G"
//! shared = true                       # on several functions
//!
//! [[loans]]
//! line_file = "nvme0.line"            # or line = "causeway://..."
//! nbd = "/run/causeway/nvme0.nbd"     # or, for a virtual machine:
//! vm = "/run/causeway/nvme0.vm"
//! vm_owner = "qemu"                   # these three only with it
//! vm_group = "kvm"
//! vm_mode = "0660"
//! io_timeout_s = 30
//! on_silence = "hold(600)"            # or "remove": what becomes of it when its lender is silent; kept if left out
//!
//! [[domains]]                         # a virtual machine that functions are attached to while it runs
//! name = "vm1"
//! kind = "vm"
//! qmp = "/run/vm1.qmp"                # without it, `attach` says what to type
//! remove_after_s = 30                 # a guest that does not let go of a function loses it then
//!
//! [[domains.slots]]
//! name = "disk0"
//! socket = "/run/causeway/vm1-disk0"  # owner, group and mode as above
//! bus = "rp1"                         # the port that QMP plugs it into
//! line_file = "nvme0.line"            # attached from the start, unless somebody has detached it
//! on_silence = "hold(600)"            # or "remove": what becomes of it when its lender is silent; kept if left out
//! ```
//!
//! Relative paths start at the file's folder.

mod compare;
mod domain;
mod drive;
mod error;
mod group_key;
mod listen;
mod raw;
mod switch;
mod validate;

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::io::address::RailAddress;
use base::ids::{DomainBlock, Group, NodeId, RailId};
use manager::model::OnSilence;
use node::{Protection, RailMode, Secret};
use rustix::fs::OFlags;

use crate::cli::{ByteSize, Listen, NodeName, SocketAccess, Source};
use crate::line::{FunctionName, Line};
pub use compare::{Action, Change, Fixed, Thing, compare};
pub use domain::{Domain, Slot};
pub use drive::{Function, Layout, Namespace};
pub(crate) use error::from_toml as toml_problem;
pub use error::{ConfigError, Problem};
pub(crate) use switch::peer_problem;
pub use switch::{SwitchConfig, SwitchPort};

/// Longest configuration file read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most functions, loans and slots of a node together.
pub const ENTRIES_MAX: usize = node::MAX_LOANS;
/// Most devices a node lends.
pub const DEVICES_MAX: usize = node::MAX_DRIVES;
/// Most slots of its virtual machines.
pub const SLOTS_MAX: usize = node::MAX_SLOTS;

/// A node as its file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The node's name.
    pub name: NodeName,
    /// Where key, identity and generations are kept; `None` is the default place of this name.
    pub state_dir: Option<PathBuf>,
    /// How frames are protected, as far as this node has a say.
    pub protection: Protection,
    /// How several rails are used.
    pub rail_mode: RailMode,
    /// Memory is shared with peers on this machine.
    pub shared_memory: bool,
    /// Whether nodes that show no certificate of the fabric have nothing to do with this one.
    pub only_members: bool,
    /// The node's domains; `None`: those that its id gives it.
    pub domain_block: Option<DomainBlock>,
    /// What it shares with the nodes of its fabric, so that notices go to all in one frame.
    pub group_key: Option<Secret>,
    /// How large its ledger may become; `None`: as large as its loans need.
    pub ledger: Option<ByteSize>,
    /// The rails; empty means as `causeway lend` does without `--listen`.
    pub rails: Vec<Rail>,
    /// What is lent.
    pub devices: Vec<Device>,
    /// What is borrowed, as presets (generation 0).
    pub loans: Vec<Loan>,
    /// Virtual machines with slots.
    pub domains: Vec<Domain>,
}

/// A path of frames: one local address, or one Ethernet interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rail {
    /// Its name in `status` and logs.
    pub name: String,
    /// The local address, and the port if one was chosen; or the interface.
    pub listen: Listen,
    /// Its id, as both ends of a loan know it; `None`: the lowest one that is free.
    pub id: Option<RailId>,
    /// The port of a switch that all other nodes are reached by.
    pub switch: Option<RailAddress>,
    /// Whether the node says there that it is there.
    pub announce: bool,
    /// Frames over UDP go to the kernel many at once (UDP_SEGMENT, UDP_GRO; udp(7)), where it can do that.
    pub offload: bool,
}

/// A drive of which functions are lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name in the line; where there are several functions, the beginning of theirs unless they have names.
    pub function: FunctionName,
    /// What stands behind it.
    pub source: Source,
    /// Writes are refused.
    pub read_only: bool,
    /// Bytes of a logical block.
    pub block_size: BlockSize,
    /// What virtual machines see of it as a write cache.
    pub cache: Cache,
    /// The nodes that may have it; `None`: all that have a line.
    pub allow: Option<Vec<NodeId>>,
    /// What each function may do that has no limit of its own.
    pub limit: node::Limit,
    /// Its functions and namespaces.
    pub layout: Layout,
    /// The zone that they are lent in.
    pub group: Group,
}

impl Device {
    /// What tells its layout from another ([`Layout::fingerprint`]).
    pub fn layout_fingerprint(&self) -> u64 {
        self.layout.fingerprint(self.block_size.bytes())
    }
}

/// Bytes of a logical block: the two sizes that drivers and filing systems know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockSize {
    /// 512 bytes.
    #[default]
    B512,
    /// 4096 bytes.
    B4096,
}

impl BlockSize {
    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::B512 => 512,
            Self::B4096 => 4096,
        }
    }
}

/// What a virtual machine is shown as the write cache of a drive. Borrowers that serve NBD keep what is not flushed,
/// and always have one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Cache {
    /// None: each write is durable before it is answered.
    #[default]
    None,
    /// A volatile one: where its content may have been lost, the guest gets the function as another drive.
    Volatile,
}

/// A loan that this node takes when nothing managed says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loan {
    /// From whom, and which function.
    pub line: Line,
    /// For whom.
    pub edge: LoanEdge,
    /// How long requests wait for the lender before they fail.
    pub io_timeout: Duration,
    /// What becomes of it when its lender is silent; `None`: it is kept, however long that takes.
    pub on_silence: Option<OnSilence>,
}

/// Who uses what is borrowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoanEdge {
    /// Clients of a Unix socket that speak NBD.
    Nbd {
        /// Where the socket lies.
        path: PathBuf,
    },
    /// A virtual machine, over a vfio-user socket.
    Vm {
        /// Where the socket lies.
        path: PathBuf,
        /// Who may connect.
        access: SocketAccess,
    },
}

impl LoanEdge {
    /// As programs and virtual machines are told of it.
    pub fn uri(&self) -> String {
        match self {
            Self::Nbd { path } => crate::edge::nbd(path),
            Self::Vm { path, .. } => crate::edge::vfio_user(path),
        }
    }
}

impl Config {
    /// Reads and checks a file. Whatever it names has its whole path from here on, so that a node that reads the file
    /// again finds what has changed in it, and nothing else.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self::parse(&read_text(path)?, path)
    }

    /// Checks the text of a file. `path` is for messages, for the default name and for relative paths.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let raw: raw::Node = toml::from_str(text).map_err(|error| ConfigError::Wrong {
            path: path.to_owned(),
            problems: vec![error::from_toml(text, &error)],
        })?;
        validate::config(raw, text, path)
            .map_err(|problems| ConfigError::Wrong { path: path.to_owned(), problems })
    }
}

/// The text of a configuration file, of at most [`FILE_BYTES_MAX`] bytes.
pub(crate) fn read_text(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |error| ConfigError::Unreadable { path: path.to_owned(), error };
    let mut text = String::new();
    let file = open_regular(path).map_err(unreadable)?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
    if read as u64 > FILE_BYTES_MAX {
        return Err(ConfigError::TooLong { path: path.to_owned() });
    }
    Ok(text)
}

/// Opens a file that a node reads while it runs: a named pipe or a terminal would have it wait for somebody.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no regular file")),
    }
}

#[cfg(test)]
mod tests;
