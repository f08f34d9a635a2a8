//! The last access that a card has denied, as its agent hears of it.

use fabric::AccessKind;
use pcie::Bdf;

/// An access that was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Who asked, by the id that the owner of the memory knows it by.
    pub requester: Bdf,
    /// The fabric address of a memory request, or the register of a configuration request.
    pub address: u64,
    /// What for.
    pub right: Right,
}

/// What an access was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// A memory read.
    Read,
    /// A memory write.
    Write,
    /// A configuration request.
    Config,
}

impl From<AccessKind> for Right {
    fn from(kind: AccessKind) -> Self {
        match kind {
            AccessKind::Read => Self::Read,
            AccessKind::Write => Self::Write,
        }
    }
}

impl Denial {
    /// Two words, of which the second one knows the first: the agent reads them while a card may write.
    pub(crate) fn encode(self) -> [u64; 2] {
        let right = match self.right {
            Right::Read => 1,
            Right::Write => 2,
            Right::Config => 3,
        };
        [self.address, u64::from(fold(self.address)) << 32 | right << 16 | u64::from(self.requester.0)]
    }

    pub(crate) fn decode([address, rest]: [u64; 2]) -> Option<Self> {
        let right = match rest >> 16 & 0xffff {
            1 => Right::Read,
            2 => Right::Write,
            3 => Right::Config,
            _ => return None,
        };
        let is_whole = rest >> 32 == u64::from(fold(address));
        is_whole.then_some(Self { requester: Bdf(rest as u16), address, right })
    }
}

fn fold(address: u64) -> u32 {
    (address >> 32) as u32 ^ address as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_read_as_a_whole_or_not_at_all() {
        let requester = Bdf::new(1, 2, 3).unwrap();
        let denial = |address, right| Denial { requester, address, right };
        for right in [Right::Read, Right::Write, Right::Config] {
            let it = denial(0x0123_4567_89ab_cdef, right);
            assert_eq!(Denial::decode(it.encode()), Some(it));
        }
        assert_eq!(Denial::decode([0, 0]), None, "there was none");
        let (old, new) = (denial(0x1000, Right::Read).encode(), denial(0x2000, Right::Write).encode());
        assert_eq!(Denial::decode([new[0], old[1]]), None, "the next one is being written");
    }
}
