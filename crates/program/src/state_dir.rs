//! What a node keeps on disk: identity, key, incarnation, port.
//!
//! The intuition: a folder of small files, each of which is always either whole or absent. The rules:
//!
//! 1. A file changes by *temporary file, fsync, rename, fsync of the folder*. A node killed anywhere leaves the
//!    old content or the new one, and at most `.NAME.tmp`, which nobody reads and the next write replaces. Where
//!    the last of these fails the old content is put back, in the same way; where that fails, too, it is not known
//!    which one there will be, and the error says so ([`StateError::Unsettled`]).
//! 2. `identity` is written last when a folder is new. So an `identity` without the other files is never the
//!    trace of a kill but of a hand or a broken disk, and is refused by name: a counter that begins anew would
//!    make peers refuse this node for good.
//! 3. Each file is one line `VALUE CHECK`. What does not match its check is refused by name, never guessed.
//! 4. One node a folder: `lock` is held with flock(2) as long as the [`StateDir`] lives. The kernel lets go of it
//!    when the process ends, however it ends.
//!
//! The incarnation is raised each time the folder is opened, before anything of the node runs.

pub mod drive;
mod file;
pub mod made;
pub mod medium;
pub mod membership;
pub mod partitions;
mod places;
pub mod slot;

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base::ids::{LifeId, NodeId};
use node::{Name, NodeKey, Tenancy, Whereabouts};
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

use crate::cli::NodeName;
use crate::exit::{Exit, Failure};
use crate::line::{FunctionName, KEY_BYTES, Key};
use file::{Named, read_value, write_value};

const IDENTITY: &str = "identity";
const KEY: &str = "key";
const INCARNATION: &str = "incarnation";
const PORT: &str = "port";
const LOCK: &str = "lock";
/// `tenancy.FUNCTION`, one file a function that was ever lent: `NUMBER:NODE:LIFE:STATE:NAME`, the state `held` or
/// `returned`, the name in hexadecimal.
const TENANCY_PREFIX: &str = "tenancy.";
const HELD: &str = "held";
const RETURNED: &str = "returned";
/// `holder.NODE`, one file a node that has a function: where it is, as [`io::whereabouts::to_text`] has it.
const HOLDER_PREFIX: &str = "holder.";
/// `fault.DRIVE`: there while a drive has lost something, or may have, and no operator has seen to it.
const FAULT_PREFIX: &str = "fault.";
/// `untold.DRIVE`: how many lives ended with a flush of it under way, which may have been told an error.
const UNTOLD_PREFIX: &str = "untold.";
/// How far a lender can raise the incarnation at once: so that none that lies can use the counter up.
const FARTHEST: u64 = 1 << 20;
/// What a node's private key is derived by. The secrets of functions are derived by their names, which are lower case.
const NODE_KEY: u64 = u64::from_le_bytes(*b"NODE KEY");

/// A node's folder, locked and with its incarnation raised.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    identity: NodeKey,
    key: Key,
    incarnation: u64,
    port: Option<u16>,
    /// It was made for a start that may be refused yet: then nothing of it is to be left.
    on_trial: bool,
    /// Held, never read: closing it gives the folder to the next node.
    _lock: File,
}

impl StateDir {
    /// Opens the folder at `path`, making it if it is missing, takes its lock and raises the incarnation.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        create_folder(path)?;
        check_folder(path)?;
        let lock = take_lock(path)?;

