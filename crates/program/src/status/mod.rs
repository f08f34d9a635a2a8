//! What a node says about itself: the document of `status -o json`, and the same for people.
//!
//! Key names are fixed by the interface; keys are added, never renamed. States are text, not enums: a newer node
//! may know one that an older `causeway status` does not. A missing key reads as empty for the same reason.

mod map;
mod metrics;
mod peers;
mod render;
mod topo;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use map::{Map, MapDomain, MapGrant, MapRange, MapWindow, render as render_map};
pub(crate) use metrics::{METRICS_TYPE, render_metrics};
pub use peers::{Peer, PeerFunction, PeerGateway, PeerRail, Peers, render as render_peers};
pub use render::render;
pub(crate) use render::{age, render_links, render_partitions, shown, table};
pub use topo::{Topo, render as render_topo, render_dot};

/// The version of the document.
pub const VERSION: u32 = 1;

/// Everything a node says about itself. `version` stands first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`].
    pub version: u32,
    /// The node.
    pub node: Node,
    /// Its data-plane processes.
    #[serde(default)]
    pub cards: Vec<Card>,
    /// Its paths to other nodes.
    #[serde(default)]
    pub rails: Vec<Rail>,
    /// Its connections to other cards.
    #[serde(default)]
    pub channels: Vec<Channel>,
    /// What the channels carry.
    #[serde(default)]
    pub streams: Vec<Stream>,
    /// What it lends.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Who has what.
    #[serde(default)]
    pub loans: Vec<Loan>,
    /// The fabric that it belongs to, if it was told to join one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// What was counted since the node started.
    #[serde(default)]
    pub counters: Counters,
    /// Of a switch, in place of all the lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switch: Option<Switch>,
}

/// The fabric that a node belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fabric {
    /// Which one.
    pub fabric: String,
    /// What the node is called there.
    pub name: String,
    /// The greatest epoch of a manager that it has heard of.
    pub epoch: u64,
    /// Whether a manager is heard.
    pub connected: bool,
}

impl Status {
    /// A status with nothing but the node.
    pub fn new(node: Node) -> Self {
        Self {
            version: VERSION,
            node,
            cards: Vec::new(),
            rails: Vec::new(),
            channels: Vec::new(),
            streams: Vec::new(),
            devices: Vec::new(),
            loans: Vec::new(),
            fabric: None,
            counters: Counters::default(),
            switch: None,
        }
    }
}

/// The node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its id: a hash of its public key.
    pub id: String,
    /// The agent's process id.
    pub pid: u32,
    /// Greater after each start of the node, and whenever something comes to it while it runs.
    pub incarnation: u64,
    /// Address of `/metrics` and `/healthz`; `null` where nothing is served.
    pub http: Option<String>,
    /// Another program has its identity: one of both was refused within the last minute.
    #[serde(default)]
    pub identity_shared: bool,
}

/// A switch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Switch {
    /// Its ports, in the order of its file.
    pub ports: Vec<SwitchPort>,
    /// Where it listens.
    pub listeners: Vec<SwitchListener>,
    /// Its partitions.
    pub partitions: Vec<SwitchPartition>,
    /// What `causeway switch ctl` reaches it by; `null` where its file names no `control`.
    pub control: Option<String>,
}

/// A partition of a switch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchPartition {
    /// Its name.
    pub name: String,
    /// The id of the node that has taken it; `null`: none has.
    pub owner: Option<String>,
    /// Greater each time that it is taken.
    pub epoch: u64,
    /// The names of its ports.
    pub ports: Vec<String>,
}

/// A port of a switch. What is counted counts from its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchPort {
    /// Its name.
    pub name: String,
    /// That of its partition.
    pub partition: String,
    /// Where it listens.
    pub local: String,
    /// Whoever is behind it; empty as long as nobody has said so.
    pub peer: String,
    /// `up`: somebody behind it was heard within 350 ms; `silent`.
    pub state: String,
    /// The port that it stands by for, if it does.
    pub standby_for: Option<String>,
    /// Frames that came in by it, dropped ones too.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Frames that have left by it.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Those of them that were marked here for congestion.
    pub marked_frames: u64,
    /// What waits to leave.
    pub queued_bytes: u64,
    /// By reason: frames that came in by it, or were to leave by it, and were dropped.
    pub dropped: BTreeMap<String, u64>,
}

/// A socket of a switch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SwitchListener {
    /// Where.
    pub local: String,
    /// What came there from addresses that are no port's, or in another group than it said, and was dropped.
    pub strangers: u64,
}

/// A data-plane process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Card {
    /// Its process id; a card that was killed comes back with another, and until then there is none: `null`. Never 0,
    /// which would name the whole process group of whoever sends it a signal.
    pub pid: Option<u32>,
    /// How often a card was started for this ledger.
    pub generation: u64,
    /// How many of these starts followed a death.
    pub restarts: u64,
    /// `starting`, `running`, `stopped`, `hung`, `recovering`, `draining`, `dead`.
    pub state: String,
    /// From the last death to the moment its successor served, in seconds; `null` before the first.
    pub last_recovery_s: Option<f64>,
    /// The process id of the card that stands by to follow; `null` while there is none.
    pub standby_pid: Option<u32>,
}

