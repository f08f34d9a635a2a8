//! Messages of the handshake: any bytes, and any content from someone who knows the key.
#![no_main]

use base::ids::{CardGeneration, Group, Incarnation, LoanGeneration, NodeId};
use base::ledger::Arena;
use base::{Instant, RuleSet};
use core::time::Duration;
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use link::frame::{HEADER_LEN, Header, Kind, MAX_FRAME, OVERHEAD, TAG_LEN, VERSION};
use link::{Channel, Event, Port, Role, Sink};
use pcie::TlpView;
use rigs::channels::{KEY, Root, config};

/// Bytes of what a borrower proposes and of what a lender answers.
const PROPOSAL: usize = 67;
const ANSWER: usize = 76;

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
    let header = Header {
        kind,
        path: 0,
        key_id: 0,
        fabric: 0,
        group: Group(7),
        loan_generation: LoanGeneration(0),
        source: NodeId(9),
        destination: NodeId(0),
        incarnation: Incarnation(1),
        card_generation: CardGeneration(1),
        packet_number: 0,
    };
    header.write(&mut frame);
    frame[HEADER_LEN..HEADER_LEN + body.len()].copy_from_slice(body);
    frame
}

fn noise() -> snow::Builder<'static> {
    let pattern = "Noise_NNpsk0_25519_AESGCM_SHA256".parse().expect("the pattern of the protocol");
    const PROLOGUE: [u8; 9] = [VERSION, 0, 0, 0, 0, 7, 0, 0, 0];
    let builder = snow::Builder::new(pattern).psk(0, &KEY).expect("a key of 32 bytes");
    builder.prologue(&PROLOGUE).expect("one prologue")
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
                let mut payload = [0; PROPOSAL];
                for (at, byte) in bytes.iter().take(PROPOSAL).enumerate() {
                    payload[at] = *byte;
                }
                (payload[0], payload[8], payload[16]) = (*incarnation, *attempt, *node);
                let len = if *seed == 0 { bytes.len().min(PROPOSAL) } else { PROPOSAL };
                let mut state = noise().build_initiator().expect("a state of the pattern");
                let mut message = [0; 256];
                let len = state.write_message(&payload[..len], &mut message).expect("a message fits");
                lender.take(Kind::Initiation, &message[..len]);
            }
            Step::Answer { verdict, key_id, bytes, honest } => {
                let Some(initiation) = &borrower.initiation else { continue };
                let mut state = noise().build_responder().expect("a state of the pattern");
                let mut proposal = [0; 256];
                let Ok(_) = state.read_message(initiation, &mut proposal) else { continue };
                let mut payload = [0; ANSWER];
                for (at, byte) in bytes.iter().take(ANSWER).enumerate() {
                    payload[at] = *byte;
                }
                (payload[0], payload[1]) = (*verdict % 3, *key_id);
                if *honest {
                    // The attempt lies behind the lender's own incarnation.
                    payload[20..28].copy_from_slice(&proposal[8..16]);
                }
                let mut message = [0; 256];
                let len = state.write_message(&payload, &mut message).expect("a message fits");
                borrower.take(Kind::Response, &message[..len]);
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
