//! Two cards: what a loan remembers stays true, be it that memory between them has no room for long, or that a medium
//! is slow.

mod coming;
mod entries;
mod groups;
mod many;
mod moving;
mod newcomers;
mod notices;
mod rails;

use core::cell::Cell;
use core::ops::Range;
use std::collections::VecDeque;

use base::RuleSet;
use base::ids::{CardGeneration, DomainId, LifeId, LoanGeneration, RailId};
use base::ledger::Arena;
use host::{BlockKind, BlockRequest};
use link::frame::Header;
use link::pair::FunctionId;
use link::{Lender, Name, NodeKey, Secret};

use super::*;
use crate::apertures::base_of;
use crate::loan_table::Asker;
use crate::{BorrowEdge, DriveConfig, LendConfig, LoanConfig, LoanRole, RailConfig, Route, Title};

const TICK: Duration = Duration::from_micros(50);
/// The only address on the only rail.
const PEER: Address = Address([1; 28]);
const ROUTE: Route = Route { rail: RailId::ALL[0], peer: PEER, max_frame: 9000 };

fn lender() -> Lender {
    NodeKey::numbered(1).lends_in(DomainId(1))
}

fn config(node: u64, role: LoanRole) -> CardConfig {
    let loan = LoanConfig {
        title: Title::Line(Secret([5; 32])),
        function: FunctionId(7),
        group: Group::DEFAULT,
        tenancy: Tenancy::default().taken_by(
            NodeKey::numbered(2).id(),
            LifeId([2; 16]),
            Name::new("node"),
            LifeId::default(),
        ),
        life: 0,
        least_incarnation: Incarnation(0),
        role,
    };
    let lends = matches!(loan.role, LoanRole::Lend { .. });
    CardConfig {
        identity: NodeKey::numbered(node),
        name: Name::new("node"),
        domain: DomainId(node as u32),
        incarnation: Incarnation(1),
        life: LifeId([node as u8; 16]),
        restored_as: None,
        generation: CardGeneration(1),
        seed: Secret([node as u8; 32]),
        protection: link::Protection::Aegis,
        rail_mode: link::RailMode::default(),
        lost_carriers: 0,
        rails: RailConfig::first(1, 9000),
        drives: lends.then(|| Some(DriveConfig::new(1 << 12, 512, 7))).into_iter().collect(),
        loans: vec![loan],
        holders: Vec::new(),
        rekey_frames: link::REKEY_FRAMES,
        rules: RuleSet::ALL,
    }
}

/// What one card sends, and where it is built: without room nothing that goes through memory arrives.
struct Paths {
    buffer: Vec<u8>,
    has_room: bool,
    /// Frames for which there was no room.
    scrapped: Cell<u32>,
}

impl FrameBuffers for Paths {
    fn of(&mut self, egress: Egress) -> &mut [u8] {
        if let Egress::Shm(_) = egress {
            self.scrapped.set(self.scrapped.get() + u32::from(!self.has_room));
        }
        &mut self.buffer
    }
}

/// A card and what is on its way to it.
struct End<'m> {
    card: Card<'m>,
    buffers: Paths,
    incoming: VecDeque<(Egress, Vec<u8>)>,
    /// What the card has said and nobody has looked at.
    events: Vec<CardEvent>,
    /// What a medium that never ends anything has to do; another ends everything at once.
    endless: Option<Vec<MediaKind>>,
    /// What a medium has that ends nothing for now.
    held: Option<Vec<(usize, MediaId)>>,
    /// After so many stores of the next call that asks for work of a medium, an assertion fails.
    fault_in: Option<u64>,
    faults: Option<&'m Faults>,
}

/// An assertion that fails before a store.
#[derive(Default)]
struct Faults(Cell<Option<u64>>);

struct Injected;

impl Hook for Faults {
    fn before_store(&self) {
        match self.0.get() {
            Some(0) => {
                self.0.set(None);
                std::panic::panic_any(Injected);
            }
            left => self.0.set(left.map(|left| left - 1)),
        }
    }
}

fn silence_injected() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Injected>() {
                usual(info);
            }
        }));
    });
}

impl<'m> End<'m> {
    fn new(arena: &'m Arena, config: CardConfig) -> Self {
        Self::on(config.new_memory(arena), config, Instant::ZERO)
    }

    fn on(memory: RawMemory<'m>, config: CardConfig, now: Instant) -> Self {
        Self::with_faults(memory, config, now, None)
    }

    fn with_faults(
        memory: RawMemory<'m>,
        config: CardConfig,
        now: Instant,
        faults: Option<&'m Faults>,
    ) -> Self {
        let card = Card::new(memory, faults.map(|faults| faults as &dyn Hook), config, now).unwrap();
        let buffers = Paths { buffer: vec![0; 1 << 16], has_room: true, scrapped: Cell::new(0) };
        let (incoming, events) = (VecDeque::new(), Vec::new());
        Self { card, buffers, incoming, events, endless: None, held: None, fault_in: None, faults }
    }

    /// An assertion fails after so many stores of a call. False if there are not so many.
    fn fail_in<T>(&mut self, stores: u64, act: impl FnOnce(&mut Card<'m>) -> T) -> (T, bool) {
        let faults = self.faults.expect("the end has a hook");
        faults.0.set(Some(stores));
        let done = act(&mut self.card);
        (done, faults.0.take().is_none())
    }

    fn poll_media(&mut self) -> Option<MediaWork<'m>> {
        let Some(stores) = self.fault_in else { return self.card.poll_media() };
        let (work, has_failed) = self.fail_in(stores, Card::poll_media);
        self.fault_in = self.fault_in.filter(|_| !has_failed);
        work
    }

    /// Everything that is due now; returns the frames that arrive.
    fn turn(&mut self, now: Instant) -> Vec<(Egress, Vec<u8>)> {
        for (egress, mut frame) in self.incoming.drain(..) {
            match egress {
                Egress::Rail(_) => {
                    let rail =
                        Header::parse(&frame).map_or(RailId::default(), |header| header.destination.rail);
                    self.card.handle_frame(now, rail, PEER, &mut frame);
                }
                Egress::Shm(peer) => self.card.handle_shm_frame(now, peer, &mut frame),
            }
        }
        if self.card.poll_timeout().is_some_and(|at| at <= now) {
            self.card.handle_timeout(now);
        }
        while let Some(event) = self.card.poll_event() {
            if let CardEvent::Tenant(loan, tenancy) = event {
                self.card.set_tenancy(now, loan, tenancy);
            }
            self.events.push(event);
        }
        while let Some(work) = self.poll_media() {
            match (&mut self.endless, &mut self.held) {
                (Some(kinds), _) => kinds.push(work.kind),
                (None, Some(held)) => held.push((work.loan, work.id)),
                (None, None) => self.card.handle_media(now, work.loan, work.id, Ok(())),
            }
        }
        let mut sent = Vec::new();
        while let Some(outgoing) = self.card.poll_transmit(now, &mut self.buffers) {
            let arrives = match outgoing.egress {
                Egress::Rail(_) => true,
                Egress::Shm(_) => self.buffers.has_room,
            };
            if arrives {
                sent.push((outgoing.egress, self.buffers.buffer[..outgoing.len].to_vec()));
            }
        }
        if let Some(loan) = self.card.loans.get(0) {
            let channel = self.card.channel_of(0);
            // One that is early costs a look, as where a channel was heard since.
            let [known, found] = [loan.poll_timeout(channel), loan.find_deadline(channel)]
                .map(|deadline| deadline.map_or(u64::MAX, Instant::as_nanos));
            assert!(known <= found, "it would be late: {known} after {found}");
        }
        for place in 0..self.card.peers.len() {
            if let Some(peer) = self.card.peers.get_mut(place) {
                peer.ask_again();
            }
        }
        assert!(self.card.poll_transmit(now, &mut self.buffers).is_none(), "it said that there was nothing");
        sent
    }
}

