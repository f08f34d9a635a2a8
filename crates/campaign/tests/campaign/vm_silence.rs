//! W12: a lender that stays dead. Its guest waits for it once and not for each register, a RAID1 of two lenders goes
//! on, and what the guest has given up is plugged in again when the lender is back.

use campaign::causeway::{Lender, STOP_TIMEOUT, binary, card, status};
use campaign::gate;
use campaign::host::Host;
use campaign::process::{poll_until, run_to_end};
use campaign::scale::Stalls;
use campaign::world::{World, WorldConfig};
use guest::{HotPlug, Kit, Vm};
use serde_json::Value;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);
/// Time-out of the guest's driver: shorter than usual, so that the test is.
const DRIVER_S: f64 = 6.0;
/// By so much more a write to a RAID1 may wait.
const BEYOND_DRIVER_S: f64 = 5.0;
/// So long a processor of the guest may stand still, in all.
const STANDSTILL_S: f64 = 5.0;
/// What counts as standing still.
const GAP_CS: u32 = 100;

/// Lenders on one machine; on the other one a node with a slot for each, and a guest whose monitor it knows.
struct Bench {
    vm: Vm,
    host: Host,
    lenders: Vec<Lender>,
    world: World,
}

const NAMES: [&str; 2] = ["one", "two"];

fn start_lender(world: &World, name: &str) -> Lender {
    Lender::start_image(world.right(), name, 32 * MIB).unwrap()
}

fn start(kit: &Kit, name: &str, hot_plug: HotPlug, names: &[&str], driver_s: f64) -> Bench {
    let world = World::new(&WorldConfig::default()).unwrap();
    let lenders: Vec<Lender> = names.iter().map(|name| start_lender(&world, name)).collect();
    let vm = Vm::builder(kit).name(name).hot_plug(hot_plug).modules(&["nvme", "raid1"]);
    let times = format!("nvme_core.io_timeout={driver_s} nvme_core.admin_timeout={driver_s}");
    let mut vm = vm.kernel_arguments(&times).start().unwrap();
    let dir = world.left().dir().display();
    let mut tables = format!(
        "[[domains]]\nname = 'vm1'\nkind = 'vm'\nqmp = '{}'\nremove_after_s = 20\n",
        vm.second_qmp().display()
    );
    for (name, port) in names.iter().zip(1..) {
        tables +=
            &format!("[[domains.slots]]\nname = '{name}'\nsocket = '{dir}/{name}.sock'\nbus = 'rp{port}'\n");
    }
    let host = Host::start_with(world.left(), &tables).unwrap();
    for (name, lender) in names.iter().zip(&lenders) {
        let mut command = world.left().command(binary().unwrap());
        command.args(["attach", &lender.lines[0], &format!("vm1/{name}"), "--name", Host::NAME]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}\n{}", host.process.tail());
    }
    vm.wait_for(LONG, &format!("test $(ls /dev | grep -c '^nvme.n1$') = {}", names.len())).unwrap();
    Bench { vm, host, lenders, world }
}

/// A process on each processor of the guest that notes when it was not run, in hundredths of a second.
fn watch_processors(vm: &mut Vm) {
    let watch = format!(
        "last=0; sum=0; while read -r up _ </proc/uptime; do now=${{up%.*}}${{up#*.}}; gap=$((now - last)); \
         if [ $last -gt 0 ] && [ $gap -gt {GAP_CS} ]; then sum=$((sum + gap)); echo $sum; fi; last=$now; usleep 50000; \
         done"
    );
    vm.check(&format!("cat >/run/watch <<'END'\n{watch}\nEND")).unwrap();
    for processor in 0..2 {
        vm.start(&format!("exec taskset -c {processor} sh /run/watch >/run/gaps{processor}")).unwrap();
    }
}

/// How long each processor has stood still, in seconds.
fn standstill(vm: &mut Vm) -> [f64; 2] {
    [0, 1].map(|processor| {
        let last = vm.check(&format!("tail -n 1 /run/gaps{processor}")).unwrap();
        last.trim().parse().map_or(0.0, |hundredths: f64| hundredths / 100.0)
    })
}

