//! A borrowed function as a slot of a virtual machine: TLPs on one side, a vfio-user session on the other.
//!
//! The guest's accesses to registers become TLPs through the window; the function's accesses to memory are checked in
//! the same kind of table as every other and copied ([`memory`]), its interrupts are writes to a doorbell window of
//! this card, which programs the function's own vectors with it. What the function looks like is found out once and
//! kept ([`bringup`]); a function whose class is known is shown as that asks for ([`crate::parts`]).
//!
//! The lender may be silent: then the first request fails in its time, in the session, and others at once. A guest that
//! has read a register as all-ones may have given its function up; so nothing of it reaches the guest any more, and it
//! is reset when it is heard. So it is when a posted write found no place meanwhile. The lender may come back as a new
//! incarnation: the function was reset, its vectors and command register are restored, and what was in flight fails. It
//! may end the loan: then the function is not there any more.

mod backlog;
mod bringup;
mod cells;
mod memory;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::rc::Rc;

use base::ledger::{Journal, Pages};
use base::{Instant, Payload, Rule};
use device::MediaId;
use fabric::Window;
use host::vfio_user::{DescriptorId, Request, Session, SessionCells, SlotConfigError};
use host::{Access, AccessError, AccessId};
use link::Port;
use pcie::{Bdf, Completion, Header};

use crate::card::Unusable;
use crate::cells::EdgeGauges;
use crate::endpoint::{Endpoint, Remains};
use crate::parts::GuestView;
use crate::{requests, transaction};
use backlog::Backlog;
use bringup::Stage;
pub use cells::SlotCells;
pub(crate) use memory::DOORBELL;
pub use memory::GuestMemory;
use memory::{GuestDma, Reached};

/// Outputs of one step: keeps the undo log short.
const OUTPUTS_PER_STEP: usize = 256;

/// A function that a virtual machine borrows.
pub struct BorrowedSlot<'m> {
    cells: &'m SlotCells,
    session_cells: &'m SessionCells,
    journal: Journal<'m>,
    gauges: &'m EdgeGauges,
    /// Once the function is known.
    session: Option<Session<'m>>,
    /// Why the function cannot be shown.
    unusable: Option<SlotConfigError>,
    /// How a function is shown whose class is known.
    view: GuestView<'m>,
    reach: GuestDma<'m>,
    backlog: Backlog<'m>,
    /// The way to the function's registers, once there is one.
    window: Option<Window>,
    max_payload: usize,
    /// To be signalled after the commit, each once.
    signals: VecDeque<DescriptorId>,
    /// The card is new, and the one before it may have owed signals.
    owes_signals: bool,
}

impl<'m> BorrowedSlot<'m> {
    /// The slot of loan `loan`, of a machine by which its function is called `function`.
    pub fn new(
        (session, cells): (&'m SessionCells, &'m SlotCells),
        gauges: &'m EdgeGauges,
        pages: Pages<'m>,
        journal: Journal<'m>,
        (loan, function): (usize, Bdf),
    ) -> Self {
        let mut slot = Self {
            cells,
            session_cells: session,
            journal,
            gauges,
            session: None,
            unusable: None,
            view: GuestView::new(&cells.view, journal),
            reach: GuestDma::new(loan, function, pages, journal, gauges),
            backlog: Backlog::new(&cells.backlog, pages, journal),
            window: None,
            max_payload: 0,
            signals: VecDeque::new(),
            owes_signals: true,
        };
        if cells.probed.get() != 0 || slot.stage() == Stage::Unusable {
            slot.recognise();
        }
        slot
    }

