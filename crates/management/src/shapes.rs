//! Documents of the HTTP interface. Everything is JSON under `/v1`, with `Authorization: Bearer TOKEN`.
//!
//! | method and path | in | out |
//! |---|---|---|
//! | `GET /v1` | | [`Fabric`] |
//! | `GET /v1/nodes`, `/v1/nodes/NAME` | | [`Page`] of [`Node`], [`Node`] |
//! | `PUT /v1/nodes/NAME/groups` | [`SetGroups`] | [`Changed`] |
//! | `DELETE /v1/nodes/NAME` | | [`Changed`] |
//! | `GET /v1/functions`, `/v1/functions/NODE/FUNCTION` | | [`Page`] of [`Function`], [`Function`] |
//! | `PUT /v1/functions/NODE/FUNCTION` | [`MakeFunction`] | [`Changed`] |
//! | `DELETE /v1/functions/NODE/FUNCTION` | | [`Changed`] |
//! | `PUT /v1/functions/NODE/FUNCTION/assignment` | [`Assign`] | [`Changed`] |
//! | `DELETE /v1/functions/NODE/FUNCTION/assignment[?force=true]` | | [`Changed`] |
//! | `PUT /v1/functions/NODE/FUNCTION/limits` | [`Limits`] | [`Changed`] |
//! | `GET /v1/domains`, `/v1/domains/NODE/DOMAIN` | | [`Page`] of [`Domain`], [`Domain`] |
//! | `GET /v1/switches` | | [`Page`] of [`Switch`] |
//! | `GET /v1/loans`, `/v1/loans/NODE/FUNCTION` | | [`Page`] of [`Loan`], [`Loan`] |
//! | `GET /v1/join-tokens` | | [`Page`] of [`JoinToken`] |
//! | `POST /v1/join-tokens` | [`MakeJoinToken`] | [`MadeToken`] |
//! | `DELETE /v1/join-tokens/HASH` | | [`Changed`] |
//! | `GET /v1/tokens` | | [`Page`] of [`ApiToken`] |
//! | `POST /v1/tokens` | [`MakeApiToken`] | [`MadeToken`] |
//! | `DELETE /v1/tokens/NAME` | | [`Changed`] |
//! | `GET /v1/audit` | | [`Page`] of [`Audit`] |
//! | `GET /v1/events` | | server-sent events, each an [`Event`] |
//! | `POST /v1/restore/end[?anyway=true]` | | [`Changed`] |
//! | `GET /v1/backup` | | the bytes of a backup |
//! | `GET /v1/join` (no token) | | [`Introduction`] |
//! | `POST /v1/join` (the token is a join token's) | [`Join`] | [`Joined`] |
//! | `GET /v1/agent` (a WebSocket, no token) | | [`crate::wire`] |
//! | `GET /v1/openapi.json`, `/metrics`, `/healthz` (no token) | | |
//!
//! Lists are ordered by name and paged: `?limit=N` ([`LIMIT_MAX`] at most), `?after=NAME`; any field of text filters
//! by `?FIELD=VALUE`. One document has an `ETag`, and a change with `If-Match` is made only to that version. A change
//! may carry `Idempotency-Key` (a [`manager::model::RequestId`] as text): the same one again is done once. What goes
//! wrong is a [`Problem`] (RFC 9457).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::texts::{
    BytesText, DomainsNumber, GroupNumber, MillisNumber, NameText, OnSilenceText, RoleText, SecondsNumber,
    SlotText, StorageShape,
};

/// Rows of a page at most.
pub const LIMIT_MAX: usize = 1000;
/// Rows of a page if nothing is said.
pub const LIMIT: usize = 100;

/// A part of a list.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// Of this document: 1.
    pub version: u32,
    /// The rows.
    pub items: Vec<T>,
    /// What to say as `after` for the next ones; none: these are the last.
    pub next: Option<String>,
}

