//! Backups: the bytes of a snapshot, all of which was durable. Keys and certificates are not in one: they never change,
//! and are copied with the fabric's folder.

use std::path::{Path, PathBuf};

use manager::entry::Entry;
use manager::log::{Writer, read_snapshot};
use manager::model::FabricId;

use super::files::{make_folder, move_away, replace, sync_folder};
use super::lock::Lock;
use super::{ANY_TIME, LOG, RESTORED, SNAPSHOT, Store, StoreError, begin};

/// A backup of the files of a manager that does not run. One that runs is asked for its own.
///
/// # Errors
/// A manager uses the files, the disk refuses, or they are damaged.
pub fn backup(dir: &Path, fabric: FabricId) -> Result<Vec<u8>, StoreError> {
    let (store, opened) = Store::open(dir, fabric)?;
    Ok(store.snapshot_bytes(&opened.state))
}

/// Writes a backup to a file that only its owner reads: it appears as a whole.
///
/// # Errors
/// The disk refuses.
pub fn write_backup(file: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(file, bytes)
}

/// Puts a backup in place of the files of a manager that does not run, which are moved to `before-restore-N` beside
/// them. The next manager begins by listening to its lenders. Returns where the old files are, if there were any.
///
/// # Errors
/// A manager uses the files, the disk refuses, or the backup is damaged or another fabric's.
pub fn restore(dir: &Path, fabric: FabricId, file: &Path) -> Result<Option<PathBuf>, StoreError> {
    let bytes = std::fs::read(file).map_err(|error| StoreError::File {
        path: file.to_owned(),
        what: "read",
        error,
    })?;
    let base = read_snapshot(&bytes, fabric)
        .map_err(|damage| StoreError::Damaged { path: file.to_owned(), damage })?;
    make_folder(dir)?;
    let _lock = Lock::take(dir)?;
    let moved = move_old(dir)?;
    // In this order: before there is a log, nobody starts; and whoever does knows that it was restored.
    replace(&dir.join(RESTORED), b"")?;
    replace(&dir.join(SNAPSHOT), &bytes)?;
    let writer = Writer::new(fabric, base.writer.index(), base.writer.chain());
    replace(&dir.join(LOG), &writer.header())?;
    Ok(moved)
}

/// Begins the log of a fabric anew, with this entry, in place of files that are lost or of no use, which are moved as
/// of
/// [`restore`]. The next manager begins by listening: nodes show by their certificates that they belong to the fabric,
/// and lenders say who has their functions; with `any_time` also by certificates whose time is over, or has not come.
/// Returns where the old files are, if there were any.
///
/// # Errors
/// A manager uses the files, or the disk refuses.
pub fn rebuild(
    dir: &Path,
    fabric: FabricId,
    first: &Entry,
    any_time: bool,
) -> Result<Option<PathBuf>, StoreError> {
    make_folder(dir)?;
    let _lock = Lock::take(dir)?;
    let moved = move_old(dir)?;
    replace(&dir.join(RESTORED), if any_time { ANY_TIME } else { b"" })?;
    begin(dir, fabric, first)?;
    Ok(moved)
}

fn move_old(dir: &Path) -> Result<Option<PathBuf>, StoreError> {
    // How far a log that is lost had come is no word of the next one either.
    if ![LOG, SNAPSHOT, "reached"].iter().any(|name| dir.join(name).exists()) {
        return Ok(None);
    }
    let free = (1..).map(|number| dir.join(format!("before-restore-{number}"))).find(|path| !path.exists());
    let Some(old) = free else { return Ok(None) };
    make_folder(&old)?;
    // What a repeated restore looks for goes last.
    for name in ["reached", SNAPSHOT, LOG] {
        move_away(&dir.join(name), &old.join(name))?;
    }
    sync_folder(dir)?;
    Ok(Some(old))
}
