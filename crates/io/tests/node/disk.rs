//! Places for images on real file systems.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder of this test's own, with an image in it.
pub(crate) struct Scratch {
    folder: PathBuf,
    mounted: bool,
}

impl Scratch {
    /// On the disk that holds the build.
    pub(crate) fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, mounted: false }
    }

    /// On an ext4 file system of its own of `bytes` bytes; the reason why there is none where that is not permitted.
    pub(crate) fn ext4(name: &str, bytes: u64) -> Result<Self, String> {
        Self::new(name).make_ext4(bytes)
    }

    /// As [`Scratch::ext4`], within the file system of `self`, which is then the disk below it.
    pub(crate) fn ext4_within(&self, bytes: u64) -> Result<Self, String> {
        let folder = self.path("within");
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, mounted: false }.make_ext4(bytes)
    }

    fn make_ext4(mut self, bytes: u64) -> Result<Self, String> {
        let container = self.path("container");
        std::fs::File::create(&container).unwrap().set_len(bytes).unwrap();
        let mount_point = self.mount_point();
        std::fs::create_dir_all(&mount_point).unwrap();
        run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-m", "0"]).arg(&container))?;
        run(Command::new("mount").args(["-o", "loop"]).args([&container, &mount_point]))?;
        self.mounted = true;
        Ok(self)
    }

    /// A file of this name: on the file system of its own, if there is one.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        if self.mounted { self.mount_point().join(name) } else { self.folder.join(name) }
    }

    /// An image of `bytes` bytes, all of it holes.
    pub(crate) fn image(&self, bytes: u64) -> PathBuf {
        let path = self.path("image");
        std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// Writes hang as long as the guard lives.
    pub(crate) fn freeze(&self) -> Result<Frozen, String> {
        let mount_point = self.mount_point();
        run(Command::new("fsfreeze").arg("-f").arg(&mount_point))?;
        Ok(Frozen { mount_point })
    }

    fn mount_point(&self) -> PathBuf {
        self.folder.join("mounted")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.mounted {
            // A card that was just killed may still use it.
            let _ = Command::new("umount").arg("-l").arg(self.mount_point()).output();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A file system that takes no writes for now.
pub(crate) struct Frozen {
    mount_point: PathBuf,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        run(Command::new("fsfreeze").arg("-u").arg(&self.mount_point)).unwrap();
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
