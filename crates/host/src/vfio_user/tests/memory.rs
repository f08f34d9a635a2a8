//! The DMA address space, and memory that is reached by messages.

use core::time::Duration;

use spec::vfio_user::{Command, Errno, MessageHeader};
use zerocopy::FromBytes;

use super::super::DmaAccessKind::{Read, Write};
use super::world::{Input, World, config, everywhere, everywhere_with, once};
use super::*;

pub(super) fn map_payload(flags: u32, offset: u64, address: u64, size: u64) -> Vec<u8> {
    let numbers = [offset, address, size].map(u64::to_le_bytes).concat();
    [words(&[32, flags]), numbers].concat()
}

fn map(world: &mut World<'_>, payload: &[u8], descriptors: &[u32]) -> Vec<u8> {
    world.exchange_with(&message(4, Command::DMA_MAP, payload), descriptors)
}

pub(super) fn unmap_payload(flags: u32, address: u64, size: u64) -> Vec<u8> {
    [words(&[24, flags]), [address, size].map(u64::to_le_bytes).concat()].concat()
}

fn unmap(world: &mut World<'_>, flags: u32, address: u64, size: u64) -> Vec<u8> {
    world.exchange(&message(5, Command::DMA_UNMAP, &unmap_payload(flags, address, size)))
}

fn mapped() -> Vec<u8> {
    reply(4, Command::DMA_MAP, b"")
}

fn unmapped(address: u64, size: u64) -> Vec<u8> {
    reply(5, Command::DMA_UNMAP, &unmap_payload(0, address, size))
}

fn not_unmapped(errno: Errno) -> Vec<u8> {
    error(5, Command::DMA_UNMAP, errno)
}

#[test]
fn memory_is_mapped_found_and_unmapped() {
    everywhere(|world| {
        ready(world);
        assert_eq!(map(world, &map_payload(3, 0x1000, 0x10_0000, 0x4000), &[1]), mapped());
        assert_eq!(map(world, &map_payload(1, 0, 0x10_4000, 0x1000), &[]), mapped());
        assert_eq!(map(world, &map_payload(2, 0, 0, 0x10_0000), &[2]), mapped());
        let session = &world.session;
        let found = session.maps.lookup(0x10_3ff0, 0x100, Write).unwrap();
        assert_eq!((found.descriptor, found.offset, found.len), (Some(DescriptorId(1)), 0x4ff0, 0x10));
        let found = session.maps.lookup(0x10_4001, 4, Read).unwrap();
        assert_eq!((found.descriptor, found.offset, found.len), (None, 1, 4));
        assert_eq!(session.maps.lookup(0x10_4001, 4, Write), Err(DmaError::Denied));
        assert_eq!(session.maps.lookup(0xf_ffff, 4, Read), Err(DmaError::Denied));
        assert_eq!(session.maps.lookup(0xf_ffff, 4, Write).map(|piece| piece.len), Ok(1));
        for beyond in [0x10_5000, u64::MAX, 1 << 44] {
            assert_eq!(session.maps.lookup(beyond, 1, Read), Err(DmaError::NotMapped));
        }
        assert_eq!(session.counters().denied_accesses.get(), 5);
        let starts: Vec<u64> = session.maps.iter().map(|(_, map)| map.start).collect();
        assert_eq!(starts, [0, 0x10_0000, 0x10_4000]);
        assert_eq!(world.maps.len(), 3);
        assert_eq!(unmap(world, 0, 0x10_0000, 0x4000), unmapped(0x10_0000, 0x4000));
        assert_eq!(world.open, [2].into());
        assert!(matches!(world.maps[3], (_, None)));
        assert_eq!(world.session.maps.lookup(0x10_0000, 1, Read), Err(DmaError::NotMapped));
        assert_eq!(unmap(world, 2, 0, 0), reply(5, Command::DMA_UNMAP, &unmap_payload(2, 0, 0)));
        assert!(world.open.is_empty() && world.lost == 0);
        assert_eq!(world.session.maps.iter().count(), 0);
    });
}

