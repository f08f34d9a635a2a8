//! Reads and writes of regions, configuration space, resets, time-outs and removal.

use core::time::Duration;

use base::Payload;
use spec::vfio_user::{Command, Errno};

use super::world::{AER, EXPRESS, Input, MSIX, PENDING, TABLE, World, everywhere, once};
use super::*;

const CONFIG: u32 = 7;

fn config_read(world: &mut World<'_>, register: u16, count: u32) -> Vec<u8> {
    let answer = world.exchange(&read(8, CONFIG, register.into(), count));
    assert_eq!(answer.len(), 32 + count as usize, "an error at {register:#x}");
    answer[32..].to_vec()
}

fn config_dword(world: &mut World<'_>, register: u16) -> u32 {
    u32::from_le_bytes(config_read(world, register, 4).try_into().unwrap())
}

fn config_write(world: &mut World<'_>, register: u16, bytes: &[u8]) {
    let answer = world.exchange(&write(8, CONFIG, register.into(), bytes));
    assert_eq!(answer, write_reply(8, CONFIG, register.into(), bytes.len() as u32));
}

#[test]
fn registers_are_read_aligned_or_not() {
    everywhere(|world| {
        ready(world);
        for (offset, count) in [(0, 4), (8, 8), (3, 1), (61, 6), (100, 300), (0x1ffc, 4), (5, 0)] {
            let expected = world.bar[offset..offset + count].to_vec();
            let answer = world.exchange(&read(2, 0, offset as u64, count as u32));
            assert_eq!(answer, read_reply(2, 0, offset as u64, &expected), "{count} at {offset}");
        }
    });
}

#[test]
fn registers_are_written_aligned_or_not() {
    everywhere(|world| {
        ready(world);
        for (offset, count) in [(0x1000, 4), (16, 8), (3, 1), (61, 6), (101, 300), (5, 0)] {
            let data: Vec<u8> = (0..count).map(|at| at as u8 ^ 0x5a).collect();
            let answer = world.exchange(&write(2, 0, offset as u64, &data));
            assert_eq!(answer, write_reply(2, 0, offset as u64, count as u32));
            assert_eq!(world.bar[offset..offset + count], data);
            // Without a reply.
            assert_eq!(world.exchange(&silent(write(3, 0, offset as u64, &vec![7; count]))), b"");
            assert_eq!(world.bar[offset..offset + count], vec![7; count]);
        }
        assert_eq!(world.session.in_flight(), 0);
    });
}

#[test]
fn a_doorbell_is_one_write() {
    everywhere(|world| {
        ready(world);
        world.exchange(&silent(write(2, 0, 0x1008, &[1, 2, 3, 4])));
        let payload = Payload::inline(&[1, 2, 3, 4]);
        assert_eq!(world.log, [Request::Access(Access::Write { bar: 0, offset: 0x1008, payload })]);
    });
}

#[test]
fn accesses_out_of_bounds_are_refused() {
    everywhere(|world| {
        ready(world);
        let end = BAR_BYTES as u64;
        let reads = [
            (0, end, 1, Errno::EINVAL),
            (0, end - 2, 4, Errno::EINVAL),
            (0, u64::MAX, 4, Errno::EINVAL),
            (0, 0, 4097, Errno::E2BIG),
            (0, 0, u32::MAX, Errno::E2BIG),
            (1, 0, 4, Errno::EINVAL),
            (6, 0, 4, Errno::EINVAL),
            (CONFIG, 4093, 4, Errno::EINVAL),
            (9, 0, 4, Errno::EINVAL),
            (u32::MAX, 0, 4, Errno::EINVAL),
            (256, 0, 4, Errno::EINVAL),
        ];
        for (region, offset, count, errno) in reads {
            let answer = world.exchange(&read(2, region, offset, count));
            assert_eq!(answer, error(2, Command::REGION_READ, errno), "{count} at {offset} of {region}");
        }
        for (region, offset) in [(0, end), (0, u64::MAX - 3), (8, 0), (CONFIG, 4096)] {
            let answer = world.exchange(&write(2, region, offset, &[0; 4]));
            assert_eq!(answer, error(2, Command::REGION_WRITE, Errno::EINVAL));
        }
        // The count and the bytes that are there.
        let mut short = write(2, 0, 0, &[0; 8]);
        short[28] = 7;
        assert_eq!(world.exchange(&short), error(2, Command::REGION_WRITE, Errno::EINVAL));
        assert_eq!(
            world.exchange(&message(2, Command::REGION_WRITE, b"x")),
            error(2, Command::REGION_WRITE, Errno::EINVAL)
        );
        assert_eq!(
            world.exchange(&message(2, Command::REGION_READ, b"x")),
            error(2, Command::REGION_READ, Errno::EINVAL)
        );
        assert!(world.log.is_empty());
    });
}

