//! A lender that is silent for longer than a request may take.

use core::time::Duration;

use pcie::spec::header::{COMMAND, COMMAND_BUS_MASTER};
use spec::nvme::registers::{CC, CSTS, doorbell};
use spec::nvme::{Status, SubmissionEntry};
use spec::vfio_user::{Command, Errno};

use super::super::bringup::Stage;
use super::guest::{CONFIG, DMA_BASE, Guest};
use super::world::{BORROWER, LENDER, World};
use super::{QEMU_WAITS, express, killed_in_between, with_slot};

const TARGET: usize = 0x3_0000;
/// A request of a guest that does not wait for the lender.
const AT_ONCE: Duration = Duration::from_millis(1);
/// Longer than the time in which one who is there is heard.
const SOON: Duration = Duration::from_secs(2);

fn read_entry() -> SubmissionEntry {
    SubmissionEntry::read(0, 1, 0, 8).with_prps(DMA_BASE + TARGET as u64, 0)
}

fn blackouts(world: &World<'_>) -> u64 {
    world.cells().session.counters.blackouts.get()
}

fn is_silent(world: &World<'_>) -> bool {
    world.cells().session.is_silent()
}

/// How long a read takes that fails.
fn failed_read(world: &mut World<'_>, guest: &mut Guest, region: u32, offset: u64) -> Duration {
    let before = world.now;
    assert_eq!(guest.read(world, region, offset, 4), Err(Errno::ETIMEDOUT));
    world.now.since(before)
}

/// The guest finds that its controller has lost its state, and begins anew with it.
fn recover(world: &mut World<'_>, guest: &mut Guest, events: &[u32]) {
    let csts = guest.csts(world);
    assert!(csts.cfs() && csts.rdy(), "{csts:?}");
    guest.write(world, 0, CC, &0_u32.to_le_bytes());
    guest.wait_ready(world, false);
    guest.restart(world, events);
}

#[test]
fn a_guest_waits_once_for_a_lender_that_is_silent() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        guest.round_trip(world, 1);
        world.seats[LENDER].is_silent = true;
        assert!(failed_read(world, &mut guest, 0, CSTS) < QEMU_WAITS);
        for _ in 0..20 {
            assert!(failed_read(world, &mut guest, 0, CSTS) < AT_ONCE);
            assert!(failed_read(world, &mut guest, CONFIG, 4) < AT_ONCE);
            let before = world.now;
            guest.ask(world, Command::DEVICE_RESET, &[], &[]).unwrap_err();
            guest.ask(world, Command::DEVICE_GET_INFO, &[0; 16], &[]).unwrap_err();
            assert!(world.now.since(before) < AT_ONCE);
        }
        assert_eq!(world.cells().session.counters.timeouts.get(), 1);
        // Nor does a new card wait once more.
        world.seats[BORROWER].switch.arm(0);
        assert!(failed_read(world, &mut guest, 0, CSTS) < AT_ONCE);
        assert!(!world.seats[BORROWER].switch.is_armed() && blackouts(world) == 1);
        world.seats[LENDER].is_silent = false;
        assert!(world.run(SOON, |world| !is_silent(world) && world.card().slot(0).unwrap().is_ready()));
        recover(world, &mut guest, &events);
        guest.round_trip(world, 2);
        assert_eq!(blackouts(world), 1);
    });
}

/// Frames of the lender come, and those to it get lost: it is as good as dead.
#[test]
fn a_lender_that_is_heard_and_does_not_hear_is_waited_for_once() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        world.seats[BORROWER].is_silent = true;
        assert!(failed_read(world, &mut guest, CONFIG, 4) < QEMU_WAITS);
        for _ in 0..5 {
            world.run(Duration::from_millis(300), |_| false);
            assert!(failed_read(world, &mut guest, CONFIG, 4) < AT_ONCE);
        }
        world.seats[BORROWER].is_silent = false;
        assert!(world.run(SOON, |world| !is_silent(world)));
        guest.round_trip(world, 1);
    });
}

/// Another node has the function: its lender is there, and opens no stream.
#[test]
fn a_lender_that_serves_somebody_else_is_waited_for_once() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        world.is_taken = true;
        world.reboot(LENDER);
        // Its lender was started anew, which fails what was under way.
        world.run(SOON, |_| false);
        assert!(failed_read(world, &mut guest, 0, CSTS) < QEMU_WAITS);
        for _ in 0..5 {
            world.run(Duration::from_millis(300), |_| false);
            assert!(failed_read(world, &mut guest, 0, CSTS) < AT_ONCE);
        }
        assert_eq!(blackouts(world), 1);
    });
}

/// The lender was away for less time than a request may take: its guest has read all-ones all the same.
#[test]
fn a_lender_that_is_started_again_before_it_has_answered_leaves_its_guest_with_all_ones() {
    for (region, offset, is_register) in [(0, CSTS, 1), (CONFIG, 4, 0)] {
        with_slot(|world| {
            let mut guest = Guest::connect(world);
            let events = guest.bring_up(world);
            world.seats[LENDER].is_silent = true;
            guest.send_read(world, region, offset);
            world.run(Duration::from_millis(500), |_| false);
            world.reboot(LENDER);
            world.seats[LENDER].is_silent = false;
            let mut answer = None;
            assert!(world.run(SOON, |world| {
                answer = answer.take().or_else(|| world.message());
                answer.is_some() && world.card().slot(0).unwrap().is_ready()
            }));
            let answer = answer.unwrap();
            let header = spec::vfio_user::MessageHeader::view(answer.first_chunk().unwrap());
            assert_eq!(header.error(), Some(Errno::EIO));
            assert!(world.run(SOON, |world| world.card().slot(0).unwrap().is_ready()));
            assert_eq!(blackouts(world), is_register);
            recover(world, &mut guest, &events);
            guest.round_trip(world, 1);
            assert_eq!(blackouts(world), is_register, "said once");
        });
    }
}

