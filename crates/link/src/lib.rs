//! Frames, channels and streams: TLPs carried exactly once, in PCIe order, over a network that loses, repeats,
//! reorders and forges.
//!
//! A [`Channel`](pair::Channel) joins two nodes. It seals [`frame`]s, keeps a [`path`] for each rail and carries the
//! [`Stream`]s of their loans. The [`Sender`] of a stream numbers TLPs when the receiver has granted credit and keeps
//! them until the peer has committed them; its [`Receiver`] hands each on exactly once. What must survive the card lies
//! in the ledger: numbers, credits, replay, tags, keys. What the network can tell again does not: packet numbers, round
//! trips, what was received but not committed.
//!
//! Left out: what TLPs mean (`fabric`, `device`, `host`) and sockets (`io`).

mod answered;
mod capacity;
mod certificate;
mod choice;
mod cipher;
mod entry;
pub mod errand;
pub mod frame;
#[cfg(test)]
mod golden;
mod handshake;
mod identity;
pub mod information;
mod name;
mod notice;
pub mod pair;
pub mod path;
mod paths;
mod proof;
mod record;
mod seal;
mod sealing;
mod standing;
mod stream;
mod tenancy;
mod transmit;
mod x25519;

pub use answered::CallName;
pub use certificate::{CERTIFICATE_MAX, Certificate, Fault, Members};
pub use choice::RailMode;
pub use cipher::{Cipher, Protection};
pub use entry::{Applied, Assignment, Entry, Holder, Possession};
pub use handshake::{PROPOSAL_LEN, derive, mark};
pub use identity::{KEY_BYTES, Lender, NodeKey, PublicKey, Secret};
pub use name::Name;
pub use notice::{GroupKey, Notice, NoticeCause};
pub use paths::{PathConfig, PathId, PathStatus, SHM_PATH};
pub use proof::{PROOF_LEN, is_proof, prove};
pub use record::{ADDRESS_BYTES, Information};
pub use sealing::REKEY_FRAMES;
pub use stream::{
    Completed, Held, Port, PostedCredit, Receiver, ReceiverCells, Sender, SenderCells, Sink, State, Stream,
    StreamCells, StreamStats, TagCells, Tags, TimedOut, tlp_digest,
};
pub use tenancy::Tenancy;
pub use transmit::{FrameBuffer, Transmit};
pub use x25519::remember_agreements;
