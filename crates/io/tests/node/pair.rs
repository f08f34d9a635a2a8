//! Two nodes whose agents run in threads of this process.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::node::{DriveConfig, NodeKey};
use base::ids::{DomainBlock, DomainId, RailId};
use io::MediumKind;
use io::address::RailAddress;
use io::agent::{Agent, AgentEvent, CardRecord, DriveSpec, Edge, LoanEnd, LoanSpec, NodeSpec, Rail};
use io::files::{Image, ImageOptions};
use io::load::{LoadResult, LoadSpec};
use io::rail::udp::UdpSocket;
use io::rail::{RailOptions, RailSocket};
use node::{FlashConfig, FunctionId, LendConfig, LoanConfig, Secret, Tenancy, Whereabouts, WriteCache};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Longer than anything waited for here takes.
const PATIENCE: Duration = Duration::from_secs(60);

const KEY: [u8; 32] = [7; 32];
const FUNCTION: FunctionId = FunctionId(9);

/// A lender and a borrower of one image.
pub(crate) struct Pair {
    pub(crate) lender: Node,
    pub(crate) borrower: Node,
    /// Where clients connect.
    pub(crate) socket: PathBuf,
}

impl Pair {
    /// They talk over the network alone.
    pub(crate) fn start(image: &Path, folder: &Path) -> Self {
        Self::start_with(open(image), None, folder)
    }

    /// With the time of a flash card, over the network alone.
    pub(crate) fn start_with(image: Image, flash: Option<FlashConfig>, folder: &Path) -> Self {
        Self::connect(lender(image, flash, Life::default()), folder, false)
    }

    /// Whether lender and borrower are willing to share memory is said in `shared_memory`.
    pub(crate) fn start_sharing(image: &Path, folder: &Path, shared_memory: [bool; 2]) -> Self {
        let life = Life { shared_memory: shared_memory[0], ..Life::default() };
        Self::connect(lender(open(image), None, life), folder, shared_memory[1])
    }

    fn connect((lender, to): (Node, RailAddress), folder: &Path, shared_memory: bool) -> Self {
        let socket = folder.join("nbd");
        let listener = Some(UnixListener::bind(&socket).unwrap());
        let borrower = borrower(to, Edge::Nbd { path: socket.clone(), listener }, shared_memory);
        Self { lender, borrower, socket }
    }

    /// The lender's agent ends, with its card, and another one takes its place.
    pub(crate) fn restart_lender(&mut self, image: &Path, port: u16) {
        self.lender.end();
        self.start_lender(image, port);
    }

    /// Waits until it is durable where the borrower is.
    pub(crate) fn wait_located(&self) {
        self.lender
            .wait_for("the borrower is located", || !self.lender.shared.holders.lock().unwrap().is_empty());
    }

    /// Another agent takes the place of a lender's that has ended.
    pub(crate) fn start_lender(&mut self, image: &Path, port: u16) {
        // What its state folder would have.
        let tenancy = *self.lender.shared.tenancy.lock().unwrap();
        let holders = self.lender.shared.holders.lock().unwrap().clone();
        let life = Life { incarnation: 2, port, shared_memory: true, tenancy, holders };
        (self.lender, _) = lender(open(image), None, life);
    }

    /// Waits until both cards speak through memory that they share.
    pub(crate) fn wait_shared(&self) {
        for node in [&self.lender, &self.borrower] {
            node.wait_for("memory is shared", || node.shared.memory.lock().unwrap().is_some_and(|up| up));
        }
    }
}

/// What a borrower's card measures on its own, of memory with the time of a flash card.
pub(crate) fn measure(bytes: u64, flash: FlashConfig, load: LoadSpec) -> LoadResult {
    let (_lender, to) = lender(Image::ram(bytes).unwrap(), Some(flash), Life::default());
    let borrower = borrower(to, Edge::Load(load), false);
    let ended = |node: &Node| node.shared.load.lock().unwrap().clone();
    borrower.wait_until("the load has ended", |_| ended(&borrower).is_some());
    ended(&borrower).unwrap()
}

/// The lender's identity: that of no other test on this machine, since its neighbours find it by that.
pub(crate) fn lender_key() -> NodeKey {
    NodeKey::numbered(u64::from(std::process::id()) << 8 | 1)
}

/// The borrower's.
pub(crate) fn borrower_key() -> NodeKey {
    NodeKey::numbered(u64::from(std::process::id()) << 8 | 2)
}

/// One life of a node.
struct Life {
    incarnation: u64,
    port: u16,
    shared_memory: bool,
    tenancy: Tenancy,
    holders: Vec<Whereabouts>,
}

impl Default for Life {
    fn default() -> Self {
        let (tenancy, holders) = (Tenancy::default(), Vec::new());
        Self { incarnation: 1, port: 0, shared_memory: false, tenancy, holders }
    }
}

