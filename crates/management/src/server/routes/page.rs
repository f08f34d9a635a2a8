//! Lists: in order of names, a page at a time, with filters.

use axum::Json;
use manager::model::{Name, Role, TokenHash, nearest};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

use super::asked::Pairs;
use crate::server::core::{Handle, View};
use crate::server::problem::Failure;
use crate::shapes::{LIMIT, LIMIT_MAX, Page};

/// Rows that are looked at before others have their turn.
const SCAN_MAX: usize = 4096;
/// Filters of a request.
const FILTERS_MAX: usize = 16;

/// A row of a list.
pub(super) trait Row: Serialize + ToSchema + Sized + Send + 'static {
    /// By which it is found again.
    fn key(&self) -> &str;

    /// The rows behind this one, in order. Filters may leave out those that they would not pass.
    fn rows<'v>(
        view: &'v View<'v>,
        after: Option<&'v str>,
        filters: &'v Filters,
    ) -> Box<dyn Iterator<Item = Self> + 'v>;
}

/// What rows have to say.
#[derive(Debug, Default)]
pub(super) struct Filters(Vec<(String, String)>);

impl Filters {
    /// What a field has to be, if that is said.
    pub(super) fn get(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == field).map(|(_, value)| value.as_str())
    }

    /// Whether rows of this type have all the fields that are named, as the interface describes it: also where there
    /// is no row.
    fn check<T: ToSchema>(&self) -> Result<(), Failure> {
        let RefOr::T(Schema::Object(row)) = T::schema() else { return Ok(()) };
        match self.0.iter().find(|(field, _)| !row.properties.contains_key(field)) {
            Some((field, _)) => Err(unknown(field, row.properties.keys())),
            None => Ok(()),
        }
    }

    /// Whether a row says all of it. Most do not, and are left out by their text alone, which costs a tenth.
    fn pass(&self, row: &impl Serialize) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let text = serde_json::to_string(row).unwrap_or_default();
        let may_be = |wanted: &str| {
            let quoted = serde_json::Value::from(wanted).to_string();
            text.contains(quoted.trim_matches('"'))
        };
        self.0.iter().all(|(_, wanted)| may_be(wanted)) && self.says(&text)
    }

    fn says(&self, text: &str) -> bool {
        let row: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        self.0.iter().all(|(field, wanted)| match &row[field.as_str()] {
            serde_json::Value::Array(all) => all.iter().any(|one| is(one, wanted)),
            one => is(one, wanted),
        })
    }
}

fn is(value: &serde_json::Value, wanted: &str) -> bool {
    match value {
        serde_json::Value::String(text) => text == wanted,
        serde_json::Value::Number(number) => number.to_string() == wanted,
        serde_json::Value::Bool(is) => is.to_string() == wanted,
        _ => false,
    }
}

fn unknown<'a>(field: &str, known: impl Iterator<Item = &'a String>) -> Failure {
    let known: Vec<Name> = known.filter_map(|name| name.parse().ok()).collect();
    let nearest = field.parse().ok().and_then(|field| nearest(&field, known.iter()));
    let meant = nearest.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default();
    let field: String = field.chars().take(Name::MAX).collect();
    Failure::malformed(format!("rows of this list have no `{}`{meant}", field.escape_debug()))
}

/// Which part of a list.
struct Part {
    limit: usize,
    after: Option<String>,
    filters: Filters,
}

impl Part {
    fn parse(pairs: Pairs) -> Result<Self, Failure> {
        let mut part = Self { limit: LIMIT, after: None, filters: Filters::default() };
        for (name, value) in pairs.0 {
            match name.as_str() {
                "limit" => part.limit = limit(&value)?,
                "after" => part.after = Some(value),
                _ => part.filters.0.push((name, value)),
            }
        }
        if part.filters.0.len() > FILTERS_MAX {
            return Err(Failure::malformed(format!("there are {FILTERS_MAX} filters at most")));
        }
        Ok(part)
    }
}

fn limit(text: &str) -> Result<usize, Failure> {
    let malformed = || Failure::malformed(format!("`limit` is a number from 1 to {LIMIT_MAX}"));
    let limit = text.parse().map_err(|_| malformed())?;
    if (1..=LIMIT_MAX).contains(&limit) { Ok(limit) } else { Err(malformed()) }
}

/// A page that is being filled.
struct Filling<T> {
    part: Part,
    items: Vec<T>,
    /// There are more rows than the page has room for.
    is_over: bool,
    /// There are no more rows.
    is_end: bool,
}

impl<T: Row> Filling<T> {
    /// Looks at some more rows.
    fn go_on(mut self, view: &View<'_>) -> Result<Self, Failure> {
        let Part { limit, after, filters } = &self.part;
        let mut last = None;
        for row in T::rows(view, after.as_deref(), filters).take(SCAN_MAX) {
            let passes = filters.pass(&row);
            if passes && self.items.len() == *limit {
                self.is_over = true;
                break;
            }
            last = Some(row.key().to_owned());
            if passes {
                self.items.push(row);
            }
        }
        match last {
            Some(_) => self.part.after = last,
            None => self.is_end = true,
        }
        Ok(self)
    }

    fn page(self) -> Page<T> {
        let next = self.is_over.then(|| self.items.last().map(|row| row.key().to_owned())).flatten();
        Page { version: 1, items: self.items, next }
    }
}

/// A page of a list.
pub(super) async fn page<T: Row>(
    core: &Handle,
    token: TokenHash,
    pairs: Pairs,
) -> Result<Json<Page<T>>, Failure> {
    let part = Part::parse(pairs)?;
    part.filters.check::<T>()?;
    let mut filling = Filling { part, items: Vec::new(), is_over: false, is_end: false };
    while !filling.is_over && !filling.is_end {
        filling = core.look_as(token, Role::ReadOnly, move |view| filling.go_on(view)).await?;
    }
    Ok(Json(filling.page()))
}
