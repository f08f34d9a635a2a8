//! Rails that seem to have failed: what is said of them, and what a notice changes where it is heard.

use core::time::Duration;

use base::ids::{NodeId, RailId};
use base::ledger::Arena;

use super::spread::{MS, on_rails, pair, write};
use super::*;
use crate::pair::Event;
use crate::{Notice, NoticeCause, PathId, RailMode};

/// From one node to the other.
const DELAY: Duration = Duration::from_millis(2);

fn notices<'w>(world: &'w World<'_>, node: usize) -> Vec<&'w Event> {
    let events = world.nodes[node].slots.iter().flat_map(|slot| &slot.events);
    events.filter(|event| matches!(event, Event::Notice(_) | Event::Silent(_))).collect()
}

/// Two nodes with two rails that are both used.
fn distant(arena: &Arena) -> World<'_> {
    let mut world = pair(arena, 2, RailMode::Balance);
    world.delay = DELAY;
    let (frames, _) = write(&mut world, MS * 500);
    assert!(frames.iter().all(|frames| *frames > 0), "{frames:?}");
    world
}

/// The first node hears that its first rail may have failed.
fn doubt(world: &mut World<'_>, is_certain: bool) {
    let now = world.now;
    world.nodes[0].guarded(now, |node| {
        node.channel(1).doubt(now, Some(RailId::ALL[0]), None, is_certain);
        node.is_awake = true;
    });
}

#[test]
fn a_notice_is_heard_once() {
    let arena = Arena::default();
    let mut world = pair(&arena, 2, RailMode::Balance);
    let notice = |rail, cause| Notice { node: key_of(1).id(), rail: RailId::ALL[rail], cause };
    let said = [notice(1, NoticeCause::Carrier), notice(0, NoticeCause::Silence)];
    let now = world.now;
    world.nodes[1].guarded(now, |node| {
        // Whoever says it again before it has left says nothing new.
        said.iter().chain(&said).for_each(|notice| node.channel(0).notify(*notice));
        node.is_awake = true;
    });
    world.run_for(MS * 50);
    assert_eq!(notices(&world, 0), said.map(Event::Notice).iter().collect::<Vec<_>>());
    assert_eq!(notices(&world, 1), Vec::<&Event>::new());
}

#[test]
fn notices_that_wait_are_few() {
    let arena = Arena::default();
    let mut world = pair(&arena, 2, RailMode::Balance);
    let now = world.now;
    world.nodes[1].guarded(now, |node| {
        for number in 0..=u8::MAX {
            let (node_id, rail) = (NodeId([number; _]), RailId::ALL[0]);
            node.channel(0).notify(Notice { node: node_id, rail, cause: NoticeCause::Silence });
        }
        node.is_awake = true;
    });
    world.run_for(MS * 50);
    assert_eq!(notices(&world, 0).len(), 16);
}

#[test]
fn a_doubted_rail_carries_nothing_until_it_has_answered() {
    let arena = Arena::default();
    let mut world = distant(&arena);
    doubt(&mut world, false);
    let (frames, _) = write(&mut world, DELAY);
    assert!(frames[0] == 0 && frames[1] > 0, "{frames:?}");
    write(&mut world, DELAY * 2);
    let (frames, _) = write(&mut world, MS * 20);
    assert!(frames[0] > 0, "{frames:?}");
}

/// Without a limit the rail would never be used again.
#[test]
fn who_doubts_without_end_costs_a_question_now_and_then() {
    let arena = Arena::default();
    let mut world = distant(&arena);
    let (_, clean) = write(&mut world, MS * 1_000);
    let (mut frames, mut carried) = ([0; 2], 0);
    for _ in 0..500 {
        doubt(&mut world, true);
        let (sent, came) = write(&mut world, MS * 2);
        (0..2).for_each(|rail| frames[rail] += sent[rail]);
        carried += came;
    }
    assert!(frames[0] * 4 > frames[1], "{frames:?}");
    assert!(carried * 10 > clean * 9, "{carried} of {clean}");
}

