//! The edges of slots: what the driver of a card tells a session, and asks it.

use std::rc::Rc;

use base::Instant;
use base::ledger::Span;
use host::vfio_user::{DescriptorId, Peeked, Session};
use link::State;

use super::Card;
use crate::loan::Loan;
use crate::slot::{BorrowedSlot, GuestMemory};

/// Descriptors named at once by [`Card::slot_released`].
const RELEASED_AT_ONCE: usize = 64;

impl<'m> Card<'m> {
    /// Where the memory of guests can be accessed: to be said right after [`Card::new`]. Without it every access to a
    /// guest's memory is refused.
    pub fn set_guest_memory(&mut self, memory: Rc<dyn GuestMemory + 'm>) {
        self.guest_memory = Some(memory);
        (0..self.loans.len()).for_each(|loan| self.reach_guest(loan));
    }

    /// Lets the slot of a loan, if it is one, reach the memory of its guest.
    pub(super) fn reach_guest(&mut self, loan: usize) {
        let slot = self.loans.get_mut(loan).and_then(|loan| loan.end.slot_mut());
        if let (Some(slot), Some(memory)) = (slot, &self.guest_memory) {
            slot.set_memory(Rc::clone(memory));
        }
    }

    /// The slot of a loan, if it is one.
    pub fn slot(&self, loan: usize) -> Option<&BorrowedSlot<'m>> {
        self.loans.get(loan)?.end.slot()
    }

    /// Whether no client is connected, as the ledger has it.
    pub fn slot_is_idle(&self, loan: usize) -> bool {
        self.session(loan).is_none_or(Session::is_idle)
    }

    /// A client has connected. Nothing happens unless the slot is idle and [`super::CardEvent::Ready`] was said of it.
    pub fn slot_open(&mut self, now: Instant, loan: usize) {
        let is_lent = |loan: &Loan<'_>| loan.state() != State::Closed && !loan.has_failed();
        let is_lent = self.loans.get(loan).is_some_and(is_lent);
        self.slot_step(now, loan, |slot| slot.open(now, is_lent));
    }

    /// What a card that begins is told of the client of a slot: how many bytes the kernel has received from it and sent
    /// to it, by its account; `None`: there is no client.
    pub fn slot_resume(&mut self, now: Instant, loan: usize, moved: Option<[u64; 2]>) {
        match (moved, self.slot_is_idle(loan)) {
            (None, true) => {}
            (None, false) => self.slot_closed(now, loan),
            (Some(_), true) => self.slot_open(now, loan),
            (Some([received, sent]), false) => {
                self.slot_sent(now, loan, sent);
                self.slot_received(now, loan, received);
            }
        }
    }

    /// The client has gone, or was closed. Its function is reset.
    pub fn slot_closed(&mut self, now: Instant, loan: usize) {
        self.slot_step(now, loan, |slot| slot.closed(now));
    }

    /// The client will send nothing more.
    pub fn slot_ended(&mut self, now: Instant, loan: usize) {
        self.session_step(now, loan, |session| session.ended(now));
    }

    /// What to do with `bytes`, the first that the socket has, behind the received `position` and after `taken`
    /// messages.
    pub fn slot_peeked(&self, loan: usize, position: u64, taken: u64, bytes: &[u8]) -> Peeked {
        self.session(loan).map_or(Peeked::Wait, |session| session.handle_peeked(position, taken, bytes))
    }

    /// Where at most `len` bytes of the client from `position` on may be put.
    pub fn slot_receive_spans(&self, loan: usize, position: u64, len: usize) -> [Option<Span<'m>>; 2] {
        let Some(session) = self.session(loan) else { return [None; 2] };
        session.receive_spans(position, len).map(|span| (!span.is_empty()).then_some(span))
    }

    /// The kernel has put bytes of the client up to `position` where [`Card::slot_receive_spans`] said.
    pub fn slot_received(&mut self, now: Instant, loan: usize, position: u64) {
        self.session_step(now, loan, |session| session.handle_received(now, position));
    }

    /// The agent has taken message `number` of the slot, with these descriptors.
    pub fn slot_taken(
        &mut self,
        now: Instant,
        loan: usize,
        number: u64,
        bytes: &[u8],
        descriptors: &[DescriptorId],
    ) {
        self.session_step(now, loan, |session| session.handle_taken(now, number, bytes, descriptors));
    }

    /// The number of the last message that was handed in by [`Card::slot_taken`].
    pub fn slot_taken_count(&self, loan: usize) -> u64 {
        self.session(loan).map_or(0, Session::taken)
    }

    /// Fills `spans` with what is to be sent from `position` on; returns how many were filled.
    pub fn slot_send_spans(&self, loan: usize, position: u64, spans: &mut [Span<'m>]) -> usize {
        self.session(loan).map_or(0, |session| session.send_spans(position, spans))
    }

    /// Where the stream to the client ends at present.
    pub fn slot_output_end(&self, loan: usize) -> u64 {
        self.session(loan).map_or(0, Session::output_end)
    }

    /// The kernel has taken bytes for the client up to `position`.
    pub fn slot_sent(&mut self, now: Instant, loan: usize, position: u64) {
        self.session_step(now, loan, |session| session.handle_sent(now, position));
    }

    /// Whether the client is to be disconnected.
    pub fn slot_wants_close(&self, loan: usize) -> bool {
        self.session(loan).is_some_and(Session::wants_close)
    }

    /// Whether the client is between two messages, and everything was answered.
    pub fn slot_is_at_rest(&self, loan: usize) -> bool {
        self.session(loan).is_some_and(Session::is_at_rest)
    }

    /// Whether the guest's driver uses the function: it is there, and has an interrupt.
    pub fn slot_is_in_use(&self, loan: usize) -> bool {
        self.session(loan).is_some_and(Session::is_in_use)
    }

    /// Descriptors that the agent may close, in this order; more may follow.
    pub fn slot_released(&self, loan: usize) -> Vec<DescriptorId> {
        let released =
            self.session(loan).map(|it| it.descriptors.released().take(RELEASED_AT_ONCE).collect());
        released.unwrap_or_default()
    }

    /// The agent has closed a descriptor, the first of [`Card::slot_released`].
    pub fn slot_descriptor_closed(&mut self, now: Instant, loan: usize, descriptor: DescriptorId) {
        self.session_step(now, loan, |session| session.descriptors.handle_closed(descriptor));
    }

    /// Whether the function is there, as its guest sees it.
    pub fn slot_set_present(&mut self, now: Instant, loan: usize, present: bool) {
        self.slot_step(now, loan, |slot| slot.set_present(now, present));
    }

    /// The next descriptor that is to be signalled, with its loan. After a commit: when any other verb has returned.
    pub fn poll_signal(&mut self) -> Option<(usize, DescriptorId)> {
        let mut slots = self.loans.slots();
        slots.find_map(|place| Some((place, self.loans[place].end.slot_mut()?.poll_signal()?)))
    }

    /// The descriptors of the guest's memory, and how many of the bytes of each are mapped, counted from its start. One
    /// that is mapped in several places comes as often.
    pub fn slot_mappings(&self, loan: usize) -> impl Iterator<Item = (DescriptorId, u64)> + '_ {
        let maps = self.session(loan).into_iter().flat_map(|session| session.maps.iter());
        maps.filter_map(|(_, mapping)| Some((mapping.descriptor?, mapping.offset + mapping.len)))
    }

    fn session(&self, loan: usize) -> Option<&Session<'m>> {
        self.slot(loan).and_then(BorrowedSlot::session)
    }

    fn slot_step(&mut self, now: Instant, loan: usize, act: impl Fn(&mut BorrowedSlot<'m>)) {
        let step = |card: &mut Self| {
            if let Some(slot) = card.loans[loan].end.slot_mut() {
                act(slot);
            }
        };
        // If it has just failed, nobody else would tell what is left of it what its machine has done.
        if self.step_one(now, loan, step).is_none() {
            self.step_one(now, loan, step);
        }
    }

    fn session_step(&mut self, now: Instant, loan: usize, act: impl Fn(&mut Session<'m>)) {
        self.slot_step(now, loan, |slot| {
            if let Some(session) = slot.session_mut() {
                act(session);
            }
        });
    }
}
