//! T13 and X for slots, with clients that are no QEMU: maps that make no sense, a client that maps nothing, memory that
//! goes away, messages without sense or with descriptors where none belong, clients that stall and vanish. What is
//! refused has an errno and a counter, the neighbour does not notice, and the next client is served.

use base::Random;
use campaign::causeway::{Lender, STOP_TIMEOUT, Slot, binary, card, kill_card, number, start_slot, status};
use campaign::gate;
use campaign::host::{Domain, Host};
use campaign::process::{poll_until, run_to_end};
use campaign::world::{Machine, World, WorldConfig};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);
const PAGE: u64 = 4096;
/// Where the aperture of 44 bits ends for maps: its last page is the card's.
const DMA_END: u64 = (1 << 44) - PAGE;

const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DMA_READ: u16 = 11;
const DMA_WRITE: u16 = 12;

/// Where a client has memory without a descriptor.
const KEPT: u64 = 0x5_0000_0000;

const ENOENT: u32 = 2;
const EEXIST: u32 = 17;
const EINVAL: u32 = 22;
const ERANGE: u32 = 34;

/// A client that says whatever it is told to.
struct Client {
    stream: UnixStream,
    /// What it keeps to itself, from [`KEPT`] on.
    kept: Vec<u8>,
    /// What it was asked for while it waited for something itself: as in QEMU, that comes later.
    asked: Vec<Vec<u8>>,
}

impl Client {
    /// One that has agreed upon the version. Until it is known that the one before has left, others are sent away.
    fn connect(socket: &Path) -> Self {
        poll_until("the slot to take a client", LONG, || {
            let mut client = Self::raw(socket);
            let version = client.call(VERSION, &[0; 4], &[]);
            Ok(version.is_ok_and(|version| version.is_ok()).then_some(client))
        })
        .unwrap()
    }

    /// One that has said nothing.
    fn raw(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        Self { stream, kept: Vec::new(), asked: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let flags = SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut ancillary, flags)?;
        self.stream.write_all(&bytes[sent..])
    }