/// The fabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Fabric {
    /// Of this document: 1.
    pub version: u32,
    /// Its id.
    pub fabric: String,
    /// The manager's epoch.
    pub epoch: u64,
    /// The last durable entry of its log.
    pub index: u64,
    /// Nodes that have joined, and how many of them are heard.
    pub nodes: u64,
    /// Of these.
    pub reachable: u64,
    /// Functions that are known.
    pub functions: u64,
    /// A backup was restored, and these nodes were not heard since.
    pub restoring: Option<Vec<String>>,
    /// The manager's clock, RFC 3339.
    pub now: String,
    /// What is wrong with the manager itself.
    #[serde(default)]
    pub alarms: Vec<String>,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its id.
    pub node: String,
    /// `reachable`, `silent` or `removed`.
    pub state: String,
    /// Since when it belongs to the fabric, or does not any more.
    pub since: String,
    /// Since when it is not heard, if it was since the manager has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<String>,
    /// Its domains, BASE/LEN.
    pub domains: String,
    /// Which groups it may enter.
    pub groups: Vec<u16>,
    /// How many functions it lends.
    pub functions: u64,
    /// Its rails, as far as it has said so.
    pub rails: Vec<Rail>,
    /// The version of its program, if it was heard.
    pub program: Option<String>,
    /// What is wrong with it.
    pub alarms: Vec<String>,
    /// What of the functions that are made there is not as it was decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub making: Vec<Making>,
}

/// A function that is not as it was decided.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Making {
    /// Its name at its node.
    pub function: String,
    /// `making`: its lender has yet to make it; `deleting`: to delete it; `refused`: it cannot make it, and nothing of
    /// it is there.
    pub state: String,
    /// Why it cannot.
    pub why: Option<String>,
}

/// A rail of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Rail {
    /// Its name.
    pub name: String,
    /// Its number at the node.
    #[serde(default)]
    pub rail: u8,
    /// `udp` or `ethernet`.
    pub medium: String,
    /// Its address.
    pub address: String,
    /// Whether its interface has a carrier.
    pub is_up: bool,
    /// Why it seems to be dead, by what nodes say of it, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<RailVerdict>,
}

/// What the manager makes of what nodes say of a rail. It changes nothing but where nodes send first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RailVerdict {
    /// `silence`: it is not heard, though its node is on another one; `carrier`: its node says that it has none.
    pub cause: String,
    /// Since when.
    pub since: String,
    /// Nodes that say so.
    pub by: Vec<String>,
}

/// A switch, as far as nodes hear of it. Nothing proves what it says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Switch {
    /// What it calls itself: others may do so, too.
    pub name: String,
    /// Its id, by which lists are ordered.
    pub switch: String,
    /// `heard` or `silent`: by nodes that are heard themselves.
    pub state: String,
    /// Nodes that hear it, or have, and on which of their rails: NODE/RAIL.
    pub nodes: Vec<String>,
    /// Where it takes frames.
    pub ports: Vec<String>,
}

/// What a node lends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Function {
    /// NODE/FUNCTION.
    pub name: String,
    /// Who lends it.
    pub node: String,
    /// Its number there.
    pub number: u32,
    /// `nvme`, ...
    pub kind: String,
    /// Its size.
    pub bytes: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Which assignment this is.
    pub generation: u64,
    /// `free`, `wanted`, `applied`, `leaving`, `forced` or `ended`; `deleting`: it is to be there no more.
    pub state: String,
    /// The device of its lender that it was made on; none: it is of its lender's own configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_on: Option<String>,
    /// In which slot, if in one.
    pub slot: Option<String>,
    /// Since when it is so.
    pub since: Option<String>,
    /// What it may do, if that was decided here and not in its lender's configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// Whether its lender acts by these limits.
    #[serde(default)]
    pub is_limited: bool,
}

/// What a function may do in a second, whoever has it: what is not said has no limit. `PUT .../limits`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// I/O commands, 1 at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub iops: Option<u64>,
    /// Bytes that these move, 1 at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub bytes_per_s: Option<u64>,
}

