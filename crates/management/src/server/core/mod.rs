//! The thread that owns the manager's core and its files, and nothing else does.
//!
//! It takes what has come, up to [`TURN_MAX`] messages, lets the core handle all of it, and then does what the core
//! says until there is nothing: so whatever has come meanwhile is in one record of the log, made durable at once. When
//! a turn ends, all that is decided is durable, and only then lists are read: nobody is shown what may be gone.
//!
//! If the disk refuses, this core is good for nothing. Who waits is told so, connections are closed, and after a pause
//! another core begins from what is durable.

mod handle;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use base::ids::NodeId;
use core::time::Duration;
use manager::command::Asked;
use manager::entry::Who;
use manager::model::{Name, PublicKey, Role, TokenHash, WallTime};
use manager::state::State;
use manager::{Manager, Reply, Start, Ticket};
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::ServeError;
use super::agent::CLOCKS_DIFFER_MS;
use super::events::{Events, Quotas};
use super::nodes::{Connection, Nodes};
use super::problem::{Failure, Kind};
use crate::authority::Authority;
use crate::clock::Clock;
use crate::store::{Opened, Store, StoreError};
use crate::wire::FromNode;
use handle::Inboxes;
pub(super) use handle::{Handle, Quota};

/// Messages of clients in one turn, and of nodes.
const TURN_MAX: usize = 1024;
const TURN_MAX_OF_NODES: usize = 256;
/// First pause after the disk has refused; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often somebody looks, if nothing happens.
const IDLE: Duration = Duration::from_secs(60);

/// What a reader sees: all of it is durable.
pub(super) struct View<'a> {
    /// The core.
    pub(super) manager: &'a Manager,
    /// What nodes have said of themselves.
    pub(super) nodes: &'a Nodes,
    /// Bytes of the log, and how long it took to make its records durable.
    pub(super) disk: &'a Disk,
    /// The clock.
    pub(super) now: WallTime,
    /// How often nodes were told that a rail seems to be dead.
    pub(super) rails_told: u64,
    store: &'a Store,
}

/// What was done with the log since the manager has started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disk {
    /// Bytes of the log.
    pub(super) log_bytes: u64,
    /// Records that were made durable.
    pub(super) records: u64,
    /// Entries in them.
    pub(super) entries: u64,
    /// How long all that took.
    pub(super) durable: Duration,
    /// How often the disk refused.
    pub(super) failures: u64,
}

impl View<'_> {
    pub(super) fn state(&self) -> &State {
        self.manager.state()
    }

    /// Whether a node of the fabric has not said what it is like since the manager was started.
    pub(super) fn has_unheard(&self) -> bool {
        self.state().nodes().any(|node| node.is_joined() && !self.nodes.has_heard(node.id))
    }

    /// Whose token has this hash, if it lets do at least this.
    pub(super) fn authenticate(&self, hash: TokenHash, needed: Role) -> Result<Name, Failure> {
        let unknown = "there is no such token, or there is none any more: ask an administrator for one";
        let found = self.state().authenticate(hash);
        let (name, role) = found.ok_or_else(|| Failure::new(Kind::Unauthorized, unknown))?;
        if role < needed {
            return Err(manager::refusal::Refusal::NotAllowed { needed, has: Some(role) }.into());
        }
        Ok(name.clone())
    }

    /// A backup.
    pub(super) fn backup(&self) -> Vec<u8> {
        self.store.snapshot_bytes(self.state())
    }
}

/// Looks at what is durable, or hears why there is nothing to see.
type Reading = Box<dyn FnOnce(Result<&View<'_>, Failure>) + Send>;
/// Finds out what is asked for, by what is so.
type Preparing = Box<dyn FnOnce(&View<'_>) -> Result<Asked, Failure> + Send>;

/// Who asks for a change, and for what, in words: for the log, if it is refused.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) by: By,
    pub(super) what: String,
}

/// By what somebody is known.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// A token for the interface.
    Token(TokenHash),
    /// A join token.
    JoinToken(TokenHash),
    /// The key of a node, which it has proven to have.
    Key(NodeId),
}

impl Wish {
    /// Who that is; `None`: nobody that the manager knows, so it is not noted.
    fn who(&self, state: &State) -> Option<Who> {
        match self.by {
            By::Token(hash) => state.authenticate(hash).map(|(name, _)| Who::Api { token: name.clone() }),
            By::JoinToken(token) => state.join_token(token).map(|_| Who::Joiner { token }),
            By::Key(id) => Some(Who::Node { id }),
        }
    }
}

