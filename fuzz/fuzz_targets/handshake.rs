//! Messages of the handshake: any bytes, and any content from someone who knows the key.
#![no_main]

use base::Instant;
use base::ids::{
    CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LoanGeneration, RailId, StreamId,
};
use base::ledger::Arena;
use core::time::Duration;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use link::frame::{HEADER_LEN, Header, Kind, MAX_FRAME, OVERHEAD, Prefix, Route, TAG_LEN, VERSION};
use link::{NodeKey, PROPOSAL_LEN, REKEY_FRAMES, mark};
use rigs::channels::{End, Role, identity};

/// The domains of the two ends, as their configuration has them; zero in a step stands for these.
const BORROWER: u32 = 1;
const LENDER: u32 = 2;

#[derive(Arbitrary, Debug)]
enum Step {
    /// To the lender, under the key: from a domain that the header names, and one that the message does.
    Proposal {
        seed: u8,
        bytes: Vec<u8>,
        node: u8,
        incarnation: u8,
        attempt: u8,
        source: u8,
        said: u8,
        destination: u8,
    },
    /// To the borrower, in answer to its last attempt, and bound to what the header of that says.
    Answer {
        verdict: u8,
        key_id: u8,
        bytes: Vec<u8>,
        honest: bool,
        source: u8,
        said: u8,
    },
    Raw {
        lender: bool,
        kind: bool,
        bytes: Vec<u8>,
    },
    Wait {
        millis: u16,
    },
}

/// What the header of a message says that is not the same in all.
#[derive(Clone, Copy)]
struct Egress {
    source: u32,
    destination: u32,
    channel: u32,
    incarnation: u8,
    number: u64,
}

impl Egress {
    /// Of a first message to whoever hears it, or of an answer to none.
    fn of(kind: Kind) -> Self {
        let (source, destination, channel) = match kind {
            Kind::Initiation => (BORROWER, 0, 0),
            _ => (LENDER, BORROWER, BORROWER + 2),
        };
        Self { source, destination, channel, incarnation: 1, number: 0 }
    }
}

fn frame(kind: Kind, way: Egress, body: &[u8]) -> Vec<u8> {
    // A first message has a second mark, which is made with a cookie: of whom nobody has given one, zeroes.
    let end = OVERHEAD + body.len();
    let mut frame = vec![0; if kind == Kind::Initiation { end + TAG_LEN } else { end }];
    let prefix = |domain| Prefix { rail: RailId::default(), domain: DomainId(domain) };
    let header = Header {
        kind,
        key_id: 0,
        route: Route::START,
        fabric: 0,
        destination: prefix(way.destination),
        source: prefix(way.source),
        group: Group::DEFAULT,
        channel: ChannelIndex(way.channel),
        stream: StreamId(0),
        loan_generation: LoanGeneration(0),
        incarnation: Incarnation(way.incarnation.into()),
        card_generation: CardGeneration(0),
        packet_number: way.number,
    };
    header.write(&mut frame);
    frame[HEADER_LEN..HEADER_LEN + body.len()].copy_from_slice(body);
    let receiver = if kind == Kind::Initiation { Role::Lender } else { Role::Borrower };
    mark(&identity(receiver).public(), &mut frame[..end]);
    frame
}

/// A domain of a step, or the honest one.
fn domain(of_step: u8, honest: u32) -> u32 {
    if of_step == 0 { honest } else { of_step.into() }
}

/// What both ends bind a first message between these domains to.
fn prologue(source: u32, destination: u32) -> Vec<u8> {
    // Version, group, fabric, source, destination.
    let ids = [0, source, destination].map(u32::to_le_bytes);
    [&[VERSION, 1, 0][..], ids.as_flattened()].concat()
}

fn noise<'a>(prologue: &'a [u8], identity: &'a NodeKey) -> snow::Builder<'a> {
    let pattern = "Noise_IK_25519_AESGCM_SHA256".parse().expect("the pattern of the protocol");
    let builder = snow::Builder::new(pattern).prologue(prologue).expect("one prologue");
    builder.local_private_key(identity.reveal()).expect("one key")
}

/// Fields that are well-formed, and whatever follows.
fn payload(fields: &[(u8, &[u8])], more: &[u8]) -> Vec<u8> {
    let fields = fields.iter().flat_map(|(tag, value)| [&[*tag, value.len() as u8], *value].concat());
    let mut message: Vec<u8> = fields.chain(more.iter().copied().take(1000)).collect();
    // A shorter first message is not opened.
    while let left @ 1.. = PROPOSAL_LEN.saturating_sub(message.len()) {
        let padding = left.saturating_sub(2).min(255);
        message.extend([0, padding as u8]);
        message.resize(message.len() + padding, 0);
    }
    message
}

fn who(incarnation: u8, life: u8, attempt: &[u8; 8], place: [u8; 2]) -> [u8; 40] {
    let mut who = [0; 40];
    (who[0], who[8], who[32], who[36]) = (incarnation, life, place[0], place[1]);
    who[24..32].copy_from_slice(attempt);
    who
}

