#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use base::RuleSet;
use base::ids::{DomainId, Group, LifeId, NodeId, RailId};
use base::ledger::{
    Arena, Cell, Counter, Hook, Journal, Layout, LayoutHash, Ledger, LedgerRoot, Owned, Owner, PageCells,
    RawMemory, Region, RegionError, RegionTable, Regions, region_bytes,
};
use host::nbd::ServerCells;
use host::vfio_user::SessionCells;
use link::pair::{ChannelCells, ClaimCells, LobbyCells, OfferCells};
use link::{Name, PathId, PublicKey, StreamCells};
use pcie::Bdf;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::config::{BorrowEdge, CardConfig, LoanConfig, LoanRole};
use crate::denial::{Denial, Right};
use crate::parts::{DriveCells, DriverCells, FunctionCells};
use crate::sightings::Sightings;
use crate::slot::SlotCells;

/// Most loans of a node, lent and borrowed together: as many as have room in the aperture of its domain.
pub const MAX_LOANS: usize = 1024;
/// Most drives that a node lends, each with at least one loan. A card looks at each of them in every turn.
pub const MAX_DRIVES: usize = 256;
/// Most slots of virtual machines among the loans: each has its share of the descriptors that a process may have.
pub const MAX_SLOTS: usize = 80;
/// Most rails of a node.
pub const MAX_RAILS: usize = link::frame::MAX_RAILS;

/// The root of a node's ledger. What loans and drives have lies behind it, in regions.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct NodeCells {
    /// What the card has counted beside its loans.
    pub gauges: Gauges,
    /// What it has seen of other nodes.
    pub sightings: Sightings,
    /// Who has called.
    pub lobby: LobbyCells,
    /// Who has what of the rest.
    regions: RegionTable,
}

/// What every loan has that outlives a card.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct LoanCells {
    /// Of a borrower: how that begins and ends.
    pub claim: ClaimCells,
    /// The same of a lender.
    pub offer: OfferCells,
    /// Of a borrower: number of its [`link::Tenancy`]; 0 before the first.
    pub tenancy: Cell<u64>,
    /// The same: of which fork of its lender it knows ([`link::pair::Channel::fork`]).
    pub(crate) fork: Cell<LifeId>,
    /// The place of the peer that the stream is with, counted from 1; 0: with none yet.
    pub(crate) peer: Cell<u32>,
    /// Of a borrower: not 0 if its agent may not have heard that another node has used the drive.
    pub(crate) untold: Cell<u32>,
    /// For the agent to read.
    pub edge: EdgeGauges,
    /// What flows. The last, since it is long, and a new card looks at its beginning only.
    pub stream: StreamCells,
}

impl EndCells<'_> {
    /// What such a loan is for.
    pub fn kind(&self) -> LoanKind {
        match self {
            Self::Lent(_) => LoanKind::Lend,
            Self::Drive { .. } => LoanKind::Drive,
            Self::Slot { .. } => LoanKind::Slot,
        }
    }
}

impl LoanParts<'_> {
    /// Where what this end asks for begins in the aperture of the other one's domain: as that has told of a function.
    pub fn leads_to(&self) -> u64 {
        match self.end {
            EndCells::Lent(_) => 0,
            EndCells::Drive { .. } | EndCells::Slot { .. } => self.cells.claim.base(),
        }
    }

    /// What requests of this end bear in the domain of the other one, once the stream has been open.
    pub fn known_as(&self) -> Bdf {
        match self.end {
            EndCells::Lent(_) => self.cells.offer.host(),
            EndCells::Drive { .. } | EndCells::Slot { .. } => self.cells.claim.requester(),
        }
    }
}

impl LoanCells {
    /// The place of the peer that the stream is with, if it is with any.
    pub fn peer(&self) -> Option<usize> {
        (self.peer.get() as usize).checked_sub(1)
    }
}

