use super::*;
use base::ids::{LifeId, NodeId};
use link::Name;

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
    assert!(play.agent.is_over());
}

fn held() -> Tenancy {
    Tenancy::default().taken_by(NodeId::numbered(7), LifeId([1; 16]), Name::new("one"), LifeId::default())
}

#[test]
fn a_tenancy_is_durable_before_its_card_is_told() {
    let (mut play, tenancy) = (serving(), held());
    play.agent.handle_tenant(play.now, 0, tenancy);
    assert_eq!(play.effects(), [Effect::StoreTenancy { loan: 0, tenancy }]);
    // The card dies, and the next one says it again.
    play.agent.handle_tenant(play.now, 0, tenancy);
    assert_eq!(play.effects(), []);
    play.agent.handle_tenancy_stored(play.now, 0, Err("no space".to_owned()));
    let event = play.events().pop().expect("somebody has to look");
    assert!(matches!(event, Event::TenancyUnsaved { error, .. } if error == "no space"));
    assert_eq!(play.effects(), []);
    // Nor sooner if it changes meanwhile.
    play.agent.handle_tenant(play.now, 0, tenancy.given_back());
    assert_eq!(play.effects(), []);
    let looked = play.agent.poll_timeout().map(|at| at.since(play.now));
    assert_eq!(looked, Some(ms(1000)));
    play.now += ms(1000);
    play.agent.handle_timeout(play.now);
    let tenancy = tenancy.given_back();
    assert!(play.effects().contains(&Effect::StoreTenancy { loan: 0, tenancy }));
    play.agent.handle_tenancy_stored(play.now, 0, Ok(()));
    assert_eq!(play.effects(), [Effect::TellTenancy { loan: 0, tenancy }]);
    // Nobody has asked for that.
    play.agent.handle_tenancy_stored(play.now, 0, Ok(()));
    assert_eq!(play.effects(), []);
}

/// A drive that were withdrawn meanwhile would be kept for who has given it back.
#[test]
fn it_is_known_that_a_tenancy_is_not_durable_yet() {
    let (mut play, tenancy) = (serving(), held());
    assert!(!play.agent.is_keeping(0));
    play.agent.handle_tenant(play.now, 0, tenancy);
    assert!(play.agent.is_keeping(0) && !play.agent.is_keeping(1));
    play.agent.handle_tenancy_stored(play.now, 0, Err("no space".to_owned()));
    assert!(play.agent.is_keeping(0));
    play.now += ms(1000);
    play.agent.handle_timeout(play.now);
    play.agent.handle_tenant(play.now, 0, tenancy.given_back());
    play.agent.handle_tenancy_stored(play.now, 0, Ok(()));
    assert!(play.agent.is_keeping(0), "that it was given back is not");
    play.agent.handle_tenancy_stored(play.now, 0, Ok(()));
    assert!(!play.agent.is_keeping(0));
}

#[test]
fn what_changes_while_it_is_written_is_written_behind() {
    let (mut play, tenancy) = (serving(), held());
    play.agent.handle_tenant(play.now, 0, tenancy);
    play.agent.handle_tenant(play.now, 0, tenancy.given_back());
    assert_eq!(play.effects(), [Effect::StoreTenancy { loan: 0, tenancy }]);
    play.agent.handle_tenancy_stored(play.now, 0, Ok(()));
    let next = tenancy.given_back();
    let told = Effect::TellTenancy { loan: 0, tenancy };
    assert_eq!(play.effects(), [told, Effect::StoreTenancy { loan: 0, tenancy: next }]);
}

#[test]
fn the_third_change_within_a_second_waits_or_is_written_at_the_end() {
    let mut play = serving();
    let stored = |play: &mut Play, loan: usize, tenancy: Tenancy| {
        play.agent.handle_tenant(play.now, loan, tenancy);
        let is_written = play.effects().contains(&Effect::StoreTenancy { loan, tenancy });
        play.agent.handle_tenancy_stored(play.now, loan, Ok(()));
        play.effects();
        is_written
    };
    assert!(stored(&mut play, 0, held()));
    play.now += ms(100);
    assert!(stored(&mut play, 0, held().given_back()));
    assert!(!stored(&mut play, 0, held()) && stored(&mut play, 1, held()), "each function for itself");
    assert_eq!(play.wait(), ms(900));
    assert!(play.effects().contains(&Effect::StoreTenancy { loan: 0, tenancy: held() }));
    play.agent.handle_tenancy_stored(play.now, 0, Ok(()));
    play.agent.handle_tenant(play.now, 0, held().given_back());
    assert_eq!(play.agent.take_unsaved(), [(0, held().given_back())], "or it would be kept for nobody");
    assert_eq!(play.agent.take_unsaved(), []);
}

