//! Rails that seem to have failed: what the peer is told of them, and what a notice changes here.

use base::ids::RailId;
use base::{Instant, Rule};

use super::{Channel, Event};
use crate::notice::Notice;
use crate::paths::Doubt;

/// Notices that wait to be sent: of more the oldest are dropped, since what matters shows itself as well.
const NOTICES: usize = 16;

impl Channel<'_> {
    /// Has the peer told of a rail that seems to have failed, once, and without waiting for an answer. Where nobody is
    /// met it need not know.
    pub fn notify(&mut self, notice: Notice) {
        if !self.is_met() || self.notices.contains(&notice) {
            return;
        }
        if self.notices.len() == NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// A rail of this end, or one of the peer's, may have failed: other paths take over until it has answered, which it
    /// is asked to do at once. What is in flight is sent again only where the failure is `certain`.
    pub fn doubt(&mut self, now: Instant, own: Option<RailId>, peer: Option<RailId>, certain: bool) {
        let fates = &mut self.fates;
        let doubt = Doubt { own, peer, certain };
        self.paths.doubt(now, doubt, &mut |carried| fates.push_back((carried, false)));
    }

    /// These rails of this end, as bits, have no carrier from now on: they are doubted, for certain.
    pub fn set_lost_carriers(&mut self, now: Instant, rails: u8) {
        let fates = &mut self.fates;
        self.paths.set_lost_carriers(now, rails, &mut |carried| fates.push_back((carried, false)));
    }

    /// Whether the peer does not answer what was asked of it over this rail of this end, where it has answered before,
    /// while it answers elsewhere.
    pub fn is_silent_on(&self, own: RailId) -> bool {
        self.paths.is_silent_on(own, self.journal.rule(Rule::AnswerElsewhere))
    }

    /// Says of which rails of the peer nothing was heard any more, though it answers on others.
    pub(super) fn report_silent(&mut self) {
        let silent = self.paths.take_silent(self.journal.rule(Rule::AnswerElsewhere));
        let rails = RailId::ALL.into_iter().filter(|rail| silent & 1 << rail.get() != 0);
        self.events.extend(rails.map(Event::Silent));
    }
}
