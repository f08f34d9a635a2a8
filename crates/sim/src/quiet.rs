//! Whether everything has ended, as it should, and why it has not.

use link::State;
use link::pair::Channel;
use node::{Card, LoanParts};

use crate::checkers::names;
use crate::marks::{Mark, Marks};
use crate::nodes::Node;
use crate::slot::Guests;
use crate::stage::{BORROWER, LENDER, Stage};
use crate::world::World;

impl Node<'_> {
    /// Whether it has its stream, or has given it back: one that asks for it may have to write again what it keeps.
    fn is_settled(&self, loan: usize) -> bool {
        let card = self.card.as_ref();
        card.is_some_and(|card| matches!(card.state(loan), State::Open | State::Closed))
    }

    fn is_idle(&self) -> bool {
        self.card.as_ref().is_some_and(Card::is_idle)
    }

    /// Pages of writes that it keeps until they are flushed.
    fn pages_kept(&self, loan: usize) -> usize {
        let drive = self.card.as_ref().and_then(|card| card.borrowed(loan));
        drive.map_or(0, |drive| drive.driver.kept().1)
    }

    fn pages_used(&self, loan: usize) -> usize {
        self.card.as_ref().map_or(usize::MAX, |card| card.pages(loan).used())
    }

    /// All that was used was granted again, and for non-posted requests that is as much as at the beginning. Of the
    /// last of it a sender may not know: a frame that told of it was lost, and who needs it asks.
    fn credits_are_whole(&self, other: &Self, loan: usize) -> bool {
        let Some((one, other)) = self.card.as_ref().zip(other.card.as_ref()) else { return false };
        [(one, other), (other, one)].iter().all(|(sender, receiver)| {
            let (used, believed) = sender.stream(loan).port.sender.credits();
            let granted = receiver.stream(loan).receiver().granted();
            let fresh = granted[2] >= used[2] + 2 && granted[0] >= used[0] + 3;
            let is_true = believed.iter().zip(&granted).all(|(believed, granted)| believed <= granted);
            is_true && fresh
        })
    }

    /// How a loan stands, for a report.
    fn unrest(&self, loan: usize) -> Option<String> {
        let card = self.card.as_ref()?;
        let flow = card.stream(loan);
        let sender = &flow.port.sender;
        let mut text = format!(
            "{:?}, next {} committed {} blocked {} tags {} expected {} pages {} credits {:?} grants {:?}",
            card.state(loan),
            sender.next(),
            sender.committed(),
            sender.is_blocked(),
            flow.port.tags.outstanding(),
            flow.receiver().expected(),
            card.pages(loan).used(),
            sender.credits(),
            flow.receiver().granted(),
        );
        if let Some(session) = card.slot(loan).and_then(|slot| slot.session()) {
            let counters = session.counters();
            text += &format!(
                " slot in flight {} transfers {} failed {} time-outs {} dropped writes {}",
                session.in_flight(),
                counters.transfers.get(),
                counters.failed_transfers.get(),
                counters.timeouts.get(),
                counters.dropped_writes.get()
            );
        }
        if let Some(drive) = card.borrowed(loan) {
            let (driver, server) = (&drive.driver, &drive.server);
            text += &format!(
                " driver {:?} in flight {} server in flight {} abandoned {}",
                driver.state(),
                driver.in_flight(),
                server.in_flight(),
                server.abandoned()
            );
        }
        Some(text)
    }

    /// The rare situations that only its counters tell of.
    fn gauge(&self, loan: usize, marks: &mut Marks) {
        let Some(LoanParts { cells, .. }) = self.ledger().loan(loan, 0) else { return };
        marks.set_if(Mark::CompletionTimeout, cells.edge.completion_timeouts.get() > 0);
        let Some(card) = self.card.as_ref() else { return };
        marks.set_if(Mark::Retransmission, card.stream(loan).stats().retransmissions.get() > 0);
        let Some(stats) = card.channel_of(loan).map(Channel::stats) else { return };
        marks.set_if(Mark::ForgeryRefused, stats.dropped_auth.get() > 0);
        marks.set_if(Mark::ReplayRefused, stats.dropped_replay.get() > 0);
        marks.set_if(Mark::HandshakeDuringIo, stats.handshakes.get() > 1);
    }
}

impl World<'_> {
    /// Whether everything has ended as it should.
    pub(crate) fn is_quiet(&self) -> bool {
        let lender = &self.stage.nodes[LENDER];
        self.disks.media.iter().all(|media| media.are_quiet(lender.card.as_ref()))
            && self.clients.all().all(|client| client.is_done() && client.is_away())
            && self.guests().all(|guest| guest.is_done() && guest.is_away())
            && self.stage.loans.iter().enumerate().all(|(loan, lent)| {
                let holder = &self.stage.nodes[lent.tenure.holder.unwrap_or(BORROWER)];
                // With a rival, the last one may have gone with or without a word: then nobody hears the lender.
                (self.contest.is_some() && holder.is_away)
                    || (lender.is_idle()
                        && holder.is_idle()
                        && holder.is_settled(loan)
                        && lender.pages_used(loan) == 0
                        && holder.pages_used(loan) == holder.pages_kept(loan)
                        && lender.credits_are_whole(holder, loan))
            })
    }

    /// Why it is not quiet, for a report.
    pub(crate) fn unrest(&self) -> String {
        let guests: Vec<String> = self.guests.iter().flat_map(Guests::unanswered).collect();
        let mut text = format!("clients {:?}, guests {guests:?}", self.clients.unanswered());
        for (index, node) in self.stage.nodes.iter().enumerate() {
            for loan in 0..self.stage.loans.len() {
                let unrest = node.unrest(loan).map(|what| format!("; node {index} loan {loan}: {what}"));
                text.extend(unrest);
            }
        }
        text
    }

    /// It is quiet: the disk is what the model says, and nothing has strayed.
    pub(crate) fn finish(&mut self) {
        let Stage { nodes, loans, report, .. } = &mut self.stage;
        for (loan, lent) in loans.iter_mut().enumerate() {
            let tick = lent.shared.next_tick();
            let verdict = lent.shared.model.finally(lent.disk.blocks(), tick);
            report.judge(names::DISK, verdict.map_err(|what| format!("in the end, {what}")));
            nodes.iter().for_each(|node| node.gauge(loan, &mut report.marks));
        }
    }
}