/// What was done for a client.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) reply: Reply,
    /// The lender that is waited for.
    pub(super) waits_for: Option<Name>,
}

type Answering = oneshot::Sender<Result<Done, Failure>>;

/// A place among the messages of a connection, given back when it is dropped.
pub(super) struct Held(OwnedSemaphorePermit);

impl Held {
    /// The connection may say something else.
    pub(super) fn give_back(self) {
        drop(self.0);
    }
}

pub(super) enum Message {
    Read(Reading),
    Ask(Wish, Preparing, Answering),
    /// Somebody was refused something, and why.
    Refused(Wish, String),
    /// A node has proven to have this key.
    Connected(NodeId, PublicKey, Connection),
    /// It says something, on this connection, which has a place for it until it is taken.
    Said(NodeId, u64, FromNode, Held),
    /// That connection is over.
    Closed(NodeId, u64),
    /// The process ends in order.
    End,
}

/// Whether there is a core, and if not, why.
pub(super) type Health = Option<String>;

/// The thread, as whoever has started it sees it.
pub(super) struct Running {
    pub(super) handle: Handle,
    /// What came of it.
    pub(super) ended: oneshot::Receiver<Result<(), ServeError>>,
}

/// Starts the thread.
pub(super) fn start(
    store: Store,
    opened: Opened,
    events: Events,
    authority: Arc<Authority>,
) -> Result<Running, ServeError> {
    let (tell, ended) = oneshot::channel();
    let (health, is_healthy) = watch::channel(None);
    let (handle, inboxes) = Handle::new(is_healthy);
    let refused = |error: std::io::Error| ServeError::Thread { error };
    // Of its own, so that it goes on when the process' other threads end.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(refused)?;
    let body = move || {
        let result = Process { inboxes, store, events, authority, health, failures: 0 }.run(&runtime, opened);
        // Nobody may wait for it any more.
        let _ = tell.send(result);
    };
    thread::Builder::new().name("manager".to_owned()).spawn(body).map_err(refused)?;
    Ok(Running { handle, ended })
}

/// The thread: one core after the other.
struct Process {
    inboxes: Inboxes,
    store: Store,
    events: Events,
    authority: Arc<Authority>,
    health: watch::Sender<Health>,
    failures: u64,
}

/// One core, from its start to its end.
struct Core<'a> {
    manager: Manager,
    nodes: Nodes,
    waiting: BTreeMap<Ticket, (Wish, Answering)>,
    next_ticket: u64,
    reading: Vec<Reading>,
    /// A node was removed in this turn.
    has_removed: bool,
    has_begun: bool,
    disk: Disk,
    clock: Clock,
    store: &'a mut Store,
    events: &'a Events,
    authority: &'a Authority,
    /// Somebody has come, has gone for good, or may enter other groups: nodes are to be told.
    has_members: bool,
    rails_told: u64,
    /// How many events nodes may say.
    quotas: Quotas,
}

/// Why a core ends.
enum End {
    /// The process does.
    Process,
    /// The disk refuses.
    Disk(StoreError),
}

impl Process {
    fn run(mut self, runtime: &tokio::runtime::Runtime, mut opened: Opened) -> Result<(), ServeError> {
        let mut pause = PAUSE;
        loop {
            let begun = Instant::now();
            let end = self.live(runtime, opened);
            let error = match end {
                End::Process => return self.store.close().map_err(ServeError::Store),
                End::Disk(error) => error,
            };
            self.failures += 1;
            // One that was well for a while has nothing to do with those before.
            pause = if begun.elapsed() > PAUSE_MAX { PAUSE } else { pause };
            match self.recover(runtime, error, &mut pause)? {
                Some(recovered) => opened = recovered,
                None => return Ok(()),
            }
        }
    }

    fn live(&mut self, runtime: &tokio::runtime::Runtime, opened: Opened) -> End {
        let clock = Clock::new();
        let (state, start) = (opened.state, opened.start);
        let disk = Disk { failures: self.failures, ..Disk::default() };
        let mut core = Core::new(clock, state, start, disk, &mut self.store, (&self.events, &self.authority));
        loop {
            if let Err(error) = core.turn() {
                return End::Disk(error);
            }
            self.health.send_if_modified(|health| health.take().is_some());
            let wake = core.wake();
            let first = runtime.block_on(async { timeout_at(wake, self.inboxes.next()).await });
            match first {
                Ok(None) => return End::Process,
                Ok(Some(Message::End)) => return End::Process,
                Ok(Some(message)) => core.handle(message),
                Err(_) => {}
            }
            for _ in 1..TURN_MAX {
                match self.inboxes.clients.try_recv() {
                    Ok(Message::End) => return core.turn().map_or_else(End::Disk, |()| End::Process),
                    Ok(message) => core.handle(message),
                    Err(_) => break,
                }
            }
            for _ in 0..TURN_MAX_OF_NODES {
                match self.inboxes.nodes.try_recv() {
                    Ok(message) => core.handle(message),
                    Err(_) => break,
                }
            }
        }
    }

