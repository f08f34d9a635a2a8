//! Clients that send what they should not.

use base::Random;
use proptest::prelude::*;
use spec::vfio_user::{Command, Errno};

use super::world::{Input, everywhere, once, once_with};
use super::*;

#[test]
fn a_message_without_sense_ends_the_session_and_the_rest_is_drained() {
    everywhere(|world| {
        for nonsense in
            [&b"\0\0\x09\0\x0f\0\0\0\0\0\0\0\0\0\0\0"[..], b"\0\0\x09\0\x20\0\0\0\x02\0\0\0\0\0\0\0"]
        {
            ready(world);
            world.hang = true;
            let bytes = [read(2, 0, 0, 4), nonsense.to_vec(), vec![0x55; 3000]].concat();
            assert_eq!(world.exchange(&bytes), b"");
            assert!(!world.session.is_idle() && world.outgoing.is_empty());
            assert!(!world.session.wants_close(), "a read is still to be answered");
            world.hang = false;
            let answer = world.exchange(b"more of it");
            assert_eq!(answer, read_reply(2, 0, 0, &world.bar[..4]));
            assert!(world.session.is_idle());
        }
    });
}

#[test]
fn long_messages_are_refused_and_passed_over() {
    everywhere(|world| {
        ready(world);
        let long = write(3, 0, 0, &vec![0; 9000]);
        let bytes = [long, read(2, 0, 0, 4)].concat();
        let expected = [error(3, Command::REGION_WRITE, Errno::E2BIG), read_reply(2, 0, 0, &world.bar[..4])];
        assert_eq!(world.exchange(&bytes), expected.concat());
    });
}

#[test]
fn a_hundred_megabytes_are_passed_over_too() {
    once(|world| {
        ready(world);
        let mut header = message(3, Command::DMA_MAP, b"");
        header[4..8].copy_from_slice(&(100_000_016_u32).to_le_bytes());
        assert_eq!(world.exchange(&header), error(3, Command::DMA_MAP, Errno::E2BIG));
        for _ in 0..100 {
            assert_eq!(world.exchange(&vec![0xff; 1_000_000]), b"");
        }
        assert_eq!(world.exchange(&read(2, 0, 0, 4)), read_reply(2, 0, 0, &world.bar[..4]));
    });
}

#[test]
fn a_client_may_stall_anywhere() {
    everywhere(|world| {
        ready(world);
        let bytes = read(2, 0, 0, 4);
        for (position, byte) in bytes.iter().enumerate() {
            let answer = world.exchange(&[*byte]);
            assert_eq!(answer.is_empty(), position + 1 < bytes.len());
        }
        // And vanish.
        world.exchange(&bytes[..20]);
        world.disconnect();
        ready(world);
        assert_eq!(world.exchange(&bytes), read_reply(2, 0, 0, &world.bar[..4]));
    });
}

#[test]
fn messages_with_descriptors_wait_for_their_turn() {
    everywhere(|world| {
        ready(world);
        world.write(&read(2, 0, 0, 4), &[]);
        world.write(&message(3, Command::DMA_MAP, &memory::map_payload(3, 0, 0, 4096)), &[1]);
        world.write(&message(4, Command::DMA_MAP, &memory::map_payload(3, 0, 4096, 4096)), &[2]);
        world.write(&read(5, 0, 0, 4), &[]);
        let read = |id| read_reply(id, 0, 0, &world.bar[..4]);
        let expected =
            [read(2), reply(3, Command::DMA_MAP, b""), reply(4, Command::DMA_MAP, b""), read(5)].concat();
        assert_eq!(world.exchange(b""), expected);
        assert_eq!((world.open.len(), world.lost), (2, 0));
        assert_eq!(world.session.taken(), 2);
    });
}

#[test]
fn a_split_message_with_descriptors_is_taken_whole() {
    everywhere(|world| {
        ready(world);
        let bytes = message(3, Command::DMA_MAP, &memory::map_payload(3, 0, 0, 4096));
        world.write(&bytes[..20], &[1]);
        world.settle();
        assert_eq!(world.session.taken(), 0);
        assert_eq!(world.exchange(&bytes[20..]), reply(3, Command::DMA_MAP, b""));
        assert_eq!(world.open, [1].into());
    });
}

