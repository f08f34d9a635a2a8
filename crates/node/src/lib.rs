//! The composition of a card: this crate is the architecture diagram.
//!
//! ```text
//!  borrower's card                                              lender's card
//!  NBD client <-> nbd::Server <-> DriveDriver                  MediaFunction <-> medium
//!                                   | Access, memory              | Dma, registers
//!                       BorrowedDrive: windows, grants, tags    LentFunction: windows, grants, tags
//!                                   | TLPs                        | TLPs
//!                             Stream and Claim               Stream and Offer
//!                                      | one of many               | one of many
//!                                pair::Channel <== frames ==> pair::Channel
//! ```
//!
//! For a virtual machine a [`BorrowedSlot`] stands in the place of the drive: `vfio_user::Session` in front of windows,
//! grants and tags of the same kind, and the guest's own driver behind the socket.
//!
//! A [`Card`] owns the cores of all loans of a node, and of all nodes that it has a channel with. Each of its verbs is
//! one step: it changes the ledger and ends with the commit; what is then polled leaves. Two drivers run the very same
//! card: `io` in reality, `sim` in virtual time.

pub mod agent;
mod apertures;
mod borrower;
mod card;
mod cells;
mod config;
mod denial;
mod drive;
mod endpoint;
mod gateway;
mod gauges;
mod lender;
mod loan;
mod loan_table;
mod map;
pub mod native;
mod neighbourhood;
mod opening;
mod parts;
mod peer;
mod peers;
mod refusal;
mod requests;
mod sightings;
mod slot;
mod transaction;
mod whereabouts;

pub use apertures::{APERTURE_BYTES, Target, base_of, decoder_of};
pub use borrower::BorrowedDrive;
pub use card::{Card, CardEvent, Egress, FrameBuffers, MediaWork, Outgoing, RailsError, Unusable};
pub use cells::{
    Address, EdgeGauges, EndCells, Gauges, LedgerLoans, LoanCells, LoanKind, LoanParts, MAX_DRIVES,
    MAX_LOANS, MAX_RAILS, MAX_SLOTS, NO_GAUGES, NodeLedger, PeerCells, ledger_bytes,
};
pub use config::{BorrowEdge, CardConfig, LendConfig, LoanConfig, LoanRole, RailConfig, Rails, Route, Title};
pub use denial::{Denial, Right};
pub use gateway::{Gateway, GatewayState, GatewaySwitch};
pub use map::{Grant, Granted, granted_by_guest, granted_to_drive, granted_to_host, granted_to_slot};
pub use neighbourhood::{
    ANNOUNCE_EVERY, NODES_MAX, Neighbour, NeighbourFunction, NeighbourRail, Neighbourhood,
};
pub use parts::{
    DriveCells, DriveConfig, DriveConfigError, DriveDriver, DriverCells, FUNCTIONS_MAX, FunctionCells,
    MEDIA_SPANS, MEDIA_WORK, MadeFunction, MadeNamespace, NamespaceConfig, Persist, WriteCache,
};
pub use refusal::Refusal;
pub use sightings::{Cause, Sighting, Sightings};
pub use slot::{BorrowedSlot, GuestMemory, SlotCells};
pub use transaction::requester_of;
pub use whereabouts::Whereabouts;

pub use device::{FlashConfig, FlashModel, FlashRates};
pub use device::{Limit, LimitError, MediaError, MediaId, MediaKind};
pub use fabric::{Decoder, Range, switch};
pub use host::nbd::{INPUT_BYTES as EDGE_INPUT_BYTES, ServerCells};
pub use host::vfio_user::{
    DescriptorId, MESSAGE_DESCRIPTORS, Peeked, SessionCells, SessionCounters, SlotConfigError,
};
pub use host::{BlockError, BlockKind, BlockRequest, Geometry};
pub use link::StreamStats;
pub use link::errand;
pub use link::frame::group_of;
pub use link::information;
pub use link::pair::{COPIES, FunctionId, LobbyStats, OfferCells, Stats as ChannelStats};
pub use link::path::SHM_WINDOW;
pub use link::{
    Applied, Assignment, Certificate, Cipher, Entry, Fault, GroupKey, Holder, KEY_BYTES, Lender, Members,
    Name, NodeKey, Notice, NoticeCause, PROOF_LEN, Possession, Protection, PublicKey, REKEY_FRAMES, RailMode,
    Secret, Tenancy, is_proof, prove,
};
pub use pcie::Bdf;

/// Most NBD connections of a borrowed drive.
pub const EDGE_CONNECTIONS: usize = 16;
