//! Virtual machines with borrowed drives: an unmodified Linux in QEMU, its own NVMe driver, and what happens to the
//! nodes meanwhile.

use crate::bench::{Bench, LONG, MIB};
use campaign::causeway::{
    Lender, START_TIMEOUT, STOP_TIMEOUT, Slot, card, kill_card, number, slot_command, start_slot, status,
};
use campaign::process::{is_running, poll_until, run_to_end};
use campaign::world::{World, WorldConfig};
use campaign::{gate, scale, tools};
use guest::{Kit, Vm};
use serde_json::json;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);

/// A machine with a drive of 64 MiB.
fn start(kit: &Kit, name: &str) -> Bench {
    Bench::start(kit, name, |image| tools::empty_image(image, 64 * MIB).unwrap(), |vm| vm)
}

fn fio(seconds: u32) -> String {
    let time = if seconds > 0 { format!("--time_based --runtime={seconds}") } else { String::new() };
    format!(
        "fio --name=job --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k \
         --size=16M --io_size=4M --verify=crc32c --verify_fatal=1 --verify_backlog=64 --thread {time} \
         --output-format=json"
    )
}

/// Waits until the guest has written for a while.
fn wait_busy(bench: &mut Bench) {
    bench.vm.wait_for(LONG, "awk '$5 < 200 { exit 1 }' /sys/block/nvme0n1/stat").unwrap();
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
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = start(&kit, "cold");
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
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = start(&kit, name);
    let kills = scale::kills_of(10, 100);
    let job = bench.vm.start(&fio(kills * 2)).unwrap();
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(300 + u64::from(kill) * 37 % 400));
        let (machine, node) =
            if of_lender { (bench.world.right(), "lender") } else { (bench.world.left(), "slot") };
        kill_card(machine, node, RECOVERY_TIMEOUT).unwrap();
    }
    // The kills may be over long before fio is.
    let output = bench.vm.wait(job, LONG + Duration::from_secs(2 * u64::from(kills))).unwrap();
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

/// The guest's driver gives a dead drive up by itself.
const GIVE_UP: Duration = Duration::from_secs(60);

/// Takes the drive from the machine as stock QEMU survives it, and puts it into another port.
fn replug(vm: &mut Vm, slot: &Slot) {
    // Looking at the memory tree keeps QEMU 11.1 from an assertion; it says nothing when the device is gone.
    vm.qmp().human("info mtree -f").unwrap();
    vm.qmp().execute("device_del", json!({ "id": "v1" })).unwrap();
    vm.wait_for(GIVE_UP, "[ ! -e /dev/nvme0n1 ]").unwrap();
    vm.hot_add(slot.device("v2", "rp2")).unwrap();
    vm.wait_for(GIVE_UP, "ls /dev/nvme*n1").unwrap();
    vm.check("dd if=/dev/urandom of=$(ls /dev/nvme*n1) bs=64k count=4 oflag=direct").unwrap();
}

#[test]
fn t10_the_agent_killed_and_the_machine_lives() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = start(&kit, "agent");
    let orphan = card(&status(bench.world.left(), "slot").unwrap()).unwrap().pid.unwrap();
    let job = bench.vm.start(&fio(20)).unwrap();
    wait_busy(&mut bench);
    bench.slot.process.kill().unwrap();
    let output = bench.vm.wait(job, GIVE_UP).unwrap();
    assert_ne!(output.status, 0, "the drive is gone");
    assert_eq!(bench.vm.ended().unwrap(), None);
    assert!(is_running(orphan), "it serves its machine until that is gone");
    let line = bench.lender.lines[0].clone();
    bench.slot = Slot::start_as(bench.world.left(), "slot", &line, &[]).unwrap();
    replug(&mut bench.vm, &bench.slot);
    bench.end();
    poll_until("the orphan's end", STOP_TIMEOUT, || Ok((!is_running(orphan)).then_some(()))).unwrap();
}

#[test]
fn w1_a_borrower_that_ends_in_order_leaves_the_machine_alive() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = start(&kit, "term");
    let job = bench.vm.start(&fio(20)).unwrap();
    wait_busy(&mut bench);
    // No monitor of this machine is known, as is said once.
    let unguarded = bench.slot.process.tail().matches("nobody keeps the virtual machine").count();
    assert_eq!(unguarded, 1, "{}", bench.slot.process.tail());
    assert_eq!(bench.slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", bench.slot.process.tail());
    assert_ne!(bench.vm.wait(job, GIVE_UP).unwrap().status, 0, "the drive is gone");
    assert_eq!(bench.vm.ended().unwrap(), None);
    let line = bench.lender.lines[0].clone();
    bench.slot = Slot::start_as(bench.world.left(), "slot", &line, &[]).unwrap();
    replug(&mut bench.vm, &bench.slot);
    bench.end();
}