fn multi(count: u64, writes: &[(u64, u32, u32, u64)]) -> Vec<u8> {
    let mut payload = count.to_le_bytes().to_vec();
    for (offset, region, count, data) in writes {
        payload.extend(access(*offset, *region, *count));
        payload.extend(data.to_le_bytes());
    }
    message(6, Command::REGION_WRITE_MULTI, &payload)
}

#[test]
fn several_writes_come_at_once() {
    everywhere(|world| {
        ready(world);
        let all: Vec<_> = (0..20).map(|at| (0x1000 + 8 * at, 0, 4, at * 3 + 1)).collect();
        assert_eq!(
            world.exchange(&multi(20, &all)),
            reply(6, Command::REGION_WRITE_MULTI, &20_u64.to_le_bytes())
        );
        assert_eq!(world.exchange(&silent(multi(1, &[(9, 0, 1, 0xee)]))), b"");
        assert_eq!(world.bar[9], 0xee);
        let dwords: Vec<u32> = world
            .log
            .iter()
            .take(20)
            .map(|request| match request {
                Request::Access(Access::Write { payload: Payload::Inline(bytes), .. }) => {
                    u32::from_le_bytes(bytes.as_slice().try_into().unwrap())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(dwords, (0..20).map(|at| at * 3 + 1).collect::<Vec<_>>());
        let log = world.log.len();
        let none = &[][..];
        for bad in [
            multi(2, &all[..1]),
            multi(1, &[(0, 0, 9, 0)]),
            multi(2, &[(0, 0, 4, 0), (0, 3, 4, 0)]),
            multi(u64::MAX, none),
        ] {
            assert_eq!(world.exchange(&bad), error(6, Command::REGION_WRITE_MULTI, Errno::EINVAL));
        }
        assert_eq!(world.exchange(&multi(0, none)), reply(6, Command::REGION_WRITE_MULTI, &[0; 8]));
        assert_eq!(world.log.len(), log);
    });
}

#[test]
fn two_hundred_writes_fit() {
    once(|world| {
        ready(world);
        let all: Vec<_> = (0..200).map(|at| (8 * at, 0, 8, at)).collect();
        for _ in 0..5 {
            assert!(!world.exchange(&multi(200, &all)).is_empty());
        }
        assert_eq!((world.log.len(), world.bar[8 * 199]), (1000, 199));
        let all: Vec<_> = (0..201).map(|at| (8 * at, 0, 8, at)).collect();
        assert_eq!(world.exchange(&multi(201, &all)), error(6, Command::REGION_WRITE_MULTI, Errno::EINVAL));
    });
}

#[test]
fn commands_are_answered_in_their_order() {
    everywhere(|world| {
        ready(world);
        world.hang = true;
        let info = message(4, Command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]));
        let bytes = [read(2, 0, 0, 4), silent(write(3, 0, 64, &[9; 4])), read(5, 0, 64, 4), info].concat();
        assert_eq!(world.exchange(&bytes), b"");
        assert_eq!(world.requests.len(), 3);
        let [first, posted, second] = world.requests[..] else { panic!() };
        world.requests.clear();
        world.execute(posted);
        world.execute(second);
        world.settle();
        assert_eq!(world.incoming, b"");
        world.execute(first);
        let answer = world.exchange(b"");
        let expected = [
            read_reply(2, 0, 0, &world.bar[..4]),
            read_reply(5, 0, 64, &[9; 4]),
            reply(4, Command::DEVICE_GET_INFO, &words(&[16, 3, 9, 3])),
        ];
        assert_eq!(answer, expected.concat());
    });
}

#[test]
fn failures_of_the_function_are_errors() {
    everywhere(|world| {
        ready(world);
        for (failure, errno) in [
            (AccessError::UnsupportedRequest, Errno::EIO),
            (AccessError::Aborted, Errno::EIO),
            (AccessError::Timeout, Errno::ETIMEDOUT),
        ] {
            world.failure = Some(failure);
            assert_eq!(world.exchange(&read(2, 0, 0, 200)), error(2, Command::REGION_READ, errno));
            world.inputs.push_back(Input::Heard);
            assert_eq!(world.exchange(&read(2, CONFIG, 0, 4)), error(2, Command::REGION_READ, errno));
            world.inputs.push_back(Input::Heard);
        }
        // Those that the fabric has given up; a card that is killed may count one twice.
        assert!(world.session.counters().timeouts.get() >= 2);
        world.failure = None;
        assert_eq!(world.exchange(&read(2, 0, 0, 4)), read_reply(2, 0, 0, &world.bar[..4]));
        // It answers with another number of bytes.
        world.hang = true;
        world.exchange(&read(2, 0, 0, 4));
        let Some(Request::Access(Access::Read { id, .. })) = world.requests.pop() else { panic!() };
        world.inputs.push_back(Input::Done(id, Ok(vec![1, 2, 3])));
        assert_eq!(world.exchange(b""), error(2, Command::REGION_READ, Errno::EIO));
        // And again, too late.
        world.inputs.push_back(Input::Done(id, Ok(vec![1, 2, 3, 4])));
        assert_eq!(world.exchange(b""), b"");
    });
}

#[test]
fn what_a_silent_fabric_does_not_answer_times_out() {
    everywhere(|world| {
        ready(world);
        let timeout = world.config.timeout;
        assert!(timeout < Duration::from_secs(4));
        world.hang = true;
        world.exchange(&read(2, 0, 0, 4));
        world.pass(Duration::from_secs(1));
        world.exchange(&read(3, 0, 0, 4));
        assert_eq!(world.session.poll_timeout(), Some(Instant::from_nanos(1) + timeout));
        world.pass(timeout - Duration::from_secs(1));
        let refused = |number| error(number, Command::REGION_READ, Errno::ETIMEDOUT);
        assert_eq!(world.exchange(b""), [refused(2), refused(3)].concat());
        assert!(world.session.counters().timeouts.get() >= 2);
        assert_eq!(world.session.poll_timeout(), None);
        // What comes later is not even asked for.
        assert_eq!(world.exchange(&read(5, CONFIG, 4, 4)), refused(5));
        assert_eq!(
            world.exchange(&message(6, Command::DEVICE_RESET, b"")),
            error(6, Command::DEVICE_RESET, Errno::ETIMEDOUT)
        );
        assert!(world.session.presence.is_silent());
        world.hang = false;
        world.settle();
        assert_eq!(world.incoming, b"", "late answers mean nothing");
        world.inputs.push_back(Input::Heard);
        world.settle();
        assert_eq!(world.exchange(&read(4, 0, 0, 4)), read_reply(4, 0, 0, &world.bar[..4]));
    });
}

#[test]
fn what_piles_up_is_answered_in_time_as_well() {
    once(|world| {
        ready(world);
        (world.hang, world.full) = (true, true);
        let timeout = world.config.timeout;
        let start = world.now;
        for number in 0..3000_u16 {
            world.write(&silent(write(number, 0, 0x1000, &[0; 4])), &[]);
        }
        world.write(&read(9, 0, 0, 4), &[]);
        world.settle();
        assert_eq!(world.session.in_flight(), COMMANDS - 1);
        while world.incoming.is_empty() {
            let next = world.session.poll_timeout().expect("something waits");
            world.now = next;
            world.input(Input::Tick);
            assert!(world.now.since(start) <= timeout + Duration::from_millis(100));
        }
        assert_eq!(world.exchange(b""), error(9, Command::REGION_READ, Errno::ETIMEDOUT));
        assert_eq!(world.session.counters().dropped_writes.get(), 3000);
        (world.hang, world.full) = (false, false);
        world.inputs.push_back(Input::Heard);
        world.pass(Duration::from_millis(100));
        assert_eq!(world.exchange(&read(4, 0, 0, 4)), read_reply(4, 0, 0, &world.bar[..4]));
    });
}

#[test]
fn data_of_writes_is_kept_until_they_are_committed() {
    everywhere(|world| {
        ready(world);
        world.full = true;
        let data = |number: u8| vec![number; 4096];
        for number in 0..40 {
            world.write(&silent(write(2, 0, u64::from(number % 2) * 4096, &data(number))), &[]);
        }
        world.settle();
        assert!(world.session.in_flight() > 8 && !world.outgoing.is_empty());
        world.full = false;
        // One step in which places are emptied and could be filled again.
        world.batch = 3;
        world.inputs.extend([Input::Tick, Input::Tick, Input::Tick]);
        world.settle();
        let writes: Vec<_> = world
            .log
            .iter()
            .map(|request| match request {
                Request::Access(Access::Write { payload: Payload::Inline(bytes), .. }) => bytes.as_slice()[0],
                other => panic!("{other:?}"),
            })
            .collect();
        let expected: Vec<u8> = (0..40).flat_map(|number| [number; 64]).collect();
        assert_eq!(writes, expected);
    });
}

#[test]
fn a_client_that_does_not_read_stops_only_itself() {
    once(|world| {
        ready(world);
        world.deaf = true;
        let mut expected = Vec::new();
        for number in 0..4000_u16 {
            let (offset, len) = (usize::from(number) % 100, [4, 1000][usize::from(number) % 2]);
            world.write(&read(number, 0, offset as u64, len), &[]);
            expected.extend(read_reply(number, 0, offset as u64, &world.bar[offset..][..len as usize]));
        }
        world.settle();
        world.pass(Duration::from_secs(10));
        assert!(!world.outgoing.is_empty());
        assert!(world.session.poll_timeout().is_none_or(|at| at > world.now));
        world.deaf = false;
        assert!(world.exchange(b"") == expected);
    });
}

#[test]
fn a_read_that_failed_stays_so_whatever_comes_later() {
    everywhere(|world| {
        ready(world);
        world.hang = true;
        world.exchange(&[read(2, 0, 0, 4), read(3, 0, 0, 192)].concat());
        let [first, parts @ ..] = &world.requests[..] else { panic!() };
        let (first, parts) = (*first, parts.to_vec());
        assert_eq!(parts.len(), 3);
        world.requests.clear();
        world.failure = Some(AccessError::Aborted);
        world.execute(parts[1]);
        world.settle();
        world.failure = None;
        world.execute(parts[0]);
        world.execute(parts[2]);
        world.settle();
        world.execute(first);
        let expected = [read_reply(2, 0, 0, &world.bar[..4]), error(3, Command::REGION_READ, Errno::EIO)];
        assert_eq!(world.exchange(b""), expected.concat());
    });
}

#[test]
fn a_removed_function_reads_as_an_error() {
    everywhere(|world| {
        ready(world);
        world.hang = true;
        world.exchange(
            &[read(2, 0, 0, 4), silent(write(3, 0, 0x1000, &[1; 4])), write(4, CONFIG, 0x50, &[0; 4])]
                .concat(),
        );
        world.input(Input::Present(false));
        let expected = [error(2, Command::REGION_READ, Errno::EIO), write_reply(4, CONFIG, 0x50, 4)].concat();
        assert_eq!(world.exchange(b""), expected);
        let log = world.log.len();
        assert_eq!(world.exchange(&read(5, 0, 0, 4)), error(5, Command::REGION_READ, Errno::EIO));
        assert_eq!(world.exchange(&read(5, CONFIG, 0, 4)), error(5, Command::REGION_READ, Errno::EIO));
        assert_eq!(world.exchange(&write(6, 0, 0x1000, &[1; 4])), write_reply(6, 0, 0x1000, 4));
        assert_eq!(
            world.exchange(&message(7, Command::DEVICE_RESET, b"")),
            error(7, Command::DEVICE_RESET, Errno::EIO)
        );
        assert_eq!(world.log.len(), log);
        let ask = message(2, Command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]));
        assert_eq!(world.exchange(&ask), reply(2, Command::DEVICE_GET_INFO, &words(&[16, 3, 9, 3])));
        world.requests.clear();
        (world.hang, world.bar[0]) = (false, 1);
        world.input(Input::Present(true));
        assert_eq!(world.exchange(&read(5, 0, 0, 1)), read_reply(5, 0, 0, &[1]));
    });
}

