//! Where a node can be called, on its way between card, agent and state folder.

use std::net::SocketAddr;

use base::ids::DomainId;
use base::ledger::Layout;
use node::{Address, KEY_BYTES, MAX_RAILS, PublicKey, Whereabouts};
use serde::{Deserialize, Serialize};

use crate::plan::{PeerPlan, decode_address, encode_address};

/// The only form of the text.
const FORM: &str = "1";
/// The only kind of address.
const UDP: &str = "udp";

/// [`Whereabouts`], in plan and messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Layout)]
pub(crate) struct WhereaboutsPlan {
    key: [u8; KEY_BYTES],
    domain: u32,
    /// By rail.
    addresses: Vec<Option<PeerPlan>>,
}

impl WhereaboutsPlan {
    /// Whose they are.
    pub(crate) fn key(&self) -> &[u8; KEY_BYTES] {
        &self.key
    }
}

impl From<Whereabouts> for WhereaboutsPlan {
    fn from(at: Whereabouts) -> Self {
        let addresses = at.addresses.into_iter().map(|address| decode_address(address).map(PeerPlan));
        Self { key: at.key.0, domain: at.domain.0, addresses: addresses.collect() }
    }
}

impl From<WhereaboutsPlan> for Whereabouts {
    fn from(plan: WhereaboutsPlan) -> Self {
        let mut addresses = [Address::default(); MAX_RAILS];
        for (place, address) in addresses.iter_mut().zip(plan.addresses) {
            *place = address.map_or(Address::default(), |address| encode_address(address.0));
        }
        Self { key: PublicKey(plan.key), domain: DomainId(plan.domain), addresses }
    }
}

/// As the state folder keeps it: `FORM:KEY:DOMAIN:RAIL=KIND/ADDRESS,...`, the key in hexadecimal. One word, at most 350
/// characters.
pub fn to_text(at: &Whereabouts) -> String {
    let key: String = at.key.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let rails = at.addresses.iter().enumerate();
    let rails =
        rails.filter_map(|(rail, address)| Some(format!("{rail}={UDP}/{}", decode_address(*address)?)));
    let rails: Vec<String> = rails.collect();
    format!("{FORM}:{key}:{}:{}", at.domain.0, rails.join(","))
}

/// What [`to_text`] has written. `None` if this version could not have.
pub fn from_text(text: &str) -> Option<Whereabouts> {
    let [form, key, domain, rails] = text.splitn(4, ':').collect::<Vec<_>>().try_into().ok()?;
    if form != FORM || key.len() != 2 * KEY_BYTES || !key.is_ascii() {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&key[at..at + 2], 16).ok()?;
    }
    let mut addresses = [Address::default(); MAX_RAILS];
    for rail in rails.split(',').filter(|rail| !rail.is_empty()) {
        let (rail, address) = rail.split_once('=')?;
        let (kind, address) = address.split_once('/')?;
        let place = addresses.get_mut(rail.parse::<usize>().ok()?).filter(|_| kind == UDP)?;
        *place = encode_address(address.parse::<SocketAddr>().ok()?);
    }
    let domain = domain.parse().ok().filter(|domain| domain >> DomainId::BITS == 0)?;
    Some(Whereabouts { key: PublicKey(bytes), domain: DomainId(domain), addresses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_node_is_is_kept_and_what_is_not_understood_is_refused() {
        let mut addresses = [Address::default(); MAX_RAILS];
        addresses[0] = encode_address("10.0.0.1:7411".parse().unwrap());
        addresses[2] = encode_address("[fe80::1%3]:9".parse().unwrap());
        let at = Whereabouts { key: PublicKey([0xa5; KEY_BYTES]), domain: DomainId(0x3_ffff), addresses };
        let text = to_text(&at);
        assert!(text.ends_with(":262143:0=udp/10.0.0.1:7411,2=udp/[fe80::1%3]:9"), "{text}");
        assert_eq!(from_text(&text), Some(at));
        assert_eq!(Whereabouts::from(WhereaboutsPlan::from(at)), at);
        let nowhere = Whereabouts { addresses: Default::default(), ..at };
        assert_eq!(from_text(&to_text(&nowhere)), Some(nowhere));
        let changes =
            [("1:", "2:"), ("udp", "eth"), ("2=", "4="), ("262143", "262144"), (":9", ""), ("a5a5", "a5")];
        for (is, other) in changes {
            assert_eq!(from_text(&text.replacen(is, other, 1)), None, "{is} -> {other}");
        }
        for end in 0..text.len() - 24 {
            assert!(text.is_char_boundary(end) && from_text(&text[..end]).is_none_or(|it| it != at));
        }
    }
}