/// What there is of a node that this one has a channel with.
#[derive(FromBytes, Layout)]
#[repr(C)]
pub struct PeerCells {
    /// The channel.
    pub channel: ChannelCells,
    /// Where the node is, by path, since a node may be known by another address on each rail of ours: what has answered
    /// a challenge, else where it is said to be.
    pub(crate) addresses: [Cell<Address>; MAX_RAILS * MAX_RAILS],
    /// Whose place it is; all zeroes: nobody's.
    key: Cell<PublicKey>,
    /// 1: of a node with itself, the end that calls.
    pub(crate) calls_itself: Cell<u32>,
    /// By path, as bits: the address has answered a challenge.
    pub(crate) proven: Cell<u32>,
    /// The group of the channel.
    pub(crate) group: Cell<u16>,
    pub(crate) reserved: [Cell<u16>; 3],
}

impl PeerCells {
    /// Whose place it is, if it is anybody's.
    pub fn key(&self) -> Option<PublicKey> {
        Some(self.key.get()).filter(|key| *key != PublicKey::default())
    }

    /// Whose place it is from now on.
    pub(crate) fn set_key(&self, journal: Journal<'_>, key: Option<PublicKey>) {
        self.key.set(journal, key.unwrap_or_default());
    }

    /// The node, if the place is anybody's.
    pub fn node(&self) -> Option<NodeId> {
        self.key().map(|key| key.id())
    }

    /// The group of the channel with it.
    pub fn group(&self) -> Group {
        Group(self.group.get())
    }

    /// Where the node is on this path, if that is known.
    pub fn address(&self, path: PathId) -> Option<Address> {
        self.addresses.get(path.index())?.get().known()
    }

    /// Where the node is, by path, as far as that is known.
    pub fn addresses(&self) -> impl Iterator<Item = (PathId, Address)> {
        let paths = RailId::ALL.into_iter().flat_map(|own| RailId::ALL.map(|peer| PathId::new(own, peer)));
        paths.filter_map(|path| Some((path, self.address(path)?)))
    }

    /// Where frames from a rail of ours to one of the node go: to where it is on that path, else where others have
    /// found its rail.
    pub fn address_between(&self, own: RailId, peer: RailId) -> Option<Address> {
        self.address(PathId::new(own, peer)).or_else(|| self.proven_address(peer))
    }

    /// Where the node has a rail, as it has proven: on the path between equal rails, else on another one.
    pub(crate) fn proven_address(&self, peer: RailId) -> Option<Address> {
        let proven = self.proven.get();
        let own = [peer].into_iter().chain(RailId::ALL);
        let mut paths = own.map(|own| PathId::new(own, peer));
        paths.find(|path| proven & 1 << path.index() != 0).and_then(|path| self.address(path))
    }

    /// Whether it is, of a node with itself, the end that calls.
    pub fn calls_itself(&self) -> bool {
        self.calls_itself.get() != 0
    }
}

/// The regions, by kind.
macro_rules! regions {
    ($($kind:literal: $cells:ty $(, $clear:expr)?;)+) => {
    $(
        impl Region for Kept<$cells> {
            const KIND: u32 = $kind;
            $(fn clear(&self, journal: Journal<'_>) {
                let clear: fn(&$cells, Journal<'_>) = $clear;
                clear(&self.0, journal);
            })?
        }
    )+

        /// Each kind with its layout.
        const REGIONS: &[(u32, LayoutHash)] = &[$(($kind, <$cells as Layout>::LAYOUT)),+];
    };
}

/// Cells as a region of their own. Numbers are never used for anything else.
#[derive(FromBytes, Layout)]
#[repr(transparent)]
struct Kept<C>(C);

regions! {
    1: LoanCells;
    // The payload pages of a loan. What is in them means nothing until they are taken.
    2: PageCells, PageCells::clear;
    3: DriveCells;
    4: FunctionCells;
    5: DriverCells;
    6: ServerCells;
    7: SessionCells;
    8: SlotCells;
    9: PeerCells;
}

impl NodeLedger<'_> {
    /// What stands for the layout of a ledger: of everything that may lie in it.
    pub const LAYOUT: LayoutHash = {
        let mut layout = LedgerRoot::<NodeCells>::LAYOUT;
        let mut at = 0;
        while at < REGIONS.len() {
            let (kind, cells) = REGIONS[at];
            layout = layout.number(kind as u64).number(cells.0);
            at += 1;
        }
        layout
    };
}

