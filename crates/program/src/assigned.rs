//! A function that a manager has assigned to a slot of this node: what a borrower has to know of it. It needs no
//! secret, for its lender's table says that it is this node's.
//!
//! ```text
//! assigned:GENERATION:NUMBER:SLOT:GROUP:DOMAIN:KEY:FUNCTION[:ON_SILENCE]@[ADDR:PORT[,ADDR:PORT]]
//! ```
//! Without ON_SILENCE it is what nobody has said otherwise.

use std::fmt;
use std::str::FromStr;

use ::io::address::Addresses;
use base::ids::{BASE32, DomainId, Group, LoanGeneration};
use manager::model::OnSilence;
use node::{FunctionId, Lender, PublicKey};

use crate::line::FunctionName;

/// What every text of one begins with; no line does.
pub const SCHEME: &str = "assigned:";

/// A function that is assigned to a slot of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assigned {
    /// By which generation: more than zero.
    pub generation: LoanGeneration,
    /// The function, as its lender's streams name it.
    pub number: FunctionId,
    /// Which slot of its domain it is assigned to.
    pub slot: u16,
    /// In which group.
    pub group: Group,
    /// Who lends it.
    pub lender: Lender,
    /// How its lender calls it.
    pub function: FunctionName,
    /// What becomes of it when its lender is silent.
    pub on_silence: OnSilence,
    /// Where its lender was last; none: nobody knows yet.
    pub addresses: Addresses,
}

impl Assigned {
    /// Whether both are the same assignment, wherever the lender is, and whatever becomes of it in silence: that is
    /// told later to a node whose version did not know it.
    pub fn is_same(&self, other: &Self) -> bool {
        let (addresses, on_silence) = (Addresses::NONE, OnSilence::default());
        let plain = |it: &Self| Self { addresses, on_silence, ..it.clone() };
        plain(self) == plain(other)
    }

    /// The same assignment as `news` has it, and where its lender was if that says nothing of it.
    pub fn renewed(&self, news: &Self) -> Self {
        let addresses = if news.addresses.is_empty() { self.addresses } else { news.addresses };
        Self { addresses, ..news.clone() }
    }
}

impl fmt::Display for Assigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, number, slot, group, lender, function, on_silence, addresses } = self;
        let (domain, key) = (lender.domain.0, BASE32.encode(&lender.key.0));
        write!(
            f,
            "{SCHEME}{generation}:{}:{slot}:{group}:{domain}:{key}:{function}:{on_silence}@{addresses}",
            number.0
        )
    }
}

impl FromStr for Assigned {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "it names no function that was assigned";
        let (head, addresses) =
            text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('@')).ok_or(WRONG)?;
        let parts: Vec<&str> = head.split(':').collect();
        let (of, on_silence) = match parts.split_at_checked(7) {
            Some((of, [])) => (of, OnSilence::default()),
            Some((of, [text])) => (of, text.parse().map_err(|_| WRONG)?),
            _ => return Err(WRONG),
        };
        let &[generation, number, slot, group, domain, key, function] = of else { return Err(WRONG) };
        let number_of = |text: &str| text.parse::<u64>().map_err(|_| WRONG);
        let small = |text: &str| number_of(text).and_then(|number| u32::try_from(number).map_err(|_| WRONG));
        let key = BASE32.decode(key.as_bytes()).ok().and_then(|key| <[u8; 32]>::try_from(key).ok());
        let lender = Lender {
            key: PublicKey(key.ok_or(WRONG)?),
            domain: DomainId::try_from(small(domain)?).map_err(|_| WRONG)?,
        };
        let addresses = match addresses {
            "" => Addresses::NONE,
            text => text.parse().map_err(|_| WRONG)?,
        };
        Ok(Self {
            generation: LoanGeneration(number_of(generation)?),
            number: FunctionId(small(number)?),
            slot: slot.parse().map_err(|_| WRONG)?,
            group: Group::new(i64::from(small(group)?)).ok_or(WRONG)?,
            lender,
            function: function.parse().map_err(|_| WRONG)?,
            on_silence,
            addresses,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One with the greatest of numbers.
    pub(crate) fn example() -> Assigned {
        Assigned {
            generation: LoanGeneration(u64::MAX),
            number: FunctionId(u32::MAX),
            slot: 255,
            group: Group(4094),
            lender: Lender { key: PublicKey([9; 32]), domain: DomainId(262_143) },
            function: "nvme0".parse().unwrap(),
            on_silence: OnSilence::Hold { seconds: manager::model::HOLD_MAX_S },
            addresses: "10.0.0.1:7411,2=[fd00::1]:7411".parse().unwrap(),
        }
    }

    #[test]
    fn a_text_brings_back_what_it_was_made_of() {
        let mut assigned = example();
        let text = assigned.to_string();
        assert_eq!(text.parse(), Ok(assigned.clone()), "{text}");
        let elsewhere = assigned.clone();
        assigned.addresses = Addresses::NONE;
        assert_eq!(assigned.to_string().parse(), Ok(assigned.clone()));
        assert!(assigned.is_same(&elsewhere) && assigned != elsewhere);
        assert!(!Assigned { slot: 254, ..assigned.clone() }.is_same(&assigned));
        assert_eq!(elsewhere.renewed(&assigned), elsewhere, "nobody says where it is now");
        let removed = Assigned { on_silence: OnSilence::Remove, ..assigned.clone() };
        assert!(removed.is_same(&assigned));
        assert_eq!(removed.to_string().parse(), Ok(removed));
        // As an earlier version has kept it.
        let plain = Assigned { on_silence: OnSilence::default(), ..assigned.clone() };
        assert_eq!(assigned.to_string().replace(":hold(2592000)", "").parse(), Ok(plain));
        for wrong in [
            "",
            "assigned:",
            "assigned:1:2:3:4:5:6:7@",
            &text[1..],
            &text.replace(":255:", ":65536:"),
            &text.replace("hold(", "keep("),
            &text.replace(":hold(", ":remove:hold("),
        ] {
            assert!(wrong.parse::<Assigned>().is_err(), "{wrong}");
        }
    }
}
