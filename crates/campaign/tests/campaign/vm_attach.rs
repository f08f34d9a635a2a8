//! Functions that come to a running guest and go from it: `attach` and `detach`, with QEMU's own monitor.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use base::Impairment;
use campaign::causeway::{Lender, STOP_TIMEOUT, binary, kill_card, status};
use campaign::process::Process;
use campaign::world::{World, WorldConfig};
use campaign::{gate, tools};
use guest::{HotPlug, Kit, Message, Vm};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// A lender of two drives on one machine; on the other one a node with a slot, and a guest whose monitor it knows.
struct Bench {
    vm: Vm,
    node: Process,
    lender: Lender,
    world: World,
}

impl Bench {
    fn start(kit: &Kit, name: &str, hot_plug: HotPlug, remove_after_s: u32) -> Self {
        let world = World::new(&WorldConfig::default()).unwrap();
        let images = ["one", "two"].map(|name| world.right().dir().join(format!("{name}.img")));
        for (image, mib) in images.iter().zip([64, 96]) {
            tools::empty_image(image, mib * MIB).unwrap();
        }
        let images = images.each_ref().map(|image| image.to_str().unwrap());
        let lender = Lender::start(world.right(), &images, &[]).unwrap();
        let vm = Vm::builder(kit).name(name).hot_plug(hot_plug).start().unwrap();
        name_monitor(&world, &vm);
        std::fs::write(config(&world), domain(&world, &monitor(&world), remove_after_s)).unwrap();
        let node = start_node(&world);
        Self { vm, node, lender, world }
    }

    fn command(&self, arguments: &[&str]) -> Output {
        self.world.left().command(binary().unwrap()).args(arguments).output().unwrap()
    }

    #[track_caller]
    fn attach(&self, line: usize) {
        let output = self.command(&["attach", &self.lender.lines[line], "vm1/disk", "--name", "host"]);
        assert!(output.status.success(), "{output:?}\n{}", self.node.tail());
        assert!(output.stdout.starts_with(b"vfio-user:"), "{output:?}");
    }

    #[track_caller]
    fn detach(&self) {
        let output = self.command(&["detach", "vm1/disk", "--name", "host"]);
        assert!(output.status.success(), "{output:?}\n{}", self.node.tail());
    }

    #[track_caller]
    fn wait_drive(&mut self, mib: u64) {
        self.vm
            .wait_for(LONG, "ls /dev/nvme?n1")
            .unwrap_or_else(|error| panic!("{error}\n{}", self.node.tail()));
        let sectors = self.vm.check("cat /sys/block/nvme?n1/size").unwrap();
        assert_eq!(sectors.trim().parse::<u64>().unwrap(), mib * 2048);
    }

    #[track_caller]
    fn wait_no_drive(&mut self) {
        self.vm
            .wait_for(LONG, "test -z \"$(ls /dev | grep nvme.n1)\"")
            .unwrap_or_else(|error| panic!("{error}\n{}", self.node.tail()));
    }

    #[track_caller]
    fn assert_no_trouble(&mut self) {
        assert_eq!(self.vm.kernel_trouble().unwrap(), Vec::<Message>::new());
    }

    fn end(self) {
        let Self { vm, mut node, mut lender, world } = self;
        vm.shutdown().unwrap();
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
        drop(world);
    }
}

fn config(world: &World) -> PathBuf {
    world.left().dir().join("host.toml")
}

/// Where the node finds the machine's monitor, whichever machine that is.
fn monitor(world: &World) -> PathBuf {
    world.left().dir().join("qmp.sock")
}

fn name_monitor(world: &World, vm: &Vm) {
    let _ = std::fs::remove_file(monitor(world));
    std::os::unix::fs::symlink(vm.second_qmp(), monitor(world)).unwrap();
}

fn domain(world: &World, qmp: &Path, remove_after_s: u32) -> String {
    let dir = world.left().dir().display();
    format!(
        "state_dir = '{dir}/state-host'\n[[domains]]\nname = 'vm1'\nkind = 'vm'\nqmp = '{}'\nremove_after_s = \
         {remove_after_s}\n [[domains.slots]]\nname = 'disk'\nsocket = '{dir}/disk.sock'\nbus = 'rp1'\n",
        qmp.display()
    )
}

fn start_node(world: &World) -> Process {
    let mut command = world.left().command(binary().unwrap());
    command.args(["node", "--config"]).arg(config(world));
    let node = world.left().spawn("host", command).unwrap();
    let end = std::time::Instant::now() + LONG;
    while status(world.left(), "host").is_err() {
        assert!(std::time::Instant::now() < end, "{}", node.tail());
        std::thread::sleep(Duration::from_millis(20));
    }
    node
}

/// Two drives take turns in one slot; each has what was left on it.
fn take_turns(name: &str, hot_plug: HotPlug) {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, name, hot_plug, 20);
    for (round, (line, mib)) in [(0, 64), (1, 96), (0, 64), (1, 96)].into_iter().enumerate() {
        bench.attach(line);
        bench.wait_drive(mib);
        if round < 2 {
            bench
                .vm
                .check(&format!("echo mark-{line} | dd of=$(ls /dev/nvme?n1) bs=512 seek=9 conv=sync,fsync"))
                .unwrap();
        } else {
            let found = bench
                .vm
                .check("dd if=$(ls /dev/nvme?n1) bs=512 skip=9 count=1 iflag=direct | head -n 1")
                .unwrap();
            assert!(found.contains(&format!("mark-{line}")), "{found}");
        }
        if round == 1 {
            kill_card(bench.world.left(), "host", LONG).unwrap();
        }
        bench.detach();
        bench.wait_no_drive();
    }
    let taken = bench.command(&["detach", "vm1/disk", "--name", "host"]);
    assert_eq!(taken.status.code(), Some(3), "{taken:?}");
    bench.assert_no_trouble();
    bench.end();
}

