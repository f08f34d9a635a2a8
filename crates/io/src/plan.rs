//! What an agent tells a card when it starts it, and what both share beside the ledger.

mod header;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use base::ids::{NodeId, RailId};
use base::ledger::{Layout, PAGE_SIZE, RawMemory};
use node::{
    CardConfig, DriveConfig, EDGE_CONNECTIONS, FlashConfig, LoanConfig, MAX_LOANS, MAX_RAILS, Members,
    Protection, Whereabouts,
};
use serde::{Deserialize, Serialize};

use self::header::{Header, PlanError};
use crate::address::RailAddress;
use crate::card::InHand;
use crate::impair::ImpairmentCells;
use crate::load::LoadSpec;
use crate::memory::{self, Mapping};
use crate::messages::TakeOver;
use crate::pulse::Pulse;
use crate::ring::RingParameters;
use crate::stream_socket::StreamAccount;

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
}

/// Everything a card has to know that is not in the ledger. Contains keys: travels in memory, never as an argument.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct Plan {
    pub(crate) agent_pid: i32,
    /// What the card proper is told, but for what [`ToCard::TakeOver`](crate::messages::ToCard::TakeOver) brings.
    pub(crate) card: CardConfig,
    pub(crate) has_ring: bool,
    /// The rails in the order in which they are given.
    pub(crate) rails: Vec<(RailId, RailPlan)>,
    /// What the card's drives lie on, by place.
    pub(crate) media: Vec<(usize, MediumPlan)>,
    /// What the card itself does with drives that it borrows, by place of the loan.
    pub(crate) loads: Vec<(usize, LoadSpec)>,
    /// What it knows of its fabric, before the first frame is looked at.
    pub(crate) fabric: Option<Members>,
}

/// What a card is told of the socket of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct RailPlan {
    /// The kernel splits what it is given there.
    pub(crate) offload: bool,
    /// The switch that everything goes to, whoever it is for.
    pub(crate) gateway: Option<RailAddress>,
}

/// What a drive that is lent lies on.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct MediumPlan {
    pub(crate) kind: MediumKind,
    pub(crate) flash: Option<FlashConfig>,
    /// Something of it may be lost that no card may have told.
    pub(crate) has_lost: bool,
    /// So often an operator has seen to it.
    pub(crate) cleared: u64,
}

/// What a card that runs is told of a drive that is lent from now on, with the loans of its functions and their places.
/// Travels as a plan does, since it has keys in it and may be long; its image travels beside it.
#[derive(Clone, Serialize, Deserialize, Layout)]
pub(crate) struct DriveComing {
    pub(crate) config: DriveConfig,
    pub(crate) medium: MediumPlan,
    pub(crate) loans: Vec<(usize, LoanConfig)>,
    /// Where those are who have any of its functions.
    pub(crate) holders: Vec<Whereabouts>,
}

/// The nodes that may have what a drive lends, likewise; `None`: all that have its line.
pub(crate) type Allowed = Option<Box<[NodeId]>>;

/// What of `wanted` this processor is good at.
pub(crate) fn feasible(wanted: Protection) -> Protection {
    feasible_with(wanted, has_aes())
}

/// What of `wanted` a processor is good at: AEGIS without instructions for AES would be slow, and could be listened to
/// by the time it takes.
fn feasible_with(wanted: Protection, has_aes: bool) -> Protection {
    if wanted == Protection::Aegis && !has_aes { Protection::Aes256Gcm } else { wanted }
}

/// Whether this processor has instructions for AES.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
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
    pub(crate) impairments: [ImpairmentCells; MAX_RAILS],
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
pub(crate) unsafe fn parts_of(mapping: &Mapping) -> io::Result<(RawMemory<'_>, &SharedCells)> {
    if mapping.len() <= LEDGER_OFFSET {
        return Err(io::Error::other("the shared memory is too small to hold a ledger"));
    }
    let ledger = NonNull::new(mapping.at::<u8>(LEDGER_OFFSET)).expect("a mapping does not begin at zero");
    let [bytes, reach] = [mapping.len(), mapping.reach()].map(|end| end - LEDGER_OFFSET);
    // SAFETY: initialised memory up to the end of the mapping, page aligned, mapped as long as that is borrowed;
    // nothing else comes behind it.
    let memory = unsafe { RawMemory::growing(ledger, bytes, reach) };
    // SAFETY: the cells begin the mapping, consist of atomics and plain words, and any bytes are valid.
    Ok((memory, unsafe { &*mapping.at::<SharedCells>(0) }))
}

