//! W2, W3, W8: many functions of one drive lent each on its own, limits, a shared namespace, images that change their
//! size, and loans that end under load.

use campaign::causeway::{
    Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, Watch, binary, lend_command, status,
};
use campaign::load::{Load, Model, connect};
use campaign::nbd_client::{Errno, NbdError};
use campaign::process::{Process, poll_until, resident_kib, run_to_end};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, scale, tools};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn world() -> (World, PathBuf) {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let image = world.right().dir().join("disk.img");
    tools::empty_image(&image, 64 * MIB).unwrap();
    (world, image)
}

fn resize(image: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(image).unwrap().set_len(bytes).unwrap();
}

/// A running `causeway node`, from the text of its file.
fn start_node(machine: &Machine, name: &str, text: &str) -> Process {
    machine.spawn(name, node_command(machine, name, text)).unwrap()
}

fn node_command(machine: &Machine, name: &str, text: &str) -> Command {
    let file = machine.dir().join(format!("{name}.toml"));
    std::fs::write(&file, text).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.arg("node").arg("--config").arg(&file);
    command
}

fn lines(lender: &mut Process, count: usize) -> Vec<String> {
    let is_line = |line: &str| line.starts_with("causeway://");
    (0..count).map(|_| lender.wait_line("a line", START_TIMEOUT, is_line).unwrap()).collect()
}

/// `causeway lend --functions` of an image, and its lines.
fn lend(machine: &Machine, image: &str, functions: usize) -> (Process, Vec<String>) {
    let count = functions.to_string();
    let command = lend_command(machine, "lender", &[image], &["--functions", &count]).unwrap();
    let mut lender = machine.spawn("lender", command).unwrap();
    let lines = lines(&mut lender, functions);
    (lender, lines)
}

/// One node that borrows all of these, and the sockets.
fn borrow_all(machine: &Machine, lines: &[String]) -> (Process, Vec<PathBuf>) {
    let socket = |index: usize| machine.dir().join(format!("{index}.nbd"));
    let loans: Vec<String> = (lines.iter().enumerate())
        .map(|(index, line)| format!("[[loans]]\nline = '{line}'\nnbd = '{}'\n", socket(index).display()))
        .collect();
    let mut borrower = start_node(machine, "borrower", &loans.concat());
    for _ in lines {
        borrower.wait_line("an edge", START_TIMEOUT, |line| line.starts_with("nbd+unix://")).unwrap();
    }
    (borrower, (0..lines.len()).map(socket).collect())
}

fn ends(mut node: Process) {
    assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
}

fn limit(machine: &Machine, arguments: &[&str]) -> campaign::process::Outcome {
    let mut command = machine.command(binary().unwrap());
    command.arg("limit").args(arguments).args(["--name", "lender"]);
    run_to_end(command, &machine.dir().join("logs"), "limit", START_TIMEOUT).unwrap()
}

/// Every load ends without an error, and every drive holds what its load wrote.
fn verify(loads: Vec<Load>, sockets: &[PathBuf]) {
    for (load, socket) in loads.into_iter().zip(sockets) {
        let mut report = load.stop().unwrap();
        assert_eq!((report.failed, report.failed_flushes, &report.lost), (0, 0, &None));
        report.model.verify(&mut connect(socket).unwrap()).unwrap();
    }
}

#[test]
fn w2_sixteen_functions_under_load_survive_kills_of_both_cards() {
    let _place = gate::computes();
    let (world, image) = world();
    let (lender, lines) = lend(world.right(), image.to_str().unwrap(), 16);
    let (borrower, sockets) = borrow_all(world.left(), &lines);
    let seed = scale::first_seed();
    let loads: Vec<Load> = (0_u64..)
        .zip(&sockets)
        .map(|(index, socket)| Load::start(socket, Model::new(0, MIB, seed + index), 2).unwrap())
        .collect();
    let watches =
        [(world.right(), "lender"), (world.left(), "borrower")].map(|(it, name)| Watch::new(it, name));
    let mut recoveries = Vec::new();
    for round in 0..scale::kills(8) {
        for load in &loads {
            load.wait_done(10, PATIENCE).unwrap();
        }
        let watch = &watches[round as usize % 2];
        let before = watch.card().unwrap();
        campaign::process::kill(before.pid.unwrap()).unwrap();
        let after = watch.recovered(before.generation, PATIENCE).unwrap();
        recoveries.extend(after.last_recovery_s);
    }
    loads.iter().for_each(|load| load.wait_done(10, PATIENCE).unwrap());
    let card = status(world.right(), "lender").unwrap()["cards"][0]["pid"].as_u64().unwrap() as u32;
    scale::report(&format!("w2: the lending card of 16 functions has {} KiB", resident_kib(card).unwrap()));
    verify(loads, &sockets);
    ends(borrower);
    ends(lender);
    scale::report(&scale::spread("w2: recovery with 16 functions under load", recoveries));
}

