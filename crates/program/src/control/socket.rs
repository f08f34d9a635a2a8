//! The socket of a node that runs: no other node has one of its name.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::client::name_of;
use super::{ControlError, io_error, place};

/// A control socket, which goes with this value.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    /// Held, never read: says that the node of this name lives.
    _lock: File,
}

impl Socket {
    /// Listens at `path`, whose folder it makes and keeps private.
    ///
    /// A socket left by a dead node is replaced; that of a living one is [`ControlError::InUse`]. What tells them
    /// apart is the lock on `NAME.lock` beside it, so that two nodes starting at once cannot both win.
    pub(super) fn listen(path: &Path) -> Result<(Self, UnixListener), ControlError> {
        place::prepare(path)?;
        let lock = take_lock(path)?;
        remove_dead_socket(path)?;
        let listener = UnixListener::bind(path).map_err(io_error("listen at", path))?;
        let socket = Self { path: path.to_owned(), _lock: lock };
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(io_error("protect", path))?;
        listener.set_nonblocking(true).map_err(io_error("listen at", path))?;
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The lock is still held, so this is our own socket. If it fails, the next start removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn take_lock(socket: &Path) -> Result<File, ControlError> {
    let path = socket.with_extension("lock");
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut lock = open.map_err(io_error("open", &path))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            let read = lock.take(16).read_to_string(&mut text);
            let pid = read.ok().and_then(|_| text.trim_end().parse().ok());
            return Err(ControlError::InUse { name: name_of(socket), pid });
        }
        Err(TryLockError::Error(error)) => return Err(io_error("lock", &path)(error)),
    }
    // Only for the message of whoever is refused.
    let pid = format!("{}\n", std::process::id());
    let written = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(pid.as_bytes()));
    written.map_err(io_error("write", &path))?;
    Ok(lock)
}

/// With the lock held nobody of ours listens. Somebody else might: refuse what answers.
fn remove_dead_socket(path: &Path) -> Result<(), ControlError> {
    match UnixStream::connect(path) {
        Ok(_) => Err(ControlError::InUse { name: name_of(path), pid: None }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(_) => fs::remove_file(path).map_err(io_error("replace", path)),
    }
}
