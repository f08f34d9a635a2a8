//! Functions that are kept for a node that is not there: it has them and has no stream of them, as after each start of
//! their lender.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use base::ids::NodeId;
use base::times::PEER_VERDICT;
use io::event::Event;

use super::{Lent, Names, Spoken, clock};

/// A function that a node has not given back, and has no stream of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::roles) struct Kept {
    pub(in crate::roles) lent: Lent,
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

/// Those for which the time has begun, and those for which it is over.
type Functions = [Vec<String>; 2];

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
        // What is assigned no list gives to others, nor its time alone: whoever manages it sees for whom it is kept,
        // and takes it back there.
        let kept: Vec<&Kept> = kept.iter().filter(|it| !it.lent.is_managed).collect();
        let mut by_holder = BTreeMap::<(NodeId, Duration), (&Kept, Functions)>::new();
        for &it in &kept {
            let Lent { function, hold, .. } = &it.lent;
            let of_its = by_holder.entry((it.node, *hold)).or_insert_with(|| (it, Default::default()));
            let [begun, over] = &mut of_its.1;
            if it.lent.is_released(it.silence) {
                over.extend(self.0.ends(function, now).map(|()| function.clone()));
            } else if it.silence >= PEER_VERDICT && self.0.begins(function, now, ()) {
                begun.push(function.clone());
            }
        }
        self.0.end_others(now, |function| kept.iter().any(|it| it.lent.function == function));
        for ((node, hold), (first, [begun, over])) in by_holder {
            let holder = first.holder.clone();
            if !begun.is_empty() {
                let left = hold.saturating_sub(first.silence);
                let (functions, until) = (Names(&begun).to_string(), clock(time + left));
                let (why, advice) = if is_shared(node) { SHARED } else { UNHEARD };
                let (holder, node, until_s) = (holder.clone(), node.to_string(), left.as_secs());
                news.push(Event::LoanKept { functions, holder, node, until_s, until, why, advice });
            }
            if !over.is_empty() {
                let functions = Names(&over).to_string();
                news.push(Event::PeerReleased { peer: holder, hold_s: hold.as_secs(), functions });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::times::HOLD;

    use super::*;

    fn kept(silence: u64) -> Vec<Kept> {
        let function = |function: &str| Kept {
            lent: Lent { function: function.to_owned(), hold: HOLD, is_managed: false },
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
    fn of_what_is_assigned_its_manager_speaks() {
        let mut watch = Watch::default();
        for second in 0..700 {
            let mut kept = kept(second);
            for it in &mut kept {
                (it.lent.hold, it.lent.is_managed) = (Duration::from_secs(60), true);
            }
            let mut news = Vec::new();
            watch.look((Duration::from_secs(second), SystemTime::UNIX_EPOCH), &kept, |_| false, &mut news);
            assert_eq!(news, [], "after {second} s");
        }
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