impl Plan {
    /// The plan in bytes.
    ///
    /// # Errors
    /// As of [`Encoded::of`].
    pub(crate) fn encode(&self) -> io::Result<Encoded> {
        Encoded::of(self.card.identity.id(), self)
    }

    /// Reads what [`Encoded::share`] has written, and wipes it: it has keys in it.
    ///
    /// # Errors
    /// It is no plan of this program, or cannot be mapped, or has a drive that cannot be.
    pub(crate) fn take(fd: OwnedFd) -> io::Result<Self> {
        let (node, plan) = take(fd)?;
        Self::checked(node, plan)
    }

    /// A plan that was read, and is for this node.
    fn checked(node: NodeId, plan: Self) -> io::Result<Self> {
        let named = plan.card.identity.id();
        if named != node {
            return Err(io::Error::other(PlanError::OtherNode(node, named)));
        }
        plan.card.drives.iter().flatten().try_for_each(DriveConfig::check).map_err(io::Error::other)?;
        Ok(plan)
    }

    /// Whoever has it is the card of its node.
    pub(crate) fn take_over(&mut self, order: TakeOver) {
        let TakeOver { generation, seed, restored_as, renews_keys: _ } = order;
        self.card.generation = generation;
        self.card.seed = seed;
        self.card.restored_as = restored_as;
    }

    /// The places that virtual machines use.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        let slots = self.card.loans.iter().enumerate().filter(|(_, loan)| loan.role.is_slot());
        slots.map(|(index, _)| index)
    }

    /// The drives that are lent, with what they lie on, by place.
    pub(crate) fn drives(&self) -> impl Iterator<Item = (usize, &DriveConfig, &MediumPlan)> {
        let drive = |place: usize| self.card.drives.get(place)?.as_ref();
        self.media.iter().filter_map(move |(place, medium)| Some((*place, drive(*place)?, medium)))
    }
}

/// A value in few bytes, since a card that starts reads them before all else, behind a header. There are keys in it: it
/// is wiped when it is dropped.
#[derive(PartialEq, Eq)]
pub(crate) struct Encoded(Vec<u8>);

impl Encoded {
    /// Of this node.
    ///
    /// # Errors
    /// The value cannot be written down.
    pub(crate) fn of<T: Serialize>(node: NodeId, value: &T) -> io::Result<Self> {
        let length = postcard::experimental::serialized_size(value).map_err(io::Error::other)?;
        // As long as it will be: one that grew would leave copies.
        let mut encoded = Self(vec![0; Header::BYTES + length]);
        let (header, body) = encoded.0.split_at_mut(Header::BYTES);
        header.copy_from_slice(&Header::new(node, length).to_bytes());
        postcard::to_slice(value, body).map_err(io::Error::other)?;
        Ok(encoded)
    }

    /// The same in memory of its own, for [`take`].
    ///
    /// # Errors
    /// What making the memory returned.
    pub(crate) fn share(&self) -> io::Result<OwnedFd> {
        let fd = memory::create("causeway-plan", self.0.len())?;
        let mapping = Mapping::shared(fd.as_fd())?;
        // SAFETY: the mapping is new, has these bytes, and nobody else has it yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), mapping.len()) };
        bytes.copy_from_slice(&self.0);
        Ok(fd)
    }
}

impl Drop for Encoded {
    fn drop(&mut self) {
        memory::wipe(&mut self.0);
    }
}

/// A value in memory of its own.
///
/// # Errors
/// As of [`Encoded`].
pub(crate) fn write<T: Serialize>(node: NodeId, value: &T) -> io::Result<OwnedFd> {
    Encoded::of(node, value)?.share()
}

/// What [`write`] has written, for which node, and wipes it.
///
/// # Errors
/// It is none of this program, or cannot be mapped.
pub(crate) fn take<T: for<'de> Deserialize<'de>>(fd: OwnedFd) -> io::Result<(NodeId, T)> {
    let mapping = Mapping::shared(fd.as_fd())?;
    // SAFETY: whoever has written it does not touch it any more.
    let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.as_ptr(), mapping.len()) };
    let taken = parse(bytes);
    memory::wipe(bytes);
    taken.map_err(io::Error::other)
}

/// What [`Encoded::of`] has written, and for which node.
fn parse<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<(NodeId, T), PlanError> {
    let (header, body) = Header::parse(bytes)?;
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok((header.node, value)),
        Ok(_) => Err(PlanError::Garbled("it has more bytes than it is long")),
        Err(error) => Err(PlanError::Unreadable(error)),
    }
}

