//! What `tests/guest/fetch.sh` has fetched: QEMU, firmware, a kernel, an initramfs.

use crate::Error;
use crate::fetch::{Fetching, fetch};
use crate::scripts::Scripts;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The files that guests are made of.
#[derive(Clone, Debug)]
pub struct Kit {
    folder: PathBuf,
    initramfs: PathBuf,
}

impl Kit {
    /// Finds them, and makes the initramfs if this is the first time. Fetches nothing.
    pub fn find() -> Result<Self, Error> {
        Self::of(&Scripts::unpack()?)
    }

    /// Finds them, and fetches them first if they are not here: some 20 s. `progress` hears of that, and ends it with a
    /// break.
    pub fn fetch(progress: impl FnMut(Fetching<'_>) -> ControlFlow<()>) -> Result<Self, Error> {
        let scripts = Scripts::unpack()?;
        if scripts.run("fetch.sh", &["--check"]).is_err() {
            fetch(&scripts, progress)?;
        }
        Self::of(&scripts)
    }

    fn of(scripts: &Scripts) -> Result<Self, Error> {
        let path = |printed: String| PathBuf::from(printed.trim_end());
        let folder = path(scripts.run("fetch.sh", &["--where"])?);
        scripts.run("fetch.sh", &["--check"])?;
        for name in ["bin/qemu-system-x86_64", "kernel/vmlinuz", "root/usr/bin/busybox"] {
            if !folder.join(name).is_file() {
                let folder = folder.display();
                return Err(Error::Missing(format!(
                    "{folder}/{name} is missing; remove that folder, and all is fetched again"
                )));
            }
        }
        let initramfs = path(scripts.run::<&str>("initramfs.sh", &[])?);
        Ok(Self { folder, initramfs })
    }

    /// A program that was fetched: `qemu-system-x86_64`, `mke2fs` and so on.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// The guest's kernel.
    pub fn kernel(&self) -> PathBuf {
        self.folder.join("kernel/vmlinuz")
    }

    /// The guest's initramfs.
    pub fn initramfs(&self) -> &Path {
        &self.initramfs
    }

    /// Makes a drive's image of 64 MiB that [`crate::Boot::Bios`] and [`crate::Boot::Uefi`] start from. Its guest has
    /// busybox and the NVMe driver, nothing else.
    pub fn make_bootable(&self, image: &Path) -> Result<(), Error> {
        Scripts::unpack()?.run("bootable.sh", &[image]).map(drop)
    }

    /// A firmware image, such as `OVMF_CODE_4M.fd`.
    pub fn firmware(&self, name: &str) -> PathBuf {
        self.folder.join("host/firmware").join(name)
    }
}

/// The kit, or none where it cannot be had: then the test ends, and says why. With `CI=true` that is a failure.
pub fn kit() -> Option<Kit> {
    match Kit::find() {
        Ok(kit) => Some(kit),
        Err(why) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot be skipped with CI=true: {why}");
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            // Past the test runner, which hides what a test prints that did not fail.
            let _ = writeln!(std::io::stderr(), "SKIPPED: {test}: {why}");
            None
        }
    }
}
