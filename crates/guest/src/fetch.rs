//! Fetching the kit, with something to look at meanwhile: it can take minutes.

use crate::Error;
use crate::scripts::Scripts;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// About how much is fetched, in bytes.
pub const FETCH_BYTES: u64 = 215 << 20;

/// How often whoever waits hears of it.
const TICK: Duration = Duration::from_millis(200);

/// What `fetch.sh` begins its lines with.
const PREFIX: &str = "guest: ";

/// What is told while the kit is fetched, see [`crate::Kit::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetching<'a> {
    /// A line for people: a step is done.
    Said(&'a str),
    /// So many bytes are here, of about [`FETCH_BYTES`].
    Bytes(u64),
}

/// Runs `fetch.sh` to its end, or until `progress` has enough.
pub(crate) fn fetch(
    scripts: &Scripts,
    mut progress: impl FnMut(Fetching<'_>) -> ControlFlow<()>,
) -> Result<(), Error> {
    let mut arrived = Arrived::new(PathBuf::from(scripts.run("fetch.sh", &["--where"])?.trim_end()));
    let mut command = scripts.command("fetch.sh");
    // A group of its own: apt is ended with it.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(Error::io("cannot run fetch.sh with bash"))?;
    let lines = read_lines(&mut child);
    let mut said = String::new();
    loop {
        let told = match lines.recv_timeout(TICK) {
            Ok(line) => {
                let line = line.strip_prefix(PREFIX).unwrap_or(&line);
                said.push_str(line);
                said.push('\n');
                progress(Fetching::Said(line))
            }
            Err(RecvTimeoutError::Timeout) => progress(Fetching::Bytes(arrived.bytes())),
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if told.is_break() {
            end(&mut child)?;
            return Err(Error::Abandoned);
        }
    }
    let status = child.wait().map_err(Error::io("cannot wait for fetch.sh"))?;
    if status.success() { Ok(()) } else { Err(Error::Missing(said.trim_end().to_owned())) }
}

/// It removes what it has begun.
fn end(child: &mut Child) -> Result<(), Error> {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Fails where all of it has ended.
        let _ = kill_process_group(group, Signal::TERM);
    }
    child.wait().map(drop).map_err(Error::io("cannot wait for fetch.sh"))
}

fn read_lines(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    if let Some(errors) = child.stderr.take() {
        // Ends when the script does, or when nobody listens any more.
        std::thread::spawn(move || {
            let lines = BufReader::new(errors).lines();
            lines.map_while(Result::ok).take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
    }
    lines
}

/// Adds up what apt has written, which is removed after each of its downloads.
struct Arrived {
    /// The script works beside it, in a folder whose name begins so.
    kit: PathBuf,
    before: u64,
    now: u64,
}

impl Arrived {
    fn new(kit: PathBuf) -> Self {
        Self { kit, before: 0, now: 0 }
    }

    fn bytes(&mut self) -> u64 {
        let now = self.beside().iter().map(|work| bytes_in(&work.join("apt/archives"))).sum();
        self.observe(now)
    }

    fn observe(&mut self, now: u64) -> u64 {
        if now < self.now {
            self.before += self.now;
        }
        self.now = now;
        self.before + now
    }

    fn beside(&self) -> Vec<PathBuf> {
        let (Some(cache), Some(name)) = (self.kit.parent(), self.kit.file_name()) else { return Vec::new() };
        let prefix = format!("{}.", name.to_string_lossy());
        let entries = fs::read_dir(cache).into_iter().flatten().flatten();
        let works = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        works.map(|entry| entry.path()).collect()
    }
}

/// What a folder of apt's holds: packages, and parts of them a level below.
fn bytes_in(folder: &Path) -> u64 {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let here = entries(folder);
    let all = here.chain(entries(&folder.join("partial")));
    all.filter_map(|entry| entry.metadata().ok()).filter(fs::Metadata::is_file).map(|file| file.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrived_goes_on_where_a_new_download_begins() {
        let mut arrived = Arrived::new(PathBuf::from("/none/kit"));
        assert_eq!(arrived.bytes(), 0);
        assert_eq!([10, 30, 30, 5, 25].map(|now| arrived.observe(now)), [10, 30, 30, 35, 55]);
    }

    #[test]
    fn packages_and_parts_of_them_are_counted() {
        let cache = std::env::temp_dir().join(format!("causeway-fetch-{}", std::process::id()));
        let archives = cache.join("kit.xyz/apt/archives");
        fs::create_dir_all(archives.join("partial")).unwrap();
        fs::write(archives.join("a.deb"), [0; 100]).unwrap();
        fs::write(archives.join("partial/b.deb"), [0; 11]).unwrap();
        fs::write(cache.join("kit.lock"), "").unwrap();
        assert_eq!(Arrived::new(cache.join("kit")).bytes(), 111);
        fs::remove_dir_all(cache).unwrap();
    }
}
