//! The tools that drive and check a drive from outside: fio, nbdcopy, sha256sum.

use crate::Error;
use crate::process::{Process, run};
use crate::world::Machine;
use base::Random;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

/// One fio job with verification over NBD.
#[derive(Clone, Debug)]
pub struct FioJob<'a> {
    /// The export, as `borrow` prints it.
    pub uri: &'a str,
    /// `randrw`, `randwrite`, ..
    pub pattern: &'a str,
    /// Bytes of a request: `4k`, `512-64k`, ..
    pub block_size: &'a str,
    /// Requests in flight.
    pub depth: u32,
    /// First byte of the region.
    pub offset: u64,
    /// Bytes of the region; each is written once and verified.
    pub size: u64,
    /// Seed of the order and of the content.
    pub seed: u64,
}

impl FioJob<'_> {
    /// Starts it in `machine`: it writes, reads back, compares, and exits 0 only if all was right.
    pub fn start(&self, machine: &Machine, name: &str) -> Result<Process, Error> {
        let mut command = machine.command("fio");
        command.args(["--name=job", "--ioengine=nbd", "--output-format=json", "--eta=never"]);
        command.args(["--verify=crc32c", "--verify_fatal=1", "--verify_dump=0", "--do_verify=1", "--thread"]);
        command.arg(format!("--uri={}", self.uri));
        command.arg(format!("--rw={}", self.pattern));
        command.arg(range_or_size(self.block_size));
        command.arg(format!("--iodepth={}", self.depth));
        command.arg(format!("--offset={}", self.offset));
        command.arg(format!("--size={}", self.size));
        command.arg(format!("--randseed={}", self.seed));
        machine.spawn(name, command)
    }
}

/// Copies with nbdcopy, in either way between a file and an NBD address; waits for its end.
pub fn nbdcopy(machine: &Machine, from: &str, to: &str) -> Result<(), Error> {
    run(nbdcopy_command(machine, from, to)).map(drop)
}

/// The same, running while the test goes on.
pub fn start_nbdcopy(machine: &Machine, name: &str, from: &str, to: &str) -> Result<Process, Error> {
    machine.spawn(name, nbdcopy_command(machine, from, to))
}

/// The SHA-256 of a file, in hex.
pub fn sha256(path: &Path) -> Result<String, Error> {
    let mut command = Command::new("sha256sum");
    command.arg("--").arg(path);
    first_word(&run(command)?)
}

/// The SHA-256 of a file's first `length` bytes, in hex.
pub fn sha256_of_start(path: &Path, length: u64) -> Result<String, Error> {
    let mut command = Command::new("sh");
    command.args(["-c", "head -c \"$1\" -- \"$2\" | sha256sum", "sh", &length.to_string()]).arg(path);
    first_word(&run(command)?)
}

/// Makes a file of `length` bytes that no compression or luck can guess.
pub fn random_image(path: &Path, length: u64, seed: u64) -> Result<(), Error> {
    let what = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(path).map_err(Error::io(what()))?);
    let mut random = Random::new(seed);
    let mut chunk = vec![0; 1 << 16];
    let mut left = length;
    while left > 0 {
        let count = left.min(chunk.len() as u64) as usize;
        random.fill(&mut chunk[..count]);
        file.write_all(&chunk[..count]).map_err(Error::io(what()))?;
        left -= count as u64;
    }
    file.flush().map_err(Error::io(what()))
}

/// Makes a file of `length` zero bytes that takes no space yet.
pub fn empty_image(path: &Path, length: u64) -> Result<(), Error> {
    let file = File::create(path).map_err(Error::io(format!("cannot create {}", path.display())))?;
    file.set_len(length).map_err(Error::io(format!("cannot size {}", path.display())))
}

fn nbdcopy_command(machine: &Machine, from: &str, to: &str) -> Command {
    let mut command = machine.command("nbdcopy");
    command.args(["--flush", "--", from, to]);
    command
}

fn range_or_size(block_size: &str) -> String {
    let option = if block_size.contains('-') { "bsrange" } else { "bs" };
    format!("--{option}={block_size}")
}

fn first_word(output: &str) -> Result<String, Error> {
    let word = output.split_whitespace().next().filter(|word| word.len() == 64);
    word.map(str::to_owned).ok_or_else(|| Error::unexpected(format!("sha256sum printed {output:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_hash() {
        let path = std::env::temp_dir().join(format!("causeway-campaign-{}-abc", std::process::id()));
        std::fs::write(&path, "abcdef").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256_of_start(&path, 3).unwrap(), expected);
        assert_ne!(sha256(&path).unwrap(), expected);
        std::fs::remove_file(&path).unwrap();
        assert!(sha256(&path).is_err());
    }
}
