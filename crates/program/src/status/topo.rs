//! What one node knows of the fabric: the document of `topo -o json`, and the same for people and for Graphviz.
//!
//! Of nodes that it has loans with it knows how each rail is doing; of others what they say of themselves. A switch
//! says who it is to those behind its ports alone; others are known by the addresses that nodes send to.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::render::{age, seconds, shown, table};
use super::{Peer, PeerGateway, Peers, Rail, Role, Status, VERSION};

/// What a node knows of the fabric. `version` stands first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Topo {
    /// [`VERSION`].
    pub version: u32,
    /// The name of the node that was asked.
    pub node: String,
    /// It, and all that it has to do with or hears.
    pub nodes: Vec<TopoNode>,
    /// Switches that these send to.
    pub switches: Vec<TopoSwitch>,
    /// The rails from it to others.
    pub links: Vec<TopoLink>,
    /// Who has what of whom.
    pub loans: Vec<TopoLoan>,
    /// What does not answer, or has no carrier.
    pub dead: Vec<TopoDead>,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopoNode {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// `self`: it was asked; `up`; `silent`: loans bind it to the one that was asked, and it is not heard; `heard`: it
    /// says that it is there.
    pub state: String,
    /// How long ago it announced itself; `null`: it does not.
    pub heard_s: Option<f64>,
    /// Two who differ say that they are it.
    pub contested: bool,
    /// Its rails.
    pub rails: Vec<TopoRail>,
}

/// A rail of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopoRail {
    /// Its name at the node that was asked, its number at others.
    pub rail: String,
    /// Where it receives.
    pub address: String,
    /// The port of a switch that it sends everything to.
    pub switch: Option<String>,
    /// `up`, `down`: it has no carrier; of the node that was asked also `idle`.
    pub state: String,
}

/// A switch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopoSwitch {
    /// Its id; `null`: it does not say who it is.
    pub id: Option<String>,
    /// Its name, if it has said it.
    pub name: String,
    /// `heard`: it says that it is there; `silent`: it said so to the node that was asked, to which nothing comes from
    /// it any more; `unknown`: it does not say who it is.
    pub state: String,
    /// How long ago it said so; `null`: it has not.
    pub heard_s: Option<f64>,
    /// The first of its addresses.
    pub address: String,
    /// Those of its addresses that nodes send to. One that does not say who it is has a single one.
    pub addresses: Vec<String>,
    /// The ids of those that do.
    pub nodes: Vec<String>,
}

/// A rail between two nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopoLink {
    /// The rail's name at the first.
    pub rail: String,
    /// `udp`, `ethernet` or `shm`.
    pub medium: String,
    /// The id of the node that was asked.
    pub from: String,
    /// The id of the other one.
    pub to: String,
    /// The switch that it goes by.
    pub switch: Option<String>,
    /// `up`, `down`, ...
    pub state: String,
    /// Smoothed round-trip time in microseconds; `null` before the first.
    pub rtt_us: Option<f64>,
    /// Frames lost, of frames sent: 0 to 1.
    pub loss_ratio: f64,
}

/// A loan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopoLoan {
    /// The function.
    pub function: String,
    /// The zone that it is lent in.
    pub group: u16,
    /// The id of the node that lends it.
    pub lender: String,
    /// The id of the node that has it; `null`: nobody has.
    pub borrower: Option<String>,
    /// As `status` says, of loans of the node that was asked; of others `up`, or `free`.
    pub state: String,
}

/// Something that does not answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopoDead {
    /// `rail`, `carrier`, `node` or `switch`.
    pub kind: String,
    /// The id of the node that it is of, or leads to; or that of the switch.
    pub node: String,
    /// The rail.
    pub rail: Option<String>,
}

