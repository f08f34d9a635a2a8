//! T2: a disk that cannot write back what it was given. Linux says so once, to whoever flushes next through the same
//! open file; no flush that is answered with success may lie, whichever function it is for and whichever card dies.

use campaign::causeway::{
    Borrower, Lender, STOP_TIMEOUT, binary, card, lend_command, lend_command_without_ring, status,
};
use campaign::load::connect;
use campaign::lossy::LossyFs;
use campaign::nbd_client::{NbdClient, Request};
use campaign::process::{kill, poll_until, run, signal};
use campaign::scale;
use campaign::world::{World, WorldConfig};
use io::files::{LastFlush, LastWrites};
use rustix::process::Signal;
use std::fs::OpenOptions;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// A drive of two functions on a disk that can fail, each borrowed by a node.
struct Scene {
    disk: LossyFs,
    lender: Lender,
    borrowers: [Borrower; 2],
    world: World,
    /// How the lender gets at the disk.
    io: &'static str,
}

impl Scene {
    fn new() -> Self {
        Self::with("ring")
    }

    fn with(io: &'static str) -> Self {
        let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
        let disk = LossyFs::mount_cached(world.right(), 16 * MIB).unwrap();
        let lender = lend(&world, &disk, io);
        let borrow = |index: usize| {
            Borrower::start_as(world.left(), ["one", "two"][index], &lender.lines[index], &[]).unwrap()
        };
        let borrowers = [borrow(0), borrow(1)];
        Self { disk, lender, borrowers, world, io }
    }

    /// The lender is killed and started again.
    fn restart(&mut self) {
        let lines = self.lender.lines.clone();
        self.lender.process.kill_tree().unwrap();
        self.lender = lend(&self.world, &self.disk, self.io);
        assert_eq!(self.lender.lines, lines);
    }

    fn clients(&self) -> [NbdClient; 2] {
        [0, 1].map(|index| connect(&self.borrowers[index].socket).unwrap())
    }

    /// Waits until `status` says this of the medium: it looks now and then.
    fn wait_media(&self, wanted: &str) {
        poll_until(&format!("media {wanted}"), LONG, || {
            let status = status(self.world.right(), "lender")?;
            Ok((status["devices"][1]["media"] == wanted).then_some(()))
        })
        .unwrap();
    }

    fn kill_card(&self) {
        let status = status(self.world.right(), "lender").unwrap();
        if let Some(card) = status["cards"][0]["pid"].as_u64().filter(|pid| *pid != 0) {
            kill(card as u32).unwrap();
        }
    }

    fn clear(&self) {
        // Refused while there is no card.
        poll_until("the order to be taken", LONG, || {
            let mut command = self.world.right().command(binary()?);
            command.args(["device", "clear", "nvme0-2", "--name", "lender"]);
            Ok(run(command).ok())
        })
        .unwrap();
        self.wait_media("ok");
        // What a node has kept and could not flush it says once.
        for client in self.clients().iter_mut() {
            if client.flush().is_err() {
                client.flush().unwrap();
            }
        }
    }
}

fn lend(world: &World, disk: &LossyFs, io: &str) -> Lender {
    let (machine, arguments) = (world.right(), ["--functions", "2"]);
    let image = disk.image().to_str().unwrap();
    let command = match io {
        "ring" => lend_command(machine, "lender", &[image], &arguments),
        _ => lend_command_without_ring(machine, "lender", &[image], &arguments),
    };
    let lender = Lender::start_by(machine, "lender", 2, command.unwrap()).unwrap();
    // Where the kernel itself forbids it there are threads in any case.
    let used = status(machine, "lender").unwrap()["devices"][0]["io"].clone();
    assert!(used == io || (io == "ring" && used == "threads"), "{used}");
    lender
}

