//! The NBD client against two servers that others wrote, and against servers that break the protocol.

use base::Random;
use campaign::gate;
use campaign::nbd_client::{ConnectOptions, Errno, NbdClient, NbdError, Request};
use campaign::process::{Process, poll_until};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const SIZE: u64 = 16 << 20;

/// A server on a socket in a folder of its own.
struct Server {
    _process: Process,
    folder: Folder,
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cw-nbd-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("s")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Server {
    fn start(name: &str, command: impl FnOnce(&Path, &Path) -> Command) -> Self {
        let folder = Folder::new(name);
        let process = Process::spawn(command(&folder.socket(), &folder.0), &folder.0.join("log")).unwrap();
        let socket = folder.socket();
        let up = || Ok(UnixStream::connect(&socket).ok().map(drop));
        poll_until("the server's socket", LONG, up)
            .unwrap_or_else(|error| panic!("{error}\n{}", process.tail()));
        Self { _process: process, folder }
    }

    fn nbdkit(name: &str, arguments: &[&str]) -> Self {
        Self::start(name, |socket, _| {
            let mut command = Command::new("nbdkit");
            command.args(["--foreground", "--unix"]).arg(socket).args(arguments);
            command
        })
    }

    fn qemu_nbd(name: &str) -> Self {
        Self::start(name, |socket, folder| {
            let image = folder.join("image");
            campaign::tools::empty_image(&image, SIZE).unwrap();
            let mut command = Command::new("qemu-nbd");
            command.args(["--persistent", "--format=raw", "--discard=unmap", "--shared=8", "--socket"]);
            command.arg(socket).arg(&image);
            command
        })
    }

    fn connect(&self, structured: bool) -> NbdClient {
        let options = ConnectOptions { export: "", structured, timeout: LONG };
        NbdClient::connect_with(&self.folder.socket(), options).unwrap()
    }
}

/// Random writes, zeroes and reads, 32 in flight, never two at once on one block: equal to an array.
fn equals_an_array(client: &mut NbdClient, seed: u64) {
    const BLOCK: u64 = 16 << 10;
    let blocks = SIZE / BLOCK;
    let mut model = vec![0u8; SIZE as usize];
    let mut random = Random::new(seed);
    // In flight: which blocks, and what a read must give.
    let mut busy: BTreeMap<_, (u64, u64, Option<Vec<u8>>)> = BTreeMap::new();
    let mut data = Vec::new();
    let (mut submitted, mut reads) = (0, 0);
    while submitted < 4000 || !busy.is_empty() {
        let first = random.below(blocks);
        let count = 1 + random.below(16.min(blocks - first));
        let is_free =
            busy.values().all(|&(start, length, _)| first + count <= start || start + length <= first);
        if submitted < 4000 && busy.len() < 32 && is_free {
            submitted += 1;
            let (offset, length) = (first * BLOCK, (count * BLOCK) as u32);
            let range = offset as usize..offset as usize + length as usize;
            let mut content = vec![0; length as usize];
            let (request, expected) = match random.below(5) {
                0 | 1 => {
                    random.fill(&mut content);
                    model[range].copy_from_slice(&content);
                    (Request::Write { offset, data: &content, fua: random.chance(100) }, None)
                }
                2 => {
                    model[range].fill(0);
                    (Request::WriteZeroes { offset, length, no_hole: random.chance(500), fua: false }, None)
                }
                _ => (Request::Read { offset, length }, Some(model[range].to_vec())),
            };
            let handle = client.submit(request).unwrap();
            busy.insert(handle, (first, count, expected));
        } else if !busy.is_empty() {
            let reply = client.next_reply(&mut data).unwrap();
            reply.result.unwrap();
            let (first, _, expected) = busy.remove(&reply.handle).expect("an answer to something in flight");
            reads += u32::from(expected.is_some());
            assert!(data == expected.unwrap_or_default(), "wrong data at block {first}");
        }
        assert_eq!(client.in_flight(), busy.len());
    }
    assert!(reads > 1000);
}

fn exercise(server: &Server, structured: bool) {
    let mut client = server.connect(structured);
    assert_eq!(client.size(), SIZE);
    assert_eq!(client.is_structured(), structured);
    let flags = client.flags();
    assert!(flags.flush() && flags.fua() && flags.trim() && flags.write_zeroes() && !flags.read_only());
    equals_an_array(&mut client, 1);

    let mut data = Vec::new();
    client.write(SIZE - 8192, &[7; 8192]).unwrap();
    client.flush().unwrap();
    client.read(SIZE - 8192, 8192, &mut data).unwrap();
    assert_eq!(data, [7; 8192]);
    client.write_zeroes(SIZE - 4096, 4096).unwrap();
    client.trim(SIZE - 8192, 4096).unwrap();
    client.read(SIZE - 4096, 4096, &mut data).unwrap();
    assert_eq!(data, [0; 4096]);

    let error = client.write(SIZE - 4096, &[1; 8192]).unwrap_err();
    assert!(matches!(error, NbdError::Refused { errno: Errno::ENOSPC | Errno::EINVAL, .. }), "{error}");
    let error = client.read(SIZE, 4096, &mut data).unwrap_err();
    assert!(matches!(error, NbdError::Refused { errno: Errno::EINVAL, .. }), "{error}");
    client.read(0, 4096, &mut data).unwrap();
    client.disconnect().unwrap();
}

#[test]
fn nbdkit_with_structured_replies() {
    let _place = gate::waits();
    exercise(&Server::nbdkit("structured", &["memory", "16M"]), true);
}

#[test]
fn nbdkit_with_simple_replies() {
    let _place = gate::waits();
    exercise(&Server::nbdkit("simple", &["memory", "16M"]), false);
}

#[test]
fn qemu_nbd_with_either() {
    let _place = gate::waits();
    let server = Server::qemu_nbd("qemu");
    exercise(&server, true);
    campaign::tools::empty_image(&server.folder.0.join("image"), SIZE).unwrap();
    exercise(&server, false);
}

#[test]
fn a_server_that_blocks_on_its_replies_is_drained() {
    let _place = gate::waits();
    // One thread that answers each request before it takes the next: 64 large reads, then writes that it will not take
    // until the reads have been fetched.
    let server = Server::nbdkit("blocked", &["--threads=1", "memory", "16M"]);
    let mut client = server.connect(true);
    let chunk = vec![5; 1 << 20];
    for index in 0..64 {
        client.submit(Request::Read { offset: (index % 16) << 20, length: 1 << 20 }).unwrap();
        client.submit(Request::Write { offset: (index % 16) << 20, data: &chunk, fua: false }).unwrap();
    }
    let mut data = Vec::new();
    for _ in 0..128 {
        client.next_reply(&mut data).unwrap().result.unwrap();
    }
    assert_eq!(client.in_flight(), 0);
}

#[test]
fn limits_and_capabilities_of_the_server_are_kept() {
    let arguments = [
        "--readonly",
        "--filter=blocksize-policy",
        "memory",
        "16M",
        "blocksize-minimum=512",
        "blocksize-maximum=65536",
    ];
    let server = Server::nbdkit("policy", &arguments);
    let mut client = server.connect(true);
    assert!(client.flags().read_only());
    let sizes = client.block_sizes();
    assert_eq!((sizes.minimum, sizes.maximum), (512, 65536));
    let error = client.read(0, 131_072, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, NbdError::Usage(_)), "{error}");
    let error = client.next_reply(&mut Vec::new()).unwrap_err();
    assert!(matches!(error, NbdError::Usage(_)), "{error}");
}

