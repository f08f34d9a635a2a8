//! One channel for each pair of nodes, with many streams.
//!
//! A [`Channel`] joins one life of this node with one of another: it has keys, paths, round trips and heartbeats, and
//! carries the [`Stream`](crate::Stream)s between the two, whoever of them lends. Either end may begin. A [`Lobby`]
//! judges first messages for the whole node, whichever channel they are for, and asks callers for a cookie under load.
//! Streams belong to the driver, which shows them to the channel as [`Streams`]; they are opened by a [`Claim`] at the
//! borrower's end and an [`Offer`] at the lender's, with records on stream 0.
//!
//! All of them are plain values with the verbs of every core. What they change in the ledger is committed by the driver
//! before anything leaves: `poll_transmit` changes nothing there.
//!
//! Left out: sockets, addresses, and which function is lent to whom.

mod calls;
mod channel;
mod control;
pub(crate) mod cookies;
mod lobby;
mod opening;
mod schedule;
#[cfg(test)]
mod tests;

pub use calls::{Call, Refusal, Why};
pub use channel::{
    COPIES, Channel, ChannelCells, ChannelConfig, Course, Event, Heard, MAX_STREAMS, Said, Stats, Streams,
};
pub(crate) use control::Control;
#[cfg(test)]
pub(crate) use control::What;
pub use control::{FunctionId, OpenRefusal, Wish};
pub use lobby::{Known, Lobby, LobbyCells, LobbyConfig, LobbyStats, Presence, Reception};
pub use opening::{
    Asking, Claim, ClaimCells, ClaimConfig, ClaimEvent, ClaimState, Offer, OfferCells, OfferConfig,
    OfferEvent, OfferState,
};
