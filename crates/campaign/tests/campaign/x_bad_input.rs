//! X: bad input is refused by name, trouble of the lender's disk is an error of the borrower's request and nothing
//! more, and keys stay where they belong.

use crate::{events, switches};
use campaign::causeway::{
    Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, borrow_command, borrower_socket, card, kill_card,
    lend_command, status,
};
use campaign::load::connect;
use campaign::lossy::LossyFs;
use campaign::nbd_client::{Errno, NbdError};
use campaign::process::{Outcome, family, poll_until, run, run_to_end};
use campaign::world::{Machine, Mesh, World, WorldConfig};
use campaign::{capture, scale, tools};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

fn world() -> World {
    World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap()
}

/// Runs a command that is expected to be refused.
fn refused(machine: &Machine, name: &str, command: Command, code: i32, words: &[&str]) -> Outcome {
    let outcome = run_to_end(command, &machine.dir().join("logs"), name, START_TIMEOUT).unwrap();
    assert_eq!(outcome.code, Some(code), "{name}: {outcome:?}");
    for word in words {
        assert!(outcome.stderr.contains(word), "{name}: {word:?} is missing in {outcome:?}");
    }
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    assert_eq!(outcome.stdout, "", "results only");
    outcome
}

fn refused_lend(machine: &Machine, source: &str, code: i32, words: &[&str]) -> Outcome {
    let command = lend_command(machine, "refused", &[source], &[]).unwrap();
    refused(machine, "refused", command, code, words)
}

/// Where a process may open few files, no machine is to take those of another one.
#[test]
fn x1_more_slots_than_there_are_files_for_are_refused() {
    let world = world();
    let machine = world.left();
    let file = machine.dir().join("node.toml");
    let slot = |at| format!("[[domains.slots]]\nname = \"s{at}\"\nsocket = \"s{at}.vfio\"\n");
    let slots: String = (0..3).map(slot).collect();
    std::fs::write(&file, format!("name = \"a\"\n[[domains]]\nname = \"vm1\"\nkind = \"vm\"\n{slots}"))
        .unwrap();
    let mut command = machine.command("prlimit");
    command.arg("--nofile=1024:1024").arg(binary().unwrap()).args(["node", "--config"]).arg(&file);
    refused(
        machine,
        "few",
        command,
        2,
        &["node.toml:11", "1024 files", "2 slots", "allow 1536", "ulimit -n"],
    );
}

#[test]
fn x1_configuration_errors_name_file_line_and_remedy() {
    let world = world();
    let machine = world.left();
    let file = machine.dir().join("node.toml");
    let shown = file.to_str().unwrap();
    // What is in the file, on which line the mistake is, and what the message must hold beside.
    let cases: [(&str, u32, &[&str]); 6] = [
        ("name = \"a\"\ncolour = \"red\"\n", 2, &["colour"]),
        ("name = \"a\"\n[[devices]]\nfunction = \"nvme0\"\nsource = \"ram:1x\"\n", 4, &["1x"]),
        ("name = \"a\"\n[[devices]]\nfunction = \"nvme0\"\nreadonly = true\n", 4, &["readonly", "read_only"]),
        ("name = \"a\"\n[[rails]]\nname = \"a\"\nlisten = \"10.0.0.300\"\n", 4, &["10.0.0.300"]),
        ("name = \"a/b\"\n", 1, &["a/b"]),
        ("name = \"a\n", 1, &[]),
    ];
    for (text, line, words) in cases {
        std::fs::write(&file, text).unwrap();
        let mut command = machine.command(binary().unwrap());
        command.args(["node", "--config", shown]);
        let place = format!("{shown}:{line}");
        refused(machine, "node", command, 2, &[&[place.as_str()], words].concat());
    }
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config", "/nonexistent/node.toml"]);
    refused(machine, "node", command, 2, &["/nonexistent/node.toml"]);
}

#[test]
fn x1_a_line_with_a_typing_error_is_recognised() {
    let world = world();
    let machine = world.left();
    let mut lender = Lender::start(machine, &["ram:1M"], &[]).unwrap();
    let line = lender.lines[0].clone();
    lender.process.kill_tree().unwrap();
    let start = "causeway://".len();
    let at = line.find('@').unwrap();
    let mut typed: Vec<String> = (start..at)
        .step_by(7)
        .map(|index| {
            let mut bytes = line.clone().into_bytes();
            bytes[index] = if bytes[index] == b'x' { b'y' } else { b'x' };
            String::from_utf8(bytes).unwrap()
        })
        .collect();
    typed.push(line.replace("10.77.0.1", "10.77.0.7"));
    typed.push(line.replace(":7411", ":7412"));
    typed.push(line.replace("/nvme0", "/nvme1"));
    typed.push(line[..line.len() - 1].to_owned());
    for line in typed {
        let command = borrow_command(machine, "typed", &line, &["--io-timeout", "1"]).unwrap();
        let outcome = refused(machine, "typed", command, 2, &[]);
        assert!(!capture::contains(outcome.stderr.as_bytes(), &line.as_bytes()[start..at]), "{outcome:?}");
    }
}