/// Whose the regions of a drive are: of one life of its place, so a drive that comes to the place of another one has
/// others.
pub(crate) fn drive_owner(drive: usize, life: u64) -> Owner {
    Owner { name: DRIVES | drive as u64, life }
}

/// Tells owners that are drives from loans.
const DRIVES: u64 = 1 << 63;
/// And peers from both.
const PEERS: u64 = 1 << 62;

/// Peers that a node has room for beside those of its loans: who asks for what another has, or has lost.
pub(crate) const SPARE_PEERS: usize = 16;

/// How many peers a node has room for that has so many loans.
pub(crate) fn peer_places(loans: usize) -> usize {
    loans + SPARE_PEERS
}

/// Whose the region of a peer is.
fn peer_owner(place: usize) -> Owner {
    Owner { name: PEERS | place as u64, life: 0 }
}

/// Whose the regions of a loan are: of one life of its place, so the next one has others.
pub(crate) fn loan_owner(place: usize, life: u64) -> Owner {
    Owner { name: place as u64, life }
}

/// What a loan is for, as far as its cells go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoanKind {
    /// It lends a function.
    Lend,
    /// It borrows one, for blocks.
    Drive,
    /// It borrows one, for a virtual machine.
    Slot,
}

impl LoanKind {
    /// The regions of such a loan: kind and bytes.
    fn regions(self) -> Vec<(u32, usize)> {
        let own = match self {
            Self::Lend => vec![of::<FunctionCells>()],
            Self::Drive => vec![of::<DriverCells>(), of::<ServerCells>()],
            Self::Slot => vec![of::<SessionCells>(), of::<SlotCells>()],
        };
        [of::<LoanCells>(), of::<PageCells>()].into_iter().chain(own).collect()
    }
}

/// Kind and bytes of a region of these cells.
fn of<C>() -> (u32, usize)
where
    Kept<C>: Region,
{
    (Kept::<C>::KIND, region_bytes::<Kept<C>>())
}

impl LoanRole {
    /// What the loan is for; nothing where there is none.
    pub fn kind(&self) -> Option<LoanKind> {
        match self {
            Self::Lend { .. } => Some(LoanKind::Lend),
            Self::Borrow { edge: BorrowEdge::Drive | BorrowEdge::Program, .. } => Some(LoanKind::Drive),
            Self::Borrow { edge: BorrowEdge::Slot { .. }, .. } => Some(LoanKind::Slot),
            Self::Vacant | Self::VacantSlot => None,
        }
    }

    /// What there is room for in the ledger: a slot has it before its loan comes, so that a card can take that, and
    /// until its machine is gone.
    pub fn room(&self) -> Option<LoanKind> {
        if matches!(self, Self::VacantSlot) { Some(LoanKind::Slot) } else { self.kind() }
    }
}

/// The cells of a loan, each found once.
#[derive(Clone, Copy)]
pub struct LoanParts<'m> {
    /// What every loan has.
    pub cells: &'m LoanCells,
    /// The payload pages, shared by stream, function, driver and edge.
    pub pages: &'m PageCells,
    /// What it has for its role.
    pub end: EndCells<'m>,
}

/// What a loan has for its role.
#[derive(Clone, Copy)]
pub enum EndCells<'m> {
    /// A lent function.
    Lent(&'m FunctionCells),
    /// A borrowed drive.
    Drive {
        /// Its driver.
        driver: &'m DriverCells,
        /// Its NBD edge.
        server: &'m ServerCells,
    },
    /// A slot.
    Slot {
        /// Its client.
        session: &'m SessionCells,
        /// Its function.
        slot: &'m SlotCells,
    },
}

/// The ledger of a node.
#[derive(Clone, Copy)]
pub struct NodeLedger<'m> {
    /// The undo log.
    pub journal: Journal<'m>,
    /// The root.
    pub root: &'m NodeCells,
    regions: Regions<'m>,
}

impl<'m> NodeLedger<'m> {
    /// Makes new memory the ledger of a node, or one that has grown: before a card has it.
    pub fn entitle(memory: RawMemory<'m>, node: NodeId) {
        memory.entitle(Self::LAYOUT, node);
    }