/// The card of a lender that was here before may still be dying.
fn open(image: &Path) -> Image {
    Image::open(image, &ImageOptions { lock_patience: PATIENCE, ..ImageOptions::default() }).unwrap()
}

fn lender(image: Image, flash: Option<FlashConfig>, life: Life) -> (Node, RailAddress) {
    let socket = bind(life.port);
    let local = socket.local();
    let mut config = DriveConfig::new(image.info().bytes / 512, 512, 7);
    if image.info().memory_backed {
        config.cache = WriteCache::Absent;
    }
    let end = LoanEnd::Lend(LendConfig::of(0));
    let mut spec = spec("lender", lender_key(), socket, end, life);
    let (name, source) = ("nvme0".to_owned(), "test".to_owned());
    spec.drives.push(Some(DriveSpec { name, image, config, flash, source, has_lost: false }));
    (Node::start(spec), local)
}

fn borrower(to: RailAddress, edge: Edge, shared_memory: bool) -> Node {
    let end = LoanEnd::Borrow {
        lender: lender_key().lends_in(DomainId::default()),
        peers: [to].into_iter().collect(),
        edge,
        io_timeout: PATIENCE,
    };
    let life = Life { shared_memory, ..Life::default() };
    Node::start(spec("borrower", borrower_key(), bind(0), end, life))
}

/// A node with one place for a loan, which is vacant.
pub(crate) fn vacant(edge: Edge) -> NodeSpec {
    let end = LoanEnd::Vacant { edge: Some(edge) };
    spec("borrower", borrower_key(), bind(0), end, Life::default())
}

fn bind(port: u16) -> Box<dyn RailSocket> {
    Box::new(UdpSocket::bind(([127, 0, 0, 1], port).into(), &RailOptions::default()).unwrap())
}

fn spec(name: &str, identity: NodeKey, socket: Box<dyn RailSocket>, end: LoanEnd, life: Life) -> NodeSpec {
    let config = LoanConfig { tenancy: life.tenancy, ..LoanConfig::new(Secret(KEY), FUNCTION, end) };
    let loan = LoanSpec { function: "nvme0".to_owned(), config, hold: None };
    let rails = vec![Rail {
        id: RailId::default(),
        name: "rail0".to_owned(),
        socket,
        gateway: None,
        announces: false,
    }];
    let Life { incarnation, shared_memory, .. } = life;
    NodeSpec {
        name: name.to_owned(),
        domains: DomainBlock::of(identity.id()),
        identity,
        incarnation,
        rails,
        drives: Vec::new(),
        loans: vec![loan],
        holders: life.holders,
        protection: node::Protection::Aegis,
        rail_mode: node::RailMode::default(),
        shared_memory,
        last_writes: io::files::LastWrites::in_memory().unwrap(),
        ledger: None,
        drives_may_come: false,
        fabric: None,
    }
}

/// A node. Its agent lives in a thread of its own, because the kernel ends a card with the thread that started it.
pub(crate) struct Node {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    record: Mutex<CardRecord>,
    standby: Mutex<Option<i32>>,
    medium: Mutex<Option<MediumKind>>,
    /// Whether memory is shared, and the peer answers there.
    memory: Mutex<Option<bool>>,
    local: Mutex<Option<RailAddress>>,
    load: Mutex<Option<LoadResult>>,
    /// Who has what it lends.
    tenancy: Mutex<Tenancy>,
    /// Where those are.
    holders: Mutex<Vec<Whereabouts>>,
    turns: AtomicU64,
    /// The agent is to abandon its loan.
    abandon: AtomicBool,
    /// Whether its loan has ended.
    vacant: AtomicBool,
    /// The agent is to do nothing.
    hold: AtomicBool,
    end: AtomicBool,
}