/// Its driver has given the controller up, and uses for something else what it had told it of.
#[test]
fn nothing_reaches_a_guest_that_has_read_all_ones() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        guest.round_trip(world, 1);
        // The lender is alive and does what it was asked for: only its answers do not come.
        world.seats[LENDER].is_silent = true;
        guest.submit(world, 1, read_entry());
        failed_read(world, &mut guest, 0, CSTS);
        world.ram.bytes.borrow_mut()[TARGET..][..4096].fill(0x77);
        guest.submit(world, 1, read_entry());
        world.seats[LENDER].is_silent = false;
        world.run(SOON, |_| false);
        assert!(world.ram.bytes.borrow()[TARGET..][..4096].iter().all(|byte| *byte == 0x77));
        recover(world, &mut guest, &events);
        guest.round_trip(world, 2);
    });
}

/// The guest's driver goes on without it, with the registers that it sees.
#[test]
fn a_reset_that_was_given_up_leaves_the_command_register_as_the_guest_sees_it() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        guest.round_trip(world, 1);
        let express = express(&mut guest, world);
        world.seats[LENDER].is_silent = true;
        guest.write(world, CONFIG, express + 8, &0x8000_u16.to_le_bytes());
        failed_read(world, &mut guest, CONFIG, 0);
        world.seats[LENDER].is_silent = false;
        assert!(world.run(SOON, |world| !is_silent(world) && world.card().slot(0).unwrap().is_ready()));
        assert_ne!(guest.read_u32(world, CONFIG, COMMAND.into()) & u32::from(COMMAND_BUS_MASTER), 0);
        recover(world, &mut guest, &events);
        guest.round_trip(world, 2);
    });
}

/// Nothing comes through, in either direction.
fn cut(world: &mut World<'_>, is_cut: bool) {
    for seat in &mut world.seats {
        seat.is_silent = is_cut;
    }
}

/// The commands that were rung for would wait for ever, and the guest would take its controller for one that is well.
#[test]
fn a_guest_whose_doorbells_are_lost_finds_its_controller_failed() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        guest.round_trip(world, 1);
        cut(world, true);
        for tail in 0..3000_u32 {
            guest.write(world, 0, doorbell(1, false, 0), &(tail % 2).to_le_bytes());
        }
        world.run(Duration::from_secs(5), |_| false);
        assert!(world.cells().session.counters.dropped_writes.get() > 1000);
        cut(world, false);
        assert!(world.run(SOON, |world| !is_silent(world) && world.card().slot(0).unwrap().is_ready()));
        recover(world, &mut guest, &events);
        guest.round_trip(world, 2);
        // It has seen no all-ones: what it has needs not be replaced.
        assert_eq!(blackouts(world), 0);
    });
}

#[test]
fn a_function_that_falls_silent_again_while_it_is_set_up_comes_back() {
    for stage in [Stage::Back, Stage::Setup] {
        with_slot(|world| {
            let mut guest = Guest::connect(world);
            let events = guest.bring_up(world);
            guest.round_trip(world, 1);
            cut(world, true);
            failed_read(world, &mut guest, 0, CSTS);
            cut(world, false);
            assert!(world.run(SOON, |world| world.card().slot(0).unwrap().stage() == stage));
            cut(world, true);
            failed_read(world, &mut guest, 0, CSTS);
            cut(world, false);
            assert!(world.run(SOON, |world| !is_silent(world) && world.card().slot(0).unwrap().is_ready()));
            recover(world, &mut guest, &events);
            guest.round_trip(world, 2);
        });
    }
}

/// Whatever of a command is under way: its entry, its data, its completion. The function waits for its guest's memory.
#[test]
fn an_outage_that_no_register_meets_costs_a_guest_nothing_but_time() {
    let write = SubmissionEntry::write(0, 1, 0, 8).with_prps(DMA_BASE + TARGET as u64, 0);
    for turns in 0..30 {
        with_slot(|world| {
            let mut guest = Guest::connect(world);
            guest.bring_up(world);
            guest.round_trip(world, 1);
            guest.submit(world, 1, write);
            (0..turns).for_each(|_| world.turn());
            cut(world, true);
            world.run(Duration::from_secs(8), |_| false);
            cut(world, false);
            let done = guest.complete(world, 1, SOON).map(|done| done.status());
            assert_eq!(
                (done, guest.csts(world).cfs()),
                (Some(Status::SUCCESS), false),
                "cut after {turns} turns"
            );
            guest.round_trip(world, 2);
        });
    }
}

#[test]
fn a_card_may_die_while_its_lender_is_silent() {
    let events = core::cell::RefCell::new(Vec::new());
    killed_in_between(
        |world, guest| {
            if events.borrow().is_empty() {
                *events.borrow_mut() = guest.bring_up(world);
            }
            guest.round_trip(world, 1);
        },
        |world, guest, stores| {
            world.seats[LENDER].is_silent = true;
            guest.submit(world, 1, read_entry());
            failed_read(world, guest, 0, CSTS);
            world.seats[LENDER].is_silent = false;
            assert!(world.run(SOON, |world| !is_silent(world) && world.card().slot(0).unwrap().is_ready()));
            recover(world, guest, &events.borrow());
            guest.round_trip(world, 2 + stores);
        },
    );
}
