//! Frames are sealed and opened.

use aegis::aegis128x2::Aegis128X2;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce as AesNonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use base::ids::CardGeneration;

use crate::cipher::Cipher;
use crate::frame::{HEADER_LEN, OVERHEAD, ROUTE, TAG_LEN};
use crate::handshake::derive;

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 32;
/// Bytes of a nonce: AEGIS-128X2's. AES-256-GCM takes the first 12, behind which there is nothing.
const NONCE_LEN: usize = 16;
/// What the name of a key is derived with.
const SHM: u64 = u64::from_le_bytes(*b"private\0");

/// One direction's protection of the frames of one card.
///
/// Frames in memory that two nodes share with nobody else need none: who can change the memory has the keys anyway.
/// They bear the name of their key set, so that what an earlier one has left there is not taken for ours.
pub(crate) enum Seal {
    Aegis([u8; 16]),
    Aes(Box<LessSafeKey>),
    /// The secret is part of what is summed up, so that frames of an earlier key set with the same id are not taken for
    /// ours. So is the header, which names the card.
    Checksum([u8; KEY_LEN]),
    /// What stands in place of the tag: tells nothing of the key it was derived from.
    Name([u8; TAG_LEN]),
}

impl Seal {
    /// For frames that never leave the memory of the two nodes: see [`crate::frame::Kind::Shm`].
    pub(crate) fn shm(secret: &[u8; KEY_LEN]) -> Self {
        let mut name = [0; TAG_LEN];
        name.copy_from_slice(&derive(secret, SHM)[..TAG_LEN]);
        Self::Name(name)
    }

    /// Seals `frame` in place: its header stays readable, its last [`TAG_LEN`] bytes become the tag. What a switch may
    /// change is not covered.
    pub(crate) fn seal(&self, frame: &mut [u8], nonce: Nonce) {
        assert!(frame.len() >= OVERHEAD, "a frame has a header and a tag");
        let route = core::mem::take(&mut frame[ROUTE]);
        self.seal_header_too(frame, nonce);
        frame[ROUTE] = route;
    }

    fn seal_header_too(&self, frame: &mut [u8], nonce: Nonce) {
        let (header, rest) = frame.split_at_mut(HEADER_LEN);
        let (body, tag) = rest.split_last_chunk_mut::<TAG_LEN>().expect("its length was asserted");
        match self {
            Self::Aegis(key) => *tag = Aegis128X2::new(key, &nonce.0).encrypt_in_place(body, header),
            Self::Aes(key) => {
                let sealed = key
                    .seal_in_place_separate_tag(nonce.for_aes(), Aad::from(&*header), body)
                    .expect("a frame is far below the limit of the algorithm");
                tag.copy_from_slice(sealed.as_ref());
            }
            Self::Checksum(secret) => *tag = checksum(secret, header, body),
            Self::Name(name) => *tag = *name,
        }
    }

    /// Checks `frame` and opens it in place; returns the body. Its route is forgotten.
    pub(crate) fn open<'a>(&self, frame: &'a mut [u8], nonce: Nonce) -> Option<&'a mut [u8]> {
        if frame.len() < OVERHEAD {
            return None;
        }
        frame[ROUTE] = 0;
        let (header, rest) = frame.split_at_mut(HEADER_LEN);
        if let Self::Aes(key) = self {
            return key.open_in_place(nonce.for_aes(), Aad::from(&*header), rest).ok();
        }
        let (body, tag) = rest.split_last_chunk_mut::<TAG_LEN>()?;
        let is_ours = match self {
            Self::Aegis(key) => Aegis128X2::new(key, &nonce.0).decrypt_in_place(body, tag, header).is_ok(),
            Self::Checksum(secret) => *tag == checksum(secret, header, body),
            Self::Name(name) => tag == name,
            Self::Aes(_) => false,
        };
        is_ours.then_some(body)
    }
}

/// Which way frames go, between who has begun the handshake and who has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Direction {
    ToCallee = 1,
    ToCaller = 2,
}

impl Direction {
    /// The other one.
    pub(crate) fn back(self) -> Self {
        match self {
            Self::ToCallee => Self::ToCaller,
            Self::ToCaller => Self::ToCallee,
        }
    }
}

/// From what the keys of one direction's frames are derived.
pub(crate) struct FrameKeys {
    cipher: Cipher,
    direction: Direction,
    /// As the handshake has left it.
    secret: [u8; KEY_LEN],
    extracted: Prk,
    /// Each card has a key of its own, because its packet numbers begin anew. Always so, but for the simulator.
    each_card: bool,
}

