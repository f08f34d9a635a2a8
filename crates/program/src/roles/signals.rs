//! Signals that ask a node, or who watches one, to end.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::exit::Exit;

/// What a hangup of the terminal, or `kill -HUP`, asks of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hangup {
    /// To end in order, unless it was started to outlive its terminal (`nohup`).
    Ends,
    /// Something else, which [`Hangups`] tells.
    Reloads,
}

/// SIGTERM, SIGINT and perhaps SIGHUP, read by the node's loop.
pub(crate) struct Signals {
    pipe: UnixStream,
    signals: Vec<i32>,
    was_asked: bool,
}

impl Signals {
    pub(crate) fn listen(hangup: Hangup) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut signals = vec![SIGTERM, SIGINT];
        if hangup == Hangup::Ends && !is_ignored(SIGHUP) {
            signals.push(SIGHUP);
        }
        for signal in &signals {
            low_level::pipe::register(*signal, theirs.try_clone()?)?;
        }
        Ok(Self { pipe: ours, signals, was_asked: false })
    }

    /// Whether a signal has come since the last look.
    pub(crate) fn take(&mut self) -> Option<Asked> {
        let mut bytes = [0; 16];
        let has_come = (&self.pipe).read(&mut bytes).is_ok_and(|count| count > 0);
        has_come.then(|| match std::mem::replace(&mut self.was_asked, true) {
            false => Asked::First,
            true => Asked::Again,
        })
    }

    /// Nobody reads the pipe from here on, and a disk may take its time: a signal ends the process as it is. The first
    /// one does not, as a node may end by itself just when it is asked to.
    pub(super) fn end_when_asked_again(&mut self) -> io::Result<()> {
        let again = Arc::new(AtomicBool::new(self.was_asked));
        self.signals.iter().try_for_each(|signal| end_at_second(*signal, &again))?;
        // One that came before that is in the pipe.
        if self.take().is_some() {
            again.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}

/// SIGHUP, which asks a node with a file to read it again.
pub(super) struct Hangups {
    pipe: UnixStream,
}

impl Hangups {
    pub(super) fn listen() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        low_level::pipe::register(SIGHUP, theirs)?;
        Ok(Self { pipe: ours })
    }

    /// Whether one has come since the last look.
    pub(super) fn take(&mut self) -> bool {
        let mut bytes = [0; 16];
        (&self.pipe).read(&mut bytes).is_ok_and(|count| count > 0)
    }
}

impl AsFd for Hangups {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// What a signal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// End in order.
    First,
    /// End without waiting for anybody.
    Again,
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// Whether this process was started with the signal ignored. Where `/proc` does not tell, it was not.
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

/// The same by the text of a process's status: a mask in hexadecimal, the lowest bit of which is signal 1 (proc(5)).
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The signal ends the process where `again` is set, and sets it where not. The order of the two matters.
fn end_at_second(signal: i32, again: &Arc<AtomicBool>) -> io::Result<()> {
    flag::register_conditional_shutdown(signal, Exit::Failed.code().into(), Arc::clone(again))?;
    flag::register(signal, Arc::clone(again))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_started_by_nohup_ignores_hangups() {
        let status = |mask: &str| format!("Name:\tcauseway\nSigBlk:\t0000000000000000\nSigIgn:\t{mask}\n");
        assert!(ignores(&status("0000000000001001"), SIGHUP));
        assert!(!ignores(&status("0000000000001000"), SIGHUP));
        assert!(!ignores("", SIGHUP) && !ignores(&status("?"), SIGHUP));
    }

    /// A signal that only this test uses: one that ends the process would end all tests.
    #[test]
    fn who_is_asked_for_the_first_time_while_it_ends_goes_on_to_its_end() {
        let again = Arc::new(AtomicBool::new(false));
        end_at_second(signal_hook::consts::SIGUSR2, &again).unwrap();
        low_level::raise(signal_hook::consts::SIGUSR2).unwrap();
        assert!(again.load(Ordering::SeqCst), "the next one ends it");
    }
}
