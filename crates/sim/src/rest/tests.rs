//! One guest that rests, another node that wants its drive, and nothing else that goes wrong.

use base::Rule;
use base::ledger::Arena;
use link::{Protection, RailMode};

use super::*;
use crate::Options;
use crate::checkers::names;
use crate::contest::Contest;
use crate::death::Switch;
use crate::disks::Disks;
use crate::faults::Faults;
use crate::guest::Guest;
use crate::identity::borrower_of;
use crate::loans::{DiskMode, Loan};
use crate::marks::Mark;
use crate::stage::{BORROWER, NODES, RIVAL};
use crate::terms::Terms;
use crate::world::World;

/// A world in which nobody repeats frames.
const SEED: u64 = 8;
/// After every rest here.
const END: u64 = 2 * HOLD.as_nanos() as u64 + 60 * SECOND;

/// What has become of a world.
struct Outcome {
    /// Who has had the drive, one after the other.
    holders: Vec<usize>,
    failure: Option<(&'static str, String)>,
    /// Whether it was taken from a guest that lives.
    is_taken: bool,
    /// Whether guests have had all their answers.
    is_served: bool,
}

fn setting_of<'w>(rules: RuleSet, rest: Rest) -> Setting<'w> {
    let (rails, rail_mode) = ([0b11; 2], [RailMode::Balance; 2]);
    let (protection, guests) = ([Protection::Aegis; 2], [false, true, true]);
    Setting {
        terms: Terms { rules, frame_bytes: 8952, rails, protection, rail_mode, common: None, guests },
        loans: vec![Loan::with(0, (640, 512, true), DiskMode::Ring, false)],
        disks: Disks { shared: None, media: None, replaced: None },
        volatile: None,
        contest: Some(Contest::without_moves()),
        rest: Some(rest),
        identity: None,
        neighbours: None,
    }
}

/// Runs the world of a rest. The lender is switched off and on at `off`, if at all.
fn run(rules: RuleSet, rest: Rest, off: Option<u64>) -> Outcome {
    let (arena, options) = (Arena::default(), Options { rules, ..Options::default() });
    let switches: [Switch<'_>; NODES] = core::array::from_fn(|_| Switch::default());
    let (setting, random) = (setting_of(rules, rest), Random::new(SEED));
    let mut world = World::of(setting, (SEED, &options), random, (&arena, switches.each_ref()));
    assert!(!world.traffic.has_spoofer());
    world.faults = Faults::none(END);
    off.into_iter().for_each(|off| world.stage.clock.at(off, Event::Off));
    world.live();
    let tenancies = &world.stage.loans[0].tenure.tenancies;
    let mut holders: Vec<usize> = tenancies.iter().filter_map(|it| borrower_of(it, NODES)).collect();
    holders.dedup();
    let is_served = world.guests().all(Guest::is_done);
    let report = &mut world.stage.report;
    let (failure, is_taken) = (report.take_failure(), report.marks.has(Mark::DriveTaken));
    Outcome { holders, failure, is_taken, is_served }
}

fn rest(is_short: bool, renews: bool) -> Rest {
    let (random, alarm) = (Random::new(SEED), Alarm::default());
    Rest { random, state: State::Planned, alarm, renews, is_short, waits: true }
}

#[test]
fn a_guest_that_rested_is_told_that_another_node_has_its_drive() {
    // The lender of the third is switched off in the middle, and waits anew for who has its function.
    let off = HOLD.as_nanos() as u64 / 2;
    for (is_short, off) in [(false, None), (true, None), (false, Some(off))] {
        let outcome = run(RuleSet::ALL, rest(is_short, off.is_some()), off);
        assert_eq!(outcome.failure, None, "{is_short} {off:?}");
        let Some(&first) = outcome.holders.first() else { panic!("nobody has had it") };
        assert_eq!(outcome.holders, [first, BORROWER + RIVAL - first, first], "{is_short} {off:?}");
        assert!(outcome.is_taken && outcome.is_served, "{is_short} {off:?}");
    }
}

#[test]
fn what_is_done_for_it_as_if_nothing_had_happened_is_noticed() {
    for (rule, checker) in
        [(Rule::TakeFromGuest, names::DURABILITY), (Rule::HoldForSilent, names::SINGLE_OWNER)]
    {
        let outcome = run(RuleSet::ALL.without(rule), rest(false, false), None);
        assert_eq!(outcome.failure.map(|(checker, _)| checker), Some(checker), "{rule:?}");
    }
}
