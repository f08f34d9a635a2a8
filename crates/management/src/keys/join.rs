//! The one word that a node joins with: where the manager is, by what it is known, and the secret.

use core::fmt;
use core::str::FromStr;

use base::ids::BASE32;
use thiserror::Error;

use super::{Token, sha256};

/// What the text of a join token begins with.
const PREFIX: &str = "cwj_";
/// Of what is in the text.
const VERSION: u8 = 1;
/// URLs in a join token at most.
pub const MANAGERS_MAX: usize = 8;
const URL_MAX: usize = u8::MAX as usize;
const SUM_LEN: usize = 5;

/// What an administrator hands to whoever starts a node.
///
/// Its text is `cwj_` and, in base 32: version (1 byte), SHA-256 of the authority's certificate, the secret, the URLs
/// with a byte of length before each, and the first 5 bytes of a SHA-256 of all before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinToken {
    /// URLs of managers, such as `https://10.0.0.1:7443`: one at least, [`MANAGERS_MAX`] at most.
    pub urls: Vec<String>,
    /// SHA-256 of the authority's certificate (DER), to which the manager's certificate has to lead. The manager sends
    /// the authority's certificate, too, so nothing else is needed to know it.
    pub authority: [u8; 32],
    /// What is said as `Authorization: Bearer` to `POST /v1/join`.
    pub token: Token,
}

/// A text is no [`JoinToken`]. What it is instead is not shown: it may be nearly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadJoinToken {
    /// It does not begin as one does.
    #[error("this is no join token: one begins with `cwj_`, and an administrator makes it")]
    NotOne,
    /// A character that none has.
    #[error("the join token has a character that none has, at place {at}: copy it again")]
    Character {
        /// Where, from 1 on.
        at: usize,
    },
    /// It was mistyped, or is not whole.
    #[error("the join token is not whole, or was mistyped: its checksum is wrong; copy it again")]
    Sum,
    /// It was made by a newer program.
    #[error("the join token is of version {version}, and this program knows {VERSION}: use a newer program")]
    Newer {
        /// Its version.
        version: u8,
    },
    /// What is in it makes no sense, although its sum is right.
    #[error("the join token says nothing that makes sense: have another one made")]
    Nonsense,
}

impl JoinToken {
    /// Its text: one word.
    ///
    /// # Errors
    /// There is no URL, too many, or one is empty or longer than 255 bytes.
    pub fn reveal(&self) -> Result<String, BadJoinToken> {
        let is_url = |url: &String| (1..=URL_MAX).contains(&url.len());
        if !(1..=MANAGERS_MAX).contains(&self.urls.len()) || !self.urls.iter().all(is_url) {
            return Err(BadJoinToken::Nonsense);
        }
        let mut bytes = vec![VERSION];
        bytes.extend(self.authority);
        bytes.extend(self.token.bytes());
        for url in &self.urls {
            bytes.push(url.len() as u8);
            bytes.extend(url.as_bytes());
        }
        let sum = sum(&bytes);
        bytes.extend(sum);
        Ok(format!("{PREFIX}{}", BASE32.encode(&bytes)))
    }
}

impl FromStr for JoinToken {
    type Err = BadJoinToken;

    fn from_str(text: &str) -> Result<Self, BadJoinToken> {
        let coded = text.strip_prefix(PREFIX).ok_or(BadJoinToken::NotOne)?;
        if let Some(at) = coded.chars().position(|c| !base::ids::ALPHABET.contains(c)) {
            return Err(BadJoinToken::Character { at: at + PREFIX.len() + 1 });
        }
        let bytes = BASE32.decode(coded.as_bytes()).map_err(|_| BadJoinToken::Sum)?;
        let (said, its_sum) = bytes.split_last_chunk::<SUM_LEN>().ok_or(BadJoinToken::Sum)?;
        if sum(said) != *its_sum {
            return Err(BadJoinToken::Sum);
        }
        let (version, rest) = said.split_first().ok_or(BadJoinToken::Nonsense)?;
        if *version != VERSION {
            return Err(BadJoinToken::Newer { version: *version });
        }
        parts(rest).ok_or(BadJoinToken::Nonsense)
    }
}

