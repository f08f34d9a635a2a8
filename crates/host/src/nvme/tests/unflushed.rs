//! Writes that are kept until they are flushed.

use super::*;
use crate::nvme::unflushed::{KEPT_PAGES, KEPT_WRITES, REWRITES};

fn first_bytes(world: &World<'_>, lbas: core::ops::Range<usize>) -> Vec<u8> {
    lbas.map(|lba| world.model.disk[lba * BLOCK]).collect()
}

fn flush(world: &mut World<'_>, id: u32) -> Result<(), BlockError> {
    world.submit(id, BlockKind::Flush, 0, 0, 0);
    world.settle();
    let (_, result) = world.results().pop().expect("the flush has ended");
    result
}

#[test]
fn a_power_loss_of_the_lender_loses_no_answered_write() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 10, 40, 0x10);
        world.submit(2, BlockKind::WriteZeroes { deallocate: true }, 12, 1, 0);
        world.submit(3, BlockKind::Trim, 14, 1, 0);
        world.submit_fua(4, 16, 1, 0x40);
        world.settle();
        assert_eq!(world.results().len(), 4);
        let before = world.model.disk.clone();
        world.model.log.clear();
        world.lose_power();
        assert_eq!(first_bytes(world, 10..18), [0, 0, 0, 0, 0, 0, 0x40, 0]);
        // A read that waits sees it all.
        world.submit(5, BlockKind::Read, 10, 40, 0);
        world.ready();
        world.settle();
        assert!(world.model.disk == before && world.read[&5][..40 * BLOCK] == before[10 * BLOCK..50 * BLOCK]);
        // Of each block only the newest, from the last write to the first.
        let writes: Vec<_> = world.model.log.iter().map(|&(_, lba, blocks)| (lba, blocks)).collect();
        assert_eq!(writes, [(16, 1), (0, 0), (12, 1), (10, 2), (13, 1), (15, 1), (17, 33), (0, 0), (10, 40)]);
        assert_eq!(flush(world, 6), Ok(()));
        world.lose_power();
        world.ready();
        assert!(world.model.disk == before);
        assert_eq!((world.driver().kept(), world.pages_used()), ((0, 0), 0));
        assert_eq!(world.driver().counters().kept.get(), 4);
    });
}

#[test]
fn in_a_shared_namespace_nothing_is_written_again_and_nothing_lost() {
    with_world(|world| {
        world.model.shared = true;
        world.ready();
        world.submit(1, BlockKind::Write, 10, 4, 0x10);
        world.submit(2, BlockKind::WriteZeroes { deallocate: true }, 12, 1, 0);
        world.settle();
        assert_eq!((world.results().len(), world.driver().kept()), (2, (0, 0)));
        let before = world.model.disk.clone();
        world.model.log.clear();
        world.lose_power();
        world.ready();
        world.settle();
        assert!(world.model.disk == before, "what was answered was durable");
        assert!(world.model.log.is_empty(), "another one may have written since");
    });
}

#[test]
fn a_flush_releases_what_had_ended_when_it_was_issued() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        world.model.hang = true;
        world.submit(2, BlockKind::Flush, 0, 0, 0);
        world.settle();
        world.model.hang = false;
        // Ends before the flush, which knows nothing of it.
        world.submit(3, BlockKind::Write, 8, 8, 3);
        world.settle();
        assert_eq!(world.driver().kept(), (2, 2));
        let ledger = world.calm();
        let mut driver = driver(&ledger);
        let flush = driver.commands.slots.iter().next().expect("the flush is at the controller");
        driver.commands.complete(world.now, flush, Status::SUCCESS);
        ledger.journal.commit();
        assert_eq!(world.driver().kept(), (1, 1));
        world.inputs.push_back(Input::Tick);
        world.settle();
        world.lose_power();
        world.ready();
        assert_eq!(first_bytes(world, 8..9), [3]);
    });
}

#[test]
fn a_hidden_cache_is_for_a_driver_that_says_that_it_keeps() {
    with_world(|world| {
        world.model.hides_cache = true;
        for fill in 1..3 {
            world.ready();
            assert!(world.model.host_keeps, "after each reset anew");
            world.submit(1, BlockKind::Write, 0, 8, fill);
            world.settle();
            assert_eq!(world.driver().kept().0, 1);
            world.lose_power();
            world.ready();
            assert_eq!(first_bytes(world, 0..1), [fill]);
        }
    });
}

