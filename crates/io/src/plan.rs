//! What an agent tells a card when it starts it, and what both share beside the ledger.

mod coming;
mod header;

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;

use base::RuleSet;
use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId, LoanGeneration, NodeId, RailId};
use base::ledger::{Layout, PAGE_SIZE, RawMemory};
use node::{
    BorrowEdge, CardConfig, DriveConfig, EDGE_CONNECTIONS, FlashConfig, FlashRates, FunctionId, KEY_BYTES,
    Lender, Limit, LoanConfig, LoanRole, MAX_LOANS, MAX_RAILS, Name, NamespaceConfig, NodeKey, Protection,
    PublicKey, RailConfig, Route, Tenancy, WriteCache,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::coming::{AllowedPlan, DriveComing, PlacedLoan};
use self::header::{Header, PlanError};
use crate::address::RailAddress;
use crate::card::InHand;
use crate::impair::Impairment;
use crate::load::LoadSpec;
use crate::memory::{self, Mapping};
use crate::pulse::Pulse;
use crate::ring::RingParameters;
use crate::stream_socket::StreamAccount;
use crate::whereabouts::WhereaboutsPlan;

/// Descriptor numbers in a card.
pub(crate) mod descriptor {
    use std::os::fd::RawFd;

    /// The shared memory: [`super::SharedCells`], then the ledger.
    pub(crate) const MEMORY: RawFd = 3;
    /// The [`super::Plan`].
    pub(crate) const PLAN: RawFd = 4;
    /// Messages between agent and card.
    pub(crate) const MESSAGES: RawFd = 5;
    /// The ring, if there is one.
    pub(crate) const RING: RawFd = 6;
    /// When images were written last.
    pub(crate) const LAST_WRITES: RawFd = 7;
    /// The first rail; then the others, then the images of the lent drives in their order.
    pub(crate) const FIRST: RawFd = 8;
}

/// Everything a card has to know that is not in the ledger. Contains keys: travels in memory, never as an argument.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct Plan {
    pub(crate) agent_pid: i32,
    /// The private half of its key pair.
    pub(crate) private: [u8; KEY_BYTES],
    pub(crate) name: String,
    pub(crate) domain: u32,
    pub(crate) incarnation: u64,
    pub(crate) life: [u8; 16],
    pub(crate) generation: u64,
    pub(crate) seed: [u8; 32],
    #[serde(with = "ProtectionPlan")]
    pub(crate) protection: Protection,
    /// The machine may go on somewhere else with the keys in the ledger.
    pub(crate) renews_keys: bool,
    /// It was restored, and calls itself by this life since.
    pub(crate) restored_as: Option<[u8; 16]>,
    pub(crate) has_ring: bool,
    pub(crate) rails: Vec<RailPlan>,
    /// `None`: no drive is in this place.
    pub(crate) drives: Vec<Option<DrivePlan>>,
    pub(crate) loans: Vec<LoanPlan>,
    /// Where those are who have something of this node.
    pub(crate) holders: Vec<WhereaboutsPlan>,
}

impl Drop for Plan {
    fn drop(&mut self) {
        crate::memory::wipe(&mut self.seed);
        crate::memory::wipe(&mut self.private);
    }
}

impl Drop for LoanPlan {
    fn drop(&mut self) {
        crate::memory::wipe(&mut self.secret);
    }
}

/// Counts what would be written.
#[derive(Default)]
struct Length(usize);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct RailPlan {
    pub(crate) max_frame: usize,
    pub(crate) offload: bool,
}

/// A drive that is lent: as in [`DriveConfig`], where other fields are what they are by default.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct DrivePlan {
    /// The descriptor of the image in the card.
    pub(crate) image: RawFd,
    pub(crate) medium: MediumKind,
    pub(crate) flash: Option<FlashPlan>,
    pub(crate) blocks: u64,
    pub(crate) block_size: u32,
    pub(crate) read_only: bool,
    pub(crate) cache: CachePlan,
    pub(crate) unique_id: u64,
    pub(crate) functions: u16,
    pub(crate) namespaces: Vec<NamespacePlan>,
    pub(crate) zeroes_deallocated: bool,
    pub(crate) keeps_state: bool,
    pub(crate) saved: Option<Vec<u8>>,
    /// Something of it may be lost that no card may have told.
    pub(crate) has_lost: bool,
    /// So often an operator has seen to it.
    pub(crate) cleared: u64,
}

