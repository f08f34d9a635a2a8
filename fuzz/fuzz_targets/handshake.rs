//! Messages of the handshake: any bytes, and any content from someone who knows the key.
#![no_main]

use base::ids::{CardGeneration, ChannelIndex, DomainId, Group, Incarnation, LoanGeneration, StreamId};
use base::ledger::Arena;
use base::{Instant, RuleSet};
use core::time::Duration;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use link::frame::{HEADER_LEN, Header, Kind, MAX_FRAME, OVERHEAD, Prefix, Route, TAG_LEN, VERSION};
use link::{Channel, Event, Port, Role, Sink};
use pcie::TlpView;
use rigs::channels::{KEY, Root, config};

/// The domains of the two ends, as their configuration has them.
const BORROWER: u32 = 1;
const LENDER: u32 = 2;

#[derive(Arbitrary, Debug)]
enum Step {
    /// To the lender, under the key.
    Proposal {
        seed: u8,
        bytes: Vec<u8>,
        node: u8,
        incarnation: u8,
        attempt: u8,
    },
    /// To the borrower, in answer to its last attempt.
    Answer {
        verdict: u8,
        key_id: u8,
        bytes: Vec<u8>,
        honest: bool,
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

struct Deaf;

impl<'m> Sink<'m> for Deaf {
    fn accept(&mut self, _: Instant, _: &mut Port<'m>, _: &TlpView<'_>) {}
}

fn frame(kind: Kind, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; OVERHEAD + body.len()];
    let (source, destination, channel) = match kind {
        Kind::Initiation => (BORROWER, 0, 0),
        _ => (LENDER, BORROWER, BORROWER + 2),
    };
    let prefix = |domain| Prefix { rail: 0, domain: DomainId(domain) };
    let header = Header {
        kind,
        key_id: 0,
        route: Route::START,
        fabric: 0,
        destination: prefix(destination),
        source: prefix(source),
        group: Group::DEFAULT,
        channel: ChannelIndex(channel),
        stream: StreamId(7),
        loan_generation: LoanGeneration(0),
        incarnation: Incarnation(1),
        card_generation: CardGeneration(1),
        packet_number: 0,
    };
    header.write(&mut frame);
    frame[HEADER_LEN..HEADER_LEN + body.len()].copy_from_slice(body);
    frame
}

/// What both ends bind a first message to.
fn noise() -> snow::Builder<'static> {
    let pattern = "Noise_NNpsk0_25519_AESGCM_SHA256".parse().expect("the pattern of the protocol");
    let builder = snow::Builder::new(pattern).psk(0, &KEY).expect("a key of 32 bytes");
    const PROLOGUE: [u8; 27] = {
        let mut prologue = [0; 27];
        // Version, group, fabric, source, destination, stream, generation.
        (prologue[0], prologue[1], prologue[7], prologue[15]) = (VERSION, 1, BORROWER as u8, 7);
        prologue
    };
    builder.prologue(&PROLOGUE).expect("one prologue")
}

/// Fields that are well-formed, and whatever follows.
fn payload(fields: &[(u8, &[u8])], more: &[u8]) -> Vec<u8> {
    let fields = fields.iter().flat_map(|(tag, value)| [&[*tag, value.len() as u8], *value].concat());
    fields.chain(more.iter().copied().take(120)).collect()
}

fn who(node: u8, incarnation: u8, life: u8, attempt: &[u8; 8], place: [u8; 2]) -> [u8; 48] {
    let mut who = [0; 48];
    (who[0], who[8], who[16], who[40], who[44]) = (node, incarnation, life, place[0], place[1]);
    who[32..40].copy_from_slice(attempt);
    who
}

struct World<'m> {
    journal: base::ledger::Journal<'m>,
    channel: Channel<'m>,
    now: Instant,
    buffer: Vec<u8>,
    /// The last first message that was sent.
    initiation: Option<Vec<u8>>,
}

impl<'m> World<'m> {
    fn new(arena: &'m Arena, role: Role) -> Self {
        let ledger = arena.zeroed::<Root>().ledger::<Root>(None, RuleSet::ALL);
        let pages = base::ledger::Pages::new(&ledger.root.pages, ledger.journal);
        let channel = Channel::new(&ledger.root.channel, pages, ledger.journal, config(role), rigs::START);
        let (now, buffer) = (rigs::START, vec![0; MAX_FRAME]);
        Self { journal: ledger.journal, channel, now, buffer, initiation: None }
    }

    fn take(&mut self, kind: Kind, body: &[u8]) {
        self.channel.handle_frame(self.now, &mut frame(kind, body), &mut Deaf);
        self.drain();
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.channel.handle_timeout(self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(event) = self.channel.poll_event() {
            if event == Event::Reset {
                self.channel.open();
            }
        }
        self.journal.commit();
        while let Some(out) = self.channel.poll_transmit(self.now, &mut self.buffer) {
            if Header::parse(&self.buffer[..out.len]).is_ok_and(|header| header.kind == Kind::Initiation) {
                self.initiation = Some(self.buffer[HEADER_LEN..out.len - TAG_LEN].to_vec());
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
            Step::Proposal { seed, bytes, node, incarnation, attempt } => {
                let life = 1 + (seed >> 4);
                let who = who(*node, *incarnation, life, &u64::from(*attempt).to_le_bytes(), [1, 3]);
                let fields: [(u8, &[u8]); 4] =
                    [(0x81, &[1, 1]), (0x82, &who), (5, &[0, 16, 40, 35, 0, 0]), (6, &[12])];
                let message = if *seed == 0 { payload(&[], bytes) } else { payload(&fields, bytes) };
                let mut state = noise().build_initiator().expect("a state of the pattern");
                let mut sealed = [0; 512];
                let len = state.write_message(&message, &mut sealed).expect("a message fits");
                lender.take(Kind::Initiation, &sealed[..len]);
            }
            Step::Answer { verdict, key_id, bytes, honest } => {
                let Some(initiation) = &borrower.initiation else { continue };
                let mut state = noise().build_responder().expect("a state of the pattern");
                let mut proposal = [0; 512];
                let Ok(_) = state.read_message(initiation, &mut proposal) else { continue };
                // Behind the versions: the attempt is to be the borrower's.
                let attempt = proposal[6 + 32..6 + 40].try_into().expect("eight bytes");
                let attempt = if *honest { attempt } else { [*key_id; 8] };
                let who = who(2, 1, 2, &attempt, [2, 4]);
                let agreed = [*verdict % 6, *key_id, 2 + verdict % 2];
                let fields: [(u8, &[u8]); 4] =
                    [(0x81, &[1, 1]), (0x82, &who), (0x87, &agreed), (5, &[0, 16, 40, 35, 0, 0])];
                let message = payload(&fields, bytes);
                let mut sealed = [0; 512];
                let len = state.write_message(&message, &mut sealed).expect("a message fits");
                borrower.take(Kind::Response, &sealed[..len]);
            }
            Step::Raw { lender: to_lender, kind, bytes } => {
                let world = if *to_lender { &mut lender } else { &mut borrower };
                world.take(
                    if *kind { Kind::Initiation } else { Kind::Response },
                    &bytes[..bytes.len().min(4096)],
                );
            }
            Step::Wait { millis } => {
                let time = Duration::from_millis((*millis).into());
                borrower.wait(time);
                lender.wait(time);
            }
        }
    }
});