#[test]
fn w2_sixty_four_functions_and_a_noisy_neighbour() {
    let _place = gate::computes();
    let (world, image) = world();
    let (lender, lines) = lend(world.right(), image.to_str().unwrap(), 64);
    let (borrower, sockets) = borrow_all(world.left(), &lines);
    let quiet: Vec<Load> = (0_u64..)
        .zip(&sockets[1..])
        .map(|(index, socket)| Load::start(socket, Model::new(0, MIB / 4, index), 1).unwrap())
        .collect();
    quiet.iter().for_each(|load| load.wait_done(3, PATIENCE).unwrap());
    let noise = Load::start(&sockets[0], Model::new(0, MIB, 999), 64).unwrap();
    noise.wait_done(200, PATIENCE).unwrap();
    let done = || -> Vec<u64> { quiet.iter().chain([&noise]).map(Load::done).collect() };
    let before = done();
    // 64 clients on as many functions, and perhaps a machine with other work.
    quiet[0].wait_done(300, 10 * PATIENCE).unwrap();
    let mut each: Vec<u64> = done().iter().zip(&before).map(|(after, before)| after - before).collect();
    let noisy = each.pop().unwrap();
    each.sort_unstable();
    let (median, least) = (each[31], each[0]);
    scale::report(&format!(
        "w2: while 63 quiet functions had {median} requests each (least {least}), a noisy neighbour had {noisy}"
    ));
    // Shares of a medium are tested beside it (`device`, `FairShare`); here clients and cards are the limit, and each
    // request waits as long as any other. With 64 of them under way a neighbour gets 64 times what each of the
    // others gets, and one that came before them would get all.
    assert!(noisy < 2 * 64 * median, "{noisy} of the noisy one, {median} of each quiet one");
    assert!(least * 2 > median, "nobody starves: {each:?}");
    for load in quiet.into_iter().chain([noise]) {
        let report = load.stop().unwrap();
        assert_eq!((report.failed, report.failed_flushes, report.lost), (0, 0, None));
    }
    ends(borrower);
    ends(lender);
}