#[test]
fn x_wrong_sockets_are_refused_by_name() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let machine = world.left();
    let lender = Lender::start(machine, &["ram:1M"], &[]).unwrap();
    let line = &lender.lines[0];
    let slot = Slot::start_as(machine, "slot", line, &["--vm-mode", "0660", "--vm-group", "0"]).unwrap();
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&slot.socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    let refused = |name: &str, code: i32, arguments: &[&str], word: &str| {
        let command = slot_command(machine, name, line, arguments).unwrap();
        let outcome = run_to_end(command, &machine.dir().join("logs"), name, START_TIMEOUT).unwrap();
        assert_eq!(outcome.code, Some(code), "{outcome:?}");
        assert!(outcome.stderr.contains(word) && !outcome.stderr.contains("panicked"), "{outcome:?}");
        assert_eq!(outcome.stdout, "");
    };
    // The socket of node `X` lies at X.sock.
    std::os::unix::fs::symlink(&slot.socket, machine.dir().join("taken.sock")).unwrap();
    refused("taken", 3, &[], "taken.sock");
    std::fs::write(machine.dir().join("file.sock"), "text").unwrap();
    refused("file", 3, &[], "is no socket");
    refused("nobody", 2, &["--vm-owner", "no-such-user"], "no-such-user");
    std::os::unix::net::UnixListener::bind(machine.dir().join("used.sock")).map(std::mem::forget).unwrap();
    refused("used", 3, &[], "in use");
}

#[test]
fn x_a_second_client_is_sent_away_and_the_first_does_not_notice() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = start(&kit, "second");
    let job = bench.vm.start(&fio(3)).unwrap();
    for _ in 0..20 {
        let mut second = UnixStream::connect(&bench.slot.socket).unwrap();
        second.set_read_timeout(Some(LONG)).unwrap();
        // It may be sent away before it has said anything; what counts is that it sees an end, not a reset.
        let _ = second.write_all(&[0; 64]);
        assert_eq!(second.read(&mut [0; 64]).unwrap(), 0);
    }
    let output = bench.vm.wait(job, LONG).unwrap();
    assert_eq!(output.status, 0, "{}", output.text);
    assert_verified(&output.text);
    bench.assert_no_trouble();
    bench.end();
}

#[test]
fn x_memory_that_is_not_shared_is_named() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let (_lender, mut slot) = start_slot(&world, "ram:16M").unwrap();
    let vm = Vm::builder(&kit).name("private").argument("-object");
    let vm = vm.argument("memory-backend-memfd,id=private,size=512M,share=off");
    let vm = vm.argument("-machine").argument("memory-backend=private");
    let mut vm = vm.device(&slot.device("v1", "rp1").to_string()).start().unwrap();
    slot.process.wait_log("what is missing", LONG, |line| line.contains("share=on")).unwrap();
    // It is slow, and works: its machine is asked for all of it.
    vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    vm.check("dd if=/dev/urandom of=/tmp/data bs=64k count=32").unwrap();
    vm.check_for(LONG, "dd if=/tmp/data of=/dev/nvme0n1 bs=64k oflag=direct").unwrap();
    kill_card(world.left(), "slot", RECOVERY_TIMEOUT).unwrap();
    vm.check_for(
        LONG,
        "dd if=/dev/nvme0n1 of=/tmp/back bs=64k count=32 iflag=direct && cmp /tmp/data /tmp/back",
    )
    .unwrap();
    // More is under way than there is credit for, and the machine holds still for each register that is read.
    vm.check_for(
        LONG,
        "for i in 1 2 3 4 5 6 7 8; do dd if=/dev/nvme0n1 of=/dev/null bs=1M count=2 iflag=direct & done; \
         while pidof dd > /dev/null; do cat /sys/class/nvme/nvme0/device/config > /dev/null; done; wait",
    )
    .unwrap();
    assert_eq!(vm.kernel_trouble().unwrap(), Vec::<guest::Message>::new());
    let status = status(world.left(), "slot").unwrap();
    let counted = |name: &str| number(&status, &format!("/counters/{name}")).unwrap();
    assert!(counted("memory_messages") > 1000 && counted("failed_memory_messages") == 0, "{status:#}");
    vm.shutdown().unwrap();
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
}
