//! What is in a ledger, and how large it has to be for that.

use core::cell::Cell as StdCell;
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};

use base::Instant;
use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId, RailId};
use base::ledger::LedgerError;
use link::pair::FunctionId;
use link::{Name, NodeKey, Protection, RailMode, Secret, Tenancy};

use super::*;
use crate::{Card, CardEvent, DriveConfig, LendConfig, RailConfig, Route, Title, Unusable};

const MIB: usize = 1 << 20;

fn config(loans: &[(u64, LoanRole)]) -> CardConfig {
    let loan = |(group, (life, role)): (usize, &(u64, LoanRole))| LoanConfig {
        title: Title::Line(Secret([5; 32])),
        function: FunctionId(group as u32),
        group: Group::DEFAULT,
        tenancy: Tenancy::default(),
        life: *life,
        least_incarnation: Incarnation(0),
        role: role.clone(),
    };
    CardConfig {
        identity: NodeKey::numbered(1),
        name: Name::new("node"),
        domain: DomainId(1),
        incarnation: Incarnation(1),
        life: LifeId([1; 16]),
        restored_as: None,
        protection: Protection::Aegis,
        rail_mode: RailMode::default(),
        lost_carriers: 0,
        generation: CardGeneration(1),
        seed: Secret([1; 32]),
        rails: RailConfig::first(1, 9000),
        drives: loans
            .iter()
            .filter_map(|(life, role)| Some((*life, role.lent()?.drive)))
            .map(|(life, drive)| Some(DriveConfig { life, ..DriveConfig::new(1 << 12, 512, drive as u64) }))
            .collect(),
        loans: loans.iter().enumerate().map(loan).collect(),
        holders: Vec::new(),
        rekey_frames: link::REKEY_FRAMES,
        rules: RuleSet::ALL,
    }
}

fn lend(drive: usize) -> LoanRole {
    LoanRole::Lend(LendConfig::of(drive))
}

fn borrow(edge: BorrowEdge) -> LoanRole {
    LoanRole::Borrow {
        lender: NodeKey::numbered(2).lends_in(DomainId(2)),
        routes: vec![Route { rail: RailId::ALL[0], peer: Address([1; 28]), max_frame: 9000 }],
        io_timeout: Duration::from_secs(60),
        edge,
    }
}

fn slot() -> LoanRole {
    borrow(BorrowEdge::Slot { domain: DomainId(9) })
}

fn start<'m>(memory: RawMemory<'m>, config: &CardConfig) -> Card<'m> {
    Card::new(memory, None, config.clone(), Instant::ZERO).unwrap()
}

/// Bytes of the peers that have not come, of a node with so many loans.
fn without_peers(loans: usize, peers: usize) -> usize {
    (peer_places(loans) - peers) * region_bytes::<Kept<PeerCells>>()
}

fn wants(config: &CardConfig) -> Vec<LoanKind> {
    config.loans.iter().filter_map(|loan| loan.role.kind()).collect()
}

#[test]
fn a_ledger_is_as_large_as_what_is_in_it() {
    let arena = Arena::default();
    let bytes = |loans: &[(u64, LoanRole)]| config(loans).new_memory(&arena).len();
    let empty = bytes(&[]);
    assert!(empty < 5 * MIB, "{empty}: the undo log and the table");
    let lent = bytes(&[(0, lend(0))]);
    assert!((33 * MIB..39 * MIB).contains(&lent), "{lent}");
    let places: Vec<_> = core::iter::repeat_n((0, LoanRole::Vacant), 79).chain([(0, lend(0))]).collect();
    assert_eq!(bytes(&places), lent, "a place takes nothing");
    let many: Vec<_> = (0..80).map(|drive| (0, lend(drive))).collect();
    assert_eq!(bytes(&many) - empty, 80 * (lent - empty), "each loan takes what one takes");
    // What is borrowed is not there where something is lent, and so on.
    let (drive, slot) = (bytes(&[(0, borrow(BorrowEdge::Drive))]), bytes(&[(0, slot())]));
    assert!(drive - lent > 4 * MIB && slot.abs_diff(lent) < MIB / 4, "{lent} {drive} {slot}");
    // And that is enough.
    let all =
        config(&[(0, lend(0)), (0, borrow(BorrowEdge::Drive)), (0, self::slot()), (0, LoanRole::Vacant)]);
    let memory = all.new_memory(&arena);
    start(memory, &all);
    assert_eq!(
        NodeLedger::new(memory, None, RuleSet::ALL).used_bytes().unwrap() + without_peers(3, 1),
        memory.len(),
        "and no byte more"
    );
}

