//! Functions that are made, and deleted.

use std::num::NonZeroU64;
use std::sync::Arc;

use axum::extract::State;
use base::ids::Group;
use manager::command::Command;
use manager::model::{self, FunctionName, Role, Shape};

use super::asked::{Bearer, Condition, Document, Named, Naming, Terms};
use super::changes::{Answered, answered, change, limits};
use super::documents::name;
use crate::server::App;
use crate::server::core::View;
use crate::server::problem::Failure;
use crate::shapes::{Changed, Limits, MakeFunction, Making, Problem, Storage};
use crate::texts::NameText;

/// A function shall be there, of a device of a node.
#[utoipa::path(put, path = "/v1/functions/{node}/{function}", tag = "functions", params(
    ("node" = inline(NameText), Path, description = "Who is to lend it"),
    ("function" = inline(NameText), Path, description = "Its name there"),
    Naming,
), request_body = MakeFunction, responses(
    (status = 200, description = "It is there", body = Changed),
    (status = 202, description = "It is decided, and its lender is waited for", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn make(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(function): Named<FunctionName>,
    terms: Terms,
    Document(said): Document<MakeFunction>,
) -> Answered {
    let (terms, shape) = (terms.without_version()?, shape(&said)?);
    let what = format!("make function {function}");
    let command = move |_: &View<'_>| Ok(Command::MakeFunction { function, shape });
    Ok(answered(&change(&app, token, terms, Role::Operator, what, command).await?))
}

/// A function that was made shall not be there any more, and nothing of what is in its namespace neither.
#[utoipa::path(delete, path = "/v1/functions/{node}/{function}", tag = "functions", params(
    ("node" = inline(NameText), Path, description = "Who lends it"),
    ("function" = inline(NameText), Path, description = "Its name there"),
    Naming, Condition,
), responses(
    (status = 200, description = "It is gone", body = Changed),
    (status = 202, description = "It is decided, and its lender is waited for", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(function): Named<FunctionName>,
    terms: Terms,
) -> Answered {
    let what = format!("delete function {function}");
    let command = move |_: &View<'_>| Ok(Command::DeleteFunction { function });
    Ok(answered(&change(&app, token, terms, Role::Operator, what, command).await?))
}

/// What somebody wants to be made.
fn shape(said: &MakeFunction) -> Result<Shape, Failure> {
    let storage = match &said.storage {
        Storage::Bytes(bytes) => match NonZeroU64::new(*bytes).filter(|it| i64::try_from(it.get()).is_ok()) {
            Some(bytes) => model::Storage::Own { bytes },
            None => return Err(Failure::malformed(format!("`bytes` is 1 to {}", i64::MAX))),
        },
        Storage::Namespace(namespace) => model::Storage::Shared { namespace: name(namespace)? },
    };
    let group = match said.group {
        None => None,
        Some(number) => Some(
            Group::new(number.into())
                .ok_or_else(|| Failure::malformed("a group has a number from 1 to 4094"))?,
        ),
    };
    let limits = limits(Limits { iops: said.iops, bytes_per_s: said.bytes_per_s })?;
    Ok(Shape { device: name(&said.device)?, storage, group, limits })
}

/// What of a node's functions is not as it was decided, in order of names.
pub(super) fn making(making: &model::Making) -> Vec<Making> {
    let said = |name: &model::Name, state: &str, why: Option<String>| Making {
        function: name.to_string(),
        state: state.to_owned(),
        why,
    };
    let wanted = making.functions.iter().filter(|(_, wanted)| !wanted.is_made);
    let wanted = wanted.map(|(name, _)| said(name, "making", None));
    let leaving = making.leaving.keys().map(|name| said(name, "deleting", None));
    let refused = making.refused.iter().map(|(name, it)| said(name, "refused", Some(it.why.clone())));
    let mut all: Vec<Making> = wanted.chain(leaving).chain(refused).collect();
    all.sort_by(|one, two| one.function.cmp(&two.function));
    all
}
