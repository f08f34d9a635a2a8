//! W8: what goes over the links of a node is captured, as it is on the wire and opened, and tshark shows it with the
//! dissector of the project: each kind of frame, record and TLP, field by field.

use crate::switches;
use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, kill_card};
use campaign::load::{Load, Model, connect};
use campaign::process::{Outcome, Process, poll_until, run, run_to_end, signal, stop};
use campaign::world::{Machine, Mesh, World, WorldConfig};
use campaign::{capture, gate};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);
const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/causeway.lua");
/// Frames that the code of `link` makes, with the fields that they have: see there.
const GOLDEN: &str = include_str!("../../../link/src/golden.txt");
/// What is written to the drive, and must be seen in what is plain, and nowhere else.
const PATTERN: &[u8] = b"what was written to the drive: ";

/// Fields of the packets that pass a filter, each with all its values.
fn tshark(file: &Path, filter: &str, fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{DISSECTOR}")).arg("-r").arg(file).args(["-Y", filter]);
    command.args(["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a", "-E", "aggregator=;"]);
    command.args(fields.iter().flat_map(|field| ["-e", field]));
    let text = run(command).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn count(file: &Path, filter: &str) -> usize {
    tshark(file, filter, &["frame.number"]).len()
}

/// All values of a field.
fn values(file: &Path, filter: &str, field: &str) -> BTreeSet<String> {
    let all = tshark(file, filter, &[field]);
    all.iter().flatten().flat_map(|values| values.split(';')).map(str::to_owned).collect()
}

fn set<const N: usize>(of: [&str; N]) -> BTreeSet<String> {
    of.map(str::to_owned).into()
}

struct Golden {
    name: &'static str,
    bytes: Vec<u8>,
    fields: BTreeMap<&'static str, &'static str>,
}

fn golden() -> Vec<Golden> {
    let mut all: Vec<Golden> = Vec::new();
    for line in GOLDEN.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(name) = line.strip_prefix("frame ") {
            all.push(Golden { name, bytes: Vec::new(), fields: BTreeMap::new() });
            continue;
        }
        let frame = all.last_mut().unwrap();
        match line.split_once(" = ") {
            Some((field, value)) => {
                assert!(frame.fields.insert(field, value).is_none(), "{field} stands twice");
            }
            None => {
                let (pairs, []) = line.trim().as_bytes().as_chunks::<2>() else { panic!("{line}") };
                let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
                frame.bytes.extend(pairs.iter().map(byte));
            }
        }
    }
    all
}

/// All fields of the dissector, by its own list.
fn all_fields() -> Vec<String> {
    let source = std::fs::read_to_string(DISSECTOR).unwrap();
    let named = source.lines().filter_map(|line| line.strip_prefix("field(\"")?.split('"').nth(2));
    named.map(|name| format!("causeway.{name}")).collect()
}

/// A classic file with these packets.
fn write_pcap(path: &Path, link_type: u32, packets: impl Iterator<Item = Vec<u8>>) {
    let header = [0xa1b2_c3d4_u32, 4 << 16 | 2, 0, 0, 1 << 16, link_type];
    let mut file: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    for packet in packets {
        let len = packet.len() as u32;
        file.extend([1, 0, len, len].iter().flat_map(|word: &u32| word.to_le_bytes()));
        file.extend(packet);
    }
    std::fs::write(path, file).unwrap();
}

/// As `docs/ethernet.md` has it, with group 4094.
fn in_ethernet(frame: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x0f, 0xfe, 0x88, 0xb5][..], frame].concat()
}

/// An IPv4 packet with a UDP datagram between two ports that say nothing.
fn in_udp(frame: &[u8]) -> Vec<u8> {
    let udp = (8 + frame.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend((20 + udp).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0x9c, 0x41]);
    packet.extend(udp.to_be_bytes());
    packet.extend([0, 0]);
    [&packet, frame].concat()
}

