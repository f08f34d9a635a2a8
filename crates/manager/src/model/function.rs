use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;
use core::time::Duration;

use base::ids::{Group, LoanGeneration, NodeId};
use serde::{Deserialize, Serialize};

use super::{FunctionKey, HOLD_MAX_S, MadeId, Name, Place, WallTime, node_text};

/// What a function is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An NVMe controller.
    Nvme,
    /// Anything that this version has no word for.
    Other,
}

/// What is lent, as its lender describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resource {
    /// What it is.
    pub kind: Kind,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// By which decision of a manager it was made; `None`: its lender's own configuration has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made: Option<MadeId>,
}

/// What becomes of an assignment when one of its ends is silent to the other: both go by it, each by its own clock. As
/// text `hold(SECONDS)` or `remove`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OnSilence {
    /// The lender keeps the function for a silent borrower, and a borrower keeps that of a silent lender, so many
    /// seconds, at most [`HOLD_MAX_S`].
    Hold {
        /// Seconds.
        seconds: u32,
    },
    /// The lender takes the function back at once, and the borrower removes it at once.
    Remove,
}

impl OnSilence {
    /// Whether the time is one that may be asked for.
    pub fn is_valid(self) -> bool {
        matches!(self, Self::Remove | Self::Hold { seconds: 0..=HOLD_MAX_S })
    }

    /// For how long a silent end is waited for.
    pub fn hold(self) -> Duration {
        match self {
            Self::Hold { seconds } => Duration::from_secs(seconds.into()),
            Self::Remove => Duration::ZERO,
        }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for OnSilence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hold { seconds } => write!(f, "hold({seconds})"),
            Self::Remove => f.write_str("remove"),
        }
    }
}

/// A text says neither `hold(SECONDS)`, of no more than [`HOLD_MAX_S`], nor `remove`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSilence;

impl fmt::Display for NoSilence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what becomes of it in silence is `hold(SECONDS)`, of at most {HOLD_MAX_S}, or `remove`")
    }
}

impl core::error::Error for NoSilence {}

impl FromStr for OnSilence {
    type Err = NoSilence;

    fn from_str(text: &str) -> Result<Self, NoSilence> {
        let seconds = text.strip_prefix("hold(").and_then(|rest| rest.strip_suffix(')'));
        // A sign is no digit.
        let seconds = seconds.filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
        let said = match seconds {
            Some(seconds) => seconds.parse().ok().map(|seconds| Self::Hold { seconds }),
            None => (text == "remove").then_some(Self::Remove),
        };
        said.filter(|it| it.is_valid()).ok_or(NoSilence)
    }
}

impl Default for OnSilence {
    fn default() -> Self {
        Self::Hold { seconds: base::times::HOLD.as_secs() as u32 }
    }
}

/// Who has a function, where and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Assignment {
    /// The node of the domain.
    #[serde(with = "node_text")]
    pub borrower: NodeId,
    /// The slot.
    pub place: Place,
    /// The zone in which the two see each other.
    pub group: Group,
    /// What becomes of it when one end is silent.
    pub on_silence: OnSilence,
}

/// How far an assignment has come. Each arrow with a `+1` gives the function a new generation, and "applied" is the
/// lender's word that it has made that generation durable and acts by it.
///
/// ```text
///            assign +1            applied                 unassign +1
///   Free ──────────────► Wanted ───────────► Applied ─────────────────┐
///    ▲                     └── unassign +1 ──────────────► Leaving ◄──┘   Wanted, Applied: also
///    │                                                      │   │ force       ── hold over, its borrower
///    │                        applied                       │   ▼                is removed, or forced +1 ──► Forced
///    ├──────────────────────────────────────────────────────┴─ Forced
///    │                        applied
///    └──────────────────────── Ended ◄── its lender has given it to somebody who cannot have it +1
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Loan {
    /// Nobody has it.
    Free,
    /// It is decided, and the lender has yet to apply it.
    Wanted {
        /// Who is to have it.
        to: Assignment,
        /// Since when.
        since: WallTime,
    },
    /// The lender acts by it.
    Applied {
        /// Who has it.
        to: Assignment,
        /// When it was decided.
        since: WallTime,
    },
    /// It is being taken back; the lender waits for the borrower to let go.
    Leaving {
        /// Who had it, and may have it still.
        from: Assignment,
        /// Since when.
        since: WallTime,
    },
    /// It is being taken back, and the lender does not wait for the borrower.
    Forced {
        /// Who had it, and may have it still.
        from: Assignment,
        /// Since when.
        since: WallTime,
    },
    /// Its lender has said that somebody has it who cannot, and is told to end that. It takes no slot, for the one that
    /// the lender means may be another function's.
    Ended {
        /// Since when.
        since: WallTime,
    },
}