/// Whatever is in memory that is not this node's ledger as this program lays it out: the card says so, and touches
/// nothing.
#[test]
fn what_is_another_ledger_is_refused_by_name() {
    let arena = Arena::default();
    let config = config(&[(0, slot())]);
    let refused = |memory: RawMemory<'_>| {
        let (mut before, mut after) = (vec![0; memory.len()], vec![0; memory.len()]);
        memory.read(0, &mut before);
        let refused = Card::new(memory, None, config.clone(), Instant::ZERO).err().unwrap();
        memory.read(0, &mut after);
        assert!(before == after, "{refused}");
        refused.to_string()
    };
    let new = || arena.zeroed_bytes(config.new_memory(&arena).len());
    assert!(refused(new()).contains("is no ledger"));
    let (layout, other) = (NodeLedger::LAYOUT, LayoutHash(NodeLedger::LAYOUT.0 ^ 1));
    let memory = new();
    memory.entitle(other, config.identity.id());
    let why = refused(memory);
    assert!(why.contains(&format!("{:016x}", other.0)) && why.contains("another version"), "{why}");
    memory.entitle(layout, NodeKey::numbered(2).id());
    let other = format!("of another node, {}", NodeKey::numbered(2).id());
    assert!(refused(memory).contains(&other));
    memory.entitle(layout, config.identity.id());
    let (len, short) = (memory.len(), memory.first(memory.len() - 4096));
    let error = LedgerError::OtherSize(len as u64, len - 4096).to_string();
    assert_eq!(refused(short), error);
    start(memory, &config);
}

/// The others go on, and it has what it needs when there is room.
#[test]
fn a_loan_without_room_is_unusable_and_takes_nobody_with_it() {
    let arena = Arena::default();
    let before = config(&[(0, lend(0)), (0, LoanRole::Vacant), (0, LoanRole::Vacant)]);
    let after = config(&[(0, lend(0)), (1, slot()), (1, borrow(BorrowEdge::Drive))]);
    let large = after.new_memory(&arena);
    let small = large.first(before.new_memory(&arena).len());
    NodeLedger::entitle(small, NodeKey::numbered(1).id());
    start(small, &before);
    let mut card = start(small, &after);
    assert!(card.lent(0).is_some() && card.slot(1).is_none() && card.borrowed(2).is_none());
    let events: Vec<_> = std::iter::from_fn(|| card.poll_event()).collect();
    let is_unusable = |place| {
        let is_it =
            |event: &CardEvent| matches!(event, CardEvent::Unusable(it, Unusable::NoRoom(_)) if *it == place);
        events.iter().any(is_it)
    };
    assert!(is_unusable(1) && is_unusable(2) && !is_unusable(0), "{events:?}");
    // What has nothing is given back at once, and nobody is connected to it.
    card.give_back(Instant::ZERO, 1);
    assert_eq!(card.poll_event(), Some(CardEvent::Closed { loan: 1, has_lost: false }));
    assert!(card.edge_wants_close(2, 0) && card.slot_is_idle(1));
    card.slot_open(Instant::ZERO, 1);
    card.handle_timeout(Instant::from_nanos(1_000_000_000));
    drop(card);
    NodeLedger::entitle(large, NodeKey::numbered(1).id());
    let card = start(large, &after);
    assert!(card.lent(0).is_some() && card.slot(1).is_some() && card.borrowed(2).is_some());
}

/// Onlookers find in one pass what they would find one by one.
#[test]
fn all_loans_are_found_at_once() {
    let arena = Arena::default();
    let config = config(&[(0, lend(0)), (3, slot()), (0, LoanRole::Vacant), (2, borrow(BorrowEdge::Drive))]);
    let memory = config.new_memory(&arena);
    start(memory, &config);
    let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
    let loans = ledger.loans();
    for (place, life) in (0..5).flat_map(|place| (0..4).map(move |life| (place, life))) {
        let [one, all] = [ledger.loan(place, life), loans.get(place, life)];
        let cells = |parts: Option<LoanParts<'_>>| parts.map(|parts| core::ptr::from_ref(parts.cells));
        assert_eq!(cells(one), cells(all), "{place} {life}");
        assert_eq!(all.is_some(), [(0, 0), (1, 3), (3, 2)].contains(&(place, life)), "{place} {life}");
    }
}

/// A machine may be connected to a slot from which the function has gone: it is answered until another one is there.
#[test]
fn a_slot_keeps_its_cells_until_another_loan_has_its_place() {
    let arena = Arena::default();
    let first = config(&[(1, slot())]);
    let memory = first.new_memory(&arena);
    let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
    let kept = |life| ledger.loan(0, life).is_some();
    assert!(start(memory, &first).slot(0).is_some() && kept(1));
    let left = start(memory, &config(&[(1, LoanRole::Vacant)]));
    assert!(left.slot(0).is_some() && left.state(0) == link::State::Closed && kept(1));
    assert!(start(memory, &config(&[(2, slot())])).slot(0).is_some() && kept(2) && !kept(1));
    assert!(start(memory, &config(&[(3, LoanRole::Vacant)])).slot(0).is_none() && !kept(2));
    let used = ledger.used_bytes().unwrap();
    assert_eq!(used + without_peers(1, 1), memory.len(), "who comes later has what others had");
}

