//! A card under test that has met a peer, whose frames are then made by the fuzzer.

use core::time::Duration;

use base::Instant;
use base::RuleSet;
use base::ids::{CardGeneration, DomainId, Group, Incarnation, LifeId, RailId, StreamId};
use base::ledger::Arena;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use link::frame::{HEADER_LEN, Header, Kind, MAX_FRAME, Prefix, TAG_LEN};
use node::{
    Address, BorrowEdge, Card, CardConfig, DriveConfig, Egress, FunctionId, LendConfig, LoanConfig, LoanRole,
    MediaError, MediaId, Name, NodeKey, RailConfig, Route, Secret, Tenancy, Title,
};

use crate::frames::{Body, Which, behind_key, seal};
use crate::tlps::Context;

const BORROWER: Address = Address([1; 28]);
const LENDER: Address = Address([2; 28]);
/// The place of the other node among the peers of each.
const PEER: usize = 0;
const SECRET: [u8; 32] = [5; 32];
const FUNCTION: FunctionId = FunctionId(7);

/// Which end of the loan is under test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Borrower = 0,
    Lender = 1,
}

#[derive(Arbitrary, Debug)]
pub enum Step {
    /// A frame of the peer's present card, or of another generation.
    Frame { rail: u8, skip: u8, generation: Option<u8>, stream: Option<Which>, body: Body },
    /// The same through memory that the two share.
    Private { skip: u8, generation: Option<u8>, stream: Option<Which>, body: Body },
    /// The memory is other memory from now on, or there is none.
    Share { is_there: bool },
    /// Any bytes in it.
    PrivateBytes(Vec<u8>),
    /// Any bytes.
    Bytes(Vec<u8>),
    /// Time passes.
    Wait { micros: u32 },
    /// The oldest work of the medium has ended.
    Media { failed: bool },
    /// The borrower is asked to give the drive back.
    ShutDown,
}

/// A card, and what its peer knows of it.
pub struct World<'m> {
    card: Card<'m>,
    end: End,
    now: Instant,
    header: Header,
    /// Of its frames through memory, with what stands in place of their tag.
    private: (Header, [u8; TAG_LEN]),
    /// Of the checksum, behind the peer's key.
    state: u32,
    media: std::collections::VecDeque<MediaId>,
    buffer: Vec<u8>,
    packets: u64,
}

fn identity(end: End) -> NodeKey {
    NodeKey::numbered(end as u64 + 1)
}

pub(crate) fn config(end: End) -> CardConfig {
    let number = end as u32 + 1;
    let role = match end {
        End::Lender => LoanRole::Lend(LendConfig::of(0)),
        End::Borrower => LoanRole::Borrow {
            lender: identity(End::Lender).lends_in(DomainId(End::Lender as u32 + 1)),
            routes: RailId::ALL[..2]
                .iter()
                .map(|&rail| Route { rail, peer: LENDER, max_frame: 9000 })
                .collect(),
            io_timeout: Duration::from_secs(30),
            edge: BorrowEdge::Drive,
        },
    };
    let drive = DriveConfig::new(1 << 12, 512, 0x0200_00ff_fe00_0001);
    let drives = if matches!(role, LoanRole::Lend { .. }) { vec![Some(drive)] } else { Vec::new() };
    let loan = LoanConfig {
        title: Title::Line(Secret(SECRET)),
        function: FUNCTION,
        group: Group::DEFAULT,
        tenancy: Tenancy::default().taken_by(
            identity(End::Borrower).id(),
            LifeId([End::Borrower as u8 + 1; 16]),
            Name::new("node"),
            LifeId::default(),
        ),
        life: 0,
        least_incarnation: Incarnation(0),
        role,
    };
    CardConfig {
        identity: identity(end),
        name: Name::new("node"),
        domain: DomainId(number),
        incarnation: Incarnation(1),
        life: LifeId([number as u8; 16]),
        restored_as: None,
        generation: CardGeneration(1),
        seed: Secret([number as u8; 32]),
        protection: node::Protection::Insecure,
        rail_mode: link::RailMode::default(),
        lost_carriers: 0,
        rails: RailConfig::first(2, 9000),
        drives,
        loans: vec![loan],
        holders: Vec::new(),
        rekey_frames: node::REKEY_FRAMES,
        rules: RuleSet::ALL,
    }
}

