//! Information frames: what a node tells everybody on its rails, from time to time, so that others find it.
//!
//! ```text
//! header  kind 6; to domain 0, which is nobody's; packet number: counts up
//! body    0 form, 1    1 role: 0 a node, 1 a switch    2 seconds until the next one    4 public key
//!         36 base and limit of the domains    44 name      76 items, each: tag, length, value
//! tag     a digest: it finds a slip, and proves nothing
//! ```
//!
//! What it says of itself is a claim. It tells where to call; that it is that node is shown by the handshake, whose key
//! comes from a loan line. A frame is whole in itself: what does not fit into one is in others, and what is not heard
//! again is forgotten. Items of unknown tags are skipped.
//!
//! A switch says the same of itself to whoever is directly behind its ports, from domain 0: other switches pass nothing
//! on that comes from nobody.

use aws_lc_rs::digest::{SHA256, digest};
use base::frame::{Prefix, ROUTE, Route};
use base::ids::{DomainBlock, DomainId, Group, Incarnation, NodeId, RailId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::{HEADER_LEN, Header, Kind, TAG_LEN};
use crate::identity::{KEY_BYTES, PublicKey};
use crate::name::Name;
use crate::notice::{Notice, NoticeCause, PROOF_BYTES};
use crate::record::ADDRESS_BYTES;

/// Bytes of an information frame at most: it passes wherever a handshake does.
pub const INFORMATION_MAX: usize = 1200;

const FORM: u8 = 1;
const RAIL: u8 = 1;
const FUNCTION: u8 = 2;
const MEMBER: u8 = 3;
const NOTICE: u8 = 4;
const PORT: u8 = 5;
const READ_ONLY: u8 = 1;
const LENT: u8 = 2;

/// What somebody is that says something of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// It lends or borrows.
    #[default]
    Node,
    /// It forwards frames.
    Switch,
}

/// Who says something of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announcer {
    /// What it is.
    pub role: Role,
    /// Its key: whoever has it can call.
    pub key: PublicKey,
    /// Its domains.
    pub domains: DomainBlock,
    /// What people call it.
    pub name: Name,
    /// Seconds until it says so again.
    pub interval_s: u16,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Which frame of this life.
    pub number: u64,
    /// On which of its rails it says so.
    pub rail: RailId,
    /// In which zone.
    pub group: Group,
}

