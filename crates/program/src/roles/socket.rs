//! The listening sockets of edges.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ::io::users::{group_id, user_id};
use rustix::fs::{Gid, Mode, Uid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::cli::SocketAccess;
use crate::exit::Failure;

/// Who may connect when somebody else than we is named as owner, and nobody said more.
const OWNER_ONLY: u32 = 0o600;
/// Clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// A listening socket at `path`, which must be free, or left by someone dead.
pub(super) fn bind(path: &Path, access: &SocketAccess) -> Result<UnixListener, Failure> {
    crate::cli::check_socket_path(path).map_err(Failure::usage)?;
    let ids = Ids::of(access)?;
    clear(path)?;
    let bound = if access.is_default() { UnixListener::bind(path) } else { bind_for(path, access, &ids) };
    bound.map_err(|error| {
        let shown = path.display();
        let advice = match error.kind() {
            ErrorKind::PermissionDenied if !access.is_default() => {
                "the folder must be writable, and only root may give a socket to another user"
            }
            _ => "the folder must exist and be writable",
        };
        Failure::io(format!("cannot make the socket {shown} ({advice})"), &error)
    })
}

/// A socket that listens, and is gone if nobody takes it.
pub(super) struct Reserved {
    listener: Option<UnixListener>,
    /// Where it lies,
    at: PathBuf,
    /// and where it is to lie.
    path: PathBuf,
}

impl Reserved {
    /// As [`bind`]. `is_ours`: this node listens there still, so the new socket takes that place only when it is
    /// installed.
    pub(super) fn bind(path: &Path, access: &SocketAccess, is_ours: bool) -> Result<Self, Failure> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let beside = || {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            path.with_file_name(format!(".{:x}.{number:x}", std::process::id()))
        };
        let at = if is_ours { beside() } else { path.to_owned() };
        Ok(Self { listener: Some(bind(&at, access)?), at, path: path.to_owned() })
    }

    /// Where it is to lie.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Who connects there comes to it from now on.
    pub(super) fn install(mut self) -> Result<UnixListener, Failure> {
        let shown = self.path.display();
        if self.at != self.path {
            std::fs::rename(&self.at, &self.path)
                .map_err(|error| Failure::io(format!("cannot make the socket {shown}"), &error))?;
        }
        self.listener.take().ok_or_else(|| Failure::failed(format!("the socket {shown} is gone")))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.listener.is_some() {
            let _ = std::fs::remove_file(&self.at);
        }
    }
}

/// Whether [`bind`] could make a socket at `path`, where nothing is left of it.
pub(super) fn check(path: &Path, access: &SocketAccess) -> Result<(), Failure> {
    Reserved::bind(path, access, false).map(drop)
}

/// Whether two paths are of one socket, however they are written.
pub(super) fn is_same(path: &Path, other: &Path) -> bool {
    let file = |path: &Path| {
        let found = std::fs::symlink_metadata(path).ok()?;
        Some((found.dev(), found.ino()))
    };
    let absolute = |path: &Path| std::path::absolute(path).ok();
    absolute(path) == absolute(other) || file(path).is_some_and(|it| file(other) == Some(it))
}

struct Ids {
    owner: Option<Uid>,
    group: Option<Gid>,
}

impl Ids {
    fn of(access: &SocketAccess) -> Result<Self, Failure> {
        let unknown =
            |what: &str, name: &str| Failure::usage(format!("there is no {what} `{name}` on this machine"));
        let owner = access.owner.as_deref();
        let owner = owner.map(|name| user_id(name).ok_or_else(|| unknown("user", name))).transpose()?;
        let group = access.group.as_deref();
        let group = group.map(|name| group_id(name).ok_or_else(|| unknown("group", name))).transpose()?;
        Ok(Self { owner: owner.map(Uid::from_raw), group: group.map(Gid::from_raw) })
    }
}

/// At no time may anybody connect who is not to: a socket is made with the rights that it has before it is bound.
fn bind_for(path: &Path, access: &SocketAccess, ids: &Ids) -> std::io::Result<UnixListener> {
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, Mode::empty())?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let settled = rustix::fs::chown(path, ids.owner, ids.group)
        .and_then(|()| rustix::fs::chmod(path, Mode::from_raw_mode(access.mode.unwrap_or(OWNER_ONLY))))
        .and_then(|()| rustix::net::listen(&socket, BACKLOG));
    if let Err(errno) = settled {
        let _ = std::fs::remove_file(path);
        return Err(errno.into());
    }
    Ok(socket.into())
}

