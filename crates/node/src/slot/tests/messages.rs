//! Memory that the guest's machine does not share: it is asked for everything, and answers when its main loop has time.

use core::time::Duration;

use pcie::spec::header::{CLASS, COMMAND};
use spec::nvme::registers::{CC, Cc, Csts};
use spec::nvme::{Status, SubmissionEntry};
use spec::vfio_user::{Command, Errno, MessageHeader};

use super::guest::{CONFIG, DATA, DMA_BASE, Guest, PATIENCE};
use super::world::{BORROWER, LENDER, RAM_BYTES, World};
use super::{credits_are_conserved, denied, express, with_slot, with_slot_over};

/// Queues, data, both.
const LAYOUTS: [[bool; 2]; 3] = [[true, true], [true, false], [false, true]];
const TARGET: u64 = DMA_BASE + 0x3_0000;
const SHORT: Duration = Duration::from_millis(20);
/// Frames whose TLPs carry 1024 bytes.
const SMALL_FRAME: usize = 1472;
/// As many posted writes of a function as there can be credit for.
const CREDIT: u64 = 1024;
/// Reads that take more than that, each of `LARGE_PAGES` pages.
const LARGE_READS: usize = 15;
const LARGE_PAGES: u64 = 32;

fn read_entry() -> SubmissionEntry {
    SubmissionEntry::read(0, 1, 0, 8).with_prps(TARGET, 0)
}

fn waits(world: &World<'_>) -> bool {
    world.card().stream(0).port.held.count() > 0
}

fn failed(world: &World<'_>) -> u64 {
    world.cells().session.counters.failed_transfers.get()
}

#[test]
fn a_guest_whose_memory_is_not_shared_uses_a_drive() {
    for (layout, is_old) in LAYOUTS.into_iter().flat_map(|layout| [(layout, false), (layout, true)]) {
        with_slot(|world| {
            world.machine.is_old = is_old;
            let mut guest = Guest::connect(world);
            guest.bring_up_by_message(world, layout);
            for salt in 1..20 {
                guest.round_trip(world, salt);
            }
            assert_eq!(guest.interrupts, 2 + 2 * 19);
            assert_eq!(world.signals.values().sum::<u64>(), guest.interrupts);
            assert_eq!((denied(world), failed(world)), (0, 0));
            assert!(world.machine.reads > 10 && world.machine.writes > 10);
            assert!(world.ram.stores.get() > 0 || layout == [true, true]);
            credits_are_conserved(world);
        });
    }
}

/// What is behind a write by message comes when that was answered: the completion entry, the interrupt, and what is
/// read.
#[test]
fn nothing_passes_a_write_that_is_not_answered() {
    for layout in LAYOUTS {
        with_slot(|world| {
            let mut guest = Guest::connect(world);
            guest.bring_up_by_message(world, layout);
            guest.round_trip(world, 1);
            let (signals, stores) = (world.signals.clone(), world.ram.stores.get());
            let before = world.ram.bytes.borrow().clone();
            world.machine.keeps_writes = true;
            guest.submit(world, 1, read_entry());
            world.run(SHORT, |_| false);
            assert!(waits(world) && world.is_asked(), "{layout:?}");
            assert_eq!(world.signals, signals);
            if layout[1] {
                assert_eq!(world.ram.stores.get(), stores, "a store does not pass a message");
                assert!(world.ram.bytes.borrow()[DATA as usize..] == before[DATA as usize..]);
            }
            // A register is read meanwhile: its value passes.
            assert!(guest.csts(world).rdy());
            assert!(waits(world));
            world.machine.keeps_writes = false;
            let done = guest.complete(world, 1, PATIENCE).expect("it goes on");
            assert_eq!(done.status(), Status::SUCCESS);
            assert!(world.ram.bytes.borrow()[0x3_0000..0x3_1000] == world.medium[..0x1000]);
            guest.round_trip(world, 2);
            credits_are_conserved(world);
        });
    }
}

