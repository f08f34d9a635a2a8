//! What limits a case, from what was counted while it ran: the processor time of each process, and where it was spent.

use std::time::Duration;

use serde::Serialize;

use super::case::{Case, GuestCase, Kind, LoansCase};
use super::report::{Round, median};
use super::usage::CpuTime;

/// So much of a core, or of all of them, counts as full: the clock's ticks and the start of a round take the rest.
const FULL: f64 = 0.9;

/// What one process used of a core, on average over a round: 0 to 1 for a process with one busy thread.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Share {
    /// Which one: `borrower's card`, `fio`, ...
    pub(super) process: &'static str,
    /// In the program itself.
    pub(super) user: f64,
    /// In the kernel on its behalf: system calls and the network stack.
    pub(super) system: f64,
}

impl Share {
    /// Of processor time that was used within `elapsed`.
    pub(super) fn of(process: &'static str, used: CpuTime, elapsed: Duration) -> Self {
        let share = |time: Duration| time.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        Self { process, user: share(used.user), system: share(used.system) }
    }

    fn total(&self) -> f64 {
        self.user + self.system
    }
}

/// The medians of the rounds' shares, by process.
pub(super) fn shares(rounds: &[Round]) -> Vec<Share> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let of = |process: &str, value: fn(&Share) -> f64| {
        let shares = rounds.iter().flat_map(|round| &round.cpu_shares);
        median(shares.filter(|share| share.process == process).map(value)).unwrap_or_default()
    };
    let processes = first.cpu_shares.iter().map(|share| share.process);
    processes
        .map(|process| Share {
            process,
            user: of(process, |share| share.user),
            system: of(process, |share| share.system),
        })
        .collect()
}

/// One sentence on what the rounds show; `None` where nothing was measured. `cores` are those of this machine.
pub(super) fn bound_by(case: &Case, rounds: &[Round], cores: usize) -> Option<String> {
    match case.kind {
        Kind::Recovery(_) | Kind::Guest(GuestCase::Recovery) | Kind::Loans(LoansCase::Recovery, _) => {
            let part = median(rounds.iter().filter_map(|round| Some(round.card_ms? / round.value)))?;
            Some(format!(
                "{:.0} % of the time lies between the agent's notice of the death and its successor's service",
                part * 100.0
            ))
        }
        Kind::Traffic(_) | Kind::Copy { .. } | Kind::Guest(GuestCase::Traffic(..) | GuestCase::Registers) => {
            processors(&shares(rounds), cores)
        }
        Kind::IdleCpu | Kind::Loans(LoansCase::IdleCpu, _) => {
            let shares = shares(rounds);
            let most = busiest(&shares)?;
            Some(format!(
                "the {} uses {:.2} % of a core, more than the others",
                most.process,
                most.total() * 100.0
            ))
        }
        // The number itself says it all.
        Kind::IdleMemory
        | Kind::Guest(GuestCase::Memory | GuestCase::MapTime)
        | Kind::Loans(LoansCase::IdleMemory, _)
        | Kind::AttachGap(_)
        | Kind::CutGap
        | Kind::Assign
        | Kind::ManagerKill(_)
        | Kind::Forwarding(..) => None,
    }
}

/// Which processors were full, and of what.
fn processors(shares: &[Share], cores: usize) -> Option<String> {
    let most = busiest(shares)?;
    let used: f64 = shares.iter().map(Share::total).sum();
    let each: Vec<String> = shares
        .iter()
        .filter(|share| share.total() >= 0.01)
        .map(|share| format!("{} {:.0} % + {:.0} %", share.process, share.user * 100.0, share.system * 100.0))
        .collect();
    let verdict = if used >= FULL * cores as f64 {
        format!("the processors: {used:.2} of {cores} cores are busy")
    } else if most.total() >= FULL {
        format!("one thread: the {} fills a core, {used:.2} of {cores} are busy", most.process)
    } else {
        format!("waiting: no thread fills a core, {used:.2} of {cores} are busy")
    };
    Some(format!("{verdict} (of a core, user + system, polling included: {})", each.join(", ")))
}

fn busiest(shares: &[Share]) -> Option<&Share> {
    shares.iter().max_by(|one, other| one.total().total_cmp(&other.total()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(process: &'static str, user: f64, system: f64) -> Share {
        Share { process, user, system }
    }

    #[test]
    fn full_processors_one_full_thread_and_waiting_are_told_apart() {
        let said = |shares: &[Share], cores| processors(shares, cores).unwrap();
        let busy =
            [share("fio", 0.2, 0.4), share("lender's card", 0.3, 0.62), share("borrower's card", 0.2, 0.2)];
        let text = said(&busy, 2);
        assert!(text.starts_with("the processors: 1.92 of 2 cores are busy"), "{text}");
        assert!(text.contains("lender's card 30 % + 62 %"), "{text}");
        assert!(
            said(&busy, 8).starts_with("one thread: the lender's card fills a core"),
            "{}",
            said(&busy, 8)
        );
        assert!(said(&busy[..1], 2).starts_with("waiting: no thread fills a core, 0.60 of 2"));
        assert_eq!(processors(&[], 2), None);
    }

    #[test]
    fn shares_are_medians_by_process() {
        let round = |user: f64| Round {
            cpu_shares: vec![share("fio", user, 0.5), share("lender's card", 0.1, user)],
            ..Round::default()
        };
        let rounds = [round(0.1), round(0.9), round(0.2)];
        assert_eq!(shares(&rounds), [share("fio", 0.2, 0.5), share("lender's card", 0.1, 0.2)]);
        assert_eq!(shares(&[]), []);
    }

    #[test]
    fn half_a_second_of_two_is_a_quarter() {
        let used = CpuTime { user: Duration::from_millis(500), system: Duration::from_secs(1) };
        assert_eq!(Share::of("fio", used, Duration::from_secs(2)), share("fio", 0.25, 0.5));
    }
}
