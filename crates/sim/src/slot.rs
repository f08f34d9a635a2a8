//! The edge of a slot: the kernel's socket between a guest's machine and the borrowing card, and an agent that takes
//! messages with descriptors and keeps those.

use std::rc::Rc;

use base::Random;
use base::ledger::Span;
use node::{BorrowedSlot, Card, DescriptorId, Peeked};

use crate::checkers::names;
use crate::edge::{read, room_in, write};
use crate::marks::Mark;
use crate::world::{BORROWER, Event, World};

/// The socket of a slot, and what its agent knows.
#[derive(Default)]
pub(crate) struct SlotSocket {
    connected: bool,
    received: u64,
    sent: u64,
    mail: Option<(u64, Vec<u8>, Vec<DescriptorId>)>,
    mails: u64,
    descriptors: u32,
    pub(crate) excuses: Excuses,
}

/// Accesses of a function that may be denied.
///
/// A store is in doubt if its card died before it could say that it was made. A successor makes it again; but a guest
/// may have found it, since the successor signals every vector, and have left by then. That is one store for each
/// departure, and the last answer before it was told by another card than the one before.
///
/// Nothing of a function that has failed, since its guest's machine has refused a write, reaches memory until it was
/// reset. Reads may even come behind the completion that tells of the reset.
#[derive(Default)]
pub(crate) struct Excuses {
    /// The card that told of the last answer, or met the machine.
    card: u64,
    /// It was another one than before.
    is_in_doubt: bool,
    /// Departures with a store in doubt.
    in_doubt: u64,
    /// Accesses that were denied while the function was closed out.
    closed_out: u64,
    /// What was seen last: denied accesses, transfers that have failed, and whether the function was closed out.
    seen: (u64, u64, bool),
}

impl Excuses {
    fn met(&mut self, card: u64) {
        (self.card, self.is_in_doubt) = (card, false);
    }

    fn answered(&mut self, card: u64) {
        self.is_in_doubt = card != self.card;
        self.card = card;
    }

    fn left(&mut self) {
        self.in_doubt += u64::from(self.is_in_doubt);
        self.is_in_doubt = false;
    }

    /// After each step of a card, by which so many accesses had been denied and so many transfers had failed.
    /// `is_closed_out` is the function of a guest that is there.
    pub(crate) fn step(&mut self, denied: u64, failed: u64, is_closed_out: bool) {
        let (denied_before, failed_before, was_closed_out) = self.seen;
        // A card that died has taken back that its function failed, but not the count of what was denied then.
        if is_closed_out || was_closed_out || failed != failed_before {
            self.closed_out += denied.saturating_sub(denied_before);
        }
        self.seen = (denied, failed, is_closed_out);
    }

    /// How many accesses may have been denied.
    pub(crate) fn count(&self) -> u64 {
        self.in_doubt + self.closed_out
    }
}

impl SlotSocket {
    /// After each step of the card: how many of so many accesses that were denied may have been.
    pub(crate) fn excuse(&mut self, slot: &BorrowedSlot<'_>, denied: u64) -> u64 {
        let failed = slot.session().map_or(0, |session| session.counters().failed_transfers.get());
        self.excuses.step(denied, failed, self.connected && slot.is_closed_out());
        self.excuses.count()
    }
}

