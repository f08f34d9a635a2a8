//! X25519 (RFC 7748 §5) for Noise, and what a simulation remembers of it.
//!
//! Both ends of a simulated handshake run in one thread, frames are repeated, and node keys stay the same: nearly all
//! of a simulation's time would go into agreements that it has computed before.

use core::cell::RefCell;
use std::collections::BTreeMap;

use snow::Error;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Dh, Random};

use crate::identity::KEY_BYTES;

type Bytes = [u8; KEY_BYTES];

/// Public keys and agreements that are remembered: 10 MiB. Then it begins anew.
const REMEMBERED: usize = 1 << 16;

thread_local! {
    static MEMO: RefCell<Option<Memo>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Memo {
    /// By private key.
    public: BTreeMap<Bytes, Bytes>,
    /// By both public keys, the smaller one first.
    agreed: BTreeMap<[Bytes; 2], Bytes>,
}

/// From now on this thread remembers what it computes: for simulations only, since secrets stay in memory.
pub fn remember_agreements() {
    MEMO.with_borrow_mut(|memo| _ = memo.get_or_insert_default());
}

/// Finds what is remembered, or computes and remembers it.
fn remembered<K: Ord>(
    map: fn(&mut Memo) -> &mut BTreeMap<K, Bytes>,
    key: K,
    compute: impl FnOnce() -> Option<Bytes>,
) -> Option<Bytes> {
    MEMO.with_borrow_mut(|memo| {
        let Some(memo) = memo else { return compute() };
        let map = map(memo);
        if let Some(known) = map.get(&key) {
            return Some(*known);
        }
        let found = compute()?;
        if map.len() == REMEMBERED {
            map.clear();
        }
        map.insert(key, found);
        Some(found)
    })
}

/// The primitive of `snow`, behind what is remembered.
struct X25519 {
    plain: Box<dyn Dh>,
    /// It has the private key: the public one was not remembered.
    is_set: bool,
    private: Bytes,
    public: Bytes,
}

/// A key pair that is to be set or generated.
pub(crate) fn x25519() -> Box<dyn Dh> {
    let (private, public) = (Bytes::default(), Bytes::default());
    Box::new(X25519 { plain: plain(), is_set: false, private, public })
}

fn plain() -> Box<dyn Dh> {
    let plain = DefaultResolver.resolve_dh(&DHChoice::Curve25519);
    plain.expect("snow is built with its default resolver, which has Curve25519")
}

fn plain_with(private: &Bytes) -> Box<dyn Dh> {
    let mut pair = plain();
    pair.set(private);
    pair
}

impl Dh for X25519 {
    fn name(&self) -> &'static str {
        self.plain.name()
    }

    fn pub_len(&self) -> usize {
        KEY_BYTES
    }

    fn priv_len(&self) -> usize {
        KEY_BYTES
    }

    fn set(&mut self, private: &[u8]) {
        self.private.copy_from_slice(private);
        let Self { plain, is_set, private, public } = self;
        *is_set = false;
        let compute = || {
            plain.set(private);
            *is_set = true;
            plain.pubkey().try_into().ok()
        };
        *public = remembered(|memo| &mut memo.public, *private, compute).unwrap_or_default();
    }

    fn generate(&mut self, random: &mut dyn Random) -> Result<(), Error> {
        let mut private = Bytes::default();
        random.try_fill_bytes(&mut private)?;
        self.set(&private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        &self.private
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let theirs: Bytes = *public.first_chunk().ok_or(Error::Dh)?;
        let compute = || {
            let (mut agreed, mut fresh) = (Bytes::default(), None);
            let pair = if self.is_set { &self.plain } else { fresh.insert(plain_with(&self.private)) };
            pair.dh(&theirs, &mut agreed).ok().map(|()| agreed)
        };
        let pair = [self.public.min(theirs), self.public.max(theirs)];
        let agreed = remembered(|memo| &mut memo.agreed, pair, compute).ok_or(Error::Dh)?;
        out.get_mut(..KEY_BYTES).ok_or(Error::Dh)?.copy_from_slice(&agreed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: u8) -> Box<dyn Dh> {
        let mut pair = x25519();
        pair.set(&[number; KEY_BYTES]);
        pair
    }

    fn agree(one: &dyn Dh, public: &[u8]) -> Bytes {
        let mut agreed = Bytes::default();
        one.dh(public, &mut agreed).unwrap();
        agreed
    }

    /// Every pair of keys, and one that nobody has the private half of, twice.
    fn all() -> Vec<Bytes> {
        let pairs: Vec<_> = (1..6).chain(1..6).map(pair).collect();
        let publics: Vec<_> =
            pairs.iter().map(|pair| pair.pubkey().to_vec()).chain([vec![255; 32]]).collect();
        pairs.iter().flat_map(|one| publics.iter().map(|public| agree(&**one, public))).collect()
    }

    #[test]
    fn what_is_remembered_is_what_would_be_computed() {
        let computed = all();
        remember_agreements();
        assert_eq!((all(), all()), (computed.clone(), computed));
        let remembered = MEMO.with_borrow(|memo| memo.as_ref().map(|memo| memo.agreed.len()));
        assert_eq!(
            remembered,
            Some(20),
            "each two have one agreement, and each its own with itself and the odd one"
        );
    }
}