impl Topo {
    /// What a node of this status knows, that has heard these.
    pub fn new(status: &Status, peers: &Peers) -> Self {
        let own = &status.node.id;
        let mut nodes = BTreeMap::new();
        for loan in status.loans.iter().filter(|loan| !loan.node.is_empty()) {
            let node: &mut TopoNode = nodes.entry(loan.node.clone()).or_default();
            node.name.clone_from(&loan.peer);
            let is_silent = !matches!(loan.state.as_str(), "up" | "free" | "returned" | "vacant");
            let state = if is_silent { "silent" } else { "up" };
            // One loan that is well shows that the node is.
            node.state = if node.state == "up" { "up" } else { state }.to_owned();
        }
        for peer in peers.peers.iter().filter(|peer| !peer.is_switch()) {
            let node = nodes.entry(peer.node.clone()).or_default();
            node.name.clone_from(&peer.name);
            (node.heard_s, node.contested) = (Some(peer.heard_s), peer.contested);
            node.rails = peer.rails.iter().map(rail_of).collect();
            if node.state.is_empty() {
                node.state = "heard".to_owned();
            }
        }
        nodes.iter_mut().for_each(|(id, node)| node.id.clone_from(id));
        nodes.remove(own);
        let asked = TopoNode {
            id: own.clone(),
            name: status.node.name.clone(),
            state: "self".to_owned(),
            heard_s: None,
            contested: status.node.identity_shared,
            rails: own_rails(&status.rails),
        };
        let nodes: Vec<TopoNode> = std::iter::once(asked).chain(nodes.into_values()).collect();
        let links: Vec<TopoLink> =
            status.rails.iter().filter(|rail| !rail.node.is_empty()).map(|rail| link_of(own, rail)).collect();
        let switches = switches(&nodes, &links, peers);
        Self {
            version: VERSION,
            node: status.node.name.clone(),
            loans: loans(status, &peers.peers),
            dead: dead(&nodes, &switches, &links),
            switches,
            nodes,
            links,
        }
    }

    fn name(&self, id: &str) -> String {
        let nodes = self.nodes.iter().map(|node| (node.id.as_str(), &node.name));
        let switches = self.switches.iter().filter_map(|switch| Some((switch.id.as_deref()?, &switch.name)));
        let known = nodes.chain(switches).find(|(known, name)| *known == id && !name.is_empty());
        known.map_or_else(|| id.to_owned(), |(_, name)| name.clone())
    }
}

fn rail_of(rail: &super::PeerRail) -> TopoRail {
    TopoRail {
        rail: rail.rail.to_string(),
        address: rail.address.clone(),
        switch: rail.switch.clone(),
        state: rail.state.clone(),
    }
}

/// Each rail once, whomever it leads to; it is up if it is to anybody.
fn own_rails(rails: &[Rail]) -> Vec<TopoRail> {
    let mut own: Vec<TopoRail> = Vec::new();
    for rail in rails.iter().filter(|rail| rail.medium != "shm") {
        match own.iter_mut().find(|it| it.rail == rail.name) {
            Some(known) if rail.state == "up" => known.state.clone_from(&rail.state),
            Some(_) => {}
            None => own.push(TopoRail {
                rail: rail.name.clone(),
                address: rail.local.clone(),
                switch: rail.switch.clone(),
                state: rail.state.clone(),
            }),
        }
    }
    own
}

fn link_of(own: &str, rail: &Rail) -> TopoLink {
    TopoLink {
        rail: rail.name.clone(),
        medium: rail.medium.clone(),
        from: own.to_owned(),
        to: rail.node.clone(),
        switch: rail.switch.clone(),
        state: rail.state.clone(),
        rtt_us: rail.rtt_us,
        loss_ratio: rail.loss_ratio,
    }
}