#[test]
fn refusals_of_the_negotiation_carry_names() {
    let error = NbdClient::connect(Path::new("/nonexistent/socket"), LONG).err().unwrap();
    assert!(error.to_string().contains("/nonexistent/socket"), "{error}");
    let server = Server::qemu_nbd("export");
    let options = ConnectOptions { export: "no-such-export", structured: true, timeout: LONG };
    let error = NbdClient::connect_with(&server.folder.socket(), options).err().unwrap();
    assert!(matches!(error, NbdError::Negotiation { option: "NBD_OPT_GO", .. }), "{error}");
}

/// A server of 1 MiB without structured replies that answers its first request, a read of 4 KiB, with `answer`.
fn scripted(name: &str, answer: &'static [u8], hold: bool) -> (Folder, NbdClient) {
    let folder = Folder::new(name);
    let listener = UnixListener::bind(folder.socket()).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        // Client flags, then NBD_OPT_GO with an empty name and one information request.
        stream.read_exact(&mut [0; 4 + 16 + 8]).unwrap();
        let reply = |kind: u32, body: &[u8]| {
            let mut reply = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
            [7, kind, body.len() as u32].iter().for_each(|word| reply.extend(word.to_be_bytes()));
            reply.extend(body);
            reply
        };
        stream.write_all(&reply(3, &[0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 1])).unwrap();
        stream.write_all(&reply(1, &[])).unwrap();
        stream.read_exact(&mut [0; 28]).unwrap();
        stream.write_all(answer).unwrap();
        if hold {
            // Until the client goes.
            let _ = stream.read(&mut [0]);
        }
    });
    let options = ConnectOptions { export: "", structured: false, timeout: Duration::from_millis(300) };
    let client = NbdClient::connect_with(&folder.socket(), options).unwrap();
    (folder, client)
}

#[test]
fn broken_answers_are_errors_by_name() {
    let read =
        |name, answer, hold| scripted(name, answer, hold).1.read(0, 4096, &mut Vec::new()).unwrap_err();
    let closed = read("closed", b"", false);
    assert!(matches!(closed, NbdError::Closed { unanswered: 1 }), "{closed}");
    let silent = read("silent", b"\x67\x44\x66\x98", true);
    assert!(matches!(silent, NbdError::TimedOut { unanswered: 1 }), "{silent}");
    let magic = read("magic", b"GET / HTTP/1.1\r\n\r\n", true);
    assert!(matches!(magic, NbdError::Protocol(_)), "{magic}");
    let handle = read("handle", b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x09", true);
    assert!(matches!(handle, NbdError::Protocol(_)), "{handle}");
    let eio = read("eio", b"\x67\x44\x66\x98\0\0\0\x05\0\0\0\0\0\0\0\x01", true);
    assert!(matches!(eio, NbdError::Refused { errno: Errno::EIO, .. }), "{eio}");
}
