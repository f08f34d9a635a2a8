//! Changes of nodes and functions.

use std::num::NonZeroU64;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base::ids::Group;
use manager::Progress;
use manager::command::Command;
use manager::entry::Answer;
use manager::model::{
    FunctionName, GROUPS_PER_NODE_MAX, Groups, Name, NoSilence, OnSilence, Role, TokenHash,
};

use super::asked::{Bearer, Condition, Document, Named, Naming, Pairs, Terms};
use crate::server::App;
use crate::server::core::{By, Done, View, Wish};
use crate::server::problem::Failure;
use crate::server::slots;
use crate::shapes::{Assign, Changed, Limits, Problem, SetGroups};
use crate::texts::NameText;

pub(super) type Answered = Result<(StatusCode, Json<Changed>), Failure>;

/// What became of a change, as a document.
pub(super) fn changed(done: &Done) -> Changed {
    let (progress, is_silent) = match done.reply.progress {
        Progress::Done => ("done", false),
        Progress::Pending { is_silent, .. } => ("pending", is_silent),
        Progress::Overtaken => ("overtaken", false),
    };
    let generation = match done.reply.answer {
        Answer::Function { generation, .. } => Some(generation.0),
        Answer::Limits { .. } | Answer::Made { .. } | Answer::Done | Answer::Joined { .. } => None,
    };
    Changed {
        version: 1,
        progress: progress.to_owned(),
        waits_for: done.waits_for.as_ref().map(ToString::to_string),
        is_silent,
        index: done.reply.index,
        generation,
    }
}

