use core::time::Duration;
use std::collections::BTreeSet;

use base::RuleSet;
use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId, LoanGeneration, NodeId, RailId};
use base::ledger::Layout;
use base::times::{HOLD, SILENCE};
use device::Limit;
use link::pair::FunctionId;
use link::{Entry, Lender, Name, NodeKey, Protection, RailMode, Secret, Tenancy};
use serde::{Deserialize, Serialize};

use crate::{Address, DriveConfig, MAX_RAILS, Whereabouts};

/// What an agent tells its card. The same for every card on one ledger, but for generation and seed.
#[derive(Clone, Layout, Serialize, Deserialize)]
pub struct CardConfig {
    /// This node.
    pub identity: NodeKey,
    /// Its name.
    pub name: Name,
    /// Its domain. What it lends lies there, and what it borrows for its own programs; a virtual machine has another
    /// one.
    pub domain: DomainId,
    /// Which life of the ledger this is.
    pub incarnation: Incarnation,
    /// The same, as nobody else has it.
    pub life: LifeId,
    /// The life that it calls itself by, where its machine was restored from a snapshot since it was started.
    pub restored_as: Option<LifeId>,
    /// Which card of it.
    pub generation: CardGeneration,
    /// 32 random bytes, new for each card.
    pub seed: Secret,
    /// What it accepts as protection of frames.
    pub protection: Protection,
    /// How it uses several rails.
    pub rail_mode: RailMode,
    /// Its rails, at least one.
    pub rails: Rails,
    /// Those that have no carrier, as bits.
    pub lost_carriers: u8,
    /// The drives it lends, by place; `None`: no drive is in this one.
    pub drives: Vec<Option<DriveConfig>>,
    /// The loans; their places are those of their cells.
    pub loans: Vec<LoanConfig>,
    /// Where nodes are that have something of this one, as the agent has made durable.
    pub holders: Vec<Whereabouts>,
    /// Frames sealed under one key before there is a new one; [`link::REKEY_FRAMES`] but for the simulator.
    pub rekey_frames: u64,
    /// The rules in force: all, but for the simulator's canaries.
    pub rules: RuleSet,
}

/// The rails of a node, by id.
pub type Rails = [Option<RailConfig>; MAX_RAILS];

/// A rail of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct RailConfig {
    /// Bytes of the largest frame that it takes; a borrower knows more of its [routes](Route).
    pub max_frame: usize,
}

impl RailConfig {
    /// Rails 0 to `count` - 1 that take frames of the same size.
    pub fn first(count: usize, max_frame: usize) -> Rails {
        core::array::from_fn(|rail| (rail < count).then_some(Self { max_frame }))
    }
}

/// Where a lender has one of its rails. It may have any of them, and the borrower others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct Route {
    /// The lender's rail.
    pub rail: RailId,
    /// Its address there.
    pub peer: Address,
    /// Bytes of the largest frame that gets there.
    pub max_frame: usize,
}

/// One loan: what its node does with it is a [`LoanRole`] to a card, and more to who keeps sockets and addresses.
#[derive(Clone, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct LoanConfig<Role = LoanRole> {
    /// By what it is opened.
    pub title: Title,
    /// As its lender names the function.
    pub function: FunctionId,
    /// The zone that the function is lent in, where its entry does not say another one ([`LoanConfig::zone`]): who has
    /// a channel in another one knows nothing of it.
    pub group: Group,
    /// Of a lender: who has used the function last, as the agent has made durable.
    pub tenancy: Tenancy,
    /// Greater whenever the place of the loan is given to another one: what the ledger has of earlier ones is
    /// forgotten.
    pub life: u64,
    /// To its lender the node is in this incarnation at least: that has seen a greater one than the state folder knew
    /// of.
    pub least_incarnation: Incarnation,
    /// Which side.
    pub role: Role,
}

/// By what the stream of a loan is opened.
#[derive(Clone, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub enum Title {
    /// By nothing: there is no loan in this place.
    Nothing,
    /// By its line, the secret of which is proven. At its lender only as long as the function has no
    /// [entry](LendConfig::entry).
    Line(Secret),
    /// By an entry of its lender's table. At its lender, where the entry itself is known: by no line.
    Entry {
        /// Of the entry: more than zero.
        generation: LoanGeneration,
        /// In which slot of its domain the function is, by the entry.
        slot: u16,
    },
}

