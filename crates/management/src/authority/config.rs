//! The manager's configuration: `manager.toml`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use manager::model::FabricId;
use serde::Deserialize;
use thiserror::Error;

use super::certificate::{Authority, BadCertificate};
use super::{Options, read_key};
use crate::keys::NodeKey;

/// Names of this machine, for itself only.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Connections at once, if nothing is said: one of each node, and as many of clients.
const CONNECTIONS: usize = 8192;

/// The configuration of a manager. Paths are complete: in the file they may begin in its folder.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Which fabric.
    pub fabric: FabricId,
    /// Where it listens.
    pub listen: Vec<SocketAddr>,
    /// Host names and addresses for which its certificate is good.
    pub names: Vec<String>,
    /// Where nodes and clients find it, as join tokens say.
    pub urls: Vec<String>,
    /// The folder of log and snapshot.
    #[serde(default = "state")]
    pub state: PathBuf,
    /// The authority's certificate.
    #[serde(default = "certificate")]
    pub authority: PathBuf,
    /// The authority's key.
    #[serde(default = "authority_key")]
    pub authority_key: PathBuf,
    /// The manager's own key.
    #[serde(default = "manager_key")]
    pub key: PathBuf,
    /// Connections at once.
    #[serde(default = "connections")]
    pub connections: usize,
}

fn state() -> PathBuf {
    "state".into()
}

fn certificate() -> PathBuf {
    "authority.pem".into()
}

fn authority_key() -> PathBuf {
    "authority.key".into()
}

fn manager_key() -> PathBuf {
    "manager.key".into()
}

fn connections() -> usize {
    CONNECTIONS
}

/// A configuration that no manager can run by.
#[derive(Debug, Error)]
pub enum BadConfig {
    /// A file of it.
    #[error("{path:?} cannot be read: {error}")]
    File {
        /// It.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// What `manager.toml` says.
    #[error("{path:?}: {why}")]
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The manager's key.
    #[error(
        "{path:?} has no key: 32 bytes in base 32 are needed; take it from a copy of the fabric's folder"
    )]
    Key {
        /// The file.
        path: PathBuf,
    },
    /// The authority's certificate or key.
    #[error(transparent)]
    Certificate(#[from] BadCertificate),
}

