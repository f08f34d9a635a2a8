//! Real guests with borrowed drives: file systems that move, neighbours, nvme-cli, resets, boot, an IOMMU, and a lender
//! that is started again.

use campaign::causeway::{Lender, START_TIMEOUT, STOP_TIMEOUT, Slot, lend_command, number, status};
use campaign::process::poll_until;
use campaign::world::{World, WorldConfig};
use campaign::{gate, scale, tools};
use guest::{Boot, Builder, Kit, Message, Vm};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);

/// A lender of one drive on one machine; on the other one a borrower with a slot for each of its functions.
struct Rig {
    slots: Vec<Slot>,
    lender: Lender,
    image: PathBuf,
    world: World,
}

impl Rig {
    /// With `functions` of 0 the drive has a physical function alone.
    fn start(functions: usize, make_image: impl FnOnce(&Path)) -> Self {
        let world = World::new(&WorldConfig::default()).unwrap();
        let image = world.right().dir().join("disk.img");
        make_image(&image);
        let lender = lend(&world, &image, functions);
        let slots = (lender.lines.iter().enumerate())
            .map(|(index, line)| Slot::start_as(world.left(), &format!("slot{index}"), line, &[]).unwrap())
            .collect();
        Self { slots, lender, image, world }
    }

    fn empty(functions: usize, mib: u64) -> Self {
        Self::start(functions, |image| tools::empty_image(image, mib * MIB).unwrap())
    }

    fn device(&self, slot: usize) -> String {
        self.slots[slot].device("v1", "rp1").to_string()
    }

    fn denied(&self, slot: usize) -> u64 {
        let status = status(self.world.left(), &format!("slot{slot}")).unwrap();
        number(&status, "/counters/denied_accesses").unwrap()
    }

    fn end(self) {
        for mut slot in self.slots {
            assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
        }
        let mut lender = self.lender.process;
        assert_eq!(lender.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.tail());
    }
}

fn lend(world: &World, image: &Path, functions: usize) -> Lender {
    let image = image.to_str().unwrap();
    if functions == 0 {
        return Lender::start(world.right(), &[image], &[]).unwrap();
    }
    let arguments = ["--functions", &functions.to_string()];
    let command = lend_command(world.right(), "lender", &[image], &arguments).unwrap();
    let mut process = world.right().spawn("lender", command).unwrap();
    let is_line = |line: &str| line.starts_with("causeway://");
    let lines =
        (0..functions).map(|_| process.wait_line("a line", START_TIMEOUT, is_line).unwrap()).collect();
    Lender { process, lines }
}

/// A guest whose driver finds out soon what it waits for in vain.
fn builder(kit: &Kit, name: &str) -> Builder {
    Vm::builder(kit).name(name).kernel_arguments("nvme_core.io_timeout=5")
}

#[track_caller]
fn assert_no_trouble(vm: &mut Vm) {
    assert_eq!(vm.kernel_trouble().unwrap(), Vec::<Message>::new());
}

fn fio(what: &str) -> String {
    format!(
        "fio --name=job --direct=1 --ioengine=libaio --rw=randwrite --verify=crc32c --verify_fatal=1 --thread \
         --output-format=json {what}"
    )
}

/// Requests that ended, by fio's report of a job that verified.
#[track_caller]
fn assert_verified(report: &str) -> u64 {
    let report: Value = serde_json::from_str(report).unwrap_or_else(|_| panic!("{report}"));
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{report}");
    let [written, read] = ["write", "read"].map(|way| job[way]["total_ios"].as_u64().unwrap());
    assert!(written > 0 && read > 0, "{report}");
    written + read
}

/// Takes the drive out as stock QEMU survives it: looking at the memory tree keeps 11.1 from an assertion. It then says
/// nothing when the device is gone, and keeps its connection.
fn unplug(vm: &mut Vm) {
    vm.qmp().human("info mtree -f").unwrap();
    vm.qmp().execute("device_del", json!({ "id": "v1" })).unwrap();
    vm.wait_for(LONG, "[ ! -e /dev/nvme0n1 ]").unwrap();
}

