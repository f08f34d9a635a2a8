//! The image that is lent: a private copy of the user's file, or one made for the demo, with the write area behind it.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base::Random;
use program::cli::ByteSize;
use program::exit::Failure;
use rustix::fs::SeekFrom;

use super::report::FileSystem;
use crate::local::{Halt, Interrupt, Scratch};
use crate::workload::{BLOCK, Model, fill};

/// Size of the image made where none is given, in bytes.
const MADE_BYTES: u64 = 64 << 20;
/// Of these, bytes of files; the rest is for the file system's own tables.
const FILE_BYTES: u64 = 44 << 20;
/// Sizes of those files, in bytes: from a note to a video.
const FILE_BYTES_MAX: u64 = 2 << 20;
const FOLDERS: u64 = 12;
/// Bytes behind it that are written to.
pub(super) const WRITE_AREA: u64 = 32 << 20;
/// Images are made of whole sectors.
const SECTOR: u64 = 512;
const CHUNK: usize = 1 << 20;
/// Superblock offset of ext2 to ext4, the offset of its magic number in it, and that number.
const EXT_MAGIC_AT: u64 = 1024 + 56;
const EXT_MAGIC: [u8; 2] = [0x53, 0xef];

/// The lent image and where it came from.
#[derive(Debug)]
pub(super) struct Image {
    /// The private copy, which the node lends.
    pub path: PathBuf,
    /// What it is, for a person.
    pub description: String,
    source: File,
    /// The user's file and how it looked before it was copied.
    given: Option<(PathBuf, Stamp)>,
}

#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
}

impl Image {
    /// Makes the image in the scratch folder.
    pub(super) fn prepare(
        scratch: &Scratch,
        given: Option<&Path>,
        seed: u64,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let (source_path, description) = match given {
            Some(path) => (path.to_owned(), format!("a copy of {}", path.display())),
            None => make(scratch, seed, interrupt)?,
        };
        let source = open_source(&source_path)?;
        let metadata = source.metadata().map_err(|error| io_failure("look at", &source_path, &error))?;
        let path = scratch.join("disk.img");
        let target = File::create_new(&path).map_err(|error| io_failure("create", &path, &error))?;
        copy(&source, &target, interrupt).map_err(|error| io_failure("copy the image to", &path, &error))?;
        interrupt.check()?;
        // The write area is a hole: only what is written takes space.
        let bytes = metadata.len().next_multiple_of(BLOCK) + WRITE_AREA;
        target.set_len(bytes).map_err(|error| io_failure("extend", &path, &error))?;
        let description = format!("{description} ({})", ByteSize(metadata.len()));
        let given = given.map(|path| (path.to_owned(), stamp(&metadata)));
        Ok(Self { path, description, source, given })
    }

    /// What the image must contain.
    pub(super) fn model(&self, seed: u64) -> Result<Model, Failure> {
        let source = self.source.try_clone();
        let model = source.and_then(|source| Model::behind(source, WRITE_AREA, seed));
        model.map_err(|error| Failure::io("cannot open the source a second time", &error))
    }

    /// The user's file, if somebody else has changed it since: differences may then be theirs.
    pub(super) fn changed_source(&self) -> Option<&Path> {
        let (path, before) = self.given.as_ref()?;
        let now = self.source.metadata().ok()?;
        (stamp(&now) != *before).then_some(path)
    }

    /// Size of what was given or made, in bytes; the write area comes behind it.
    pub(super) fn source_bytes(&self) -> Result<u64, Failure> {
        let metadata = self.source.metadata();
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| Failure::io("cannot look at the source", &error))
    }

    /// Whether it is a file system that `e2fsck` knows.
    pub(super) fn is_ext(&self) -> bool {
        let mut magic = [0; 2];
        self.source.read_exact_at(&mut magic, EXT_MAGIC_AT).is_ok() && magic == EXT_MAGIC
    }

    /// What `e2fsck -fn` says about the image. Nothing where there is no ext file system, or no `e2fsck`.
    pub(super) fn file_system_check(&self) -> Option<FileSystem> {
        if !self.is_ext() {
            return None;
        }
        let mut command = Command::new(find_tool("e2fsck")?);
        let output = command.arg("-fn").arg(&self.path).stdin(Stdio::null()).output().ok()?;
        Some(FileSystem::checked(output.status.success(), &String::from_utf8_lossy(&output.stdout)))
    }
}

