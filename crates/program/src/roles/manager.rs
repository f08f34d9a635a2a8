//! The manager of a fabric, and its files.

use std::path::Path;

use management::authority::{self, BadConfig, Config, Founded, InitError, Options};
use management::server::{ServeError, Server};
use management::store::{self, StoreError};

use crate::cli::{InitArgs, RestoreArgs, over, print};
use crate::exit::{Exit, Failure};
use crate::roles::{Hangup, Signals, end_with};

/// `causeway init`.
pub fn init(args: &InitArgs) -> Result<(), Failure> {
    let defaults = Options::default();
    let listen = args.listen.unwrap_or(defaults.listen);
    if args.name.is_empty() && !listen.ip().is_loopback() {
        return Err(Failure::usage(format_args!(
            "by which name or address do others reach the manager at {listen}? Give --name HOST: its certificate is \
             good for that, and for this machine"
        )));
    }
    let founded = found(&args.dir, &Options { listen, names: args.name.clone(), ..defaults })?;
    let (config, admin) = (founded.config.display(), founded.admin.display());
    print(&format!(
        "fabric {} is founded in {}\n\
         to run its manager:  causeway manager --config {config}\n\
         to ask it:           export CAUSEWAY_MANAGER={admin}\n\
         Keep a copy of the folder where nobody else reads it: who has it is the fabric.\n",
        founded.fabric,
        args.dir.display()
    ))
}

/// Founds a fabric in a folder.
pub(crate) fn found(dir: &Path, options: &Options) -> Result<Founded, Failure> {
    authority::init(dir, options).map_err(|error| of_init(&error))
}

/// `causeway manager`: serves until SIGTERM.
pub fn manager(config: &Path, parent: Option<u32>) -> Result<(), Failure> {
    if let Some(parent) = parent {
        end_with(parent)?;
    }
    let config = Config::load(config).map_err(|error| of_config(&error))?;
    let failed = |error: std::io::Error| Failure::io("cannot run a manager", &error);
    let signals = Signals::listen(Hangup::Ends).map_err(failed)?;
    let over = over(signals, false).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let server = Server::start(&config).await.map_err(|error| of_serve(&error))?;
        // What was founded for a port that the system chooses has its port only now.
        let address = server.addresses().first().map(|address| format!("https://{address}"));
        let known = config.urls.first().filter(|_| config.listen.iter().all(|address| address.port() != 0));
        print(&format!("{}\n", known.cloned().or(address).unwrap_or_default()))?;
        server.run(async { drop(over.await) }).await.map_err(|error| of_serve(&error))
    })
}

/// A backup of a manager that does not run.
pub(crate) fn backup_of_files(config: &Path) -> Result<Vec<u8>, Failure> {
    let config = Config::load(config).map_err(|error| of_config(&error))?;
    store::backup(&config.state, config.fabric).map_err(|error| match &error {
        StoreError::Locked { path, holder } => Failure::refused(format_args!(
            "{} is used by {holder}: leave out --config, and the manager that runs is asked for a backup",
            path.display()
        )),
        _ => of_store(&error),
    })
}

/// Writes a backup to a file, which appears as a whole.
pub(crate) fn write_backup(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    store::write_backup(file, bytes).map_err(|error| of_store(&error))
}

/// `causeway manager restore`.
pub fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let config = Config::load(&args.config).map_err(|error| of_config(&error))?;
    let moved = store::restore(&config.state, config.fabric, &args.file).map_err(|error| of_store(&error))?;
    let moved = moved.map(|path| format!("what was there is in {}\n", path.display())).unwrap_or_default();
    print(&format!(
        "{moved}the manager only listens when it starts now: once all nodes were heard (`causeway manager show`), \
         `causeway manager end-restore`\n"
    ))
}

/// `causeway manager rebuild`.
pub fn rebuild(config: &Path, any_time: bool) -> Result<(), Failure> {
    let read = Config::load(config).map_err(|error| of_config(&error))?;
    let rebuilt = authority::rebuild(&read, config, any_time).map_err(|error| of_init(&error))?;
    let moved =
        rebuilt.moved.map(|path| format!("what was there is in {}\n", path.display())).unwrap_or_default();
    print(&format!(
        "{moved}the manager only listens when it starts now: nodes come with their certificates, and lenders say who \
         has their functions; once all are there (`causeway node list`), `causeway manager end-restore`\n\
         credentials: {}; other tokens are to be made again, and a node that was removed within the last {} days is to \
         be removed again if it comes\n",
        rebuilt.admin.display(),
        authority::certificate::NODE_DAYS
    ))
}

fn of_init(error: &InitError) -> Failure {
    match error {
        InitError::NotEmpty { .. } | InitError::Current { .. } => Failure::refused(error),
        InitError::File { error: cause, .. } => Failure::new(Exit::of_io(cause), error),
        InitError::Store(cause) => of_store(cause),
        InitError::Certificate(_) => Failure::usage(error),
        InitError::Config(cause) => of_config(cause),
    }
}

fn of_serve(error: &ServeError) -> Failure {
    match error {
        ServeError::Config(error) => of_config(error),
        ServeError::Certificate(_) => Failure::usage(error),
        ServeError::Store(error) => of_store(error),
        ServeError::Listen { error: cause, .. } | ServeError::Thread { error: cause } => {
            Failure::new(Exit::of_io(cause), error)
        }
        ServeError::Mistake => Failure::failed(error),
    }
}

fn of_config(error: &BadConfig) -> Failure {
    Failure::usage(error)
}

/// What is damaged was data.
fn of_store(error: &StoreError) -> Failure {
    match error {
        StoreError::File { error: cause, .. } => Failure::new(Exit::of_io(cause), error),
        StoreError::Damaged { .. } => Failure::failed(error),
        StoreError::Locked { .. } | StoreError::Absent { .. } => Failure::refused(error),
    }
}
