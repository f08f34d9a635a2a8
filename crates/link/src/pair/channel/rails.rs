//! Which rails the two ends have, and what follows for the paths.
//!
//! Each end says hello with its rails when it is met, when its card is new, and when they have changed, until that is
//! heard. Whatever is authentic shows that its sender has the rail that it left on, so an end is answered before its
//! hello was heard. A peer that lies of its rails has none of ours send anywhere but to where it has proven to be: it
//! gets less than it could have.

use base::Instant;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Channel, MAX_RAILS};
use crate::choice::RailMode;
use crate::paths::{self, PathConfig, PathId, PathSet, Rails};

/// What a peer has said and shown of its rails, as bits.
#[derive(Clone, Copy, PartialEq, Default, FromBytes, IntoBytes, Immutable, base::ledger::Layout)]
#[repr(C)]
pub(super) struct PeerRails {
    /// As its last hello says; 0: there was none.
    told: u8,
    /// On which something has come.
    heard: u8,
    reserved: u16,
    /// Which edition of its card that was.
    edition: u32,
}

impl PeerRails {
    /// Those that it has, as far as that is known; where it has told nothing, lines may have `said` something.
    pub(super) fn known(self, said: &Rails) -> u8 {
        if self.told != 0 { self.told } else { self.heard | paths::mask(said) }
    }

    /// Those that it may have.
    fn possible(self, said: &Rails) -> u8 {
        self.told | self.heard | paths::mask(said)
    }
}

impl Channel<'_> {
    /// These are the rails of this end from now on. What was in flight on one that is gone is sent again; one that has
    /// come carries TLPs only when it has answered, and none if its frames are too small for what was agreed.
    pub fn set_rails(&mut self, now: Instant, rails: [Option<PathConfig>; MAX_RAILS]) {
        if self.config.rails == rails {
            return;
        }
        self.config.rails = rails;
        self.paths.set_own(&rails);
        self.edition = self.edition.saturating_add(1);
        let is_there = |path: PathId| path.rails().is_some_and(|(own, _)| rails[own.index()].is_some());
        self.handshake.due.retain(is_there);
        self.handshake.answered_paths.retain(is_there);
        if self.current.is_some() {
            self.greeting.begin(now);
        }
        self.pair(now);
    }

    /// The other end is said to have these rails from now on.
    pub fn set_peer_rails(&mut self, now: Instant, rails: [Option<PathConfig>; MAX_RAILS]) {
        if self.config.peer_rails != rails {
            self.config.peer_rails = rails;
            self.paths.set_said(&rails);
            self.pair(now);
        }
    }

    /// So several rails are used from now on.
    pub fn set_rail_mode(&mut self, mode: RailMode) {
        self.paths.set_mode(mode);
    }

    /// It is known where the peer is on these paths; what has TLPs leaves on others only where it is known on none.
    pub fn set_found(&mut self, paths: impl Iterator<Item = PathId>) {
        self.paths.set_found(paths.collect());
    }

    /// The paths that a first message takes: to all rails that the other end may have.
    pub(super) fn paths_to_call(&self) -> PathSet {
        let peer = self.cells.peer_rails.get().possible(&self.config.peer_rails);
        paths::pairs(paths::mask(&self.config.rails), peer).collect()
    }

    /// Whether a first message that may be answered has taken this path.
    pub(super) fn has_called_on(&self, path: PathId) -> bool {
        self.handshake.called.contains(path)
    }

    /// The rails of this end, as it says hello.
    pub(super) fn own_rails(&self) -> u8 {
        paths::mask(&self.config.rails)
    }

    /// The peer has said which rails it has. What an earlier edition said may come late.
    pub(super) fn hear_rails(&mut self, now: Instant, rails: u8, edition: u32) {
        let (known, told) = (self.cells.peer_rails.get(), rails & ((1 << MAX_RAILS) - 1));
        // Who has no rail has no way to say so.
        if told == 0 || (known.told != 0 && edition < known.edition) {
            return;
        }
        self.handshake.is_told = true;
        let news = PeerRails { told, edition, ..known };
        if news != known {
            self.cells.peer_rails.set(self.journal, news);
            self.pair(now);
        }
    }

    /// Something authentic has come on this path of the list.
    pub(super) fn hear_path(&mut self, now: Instant, path: usize) {
        self.paths[path].heard(now);
        let Some((_, rail)) = self.paths[path].id.rails() else { return };
        let bit = 1 << rail.get();
        let known = self.cells.peer_rails.get();
        if known.heard & bit == 0 {
            self.cells.peer_rails.set(self.journal, PeerRails { heard: known.heard | bit, ..known });
            if known.told == 0 {
                let id = self.paths[path].id;
                self.pair(now);
                // Others may be listed before it now.
                let path = self.path_of(now, id);
                self.paths[path].trust();
            }
        }
    }

    /// The answer to a call of ours has come on this path, so the peer has that rail now. If it has told otherwise,
    /// both ends have other rails than either knows: what it told holds no more, until it says hello again. If it has
    /// told nothing, since it is another life than before, this is what is known of it.
    pub(super) fn hear_answer(&mut self, now: Instant, path: PathId) {
        let Some((_, rail)) = path.rails() else { return };
        let (known, bit) = (self.cells.peer_rails.get(), 1 << rail.get());
        let believed = if known.told != 0 { known.told } else { known.heard };
        let is_older = known.told != 0 && self.handshake.is_told;
        if believed & bit == 0 && !is_older {
            let heard = if known.told != 0 { bit } else { known.heard | bit };
            self.cells.peer_rails.set(self.journal, PeerRails { told: 0, heard, ..known });
            self.pair(now);
            let path = self.path_of(now, path);
            self.paths[path].heard(now);
            self.paths[path].trust();
        }
    }

    /// The peer's card is new: its editions begin anew.
    pub(super) fn forget_edition(&mut self) {
        let known = self.cells.peer_rails.get();
        if known.edition != 0 {
            self.cells.peer_rails.set(self.journal, PeerRails { edition: 0, ..known });
        }
    }

    /// The peer may be another one: nothing is known of its rails.
    pub(super) fn forget_rails(&mut self, now: Instant) {
        if self.cells.peer_rails.get() != PeerRails::default() {
            self.cells.peer_rails.set(self.journal, PeerRails::default());
        }
        self.pair(now);
    }

    /// Which paths there are follows from the rails of both ends.
    fn pair(&mut self, now: Instant) {
        let keys = self.agreed();
        let payload = if keys.is_valid() { keys.max_payload as usize } else { 0 };
        let (cells, fates) = (self.cells, &mut self.fates);
        let peer = cells.peer_rails.get().known(&self.config.peer_rails);
        let seen_below = |path: PathId| cells.seen[path.index()].get();
        self.paths.pair(now, (peer, payload), seen_below, &mut |carried| fates.push_back((carried, false)));
    }
}
