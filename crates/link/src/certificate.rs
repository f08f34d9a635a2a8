//! Certificates of nodes: what the authority of a fabric vouches for, small enough for the first frame of a handshake.
//!
//! ```text
//! version 1 | fabric 16 | key 32 | serial 8 | not before 8 | not after 8 | base 4 | domains 4 | name: length 1, text
//! | groups: count 1, 2 each | signature 64
//! ```
//!
//! Numbers are little endian, times milliseconds since 1970. The signature is Ed25519 (RFC 8032) over the word
//! `causeway node certificate` and all before it. Who checks one knows by the handshake whose key its sender has.
//!
//! A node that belongs to a fabric ([`Members`]) checks what others show. Who shows nothing belongs to no fabric as far
//! as it knows: that node may still have what it has a line of, unless `only_members` says otherwise. Whoever was
//! removed is refused whatever it shows.

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use base::ids::{DomainId, Group, NodeId};
use base::ledger::Layout;
use serde::{Deserialize, Serialize};

use crate::identity::PublicKey;

/// Bytes of the longest certificate: a name of 64 bytes, 64 groups.
pub const CERTIFICATE_MAX: usize = 81 + (1 + NAME_MAX) + (1 + 2 * GROUPS_MAX) + SIGNATURE;
/// What is signed begins with this, so that no other thing that the authority signs is taken for one.
const PURPOSE: &[u8] = b"causeway node certificate";
const VERSION: u8 = 1;
const SIGNATURE: usize = 64;
const NAME_MAX: usize = 64;
const GROUPS_MAX: usize = 64;

/// What the authority of a fabric says of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    /// Which fabric.
    pub fabric: [u8; 16],
    /// The node's public key.
    pub key: PublicKey,
    /// Tells certificates of one node apart.
    pub serial: u64,
    /// It is good from then on, in milliseconds since 1970,
    pub not_before: u64,
    /// and not any more then.
    pub not_after: u64,
    /// The node's domains: the first,
    pub base: u32,
    /// and how many.
    pub domains: u32,
    /// What the node is called, of at most 64 bytes.
    pub name: String,
    /// The groups that it may enter, at most 64.
    pub groups: Vec<Group>,
}

/// A certificate with its signature, as bytes. Empty: none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shown {
    len: u16,
    bytes: [u8; CERTIFICATE_MAX],
}

impl Shown {
    pub(crate) const NONE: Self = Self { len: 0, bytes: [0; CERTIFICATE_MAX] };

    /// `None`: no certificate is so long.
    pub(crate) fn new(parts: &[&[u8]]) -> Option<Self> {
        let mut shown = Self::NONE;
        for part in parts {
            let end = usize::from(shown.len) + part.len();
            shown.bytes.get_mut(shown.len.into()..end)?.copy_from_slice(part);
            shown.len = end as u16;
        }
        Some(shown)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}

impl core::fmt::Debug for Shown {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Shown({} bytes)", self.len)
    }
}

/// What is wrong with a certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Layout, Serialize, Deserialize)]
pub enum Fault {
    /// It is of another fabric.
    OtherFabric,
    /// It was good until then, in milliseconds since 1970.
    Expired {
        /// Until when.
        not_after: u64,
    },
    /// It is good from then on only.
    NotYet {
        /// From when.
        not_before: u64,
    },
    /// The authority has not signed this.
    Forged,
    /// It is another node's.
    OtherKey,
    /// Its node was removed from the fabric.
    Revoked,
    /// There is none, and only members of the fabric are let in.
    Missing,
    /// It does not let its node into this group, or to the domain where it says it is.
    Outside,
}

impl Fault {
    /// Its number, as a verdict on the wire, and the time that goes with it.
    pub fn code(self) -> (u8, u64) {
        match self {
            Self::OtherFabric => (8, 0),
            Self::Expired { not_after } => (9, not_after),
            Self::NotYet { not_before } => (10, not_before),
            Self::Forged => (11, 0),
            Self::OtherKey => (12, 0),
            Self::Revoked => (13, 0),
            Self::Missing => (14, 0),
            Self::Outside => (15, 0),
        }
    }

