//! How a node joins.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base::ids::BASE32;
use manager::command::{Asked, Asker, Command};
use manager::entry::Answer;
use manager::model::{Block, Groups, Name, PublicKey, RequestId, TokenHash, WallTime};

use super::asked::{Bearer, Document};
use super::documents::name;
use crate::keys::{is_proof, node_id, public, random, shared};
use crate::server::App;
use crate::server::agent::clocks_differ;
use crate::server::core::{By, View, Wish};
use crate::server::problem::{Failure, Kind};
use crate::shapes::{Introduction, Join, Joined, Problem, join_text};

/// Whom a node joins.
#[utoipa::path(get, path = "/v1/join", tag = "nodes", security(()), responses(
    (status = 200, description = "The fabric, and the manager's key", body = Introduction),
))]
pub(super) async fn introduce(State(app): State<Arc<App>>) -> Json<Introduction> {
    let (fabric, manager) = (app.fabric.to_string(), public(&app.key).to_string());
    Json(Introduction { version: 1, fabric, manager })
}

/// A node joins with a join token, and proves to have its key.
#[utoipa::path(post, path = "/v1/join", tag = "nodes", request_body = Join, responses(
    (status = 200, description = "It belongs to the fabric", body = Joined),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn join(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Document(said): Document<Join>,
) -> Result<Json<Joined>, Failure> {
    let (name, key) = (name(&said.name)?, key(&said.key)?);
    prove(&app, token, &said, key)?;
    let id = node_id(key);
    let called = name.clone();
    // Its answer may have been lost: what it asks for is so already.
    let core = app.core.of_nodes();
    let there = core.look(move |view| Ok(there(view, token, &called, key))).await?;
    let (block, groups) = match there {
        Some(there) => there,
        None => {
            let (who, command) = (Asker::Joiner(token), Command::Join { id, name: name.clone(), key });
            let asked = Asked { request: RequestId(random()), who, if_version: None, command };
            let wish = Wish { by: By::JoinToken(token), what: format!("join as {name} ({id})") };
            let done = core.ask(wish, move |_| Ok(asked)).await?;
            let Answer::Joined { block, groups, .. } = done.reply.answer else {
                return Err(Failure::new(Kind::Internal, "a node has joined and was answered otherwise"));
            };
            (block, groups)
        }
    };
    if let Some(trouble) = clocks_differ(WallTime(said.now)) {
        app.events.tell(crate::clock::wall(), Some(&name), "clock", true, trouble);
    }
    let gone = || Failure::new(Kind::Unauthorized, "the node was removed from the fabric just now");
    let joined = move |view: &View<'_>| {
        let node = view.state().joined(id).cloned().ok_or_else(gone)?;
        Ok((view.state().epoch(), node))
    };
    let (epoch, node) = core.look(joined).await?;
    let certificate = app.authority.certify(&node, crate::clock::wall());
    let certificate = certificate.map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
    Ok(Json(Joined {
        version: 1,
        fabric: app.fabric.to_string(),
        name: name.to_string(),
        domains: format!("{}/{}", block.base(), block.len()),
        groups: groups.iter().map(|group| group.0).collect(),
        epoch,
        manager: public(&app.key).to_string(),
        certificate: BASE32.encode(&certificate),
    }))
}

fn key(text: &str) -> Result<PublicKey, Failure> {
    text.parse().map_err(|_| Failure::malformed("`key` is 32 bytes in base 32"))
}

/// Whether the node has the key that it names.
fn prove(app: &App, token: TokenHash, said: &Join, key: PublicKey) -> Result<(), Failure> {
    let unfit = |error: crate::keys::NobodysKey| Failure::new(Kind::Unauthorized, error.to_string());
    let secret = shared(&app.key, key).map_err(unfit)?;
    let proof =
        BASE32.decode(said.proof.as_bytes()).map_err(|_| Failure::malformed("`proof` is in base 32"))?;
    if is_proof(&secret, &join_text(token, &said.name, &key.0), &proof) {
        return Ok(());
    }
    let why =
        "the proof is wrong: the node has another key than it says, or its join token is of another fabric";
    Err(Failure::new(Kind::Unauthorized, why))
}

/// What the node has, if it has joined with this very token.
fn there(view: &View<'_>, token: TokenHash, name: &Name, key: PublicKey) -> Option<(Block, Groups)> {
    let id = node_id(key);
    let node = view.state().joined(id).filter(|node| node.key == key && node.name == *name)?;
    let used = view.state().join_token(token)?.used?;
    (used.by == id).then(|| (node.block, node.groups.clone()))
}
