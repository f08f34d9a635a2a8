//! Which of several paths takes the next frame with TLPs.

use core::time::Duration;

use base::ledger::Layout;
use base::times::PROBE_GRANULARITY;
use serde::{Deserialize, Serialize};

use crate::path::Outgoing;
use crate::paths::PathId;

/// How a node uses several rails to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Layout, Serialize, Deserialize)]
pub enum RailMode {
    /// All of them at once: each frame takes the path on which it is expected to arrive first.
    #[default]
    Balance,
    /// The first of them that is as quick as any, until it fails or is slow.
    Standby,
}

/// What was chosen last, so that the next choice differs only for a reason.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    pub(crate) mode: RailMode,
    last: Option<PathId>,
}

impl Choice {
    /// What was chosen last.
    pub(crate) fn last(&self) -> Option<PathId> {
        self.last
    }

    /// Chooses one of `fit`, paths in the order of preference.
    pub(crate) fn choose<'p>(
        &mut self,
        fit: impl Iterator<Item = (usize, PathId, &'p Outgoing)> + Clone,
    ) -> Option<usize> {
        let (at, id, _) = match self.mode {
            RailMode::Balance => self.earliest(fit),
            RailMode::Standby => self.first_quick(fit),
        }?;
        self.last = Some(id);
        Some(at)
    }

    fn earliest<'p>(
        &self,
        fit: impl Iterator<Item = (usize, PathId, &'p Outgoing)>,
    ) -> Option<(usize, PathId, &'p Outgoing)> {
        // To change paths has to be worth it.
        let weighed = |id: PathId, time: Duration| if self.last == Some(id) { time } else { time * 9 / 8 };
        fit.min_by_key(|(_, id, path)| weighed(*id, path.expected()))
    }

    /// Round trips vary: the one that is in use has to be twice as long as another, and one that was left comes back
    /// before it is as short.
    fn first_quick<'p>(
        &self,
        fit: impl Iterator<Item = (usize, PathId, &'p Outgoing)> + Clone,
    ) -> Option<(usize, PathId, &'p Outgoing)> {
        let least = fit.clone().map(|(_, _, path)| path.expected_round_trip()).min()?;
        let most = |is_last: bool| match is_last {
            true => least * 2 + PROBE_GRANULARITY,
            false => least + least / 2 + PROBE_GRANULARITY / 2,
        };
        let mut fit = fit;
        fit.find(|(_, id, path)| path.expected_round_trip() <= most(self.last == Some(*id)))
    }
}
