//! T7: a guest writes and verifies while datagrams are lost, rails are cut, and cards are killed, each alone and all at
//! once. No I/O error, no wrong byte, no time-out and no reset in its kernel's log.

use base::Impairment;
use campaign::causeway::{Lender, STOP_TIMEOUT, Slot, card, kill_card, start_slot, status};
use campaign::host::{guest_fio, guest_fio_verified};
use campaign::process::{poll_until, stop};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, scale, tools};
use guest::{Job, Message, Vm};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);
const LOSS: Impairment = Impairment { drop_ppm: 10_000, ..Impairment::NONE };

/// A guest with a borrowed drive that writes and verifies, until it is told to end.
struct Bench {
    vm: Vm,
    job: Job,
    slot: Slot,
    lender: Lender,
    image: PathBuf,
    world: World,
    /// The longest that the guest's writes took to grow by what was asked for, in seconds.
    longest_s: f64,
}

impl Bench {
    /// The guest's driver waits so many seconds for a command.
    fn start(name: &str, driver_s: u32) -> Option<Self> {
        let kit = guest::kit()?;
        let seed = scale::first_seed();
        let world = World::new(&WorldConfig { seed, ..WorldConfig::default() }).unwrap();
        let image = world.right().dir().join("disk.img");
        tools::empty_image(&image, 24 * MIB).unwrap();
        let (lender, slot) = start_slot(&world, image.to_str().unwrap()).unwrap();
        let times = format!("nvme_core.io_timeout={driver_s} nvme_core.admin_timeout={driver_s}");
        let vm = Vm::builder(&kit).name(name).kernel_arguments(&times);
        let mut vm = vm.device(&slot.device("v1", "rp1").to_string()).start().unwrap();
        vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        let load = "--filename=/dev/nvme0n1 --bsrange=512-32k --iodepth=16 --size=24M --verify_backlog=64 \
                    --time_based --runtime=100000";
        let job = vm.start(&format!("echo $$ >/run/fio; exec {}", guest_fio(load))).unwrap();
        let mut bench = Self { vm, job, slot, lender, image, world, longest_s: 0.0 };
        bench.go_on(100);
        Some(bench)
    }

    /// Waits until the guest has written so many times more.
    #[track_caller]
    fn go_on(&mut self, writes: u64) {
        let start = Instant::now();
        let count = self.vm.check("awk '{ print $5 }' /sys/block/nvme0n1/stat").unwrap();
        let goal = count.trim().parse::<u64>().unwrap() + writes;
        self.vm.wait_for(LONG, &format!("awk '$5 < {goal} {{ exit 1 }}' /sys/block/nvme0n1/stat")).unwrap();
        self.longest_s = self.longest_s.max(start.elapsed().as_secs_f64());
        assert!(!self.vm.has_ended(&self.job).unwrap());
    }

    /// Kills the card of each side, and lets the guest go on after each.
    fn kill_both(&mut self, writes: u64) {
        kill_card(self.world.right(), "lender", RECOVERY_TIMEOUT).unwrap();
        self.go_on(writes);
        kill_card(self.world.left(), "slot", RECOVERY_TIMEOUT).unwrap();
        self.go_on(writes);
    }

    /// Waits until both sides see a rail as it is said.
    fn wait_rail(&self, rail: u8, state: &str) {
        let of = |machine: &Machine, name: &str| {
            poll_until(&format!("rail {rail} of {name} to be {state}"), LONG, || {
                Ok((status(machine, name)?["rails"][usize::from(rail)]["state"] == state).then_some(()))
            })
        };
        of(self.world.left(), "slot").unwrap();
        of(self.world.right(), "lender").unwrap();
    }

    /// The guest ends its work, has had no trouble, and finds on its drive what the lender's image has.
    fn end(mut self, name: &str) {
        self.world.relay().set_all(Impairment::NONE).unwrap();
        // Asked to end, fio says what it has done.
        self.vm.check("kill -INT $(cat /run/fio)").unwrap();
        let output = self.vm.wait(self.job, LONG).unwrap();
        let requests = guest_fio_verified(&output.text).unwrap();
        assert_eq!(self.vm.kernel_trouble().unwrap(), Vec::<Message>::new());
        let seen = self.vm.check("dd if=/dev/nvme0n1 bs=1M iflag=direct 2>/dev/null | sha256sum").unwrap();
        assert_eq!(seen.split(' ').next().unwrap(), tools::sha256(&self.image).unwrap());
        let network = self.world.relay().stats().unwrap().total();
        scale::report(&format!(
            "{name}: {requests} requests verified, longest step {:.2} s, {network:?}",
            self.longest_s
        ));
        self.vm.shutdown().unwrap();
        assert_eq!(self.slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", self.slot.process.tail());
        assert_eq!(self.lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", self.lender.process.tail());
    }
}

#[test]
fn t7_loss_cut_rails_and_killed_cards_under_a_busy_guest() {
    let _place = gate::computes();
    // The guest's driver is to find out soon what it waits for in vain.
    let Some(mut bench) = Bench::start("trouble", 5) else { return };
    bench.world.relay().set_all(LOSS).unwrap();
    bench.go_on(if scale::is_soak() { 50_000 } else { 1000 });
    assert!(bench.world.relay().stats().unwrap().total().dropped > 10, "nothing was lost");
    bench.world.relay().set_all(Impairment::NONE).unwrap();
    for rail in [0, 1] {
        bench.wait_rail(1 - rail, "up");
        bench.world.relay().set_rail(rail, Impairment::CUT).unwrap();
        bench.wait_rail(rail, "down");
        bench.go_on(300);
        bench.world.relay().set_rail(rail, Impairment::NONE).unwrap();
    }
    // All of it at once.
    bench.world.relay().set_all(LOSS).unwrap();
    let kills = scale::kills_of(4, 100);
    for kill in 0..kills {
        let rail = (kill % 2) as u8;
        bench.wait_rail(1 - rail, "up");
        bench.world.relay().set_rail(rail, Impairment::CUT).unwrap();
        bench.kill_both(50);
        bench.world.relay().set_rail(rail, LOSS).unwrap();
    }
    bench.end(&format!("t7 loss, cut rails and {kills} kills of either card"));
}

/// Longer than a register's read may take, shorter than the driver's patience: its commands take so much longer, and
/// that is all.
#[test]
fn w12_a_guest_does_not_see_an_outage_that_its_driver_waits_for() {
    const OUTAGE: Duration = Duration::from_secs(7);
    let _place = gate::computes();
    let Some(mut bench) = Bench::start("outage", 30) else { return };
    bench.world.relay().set_all(Impairment::CUT).unwrap();
    std::thread::sleep(OUTAGE);
    bench.world.relay().set_all(Impairment::NONE).unwrap();
    bench.go_on(300);
    // Cards that stand still are replaced.
    for (machine, name) in [(bench.world.left(), "slot"), (bench.world.right(), "lender")] {
        stop_card(machine, name);
    }
    bench.go_on(300);
    bench.end("an outage of 7 s, and a stopped card on either side");
}

/// Stops the card of a node, and waits for its successor.
fn stop_card(machine: &Machine, name: &str) {
    let before = card(&status(machine, name).unwrap()).unwrap();
    stop(before.pid.unwrap()).unwrap();
    poll_until("a new card", RECOVERY_TIMEOUT, || {
        let now = card(&status(machine, name)?)?;
        Ok((now.generation > before.generation && now.pid.is_some()).then_some(()))
    })
    .unwrap();
}