/// As [`WriteCache`].
#[derive(Clone, Copy, Serialize, Deserialize, Layout)]
pub(crate) enum CachePlan {
    Absent,
    Hidden,
    Shown { keeper: u64 },
}

impl From<WriteCache> for CachePlan {
    fn from(cache: WriteCache) -> Self {
        match cache {
            WriteCache::Absent => Self::Absent,
            WriteCache::Hidden => Self::Hidden,
            WriteCache::Shown { keeper } => Self::Shown { keeper },
        }
    }
}

impl From<CachePlan> for WriteCache {
    fn from(cache: CachePlan) -> Self {
        match cache {
            CachePlan::Absent => Self::Absent,
            CachePlan::Hidden => Self::Hidden,
            CachePlan::Shown { keeper } => Self::Shown { keeper },
        }
    }
}

/// A namespace of a new drive, as in [`NamespaceConfig`].
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct NamespacePlan {
    pub(crate) blocks: u64,
    pub(crate) block_size: u32,
    pub(crate) read_only: bool,
    pub(crate) shared: bool,
    pub(crate) controllers: Vec<u16>,
}

/// A limit of a function; 0 for none, as a limit of zero cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct LimitPlan {
    pub(crate) iops: u64,
    pub(crate) bytes_per_s: u64,
}

impl LimitPlan {
    pub(crate) fn of(limit: Limit) -> Self {
        Self { iops: limit.iops().unwrap_or(0), bytes_per_s: limit.bytes_per_s().unwrap_or(0) }
    }

    pub(crate) fn limit(self) -> Limit {
        let some = |rate: u64| (rate != 0).then_some(rate);
        Limit::new(some(self.iops), some(self.bytes_per_s)).expect("zeroes were left out")
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct LoanPlan {
    pub(crate) secret: [u8; 32],
    pub(crate) function: u32,
    pub(crate) group: u16,
    pub(crate) generation: u64,
    pub(crate) tenancy: TenancyPlan,
    pub(crate) life: u32,
    pub(crate) least_incarnation: u64,
    pub(crate) role: RolePlan,
}

/// What of `wanted` this processor is good at: AEGIS without instructions for AES would be slow, and could be listened
/// to by the time it takes.
pub(crate) fn feasible(wanted: Protection) -> Protection {
    #[cfg(target_arch = "x86_64")]
    let has_aes = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    if wanted == Protection::Aegis && !has_aes { Protection::Aes256Gcm } else { wanted }
}

/// [`Protection`], on its way into a card.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Protection")]
enum ProtectionPlan {
    Aegis,
    Aes256Gcm,
    Insecure,
}

/// [`Tenancy`], on its way between an agent and its card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct TenancyPlan {
    number: u64,
    node: [u8; NodeId::BYTES],
    life: [u8; 16],
    name: [u8; 32],
    is_held: bool,
}

impl From<Tenancy> for TenancyPlan {
    fn from(tenancy: Tenancy) -> Self {
        let Tenancy { number, node, life, name, is_held } = tenancy;
        Self { number, node: node.0, life: life.0, name: name.to_bytes(), is_held }
    }
}

impl From<TenancyPlan> for Tenancy {
    fn from(plan: TenancyPlan) -> Self {
        let TenancyPlan { number, node, life, name, is_held } = plan;
        Self { number, node: NodeId(node), life: LifeId(life), name: Name::from_bytes(name), is_held }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) enum RolePlan {
    Lend {
        drive: usize,
        controller: u16,
        limit: LimitPlan,
        /// The nodes that may have it; `None`: all that have its line.
        allowed: Option<Vec<[u8; NodeId::BYTES]>>,
    },
    Borrow {
        /// The lender's public key.
        lender: [u8; KEY_BYTES],
        domain: u32,
        routes: Vec<RoutePlan>,
        io_timeout_ms: u64,
        /// The card itself uses the drive.
        load: Option<LoadSpec>,
        /// A virtual machine uses it, in this domain of its own.
        machine: Option<u32>,
    },
    /// Nothing is in this place.
    Vacant {
        /// A virtual machine may still be connected to it.
        is_slot: bool,
    },
}

/// As [`Route`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct RoutePlan {
    /// The lender's rail.
    pub(crate) rail: u8,
    pub(crate) peer: RailAddress,
    pub(crate) max_frame: usize,
}

/// [`FlashConfig`], on its way into a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct FlashPlan {
    read: RatesPlan,
    write: RatesPlan,
    channels: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
struct RatesPlan {
    iops: u64,
    bytes_per_s: u64,
    latency: Duration,
}

impl From<FlashConfig> for FlashPlan {
    fn from(config: FlashConfig) -> Self {
        let rates = |rates: FlashRates| RatesPlan {
            iops: rates.iops,
            bytes_per_s: rates.bytes_per_s,
            latency: rates.latency,
        };
        Self { read: rates(config.read), write: rates(config.write), channels: config.channels }
    }
}

impl From<FlashPlan> for FlashConfig {
    fn from(plan: FlashPlan) -> Self {
        let rates = |rates: RatesPlan| FlashRates {
            iops: rates.iops,
            bytes_per_s: rates.bytes_per_s,
            latency: rates.latency,
        };
        Self { read: rates(plan.read), write: rates(plan.write), channels: plan.channels }
    }
}

/// How a medium is driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, Layout)]
pub enum MediumKind {
    /// In memory: system calls in the card's own thread.
    Inline,
    /// A disk, through the agent's io_uring.
    Ring,
    /// A disk, with plain system calls in threads: where io_uring is forbidden.
    Threads,
}

impl MediumKind {
    /// As `status` names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "memory",
            Self::Ring => "ring",
            Self::Threads => "threads",
        }
    }
}