/// What was under way is sent again by another one, before a timer has anything to say.
#[test]
fn what_a_rail_that_has_certainly_failed_had_is_sent_again_at_once() {
    let time = [false, true].map(|is_certain| {
        let arena = Arena::default();
        let mut world = distant(&arena);
        world.run_until(MS * 100, |world| world.nodes[0].places.iter().all(|place| place.stream.is_idle()));
        world.wire = on_rails(|rail| Wire { lost: if rail == 0 { 100 } else { 0 }, ..Wire::default() });
        write(&mut world, MS);
        doubt(&mut world, is_certain);
        world.run_until(MS * 200, |world| world.nodes[0].places.iter().all(|place| place.stream.is_idle()))
    });
    assert!(time[1] < time[0], "{time:?}");
}

#[test]
fn a_rail_that_is_silent_is_named_only_where_the_peer_answers_elsewhere() {
    for all in [false, true] {
        let arena = Arena::default();
        let mut world = pair(&arena, 2, RailMode::Balance);
        write(&mut world, MS * 100);
        world.cut = Box::new(move |_, _, path| all || path == PATHS[0]);
        write(&mut world, MS * 200);
        let expected = if all { vec![] } else { vec![&Event::Silent(RailId::ALL[0])] };
        assert_eq!(notices(&world, 0), expected, "all: {all}");
    }
}

/// Whatever was asked last, and however long before: where little is under way, one path is asked before the other.
#[test]
fn who_falls_silent_while_nothing_is_under_way_is_asked_on_all_rails() {
    let arena = Arena::default();
    let mut world = pair(&arena, 2, RailMode::Balance);
    write(&mut world, MS * 100);
    for round in 0..40 {
        world.cut = Box::new(|_, _, _| false);
        world.run_for(MS * (200 + 7 * round % 100));
        for node in &mut world.nodes {
            node.slots.iter_mut().for_each(|slot| slot.events.clear());
        }
        let (all, rail) = (round % 2 == 0, (round / 2 % 2) as usize);
        world.cut = Box::new(move |_, _, path| all || path == PATHS[rail]);
        world.run_for(MS * 130);
        let silent = Event::Silent(RailId::ALL[rail]);
        let expected = if all { vec![] } else { vec![&silent] };
        assert_eq!(notices(&world, 0), expected, "{round}, all: {all}");
    }
}

#[test]
fn a_rail_over_which_another_one_is_answered_is_not_silent() {
    let arena = Arena::default();
    let mut world = super::rails::pair(&arena, [&[0, 1], &[2]]);
    world.run_for(MS * 500);
    let cut = PathId::new(RailId::ALL[0], RailId::ALL[2]);
    world.cut = Box::new(move |_, _, path| path == cut || path == cut.reversed());
    world.run_for(MS * 500);
    assert_eq!(notices(&world, 0), Vec::<&Event>::new());
    assert_eq!(notices(&world, 1), [&Event::Silent(RailId::ALL[0])]);
}

#[test]
fn a_rail_without_a_carrier_is_not_used_unless_it_answers() {
    let arena = Arena::default();
    let mut world = distant(&arena);
    // Which rails are said to have lost their carriers, which of them are cut, and which ones are used.
    for (lost, cut, used) in [
        (0b01, 0b01_u8, [false, true]),
        (0b00, 0b00, [true, true]),
        (0b10, 0b10, [true, false]),
        (0b11, 0b00, [true, true]),
        (0b11, 0b10, [true, false]),
        (0b00, 0b00, [true, true]),
    ] {
        world.wire = on_rails(move |rail| Wire { lost: u64::from(cut >> rail & 1) * 100, ..Wire::default() });
        let now = world.now;
        world.nodes[0].guarded(now, |node| {
            node.channel(1).set_lost_carriers(now, lost);
            node.is_awake = true;
        });
        if lost == cut && cut != 0 {
            // At once.
            let (frames, _) = write(&mut world, DELAY);
            assert_eq!(frames.map(|frames| frames > 0), used, "{lost:b}: {frames:?}");
        }
        write(&mut world, MS * 500);
        let (frames, _) = write(&mut world, MS * 100);
        assert_eq!(frames.map(|frames| frames > 0), used, "{lost:b}: {frames:?}");
    }
    world.run_until(MS * 5_000, |world| {
        world.nodes.iter().flat_map(|node| &node.places).all(|place| place.stream.is_idle())
    });
    world.expect_all_came();
}
