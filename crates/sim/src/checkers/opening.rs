//! Who has a stream to a lent function.

use base::ids::{LoanGeneration, NodeId, StreamId};
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

/// A frame that names another assignment than its stream is of.
pub(crate) struct Fence {
    pub(crate) stream: StreamId,
    pub(crate) named: LoanGeneration,
    pub(crate) present: LoanGeneration,
    /// TLPs that were taken in this stream before the frame came.
    pub(crate) taken: u64,
}

impl Fence {
    /// Nothing of it is taken. `stream` is the one that the loan has behind it, with so many TLPs `taken`.
    pub(crate) fn check(&self, stream: Option<StreamId>, taken: u64) -> Verdict {
        let Self { named, present, .. } = self;
        if stream == Some(self.stream) && taken > self.taken {
            let count = taken - self.taken;
            return Err(format!("{count} TLPs of assignment {named} were taken in a stream of {present}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_taken_of_another_assignment() {
        let (stream, [named, present]) = (StreamId(4), [1, 2].map(LoanGeneration));
        let fence = Fence { stream, named, present, taken: 7 };
        assert!(fence.check(Some(stream), 7).is_ok());
        assert!(fence.check(Some(stream), 8).is_err());
        assert!(fence.check(Some(StreamId(6)), 8).is_ok() && fence.check(None, 8).is_ok());
    }

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