/// Whether somebody may listen at `path`, now or later, to whom this node connects.
pub(super) fn check_client(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(found) if !found.file_type().is_socket() => Err(Failure::refused(format!(
            "{shown} exists and is no socket: name the one that QEMU makes by `-qmp unix:{shown},server=on,wait=off`"
        ))),
        _ => Ok(()),
    }
}

/// Whether there is a folder for a socket that somebody typed. What makes one that a file names may come later.
pub(super) fn check_folder(path: &Path) -> Result<(), Failure> {
    let is_there = |folder: &Path| folder.as_os_str().is_empty() || folder.is_dir();
    if path.parent().is_none_or(is_there) {
        return Ok(());
    }
    let shown = path.display();
    Err(Failure::refused(format!("there is no folder for the QMP socket {shown}: QEMU makes it there")))
}

pub(super) fn clear(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(Failure::refused(format!(
            "{shown} exists and is no socket; choose another path or remove it"
        )));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| Failure::io(format!("cannot replace {shown}"), &error))
        }
        _ => {
            Err(Failure::refused(format!("socket {shown} is in use by another program; choose another path")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn nobody_can_listen_where_a_file_is_or_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        let both = |path: &Path| check_client(path).and_then(|()| check_folder(path));
        let why = |name: &str| both(&at(name)).map_err(|failure| failure.message().to_owned());
        assert!(check_client(&at("nowhere/qmp")).is_ok(), "what a file names may come later");
        assert!(why("file").unwrap_err().contains("is no socket"));
        assert!(why("nowhere/qmp").unwrap_err().contains("no folder"));
        assert_eq!(why("later"), Ok(()), "its machine may come later");
        let _listener = UnixListener::bind(at("qmp")).unwrap();
        assert_eq!(why("qmp"), Ok(()));
        assert!(both(Path::new("qmp")).is_ok(), "in the folder that this runs in");
    }

    #[test]
    fn a_socket_has_the_rights_that_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.sock");
        let own = rustix::process::geteuid().as_raw().to_string();
        let access = SocketAccess { owner: Some(own), group: None, mode: Some(0o666) };
        let listener = bind(&path, &access).unwrap();
        let made = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!(
            (made.permissions().mode() & 0o777, made.uid()),
            (0o666, rustix::process::geteuid().as_raw())
        );
        assert!(UnixStream::connect(&path).is_ok());
        let taken = bind(&path, &access).unwrap_err();
        assert!(taken.message().contains("in use"), "{taken}");
        drop(listener);
        // What a dead one has left is replaced.
        bind(&path, &SocketAccess { mode: None, ..access }).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// The new one is there before the old one goes, and nobody finds neither.
    #[test]
    fn a_socket_takes_the_place_of_our_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.sock");
        let old = bind(&path, &SocketAccess::default()).unwrap();
        let access = SocketAccess { mode: Some(0o640), ..SocketAccess::default() };
        assert!(Reserved::bind(&path, &access, false).is_err(), "it is in use");
        old.accept().expect("who asked has connected");
        drop(Reserved::bind(&path, &access, true).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left of it");
        let reserved = Reserved::bind(&path, &access, true).unwrap();
        assert_eq!(reserved.path(), path);
        let new = reserved.install().unwrap();
        new.set_nonblocking(true).unwrap();
        old.set_nonblocking(true).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        assert!(new.accept().is_ok() && old.accept().is_err());
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn nobody_is_named_in_vain() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.sock");
        let access = SocketAccess { owner: Some("no-such-user".into()), ..SocketAccess::default() };
        assert!(bind(&path, &access).unwrap_err().message().contains("no-such-user"));
        let access = SocketAccess { group: Some("no-such-group".into()), ..SocketAccess::default() };
        assert!(bind(&path, &access).unwrap_err().message().contains("no-such-group"));
        assert!(!path.exists());
    }
}
