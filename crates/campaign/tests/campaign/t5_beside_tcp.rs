//! T5: frames of an Ethernet rail and a TCP connection through one narrow port of a plain bridge: each gets its share.

use campaign::causeway::{START_TIMEOUT, STOP_TIMEOUT, binary};
use campaign::gate;
use campaign::load::connect;
use campaign::process::poll_until;
use campaign::tcp::Flow;
use campaign::world::{Machine, Mesh};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);
/// Read at once, by as many clients: far more than the port and its queue hold.
const CHUNK: usize = 256 << 10;
const CLIENTS: usize = 4;
/// What the two begin with, and then what both have carried when they are compared: some eight seconds.
const BEGIN: u64 = 8 * MIB;
const COMPARED: u64 = 96 * MIB;

/// The clients end with it, also where a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn t5_ethernet_and_tcp_share_a_narrow_port() {
    let _place = gate::alone();
    let mesh = Mesh::new(2, 1).unwrap();
    let [left, right] = mesh.machines() else { panic!("two machines") };
    // Toward who reads, so that what is read and what TCP sends meet there.
    mesh.narrow(1, 0).unwrap();
    let node = |machine: &Machine, name: &str, rest: &str| {
        let file = machine.dir().join(format!("{name}.toml"));
        let rail = "[[rails]]\nname = \"rail\"\nethernet = \"rail0\"\n";
        std::fs::write(&file, format!("name = \"{name}\"\n{rail}{rest}")).unwrap();
        let mut command = machine.command(binary().unwrap());
        command.args(["node", "--config"]).arg(file);
        machine.spawn(name, command).unwrap()
    };
    let mut lender = node(right, "store", "[[devices]]\nfunction = \"nvme0\"\nsource = \"ram:64M\"\n");
    let line = lender.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    let socket = left.dir().join("drive.sock");
    let loan = format!("[[loans]]\nline = \"{line}\"\nnbd = \"{}\"\n", socket.display());
    let mut borrower = node(left, "guest", &loan);
    borrower.wait_line("its drive", START_TIMEOUT, |line| line.starts_with("nbd+unix://")).unwrap();

    let (read, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let (ours, theirs) = std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (read, ends, socket) = (&read, &ends, &socket);
            scope.spawn(move || {
                let (mut drive, mut bytes) = (connect(socket).unwrap(), Vec::new());
                let mut at = client as u64 * 16 * MIB;
                while !ends.load(Ordering::Relaxed) {
                    drive.read(at, CHUNK as u32, &mut bytes).unwrap();
                    read.fetch_add(CHUNK as u64, Ordering::Relaxed);
                    at = client as u64 * 16 * MIB + (at + CHUNK as u64) % (16 * MIB);
                }
                drive.disconnect().unwrap();
            });
        }
        let _end = End(&ends);
        let mut flow = Flow::start(right, left, 600).unwrap();
        let ours = || read.load(Ordering::Relaxed);
        while flow.next_bytes().unwrap() < BEGIN {}
        poll_until("the first reads", LONG, || Ok((ours() >= BEGIN).then_some(()))).unwrap();
        let (tcp_before, ours_before) = (flow.next_bytes().unwrap(), ours());
        loop {
            let carried = (ours() - ours_before, flow.next_bytes().unwrap() - tcp_before);
            if carried.0 + carried.1 >= COMPARED {
                return carried;
            }
        }
    });
    println!("{} MiB of ours, {} of TCP", ours / MIB, theirs / MIB);
    assert!(ours.min(theirs) * 5 >= ours + theirs, "{ours} bytes of ours, {theirs} of TCP");
    for process in [&mut borrower, &mut lender] {
        assert_eq!(process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", process.tail());
    }
}
