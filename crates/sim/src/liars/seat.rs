//! A node without an agent, as both worlds of liars have them: its card, and what that runs on.

use core::time::Duration;

use base::ids::{CardGeneration, DomainId, Incarnation, LifeId, RailId};
use base::ledger::{Arena, Journal, RawMemory};
use base::{Instant, RuleSet};
use link::pair::Channel;
use link::{Name, NodeKey, Secret};
use node::{
    Address, BorrowEdge, Card, CardConfig, DriveConfig, FunctionId, LendConfig, LoanConfig, LoanRole,
    NodeLedger, RailConfig, Route,
};

use super::{BLOCK, BLOCKS, Client, Dice};
use crate::disk::Disk;

/// Rails of each node, and bytes of their largest frame.
const RAILS: usize = 2;
const FRAME: usize = 9000;

/// A node's card, and what it runs on.
pub(crate) struct Seat<'w> {
    pub(crate) memory: RawMemory<'w>,
    pub(crate) config: CardConfig,
    pub(crate) card: Card<'w>,
    /// By drive, which is by loan that lends.
    disks: Vec<Disk<'w>>,
}

impl<'w> Seat<'w> {
    pub(crate) fn new(arena: &'w Arena, config: CardConfig, now: Instant) -> Self {
        let memory = config.new_memory(arena);
        let disks = config.drives.iter().map(|_| Disk::new(BLOCKS as usize, BLOCK)).collect();
        Self { memory, card: new_card(memory, &config, now), config, disks }
    }

    /// The card dies, and the next one goes on.
    pub(crate) fn replace(&mut self, now: Instant) {
        self.config.generation.0 += 1;
        self.config.seed.0[1] = self.config.seed.0[1].wrapping_add(1);
        self.card = new_card(self.memory, &self.config, now);
    }

    /// The card and its ledger are lost, and another life of the node begins.
    pub(crate) fn reboot(&mut self, arena: &'w Arena, now: Instant) {
        let config = &mut self.config;
        config.incarnation.0 += 1;
        config.generation = CardGeneration(1);
        config.seed.0[2] = config.seed.0[2].wrapping_add(1);
        config.life.0[1] = config.life.0[1].wrapping_add(1);
        self.memory = config.new_memory(arena);
        self.card = new_card(self.memory, &self.config, now);
    }

    /// The log of its ledger.
    pub(crate) fn journal(&self) -> Journal<'w> {
        journal(self.memory)
    }

    /// What was to happen by now does.
    pub(crate) fn let_time_pass(&mut self, now: Instant) {
        if self.card.poll_timeout().is_some_and(|at| at <= now) {
            self.card.handle_timeout(now);
        }
    }

    /// The media do what they are asked for.
    pub(crate) fn serve_media(&mut self, now: Instant) {
        let journal = self.journal();
        while let Some(work) = self.card.poll_media() {
            // What is lent comes first among the loans.
            self.disks[work.loan].execute(&work, journal);
            self.card.handle_media(now, work.loan, work.id, Ok(()));
        }
        self.check_commit();
    }

    /// Somebody uses a drive that is borrowed: how many blocks were compared.
    pub(crate) fn use_drive(
        &mut self,
        now: Instant,
        loan: usize,
        client: &mut Client,
        dice: &mut dyn Dice,
    ) -> Result<u64, String> {
        let (journal, mut found) = (self.journal(), Ok(0));
        self.card.drive_step(now, loan, |driver, pages| {
            found = client.act(now, dice, driver, pages, journal);
        });
        found
    }

    /// # Panics
    /// If a step has ended without its commit.
    pub(crate) fn check_commit(&self) {
        assert_eq!(self.card.uncommitted(), 0, "a step ends with its commit");
    }
}

/// Whether a channel goes through memory.
pub(crate) fn is_shared(channel: Option<&Channel<'_>>, now: Instant) -> bool {
    channel.and_then(|channel| channel.shm_status(now)).is_some_and(|path| path.is_up)
}

/// Whether two ends of a channel have met, and one of them has not been given the memory that agents agree on then.
pub(crate) fn can_share(ends: [Option<&Channel<'_>>; 2], now: Instant) -> bool {
    let [Some(one), Some(other)] = ends else { return false };
    let both = [one, other];
    both.iter().all(|end| end.is_met()) && both.iter().any(|end| end.shm_status(now).is_none())
}

fn new_card<'w>(memory: RawMemory<'w>, config: &CardConfig, now: Instant) -> Card<'w> {
    Card::new(memory, None, config.clone(), now).expect("the memory was made for it")
}

/// The log of a node's ledger: what the kernel writes there is not undone.
pub(crate) fn journal(memory: RawMemory<'_>) -> Journal<'_> {
    NodeLedger::new(memory, None, RuleSet::ALL).journal
}

pub(crate) fn identity(node: usize) -> NodeKey {
    NodeKey::numbered(node as u64 + 1)
}

pub(crate) fn address(node: usize) -> Address {
    Address([node as u8 + 1; 28])
}

pub(crate) fn domain_of(node: usize) -> DomainId {
    DomainId(node as u32 + 1)
}

/// A function of the drive with the same number.
pub(crate) fn lends(drive: usize) -> LoanRole {
    LoanRole::Lend(LendConfig::of(drive))
}

/// A function of this lender.
pub(crate) fn borrows(lender: usize, edge: BorrowEdge) -> LoanRole {
    let route = |rail: &RailId| Route { rail: *rail, peer: address(lender), max_frame: FRAME };
    LoanRole::Borrow {
        lender: identity(lender).lends_in(domain_of(lender)),
        routes: RailId::ALL[..RAILS].iter().map(route).collect(),
        io_timeout: Duration::from_secs(3600),
        edge,
    }
}

/// The loan of a function.
pub(crate) fn loan_of(function: usize, secret: [u8; 32], role: LoanRole) -> LoanConfig {
    LoanConfig::new(Secret(secret), FunctionId(function as u32 + 1), role)
}

/// A node with these loans, those that lend first.
pub(crate) fn config_of(node: usize, loans: Vec<LoanConfig>, rules: RuleSet) -> CardConfig {
    let lent = loans.iter().filter(|loan| matches!(loan.role, LoanRole::Lend { .. })).count();
    CardConfig {
        identity: identity(node),
        name: Name::new("node"),
        domain: domain_of(node),
        incarnation: Incarnation(1),
        life: LifeId([node as u8 + 1; 16]),
        restored_as: None,
        generation: CardGeneration(1),
        seed: Secret([node as u8 + 1; 32]),
        protection: link::Protection::Aegis,
        rail_mode: link::RailMode::default(),
        lost_carriers: 0,
        rails: RailConfig::first(RAILS, FRAME),
        drives: (0..lent)
            .map(|drive| Some(DriveConfig::new(BLOCKS, BLOCK as u32, 7 + drive as u64)))
            .collect(),
        loans,
        holders: Vec::new(),
        rekey_frames: link::REKEY_FRAMES,
        rules,
    }
}