#[test]
fn w8_each_kind_of_frame_record_and_tlp_is_shown_field_by_field() {
    let _place = gate::waits();
    let mesh = Mesh::new(1, 1).unwrap();
    let (golden, fields) = (golden(), all_fields());
    let named: BTreeSet<&str> = golden.iter().flat_map(|frame| frame.fields.keys().copied()).collect();
    let unseen: Vec<&String> = fields.iter().filter(|field| !named.contains(field.as_str())).collect();
    // What is only there where somebody else has made the frame.
    assert_eq!(unseen, ["causeway.record.rest", "causeway.tlp.digest"], "fields that no frame here has");
    let asked: Vec<&str> = fields.iter().map(String::as_str).collect();
    type Wrap = fn(&[u8]) -> Vec<u8>;
    let media: [(&str, u32, Wrap); 3] =
        [("user0", 147, <[u8]>::to_vec), ("ethernet", 1, in_ethernet), ("udp", 101, in_udp)];
    for (medium, link_type, wrap) in media {
        let file = mesh.dir().join(format!("{medium}.pcap"));
        write_pcap(&file, link_type, golden.iter().map(|frame| wrap(&frame.bytes)));
        let shown = tshark(&file, "causeway && !causeway.malformed", &asked);
        assert_eq!(shown.len(), golden.len(), "{medium}");
        for (frame, values) in golden.iter().zip(shown) {
            for (field, value) in asked.iter().zip(values) {
                let expected = frame.fields.get(field).copied().unwrap_or_default();
                assert_eq!(value, expected, "{field} of {} over {medium}", frame.name);
            }
        }
    }
}

/// Whatever is cut off or changed is shown as far as it goes: the dissector itself never fails.
#[test]
fn x_what_is_no_frame_does_not_confuse_the_dissector() {
    let _place = gate::waits();
    let mesh = Mesh::new(1, 1).unwrap();
    let file = mesh.dir().join("broken.pcap");
    let cut = golden().into_iter().flat_map(|frame| {
        let lens = (1..frame.bytes.len()).step_by(3);
        lens.map(|len| frame.bytes[..len].to_vec()).collect::<Vec<_>>()
    });
    let changed = golden().into_iter().flat_map(|frame| {
        let places = (0..frame.bytes.len()).step_by(2);
        let change = |at: usize| {
            let mut bytes = frame.bytes.clone();
            bytes[at] ^= 0xa5;
            bytes
        };
        places.map(change).collect::<Vec<_>>()
    });
    let packets: Vec<Vec<u8>> = cut.chain(changed).collect();
    write_pcap(&file, 147, packets.iter().cloned());
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{DISSECTOR}")).arg("-r").arg(&file).arg("-V");
    let text = run(command).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("Frame ")).count(), packets.len());
    assert!(!text.contains("Lua Error"), "{}", text.lines().find(|line| line.contains("Lua Error")).unwrap());
    assert!(count(&file, "causeway.malformed") > 100);
}

fn link_command(machine: &Machine, words: &[&str]) -> Command {
    let mut command = machine.command(binary().unwrap());
    command.arg("link").args(words);
    command
}

fn link(machine: &Machine, words: &[&str]) -> Outcome {
    let command = link_command(machine, words);
    run_to_end(command, &machine.dir().join("logs"), "link", START_TIMEOUT).unwrap()
}

/// A capture that runs.
struct Capturing {
    process: Process,
    file: PathBuf,
}

impl Capturing {
    /// Of a node, until [`Capturing::end`].
    fn start(machine: &Machine, node: &str, file: &str, options: &[&str]) -> Self {
        let path = machine.dir().join(file);
        let mut command = link_command(machine, &["capture", "--name", node, "-w"]);
        command.arg(&path).args(options);
        let process = machine.spawn(&format!("capture-{file}"), command).unwrap();
        poll_until("the head of the capture", LONG, || {
            Ok(std::fs::metadata(&path).is_ok_and(|file| file.len() > 0).then_some(()))
        })
        .unwrap();
        Self { process, file: path }
    }

