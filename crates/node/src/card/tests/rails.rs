//! Rails: addresses lead over those that frames take, ends have other ones than each other, and they come and go.

use base::Random;
use base::ids::RailId;

use super::*;
use crate::RailsError;

fn rails(ids: &[usize]) -> crate::Rails {
    RailId::ALL.map(|rail| ids.contains(&rail.index()).then_some(RailConfig { max_frame: 9000 }))
}

/// A lender and a borrower with these rails.
fn ends<'m>(arena: &'m Arena, ids: [&[usize]; 2]) -> [End<'m>; 2] {
    let lend = LoanRole::Lend(LendConfig::of(0));
    let routes = ids[0].iter().map(|rail| Route { rail: RailId::ALL[*rail], ..ROUTE }).collect();
    let borrow = LoanRole::Borrow {
        lender: lender(),
        routes,
        io_timeout: Duration::from_secs(60),
        edge: BorrowEdge::Program,
    };
    let lends = CardConfig { rails: rails(ids[0]), ..config(1, lend) };
    [lends, CardConfig { rails: rails(ids[1]), ..config(2, borrow) }].map(|config| End::new(arena, config))
}

/// Runs while only frames pass whose rails `passes`: that of the lender and that of the borrower.
fn run_over(
    now: &mut Instant,
    ends: &mut [End<'_>; 2],
    time: Duration,
    passes: impl Fn(RailId, RailId) -> bool,
) {
    let until = *now + time;
    while *now < until {
        *now += TICK;
        for at in 0..2 {
            let sent = ends[at].turn(*now).into_iter().filter(|(_, frame)| {
                let header = Header::parse(frame).unwrap();
                let (own, peer) = (header.source.rail, header.destination.rail);
                if at == 0 { passes(own, peer) } else { passes(peer, own) }
            });
            ends[1 - at].incoming.extend(sent);
        }
    }
}

/// The borrower reads a block, which takes registers, memory and an interrupt.
fn read(now: &mut Instant, ends: &mut [End<'_>; 2], passes: impl Fn(RailId, RailId) -> bool) {
    let before = *now;
    let page = ends[1].card.pages(0).alloc().unwrap();
    ends[1].card.drive_step(before, 0, |driver, _| {
        let request =
            BlockRequest { id: 5, kind: BlockKind::Read, lba: 0, blocks: 1, fua: false, pages: &[page] };
        driver.submit(before, request);
    });
    for _ in 0..40 {
        run_over(now, ends, Duration::from_millis(20), &passes);
        let mut done = None;
        ends[1].card.drive_step(*now, 0, |driver, _| done = driver.poll_completion());
        if done.is_some() {
            return assert_eq!(done, Some((5, Ok(()))));
        }
    }
    panic!("nothing came of a read");
}

fn denied(end: &End<'_>) -> u64 {
    end.card.parts[0].unwrap().cells.edge.denied_accesses.get()
}

#[test]
fn addresses_lead_over_the_rail_that_their_frame_takes() {
    let all = [RailId::ALL[0], RailId::ALL[1]];
    for ids in [[&[0_usize, 1][..], &[0, 1]], [&[1], &[0, 2]], [&[0, 1], &[1]], [&[0, 1], &[2, 3]]] {
        let arena = Arena::default();
        let (mut now, mut ends) = (Instant::ZERO, ends(&arena, ids));
        run_over(&mut now, &mut ends, Duration::from_millis(400), |_, _| true);
        assert!(is_ready(&ends[1].card, now), "{ids:?}");
        for only in all.into_iter().filter(|rail| ids[0].contains(&rail.index())) {
            read(&mut now, &mut ends, |own, _| own == only);
            run_over(&mut now, &mut ends, Duration::from_millis(400), |_, _| true);
        }
        assert_eq!((denied(&ends[0]), denied(&ends[1])), (0, 0), "{ids:?}");
    }
}

#[test]
fn rails_come_to_a_card_that_runs_and_leave_it() {
    let arena = Arena::default();
    let (mut now, mut ends) = (Instant::ZERO, ends(&arena, [&[0, 1], &[0, 1]]));
    run_over(&mut now, &mut ends, Duration::from_millis(200), |_, _| true);
    for (end, ids) in [(0, &[1][..]), (1, &[0]), (0, &[1, 2]), (1, &[2]), (0, &[0, 1, 2, 3]), (1, &[1, 3])] {
        ends[end].card.set_rails(now, rails(ids)).unwrap();
        read(&mut now, &mut ends, |_, _| true);
        let has = |rail: RailId| ids.contains(&rail.index());
        let sent = ends[end].turn(now);
        assert!(sent.iter().all(|(egress, _)| matches!(egress, Egress::Rail(rail) if has(*rail))), "{ids:?}");
    }
    assert_eq!((denied(&ends[0]), denied(&ends[1])), (0, 0));
    let met = |end: &End<'_>| end.card.channel_of(0).unwrap().stats().handshakes.get();
    assert_eq!((met(&ends[0]), met(&ends[1])), (1, 1), "nobody was taken for silent");
}

#[test]
fn the_last_rail_and_one_that_is_too_small_are_refused_and_nothing_has_changed() {
    let arena = Arena::default();
    let (mut now, mut ends) = (Instant::ZERO, ends(&arena, [&[0], &[0]]));
    run_over(&mut now, &mut ends, Duration::from_millis(200), |_, _| true);
    let card = &mut ends[0].card;
    assert_eq!(card.set_rails(now, rails(&[])), Err(RailsError::NoneLeft));
    let mut small = rails(&[0, 1]);
    small[1] = Some(RailConfig { max_frame: 1472 });
    assert_eq!(card.set_rails(now, small), Err(RailsError::TooSmall(RailId::ALL[1])));
    assert_eq!(card.config.rails, rails(&[0]));
    read(&mut now, &mut ends, |_, _| true);
}

/// The lender has one rail more than its line says, and its borrower is found on all of its own.
#[test]
fn where_a_node_is_is_known_by_path_and_kept_by_its_rails() {
    let arena = Arena::default();
    let (mut now, mut ends) = (Instant::ZERO, ends(&arena, [&[0, 1], &[0]]));
    run_over(&mut now, &mut ends, Duration::from_millis(400), |_, _| true);
    let peer = ends[0].card.ledger.peer(0).unwrap();
    let known: Vec<_> = peer.addresses().collect();
    let path = |own: usize| link::PathId::new(RailId::ALL[own], RailId::ALL[0]);
    assert_eq!(known, [(path(0), PEER), (path(1), PEER)]);
    assert_eq!(peer.proven_address(RailId::ALL[0]), Some(PEER));
    assert_eq!(peer.proven_address(RailId::ALL[1]), None);
    assert_eq!(peer.address_between(RailId::ALL[1], RailId::ALL[0]), Some(PEER));
}

/// Where a node has proven to be for one rail of ours somebody else may be for another one, whose network may have the
/// same addresses. Who hears nothing there is asked, and sent no data.
#[test]
fn no_data_leave_on_a_rail_for_where_the_peer_has_proven_to_be_for_another_one() {
    let arena = Arena::default();
    let (mut now, mut ends) = (Instant::ZERO, ends(&arena, [&[0], &[1]]));
    let first = |own: RailId, _| own.index() == 0;
    run_over(&mut now, &mut ends, Duration::from_millis(400), first);
    assert!(is_ready(&ends[1].card, now));
    ends[0].held = Some(Vec::new());
    let pages: Vec<_> = (0..8).map(|_| ends[1].card.pages(0).alloc().unwrap()).collect();
    ends[1].card.drive_step(now, 0, |driver, _| {
        let request =
            BlockRequest { id: 5, kind: BlockKind::Read, lba: 0, blocks: 64, fua: false, pages: &pages };
        driver.submit(now, request);
    });
    run_over(&mut now, &mut ends, Duration::from_millis(20), first);
    // A rail comes, the borrower falls silent, and what it has asked for is there.
    ends[0].card.set_rails(now, rails(&[0, 1])).unwrap();
    let held = ends[0].held.take().unwrap();
    assert!(!held.is_empty());
    held.iter().for_each(|(loan, id)| ends[0].card.handle_media(now, *loan, *id, Ok(())));
    let (mut over, until) = ([0, 0], now + Duration::from_secs(2));
    while now < until {
        now += TICK;
        for (_, frame) in ends[0].turn(now) {
            let rail = Header::parse(&frame).unwrap().source.rail.index();
            over[rail] += usize::from(frame.len() > 1000);
        }
    }
    assert!(over[0] > 0, "the data are under way");
    assert_eq!(over[1], 0, "frames with data for who has never answered there");
}

/// Addresses change and rails fail, one at a time, and cards die; when all is well again, each rail alone serves.
#[test]
fn whatever_moves_and_fails_each_rail_is_found_again() {
    // The rails of the borrower, by network, and how many of the lender's its line names.
    let all = [([0, 1], 2), ([2, 3], 2), ([0, 3], 2)];
    for (seed, (ids, named)) in (0..400_u64).map(|seed| (seed, all[(seed % 3) as usize])) {
        let arena = Arena::default();
        let mut random = Random::new(seed);
        let mut below = move |end: u64| random.below(end);
        let at = |node: usize, rail: usize, version: u8| {
            Address([1 + (node * 128 + rail * 64) as u8 + version; 28])
        };
        let mut versions = [[0_u8; 2]; 2];
        let lend = LoanRole::Lend(LendConfig::of(0));
        let routes = (0..named)
            .map(|rail| Route { rail: RailId::ALL[rail], peer: at(0, rail, 0), max_frame: 9000 })
            .collect();
        let borrow = LoanRole::Borrow {
            lender: lender(),
            routes,
            io_timeout: Duration::from_secs(60),
            edge: BorrowEdge::Program,
        };
        let configs = [
            CardConfig { rails: rails(&[0, 1]), ..config(1, lend) },
            CardConfig { rails: rails(&ids), ..config(2, borrow) },
        ];
        let memories = [configs[0].new_memory(&arena), configs[1].new_memory(&arena)];
        let mut now = Instant::ZERO;
        let mut ends = [0, 1].map(|node| End::on(memories[node], configs[node].clone(), now));
        let mut generations = [1, 1];
        let mut tenancies = [configs[0].loans[0].tenancy; 2];
        let mut run = |now: &mut Instant,
                       ends: &mut [End<'_>; 2],
                       versions: &[[u8; 2]; 2],
                       up: [bool; 2],
                       time: Duration| {
            let until = *now + time;
            while *now < until {
                *now += TICK * 4;
                for node in 0..2 {
                    let end = &mut ends[node];
                    end.card.handle_timeout(*now);
                    while let Some(event) = end.card.poll_event() {
                        if let CardEvent::Tenant(loan, tenancy) = event {
                            tenancies[node] = tenancy;
                            end.card.set_tenancy(*now, loan, tenancy);
                        }
                    }
                    while let Some(work) = end.card.poll_media() {
                        end.card.handle_media(*now, work.loan, work.id, Ok(()));
                    }
                    let mut frames = Vec::new();
                    while let Some(outgoing) = end.card.poll_transmit(*now, &mut end.buffers) {
                        frames.push((outgoing.to.unwrap(), end.buffers.buffer[..outgoing.len].to_vec()));
                    }
                    for (to, mut frame) in frames {
                        let header = Header::parse(&frame).unwrap();
                        let (own, peer) = (header.source.rail.index(), header.destination.rail.index());
                        let (net, other) = (own % 2, peer % 2);
                        if net == other && up[net] && to == at(1 - node, other, versions[1 - node][other]) {
                            let from = at(node, net, versions[node][net]);
                            ends[1 - node].card.handle_frame(*now, RailId::ALL[peer], from, &mut frame);
                        }
                    }
                }
            }
            tenancies[0]
        };
        run(&mut now, &mut ends, &versions, [true; 2], Duration::from_millis(500));
        for _ in 0..12 {
            let (rail, node) = (below(2) as usize, below(2) as usize);
            let mut up = [true; 2];
            match below(4) {
                0 => up[rail] = false,
                1 => versions[node][rail] = (versions[node][rail] + below(3) as u8) % 60,
                2 => {
                    generations[node] += 1;
                    let mut config = configs[node].clone();
                    config.generation = CardGeneration(generations[node]);
                    ends[node] = End::on(memories[node], config, now);
                }
                _ => {
                    up[1 - rail] = false;
                    run(&mut now, &mut ends, &versions, up, Duration::from_millis(below(600)));
                    up = [true; 2];
                    versions[node][1 - rail] = below(60) as u8;
                }
            }
            run(&mut now, &mut ends, &versions, up, Duration::from_millis(100 + below(900)));
            run(&mut now, &mut ends, &versions, [true; 2], Duration::from_millis(below(100)));
        }
        run(&mut now, &mut ends, &versions, [true; 2], Duration::from_secs(5));
        for up in [[true, false], [false, true], [true, true]] {
            run(&mut now, &mut ends, &versions, [true; 2], Duration::from_secs(1));
            let page = ends[1].card.pages(0).alloc().unwrap();
            ends[1].card.drive_step(now, 0, |driver, _| {
                while driver.poll_completion().is_some() {}
                let request = BlockRequest {
                    id: 5,
                    kind: BlockKind::Read,
                    lba: 0,
                    blocks: 1,
                    fua: false,
                    pages: &[page],
                };
                driver.submit(now, request);
            });
            run(&mut now, &mut ends, &versions, up, Duration::from_millis(800));
            let mut done = None;
            ends[1].card.drive_step(now, 0, |driver, _| done = driver.poll_completion());
            assert_eq!(
                done,
                Some((5, Ok(()))),
                "seed {seed}, networks that are up: {up:?}, {ids:?}, {named}"
            );
        }
    }
}
