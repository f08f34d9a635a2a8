//! The edge of a slot: the kernel's socket between a guest's machine and the borrowing card, and an agent that takes
//! messages with descriptors and keeps those.

use std::rc::Rc;

use base::ledger::Span;
use node::{Card, DescriptorId, Peeked};

use crate::chance::Chance;
use crate::checkers::excuses::Excuses;
use crate::checkers::names;
use crate::disks::Disks;
use crate::edge::{read, room_in, write};
use crate::guest::{Guest, Memories};
use crate::marks::Mark;
use crate::stage::{BORROWER, Event, Stage};
use crate::volatile::Volatile;

/// The socket of a slot, and what its agent knows.
#[derive(Default)]
struct SlotSocket {
    connected: bool,
    received: u64,
    sent: u64,
    mail: Option<(u64, Vec<u8>, Vec<DescriptorId>)>,
    mails: u64,
    descriptors: u32,
}

/// The guests of a world, by loan: their machines, and what lies between them and the borrower's card.
pub(crate) struct Guests<'w> {
    pub(crate) guests: Vec<Guest>,
    sockets: Vec<SlotSocket>,
    memories: Rc<Memories<'w>>,
    /// In some worlds their drives have a volatile cache.
    volatile: Option<Volatile>,
}

/// How often the driver of a guest looks at its clock, in nanoseconds.
const GUEST_TICK: u64 = 1_000_000_000;

/// Whether the world of a seed has guests.
pub(crate) fn has_guests(seed: u64) -> bool {
    Chance::Guests.of(seed).chance(150)
}

impl<'w> Guests<'w> {
    pub(crate) fn new(guests: Vec<Guest>, memories: Rc<Memories<'w>>, volatile: Option<Volatile>) -> Self {
        let sockets = guests.iter().map(|_| SlotSocket::default()).collect();
        Self { guests, sockets, memories, volatile }
    }

    /// Whether something has succeeded that the guest with a loan has asked for since a tick.
    pub(crate) fn are_served(&self, loan: usize, since: u64) -> bool {
        self.guests[loan].served_of >= since
    }

    /// Their machines start, a moment after the beginning.
    pub(crate) fn begin(&self, stage: &mut Stage<'w>) {
        for loan in 0..self.guests.len() {
            stage.clock.after(2_000_000, Event::ThinkGuest(loan));
            stage.clock.after(GUEST_TICK, Event::GuestTick(loan));
        }
    }

    /// A guest's machine starts, or its driver thinks of requests. Returns the borrower, if its card is to be served.
    pub(crate) fn think(&mut self, stage: &mut Stage<'w>, loan: usize) -> Option<usize> {
        let (guest, memory, now) = (&mut self.guests[loan], &self.memories, stage.clock.now);
        if guest.is_away() {
            return if guest.is_done() { None } else { self.start_machine(stage, loan) };
        }
        match guest.serve(now, memory) {
            Ok(true) => stage.wake_at(BORROWER, now),
            Ok(false) => {}
            Err((checker, what)) => {
                stage.report.fail(checker, what);
                return None;
            }
        }
        let shared = &mut stage.loans[loan].shared;
        if guest.watch(now, shared) {
            stage.report.log.event(now, None, "anew", loan as u64, guest.resets);
            stage.wake_at(BORROWER, now);
        } else if guest.ask(shared, memory) {
            stage.report.log.event(now, None, "ask", loan as u64, shared.requests);
            stage.wake_at(BORROWER, now);
        }
        None
    }

    /// The guest's driver looks at its clock.
    pub(crate) fn tick(&mut self, stage: &mut Stage<'w>, loan: usize) -> Option<usize> {
        if self.guests[loan].is_done() && self.guests[loan].is_away() {
            return None;
        }
        stage.clock.after(GUEST_TICK, Event::GuestTick(loan));
        self.think(stage, loan)
    }

