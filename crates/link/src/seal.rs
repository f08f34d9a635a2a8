use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base::ids::CardGeneration;

use crate::frame::{HEADER_LEN, OVERHEAD, TAG_LEN};
use crate::handshake::derive;

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 32;
/// What the name of a key is derived with.
const PRIVATE: u64 = u64::from_le_bytes(*b"private\0");

/// One direction's protection of frames: AES-256-GCM, or a CRC32C where both sides chose to be insecure.
///
/// Frames in memory that two nodes share with nobody else need neither: who can change the memory has the keys anyway. They
/// bear the name of their key set, so that what an earlier one has left there is not taken for ours.
pub(crate) enum Seal {
    Aead(Box<LessSafeKey>),
    /// The key is part of what is summed up, so that frames of an earlier key set with the same id are not taken for ours.
    Checksum([u8; KEY_LEN]),
    /// What stands in place of the tag: tells nothing of the key it was derived from.
    Name([u8; TAG_LEN]),
}

impl Seal {
    pub(crate) fn new(key: &[u8; KEY_LEN], insecure: bool) -> Self {
        if insecure {
            return Self::Checksum(*key);
        }
        let key = UnboundKey::new(&AES_256_GCM, key).expect("the key has the length of the algorithm");
        Self::Aead(Box::new(LessSafeKey::new(key)))
    }

    /// For frames that never leave the memory of the two nodes: see [`crate::frame::Kind::Private`].
    pub(crate) fn private(key: &[u8; KEY_LEN]) -> Self {
        let mut name = [0; TAG_LEN];
        name.copy_from_slice(&derive(key, PRIVATE)[..TAG_LEN]);
        Self::Name(name)
    }

    /// Seals `frame` in place: its header stays readable, its last [`TAG_LEN`] bytes become the tag.
    pub(crate) fn seal(&self, frame: &mut [u8], nonce: [u8; 12]) {
        assert!(frame.len() >= OVERHEAD, "a frame has a header and a tag");
        let (header, rest) = frame.split_at_mut(HEADER_LEN);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
        match self {
            Self::Aead(key) => {
                let sealed = key
                    .seal_in_place_separate_tag(
                        Nonce::assume_unique_for_key(nonce),
                        Aad::from(&*header),
                        body,
                    )
                    .expect("a frame is far below the limit of the algorithm");
                tag.copy_from_slice(sealed.as_ref());
            }
            Self::Checksum(key) => tag.copy_from_slice(&checksum(key, header, body)),
            Self::Name(name) => tag.copy_from_slice(name),
        }
    }

    /// Checks `frame` and opens it in place; returns the body.
    pub(crate) fn open<'a>(&self, frame: &'a mut [u8], nonce: [u8; 12]) -> Option<&'a mut [u8]> {
        if frame.len() < OVERHEAD {
            return None;
        }
        let (header, rest) = frame.split_at_mut(HEADER_LEN);
        match self {
            Self::Aead(key) => {
                key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::from(&*header), rest).ok()
            }
            Self::Checksum(key) => {
                let (body, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
                (*tag == checksum(key, header, body)).then_some(body)
            }
            Self::Name(name) => {
                let (body, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
                (tag == name).then_some(body)
            }
        }
    }
}

/// The nonce of a frame: card generation, path, packet number. Unique for a key as long as generations only rise.
pub(crate) fn nonce(generation: CardGeneration, path: u8, packet_number: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&generation.0.to_le_bytes());
    nonce[4..].copy_from_slice(&packet_number.to_le_bytes());
    // Packet numbers end far below 2^56, so the path has a byte of its own.
    assert!(nonce[11] == 0, "keys are replaced long before packet numbers run out");
    nonce[11] = path;
    nonce
}

/// Whether a packet number is small enough to be part of a nonce.
pub(crate) fn packet_number_fits(packet_number: u64) -> bool {
    packet_number < 1 << 56
}

fn checksum(key: &[u8; KEY_LEN], header: &[u8], body: &[u8]) -> [u8; TAG_LEN] {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(header);
    digest.update(body);
    let mut tag = [0; TAG_LEN];
    tag[..4].copy_from_slice(&(digest.finalize() as u32).to_le_bytes());
    tag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_bit_anywhere_is_noticed() {
        for insecure in [false, true] {
            let seal = Seal::new(&[7; KEY_LEN], insecure);
            let nonce = nonce(CardGeneration(3), 1, 9);
            let mut frame = vec![0x5a; OVERHEAD + 40];
            seal.seal(&mut frame, nonce);
            for bit in 0..frame.len() * 8 {
                let mut changed = frame.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(seal.open(&mut changed, nonce).is_none(), "bit {bit}, insecure {insecure}");
            }
            assert_eq!(seal.open(&mut frame, nonce).unwrap(), &[0x5a; 40]);
        }
    }

    #[test]
    fn a_private_frame_names_its_key_and_no_other_opens_it() {
        let (seal, other) = (Seal::private(&[7; KEY_LEN]), Seal::private(&[8; KEY_LEN]));
        let nonce = nonce(CardGeneration(3), 7, 9);
        let mut frame = vec![0x5a; OVERHEAD + 40];
        seal.seal(&mut frame, nonce);
        assert!(frame[frame.len() - TAG_LEN..] != [7; TAG_LEN]);
        for sealed in [other, Seal::new(&[7; KEY_LEN], false), Seal::new(&[7; KEY_LEN], true)] {
            assert!(sealed.open(&mut frame.clone(), nonce).is_none());
        }
        assert_eq!(seal.open(&mut frame, nonce).unwrap(), &[0x5a; 40]);
    }

    #[test]
    fn nonces_differ_in_each_part() {
        let nonces =
            [(1, 0, 5), (2, 0, 5), (1, 1, 5), (1, 0, 6)].map(|(g, p, n)| nonce(CardGeneration(g), p, n));
        for (index, one) in nonces.iter().enumerate() {
            assert!(!nonces[index + 1..].contains(one));
        }
    }
}
