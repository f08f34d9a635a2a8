//! A folder that appears as a whole: it is filled beside its place, made durable, and renamed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::InitError;

/// Only its owner enters a private folder.
const FOLDER_MODE: u32 = 0o700;
/// Only its owner reads a private file.
const FILE_MODE: u32 = 0o600;

/// A folder's path from the root on, whether it is there or not.
pub(super) fn complete(dir: &Path) -> Result<PathBuf, InitError> {
    let refused = |error| InitError::File { path: dir.to_owned(), error };
    let path = match fs::canonicalize(if dir.as_os_str().is_empty() { Path::new(".") } else { dir }) {
        Ok(path) => path,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let name = dir.file_name().ok_or_else(|| refused(error))?;
            fs::canonicalize(parent(dir)).map_err(refused)?.join(name)
        }
        Err(error) => return Err(refused(error)),
    };
    match std::env::current_dir() {
        Ok(current) if current == path => Err(InitError::Current { path }),
        _ => Ok(path),
    }
}

/// The folder before it has its name. Dropped, it is gone.
pub(super) struct Draft {
    path: PathBuf,
}

impl Draft {
    /// Begins the folder that will be `dir`.
    pub(super) fn begin(dir: &Path) -> Result<Self, InitError> {
        if !is_empty_or_absent(dir) {
            return Err(InitError::NotEmpty { path: dir.to_owned() });
        }
        let mut name =
            dir.file_name().ok_or_else(|| InitError::NotEmpty { path: dir.to_owned() })?.to_owned();
        name.push(format!(".new-{}", std::process::id()));
        let path = dir.with_file_name(name);
        private_folder(&path).map_err(|error| InitError::File { path: path.clone(), error })?;
        Ok(Self { path })
    }

    /// Writes a file in it.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), InitError> {
        let path = self.path.join(name);
        write_new(&path, text.as_bytes()).map_err(|error| InitError::File { path, error })
    }

    /// Makes a folder in it.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf, InitError> {
        let path = self.path.join(name);
        match private_folder(&path) {
            Ok(()) => Ok(path),
            Err(error) => Err(InitError::File { path, error }),
        }
    }

    /// Gives it its name. An empty folder of that name is replaced, which is one step for whoever looks.
    pub(super) fn finish(self, dir: &Path) -> Result<(), InitError> {
        let durable = sync_folder(&self.path).and_then(|()| fs::rename(&self.path, dir));
        let durable = durable.and_then(|()| sync_folder(parent(dir)));
        durable.map_err(|error| match error.kind() {
            ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                InitError::NotEmpty { path: dir.to_owned() }
            }
            _ => InitError::File { path: dir.to_owned(), error },
        })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Where it has its name already there is nothing to remove.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn is_empty_or_absent(dir: &Path) -> bool {
    match fs::read_dir(dir) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

fn private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER_MODE).create(path)
}

/// Writes a file that only its owner reads, and that was not there.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
