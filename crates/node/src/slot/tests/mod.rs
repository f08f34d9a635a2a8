//! A guest with an NVMe driver on a drive of another node, and everything that may happen to it.

mod failures;
mod faults;
mod guest;
mod messages;
mod power;
mod probing;
mod silence;
mod world;

use core::time::Duration;

use base::Random;
use host::vfio_user::DMA_END;
use pcie::spec::header::COMMAND;
use spec::nvme::registers::{CC, CMBLOC, CMBMSC, CSTS};
use spec::nvme::{Status, SubmissionEntry};
use spec::vfio_user::{Command, Errno};

use self::guest::{CONFIG, DMA_BASE, Guest, PATIENCE, RAM_FD};
use self::world::{BORROWER, LENDER, RAM_BYTES, World, with_frames, with_world};
use crate::card::CardEvent;

/// Short enough that QEMU does not give up.
const QEMU_WAITS: Duration = base::times::QEMU_MESSAGE;

fn is_ready(world: &World<'_>) -> bool {
    world.events.contains(&CardEvent::Ready(0))
}

/// A world with a slot that can be served.
fn with_slot(test: impl FnOnce(&mut World<'_>)) {
    with_slot_over(9000, test);
}

/// The same over frames of this size.
fn with_slot_over(frame: usize, test: impl FnOnce(&mut World<'_>)) {
    with_frames(frame, |world| {
        assert!(world.run(PATIENCE, |world| is_ready(world)), "the function is found");
        test(world);
    });
}

fn denied(world: &World<'_>) -> u64 {
    world.cells().edge.denied_accesses.get()
}

#[test]
fn a_guest_uses_a_drive_of_another_node() {
    with_slot(|world| {
        assert!(world.now.since(base::Instant::ZERO) < Duration::from_millis(100));
        let mut guest = Guest::connect(world);
        assert_eq!([0, 2, 3, 4, 5].map(|bar| guest.bar_size(world, bar)), [0x1_0000, 0, 0, 0, 0]);
        guest.bring_up(world);
        for salt in 1..20 {
            guest.round_trip(world, salt);
        }
        // Two commands make the queue; nothing is signalled without reason.
        assert_eq!(guest.interrupts, 2 + 2 * 19);
        assert_eq!(world.signals.values().sum::<u64>(), guest.interrupts);
        assert_eq!((denied(world), world.ram.repeated.get()), (0, 0));
        let edge = &world.cells().edge;
        assert_eq!((edge.malformed_tlps.get(), edge.unexpected_completions.get()), (0, 0));
        assert!(world.card().slot(0).unwrap().session().unwrap().counters().errors.get() == 0);
    });
}

#[test]
fn a_driver_that_lets_go_of_the_function_is_noticed() {
    with_slot(|world| {
        let has_driver = |world: &World<'_>| world.cells().session.has_driver();
        let mut guest = Guest::connect(world);
        assert!(!has_driver(world));
        guest.bring_up(world);
        assert!(has_driver(world));
        // No vector, by the numbers of DEVICE_SET_IRQS.
        let none = [20_u32, 0x21, 2, 0, 0].map(u32::to_le_bytes).concat();
        guest.ask(world, Command::DEVICE_SET_IRQS, &none, &[]).unwrap();
        assert!(has_driver(world), "it may reach memory");
        guest.write(world, CONFIG, COMMAND.into(), &2_u16.to_le_bytes());
        assert_eq!(guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff, 2);
        assert!(!has_driver(world));
    });
}

#[test]
fn the_memory_buffer_is_not_shown() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        guest.write(world, 0, CMBMSC, &3_u64.to_le_bytes());
        let buffer = guest.read(world, 0, CMBLOC, 8).unwrap();
        assert_eq!(buffer, [0; 8]);
        assert_eq!(guest.read(world, 0, CMBMSC, 8).unwrap(), [0; 8]);
        let lent = world.seats[LENDER].card.as_mut().unwrap();
        assert!(lent.lent(0).unwrap().is_ready());
    });
}