#[test]
fn without_a_volatile_cache_nothing_is_kept() {
    with_world(|world| {
        world.model.volatile_cache = false;
        world.ready();
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        assert_eq!((world.driver().kept(), world.pages_used()), ((0, 0), 0));
    });
}

#[test]
fn a_cache_that_is_gone_after_a_reset_needs_no_flush() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        world.model.volatile_cache = false;
        world.lose_power();
        world.ready();
        world.inputs.push_back(Input::Tick);
        world.settle();
        assert_eq!(
            (first_bytes(world, 0..1), world.driver().kept(), world.pages_used()),
            (vec![1], (0, 0), 0)
        );
    });
}

#[test]
fn the_driver_flushes_by_itself_and_never_keeps_more_than_it_may() {
    for blocks in [1, 256] {
        with_world(|world| {
            world.ready();
            for id in 0..if blocks == 1 { 6000 } else { 600 } {
                world.submit(id, BlockKind::Write, u64::from(id % 4) * 256, blocks, id as u8);
            }
            let count = world.inputs.len();
            while let Some(input) = world.inputs.front().cloned() {
                world.step(input);
                let (writes, pages) = world.driver().kept();
                assert!(writes <= KEPT_WRITES && pages <= KEPT_PAGES);
            }
            assert_eq!(world.results().len(), count);
            let (writes, pages) = world.driver().kept();
            assert!(writes <= KEPT_WRITES / 2 && pages <= KEPT_PAGES / 2 + 32);
            assert!((1..20).contains(&world.model.flushes), "{} flushes", world.model.flushes);
            assert_eq!(world.pages_used(), pages);
        });
    }
}

#[test]
fn writes_wait_while_a_flush_is_slow() {
    with_world(|world| {
        world.ready();
        world.model.hang_flushes = true;
        (0..3000).for_each(|id| world.submit(id, BlockKind::Write, u64::from(id % 100), 1, 1));
        // The requester waits for room in the end.
        while let Some(input) = world.inputs.front().cloned() {
            if world.inputs.iter().all(|input| matches!(input, Input::Submit { .. }))
                && world.driver().room() == 0
            {
                break;
            }
            world.step(input);
        }
        assert_eq!(world.driver().kept(), (KEPT_WRITES, KEPT_WRITES));
        world.model.hang_flushes = false;
        world.reset();
        world.pass_until("done", |world| world.done.len() == 3000);
        assert!(world.results().iter().all(|(_, result)| result.is_ok()));
    });
}

#[test]
fn what_cannot_be_written_again_fails_the_next_flush_once() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.submit(2, BlockKind::Write, 8, 8, 2);
        world.settle();
        world.results();
        world.lose_power();
        world.model.statuses.push_back(Status::WRITE_FAULT);
        world.ready();
        assert_eq!(first_bytes(world, 0..9), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
        let counters = world.driver().counters();
        assert_eq!((counters.rewritten.get(), counters.lost.get()), (1, 1));
        assert_eq!(flush(world, 3), Err(BlockError::Io));
        assert_eq!(flush(world, 4), Ok(()));
        assert_eq!(world.driver().kept(), (0, 0));
    });
}

#[test]
fn what_was_kept_of_another_block_size_is_lost_and_said_so() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        world.results();
        world.model.block_shift = 12;
        world.lose_power();
        world.ready();
        assert_eq!((world.driver().kept(), world.pages_used()), ((0, 0), 0));
        assert_eq!(flush(world, 2), Err(BlockError::Io));
    });
}

#[test]
fn an_outage_while_writing_again_is_outlasted() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        world.results();
        world.lose_power();
        world.model.statuses.extend([Status::DATA_TRANSFER_ERROR; 3]);
        world.ready();
        assert_eq!((first_bytes(world, 0..1), flush(world, 2)), (vec![1], Ok(())));
    });
}