/// Plans out of any bytes, for the fuzz target of them.
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing {
    use super::*;

    /// Reads bytes as a whole plan, then as the body of one for `node`. What is a plan comes back when it is written
    /// and read again.
    pub fn read(node: NodeId, bytes: &[u8]) {
        again(bytes);
        let header = Header::new(node, bytes.len()).to_bytes();
        again(&[&header[..], bytes].concat());
    }

    fn again(bytes: &[u8]) {
        let plan = match parse::<Plan>(bytes).map_err(io::Error::other) {
            Ok((node, plan)) => Plan::checked(node, plan),
            Err(error) => Err(error),
        };
        match plan {
            Ok(plan) => {
                let written = plan.encode().expect("a plan can be written");
                let (node, read) = parse::<Plan>(&written.0).expect("and read");
                let read = Plan::checked(node, read).expect("as what it was");
                assert!(read.encode().expect("a plan can be written") == written);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::RuleSet;
    use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId};
    use node::{FunctionId, LendConfig, LoanRole, Name, NodeKey, RailConfig, RailMode, Secret};

    fn plan() -> Plan {
        let loan = LoanConfig::new(Secret([0x5a; 32]), FunctionId(1), LoanRole::Lend(LendConfig::of(0)));
        let card = CardConfig {
            identity: NodeKey::numbered(2),
            name: Name::new("store"),
            domain: DomainId(3),
            incarnation: Incarnation(4),
            life: LifeId::default(),
            restored_as: None,
            generation: CardGeneration(5),
            seed: Secret([6; 32]),
            protection: Protection::Aegis,
            rail_mode: RailMode::Standby,
            lost_carriers: 0,
            rails: RailConfig::first(1, 9000),
            drives: vec![Some(DriveConfig::new(8, 512, 7))],
            loans: vec![loan],
            holders: Vec::new(),
            rekey_frames: node::REKEY_FRAMES,
            rules: RuleSet::ALL,
        };
        let (rails, media, loads) = (Vec::new(), Vec::new(), Vec::new());
        Plan { agent_pid: 1, card, has_ring: false, rails, media, loads, fabric: None }
    }

    #[test]
    fn a_plan_is_taken_once_and_leaves_nothing() {
        let fd = plan().encode().unwrap().share().unwrap();
        let seen = Mapping::shared(fd.as_fd()).unwrap();
        // SAFETY: nobody writes meanwhile.
        let bytes = || unsafe { std::slice::from_raw_parts(seen.as_ptr(), seen.len()).to_vec() };
        assert!(bytes().windows(32).any(|bytes| bytes == [0x5a; 32]), "the secret is in it");
        let taken = Plan::take(fd).unwrap();
        let CardConfig { loans, seed, name, .. } = &taken.card;
        assert_eq!(
            (loans[0].title.secret().unwrap().0, seed.0, name.to_string()),
            ([0x5a; 32], [6; 32], "store".to_owned())
        );
        assert!(bytes().iter().all(|byte| *byte == 0), "and was wiped");
    }

    #[test]
    fn what_is_another_plan_is_refused_by_name_and_wiped() {
        let refused = |at: usize, value: u64| {
            let fd = plan().encode().unwrap().share().unwrap();
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

    #[test]
    fn what_cannot_be_is_no_plan() {
        let refused = |change: fn(&mut CardConfig)| {
            let mut plan = plan();
            change(&mut plan.card);
            Plan::take(plan.encode().unwrap().share().unwrap()).err().unwrap().to_string()
        };
        assert!(refused(|card| card.loans[0].group = Group(0)).contains("cannot be read"));
        assert!(refused(|card| card.domain = DomainId(1 << 18)).contains("cannot be read"));
        assert!(refused(|card| card.drives[0] = Some(DriveConfig::new(8, 513, 7))).contains("513"));
    }

    #[test]
    fn only_a_processor_with_instructions_for_aes_gets_aegis() {
        use Protection::{Aegis, Aes256Gcm, Insecure};
        for (wanted, has_aes, gets) in [
            (Aegis, true, Aegis),
            (Aegis, false, Aes256Gcm),
            (Aes256Gcm, true, Aes256Gcm),
            (Aes256Gcm, false, Aes256Gcm),
            (Insecure, true, Insecure),
            (Insecure, false, Insecure),
        ] {
            assert_eq!(feasible_with(wanted, has_aes), gets, "{wanted:?} {has_aes}");
        }
    }
}