#[test]
fn w12_a_raid_goes_on_and_gets_its_drive_back() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let Bench { mut vm, host, mut lenders, world } = start(&kit, "raid", HotPlug::Acpi, &NAMES, DRIVER_S);
    let drives = vm.check("ls /dev/nvme?n1 | xargs").unwrap();
    let drives = drives.trim();
    vm.check(&format!(
        "export MDADM_NO_UDEV=1; mdadm --create /dev/md0 --run --level=1 --raid-devices=2 --assume-clean \
         --metadata=1.0 {drives}"
    ))
    .unwrap();
    watch_processors(&mut vm);
    let job = vm
        .start(
            "fio --name=job --filename=/dev/md0 --direct=1 --rw=randwrite --bs=4k --size=24M --rate_iops=40 --thread \
             --time_based --runtime=40 --output-format=json",
        )
        .unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let stalls = Stalls::watch();
    let killed = Instant::now();
    lenders[1].process.kill_tree().unwrap();
    vm.wait_for(LONG, "grep -e '\\[U_\\]' -e '\\[_U\\]' /proc/mdstat").unwrap();
    let degraded = killed.elapsed();
    let output = vm.wait(job, LONG).unwrap();
    let stalled_s = stalls.take_longest().as_secs_f64();
    let report: serde_json::Value =
        serde_json::from_str(&output.text).unwrap_or_else(|_| panic!("{}", output.text));
    assert_eq!((output.status, &report["jobs"][0]["error"]), (0, &serde_json::json!(0)), "{}", output.text);
    let longest_s = report["jobs"][0]["write"]["clat_ns"]["max"].as_f64().unwrap() / 1e9;
    let still_s = standstill(&mut vm);
    println!(
        "degraded after {degraded:?}; the longest write {longest_s:.1} s; the processors stood still {still_s:?} s; \
         this machine {stalled_s:.2} s"
    );
    assert!(longest_s < DRIVER_S + BEYOND_DRIVER_S + stalled_s, "a write waited {longest_s} s");
    assert!(
        still_s.iter().all(|still_s| *still_s < STANDSTILL_S + stalled_s),
        "processors stood still {still_s:?} s"
    );
    let log = vm.kernel_log().unwrap();
    assert!(!log.iter().any(|message| message.text.contains("soft lockup")), "{log:?}");

    // It comes back, as another drive to the guest: the old one has been given up.
    lenders[1] = start_lender(&world, NAMES[1]);
    let add = "mdadm /dev/md0 --remove failed; \
               for d in /dev/nvme?n1; do grep -q ${d#/dev/} /proc/mdstat || { mdadm /dev/md0 --add $d && exit 0; }; \
               done; exit 1";
    vm.wait_for(LONG, add).unwrap_or_else(|error| panic!("{error}\n{}", host.process.tail()));
    vm.wait_for(LONG, "grep '\\[UU\\]' /proc/mdstat").unwrap();
    vm.check("mdadm --stop /dev/md0").unwrap();
    end(vm, host, lenders);
}