#[test]
fn w2_a_limit_is_changed_while_the_function_is_used() {
    let _place = gate::alone();
    let (world, image) = world();
    let (lender, lines) = lend(world.right(), image.to_str().unwrap(), 2);
    let borrower = Borrower::start(world.left(), &lines[1], &[]).unwrap();
    let load = Load::start(&borrower.socket, Model::new(0, MIB, 1), 4).unwrap();
    load.wait_done(200, PATIENCE).unwrap();
    assert_eq!(limit(world.right(), &["nvme0-2", "--iops", "50"]).code, Some(0));
    let rate = || {
        std::thread::sleep(Duration::from_millis(300));
        let (before, start) = (load.done(), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        (load.done() - before) as f64 / start.elapsed().as_secs_f64()
    };
    let limited = rate();
    assert!((20.0..=55.0).contains(&limited), "{limited} requests a second of 50");
    let device = status(world.right(), "lender").unwrap()["devices"][1].clone();
    assert_eq!((device["function"].as_str(), device["iops"].as_u64()), (Some("nvme0-2"), Some(50)));
    // The limit outlives the card.
    campaign::causeway::kill_card(world.right(), "lender", PATIENCE).unwrap();
    let limited = rate();
    assert!((20.0..=55.0).contains(&limited), "{limited} requests a second of 50");
    assert_eq!(limit(world.right(), &["nvme0-2"]).code, Some(0));
    assert!(rate() > 100.0, "the limit is gone");
    let zero = limit(world.right(), &["nvme0-2", "--bytes-per-s", "0"]);
    assert!(zero.code == Some(2) && zero.stderr.contains("a limit of 0 for bytes_per_s"), "{zero:?}");
    let unknown = limit(world.right(), &["nvme0-3", "--iops", "5"]);
    assert!(unknown.code == Some(3) && unknown.stderr.contains("no function nvme0-3"), "{unknown:?}");
    assert_eq!(load.stop().unwrap().failed, 0);
    drop((borrower, lender));
}

#[test]
fn w3_a_shared_namespace_is_the_same_for_both_borrowers() {
    let (world, image) = world();
    let address = world.right().addresses()[0];
    let text = format!(
        "[[rails]]\nname = 'r'\nlisten = '{address}'\n[[devices]]\nfunction = 'd'\nsource = '{}'\n\
         [[devices.functions]]\nname = 'a'\nnamespace = 'data'\n[[devices.functions]]\nname = 'b'\n\
         namespace = 'data'\n[[devices.functions]]\nname = 'c'\n[[devices.namespaces]]\nname = 'data'\n\
         size = '1M'\nshared = true\n",
        image.display()
    );
    let mut lender = start_node(world.right(), "lender", &text);
    let lines = lines(&mut lender, 3);
    let (borrower, sockets) = borrow_all(world.left(), &lines);
    let mut clients: Vec<_> = sockets.iter().map(|socket| connect(socket).unwrap()).collect();
    assert_eq!([0, 1, 2].map(|index: usize| clients[index].size()), [MIB, MIB, 63 * MIB]);
    clients[0].write(4096, &[0xa5; 4096]).unwrap();
    let mut data = Vec::new();
    clients[1].read(4096, 4096, &mut data).unwrap();
    assert_eq!(data, [0xa5; 4096]);
    clients[2].read(4096, 4096, &mut data).unwrap();
    assert_eq!(data, [0; 4096], "another namespace");
    ends(borrower);
    ends(lender);
}

#[test]
fn w8_a_growing_image_is_announced_and_keeps_its_place() {
    let (world, image) = world();
    let path = image.to_str().unwrap();
    let mut lender = Lender::start(world.right(), &[path], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let size = || connect(&borrower.socket).unwrap().size();
    let load = Load::start(&borrower.socket, Model::new(0, MIB, 1), 4).unwrap();
    assert_eq!(size(), 64 * MIB);
    resize(&image, 80 * MIB);
    let grown = |wanted: u64| poll_until("the new size", PATIENCE, || Ok((size() == wanted).then_some(())));
    grown(80 * MIB).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(79 * MIB, &[7; 4096]).unwrap();
    // And again: events are requested anew. A card that comes later knows it too.
    resize(&image, 96 * MIB);
    grown(96 * MIB).unwrap();
    campaign::causeway::kill_card(world.right(), "lender", PATIENCE).unwrap();
    campaign::causeway::kill_card(world.left(), "borrower", PATIENCE).unwrap();
    let mut data = Vec::new();
    connect(&borrower.socket).unwrap().read(79 * MIB, 4096, &mut data).unwrap();
    assert_eq!(data, [7; 4096]);
    assert_eq!(size(), 96 * MIB);
    assert_eq!(load.stop().unwrap().failed, 0);
    // A new life of the node finds the drive as large as its image.
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    resize(&image, 100 * MIB);
    lender = Lender::start(world.right(), &[path], &[]).unwrap();
    // To whoever had it an image that was made larger while nobody looked is another drive: clients are disconnected.
    let is_large = || connect(&borrower.socket).is_ok_and(|client| client.size() == 100 * MIB);
    poll_until("the new size", PATIENCE, || Ok(is_large().then_some(()))).unwrap();
    drop((lender, borrower));
}

#[test]
fn w8_loans_end_in_order_under_load() {
    let (world, image) = world();
    let (lender, lines) = lend(world.right(), image.to_str().unwrap(), 4);
    let (borrower, sockets) = borrow_all(world.left(), &lines);
    let start = || -> Vec<Load> {
        let each = (0_u64..).zip(&sockets);
        let loads: Vec<_> =
            each.map(|(seed, at)| Load::start(at, Model::new(0, MIB, seed), 8).unwrap()).collect();
        loads.iter().for_each(|load| load.wait_done(100, PATIENCE).unwrap());
        loads
    };
    let loads = start();
    ends(borrower);
    let mut models = Vec::new();
    for load in loads {
        let report = load.stop().unwrap();
        models.push(report.model);
    }
    // What was completed before the end is there, whoever asks.
    let (borrower, sockets) = borrow_all(world.left(), &lines);
    for (model, socket) in models.iter_mut().zip(&sockets) {
        model.verify(&mut connect(socket).unwrap()).unwrap();
    }
    let loads: Vec<Load> = models
        .into_iter()
        .zip(&sockets)
        .map(|(model, socket)| Load::start(socket, model, 8).unwrap())
        .collect();
    loads.iter().for_each(|load| load.wait_done(100, PATIENCE).unwrap());
    // The lender ends under load: requests wait, and the next life serves them.
    ends(lender);
    let (lender, again) = lend(world.right(), image.to_str().unwrap(), 4);
    assert_eq!(again, lines);
    loads.iter().for_each(|load| load.wait_done(100, PATIENCE).unwrap());
    verify(loads, &sockets);
    ends(borrower);
    ends(lender);
}

#[test]
fn x_an_image_that_shrinks_or_goes_costs_errors_and_no_card() {
    let (world, image) = world();
    let lender = Lender::start(world.right(), &[image.to_str().unwrap()], &[]).unwrap();
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    resize(&image, MIB);
    let mut data = Vec::new();
    let failed = client.read(32 * MIB, 4096, &mut data);
    assert!(matches!(failed, Err(NbdError::Refused { errno: Errno::EIO, .. })), "{failed:?}");
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!(data, [1; 4096]);
    std::fs::remove_file(&image).unwrap();
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!(data, [1; 4096], "as long as the node lives");
    assert_eq!(campaign::causeway::card(&status(world.right(), "lender").unwrap()).unwrap().restarts, 0);
    drop((lender, borrower));
}

#[test]
fn x_drives_that_cannot_be_are_refused_by_name() {
    let (world, image) = world();
    let machine = world.right();
    let path = image.to_str().unwrap();
    let refused = |command: Command, code: i32, words: &[&str]| {
        let outcome = run_to_end(command, &machine.dir().join("logs"), "refused", START_TIMEOUT).unwrap();
        assert_eq!((outcome.code, &outcome.stdout[..]), (Some(code), ""), "{outcome:?}");
        assert!(words.iter().all(|word| outcome.stderr.contains(word)), "{words:?}: {outcome:?}");
    };
    let functions = |count: &str| lend_command(machine, "lender", &[path], &["--functions", count]).unwrap();
    refused(functions("65"), 2, &["65", "--functions"]);
    let declared = |size: &str| {
        let text = format!(
            "[[devices]]\nfunction = 'd'\nsource = '{path}'\n[[devices.functions]]\nname = 'a'\nsize = '{size}'\n"
        );
        node_command(machine, "declared", &text)
    };
    refused(declared("65M"), 2, &["namespace `a` is too large", "1048576 bytes"]);

    // Where the data lie stays, whatever the image's size is; another division is refused until somebody says so.
    let (lender, lines) = lend(machine, path, 2);
    let borrower = Borrower::start(world.left(), &lines[1], &[]).unwrap();
    connect(&borrower.socket).unwrap().write(0, &[9; 4096]).unwrap();
    ends(borrower.process);
    ends(lender);
    resize(&image, 128 * MIB);
    let (lender, lines) = lend(machine, path, 2);
    let borrower = Borrower::start(world.left(), &lines[1], &[]).unwrap();
    let mut data = Vec::new();
    let mut client = connect(&borrower.socket).unwrap();
    client.read(0, 4096, &mut data).unwrap();
    assert_eq!((data, client.size()), (vec![9; 4096], 32 * MIB));
    ends(borrower.process);
    ends(lender);
    refused(functions("4"), 3, &["other functions or namespaces", "drive.nvme0"]);
}