/// A virtual machine of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Domain {
    /// NODE/DOMAIN.
    pub name: String,
    /// Which node has it.
    pub node: String,
    /// Its number.
    pub domain: u32,
    /// Its slots.
    pub slots: Vec<Slot>,
}

/// A slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Slot {
    /// NODE/DOMAIN/SLOT.
    pub name: String,
    /// Its number in the domain.
    pub slot: u16,
    /// What is assigned to it.
    pub function: Option<String>,
    /// How it is doing, as its node's `status` says; none: the node was not heard.
    pub state: Option<String>,
    /// What keeps it from what it is to be.
    pub trouble: Option<String>,
}

/// A function that is assigned to a slot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Loan {
    /// NODE/FUNCTION.
    pub name: String,
    /// Who lends it.
    pub lender: String,
    /// Who borrows it.
    pub borrower: String,
    /// NODE/DOMAIN/SLOT, or numbers as long as the node has not said its names.
    pub slot: String,
    /// In which group.
    pub group: u16,
    /// Which assignment this is.
    pub generation: u64,
    /// `wanted`, `applied`, `leaving` or `forced`.
    pub state: String,
    /// Since when.
    pub since: String,
    /// What becomes of it when one end is silent: `hold(SECONDS)` or `remove`.
    pub on_silence: String,
}

/// `PUT .../assignment`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Assign {
    /// DOMAIN/SLOT, where one node only has such a domain, or NODE/DOMAIN/SLOT, or by numbers.
    #[schema(value_type = SlotText)]
    pub slot: String,
    /// In which group; if nothing is said, in the least one that both nodes may enter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<GroupNumber>)]
    pub group: Option<u16>,
    /// `hold(SECONDS)` or `remove`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OnSilenceText>)]
    pub on_silence: Option<String>,
}

/// `PUT /v1/functions/NODE/FUNCTION`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeFunction {
    /// Of which device, as its node's file names it.
    #[schema(value_type = NameText)]
    pub device: String,
    /// What it has of that: `{"bytes": N}` for a namespace of its own, `{"namespace": NAME}` for one that the file says
    /// is shared.
    #[schema(value_type = StorageShape)]
    pub storage: Storage,
    /// In which group it is lent; in that of the device if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<GroupNumber>)]
    pub group: Option<u16>,
    /// I/O commands in a second, 1 at least; no limit if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub iops: Option<u64>,
    /// Bytes that these move, 1 at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub bytes_per_s: Option<u64>,
}

/// What a function has of its device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// A namespace of its own, of so many bytes.
    Bytes(u64),
    /// One that is shared, by its name.
    Namespace(String),
}

/// `PUT .../groups`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetGroups {
    /// From then on.
    #[schema(value_type = Vec<GroupNumber>, min_items = 1, max_items = 64)]
    pub groups: Vec<u16>,
}

/// What became of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Changed {
    /// Of this document: 1.
    pub version: u32,
    /// `done`: it is so everywhere. `pending`: it is decided, and happens when `waits_for` is heard. `overtaken`:
    /// somebody has decided something else since.
    pub progress: String,
    /// Which lender is waited for.
    pub waits_for: Option<String>,
    /// Whether that one is silent.
    pub is_silent: bool,
    /// The entry of the log that did it; none: it was so already.
    pub index: Option<u64>,
    /// Which assignment it is now, of a function.
    pub generation: Option<u64>,
}

/// `POST /v1/join-tokens`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeJoinToken {
    /// For how long it is good; a day if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SecondsNumber>)]
    pub seconds: Option<u64>,
    /// Which groups its node may enter; 1 if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<GroupNumber>>, min_items = 1, max_items = 64)]
    pub groups: Option<Vec<u16>>,
    /// How many domains its node gets; 64 if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DomainsNumber>)]
    pub domains: Option<u32>,
}