    fn start_machine(&mut self, stage: &mut Stage<'w>, loan: usize) -> Option<usize> {
        let card = stage.nodes[BORROWER].card.as_ref();
        let Some(card) = card.filter(|card| card.slot(loan).is_some_and(|slot| slot.is_ready())) else {
            stage.clock.after(3_000_000, Event::ThinkGuest(loan));
            return None;
        };
        let socket = &mut self.sockets[loan];
        (socket.connected, socket.received, socket.sent) = (true, 0, 0);
        (socket.mail, socket.mails) = (None, card.slot_taken_count(loan));
        stage.watch.excuses[loan].met(stage.nodes[BORROWER].cards);
        let first = socket.descriptors + 1;
        socket.descriptors += 3;
        self.memories.open(loan, first);
        self.guests[loan].connected(first);
        stage.log(None, "open", loan as u64, 0);
        stage.act(BORROWER, |card, now| card.slot_open(now, loan)).then_some(BORROWER)
    }

    /// The agent tells a new card of a slot.
    pub(crate) fn tell(&self, stage: &mut Stage<'w>, loan: usize) {
        if let Some(card) = stage.nodes[BORROWER].card.as_mut() {
            card.set_guest_memory(self.memories.clone());
        }
        let idle = stage.nodes[BORROWER].card.as_ref().is_none_or(|card| card.slot_is_idle(loan));
        let socket = &self.sockets[loan];
        let mail = socket.mail.clone().filter(|_| socket.connected && !idle);
        let moved = socket.connected.then_some([socket.received, socket.sent]);
        let lives = stage.act(BORROWER, |card, now| card.slot_resume(now, loan, moved));
        if let Some((number, bytes, descriptors)) = mail.filter(|_| lives) {
            stage.act(BORROWER, |card, now| card.slot_taken(now, loan, number, &bytes, &descriptors));
        }
    }

    /// Signals and bytes go to machines, and theirs to the card.
    pub(crate) fn serve(&mut self, stage: &mut Stage<'w>, disks: &Disks<'_>, loan: usize) {
        if stage.nodes[BORROWER].card.is_none() || stage.report.has_failed() {
            return;
        }
        let lives = self.give_signals(stage, disks) && close_released(stage, loan);
        if lives
            && self.sockets[loan].connected
            && self.take_bytes(stage, loan)
            && self.give_bytes(stage, loan)
        {
            self.end_machine(stage, loan);
        }
        self.volatile.iter_mut().for_each(|volatile| volatile.look_for_replacement(stage, loan));
    }

    /// Eventfds are signalled.
    fn give_signals(&mut self, stage: &mut Stage<'w>, disks: &Disks<'_>) -> bool {
        stage.report.judge(names::COMMIT_BEFORE_SEND, stage.nodes[BORROWER].check_commit());
        while !stage.dies_here(BORROWER) {
            let signal = stage.nodes[BORROWER].card.as_mut().and_then(Card::poll_signal);
            let Some((loan, descriptor)) = signal else { return !stage.report.has_failed() };
            let shared = &mut stage.loans[loan].shared;
            let (guest, tick) = (&mut self.guests[loan], shared.tick);
            let before = guest.completions;
            if let Err((checker, what)) =
                guest.interrupt(descriptor.0, stage.clock.now, shared, &self.memories)
            {
                stage.report.fail(checker, what);
                return false;
            }
            if guest.completions > before {
                stage.watch.excuses[loan].answered(stage.nodes[BORROWER].cards);
                stage.loans[loan].shared.end_orphans_of_others(stage.nodes[BORROWER].who());
                disks.judge_flushes(stage, loan);
                self.volatile.iter_mut().for_each(|volatile| volatile.endanger(stage, loan));
            }
            stage.log(None, "signal", loan as u64, tick);
            let after = stage.random.below(150_000);
            stage.clock.after(after, Event::ThinkGuest(loan));
            stage.wake_soon(BORROWER);
        }
        false
    }

