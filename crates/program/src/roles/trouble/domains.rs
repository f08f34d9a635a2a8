//! Nodes with one domain. Addresses tell nodes apart by their domains; a loan between two such nodes works, as nobody
//! stands between them, but a fabric that has both would not know which is meant.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::ids::{DomainBlock, DomainId, NodeId};
use io::event::Event;

use super::Spoken;

/// The domains that are known to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::roles) struct Domains {
    pub(in crate::roles) node: NodeId,
    /// The node's own, and those of its virtual machines.
    pub(in crate::roles) block: DomainBlock,
    /// Those of its peers.
    pub(in crate::roles) peers: BTreeMap<NodeId, Member>,
}

/// A peer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::roles) struct Member {
    /// What it calls itself, or its id.
    pub(in crate::roles) name: String,
    /// Its own, and those in which it wants what this node lends.
    pub(in crate::roles) domains: BTreeSet<DomainId>,
}

/// Which of them have been said.
#[derive(Debug, Default)]
pub(super) struct Watch(Spoken<()>);

impl Watch {
    pub(super) fn look(&mut self, now: Duration, domains: &Domains, news: &mut Vec<Event>) {
        let Domains { node: own, block, peers } = domains;
        // Another life of this node is something else.
        let mut others = peers.iter().filter(|(node, _)| *node != own);
        while let Some((node, peer)) = others.next() {
            for &domain in &peer.domains {
                if block.contains(domain) {
                    let what = words_of_own(domains, domain, &peer.name, *node);
                    self.say(now, domain, [*own, *node], what, news);
                }
                for (other, _) in others.clone().filter(|(_, it)| it.domains.contains(&domain)) {
                    let what = words_of_peers(domains, domain, [*node, *other]);
                    self.say(now, domain, [*node, *other], what, news);
                }
            }
        }
    }

    fn say(
        &mut self,
        now: Duration,
        domain: DomainId,
        nodes: [NodeId; 2],
        what: String,
        news: &mut Vec<Event>,
    ) {
        let [node, peer] = nodes.map(|node| node.to_string());
        // It is so until one of the two is started anew.
        if self.0.begins(&format!("{} {node} {peer}", domain.0), now, ()) {
            news.push(Event::DomainShared { domain: domain.0, node, peer, what });
        }
    }
}

const MEND: &str =
    "with `domain_block` in its configuration file, or a new identity with --state-dir or `state_dir`";

fn words_of_own(Domains { node, block, .. }: &Domains, domain: DomainId, name: &str, peer: NodeId) -> String {
    match block.node() == domain {
        true => format!(
            "this node, {node}, and its peer {name}, {peer}, have the same domain, {}: give one of them others {MEND}",
            domain.0
        ),
        false => format!(
            "domain {} of {name}, {peer}, is one of the domains {block} of this node, {node}, and of its virtual \
             machines: give one of them others {MEND}",
            domain.0
        ),
    }
}

fn words_of_peers(domains: &Domains, domain: DomainId, nodes: [NodeId; 2]) -> String {
    let [one, other] = nodes.map(|node| format!("{}, {node},", domains.peers[&node].name));
    format!(
        "two peers of this node, {one} and {other} have the same domain, {}: give one of them others {MEND}",
        domain.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(watch: &mut Watch, second: u64, peers: &[(u64, &[u32])]) -> Vec<String> {
        let member = |(node, domains): &(u64, &[u32])| {
            let domains = domains.iter().copied().map(DomainId).collect();
            (NodeId::numbered(*node), Member { name: format!("node{node}"), domains })
        };
        let domains = Domains {
            node: NodeId::numbered(1),
            block: DomainBlock::new(4096, 16).unwrap(),
            peers: peers.iter().map(member).collect(),
        };
        let mut news = Vec::new();
        watch.look(Duration::from_secs(second), &domains, &mut news);
        news.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodes_with_one_domain_are_named_once() {
        let mut watch = Watch::default();
        assert!(look(&mut watch, 1, &[(2, &[4095]), (3, &[4112, 4113])]).is_empty());
        let said = look(&mut watch, 2, &[(2, &[4096])]);
        assert_eq!(said.len(), 1, "{said:?}");
        let nodes = [1, 2].map(|node| NodeId::numbered(node).to_string());
        assert!(nodes.iter().all(|node| said[0].contains(node)) && said[0].contains("node2"), "{said:?}");
        assert!(said[0].contains("same domain, 4096") && said[0].contains("domain_block"), "{said:?}");
        assert!((3..100).all(|second| look(&mut watch, second, &[(2, &[4096])]).is_empty()));
        assert!(look(&mut watch, 100, &[(1, &[4096])]).is_empty(), "it is this node itself");
    }

    #[test]
    fn blocks_that_overlap_and_peers_with_one_domain_are_told() {
        let mut watch = Watch::default();
        let said = look(&mut watch, 1, &[(2, &[4100]), (3, &[9, 64])]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("domain 4100 of node2") && said[0].contains("4096/16"), "{said:?}");
        let said = look(&mut watch, 2, &[(2, &[64]), (3, &[9, 64]), (4, &[10])]);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("node2") && said[0].contains("node3") && said[0].contains("64"), "{said:?}");
    }
}
