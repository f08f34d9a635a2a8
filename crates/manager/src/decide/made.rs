use super::{Outcome, check_open, node};
use crate::canary::{self, Rule};
use crate::entry::{Answer, Change};
use crate::model::{
    FUNCTIONS_MAX, FUNCTIONS_PER_NODE_MAX, FunctionName, Loan, MADE_PER_NODE_MAX, MadeId, Node, Shape,
    nearest,
};
use crate::refusal::Refusal;
use crate::state::State;

/// Asked for as it is already, that is so.
pub(super) fn make(state: &State, name: &FunctionName, shape: &Shape) -> Result<Outcome, Refusal> {
    let lender = node(state, &name.node)?;
    let making = state.making(lender.id);
    let function = || name.clone();
    match making.and_then(|making| making.functions.get(&name.function)) {
        Some(known) if known.shape == *shape => return Ok((None, answer(lender, name, known.id, true))),
        Some(_) => return Err(Refusal::FunctionThere { function: function(), is_made: true }),
        None => {}
    }
    if making.is_some_and(|making| making.leaving.contains_key(&name.function)) {
        return Err(Refusal::BeingDeleted { function: function() });
    }
    match state.function_called(name) {
        Some(known) if known.resource.made.is_some() => {
            return Err(Refusal::BeingDeleted { function: function() });
        }
        Some(_) => return Err(Refusal::FunctionThere { function: function(), is_made: false }),
        None => {}
    }
    check_open(state)?;
    if !state.is_heard(lender.id) && !canary::is_off(Rule::HearFirst) {
        return Err(Refusal::Unheard { node: name.node.clone() });
    }
    if let Some(group) = shape.group.filter(|group| !lender.groups.contains(*group)) {
        return Err(Refusal::NotInGroup { node: name.node.clone(), group });
    }
    // What is deleted is counted until its lender has done that, else a silent one would have any number of them.
    let listed = making.map_or(0, |making| making.functions.len() + making.leaving.len());
    let unseen = making.map_or(0, |making| making.functions.values().filter(|it| !it.is_made).count());
    let lent = state.functions_of(lender.id).count() + unseen;
    if listed >= MADE_PER_NODE_MAX || lent >= FUNCTIONS_PER_NODE_MAX {
        return Err(Refusal::Full { what: "functions of a node", most: FUNCTIONS_PER_NODE_MAX });
    }
    if state.functions().count() + unseen >= FUNCTIONS_MAX {
        return Err(Refusal::Full { what: "functions", most: FUNCTIONS_MAX });
    }
    let change = Change::FunctionMade { node: lender.id, name: name.function.clone(), shape: shape.clone() };
    Ok((Some(change), answer(lender, name, next_id(state), true)))
}

/// What was made, and nobody has, is there no more: neither is what it had of its device.
pub(super) fn delete(state: &State, name: &FunctionName) -> Result<Outcome, Refusal> {
    let lender = node(state, &name.node)?;
    let making = state.making(lender.id);
    let present = state.function_called(name);
    if making.and_then(|making| making.functions.get(&name.function)).is_none() {
        let leaving = making.and_then(|making| making.leaving.get(&name.function));
        return match (leaving, present) {
            (Some(id), _) => Ok((None, answer(lender, name, *id, false))),
            (None, Some(present)) if present.resource.made.is_some() => {
                Err(Refusal::BeingDeleted { function: name.clone() })
            }
            (None, Some(_)) => Err(Refusal::NotMade { function: name.clone() }),
            (None, None) => {
                let known = state.functions_of(lender.id).map(|function| &function.name);
                let made = making.into_iter().flat_map(|making| making.functions.keys());
                let nearest = nearest(&name.function, known.chain(made));
                Err(Refusal::NoFunction { name: name.clone(), nearest })
            }
        };
    }
    if let Some(function) = present.filter(|function| function.loan != Loan::Free)
        && !canary::is_off(Rule::DeleteFree)
    {
        return Err(super::assign::taken(state, name, function.loan));
    }
    check_open(state)?;
    // It may have made others since, and somebody may have this one: what is told it drops all that is not listed.
    if !state.is_heard(lender.id) && !canary::is_off(Rule::HearFirst) {
        return Err(Refusal::Unheard { node: name.node.clone() });
    }
    let change = Change::FunctionDeleted { node: lender.id, name: name.function.clone() };
    Ok((Some(change), answer(lender, name, next_id(state), false)))
}

fn next_id(state: &State) -> MadeId {
    MadeId { epoch: state.epoch(), index: state.index().saturating_add(1) }
}

fn answer(lender: &Node, name: &FunctionName, id: MadeId, is_wanted: bool) -> Answer {
    Answer::Made { node: lender.id, name: name.function.clone(), id, is_wanted }
}
