//! What a client says to show who it is.

use core::fmt;
use core::str::FromStr;

use base::ids::BASE32;
use link::{NodeKey, Secret};
use manager::model::{RequestId, TokenHash};
use thiserror::Error;

use super::{prove, random, sha256};

/// What is hashed before a token, so that its hash is never another hash of it.
const HASHED: &[u8] = b"causeway token 1";
/// What the text of a token begins with, so that people and secret scanners know what they see.
const PREFIX: &str = "cwt_";

/// A token: 32 random bytes. Its text is `cwt_` and 52 characters of [`base::ids::ALPHABET`]. The manager keeps its
/// hash only. That is found by looking it up, not compared in constant time: how long a look-up takes tells of hashes,
/// and nobody can choose a token by the hash that it shall have.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Secret);

/// A text is no [`Token`]. What it is instead is not shown: it may be nearly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("this is no token: one has `cwt_` and 52 letters and digits")]
pub struct BadToken;

impl Token {
    /// One that nobody has had before.
    pub fn new() -> Self {
        Self(Secret(random()))
    }

    /// The one of a request that may be repeated: the same each time, and nobody can tell it who has not `secret`.
    pub(crate) fn of_request(secret: &NodeKey, who: TokenHash, request: RequestId) -> Self {
        let text = [&b"causeway token of a request 1"[..], &who.0, &request.0].concat();
        Self(Secret(prove(&Secret(*secret.reveal()), &text)))
    }

    pub(super) fn of(bytes: [u8; 32]) -> Self {
        Self(Secret(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0.0
    }

    /// By which the manager knows it.
    pub fn hash(&self) -> TokenHash {
        TokenHash(sha256(&[HASHED, &self.0.0].concat()))
    }

    /// What its user says, behind `Authorization: Bearer`.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}", BASE32.encode(&self.0.0))
    }
}

impl Default for Token {
    fn default() -> Self {
        Self::new()
    }
}

impl FromStr for Token {
    type Err = BadToken;

    fn from_str(text: &str) -> Result<Self, BadToken> {
        let bytes = text.strip_prefix(PREFIX).ok_or(BadToken)?;
        let bytes = BASE32.decode(bytes.as_bytes()).map_err(|_| BadToken)?;
        bytes.try_into().map(|bytes| Self(Secret(bytes))).map_err(|_| BadToken)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(of hash {})", self.hash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_its_text_says_and_nobody_sees_it_by_accident() {
        let token = Token::new();
        let text = token.reveal();
        assert_eq!((text.len(), text.parse()), (56, Ok(token.clone())));
        assert!(!format!("{token:?}").contains(&text[4..]));
        assert_ne!(Token::new().hash(), token.hash());
        assert_ne!(token.hash().0, sha256(token.bytes()), "its hash is of tokens only");
        for wrong in ["", "cwt_", &text[4..], &text[..55], &format!("{text}0"), &text.to_uppercase()] {
            assert_eq!(wrong.parse::<Token>(), Err(BadToken), "{wrong}");
        }
    }
}