#[test]
fn maps_without_sense_are_refused_by_name() {
    everywhere(|world| {
        ready(world);
        assert_eq!(map(world, &map_payload(3, 0, 0x10_0000, 0x4000), &[1]), mapped());
        let end = DMA_END;
        let cases = [
            (map_payload(3, 0, 0x10_1000, 0x1000), Errno::EEXIST),
            (map_payload(3, 0, 0xf_f000, 0x2000), Errno::EEXIST),
            (map_payload(3, 0, 0x10_3000, 0x2000), Errno::EEXIST),
            (map_payload(3, 0, 0, 0x20_0000), Errno::EEXIST),
            (map_payload(3, 0, 0x10_0000, 0x4000), Errno::EEXIST),
            (map_payload(3, 0, 0x800, 0x1000), Errno::EINVAL),
            (map_payload(3, 0, 0x1000, 0x1800), Errno::EINVAL),
            (map_payload(3, 0x10, 0x1000, 0x1000), Errno::EINVAL),
            (map_payload(3, 0, 0x1000, 0), Errno::EINVAL),
            (map_payload(0, 0, 0x1000, 0x1000), Errno::EINVAL),
            (map_payload(4, 0, 0x1000, 0x1000), Errno::EINVAL),
            (map_payload(3, 0, end, 0x1000), Errno::ERANGE),
            (map_payload(3, 0, end - 0x1000, 0x2000), Errno::ERANGE),
            (map_payload(3, 0, 0u64.wrapping_sub(0x1000), 0x1000), Errno::ERANGE),
            (map_payload(3, 1 << 63, 0x1000, 0x1000), Errno::ERANGE),
            (map_payload(3, 0, 0x1000, 0x1000)[..31].to_vec(), Errno::EINVAL),
            ([map_payload(3, 0, 0x1000, 0x1000), vec![0]].concat(), Errno::EINVAL),
        ];
        for (position, (payload, errno)) in cases.iter().enumerate() {
            let answer = map(world, payload, &[100 + position as u32]);
            assert_eq!(answer, error(4, Command::DMA_MAP, *errno), "{payload:?}");
            assert_eq!(world.open, [1].into());
        }
        assert_eq!(
            map(world, &map_payload(3, 0, 0x1000, 0x1000), &[7, 8]),
            error(4, Command::DMA_MAP, Errno::EINVAL)
        );
        assert_eq!(map(world, &map_payload(3, 0, end - 0x1000, 0x1000), &[]), mapped());
        let refused = world.session.counters().refused_maps.get();
        let expected = cases.len() as u64 + 1;
        assert!((expected..expected + world.lives as u64).contains(&refused));
        // One that is far too long does not even reach the agent.
        let long = map(world, &[0; 200], &[9]);
        assert_eq!((long, world.lost), (error(4, Command::DMA_MAP, Errno::EINVAL), 1));
    });
}

#[test]
fn unmaps_fit_maps() {
    everywhere(|world| {
        ready(world);
        for (position, start) in [0x1000, 0x2000, 0x8000].into_iter().enumerate() {
            assert_eq!(map(world, &map_payload(3, 0, start, 0x1000), &[position as u32]), mapped());
        }
        assert_eq!(unmap(world, 0, 0x4000, 0x1000), not_unmapped(Errno::ENOENT));
        assert_eq!(unmap(world, 0, 0x1000, 0x800), not_unmapped(Errno::EINVAL));
        assert_eq!(unmap(world, 0, 0x1800, 0x800), not_unmapped(Errno::EINVAL));
        assert_eq!(unmap(world, 0, 0x1000, 0), not_unmapped(Errno::EINVAL));
        assert_eq!(unmap(world, 2, 0, 0x1000), not_unmapped(Errno::EINVAL));
        assert_eq!(unmap(world, 8, 0x1000, 0x1000), not_unmapped(Errno::EINVAL));
        assert_eq!(unmap(world, 1, 0x1000, 0x1000), not_unmapped(Errno::EOPNOTSUPP));
        let bitmap = [unmap_payload(1, 0x1000, 0x1000), vec![0; 16]].concat();
        assert_eq!(world.exchange(&message(5, Command::DMA_UNMAP, &bitmap)), not_unmapped(Errno::EOPNOTSUPP));
        assert_eq!(world.session.maps.iter().count(), 3);
        // A virtual IOMMU gives back what it likes, as long as it cuts nothing.
        assert_eq!(unmap(world, 0, 0, 0x4000), unmapped(0, 0x4000));
        assert_eq!(unmap(world, 0, 0x1000, u64::MAX), unmapped(0x1000, u64::MAX));
        assert!(world.open.is_empty());
    });
}

