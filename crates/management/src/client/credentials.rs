//! By what somebody is known to a manager: a file that nobody else can read.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The longest file: a certificate has some hundred bytes.
const BYTES_MAX: u64 = 64 << 10;
/// Rights of everybody but the owner.
const OTHERS: u32 = 0o077;

/// Where the manager is, whose word it is, and who asks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// `https://HOST:PORT`.
    pub url: String,
    /// What the asker says it is.
    pub token: String,
    /// The certificate of the fabric's authority, as PEM. No other authority is believed.
    pub authority: String,
}

/// Without the token.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, others than its owner can read it, or it holds no credentials.
    pub fn load(path: &Path) -> Result<Self, CredentialsError> {
        let unreadable = |error| CredentialsError::Unreadable { path: path.to_owned(), error };
        let wrong = |why: String| CredentialsError::Wrong { path: path.to_owned(), why };
        // A pipe that nobody writes to is not waited for.
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if !about.is_file() {
            return Err(wrong("it is no regular file".to_owned()));
        }
        if about.mode() & OTHERS != 0 {
            return Err(CredentialsError::Open { path: path.to_owned(), mode: about.mode() & 0o777 });
        }
        let mut text = String::new();
        file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > BYTES_MAX {
            return Err(wrong(format!("it is longer than {} KiB", BYTES_MAX >> 10)));
        }
        // The long message of the parser quotes the line, and with it perhaps the token.
        toml::from_str(&text).map_err(|error| wrong(error.message().to_owned()))
    }

    /// The text of their file.
    pub fn text(&self) -> String {
        let text = toml::to_string(self).expect("three texts can be written as TOML");
        format!("# Who has this file may do what its token lets do: keep it to yourself.\n{text}")
    }

    /// Makes a file, which only its owner can read.
    ///
    /// # Errors
    /// There is one already, or it cannot be written.
    pub fn create(&self, path: &Path) -> io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(self.text().as_bytes())?;
        file.sync_all()
    }
}

/// Why a file gives no credentials.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// It cannot be read.
    #[error("cannot read the credentials for a manager from {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Others than its owner can read it.
    #[error(
        "{} can be read by others (mode {mode:04o}), and has a token in it: chmod 0600 it, and if somebody may have \
         read it, remove that token and make another",
        path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is something else.
    #[error(
        "{} holds no credentials for a manager: {why}; `causeway init` writes such a file, with url, token and \
         authority",
        path.display()
    )]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn example() -> Credentials {
        Credentials {
            url: "https://127.0.0.1:7412".to_owned(),
            token: "secret".to_owned(),
            authority: "-----BEGIN\n".to_owned(),
        }
    }

    #[test]
    fn a_file_comes_back_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manager.toml");
        example().create(&path).unwrap();
        assert_eq!(Credentials::load(&path).unwrap(), example());
        assert_eq!(example().create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(!format!("{:?}", example()).contains("secret"));
        for mode in [0o640, 0o604, 0o620] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let refused = Credentials::load(&path).unwrap_err().to_string();
            assert!(refused.contains("others") && refused.contains(&format!("{mode:04o}")), "{refused}");
        }
    }

    #[test]
    fn what_is_no_such_file_is_named_and_its_token_is_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manager.toml");
        assert!(Credentials::load(&path).unwrap_err().to_string().contains("manager.toml: No such file"));
        write(&path, "").unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        for (text, said) in [
            ("", "missing field"),
            ("token = secret\n", "holds no credentials"),
            ("url = 'https://a'\ntoken = 'secret'\nauthority = ''\nmore = 1\n", "unknown field `more`"),
            (&"#".repeat(70_000), "longer than 64 KiB"),
        ] {
            write(&path, text).unwrap();
            let why = Credentials::load(&path).unwrap_err().to_string();
            assert!(why.contains(said) && !why.contains("secret"), "{why}");
        }
        let why = Credentials::load(folder.path()).unwrap_err().to_string();
        assert!(why.contains("no regular file"), "{why}");
    }
}