/// Kills a card before every store of a write and a read, one after the other: `step` apart.
fn killed_at_each_store(node: usize, step: usize) {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        let mut rounds = 0;
        for stores in (0..).step_by(step) {
            rounds += 1;
            world.seats[node].switch.arm(stores);
            guest.round_trip(world, rounds);
            if world.seats[node].switch.is_armed() {
                break;
            }
        }
        world.seats[node].switch.disarm();
        assert_eq!(world.seats[node].deaths, rounds - 1, "each round but the last had one");
        assert!(rounds > 100, "{rounds} rounds");
        assert_eq!(guest.interrupts, 2 + 2 * rounds, "no completion is lost or doubled");
        assert_eq!(denied(world), 0);
        assert!(node == LENDER || world.ram.repeated.get() > 0, "some kills were behind a store");
        assert!(world.ram.repeated.get() <= world.seats[BORROWER].deaths);
        credits_are_conserved(world);
    });
}

/// Kills the borrower before every store of something else than I/O. `prepare` comes before the kill; `act` says what
/// it was.
fn killed_in_between(
    mut prepare: impl FnMut(&mut World<'_>, &mut Guest),
    mut act: impl FnMut(&mut World<'_>, &mut Guest, u64),
) {
    with_slot(|world| killed_in_between_in(world, 1, &mut prepare, &mut act));
}

/// The same in this world, with kills `step` stores apart.
fn killed_in_between_in(
    world: &mut World<'_>,
    step: usize,
    mut prepare: impl FnMut(&mut World<'_>, &mut Guest),
    mut act: impl FnMut(&mut World<'_>, &mut Guest, u64),
) {
    let mut guest = Guest::connect(world);
    for stores in (0..).step_by(step) {
        assert!(stores < 100_000, "it ends");
        prepare(world, &mut guest);
        let deaths = world.seats[BORROWER].deaths;
        world.seats[BORROWER].switch.arm(stores);
        act(world, &mut guest, stores);
        if world.seats[BORROWER].switch.is_armed() {
            world.seats[BORROWER].switch.disarm();
            return assert!(stores > 20, "{stores} stores");
        }
        assert_eq!(world.seats[BORROWER].deaths, deaths + 1);
    }
}

#[test]
fn a_card_may_die_while_a_client_goes() {
    killed_in_between(
        |world, guest| {
            world.disconnect();
            *guest = Guest::connect(world);
            // Nobody but the slot has reset the function since the last client.
            assert_eq!(guest.csts(world).0, 0);
            guest.bring_up(world);
        },
        |world, _, _| {
            world.disconnect();
            world.run(Duration::from_millis(2), |world| !world.seats[BORROWER].switch.is_armed());
        },
    );
}

#[test]
fn a_card_may_die_while_the_function_is_reset() {
    let mut events = Vec::new();
    let place = core::cell::Cell::new(0);
    killed_in_between(
        |world, guest| {
            if events.is_empty() {
                events = guest.bring_up(world);
                place.set(express(guest, world));
            } else {
                guest.start(world, &events);
            }
            guest.round_trip(world, 1);
        },
        |world, guest, stores| {
            if stores % 2 == 0 {
                guest.write(world, CONFIG, place.get() + 8, &0x8000_u16.to_le_bytes());
            } else {
                guest.ask(world, Command::DEVICE_RESET, &[], &[]).unwrap();
            }
            assert_eq!(guest.csts(world).0, 0);
        },
    );
}

#[test]
fn a_card_may_die_while_memory_comes_and_goes() {
    let mut number = 0;
    killed_in_between(
        |world, guest| {
            number += 1;
            if number == 1 {
                guest.bring_up(world);
            }
        },
        |world, guest, stores| {
            let descriptor = guest.descriptor();
            guest.map(world, (descriptor, 0x5_0000), 3, 0x20_0000, 0x1000).unwrap();
            let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(0x20_0000, 0);
            assert_eq!(guest.execute(world, 1, entry).status(), Status::SUCCESS);
            let before = denied(world);
            guest.unmap(world, 0x20_0000, 0x1000).unwrap();
            // What was in doubt may be made again behind the unmap, and is denied then.
            guest.execute(world, 1, entry);
            assert!(denied(world) > before, "{stores}");
            assert!(world.run(PATIENCE, |world| !world.open.contains(&descriptor)));
        },
    );
}

#[test]
fn frames_may_be_lost_while_cards_die() {
    with_world(|world| {
        world.loss = 50;
        assert!(world.run(PATIENCE, |world| is_ready(world)));
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        for salt in 1..200 {
            for node in [LENDER, BORROWER] {
                if !world.seats[node].switch.is_armed() {
                    world.seats[node].switch.arm(salt * 7919 % 4001);
                }
            }
            guest.round_trip(world, salt);
        }
        assert_eq!(guest.interrupts, 2 + 2 * 199);
        assert!(world.seats.iter().all(|seat| seat.deaths > 10));
        world.loss = 0;
        world.seats.iter().for_each(|seat| seat.switch.disarm());
        credits_are_conserved(world);
    });
}

/// What a card has accepted again, because the one before it died of that, is counted once.
fn credits_are_conserved(world: &mut World<'_>) {
    world.run(Duration::from_millis(300), |_| false);
    let cards = [LENDER, BORROWER].map(|node| world.seats[node].card.as_ref().unwrap());
    for (from, to) in [(0, 1), (1, 0)] {
        let (used, granted) = cards[from].stream(0).port.sender.credits();
        assert_eq!(granted, cards[to].stream(0).receiver().granted(), "all that is granted is known");
        let room = [0, 1, 2].map(|kind| granted[kind] - used[kind]);
        let requests = if cards[to].channel_of(0).unwrap().max_payload() == 4096 { 256 } else { 102 };
        assert_eq!(room, [1024, 1024 * 256, requests], "all that was used has been given back");
    }
}

#[test]
fn a_borrower_killed_at_any_store_loses_and_doubles_nothing() {
    killed_at_each_store(BORROWER, 1);
}

#[test]
fn a_lender_killed_at_any_store_loses_and_doubles_nothing() {
    killed_at_each_store(LENDER, 1);
}

/// From the first store on, both cards die again and again, wherever it is: in the handshake, while the function is
/// probed, while maps and vectors are set up.
#[test]
fn cards_may_die_from_the_beginning() {
    const SEEDS: u64 = 40;
    let mut deaths = 0;
    for seed in 0..SEEDS {
        with_world(|world| {
            let mut random = Random::new(seed);
            // A step of many requests has to come to its end now and then.
            let mut arm = move |world: &mut World<'_>, most: u64| {
                for node in [LENDER, BORROWER] {
                    if !world.seats[node].switch.is_armed() {
                        world.seats[node].switch.arm(random.below(most));
                    }
                }
            };
            arm(world, 1 << 15);
            let found = world.run(PATIENCE, |world| {
                arm(world, 1 << 15);
                is_ready(world)
            });
            assert!(found, "seed {seed}: the function is found");
            let mut guest = Guest::connect(world);
            arm(world, 1 << 13);
            guest.bring_up(world);
            for salt in 1..20 {
                arm(world, 1 << 10);
                guest.round_trip(world, salt);
            }
            assert_eq!(guest.interrupts, 2 + 2 * 19, "seed {seed}");
            deaths += world.seats.iter().map(|seat| seat.deaths).sum::<u64>();
            world.disconnect();
            world.seats.iter().for_each(|seat| seat.switch.disarm());
            world.run(Duration::from_millis(50), |_| false);
            assert!(world.open.is_empty(), "seed {seed}: descriptors stay open: {:?}", world.open);
        });
    }
    assert!(deaths > 5 * SEEDS, "{deaths} deaths");
}

#[test]
fn accesses_to_memory_that_is_not_mapped_are_denied_and_counted() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        // Data go nowhere, and the drive is not told: a write has no answer.
        let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(DMA_BASE - 0x1000, 0);
        assert!(guest.execute(world, 1, entry).status().is_success());
        let stray = denied(world);
        assert!(stray > 0);
        // A read has one.
        let entry = SubmissionEntry::write(0, 1, 0, 8).with_prps(DMA_BASE - 0x1000, 0);
        assert!(!guest.execute(world, 1, entry).status().is_success());
        assert!(denied(world) > stray);
        let read_only = guest.descriptor();
        guest.map(world, (read_only, 0x4_0000), 1, 0x10_0000, 0x1000).unwrap();
        let (before, kept) = (denied(world), world.ram.bytes.borrow()[0x4_0000..0x4_1000].to_vec());
        let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(0x10_0000, 0);
        guest.execute(world, 1, entry);
        assert!(denied(world) > before && world.ram.bytes.borrow()[0x4_0000..0x4_1000] == kept);
        let entry = SubmissionEntry::write(0, 1, 0, 8).with_prps(0x10_0000, 0);
        assert_eq!(guest.execute(world, 1, entry).status(), Status::SUCCESS);
        guest.round_trip(world, 5);
    });
}

