//! A card with a session, the kernel's account of its stream, an agent with descriptors, and a function on plain
//! memory.

use std::collections::{BTreeSet, VecDeque};

use base::ledger::{Arena, Ledger, RawMemory, STEP_ENTRIES, Span};
use base::{Payload, Random};
use pcie::ConfigBuilder;
use pcie::ConfigLayout;
use pcie::capability::express::ExpressOptions;
use pcie::capability::msix::MsixLocation;
use zerocopy::FromBytes;

use super::super::*;
use crate::testing::{Killer, run_step};

pub(super) const BAR_BYTES: usize = 0x4000;
pub(super) const VECTOR_COUNT: u16 = 8;
pub(super) const TABLE: u32 = 0x2000;
pub(super) const PENDING: u32 = 0x3000;
/// Where the function's capabilities are.
pub(super) const EXPRESS: u16 = 0x48;
pub(super) const MSIX: u16 = 0x84;
pub(super) const AER: u16 = 0x100;

#[derive(FromBytes)]
#[repr(C)]
pub(super) struct Root {
    session: SessionCells,
}

/// What happens to the card, one step each. Positions are those of the account when the step runs.
#[derive(Clone, Debug)]
pub(super) enum Input {
    Open,
    Closed,
    Ended,
    Received,
    Sent,
    Taken,
    Done(AccessId, Result<Vec<u8>, AccessError>),
    Interrupt(u16),
    Pin(bool),
    SignalAll,
    Present(bool),
    Use(MapId),
    EndUse(MapId),
    Close(DescriptorId),
    ReadMemory(u32, u64, usize),
    WriteMemory(u32, u64, Vec<u8>),
    Error(u16, u32),
    Heard,
    Tick,
}

/// What the card has got from a step that has happened.
#[derive(Default, Debug)]
struct Got {
    requests: Vec<Request>,
    signals: Vec<DescriptorId>,
    vectors: Vec<(u16, bool)>,
    maps: Vec<(MapId, Option<DmaMapping>)>,
    transfers: Vec<(u32, Result<Vec<u8>, Errno>)>,
    refused: Vec<TransferRefused>,
}

pub(super) struct World<'m> {
    memory: RawMemory<'m>,
    killer: &'m Killer,
    pub(super) config: SlotConfig,
    pub(super) session: Session<'m>,
    pub(super) now: Instant,
    pub(super) inputs: VecDeque<Input>,
    /// Inputs of one step.
    pub(super) batch: usize,
    pub(super) received: u64,
    sent: u64,
    /// Bytes that the client has written and nobody has received, each with the descriptors that come with it.
    pub(super) outgoing: VecDeque<(u8, Vec<u32>)>,
    /// Bytes that the client has received and not read.
    pub(super) incoming: Vec<u8>,
    /// The message that the agent has taken last, with its number: it may hand it in again at any time.
    mail: Option<(u64, Vec<u8>, Vec<DescriptorId>)>,
    pub(super) mails: u64,
    /// Descriptors that the agent keeps.
    pub(super) open: BTreeSet<u32>,
    /// Descriptors that came with bytes which the card received.
    pub(super) lost: usize,
    pub(super) requests: Vec<Request>,
    pub(super) log: Vec<Request>,
    pub(super) signals: Vec<DescriptorId>,
    pub(super) vectors: Vec<(u16, bool)>,
    pub(super) maps: Vec<(MapId, Option<DmaMapping>)>,
    pub(super) transfers: Vec<(u32, Result<Vec<u8>, Errno>)>,
    pub(super) refused: Vec<TransferRefused>,
    pub(super) layout: ConfigLayout,
    pub(super) space: pcie::ConfigState,
    pub(super) bar: Vec<u8>,
    /// The function answers nothing.
    pub(super) hang: bool,
    /// The card has no room for requests.
    pub(super) full: bool,
    /// The client does not read.
    pub(super) deaf: bool,
    pub(super) failure: Option<AccessError>,
    pub(super) lives: usize,
    /// Looks at random pieces of the socket, if set.
    pub(super) pieces: Option<Random>,
    /// Most bytes that the kernel gives at once.
    pub(super) at_once: usize,
}

pub(super) fn layout() -> ConfigLayout {
    ConfigBuilder::endpoint(0xca05, 1)
        .class(0x01_0802, 0)
        .bar_64(0, BAR_BYTES as u64, false)
        .power_management()
        .express(ExpressOptions::default())
        .msix(MsixLocation {
            vectors: VECTOR_COUNT,
            table_bar: 0,
            table_offset: TABLE,
            pending_bar: 0,
            pending_offset: PENDING,
        })
        .advanced_error_reporting()
        .serial_number(7)
        .build()
}

