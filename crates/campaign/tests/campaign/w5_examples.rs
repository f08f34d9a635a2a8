//! W5: the commented examples are run as they stand, in machines of their own: a lender's and the borrower's. What is
//! borrowed is written and read over NBD, and all ends in order with SIGTERM.

use campaign::causeway::{START_TIMEOUT, STOP_TIMEOUT, binary};
use campaign::load::connect;
use campaign::nbd_client::{NbdClient, NbdError};
use campaign::process::{Process, family, is_running, poll_until, run};
use campaign::tools;
use campaign::world::{Machine, World, WorldConfig};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;
const LEND_ONE: &str = "lend-one.toml";
const LEND_TWO_RAILS: &str = "lend-two-rails.toml";
const SHARE_ONE_DRIVE: &str = "share-one-drive.toml";
const BORROW_PRESET: &str = "borrow-preset.toml";
/// The file of a rack, then those of its nodes.
const RACK: [&str; 3] = ["rack.toml", "rack-store.toml", "rack-desk.toml"];
/// The same of one with a manager.
const FABRIC: [&str; 3] = ["fabric-rack.toml", "fabric-store.toml", "fabric-desk.toml"];
/// A virtual machine that libvirt runs, and its node: tested in vm_libvirt.rs.
const LIBVIRT: [&str; 2] = ["libvirt.xml", "libvirt.toml"];
/// What the borrower's example says.
const EDGE: &str = "nbd+unix:///?socket=/run/causeway/nvme0.nbd";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// An example, run by that command in `machine`. Of its text only the paths of images change, which no machine for
/// tests has.
fn start_as(command: &[&str], machine: &Machine, example: &str, images: &[(&str, &Path)]) -> Process {
    let config = copy(machine, example, images);
    let words = command;
    let mut command = machine.command(binary().unwrap());
    // As root on a machine that nobody has prepared: everything lies where the system keeps it.
    command.env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME");
    command.args(words).arg(&config);
    machine.spawn(example, command).unwrap()
}

fn start(machine: &Machine, example: &str, images: &[(&str, &Path)]) -> Process {
    start_as(&["node", "--config"], machine, example, images)
}

fn copy(machine: &Machine, example: &str, images: &[(&str, &Path)]) -> PathBuf {
    let mut text = std::fs::read_to_string(examples().join(example)).unwrap();
    for (path, image) in images {
        assert_eq!(text.matches(path).count(), 1, "{example} names {path} once");
        text = text.replace(path, image.to_str().unwrap());
    }
    let config = machine.dir().join(example);
    std::fs::write(&config, text).unwrap();
    config
}

/// The lines of a lender's devices.
fn lines(lender: &mut Process, count: usize) -> Vec<String> {
    let is_line = |line: &str| line.starts_with("causeway://");
    (0..count).map(|_| lender.wait_line("a line", START_TIMEOUT, is_line).unwrap()).collect()
}

/// The borrower's example with this line beside it, and a client on its edge.
fn borrow(machine: &Machine, line: &str) -> (Process, NbdClient) {
    std::fs::write(machine.dir().join("nvme0.line"), line).unwrap();
    let mut borrower = start(machine, BORROW_PRESET, &[]);
    borrower.wait_line("its edge", START_TIMEOUT, |line| line == EDGE).unwrap();
    // The machine's /run is its own, and is reached through one of its processes.
    let socket = format!("/proc/{}/root/run/causeway/nvme0.nbd", borrower.pid());
    let client = connect(Path::new(&socket)).unwrap();
    (borrower, client)
}

fn end(mut node: Process) {
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
}

fn write_and_read(client: &mut NbdClient, size: u64) {
    assert_eq!(client.size(), size);
    let pattern: Vec<u8> = (0..64 * 1024_u32).map(|byte| (byte % 251) as u8).collect();
    let last = size - pattern.len() as u64;
    let mut data = Vec::new();
    for offset in [0, last] {
        client.write(offset, &pattern).unwrap();
    }
    client.flush().unwrap();
    for offset in [0, last] {
        client.read(offset, pattern.len() as u32, &mut data).unwrap();
        assert!(data == pattern, "what was written at {offset} is read");
    }
}

