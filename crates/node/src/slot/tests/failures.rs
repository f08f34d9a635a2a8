//! What may go wrong with memory that is reached by messages, and the borrowing card dies before each store of it.

use core::cell::RefCell;
use core::ops::Range;
use core::time::Duration;

use pcie::spec::header::COMMAND;
use spec::nvme::registers::CC;
use spec::nvme::{Status, SubmissionEntry};
use spec::vfio_user::Command;

use super::guest::{CONFIG, DATA, DMA_BASE, Guest, PATIENCE};
use super::world::{RAM_BYTES, World};
use super::{credits_are_conserved, denied, killed_in_between};

const TARGET: u64 = DMA_BASE + 0x3_0000;
/// Memory beside the guest's other: the machine has its first page there.
const EXTRA: Range<u64> = 0x2_0000_0000..0x2_0000_1000;
const SHORT: Duration = Duration::from_millis(20);

fn read_entry() -> SubmissionEntry {
    SubmissionEntry::read(0, 1, 0, 8)
}

fn write_entry() -> SubmissionEntry {
    SubmissionEntry::write(0, 1, 0, 8)
}

fn failed(world: &World<'_>) -> u64 {
    world.cells().session.counters.failed_transfers.get()
}

/// The guest finds that its controller has lost its state, and sees to nothing but that.
fn recover(world: &mut World<'_>, guest: &mut Guest, events: &[u32]) {
    let csts = guest.csts(world);
    assert!(csts.cfs() && csts.rdy(), "{csts:?}");
    guest.write(world, 0, CC, &0_u32.to_le_bytes());
    guest.wait_ready(world, false);
    assert_eq!(guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff, 6);
    guest.restart(world, events);
}

/// Kills the card at each store from a command on whose message is refused, or not answered for so long, until the
/// guest has everything back.
fn killed_while_it_fails(layout: [bool; 2], refuses: Option<Command>, entry: SubmissionEntry) {
    let events = RefCell::new(Vec::new());
    killed_in_between(
        |world, guest| {
            if events.borrow().is_empty() {
                *events.borrow_mut() = guest.bring_up_by_message(world, layout);
            }
            guest.round_trip(world, 1);
            credits_are_conserved(world);
        },
        |world, guest, stores| {
            let before = failed(world);
            (world.machine.refuses, world.machine.is_silent) = (refuses, refuses.is_none());
            guest.submit(world, 1, entry.with_prps(TARGET, 0));
            assert!(world.run(PATIENCE, |world| failed(world) > before));
            assert!(guest.complete(world, 1, SHORT).is_none(), "its completion is not told");
            (world.machine.refuses, world.machine.is_silent) = (None, false);
            recover(world, guest, &events.borrow());
            guest.round_trip(world, 2 + stores);
        },
    );
}

#[test]
fn a_card_may_die_while_its_function_fails_because_a_write_was_refused() {
    for layout in [[false, true], [true, true]] {
        killed_while_it_fails(layout, Some(Command::DMA_WRITE), read_entry());
    }
}

#[test]
fn a_card_may_die_while_its_function_fails_because_a_write_was_not_answered() {
    killed_while_it_fails([false, true], None, read_entry());
}

/// The controller cannot fetch its commands.
#[test]
fn a_card_may_die_while_a_controller_cannot_read_its_queue() {
    killed_while_it_fails([true, false], Some(Command::DMA_READ), read_entry());
}

#[test]
fn a_card_may_die_while_a_read_is_refused() {
    let mut is_up = false;
    killed_in_between(
        |world, guest| {
            if !core::mem::replace(&mut is_up, true) {
                guest.bring_up_by_message(world, [false, true]);
            }
            guest.round_trip(world, 1);
            credits_are_conserved(world);
        },
        |world, guest, stores| {
            world.machine.refuses = Some(Command::DMA_READ);
            let done = guest.execute(world, 1, write_entry().with_prps(TARGET, 0));
            assert_eq!(done.status(), Status::DATA_TRANSFER_ERROR);
            world.machine.refuses = None;
            guest.round_trip(world, 2 + stores);
        },
    );
}

#[test]
fn a_card_may_die_while_an_unmap_waits_for_what_is_asked() {
    for entry in [read_entry(), write_entry()] {
        let mut is_up = false;
        killed_in_between(
            |world, guest| {
                if !core::mem::replace(&mut is_up, true) {
                    guest.bring_up_by_message(world, [false, false]);
                }
                map_extra(world, guest);
                let done = guest.execute(world, 1, entry.with_prps(EXTRA.start, 0));
                assert_eq!(done.status(), Status::SUCCESS);
                credits_are_conserved(world);
            },
            |world, guest, stores| {
                world.machine.is_silent = true;
                guest.submit(world, 1, entry.with_prps(EXTRA.start, 0));
                assert!(world.run(PATIENCE, |world| world.is_asked()));
                let number = guest.send_unmap(world, EXTRA.start, 0x1000);
                world.run(SHORT, |_| false);
                assert!(world.message().is_none());
                world.machine.is_silent = false;
                let mut answer = None;
                assert!(world.run(PATIENCE, |world| {
                    answer = world.message();
                    answer.is_some()
                }));
                assert_eq!(answer.unwrap()[..2], number.to_le_bytes());
                world.machine.maps.clear();
                assert_eq!(guest.complete(world, 1, PATIENCE).unwrap().status(), Status::SUCCESS);
                let before = denied(world);
                guest.execute(world, 1, entry.with_prps(EXTRA.start, 0));
                assert!(denied(world) > before && failed(world) == 0);
                guest.round_trip(world, 2 + stores);
            },
        );
    }
}