/// What agent and card share beside the ledger: kept by the kernel or by the agent, and never part of an undo.
#[derive(Layout)]
#[repr(C)]
pub(crate) struct SharedCells {
    pub(crate) ring: RingParameters,
    pub(crate) impairments: [Impairment; MAX_RAILS],
    /// By loan and connection; a slot has one.
    pub(crate) edges: [[EdgeAccounts; EDGE_CONNECTIONS]; MAX_LOANS],
    pub(crate) in_hand: InHand,
    /// That the card works.
    pub(crate) pulse: Pulse,
}

/// The positions of both directions of a connection.
#[derive(Layout)]
#[repr(C)]
pub(crate) struct EdgeAccounts {
    pub(crate) received: StreamAccount,
    pub(crate) sent: StreamAccount,
}

/// Where the ledger begins in the shared memory, behind [`SharedCells`]: it goes to the end, and may grow.
pub(crate) const LEDGER_OFFSET: usize = size_of::<SharedCells>().next_multiple_of(PAGE_SIZE);
/// Bytes for which a card keeps addresses free: more than any ledger comes to have, so it never has to map it anew.
pub(crate) const REACH: usize = 1 << 36;

/// The ledger in the shared memory, and what lies before it.
///
/// # Errors
/// The mapping is too small for what every version has there.
///
/// # Safety
/// No other thread of this process changes the ledger; see [`RawMemory::new`].
pub(crate) unsafe fn parts_of(mapping: &Mapping) -> std::io::Result<(RawMemory<'_>, &SharedCells)> {
    if mapping.len() <= LEDGER_OFFSET {
        return Err(std::io::Error::other("the shared memory is too small to hold a ledger"));
    }
    let ledger = NonNull::new(mapping.at::<u8>(LEDGER_OFFSET)).expect("a mapping does not begin at zero");
    let [bytes, reach] = [mapping.len(), mapping.reach()].map(|end| end - LEDGER_OFFSET);
    // SAFETY: initialised memory up to the end of the mapping, page aligned, mapped as long as that is borrowed; nothing
    // else comes behind it.
    let memory = unsafe { RawMemory::growing(ledger, bytes, reach) };
    // SAFETY: the cells begin the mapping, consist of atomics and plain words, and any bytes are valid.
    Ok((memory, unsafe { &*mapping.at::<SharedCells>(0) }))
}

impl Plan {
    /// The plan in memory of its own, behind its header. No other copy of its keys is made.
    ///
    /// # Errors
    /// What making the memory returned.
    pub(crate) fn write(&self) -> std::io::Result<OwnedFd> {
        write_text(self.identity().id(), self)
    }

    /// Reads what [`Plan::write`] has written, and wipes it: it has keys in it.
    ///
    /// # Errors
    /// It is no plan of this program, or cannot be mapped.
    pub(crate) fn take(fd: OwnedFd) -> std::io::Result<Self> {
        let (node, plan) = take_text::<Self>(fd)?;
        let named = plan.identity().id();
        if named != node {
            return Err(std::io::Error::other(PlanError::OtherNode(node, named)));
        }
        Ok(plan)
    }

    fn identity(&self) -> NodeKey {
        NodeKey::new(self.private)
    }