struct World<'m> {
    end: End<'m>,
    now: Instant,
    buffer: Vec<u8>,
    /// The last first message that was sent.
    initiation: Option<Vec<u8>>,
}

impl<'m> World<'m> {
    fn new(arena: &'m Arena, role: Role) -> Self {
        let (now, buffer) = (rigs::START, vec![0; MAX_FRAME]);
        Self { end: End::new(arena, role, 1, REKEY_FRAMES), now, buffer, initiation: None }
    }

    fn take(&mut self, kind: Kind, way: Egress, body: &[u8]) {
        self.end.handle_frame(self.now, &mut frame(kind, way, body), &[1]);
        self.drain();
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.end.handle_timeout(self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(frame) = self.end.poll_transmit(self.now, &mut self.buffer) {
            if Header::parse(&frame).is_ok_and(|header| header.kind == Kind::Initiation) {
                self.initiation = Some(frame);
            }
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let arenas = [Arena::default(), Arena::default()];
    let mut borrower = World::new(&arenas[0], Role::Borrower);
    let mut lender = World::new(&arenas[1], Role::Lender);
    for step in steps.iter().take(24) {
        match step {
            Step::Proposal { seed, bytes, node, incarnation, attempt, source, said, destination } => {
                let (life, attempt) = (1 + (seed >> 4), u64::from(*attempt).to_le_bytes());
                let (source, said) = (domain(*source, BORROWER), domain(*said, BORROWER) as u8);
                let who = who(*incarnation, life, &attempt, [said, 3]);
                let fields: [(u8, &[u8]); 5] = [
                    (0x81, &[1, 1]),
                    (0x82, &who),
                    (5, &[0, 16, 40, 35, 0, 0]),
                    (6, &[12]),
                    (10, &[8, 0, 0, 0]),
                ];
                let message = if *seed == 0 { payload(&[], bytes) } else { payload(&fields, bytes) };
                let (destination, incarnation) = (u32::from(*destination), *incarnation);
                let prologue = prologue(source, destination);
                let (caller, lenders) =
                    (NodeKey::numbered(1 + u64::from(*node)), identity(Role::Lender).public());
                let builder = noise(&prologue, &caller).remote_public_key(&lenders.0).expect("one key");
                let mut state = builder.build_initiator().expect("a state of the pattern");
                let mut sealed = [0; 2048];
                let len = state.write_message(&message, &mut sealed).expect("a message fits");
                let way = Egress { source, destination, incarnation, ..Egress::of(Kind::Initiation) };
                lender.take(Kind::Initiation, way, &sealed[..len]);
            }
            Step::Answer { verdict, key_id, bytes, honest, source, said } => {
                let Some(initiation) = &borrower.initiation else { continue };
                let called = Header::parse(initiation).expect("what leaves is a frame");
                let prologue = prologue(called.source.domain.0, called.destination.domain.0);
                let lenders = identity(Role::Lender);
                let mut state = noise(&prologue, &lenders).build_responder().expect("a state of the pattern");
                let mut proposal = [0; 2048];
                let message = &initiation[HEADER_LEN..initiation.len() - 2 * TAG_LEN];
                state.read_message(message, &mut proposal).expect("it is bound to its header");
                // Behind the versions: the attempt is to be the borrower's.
                let called_in = proposal[6 + 24..6 + 32].try_into().expect("eight bytes");
                let attempt = if *honest { called_in } else { [*key_id; 8] };
                let who = who(1, 2, &attempt, [domain(*said, LENDER) as u8, 4]);
                let agreed = [*verdict % 9, *key_id, 2 + verdict % 2];
                let fields: [(u8, &[u8]); 6] = [
                    (0x81, &[1, 1]),
                    (0x82, &who),
                    (0x87, &agreed),
                    (5, &[0, 16, 40, 35, 0, 0]),
                    (10, &[8, 0, 0, 0]),
                    (0x89, &[0; 8]),
                ];
                let message = payload(&fields, bytes);
                let mut sealed = [0; 2048];
                let len = state.write_message(&message, &mut sealed).expect("a message fits");
                let (source, number) = (domain(*source, LENDER), u64::from_le_bytes(called_in));
                let way = Egress { source, number, ..Egress::of(Kind::Response) };
                borrower.take(Kind::Response, way, &sealed[..len]);
            }
            Step::Raw { lender: to_lender, kind, bytes } => {
                let world = if *to_lender { &mut lender } else { &mut borrower };
                let kind = if *kind { Kind::Initiation } else { Kind::Response };
                world.take(kind, Egress::of(kind), &bytes[..bytes.len().min(4096)]);
            }
            Step::Wait { millis } => {
                let time = Duration::from_millis((*millis).into());
                borrower.wait(time);
                lender.wait(time);
            }
        }
    }
});
