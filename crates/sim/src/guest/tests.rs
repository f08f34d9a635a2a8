//! A guest, and the test in the place of the card.

use node::{DescriptorId, GuestMemory};
use spec::vfio_user::DmaAccess;

use super::*;
use crate::checkers::disk_model::DiskModel;
use crate::death::Switch;
use crate::media::Trouble;

const WHO: Life = Life { node: 1, number: 1 };
const DRIVE: Drive = Drive { blocks: 8, block: 512, impatient: false };

fn shared() -> Shared {
    let model = DiskModel::new(DRIVE.blocks as usize, true);
    let (authors, trouble) = (Vec::new(), Trouble::default());
    Shared { tick: 1, requests: 0, model, orphans: Vec::new(), bytes: 0, timeouts: 0, authors, trouble }
}

/// The card's reply to a read of CSTS, which has the same form as any other that does.
fn reply(number: u16, status: u32) -> Vec<u8> {
    let payload = [&CSTS.to_le_bytes()[..], &words(&[0, 4, status])].concat();
    let header = MessageHeader::reply(number, Command::REGION_READ, payload.len() as u32);
    [header.as_bytes(), &payload].concat()
}

/// A guest that has disabled its controller, and has asked for its status.
fn disabling(memory: &Memories<'_>, seed: u64, by_message: [bool; 2]) -> Guest {
    let mut guest = Guest::new(Random::new(seed), (1, 0), 1, DRIVE, 1);
    (guest.machine.by_message, guest.machine.is_old, guest.machine.faults) = (by_message, false, 0);
    guest.connected(1, WHO);
    while guest.phase != Phase::Disable {
        let number = guest.number;
        guest.receive(0, &reply(number, 0), memory).expect("the reply to its newest command");
    }
    guest
}

/// The same, and then has waited for too long and asked once more; and
/// the numbers of both commands.
fn began_anew(memory: &Memories<'_>) -> (Guest, u16, u16) {
    let mut guest = disabling(memory, 1, [false; 2]);
    let first = guest.number;
    assert!(guest.watch(WATCHDOG_NS + 1, &mut shared()), "it has heard nothing for so long");
    let second = guest.number;
    assert_ne!(first, second);
    (guest, first, second)
}

#[test]
fn a_reply_may_come_after_the_driver_has_begun_anew_and_tells_it_nothing() {
    let switch = Switch::default();
    let memory = Memories::new(1, &switch);
    let (mut guest, first, second) = began_anew(&memory);
    // Not ready, so it could go on, were it not for what it has written since.
    assert_eq!(guest.receive(0, &reply(first, 0), &memory), Ok(()));
    assert_eq!((guest.phase, guest.number), (Phase::Disable, second));
    assert_eq!(guest.receive(0, &reply(second, 0), &memory), Ok(()));
    assert_eq!(guest.phase, Phase::Enable);
}

#[test]
fn replies_in_another_order_or_to_nothing_are_found() {
    let switch = Switch::default();
    let memory = Memories::new(1, &switch);
    let (mut guest, _, second) = began_anew(&memory);
    let found = guest.receive(0, &reply(second, 0), &memory).map_err(|(checker, _)| checker);
    assert_eq!(found, Err(names::COMPLETIONS), "the newer one first");
    let (mut guest, first, second) = began_anew(&memory);
    assert_eq!(guest.receive(0, &[reply(first, 0), reply(second, 1)].concat(), &memory), Ok(()));
    assert_eq!(guest.phase, Phase::Disable, "still ready: it asks once more");
    let found = guest.receive(0, &reply(second, 0), &memory).map_err(|(checker, _)| checker);
    assert_eq!(found, Err(names::COMPLETIONS), "the same one twice");
}

/// The card's message that writes bytes at the beginning of the guest's buffers.
fn written(bytes: &[u8]) -> Vec<u8> {
    let access =
        DmaAccess { address: (DMA_BASE + BUFFERS as u64).into(), count: (bytes.len() as u64).into() };
    let len = (size_of::<DmaAccess>() + bytes.len()) as u32;
    let header = MessageHeader::request(7, Command::DMA_WRITE, len);
    [header.as_bytes(), access.as_bytes(), bytes].concat()
}