#[test]
fn a_card_may_die_while_a_client_goes_of_which_something_is_asked() {
    for layout in [[true, true], [false, true]] {
        killed_in_between(
            |world, guest| {
                world.disconnect();
                *guest = Guest::connect(world);
                guest.bring_up_by_message(world, layout);
                guest.round_trip(world, 1);
                credits_are_conserved(world);
            },
            |world, guest, _| {
                world.machine.is_silent = true;
                guest.submit(world, 1, read_entry().with_prps(TARGET, 0));
                guest.submit(world, 1, write_entry().with_prps(TARGET, 0));
                assert!(world.run(PATIENCE, |world| world.is_asked()));
                world.disconnect();
                world.machine.is_silent = false;
                world.ram.bytes.borrow_mut().fill(0x77);
                let mut next = Guest::connect(world);
                next.map_by_message(world, 3, DMA_BASE..DMA_BASE + RAM_BYTES as u64);
                world.run(SHORT, |_| false);
                assert!(!world.is_asked() && world.ram.bytes.borrow().iter().all(|byte| *byte == 0x77));
                assert_eq!(next.csts(world).0, 0);
            },
        );
    }
}

fn map_extra(world: &mut World<'_>, guest: &mut Guest) {
    guest.map_by_message(world, 3, EXTRA);
    world.machine.base = EXTRA.start;
}

/// Writes and reads a page of the memory that is reached by messages, and compares.
fn round_trip(world: &mut World<'_>, guest: &mut Guest, salt: u64) {
    let data: Vec<u8> = (0..512_u64).flat_map(|at| (salt << 16 ^ at).to_le_bytes()).collect();
    world.ram.bytes.borrow_mut()[..0x1000].copy_from_slice(&data);
    for entry in [write_entry(), read_entry()] {
        let done = guest.execute(world, 1, entry.with_prps(EXTRA.start, 0));
        assert_eq!(done.status(), Status::SUCCESS);
        assert_eq!(world.medium[..0x1000], data);
        assert_eq!(world.ram.bytes.borrow()[..0x1000], data);
        world.ram.bytes.borrow_mut()[..0x1000].fill(0xee);
    }
}

/// A new client, whose machine has data where it may have them, and has not been asked where that is.
fn unknown(world: &mut World<'_>, guest: &mut Guest, is_old: bool) -> Vec<u32> {
    world.disconnect();
    world.machine.is_old = is_old;
    *guest = Guest::connect(world);
    let events = guest.bring_up_by_message(world, [false, false]);
    map_extra(world, guest);
    credits_are_conserved(world);
    events
}

#[test]
fn a_card_may_die_while_it_asks_where_data_are() {
    for is_old in [false, true] {
        killed_in_between(
            |world, guest| _ = unknown(world, guest, is_old),
            |world, guest, stores| {
                round_trip(world, guest, stores);
                assert_eq!((denied(world), failed(world)), (0, 0));
            },
        );
    }
}

/// It fails what waits for that. Later it asks again, and does not mistake the late answer.
#[test]
fn a_card_may_die_while_nobody_tells_it_where_data_are() {
    let events = RefCell::new(Vec::new());
    killed_in_between(
        |world, guest| *events.borrow_mut() = unknown(world, guest, true),
        |world, guest, stores| {
            let before = failed(world);
            world.machine.is_silent = true;
            guest.submit(world, 1, read_entry().with_prps(EXTRA.start, 0));
            assert!(world.run(PATIENCE, |world| failed(world) > before));
            assert!(guest.complete(world, 1, SHORT).is_none() && world.is_asked());
            world.machine.is_silent = false;
            recover(world, guest, &events.borrow());
            round_trip(world, guest, stores);
        },
    );
}

/// What the one before was asked says nothing of the next one.
#[test]
fn a_card_may_die_while_a_client_goes_that_is_asked_where_data_are() {
    killed_in_between(
        |world, guest| _ = unknown(world, guest, true),
        |world, guest, stores| {
            world.machine.is_silent = true;
            guest.submit(world, 1, write_entry().with_prps(EXTRA.start, 0));
            assert!(world.run(PATIENCE, |world| world.is_asked()));
            world.disconnect();
            world.machine.is_silent = false;
            unknown(world, guest, false);
            round_trip(world, guest, stores);
            assert_eq!(failed(world), 0);
        },
    );
}

const _: () = assert!(DATA > EXTRA.end - EXTRA.start);