        let known = read_identity(path)?;
        let is_new = known.is_none();
        let incarnation = raise_incarnation(path, is_new)?;
        let key = match read_key(path)? {
            Some(key) => key,
            None if is_new => create_key(path)?,
            None => return Err(StateError::Missing { file: path.join(KEY) }),
        };
        let identity = NodeKey::new(link::derive(key.reveal(), NODE_KEY));
        match known {
            None => write_value(path, IDENTITY, &identity.id().to_string())?,
            Some(known) if known == identity.id() => {}
            Some(_) => {
                let (file, why) = (path.join(IDENTITY), "it is the id of another key than the folder's");
                return Err(StateError::Damaged { file, why });
            }
        }
        let port = read_port(path)?;
        Ok(Self { path: path.to_owned(), identity, key, incarnation, port, on_trial: false, _lock: lock })
    }

    /// The same; a folder that was not there before goes with this value, unless [`StateDir::keep`] is called: a start
    /// that is refused leaves nothing behind.
    ///
    /// # Errors
    /// As of [`StateDir::open`].
    pub fn open_on_trial(path: &Path) -> Result<Self, StateError> {
        let is_new = fs::symlink_metadata(path).is_err();
        let mut opened = Self::open(path)?;
        opened.on_trial = is_new;
        Ok(opened)
    }

    /// The id of the node whose folder this is, whether it runs or not; `None` where there is none yet.
    ///
    /// # Errors
    /// The folder cannot be read, is not its user's alone, or is damaged.
    pub fn identify(path: &Path) -> Result<Option<NodeId>, StateError> {
        if fs::symlink_metadata(path).is_ok() {
            check_folder(path)?;
        }
        read_identity(path)
    }

    /// The key pair of the node whose folder this is, whether it runs or not; `None` where there is none yet.
    ///
    /// # Errors
    /// As of [`StateDir::identify`].
    pub fn key_pair(path: &Path) -> Result<Option<NodeKey>, StateError> {
        if Self::identify(path)?.is_none() {
            return Ok(None);
        }
        Ok(read_key(path)?.map(|key| NodeKey::new(link::derive(key.reveal(), NODE_KEY))))
    }

    /// The node has started: its folder stays.
    pub fn keep(&mut self) {
        self.on_trial = false;
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Who the node is.
    pub fn identity(&self) -> &NodeKey {
        &self.identity
    }

    /// A number that hardly any other node has.
    pub fn serial(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.identity.id().0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    /// The secret from which those of its lines and its key pair come, chosen once.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How often this folder was opened, this time included: at least 1, and greater each time.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Raises the incarnation once more, for a part of the ledger that begins anew, and returns by how much it is now
    /// greater than [`StateDir::incarnation`]. Durable when it returns.
    ///
    /// # Errors
    /// The folder is damaged, or the system said no.
    pub fn begin_life(&self) -> Result<u64, StateError> {
        Ok(raise_incarnation(&self.path, false)? - self.incarnation)
    }

    /// Raises the incarnation above `seen`, which a lender has met this node by: the folder comes from a copy or a
    /// backup. Returns the new one, durable.
    ///
    /// # Errors
    /// `seen` is no number that this node can have come to, the folder is damaged, or the system said no.
    pub fn raise_above(&self, seen: u64) -> Result<u64, StateError> {
        let file = self.path.join(INCARNATION);
        let known = read_u64(&self.path, INCARNATION, 10)?
            .ok_or_else(|| StateError::Missing { file: file.clone() })?;
        if seen.saturating_sub(known) > FARTHEST {
            return Err(StateError::Implausible { file, known, seen });
        }
        // It was raised already, as another lender has asked.
        if known > seen {
            return Ok(known);
        }
        let next = seen.checked_add(1).ok_or(StateError::UsedUp { file })?;
        write_value(&self.path, INCARNATION, &next.to_string())?;
        Ok(next)
    }

    /// The port of earlier runs, so that the same command prints the same line.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Keeps the port for later runs.
    pub fn set_port(&mut self, port: u16) -> Result<(), StateError> {
        if self.port != Some(port) {
            write_value(&self.path, PORT, &port.to_string())?;
            self.port = Some(port);
        }
        Ok(())
    }

    /// Who has used a function last; number 0 when nobody has.
    pub fn tenancy(&self, function: &FunctionName) -> Result<Tenancy, StateError> {
        let name = tenancy_file(function);
        let Some(Named { file, value }) = read_value(&self.path, &name)? else {
            return Ok(Tenancy::default());
        };
        parse_tenancy(&value).ok_or(StateError::Damaged { file, why: "it holds no tenancy" })
    }

    /// Makes durable who uses a function, or has given it back.
    pub fn set_tenancy(&self, function: &FunctionName, tenancy: Tenancy) -> Result<(), StateError> {
        let Tenancy { number, node, life, name, is_held } = tenancy;
        let state = if is_held { HELD } else { RETURNED };
        let name = hexadecimal(&name.to_bytes());
        write_value(&self.path, &tenancy_file(function), &format!("{number}:{node}:{life}:{state}:{name}"))
    }

    /// The function begins with other content than it had: to whoever has used it before that is as if another node
    /// had, and it stays theirs. Durable when it returns.
    pub fn renew_tenancy(&self, function: &FunctionName) -> Result<Tenancy, StateError> {
        let before = self.tenancy(function)?;
        let tenancy = before.renewed(LifeId(random(&self.path)?));
        if tenancy != before {
            self.set_tenancy(function, tenancy)?;
        }
        Ok(tenancy)
    }

    /// Whether an earlier life of the node has lost something of a drive, or may have, and no operator has seen to it
    /// since.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn fault(&self, drive: &FunctionName) -> Result<bool, StateError> {
        Ok(read_value(&self.path, &format!("{FAULT_PREFIX}{drive}"))?.is_some())
    }

    /// Keeps that, durably.
    ///
    /// # Errors
    /// The system said no; what was kept still is.
    pub fn set_fault(&self, drive: &FunctionName, is_there: bool) -> Result<(), StateError> {
        let name = format!("{FAULT_PREFIX}{drive}");
        if is_there {
            return write_value(&self.path, &name, "lost");
        }
        self.remove(&name)
    }

    /// How many lives ended with a flush of a drive under way, while what it had not flushed went on being there.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn untold_flushes(&self, drive: &FunctionName) -> Result<u64, StateError> {
        match read_value(&self.path, &format!("{UNTOLD_PREFIX}{drive}"))? {
            None => Ok(0),
            Some(Named { file, value }) => {
                value.parse().map_err(|_| StateError::Damaged { file, why: "it holds no number" })
            }
        }
    }

    /// One more, durably.
    ///
    /// # Errors
    /// The file is damaged, or the system said no; what was kept still is.
    pub fn add_untold_flush(&self, drive: &FunctionName) -> Result<(), StateError> {
        let count = self.untold_flushes(drive)?.wrapping_add(1);
        write_value(&self.path, &format!("{UNTOLD_PREFIX}{drive}"), &count.to_string())
    }

    /// Where each of these nodes is that have functions, as far as that is known.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub fn holders(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Whereabouts>, StateError> {
        let mut holders = Vec::new();
        for &node in nodes {
            let Some(Named { file, value }) = read_value(&self.path, &holder_file(node))? else { continue };
            let holder = io::whereabouts::from_text(&value).filter(|holder| holder.node() == node);
            let why = "it does not say where that node is, in a way that this version knows";
            holders.push(holder.ok_or(StateError::Damaged { file, why })?);
        }
        Ok(holders)
    }

    /// What is kept of where nodes are goes, but for those that have any function, be it one that is not lent now.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged, or the system said no.
    pub fn forget_strangers(&self) -> Result<(), StateError> {
        let held = self.held_by()?;
        for name in self.names(HOLDER_PREFIX)? {
            if !name[HOLDER_PREFIX.len()..].parse().is_ok_and(|node| held.contains(&node)) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The nodes that have any function of this one, be it one that is not lent now.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub fn held_by(&self) -> Result<BTreeSet<NodeId>, StateError> {
        let mut nodes = BTreeSet::new();
        for name in self.names(TENANCY_PREFIX)? {
            // What the node has not written is not its own.
            let Ok(function) = name[TENANCY_PREFIX.len()..].parse() else { continue };
            nodes.extend(Some(self.tenancy(&function)?).filter(|it| it.is_held).map(|it| it.node));
        }
        Ok(nodes)
    }

    /// The files whose names begin so.
    fn names(&self, prefix: &str) -> Result<Vec<String>, StateError> {
        let listed = fs::read_dir(&self.path).map_err(io_error("list", &self.path))?;
        let mut names = Vec::new();
        for entry in listed {
            let name = entry.map_err(io_error("list", &self.path))?.file_name();
            names.extend(name.to_str().filter(|name| name.starts_with(prefix)).map(str::to_owned));
        }
        Ok(names)
    }

    /// Makes durable where a node is that has a function.
    ///
    /// # Errors
    /// The system said no; what was kept still is.
    pub fn set_holder(&self, holder: &Whereabouts) -> Result<(), StateError> {
        write_value(&self.path, &holder_file(holder.node()), &io::whereabouts::to_text(holder))
    }

    /// The node has no function any more.
    ///
    /// # Errors
    /// The system said no; what was kept still is.
    pub fn forget_holder(&self, node: NodeId) -> Result<(), StateError> {
        self.remove(&holder_file(node))
    }

    fn remove(&self, name: &str) -> Result<(), StateError> {
        let file = self.path.join(name);
        match fs::remove_file(&file) {
            Ok(()) => file::sync_folder(&self.path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error("remove", &file)(error)),
        }
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        if self.on_trial {
            // The lock is still held. Nobody has heard of the identity, so nobody misses it.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// The folder of a node nobody gave one: `$XDG_STATE_HOME/causeway/NAME`, else `~/.local/state/causeway/NAME`;
/// for root `/var/lib/causeway/NAME`.
pub fn default_path(name: &NodeName) -> Result<PathBuf, StateError> {
    let absolute = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let is_root = rustix::process::geteuid().is_root();
    let base = default_base(is_root, absolute("XDG_STATE_HOME"), absolute("HOME"));
    Ok(base.ok_or(StateError::NoHome)?.join("causeway").join(name.as_str()))
}

fn default_base(is_root: bool, state_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    match is_root {
        true => Some(PathBuf::from("/var/lib")),
        false => state_home.or_else(|| Some(home?.join(".local/state"))),
    }
}

/// Why a state directory cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// Neither variable says where a user keeps state.
    #[error("neither XDG_STATE_HOME nor HOME says where to keep state; give a folder with --state-dir")]
    NoHome,
    /// Another node has the folder.
    #[error("the state directory {} is in use {}; stop that node, or choose another --name or --state-dir",
            path.display(), by_whom(*pid))]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process that has it, where it is known.
        pid: Option<u32>,
    },
    /// Someone else may read or change the folder.
    #[error("the state directory {} {why}; it holds a key, so make it yours alone: \
             chown it to the node's user and chmod 0700 it", path.display())]
    NotPrivate {
        /// The folder.
        path: PathBuf,
        /// What is wrong with its owner or mode.
        why: String,
    },
    /// It is no folder.
    #[error("{} is not a folder; move it away or choose another --state-dir", path.display())]
    NotFolder {
        /// The path.
        path: PathBuf,
    },
    /// A file is damaged.
    #[error("{} is damaged ({why}); restore the folder from a backup, or remove the whole folder: \
             the node then gets a new identity and its lines change", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// How that shows.
        why: &'static str,
    },
    /// A file that must be there is not.
    #[error("{} is missing though the node's identity is there; restore the folder from a backup, or remove \
             the whole folder: the node then gets a new identity and its lines change", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
    },
    /// A lender says that it has seen this node long after this folder was written.
    #[error("{} holds {known}, and a lender says that it has met this node by {seen}: it is wrong, or the file is",
            file.display())]
    Implausible {
        /// The file.
        file: PathBuf,
        /// What it holds.
        known: u64,
        /// What the lender says.
        seen: u64,
    },
    /// A counter is at its end.
    #[error("the counter in {} is used up; remove the whole folder to begin with a new identity", file.display())]
    UsedUp {
        /// The file.
        file: PathBuf,
    },
    /// Whether a file has its new content or the old one is not known before the next start.
    #[error("cannot make {} durable, nor what it held before: {error}", file.display())]
    Unsettled {
        /// The file.
        file: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The system said no.
    #[error("cannot {doing} {}: {error}", path.display())]
    Io {
        /// What was tried: "create", "read", ...
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl From<StateError> for Failure {
    fn from(error: StateError) -> Self {
        let exit = match &error {
            StateError::NoHome => Exit::Usage,
            StateError::Io { error, .. } | StateError::Unsettled { error, .. } => Exit::of_io(error),
            _ => Exit::Refused,
        };
        Self::new(exit, error)
    }
}

fn by_whom(pid: Option<u32>) -> String {
    pid.map_or_else(|| "by another process".to_owned(), |pid| format!("by process {pid}"))
}

fn io_error(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StateError {
    let path = path.to_owned();
    move |error| StateError::Io { doing, path, error }
}

fn create_folder(path: &Path) -> Result<(), StateError> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error("create", path))?;
    // The folder's own entry must outlive a power failure as its files do.
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => file::sync_folder(parent),
        None => Ok(()),
    }
}