impl<'m> World<'m> {
    /// Two cards meet until the drive is in use; then the one that is not under test is silent.
    pub fn new(arena: &'m Arena, end: End) -> Self {
        let mut now = crate::START;
        let mut cards = [End::Borrower, End::Lender]
            .map(|end| Card::new(config(end).new_memory(arena), None, config(end), now))
            .map(|card| card.expect("the memory was made for it"));
        let (mut buffer, mut header, mut private, mut packets) = (vec![0; MAX_FRAME], None, None, 0);
        for _ in 0..400 {
            now += Duration::from_micros(300);
            cards.iter_mut().for_each(|card| card.handle_timeout(now));
            for from in 0..2 {
                while let Some(out) = cards[from].poll_transmit(now, &mut buffer) {
                    let frame = &mut buffer[..out.len];
                    if from != end as usize {
                        let sealed = Header::parse(frame).ok().filter(|header| header.kind == Kind::Sealed);
                        header = sealed.map(|header| (header, frame.to_vec())).or(header);
                    } else {
                        packets += 1;
                    }
                    let address = if from == 0 { BORROWER } else { LENDER };
                    match out.egress {
                        Egress::Rail(rail) => cards[1 - from].handle_frame(now, rail, address, frame),
                        Egress::Shm(_) => {
                            if from != end as usize {
                                let name = *frame.last_chunk::<TAG_LEN>().expect("a frame has a tag");
                                private = Header::parse(frame).ok().map(|header| (header, name));
                            }
                            cards[1 - from].handle_shm_frame(now, PEER, frame);
                        }
                    }
                }
            }
            let ready = cards[0].borrowed(0).is_some_and(|drive| drive.driver.is_ready());
            if ready && header.is_some() && private.is_some() {
                break;
            }
            if ready && cards[0].channel(PEER).is_some_and(|channel| channel.shm_status(now).is_none()) {
                cards.iter_mut().for_each(|card| card.set_shm(now, PEER, true));
            }
        }
        assert!(cards[0].borrowed(0).is_some_and(|drive| drive.driver.is_ready()), "two cards meet");
        let [borrower, lender] = cards;
        let card = if end == End::Borrower { borrower } else { lender };
        let (header, frame) = header.expect("the peer has sent frames");
        let private = private.expect("the peer has sent frames through memory");
        let state = behind_key(&frame);
        let mut world =
            Self { card, end, now, header, private, state, media: Default::default(), buffer, packets };
        let before = world.received();
        world.step(&Step::Frame {
            rail: 0,
            skip: 100,
            generation: None,
            stream: None,
            body: Body::Control { records: Vec::new() },
        });
        assert_eq!(world.received(), before + 1, "the frames made here are authentic");
        world.step(&Step::Private {
            skip: 100,
            generation: None,
            stream: None,
            body: Body::Control { records: Vec::new() },
        });
        assert_eq!(world.received(), before + 2, "those through memory too");
        world
    }

    fn received(&self) -> u64 {
        self.card.channel(PEER).map_or(0, |channel| channel.stats().received_frames.get())
    }

