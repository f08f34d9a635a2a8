//! Two chassis: four hosts with three rails each, two switches, and a link between these. Whatever single part of the
//! network fails, no I/O does, neither of a host nor of a guest.
//!
//! ```text
//!   a b c d   rail 0 ── s1 ─┐          (a's by a detour, which delays)
//!   a b       rail 2 ── s1  │
//!                           │ link     (what is between the chassis on rail 2)
//!       c d   rail 2 ── s2  │
//!   a b c d   rail 1 ── s2 ─┘
//! ```

use crate::switches::{self, Way, at, heal, id, ip, keep_rails, lose, port, port_of, start};
use base::Impairment;
use campaign::causeway::{Borrower, Lender, START_TIMEOUT, STOP_TIMEOUT, binary, status};
use campaign::host::{guest_fio, guest_fio_verified};
use campaign::load::{Load, Model};
use campaign::process::{Process, poll_until};
use campaign::relay::detour::Detour;
use campaign::world::{Machine, Mesh};
use campaign::{gate, scale};
use guest::{Job, Message, Vm};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(30);
/// Longer than it takes to find out that a rail is dead, or well again.
const A_WHILE: Duration = Duration::from_millis(400);

/// The ports of the detour on the first host's first rail: for the host, and for the switch.
const DETOUR: [u16; 2] = [7501, 7502];

/// Where its end of the detour is.
fn detour(host: &Machine, end: usize) -> String {
    format!("{}:{}", host.addresses()[0], DETOUR[end])
}

/// Where a host's third rail is: on the network that it shares with the switch of its chassis.
fn third(host: &Machine, rail: usize) -> String {
    format!("{}:7423", host.addresses()[rail])
}

fn set_link(machine: &Machine, device: &str, state: &str) {
    ip(machine, &["link", "set", device, state]);
}

/// A guest with a borrowed drive that writes and verifies, until it is told to end.
struct Guest {
    vm: Vm,
    job: Job,
}

impl Guest {
    fn start(socket: &Path) -> Option<Self> {
        let kit = guest::kit()?;
        let device = serde_json::json!({
            "driver": "vfio-user-pci", "id": "v1", "bus": "rp1",
            "socket": { "type": "unix", "path": socket.to_string_lossy() },
        });
        // Its driver is to find out soon what it waits for in vain.
        let vm = Vm::builder(&kit).name("chassis").kernel_arguments("nvme_core.io_timeout=5");
        let mut vm = vm.device(&device.to_string()).start().unwrap();
        vm.wait_for(LONG, "ls /dev/nvme0n1").unwrap();
        let load = "--filename=/dev/nvme0n1 --bsrange=512-32k --iodepth=16 --size=12M --verify_backlog=64 \
                    --time_based --runtime=100000";
        let job = vm.start(&format!("echo $$ >/run/fio; exec {}", guest_fio(load))).unwrap();
        Some(Self { vm, job })
    }

    /// It writes on.
    fn goes_on(&mut self) {
        let count = self.vm.check("awk '{ print $5 }' /sys/block/nvme0n1/stat").unwrap();
        let goal = count.trim().parse::<u64>().unwrap() + 20;
        self.vm.wait_for(LONG, &format!("awk '$5 < {goal} {{ exit 1 }}' /sys/block/nvme0n1/stat")).unwrap();
        assert!(!self.vm.has_ended(&self.job).unwrap());
    }

    /// It has had no trouble, and has read what it wrote.
    fn end(mut self) {
        self.vm.check("kill -INT $(cat /run/fio)").unwrap();
        let output = self.vm.wait(self.job, LONG).unwrap();
        println!("the guest verified {} requests", guest_fio_verified(&output.text).unwrap());
        assert_eq!(self.vm.kernel_trouble().unwrap(), Vec::<Message>::new());
        self.vm.shutdown().unwrap();
    }
}

