//! What a request says beside its path: who asks, under which id, on which condition, and a document.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use manager::command::{Asked, Asker, Command};
use manager::model::{RequestId, Role, TokenHash};
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::IntoParams;

use crate::keys::{Token, random};
use crate::server::core::View;
use crate::server::problem::{Failure, Kind};
use crate::texts::{RequestText, VersionText};

/// By which header a client names its request.
const REQUEST_ID: &str = "idempotency-key";

/// Whoever has this token. Whether there is such a one is looked up when it is needed.
#[derive(Clone, Copy)]
pub(super) struct Bearer(pub(super) TokenHash);

impl<S: Sync> FromRequestParts<S> for Bearer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let needed = || Failure::new(Kind::Unauthorized, "this takes `Authorization: Bearer TOKEN`");
        let said = parts.headers.get(header::AUTHORIZATION).ok_or_else(needed)?;
        let said = said.to_str().ok().and_then(|said| said.split_once(' ')).ok_or_else(needed)?;
        let token = match said {
            (scheme, token) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return Err(needed()),
        };
        let token: Token =
            token.parse().map_err(|error| Failure::new(Kind::Unauthorized, format!("{error}")))?;
        Ok(Self(token.hash()))
    }
}

/// The header by which a change is named, for the description of the interface: [`Terms`] is what is read.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "a description has no value")]
pub(super) struct Naming {
    /// Names the request: again, it is done once
    #[param(rename = "Idempotency-Key", value_type = Option<RequestText>, inline)]
    request: Option<RequestText>,
}

/// The same of the condition that it may have.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "a description has no value")]
pub(super) struct Condition {
    /// Only if its `ETag` is this
    #[param(rename = "If-Match", value_type = Option<VersionText>, inline)]
    version: Option<VersionText>,
}

/// What a change says in its headers.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// Whether the client has named the request.
    pub(super) is_named: bool,
    pub(super) request: RequestId,
    pub(super) if_version: Option<u64>,
}

impl<S: Sync> FromRequestParts<S> for Terms {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let named = request_id(&parts.headers)?;
        let if_version = version(&parts.headers)?;
        Ok(Self {
            is_named: named.is_some(),
            request: named.unwrap_or_else(|| RequestId(random())),
            if_version,
        })
    }
}

impl Terms {
    /// What is asked for, by whoever has this token.
    pub(super) fn asked(
        self,
        view: &View<'_>,
        token: TokenHash,
        needed: Role,
        command: Command,
    ) -> Result<Asked, Failure> {
        let who = Asker::Api(view.authenticate(token, needed)?);
        Ok(Asked { request: self.request, who, if_version: self.if_version, command })
    }

    /// Of what has no versions nothing is changed on condition of one.
    pub(super) fn without_version(self) -> Result<Self, Failure> {
        match self.if_version {
            None => Ok(self),
            Some(_) => Err(Failure::malformed("this has no versions: leave out `If-Match`")),
        }
    }
}

/// What the path names.
pub(super) struct Named<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Named<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let named = Path::from_request_parts(parts, state).await;
        named.map(|Path(named)| Self(named)).map_err(|error| Failure::malformed(error.body_text()))
    }
}

fn request_id(headers: &HeaderMap) -> Result<Option<RequestId>, Failure> {
    let Some(said) = headers.get(REQUEST_ID) else { return Ok(None) };
    let said = said.to_str().unwrap_or_default();
    let quoted = said.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let id = quoted.unwrap_or(said).parse().ok();
    let malformed =
        "`Idempotency-Key` is 16 random bytes as 26 characters of base 32 (0-9 and a-z but i, l, o, u)";
    id.map(Some).ok_or_else(|| Failure::malformed(malformed))
}

fn version(headers: &HeaderMap) -> Result<Option<u64>, Failure> {
    let Some(said) = headers.get(header::IF_MATCH) else { return Ok(None) };
    let said = said.to_str().unwrap_or_default().trim();
    if said == "*" {
        return Ok(None);
    }
    // Quotes are of the header, and some leave them out.
    let quoted = said.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let version = Some(quoted.unwrap_or(said));
    // Digits only: a number may begin with a sign, and a version does not.
    let version =
        version.filter(|version| version.len() < 20 && version.bytes().all(|it| it.is_ascii_digit()));
    let version = version.and_then(|version| version.parse().ok());
    version
        .map(Some)
        .ok_or_else(|| Failure::malformed("`If-Match` is one `ETag`, as it was answered: \"17\""))
}

/// A document that the client has sent.
pub(super) struct Document<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Document<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes =
            Bytes::from_request(request, state).await.map_err(|error| match error.status().as_u16() {
                413 => {
                    Failure::new(Kind::TooLarge, format!("a document has {} bytes at most", super::BODY_MAX))
                }
                _ => Failure::malformed(format!("the document did not come: {error}")),
            })?;
        // Who reads structures would take a list of their fields, too.
        if !bytes.trim_ascii_start().starts_with(b"{") && !bytes.trim_ascii().is_empty() {
            return Err(Failure::malformed("the document is not as it has to be: expected `{`"));
        }
        let document = serde_json::from_slice(&bytes).or_else(|error| with_integers(&bytes).ok_or(error));
        document
            .map(Self)
            .map_err(|error| Failure::malformed(format!("the document is not as it has to be: {error}")))
    }
}

/// A document in which some program writes 17 as 17.0, which JSON says is the same (RFC 8259 §6).
fn with_integers<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    fn whole(value: &mut Value) {
        match value {
            Value::Number(number) => {
                // Beyond 2^53 it is the nearest one that is a float, as JSON lets one expect.
                let is_whole = |it: &f64| it.fract() == 0.0 && (0.0..2.0_f64.powi(64)).contains(it);
                if let Some(integer) = number.as_f64().filter(|it| number.is_f64() && is_whole(it)) {
                    *value = Value::from(integer as u64);
                }
            }
            Value::Array(all) => all.iter_mut().for_each(whole),
            Value::Object(all) => all.values_mut().for_each(whole),
            _ => {}
        }
    }
    let mut value = serde_json::from_slice(bytes).ok()?;
    whole(&mut value);
    serde_json::from_value(value).ok()
}

/// `?NAME=VALUE&...`, in order.
pub(super) struct Pairs(pub(super) Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Pairs {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::from_request_parts(parts, state).await;
        query.map(|Query(pairs)| Self(pairs)).map_err(|error| Failure::malformed(error.to_string()))
    }
}

impl Pairs {
    /// The only one that there may be: whether it is said.
    pub(super) fn flag(self, name: &str) -> Result<bool, Failure> {
        let mut is_set = false;
        for (said, value) in self.0 {
            is_set = match (said == name, value.as_str()) {
                (true, "true") => true,
                (true, "false") => false,
                (true, _) => return Err(Failure::malformed(format!("`{name}` is `true` or `false`"))),
                (false, _) => {
                    return Err(Failure::malformed(format!("all that may be said here is `{name}`")));
                }
            };
        }
        Ok(is_set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_as_a_float_is_the_integer_that_it_is() {
        // The second is off by a quarter for who reads floats but roughly.
        for (text, integer) in [
            ("17.0", Some(17)),
            ("2251799813685247.0", Some(2_251_799_813_685_247)),
            ("1e18", Some(1_000_000_000_000_000_000)),
            ("17.25", None),
            ("-1.0", None),
            ("18446744073709551616.0", None),
        ] {
            let read = with_integers::<[u64; 1]>(format!("[{text}]").as_bytes());
            assert_eq!(read, integer.map(|it| [it]), "{text}");
        }
    }
}
