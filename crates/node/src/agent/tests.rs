use super::*;

const PID: i32 = 7;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// An agent, and the time.
struct Play {
    agent: Agent,
    now: Instant,
}

impl Play {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        Self { agent: Agent::new(RuleSet::ALL, now), now }
    }

    fn effects(&mut self) -> Vec<Effect> {
        std::iter::from_fn(|| self.agent.poll_effect()).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.agent.poll_event()).collect()
    }

    /// Lets time pass until the agent has something to do: how long that was.
    fn wait(&mut self) -> Duration {
        let at = self.agent.poll_timeout().expect("something is to come");
        let passed = at.since(self.now);
        self.now = self.now.max(at);
        self.agent.handle_timeout(self.now);
        passed
    }

    fn kill(&mut self) {
        self.agent.handle_exit(self.now, Exit::Signal(9));
    }

    fn drained(&mut self) {
        self.agent.handle_drained(self.now, Ok(()));
    }

    /// The card that was asked for serves; its generation.
    fn serve(&mut self) -> u64 {
        let effects = self.effects();
        let [Effect::Start { generation }] = effects[..] else { panic!("{effects:?}") };
        self.agent.handle_started(self.now, PID);
        self.agent.handle_running(self.now);
        generation
    }
}

/// With a first card that serves.
fn serving() -> Play {
    let mut play = Play::new();
    assert_eq!(play.wait(), ms(0));
    assert_eq!(play.serve(), 1);
    assert_eq!(play.effects(), []);
    play
}

#[test]
fn no_card_starts_before_what_the_last_one_asked_for_has_ended() {
    let mut play = serving();
    play.now += ms(500);
    play.kill();
    assert_eq!(play.events(), [Event::CardKilled { signal: 9, generation: 1 }]);
    assert_eq!(play.effects(), [Effect::Drain { wait: ms(20) }]);
    // However long a disk takes; now and then the log says so.
    let mut lines = 0;
    for _ in 0..600 {
        let unfinished = Unfinished { in_flight: 3, why: String::new() };
        play.agent.handle_drained(play.now, Err(unfinished));
        lines += play.events().len();
        assert_eq!(play.agent.record().draining, Some(3));
        assert_eq!(play.wait(), ms(20));
        assert_eq!(play.effects(), [Effect::Drain { wait: ms(1) }]);
    }
    assert_eq!(lines, 2, "after 1 s and after 11 s");
    play.drained();
    assert_eq!(play.events(), [Event::Drained { after: ms(12_000) }]);
    assert_eq!(play.serve(), 2, "each card has a generation of its own");
    assert_eq!(play.events(), [Event::CardRecovered { generation: 2, after: ms(12_000) }]);
    assert_eq!(play.agent.record().draining, None);
}

#[test]
fn nobody_waits_for_a_disk_that_is_done() {
    let mut play = serving();
    play.kill();
    assert_eq!(play.effects().len(), 1);
    play.drained();
    assert_eq!(play.serve(), 2);
}

#[test]
fn cards_that_hardly_live_are_followed_by_a_pause() {
    let mut play = serving();
    for _ in 1..10 {
        play.kill();
        play.effects();
        play.drained();
        play.serve();
    }
    play.kill();
    play.effects();
    play.drained();
    assert_eq!(play.effects(), [], "ten in a row");
    assert_eq!(play.wait(), ms(100));
    play.serve();
    play.now += ms(50);
    play.kill();
    play.effects();
    play.drained();
    assert_eq!(play.serve(), 12, "that one has lived");
}

#[test]
fn pauses_grow_with_starts_that_fail_and_end_growing() {
    let mut play = Play::new();
    let mut pauses = Vec::new();
    for failures in 1..=9 {
        pauses.push(play.wait());
        assert!(matches!(play.effects()[..], [Effect::Start { .. }]));
        play.agent.handle_start_failed(play.now, "no memory".to_owned());
        assert_eq!(play.agent.record().failed_starts, failures);
    }
    assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 6400, 6400].map(ms));
    play.wait();
    assert_eq!(play.serve(), 10);
    assert_eq!(play.agent.record().failed_starts, 0);
}

#[test]
fn what_was_started_half_way_is_drained_too() {
    let mut play = Play::new();
    play.wait();
    play.effects();
    play.agent.handle_start_failed(play.now, "no descriptors".to_owned());
    play.kill();
    assert_eq!(play.effects(), [Effect::Drain { wait: ms(20) }]);
    play.drained();
    assert_eq!(play.effects(), []);
    assert_eq!(play.wait(), ms(100), "the start has failed all the same");
}

#[test]
fn a_card_that_makes_no_turn_is_killed_once() {
    let mut play = serving();
    let mut kills = 0;
    let mut used = Duration::ZERO;
    for _ in 0..40 {
        used += play.wait();
        for effect in play.effects() {
            match effect {
                Effect::Look => {
                    let process =
                        Process { state: State::Running, traced: false, used, waited: Duration::ZERO };
                    let beat = Beat { turns: 1, rest: Rest::Awake };
                    play.agent.handle_beat(play.now, beat, || Some(process));
                }
                Effect::Kill => kills += 1,
                other => panic!("{other:?}"),
            }
        }
        kills += play.effects().len();
    }
    assert_eq!((kills, play.agent.record().condition), (1, Condition::Hung));
    let replaced = Event::CardReplaced { pid: PID, generation: 1, fault: Fault::Spins };
    assert_eq!(play.events(), [replaced]);
    // What was asked for before the death says nothing of the next card.
    play.kill();
    play.agent.handle_beat(play.now, Beat { turns: 1, rest: Rest::Awake }, || None);
    assert_eq!(play.effects(), [Effect::Drain { wait: ms(20) }]);
    assert_eq!(play.agent.record().condition, Condition::Well);
}

#[test]
fn no_card_follows_the_last_one() {
    let mut play = serving();
    play.agent.handle_end(play.now);
    assert_eq!(play.effects(), [Effect::Drain { wait: ms(20) }]);
    play.agent.handle_drained(play.now, Err(Unfinished { in_flight: 1, why: String::new() }));
    play.wait();
    play.effects();
    play.drained();
    assert_eq!((play.effects(), play.agent.poll_timeout()), (vec![], None));
}
