//! A place that is given to a loan while its card runs.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use io::agent::{Agent, AgentEvent, Edge, LoanEnd, LoanSpec};
use node::Lender;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Resource, Rlimit};

use crate::pair;

/// Longer than anything waited for here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a card says of a loan is not taken for something of the loan that has its place since.
pub(crate) fn forgets_what_an_earlier_card_says() {
    let (mut agent, path) = start("forgets");
    agent.attach(0, loan(&agent, &path, 1)).unwrap();
    let events = serve(&mut agent, 2);
    assert!(!events.iter().any(is_return), "of a loan that has just begun: {events:?}");
    // Nobody is there to whom it could be given back, so the card says at once that it is. That waits in its socket.
    agent.detach(0);
    wait(&agent, None);
    agent.abandon(0).unwrap();
    assert!(agent.view().spec().loans[0].is_vacant());
    agent.attach(0, loan(&agent, &path, 2)).unwrap();
    let events = serve(&mut agent, 3);
    assert!(!events.iter().any(is_return), "of a loan that has just begun: {events:?}");
    assert!(!agent.view().spec().loans[0].is_vacant());
}

/// There are no addresses left for a larger ledger: the node goes on as it was, and takes the loan when there are.
pub(crate) fn without_memory_changes_nothing() {
    let (mut agent, path) = start("memory");
    let before = agent.view().card;
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
    // SAFETY: a signal to a child of this process, which only its agent reaps.
    unsafe { libc::kill(after.pid.unwrap(), libc::SIGKILL) };
    serve(&mut agent, 2);
    agent.attach(0, loan(&agent, &path, 1)).unwrap();
    serve(&mut agent, 3);
    assert_eq!(agent.view().card.restarts, 2, "each card has served");
}

/// A node with a vacant slot, whose card serves; and where the slot's socket is to be.
fn start(name: &str) -> (Agent, PathBuf) {
    let path = std::env::temp_dir().join(format!("causeway-attach-{name}-{}", std::process::id()));
    let mut agent = Agent::start(pair::vacant(Edge::Vm { path: path.clone(), listener: None })).unwrap();
    serve(&mut agent, 1);
    (agent, path)
}

/// A loan for the place, of somebody who is not there.
fn loan(agent: &Agent, path: &PathBuf, life: u32) -> LoanSpec {
    let edge = Edge::Vm { path: path.clone(), listener: Some(UnixListener::bind(path).unwrap()) };
    let peers = vec![([127, 0, 0, 1], 9).into()];
    let end = LoanEnd::Borrow { lender: Lender::default(), peers, edge, io_timeout: Duration::from_secs(1) };
    let before = &agent.view().spec().loans[0];
    LoanSpec { function: before.function.clone(), life, end, ..*before }
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