/// Until `holds` for both, at most for `time`; true if it does.
fn run(
    now: &mut Instant,
    ends: &mut [End<'_>; 2],
    time: Duration,
    holds: fn(&Card<'_>, Instant) -> bool,
) -> bool {
    let until = *now + time;
    while *now < until && !ends.iter().all(|end| holds(&end.card, *now)) {
        *now += TICK;
        for at in 0..2 {
            let sent = ends[at].turn(*now);
            ends[1 - at].incoming.extend(sent);
        }
    }
    ends.iter().all(|end| holds(&end.card, *now))
}

fn is_open(card: &Card<'_>, _: Instant) -> bool {
    card.state(0) == link::State::Open
}

fn is_ready(card: &Card<'_>, _: Instant) -> bool {
    card.borrowed(0).is_none_or(|drive| drive.driver.is_ready())
}

/// The memory answers.
fn is_shared(card: &Card<'_>, now: Instant) -> bool {
    card.channel_of(0).unwrap().shm_status(now).is_some_and(|path| path.is_up)
}

/// The commands are in the lender's memory: it fetches those behind the first few when the medium is asked for, and
/// nobody but that loan knows that the write wants its data then.
#[test]
fn a_write_behind_reads_is_served_while_the_medium_has_them() {
    const READS: u32 = 9;
    let arena = Arena::default();
    let lend = LoanRole::Lend(LendConfig::of(0));
    let borrow = borrow(BorrowEdge::Program);
    let mut ends = [End::new(&arena, config(1, lend)), End::new(&arena, config(2, borrow))];
    let mut now = Instant::ZERO;
    assert!(run(&mut now, &mut ends, Duration::from_millis(500), is_ready));
    run(&mut now, &mut ends, Duration::from_millis(1), never);
    ends[0].endless = Some(Vec::new());
    ends[1].card.drive_step(now, 0, |driver, pages| {
        for id in 0..=READS {
            let kind = if id < READS { BlockKind::Read } else { BlockKind::Write };
            let page = [pages.alloc().unwrap()];
            driver.submit(
                now,
                BlockRequest { id, kind, lba: u64::from(id), blocks: 1, fua: false, pages: &page },
            );
        }
    });
    // No time passes: nothing but what they have to do at once brings them on.
    for at in (0..2).cycle().take(40) {
        let sent = ends[at].turn(now);
        ends[1 - at].incoming.extend(sent);
    }
    let kinds = ends[0].endless.take().unwrap();
    let count = |wanted| kinds.iter().filter(|kind| **kind == wanted).count();
    assert_eq!((count(MediaKind::Read), count(MediaKind::Write)), (READS as usize, 1), "{kinds:?}");
}

/// A place is vacant, has a loan, is vacant and has one again: each begins as if nobody had been there, and the lender,
/// which knows the node, answers each. Cells are there as long as the loan is, and are used again.
#[test]
fn a_place_is_used_again_by_another_loan() {
    let arena = Arena::default();
    let lend = LoanRole::Lend(LendConfig::of(0));
    let place = |life: u64, role: LoanRole| {
        let mut config = config(2, role);
        config.loans[0].life = life;
        config.generation = CardGeneration(life + 1);
        config
    };
    let memory = place(0, borrow(BorrowEdge::Drive)).new_memory(&arena);
    let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
    let mut now = Instant::ZERO;
    let mut lender = End::new(&arena, config(1, lend));
    for round in 0..3 {
        let mut vacant = End::on(memory, place(2 * round, LoanRole::Vacant), now);
        for _ in 0..2000 {
            now += TICK;
            assert!(vacant.turn(now).is_empty(), "nothing comes of a vacant place");
        }
        assert!((0..=2 * round).all(|life| ledger.loan(0, life).is_none()), "it has nothing");
        let mut ends = [lender, End::on(memory, place(2 * round + 1, borrow(BorrowEdge::Drive)), now)];
        assert_eq!(ledger.loan(0, 2 * round + 1).unwrap().cells.tenancy.get(), 0);
        assert!(run(&mut now, &mut ends, Duration::from_secs(2), is_ready), "round {round}");
        // Now and then in order, now and then not.
        if round == 1 {
            ends[1].card.give_back(now, 0);
            run(&mut now, &mut ends, Duration::from_millis(100), never);
            assert_eq!(ends[1].card.state(0), link::State::Closed, "given back");
        }
        lender = ends.into_iter().next().unwrap();
        lender.incoming.clear();
    }
}

/// A loan comes to a vacant place of a card that serves another one, goes, and comes again: the card and the other
/// loan's peer notice nothing of it, and its successor finds what there is.
#[test]
fn a_loan_comes_and_goes_beside_another_one() {
    let arena = Arena::default();
    let lend = LoanRole::Lend(LendConfig::of(0));
    let mut lends = config(1, lend.clone());
    lends.drives.push(Some(DriveConfig::new(1 << 12, 512, 8)));
    let other = LoanRole::Lend(LendConfig::of(1));
    lends.loans.push(LoanConfig {
        title: Title::Line(Secret([6; 32])),
        function: FunctionId(8),
        group: Group::DEFAULT,
        role: other,
        ..lends.loans[0].clone()
    });
    let mut borrows = config(2, borrow(BorrowEdge::Drive));
    let coming = |life| LoanConfig {
        title: Title::Line(Secret([6; 32])),
        function: FunctionId(8),
        group: Group::DEFAULT,
        life,
        ..config(2, borrow(BorrowEdge::Drive)).loans.remove(0)
    };
    borrows.loans.extend([coming(0), coming(0)]);
    borrows.loans[2].function = FunctionId(9);
    let memory = borrows.new_memory(&arena);
    borrows.loans[1..].iter_mut().for_each(|loan| loan.role = LoanRole::Vacant);
    let mut now = Instant::ZERO;
    // The last place is one that the card begins without.
    let begins = CardConfig { loans: borrows.loans[..2].to_vec(), ..borrows.clone() };
    let mut ends = [End::new(&arena, lends), End::on(memory, begins, now)];
    ends[1].card.contain_faults();
    assert!(run(&mut now, &mut ends, Duration::from_secs(1), is_ready));
    let (keys, streams) =
        (ends[1].card.channel_of(0).unwrap().key_fingerprint(), ends[1].card.stream(0).name());
    let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
    let mut names = Vec::new();
    for life in 1..4 {
        ends[1].card.attach(now, 1, coming(life)).unwrap();
        ends[1].events.clear();
        assert!(run(&mut now, &mut ends, Duration::from_secs(2), |card, _| card
            .loans
            .get(1)
            .is_none_or(|loan| loan.state() == link::State::Open)));
        run(&mut now, &mut ends, Duration::from_millis(100), never);
        assert!(ends[1].card.borrowed(1).unwrap().driver.geometry().is_some(), "life {life}");
        assert!(ends[1].card.loans[1].contains_faults() && ledger.loan(1, life - 1).is_none());
        names.push(ends[1].card.stream(1).name());
        ends[1].card.give_back(now, 1);
        run(&mut now, &mut ends, Duration::from_millis(100), never);
        assert_eq!(ends[1].card.state(1), link::State::Closed, "life {life}");
    }
    names.dedup();
    assert_eq!(names.len(), 3);
    let it = ends[1].card.channel_of(0).unwrap();
    let name = ends[1].card.stream(0).name();
    assert_eq!((it.key_fingerprint(), name, it.stats().handshakes.get()), (keys, streams, 1));
    // It comes to a new place, and the card dies at once.
    ends[1].card.attach(now, 2, coming(4)).unwrap();
    (borrows.generation, borrows.seed) = (CardGeneration(2), Secret([9; 32]));
    borrows.loans[2] = coming(4);
    ends[1] = End::on(memory, borrows, now);
    run(&mut now, &mut ends, Duration::from_secs(2), never);
    assert!([0, 2].iter().all(|loan| ends[1].card.borrowed(*loan).unwrap().driver.geometry().is_some()));
}

/// A node that has called, and was never met, lends something too from now on: calls to it name its domain, without
/// which no switch can forward them.
#[test]
fn a_lender_that_has_called_is_called_in_its_domain() {
    let arena = Arena::default();
    let mut both = config(1, LoanRole::Lend(LendConfig::of(0)));
    let LoanRole::Borrow { routes, io_timeout, edge, .. } = borrow(BorrowEdge::Drive) else { unreachable!() };
    let lender = NodeKey::numbered(2).lends_in(DomainId(2));
    let role = LoanRole::Borrow { lender, routes, io_timeout, edge };
    let coming = LoanConfig { function: FunctionId(9), role, ..both.loans[0].clone() };
    both.loans.push(coming.clone());
    let memory = both.new_memory(&arena);
    both.loans[1].role = LoanRole::Vacant;
    let mut now = Instant::ZERO;
    let mut ends = [End::on(memory, both, now), End::new(&arena, config(2, borrow(BorrowEdge::Drive)))];
    now += TICK;
    let calls = ends[1].turn(now);
    ends[0].incoming.extend(calls);
    ends[0].turn(now);
    ends[0].card.attach(now, 1, coming).unwrap();
    let mut called = Vec::new();
    while called.len() < 8 && now.as_nanos() < 5_000_000_000 {
        now += TICK;
        let sent = ends[0].turn(now);
        let headers = sent.iter().map(|(_, frame)| Header::parse(frame).unwrap());
        called.extend(
            headers
                .filter(|header| header.kind == link::frame::Kind::Initiation)
                .map(|it| it.destination.domain),
        );
    }
    assert!(called.contains(&DomainId(2)), "{called:?}");
}

fn borrow(edge: BorrowEdge) -> LoanRole {
    LoanRole::Borrow { lender: lender(), routes: vec![ROUTE], io_timeout: Duration::from_secs(60), edge }
}

/// What was in one place is in another now; the one that it has left still has its name.
#[test]
fn a_function_moves_to_another_place() {
    let arena = Arena::default();
    let lend = LoanRole::Lend(LendConfig::of(0));
    let mut moved = config(2, LoanRole::Vacant);
    moved.loans.extend(config(2, borrow(BorrowEdge::Drive)).loans);
    let mut ends = [End::new(&arena, config(1, lend)), End::new(&arena, moved)];
    let is_ready = |card: &Card<'_>, _: Instant| {
        card.loans.len() == 1 || card.borrowed(1).is_some_and(|drive| drive.driver.is_ready())
    };
    assert!(run(&mut Instant::ZERO.clone(), &mut ends, Duration::from_secs(2), is_ready));
}

fn never(_: &Card<'_>, _: Instant) -> bool {
    false
}

/// Nobody tells a card that there is room again: it tries by itself, and says when.
#[test]
fn memory_without_room_is_tried_again_and_stops_nothing() {
    let (short, long) = (Duration::from_millis(250), Duration::from_secs(3));
    for full in [[true, false], [false, true], [true, true]] {
        let arena = Arena::default();
        let lend = LoanRole::Lend(LendConfig::of(0));
        let borrow = borrow(BorrowEdge::Drive);
        let mut ends = [End::new(&arena, config(1, lend)), End::new(&arena, config(2, borrow))];
        let mut now = Instant::ZERO;
        assert!(run(&mut now, &mut ends, short, is_open));
        assert!(!is_ready(&ends[1].card, now), "there is still something to do");
        for end in &mut ends {
            end.card.set_shm(now, 0, true);
            let asks = end.card.poll_transmit(now, &mut end.buffers);
            assert!(asks.is_some_and(|asks| asks.egress == Egress::Shm(0)), "at once; this frame gets lost");
        }
        assert!(run(&mut now, &mut ends, short, is_shared));
        for (end, full) in ends.iter_mut().zip(full) {
            end.buffers.has_room = !full;
        }
        assert!(run(&mut now, &mut ends, short, is_ready), "the rail takes over");
        run(&mut now, &mut ends, long, never);
        for (end, full) in ends.iter_mut().zip(full) {
            assert_eq!(full, end.buffers.scrapped.get() > 0);
            assert!(!is_shared(&end.card, now));
            end.buffers.has_room = true;
        }
        assert!(run(&mut now, &mut ends, short, is_shared), "there is room again");
    }
}

/// An assertion that fails in one loan's step: the loan ends, what the step has changed is taken back, and the other
/// loan goes on.
#[test]
fn a_fault_ends_its_loan_and_not_the_card() {
    let arena = Arena::default();
    let two = |node: u64, role: fn(usize) -> LoanRole| {
        let mut both = config(node, role(0));
        both.drives.extend(config(node, role(0)).drives);
        let mut other = config(node, role(1)).loans.remove(0);
        (other.function, other.title) = (FunctionId(8), Title::Line(Secret([6; 32])));
        both.loans.push(other);
        both
    };
    let lend = |drive| LoanRole::Lend(LendConfig::of(drive));
    let borrow = |_| borrow(BorrowEdge::Program);
    let mut ends = [End::new(&arena, two(1, lend)), End::new(&arena, two(2, borrow))];
    let are_ready = |card: &Card<'_>, _: Instant| {
        (0..2).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
    };
    let mut now = Instant::ZERO;
    assert!(run(&mut now, &mut ends, Duration::from_secs(1), are_ready));
    for end in &mut ends {
        end.card.contain_faults();
        core::iter::from_fn(|| end.card.poll_event()).for_each(drop);
        let tenancy = end.card.parts[1].unwrap().cells.tenancy.get();
        end.card.step_one(now, 1, |card| {
            card.parts[1].unwrap().cells.tenancy.set(card.ledger.journal, 77);
            card.events.push_back(CardEvent::Ready(1));
            panic!("an assertion");
        });
        assert_eq!((end.card.uncommitted(), end.card.parts[1].unwrap().cells.tenancy.get()), (0, tenancy));
        let events: Vec<_> = core::iter::from_fn(|| end.card.poll_event()).collect();
        assert_eq!(events, [CardEvent::Unusable(1, Unusable::Fault)]);
        assert!(end.card.edge_wants_close(1, 0) && !end.card.edge_wants_close(0, 0));
    }
    let mut ended = Ok(0);
    for id in 0..20 {
        ends[1].card.drive_step(now, 0, |driver, pages| {
            let page = [pages.alloc().unwrap()];
            let kind = if id % 2 == 0 { BlockKind::Write } else { BlockKind::Read };
            driver
                .submit(now, BlockRequest { id, kind, lba: id.into(), blocks: 8, fua: false, pages: &page });
        });
        run(&mut now, &mut ends, Duration::from_millis(5), never);
        ends[1].card.drive_step(now, 0, |driver, _| {
            while let Some((_, result)) = driver.poll_completion() {
                ended = ended.and_then(|count| result.map(|()| count + 1));
            }
        });
    }
    assert_eq!(ended, Ok(20));
    ends[1].card.shut_down(now);
    let is_closed = |card: &Card<'_>, _: Instant| card.state(0) == link::State::Closed;
    assert!(run(&mut now, &mut ends, Duration::from_secs(5), is_closed));
    let closed = |loan| CardEvent::Closed { loan, has_lost: false };
    let events = &ends[1].events;
    assert!([0, 1].into_iter().all(|loan| events.contains(&closed(loan))), "{events:?}");
}