/// Asks for a change, which is `what` in words, by whoever has this token.
pub(super) async fn change(
    app: &App,
    token: TokenHash,
    terms: Terms,
    needed: Role,
    what: String,
    command: impl FnOnce(&View<'_>) -> Result<Command, Failure> + Send + 'static,
) -> Result<Done, Failure> {
    let wish = Wish { by: By::Token(token), what };
    app.core
        .ask(wish, move |view| {
            // Who may not ask does not learn what there is.
            view.authenticate(token, needed)?;
            let command = command(view)?;
            terms.asked(view, token, needed, command)
        })
        .await
}

pub(super) fn answered(done: &Done) -> (StatusCode, Json<Changed>) {
    let status = match done.reply.progress {
        Progress::Pending { .. } => StatusCode::ACCEPTED,
        Progress::Done | Progress::Overtaken => StatusCode::OK,
    };
    (status, Json(changed(done)))
}

/// What somebody says of groups.
pub(super) fn groups(said: Vec<u16>) -> Result<Groups, Failure> {
    let is_short = said.len() <= GROUPS_PER_NODE_MAX;
    let groups = Groups::new(said.into_iter().map(Group)).filter(|_| is_short);
    groups.ok_or_else(|| {
        Failure::malformed("a node may enter 1 to 64 groups, which have numbers from 1 to 4094")
    })
}

/// A node shall not belong to the fabric any more.
#[utoipa::path(delete, path = "/v1/nodes/{node}", tag = "nodes", params(
    ("node" = inline(NameText), Path, description = "Its name"),
    Naming, Condition,
), responses(
    (status = 200, description = "It is done", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn remove_node(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(node): Named<Name>,
    terms: Terms,
) -> Answered {
    let what = format!("remove node {node}");
    let command = move |_: &View<'_>| Ok(Command::RemoveNode { node });
    Ok(answered(&change(&app, token, terms, Role::Administrator, what, command).await?))
}

/// A node may enter these groups; what it has in others ends.
#[utoipa::path(put, path = "/v1/nodes/{node}/groups", tag = "nodes", params(
    ("node" = inline(NameText), Path, description = "Its name"),
    Naming, Condition,
), request_body = SetGroups, responses(
    (status = 200, description = "It is done", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn set_groups(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(node): Named<Name>,
    terms: Terms,
    Document(said): Document<SetGroups>,
) -> Answered {
    let groups = groups(said.groups)?;
    let what = format!("set groups of {node}");
    let command = move |_: &View<'_>| Ok(Command::SetGroups { node, groups });
    Ok(answered(&change(&app, token, terms, Role::Administrator, what, command).await?))
}

/// A function shall be in a slot.
#[utoipa::path(put, path = "/v1/functions/{node}/{function}/assignment", tag = "functions", params(
    ("node" = inline(NameText), Path, description = "Who lends it"),
    ("function" = inline(NameText), Path, description = "Its name there"),
    Naming, Condition,
), request_body = Assign, responses(
    (status = 200, description = "It is there", body = Changed),
    (status = 202, description = "It is decided, and its lender is waited for", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn assign(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(function): Named<FunctionName>,
    terms: Terms,
    Document(said): Document<Assign>,
) -> Answered {
    let wrong = || Failure::malformed("a group has a number from 1 to 4094");
    let group = said.group.map(|number| Group::new(number.into()).ok_or_else(wrong)).transpose()?;
    let on_silence = match &said.on_silence {
        None => OnSilence::default(),
        Some(text) => text.parse().map_err(|why: NoSilence| Failure::malformed(why.to_string()))?,
    };
    let what = format!("assign {function} to {}", said.slot);
    let command = move |view: &View<'_>| {
        let place = slots::find(view, &said.slot)?;
        Ok(Command::Assign { function, domain: place.domain, slot: place.slot, group, on_silence })
    };
    Ok(answered(&change(&app, token, terms, Role::Operator, what, command).await?))
}

/// A function shall be taken back.
#[utoipa::path(delete, path = "/v1/functions/{node}/{function}/assignment", tag = "functions", params(
    ("node" = inline(NameText), Path, description = "Who lends it"),
    ("function" = inline(NameText), Path, description = "Its name there"),
    Naming, Condition,
    ("force" = Option<bool>, Query, description = "Whether the borrower is not waited for"),
), responses(
    (status = 200, description = "It is back", body = Changed),
    (status = 202, description = "It is decided, and its lender is waited for", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn unassign(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(function): Named<FunctionName>,
    terms: Terms,
    pairs: Pairs,
) -> Answered {
    let force = pairs.flag("force")?;
    let what = format!("unassign {function}{}", if force { " by force" } else { "" });
    let command = move |_: &View<'_>| Ok(Command::Unassign { function, force });
    Ok(answered(&change(&app, token, terms, Role::Operator, what, command).await?))
}

/// A function may do so much in a second, whoever has it.
#[utoipa::path(put, path = "/v1/functions/{node}/{function}/limits", tag = "functions", params(
    ("node" = inline(NameText), Path, description = "Who lends it"),
    ("function" = inline(NameText), Path, description = "Its name there"),
    Naming, Condition,
), request_body = Limits, responses(
    (status = 200, description = "Its lender acts by them", body = Changed),
    (status = 202, description = "They are decided, and its lender is waited for", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn set_limits(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(function): Named<FunctionName>,
    terms: Terms,
    Document(said): Document<Limits>,
) -> Answered {
    let (limits, what) = (limits(said)?, format!("limit {function}"));
    let command = move |_: &View<'_>| Ok(Command::SetLimits { function, limits });
    Ok(answered(&change(&app, token, terms, Role::Operator, what, command).await?))
}

/// What somebody says of limits.
pub(super) fn limits(said: Limits) -> Result<manager::model::Limits, Failure> {
    let limit = |key: &str, said: Option<u64>| match said.map(NonZeroU64::new) {
        None => Ok(None),
        Some(Some(limit)) if i64::try_from(limit.get()).is_err() => {
            Err(Failure::malformed(format!("`{key}` is at most {}", i64::MAX)))
        }
        Some(Some(limit)) => Ok(Some(limit)),
        Some(None) => Err(Failure::malformed(format!(
            "a limit of 0 for `{key}` would stop the function: leave it out for none, or unassign the function"
        ))),
    };
    let (iops, bytes_per_s) = (limit("iops", said.iops)?, limit("bytes_per_s", said.bytes_per_s)?);
    Ok(manager::model::Limits { iops, bytes_per_s })
}

/// After a restore: all there is was heard.
#[utoipa::path(post, path = "/v1/restore/end", tag = "fabric", params(
    Naming,
    ("anyway" = Option<bool>, Query, description = "Although some nodes were not heard"),
), responses(
    (status = 200, description = "It is done", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn end_restore(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    terms: Terms,
    pairs: Pairs,
) -> Answered {
    let (terms, anyway) = (terms.without_version()?, pairs.flag("anyway")?);
    let what = "end the restore".to_owned();
    let command = move |_: &View<'_>| Ok(Command::EndRestore { anyway });
    Ok(answered(&change(&app, token, terms, Role::Administrator, what, command).await?))
}
