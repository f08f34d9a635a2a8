//! Frames, channels and streams: TLPs carried exactly once, in PCIe order, over a network that loses, repeats,
//! reorders and forges.
//!
//! A [`Channel`] joins the two cards of a loan. It seals [`frame`]s, keeps a [`path`] for each rail and carries the
//! two halves of a stream: the [`Sender`] numbers TLPs when the receiver has granted credit and keeps them until the
//! peer has committed them; the [`Receiver`] hands each on exactly once. What must survive the card lies in the
//! ledger: numbers, credits, replay, tags, keys. What the network can tell again does not: packet numbers, round
//! trips, what was received but not committed.
//!
//! Left out: what TLPs mean (`fabric`, `device`, `host`) and sockets (`io`).

mod channel;
mod cipher;
pub mod frame;
mod handshake;
pub mod path;
mod proof;
mod receiver;
mod record;
mod seal;
mod sender;
mod tags;
mod tenancy;

pub use channel::{
    CallName, Channel, ChannelCells, ChannelConfig, Event, Heard, Name, PRIVATE_PATH, PathConfig, PathId,
    Port, REKEY_FRAMES, Role, Room, Sink, State, Stats, Transmit,
};
pub use cipher::{Cipher, Protection};
pub use handshake::{Refusal, derive};
pub use proof::{PROOF_LEN, is_proof, prove};
pub use receiver::{Held, Receiver, ReceiverCells, tlp_digest};
pub use record::Information;
pub use sender::{PostedCredit, Sender, SenderCells};
pub use tags::{Completed, TagCells, Tags, TimedOut};
pub use tenancy::Tenancy;
