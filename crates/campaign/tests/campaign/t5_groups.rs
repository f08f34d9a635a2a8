//! T5: groups on one Ethernet segment that only its bridge keeps apart. What a port must not carry is asked of the
//! bridge, by the tag; what arrives is told by a packet socket, which no filter of ours stands before.

use campaign::causeway::{START_TIMEOUT, STOP_TIMEOUT, binary, status};
use campaign::gate;
use campaign::load::{Load, Model};
use campaign::process::{Process, run};
use campaign::world::{Machine, Mesh};
use std::collections::BTreeMap;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);

/// Prints the tag of each frame of our EtherType that comes from the wire. The kernel keeps the tag beside the frame
/// (packet(7), PACKET_AUXDATA).
const LISTENER: &str = r#"
import socket, struct
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind(("rail0", 3))
s.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
print("ready", flush=True)
while True:
    frame, told, _, sender = s.recvmsg(64, 64)
    auxdata = next(data for level, kind, data in told if level == 263)
    status, tci = struct.unpack_from("<I12xH", auxdata)
    if frame[12:14] == b"\x88\xb5" and status & 16 and sender[2] != socket.PACKET_OUTGOING:
        print("tag", tci & 0xfff, flush=True)
"#;

/// A node of a group on rail 0, and its line if it lends.
fn start_node(machine: &Machine, name: &str, group: u16, rest: &str) -> Process {
    let file = machine.dir().join(format!("{name}.toml"));
    let rail = "[[rails]]\nname = \"rail\"\nethernet = \"rail0\"\n";
    std::fs::write(&file, format!("name = \"{name}\"\ngroup = {group}\n{rail}{rest}")).unwrap();
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(file);
    machine.spawn(name, command).unwrap()
}

fn listen(machine: &Machine, name: &str) -> Process {
    let mut command = machine.command("python3");
    command.args(["-c", LISTENER]);
    let mut listener = machine.spawn(name, command).unwrap();
    listener.wait_line("that it listens", START_TIMEOUT, |line| line == "ready").unwrap();
    listener
}

/// The next frame that comes has this tag.
fn next_has_tag(listener: &mut Process, tag: u16) {
    let told = listener.wait_line("a frame", LONG, |line| line.starts_with("tag ")).unwrap();
    assert_eq!(told, format!("tag {tag}"));
}

#[test]
fn t5_frames_of_another_group_never_arrive() {
    let _place = gate::waits();
    let mesh = Mesh::new(4, 1).unwrap();
    let [a, b, c, d] = mesh.machines() else { panic!("four machines") };
    // Groups 7 and 9; a bridge without rules brings what is for all to all.
    let device = "[[devices]]\nfunction = \"nvme0\"\nsource = \"ram:16M\"\n";
    let mut lender = start_node(b, "store", 7, device);
    let line = lender.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    let mut listener = listen(c, "listener");
    next_has_tag(&mut listener, 7);

    let ports: BTreeMap<&str, u16> = [("m1r0", 7), ("m2r0", 7), ("m3r0", 9), ("m4r0", 9)].into();
    let members = |group| ports.iter().filter(move |it| *it.1 == group).map(|it| format!("\"{}\"", it.0));
    let rules: Vec<String> = [7, 9]
        .map(|group| {
            let all = members(group).collect::<Vec<_>>().join(", ");
            format!("iifname {{ {all} }} oifname {{ {all} }} vlan id {group} accept")
        })
        .into();
    let keep = "type filter hook forward priority 0; policy drop;";
    let mut command = mesh.bridges();
    let rules = rules.join("\n");
    command.arg("nft").arg(format!("table bridge groups {{\nchain keep {{\n{keep}\n{rules}\n}}\n}}"));
    run(command).unwrap();

    let mut listener = listen(c, "keeps-out");
    let socket = a.dir().join("drive.sock");
    let loan = format!("[[loans]]\nline = \"{line}\"\nnbd = \"{}\"\n", socket.display());
    let mut borrower = start_node(a, "guest", 7, &loan);
    borrower.wait_line("its drive", START_TIMEOUT, |line| line.starts_with("nbd+unix://")).unwrap();
    let load = Load::start(&socket, Model::new(0, 4 * MIB, 1), 8).unwrap();
    load.wait_done(500, LONG).unwrap();

    // One that has the line and says that it is of the group: its port does not carry that.
    let stolen = c.dir().join("stolen.sock");
    let loan = format!("[[loans]]\nline = \"{line}\"\nnbd = \"{}\"\n", stolen.display());
    let mut intruder = start_node(c, "intruder", 7, &loan);
    let mut other = start_node(d, "other", 9, device);
    other.wait_line("its line", START_TIMEOUT, |line| line.starts_with("causeway://")).unwrap();
    load.wait_done(2000, LONG).unwrap();
    // An announcement of its own group comes each five seconds, and nothing else has come before.
    (0..3).for_each(|_| next_has_tag(&mut listener, 9));
    let told = status(c, "intruder").unwrap();
    let seen = (&told["channels"][0]["received_frames"], &told["loans"][0]["state"]);
    assert_eq!(seen, (&0.into(), &"connecting".into()));
    load.stop_whole(&socket).unwrap();
    for node in [&mut borrower, &mut lender, &mut intruder, &mut other] {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}