/// Addresses that one switch says are its own are of that one; or has said, of one that rails of the node that was
/// asked lead to.
fn switches(nodes: &[TopoNode], links: &[TopoLink], peers: &Peers) -> Vec<TopoSwitch> {
    let who = |address: &str| {
        let has = |ports: &[String]| ports.iter().any(|it| it == address);
        let heard = peers.peers.iter().find(|peer| peer.is_switch() && has(&peer.ports));
        let heard = heard.map(|peer| (peer.node.as_str(), &peer.name));
        let mut known = peers.gateways.iter().filter(|it| has(&it.ports));
        heard.or_else(|| known.find_map(|it| Some((it.node.as_deref()?, &it.name))))
    };
    let mut switches: BTreeMap<(Option<&str>, &str), TopoSwitch> = BTreeMap::new();
    for node in nodes {
        for address in node.rails.iter().filter_map(|rail| rail.switch.as_deref()) {
            let who = who(address);
            let key = who.map_or((None, address), |(id, _)| (Some(id), ""));
            let switch = switches.entry(key).or_insert_with(|| TopoSwitch {
                id: who.map(|(id, _)| id.to_owned()),
                name: who.map(|(_, name)| name.clone()).unwrap_or_default(),
                address: address.to_owned(),
                ..TopoSwitch::default()
            });
            for (list, new) in [(&mut switch.addresses, address), (&mut switch.nodes, node.id.as_str())] {
                if !list.iter().any(|it| it == new) {
                    list.push(new.to_owned());
                }
            }
        }
    }
    let mut switches: Vec<TopoSwitch> = switches.into_values().collect();
    for switch in &mut switches {
        switch.addresses.sort_unstable();
        switch.address.clone_from(&switch.addresses[0]);
        let (state, heard_s) = presence(switch, links, peers);
        (switch.state, switch.heard_s) = (state.to_owned(), heard_s);
    }
    switches.sort_by(|a, b| a.address.cmp(&b.address));
    switches
}

/// Whether a switch is there, and how long ago it said so.
fn presence(switch: &TopoSwitch, links: &[TopoLink], peers: &Peers) -> (&'static str, Option<f64>) {
    let Some(id) = &switch.id else { return ("unknown", None) };
    if let Some(peer) = peers.peers.iter().find(|peer| peer.is_switch() && peer.node == *id) {
        return ("heard", Some(peer.heard_s));
    }
    let gateways = || peers.gateways.iter().filter(|it| it.node.as_ref() == Some(id));
    let is_any = |state: &str| gateways().any(|it: &PeerGateway| it.state == state);
    // It may have been told to say nothing of itself: what goes through it shows that it is there.
    let leads_there = |link: &TopoLink| link.switch.as_ref().is_some_and(|it| switch.addresses.contains(it));
    let is_passing = links.iter().any(|link| link.state == "up" && leads_there(link));
    let state = match () {
        () if is_any("heard") => "heard",
        () if is_any("unknown") || is_passing => "unknown",
        () => "silent",
    };
    (state, gateways().filter_map(|it| it.heard_s).reduce(f64::min))
}

fn loans(status: &Status, peers: &[Peer]) -> Vec<TopoLoan> {
    let own = &status.node.id;
    let known = |id: &String| Some(id.clone()).filter(|id| !id.is_empty());
    let mut loans: Vec<TopoLoan> = Vec::new();
    for loan in status.loans.iter().filter(|loan| loan.state != "vacant") {
        let (lender, borrower) = match loan.role {
            Role::Lender => (own.clone(), known(&loan.node).filter(|_| loan.state != "free")),
            Role::Borrower => (loan.node.clone(), Some(own.clone())),
        };
        let (function, state) = (loan.function.clone(), loan.state.clone());
        loans.push(TopoLoan { function, group: loan.group, lender, borrower, state });
    }
    for (peer, function) in peers.iter().flat_map(|peer| peer.functions.iter().map(move |it| (peer, it))) {
        let is_it = |loan: &TopoLoan| {
            (&loan.lender, &loan.function, loan.group) == (&peer.node, &function.function, function.group)
        };
        if !loans.iter().any(is_it) {
            let state = if function.lent_to.is_some() { "up" } else { "free" }.to_owned();
            loans.push(TopoLoan {
                function: function.function.clone(),
                group: function.group,
                lender: peer.node.clone(),
                borrower: function.lent_to.clone(),
                state,
            });
        }
    }
    loans
}