/// Kills a card before every store of a round trip.
fn killed_at_each_store(node: usize, layout: [bool; 2]) {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up_by_message(world, layout);
        let mut rounds = 0;
        for stores in 0.. {
            rounds += 1;
            world.seats[node].switch.arm(stores);
            guest.round_trip(world, rounds);
            if world.seats[node].switch.is_armed() {
                break;
            }
        }
        world.seats[node].switch.disarm();
        assert_eq!(world.seats[node].deaths, rounds - 1, "each round but the last had one");
        assert!(rounds > 200, "{rounds} rounds");
        assert_eq!(guest.interrupts, 2 + 2 * rounds, "no completion is lost or doubled");
        assert_eq!((denied(world), failed(world)), (0, 0));
        credits_are_conserved(world);
    });
}

#[test]
fn a_borrower_killed_at_any_store_loses_nothing_of_memory_by_message() {
    LAYOUTS.into_iter().for_each(|layout| killed_at_each_store(BORROWER, layout));
}

#[test]
fn a_lender_killed_at_any_store_loses_nothing_of_memory_by_message() {
    killed_at_each_store(LENDER, [false, true]);
}

#[test]
fn frames_may_be_lost_and_cards_die_while_memory_is_reached_by_messages() {
    with_slot(|world| {
        world.loss = 50;
        let mut guest = Guest::connect(world);
        guest.bring_up_by_message(world, [false, true]);
        for salt in 1..100 {
            for node in [LENDER, BORROWER] {
                if !world.seats[node].switch.is_armed() {
                    world.seats[node].switch.arm(salt * 7919 % 4001);
                }
            }
            guest.round_trip(world, salt);
        }
        assert!(world.seats.iter().all(|seat| seat.deaths > 5));
        world.loss = 0;
        world.seats.iter().for_each(|seat| seat.switch.disarm());
        credits_are_conserved(world);
    });
}

/// A request that fails does not look as if it had succeeded: nothing of the function comes any more until it was
/// reset.
#[test]
fn a_write_that_is_refused_or_not_answered_fails_the_function() {
    for refuses in [Some(Command::DMA_WRITE), None] {
        with_slot(|world| {
            let mut guest = Guest::connect(world);
            let events = guest.bring_up_by_message(world, [false, true]);
            for round in 1..4 {
                guest.round_trip(world, round);
                let (signals, before) = (world.signals.clone(), failed(world));
                (world.machine.refuses, world.machine.is_silent) = (refuses, refuses.is_none());
                guest.submit(world, 1, read_entry());
                assert!(world.run(PATIENCE, |world| failed(world) > before));
                world.run(SHORT, |_| false);
                (world.machine.refuses, world.machine.is_silent) = (None, false);
                world.run(SHORT, |_| false);
                assert_eq!(world.signals, signals, "its completion is not told");
                let csts = guest.csts(world);
                assert!(csts.cfs() && csts.rdy());
                guest.write(world, 0, CC, &0_u32.to_le_bytes());
                guest.wait_ready(world, false);
                assert_eq!(guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff, 6);
                guest.restart(world, &events);
            }
            guest.round_trip(world, 9);
            credits_are_conserved(world);
        });
    }
}

/// A machine may do what it has not answered in time: its guest has the memory back no earlier.
#[test]
fn a_controller_has_not_ended_before_a_write_that_comes_late() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [true, true]);
        for round in 1..4 {
            guest.round_trip(world, round);
            let before = failed(world);
            world.machine.keeps_writes = true;
            guest.submit(world, 1, read_entry());
            assert!(world.run(PATIENCE, |world| failed(world) > before));
            world.run(SHORT, |_| false);
            assert!(guest.csts(world).cfs());
            guest.write(world, 0, CC, &0_u32.to_le_bytes());
            world.run(SHORT, |_| false);
            assert!(guest.csts(world).rdy() && world.is_asked());
            world.machine.keeps_writes = false;
            guest.wait_ready(world, false);
            assert!(!world.is_asked());
            world.ram.bytes.borrow_mut()[..].fill(0x77);
            world.run(SHORT, |_| false);
            assert!(world.ram.bytes.borrow().iter().all(|byte| *byte == 0x77));
            guest.restart(world, &events);
        }
        guest.round_trip(world, 9);
        credits_are_conserved(world);
    });
}