#[test]
fn t4_a_file_system_moves_to_another_machine() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut rig = Rig::empty(0, 64);
    let mut first = builder(&kit, "move-1").device(&rig.device(0)).launch().unwrap();
    let mut second = builder(&kit, "move-2").launch().unwrap();
    first.wait_ready().unwrap();
    second.wait_ready().unwrap();
    first.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    let sum = "sha256sum /mnt/file";
    let written = first
        .check(&format!(
            "mkfs.ext4 -q /dev/nvme0n1 && mount /dev/nvme0n1 /mnt && \
             dd if=/dev/urandom of=/mnt/file bs=1M count=8 2>/dev/null && {sum} && umount /mnt"
        ))
        .unwrap();
    assert_eq!(written.len(), 64 + "  /mnt/file\n".len(), "{written}");
    unplug(&mut first);
    let mut slot = rig.slots.pop().unwrap();
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
    rig.slots.push(Slot::start_as(rig.world.left(), "other", &rig.lender.lines[0], &[]).unwrap());
    second.hot_add(rig.slots[0].device("v1", "rp1")).unwrap();
    second.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    let read = second.check(&format!("mount -o ro /dev/nvme0n1 /mnt && {sum} && umount /mnt")).unwrap();
    assert_eq!(read, written);
    second.check("e2fsck -fn /dev/nvme0n1").unwrap();
    for mut vm in [first, second] {
        assert_no_trouble(&mut vm);
        vm.shutdown().unwrap();
    }
    rig.end();
}

#[test]
fn t5_two_machines_on_two_virtual_functions() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let rig = Rig::empty(2, 64);
    let mut vms = [0, 1].map(|slot| {
        let builder = builder(&kit, &format!("function-{slot}"));
        builder.device(&rig.device(slot)).launch().unwrap()
    });
    for vm in &mut vms {
        vm.wait_ready().unwrap();
        vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        let sectors = vm.check("cat /sys/block/nvme0n1/size").unwrap();
        assert_eq!(sectors.trim().parse::<u64>().unwrap(), 32 * MIB / 512);
        let created = vm.run("nvme create-ns /dev/nvme0 --nsze=8 --ncap=8 --flbas=0").unwrap();
        assert_ne!(created.status, 0, "a virtual function manages no namespaces: {}", created.text);
    }
    let [mut noisy, mut quiet] = vms;
    let common = "--filename=/dev/nvme0n1 --verify_backlog=64 --time_based --runtime=4";
    let noise = noisy.start(&fio(&format!("{common} --bs=64k --iodepth=32 --size=16M"))).unwrap();
    noisy.wait_for(LONG, "awk '$5 < 100 { exit 1 }' /sys/block/nvme0n1/stat").unwrap();
    let report = quiet.check_for(LONG, &fio(&format!("{common} --bs=4k --iodepth=1 --size=8M"))).unwrap();
    let done = assert_verified(&report);
    let output = noisy.wait(noise, LONG).unwrap();
    assert_eq!(output.status, 0, "{}", output.text);
    println!("beside {} requests of the noisy one, {done} of the quiet one", assert_verified(&output.text));
    assert!(done > 100, "the quiet one has its share: {report}");
    assert_eq!([rig.denied(0), rig.denied(1)], [0, 0]);
    for mut vm in [noisy, quiet] {
        assert_no_trouble(&mut vm);
        vm.shutdown().unwrap();
    }
    rig.end();
}

/// What nvme-cli prints as JSON.
#[track_caller]
fn nvme(vm: &mut Vm, command: &str) -> Value {
    let text = vm.check(&format!("nvme {command} -o json 2>/dev/null")).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("nvme {command}: {text}"))
}

#[test]
fn t6_nvme_cli_in_the_guest() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let rig = Rig::empty(0, 64);
    let mut vm = builder(&kit, "nvme-cli").device(&rig.device(0)).start().unwrap();
    vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    read_what_it_is(&mut vm);
    format(&mut vm);
    let controller = nvme(&mut vm, "id-ctrl /dev/nvme0")["cntlid"].as_u64().unwrap();
    replace_the_namespace(&mut vm, controller);
    assert_no_trouble(&mut vm);
    vm.shutdown().unwrap();
    assert_eq!(rig.denied(0), 0);
    rig.end();
}

