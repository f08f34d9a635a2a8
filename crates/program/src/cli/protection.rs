//! How frames are protected.

use clap::{Args, ValueEnum};
use node::Protection;

/// How frames are protected, as far as one side has a say.
#[derive(Debug, Clone, Default, Args)]
pub struct ProtectionArgs {
    /// Do not encrypt; only where both sides say so
    #[arg(long)]
    pub insecure: bool,
    /// Encrypt with nothing but this: aes-256-gcm [default: AEGIS-128X2 where both sides have instructions for AES,
    /// else aes-256-gcm]
    #[arg(long, value_enum, value_name = "CIPHER", conflicts_with = "insecure", hide_possible_values = true)]
    pub cipher: Option<OnlyCipher>,
}

/// A cipher that one side can insist on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnlyCipher {
    /// AES-256-GCM.
    #[value(name = "aes-256-gcm")]
    Aes256Gcm,
}

impl ProtectionArgs {
    /// What this side accepts.
    pub fn protection(&self) -> Protection {
        protection(self.insecure, self.cipher)
    }
}

/// What a side accepts that is `insecure`, or insists on a cipher, or neither.
pub(crate) fn protection(insecure: bool, cipher: Option<OnlyCipher>) -> Protection {
    match (insecure, cipher) {
        (true, _) => Protection::Insecure,
        (false, Some(OnlyCipher::Aes256Gcm)) => Protection::Aes256Gcm,
        (false, None) => Protection::Aegis,
    }
}
