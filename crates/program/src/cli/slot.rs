//! The name of a slot.

use std::fmt;
use std::str::FromStr;

use super::{NodeName, ValueError};

/// `DOMAIN/SLOT`: a slot of a virtual machine that a node knows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotName {
    /// The domain.
    pub domain: NodeName,
    /// The slot in it.
    pub slot: NodeName,
}

impl FromStr for SlotName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parts = text.split_once('/').map(|(domain, slot)| (domain.parse(), slot.parse()));
        match parts {
            Some((Ok(domain), Ok(slot))) => Ok(Self { domain, slot }),
            _ => Err(ValueError::new(format!(
                "`{}` is no slot; write DOMAIN/SLOT with the names of the configuration",
                text.escape_debug()
            ))),
        }
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_two_names() {
        let slot: SlotName = "vm1/disk.0".parse().unwrap();
        assert_eq!((slot.domain.as_str(), slot.slot.as_str()), ("vm1", "disk.0"));
        assert_eq!(slot.to_string(), "vm1/disk.0");
        for wrong in ["", "vm1", "vm1/", "/disk", "a/b/c", "a/ b"] {
            assert!(wrong.parse::<SlotName>().is_err(), "{wrong}");
        }
    }
}
