//! What a virtual machine has of a borrowed drive: an unmodified Linux in QEMU, with the drive borrowed over UDP or
//! shared memory, QEMU's own NVMe drive on the same image, and a local vfio-user device beside them.
//!
//! One machine serves all cases that follow each other: it takes some seconds to start. In the guest runs its own fio,
//! and what it prints comes back over the guest's shell. Registers are read by fio as well, with its engine `mmap` on
//! the function's `resource0`: each request of 4 bytes is one load from the register.

mod growth;
pub(super) mod local_device;
mod recovery;

use std::path::Path;
use std::time::Duration;

use guest::{Kit, Vm};
use program::exit::Failure;
use program::qemu_args::device;
use rustix::fs::{Mode, OFlags};

pub(super) use self::growth::{MapTimes, Memory};
use self::local_device::LocalDevice;
use super::case::{GuestCase, Transport, Work};
use super::core_to_core::round_trip_ns;
use super::peer;
use super::report::Round;
use super::watch::{BORROWER, LENDER, Watch, node_processes};
use crate::local::{Halt, Interrupt, Node, Scratch};

/// How long fio works in a round.
const DURATION: Duration = Duration::from_millis(1500);
/// How long registers are read in a round.
const READS: Duration = Duration::from_secs(1);
/// Until the guest's driver has found a drive.
const DRIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// Of QEMU's own drive, to tell the two apart.
const PEER_SERIAL: &str = "peer";
/// Drivers do not keep `resource0` from being mapped.
const KERNEL_ARGUMENTS: &str = "iomem=relaxed";

/// The kit that guests are made of, or why there is none.
pub(super) fn kit() -> Result<Kit, String> {
    Kit::find().map_err(|error| error.to_string())
}

/// The version of the kit's QEMU.
pub(super) fn version(kit: &Kit) -> String {
    let qemu = kit.program("qemu-system-x86_64");
    let version = qemu.to_str().and_then(peer::version).unwrap_or_default();
    let version = version.trim_start_matches("QEMU emulator version").trim();
    version.split_once(' ').map_or(version, |(number, _)| number).to_owned()
}

/// How QEMU drives an image fastest, of what was tried (docs/bench.md); before Linux 6.6 files in memory have no direct
/// I/O.
fn own_options(image: &Path) -> &'static str {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    match rustix::fs::open(image, flags, Mode::empty()) {
        Ok(_) => "cache=none,aio=native",
        Err(_) => "cache=writeback,aio=threads",
    }
}

/// A lender and a borrower with a slot.
struct Nodes {
    lender: Node,
    borrower: Node,
    socket: std::path::PathBuf,
}

impl Nodes {
    /// Lends `source`, and borrows it this way.
    fn start(
        source: &Path,
        transport: Transport,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let (lender, line) = Node::lend(scratch, source, 1, transport.options(), interrupt)?;
        let (borrower, socket) = Node::borrow_for_vm(scratch, &line, transport.options(), interrupt)?;
        Ok(Self { lender, borrower, socket })
    }

    fn processes(&self) -> Result<Vec<(u32, &'static str)>, Failure> {
        Ok([node_processes(&self.borrower, BORROWER)?, node_processes(&self.lender, LENDER)?].concat())
    }

    fn stop(self) -> Result<(), Failure> {
        self.borrower.stop().and(self.lender.stop())
    }
}

/// The guest with its drives.
pub(super) struct Guest {
    /// How its drive is borrowed.
    transport: Transport,
    // Dropped in this order: clients before those who serve them.
    vm: Vm,
    nodes: Nodes,
    local_device: LocalDevice,
    /// Names of block devices.
    borrowed_drive: String,
    own_drive: String,
    /// How QEMU drives the image.
    own_options: &'static str,
    /// Folders of functions in sysfs.
    borrowed_function: String,
    local_function: String,
    rounds: u32,
    interrupt: Interrupt,
    _scratch: Scratch,
}

impl Guest {
    /// Lends `image`, borrows it this way, and starts a machine that has it both ways.
    pub(super) fn start(
        kit: &Kit,
        image: &Path,
        transport: Transport,
        scratch: &Scratch,
        interrupt: &Interrupt,
    ) -> Result<Self, Halt> {
        let scratch = Scratch::create_in(scratch.path(), "guest")?;
        let nodes = Nodes::start(image, transport, &scratch, interrupt)?;
        let own_options = own_options(image);
        let local_socket = scratch.join("local.sock");
        let local_device = LocalDevice::start(&local_socket)?;
        let vm = Vm::builder(kit).name("bench").root_ports(3).kernel_arguments(KERNEL_ARGUMENTS);
        let vm = vm
            .device(&device("borrowed", Some("rp1"), &nodes.socket).to_string())
            .drive_with("own", image, &format!(",file.locking=off,{own_options}"))
            .device(&format!("nvme,serial={PEER_SERIAL},drive=own,bus=rp2"))
            .device(&device("local", Some("rp3"), &local_socket).to_string());
        let mut vm = vm.start().map_err(|error| halt(error, interrupt))?;
        let mut find = |command: &str| {
            let found = vm.wait_for(DRIVE_TIMEOUT, command).map_err(|error| halt(error, interrupt))?;
            Ok::<_, Halt>(found.trim().to_owned())
        };
        let own = find(&format!("cd /sys/class/nvme; grep -l {PEER_SERIAL} */serial | grep -o ^nvme[0-9]*"))?;
        let borrowed =
            find(&format!("cd /sys/class/nvme; grep -L {PEER_SERIAL} */serial | grep -o ^nvme[0-9]*"))?;
        let (borrowed_drive, own_drive) = (format!("{borrowed}n1"), format!("{own}n1"));
        find(&format!("ls /dev/{borrowed_drive} /dev/{own_drive}"))?;
        let [_, id] = local_device::IDS;
        let local = find(&format!("dirname $(grep -l {id:#06x} /sys/bus/pci/devices/*/device)"))?;
        Ok(Self {
            transport,
            vm,
            nodes,
            local_device,
            borrowed_drive,
            own_drive,
            own_options,
            borrowed_function: format!("/sys/class/nvme/{borrowed}/device"),
            local_function: local,
            rounds: 0,
            interrupt: interrupt.clone(),
            _scratch: scratch,
        })
    }

