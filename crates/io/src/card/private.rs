use std::io;
use std::os::fd::AsFd;

use base::Instant;
use node::Card;

use super::token;
use crate::messages::ToAgent;
use crate::outbox::Outbox;
use crate::shm::ring::FRAME_MAX;
use crate::shm::{PrivatePath, Shared, Side};
use crate::wait::{Interest, Waiter};

/// Frames taken from one peer in a turn, so that nothing else waits for long.
const RECEIVE_LIMIT: usize = 64;

/// The memory that the loans of a card share with their peers.
pub(super) struct Private {
    /// By loan.
    paths: Vec<Option<PrivatePath>>,
    /// Loans that have one: mostly few of many, and each turn asks all of these.
    attached: Vec<usize>,
    sides: Vec<Side>,
    /// Where a frame is built for which there is no room: it is lost, as on any medium.
    scrap: Box<[u8]>,
    is_scrapped: bool,
    /// Loans to which something was written since the last call of [`Private::wake_readers`].
    written: Vec<usize>,
}

impl Private {
    pub(super) fn new(sides: Vec<Side>) -> Self {
        let paths = sides.iter().map(|_| None).collect();
        let scrap = vec![0; FRAME_MAX].into();
        Self { paths, attached: Vec::new(), sides, scrap, is_scrapped: false, written: Vec::new() }
    }

    /// Memory from the agent: new, or what a dead card has used.
    pub(super) fn attach(
        &mut self,
        loan: usize,
        shared: Shared,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<()> {
        self.detach(loan, card, now, waiter)?;
        let Some(&side) = self.sides.get(loan) else { return Ok(()) };
        let Ok(path) = PrivatePath::attach(side, shared) else {
            to_agent.push(ToAgent::Nonsense { loan });
            return Ok(());
        };
        waiter.register(path.bell.as_fd(), token::PRIVATE + loan as u64, Interest::READ)?;
        self.paths[loan] = Some(path);
        self.attached.push(loan);
        card.set_private(now, loan, true);
        Ok(())
    }

    /// The place has another loan, which is on this side and shares nothing yet.
    pub(super) fn renew(
        &mut self,
        loan: usize,
        side: Side,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
    ) -> io::Result<()> {
        self.detach(loan, card, now, waiter)?;
        if loan == self.sides.len() {
            self.sides.push(side);
            self.paths.push(None);
        }
        self.sides[loan] = side;
        Ok(())
    }

    /// The loan shares nothing any more.
    pub(super) fn detach(
        &mut self,
        loan: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
    ) -> io::Result<()> {
        if let Some(path) = self.paths.get_mut(loan).and_then(Option::take) {
            self.attached.retain(|&attached| attached != loan);
            // The agent holds a copy, which would keep it in the set.
            waiter.deregister(path.bell.as_fd())?;
            card.set_private(now, loan, false);
        }
        Ok(())
    }

    /// Takes what has come. True if that was anything.
    pub(super) fn receive(
        &mut self,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<bool> {
        let mut busy = false;
        // Backwards, since who is given up leaves the list.
        for at in (0..self.attached.len()).rev() {
            let loan = self.attached[at];
            let Some(path) = self.paths[loan].as_mut().filter(|path| !path.reader.is_empty()) else {
                continue;
            };
            busy = true;
            let read = path.reader.read(RECEIVE_LIMIT, |frame| card.handle_private_frame(now, loan, frame));
            if read.is_err() {
                self.give_up(loan, card, now, waiter, to_agent)?;
            }
        }
        Ok(busy)
    }

    /// The peer of `loan` has rung, or is gone.
    pub(super) fn hear(
        &mut self,
        loan: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<()> {
        let Some(path) = self.paths.get(loan).and_then(Option::as_ref) else { return Ok(()) };
        if path.bell.hear().is_err() {
            // What it has said last can still be read.
            self.receive(card, now, waiter, to_agent)?;
            self.give_up(loan, card, now, waiter, to_agent)?;
        }
        Ok(())
    }

    /// Room for a frame of `loan`.
    pub(super) fn room(&mut self, loan: usize) -> &mut [u8] {
        let room = self.paths[loan].as_mut().and_then(|path| path.writer.room());
        self.is_scrapped = room.is_none();
        room.unwrap_or(&mut self.scrap)
    }

    /// The frame in the room that was just given is complete.
    pub(super) fn publish(&mut self, loan: usize, len: usize) {
        if let Some(path) = self.paths[loan].as_mut().filter(|_| !self.is_scrapped) {
            path.writer.publish(len);
            if !self.written.contains(&loan) {
                self.written.push(loan);
            }
        }
    }

    /// Wakes those who sleep and have got something.
    pub(super) fn wake_readers(&mut self) {
        for loan in self.written.drain(..) {
            if let Some(path) = self.paths[loan].as_ref().filter(|path| path.writer.has_to_wake()) {
                path.bell.ring();
            }
        }
    }

    /// This card is going to sleep: true if it may, because nothing has come.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.attached().all(|path| path.reader.prepare_sleep())
    }

    /// This card is awake.
    pub(super) fn wake(&self) {
        self.attached().for_each(|path| path.reader.wake());
    }

    fn attached(&self) -> impl Iterator<Item = &PrivatePath> {
        self.attached.iter().filter_map(|&loan| self.paths[loan].as_ref())
    }

    fn give_up(
        &mut self,
        loan: usize,
        card: &mut Card<'_>,
        now: Instant,
        waiter: &Waiter,
        to_agent: &mut Outbox<ToAgent>,
    ) -> io::Result<()> {
        to_agent.push(ToAgent::Nonsense { loan });
        self.detach(loan, card, now, waiter)
    }
}
