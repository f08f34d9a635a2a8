//! Files as a store needs them: durable when a function says so, and private.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use super::StoreError;

fn refused(path: &Path, what: &'static str) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |error| StoreError::File { path, what, error }
}

/// All of a file, if there is one.
pub(super) fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(refused(path, "read")(error)),
    }
}

/// Opens a file that is there, for what is put behind its end.
pub(super) fn append_to(path: &Path) -> Result<File, StoreError> {
    OpenOptions::new().append(true).open(path).map_err(refused(path, "opened"))
}

/// Makes `path` a file of these bytes in one step: written beside its name, made durable, renamed.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let beside = path.with_extension("new");
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    write().map_err(|error| {
        // What is left of it takes room on a disk that is perhaps full.
        let _ = fs::remove_file(&beside);
        refused(path, "written")(error)
    })?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Cuts a file to so many bytes, for good.
pub(super) fn cut(file: &File, len: u64, path: &Path) -> Result<(), StoreError> {
    let cut = || match file.metadata()?.len() {
        present if present == len => Ok(()),
        _ => file.set_len(len),
    };
    cut().and_then(|()| file.sync_all()).map_err(refused(path, "cut"))
}

/// Makes names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path).and_then(|folder| folder.sync_all()).map_err(refused(path, "made durable"))
}

/// Makes a private folder, unless it is there.
pub(super) fn make_folder(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(0o700).recursive(true).create(path) {
        Ok(()) => Ok(()),
        Err(error) => Err(refused(path, "made")(error)),
    }
}

/// Gives a file another name, if it is there.
pub(super) fn move_away(from: &Path, to: &Path) -> Result<(), StoreError> {
    match fs::rename(from, to) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(refused(from, "moved away")(error)),
        _ => Ok(()),
    }
}
