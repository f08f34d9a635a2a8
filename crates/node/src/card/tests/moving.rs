//! Nodes that are found though they have moved: a frame arrives where somebody is, and nowhere else.

use super::*;
use crate::sightings::Cause;
use base::ids::RailId;

const LENDER: Address = Address([1; 28]);
const BORROWER: Address = Address([2; 28]);
const ELSEWHERE: Address = Address([3; 28]);
const STRANGER: Address = Address([9; 28]);

fn lends() -> LoanRole {
    LoanRole::Lend(LendConfig::of(0))
}

/// A lender and a borrower, by address.
struct Net<'m> {
    ends: [End<'m>; 2],
    at: [Address; 2],
    /// What the lender says that its agent is to keep.
    located: Vec<Whereabouts>,
    /// First messages of the lender, by where they went.
    calls: Vec<Address>,
    /// Somebody repeats what the lender sends, faster than the network.
    mimics: bool,
    /// Bytes that he has sent to the borrower, and that were sent to him.
    bytes: [usize; 2],
}

impl<'m> Net<'m> {
    fn new(arena: &'m Arena) -> Self {
        let ends =
            [End::new(arena, config(1, lends())), End::new(arena, config(2, borrow(BorrowEdge::Program)))];
        let at = [LENDER, BORROWER];
        Self { ends, at, located: Vec::new(), calls: Vec::new(), mimics: false, bytes: [0; 2] }
    }

    fn run(&mut self, now: &mut Instant, time: Duration) {
        let until = *now + time;
        while *now < until {
            *now += TICK;
            for sender in 0..2 {
                self.turn(*now, sender);
            }
        }
    }

    fn turn(&mut self, now: Instant, sender: usize) {
        let end = &mut self.ends[sender];
        end.card.handle_timeout(now);
        while let Some(event) = end.card.poll_event() {
            match event {
                CardEvent::Tenant(loan, tenancy) => end.card.set_tenancy(now, loan, tenancy),
                CardEvent::Located(holder) => self.located.push(holder),
                event => end.events.push(event),
            }
        }
        while let Some(work) = end.card.poll_media() {
            end.card.handle_media(now, work.loan, work.id, Ok(()));
        }
        let mut frames = Vec::new();
        while let Some(outgoing) = end.card.poll_transmit(now, &mut end.buffers) {
            frames.push((outgoing.to.unwrap(), end.buffers.buffer[..outgoing.len].to_vec()));
        }
        let other = 1 - sender;
        for (to, frame) in frames {
            let kind = Header::parse(&frame).unwrap().kind;
            if sender == 0 && kind == link::frame::Kind::Initiation {
                self.calls.push(to);
            }
            if to == STRANGER {
                self.bytes[1] += frame.len();
            }
            if to != self.at[other] {
                continue;
            }
            let card = &mut self.ends[other].card;
            if self.mimics && sender == 0 && kind == link::frame::Kind::Sealed {
                self.bytes[0] += frame.len();
                card.handle_frame(now, RailId::ALL[0], STRANGER, &mut frame.clone());
            }
            card.handle_frame(now, RailId::ALL[0], self.at[sender], &mut frame.clone());
        }
    }

    /// The lender begins anew, elsewhere, with what its agent has kept.
    fn restart_lender(&mut self, arena: &'m Arena, now: Instant, holders: Vec<Whereabouts>) {
        let mut config = config(1, lends());
        let held = config.loans[0].tenancy;
        assert!(held.is_held && held.node == NodeKey::numbered(2).id());
        (config.incarnation, config.life, config.seed) = (Incarnation(2), LifeId([8; 16]), Secret([8; 32]));
        config.holders = holders;
        self.ends[0] = End::on(config.new_memory(arena), config, now);
        self.at[0] = ELSEWHERE;
    }

