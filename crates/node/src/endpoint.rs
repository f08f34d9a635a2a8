//! What a card asks of whatever stands behind a stream, and the one place where that is composed.
//!
//! A loan has its stream, how that begins and ends, and an endpoint. Today that is a lent function, the driver of a
//! borrowed drive, or the slot of a virtual machine; memory that programs share and pipes between them will be others.
//! Each is made of cores in `device` and `host`, and knows its grants: what the other end may reach of it.

use base::Instant;
use base::ledger::{Journal, Pages};
use device::{MediaFunction, MediaId};
use fabric::Window;
use link::Port;
use pcie::{Bdf, Header};

use crate::borrower::BorrowedDrive;
use crate::card::Unusable;
use crate::cells::{EndCells, LoanParts};
use crate::config::{BorrowEdge, LendConfig, LoanRole};
use crate::drive::Drive;
use crate::lender::LentFunction;
use crate::parts::Controller;
use crate::slot::BorrowedSlot;
use crate::transaction::requester_of;

/// What of an endpoint goes on when an assertion has failed in a step of its loan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Remains {
    /// Nothing.
    Nothing,
    /// Work for the medium comes to its end: others may wait for that.
    Work,
    /// Its client is answered.
    Client,
}

/// What stands behind a stream.
///
/// Every verb is part of a step of its loan. What an endpoint does not have, such as a medium, it leaves out.
pub(crate) trait Endpoint<'m> {
    /// Takes a TLP that has come, which bears the requester id of the stream and is for this endpoint
    /// ([`crate::apertures::Gate`]). What the requester may do here is the endpoint's own word. Never waits and never
    /// refuses to take it.
    fn take(&mut self, now: Instant, port: &mut Port<'m>, header: &Header, payload: &[u8]);

    /// Moves what is to be done between its parts, and to the stream if that is open. True if there may be more, which
    /// is then for the next step.
    fn pump(&mut self, now: Instant, port: &mut Port<'m>, is_open: bool) -> bool;

    /// Requests without completion in time, and what waits otherwise.
    fn handle_timeout(&mut self, now: Instant, port: &mut Port<'m>);

    /// When `handle_timeout` is to be called. Nothing but a step of its loan changes that, unless it depends on others.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Whether what happens in other loans can give it something to do.
    fn depends_on_others(&self) -> bool {
        false
    }

    /// Whether an answer is awaited for which its card is to stay awake.
    fn is_waiting(&self, port: &Port<'m>) -> bool {
        port.tags.outstanding() > 0
    }

    /// The way to the other end, once there is one.
    fn window(&self) -> Option<&Window>;

    /// There is a way to the other end, or none any more.
    fn set_peer(&mut self, window: Option<Window>, max_payload: usize);

    /// What completions for the other end bear: as that knows this one.
    fn completer(&self) -> Bdf {
        self.window().map_or(Bdf(0), Window::requester)
    }

    /// Another stream begins, or none does: what was in the one before is over.
    fn handle_reset(&mut self, now: Instant);

    /// Its stream is open, and leads somewhere.
    fn handle_open(&mut self, _now: Instant) {}

    /// Somebody else has used what is borrowed since this node did: what was meant for that is not for what is there
    /// now.
    fn forget(&mut self, _now: Instant) {}

    /// What is borrowed is to be given back: leaves it in order, which has happened once [`Endpoint::may_close`] says
    /// so.
    fn begin_closing(&mut self, _now: Instant) {}

    /// The same at once, and by force: nobody waits for the lender any more.
    fn give_up(&mut self, now: Instant) {
        self.begin_closing(now);
    }

    /// Whether what is borrowed can be given back.
    fn may_close(&self) -> bool {
        true
    }

    /// What was borrowed is given back, or there was nothing. True if something that was answered is lost.
    fn end(&mut self, _now: Instant) -> bool {
        false
    }

    /// Whether whoever uses it can be served.
    fn is_ready(&self) -> bool {
        false
    }

    /// Why what is borrowed cannot be used.
    fn unusable(&self) -> Option<Unusable> {
        None
    }

    /// What the lender says of its function: bytes, and whether they can only be read.
    fn note_information(&self, _bytes: u64, _read_only: bool) {}

    /// Renews what gauges show of it.
    fn publish(&self) {}

    /// The other end has answered this very card.
    fn heard(&mut self, _now: Instant) {}

    /// Whether its client is told that the other end is silent.
    fn is_silent(&self) -> bool {
        false
    }

    /// What of it goes on when its loan has failed.
    fn remains(&self) -> Remains {
        Remains::Nothing
    }

    /// Goes on in place of one that has failed in this very card, as far as [`Endpoint::remains`] says. Work for the
    /// medium that is in `given` was given out by that one.
    fn replace(&mut self, _now: Instant, _failed: &dyn Endpoint<'m>, _given: &[MediaId]) {}

    /// The function that it lends.
    fn function(&self) -> Option<&(dyn MediaFunction + 'm)> {
        None
    }

    /// The same, to have it do something.
    fn function_mut(&mut self) -> Option<&mut (dyn MediaFunction + 'm)> {
        None
    }

    /// For the driver of the card that serves a drive's clients: the drive.
    fn drive(&self) -> Option<&BorrowedDrive<'m>> {
        None
    }

    /// The same, to have it do something.
    fn drive_mut(&mut self) -> Option<&mut BorrowedDrive<'m>> {
        None
    }

    /// For the driver of the card that serves a machine: its slot.
    fn slot(&self) -> Option<&BorrowedSlot<'m>> {
        None
    }

    /// The same, to have it do something.
    fn slot_mut(&mut self) -> Option<&mut BorrowedSlot<'m>> {
        None
    }
}

/// Composes the endpoint of the loan in `place`.
pub(crate) fn compose<'m>(
    parts: LoanParts<'m>,
    role: &LoanRole,
    (journal, pages): (Journal<'m>, Pages<'m>),
    drives: &[Option<Drive<'m>>],
    place: usize,
    now: Instant,
) -> Box<dyn Endpoint<'m> + 'm> {
    let (gauges, at) = (&parts.cells.edge, (place, requester_of(place)));
    match (parts.end, role) {
        (EndCells::Lent(function), LoanRole::Lend(LendConfig { drive, controller, limit, .. })) => {
            let drive =
                drives[*drive].as_ref().expect("a configuration has the drives that it lends functions of");
            let subsystem = &drive.subsystem;
            let mut function = Controller::in_subsystem(function, pages, subsystem, *controller);
            if function.limit() != *limit {
                function.set_limit(now, *limit);
            }
            Box::new(LentFunction::new(Box::new(function), pages, gauges, at))
        }
        (EndCells::Drive { driver, server }, LoanRole::Borrow { io_timeout, edge, .. }) => {
            let drive = BorrowedDrive::new((driver, server), gauges, pages, journal, at, *io_timeout);
            Box::new(if *edge == BorrowEdge::Program { drive.for_program() } else { drive })
        }
        (EndCells::Slot { session, slot }, _) => {
            Box::new(BorrowedSlot::new((session, slot), gauges, pages, journal, at))
        }
        _ => unreachable!("the cells of a loan are those of its role, and only a slot outlives its loan"),
    }
}
