//! A place that is given to a loan while its card runs.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use base::ids::DomainId;
use io::agent::{Agent, AgentEvent, Edge, LoanEnd, LoanSpec};
use node::LoanConfig;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit};

use crate::pair;

/// Longer than anything waited for here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A card takes a loan that comes to a vacant place, and goes on. What it said of the one before is not taken for
/// something of the loan that has its place since, and its successor finds that in its plan.
pub(crate) fn a_card_takes_a_loan_and_forgets_what_was_before() {
    let (mut agent, path) = start("takes");
    agent.attach(0, loan(&agent, &path, 1)).unwrap();
    expect_taken(&mut agent);
    // Nobody is there to whom it could be given back, so the card says at once that it is. That waits in its socket,
    // and then it is told not to wait for the lender either.
    agent.detach(0);
    wait(&agent, None);
    agent.abandon(0);
    let events = until_vacant(&mut agent);
    assert_eq!(events.iter().filter(|event| is_return(event)).count(), 1, "{events:?}");
    agent.attach(0, loan(&agent, &path, 2)).unwrap();
    expect_taken(&mut agent);
    assert!(!agent.view().spec().loans[0].is_vacant(), "what was said of the one before is not of this one");
    // As it goes where a lender answers, or there is none: the place is vacant, and has another loan at once.
    agent.detach(0);
    until_vacant(&mut agent);
    agent.attach(0, loan(&agent, &path, 3)).unwrap();
    expect_taken(&mut agent);
    assert_eq!((agent.view().card.generation, agent.view().card.restarts), (1, 0), "the card goes on");
    kill_card(&mut agent, 2);
    expect_taken(&mut agent);
}

/// There are no addresses left for a larger ledger: the node goes on as it was, and takes the loan when there are.
pub(crate) fn without_memory_changes_nothing() {
    // A slot would have its room from the start.
    let edge = Edge::Nbd { path: path_of("memory"), listener: None };
    let mut agent = Agent::start(pair::vacant(edge)).unwrap();
    serve(&mut agent, 1);
    let (before, path) = (agent.view().card, path_of("memory"));
    let limit = rustix::process::getrlimit(Resource::As);
    let has = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = has.split_whitespace().next().unwrap().parse().unwrap();
    let low = pages * rustix::param::page_size() as u64 + (8 << 20);
    let spec = loan(&agent, &path, 1);
    rustix::process::setrlimit(Resource::As, Rlimit { current: Some(low), maximum: limit.maximum }).unwrap();
    let refused = agent.attach(0, spec);
    rustix::process::setrlimit(Resource::As, limit).unwrap();
    assert!(refused.is_err() && agent.view().spec().loans[0].is_vacant(), "{refused:?}");
    assert!(!path.exists(), "nobody listens there");
    // It was not replaced, and the next one finds what there is.
    let turns = (0..3).flat_map(|_| agent.turn().unwrap()).count();
    let after = agent.view().card;
    assert_eq!((after.pid, after.restarts, turns), (before.pid, 0, 0));
    kill_card(&mut agent, 2);
    // The ledger grows where the card has it.
    agent.attach(0, loan(&agent, &path, 1)).unwrap();
    expect_taken(&mut agent);
    let last = agent.view().card;
    assert_eq!((last.generation, last.restarts), (2, 1), "the card goes on");
}

/// Whoever stands by is replaced by one that knows the loan that has come, and follows.
pub(crate) fn who_stands_by_knows_what_has_come() {
    let (mut agent, path) = start("standby-knows");
    let before = wait_standby(&mut agent);
    agent.attach(0, loan(&agent, &path, 1)).unwrap();
    expect_taken(&mut agent);
    let next = wait_standby(&mut agent);
    assert_ne!(next, before, "it knows nothing of the loan");
    kill_card(&mut agent, 2);
    assert_eq!(agent.view().card.pid, Some(next));
    expect_taken(&mut agent);
}

