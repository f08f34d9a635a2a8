//! Where a node can be called, on its way to the state folder and back.

use base::ids::{DomainId, LifeId};
use node::{COPIES, KEY_BYTES, PublicKey, Whereabouts};

use crate::address::Addresses;

/// The only form of the text.
const FORM: &str = "2";

/// Before each copy, behind the addresses.
const COPY: char = ';';

/// As the state folder keeps it: `FORM:KEY:DOMAIN:ADDRESSES;COPY;COPY`, key and lives in hexadecimal, the addresses as
/// in a line. One word, at most 620 characters.
pub fn to_text(at: &Whereabouts) -> String {
    let key: String = at.key.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let copies = at.copies.iter().filter(|life| **life != LifeId::default());
    let copies: String = copies.map(|life| format!("{COPY}{life}")).collect();
    format!("{FORM}:{key}:{}:{}{copies}", at.domain.0, Addresses::from(at.addresses))
}

/// What [`to_text`] has written. `None` if this version could not have.
pub fn from_text(text: &str) -> Option<Whereabouts> {
    let mut parts = text.split(COPY);
    let [form, key, domain, addresses] = parts.next()?.splitn(4, ':').collect::<Vec<_>>().try_into().ok()?;
    if form != FORM || key.len() != 2 * KEY_BYTES || !key.is_ascii() {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&key[at..at + 2], 16).ok()?;
    }
    let addresses: Addresses = addresses.parse().ok()?;
    let domain = domain.parse().ok().filter(|domain| domain >> DomainId::BITS == 0)?;
    let mut copies = [LifeId::default(); COPIES];
    for (at, life) in parts.enumerate() {
        *copies.get_mut(at)? = life.parse().ok().filter(|it: &LifeId| it.to_string() == life)?;
    }
    Some(Whereabouts { key: PublicKey(bytes), domain: DomainId(domain), addresses: addresses.into(), copies })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_node_is_is_kept_and_what_is_not_understood_is_refused() {
        let addresses: Addresses = "10.0.0.1:7411,2=[fe80::1%3]:9".parse().unwrap();
        let (key, addresses) = (PublicKey([0xa5; KEY_BYTES]), addresses.into());
        let copies = [LifeId::default(); COPIES];
        let at = Whereabouts { key, domain: DomainId(0x3_ffff), addresses, copies };
        let text = to_text(&at);
        assert!(text.ends_with(":262143:10.0.0.1:7411,2=[fe80::1%3]:9"), "{text}");
        assert_eq!(from_text(&text), Some(at));
        let all = Whereabouts { copies: core::array::from_fn(|at| LifeId([1 + at as u8; 16])), ..at };
        let with_copies = to_text(&all);
        assert!(with_copies.starts_with(&format!("{text};{};", LifeId([1; 16]))) && with_copies.len() <= 620);
        assert_eq!(from_text(&with_copies), Some(all));
        for wrong in [";", ";01", &format!(";{}", LifeId([9; 16])), "0"] {
            assert_eq!(from_text(&format!("{with_copies}{wrong}")), None, "{wrong}");
        }
        let nowhere = Whereabouts { addresses: Addresses::NONE.into(), ..at };
        assert_eq!(from_text(&to_text(&nowhere)), Some(nowhere));
        let changes = [
            ("2:", "1:"),
            ("2=[", "2=eth:["),
            ("2=", "4="),
            ("262143", "262144"),
            (":9", ""),
            ("a5a5", "a5"),
        ];
        for (is, other) in changes {
            assert_eq!(from_text(&text.replacen(is, other, 1)), None, "{is} -> {other}");
        }
        for end in 0..text.len() {
            assert!(text.is_char_boundary(end) && from_text(&text[..end]).is_none_or(|it| it != at));
        }
    }
}
