//! A place that is given to a loan while its card runs.

use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use io::agent::{Agent, AgentEvent, Edge, LoanEnd, LoanSpec};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::pair;

/// What a card says of a place is of who was there when it was started, not of who has moved in since.
pub(crate) fn forgets_what_an_earlier_card_says() {
    let path = std::env::temp_dir().join(format!("causeway-attach-{}", std::process::id()));
    let mut agent = Agent::start(pair::vacant(Edge::Vm { path: path.clone(), listener: None })).unwrap();
    // Not a turn until the card has had time to say all that it says by itself.
    wait(&agent);
    std::thread::sleep(Duration::from_millis(300));
    let listener = Some(UnixListener::bind(&path).unwrap());
    // Nobody is there.
    let peers = vec![([127, 0, 0, 1], 9).into()];
    let end =
        LoanEnd::Borrow { peers, edge: Edge::Vm { path, listener }, io_timeout: Duration::from_secs(1) };
    let before = &agent.view().spec().loans[0];
    let spec = LoanSpec { function: before.function.clone(), life: 1, end, ..*before };
    agent.attach(0, spec).unwrap();
    let start = Instant::now();
    while agent.view().card.generation < 2 || !agent.view().card.running {
        assert!(start.elapsed() < Duration::from_secs(60), "no card");
        for event in agent.turn().unwrap() {
            assert!(!matches!(event, AgentEvent::GivenBack { .. }), "of a loan that has just begun");
        }
        wait(&agent);
    }
    assert!(!agent.view().spec().loans[0].is_vacant());
}

/// For something to be readable, or a moment.
fn wait(agent: &Agent) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut watched = [PollFd::from_borrowed_fd(agent.as_fd(), PollFlags::IN)];
    rustix::event::poll(&mut watched, Some(&timeout)).unwrap();
}