    /// A command and its reply: the payload, or an errno.
    fn call(
        &mut self,
        command: u16,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> std::io::Result<Result<Vec<u8>, u32>> {
        self.send(&message(command, payload), descriptors)?;
        let (header, payload) = loop {
            let (header, payload) = self.receive()?;
            if header[8] & 0xf == 1 {
                break (header, payload);
            }
            self.asked.push([&header[..], &payload].concat());
        };
        let [flags, error] = [8, 12].map(|at| u32::from_le_bytes(header[at..at + 4].try_into().unwrap()));
        assert_eq!((header[..4] == message(command, &[])[..4], flags & 0xf), (true, 1), "{header:x?}");
        for message in std::mem::take(&mut self.asked) {
            self.serve(&message);
        }
        Ok(if flags & 0x20 != 0 { Err(error) } else { Ok(payload) })
    }

    /// The next message: header and payload.
    fn receive(&mut self) -> std::io::Result<([u8; 16], Vec<u8>)> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header)?;
        let size = u32::from_le_bytes(header[4..8].try_into().unwrap());
        let mut payload = vec![0; size as usize - 16];
        self.stream.read_exact(&mut payload)?;
        Ok((header, payload))
    }

    /// Reads or writes what it keeps.
    fn serve(&mut self, message: &[u8]) {
        let (header, payload) = message.split_at(16);
        let address = u64::from_le_bytes(payload[..8].try_into().unwrap());
        let len = u32::from_le_bytes(payload[8..12].try_into().unwrap()) as usize;
        let bytes = &mut self.kept[(address - KEPT) as usize..][..len];
        let mut answer = header.to_vec();
        match u16::from_le_bytes([header[2], header[3]]) {
            DMA_READ => answer.extend([&payload[..16], bytes].concat()),
            DMA_WRITE => {
                bytes.copy_from_slice(&payload[16..16 + len]);
                answer.extend(&payload[..16]);
            }
            other => panic!("command {other}"),
        }
        let size = answer.len() as u32;
        answer[4..8].copy_from_slice(&size.to_le_bytes());
        answer[8] = 1;
        self.send(&answer, &[]).unwrap();
    }

    fn map(&mut self, start: u64, len: u64, offset: u64, descriptors: &[BorrowedFd<'_>]) -> Result<(), u32> {
        self.call(DMA_MAP, &map_of(start, len, offset, 3), descriptors).unwrap().map(drop)
    }

    fn unmap(&mut self, start: u64, len: u64) -> Result<(), u32> {
        let payload = [24, 0, start as u32, (start >> 32) as u32, len as u32, (len >> 32) as u32];
        self.call(DMA_UNMAP, &words(&payload), &[]).unwrap().map(drop)
    }

    fn config(&mut self, offset: u8) -> u8 {
        self.call(REGION_READ, &words(&[offset.into(), 0, 7, 1]), &[]).unwrap().unwrap()[16]
    }

    /// Gives `event` to the first vector, and turns MSI-X on.
    fn set_interrupt(&mut self, event: BorrowedFd<'_>) {
        self.call(SET_IRQS, &words(&[20, 0x24, 2, 0, 1]), &[event]).unwrap().unwrap();
        let mut msix = self.config(0x34);
        while self.config(msix) != 0x11 {
            msix = self.config(msix + 1);
            assert_ne!(msix, 0, "the drive has MSI-X");
        }
        let enable = [words(&[u32::from(msix) + 2, 0, 7, 2]), vec![0x00, 0x80]].concat();
        self.call(REGION_WRITE, &enable, &[]).unwrap().unwrap();
    }

    fn register(&mut self, offset: u32) -> Result<u32, u32> {
        let read = self.call(REGION_READ, &words(&[offset, 0, 0, 4]), &[]).unwrap()?;
        Ok(u32::from_le_bytes(read[16..].try_into().unwrap()))
    }

    fn set_register(&mut self, offset: u32, value: u32) {
        self.call(REGION_WRITE, &words(&[offset, 0, 0, 4, value]), &[]).unwrap().unwrap();
    }

    /// Memory space and bus mastering, then a controller with its admin queues at `queues`, and a doorbell rung.
    fn bring_up_and_ring(&mut self, queues: u64) {
        self.call(REGION_WRITE, &words(&[4, 0, 7, 4, 6]), &[]).unwrap().unwrap();
        self.set_register(0x14, 0);
        self.set_register(0x24, 0x000f_000f);
        for (register, address) in [(0x28, queues), (0x30, queues + PAGE)] {
            self.set_register(register, address as u32);
            self.set_register(register + 4, (address >> 32) as u32);
        }
        self.set_register(0x14, 0x0046_0001);
        poll_until("CSTS.RDY", LONG, || Ok((self.register(0x1c).unwrap() & 1 == 1).then_some(()))).unwrap();
        self.set_register(0x1000, 4);
    }

    /// The connection has ended, in whatever way: with bytes of ours unread that may be a reset.
    fn wait_end(&mut self) {
        let mut bytes = [0; 4096];
        while !matches!(self.stream.read(&mut bytes), Ok(0) | Err(_)) {}
    }
}

fn message(command: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[7 | u32::from(command) << 16, 16 + payload.len() as u32, 0, 0]);
    bytes.extend_from_slice(payload);
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn map_of(start: u64, len: u64, offset: u64, rights: u32) -> Vec<u8> {
    let halves = [offset, start, len].map(|value| [value as u32, (value >> 32) as u32]);
    words(&[&[32, rights][..], &halves.concat()].concat())
}

fn memory(len: u64) -> File {
    let memory: File = rustix::fs::memfd_create("guest", MemfdFlags::empty()).unwrap().into();
    memory.set_len(len).unwrap();
    memory
}

/// One drive and its slot.
fn start() -> (World, Lender, Slot) {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let (lender, slot) = start_slot(&world, "ram:16M").unwrap();
    (world, lender, slot)
}

#[track_caller]
fn counter(machine: &Machine, node: &str, name: &str) -> u64 {
    number(&status(machine, node).unwrap(), &format!("/counters/{name}")).unwrap()
}

/// No card has died of anything.
#[track_caller]
fn assert_cards_live(world: &World, borrower: &str) {
    for (machine, node) in [(world.left(), borrower), (world.right(), "lender")] {
        assert_eq!(card(&status(machine, node).unwrap()).unwrap().restarts, 0, "{node}");
    }
}

