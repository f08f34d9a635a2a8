//! T2: what is on the wire. At least as much as the payload, and nothing of the payload readable in it; with
//! `--insecure` the same search finds it, so that the search is known to find. And which cipher two nodes agree on.

use campaign::capture;
use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, status};
use campaign::load::connect;
use campaign::process::poll_until;
use campaign::scale;
use campaign::world::{Direction, World, WorldConfig};
use std::collections::HashSet;

const SIZE: usize = 1 << 20;
/// Bytes of a piece that must not be found.
const PIECE: usize = 16;

/// A readable text that says of every piece of it where it comes from.
fn pattern() -> Vec<u8> {
    let text: Vec<u8> =
        (0u32..).flat_map(|number| format!("secret {number:08x}\n").into_bytes()).take(SIZE).collect();
    assert_eq!(text.len(), SIZE);
    text
}

/// What crossed the wires while the pattern was written and read: bytes each way, and pieces of it that were readable.
fn wire(arguments: &[&str]) -> ([u64; 2], u64) {
    let mut world = World::new(&WorldConfig { capture: true, ..WorldConfig::default() }).unwrap();
    let mut lender = Lender::start(world.right(), &["ram:8M"], arguments).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], arguments).unwrap();
    let pattern = pattern();
    let mut client = connect(&borrower.socket).unwrap();
    for (index, chunk) in pattern.chunks(64 << 10).enumerate() {
        client.write((index * chunk.len()) as u64, chunk).unwrap();
    }
    client.flush().unwrap();
    let mut back = Vec::new();
    client.read(0, SIZE as u32, &mut back).unwrap();
    assert!(back == pattern);
    for (machine, name) in [(world.left(), "borrower"), (world.right(), "lender")] {
        let sealed = status(machine, name).unwrap()["channels"][0]["sealed"].as_bool().unwrap();
        assert_eq!(sealed, arguments.is_empty(), "{name}");
    }
    client.disconnect().unwrap();
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    world.relay().stats().unwrap();
    let captured = capture::read(world.relay().capture().unwrap()).unwrap();
    // Every place in the pattern begins a piece, so that no alignment hides one.
    let pieces: HashSet<&[u8]> = pattern.windows(PIECE).collect();
    let mut bytes = [0; 2];
    let mut readable = 0;
    for packet in &captured {
        let payload = &packet.datagram.payload;
        bytes[usize::from(packet.direction == Direction::RightToLeft)] += payload.len() as u64;
        readable += payload.windows(PIECE).filter(|window| pieces.contains(window)).count() as u64;
    }
    (bytes, readable)
}

#[test]
fn t2_nothing_of_the_payload_is_readable_on_the_wire() {
    let (bytes, readable) = wire(&[]);
    assert!(bytes.iter().all(|&bytes| bytes >= SIZE as u64), "the payload went by another way: {bytes:?}");
    assert_eq!(readable, 0, "pieces of {PIECE} bytes of the payload were readable");
    scale::report(&format!("t2: {bytes:?} bytes on the wire for {SIZE} of payload each way"));
}

#[test]
fn t2_the_search_finds_what_was_not_sealed() {
    let (bytes, readable) = wire(&["--insecure"]);
    assert!(bytes.iter().all(|&bytes| bytes >= SIZE as u64), "{bytes:?}");
    assert!(readable > SIZE as u64, "{readable} pieces were found of what crossed the wire twice");
}

/// The cipher between a lender and a borrower with these arguments, as the borrower shows it, then the lender.
fn ciphers(lender_has: &[&str], borrower_has: &[&str]) -> [String; 2] {
    let world = World::new(&WorldConfig::default()).unwrap();
    let mut lender = Lender::start(world.right(), &["ram:8M"], lender_has).unwrap();
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], borrower_has).unwrap();
    let shown = [(world.left(), "borrower"), (world.right(), "lender")].map(|(machine, name)| {
        // What a status shows may be a moment older than what was agreed.
        let agreed = poll_until(&format!("the cipher of {name}"), START_TIMEOUT, || {
            Ok(status(machine, name)?["channels"][0]["cipher"].as_str().map(str::to_owned))
        });
        agreed.unwrap()
    });
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    shown
}

#[test]
fn t2_both_show_the_cipher_that_one_insists_on() {
    let (gcm, insists) = ("aes-256-gcm", ["--cipher", "aes-256-gcm"]);
    assert_eq!(ciphers(&insists, &[]), [gcm; 2]);
    assert_eq!(ciphers(&[], &insists), [gcm; 2]);
    // Asked by another way than the program does.
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has_aes = processor.split_whitespace().any(|feature| feature == "aes");
    assert_eq!(ciphers(&[], &[]), [if has_aes { "aegis-128x2" } else { gcm }; 2]);
}