/// Before there is one that knows it, a card is started that does.
pub(crate) fn who_stands_by_and_knows_too_little_is_passed_over() {
    let (mut agent, path) = start("standby-passed");
    let before = wait_standby(&mut agent);
    agent.attach(0, loan(&agent, &path, 1)).unwrap();
    assert_eq!(agent.view().standby, None, "nobody knows what is now");
    kill_card(&mut agent, 2);
    assert_ne!(agent.view().card.pid, Some(before));
    expect_taken(&mut agent);
    let folder = PathBuf::from(format!("/proc/{before}"));
    assert!(!folder.exists(), "who is of no use is gone");
}

fn wait_standby(agent: &mut Agent) -> i32 {
    loop {
        agent.turn().unwrap();
        if let Some(pid) = agent.view().standby {
            return pid;
        }
        wait(agent, agent.poll_timeout());
    }
}

/// The present card dies, and the next one serves.
fn kill_card(agent: &mut Agent, next: u64) {
    // SAFETY: a signal to a child of this process, which only its agent reaps.
    unsafe { libc::kill(agent.view().card.pid.unwrap(), libc::SIGKILL) };
    serve(agent, next);
}

/// Its place has no loan any more.
fn until_vacant(agent: &mut Agent) -> Vec<AgentEvent> {
    let mut events = Vec::new();
    while !agent.view().spec().loans[0].is_vacant() {
        wait(agent, agent.poll_timeout());
        events.extend(agent.turn().unwrap());
    }
    events
}

/// The card has taken the loan: it has made cells for this life of the place.
fn expect_taken(agent: &mut Agent) {
    let deadline = Instant::now() + PATIENCE;
    while agent.view().loan(0).is_none_or(|(_, view)| view.stream().is_none()) {
        assert!(Instant::now() < deadline, "the card knows nothing of it: {:?}", agent.view().card);
        agent.turn().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn path_of(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("causeway-attach-{name}-{}", std::process::id()))
}

/// A node with a vacant slot, whose card serves; and where the slot's socket is to be.
fn start(name: &str) -> (Agent, PathBuf) {
    let path = path_of(name);
    let mut agent =
        Agent::start(pair::vacant(Edge::Vm { path: path.clone(), listener: None, machine: 0 })).unwrap();
    serve(&mut agent, 1);
    (agent, path)
}

/// A loan for the place, of somebody who is not there.
fn loan(agent: &Agent, path: &PathBuf, life: u64) -> LoanSpec {
    let edge = Edge::Vm { path: path.clone(), listener: Some(UnixListener::bind(path).unwrap()), machine: 0 };
    let peers = "127.0.0.1:9".parse().unwrap();
    let lender = pair::lender_key().lends_in(DomainId::default());
    let end = LoanEnd::Borrow { lender, peers, edge, io_timeout: Duration::from_secs(1) };
    let before = &agent.view().spec().loans[0];
    let config = LoanConfig { life, ..before.config.with_role(end) };
    LoanSpec { function: before.function.clone(), config, hold: None }
}

/// Until a card of this generation serves: what the role was told meanwhile.
fn serve(agent: &mut Agent, generation: u64) -> Vec<AgentEvent> {
    let mut events = Vec::new();
    loop {
        events.extend(agent.turn().unwrap());
        let card = agent.view().card;
        if card.generation >= generation && card.running {
            assert_eq!(card.generation, generation, "a card more has died");
            return events;
        }
        wait(agent, agent.poll_timeout());
    }
}

fn is_return(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::GivenBack { .. })
}

/// For the agent to have something to read, or until then.
fn wait(agent: &Agent, until: Option<Instant>) {
    let mut watched = [PollFd::from_borrowed_fd(agent.as_fd(), PollFlags::IN)];
    let due = until.map_or(PATIENCE, |at| at.saturating_duration_since(Instant::now()));
    let timeout = Timespec::try_from(due.min(PATIENCE)).unwrap();
    let count = rustix::event::poll(&mut watched, Some(&timeout)).unwrap();
    assert!(count > 0 || due < PATIENCE, "the card says nothing");
}