/// What the cards of this agent note of their writes.
fn last_writes(agent: u32) -> LastWrites {
    let files = std::fs::read_dir(format!("/proc/{agent}/fd")).unwrap().map(|file| file.unwrap().path());
    let mut pages =
        files.filter(|file| std::fs::read_link(file).is_ok_and(|path| path.starts_with("/dev/shm")));
    let page = OpenOptions::new().read(true).write(true).open(pages.next().unwrap()).unwrap();
    LastWrites::of_fd(page.into()).unwrap()
}

/// One function's write is lost, the other one's flush is told, and the first one flushes.
#[test]
fn t2_an_error_that_another_function_was_told_is_not_forgotten() {
    for io in ["ring", "threads"] {
        an_error_is_not_forgotten(io);
    }
}

fn an_error_is_not_forgotten(io: &'static str) {
    let mut scene = Scene::with(io);
    let [mut one, mut two] = scene.clients();
    one.write(0, &[1; 4096]).unwrap();
    scene.wait_media("ok");
    assert_eq!(scene.disk.fail().unwrap(), 0);
    two.flush().expect_err("the write of the other function was lost");
    assert_eq!(scene.disk.failed().unwrap(), 1, "the write was not written back: this test shows nothing");
    one.flush().expect_err("the write is not on the disk, and nothing else was told");
    scene.kill_card();
    one.flush().expect_err("a card has died, and the write is not on the disk");
    scene.wait_media("failed");
    scene.restart();
    two.flush().expect_err("the node has died, and nobody has seen to the disk");
    scene.wait_media("failed");
}

/// Cards are killed around the flush that is told: whatever they have heard, no flush succeeds while the write is not
/// on the disk.
#[test]
fn t2_no_flush_lies_when_the_card_that_was_told_dies() {
    for io in ["ring", "threads"] {
        no_flush_lies(io);
    }
}

fn no_flush_lies(io: &'static str) {
    let mut scene = Scene::with(io);
    let [mut one, mut two] = scene.clients();
    let mut data = Vec::new();
    for round in 0..scale::kills(8) {
        one.write(4096, &[round as u8; 4096]).unwrap();
        let before = scene.disk.fail().unwrap();
        one.submit(Request::Flush).unwrap();
        two.submit(Request::Flush).unwrap();
        // Each a little later, so that cards die before, in and after the flush.
        std::thread::sleep(Duration::from_micros(700 * u64::from(round % 8)));
        scene.kill_card();
        let answers = [&mut one, &mut two].map(|client| client.next_reply(&mut data).unwrap().result);
        assert_eq!(scene.disk.failed().unwrap(), before + 1, "the write was not written back");
        assert!(answers[0].is_err(), "round {round}: a flush has lied");
        two.flush().expect_err("the flush behind it, of the other function");
        scene.clear();
    }
}

/// The whole lender is killed after its disk has told its card of a flush that failed, and before anybody has kept
/// that.
#[test]
fn t2_what_only_a_card_was_told_is_known_to_the_next_life() {
    for io in ["ring", "threads"] {
        what_a_card_was_told_is_known(io);
    }
}

fn what_a_card_was_told_is_known(io: &'static str) {
    let mut scene = Scene::with(io);
    let [mut one, _two] = scene.clients();
    one.write(0, &[1; 4096]).unwrap();
    scene.wait_media("ok");
    signal(scene.lender.process.pid(), Signal::STOP).unwrap();
    assert_eq!(scene.disk.fail().unwrap(), 0);
    one.submit(Request::Flush).unwrap();
    let page = last_writes(scene.lender.process.pid());
    poll_until("the card to be told", LONG, || {
        Ok((0..100).any(|life| page.last_flush(life, 0) == Some(LastFlush::Failed)).then_some(()))
    })
    .unwrap();
    scene.restart();
    let answer = one.next_reply(&mut Vec::new()).unwrap();
    answer.result.expect_err("the node has died, and nobody has seen to the disk");
    scene.wait_media("failed");
}