#[test]
fn w5_no_example_is_left_out() {
    let names = std::fs::read_dir(examples()).unwrap();
    let names: BTreeSet<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let tested = [BORROW_PRESET, LEND_ONE, LEND_TWO_RAILS, SHARE_ONE_DRIVE];
    let tested = tested.into_iter().chain(RACK).chain(FABRIC).chain(LIBVIRT).map(str::to_owned);
    assert_eq!(names, tested.collect(), "a new example needs a test here");
}

#[test]
fn w5_one_lends_an_image_to_another_machine() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    let images = [("/srv/images/disk.img", image.as_path())];
    let mut lender = start(world.right(), LEND_ONE, &images);
    let line = lines(&mut lender, 1).remove(0);
    let (borrower, mut client) = borrow(world.left(), &line);
    write_and_read(&mut client, 16 * MIB);
    drop(client);
    // The lender comes back with the same line, and the preset is taken again.
    end(lender);
    let mut lender = start(world.right(), LEND_ONE, &images);
    assert_eq!(lines(&mut lender, 1), [line]);
    let socket = format!("/proc/{}/root/run/causeway/nvme0.nbd", borrower.pid());
    write_and_read(&mut connect(Path::new(&socket)).unwrap(), 16 * MIB);
    end(borrower);
    end(lender);
    assert!(std::fs::read(&image).unwrap().iter().any(|byte| *byte != 0), "the image holds it");
}

#[test]
fn w5_one_drive_is_shared_by_functions() {
    const GIB: u64 = 1 << 30;
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    // Holes but for what is written.
    tools::empty_image(&image, 12 * GIB).unwrap();
    let images = [("/srv/images/disk.img", image.as_path())];
    let mut lender = start(world.right(), SHARE_ONE_DRIVE, &images);
    let lines = lines(&mut lender, 4);
    for (line, size) in lines.iter().zip([10 * GIB, GIB, GIB]) {
        let (borrower, mut client) = borrow(world.left(), line);
        write_and_read(&mut client, size);
        end(borrower);
    }
    // The fourth has what the third has.
    let (borrower, mut client) = borrow(world.left(), &lines[3]);
    let mut data = Vec::new();
    client.read(1, 1024, &mut data).unwrap_err();
    client.read(512, 1024, &mut data).unwrap();
    assert!(data.iter().zip(512_u32..).all(|(byte, at)| u32::from(*byte) == at % 251));
    end(borrower);
    end(lender);
}

#[test]
fn w5_two_rails_lend_a_disk_an_image_to_read_and_memory() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let machine = world.right();
    // The addresses of the example, on a machine that borrows from itself: the relay carries no others than its own.
    for address in ["192.0.2.10/32", "2001:db8:2::10/128"] {
        let mut command = machine.command("ip");
        command.args(["address", "add", address, "dev", "lo"]);
        run(command).unwrap();
    }
    let [disk, golden] = ["drive", "golden.img"].map(|name| machine.dir().join(name));
    tools::empty_image(&disk, 16 * MIB).unwrap();
    tools::random_image(&golden, MIB, 1).unwrap();
    let images =
        [("/dev/disk/by-id/nvme-example-1", disk.as_path()), ("/srv/images/golden.img", golden.as_path())];
    let mut lender = start(machine, LEND_TWO_RAILS, &images);
    let lines = lines(&mut lender, 3);
    assert!(lines[0].contains("@192.0.2.10:7411,[2001:db8:2::10]:7411/nvme0"), "both rails: {lines:?}");

    let (borrower, mut client) = borrow(machine, &lines[0]);
    assert_eq!(client.block_sizes().minimum, 4096, "the block size of the example");
    write_and_read(&mut client, 16 * MIB);
    end(borrower);

    let (borrower, mut client) = borrow(machine, &lines[1]);
    let mut data = Vec::new();
    client.read(0, MIB as u32, &mut data).unwrap();
    assert!(data == std::fs::read(&golden).unwrap(), "the image is read");
    assert!(client.flags().read_only());
    assert!(matches!(client.write(0, &[0; 4096]), Err(NbdError::Refused { .. })), "it is not written");
    end(borrower);

    let (borrower, mut client) = borrow(machine, &lines[2]);
    write_and_read(&mut client, 512 * MIB);
    end(borrower);
    end(lender);
}

