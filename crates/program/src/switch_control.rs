//! What a switch can be asked over its channel of control, and the URL that names a switch.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use base::ids::BASE32;
use node::PublicKey;
use serde::{Deserialize, Serialize};

use crate::status::SwitchPartition;

const SCHEME: &str = "causeway-switch://";
/// Behind the key, in its text: the beginning of the id that follows from it.
const CHECK: usize = 3;
const CODED: usize = 32 + CHECK;

/// An order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case", deny_unknown_fields)]
pub enum Order {
    /// Tell of the partitions.
    Show {},
    /// These are of who asks from now on.
    Take {
        /// Their names.
        partitions: Vec<String>,
        /// Greater than the present ones.
        epoch: u64,
    },
    /// These ports are in this partition from now on, all or none.
    Move {
        /// Their names.
        ports: Vec<String>,
        /// Its name.
        to: String,
        /// By which epochs who asks has this one, and those that the ports are in.
        epochs: BTreeMap<String, u64>,
    },
    /// This is behind a port over UDP from now on.
    Peer {
        /// The port's name.
        port: String,
        /// Its address.
        peer: SocketAddr,
        /// By which epoch who asks has the partition that the port is in, among others.
        epochs: BTreeMap<String, u64>,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// It is done; these are the partitions now.
    Done {
        /// All of them.
        partitions: Vec<SwitchPartition>,
    },
    /// It is not.
    Refused {
        /// A sentence.
        why: String,
    },
}

/// Where a switch can be asked, and the key that it has: `causeway-switch://KEY@ADDR:PORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchUrl {
    /// Nobody else can answer.
    pub key: PublicKey,
    /// Where it listens.
    pub at: SocketAddr,
}

impl fmt::Display for SwitchUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut coded = [0; CODED];
        coded[..32].copy_from_slice(&self.key.0);
        coded[32..].copy_from_slice(&self.key.id().0[..CHECK]);
        write!(f, "{SCHEME}{}@{}", BASE32.encode(&coded), self.at)
    }
}

impl FromStr for SwitchUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("a switch is named as {SCHEME}KEY@ADDR:PORT, which it prints when it starts");
        let (key, at) = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('@')).ok_or_else(form)?;
        let coded = BASE32.decode(key.as_bytes()).ok().filter(|coded| coded.len() == CODED);
        let coded = coded.ok_or("the key of the switch was not copied as a whole")?;
        let mut public = PublicKey::default();
        public.0.copy_from_slice(&coded[..32]);
        if coded[32..] != public.id().0[..CHECK] || !public.is_usable() {
            return Err("the key of the switch has a slip".to_owned());
        }
        Ok(Self { key: public, at: at.parse().map_err(|_| form())? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::NodeKey;

    #[test]
    fn a_url_comes_back_and_a_slip_shows() {
        let url = SwitchUrl { key: NodeKey::new([7; 32]).public(), at: "[fd00::1]:7412".parse().unwrap() };
        let text = url.to_string();
        assert_eq!(text.parse(), Ok(url));
        let key = SCHEME.len()..text.find('@').unwrap();
        for at in key.clone() {
            let other = if &text[at..=at] == "y" { "x" } else { "y" };
            let wrong = format!("{}{other}{}", &text[..at], &text[at + 1..]);
            assert!(wrong.parse::<SwitchUrl>().is_err(), "{wrong}");
        }
        let short = format!("{SCHEME}{}@10.0.0.1:1", &text[key.start..key.end - 1]);
        assert!(short.parse::<SwitchUrl>().unwrap_err().contains("as a whole"));
        for wrong in ["", "causeway://x@1.2.3.4:5", "causeway-switch://x", &text.replace("7412", "")] {
            assert!(wrong.parse::<SwitchUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_order_that_this_version_does_not_know_is_none() {
        let order = Order::Take { partitions: vec!["red".to_owned()], epoch: 3 };
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
        for wrong in ["{}", r#"{"order":"drop"}"#, r#"{"order":"show","more":1}"#, "[[[["] {
            assert!(serde_json::from_str::<Order>(wrong).is_err(), "{wrong}");
        }
    }
}
