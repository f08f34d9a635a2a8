mod restores;

use base::ids::LoanGeneration;

use super::*;
use crate::command::Command;
use crate::model::{Assignment, Loan, OnSilence, Place};
use crate::report::{Alarm, DeadRail, Holder, Identity, RailCause, Report, Reported, Said};
use crate::testing::{T0, assign, by, fabric, identity, joining, name, node_id, reported, unassign};

fn at(ms: u64) -> Now {
    Now { clock: Instant::ZERO + Duration::from_millis(ms), wall: T0 }
}

/// A manager, and the effects that it has had.
struct Rig {
    manager: Manager,
    now: Now,
}

impl Rig {
    fn new(state: State, start: Start) -> Self {
        let now = at(0);
        Self { manager: Manager::start(now, state, start), now }
    }

    /// One that has started, with both nodes heard.
    fn settled() -> Self {
        let mut rig = Self::new(fabric(), Start::Plain);
        rig.all();
        rig.hear(1, &[reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
        rig.hear(2, &[]);
        rig.all();
        rig
    }

    /// Effects, with a disk that is quick.
    fn all(&mut self) -> Vec<Effect> {
        let mut all = Vec::new();
        while let Some(effect) = self.manager.poll_effect(self.now) {
            if let Effect::Append { first, entries } = &effect {
                self.manager.handle_durable(first + entries.len() as u64 - 1);
            }
            all.push(effect);
        }
        all
    }

    fn none_but_append(&mut self) -> u64 {
        let Some(Effect::Append { first, entries }) = self.manager.poll_effect(self.now) else {
            panic!("nothing is appended")
        };
        let others: Vec<_> = core::iter::from_fn(|| self.manager.poll_effect(self.now)).collect();
        assert!(others.iter().all(|effect| matches!(effect, Effect::Event(_))), "{others:?}");
        first + entries.len() as u64 - 1
    }

    fn say(&mut self, node: u64, said: Said) {
        let epoch = self.manager.state().epoch();
        self.manager.handle_report(self.now, node_id(node), &Report { epoch, said });
    }

    fn hear(&mut self, node: u64, functions: &[Reported]) {
        self.manager.handle_reachable(node_id(node));
        let identity = identity(self.manager.state(), node);
        let functions = functions.to_vec();
        self.say(node, Said::Inventory { identity, functions, presets: None, made: None, rails: vec![] });
    }

    fn ask(&mut self, ticket: u64, command: Command) {
        self.manager.handle_command(self.now, Ticket(ticket), &by("root", 1000 + ticket, command));
    }

    fn go(&mut self, ms: u64) {
        self.now = at(ms);
        self.manager.handle_timeout(self.now);
    }
}

fn answers(effects: &[Effect]) -> Vec<(u64, Result<Progress, Refusal>)> {
    let answer = |effect: &Effect| match effect {
        Effect::Answer { ticket, reply } => Some((ticket.0, reply.clone().map(|reply| reply.progress))),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

fn orders(effects: &[Effect]) -> Vec<(u32, u64, bool, bool)> {
    let told = |effect: &Effect| match effect {
        Effect::TellLender { orders, .. } => orders.clone(),
        _ => vec![],
    };
    let orders = effects.iter().flat_map(told);
    orders.map(|it| (it.number, it.generation.0, it.to.is_some(), it.force)).collect()
}

fn alarms(effects: &[Effect]) -> Vec<Alarm> {
    let alarm = |effect: &Effect| match effect {
        Effect::Event(Event::Alarm { alarm, .. }) => Some(alarm.clone()),
        _ => None,
    };
    effects.iter().filter_map(alarm).collect()
}

fn holder(domain: u32, slot: u16) -> Holder {
    let place = Place { domain: base::ids::DomainId(domain), slot };
    let (group, on_silence) = (base::ids::Group::DEFAULT, OnSilence::default());
    Holder::Assigned(Assignment { borrower: node_id(2), place, group, on_silence })
}

#[test]
fn nobody_is_greeted_before_the_epoch_is_durable_and_nobody_told_before_it_has_promised() {
    let mut rig = Rig::new(fabric(), Start::Plain);
    rig.manager.handle_reachable(node_id(1));
    let last = rig.none_but_append();
    rig.manager.handle_durable(last - 1);
    assert_eq!(rig.manager.poll_effect(rig.now), None, "another one is not it");
    rig.manager.handle_durable(last);
    let greeting = Effect::Greet { node: node_id(1), epoch: 1 };
    assert_eq!(rig.manager.poll_effect(rig.now), Some(greeting.clone()));
    rig.ask(1, assign("store/nvme0", 33, 0));
    let effects = rig.all();
    assert!(orders(&effects).is_empty() && answers(&effects).is_empty(), "{effects:?}");
    rig.go(500);
    assert!(rig.all().contains(&greeting), "it may be lost");
    // What it has said before it promised does not count.
    let old = Report { epoch: 0, said: Said::Function(reported(0, 1, holder(33, 0))) };
    rig.manager.handle_report(rig.now, node_id(1), &old);
    assert!(rig.all().is_empty());
    rig.hear(1, &[reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    assert_eq!(orders(&rig.all()), [(0, 1, true, false)]);
}

#[test]
fn an_assignment_is_durable_then_told_then_applied_then_answered() {
    let mut rig = Rig::settled();
    rig.ask(1, assign("store/nvme0", 33, 0));
    let last = rig.none_but_append();
    rig.manager.handle_durable(last);
    let effects = rig.all();
    assert_eq!((orders(&effects), answers(&effects)), (vec![(0, 1, true, false)], vec![]));
    let presets = effects.iter().find_map(|effect| match effect {
        Effect::TellBorrower { node, presets, .. } if *node == node_id(2) => Some(presets.clone()),
        _ => None,
    });
    assert_eq!(presets.unwrap()[0].generation, LoanGeneration(1));
    rig.say(1, Said::Function(reported(0, 1, holder(33, 0))));
    assert_eq!(answers(&rig.all()), [(1, Ok(Progress::Done))]);
    // It is so: another request, and the same again.
    rig.ask(2, assign("store/nvme0", 33, 0));
    rig.manager.handle_command(rig.now, Ticket(3), &by("root", 1001, assign("store/nvme0", 33, 0)));
    assert_eq!(answers(&rig.all()), [(2, Ok(Progress::Done)), (3, Ok(Progress::Done))]);
    rig.ask(4, unassign("store/nvme0", false));
    assert_eq!(orders(&rig.all()), [(0, 2, false, false)]);
    rig.ask(5, unassign("store/nvme0", true));
    assert_eq!(orders(&rig.all()), [(0, 2, false, true)]);
    rig.say(1, Said::Function(reported(0, 2, Holder::Nobody)));
    assert_eq!(answers(&rig.all()), [(4, Ok(Progress::Done)), (5, Ok(Progress::Done))]);
}

#[test]
fn what_a_silent_lender_has_to_do_is_pending_and_taken_up_when_it_is_heard() {
    let mut rig = Rig::settled();
    let pending = |is_silent| Ok(Progress::Pending { lender: node_id(1), is_silent });
    rig.ask(1, assign("store/nvme0", 33, 0));
    assert!(answers(&rig.all()).is_empty());
    rig.manager.handle_silent(node_id(1));
    assert_eq!(answers(&rig.all()), [(1, pending(true))]);
    rig.ask(2, unassign("store/nvme0", true));
    let effects = rig.all();
    assert_eq!((answers(&effects), orders(&effects)), (vec![(2, pending(true))], vec![]));
    rig.hear(1, &[reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    assert_eq!(orders(&rig.all()), [(0, 2, false, true)]);
    // One that is heard and does nothing.
    rig.ask(3, assign("store/nvme1", 33, 1));
    rig.all();
    rig.go(4_999);
    assert!(answers(&rig.all()).is_empty());
    rig.go(5_000);
    assert_eq!(answers(&rig.all()), [(3, pending(false))]);
    rig.ask(4, unassign("store/nvme1", false));
    rig.all();
    rig.say(1, Said::Function(reported(1, 2, Holder::Nobody)));
    assert_eq!(answers(&rig.all()), [(4, Ok(Progress::Done))]);
}

#[test]
fn who_does_not_answer_is_told_again_ever_more_rarely() {
    let mut rig = Rig::settled();
    rig.ask(1, assign("store/nvme0", 33, 0));
    rig.all();
    let mut told = Vec::new();
    while told.len() < 8 {
        let next = rig.manager.poll_timeout().unwrap();
        rig.now.clock = next;
        rig.manager.handle_timeout(rig.now);
        if !orders(&rig.all()).is_empty() {
            told.push(next.since(Instant::ZERO).as_millis());
        }
    }
    let pauses: Vec<_> = told.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses, [1000, 2000, 4000, 8000, 8000, 8000, 8000]);
    rig.say(1, Said::Function(reported(0, 1, holder(33, 0))));
    rig.say(2, Said::Presets(PresetsId { epoch: 1, index: 0 }));
    rig.all();
    assert!(rig.manager.poll_timeout().is_some(), "the borrower has an older list");
    let index = rig.manager.state().index() - 1;
    rig.say(2, Said::Presets(PresetsId { epoch: 1, index }));
    rig.say(1, Said::Presets(PresetsId { epoch: 1, index: 17 }));
    rig.all();
}

#[test]
fn a_lender_that_claims_to_know_better_is_not_believed_and_no_impossible_generation_is_taken() {
    let mut rig = Rig::settled();
    rig.say(1, Said::Function(reported(0, 7, holder(33, 0))));
    let effects = rig.all();
    let alarm = |reported, refused| Alarm::GreaterGeneration {
        number: 0,
        known: LoanGeneration(0),
        reported: LoanGeneration(reported),
        refused,
    };
    assert_eq!(alarms(&effects), [alarm(7, true)]);
    assert_eq!(orders(&effects), [(0, 8, false, true)]);
    let function =
        |rig: &Rig, number| rig.manager.state().functions_of(node_id(1)).nth(number).unwrap().clone();
    assert!(matches!(function(&rig, 0).loan, Loan::Ended { .. }));
    assert!(
        rig.manager.state().in_slot(Place { domain: base::ids::DomainId(33), slot: 0 }).is_none(),
        "nobody's slot is taken by it"
    );
    rig.say(1, Said::Function(reported(0, 8, Holder::Nobody)));
    rig.all();
    // That nobody has it takes nothing from anybody.
    rig.say(1, Said::Function(reported(0, 9, Holder::Nobody)));
    assert!(matches!(alarms(&rig.all())[..], [Alarm::GreaterGeneration { refused: false, .. }]));
    assert_eq!((function(&rig, 0).loan, function(&rig, 0).generation), (Loan::Free, LoanGeneration(9)));
    rig.say(1, Said::Function(reported(1, 3, holder(33, 0))));
    let effects = rig.all();
    assert!(matches!(alarms(&effects)[..], [Alarm::GreaterGeneration { refused: true, .. }]));
    assert_eq!(orders(&effects), [(1, 4, false, true)]);
    assert!(matches!(function(&rig, 1).loan, Loan::Ended { .. }));
    rig.say(1, Said::Function(reported(1, 4, Holder::Nobody)));
    rig.all();
    assert_eq!(function(&rig, 1).loan, Loan::Free);
    for impossible in [u64::MAX, u64::MAX / 2 + 1, 1 << 40] {
        let lie = [reported(0, 9, Holder::Nobody), reported(1, impossible, Holder::Nobody)];
        rig.hear(1, &lie);
        assert!(matches!(alarms(&rig.all())[..], [Alarm::ImpossibleGeneration { number: 1, .. }]));
        assert_eq!(function(&rig, 1).generation, LoanGeneration(4));
        rig.hear(1, &lie);
        assert!(alarms(&rig.all()).is_empty(), "each is raised once");
    }
    let many: Vec<_> = (0..257).map(|number| reported(number, 0, Holder::Nobody)).collect();
    rig.hear(1, &many);
    assert_eq!(alarms(&rig.all()), [Alarm::TooMany { most: 256 }]);
    rig.hear(1, &[reported(0, 9, Holder::Nobody), reported(0, 9, Holder::Nobody)]);
    assert!(matches!(alarms(&rig.all())[..], [Alarm::Twice { number: 0, .. }]));
}

#[test]
fn a_borrower_that_was_silent_for_too_long_loses_what_it_has() {
    let mut rig = Rig::settled();
    rig.ask(1, assign("store/nvme0", 33, 0));
    rig.all();
    rig.say(1, Said::Function(reported(0, 1, holder(33, 0))));
    rig.all();
    rig.say(1, Said::HoldOver { number: 0, generation: LoanGeneration(0) });
    assert!(rig.all().is_empty(), "that was another one");
    rig.say(1, Said::HoldOver { number: 0, generation: LoanGeneration(1) });
    assert_eq!(orders(&rig.all()), [(0, 2, false, true)]);
}

#[test]
fn a_node_that_knows_a_greater_epoch_is_told_of_and_stops_nobody_else() {
    let mut rig = Rig::settled();
    let said = Said::Function(reported(0, 3, Holder::Nobody));
    rig.manager.handle_report(rig.now, node_id(1), &Report { epoch: 9, said });
    assert_eq!(alarms(&rig.all()), [Alarm::GreaterEpoch { epoch: 9 }]);
    assert_eq!(rig.manager.state().epoch(), 1);
    rig.manager.handle_reachable(node_id(9));
    assert_eq!(alarms(&rig.all()), [Alarm::Stranger]);
}

#[test]
fn a_restore_is_not_ended_by_itself_before_anybody_has_come() {
    let mut rig = Rig::new(crate::testing::founded(), Start::Restored { any_time: false });
    rig.all();
    rig.ask(1, Command::EndRestore { anyway: false });
    assert_eq!(answers(&rig.all()), [(1, Err(Refusal::Restoring { unheard: 0, first: None }))]);
    rig.ask(2, Command::EndRestore { anyway: true });
    assert_eq!(answers(&rig.all()), [(2, Ok(Progress::Done))]);
}

#[test]
fn a_restored_manager_listens_before_it_speaks() {
    let mut rig = Rig::new(fabric(), Start::Restored { any_time: false });
    rig.all();
    assert_eq!(rig.manager.state().epoch(), RESTORE_EPOCHS);
    rig.ask(1, assign("store/nvme1", 33, 1));
    let unheard = |count, first: &str| Err(Refusal::Restoring { unheard: count, first: Some(name(first)) });
    assert_eq!(answers(&rig.all()), [(1, unheard(2, "store"))]);
    rig.ask(2, Command::EndRestore { anyway: false });
    rig.manager.handle_command(rig.now, Ticket(3), &joining(11, 3000, 9, "new"));
    assert!(answers(&rig.all()).iter().all(|(_, answer)| answer.is_err()));
    // One has heard of managers that the backup does not know.
    rig.manager.handle_reachable(node_id(1));
    rig.all();
    let said = Said::Function(reported(0, 3, Holder::Nobody));
    rig.manager.handle_report(rig.now, node_id(1), &Report { epoch: RESTORE_EPOCHS + 5, said });
    let effects = rig.all();
    assert!(effects.contains(&Effect::Greet { node: node_id(1), epoch: RESTORE_EPOCHS + 6 }), "{effects:?}");
    // A lender that assigns to a node of which nothing is known yet, then that node.
    let place = Place { domain: base::ids::DomainId(49), slot: 3 };
    let (group, on_silence) = (base::ids::Group::DEFAULT, OnSilence::default());
    let to = Assignment { borrower: node_id(3), place, group, on_silence };
    let all = [reported(0, 4, Holder::Assigned(to)), reported(1, 2, holder(33, 1))];
    rig.hear(1, &all);
    assert!(orders(&rig.all()).is_empty());
    rig.manager.handle_reachable(node_id(3));
    let block = crate::model::Block::new(48, 16).unwrap();
    let (key, groups) = (crate::model::PublicKey([3; 32]), crate::model::Groups::default());
    let identity = Identity { name: name("third"), key, block, groups, issued: T0 };
    let presets = Some(PresetsId { epoch: 4, index: 99 });
    rig.say(3, Said::Inventory { identity, functions: vec![], presets, made: None, rails: vec![] });
    let asked = Effect::Greet { node: node_id(1), epoch: RESTORE_EPOCHS + 6 };
    assert!(rig.all().contains(&asked), "it is understood now");
    rig.hear(1, &all);
    rig.hear(2, &[]);
    let effects = rig.all();
    let speaks = |effect: &Effect| matches!(effect, Effect::TellLender { .. } | Effect::TellBorrower { .. });
    assert!(!effects.iter().any(speaks), "{effects:?}");
    rig.ask(4, Command::EndRestore { anyway: false });
    let effects = rig.all();
    assert_eq!(answers(&effects), [(4, Ok(Progress::Done))]);
    assert!(orders(&effects).is_empty(), "lenders know all");
    assert_eq!(
        effects.iter().filter(|effect| speaks(effect)).count(),
        3,
        "each is told what is in its slots"
    );
    assert!(rig.manager.state().restore().is_none());
    rig.ask(5, assign("store/nvme1", 33, 1));
    assert_eq!(answers(&rig.all()), [(5, Ok(Progress::Done))]);
}

#[test]
fn what_waits_is_bounded() {
    let mut rig = Rig::settled();
    rig.ask(1, assign("store/nvme0", 33, 0));
    rig.all();
    for ticket in 2..=WAITING_MAX as u64 + 1 {
        rig.ask(ticket, assign("store/nvme0", 33, 0));
    }
    assert_eq!(answers(&rig.all()), [(WAITING_MAX as u64 + 1, Err(Refusal::Busy))]);
    rig.say(1, Said::Function(reported(0, 1, holder(33, 0))));
    assert_eq!(answers(&rig.all()).len(), WAITING_MAX);
    for _ in 0..EVENTS_MAX {
        rig.manager.handle_silent(node_id(1));
        rig.manager.handle_reachable(node_id(1));
    }
    assert_eq!(rig.manager.lost_events(), EVENTS_MAX as u64);
    let events = rig.all().iter().filter(|effect| matches!(effect, Effect::Event(_))).count();
    assert_eq!(events, EVENTS_MAX);
}

fn dead(node: u64, rail: usize) -> DeadRail {
    let (node, rail) = (node_id(node), base::ids::RailId::ALL[rail]);
    DeadRail { node, rail, cause: RailCause::Silence }
}

/// Which rails these are told of.
fn rails_told(effects: &[Effect]) -> Vec<(Vec<NodeId>, Vec<DeadRail>)> {
    let told = |effect: &Effect| match effect {
        Effect::TellRails { nodes, rails } => Some((nodes.clone(), rails.clone())),
        _ => None,
    };
    effects.iter().filter_map(told).collect()
}

/// With nodes 3 and 4, called as their numbers are, which are heard too.
fn rig_of_four() -> Rig {
    let mut state = fabric();
    for node in [3, 4] {
        crate::testing::run(
            &mut state,
            by("root", 100 + node, crate::testing::join_token(40 + node as u8, 16)),
        );
        crate::testing::run(&mut state, joining(40 + node as u8, 110 + node, node, &format!("node{node}")));
    }
    let mut rig = Rig::new(state, Start::Plain);
    rig.all();
    rig.hear(1, &[reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)]);
    (2..=4).for_each(|node| rig.hear(node, &[]));
    rig.all();
    rig
}

#[test]
fn a_dead_rail_is_told_once_to_all_but_those_who_said_so() {
    let mut rig = rig_of_four();
    rig.say(2, Said::Rails(vec![dead(1, 1)]));
    let effects = rig.all();
    assert_eq!(rails_told(&effects), [(vec![node_id(1), node_id(3), node_id(4)], vec![dead(1, 1)])]);
    let (said, by) = (dead(1, 1), vec![node_id(2)]);
    assert!(effects.contains(&Effect::Event(Event::RailDead { rail: said, by })), "{effects:?}");
    // What is said again, or by another one, is no news; what comes right after it waits a little.
    rig.say(2, Said::Rails(vec![dead(1, 1)]));
    rig.say(3, Said::Rails(vec![dead(1, 1), dead(2, 0)]));
    rig.say(4, Said::Rails(vec![dead(2, 1)]));
    assert_eq!(rails_told(&rig.all()), []);
    rig.go(99);
    assert_eq!((rails_told(&rig.all()), rig.manager.poll_timeout()), (vec![], Some(at(100).clock)));
    rig.go(100);
    let all = (1..=4).map(node_id).collect();
    assert_eq!(rails_told(&rig.all()), [(all, vec![dead(2, 0), dead(2, 1)])]);
    let by = rig.manager.dead_rail(node_id(1), dead(1, 1).rail).unwrap().1;
    assert_eq!(by, [node_id(2), node_id(3)]);
    // It is dead as long as anybody says so who is heard.
    rig.say(2, Said::Rails(vec![]));
    rig.manager.handle_silent(node_id(3));
    let back = Event::RailBack { node: node_id(1), rail: dead(1, 1).rail };
    assert!(rig.all().contains(&Effect::Event(back)));
    assert_eq!(rig.manager.dead_rails().collect::<Vec<_>>(), [dead(2, 1)]);
    rig.ask(1, Command::RemoveNode { node: name("desk") });
    rig.all();
    assert_eq!(rig.manager.dead_rails().count(), 0, "of nobody any more");
}

/// It would never hear of it: the others were told before it was there.
#[test]
fn who_connects_is_told_what_the_others_were() {
    let mut rig = rig_of_four();
    rig.manager.handle_silent(node_id(4));
    rig.say(2, Said::Rails(vec![dead(1, 1)]));
    assert_eq!(rails_told(&rig.all()), [(vec![node_id(1), node_id(3)], vec![dead(1, 1)])]);
    rig.hear(4, &[]);
    assert_eq!(rails_told(&rig.all()), [], "it waits as any other news does");
    rig.go(100);
    assert_eq!(rails_told(&rig.all()), [(vec![node_id(4)], vec![dead(1, 1)])]);
    assert_eq!(rails_told(&rig.all()), []);
    // What it has said itself it knows, and a rail that is back is none.
    rig.say(2, Said::Rails(vec![]));
    rig.manager.handle_silent(node_id(4));
    rig.hear(4, &[]);
    rig.go(200);
    assert_eq!(rails_told(&rig.all()), []);
}

#[test]
fn whose_rail_is_dead_follows_from_what_all_say() {
    let mut rig = rig_of_four();
    let held = |rig: &Rig| rig.manager.dead_rails().collect::<Vec<_>>();
    // One hears two others no more, and nobody else complains of them.
    rig.say(2, Said::Rails(vec![dead(1, 0), dead(3, 0)]));
    assert_eq!(held(&rig), [dead(2, 0)]);
    // One other does: so both may be right.
    rig.say(4, Said::Rails(vec![dead(1, 0)]));
    assert_eq!(held(&rig), [dead(1, 0), dead(3, 0)]);
    // Now two complain of the first one, so what that says itself counts no more.
    rig.say(1, Said::Rails(vec![dead(2, 0)]));
    assert_eq!(held(&rig), [dead(1, 0), dead(3, 0)]);
    // What a node says of itself is so, and why it knows better than others.
    let own = DeadRail { cause: RailCause::Carrier, ..dead(3, 0) };
    rig.say(3, Said::Rails(vec![own]));
    assert_eq!(held(&rig), [dead(1, 0), own]);
    let lie = DeadRail { cause: RailCause::Carrier, ..dead(4, 1) };
    rig.say(1, Said::Rails(vec![lie]));
    assert!(held(&rig).contains(&dead(4, 1)), "nobody else can know of a carrier");
    // Of what is no node's, and beyond what one may say, nothing counts.
    rig.say(4, Said::Rails(vec![]));
    rig.say(2, Said::Rails(vec![dead(9, 0); 3 * RAILS_SAID_MAX]));
    assert_eq!(held(&rig), [own, dead(4, 1)]);
}

/// What is noted: what, what came of it, how often.
fn notes(effects: &[Effect]) -> Vec<(String, String, u64)> {
    let entries = effects.iter().filter_map(|effect| match effect {
        Effect::Append { entries, .. } => Some(entries),
        _ => None,
    });
    let note = |entry: &Entry| match &entry.change {
        Change::Noted { what, result, count } => Some((what.clone(), result.clone(), *count)),
        _ => None,
    };
    entries.flatten().filter_map(note).collect()
}

#[test]
fn who_is_refused_in_a_loop_is_noted_and_then_counted() {
    let mut rig = Rig::settled();
    let who = |name_of: &str| Who::Api { token: name(name_of) };
    for round in 0..1000 {
        rig.manager.handle_note(rig.now, who("op"), "assign", "refused");
        rig.manager.handle_note(rig.now, who("op"), &format!("remove {round}"), "refused");
    }
    rig.manager.handle_note(rig.now, who("eye"), "assign", &"x".repeat(10_000));
    let said = notes(&rig.all());
    let what: Vec<&str> = said.iter().map(|(what, ..)| what.as_str()).collect();
    assert_eq!(what, ["assign", "remove 0", "remove 1", "remove 2", "assign"]);
    assert!(said.iter().all(|(_, result, count)| result.len() <= 400 && *count == 1), "{said:?}");
    assert_eq!(rig.manager.notes.timeout(), Some(at(60_000).clock));
    rig.go(59_999);
    assert_eq!(notes(&rig.all()), []);
    rig.go(60_000);
    let said: Vec<_> = notes(&rig.all()).into_iter().map(|(what, _, count)| (what, count)).collect();
    assert_eq!(said, [("assign".to_owned(), 999), ("other things".to_owned(), 997)]);
    assert_eq!(rig.manager.notes.timeout(), None);
    // Of many at once, too.
    for number in 0..100 {
        rig.manager.handle_note(rig.now, Who::Node { id: node_id(number) }, "connect", "refused");
    }
    assert_eq!(notes(&rig.all()).len(), 32);
    rig.go(120_000);
    let said: Vec<_> = notes(&rig.all()).into_iter().map(|(what, _, count)| (what, count)).collect();
    assert_eq!(said, [("things of others".to_owned(), 68)]);
}

/// A lender that lies, with ever greater generations, in turns of all its functions.
#[test]
fn a_lender_that_always_knows_better_pushes_nothing_out_of_the_audit() {
    let mut rig = Rig::settled();
    rig.manager.handle_note(rig.now, Who::Api { token: name("op") }, "assign", "refused");
    rig.all();
    let rows = |rig: &Rig| -> Vec<String> {
        let row = |record: &crate::state::Record| match &record.entry.change {
            Change::EpochBegun { .. } => "epoch".to_owned(),
            Change::Noted { what, result, count } => format!("{what}: {result}, {count}"),
            Change::Reported { news, .. } => {
                news.iter().find_map(|it| it.text(rig.manager.state(), node_id(1))).unwrap()
            }
            _ => "another".to_owned(),
        };
        let state = rig.manager.state();
        state.audit(0).filter(|record| record.entry.request.is_none()).map(row).collect()
    };
    let lies = 2 * crate::state::NOTED_MAX as u64;
    for lie in 1..=lies {
        rig.say(1, Said::Function(reported((lie % 2) as u32, lie, Holder::Nobody)));
        rig.all();
    }
    let index = rig.manager.state().index();
    assert!(index > lies, "each is in the log: {index}");
    let said = rows(&rig);
    assert!(
        said.len() < 16 && said.starts_with(&["epoch".to_owned(), "assign: refused, 1".to_owned()]),
        "{said:?}"
    );
    let better =
        |function: &str| said.iter().filter(|it| **it == format!("know better who has {function}")).count();
    assert_eq!((better("store/nvme0"), better("store/nvme1")), (1, 1), "{said:?}");
    rig.go(60_000);
    rig.all();
    let said = rows(&rig);
    for function in ["store/nvme0", "store/nvme1"] {
        let row = format!("know better who has {function}: done, {}", lies / 2 - 1);
        assert!(said.contains(&row), "{said:?}");
    }
    // What comes after that is shown at once.
    rig.say(1, Said::Function(reported(0, lies + 9, Holder::Nobody)));
    rig.all();
    assert_eq!(rows(&rig).iter().filter(|it| *it == "know better who has store/nvme0").count(), 2);
}

#[test]
fn what_nodes_cause_is_in_the_audit_and_pushes_out_no_request() {
    let mut rig = Rig::settled();
    rig.ask(1, assign("store/nvme0", 33, 0));
    rig.all();
    rig.say(1, Said::Function(reported(0, 9, Holder::Nobody)));
    rig.all();
    let requests = rig.manager.state().history().count();
    let words = |rig: &Rig| -> Vec<&'static str> {
        let word = |record: &crate::state::Record| match record.entry.change {
            Change::EpochBegun { .. } => "epoch",
            Change::Noted { .. } => "noted",
            Change::Reported { .. } => "reported",
            _ => "asked",
        };
        rig.manager.state().audit(0).map(word).filter(|word| *word != "asked").collect()
    };
    assert_eq!(words(&rig), ["epoch", "reported", "noted"]);
    let indices: Vec<u64> = rig.manager.state().audit(0).map(|record| record.index).collect();
    assert!(indices.is_sorted(), "{indices:?}");
    for number in 0..2 * crate::state::NOTED_MAX as u64 {
        rig.go(number * 60_000);
        rig.manager.handle_note(rig.now, Who::Node { id: node_id(1) }, "connect", "refused");
        rig.all();
    }
    let state = rig.manager.state();
    assert_eq!(state.history().count(), requests);
    assert_eq!(state.audit(0).count(), requests + crate::state::NOTED_MAX);
    assert_eq!(state.audit(state.index() - 1).count(), 1);
    // A snapshot has both.
    let bytes = crate::log::snapshot(state, &crate::log::Writer::new(crate::testing::FABRIC, 0, 0));
    let read = crate::log::read_snapshot(&bytes, crate::testing::FABRIC).unwrap();
    assert_eq!(read.state, *state);
}