/// Lets happen what is under way, as if it took one round trip; how many it took until the driver was ready.
fn round_trips(world: &mut World<'_>) -> usize {
    for rounds in 0..10_000 {
        if rounds > 0 && world.driver().is_ready() {
            return rounds;
        }
        if world.inputs.is_empty() {
            world.pass(1);
        }
        for _ in 0..world.inputs.len() {
            if let Some(input) = world.inputs.front().cloned() {
                world.step(input);
            }
        }
    }
    panic!("never ready");
}

#[test]
fn a_full_ring_is_written_again_in_few_round_trips_and_flushed() {
    with_world(|world| {
        world.ready();
        (0..512).for_each(|id| world.submit_fua(id, u64::from(id) * 2, 1, id as u8));
        world.settle();
        assert_eq!(world.driver().kept(), (512, 512));
        world.lose_power();
        world.model.disk.fill(0);
        world.model.hang_flushes = true;
        let rounds = round_trips(world);
        assert!(rounds < 512 / REWRITES + 40, "{rounds} round trips");
        assert!((0..512).all(|id| world.model.disk[id * 2 * BLOCK] == id as u8));
        world.settle();
        assert_eq!(world.driver().kept(), (512, 512), "until the flush has ended");
        world.model.hang_flushes = false;
        world.pass_until("flushed", |world| world.driver().kept() == (0, 0));
        world.lose_power();
        world.ready();
        assert!((0..512).all(|id| world.model.disk[id * 2 * BLOCK] == id as u8));
        assert_eq!(world.pages_used(), 0);
    });
}

#[test]
fn whoever_needs_pages_gets_those_of_kept_writes() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 16, 1);
        world.settle();
        assert_eq!((world.driver().kept(), world.model.flushes), ((1, 2), 0));
        for _ in 0..2 {
            let ledger = world.calm();
            driver(&ledger).flush_kept();
            ledger.journal.commit();
            world.inputs.push_back(Input::Tick);
            world.settle();
            assert_eq!((world.driver().kept(), world.model.flushes), ((0, 0), 1));
        }
    });
}

#[test]
fn what_another_host_may_have_changed_is_forgotten() {
    with_world(|world| {
        world.ready();
        world.submit(1, BlockKind::Write, 0, 8, 1);
        world.settle();
        assert!(!world.driver().has_lost());
        world.model.hang = true;
        world.submit(2, BlockKind::Write, 0, 8, 2);
        world.submit(3, BlockKind::Read, 0, 8, 2);
        world.settle();
        world.results();
        world.model.hang = false;
        world.model.disk[..8 * BLOCK].fill(9);
        world.reset();
        world.inputs.pop_front();
        world.inputs.push_front(Input::Forget);
        world.ready();
        world.settle();
        assert_eq!(world.results(), [(2, Err(BlockError::Io)), (3, Err(BlockError::Io))]);
        assert_eq!(
            (first_bytes(world, 0..1), world.driver().kept(), world.pages_used()),
            (vec![9], (0, 0), 0)
        );
        assert!(world.driver().has_lost());
        assert_eq!(flush(world, 4), Err(BlockError::Io));
        assert!(!world.driver().has_lost());
    });
}

#[test]
fn an_end_tells_whether_something_is_lost() {
    let ends = |prepare: fn(&mut World<'_>)| {
        let mut lost = false;
        with_world(|world| {
            world.ready();
            world.submit(1, BlockKind::Write, 0, 8, 1);
            world.settle();
            prepare(world);
            world.inputs.push_back(Input::Shutdown);
            world.pass_until("down", |world| world.driver().is_shut_down());
            lost = world.driver().has_lost();
            assert_eq!((world.driver().kept(), world.pages_used()), ((0, 0), 0));
        });
        lost
    };
    assert!(!ends(|_| {}));
    assert!(ends(|world| world.model.hang_flushes = true), "the flush takes too long");
    assert!(ends(|world| world.model.statuses.push_back(Status::WRITE_FAULT)), "the flush fails");
    let is_away = |world: &mut World<'_>| {
        world.lose_power();
        world.model.lost = usize::MAX;
    };
    assert!(ends(is_away), "the lender is away");
    let fails_again = |world: &mut World<'_>| {
        world.lose_power();
        world.model.statuses.push_back(Status::WRITE_FAULT);
        world.ready();
    };
    assert!(ends(fails_again), "it cannot be written again");
    let only_given_up = |world: &mut World<'_>| {
        flush(world, 2).expect("flushes");
        world.model.hang = true;
        world.submit(3, BlockKind::Write, 0, 8, 1);
        world.inputs.push_back(Input::Abandon(3));
        world.settle();
        world.lose_power();
        world.model.lost = usize::MAX;
    };
    assert!(!ends(only_given_up), "nobody was told of success");
}

