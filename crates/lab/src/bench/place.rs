//! Where a bench works: its private folder, and the images it lends.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use base::Random;
use program::exit::Failure;
use rustix::fs::{statfs, statvfs};

use crate::local::{Halt, Interrupt, Scratch};

/// Bytes of the image in memory, where there is room for it; a third of the free room otherwise.
const MEMORY_IMAGE: u64 = 1 << 30;
/// Bytes of the image on a disk.
const DISK_IMAGE: u64 = 256 << 20;
/// A smaller image would lie in the caches of the processors.
const LEAST_IMAGE: u64 = 16 << 20;
const CHUNK: usize = 1 << 20;
/// File systems whose files are memory (statfs(2)).
const MEMORY_FILE_SYSTEMS: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// An image with content, in a folder of its own that goes with it.
pub(super) struct Image {
    pub(super) path: PathBuf,
    _folder: Scratch,
}

/// An image on a file system in memory, or why there is none.
pub(super) fn in_memory(interrupt: &Interrupt) -> Result<Result<Image, String>, Halt> {
    let candidates = [PathBuf::from("/dev/shm"), std::env::temp_dir(), PathBuf::from("/run/shm")];
    let Some((folder, room)) = candidates.iter().find_map(|folder| Some((folder, room(folder, true)?)))
    else {
        return Ok(Err("no file system in memory was found (looked at /dev/shm and $TMPDIR)".to_owned()));
    };
    image(folder, MEMORY_IMAGE.min(room / 3), interrupt).map(Ok)
}

/// An image on a disk, in `preferred` if that is on one, or why there is none.
pub(super) fn on_disk(preferred: &Path, interrupt: &Interrupt) -> Result<Result<Image, String>, Halt> {
    let candidates = [preferred.to_owned(), std::env::temp_dir(), PathBuf::from("/var/tmp")];
    let Some((folder, room)) = candidates.iter().find_map(|folder| Some((folder, room(folder, false)?)))
    else {
        return Ok(Err("no disk was found to put an image on; choose one with --out".to_owned()));
    };
    image(folder, DISK_IMAGE.min(room / 3), interrupt).map(Ok)
}

/// Free bytes of a folder that is on such a file system and that we may write to.
fn room(folder: &Path, memory: bool) -> Option<u64> {
    let kind = statfs(folder).ok()?.f_type as u32;
    let space = statvfs(folder).ok()?;
    let writable = rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_ok();
    let free = space.f_bavail * space.f_frsize;
    (MEMORY_FILE_SYSTEMS.contains(&kind) == memory && writable && free >= 3 * LEAST_IMAGE).then_some(free)
}

fn image(folder: &Path, bytes: u64, interrupt: &Interrupt) -> Result<Image, Halt> {
    let folder = Scratch::create_in(folder, "bench")?;
    let path = folder.join("image");
    let bytes = bytes / CHUNK as u64 * CHUNK as u64;
    write(&path, bytes, interrupt)?;
    Ok(Image { path, _folder: folder })
}

/// Content that no layer can take for zeroes or compress.
fn write(path: &Path, bytes: u64, interrupt: &Interrupt) -> Result<(), Halt> {
    let failure =
        |error: std::io::Error| Failure::io(format_args!("cannot write {}", path.display()), &error);
    let mut file = File::create_new(path).map_err(failure)?;
    let (mut random, mut chunk) = (Random::new(1), vec![0; CHUNK]);
    for _ in 0..bytes / CHUNK as u64 {
        interrupt.check()?;
        random.fill(&mut chunk);
        file.write_all(&chunk).map_err(failure)?;
    }
    Ok(file.sync_all().map_err(failure)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_content_and_goes_with_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let image = image(folder.path(), (2 << 20) + 5, &Interrupt::default()).unwrap();
        let bytes = std::fs::read(&image.path).unwrap();
        assert_eq!(bytes.len(), 2 << 20);
        assert!(bytes.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
        drop(image);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
