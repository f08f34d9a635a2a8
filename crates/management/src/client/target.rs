//! What is asked for: path and query.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// All but what RFC 3986 §2.3 calls unreserved.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A path below `/v1`, with its query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    path: String,
    query: String,
}

impl Target {
    /// The path of these parts, each of which may be any text.
    pub fn new<'a>(parts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut path = "/v1".to_owned();
        for part in parts {
            path.push('/');
            // These two would be steps of the path.
            match part {
                "." | ".." => path.push_str(&part.replace('.', "%2E")),
                part => path.extend(utf8_percent_encode(part, ESCAPED)),
            }
        }
        Self { path, query: String::new() }
    }

    /// The same with one field more.
    #[must_use]
    pub fn with(mut self, field: &str, value: &str) -> Self {
        self.query.push(if self.query.is_empty() { '?' } else { '&' });
        self.query.extend(utf8_percent_encode(field, ESCAPED));
        self.query.push('=');
        self.query.extend(utf8_percent_encode(value, ESCAPED));
        self
    }

    /// As a request has it.
    pub(super) fn text(&self) -> String {
        format!("{}{}", self.path, self.query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stay_parts() {
        let text = |parts: &[&str]| Target::new(parts.iter().copied()).text();
        assert_eq!(text(&[]), "/v1");
        assert_eq!(text(&["functions", "store", "nvme.0_a-b"]), "/v1/functions/store/nvme.0_a-b");
        assert_eq!(text(&["nodes", "../a?b#c d\r\n"]), "/v1/nodes/..%2Fa%3Fb%23c%20d%0D%0A");
        assert_eq!(text(&["nodes", ".."]), "/v1/nodes/%2E%2E");
        let asked = Target::new(["nodes"]).with("after", "a/b").with("state", "silent&x=ä");
        assert_eq!(asked.text(), "/v1/nodes?after=a%2Fb&state=silent%26x%3D%C3%A4");
    }
}