#[test]
fn w5_a_rack_comes_up_as_one_and_ends_as_one() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.right();
    RACK[1..].iter().for_each(|node| _ = copy(machine, node, &[]));
    let mut rack = start_as(&["up"], machine, RACK[0], &[]);
    rack.wait_line("its edge", START_TIMEOUT, |line| line.starts_with("rack-desk serves ")).unwrap();
    // The rack says it, and it lies beside the files of the rack.
    let mut client = connect(&machine.dir().join("rack-nvme0.nbd")).unwrap();
    write_and_read(&mut client, 64 * MIB);
    let processes =
        poll_until("two nodes, each with two cards, and who looks after them", START_TIMEOUT, || {
            let processes = family(rack.pid());
            Ok((processes.len() == 7).then_some(processes))
        })
        .unwrap();
    end(rack);
    assert!(processes.iter().all(|pid| !is_running(*pid)), "nobody is left behind");
}

/// As its first lines say; and again, with the same folder.
#[test]
fn w5_a_rack_with_a_manager_gives_and_takes() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let machine = world.right();
    FABRIC[1..].iter().for_each(|node| _ = copy(machine, node, &[]));
    let ask = |arguments: &[&str]| {
        let mut command = machine.command(binary().unwrap());
        command.args(arguments).env("CAUSEWAY_MANAGER", machine.dir().join("fabric/admin.toml"));
        let output = command.output().unwrap();
        Ok(output.status.success().then(|| String::from_utf8(output.stdout).unwrap()))
    };
    let is_there = |list: &str| list.contains("fabric-store/nvme0") && list.contains(" applied ");
    let socket = machine.dir().join("vm1-disk.sock");
    let mut rack = start_as(&["up"], machine, FABRIC[0], &[]);
    let url = "manager serves https://localhost:7443";
    rack.wait_line("its manager", START_TIMEOUT, |line| line == url).unwrap();
    let assign = ["assign", "fabric-store/nvme0", "vm1/disk"];
    poll_until("an assignment", START_TIMEOUT, || ask(&assign)).unwrap();
    poll_until("the slot's socket", START_TIMEOUT, || Ok(socket.exists().then_some(()))).unwrap();
    end(rack);
    // Nobody has said anything since: the loan is there again.
    let mut rack = start_as(&["up"], machine, FABRIC[0], &[]);
    rack.wait_line("its manager", START_TIMEOUT, |line| line == url).unwrap();
    poll_until("the slot's socket", START_TIMEOUT, || Ok(socket.exists().then_some(()))).unwrap();
    let loans = || Ok(ask(&["loan", "list"])?.filter(|list| is_there(list)));
    poll_until("the loan", START_TIMEOUT, loans).unwrap();
    let processes = poll_until("a manager and two nodes, each with two cards", START_TIMEOUT, || {
        let processes = family(rack.pid());
        Ok((processes.len() == 8).then_some(processes))
    })
    .unwrap();
    poll_until("the end of it", START_TIMEOUT, || ask(&["unassign", "fabric-store/nvme0"])).unwrap();
    poll_until("an empty slot", START_TIMEOUT, || Ok((!socket.exists()).then_some(()))).unwrap();
    end(rack);
    assert!(processes.iter().all(|pid| !is_running(*pid)), "nobody is left behind");
}