    /// The ledger in `memory`, which whoever uses it has made or checked.
    pub fn new(memory: RawMemory<'m>, hook: Option<&'m dyn Hook>, rules: RuleSet) -> Self {
        let Ledger { journal, root } = memory.ledger::<NodeCells>(hook, rules);
        Self { journal, root, regions: Regions::new::<NodeCells>(memory, journal, &root.regions) }
    }

    /// Its memory has grown where it lies.
    pub(crate) fn grow(&mut self, memory: RawMemory<'m>) {
        self.regions.grow(memory);
    }

    /// The cells of the loan that has `place` in this life, if it has any: for onlookers, to whom a corrupt table shows
    /// nothing.
    pub fn loan(&self, place: usize, life: u64) -> Option<LoanParts<'m>> {
        self.find_parts(loan_owner(place, life)).ok().flatten()
    }

    /// The cells of the drive that has `place` in this life, if a card has made it, for onlookers.
    pub fn drive(&self, place: usize, life: u64) -> Option<&'m DriveCells> {
        let cells: &DriveCells = find(&self.regions.of(drive_owner(place, life))).ok().flatten()?;
        cells.is_made().then_some(cells)
    }

    /// The cells of the peer in this place, for onlookers.
    pub fn peer(&self, place: usize) -> Option<&'m PeerCells> {
        find(&self.regions.of(peer_owner(place))).ok().flatten()
    }

    /// The peers that there are, with their places, for onlookers.
    pub fn peers(&self) -> impl Iterator<Item = (usize, &'m PeerCells)> + use<'m> {
        self.peer_regions().filter(|(_, cells)| cells.node().is_some())
    }

    /// The places for peers that have cells, be it that nobody has them.
    pub(crate) fn peer_regions(&self) -> impl Iterator<Item = (usize, &'m PeerCells)> + use<'m> {
        let place_of =
            |owner: Owner| (owner.name & (DRIVES | PEERS) == PEERS).then_some((owner.name & !PEERS) as usize);
        let all = self.regions.of_kind::<Kept<PeerCells>>();
        let mut present: Vec<_> =
            all.filter_map(|(owner, cells)| Some((place_of(owner)?, &cells.ok()?.0))).collect();
        present.sort_unstable_by_key(|(place, _)| *place);
        present.into_iter()
    }

    /// The cells of a place for a peer, for a card, in a step of its own.
    pub(crate) fn obtain_peer(&self, place: usize) -> Result<&'m PeerCells, RegionError> {
        self.obtain(peer_owner(place))
    }

    /// The cells of a peer, as they were in new memory: see [`Region::clear`].
    pub(crate) fn clear_peer(&self, place: usize) -> Result<&'m PeerCells, RegionError> {
        let kept: &Kept<PeerCells> = self.regions.obtain(peer_owner(place))?;
        kept.clear(self.journal);
        Ok(&kept.0)
    }

    /// The cells of all loans, for onlookers, found in one pass.
    pub fn loans(&self) -> LedgerLoans<'m> {
        LedgerLoans(self.regions.by_owner())
    }

    fn find_parts(&self, owner: Owner) -> Result<Option<LoanParts<'m>>, RegionError> {
        parts_in(&self.regions.of(owner))
    }

    /// The cells of a loan for a new card, in steps of their own: what they were if there are any, else new ones; of a
    /// vacant place what [`Self::retain`] has left there. `known` are those of all loans: whoever asks for one after
    /// the other does not search the table for each.
    pub(crate) fn parts(
        &self,
        place: usize,
        loan: &LoanConfig,
        known: &LedgerLoans<'m>,
    ) -> Result<Option<LoanParts<'m>>, RegionError> {
        let (owner, Some(kind)) = (loan_owner(place, loan.life), loan.role.kind()) else {
            return self.find_parts(loan_owner(place, loan.life));
        };
        if let Some(parts) = known.get(place, loan.life).filter(|parts| parts.end.kind() == kind) {
            return Ok(Some(parts));
        }
        self.obtain_parts(owner, kind).map(Some)
    }

    fn obtain_parts(&self, owner: Owner, kind: LoanKind) -> Result<LoanParts<'m>, RegionError> {
        // What a new card looks at in each of them, and in the end of the pages before, is to lie close together.
        let cells = self.obtain(owner)?;
        let end = match kind {
            LoanKind::Lend => EndCells::Lent(self.obtain(owner)?),
            LoanKind::Drive => EndCells::Drive { driver: self.obtain(owner)?, server: self.obtain(owner)? },
            LoanKind::Slot => EndCells::Slot { session: self.obtain(owner)?, slot: self.obtain(owner)? },
        };
        Ok(LoanParts { cells, pages: self.obtain(owner)?, end })
    }

    /// The cells of a drive that is lent.
    pub(crate) fn obtain_drive(&self, owner: Owner) -> Result<&'m DriveCells, RegionError> {
        self.obtain(owner)
    }

    /// Takes back what no loan of a configuration and none of these drives has any more. A slot that has become vacant
    /// keeps its cells until the place has another life: its machine may still be connected, and is answered.
    pub(crate) fn retain(&self, loans: &[LoanConfig], drives: impl IntoIterator<Item = Owner>) {
        let mut owners: BTreeSet<Owner> = drives.into_iter().collect();
        owners.extend(self.peers().map(|(place, _)| peer_owner(place)));
        let known = self.loans();
        for (place, loan) in loans.iter().enumerate() {
            let owner = loan_owner(place, loan.life);
            let is_slot = |parts: LoanParts<'_>| matches!(parts.end, EndCells::Slot { .. });
            if loan.role.kind().is_some() || known.get(place, loan.life).is_some_and(is_slot) {
                owners.insert(owner);
            }
        }
        self.regions.retain(|_, owner| owners.contains(&owner));
    }

    /// Bytes that the ledger takes up to its last region, be it used or not.
    ///
    /// # Errors
    /// Its table is corrupt.
    pub fn used_bytes(&self) -> Result<usize, RegionError> {
        self.regions.end()
    }

    fn obtain<C>(&self, owner: Owner) -> Result<&'m C, RegionError>
    where
        Kept<C>: Region,
        C: 'm,
    {
        self.regions.obtain::<Kept<C>>(owner).map(|kept| &kept.0)
    }
}