#[test]
fn x2_an_image_that_cannot_be_lent_is_refused_by_name() {
    let world = world();
    let machine = world.right();
    let path = |name: &str| machine.dir().join(name).to_str().unwrap().to_owned();
    refused_lend(machine, &path("missing.img"), 3, &["missing.img"]);
    let flash = format!("flash:{},scale=4", path("missing.img"));
    refused_lend(machine, &flash, 3, &["missing.img,scale=4: no such file", "missing.img?scale=4"]);
    let sized = |name: &str, size: u64| {
        tools::empty_image(&machine.dir().join(name), size).unwrap();
        path(name)
    };
    refused_lend(machine, &sized("empty.img", 0), 2, &["empty.img"]);
    refused_lend(machine, &sized("small.img", 100), 2, &["small.img"]);
    refused_lend(machine, &sized("odd.img", MIB + 100), 2, &["odd.img", "multiple"]);
    refused_lend(machine, &path("logs"), 3, &["logs"]);
    refused_lend(machine, "/dev/null", 3, &["/dev/null"]);

    // Nobody may read it, and without capabilities that holds for root too.
    let image = sized("private.img", MIB);
    run({
        let mut command = Command::new("chmod");
        command.args(["000", &image]);
        command
    })
    .unwrap();
    let lend = lend_command(machine, "refused", &[&image], &[]).unwrap();
    let words: Vec<_> = lend.get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
    let program = words.iter().position(|word| *word == binary().unwrap().to_str().unwrap()).unwrap();
    let mut command = machine.command("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--"]).args(&words[program..]);
    refused(machine, "refused", command, 3, &["private.img", "ermission denied"]);

    let image = sized("lent.img", MIB);
    let mut lender = Lender::start(machine, &[&image], &[]).unwrap();
    let elsewhere = ["--listen", "10.77.0.2:7500"];
    let command = lend_command(machine, "second", &[&image], &elsewhere).unwrap();
    refused(machine, "second", command, 3, &["lent.img"]);
    lender.process.kill_tree().unwrap();
    let again = Lender::start_as(machine, "second", &[&image], &elsewhere);
    assert!(again.is_ok(), "the lock ends with its node: {:?}", again.err());
}

