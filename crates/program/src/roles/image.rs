//! Opening what is to be lent, and saying why it cannot be.

use std::path::Path;
use std::time::Duration;

use io::files::{Image, ImageOptions, OpenError, OpenRefusal};

use crate::cli::Source;
use crate::exit::{Exit, Failure};

/// How long a dead predecessor may hold the lock: until the kernel has ended its last writes.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Opens a source with its lock, which somebody else may hold for so long.
pub(super) fn open(
    source: &Source,
    read_only: bool,
    block_size: u32,
    patience: Duration,
) -> Result<Image, Failure> {
    if let Some(path) = source.path() {
        return open_path(path, source, read_only, block_size, patience);
    }
    let size = source.memory().expect("what is no file is memory");
    if !size.0.is_multiple_of(u64::from(block_size)) {
        return Err(Failure::usage(format!(
            "{source} is not a multiple of the block size {block_size}; choose a multiple"
        )));
    }
    Image::ram(size.0).map_err(|error| Failure::io(format!("cannot have {size} of memory"), &error))
}

fn open_path(
    path: &Path,
    source: &Source,
    read_only: bool,
    block_size: u32,
    lock_patience: Duration,
) -> Result<Image, Failure> {
    let options = ImageOptions {
        read_only,
        least_bytes: u64::from(block_size),
        unit_bytes: block_size,
        direct: true,
        lock_patience,
    };
    let image =
        Image::open(path, &options).map_err(|error| match (&error.reason, source.with_options()) {
            (OpenRefusal::Missing, Some(meant)) => Failure::new(
                exit_of(&error),
                format_args!("{error}; options of a flash card follow a question mark: {meant}"),
            ),
            _ => Failure::new(exit_of(&error), &error),
        })?;
    if !image.info().bytes.is_multiple_of(u64::from(block_size)) {
        return Err(Failure::usage(format!(
            "{} has {} bytes, which is not a multiple of the block size {block_size}; enlarge it with `truncate`",
            path.display(),
            image.info().bytes
        )));
    }
    Ok(image)
}

fn exit_of(error: &OpenError) -> Exit {
    match error.reason {
        OpenRefusal::TooSmall { .. } | OpenRefusal::NotBlocks { .. } => Exit::Usage,
        OpenRefusal::Interrupted => Exit::Done,
        _ => Exit::Refused,
    }
}