fn parts(bytes: &[u8]) -> Option<JoinToken> {
    let (authority, bytes) = bytes.split_first_chunk()?;
    let (secret, mut rest) = bytes.split_first_chunk()?;
    let mut urls = Vec::new();
    while let Some((len, behind)) = rest.split_first() {
        let (url, behind) = behind.split_at_checked(usize::from(*len))?;
        urls.push(String::from_utf8(url.to_vec()).ok()?);
        rest = behind;
    }
    let token = JoinToken { urls, authority: *authority, token: Token::of(*secret) };
    // Whatever has a text that is another one's is none.
    token.reveal().is_ok().then_some(token)
}

fn sum(bytes: &[u8]) -> [u8; SUM_LEN] {
    let mut sum = [0; SUM_LEN];
    sum.copy_from_slice(&sha256(bytes)[..SUM_LEN]);
    sum
}

impl fmt::Display for JoinToken {
    /// Without the secret, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "join token {} of {}", self.token.hash(), self.urls.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        let urls = vec!["https://10.0.0.1:7443".to_owned(), "https://[::1]:7443".to_owned()];
        JoinToken { urls, authority: [7; 32], token: Token::new() }
    }

    #[test]
    fn a_join_token_is_one_word_that_says_all() {
        let token = token();
        let text = token.reveal().unwrap();
        assert_eq!(text.parse(), Ok(token.clone()));
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{text}");
        for shown in [format!("{token:?}"), token.to_string()] {
            assert!(!shown.contains(&BASE32.encode(token.token.bytes())), "{shown}");
        }
    }

    #[test]
    fn a_mistyped_one_is_named() {
        let text = token().reveal().unwrap();
        for at in PREFIX.len()..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
            let wrong = String::from_utf8(wrong).unwrap();
            assert_eq!(wrong.parse::<JoinToken>(), Err(BadJoinToken::Sum), "{at}");
            assert!(text[..at].parse::<JoinToken>().is_err(), "{at}");
        }
        let (mut swapped, at) = (text.clone().into_bytes(), 20);
        swapped.swap(at, at + 1);
        let swapped = String::from_utf8(swapped).unwrap();
        assert!(swapped == text || swapped.parse::<JoinToken>() == Err(BadJoinToken::Sum));
        let odd = format!("{}o{}", &text[..9], &text[10..]);
        assert_eq!(odd.parse::<JoinToken>(), Err(BadJoinToken::Character { at: 10 }));
        assert_eq!("cwt_0".parse::<JoinToken>(), Err(BadJoinToken::NotOne));
        assert_eq!("cwj_".parse::<JoinToken>(), Err(BadJoinToken::Sum));
    }

    #[test]
    fn one_of_a_newer_program_is_named_and_one_without_sense_is_none() {
        let of = |said: &[u8]| format!("{PREFIX}{}", BASE32.encode(&[said, &sum(said)].concat()));
        assert_eq!(of(&[9, 9, 9]).parse::<JoinToken>(), Err(BadJoinToken::Newer { version: 9 }));
        let without_url = [&[VERSION][..], &[0; 64]].concat();
        let cut_url = [&without_url[..], &[200, b'h']].concat();
        let no_text = [&without_url[..], &[1, 0xff]].concat();
        for said in [&[][..], &[VERSION], &without_url, &cut_url, &no_text] {
            assert_eq!(of(said).parse::<JoinToken>(), Err(BadJoinToken::Nonsense), "{said:?}");
        }
        let many = JoinToken { urls: vec!["https://a".to_owned(); MANAGERS_MAX + 1], ..token() };
        let none = JoinToken { urls: vec![], ..token() };
        assert!(many.reveal().is_err() && none.reveal().is_err());
    }
}