#[test]
fn an_unmap_waits_for_running_copies() {
    everywhere(|world| {
        ready(world);
        assert_eq!(map(world, &map_payload(3, 0, 0x1000, 0x1000), &[1]), mapped());
        let piece = world.session.maps.lookup(0x1000, 16, Read).unwrap();
        world.input(Input::Use(piece.map));
        world.input(Input::Use(piece.map));
        assert_eq!(unmap(world, 0, 0x1000, 0x1000), b"");
        assert_eq!(world.session.maps.lookup(0x1000, 16, Read), Err(DmaError::NotMapped));
        assert!(matches!(world.maps.last(), Some((_, None))));
        // The same addresses are mapped again meanwhile, which is not answered before the unmap.
        assert_eq!(map(world, &map_payload(3, 0, 0x1000, 0x1000), &[2]), b"");
        assert_eq!(world.session.maps.lookup(0x1000, 16, Read).unwrap().descriptor, Some(DescriptorId(2)));
        world.input(Input::EndUse(piece.map));
        assert_eq!(world.exchange(b""), b"");
        assert_eq!(world.open, [1, 2].into());
        world.input(Input::EndUse(piece.map));
        assert_eq!(world.exchange(b""), [unmapped(0x1000, 0x1000), mapped()].concat());
        assert_eq!(world.open, [2].into());
    });
}

#[test]
fn a_copy_that_does_not_end_fails_the_unmap_and_keeps_the_memory() {
    everywhere(|world| {
        ready(world);
        map(world, &map_payload(3, 0, 0x1000, 0x1000), &[1]);
        let piece = world.session.maps.lookup(0x1000, 16, Read).unwrap();
        world.input(Input::Use(piece.map));
        assert_eq!(unmap(world, 0, 0x1000, 0x1000), b"");
        world.pass(world.config.timeout);
        assert_eq!(world.exchange(b""), not_unmapped(Errno::ETIMEDOUT));
        world.disconnect();
        assert_eq!(world.open, [1].into());
        world.input(Input::EndUse(piece.map));
        assert!(world.open.is_empty());
    });
}

#[test]
fn there_are_only_so_many_maps() {
    once(|world| {
        ready(world);
        for number in (0..MAPS as u64).rev() {
            assert_eq!(map(world, &map_payload(3, 0, number << 12, 4096), &[number as u32]), mapped());
        }
        let more = map(world, &map_payload(3, 0, 1 << 40, 4096), &[99_999]);
        assert_eq!(more, error(4, Command::DMA_MAP, Errno::ENOSPC));
        assert_eq!(unmap(world, 0, 4096, 4096), unmapped(4096, 4096));
        assert_eq!(map(world, &map_payload(3, 0, 1 << 40, 4096), &[99_999]), mapped());
        assert_eq!(world.session.maps.iter().count(), MAPS);
        assert!(world.session.maps.iter().map(|(_, map)| map.start).is_sorted());
    });
}

/// The number, command and payload of the first message to the client.
fn command(bytes: &[u8]) -> (u16, Command, Vec<u8>) {
    let header = MessageHeader::read_from_prefix(bytes).unwrap().0;
    assert_eq!(header.size.get() as usize, bytes.len());
    assert_eq!(header.flags.get(), 0);
    (header.id.get(), header.command(), bytes[16..].to_vec())
}

