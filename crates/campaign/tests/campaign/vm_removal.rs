//! T3: functions are taken from a guest that uses them, again and again, in order and by surprise. The guest lives,
//! what was on a drive is still there when it comes back, and neither node keeps anything of the rounds before.

use campaign::causeway::{Lender, STOP_TIMEOUT, card, status};
use campaign::host::{Domain, Host};
use campaign::process::{Process, poll_until};
use campaign::world::{World, WorldConfig};
use campaign::{gate, scale, tools};
use guest::{HotPlug, Kit, Vm};
use serde_json::Value;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);
/// The drives that take turns, in MiB.
const DRIVES: [u64; 2] = [64, 96];
/// What a kernel says that has come to harm.
const HARM: [&str; 6] = ["Call Trace", "BUG:", "Oops", "blocked for more than", "refcount", "WARNING:"];

/// How a function is taken away.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Removal {
    /// The guest is asked, and lets go.
    Orderly,
    /// It does not let go in time: its drive answers no more in the middle of its work.
    Surprise,
}

/// A lender of two drives; on the other machine a node with slots, and a guest whose monitor it knows.
struct Bench {
    vm: Vm,
    host: Host,
    lender: Lender,
    world: World,
    hot_plug: HotPlug,
    /// What each drive has in its first MiB, once it was written.
    content: [Option<String>; 2],
}

impl Bench {
    fn start(kit: &Kit, name: &str, hot_plug: HotPlug) -> Self {
        let world = World::new(&WorldConfig::default()).unwrap();
        let images = ["one", "two"].map(|name| world.right().dir().join(format!("{name}.img")));
        for (image, mib) in images.iter().zip(DRIVES) {
            tools::empty_image(image, mib * MIB).unwrap();
        }
        let images = images.each_ref().map(|image| image.to_str().unwrap());
        let lender = Lender::start(world.right(), &images, &[]).unwrap();
        let vm = Vm::builder(kit).name(name).root_ports(3).hot_plug(hot_plug).start().unwrap();
        let qmp = vm.second_qmp();
        // Both are the same machine: one gives its guest time, the other does not.
        let domains = [("patient", Some(&qmp), 30), ("hasty", Some(&qmp), 1), ("by-hand", None, 60)];
        let domains =
            domains.into_iter().zip(["rp1", "rp2", "rp3"]).map(|((name, qmp, remove_after_s), bus)| Domain {
                name,
                qmp: qmp.map(std::path::PathBuf::as_path),
                remove_after_s,
                bus,
            });
        let host = Host::start(world.left(), &domains.collect::<Vec<_>>()).unwrap();
        Self { vm, host, lender, world, hot_plug, content: [None, None] }
    }

