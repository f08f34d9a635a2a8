mod accesses;
mod hostile;
mod interrupts;
mod memory;
mod model;
mod world;

use spec::vfio_user::{Command, Errno, MessageHeader};
use zerocopy::IntoBytes;

use self::world::{BAR_BYTES, Input, World, everywhere, everywhere_with, once_with};
use super::*;

/// What QEMU 11.1 proposes.
const QEMU: &str = "{\"capabilities\": {\"migration\": {\"max_bitmap_size\": 268435456, \"pgsize\": 4096}, \
    \"max_msg_fds\": 16, \"max_data_xfer_size\": 1048576, \"pgsizes\": 4096, \"max_dma_maps\": 65535, \
    \"write_multiple\": true}}\0";
const NO_REPLY: u32 = 0x10;

fn message(id: u16, command: Command, payload: &[u8]) -> Vec<u8> {
    [MessageHeader::request(id, command, payload.len() as u32).as_bytes(), payload].concat()
}

/// The same without a reply.
fn silent(mut message: Vec<u8>) -> Vec<u8> {
    message[8] |= NO_REPLY as u8;
    message
}

fn reply(id: u16, command: Command, payload: &[u8]) -> Vec<u8> {
    [MessageHeader::reply(id, command, payload.len() as u32).as_bytes(), payload].concat()
}

fn error(id: u16, command: Command, error: Errno) -> Vec<u8> {
    MessageHeader::error_reply(id, command, error).as_bytes().to_vec()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn access(offset: u64, region: u32, count: u32) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &words(&[region, count])].concat()
}

fn read(id: u16, region: u32, offset: u64, count: u32) -> Vec<u8> {
    message(id, Command::REGION_READ, &access(offset, region, count))
}

fn read_reply(id: u16, region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let payload = [&access(offset, region, data.len() as u32), data].concat();
    reply(id, Command::REGION_READ, &payload)
}

fn write(id: u16, region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let payload = [&access(offset, region, data.len() as u32), data].concat();
    message(id, Command::REGION_WRITE, &payload)
}

fn write_reply(id: u16, region: u32, offset: u64, count: u32) -> Vec<u8> {
    reply(id, Command::REGION_WRITE, &access(offset, region, count))
}

fn version(major: u16, minor: u16, data: &str) -> Vec<u8> {
    message(1, Command::VERSION, &[&major.to_le_bytes(), &minor.to_le_bytes(), data.as_bytes()].concat())
}

/// Connects a client and agrees upon the version.
fn ready(world: &mut World<'_>) {
    world.connect();
    let answer = world.exchange(&version(0, 0, QEMU));
    assert_eq!(&answer[2..4], b"\x01\0");
    assert!(world.session.is_ready());
}

#[test]
fn versions_are_agreed_upon_as_qemu_wants_it() {
    everywhere(|world| {
        world.connect();
        let proposal = version(0, 0, QEMU);
        let answer = world.exchange(&proposal);
        let data = "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":4096,\"pgsizes\":4096,\
            \"max_dma_maps\":2048,\"write_multiple\":true}}\0";
        let expected = reply(1, Command::VERSION, &[b"\0\0\0\0", data.as_bytes()].concat());
        assert_eq!(answer, expected);
        assert!(answer.len() <= proposal.len(), "QEMU has no more room");
        assert_eq!(world.session.transfers.limit(), 4096);
        // Once is enough.
        assert_eq!(world.exchange(&proposal), error(1, Command::VERSION, Errno::EINVAL));
        world.disconnect();
        assert!(world.session.is_idle());
    });
}

#[test]
fn other_versions_and_silent_clients() {
    everywhere(|world| {
        world.connect();
        assert_eq!(world.exchange(&version(0, 1, "")), reply(1, Command::VERSION, b"\0\0\0\0"));
        world.disconnect();
        world.connect();
        assert_eq!(
            world.exchange(&version(0, 0, "{}\0")),
            reply(1, Command::VERSION, b"\0\0\0\0{\"capabilities\":{}}\0")
        );
        world.disconnect();
        for (major, data, errno) in
            [(1, "", Errno::EOPNOTSUPP), (0, "{}", Errno::EINVAL), (0, "[1\0", Errno::EINVAL)]
        {
            world.connect();
            world.outgoing.clear();
            world.exchange(b"");
            assert_eq!(world.exchange(&version(major, 0, data)), error(1, Command::VERSION, errno));
            assert!(world.session.is_idle(), "closed when it had been answered");
        }
        let counted = world.session.counters().protocol_errors.get();
        assert!((3..=3 + world.lives as u64 - 1).contains(&counted));
    });
}

#[test]
fn nothing_is_done_before_the_version() {
    everywhere(|world| {
        world.connect();
        assert_eq!(world.exchange(&read(9, 0, 0, 4)), error(9, Command::REGION_READ, Errno::EINVAL));
        let map = message(2, Command::DMA_MAP, &[0; 32]);
        assert_eq!(world.exchange_with(&map, &[5]), error(2, Command::DMA_MAP, Errno::EINVAL));
        assert!(world.open.is_empty());
        assert!(!world.exchange(&version(0, 0, QEMU)).is_empty());
        assert!(world.log.is_empty());
    });
}