    /// Tries to begin again from what is durable, until that works. `None`: the process ends.
    fn recover(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        mut error: StoreError,
        pause: &mut Duration,
    ) -> Result<Option<Opened>, ServeError> {
        while error.may_pass() {
            let why = format!("{error}; nothing is changed until it can be: try again");
            self.events.tell(crate::clock::wall(), None, "disk", true, why.clone());
            self.health.send_replace(Some(why.clone()));
            if !self.refuse_until(runtime, Instant::now() + *pause, &why) {
                return Ok(None);
            }
            *pause = (*pause * 2).min(PAUSE_MAX);
            match self.store.recover() {
                Ok(opened) => return Ok(Some(opened)),
                Err(again) => error = again,
            }
        }
        Err(ServeError::Store(error))
    }

    /// Everybody hears why nothing is done. `false`: the process ends.
    fn refuse_until(&mut self, runtime: &tokio::runtime::Runtime, at: Instant, why: &str) -> bool {
        let failure = || Failure::new(Kind::Unavailable, why);
        runtime.block_on(async {
            loop {
                match timeout_at(at, self.inboxes.next()).await {
                    Err(_) => return true,
                    Ok(None | Some(Message::End)) => return false,
                    Ok(Some(Message::Read(reading))) => reading(Err(failure())),
                    // Whoever has gone hears nothing.
                    Ok(Some(Message::Ask(.., answer))) => drop(answer.send(Err(failure()))),
                    // A connection that is dropped is closed.
                    Ok(Some(
                        Message::Connected(..)
                        | Message::Said(..)
                        | Message::Closed(..)
                        | Message::Refused(..),
                    )) => {}
                }
            }
        })
    }
}

impl<'a> Core<'a> {
    fn new(
        clock: Clock,
        state: State,
        start: Start,
        disk: Disk,
        store: &'a mut Store,
        (events, authority): (&'a Events, &'a Authority),
    ) -> Self {
        if let Some(text) = clock_is_back(clock.now().wall, &state) {
            events.tell(clock.now().wall, None, "clock", true, text);
        }
        let manager = Manager::start(clock.now(), state, start);
        Self {
            manager,
            nodes: Nodes::default(),
            waiting: BTreeMap::new(),
            next_ticket: 0,
            reading: Vec::new(),
            has_removed: false,
            has_begun: false,
            disk,
            clock,
            store,
            events,
            authority,
            has_members: false,
            rails_told: 0,
            quotas: Quotas::default(),
        }
    }

    /// When something is to be done although nothing comes.
    fn wake(&self) -> Instant {
        let idle = Instant::now() + IDLE;
        let due = [self.manager.poll_timeout(), self.quotas.timeout()].into_iter().flatten().min();
        let due = due.map(|at| Instant::from_std(self.clock.instant(at)));
        [due, self.nodes.retell_at()].into_iter().flatten().fold(idle, Instant::min)
    }
}

/// What is said of a clock that is behind the log, if it is.
pub(super) fn clock_is_back(now: WallTime, state: &State) -> Option<String> {
    let at = state.at();
    (at.0.saturating_sub(now.0) > CLOCKS_DIFFER_MS).then(|| {
        format!(
            "the manager's clock says {now}, and the last entry of its log {at}: set the clock, if that is wrong; join \
             tokens are good by the clock, and entries have the log's time until the clock has come to it"
        )
    })
}

impl Drop for Core<'_> {
    /// Who waits hears that this core is no more, and connections are closed.
    fn drop(&mut self) {
        let failure =
            || Failure::new(Kind::Unavailable, "the manager has to begin again: ask again in a while");
        for (_, (_, answer)) in core::mem::take(&mut self.waiting) {
            let _ = answer.send(Err(failure()));
        }
        for reading in core::mem::take(&mut self.reading) {
            reading(Err(failure()));
        }
    }
}
