use base::ledger::{Cell, Counter, Journal, PageCells};
use device::nvme::{NvmeCells, SubsystemCells};
use host::nbd::ServerCells;
use host::nvme::DriverCells;
use host::vfio_user::SessionCells;
use link::ChannelCells;

use crate::slot::SlotCells;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most loans of a node, lent and borrowed together: all virtual functions of a drive, and some more. Pages of the
/// ledger that no loan uses cost nothing.
pub const MAX_LOANS: usize = 80;
/// Most drives that a node lends, each with at least one loan.
pub const MAX_DRIVES: usize = MAX_LOANS;
/// Most rails of a node.
pub const MAX_RAILS: usize = 4;

/// The root of a node's ledger.
#[derive(FromBytes)]
#[repr(C)]
pub struct NodeCells {
    /// By index of the loan in the card's configuration.
    pub loans: [LoanCells; MAX_LOANS],
    /// By index of the drive in the card's configuration: what the functions of a lent drive share.
    pub drives: [SubsystemCells; MAX_DRIVES],
    /// What the card has counted beside its loans.
    pub gauges: Gauges,
}

/// Everything of one loan that outlives a card.
#[derive(FromBytes)]
#[repr(C)]
pub struct LoanCells {
    /// The channel with its streams.
    pub channel: ChannelCells,
    /// The payload pages, shared by stream, function, driver and edge.
    pub pages: PageCells,
    /// Of a lent function.
    pub controller: NvmeCells,
    /// Of a borrowed drive.
    pub driver: DriverCells,
    /// Of a borrowed drive with an NBD edge.
    pub server: ServerCells,
    /// Of a slot: its client.
    pub session: SessionCells,
    /// Of a slot: its function.
    pub slot: SlotCells,
    /// Where the peer was last heard, by rail.
    pub peers: [Cell<Address>; MAX_RAILS],
    /// Of a borrower: number of its [`link::Tenancy`]; 0 before the first.
    pub tenancy: Cell<u64>,
    /// For the agent to read.
    pub edge: EdgeGauges,
    /// Which [`crate::LoanConfig::life`] all of this belongs to; [`CLEARING`] while an earlier one is forgotten.
    pub life: Cell<u64>,
}

/// No life of a loan.
const CLEARING: u64 = u64::MAX;

impl LoanCells {
    /// Forgets whatever does not belong to this life.
    pub(crate) fn begin_life(&self, journal: Journal<'_>, life: u32) {
        if self.life.get() == u64::from(life) {
            return;
        }
        self.life.set(journal, CLEARING);
        journal.commit();
        journal.clear(&self.channel);
        self.pages.clear(journal);
        journal.clear(&self.controller);
        journal.clear(&self.driver);
        journal.clear(&self.server);
        journal.clear(&self.session);
        journal.clear(&self.slot);
        self.peers.iter().for_each(|peer| peer.set(journal, Address::default()));
        self.tenancy.set(journal, 0);
        journal.clear(&self.edge);
        self.life.set(journal, life.into());
        journal.commit();
    }
}

/// The address of a peer on a rail, as the driver of the card wrote it: opaque here. All zeroes: unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct Address(pub [u8; 28]);

impl Address {
    /// Whether there is an address.
    pub fn is_known(&self) -> bool {
        *self != Self::default()
    }
}

/// Counters and gauges of a card, read by the agent.
#[derive(FromBytes, Debug)]
#[repr(C)]
pub struct Gauges {
    /// Frames of another version.
    pub dropped_version: Counter,
    /// Datagrams that are no frames.
    pub dropped_malformed: Counter,
    /// Frames of no loan of this node.
    pub dropped_unknown: Counter,
    /// When the card last ended its recovery, in nanoseconds of the clock it is driven by.
    pub recovered_at: Counter,
    /// Words that this card's roll-back restored.
    pub rolled_back: Counter,
}

/// Gauges of a loan, read by the agent.
#[derive(FromBytes, Debug)]
#[repr(C)]
pub struct EdgeGauges {
    /// [`link::State`] as a number.
    pub channel_state: Counter,
    /// When the peer was last heard, in nanoseconds of the card's clock.
    pub last_heard: Counter,
    /// Smoothed round trip of each rail in nanoseconds; zero while unknown.
    pub rtt_ns: [Counter; MAX_RAILS],
    /// Whether each rail answers.
    pub rail_up: [Counter; MAX_RAILS],
    /// Lost packets of a million, by rail.
    pub loss_ppm: [Counter; MAX_RAILS],
    /// Number of the [`link::Cipher`] that protects frames; 0 before the first peer.
    pub cipher: Counter,
    /// The path through shared memory: 0 none, 1 it does not answer, 2 it answers. Round trip and loss as of a rail.
    pub private_state: Counter,
    /// Its smoothed round trip in nanoseconds; zero while unknown.
    pub private_rtt_ns: Counter,
    /// Its lost packets of a million.
    pub private_loss_ppm: Counter,
    /// TLPs numbered and not committed by the peer.
    pub in_flight: Counter,
    /// Their bytes.
    pub replay_bytes: Counter,
    /// Accesses that were not granted, or where nothing is.
    pub denied_accesses: Counter,
    /// Completions that belong to no request.
    pub unexpected_completions: Counter,
    /// TLPs that no function or driver can act on.
    pub malformed_tlps: Counter,
    /// Requests without completion in time.
    pub completion_timeouts: Counter,
    /// Device information frames of the lender.
    pub information_frames: Counter,
    /// Bytes of a borrowed drive, once they are known, or of the namespaces of a lent function.
    pub drive_bytes: Counter,
    /// 0: unknown; 1: writable; 2: read-only.
    pub drive_rights: Counter,
    /// Of a lent function: 1 while each flush fails because the medium has lost something.
    pub media_fault: Counter,
    /// Of a borrowed drive: 1 while writes that were answered are lost and no flush has said so.
    pub has_lost: Counter,
    /// Of a borrowed drive: writes that were answered and are not flushed.
    pub kept_writes: Counter,
    /// The peer's name and node.
    pub peer_name: [Counter; 4],
    /// The peer's node id.
    pub peer_node: Counter,
}
