//! Virtual machines with borrowed drives: an unmodified Linux in QEMU, its own NVMe driver, and what happens to the nodes meanwhile.

// The whole file is a test; an unwrap in one of its helpers is as good as one in a test function.
#![allow(clippy::unwrap_used)]

use campaign::causeway::{Lender, STOP_TIMEOUT, Slot, kill_card, status};
use campaign::world::{World, WorldConfig};
use campaign::{scale, tools};
use guest::{Kit, Message, Vm};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);

/// A lender on one machine, a borrower on the other one, with a virtual machine that has the drive from its start.
struct Bench {
    vm: Vm,
    slot: Slot,
    lender: Lender,
    world: World,
}

impl Bench {
    fn start(kit: &Kit, name: &str) -> Self {
        let world = World::new(&WorldConfig::default()).unwrap();
        let image = world.right().dir().join("disk.img");
        tools::empty_image(&image, 64 * MIB).unwrap();
        let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
        let slot = Slot::start_as(world.left(), "slot", &lender.lines[0], &[]).unwrap();
        let vm = Vm::builder(kit).name(name).device(&slot.device("v1", "rp1").to_string());
        let mut vm = vm.start().unwrap();
        vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        Self { vm, slot, lender, world }
    }

    #[track_caller]
    fn assert_no_trouble(&mut self) {
        assert_eq!(self.vm.kernel_trouble().unwrap(), Vec::<Message>::new());
    }

    fn end(self) {
        let Self { vm, mut slot, mut lender, world } = self;
        vm.shutdown().unwrap();
        assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
        assert!(!slot.socket.exists(), "an ended borrower leaves no socket");
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
        drop(world);
    }
}

fn fio(seconds: u32) -> String {
    let time = if seconds > 0 { format!("--time_based --runtime={seconds}") } else { String::new() };
    format!(
        "fio --name=job --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k \
         --size=16M --io_size=4M --verify=crc32c --verify_fatal=1 --verify_backlog=64 --thread {time} --output-format=json"
    )
}

#[track_caller]
fn assert_verified(report: &str) {
    let report: serde_json::Value = serde_json::from_str(report).unwrap_or_else(|_| panic!("{report}"));
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{report}");
    // What was written last is not verified any more when the time is over.
    let [written, read] = ["write", "read"].map(|way| job[way]["total_ios"].as_u64().unwrap());
    assert!(written > 0 && read + 64 >= written, "{report}");
}

#[test]
fn t1_a_drive_from_the_start() {
    let _exclusive = scale::exclusive();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, "cold");
    let list = bench.vm.check("nvme list").unwrap();
    assert!(list.contains("/dev/nvme0n1") && list.contains("67.11  MB"), "{list}");
    assert_verified(&bench.vm.check_for(LONG, &fio(0)).unwrap());
    let status = status(bench.world.left(), "slot").unwrap();
    assert_eq!(status["loans"][0]["edge"], format!("vfio-user:{}", bench.slot.socket.display()));
    bench.assert_no_trouble();
    bench.end();
}

/// Either card is killed again and again while a guest writes and verifies.
fn cards_killed(name: &str, of_lender: bool) {
    let _exclusive = scale::exclusive();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, name);
    let kills = scale::kills_of(10, 100);
    let job = bench.vm.start(&fio(kills * 2)).unwrap();
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(300 + u64::from(kill) * 37 % 400));
        let (machine, node) =
            if of_lender { (bench.world.right(), "lender") } else { (bench.world.left(), "slot") };
        kill_card(machine, node, RECOVERY_TIMEOUT).unwrap();
    }
    let output = bench.vm.wait(job, LONG).unwrap();
    assert_eq!(output.status, 0, "{}", output.text);
    assert_verified(&output.text);
    bench.assert_no_trouble();
    bench.end();
}

#[test]
fn t7_the_borrowers_card_killed_under_a_busy_guest() {
    cards_killed("killed-borrower", false);
}

#[test]
fn t7_the_lenders_card_killed_under_a_busy_guest() {
    cards_killed("killed-lender", true);
}

#[test]
fn tmp_long() {
    let _exclusive = scale::exclusive();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, "long");
    let seconds = std::env::var("FIO_S").unwrap_or("20".into()).parse().unwrap();
    let kills: u32 = std::env::var("KILLS").unwrap_or("0".into()).parse().unwrap();
    let job = bench.vm.start(&fio(seconds)).unwrap();
    for _ in 0..kills {
        std::thread::sleep(Duration::from_millis(300));
        kill_card(bench.world.left(), "slot", RECOVERY_TIMEOUT).unwrap();
    }
    for _ in 0..seconds + 15 {
        std::thread::sleep(Duration::from_secs(1));
        let log = bench.vm.console();
        if let Some(at) = log.find("mismatch") {
            let status = status(bench.world.left(), "slot").unwrap();
            let lender = status_of_lender(&bench);
            panic!(
                "{}\n{status:#}\n{lender:#}\n{}",
                &log[at - 200..(at + 2000).min(log.len())],
                bench.slot.process.tail()
            );
        }
        if bench.vm.has_ended(&job).unwrap() {
            break;
        }
    }
    let output = bench.vm.wait(job, Duration::from_secs(20)).unwrap();
    assert_verified(&output.text);
    eprintln!("{}", &output.text[..output.text.find("clat_ns").unwrap_or(1000)]);
    bench.assert_no_trouble();
    bench.end();
}

fn status_of_lender(bench: &Bench) -> serde_json::Value {
    status(bench.world.right(), "lender").unwrap()
}
