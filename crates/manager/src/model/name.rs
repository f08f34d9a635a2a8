use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a node, a function or a token: 1 to [`Name::MAX`] of `A-Z a-z 0-9 . _ -`, beginning with a letter or
/// digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Characters at most.
    pub const MAX: usize = 64;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text is no [`Name`], or no [`FunctionName`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadName(String);

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is no name: 1 to {} letters, digits, `.`, `_` or `-`, beginning with a letter or digit",
            self.0.escape_debug(),
            Name::MAX
        )
    }
}

impl core::error::Error for BadName {}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let allows = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if begins && text.len() <= Self::MAX && text.chars().all(allows) {
            Ok(Self(text))
        } else {
            // A message shows the beginning of what a stranger has sent, not all of it.
            Err(BadName(text.chars().take(Self::MAX).collect()))
        }
    }
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        // One character more than is allowed is enough to be refused.
        Self::try_from(text.chars().take(Self::MAX + 1).collect::<String>())
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

/// A function as people name it: `NODE/FUNCTION`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionName {
    /// Its lender.
    pub node: Name,
    /// Its name there.
    pub function: Name,
}

impl fmt::Display for FunctionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.function)
    }
}

impl FromStr for FunctionName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = || BadName(text.chars().take(2 * Name::MAX + 1).collect());
        let (node, function) = text.split_once('/').ok_or_else(bad)?;
        Ok(Self { node: node.parse()?, function: function.parse()? })
    }
}

/// The name that was probably meant, if one is near: see [`nearest_text`].
pub fn nearest<'a>(wrong: &Name, known: impl Iterator<Item = &'a Name>) -> Option<Name> {
    let found = nearest_text(wrong.as_str(), known.map(Name::as_str))?;
    Some(Name(found.to_owned()))
}

/// The word that was probably meant, if one is near: at most a third of its characters differ, or one of the two is a
/// part of the other.
pub fn nearest_text<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = known.map(|word| (distance(wrong, word), word));
    let (distance, word) = distances.min_by_key(|(distance, _)| *distance)?;
    let is_part = wrong.len() > 2 && (word.contains(wrong) || wrong.contains(word));
    (distance <= word.chars().count().div_ceil(3) || is_part).then_some(word)
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_also_where_they_are_read() {
        let longest = "a".repeat(Name::MAX);
        for right in ["a", "0", "nvme0", "a.b_c-D", &longest] {
            assert_eq!(right.parse::<Name>().unwrap().as_str(), right);
        }
        let longer = "a".repeat(Name::MAX + 1);
        for wrong in ["", "-a", ".", "a b", "a/b", "ä", "a\n", &longer] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong}");
            let json = serde_json::to_string(wrong).unwrap();
            assert!(serde_json::from_str::<Name>(&json).is_err(), "{wrong}");
        }
        let function: FunctionName = "store/nvme0".parse().unwrap();
        assert_eq!(function.to_string(), "store/nvme0");
        for wrong in ["store", "store/", "/nvme0", "a/b/c"] {
            assert!(wrong.parse::<FunctionName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_name_that_was_meant_is_found_or_none() {
        let known: Vec<Name> =
            ["store", "desk", "rack7-a"].iter().map(|name| name.parse().unwrap()).collect();
        let found = |wrong: &str| nearest(&wrong.parse().unwrap(), known.iter()).map(String::from);
        assert_eq!(found("stroe").as_deref(), Some("store"));
        assert_eq!(found("rack7").as_deref(), Some("rack7-a"));
        assert_eq!(found("printer"), None);
        let known = ["function", "source", "read_only", "block_size"];
        let found = |wrong: &str| nearest_text(wrong, known.into_iter());
        assert_eq!(found("readonly"), Some("read_only"));
        assert_eq!(found("blocksize"), Some("block_size"));
        assert_eq!(found("func"), Some("function"));
        assert_eq!(found("colour"), None);
        assert_eq!(nearest_text("x", [].into_iter()), None);
        assert_eq!((distance("kitten", "sitting"), distance("", "abc"), distance("ä", "ö")), (3, 3, 1));
    }
}
