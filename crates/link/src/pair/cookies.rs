//! Cookies: under load, whoever calls shows first that it is where it says, as in WireGuard (§5.4.7 of its paper).
//!
//! A first message ends with two marks. The first one shows that its sender knows the public key of whom it calls. The
//! second one is made with a cookie: a MAC of the address that the message came from, under a secret of the card that
//! changes. A node under load answers a message without it by the cookie, sealed, for two MACs and one AEAD, and
//! remembers nothing.

use core::time::Duration;

use aegis::aegis256::Aegis256;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use base::Instant;

use crate::frame::{HEADER_LEN, Header, Kind, ROUTE, TAG_LEN};
use crate::handshake::derive;
use crate::identity::PublicKey;

/// Bytes of a cookie, and of a mark.
const COOKIE_LEN: usize = 16;
/// Bytes of the random part of an answer.
const NONCE_LEN: usize = 32;
/// For how long a secret makes cookies, and whoever got one uses it.
pub(crate) const COOKIE_LIFE: Duration = Duration::from_secs(120);
/// Bytes of a sealed cookie.
pub(crate) const SEALED_LEN: usize = NONCE_LEN + COOKIE_LEN + TAG_LEN;
/// Bytes of a frame that brings a cookie.
pub(crate) const REPLY_LEN: usize = HEADER_LEN + SEALED_LEN;
/// Bytes behind the message of a first frame: the mark, and that of the cookie.
pub(crate) const MARKS_LEN: usize = 2 * TAG_LEN;

const SECRET: u64 = u64::from_le_bytes(*b"cookies\0");
const SEALING: u64 = u64::from_le_bytes(*b"cookie\0\0");

/// What a caller has been given, for calls from where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cookie([u8; COOKIE_LEN]);

/// Makes and checks cookies.
pub(crate) struct Cookies {
    seed: [u8; 32],
    made: u64,
}

impl Cookies {
    /// With a seed that nobody else has.
    pub(crate) fn new(seed: &[u8; 32]) -> Self {
        Self { seed: derive(seed, SECRET), made: 0 }
    }

    /// The cookie of who is at the address with these bytes.
    fn cookie(&self, period: u64, from: &[u8]) -> Cookie {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &derive(&self.seed, period));
        let mut cookie = [0; COOKIE_LEN];
        cookie.copy_from_slice(&hmac::sign(&key, from).as_ref()[..COOKIE_LEN]);
        Cookie(cookie)
    }

    /// Whether a first message was made with a cookie for the address that it came from, be it one of the secret before
    /// the present one.
    pub(crate) fn is_proven(&self, now: Instant, frame: &[u8], from: &[u8]) -> bool {
        let period = period(now);
        [Some(period), period.checked_sub(1)]
            .into_iter()
            .flatten()
            .any(|period| self.cookie(period, from).is_in(frame))
    }

    /// Turns a first message that bears the mark of `called` into the answer that brings a cookie: its length, which is
    /// less. `header` is the answer's.
    pub(crate) fn answer(
        &mut self,
        now: Instant,
        called: &PublicKey,
        header: Header,
        frame: &mut [u8],
        from: &[u8],
    ) -> usize {
        let mark = mark_in(frame);
        write_header(header, &mark, frame);
        let sealed = self.seal(now, called, from, &associated(frame, &mark));
        frame[HEADER_LEN..REPLY_LEN].copy_from_slice(&sealed);
        REPLY_LEN
    }

    /// The cookie of who is at the address with these bytes and has called `called`, sealed, and bound to what is
    /// `associated`.
    pub(crate) fn seal(
        &mut self,
        now: Instant,
        called: &PublicKey,
        from: &[u8],
        associated: &[u8],
    ) -> [u8; SEALED_LEN] {
        let Cookie(mut cookie) = self.cookie(period(now), from);
        self.made += 1;
        // Periods are few, so this is never one of their secrets.
        let nonce = derive(&self.seed, u64::MAX - self.made);
        let tag = Aegis256::<TAG_LEN>::new(&key_of(called), &nonce).encrypt_in_place(&mut cookie, associated);
        let mut sealed = [0; SEALED_LEN];
        sealed.copy_from_slice(&[&nonce[..], &cookie, &tag].concat());
        sealed
    }
}

