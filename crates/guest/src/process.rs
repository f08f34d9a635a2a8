//! Children that do not outlive this program.

use crate::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

type Request = (Command, SyncSender<io::Result<Child>>);

/// Starts `program` so that the system kills it when this process ends, in whatever way. What it prints goes to `log`.
///
/// The system ties a child to the *thread* that started it, and tests are threads that end while a machine that they
/// share goes on. So one thread that lives as long as the process starts them all.
pub(crate) fn spawn_tied(program: &Path, arguments: &[OsString], log: File) -> Result<Child, Error> {
    static STARTER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (sender, receiver) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in receiver {
                // Whoever asked waits for it.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    let what = || Error::io(format!("cannot start {} (by setpriv of util-linux)", program.display()));
    let errors = log.try_clone().map_err(what())?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(arguments);
    // Out of the terminal's group: on Ctrl-C it is this program that ends it.
    command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
    let (answer, answered) = sync_channel(1);
    let gone = || io::Error::other("the thread that starts children is gone");
    let sent = starter.lock().unwrap_or_else(PoisonError::into_inner).send((command, answer));
    sent.map_err(|_| gone()).and_then(|()| answered.recv().map_err(|_| gone())?).map_err(what())
}