/// Its guest lets go of a device five seconds after it was asked, and its port tells it of the time-out meanwhile.
#[test]
fn w12_a_drive_comes_back_with_pciehp() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let Bench { mut vm, host, mut lenders, world } =
        start(&kit, "away-pciehp", HotPlug::Pciehp, &NAMES[..1], 2.0);
    let written = vm
        .check(
            "dd if=/dev/urandom of=/run/data bs=64k count=16 2>/dev/null; \
             dd if=/run/data of=$(ls /dev/nvme?n1) bs=64k oflag=direct conv=fsync 2>/dev/null; md5sum </run/data",
        )
        .unwrap();
    let device = vm.check("basename $(readlink -f /sys/class/nvme/nvme?/device)").unwrap();
    watch_processors(&mut vm);
    let job = vm
        .start("while dd if=/dev/zero of=$(ls /dev/nvme?n1) bs=4k seek=512 count=64 oflag=direct; do :; done")
        .unwrap();
    let stalls = Stalls::watch();
    lenders[0].process.kill_tree().unwrap();
    vm.wait(job, LONG).unwrap();
    // The driver has waited for a register; now nobody waits any more.
    let mut read = |device: &str| {
        let asked = Instant::now();
        let command = format!("for i in $(seq 20); do setpci -s {device} STATUS; done | sort | uniq -c");
        let status = vm.check(&command).unwrap();
        (status.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), asked.elapsed())
    };
    let (status, took) = read(device.trim());
    // A guest that shares its processors with others takes long for twenty programs: as long for the host bridge.
    let (_, besides) = read("00:00.0");
    let stalled = stalls.take_longest();
    assert_eq!(status, ["20", "ffff"]);
    assert!(took < Duration::from_secs(2) + 3 * besides + stalled, "{took:?}, and {besides:?} of the bridge");

    lenders[0] = start_lender(&world, NAMES[0]);
    let compare = format!(
        "test \"$(dd if=$(ls /dev/nvme?n1) bs=64k count=16 iflag=direct 2>/dev/null | md5sum)\" = '{}'",
        written.trim()
    );
    vm.wait_for(LONG, &compare).unwrap_or_else(|error| panic!("{error}\n{}", host.process.tail()));
    let still_s = standstill(&mut vm);
    println!(
        "20 registers took {took:?}; the processors stood still {still_s:?} s; this machine {stalled:?}"
    );
    assert!(still_s.iter().all(|still_s| *still_s < STANDSTILL_S + stalled.as_secs_f64()), "{still_s:?} s");
    end(vm, host, lenders);
}

/// Nobody waits for a lender that stays away: the card that runs lets go of its function, and takes it again.
#[test]
fn w3_a_function_of_a_silent_lender_is_let_go_of_by_the_card_that_runs() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let Bench { mut vm, host, mut lenders, world } =
        start(&kit, "let-go", HotPlug::Acpi, &NAMES[..1], DRIVER_S);
    let machine = world.left();
    let before = card(&status(machine, Host::NAME).unwrap()).unwrap();
    let ask = |arguments: &[&str]| {
        let mut command = machine.command(binary().unwrap());
        command.args(arguments).args(["--name", Host::NAME]);
        run_to_end(command, &machine.dir().join("logs"), arguments[0], LONG).unwrap()
    };
    lenders[0].process.kill_tree().unwrap();
    let detached = ask(&["detach", "vm1/one"]);
    let is_vacant = |loan: &Value| loan["slot"] == "vm1/one" && loan["state"] == "vacant";
    poll_until("the slot to be vacant", LONG, || {
        let status = status(machine, Host::NAME)?;
        let loans = status["loans"].as_array().unwrap();
        Ok(loans.iter().all(is_vacant).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error}: {detached:?}\n{}", host.process.tail()));
    let events = ask(&["events", "-o", "json"]).stdout;
    assert!(events.contains("slot-abandoned"), "{events}");
    vm.wait_for(LONG, "test -z \"$(ls /dev | grep nvme.n1)\"").unwrap();
    lenders[0] = start_lender(&world, NAMES[0]);
    let attached = ask(&["attach", &lenders[0].lines[0], "vm1/one"]);
    assert_eq!(attached.code, Some(0), "{attached:?}\n{}", host.process.tail());
    vm.wait_for(LONG, "dd if=$(ls /dev/nvme?n1) of=/dev/null bs=4k count=1 iflag=direct").unwrap();
    let after = card(&status(machine, Host::NAME).unwrap()).unwrap();
    assert_eq!((after.pid, after.restarts), (before.pid, before.restarts), "the card goes on");
    end(vm, host, lenders);
}

fn end(vm: Vm, host: Host, lenders: Vec<Lender>) {
    let mut node = host.process;
    vm.shutdown().unwrap();
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    for mut lender in lenders {
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
    }
}