fn open_source(path: &Path) -> Result<File, Failure> {
    let file = File::open(path).map_err(|error| io_failure("open", path, &error))?;
    let metadata = file.metadata().map_err(|error| io_failure("look at", path, &error))?;
    if !metadata.is_file() {
        return Err(Failure::refused(format_args!(
            "{} is not a file; the demo copies image files",
            path.display()
        )));
    }
    match metadata.len() {
        0 => Err(Failure::refused(format_args!("{} is empty; give an image with content", path.display()))),
        bytes if !bytes.is_multiple_of(SECTOR) => Err(Failure::refused(format_args!(
            "{} has {bytes} bytes, which is no multiple of {SECTOR}: a disk image is made of whole sectors",
            path.display()
        ))),
        _ => Ok(file),
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    Stamp { bytes: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) }
}

/// Shares the blocks where the file system can, else copies what is not a hole. An interruption ends it early.
fn copy(source: &File, target: &File, interrupt: &Interrupt) -> io::Result<()> {
    if rustix::fs::ioctl_ficlone(target, source).is_ok() {
        return Ok(());
    }
    let bytes = source.metadata()?.len();
    target.set_len(bytes)?;
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < bytes {
        let data = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Nothing but a hole is left.
            Err(rustix::io::Errno::NXIO) => break,
            // Not every file system knows its holes.
            Err(_) => at,
        };
        let hole = rustix::fs::seek(source, SeekFrom::Hole(data)).unwrap_or(bytes);
        at = data;
        while at < hole && !interrupt.is_set() {
            let length = (hole - at).min(CHUNK as u64) as usize;
            source.read_exact_at(&mut buffer[..length], at)?;
            target.write_all_at(&buffer[..length], at)?;
            at += length as u64;
        }
        if interrupt.is_set() {
            break;
        }
    }
    Ok(())
}

/// An ext4 image full of files, or a pattern where there is no `mke2fs` that can make one.
fn make(scratch: &Scratch, seed: u64, interrupt: &Interrupt) -> Result<(PathBuf, String), Halt> {
    let path = scratch.join("source.img");
    let Some(mke2fs) = find_tool("mke2fs") else {
        make_pattern(&path, seed)?;
        return Ok((path, "a patterned image, as mke2fs is not installed".to_owned()));
    };
    let tree = scratch.join("tree");
    let files = make_tree(&tree, seed, interrupt)?;
    let result = run_mke2fs(&mke2fs, &tree, &path);
    let removed = fs::remove_dir_all(&tree);
    removed.map_err(|error| io_failure("remove", &tree, &error))?;
    match result {
        Ok(()) => Ok((path, format!("an ext4 image with {files} files"))),
        Err(why) => {
            tracing::warn!("mke2fs makes no image ({why}); lending a pattern instead");
            make_pattern(&path, seed)?;
            Ok((path, "a patterned image, as mke2fs failed".to_owned()))
        }
    }
}

fn run_mke2fs(mke2fs: &Path, tree: &Path, path: &Path) -> Result<(), String> {
    let mut command = Command::new(mke2fs);
    command.args(["-q", "-F", "-t", "ext4", "-m", "0", "-L", "causeway-demo", "-d"]).arg(tree).arg(path);
    command.arg(format!("{}k", MADE_BYTES >> 10)).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Files of many sizes in a few folders; returns how many.
fn make_tree(tree: &Path, seed: u64, interrupt: &Interrupt) -> Result<u64, Halt> {
    for folder in 0..FOLDERS {
        let folder = tree.join(format!("folder-{folder:02}"));
        fs::create_dir_all(&folder).map_err(|error| io_failure("create", &folder, &error))?;
    }
    let mut random = Random::of(seed, "tree");
    let (mut files, mut bytes) = (0, 0);
    while bytes < FILE_BYTES {
        interrupt.check()?;
        // Two random factors: many small files, few large ones.
        let length = 1 + random.below(FILE_BYTES_MAX) * random.below(1000) / 1000;
        let length = length.min(FILE_BYTES - bytes);
        let path = tree.join(format!("folder-{:02}/file-{files:04}.bin", files % FOLDERS));
        let mut content = vec![0; length as usize];
        fill(seed, files, u32::MAX, &mut content);
        fs::write(&path, &content).map_err(|error| io_failure("write", &path, &error))?;
        files += 1;
        bytes += length;
    }
    Ok(files)
}

fn make_pattern(path: &Path, seed: u64) -> Result<(), Failure> {
    let written = File::create(path).and_then(|file| {
        let mut chunk = vec![0; CHUNK];
        for number in 0..MADE_BYTES / CHUNK as u64 {
            for (block, part) in chunk.chunks_exact_mut(BLOCK as usize).enumerate() {
                fill(seed, number << 32 | block as u64, u32::MAX, part);
            }
            file.write_all_at(&chunk, number * CHUNK as u64)?;
        }
        Ok(())
    });
    written.map_err(|error| io_failure("write", path, &error))
}

/// A program of `PATH`, or of the folders that only root has there.
fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        std::env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(OsStr::new(name))).find(|path| path.is_file())
}