/// Writes, a loss of power, a second one in the middle of writing again, a flush: whatever store a card dies at.
fn lossy(kill: Option<u64>) -> u64 {
    let (arena, killer) = (Arena::default(), Killer::new(kill));
    let mut world = World::new(&arena, &killer);
    world.ready();
    world.submit(1, BlockKind::Write, 0, 20, 0x10);
    world.submit_fua(2, 4, 1, 0x20);
    world.submit(3, BlockKind::Trim, 30, 1, 0);
    world.settle();
    world.lose_power();
    for _ in 0..70 {
        if let Some(input) = world.inputs.front().cloned() {
            world.step(input);
        }
    }
    world.lose_power();
    world.submit(4, BlockKind::Read, 0, 20, 0);
    world.ready();
    world.submit(5, BlockKind::Flush, 0, 0, 0);
    world.settle();
    world.lose_power();
    world.ready();
    let results = world.results();
    assert!(results.len() == 5 && results.iter().all(|(_, result)| result.is_ok()), "{results:?}");
    assert_eq!(first_bytes(&world, 0..10), [0x10, 0x10, 0x10, 0x10, 0x20, 0x10, 0x10, 0x10, 0x11, 0x11]);
    assert_eq!((first_bytes(&world, 30..31), world.pages_used()), (vec![0xdd], 0));
    assert!(world.read[&4][..20 * BLOCK] == world.model.disk[..20 * BLOCK]);
    killer.stores.get()
}

#[test]
fn a_card_killed_at_every_store_keeps_what_is_not_flushed() {
    let stores = lossy(None);
    for kill in 0..stores {
        lossy(Some(kill));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// One request after the other, so that the drive is a plain array, though the power fails all the time and cards
    /// die.
    #[test]
    fn the_drive_is_an_array_whose_lender_loses_its_power(seed: u64) {
        let (arena, killer) = (Arena::default(), Killer::new(None));
        let mut world = World::new(&arena, &killer);
        let mut random = Random::new(seed);
        let mut expected = vec![0; 64];
        world.ready();
        for id in 0..60_u32 {
            let (lba, fill) = (random.below(40), id as u8 + 1);
            let blocks = 1 + random.below(24);
            match random.below(8) {
                0 => world.submit(id, BlockKind::Flush, 0, 0, 0),
                1 => world.submit(id, BlockKind::WriteZeroes { deallocate: true }, lba, blocks as u32, 0),
                2 | 3 => world.submit_fua(id, lba, blocks as u32, fill),
                _ => world.submit(id, BlockKind::Write, lba, blocks as u32, fill),
            }
            match world.inputs.back() {
                Some(Input::Submit { kind: BlockKind::Flush, .. }) => {}
                Some(Input::Submit { kind: BlockKind::WriteZeroes { .. }, .. }) => {
                    expected[lba as usize..(lba + blocks) as usize].fill(0);
                }
                _ => (0..blocks).for_each(|block| {
                    expected[(lba + block) as usize] = fill.wrapping_add((block / 8) as u8);
                }),
            }
            if random.below(3) == 0 {
                killer.at.set(Some(killer.stores.get() + random.below(400)));
            }
            world.pass_until("done", |world| world.done.len() == id as usize + 1);
            while random.below(3) == 0 {
                world.lose_power();
                for _ in 0..random.below(90) {
                    if let Some(input) = world.inputs.front().cloned() {
                        world.step(input);
                    }
                }
            }
        }
        world.ready();
        world.settle();
        prop_assert!(world.results().iter().all(|(_, result)| result.is_ok()));
        prop_assert_eq!(first_bytes(&world, 0..64), expected);
    }
}