    fn is_served(&mut self, now: &mut Instant) -> bool {
        let before = self.ends[1].events.len();
        self.ends[1].card.drive_step(*now, 0, |driver, pages| {
            let page = [pages.alloc().unwrap()];
            let request =
                BlockRequest { id: 5, kind: BlockKind::Read, lba: 0, blocks: 8, fua: false, pages: &page };
            driver.submit(*now, request);
        });
        self.run(now, Duration::from_millis(200));
        assert_eq!(self.ends[1].events.len(), before);
        let mut served = false;
        self.ends[1].card.drive_step(*now, 0, |driver, _| {
            served = core::iter::from_fn(|| driver.poll_completion()).any(|(_, result)| result.is_ok());
        });
        served
    }
}

#[test]
fn a_lender_that_begins_anew_elsewhere_calls_who_has_its_function() {
    let arena = Arena::default();
    for knows in [true, false] {
        let mut net = Net::new(&arena);
        let mut now = Instant::ZERO;
        net.run(&mut now, Duration::from_millis(500));
        let [located] = net.located[..] else { panic!("{:?}", net.located) };
        let key = NodeKey::numbered(2).public();
        assert_eq!((located.key, located.addresses[0], located.domain), (key, BORROWER, DomainId(2)));
        assert!(located.addresses[1] == Address::NONE && net.calls.is_empty());
        net.restart_lender(&arena, now, if knows { vec![located] } else { Vec::new() });
        net.run(&mut now, Duration::from_secs(2));
        assert_eq!(is_open(&net.ends[0].card, now), knows);
        assert_eq!(knows, net.calls.contains(&BORROWER));
        let absent = net.ends[0].card.parts[0].unwrap().cells.offer.absent_holder();
        assert_eq!(absent.map(|(tenancy, _)| tenancy.node), (!knows).then(|| NodeKey::numbered(2).id()));
        if knows {
            assert!(net.is_served(&mut now));
        }
    }
}

#[test]
fn a_lender_that_moves_while_it_runs_is_followed() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    net.at[0] = ELSEWHERE;
    net.run(&mut now, Duration::from_millis(500));
    assert!(net.is_served(&mut now));
    assert_eq!(net.ends[1].card.channel_of(0).unwrap().stats().handshakes.get(), 1);
    // Back where its line says, in another life that nobody has told where the borrower is.
    net.restart_lender(&arena, now, Vec::new());
    net.at[0] = LENDER;
    net.run(&mut now, Duration::from_secs(3));
    assert!(net.is_served(&mut now));
}

#[test]
fn who_repeats_frames_faster_than_the_network_leads_no_borrower_astray() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    net.mimics = true;
    net.run(&mut now, Duration::from_millis(500));
    assert!(net.is_served(&mut now));
    let [came, left] = net.bytes;
    assert!(came > 0 && left > 0 && left <= came, "challenges only: {left} bytes for {came}");
    assert_eq!(net.ends[1].card.channel_of(0).unwrap().stats().handshakes.get(), 1, "nobody fell silent");
}

/// A table that was stolen, or is old: nobody is there.
#[test]
fn who_does_not_answer_is_called_seldom_and_not_for_ever() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    let located = net.located.clone();
    net.at[1] = ELSEWHERE;
    net.restart_lender(&arena, now, located.clone());
    let end = &mut net.ends[0];
    let mut calls = 0;
    let begun = now;
    while now.since(begun) < base::times::HOLD + Duration::from_secs(60) {
        now += Duration::from_millis(10);
        end.card.handle_timeout(now);
        while end.card.poll_event().is_some() {}
        while let Some(outgoing) = end.card.poll_transmit(now, &mut end.buffers) {
            assert_eq!(outgoing.to, Some(BORROWER));
            calls += 1;
        }
        if now.since(begun) == Duration::from_secs(10) {
            assert!((8..=16).contains(&calls), "{calls}");
        }
    }
    assert!(calls < 620, "{calls}");
    assert_eq!(end.card.peers().count(), 0);
    // Whoever has nothing any more is not called.
    let mut config = config(1, lends());
    config.loans[0].tenancy.is_held = false;
    config.holders = located;
    let mut end = End::on(config.new_memory(&arena), config, now);
    assert!(end.turn(now).is_empty() && end.card.peers().count() == 0);
}