#[test]
fn a_peek_is_judged() {
    once(|world| {
        ready(world);
        let (position, taken) = (world.received, world.mails);
        let judge = |bytes: &[u8]| world.session.handle_peeked(position, taken, bytes);
        let map = message(3, Command::DMA_MAP, &[0; 32]);
        assert_eq!(judge(b""), Peeked::NeedMore);
        assert_eq!(judge(&map[..15]), Peeked::NeedMore);
        assert_eq!(judge(&map[..16]), Peeked::NeedMore);
        assert_eq!(judge(&map), Peeked::AgentTakes { len: 48 });
        assert_eq!(judge(&[read(1, 0, 0, 4), map.clone()].concat()), Peeked::Consume(32));
        assert_eq!(judge(&[write(1, 0, 0, &[0; 8]), map[..3].to_vec()].concat()), Peeked::Consume(40));
        assert_eq!(judge(&write(1, 0, 0, &[0; 8])[..20]), Peeked::Consume(20));
        let irqs = message(1, Command::DEVICE_SET_IRQS, &words(&[20, 0x24, 2, 0, 1]));
        assert_eq!(judge(&irqs[..23]), Peeked::NeedMore);
        assert_eq!(judge(&irqs), Peeked::AgentTakes { len: 36 });
        let masks = message(1, Command::DEVICE_SET_IRQS, &words(&[20, 0x09, 2, 0, 1]));
        assert_eq!(judge(&masks), Peeked::Consume(36));
        assert_eq!(world.session.handle_peeked(position + 1, taken, &map), Peeked::Wait);
        assert_eq!(world.session.handle_peeked(position, taken + 1, &map), Peeked::Wait);
        world.deaf = true;
        (0..1000).for_each(|_| world.write(&read(1, 0, 0, 4), &[]));
        world.settle();
        assert_eq!(world.session.handle_peeked(world.received, world.mails, &map), Peeked::Wait);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Any bytes, cut anywhere, with descriptors anywhere.
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..2000), agreed: bool, seed: u64) {
        once(|world| {
            if agreed { ready(world) } else { world.connect() }
            world.pieces = Some(Random::new(seed));
            world.write(&bytes, &[1, 2, 3]);
            world.settle();
            world.pass(world.config.timeout);
            world.pass(world.config.timeout);
            world.disconnect();
            assert!(world.open.is_empty());
        });
    }

    /// A function that says anything about itself.
    #[test]
    fn any_function_is_survived(
        dwords in proptest::collection::vec(any::<u32>(), 1024),
        chains: bool,
        size in 0_u32..40,
        msix: bool,
    ) {
        let mut dwords = dwords;
        if chains {
            // Capabilities that are found, wherever they point to.
            dwords[1] |= 1 << 20;
            dwords[13] = 0x40;
            dwords[16] = dwords[16] & !0xffff | if msix { 0x5011 } else { 0x5001 };
            dwords[20] = dwords[20] & !0xff | 0x10;
            dwords[64] = dwords[64] & !0xffff | 1;
        }
        let read_dword = |register: u16| dwords[usize::from(register) / 4];
        let wide = u64::from(dwords[4] & 4 != 0 || size < 32);
        let bars = [((1_u64 << size) * wide) & !0xf, 0, 0, 0, 0, 0];
        let Ok(config) = SlotConfig::probe(read_dword, bars) else { return Ok(()) };
        once_with(config, |world| {
            ready(world);
            world.hang = true;
            let space: Vec<u8> = dwords.iter().flat_map(|dword| dword.to_le_bytes()).collect();
            world.write(&[write(1, 7, 0, &space), read(2, 7, 0, 4096)].concat(), &[]);
            world.settle();
            while !world.requests.is_empty() {
                for request in std::mem::take(&mut world.requests) {
                    let (id, data) = match request {
                        Request::Access(Access::ConfigRead { id, register }) => {
                            (id, read_dword(register).to_le_bytes().to_vec())
                        }
                        Request::Access(Access::ConfigWrite { id, .. }) | Request::Reset { id, .. } => (id, Vec::new()),
                        other => panic!("{other:?}"),
                    };
                    world.inputs.push_back(Input::Done(id, Ok(data)));
                }
                world.settle();
            }
            let answers = world.exchange(b"");
            assert_eq!(answers.len(), 32 + 32 + 4096);
        });
    }

    /// Messages that look sensible, of any kind and content.
    #[test]
    fn any_messages_are_survived(
        messages in proptest::collection::vec(
            (0_u16..20, proptest::collection::vec(0_u8..40, 0..60), any::<u8>(), 0_usize..3),
            0..40,
        ),
        seed: u64,
    ) {
        once(|world| {
            ready(world);
            world.pieces = Some(Random::new(seed));
            for (number, (command, payload, flags, descriptors)) in messages.iter().enumerate() {
                let mut bytes = message(number as u16, Command(*command), payload);
                bytes[8] = if flags % 4 == 0 { NO_REPLY as u8 } else { u8::from(flags % 16 == 1) };
                let descriptors: Vec<u32> = (0..*descriptors).map(|at| (number * 10 + at) as u32).collect();
                world.write(&bytes, &descriptors);
                world.settle();
            }
            world.pass(world.config.timeout);
            // Each reply is one.
            let mut rest = &world.incoming[..];
            while !rest.is_empty() {
                let size = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
                assert!(size >= 16 && size <= rest.len());
                rest = &rest[size..];
            }
            world.disconnect();
            assert!(world.open.is_empty());
        });
    }
}
