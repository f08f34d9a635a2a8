//! T2: a guest with a database on ext4, and a lender whose power fails again and again. Each transaction that the
//! database has reported is there afterwards, and database and file system are whole.

use campaign::causeway::{Lender, STOP_TIMEOUT, Slot};
use campaign::lossy::LossyFs;
use campaign::world::{World, WorldConfig};
use campaign::{gate, scale};
use guest::{Job, Kit, Vm};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);
/// The guest's driver finds out so late, in seconds, what it waits for in vain.
const DRIVER_S: u32 = 5;
/// Transactions that are reported before the power fails, and after that.
const BEFORE: u64 = 40;
const AFTER: u64 = 5;

/// Sqlite in the guest. What it reports goes to memory: a number when its transaction has been committed.
fn start_database(vm: &mut Vm, first: u64) -> Job {
    // Interactive, so that each line is written when there is one.
    vm.start(&format!(
        "i={first}; {{ echo 'PRAGMA synchronous=FULL;'; while [ ! -e /run/enough ]; do \
         echo \"INSERT INTO t VALUES($i, randomblob(60000)); SELECT 'done', $i;\"; i=$((i + 1)); \
         while [ $(( i - $(tail -c 4096 /run/reported | sed -n 's/.*done|//p' | tail -n 1) )) -gt 3 ]; do usleep 2000; \
         done; done; }} | sqlite3 -interactive -bail /mnt/db >>/run/reported 2>&1"
    ))
    .unwrap()
}

const REPORTED: &str = "tail -c 4096 /run/reported | sed -n 's/.*done|//p' | tail -n 1";

fn reported(vm: &mut Vm) -> u64 {
    vm.check(REPORTED).unwrap().trim().parse().unwrap()
}

/// Waits until so many more transactions are reported.
#[track_caller]
fn go_on(vm: &mut Vm, more: u64) {
    let goal = reported(vm) + more;
    vm.wait_for(LONG, &format!("test $({REPORTED}) -ge {goal}")).unwrap_or_else(|error| {
        panic!("{error}\n{}", vm.check("tail -n 5 /run/reported; dmesg | tail -n 20").unwrap())
    });
}

/// Everything is read from the drive again, and whole.
#[track_caller]
fn verify(vm: &mut Vm, first: u64) {
    let reported = reported(vm);
    vm.check("sync; echo 3 >/proc/sys/vm/drop_caches").unwrap();
    let found =
        vm.check("sqlite3 /mnt/db 'PRAGMA integrity_check; SELECT count(*), max(i) FROM t;'").unwrap();
    let (integrity, rows) = found.trim().split_once('\n').unwrap_or_else(|| panic!("{found}"));
    assert_eq!(integrity, "ok", "{found}");
    let (count, last) = rows.split_once('|').unwrap();
    let (count, last): (u64, u64) = (count.parse().unwrap(), last.parse().unwrap());
    assert!(
        first + count == last + 1 && last >= reported,
        "{first} to {reported} were reported, {count} are there, the last is {last}"
    );
}

fn rounds(kit: &Kit, count: u32) -> u64 {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let mut disk = LossyFs::mount(world.right(), 48 * MIB).unwrap();
    let image = disk.image().to_str().unwrap().to_owned();
    world.right().boot(0).unwrap();
    let mut lender = Lender::start(world.right(), &[&image], &[]).unwrap();
    let mut slot = Slot::start_as(world.left(), "slot", &lender.lines[0], &[]).unwrap();
    let times = format!("nvme_core.io_timeout={DRIVER_S} nvme_core.admin_timeout={DRIVER_S}");
    let vm = Vm::builder(kit).name("database").kernel_arguments(&times);
    let mut vm = vm.device(&slot.device("v1", "rp1").to_string()).start().unwrap();
    vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    vm.check("mkfs.ext4 -q /dev/nvme0n1 && mount /dev/nvme0n1 /mnt").unwrap();
    vm.check("sqlite3 /mnt/db 'PRAGMA journal_mode=WAL; CREATE TABLE t(i INTEGER PRIMARY KEY, data BLOB);'")
        .unwrap();
    vm.check("echo 'done|0' >/run/reported").unwrap();
    let mut forgotten = 0;
    for round in 1..=count {
        let first = reported(&mut vm) + 1;
        vm.check("sqlite3 /mnt/db 'DELETE FROM t;'").unwrap();
        let job = start_database(&mut vm, first);
        go_on(&mut vm, BEFORE);
        lender.process.kill_tree().unwrap();
        forgotten += disk.forget().unwrap();
        world.right().boot(round).unwrap();
        lender = Lender::start(world.right(), &[&image], &[]).unwrap();
        go_on(&mut vm, AFTER);
        vm.check("touch /run/enough").unwrap();
        let output = vm.wait(job, LONG).unwrap();
        assert_eq!(output.status, 0, "{}", output.text);
        vm.check("rm /run/enough").unwrap();
        verify(&mut vm, first);
    }
    vm.check("umount /mnt && e2fsck -fn /dev/nvme0n1").unwrap();
    let log = vm.kernel_log().unwrap();
    assert!(!log.iter().any(|message| message.text.contains("I/O error")), "{log:?}");
    vm.shutdown().unwrap();
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
    forgotten
}

#[test]
fn t2_no_commit_is_lost_with_the_power_of_the_lender() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let count = scale::kills_of(2, 30);
    let forgotten = rounds(&kit, count);
    scale::report(&format!(
        "t2: a database under {count} power failures of its lender, {forgotten} pages forgotten"
    ));
}
