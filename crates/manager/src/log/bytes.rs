/// Reads numbers one behind the other. What is not there is zero: whoever reads has looked at the length.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let len = N.min(self.0.len());
        taken[..len].copy_from_slice(&self.0[..len]);
        self.0 = &self.0[len..];
        taken
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Whether the last four bytes are the sum of those before.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<4>().is_some_and(|(rest, sum)| crc32c::crc32c(rest) == u32::from_le_bytes(*sum))
}

/// Puts their sum behind bytes.
pub(super) fn seal(bytes: &mut Vec<u8>) {
    let sum = crc32c::crc32c(bytes);
    bytes.extend(sum.to_le_bytes());
}
