use base::ids::{DomainId, NodeId};

use super::{Outcome, check_open, node, restoring};
use crate::canary::{self, Rule};
use crate::entry::{Answer, Change};
use crate::model::{
    Block, Groups, JoinToken, Membership, NODES_MAX, Name, PublicKey, QUARANTINE_S, QUARANTINES_MAX,
    TokenHash, WallTime,
};
use crate::refusal::Refusal;
use crate::state::State;

pub(super) fn join(
    state: &State,
    now: WallTime,
    id: NodeId,
    name: &Name,
    key: PublicKey,
    hash: TokenHash,
) -> Result<Outcome, Refusal> {
    let token = usable(state, now, hash)?;
    let now = state.clamp(now);
    check_open(state)?;
    if let Some(there) = state.node(id) {
        return Err(match there.membership {
            Membership::Joined { since } => Refusal::NodeThere { name: there.name.clone(), since },
            Membership::Removed { since } => Refusal::Revoked { since },
        });
    }
    if let Some(other) = state.node_called(name) {
        return Err(Refusal::NameTaken { name: name.clone(), by: other.id });
    }
    if state.nodes().count() >= NODES_MAX && state.node_to_forget(now).is_none() {
        return Err(Refusal::Full { what: "nodes", most: NODES_MAX });
    }
    let full = Refusal::Full { what: "domains", most: 1 << DomainId::BITS };
    let block = free_block(state, now, token.domains).ok_or(full)?;
    let answer = Answer::Joined { node: id, block, groups: token.groups.clone() };
    Ok((Some(Change::NodeJoined { id, name: name.clone(), key, block, token: hash }), answer))
}

fn usable(state: &State, now: WallTime, hash: TokenHash) -> Result<&JoinToken, Refusal> {
    let token = state.join_token(hash).ok_or(Refusal::NoJoinToken)?;
    if let Some(used) = token.used
        && !canary::is_off(Rule::UseOnce)
    {
        return Err(Refusal::Used { by: used.by, at: used.at });
    }
    match token.expires {
        at if at <= now => Err(Refusal::Expired { at, now }),
        _ => Ok(token),
    }
}

/// The first block of so many domains that is free.
fn free_block(state: &State, now: WallTime, len: u32) -> Option<Block> {
    // Domain 0 is nobody's.
    let bases = (len..1 << DomainId::BITS).step_by(usize::try_from(len).ok()?);
    bases.filter_map(|base| Block::new(base, len)).find(|block| state.is_free(*block, now))
}

pub(super) fn remove(state: &State, now: WallTime, name: &Name) -> Result<Outcome, Refusal> {
    let id = node(state, name)?.id;
    check_open(state)?;
    if state.quarantine().iter().filter(|it| it.until > now).count() >= QUARANTINES_MAX {
        return Err(Refusal::Full { what: "nodes that were removed of late", most: QUARANTINES_MAX });
    }
    Ok((Some(Change::NodeRemoved { id, until: now.plus_s(QUARANTINE_S) }), Answer::Done))
}

pub(super) fn set_groups(state: &State, name: &Name, groups: &Groups) -> Result<Outcome, Refusal> {
    let node = node(state, name)?;
    if node.groups == *groups {
        return Ok((None, Answer::Done));
    }
    check_open(state)?;
    Ok((Some(Change::GroupsSet { id: node.id, groups: groups.clone() }), Answer::Done))
}

pub(super) fn end_restore(state: &State, anyway: bool) -> Result<Outcome, Refusal> {
    match state.restore() {
        None => Err(Refusal::NoRestore),
        Some(restore) if !restore.is_closed => Ok((None, Answer::Done)),
        Some(restore) if !restore.unheard.is_empty() && !anyway => Err(restoring(state, restore)),
        Some(_) => Ok((Some(Change::RestoreEnded), Answer::Done)),
    }
}