impl FrameKeys {
    /// `secret` is the direction's.
    pub(crate) fn new(secret: &[u8; KEY_LEN], cipher: Cipher, direction: Direction, each_card: bool) -> Self {
        let extracted = Salt::new(HKDF_SHA256, b"causeway frame keys").extract(secret);
        Self { cipher, direction, secret: *secret, extracted, each_card }
    }

    /// What protects the frames of `card`.
    pub(crate) fn seal(&self, card: CardGeneration) -> Seal {
        match self.cipher {
            Cipher::Aegis128X2 => {
                let mut half = [0; 16];
                half.copy_from_slice(&self.key(card)[..16]);
                Seal::Aegis(half)
            }
            Cipher::Aes256Gcm => {
                let key = UnboundKey::new(&AES_256_GCM, &self.key(card));
                Seal::Aes(Box::new(LessSafeKey::new(key.expect("the key has the length of the algorithm"))))
            }
            Cipher::Crc32c => Seal::Checksum(self.secret),
        }
    }

    /// The key of `card` (RFC 5869).
    pub(crate) fn key(&self, card: CardGeneration) -> [u8; KEY_LEN] {
        let card = if self.each_card { card.0 } else { 0 };
        let (which, card) = ([self.cipher as u8, self.direction as u8], card.to_le_bytes());
        let mut key = [0; KEY_LEN];
        let expanded = self.extracted.expand(&[&which, &card], KeyLen).and_then(|okm| okm.fill(&mut key));
        expanded.expect("a key is as long as one block of the hash");
        key
    }
}

struct KeyLen;

impl KeyType for KeyLen {
    fn len(&self) -> usize {
        KEY_LEN
    }
}

/// Opens the frames of one direction, whichever card has sealed them.
pub(crate) struct Opener {
    keys: FrameKeys,
    /// Of the card that was heard last. A forged frame may name any: it costs one derivation, and takes no place here.
    heard: Option<(CardGeneration, Seal)>,
}

impl Opener {
    pub(crate) fn new(keys: FrameKeys) -> Self {
        Self { keys, heard: None }
    }

    /// As [`Seal::open`], of a frame that names `card` as its sender.
    pub(crate) fn open<'a>(
        &mut self,
        card: CardGeneration,
        frame: &'a mut [u8],
        nonce: Nonce,
    ) -> Option<&'a mut [u8]> {
        if let Some((of, seal)) = &self.heard
            && *of == card
        {
            return seal.open(frame, nonce);
        }
        let seal = self.keys.seal(card);
        let body = seal.open(frame, nonce)?;
        self.heard = Some((card, seal));
        Some(body)
    }
}

/// The nonce of a frame: packet number and path, as its sender numbers that. Unique for the key of a card, whose packet
/// numbers only rise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nonce([u8; NONCE_LEN]);

impl Nonce {
    pub(crate) fn new(path: u8, packet_number: u64) -> Self {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&packet_number.to_le_bytes());
        nonce[8] = path;
        Self(nonce)
    }

    fn for_aes(self) -> AesNonce {
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&self.0[..12]);
        AesNonce::assume_unique_for_key(nonce)
    }
}

/// Whether a packet number is one that a card can come to. Far from where sums of it end.
pub(crate) fn packet_number_fits(packet_number: u64) -> bool {
    packet_number < 1 << 56
}

/// Both libraries choose among instructions when they run; which of them is faster depends on those (`docs/link.md`).
fn checksum(secret: &[u8; KEY_LEN], header: &[u8], body: &[u8]) -> [u8; TAG_LEN] {
    let parts = [&secret[..], header, body];
    let sum = if has_wide_multiplication() {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        parts.iter().for_each(|part| digest.update(part));
        digest.finalize() as u32
    } else {
        parts.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part))
    };
    let mut tag = [0; TAG_LEN];
    tag[..4].copy_from_slice(&sum.to_le_bytes());
    tag
}

