//! W1: a machine that libvirt runs, as the examples have it: it boots from a borrowed drive, and gets another one while
//! it runs.
//!
//! The libvirt is the system's, but none of its daemons: its driver for QEMU runs inside one `virsh`, with a folder of
//! its own (`qemu:///embed?root=..`), in a machine of the test's. QEMU has a user of its own, as under any libvirt that
//! root runs.

use campaign::causeway::{Lender, START_TIMEOUT, STOP_TIMEOUT, binary};
use campaign::process::{Process, run};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, tools};
use guest::{Kit, Message, Shell, parse_kernel_log};
use std::cell::RefCell;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);
/// Where the kit is seen by QEMU, which may not enter the home of whoever fetched it.
const KIT: &str = "/run/kit";
/// Where the examples have their sockets.
const FOLDER: &str = "/var/lib/libvirt/causeway";
/// What Debian gives QEMU's user; without root there are no other numbers than 0.
const USER: &str = "libvirt-qemu";
const USER_ID: u32 = 64055;

/// The programs that `make deps` installs; where they are not, the test is skipped as without QEMU.
fn libvirt_is_here() -> bool {
    let missing = ["virsh", "virt-qemu-run"].into_iter().find(|program| {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        !found.unwrap().status.success()
    });
    if let Some(program) = missing {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "cannot be skipped with CI=true: no {program}");
        // Past the test runner, which hides what a test prints that did not fail.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: vm_libvirt: there is no {program}; `make deps` installs it"
        );
    }
    missing.is_none()
}

/// A libvirt that nobody shares.
struct Libvirt {
    virsh: Process,
    commands: u32,
}

impl Libvirt {
    fn start(machine: &Machine, kit: &Kit) -> Self {
        prepare(machine, kit);
        let root = Path::new("/var/lib/libvirt/embed");
        let etc = inside(machine, root).join("etc");
        std::fs::create_dir_all(&etc).unwrap();
        // Without daemons, without cgroups of the system, and without a mount namespace for /dev, whose kvm is covered.
        let config = "security_driver = \"none\"\nstdio_handler = \"file\"\ncgroup_controllers = []\nnamespaces = []\n";
        std::fs::write(etc.join("qemu.conf"), config).unwrap();
        let mut command = machine.command("unshare");
        // A shell as the first process of a PID namespace reaps what libvirt leaves to it, and takes all of it along.
        command.args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            "virsh \"$@\"; exit $?",
            "sh",
        ]);
        command.args(["-c", &format!("qemu:///embed?root={}", root.display())]);
        command.env("LIBVIRT_LOG_OUTPUTS", "3:stderr");
        let virsh = Process::spawn_piped(command, &machine.dir().join("logs/virsh.log")).unwrap();
        Self { virsh, commands: 0 }
    }

    /// Has virsh do something; returns what it prints.
    #[track_caller]
    fn run(&mut self, command: &str) -> String {
        self.commands += 1;
        let end = format!("end-of-{}", self.commands);
        let lines = RefCell::new(String::new());
        writeln!(self.virsh.stdin().unwrap(), "{command}\necho {end}").unwrap();
        let ended = self.virsh.wait_line(command, LONG, |line| {
            lines.borrow_mut().extend([line, "\n"]);
            line == end
        });
        ended.unwrap_or_else(|error| panic!("{error}\n{}", self.virsh.tail()));
        lines.into_inner()
    }

    #[track_caller]
    fn check(&mut self, command: &str, expected: &str) {
        let said = self.run(command);
        assert!(said.contains(expected), "{command}: {said}\n{}", self.virsh.tail());
    }

    fn end(mut self) {
        writeln!(self.virsh.stdin().unwrap(), "quit").unwrap();
        self.virsh.wait_success(LONG).unwrap();
    }
}

/// The user, the folder of the examples, the kit where that user can read it, and no KVM: libvirt asks QEMU again and
/// again whether it can use one that the test may open and QEMU's user may not.
fn prepare(machine: &Machine, kit: &Kit) {
    let kit = kit.program("x");
    let kit = kit.ancestors().nth(2).unwrap().to_str().unwrap();
    let script = format!(
        "set -e; cd \"$TMPDIR\"; cp /etc/passwd passwd; cp /etc/group group; : >nothing; chmod 0 nothing
         id={USER_ID}; chown $id nothing 2>/dev/null || id=0
         echo \"{USER}:x:$id:$id::/nonexistent:/bin/false\" >>passwd; echo \"{USER}:x:$id:\" >>group
         mount --bind passwd /etc/passwd; mount --bind group /etc/group
         [ ! -e /dev/kvm ] || mount --bind nothing /dev/kvm
         mkdir {KIT}; mount --bind '{kit}' {KIT}
         install -d -o {USER} -g {USER} -m 0750 {FOLDER}"
    );
    let mut command = machine.command("sh");
    command.args(["-c", &script]);
    run(command).unwrap();
}

