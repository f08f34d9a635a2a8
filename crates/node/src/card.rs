use core::time::Duration;

use base::ids::DomainId;
use base::ledger::Hook;
use base::ledger::{Counter, Journal, Ledger, Pages, RawMemory, Span};
use base::{Instant, Rule};
use device::nvme::{Controller, DATA_PAGES};
use device::{Function, MediaError, MediaId, MediaKind};
use link::frame::{FrameError, Header};
use link::{Channel, ChannelConfig, Event, Heard, Information, PathConfig, Refusal, Role, Sink, State};

use crate::borrower::BorrowedDrive;
use crate::cells::{Address, LoanCells, NodeCells};
use crate::config::{CardConfig, LoanConfig, LoanRole};
use crate::lender::LentFunction;

/// How often the gauges for the agent are renewed.
const PUBLISH: Duration = Duration::from_millis(50);
/// Frames delivered from behind a gap in one step, so that a step stays short.
const AHEAD_PER_STEP: usize = 4;

/// What the agent has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardEvent {
    /// The lender refuses the loan.
    Refused(usize, Refusal),
    /// The drive of the loan is usable.
    Ready(usize),
    /// The loan has ended in order.
    Closed(usize),
}

/// A frame to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing {
    /// The rail.
    pub rail: u8,
    /// Where to.
    pub to: Address,
    /// Bytes of the frame.
    pub len: usize,
}

/// Work for the medium of a lent function. To be done after the commit that came before; executing it twice in a row is the
/// same as executing it once.
#[derive(Clone, Copy, Debug)]
pub struct MediaWork<'m> {
    /// The loan.
    pub loan: usize,
    /// Comes back with the result.
    pub id: MediaId,
    /// What to do.
    pub kind: MediaKind,
    /// First byte of the medium.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    spans: [Option<Span<'m>>; DATA_PAGES],
}

impl<'m> MediaWork<'m> {
    /// The memory of a read or a write: `len` bytes in all.
    pub fn spans(&self) -> impl Iterator<Item = Span<'m>> + '_ {
        self.spans.iter().map_while(|span| *span)
    }
}

/// What a loan is made of, beside its channel.
#[expect(clippy::large_enum_variant, reason = "there are few loans, and none is moved")]
enum End<'m> {
    Lent(LentFunction<'m>),
    Borrowed(BorrowedDrive<'m>),
}

struct Loan<'m> {
    cells: &'m LoanCells,
    pages: Pages<'m>,
    channel: Channel<'m>,
    end: End<'m>,
    /// A reset was asked for and the medium is not quiet yet.
    resetting: bool,
    /// Where the answer to a handshake goes.
    reply_to: Address,
    ready: bool,
    closing: bool,
    /// The last step has ended before everything was moved.
    more: bool,
}

/// The data plane of a node: all loans, without I/O.
pub struct Card<'m> {
    journal: Journal<'m>,
    cells: &'m NodeCells,
    config: CardConfig,
    loans: Vec<Loan<'m>>,
    events: std::collections::VecDeque<CardEvent>,
    next_publish: Instant,
    next_loan: usize,
}

impl<'m> Card<'m> {
    /// A card on the ledger in `memory`, new or left by another card, whose unfinished step is taken back first.
    ///
    /// # Panics
    /// If the configuration has more loans than [`crate::MAX_LOANS`] or rails than [`crate::MAX_RAILS`].
    pub fn new(memory: RawMemory<'m>, hook: Option<&'m dyn Hook>, config: CardConfig, now: Instant) -> Self {
        assert!(config.loans.len() <= crate::MAX_LOANS && config.rails.len() <= crate::MAX_RAILS);
        let Ledger { journal, root } = memory.ledger::<NodeCells>(hook, config.rules);
        let restored = journal.roll_back();
        root.gauges.rolled_back.set(restored as u64);
        let loans = config
            .loans
            .iter()
            .zip(&root.loans)
            .map(|(loan, cells)| Loan::new(cells, journal, &config, loan, now));
        let loans = loans.collect();
        let mut card = Self {
            journal,
            cells: root,
            config,
            loans,
            events: std::collections::VecDeque::new(),
            next_publish: now,
            next_loan: 0,
        };
        card.step(now, |_| ());
        root.gauges.recovered_at.set(now.as_nanos());
        card
    }

