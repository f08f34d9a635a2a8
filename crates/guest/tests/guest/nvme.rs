//! Guests work: shown with QEMU's own NVMe drive, so that whatever fails elsewhere is not the harness.

use guest::{Builder, Error, HotPlug, Kit, Message, Vm};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const IMAGE_BYTES: u64 = 64 << 20;

/// pciehp's guest waits five seconds before it lets a device go.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// An image that is gone with the test.
struct Image(PathBuf);

impl Image {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("causeway-guest-{}-{name}.img", std::process::id()));
        File::create(&path).unwrap().set_len(IMAGE_BYTES).unwrap();
        Self(path)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn start(builder: Builder) -> Vm {
    let begun = Instant::now();
    let vm = builder.start().unwrap();
    println!("the guest took commands after {:.2} s", begun.elapsed().as_secs_f64());
    vm
}

#[track_caller]
fn assert_no_trouble(vm: &mut Vm) {
    assert_eq!(vm.kernel_trouble().unwrap(), Vec::<Message>::new());
}

/// One start for all that a drive can show with q35 as it is.
#[test]
fn a_drive_from_the_start_and_another_plugged_with_acpi() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let [image, hot] = [Image::new("cold"), Image::new("hot-acpi")];
    let builder = Vm::builder(&kit).name("acpi").drive("d1", &image.0).drive("d2", &hot.0);
    let mut vm = start(builder.device("nvme,id=n1,serial=CAUSEWAY1,drive=d1,bus=rp1"));
    let identity = vm.check("nvme id-ctrl /dev/nvme0").unwrap();
    assert!(identity.contains("CAUSEWAY1") && identity.contains("QEMU NVMe Ctrl"), "{identity}");
    let list = vm.check("nvme list").unwrap();
    assert!(list.contains("/dev/nvme0n1") && list.contains("67.11  MB"), "{list}");
    verified_load(&mut vm);
    file_system(&mut vm);
    for _ in 0..3 {
        plug_and_unplug(&mut vm);
    }
    assert_no_trouble(&mut vm);
    vm.shutdown().unwrap();
}

fn verified_load(vm: &mut Vm) {
    let fio = "fio --name=job --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=4k \
               --size=16M --io_size=2M --verify=crc32c --verify_fatal=1 --thread --output-format=json";
    let report: serde_json::Value = serde_json::from_str(&vm.check(fio).unwrap()).unwrap();
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0);
    assert_eq!(
        (&job["write"]["total_ios"], &job["read"]["total_ios"]),
        (&json!(512), &json!(512)),
        "{report}"
    );
}

fn file_system(vm: &mut Vm) {
    vm.check("mkfs.ext4 -q /dev/nvme0n1 && mount /dev/nvme0n1 /mnt").unwrap();
    let sum = "sha256sum /mnt/file";
    let written = vm
        .check(&format!("dd if=/dev/urandom of=/mnt/file bs=1M count=4 2>/dev/null && {sum} && umount /mnt"))
        .unwrap();
    vm.check("echo 3 >/proc/sys/vm/drop_caches; e2fsck -fn /dev/nvme0n1").unwrap();
    let read = vm.check(&format!("mount -o ro /dev/nvme0n1 /mnt && {sum} && umount /mnt")).unwrap();
    assert_eq!(read, written);
    assert_eq!(read.len(), 64 + "  /mnt/file\n".len());
}

#[test]
fn a_drive_plugged_with_pciehp() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let image = Image::new("hot-pciehp");
    let mut vm = start(Vm::builder(&kit).name("pciehp").hot_plug(HotPlug::Pciehp).drive("d2", &image.0));
    plug_and_unplug(&mut vm);
    assert_no_trouble(&mut vm);
    vm.shutdown().unwrap();
}

fn plug_and_unplug(vm: &mut Vm) {
    let begun = Instant::now();
    vm.hot_add(json!({ "driver": "nvme", "id": "n2", "serial": "HOT", "drive": "d2", "bus": "rp2" }))
        .unwrap();
    let node = vm.wait_for(REMOVAL_TIMEOUT, "nvme list | grep -o '/dev/nvme[0-9]n1 .*HOT'").unwrap();
    let node = node.split_whitespace().next().unwrap();
    let seen = begun.elapsed();
    vm.check(&format!("dd if=/dev/urandom of={node} bs=64k count=4 oflag=direct")).unwrap();
    let begun = Instant::now();
    vm.hot_remove("n2", REMOVAL_TIMEOUT).unwrap();
    vm.wait_for(REMOVAL_TIMEOUT, &format!("[ ! -e {node} ]")).unwrap();
    println!("{node} seen after {seen:?}, gone after {:?}", begun.elapsed());
}

