mod model;
mod world;

use base::Random;
use spec::nbd::{Command, CommandFlags, NbdError, RequestHeader};
use zerocopy::IntoBytes;

use self::world::{BLOCK, IO_TIMEOUT, Input, geometry, with_world};
use super::*;
use crate::BlockKind;

const HELLO: &[u8] = b"NBDMAGICIHAVEOPT\0\x03";
const STRUCTURED: &[u8] = b"IHAVEOPT\0\0\0\x08\0\0\0\0";
const GO: &[u8] = b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0";
/// FLUSH, FUA, TRIM, WRITE_ZEROES, CAN_MULTI_CONN, FAST_ZERO.
const FLAGS: u16 = 0x096d;

fn option_reply(option: u32, reply: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(reply.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn export_replies(option: u32, size: u64, flags: u16) -> Vec<u8> {
    let mut export = vec![0, 0];
    export.extend(size.to_be_bytes());
    export.extend(flags.to_be_bytes());
    let sizes = b"\0\x03\0\0\x02\0\0\0\x10\0\0\x10\0\0";
    [option_reply(option, 3, &export), option_reply(option, 3, sizes), option_reply(option, 1, b"")].concat()
}

fn request(command: Command, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    RequestHeader::new(command, CommandFlags(flags), cookie, offset, length).as_bytes().to_vec()
}

fn simple(cookie: u64, error: NbdError) -> Vec<u8> {
    [&b"\x67\x44\x66\x98"[..], &error.0.to_be_bytes(), &cookie.to_be_bytes()].concat()
}

/// Negotiates simple replies on slot 0.
fn go(world: &mut world::World<'_>) {
    world.open(0);
    assert_eq!(world.exchange(0, b"\0\0\0\x03"), HELLO);
    world.exchange(0, GO);
}

#[test]
fn golden_handshake_with_every_option() {
    with_world(64, |world| {
        world.open(0);
        assert_eq!(world.exchange(0, b""), HELLO);
        assert_eq!(world.exchange(0, b"\0\0\0\x03"), b"");
        let list = [option_reply(3, 2, b"\0\0\0\0"), option_reply(3, 1, b"")].concat();
        assert_eq!(world.exchange(0, b"IHAVEOPT\0\0\0\x03\0\0\0\0"), list);
        assert_eq!(world.exchange(0, b"IHAVEOPT\0\0\0\x03\0\0\0\x01x"), option_reply(3, 0x8000_0003, b""));
        assert_eq!(world.exchange(0, b"IHAVEOPT\0\0\0\x05\0\0\0\0"), option_reply(5, 0x8000_0001, b""));
        assert_eq!(world.exchange(0, b"IHAVEOPT\0\0\0\x0a\0\0\0\x02ab"), option_reply(10, 0x8000_0001, b""));
        let info = b"IHAVEOPT\0\0\0\x06\0\0\0\x08\0\0\0\0\0\x01\0\x03";
        assert_eq!(world.exchange(0, info), export_replies(6, 32768, FLAGS));
        let unknown = b"IHAVEOPT\0\0\0\x07\0\0\0\x07\0\0\0\x01x\0\0";
        assert_eq!(world.exchange(0, unknown), option_reply(7, 0x8000_0006, b""));
        assert_eq!(world.exchange(0, b"IHAVEOPT\0\0\0\x07\0\0\0\x01x"), option_reply(7, 0x8000_0003, b""));
        let mut long = b"IHAVEOPT\0\0\0\x07\0\x10\0\0".to_vec();
        long.extend(vec![0; 1 << 20]);
        assert_eq!(world.exchange(0, &long), option_reply(7, 0x8000_0009, b""));
        assert_eq!(world.exchange(0, STRUCTURED), option_reply(8, 1, b""));
        assert_eq!(world.exchange(0, GO), export_replies(7, 32768, FLAGS | 0x80));
        assert_eq!(world.exchange(0, &request(Command::DISC, 0, 0, 0, 0)), b"");
        assert!(world.server.is_idle(0) && world.orders.is_empty());
    });
}

#[test]
fn golden_export_name_with_and_without_zeroes() {
    with_world(64, |world| {
        for (slot, flags, zeroes) in [(0, b"\0\0\0\x01", 124), (1, b"\0\0\0\x03", 0)] {
            world.open(slot);
            world.exchange(slot, flags);
            let reply = world.exchange(slot, b"IHAVEOPT\0\0\0\x01\0\0\0\0");
            assert_eq!(
                reply,
                [&32768_u64.to_be_bytes()[..], &FLAGS.to_be_bytes(), &vec![0; zeroes]].concat()
            );
            assert_eq!(world.exchange(slot, &request(Command::FLUSH, 0, 5, 0, 0)), simple(5, NbdError::OK));
        }
    });
}

#[test]
fn abort_is_acknowledged_and_nonsense_is_dropped() {
    with_world(64, |world| {
        world.open(0);
        world.exchange(0, b"\0\0\0\x03");
        assert_eq!(world.exchange(0, b"IHAVEOPT\0\0\0\x02\0\0\0\0"), option_reply(2, 1, b""));
        assert!(world.server.is_idle(0));
        for nonsense in [&b"\0\0\0\x83"[..], b"\0\0\0\0", b"\0\0\0\x03IHAVEOPX\0\0\0\x02\0\0\0\0"] {
            world.open(1);
            world.exchange(1, nonsense);
            assert!(world.server.is_idle(1), "{nonsense:?}");
        }
        assert_eq!(world.server.counters().protocol_errors.get(), 3);
    });
}

#[test]
fn handshakes_wait_for_the_drive() {
    with_world(64, |world| {
        world.inputs.clear();
        world.open(0);
        assert_eq!(world.exchange(0, b"\0\0\0\x03"), HELLO);
        assert_eq!(world.exchange(0, STRUCTURED), option_reply(8, 1, b""));
        assert_eq!(world.exchange(0, GO), b"");
        world.inputs.push_back(Input::Geometry(Some(geometry(64))));
        assert_eq!(world.exchange(0, b""), export_replies(7, 32768, FLAGS | 0x80));
    });
}

#[test]
fn golden_structured_replies() {
    with_world(64, |world| {
        world.open(0);
        world.exchange(0, b"\0\0\0\x03");
        world.exchange(0, STRUCTURED);
        world.exchange(0, GO);
        world.disk[1024..1536].fill(0x5a);
        let read = world.exchange(0, &request(Command::READ, 4, 7, 1024, 512));
        let header = b"\x66\x8e\x33\xef\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\x02\x08\0\0\0\0\0\0\x04\0";
        assert_eq!(read, [&header[..], &[0x5a; 512]].concat());
        let flush = world.exchange(0, &request(Command::FLUSH, 0, 8, 0, 0));
        assert_eq!(flush, b"\x66\x8e\x33\xef\0\x01\0\0\0\0\0\0\0\0\0\x08\0\0\0\0");
        let refused = world.exchange(0, &request(Command::READ, 0, 9, 1, 512));
        assert_eq!(refused, b"\x66\x8e\x33\xef\0\x01\x80\x01\0\0\0\0\0\0\0\x09\0\0\0\x06\0\0\0\x16\0\0");
    });
}

#[test]
fn refusals_have_their_errors_and_the_connection_goes_on() {
    with_world(64, |world| {
        go(world);
        let cases = [
            (Command::READ, 0, 1, 512, 0, NbdError::EINVAL),
            (Command::READ, 0, 0, 100, 0, NbdError::EINVAL),
            (Command::READ, 0, 0, 0, 0, NbdError::EINVAL),
            (Command::READ, 0, 32768, 512, 0, NbdError::EINVAL),
            (Command::READ, 0, u64::MAX - 511, 512, 0, NbdError::EINVAL),
            (Command::READ, 0, 0, (4 << 20) + 512, 0, NbdError::EINVAL),
            (Command::READ, 4, 0, 512, 0, NbdError::EINVAL),
            (Command::READ, 2, 0, 512, 0, NbdError::EINVAL),
            (Command::READ, 0x40, 0, 512, 0, NbdError::EINVAL),
            (Command::WRITE, 0, 32768, 512, 512, NbdError::ENOSPC),
            (Command::WRITE, 0, 0, (4 << 20) + 512, (4 << 20) + 512, NbdError::EINVAL),
            (Command::WRITE_ZEROES, 0x10, 0, 512, 0, NbdError::ENOTSUP),
            (Command::CACHE, 0, 0, 512, 0, NbdError::EINVAL),
            (Command::BLOCK_STATUS, 0, 0, 512, 0, NbdError::EINVAL),
            (Command(99), 0, 0, 512, 0, NbdError::EINVAL),
        ];
        for (command, flags, offset, length, payload, error) in cases {
            let bytes = [request(command, flags, 3, offset, length), vec![1; payload]].concat();
            assert_eq!(world.exchange(0, &bytes), simple(3, error), "{command:?} {flags} {offset} {length}");
        }
        assert!(world.log.is_empty());
        world.inputs.push_back(Input::Geometry(Some(Geometry { read_only: true, ..geometry(64) })));
        let write = [request(Command::WRITE, 0, 4, 0, 512), vec![1; 512]].concat();
        assert_eq!(world.exchange(0, &write), simple(4, NbdError::EPERM));
        assert_eq!(world.exchange(0, &request(Command::TRIM, 0, 4, 0, 512)), simple(4, NbdError::EPERM));
        assert_eq!(world.exchange(0, b"garbage that is no request.."), b"");
        assert!(world.server.is_idle(0));
    });
}

#[test]
fn failures_of_the_drive_are_mapped() {
    with_world(64, |world| {
        go(world);
        for (error, shown) in [
            (BlockError::NoSpace, NbdError::ENOSPC),
            (BlockError::ReadOnly, NbdError::EPERM),
            (BlockError::Invalid, NbdError::EINVAL),
            (BlockError::Io, NbdError::EIO),
        ] {
            world.result = Err(error);
            assert_eq!(world.exchange(0, &request(Command::READ, 0, 1, 0, 4096)), simple(1, shown));
        }
        assert_eq!(world.pool().used(), 0);
    });
}

#[test]
fn large_requests_are_cut_and_flags_kept() {
    with_world(16 << 20, |world| {
        go(world);
        let data: Vec<u8> = (0..1 << 20).map(|index: u32| (index / 4096) as u8 ^ index as u8).collect();
        let write = [request(Command::WRITE, 1, 1, 512, 1 << 20), data.clone()].concat();
        assert_eq!(world.exchange(0, &write), simple(1, NbdError::OK));
        let parts: Vec<_> = (0..8).map(|part| (BlockKind::Write, 1 + part * 256, 256, true)).collect();
        assert_eq!(std::mem::take(&mut world.log), parts);
        let read = world.exchange(0, &request(Command::READ, 0, 2, 512, 1 << 20));
        assert!(read[..16] == simple(2, NbdError::OK) && read[16..] == data);
        let read = world.exchange(0, &request(Command::READ, 0, 2, 512, 4 << 20));
        assert!(read.len() == 16 + (4 << 20) && read[16..][..1 << 20] == data);
        world.log.clear();
        let most = u32::MAX - 511;
        assert_eq!(world.exchange(0, &request(Command::TRIM, 1, 3, 0, most)), simple(3, NbdError::OK));
        assert_eq!(world.log, [(BlockKind::Trim, 0, most / 512, false), (BlockKind::Flush, 0, 0, false)]);
        // FUA, with and without NO_HOLE.
        for (flags, deallocate) in [(1, true), (3, false)] {
            world.log.clear();
            let zeroes = request(Command::WRITE_ZEROES, flags, 4, 0, most);
            assert_eq!(world.exchange(0, &zeroes), simple(4, NbdError::OK));
            let last = (BlockKind::WriteZeroes { deallocate }, 127 << 16, 65535, true);
            assert_eq!((world.log.len(), world.log[127]), (128, last));
        }
        assert_eq!(world.pool().used(), 0);
    });
}

#[test]
fn a_hanging_drive_fails_requests_and_keeps_their_pages() {
    with_world(1024, |world| {
        go(world);
        world.hang = true;
        let write = [request(Command::WRITE, 0, 1, 0, 8192), vec![7; 8192]].concat();
        assert_eq!(world.exchange(0, &write), b"");
        world.pass(IO_TIMEOUT / 2);
        assert_eq!(world.exchange(0, &request(Command::READ, 0, 2, 0, 512)), b"");
        world.pass(IO_TIMEOUT / 2);
        assert_eq!(world.exchange(0, b""), simple(1, NbdError::EIO));
        world.pass(IO_TIMEOUT / 2);
        assert_eq!(world.exchange(0, b""), simple(2, NbdError::EIO));
        assert_eq!((world.server.abandoned(), world.pool().used(), world.server.in_flight()), (2, 3, 0));
        assert_eq!(world.server.poll_timeout(), None);
        world.hang = false;
        assert_eq!(world.exchange(0, b""), b"");
        assert_eq!((world.server.abandoned(), world.pool().used()), (0, 0));
        assert_eq!(world.exchange(0, &request(Command::FLUSH, 0, 3, 0, 0)), simple(3, NbdError::OK));
    });
}

#[test]
fn the_drive_is_told_what_nobody_waits_for() {
    with_world(4096, |world| {
        go(world);
        world.hang = true;
        let write = [request(Command::WRITE, 0, 1, 0, 300 << 10), vec![7; 300 << 10]].concat();
        world.exchange(0, &write);
        let ids: Vec<u32> = world.orders.iter().map(|order| order.id).collect();
        assert_eq!((ids.len(), &world.given_up[..]), (3, &[][..]));
        world.pass(IO_TIMEOUT);
        assert_eq!(world.exchange(0, b""), simple(1, NbdError::EIO));
        assert_eq!(world.given_up.len(), 1, "once");
        assert!(ids.iter().all(|id| world.given_up[0].contains(id)));
        // A client that leaves waits no longer either.
        world.exchange(0, &request(Command::READ, 0, 2, 0, 4096));
        let id = world.orders.last().expect("the read is there").id;
        assert!(!world.given_up[0].contains(&id));
        world.close(0);
        world.settle();
        assert!(world.given_up.len() == 2 && world.given_up[1].contains(&id));
        world.hang = false;
        world.settle();
        assert_eq!((world.server.abandoned(), world.pool().used(), world.given_up.len()), (0, 0, 2));
    });
}

#[test]
fn another_host_on_the_drive_ends_all_connections() {
    with_world(1024, |world| {
        go(world);
        world.hang = true;
        world.exchange(0, &request(Command::READ, 0, 1, 0, 4096));
        world.exchange(0, &[request(Command::WRITE, 0, 2, 0, 4096), vec![1; 4000]].concat());
        world.server.evict_clients(world.now);
        // Who connects now finds what the drive holds now.
        world.open(1);
        world.exchange(1, b"\0\0\0\x03");
        world.hang = false;
        assert_eq!(world.exchange(0, b""), simple(1, NbdError::EIO), "once the drive has let go");
        assert!(world.server.is_idle(0) && !world.server.is_idle(1), "half a write gets no answer");
        assert_eq!((world.server.in_flight(), world.pool().used()), (0, 0));
    });
}

/// Six clients stop in the middle of large writes, and the driver keeps nearly half of what it may.
fn stall(world: &mut world::World<'_>) -> Vec<PageIndex> {
    let kept = (0..1984).map(|_| world.pool().alloc().expect("the pool is empty")).collect();
    world.commit();
    for slot in 1..7 {
        world.open(slot);
        world.exchange(slot, b"\0\0\0\x03");
        world.exchange(slot, GO);
        world.exchange(slot, &[request(Command::WRITE, 0, 1, 0, 4 << 20), vec![1; 5000]].concat());
    }
    kept
}

#[test]
fn who_stops_in_the_middle_of_a_payload_is_closed_when_others_wait() {
    with_world(1 << 16, |world| {
        go(world);
        let kept = stall(world);
        let write = [request(Command::WRITE, 0, 9, 0, 512), vec![9; 512]].concat();
        assert!(world.pool().free() < 1024);
        // One of them is only slow.
        world.pass(requests::STALL / 2);
        world.exchange(3, &[1; 1]);
        assert_eq!(world.exchange(0, &request(Command::READ, 0, 8, 0, 4 << 20)), b"");
        assert!(world.server.wants_pages());
        world.pass(requests::STALL / 2);
        assert_eq!(world.exchange(0, b"").len(), 16 + (4 << 20));
        assert_eq!(world.exchange(0, &write), simple(9, NbdError::OK));
        assert_eq!(world.server.counters().stalled.get(), 5);
        let idle: Vec<_> = (1..7).filter(|slot| world.server.is_idle(*slot)).collect();
        assert_eq!(idle, [1, 2, 4, 5, 6]);
        assert!(!world.server.wants_pages());
        // Nobody waits: whoever is slow stays.
        world.pass(IO_TIMEOUT);
        assert_eq!(world.exchange(3, &vec![1; (4 << 20) - 5001]), simple(1, NbdError::OK));
        kept.into_iter().for_each(|page| world.pool().release(page));
    });
}

#[test]
fn a_card_that_was_away_blames_no_client() {
    with_world(1 << 16, |world| {
        go(world);
        stall(world);
        world.exchange(0, &request(Command::READ, 0, 8, 0, 4 << 20));
        world.pass(requests::STALL * 3);
        assert_eq!(world.server.counters().stalled.get(), 0);
        (1..7).for_each(|slot| drop(world.exchange(slot, &[1; 1])));
        world.pass(requests::STALL - Duration::from_millis(1));
        assert_eq!(world.server.counters().stalled.get(), 0);
        world.pass(Duration::from_millis(1));
        assert_eq!(world.server.counters().stalled.get(), 6);
    });
}

#[test]
fn requests_cut_for_another_block_size_fail() {
    with_world(1024, |world| {
        go(world);
        world.hang = true;
        world.exchange(0, &request(Command::READ, 0, 1, 512, 6144));
        world.exchange(0, &[request(Command::WRITE, 0, 2, 512, 6144), vec![1; 6000]].concat());
        world.inputs.push_back(Input::Geometry(Some(Geometry {
            block_size: 4096,
            blocks: 128,
            ..geometry(0)
        })));
        let written = world.exchange(0, &[1; 144]);
        assert_eq!(written, simple(2, NbdError::EIO));
        world.hang = false;
        assert_eq!(world.exchange(0, b""), simple(1, NbdError::EIO));
        assert_eq!(world.exchange(0, &request(Command::READ, 0, 3, 512, 512)), simple(3, NbdError::EINVAL));
        assert_eq!((world.server.in_flight(), world.pool().used(), world.log.len()), (0, 0, 1));
    });
}

/// Even when abandoned requests have everything, a client gets its answer in the end.
#[test]
fn an_exhausted_server_fails_requests_instead_of_hanging_them() {
    with_world(4096, |world| {
        go(world);
        world.hang = true;
        for round in 0..3 {
            let reads: Vec<u8> =
                (0..8).flat_map(|id| request(Command::READ, 0, round * 8 + id, 0, 1 << 20)).collect();
            world.exchange(0, &reads);
            world.pass(IO_TIMEOUT);
            world.pass(IO_TIMEOUT);
        }
        let replies = [world.exchange(0, b"")].concat();
        assert!(replies.len().is_multiple_of(16));
        world.pass(IO_TIMEOUT);
        world.hang = false;
        world.settle();
        assert_eq!((world.server.in_flight(), world.server.abandoned(), world.pool().used()), (0, 0, 0));
        assert_eq!(world.server.counters().timeouts.get(), 24);
    });
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    with_world(4096, |world| {
        go(world);
        world.deaf = true;
        let reads: Vec<u8> = (0..20_000).flat_map(|id| request(Command::READ, 0, id, 0, 4096)).collect();
        world.exchange(0, &reads);
        assert!(!world.streams[0].outgoing.is_empty());
        assert_eq!(world.server.in_flight(), CONNECTION_REQUESTS);
        // Refused requests have no place in the table, but their replies are bounded too.
        world.deaf = false;
        assert_eq!(world.exchange(0, b"").len(), 20_000 * (16 + 4096));
        world.deaf = true;
        let wrong: Vec<u8> = (0..20_000).flat_map(|id| request(Command::READ, 0, id, 1, 4096)).collect();
        world.exchange(0, &wrong);
        assert!(!world.streams[0].outgoing.is_empty());
    });
}

#[test]
fn several_large_writers_share_the_pool() {
    with_world(1 << 16, |world| {
        for slot in 0..CONNECTIONS {
            world.open(slot);
            world.streams[slot].outgoing.extend(b"\0\0\0\x03");
            world.streams[slot].outgoing.extend(GO);
            for id in 0..4 {
                world.streams[slot].outgoing.extend(request(
                    Command::WRITE,
                    0,
                    id,
                    (slot as u64) << 20,
                    1 << 20,
                ));
                world.streams[slot].outgoing.extend(vec![slot as u8; 1 << 20]);
            }
        }
        world.settle();
        assert!((0..CONNECTIONS).all(|slot| world.streams[slot].outgoing.is_empty()));
        assert!(
            (0..CONNECTIONS)
                .filter(|slot| !(6..9).contains(slot))
                .all(|slot| world.disk[slot << 20] == slot as u8)
        );
        assert_eq!((world.server.in_flight(), world.pool().used()), (0, 0));
    });
}

#[test]
fn a_leaving_client_leaves_nothing() {
    with_world(4096, |world| {
        go(world);
        world.hang = true;
        world.exchange(0, &request(Command::READ, 0, 1, 0, 65536));
        world.exchange(0, &[request(Command::WRITE, 0, 2, 0, 65536), vec![1; 1000]].concat());
        world.close(0);
        world.settle();
        assert!(world.server.is_idle(0));
        assert_eq!((world.server.in_flight(), world.server.abandoned(), world.pool().used()), (0, 1, 16));
        go(world);
        world.hang = false;
        world.settle();
        assert_eq!(
            (world.server.abandoned(), world.pool().used(), world.streams[0].incoming.len()),
            (0, 0, 0)
        );
    });
}

#[test]
fn garbage_never_panics_and_never_grows() {
    with_world(1024, |world| {
        let mut random = Random::new(99);
        for round in 0..2000 {
            let slot = random.below(CONNECTIONS as u64) as usize;
            if world.server.is_idle(slot) {
                world.open(slot);
                if round % 4 > 0 {
                    world.exchange(slot, b"\0\0\0\x03");
                }
                if round % 4 > 1 {
                    world.exchange(slot, GO);
                }
            }
            let mut bytes: Vec<u8> = (0..random.below(300)).map(|_| random.next_u64() as u8).collect();
            if round % 2 == 0 {
                let (command, flags) = (Command(random.below(8) as u16), random.below(32) as u16);
                let (offset, length) = (random.below(1200) * 512, random.below(400) as u32 * 512);
                bytes.splice(0..0, request(command, flags, random.next_u64(), offset, length));
            } else if round % 3 == 0 {
                bytes.splice(
                    0..0,
                    [b"IHAVEOPT\0\0\0".to_vec(), vec![random.below(12) as u8, 0, 0, 0, 20]].concat(),
                );
            }
            world.exchange(slot, &bytes);
            if random.below(8) == 0 {
                world.close(slot);
            }
        }
        (0..CONNECTIONS).for_each(|slot| world.close(slot));
        world.settle();
        assert_eq!((world.server.in_flight(), world.server.abandoned(), world.pool().used()), (0, 0, 0));
    });
}

#[test]
fn absurd_positions_and_completions_are_harmless() {
    with_world(64, |world| {
        go(world);
        let now = world.now;
        world.server.handle_received(now, 0, u64::MAX);
        world.server.handle_sent(now, 0, u64::MAX);
        for id in [0, 5 << 16, u32::MAX] {
            world.server.handle_completion(now, id, Ok(()));
        }
        assert_eq!(world.server.receive_spans(0, u64::MAX).map(|span| span.len()), [0, 0]);
        assert_eq!(world.disk.len(), 64 * BLOCK);
    });
}
