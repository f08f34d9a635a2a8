//! QEMU's monitor, from a thread of its own: it may be silent for seconds, and the node must not.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use qmp::{Error, Qmp};

use crate::qmp::{Plug, QmpError};

/// How long QEMU may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether it has let go of a device.
const LOOK: Duration = Duration::from_millis(100);

/// Whom an order is about: a slot, and which of its attachments, so that an answer that comes late is not taken for one
/// about the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Subject {
    pub(super) place: usize,
    pub(super) generation: u64,
}

/// What the monitor is to do.
pub(super) enum Task {
    Plug(Plug),
    Unplug(Plug),
    /// The machine, which has the device, is not to be saved or migrated with it.
    Hold(Plug),
    /// It may be, if it does not have the device any more.
    Release(Plug),
    /// The function has not answered its guest.
    ReportTimeout(Plug),
    /// Is there a machine?
    Look,
}

/// What came of it.
pub(super) enum Outcome {
    Plugged,
    Removed,
    /// The device stays in QEMU, dead, for this reason.
    LeftBehind(QmpError),
    NotPlugged(QmpError),
    NotRemoved(QmpError),
    /// Nothing keeps the machine from being saved or migrated with the device, which would be dead then.
    NotHeld(QmpError),
    /// The machine has the device, or does not say.
    StillThere,
    /// It does not have it, or there is no machine. Whether it was kept from being saved and migrated until now.
    Released(bool),
    /// The guest was told that its function has not answered; or why that cannot be.
    Reported(Option<QmpError>),
    /// There is a machine, or none; nothing where it does not say.
    Looked(Option<bool>),
}

/// The thread of a machine's monitor.
pub(super) struct Monitor {
    orders: Sender<(Subject, Task)>,
    answers: Receiver<(Subject, Outcome)>,
    wake_up: UnixStream,
}

/// What the thread works with.
struct Worker {
    path: PathBuf,
    /// A guest that is asked to let go of a device has so long.
    remove_within: Duration,
    /// Devices that QEMU was asked to take out, and has not.
    removals: Vec<Removal>,
    answers: Sender<(Subject, Outcome)>,
    bell: UnixStream,
}

struct Removal {
    subject: Subject,
    plug: Plug,
    until: Instant,
    /// A dead one, for which another is to be plugged in.
    is_replaced: bool,
}

impl Monitor {
    /// For the machine whose QMP socket lies at `path`. A guest that is asked to let go of a device has so long.
    pub(super) fn start(path: PathBuf, remove_within: Duration) -> io::Result<Self> {
        let (orders, todo) = channel();
        let (done, answers) = channel();
        let (wake_up, bell) = UnixStream::pair()?;
        wake_up.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let worker = Worker { path, remove_within, removals: Vec::new(), answers: done, bell };
        std::thread::Builder::new().name("monitor".into()).spawn(move || worker.serve(&todo))?;
        Ok(Self { orders, answers, wake_up })
    }

    /// Adds an order to those that wait. Whoever gives it waits for its answer before he gives it again.
    pub(super) fn order(&self, subject: Subject, task: Task) {
        // The thread ends only with this.
        let _ = self.orders.send((subject, task));
    }

    /// What came of orders since the last call.
    pub(super) fn answers(&mut self) -> Vec<(Subject, Outcome)> {
        let mut bytes = [0; 64];
        let _ = self.wake_up.read(&mut bytes);
        self.answers.try_iter().collect()
    }

    /// Readable when there are answers.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_up.as_fd()
    }
}

