//! Where control sockets lie.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{ControlError, io_error};
use crate::cli::{NodeName, check_socket_path};

const SYSTEM_FOLDER: &str = "/run/causeway";

/// The folder of this user's control sockets: `$XDG_RUNTIME_DIR/causeway`, else `/run/causeway` for root and for
/// the user it belongs to, else `causeway-UID` in the folder for temporary files.
pub fn runtime_dir() -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    let xdg = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let system_owner = fs::metadata(SYSTEM_FOLDER).ok().map(|metadata| metadata.uid());
    choose(user, xdg, system_owner, std::env::temp_dir())
}

/// The control socket of the node of this name.
pub fn socket_path(name: &NodeName) -> PathBuf {
    runtime_dir().join(format!("{name}.sock"))
}

pub(super) fn choose(
    user: u32,
    xdg: Option<PathBuf>,
    system_owner: Option<u32>,
    temporary: PathBuf,
) -> PathBuf {
    match xdg {
        Some(xdg) => xdg.join("causeway"),
        None if user == 0 || system_owner == Some(user) => PathBuf::from(SYSTEM_FOLDER),
        None => temporary.join(format!("causeway-{user}")),
    }
}

/// Makes the folder of a socket if it is missing, and checks that it is ours alone: in a folder for temporary files
/// anybody can make one with our name first.
pub(super) fn prepare(socket: &Path) -> Result<(), ControlError> {
    let wrong_path = |why: String| ControlError::Path { path: socket.to_owned(), why };
    check_socket_path(socket).map_err(|error| wrong_path(error.to_string()))?;
    let folder = socket.parent().ok_or_else(|| wrong_path("it has no folder".to_owned()))?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(io_error("create", folder))?;
    check_private(folder)
}

/// Refuses a folder, or a link to one, in which others could have put a socket.
pub(super) fn check_private(folder: &Path) -> Result<(), ControlError> {
    let refused = |why: String| Err(ControlError::NotPrivate { path: folder.to_owned(), why });
    let metadata = fs::symlink_metadata(folder).map_err(io_error("look at", folder))?;
    let user = rustix::process::geteuid().as_raw();
    if !metadata.is_dir() {
        return refused("is not a folder".to_owned());
    }
    if metadata.uid() != user {
        return refused(format!("belongs to user {}, not to {user}", metadata.uid()));
    }
    match metadata.permissions().mode() & 0o777 {
        mode if mode & 0o022 != 0 => refused(format!("can be written by others (mode {mode:04o})")),
        _ => Ok(()),
    }
}