/// Two borrowers of a namespace that they share, both functions of one drive.
fn sharers(node: u64) -> CardConfig {
    let role = |loan: usize| match node {
        1 => LoanRole::Lend(LendConfig { controller: loan as u16 + 1, ..LendConfig::of(0) }),
        _ => borrow(BorrowEdge::Program),
    };
    let mut both = config(node, role(0));
    let mut other = config(node, role(1)).loans.remove(0);
    (other.function, other.title) = (FunctionId(8), Title::Line(Secret([6; 32])));
    both.loans.push(other);
    let namespace = crate::NamespaceConfig {
        blocks: 1 << 12,
        block_size: 512,
        read_only: false,
        shared: true,
        controllers: vec![1, 2],
    };
    for drive in both.drives.iter_mut().flatten() {
        (drive.functions, drive.namespaces) = (2, vec![namespace.clone()]);
    }
    both
}

fn write_to(card: &mut Card<'_>, now: Instant, loan: usize, ids: Range<u32>) {
    card.drive_step(now, loan, |driver, pages| {
        for id in ids {
            let page = [pages.alloc().unwrap()];
            let (kind, lba) = (BlockKind::Write, u64::from(id) * 8);
            driver.submit(now, BlockRequest { id, kind, lba, blocks: 8, fua: false, pages: &page });
        }
    });
}

