//! Scripts of tests: text files whose blocks, divided by an empty line, are a command, `----`, and what it is expected
//! to say. Lines that begin with `#` are comments.
//!
//! A test gives a function that does what a command says and tells what has come of it. With `REWRITE=1` in the
//! environment what a script expects becomes what happens. Only tests depend on this.

use core::fmt::Debug;
use core::str::FromStr;
use std::path::Path;

/// Runs each command of the script at `path`.
///
/// # Panics
/// If something else happens than the script expects, or it cannot be read or rewritten.
pub fn check(path: &Path, run: impl FnMut(&str) -> String) {
    let name = path.display();
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let Done { rewritten, wrong } = blocks(&text, run);
    if std::env::var_os("REWRITE").is_some() {
        return std::fs::write(path, rewritten).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

/// What has come of a script.
struct Done {
    /// With what has happened in place of what was expected.
    rewritten: String,
    /// What was not as expected.
    wrong: Vec<String>,
}

fn blocks(text: &str, mut run: impl FnMut(&str) -> String) -> Done {
    let (mut rewritten, mut wrong) = (String::new(), Vec::new());
    for block in text.trim_end().split("\n\n") {
        let (comments, block) = block.lines().partition::<Vec<_>, _>(|line| line.starts_with('#'));
        comments.iter().for_each(|line| rewritten += &format!("{line}\n"));
        let block = block.join("\n");
        if let Some((input, expected)) = block.split_once("\n----") {
            let (found, expected) = (run(input), expected.trim());
            let found = found.trim_end();
            if found != expected {
                wrong.push(format!("{input}\n---- expected\n{expected}\n---- found\n{found}\n"));
            }
            rewritten += &format!("{input}\n----\n");
            found.lines().for_each(|line| rewritten += &format!("{line}\n"));
        }
        rewritten.push('\n');
    }
    rewritten.truncate(rewritten.trim_end().len());
    rewritten.push('\n');
    Done { rewritten, wrong }
}

/// The words of a command's line, some of them `key=value`.
pub struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    /// Those of this line.
    pub fn of(line: &'a str) -> Self {
        Self(line.split_whitespace().collect())
    }

    /// The word in this place.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn at(&self, place: usize) -> &'a str {
        self.0.get(place).unwrap_or_else(|| panic!("word {place} is missing: {:?}", self.0))
    }

    /// The value of a key, if it is there.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let pairs = self.0.iter().filter_map(|word| word.split_once('='));
        pairs.filter(|(it, _)| *it == key).map(|(_, value)| value).next()
    }

    /// Whether this is one of the words from a place on.
    pub fn has(&self, from: usize, word: &str) -> bool {
        self.0.iter().skip(from).any(|it| *it == word)
    }

    /// The number of a key; `fallback` where it is not there.
    ///
    /// # Panics
    /// If it is no number.
    pub fn number<T: FromStr<Err: Debug>>(&self, key: &str, fallback: T) -> T {
        self.get(key).map_or(fallback, |text| parsed(text))
    }

    /// The number in this place.
    ///
    /// # Panics
    /// If there is none.
    pub fn number_at<T: FromStr<Err: Debug>>(&self, place: usize) -> T {
        parsed(self.at(place))
    }
}

fn parsed<T: FromStr<Err: Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| panic!("{text} is no number: {error:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Two words.\nsay a=1 loud\n----\nA\n\n# Alone.\n\nsay b=22\nmore\n----\nwrong\n\n\
        say b=0\n----\n\nsay\n----\n7\n";

    fn run(input: &str) -> String {
        let words = Words::of(input.lines().next().unwrap());
        assert_eq!(words.at(0), "say");
        match words.get("a") {
            Some(_) if words.has(1, "loud") => "A\n".to_owned(),
            _ => Some(words.number("b", 7_u32))
                .filter(|it| *it > 0)
                .map_or_else(String::new, |it| it.to_string()),
        }
    }

    #[test]
    fn what_happens_is_compared_and_written_down() {
        let Done { rewritten, wrong } = blocks(TEXT, run);
        assert_eq!(wrong, ["say b=22\nmore\n---- expected\nwrong\n---- found\n22\n"]);
        assert_eq!(rewritten, TEXT.replace("wrong", "22"));
        assert!(blocks(&rewritten, run).wrong.is_empty(), "what was written down is expected");
    }
}