#[test]
fn bars_are_sized_without_the_function() {
    everywhere(|world| {
        ready(world);
        assert_eq!(config_read(world, 0x10, 8), words(&[4, 0]));
        config_write(world, 0x10, &[0xff; 24]);
        let size = !(BAR_BYTES as u32 - 1) | 4;
        assert_eq!(config_read(world, 0x10, 24), words(&[size, u32::MAX, 0, 0, 0, 0]));
        config_write(world, 0x10, &words(&[0xfe00_0000, 1]));
        assert_eq!(config_read(world, 0x10, 8), words(&[0xfe00_0004, 1]));
        config_write(world, 0x30, &[0xff; 4]);
        config_write(world, 0x3c, &[11]);
        assert_eq!((config_dword(world, 0x30), config_dword(world, 0x3c)), (0, 0x010b));
        assert!(world.log.is_empty());
    });
}

#[test]
fn the_command_register_reaches_the_function_with_its_memory_space() {
    everywhere(|world| {
        ready(world);
        config_write(world, 4, &[0x04, 0x04]);
        let [Request::Access(Access::ConfigWrite { register: 4, value: 0x0406, byte_enables: 0b0011, .. })] =
            world.log[..]
        else {
            panic!("{:?}", world.log);
        };
        assert_eq!(config_dword(world, 4), 0x0010_0404);
        config_write(world, 4, &[0xff, 0xff, 0xff, 0xff]);
        assert_eq!(config_dword(world, 4), 0x0010_0546);
    });
}

