//! Three machines, of which each lends to both others and borrows from both, while cards and whole nodes are killed.

use base::Random;
use campaign::causeway::{START_TIMEOUT, STOP_TIMEOUT, binary, kill_card, status};
use campaign::load::{Load, Model, connect};
use campaign::process::Process;
use campaign::world::{Machine, Mesh};
use campaign::{gate, scale, tools};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NODES: usize = 3;
const DEPTH: usize = 4;
const LONG: Duration = Duration::from_secs(60);

/// A node that lends a drive to each other one, and borrows one from each.
struct Node<'w> {
    machine: &'w Machine,
    name: String,
    process: Process,
    /// By node that it borrows from; none from itself.
    loads: Vec<Option<Load>>,
}

fn name_of(node: usize) -> String {
    format!("node{}", node + 1)
}

fn others(node: usize) -> impl Iterator<Item = usize> {
    (0..NODES).filter(move |other| *other != node)
}

/// What `borrower` borrows from `lender`.
fn socket_of(machine: &Machine, lender: usize) -> PathBuf {
    machine.dir().join(format!("from-{}.nbd", name_of(lender)))
}

/// The node's configuration: without loans for the first start, which tells the lines.
fn configure(machine: &Machine, node: usize, lines: Option<&[Vec<String>]>) -> PathBuf {
    let mut text = format!("name = \"{}\"\n", name_of(node));
    for (rail, address) in machine.addresses().iter().enumerate() {
        text += &format!("[[rails]]\nname = \"rail{rail}\"\nlisten = \"{address}\"\n");
    }
    for other in others(node) {
        let image = machine.dir().join(format!("for-{}.img", name_of(other)));
        if !image.exists() {
            tools::empty_image(&image, 8 * MIB).unwrap();
        }
        let (function, source) = (format!("for-{}", name_of(other)), image.display());
        text += &format!("[[devices]]\nfunction = \"{function}\"\nsource = \"{source}\"\n");
    }
    for lender in others(node).filter(|_| lines.is_some()) {
        let end = format!("/for-{}", name_of(node));
        let line = lines.unwrap()[lender].iter().find(|line| line.ends_with(&end)).unwrap();
        let nbd = socket_of(machine, lender);
        text += &format!("[[loans]]\nline = \"{line}\"\nnbd = \"{}\"\nio_timeout_s = 120\n", nbd.display());
    }
    let path = machine.dir().join("node.toml");
    std::fs::write(&path, text).unwrap();
    path
}

fn spawn(machine: &Machine, node: usize, config: &Path) -> Process {
    let mut command = machine.command(binary().unwrap());
    command.args(["node", "--config"]).arg(config);
    machine.spawn(&name_of(node), command).unwrap()
}

/// The lines of what a node lends.
fn lines_of(machine: &Machine, node: usize) -> Vec<String> {
    let config = configure(machine, node, None);
    let mut process = spawn(machine, node, &config);
    let is_line = |line: &str| line.starts_with("causeway://");
    let lines = others(node).map(|_| process.wait_line("a line", START_TIMEOUT, is_line).unwrap()).collect();
    assert_eq!(process.terminate(STOP_TIMEOUT).unwrap(), 0, "{}", process.tail());
    lines
}

impl<'w> Node<'w> {
    fn begin(machine: &'w Machine, node: usize, lines: &[Vec<String>]) -> Self {
        let config = configure(machine, node, Some(lines));
        let process = spawn(machine, node, &config);
        Self { machine, name: name_of(node), process, loads: (0..NODES).map(|_| None).collect() }
    }

    /// Waits for its edges.
    fn wait(&mut self, node: usize) {
        for _ in others(node) {
            let is_edge = |line: &str| line.starts_with("nbd+unix://");
            self.process.wait_line("an edge", START_TIMEOUT, is_edge).unwrap();
        }
    }

    /// Verifies what it has written to what it borrows, and goes on writing.
    fn load(&mut self, lender: usize, mut model: Model) {
        let socket = socket_of(self.machine, lender);
        model.verify(&mut connect(&socket).unwrap()).unwrap();
        self.loads[lender] = Some(Load::start(&socket, model, DEPTH).unwrap());
    }

    /// Ends its loads, each of which has lost its connection or not.
    fn end_loads(&mut self, are_lost: bool) -> Vec<Option<Model>> {
        let end = |load: Load| {
            let report = load.stop().unwrap();
            assert_eq!((report.failed, report.failed_flushes), (0, 0), "{}", self.name);
            assert_eq!(report.lost.is_some(), are_lost, "{}: {:?}", self.name, report.lost);
            report.model
        };
        self.loads.iter_mut().map(|load| load.take().map(end)).collect()
    }
}

fn progress(nodes: &[Node<'_>], requests: u64) {
    for node in nodes {
        for (lender, load) in node.loads.iter().enumerate() {
            let Some(load) = load else { continue };
            load.wait_done(requests, LONG).unwrap_or_else(|error| {
                let told = nodes.iter().map(|node| status(node.machine, &node.name));
                panic!("{} from {}: {error}\n{:#?}", node.name, name_of(lender), told.collect::<Vec<_>>())
            });
        }
    }
}

#[test]
fn t3_each_of_three_nodes_lends_to_both_others_whoever_is_killed() {
    let _place = gate::computes();
    let seed = scale::first_seed();
    let mut random = Random::new(seed);
    let mesh = Mesh::new(NODES as u8, 2).unwrap();
    let machines = mesh.machines();
    let lines: Vec<_> = machines.iter().enumerate().map(|(node, machine)| lines_of(machine, node)).collect();
    let mut nodes: Vec<Node<'_>> =
        machines.iter().enumerate().map(|(node, machine)| Node::begin(machine, node, &lines)).collect();
    for (index, node) in nodes.iter_mut().enumerate() {
        node.wait(index);
        for lender in others(index) {
            let seed = seed ^ (index * NODES + lender) as u64;
            node.load(lender, Model::new(0, 2 * MIB, seed));
        }
    }
    progress(&nodes, 200);

    for round in 0..scale::kills(6) {
        // Cards, of one node or of all at once.
        let which = random.below(NODES as u64 + 1) as usize;
        for node in nodes.iter().enumerate().filter(|(index, _)| which == NODES || *index == which) {
            kill_card(node.1.machine, &node.1.name, LONG).unwrap();
        }
        progress(&nodes, 100);
        if round % 2 == 0 {
            continue;
        }
        // A whole node: its programs lose their drives, those of the others wait for theirs.
        let victim = random.below(NODES as u64) as usize;
        nodes[victim].process.kill_tree().unwrap();
        let models = nodes[victim].end_loads(true);
        nodes[victim].process = spawn(&machines[victim], victim, &machines[victim].dir().join("node.toml"));
        nodes[victim].wait(victim);
        for (lender, model) in models.into_iter().enumerate() {
            if let Some(model) = model {
                nodes[victim].load(lender, model);
            }
        }
        progress(&nodes, 100);
    }

    for node in &mut nodes {
        let models = node.end_loads(false).into_iter().enumerate();
        for (lender, mut model) in models.filter_map(|(lender, model)| Some((lender, model?))) {
            let socket = socket_of(node.machine, lender);
            model.verify(&mut connect(&socket).unwrap()).unwrap();
        }
    }
}