fn read_what_it_is(vm: &mut Vm) {
    let controller = nvme(vm, "id-ctrl /dev/nvme0");
    assert_eq!((&controller["nn"], &controller["ver"]), (&json!(128), &json!(0x2_0000)), "{controller}");
    let namespace = nvme(vm, "id-ns /dev/nvme0n1");
    assert_eq!(namespace["nsze"], 64 * MIB / 512, "{namespace}");
    assert_eq!(nvme(vm, "list-ns /dev/nvme0")["nsid_list"], json!([{ "nsid": 1 }]));
    assert!(vm.check("nvme list").unwrap().contains("67.11  MB"));

    let before = nvme(vm, "smart-log /dev/nvme0");
    vm.check("dd if=/dev/urandom of=/dev/nvme0n1 bs=64k count=16 oflag=direct").unwrap();
    let after = nvme(vm, "smart-log /dev/nvme0");
    let writes = |log: &Value| log["host_write_commands"].as_u64().unwrap();
    assert!(writes(&after) >= writes(&before) + 16, "{before}\n{after}");
    assert_eq!((&after["critical_warning"], &after["media_errors"]), (&json!(0), &json!(0)), "{after}");

    let refused = vm.run("nvme get-log /dev/nvme0 --log-id=0x7f --log-len=512").unwrap();
    assert_ne!(refused.status, 0, "{}", refused.text);
    let errors = nvme(vm, "error-log /dev/nvme0");
    assert!(errors["errors"][0]["error_count"].as_u64().unwrap() > 0, "{errors}");
    // Arbitration, power, temperature, number of queues, coalescing, vectors, atomicity and events.
    for feature in [1, 2, 4, 7, 8, 9, 0xa, 0xb] {
        vm.check(&format!("nvme get-feature /dev/nvme0 -f {feature}")).unwrap();
    }
    // A guest has no volatile write cache, and nothing to turn on or off.
    assert_eq!(controller["vwc"].as_u64().unwrap() & 1, 0, "{controller}");
    assert_ne!(vm.run("nvme get-feature /dev/nvme0 -f 6").unwrap().status, 0);
}

/// To blocks of 4 KiB and back; what was there is gone.
fn format(vm: &mut Vm) {
    let namespace = nvme(vm, "id-ns /dev/nvme0n1");
    let formats = namespace["lbafs"].as_array().unwrap();
    for bytes in [4096, 512] {
        let is_it = |format: &Value| format["ds"] == u64::from(u32::trailing_zeros(bytes));
        let Some(index) = formats.iter().position(is_it) else { continue };
        vm.check("dd if=/dev/urandom of=/dev/nvme0n1 bs=64k count=1 oflag=direct").unwrap();
        vm.check(&format!("nvme format /dev/nvme0n1 --lbaf={index} --force")).unwrap();
        let size = format!("[ $(cat /sys/block/nvme0n1/queue/logical_block_size) = {bytes} ]");
        vm.wait_for(LONG, &size).unwrap();
        let read = "dd if=/dev/nvme0n1 bs=64k count=1 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c";
        assert_eq!(vm.check(read).unwrap(), "0\n", "blocks of {bytes}");
    }
}

fn replace_the_namespace(vm: &mut Vm, controller: u64) {
    vm.check("nvme delete-ns /dev/nvme0 -n 1").unwrap();
    vm.wait_for(LONG, "[ ! -e /dev/nvme0n1 ]").unwrap();
    for (nsid, mib) in [(1, 16), (2, 32)] {
        let blocks = mib * MIB / 512;
        vm.check(&format!("nvme create-ns /dev/nvme0 --nsze={blocks} --ncap={blocks} --flbas=0")).unwrap();
        vm.check(&format!("nvme attach-ns /dev/nvme0 -n {nsid} -c {controller}")).unwrap();
        vm.check("nvme ns-rescan /dev/nvme0").unwrap();
        vm.wait_for(LONG, &format!("grep -x {} /sys/block/nvme0n{nsid}/size", blocks)).unwrap();
        let job = format!("--filename=/dev/nvme0n{nsid} --bs=4k --iodepth=4 --size=2M");
        assert_verified(&vm.check(&fio(&job)).unwrap());
    }
    assert_eq!(nvme(vm, "list-ns /dev/nvme0")["nsid_list"], json!([{ "nsid": 1 }, { "nsid": 2 }]));
    vm.check(&format!("nvme detach-ns /dev/nvme0 -n 2 -c {controller}")).unwrap();
    vm.wait_for(LONG, "[ ! -e /dev/nvme0n2 ]").unwrap();
}

