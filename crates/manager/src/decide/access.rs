use super::Outcome;
use crate::entry::{Answer, Change};
use crate::model::{
    API_TOKENS_MAX, ApiToken, BLOCK_MAX, Groups, JOIN_TOKENS_MAX, JoinToken, Name, Role, TokenHash, WallTime,
};
use crate::refusal::Refusal;
use crate::state::State;

pub(super) fn make_join_token(
    state: &State,
    now: WallTime,
    hash: TokenHash,
    expires: WallTime,
    groups: &Groups,
    domains: u32,
) -> Result<Outcome, Refusal> {
    if !domains.is_power_of_two() || domains > BLOCK_MAX {
        return Err(Refusal::Domains { most: BLOCK_MAX });
    }
    if expires <= now {
        return Err(Refusal::Expired { at: expires, now });
    }
    if state.join_token(hash).is_some() {
        return Err(Refusal::TokenThere { hash });
    }
    if state.join_tokens().filter(|token| token.expires > now).count() >= JOIN_TOKENS_MAX {
        return Err(Refusal::Full { what: "join tokens", most: JOIN_TOKENS_MAX });
    }
    let token = JoinToken { hash, expires, groups: groups.clone(), domains, used: None };
    Ok((Some(Change::JoinTokenMade { token }), Answer::Done))
}

pub(super) fn remove_join_token(state: &State, hash: TokenHash) -> Result<Outcome, Refusal> {
    let change = state.join_token(hash).map(|_| Change::JoinTokenRemoved { hash });
    Ok((change, Answer::Done))
}

pub(super) fn set_api_token(
    state: &State,
    name: &Name,
    token: ApiToken,
    replace: bool,
) -> Result<Outcome, Refusal> {
    let (ApiToken { hash, role }, present) = (token, state.api_token(name));
    if present == Some(&token) {
        return Ok((None, Answer::Done));
    }
    if present.is_some() && !replace {
        return Err(Refusal::TokenNamed { name: name.clone() });
    }
    // Two names of one token: nobody could say who has asked.
    if state.api_tokens().any(|(other, token)| token.hash == hash && other != name) {
        return Err(Refusal::TokenThere { hash });
    }
    if present.is_none() && state.api_tokens().count() >= API_TOKENS_MAX {
        return Err(Refusal::Full { what: "tokens", most: API_TOKENS_MAX });
    }
    if role != Role::Administrator && is_last(state, name) {
        return Err(Refusal::LastAdministrator);
    }
    Ok((Some(Change::ApiTokenSet { name: name.clone(), token }), Answer::Done))
}

pub(super) fn remove_api_token(state: &State, name: &Name) -> Result<Outcome, Refusal> {
    if state.api_token(name).is_none() {
        return Ok((None, Answer::Done));
    }
    if is_last(state, name) {
        return Err(Refusal::LastAdministrator);
    }
    Ok((Some(Change::ApiTokenRemoved { name: name.clone() }), Answer::Done))
}

/// Whether it is the only administrator's.
fn is_last(state: &State, name: &Name) -> bool {
    let mut administrators = state.api_tokens().filter(|(_, token)| token.role == Role::Administrator);
    administrators.next().is_some_and(|(first, _)| first == name) && administrators.next().is_none()
}