#[test]
fn the_whole_space_is_read_at_once() {
    once(|world| {
        ready(world);
        let mut expected = vec![0; 4096];
        world.layout.read(&world.space, 0, &mut expected);
        // The line and the pin that are the slot's.
        expected[0x3d] = 1;
        assert_eq!(config_read(world, 0, 4096), expected);
        for (offset, count) in [(0, 2), (2, 2), (9, 3), (0x3e, 7), (4095, 1)] {
            let offset_at = usize::from(offset);
            assert_eq!(config_read(world, offset, count), expected[offset_at..][..count as usize]);
        }
    });
}

#[test]
fn own_capabilities_stay_here_and_the_rest_passes() {
    everywhere(|world| {
        ready(world);
        // MSI-X: enabled for the client, untouched at the function.
        config_write(world, MSIX + 2, &[0x00, 0xc0]);
        assert_eq!(config_dword(world, MSIX), 0xc007_0011);
        // Advanced Error Reporting.
        config_write(world, AER + 8, &words(&[0x1000]));
        assert_eq!(config_dword(world, AER + 8), 0x1000);
        world.input(Input::Error(4, 0x4000));
        assert_eq!(config_dword(world, AER + 4), 0x4000);
        config_write(world, AER + 4, &words(&[0x4000]));
        assert_eq!(config_dword(world, AER + 4), 0);
        // Device control, but not the status beside it.
        config_write(world, EXPRESS + 8, &[0x0f, 0x10]);
        assert_eq!(config_dword(world, EXPRESS + 8), 0x100f);
        let log: Vec<_> = world
            .log
            .iter()
            .filter(|request| matches!(request, Request::Access(Access::ConfigWrite { .. })))
            .collect();
        assert!(log.is_empty(), "{log:?}");
        config_write(world, EXPRESS + 10, &[0x01, 0]);
        config_write(world, 0x44, &[3]);
        let passed: Vec<_> = world
            .log
            .iter()
            .filter_map(|request| match request {
                Request::Access(Access::ConfigWrite { register, value, byte_enables, .. }) => {
                    Some((*register, *value, *byte_enables))
                }
                _ => None,
            })
            .collect();
        assert_eq!(passed, [(EXPRESS + 8, 0x0001_0000, 0b1100), (0x44, 3, 0b0001)]);
    });
}

