//! What is done of what is asked for: a function of the state, the time, and who asks.
//!
//! It changes nothing. What it decides is one entry, which fits to the state it was decided by, or none where what is
//! asked for is so already.

mod access;
mod assign;
mod made;
#[cfg(test)]
mod made_tests;
mod nodes;
#[cfg(test)]
mod tests;

use crate::canary::{self, Rule};
use crate::command::{Asked, Asker, Command};
use crate::entry::{Answer, Change, Entry, Request, Who};
use crate::model::{ApiToken, FunctionName, Name, Node, Role, TokenHash, WallTime, nearest};
use crate::refusal::Refusal;
use crate::state::State;

/// What is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decision {
    /// What is to be appended. `None`: it is so already, or was done before.
    pub entry: Option<Entry>,
    /// What the client hears once it is durable.
    pub answer: Answer,
    /// The entry that did it, if it was done before.
    pub done_at: Option<u64>,
}

/// What comes of a command before it is an entry: a change, or nothing to change, and the answer.
type Outcome = (Option<Change>, Answer);

/// Decides.
///
/// Tokens are good by the clock itself. Whatever else has a time has that of the log, which never goes back: after a
/// clock was fast for a while, entries have its last time for a while, and a token is good for as long as was said.
///
/// # Errors
/// It is not done; see [`Refusal`].
pub fn decide(state: &State, now: WallTime, asked: &Asked) -> Result<Decision, Refusal> {
    let fingerprint = asked.fingerprint();
    let before = state.done(asked.request).and_then(|record| Some((record, record.entry.request.as_ref()?)));
    if let Some((record, request)) = before
        && !canary::is_off(Rule::RememberRequests)
    {
        // Before roles are looked at: who has removed its own token, and asks again, hears that it is done.
        if request.fingerprint != fingerprint {
            return Err(Refusal::OtherRequest);
        }
        return Ok(Decision { entry: None, answer: request.answer.clone(), done_at: Some(record.index) });
    }
    let who = check_role(state, asked)?;
    check_version(state, asked)?;
    let (change, answer) = outcome(state, now, asked)?;
    let request = Request { id: asked.request, fingerprint, answer: answer.clone() };
    let entry = change.map(|change| Entry { at: state.clamp(now), who, request: Some(request), change });
    Ok(Decision { entry, answer, done_at: None })
}

fn check_role(state: &State, asked: &Asked) -> Result<Who, Refusal> {
    match (&asked.who, asked.command.role()) {
        (Asker::Joiner(token), None) => Ok(Who::Joiner { token: *token }),
        (Asker::Joiner(_), Some(needed)) => Err(Refusal::NotAllowed { needed, has: None }),
        (Asker::Api(name), needed) => {
            let has = state.api_token(name).ok_or_else(|| Refusal::NoToken { name: name.clone() })?.role;
            match needed {
                Some(needed) if has >= needed => Ok(Who::Api { token: name.clone() }),
                Some(needed) => Err(Refusal::NotAllowed { needed, has: Some(has) }),
                None => Err(Refusal::NoJoinToken),
            }
        }
    }
}

fn check_version(state: &State, asked: &Asked) -> Result<(), Refusal> {
    let Some(named) = asked.if_version else { return Ok(()) };
    let present = match &asked.command {
        Command::Assign { function, .. }
        | Command::Unassign { function, .. }
        | Command::SetLimits { function, .. }
        | Command::DeleteFunction { function } => state.function_called(function).map(|it| it.version),
        Command::RemoveNode { node } | Command::SetGroups { node, .. } => {
            state.node_called(node).map(|it| it.version)
        }
        // Of the others there are no versions.
        _ => return Ok(()),
    };
    match present.unwrap_or(0) {
        present if present == named => Ok(()),
        present => Err(Refusal::Stale { named, present }),
    }
}

fn outcome(state: &State, now: WallTime, asked: &Asked) -> Result<Outcome, Refusal> {
    match &asked.command {
        Command::Join { id, name, key } => {
            let Asker::Joiner(token) = asked.who else { return Err(Refusal::NoJoinToken) };
            nodes::join(state, now, *id, name, *key, token)
        }
        Command::RemoveNode { node } => nodes::remove(state, state.clamp(now), node),
        Command::SetGroups { node, groups } => nodes::set_groups(state, node, groups),
        Command::MakeJoinToken { hash, expires, groups, domains } => {
            access::make_join_token(state, now, *hash, *expires, groups, *domains)
        }
        Command::RemoveJoinToken { hash } => access::remove_join_token(state, *hash),
        Command::SetApiToken { name, hash, role, replace } => {
            access::set_api_token(state, name, ApiToken { hash: *hash, role: *role }, *replace)
        }
        Command::RemoveApiToken { name } => access::remove_api_token(state, name),
        Command::Assign { function, domain, slot, group, on_silence } => {
            assign::assign(state, function, *domain, *slot, *group, *on_silence)
        }
        Command::Unassign { function, force } => assign::unassign(state, function, *force),
        Command::SetLimits { function, limits } => assign::set_limits(state, function, *limits),
        Command::MakeFunction { function, shape } => made::make(state, function, shape),
        Command::DeleteFunction { function } => made::delete(state, function),
        Command::EndRestore { anyway } => nodes::end_restore(state, *anyway),
    }
}

/// The first entry of a fabric: its first administrator.
pub fn found(now: WallTime, administrator: Name, hash: TokenHash) -> Entry {
    let token = ApiToken { hash, role: Role::Administrator };
    let change = Change::ApiTokenSet { name: administrator, token };
    Entry { at: now, who: Who::Manager, request: None, change }
}

fn node<'a>(state: &'a State, name: &Name) -> Result<&'a Node, Refusal> {
    let unknown = || Refusal::NoNode { name: name.clone(), nearest: nearest(name, state.node_names()) };
    state.node_called(name).ok_or_else(unknown)
}

fn function<'a>(state: &'a State, name: &FunctionName) -> Result<&'a crate::model::Function, Refusal> {
    let lender = node(state, &name.node)?;
    let unknown = || {
        let names = state.functions_of(lender.id).map(|function| &function.name);
        Refusal::NoFunction { name: name.clone(), nearest: nearest(&name.function, names) }
    };
    state.function_called(name).ok_or_else(unknown)
}

/// Between a restore and its end nothing is decided that a node might contradict that was not heard yet.
fn check_open(state: &State) -> Result<(), Refusal> {
    match state.restore().filter(|restore| restore.is_closed && !canary::is_off(Rule::HearFirst)) {
        None => Ok(()),
        Some(restore) => Err(restoring(state, restore)),
    }
}

fn restoring(state: &State, restore: &crate::state::Restore) -> Refusal {
    let first = restore.unheard.first().and_then(|id| state.node(*id)).map(|node| node.name.clone());
    Refusal::Restoring { unheard: restore.unheard.len(), first }
}
