//! What is kept of a lent drive: the device's own record, behind the layout it was made for.
//!
//! A file `drive.NAME`: eight bytes that stand for the layout as it was configured, then the record, which has a
//! checksum of its own. The layout is there so that another configuration does not find the namespaces of an earlier
//! one in its places.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use super::{StateError, file, io_error};
use crate::line::FunctionName;

/// Longest file read, in bytes: a record has some 20 KiB.
const BYTES_MAX: u64 = 64 << 10;

/// Why what is kept of a drive cannot be used.
pub enum Kept {
    /// Nothing is kept.
    Nothing,
    /// The record.
    Record(Vec<u8>),
    /// It was made for another layout.
    OtherLayout,
}

/// The file of a drive, for messages.
pub fn path(folder: &Path, name: &FunctionName) -> std::path::PathBuf {
    folder.join(format!("drive.{name}"))
}

/// What is kept of drive `name` for a layout.
///
/// # Errors
/// The file cannot be read, or is no such file.
pub fn read(folder: &Path, name: &FunctionName, layout: u64) -> Result<Kept, StateError> {
    let file = path(folder, name);
    let mut bytes = Vec::new();
    match File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::Nothing),
        Err(error) => return Err(io_error("open", &file)(error)),
        Ok(open) => open.take(BYTES_MAX).read_to_end(&mut bytes).map_err(io_error("read", &file))?,
    };
    let Some((of, record)) = bytes.split_first_chunk() else {
        return Err(StateError::Damaged { file, why: "it is too short" });
    };
    Ok(if u64::from_le_bytes(*of) == layout { Kept::Record(record.to_vec()) } else { Kept::OtherLayout })
}

/// Keeps the record of a drive durably, in place of the last one.
///
/// # Errors
/// The system said no; the last one is still there.
pub fn write(folder: &Path, name: &FunctionName, layout: u64, record: &[u8]) -> Result<(), StateError> {
    let bytes = [&layout.to_le_bytes()[..], record].concat();
    file::write_file(folder, &format!("drive.{name}"), &bytes)
}

/// Forgets a drive, so that it is made anew.
///
/// # Errors
/// The system said no.
pub fn forget(folder: &Path, name: &FunctionName) -> Result<(), StateError> {
    let file = path(folder, name);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", &file)(error)),
        _ => file::sync_folder(folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_belongs_to_its_layout() {
        let folder = tempfile::tempdir().unwrap();
        let name: FunctionName = "nvme0".parse().unwrap();
        assert!(matches!(read(folder.path(), &name, 1), Ok(Kept::Nothing)));
        write(folder.path(), &name, 1, b"first").unwrap();
        write(folder.path(), &name, 1, b"second").unwrap();
        assert!(matches!(read(folder.path(), &name, 1), Ok(Kept::Record(record)) if record == b"second"));
        assert!(matches!(read(folder.path(), &name, 2), Ok(Kept::OtherLayout)));
        fs::write(path(folder.path(), &name), b"short").unwrap();
        assert!(matches!(read(folder.path(), &name, 1), Err(StateError::Damaged { .. })));
        forget(folder.path(), &name).unwrap();
        forget(folder.path(), &name).unwrap();
        assert!(matches!(read(folder.path(), &name, 1), Ok(Kept::Nothing)));
    }
}