#[test]
fn memory_is_reached_by_messages_as_older_qemu_does_it() {
    everywhere(|world| {
        ready(world);
        world.input(Input::ReadMemory(70, 0x5000, 6));
        let (id, code, payload) = command(&world.exchange(b""));
        assert_eq!((code, payload), (Command::DMA_READ, access(0x5000, 6, 0)));
        // QEMU's data begin behind a count of four bytes.
        let data = [&access(0x5000, 6, 0)[..12], b"abcdef", &[0; 4]].concat();
        assert_eq!(world.exchange(&reply(id, Command::DMA_READ, &data)), b"");
        assert_eq!(world.transfers, [(70, Ok(b"abcdef".to_vec()))]);
        world.input(Input::WriteMemory(71, 0x6000, vec![1, 2, 3]));
        let (id, code, payload) = command(&world.exchange(b""));
        let expected = [&access(0x6000, 3, 0)[..12], &[1, 2, 3], &[0; 4]].concat();
        assert_eq!((code, payload), (Command::DMA_WRITE, expected));
        world.exchange(&reply(id, Command::DMA_WRITE, b""));
        world.input(Input::WriteMemory(72, 0x7000, vec![4]));
        let (id, ..) = command(&world.exchange(b""));
        world.exchange(&error(id, Command::DMA_WRITE, Errno::EFAULT));
        // Once more, and what nobody has asked for.
        world.exchange(&error(id, Command::DMA_WRITE, Errno::EFAULT));
        world.exchange(&reply(0x1234, Command::DMA_READ, &data));
        world.exchange(&reply(0x3f, Command::REGION_READ, b""));
        assert_eq!(world.transfers[1..], [(71, Ok(vec![])), (72, Err(Errno::EFAULT))]);
    });
}

#[test]
fn memory_is_reached_by_messages_as_the_document_has_it() {
    let config = SlotConfig { old_transfers: Some(false), ..config() };
    everywhere_with(&config, |world| {
        ready(world);
        world.input(Input::ReadMemory(70, 0x5000, 6));
        let (id, ..) = command(&world.exchange(b""));
        world.exchange(&reply(id, Command::DMA_READ, &[&access(0x5000, 6, 0)[..], b"abcdef"].concat()));
        assert_eq!(world.transfers, [(70, Ok(b"abcdef".to_vec()))]);
        world.input(Input::WriteMemory(71, 0x6000, vec![1, 2, 3]));
        let (_, code, payload) = command(&world.exchange(b""));
        let expected = [&access(0x6000, 3, 0)[..], &[1, 2, 3]].concat();
        assert_eq!((code, payload), (Command::DMA_WRITE, expected));
        // A reply that is too short has no data.
        world.input(Input::ReadMemory(72, 0x5000, 6));
        let (id, ..) = command(&world.exchange(b""));
        world.exchange(&reply(id, Command::DMA_READ, &access(0x5000, 6, 0)));
        assert_eq!(world.transfers[1..], [(72, Err(Errno::EIO))]);
    });
}

/// Fewer bytes than the card was allowed to receive may be a part of a header, and what follows may be nothing but its
/// rest.
#[test]
fn a_header_may_come_in_pieces() {
    for at_once in [1, 5, 15, 16, 17] {
        everywhere(|world| {
            ready(world);
            world.at_once = at_once;
            world.input(Input::WriteMemory(71, 0x6000, vec![1, 2, 3]));
            let (id, ..) = command(&world.exchange(b""));
            world.exchange(&reply(id, Command::DMA_WRITE, b""));
            assert_eq!(world.transfers, [(71, Ok(vec![]))], "{at_once} bytes at once");
        });
    }
}

