//! What goes to an address that has answered no challenge: never more than three times of what came from there (RFC
//! 9000 §8.1), and a challenge for each frame.

use std::collections::BTreeMap;

use super::Verdict;

/// Of so many bytes that came, as many times more may go.
const AMPLIFICATION: usize = 3;
const CHALLENGE_BYTES: usize = 128;

/// A peer of the lender, and the rail of an address that it has not proven.
pub(crate) type Unproven = (usize, u8);

/// The bytes for each address that nobody can prove.
#[derive(Default)]
pub(crate) struct Addresses {
    /// What may go there, and what has gone.
    allowed: BTreeMap<Unproven, usize>,
    sent: BTreeMap<Unproven, usize>,
}

impl Addresses {
    /// So many bytes have come from there, and were accepted.
    pub(crate) fn accepted(&mut self, address: Unproven, len: usize) {
        *self.allowed.entry(address).or_default() += len * AMPLIFICATION + CHALLENGE_BYTES;
    }

    /// The same, which had come before: if they are authentic, somebody may ask who is there.
    pub(crate) fn repeated(&mut self, address: Unproven, len: usize) {
        *self.allowed.entry(address).or_default() += CHALLENGE_BYTES.min(len * AMPLIFICATION);
    }

    /// So many go there.
    pub(crate) fn sends(&mut self, address: Unproven, len: usize) -> Verdict {
        let sent = self.sent.entry(address).or_default();
        *sent += len;
        let allowed = self.allowed.get(&address).copied().unwrap_or_default();
        if *sent <= allowed {
            return Ok(());
        }
        let peer = address.0;
        Err(format!("{sent} bytes for peer {peer} went where nothing was answered, not {allowed}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_times_of_what_came_and_a_challenge_for_each_frame() {
        let (mut addresses, address) = (Addresses::default(), (1, 0));
        addresses.accepted(address, 100);
        addresses.sends(address, 428).unwrap();
        addresses.repeated(address, 10);
        addresses.sends(address, 30).unwrap();
        addresses.sends(address, 1).unwrap_err();
        addresses.sends((1, 1), 1).unwrap_err();
    }
}
