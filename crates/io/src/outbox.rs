//! What an agent or a card still has to say to the other one: whoever is slow to read loses nothing.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::messages::{self, LoanId};

/// When a message that found no room is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// A message that can wait.
pub(crate) trait Message: Serialize {
    /// What can be said of a loan.
    type OfLoan;

    /// What is said of a loan.
    fn of_loan(loan: LoanId, what: Self::OfLoan) -> Self;

    /// The loan that it is about, if it is about one.
    fn loan(&self) -> Option<LoanId>;

    /// Whether `earlier`, which was not sent yet, need not be sent any more beside this one. There must be an upper
    /// bound for messages of which none supersedes another: it is the outbox's.
    fn supersedes(&self, earlier: &Self) -> bool;

    /// Whether this one must be sent before `earlier`, which was not sent yet.
    fn goes_before(&self, _earlier: &Self) -> bool {
        false
    }
}

/// What travels with a message.
pub(crate) enum Enclosure<'a> {
    /// Nothing.
    None,
    /// A descriptor.
    Descriptor(BorrowedFd<'a>),
    /// Several.
    Descriptors(Vec<BorrowedFd<'a>>),
    /// What it is about is gone: it need not be sent.
    Gone,
}

/// Messages that wait until there is room for them, in order but for those that must not come before a later one; at
/// most one of those that supersede each other.
pub(crate) struct Outbox<M> {
    waiting: VecDeque<M>,
    /// Of each place, the life of the loan that messages are about.
    lives: Vec<u64>,
    retry_at: Option<Instant>,
}

impl<M: Message> Outbox<M> {
    /// For messages about loans that have these lives, by place.
    pub(crate) fn new(lives: Vec<u64>) -> Self {
        Self { waiting: VecDeque::new(), lives, retry_at: None }
    }

    /// Another loan has the place, which may be a new one: what waits to be said of the one before is dropped.
    pub(crate) fn renew(&mut self, place: usize, life: u64) {
        self.waiting.retain(|earlier| earlier.loan().is_none_or(|loan| loan.place != place));
        self.lives.resize(self.lives.len().max(place + 1), 0);
        self.lives[place] = life;
    }

    /// The message waits for [`Outbox::flush`].
    pub(crate) fn push(&mut self, message: M) {
        self.waiting.retain(|earlier| !message.supersedes(earlier));
        let first = self.waiting.iter().position(|earlier| message.goes_before(earlier));
        self.waiting.insert(first.unwrap_or(self.waiting.len()), message);
    }

    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A message about the loan that has this place.
    pub(crate) fn of(&self, place: usize, what: impl Into<M::OfLoan>) -> M {
        let life = self.lives.get(place).copied().unwrap_or_default();
        M::of_loan(LoanId { place, life }, what.into())
    }

    /// It waits for [`Outbox::flush`].
    pub(crate) fn push_of(&mut self, place: usize, what: impl Into<M::OfLoan>) {
        self.push(self.of(place, what));
    }

    /// When [`Outbox::flush`] is to be called again.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// In how long that is.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether [`Outbox::flush`] has something to do now.
    pub(crate) fn is_due(&self) -> bool {
        !self.waiting.is_empty() && self.retry_at.is_none_or(|at| at <= Instant::now())
    }

    /// Sends what there is room for. `enclosure` has what travels with a message.
    pub(crate) fn flush<'a>(&mut self, to: BorrowedFd<'_>, enclosure: impl Fn(&M) -> Enclosure<'a>) {
        self.retry_at = None;
        while let Some(message) = self.waiting.front() {
            let sent = match enclosure(message) {
                Enclosure::None => messages::send(to, message, &[]),
                Enclosure::Descriptor(descriptor) => messages::send(to, message, &[descriptor]),
                Enclosure::Descriptors(descriptors) => messages::send(to, message, &descriptors),
                Enclosure::Gone => Ok(()),
            };
            match sent {
                Ok(()) => _ = self.waiting.pop_front(),
                // Who is dying has a successor that is told everything anew.
                Err(error) if is_gone(&error) => self.waiting.clear(),
                Err(_) => {
                    self.retry_at = Some(Instant::now() + RETRY);
                    return;
                }
            }
        }
    }
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{FromLoan, ToAgent, ToCard, ToLoan, ToRail};
    use base::ids::{NodeId, RailId};
    use node::{Name, RailConfig, Refusal};
    use std::os::fd::AsFd;

    #[test]
    fn a_card_that_does_not_read_is_told_everything_later() {
        let (agent, card) = messages::pair().unwrap();
        let mut outbox = Outbox::new(vec![3; 2]);
        let flush = |outbox: &mut Outbox<ToCard>| {
            outbox.flush(agent.as_fd(), |message| match message {
                ToCard::Loan(_, ToLoan::Connection { slot: 7 }) => Enclosure::Gone,
                ToCard::Loan(..) => Enclosure::Descriptor(agent.as_fd()),
                _ => Enclosure::None,
            });
        };
        for slot in 0..2_000 {
            outbox.push_of(1, ToLoan::Connection { slot });
        }
        outbox.push(ToCard::ShutDown);
        assert!(outbox.is_due());
        flush(&mut outbox);
        assert!(outbox.retry_at().is_some(), "the socket has room for everything: the test shows nothing");
        let mut slots = Vec::new();
        loop {
            match messages::receive::<ToCard>(&card).unwrap() {
                Some((ToCard::Loan(loan, ToLoan::Connection { slot }), enclosed)) => {
                    assert_eq!((loan, enclosed.len()), (LoanId { place: 1, life: 3 }, 1));
                    slots.push(slot);
                }
                Some((message, enclosed)) => {
                    assert!(message == ToCard::ShutDown && enclosed.is_empty(), "{message:?}");
                    break;
                }
                None => flush(&mut outbox),
            }
        }
        assert!(slots.into_iter().eq((0..2_000).filter(|slot| *slot != 7)));
        flush(&mut outbox);
        assert_eq!((outbox.retry_at(), outbox.is_due()), (None, false));
    }

    #[test]
    fn a_card_that_is_gone_is_told_nothing() {
        let (agent, card) = messages::pair().unwrap();
        drop(card);
        let mut outbox = Outbox::new(vec![3; 2]);
        outbox.push(ToCard::ShutDown);
        outbox.flush(agent.as_fd(), |_| Enclosure::None);
        assert_eq!((outbox.waiting.len(), outbox.retry_at()), (0, None));
    }

    #[test]
    fn a_card_that_does_not_read_is_told_of_each_parked_connection_once() {
        let mut outbox = Outbox::new(vec![3; 2]);
        for _ in 0..3 {
            (0..1024).for_each(|number| outbox.push(ToCard::Parked { number }));
            outbox.push(ToCard::AllParked);
        }
        assert_eq!(outbox.waiting.len(), 1024 + 1);
    }

    /// Whatever it has read when the next reload comes.
    #[test]
    fn a_card_that_reads_late_is_never_without_a_rail() {
        let config = RailConfig { max_frame: 1500 };
        let reloads: [&[usize]; 6] = [&[1], &[2], &[0, 3], &[1], &[0], &[2, 3]];
        // How many messages it reads after each reload, as digits.
        for read in 0..4_usize.pow(reloads.len() as u32) {
            let mut outbox = Outbox::new(Vec::new());
            let (mut wanted, mut had) = (vec![0], vec![0]);
            for (turn, rails) in reloads.iter().enumerate() {
                let come = rails.iter().filter(|rail| !wanted.contains(*rail));
                come.for_each(|rail| {
                    let plan = crate::plan::RailPlan { offload: false, gateway: None };
                    let come = ToRail::Come { config, plan };
                    outbox.push(ToCard::Rail(RailId::ALL[*rail], come));
                });
                let go = wanted.iter().filter(|rail| !rails.contains(rail));
                go.for_each(|rail| outbox.push(ToCard::Rail(RailId::ALL[*rail], ToRail::Go)));
                wanted = rails.to_vec();
                let is_last = turn + 1 == reloads.len();
                let count = if is_last { usize::MAX } else { read >> (2 * turn) & 3 };
                let count = count.min(outbox.waiting.len());
                for message in outbox.waiting.drain(..count) {
                    let ToCard::Rail(rail, what) = message else { panic!("{message:?}") };
                    had.retain(|it| RailId::ALL[*it] != rail);
                    if what != ToRail::Go {
                        had.push(rail.index());
                    }
                    assert!(!had.is_empty(), "reading {read:#x}: none is left in reload {turn}");
                }
            }
            had.sort_unstable();
            assert_eq!(had, wanted);
        }
    }

    #[test]
    fn an_agent_that_does_not_read_costs_no_memory_and_misses_nothing_that_counts() {
        let (agent, card) = messages::pair().unwrap();
        let mut outbox: Outbox<ToAgent> = Outbox::new(vec![3; 2]);
        let refused = |since_s| {
            let (by, node, since) =
                (Name::new("seven"), NodeId::numbered(8), Some(Duration::from_secs(since_s)));
            let refusal = Refusal::InUse { by, node, since, hold: None };
            FromLoan::Refused(refusal)
        };
        let mut turns = 0;
        while turns < 10 || outbox.retry_at().is_none() {
            turns += 1;
            for since_s in 0..100 {
                outbox.push_of(0, refused(since_s));
                outbox.flush(card.as_fd(), |_| Enclosure::None);
            }
        }
        let must_arrive = [
            (0, FromLoan::Disconnected { slot: 3 }),
            (1, FromLoan::Disconnected { slot: 3 }),
            (0, FromLoan::Ready),
            (0, FromLoan::GivenBack { has_lost: false }),
        ];
        let of = |(place, what): (usize, FromLoan)| ToAgent::Loan(LoanId { place, life: 3 }, what);
        for _ in 0..1_000 {
            must_arrive.iter().for_each(|(place, what)| outbox.push_of(*place, what.clone()));
            outbox.push_of(0, refused(7));
            outbox.flush(card.as_fd(), |_| Enclosure::None);
        }
        assert_eq!(outbox.waiting.len(), must_arrive.len() + 1);
        let mut received = Vec::new();
        while !outbox.waiting.is_empty() {
            while let Some((message, _)) = messages::receive::<ToAgent>(&agent).unwrap() {
                received.push(message);
            }
            outbox.flush(card.as_fd(), |_| Enclosure::None);
        }
        while let Some((message, _)) = messages::receive::<ToAgent>(&agent).unwrap() {
            received.push(message);
        }
        assert_eq!(received.last(), Some(&of((0, refused(7)))));
        assert_eq!(received[received.len() - 5..received.len() - 1], must_arrive.map(of));
    }
}