/// The loan that fails may have work under way in a namespace that others have too: that comes to its end, and they go
/// on.
fn shared_namespace_outlives_a_fault(stores: u64, in_poll: bool) -> bool {
    silence_injected();
    let (arena, faults) = (Arena::default(), Faults::default());
    let memory = sharers(1).new_memory(&arena);
    let lender = End::with_faults(memory, sharers(1), Instant::ZERO, Some(&faults));
    let mut ends = [lender, End::new(&arena, sharers(2))];
    let are_ready = |card: &Card<'_>, _: Instant| {
        (0..2).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
    };
    let mut now = Instant::ZERO;
    assert!(run(&mut now, &mut ends, Duration::from_secs(1), are_ready));
    ends[0].card.contain_faults();
    ends[0].events.clear();
    ends[0].held = Some(Vec::new());
    (0..2).for_each(|loan| write_to(&mut ends[1].card, now, loan, 0..4));
    if in_poll {
        ends[0].fault_in = Some(stores);
    }
    run(&mut now, &mut ends, Duration::from_millis(3), never);
    let mut has_failed = in_poll && ends[0].fault_in.take().is_none();
    let held = ends[0].held.take().unwrap();
    assert!(held.len() > 1);
    for (index, (loan, id)) in held.into_iter().enumerate() {
        if index == 1 && !in_poll {
            has_failed = ends[0].fail_in(stores, |card| card.handle_media(now, loan, id, Ok(()))).1;
        } else {
            ends[0].card.handle_media(now, loan, id, Ok(()));
        }
    }
    run(&mut now, &mut ends, Duration::from_millis(20), never);
    let failed: Vec<_> = (0..2).filter(|loan| ends[0].card.loans[*loan].has_failed()).collect();
    assert_eq!(failed.len(), usize::from(has_failed), "{stores}");
    let told = ends[0].events.iter().filter(|event| matches!(event, CardEvent::Unusable(_, Unusable::Fault)));
    assert_eq!(told.count(), failed.len());
    assert!(!ends[0].card.drive(0).unwrap().subsystem.is_busy(), "{stores}: others would wait for ever");
    let left = (0..2).find(|loan| !failed.contains(loan)).unwrap();
    write_to(&mut ends[1].card, now, left, 10..20);
    run(&mut now, &mut ends, Duration::from_millis(20), never);
    let mut ended = Vec::new();
    ends[1]
        .card
        .drive_step(now, left, |driver, _| ended.extend(core::iter::from_fn(|| driver.poll_completion())));
    assert_eq!(ended.len(), 14, "{stores}");
    assert!(ended.iter().all(|(_, result)| result.is_ok()));
    has_failed
}

#[test]
fn a_namespace_of_several_is_free_again_after_a_fault_while_work_is_given_out() {
    for stores in 0..400 {
        if !shared_namespace_outlives_a_fault(stores, true) {
            return assert!(stores > 2, "{stores} stores");
        }
    }
    panic!("it ends");
}