impl Title {
    /// The secret of the line, if there is one.
    pub fn secret(&self) -> Option<&Secret> {
        if let Self::Line(secret) = self { Some(secret) } else { None }
    }

    /// The generation of the entry; 0: there is none.
    pub fn generation(&self) -> LoanGeneration {
        if let Self::Entry { generation, .. } = self { *generation } else { LoanGeneration(0) }
    }
}

impl LoanConfig {
    /// The loan of this place is over: by nothing that it had can anything be opened.
    pub(crate) fn vacate(&mut self) {
        (self.title, self.role) = (Title::Nothing, LoanRole::Vacant);
    }

    /// The zone that the function is in: of what is assigned, the assignment's.
    pub fn zone(&self) -> Group {
        self.role.lent().and_then(LendConfig::group).unwrap_or(self.group)
    }

    /// The zones that the function may be had in: also its line's while somebody has it, who may have it by that and
    /// keeps it until it is given back, whoever it is assigned to meanwhile.
    fn zones(&self) -> impl Iterator<Item = Group> {
        let lines = Some(self.group).filter(|_| self.tenancy.is_held);
        std::iter::once(self.zone()).chain(lines)
    }

    /// The slot in which the function is asked for, by a borrower that has it in this place.
    pub(crate) fn slot(&self, place: usize) -> u16 {
        if let Title::Entry { slot, .. } = self.title { slot } else { place as u16 }
    }

    /// By which entry of its lender's table it is, or may be, had; 0: by a line.
    pub fn generation(&self) -> LoanGeneration {
        match &self.role {
            LoanRole::Lend(lent) => lent.generation(),
            _ => self.title.generation(),
        }
    }
}

impl<Role> LoanConfig<Role> {
    /// The loan of a line, in the default group: nobody has used the function, and no other loan had the place.
    pub fn new(secret: Secret, function: FunctionId, role: Role) -> Self {
        Self::by(Title::Line(secret), function, role)
    }

    /// A place without a loan, for which this role stands: it has no secret, and no function is named there.
    pub fn vacant(role: Role) -> Self {
        Self::by(Title::Nothing, FunctionId(0), role)
    }

    /// The same by this title.
    pub fn by(title: Title, function: FunctionId, role: Role) -> Self {
        Self {
            title,
            function,
            group: Group::DEFAULT,
            tenancy: Tenancy::default(),
            life: 0,
            least_incarnation: Incarnation(0),
            role,
        }
    }

    /// The same loan, with its side described in another way.
    pub fn with_role<Other>(&self, role: Other) -> LoanConfig<Other> {
        let Self { function, group, tenancy, life, least_incarnation, .. } = *self;
        let title = self.title.clone();
        LoanConfig { title, function, group, tenancy, life, least_incarnation, role }
    }
}

impl CardConfig {
    /// The domain that reaches a loan from this node's side: of whom its memory is.
    pub fn domain_of(&self, loan: &LoanConfig) -> DomainId {
        match loan.role {
            LoanRole::Borrow { edge: BorrowEdge::Slot { domain }, .. } => domain,
            _ => self.domain,
        }
    }

    /// The groups in which there is something.
    pub(crate) fn groups(&self) -> Vec<Group> {
        let present = self.loans.iter().filter(|loan| loan.role.kind().is_some());
        let groups: BTreeSet<Group> = present.flat_map(LoanConfig::zones).collect();
        groups.into_iter().collect()
    }

    /// Whether a node may have a channel here in a group: it may have something that is lent there, or lends something
    /// itself.
    pub(crate) fn may_meet(&self, node: NodeId, group: Group) -> bool {
        self.loans.iter().filter(|loan| loan.zones().any(|zone| zone == group)).any(|loan| match &loan.role {
            LoanRole::Lend(lent) => lent.may_have(node),
            LoanRole::Borrow { lender, .. } => lender.key.id() == node,
            LoanRole::Vacant | LoanRole::VacantSlot => false,
        })
    }

    /// The life that the node calls itself by.
    pub(crate) fn present_life(&self) -> LifeId {
        self.restored_as.unwrap_or(self.life)
    }