    /// A frame has come on `rail` from `from`. It is opened in place.
    pub fn handle_frame(&mut self, now: Instant, rail: u8, from: Address, frame: &mut [u8]) {
        let header = match Header::parse(frame) {
            Ok(header) => header,
            Err(FrameError::Version(_)) => return self.cells.gauges.dropped_version.add(1),
            Err(FrameError::Malformed) => return self.cells.gauges.dropped_malformed.add(1),
        };
        let Some(index) = self.config.loans.iter().position(|loan| loan.group == header.group) else {
            return self.cells.gauges.dropped_unknown.add(1);
        };
        self.step(now, |card| card.loans[index].handle_frame(now, card.journal, rail, from, frame));
    }

    /// The medium has ended work `id` of loan `loan`.
    pub fn handle_media(&mut self, now: Instant, loan: usize, id: MediaId, result: Result<(), MediaError>) {
        self.step(now, |card| {
            if let End::Lent(function) = &mut card.loans[loan].end {
                function.controller.handle_media(now, id, result);
            }
        });
    }

    /// Time has come.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.step(now, |card| card.loans.iter_mut().for_each(|loan| loan.handle_timeout(now)));
        if self.next_publish <= now {
            self.next_publish = now + PUBLISH;
            self.loans.iter().for_each(|loan| loan.publish(now));
        }
    }

    /// When [`Card::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pending = self.loans.iter().any(|loan| loan.more || loan.channel.receiver().has_ahead());
        if pending { Some(Instant::ZERO) } else { self.loans.iter().filter_map(Loan::poll_timeout).min() }
    }

    /// The next frame to send, written to `out`, which holds the largest frame. Loans take turns.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Outgoing> {
        let count = self.loans.len();
        for turn in 0..count {
            let index = (self.next_loan + turn) % count;
            if let Some(outgoing) = self.loans[index].poll_transmit(now, out) {
                self.next_loan = index;
                return Some(outgoing);
            }
        }
        self.next_loan = if count == 0 { 0 } else { (self.next_loan + 1) % count };
        None
    }

    /// The next work for a medium. What asking for it has changed is committed.
    pub fn poll_media(&mut self) -> Option<MediaWork<'m>> {
        let work = self.loans.iter_mut().enumerate().find_map(|(index, loan)| loan.poll_media(index));
        self.journal.commit();
        work
    }

    /// The next event for the agent.
    pub fn poll_event(&mut self) -> Option<CardEvent> {
        self.events.pop_front()
    }

    /// A client has connected to the edge of `loan`; `slot` is idle.
    pub fn edge_open(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| {
            if server.is_idle(slot) {
                server.open(now, slot);
            }
        });
    }

    /// The client in `slot` has gone, or was closed.
    pub fn edge_closed(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| server.closed(now, slot));
    }

    /// The kernel has put bytes of the client up to `position` where [`Card::edge_receive_spans`] said.
    pub fn edge_received(&mut self, now: Instant, loan: usize, slot: usize, position: u64) {
        self.edge_step(now, loan, |server| server.handle_received(now, slot, position));
    }

    /// The kernel has taken bytes for the client up to `position`.
    pub fn edge_sent(&mut self, now: Instant, loan: usize, slot: usize, position: u64) {
        self.edge_step(now, loan, |server| server.handle_sent(now, slot, position));
    }

    /// Where bytes of the client from `position` on may be put.
    pub fn edge_receive_spans(&self, loan: usize, slot: usize, position: u64) -> [Option<Span<'m>>; 2] {
        let Some(server) = self.server(loan) else { return [None; 2] };
        server.receive_spans(slot, position).map(|span| (!span.is_empty()).then_some(span))
    }

    /// Fills `spans` with what is to be sent from `position` on; returns how many were filled.
    pub fn edge_send_spans(&self, loan: usize, slot: usize, position: u64, spans: &mut [Span<'m>]) -> usize {
        self.server(loan).map_or(0, |server| server.send_spans(slot, position, spans))
    }

    /// Where the stream to the client in `slot` ends at present.
    pub fn edge_output_end(&self, loan: usize, slot: usize) -> u64 {
        self.server(loan).map_or(0, |server| server.output_end(slot))
    }

    /// Whether nobody is connected in `slot`, as the ledger has it.
    pub fn edge_is_idle(&self, loan: usize, slot: usize) -> bool {
        self.server(loan).is_none_or(|server| server.is_idle(slot))
    }

    /// Whether the client in `slot` is to be disconnected.
    pub fn edge_wants_close(&self, loan: usize, slot: usize) -> bool {
        self.server(loan).is_some_and(|server| server.wants_close(slot))
    }

    /// From now on the program itself uses the drive of `loan`, by [`Card::drive_step`]; its NBD edge gets nothing. To be
    /// said right after [`Card::new`].
    pub fn use_directly(&mut self, loan: usize) {
        if let End::Borrowed(drive) = &mut self.loans[loan].end {
            drive.use_directly();
        }
    }

    /// One step of a program that uses the drive of `loan` itself: `act` polls completions from the driver, takes and gives back
    /// pages, and submits requests. It must not call other verbs of the driver.
    pub fn drive_step(
        &mut self,
        now: Instant,
        loan: usize,
        act: impl FnOnce(&mut host::nvme::Driver<'m>, Pages<'m>),
    ) {
        self.step(now, |card| {
            let loan = &mut card.loans[loan];
            if let End::Borrowed(drive) = &mut loan.end {
                act(&mut drive.driver, loan.pages);
            }
        });
    }

    /// Gives everything borrowed back: flushes, shuts the functions down, then says goodbye.
    pub fn shut_down(&mut self, now: Instant) {
        self.step(now, |card| {
            for loan in &mut card.loans {
                loan.closing = true;
                if let End::Borrowed(drive) = &mut loan.end {
                    drive.driver.shutdown(now);
                }
            }
        });
    }

    /// Whether a request or a TLP is out whose answer is awaited: the driver spins longer then.
    pub fn is_waiting(&self) -> bool {
        self.loans.iter().any(|loan| match &loan.end {
            End::Borrowed(drive) => drive.driver.in_flight() > 0,
            End::Lent(_) => loan.channel.port.tags.outstanding() > 0,
        })
    }

    /// Whether nothing of a loan is on its way or waiting, for the simulator.
    pub fn is_idle(&self) -> bool {
        self.loans.iter().all(|loan| loan.channel.is_idle())
    }

    /// Words that have been changed since the last commit, for checkers: none whenever anything leaves.
    pub fn uncommitted(&self) -> usize {
        self.journal.pending()
    }

    /// The channel of a loan, for status and checkers.
    pub fn channel(&self, loan: usize) -> &Channel<'m> {
        &self.loans[loan].channel
    }

    /// The function lent by `loan`, for checkers.
    pub fn lent(&self, loan: usize) -> Option<&LentFunction<'m>> {
        match &self.loans[loan].end {
            End::Lent(function) => Some(function),
            End::Borrowed(_) => None,
        }
    }

    /// The drive borrowed by `loan`.
    pub fn borrowed(&self, loan: usize) -> Option<&BorrowedDrive<'m>> {
        match &self.loans[loan].end {
            End::Borrowed(drive) => Some(drive),
            End::Lent(_) => None,
        }
    }

    /// The pages of a loan, for checkers.
    pub fn pages(&self, loan: usize) -> Pages<'m> {
        self.loans[loan].pages
    }

    fn server(&self, loan: usize) -> Option<&host::nbd::Server<'m>> {
        self.borrowed(loan).map(|drive| &drive.server)
    }

    fn edge_step(&mut self, now: Instant, loan: usize, act: impl FnOnce(&mut host::nbd::Server<'m>)) {
        self.step(now, |card| {
            if let End::Borrowed(drive) = &mut card.loans[loan].end {
                act(&mut drive.server);
            }
        });
    }

    /// One step: `act`, then whatever follows from it, then the commit.
    fn step(&mut self, now: Instant, act: impl FnOnce(&mut Self)) {
        let in_order = self.config.rules.has(Rule::CommitBeforeSend);
        if !in_order {
            // What the step before has caused to be sent has left by now.
            self.journal.commit();
        }
        act(self);
        for (index, loan) in self.loans.iter_mut().enumerate() {
            loan.advance(now, index, &mut self.events);
        }
        if in_order {
            self.journal.commit();
        }
    }
}

