//! What a client needs to speak to a manager: where it is, by what it is known, and a token.

use core::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Credentials of a client, as `admin.toml` has them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// Where the manager is, such as `https://127.0.0.1:7443`.
    pub url: String,
    /// The token ([`crate::keys::Token`]).
    pub token: String,
    /// The authority's certificate (PEM), to which the manager's certificate has to lead.
    pub authority: String,
}

/// Credentials cannot be read.
#[derive(Debug, Error)]
pub enum BadCredentials {
    /// Their file.
    #[error("{path:?} cannot be read: {error}")]
    File {
        /// It.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// What it says. The text itself is not shown, for it has a token.
    #[error("{path:?} has no credentials of a manager's client: `url`, `token` and `authority` are needed")]
    Text {
        /// The file.
        path: PathBuf,
    },
}

impl Credentials {
    /// Reads them.
    ///
    /// # Errors
    /// See [`BadCredentials`].
    pub fn load(path: &Path) -> Result<Self, BadCredentials> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| BadCredentials::File { path: path.to_owned(), error })?;
        toml::from_str(&text).map_err(|_| BadCredentials::Text { path: path.to_owned() })
    }

    /// Their file.
    pub fn text(&self) -> String {
        let Self { url, token, authority } = self;
        let authority = authority.trim_end();
        format!(
            "# Who has this file may do what its token lets do: keep it to yourself.\n\
             url = {}\ntoken = {}\n\
             # The certificate by which the manager is known.\nauthority = \"\"\"\n{authority}\n\"\"\"\n",
            super::config::quoted(url),
            super::config::quoted(token),
        )
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials(for {})", self.url)
    }
}