#[test]
fn resets_reach_the_function_and_nothing_passes_them() {
    everywhere(|world| {
        ready(world);
        config_write(world, 0x10, &words(&[0xfe00_0000]));
        config_write(world, AER + 8, &words(&[0x1000]));
        world.hang = true;
        world.log.clear();
        let flr = write(2, CONFIG, u64::from(EXPRESS) + 8, &[0x00, 0x80]);
        assert_eq!(
            world.exchange(&[flr, silent(write(3, 0, 0x1000, &[5; 4])), read(4, 0, 0, 4)].concat()),
            b""
        );
        let [Request::Reset { id, kind: ResetKind::FunctionLevel }] = world.log[..] else {
            panic!("{:?}", world.log)
        };
        world.requests.clear();
        (world.hang, world.lives) = (false, 1);
        world.inputs.push_back(Input::Done(id, Ok(Vec::new())));
        let expected =
            [write_reply(2, CONFIG, u64::from(EXPRESS) + 8, 2), read_reply(4, 0, 0, &world.bar[..4])];
        assert_eq!(world.exchange(b""), expected.concat());
        assert_eq!(world.bar[0x1000], 5);
        assert_eq!(config_dword(world, 0x10), 4);
        assert_eq!(config_dword(world, AER + 8), 0x1000, "errors and their masks are sticky");
        world.log.clear();
        assert_eq!(
            world.exchange(&message(5, Command::DEVICE_RESET, b"")),
            reply(5, Command::DEVICE_RESET, b"")
        );
        assert!(matches!(world.log[..], [Request::Reset { kind: ResetKind::Bus, .. }]));
    });
}