    /// The places that virtual machines use.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        let slots = self.loans.iter().enumerate().filter(|(_, loan)| loan.is_slot());
        slots.map(|(index, _)| index)
    }

    /// What the card proper is told.
    pub(crate) fn card_config(&self) -> CardConfig {
        CardConfig {
            identity: self.identity(),
            name: Name::new(&self.name),
            domain: DomainId(self.domain),
            incarnation: Incarnation(self.incarnation),
            life: LifeId(self.life),
            restored_as: self.restored_as.map(LifeId),
            generation: CardGeneration(self.generation),
            seed: self.seed,
            protection: self.protection,
            rails: std::array::from_fn(|rail| {
                self.rails.get(rail).map(|rail| RailConfig { max_frame: rail.max_frame })
            }),
            drives: self
                .drives
                .iter()
                .map(|drive| drive.as_ref().map_or_else(no_drive, DrivePlan::config))
                .collect(),
            loans: self.loans.iter().map(LoanPlan::config).collect(),
            holders: self.holders.iter().cloned().map(Into::into).collect(),
            rekey_frames: node::REKEY_FRAMES,
            rules: RuleSet::ALL,
        }
    }
}

/// Text in memory of its own, behind a header.
fn write_text<T: Serialize>(node: NodeId, value: &T) -> std::io::Result<OwnedFd> {
    let mut length = Length::default();
    serde_json::to_writer(&mut length, value)?;
    let fd = memory::create("causeway-plan", Header::BYTES + length.0)?;
    let mapping = Mapping::shared(fd.as_fd())?;
    // SAFETY: the mapping is new, has these bytes, and nobody else has it yet.
    let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), mapping.len()) };
    let (header, text) = bytes.split_at_mut(Header::BYTES);
    header.copy_from_slice(&Header::new(node, length.0).to_bytes());
    serde_json::to_writer(text, value)?;
    Ok(fd)
}

/// What [`write_text`] has written, for which node, and wipes it.
fn take_text<T: for<'de> Deserialize<'de>>(fd: OwnedFd) -> std::io::Result<(NodeId, T)> {
    let mapping = Mapping::shared(fd.as_fd())?;
    // SAFETY: whoever has written it does not touch it any more.
    let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), mapping.len()) };
    let taken = Header::parse(bytes)
        .map_err(std::io::Error::other)
        .and_then(|(header, text)| Ok((header.node, serde_json::from_slice(text)?)));
    memory::wipe(bytes);
    taken
}

impl DrivePlan {
    /// The plan for a drive whose image has this descriptor in the card.
    pub(crate) fn new(
        config: &DriveConfig,
        image: RawFd,
        medium: MediumKind,
        flash: Option<FlashConfig>,
    ) -> Self {
        let namespace = |it: &NamespaceConfig| NamespacePlan {
            blocks: it.blocks,
            block_size: it.block_size,
            read_only: it.read_only,
            shared: it.shared,
            controllers: it.controllers.clone(),
        };
        Self {
            image,
            medium,
            flash: flash.map(FlashPlan::from),
            blocks: config.blocks,
            block_size: config.block_size,
            read_only: config.read_only,
            cache: config.cache.into(),
            unique_id: config.unique_id,
            functions: config.functions,
            namespaces: config.namespaces.iter().map(namespace).collect(),
            zeroes_deallocated: config.zeroes_deallocated,
            keeps_state: config.keeps_state,
            saved: config.saved.clone(),
            has_lost: false,
            cleared: 0,
        }
    }

    pub(crate) fn config(&self) -> DriveConfig {
        let namespace = |it: &NamespacePlan| NamespaceConfig {
            blocks: it.blocks,
            block_size: it.block_size,
            read_only: it.read_only,
            shared: it.shared,
            controllers: it.controllers.clone(),
        };
        DriveConfig {
            read_only: self.read_only,
            cache: self.cache.into(),
            functions: self.functions,
            namespaces: self.namespaces.iter().map(namespace).collect(),
            zeroes_deallocated: self.zeroes_deallocated,
            keeps_state: self.keeps_state,
            saved: self.saved.clone(),
            ..DriveConfig::new(self.blocks, self.block_size, self.unique_id)
        }
    }
}

impl RoutePlan {
    /// `None`: there can be no such rail.
    fn route(&self) -> Option<Route> {
        Some(Route { rail: RailId::new(self.rail)?, peer: self.peer.into(), max_frame: self.max_frame })
    }
}

/// Without its secret.
impl std::fmt::Debug for LoanPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoanPlan")
            .field("function", &self.function)
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

