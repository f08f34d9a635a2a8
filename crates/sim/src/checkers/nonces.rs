//! No nonce is used twice under one key.

use std::collections::BTreeMap;

use link::PathId;
use link::frame::{Header, Kind};

use super::Verdict;

/// The packet numbers of the frames that have left, by key and path.
#[derive(Default)]
pub(crate) struct Nonces(BTreeMap<(u64, PathId), u64>);

impl Nonces {
    /// A frame leaves, sealed with the key of this fingerprint.
    pub(crate) fn sent(&mut self, key: u64, header: &Header) -> Verdict {
        if header.kind != Kind::Sealed {
            return Ok(());
        }
        let place = (key, header.path());
        match self.0.insert(place, header.packet_number) {
            Some(last) if header.packet_number <= last => Err(format!(
                "card {} sent packet {} on path {:?} after {last}",
                header.card_generation,
                header.packet_number,
                header.path()
            )),
            _ => Ok(()),
        }
    }
}
