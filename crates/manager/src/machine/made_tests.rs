use base::ids::NodeId;

use super::*;
use crate::command::Command;
use crate::model::{Limits, MADE_PER_NODE_MAX, Made, MadeId, MadeList, Resource, Unmade};
use crate::report::{Holder, MadeSaid, Report, Reported, Said};
use crate::testing::{
    T0, assign, by, delete, fabric, function_name, identity, make, name, node_id, reported, reported_made,
    unassign,
};

/// A manager that has started, and one lender, which is heard.
struct Rig {
    manager: Manager,
    now: Now,
}

const STORE: u64 = 1;

fn store() -> NodeId {
    node_id(STORE)
}

impl Rig {
    fn new() -> Self {
        let now = Now { clock: Instant::ZERO, wall: T0 };
        let mut rig = Self { manager: Manager::start(now, fabric(), Start::Plain), now };
        rig.all();
        rig.manager.handle_reachable(store());
        rig.say(&[], None);
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

    fn ask(&mut self, ticket: u64, command: Command) {
        self.manager.handle_command(self.now, Ticket(ticket), &by("root", 1000 + ticket, command));
    }

    /// The store lends this beside its own.
    fn say(&mut self, made: &[Reported], said: Option<MadeSaid>) {
        let own = [reported(0, 0, Holder::Nobody), reported(1, 0, Holder::Nobody)];
        let functions = [&own[..], made].concat();
        let identity = identity(self.manager.state(), STORE);
        let said = Said::Inventory { identity, functions, presets: None, made: said, rails: vec![] };
        let report = Report { epoch: self.manager.state().epoch(), said };
        self.manager.handle_report(self.now, store(), &report);
    }

    fn go(&mut self, ms: u64) {
        self.now.clock = Instant::ZERO + Duration::from_millis(ms);
        self.manager.handle_timeout(self.now);
    }
}

fn lists(effects: &[Effect]) -> Vec<MadeList> {
    let told = |effect: &Effect| match effect {
        Effect::TellMaker { list, .. } => Some(list.clone()),
        _ => None,
    };
    effects.iter().filter_map(told).collect()
}

fn answers(effects: &[Effect]) -> Vec<(u64, Result<Progress, Refusal>)> {
    let answer = |effect: &Effect| match effect {
        Effect::Answer { ticket, reply } => Some((ticket.0, reply.clone().map(|reply| reply.progress))),
        _ => None,
    };
    effects.iter().filter_map(answer).collect()
}

fn done(list: &MadeList, refused: Vec<Unmade>) -> Option<MadeSaid> {
    Some(MadeSaid { list: list.clone(), is_done: true, refused })
}

#[test]
fn a_list_is_durable_then_told_until_it_is_made_and_then_answered() {
    let mut rig = Rig::new();
    rig.ask(1, make("store/fast", 4));
    let Some(Effect::Append { first, .. }) = rig.manager.poll_effect(rig.now) else {
        panic!("it is an entry")
    };
    assert_eq!(rig.manager.poll_effect(rig.now), None, "nobody hears of what is not durable");
    rig.manager.handle_durable(first);
    let told = lists(&rig.all());
    assert_eq!(told[0].functions[0].name, name("fast"));
    rig.go(500);
    assert_eq!(lists(&rig.all()), told, "it may be lost");
    let under_way = MadeSaid { list: told[0].clone(), is_done: false, refused: vec![] };
    rig.say(&[], Some(under_way));
    assert_eq!(answers(&rig.all()), []);
    let fast = reported_made(7, "fast", told[0].id);
    rig.say(core::slice::from_ref(&fast), done(&told[0], vec![]));
    assert_eq!(answers(&rig.all()), [(1, Ok(Progress::Done))]);
    rig.go(60_000);
    assert_eq!(lists(&rig.all()), [], "it has it");
    rig.ask(2, delete("store/fast"));
    let told = lists(&rig.all());
    assert!(told[0].functions.is_empty());
    // It has an older list still, also when it is asked again.
    rig.say(core::slice::from_ref(&fast), None);
    assert_eq!(answers(&rig.all()), []);
    rig.say(&[], done(&told[0], vec![]));
    assert_eq!(answers(&rig.all()), [(2, Ok(Progress::Done))]);
    // A folder that was copied earlier is put back.
    rig.go(120_000);
    rig.say(&[fast], None);
    assert_eq!(lists(&rig.all()), told);
}

#[test]
fn who_has_asked_for_what_cannot_be_made_hears_why_and_a_silent_lender_leaves_it_pending() {
    let mut rig = Rig::new();
    rig.ask(1, make("store/huge", 4000));
    let told = lists(&rig.all());
    let why = "the device data lacks room";
    rig.say(&[], done(&told[0], vec![Unmade { name: name("huge"), why: why.to_owned() }]));
    let effects = rig.all();
    let refused = Refusal::Unmakable { name: name("huge"), why: why.to_owned() };
    assert_eq!(answers(&effects), [(1, Err(refused.clone()))]);
    assert!(lists(&effects)[0].functions.is_empty(), "it is not wanted any more");
    // The same request hears the same, also when it comes again.
    rig.manager.handle_command(rig.now, Ticket(2), &by("root", 1001, make("store/huge", 4000)));
    assert_eq!(answers(&rig.all()), [(2, Err(refused))]);
    rig.manager.handle_silent(store());
    rig.ask(3, make("store/fast", 4));
    let pending = Progress::Pending { lender: store(), is_silent: true };
    assert_eq!(answers(&rig.all()), [(3, Ok(pending))]);
    rig.ask(4, delete("store/fast"));
    assert_eq!(answers(&rig.all()), [(4, Ok(pending))]);
}

/// One of terabytes on a disk that takes its time is cleared while others come, are refused, and go.
#[test]
fn a_function_whose_place_is_being_cleared_holds_up_no_other() {
    let mut rig = Rig::new();
    rig.ask(1, make("store/old", 4));
    let told = lists(&rig.all());
    let old = reported_made(7, "old", told[0].id);
    rig.say(core::slice::from_ref(&old), done(&told[0], vec![]));
    assert_eq!(answers(&rig.all()), [(1, Ok(Progress::Done))]);
    for (ticket, command) in (2..).zip([
        make("store/slow", 4),
        make("store/bad", 4),
        make("store/quick", 4),
        make("store/huge", 4000),
    ]) {
        rig.ask(ticket, command);
    }
    rig.ask(6, delete("store/old"));
    let list = lists(&rig.all()).pop().unwrap();
    let id_of = |called: &str| list.functions.iter().find(|it| it.name == name(called)).unwrap().id;
    // What is lent is made, also before the lender is as far as that with all others.
    let quick = reported_made(8, "quick", id_of("quick"));
    let under_way = MadeSaid { list: list.clone(), is_done: false, refused: vec![] };
    let nothing_yet = Resource { bytes: 0, ..quick.resource };
    rig.say(&[old.clone(), Reported { resource: nothing_yet, ..quick.clone() }], Some(under_way.clone()));
    assert_eq!(answers(&rig.all()), [], "its card has yet to make it");
    rig.say(&[old, quick.clone()], Some(under_way));
    assert_eq!(answers(&rig.all()), [(4, Ok(Progress::Done))]);
    let unmade = |called: &str| Unmade { name: name(called), why: "no".to_owned() };
    rig.say(core::slice::from_ref(&quick), done(&list, vec![unmade("huge")]));
    let refused = |called: &str| Err(Refusal::Unmakable { name: name(called), why: "no".to_owned() });
    let effects = rig.all();
    let mut said = answers(&effects);
    said.sort_by_key(|(ticket, _)| *ticket);
    assert_eq!(said, [(5, refused("huge")), (6, Ok(Progress::Done))]);
    let list = lists(&effects).pop().unwrap();
    rig.say(core::slice::from_ref(&quick), done(&list, vec![]));
    assert_eq!(
        (answers(&rig.all()), rig.manager.state().making(store()).unwrap().is_applied()),
        (vec![], true)
    );
    // It was cleared in vain: whatever is said to be done, it is not there.
    rig.say(core::slice::from_ref(&quick), done(&list, vec![unmade("bad")]));
    let effects = rig.all();
    assert_eq!(answers(&effects), [(3, refused("bad"))]);
    let list = lists(&effects).pop().unwrap();
    rig.say(&[quick, reported_made(9, "slow", id_of("slow"))], done(&list, vec![]));
    assert_eq!(answers(&rig.all()), [(2, Ok(Progress::Done))]);
}

/// Its image was away for a moment, so it is known anew: nothing is decided of it, and nothing is done.
#[test]
fn what_was_decided_of_a_function_that_was_away_is_not_done() {
    let mut rig = Rig::new();
    let iops = core::num::NonZeroU64::new(7);
    let limits = Limits { iops, bytes_per_s: None };
    rig.ask(1, Command::SetLimits { function: function_name("store/nvme0"), limits });
    rig.ask(2, assign("store/nvme1", 33, 0));
    assert_eq!(answers(&rig.all()), []);
    rig.ask(3, unassign("store/nvme1", true));
    assert_eq!(answers(&rig.all()), [(2, Ok(Progress::Overtaken))]);
    let identity = identity(rig.manager.state(), STORE);
    let said = Said::Inventory { identity, functions: vec![], presets: None, made: None, rails: vec![] };
    let report = Report { epoch: rig.manager.state().epoch(), said };
    rig.manager.handle_report(rig.now, store(), &report);
    rig.say(&[], None);
    let overtaken = |ticket| (ticket, Ok(Progress::Overtaken));
    assert_eq!(answers(&rig.all()), [overtaken(1), overtaken(3)]);
}

/// By the backup the function is there, and its lender has deleted it since.
#[test]
fn what_was_made_by_a_backup_is_there_when_its_lender_has_said_so() {
    let mut rig = Rig::new();
    rig.ask(1, make("store/fast", 4));
    let told = lists(&rig.all());
    let fast = reported_made(7, "fast", told[0].id);
    rig.say(core::slice::from_ref(&fast), done(&told[0], vec![]));
    assert_eq!(answers(&rig.all()), [(1, Ok(Progress::Done))]);
    rig.manager = Manager::start(rig.now, rig.manager.state().clone(), Start::Restored { any_time: false });
    rig.manager.handle_reachable(store());
    rig.all();
    rig.ask(2, make("store/fast", 4));
    assert_eq!(answers(&rig.all()), []);
    rig.say(&[fast], done(&told[0], vec![]));
    assert_eq!(answers(&rig.all()), [(2, Ok(Progress::Done))]);
}

/// A node that lies about what it was told to make ends nobody.
#[test]
fn a_list_that_is_too_long_is_no_list() {
    let mut rig = Rig::new();
    let Command::MakeFunction { shape, .. } = make("store/fast", 4) else { unreachable!() };
    let id = MadeId { epoch: 0, index: 0 };
    let made = |number| Made { name: name(&format!("f{number}")), id, shape: shape.clone() };
    let functions = (0..=MADE_PER_NODE_MAX).map(made).collect();
    rig.say(&[], done(&MadeList { id, functions }, vec![]));
    let alarmed = |effect: &Effect| format!("{effect:?}").contains("TooMany");
    assert!(rig.all().iter().any(alarmed));
    assert_eq!(rig.manager.state().making(store()), None);
}