    /// How its drive is borrowed.
    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    /// One measurement of ours and one of the peer, ours first every other time: how many requests there were in a
    /// second, how many microseconds half of the reads of a register take at most, or how many milliseconds the longest
    /// request takes.
    pub(super) fn round(&mut self, case: GuestCase) -> Result<(Round, Round), Halt> {
        let round = self.rounds;
        self.rounds += 1;
        let side = |guest: &mut Self, is_ours: bool| {
            guest.interrupt.check()?;
            let before = round_trip_ns();
            let measured = match case {
                GuestCase::Traffic(_, work) => guest.fio(is_ours, work),
                GuestCase::Registers => guest.read_registers(is_ours),
                _ => guest.longest_request(is_ours.then_some(round)),
            }?;
            Ok(Round { core_to_core_ns: super::mean(before, round_trip_ns()), ..measured })
        };
        super::in_turns(round, self, |guest| side(guest, true), |guest| side(guest, false))
    }

    /// What a case is compared with, in words.
    pub(super) fn peer_version(&self, kit: &Kit, case: GuestCase) -> String {
        match case {
            GuestCase::Traffic(..) => format!("{}, {}", version(kit), self.own_options),
            _ => version(kit),
        }
    }

    /// The guest powers off, and both nodes end in order. Nothing may be wrong with it: its kernel's log says so.
    pub(super) fn stop(mut self) -> Result<(), Failure> {
        let trouble = self.vm.kernel_trouble().map_err(failure)?;
        if let Some(message) = trouble.first() {
            return Err(Failure::failed(format_args!("the guest's kernel says: {}", message.text)));
        }
        self.vm.shutdown().map_err(failure)?;
        let stopped = self.nodes.stop();
        drop(self.local_device);
        stopped
    }

    fn fio(&mut self, is_borrowed: bool, work: Work) -> Result<Round, Halt> {
        let drive = if is_borrowed { &self.borrowed_drive } else { &self.own_drive };
        let command = fio_command(drive, work, DURATION, "");
        self.run_fio(&command, |done| done.iops)
    }

    fn read_registers(&mut self, is_borrowed: bool) -> Result<Round, Halt> {
        let path = if is_borrowed { &self.borrowed_function } else { &self.local_function };
        let command = format!(
            "echo 1 >{path}/enable; ln -sf {path}/resource0 /run/registers; \
             fio --name=registers --filename=/run/registers --ioengine=mmap --rw=read --bs=4 --size=4 --invalidate=0 \
             --norandommap --time_based --runtime={}ms {FIO_OUTPUT}",
            READS.as_millis()
        );
        self.run_fio(&command, |_| 0.0)
            .map(|round| Round { value: round.p50_us.unwrap_or_default(), ..round })
    }

    /// Runs fio in the guest, and counts whose processor time that took.
    fn run_fio(&mut self, command: &str, value: fn(&peer::Measured) -> f64) -> Result<Round, Halt> {
        let processes = [vec![(self.vm.pid(), "QEMU")], self.nodes.processes()?].concat();
        let watch = Watch::begin(&processes);
        let text = self.vm.check(command).map_err(|error| halt(error, &self.interrupt))?;
        let (cpu_shares, cpu) = watch.end(&[]);
        let done = peer::parse(&text)?;
        let round = Round {
            value: value(&done),
            cpu_us_per_io: Some(cpu.as_secs_f64() * 1e6 / done.count as f64),
            cpu_shares,
            ..Round::default()
        };
        Ok(round.with_latencies(done.latencies_us))
    }
}

const FIO_OUTPUT: &str = "--thread --clat_percentiles=0 --lat_percentiles=1 --output-format=json";

/// fio on a drive of the guest, past its page cache.
fn fio_command(device: &str, work: Work, duration: Duration, more: &str) -> String {
    format!(
        "fio --name=causeway --filename=/dev/{device} --direct=1 --ioengine=io_uring --norandommap --randrepeat=0 \
         --time_based --runtime={}ms --rw={} --rwmixread={} --bs={} --iodepth={} {more} {FIO_OUTPUT}",
        duration.as_millis(),
        peer::pattern(work),
        100 - work.write_percent,
        work.bytes,
        work.depth
    )
}

fn failure(error: guest::Error) -> Failure {
    Failure::failed(format_args!("the guest: {error}"))
}

/// On Ctrl-C a terminal ends QEMU as well.
fn halt(error: guest::Error, interrupt: &Interrupt) -> Halt {
    if interrupt.is_set() { Halt::Interrupted } else { failure(error).into() }
}
