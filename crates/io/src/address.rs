//! Addresses on rails: of what kind they are, how cards, ledger and plan bear them, and their one form as text, which
//! lines, `status`, log, configuration and state folder have in common.
//!
//! ```text
//! 10.0.0.1:7411                      UDP over IPv4
//! [2001:db8::1]:7411                 UDP over IPv6
//! eth:02:00:5e:10:00:01              Ethernet
//! 10.0.0.1:7411,2=10.0.2.1:7411      of a node: rails 0 and 2
//! ```
//!
//! Kinds other than UDP have a name and a colon in front.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use base::ids::RailId;
use base::ledger::{Layout, LayoutHash};
use node::{Address, MAX_RAILS};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::rail::ethernet::Mac;

/// An address on a rail, a node's own or its peer's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RailAddress {
    /// Frames travel as UDP datagrams, over IPv4 or IPv6.
    Udp(SocketAddr),
    /// Frames travel as Ethernet frames, on one segment.
    Ethernet(Mac),
}

impl RailAddress {
    /// Address and port, if it is one of UDP.
    #[must_use]
    pub fn udp(self) -> Option<SocketAddr> {
        if let Self::Udp(address) = self { Some(address) } else { None }
    }
}

/// The first byte of an [`Address`]: its kind. 0 is none at all.
mod kind {
    pub(super) const NONE: u8 = 0;
    pub(super) const UDP_V4: u8 = 4;
    pub(super) const UDP_V6: u8 = 6;
    pub(super) const ETHERNET: u8 = 2;
}

/// Behind the kind: port, IP address and scope; or a MAC address.
const PORT: core::ops::Range<usize> = 2..4;
const IPV4: core::ops::Range<usize> = 4..8;
const IPV6: core::ops::Range<usize> = 4..20;
const SCOPE: core::ops::Range<usize> = 20..24;
const MAC: core::ops::Range<usize> = 4..10;
/// What the text of an Ethernet address begins with.
const ETHERNET: &str = "eth";

/// What is no address, or none that this version can use.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AddressError {
    /// It is empty.
    #[error("there is no address")]
    Nowhere,
    /// One of Ethernet that is none.
    #[error(
        "`eth:` stands before six pairs of digits, 0-9 and a-f, with colons between them: eth:02:00:5e:10:00:01"
    )]
    Ethernet,
    /// Of a kind that has no name here.
    #[error("it is of kind {kind}, which this version of causeway does not know; a later one may")]
    Kind {
        /// Its name, or number.
        kind: String,
    },
    /// Bytes where this kind has none.
    #[error("it has bytes that an address of its kind does not have")]
    Excess,
    /// No address at all.
    #[error("it is not ADDR:PORT with an IPv4 address or an [IPv6] address in brackets, nor eth:MAC")]
    Text,
}

impl AddressError {
    /// Whether it may well be an address, to another version.
    pub fn is_of_other_kind(&self) -> bool {
        matches!(self, Self::Kind { .. })
    }
}

impl From<SocketAddr> for RailAddress {
    fn from(address: SocketAddr) -> Self {
        let SocketAddr::V6(v6) = address else { return Self::Udp(address) };
        // The flow is the sender's affair, and no part of where somebody is.
        Self::Udp(SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into())
    }
}

impl From<RailAddress> for Address {
    fn from(address: RailAddress) -> Self {
        let mut bytes = [0; 28];
        if let RailAddress::Udp(address) = address {
            bytes[PORT].copy_from_slice(&address.port().to_be_bytes());
        }
        match address {
            RailAddress::Ethernet(mac) => {
                bytes[0] = kind::ETHERNET;
                bytes[MAC].copy_from_slice(&mac.0);
            }
            RailAddress::Udp(SocketAddr::V4(address)) => {
                bytes[0] = kind::UDP_V4;
                bytes[IPV4].copy_from_slice(&address.ip().octets());
            }
            RailAddress::Udp(SocketAddr::V6(address)) => {
                bytes[0] = kind::UDP_V6;
                bytes[IPV6].copy_from_slice(&address.ip().octets());
                bytes[SCOPE].copy_from_slice(&address.scope_id().to_be_bytes());
            }
        }
        Self(bytes)
    }
}

