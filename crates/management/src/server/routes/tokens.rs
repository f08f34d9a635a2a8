//! Tokens: made, told once, and taken away.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use manager::command::Command;
use manager::model::{Name, Role, TokenHash};

use super::asked::{Bearer, Document, Named, Naming, Terms};
use super::changes::{change, changed, groups};
use super::documents::name;
use crate::keys::{JoinToken, Token};
use crate::server::App;
use crate::server::core::View;
use crate::server::problem::{Failure, Kind};
use crate::shapes::{Changed, MadeToken, MakeApiToken, MakeJoinToken, Problem};
use crate::texts::{BytesText, JOIN_SECONDS_MAX, NameText};

/// For how long a join token is good, if nothing is said.
const JOIN_SECONDS: u64 = 86_400;
/// How many domains its node gets, if nothing is said.
const DOMAINS: u32 = 64;

/// A new one; for a request that its client has named, the same each time.
fn token(app: &App, who: TokenHash, terms: Terms) -> Token {
    if terms.is_named { Token::of_request(&app.key, who, terms.request) } else { Token::new() }
}

/// A node may join with a new token.
#[utoipa::path(post, path = "/v1/join-tokens", tag = "tokens", request_body = MakeJoinToken, params(
    Naming,
), responses(
    (status = 201, description = "The token, which is told this once", body = MadeToken),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn make_join_token(
    State(app): State<Arc<App>>,
    Bearer(who): Bearer,
    terms: Terms,
    Document(said): Document<MakeJoinToken>,
) -> Result<(StatusCode, Json<MadeToken>), Failure> {
    let terms = terms.without_version()?;
    let token = token(&app, who, terms);
    let hash = token.hash();
    let groups = said.groups.map(groups).transpose()?.unwrap_or_default();
    let (seconds, domains) = (said.seconds.unwrap_or(JOIN_SECONDS), said.domains.unwrap_or(DOMAINS));
    if !(1..=JOIN_SECONDS_MAX).contains(&seconds) {
        return Err(Failure::malformed(format!("a join token is good for 1 to {JOIN_SECONDS_MAX} s")));
    }
    let command = move |view: &View<'_>| {
        // A request that comes again asks for the same time as before, not for as long from now on.
        let before = view.state().join_token(hash).map(|token| token.expires);
        let expires = before.unwrap_or_else(|| view.now.plus_s(seconds));
        Ok(Command::MakeJoinToken { hash, expires, groups, domains })
    };
    let what = "make a join token".to_owned();
    change(&app, who, terms, Role::Administrator, what, command).await?;
    let word = JoinToken { urls: app.urls.clone(), authority: app.authority.fingerprint(), token };
    let word = word.reveal().map_err(|_| {
        Failure::new(
            Kind::Internal,
            "the manager's `urls` cannot be in a join token: correct its configuration",
        )
    })?;
    Ok((StatusCode::CREATED, Json(MadeToken { version: 1, token: word, hash: hash.to_string() })))
}

/// Nobody may join with a token any more.
#[utoipa::path(delete, path = "/v1/join-tokens/{hash}", tag = "tokens", params(
    ("hash" = inline(BytesText), Path, description = "Its hash"),
    Naming,
), responses(
    (status = 200, description = "It is done", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn remove_join_token(
    State(app): State<Arc<App>>,
    Bearer(who): Bearer,
    Named(hash): Named<TokenHash>,
    terms: Terms,
) -> Result<Json<Changed>, Failure> {
    let terms = terms.without_version()?;
    let what = format!("remove join token {hash}");
    let command = move |_: &View<'_>| Ok(Command::RemoveJoinToken { hash });
    Ok(Json(changed(&change(&app, who, terms, Role::Administrator, what, command).await?)))
}

/// Somebody may use the interface with a new token.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = MakeApiToken, params(
    Naming,
), responses(
    (status = 201, description = "The token, which is told this once", body = MadeToken),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn make_api_token(
    State(app): State<Arc<App>>,
    Bearer(who): Bearer,
    terms: Terms,
    Document(said): Document<MakeApiToken>,
) -> Result<(StatusCode, Json<MadeToken>), Failure> {
    let terms = terms.without_version()?;
    let token = token(&app, who, terms);
    let (name, hash, role) = (name(&said.name)?, token.hash(), role(&said.role)?);
    let replace = said.replace.unwrap_or(false);
    let what = format!("make token {name} {}", role.text());
    let command = move |_: &View<'_>| Ok(Command::SetApiToken { name, hash, role, replace });
    change(&app, who, terms, Role::Administrator, what, command).await?;
    let made = MadeToken { version: 1, token: token.reveal(), hash: hash.to_string() };
    Ok((StatusCode::CREATED, Json(made)))
}

/// Somebody may not use the interface any more.
#[utoipa::path(delete, path = "/v1/tokens/{name}", tag = "tokens", params(
    ("name" = inline(NameText), Path, description = "Its name"),
    Naming,
), responses(
    (status = 200, description = "It is done", body = Changed),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn remove_api_token(
    State(app): State<Arc<App>>,
    Bearer(who): Bearer,
    Named(name): Named<Name>,
    terms: Terms,
) -> Result<Json<Changed>, Failure> {
    let terms = terms.without_version()?;
    let what = format!("remove token {name}");
    let command = move |_: &View<'_>| Ok(Command::RemoveApiToken { name });
    Ok(Json(changed(&change(&app, who, terms, Role::Administrator, what, command).await?)))
}

fn role(text: &str) -> Result<Role, Failure> {
    let roles = [Role::ReadOnly, Role::Operator, Role::Administrator];
    let role = roles.into_iter().find(|role| role.text() == text);
    role.ok_or_else(|| Failure::malformed("a role is `administrator`, `operator` or `read-only`"))
}
