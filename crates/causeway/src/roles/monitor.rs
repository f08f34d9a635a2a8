//! QEMU's monitor, from a thread of its own: it may be silent for seconds, and the node must not.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::qmp::{Plug, Qmp, QmpError};

/// How long QEMU may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks whether it has let go of a device.
const LOOK: Duration = Duration::from_millis(100);

/// What the monitor is to do.
pub(super) enum Order {
    Plug {
        place: usize,
        plug: Plug,
    },
    Unplug {
        place: usize,
        plug: Plug,
    },
    /// The function has not answered its guest.
    ReportTimeout {
        place: usize,
        plug: Plug,
    },
    /// Is there a machine?
    Look {
        place: usize,
    },
}

/// What came of it.
pub(super) enum Answer {
    Plugged {
        place: usize,
    },
    Removed {
        place: usize,
    },
    /// The guest was told that its function has not answered; or why that cannot be.
    Reported {
        place: usize,
        failed: Option<String>,
    },
    /// There is a machine, or none.
    Looked {
        place: usize,
        is_running: bool,
    },
    /// `is_absent`: because there is no machine.
    Failed {
        place: usize,
        why: String,
        is_absent: bool,
    },
}

/// The thread of a machine's monitor.
pub(super) struct Monitor {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    wake_up: UnixStream,
}

impl Monitor {
    /// For the machine whose QMP socket lies at `path`. A guest that is asked to let go of a device has so long.
    pub(super) fn start(path: PathBuf, remove_within: Duration) -> io::Result<Self> {
        let (orders, todo) = channel();
        let (done, answers) = channel();
        let (wake_up, mut bell) = UnixStream::pair()?;
        wake_up.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        std::thread::Builder::new().name("monitor".into()).spawn(move || {
            while let Ok(order) = todo.recv() {
                if done.send(execute(&path, order, remove_within)).is_err() {
                    return;
                }
                // If there is no room, it rings already.
                let _ = bell.write(&[0]);
            }
        })?;
        Ok(Self { orders, answers, wake_up })
    }

    /// Adds an order to those that wait.
    pub(super) fn order(&self, order: Order) {
        // The thread ends only with this.
        let _ = self.orders.send(order);
    }

    /// What came of orders since the last call.
    pub(super) fn answers(&mut self) -> Vec<Answer> {
        let mut bytes = [0; 64];
        let _ = self.wake_up.read(&mut bytes);
        self.answers.try_iter().collect()
    }

    /// Readable when there are answers.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake_up.as_fd()
    }
}

fn execute(path: &Path, order: Order, remove_within: Duration) -> Answer {
    let (place, result) = match order {
        Order::Plug { place, plug } => {
            (place, add(path, &plug, remove_within).map(|()| Answer::Plugged { place }))
        }
        Order::Unplug { place, plug } => {
            (place, remove(path, &plug, remove_within).map(|()| Answer::Removed { place }))
        }
        Order::ReportTimeout { place, plug } => {
            let reported = Qmp::connect(path, PATIENCE).and_then(|mut qmp| plug.report_timeout(&mut qmp));
            // A QEMU that cannot do it does everything else as well.
            (place, Ok(Answer::Reported { place, failed: reported.err().map(|error| error.to_string()) }))
        }
        Order::Look { place } => {
            let absent = matches!(Qmp::connect(path, PATIENCE), Err(QmpError::Connect { .. }));
            (place, Ok(Answer::Looked { place, is_running: !absent }))
        }
    };
    result.unwrap_or_else(|error| {
        let is_absent = matches!(error, QmpError::Connect { .. });
        Answer::Failed { place, why: error.to_string(), is_absent }
    })
}

fn add(path: &Path, plug: &Plug, remove_within: Duration) -> Result<(), QmpError> {
    // QEMU does not connect again: what an earlier life of this node has left there is dead.
    if plug.is_there(&mut Qmp::connect(path, PATIENCE)?)? {
        remove(path, plug, remove_within)?;
    }
    plug.add(&mut Qmp::connect(path, PATIENCE)?)
}

fn remove(path: &Path, plug: &Plug, within: Duration) -> Result<(), QmpError> {
    let deadline = Instant::now() + within;
    let mut qmp = Qmp::connect(path, PATIENCE)?;
    plug.remove(&mut qmp)?;
    while plug.is_there(&mut qmp)? {
        if Instant::now() > deadline {
            return Err(QmpError::Silent { what: format!("that {} is gone", plug.id), patience: within });
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