#[test]
fn an_incarnation_is_durable_before_it_is_used_and_raised_once_a_second() {
    let mut play = serving();
    let raise = [Effect::RaiseIncarnation { loan: 2, seen: 5 }];
    play.agent.handle_outdated(play.now, 2, 5);
    assert_eq!(play.effects(), raise);
    play.agent.handle_outdated(play.now, 2, 5);
    assert_eq!((play.effects(), play.agent.least_incarnation(2)), (vec![], 0));
    play.agent.handle_incarnation_raised(2, 6);
    assert_eq!(play.effects(), [Effect::TellIncarnation { loan: 2, incarnation: 6 }]);
    // A message of before.
    play.now += ms(1000);
    play.agent.handle_outdated(play.now, 2, 5);
    assert_eq!((play.effects(), play.agent.least_incarnation(2)), (vec![], 6));
    play.agent.handle_attached(2, false);
    play.effects();
    play.agent.handle_outdated(play.now, 2, 5);
    assert_eq!(play.effects(), raise);
}

/// A state folder that was restored, of a node with many loans of one lender.
#[test]
fn an_incarnation_is_raised_once_for_all_loans() {
    let mut play = serving();
    (0..300).for_each(|loan| play.agent.handle_outdated(play.now, loan, 5));
    assert_eq!(play.effects(), [Effect::RaiseIncarnation { loan: 0, seen: 5 }]);
    play.agent.handle_incarnation_raised(0, 6);
    let told = |loan| Effect::TellIncarnation { loan, incarnation: 6 };
    assert_eq!(play.effects(), (0..300).map(told).collect::<Vec<_>>());
    // A lender that lies says it again and again, of whichever loan.
    (0..300).for_each(|loan| play.agent.handle_outdated(play.now, loan, 6));
    assert_eq!(play.effects(), []);
    play.now += ms(1000);
    (0..300).for_each(|loan| play.agent.handle_outdated(play.now, loan, 6));
    assert_eq!(play.effects(), [Effect::RaiseIncarnation { loan: 1, seen: 6 }]);
}

/// What one of them has seen is above what the state folder can believe.
#[test]
fn a_lender_that_says_nonsense_keeps_no_other_from_its_incarnation() {
    let mut play = serving();
    let mut asked = Vec::new();
    for _ in 0..3 {
        // Each is called again and again; the one that lies always answers first.
        play.agent.handle_outdated(play.now, 0, u64::MAX);
        play.agent.handle_outdated(play.now, 1, 5);
        asked.extend(play.effects());
        play.now += ms(1000);
    }
    let raise = |loan, seen| Effect::RaiseIncarnation { loan, seen };
    assert_eq!(asked, [raise(0, u64::MAX), raise(1, 5), raise(0, u64::MAX)]);
    play.agent.handle_incarnation_raised(1, 6);
    assert_eq!(play.effects(), [Effect::TellIncarnation { loan: 1, incarnation: 6 }]);
}

#[test]
fn a_successor_is_told_what_the_one_before_was_told() {
    let mut play = serving();
    let absent = |loan| Effect::TellPresence { loan, is_present: false };
    for (loan, is_present) in [(1, false), (2, false), (3, false), (4, false), (2, true), (1, false)] {
        play.agent.handle_presence(loan, is_present);
    }
    play.agent.handle_client(4);
    play.agent.handle_detach(1);
    play.effects();
    play.agent.handle_detach(1);
    assert_eq!(play.effects(), [], "it is being given back already");
    let replace = |play: &mut Play| {
        play.kill();
        play.drained();
        play.effects();
        play.agent.handle_started(play.now, PID);
        play.effects()
    };
    assert_eq!(replace(&mut play), [absent(1), absent(3), Effect::TellReturn { loan: 1 }]);
    play.agent.handle_given_back(1);
    play.agent.handle_given_back(3);
    assert_eq!(play.effects(), [Effect::Vacate { loan: 1 }], "nobody wanted the other place vacant");
    assert_eq!(replace(&mut play), []);
    play.agent.handle_shut_down();
    assert_eq!((play.effects(), play.agent.is_shutting_down()), (vec![Effect::TellEnd], true));
    assert_eq!(replace(&mut play), [Effect::TellEnd]);
}