/// A rail to another node: where there are several, each rail is there for each of them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rail {
    /// Its name.
    pub name: String,
    /// `udp`, ...
    pub medium: String,
    /// The local address.
    pub local: String,
    /// The peer's address, or that of the switch where all is sent; empty as long as there is no peer.
    pub peer: String,
    /// The peer's id; empty as long as there is no peer.
    pub node: String,
    /// The port of a switch that everything is sent to.
    pub switch: Option<String>,
    /// `up`, `down`, ...
    pub state: String,
    /// Smoothed round-trip time in microseconds; `null` before the first.
    pub rtt_us: Option<f64>,
    /// Frames lost, of frames sent: 0 to 1.
    pub loss_ratio: f64,
}

/// A connection to another card.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Channel {
    /// Identity of the peer's node.
    pub peer: String,
    /// The zone that it is in: two nodes have a channel in each.
    pub group: u16,
    /// `open`, or `silent` while its peer is not heard.
    pub state: String,
    /// Frames are encrypted.
    pub sealed: bool,
    /// With what: `aegis-128x2`, `aes-256-gcm`, or `none`; `null` before the two ends have agreed.
    pub cipher: Option<String>,
    /// Frames sent.
    pub sent_frames: u64,
    /// Frames received and authenticated.
    pub received_frames: u64,
    /// TLPs sent again, of all loans that it carries.
    pub retransmissions: u64,
}

/// What a channel carries for one loan in one direction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stream {
    /// The loan's function.
    pub loan: String,
    /// `out` or `in`.
    pub direction: String,
    /// TLPs that bear a number and are not committed.
    pub in_flight: u64,
    /// Bytes kept to be sent again.
    pub replay_bytes: u64,
    /// TLPs sent again.
    pub retransmissions: u64,
}

/// A function that is lent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its name.
    pub function: String,
    /// `nvme`, ...
    pub kind: String,
    /// What stands behind it.
    pub source: String,
    /// Its size.
    pub bytes: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// `ok`, or `failed`: its medium has lost something, and each flush fails until `causeway device clear`.
    pub media: String,
    /// Who has it, or for whom it is kept; `null` when nobody has.
    pub lent_to: Option<String>,
    /// Who has it is not there, and has it for so many seconds yet; else `null`.
    pub kept_s: Option<f64>,
    /// How its I/O is done: `memory`, `ring`, or `threads` where io_uring is forbidden.
    pub io: String,
    /// The drive it is a function of.
    pub drive: String,
    /// Which of the drive's controllers: 0 is the physical function's, the others are virtual functions.
    pub controller: u16,
    /// Most I/O commands a second; `null` for any number.
    pub iops: Option<u64>,
    /// Most bytes a second; `null` for any number.
    pub bytes_per_s: Option<u64>,
    /// It is to be lent no more, when whoever has it gives it back.
    pub leaving: bool,
}

/// Who has what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loan {
    /// The function.
    pub function: String,
    /// The loan's generation; 0 is a preset.
    #[serde(default)]
    pub generation: u64,
    /// The zone that it is lent in.
    #[serde(default)]
    pub group: u16,
    /// Which end this node is.
    pub role: Role,
    /// The other end.
    #[serde(default)]
    pub peer: String,
    /// The id of the other end; empty as long as nobody is there.
    #[serde(default)]
    pub node: String,
    /// `connecting`, `up`, `silent`, ...
    #[serde(default)]
    pub state: String,
    /// How long nothing has been heard of the peer, in seconds; `null` while it is heard, and before it ever was.
    #[serde(default)]
    pub silent_s: Option<f64>,
    /// At a lender that keeps the function for a node that is not there: for so many seconds yet; else `null`.
    #[serde(default)]
    pub kept_s: Option<f64>,
    /// Where the borrower serves it; `null` at the lender.
    #[serde(default)]
    pub edge: Option<String>,
    /// `DOMAIN/SLOT` where the loan is one of a virtual machine's slots.
    #[serde(default)]
    pub slot: Option<String>,
    /// It is to be given back.
    #[serde(default)]
    pub leaving: bool,
    /// Two programs have the identity of the other end: one of both was refused within the last minute.
    #[serde(default)]
    pub identity_shared: bool,
}

/// An end of a loan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The function is here.
    Lender,
    /// The function is used here.
    Borrower,
}

/// What was counted since the node started. Those the interface names have fields, others are in `more`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Frames whose tag was wrong.
    #[serde(default)]
    pub dropped_auth: u64,
    /// Frames that had been received before.
    #[serde(default)]
    pub dropped_replay: u64,
    /// Frames of another version of the protocol.
    #[serde(default)]
    pub dropped_version: u64,
    /// Frames that are none.
    #[serde(default)]
    pub dropped_malformed: u64,
    /// TLPs to memory they have no grant for.
    #[serde(default)]
    pub denied_accesses: u64,
    /// Whatever else is counted.
    #[serde(flatten)]
    pub more: BTreeMap<String, u64>,
}

impl Counters {
    /// All counters with their names, those of the interface first.
    pub fn all(&self) -> Vec<(&str, u64)> {
        let named = [
            ("dropped_auth", self.dropped_auth),
            ("dropped_replay", self.dropped_replay),
            ("dropped_version", self.dropped_version),
            ("dropped_malformed", self.dropped_malformed),
            ("denied_accesses", self.denied_accesses),
        ];
        named.into_iter().chain(self.more.iter().map(|(name, count)| (name.as_str(), *count))).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
