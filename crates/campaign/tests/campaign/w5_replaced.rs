//! W5: an image is replaced while its lender is away, or while it lives. What a borrower has kept is never put over
//! other content, and whoever reads is told; the same image goes on being the same drive, however the lender was ended.

use campaign::causeway::{Borrower, Lender, STOP_TIMEOUT, lend_command, state_dir, status};
use campaign::load::connect;
use campaign::nbd_client::NbdClient;
use campaign::process::{poll_until, run};
use campaign::world::{World, WorldConfig};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 16 * MIB;
const LONG: Duration = Duration::from_secs(30);
/// A write of the lender's own may bear a time so much later than its last known one (docs/node.md): what is written
/// sooner after its death cannot be told from that.
const OWN: Duration = Duration::from_secs(3);

/// A way to put other content where the image was.
type Replace = fn(&Path);

const REPLACEMENTS: [(&str, Replace); 4] = [
    ("mv", |image| sh(image, "cp \"$1\" \"$1.new\" && fill \"$1.new\" && mv \"$1.new\" \"$1\"")),
    ("cp", |image| sh(image, "truncate -s 16M \"$1.new\" && fill \"$1.new\" && cp \"$1.new\" \"$1\"")),
    ("made anew", |image| sh(image, "rm \"$1\" && truncate -s 16M \"$1\" && fill \"$1\"")),
    ("cut and grown", |image| sh(image, "truncate -s 0 \"$1\" && truncate -s 16M \"$1\" && fill \"$1\"")),
];

/// The byte that other content is made of.
const OTHER: u8 = b'o';

fn sh(image: &Path, script: &str) {
    let mut command = Command::new("sh");
    let fill =
        "fill() { head -c 1M /dev/zero | tr '\\0' o | dd of=\"$1\" bs=1M conv=notrunc status=none; }; ";
    command.args(["-ec", &format!("{fill}{script}"), "sh"]).arg(image);
    run(command).unwrap();
}