/// Answers to which first message a cookie is: the packet number of its header.
pub(crate) fn answers(header: &Header, mark: &[u8; TAG_LEN]) -> bool {
    header.packet_number == number_of(mark)
}

/// The mark of a first message, which holds both.
pub(crate) fn mark_in(frame: &[u8]) -> [u8; TAG_LEN] {
    let marks = frame.last_chunk::<MARKS_LEN>().copied().unwrap_or_default();
    let mut mark = [0; TAG_LEN];
    mark.copy_from_slice(&marks[..TAG_LEN]);
    mark
}

impl Cookie {
    /// Reads the answer of `called` to the first message with this mark.
    pub(crate) fn read(called: &PublicKey, mark: &[u8; TAG_LEN], frame: &[u8]) -> Option<Self> {
        let (_, body) = frame.split_at_checked(HEADER_LEN).filter(|_| frame.len() == REPLY_LEN)?;
        Self::open(called, body, &associated(frame, mark))
    }

    /// Opens what [`Cookies::seal`] has made.
    pub(crate) fn open(called: &PublicKey, sealed: &[u8], associated: &[u8]) -> Option<Self> {
        let (nonce, rest) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let (sealed, tag) = rest.split_first_chunk::<COOKIE_LEN>()?;
        let (mut cookie, tag) = (*sealed, <&[u8; TAG_LEN]>::try_from(tag).ok()?);
        let seal = Aegis256::<TAG_LEN>::new(&key_of(called), nonce);
        seal.decrypt_in_place(&mut cookie, tag, associated).ok()?;
        Some(Self(cookie))
    }

    /// Makes the last mark of a first message.
    pub(crate) fn mark(&self, frame: &mut [u8]) {
        let mark = self.mark_of(frame);
        if let Some(place) = frame.last_chunk_mut() {
            *place = mark;
        }
    }

    fn is_in(&self, frame: &[u8]) -> bool {
        let mark = self.mark_of(frame);
        frame.last_chunk::<TAG_LEN>().is_some_and(|last| verify_slices_are_equal(last, &mark).is_ok())
    }

    fn mark_of(&self, frame: &[u8]) -> [u8; TAG_LEN] {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        // A switch changes the route.
        let (before, behind) = frame.split_at_checked(ROUTE).unwrap_or((frame, &[]));
        context.update(before);
        context.update(behind.get(1..behind.len().saturating_sub(TAG_LEN)).unwrap_or_default());
        let mut mark = [0; TAG_LEN];
        mark.copy_from_slice(&context.sign().as_ref()[..TAG_LEN]);
        mark
    }
}

fn period(now: Instant) -> u64 {
    now.as_nanos() / COOKIE_LIFE.as_nanos() as u64
}

fn key_of(called: &PublicKey) -> [u8; 32] {
    derive(&called.0, SEALING)
}

fn number_of(mark: &[u8; TAG_LEN]) -> u64 {
    let [a, b, c, d, e, f, g, _, ..] = *mark;
    // As other packet numbers, it has at most 56 bits.
    u64::from_le_bytes([a, b, c, d, e, f, g, 0])
}

fn write_header(header: Header, mark: &[u8; TAG_LEN], frame: &mut [u8]) {
    Header { kind: Kind::Cookie, packet_number: number_of(mark), ..header }.write(frame);
}

/// What a cookie is bound to: the header, but for the route, and the message that it answers.
fn associated(frame: &[u8], mark: &[u8; TAG_LEN]) -> Vec<u8> {
    let mut bound = frame.get(..HEADER_LEN).unwrap_or_default().to_vec();
    if let Some(route) = bound.get_mut(ROUTE) {
        *route = 0;
    }
    bound.extend(mark);
    bound
}