/// It is asked first where it has data.
#[test]
fn a_machine_that_never_answers_fails_what_waits_for_it() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [false, true]);
        world.machine.is_silent = true;
        let entry = SubmissionEntry::write(0, 1, 0, 8).with_prps(TARGET, 0);
        assert_eq!(guest.execute(world, 1, entry).status(), Status::DATA_TRANSFER_ERROR);
        let before = failed(world);
        guest.submit(world, 1, read_entry());
        assert!(world.run(PATIENCE, |world| failed(world) > before));
        world.run(SHORT, |_| false);
        assert!(guest.csts(world).cfs() && !waits(world));
        world.machine.is_silent = false;
        guest.write(world, 0, CC, &0_u32.to_le_bytes());
        guest.wait_ready(world, false);
        guest.restart(world, &events);
        guest.round_trip(world, 1);
        let counters = &world.cells().session.counters;
        assert_eq!(counters.timeouts.get(), 0, "the function has answered everything");
        credits_are_conserved(world);
    });
}

#[test]
fn a_machine_that_takes_no_bytes_fails_the_function() {
    with_slot(|world| {
        let mut guest = Guest::connect_with(world, 0);
        guest.bring_up_by_message(world, [false, true]);
        let signals = world.signals.clone();
        guest.submit(world, 1, read_entry());
        let slot = &world.cells().slot;
        assert!(world.run(PATIENCE, |_| slot.view.is_fatal()));
        world.run(SHORT, |_| false);
        assert_eq!(world.signals, signals);
        assert!(!waits(world));
    });
}

#[test]
fn a_read_that_is_refused_fails_its_command_only() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up_by_message(world, [false, true]);
        world.machine.refuses = Some(Command::DMA_READ);
        let entry = SubmissionEntry::write(0, 1, 0, 8).with_prps(TARGET, 0);
        assert_eq!(guest.execute(world, 1, entry).status(), Status::DATA_TRANSFER_ERROR);
        world.machine.refuses = None;
        guest.round_trip(world, 1);
        credits_are_conserved(world);
    });
}

/// Its guest takes memory back when the controller says that it has ended: so it does not before that is so.
#[test]
fn a_controller_has_not_ended_while_something_waits() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [true, true]);
        world.machine.keeps_writes = true;
        guest.submit(world, 1, read_entry());
        assert!(world.run(SHORT, |world| waits(world)));
        for value in [Cc(0).with_en(true).with_iosqes(6).with_iocqes(4).with_shn(1), Cc(0)] {
            guest.write(world, 0, CC, &value.0.to_le_bytes());
            world.run(SHORT, |_| false);
            let csts = guest.csts(world);
            assert!(csts.rdy() && csts.shst() != 2, "{csts:?}");
        }
        world.machine.keeps_writes = false;
        world.run(SHORT, |world| !waits(world));
        assert!(!guest.csts(world).rdy());
        world.ram.bytes.borrow_mut()[..].fill(0x77);
        world.run(SHORT, |_| false);
        assert!(world.ram.bytes.borrow().iter().all(|byte| *byte == 0x77));
        guest.restart(world, &events);
        guest.round_trip(world, 1);
    });
}

/// What waits is over with a reset, but for the one message that is with the machine.
#[test]
fn a_reset_ends_what_waits() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [true, true]);
        let express = express(&mut guest, world);
        for round in 0..4 {
            world.machine.keeps_writes = true;
            guest.submit(world, 1, read_entry());
            assert!(world.run(SHORT, |world| waits(world)));
            world.run(SHORT, |_| false);
            if round % 2 == 0 {
                guest.write(world, CONFIG, express + 8, &0x8000_u16.to_le_bytes());
                assert_eq!(guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff, 0);
            } else {
                guest.ask(world, Command::DEVICE_RESET, &[], &[]).unwrap();
            }
            let signals = world.signals.clone();
            world.machine.keeps_writes = false;
            guest.wait_ready(world, false);
            world.run(SHORT, |_| false);
            assert!(!waits(world) && world.signals == signals);
            guest.start(world, &events);
            guest.round_trip(world, 2 + round);
            credits_are_conserved(world);
        }
    });
}