#[test]
fn what_is_unmapped_is_out_of_reach_at_once() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        let extra = guest.descriptor();
        guest.map(world, (extra, 0x5_0000), 3, 0x20_0000, 0x2000).unwrap();
        let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(0x20_0000, 0);
        assert_eq!(guest.execute(world, 1, entry).status(), Status::SUCCESS);
        assert_eq!(denied(world), 0);
        guest.unmap(world, 0x20_0000, 0x2000).unwrap();
        assert!(!world.open.contains(&extra) || world.run(PATIENCE, |world| !world.open.contains(&extra)));
        guest.execute(world, 1, entry);
        let stray = denied(world);
        assert!(stray > 0);
        // Other memory in the same place.
        let other = guest.descriptor();
        guest.map(world, (other, 0x6_0000), 3, 0x20_0000, 0x1000).unwrap();
        world.ram.bytes.borrow_mut()[0x6_0000..0x6_1000].fill(0xaa);
        guest.execute(world, 1, entry);
        assert_eq!(denied(world), stray);
        assert_eq!(world.ram.bytes.borrow()[0x6_0000..0x6_1000], world.medium[..0x1000]);
        let mappings: Vec<_> = world.card().slot_mappings(0).map(|(id, bytes)| (id.0, bytes)).collect();
        assert!(mappings.contains(&(other, 0x1000)) && mappings.len() == 2);
    });
}