impl World<'_> {
    /// A guest's machine starts, or its driver thinks of requests.
    pub(crate) fn think_guest(&mut self, loan: usize) {
        let Some((guest, memory)) = self.guests.get_mut(loan).zip(self.memories.clone()) else { return };
        if guest.is_away() {
            if !guest.is_done() {
                self.start_machine(loan);
            }
            return;
        }
        match guest.serve(self.clock.now, &memory) {
            Ok(true) => self.wake_at(BORROWER, self.clock.now),
            Ok(false) => {}
            Err((checker, what)) => return self.report.fail(checker, what),
        }
        let guest = &mut self.guests[loan];
        if guest.watch(self.clock.now, &mut self.loans[loan].shared) {
            self.report.log.event(self.clock.now, None, "anew", loan as u64, guest.resets);
            self.wake_at(BORROWER, self.clock.now);
        } else if guest.ask(&mut self.loans[loan].shared, &memory) {
            self.report.log.event(self.clock.now, None, "ask", loan as u64, self.loans[loan].shared.requests);
            self.wake_at(BORROWER, self.clock.now);
        }
    }

    /// The guest's driver looks at its clock.
    pub(crate) fn guest_ticks(&mut self, loan: usize) {
        if self.guests.get(loan).is_some_and(|guest| !guest.is_done() || !guest.is_away()) {
            self.clock.after(GUEST_TICK, Event::GuestTick(loan));
            self.think_guest(loan);
        }
    }

    fn start_machine(&mut self, loan: usize) {
        let ready = self.nodes[BORROWER].card.as_ref().and_then(|card| card.slot(loan));
        if !ready.is_some_and(|slot| slot.is_ready()) {
            return self.clock.after(3_000_000, Event::ThinkGuest(loan));
        }
        let taken = self.nodes[BORROWER].card.as_ref().map_or(0, |card| card.slot_taken_count(loan));
        let socket = &mut self.slots[loan];
        (socket.connected, socket.received, socket.sent) = (true, 0, 0);
        (socket.mail, socket.mails) = (None, taken);
        socket.excuses.met(self.nodes[BORROWER].cards);
        let first = socket.descriptors + 1;
        socket.descriptors += 3;
        if let Some(memory) = &self.memories {
            memory.open(loan, first);
        }
        self.guests[loan].connected(first);
        self.report.log.event(self.clock.now, None, "open", loan as u64, 0);
        if self.act(BORROWER, |card, now| card.slot_open(now, loan)) {
            self.service(BORROWER);
        }
    }

    /// The agent tells a new card of a slot.
    pub(crate) fn tell_slot(&mut self, loan: usize) {
        let Some(memory) = self.memories.clone() else { return };
        if let Some(card) = self.nodes[BORROWER].card.as_mut() {
            card.set_guest_memory(memory);
        }
        let idle = self.nodes[BORROWER].card.as_ref().is_none_or(|card| card.slot_is_idle(loan));
        let socket = &self.slots[loan];
        let mail = socket.mail.clone().filter(|_| socket.connected && !idle);
        let moved = socket.connected.then_some([socket.received, socket.sent]);
        let lives = self.act(BORROWER, |card, now| card.slot_resume(now, loan, moved));
        if let Some((number, bytes, descriptors)) = mail.filter(|_| lives) {
            self.act(BORROWER, |card, now| card.slot_taken(now, loan, number, &bytes, &descriptors));
        }
    }

    pub(crate) fn serve_slot(&mut self, loan: usize) {
        if self.slots.is_empty() || self.nodes[BORROWER].card.is_none() || self.report.has_failed() {
            return;
        }
        let lives = self.give_signals() && self.close_released(loan);
        if lives && self.slots[loan].connected && self.take_bytes(loan) && self.give_bytes(loan) {
            self.end_machine(loan);
        }
        self.look_for_replacement(loan);
    }

    /// Eventfds are signalled.
    fn give_signals(&mut self) -> bool {
        self.report.judge(names::COMMIT_BEFORE_SEND, self.nodes[BORROWER].check_commit());
        while !self.dies_here(BORROWER) {
            let signal = self.nodes[BORROWER].card.as_mut().and_then(Card::poll_signal);
            let Some(((loan, descriptor), memory)) = signal.zip(self.memories.clone()) else {
                return !self.report.has_failed();
            };
            let shared = &mut self.loans[loan].shared;
            let (guest, tick) = (&mut self.guests[loan], shared.tick);
            let before = guest.completions;
            if let Err((checker, what)) = guest.interrupt(descriptor.0, self.clock.now, shared, &memory) {
                self.report.fail(checker, what);
                return false;
            }
            if guest.completions > before {
                self.slots[loan].excuses.answered(self.nodes[BORROWER].cards);
                self.loans[loan].shared.end_orphans_of_others(self.nodes[BORROWER].who());
                self.judge_flushes(loan);
                self.endanger(loan);
            }
            self.report.log.event(self.clock.now, None, "signal", loan as u64, tick);
            let after = self.random.below(150_000);
            self.clock.after(after, Event::ThinkGuest(loan));
            self.wake_soon(BORROWER);
        }
        false
    }

    fn close_released(&mut self, loan: usize) -> bool {
        let released = self.nodes[BORROWER].card.as_ref().map(|card| card.slot_released(loan));
        for descriptor in released.unwrap_or_default() {
            if !self.act(BORROWER, |card, now| card.slot_descriptor_closed(now, loan, descriptor)) {
                return false;
            }
        }
        true
    }

    /// Bytes of the guest go to the card, or to the agent.
    fn take_bytes(&mut self, loan: usize) -> bool {
        let seen: Vec<u8> = self.guests[loan].outbox.iter().take(4096).map(|(byte, _)| *byte).collect();
        if seen.is_empty() {
            return true;
        }
        let socket = &self.slots[loan];
        let Some(card) = self.nodes[BORROWER].card.as_ref() else { return false };
        match card.slot_peeked(loan, socket.received, socket.mails, &seen) {
            Peeked::NeedMore | Peeked::Wait => true,
            Peeked::Consume(most) => {
                let most = self.random.portion(most);
                self.put_bytes(loan, most)
            }
            Peeked::AgentTakes { len } => self.take_message(loan, len),
        }
    }

    fn put_bytes(&mut self, loan: usize, most: usize) -> bool {
        let journal = self.nodes[BORROWER].kernel();
        let Some(card) = self.nodes[BORROWER].card.as_ref() else { return false };
        let spans = card.slot_receive_spans(loan, self.slots[loan].received, most);
        let len = room_in(&spans).min(most);
        let bytes: Vec<u8> = self.guests[loan].outbox.drain(..len).map(|(byte, _)| byte).collect();
        write(&spans, journal, &bytes);
        self.slots[loan].received += len as u64;
        let received = self.slots[loan].received;
        self.wake_soon(BORROWER);
        !self.dies_here(BORROWER) && self.act(BORROWER, |card, now| card.slot_received(now, loan, received))
    }

    fn take_message(&mut self, loan: usize, len: usize) -> bool {
        let taken: Vec<_> = self.guests[loan].outbox.drain(..len).collect();
        let bytes: Vec<u8> = taken.iter().map(|(byte, _)| *byte).collect();
        let descriptors = taken.into_iter().flat_map(|(_, descriptors)| descriptors).map(DescriptorId);
        let descriptors: Vec<_> = descriptors.collect();
        let socket = &mut self.slots[loan];
        socket.mails += 1;
        let number = socket.mails;
        socket.mail = Some((number, bytes.clone(), descriptors.clone()));
        self.wake_soon(BORROWER);
        !self.dies_here(BORROWER)
            && self.act(BORROWER, |card, now| card.slot_taken(now, loan, number, &bytes, &descriptors))
    }

    /// Bytes of the card go to the guest.
    fn give_bytes(&mut self, loan: usize) -> bool {
        let sent = self.slots[loan].sent;
        let Some(card) = self.nodes[BORROWER].card.as_ref() else { return false };
        let mut spans = [Span::empty(); 5];
        let count = card.slot_send_spans(loan, sent, &mut spans);
        let Some(memory) = self.memories.clone().filter(|_| count > 0) else { return true };
        self.report.judge(names::COMMIT_BEFORE_SEND, self.nodes[BORROWER].check_commit());
        let mut bytes = read(&spans[..count]);
        bytes.truncate(self.random.portion(bytes.len()));
        if let Err((checker, what)) = self.guests[loan].receive(self.clock.now, &bytes, &memory) {
            self.report.fail(checker, what);
            return false;
        }
        if self.guests[loan].machine().is_behind() {
            let after = self.random.below(150_000);
            self.clock.after(after, Event::ThinkGuest(loan));
        }
        self.slots[loan].sent += bytes.len() as u64;
        let sent = self.slots[loan].sent;
        self.wake_soon(BORROWER);
        !self.dies_here(BORROWER) && self.act(BORROWER, |card, now| card.slot_sent(now, loan, sent))
    }

    /// The machine has ended with its node, in the middle of everything; it starts again when that is back.
    pub(crate) fn crash_machine(&mut self, loan: usize) {
        let Some(memory) = self.memories.clone() else { return };
        let who = self.nodes[BORROWER].who();
        let was_there = !self.guests[loan].is_away();
        self.guests[loan].crash(who, &mut self.loans[loan].shared, &memory);
        let descriptors = self.slots[loan].descriptors;
        // The node's ledger is new, and knows of no connection and no message.
        self.slots[loan] = SlotSocket { descriptors, ..SlotSocket::default() };
        self.end_session(loan);
        self.report.marks.set_if(Mark::GuestCrashed, was_there);
        self.clock.after(5_000_000, Event::ThinkGuest(loan));
    }

    /// The agent takes the drive from the machine, in the middle of everything, and will plug in the new one.
    pub(crate) fn unplug_machine(&mut self, loan: usize) {
        let Some(memory) = self.memories.clone() else { return };
        let who = self.nodes[BORROWER].who();
        self.guests[loan].crash(who, &mut self.loans[loan].shared, &memory);
        self.slots[loan].connected = false;
        self.slots[loan].excuses.left();
        self.report.log.event(self.clock.now, None, "unplug", loan as u64, 0);
        self.end_session(loan);
        self.clock.after(5_000_000, Event::ThinkGuest(loan));
        if !self.dies_here(BORROWER) && self.act(BORROWER, |card, now| card.slot_closed(now, loan)) {
            self.service(BORROWER);
        }
    }

    /// The machine is switched off when its driver has nothing more to do.
    fn end_machine(&mut self, loan: usize) {
        let guest = &mut self.guests[loan];
        if !guest.wants_to_leave() {
            return;
        }
        let Some(memory) = &self.memories else { return };
        guest.gone(memory);
        self.slots[loan].connected = false;
        self.slots[loan].excuses.left();
        self.report.marks.set(Mark::GuestServed);
        self.report.marks.set_if(Mark::MemoryByMessage, guest.machine().has_served());
        self.report.marks.set_if(Mark::MessageRefused, guest.machine().has_refused());
        self.report.marks.set_if(Mark::GuestReset, guest.followed > 0);
        self.report.log.event(self.clock.now, None, "close", loan as u64, guest.completions);
        self.end_session(loan);
        if !self.dies_here(BORROWER) {
            self.act(BORROWER, |card, now| card.slot_closed(now, loan));
        }
    }
}