    /// The session, once the function is known.
    pub fn session(&self) -> Option<&Session<'m>> {
        self.session.as_ref()
    }

    pub(crate) fn session_mut(&mut self) -> Option<&mut Session<'m>> {
        self.session.as_mut()
    }

    /// Whether the function is known and set up.
    pub fn is_ready(&self) -> bool {
        self.session.is_some() && self.stage() == Stage::Running
    }

    /// Why the function cannot be shown, if so.
    pub fn unusable(&self) -> Option<SlotConfigError> {
        self.unusable
    }

    /// Whether the present guest's function was found to be another one than it was given: it is not there for it any
    /// more.
    pub fn is_replaced(&self) -> bool {
        self.cells.is_replaced()
    }

    /// Accesses of the function to its guest's memory go there from now on.
    pub(crate) fn set_memory(&mut self, memory: Rc<dyn GuestMemory + 'm>) {
        self.reach.set_memory(memory);
    }

    /// Goes on in place of one that has failed in this very card, for its machine alone: the function is gone, and is
    /// reset by the next card.
    fn serve_alone(&mut self, now: Instant, failed: &Self) {
        if let Some(memory) = failed.reach.memory() {
            self.set_memory(memory);
        }
        // First: what is read of it from now on is no word of a function that will answer again.
        self.set_present(now, false);
        match self.session {
            Some(_) => self.fail_function(now),
            None => self.begin_again(),
        }
        if let (Some(session), Some(old)) = (&mut self.session, &failed.session) {
            session.handle_received(now, old.received());
        }
    }

    /// A client has connected. It finds the function as after a reset.
    pub(crate) fn open(&mut self, now: Instant, is_lent: bool) {
        if let Some(session) = self.session.as_mut().filter(|session| session.is_idle()) {
            session.open(now);
            session.set_present(now, is_lent);
        }
    }

    /// The client has gone: the function is reset, so that nothing of it goes on.
    pub(crate) fn closed(&mut self, now: Instant) {
        if self.session.as_ref().is_none_or(Session::is_idle) {
            return;
        }
        self.backlog.abandon();
        self.reset_unasked();
        if let Some(session) = &mut self.session {
            session.closed(now);
        }
        self.cells.replaced.set(self.journal, 0);
        // That takes most of the undo log, and what follows is whole by itself.
        self.journal.commit();
        self.signals.clear();
        self.drain();
    }

    /// The function is there, or not.
    pub(crate) fn set_present(&mut self, now: Instant, present: bool) {
        if let Some(session) = &mut self.session {
            session.set_present(now, present);
        }
    }

    /// The next descriptor that is to be signalled.
    pub(crate) fn poll_signal(&mut self) -> Option<DescriptorId> {
        self.signals.pop_front()
    }

    fn pump_requests(&mut self, now: Instant, port: &mut Port<'m>, open: bool) -> bool {
        let Some(window) = self.window.filter(|_| open) else { return false };
        for _ in 0..OUTPUTS_PER_STEP {
            if !port.may_go_on() {
                return true;
            }
            if !requests::has_room(port) || !self.issue_next(now, port, &window) {
                return false;
            }
        }
        true
    }

    /// Queues the next request. False if there is none.
    fn issue_next(&mut self, now: Instant, port: &mut Port<'m>, window: &Window) -> bool {
        if self.stage() != Stage::Running {
            return self.bring_up(now, port, window);
        }
        let Some(session) = &mut self.session else { return false };
        if session.interrupts.has_change() {
            if !Self::can_program(port) {
                return false;
            }
            let Some((vector, enabled)) = session.interrupts.poll_change() else { return false };
            self.program_vector(now, port, window, vector, enabled);
            return true;
        }
        let Some(request) = session.poll_request() else { return false };
        self.issue(now, port, window, request);
        true
    }

    fn issue(&mut self, now: Instant, port: &mut Port<'m>, window: &Window, request: Request) {
        let access = match request {
            Request::Access(access) => access,
            Request::Reset { id, .. } => return self.reset_for(now, id),
        };
        if let Access::Write { bar, offset, payload: Payload::Inline(bytes) } = access
            && self.knows_class()
            && !self.view.write(bar, offset, bytes.as_slice())
        {
            return;
        }
        // The session keeps accesses inside of BARs, and `slot_config` refuses those that are too large.
        requests::issue(now, port, (window, self.reach.function()), access)
            .expect("BARs that cannot be reached are not shown");
    }

    /// Takes what the session has for this card alone.
    fn drain(&mut self) {
        let closed = self.is_closed_out();
        let Some(session) = &mut self.session else { return };
        self.reach.follow(&session.maps, closed);
        while let Some(descriptor) = session.interrupts.poll_signal() {
            push_signal(&mut self.signals, descriptor);
        }
    }

    fn completion(&mut self, now: Instant, port: &mut Port<'m>, completion: &Completion, payload: &[u8]) {
        if let Some((id, result)) = requests::completed(port, self.gauges, completion, payload) {
            self.answered(now, id, result);
        }
    }

    fn answered(&mut self, now: Instant, id: AccessId, result: Result<&[u8], AccessError>) {
        if bringup::is_own(id) {
            return self.brought(now, id, result);
        }
        let knows_class = self.knows_class();
        let Some(session) = &mut self.session else { return };
        let mut copy = [0; base::INLINE_MAX];
        let place = session.bar_read(id).filter(|_| knows_class);
        let result = match (result, place) {
            (Ok(bytes), Some((bar, offset))) if bytes.len() <= copy.len() => {
                let copy = &mut copy[..bytes.len()];
                copy.copy_from_slice(bytes);
                self.view.read(bar, offset, copy);
                let waits = !self.backlog.is_empty() || session.transfers.has_late_writes();
                if waits && self.journal.rule(Rule::EndBehindWrites) {
                    self.view.settling(bar, offset, copy);
                }
                Ok(&*copy)
            }
            (result, _) => result,
        };
        session.handle_done(now, id, result);
    }

    fn memory_write(&mut self, now: Instant, port: &Port<'m>, request: &pcie::MemoryRequest, payload: &[u8]) {
        if !self.backlog.is_empty() {
            return self.detain_write(now, port, *request, payload);
        }
        match self.reach.write(request, payload) {
            Reached::Done => {}
            Reached::Interrupt(vector) => self.interrupt(vector),
            Reached::ByMessage => self.detain_write(now, port, *request, payload),
        }
    }

    fn memory_read(&mut self, port: &mut Port<'m>, request: &pcie::MemoryRequest) {
        let is_done = self.backlog.is_empty()
            && !matches!(
                self.reach.read(port, request, (self.completer(), self.max_payload)),
                Reached::ByMessage
            );
        if !is_done {
            self.detain_read(port, *request);
        }
    }

    /// The function has interrupted.
    fn interrupt(&mut self, vector: u32) {
        if self.is_closed_out() {
            return;
        }
        let Some(session) = &mut self.session else { return };
        // Greater ones are no vectors either.
        let vector = u16::try_from(vector).unwrap_or(u16::MAX);
        if let Some(descriptor) = session.interrupts.raise(vector) {
            push_signal(&mut self.signals, descriptor);
        }
    }
}

