//! What protects frames: which ciphers an end accepts, and which one two ends agree on.

use base::coded;
use base::ledger::Layout;
use serde::{Deserialize, Serialize};

/// What one end accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Layout, Serialize, Deserialize)]
pub enum Protection {
    /// Frames are sealed with AEGIS-128X2 if the other end can, else with AES-256-GCM. For processors with instructions
    /// for AES: without them AEGIS is slow, and what it does may be seen in its time.
    #[default]
    Aegis,
    /// Frames are sealed with AES-256-GCM.
    Aes256Gcm,
    /// Frames are not sealed, only summed up; both ends must say so.
    Insecure,
}

/// What protects the frames of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cipher {
    /// No protection: a CRC32C.
    Crc32c = 1,
    /// AES-256-GCM (NIST SP 800-38D).
    Aes256Gcm = 2,
    /// AEGIS-128X2 with tags of 16 bytes (draft-irtf-cfrg-aegis-aead §5).
    Aegis128X2 = 3,
}

/// What protects frames under a set of keys, as the ledger has it: by the number of the cipher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Suite {
    /// Nothing was agreed on.
    Nothing,
    /// [`Cipher::Crc32c`].
    Crc32c,
    /// [`Cipher::Aes256Gcm`].
    Aes256Gcm,
    /// [`Cipher::Aegis128X2`].
    Aegis128X2,
}
coded!(Suite: Nothing, Crc32c, Aes256Gcm, Aegis128X2);

/// Ciphers, as bits of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ciphers(pub(crate) u8);

impl Protection {
    /// Whether frames are sealed.
    pub fn is_sealed(self) -> bool {
        self != Self::Insecure
    }

    pub(crate) fn ciphers(self) -> Ciphers {
        match self {
            Self::Aegis => Ciphers::of(&[Cipher::Aegis128X2, Cipher::Aes256Gcm]),
            Self::Aes256Gcm => Ciphers::of(&[Cipher::Aes256Gcm]),
            Self::Insecure => Ciphers::of(&[Cipher::Crc32c]),
        }
    }
}

impl Cipher {
    /// Best first.
    pub(crate) const ALL: [Self; 3] = [Self::Aegis128X2, Self::Aes256Gcm, Self::Crc32c];

    /// The cipher of this number, as messages and the ledger have it.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|cipher| *cipher as u8 == number)
    }

    /// As `status` and configuration files name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aegis128X2 => "aegis-128x2",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::Crc32c => "none",
        }
    }
}

impl Suite {
    /// The cipher, if one was agreed on.
    pub(crate) fn cipher(self) -> Option<Cipher> {
        Cipher::from_number(self as u8)
    }
}

impl From<Option<Cipher>> for Suite {
    fn from(cipher: Option<Cipher>) -> Self {
        match cipher {
            None => Self::Nothing,
            Some(Cipher::Crc32c) => Self::Crc32c,
            Some(Cipher::Aes256Gcm) => Self::Aes256Gcm,
            Some(Cipher::Aegis128X2) => Self::Aegis128X2,
        }
    }
}

impl Ciphers {
    fn of(ciphers: &[Cipher]) -> Self {
        Self(ciphers.iter().fold(0, |bits, cipher| bits | 1 << *cipher as u8))
    }

    pub(crate) fn has(self, cipher: Cipher) -> bool {
        self.0 & 1 << cipher as u8 != 0
    }

    /// The best cipher that is in both; unknown bits are of a later version.
    pub(crate) fn best_of_both(self, other: Self) -> Option<Cipher> {
        Cipher::ALL.into_iter().find(|cipher| self.has(*cipher) && other.has(*cipher))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ends_agree_on_the_best_that_both_accept() {
        use Protection::{Aegis, Aes256Gcm, Insecure};
        let agreed = |one: Protection, two: Protection| one.ciphers().best_of_both(two.ciphers());
        assert_eq!(agreed(Aegis, Aegis), Some(Cipher::Aegis128X2));
        assert_eq!(agreed(Aegis, Aes256Gcm), Some(Cipher::Aes256Gcm));
        assert_eq!(agreed(Aes256Gcm, Aegis), Some(Cipher::Aes256Gcm));
        assert_eq!(agreed(Insecure, Insecure), Some(Cipher::Crc32c));
        for sealed in [Aegis, Aes256Gcm] {
            assert_eq!((agreed(sealed, Insecure), agreed(Insecure, sealed)), (None, None));
        }
        // What a later version may add is no hindrance.
        assert_eq!(Aegis.ciphers().best_of_both(Ciphers(u8::MAX)), Some(Cipher::Aegis128X2));
    }

    #[test]
    fn numbers_of_ciphers_are_read_back() {
        for cipher in Cipher::ALL {
            assert_eq!(Cipher::from_number(cipher as u8), Some(cipher));
        }
        assert_eq!((Cipher::from_number(0), Cipher::from_number(4)), (None, None));
    }

    #[test]
    fn the_ledger_has_ciphers_by_their_numbers() {
        for cipher in Cipher::ALL {
            let suite = Suite::from(Some(cipher));
            assert_eq!((suite as u8, suite.cipher()), (cipher as u8, Some(cipher)));
        }
        assert_eq!((Suite::from(None) as u8, Suite::Nothing.cipher()), (0, None));
    }
}