impl Config {
    /// Reads one.
    ///
    /// # Errors
    /// See [`BadConfig`].
    pub fn load(path: &Path) -> Result<Self, BadConfig> {
        let bad = |why: String| BadConfig::Text { path: path.to_owned(), why };
        let mut config: Self = toml::from_str(&read(path)?).map_err(|error| bad(error.to_string()))?;
        if config.listen.is_empty() || config.names.is_empty() || config.urls.is_empty() {
            return Err(bad("`listen`, `names` and `urls` have one entry at least".to_owned()));
        }
        if let Some(url) = config.urls.iter().find(|url| !url.starts_with("https://") || url.len() > 255) {
            return Err(bad(format!("`{url}` is no URL of a manager: one begins with `https://`")));
        }
        if config.urls.len() > crate::keys::MANAGERS_MAX {
            return Err(bad(format!("`urls` has {} entries at most", crate::keys::MANAGERS_MAX)));
        }
        if config.connections == 0 {
            return Err(bad("`connections` is 1 at least".to_owned()));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        for file in [&mut config.state, &mut config.authority, &mut config.authority_key, &mut config.key] {
            *file = folder.join(&*file);
        }
        Ok(config)
    }

    /// The authority that signs for this manager.
    ///
    /// # Errors
    /// Its files cannot be read, or do not belong together.
    pub fn authority(&self) -> Result<Authority, BadConfig> {
        let (certificate, key) = (read(&self.authority)?, read(&self.authority_key)?);
        Ok(Authority::load(self.fabric, &certificate, &key)?)
    }

    /// The manager's own key.
    ///
    /// # Errors
    /// Its file cannot be read, or has none.
    pub fn key(&self) -> Result<NodeKey, BadConfig> {
        read_key(&read(&self.key)?).ok_or_else(|| BadConfig::Key { path: self.key.clone() })
    }

    /// That of a fabric which is being founded.
    pub(super) fn first(fabric: FabricId, options: &Options) -> Self {
        let mut names: Vec<String> = options.names.clone();
        // Of all the addresses of loopback, names of this machine mean two.
        let ip = options.listen.ip();
        if names.is_empty() && !ip.is_unspecified() && !OWN_NAMES.contains(&ip.to_string().as_str()) {
            names.push(ip.to_string());
        }
        names.extend(OWN_NAMES.map(str::to_owned));
        let host = names.first().cloned().unwrap_or_default();
        Self {
            fabric,
            listen: vec![options.listen],
            urls: vec![url(&host, options.listen.port())],
            names,
            state: state(),
            authority: certificate(),
            authority_key: authority_key(),
            key: manager_key(),
            connections: CONNECTIONS,
        }
    }

    /// Its file.
    pub(super) fn text(&self) -> String {
        let list = |items: Vec<String>| items.iter().map(|item| quoted(item)).collect::<Vec<_>>().join(", ");
        format!(
            "\
# The manager of a fabric. Read by `causeway manager --config` when it starts.

# The fabric. It never changes: log, certificates and tokens are of this one.
fabric = {fabric}

# Where it listens. 127.0.0.1 is heard on this machine only; for nodes on other machines name an address
# that they reach, such as \"10.0.0.1:7443\", or \"0.0.0.0:7443\" for all that this machine has.
listen = [{listen}]

# Host names and addresses by which clients and nodes call it: its certificate is good for these. It renews
# that by itself.
names = [{names}]

# What join tokens say, so that nodes find it. Hosts of these stand in `names`.
urls = [{urls}]

# Connections at once, of nodes and clients.
connections = {connections}

# The folder of its log, and its keys. Paths begin in the folder of this file.
state = \"state\"
authority = \"authority.pem\"
authority_key = \"authority.key\"
key = \"manager.key\"
",
            fabric = quoted(&self.fabric.to_string()),
            listen = list(self.listen.iter().map(SocketAddr::to_string).collect()),
            names = list(self.names.clone()),
            urls = list(self.urls.clone()),
            connections = self.connections,
        )
    }
}

/// The URL of a manager at a host name or address.
fn url(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("https://[{address}]:{port}"),
        _ => format!("https://{host}:{port}"),
    }
}

/// A text as TOML has it.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

fn read(path: &Path) -> Result<String, BadConfig> {
    std::fs::read_to_string(path).map_err(|error| BadConfig::File { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(change: impl Fn(String) -> String) -> Result<Config, BadConfig> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manager.toml");
        let options = Options { names: vec!["fe80::7".to_owned()], ..Options::default() };
        std::fs::write(&path, change(Config::first(FabricId([5; 16]), &options).text())).unwrap();
        Config::load(&path)
    }

    #[test]
    fn a_file_says_what_was_written() {
        let config = said(|text| text).unwrap();
        assert_eq!(config.names, ["fe80::7", "localhost", "127.0.0.1", "::1"]);
        assert_eq!(config.urls, ["https://[fe80::7]:7443"]);
        assert_eq!((config.fabric, config.connections), (FabricId([5; 16]), CONNECTIONS));
        assert!(config.state.ends_with("state") && config.state.is_absolute());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let told = |from: &'static str, to: &'static str| {
            said(|text| text.replace(from, to)).unwrap_err().to_string()
        };
        assert!(told("https://", "http://").contains("begins with `https://`"));
        assert!(told("connections =", "conections =").contains("conections"));
        assert!(told("listen = [", "listen = [] # [").contains("one entry at least"));
        assert!(told("127.0.0.1:7443\"]", "here\"]").contains("listen"));
    }
}
