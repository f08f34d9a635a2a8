//! Who has a stream to a lent function.

use base::ids::NodeId;
use link::State;

use super::Verdict;

/// What is to be seen of a lent function's stream after a step.
pub(crate) struct Seen {
    /// Where the loan and what flows stand.
    pub(crate) loan: State,
    pub(crate) stream: State,
    /// TLPs that were taken since the stream began.
    pub(crate) taken: u64,
    /// The node that it is with.
    pub(crate) node: Option<NodeId>,
}

/// A stream is only of who knows the secret of the function's present assignment, and carries nothing before it is
/// open.
pub(crate) fn check(seen: &Seen, entitled: &[NodeId]) -> Verdict {
    let is_had = matches!(seen.loan, State::Resetting | State::Open);
    if let Some(node) = seen.node.filter(|node| is_had && !entitled.contains(node)) {
        return Err(format!("{node} has a stream to a function of which it does not know the secret"));
    }
    if seen.stream == State::Resetting && seen.taken > 0 {
        return Err(format!("{} TLPs were taken before the stream was open", seen.taken));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_entitled_has_what_is_open() {
        let (one, other) = (NodeId::numbered(1), NodeId::numbered(2));
        let seen = |loan, stream, taken| Seen { loan, stream, taken, node: Some(one) };
        assert!(check(&seen(State::Open, State::Open, 5), &[one]).is_ok());
        assert!(check(&seen(State::Resetting, State::Resetting, 0), &[one]).is_ok());
        // What a stream was with last says nothing.
        assert!(check(&seen(State::Closed, State::Closed, 0), &[other]).is_ok());
        assert!(check(&seen(State::Idle, State::Open, 5), &[]).is_ok());
        assert!(check(&seen(State::Resetting, State::Resetting, 0), &[other]).is_err());
        assert!(check(&seen(State::Open, State::Open, 0), &[]).is_err());
        assert!(check(&seen(State::Resetting, State::Resetting, 1), &[one]).is_err());
    }
}