/// A folder others can write to could give this node a foreign key; one others can read is only as bad as a
/// careless `mkdir`, and the key's file has its own mode.
fn check_folder(path: &Path) -> Result<(), StateError> {
    let metadata = fs::metadata(path).map_err(io_error("look at", path))?;
    let user = rustix::process::geteuid().as_raw();
    let refused = |why: String| Err(StateError::NotPrivate { path: path.to_owned(), why });
    if !metadata.is_dir() {
        return Err(StateError::NotFolder { path: path.to_owned() });
    }
    if metadata.uid() != user {
        return refused(format!("belongs to user {}, not to {user}", metadata.uid()));
    }
    match metadata.permissions().mode() & 0o777 {
        mode if mode & 0o022 != 0 => refused(format!("can be written by others (mode {mode:04o})")),
        _ => Ok(()),
    }
}

fn take_lock(folder: &Path) -> Result<File, StateError> {
    let path = folder.join(LOCK);
    let options =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut lock = options.map_err(io_error("open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(StateError::InUse { path: folder.to_owned(), pid: read_pid(&mut lock) });
        }
        Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
    }
    // Only for the message of whoever is refused: a torn write costs nothing but that.
    let pid = format!("{}\n", std::process::id());
    let written = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(pid.as_bytes()));
    written.map_err(io_error("write", &path))?;
    Ok(lock)
}