    /// Runs `attach`; returns what it printed.
    #[track_caller]
    fn attach(&self, domain: &str, drive: usize) -> String {
        let output =
            Host::attach(self.world.left(), domain, &self.lender.lines[drive]).unwrap().output().unwrap();
        assert!(output.status.success(), "{output:?}\n{}", self.host.process.tail());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Begins `detach`.
    fn detach(&self, domain: &str) -> Process {
        let command = Host::detach(self.world.left(), domain).unwrap();
        self.world.left().spawn(&format!("detach-{domain}"), command).unwrap()
    }

    #[track_caller]
    fn wait_drive(&mut self, drive: usize) {
        let sectors = DRIVES[drive] * MIB / 512;
        let found = self.vm.wait_for(LONG, &format!("grep -x {sectors} /sys/block/nvme?n1/size"));
        found.unwrap_or_else(|error| panic!("{error}\n{}", self.host.process.tail()));
    }

    /// The drive is gone, the guest's work has ended, and the guest lives.
    #[track_caller]
    fn wait_no_drive(&mut self, job: guest::Job) {
        let gone = self.vm.wait_for(LONG, "test -z \"$(ls /dev | grep nvme.n1)\"");
        gone.unwrap_or_else(|error| panic!("{error}\n{}", self.host.process.tail()));
        self.vm.wait(job, LONG).unwrap();
        assert_eq!(self.vm.check("echo alive").unwrap(), "alive\n");
        let log = self.vm.kernel_log().unwrap();
        let harm: Vec<_> =
            log.iter().filter(|line| HARM.iter().any(|word| line.text.contains(word))).collect();
        assert!(harm.is_empty(), "{harm:#?}");
        self.vm.check("dmesg -c >/dev/null").unwrap();
    }

    /// The drive is what it was when it left, gets something else, and is then worked on behind that.
    #[track_caller]
    fn use_drive(&mut self, drive: usize) -> guest::Job {
        self.wait_drive(drive);
        let first = "dd if=$(ls /dev/nvme?n1) bs=64k count=16 iflag=direct 2>/dev/null | md5sum";
        let found = self.vm.check(first).unwrap();
        assert_eq!(*self.content[drive].get_or_insert_with(|| found.clone()), found, "drive {drive}");
        let write = "dd if=/dev/urandom bs=64k count=16 2>/dev/null >/run/first; \
                     dd if=/run/first of=$(ls /dev/nvme?n1) bs=64k oflag=direct conv=fsync 2>/dev/null; md5sum \
                     </run/first";
        self.content[drive] = Some(self.vm.check(write).unwrap());
        // Not verified: fio takes reads at a drive's end, which is where a drive that has gone ends, for what they were
        // to read. It says the same of QEMU's own drives.
        let load = "fio --name=load --filename=$(ls /dev/nvme?n1) --direct=1 --ioengine=libaio --rw=randrw \
                    --bsrange=4k-64k --iodepth=16 --offset=1M --thread --time_based --runtime=1000";
        let job = self.vm.start(load).unwrap();
        self.vm.wait_for(LONG, "awk '$5 < 200 { exit 1 }' /sys/block/nvme?n1/stat").unwrap();
        job
    }

    /// One function comes, is used, and goes. Returns how long `detach` took.
    #[track_caller]
    fn round(&mut self, number: u32, removal: Removal) -> f64 {
        let drive = number as usize % 2;
        let domain = if removal == Removal::Orderly { "patient" } else { "hasty" };
        self.attach(domain, drive);
        let job = self.use_drive(drive);
        // With ACPI a guest lets go at once: one that does not is one that stands still.
        let stands_still = removal == Removal::Surprise && self.hot_plug == HotPlug::Acpi;
        let start = Instant::now();
        let taken = |line: &str| line.contains("taken away");
        let before = self.count_log(taken);
        if stands_still {
            self.vm.qmp().execute("stop", Value::Object(Default::default())).unwrap();
        }
        let mut detach = self.detach(domain);
        if stands_still {
            poll_until("the function's end", LONG, || Ok((self.count_log(taken) > before).then_some(())))
                .unwrap();
            self.vm.qmp().execute("cont", Value::Object(Default::default())).unwrap();
        }
        let done = detach.wait_success(LONG);
        done.unwrap_or_else(|error| panic!("{error}\n{}", self.host.process.tail()));
        let took = start.elapsed().as_secs_f64();
        self.wait_no_drive(job);
        assert_eq!(self.count_log(taken) - before, usize::from(removal == Removal::Surprise), "{removal:?}");
        took
    }

    /// Lines of the node's log.
    fn count_log(&self, matches: impl Fn(&str) -> bool) -> usize {
        let log = std::fs::read_to_string(self.host.process.log()).unwrap();
        log.lines().filter(|line| matches(line)).count()
    }

    /// Descriptors that the borrowing node has open, agent and card together.
    fn descriptors(&self) -> usize {
        let card = card(&status(self.world.left(), Host::NAME).unwrap()).unwrap();
        let open = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        open(self.host.process.pid()) + open(card.pid.unwrap())
    }

    fn end(self) {
        let Self { vm, mut host, mut lender, world, .. } = self;
        // The lender hears of the last one in its own time.
        poll_until("the end of all loans", LONG, || {
            let lender = status(world.right(), "lender")?;
            let devices = lender["devices"].as_array().unwrap();
            Ok(devices.iter().all(|device| device["lent_to"].is_null()).then_some(()))
        })
        .unwrap();
        vm.shutdown().unwrap();
        assert_eq!(host.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", host.process.tail());
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    }
}

/// So many removals of both kinds in turns.
fn removals(name: &str, hot_plug: HotPlug, count: u32) {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, name, hot_plug);
    let (mut orderly, mut surprise, mut descriptors) = (Vec::new(), Vec::new(), 0);
    for number in 0..count {
        let (removal, times) = match number % 2 {
            0 => (Removal::Orderly, &mut orderly),
            _ => (Removal::Surprise, &mut surprise),
        };
        times.push(bench.round(number, removal));
        let open = bench.descriptors();
        // What the first rounds have opened may stay, and some are open for a moment. After that it is one connection a
        // round, which QEMU keeps: in agent and card.
        descriptors = if number < 4 { descriptors.max(open + 8) } else { descriptors + 2 };
        assert!(open <= descriptors, "{open} descriptors after round {number}, at most {descriptors}");
    }
    scale::report(&scale::spread(&format!("{name}: orderly removal"), orderly));
    scale::report(&scale::spread(&format!("{name}: surprise removal"), surprise));
    if hot_plug == HotPlug::Acpi {
        by_hand(&mut bench);
    }
    bench.end();
}

#[test]
fn t3_functions_come_and_go_with_acpi() {
    removals("removal-acpi", HotPlug::Acpi, scale::kills_of(3, 50));
}

/// Each takes seven seconds, most of which the guest waits for somebody to press its button again.
#[test]
fn t3_functions_come_and_go_with_pciehp() {
    removals("removal-pciehp", HotPlug::Pciehp, scale::kills_of(2, 50));
}

/// Without a monitor the node says what is to be typed; whoever types that has the same. Nobody tells the node that the
/// device has gone, as QEMU keeps its connection, but no driver has it any more.
fn by_hand(bench: &mut Bench) {
    let printed = bench.attach("by-hand", 0);
    let typed = printed.lines().find_map(|line| line.strip_prefix("over QMP: ")).expect(&printed);
    let typed: Value = serde_json::from_str(typed).unwrap();
    bench.vm.qmp().execute(typed["execute"].as_str().unwrap(), typed["arguments"].clone()).unwrap();
    let job = bench.use_drive(0);
    let mut detach = bench.detach("by-hand");
    let typed =
        detach.wait_line("what to type", LONG, |line| line.starts_with("in QEMU's monitor: ")).unwrap();
    for command in typed.trim_start_matches("in QEMU's monitor: ").split(", then ") {
        bench.vm.qmp().human(command).unwrap();
    }
    bench.wait_no_drive(job);
    let start = Instant::now();
    detach.wait_success(LONG).unwrap_or_else(|error| panic!("{error}\n{}", bench.host.process.tail()));
    let took = start.elapsed();
    assert!(took < Duration::from_secs(20), "`detach` took {took:?}");
}