#[test]
fn a_namespace_of_several_is_free_again_after_a_fault_while_work_ends() {
    for stores in 0..400 {
        if !shared_namespace_outlives_a_fault(stores, false) {
            return assert!(stores > 10, "{stores} stores");
        }
    }
    panic!("it ends");
}

/// Nobody's step but the drive's: the functions of that drive end, and the card goes on.
#[test]
fn a_fault_in_a_step_of_a_drive_ends_what_is_lent_of_it() {
    silence_injected();
    for stores in 0..100 {
        let (arena, faults) = (Arena::default(), Faults::default());
        let memory = sharers(1).new_memory(&arena);
        let lender = End::with_faults(memory, sharers(1), Instant::ZERO, Some(&faults));
        let mut ends = [lender, End::new(&arena, sharers(2))];
        let mut now = Instant::ZERO;
        run(&mut now, &mut ends, Duration::from_millis(20), never);
        ends[0].card.contain_faults();
        ends[0].events.clear();
        if !ends[0].fail_in(stores, |card| card.note_fault(now, 0)).1 {
            assert!(ends[0].card.has_fault(0));
            return assert!(stores > 0);
        }
        assert_eq!(ends[0].card.uncommitted(), 0);
        let events: Vec<_> = core::iter::from_fn(|| ends[0].card.poll_event()).collect();
        assert!(
            events.starts_with(&[0, 1].map(|loan| CardEvent::Unusable(loan, Unusable::Fault))),
            "{events:?}"
        );
        // It lives, and hears of what cannot help any more.
        ends[0].card.note_fault(now, 0);
        run(&mut now, &mut ends, Duration::from_millis(20), never);
        assert!(ends[0].card.has_fault(0));
    }
    panic!("it ends");
}

/// A lender and a borrower whose frames reach the lender first from `stranger`, where somebody repeats them faster than
/// the network.
struct Mimicked<'m> {
    ends: [End<'m>; 2],
    stranger: Address,
    /// Bytes that the stranger has sent, and that were sent there.
    bytes: [usize; 2],
    /// What was sent to the borrower's own address, and the addresses beside.
    at_home: usize,
    home: Address,
}

impl Mimicked<'_> {
    /// Time passes; the stranger acts if `mimics`.
    fn run(&mut self, now: &mut Instant, time: Duration, mimics: bool) {
        let until = *now + time;
        while *now < until {
            *now += TICK;
            let [lender, borrower] = &mut self.ends;
            let sent = borrower.turn(*now);
            for (egress, frame) in sent {
                let Egress::Rail(rail) = egress else { continue };
                let is_sealed = link::frame::Header::parse(&frame).unwrap().kind == link::frame::Kind::Sealed;
                if mimics && is_sealed {
                    self.bytes[0] += frame.len();
                    lender.card.handle_frame(*now, rail, self.stranger, &mut frame.clone());
                }
                lender.card.handle_frame(*now, rail, self.home, &mut frame.clone());
            }
            lender.card.handle_timeout(*now);
            while let Some(work) = lender.card.poll_media() {
                lender.card.handle_media(*now, work.loan, work.id, Ok(()));
            }
            while let Some(outgoing) = lender.card.poll_transmit(*now, &mut lender.buffers) {
                if outgoing.to == Some(self.home) {
                    self.at_home += outgoing.len;
                    let frame = lender.buffers.buffer[..outgoing.len].to_vec();
                    borrower.incoming.push_back((outgoing.egress, frame));
                } else if outgoing.to == Some(self.stranger) {
                    self.bytes[1] += outgoing.len;
                }
            }
        }
    }

    fn reads(&mut self, now: Instant, count: u32) {
        self.ends[1].card.drive_step(now, 0, |driver, pages| {
            for id in 0..count {
                let page = [pages.alloc().unwrap()];
                let request =
                    BlockRequest { id, kind: BlockKind::Read, lba: 0, blocks: 8, fua: false, pages: &page };
                driver.submit(now, request);
            }
        });
    }
}

fn mimicked(arena: &Arena) -> Mimicked<'_> {
    let lend = LoanRole::Lend(LendConfig::of(0));
    let borrow = borrow(BorrowEdge::Program);
    let ends = [End::new(arena, config(1, lend)), End::new(arena, config(2, borrow))];
    Mimicked { ends, stranger: Address([9; 28]), bytes: [0; 2], at_home: 0, home: Address([2; 28]) }
}

#[test]
fn who_repeats_frames_faster_than_the_network_leads_no_lender_astray() {
    let arena = Arena::default();
    let mut world = mimicked(&arena);
    let mut now = Instant::ZERO;
    world.run(&mut now, Duration::from_millis(500), false);
    assert!(is_ready(&world.ends[1].card, now) && world.bytes == [0; 2]);
    world.run(&mut now, Duration::from_millis(500), true);
    world.reads(now, 8);
    world.run(&mut now, Duration::from_millis(500), true);
    let [came, left] = world.bytes;
    assert!(came > 0 && left > 0 && left <= came, "challenges only: {left} bytes for {came}");
    assert!(world.at_home > 8 * 4096, "the borrower has its data");
    assert!(world.ends[1].card.stream(0).is_idle() && is_open(&world.ends[0].card, now));
    assert_eq!(world.ends[0].card.channel_of(0).unwrap().stats().handshakes.get(), 1, "nobody fell silent");
}

#[test]
fn a_borrower_is_followed_to_its_new_address() {
    let arena = Arena::default();
    let mut world = mimicked(&arena);
    let mut now = Instant::ZERO;
    world.run(&mut now, Duration::from_millis(500), false);
    world.home = Address([3; 28]);
    let before = now;
    world.at_home = 0;
    world.reads(now, 8);
    // What was sent to the old address is sent again when the probe has run out.
    while world.at_home < 8 * 4096 {
        world.run(&mut now, TICK, false);
        assert!(now.since(before) < base::times::RAIL_VERDICT, "{} bytes", world.at_home);
    }
}

#[test]
fn a_newcomer_waits_for_no_challenge_and_what_is_not_proven_gets_little() {
    let arena = Arena::default();
    let mut world = mimicked(&arena);
    let mut now = Instant::ZERO;
    // From the very first frame under keys on.
    world.run(&mut now, Duration::from_millis(500), true);
    let [came, left] = world.bytes;
    assert!(left <= came * 3, "{left} bytes for {came}");
    // Without the stranger the drive is there at once.
    let mut world = mimicked(&arena);
    let mut now = Instant::ZERO;
    while !is_open(&world.ends[0].card, now) {
        world.run(&mut now, TICK, false);
    }
    world.run(&mut now, TICK * 3, false);
    assert!(world.at_home > 0);
}