/// Commands that take too long, jobs, panics and deaths: what a harness is for.
#[test]
fn what_goes_wrong_is_told() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let mut vm = start(Vm::builder(&kit).name("wrong"));
    let failed = vm.check("echo out; echo error >&2; exit 3").unwrap_err();
    assert!(matches!(failed, Error::Failed { status: 3, output, .. } if output == "out\nerror\n"));
    assert_eq!(vm.run("printf '%s\\n' 'a  \\b' \"c\nd\"").unwrap().text, "a  \\b\nc\nd\n");

    let job = vm.start("sleep 1000 & wait; echo no").unwrap();
    let quick = vm.start("echo out; exit 4").unwrap();
    let slow = vm.run_for(Duration::from_millis(300), "echo begun; sleep 1000").unwrap_err();
    assert!(matches!(slow, Error::TimedOut { output, .. } if output.starts_with("begun\n")));
    assert_eq!(vm.run("echo next").unwrap().text, "next\n");
    assert!(!vm.has_ended(&job).unwrap(), "an interrupt is for the command that runs");
    let output = vm.wait(quick, Duration::from_secs(20)).unwrap();
    assert_eq!((output.status, output.text.as_str()), (4, "out\n"));

    assert_no_trouble(&mut vm);
    vm.check("echo '<3>a driver is unhappy' >/dev/kmsg").unwrap();
    assert_eq!(vm.kernel_trouble().unwrap().len(), 1);

    let panic = vm.run("echo c >/proc/sysrq-trigger").unwrap_err();
    assert!(matches!(&panic, Error::Ended { output, .. } if output.contains("Kernel panic")), "{panic}");
}

#[test]
fn a_qemu_that_does_not_start_says_why() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let error = Vm::builder(&kit).name("never").device("no-such-device").start().err().unwrap();
    assert!(matches!(&error, Error::Ended { output, .. } if output.contains("no-such-device")), "{error}");
}

/// No test leaves a machine behind, and none leaves a folder unless it failed.
#[test]
fn nothing_is_left_behind() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let vm = Vm::builder(&kit).name("left").launch().unwrap();
    let (pid, folder) = (vm.pid(), vm.folder().to_path_buf());
    assert!(folder.exists() && is_running(pid, &kit));
    // The program under test has a connection of its own.
    let mut greeting = String::new();
    BufReader::new(UnixStream::connect(vm.second_qmp()).unwrap()).read_line(&mut greeting).unwrap();
    assert!(greeting.starts_with("{\"QMP\""), "{greeting}");
    drop(vm);
    assert!(!folder.exists() && !is_running(pid, &kit));
}

#[test]
fn a_killed_test_program_takes_its_machines_with_it() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--ignored", "--exact", "nvme::holds_a_machine_until_killed", "--nocapture"]);
    let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines().map(Result::unwrap);
    let words = lines.find_map(|line| line.split_once(HELD).map(|(_, words)| words.to_owned())).unwrap();
    let (pid, folder) = words.split_once(' ').unwrap();
    let pid = pid.parse().unwrap();
    assert!(is_running(pid, &kit));
    program.kill().unwrap();
    program.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_running(pid, &kit) {
        assert!(Instant::now() < deadline, "QEMU lives on");
        std::thread::sleep(Duration::from_millis(2));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

const HELD: &str = "held: ";

#[test]
#[ignore = "a part of a_killed_test_program_takes_its_machines_with_it"]
fn holds_a_machine_until_killed() {
    let Some(kit) = guest::kit() else { return };
    let _place = crate::place();
    // The thread that starts a machine may end before the machine does.
    let vm = std::thread::spawn(move || Vm::builder(&kit).name("held").launch().unwrap()).join().unwrap();
    println!("{HELD}{} {}", vm.pid(), vm.folder().display());
    loop {
        std::thread::park();
    }
}

fn is_running(pid: u32, kit: &Kit) -> bool {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&command).contains(&*kit.kernel().to_string_lossy())
}