fn dead(nodes: &[TopoNode], switches: &[TopoSwitch], links: &[TopoLink]) -> Vec<TopoDead> {
    let dead = |kind: &str, node: &str, rail: Option<&String>| TopoDead {
        kind: kind.to_owned(),
        node: node.to_owned(),
        rail: rail.cloned(),
    };
    let silent = nodes.iter().filter(|node| node.state == "silent").map(|node| dead("node", &node.id, None));
    let gone = switches.iter().filter(|switch| switch.state == "silent");
    let gone = gone.filter_map(|switch| Some(dead("switch", switch.id.as_ref()?, None)));
    let is_down = |state: &str| state == "down";
    let rails = links.iter().filter(|link| is_down(&link.state));
    let rails = rails.map(|link| dead("rail", &link.to, Some(&link.rail)));
    // What is down at the node that was asked is among its links.
    let others = nodes.iter().filter(|node| node.state != "self");
    let carriers = others.flat_map(|node| {
        let without = node.rails.iter().filter(|rail| is_down(&rail.state));
        without.map(|rail| dead("carrier", &node.id, Some(&rail.rail)))
    });
    silent.chain(gone).chain(rails).chain(carriers).collect()
}

/// Tables for people.
pub fn render(topo: &Topo) -> String {
    let mut text = String::new();
    let row = |node: &TopoNode| {
        let rail = |rail: &TopoRail| {
            let by = rail.switch.as_ref().map(|switch| format!(" by {switch}")).unwrap_or_default();
            let down = if rail.state == "down" { " (down)" } else { "" };
            format!("{}{by}{down}", rail.address)
        };
        vec![
            node.name.clone() + if node.contested { " (contested)" } else { "" },
            node.id.clone(),
            if node.state == "self" { "asked" } else { &node.state }.to_owned(),
            node.heard_s.map(age).unwrap_or_default(),
            node.rails.iter().map(rail).collect::<Vec<_>>().join(", "),
        ]
    };
    let rows: Vec<_> = topo.nodes.iter().map(row).collect();
    table(&mut text, &["NODE", "ID", "STATE", "HEARD", "RAILS"], &rows);
    let names = |ids: &[String]| ids.iter().map(|id| topo.name(id)).collect::<Vec<_>>().join(", ");
    let row = |switch: &TopoSwitch| {
        vec![
            switch.name.clone(),
            switch.state.clone(),
            switch.heard_s.map(age).unwrap_or_default(),
            switch.addresses.join(", "),
            names(&switch.nodes),
        ]
    };
    let rows: Vec<_> = topo.switches.iter().map(row).collect();
    table(&mut text, &["SWITCH", "STATE", "HEARD", "AT", "NODES BEHIND IT"], &rows);
    let row = |link: &TopoLink| {
        vec![
            link.rail.clone(),
            topo.name(&link.to),
            link.medium.clone(),
            link.state.clone(),
            link.rtt_us.map(|rtt| seconds(rtt / 1e6)).unwrap_or_default(),
            format!("{:.2} %", link.loss_ratio * 100.0),
            link.switch.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = topo.links.iter().map(row).collect();
    table(&mut text, &["RAIL", "TO", "MEDIUM", "STATE", "RTT", "LOSS", "BY SWITCH"], &rows);
    let row = |loan: &TopoLoan| {
        let borrower = loan.borrower.as_ref().map_or_else(|| "nobody".to_owned(), |id| topo.name(id));
        vec![
            loan.function.clone(),
            loan.group.to_string(),
            topo.name(&loan.lender),
            borrower,
            loan.state.clone(),
        ]
    };
    let rows: Vec<_> = topo.loans.iter().map(row).collect();
    table(&mut text, &["FUNCTION", "GROUP", "LENT BY", "TO", "STATE"], &rows);
    let row = |dead: &TopoDead| {
        let rail = dead.rail.clone().unwrap_or_default();
        let what = match dead.kind.as_str() {
            kind @ ("node" | "switch") => format!("{kind} {} is not heard", topo.name(&dead.node)),
            "carrier" => format!("rail {rail} of {} has no carrier", topo.name(&dead.node)),
            _ => format!("link {rail} to {} does not answer", topo.name(&dead.node)),
        };
        vec![what]
    };
    let rows: Vec<_> = topo.dead.iter().map(row).collect();
    table(&mut text, &["DEAD"], &rows);
    text.split_off(usize::from(text.starts_with('\n')))
}

/// A graph for Graphviz: nodes and switches with the rails between them; loans are dotted, what is dead is red.
pub fn render_dot(topo: &Topo) -> String {
    let mut dot = String::from("graph causeway {\n  node [shape=box, fontname=\"sans-serif\"];\n");
    let mut line = |text: String| {
        let _ = writeln!(dot, "  {text}");
    };
    for node in &topo.nodes {
        let color = if node.state == "silent" { ", color=red" } else { "" };
        let style = if node.state == "self" { ", style=bold" } else { "" };
        let label = [node.name.as_str(), &node.id].join("\n");
        line(format!("{} [label={}{color}{style}];", quoted(&node.id), quoted(&label)));
    }
    for switch in &topo.switches {
        let title = format!("switch {}", switch.name);
        let label = quoted(&[title.trim_end(), &switch.addresses.join("\n")].join("\n"));
        let color = if switch.state == "silent" { ", color=red" } else { "" };
        line(format!("{} [label={label}, shape=diamond{color}];", quoted(&switch.address)));
        for (id, rail) in rails_to(topo, &switch.addresses) {
            let color = if rail.state == "down" { ", color=red, style=dashed" } else { "" };
            line(format!(
                "{} -- {} [label={}{color}];",
                quoted(id),
                quoted(&switch.address),
                quoted(&rail.rail)
            ));
        }
    }
    for link in topo.links.iter().filter(|link| link.switch.is_none()) {
        let color = if link.state == "down" { ", color=red, style=dashed" } else { "" };
        let rtt = link.rtt_us.map(|rtt| format!("\n{}", seconds(rtt / 1e6))).unwrap_or_default();
        let label = quoted(&format!("{}{rtt}", link.rail));
        line(format!("{} -- {} [label={label}{color}];", quoted(&link.from), quoted(&link.to)));
    }
    for loan in &topo.loans {
        let Some(borrower) = &loan.borrower else { continue };
        let (lender, label) = (quoted(&loan.lender), quoted(&loan.function));
        line(format!("{lender} -- {} [label={label}, style=dotted, dir=forward];", quoted(borrower)));
    }
    dot.push_str("}\n");
    dot
}

/// The rails that send everything to the switch at these addresses, with their nodes.
fn rails_to<'a>(topo: &'a Topo, at: &'a [String]) -> impl Iterator<Item = (&'a str, &'a TopoRail)> {
    let rails = topo.nodes.iter().flat_map(|node| node.rails.iter().map(|rail| (node.id.as_str(), rail)));
    rails.filter(move |(_, rail)| rail.switch.as_ref().is_some_and(|address| at.contains(address)))
}

/// A string of the dot language, of which others have chosen the text: what a line of it ends with is written out.
fn quoted(text: &str) -> String {
    let lines: Vec<String> =
        text.split('\n').map(|line| shown(line).replace('\\', "\\\\").replace('"', "\\\"")).collect();
    format!("\"{}\"", lines.join("\\n"))
}

#[cfg(test)]
mod tests;
