//! Requests that nobody waits for any more.

use super::*;

const IO: Result<(), BlockError> = Err(BlockError::Io);

fn abandon(world: &mut World<'_>, id: u32) {
    world.inputs.push_back(Input::Abandon(id));
    world.settle();
}

/// Leaves a write of the first blocks with content 1 at a controller that does nothing, and one of content 2 to the
/// same blocks, submitted after the first was given up, with a lower identifier.
fn two_writes(world: &mut World<'_>) {
    world.ready();
    world.submit(0, BlockKind::Read, 900, 1, 0);
    let read = world.inputs.front().cloned().expect("the read");
    world.step(read);
    // Comes before the answer to the read.
    world.submit(1, BlockKind::Write, 0, 8, 1);
    world.inputs.rotate_right(1);
    world.model.hang = true;
    world.settle();
    abandon(world, 1);
    world.submit(2, BlockKind::Write, 4, 8, 2);
    world.settle();
}

/// The controller ends the command that was given up, and goes on.
fn end_given_up(world: &mut World<'_>, status: Status) {
    let ledger = world.calm();
    let mut driver = driver(&ledger);
    let given_up =
        driver.commands.slots.iter().find(|cid| driver.commands.command(*cid).head.get().is_given_up());
    driver.commands.complete(world.now, given_up.expect("one was given up"), status);
    ledger.journal.commit();
    world.model.hang = false;
    world.inputs.push_back(Input::Tick);
    world.settle();
}

#[test]
fn what_waits_for_the_lender_ends_at_once_and_is_never_issued() {
    with_world(|world| {
        world.ready();
        world.model.lost = usize::MAX;
        world.reset();
        (1..4).for_each(|id| world.submit(id, BlockKind::Write, 0, 8, id as u8));
        world.settle();
        abandon(world, 2);
        assert_eq!((world.results(), world.pages_used()), (vec![(2, IO)], 2));
        world.model.lost = 0;
        world.ready();
        world.settle();
        assert_eq!(world.results(), [(1, Ok(())), (3, Ok(()))]);
        assert!(world.model.log.len() == 2 && world.model.disk[0] == 3);
    });
}

#[test]
fn what_waits_for_another_try_ends_at_once() {
    with_world(|world| {
        world.ready();
        world.model.statuses.extend([Status::NAMESPACE_NOT_READY; 3]);
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        assert!(world.results().is_empty());
        abandon(world, 1);
        world.pass(5);
        assert_eq!((world.results(), world.model.log.len(), world.pages_used()), (vec![(1, IO)], 0, 0));
    });
}

#[test]
fn what_has_begun_is_not_tried_again() {
    with_world(|world| {
        two_writes(world);
        end_given_up(world, Status::DATA_TRANSFER_ERROR);
        assert_eq!(world.results(), [(0, Ok(())), (1, IO), (2, Ok(()))]);
        assert_eq!((world.model.disk[0], world.model.disk[4 * BLOCK]), (0, 2));
    });
}

#[test]
fn a_write_waits_for_one_of_the_same_blocks_that_was_given_up() {
    for volatile_cache in [true, false] {
        with_world(|world| {
            world.model.volatile_cache = volatile_cache;
            two_writes(world);
            assert_eq!(world.model.doorbells, 2, "the second write waits");
            world.model.hang = false;
            world.reset();
            world.ready();
            world.settle();
            assert_eq!(world.results(), [(0, Ok(())), (1, IO), (2, Ok(()))]);
            // Where it could be lost after it was seen, it is written before everything else, else not again.
            let first = if volatile_cache { 1 } else { 0 };
            assert_eq!((world.model.disk[0], world.model.disk[4 * BLOCK]), (first, 2));
            world.lose_power();
            world.ready();
            assert_eq!(world.model.disk[4 * BLOCK], if volatile_cache { 2 } else { 0 });
        });
    }
}

#[test]
fn a_read_waits_too_and_other_blocks_do_not() {
    with_world(|world| {
        world.ready();
        world.model.hang = true;
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        abandon(world, 1);
        world.model.hang = false;
        world.submit(2, BlockKind::Write, 8, 8, 2);
        world.submit(3, BlockKind::Read, 7, 1, 0);
        world.settle();
        assert_eq!(world.results(), [(2, Ok(()))]);
        world.pass_until("read", |world| !world.done.is_empty());
        world.settle();
        assert_eq!(world.results(), [(1, IO), (3, Ok(()))]);
        assert_eq!(world.read[&3][0], 1);
    });
}

#[test]
fn one_that_ends_with_success_is_kept_in_its_place() {
    with_world(|world| {
        two_writes(world);
        end_given_up(world, Status::SUCCESS);
        assert_eq!(world.results(), [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
        world.lose_power();
        world.ready();
        assert_eq!((world.model.disk[0], world.model.disk[4 * BLOCK]), (1, 2));
    });
}

/// One write waits, one is at the controller, both are given up and followed by others: whatever store a card dies at.
fn given_up(kill: Option<u64>) -> u64 {
    let (arena, killer) = (Arena::default(), Killer::new(kill));
    let mut world = World::new(&arena, &killer);
    world.submit(1, BlockKind::Write, 20, 40, 1);
    world.submit(2, BlockKind::Write, 20, 40, 2);
    abandon(&mut world, 2);
    world.model.hang = true;
    world.submit(3, BlockKind::Write, 0, 8, 3);
    world.settle();
    abandon(&mut world, 3);
    world.submit(4, BlockKind::Write, 0, 1, 4);
    world.submit(5, BlockKind::Write, 20, 1, 5);
    world.settle();
    world.model.hang = false;
    world.lose_power();
    world.ready();
    world.settle();
    world.lose_power();
    world.ready();
    world.settle();
    let ended: Vec<u32> = world.results().iter().map(|(id, _)| *id).collect();
    assert_eq!(ended, [1, 2, 3, 4, 5]);
    let first = |lba: usize| world.model.disk[lba * BLOCK];
    assert_eq!((first(0), first(20), first(21)), (4, 5, first(21)));
    assert!(first(21) == 1 || first(21) == 2 && kill.is_some());
    assert_eq!(world.pages_used(), 0);
    killer.stores.get()
}

#[test]
fn a_card_killed_at_every_store_takes_back_what_was_given_up() {
    let stores = given_up(None);
    for kill in 0..stores {
        given_up(Some(kill));
    }
}

#[test]
fn a_flush_waits_for_whatever_was_given_up() {
    with_world(|world| {
        world.ready();
        world.model.hang = true;
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        abandon(world, 1);
        world.submit(2, BlockKind::Flush, 0, 0, 0);
        world.settle();
        let ledger = world.calm();
        assert_eq!(
            driver(&ledger).cells.table.issued.get(),
            1,
            "the flush would not find the write, which comes behind it"
        );
        world.model.hang = false;
        world.pass_until("flush", |world| world.done.len() == 2);
        assert_eq!(world.results(), [(1, IO), (2, Ok(()))]);
    });
}