impl Loan {
    /// Whose slot it takes, also while it is being taken back.
    pub fn occupied(&self) -> Option<Assignment> {
        match *self {
            Self::Free | Self::Ended { .. } => None,
            Self::Wanted { to, .. } | Self::Applied { to, .. } => Some(to),
            Self::Leaving { from, .. } | Self::Forced { from, .. } => Some(from),
        }
    }

    /// Who is to have it.
    pub fn assigned(&self) -> Option<Assignment> {
        match *self {
            Self::Wanted { to, .. } | Self::Applied { to, .. } => Some(to),
            Self::Free | Self::Leaving { .. } | Self::Forced { .. } | Self::Ended { .. } => None,
        }
    }

    /// Since when it is so.
    pub fn since(&self) -> Option<WallTime> {
        match *self {
            Self::Free => None,
            Self::Wanted { since, .. }
            | Self::Applied { since, .. }
            | Self::Leaving { since, .. }
            | Self::Forced { since, .. }
            | Self::Ended { since } => Some(since),
        }
    }

    /// Whether the lender has applied what is decided.
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Free | Self::Applied { .. })
    }
}

/// What a function may do in a second; `None`: any number. A function that may do nothing is not lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// I/O commands.
    pub iops: Option<NonZeroU64>,
    /// Bytes that these move.
    pub bytes_per_s: Option<NonZeroU64>,
}

/// Which decision about limits: greater ones are newer, also after a restore.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsId {
    /// Of the manager that has decided.
    pub epoch: u64,
    /// The index of the entry.
    pub index: u64,
}

/// Limits that a manager has decided. They are the function's, whoever has it, and no part of an assignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limited {
    /// By which decision.
    pub id: LimitsId,
    /// What they are.
    pub limits: Limits,
}

/// What a node lends, and who has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Function {
    /// Which one.
    pub key: FunctionKey,
    /// Its name at its lender, which no other function there bears.
    pub name: Name,
    /// What it is.
    pub resource: Resource,
    /// Which assignment this is. It grows with each one, and with each that ends.
    pub generation: LoanGeneration,
    /// How far it has come.
    pub loan: Loan,
    /// What it may do; `None`: as its lender's own configuration says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limited>,
    /// The limits by which its lender acts, as far as it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_applied: Option<LimitsId>,
    /// The index of the entry that changed it last: its version for changes on a condition.
    pub version: u64,
}

impl Function {
    /// Whether its lender has applied the limits that are decided.
    pub fn is_limited(&self) -> bool {
        self.limits.is_none_or(|limited| self.limits_applied == Some(limited.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_in_silence_is_read_as_it_is_written() {
        for (text, is) in [
            ("remove", OnSilence::Remove),
            ("hold(0)", OnSilence::Hold { seconds: 0 }),
            ("hold(600)", OnSilence::default()),
            ("hold(2592000)", OnSilence::Hold { seconds: HOLD_MAX_S }),
        ] {
            assert_eq!((text.parse(), is.to_string().as_str()), (Ok(is), text));
        }
        for wrong in [
            "",
            "hold",
            "hold()",
            "hold(-1)",
            "hold(+1)",
            "hold(1",
            "hold(2592001)",
            "hold(4294967296)",
            "Remove",
        ] {
            assert_eq!(wrong.parse::<OnSilence>(), Err(NoSilence), "{wrong}");
        }
        let holds = [OnSilence::Remove, OnSilence::default()].map(OnSilence::hold);
        assert_eq!(holds, [Duration::ZERO, base::times::HOLD]);
    }
}