impl Node {
    fn start(spec: NodeSpec) -> Self {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || drive(Agent::start(spec).unwrap(), &theirs));
        let node = Self { shared, thread: Some(thread) };
        node.wait_until("the card serves", |record| record.running);
        node
    }

    pub(crate) fn record(&self) -> CardRecord {
        *self.shared.record.lock().unwrap()
    }

    /// How its image is driven.
    pub(crate) fn medium(&self) -> Option<MediumKind> {
        *self.shared.medium.lock().unwrap()
    }

    /// How often the agent has looked for what to do.
    pub(crate) fn turns(&self) -> u64 {
        self.shared.turns.load(Ordering::Relaxed)
    }

    /// Kills the card; its agent finds out by itself.
    pub(crate) fn kill_card(&self) {
        self.signal_card(libc::SIGKILL);
    }

    /// As long as the card is stopped, the node does not answer. Its agent, which would replace it, does nothing
    /// either.
    pub(crate) fn stop_card(&self) {
        self.shared.hold.store(true, Ordering::SeqCst);
        // It may be in the middle of a turn.
        let turns = self.turns();
        let start = Instant::now();
        while self.turns() < turns + 2 {
            assert!(start.elapsed() < PATIENCE, "the agent does not hold");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.signal_card(libc::SIGSTOP);
    }

    pub(crate) fn continue_card(&self) {
        self.signal_card(libc::SIGCONT);
        self.shared.hold.store(false, Ordering::SeqCst);
    }

    pub(crate) fn signal_card(&self, signal: libc::c_int) {
        if let Some(pid) = self.record().pid {
            // SAFETY: sends a signal to a child of this process, which only its agent reaps.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// The process that stands by.
    fn standby(&self) -> Option<i32> {
        *self.shared.standby.lock().unwrap()
    }

    /// Waits until somebody does.
    pub(crate) fn wait_standby(&self) -> i32 {
        self.wait_for("a card stands by", || self.standby().is_some());
        self.standby().unwrap()
    }

    /// Kills whoever stands by, and waits until its agent knows.
    pub(crate) fn kill_standby(&self) {
        let pid = self.standby().unwrap();
        // SAFETY: sends a signal to a child of this process, which only its agent reaps.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        self.wait_for("nobody stands by", || self.standby() != Some(pid));
    }

    /// Processor time that the card has used.
    pub(crate) fn card_cpu_time(&self) -> Duration {
        let pid = self.record().pid.unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        // User and system time are the 14th and the 15th field; the 2nd one ends with the last bracket
        // (proc_pid_stat(5)).
        let fields = stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2);
        let ticks: u64 = fields.map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 1_000 / rustix::param::clock_ticks_per_second())
    }

    /// Whether it shares memory, and the peer answers there.
    pub(crate) fn memory(&self) -> Option<bool> {
        *self.shared.memory.lock().unwrap()
    }

    /// Has the loan given up without asking its lender.
    pub(crate) fn abandon(&self) {
        self.shared.abandon.store(true, Ordering::Relaxed);
    }

    /// Whether its loan has ended.
    pub(crate) fn is_vacant(&self) -> bool {
        self.shared.vacant.load(Ordering::Relaxed)
    }

    /// Where its rail is.
    pub(crate) fn port(&self) -> u16 {
        self.shared.local.lock().unwrap().and_then(RailAddress::udp).map_or(0, |local| local.port())
    }

    pub(crate) fn end(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join).unwrap().unwrap();
    }

    pub(crate) fn wait_until(&self, what: &str, holds: impl Fn(&CardRecord) -> bool) -> CardRecord {
        self.wait_for(what, || holds(&self.record()));
        self.record()
    }

    fn wait_for(&self, what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        loop {
            let record = self.record();
            if holds() {
                return;
            }
            let alive = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            assert!(alive, "the agent has given up before {what}");
            assert!(start.elapsed() < PATIENCE, "waited in vain until {what}: {record:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, None | Some(Ok(()))), "the agent has given up");
    }
}

/// What a role does, without signals and control socket.
fn drive(mut agent: Agent, shared: &Shared) {
    while !shared.end.load(Ordering::Relaxed) {
        if shared.hold.load(Ordering::SeqCst) {
            shared.turns.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let soon = Instant::now() + Duration::from_millis(20);
        let until = agent.poll_timeout().map_or(soon, |at| at.min(soon));
        let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap();
        let mut watched = [PollFd::from_borrowed_fd(agent.as_fd(), PollFlags::IN)];
        rustix::event::poll(&mut watched, Some(&timeout)).unwrap();
        for event in agent.turn().unwrap() {
            match event {
                AgentEvent::LoadEnded(_, result) => *shared.load.lock().unwrap() = Some(result),
                // A role makes it durable first.
                AgentEvent::StoreTenancy { loan, tenancy } => {
                    *shared.tenancy.lock().unwrap() = tenancy;
                    agent.tenancy_stored(loan, Ok(()));
                }
                AgentEvent::StoreHolder(holder) => {
                    *shared.holders.lock().unwrap() = vec![holder];
                    agent.holder_stored(holder, Ok(()));
                }
                _ => {}
            }
        }
        if shared.abandon.swap(false, Ordering::Relaxed) {
            agent.detach(0);
            agent.abandon(0);
        }
        shared.turns.fetch_add(1, Ordering::Relaxed);
        let view = agent.view();
        shared.vacant.store(view.spec().loans[0].is_vacant(), Ordering::Relaxed);
        *shared.record.lock().unwrap() = view.card;
        *shared.standby.lock().unwrap() = view.standby;
        *shared.medium.lock().unwrap() = view.medium(&view.spec().loans[0]);
        *shared.memory.lock().unwrap() =
            view.loan(0).and_then(|(_, cells)| view.shared_memory(cells)).map(|memory| memory.up);
        *shared.local.lock().unwrap() = Some(view.spec().rails[0].socket.local());
    }
}
