//! W1: 256 functions between two nodes at once, over one channel: whatever becomes of one of them, the others go on.

use campaign::causeway::{START_TIMEOUT, STOP_TIMEOUT, binary, kill_card, number, status};
use campaign::load::{Load, Model, connect};
use campaign::nbd_client::{NbdClient, Request};
use campaign::process::{Process, poll_until, resident_kib, run};
use campaign::world::{Machine, World, WorldConfig};
use campaign::{gate, scale};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const DRIVES: usize = 4;
const OF_A_DRIVE: usize = 64;
const LOANS: usize = DRIVES * OF_A_DRIVE;
/// Bytes of each that are written.
const REGION: u64 = 64 << 10;
/// Loans that work all the time; the first ones.
const BUSY: usize = 16;
/// The loan whose client reads no answers,
const STUCK: usize = 100;
/// the one that is given back,
const LEFT: usize = 101;
/// and the one that is given back and taken again, so that its lender resets it.
const RESET: usize = 102;
/// Clients at a time.
const CLIENTS: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);
/// Memory of a card for each loan that has not worked yet.
const KIB_EACH: u64 = 256;
/// For how long frames of idle loans are counted.
const IDLE: Duration = Duration::from_secs(2);
/// Longer than a busy machine makes others wait when something happens to one loan, shorter than any time-out.
const PAUSE: Duration = Duration::from_secs(2);

struct Nodes<'a> {
    world: &'a World,
    lender: Process,
    borrower: Process,
    lines: Vec<String>,
}

impl<'a> Nodes<'a> {
    /// All functions are lent, and the first one is borrowed.
    fn start(world: &'a World) -> Self {
        let mut text = format!("[[rails]]\nname = 'r'\nlisten = '{}'\n", world.right().addresses()[0]);
        for drive in 0..DRIVES {
            text += &format!(
                "[[devices]]\nfunction = 'd{drive}'\nsource = 'ram:16M'\nfunctions = {OF_A_DRIVE}\n"
            );
        }
        let mut lender = start(world.right(), "lender", &text);
        let is_line = |line: &str| line.starts_with("causeway://");
        let lines: Vec<String> =
            (0..LOANS).map(|_| lender.wait_line("a line", START_TIMEOUT, is_line).unwrap()).collect();
        let mut borrower = start(world.left(), "borrower", &loans(world.left(), &lines, &[0]));
        let is_edge = |line: &str| line.starts_with("nbd+unix://");
        borrower.wait_line("an edge", START_TIMEOUT, is_edge).unwrap();
        Self { world, lender, borrower, lines }
    }

    /// These are borrowed from now on, and all of them are usable.
    fn borrow(&self, which: &[usize]) {
        let machine = self.world.left();
        write(machine, "borrower", &loans(machine, &self.lines, which));
        let mut command = machine.command(binary().unwrap());
        command.args(["reload", "--name", "borrower"]);
        run(command).unwrap();
        poll_until("the loans to be up", PATIENCE, || {
            let status = status(machine, "borrower")?;
            let loans = status["loans"].as_array().unwrap();
            let is_up = |loan: &&Value| loan["state"] == "up";
            Ok((loans.len() == which.len() && loans.iter().filter(is_up).count() == which.len())
                .then_some(()))
        })
        .unwrap();
    }

    fn socket(&self, loan: usize) -> PathBuf {
        socket(self.world.left(), loan)
    }

    fn load(&self, loan: usize, seed: u64) -> Load {
        self.load_in(0, loan, seed)
    }

    /// One in a region that none was in before.
    fn load_in(&self, region: u64, loan: usize, seed: u64) -> Load {
        let model = Model::new(region * REGION, REGION, seed);
        poll_until("the loan to be usable", PATIENCE, || {
            Ok(Load::start(&self.socket(loan), model.clone(), 2).ok())
        })
        .unwrap()
    }

    /// A loan that was there before holds what is written to it now.
    fn works(&self, loan: usize, seed: u64) {
        let load = self.load_in(1, loan, seed);
        load.wait_done(3, PATIENCE).unwrap();
        verify(load, &self.socket(loan));
    }

    /// Frames that the channel of both nodes carries in a second, and how many handshakes it has seen.
    fn idle_frames(&self) -> f64 {
        let frames = || {
            let status = status(self.world.left(), "borrower").unwrap();
            let count = |what| number(&status, &format!("/channels/0/{what}")).unwrap();
            count("sent_frames") + count("received_frames")
        };
        let (before, start) = (frames(), Instant::now());
        std::thread::sleep(IDLE);
        (frames() - before) as f64 / start.elapsed().as_secs_f64()
    }

    /// KiB that the cards of both nodes have in memory, the content of drives included.
    fn cards_kib(&self) -> [u64; 2] {
        [(self.world.left(), "borrower"), (self.world.right(), "lender")].map(|(machine, name)| {
            let status = status(machine, name).unwrap();
            resident_kib(number(&status, "/cards/0/pid").unwrap() as u32).unwrap()
        })
    }

    /// There is one channel, which all loans share, and it was made once.
    fn share_a_channel(&self, loans: usize) {
        for (machine, name) in [(self.world.left(), "borrower"), (self.world.right(), "lender")] {
            let of = |loan: &&Value| loan["state"] == "up";
            // What a card knows it shows now and then.
            let status = poll_until(&format!("the {name} to show {loans} loans up"), PATIENCE, || {
                let status = status(machine, name)?;
                let up = status["loans"].as_array().unwrap().iter().filter(of).count();
                Ok((up == loans).then_some(status))
            })
            .unwrap();
            assert_eq!(number(&status, "/counters/handshakes").unwrap(), 1, "{name}");
            let open: Vec<_> = (status["channels"].as_array().unwrap().iter())
                .filter(|channel| channel["state"] == "open")
                .collect();
            assert_eq!(open.len(), 1, "{name}: {open:?}");
        }
    }
}

