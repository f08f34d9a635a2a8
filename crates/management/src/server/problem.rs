//! What goes wrong, as documents: each kind has its title and status here, and nowhere else.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use manager::refusal::Refusal;

use crate::shapes::Problem;

/// The kinds, of which the names stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    NotFound,
    Conflict,
    Stale,
    Forbidden,
    Unauthorized,
    Malformed,
    TooLarge,
    WrongMethod,
    Busy,
    Unavailable,
    Internal,
}

impl Kind {
    fn title(self) -> (&'static str, StatusCode) {
        match self {
            Self::NotFound => ("not-found", StatusCode::NOT_FOUND),
            Self::Conflict => ("conflict", StatusCode::CONFLICT),
            Self::Stale => ("stale", StatusCode::PRECONDITION_FAILED),
            Self::Forbidden => ("forbidden", StatusCode::FORBIDDEN),
            Self::Unauthorized => ("unauthorized", StatusCode::UNAUTHORIZED),
            Self::Malformed => ("malformed", StatusCode::BAD_REQUEST),
            Self::TooLarge => ("malformed", StatusCode::PAYLOAD_TOO_LARGE),
            Self::WrongMethod => ("malformed", StatusCode::METHOD_NOT_ALLOWED),
            Self::Busy => ("busy", StatusCode::SERVICE_UNAVAILABLE),
            Self::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
            Self::Internal => ("internal", StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    fn of(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::NoToken { .. }
            | Refusal::NoJoinToken
            | Refusal::Expired { .. }
            | Refusal::Used { .. } => Self::Unauthorized,
            Refusal::NotAllowed { .. } | Refusal::Revoked { .. } => Self::Forbidden,
            Refusal::NoNode { .. }
            | Refusal::NoFunction { .. }
            | Refusal::NoDomain { .. }
            | Refusal::NoSlot { .. } => Self::NotFound,
            Refusal::Stale { .. } => Self::Stale,
            Refusal::HoldTime { .. } | Refusal::Domains { .. } => Self::Malformed,
            Refusal::Busy => Self::Busy,
            Refusal::OtherRequest
            | Refusal::Taken { .. }
            | Refusal::Ending { .. }
            | Refusal::Otherwise { .. }
            | Refusal::FunctionThere { .. }
            | Refusal::NotMade { .. }
            | Refusal::BeingDeleted { .. }
            | Refusal::Unmakable { .. }
            | Refusal::SlotTaken { .. }
            | Refusal::NotInGroup { .. }
            | Refusal::NoCommonGroup { .. }
            | Refusal::TokenThere { .. }
            | Refusal::TokenNamed { .. }
            | Refusal::NodeThere { .. }
            | Refusal::NameTaken { .. }
            | Refusal::Full { .. }
            | Refusal::LastAdministrator
            | Refusal::Restoring { .. }
            | Refusal::Unheard { .. }
            | Refusal::NoRestore => Self::Conflict,
        }
    }
}

/// Why a client does not get what it has asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    kind: Kind,
    detail: String,
}

impl Failure {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(Kind::Malformed, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, detail)
    }

    /// Whether the log says who was refused this: not what was only mistyped, or is too much at present.
    pub(super) fn is_noted(&self) -> bool {
        matches!(self.kind, Kind::Forbidden | Kind::Unauthorized | Kind::Conflict | Kind::Stale)
    }

    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    fn document(self) -> Problem {
        let (title, status) = self.kind.title();
        let (kind, title) = ("about:blank".to_owned(), title.to_owned());
        Problem { kind, title, status: status.as_u16(), detail: self.detail }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(Kind::of(&refusal), refusal.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (kind, (_, status)) = (self.kind, self.kind.title());
        let text = serde_json::to_vec(&self.document()).unwrap_or_default();
        let mut response = (status, text).into_response();
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, problem);
        if kind == Kind::Unauthorized {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
