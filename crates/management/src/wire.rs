//! What a node and the manager say to each other: JSON texts on one WebSocket (RFC 6455) at `/v1/agent`, over TLS.
//!
//! ```text
//! node                                manager
//!   ── connects, TLS with the pinned authority ──►
//!   ◄── Challenge { nonce, key } ──
//!   ── Hello { node, proof, certificate } ──►  proof: HMAC-SHA256 under the secret that both keys share
//!   ── About ──►
//!   ◄── Greet { epoch }, Member ──
//!   ── Report(Inventory) ──►
//!   ◄── Lender, Borrower, Functions, Rails ── again and again, whatever changes
//!   ── Report(..), About, Events ──►
//! ```
//!
//! Both ends send pings (RFC 6455 §5.5.2) every [`HEARTBEAT`]; who hears nothing for [`SILENT`] closes.

use core::time::Duration;

use base::ids::{DomainId, NodeId, RailId};
use manager::model::{FabricId, MadeList, Name, PublicKey, WallTime};
use manager::report::{DeadRail, Order, Preset, PresetsId, Report};
use serde::{Deserialize, Serialize};

/// Of what is said here.
pub const VERSION: u32 = 1;
/// The longest text of one message.
pub const MESSAGE_MAX: usize = 4 << 20;
/// Between two pings.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Who is not heard for so long is silent.
pub const SILENT: Duration = Duration::from_secs(4);
/// Events in one message.
pub const EVENTS_MAX: usize = 256;

/// Switches of which a node says something.
pub const SWITCHES_MAX: usize = 16;
/// Ports of a switch of which it says something.
pub const PORTS_MAX: usize = 64;

/// What the manager says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ToNode {
    /// First of all: prove who you are.
    Challenge {
        /// [`VERSION`] of the manager.
        version: u32,
        /// Which fabric this is.
        fabric: FabricId,
        /// The manager's public key (X25519), which the node knows since it joined.
        key: PublicKey,
        /// Random, for this connection only.
        nonce: [u8; 32],
    },
    /// Heed this manager: see [`manager::Effect::Greet`].
    Greet {
        /// Its epoch.
        epoch: u64,
    },
    /// What does it remember of managers before: see [`manager::Effect::Recall`].
    Recall {
        /// Its epoch.
        epoch: u64,
    },
    /// By what the node shows that it belongs to the fabric, and who does not any more: with each greeting, when that
    /// changes, and each day.
    Member {
        /// Its certificate ([`link::Certificate`]), in base 32.
        certificate: String,
        /// Nodes that were removed, in order.
        revoked: Vec<NodeId>,
    },
    /// What a lender shall have in its table: see [`manager::Effect::TellLender`].
    Lender {
        /// The manager's epoch.
        epoch: u64,
        /// The changes.
        orders: Vec<Order>,
    },
    /// All that is in a borrower's slots: see [`manager::Effect::TellBorrower`].
    Borrower {
        /// Which list.
        id: PresetsId,
        /// The slots that are not empty.
        presets: Vec<Placed>,
    },
    /// Which functions are to be made at a lender: see [`manager::Effect::TellMaker`].
    Functions {
        /// The manager's epoch.
        epoch: u64,
        /// All of them.
        list: MadeList,
    },
    /// Rails that seem to be dead, of whatever nodes: see [`manager::Effect::TellRails`].
    Rails(Vec<DeadRail>),
    /// The connection ends, and why.
    Refused {
        /// For the log of the node.
        why: String,
    },
}

/// What is in a slot, and where its lender is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placed {
    /// What is there.
    pub preset: Preset,
    /// How the function is called at its lender.
    pub function: Name,
    /// What its lender is called.
    pub lender: Name,
    /// The lender's own domain.
    pub domain: DomainId,
    /// The lender's addresses by rail, as a line has them (`io::address::Addresses`); empty: nobody knows.
    pub addresses: String,
}

/// What a node says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FromNode {
    /// Who it is.
    Hello {
        /// [`VERSION`] of the node.
        version: u32,
        /// Its id.
        node: NodeId,
        /// What only this node can say to the challenge: [`proof_text`] under the secret of both keys.
        proof: [u8; 32],
        /// Its clock.
        now: WallTime,
        /// The version of its program.
        program: String,
        /// Its certificate, in base 32; empty: it has none. A manager that was restored or rebuilt knows by that whom
        /// it has to do with.
        certificate: String,
    },
    /// What it is like; whenever that changes.
    About(About),
    /// What it has, and how far it is: see [`manager::report`].
    Report(Report),
    /// What has happened there: [`EVENTS_MAX`] at most, in order. That some are lost is one of them.
    Events(Vec<NodeEvent>),
}

/// The bytes of which the proof is an HMAC: purpose, fabric, node, nonce.
pub fn proof_text(fabric: FabricId, node: NodeId, nonce: &[u8; 32]) -> Vec<u8> {
    let mut text = b"causeway agent 1".to_vec();
    text.extend(fabric.0);
    text.extend(node.0);
    text.extend(nonce);
    text
}

/// What a node is like, beside what is in the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// Its addresses by rail, as a line has them.
    pub addresses: String,
    /// Its rails.
    pub rails: Vec<RailSaid>,
    /// Its virtual machines.
    pub domains: Vec<DomainSaid>,
    /// Switches that it hears, or has heard: [`SWITCHES_MAX`] at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<SwitchSaid>,
}

/// A switch that a node hears. Nothing proves that it is one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchSaid {
    /// Whom it says it is.
    pub node: NodeId,
    /// What it calls itself.
    pub name: String,
    /// Whether it is heard now, or something that it passes on.
    pub is_heard: bool,
    /// The node's rails on which that is, by their names.
    pub rails: Vec<String>,
    /// Where it takes frames, as far as it says so: [`PORTS_MAX`] at most.
    pub ports: Vec<String>,
}

/// A rail of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RailSaid {
    /// Its number at the node.
    pub rail: RailId,
    /// Its name.
    pub name: String,
    /// `udp` or `ethernet`.
    pub medium: String,
    /// Its address.
    pub address: String,
    /// Whether its interface has a carrier.
    pub is_up: bool,
}

/// A virtual machine of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainSaid {
    /// Its name, as the node's file has it.
    pub name: Name,
    /// Its number.
    pub domain: DomainId,
    /// Its slots.
    pub slots: Vec<SlotSaid>,
}

/// A slot of a virtual machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotSaid {
    /// Its name, as the node's file has it.
    pub name: Name,
    /// Its number, which stays whatever is added to the file or moved in it.
    pub slot: u16,
    /// How it is doing, as the node's `status` says.
    pub state: String,
    /// What keeps it from what it is to be, if something does.
    pub trouble: Option<String>,
}

/// Something that has happened in a node, as its `events` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeEvent {
    /// When, by the node's clock, RFC 3339.
    pub at: String,
    /// The name of the event.
    pub name: String,
    /// Whether people should look.
    pub is_trouble: bool,
    /// For people.
    pub text: String,
}