impl Worker {
    fn serve(mut self, todo: &Receiver<(Subject, Task)>) {
        loop {
            let order = match self.removals.is_empty() {
                true => todo.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => todo.recv_timeout(LOOK),
            };
            match order {
                Ok((subject, task)) => self.execute(subject, task),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            for removal in std::mem::take(&mut self.removals) {
                self.look_after(removal);
            }
        }
    }

    fn execute(&mut self, subject: Subject, task: Task) {
        if let Task::Plug(_) | Task::Unplug(_) = task {
            // What was to happen to the slot before is not wanted any more.
            self.removals.retain(|removal| removal.subject.place != subject.place);
        }
        match task {
            Task::Plug(plug) => self.plug(subject, plug),
            Task::Unplug(plug) => match self.connect().and_then(|mut qmp| plug.remove(&mut qmp)) {
                Ok(()) => self.await_removal(subject, plug, false),
                Err(error @ QmpError::NotEnabled(_)) => self.answer(subject, Outcome::LeftBehind(error)),
                Err(error) => self.answer(subject, Outcome::NotRemoved(error)),
            },
            Task::Hold(plug) => self.hold(subject, &plug),
            Task::Release(plug) => {
                let outcome = self.release(&plug);
                self.answer(subject, outcome);
            }
            Task::ReportTimeout(plug) => {
                let reported = self.connect().and_then(|mut qmp| plug.report_timeout(&mut qmp));
                self.answer(subject, Outcome::Reported(reported.err()));
            }
            Task::Look => {
                let is_running = match self.connect() {
                    Ok(_) => Some(true),
                    Err(QmpError::Qmp(Error::Connect { .. })) => Some(false),
                    Err(_) => None,
                };
                self.answer(subject, Outcome::Looked(is_running));
            }
        }
    }

    /// QEMU does not connect again: what an earlier life of this node has left there is dead, and is taken out before.
    fn plug(&mut self, subject: Subject, plug: Plug) {
        let plugged = self.connect().and_then(|mut qmp| {
            let is_there = plug.is_there(&mut qmp)?;
            if is_there { plug.remove(&mut qmp) } else { plug.add(&mut qmp) }.map(|()| is_there)
        });
        match plugged {
            Ok(false) => {
                self.hold(subject, &plug);
                self.answer(subject, Outcome::Plugged);
            }
            Ok(true) => self.await_removal(subject, plug, true),
            Err(error) => self.answer(subject, Outcome::NotPlugged(error)),
        }
    }

    fn hold(&mut self, subject: Subject, plug: &Plug) {
        if let Err(error) = self.connect().and_then(|mut qmp| plug.hold(&mut qmp)) {
            self.answer(subject, Outcome::NotHeld(error));
        }
    }

    fn release(&self, plug: &Plug) -> Outcome {
        let released = self.connect().and_then(|mut qmp| {
            let is_there = plug.is_there(&mut qmp)?;
            Ok(if is_there { Outcome::StillThere } else { Outcome::Released(plug.release(&mut qmp).is_ok()) })
        });
        match released {
            Err(QmpError::Qmp(Error::Connect { .. })) => Outcome::Released(false),
            other => other.unwrap_or(Outcome::StillThere),
        }
    }

    fn await_removal(&mut self, subject: Subject, plug: Plug, is_replaced: bool) {
        let until = Instant::now() + self.remove_within;
        self.removals.push(Removal { subject, plug, until, is_replaced });
    }

    fn look_after(&mut self, removal: Removal) {
        let is_there = self.connect().and_then(|mut qmp| removal.plug.is_there(&mut qmp));
        let Removal { subject, ref plug, until, is_replaced } = removal;
        let error = match is_there {
            Ok(false) if is_replaced => return self.plug(subject, removal.plug),
            Ok(false) => {
                // A machine that was never held has nothing to release.
                let _ = self.connect().and_then(|mut qmp| removal.plug.release(&mut qmp));
                return self.answer(subject, Outcome::Removed);
            }
            Ok(true) if Instant::now() < until => return self.removals.push(removal),
            Ok(true) => {
                Error::Silent { what: format!("that {} is gone", plug.id), patience: self.remove_within }
                    .into()
            }
            Err(error) => error,
        };
        let outcome = if is_replaced { Outcome::NotPlugged(error) } else { Outcome::NotRemoved(error) };
        self.answer(subject, outcome);
    }

    fn connect(&self) -> Result<Qmp, QmpError> {
        Ok(Qmp::connect(&self.path, PATIENCE)?)
    }

    fn answer(&mut self, subject: Subject, outcome: Outcome) {
        // Who has ended hears nothing, and if the bell has no room, it rings already.
        let _ = self.answers.send((subject, outcome));
        let _ = self.bell.write(&[0]);
    }
}
