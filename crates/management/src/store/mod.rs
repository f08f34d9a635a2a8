//! The manager's files: how the bytes of [`manager::log`] come to a disk, and from it.
//!
//! | file | what |
//! |---|---|
//! | `log` | records, each appended and made durable before anybody hears of what is in it |
//! | `snapshot` | the state at some entry; the log goes on from there, or from earlier |
//! | `reached` | up to where the log was durable ([`reached`]) |
//! | `lock` | held by the manager that uses the folder, and its process id |
//! | `restored` | there while a manager that was restored from a backup has not begun |
//!
//! A log that is long is replaced: the snapshot is written beside its name, made durable and renamed, then a new log in
//! the same way. Whenever that ends in between, what is there is whole: a snapshot may be newer than where its log
//! begins.

mod backup;
mod files;
mod lock;
mod reached;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use manager::Start;
use manager::entry::Entry;
use manager::log::{self, Base, Damage, HEADER_LEN, Recovered, Writer};
use manager::model::FabricId;
use manager::state::State;
use thiserror::Error;

pub use backup::{backup, rebuild, restore, write_backup};
use files::{append_to, cut, read_if_there, replace, sync_folder};
use lock::Lock;
use reached::Reached;

const LOG: &str = "log";
const SNAPSHOT: &str = "snapshot";
const RESTORED: &str = "restored";
/// What that says where certificates count whose time is over, or has not come.
const ANY_TIME: &[u8] = b"any time\n";

/// A log of so many bytes is replaced by a snapshot.
pub const LOG_MAX: u64 = 64 << 20;

/// What is wrong with the files.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The disk, or the system, refuses.
    #[error("{path:?} cannot be {what}: {error}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What could not be done with it.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// What lies there is not what was written. Nothing was changed.
    #[error("{path:?}: {damage}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where and how.
        damage: Damage,
    },
    /// Another manager uses the folder.
    #[error("{path:?} is used by {holder}: end that first")]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Who.
        holder: String,
    },
    /// There is no log.
    #[error("{path:?} is not there: found a fabric by `causeway init`, or restore a backup")]
    Absent {
        /// The file that is missing.
        path: PathBuf,
    },
}

impl StoreError {
    /// Whether it may be better in a while, as a full disk may; damage stays.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// The files of a manager that runs. Nobody else uses them as long as this is there.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    fabric: FabricId,
    log: File,
    /// Bytes of the log that are durable.
    len: u64,
    writer: Writer,
    reached: Reached,
    log_max: u64,
    /// Something failed: what lies behind `len` is nobody's, and nothing is appended.
    is_broken: bool,
    _lock: Lock,
}

/// What a store held when it was opened.
#[derive(Debug)]
pub struct Opened {
    /// The state after the last entry.
    pub state: State,
    /// How the manager starts.
    pub start: Start,
    /// Bytes of a torn tail that were cut. They were never acknowledged.
    pub torn: usize,
}

/// Begins the log of a new fabric in an empty folder.
///
/// # Errors
/// The disk refuses.
pub fn begin(dir: &Path, fabric: FabricId, first: &Entry) -> Result<(), StoreError> {
    let mut writer = Writer::new(fabric, 0, 0);
    let mut bytes = writer.header();
    bytes.extend(writer.record(core::slice::from_ref(first)));
    replace(&dir.join(LOG), &bytes)
}

impl Store {
    /// Opens the files in `dir`, cuts a torn tail, and reads what they hold.
    ///
    /// # Errors
    /// Another manager uses them, the disk refuses, or they are damaged.
    pub fn open(dir: &Path, fabric: FabricId) -> Result<(Self, Opened), StoreError> {
        let lock = Lock::take(dir)?;
        let reached = Reached::open(dir)?;
        let (recovered, log) = read(dir, fabric, reached.index())?;
        let torn = recovered.torn;
        let mut store = Self {
            dir: dir.to_owned(),
            fabric,
            log,
            len: recovered.len as u64,
            writer: recovered.writer,
            reached,
            log_max: LOG_MAX,
            is_broken: false,
            _lock: lock,
        };
        store.cut()?;
        let start = start(dir)?;
        Ok((store, Opened { state: recovered.state, start, torn }))
    }

