//! The file with the key that the nodes of a fabric share.

use std::io::Read;
use std::path::Path;

use node::{GroupKey, Secret};

use super::open_regular;

/// Reads a key: 64 hexadecimal digits in the only line.
///
/// # Errors
/// In words, with the file's name.
pub(super) fn read(path: &Path) -> Result<Secret, String> {
    let mut text = String::new();
    let read = open_regular(path).and_then(|file| file.take(1024).read_to_string(&mut text));
    read.map_err(|error| format!("cannot read the group's key from {}: {error}", path.display()))?;
    let digits = text.trim();
    let mut key = Secret([0; GroupKey::BYTES]);
    let is_key = digits.len() == 2 * GroupKey::BYTES
        && digits.bytes().zip(0..).all(|(digit, at)| {
            let value = char::from(digit).to_digit(16);
            key.0[at / 2] = key.0[at / 2] << 4 | value.unwrap_or_default() as u8;
            value.is_some()
        });
    let wrong = || {
        format!(
            "{} holds no key for a group: that is 64 hexadecimal digits, as `openssl rand -hex 32` prints them",
            path.display()
        )
    };
    is_key.then_some(key).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_in_a_regular_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fabric.key");
        assert!(read(&path).unwrap_err().starts_with("cannot read the group's key from /"));
        assert!(read(folder.path()).unwrap_err().contains("no regular file"));
        let of = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path)
        };
        let digits = "00".repeat(30);
        let mut expected = Secret([0; 32]);
        expected.0[30..].copy_from_slice(&[0xab, 0x1c]);
        assert_eq!(of(&format!("{digits}aB1c\n")), Ok(expected));
        for wrong in ["", "abc", &format!("{digits}ab1"), &format!("{digits}ab1g"), &format!("{digits}ab1c0")]
        {
            assert!(of(wrong).unwrap_err().contains("fabric.key holds no key"), "{wrong:?}");
        }
    }
}
