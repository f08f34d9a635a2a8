use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::messages::{self, ToCard};

/// When a message that found no room is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// What a card is still to be told, in order: a card that is slow to read loses no client. At most one message for each
/// place of a client, one for each limit and growth, as many as it has sent itself, and the one to shut down.
#[derive(Default)]
pub(super) struct Outbox {
    waiting: VecDeque<ToCard>,
    retry_at: Option<Instant>,
}

impl Outbox {
    pub(super) fn push(&mut self, message: ToCard) {
        // Only the last word on a function's limit and on a drive's size counts.
        self.waiting.retain(|earlier| match (earlier, &message) {
            (ToCard::Limit { loan: one, .. }, ToCard::Limit { loan: other, .. }) => one != other,
            (ToCard::Grow { drive: one, .. }, ToCard::Grow { drive: other, .. }) => one != other,
            _ => true,
        });
        self.waiting.push_back(message);
    }

    /// When [`Outbox::flush`] is to be called again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Sends what there is room for. `client` has the connection of a loan and slot; one that is gone need not be told.
    pub(super) fn flush<'a>(
        &mut self,
        to: BorrowedFd<'_>,
        client: impl Fn(usize, usize) -> Option<BorrowedFd<'a>>,
    ) {
        self.retry_at = None;
        while let Some(message) = self.waiting.front() {
            let sent = match *message {
                ToCard::Connection { loan, slot } => match client(loan, slot) {
                    Some(socket) => messages::send(to, message, Some(socket)),
                    None => Ok(()),
                },
                ToCard::Limit { .. } | ToCard::Grow { .. } | ToCard::Persisted { .. } | ToCard::ShutDown => {
                    messages::send(to, message, None)
                }
            };
            match sent {
                Ok(()) => _ = self.waiting.pop_front(),
                Err(error) if is_gone(&error) => {
                    // The card is dying, and its successor is told everything anew.
                    self.waiting.clear();
                }
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
    use std::os::fd::AsFd;

    #[test]
    fn a_card_that_does_not_read_is_told_everything_later() {
        let (agent, card) = messages::pair().unwrap();
        let mut outbox = Outbox::default();
        let flush = |outbox: &mut Outbox| {
            outbox.flush(agent.as_fd(), |_, slot| (slot != 7).then_some(agent.as_fd()));
        };
        for slot in 0..5_000 {
            outbox.push(ToCard::Connection { loan: 1, slot });
        }
        outbox.push(ToCard::ShutDown);
        flush(&mut outbox);
        assert!(outbox.retry_at().is_some(), "the socket has room for everything: the test shows nothing");
        let mut slots = Vec::new();
        loop {
            match messages::receive::<ToCard>(&card).unwrap() {
                Some((ToCard::Connection { loan: 1, slot }, Some(_))) => slots.push(slot),
                Some((message, descriptor)) => {
                    assert!(message == ToCard::ShutDown && descriptor.is_none(), "{message:?}");
                    break;
                }
                None => flush(&mut outbox),
            }
        }
        assert!(slots.into_iter().eq((0..5_000).filter(|slot| *slot != 7)));
        flush(&mut outbox);
        assert_eq!(outbox.retry_at(), None);
    }

    #[test]
    fn a_card_that_is_gone_is_told_nothing() {
        let (agent, card) = messages::pair().unwrap();
        drop(card);
        let mut outbox = Outbox::default();
        outbox.push(ToCard::ShutDown);
        outbox.flush(agent.as_fd(), |_, _| None);
        assert_eq!((outbox.waiting.len(), outbox.retry_at()), (0, None));
    }
}
