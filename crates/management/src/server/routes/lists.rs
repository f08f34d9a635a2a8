//! What is so: lists, and one thing at a time.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use manager::model::{FunctionName, Name, Role};

use super::asked::{Bearer, Named, Pairs};
use super::documents;
use super::page::page;
use crate::server::App;
use crate::server::problem::Failure;
use crate::shapes::{
    ApiToken, Audit, Domain, Fabric, Function, JoinToken, Loan, Node, Page, Problem, Switch,
};
use crate::texts::NameText;

type Listed<T> = Result<Json<Page<T>>, Failure>;
type Tag = [(HeaderName, HeaderValue); 1];
type Tagged<T> = Result<(Tag, Json<T>), Failure>;

/// The `ETag` of a version.
fn tag(version: u64) -> Tag {
    let text = format!("\"{version}\"");
    // Digits and quotes are fit for a header.
    [(header::ETAG, HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("\"0\"")))]
}

macro_rules! list {
    ($(#[$doc:meta])* $name:ident, $row:ty, $path:literal, $tag:literal) => {
        $(#[$doc])*
        #[utoipa::path(get, path = $path, tag = $tag, params(
            ("limit" = Option<u32>, Query, description = "Rows of a page, 1 to 1000; 100 if nothing is said",
                minimum = 1, maximum = 1000),
            ("after" = Option<String>, Query, description = "What the page before has said as `next`"),
        ), responses(
            (status = 200, description = "A page; any field filters by `?FIELD=VALUE`", body = Page<$row>),
            (status = "default", description = "What went wrong", body = Problem,
                content_type = "application/problem+json"),
        ))]
        pub(super) async fn $name(
            State(app): State<Arc<App>>,
            Bearer(token): Bearer,
            pairs: Pairs,
        ) -> Listed<$row> {
            page(&app.core, token, pairs).await
        }
    };
}

list!(
    /// Nodes that belong to the fabric.
    nodes, Node, "/v1/nodes", "nodes"
);
list!(
    /// What nodes lend.
    functions, Function, "/v1/functions", "functions"
);
list!(
    /// Virtual machines of nodes that were heard.
    domains, Domain, "/v1/domains", "domains"
);
list!(
    /// Switches that nodes hear, or have heard.
    switches, Switch, "/v1/switches", "nodes"
);
list!(
    /// Functions that are in slots, or are being taken from them.
    loans, Loan, "/v1/loans", "functions"
);
list!(
    /// Tokens that nodes may join with.
    join_tokens, JoinToken, "/v1/join-tokens", "tokens"
);
list!(
    /// Tokens for the interface.
    api_tokens, ApiToken, "/v1/tokens", "tokens"
);
list!(
    /// What clients have asked for and was done, the last 65,536 of it; what was refused, and what nodes have caused,
    /// the last 4096 of that.
    audit, Audit, "/v1/audit", "fabric"
);

/// The fabric.
#[utoipa::path(get, path = "/v1", tag = "fabric", responses(
    (status = 200, description = "The fabric", body = Fabric),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn fabric(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
) -> Result<Json<Fabric>, Failure> {
    let look = |view: &crate::server::core::View<'_>| {
        let state = view.state();
        let joined = || state.nodes().filter(|node| node.is_joined());
        let name =
            |id: &base::ids::NodeId| state.node(*id).map_or_else(|| id.to_string(), |it| it.name.to_string());
        let unheard = |restore: &manager::state::Restore| restore.unheard.iter().map(name).collect();
        Ok(Fabric {
            version: 1,
            fabric: state.fabric().to_string(),
            epoch: state.epoch(),
            index: view.manager.durable(),
            nodes: joined().count() as u64,
            reachable: joined().filter(|node| view.manager.is_reachable(node.id)).count() as u64,
            functions: state.functions().count() as u64,
            restoring: state.restore().map(unheard),
            now: view.now.to_string(),
            alarms: crate::server::core::clock_is_back(view.now, state).into_iter().collect(),
        })
    };
    app.core.look_as(token, Role::ReadOnly, look).await.map(Json)
}

/// A node.
#[utoipa::path(get, path = "/v1/nodes/{node}", tag = "nodes", params(
    ("node" = inline(NameText), Path, description = "Its name"),
), responses(
    (status = 200, description = "The node; `ETag` is its version", body = Node),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn node(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(node): Named<Name>,
) -> Tagged<Node> {
    let look = move |view: &crate::server::core::View<'_>| {
        let found = documents::find_node(view, &node)?;
        Ok((tag(found.version), Json(documents::node(view, found))))
    };
    app.core.look_as(token, Role::ReadOnly, look).await
}

/// A function.
#[utoipa::path(get, path = "/v1/functions/{node}/{function}", tag = "functions", params(
    ("node" = inline(NameText), Path, description = "Who lends it"),
    ("function" = inline(NameText), Path, description = "Its name there"),
), responses(
    (status = 200, description = "The function; `ETag` is its version", body = Function),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn function(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(name): Named<FunctionName>,
) -> Tagged<Function> {
    let look = move |view: &crate::server::core::View<'_>| {
        let (lender, found) = documents::find_function(view, &name)?;
        Ok((tag(found.version), Json(documents::function(view, lender, found))))
    };
    app.core.look_as(token, Role::ReadOnly, look).await
}

/// A loan.
#[utoipa::path(get, path = "/v1/loans/{node}/{function}", tag = "functions", params(
    ("node" = inline(NameText), Path, description = "Who lends it"),
    ("function" = inline(NameText), Path, description = "Its name there"),
), responses(
    (status = 200, description = "The loan; `ETag` is the function's version", body = Loan),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn loan(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named(name): Named<FunctionName>,
) -> Tagged<Loan> {
    let look = move |view: &crate::server::core::View<'_>| {
        let (lender, found) = documents::find_function(view, &name)?;
        let free = || Failure::not_found(format!("{lender}/{} is in no slot", found.name));
        let loan = documents::loan(view, lender, found).ok_or_else(free)?;
        Ok((tag(found.version), Json(loan)))
    };
    app.core.look_as(token, Role::ReadOnly, look).await
}

/// A virtual machine.
#[utoipa::path(get, path = "/v1/domains/{node}/{domain}", tag = "domains", params(
    ("node" = inline(NameText), Path, description = "Whose it is"),
    ("domain" = inline(NameText), Path, description = "Its name there"),
), responses(
    (status = 200, description = "The domain", body = Domain),
    (status = "default", description = "What went wrong", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn domain(
    State(app): State<Arc<App>>,
    Bearer(token): Bearer,
    Named((node, name)): Named<(Name, Name)>,
) -> Result<Json<Domain>, Failure> {
    let look = move |view: &crate::server::core::View<'_>| {
        let found = documents::find_node(view, &node)?;
        let said = view.nodes.get(found.id).map(|known| &known.about.domains[..]).unwrap_or_default();
        let unknown = || {
            let meant = manager::model::nearest(&name, said.iter().map(|said| &said.name));
            let meant = meant.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
            Failure::not_found(format!("node `{node}` has said of no domain `{name}`{meant}"))
        };
        let said = said.iter().find(|said| said.name == name).ok_or_else(unknown)?;
        Ok(Json(documents::domain(view, found, said)))
    };
    app.core.look_as(token, Role::ReadOnly, look).await
}
