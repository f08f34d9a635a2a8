//! Where a stream stands, and all that can change it.

use base::coded;

/// Where a stream stands.
///
/// ```text
/// Idle --new pair--> Resetting --quiet--> Open --given back--> Closed
///   |                 ^  |                 |                    ^ ^ |
///   |                 |  +--given back-----|--------------------+ | |
///   |                 +------new pair------+----------------------|-+
///   +------------------given back---------------------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing has flowed yet.
    Idle = 0,
    /// It begins anew; what was before is being ended.
    Resetting = 1,
    /// It flows.
    Open = 2,
    /// It has ended.
    Closed = 3,
}

/// What can change a [`State`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Another stream begins.
    NewPair,
    /// Nothing of what was before can have an effect any more.
    Quiet,
    /// It was given back or is over, or there was nothing to give back.
    GivenBack,
}

coded!(State: Idle, Resetting, Open, Closed);

impl State {
    /// The state after `change`; `None` where that changes nothing.
    pub(crate) fn after(self, change: Change) -> Option<Self> {
        match (self, change) {
            // Another one begins in any state: what was before is over.
            (Self::Idle | Self::Resetting | Self::Open | Self::Closed, Change::NewPair) => {
                Some(Self::Resetting)
            }
            (Self::Resetting, Change::Quiet) => Some(Self::Open),
            (Self::Idle | Self::Open | Self::Closed, Change::Quiet) => None,
            (Self::Resetting | Self::Open, Change::GivenBack) => Some(Self::Closed),
            (Self::Idle, Change::GivenBack) => Some(Self::Closed),
            // It was before: whoever ends it says so until that is heard.
            (Self::Closed, Change::GivenBack) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "
            NewPair    Quiet      GivenBack
Idle        Resetting  -          Closed
Resetting   Resetting  Open       Closed
Open        Resetting  -          Closed
Closed      Resetting  -          -
";

    #[test]
    fn the_table_of_all_changes() {
        let changes = [Change::NewPair, Change::Quiet, Change::GivenBack];
        let mut table = format!("\n{:12}", "");
        let row = |cells: &[String]| {
            cells.iter().map(|cell| format!("{cell:11}")).collect::<String>().trim_end().to_owned() + "\n"
        };
        table += &row(&changes.map(|change| format!("{change:?}")));
        for state in [State::Idle, State::Resetting, State::Open, State::Closed] {
            let after = changes.map(|change| {
                state.after(change).map_or_else(|| "-".to_owned(), |state| format!("{state:?}"))
            });
            table += &format!("{:12}", format!("{state:?}"));
            table += &row(&after);
        }
        assert_eq!(table, TABLE);
    }
}