struct Scene<'a> {
    guest: Option<Guest>,
    hosts: [&'a Machine; 4],
    machines: [&'a Machine; 2],
    texts: [String; 2],
    switches: Vec<Process>,
    loads: Vec<Load>,
    detour: Detour,
}

impl<'a> Scene<'a> {
    /// The file of the switch of a rail: each host on this rail behind a port of its own, all on the other rail behind
    /// the link; on the third one, those of its chassis behind ports of their own, and the others behind the link.
    fn text(rail: usize, own: &Machine, other: &Machine, hosts: [&Machine; 4]) -> String {
        let names = ["left0", "lender0", "left1", "lender1"];
        let ids: Vec<String> = hosts.iter().zip(names).map(|(host, name)| id(host, name)).collect();
        let ports = hosts.iter().zip(&ids).enumerate().map(|(number, (host, id))| {
            let nodes = format!("nodes = [\"{id}\"]\nrails = [{rail}]");
            let peer = if (number, rail) == (0, 0) { detour(host, 1) } else { at(host, rail) };
            port(&format!("h{number}"), &at(own, rail), &peer, &nodes)
        });
        let (here, there) = (2 * rail..2 * rail + 2, 2 - 2 * rail..4 - 2 * rail);
        let thirds = here.map(|number| {
            let nodes = format!("nodes = [\"{}\"]\nrails = [2]", ids[number]);
            port(&format!("t{number}"), &at(own, rail), &third(hosts[number], rail), &nodes)
        });
        let behind = |port: usize, ids: &[String], rail: usize| {
            let all: Vec<String> = ids.iter().map(|id| format!("\"{id}\"")).collect();
            let nodes = format!("nodes = [{}]\nrails = [{rail}]", all.join(", "));
            let at = |machine: &Machine| format!("{}:{port}", machine.addresses()[2]);
            switches::port(&format!("link{rail}"), &at(own), &at(other), &nodes)
        };
        let links = behind(7411, &ids, 1 - rail) + &behind(7412, &ids[there], 2);
        ports.chain(thirds).collect::<String>() + &links
    }

    /// How many frames of the third rail have left by the link.
    fn crossed(&self) -> u64 {
        port_of(self.machines[0], "s1", "link2")["sent_frames"].as_u64().unwrap()
    }

    /// I/O goes on, for a while and for so many requests.
    fn goes_on(&mut self, what: &str) {
        let until = Instant::now() + A_WHILE;
        while Instant::now() < until {
            for load in &self.loads {
                load.wait_done(100, LONG).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
        let gaps: Vec<_> = self.loads.iter().map(Load::take_longest_gap).collect();
        let failed: Vec<_> = self.loads.iter().map(Load::failed).collect();
        println!("{what}: longest gaps {gaps:?}");
        assert_eq!(failed, [0, 0], "{what}");
        if let Some(guest) = &mut self.guest {
            guest.goes_on();
        }
    }

    fn during(&mut self, what: &str, harm: impl FnOnce(), heal: impl FnOnce()) {
        harm();
        self.goes_on(what);
        heal();
        self.goes_on(&format!("{what}, healed"));
    }

    fn links(&mut self) {
        let [a, b, c, d] = self.hosts;
        let [s1, s2] = self.machines;
        let all = [
            (a, "rail0"),
            (a, "rail1"),
            (b, "rail0"),
            (b, "rail1"),
            (c, "rail0"),
            (c, "rail1"),
            (d, "rail0"),
            (d, "rail1"),
            (s1, "rail0"),
            (s2, "rail1"),
            (s1, "rail2"),
        ];
        for (machine, device) in all {
            let what = format!("{device} of {}", machine.addresses()[0]);
            let [down, up] = ["down", "up"].map(|state| move || set_link(machine, device, state));
            self.during(&format!("{what} down"), down, up);
            for way in [Way::In, Way::Out] {
                let harm = || lose(machine, device, way, 1000);
                self.during(&format!("{what} silent, {way:?}"), harm, || heal(machine));
            }
        }
        self.during("loss", || lose(s1, "rail0", Way::Out, 50), || heal(s1));
        let mtu = |bytes: &str| ip(s2, &["link", "set", "rail1", "mtu", bytes]);
        self.during("a smaller MTU", || mtu("1400"), || mtu("1500"));
    }

    fn flapping(&mut self, time: Duration) {
        let a = self.hosts[0];
        let until = Instant::now() + time;
        while Instant::now() < until {
            for state in ["down", "up"] {
                set_link(a, "rail0", state);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        self.goes_on("flapping");
    }

    /// 20 ms each way on one rail, and then back to what it was.
    fn delay(&mut self) {
        const DELAY: Duration = Duration::from_millis(20);
        for (what, is_slow) in [("a delay", true), ("a delay, healed", false)] {
            let delay_ns = if is_slow { DELAY.as_nanos() as u64 } else { 0 };
            self.detour.set(Impairment { delay_ns, ..Impairment::NONE }).unwrap();
            poll_until(what, LONG, || {
                let rails = status(self.hosts[0], "left0")?["rails"].take();
                let mut times =
                    rails.as_array().into_iter().flatten().filter_map(|rail| rail["rtt_us"].as_f64());
                Ok((times.any(|time| time > DELAY.as_micros() as f64) == is_slow).then_some(()))
            })
            .unwrap();
            self.goes_on(what);
        }
    }

    fn kill_switches(&mut self) {
        for which in [0, 1] {
            self.switches[which].kill().unwrap();
            self.goes_on("a switch killed");
            self.switches[which] = start(self.machines[which], ["s1", "s2"][which], &self.texts[which]);
            self.goes_on("a switch killed, and started again");
        }
    }
}

/// One that has a drive of its own and hands another one to a guest: the node, and the socket of each.
fn start_host(host: &Machine, name: &str, rails: [String; 3], lines: &[String]) -> (Process, [PathBuf; 2]) {
    let sockets = ["own", "guest"].map(|what| host.dir().join(format!("{what}.sock")));
    let loan = |edge: &str, index: usize| {
        let (line, socket) = (&lines[index], sockets[index].display());
        format!("[[loans]]\nline = '{line}'\n{edge} = '{socket}'\nio_timeout_s = 120\n")
    };
    let state = format!("name = '{name}'\nstate_dir = '{}'\n", host.dir().join("state").join(name).display());
    let text = [state, rails.concat(), loan("nbd", 0), loan("vm", 1)].concat();
    let mut command = host.command(binary().unwrap());
    command.args(["node", "--config"]).arg(switches::write(host, name, &text));
    let mut node = host.spawn(name, command).unwrap();
    // One that lies there need not listen yet.
    node.wait_line("its drive", START_TIMEOUT, |line| line.starts_with("nbd+unix://")).unwrap();
    poll_until("the slot to be there", START_TIMEOUT, || Ok(sockets[1].exists().then_some(()))).unwrap();
    (node, sockets)
}

#[test]
fn t1_no_single_failure_of_the_network_is_felt_by_io() {
    let _place = gate::alone();
    let mesh = Mesh::new(6, 3).unwrap();
    let [a, b, c, d, s1, s2] = mesh.machines() else { panic!("six machines") };
    let hosts = [a, b, c, d];
    hosts.iter().for_each(|host| keep_rails(host, &[0, 1]));
    keep_rails(s1, &[0, 2]);
    keep_rails(s2, &[1, 2]);
    let texts = [Scene::text(0, s1, s2, hosts), Scene::text(1, s2, s1, hosts)];
    let switches = vec![start(s1, "s1", &texts[0]), start(s2, "s2", &texts[1])];
    // Of which chassis it is: so is the network of its third rail.
    let chassis =
        |host: &Machine| hosts.iter().position(|it| it.addresses() == host.addresses()).unwrap() / 2;
    let rails = |host: &Machine| -> Vec<String> {
        let rail = |rail: usize, switch: &Machine| {
            ["--listen".to_owned(), at(host, rail), "--switch".to_owned(), at(switch, rail)]
        };
        let net = chassis(host);
        let last = ["--listen".to_owned(), third(host, net), "--switch".to_owned(), at([s1, s2][net], net)];
        [rail(0, s1), rail(1, s2), last].concat()
    };
    let lend = |host: &Machine, name: &str, sources: &[&str]| {
        let rails = rails(host);
        let rails: Vec<&str> = rails.iter().map(String::as_str).collect();
        Lender::start_as(host, name, sources, &rails).unwrap()
    };
    // Each borrows of the other chassis.
    let mut lenders = [lend(d, "lender1", &["ram:16M"]), lend(b, "lender0", &["ram:16M", "ram:12M"])];
    let detoured = Detour::start(a, (&at(a, 0), &detour(a, 0)), (&detour(a, 1), &at(s1, 0))).unwrap();
    let mut words = rails(a);
    words[3] = detour(a, 0);
    words.extend(["--io-timeout".to_owned(), "120".to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut borrower = Borrower::start_as(a, "left0", &lenders[0].lines[0], &words).unwrap();
    let tables = [(0, at(c, 0), at(s1, 0)), (1, at(c, 1), at(s2, 1)), (2, third(c, 1), at(s2, 1))];
    let tables = tables.map(|(rail, listen, switch)| {
        format!("[[rails]]\nname = 'rail{rail}'\nlisten = '{listen}'\nswitch = '{switch}'\n")
    });
    let (mut host, [own, slot]) = start_host(c, "left1", tables, &lenders[1].lines);
    let guest = Guest::start(&slot);
    let models = [0, 1].map(|more| Model::new(0, 4 * MIB, scale::first_seed() + more));
    let sockets = [&borrower.socket, &own];
    let loads = models.into_iter().zip(sockets).map(|(model, it)| Load::start(it, model, 8).unwrap());
    let machines = [s1, s2];
    let loads = loads.collect();
    let mut scene = Scene { guest, hosts, machines, texts, switches, loads, detour: detoured };
    scene.goes_on("all is well");
    assert!(scene.crossed() > 100, "the link is used: {}", scene.crossed());
    for _ in 0..scale::kills_of(1, 10) {
        scene.links();
        scene.delay();
        scene.kill_switches();
        scene.flapping(Duration::from_secs(scale::kills_of(2, 60).into()));
    }
    for (load, socket) in scene.loads.into_iter().zip(sockets) {
        load.stop_whole(socket).unwrap();
    }
    scene.guest.into_iter().for_each(Guest::end);
    for node in
        [&mut borrower.process, &mut host].into_iter().chain(lenders.iter_mut().map(|it| &mut it.process))
    {
        assert_eq!(node.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", node.tail());
    }
}
