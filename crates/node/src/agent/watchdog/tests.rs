use super::*;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A card that somebody else plays, and what the watchdog says of it.
struct Play {
    watchdog: Watchdog,
    now: Instant,
    beat: Beat,
    process: Process,
}

impl Play {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let mut watchdog = Watchdog::default();
        watchdog.begin(now);
        let process =
            Process { state: State::Running, traced: false, used: Duration::ZERO, waited: Duration::ZERO };
        Self { watchdog, now, beat: Beat { turns: 1, rest: Rest::Awake }, process }
    }

    /// Lets time pass until the next look, of which the card has `used` and `waited` so much.
    fn look_after(&mut self, passed: Duration, used: Duration, waited: Duration) -> Finding {
        self.now += passed;
        self.process.used += used;
        self.process.waited += waited;
        let process = self.process;
        self.watchdog.look(self.now, self.beat, || Some(process))
    }

    /// Looks when the watchdog wants to, until it says something, for `longest` at most.
    fn until_finding(&mut self, longest: Duration, share: u32) -> (Duration, Finding) {
        let begin = self.now;
        while self.now.since(begin) < longest {
            let pause = self.watchdog.pause();
            let finding = self.look_after(pause, pause * share / 100, pause * (100 - share) / 100);
            if finding != Finding::Nothing {
                return (self.now.since(begin), finding);
            }
        }
        (longest, Finding::Nothing)
    }
}

#[test]
fn a_card_that_spins_is_replaced_after_a_second_of_its_own_time() {
    let mut play = Play::new();
    let (after, finding) = play.until_finding(ms(10_000), 100);
    assert_eq!(finding, Finding::Replace(Fault::Spins));
    assert!(after >= ms(1000) && after <= ms(2500), "{after:?}");
    // It is dying: nothing more is said.
    assert_eq!(play.until_finding(ms(5_000), 100).1, Finding::Nothing);
    assert_eq!(play.watchdog.condition(), Condition::Hung);
}

#[test]
fn a_card_that_waits_for_a_processor_is_not() {
    let mut play = Play::new();
    // It gets none at all for a minute.
    assert_eq!(play.until_finding(ms(60_000), 0).1, Finding::Nothing);
    // A tenth of one: then a second of its own takes ten.
    let (after, finding) = play.until_finding(ms(60_000), 10);
    assert_eq!(finding, Finding::Replace(Fault::Spins));
    assert!(after >= ms(9_000), "{after:?}");
}

#[test]
fn turns_absolve() {
    let mut play = Play::new();
    for _ in 0..1000 {
        assert_eq!(play.look_after(ms(250), ms(240), ms(0)), Finding::Nothing);
        assert_eq!(play.look_after(ms(250), ms(240), ms(0)), Finding::Nothing);
        play.beat.turns += 1;
    }
}

#[test]
fn a_card_that_sleeps_is_left_in_peace_and_seldom_looked_at() {
    let mut play = Play::new();
    play.beat.rest = Rest::Unpromised;
    play.process.state = State::Sleeping;
    assert_eq!(play.until_finding(ms(3_600_000), 0).1, Finding::Nothing);
    assert_eq!(play.watchdog.pause(), LOOK);
    play.beat = Beat { turns: 2, rest: Rest::Until(play.now + ms(3_600_000)) };
    assert_eq!(play.until_finding(ms(3_500_000), 0).1, Finding::Nothing);
    assert_eq!(play.watchdog.pause(), LOOK);
}

#[test]
fn one_that_sleeps_past_its_time_is_replaced() {
    let mut play = Play::new();
    play.beat.rest = Rest::Until(play.now + ms(5_000));
    play.process.state = State::Sleeping;
    let begin = play.now;
    let mut finding = Finding::Nothing;
    while finding == Finding::Nothing && play.now.since(begin) < ms(20_000) {
        let pause = play.watchdog.pause();
        finding = play.look_after(pause, ms(0), ms(0));
    }
    assert_eq!(finding, Finding::Replace(Fault::Oversleeps));
    assert!(play.now.since(begin) >= ms(6_000), "a promise is broken when it is late by a second");
    // Had it waited for a processor since, it would not have been.
    let mut play = Play::new();
    play.beat.rest = Rest::Until(play.now);
    play.process.state = State::Sleeping;
    assert_eq!(play.until_finding(ms(60_000), 0).1, Finding::Nothing);
}