pub(super) fn config() -> SlotConfig {
    let (layout, mut bars) = (layout(), [0; 6]);
    bars[0] = BAR_BYTES as u64;
    let config = SlotConfig::probe(|register| layout.initial(register), bars).unwrap();
    SlotConfig { intx: true, old_transfers: Some(true), ..config }
}

impl<'m> World<'m> {
    pub(super) fn new(arena: &'m Arena, killer: &'m Killer, config: SlotConfig) -> Self {
        let memory = arena.zeroed::<Root>();
        let layout = layout();
        Self {
            memory,
            killer,
            session: session(memory, killer, &config),
            config,
            now: Instant::from_nanos(1),
            inputs: VecDeque::new(),
            batch: 1,
            received: 0,
            sent: 0,
            outgoing: VecDeque::new(),
            incoming: Vec::new(),
            mail: None,
            mails: 0,
            open: BTreeSet::new(),
            lost: 0,
            requests: Vec::new(),
            log: Vec::new(),
            signals: Vec::new(),
            vectors: Vec::new(),
            maps: Vec::new(),
            transfers: Vec::new(),
            refused: Vec::new(),
            space: layout.reset(),
            layout,
            bar: (0..BAR_BYTES).map(|at| (at / 4) as u8 ^ at as u8).collect(),
            hang: false,
            full: false,
            deaf: false,
            failure: None,
            lives: 1,
            pieces: None,
            at_once: usize::MAX,
        }
    }