impl TryFrom<Address> for RailAddress {
    type Error = AddressError;

    fn try_from(address: Address) -> Result<Self, AddressError> {
        let [kind, zero, port_high, port_low, rest @ ..] = &address.0;
        let port = u16::from_be_bytes([*port_high, *port_low]);
        let (address, excess) = match *kind {
            kind::NONE => return Err(AddressError::Nowhere),
            kind::UDP_V4 => {
                let (ip, excess) = rest.split_first_chunk::<4>().ok_or(AddressError::Excess)?;
                (Self::Udp(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*ip)), port)), excess)
            }
            kind::UDP_V6 => {
                let (ip, rest) = rest.split_first_chunk::<16>().ok_or(AddressError::Excess)?;
                let (scope, excess) = rest.split_first_chunk::<4>().ok_or(AddressError::Excess)?;
                let scope = u32::from_be_bytes(*scope);
                (SocketAddr::from(SocketAddrV6::new(Ipv6Addr::from(*ip), port, 0, scope)).into(), excess)
            }
            kind::ETHERNET if port == 0 => {
                let (mac, excess) = rest.split_first_chunk::<6>().ok_or(AddressError::Excess)?;
                (Self::Ethernet(Mac(*mac)), excess)
            }
            kind::ETHERNET => return Err(AddressError::Excess),
            other => return Err(AddressError::Kind { kind: other.to_string() }),
        };
        let has_excess = *zero != 0 || excess.iter().any(|byte| *byte != 0);
        if has_excess { Err(AddressError::Excess) } else { Ok(address) }
    }
}

impl fmt::Display for RailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp(address) => address.fmt(f),
            Self::Ethernet(mac) => write!(f, "{ETHERNET}:{mac}"),
        }
    }
}

impl FromStr for RailAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(address.into());
        }
        match text.split_once(':') {
            Some((ETHERNET, mac)) => mac.parse().map(Self::Ethernet).map_err(|_| AddressError::Ethernet),
            Some((kind, _)) if is_kind(kind) => Err(AddressError::Kind { kind: kind.to_owned() }),
            _ => Err(AddressError::Text),
        }
    }
}

/// Whether this may be the name of a kind: one to eight lower case letters, and no number or host.
fn is_kind(text: &str) -> bool {
    (1..=8).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_lowercase())
}

impl TryFrom<String> for RailAddress {
    type Error = AddressError;

    fn try_from(text: String) -> Result<Self, AddressError> {
        text.parse()
    }
}

impl From<RailAddress> for String {
    fn from(address: RailAddress) -> Self {
        address.to_string()
    }
}

impl Layout for RailAddress {
    // It is text.
    const LAYOUT: LayoutHash = LayoutHash::of::<u8>("RailAddress");
}

/// Where a node is, by rail.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Addresses([Option<RailAddress>; MAX_RAILS]);

/// What is no list of addresses.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum AddressesError {
    /// One of them is none, or none that this version can use.
    #[error("`{text}`: {why}")]
    Address {
        /// It.
        text: String,
        /// Why.
        why: AddressError,
    },
    /// Too many for the rails of a node.
    #[error("there are {found} addresses, at most {MAX_RAILS} are possible (one a rail)")]
    TooMany {
        /// So many.
        found: usize,
    },
    /// A rail that there is not, or not here.
    #[error("`{text}`: a rail is a number up to {}, greater than the one before, and stands only where it \
             is another one than the place in the list says", MAX_RAILS - 1)]
    Rail {
        /// The address with its rail.
        text: String,
    },
}

impl Addresses {
    /// None at all.
    pub const NONE: Self = Self([None; MAX_RAILS]);

    /// On this rail the node is at this address, and at no other one.
    pub fn set(&mut self, rail: RailId, address: RailAddress) {
        self.0[rail.index()] = Some(address);
    }