#[test]
fn t8_a_machine_is_reset_under_load() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let rig = Rig::empty(0, 64);
    let mut vm = builder(&kit, "reset").resets().device(&rig.device(0)).start().unwrap();
    for _ in 0..scale::kills_of(2, 20) {
        vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        let load = "--filename=/dev/nvme0n1 --bs=4k --iodepth=32 --size=16M --time_based --runtime=100";
        vm.start(&fio(load)).unwrap();
        vm.wait_for(LONG, "awk '$5 < 200 { exit 1 }' /sys/block/nvme0n1/stat").unwrap();
        vm.qmp().execute("system_reset", json!({})).unwrap();
        vm.wait_ready().unwrap();
        vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        let load = "--filename=/dev/nvme0n1 --bs=4k --iodepth=32 --size=2M";
        assert_verified(&vm.check(&fio(load)).unwrap());
        assert_no_trouble(&mut vm);
    }
    vm.shutdown().unwrap();
    rig.end();
}

/// Starts a machine from the borrowed drive, resets it while it writes, and starts it from there again.
fn boots(name: &str, boot: Boot) {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let rig = Rig::start(0, |image| kit.make_bootable(image).unwrap());
    let mut device = rig.slots[0].device("v1", "rp1");
    device["bootindex"] = json!(0);
    let mut vm =
        Vm::builder(&kit).name(name).boot(boot).resets().device(&device.to_string()).start().unwrap();
    let firmware = if boot == Boot::Uefi { "[ -d /sys/firmware/efi ]" } else { "[ ! -d /sys/firmware/efi ]" };
    vm.check(&format!("{firmware} && touch /run/mark && ls /dev/nvme0n1p1")).unwrap();
    // The last MiB, which the image uses for nothing.
    let write = "dd if=/dev/zero of=/dev/nvme0n1 bs=64k seek=1008 count=16 oflag=direct 2>/dev/null";
    vm.start(&format!("while {write}; do :; done")).unwrap();
    vm.wait_for(LONG, "awk '$5 < 50 { exit 1 }' /sys/block/nvme0n1/stat").unwrap();
    vm.qmp().execute("system_reset", json!({})).unwrap();
    vm.wait_ready().unwrap();
    vm.check(&format!("{firmware} && [ ! -e /run/mark ] && ls /dev/nvme0n1p1")).unwrap();
    assert_no_trouble(&mut vm);
    vm.shutdown().unwrap();
    rig.end();
}

#[test]
fn t8_seabios_boots_from_a_borrowed_drive() {
    boots("seabios", Boot::Bios);
}

#[test]
fn t8_ovmf_boots_from_a_borrowed_drive() {
    boots("ovmf", Boot::Uefi);
}

/// Writes to the controller's registers behind the driver's back: it is enabled with queues that nobody mapped for it.
const STRAY: &str = r#"
set -e
device=$(basename $(readlink -f /sys/class/nvme/nvme0/device))
echo $device >/run/device
echo $device >/sys/bus/pci/drivers/nvme/unbind
setpci -s $device COMMAND=6
bar=$(head -n 1 /sys/bus/pci/devices/$device/resource | cut -d ' ' -f 1)
put() { devmem $((bar + $1)) 32 $2; }
put 0x14 0
put 0x24 0x001f001f
put 0x28 0x100000
put 0x2c 0
put 0x30 0x101000
put 0x34 0
put 0x14 0x00460001
until [ $(($(devmem $((bar + 0x1c)) 32) & 1)) = 1 ]; do usleep 10000; done
put 0x1000 1
"#;