#[test]
fn x_maps_without_sense_are_refused_and_counted() {
    let (world, _lender, mut slot) = start();
    let mut client = Client::connect(&slot.socket);
    let (memory, more) = (memory(1 << 20), memory(1 << 20));
    let fd = || [memory.as_fd()];
    client.map(0x10_0000, 0x4000, 0, &fd()).unwrap();
    client.map(DMA_END - PAGE, PAGE, 0, &fd()).unwrap();
    let refused = [
        ("overlaps", client.map(0x10_0000, PAGE, 0, &fd()), EEXIST),
        ("overlaps at its end", client.map(0xf_f000, 2 * PAGE, 0, &fd()), EEXIST),
        ("covers another", client.map(0, 1 << 30, 0, &fd()), EEXIST),
        ("begins within a page", client.map(0x20_0800, PAGE, 0, &fd()), EINVAL),
        ("ends within a page", client.map(0x20_0000, 512, 0, &fd()), EINVAL),
        ("begins within a page of its file", client.map(0x20_0000, PAGE, 12, &fd()), EINVAL),
        ("is nothing", client.map(0x20_0000, 0, 0, &fd()), EINVAL),
        ("has two files", client.map(0x20_0000, PAGE, 0, &[memory.as_fd(), more.as_fd()]), EINVAL),
        ("is the card's page", client.map(DMA_END, PAGE, 0, &fd()), ERANGE),
        ("reaches beyond the aperture", client.map(1 << 44, PAGE, 0, &fd()), ERANGE),
        ("ends beyond the aperture", client.map(DMA_END - (1 << 30), 2 << 30, 0, &fd()), ERANGE),
        ("wraps around", client.map(u64::MAX - PAGE + 1, 2 * PAGE, 0, &fd()), ERANGE),
        ("ends beyond all files", client.map(0x20_0000, PAGE, i64::MAX as u64 - PAGE + 1, &fd()), ERANGE),
    ];
    for (what, result, errno) in &refused {
        assert_eq!(*result, Err(*errno), "a map that {what}");
    }
    assert_eq!(counter(world.left(), "slot", "refused_maps"), refused.len() as u64);
    // What was there before is still there, and goes once.
    assert_eq!(client.unmap(0x10_1000, PAGE), Err(EINVAL), "a part of a map");
    assert_eq!(client.unmap(0x30_0000, PAGE), Err(ENOENT));
    client.unmap(0x10_0000, 0x4000).unwrap();
    assert_eq!(client.unmap(0x10_0000, 0x4000), Err(ENOENT));
    client.map(0x10_0000, 0x4000, 0, &fd()).unwrap();
    assert_cards_live(&world, "slot");
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
}

