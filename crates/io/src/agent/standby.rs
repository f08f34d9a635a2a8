//! The card that stands by: a process with the plan of the next card, which has done what changes nothing, and waits
//! for the word to take over.
//!
//! It is only a matter of time: where none stands by, or what the next card is to know has changed since, a card is
//! started when it is needed. Whoever stands by has no effect on anything: it has memory and the ring, but neither
//! rails nor images, so that these can leave the node.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use tracing::debug;

use super::{Agent, token};
use crate::messages;
use crate::plan::Encoded;
use crate::process::Child;
use crate::wait::Interest;

/// When one is prepared behind a card that serves: that has met its peers by then.
const SETTLED: Duration = Duration::from_millis(50);
/// When it is prepared anew behind the last change of what it is to know: a start takes time from others, and while
/// much comes and goes nobody stands by.
const CHANGED: Duration = Duration::from_secs(2);
/// When it is tried again after one could not be started, or has ended.
const PAUSE: Duration = Duration::from_secs(10);

/// Who stands by, if anybody.
#[derive(Default)]
pub(super) struct Standby {
    ready: Option<Ready>,
    /// When somebody is to be there who knows the present plan.
    prepare_at: Option<Instant>,
}

/// A process that waits for [`messages::ToCard::TakeOver`].
pub(super) struct Ready {
    pub(super) child: Child,
    pub(super) messages: OwnedFd,
    /// What it was told.
    plan: Encoded,
}

impl Standby {
    /// When [`Agent::prepare_standby`] is to be called.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.prepare_at
    }

    /// There is a card that serves, and that somebody is to follow.
    pub(super) fn note_served(&mut self) {
        self.prepare_at = Some(Instant::now() + SETTLED);
    }

    /// What the next card is to know may have changed.
    pub(super) fn note_change(&mut self) {
        let now = Instant::now();
        // Behind a card that has just begun to serve something is said that the plan knew.
        if self.prepare_at.is_none_or(|at| at > now + SETTLED) {
            self.prepare_at = Some(now + CHANGED);
        }
    }

    /// The process id of whoever stands by and knows, as far as is known, what the next card has to.
    pub(super) fn pid(&self) -> Option<i32> {
        self.ready.as_ref().filter(|_| self.prepare_at.is_none()).map(|ready| ready.child.pid())
    }
}

impl Agent {
    /// Starts whoever is to stand by, if that is due.
    pub(super) fn prepare_standby(&mut self) {
        if self.standby.prepare_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.standby.prepare_at = None;
        if !self.core.record().running || self.core.is_shutting_down() {
            return;
        }
        if let Err(error) = self.try_to_prepare() {
            debug!("no card stands by: {error}");
            self.standby.prepare_at = Some(Instant::now() + PAUSE);
        }
    }

    fn try_to_prepare(&mut self) -> io::Result<()> {
        if !self.may_prepare() {
            drop(self.unwatch_standby());
            return Ok(());
        }
        let plan = self.plan().encode()?;
        if self.standby.ready.as_ref().is_some_and(|ready| ready.plan == plan) {
            return Ok(());
        }
        // Gone before the next one is there: they are as large as each other.
        drop(self.unwatch_standby());
        let (ours, theirs) = messages::pair()?;
        let child = self.spawn(&theirs, &plan.share()?)?;
        self.waiter.register(child.as_fd(), token::STANDBY, Interest::READ)?;
        self.standby.ready = Some(Ready { child, messages: ours, plan });
        Ok(())
    }

    /// A new process begins with copies of all descriptors, and closes those that it is not to have. That must neither
    /// write nor wait, at a time when nothing asks for it.
    fn may_prepare(&self) -> bool {
        let leaving = self.leaving.iter().map(|leaving| &leaving.spec);
        let mut drives = self.spec.drives().map(|(_, drive)| drive).chain(leaving);
        drives.all(|drive| drive.image.info().closes_at_once)
    }

    /// Whoever stands by is to take over, or else is of no use any more. True: it knows the present `plan`.
    pub(super) fn take_standby(&mut self, plan: &Encoded) -> Option<(Ready, bool)> {
        let mut ready = self.unwatch_standby()?;
        let is_there = matches!(ready.child.try_reap(), Ok(None));
        let is_fit = is_there && ready.plan == *plan;
        Some((ready, is_fit))
    }

    /// Whoever stood by has ended.
    pub(super) fn lose_standby(&mut self) {
        drop(self.unwatch_standby());
        self.standby.prepare_at = Some(Instant::now() + PAUSE);
    }

    fn unwatch_standby(&mut self) -> Option<Ready> {
        let ready = self.standby.ready.take()?;
        // One that is not in the set is just as good.
        let _ = self.waiter.deregister(ready.child.as_fd());
        Some(ready)
    }
}
