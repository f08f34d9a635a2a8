use base::ids::{DomainId, Group, LoanGeneration};

use super::{Outcome, check_open, function, node};
use crate::canary::{self, Rule};
use crate::entry::{Answer, Change};
use crate::model::{
    Assignment, Function, FunctionName, GENERATION_LAST, GENERATION_STRIDE, HOLD_MAX_S, Limits, LimitsId,
    Loan, Node, OnSilence, Place, SLOT_NUMBERS, SLOTS_PER_NODE_MAX, WallTime,
};
use crate::refusal::Refusal;
use crate::state::State;

pub(super) fn assign(
    state: &State,
    name: &FunctionName,
    domain: DomainId,
    slot: u16,
    group: Option<Group>,
    on_silence: OnSilence,
) -> Result<Outcome, Refusal> {
    let found = function(state, name)?;
    let borrower = state.node_of_domain(domain).ok_or(Refusal::NoDomain { domain })?;
    if slot >= SLOT_NUMBERS {
        return Err(Refusal::NoSlot { slot });
    }
    if !on_silence.is_valid() {
        return Err(Refusal::HoldTime { most: HOLD_MAX_S });
    }
    let place = Place { domain, slot };
    // Who does not say in which group means the present one of what is there already.
    let present = found.loan.assigned().filter(|present| present.place == place);
    let group = match group.or(present.map(|present| present.group)) {
        Some(group) => group,
        None if found.loan == Loan::Free => common_group(state, name, borrower)?,
        None => return Err(taken(state, name, found.loan)),
    };
    let to = Assignment { borrower: borrower.id, place, group, on_silence };
    match found.loan {
        Loan::Wanted { to: present, .. } | Loan::Applied { to: present, .. } if present == to => {
            return Ok((None, answer(found, found.generation)));
        }
        Loan::Wanted { to: present, since } | Loan::Applied { to: present, since }
            if present.place == to.place =>
        {
            return Err(Refusal::Otherwise { function: name.clone(), since });
        }
        Loan::Free => {}
        loan => return Err(taken(state, name, loan)),
    }
    if state.is_unwanted(found) {
        return Err(Refusal::BeingDeleted { function: name.clone() });
    }
    check_open(state)?;
    check_groups(state, name, borrower, group)?;
    check_slot(state, borrower, to.place)?;
    if !state.is_heard(found.key.node) && !canary::is_off(Rule::HearFirst) {
        return Err(Refusal::Unheard { node: name.node.clone() });
    }
    if found.generation.0 >= GENERATION_LAST + GENERATION_STRIDE {
        return Err(Refusal::Full { what: "generations of a function", most: usize::MAX / 2 });
    }
    let generation = next(found.generation);
    let change = Change::Assigned { key: found.key, generation, to };
    Ok((Some(change), answer(found, generation)))
}

pub(super) fn unassign(state: &State, name: &FunctionName, force: bool) -> Result<Outcome, Refusal> {
    let found = function(state, name)?;
    let generation = match (found.loan, force) {
        // It is so, or on the way.
        (Loan::Free | Loan::Forced { .. } | Loan::Ended { .. }, _) | (Loan::Leaving { .. }, false) => {
            return Ok((None, answer(found, found.generation)));
        }
        (Loan::Leaving { .. }, true) => found.generation,
        (Loan::Wanted { .. } | Loan::Applied { .. }, _) => next(found.generation),
    };
    check_open(state)?;
    let change = Change::Unassigned { key: found.key, generation, force };
    Ok((Some(change), answer(found, generation)))
}

/// What a function may do. It is no part of an assignment: whoever has the function keeps it.
pub(super) fn set_limits(state: &State, name: &FunctionName, limits: Limits) -> Result<Outcome, Refusal> {
    let found = function(state, name)?;
    if state.is_unwanted(found) {
        return Err(Refusal::BeingDeleted { function: name.clone() });
    }
    let answer = |id| Answer::Limits { key: found.key, id };
    if let Some(known) = found.limits.filter(|known| known.limits == limits) {
        return Ok((None, answer(known.id)));
    }
    check_open(state)?;
    let id = LimitsId { epoch: state.epoch(), index: state.index().saturating_add(1) };
    Ok((Some(Change::LimitsSet { key: found.key, limits }), answer(id)))
}

fn next(generation: LoanGeneration) -> LoanGeneration {
    LoanGeneration(generation.0.saturating_add(u64::from(!canary::is_off(Rule::RaiseGeneration))))
}

fn answer(function: &Function, generation: LoanGeneration) -> Answer {
    Answer::Function { key: function.key, generation }
}

pub(super) fn taken(state: &State, name: &FunctionName, loan: Loan) -> Refusal {
    let (function, since) = (name.clone(), loan.since().unwrap_or(WallTime(0)));
    match loan.occupied() {
        None => Refusal::Ending { function, since },
        Some(of) => Refusal::Taken {
            function,
            borrower: state.joined(of.borrower).map(|node| node.name.clone()),
            place: of.place,
            since,
            is_leaving: loan.assigned().is_none(),
        },
    }
}

/// The least group that both ends may enter.
fn common_group(state: &State, name: &FunctionName, borrower: &Node) -> Result<Group, Refusal> {
    let lender = node(state, &name.node)?;
    let common = lender.groups.iter().find(|group| borrower.groups.contains(*group));
    common.ok_or_else(|| Refusal::NoCommonGroup {
        lender: lender.name.clone(),
        borrower: borrower.name.clone(),
    })
}

fn check_groups(state: &State, name: &FunctionName, borrower: &Node, group: Group) -> Result<(), Refusal> {
    let lender = node(state, &name.node)?;
    match [lender, borrower].into_iter().find(|node| !node.groups.contains(group)) {
        Some(node) => Err(Refusal::NotInGroup { node: node.name.clone(), group }),
        None => Ok(()),
    }
}

fn check_slot(state: &State, borrower: &Node, place: Place) -> Result<(), Refusal> {
    if let Some(other) = state.in_slot(place)
        && !canary::is_off(Rule::OneFunctionASlot)
    {
        let since = other.loan.since().unwrap_or(WallTime(0));
        // Functions are of nodes that there are.
        let function = state.name_of(other.key).ok_or(Refusal::Busy)?;
        return Err(Refusal::SlotTaken { place, function, since });
    }
    if state.in_block(borrower.block).count() >= SLOTS_PER_NODE_MAX {
        return Err(Refusal::Full { what: "functions in slots of a node", most: SLOTS_PER_NODE_MAX });
    }
    Ok(())
}