fn io_failure(doing: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::io(format_args!("cannot {doing} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::exit::Exit;

    fn prepare(scratch: &Scratch, given: &Path) -> Result<Image, Failure> {
        Image::prepare(scratch, Some(given), 3, &Interrupt::default()).map_err(|halt| match halt {
            Halt::Failed(failure) => failure,
            Halt::Interrupted => panic!("nobody interrupts"),
        })
    }

    #[test]
    fn a_given_image_is_copied_with_its_holes_and_extended() {
        let scratch = Scratch::create("demo").unwrap();
        let given = scratch.join("given");
        let file = File::create(&given).unwrap();
        file.set_len((64 << 20) + 512).unwrap();
        file.write_all_at(&[7; 10_000], 5 << 20).unwrap();
        file.write_all_at(&[8; 512], 64 << 20).unwrap();
        let image = prepare(&scratch, &given).unwrap();
        let mut model = image.model(3).unwrap();
        assert_eq!(image.path.metadata().unwrap().len(), model.end());
        assert!(image.path.metadata().unwrap().blocks() * 512 < 4 << 20, "holes stay holes");
        let compared = model.check_file(&image.path, drop).unwrap();
        assert_eq!((compared.bytes, compared.corrupted), (model.end(), 0));
        assert_eq!(image.file_system_check(), None);
        assert_eq!(image.changed_source(), None);
        file.write_all_at(&[9], 0).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(image.changed_source(), Some(&*given));
    }

    #[test]
    fn what_is_no_image_is_refused_by_name() {
        let scratch = Scratch::create("demo").unwrap();
        let odd = scratch.join("odd");
        fs::write(&odd, [1; 1000]).unwrap();
        let empty = scratch.join("empty");
        fs::write(&empty, "").unwrap();
        for (path, why) in [
            (&odd, "multiple of 512"),
            (&empty, "is empty"),
            (&scratch.path().to_owned(), "not a file"),
            (&scratch.join("none"), "No such file"),
        ] {
            let failure = prepare(&scratch, path).unwrap_err();
            assert_eq!(failure.exit(), Exit::Refused);
            assert!(failure.message().contains(why), "{failure}");
            assert!(failure.message().contains(&*path.to_string_lossy()), "{failure}");
        }
    }

    #[test]
    fn the_image_made_for_the_demo_is_a_clean_file_system() {
        let scratch = Scratch::create("demo").unwrap();
        let Ok(image) = Image::prepare(&scratch, None, 3, &Interrupt::default()) else { panic!("no image") };
        assert!(image.description.starts_with("an ext4 image with"), "{}", image.description);
        let found = image.file_system_check().unwrap();
        assert!(found.clean && found.summary.contains("files"), "{found:?}");
        assert!(!scratch.join("tree").exists());
        let damage = File::options().write(true).open(&image.path).unwrap();
        damage.write_all_at(&[0x55; 8192], 4096).unwrap();
        assert!(!image.file_system_check().unwrap().clean);
    }

    #[test]
    fn a_pattern_replaces_it() {
        let scratch = Scratch::create("demo").unwrap();
        let path = scratch.join("pattern");
        make_pattern(&path, 3).unwrap();
        let content = fs::read(&path).unwrap();
        assert_eq!(content.len() as u64, MADE_BYTES);
        assert_ne!(content[..4096], content[4096..8192]);
        assert_ne!(content[..4096], content[CHUNK..CHUNK + 4096]);
    }
}
