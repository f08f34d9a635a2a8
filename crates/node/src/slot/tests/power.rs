//! A lender whose power fails under a guest.

use core::time::Duration;

use device::nvme::WriteCache;
use pcie::capability::find_extended;
use pcie::spec::capability::EXTENDED_SERIAL_NUMBER;
use spec::nvme::registers::{CC, CSTS, HOST_KEEPS};
use spec::nvme::{Status, SubmissionEntry};

use super::guest::{CONFIG, DMA_BASE, Guest, PATIENCE};
use super::world::{LENDER, World, with_cache};
use super::{is_ready, killed_in_between_in, with_slot};
use crate::card::CardEvent;

#[test]
fn power_of_the_lender_takes_no_answered_write_of_a_guest() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        let data: Vec<u8> = (0..4096).map(|at| (at % 251) as u8 + 1).collect();
        let write = |guest: &mut Guest, world: &mut World<'_>, lba: u64| {
            world.ram.bytes.borrow_mut()[0x2_0000..0x2_1000].copy_from_slice(&data);
            let entry = SubmissionEntry::write(0, 1, lba, 8).with_prps(DMA_BASE + 0x2_0000, 0);
            assert_eq!(guest.execute(world, 1, entry).status(), Status::SUCCESS);
        };
        // What only hosts may say that keep what is not flushed, in every way that reaches the register.
        for (at, bytes) in [(HOST_KEEPS, 4), (HOST_KEEPS, 8), (HOST_KEEPS - 4, 8)] {
            guest.write(world, 0, at, &u64::MAX.to_le_bytes()[..bytes]);
        }
        write(&mut guest, world, 64);
        // Answered, not flushed.
        world.lose_power();
        world.seats[LENDER].switch.disarm();
        assert!(world.run(PATIENCE, |world| {
            world.cells().slot.view.is_fatal() && world.card().slot(0).unwrap().is_ready()
        }));
        assert!(guest.csts(world).cfs());
        assert!(world.medium[64 * 512..][..4096] == data[..], "it was answered");
        guest.write(world, 0, CC, &0_u32.to_le_bytes());
        guest.restart(world, &events);
        write(&mut guest, world, 128);
        world.lose_power();
        assert!(
            world.medium[128 * 512..][..4096] == data[..],
            "nor does it matter what the guest said before"
        );
    });
}

/// A world with a slot whose guest is shown a volatile cache.
fn with_volatile(test: impl FnOnce(&mut World<'_>)) {
    with_cache(WriteCache::Shown { keeper: 1 }, |world| {
        assert!(world.run(PATIENCE, |world| is_ready(world)), "the function is found");
        test(world);
    });
}

/// The device serial number as the guest reads it.
fn serial(world: &mut World<'_>, guest: &mut Guest) -> [u32; 2] {
    let registers = &world.cells().slot.registers;
    let at = find_extended(|at| registers[usize::from(at) / 4].get(), EXTENDED_SERIAL_NUMBER).unwrap();
    [4, 8].map(|offset| guest.read_u32(world, CONFIG, u64::from(at) + offset))
}

fn replacements(world: &World<'_>) -> u64 {
    world.cells().slot.replacements.get()
}

fn is_running(world: &World<'_>) -> bool {
    world.card().slot(0).unwrap().is_ready()
}

/// The power fails, and the borrower has met the lender's next life.
fn lose_power(world: &mut World<'_>) {
    let before = world.seats[LENDER].incarnation;
    world.lose_power();
    let met = |world: &World<'_>| {
        let met = |event: &CardEvent| matches!(event, CardEvent::Met(_, _, it) if it.0 == before + 1);
        world.events.iter().any(met) && is_running(world)
    };
    world.events.clear();
    assert!(world.run(PATIENCE, |world| met(world)));
}

#[test]
fn power_of_the_lender_takes_a_drive_with_a_cache_from_its_guest() {
    with_volatile(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        let known = serial(world, &mut guest);
        guest.round_trip(world, 1);
        // Its node is started again; what it has not flushed lies where it lay.
        world.reboot(LENDER);
        let fatal = |world: &World<'_>| world.cells().slot.view.is_fatal();
        assert!(world.run(PATIENCE, |world| fatal(world) && is_running(world)));
        assert!(guest.csts(world).cfs() && guest.csts(world).rdy());
        guest.write(world, 0, CC, &0_u32.to_le_bytes());
        guest.restart(world, &events);
        guest.round_trip(world, 2);
        assert_eq!((serial(world, &mut guest), replacements(world)), (known, 0));

        let medium = world.medium.clone();
        lose_power(world);
        assert!(world.medium != medium, "something answered is lost");
        assert_eq!(replacements(world), 1);
        assert_eq!(guest.read_u32(world, 0, CSTS), u32::MAX);
        assert_eq!(serial(world, &mut guest), [u32::MAX; 2]);
        // Nothing that it does brings the drive back to it, nor does the lender's next life.
        guest.write(world, 0, CC, &0_u32.to_le_bytes());
        world.reboot(LENDER);
        world.run(Duration::from_millis(500), |_| false);
        assert_eq!(guest.read_u32(world, 0, CSTS), u32::MAX);
        assert_eq!(replacements(world), 1, "it is the same as before");
        assert!(world.card().slot(0).unwrap().is_replaced());

        world.disconnect();
        let mut next = Guest::connect(world);
        next.bring_up(world);
        assert!(serial(world, &mut next) != known && !world.card().slot(0).unwrap().is_replaced());
        next.round_trip(world, 3);
    });
}

/// What somebody else has left there is not for a guest that was given something else.
#[test]
fn a_guest_loses_a_drive_whose_content_was_replaced() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        guest.round_trip(world, 1);
        world.is_renewed = true;
        world.reboot(LENDER);
        assert!(world.run(PATIENCE, |world| replacements(world) == 1));
        assert_eq!(guest.read_u32(world, 0, CSTS), u32::MAX);
        world.disconnect();
        let mut next = Guest::connect(world);
        next.bring_up(world);
        next.round_trip(world, 2);
        assert_eq!(replacements(world), 1);
    });
}

#[test]
fn a_drive_that_nobody_has_becomes_another_one_unnoticed() {
    with_volatile(|world| {
        lose_power(world);
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        guest.round_trip(world, 1);
        assert_eq!(replacements(world), 0);
        let known = serial(world, &mut guest);
        lose_power(world);
        assert_eq!((replacements(world), guest.csts(world).0), (1, u32::MAX));
        world.disconnect();
        let mut guest = Guest::connect(world);
        assert!(serial(world, &mut guest) != known);
    });
}

#[test]
fn a_card_may_die_while_a_drive_becomes_another_one() {
    with_volatile(|world| {
        killed_in_between_in(
            world,
            11,
            |world, guest| {
                world.disconnect();
                *guest = Guest::connect(world);
                guest.bring_up(world);
                guest.round_trip(world, 1);
            },
            |world, guest, stores| {
                let before = replacements(world);
                lose_power(world);
                assert!(replacements(world) > before, "{stores}");
                assert_eq!(guest.read_u32(world, 0, CSTS), u32::MAX, "{stores}");
                assert!(world.card().slot(0).unwrap().is_replaced());
            },
        );
    });
}