    /// Ends it, and returns the file and how many frames are said to be there and to have been dropped.
    fn end(mut self) -> (PathBuf, u64, u64) {
        assert_eq!(self.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", self.process.tail());
        let said =
            self.process.wait_log("what it has captured", LONG, |line| line.contains("frames captured"));
        let said = said.unwrap();
        let numbers: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [frames, dropped] = numbers[..] else { panic!("{said}") };
        assert_eq!(count(&self.file, "frame"), frames as usize);
        assert_eq!(count(&self.file, "!causeway || causeway.malformed"), 0, "{}", self.file.display());
        (self.file, frames, dropped)
    }
}

fn holds(file: &Path, what: &[u8]) -> bool {
    capture::contains(&std::fs::read(file).unwrap(), what)
}

/// Writes the pattern to a drive, and reads it back.
fn use_drive(borrower: &Borrower) {
    let mut client = connect(&borrower.socket).unwrap();
    let data: Vec<u8> = PATTERN.iter().copied().cycle().take(64 << 10).collect();
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    let mut back = Vec::new();
    client.read(0, data.len() as u32, &mut back).unwrap();
    assert!(back == data);
    client.disconnect().unwrap();
}

/// What is seen of a drive that is borrowed and used: on the wire, opened, and by somebody in between.
fn capture_both(arguments: &[&str]) -> (World, [PathBuf; 3]) {
    let mut world = World::new(&WorldConfig { capture: true, ..WorldConfig::default() }).unwrap();
    let mut lender = Lender::start(world.right(), &["ram:8M"], arguments).unwrap();
    let wire = Capturing::start(world.right(), "lender", "wire.pcapng", &[]);
    let opened = Capturing::start(world.right(), "lender", "opened.pcapng", &["--opened"]);
    let mut borrower = Borrower::start(world.left(), &lender.lines[0], arguments).unwrap();
    use_drive(&borrower);
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    let warned = opened.process.tail().contains("the data that this node reads and writes stand in the file");
    assert!(warned, "{}", opened.process.tail());
    let [wire, opened] = [wire, opened].map(|it| it.end());
    assert_eq!((wire.2, opened.2), (0, 0), "a small load loses nothing");
    assert_eq!(lender.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    world.relay().stats().unwrap();
    let between = world.relay().capture().unwrap().to_path_buf();
    for file in [&wire.0, &opened.0, &between] {
        assert_eq!(values(file, "causeway", "causeway.kind"), set(["1", "2", "3"]), "{}", file.display());
    }
    for file in [&wire.0, &opened.0] {
        let ways = values(file, "causeway.kind == 3", "frame.packet_flags_direction");
        assert_eq!(ways, set(["0x00000001", "0x00000002"]));
        assert_eq!(values(file, "causeway", "frame.interface_name"), set(["rail0", "rail1"]));
    }
    (world, [wire.0, opened.0, between])
}

#[test]
fn w8_sealed_frames_show_their_headers_and_what_is_in_them_when_opened() {
    let (_world, [wire, opened, between]) = capture_both(&[]);
    for file in [&wire, &between] {
        assert_eq!(values(file, "causeway.kind == 3", "causeway.protection"), set(["0"]));
        assert!(count(file, "causeway.tlp.type") == 0 && !holds(file, PATTERN));
    }
    assert_eq!(values(&opened, "causeway.kind == 3", "causeway.protection"), set(["3"]));
    assert_tlps(&opened);
    let records = values(&opened, "causeway.record.type", "causeway.record.type");
    for kind in ["0x01", "0x82", "0x03", "0x04", "0x05", "0x8d", "0x8e", "0x90", "0x91", "0x12", "0x13"] {
        assert!(records.contains(kind), "no record {kind}: {records:?}");
    }
    // No tag, and so nothing made with a key, is left of what was opened.
    assert_eq!(values(&opened, "causeway.kind == 3", "causeway.tag"), set([&"0".repeat(32)]));
    for file in [&wire, &opened] {
        let numbers =
            tshark(file, "causeway.kind == 3", &["causeway.packet_number", "causeway.card_generation"]);
        assert!(numbers.iter().all(|of| of[0].parse::<u64>().is_ok() && of[1] == "1"), "{numbers:?}");
    }
}

/// TLPs of a drive at work, with the data that it has.
fn assert_tlps(file: &Path) {
    // MRd64, MWr64, CplD.
    let types = values(file, "causeway.tlp.type", "causeway.tlp.type");
    assert!(["0x20", "0x60", "0x4a"].iter().all(|it| types.contains(*it)), "{types:?}");
    let pattern = PATTERN.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let with_data = format!("causeway.tlp.payload contains {pattern}");
    for filter in [
        // What the drive reads from its host, and what it writes there.
        format!("causeway.tlp.type == 0x4a && {with_data} && frame.packet_flags_direction == 1"),
        format!("causeway.tlp.type == 0x60 && {with_data} && frame.packet_flags_direction == 2"),
    ] {
        let filter = if count(file, "frame.packet_flags_direction") > 0 { filter } else { with_data.clone() };
        assert!(count(file, &filter) > 10, "{filter}");
    }
    let addresses = values(file, "causeway.tlp.type == 0x60", "causeway.tlp.address");
    assert!(addresses.len() > 10 && addresses.iter().all(|it| it.len() == 18), "{addresses:?}");
}

#[test]
fn w8_insecure_frames_are_plain_wherever_they_are_seen() {
    let (_world, files) = capture_both(&["--insecure"]);
    for file in files {
        assert_eq!(values(&file, "causeway.kind == 3", "causeway.protection"), set(["1"]));
        assert_tlps(&file);
        assert!(holds(&file, PATTERN));
    }
}

/// Two nodes of one machine: frames go through memory, and a capture goes on with the next card.
#[test]
fn w8_frames_in_memory_are_captured_and_a_capture_outlives_the_card() {
    let mesh = Mesh::new(1, 1).unwrap();
    let machine = &mesh.machines()[0];
    let lender = Lender::start(machine, &["ram:8M"], &[]).unwrap();
    let borrower = Borrower::start(machine, &lender.lines[0], &[]).unwrap();
    let capturing = Capturing::start(machine, "borrower", "memory.pcapng", &["shm"]);
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, 1), 4).unwrap();
    load.wait_done(100, LONG).unwrap();
    kill_card(machine, "borrower", LONG).unwrap();
    load.wait_done(100, LONG).unwrap();
    load.stop_whole(&borrower.socket).unwrap();
    let (file, frames, dropped) = capturing.end();
    assert!(frames > 100, "{frames} {dropped}");
    assert_eq!(values(&file, "causeway", "causeway.kind"), set(["4"]));
    assert_eq!(values(&file, "causeway", "frame.interface_name"), set(["shm"]));
    let generations = values(&file, "frame.packet_flags_direction == 2", "causeway.card_generation");
    assert_eq!(generations, set(["1", "2"]));
    assert!(count(&file, "causeway.tlp.type == 0x4a && causeway.tlp.payload") > 10);
}

