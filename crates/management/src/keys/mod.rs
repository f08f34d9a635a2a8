//! Who has which key, and who may what: what two X25519 keys share and proofs under it, tokens, and the one word that a
//! node joins with.
//!
//! Nothing here is shown by `Debug`: who wants a secret as text asks for it.

mod join;
mod token;

use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base::ids::NodeId;
pub use link::{NodeKey, Secret};
use manager::model::PublicKey;
use thiserror::Error;

pub use join::{BadJoinToken, JoinToken, MANAGERS_MAX};
pub use token::{BadToken, Token};

/// Two keys share nothing that only they know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "the public key is nobody's (its secret would be known to all): the other side has to make a new key"
)]
pub struct NobodysKey;

/// The public half of a pair, as the manager's documents have it.
pub fn public(pair: &NodeKey) -> PublicKey {
    PublicKey(pair.public().0)
}

/// The id of the node that has this key.
pub fn node_id(key: PublicKey) -> NodeId {
    link::PublicKey(key.0).id()
}

/// A pair of keys that nobody has had before.
pub fn new_pair() -> NodeKey {
    NodeKey::new(random())
}

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The generator of the library is seeded by the kernel, and does without it only by ending the process.
    aws_lc_rs::rand::fill(&mut bytes).expect("the library's generator does not fail");
    bytes
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// What only whoever has one of the two private keys knows (RFC 7748 §6.1).
///
/// # Errors
/// With a point of low order everybody shares zeroes.
pub fn shared(pair: &NodeKey, other: PublicKey) -> Result<Secret, NobodysKey> {
    let private = PrivateKey::from_private_key(&X25519, pair.reveal()).map_err(|_| NobodysKey)?;
    let other = UnparsedPublicKey::new(&X25519, other.0);
    let agreed = agreement::agree(&private, other, NobodysKey, |bytes| {
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| NobodysKey)?;
        Ok(Secret(bytes))
    })?;
    if agreed.0 == [0; 32] { Err(NobodysKey) } else { Ok(agreed) }
}

/// HMAC-SHA256 of `text` under a secret: only who has that can say it. What `text` has to contain so that it is good
/// once, for one purpose, is said where it is made ([`crate::wire::proof_text`], [`crate::shapes::join_text`]).
pub fn prove(shared: &Secret, text: &[u8]) -> [u8; 32] {
    let mut proof = [0; 32];
    proof.copy_from_slice(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &shared.0), text).as_ref());
    proof
}

/// Whether `proof` is [`prove`]'s, in constant time.
pub fn is_proof(shared: &Secret, text: &[u8], proof: &[u8]) -> bool {
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &shared.0), text, proof).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> [u8; 32] {
        core::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
    }

    /// RFC 7748 §6.1: Bob's private key, Alice's public one, and what they share.
    #[test]
    fn two_pairs_share_what_the_standard_says() {
        let bob = NodeKey::new(bytes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
        let alice = PublicKey(bytes("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"));
        let agreed = bytes("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
        assert_eq!(shared(&bob, alice).unwrap().0, agreed);
        let (one, two) = (new_pair(), new_pair());
        assert_eq!(shared(&one, public(&two)), shared(&two, public(&one)));
        assert_ne!(shared(&one, public(&two)), shared(&one, public(&one)));
    }

    #[test]
    fn a_point_of_low_order_shares_nothing() {
        let mut one = PublicKey([0; 32]);
        assert_eq!(shared(&new_pair(), one), Err(NobodysKey));
        one.0[0] = 1;
        assert_eq!(shared(&new_pair(), one), Err(NobodysKey));
    }

    /// The text of RFC 4231 §4.2 under a key of 32 bytes, as Python's `hmac` has it.
    #[test]
    fn a_proof_is_of_one_secret_and_one_text() {
        let secret = Secret([0x0b; 32]);
        let proof = prove(&secret, b"Hi There");
        assert_eq!(proof, bytes("198a607eb44bfbc69903a0f1cf2bbdc5ba0aa3f3d9ae3c1c7a3b1696a0b68cf7"));
        assert!(is_proof(&secret, b"Hi There", &proof));
        assert!(!is_proof(&Secret([1; 32]), b"Hi There", &proof) && !is_proof(&secret, b"Hi", &proof));
        assert!(!is_proof(&secret, b"Hi There", &proof[..31]) && !is_proof(&secret, b"Hi There", &[]));
    }

    #[test]
    fn the_id_of_a_key_is_the_nodes() {
        let pair = new_pair();
        assert_eq!(node_id(public(&pair)), pair.id());
        assert_ne!(new_pair().id(), pair.id());
        assert!(!format!("{:?} {pair:?}", shared(&pair, public(&new_pair()))).contains('['));
    }
}