#[test]
fn x2_a_socket_path_in_use_or_too_long_is_refused() {
    let world = world();
    let machine = world.left();
    let lender = Lender::start(machine, &["ram:1M", "ram:1M"], &[]).unwrap();
    let _borrower = Borrower::start_as(machine, "first", &lender.lines[0], &[]).unwrap();
    let borrow = |path: &str| {
        let mut command = machine.command(binary().unwrap());
        let line = machine.dir().join("second.line");
        std::fs::write(&line, &lender.lines[1]).unwrap();
        command.args(["borrow", &format!("@{}", line.display()), "--nbd", path, "--name", "second"]);
        command.args(["--state-dir", machine.dir().join("state/second").to_str().unwrap()]);
        command
    };
    let in_use = borrower_socket(machine, "first");
    refused(machine, "second", borrow(in_use.to_str().unwrap()), 3, &["first.sock", "in use"]);
    let long = format!("{}/{}", machine.dir().display(), "folder/".repeat(20));
    refused(machine, "second", borrow(&long), 2, &[&long]);
    refused(machine, "second", borrow("/nonexistent/folder/socket"), 3, &["/nonexistent/folder/socket"]);
    let file = machine.dir().join("a-file");
    std::fs::write(&file, "precious").unwrap();
    refused(machine, "second", borrow(file.to_str().unwrap()), 3, &["a-file"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    connect(&in_use).unwrap().read(0, 4096, &mut Vec::new()).unwrap();
}

#[test]
fn x3_a_full_disk_is_a_write_error_and_the_node_lives_on() {
    let world = world();
    let folder = world.right().dir().join("full");
    std::fs::create_dir(&folder).unwrap();
    let mut mount = world.right().command("mount");
    mount.args(["-t", "tmpfs", "-o", "size=8m", "full"]).arg(&folder);
    run(mount).unwrap();
    let image = folder.join("disk.img");
    let mut truncate = world.right().command("truncate");
    truncate.args(["--size=64M"]).arg(&image);
    run(truncate).unwrap();
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    let chunk = vec![7; MIB as usize];
    let mut errors = Vec::new();
    for index in 0..64 {
        if let Err(error) = client.write(index * MIB, &chunk) {
            errors.push(error);
        }
    }
    assert!((50..=60).contains(&errors.len()), "8 of 64 MiB have space: {} errors", errors.len());
    for error in errors {
        assert!(matches!(error, NbdError::Refused { errno: Errno::ENOSPC, .. }), "{error}");
    }
    let log = lender.process.tail();
    assert_eq!(log.matches("no space is left where the image lies").count(), 1, "{log}");
    assert!(log.contains("disk.img"), "{log}");
    let mut data = Vec::new();
    client.read(0, MIB as u32, &mut data).unwrap();
    assert!(data == chunk, "what had space is there");
    client.write(MIB, &vec![8; MIB as usize]).unwrap();
    client.flush().unwrap();
    client.read(MIB, MIB as u32, &mut data).unwrap();
    assert!(data == vec![8; MIB as usize]);
    assert_eq!(card(&status(world.right(), "lender").unwrap()).unwrap().restarts, 0, "no card died of it");
    assert_eq!(card(&status(world.left(), "borrower").unwrap()).unwrap().restarts, 0, "no card died of it");
}

#[test]
fn x3_an_image_that_is_cut_off_while_it_is_lent_is_an_error_and_not_zeroes() {
    for memory in [false, true] {
        let world = world();
        let folder = world.right().dir().join("images");
        std::fs::create_dir(&folder).unwrap();
        if memory {
            let mut mount = world.right().command("mount");
            mount.args(["-t", "tmpfs", "images"]).arg(&folder);
            run(mount).unwrap();
        }
        let image = folder.join("disk.img");
        let resize = |size: &str| {
            let mut truncate = world.right().command("truncate");
            truncate.args([&format!("--size={size}")]).arg(&image);
            run(truncate).unwrap();
        };
        resize("16M");
        let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
        let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
        let mut client = connect(&borrower.socket).unwrap();
        client.write(0, &[1; 4096]).unwrap();
        client.write(8 * MIB, &[2; 4096]).unwrap();
        client.flush().unwrap();
        resize("4M");
        // Most images grow by being written behind their end. This one does not.
        assert!(client.write(12 * MIB, &[3; 4096]).is_err(), "in memory: {memory}");
        let mut data = Vec::new();
        assert!(client.read(8 * MIB, 4096, &mut data).is_err(), "what was flushed is not zeroes");
        assert!(client.flush().is_err(), "what was flushed is gone");
        client.read(0, 4096, &mut data).unwrap();
        assert_eq!((data[0], data[4095]), (1, 1), "the rest is there");
        // Made as long as it was, it does not hold what it held. The next card knows that too.
        resize("16M");
        kill_card(world.right(), "lender", LONG).unwrap();
        poll_until("the successor to know", LONG, || {
            Ok(client.read(8 * MIB, 4096, &mut data).is_err().then_some(()))
        })
        .unwrap();
        assert!(client.flush().is_err(), "in memory: {memory}");
        let log = lender.process.tail();
        assert_eq!(log.matches("the image has become shorter while it is lent").count(), 1, "{log}");
    }
}

#[test]
fn x3_a_disk_that_fails_requests_is_an_error_each_time_and_one_line() {
    let world = world();
    let machine = world.right();
    let mut disk = LossyFs::mount(machine, 16 * MIB).unwrap();
    let source = disk.image().to_str().unwrap().to_owned();
    let mut lender = Lender::start(machine, &[&source], &[]).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    for round in 0..8 {
        assert_eq!(disk.fail().unwrap(), round, "each round has failed one write");
        let error = client.write(round * MIB, &[7; 4096]).unwrap_err();
        assert!(matches!(error, NbdError::Refused { errno: Errno::EIO, .. }), "{error}");
    }
    assert_eq!(disk.failed().unwrap(), 8);
    client.write(0, &[8; 4096]).unwrap();
    client.flush().unwrap();
    let mut data = Vec::new();
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!(data, [8; 4096], "it has failed only what it was asked then");
    assert_eq!(card(&status(machine, "lender").unwrap()).unwrap().restarts, 0, "no card died of it");
    let mut follower = events::follow(machine, "lender");
    assert_eq!(events::next(&mut follower, "image-failed")["source"], source);
    // What the card says later has come: so has all that it had to say of the image.
    drop(client);
    borrower.process.terminate(STOP_TIMEOUT).unwrap();
    events::next(&mut follower, "loan-returned");
    lender.process.wait_log("the line", LONG, |line| line.contains("has failed a request")).unwrap();
    let log = lender.process.tail();
    assert_eq!(log.matches("the image has failed a request").count(), 1, "{log}");
    assert_eq!(events::all(machine, "lender", "image-failed").len(), 1, "{log}");
}

/// Does something to the name of an image that is lent: this event says so once, with these words, and the image is
/// served on.
fn said_once_and_served_on(kind: &str, words: &str, rename: impl FnOnce(&Path)) {
    let world = world();
    let machine = world.right();
    let image = machine.dir().join("disk.img");
    tools::empty_image(&image, 16 * MIB).unwrap();
    let source = image.to_str().unwrap();
    let mut lender = Lender::start(machine, &[source], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    let file = File::options().write(true).open(&image).unwrap();
    let mut follower = events::follow(machine, "lender");
    rename(&image);
    assert_eq!(events::next(&mut follower, kind)["source"], source);
    // The look that finds the image larger is a later one, and has found the same of its name.
    file.set_len(32 * MIB).unwrap();
    events::next(&mut follower, "image-grown");
    // The next card has it too, though it could not open it.
    kill_card(machine, "lender", LONG).unwrap();
    let mut data = Vec::new();
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!(data, [1; 4096], "{kind}");
    client.write(0, &[2; 4096]).unwrap();
    client.flush().unwrap();
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!(data, [2; 4096], "{kind}");
    lender.process.wait_log("the growth", LONG, |line| line.contains("the image has grown")).unwrap();
    let log = lender.process.tail();
    assert_eq!(log.matches(words).count(), 1, "{log}");
    for other in ["image-removed", "image-displaced"] {
        let said = events::all(machine, "lender", other).len();
        assert_eq!(said, usize::from(other == kind), "{other}: {log}");
    }
}

const REMOVED: &str = "the image was removed";
const DISPLACED: &str = "another file lies where the image was";

fn put_another_file(there: &Path) {
    let other = there.with_extension("new");
    tools::empty_image(&other, 16 * MIB).unwrap();
    std::fs::rename(&other, there).unwrap();
}

#[test]
fn x3_an_image_that_is_removed_while_it_is_lent_is_served_on_and_said_once() {
    said_once_and_served_on("image-removed", REMOVED, |image| std::fs::remove_file(image).unwrap());
}

#[test]
fn x3_an_image_that_another_file_displaces_while_it_is_lent_is_served_on_and_said_once() {
    said_once_and_served_on("image-displaced", DISPLACED, |image| {
        std::fs::rename(image, image.with_extension("old")).unwrap();
        put_another_file(image);
    });
    // One that has no other name, and ends with its node.
    said_once_and_served_on("image-displaced", DISPLACED, put_another_file);
}

#[test]
fn x3_an_address_nobody_answers_at_ends_with_4() {
    let world = world();
    let mut lender = Lender::start(world.right(), &["ram:1M"], &[]).unwrap();
    lender.process.kill_tree().unwrap();
    let command = borrow_command(world.left(), "lonely", &lender.lines[0], &["--io-timeout", "2"]).unwrap();
    let outcome = refused(world.left(), "lonely", command, 4, &["10.77.0.2:7411", "2 s"]);
    assert!(outcome.took >= Duration::from_millis(1_900), "{outcome:?}");
    assert!(outcome.took < Duration::from_secs(6), "{outcome:?}");
    assert!(!borrower_socket(world.left(), "lonely").exists(), "nothing is left of it");
}

#[test]
fn x3_another_node_at_the_address_is_named() {
    let mesh = Mesh::new(2, 1).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let listen = ["--listen", "10.78.0.2:7411"];
    let mut former = Lender::start_as(right, "former", &["ram:1M"], &listen).unwrap();
    let line = former.lines[0].clone();
    former.process.terminate(STOP_TIMEOUT).unwrap();
    let other = Lender::start_as(right, "other", &["ram:1M"], &listen).unwrap();
    let ids = ["former", "other"].map(|name| switches::id(right, name));
    let command = borrow_command(left, "misled", &line, &["--io-timeout", "12"]).unwrap();
    refused(left, "misled", command, 4, &["10.78.0.2:7411", &ids[0], &ids[1]]);
    drop(other);
}

#[test]
fn x4_no_key_in_a_log_a_process_list_or_a_core_dump() {
    let world = world();
    let trace = ["--log-level", "trace"];
    let mut lender = Lender::start(world.right(), &["ram:4M"], &trace).unwrap();
    let line = lender.lines[0].clone();
    let key = line["causeway://".len()..line.find('@').unwrap()].to_owned();
    assert!(key.len() >= 40, "{line}");
    // The line typed as an argument, the way that is hardest to hide.
    let socket = borrower_socket(world.left(), "borrower");
    let mut command = world.left().command(binary().unwrap());
    command.args(["borrow", &line, "--name", "borrower", "--nbd", socket.to_str().unwrap()]).args(trace);
    command.args(["--state-dir", world.left().dir().join("state/borrower").to_str().unwrap()]);
    let mut borrower = world.left().spawn("borrower", command).unwrap();
    borrower.wait_line("its edge", START_TIMEOUT, |line| line.starts_with("nbd+unix://")).unwrap();
    let mut client = connect(&socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();

    for (machine, process, name) in
        [(world.left(), &borrower, "borrower"), (world.right(), &lender.process, "lender")]
    {
        kill_card(machine, name, LONG).unwrap();
        client.write(0, &[2; 4096]).unwrap();
        campaign::causeway::wait_standby(machine, name, LONG).unwrap();
        let processes = family(process.pid());
        assert_eq!(processes.len(), 3, "an agent, a card, and one that stands by");
        for pid in processes {
            for file in ["cmdline", "environ"] {
                let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
                assert!(!capture::contains(&text, key.as_bytes()), "the key is in {file} of {name}");
            }
            let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
            let words: Vec<_> = core.split_whitespace().collect();
            assert_eq!(words[4..6], ["0", "0"], "{name} may dump core: {core}");
        }
    }
    // Refusals and errors print too.
    let command =
        borrow_command(world.left(), "second", &line, &["--io-timeout", "3", "--log-level", "trace"]);
    refused(world.left(), "second", command.unwrap(), 3, &["in use"]);
    borrower.terminate(LONG).unwrap();
    lender.process.terminate(LONG).unwrap();

    let stored = std::fs::read_to_string(world.right().dir().join("state/lender/key")).unwrap();
    let stored = stored.split_whitespace().next().unwrap().to_owned();
    assert_eq!(stored.len(), 64, "the node's own secret in hex");
    // Each as text, and any sixteen characters of it.
    for secret in [&key, &stored] {
        for piece in secret.as_bytes().windows(16) {
            for machine in [world.left(), world.right()] {
                for entry in std::fs::read_dir(machine.dir().join("logs")).unwrap() {
                    let log = entry.unwrap().path();
                    let text = std::fs::read(&log).unwrap();
                    // The lender's own standard output is where the line belongs.
                    let text = String::from_utf8_lossy(&text).replace(&line, "");
                    assert!(!text.is_empty() || log.ends_with("second.out"), "{} is empty", log.display());
                    assert!(!capture::contains(text.as_bytes(), piece), "a key is in {}", log.display());
                }
            }
        }
    }
}

#[test]
fn x4_garbage_at_every_door_harms_nobody() {
    let world = world();
    let lender = Lender::start(world.right(), &["ram:4M"], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(0, &[3; 4096]).unwrap();
    let control = world.left().dir().join("run/causeway/borrower.sock");
    let mut random = base::Random::new(scale::first_seed());
    for socket in [&borrower.socket, &control] {
        for round in 0..200 {
            use std::io::Write;
            let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
            let mut bytes = vec![0; random.below(5000) as usize];
            random.fill(&mut bytes);
            if round % 4 == 0 {
                // A good beginning, for what lies behind it.
                bytes.splice(0..0, *b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff");
            }
            // The other end may hang up at any byte.
            let _ = stream.write_all(&bytes);
        }
    }
    let mut data = Vec::new();
    poll_until("a read beside garbage", LONG, || Ok(client.read(0, 4096, &mut data).ok())).unwrap();
    assert_eq!(data, [3; 4096]);
    // A connection that was hung up may occupy its place for a moment.
    let mut another = poll_until("another connection", LONG, || Ok(connect(&borrower.socket).ok())).unwrap();
    another.read(0, 4096, &mut data).unwrap();
    for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
        assert_eq!(card(&status(machine, name).unwrap()).unwrap().restarts, 0, "{name} died of it");
    }
}
