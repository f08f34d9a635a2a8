//! A short number that stands for a long text or record.

/// FNV-1a (Fowler, Noll, Vo), 64 bits: against mistakes, not against intent, for whoever chooses the bytes can choose
/// two texts of one number. So it is nothing for secrets, keys or what strangers send. Its results are kept in files
/// and seen by hosts: it never changes.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x100_0000_01b3;
    bytes.iter().fold(OFFSET_BASIS, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the test vectors of FNV's authors.
    #[test]
    fn known_texts_have_known_numbers() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