fn world(folder: Folder) -> (World, PathBuf) {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let place = world.right().dir().join("images");
    std::fs::create_dir(&place).unwrap();
    let image = place.join("disk.img");
    if folder == Folder::Memory {
        let mut mount = world.right().command("mount");
        mount.args(["-t", "tmpfs", "images"]).arg(&place);
        run(mount).unwrap();
    }
    let mut truncate = world.right().command("truncate");
    truncate.arg(format!("--size={BYTES}")).arg(&image);
    run(truncate).unwrap();
    (world, image)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Folder {
    Disk,
    Memory,
}

fn lend(world: &World, image: &Path, arguments: &[&str]) -> Lender {
    Lender::start(world.right(), &[image.to_str().unwrap()], arguments).unwrap()
}

fn first_byte(client: &mut NbdClient, offset: u64) -> u8 {
    let mut data = Vec::new();
    client.read(offset, 4096, &mut data).unwrap();
    assert!(data.iter().all(|byte| *byte == data[0]), "a block of several contents at {offset}");
    data[0]
}

/// Waits until the client that had the drive is told that it is another one now.
fn is_told(client: &mut NbdClient) {
    poll_until("the client to be told: its drive is another one now", LONG, || {
        Ok(client.read(0, 4096, &mut Vec::new()).is_err().then_some(()))
    })
    .unwrap();
}

/// The image is replaced after the lender's end; then it is started again.
fn replaced_while_away(orderly: bool) {
    for (how, replace) in REPLACEMENTS {
        for told_by_flush in [false, true] {
            let (world, image) = world(Folder::Disk);
            let mut lender = lend(&world, &image, &[]);
            let line = lender.lines[0].clone();
            let mut borrower = Borrower::start(world.left(), &line, &[]).unwrap();
            let mut client = connect(&borrower.socket).unwrap();
            client.write(0, &[1; 4096]).unwrap();
            client.flush().unwrap();
            client.write(8192, &[2; 4096]).unwrap();
            if orderly {
                assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
            } else {
                lender.process.kill_tree().unwrap();
                std::thread::sleep(OWN);
            }
            replace(&image);
            lender = lend(&world, &image, &[]);
            assert_eq!(lender.lines[0], line);
            is_told(&mut client);
            let mut client = connect(&borrower.socket).unwrap();
            for offset in [0, 8192] {
                assert_eq!(
                    first_byte(&mut client, offset),
                    OTHER,
                    "{how}, orderly {orderly}: something was put over it"
                );
            }
            let log = lender.process.tail();
            assert!(log.contains("is not what this node lent before"), "{how}: {log}");
            // The card tells its clients first, and then its agent.
            poll_until("the borrower's log to say it", LONG, || {
                Ok(borrower.process.tail().contains("no longer holds what this node left").then_some(()))
            })
            .unwrap();
            if told_by_flush {
                client.flush().expect_err("the flush says nothing of the write that is gone");
                client.flush().expect("it says so once");
            }
            let code = borrower.process.terminate(STOP_TIMEOUT).unwrap();
            assert_eq!(code, i32::from(!told_by_flush), "{how}: {}", borrower.process.tail());
            let bytes = std::fs::read(&image).unwrap();
            assert!(
                bytes[..MIB as usize].iter().all(|byte| *byte == OTHER),
                "{how}: something was put over it"
            );
            // Whoever comes anew has no trouble.
            let mut fresh = Borrower::start_as(world.left(), "fresh", &line, &[]).unwrap();
            let mut client = connect(&fresh.socket).unwrap();
            assert_eq!(first_byte(&mut client, 8192), OTHER);
            client.write(0, &[3; 4096]).unwrap();
            client.flush().unwrap();
            assert_eq!(fresh.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", fresh.process.tail());
        }
    }
}

#[test]
fn w5_an_image_replaced_after_a_kill_is_another_drive() {
    replaced_while_away(false);
}

#[test]
fn w5_an_image_replaced_after_an_orderly_end_is_another_drive() {
    replaced_while_away(true);
}

/// A borrower that keeps a write, after which `meanwhile` ends the lender and puts other content into its image.
fn other_content(meanwhile: impl FnOnce(&World, Lender, &Path)) {
    let (world, image) = world(Folder::Disk);
    let lender = lend(&world, &image, &[]);
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.write(8192, &[2; 4096]).unwrap();
    meanwhile(&world, lender, &image);
    let lender = lend(&world, &image, &[]);
    is_told(&mut client);
    let mut client = connect(&borrower.socket).unwrap();
    assert_eq!(
        [0, 8192].map(|offset| first_byte(&mut client, offset)),
        [OTHER; 2],
        "{}",
        lender.process.tail()
    );
}

#[test]
fn w5_an_image_written_to_in_its_lenders_last_moment_is_another_drive() {
    other_content(|_, mut lender, image| {
        std::thread::sleep(OWN);
        sh(image, "fill \"$1\"");
        lender.process.terminate(STOP_TIMEOUT).unwrap();
    });
}

#[test]
fn w5_a_start_that_is_refused_forgets_nothing_of_an_image() {
    other_content(|world, mut lender, image| {
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
        let missing = image.with_file_name("missing.img");
        let sources = [image, &missing].map(|path| path.to_str().unwrap());
        let refused = lend_command(world.right(), "lender", &sources, &[]).unwrap();
        let mut refused = world.right().spawn("refused", refused).unwrap();
        refused.wait_success(LONG).unwrap_err();
        assert!(refused.tail().contains("missing.img: no such file"), "{}", refused.tail());
        sh(image, "fill \"$1\"");
    });
}

/// The last thing that is looked at before a card is started: where somebody is who has something of this node.
#[test]
fn w5_a_start_that_is_refused_late_forgets_nothing_of_an_image() {
    other_content(|world, mut lender, image| {
        assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
        let folder = state_dir(world.right(), "lender");
        let tenancy = std::fs::read_to_string(folder.join("tenancy.nvme0")).unwrap();
        let node = tenancy.split(':').nth(1).expect("somebody has the drive");
        let holder = folder.join(format!("holder.{node}"));
        std::fs::write(&holder, "nonsense").unwrap();
        let refused = lend_command(world.right(), "lender", &[image.to_str().unwrap()], &[]).unwrap();
        let mut refused = world.right().spawn("refused", refused).unwrap();
        refused.wait_success(LONG).unwrap_err();
        assert!(refused.tail().contains("holder."), "{}", refused.tail());
        std::fs::remove_file(holder).unwrap();
        sh(image, "fill \"$1\"");
    });
}

/// A plain restart, of each kind, of an image on a disk and in memory: kept writes arrive, and nobody is told anything.
#[test]
fn w5_the_same_image_is_the_same_drive() {
    for folder in [Folder::Disk, Folder::Memory] {
        let (world, image) = world(folder);
        let mut lender = lend(&world, &image, &[]);
        let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
        let mut client = connect(&borrower.socket).unwrap();
        client.write(0, &[9; 4096]).unwrap();
        client.flush().unwrap();
        for round in 1..=6_u8 {
            client.write(4096, &[round; 4096]).unwrap();
            if round % 2 == 0 {
                assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", lender.process.tail());
            } else {
                lender.process.kill_tree().unwrap();
            }
            if round % 3 == 0 {
                std::thread::sleep(OWN);
            }
            if round == 4 {
                world.right().boot(round.into()).unwrap();
            }
            lender = lend(&world, &image, &[]);
            assert_eq!((first_byte(&mut client, 0), first_byte(&mut client, 4096)), (9, round));
            client.flush().unwrap();
            let log = lender.process.tail();
            assert!(!log.contains("is not what this node lent before"), "round {round}: {log}");
        }
        assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
    }
}

/// Somebody copies other content over the image of a lender that lives: what is flushed may be gone, so flushes say so,
/// the log too, and the next life is another drive.
#[test]
fn w5_an_image_that_is_written_by_somebody_else_while_it_is_lent() {
    let (world, image) = world(Folder::Disk);
    let mut lender = lend(&world, &image, &[]);
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(8192, &[1; 4096]).unwrap();
    client.flush().unwrap();
    client.write(4096, &[2; 4096]).unwrap();
    std::thread::sleep(OWN);
    sh(&image, "fill \"$1\"");
    poll_until("status to say that the medium has failed", LONG, || {
        Ok((status(world.right(), "lender")?["devices"][0]["media"] == "failed").then_some(()))
    })
    .unwrap();
    client.flush().expect_err("what was answered is not there any more");
    let log = lender.process.tail();
    assert_eq!(log.matches("somebody else has written to the image").count(), 1, "{log}");
    lender.process.kill_tree().unwrap();
    lender = lend(&world, &image, &[]);
    is_told(&mut client);
    let mut client = connect(&borrower.socket).unwrap();
    assert_eq!(
        first_byte(&mut client, 4096),
        OTHER,
        "an old write was put over what somebody else has written"
    );
    let log = lender.process.tail();
    assert!(log.contains("is not what this node lent before"), "{log}");
    let mut clear = world.right().command(campaign::causeway::binary().unwrap());
    clear.args(["device", "clear", "nvme0", "--name", "lender"]);
    run(clear).unwrap();
    poll_until("flushes to succeed again", LONG, || Ok(client.flush().ok())).unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", borrower.process.tail());
}

/// An image that grows while it is lent is no other one, neither then nor after a restart.
#[test]
fn w5_an_image_that_grows_while_it_is_lent_stays_the_same() {
    let (world, image) = world(Folder::Disk);
    let mut lender = lend(&world, &image, &[]);
    let borrower = Borrower::start(world.left(), &lender.lines[0], &[]).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    std::thread::sleep(OWN);
    sh(&image, "truncate -s 32M \"$1\"");
    poll_until("the lender to see it", LONG, || {
        Ok(lender.process.tail().contains("the image has grown").then_some(()))
    })
    .unwrap();
    std::thread::sleep(OWN);
    lender.process.kill_tree().unwrap();
    lender = lend(&world, &image, &[]);
    assert_eq!(first_byte(&mut client, 0), 1);
    client.flush().unwrap();
    let log = lender.process.tail();
    assert!(!log.contains("is not what this node lent before") && !log.contains("somebody else"), "{log}");
}