/// However many loans a place has had: each has what is its own, and what others had is given back.
#[test]
fn lives_of_a_place_do_not_come_around() {
    let arena = Arena::default();
    let lives = [0, 1 << 32, 1 << 46, 1 << 48, u64::MAX];
    let memory = config(&[(0, slot()), (0, lend(0))]).new_memory(&arena);
    let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
    for life in lives {
        drop(start(memory, &config(&[(life, slot()), (life, lend(0))])));
        for other in lives {
            let has = [ledger.loan(0, other).is_some(), ledger.loan(1, other).is_some()];
            assert_eq!(
                (has, ledger.drive(0, other).is_some()),
                ([other == life; 2], other == life),
                "{life}"
            );
        }
        let borrowed: Vec<_> = ledger.loans().borrowed().collect();
        assert_eq!(borrowed, [(0, life, LoanKind::Slot)]);
        assert_eq!(ledger.peers().count(), 1, "whom it borrows from");
    }
}

struct Killed;

/// Stores without a log in a row that count for [`KillAt`]: of a region that is cleared, which has many, the first.
const UNLOGGED: u64 = 4;

/// Kills before a store.
struct KillAt {
    left: StdCell<u64>,
    unlogged: StdCell<u64>,
}

impl Hook for KillAt {
    fn before_store(&self) {
        let unlogged = self.unlogged.get();
        self.unlogged.set(unlogged + 1);
        match self.left.get() {
            _ if unlogged >= UNLOGGED => {}
            0 => panic_any(Killed),
            left => self.left.set(left - 1),
        }
    }

    fn before_change(&self, _offset: usize, _old: &[u8]) {
        self.unlogged.set(0);
    }

    fn committed(&self) {
        self.unlogged.set(0);
    }
}

/// Whatever store a card dies before that finds one loan gone and others new, the agent makes room for all that its
/// successor takes, and that has what it is to have.
#[test]
fn there_is_room_for_the_successor_of_a_card_that_died_while_loans_changed() {
    let before = config(&[(1, borrow(BorrowEdge::Drive)), (1, slot())]);
    let after = config(&[(2, slot()), (1, slot()), (0, lend(0))]);
    let mut store = 0;
    loop {
        let arena = Arena::default();
        let bytes = before.new_memory(&arena).len() + after.new_memory(&arena).len();
        let memory = arena.zeroed_bytes(bytes);
        let hook = KillAt { left: StdCell::new(store), unlogged: StdCell::new(0) };
        NodeLedger::entitle(memory, NodeKey::numbered(1).id());
        start(memory, &before);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            drop(Card::new(memory, Some(&hook), after.clone(), Instant::ZERO));
        }));
        let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
        let room = ledger_bytes(Some(ledger), wants(&after), after.drives.len()).unwrap();
        let card = start(memory, &after);
        let used = ledger.used_bytes().unwrap();
        assert!(used <= room, "{store}: {used} > {room}");
        assert!(card.slot(0).is_some() && card.slot(1).is_some() && card.lent(2).is_some());
        assert!(ledger.loan(0, 1).is_none() && ledger.regions.iter().count() == 3 + 4 + 4 + 1 + 1);
        if ended.is_ok() {
            return assert!(store > 150, "{store}: a card that begins stores more");
        }
        assert!(store < 1000, "the end is reached");
        store += 3;
    }
}

/// A drive that comes to the place of another one finds nothing of it, and the drive beside it keeps what it has.
#[test]
fn a_drive_in_the_place_of_another_one_begins_anew() {
    let arena = Arena::default();
    let before = config(&[(0, lend(0)), (0, lend(1))]);
    let memory = before.new_memory(&arena);
    drop(start(memory, &before));
    let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
    let drives = || -> BTreeSet<Owner> {
        let regions = ledger.regions.iter();
        regions.filter(|(kind, ..)| *kind == Kept::<DriveCells>::KIND).map(|(_, owner, _)| owner).collect()
    };
    let [old, beside] = [0, 1].map(|drive| drive_owner(drive, 0));
    assert_eq!(drives(), BTreeSet::from([old, beside]));
    let after = config(&[(3, lend(0)), (0, lend(1))]);
    drop(start(memory, &after));
    let [new, same] = [drive_owner(0, 3), drive_owner(1, 0)];
    assert_eq!((drives(), same), (BTreeSet::from([new, beside]), beside));
    assert_ne!(new, old);
}