/// A borrower's card that learns that another node has used its drive dies before its agent hears of it.
#[test]
fn a_new_card_says_again_that_another_node_has_used_the_drive() {
    let arena = Arena::default();
    let borrower = config(2, borrow(BorrowEdge::Program));
    let memory = borrower.new_memory(&arena);
    let mut net = Net::new(&arena);
    net.ends[1] = End::on(memory, borrower.clone(), Instant::ZERO);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    let mut lender = config(1, lends());
    lender.loans[0].tenancy = lender.loans[0].tenancy.renewed(LifeId([6; 16]));
    (lender.incarnation, lender.life, lender.seed) = (Incarnation(2), LifeId([8; 16]), Secret([8; 32]));
    net.ends[0] = End::on(lender.new_memory(&arena), lender, now);
    let has_said = |net: &Net<'_>| net.ends[1].events.contains(&CardEvent::Overtaken(0));
    while !has_said(&net) {
        assert!(now < Instant::ZERO + Duration::from_secs(5), "{:?}", net.ends[1].events);
        net.run(&mut now, TICK);
    }
    let next = |generation, now| {
        let config = CardConfig { generation: CardGeneration(generation), ..borrower.clone() };
        End::on(memory, config, now)
    };
    net.ends[1] = next(2, now);
    net.run(&mut now, TICK);
    assert!(has_said(&net));
    net.run(&mut now, Duration::from_secs(1));
    assert!(net.is_served(&mut now));
    net.ends[1] = next(3, now);
    net.run(&mut now, Duration::from_secs(1));
    assert!(!has_said(&net), "it is known");
}

/// What answers a lender's call is a copy of who has the function: that one could not have been heard yet.
#[test]
fn a_copy_that_answers_a_lender_that_begins_anew_waits_for_the_life_before() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    let located = net.located.clone();
    net.restart_lender(&arena, now, located);
    let mut copy = config(2, borrow(BorrowEdge::Program));
    (copy.incarnation, copy.life, copy.seed) = (Incarnation(2), LifeId([7; 16]), Secret([7; 32]));
    net.ends[1] = End::on(copy.new_memory(&arena), copy, now);
    net.run(&mut now, Duration::from_millis(1900));
    assert!(net.calls.contains(&BORROWER) && !is_open(&net.ends[0].card, now));
    net.run(&mut now, Duration::from_millis(2500));
    assert!(is_open(&net.ends[0].card, now));
}

/// Somebody starts a copy of a lender's state folder: all three nodes that have to do with it see that.
#[test]
fn two_lives_of_one_identity_are_seen_by_whoever_has_to_do_with_them() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    let mut copy = config(1, lends());
    (copy.incarnation, copy.life, copy.seed) = (Incarnation(2), LifeId([8; 16]), link::Secret([8; 32]));
    copy.holders.clone_from(&net.located);
    let copy = End::on(copy.new_memory(&arena), copy, now);
    let [lender, borrower] = net.ends;
    let mut ends = [(LENDER, lender), (BORROWER, borrower), (ELSEWHERE, copy)];
    run_ends(&mut ends, &mut now, Duration::from_secs(5));
    let node = NodeKey::numbered(1).id();
    let seen = ends.map(|(_, end)| {
        let all = end.card.ledger.root.sightings.all();
        all.map(|it| (it.cause, it.node, it.at)).collect::<Vec<_>>()
    });
    assert_eq!(seen[0], [(Cause::OwnTwin, node, Some(ELSEWHERE))]);
    assert_eq!(seen[1], [(Cause::Twin, node, Some(ELSEWHERE))]);
    assert_eq!(seen[2], [(Cause::OwnRefusal, node, Some(BORROWER))]);
}