    /// The fault of this number.
    pub fn from_code(code: u8, time: u64) -> Option<Self> {
        Some(match code {
            8 => Self::OtherFabric,
            9 => Self::Expired { not_after: time },
            10 => Self::NotYet { not_before: time },
            11 => Self::Forged,
            12 => Self::OtherKey,
            13 => Self::Revoked,
            14 => Self::Missing,
            15 => Self::Outside,
            _ => return None,
        })
    }
}

impl Certificate {
    /// What is signed.
    pub fn to_be_signed(&self) -> Vec<u8> {
        [PURPOSE, &self.body()].concat()
    }

    /// With its signature, made over [`Certificate::to_be_signed`].
    pub fn with_signature(&self, signature: &[u8; SIGNATURE]) -> Vec<u8> {
        [&self.body()[..], signature].concat()
    }

    fn body(&self) -> Vec<u8> {
        let mut body = vec![VERSION];
        body.extend(self.fabric);
        body.extend(self.key.0);
        [self.serial, self.not_before, self.not_after].iter().for_each(|it| body.extend(it.to_le_bytes()));
        [self.base, self.domains].iter().for_each(|it| body.extend(it.to_le_bytes()));
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_MAX)];
        body.push(name.len() as u8);
        body.extend(name);
        let groups = &self.groups[..self.groups.len().min(GROUPS_MAX)];
        body.push(groups.len() as u8);
        groups.iter().for_each(|group| body.extend(group.0.to_le_bytes()));
        body
    }

    /// Reads one that this authority (an Ed25519 key) has signed. `None`: it has not, or this is none.
    pub fn read(bytes: &[u8], authority: &[u8; 32]) -> Option<Self> {
        let (body, signature) = bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE)?)?;
        let key = UnparsedPublicKey::new(&ED25519, authority);
        key.verify(&[PURPOSE, body].concat(), signature).ok()?;
        let mut rest = body;
        let [VERSION] = take(&mut rest)? else { return None };
        let (fabric, key) = (take(&mut rest)?, PublicKey(take(&mut rest)?));
        let mut long = || take(&mut rest).map(u64::from_le_bytes);
        let (serial, not_before, not_after) = (long()?, long()?, long()?);
        let mut word = || take(&mut rest).map(u32::from_le_bytes);
        let (base, domains) = (word()?, word()?);
        let [len] = take(&mut rest)?;
        let (name, behind) = rest.split_at_checked(len.into())?;
        let name = core::str::from_utf8(name).ok()?.to_owned();
        rest = behind;
        let [count] = take(&mut rest)?;
        let group = |rest: &mut &[u8]| take(rest).map(|it| Group(u16::from_le_bytes(it)));
        let groups = (0..count).map(|_| group(&mut rest)).collect::<Option<Vec<_>>>()?;
        let it = Self { fabric, key, serial, not_before, not_after, base, domains, name, groups };
        rest.is_empty().then_some(it)
    }

    fn has_domain(&self, domain: DomainId) -> bool {
        domain.0.checked_sub(self.base).is_some_and(|at| at < self.domains)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (bytes, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*bytes)
}

/// What a node that belongs to a fabric knows of it.
#[derive(Clone, PartialEq, Eq, Debug, Layout, Serialize, Deserialize)]
pub struct Members {
    /// Which fabric.
    pub fabric: [u8; 16],
    /// The public key of its authority (Ed25519).
    pub authority: [u8; 32],
    /// The node's own certificate, with its signature.
    pub certificate: Box<[u8]>,
    /// Nodes that were removed, in order.
    pub revoked: Box<[NodeId]>,
    /// Whether nothing is lent to nodes that show no certificate, nor borrowed from them.
    pub only_members: bool,
    /// Nodes, in order, that have something of this one because a manager has said so, or that lend it something: they
    /// show one, whatever else counts.
    pub assigned: Box<[NodeId]>,
    /// By how much the clock of the wall, in milliseconds since 1970, is ahead of that of the card.
    pub clock_ahead_ms: u64,
}

