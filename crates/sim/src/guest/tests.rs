//! A guest, and the test in the place of the card.

use super::*;
use crate::checkers::disk_model::DiskModel;

const DRIVE: Drive = Drive { blocks: 8, block: 512, impatient: false };

fn shared() -> Shared {
    let model = DiskModel::new(DRIVE.blocks as usize, true);
    Shared { tick: 1, requests: 0, model, orphans: Vec::new(), bytes: 0, timeouts: 0 }
}

/// The card's reply to a read of CSTS, which has the same form as any other that does.
fn reply(number: u16, status: u32) -> Vec<u8> {
    let payload = [&CSTS.to_le_bytes()[..], &words(&[0, 4, status])].concat();
    let header = MessageHeader::reply(number, Command::REGION_READ, payload.len() as u32);
    [header.as_bytes(), &payload].concat()
}

/// A guest that has asked for its controller's status, which is disabled, and then has waited for too long and asked once more; and
/// the numbers of both commands.
fn began_anew(memory: &Memories<'_>) -> (Guest, u16, u16) {
    let mut guest = Guest::new(Random::new(1), 0, 1, DRIVE, 1);
    guest.by_message = [false; 2];
    guest.connected(1);
    while guest.phase != Phase::Disable {
        let number = guest.number;
        guest.receive(&reply(number, 0), memory).expect("the reply to its newest command");
    }
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
    assert_eq!(guest.receive(&reply(first, 0), &memory), Ok(()));
    assert_eq!((guest.phase, guest.number), (Phase::Disable, second));
    assert_eq!(guest.receive(&reply(second, 0), &memory), Ok(()));
    assert_eq!(guest.phase, Phase::Enable);
}

#[test]
fn replies_in_another_order_or_to_nothing_are_found() {
    let switch = Switch::default();
    let memory = Memories::new(1, &switch);
    let (mut guest, _, second) = began_anew(&memory);
    let found = guest.receive(&reply(second, 0), &memory).map_err(|(checker, _)| checker);
    assert_eq!(found, Err(names::COMPLETIONS), "the newer one first");
    let (mut guest, first, second) = began_anew(&memory);
    assert_eq!(guest.receive(&[reply(first, 0), reply(second, 1)].concat(), &memory), Ok(()));
    assert_eq!(guest.phase, Phase::Disable, "still ready: it asks once more");
    let found = guest.receive(&reply(second, 0), &memory).map_err(|(checker, _)| checker);
    assert_eq!(found, Err(names::COMPLETIONS), "the same one twice");
}