#[test]
fn a_newcomer_is_served_though_somebody_repeats_each_of_its_frames_faster() {
    let arena = Arena::default();
    let mut world = mimicked(&arena);
    let mut now = Instant::ZERO;
    world.run(&mut now, Duration::from_secs(3), true);
    assert!(is_ready(&world.ends[1].card, now), "{} bytes went astray", world.bytes[1]);
    let before = world.bytes;
    world.reads(now, 8);
    world.run(&mut now, Duration::from_millis(500), true);
    let [came, left] = [0, 1].map(|at| world.bytes[at] - before[at]);
    assert!(
        world.ends[1].card.stream(0).is_idle() && left <= came,
        "challenges only: {left} bytes for {came}"
    );
}

/// The answers of a lender's handshakes, by where they go.
fn answers(lender: &mut End<'_>, now: Instant) -> Vec<Address> {
    let mut to = Vec::new();
    while let Some(outgoing) = lender.card.poll_transmit(now, &mut lender.buffers) {
        let header = Header::parse(&lender.buffers.buffer[..outgoing.len]).unwrap();
        to.extend(outgoing.to.filter(|_| header.kind == link::frame::Kind::Response));
    }
    to
}

/// Another life calls, and while the one before is asked whether it is there, somebody repeats an old message.
#[test]
fn the_answer_to_a_call_that_waits_goes_to_who_has_called() {
    let arena = Arena::default();
    let mut world = mimicked(&arena);
    let mut now = Instant::ZERO;
    world.run(&mut now, Duration::from_millis(500), false);
    let first_message = |life: u8, incarnation: u64| {
        let borrow = borrow(BorrowEdge::Drive);
        let mut config = config(2, borrow);
        config.incarnation = Incarnation(incarnation);
        (config.life, config.seed) = (LifeId([life; 16]), Secret([life; 32]));
        End::new(&arena, config).turn(now).swap_remove(0).1
    };
    let (mut call, mut old) = (first_message(3, 2), first_message(4, 0));
    let lender = &mut world.ends[0];
    let (caller, stranger) = (Address([3; 28]), world.stranger);
    lender.card.handle_frame(now, RailId::ALL[0], caller, &mut call);
    assert_eq!(answers(lender, now), []);
    now += base::times::RAIL_VERDICT / 2;
    lender.card.handle_frame(now, RailId::ALL[0], stranger, &mut old);
    assert_eq!(answers(lender, now), [stranger], "it is refused");
    let mut answered = Vec::new();
    for _ in 0..400 {
        now += Duration::from_millis(1);
        lender.card.handle_timeout(now);
        answered.extend(answers(lender, now));
    }
    assert_eq!(answered, [caller]);
}

/// A first message for what is borrowed here, not lent, and frames that come on another rail than they say.
#[test]
fn frames_come_on_their_own_rail_and_calls_are_for_what_is_lent() {
    let arena = Arena::default();
    let lend = LoanRole::Lend(LendConfig::of(0));
    let borrow = || LoanRole::Borrow {
        lender: lender(),
        routes: vec![ROUTE, Route { rail: RailId::ALL[1], ..ROUTE }],
        io_timeout: Duration::from_secs(60),
        edge: BorrowEdge::Drive,
    };
    let two_rails = |node, role| CardConfig { rails: RailConfig::first(2, 9000), ..config(node, role) };
    let [mut lender, mut borrower] =
        [two_rails(1, lend), two_rails(2, borrow())].map(|config| End::new(&arena, config));
    let mut other = End::new(&arena, config(3, borrow()));
    let now = Instant::ZERO + TICK;
    let calls: Vec<_> = borrower.turn(now).into_iter().map(|(_, call)| call).collect();
    let [call, other_rails] = &calls[..] else { panic!("{} calls", calls.len()) };
    other.card.handle_frame(now, RailId::ALL[0], PEER, &mut call.clone());
    let count = |end: &End<'_>| {
        let gauges = &end.card.ledger.root.gauges;
        (gauges.dropped_unknown.get(), gauges.dropped_misdirected.get())
    };
    assert_eq!(count(&other), (1, 0));
    let with_rails = |source: usize, destination: usize| {
        let mut changed = call.clone();
        let mut header = Header::parse(&changed).unwrap();
        (header.source.rail, header.destination.rail) = (RailId::ALL[source], RailId::ALL[destination]);
        header.write(&mut changed);
        changed
    };
    for (misdirected, (socket, source, destination)) in
        (1..).zip([(1, 0, 0), (0, 1, 1), (0, 0, 1), (2, 2, 2)])
    {
        lender.card.handle_frame(now, RailId::ALL[socket], PEER, &mut with_rails(source, destination));
        assert_eq!((count(&lender), answers(&mut lender, now)), ((0, misdirected), vec![]));
    }
    lender.card.handle_frame(now, RailId::ALL[1], PEER, &mut other_rails.clone());
    assert_eq!((count(&lender), answers(&mut lender, now)), ((0, 4), vec![PEER]));
}

#[test]
#[should_panic(expected = "nodes speak of a function by its name")]
fn two_loans_of_one_function_are_refused() {
    let mut twice = config(2, LoanRole::Vacant);
    let borrow = borrow(BorrowEdge::Drive);
    twice.loans = config(2, borrow.clone()).loans;
    twice.loans.extend(config(2, borrow).loans);
    End::new(&Arena::default(), twice);
}

/// Two lenders: what is drawn for one tells nothing of the other.
#[test]
fn channels_of_a_card_draw_random_numbers_of_their_own() {
    let arena = Arena::default();
    let mut both = sharers(2);
    let LoanRole::Borrow { lender, .. } = &mut both.loans[1].role else { unreachable!() };
    *lender = NodeKey::numbered(3).lends_in(DomainId(3));
    let mut borrower = End::new(&arena, both);
    let calls = borrower.turn(Instant::ZERO + TICK);
    let [(_, one), (_, other)] = &calls[..] else { panic!("{} calls", calls.len()) };
    let ephemeral = |call: &[u8]| call[link::frame::HEADER_LEN..][..32].to_vec();
    assert_ne!(ephemeral(one), ephemeral(other));
}

