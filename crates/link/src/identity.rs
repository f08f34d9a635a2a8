//! Who a node is: a key pair. Its id is a hash of the public key, so nobody can take another's.

use core::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use base::ids::{DomainId, NodeId};
use base::ledger::Layout;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::x25519::x25519;

/// Bytes of a public key, and of a private one (X25519, RFC 7748 §5).
pub const KEY_BYTES: usize = 32;

/// What is hashed before a key, so that an id is never another hash of it.
const ID: &[u8] = b"causeway node id 1";

/// A node's public key. Whoever has it can begin a handshake with the node.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Layout,
    Serialize,
    Deserialize,
)]
#[repr(transparent)]
pub struct PublicKey(pub [u8; KEY_BYTES]);

impl PublicKey {
    /// The id of its node.
    pub fn id(&self) -> NodeId {
        let hash = digest(&SHA256, &[ID, &self.0].concat());
        let mut id = NodeId::default();
        id.0.copy_from_slice(&hash.as_ref()[..NodeId::BYTES]);
        id
    }

    /// Whether it can be anybody's: with a point of low order everybody agrees on zeroes, whoever they are (RFC 7748
    /// §6.1).
    pub fn is_usable(&self) -> bool {
        let mut agreed = [0; KEY_BYTES];
        let mut dh = x25519();
        dh.set(&[1; KEY_BYTES]);
        dh.dh(&self.0, &mut agreed).is_ok() && agreed != [0; KEY_BYTES]
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey(of {})", self.id())
    }
}

/// Whom a borrower calls.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Layout, Serialize, Deserialize)]
pub struct Lender {
    /// Nobody else can answer.
    pub key: PublicKey,
    /// Where it is called until it has been met: switches find it by that.
    pub domain: DomainId,
}

/// 32 bytes that nobody else may see: overwritten when they are dropped, as far as safe code can promise that.
#[derive(Clone, PartialEq, Eq, Layout, Serialize, Deserialize)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Without a reader the stores would be dead ones, and removed.
        core::hint::black_box(&self.0);
    }
}

/// A node's key pair, of which the private half is all that is written down.
#[derive(Clone, PartialEq, Eq, Layout, Serialize, Deserialize)]
#[serde(from = "Secret", into = "Secret")]
pub struct NodeKey {
    private: Secret,
    public: PublicKey,
    id: NodeId,
}

impl NodeKey {
    /// The pair of these 32 secret bytes.
    pub fn new(private: [u8; KEY_BYTES]) -> Self {
        let mut dh = x25519();
        dh.set(&private);
        let mut public = PublicKey::default();
        public.0.copy_from_slice(dh.pubkey());
        Self { private: Secret(private), public, id: public.id() }
    }

    /// One that everybody knows, for tests and simulations.
    pub fn numbered(number: u64) -> Self {
        Self::new(crate::handshake::derive(&[0; 32], number))
    }

    /// For the handshake, and for an agent's card.
    pub fn reveal(&self) -> &[u8; KEY_BYTES] {
        &self.private.0
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Itself as a lender, in this domain.
    pub fn lends_in(&self, domain: DomainId) -> Lender {
        Lender { key: self.public, domain }
    }

    /// The node's id.
    pub fn id(&self) -> NodeId {
        self.id
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey(of {})", self.id)
    }
}

impl From<Secret> for NodeKey {
    fn from(private: Secret) -> Self {
        Self::new(private.0)
    }
}

impl From<NodeKey> for Secret {
    fn from(key: NodeKey) -> Self {
        key.private
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7748 §6.1: Bob's pair.
    #[test]
    fn a_pair_is_one_of_x25519() {
        let bytes = |text: &str| -> [u8; KEY_BYTES] {
            core::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
        };
        let key = NodeKey::new(bytes("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"));
        let public = bytes("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        assert_eq!(key.public(), PublicKey(public));
    }

    #[test]
    fn a_point_of_low_order_is_nobodys_key() {
        let [zero, one] = [0, 1].map(|first| {
            let mut point = PublicKey::default();
            point.0[0] = first;
            point
        });
        // The order of the field, and one more: other ways to write these two.
        let mut order = PublicKey([0xff; KEY_BYTES]);
        (order.0[0], order.0[KEY_BYTES - 1]) = (0xed, 0x7f);
        let mut more = order;
        more.0[0] += 1;
        assert!([zero, one, order, more].iter().all(|point| !point.is_usable()));
        assert!((0..20).all(|number| NodeKey::numbered(number).public().is_usable()));
    }

    #[test]
    fn nobody_sees_a_private_key_by_accident_and_ids_differ_with_keys() {
        let (one, two) = (NodeKey::numbered(1), NodeKey::numbered(2));
        assert_eq!((one.id(), one.public()), (one.public().id(), NodeKey::numbered(1).public()));
        assert!(one.id() != two.id() && !one.id().is_nobody());
        assert_eq!(format!("{one:?}"), format!("NodeKey(of {})", one.id()));
    }
}
