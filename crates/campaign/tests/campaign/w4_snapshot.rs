//! W4: a machine goes on from a snapshot. Its kernel says so, and the nodes in it renew their keys, since the machine
//! may run twice now.

use campaign::causeway::{binary, number};
use campaign::gate;
use campaign::process::{poll_until, run};
use campaign::world::{World, WorldConfig};
use guest::{Builder, Kit, Vm};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Under TCG, on a busy machine.
const LONG: Duration = Duration::from_secs(120);
/// Where the guest has the program.
const ROOT: &str = "/run/root";

#[test]
fn w4_nodes_of_a_machine_that_goes_on_from_a_snapshot_renew_their_keys() {
    let _place = gate::computes();
    let Some(kit) = guest::kit() else { return };
    let world = World::new(&WorldConfig::default()).unwrap();
    let program = Program::pack(world.left().dir());
    let mut first = program.machine(&kit, "6d0a7a4c-9a57-4b9c-9a55-7f0a4ce4f5c1").start().unwrap();
    program.unpack(&mut first);
    program.start(&mut first, "lend ram:1M --name lender --line-file /run/line --listen 127.0.0.1:7117");
    first.wait_for(LONG, &format!("cat {ROOT}/run/line")).unwrap();
    program.start(&mut first, "borrow @/run/line --name borrower --nbd /run/disk --listen 127.0.0.1:7118");
    let before = program.wait(&mut first, is_up);

    let snapshot = world.left().dir().join("snapshot");
    first.qmp().execute("migrate", json!({ "uri": format!("file:{}", snapshot.display()) })).unwrap();
    poll_until("the snapshot", LONG, || {
        let migration = first.qmp().execute("query-migrate", json!({})).unwrap();
        assert_ne!(migration["status"], "failed", "{migration}");
        Ok((migration["status"] == "completed").then_some(()))
    })
    .unwrap();
    drop(first);

    // Another machine than the one that was stopped there: it has a generation of its own.
    let second = program.machine(&kit, "0f1f9d1e-33c1-4f4b-8a4e-2b7b5d1c9a02").argument("-incoming");
    let mut second = second.argument(format!("file:{}", snapshot.display())).launch().unwrap();
    for node in ["lender", "borrower"] {
        let events = format!("{} events --name {node} | grep 'restored from a snapshot'", program.command());
        second.wait_for(LONG, &events).unwrap_or_else(|error| panic!("{error}\n{}", second.console()));
    }
    let handshakes = number(&before, "/counters/handshakes").unwrap();
    program.wait(&mut second, |status| {
        is_up(status) && number(status, "/counters/handshakes").unwrap() > handshakes
    });
}

fn is_up(status: &Value) -> bool {
    status["loans"][0]["state"] == "up"
}

/// The program in a guest.
struct Program {
    /// Itself and its libraries, as a guest reads them from a drive.
    archive: PathBuf,
    /// Where it lies, here and in there.
    path: PathBuf,
}

impl Program {
    fn pack(folder: &Path) -> Self {
        let (path, archive) = (binary().unwrap(), folder.join("program.tar"));
        let mut ldd = Command::new("ldd");
        ldd.arg(&path);
        let needed = run(ldd).unwrap();
        let libraries = needed.split_whitespace().map(Path::new).filter(|word| word.is_absolute());
        let mut tar = Command::new("tar");
        tar.args(["--create", "--dereference", "--directory", "/", "--file"]).arg(&archive);
        tar.args(libraries.chain([&*path]).map(|path| path.strip_prefix("/").unwrap()));
        run(tar).unwrap();
        Self { archive, path }
    }

    /// A machine of this generation that has the drive.
    fn machine(&self, kit: &Kit, generation: &str) -> Builder {
        let machine = Vm::builder(kit).name("snapshot").memory_mib(768).modules(&["virtio_blk"]);
        let machine = machine.drive_with("program", &self.archive, ",readonly=on");
        machine.device("virtio-blk-pci,drive=program").device(&format!("vmgenid,guid={generation}"))
    }

    fn unpack(&self, vm: &mut Vm) {
        let mounts = ["dev", "proc", "sys"].map(|name| format!("mount --bind /{name} {ROOT}/{name}"));
        let steps = [
            "ip link set lo up".to_owned(),
            format!("mkdir {ROOT}"),
            format!("tar -x -f /dev/vda -C {ROOT}"),
            format!("mkdir -p {ROOT}/dev {ROOT}/proc {ROOT}/sys {ROOT}/run {ROOT}/tmp"),
            mounts.join(" && "),
        ];
        vm.check_for(LONG, &steps.join(" && ")).unwrap();
    }

    fn command(&self) -> String {
        format!("chroot {ROOT} {}", self.path.display())
    }

    fn start(&self, vm: &mut Vm, arguments: &str) {
        vm.start(&format!("{} {arguments}", self.command())).unwrap();
    }

    /// Until the borrower says so: what it says.
    fn wait(&self, vm: &mut Vm, is_so: impl Fn(&Value) -> bool) -> Value {
        let command = format!("{} status --name borrower -o json 2>/dev/null", self.command());
        poll_until("the borrower", LONG, || {
            let status = serde_json::from_str(&vm.run(&command).unwrap().text).unwrap_or_default();
            Ok(is_so(&status).then_some(status))
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", vm.run("cat /run/job.*").unwrap().text))
    }
}