    /// Bytes of the guest go to the card, or to the agent.
    fn take_bytes(&mut self, stage: &mut Stage<'w>, loan: usize) -> bool {
        let seen: Vec<u8> = self.guests[loan].outbox.iter().take(4096).map(|(byte, _)| *byte).collect();
        if seen.is_empty() {
            return true;
        }
        let socket = &self.sockets[loan];
        let Some(card) = stage.nodes[BORROWER].card.as_ref() else { return false };
        match card.slot_peeked(loan, socket.received, socket.mails, &seen) {
            Peeked::NeedMore | Peeked::Wait => true,
            Peeked::Consume(most) => {
                let most = stage.random.portion(most);
                self.put_bytes(stage, loan, most)
            }
            Peeked::AgentTakes { len } => self.take_message(stage, loan, len),
        }
    }

    fn put_bytes(&mut self, stage: &mut Stage<'w>, loan: usize, most: usize) -> bool {
        let journal = stage.nodes[BORROWER].kernel();
        let Some(card) = stage.nodes[BORROWER].card.as_ref() else { return false };
        let spans = card.slot_receive_spans(loan, self.sockets[loan].received, most);
        let len = room_in(&spans).min(most);
        let bytes: Vec<u8> = self.guests[loan].outbox.drain(..len).map(|(byte, _)| byte).collect();
        write(&spans, journal, &bytes);
        self.sockets[loan].received += len as u64;
        let received = self.sockets[loan].received;
        stage.wake_soon(BORROWER);
        !stage.dies_here(BORROWER) && stage.act(BORROWER, |card, now| card.slot_received(now, loan, received))
    }

    fn take_message(&mut self, stage: &mut Stage<'w>, loan: usize, len: usize) -> bool {
        let taken: Vec<_> = self.guests[loan].outbox.drain(..len).collect();
        let bytes: Vec<u8> = taken.iter().map(|(byte, _)| *byte).collect();
        let descriptors = taken.into_iter().flat_map(|(_, descriptors)| descriptors).map(DescriptorId);
        let descriptors: Vec<_> = descriptors.collect();
        let socket = &mut self.sockets[loan];
        socket.mails += 1;
        let number = socket.mails;
        socket.mail = Some((number, bytes.clone(), descriptors.clone()));
        stage.wake_soon(BORROWER);
        !stage.dies_here(BORROWER)
            && stage.act(BORROWER, |card, now| card.slot_taken(now, loan, number, &bytes, &descriptors))
    }

    /// Bytes of the card go to the guest.
    fn give_bytes(&mut self, stage: &mut Stage<'w>, loan: usize) -> bool {
        let sent = self.sockets[loan].sent;
        let Some(card) = stage.nodes[BORROWER].card.as_ref() else { return false };
        let mut spans = [Span::empty(); 5];
        let count = card.slot_send_spans(loan, sent, &mut spans);
        if count == 0 {
            return true;
        }
        stage.report.judge(names::COMMIT_BEFORE_SEND, stage.nodes[BORROWER].check_commit());
        let mut bytes = read(&spans[..count]);
        bytes.truncate(stage.random.portion(bytes.len()));
        if let Err((checker, what)) = self.guests[loan].receive(stage.clock.now, &bytes, &self.memories) {
            stage.report.fail(checker, what);
            return false;
        }
        if self.guests[loan].machine().is_behind() {
            let after = stage.random.below(150_000);
            stage.clock.after(after, Event::ThinkGuest(loan));
        }
        self.sockets[loan].sent += bytes.len() as u64;
        let sent = self.sockets[loan].sent;
        stage.wake_soon(BORROWER);
        !stage.dies_here(BORROWER) && stage.act(BORROWER, |card, now| card.slot_sent(now, loan, sent))
    }

    /// The machines have ended with their node, in the middle of everything; they start again when that is back.
    pub(crate) fn lose_node(&mut self, stage: &mut Stage<'w>) {
        for loan in 0..self.guests.len() {
            let was_there = !self.guests[loan].is_away();
            self.crash(stage, loan);
            // The node's ledger is new, and knows of no connection and no message.
            let descriptors = self.sockets[loan].descriptors;
            self.sockets[loan] = SlotSocket { descriptors, ..SlotSocket::default() };
            stage.watch.excuses[loan] = Excuses::default();
            self.end_session(stage, loan);
            stage.report.marks.set_if(Mark::GuestCrashed, was_there);
            stage.clock.after(5_000_000, Event::ThinkGuest(loan));
        }
    }

