//! What a manager knows: nodes, what they lend, where that is plugged in, and who may ask.
//!
//! Plain data with its bounds. What may follow what is `state`'s affair, what is allowed `decide`'s.

mod access;
mod function;
mod ids;
mod made;
mod name;
mod node;

pub use access::{ApiToken, JoinToken, Role, Used};
pub use function::{
    Assignment, Function, Kind, Limited, Limits, LimitsId, Loan, NoSilence, OnSilence, Resource,
};
pub(crate) use ids::node_text;
pub use ids::{FabricId, FunctionKey, Place, PublicKey, RequestId, TokenHash, WallTime};
pub use made::{
    MADE_PER_NODE_MAX, Made, MadeId, MadeList, Making, Refused, Shape, Storage, UNMADE_MAX, Unmade, WHY_MAX,
    Wanted,
};
pub use name::{BadName, FunctionName, Name, nearest, nearest_text};
pub use node::{Block, Groups, Membership, Node, Quarantine};

/// Nodes of a fabric, those that were removed and are remembered among them.
pub const NODES_MAX: usize = 4096;
/// Functions of a node.
pub const FUNCTIONS_PER_NODE_MAX: usize = 256;
/// Functions of a fabric.
pub const FUNCTIONS_MAX: usize = 65_536;
/// Slots of a node that functions are assigned to, over all its domains: what a card has cells for.
pub const SLOTS_PER_NODE_MAX: usize = 80;
/// Slots of a domain are numbered below this.
pub const SLOT_NUMBERS: u16 = 256;
/// Groups that a node may enter.
pub const GROUPS_PER_NODE_MAX: usize = 64;
/// Join tokens that are remembered.
pub const JOIN_TOKENS_MAX: usize = 4096;
/// Tokens for the interface.
pub const API_TOKENS_MAX: usize = 256;
/// Blocks of domains in quarantine.
pub const QUARANTINES_MAX: usize = 4096;
/// The greatest block of domains that a node may have.
pub const BLOCK_MAX: u32 = 4096;
/// How long the domains of a node that was removed are nobody's: longer than anybody holds anything.
pub const QUARANTINE_S: u64 = 2 * base::times::HOLD.as_secs();
/// By how much the generation of a function may grow by what a lender says: nobody uses up what there is of them.
pub const GENERATION_STRIDE: u64 = 1 << 32;
/// No lender's word raises a generation above this: there is always room for what follows.
pub const GENERATION_LAST: u64 = u64::MAX / 2;
/// By how much the epoch may grow by what a node says.
pub const EPOCH_STRIDE: u64 = 1 << 20;
/// The longest hold time.
pub const HOLD_MAX_S: u32 = 30 * 86_400;
