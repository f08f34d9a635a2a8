//! What founds a fabric and vouches for its manager: an empty folder becomes one with keys, a configuration, the first
//! entry of the log, and the credentials of the first administrator.
//!
//! | file | what |
//! |---|---|
//! | `manager.toml` | the manager's configuration ([`Config`]) |
//! | `authority.pem`, `authority.key` | the certificate that clients and nodes trust, and its key |
//! | `manager.key` | the manager's X25519 key, by which nodes prove themselves to it |
//! | `admin.toml` | credentials of the first administrator ([`Credentials`]) |
//! | `state/` | log and snapshot ([`crate::store`]) |
//!
//! The manager signs a certificate for itself whenever it starts, and again each day ([`certificate`]), so nothing that
//! runs out lies in a file but the authority's own, which is good for years.

pub mod certificate;
mod config;
mod folder;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use base::ids::BASE32;
use manager::decide::found;
use manager::model::{FabricId, Name};
use thiserror::Error;

pub use certificate::Authority;
pub use config::{BadConfig, Config};
use folder::Draft;

use crate::client::Credentials;
use crate::keys::{self, NodeKey, Token, random};
use crate::store::{self, StoreError};

/// What a fabric is founded with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the manager listens: on this machine only, unless somebody says otherwise.
    pub listen: SocketAddr,
    /// Host names and addresses for which the manager's certificate is good, beside those of this machine only.
    pub names: Vec<String>,
    /// What the first administrator's token is called.
    pub administrator: Name,
}

impl Default for Options {
    fn default() -> Self {
        let administrator = "admin".parse().expect("`admin` is a name");
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7443)), names: Vec::new(), administrator }
    }
}

/// A fabric was founded.
#[derive(Clone, Debug)]
pub struct Founded {
    /// Its id.
    pub fabric: FabricId,
    /// The manager's configuration.
    pub config: PathBuf,
    /// Credentials of the administrator.
    pub admin: PathBuf,
}