/// Whether `crc-fast` is the faster one: elsewhere than on x86 nobody has measured.
fn has_wide_multiplication() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("vpclmulqdq");
    #[cfg(not(target_arch = "x86_64"))]
    return true;
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: [u8; KEY_LEN] = [7; KEY_LEN];
    const CARD: CardGeneration = CardGeneration(3);

    fn keys(secret: u8, cipher: Cipher, direction: Direction) -> FrameKeys {
        FrameKeys::new(&[secret; KEY_LEN], cipher, direction, true)
    }

    fn seal(cipher: Cipher) -> Seal {
        FrameKeys::new(&SECRET, cipher, Direction::ToCallee, true).seal(CARD)
    }

    #[test]
    fn a_changed_bit_anywhere_is_noticed() {
        for cipher in Cipher::ALL {
            let seal = seal(cipher);
            let nonce = Nonce::new(1, 9);
            let mut frame = vec![0x5a; OVERHEAD + 40];
            seal.seal(&mut frame, nonce);
            for bit in 0..frame.len() * 8 {
                let mut changed = frame.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let is_route = bit / 8 == ROUTE;
                assert_eq!(seal.open(&mut changed, nonce).is_some(), is_route, "bit {bit}, {cipher:?}");
            }
            for other in [Nonce::new(2, 9), Nonce::new(1, 8)] {
                let opens = seal.open(&mut frame.clone(), other).is_some();
                assert_eq!(opens, cipher == Cipher::Crc32c, "{cipher:?}: the header has them, too");
            }
            assert_eq!(seal.open(&mut frame, nonce).unwrap(), &[0x5a; 40]);
        }
    }

    #[test]
    fn a_frame_of_any_length_is_opened() {
        for cipher in Cipher::ALL {
            let seal = seal(cipher);
            for body in (0..200).chain([4096, crate::frame::MAX_FRAME - OVERHEAD]) {
                let mut frame = vec![0x5a; OVERHEAD + body];
                seal.seal(&mut frame, Nonce::new(0, 1));
                assert!(
                    body < 16 || cipher == Cipher::Crc32c || frame[HEADER_LEN..][..body] != vec![0x5a; body]
                );
                assert_eq!(seal.open(&mut frame, Nonce::new(0, 1)).unwrap(), vec![0x5a; body]);
            }
        }
    }

    #[test]
    fn a_private_frame_names_its_key_and_no_other_opens_it() {
        let (shm, other) = (Seal::shm(&SECRET), Seal::shm(&[8; KEY_LEN]));
        let nonce = Nonce::new(7, 9);
        let mut frame = vec![0x5a; OVERHEAD + 40];
        shm.seal(&mut frame, nonce);
        assert!(frame[frame.len() - TAG_LEN..] != [7; TAG_LEN]);
        for sealed in Cipher::ALL.map(seal).into_iter().chain([other]) {
            assert!(sealed.open(&mut frame.clone(), nonce).is_none());
        }
        assert_eq!(shm.open(&mut frame, nonce).unwrap(), &[0x5a; 40]);
    }

    #[test]
    fn the_key_of_a_frame_depends_on_everything_that_it_is_derived_from() {
        use {Cipher::*, Direction::*};
        let keys = [
            keys(1, Aegis128X2, ToCallee).key(CARD),
            keys(2, Aegis128X2, ToCallee).key(CARD),
            keys(1, Aes256Gcm, ToCallee).key(CARD),
            keys(1, Aegis128X2, ToCaller).key(CARD),
            keys(1, Aegis128X2, ToCallee).key(CardGeneration(4)),
        ];
        for (index, one) in keys.iter().enumerate() {
            // AEGIS-128X2 takes the first half.
            assert!(keys[index + 1..].iter().all(|other| other[..16] != one[..16]));
        }
    }

    #[test]
    fn each_card_is_heard_and_a_forged_frame_of_another_displaces_none() {
        let keys = || keys(1, Cipher::Aegis128X2, Direction::ToCallee);
        let mut opener = Opener::new(keys());
        let frame_of = |card| {
            let mut frame = vec![0x5a; OVERHEAD + 40];
            keys().seal(CardGeneration(card)).seal(&mut frame, Nonce::new(0, 1));
            frame
        };
        let mut open = |says, card| {
            let opened = opener.open(CardGeneration(says), &mut frame_of(card), Nonce::new(0, 1)).is_some();
            (opened, opener.heard.as_ref().map(|(card, _)| card.0))
        };
        assert_eq!(open(9, 1), (false, None));
        assert_eq!(open(1, 1), (true, Some(1)));
        assert_eq!(open(u64::MAX, 1), (false, Some(1)));
        assert_eq!(open(2, 2), (true, Some(2)));
    }

    #[test]
    fn nonces_differ_in_each_part() {
        assert_ne!(Nonce::new(0, 5), Nonce::new(1, 5));
        assert_ne!(Nonce::new(0, 5), Nonce::new(0, 6));
        let largest = Nonce::new(7, u64::MAX);
        assert_eq!(largest.0[12..], [0; 4], "AES-GCM's nonce has everything");
    }

    #[test]
    fn checksums_are_the_same_with_either_library() {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
        [&SECRET[..], &[1; 56], &[2; 5000]].iter().for_each(|part| digest.update(part));
        let sum = digest.finalize() as u32;
        assert_eq!(crc32c::crc32c_append(crc32c::crc32c(&[&SECRET[..], &[1; 56]].concat()), &[2; 5000]), sum);
        assert_eq!(checksum(&SECRET, &[1; 56], &[2; 5000])[..4], sum.to_le_bytes());
    }
}
