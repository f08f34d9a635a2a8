//! How the edges of borrowed functions are named: what users hand to other programs, from whatever folder those run in.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An NBD server on a Unix socket, as the NBD project's URIs have it; the path is absolute.
pub(crate) fn nbd(socket: &Path) -> String {
    let mut uri = "nbd+unix:///?socket=".to_owned();
    for byte in absolute(socket).as_os_str().as_bytes() {
        // RFC 3986 §3.4: what may stand in a query, less what ends a field of it.
        let plain = byte.is_ascii_alphanumeric() || b"-._~/:@!$'()*,;".contains(byte);
        match plain {
            true => uri.push(char::from(*byte)),
            // Writing to a string does not fail.
            false => _ = write!(uri, "%{byte:02X}"),
        }
    }
    uri
}

/// A vfio-user socket; the path is absolute.
pub(crate) fn vfio_user(socket: &Path) -> String {
    format!("vfio-user:{}", absolute(socket).display())
}

fn absolute(path: &Path) -> PathBuf {
    // Fails only for an empty path, or where there is no folder to begin at.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_named_for_programs_anywhere() {
        assert_eq!(nbd(Path::new("/tmp/a.sock")), "nbd+unix:///?socket=/tmp/a.sock");
        assert_eq!(nbd(Path::new("/tmp/a b&c#%.sock")), "nbd+unix:///?socket=/tmp/a%20b%26c%23%25.sock");
        assert_eq!(vfio_user(Path::new("/run/vm.sock")), "vfio-user:/run/vm.sock");
        let here = std::env::current_dir().unwrap();
        assert_eq!(nbd(Path::new("a.sock")), nbd(&here.join("a.sock")));
        assert_eq!(vfio_user(Path::new("a.sock")), format!("vfio-user:{}", here.join("a.sock").display()));
    }
}
