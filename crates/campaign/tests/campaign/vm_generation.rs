//! A machine with a node in it is saved with its memory and restored, as a copy or as itself. What is restored is the
//! guest's kernel, its node and the node's keys; the lender is a node outside.

use campaign::causeway::{START_TIMEOUT, STOP_TIMEOUT, binary};
use campaign::gate;
use campaign::process::{Process, poll_until, run};
use guest::{Kit, Vm};
use io::address::Addresses;
use program::line::Line;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// To save a machine or to load it: some 200 MB, most of them its initramfs.
const SAVED: Duration = Duration::from_secs(120);
/// The lender, as QEMU's user network shows this machine's loopback to the guest.
const HOST: &str = "10.0.2.2";
const BEFORE: &str = "5b2c8f4e-51a1-4d0e-9e0b-6f6d6b7f1a01";
const AFTER: &str = "c0a7d7c6-0c64-4c5b-8b6c-6a1b7f0f2e02";
/// What the kernel says when it believes that it is a copy.
const FORKED: &str = "crng reseeded due to virtual machine fork";
/// In the guest.
const NODE: &str = "/run/program";
const EDGE: &str = "/run/nbd.sock";

/// What runs and lies outside of the guest.
struct Outside {
    lender: Process,
    line: String,
    folder: PathBuf,
}

impl Outside {
    fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cw-{}-{name}", std::process::id()));
        // Only a failed run of an earlier process with this id can have left it.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let mut command = Self::causeway(&folder);
        command.args(["lend", "ram:16M", "--name", "lender", "--listen", "127.0.0.1"]);
        command.arg("--state-dir").arg(folder.join("state"));
        let mut lender = Process::spawn(command, &folder.join("lender.log")).unwrap();
        let line =
            lender.wait_line("the line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
        let line: Line = line.parse().unwrap();
        let seen: Addresses = line.addresses().to_string().replace("127.0.0.1", HOST).parse().unwrap();
        let line = Line::new(line.lender(), line.secret().clone(), seen, line.function().clone()).unwrap();
        Self { lender, line: line.reveal(), folder }
    }

    fn causeway(folder: &Path) -> Command {
        let mut command = Command::new(binary().unwrap());
        command.env("XDG_RUNTIME_DIR", folder);
        command
    }

    /// Events of the lender of a kind.
    fn events(&self, kind: &str) -> usize {
        let mut command = Self::causeway(&self.folder);
        command.args(["events", "--name", "lender", "-o", "json"]);
        of_kind(&run(command).unwrap(), kind)
    }

    /// The program for the guest, without what only a debugger reads: a drive of whole sectors.
    fn program(&self) -> PathBuf {
        let program = self.folder.join("program");
        let mut command = Command::new("strip");
        command.arg("-o").arg(&program).arg(binary().unwrap());
        run(command).unwrap();
        let file = std::fs::File::options().write(true).open(&program).unwrap();
        let len = file.metadata().unwrap().len();
        file.set_len(len.next_multiple_of(512)).unwrap();
        program
    }

    fn end(mut self) {
        assert_eq!(self.lender.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", self.lender.tail());
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Logs and state are for whoever looks at a failure; these are large and tell nothing.
        for large in ["saved", "program"] {
            let _ = std::fs::remove_file(self.folder.join(large));
        }
    }
}

fn of_kind(events: &str, kind: &str) -> usize {
    let kinds = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].clone());
    kinds.filter(|it| it == kind).count()
}

/// A machine of this generation; both sides of a migration are described alike.
fn machine(kit: &Kit, program: &Path, guid: &str) -> guest::Builder {
    Vm::builder(kit)
        .name("generation")
        .root_ports(0)
        .modules(&["virtio_net", "virtio_blk"])
        .drive_with("program", program, ",readonly=on")
        .device("virtio-blk-pci,drive=program")
        .argument("-netdev")
        .argument("user,id=net")
        .device("virtio-net-pci,netdev=net,romfile=")
        .device(&format!("vmgenid,guid={guid}"))
}

/// Starts the node in the guest, as one that borrows.
fn start_node(vm: &mut Vm, line: &str) {
    vm.check("ifconfig lo up && ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up").unwrap();
    vm.check(&format!("cat /dev/vda >{NODE} && chmod +x {NODE} && echo '{line}' >/run/line")).unwrap();
    let borrow = format!("{NODE} borrow @/run/line --nbd {EDGE} --name node --state-dir /run/state");
    vm.check(&format!("setsid {borrow} </dev/null >/run/node.log 2>&1 &")).unwrap();
    let is_usable = "grep -q '^nbd+unix' /run/node.log";
    vm.wait_for(LONG, is_usable).unwrap_or_else(|error| panic!("{error}\n{}", log_of(vm)));
}

fn log_of(vm: &mut Vm) -> String {
    vm.check("cat /run/node.log").unwrap()
}