#[test]
fn a_machine_that_stood_still_speaks_against_nobody() {
    let mut play = Play::new();
    play.beat.rest = Rest::Until(play.now + ms(10));
    play.process.state = State::Sleeping;
    // All stood still for a minute, thrice; each time we were first to run again.
    for _ in 0..3 {
        play.look_after(ms(60_000), ms(0), ms(0));
        assert_eq!(play.look_after(ms(1), ms(0), ms(0)), Finding::Nothing);
        play.beat.turns += 1;
        play.beat.rest = Rest::Until(play.now + ms(10));
    }
}

#[test]
fn one_that_is_stopped_is_replaced_unless_it_goes_on_or_has_a_debugger() {
    let stopped = |play: &mut Play| play.process.state = State::Stopped;
    for rest in [Rest::Awake, Rest::Unpromised, Rest::Until(Instant::from_nanos(u64::MAX / 2))] {
        let mut play = Play::new();
        play.beat.rest = rest;
        stopped(&mut play);
        let (after, finding) = play.until_finding(ms(10_000), 0);
        assert_eq!(finding, Finding::Replace(Fault::Stopped));
        assert!(after <= ms(2_500), "{after:?}");
        assert_eq!(play.watchdog.condition(), Condition::Stopped);
    }
    // Stopped and continued, again and again, with turns in between.
    let mut play = Play::new();
    for _ in 0..100 {
        stopped(&mut play);
        assert_eq!(play.look_after(ms(250), ms(0), ms(0)), Finding::Nothing);
        play.process.state = State::Running;
        play.beat.turns += 1;
        assert_eq!(play.look_after(ms(250), ms(9), ms(0)), Finding::Nothing);
    }
    let mut play = Play::new();
    (play.process.traced, play.process.state) = (true, State::Stopped);
    assert_eq!(play.until_finding(ms(60_000), 0).1, Finding::Nothing);
    assert_eq!(play.watchdog.condition(), Condition::Stopped);
}

#[test]
fn one_that_waits_in_the_kernel_is_named_once_and_left_alone() {
    let mut play = Play::new();
    play.process.state = State::InKernel;
    let (after, finding) = play.until_finding(ms(10_000), 0);
    assert_eq!(finding, Finding::Stuck(State::InKernel));
    assert!(after >= ms(1000), "{after:?}");
    assert_eq!(play.watchdog.condition(), Condition::Hung);
    assert_eq!(play.until_finding(ms(600_000), 0).1, Finding::Nothing, "once is enough");
    play.beat.turns += 1;
    assert!(matches!(play.look_after(ms(250), ms(0), ms(0)), Finding::Free(_)));
    assert_eq!(play.watchdog.condition(), Condition::Well);
}

/// A client may find a way to make it wait: a signal ends that.
#[test]
fn one_that_waits_for_somebody_is_replaced() {
    let mut play = Play::new();
    play.process.state = State::Sleeping;
    let (after, finding) = play.until_finding(ms(10_000), 0);
    assert_eq!(finding, Finding::Replace(Fault::Waits));
    assert!(after >= ms(1000) && after <= ms(2500), "{after:?}");
    // Now and then, with turns in between, it may.
    let mut play = Play::new();
    play.process.state = State::Sleeping;
    for _ in 0..100 {
        assert_eq!(play.look_after(ms(250), ms(0), ms(0)), Finding::Nothing);
        play.beat.turns += 1;
        assert_eq!(play.look_after(ms(250), ms(0), ms(0)), Finding::Nothing);
    }
}

#[test]
fn a_step_that_takes_long_comes_to_its_end_at_last() {
    // The successor does it again, and so on.
    let mut play = Play::new();
    let mut deaths = 0;
    loop {
        let began = play.process.used;
        play.watchdog.begin(play.now);
        while play.process.used - began < ms(5_000) {
            let pause = play.watchdog.pause();
            if play.look_after(pause, pause, ms(0)) != Finding::Nothing {
                break;
            }
        }
        if play.process.used - began >= ms(5_000) {
            break;
        }
        deaths += 1;
        assert!(deaths < 10, "it is killed for ever");
    }
    assert!((1..=4).contains(&deaths), "{deaths}");
    // Once a card has worked for long, the patience is as short as before.
    for _ in 0..200 {
        play.beat.turns += 1;
        play.look_after(ms(1000), ms(1), ms(0));
    }
    assert_eq!(play.watchdog.strikes, 0);
}
