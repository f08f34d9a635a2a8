//! Whether a larger machine costs more: 4 GiB of memory beside 512 MiB.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use guest::{Error, Kit, QmpError, Vm};
use program::exit::Failure;
use program::qemu_args::device;

use super::{DRIVE_TIMEOUT, Nodes, fio_command, halt};
use crate::bench::case::{GUEST_TRANSPORT, Work};
use crate::bench::core_to_core::round_trip_ns;
use crate::bench::report::Round;
use crate::bench::{in_turns, mean, usage};
use crate::local::{Halt, Interrupt, Scratch};

/// Memory of the large machine,
const LARGE_MIB: u32 = 4096;
/// and of the small one, which is the peer.
const SMALL_MIB: u32 = 512;
/// Memory that has to be free for both: neither uses all of its own.
const NEEDED_MIB: u64 = 6144;
const SOURCE: &str = "ram:64M";
/// What both guests do before the memory is looked at.
const WORK: Work = Work { bytes: 65536, write_percent: 30, sequential: false, depth: 32 };
const WORK_TIME: Duration = Duration::from_millis(500);
/// Until the borrower has noticed that a machine has gone.
const VACANT_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// Why a large machine cannot be had here, if so.
fn missing() -> Option<String> {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    (kib >> 10 < NEEDED_MIB).then(|| format!("less than {NEEDED_MIB} MiB of memory are free"))
}

/// A large and a small machine, each with nodes of its own.
pub(in crate::bench) struct Memory {
    large: Set,
    small: Set,
    rounds: u32,
}

struct Set {
    // Dropped in this order.
    vm: Vm,
    nodes: Nodes,
    drive: String,
    interrupt: Interrupt,
    _scratch: Scratch,
}

impl Memory {
    /// Starts both machines, each with a borrowed drive; or says why not.
    pub(in crate::bench) fn start(
        kit: &Kit,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Result<Self, String>, Halt> {
        if let Some(why) = missing() {
            return Ok(Err(why));
        }
        let large = Set::start(kit, LARGE_MIB, scratch, interrupt)?;
        let small = Set::start(kit, SMALL_MIB, scratch, interrupt)?;
        Ok(Ok(Self { large, small, rounds: 0 }))
    }

    /// MiB that the processes of both nodes have, after the same work: with the large machine, and with the small one.
    pub(in crate::bench) fn round(&mut self) -> Result<(Round, Round), Halt> {
        self.rounds += 1;
        in_turns(self.rounds - 1, self, |sets| sets.large.round(), |sets| sets.small.round())
    }

    /// Ends everything in order.
    pub(in crate::bench) fn stop(self) -> Result<(), Failure> {
        self.large.stop().and(self.small.stop())
    }
}

impl Set {
    fn start(kit: &Kit, mib: u32, scratch: &Scratch, interrupt: &Interrupt) -> Result<Self, Halt> {
        let scratch = Scratch::create_in(scratch.path(), "guest")?;
        let nodes = Nodes::start(Path::new(SOURCE), GUEST_TRANSPORT, &scratch, interrupt)?;
        let vm = Vm::builder(kit).name(&format!("bench-{mib}")).memory_mib(mib);
        let vm = vm.device(&device("borrowed", Some("rp1"), &nodes.socket).to_string()).start();
        let mut vm = vm.map_err(|error| halt(error, interrupt))?;
        let found =
            vm.wait_for(DRIVE_TIMEOUT, "cd /dev; ls nvme*n1").map_err(|error| halt(error, interrupt))?;
        let (drive, interrupt) = (found.trim().to_owned(), interrupt.clone());
        Ok(Self { vm, nodes, drive, interrupt, _scratch: scratch })
    }

    fn round(&mut self) -> Result<Round, Halt> {
        self.interrupt.check()?;
        // Through the page cache too, so that the drive writes to many pages of the guest.
        let read = format!("dd if=/dev/{} of=/dev/null bs=1M", self.drive);
        for command in [read, fio_command(&self.drive, WORK, WORK_TIME, "")] {
            self.vm.check(&command).map_err(|error| halt(error, &self.interrupt))?;
        }
        let pids: Vec<u32> = self.nodes.processes()?.iter().map(|(pid, _)| *pid).collect();
        let bytes = usage::resident_bytes(&pids) + usage::page_table_bytes(&pids);
        let value = bytes as f64 / f64::from(1 << 20);
        Ok(Round { value, core_to_core_ns: round_trip_ns(), ..Round::default() })
    }

    fn stop(self) -> Result<(), Failure> {
        self.vm.shutdown().map_err(super::failure)?;
        self.nodes.stop()
    }
}

/// A borrowed drive that is plugged into machines of both sizes, which do not run: only QEMU and the nodes work.
pub(in crate::bench) struct MapTimes {
    kit: Kit,
    nodes: Nodes,
    rounds: u32,
    interrupt: Interrupt,
    _scratch: Scratch,
}

impl MapTimes {
    /// Lends and borrows.
    pub(in crate::bench) fn start(kit: &Kit, scratch: &Scratch, interrupt: &Interrupt) -> Result<Self, Halt> {
        let scratch = Scratch::create_in(scratch.path(), "guest")?;
        let nodes = Nodes::start(Path::new(SOURCE), GUEST_TRANSPORT, &scratch, interrupt)?;
        Ok(Self { kit: kit.clone(), nodes, rounds: 0, interrupt: interrupt.clone(), _scratch: scratch })
    }

    /// Milliseconds until QEMU has plugged the drive in, all of the machine's memory mapped: a large one, and a small
    /// one.
    pub(in crate::bench) fn round(&mut self) -> Result<(Round, Round), Halt> {
        self.rounds += 1;
        let round = self.rounds - 1;
        in_turns(round, self, |times| times.plug(LARGE_MIB), |times| times.plug(SMALL_MIB))
    }

    fn plug(&self, mib: u32) -> Result<Round, Halt> {
        let before = round_trip_ns();
        let vm = Vm::builder(&self.kit).name(&format!("bench-{mib}")).memory_mib(mib).argument("-S").launch();
        let mut vm = vm.map_err(|error| halt(error, &self.interrupt))?;
        let device = device("borrowed", Some("rp1"), &self.nodes.socket);
        let deadline = Instant::now() + VACANT_TIMEOUT;
        loop {
            self.interrupt.check()?;
            let start = Instant::now();
            match vm.hot_add(device.clone()) {
                Ok(()) => {
                    let value = start.elapsed().as_secs_f64() * 1e3;
                    let core_to_core_ns = mean(before, round_trip_ns());
                    return Ok(Round { value, core_to_core_ns, ..Round::default() });
                }
                // The machine before this one is not gone yet.
                Err(Error::Qmp(QmpError::Refused { .. })) if Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                Err(error) => return Err(halt(error, &self.interrupt)),
            }
        }
    }

    /// Ends both nodes in order.
    pub(in crate::bench) fn stop(self) -> Result<(), Failure> {
        self.nodes.stop()
    }
}
