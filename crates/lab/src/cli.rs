//! The commands of the laboratory and their arguments.

use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use program::cli::{NodeName, OutputArgs, ProtectionArgs, Source};
use program::exit::Failure;
use program::line::LineArgument;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{bench, demo, load, sim_command};

/// The commands of the laboratory.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// See a borrowed drive survive loss, a cut rail and killed processes, on this machine alone
    Demo(DemoArgs),
    /// Measure, and write a report
    Bench(BenchArgs),
    /// Run the same node in virtual time under faults, and check it
    Sim(SimArgs),
    /// Borrow a drive and read or overwrite it for a while, with the card's own driver (for `bench`)
    #[command(name = "__load", hide = true)]
    Load(LoadArgs),
    /// The same on a driver and a drive in one process, or with system calls alone (for `bench`)
    #[command(name = "__native", hide = true)]
    Native(NativeArgs),
}

impl Command {
    /// Does what it says.
    ///
    /// # Errors
    /// Why it did not come to its end, or what it has found.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Self::Demo(args) => demo::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Sim(args) => sim_command::run(args, bench::commit()),
            Self::Load(args) => load::run(args),
            Self::Native(args) => load::native(args),
        }
    }
}

/// `causeway demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Lend a private copy of this image; the file itself is only read [default: one made for the demo]
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// Use the drive in a virtual machine, with fio in its guest. The first time QEMU and a Debian kernel are fetched
    /// with apt, 215 MB, as a user and without installing anything
    #[arg(long)]
    pub vm: bool,
    /// How long the phases are, in percent of what they are for people (for tests)
    #[arg(long, value_name = "PERCENT", default_value_t = 100, hide = true)]
    #[arg(value_parser = clap::value_parser!(u8).range(10..=100))]
    pub pace: u8,
    /// Seed of everything random, decimal or 0x... [default: chosen, and shown]
    #[arg(long, value_name = "N", value_parser = seed)]
    pub seed: Option<u64>,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The cases to run [default: all]
    #[arg(value_name = "CASE")]
    pub cases: Vec<String>,
    /// Folder for report.json and report.html
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    pub out: PathBuf,
    /// Rounds a case; each is kept in the report [default: each case's own number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rounds: Option<u32>,
    /// Compare with another build of this program, round by round; exit 1 where a case is slower than there
    #[arg(long, value_name = "PROGRAM")]
    pub against: Option<PathBuf>,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// The first seed, decimal or 0x... [default: chosen, and shown]
    #[arg(long, value_name = "N", value_parser = seed)]
    pub seed: Option<u64>,
    /// How many seeds to run, one after the other
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
    /// Disable one safety rule at a time, and show that the checkers find it
    #[arg(long)]
    pub canaries: bool,
    /// What to print.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `causeway __load`, which `bench` runs; no part of the outside surface.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The lines that `causeway lend` printed; `-` reads one from standard input, `@FILE` from a file
    #[arg(value_name = "LINE|-|@FILE", required = true)]
    pub lines: Vec<LineArgument>,
    /// What to do
    #[command(flatten)]
    pub work: WorkArgs,
    /// Name of this node [default: load]
    #[arg(long, value_name = "NAME")]
    pub name: Option<NodeName>,
    /// How frames are protected.
    #[command(flatten)]
    pub protection: ProtectionArgs,
    /// Interface that leads to a lender on Ethernet, one for each address that begins with `eth:`
    #[arg(long, value_name = "INTERFACE")]
    pub ethernet: Vec<String>,
    /// Do not share memory with a peer on this machine, but send it frames as to any other
    #[arg(long)]
    pub no_shm: bool,
    /// Where identity and incarnation are kept
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// `causeway __native`.
#[derive(Debug, Args)]
pub struct NativeArgs {
    /// Images in memory, or flash:IMAGE[?scale=N]; each gets a load of its own, all at once
    #[arg(value_name = "IMAGE", required = true, value_parser = OsStringValueParser::new().try_map(Source::from_os))]
    pub images: Vec<Source>,
    /// System calls alone, on one thread, on the first image
    #[arg(long)]
    pub plain: bool,
    /// What to do
    #[command(flatten)]
    pub work: WorkArgs,
}

/// What a load does.
#[derive(Debug, Clone, Copy, Args)]
pub struct WorkArgs {
    /// Bytes of each request
    #[arg(long, value_name = "N", default_value_t = 4096)]
    #[arg(value_parser = clap::value_parser!(u32).range(512..=i64::from(io::load::REQUEST_MAX)))]
    pub bytes: u32,
    /// How many of a hundred requests are writes, which overwrite the drive
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub write_percent: u8,
    /// One request after the other over the whole drive, instead of at random
    #[arg(long)]
    pub sequential: bool,
    /// Requests under way
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(io::load::DEPTH_MAX)))]
    pub depth: u16,
    /// How long to go on
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub seconds: f64,
}

/// A seed: decimal, or hexadecimal with `0x`.
fn seed(text: &str) -> Result<u64, &'static str> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a seed is a number of 64 bits, decimal or 0x...")
}

/// A duration in seconds, from a millisecond to an hour.
fn seconds(text: &str) -> Result<f64, &'static str> {
    let parsed = text.parse().ok().filter(|seconds| (0.001..=3600.0).contains(seconds));
    parsed.ok_or("a time is a number of seconds from 0.001 to 3600")
}

/// A seed where none was given, short enough to be typed.
pub(crate) fn choose_seed() -> Result<u64, Failure> {
    let mut bytes = [0; 4];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map_err(|error| Failure::io("cannot choose a seed", &error.into()))?;
    Ok(u32::from_le_bytes(bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use program::cli::Cli;

    #[test]
    fn wrong_usage_is_refused() {
        for wrong in
            ["demo --seed x", "bench --rounds 0", "sim --count 0", "__load", "__native a --seconds 0"]
        {
            let arguments = std::iter::once("causeway").chain(wrong.split_whitespace());
            let error = Cli::<Command>::try_parse_from(arguments).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{wrong}");
        }
    }
}