/// The next client is there before the function has been reset, and maps the same addresses: what the one before has
/// asked for does not come to it.
#[test]
fn what_the_client_before_has_asked_for_does_not_reach_the_next_one() {
    with_slot(|world| {
        for round in 0..20_u32 {
            let mut guest = Guest::connect(world);
            guest.bring_up(world);
            let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(DMA_BASE + 0x3_0000, 0);
            guest.submit(world, 1, entry);
            (0..round % 10).for_each(|_| world.turn());
            // What the function says from here on arrives later.
            world.seats[LENDER].is_silent = true;
            (0..10).for_each(|_| world.turn());
            world.disconnect();
            world.ram.bytes.borrow_mut().fill(0x77);
            let mut next = Guest::connect_and_map(world);
            world.seats[LENDER].is_silent = false;
            world.run(Duration::from_millis(200), |_| false);
            assert!(world.ram.bytes.borrow().iter().all(|byte| *byte == 0x77), "round {round}");
            next.unmap(world, DMA_BASE, RAM_BYTES as u64).unwrap();
            next.bring_up(world);
            next.round_trip(world, round.into());
            world.disconnect();
        }
    });
}

#[test]
fn nobody_maps_the_doorbell() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let refused = guest.map(world, (RAM_FD, 0), 3, DMA_END, 0x1000);
        assert_eq!(refused, Err(Errno::ERANGE));
        guest.map(world, (RAM_FD + 1, 0), 3, DMA_END - 0x1000, 0x1000).unwrap();
    });
}

/// As the guest's `pci_reset_function`, and as QEMU's machine reset.
#[test]
fn resets_reach_the_function_and_leave_it_usable() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        guest.round_trip(world, 1);
        let express = express(&mut guest, world);
        for round in 0..4 {
            if round % 2 == 0 {
                guest.write(world, CONFIG, express + 8, &0x8000_u16.to_le_bytes());
            } else {
                guest.ask(world, Command::DEVICE_RESET, &[], &[]).unwrap();
            }
            assert_eq!(guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff, 0);
            assert_eq!(guest.csts(world).0, 0, "it is disabled");
            guest.start(world, &events);
            guest.round_trip(world, 2 + round);
        }
    });
}