/// Each end gives the other one an id of the loan, which it knows then; what bears another one reaches nothing.
#[test]
fn requests_bear_the_id_that_their_receiver_has_given_to_the_stream() {
    let arena = Arena::default();
    let memories = [sharers(1), sharers(2)].map(|config| (config.new_memory(&arena), config));
    let ledgers = memories.each_ref().map(|(memory, _)| *memory);
    let mut ends = memories.map(|(memory, config)| End::on(memory, config, Instant::ZERO));
    let are_ready = |card: &Card<'_>, _: Instant| {
        (0..2).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
    };
    assert!(run(&mut Instant::ZERO.clone(), &mut ends, Duration::from_secs(1), are_ready));
    for memory in ledgers {
        let ledger = NodeLedger::new(memory, None, RuleSet::ALL);
        let known = [0, 1].map(|place| ledger.loan(place, 0).unwrap().known_as());
        assert_eq!(known, [0, 1].map(crate::requester_of));
        // And of what it lends the place, which nobody else knows.
        let told = [0, 1].map(|place| ledger.loan(place, 0).unwrap().leads_to());
        let lends = ledger.loan(0, 0).unwrap().end.kind() == crate::LoanKind::Lend;
        assert_eq!(told, [0, 1].map(|place| if lends { 0 } else { base_of(place) }));
        assert!((0..2).all(|place| ledger.loan(place, 0).unwrap().cells.edge.denied_accesses.get() == 0));
    }
    // The host of the other loan asks in this stream.
    let denied = denied_read(&mut ends[0].card, 0, crate::requester_of(1), (1, 0, 0));
    assert_eq!(denied.map(|denied| denied.requester), Some(crate::requester_of(1)));
    assert_eq!(denied_read(&mut ends[0].card, 0, crate::requester_of(0), (1, 0, 0)), None);
}

/// Reads eight bytes at rail, domain and offset of `at` in the stream of a loan, as if that had come on rail 0. What
/// was denied, if it was.
fn denied_read(
    card: &mut Card<'_>,
    loan: usize,
    requester: pcie::Bdf,
    (domain, rail, offset): (u32, u8, u64),
) -> Option<crate::Denial> {
    let (domain, rail) = (DomainId(domain), RailId::ALL[usize::from(rail)]);
    let address = fabric::FabricAddress { domain, rail, offset }.encode();
    let request = pcie::MemoryRequest::new(requester, pcie::Tag::new(3).unwrap(), address, 8).unwrap();
    let bytes = pcie::Header::MemoryRead(request).encode();
    let view = pcie::TlpView::parse(bytes.as_bytes()).unwrap();
    let gauges = &card.parts[loan].unwrap().cells.edge;
    let before = gauges.denied_accesses.get();
    let loan = &mut card.loans[loan];
    loan.stream.port.rail = RailId::ALL[0];
    link::Sink::accept(&mut loan.end, Instant::ZERO, &mut loan.stream.port, &view);
    let completion =
        loan.stream.port.sender.headers().last().map(|header| header.as_bytes().to_vec()).unwrap();
    let Ok(pcie::Header::Completion(completion)) = pcie::Header::decode(&completion) else { panic!() };
    card.ledger.journal.commit();
    let denied = gauges.denied_accesses.get() - before;
    let is_refused = completion.status == pcie::CompletionStatus::UnsupportedRequest;
    assert_eq!((denied, is_refused), if is_refused { (1, true) } else { (0, false) });
    gauges.last_denial().filter(|_| denied > 0)
}

/// Two loans between two nodes, under these rules.
fn sharers_met(arena: &Arena, rules: RuleSet) -> [End<'_>; 2] {
    let under = |config: CardConfig| End::new(arena, CardConfig { rules, ..config });
    let mut ends = [sharers(1), sharers(2)].map(under);
    let are_ready = |card: &Card<'_>, _: Instant| {
        (0..2).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
    };
    assert!(run(&mut Instant::ZERO.clone(), &mut ends, Duration::from_secs(1), are_ready));
    ends
}

/// Two functions of one lender, and two drives of one borrower: what one's stream brings for the other reaches neither.
#[test]
fn an_address_of_another_endpoint_is_denied_on_a_stream() {
    let queues = crate::borrower::QUEUE_MEMORY;
    // At the lender the second dword of CAP can be read, and at the borrower its queues.
    let offsets = [0, queues];
    let arena = Arena::default();
    let mut ends = sharers_met(&arena, RuleSet::ALL);
    for (node, offset) in offsets.into_iter().enumerate() {
        let (card, domain) = (&mut ends[node].card, node as u32 + 1);
        for (loan, other) in [(0, 1), (1, 0)] {
            let requester = crate::requester_of(loan);
            let mut read = |domain, rail, offset| denied_read(card, loan, requester, (domain, rail, offset));
            assert_eq!(read(domain, 0, base_of(loan) + offset), None);
            assert!(read(domain, 2, base_of(loan) + offset).is_some(), "it has come on another rail");
            let denied = read(domain, 0, base_of(other) + offset).unwrap();
            assert_eq!((denied.requester, denied.right), (requester, crate::Right::Read));
            assert_eq!(fabric::FabricAddress::decode(denied.address).offset, base_of(other) + offset);
            assert!(read(domain, 0, base_of(2) + offset).is_some(), "nothing is there");
            assert!(read(domain + 1, 0, base_of(loan) + offset).is_some(), "another domain");
        }
    }
    // Without the rule a stream is as good as an address.
    let arena = Arena::default();
    let mut ends = sharers_met(&arena, RuleSet::ALL.without(Rule::AddressDecoder));
    assert_eq!(denied_read(&mut ends[0].card, 0, crate::requester_of(0), (1, 0, base_of(1))), None);
    assert!(denied_read(&mut ends[0].card, 0, crate::requester_of(1), (1, 0, base_of(0))).is_some());
    let arena = Arena::default();
    let mut ends = sharers_met(&arena, RuleSet::ALL.without(Rule::AddressRails));
    assert_eq!(denied_read(&mut ends[0].card, 0, crate::requester_of(0), (1, 2, base_of(0))), None);
    let arena = Arena::default();
    let mut ends = sharers_met(&arena, RuleSet::ALL.without(Rule::RequesterRewrite));
    assert_eq!(denied_read(&mut ends[0].card, 0, crate::requester_of(1), (1, 0, base_of(0))), None);
    assert!(denied_read(&mut ends[0].card, 0, crate::requester_of(1), (1, 0, base_of(1))).is_some());
}

/// Nothing leads to where a lender says that its function lies, and its borrower says why. It is used when the lender
/// has thought better of it.
#[test]
fn a_function_that_lies_beyond_the_aperture_is_refused_by_name() {
    for lie in [(1 << 44) - (1 << 33), u64::MAX - 4095, 0x801] {
        let arena = Arena::default();
        let lends = || config(1, LoanRole::Lend(LendConfig::of(0)));
        let borrows = config(2, borrow(BorrowEdge::Drive));
        let mut ends = [lends(), borrows].map(|config| End::new(&arena, config));
        ends[0].card.loans[0].lies_at = Some(lie);
        let mut now = Instant::ZERO;
        assert!(!run(&mut now, &mut ends, Duration::from_secs(1), is_ready));
        let why = ends[1].events.iter().find_map(|event| match event {
            CardEvent::Unusable(0, Unusable::Window(why)) => Some(why.to_string()),
            _ => None,
        });
        assert!(why.unwrap().starts_with(&format!("{lie:#x} is ")));
        assert_eq!(ends[1].card.state(0), link::State::Open);
        // The borrower asks anew when its lender's next life begins.
        let honest = CardConfig { incarnation: Incarnation(2), life: LifeId([9; 16]), ..lends() };
        ends[0] = End::on(honest.new_memory(&arena), honest, now);
        assert!(run(&mut now, &mut ends, Duration::from_secs(60), is_ready));
    }
}

