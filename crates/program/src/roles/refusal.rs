//! What a lender's refusal means, in words.

use base::ids::NodeId;
use io::event::Event;
use manager::model::WallTime;
use node::{Fault, Name, Refusal};

use crate::status::age;

/// The event of it; `None` where the node itself makes the best of it.
pub(super) fn event(function: String, refusal: &Refusal, own: NodeId) -> Option<Event> {
    let why = words(&function, refusal, own)?;
    let (holder, node) = match refusal {
        Refusal::InUse { by, node, .. } => (Some(by.to_string()), Some(node.to_string())),
        Refusal::Twin { by } => (Some(by.to_string()), None),
        _ => (None, None),
    };
    let reason = match refusal {
        Refusal::InUse { hold: None, .. } => "in-use",
        Refusal::InUse { hold: Some(_), .. } => "kept",
        Refusal::NotLent => "not-lent",
        Refusal::Generation => "generation",
        Refusal::Managed => "managed",
        Refusal::NoRoom => "no-room",
        Refusal::Sealing => "sealing",
        Refusal::Twin { .. } => "twin",
        Refusal::NotAllowed => "not-allowed",
        Refusal::Version => "version",
        Refusal::Certificate { .. } => "certificate",
        Refusal::Untrusted { .. } => "untrusted",
        Refusal::Unknown { .. } => "unknown",
        Refusal::Outdated { .. } => "outdated",
    };
    Some(Event::LoanRefused { function, reason, holder, node, why })
}

/// What is wrong with the certificate of a node, and what to do. `clock` is that of who has found it.
pub(super) fn fault_words(fault: Fault, clock: WallTime) -> String {
    let set = "set the clock that is wrong";
    match fault {
        Fault::OtherFabric => "its certificate is of another fabric: let it join this one".to_owned(),
        Fault::Expired { not_after } => {
            let until = WallTime(not_after);
            format!(
                "its certificate was good until {until}, and the clock of who has refused it says {clock}: {set}, or \
                 see to it that the node can reach its manager, which gives it another one"
            )
        }
        Fault::NotYet { not_before } => {
            let from = WallTime(not_before);
            format!(
                "its certificate is good from {from} on only, and the clock of who has refused it says {clock}: {set}"
            )
        }
        Fault::Forged => "its certificate is not signed by the authority of the fabric: let it join".to_owned(),
        Fault::OtherKey => "its certificate is another node's: let it join with its own key".to_owned(),
        Fault::Revoked => "it was removed from the fabric; to have it back, let it join with a new key".to_owned(),
        Fault::Missing => {
            "it shows no certificate, and only nodes of the fabric are let in (`only_members`): let it join".to_owned()
        }
        Fault::Outside => {
            "its certificate does not let it into this group, or is for other domains than its own: see `causeway node \
             show`, and start the node again with what it was given"
                .to_owned()
        }
    }
}