#[test]
fn an_unmap_is_answered_when_what_is_under_way_has_ended() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up_by_message(world, [false, false]);
        let extra = 0x1_0000_0000 * 2..0x1_0000_0000 * 2 + 0x1000;
        for read in [false, true] {
            guest.map_by_message(world, 3, extra.clone());
            world.machine.base = extra.start;
            let entry =
                if read { SubmissionEntry::write(0, 1, 0, 8) } else { SubmissionEntry::read(0, 1, 0, 8) };
            guest.execute(world, 1, entry.with_prps(extra.start, 0));
            world.machine.is_silent = true;
            guest.submit(world, 1, entry.with_prps(extra.start, 0));
            assert!(world.run(SHORT, |world| world.is_asked()));
            let number = guest.send_unmap(world, extra.start, 0x1000);
            world.run(SHORT, |_| false);
            assert!(world.message().is_none());
            world.machine.is_silent = false;
            let mut answer = None;
            assert!(world.run(SHORT, |world| {
                answer = world.message();
                answer.is_some()
            }));
            assert_eq!(answer.unwrap()[..2], number.to_le_bytes());
            world.machine.maps.clear();
            assert_eq!(guest.complete(world, 1, PATIENCE).unwrap().status(), Status::SUCCESS);
            let before = denied(world);
            guest.execute(world, 1, entry.with_prps(extra.start, 0));
            assert!(denied(world) > before);
        }
        guest.round_trip(world, 1);
        credits_are_conserved(world);
    });
}

/// It waits in vain for its own main loop, and gets its memory back all the same.
#[test]
fn an_unmap_that_waits_for_its_own_machine_ends_in_time() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [false, true]);
        guest.round_trip(world, 2);
        world.machine.is_silent = true;
        guest.submit(world, 1, read_entry());
        assert!(world.run(SHORT, |world| world.is_asked()));
        let before = world.now;
        guest.unmap(world, DMA_BASE + DATA, RAM_BYTES as u64 - DATA).unwrap();
        assert!(world.now.since(before) < super::QEMU_WAITS);
        assert!(guest.csts(world).cfs());
        world.machine.is_silent = false;
        world.machine.maps.clear();
        guest.map_by_message(world, 3, DMA_BASE + DATA..DMA_BASE + RAM_BYTES as u64);
        guest.write(world, 0, CC, &0_u32.to_le_bytes());
        guest.wait_ready(world, false);
        guest.restart(world, &events);
        guest.round_trip(world, 1);
        credits_are_conserved(world);
    });
}

/// A card that comes late finds that both have taken too long.
#[test]
fn an_unmap_is_answered_though_its_time_is_over_with_that_of_a_transfer() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up_by_message(world, [false, true]);
        guest.round_trip(world, 2);
        world.machine.is_silent = true;
        guest.submit(world, 1, read_entry());
        assert!(world.run(SHORT, |world| world.is_asked()));
        let number = guest.send_unmap(world, DMA_BASE + DATA, RAM_BYTES as u64 - DATA);
        world.run(SHORT, |_| false);
        world.now += Duration::from_secs(4);
        let mut answer = None;
        assert!(world.run(SHORT, |world| {
            answer = world.message();
            answer.is_some()
        }));
        let answer = answer.unwrap();
        let header = MessageHeader::view(answer.first_chunk().unwrap());
        assert_eq!((header.id.get(), header.error()), (number, None));
    });
}

