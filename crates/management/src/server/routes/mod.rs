//! The paths of the interface: who asks, what for, and the document that answers. What they mean is the core's affair.

mod asked;
mod changes;
mod documents;
mod follow;
mod lists;
mod making;
mod node;
mod page;
mod tokens;

use core::time::Duration;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use utoipa::openapi::path::Parameter;
use utoipa::openapi::schema::{Object, SchemaType, Type};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{Modify, OpenApi};

use super::App;
use super::problem::{Failure, Kind};
pub(super) use documents::{node_name, state_of};

/// The longest document that a client may send.
const BODY_MAX: usize = 64 << 10;
/// How long a request may take, with its document, up to the beginning of its answer.
const REQUEST: Duration = Duration::from_secs(30);

/// All paths.
pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1", get(lists::fabric))
        .route("/v1/nodes", get(lists::nodes))
        .route("/v1/nodes/{node}", get(lists::node).delete(changes::remove_node))
        .route("/v1/nodes/{node}/groups", put(changes::set_groups))
        .route("/v1/functions", get(lists::functions))
        .route(
            "/v1/functions/{node}/{function}",
            get(lists::function).put(making::make).delete(making::delete),
        )
        .route("/v1/functions/{node}/{function}/assignment", put(changes::assign).delete(changes::unassign))
        .route("/v1/functions/{node}/{function}/limits", put(changes::set_limits))
        .route("/v1/domains", get(lists::domains))
        .route("/v1/domains/{node}/{domain}", get(lists::domain))
        .route("/v1/switches", get(lists::switches))
        .route("/v1/loans", get(lists::loans))
        .route("/v1/loans/{node}/{function}", get(lists::loan))
        .route("/v1/join-tokens", get(lists::join_tokens).post(tokens::make_join_token))
        .route("/v1/join-tokens/{hash}", delete(tokens::remove_join_token))
        .route("/v1/tokens", get(lists::api_tokens).post(tokens::make_api_token))
        .route("/v1/tokens/{name}", delete(tokens::remove_api_token))
        .route("/v1/audit", get(lists::audit))
        .route("/v1/events", get(follow::events))
        .route("/v1/backup", get(follow::backup))
        .route("/v1/restore/end", post(changes::end_restore))
        .route("/v1/join", get(node::introduce).post(node::join))
        .route("/v1/agent", get(super::agent::agent))
        .route("/v1/openapi.json", get(document))
        .route("/metrics", get(follow::metrics))
        .route("/healthz", get(follow::health))
        .fallback(async || Failure::not_found("there is no such path: /v1/openapi.json lists them"))
        .method_not_allowed_fallback(async || {
            Failure::new(Kind::WrongMethod, "the path has no such method: /v1/openapi.json lists them")
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), answer_in_time))
        .with_state(app)
}

/// No request takes longer than it may; all are counted.
async fn answer_in_time(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let late =
        || Failure::new(Kind::Busy, "the request took too long, or its document did not come: try again");
    let response = match tokio::time::timeout(REQUEST, next.run(request)).await {
        Ok(response) => response,
        Err(_) => late().into_response(),
    };
    app.counters.answered(response.status().as_u16());
    response
}

/// The interface, for programs and people that make clients.
#[derive(OpenApi)]
#[openapi(
    info(title = "Causeway manager", version = "1", description = "Who may use what, at run time."),
    paths(
        lists::fabric, lists::nodes, lists::node, lists::functions, lists::function, lists::domains, lists::domain,
        lists::switches, lists::loans, lists::loan, lists::join_tokens, lists::api_tokens, lists::audit,
        changes::remove_node,
        changes::set_groups, changes::assign, changes::unassign, changes::set_limits, changes::end_restore,
        making::make, making::delete,
        tokens::make_join_token, tokens::remove_join_token, tokens::make_api_token, tokens::remove_api_token,
        follow::events, follow::backup,
        follow::metrics, follow::health, node::introduce, node::join, super::agent::agent,
    ),
    security(("token" = [])),
    modifiers(&Bearer, &Absent),
)]
struct Interface;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.security_schemes.insert("token".to_owned(), scheme.into());
    }
}

/// What is left out of a path, a query or a header is not there: nobody can say `null` in it.
struct Absent;

impl Modify for Absent {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for item in document.paths.paths.values_mut() {
            let methods = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete];
            let operations = methods.into_iter().flatten();
            let parameters = operations.flat_map(|operation| operation.parameters.iter_mut().flatten());
            for parameter in parameters {
                if let RefOr::T(Parameter { schema: Some(schema), .. }) = parameter {
                    without_null(schema);
                }
            }
        }
    }
}

fn without_null(schema: &mut RefOr<Schema>) {
    let has_type_null = |it: &Object| matches!(it.schema_type, SchemaType::Type(Type::Null));
    let is_null = |it: &RefOr<Schema>| matches!(it, RefOr::T(Schema::Object(it)) if has_type_null(it));
    match schema {
        RefOr::T(Schema::OneOf(one)) => {
            if let Some(other) = one.items.iter().find(|it| !is_null(it)).cloned() {
                *schema = other;
            }
        }
        RefOr::T(Schema::Object(it)) => {
            if let SchemaType::Array(types) = &it.schema_type
                && let Some(other) = types.iter().find(|one| !matches!(one, Type::Null)).cloned()
            {
                it.schema_type = SchemaType::Type(other);
            }
        }
        _ => {}
    }
}

/// The OpenAPI document of the interface.
pub fn openapi() -> String {
    // Types of the library have no errors of their own.
    Interface::openapi().to_pretty_json().unwrap_or_default()
}

async fn document() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(openapi);
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}