/// Byte offset of the PCI Express capability.
fn express(guest: &mut Guest, world: &mut World<'_>) -> u64 {
    let mut at = guest.read_u32(world, CONFIG, 0x34) & 0xfc;
    loop {
        let head = guest.read_u32(world, CONFIG, at.into());
        if head & 0xff == 0x10 {
            return at.into();
        }
        at = head >> 8 & 0xfc;
        assert!(at != 0, "there is one");
    }
}

#[test]
fn a_lender_that_lost_its_ledger_shows_as_fatal_status() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        let events = guest.bring_up(world);
        guest.round_trip(world, 1);
        let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(DMA_BASE + 0x3_0000, 0);
        for round in 2..5 {
            guest.submit(world, 1, entry);
            world.reboot(LENDER);
            world.seats[LENDER].switch.disarm();
            let fatal = world.run(PATIENCE, |world| {
                let cells = world.cells();
                cells.slot.view.is_fatal() && world.card().slot(0).unwrap().is_ready()
            });
            assert!(fatal, "it is noticed");
            let csts = guest.csts(world);
            assert!(csts.cfs() && csts.rdy());
            // A new card knows of it as well.
            world.seats[BORROWER].switch.arm(0);
            assert!(guest.csts(world).cfs() && !world.seats[BORROWER].switch.is_armed());
            guest.write(world, 0, CC, &0_u32.to_le_bytes());
            assert_eq!(guest.csts(world).0, 0);
            // The driver sees to the controller only: bus master and vectors are as it had left them.
            let command = guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff;
            assert_eq!(command, 6);
            guest.restart(world, &events);
            guest.round_trip(world, round);
        }
    });
}

#[test]
fn a_guest_that_has_not_enabled_the_controller_sees_no_fatal_status() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        assert_eq!(guest.read_u32(world, 0, CSTS), 0);
        world.reboot(LENDER);
        let mut met = 0;
        world.events.clear();
        assert!(world.run(PATIENCE, |world| {
            met = world.events.iter().filter(|event| matches!(event, CardEvent::Met(..))).count();
            met >= 1 && world.card().slot(0).unwrap().is_ready()
        }));
        assert_eq!(guest.csts(world).0, 0);
        guest.bring_up(world);
        guest.round_trip(world, 1);
    });
}

#[test]
fn a_function_that_was_taken_away_answers_with_errors() {
    with_slot(|world| {
        let mut guest = Guest::connect(world);
        guest.bring_up(world);
        world.act(BORROWER, |card, now| card.slot_set_present(now, 0, false));
        assert_eq!(guest.read_u32(world, 0, CSTS), u32::MAX);
        world.act(BORROWER, |card, now| card.slot_set_present(now, 0, true));
        guest.round_trip(world, 1);
        world.act(BORROWER, |card, now| card.shut_down(now));
        let closed = CardEvent::Closed { loan: 0, has_lost: false };
        assert!(world.run(PATIENCE, |world| world.events.contains(&closed)));
        assert_eq!(guest.read(world, 0, CSTS, 4), Err(Errno::EIO));
        assert!(!world.seats[LENDER].card.as_ref().unwrap().lent(0).unwrap().is_ready());
    });
}

#[test]
fn the_next_client_finds_the_function_as_after_a_reset() {
    with_slot(|world| {
        for round in 1..4 {
            let mut guest = Guest::connect(world);
            assert_eq!(guest.csts(world).0, 0);
            assert_eq!(guest.read_u32(world, CONFIG, COMMAND.into()) & 0xffff, 0);
            guest.bring_up(world);
            guest.round_trip(world, round);
            // In the middle of something.
            let entry = SubmissionEntry::read(0, 1, 0, 8).with_prps(DMA_BASE + 0x3_0000, 0);
            guest.submit(world, 1, entry);
            world.turn();
            world.disconnect();
            world.ram.bytes.borrow_mut().fill(0x77);
            world.run(Duration::from_millis(20), |_| false);
            assert!(world.ram.bytes.borrow().iter().all(|byte| *byte == 0x77), "nothing is written any more");
            assert!(world.open.is_empty() && world.card().slot_is_idle(0));
            assert_eq!(world.card().slot_mappings(0).count(), 0);
        }
    });
}
