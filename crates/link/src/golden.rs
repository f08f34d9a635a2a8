//! A frame of each kind, with each record and each kind of TLP, as `golden.txt` has them: in hexadecimal, with the
//! fields that a capture tool shows. That the tool does so is a test of the campaign (`w8_capture`).
//!
//! Where the format is changed on purpose, this test prints the new bytes.

use core::time::Duration;

use base::Instant;
use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LoanGeneration, NodeId, RailId, StreamId,
};
use fabric::switch::{PortSpec, Switch, Table, TableSpec};
use pcie::{
    Attributes, Bdf, Completion, CompletionStatus, ConfigKind, ConfigRequest, Header as TlpHeader,
    MemoryRequest, Message, MessageCode, MessageRouting, Tag,
};

use crate::cipher::Cipher;
use crate::frame::{HEADER_LEN, Header, Kind, OVERHEAD, Prefix, Route, TAG_LEN};
use crate::information::{self, Announcer, Item, Role};
use crate::name::Name;
use crate::notice::{GroupKey, Notice, NoticeCause};
use crate::pair::{Control, FunctionId, OpenRefusal, What, Wish};
use crate::path::AckRanges;
use crate::proof::PROOF_LEN;
use crate::record::{ADDRESS_BYTES, Information, Record, Status, Writer};
use crate::seal::{Direction, FrameKeys, KEY_LEN, Nonce, Seal};

const SECRET: [u8; KEY_LEN] = [7; KEY_LEN];
const GOLDEN: &str = include_str!("golden.txt");

fn header(kind: Kind, stream: u32) -> Header {
    Header {
        kind,
        key_id: 2,
        route: Route { hops_left: 32, congestion: 1 },
        fabric: 0,
        destination: Prefix { rail: RailId::ALL[1], domain: DomainId(0x1_2345) },
        source: Prefix { rail: RailId::ALL[3], domain: DomainId(0x3_ffff) },
        group: Group(4094),
        channel: ChannelIndex(0x0102_0304),
        stream: StreamId(stream),
        loan_generation: LoanGeneration(11),
        incarnation: Incarnation(12),
        card_generation: CardGeneration(13),
        packet_number: 1 << 40,
    }
}

/// A frame with a body of its own, and what stands at its end.
fn sealed(header: &Header, seal: &Seal, write: impl FnOnce(&mut [u8]) -> usize) -> Vec<u8> {
    let mut frame = vec![0; 2000];
    let len = OVERHEAD + write(&mut frame[HEADER_LEN..]);
    frame.truncate(len);
    header.write(&mut frame);
    seal.seal(&mut frame, Nonce::new(header.path().number(), header.packet_number));
    frame
}

fn seal(cipher: Cipher) -> Seal {
    FrameKeys::new(&SECRET, cipher, Direction::ToCallee, true).seal(CardGeneration(13))
}

fn status() -> Status {
    let number = |number: u64| number.into();
    Status {
        committed: number(1),
        posted_headers: number(2),
        posted_data: number(3),
        non_posted_headers: number(1 << 50),
    }
}

fn records() -> Vec<Record<'static>> {
    let mut ranges = AckRanges::default();
    ranges.push(8, 9).unwrap();
    ranges.push(1, 5).unwrap();
    let information =
        Information { bytes: (1 << 34).into(), kind: 1, flags: 1, name: Name::new("disk").to_bytes() };
    let wish = Wish {
        function: FunctionId(7),
        generation: LoanGeneration(3),
        domain: DomainId(0x2_0001),
        slot: 0x1234,
        host: Bdf(0x0107),
    };
    let in_use = OpenRefusal::InUse {
        by: Name::new("somebody"),
        node: NodeId::numbered(9),
        since: Some(Duration::from_secs(60)),
        hold: Some(Duration::from_secs(7)),
    };
    let of_streams = [
        What::Open { wish, proof: [9; PROOF_LEN] },
        What::Opened { tenancy: 1 << 40, requester: Bdf(0x4321), base: 5 << 34 },
        What::Refused(in_use),
        What::Close,
        What::Closed,
        What::Inform(information),
        What::Informed,
    ];
    let of_streams = of_streams.map(|what| Record::Control(Control { stream: StreamId(6), what }));
    [
        Record::Ack { path: 4, generation: 3, delay_us: 250, ranges },
        Record::Ping,
        Record::Hello { rails: 5, edition: 2 },
        Record::HelloHeard { generation: 9, edition: 1 },
        Record::Challenge(0x0102_0304_0506_0708),
        Record::ChallengeHeard(0x1112_1314_1516_1718),
        Record::Renew,
        Record::StreamStatus { stream: StreamId(8), status: status() },
        Record::Twin([0x5a; ADDRESS_BYTES]),
        Record::Notice(Notice { node: NodeId([0x6b; _]), rail: RailId::ALL[2], cause: NoticeCause::Carrier }),
    ]
    .into_iter()
    .chain(of_streams)
    .collect()
}

