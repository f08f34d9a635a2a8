//! One manager uses a folder at a time.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::StoreError;

/// The folder is this process's. The kernel takes the lock back when the process ends, however it ends.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes it.
    pub(super) fn take(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join("lock");
        let refused = |error| StoreError::File { path: path.clone(), what: "locked", error };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = file.map_err(refused)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked { path: dir.to_owned(), holder: holder(&mut file) });
            }
            Err(error) => return Err(refused(error.into())),
        }
        // Who it is, for whoever comes next. The lock holds without it, also on a full disk.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }
}

/// Who holds it, as far as can be known.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let process = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse::<u32>().ok());
    let Some(process) = process else { return "another process".to_owned() };
    match fs::read_to_string(format!("/proc/{process}/comm")) {
        Ok(name) => format!("process {process} ({})", name.trim()),
        Err(_) => format!("process {process}"),
    }
}