impl<'m> Loan<'m> {
    fn new(
        cells: &'m LoanCells,
        journal: Journal<'m>,
        card: &CardConfig,
        config: &LoanConfig,
        now: Instant,
    ) -> Self {
        let pages = Pages::new(&cells.pages, journal);
        let end = match &config.role {
            LoanRole::Lend(nvme) => {
                let controller = Controller::new(&cells.controller, pages, journal, nvme.clone());
                End::Lent(LentFunction::new(controller, pages, &cells.edge, card.domain))
            }
            LoanRole::Borrow { peers, io_timeout } => {
                for (cell, peer) in cells.peers.iter().zip(peers) {
                    cell.set(journal, *peer);
                }
                End::Borrowed(BorrowedDrive::new(cells, pages, journal, card.domain, *io_timeout))
            }
        };
        let mut channel = Channel::new(&cells.channel, pages, journal, channel_config(card, config), now);
        if let LoanRole::Lend(nvme) = &config.role {
            channel.set_information(Information {
                bytes: (nvme.blocks * u64::from(nvme.block_size)).into(),
                kind: 1,
                flags: nvme.read_only.into(),
                name: card.name.to_bytes(),
            });
        }
        let mut loan = Self {
            cells,
            pages,
            channel,
            end,
            resetting: false,
            reply_to: Address::default(),
            ready: false,
            closing: false,
            more: false,
        };
        loan.meet_peer();
        loan
    }