/// `POST /v1/tokens`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeApiToken {
    /// Its name.
    #[schema(value_type = NameText)]
    pub name: String,
    /// `administrator`, `operator` or `read-only`.
    #[schema(value_type = RoleText)]
    pub role: String,
    /// Whether one of this name is worth nothing any more; if nothing is said, it stays, and this is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replace: Option<bool>,
}

/// A token that was made: it is told this once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MadeToken {
    /// Of this document: 1.
    pub version: u32,
    /// What its user says.
    pub token: String,
    /// Its hash, by which it is listed.
    pub hash: String,
}

/// A token that a node may join with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JoinToken {
    /// Its hash.
    pub hash: String,
    /// Until when it is good.
    pub expires: String,
    /// Which groups its node may enter.
    pub groups: Vec<u16>,
    /// How many domains its node gets.
    pub domains: u32,
    /// Who has joined with it.
    pub used_by: Option<String>,
}

/// A token for the interface.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ApiToken {
    /// Its name.
    pub name: String,
    /// Its hash.
    pub hash: String,
    /// `administrator`, `operator` or `read-only`.
    pub role: String,
}

/// A change, something that was refused, or something that a node has caused, from the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// Its index, as text, so that it pages as names do.
    pub index: String,
    /// When.
    pub at: String,
    /// Who.
    pub who: String,
    /// What.
    pub what: String,
    /// The result.
    pub result: String,
}

/// Something that has happened, in a node or at the manager.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// When, RFC 3339.
    pub at: String,
    /// In which node; none: at the manager.
    pub node: Option<String>,
    /// The name of the event.
    pub name: String,
    /// Whether people should look.
    pub is_trouble: bool,
    /// For people.
    pub text: String,
}

/// Whom a node joins: what it has to know before it can prove that it has its key. Who has answered it knows by the
/// authority that its join token names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Introduction {
    /// Of this document: 1.
    pub version: u32,
    /// The fabric's id.
    pub fabric: String,
    /// The manager's public key (X25519).
    pub manager: String,
}

/// `POST /v1/join`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// What the node wants to be called.
    #[schema(value_type = NameText)]
    pub name: String,
    /// Its public key (X25519), as [`manager::model::PublicKey`] has it as text.
    #[schema(value_type = BytesText)]
    pub key: String,
    /// HMAC-SHA256 of [`join_text`] under the secret that its key and the manager's share: it has that key.
    /// Base 32, as the key.
    #[schema(value_type = BytesText)]
    pub proof: String,
    /// Its clock, in milliseconds since 1970.
    #[schema(value_type = MillisNumber)]
    pub now: u64,
}

/// The bytes of which the proof of a [`Join`] is an HMAC: purpose, the token's hash, name, key.
pub fn join_text(token: manager::model::TokenHash, name: &str, key: &[u8; 32]) -> Vec<u8> {
    let mut text = b"causeway join 1".to_vec();
    text.extend(token.0);
    text.extend(key);
    text.extend(name.as_bytes());
    text
}

/// The node belongs to the fabric.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Joined {
    /// Of this document: 1.
    pub version: u32,
    /// The fabric's id.
    pub fabric: String,
    /// What the node is called.
    pub name: String,
    /// Its domains, BASE/LEN.
    pub domains: String,
    /// Which groups it may enter.
    pub groups: Vec<u16>,
    /// The manager's epoch.
    pub epoch: u64,
    /// The manager's public key (X25519).
    pub manager: String,
    /// The node's certificate, in base 32: what it shows to other nodes of the fabric.
    pub certificate: String,
}

/// What went wrong (RFC 9457), as `application/problem+json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// `about:blank`, for the title says which kind it is.
    #[serde(rename = "type")]
    pub kind: String,
    /// Which kind, a name that stays: `not-found`, `conflict`, `stale`, `forbidden`, `unauthorized`, `malformed`,
    /// `busy`, `unavailable`, `internal`.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// For people: what happened, to what, and what to do.
    pub detail: String,
}
