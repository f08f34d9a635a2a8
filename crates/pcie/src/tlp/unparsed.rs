//! What can be said of a packet that does not parse: enough for the link to go on behind it.

use super::common::Dword0;
use super::{Completion, CompletionStatus, FlowClass, dwords};
use crate::id::{Bdf, Tag};
use crate::spec::{DATA_CREDIT_BYTES, DWORD_BYTES, HEADER_BYTES_MAX, HEADER_BYTES_MIN, dword0, fmt_type};

/// A packet of an unsupported kind, or one that breaks a rule: its extent and class, which the first dword alone tells,
/// whatever the kind (PCIe 6.0 §2.2.1.1).
///
/// A receiver discards it and accounts for its credits (PCIe 6.0 §2.3.1, §2.6.1); a request that waits for an answer
/// gets one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unparsed {
    class: FlowClass,
    payload_len: usize,
    total_len: usize,
    requester: Bdf,
    tag: Tag,
}

impl Unparsed {
    /// Reads the packet at the start of `bytes`, which [`super::TlpView::parse`] refuses. `None` where its end cannot
    /// be told: in a prefix or a reserved format, or where the bytes end before it.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [d0, d1] = dwords(bytes, 0).ok()?;
        let (kind, first) = ((d0 >> dword0::FMT_TYPE_SHIFT) as u8, Dword0::decode(d0));
        if kind & fmt_type::NO_HEADER != 0 {
            return None;
        }
        let header_len = if kind & fmt_type::FOUR_DW != 0 { HEADER_BYTES_MAX } else { HEADER_BYTES_MIN };
        let payload_len = match kind & fmt_type::WITH_DATA {
            0 => 0,
            _ => usize::from(first.length_dw()) * DWORD_BYTES,
        };
        let digest_len = if d0 & dword0::DIGEST != 0 { DWORD_BYTES } else { 0 };
        let total_len = header_len + payload_len + digest_len;
        (total_len <= bytes.len()).then(|| Self {
            class: class_of(kind),
            payload_len,
            total_len,
            requester: Bdf((d1 >> 16) as u16),
            tag: first.tag((d1 >> 8) as u8),
        })
    }

    /// The queue and the credits it uses.
    pub fn class(&self) -> FlowClass {
        self.class
    }

    /// Data credits it uses, in units of 16 bytes.
    pub fn data_credits(&self) -> u16 {
        // At most 4096 / 16.
        self.payload_len.div_ceil(DATA_CREDIT_BYTES) as u16
    }

    /// Bytes of the packet.
    pub fn total_len(&self) -> usize {
        self.total_len
    }

    /// The answer to a request that waits for one: unsupported. No function has taken it, so the completer is 0.
    pub fn refusal(&self) -> Option<Completion> {
        (self.class == FlowClass::NonPosted).then(|| {
            let status = CompletionStatus::UnsupportedRequest;
            Completion::without_data(self.requester, self.tag, Bdf(0), status)
        })
    }
}

/// Which class any kind belongs to (PCIe 6.0 §2.4.1): memory writes and messages are posted, whatever is no completion
/// waits for one.
fn class_of(kind: u8) -> FlowClass {
    const TYPE: u8 = 0x1f;
    const MEMORY: u8 = 0x00;
    const COMPLETION: u8 = 0x0a;
    const COMPLETION_LOCKED: u8 = 0x0b;
    const MESSAGE: u8 = 0x10;
    match kind & TYPE {
        MEMORY if kind & fmt_type::WITH_DATA != 0 => FlowClass::Posted,
        COMPLETION | COMPLETION_LOCKED => FlowClass::Completion,
        routed if routed & !fmt_type::MESSAGE_ROUTING == MESSAGE => FlowClass::Posted,
        _ => FlowClass::NonPosted,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tlp::TlpView;

    #[test]
    fn unsupported_kinds_have_an_end_and_a_class() {
        // FetchAdd with one dword, I/O read, a message with two dwords, a memory write that breaks a rule, with a
        // digest.
        let rows: [([u8; 4], usize, FlowClass); 4] = [
            ([0x4c, 0, 0, 1], 16, FlowClass::NonPosted),
            ([0x02, 0, 0, 1], 12, FlowClass::NonPosted),
            ([0x74, 0, 0, 2], 24, FlowClass::Posted),
            ([0x40, 0, 0x80, 1], 20, FlowClass::Posted),
        ];
        for (first, len, class) in rows {
            let mut bytes = [0; 64];
            bytes[..8].copy_from_slice(&[first[0], first[1], first[2], first[3], 0x12, 0x34, 7, 0xff]);
            let read = Unparsed::read(&bytes).unwrap();
            assert_eq!((read.total_len(), read.class()), (len, class), "{first:x?}");
            assert!(Unparsed::read(&bytes[..len - 1]).is_none());
            let refusal = read.refusal().map(|refusal| (refusal.requester, refusal.tag.get()));
            let expected = (class == FlowClass::NonPosted).then_some((Bdf(0x1234), 7));
            assert_eq!(refusal, expected);
        }
        assert!(Unparsed::read(&[0x80; 64]).is_none(), "a prefix is no packet");
    }

    proptest! {
        /// Where both can read a packet, they agree.
        #[test]
        fn any_bytes_have_the_extent_of_the_packet_that_they_are(
            kind in proptest::sample::select(vec![0x00_u8, 0x20, 0x40, 0x60, 0x04, 0x44, 0x0a, 0x4a, 0x34, 0x74]),
            rest in proptest::collection::vec(any::<u8>(), 100),
        ) {
            let mut bytes = rest;
            bytes[0] = kind;
            (bytes[1], bytes[2]) = (bytes[1] & 0x88, bytes[2] & 0x80);
            let unparsed = Unparsed::read(&bytes);
            if let Ok(tlp) = TlpView::parse(&bytes) {
                let read = unparsed.expect("it is all there");
                prop_assert_eq!(read.total_len(), tlp.total_len());
                prop_assert_eq!(read.class(), tlp.header().class());
                prop_assert_eq!(read.data_credits(), tlp.header().data_credits());
            }
        }
    }
}