/// Two loans of one lender are streams of one channel.
#[test]
fn loans_of_one_lender_share_a_channel() {
    let arena = Arena::default();
    let mut ends = [End::new(&arena, sharers(1)), End::new(&arena, sharers(2))];
    let are_ready = |card: &Card<'_>, _: Instant| {
        (0..2).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
    };
    assert!(run(&mut Instant::ZERO.clone(), &mut ends, Duration::from_secs(1), are_ready));
    for end in &ends {
        assert_eq!((end.card.peer_of(0), end.card.peer_of(1)), (Some(0), Some(0)));
        assert_eq!(end.card.channel(0).unwrap().stats().handshakes.get(), 1);
        assert_ne!(end.card.stream_id(0), end.card.stream_id(1));
    }
}

/// The rail that answers on equal terms at an end.
fn rail_is_up(card: &Card<'_>, rail: usize, now: Instant) -> bool {
    let rail = RailId::ALL[rail];
    let status = card.channel_of(0).and_then(|channel| channel.rail_status(rail, now));
    status.is_some_and(|(path, status)| path.rails() == Some((rail, rail)) && status.is_up)
}

/// A node that has lost a carrier says so on another rail, and the others use that one until the first has answered.
#[test]
fn a_carrier_that_is_lost_is_known_to_others_at_once() {
    let arena = Arena::default();
    let with_rails = |config: CardConfig| CardConfig { rails: RailConfig::first(2, 9000), ..config };
    let second = Route { rail: RailId::ALL[1], ..ROUTE };
    let LoanRole::Borrow { lender, io_timeout, edge, .. } = borrow(BorrowEdge::Drive) else { unreachable!() };
    let borrows = LoanRole::Borrow { lender, routes: vec![ROUTE, second], io_timeout, edge };
    let configs = [config(1, LoanRole::Lend(LendConfig::of(0))), config(2, borrows)];
    let mut ends = configs.map(|config| End::new(&arena, with_rails(config)));
    let mut now = Instant::ZERO;
    let are_up =
        |card: &Card<'_>, now: Instant| is_ready(card, now) && (0..2).all(|rail| rail_is_up(card, rail, now));
    assert!(run(&mut now, &mut ends, Duration::from_secs(3), are_up));
    ends[1].card.set_lost_carriers(now, 0b01);
    let said = ends[1].turn(now);
    ends[0].incoming.extend(said);
    // The questions that it asks now are lost.
    ends[0].turn(now);
    assert!(!rail_is_up(&ends[0].card, 0, now) && rail_is_up(&ends[0].card, 1, now));
    // It is back, and answers.
    ends[1].card.set_lost_carriers(now, 0);
    assert!(run(&mut now, &mut ends, Duration::from_secs(3), are_up));
}

/// Nobody looks at loans that do nothing, however long.
#[test]
fn loans_that_do_nothing_are_left_alone() {
    let arena = Arena::default();
    let mut ends = sharers_met(&arena, RuleSet::ALL);
    let mut now = Instant::ZERO + Duration::from_secs(1);
    let changed = |ends: &[End<'_>; 2]| {
        let of = |end: &End<'_>| {
            [Asker::Gauges, Asker::Holders, Asker::Edges].map(|by| end.card.loans.take_changed(by))
        };
        ends.each_ref().map(of).iter().flatten().any(|loans| !loans.is_empty())
    };
    run(&mut now, &mut ends, Duration::from_secs(1), never);
    changed(&ends);
    run(&mut now, &mut ends, 4 * PUBLISH, never);
    assert!(!changed(&ends));
    now += TICK;
    write_to(&mut ends[1].card, now, 1, 0..1);
    assert!(changed(&ends));
}

/// Somebody has one true first message, and sends it 10,000 times a second from as many addresses.
#[test]
fn calls_beyond_a_measure_are_dropped_and_nothing_else_is() {
    let arena = Arena::default();
    let lend = LoanRole::Lend(LendConfig::of(0));
    let borrow = borrow(BorrowEdge::Drive);
    let [mut lender, mut borrower] =
        [config(1, lend), config(2, borrow)].map(|config| End::new(&arena, config));
    let start = Instant::ZERO + TICK;
    let call = borrower.turn(start).swap_remove(0).1;
    let mut forged = call.clone();
    let mark = forged.len() - link::frame::TAG_LEN - 1;
    forged[mark] ^= 1;
    let dropped = |end: &End<'_>| end.card.ledger.root.gauges.dropped_calls.get();
    for number in 0..10_000_u32 {
        let now = start + Duration::from_micros(100) * number;
        let [a, b, ..] = number.to_le_bytes();
        let from =
            Address([a, b, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        lender.card.handle_frame(now, RailId::ALL[0], from, &mut forged.clone());
        lender.card.handle_frame(now, RailId::ALL[0], from, &mut call.clone());
    }
    let cookies = |end: &End<'_>| end.card.lobby.stats().cookies.get();
    let opened = 10_000 - cookies(&lender);
    assert!(
        (500..=256 + 500).contains(&opened),
        "{opened} in a second; those that are not true take no place"
    );
    assert!(dropped(&lender) == 0 && lender.card.replies.len() <= 64, "who shows where it is would be heard");
    // It calls itself when the flood is over.
    let (now, before) = (start + Duration::from_secs(2), cookies(&lender));
    lender.card.handle_frame(now, RailId::ALL[0], PEER, &mut call.clone());
    assert_eq!(cookies(&lender), before);
}

/// What was under way of an assignment before the present one is fenced, and nothing else is.
#[test]
fn frames_of_another_generation_of_a_loan_are_refused() {
    let arena = Arena::default();
    let mut ends = [1, 2].map(|node| End::new(&arena, sharers(node)));
    let are_ready = |card: &Card<'_>, _: Instant| {
        (0..2).all(|loan| card.borrowed(loan).is_none_or(|drive| drive.driver.is_ready()))
    };
    let mut now = Instant::ZERO;
    assert!(run(&mut now, &mut ends, Duration::from_secs(1), are_ready));
    let dropped = |ends: &[End<'_>; 2]| ends[0].card.channel(0).unwrap().stats().dropped_generation.get();
    assert_eq!(dropped(&ends), 0);
    ends[0].card.loans[0].stream.set_generation(LoanGeneration(6));
    for loan in 0..2 {
        write_to(&mut ends[1].card, now, loan, 0..4);
    }
    run(&mut now, &mut ends, Duration::from_millis(300), never);
    assert!(dropped(&ends) > 0);
    let is_done = [0, 1].map(|loan| ends[1].card.stream(loan).is_idle());
    assert_eq!(is_done, [false, true]);
}
