//! A file on a real disk, driven through the agent's ring with direct I/O: the cards are killed while verified I/O goes
//! on, and nothing is lost or doubled.

use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, kill_card, status};
use campaign::load::{Load, Model, connect};
use campaign::nbd_client::Request;
use campaign::process::run;
use campaign::world::{World, WorldConfig};
use campaign::{gate, scale, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// A folder beside the test executables: the temporary directory may be in memory.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether io_uring is forbidden here: `status` must say `threads` exactly then.
fn expected_io() -> &'static str {
    let script = "import ctypes; libc = ctypes.CDLL(None); p = ctypes.create_string_buffer(120); \
                  print('ring' if libc.syscall(425, 8, p) >= 0 else 'threads')";
    let mut command = Command::new("python3");
    command.args(["-c", script]);
    if run(command).unwrap().trim() == "ring" { "ring" } else { "threads" }
}

fn is_in_memory(path: &Path) -> bool {
    let mut command = Command::new("stat");
    command.args(["--file-system", "--format=%T"]).arg(path);
    ["tmpfs", "ramfs"].contains(&run(command).unwrap().trim())
}

#[test]
fn killed_cards_on_a_real_disk() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("disk-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    assert!(!is_in_memory(&folder.0), "{} is in memory; set CARGO_TARGET_DIR to a disk", folder.0.display());
    let image = folder.0.join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    let world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
    let mut lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let now = status(world.right(), "lender").unwrap();
    assert_eq!(now["devices"][0]["io"], expected_io(), "{now}");

    let load = Load::start(&borrower.socket, Model::new(0, 8 * MIB, seed), 16).unwrap();
    let mut longest = Duration::ZERO;
    for number in 0..scale::kills(20) {
        load.wait_done(50, LONG).unwrap();
        let (machine, name) =
            if number % 3 == 2 { (world.left(), "borrower") } else { (world.right(), "lender") };
        load.take_longest_gap();
        kill_card(machine, name, LONG).unwrap();
        load.wait_done(50, LONG).unwrap();
        longest = longest.max(load.take_longest_gap());
    }
    let report = load.stop_whole(&borrower.socket).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    scale::report(&format!(
        "disk: seed {seed}, {} requests, longest gap around a kill {longest:?}",
        report.done
    ));
}

/// A file system in memory, until it is dropped: the machines have a `/dev/shm` of their own.
struct Mounted(PathBuf);

impl Mounted {
    fn memory(at: &Path) -> Self {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "memory"]).arg(at);
        run(command).unwrap();
        Self(at.into())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Bytes that a file takes up.
fn taken(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Zeroes free the space they cover; with NO_HOLE they take it up, in memory too, so that what is written there later
/// finds it.
#[test]
fn zeroes_with_no_hole_take_up_their_space() {
    for in_memory in [false, true] {
        let name = format!("holes-{}", std::process::id());
        let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        let mounted = in_memory.then(|| Mounted::memory(&folder.0));
        assert_eq!(is_in_memory(&folder.0), in_memory);
        let image = folder.0.join("disk.img");
        tools::empty_image(&image, 16 * MIB).unwrap();
        let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
        let mut lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
        let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
        let mut client = connect(&borrower.socket).unwrap();
        let mut zero = |no_hole| {
            let request = Request::WriteZeroes { offset: 0, length: 4 << 20, no_hole, fua: true };
            client.submit(request).unwrap();
            client.next_reply(&mut Vec::new()).unwrap().result.unwrap();
            taken(&image)
        };
        assert_eq!([true, false, true].map(&mut zero), [4 * MIB, 0, 4 * MIB], "{}", image.display());
        drop(client);
        assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
        drop((world, mounted));
    }
}