/// The controller says that it has ended while a write of it waits for the machine, whose processor may well go on
/// first.
#[test]
fn a_write_may_come_when_its_memory_was_taken_back_and_is_found_then() {
    let outcomes = [0, 1, 2, 3, 4, 5, 6, 7].map(|seed| {
        let switch = Switch::default();
        let memory = Memories::new(1, &switch);
        let mut guest = disabling(&memory, seed, [true; 2]);
        memory.lend(0);
        assert_eq!(guest.receive(0, &written(&[7; 8]), &memory), Ok(()));
        assert_eq!(memory.read(0, BUFFERS, 8), [0; 8], "a processor waits for a register");
        let number = guest.number;
        assert_eq!(guest.receive(0, &reply(number, 0), &memory), Ok(()));
        assert_eq!(guest.phase, Phase::Enable);
        let was_first = memory.read(0, BUFFERS, 8) == [7; 8];
        let number = guest.number;
        let found = guest.receive(0, &reply(number, 1), &memory).and_then(|()| guest.serve(0, &memory));
        assert_eq!(found.map_err(|(checker, _)| checker).err(), (!was_first).then_some(names::STRAYS));
        was_first
    });
    assert!(outcomes.contains(&true) && outcomes.contains(&false), "{outcomes:?}");
}

/// What a card gives up soon is done before anything else: it may come late then, and nobody can help it.
#[test]
fn a_machine_that_is_far_behind_goes_first() {
    for seed in 0..32 {
        let switch = Switch::default();
        let memory = Memories::new(1, &switch);
        let mut guest = disabling(&memory, seed, [true; 2]);
        memory.lend(0);
        assert_eq!(guest.receive(0, &written(&[7; 8]), &memory), Ok(()));
        let number = guest.number;
        assert_eq!(guest.receive(3_000_000_000, &reply(number, 0), &memory), Ok(()));
        assert_eq!(memory.read(0, BUFFERS, 8), [7; 8]);
    }
}

#[test]
fn a_store_into_memory_that_was_taken_back_is_found() {
    let switch = Switch::default();
    let memory = Memories::new(1, &switch);
    memory.open(0, 1);
    memory.lend(0);
    assert!(GuestMemory::write(&memory, 0, DescriptorId(1), 0, &[1]) && memory.strayed(0).is_none());
    memory.take_back(0);
    assert!(GuestMemory::write(&memory, 0, DescriptorId(1), 0, &[1]) && memory.strayed(0).is_some());
}

/// A refusal is a reply with an error; a machine that stands still refuses whatever has come by the time when it goes
/// on.
#[test]
fn messages_are_refused_at_once_or_late() {
    let (mut at_once, mut late) = (0, 0);
    for seed in 0..4000 {
        let switch = Switch::default();
        let memory = Memories::new(1, &switch);
        let mut guest = disabling(&memory, seed, [true; 2]);
        guest.waiting.clear();
        guest.outbox.clear();
        guest.machine.faults = 1;
        memory.lend(0);
        assert_eq!(guest.receive(0, &written(&[7; 8]), &memory), Ok(()));
        assert!(guest.serve(0, &memory).is_ok());
        if memory.read(0, BUFFERS, 8) == [7; 8] {
            continue;
        }
        let stands = guest.outbox.is_empty();
        (at_once, late) = (at_once + u32::from(!stands), late + u32::from(stands));
        assert!(guest.serve(10_000_000_000, &memory).is_ok_and(|any| any == stands));
        let answer: Vec<u8> = guest.outbox.iter().map(|(byte, _)| *byte).collect();
        let header = MessageHeader::view(answer.first_chunk().expect("it is answered"));
        assert_eq!((header.id.get(), header.error()), (7, Some(Errno::EFAULT)));
        assert_eq!(memory.read(0, BUFFERS, 8), [0; 8]);
    }
    assert!(at_once > 20 && late > 10, "{at_once} {late}");
}