    /// The largest payload of a TLP that any rail of the node carries.
    pub(crate) fn own_payload(&self) -> usize {
        Self::max_payload(self.rails.iter().flatten().map(|rail| rail.max_frame))
    }

    /// The largest payload of a TLP where these are the largest frames.
    pub fn max_payload(frames: impl IntoIterator<Item = usize>) -> usize {
        if frames.into_iter().all(|frame| frame >= 8192) { 4096 } else { 1024 }
    }
}

/// A function of a drive that is lent.
#[derive(Clone, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct LendConfig {
    /// Which of [`CardConfig::drives`].
    pub drive: usize,
    /// Which of its controllers: 0 is the physical function's.
    pub controller: u16,
    /// What the function may do.
    pub limit: Limit,
    /// The nodes that may have it by its line; `None`: all that have that.
    pub allowed: Option<Box<[NodeId]>>,
    /// Its entry in this node's table, which is durable; `None`: nobody manages it, and its line counts.
    pub entry: Option<Entry>,
}

impl LendConfig {
    /// The physical function of a drive, without limits, for all that have its line.
    pub fn of(drive: usize) -> Self {
        Self { drive, controller: 0, limit: Limit::NONE, allowed: None, entry: None }
    }

    /// Whether a node may have it, or is to hear why not.
    pub fn may_have(&self, node: NodeId) -> bool {
        self.is_listed(node) || self.entry.is_some_and(|entry| entry.concerns(node))
    }

    /// How long this node, which has the function, may be silent and has it still, as the offer of the function decides
    /// ([`link::pair::Offer`]). After that others may have it, or, where it has an entry, whom a manager gives it to.
    pub fn patience(&self, holder: NodeId) -> Duration {
        match &self.entry {
            Some(entry) => entry.holder.patience(holder),
            None if self.is_listed(holder) => HOLD,
            None => SILENCE,
        }
    }

    /// Whether it is kept for this node, which has not given it back and has no stream of it: by the same rules.
    pub fn is_kept_for(&self, node: NodeId) -> bool {
        match self.entry {
            None => self.is_listed(node),
            Some(entry) => entry.assigned().is_some_and(|to| to.node == node),
        }
    }

    fn is_listed(&self, node: NodeId) -> bool {
        self.allowed.as_deref().is_none_or(|allowed| allowed.contains(&node))
    }

    /// The zone that its entry says; `None`: it says none.
    pub fn group(&self) -> Option<Group> {
        self.entry.and_then(|entry| entry.group())
    }

    /// The generation of its entry; 0: it has none.
    pub fn generation(&self) -> LoanGeneration {
        self.entry.map(|entry| entry.generation).unwrap_or_default()
    }
}

/// What a node does with a loan.
#[derive(Clone, Debug, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub enum LoanRole {
    /// Lends a function of a drive. No two loans lend the same one.
    Lend(LendConfig),
    /// Borrows one.
    Borrow {
        /// Whose it is.
        lender: Lender,
        /// Where it is, each of its rails once.
        routes: Vec<Route>,
        /// How long a request of the edge may wait for the drive; a virtual machine's accesses to registers wait for
        /// [`base::times::COMPLETION_TIMEOUT`].
        io_timeout: Duration,
        /// For whom.
        edge: BorrowEdge,
    },
    /// Nothing: there is no loan in this place.
    Vacant,
    /// Nothing, but a slot of a virtual machine, which finds its function gone.
    VacantSlot,
}

impl LoanRole {
    /// What is lent, if anything is.
    pub fn lent(&self) -> Option<&LendConfig> {
        if let Self::Lend(lent) = self { Some(lent) } else { None }
    }

    /// Whether a virtual machine uses the place.
    pub fn is_slot(&self) -> bool {
        matches!(self, Self::Borrow { edge: BorrowEdge::Slot { .. }, .. } | Self::VacantSlot)
    }
}

/// What stands in front of a borrowed function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub enum BorrowEdge {
    /// This node's own driver, which serves blocks over NBD.
    Drive,
    /// The same, for the program that has the card: it asks by [`crate::Card::drive_step`], and NBD gets nothing.
    Program,
    /// A virtual machine, whose driver it is.
    Slot {
        /// The machine's own, which has its memory: no node's, and no other machine's.
        domain: DomainId,
    },
}
