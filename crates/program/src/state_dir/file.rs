//! One small file: a line `VALUE CHECK`, replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crc::{CRC_32_MPEG_2, Crc};

use super::{StateError, io_error};

/// Longest file read, in bytes: where a node is on four rails, and eight copies of it, take 640.
const BYTES_MAX: u64 = 1024;

/// A value and the file it came from, for messages.
pub(super) struct Named {
    pub(super) file: PathBuf,
    pub(super) value: String,
}

/// Reads the value of `name`; `None` if there is no such file.
pub(super) fn read_value(folder: &Path, name: &str) -> Result<Option<Named>, StateError> {
    read_long_value(folder, name, BYTES_MAX)
}

/// The same of one that may be longer.
pub(super) fn read_long_value(
    folder: &Path,
    name: &str,
    bytes_max: u64,
) -> Result<Option<Named>, StateError> {
    let file = folder.join(name);
    let mut bytes = Vec::new();
    match File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error("open", &file)(error)),
        Ok(open) => open.take(bytes_max).read_to_end(&mut bytes).map_err(io_error("read", &file))?,
    };
    match checked_value(name, &bytes) {
        Ok(value) => Ok(Some(Named { file, value: value.to_owned() })),
        Err(why) => Err(StateError::Damaged { file, why }),
    }
}

/// Replaces the value of `name`, durably, or leaves the old one. [`StateError::Unsettled`]: it is not known which.
pub(super) fn write_value(folder: &Path, name: &str, value: &str) -> Result<(), StateError> {
    write_file(folder, name, format!("{value} {:08x}\n", check(name, value)).as_bytes())
}

/// Replaces the content of `name`, durably, or leaves the old one. [`StateError::Unsettled`]: it is not known which.
pub(super) fn write_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), StateError> {
    replace(folder, name, bytes, &mut File::sync_all)
}

/// The same; `sync` makes the entries of the open folder durable.
fn replace(
    folder: &Path,
    name: &str,
    bytes: &[u8],
    sync: &mut dyn FnMut(&File) -> io::Result<()>,
) -> Result<(), StateError> {
    let file = folder.join(name);
    // Both are opened first: where that fails nothing has changed yet.
    let open = File::open(folder).map_err(io_error("open", folder))?;
    let old = match File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        old => Some(old.map_err(io_error("open", &file))?),
    };
    put(folder, name, &mut &bytes[..])?;
    let Err(error) = sync(&open) else { return Ok(()) };
    // What has the name now would be read by the next start, though it was refused.
    let put_back = match old {
        Some(mut old) => put(folder, name, &mut old),
        None => fs::remove_file(&file).map_err(io_error("remove", &file)),
    };
    Err(match put_back.is_ok() && sync(&open).is_ok() {
        true => io_error("make durable", folder)(error),
        false => StateError::Unsettled { file, error },
    })
}

/// Gives `name` this content, whole; the folder does not have it durably yet.
fn put(folder: &Path, name: &str, content: &mut dyn Read) -> Result<(), StateError> {
    let file = folder.join(name);
    let temporary = folder.join(format!(".{name}.tmp"));
    // Not to be written through: whatever lies there, a link included, is a leftover.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove", &temporary)(error));
        }
        _ => {}
    }
    let create = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    let written = create.and_then(|mut open| io::copy(content, &mut open).and_then(|_| open.sync_all()));
    written.map_err(io_error("write", &temporary))?;
    fs::rename(&temporary, &file).map_err(io_error("replace", &file))
}

/// Makes the entries of a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<(), StateError> {
    let synced = File::open(folder).and_then(|open| open.sync_all());
    synced.map_err(io_error("make durable", folder))
}

fn checked_value<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let line =
        text.strip_suffix('\n').ok_or(if text.is_empty() { "it is empty" } else { "its end is missing" })?;
    let (value, found) = line.rsplit_once(' ').ok_or("its checksum is missing")?;
    match found == format!("{:08x}", check(name, value)) {
        true => Ok(value),
        false => Err("its checksum does not match"),
    }
}

static CHECK: Crc<u32> = Crc::<u32>::new(&CRC_32_MPEG_2);

/// The name is part of the check, so that a file copied over another shows.
fn check(name: &str, value: &str) -> u32 {
    CHECK.checksum(format!("{name} {value}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces it where the first `failing` times that the folder is to be made durable fail.
    fn replace_failing(folder: &Path, bytes: &[u8], failing: usize) -> Result<(), StateError> {
        let mut times = 0;
        replace(folder, "a", bytes, &mut |open| {
            times += 1;
            if times <= failing { Err(io::Error::from_raw_os_error(5)) } else { open.sync_all() }
        })
    }

    #[test]
    fn what_is_not_durable_leaves_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        let refused = replace_failing(folder.path(), b"new", 1).unwrap_err();
        assert!(matches!(refused, StateError::Io { doing: "make durable", .. }), "{refused}");
        assert!(!file.exists(), "there was none");
        replace_failing(folder.path(), b"old", 0).unwrap();
        let refused = replace_failing(folder.path(), b"new", 1).unwrap_err();
        assert!(matches!(refused, StateError::Io { doing: "make durable", .. }), "{refused}");
        assert_eq!(fs::read(&file).unwrap(), b"old");
        // What is not there again durably may be either one after a loss of power.
        let unknown = replace_failing(folder.path(), b"new", 2).unwrap_err();
        assert!(matches!(&unknown, StateError::Unsettled { file: of, .. } if *of == file), "{unknown}");
        assert_eq!(fs::read(&file).unwrap(), b"old");
        replace_failing(folder.path(), b"newer", 0).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"newer");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left over");
    }
}
