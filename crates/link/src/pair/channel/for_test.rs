//! What tests see and do that no driver can: mostly what a peer does that is broken.

use base::Instant;
use base::ids::StreamId;

use super::{Channel, Streams};
use crate::frame::{HEADER_LEN, OVERHEAD};
use crate::handshake::{Answer, Proposal};
use crate::paths::PathId;
use crate::record::Status;
use crate::sealing::Wear;

impl<'m> Channel<'m> {
    /// Whether somebody has been let in who has not come yet.
    pub(in crate::pair) fn has_pending_for_test(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether a key set of this id is good for receiving.
    pub(in crate::pair) fn is_key_id_for_test(&self, id: u8) -> bool {
        let keys = [&self.cells.current, &self.cells.previous].map(base::ledger::Cell::get);
        keys.iter().any(|keys| keys.is_valid() && keys.id == u32::from(id))
    }

    /// How worn the keys are.
    pub(in crate::pair) fn wear_for_test(&mut self) -> &mut Wear {
        &mut self.wear
    }

    /// The peer has said which rails it has.
    pub(in crate::pair) fn hear_rails_for_test(&mut self, now: Instant, rails: u8, edition: u32) {
        self.hear_rails(now, rails, edition);
    }

    /// The number of the next packet on a path.
    pub(in crate::pair) fn next_number_for_test(&self, path: PathId) -> u64 {
        self.paths.index_of(path).map_or(0, |at| self.paths[at].outgoing.next_number())
    }

    /// Whether a packet of this number on a path, or a later one, was acknowledged.
    pub(in crate::pair) fn has_answered_for_test(&self, path: PathId, number: u64) -> bool {
        self.paths.index_of(path).is_some_and(|at| self.paths[at].outgoing.has_answered(number))
    }

    /// A handshake begins, whatever there is.
    pub(in crate::pair) fn call_for_test(&mut self, now: Instant) {
        self.call(now);
    }

    /// Its next attempt is that much later.
    pub(in crate::pair) fn skip_attempts_for_test(&mut self, count: u64) {
        self.cells.attempt.update(self.journal, |attempt| attempt + count);
    }

    /// What it would answer.
    pub(in crate::pair) fn answer_for_test(
        &self,
        proposal: &Proposal,
        streams: &mut dyn Streams<'m>,
    ) -> Answer {
        self.answer_to(proposal, streams)
    }

    /// The next frame tells a false status.
    pub(in crate::pair) fn lie_for_test(&mut self, id: StreamId, committed: u64) {
        let (committed, most) = (committed.into(), (1 << 40).into());
        let status = Status { committed, posted_headers: most, posted_data: most, non_posted_headers: most };
        self.lies.push((id, status));
        self.debts.owe(id, true);
    }

    /// A frame with this body, authentic whatever that is.
    pub(in crate::pair) fn write_for_test(&mut self, stream: StreamId, body: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; OVERHEAD + body.len()];
        frame[HEADER_LEN..][..body.len()].copy_from_slice(body);
        self.seal(self.paths.best().expect("there is a path"), (stream, Default::default()), &mut frame);
        frame
    }
}