/// A lender ends in order, and its disk cannot write back what it was given: it says so, its other disks are made
/// durable all the same, and the next life knows.
#[test]
fn t2_what_a_disk_loses_when_its_lender_ends_is_known_to_the_next_one() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let mut failing = LossyFs::mount_cached(world.right(), 16 * MIB).unwrap();
    let mut other = LossyFs::mount_at(world.right(), "other", 16 * MIB, &[]).unwrap();
    let images = [failing.image(), other.image()].map(|image| image.to_str().unwrap().to_owned());
    let sources = images.each_ref().map(String::as_str);
    let mut lender = Lender::start(world.right(), &sources, &[]).unwrap();
    let borrow = |index: usize, line: &str| {
        Borrower::start_as(world.left(), ["one", "two"][index], line, &[]).unwrap()
    };
    let borrowers = [0, 1].map(|index| borrow(index, &lender.lines[index]));
    let [mut one, mut two] = [0, 1].map(|index| connect(&borrowers[index].socket).unwrap());
    one.write(0, &[1; 4096]).unwrap();
    two.write(0, &[2; 4096]).unwrap();
    assert_eq!(failing.fail().unwrap(), 0);
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 1, "{}", lender.process.tail());
    assert_eq!(failing.failed().unwrap(), 1, "the write was not written back: this test shows nothing");
    poll_until("the lender's last words to be read", LONG, || {
        Ok(lender.process.tail().contains("cannot be made durable").then_some(()))
    })
    .unwrap();
    assert_eq!(other.forget().unwrap(), 0, "the other disk was not made durable");
    lender = Lender::start(world.right(), &sources, &[]).unwrap();
    poll_until("media failed", LONG, || {
        let status = status(world.right(), "lender")?;
        let media =
            [0, 1].map(|device| status["devices"][device]["media"].as_str().unwrap_or_default().to_owned());
        Ok((media == ["failed", "ok"]).then_some(()))
    })
    .unwrap();
    one.flush().expect_err("the write is not on the disk, and nobody has seen to that");
    two.flush().unwrap();
    drop(lender);
}

/// An operator has seen to the disk, once, after the lender was killed and started again.
#[test]
fn t2_a_clear_is_said_once_after_a_restart() {
    let mut scene = Scene::new();
    let [mut one, mut two] = scene.clients();
    one.write(0, &[1; 4096]).unwrap();
    assert_eq!(scene.disk.fail().unwrap(), 0);
    two.flush().expect_err("the write of the other function was lost");
    scene.restart();
    two.flush().expect_err("nobody has seen to the disk");
    scene.clear();
    for round in 0..4 {
        for client in scene.clients().iter_mut() {
            client.write(8192, &[round; 4096]).unwrap();
            client.flush().unwrap();
        }
        scene.wait_media("ok");
        scene.kill_card();
    }
}

/// The card is told that an operator has seen to the disk, and dies before it hears that.
#[test]
fn t2_a_clear_counts_though_the_card_dies_before_it_hears_of_it() {
    let mut scene = Scene::new();
    let [mut one, mut two] = scene.clients();
    one.write(0, &[1; 4096]).unwrap();
    assert_eq!(scene.disk.fail().unwrap(), 0);
    two.flush().expect_err("the write of the other function was lost");
    one.flush().expect_err("also there");
    scene.wait_media("failed");
    let pid = card(&status(scene.world.right(), "lender").unwrap()).unwrap().pid.unwrap();
    signal(pid, Signal::STOP).unwrap();
    let mut command = scene.world.right().command(binary().unwrap());
    command.args(["device", "clear", "nvme0-2", "--name", "lender"]);
    run(command).unwrap();
    kill(pid).unwrap();
    poll_until("the successor to know", LONG, || Ok(two.flush().ok())).unwrap();
    scene.wait_media("ok");
    // What is lost after that is news, also to the cards that come.
    one.write(8192, &[2; 4096]).unwrap();
    let before = scene.disk.fail().unwrap();
    two.flush().expect_err("a write was lost once more");
    assert_eq!(scene.disk.failed().unwrap(), before + 1);
    scene.kill_card();
    one.flush().expect_err("nobody has seen to that");
    scene.wait_media("failed");
}