#[test]
fn t9_an_iommu_limits_what_the_drive_reaches() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let rig = Rig::empty(0, 64);
    let vm = Vm::builder(&kit).name("iommu").device("intel-iommu,caching-mode=on");
    let vm = vm.kernel_arguments("nvme_core.io_timeout=5 intel_iommu=on iommu.strict=1");
    let mut vm = vm.device(&rig.device(0)).start().unwrap();
    vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    vm.check("ls /sys/class/iommu/dmar0/devices/*/nvme").unwrap();
    let load = fio("--filename=/dev/nvme0n1 --bs=16k --iodepth=8 --size=4M");
    assert_verified(&vm.check_for(LONG, &load).unwrap());
    assert_no_trouble(&mut vm);
    assert_eq!(rig.denied(0), 0);

    vm.check(STRAY).unwrap();
    poll_until("a denied access", LONG, || Ok((rig.denied(0) > 0).then_some(()))).unwrap();
    vm.check("cat /run/device >/sys/bus/pci/drivers/nvme/bind").unwrap();
    vm.wait_for(LONG, "ls /dev/nvme*n1").unwrap();
    let denied = rig.denied(0);
    vm.check("dd if=/dev/urandom of=$(ls /dev/nvme*n1) bs=64k count=4 oflag=direct").unwrap();
    assert_eq!(rig.denied(0), denied);
    vm.shutdown().unwrap();
    rig.end();
}

/// What a guest's driver may say when its controller has begun anew.
fn is_of_a_reset(message: &Message) -> bool {
    let text = &message.text;
    let is_driver = text.contains("nvme nvme") || text.contains("nvme 0000:");
    is_driver && !text.contains("I/O Error") && !text.contains("Removing") && !text.contains("Disabling")
}

#[test]
fn t11_the_lender_is_started_again_under_a_file_system() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let mut rig = Rig::empty(0, 64);
    let mut vm = builder(&kit, "restarted").device(&rig.device(0)).start().unwrap();
    vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
    vm.check("mkfs.ext4 -q /dev/nvme0n1 && mount /dev/nvme0n1 /mnt").unwrap();
    let write = "dd if=/dev/urandom of=/mnt/file bs=1M count=4 conv=fsync 2>/dev/null; sha256sum /mnt/file";
    let written = vm.check(write).unwrap();
    let load =
        "--directory=/mnt --bs=4k --iodepth=8 --size=8M --verify_backlog=64 --time_based --runtime=100000";
    let job = vm.start(&format!("echo $$ >/run/fio; exec {}", fio(load))).unwrap();
    for _ in 0..scale::kills_of(2, 20) {
        wait_written(&mut vm, 300);
        rig.lender.process.kill_tree().unwrap();
        rig.lender = lend(&rig.world, &rig.image, 0);
        wait_written(&mut vm, 300);
        assert!(!vm.has_ended(&job).unwrap());
    }
    // Asked to end, fio says what it has done.
    vm.check("kill -INT $(cat /run/fio)").unwrap();
    let output = vm.wait(job, LONG).unwrap();
    let report = output.text.find('{').map_or("", |begin| &output.text[begin..]);
    println!("{} requests", assert_verified(report));
    vm.check("umount /mnt && e2fsck -fn /dev/nvme0n1").unwrap();
    let read = vm.check("mount -o ro /dev/nvme0n1 /mnt && sha256sum /mnt/file && umount /mnt").unwrap();
    assert_eq!(read, written);
    let trouble = vm.kernel_trouble().unwrap();
    assert!(trouble.iter().all(is_of_a_reset), "{trouble:?}");
    println!("{trouble:#?}");
    vm.shutdown().unwrap();
    rig.end();
}

/// Waits until the guest has written so many times more.
fn wait_written(vm: &mut Vm, more: u64) {
    let count = vm.check("awk '{ print $5 }' /sys/block/nvme0n1/stat").unwrap();
    let goal = count.trim().parse::<u64>().unwrap() + more;
    vm.wait_for(LONG, &format!("awk '$5 < {goal} {{ exit 1 }}' /sys/block/nvme0n1/stat")).unwrap();
}
