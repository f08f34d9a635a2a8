//! A file on a file system that forgets what was not synchronised: [`LossyFs`] holds the process `causeway-lossy-fs`.

use crate::Error;
use crate::process::Process;
use crate::world::{Machine, support_program};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// A mounted file system with one file. Dropped, it is gone.
pub struct LossyFs {
    process: Process,
    image: PathBuf,
}

impl LossyFs {
    /// Mounts it in `machine`; its file has `size` bytes, zeroes at first, and durable ones.
    pub fn mount(machine: &Machine, size: u64) -> Result<Self, Error> {
        Self::mount_with(machine, size, &[])
    }

    /// The same behind the kernel's page cache, which writes back when it likes: see [`LossyFs::fail`].
    pub fn mount_cached(machine: &Machine, size: u64) -> Result<Self, Error> {
        Self::mount_with(machine, size, &["cached"])
    }

    fn mount_with(machine: &Machine, size: u64, arguments: &[&str]) -> Result<Self, Error> {
        Self::mount_at(machine, "lossy", size, arguments)
    }

    /// The same as [`LossyFs::mount`], or with `cached` among the arguments as [`LossyFs::mount_cached`], in a folder
    /// of this name.
    pub fn mount_at(machine: &Machine, name: &str, size: u64, arguments: &[&str]) -> Result<Self, Error> {
        let folder = machine.dir().join(name);
        std::fs::create_dir_all(&folder).map_err(Error::io(format!("cannot create {}", folder.display())))?;
        let mut command = machine.command(support_program("causeway-lossy-fs")?);
        command.arg(&folder).arg(size.to_string()).args(arguments);
        let log = machine.dir().join(format!("logs/{name}-fs.log"));
        let mut process = Process::spawn_piped(command, &log)?;
        process
            .wait_line("\"ready\" (FUSE allowed, /dev/fuse there)", ANSWER_TIMEOUT, |line| line == "ready")?;
        Ok(Self { process, image: folder.join("disk.img") })
    }

    /// The file, as the machine sees it. Outside of the machine it is not there.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Forgets every write that was not synchronised; how many pages of 4 KiB that were.
    pub fn forget(&mut self) -> Result<u64, Error> {
        self.command("forget")
    }

    /// From now on says yes to synchronisation and does nothing.
    pub fn lie(&mut self) -> Result<(), Error> {
        self.command("lie").map(drop)
    }

    /// The next write that comes to the file system fails, once; how many have failed before.
    pub fn fail(&mut self) -> Result<u64, Error> {
        self.command("fail")
    }

    /// How many writes have failed.
    pub fn failed(&mut self) -> Result<u64, Error> {
        self.command("failed")
    }

    fn command(&mut self, word: &str) -> Result<u64, Error> {
        let stdin = self.process.stdin().ok_or_else(|| Error::unexpected("no standard input"))?;
        writeln!(stdin, "{word}").map_err(Error::io("cannot command the file system"))?;
        let answer = self.process.wait_line("an answer", ANSWER_TIMEOUT, |_| true)?;
        answer.parse().map_err(|_| Error::unexpected(format!("the file system answered {answer:?}")))
    }
}