/// Who shows a certificate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bearer {
    /// By the handshake.
    pub(crate) key: PublicKey,
    pub(crate) domain: DomainId,
    pub(crate) group: Group,
    /// This life of it was met already: what has begun goes on, whatever the time.
    pub(crate) is_met: bool,
}

impl Members {
    /// The clock of the wall.
    pub(crate) fn wall(&self, now: base::Instant) -> u64 {
        self.clock_ahead_ms.saturating_add(now.as_nanos() / 1_000_000)
    }

    /// Whether a node was removed.
    pub fn is_revoked(&self, node: NodeId) -> bool {
        self.revoked.binary_search(&node).is_ok()
    }

    /// Why this node has nothing to do with another one that shows this, if so.
    pub(crate) fn judge(&self, now: base::Instant, bearer: Bearer, shown: &[u8]) -> Result<(), Fault> {
        if self.is_revoked(bearer.key.id()) {
            return Err(Fault::Revoked);
        }
        if shown.is_empty() {
            let has_to = !bearer.is_met && self.assigned.binary_search(&bearer.key.id()).is_ok();
            return if self.only_members || has_to { Err(Fault::Missing) } else { Ok(()) };
        }
        // What another authority has signed is another fabric's, by what it says itself.
        if shown.get(1..17).is_some_and(|fabric| fabric != self.fabric) {
            return Err(Fault::OtherFabric);
        }
        let it = Certificate::read(shown, &self.authority).ok_or(Fault::Forged)?;
        if it.key != bearer.key {
            return Err(Fault::OtherKey);
        }
        let Certificate { not_before, not_after, .. } = it;
        match self.wall(now) {
            _ if bearer.is_met => {}
            wall if wall < not_before => return Err(Fault::NotYet { not_before }),
            wall if wall >= not_after => return Err(Fault::Expired { not_after }),
            _ => {}
        }
        let is_inside = it.has_domain(bearer.domain) && it.groups.contains(&bearer.group);
        if is_inside { Ok(()) } else { Err(Fault::Outside) }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
    use base::Instant;

    use super::*;
    use crate::identity::NodeKey;

    pub(crate) const FABRIC: [u8; 16] = [7; 16];

    pub(crate) fn authority(number: u8) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[number; 32]).unwrap()
    }

    /// Good from 1000 s to 2000 s, for domains 64 to 127 and the first group.
    pub(crate) fn certificate(key: PublicKey) -> Certificate {
        Certificate {
            fabric: FABRIC,
            key,
            serial: 5,
            not_before: 1_000_000,
            not_after: 2_000_000,
            base: 64,
            domains: 64,
            name: "store".to_owned(),
            groups: vec![Group::DEFAULT],
        }
    }

    pub(crate) fn signed(certificate: &Certificate, by: &Ed25519KeyPair) -> Vec<u8> {
        let signature = by.sign(&certificate.to_be_signed());
        certificate.with_signature(signature.as_ref().try_into().unwrap())
    }

    /// A member at 1500 s, of the fabric of authority 1.
    pub(crate) fn members(certificate: Vec<u8>) -> Members {
        Members {
            fabric: FABRIC,
            authority: authority(1).public_key().as_ref().try_into().unwrap(),
            certificate: certificate.into(),
            revoked: Box::default(),
            only_members: false,
            assigned: Box::default(),
            clock_ahead_ms: 1_500_000,
        }
    }

    fn key(number: u8) -> PublicKey {
        NodeKey::new([number; 32]).public()
    }

    fn judge(members: &Members, shown: &[u8]) -> Result<(), Fault> {
        let bearer = Bearer { key: key(9), domain: DomainId(70), group: Group::DEFAULT, is_met: false };
        members.judge(Instant::from_nanos(0), bearer, shown)
    }

    #[test]
    fn what_is_signed_is_read_and_the_longest_one_is_as_long_as_that() {
        let longest = Certificate {
            name: "n".repeat(64),
            groups: (1..=64).map(Group).collect(),
            ..certificate(key(9))
        };
        for it in [certificate(key(9)), longest.clone()] {
            let bytes = signed(&it, &authority(1));
            assert_eq!(Certificate::read(&bytes, &members(vec![]).authority), Some(it));
        }
        assert_eq!(signed(&longest, &authority(1)).len(), CERTIFICATE_MAX);
    }

    #[test]
    fn each_fault_is_told_by_its_name() {
        let good = certificate(key(9));
        let by = |it: &Certificate| signed(it, &authority(1));
        let member = members(vec![]);
        assert_eq!(judge(&member, &by(&good)), Ok(()));
        assert_eq!(judge(&member, &[]), Ok(()), "a line is enough");
        assert_eq!(judge(&Members { only_members: true, ..member.clone() }, &[]), Err(Fault::Missing));
        assert_eq!(judge(&member, &signed(&good, &authority(2))), Err(Fault::Forged));
        assert_eq!(judge(&member, &[1]), Err(Fault::Forged));
        assert_eq!(judge(&member, &by(&certificate(key(8)))), Err(Fault::OtherKey));
        let other = Certificate { fabric: [8; 16], ..good.clone() };
        assert_eq!(judge(&member, &signed(&other, &authority(2))), Err(Fault::OtherFabric));
        let outside = Certificate { base: 128, ..good.clone() };
        assert_eq!(judge(&member, &by(&outside)), Err(Fault::Outside));
        let outside = Certificate { groups: vec![Group(2)], ..good.clone() };
        assert_eq!(judge(&member, &by(&outside)), Err(Fault::Outside));
        let revoked = Members { revoked: [key(9).id()].into(), ..member.clone() };
        assert_eq!(judge(&revoked, &by(&good)), Err(Fault::Revoked));
        assert_eq!(judge(&revoked, &[]), Err(Fault::Revoked), "whatever it shows");
    }

    /// A line is enough for a node that belongs to no fabric, but not for what a manager has said.
    #[test]
    fn who_has_something_by_a_manager_shows_a_certificate() {
        let assigned = [key(9).id()].into();
        let member = Members { assigned, ..members(vec![]) };
        assert_eq!(judge(&member, &[]), Err(Fault::Missing));
        assert_eq!(judge(&member, &signed(&certificate(key(9)), &authority(1))), Ok(()));
        let bearer = |key, is_met| Bearer { key, domain: DomainId(70), group: Group::DEFAULT, is_met };
        let judge = |bearer| member.judge(Instant::from_nanos(0), bearer, &[]);
        assert_eq!(judge(bearer(key(8), false)), Ok(()), "another one has nothing by it");
        assert_eq!(judge(bearer(key(9), true)), Ok(()), "what has begun goes on");
    }

    #[test]
    fn time_counts_for_who_is_new_only() {
        let shown = signed(&certificate(key(9)), &authority(1));
        let at = |clock_ahead_ms| Members { clock_ahead_ms, ..members(vec![]) };
        assert_eq!(judge(&at(999_999), &shown), Err(Fault::NotYet { not_before: 1_000_000 }));
        assert_eq!(judge(&at(1_000_000), &shown), Ok(()));
        assert_eq!(judge(&at(1_999_999), &shown), Ok(()));
        assert_eq!(judge(&at(2_000_000), &shown), Err(Fault::Expired { not_after: 2_000_000 }));
        let bearer = Bearer { key: key(9), domain: DomainId(70), group: Group::DEFAULT, is_met: true };
        for clock in [0, 2_000_000] {
            assert_eq!(at(clock).judge(Instant::from_nanos(0), bearer, &shown), Ok(()));
        }
    }

    #[test]
    fn no_bit_of_one_can_be_changed() {
        let shown = signed(&certificate(key(9)), &authority(1));
        for bit in 0..8 * shown.len() {
            let mut other = shown.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(judge(&members(vec![]), &other).is_err(), "bit {bit}");
        }
        for len in 1..shown.len() {
            assert!(judge(&members(vec![]), &shown[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn faults_have_numbers() {
        for code in 8..=15 {
            let fault = Fault::from_code(code, 3).unwrap();
            assert_eq!(fault.code().0, code);
        }
        assert_eq!((Fault::from_code(7, 0), Fault::from_code(16, 0)), (None, None));
    }
}