/// The cells of all loans, and of the peers that they are with.
pub struct LedgerLoans<'m>(BTreeMap<Owner, Owned<'m>>);

impl<'m> LedgerLoans<'m> {
    /// As [`NodeLedger::loan`].
    pub fn get(&self, place: usize, life: u64) -> Option<LoanParts<'m>> {
        self.0.get(&loan_owner(place, life)).and_then(|owned| parts_in(owned).ok().flatten())
    }

    /// Those that borrow: place, life and kind.
    pub fn borrowed(&self) -> impl Iterator<Item = (usize, u64, LoanKind)> {
        let loans = self.0.iter().filter(|(owner, _)| owner.name & (DRIVES | PEERS) == 0);
        loans.filter_map(|(owner, owned)| {
            let kind = parts_in(owned).ok()??.end.kind();
            (kind != LoanKind::Lend).then_some((owner.name as usize, owner.life, kind))
        })
    }

    /// As [`NodeLedger::peer`].
    pub fn peer(&self, place: usize) -> Option<&'m PeerCells> {
        self.0.get(&peer_owner(place)).and_then(|owned| find(owned).ok().flatten())
    }
}

fn parts_in<'m>(owned: &Owned<'m>) -> Result<Option<LoanParts<'m>>, RegionError> {
    let (cells, pages, end) = (find(owned)?, find(owned)?, end_in(owned)?);
    let (Some(cells), Some(pages), Some(end)) = (cells, pages, end) else { return Ok(None) };
    Ok(Some(LoanParts { cells, pages, end }))
}

