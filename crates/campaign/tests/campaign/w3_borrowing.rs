//! W3: what a user does with `lend` and `borrow`: several sources, read-only, the tools that speak NBD, several
//! connections, a second borrower, giving back.

use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, borrow_command, status};
use campaign::gate;
use campaign::load::{Load, Model, connect};
use campaign::nbd_client::{Errno, NbdError};
use campaign::process::{Outcome, run, run_to_end};
use campaign::tools::{self, FioJob};
use campaign::world::{Machine, World, WorldConfig};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn tool(machine: &Machine, program: &str, arguments: &[&str]) -> String {
    let mut command = machine.command(program);
    command.args(arguments);
    run(command).unwrap()
}

/// `borrow` that is expected to end by itself.
fn refused(machine: &Machine, name: &str, line: &str) -> Outcome {
    let command = borrow_command(machine, name, line, &["--io-timeout", "5"]).unwrap();
    run_to_end(command, &machine.dir().join("logs"), name, START_TIMEOUT).unwrap()
}

#[test]
fn w3_the_tools_that_speak_nbd_work() {
    let _place = gate::computes();
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 64 * MIB).unwrap();
    let mut lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let (machine, uri) = (world.left(), borrower.uri.as_str());

    let info: serde_json::Value = serde_json::from_str(&tool(machine, "nbdinfo", &["--json", uri])).unwrap();
    let export = &info["exports"][0];
    assert_eq!(info["protocol"], "newstyle-fixed", "{info}");
    assert_eq!(export["export-size"], 64 * MIB, "{info}");
    for ability in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"] {
        assert_eq!(export[ability], true, "{ability}: {info}");
    }
    assert_eq!(export["is_read_only"], false, "{info}");
    assert_eq!(info["structured"], true, "{info}");

    let original = machine.dir().join("original.img");
    let back = machine.dir().join("back.img");
    let [original_path, back_path] = [&original, &back].map(|path| path.to_str().unwrap());
    tools::random_image(&original, 64 * MIB, 1).unwrap();
    let expected = tools::sha256(&original).unwrap();
    let info = tool(machine, "qemu-img", &["info", "--output=json", "-f", "raw", uri]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["virtual-size"], 64 * MIB, "{info}");
    tool(machine, "qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", original_path, uri]);
    tool(machine, "nbdcopy", &["--connections=4", uri, back_path]);
    assert_eq!(tools::sha256(&back).unwrap(), expected, "written by qemu-img, read by nbdcopy");
    // Sparse: what nbdcopy finds to be zeroes it writes as zeroes or trims.
    let mut sparse = std::fs::read(&original).unwrap();
    sparse[(8 * MIB) as usize..(24 * MIB) as usize].fill(0);
    std::fs::write(&original, &sparse).unwrap();
    tool(machine, "nbdcopy", &["--flush", "--connections=4", original_path, uri]);
    tool(machine, "qemu-img", &["convert", "-f", "raw", "-O", "raw", uri, back_path]);
    let expected = tools::sha256(&original).unwrap();
    assert_eq!(tools::sha256(&back).unwrap(), expected, "written by nbdcopy, read by qemu-img");

    let job =
        FioJob { uri, pattern: "randrw", block_size: "4k", depth: 32, offset: 0, size: 16 * MIB, seed: 1 };
    job.start(machine, "fio").unwrap().wait_success(LONG).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
}

#[test]
fn w3_several_sources_and_several_connections() {
    let _place = gate::computes();
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 8 * MIB).unwrap();
    let sources = [image.to_str().unwrap(), "ram:16M", "ram:24M"];
    let lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let mut borrowers = Vec::new();
    for (index, line) in lender.lines.iter().enumerate() {
        let options = ["--io-timeout", "120"];
        borrowers
            .push(Borrower::start_as(world.left(), &format!("borrower{index}"), line, &options).unwrap());
    }
    let mut loads = Vec::new();
    for (index, borrower) in borrowers.iter().enumerate() {
        let client = connect(&borrower.socket).unwrap();
        assert_eq!(client.size(), (index as u64 + 1) * 8 * MIB);
        assert!(client.flags().multi_conn());
        for connection in 0..4 {
            let seed = (index * 4 + connection) as u64;
            let model = Model::new(connection as u64 * MIB, MIB, seed);
            loads.push((index, Load::start(&borrower.socket, model, 4).unwrap()));
        }
    }
    for (index, load) in &loads {
        load.wait_done(1000, 4 * LONG).unwrap_or_else(|error| {
            let done: Vec<_> = loads.iter().map(|(index, load)| (*index, load.done())).collect();
            let borrower = status(world.left(), &format!("borrower{index}"));
            panic!("{error}\n{done:?}\n{borrower:?}\n{:?}", status(world.right(), "lender"))
        });
    }
    for (index, load) in loads {
        load.stop_whole(&borrowers[index].socket).unwrap();
    }
    let status = status(world.right(), "lender").unwrap();
    assert_eq!(status["devices"].as_array().unwrap().len(), 3, "{status}");
    assert!(
        status["devices"].as_array().unwrap().iter().all(|device| device["lent_to"].is_string()),
        "{status}"
    );
    assert_eq!(status["devices"][0]["source"], image.to_str().unwrap());
}

#[test]
fn w3_a_read_only_loan_refuses_every_change() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::random_image(&image, 8 * MIB, 1).unwrap();
    let before = tools::sha256(&image).unwrap();
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &["--read-only"]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    assert!(client.flags().read_only());
    let changes = [client.write(0, &[0; 4096]), client.write_zeroes(0, 4096), client.trim(0, 4096)];
    for change in changes {
        // The client itself may know that the server offers no such command.
        let is_refused = |error: &NbdError| {
            matches!(error, NbdError::Refused { errno: Errno::EPERM, .. } | NbdError::Usage(_))
        };
        assert!(change.as_ref().is_err_and(is_refused), "{change:?}");
    }
    let copy = world.left().dir().join("copy.img");
    tools::nbdcopy(world.left(), &borrower.uri, copy.to_str().unwrap()).unwrap();
    assert_eq!(tools::sha256(&copy).unwrap(), before);
    drop((borrower, lender));
    assert_eq!(tools::sha256(&image).unwrap(), before);
}

#[test]
fn w3_a_second_borrower_is_refused_until_the_first_gives_back() {
    let world = World::new(&WorldConfig::default()).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 8 * MIB).unwrap();
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let line = &lender.lines[0];
    let mut first = Borrower::start_as(world.left(), "first", line, &[]).unwrap();
    let load = Load::start(&first.socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
    load.wait_done(500, LONG).unwrap();

    let outcome = refused(world.left(), "second", line);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("in use by first, for "), "by whom, for how long: {outcome:?}");
    assert!(!world.left().dir().join("second.sock").exists(), "a refused borrower leaves no socket");
    load.wait_done(500, LONG).unwrap();

    assert_eq!(first.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", first.process.tail());
    let mut model = load.stop().unwrap().model;
    assert!(!first.socket.exists(), "an ended borrower leaves no socket");
    // Given back, so that another may borrow at once: one that comes too early is refused.
    let second = Borrower::start_as(world.left(), "second", line, &[]).unwrap();
    model.verify(&mut connect(&second.socket).unwrap()).unwrap();
    // From the other machine's side too: the lender's own machine may borrow, and is refused likewise.
    let outcome = refused(world.right(), "third", line);
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.stderr.contains("in use by second, for "), "{outcome:?}");
}