/// Events of the guest's node of a kind.
fn events(vm: &mut Vm, kind: &str) -> usize {
    of_kind(&vm.check(&format!("{NODE} events --name node -o json")).unwrap(), kind)
}

fn wait_event(vm: &mut Vm, kind: &str) {
    let is_said = format!("{NODE} events --name node -o json | grep -q '\"kind\":\"{kind}\"'");
    vm.wait_for(LONG, &is_said).unwrap_or_else(|error| panic!("{error}\n{}", log_of(vm)));
}

/// Writes to the borrowed drive, or only reads, and compares all that is there with what was written with this seed.
fn verify(vm: &mut Vm, at_mib: u32, writes: bool) {
    let what = if writes { "--rw=randwrite" } else { "--rw=randread --verify_only" };
    let job = format!(
        "fio --name=job --ioengine=nbd --uri='nbd+unix:///?socket={EDGE}' --bs=4k --iodepth=8 --size=2M \
         --offset={at_mib}M --randseed={at_mib} --verify=crc32c --verify_fatal=1 --do_verify=1 {what} 2>&1"
    );
    vm.check_for(LONG, &job).unwrap_or_else(|error| panic!("{error}\n{}", log_of(vm)));
}

/// Stops the machine and saves it to a file, with its memory; QEMU ends.
fn save(mut vm: Vm, file: &Path) {
    vm.qmp().execute("migrate", json!({ "uri": format!("file:{}", file.display()) })).unwrap();
    wait_migrated(&mut vm);
    vm.qmp().execute("quit", json!({})).unwrap();
    assert!(vm.wait_end(LONG).unwrap().success());
}

/// How often the guest was told to look at its generation: the event of the ACPI tables that QEMU makes for it.
fn told(vm: &mut Vm) -> u32 {
    let count = vm.check("cut -c1-8 /sys/firmware/acpi/interrupts/gpe05").unwrap();
    count.trim().parse().unwrap_or_else(|error| panic!("{error}: {count:?}"))
}

/// `told_before`: what [`told`] was when the machine was saved.
fn restore(machine: guest::Builder, file: &Path, told_before: u32) -> Vm {
    let machine = machine.argument("-incoming").argument(format!("file:{}", file.display()));
    let mut vm = machine.launch().unwrap();
    poll_until("the restored machine to run", SAVED, || {
        let status = vm.qmp().execute("query-status", json!({})).unwrap();
        Ok((status["status"] == "running").then_some(()))
    })
    .unwrap();
    // Also of a machine that is what it was the kernel is told, and compares.
    poll_until("the guest to look at its generation", LONG, || {
        Ok((told(&mut vm) > told_before).then_some(()))
    })
    .unwrap();
    vm
}

fn wait_migrated(vm: &mut Vm) {
    poll_until("the machine to be saved", SAVED, || {
        let state = vm.qmp().execute("query-migrate", json!({})).unwrap();
        assert_ne!(state["status"], "failed", "{state}");
        Ok((state["status"] == "completed").then_some(()))
    })
    .unwrap();
}

#[test]
fn w4_a_restored_machine_renews_its_keys() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let outside = Outside::start("restored");
    let (program, saved) = (outside.program(), outside.folder.join("saved"));
    let mut vm = machine(&kit, &program, BEFORE).start().unwrap();
    start_node(&mut vm, &outside.line);
    verify(&mut vm, 0, true);
    assert_eq!((outside.events("loan-taken"), events(&mut vm, "machine-restored")), (1, 0));
    let told_before = told(&mut vm);
    save(vm, &saved);

    // As itself: nobody has used its keys meanwhile. QEMU's network has other ports now, so there may be a handshake.
    let mut vm = restore(machine(&kit, &program, BEFORE), &saved, told_before);
    verify(&mut vm, 0, false);
    verify(&mut vm, 4, true);
    let told = [events(&mut vm, "machine-restored"), events(&mut vm, "machine-perhaps-restored")];
    assert_eq!((outside.events("loan-taken"), told), (1, [0, 0]), "{}", log_of(&mut vm));
    assert!(!vm.check("dmesg").unwrap().contains(FORKED));
    // Without a word: as a machine does whose host dies.
    drop(vm);

    // As a copy, of before the last writes.
    let mut vm = restore(machine(&kit, &program, AFTER), &saved, told_before);
    wait_event(&mut vm, "machine-restored");
    // It has clients disconnected, so whoever came before would be.
    wait_event(&mut vm, "loan-overtaken");
    assert!(vm.check("dmesg").unwrap().contains(FORKED));
    verify(&mut vm, 0, false);
    verify(&mut vm, 4, false);
    verify(&mut vm, 8, true);
    assert_eq!(events(&mut vm, "machine-restored"), 1);
    // It says by what life it calls itself in the handshake that makes the keys, and whoever has other keys would not
    // be understood.
    assert_eq!(outside.events("loan-taken"), 2, "{}", outside.lender.tail());
    assert!(vm.kernel_trouble().unwrap().is_empty());
    vm.shutdown().unwrap();
    outside.end();
}