/// No fabric was founded, and nothing was left behind.
#[derive(Debug, Error)]
pub enum InitError {
    /// The folder is there, with something in it.
    #[error("{path:?} is there and is not an empty folder: name one that is, or that is not there")]
    NotEmpty {
        /// It.
        path: PathBuf,
    },
    /// It is where the caller stands: replaced by the new one, it would be gone under their feet.
    #[error("{path:?} is the current folder: name one beside it or in it")]
    Current {
        /// It.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("{path:?} cannot be written: {error}")]
    File {
        /// It.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The log could not be begun.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the fabric is made of.
    #[error(transparent)]
    Config(BadConfig),
    /// A name cannot be in a certificate.
    #[error(transparent)]
    Certificate(#[from] certificate::BadCertificate),
}

/// Founds a fabric in a folder that is empty or not there. It happens as a whole or not at all.
///
/// # Errors
/// See [`InitError`].
pub fn init(dir: &Path, options: &Options) -> Result<Founded, InitError> {
    let fabric = FabricId(random());
    let authority = Authority::new(fabric, crate::clock::wall())?;
    let config = Config::first(fabric, options);
    // Names that no certificate can have are told now, not when the manager starts.
    let now = crate::clock::wall();
    authority.sign(&config.names, now..=now)?;
    let token = Token::new();
    let credentials = Credentials {
        url: config.urls.first().cloned().unwrap_or_default(),
        authority: authority.pem().to_owned(),
        token: token.reveal(),
    };
    let dir = &folder::complete(dir)?;
    let draft = Draft::begin(dir)?;
    draft.write("manager.toml", &config.text())?;
    draft.write("authority.pem", authority.pem())?;
    draft.write("authority.key", &authority.key_pem())?;
    draft.write("manager.key", &key_text(&keys::new_pair()))?;
    draft.write("admin.toml", &credentials.text())?;
    let first = found(crate::clock::wall(), options.administrator.clone(), token.hash());
    store::begin(&draft.folder("state")?, fabric, &first)?;
    draft.finish(dir)?;
    Ok(Founded { fabric, config: dir.join("manager.toml"), admin: dir.join("admin.toml") })
}

/// A fabric has a state again.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// Credentials of the administrator.
    pub admin: PathBuf,
    /// Where the files are that were there before.
    pub moved: Option<PathBuf>,
}

/// Begins the state of a fabric anew from its authority, where the log is lost: the next manager learns from nodes and
/// their tables what there is. The administrator's credentials beside the configuration are good again, or there are
/// new ones. With `any_time` nodes are taken in also by certificates whose time is over, or has not come.
///
/// # Errors
/// See [`InitError`].
pub fn rebuild(config: &Config, beside: &Path, any_time: bool) -> Result<Rebuilt, InitError> {
    let now = crate::clock::wall();
    let authority = config.authority().map_err(InitError::Config)?;
    let admin = beside.with_file_name("admin.toml");
    let known = Credentials::load(&admin).ok().and_then(|it| it.token.parse::<Token>().ok());
    let token = known.unwrap_or_default();
    let first = found(now, Options::default().administrator, token.hash());
    let moved = store::rebuild(&config.state, config.fabric, &first, any_time)?;
    let credentials = Credentials {
        url: config.urls.first().cloned().unwrap_or_default(),
        authority: authority.pem().to_owned(),
        token: token.reveal(),
    };
    store::write_backup(&admin, credentials.text().as_bytes())?;
    Ok(Rebuilt { admin, moved })
}

/// The file of an X25519 key.
fn key_text(key: &NodeKey) -> String {
    format!("{}\n", BASE32.encode(key.reveal()))
}

/// What such a file says.
pub(crate) fn read_key(text: &str) -> Option<NodeKey> {
    let bytes = BASE32.decode(text.trim().as_bytes()).ok()?;
    Some(NodeKey::new(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_fabric_is_founded_in_an_empty_folder_and_nobody_else_reads_it() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("fabric");
        let founded = init(&dir, &Options::default()).unwrap();
        assert_eq!(mode(&dir), 0o700);
        for file in
            ["manager.toml", "authority.pem", "authority.key", "manager.key", "admin.toml", "state/log"]
        {
            assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
        }
        assert_eq!(mode(&dir.join("state")), 0o700);
        let config = Config::load(&founded.config).unwrap();
        assert_eq!((config.fabric, &config.state), (founded.fabric, &dir.join("state")));
        assert!(config.listen.iter().all(|address| address.ip().is_loopback()));
        let authority = config.authority().unwrap();
        let admin = Credentials::load(&founded.admin).unwrap();
        assert_eq!(admin.authority, authority.pem());
        assert!(admin.token.parse::<Token>().is_ok());
        assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_manager_at_another_address_of_this_machine_is_found_there() {
        let outer = tempfile::tempdir().unwrap();
        for (number, (listen, url)) in [
            ("127.0.0.1:7443", "https://localhost:7443"),
            ("127.9.9.9:7443", "https://127.9.9.9:7443"),
            ("0.0.0.0:7443", "https://localhost:7443"),
        ]
        .into_iter()
        .enumerate()
        {
            let options = Options { listen: listen.parse().unwrap(), ..Options::default() };
            let founded = init(&outer.path().join(number.to_string()), &options).unwrap();
            let config = Config::load(&founded.config).unwrap();
            assert_eq!(config.urls, [url], "{listen}");
            assert!(config.names.iter().any(|name| *url == format!("https://{name}:7443")), "{listen}");
        }
    }

    #[test]
    fn a_folder_that_is_not_empty_is_left_as_it_is() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("fabric");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("mine"), "1").unwrap();
        assert!(matches!(init(&dir, &Options::default()), Err(InitError::NotEmpty { .. })));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 1, "no draft is left");
        std::fs::remove_file(dir.join("mine")).unwrap();
        init(&dir, &Options::default()).unwrap();
        assert!(matches!(init(&dir, &Options::default()), Err(InitError::NotEmpty { .. })));
    }

    #[test]
    fn the_current_folder_is_refused() {
        for dir in [".", "", "../management"] {
            let error = init(Path::new(dir), &Options::default()).unwrap_err();
            assert!(
                matches!(error, InitError::Current { .. } | InitError::NotEmpty { .. }),
                "{dir}: {error}"
            );
        }
        let empty = tempfile::tempdir().unwrap();
        let twisted = empty.path().join("sub").join("..");
        std::fs::create_dir(empty.path().join("sub")).unwrap();
        assert!(matches!(init(&twisted, &Options::default()), Err(InitError::NotEmpty { .. })));
        init(&empty.path().join("sub/../sub"), &Options::default()).unwrap();
    }

    #[test]
    fn a_name_that_no_certificate_has_founds_nothing() {
        let outer = tempfile::tempdir().unwrap();
        let dir = outer.path().join("fabric");
        let options = Options { names: vec!["ä".to_owned()], ..Options::default() };
        let error = init(&dir, &options).unwrap_err();
        assert!(error.to_string().contains('ä'), "{error}");
        assert_eq!(std::fs::read_dir(outer.path()).unwrap().count(), 0);
    }
}
