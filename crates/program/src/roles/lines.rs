//! Where the lines of what is lent go: each is as secret as the key in it.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tracing::{info, warn};

use crate::exit::Failure;

/// Where a node tells the lines of what it lends.
pub(super) struct Lines {
    /// Else standard output.
    file: Option<PathBuf>,
    /// All of them.
    told: Vec<String>,
}

impl Lines {
    /// To this file, else to standard output.
    pub(super) fn to(file: Option<&Path>) -> Self {
        // A node may change its folder.
        let file = file.map(|file| std::path::absolute(file).unwrap_or_else(|_| file.to_owned()));
        Self { file, told: Vec::new() }
    }

    /// Whether they are kept in a file, and so told nowhere else.
    pub(super) fn are_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Tells lines of functions that are lent from now on; of those before, only `lent` are lent still.
    pub(super) fn tell(&mut self, lines: &[String], lent: &BTreeSet<String>) -> Result<(), Failure> {
        let new: BTreeSet<_> = lines.iter().map(|line| function_of(line)).collect();
        self.told.retain(|line| lent.contains(function_of(line)) && !new.contains(function_of(line)));
        self.told.extend_from_slice(lines);
        match &self.file {
            Some(path) => keep(path, &self.told),
            None => {
                warn_of_journal(lines, "start the node with --line-file PATH");
                lines.iter().try_for_each(|line| crate::cli::print(&format!("{line}\n")))
            }
        }
    }
}

/// The function that a line is for.
fn function_of(line: &str) -> &str {
    line.rsplit_once('/').map_or(line, |(_, function)| function)
}

/// Warns of lines that are printed if that is into a journal: they would stay there, for whoever may read it.
pub(crate) fn warn_of_journal(lines: &[String], remedy: &str) {
    let journal = std::env::var("JOURNAL_STREAM").ok();
    if !lines.is_empty() && journal.is_some_and(|journal| is_journal(&journal, io::stdout().as_fd())) {
        warn!(
            "the lines with their keys go into the system's journal, where everybody who may read it finds them: \
             {remedy}, and give the functions new keys with a new state folder"
        );
    }
}

/// Keeps the lines in a file that only this user can read, one behind the other. What was there before is replaced as a
/// whole.
fn keep(path: &Path, lines: &[String]) -> Result<(), Failure> {
    let shown = path.display();
    let failed = |error: io::Error| Failure::io(format_args!("cannot keep the lines in {shown}"), &error);
    let name = path.file_name().ok_or_else(|| {
        Failure::usage(format_args!("{shown} is no name of a file; give one for the lines with --line-file"))
    })?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".new");
    let new = path.with_file_name(hidden);
    // Not to be written through: whatever lies there, a link included, is a leftover.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
    let written = write(&mut file, lines).and_then(|()| fs::rename(&new, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&new);
        return Err(failed(error));
    }
    info!(file = %shown, lines = lines.len(), "the lines are in this file");
    Ok(())
}

fn write(file: &mut File, lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(file, "{line}"))?;
    file.sync_all()
}

/// Whether a descriptor is the connection to the journal that `JOURNAL_STREAM` names by device and inode
/// (systemd.exec(5)).
fn is_journal(stream: &str, fd: impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(fd) else { return false };
    stream
        .split_once(':')
        .is_some_and(|(device, inode)| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    #[test]
    fn lines_are_kept_for_this_user_alone_and_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.lines");
        fs::write(&path, "something old that others can read").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        // What an earlier start has left, or somebody else.
        std::os::unix::fs::symlink("/nonexistent/elsewhere", folder.path().join(".disk.lines.new")).unwrap();
        keep(&path, &["one".to_owned(), "two".to_owned()]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        let failure = keep(&folder.path().join("missing/disk.lines"), &[]).unwrap_err();
        assert!(failure.message().contains("missing/disk.lines"), "{failure}");
    }

    #[test]
    fn a_journal_is_known_by_its_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let found = file.metadata().unwrap();
        assert!(is_journal(&format!("{}:{}", found.dev(), found.ino()), &file));
        for other in [format!("{}:{}", found.dev(), found.ino() + 1), String::new(), "a:b".to_owned()] {
            assert!(!is_journal(&other, &file), "{other}");
        }
    }
}
