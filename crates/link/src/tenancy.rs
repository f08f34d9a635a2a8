//! Who has a function, and who has had it last.

use base::ids::{LifeId, NodeId};
use base::ledger::Layout;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::name::Name;

/// Who has used a function last: its number is raised whenever another life than before takes the function. A borrower
/// that finds its own number unchanged knows that nobody has written in between, whatever became of the lender
/// meanwhile. The lender's agent makes it durable before it has an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Layout, Serialize, Deserialize)]
pub struct Tenancy {
    /// The upper half counts the changes, the lower one is random, of the lender's life that has counted or of the
    /// content that has come: a lender whose state folder was restored never comes to a number again that stood for
    /// something else. 0 while nobody has had the function.
    pub number: u64,
    /// Whose it is, or was.
    pub node: NodeId,
    /// In which life. Two nodes that were started from copies of one state folder are told apart by that.
    pub life: LifeId,
    /// Its name, for those who are refused.
    pub name: Name,
    /// It has not given the function back: a lender that is started anew keeps it for that node for the hold time.
    pub is_held: bool,
}

impl Tenancy {
    /// The tenancy once this life of `node` has the function, at a lender that is in the life `lender`.
    pub fn taken_by(self, node: NodeId, life: LifeId, name: Name, lender: LifeId) -> Self {
        let same = self.number != 0 && (self.node, self.life) == (node, life);
        let number = if same { self.number } else { self.next_number(lender) };
        Self { number, node, life, name, is_held: true }
    }

    fn next_number(self, drawn: LifeId) -> u64 {
        let [a, b, c, d, ..] = drawn.0;
        ((self.number >> 32) + 1).min(u32::MAX.into()) << 32 | u64::from(u32::from_le_bytes([a, b, c, d]))
    }

    /// The tenancy once its node has given the function back.
    #[must_use]
    pub fn given_back(self) -> Self {
        Self { is_held: false, ..self }
    }

    /// The function begins with other content than it had, for which this was `drawn`. To whoever has used it that is
    /// as if another node had; it stays theirs.
    #[must_use]
    pub fn renewed(self, drawn: LifeId) -> Self {
        let number = if self.number == 0 { 0 } else { self.next_number(drawn) };
        Self { number, ..self }
    }
}

/// A [`Tenancy`] as it lies in the ledger. All zeroes: nobody's.
#[derive(Clone, Copy, PartialEq, FromBytes, IntoBytes, Immutable, Layout)]
#[repr(C)]
pub(crate) struct TenancyWords {
    number: u64,
    life: LifeId,
    name: [u8; 32],
    node: NodeId,
    /// 0 or 1.
    is_held: [u8; 4],
}

impl From<Tenancy> for TenancyWords {
    fn from(tenancy: Tenancy) -> Self {
        let Tenancy { number, node, life, name, is_held } = tenancy;
        Self { number, node, life, name: name.to_bytes(), is_held: u32::from(is_held).to_le_bytes() }
    }
}

impl From<TenancyWords> for Tenancy {
    fn from(words: TenancyWords) -> Self {
        let TenancyWords { number, node, life, name, is_held } = words;
        let name = Name::from_bytes(name);
        Self { number, node, life, name, is_held: is_held != [0; 4] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENDER: LifeId = LifeId([9; 16]);

    fn count(tenancy: Tenancy) -> u64 {
        tenancy.number >> 32
    }

    #[test]
    fn a_tenancy_is_raised_when_another_life_comes_and_only_then() {
        let lives = [1, 2].map(|life| LifeId([life; 16]));
        let (one, two, name) = (NodeId::default(), NodeId::numbered(2), Name::new("one"));
        let first = Tenancy::default().taken_by(one, lives[0], name, LENDER);
        assert_eq!((count(first), first.is_held), (1, true), "zero is a node like any other");
        assert_eq!(first.taken_by(one, lives[0], name, LENDER), first);
        assert_eq!(
            first.given_back().taken_by(one, lives[0], name, LENDER),
            first,
            "nobody was there in between"
        );
        assert_eq!(count(first.taken_by(one, lives[1], name, LENDER)), 2, "a copy is another user");
        let back =
            first.given_back().taken_by(two, lives[1], name, LENDER).taken_by(one, lives[0], name, LENDER);
        assert_eq!(count(back), 3);
        assert_eq!(count(first.renewed(LENDER).taken_by(one, lives[0], name, LENDER)), 2, "other content");
        // From an older table another life of the lender comes to the same count, and to another number.
        let other = LifeId([8; 16]);
        let again =
            first.given_back().taken_by(two, lives[1], name, other).taken_by(one, lives[0], name, other);
        assert_eq!(count(again), count(back));
        assert_ne!(again.number, back.number);
        assert_eq!((Tenancy::default().renewed(LENDER).number, first.renewed(LENDER).is_held), (0, true));
        assert_eq!(Tenancy::from(TenancyWords::from(first)), first);
    }
}
