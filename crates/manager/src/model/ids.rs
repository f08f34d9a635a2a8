use core::fmt;
use core::str::FromStr;

use base::ids::{BASE32, DomainId, NodeId};
use serde::{Deserialize, Serialize};

macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident, $len:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&BASE32.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = &'static str;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let bytes = BASE32.decode(text.as_bytes()).ok();
                let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
                bytes.map(Self).ok_or(concat!("no ", stringify!($name), ": ", $len, " bytes in base 32"))
            }
        }

        impl TryFrom<String> for $name {
            type Error = &'static str;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }
    };
}

bytes!(
    /// A fabric: random, drawn when it is founded, the same as long as it lives.
    FabricId, 16
);
bytes!(
    /// The public key of a node. That its hash is the node's id is checked by whoever has proven the key.
    PublicKey, 32
);
bytes!(
    /// The hash of a token. The token itself is nowhere in the manager; whoever checks one hashes it first.
    TokenHash, 32
);
bytes!(
    /// A request of a client: random, the same each time that it is repeated.
    RequestId, 16
);

/// Milliseconds since 1970, UTC. Entries carry it for people; nothing about safety follows from it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct WallTime(pub u64);

impl WallTime {
    /// So many seconds later.
    #[must_use]
    pub const fn plus_s(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1000)))
    }

    /// Whether it is none.
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for WallTime {
    /// As RFC 3339 has it, in UTC and whole seconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400_000, self.0 / 1000 % 86_400);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

impl fmt::Debug for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WallTime({self})")
    }
}

/// The date that is so many days after 1970-01-01, in the Gregorian calendar, whose years begin with March here so that
/// the leap day is the last one.
fn civil(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let from_march_0 = days + 719_468;
    let (era, day_of_era) = (from_march_0 / ERA, from_march_0 % ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// A node's id as text, where serde is asked for it: 32 characters are shorter than a list of 20 numbers.
pub(crate) mod node_text {
    use base::ids::NodeId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(id: &NodeId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<NodeId, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A function by ids, which stay when names change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FunctionKey {
    /// Who lends it.
    #[serde(with = "node_text")]
    pub node: NodeId,
    /// Its number there, as its line names it (`link::FunctionId`).
    pub number: u32,
}

/// Where a function is plugged in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The domain: of a node, or of a virtual machine of it.
    pub domain: DomainId,
    /// The slot there, below [`super::SLOT_NUMBERS`].
    pub slot: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_dates() {
        let told = |seconds: u64| WallTime(seconds * 1000 + 999).to_string();
        assert_eq!(told(0), "1970-01-01T00:00:00Z");
        assert_eq!(told(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(told(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(told(1_709_251_200), "2024-03-01T00:00:00Z");
        assert_eq!(told(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(told(4_107_542_400), "2100-03-01T00:00:00Z");
        assert!(!WallTime(u64::MAX).to_string().is_empty());
    }

    #[test]
    fn bytes_are_what_their_text_says() {
        let hash = TokenHash(core::array::from_fn(|at| (at * 9) as u8));
        assert_eq!(hash.to_string().parse(), Ok(hash));
        let json = serde_json::to_string(&hash).unwrap();
        assert_eq!(serde_json::from_str::<TokenHash>(&json).unwrap(), hash);
        for wrong in ["", "0", "00000000000000000000000000"] {
            assert!(wrong.parse::<TokenHash>().is_err(), "{wrong}");
        }
    }
}