/// Something that it says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item {
    /// It has this rail.
    Rail {
        /// Which one.
        rail: RailId,
        /// It is in use: its interface has a carrier.
        is_up: bool,
        /// Where it receives, as `io` writes addresses.
        address: [u8; ADDRESS_BYTES],
        /// The port of a switch that it sends everything to; zeroes: none.
        gateway: [u8; ADDRESS_BYTES],
    },
    /// It lends this function.
    Function {
        /// Its name.
        name: Name,
        /// Bytes of the drive.
        bytes: u64,
        /// Nobody can write there.
        read_only: bool,
        /// Who has it now.
        lent_to: Option<NodeId>,
    },
    /// It is a switch, and takes frames here, as `io` writes addresses.
    Port([u8; ADDRESS_BYTES]),
    /// It has this [group key](crate::GroupKey::mark), and hears notices to all.
    Member([u8; PROOF_BYTES]),
    /// A rail seems to have failed, and it has the [group key](crate::GroupKey::proof).
    Notice(Notice, [u8; PROOF_BYTES]),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    form: u8,
    role: u8,
    interval_s: U16,
    key: [u8; KEY_BYTES],
    base: U32,
    len: U32,
    name: [u8; 32],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRail {
    rail: u8,
    is_up: u8,
    address: [u8; ADDRESS_BYTES],
    gateway: [u8; ADDRESS_BYTES],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFunction {
    name: [u8; 32],
    bytes: U64,
    flags: u8,
    lent_to: [u8; NodeId::BYTES],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNotice {
    node: [u8; NodeId::BYTES],
    rail: u8,
    cause: u8,
    proof: [u8; PROOF_BYTES],
}

/// Writes an information frame with as many of `items` as fit, and says how many that are.
pub fn write(announcer: &Announcer, items: &[Item]) -> (Vec<u8>, usize) {
    let (role, domain) = match announcer.role {
        Role::Node => (0, announcer.domains.node()),
        Role::Switch => (1, DomainId(0)),
    };
    let source = Prefix { rail: announcer.rail, domain };
    let header = Header {
        kind: Kind::Information,
        key_id: 0,
        route: Route::START,
        fabric: 0,
        destination: Prefix { rail: announcer.rail, domain: DomainId(0) },
        source,
        group: announcer.group,
        channel: Default::default(),
        stream: Default::default(),
        loan_generation: Default::default(),
        incarnation: announcer.incarnation,
        card_generation: Default::default(),
        packet_number: announcer.number,
    };
    let mut frame = vec![0; HEADER_LEN];
    header.write(&mut frame);
    let head = RawHead {
        form: FORM,
        role,
        interval_s: announcer.interval_s.into(),
        key: announcer.key.0,
        base: announcer.domains.base().into(),
        len: announcer.domains.len().into(),
        name: announcer.name.to_bytes(),
    };
    frame.extend_from_slice(head.as_bytes());
    let mut fitted = 0;
    for item in items {
        let start = frame.len();
        match *item {
            Item::Rail { rail, is_up, address, gateway } => {
                let raw = RawRail { rail: rail.get(), is_up: is_up.into(), address, gateway };
                push(&mut frame, RAIL, raw.as_bytes());
            }
            Item::Function { name, bytes, read_only, lent_to } => {
                let flags = (u8::from(read_only) * READ_ONLY) | (u8::from(lent_to.is_some()) * LENT);
                let (name, lent_to) = (name.to_bytes(), lent_to.unwrap_or_default().0);
                push(
                    &mut frame,
                    FUNCTION,
                    RawFunction { name, bytes: bytes.into(), flags, lent_to }.as_bytes(),
                );
            }
            Item::Port(address) => push(&mut frame, PORT, &address),
            Item::Member(mark) => push(&mut frame, MEMBER, &mark),
            Item::Notice(Notice { node, rail, cause }, proof) => {
                let raw = RawNotice { node: node.0, rail: rail.get(), cause: cause.code(), proof };
                push(&mut frame, NOTICE, raw.as_bytes());
            }
        }
        if frame.len() + TAG_LEN > INFORMATION_MAX {
            frame.truncate(start);
            break;
        }
        fitted += 1;
    }
    let tag = tag(&frame);
    frame.extend_from_slice(&tag);
    (frame, fitted)
}

fn push(frame: &mut Vec<u8>, tag: u8, value: &[u8]) {
    frame.extend_from_slice(&[tag, value.len() as u8]);
    frame.extend_from_slice(value);
}

/// The digest of everything but what switches change, which stands behind it. Anybody can make it, as tests do whose
/// frames are not harmed, but wrong.
pub fn tag(frame: &[u8]) -> [u8; TAG_LEN] {
    let mut plain = frame.to_vec();
    plain[ROUTE] = 0;
    let mut tag = [0; TAG_LEN];
    tag.copy_from_slice(&digest(&SHA256, &plain).as_ref()[..TAG_LEN]);
    tag
}

/// Reads an information frame. `None`: it is none, or has come to harm, or says what cannot be.
pub fn read(frame: &[u8]) -> Option<(Announcer, Vec<Item>)> {
    let header = Header::parse(frame).ok().filter(|header| header.kind == Kind::Information)?;
    if frame.len() > INFORMATION_MAX || header.fabric != 0 || header.destination.domain != DomainId(0) {
        return None;
    }
    // A frame that `Header::parse` takes has a header and a tag.
    let (covered, given) = frame.split_at_checked(frame.len() - TAG_LEN)?;
    if tag(covered) != given {
        return None;
    }
    let (head, mut rest) = RawHead::ref_from_prefix(&covered[HEADER_LEN..]).ok()?;
    let key = PublicKey(head.key);
    let (base, len) = (head.base.get(), head.len.get());
    // A node that nobody has given domains has those around the hash of its key, of which its own is not the first.
    let derived = DomainBlock::of(key.id());
    let role = match head.role {
        0 => Role::Node,
        1 => Role::Switch,
        _ => return None,
    };
    let is_from = |domain| header.source.domain == if role == Role::Switch { DomainId(0) } else { domain };
    let is_derived = (derived.base(), derived.len()) == (base, len) && is_from(derived.node());
    let domains = if is_derived { derived } else { DomainBlock::new(base, len)? };
    if head.form != FORM || !is_from(domains.node()) || head.interval_s.get() == 0 {
        return None;
    }
    let mut items = Vec::new();
    while let [tag, len, behind @ ..] = rest {
        let (value, behind) = behind.split_at_checked(usize::from(*len))?;
        rest = behind;
        items.extend(match *tag {
            RAIL => Some(read_rail(value)?),
            FUNCTION => Some(read_function(value)?),
            PORT => Some(Item::Port(value.try_into().ok()?)),
            MEMBER => Some(Item::Member(value.try_into().ok()?)),
            NOTICE => Some(read_notice(value)?),
            _ => None,
        });
    }
    let announcer = Announcer {
        role,
        key,
        domains,
        name: Name::from_bytes(head.name),
        interval_s: head.interval_s.get(),
        incarnation: header.incarnation,
        number: header.packet_number,
        rail: header.source.rail,
        group: header.group,
    };
    rest.is_empty().then_some((announcer, items))
}

fn read_rail(value: &[u8]) -> Option<Item> {
    let raw = RawRail::ref_from_bytes(value).ok()?;
    let (rail, is_up) = (RailId::new(raw.rail)?, raw.is_up != 0);
    Some(Item::Rail { rail, is_up, address: raw.address, gateway: raw.gateway })
}

fn read_function(value: &[u8]) -> Option<Item> {
    let raw = RawFunction::ref_from_bytes(value).ok()?;
    let (bytes, read_only) = (raw.bytes.get(), raw.flags & READ_ONLY != 0);
    let lent_to = (raw.flags & LENT != 0).then_some(NodeId(raw.lent_to));
    Some(Item::Function { name: Name::from_bytes(raw.name), bytes, read_only, lent_to })
}

fn read_notice(value: &[u8]) -> Option<Item> {
    let raw = RawNotice::ref_from_bytes(value).ok()?;
    let (rail, cause) = (RailId::new(raw.rail)?, NoticeCause::from_code(raw.cause));
    Some(Item::Notice(Notice { node: NodeId(raw.node), rail, cause }, raw.proof))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::NodeKey;
    use crate::notice::GroupKey;

    const HEAD: usize = size_of::<RawHead>();

    pub(crate) fn announcer() -> Announcer {
        let key = NodeKey::new([5; KEY_BYTES]).public();
        Announcer {
            role: Role::Node,
            key,
            domains: DomainBlock::of(key.id()),
            name: Name::new("store1"),
            interval_s: 10,
            incarnation: Incarnation(12),
            number: 1 << 40,
            rail: RailId::ALL[1],
            group: Group(7),
        }
    }

    pub(crate) fn items() -> [Item; 3] {
        let function = |name, lent_to: Option<NodeId>| Item::Function {
            name: Name::new(name),
            bytes: 1 << 34,
            read_only: lent_to.is_none(),
            lent_to,
        };
        let (address, gateway) = ([4; ADDRESS_BYTES], [0; ADDRESS_BYTES]);
        let rail = Item::Rail { rail: RailId::ALL[1], is_up: true, address, gateway };
        [rail, function("nvme0", None), function("nvme1", Some(NodeId::numbered(9)))]
    }

    #[test]
    fn what_a_node_says_of_itself_is_read_as_it_was_written() {
        let (frame, fitted) = write(&announcer(), &items());
        assert_eq!((read(&frame), fitted), (Some((announcer(), items().to_vec())), 3));
        // With domains that it was given.
        let given = Announcer { domains: DomainBlock::new(4096, 16).unwrap(), ..announcer() };
        assert_eq!(read(&write(&given, &[]).0), Some((given, Vec::new())));
    }

    #[test]
    fn a_switch_speaks_from_nobodys_domain_and_a_node_does_not() {
        let switch = Announcer { role: Role::Switch, ..announcer() };
        let items = [Item::Port([6; ADDRESS_BYTES]), Item::Port([7; ADDRESS_BYTES])];
        let (frame, _) = write(&switch, &items);
        assert_eq!(read(&frame), Some((switch, items.to_vec())));
        assert_eq!(Header::parse(&frame).unwrap().source.domain, DomainId(0));
        // The role of the one with the domain of the other.
        for (announcer, other) in [(switch, 0), (self::announcer(), 1)] {
            let mut frame = write(&announcer, &items).0;
            frame[HEADER_LEN + 1] = other;
            frame.truncate(frame.len() - TAG_LEN);
            let tag = tag(&frame);
            frame.extend_from_slice(&tag);
            assert_eq!(read(&frame), None);
        }
    }

    #[test]
    fn more_than_a_frame_takes_goes_into_others() {
        let many = vec![items()[1]; 100];
        let (frame, fitted) = write(&announcer(), &many);
        assert!(frame.len() <= INFORMATION_MAX && (10..100).contains(&fitted), "{} {fitted}", frame.len());
        assert_eq!(read(&frame).unwrap().1.len(), fitted);
    }

    #[test]
    fn a_notice_to_all_is_of_one_frame_and_of_who_has_the_key() {
        let (key, other) = (GroupKey::new(&[1; 32]), GroupKey::new(&[2; 32]));
        let notice = Notice { node: NodeId::numbered(3), rail: RailId::ALL[2], cause: NoticeCause::Carrier };
        let proof = key.proof(&announcer(), &notice);
        let items = [Item::Member(key.mark(announcer().key.id())), Item::Notice(notice, proof)];
        assert_eq!(read(&write(&announcer(), &items).0), Some((announcer(), items.to_vec())));
        assert!(key.proves(&announcer(), &notice, &proof) && !other.proves(&announcer(), &notice, &proof));
        let later = Announcer { number: announcer().number + 1, ..announcer() };
        let life = Announcer { incarnation: Incarnation(13), ..announcer() };
        let rail = Notice { rail: RailId::ALL[1], ..notice };
        for (announcer, notice) in [(&later, notice), (&life, notice), (&announcer(), rail)] {
            assert!(!key.proves(announcer, &notice, &proof));
        }
        assert_ne!(key.mark(notice.node), key.mark(announcer().key.id()));
    }

    /// A frame with a right tag behind `change`.
    fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut frame = write(&announcer(), &items()).0;
        frame.truncate(frame.len() - TAG_LEN);
        change(&mut frame);
        let tag = tag(&frame);
        frame.extend_from_slice(&tag);
        frame
    }

    #[test]
    fn what_has_come_to_harm_or_cannot_be_is_refused_and_what_is_unknown_is_skipped() {
        let frame = write(&announcer(), &items()).0;
        for at in (0..frame.len()).filter(|at| *at != ROUTE) {
            let mut harmed = frame.clone();
            harmed[at] ^= 1;
            assert_eq!(read(&harmed), None, "byte {at}");
        }
        let mut passed = frame.clone();
        passed[ROUTE] ^= 0x0c;
        assert_eq!(read(&passed), read(&frame), "a switch may change the route");
        assert!(read(&changed(|_| ())).is_some());
        let unknown = changed(|frame| frame.extend_from_slice(&[200, 2, 1, 1]));
        assert_eq!(read(&unknown), read(&frame));
        type Change<'a> = &'a dyn Fn(&mut Vec<u8>);
        let wrong: [Change<'_>; 6] = [
            &|frame| frame.extend_from_slice(&[200, 2, 1]),
            &|frame| frame.push(RAIL),
            &|frame| frame[HEADER_LEN] = 2,
            &|frame| frame[HEADER_LEN + 2..][..2].fill(0),
            &|frame| frame[12] ^= 1,
            &|frame| frame[HEADER_LEN + HEAD + 2] = 4,
        ];
        for (at, wrong) in wrong.into_iter().enumerate() {
            assert_eq!(read(&changed(wrong)), None, "{at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..1300)) {
            let frame = changed(|frame| {
                frame.truncate(HEADER_LEN);
                frame.extend_from_slice(&body);
            });
            let _ = read(&frame);
            let _ = read(&changed(|frame| frame.extend_from_slice(&body)));
        }
    }
}