#[test]
fn the_device_is_described() {
    everywhere(|world| {
        ready(world);
        let ask = message(2, Command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]));
        assert_eq!(world.exchange(&ask), reply(2, Command::DEVICE_GET_INFO, &words(&[16, 3, 9, 3])));
        for (index, flags, size) in
            [(0, 3, BAR_BYTES as u32), (1, 0, 0), (5, 0, 0), (6, 0, 0), (7, 3, 4096), (8, 0, 0)]
        {
            let code = Command::DEVICE_GET_REGION_INFO;
            let info = world.exchange(&message(3, code, &words(&[32, 0, index, 0, 0, 0, 0, 0])));
            assert_eq!(info, reply(3, code, &words(&[32, flags, index, 0, size, 0, 0, 0])), "{index}");
        }
        for (index, flags, count) in [(0, 7, 1), (1, 0, 0), (2, 3, 8)] {
            let code = Command::DEVICE_GET_IRQ_INFO;
            let info = world.exchange(&message(4, code, &words(&[16, 0, index, 0])));
            assert_eq!(info, reply(4, code, &words(&[16, flags, index, count])), "{index}");
        }
    });
}

#[test]
fn what_is_not_there_is_refused() {
    everywhere(|world| {
        ready(world);
        let cases = [
            (Command::DEVICE_GET_INFO, words(&[15, 0, 0, 0]), Errno::EINVAL),
            (Command::DEVICE_GET_INFO, vec![], Errno::EINVAL),
            (Command::DEVICE_GET_REGION_INFO, words(&[32, 0, 9, 0, 0, 0, 0, 0]), Errno::EINVAL),
            (Command::DEVICE_GET_REGION_INFO, words(&[31, 0, 0, 0, 0, 0, 0, 0]), Errno::EINVAL),
            // Of errors, which QEMU asks for.
            (Command::DEVICE_GET_IRQ_INFO, words(&[16, 0, 3, 0]), Errno::EINVAL),
            (Command::DEVICE_GET_REGION_IO_FDS, words(&[16, 0, 0, 0]), Errno::EOPNOTSUPP),
            (Command::DIRTY_PAGES, vec![0; 16], Errno::EOPNOTSUPP),
            (Command::DEVICE_FEATURE, vec![0; 8], Errno::EOPNOTSUPP),
            (Command::DMA_READ, vec![0; 16], Errno::EINVAL),
            (Command(77), vec![], Errno::ENOSYS),
        ];
        for (command, payload, errno) in cases {
            let answer = world.exchange(&message(5, command, &payload));
            assert_eq!(answer, error(5, command, errno), "{command:?} {payload:?}");
        }
        assert!(world.log.is_empty());
    });
}

#[test]
fn a_slot_config_is_what_the_function_says() {
    let config = world::config();
    assert_eq!((config.express, config.aer, config.sriov), (Some(world::EXPRESS), Some(world::AER), None));
    assert_eq!(config.msix.map(|(at, _)| at), Some(world::MSIX));
    let bars = |bar: u64| [bar, 0, 0, 0, 0, 0];
    let probe = |bars| SlotConfig::probe(|register| world::layout().initial(register), bars);
    assert_eq!(probe(bars(24)), Err(SlotConfigError::Bar(0)));
    assert_eq!(probe(bars(0x1000)), Err(SlotConfigError::Msix));
    assert_eq!(probe([0x4000, 0x4000, 0, 0, 0, 0]), Err(SlotConfigError::Bar(0)));
    assert!(SlotConfig::probe(|_| u32::MAX, [0; 6]).is_err());
    assert!(SlotConfig::probe(|_| 0, [0; 6]).is_ok());
}

#[test]
fn clients_come_and_go() {
    everywhere(|world| {
        for round in 0..3 {
            ready(world);
            world.hang = true;
            world.write(&read(1, 0, 0, 4), &[]);
            world.settle();
            assert_eq!(world.session.in_flight(), 1);
            let late = world.requests.pop().unwrap();
            world.disconnect();
            assert!(world.session.is_idle() && world.session.poll_timeout().is_none());
            world.execute(late);
            world.hang = false;
            world.settle();
            assert_eq!(world.incoming, b"");
            let _ = round;
        }
        let clients = world.session.counters().clients.get();
        assert!((3..=3 + world.lives as u64 - 1).contains(&clients));
    });
}

#[test]
fn a_client_that_has_hung_up_still_gets_its_answers() {
    everywhere(|world| {
        ready(world);
        world.hang = true;
        world.exchange(&[read(2, 0, 0, 4), read(3, 0, 0, 4)[..10].to_vec()].concat());
        world.input(Input::Ended);
        assert!(!world.session.wants_close());
        world.hang = false;
        assert_eq!(world.exchange(b""), read_reply(2, 0, 0, &world.bar[..4]));
        assert!(world.session.is_idle());
    });
}

