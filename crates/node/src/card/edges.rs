//! The edges of drives: what the driver of a card tells an NBD server of its clients, and asks it.

use base::Instant;
use base::ledger::Span;
use host::nbd::Server;

use super::Card;
use crate::borrower::BorrowedDrive;
use crate::loan::Loan;
use crate::loan_table::Asker;

impl<'m> Card<'m> {
    /// A client has connected to the edge of `loan`; `slot` is idle.
    pub fn edge_open(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| {
            if server.is_idle(slot) {
                server.open(now, slot);
            }
        });
    }

    /// As [`Card::slot_resume`].
    pub fn edge_resume(&mut self, now: Instant, loan: usize, slot: usize, moved: Option<[u64; 2]>) {
        match (moved, self.edge_is_idle(loan, slot)) {
            (None, true) => {}
            (None, false) => self.edge_closed(now, loan, slot),
            (Some(_), true) => self.edge_open(now, loan, slot),
            (Some([received, sent]), false) => {
                self.edge_sent(now, loan, slot, sent);
                self.edge_received(now, loan, slot, received);
            }
        }
    }

    /// What is borrowed is there for programs no more: their requests end, those that have not ended with `EIO`, and
    /// they are disconnected. What was answered is kept for the lender.
    pub fn edge_leave(&mut self, now: Instant, loan: usize) {
        self.edge_step(now, loan, |server| server.evict_clients(now));
    }

    /// The client in `slot` has gone, or was closed.
    pub fn edge_closed(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| server.closed(now, slot));
    }

    /// The client in `slot` will send nothing more.
    pub fn edge_ended(&mut self, now: Instant, loan: usize, slot: usize) {
        self.edge_step(now, loan, |server| server.ended(now, slot));
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

    /// The loans of which a client may be owed something, or may have room, that it was not before: asked for again, it
    /// names those that have changed since.
    pub fn poll_stirred(&self) -> impl Iterator<Item = usize> + use<> {
        self.loans.take_changed(Asker::Edges).iter()
    }

    /// Whether the client in `slot` is to be disconnected.
    pub fn edge_wants_close(&self, loan: usize, slot: usize) -> bool {
        let has_failed = self.loans.get(loan).is_none_or(Loan::has_failed);
        has_failed || self.server(loan).is_some_and(|server| server.wants_close(slot))
    }

    /// Whether the client in `slot` has said that it goes, and requests of it have not ended, which are done even if it
    /// is gone.
    pub fn edge_is_leaving(&self, loan: usize, slot: usize) -> bool {
        self.server(loan).is_some_and(|server| server.is_leaving(slot))
    }

    fn server(&self, loan: usize) -> Option<&Server<'m>> {
        let is_there = |_: &&BorrowedDrive<'_>| self.loans.get(loan).is_some_and(|loan| !loan.has_failed());
        self.borrowed(loan).filter(is_there).map(|drive| &drive.server)
    }

    fn edge_step(&mut self, now: Instant, loan: usize, act: impl FnOnce(&mut Server<'m>)) {
        self.step_one(now, loan, |card| {
            if let Some(drive) = card.loans[loan].end.drive_mut() {
                act(&mut drive.server);
            }
        });
    }
}