fn tlps() -> Vec<TlpHeader> {
    let (requester, completer, tag) = (Bdf(0x0104), Bdf(0x0200), Tag::new(0x3a5).unwrap());
    let memory = |address, bytes| MemoryRequest::new(requester, tag, address, bytes).unwrap();
    let config = ConfigRequest {
        requester,
        tag,
        target: Bdf(0x0310),
        register: 0x40,
        first_be: 0x3,
        kind: ConfigKind::Type0,
        poisoned: false,
    };
    let (far, attributes) = (memory(0x8000_0000_0000_0008, 8), Attributes::from_bits(5).unwrap());
    let status = CompletionStatus::CompleterAbort;
    let power = Message::new(requester, MessageCode::SET_SLOT_POWER_LIMIT, MessageRouting::Local);
    vec![
        TlpHeader::MemoryRead(memory(0x1000, 4096)),
        TlpHeader::MemoryRead(memory(0x4000_0001_0000_2001, 6)),
        TlpHeader::MemoryWrite(memory(0xfee0_0000, 4)),
        TlpHeader::MemoryWrite(MemoryRequest { poisoned: true, traffic_class: 6, attributes, ..far }),
        TlpHeader::ConfigRead(config),
        TlpHeader::ConfigWrite(ConfigRequest { kind: ConfigKind::Type1, ..config }),
        TlpHeader::Completion(Completion::without_data(requester, tag, completer, status)),
        TlpHeader::Completion(Completion::config_data(requester, tag, completer)),
        TlpHeader::Message(Message::new(requester, MessageCode::ERR_FATAL, MessageRouting::ToRootComplex)),
        TlpHeader::Message(Message { length_dw: 1, ..power }),
    ]
}

/// A body of stream 5 with these TLPs.
fn write_tlps(buffer: &mut [u8]) -> usize {
    let mut writer = Writer::new(buffer, status());
    let tlps = tlps();
    writer.stream(40, |room| {
        let mut len = 0;
        for tlp in &tlps {
            let (encoded, payload) = (tlp.encode(), tlp.payload_len());
            room[len..][..tlp.header_len()].copy_from_slice(encoded.as_bytes());
            room[len + tlp.header_len()..][..payload].fill(0xd7);
            len += tlp.total_len();
        }
        (tlps.len() as u16, len)
    });
    writer.len()
}

fn write_records(buffer: &mut [u8]) -> usize {
    let mut writer = Writer::of_control(buffer);
    for record in records() {
        assert!(writer.record(&record));
    }
    writer.len()
}

/// A message of a handshake, as far as a capture tool can see into it: `body` is what follows the header.
fn handshake(kind: Kind, body: &[u8]) -> Vec<u8> {
    let plain = Header { key_id: 0, card_generation: CardGeneration(0), ..header(kind, 0) };
    let number = if kind == Kind::Initiation { 0 } else { 3 };
    let header = Header { loan_generation: LoanGeneration(0), packet_number: number, ..plain };
    let mut frame = vec![0; HEADER_LEN];
    header.write(&mut frame);
    frame.extend_from_slice(body);
    assert_eq!(Header::parse(&frame), Ok(header));
    frame
}

fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let marks = [[0xa1; TAG_LEN], [0xa2; TAG_LEN]].concat();
    let control = Header { loan_generation: LoanGeneration(0), ..header(Kind::Shm, 0) };
    vec![
        ("initiation", handshake(Kind::Initiation, &[&[0x11; 40][..], &marks].concat())),
        ("response", handshake(Kind::Response, &[&[0x22; 40][..], &marks[..TAG_LEN]].concat())),
        ("cookie", handshake(Kind::Cookie, &[&[0x33; 32][..], &[0x44; 16], &marks[..TAG_LEN]].concat())),
        (
            "sealed",
            sealed(&header(Kind::Sealed, 5), &seal(Cipher::Aegis128X2), |body| {
                body[..3].copy_from_slice(b"abc");
                3
            }),
        ),
        ("records", sealed(&control, &Seal::shm(&SECRET), write_records)),
        ("tlps", sealed(&header(Kind::Sealed, 5), &seal(Cipher::Crc32c), write_tlps)),
        ("information", information::write(&information::tests::announcer(), &information::tests::items()).0),
        ("notice", notice_to_all()),
        ("switch", information_of_a_switch()),
        ("hello", hello_of_a_switch()),
    ]
}

fn notice_to_all() -> Vec<u8> {
    let (announcer, key) = (information::tests::announcer(), GroupKey::new(&[7; GroupKey::BYTES]));
    let notice = Notice { node: NodeId([0x6b; _]), rail: RailId::ALL[2], cause: NoticeCause::Carrier };
    let member = Item::Member(key.mark(announcer.key.id()));
    information::write(&announcer, &[member, Item::Notice(notice, key.proof(&announcer, &notice))]).0
}

fn information_of_a_switch() -> Vec<u8> {
    let announcer = Announcer { role: Role::Switch, ..information::tests::announcer() };
    information::write(&announcer, &[Item::Port([0x6c; _]), Item::Port([0x6d; _])]).0
}

/// What a switch says by two links that lead to the same.
fn hello_of_a_switch() -> Vec<u8> {
    let port = |name: &str, is_default, standby_for| PortSpec {
        name: name.to_owned(),
        ranges: Vec::new(),
        is_default,
        standby_for,
    };
    let ports = vec![port("link", true, None), port("spare", false, Some(0))];
    let table = Table::new(TableSpec { ports, ..TableSpec::default() }).expect("a pair can be");
    let mut switch = Switch::new(table);
    switch.hellos(Instant::ZERO).next().expect("it says hello by both").1.to_vec()
}

/// As they stand in the file, before the fields.
fn text_of(name: &str, frame: &[u8]) -> String {
    frame.chunks(56).fold(format!("frame {name}\n"), |text, bytes| {
        let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        text + "    " + &hex + "\n"
    })
}

#[test]
fn frames_are_as_the_file_has_them() {
    let is_frame = |line: &&str| line.starts_with("frame ") || line.starts_with("    ");
    let known: String = GOLDEN.lines().filter(is_frame).flat_map(|line| [line, "\n"]).collect();
    let frames: String = frames().iter().map(|(name, frame)| text_of(name, frame)).collect();
    assert_eq!(known, frames, "the frames are now:\n{frames}end\n");
}