    /// The one of a rail.
    pub fn get(&self, rail: RailId) -> Option<RailAddress> {
        self.0[rail.index()]
    }

    /// Those that there are, with their rails, in the order of these.
    pub fn iter(&self) -> impl Iterator<Item = (RailId, RailAddress)> + use<'_> {
        RailId::present(&self.0).map(|(rail, address)| (rail, *address))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many rails a node must have to use all of them.
    pub fn rails(&self) -> usize {
        self.iter().last().map_or(0, |(rail, _)| rail.index() + 1)
    }
}

/// The first is on rail 0, the next on rail 1; more than there can be rails are left out.
impl FromIterator<RailAddress> for Addresses {
    fn from_iter<I: IntoIterator<Item = RailAddress>>(addresses: I) -> Self {
        let mut list = Self::NONE;
        RailId::ALL.into_iter().zip(addresses).for_each(|(rail, address)| list.set(rail, address));
        list
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (rail, address)) in self.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            match rail.index() == place {
                true => write!(f, "{comma}{address}")?,
                false => write!(f, "{comma}{rail}={address}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Addresses {
    type Err = AddressesError;

    /// Rails have one text: what another one would say as well is refused.
    fn from_str(text: &str) -> Result<Self, AddressesError> {
        let parts: Vec<&str> = text.split(',').filter(|_| !text.is_empty()).collect();
        if parts.len() > MAX_RAILS {
            return Err(AddressesError::TooMany { found: parts.len() });
        }
        let mut list = Self::NONE;
        for (place, part) in parts.into_iter().enumerate() {
            let wrong = || AddressesError::Rail { text: part.escape_debug().to_string() };
            let (rail, text) = match part.split_once('=') {
                None => (RailId::ALL[place], part),
                Some((rail, text)) => {
                    let named = RailId::ALL.into_iter().find(|it| it.to_string() == rail);
                    (named.filter(|it| it.index() != place).ok_or_else(wrong)?, text)
                }
            };
            let address = text
                .parse()
                .map_err(|why| AddressesError::Address { text: text.escape_debug().to_string(), why })?;
            if rail.index() < list.rails() {
                return Err(wrong());
            }
            list.set(rail, address);
        }
        Ok(list)
    }
}

impl TryFrom<String> for Addresses {
    type Error = AddressesError;

    fn try_from(text: String) -> Result<Self, AddressesError> {
        text.parse()
    }
}

impl From<Addresses> for String {
    fn from(addresses: Addresses) -> Self {
        addresses.to_string()
    }
}

impl Layout for Addresses {
    // It is text.
    const LAYOUT: LayoutHash = LayoutHash::of::<u8>("Addresses");
}

impl From<Addresses> for [Address; MAX_RAILS] {
    fn from(addresses: Addresses) -> Self {
        addresses.0.map(Address::from)
    }
}

/// As a card bears them: those that are of no known kind are left out, since nothing could be sent there.
impl From<[Address; MAX_RAILS]> for Addresses {
    fn from(addresses: [Address; MAX_RAILS]) -> Self {
        Self(addresses.map(|address| address.try_into().ok()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Addresses, AddressesError> {
        text.parse()
    }

    #[test]
    fn an_address_has_a_kind_and_one_text() {
        let ethernet = ("eth:02:00:5e:10:00:ff", 2);
        for (text, kind) in [("127.0.0.1:7411", 4), ("[::1]:80", 6), ("[fe80::1%3]:9", 6), ethernet] {
            let address: RailAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            let borne = Address::from(address);
            assert_eq!((borne.0[0], RailAddress::try_from(borne)), (kind, Ok(address)));
            assert_eq!(serde_json::to_string(&address).unwrap(), format!("\"{text}\""));
            assert_eq!(serde_json::from_str::<RailAddress>(&format!("\"{text}\"")).unwrap(), address);
        }
        assert_eq!(RailAddress::try_from(Address::NONE), Err(AddressError::Nowhere));
    }

    #[test]
    fn other_kinds_are_refused_by_name() {
        let mut bytes = [0; 28];
        for excess in [1, 3, 11] {
            bytes = [0; 28];
            (bytes[0], bytes[excess]) = (2, 1);
            assert_eq!(RailAddress::try_from(Address(bytes)), Err(AddressError::Excess));
        }
        bytes[0] = 7;
        let why = RailAddress::try_from(Address(bytes)).unwrap_err();
        assert!(why.is_of_other_kind() && why.to_string().contains("kind 7, which this version"), "{why}");
        let text = |text: &str| text.parse::<RailAddress>().unwrap_err();
        for none in
            ["", "02", "02:00:00:00:00:0G", "02:00:00:00:00:0A", "2:0:0:0:0:1", "02:00:00:00:00:01:02"]
        {
            assert_eq!(text(&format!("eth:{none}")), AddressError::Ethernet, "{none}");
        }
        assert_eq!(text("rdma:10.0.0.1:1"), AddressError::Kind { kind: "rdma".to_owned() });
        for none in ["", "10.0.0.1", "10.0.0.1:x", "::1:80", ":1", "EtH:1", "store.example.org:7411"] {
            assert_eq!(text(none), AddressError::Text, "{none}");
        }
        assert!(serde_json::from_str::<RailAddress>("\"eth:1\"").unwrap_err().to_string().contains("eth:02"));
    }

    #[test]
    fn rails_are_named_where_their_order_does_not_say_them() {
        for (text, rails) in [
            ("", vec![]),
            ("10.0.0.1:1,10.0.0.1:2", vec![0, 1]),
            ("10.0.0.1:1,2=10.0.0.1:2", vec![0, 2]),
            ("1=10.0.0.1:1,2=[::1]:2,3=10.0.0.1:2", vec![1, 2, 3]),
            ("3=10.0.0.1:1", vec![3]),
            ("eth:02:00:00:00:00:01,10.0.0.1:1,3=eth:02:00:00:00:00:01", vec![0, 1, 3]),
        ] {
            let list = parse(text).unwrap();
            assert_eq!(
                (list.iter().map(|(rail, _)| rail.get()).collect(), list.to_string()),
                (rails, text.to_owned())
            );
            assert_eq!(list.rails(), list.iter().last().map_or(0, |(rail, _)| rail.index() + 1));
            assert_eq!(Addresses::from(<[Address; MAX_RAILS]>::from(list)), list);
        }
        let at = "10.0.0.1:1";
        for wrong in [
            "0=A", "4=A", "02=A", "+2=A", "=A", "A,1=A", "2=A,A", "2=A,2=A", "3=A,2=A", "x=A", "1=2=A", "A,",
            ",A",
        ] {
            assert!(parse(&wrong.replace('A', at)).is_err(), "{wrong}");
        }
        assert_eq!(parse(&[at; 5].join(",")), Err(AddressesError::TooMany { found: 5 }));
        let kind = parse("10.0.0.1:1,ib:1").unwrap_err();
        assert!(
            matches!(&kind, AddressesError::Address { text, why } if text == "ib:1" && why.is_of_other_kind())
        );
    }

    proptest! {
        #[test]
        fn whatever_is_decoded_is_what_was_encoded(bytes: [u8; 28], kind in 0_u8..8, len in 0_usize..28) {
            let mut bytes = bytes;
            bytes[len..].fill(0);
            bytes[..2].copy_from_slice(&[kind, 0]);
            if let Ok(address) = RailAddress::try_from(Address(bytes)) {
                prop_assert_eq!(Address::from(address), Address(bytes));
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }

        #[test]
        fn any_text_is_a_list_or_none(text in "([0-3]=)?[0-9a-z.:,=\\[\\]]{0,40}") {
            if let Ok(list) = parse(&text) {
                prop_assert_eq!(parse(&list.to_string()), Ok(list));
            }
        }
    }
}
