//! The private folder of a demo, removed with everything in it when it ends.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// Longest path of the folder, so that the sockets in it stay below the 107 bytes a socket may have.
const PATH_MAX: usize = 60;
const TRIES: u32 = 100;

/// The folder; dropping it removes it.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new folder of ours alone, under the folder for temporary files, or under `/tmp` where that one's path is too
    /// long for sockets.
    pub(super) fn create() -> Result<Self, Failure> {
        let process = std::process::id();
        let name = |attempt: u32| format!("causeway-demo-{process}.{attempt}");
        let temporary = std::env::temp_dir();
        let is_long = temporary.join(name(TRIES)).as_os_str().as_bytes().len() > PATH_MAX;
        let parent = if is_long || temporary.is_relative() { PathBuf::from("/tmp") } else { temporary };
        for attempt in 0..TRIES {
            let path = parent.join(name(attempt));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(Failure::io(
                        format_args!("cannot create the folder {}", path.display()),
                        &error,
                    ));
                }
            }
        }
        Err(Failure::refused(format_args!("{} is full of folders of dead demos", parent.display())))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "the demo's folder is left behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_goes_with_its_content() {
        let scratch = Scratch::create().unwrap();
        let other = Scratch::create().unwrap();
        assert_ne!(scratch.path(), other.path());
        std::fs::create_dir(scratch.join("a")).unwrap();
        std::fs::write(scratch.join("a/b"), "c").unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&scratch.path().metadata().unwrap());
        assert_eq!(mode & 0o777, 0o700);
        let path = scratch.path().to_owned();
        drop(scratch);
        assert!(!path.exists());
    }
}
