use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// An event as it is kept, sent and printed. Kind and severity are texts: a newer node may know others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its number since the node was started, from 1 on.
    pub seq: u64,
    /// When it was said: RFC 3339, with microseconds, UTC.
    pub time: String,
    /// `error`, `warning` or `info`.
    pub severity: String,
    /// See [`io::event::Event::kind`].
    pub kind: String,
    /// The line of the log, without its values.
    pub message: String,
    /// What it is about, each value under its own key.
    #[serde(flatten)]
    pub values: Values,
}

/// The values of an event, in the order of the log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values(Vec<(String, Value)>);

impl Values {
    /// Adds one.
    pub fn push(&mut self, name: &str, value: Value) {
        self.0.push((name.to_owned(), value));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        self.0.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(InOrder)
    }
}

/// Takes the entries of a map as they come.
struct InOrder;

impl<'de> Visitor<'de> for InOrder {
    type Value = Values;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the values of an event")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Values, M::Error> {
        let mut values = Values::default();
        while let Some(entry) = map.next_entry()? {
            values.0.push(entry);
        }
        Ok(values)
    }
}
