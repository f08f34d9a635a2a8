//! What the agent's core says has happened, as an event of the node.

use base::times::WATCHDOG;
use node::agent::{Event as Said, Fault, State};
use rustix::process::Signal;

use super::LoanSpec;
use crate::event::{Event, Others, seconds};
use crate::rate_limited::RateLimited;

/// What was said of the core.
pub(super) struct Log {
    /// The last card that the node has replaced by itself and has said so of: its death is no trouble, and no news.
    replaced: Option<u64>,
    /// What cannot be kept is tried again and again.
    tenancies: RateLimited,
    holders: RateLimited,
}

impl Default for Log {
    fn default() -> Self {
        let [tenancies, holders] = [RateLimited::of_trouble(), RateLimited::of_trouble()];
        Self { replaced: None, tenancies, holders }
    }
}

impl Log {
    /// Says what has happened.
    pub(super) fn say(&mut self, said: Said, loans: &[LoanSpec]) {
        let line = match said {
            Said::TenancyUnsaved { .. } => &mut self.tenancies,
            Said::HolderUnsaved { .. } => &mut self.holders,
            _ if self.is_news(&said) => return event(said, loans, None).say(),
            _ => return,
        };
        line.say(|others| event(said, loans, others).say());
    }

    fn is_news(&mut self, said: &Said) -> bool {
        match said {
            Said::Attached { generation, .. } | Said::Replanned { generation } => {
                self.replaced = Some(*generation);
                true
            }
            Said::CardKilled { signal, generation } => {
                *signal != Signal::KILL.as_raw() || self.replaced != Some(*generation)
            }
            _ => true,
        }
    }
}

fn event(said: Said, loans: &[LoanSpec], others: Others) -> Event {
    let function = |loan: usize| loans.get(loan).map_or("?", |loan| loan.function.as_str()).to_owned();
    match said {
        Said::CardKilled { signal, generation } => Event::CardKilled { signal, generation },
        Said::CardEnded { status, generation } => Event::CardEnded { status, generation },
        Said::CardRecovered { generation, after } => {
            Event::CardRecovered { generation, after_s: seconds(after) }
        }
        Said::StartFailed { error, again_in } => {
            Event::CardStartFailed { error, again_in_s: seconds(again_in) }
        }
        Said::Draining { in_flight, since, why } => {
            Event::CardDraining { in_flight, since_s: seconds(since), why }
        }
        Said::Drained { after } => Event::CardDrained { after_s: seconds(after) },
        Said::CardStuck { pid, generation, state } => {
            Event::CardStuck { pid, generation, state: name_of(state), for_s: WATCHDOG.as_secs() }
        }
        Said::CardFree { pid, generation, after } => {
            Event::CardFree { pid, generation, after_s: seconds(after) }
        }
        Said::Attached { loan, generation } => Event::CardRenewed { function: function(loan), generation },
        Said::Replanned { generation } => Event::CardReplanned { generation },
        Said::Stale { loan, life } => Event::LoanStale { place: loan, life },
        Said::TenancyUnsaved { loan, tenancy, again_in, error } => Event::TenancyDelayed {
            function: function(loan),
            node: tenancy.node.to_string(),
            again_in_s: seconds(again_in),
            what: if tenancy.is_held { "used" } else { "given back" },
            error,
            others,
        },
        Said::HolderUnsaved { node, again_in, error } => {
            Event::HolderDelayed { node: node.to_string(), again_in_s: seconds(again_in), error, others }
        }
        Said::CardReplaced { pid, generation, fault } => replaced(pid, generation, fault),
    }
}

fn replaced(pid: i32, generation: u64, fault: Fault) -> Event {
    let (fault, why) = match fault {
        Fault::Spins => return Event::CardSpins { pid, generation },
        Fault::Stopped => ("stopped", "the card was stopped by a signal (SIGSTOP)"),
        Fault::Oversleeps => {
            ("oversleeps", "the card did not wake up when it was to, though it had a processor")
        }
        Fault::Waits => ("waits", "the card waited for somebody in a system call, which it never should"),
    };
    Event::CardReplaced { pid, generation, fault, why }
}

fn name_of(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::Sleeping => "sleeping",
        State::InKernel => "in-kernel",
        State::Stopped => "stopped",
        State::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use node::Tenancy;

    use super::*;

    #[test]
    fn a_card_that_the_node_replaces_is_not_said_to_be_killed() {
        let mut log = Log::default();
        let killed = |signal, generation| Said::CardKilled { signal, generation };
        assert!(log.is_news(&killed(9, 3)), "by somebody else");
        assert!(log.is_news(&Said::Replanned { generation: 4 }) && !log.is_news(&killed(9, 4)));
        assert!(log.is_news(&killed(9, 5)), "by somebody else");
        assert!(log.is_news(&Said::Attached { loan: 0, generation: 6 }) && !log.is_news(&killed(9, 6)));
        assert!(
            log.is_news(&Said::Replanned { generation: 7 }) && log.is_news(&killed(11, 7)),
            "it broke before"
        );
    }

    #[test]
    fn what_the_core_says_has_words() {
        let said = |said| event(said, &[], None).to_string();
        let tenancy = Tenancy { is_held: true, ..Tenancy::default() };
        let (again_in, error) = (std::time::Duration::from_secs(1), "no space".to_owned());
        assert_eq!(
            said(Said::TenancyUnsaved { loan: 0, tenancy, again_in, error }),
            "the function cannot be used yet: no space"
        );
        let replaced = |fault| event(Said::CardReplaced { pid: 7, generation: 1, fault }, &[], None).kind();
        let kinds = [Fault::Spins, Fault::Stopped, Fault::Oversleeps, Fault::Waits].map(replaced);
        assert_eq!(kinds, ["card-spins", "card-replaced", "card-replaced", "card-replaced"]);
    }
}