/// How often the driver of a guest looks at its clock, in nanoseconds.
const GUEST_TICK: u64 = 1_000_000_000;

/// Whether the world of a seed has guests.
pub(crate) fn has_guests(seed: u64) -> bool {
    Random::new(seed ^ GUESTS).chance(150)
}

/// Told from other dice of a seed.
const GUESTS: u64 = 0x9e57_0000_0000;

/// Memory of guests that a world may have.
pub(crate) type SharedMemories<'w> = Option<Rc<crate::guest::Memories<'w>>>;

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest leaves, which its card has told of an answer.
    fn departure(excuses: &mut Excuses, cards: [u64; 3]) {
        excuses.met(cards[0]);
        excuses.answered(cards[1]);
        excuses.answered(cards[2]);
        excuses.left();
    }

    #[test]
    fn a_departure_excuses_a_store_only_if_a_card_died_before_the_last_answer() {
        let mut excuses = Excuses::default();
        for cards in [[1, 1, 1], [1, 2, 2], [2, 5, 5]] {
            departure(&mut excuses, cards);
            excuses.step(1, 0, false);
            assert_eq!(excuses.count(), 0, "{cards:?}");
        }
        departure(&mut excuses, [5, 5, 6]);
        assert_eq!(excuses.count(), 1);
    }

    #[test]
    fn whatever_a_failed_function_is_denied_is_excused_until_it_was_reset() {
        let mut excuses = Excuses::default();
        for (denied, failed, is_closed_out, count) in [
            (1, 0, false, 0),
            // It fails, and the card dies: nothing of that has happened, but for the counts.
            (2, 1, false, 1),
            (4, 2, true, 3),
            (5, 2, true, 4),
            // The reset ends behind the last one.
            (6, 2, false, 5),
            (7, 2, false, 5),
        ] {
            excuses.step(denied, failed, is_closed_out);
            assert_eq!(excuses.count(), count, "{denied} denied");
        }
    }
}
