//! Proof of knowing the key of a loan, outside of frames: for two processes that want to share more than a network.

use aws_lc_rs::hmac;

use crate::handshake::derive;
use crate::seal::KEY_LEN;

/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;

/// What keeps the proofs of one purpose and side from being those of another.
const PURPOSE: u64 = u64::from_le_bytes(*b"proof\0\0\0");

/// The proof of who knows `key` for `what`: an HMAC-SHA256 under a key of its own. `what` must contain something that
/// the other side has just chosen at random, who the two are, and which of them this is.
pub fn prove(key: &[u8; KEY_LEN], what: &[u8]) -> [u8; PROOF_LEN] {
    let mut proof = [0; PROOF_LEN];
    proof.copy_from_slice(hmac::sign(&proof_key(key), what).as_ref());
    proof
}

/// Whether `proof` is the one of who knows `key`, in constant time.
pub fn is_proof(key: &[u8; KEY_LEN], what: &[u8], proof: &[u8; PROOF_LEN]) -> bool {
    hmac::verify(&proof_key(key), what, proof).is_ok()
}

fn proof_key(key: &[u8; KEY_LEN]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, &derive(key, PURPOSE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_key_and_one_thing() {
        let proof = prove(&[1; KEY_LEN], b"one");
        assert!(is_proof(&[1; KEY_LEN], b"one", &proof));
        assert!(!is_proof(&[2; KEY_LEN], b"one", &proof) && !is_proof(&[1; KEY_LEN], b"two", &proof));
        for bit in 0..PROOF_LEN * 8 {
            let mut changed = proof;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_proof(&[1; KEY_LEN], b"one", &changed));
        }
    }
}
