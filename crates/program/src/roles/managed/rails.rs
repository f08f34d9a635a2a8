//! Rails that this node finds dead, its own and those of others: as long as it does, its manager is told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base::ids::{NodeId, RailId};
use io::agent::Agent;
use manager::machine::RAILS_SAID_MAX;
use manager::report::{DeadRail, RailCause};
use node::{Notice, NoticeCause};

/// What a card has found out its gauges show a little later.
const LATER: Duration = Duration::from_secs(2);

/// A rail of a node.
type Key = (NodeId, RailId);

/// Those that are dead.
#[derive(Default)]
pub(super) struct Rails(BTreeMap<Key, (NoticeCause, Instant)>);

impl Rails {
    /// The card, or the system, has found out that one seems to have failed.
    pub(super) fn note(&mut self, now: Instant, notice: Notice) {
        let key = (notice.node, notice.rail);
        if self.0.len() < RAILS_SAID_MAX || self.0.contains_key(&key) {
            self.0.insert(key, (notice.cause, now));
        }
    }

    /// Forgets those that answer, or of which nothing can be known any more.
    pub(super) fn look(&mut self, now: Instant, agent: &Agent) {
        if self.0.is_empty() {
            return;
        }
        let own = agent.view().spec().identity.id();
        let paths = paths(agent);
        self.0.retain(|(node, rail), (cause, noted)| {
            let has_carrier = *node != own || agent.has_carrier(*rail);
            let is_dead = match cause {
                NoticeCause::Carrier => !has_carrier,
                NoticeCause::Silence => is_silent(&paths, own, (*node, *rail)) || !has_carrier,
            };
            is_dead || now < *noted + LATER
        });
    }

    /// As the manager is told it.
    pub(super) fn said(&self) -> Vec<DeadRail> {
        let said = |((node, rail), (cause, _)): (&Key, &(NoticeCause, Instant))| {
            let cause = match cause {
                NoticeCause::Silence => RailCause::Silence,
                NoticeCause::Carrier => RailCause::Carrier,
            };
            DeadRail { node: *node, rail: *rail, cause }
        };
        self.0.iter().map(said).collect()
    }
}

/// A rail that the manager names, as others name it.
pub(super) fn notice(DeadRail { node, rail, cause }: DeadRail) -> Notice {
    let cause = match cause {
        RailCause::Silence => NoticeCause::Silence,
        RailCause::Carrier => NoticeCause::Carrier,
    };
    Notice { node, rail, cause }
}

/// A way to another node.
struct Path {
    own: RailId,
    peer: Key,
    is_up: bool,
}

/// All that lead to nodes with which there is a loan.
fn paths(agent: &Agent) -> Vec<Path> {
    let view = agent.view();
    let mut paths = Vec::new();
    for (_, cells) in view.loans() {
        let Some((peer, _)) = cells.edge().peer() else { continue };
        for rail in &view.spec().rails {
            let seen = view.rail(cells, rail);
            let Some(to) = seen.to.filter(|_| seen.peer.is_some()) else { continue };
            paths.push(Path { own: rail.id, peer: (peer, to), is_up: seen.up });
        }
    }
    paths
}

/// Whether nothing answers over a rail of this node, `own`, or on one of another.
fn is_silent(paths: &[Path], own: NodeId, key: Key) -> bool {
    let leads = |path: &&Path| if key.0 == own { path.own == key.1 } else { path.peer == key };
    let mut over = paths.iter().filter(leads).peekable();
    over.peek().is_some() && over.all(|path| !path.is_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_silent_as_long_as_nothing_answers_there() {
        let [own, store, vault] = [1, 2, 3].map(NodeId::numbered);
        let [first, second] = [RailId::ALL[0], RailId::ALL[1]];
        let path = |own, node, to, is_up| Path { own, peer: (node, to), is_up };
        let paths = [
            path(first, store, first, true),
            path(second, store, second, false),
            path(first, vault, first, true),
            path(second, vault, second, true),
        ];
        let silent = |node, rail| is_silent(&paths, own, (node, rail));
        assert!(silent(store, second), "of the other one");
        assert!(!silent(store, first) && !silent(vault, second));
        assert!(!silent(own, second), "another one answers over it");
        assert!(is_silent(&paths[..2], own, (own, second)), "nobody does");
        assert!(
            !silent(NodeId::numbered(4), first) && !silent(own, RailId::ALL[3]),
            "of which nothing is known"
        );
    }

    #[test]
    fn what_was_found_out_is_said_and_there_is_an_end_to_it() {
        let now = Instant::now();
        let mut rails = Rails::default();
        for number in 0..2 * RAILS_SAID_MAX as u64 {
            let (node, rail) = (NodeId::numbered(number), RailId::ALL[0]);
            rails.note(now, Notice { node, rail, cause: NoticeCause::Carrier });
        }
        let said = rails.said();
        assert_eq!((said.len(), said[0].cause), (RAILS_SAID_MAX, RailCause::Carrier));
        assert_eq!(notice(said[1]).node, NodeId::numbered(1));
    }
}