fn end_in<'m>(owned: &Owned<'m>) -> Result<Option<EndCells<'m>>, RegionError> {
    if let Some(controller) = find(owned)? {
        return Ok(Some(EndCells::Lent(controller)));
    }
    if let Some((driver, server)) = find(owned)?.zip(find(owned)?) {
        return Ok(Some(EndCells::Drive { driver, server }));
    }
    let slot = find(owned)?.zip(find(owned)?);
    Ok(slot.map(|(session, slot)| EndCells::Slot { session, slot }))
}

fn find<'m, C>(owned: &Owned<'m>) -> Result<Option<&'m C>, RegionError>
where
    Kept<C>: Region,
    C: 'm,
{
    Ok(owned.find::<Kept<C>>()?.map(|kept| &kept.0))
}

/// Bytes of a ledger for these loans (place, life and kind) and so many drives: a new one, or one that has `before` and
/// is to be enough for what it does not have yet. What nobody of these has is had again by others of its kind.
///
/// # Errors
/// The table of that one is corrupt.
pub fn ledger_bytes(
    before: Option<NodeLedger<'_>>,
    loans: impl IntoIterator<Item = LoanKind>,
    drives: usize,
) -> Result<usize, RegionError> {
    let mut has: BTreeMap<u32, usize> = BTreeMap::new();
    for kind in before.iter().flat_map(|ledger| ledger.regions.kinds()) {
        *has.entry(kind).or_default() += 1;
    }
    let loans: Vec<LoanKind> = loans.into_iter().collect();
    let drives = (0..drives).map(|_| of::<DriveCells>());
    let peers = (0..peer_places(loans.len())).map(|_| of::<PeerCells>());
    let loans = loans.into_iter().flat_map(LoanKind::regions);
    let missing = loans.chain(drives).chain(peers).filter(|(kind, _)| {
        let left = has.get_mut(kind).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_none()
    });
    let end = before.map_or(Ok(LedgerRoot::<NodeCells>::SIZE), |ledger| ledger.used_bytes())?;
    Ok(end + missing.map(|(_, bytes)| bytes).sum::<usize>())
}

impl CardConfig {
    /// Zeroed memory for the ledger of such a card, for the simulator and for tests.
    pub fn new_memory<'m>(&self, arena: &'m Arena) -> RawMemory<'m> {
        let loans = self.loans.iter().filter_map(|loan| loan.role.kind());
        let bytes = ledger_bytes(None, loans, self.drives.len()).expect("there is no table yet");
        let memory = arena.zeroed_bytes(bytes);
        NodeLedger::entitle(memory, self.identity.id());
        memory
    }
}

/// The cells of a loan of its own, for tests of what it is made of.
#[cfg(test)]
pub(crate) fn parts_of<'m>(arena: &'m Arena, kind: LoanKind) -> (Journal<'m>, LoanParts<'m>) {
    let bytes = ledger_bytes(None, [kind], 0).expect("there is no table yet");
    let memory = arena.zeroed_bytes(bytes);
    let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
    (ledger.journal, ledger.obtain_parts(loan_owner(0, 0), kind).expect("the memory was made for it"))
}

/// The address of a peer on a rail, as the driver of the card wrote it: opaque here, but that all zeroes are none. It
/// begins with its kind; what kinds there are, and whether the rest makes sense, is the driver's affair.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Layout,
    Serialize,
    Deserialize,
)]
#[repr(transparent)]
pub struct Address(pub [u8; link::ADDRESS_BYTES]);

impl Address {
    /// What stands for none in the ledger and in messages.
    pub const NONE: Self = Self([0; link::ADDRESS_BYTES]);

    /// The address, if it is any.
    pub fn known(self) -> Option<Self> {
        Some(self).filter(|address| *address != Self::NONE)
    }
}

impl<A: Into<Address>> From<Option<A>> for Address {
    fn from(address: Option<A>) -> Self {
        address.map_or(Self::NONE, A::into)
    }
}

/// Counters and gauges of a card, read by the agent.
#[derive(FromBytes, Debug, Layout)]
#[repr(C)]
pub struct Gauges {
    /// Frames of another version.
    pub dropped_version: Counter,
    /// Datagrams that are no frames.
    pub dropped_malformed: Counter,
    /// Frames of no loan of this node.
    pub dropped_unknown: Counter,
    /// Frames that came on another rail of ours than their header says.
    pub dropped_misdirected: Counter,
    /// First messages of handshakes that were too many to look at.
    pub dropped_calls: Counter,
    /// When the card last ended its recovery, in nanoseconds of the clock it is driven by.
    pub recovered_at: Counter,
    /// Words that this card's roll-back restored.
    pub rolled_back: Counter,
}