/// A rail that is taken out of use carries nothing, and I/O goes on over the other one.
#[test]
fn w8_a_link_is_listed_and_taken_down_and_up() {
    let mesh = Mesh::new(2, 2).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let lender = Lender::start(right, &["ram:8M"], &[]).unwrap();
    let borrower = Borrower::start(left, &lender.lines[0], &[]).unwrap();
    let listed = |what: &str, state: &str| {
        poll_until(what, LONG, || {
            let text = run(link_command(left, &["list", "-o", "json"]))?;
            let document: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(document["version"], 1, "{document}");
            let rails = document["rails"].as_array().unwrap();
            Ok(rails.iter().any(|rail| rail["name"] == "rail1" && rail["state"] == state).then_some(()))
        })
        .unwrap();
    };
    listed("both rails", "up");
    let load = Load::start(&borrower.socket, Model::new(0, 4 * MIB, 1), 4).unwrap();
    for _ in 0..2 {
        load.wait_done(100, LONG).unwrap();
        assert_eq!(link(left, &["down", "rail1"]).code, Some(0));
        listed("rail1 to be down", "down");
        load.wait_done(100, LONG).unwrap();
        assert_eq!(link(left, &["up", "rail1"]).code, Some(0));
        listed("rail1 to be up", "up");
    }
    load.stop_whole(&borrower.socket).unwrap();
    let text = link(left, &["list"]).stdout;
    assert!(text.starts_with("RAIL") && text.lines().count() >= 3, "{text}");
    let outcome = link(left, &["down", "rail7"]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("there is no rail `rail7`"), "{outcome:?}");
}