#[test]
fn short_capabilities_end_where_the_next_begins() {
    let word = |register: u16| match register {
        0 => 0xca05,
        0x100 => 0x1302_0001,
        0x130 => 0x0001_0010,
        0x144 => 0x0007_0001,
        _ => 0,
    };
    let config = SlotConfig { intx: true, ..SlotConfig::probe(word, [0; 6]).unwrap() };
    assert_eq!((config.aer, config.sriov), (Some(0x100), Some(0x130)));
    everywhere_with(&config, |world| {
        ready(world);
        // Nobody but the lender makes virtual functions.
        let vfs = write(2, 7, 0x138, &[0xff; 4]);
        assert_eq!(world.exchange(&vfs), write_reply(2, 7, 0x138, 4));
        assert_eq!(world.exchange(&read(3, 7, 0x144, 4)), read_reply(3, 7, 0x144, &words(&[0x0007_0001])));
        assert!(world.log.is_empty());
        world.exchange(&write(2, 7, 0x12c, &[1; 4]));
        assert!(world.log.is_empty(), "the last of the error registers");
        world.exchange(&write(2, 7, 0x170, &[1; 4]));
        assert!(matches!(world.log[..], [Request::Access(Access::ConfigWrite { register: 0x170, .. })]));
    });
}

/// A slot with as much as there can be.
fn large() -> SlotConfig {
    let (at, msix) = world::config().msix.unwrap();
    let (table_offset, pending_offset) = (0x1_0000, 0x2_0000);
    let location = pcie::capability::msix::MsixLocation {
        vectors: VECTORS as u16,
        table_offset,
        pending_offset,
        ..msix
    };
    let config = SlotConfig { msix: Some((at, location)), ..world::config() };
    SlotConfig { bars: [0x4_0000, 0, 0, 0, 0, 0], ..config }
}

fn set_irqs(id: u16, flags: u32, start: u32, count: u32) -> Vec<u8> {
    message(id, Command::DEVICE_SET_IRQS, &words(&[20, flags, 2, start, count]))
}

#[test]
fn the_whole_of_a_session_is_forgotten_in_one_step() {
    once_with(large(), |world| {
        ready(world);
        for map in 0..MAPS as u64 {
            let payload = memory::map_payload(3, 0, map << 13, 4096);
            world.exchange_with(&message(1, Command::DMA_MAP, &payload), &[map as u32]);
        }
        for start in (0..VECTORS as u32).step_by(16) {
            let descriptors: Vec<u32> = (start..start + 16).map(|vector| 10_000 + vector).collect();
            world.exchange_with(&set_irqs(1, 0x24, start, 16), &descriptors);
            world.input(Input::Interrupt(start as u16));
        }
        assert_eq!(world.open.len(), MAPS + VECTORS);
        world.disconnect();
        assert!(world.open.is_empty());
        let ids: std::collections::BTreeSet<u16> =
            world.maps.iter().filter(|(_, map)| map.is_none()).map(|(id, _)| id.0).collect();
        assert_eq!(ids.len(), MAPS);
        ready(world);
        assert_eq!(world.session.maps.iter().count(), 0);
    });
}

#[test]
fn no_step_outgrows_the_undo_log() {
    once_with(large(), |world| {
        ready(world);
        let rounds = 200;
        for start in (0..VECTORS as u32).step_by(16) {
            let descriptors: Vec<u32> = (start..start + 16).collect();
            world.exchange_with(&set_irqs(1, 0x24, start, 16), &descriptors);
        }
        for id in 0..rounds {
            let all = VECTORS as u32;
            world.write(
                &[set_irqs(id, 0x09, 0, all), set_irqs(id, 0x11, 0, all), set_irqs(id, 0x21, 0, all)]
                    .concat(),
                &[],
            );
        }
        let answers = world.exchange(&set_irqs(9, 0x21, 0, 0));
        assert_eq!(answers.len(), (3 * usize::from(rounds) + 1) * 16);
        // Reads of everything.
        for id in 0..rounds {
            world.write(&[read(id, 7, 0, 4096), read(id, 0, 0x1_0000, 4096)].concat(), &[]);
        }
        assert_eq!(world.exchange(b"").len(), usize::from(rounds) * 2 * (32 + 4096));
    });
}

#[test]
fn what_the_agent_hands_in_too_late_is_given_back() {
    everywhere(|world| {
        ready(world);
        world.write(&message(3, Command::DMA_MAP, &memory::map_payload(3, 0, 0, 4096)), &[1]);
        while world.mails == 0 {
            world.move_bytes();
            world.inputs.retain(|input| matches!(input, Input::Received));
            (0..world.inputs.len()).for_each(|_| world.step());
        }
        world.inputs.push_back(Input::Closed);
        world.inputs.push_back(Input::Taken);
        world.settle();
        assert!(world.open.is_empty() && world.session.is_idle());
        assert_eq!(world.session.taken(), 1);
    });
}