#[test]
fn a_client_may_go_in_the_middle() {
    with_slot(|world| {
        for round in 0..8 {
            let mut guest = Guest::connect(world);
            guest.bring_up_by_message(world, LAYOUTS[round % 3]);
            guest.round_trip(world, 1);
            guest.submit(world, 1, read_entry());
            guest.submit(world, 1, SubmissionEntry::write(0, 1, 0, 8).with_prps(TARGET, 0));
            if round % 2 == 0 {
                assert!(world.run(SHORT, |world| world.is_asked()) || LAYOUTS[round % 3] == [true, false]);
                world.machine.is_silent = true;
            }
            (0..round * 3).for_each(|_| world.turn());
            world.disconnect();
            world.machine.is_silent = false;
            world.ram.bytes.borrow_mut().fill(0x77);
            let mut next = Guest::connect(world);
            next.map_by_message(world, 3, DMA_BASE..DMA_BASE + RAM_BYTES as u64);
            world.run(SHORT, |_| false);
            assert!(!world.is_asked() && world.ram.bytes.borrow().iter().all(|byte| *byte == 0x77));
            world.disconnect();
            world.run(SHORT, |_| false);
            credits_are_conserved(world);
        }
    });
}

#[test]
fn a_lender_that_lost_its_ledger_leaves_nothing_that_waits() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [true, true]);
        for round in 1..4 {
            guest.round_trip(world, round);
            world.machine.keeps_writes = true;
            guest.submit(world, 1, read_entry());
            assert!(world.run(SHORT, |world| waits(world)));
            world.run(SHORT, |_| false);
            world.reboot(LENDER);
            let slot = &world.cells().slot;
            assert!(world.run(PATIENCE, |_| slot.view.is_fatal()));
            world.machine.keeps_writes = false;
            assert!(guest.csts(world).cfs());
            guest.write(world, 0, CC, &0_u32.to_le_bytes());
            guest.wait_ready(world, false);
            guest.restart(world, &events);
        }
        guest.round_trip(world, 9);
        credits_are_conserved(world);
    });
}

#[test]
fn memory_by_message_is_read_and_written_as_its_map_says() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up_by_message(world, [false, true]);
        let extra = 0x2_0000_0000..0x2_0000_1000;
        guest.map_by_message(world, 1, extra.clone());
        let before = denied(world);
        guest.execute(world, 1, SubmissionEntry::read(0, 1, 0, 8).with_prps(extra.start, 0));
        assert!(denied(world) > before && failed(world) == 0, "it is read-only");
        guest.map(world, (99, 0), 3, extra.start, 0x1000).map(|_| ()).unwrap_err();
        assert_eq!(guest.unmap(world, extra.start, 0x2000).err(), None::<Errno>);
        guest.round_trip(world, 1);
    });
}

/// Reads more than there is credit for into memory by message, none of which its machine writes.
fn flood(world: &mut World<'_>, guest: &mut Guest) {
    // Behind the queues: the pages from the second on.
    let list = 0x8000;
    for page in 1..LARGE_PAGES {
        let at = list + (page as usize - 1) * 8;
        world.ram.bytes.borrow_mut()[at..at + 8].copy_from_slice(&(TARGET + page * 0x1000).to_le_bytes());
    }
    world.machine.keeps_writes = true;
    let entry =
        SubmissionEntry::read(0, 1, 0, (LARGE_PAGES * 8) as u32).with_prps(TARGET, DMA_BASE + list as u64);
    for _ in 0..LARGE_READS {
        guest.submit(world, 1, entry);
    }
    let is_spent = |world: &mut World<'_>| world.card().stream(0).port.held.count() == CREDIT;
    assert!(world.run(SHORT, is_spent), "all credit is held back");
    world.run(SHORT, |_| false);
}

/// What a guest asks for while its machine does no write: registers, and configuration space that is the function's.
fn ask_for_registers(world: &mut World<'_>, guest: &mut Guest) {
    assert!(guest.csts(world).rdy());
    assert_eq!(guest.read_u32(world, CONFIG, CLASS.into()) >> 8, 0x01_0802);
}

