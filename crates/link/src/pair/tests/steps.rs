//! A step ends in time, however much a peer makes of one frame.

use core::time::Duration;

use base::ledger::{Arena, STEP_ENTRIES};

use super::*;

#[test]
fn a_frame_that_is_too_much_for_one_step_is_worked_off_in_several() {
    let arena = Arena::default();
    let mut world = World::pair(&arena, 1);
    world.run_until(Duration::from_secs(1), |world| world.nodes.iter().all(Node::is_open));
    world.run(50);
    world.nodes[1].places[0].log.is_busy = true;
    // All of them go in one frame.
    assert!((0..60).all(|_| world.nodes[0].places[0].write(4)));
    world.nodes[0].commit();
    let frames = world.frames_of(0);
    assert_eq!(frames.len(), 1);
    world.give(1, &frames[0].1);
    let mut steps = 1;
    // What is left of a frame needs no other one.
    while world.nodes[1].places[0].stream.receiver().has_ahead() {
        let now = world.now;
        world.nodes[1].step(now);
        steps += 1;
    }
    assert_eq!(world.nodes[1].places[0].counts().1, 60);
    let most = world.nodes[1].largest_step;
    assert!((STEP_ENTRIES..STEP_ENTRIES + 2 * WORDS).contains(&most), "{most} words in the longest step");
    // One of a node has two commits.
    assert!(steps * 2 >= 60 * WORDS / (STEP_ENTRIES + WORDS), "{steps} steps");
    world.run(200);
    world.expect_all_came();
    assert_eq!(world.nodes[0].places[0].stream.stats().retransmissions.get(), 0);
}
