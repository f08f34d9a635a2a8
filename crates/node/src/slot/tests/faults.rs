//! An assertion fails while the card serves a slot: its machine is answered all the same.

use core::time::Duration;

use spec::nvme::SubmissionEntry;
use spec::nvme::registers::CSTS;

use super::guest::{CONFIG, DMA_BASE, Guest, PATIENCE};
use super::world::{BORROWER, World, with_frames};
use super::{is_ready, with_slot};
use crate::card::{CardEvent, Unusable};

const FAULT: CardEvent = CardEvent::Unusable(0, Unusable::Fault);

/// A new card, which contains faults, and a new guest.
fn begin(world: &mut World<'_>) -> Guest {
    world.disconnect();

    world.seats[BORROWER].switch.arm(0);
    assert!(world.run(PATIENCE, |world| !world.seats[BORROWER].switch.is_armed()));
    assert!(world.run(PATIENCE, |world| world.card().slot(0).unwrap().is_ready()));
    world.act(BORROWER, |card, _| card.contain_faults());
    world.events.clear();
    let mut guest = Guest::connect(world);
    guest.bring_up(world);
    guest.round_trip(world, 1);
    guest
}

#[test]
fn a_fault_takes_the_function_from_its_machine_and_nothing_else() {
    with_slot(|world| {
        assert!(is_ready(world));
        for stores in (0..).step_by(13) {
            let mut guest = begin(world);
            world.seats[BORROWER].switch.fault.set(Some(stores));
            let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(DMA_BASE + 0x3_0000, 0);
            guest.submit(world, 1, entry);
            world.run(Duration::from_millis(2), |_| false);
            if world.seats[BORROWER].switch.fault.take().is_some() {
                return assert!(stores > 200, "{stores} stores");
            }
            assert!(world.events.contains(&FAULT), "{stores}");
            // Whatever it asks for is answered, as by a function that is gone.
            assert_eq!(guest.read_u32(world, 0, CSTS), u32::MAX, "{stores}");
            assert_eq!(guest.read_u32(world, CONFIG, 0), u32::MAX);
            let extra = guest.descriptor();
            guest.map(world, (extra, 0x5_0000), 3, 0x20_0000, 0x2000).unwrap();
            guest.unmap(world, 0x20_0000, 0x2000).unwrap();
            world.run(Duration::from_secs(5), |_| false);
            assert!(!world.open.contains(&extra));
            world.disconnect();
            let mut next = Guest::connect(world);
            assert_eq!(
                next.read_u32(world, 0, CSTS),
                u32::MAX,
                "nor is it there for another one, until the next card"
            );
        }
    });
}

/// Nobody is there who could be told of it, and nothing of the function is known: the next card finds out.
#[test]
fn a_fault_before_the_function_is_known_costs_its_guests_nothing() {
    let mut is_over = false;
    for stores in (0..).step_by(89) {
        with_frames(9000, |world| {
            world.act(BORROWER, |card, _| card.contain_faults());
            world.seats[BORROWER].switch.fault.set(Some(stores));
            is_over = world.run(Duration::from_millis(200), |world| is_ready(world));
            if is_over {
                return assert!(stores > 200, "{stores} stores");
            }
            eprintln!(
                "{:?} {:?}",
                world.events,
                world.seats[BORROWER]
                    .card
                    .as_ref()
                    .map(|card| (card.state(0), card.channel(0).map(|c| c.is_met())))
            );
            assert!(world.events.contains(&FAULT), "{stores}");
            world.seats[BORROWER].switch.arm(0);
            // Nobody hears anything of the peer any more, so nothing else makes a step.
            world.act(BORROWER, |card, now| card.slot_closed(now, 0));
            assert!(world.run(PATIENCE, |world| is_ready(world)), "{stores}");
            let mut guest = Guest::connect(world);
            guest.bring_up(world);
            guest.round_trip(world, 1);
        });
        if is_over {
            return;
        }
    }
}