    /// Does one step, and everything that follows from it.
    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Frame { rail, skip, generation, stream, body } => {
                let context = self.context();
                let body = body.encode(&context);
                if body.len() > 8900 {
                    return;
                }
                self.header.packet_number += 1 + u64::from(*skip);
                let source = Prefix { rail: RailId::ALL[usize::from(rail % 2)], ..self.header.source };
                let stream = StreamId(stream.map_or(0, |stream| stream.of(&context)));
                let mut header = Header { source, stream, ..self.header };
                if let Some(generation) = generation {
                    header.card_generation = CardGeneration((*generation).into());
                }
                let from = if self.end == End::Lender { BORROWER } else { LENDER };
                self.card.handle_frame(
                    self.now,
                    RailId::ALL[usize::from(rail % 2)],
                    from,
                    &mut seal(header, &body, self.state),
                );
            }
            Step::Private { skip, generation, stream, body } => {
                let context = self.context();
                let body = body.encode(&context);
                if body.len() > 60_000 {
                    return;
                }
                let (header, name) = &mut self.private;
                header.packet_number += 1 + u64::from(*skip);
                let stream = StreamId(stream.map_or(0, |stream| stream.of(&context)));
                let mut sent = Header { stream, ..*header };
                if let Some(generation) = generation {
                    sent.card_generation = CardGeneration((*generation).into());
                }
                let mut frame = vec![0; HEADER_LEN];
                sent.write(&mut frame);
                frame.extend([&body[..], name].concat());
                self.card.handle_shm_frame(self.now, PEER, &mut frame);
            }
            Step::Share { is_there } => self.card.set_shm(self.now, PEER, *is_there),
            Step::PrivateBytes(bytes) => self.card.handle_shm_frame(self.now, PEER, &mut bytes.clone()),
            Step::Bytes(bytes) => {
                self.card.handle_frame(self.now, RailId::ALL[0], BORROWER, &mut bytes.clone())
            }
            Step::Wait { micros } => {
                self.now += Duration::from_micros(u64::from(*micros) % 10_000_000);
                self.card.handle_timeout(self.now);
            }
            Step::Media { failed } => {
                if let Some(id) = self.media.pop_front() {
                    let result = if *failed { Err(MediaError::Io) } else { Ok(()) };
                    self.card.handle_media(self.now, 0, id, result);
                }
            }
            Step::ShutDown => self.card.shut_down(self.now),
        }
        self.drain();
    }

    fn drain(&mut self) {
        assert_eq!(self.card.uncommitted(), 0, "a step ends with its commit");
        for _ in 0..64 {
            if self.card.poll_timeout().is_none_or(|at| at > self.now) {
                break;
            }
            self.card.handle_timeout(self.now);
        }
        while let Some(work) = self.card.poll_media() {
            let bytes: usize = work.spans().map(|span| span.len()).sum();
            assert!(bytes == 0 || bytes == work.len as usize, "work has memory for all of its bytes");
            assert!(work.offset + u64::from(work.len) <= 512 << 12, "work stays inside of the medium");
            self.media.push_back(work.id);
        }
        while self.card.poll_transmit(self.now, &mut self.buffer).is_some() {
            self.packets += 1;
        }
        while self.card.poll_event().is_some() {}
    }

    fn context(&self) -> Context {
        let (channel, flow) = (self.card.channel(PEER), self.card.stream(0));
        let sender = &flow.port.sender;
        let headers = sender.headers().filter_map(|header| pcie::Header::decode(header.as_bytes()).ok());
        let lender = self.end == End::Lender;
        // Domain and rail are in the upper bits; registers and memory buffer, or queues, interrupts and data.
        let domain = u64::from(self.end as u32 + 1) << 44;
        let offsets: &[u64] = if lender {
            &[0, 0x1000, 0x2000, 4 << 31]
        } else {
            &[0x1000_0000, 0x1000_2000, 0x2000_0000, 0x4000_0000]
        };
        Context {
            expected: flow.receiver().expected(),
            numbered: sender.next(),
            packets: self.packets / 2,
            requester: node::requester_of(0),
            bases: offsets.iter().map(|offset| domain | offset).collect(),
            requests: headers.filter(|header| header.class() == pcie::FlowClass::NonPosted).collect(),
            stream: self.card.stream_id(0).map_or(0, |stream| stream.0),
            function: FUNCTION.0,
            secret: SECRET,
            handshake: channel.map(|channel| channel.handshake()).unwrap_or_default(),
        }
    }
}