fn read_pid(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    lock.take(16).read_to_string(&mut text).ok()?;
    text.strip_suffix('\n')?.parse().ok()
}

fn raise_incarnation(folder: &Path, is_new: bool) -> Result<u64, StateError> {
    let last = match read_u64(folder, INCARNATION, 10)? {
        Some(last) => last,
        None if is_new => 0,
        None => return Err(StateError::Missing { file: folder.join(INCARNATION) }),
    };
    let next = last.checked_add(1).ok_or_else(|| StateError::UsedUp { file: folder.join(INCARNATION) })?;
    write_value(folder, INCARNATION, &next.to_string())?;
    Ok(next)
}

fn read_u64(folder: &Path, name: &str, radix: u32) -> Result<Option<u64>, StateError> {
    let Some(Named { file, value }) = read_value(folder, name)? else { return Ok(None) };
    let number = u64::from_str_radix(&value, radix);
    number.map(Some).map_err(|_| StateError::Damaged { file, why: "it holds no number" })
}

fn read_port(folder: &Path) -> Result<Option<u16>, StateError> {
    let Some(Named { file, value }) = read_value(folder, PORT)? else { return Ok(None) };
    match value.parse() {
        Ok(port) if port != 0 => Ok(Some(port)),
        _ => Err(StateError::Damaged { file, why: "it holds no port" }),
    }
}

