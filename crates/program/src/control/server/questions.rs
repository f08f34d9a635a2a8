//! What the server's thread asks the node's loop: a queue with a bound, and a descriptor that wakes the loop up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::Answers;
use crate::control::capture::{Capture, CaptureOrder};
use crate::control::{Request, Response};

/// Most questions that wait for the node's loop: more than are asked at a time, so that only a loop that stands still
/// has so many.
pub(super) const QUESTIONS_MAX: usize = 32;

/// Who asks, and who answers.
pub(super) fn queue() -> io::Result<(Asker, Questions)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = mpsc::channel(QUESTIONS_MAX);
    Ok((Asker { questions: sender, wake: Arc::clone(&wake) }, Questions { questions: receiver, wake }))
}

enum Question {
    Request { request: Request, reply: oneshot::Sender<Response> },
    Capture { order: CaptureOrder, reply: oneshot::Sender<Result<Capture, String>> },
}

/// Why a question has no answer.
#[derive(Debug, Error)]
pub(super) enum Unanswered {
    /// There are too many.
    #[error("the node is busy: {QUESTIONS_MAX} questions wait for it already; try again in a moment")]
    Busy,
    /// Nobody answers any more.
    #[error("the node has ended")]
    Ended,
}

/// The end of the server's thread.
pub(super) struct Asker {
    questions: mpsc::Sender<Question>,
    wake: Arc<OwnedFd>,
}

impl Asker {
    /// Asks the node, and waits until its loop comes by. A question that nobody waits for any more is not answered.
    pub(super) async fn ask(&self, request: Request) -> Result<Response, Unanswered> {
        let (reply, answer) = oneshot::channel();
        self.put(Question::Request { request, reply })?;
        answer.await.map_err(|_| Unanswered::Ended)
    }

    /// Asks the node to begin a capture.
    pub(super) async fn capture(&self, order: CaptureOrder) -> Result<Result<Capture, String>, Unanswered> {
        let (reply, answer) = oneshot::channel();
        self.put(Question::Capture { order, reply })?;
        answer.await.map_err(|_| Unanswered::Ended)
    }

    fn put(&self, question: Question) -> Result<(), Unanswered> {
        self.questions.try_send(question).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unanswered::Busy,
            mpsc::error::TrySendError::Closed(_) => Unanswered::Ended,
        })?;
        // It fails only where it is readable already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        Ok(())
    }
}

/// The end of the node's loop.
#[derive(Debug)]
pub(super) struct Questions {
    questions: mpsc::Receiver<Question>,
    wake: Arc<OwnedFd>,
}

impl Questions {
    /// Readable when there is something to answer.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Answers what waits.
    pub(super) fn turn(&mut self, node: &mut dyn Answers) {
        // First: whoever asks from here on makes it readable again.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        for _ in 0..QUESTIONS_MAX {
            // Who has gone meanwhile misses the answer.
            match self.questions.try_recv() {
                Ok(Question::Request { request, reply }) if !reply.is_closed() => {
                    let _ = reply.send(node.answer(request));
                }
                Ok(Question::Capture { order, reply }) if !reply.is_closed() => {
                    let _ = reply.send(node.capture(&order));
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn is_readable(questions: &Questions) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec};
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut watched = [PollFd::from_borrowed_fd(questions.as_fd(), PollFlags::IN)];
        rustix::event::poll(&mut watched, Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn all_that_wait_are_answered_in_one_turn() {
        let (asker, mut questions) = queue().unwrap();
        assert!(!is_readable(&questions));
        let mut waiting: Vec<_> = (0..QUESTIONS_MAX).map(|_| Box::pin(asker.ask(Request::Stop))).collect();
        assert!(waiting.iter_mut().all(|it| poll(it.as_mut()).is_pending()));
        assert!(is_readable(&questions));
        questions.turn(&mut |_| Response::Done);
        assert!(!is_readable(&questions));
        for it in &mut waiting {
            assert!(matches!(poll(it.as_mut()), Poll::Ready(Ok(Response::Done))));
        }
    }

    #[test]
    fn a_loop_that_stands_still_has_so_many_questions_and_no_more() {
        let (asker, mut questions) = queue().unwrap();
        let mut waiting: Vec<_> = (0..QUESTIONS_MAX).map(|_| Box::pin(asker.ask(Request::Status))).collect();
        waiting.iter_mut().for_each(|it| assert!(poll(it.as_mut()).is_pending()));
        let one_more = poll(pin!(asker.ask(Request::Stop)));
        let Poll::Ready(Err(error @ Unanswered::Busy)) = one_more else { panic!("{one_more:?}") };
        assert!(error.to_string().contains("try again"), "{error}");
        // Those who have gone do not get an answer, nor is anything done for them.
        waiting.truncate(3);
        let mut answered = 0;
        questions.turn(&mut |request| {
            assert_eq!(request, Request::Status);
            answered += 1;
            Response::Done
        });
        assert_eq!(answered, 3);
        assert!(poll(pin!(asker.ask(Request::Stop))).is_pending(), "there is room again");
    }

    #[test]
    fn who_waits_is_told_of_the_end() {
        let (asker, questions) = queue().unwrap();
        let mut waits = pin!(asker.ask(Request::Status));
        assert!(poll(waits.as_mut()).is_pending());
        drop(questions);
        assert!(matches!(poll(waits), Poll::Ready(Err(Unanswered::Ended))));
        assert!(matches!(poll(pin!(asker.ask(Request::Status))), Poll::Ready(Err(Unanswered::Ended))));
    }
}