/// The reply to a write of nothing tells, and what was wanted meanwhile waits.
#[test]
fn where_a_client_has_data_is_found_out() {
    let config = SlotConfig { old_transfers: None, ..config() };
    everywhere_with(&config, |world| {
        for is_old in [true, false, true] {
            ready(world);
            (world.transfers, world.refused) = (Vec::new(), Vec::new());
            world.input(Input::WriteMemory(71, 0x6000, vec![1, 2, 3]));
            assert_eq!(world.refused, [TransferRefused::Busy]);
            let (id, code, payload) = command(&world.exchange(b""));
            assert_eq!((code, payload), (Command::DMA_WRITE, access(0x6000, 0, 0)));
            let answer = if is_old { Vec::new() } else { access(0x6000, 0, 0) };
            world.exchange(&reply(id, Command::DMA_WRITE, &answer));
            assert!(world.transfers.is_empty());
            world.input(Input::WriteMemory(71, 0x6000, vec![1, 2, 3]));
            let (_, code, payload) = command(&world.exchange(b""));
            let start = if is_old { 12 } else { 16 };
            assert_eq!((code, &payload[start..start + 3]), (Command::DMA_WRITE, &[1, 2, 3][..]));
            world.disconnect();
        }
    });
}

#[test]
fn transfers_pass_what_waits_and_time_out() {
    everywhere(|world| {
        ready(world);
        world.hang = true;
        world.exchange(&read(2, 0, 0, 4));
        world.pass(Duration::from_secs(1));
        world.input(Input::ReadMemory(70, 0x5000, 6));
        let (id, ..) = command(&world.exchange(b""));
        world.pass(world.config.timeout - Duration::from_secs(1));
        assert_eq!(world.exchange(b""), error(2, Command::REGION_READ, Errno::ETIMEDOUT));
        assert!(world.transfers.is_empty());
        world.pass(Duration::from_secs(1));
        assert_eq!(world.transfers, [(70, Err(Errno::ETIMEDOUT))]);
        world.exchange(&reply(id, Command::DMA_READ, &[0; 22]));
        assert_eq!(world.transfers.len(), 1);
        world.input(Input::ReadMemory(71, 0x5000, 4097));
        assert_eq!(world.refused, [TransferRefused::TooLong]);
        for token in 0..17 {
            world.input(Input::ReadMemory(token, 0x5000, 8));
        }
        assert_eq!(world.refused[1..], [TransferRefused::Busy]);
        world.disconnect();
        assert_eq!(world.transfers.len(), 17);
        assert!(world.transfers[1..].iter().all(|(_, result)| *result == Err(Errno::EIO)));
    });
}

/// Its memory may be written as long as it has not answered, whatever became of the transfer.
#[test]
fn a_write_that_comes_late_is_known_until_it_is_answered() {
    everywhere(|world| {
        ready(world);
        for is_gone in [false, true] {
            world.transfers.clear();
            world.input(Input::ReadMemory(70, 0x5000, 6));
            world.input(Input::WriteMemory(71, 0x6000, vec![1, 2, 3]));
            let sent = world.exchange(b"");
            let (id, code, _) = command(&sent[sent.len() - 35..]);
            assert_eq!(code, Command::DMA_WRITE);
            assert!(!world.session.transfers.has_late_writes());
            world.pass(world.config.timeout);
            assert_eq!(world.transfers, [70, 71].map(|token| (token, Err(Errno::ETIMEDOUT))));
            assert!(world.session.transfers.has_late_writes());
            // Others may follow it.
            world.input(Input::WriteMemory(72, 0x6000, vec![4]));
            let (next, ..) = command(&world.exchange(b""));
            world.exchange(&reply(next, Command::DMA_WRITE, b""));
            assert_eq!(world.transfers[2..], [(72, Ok(vec![]))]);
            assert!(world.session.transfers.has_late_writes());
            if is_gone {
                world.disconnect();
            } else {
                world.exchange(&reply(id, Command::DMA_WRITE, b""));
            }
            assert!(!world.session.transfers.has_late_writes());
            assert_eq!(world.transfers.len(), 3);
        }
        assert_eq!(world.session.counters().timeouts.get(), 0, "the function has answered everything");
    });
}

#[test]
fn late_writes_are_not_counted_for_ever() {
    once(|world| {
        ready(world);
        for token in 0..100 {
            world.input(Input::WriteMemory(token, 0x6000, vec![1]));
            world.exchange(b"");
            world.pass(world.config.timeout);
        }
        assert!(world.refused.is_empty() && world.transfers.len() == 100);
        assert!(world.session.transfers.has_late_writes());
    });
}