/// Gauges of a loan, read by the agent.
#[derive(FromBytes, Debug, Layout)]
#[repr(C)]
pub struct EdgeGauges {
    /// [`link::State`] as a number.
    pub channel_state: Counter,
    /// When the peer was last heard, in nanoseconds of the card's clock.
    pub last_heard: Counter,
    /// Smoothed round trip of each rail in nanoseconds; zero while unknown.
    pub rtt_ns: [Counter; MAX_RAILS],
    /// Each rail of ours: 0 it leads to no rail of the peer, 1 it does not answer, 2 it answers.
    pub rail_state: [Counter; MAX_RAILS],
    /// To which rail of the peer the best path from each rail of ours leads, where it leads to any.
    pub rail_peer: [Counter; MAX_RAILS],
    /// Lost packets of a million, by rail.
    pub loss_ppm: [Counter; MAX_RAILS],
    /// Number of the [`link::Cipher`] that protects frames; 0 before the first peer.
    pub cipher: Counter,
    /// The path through shared memory: 0 none, 1 it does not answer, 2 it answers. Round trip and loss as of a rail.
    pub shm_state: Counter,
    /// Its smoothed round trip in nanoseconds; zero while unknown.
    pub shm_rtt_ns: Counter,
    /// Its lost packets of a million.
    pub shm_loss_ppm: Counter,
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
    /// See [`EdgeGauges::peer`].
    peer_name: [Counter; 4],
    peer_node: [Counter; 3],
    peer_domain: Counter,
    /// See [`EdgeGauges::last_denial`].
    denial: [Counter; 2],
}

impl EdgeGauges {
    /// Whom the loan has met last: node and name.
    pub fn peer(&self) -> Option<(NodeId, Name)> {
        let (mut node, mut name) = (NodeId::default(), [0; 32]);
        let words = self.peer_node.each_ref().map(|word| word.get().to_le_bytes());
        node.0.copy_from_slice(&words.as_flattened()[..NodeId::BYTES]);
        for (bytes, word) in name.as_chunks_mut::<8>().0.iter_mut().zip(&self.peer_name) {
            *bytes = word.get().to_le_bytes();
        }
        (!node.is_nobody()).then(|| (node, Name::from_bytes(name)))
    }

    /// The domain of whom the loan has met last: of a node, or of a virtual machine.
    pub fn peer_domain(&self) -> DomainId {
        DomainId(self.peer_domain.get() as u32)
    }

    /// Counts an access that was denied.
    pub(crate) fn deny(&self, requester: Bdf, address: u64, right: impl Into<Right>) {
        let words = Denial { requester, address, right: right.into() }.encode();
        self.denial.iter().zip(words).for_each(|(gauge, word)| gauge.set(word));
        self.denied_accesses.add(1);
    }

    /// The last access that was denied. `None` if there was none, or the next one is just being written.
    pub fn last_denial(&self) -> Option<Denial> {
        Denial::decode(self.denial.each_ref().map(Counter::get))
    }

    /// It has met this one.
    pub fn set_peer(&self, node: NodeId, name: Name, domain: DomainId) {
        self.peer_domain.set(domain.0.into());
        let mut padded = [0; 24];
        padded[..NodeId::BYTES].copy_from_slice(&node.0);
        let name = name.to_bytes();
        let words = padded.as_chunks::<8>().0.iter().chain(name.as_chunks::<8>().0);
        for (gauge, word) in self.peer_node.iter().chain(&self.peer_name).zip(words) {
            gauge.set(u64::from_le_bytes(*word));
        }
    }
}

/// The gauges of a place that has no loan: nobody changes them.
pub static NO_GAUGES: EdgeGauges = zerocopy::transmute!([0_u8; size_of::<EdgeGauges>()]);