/// Who does not read costs frames of its capture, which are counted, and nobody else anything.
#[test]
fn w8_a_reader_that_stands_still_is_not_waited_for() {
    let mesh = Mesh::new(2, 1).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let lender = Lender::start(right, &["ram:64M"], &[]).unwrap();
    let borrower = Borrower::start(left, &lender.lines[0], &[]).unwrap();
    let capturing = Capturing::start(left, "borrower", "slow.pcapng", &[]);
    stop(capturing.process.pid()).unwrap();
    let mut client = connect(&borrower.socket).unwrap();
    let data = vec![0x5a; 1 << 20];
    (0..48).for_each(|at| client.write(at << 20, &data).unwrap());
    client.disconnect().unwrap();
    signal(capturing.process.pid(), Signal::CONT).unwrap();
    // What the ring has is still to come.
    poll_until("the end of what was kept", LONG, || {
        let mut client = connect(&borrower.socket)?;
        client.write(0, &[1; 4096]).unwrap();
        Ok((count(&capturing.file, "frame") > 1000).then_some(()))
    })
    .unwrap();
    let (file, frames, dropped) = capturing.end();
    assert!(dropped > 1000, "{frames} {dropped}");
    let mut command = Command::new("capinfos");
    command.arg(&file);
    let told = run(command);
    assert!(
        told.is_ok_and(|told| told.matches("Number of stat entries = 1").count() == 2),
        "the statistics of both links are in the file"
    );
    assert!(holds(&file, &[&[0, 5, 0, 8][..], &dropped.to_be_bytes()].concat()), "isb_ifdrop of {dropped}");
}