    pub(super) fn calm(&self) -> Ledger<'m, Root> {
        self.memory.ledger(None, base::RuleSet::ALL)
    }

    pub(super) fn connect(&mut self) {
        (self.received, self.sent) = (0, 0);
        self.outgoing.clear();
        self.incoming.clear();
        self.inputs.push_back(Input::Open);
        self.settle();
    }

    pub(super) fn disconnect(&mut self) {
        self.outgoing.clear();
        self.incoming.clear();
        self.inputs.retain(|input| !matches!(input, Input::Received | Input::Sent));
        self.inputs.push_back(Input::Closed);
        self.settle();
    }

    /// The client writes a message with descriptors.
    pub(super) fn write(&mut self, bytes: &[u8], descriptors: &[u32]) {
        let start = self.outgoing.len();
        self.outgoing.extend(bytes.iter().map(|byte| (*byte, Vec::new())));
        if let Some((_, with)) = self.outgoing.get_mut(start) {
            with.extend(descriptors);
        }
    }

    /// Writes, lets everything happen, and takes what has come back.
    pub(super) fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.exchange_with(bytes, &[])
    }

    pub(super) fn exchange_with(&mut self, bytes: &[u8], descriptors: &[u32]) -> Vec<u8> {
        self.write(bytes, descriptors);
        self.settle();
        std::mem::take(&mut self.incoming)
    }

    pub(super) fn input(&mut self, input: Input) {
        self.inputs.push_back(input);
        self.settle();
    }

    pub(super) fn pass(&mut self, time: core::time::Duration) {
        self.now += time;
        self.input(Input::Tick);
    }

    /// Runs until nothing happens but time.
    pub(super) fn settle(&mut self) {
        loop {
            while !self.inputs.is_empty() {
                self.step();
            }
            self.move_bytes();
            if !self.hang {
                for request in std::mem::take(&mut self.requests) {
                    self.execute(request);
                }
            }
            if self.inputs.is_empty() && self.session.poll_timeout().is_some_and(|at| at <= self.now) {
                self.inputs.push_back(Input::Tick);
            }
            let released = self.session.descriptors.released().next();
            if let Some(descriptor) = released.filter(|_| self.inputs.is_empty()) {
                self.open.remove(&descriptor.0);
                self.inputs.push_back(Input::Close(descriptor));
            }
            if self.inputs.is_empty() {
                return;
            }
        }
    }

    /// The first inputs, as one step of the card.
    pub(super) fn step(&mut self) {
        let inputs: Vec<Input> = self.inputs.iter().take(self.batch).cloned().collect();
        let mut got = Got::default();
        let (now, session, mail) = (self.now, &mut self.session, &self.mail);
        let (received, sent, full) = (self.received, self.sent, self.full);
        let (lived, happened) = run_step::<Root>(self.memory, self.killer, |ledger| {
            for input in &inputs {
                apply(session, now, input, (received, sent), mail, &mut got);
                drain(session, full, &mut got);
            }
            let closes = inputs.iter().any(|input| matches!(input, Input::Closed));
            let most = if closes { STEP_ENTRIES * 7 / 8 } else { STEP_ENTRIES / 2 };
            assert!(ledger.journal.pending() < most, "{} words", ledger.journal.pending());
        });
        if happened {
            self.inputs.drain(..inputs.len());
            self.log.extend(&got.requests);
            self.requests.append(&mut got.requests);
            self.signals.append(&mut got.signals);
            self.vectors.append(&mut got.vectors);
            self.maps.append(&mut got.maps);
            self.transfers.append(&mut got.transfers);
            self.refused.append(&mut got.refused);
        }
        if !lived {
            self.succeed();
        }
    }

    /// Another card goes on.
    fn succeed(&mut self) {
        self.lives += 1;
        self.session = session(self.memory, self.killer, &self.config);
        if !self.session.is_idle() {
            self.inputs.push_front(Input::SignalAll);
            if self.mail.is_some() {
                self.inputs.push_front(Input::Taken);
            }
            self.inputs.push_front(Input::Received);
            self.inputs.push_front(Input::Sent);
        }
    }

    /// The kernel moves bytes.
    pub(super) fn move_bytes(&mut self) {
        if self.session.is_idle() || self.inputs.iter().any(|input| matches!(input, Input::Closed)) {
            return;
        }
        self.send();
        let most = self.pieces.as_mut().map_or(usize::MAX, |random| 1 + random.below(200) as usize);
        // Less than a header may be too little to decide.
        let judged = self.look(most.min(self.outgoing.len())).or_else(|| self.look(self.outgoing.len()));
        match judged {
            Some(Peeked::Consume(len)) => self.receive(len),
            Some(Peeked::AgentTakes { len }) => self.agent_takes(len),
            Some(Peeked::NeedMore | Peeked::Wait) | None => {}
        }
        if self.session.wants_close() && self.outgoing.is_empty() {
            self.inputs.push_back(Input::Closed);
        }
    }

    /// What the session says to the first bytes of the socket; `None` for too few.
    fn look(&self, most: usize) -> Option<Peeked> {
        let seen: Vec<u8> = self.outgoing.iter().take(most).map(|(byte, _)| *byte).collect();
        let peeked = self.session.handle_peeked(self.received, self.mails, &seen);
        if let Peeked::Consume(len) = peeked {
            assert!((1..=seen.len()).contains(&len));
        }
        (peeked != Peeked::NeedMore).then_some(peeked)
    }

    fn receive(&mut self, most: usize) {
        let mut most = most.min(self.at_once);
        for span in self.session.receive_spans(self.received, most) {
            let len = span.len().min(most);
            let bytes: Vec<(u8, Vec<u32>)> = self.outgoing.drain(..len).collect();
            self.lost += bytes.iter().map(|(_, descriptors)| descriptors.len()).sum::<usize>();
            let bytes: Vec<u8> = bytes.into_iter().map(|(byte, _)| byte).collect();
            span.part(0, len).write(self.calm().journal, &bytes);
            self.received += len as u64;
            most -= len;
        }
        self.inputs.push_back(Input::Received);
    }

    fn agent_takes(&mut self, len: usize) {
        let bytes: Vec<(u8, Vec<u32>)> = self.outgoing.drain(..len).collect();
        let descriptors: Vec<u32> = bytes.iter().flat_map(|(_, descriptors)| descriptors.clone()).collect();
        for descriptor in &descriptors {
            assert!(self.open.insert(*descriptor), "a test uses each descriptor once");
        }
        let bytes = bytes.into_iter().map(|(byte, _)| byte).collect();
        self.mails += 1;
        self.mail = Some((self.mails, bytes, descriptors.into_iter().map(DescriptorId).collect()));
        self.inputs.push_back(Input::Taken);
    }

    fn send(&mut self) {
        let mut spans = [Span::empty(); 5];
        let count = self.session.send_spans(self.sent, &mut spans);
        assert_eq!(count == 0, self.sent == self.session.output_end());
        if self.deaf {
            return;
        }
        for span in &spans[..count] {
            let mut bytes = vec![0; span.len()];
            span.read(&mut bytes);
            self.sent += bytes.len() as u64;
            self.incoming.extend(bytes);
        }
        if count > 0 {
            self.inputs.push_back(Input::Sent);
        }
    }

    /// The function does what it is asked for.
    pub(super) fn execute(&mut self, request: Request) {
        let (id, data) = match request {
            Request::Access(Access::Write { bar, offset, payload: Payload::Inline(bytes) }) => {
                assert_eq!(bar, 0);
                let bytes = bytes.as_slice();
                return self.bar[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Request::Access(Access::Read { id, bar, offset, len }) => {
                assert_eq!((bar, offset / 64), (0, (offset + u64::from(len) - 1) / 64));
                (id, self.bar[offset as usize..][..usize::from(len)].to_vec())
            }
            Request::Access(Access::ConfigRead { id, register }) => {
                (id, self.layout.read_register(&self.space, register).to_le_bytes().to_vec())
            }
            Request::Access(Access::ConfigWrite { id, register, value, byte_enables }) => {
                self.layout.write_register(&mut self.space, register, value, byte_enables);
                (id, Vec::new())
            }
            Request::Access(Access::Write { payload, .. }) => panic!("{payload:?}"),
            Request::Reset { id, .. } => {
                self.space = self.layout.function_level_reset(&self.space);
                (id, Vec::new())
            }
        };
        let result = self.failure.map_or(Ok(data), Err);
        self.inputs.push_back(Input::Done(id, result));
    }
}

fn apply(
    session: &mut Session<'_>,
    now: Instant,
    input: &Input,
    (received, sent): (u64, u64),
    mail: &Option<(u64, Vec<u8>, Vec<DescriptorId>)>,
    got: &mut Got,
) {
    match input {
        Input::Open => session.open(now),
        Input::Closed => session.closed(now),
        Input::Ended => session.ended(now),
        Input::Received => session.handle_received(now, received),
        Input::Sent => session.handle_sent(now, sent),
        Input::Taken => {
            if let Some((number, bytes, descriptors)) = mail {
                session.handle_taken(now, *number, bytes, descriptors);
            }
        }
        Input::Done(id, result) => session.handle_done(now, *id, result.as_deref().map_err(|error| *error)),
        Input::Interrupt(vector) => got.signals.extend(session.interrupts.raise(*vector)),
        Input::Pin(asserted) => got.signals.extend(session.interrupts.set_pin(*asserted)),
        Input::SignalAll => session.interrupts.signal_all(),
        Input::Present(present) => session.set_present(now, *present),
        Input::Use(map) => session.maps.begin_use(*map),
        Input::EndUse(map) => session.end_use(*map),
        Input::Close(descriptor) => session.descriptors.handle_closed(*descriptor),
        Input::ReadMemory(token, address, len) => {
            got.refused.extend(session.transfers.read(now, *token, *address, *len).err());
        }
        Input::WriteMemory(token, address, bytes) => {
            got.refused.extend(session.transfers.write(now, *token, *address, bytes).err());
        }
        Input::Error(status, bits) => session.config_space().record_error(*status, *bits),
        Input::Heard => session.presence.handle_heard(),
        Input::Tick => session.handle_timeout(now),
    }
}

fn drain(session: &mut Session<'_>, full: bool, got: &mut Got) {
    while !full && let Some(request) = session.poll_request() {
        got.requests.push(request);
    }
    while let Some(signal) = session.interrupts.poll_signal() {
        got.signals.push(signal);
    }
    while let Some(vector) = session.interrupts.poll_change() {
        got.vectors.push(vector);
    }
    while let Some(map) = session.maps.poll_change() {
        got.maps.push(map);
    }
    while let Some(done) = session.transfers.poll_done() {
        let bytes = |span: Span<'_>| {
            let mut bytes = vec![0; span.len()];
            span.read(&mut bytes);
            bytes
        };
        got.transfers.push((done.token, done.result.map(bytes)));
    }
}