impl LoanPlan {
    /// Whether a virtual machine uses the place.
    pub(crate) fn is_slot(&self) -> bool {
        matches!(self.role, RolePlan::Borrow { machine: Some(_), .. } | RolePlan::Vacant { is_slot: true })
    }

    pub(crate) fn config(&self) -> LoanConfig {
        let role = match &self.role {
            RolePlan::Lend { drive, controller, limit, allowed } => LoanRole::Lend {
                drive: *drive,
                controller: *controller,
                limit: limit.limit(),
                allowed: allowed.as_ref().map(|ids| ids.iter().copied().map(NodeId).collect()),
            },
            RolePlan::Borrow { lender, domain, routes, io_timeout_ms, machine, load } => LoanRole::Borrow {
                lender: Lender { key: PublicKey(*lender), domain: DomainId(*domain) },
                routes: routes.iter().filter_map(RoutePlan::route).collect(),
                io_timeout: Duration::from_millis(*io_timeout_ms),
                edge: match (*machine, load) {
                    (Some(domain), _) => BorrowEdge::Slot { domain: DomainId(domain) },
                    (None, Some(_)) => BorrowEdge::Program,
                    (None, None) => BorrowEdge::Drive,
                },
            },
            RolePlan::Vacant { .. } => LoanRole::Vacant,
        };
        LoanConfig {
            secret: self.secret,
            function: FunctionId(self.function),
            group: Group(self.group),
            generation: LoanGeneration(self.generation),
            tenancy: self.tenancy.into(),
            life: self.life,
            least_incarnation: Incarnation(self.least_incarnation),
            role,
        }
    }
}

/// What stands where no drive is: nobody lends a function of it.
fn no_drive() -> DriveConfig {
    DriveConfig::new(1, 512, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let loan = LoanPlan {
            secret: [0x5a; 32],
            function: 1,
            group: 1,
            generation: 0,
            tenancy: Tenancy::default().into(),
            least_incarnation: 0,
            life: 0,
            role: RolePlan::Lend {
                drive: 0,
                controller: 0,
                limit: LimitPlan { iops: 0, bytes_per_s: 0 },
                allowed: None,
            },
        };
        Plan {
            agent_pid: 1,
            private: *NodeKey::numbered(2).reveal(),
            name: "store".to_owned(),
            domain: 3,
            incarnation: 4,
            life: [0; 16],
            generation: 5,
            seed: [6; 32],
            renews_keys: false,
            protection: Protection::Aegis,
            restored_as: None,
            has_ring: false,
            rails: Vec::new(),
            drives: Vec::new(),
            loans: vec![loan],
            holders: Vec::new(),
        }
    }

    #[test]
    fn a_plan_is_taken_once_and_leaves_nothing() {
        let fd = plan().write().unwrap();
        let seen = Mapping::shared(fd.as_fd()).unwrap();
        // SAFETY: nobody writes meanwhile.
        let bytes = || unsafe { std::slice::from_raw_parts(seen.as_ptr(), seen.len()).to_vec() };
        assert!(String::from_utf8_lossy(&bytes()).contains("90,90,90"), "the secret is in it");
        let taken = Plan::take(fd).unwrap();
        assert_eq!((taken.loans[0].secret, taken.seed, taken.name.as_str()), ([0x5a; 32], [6; 32], "store"));
        assert!(bytes().iter().all(|byte| *byte == 0), "and was wiped");
    }

    #[test]
    fn what_is_another_plan_is_refused_by_name_and_wiped() {
        let refused = |at: usize, value: u64| {
            let fd = plan().write().unwrap();
            let seen = Mapping::shared(fd.as_fd()).unwrap();
            // SAFETY: nobody else has it mapped now.
            let bytes = unsafe { std::slice::from_raw_parts_mut(seen.as_ptr(), seen.len()) };
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            let why = Plan::take(fd).err().unwrap().to_string();
            assert!(bytes.iter().all(|byte| *byte == 0), "{why}");
            why
        };
        assert!(refused(0, 7).contains("no plan"));
        let layout = refused(8, 7);
        assert!(layout.contains("0000000000000007") && layout.contains("another version"), "{layout}");
        assert!(refused(16, u64::MAX).contains("is to have 18446744073709551615 bytes"));
        let node = refused(24, 3);
        assert!(
            node.contains("of node 0") && node.ends_with(&NodeKey::numbered(2).id().to_string()),
            "{node}"
        );
        let short = memory::create("test", 8).unwrap();
        assert!(Plan::take(short).err().unwrap().to_string().contains("no plan"));
    }
}