/// A path of the machine's /var/lib, as the test sees it.
fn inside(machine: &Machine, path: &Path) -> PathBuf {
    machine.dir().join("var-lib").join(path.strip_prefix("/var/lib").unwrap())
}

/// An example, with what no machine for tests has replaced, each in the one place where it is.
fn example(name: &str, replaced: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let mut text = std::fs::read_to_string(path).unwrap();
    for (old, new) in replaced {
        assert_eq!(text.matches(old).count(), 1, "{name} has `{old}` once");
        text = text.replace(old, new);
    }
    text
}

/// The example's domain with the kit's QEMU, and with the serial ports that the kit's guests speak at.
fn domain(machine: &Machine) -> PathBuf {
    let ports = "<serial type='file'><source path='/var/lib/libvirt/console.log'/><target port='0'/></serial>\n\
                 <serial type='unix'><source mode='connect' path='/var/lib/libvirt/shell.sock'/><target \
                 port='1'/></serial>";
    let text = example(
        "libvirt.xml",
        &[
            ("<domain type='kvm'", "<domain type='qemu'"),
            ("/usr/bin/qemu-system-x86_64", &format!("{KIT}/bin/qemu-system-x86_64")),
            ("<serial type='pty'/>", ports),
        ],
    );
    let path = machine.dir().join("libvirt.xml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The node of the example, once its drive may be used.
fn start_node(machine: &Machine, root: &str) -> Process {
    let config = machine.dir().join("libvirt.toml");
    std::fs::write(&config, example("libvirt.toml", &[])).unwrap();
    std::fs::write(machine.dir().join("root.line"), root).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(config);
    let mut node = machine.spawn("node", command).unwrap();
    node.wait_line("its slot", START_TIMEOUT, |line| line.starts_with("vfio-user:")).unwrap();
    node
}

fn causeway(machine: &Machine, arguments: &[&str]) -> Output {
    machine.command(binary().unwrap()).args(arguments).output().unwrap()
}

/// The shell of a guest that has just been started.
fn accept(listener: &UnixListener, machine: &Machine) -> Shell {
    let log = File::create(machine.dir().join("logs/shell.log")).unwrap();
    let mut shell = Shell::new(listener.accept().unwrap().0, log);
    let console = inside(machine, Path::new("/var/lib/libvirt/console.log"));
    let ready = shell.wait_ready(LONG);
    ready.unwrap_or_else(|error| panic!("{error}\n{}", std::fs::read_to_string(console).unwrap()));
    shell
}

/// A command in the guest that has to succeed.
#[track_caller]
fn check(shell: &mut Shell, command: &str) -> String {
    let output = shell.run(command, LONG).unwrap();
    assert_eq!(output.status, 0, "{command}: {}", output.text);
    output.text
}

#[track_caller]
fn wait_for(shell: &mut Shell, command: &str) {
    check(shell, &format!("until {command}; do usleep 20000; done"));
}

/// Writes to the end of a drive, and finds there what the lender has in its image.
#[track_caller]
fn write_and_compare(shell: &mut Shell, drive: &str, image: &Path, mib: u64) {
    let last = mib - 1;
    // No random numbers: a guest without a source of them waits for seconds.
    let text = format!("yes {drive}{} | head -c {MIB}", std::process::id());
    check(shell, &format!("{text} | dd of={drive} bs=1M seek={last} iflag=fullblock conv=fsync"));
    let read = check(shell, &format!("dd if={drive} bs=1M skip={last} iflag=direct 2>/dev/null | sha256sum"));
    let bytes = std::fs::read(image).unwrap();
    assert_eq!(bytes.len() as u64, mib * MIB);
    let end = image.with_extension("end");
    std::fs::write(&end, &bytes[(last * MIB) as usize..]).unwrap();
    assert_eq!(read.split_whitespace().next().unwrap(), tools::sha256(&end).unwrap());
}

/// What `qemu-args` prints for the two sockets is what libvirt starts QEMU with.
#[track_caller]
fn printed_element_is_taken(libvirt: &mut Libvirt, machine: &Machine) {
    let [socket, qmp] = ["vm1-root.sock", "vm1-qmp.sock"].map(|name| format!("{FOLDER}/{name}"));
    let printed = causeway(machine, &["qemu-args", &socket, "--libvirt", "--qmp", &qmp]);
    assert!(printed.status.success(), "{printed:?}");
    let text = std::fs::read_to_string(domain(machine)).unwrap();
    let (before, _) = text.split_once("<qemu:commandline>").unwrap();
    // The element says itself what its prefix means.
    let before = before.replace(" xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'", "");
    let other = before.replace("<name>vm1<", "<name>vm2<");
    let path = machine.dir().join("printed.xml");
    std::fs::write(&path, format!("{other}{}</domain>", String::from_utf8(printed.stdout).unwrap())).unwrap();
    libvirt.check(&format!("define --validate {}", path.display()), "'vm2' defined");
    let said = libvirt.run(&format!("domxml-to-native qemu-argv --xml {}", path.display()));
    for part in
        [&format!("unix:{qmp},server=on,wait=off"), "\"driver\":\"vfio-user-pci\"", &socket, "\"share\":true"]
    {
        assert!(said.contains(part), "{part}: {said}\n{}", libvirt.virsh.tail());
    }
    let port = r#"{"chassis":101,"driver":"pcie-root-port","id":"causeway-port1","slot":1}"#;
    assert!(said.contains(port), "{said}");
    libvirt.check("undefine vm2", "'vm2' has been undefined");
}

/// Memory as libvirt makes it unless told otherwise: the machine starts, and the node says why it finds no drive.
#[track_caller]
fn memory_that_is_not_shared_is_named(libvirt: &mut Libvirt, machine: &Machine, node: &mut Process) {
    let text = std::fs::read_to_string(domain(machine)).unwrap().replace("<name>vm1<", "<name>vm3<");
    let (before, rest) = text.split_once("<memoryBacking>").unwrap();
    let (_, after) = rest.split_once("</memoryBacking>").unwrap();
    let path = machine.dir().join("private.xml");
    std::fs::write(&path, [before, after].concat()).unwrap();
    libvirt.check(&format!("define {}", path.display()), "'vm3' defined");
    libvirt.check("start vm3", "'vm3' started");
    node.wait_log("what is missing", LONG, |line| line.contains("<access mode='shared'/>")).unwrap();
    libvirt.check("destroy vm3", "'vm3' destroyed");
    libvirt.check("undefine vm3", "'vm3' has been undefined");
}

#[test]
fn w1_libvirt_runs_the_machine_of_the_example() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    if !libvirt_is_here() {
        return;
    }
    let world = World::new(&WorldConfig::default()).unwrap();
    let [root, data] = ["root.img", "data.img"].map(|name| world.right().dir().join(name));
    kit.make_bootable(&root).unwrap();
    tools::empty_image(&data, 32 * MIB).unwrap();
    let images = [&root, &data].map(|image| image.to_str().unwrap());
    let mut lender = Lender::start(world.right(), &images, &[]).unwrap();
    let machine = world.left();
    let mut libvirt = Libvirt::start(machine, &kit);
    let mut node = start_node(machine, &lender.lines[0]);
    let path = inside(machine, Path::new("/var/lib/libvirt/shell.sock"));
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();

    libvirt.check(&format!("define --validate {}", domain(machine).display()), "'vm1' defined");
    libvirt.check("start vm1", "'vm1' started");
    let owner = |name| std::fs::metadata(inside(machine, &Path::new(FOLDER).join(name))).unwrap().uid();
    assert_eq!(owner("vm1-qmp.sock"), owner("."), "QEMU has made it, as its user");
    let mut shell = accept(&listener, machine);
    libvirt.check("dominfo vm1", "tainted: custom configuration parameters");
    write_and_compare(&mut shell, "/dev/nvme0n1", &root, 64);

    let attached = causeway(machine, &["attach", &lender.lines[1], "vm1/data"]);
    assert!(attached.status.success(), "{attached:?}\n{}", node.tail());
    wait_for(&mut shell, "[ -e /dev/nvme1n1 ]");
    write_and_compare(&mut shell, "/dev/nvme1n1", &data, 32);
    let detached = causeway(machine, &["detach", "vm1/data"]);
    assert!(detached.status.success(), "{detached:?}\n{}", node.tail());
    wait_for(&mut shell, "[ ! -e /dev/nvme1n1 ]");

    let messages = parse_kernel_log(&check(&mut shell, "dmesg -r"));
    let trouble: Vec<&Message> = messages.iter().filter(|message| message.is_trouble()).collect();
    assert!(trouble.is_empty(), "{trouble:?}");
    printed_element_is_taken(&mut libvirt, machine);
    // Off and on again: QEMU does not start without a drive that greets it.
    libvirt.check("destroy vm1", "'vm1' destroyed");
    libvirt.check("start vm1", "'vm1' started");
    libvirt.check("destroy vm1", "'vm1' destroyed");
    libvirt.check("undefine vm1", "'vm1' has been undefined");
    memory_that_is_not_shared_is_named(&mut libvirt, machine, &mut node);
    libvirt.end();
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
}
