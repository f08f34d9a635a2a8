//! Whom a node has heard of: the document of `peers -o json`, and the same for people.

use serde::{Deserialize, Serialize};

use super::render::{age, shown, table};
use crate::cli::ByteSize;

/// Nodes that were heard on a node's rails. `version` stands first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Peers {
    /// [`super::VERSION`].
    pub version: u32,
    /// The name of the node that was asked.
    pub node: String,
    /// Its rails on which it hears others.
    pub rails: Vec<String>,
    /// Those that it has heard lately.
    pub peers: Vec<Peer>,
    /// Switches that its rails lead to.
    #[serde(default)]
    pub gateways: Vec<PeerGateway>,
    /// Information frames that it could read.
    pub heard_frames: u64,
    /// Others that came where those come.
    pub malformed_frames: u64,
    /// Notices to all who have the group's key that it has sent, and that it has heard and heeded.
    pub notices_sent: u64,
    /// See [`Peers::notices_sent`].
    pub notices_heard: u64,
}

/// A node that was heard. All of it is what it says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Peer {
    /// `node` or `switch`.
    pub role: String,
    /// Its name.
    pub name: String,
    /// Its id.
    pub node: String,
    /// `BASE/LEN`: its domains.
    pub domains: String,
    /// Since when it is heard without a gap.
    pub since_s: f64,
    /// How long ago it was heard.
    pub heard_s: f64,
    /// Two who differ say that they are it.
    pub contested: bool,
    /// It has the group key of the node that was asked: it hears notices to all.
    pub member: bool,
    /// The rails on which it is heard, of the node that was asked.
    pub over: Vec<String>,
    /// Its own rails.
    pub rails: Vec<PeerRail>,
    /// Where it takes frames, if it is a switch.
    pub ports: Vec<String>,
    /// What it lends.
    pub functions: Vec<PeerFunction>,
}

impl Peer {
    /// Whether it forwards frames, and lends and borrows nothing.
    pub fn is_switch(&self) -> bool {
        self.role == "switch"
    }
}

/// The switch that a rail of the node that was asked leads to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerGateway {
    /// The rail's name.
    pub rail: String,
    /// The port of the switch.
    pub address: String,
    /// `heard`: it says that it is there; `silent`: it said so, and nothing comes from there any more; `unknown`: it
    /// has never said so, or does not any more and passes frames on.
    pub state: String,
    /// Its id; `null`: it has never said who it is.
    pub node: Option<String>,
    /// Its name.
    pub name: String,
    /// How long ago it said so.
    pub heard_s: Option<f64>,
    /// Where it takes frames.
    pub ports: Vec<String>,
}

/// A rail of a node that was heard.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerRail {
    /// Its id.
    pub rail: u8,
    /// Where it receives.
    pub address: String,
    /// The port of a switch that it is behind.
    pub switch: Option<String>,
    /// `up`, or `down`: its interface has no carrier.
    pub state: String,
}

/// A function that such a node lends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerFunction {
    /// Its name.
    pub function: String,
    /// The group that it is lent in.
    pub group: u16,
    /// Bytes of the drive.
    pub bytes: u64,
    /// Nobody can write there.
    pub read_only: bool,
    /// The id of the node that has it.
    pub lent_to: Option<String>,
}

/// Tables for people.
pub fn render(peers: &Peers) -> String {
    if peers.rails.is_empty() {
        return format!(
            "{} hears nobody: none of its rails takes part (`announce` not false, and a network that takes \
             multicast)\n",
            peers.node
        );
    }
    if peers.peers.is_empty() {
        return format!("{} hears nobody on {}\n", peers.node, peers.rails.join(", "));
    }
    let mut text = String::new();
    let row = |peer: &Peer| {
        let address = |rail: &PeerRail| {
            let down = if rail.state == "up" { "" } else { " (down)" };
            format!("{}{down}", rail.address)
        };
        let mark = match () {
            () if peer.is_switch() => " (switch)",
            () if peer.contested => " (contested)",
            () => "",
        };
        let addresses: Vec<String> =
            peer.rails.iter().map(address).chain(peer.ports.iter().cloned()).collect();
        vec![
            shown(&peer.name) + mark,
            peer.node.clone(),
            age(peer.since_s),
            age(peer.heard_s),
            peer.over.join(", "),
            addresses.join(", "),
        ]
    };
    let rows: Vec<_> = peers.peers.iter().map(row).collect();
    table(&mut text, &["PEER", "ID", "SINCE", "HEARD", "OVER", "ADDRESSES"], &rows);
    let name_of = |id: &String| {
        let known = peers.peers.iter().find(|peer| peer.node == *id);
        known.map_or_else(|| id.clone(), |peer| shown(&peer.name))
    };
    let functions = peers.peers.iter().flat_map(|peer| {
        peer.functions.iter().map(move |function| {
            vec![
                shown(&format!("{}/{}", peer.name, function.function)),
                ByteSize(function.bytes).to_string(),
                if function.read_only { "read-only" } else { "read-write" }.to_owned(),
                function.group.to_string(),
                function.lent_to.as_ref().map_or_else(|| "nobody".to_owned(), name_of),
            ]
        })
    });
    table(&mut text, &["FUNCTION", "SIZE", "ACCESS", "GROUP", "LENT TO"], &functions.collect::<Vec<_>>());
    text.split_off(usize::from(text.starts_with('\n')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_shown_and_cannot_write_to_the_terminal() {
        let function = |name: &str, lent_to: Option<&str>| PeerFunction {
            function: name.to_owned(),
            group: 1,
            bytes: 1 << 30,
            read_only: false,
            lent_to: lent_to.map(str::to_owned),
        };
        let rail =
            PeerRail { rail: 0, address: "10.0.0.2:7411".to_owned(), switch: None, state: "down".to_owned() };
        let peer = Peer {
            name: "store\u{1b}[2J".to_owned(),
            node: "9s3e".to_owned(),
            since_s: 300.0,
            contested: true,
            over: vec!["rail0".to_owned()],
            rails: vec![rail],
            functions: vec![function("nvme0", None), function("nvme1", Some("9s3e"))],
            ..Peer::default()
        };
        let switch = Peer {
            role: "switch".to_owned(),
            name: "s1".to_owned(),
            ports: vec!["10.0.0.9:7411".to_owned(), "10.0.1.9:7411".to_owned()],
            ..Peer::default()
        };
        let mut peers = Peers { node: "desk".to_owned(), ..Peers::default() };
        assert!(render(&peers).contains("none of its rails takes part"));
        peers.rails.push("rail0".to_owned());
        assert_eq!(render(&peers), "desk hears nobody on rail0\n");
        peers.peers.extend([peer, switch]);
        let text = render(&peers);
        assert!(!text.contains('\u{1b}') && text.contains("store?[2J (contested)"), "{text}");
        assert!(text.contains("s1 (switch)") && text.contains("10.0.0.9:7411, 10.0.1.9:7411"), "{text}");
        assert!(text.contains("5 min") && text.contains("10.0.0.2:7411 (down)"), "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("/nvme")).collect();
        assert!(lines[0].ends_with("nobody") && lines[1].ends_with("store?[2J"), "{text}");
    }
}