    fn handle_frame(
        &mut self,
        now: Instant,
        journal: Journal<'m>,
        rail: u8,
        from: Address,
        frame: &mut [u8],
    ) {
        let sink: &mut dyn Sink<'m> = match &mut self.end {
            End::Lent(function) => function,
            End::Borrowed(drive) => drive,
        };
        let heard = self.channel.handle_frame(now, frame, sink);
        if heard == Heard::Proposal {
            self.reply_to = from;
        }
        // A borrower knows its lender's addresses from the line.
        if matches!(self.end, End::Lent(_)) {
            self.learn_address(journal, rail, from, heard);
        }
    }

    /// A lender learns where the borrower is: from whoever answers this very card, so that a replay cannot lead it astray, or
    /// from anyone authentic while it knows nothing better.
    fn learn_address(&self, journal: Journal<'m>, rail: u8, from: Address, heard: Heard) {
        let Some(cell) = self.cells.peers.get(rail as usize) else { return };
        match heard {
            Heard::Newcomer => {
                self.cells.peers.iter().for_each(|peer| peer.set(journal, Address::default()));
                cell.set(journal, from);
            }
            Heard::Answer => cell.set(journal, from),
            Heard::Peer if !cell.get().is_known() => cell.set(journal, from),
            Heard::Peer | Heard::Proposal | Heard::Nothing => {}
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.channel.handle_timeout(now);
        match &mut self.end {
            End::Lent(function) => function.handle_timeout(now, &mut self.channel.port),
            End::Borrowed(drive) => drive.handle_timeout(now, &mut self.channel.port),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let end = match &self.end {
            End::Lent(function) => function.controller.poll_timeout(),
            End::Borrowed(drive) => drive.poll_timeout(),
        };
        [self.channel.poll_timeout(), end].into_iter().flatten().min()
    }

    fn poll_transmit(&mut self, now: Instant, out: &mut [u8]) -> Option<Outgoing> {
        // What goes to a peer whose address is not known is dropped, as a network would.
        loop {
            let frame = self.channel.poll_transmit(now, out)?;
            let known = self.cells.peers[frame.path as usize].get();
            let is_reply = frame.is_handshake && matches!(self.end, End::Lent(_));
            let to = if is_reply { self.reply_to } else { known };
            if to.is_known() {
                return Some(Outgoing { rail: frame.path, to, len: frame.len });
            }
        }
    }

    fn poll_media(&mut self, loan: usize) -> Option<MediaWork<'m>> {
        let End::Lent(function) = &mut self.end else { return None };
        let op = function.controller.poll_media()?;
        let mut spans = [None; DATA_PAGES];
        let mut left = op.len as usize;
        for (span, &page) in spans.iter_mut().zip(op.pages) {
            let len = left.min(base::ledger::PAGE_SIZE);
            *span = Some(self.pages.span(page, 0, len));
            left -= len;
        }
        Some(MediaWork { loan, id: op.id, kind: op.kind, offset: op.offset, len: op.len, spans })
    }

    /// What follows from a verb: events of the channel, late TLPs, and the flow between the parts.
    fn advance(&mut self, now: Instant, index: usize, events: &mut std::collections::VecDeque<CardEvent>) {
        while let Some(event) = self.channel.poll_event() {
            self.handle_event(now, index, event, events);
        }
        self.end_reset(now);
        for _ in 0..AHEAD_PER_STEP {
            if !self.advance_channel(now) {
                break;
            }
        }
        let open = self.channel.state() == State::Open;
        self.more = match &mut self.end {
            End::Lent(function) => open && function.pump(now, &mut self.channel.port),
            End::Borrowed(drive) => drive.pump(now, &mut self.channel.port, open),
        };
        self.channel.assign_numbers(now);
        self.report(now, index, events);
    }

    fn advance_channel(&mut self, now: Instant) -> bool {
        let sink: &mut dyn Sink<'m> = match &mut self.end {
            End::Lent(function) => function,
            End::Borrowed(drive) => drive,
        };
        self.channel.deliver_ahead(now, sink)
    }

    fn handle_event(
        &mut self,
        now: Instant,
        index: usize,
        event: Event,
        events: &mut std::collections::VecDeque<CardEvent>,
    ) {
        match event {
            Event::Reset => {
                self.meet_peer();
                self.resetting = true;
                match &mut self.end {
                    End::Lent(function) => function.controller.reset(now),
                    End::Borrowed(drive) => {
                        drive.driver.handle_reset(now);
                        drive.driver.start(now);
                    }
                }
            }
            Event::Refused(refusal) => events.push_back(CardEvent::Refused(index, refusal)),
            Event::Closed => {
                if let End::Lent(function) = &mut self.end {
                    function.controller.reset(now);
                }
                events.push_back(CardEvent::Closed(index));
            }
            Event::Information(_) => self.cells.edge.information_frames.add(1),
        }
    }

    /// The streams of a new pair open when nothing of the old one can still have an effect.
    fn end_reset(&mut self, _now: Instant) {
        let quiet = match &self.end {
            End::Lent(function) => function.controller.is_quiescent(),
            End::Borrowed(_) => true,
        };
        if self.resetting && quiet && self.channel.state() == State::Resetting {
            self.channel.open();
            self.resetting = false;
        }
    }

    fn report(&mut self, now: Instant, index: usize, events: &mut std::collections::VecDeque<CardEvent>) {
        let End::Borrowed(drive) = &self.end else { return };
        if !self.ready && drive.driver.geometry().is_some() {
            self.ready = true;
            events.push_back(CardEvent::Ready(index));
        }
        if self.closing && drive.driver.is_shut_down() {
            self.closing = false;
            self.channel.close(now);
        }
    }

    fn meet_peer(&mut self) {
        let Some((_, _, domain)) = self.channel.peer() else { return };
        let max_payload = self.channel.max_payload();
        match &mut self.end {
            End::Lent(function) => function.set_peer(domain, max_payload),
            End::Borrowed(drive) => drive.set_peer(domain, max_payload),
        }
    }

    /// Renews the gauges.
    fn publish(&self, now: Instant) {
        let edge = &self.cells.edge;
        edge.channel_state.set(self.channel.state() as u64);
        edge.last_heard.set(self.channel.last_heard().as_nanos());
        for rail in 0..self.channel.paths() {
            let (round_trip, up, loss) = self.channel.path_status(rail as u8, now);
            edge.rtt_ns[rail].set(round_trip.map_or(0, |round_trip| round_trip.as_nanos() as u64));
            edge.rail_up[rail].set(up.into());
            edge.loss_ppm[rail].set((loss * 1e6) as u64);
        }
        let sender = &self.channel.port.sender;
        edge.in_flight.set(sender.next() - sender.committed());
        edge.replay_bytes.set(sender.replay_bytes());
        if let Some((node, name, _)) = self.channel.peer() {
            edge.peer_node.set(node.0);
            let words = name.to_bytes();
            for (gauge, word) in edge.peer_name.iter().zip(words.as_chunks::<8>().0) {
                Counter::set(gauge, u64::from_le_bytes(*word));
            }
        }
        if let End::Borrowed(drive) = &self.end
            && let Some(geometry) = drive.driver.geometry()
        {
            edge.drive_bytes.set(geometry.blocks * u64::from(geometry.block_size));
            edge.drive_rights.set(1 + u64::from(geometry.read_only));
        }
    }
}

fn channel_config(card: &CardConfig, loan: &LoanConfig) -> ChannelConfig {
    // A borrower uses as many rails as it knows addresses of its lender.
    let rails = match &loan.role {
        LoanRole::Lend(_) => &card.rails[..],
        LoanRole::Borrow { peers, .. } => &card.rails[..peers.len().min(card.rails.len())],
    };
    let max_payload = if rails.iter().all(|&frame| frame >= 8192) { 4096 } else { 1024 };
    ChannelConfig {
        role: if matches!(loan.role, LoanRole::Lend(_)) { Role::Lender } else { Role::Borrower },
        key: loan.key,
        insecure: loan.insecure,
        fabric: 0,
        group: loan.group,
        loan_generation: loan.generation,
        node: card.node,
        name: card.name,
        domain: DomainId(card.domain.0),
        incarnation: card.incarnation,
        generation: card.generation,
        seed: card.seed,
        rekey_frames: card.rekey_frames,
        paths: rails.iter().map(|&max_frame| PathConfig { max_frame }).collect(),
        max_payload,
    }
}