impl<'m> Endpoint<'m> for BorrowedSlot<'m> {
    fn take(&mut self, now: Instant, port: &mut Port<'m>, header: &Header, payload: &[u8]) {
        match header {
            Header::MemoryWrite(request) => self.memory_write(now, port, request, payload),
            Header::MemoryRead(request) => self.memory_read(port, request),
            Header::Completion(completion) => self.completion(now, port, completion, payload),
            Header::ConfigRead(request) | Header::ConfigWrite(request) => {
                transaction::refuse_config(port, self.gauges, request, self.completer());
            }
            Header::Message(_) => self.gauges.malformed_tlps.add(1),
        }
    }

    fn pump(&mut self, now: Instant, port: &mut Port<'m>, is_open: bool) -> bool {
        if core::mem::take(&mut self.owes_signals)
            && let Some(session) = &mut self.session
        {
            session.interrupts.signal_all();
        }
        // Its driver may have given up the memory that the function, which may be alive, still writes to; or it waits
        // for what the function was never told to do.
        if self.session.as_ref().is_some_and(|it| it.presence.poll_misled() | it.presence.poll_lost_write()) {
            self.fail_function(now);
        }
        self.drain();
        let waiting = self.work_off(now, port);
        let more = self.pump_requests(now, port, is_open);
        self.drain();
        more | waiting
    }

    fn handle_timeout(&mut self, now: Instant, port: &mut Port<'m>) {
        // Those that are left are overdue in the next step, too.
        while port.may_go_on()
            && let Some(id) = requests::poll_timed_out(now, port, self.gauges)
        {
            self.answered(now, id, Err(AccessError::Timeout));
        }
        self.end_pause(now);
        if let Some(session) = &mut self.session {
            session.handle_timeout(now);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let session = self.session.as_ref().and_then(Session::poll_timeout);
        [session, self.retry_at()].into_iter().flatten().min()
    }

    fn window(&self) -> Option<&Window> {
        self.window.as_ref()
    }

    fn set_peer(&mut self, window: Option<Window>, max_payload: usize) {
        self.window = window;
        self.max_payload = max_payload;
    }

    fn handle_reset(&mut self, now: Instant) {
        self.begin_anew(now);
    }

    /// Its guest shall not take what another one has left for its own.
    fn forget(&mut self, now: Instant) {
        if self.journal.rule(Rule::TakeFromGuest) {
            self.note_replaced(now);
        }
    }

    fn begin_closing(&mut self, now: Instant) {
        self.set_present(now, false);
    }

    fn end(&mut self, now: Instant) -> bool {
        self.set_present(now, false);
        false
    }

    fn is_ready(&self) -> bool {
        BorrowedSlot::is_ready(self)
    }

    fn unusable(&self) -> Option<Unusable> {
        self.unusable.map(Unusable::Slot)
    }

    /// Nobody else here looks at the drive of a virtual machine.
    fn note_information(&self, bytes: u64, read_only: bool) {
        self.gauges.drive_bytes.set(bytes);
        self.gauges.drive_rights.set(1 + u64::from(read_only));
    }

    fn heard(&mut self, _now: Instant) {
        if let Some(session) = self.session.as_ref().filter(|session| session.presence.is_silent()) {
            session.presence.handle_heard();
        }
    }

    fn is_silent(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.presence.is_silent())
    }

    fn remains(&self) -> Remains {
        Remains::Client
    }

    fn replace(&mut self, now: Instant, failed: &dyn Endpoint<'m>, _given: &[MediaId]) {
        if let Some(failed) = failed.slot() {
            self.serve_alone(now, failed);
        }
    }

    fn slot(&self) -> Option<&BorrowedSlot<'m>> {
        Some(self)
    }

    fn slot_mut(&mut self) -> Option<&mut BorrowedSlot<'m>> {
        Some(self)
    }
}

/// A descriptor that waits to be signalled need not wait twice, so that there are never more than a guest has vectors.
fn push_signal(signals: &mut VecDeque<DescriptorId>, descriptor: DescriptorId) {
    if !signals.contains(&descriptor) {
        signals.push_back(descriptor);
    }
}