#[test]
fn t2_hot_plug_with_acpi() {
    take_turns("attach-acpi", HotPlug::Acpi);
}

#[test]
fn t2_hot_plug_with_pciehp() {
    take_turns("attach-pciehp", HotPlug::Pciehp);
}

#[test]
fn w3_what_is_attached_comes_back_with_the_node() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, "attach-restart", HotPlug::Acpi, 20);
    for (slot, line, expected) in [
        ("vm1/other", 0, "it has vm1/disk"),
        ("vm2/disk", 0, "it has vm1/disk"),
        ("disk", 0, "write DOMAIN/SLOT"),
    ] {
        let refused = bench.command(&["attach", &bench.lender.lines[line], slot, "--name", "host"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(expected), "{said}");
    }
    bench.attach(1);
    bench.wait_drive(96);
    let twice = bench.command(&["attach", &bench.lender.lines[0], "vm1/disk", "--name", "host"]);
    assert_eq!(twice.status.code(), Some(3), "{twice:?}");
    assert_eq!(bench.node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", bench.node.tail());
    bench.node = start_node(&bench.world);
    bench.wait_no_drive();
    bench.wait_drive(96);
    bench.vm.check("dd if=$(ls /dev/nvme?n1) of=/dev/null bs=1M count=8 iflag=direct").unwrap();
    bench.detach();
    bench.wait_no_drive();
    bench.end();
}

#[test]
fn w3_a_machine_that_is_started_again_gets_its_function() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, "again", HotPlug::Acpi, 20);
    bench.attach(0);
    bench.wait_drive(64);
    for round in 0..2 {
        let Bench { vm, mut node, lender, world } = bench;
        vm.shutdown().unwrap();
        if round == 1 {
            // The node comes first, and finds no machine.
            assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
            node = start_node(&world);
            node.wait_log("a monitor that is not there", LONG, |line| line.contains("cannot reach QEMU"))
                .unwrap();
        }
        let vm = Vm::builder(&kit).name("again").start().unwrap();
        name_monitor(&world, &vm);
        bench = Bench { vm, node, lender, world };
        bench.wait_drive(64);
    }
    bench.assert_no_trouble();
    bench.end();
}

/// QEMU 11.1.3 ends with an assertion when such a device is taken out. It stays there, and the machine lives.
#[test]
fn a_device_that_is_not_enabled_stays_in_qemu() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, "disabled", HotPlug::Acpi, 20);
    bench.attach(0);
    bench.wait_drive(64);
    bench
        .vm
        .check(
            "device=$(basename $(readlink -f /sys/class/nvme/nvme?/device)); \
             echo $device >/sys/bus/pci/drivers/nvme/unbind; setpci -s $device COMMAND=0",
        )
        .unwrap();
    bench.detach();
    assert_eq!(bench.vm.check("echo alive").unwrap().trim(), "alive");
    let again = bench.command(&["attach", &bench.lender.lines[1], "vm1/disk", "--name", "host"]);
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(again.status.code() == Some(3) && said.contains("its guest has not enabled it"), "{again:?}");
    bench.vm.check("echo alive").unwrap();
    bench.detach();
    bench.end();
}

/// Its guest reads all-ones, and its kernel is told why by the port.
#[test]
fn a_function_that_does_not_answer_is_an_error_of_its_port() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, "silent", HotPlug::Pciehp, 20);
    bench.attach(0);
    bench.wait_drive(64);
    bench.world.relay().set_all(Impairment::CUT).unwrap();
    // The function itself is asked for it.
    let device = "$(basename $(readlink -f /sys/class/nvme/nvme?/device))";
    let status = bench.vm.check_for(LONG, &format!("setpci -s {device} STATUS")).unwrap();
    assert_eq!(status.trim(), "ffff");
    bench.world.relay().set_all(Impairment::NONE).unwrap();
    bench.vm.wait_for(LONG, "dmesg | grep 'AER: .*pcieport\\|AER:.*[Rr]ecovery'").unwrap();
    bench.vm.check_for(LONG, "dd if=$(ls /dev/nvme?n1) of=/dev/null bs=64k count=8 iflag=direct").unwrap();
    let log = bench.vm.kernel_log().unwrap();
    assert!(!log.iter().any(|message| message.text.contains("resetting controller")), "{log:?}");
    let counted = campaign::causeway::status(bench.world.left(), "host").unwrap();
    assert!(campaign::causeway::number(&counted, "/counters/client_timeouts").unwrap() > 0, "{counted}");
    bench.detach();
    bench.wait_no_drive();
    bench.end();
}

/// A guest that takes five seconds to let go, where it has one: its drive answers no more in the middle of its work.
#[test]
fn t3_a_function_is_taken_from_a_busy_guest() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut bench = Bench::start(&kit, "surprise", HotPlug::Pciehp, 1);
    for line in 0..2 {
        bench.attach(line);
        bench.wait_drive([64, 96][line]);
        let job = bench
            .vm
            .start("while dd if=/dev/zero of=$(ls /dev/nvme?n1) bs=64k count=64 oflag=direct; do :; done")
            .unwrap();
        bench.detach();
        bench.wait_no_drive();
        let output = bench.vm.wait(job, LONG).unwrap();
        assert!(output.text.contains("error") || output.text.contains("No such"), "{}", output.text);
        assert_eq!(bench.vm.check("echo alive").unwrap().trim(), "alive");
    }
    bench.end();
}
