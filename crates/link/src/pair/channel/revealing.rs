//! Frames are opened once more, for whoever captures them.

use super::Channel;
use crate::frame::{Header, Kind, ROUTE, TAG_LEN};
use crate::handshake::Destination;
use crate::seal::{Nonce, Seal};

impl Channel<'_> {
    /// Whether a frame that this node has sent may have been sent to the peer of this channel: both are numbered by the
    /// peer, so others can have the same numbers, though hardly in the same domain.
    pub fn may_have_sent(&self, header: &Header) -> bool {
        let to = Destination::of_keys(self.agreed());
        (to.domain, to.channel) == (header.destination.domain, header.channel)
    }

    /// Opens, in place, a copy of a sealed frame that was sent here, or has come and was not looked at yet. Its tag,
    /// which is of no use then, becomes zeroes: whoever sees the frame later knows it by that as opened. False where
    /// these are not the keys, or nothing is sealed; the copy then makes no sense any more. What the channel does about
    /// the frame itself stays the same.
    pub fn reveal(&mut self, frame: &mut [u8], is_sent: bool) -> bool {
        let Ok(header) = Header::parse(frame) else { return false };
        let which = self.which_keys(header.key_id).filter(|_| header.kind == Kind::Sealed);
        let Some(sealing) = which.and_then(|which| self.sealing_mut(which)) else { return false };
        if let Seal::Checksum(_) = sealing.send {
            return false;
        }
        let nonce = Nonce::new(header.path().reversed().number(), header.packet_number);
        // Opening forgets it.
        let route = frame[ROUTE];
        let opened = match is_sent {
            true => sealing.send.open(frame, nonce).is_some(),
            false => sealing.receive.open(header.card_generation, frame, nonce).is_some(),
        };
        if opened {
            frame[ROUTE] = route;
            let tag = frame.len() - TAG_LEN;
            frame[tag..].fill(0);
        }
        opened
    }
}