    /// Appends entries as one record and makes it durable. After an error nothing more is appended: see
    /// [`Store::recover`].
    ///
    /// # Errors
    /// The disk refuses.
    pub fn append(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        let path = self.dir.join(LOG);
        if self.is_broken {
            let error = io::Error::from(ErrorKind::BrokenPipe);
            return Err(StoreError::File { path, what: "used after an error", error });
        }
        let record = self.writer.record(entries);
        let written = self.log.write_all(&record).and_then(|()| self.log.sync_data());
        if let Err(error) = written {
            self.is_broken = true;
            return Err(StoreError::File { path, what: "appended to", error });
        }
        self.len += record.len() as u64;
        self.reached.tell(self.writer.index());
        Ok(())
    }

    /// After an error: cuts what may have been written, and reads what is durable once more. Of what is cut nobody has
    /// heard, for it was never said to be durable; that it would be there after all is not left to chance.
    ///
    /// # Errors
    /// The disk still refuses, or the files are damaged.
    pub fn recover(&mut self) -> Result<Opened, StoreError> {
        sync_folder(&self.dir)?;
        self.cut()?;
        let (recovered, log) = read(&self.dir, self.fabric, self.reached.index())?;
        (self.log, self.len, self.writer) = (log, recovered.len as u64, recovered.writer);
        self.cut()?;
        self.is_broken = false;
        let start = start(&self.dir)?;
        Ok(Opened { state: recovered.state, start, torn: recovered.torn })
    }

    /// The manager has begun: its first entry is durable, so the next one starts from that.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn has_begun(&mut self) -> Result<(), StoreError> {
        let path = self.dir.join(RESTORED);
        match std::fs::remove_file(&path) {
            Ok(()) => sync_folder(&self.dir),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StoreError::File { path, what: "removed", error }),
        }
    }

    /// Bytes of the log.
    pub fn log_len(&self) -> u64 {
        self.len
    }

    /// Whether the log is long enough for a snapshot.
    pub fn is_long(&self) -> bool {
        self.len >= self.log_max
    }

    /// Whether something has failed, so that [`Store::recover`] is needed.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Makes a snapshot of the state, all of which is durable, and begins a new log. After an error the old one goes
    /// on, unless [`Store::is_broken`]; the next try is made when it has grown by as much again.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn snapshot(&mut self, state: &State) -> Result<(), StoreError> {
        self.log_max = self.len + LOG_MAX;
        replace(&self.dir.join(SNAPSHOT), &self.snapshot_bytes(state))?;
        let path = self.dir.join(LOG);
        // From here on either log may be the one that has the name.
        self.is_broken = true;
        replace(&path, &self.writer.header())?;
        (self.log, self.len, self.log_max) = (append_to(&path)?, HEADER_LEN as u64, LOG_MAX);
        self.is_broken = false;
        self.reached.sync()
    }

    /// The bytes of a snapshot of the state, all of which is durable.
    pub fn snapshot_bytes(&self, state: &State) -> Vec<u8> {
        log::snapshot(state, &self.writer)
    }

    /// The manager ends in order.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn close(mut self) -> Result<(), StoreError> {
        self.reached.sync()
    }

    fn cut(&mut self) -> Result<(), StoreError> {
        cut(&self.log, self.len, &self.dir.join(LOG))
    }
}

/// How the next manager starts.
fn start(dir: &Path) -> Result<Start, StoreError> {
    let restored = read_if_there(&dir.join(RESTORED))?;
    Ok(restored.map_or(Start::Plain, |text| Start::Restored { any_time: text == ANY_TIME }))
}

/// Reads snapshot and log, and opens the log for what follows.
fn read(dir: &Path, fabric: FabricId, reached: u64) -> Result<(Recovered, File), StoreError> {
    let (snapshot, log) = (dir.join(SNAPSHOT), dir.join(LOG));
    let damaged = |path: &Path| {
        let path = path.to_owned();
        move |damage| StoreError::Damaged { path, damage }
    };
    let base = match read_if_there(&snapshot)? {
        Some(bytes) => log::read_snapshot(&bytes, fabric).map_err(damaged(&snapshot))?,
        None => Base::new(fabric),
    };
    let Some(bytes) = read_if_there(&log)? else { return Err(StoreError::Absent { path: log }) };
    let recovered = log::read(&bytes, base, reached).map_err(damaged(&log))?;
    Ok((recovered, append_to(&log)?))
}
