//! The name of a node, as people read it.

use base::ledger::Layout;
use serde::{Deserialize, Serialize};

/// A name of at most 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Layout, Serialize, Deserialize)]
pub struct Name([u8; 32]);

impl Name {
    /// The first 32 bytes of `name`, cut at a character.
    pub fn new(name: &str) -> Self {
        let end = (0..=name.len().min(32)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        let mut bytes = [0; 32];
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        Self(bytes)
    }

    /// A name as it lies in a message.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// As it lies in a message: filled up with zeroes.
    pub fn to_bytes(self) -> [u8; 32] {
        self.0
    }
}

impl core::fmt::Display for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(32);
        // A peer chose the bytes, and they end in terminals and logs.
        for character in String::from_utf8_lossy(&self.0[..end]).chars() {
            core::fmt::Write::write_char(f, if character.is_control() { '?' } else { character })?;
        }
        Ok(())
    }
}

impl core::fmt::Debug for Name {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{self}")
    }
}
