//! Where a node can be called, on its way to the state folder and back.

use base::ids::DomainId;
use node::{KEY_BYTES, PublicKey, Whereabouts};

use crate::address::Addresses;

/// The only form of the text.
const FORM: &str = "2";

/// As the state folder keeps it: `FORM:KEY:DOMAIN:ADDRESSES`, the key in hexadecimal, the addresses as in a line. One
/// word, at most 350 characters.
pub fn to_text(at: &Whereabouts) -> String {
    let key: String = at.key.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{FORM}:{key}:{}:{}", at.domain.0, Addresses::from(at.addresses))
}

/// What [`to_text`] has written. `None` if this version could not have.
pub fn from_text(text: &str) -> Option<Whereabouts> {
    let [form, key, domain, addresses] = text.splitn(4, ':').collect::<Vec<_>>().try_into().ok()?;
    if form != FORM || key.len() != 2 * KEY_BYTES || !key.is_ascii() {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&key[at..at + 2], 16).ok()?;
    }
    let addresses: Addresses = addresses.parse().ok()?;
    let domain = domain.parse().ok().filter(|domain| domain >> DomainId::BITS == 0)?;
    Some(Whereabouts { key: PublicKey(bytes), domain: DomainId(domain), addresses: addresses.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_node_is_is_kept_and_what_is_not_understood_is_refused() {
        let addresses: Addresses = "10.0.0.1:7411,2=[fe80::1%3]:9".parse().unwrap();
        let (key, addresses) = (PublicKey([0xa5; KEY_BYTES]), addresses.into());
        let at = Whereabouts { key, domain: DomainId(0x3_ffff), addresses };
        let text = to_text(&at);
        assert!(text.ends_with(":262143:10.0.0.1:7411,2=[fe80::1%3]:9"), "{text}");
        assert_eq!(from_text(&text), Some(at));
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