#[test]
fn what_no_lender_takes_back_is_forgotten_by_the_card_that_runs() {
    let mut play = serving();
    play.agent.handle_detach(1);
    assert_eq!(play.effects(), [Effect::TellReturn { loan: 1 }]);
    play.agent.handle_abandoned(1);
    play.agent.handle_abandoned(1);
    assert_eq!(play.effects(), [Effect::TellForget { loan: 1 }], "once, and the card goes on");
    play.agent.handle_detach(1);
    assert_eq!(play.effects(), [], "nobody waits for its lender again");
    play.kill();
    play.drained();
    play.effects();
    play.agent.handle_started(play.now, PID);
    assert_eq!(play.effects(), [Effect::TellForget { loan: 1 }], "the one before may not have heard it");
    play.agent.handle_given_back(1);
    assert_eq!(play.effects(), [Effect::Vacate { loan: 1 }]);
}

#[test]
fn a_card_takes_a_new_loan_or_is_replaced() {
    let mut play = serving();
    play.agent.handle_detach(5);
    play.effects();
    play.agent.handle_attached(5, true);
    assert_eq!(play.effects(), [Effect::TellLoan { loan: 5 }]);
    play.agent.handle_attached(6, false);
    assert_eq!(play.effects(), [Effect::Kill]);
    play.kill();
    play.drained();
    // Without a card there is nobody to tell or to kill.
    play.agent.handle_attached(6, true);
    play.agent.handle_attached(6, false);
    let asked = [Effect::Drain { wait: ms(20) }, Effect::Start { generation: 2 }];
    assert_eq!(play.effects(), asked);
    play.agent.handle_started(play.now, PID);
    assert_eq!(play.effects(), [], "the loan that was being given back is gone");
}

#[test]
fn a_card_whose_plan_has_changed_is_replaced_once() {
    let mut play = serving();
    let tenancy = Tenancy { number: 1, ..Tenancy::default() };
    play.agent.handle_tenant(play.now, 3, tenancy);
    play.agent.handle_detach(4);
    play.effects();
    play.agent.handle_replanned([3, 4]);
    play.agent.handle_replanned([5]);
    assert_eq!(play.effects(), [Effect::Kill]);
    // What was on its way for a loan that is gone says nothing of the one that has its place.
    play.agent.handle_tenancy_stored(play.now, 3, Ok(()));
    assert_eq!((play.effects(), play.agent.take_unsaved()), (vec![], vec![]));
    play.kill();
    play.drained();
    play.agent.handle_replanned([6]);
    play.effects();
    play.agent.handle_started(play.now, PID);
    assert_eq!(play.effects(), [], "nothing is to be given back");
    play.agent.handle_replanned([6]);
    assert_eq!(play.effects(), [Effect::Kill], "the next card does not know that either");
}

#[test]
fn where_a_holder_is_becomes_durable_once_and_not_too_often() {
    let mut play = serving();
    let key = link::NodeKey::numbered(2).public();
    let at = |byte: u8| {
        let addresses = [crate::Address([byte; 28]); crate::MAX_RAILS];
        Whereabouts { key, domain: base::ids::DomainId(2), addresses, copies: Default::default() }
    };
    let store = |play: &mut Play| play.effects();
    play.agent.handle_located(play.now, at(1));
    assert_eq!(store(&mut play), [Effect::StoreHolder(at(1))]);
    // Another card says so again.
    play.agent.handle_located(play.now, at(1));
    play.agent.handle_holder_stored(play.now, key.id(), Ok(()));
    assert_eq!(store(&mut play), []);
    play.agent.handle_located(play.now, at(2));
    assert_eq!(store(&mut play), [Effect::StoreHolder(at(2))]);
    // What cannot be written is tried again, and the last word counts.
    play.agent.handle_holder_stored(play.now, key.id(), Err("no space".into()));
    let [Event::HolderUnsaved { node, .. }] = &play.events()[..] else { panic!() };
    assert_eq!(*node, key.id());
    play.agent.handle_located(play.now, at(3));
    assert_eq!(store(&mut play), []);
    play.now += ms(1000);
    play.agent.handle_timeout(play.now);
    assert!(store(&mut play).contains(&Effect::StoreHolder(at(3))));
    play.agent.handle_holder_stored(play.now, key.id(), Ok(()));
    // Who moves all the time costs a write a second.
    play.agent.handle_located(play.now, at(4));
    play.agent.handle_timeout(play.now);
    let soon = store(&mut play).len();
    play.agent.handle_holder_stored(play.now, key.id(), Ok(()));
    play.agent.handle_located(play.now, at(5));
    assert_eq!((soon, store(&mut play).len()), (1, 0));
    play.agent.handle_holder_gone(key.id());
    play.now += ms(2000);
    play.agent.handle_timeout(play.now);
    assert!(!store(&mut play).iter().any(|effect| matches!(effect, Effect::StoreHolder(_))));
}
