//! One small file: a line `VALUE CHECK`, replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
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

/// Replaces the value of `name`, durably, or leaves the old one.
pub(super) fn write_value(folder: &Path, name: &str, value: &str) -> Result<(), StateError> {
    write_file(folder, name, format!("{value} {:08x}\n", check(name, value)).as_bytes())
}

/// Replaces the content of `name`, durably, or leaves the old one.
pub(super) fn write_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), StateError> {
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
    let written = create.and_then(|mut open| open.write_all(bytes).and_then(|()| open.sync_all()));
    written.map_err(io_error("write", &temporary))?;
    fs::rename(&temporary, &file).map_err(io_error("replace", &file))?;
    sync_folder(folder)
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
    let (value, found) = line.split_once(' ').ok_or("its checksum is missing")?;
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