fn session<'m>(memory: RawMemory<'m>, killer: &'m Killer, config: &SlotConfig) -> Session<'m> {
    let ledger = memory.ledger::<Root>(Some(killer), base::RuleSet::ALL);
    Session::new(&ledger.root.session, ledger.journal, config)
}

/// Runs a test without a kill, and then with one before many of its stores.
pub(super) fn everywhere(test: impl Fn(&mut World<'_>)) {
    everywhere_with(&config(), test);
}

/// The same for another slot.
pub(super) fn everywhere_with(config: &SlotConfig, test: impl Fn(&mut World<'_>)) {
    let run = |at| {
        let (arena, killer) = (Arena::default(), Killer::new(at));
        test(&mut World::new(&arena, &killer, config.clone()));
        killer.stores.get()
    };
    let stores = run(None);
    let stride = (stores / 800).max(1);
    let mut random = Random::new(stores);
    let mut at = random.below(stride);
    while at < stores {
        run(Some(at));
        at += 1 + random.below(2 * stride - 1);
    }
}

/// Runs a test once.
pub(super) fn once(test: impl FnOnce(&mut World<'_>)) {
    once_with(config(), test);
}

/// The same for another slot.
pub(super) fn once_with(config: SlotConfig, test: impl FnOnce(&mut World<'_>)) {
    let (arena, killer) = (Arena::default(), Killer::new(None));
    test(&mut World::new(&arena, &killer, config));
}