/// The drive is told to fetch commands from where nothing is, or nothing that could be read: it fails, is denied, and
/// that is all.
#[test]
fn x_memory_that_is_not_there_costs_the_access() {
    let (world, _lender, mut slot) = start();
    let folder = File::open(world.left().dir()).unwrap();
    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let short = memory(PAGE / 2);
    let cases: [(&str, Option<BorrowedFd<'_>>); 5] = [
        ("nothing", None),
        ("an eventfd", Some(event.as_fd())),
        ("a pipe", Some(pipe.as_fd())),
        ("a folder", Some(folder.as_fd())),
        ("memory that ends before", Some(short.as_fd())),
    ];
    for (what, mapped) in cases {
        let mut client = Client::connect(&slot.socket);
        if let Some(mapped) = mapped {
            client.map(0x10_0000, 1 << 20, 0, &[mapped]).unwrap();
        }
        let before = counter(world.left(), "slot", "denied_accesses");
        client.bring_up_and_ring(0x10_0000 + PAGE);
        poll_until(&format!("a denied access: {what}"), LONG, || {
            Ok((counter(world.left(), "slot", "denied_accesses") > before).then_some(()))
        })
        .unwrap();
        assert_eq!(client.register(0x8), Ok(0x0002_0000), "VS: registers are served on, {what}");
    }
    memory_cut_off_in_use(&slot.socket);
    assert_cards_live(&world, "slot");
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
}

/// The interrupts of a client may not make the card wait: not even if it says so of an eventfd that has no room.
#[test]
fn t13_interrupts_that_block_make_nobody_wait() {
    let (world, _lender, mut slot) = start();
    let mut client = Client::connect(&slot.socket);
    let memory = memory(1 << 20);
    client.map(0x10_0000, 1 << 20, 0, &[memory.as_fd()]).unwrap();
    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    client.set_interrupt(event.as_fd());
    // Four commands without sense have completions, and those an interrupt.
    client.bring_up_and_ring(0x10_0000);
    let count = || {
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
    };
    poll_until("an interrupt", LONG, || Ok((count() > 0).then_some(()))).unwrap();
    rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rustix::fs::fcntl_setfl(&event, OFlags::RDWR).unwrap();
    for _ in 0..3 {
        let last = PAGE + 3 * 16;
        memory.write_all_at(&[0; 16], last).unwrap();
        client.bring_up_and_ring(0x10_0000);
        poll_until("the completions", LONG, || {
            assert_eq!(client.register(0x8), Ok(0x0002_0000), "registers are served on");
            let mut completion = [0; 16];
            memory.read_exact_at(&mut completion, last).unwrap();
            Ok((completion != [0; 16]).then_some(()))
        })
        .unwrap();
    }
    assert!(count() >= u64::MAX - 1);
    assert_cards_live(&world, "slot");
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
}

/// Queues and data of a client that shares nothing: the drive asks for all of it, and the card is killed meanwhile.
#[test]
fn a_client_is_asked_for_memory_that_it_keeps() {
    let (world, _lender, mut slot) = start();
    let mut client = Client::connect(&slot.socket);
    client.kept = vec![0; 16 * PAGE as usize];
    client.map(KEPT, 16 * PAGE, 0, &[]).unwrap();
    for round in 0..4_u32 {
        client.kept.fill(0);
        for command in 0..4_u8 {
            let at = usize::from(command) * 64;
            let data = KEPT + PAGE * (2 + u64::from(command));
            client.kept[at..at + 4].copy_from_slice(&[6, 0, command, 0]);
            client.kept[at + 24..at + 32].copy_from_slice(&data.to_le_bytes());
            // Identify Controller.
            client.kept[at + 40] = 1;
        }
        client.bring_up_and_ring(KEPT);
        if round % 2 == 1 {
            kill_card(world.left(), "slot", LONG).unwrap();
        }
        while (0..4).any(|entry| client.kept[PAGE as usize + 16 * entry + 14] & 1 == 0) {
            let (header, payload) = client.receive().unwrap();
            client.serve(&[&header[..], &payload].concat());
        }
        for command in 0..4 {
            let entry = &client.kept[PAGE as usize + 16 * command..][..16];
            assert_eq!(u16::from_le_bytes([entry[14], entry[15]]), 1, "it has succeeded");
            let data = &client.kept[PAGE as usize * (2 + command)..][..PAGE as usize];
            let is_text = data[4..64].iter().all(|byte| (0x20..0x7f).contains(byte));
            assert!(is_text, "serial and model number are there before the completion entry");
        }
    }
    assert!(counter(world.left(), "slot", "memory_messages") > 4 * 9);
    assert_eq!(counter(world.left(), "slot", "failed_memory_messages"), 0);
    assert_eq!(counter(world.left(), "slot", "denied_accesses"), 0);
    assert_eq!(client.register(0x8), Ok(0x0002_0000));
    assert_eq!(slot.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", slot.process.tail());
}

/// A client cuts its memory off, again and again, while the drive reads there.
fn memory_cut_off_in_use(socket: &Path) {
    let mut client = Client::connect(socket);
    let memory = memory(1 << 20);
    client.map(0x10_0000, 1 << 20, 0, &[memory.as_fd()]).unwrap();
    for _ in 0..20 {
        memory.set_len(1 << 20).unwrap();
        client.bring_up_and_ring(0x10_0000);
        memory.set_len(0).unwrap();
    }
    assert_eq!(client.register(0x8), Ok(0x0002_0000));
}

#[test]
fn x_paths_that_cannot_be_are_refused_by_name() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let machine = world.left();
    let lender = Lender::start(machine, &["ram:1M"], &[]).unwrap();
    let line = machine.dir().join("line");
    std::fs::write(&line, &lender.lines[0]).unwrap();
    let long = format!("/tmp/{}", "x".repeat(120));
    let missing = machine.dir().join("missing/x.sock");
    let folder = machine.dir();
    let cases = [
        ("missing", missing.as_path(), missing.to_str().unwrap()),
        ("folder", folder, folder.to_str().unwrap()),
        ("long", Path::new(&long), "at most 107 bytes"),
    ];
    for (name, path, word) in cases {
        let mut command = machine.command(binary().unwrap());
        command.args(["borrow", &format!("@{}", line.display()), "--name", name, "--vm"]).arg(path);
        command.arg("--state-dir").arg(machine.dir().join("state").join(name));
        let outcome = run_to_end(command, &machine.dir().join("logs"), name, LONG).unwrap();
        assert!(matches!(outcome.code, Some(2 | 3)), "{outcome:?}");
        assert!(outcome.stderr.contains(word) && outcome.stdout.is_empty(), "{outcome:?}");
    }
}

/// QEMU's greeting, of a version.
fn greeting(major: u32, minor: u32) -> String {
    let version =
        serde_json::json!({ "qemu": { "micro": 0, "minor": minor, "major": major }, "package": "" });
    serde_json::json!({ "QMP": { "version": version, "capabilities": [] } }).to_string()
}

/// Not a QEMU, but something that says what one would: as old ones have no vfio-user, there is nothing more to try.
#[test]
fn x_what_cannot_be_plugged_into_is_named() {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let machine = world.left();
    let lender = Lender::start(world.right(), &["ram:16M"], &[]).unwrap();
    let monitors = ["old", "nonsense", "nobody"].map(|name| machine.dir().join(format!("{name}.qmp")));
    for (path, line) in monitors.iter().zip([greeting(7, 2), "hello".to_owned()]) {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.write_all(format!("{line}\n").as_bytes());
                let _ = stream.read(&mut [0; 64]);
            }
        });
    }
    let names = ["old", "nonsense", "nobody"];
    let domains = names.iter().zip(&monitors);
    let domains = domains.map(|(name, qmp)| Domain { name, qmp: Some(qmp), remove_after_s: 1, bus: "rp1" });
    let mut host = Host::start(machine, &domains.collect::<Vec<_>>()).unwrap();
    for (name, words) in
        names.iter().zip(["this is QEMU 7.2.0; vfio-user needs 10.1", "makes no sense", "nobody.qmp"])
    {
        let output = Host::attach(machine, name, &lender.lines[0]).unwrap().output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(said.contains(words) && said.contains("is not plugged in"), "{said}");
        // It is attached, to one slot only, and can be plugged in by hand.
        let other = if *name == "old" { "nobody" } else { "old" };
        let twice = Host::attach(machine, other, &lender.lines[0]).unwrap().output().unwrap();
        let said = String::from_utf8_lossy(&twice.stderr);
        assert_eq!(twice.status.code(), Some(3), "{twice:?}");
        assert!(said.contains("has nvme0 already") && said.contains(&format!("{name}/disk")), "{said}");
        assert!(output.stdout.starts_with(b"vfio-user:"), "{output:?}");
        assert_eq!(Client::connect(&Host::socket(machine, name)).register(0x8), Ok(0x0002_0000));
        let detached = Host::detach(machine, name).unwrap().output().unwrap();
        assert!(detached.status.success(), "{detached:?}");
    }
    assert_eq!(host.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", host.process.tail());
}