    fn crash(&mut self, stage: &mut Stage<'w>, loan: usize) {
        let who = stage.nodes[BORROWER].who();
        self.guests[loan].crash(who, &mut stage.loans[loan].shared, &self.memories);
    }

    /// The agent takes the drive from the machine, in the middle of everything, and will plug in the new one; whatever
    /// was asked of it has no answer. Returns the borrower, if its card is to be served.
    pub(crate) fn unplug(&mut self, stage: &mut Stage<'w>, loan: usize) -> Option<usize> {
        if self.volatile.as_mut()?.unplugs(loan)? {
            self.guests[loan].finds_the_drive();
        }
        if self.guests[loan].is_away() {
            return None;
        }
        stage.report.marks.set(Mark::DriveReplaced);
        self.crash(stage, loan);
        stage.log(None, "unplug", loan as u64, 0);
        self.disconnect(stage, loan);
        stage.clock.after(5_000_000, Event::ThinkGuest(loan));
        closed(stage, loan).then_some(BORROWER)
    }

    /// The machine is switched off when its driver has nothing more to do.
    fn end_machine(&mut self, stage: &mut Stage<'w>, loan: usize) {
        let guest = &mut self.guests[loan];
        if !guest.wants_to_leave() {
            return;
        }
        guest.gone(&self.memories);
        let marks = &mut stage.report.marks;
        marks.set(Mark::GuestServed);
        marks.set_if(Mark::MemoryByMessage, guest.machine().has_served());
        marks.set_if(Mark::MessageRefused, guest.machine().has_refused());
        marks.set_if(Mark::GuestReset, guest.followed > 0);
        stage.log(None, "close", loan as u64, guest.completions);
        self.disconnect(stage, loan);
        closed(stage, loan);
    }

    fn disconnect(&mut self, stage: &mut Stage<'w>, loan: usize) {
        self.sockets[loan].connected = false;
        stage.watch.excuses[loan].left();
        self.end_session(stage, loan);
    }

    fn end_session(&mut self, stage: &mut Stage<'w>, loan: usize) {
        self.volatile.iter_mut().for_each(|volatile| volatile.end_session(stage, loan));
    }

    /// What a guest sees of a drive.
    pub(crate) fn configure(&self, drive: usize, config: &mut device::nvme::Config) {
        self.volatile.iter().for_each(|volatile| volatile.configure(drive, config));
    }

    /// Whether the lender's next reboot is one of its machine, and not of its program only.
    pub(crate) fn loses_power(&mut self) -> bool {
        self.volatile.as_mut().is_none_or(Volatile::loses_power)
    }

    /// The lender's power has failed.
    pub(crate) fn power_failed(&mut self, stage: &mut Stage<'w>) {
        let Some(volatile) = &mut self.volatile else { return };
        volatile.lose_power();
        for (loan, guest) in self.guests.iter_mut().enumerate() {
            volatile.forget_drive(stage, loan, guest);
        }
    }

    /// What they wait for, for a report.
    pub(crate) fn unanswered(&self) -> Vec<String> {
        self.guests.iter().map(|guest| guest.unanswered(&self.memories)).collect()
    }
}

/// The card hears that a machine has gone: false if it does not live.
fn closed(stage: &mut Stage<'_>, loan: usize) -> bool {
    !stage.dies_here(BORROWER) && stage.act(BORROWER, |card, now| card.slot_closed(now, loan))
}

/// The agent closes what the card has let go of: false if the card dies of that.
fn close_released(stage: &mut Stage<'_>, loan: usize) -> bool {
    let released = stage.nodes[BORROWER].card.as_ref().map(|card| card.slot_released(loan));
    for descriptor in released.unwrap_or_default() {
        if !stage.act(BORROWER, |card, now| card.slot_descriptor_closed(now, loan, descriptor)) {
            return false;
        }
    }
    true
}