fn start(machine: &Machine, name: &str, text: &str) -> Process {
    let file = write(machine, name, text);
    let mut command = machine.command(binary().unwrap());
    command.arg("node").arg("--config").arg(file);
    machine.spawn(name, command).unwrap()
}

fn write(machine: &Machine, name: &str, text: &str) -> PathBuf {
    let (file, state) = (machine.dir().join(format!("{name}.toml")), machine.dir().join("state").join(name));
    std::fs::write(&file, format!("state_dir = {state:?}\n{text}")).unwrap();
    file
}

fn socket(machine: &Machine, loan: usize) -> PathBuf {
    machine.dir().join(format!("{loan}.nbd"))
}

fn loans(machine: &Machine, lines: &[String], which: &[usize]) -> String {
    let loan =
        |loan: &usize| format!("[[loans]]\nline = '{}'\nnbd = {:?}\n", lines[*loan], socket(machine, *loan));
    which.iter().map(loan).collect()
}

/// A client that asks for as much as it may, and reads no answer.
fn stick(socket: &std::path::Path) -> NbdClient {
    let mut client = connect(socket).unwrap();
    for request in 0..64 {
        let offset = request % 2 * REGION;
        client.submit(Request::Read { offset, length: REGION as u32 }).unwrap();
    }
    client
}

fn verify(load: Load, socket: &std::path::Path) {
    let mut report = load.stop().unwrap();
    assert_eq!((report.failed, report.failed_flushes, &report.lost), (0, 0, &None));
    report.model.verify(&mut connect(socket).unwrap()).unwrap();
}

#[test]
fn w1_of_256_loans_over_one_channel_none_stops_another() {
    let _place = gate::alone();
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let mut nodes = Nodes::start(&world);
    let all: Vec<usize> = (0..LOANS).collect();
    let (one, cards_of_one) = (nodes.idle_frames(), nodes.cards_kib());
    nodes.borrow(&all);
    nodes.share_a_channel(LOANS);
    // A loan is up before its drive has been asked for all that it is: soon nobody asks any more.
    let many = poll_until("loans to be idle", PATIENCE, || {
        let many = nodes.idle_frames();
        Ok((many < 1.5 * one + 10.0).then_some(many))
    })
    .unwrap();
    scale::report(&format!("w1: {one:.0} frames a second of one idle loan, {many:.0} of {LOANS}"));

    for (many, one) in nodes.cards_kib().into_iter().zip(cards_of_one) {
        let each = many.saturating_sub(one) / (LOANS as u64 - 1);
        scale::report(&format!("w1: a card has {each} KiB for each loan more"));
        assert!(each <= KIB_EACH, "{each} KiB a loan: {one} KiB with one, {many} with {LOANS}");
    }

    // Each holds what was written to it, and nothing else.
    let seed = scale::first_seed();
    for clients in all[BUSY..].chunks(CLIENTS) {
        let loads: Vec<Load> = clients.iter().map(|loan| nodes.load(*loan, seed + *loan as u64)).collect();
        loads.iter().for_each(|load| load.wait_done(3, PATIENCE).unwrap());
        loads.into_iter().zip(clients).for_each(|(load, loan)| verify(load, &nodes.socket(*loan)));
    }

    let busy: Vec<Load> = all[..BUSY].iter().map(|loan| nodes.load(*loan, seed + *loan as u64)).collect();
    let go_on = |what: &str| {
        busy.iter().for_each(|load| load.wait_done(10, PATIENCE).unwrap());
        let longest = busy.iter().map(Load::take_longest_gap).max().unwrap();
        scale::report(&format!(
            "w1: longest gap of {BUSY} busy loans: {:.1} ms, {what}",
            longest.as_secs_f64() * 1e3
        ));
        assert!(longest < PAUSE, "{longest:?} when {what}");
    };
    go_on("when they begin");
    let stuck = stick(&nodes.socket(STUCK));
    go_on("one is stuck");
    let fewer: Vec<usize> = all.iter().copied().filter(|loan| *loan != LEFT && *loan != RESET).collect();
    let card = status(world.left(), "borrower").unwrap()["cards"][0]["generation"].clone();
    nodes.borrow(&fewer);
    go_on("two are given back");
    let again: Vec<usize> = all.iter().copied().filter(|loan| *loan != LEFT).collect();
    nodes.borrow(&again);
    go_on("one is taken again");
    let now = status(world.left(), "borrower").unwrap()["cards"][0]["generation"].clone();
    assert_eq!(now, card, "loans come and go without another card");
    nodes.works(RESET, seed);

    for _ in 0..scale::kills(2) {
        kill_card(world.right(), "lender", PATIENCE).unwrap();
        go_on("the lender's card was killed");
        kill_card(world.left(), "borrower", PATIENCE).unwrap();
        go_on("the borrower's card was killed");
    }
    drop(stuck);
    nodes.share_a_channel(LOANS - 1);
    nodes.borrow(&all);
    nodes.works(LEFT, seed);
    for (load, loan) in busy.into_iter().zip(&all) {
        verify(load, &nodes.socket(*loan));
    }
    nodes.share_a_channel(LOANS);
    let ended = [&mut nodes.borrower, &mut nodes.lender].map(|node| node.terminate(STOP_TIMEOUT).unwrap());
    assert_eq!(ended, [0, 0], "{}\n{}", nodes.borrower.tail(), nodes.lender.tail());
}