/// A node with two slots, one for a client that behaves.
fn start_neighbours() -> (World, Lender, Host, [PathBuf; 2]) {
    let world = World::new(&WorldConfig { rails: 1, ..WorldConfig::default() }).unwrap();
    let lender = Lender::start(world.right(), &["ram:16M", "ram:16M"], &[]).unwrap();
    let sockets = ["good", "bad"].map(|name| world.left().dir().join(format!("{name}.sock")));
    let tables: Vec<String> = (lender.lines.iter().zip(&sockets))
        .map(|(line, socket)| format!("[[loans]]\nline = '{line}'\nvm = '{}'\n", socket.display()))
        .collect();
    let mut host = Host::start_with(world.left(), &tables.concat()).unwrap();
    for _ in &sockets {
        host.process.wait_line("a slot", LONG, |line| line.starts_with("vfio-user:")).unwrap();
    }
    (world, lender, host, sockets)
}

/// Reads a register again and again, and says how often and how long it took at most.
fn behave(socket: &Path, is_over: &AtomicBool) -> (u64, Duration) {
    let mut client = Client::connect(socket);
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        let start = Instant::now();
        assert_eq!(client.register(0x8), Ok(0x0002_0000));
        longest = longest.max(start.elapsed());
        count += 1;
    }
    (count, longest)
}

#[test]
fn t13_whoever_misbehaves_has_only_his_own_slot() {
    let _place = gate::computes();
    let (world, _lender, mut host, [good, bad]) = start_neighbours();
    let start = Instant::now();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| behave(&good, &is_over));
        let outcome = std::panic::catch_unwind(|| misbehave(&bad));
        is_over.store(true, Ordering::Relaxed);
        let (count, longest) = neighbour.join().unwrap();
        println!("{count} reads of the neighbour, the longest took {longest:?}");
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(count > 100 && longest < Duration::from_secs(2), "{count} reads, the longest {longest:?}");
    });
    assert!(counter(world.left(), Host::NAME, "client_protocol_errors") > 0);
    assert_cards_live(&world, Host::NAME);
    // For each slot a line of each kind a second, of more than 100 clients.
    let log = std::fs::read_to_string(host.process.log()).unwrap();
    for what in ["has connected to the slot", "has left the slot", "was sent away"] {
        let lines = log.lines().filter(|line| line.contains(what)).count() as u64;
        assert!(lines <= 4 + start.elapsed().as_secs(), "{lines} lines say that a client {what}");
    }
    assert_eq!(host.process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", host.process.tail());
}