#[test]
fn a_reset_that_is_not_answered_times_out() {
    everywhere(|world| {
        ready(world);
        world.hang = true;
        world.exchange(&[message(5, Command::DEVICE_RESET, b""), read(6, 0, 0, 4)].concat());
        assert_eq!(world.log.len(), 1);
        world.pass(world.config.timeout);
        let expected = [
            error(5, Command::DEVICE_RESET, Errno::ETIMEDOUT),
            error(6, Command::REGION_READ, Errno::ETIMEDOUT),
        ];
        assert_eq!(world.exchange(b""), expected.concat());
        world.requests.clear();
        world.inputs.push_back(Input::Heard);
        world.hang = false;
        assert_eq!(world.exchange(&read(7, 0, 0, 4)), read_reply(7, 0, 0, &world.bar[..4]));
    });
}

#[test]
fn vectors_of_the_function_are_out_of_reach() {
    everywhere(|world| {
        ready(world);
        assert_eq!(
            world.exchange(&read(2, 0, TABLE.into(), 16)),
            read_reply(2, 0, TABLE.into(), &[0xff; 16])
        );
        assert_eq!(world.exchange(&write(3, 0, TABLE.into(), &[0; 16])), write_reply(3, 0, TABLE.into(), 16));
        assert_eq!(world.exchange(&read(4, 0, PENDING.into(), 8)), read_reply(4, 0, PENDING.into(), &[0; 8]));
        assert!(world.log.is_empty());
        // What straddles the end of the table.
        let end = u64::from(TABLE) + 16 * 8;
        let answer = world.exchange(&read(2, 0, end - 4, 8));
        let expected = [&[0xff; 4][..], &world.bar[end as usize..end as usize + 4]].concat();
        assert_eq!(answer, read_reply(2, 0, end - 4, &expected));
        world.input(Input::Interrupt(3));
        assert_eq!(world.exchange(&read(4, 0, PENDING.into(), 2)), read_reply(4, 0, PENDING.into(), &[8, 0]));
    });
}