#[test]
fn w8_a_capture_ends_after_so_many_frames_or_seconds_and_is_refused_by_name() {
    let mesh = Mesh::new(2, 2).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    let lender = Lender::start(right, &["ram:8M"], &[]).unwrap();
    let _borrower = Borrower::start(left, &lender.lines[0], &[]).unwrap();
    let outcome = link(left, &["capture", "rail1", "--count", "5", "-w", "-"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stderr.contains("5 frames captured, 0 dropped"), "{outcome:?}");
    let file = left.dir().join("logs/link.out");
    assert_eq!((count(&file, "causeway"), count(&file, "frame")), (5, 5));
    assert_eq!(values(&file, "causeway", "frame.interface_name"), set(["rail1"]));
    let file = left.dir().join("timed.pcapng");
    let outcome = link(left, &["capture", "--seconds", "1", "-w", file.to_str().unwrap()]);
    assert!(outcome.code == Some(0) && outcome.took < Duration::from_secs(10), "{outcome:?}");
    assert!(count(&file, "causeway") > 5);
    let outcome = link(left, &["capture", "rail7", "-w", "-"]);
    assert!(outcome.code == Some(3) && outcome.stderr.contains("no link rail7"), "{outcome:?}");
    let captures: Vec<Capturing> =
        (0..4).map(|number| Capturing::start(left, "borrower", &format!("{number}.pcapng"), &[])).collect();
    let outcome = link(left, &["capture", "-w", "-"]);
    assert!(
        outcome.code == Some(3) && outcome.stderr.contains("4 captures of it run already"),
        "{outcome:?}"
    );
    captures.into_iter().for_each(|it| drop(it.end()));
}

/// Two switches and the link between them: each captures what comes by its ports and leaves by them, and opens nothing.
#[test]
fn w8_ports_of_switches_are_listed_and_captured() {
    let mesh = Mesh::new(4, 3).unwrap();
    let [left, right, one, two] = mesh.machines() else { panic!("four machines") };
    for (machine, rails) in [(left, &[0][..]), (right, &[2]), (one, &[0, 1]), (two, &[1, 2])] {
        switches::keep_rails(machine, rails);
    }
    let behind = |machine: &Machine, name: &str| format!("nodes = [\"{}\"]", switches::id(machine, name));
    let at = switches::at;
    let first = switches::port("left", &at(one, 0), &at(left, 0), &behind(left, "borrower"))
        + &switches::port("link", &at(one, 1), &at(two, 1), "default = true");
    let second = format!(
        "[[ports]]\nname = \"right\"\nethernet = \"rail2\"\npeer = \"{}\"\n{}\n",
        switches::mac(right, 2),
        behind(right, "lender")
    ) + &switches::port("link", &at(two, 1), &at(one, 1), "default = true");
    let _switches = [switches::start(one, "one", &first), switches::start(two, "two", &second)];
    let of_one = Capturing::start(one, "one", "one.pcapng", &[]);
    let of_two = Capturing::start(two, "two", "two.pcapng", &[]);
    let of_link = Capturing::start(two, "two", "link.pcapng", &["link"]);
    let lend = ["--listen", "eth:rail2", "--switch", &switches::mac(two, 2)];
    let lender = Lender::start(right, &["ram:8M"], &lend).unwrap();
    let borrow = ["--listen", &at(left, 0), "--switch", &at(one, 0)];
    let mut borrower = Borrower::start(left, &lender.lines[0], &borrow).unwrap();
    use_drive(&borrower);
    assert_eq!(borrower.process.terminate(STOP_TIMEOUT).unwrap(), 0);
    let [one_file, two_file, link_file] = [of_one, of_two, of_link].map(|it| {
        let (file, _, dropped) = it.end();
        assert_eq!(dropped, 0, "a small load loses nothing");
        file
    });

    for (file, ports) in
        [(&one_file, set(["left", "link"])), (&two_file, set(["right", "link"])), (&link_file, set(["link"]))]
    {
        assert_eq!(values(file, "causeway", "frame.interface_name"), ports);
        assert!(count(file, "causeway.tlp.type") == 0 && !holds(file, PATTERN), "nothing is opened");
    }
    // What one switch sends over the link comes to the other, and each has one hop less than it came with.
    let of = |file: &Path, port: &str, way: u8, node: &str| {
        let filter = format!(
            "causeway.kind == 3 && frame.interface_name == \"{port}\" && frame.packet_flags_direction == {way} && \
             causeway.source.domain == {node}"
        );
        tshark(file, &filter, &["causeway.route.hops_left", "causeway.packet_number"])
    };
    let domains =
        values(&one_file, "causeway.kind == 3 && frame.interface_name == \"left\"", "causeway.source.domain");
    assert_eq!(domains.len(), 2, "{domains:?}");
    for node in &domains {
        let is_borrower = !of(&one_file, "left", 1, node).is_empty();
        let steps = match is_borrower {
            true => [
                of(&one_file, "left", 1, node),
                of(&one_file, "link", 2, node),
                of(&link_file, "link", 1, node),
                of(&two_file, "right", 2, node),
            ],
            false => [
                of(&two_file, "right", 1, node),
                of(&link_file, "link", 2, node),
                of(&one_file, "link", 1, node),
                of(&one_file, "left", 2, node),
            ],
        };
        for (step, hops) in steps.iter().zip(["32", "31", "31", "30"]) {
            assert!(step.len() > 20 && step.iter().all(|it| it[0] == hops), "{node} {hops}: {step:?}");
        }
        // Captures end one after the other: what goes over the ports meanwhile is in the later ones only.
        let shortest = steps.iter().map(Vec::len).min().unwrap();
        let numbers =
            steps.map(|step| step.into_iter().take(shortest).map(|mut it| it.remove(1)).collect::<Vec<_>>());
        assert!(numbers.iter().all(|it| *it == numbers[0]), "the same frames in the same order: {numbers:?}");
    }

    let listed = link(one, &["list", "--name", "one"]).stdout;
    assert!(listed.starts_with("PORT") && listed.contains("left") && listed.contains("link"), "{listed}");
    let text = run(link_command(one, &["list", "-o", "json"])).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names: Vec<&str> =
        document["ports"].as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap()).collect();
    assert!(document["version"] == 1 && names == ["left", "link"], "{document}");
    for (words, told) in [
        (&["capture", "rail0", "-w", "-"][..], "no link rail0"),
        (&["capture", "--opened", "-w", "-"], "has no key for what it forwards"),
        (&["down", "left"], "its links cannot be cut here"),
    ] {
        let outcome = link(one, words);
        assert!(outcome.code == Some(3) && outcome.stderr.contains(told), "{outcome:?}");
    }
}