/// All ways to be a bad client; after each the slot serves one that behaves.
fn misbehave(socket: &Path) {
    let works = || assert_eq!(Client::connect(socket).register(0x8), Ok(0x0002_0000));
    let read = message(REGION_READ, &words(&[8, 0, 0, 4]));
    works();
    say_what_makes_no_sense(socket, &read, &works);
    send_descriptors_anywhere(socket, &works);
    vanish(socket, &read, &works);
    // One that stops within a message, and stays.
    let mut stalled = Client::connect(socket);
    stalled.send(&read[..20], &[]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    drop(stalled);
    works();
    // One that asks and does not listen.
    let mut deaf = Client::connect(socket);
    deaf.stream.set_nonblocking(true).unwrap();
    let mut asked = 0;
    while asked < 1 << 20 && deaf.send(&read.repeat(64), &[]).is_ok() {
        asked += 64;
    }
    drop(deaf);
    works();
}

fn say_what_makes_no_sense(socket: &Path, read: &[u8], works: &impl Fn()) {
    let header = |size: u32, flags: u32| words(&[7 | u32::from(REGION_READ) << 16, size, flags, 0]);
    let senseless = [header(0, 0), header(15, 0), header(u32::MAX, 0), header(16, 0xf), [0xff; 64].to_vec()];
    for bytes in &senseless {
        let mut client = Client::connect(socket);
        client.send(bytes, &[]).unwrap();
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        client.wait_end();
        works();
        // Before a version was agreed upon.
        let mut client = Client::raw(socket);
        let _ = client.send(bytes, &[]);
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
        client.wait_end();
        works();
    }
    // A read first, the version twice, and replies that nobody has asked for.
    let mut client = Client::raw(socket);
    let _ = client.send(read, &[]);
    drop(client);
    let mut client = Client::connect(socket);
    assert_eq!(client.call(VERSION, &[0; 4], &[]).unwrap(), Err(EINVAL));
    client.send(&words(&[7 | 11 << 16, 16, 1, 0]), &[]).unwrap();
    assert_eq!(client.register(0x8), Ok(0x0002_0000));
    drop(client);
    let mut random = Random::new(1);
    for _ in 0..50 {
        let mut client = Client::connect(socket);
        let bytes: Vec<u8> = (0..200).map(|_| random.next_u64() as u8).collect();
        client.send(&bytes, &[]).unwrap();
    }
    works();
}

fn send_descriptors_anywhere(socket: &Path, works: &impl Fn()) {
    let event: OwnedFd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let many = [event.as_fd(); 64];
    let read = words(&[8, 0, 0, 4]);
    let mut client = Client::raw(socket);
    // With the version, with reads, and more than there may be with what may have some.
    let _ = client.call(VERSION, &[0; 4], &many[..3]);
    drop(client);
    works();
    let mut client = Client::connect(socket);
    for count in [1, 8, 64] {
        client.call(REGION_READ, &read, &many[..count]).unwrap().unwrap();
        assert_eq!(client.map(0, PAGE, 0, &many[..count]).is_ok(), count == 1);
        let vectors = words(&[20, 0x24, 2, 0, 1]);
        assert_eq!(client.call(SET_IRQS, &vectors, &many[..count]).unwrap().is_ok(), count == 1);
        let _ = client.unmap(0, PAGE);
    }
    drop(client);
    works();
}

fn vanish(socket: &Path, read: &[u8], works: &impl Fn()) {
    let memory = memory(PAGE);
    let map = message(DMA_MAP, &map_of(0, PAGE, 0, 3));
    for cut in [0, 1, 15, 16, 17, 31] {
        let mut client = Client::connect(socket);
        client.send(&read[..cut], &[]).unwrap();
        drop(client);
        let mut client = Client::connect(socket);
        if cut > 0 {
            client.send(&map[..cut], &[memory.as_fd()]).unwrap();
        }
        drop(client);
    }
    works();
    for _ in 0..50 {
        drop(UnixStream::connect(socket).unwrap());
    }
    works();
}
