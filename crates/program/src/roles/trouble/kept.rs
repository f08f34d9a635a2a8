//! Functions that are kept for a node that is not there: it has them and has no stream of them, as after each start of
//! their lender.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base::ids::NodeId;
use base::times::HOLD;
use io::event::Event;

use base::times::PEER_VERDICT;

use super::{Names, Spoken, clock};

/// A function that a node has not given back, and has no stream of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::roles) struct Kept {
    pub(in crate::roles) function: String,
    pub(in crate::roles) holder: String,
    pub(in crate::roles) node: NodeId,
    /// For how long it has not come.
    pub(in crate::roles) silence: Duration,
}

/// Why somebody does not come, and what to do about it.
const UNHEARD: (&str, &str) =
    ("is not heard", "start that node again with its state directory and end it in order");
const SHARED: (&str, &str) =
    ("two programs have its identity, of which one is refused", "end one of both programs");

/// Which of them have been said.
#[derive(Debug, Default)]
pub(super) struct Watch(Spoken<()>);

impl Watch {
    /// `time` is that of the clock on the wall; `is_shared`: of two programs with
    /// this identity one is refused just now.
    pub(super) fn look(
        &mut self,
        (now, time): (Duration, SystemTime),
        kept: &[Kept],
        is_shared: impl Fn(NodeId) -> bool,
        news: &mut Vec<Event>,
    ) {
        let mut by_holder: BTreeMap<NodeId, (&Kept, [Vec<String>; 2])> = BTreeMap::new();
        for it in kept {
            let of_its = by_holder.entry(it.node).or_insert_with(|| (it, Default::default()));
            let [begun, over] = &mut of_its.1;
            if it.silence >= HOLD {
                over.extend(self.0.ends(&it.function, now).map(|()| it.function.clone()));
            } else if it.silence >= PEER_VERDICT && self.0.begins(&it.function, now, ()) {
                begun.push(it.function.clone());
            }
        }
        self.0.end_others(now, |function| kept.iter().any(|it| it.function == function));
        for (node, (first, [begun, over])) in by_holder {
            let holder = first.holder.clone();
            if !begun.is_empty() {
                let left = HOLD.saturating_sub(first.silence);
                let (functions, until) = (Names(&begun).to_string(), clock(time + left));
                let (why, advice) = if is_shared(node) { SHARED } else { UNHEARD };
                let (holder, node, until_s) = (holder.clone(), node.to_string(), left.as_secs());
                news.push(Event::LoanKept { functions, holder, node, until_s, until, why, advice });
            }
            if !over.is_empty() {
                let functions = Names(&over).to_string();
                news.push(Event::PeerReleased { peer: holder, hold_s: HOLD.as_secs(), functions });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(silence: u64) -> Vec<Kept> {
        let function = |function: &str| Kept {
            function: function.to_owned(),
            holder: "p1".to_owned(),
            node: NodeId::numbered(7),
            silence: Duration::from_secs(silence),
        };
        ["nvme0", "nvme1"].map(function).into()
    }

    #[test]
    fn a_lender_says_for_whom_it_keeps_functions_after_its_own_start() {
        let mut watch = Watch::default();
        let mut look = |second, kept: &[Kept]| {
            let mut news = Vec::new();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600 + second);
            watch.look((Duration::from_secs(second), time), kept, |_| false, &mut news);
            news
        };
        assert_eq!(look(1, &kept(1)), [], "it may be about to come");
        let said = look(2, &kept(2));
        assert!(
            matches!(&said[..], [Event::LoanKept { functions, until_s: 598, .. }] if functions == "nvme0, nvme1"),
            "{said:?}"
        );
        let words = said[0].to_string();
        assert!(words.contains("p1 (") && words.contains(&NodeId::numbered(7).to_string()), "{words}");
        assert!(words.contains("until 12:10:00 UTC") && words.contains("`allow`"), "{words}");
        assert!((3..600).all(|second| look(second, &kept(second)).is_empty()));
        let said = look(600, &kept(600));
        assert!(matches!(&said[..], [Event::PeerReleased { peer, .. }] if peer == "p1"), "{said:?}");
        assert!((601..700).all(|second| look(second, &kept(second)).is_empty()));
        assert_eq!(look(700, &[]), []);
    }

    #[test]
    fn who_comes_back_keeps_nothing() {
        let mut watch = Watch::default();
        let mut look = |second, kept: &[Kept]| {
            let mut news = Vec::new();
            watch.look((Duration::from_secs(second), SystemTime::UNIX_EPOCH), kept, |_| false, &mut news);
            news.len()
        };
        assert_eq!([look(2, &kept(2)), look(3, &[]), look(4, &[]), look(40, &kept(3))], [1, 0, 0, 1]);
    }

    #[test]
    fn who_is_refused_as_a_twin_is_not_to_be_started_again() {
        let said = |shared: u64| {
            let mut news = Vec::new();
            let at = (Duration::from_secs(2), SystemTime::UNIX_EPOCH);
            Watch::default().look(at, &kept(2), |node| node == NodeId::numbered(shared), &mut news);
            news[0].to_string()
        };
        assert!(
            said(7).contains("two programs have its identity") && !said(7).contains("start"),
            "{}",
            said(7)
        );
        assert!(
            said(8).contains("is not heard: ") && said(8).contains("start that node again"),
            "{}",
            said(8)
        );
    }
}