/// A sentence for whoever wants `function`; `None` where the node itself makes the best of it.
pub fn words(function: &str, refusal: &Refusal, own: NodeId) -> Option<String> {
    match refusal {
        Refusal::InUse { by, node, since, hold: None } => {
            let since =
                since.map_or(String::new(), |since| format!(", for {} so far", age(since.as_secs_f64())));
            Some(format!(
                "{function} is in use by {by}{since} (node {node}); it can be borrowed when that node gives it back"
            ))
        }
        Refusal::InUse { by, node, since, hold: Some(hold) } => {
            let since = match since {
                Some(since) => format!("which has had it for {}", age(since.as_secs_f64())),
                None => "which has had it since before the lender was started".to_owned(),
            };
            Some(format!(
                "{function} is kept for {by}, {since} and is not heard at present (node {node}): for another {} unless \
                 it comes back; to have it sooner, start that node again with its state directory and end it in order",
                age(hold.as_secs_f64())
            ))
        }
        Refusal::NotLent => Some(format!(
            "{function} is not lent by the node that its line names, or not under the key of this line: it is not \
             there yet, is not lent any more, or the line is an old one; look there with `causeway status`, and use \
             the line that was printed last"
        )),
        Refusal::Generation => Some(format!(
            "{function} was assigned anew or taken back, or its lender has not heard yet that it is this node's"
        )),
        Refusal::Managed => Some(format!(
            "{function} is given and taken by a manager, so its line opens it no more: have it assigned to this node"
        )),
        Refusal::NoRoom => Some(format!(
            "the lender of {function} has no room for another node, or for another loan of this one; it can be \
             borrowed when others have given something back there"
        )),
        Refusal::Sealing => Some(format!(
            "{function}: one side encrypts and the other does not; give --insecure to both or to none"
        )),
        Refusal::Twin { by } if *by == Name::default() => Some(format!(
            "{function} is kept for another node with the identity of this one, which was there before the lender was \
             started and is not heard at present: the state directory of one is a copy of the other's, or its machine \
             is; give this node one of its own with --state-dir or `state_dir`, or end it and start the other one"
        )),
        Refusal::Twin { by } => Some(format!(
            "{function} is in use by {by}, another node with the identity of this one: the state directory of one is a \
             copy of the other's, or its machine is; give this node one of its own with --state-dir or `state_dir`, or \
             end the other node first"
        )),
        Refusal::NotAllowed => Some(format!(
            "{function} is lent to certain nodes only, and this is none of them: its id, {own}, has to stand in \
             `allow` of the device, or behind --allow, at the lender"
        )),
        Refusal::Version => Some(format!(
            "{function}: its lender and this node speak no common version of the protocol; install the same release of \
             causeway on both"
        )),
        Refusal::Certificate { fault, clock } => Some(format!(
            "{function} is refused to this node, {own}: {}, and this node's clock says {}",
            fault_words(*fault, WallTime(*clock)),
            management::clock::wall()
        )),
        Refusal::Untrusted { fault, clock } => Some(format!(
            "this node does not take {function} from its lender: {}",
            fault_words(*fault, WallTime(*clock))
        )),
        Refusal::Unknown { verdict } => Some(format!(
            "{function} is refused by its lender for a reason that this release does not know (number {verdict}); \
             install the lender's release of causeway here, and look at the lender's log"
        )),
        Refusal::Outdated { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_refusal_says_who_has_it_and_what_to_do() {
        let (by, node) = (Name::new("first"), NodeId::numbered(7));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let own = NodeId::numbered(8);
        let words = |refusal| words("nvme0", &refusal, own).unwrap();
        let living = words(Refusal::InUse { by, node, since: seconds(20), hold: None });
        assert_eq!(
            living,
            format!(
                "nvme0 is in use by first, for 20 s so far (node {node}); it can be borrowed when that node gives it \
                 back"
            )
        );
        let silent = words(Refusal::InUse { by, node, since: seconds(20), hold: seconds(575) });
        assert!(silent.contains("kept for first") && silent.contains("for another 9 min unless"), "{silent}");
        let restarted = words(Refusal::InUse { by, node, since: None, hold: seconds(600) });
        assert!(restarted.contains("since before the lender was started"), "{restarted}");
        assert!(words(Refusal::NotAllowed).contains(&own.to_string()));
        assert!(words(Refusal::NotLent).contains("nvme0 is not lent by the node that its line names"));
        assert!(words(Refusal::Generation).contains("taken back"));
        assert!(words(Refusal::NoRoom).contains("no room for another node"));
        assert!(words(Refusal::Version).contains("install the same release"));
        assert!(words(Refusal::Unknown { verdict: 9 }).contains("number 9"));
        let twin = words(Refusal::Twin { by });
        assert!(
            twin.contains("in use by first, another node with the identity") && twin.contains("--state-dir")
        );
        let kept = words(Refusal::Twin { by: Name::default() });
        assert!(kept.contains("kept for another node with the identity") && !kept.contains(" ,"), "{kept}");
    }
}
