//! The private folder of a command, removed with everything in it when it ends.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use program::exit::Failure;

/// Longest path of the folder, so that the sockets in it stay below the 107 bytes a socket may have.
const PATH_MAX: usize = 60;
const TRIES: u32 = 100;

/// The folder; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A new folder of ours alone for `purpose` (a short word), under the folder for temporary files, or under `/tmp`
    /// where that one's path is too long for sockets.
    pub(crate) fn create(purpose: &str) -> Result<Self, Failure> {
        let temporary = std::env::temp_dir();
        let longest = temporary.join(name(purpose, TRIES));
        let is_long = longest.as_os_str().as_bytes().len() > PATH_MAX;
        let parent = if is_long || temporary.is_relative() { PathBuf::from("/tmp") } else { temporary };
        Self::create_in(&parent, purpose)
    }

    /// A new folder of ours alone in `parent`, whose path may be too long for sockets.
    pub(crate) fn create_in(parent: &Path, purpose: &str) -> Result<Self, Failure> {
        for attempt in 0..TRIES {
            let path = parent.join(name(purpose, attempt));
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
        Err(Failure::refused(format_args!(
            "{} is full of folders that commands left behind",
            parent.display()
        )))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a private folder is left behind");
        }
    }
}

fn name(purpose: &str, attempt: u32) -> String {
    format!("causeway-{purpose}-{}.{attempt}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_goes_with_its_content() {
        let scratch = Scratch::create("test").unwrap();
        let other = Scratch::create("test").unwrap();
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