/// A machine whose main loop holds still until it has a value does none of the writes that would bring credit for
/// others.
#[test]
fn no_value_waits_for_credit() {
    for (round, queues) in [false, true].into_iter().enumerate() {
        with_slot_over(SMALL_FRAME, |world| {
            let mut guest = Guest::connect(world);
            guest.bring_up_by_message(world, [queues, true]);
            flood(world, &mut guest);
            let (before, writes) = (world.now, world.machine.writes);
            (0..50).for_each(|_| ask_for_registers(world, &mut guest));
            assert!(world.now.since(before) < Duration::from_millis(100));
            assert_eq!((world.machine.writes, failed(world)), (writes, 0));
            world.machine.keeps_writes = false;
            for _ in 0..LARGE_READS {
                let done = guest.complete(world, 1, PATIENCE).expect("all is done in the end");
                assert_eq!(done.status(), Status::SUCCESS);
            }
            let bytes = (LARGE_PAGES * 0x1000) as usize;
            assert!(world.ram.bytes.borrow()[0x3_0000..][..bytes] == world.medium[..bytes]);
            guest.round_trip(world, 2 + round as u64);
            credits_are_conserved(world);
        });
    }
}

/// The same of resets, which end what waits.
#[test]
fn no_reset_waits_for_credit() {
    with_slot_over(SMALL_FRAME, |world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [false, true]);
        let express = express(&mut guest, world);
        for round in 0..4 {
            flood(world, &mut guest);
            let (before, signals) = (world.now, world.signals.clone());
            if round % 2 == 0 {
                guest.write(world, CONFIG, express + 8, &0x8000_u16.to_le_bytes());
                assert_eq!(guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff, 0);
            } else {
                guest.ask(world, Command::DEVICE_RESET, &[], &[]).unwrap();
            }
            guest.csts(world);
            assert!(world.now.since(before) < Duration::from_millis(100));
            world.machine.keeps_writes = false;
            guest.wait_ready(world, false);
            world.run(SHORT, |_| false);
            assert!(!waits(world) && world.signals == signals && failed(world) == 0);
            guest.start(world, &events);
            guest.round_trip(world, 2 + round);
            credits_are_conserved(world);
        }
    });
}

/// Kills a card before every store of what it does for a value while no credit is left.
#[test]
fn a_card_may_die_while_no_credit_is_left() {
    for node in [LENDER, BORROWER] {
        with_slot_over(SMALL_FRAME, |world| {
            let mut guest = Guest::connect(world);
            guest.bring_up_by_message(world, [false, true]);
            flood(world, &mut guest);
            let before = world.machine.writes;
            for stores in 0.. {
                world.seats[node].switch.arm(stores);
                ask_for_registers(world, &mut guest);
                if world.seats[node].switch.is_armed() {
                    assert!(stores > 20, "{stores} stores");
                    break;
                }
            }
            world.seats[node].switch.disarm();
            assert_eq!((world.machine.writes, failed(world)), (before, 0));
            world.machine.keeps_writes = false;
            for _ in 0..LARGE_READS {
                let done = guest.complete(world, 1, PATIENCE).expect("all is done in the end");
                assert_eq!(done.status(), Status::SUCCESS);
            }
            credits_are_conserved(world);
        });
    }
}

/// What the function has not sent for want of credit is sent before it says that it has ended.
#[test]
fn a_controller_has_not_ended_while_it_lacks_credit() {
    with_slot_over(SMALL_FRAME, |world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up_by_message(world, [false, true]);
        for value in [Cc(0).with_en(true).with_iosqes(6).with_iocqes(4).with_shn(1), Cc(0)] {
            flood(world, &mut guest);
            guest.write(world, 0, CC, &value.0.to_le_bytes());
            let has_ended = |status: Csts| if value.en() { status.shst() == 2 } else { !status.rdy() };
            assert!(!has_ended(guest.csts(world)));
            world.machine.keeps_writes = false;
            let mut asked = 0;
            while !has_ended(guest.csts(world)) {
                asked += 1;
                assert!(asked < 20_000, "{value:?}");
                world.turn();
            }
            world.ram.bytes.borrow_mut()[DATA as usize..].fill(0x77);
            world.run(Duration::from_millis(300), |_| false);
            assert!(world.ram.bytes.borrow()[DATA as usize..].iter().all(|byte| *byte == 0x77));
            guest.write(world, 0, CC, &0_u32.to_le_bytes());
            guest.wait_ready(world, false);
            guest.restart(world, &events);
            guest.round_trip(world, 1);
            credits_are_conserved(world);
        }
    });
}
