//! What a channel between two nodes needs.

use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LifeId, LoanGeneration, StreamId,
};
use base::ledger::PageCells;
use link::{ChannelCells, ChannelConfig, Name, NodeKey, PathConfig, Role, Tenancy};
use zerocopy::FromBytes;

/// The secret of the loan.
pub const SECRET: [u8; 32] = [5; 32];

/// The cells of one end.
#[derive(FromBytes)]
#[repr(C)]
pub struct Root {
    pub channel: ChannelCells,
    pub pages: PageCells,
}

/// The node at an end.
pub fn identity(role: Role) -> NodeKey {
    NodeKey::numbered(role as u64 + 1)
}

/// An end of a sealed loan with one path; the node's number is its role's.
pub fn config(role: Role) -> ChannelConfig {
    let number = role as u8 + 1;
    ChannelConfig {
        role,
        secret: SECRET,
        lender: identity(Role::Lender).lends_in(DomainId::default()),
        allowed: None,
        protection: link::Protection::Aegis,
        fabric: 0,
        group: Group::DEFAULT,
        index: ChannelIndex(u32::from(number) + 2),
        stream: StreamId(7),
        loan_generation: LoanGeneration(0),
        tenancy: Tenancy::default().taken_by(
            identity(Role::Borrower).id(),
            LifeId([Role::Borrower as u8 + 1; 16]),
            Name::new("node"),
            LifeId::default(),
        ),
        identity: identity(role),
        name: Name::new("node"),
        domain: DomainId(number.into()),
        incarnation: Incarnation(1),
        life: LifeId([number; 16]),
        generation: CardGeneration(1),
        seed: [number; 32],
        paths: vec![PathConfig { max_frame: 9000 }],
        max_payload: 4096,
        rekey_frames: link::REKEY_FRAMES,
    }
}