fn read_key(folder: &Path) -> Result<Option<Key>, StateError> {
    let Some(Named { file, value }) = read_value(folder, KEY)? else { return Ok(None) };
    let damaged = || StateError::Damaged { file: file.clone(), why: "it holds no key" };
    parse_hexadecimal(&value).map(|bytes| Some(Key::new(bytes))).ok_or_else(damaged)
}

fn create_key(folder: &Path) -> Result<Key, StateError> {
    let bytes: [u8; KEY_BYTES] = random(folder)?;
    write_value(folder, KEY, &hexadecimal(&bytes))?;
    Ok(Key::new(bytes))
}

fn read_identity(folder: &Path) -> Result<Option<NodeId>, StateError> {
    let Some(Named { file, value }) = read_value(folder, IDENTITY)? else { return Ok(None) };
    let why = "it holds no id of a node; those of earlier versions were shorter";
    value.parse().map(Some).map_err(|_| StateError::Damaged { file, why })
}

fn parse_tenancy(value: &str) -> Option<Tenancy> {
    let mut parts = value.split(':');
    let tenancy = Tenancy {
        number: parts.next()?.parse().ok()?,
        node: parts.next()?.parse().ok()?,
        life: parts.next()?.parse().ok()?,
        is_held: match parts.next()? {
            HELD => true,
            RETURNED => false,
            _ => return None,
        },
        name: Name::from_bytes(parse_hexadecimal(parts.next()?)?),
    };
    parts.next().is_none().then_some(tenancy)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_hexadecimal<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

fn tenancy_file(function: &FunctionName) -> String {
    format!("{TENANCY_PREFIX}{function}")
}

fn holder_file(node: NodeId) -> String {
    format!("{HOLDER_PREFIX}{node}")
}

pub(crate) fn random<const N: usize>(folder: &Path) -> Result<[u8; N], StateError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(io_error("get random bytes for", folder)(errno.into())),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