/// The lender has moved, so the borrower's line is out of date; the borrower begins anew where it was. The lender calls
/// it, as it calls whoever has its function and is silent, and the answer shows on which rail the borrower is.
#[test]
fn a_borrower_that_begins_anew_is_found_by_a_lender_that_has_moved() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    net.at[0] = ELSEWHERE;
    net.run(&mut now, Duration::from_millis(500));
    assert!(net.is_served(&mut now));
    let mut anew = config(2, borrow(BorrowEdge::Program));
    (anew.incarnation, anew.life, anew.seed) = (Incarnation(2), LifeId([7; 16]), Secret([7; 32]));
    net.ends[1] = End::on(anew.new_memory(&arena), anew, now);
    net.run(&mut now, Duration::from_secs(20));
    assert!(net.calls.contains(&BORROWER));
    assert!(is_open(&net.ends[0].card, now) && is_open(&net.ends[1].card, now));
    assert!(net.is_served(&mut now));
}

/// The ends that are there, each where it is; frames for an address reach whoever is there.
fn run_ends(ends: &mut [(Address, End<'_>)], now: &mut Instant, time: Duration) {
    let until = *now + time;
    while *now < until {
        *now += TICK;
        for sender in 0..ends.len() {
            let (from, end) = &mut ends[sender];
            let from = *from;
            end.card.handle_timeout(*now);
            while let Some(event) = end.card.poll_event() {
                if let CardEvent::Tenant(loan, tenancy) = event {
                    end.card.set_tenancy(*now, loan, tenancy);
                }
                end.events.push(event);
            }
            while let Some(work) = end.card.poll_media() {
                end.card.handle_media(*now, work.loan, work.id, Ok(()));
            }
            let mut frames = Vec::new();
            while let Some(outgoing) = end.card.poll_transmit(*now, &mut end.buffers) {
                frames.push((outgoing.to.unwrap(), end.buffers.buffer[..outgoing.len].to_vec()));
            }
            for (to, mut frame) in frames {
                if let Some((_, end)) = ends.iter_mut().find(|(at, _)| *at == to) {
                    end.card.handle_frame(*now, RailId::ALL[0], from, &mut frame);
                }
            }
        }
    }
}

/// The lender has moved while it ran; a copy of its folder is started where the line says. New keys are due, and the
/// borrower calls at both addresses.
#[test]
fn a_copy_where_the_line_says_does_not_get_who_borrows_from_a_lender_that_has_moved_and_lives() {
    let arena = Arena::default();
    let borrower = CardConfig { rekey_frames: 4000, ..config(2, borrow(BorrowEdge::Program)) };
    let mut net = Net::new(&arena);
    net.ends[1] = End::on(borrower.new_memory(&arena), borrower, Instant::ZERO);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    net.at[0] = ELSEWHERE;
    net.run(&mut now, Duration::from_millis(500));
    assert!(net.is_served(&mut now));
    let mut copy = config(1, lends());
    (copy.incarnation, copy.life, copy.seed) = (Incarnation(2), LifeId([8; 16]), Secret([8; 32]));
    let copy = End::on(copy.new_memory(&arena), copy, now);
    let [lender, borrower] = net.ends;
    let mut ends = [(LENDER, copy), (ELSEWHERE, lender), (BORROWER, borrower)];
    let met = |ends: &[(Address, End<'_>); 3]| ends[2].1.card.channel_of(0).unwrap().peer_life();
    let handshakes =
        |ends: &[(Address, End<'_>); 3]| ends[2].1.card.channel_of(0).unwrap().stats().handshakes.get();
    let until = now + Duration::from_secs(60);
    while handshakes(&ends) == 1 && now < until {
        let at = now;
        ends[2].1.card.drive_step(at, 0, |driver, pages| {
            while driver.poll_completion().is_some() {}
            let Some(page) = pages.alloc() else { return };
            let page = [page];
            let request =
                BlockRequest { id: 5, kind: BlockKind::Read, lba: 0, blocks: 8, fua: false, pages: &page };
            driver.submit(at, request);
        });
        run_ends(&mut ends, &mut now, Duration::from_millis(2));
    }
    assert_eq!(handshakes(&ends), 2, "new keys were due");
    run_ends(&mut ends, &mut now, Duration::from_secs(1));
    let is_told = ends[2].1.events.contains(&CardEvent::Overtaken(0));
    let state = ends[2].1.card.state(0);
    assert_eq!(
        met(&ends),
        Some(LifeId([1; 16])),
        "the lender is there, and nobody has asked it; stream: {state:?}, told that the drive is another: {is_told}"
    );
}

/// The lender comes from an older state folder: its tenancy is what the borrower knows, its incarnation no greater. The
/// borrower's card dies between meeting it and having its stream.
#[test]
fn a_borrower_whose_card_dies_still_learns_that_its_lender_is_of_a_copied_folder() {
    for dies in [false, true] {
        let arena = Arena::default();
        let borrower = config(2, borrow(BorrowEdge::Program));
        let memory = borrower.new_memory(&arena);
        let mut net = Net::new(&arena);
        net.ends[1] = End::on(memory, borrower.clone(), Instant::ZERO);
        let mut now = Instant::ZERO;
        net.run(&mut now, Duration::from_millis(500));
        let mut lender = config(1, lends());
        (lender.life, lender.seed) = (LifeId([8; 16]), Secret([8; 32]));
        net.ends[0] = End::on(lender.new_memory(&arena), lender, now);
        let met = |net: &Net<'_>| net.ends[1].card.channel_of(0).unwrap().peer_life();
        while met(&net) != Some(LifeId([8; 16])) {
            assert!(now < Instant::ZERO + Duration::from_secs(5));
            net.run(&mut now, TICK);
        }
        assert!(!net.ends[1].events.contains(&CardEvent::Overtaken(0)), "it has no stream yet");
        if dies {
            let config = CardConfig { generation: CardGeneration(2), ..borrower.clone() };
            net.ends[1] = End::on(memory, config, now);
        }
        net.run(&mut now, Duration::from_secs(1));
        assert!(is_open(&net.ends[1].card, now));
        assert!(net.ends[1].events.contains(&CardEvent::Overtaken(0)), "its card has died: {dies}");
    }
}

/// It has been told once that its lender is of an older folder, and has gone on. The lender takes its drive out and
/// puts it in again (two reloads): nobody else has used it in between.
#[test]
fn who_was_told_of_a_copied_folder_is_not_told_again_when_its_stream_opens_anew() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    let mut lender = config(1, lends());
    (lender.life, lender.seed) = (LifeId([8; 16]), Secret([8; 32]));
    net.ends[0] = End::on(lender.new_memory(&arena), lender.clone(), now);
    net.run(&mut now, Duration::from_secs(3));
    let told = |net: &Net<'_>| {
        net.ends[1].events.iter().filter(|event| matches!(event, CardEvent::Overtaken(0))).count()
    };
    assert!(is_open(&net.ends[1].card, now) && told(&net) == 1);
    assert!(net.is_served(&mut now));
    let before = net.ends[0].card.parts[0].unwrap().cells.offer.absent_holder();
    assert!(before.is_none());
    net.ends[0].card.withdraw(now, 0);
    net.run(&mut now, Duration::from_millis(50));
    assert!(net.ends[0].events.contains(&CardEvent::Withdrawn(0)));
    let loan = LoanConfig { life: 1, ..lender.loans[0].clone() };
    let drive = DriveConfig { life: 1, ..lender.drives[0].clone().unwrap() };
    net.ends[0].card.lend(now, 0, drive, vec![(0, loan)], &[]).unwrap();
    net.run(&mut now, Duration::from_secs(3));
    assert!(is_open(&net.ends[1].card, now), "it has it again");
    assert_eq!(told(&net), 1, "nobody has used it in between, and what was kept is given up");
}

/// The lender's folder is restored elsewhere, so it calls the borrower, which has seen what was started from it since.
#[test]
fn a_lender_of_an_older_folder_that_is_refused_says_who_has_seen_a_later_life() {
    let arena = Arena::default();
    let mut net = Net::new(&arena);
    let mut now = Instant::ZERO;
    net.run(&mut now, Duration::from_millis(500));
    let mut older = config(1, lends());
    (older.life, older.seed) = (LifeId([8; 16]), Secret([8; 32]));
    older.holders.clone_from(&net.located);
    net.ends[0] = End::on(older.new_memory(&arena), older, now);
    net.at[0] = ELSEWHERE;
    net.run(&mut now, Duration::from_secs(20));
    assert!(!is_open(&net.ends[0].card, now));
    let seen: Vec<_> = net.ends[0].card.ledger.root.sightings.all().collect();
    let [it] = &seen[..] else { panic!("{seen:?}") };
    let node = NodeKey::numbered(2).id();
    assert_eq!((it.cause, it.node, it.at), (Cause::OwnOutdated, node, Some(BORROWER)));
    // The operator has the borrower look for it there: it goes on, and knows that the drive may be another one.
    net.at[0] = LENDER;
    net.run(&mut now, Duration::from_secs(5));
    assert!(net.ends[1].events.contains(&CardEvent::Overtaken(0)));
    assert!(net.is_served(&mut now));
}

/// A copy of who has the function was refused; then the lender begins anew, and who has the function is away.
#[test]
fn a_lender_that_begins_anew_knows_who_is_a_copy() {
    let copied = LifeId([7; 16]);
    for knows in [true, false] {
        let arena = Arena::default();
        let mut now = Instant::ZERO;
        let mut net = Net::new(&arena);
        net.run(&mut now, Duration::from_millis(500));
        let mut copy = config(2, borrow(BorrowEdge::Program));
        (copy.incarnation, copy.life, copy.seed) = (Incarnation(2), copied, Secret([7; 32]));
        let copy = End::on(copy.new_memory(&arena), copy, now);
        let [lender, borrower] = net.ends;
        let mut ends = [(LENDER, lender), (BORROWER, borrower), (STRANGER, copy)];
        run_ends(&mut ends, &mut now, Duration::from_secs(3));
        assert!(is_open(&ends[0].1.card, now) && !is_open(&ends[2].1.card, now));
        let located = |event: &CardEvent| match event {
            CardEvent::Located(holder) => Some(*holder),
            _ => None,
        };
        let mut holder = ends[0].1.events.iter().rev().find_map(located).expect("it is news who is a copy");
        assert!(holder.copies.contains(&copied) && holder.addresses[0] == BORROWER);
        if !knows {
            holder.copies = Default::default();
        }
        let mut anew = config(1, lends());
        (anew.incarnation, anew.life, anew.seed) = (Incarnation(2), LifeId([8; 16]), Secret([8; 32]));
        anew.holders = vec![holder];
        let memory = anew.new_memory(&arena);
        let [_, _, (_, copy)] = ends;
        let mut ends = [(LENDER, End::on(memory, anew.clone(), now)), (STRANGER, copy)];
        run_ends(&mut ends, &mut now, Duration::from_secs(20));
        assert_eq!(is_open(&ends[1].1.card, now), !knows);
        // What is kept is kept for the hold time, and not longer, whatever cards come and go in it.
        now += base::times::HOLD / 2;
        anew.generation = CardGeneration(2);
        ends[0].1 = End::on(memory, anew, now);
        run_ends(&mut ends, &mut now, Duration::from_secs(5));
        assert_eq!(is_open(&ends[1].1.card, now), !knows);
        now += base::times::HOLD / 2;
        run_ends(&mut ends, &mut now, Duration::from_secs(5));
        assert!(is_open(&ends[1].1.card, now));
    }
}

/// The lender is started anew without its drive, which it lends again when the hold time since its start is over.
#[test]
fn who_is_a_copy_is_known_of_a_drive_that_comes_late() {
    let copied = LifeId([7; 16]);
    for knows in [true, false] {
        let arena = Arena::default();
        let mut now = Instant::ZERO;
        let mut lender = config(1, lends());
        (lender.incarnation, lender.life, lender.seed) = (Incarnation(2), LifeId([8; 16]), Secret([8; 32]));
        let memory = lender.new_memory(&arena);
        let (drive, loan) = (lender.drives[0].take().unwrap(), lender.loans[0].clone());
        lender.loans[0].role = LoanRole::Vacant;
        let mut lender = End::on(memory, lender, now);
        now += base::times::HOLD * 2;
        let mut holder = Whereabouts {
            key: NodeKey::numbered(2).public(),
            domain: DomainId(2),
            addresses: [Address::NONE; crate::MAX_RAILS],
            copies: Default::default(),
        };
        holder.addresses[0] = BORROWER;
        if knows {
            holder.copies[0] = copied;
        }
        let (loan, drive) = (LoanConfig { life: 1, ..loan }, DriveConfig { life: 1, ..drive });
        lender.card.lend(now, 0, drive, vec![(0, loan)], &[holder]).unwrap();
        let mut copy = config(2, borrow(BorrowEdge::Program));
        (copy.incarnation, copy.life, copy.seed) = (Incarnation(2), copied, Secret([7; 32]));
        let copy = End::on(copy.new_memory(&arena), copy, now);
        let mut ends = [(LENDER, lender), (STRANGER, copy)];
        run_ends(&mut ends, &mut now, Duration::from_secs(20));
        assert_eq!(is_open(&ends[1].1.card, now), !knows);
        now += base::times::HOLD;
        run_ends(&mut ends, &mut now, Duration::from_secs(5));
        assert!(is_open(&ends[1].1.card, now), "it is kept for the hold time");
    }
}

/// The hold time is over, and one answer gets lost just then.
#[test]
fn a_copy_is_let_in_after_the_hold_time_though_an_answer_gets_lost() {
    let mut outcome = Vec::new();
    for loses in [false, true] {
        let arena = Arena::default();
        let mut now = Instant::ZERO;
        let mut net = Net::new(&arena);
        net.run(&mut now, Duration::from_millis(500));
        let mut copy = config(2, borrow(BorrowEdge::Program));
        (copy.incarnation, copy.life, copy.seed) = (Incarnation(2), LifeId([7; 16]), Secret([7; 32]));
        let copy = End::on(copy.new_memory(&arena), copy, now);
        let [lender, borrower] = net.ends;
        let mut ends = [(LENDER, lender), (BORROWER, borrower), (STRANGER, copy)];
        run_ends(&mut ends, &mut now, Duration::from_secs(3));
        let located = |event: &CardEvent| match event {
            CardEvent::Located(holder) => Some(*holder),
            _ => None,
        };
        let holder = ends[0].1.events.iter().rev().find_map(located).unwrap();
        let mut anew = config(1, lends());
        (anew.incarnation, anew.life, anew.seed) = (Incarnation(2), LifeId([8; 16]), Secret([8; 32]));
        anew.holders = vec![holder];
        let begun = now;
        let memory = anew.new_memory(&arena);
        let [_, _, (_, copy)] = ends;
        let mut ends = [(LENDER, End::on(memory, anew, now)), (STRANGER, copy)];
        run_ends(&mut ends, &mut now, Duration::from_secs(20));
        assert!(!is_open(&ends[1].1.card, now));
        now = begun + (base::times::HOLD - Duration::from_secs(3));
        run_ends(&mut ends, &mut now, Duration::from_millis(2900));
        assert!(!is_open(&ends[1].1.card, now));
        if loses {
            // What the lender sends gets lost for a moment: nobody is there.
            ends[1].0 = ELSEWHERE;
            let until = begun + base::times::HOLD + Duration::from_millis(1500);
            while now < until {
                // What the copy sends comes from where it was.
                now += TICK;
                ends[0].1.card.handle_timeout(now);
                while ends[0].1.card.poll_event().is_some() {}
                let (_, end) = &mut ends[1];
                end.card.handle_timeout(now);
                while end.card.poll_event().is_some() {}
                let mut frames = Vec::new();
                while let Some(outgoing) = end.card.poll_transmit(now, &mut end.buffers) {
                    frames.push(end.buffers.buffer[..outgoing.len].to_vec());
                }
                for mut frame in frames {
                    ends[0].1.card.handle_frame(now, RailId::ALL[0], STRANGER, &mut frame);
                }
                let (_, end) = &mut ends[0];
                while end.card.poll_transmit(now, &mut end.buffers).is_some() {}
            }
            ends[1].0 = STRANGER;
        }
        run_ends(&mut ends, &mut now, Duration::from_secs(30));
        outcome.push((loses, is_open(&ends[1].1.card, now), now.since(begun)));
    }
    assert!(outcome.iter().all(|it| it.1), "{outcome:?}");
}

/// A node has functions in two groups, and a copy of it asks in one of them: what is kept of copies is kept a node.
#[test]
fn who_is_a_copy_in_one_group_is_not_forgotten_for_the_other() {
    let arena = Arena::default();
    let mut now = Instant::ZERO;
    let two = |node: u64, role: LoanRole, other: LoanRole| {
        let mut it = config(node, role);
        let second = LoanConfig {
            title: Title::Line(Secret([6; 32])),
            function: FunctionId(8),
            group: Group(7),
            tenancy: Tenancy::default(),
            role: other,
            ..it.loans[0].clone()
        };
        it.loans.push(second);
        it
    };
    let mut lends_both = two(1, lends(), LoanRole::Lend(LendConfig::of(1)));
    lends_both.drives.push(Some(DriveConfig::new(1 << 12, 512, 8)));
    let both = two(2, borrow(BorrowEdge::Program), borrow(BorrowEdge::Program));
    let mut copy = config(2, borrow(BorrowEdge::Program));
    (copy.incarnation, copy.life, copy.seed) = (Incarnation(2), LifeId([7; 16]), Secret([7; 32]));
    let lender_memory = lends_both.new_memory(&arena);
    let lender = End::on(lender_memory, lends_both.clone(), now);
    let borrower = End::on(both.new_memory(&arena), both, now);
    let mut ends = vec![(LENDER, lender), (BORROWER, borrower)];
    run_ends(&mut ends[..], &mut now, Duration::from_millis(500));
    let copy = End::on(copy.new_memory(&arena), copy, now);
    ends.push((STRANGER, copy));
    run_ends(&mut ends[..], &mut now, Duration::from_secs(3));
    let located = |events: &[CardEvent]| {
        let of = |event: &CardEvent| match event {
            CardEvent::Located(holder) => Some(*holder),
            _ => None,
        };
        events.iter().rev().find_map(of)
    };
    let first = located(&ends[0].1.events).unwrap();
    println!("stored after refusal: {:?}", first.copies.contains(&LifeId([7; 16])));
    // The next card of the lender, told by its agent what was stored last.
    let tenancies: Vec<_> = ends[0]
        .1
        .events
        .iter()
        .filter_map(|event| match event {
            CardEvent::Tenant(loan, tenancy) => Some((*loan, *tenancy)),
            _ => None,
        })
        .collect();
    for (loan, tenancy) in tenancies {
        lends_both.loans[loan].tenancy = tenancy;
    }
    lends_both.generation = CardGeneration(2);
    lends_both.holders = vec![first];
    ends[0].1 = End::on(lender_memory, lends_both, now);
    run_ends(&mut ends[..], &mut now, Duration::from_secs(3));
    let next = located(&ends[0].1.events);
    println!("stored after next card: {:?}", next.map(|it| it.copies.contains(&LifeId([7; 16]))));
    let last = next.unwrap_or(first);
    assert!(last.copies.contains(&LifeId([7; 16])), "what the folder has last");
}
