//! How a tree of switches is made: which nodes are behind which switch, and what each switch's table says of that.

use base::Random;
use base::ids::RailId;
use node::switch::{PortSpec, PrefixRange, Table, TableSpec};

/// Domains of a node; that of its own is the first of them.
const BLOCK: u32 = 16;

/// The domain of a node of a tree.
pub(super) fn domain(node: usize) -> u32 {
    BLOCK * (node as u32 + 1)
}

/// Where a cable ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum End {
    /// At a node.
    Node(usize),
    /// At this port of this switch.
    Port(usize, usize),
}

/// A cable between two ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cable {
    pub(super) ends: [End; 2],
}

/// A tree over all nodes, for one rail of theirs.
pub(super) struct Shape {
    /// Of each switch; the last is the root.
    pub(super) tables: Vec<Table>,
    pub(super) cables: Vec<Cable>,
    /// By switch and port: the cable there.
    pub(super) at: Vec<Vec<usize>>,
    /// By node: its cable.
    pub(super) leaves: Vec<usize>,
    /// By switch: its cables to the switch above, one or two.
    pub(super) uplinks: Vec<Vec<usize>>,
    /// By switch: which one is above.
    pub(super) above: Vec<Option<usize>>,
    /// By node: the switch that it is behind.
    pub(super) behind: Vec<usize>,
}

/// What is put together below one switch: nodes, or switches with what is below them.
#[derive(Clone)]
struct Below {
    end: Option<usize>,
    /// The first node below and how many there are.
    nodes: (usize, usize),
    has_pair: bool,
}

impl Shape {
    /// A tree of so many nodes, of which each switch has at most `width` below it.
    pub(super) fn new(random: &mut Random, rail: RailId, nodes: usize, width: usize) -> Self {
        let mut shape = Self {
            tables: Vec::new(),
            cables: Vec::new(),
            at: Vec::new(),
            leaves: vec![0; nodes],
            uplinks: Vec::new(),
            above: Vec::new(),
            behind: vec![0; nodes],
        };
        let mut level: Vec<Below> =
            (0..nodes).map(|node| Below { end: None, nodes: (node, 1), has_pair: false }).collect();
        while level.len() > 1 || shape.tables.is_empty() {
            let is_root = level.len() <= width;
            level = level.chunks(width).map(|below| shape.add(random, rail, below, is_root)).collect();
        }
        shape
    }

    /// A switch above these.
    fn add(&mut self, random: &mut Random, rail: RailId, below: &[Below], is_root: bool) -> Below {
        let switch = self.tables.len();
        let has_pair = !is_root && random.chance(400);
        let (mut ports, mut at) = (Vec::new(), Vec::new());
        let port = |name: String, ranges: Vec<PrefixRange>, is_default, standby_for| PortSpec {
            name,
            ranges,
            is_default,
            standby_for,
        };
        for it in below {
            let (first, count) = it.nodes;
            let range = PrefixRange::new(rail, domain(first), BLOCK * count as u32).expect("domains are few");
            let own = ports.len();
            ports.push(port(format!("p{own}"), vec![range], false, None));
            match it.end {
                None => {
                    at.push(self.cable(End::Node(first), End::Port(switch, own)));
                    (self.leaves[first], self.behind[first]) = (at[own], switch);
                }
                Some(child) => {
                    self.above[child] = Some(switch);
                    // Its uplink is behind its own ports, and there are one or two.
                    let uplink = self.at[child].len();
                    at.push(self.cable(End::Port(child, uplink), End::Port(switch, own)));
                    self.at[child].push(at[own]);
                    self.uplinks[child].push(at[own]);
                    if it.has_pair {
                        ports.push(port(format!("s{own}"), Vec::new(), false, Some(own)));
                        at.push(self.cable(End::Port(child, uplink + 1), End::Port(switch, own + 1)));
                        self.at[child].push(at[own + 1]);
                        self.uplinks[child].push(at[own + 1]);
                    }
                }
            }
        }
        let up = ports.len();
        if !is_root {
            ports.push(port("up".to_owned(), Vec::new(), true, None));
        }
        if has_pair {
            ports.push(port("up2".to_owned(), Vec::new(), false, Some(up)));
        }
        let table = Table::new(TableSpec { ports, ..TableSpec::default() });
        self.tables.push(table.expect("a tree can be"));
        self.at.push(at);
        self.uplinks.push(Vec::new());
        self.above.push(None);
        let first = below[0].nodes.0;
        let count = below.iter().map(|it| it.nodes.1).sum();
        Below { end: Some(switch), nodes: (first, count), has_pair }
    }

    fn cable(&mut self, one: End, other: End) -> usize {
        self.cables.push(Cable { ends: [one, other] });
        self.cables.len() - 1
    }

    /// The switches that a node is behind, from the nearest to the root.
    pub(super) fn ancestors(&self, node: usize) -> Vec<usize> {
        std::iter::successors(Some(self.behind[node]), |switch| self.above[*switch]).collect()
    }
}

/// Three switches of which each takes the next one for the way to a domain: nobody's fault but their files'.
pub(super) fn ring(rail: RailId) -> Vec<Table> {
    let range = |node: usize| PrefixRange::new(rail, domain(node), 1).into_iter().collect::<Vec<_>>();
    let switch = |_| {
        let port = |name: &str, ranges| PortSpec {
            name: name.to_owned(),
            ranges,
            is_default: false,
            standby_for: None,
        };
        // What is from node 0 comes from before, what is for node 1 goes on.
        let ports = vec![port("before", range(0)), port("next", range(1))];
        Table::new(TableSpec { ports, ..TableSpec::default() }).expect("each by itself can be")
    };
    (0..3).map(switch).collect()
}
