//! What a person sees while it runs, on standard error: a bar on a terminal, else a line a case.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::case::Case;
use super::report::{CaseReport, row};

/// The progress of a bench.
pub(super) struct Show {
    bar: ProgressBar,
    is_terminal: bool,
}

impl Show {
    /// A bar as long as all rounds.
    pub(super) fn start(cases: &[&Case], rounds: Option<u32>) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let total = cases.iter().map(|case| u64::from(rounds.unwrap_or(case.rounds))).sum();
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template("  {bar:28.cyan/dim} {elapsed:>4} {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, is_terminal }
    }

    /// A case begins.
    pub(super) fn begin(&self, case: &Case) {
        self.bar.set_message(case.id);
        if !self.is_terminal {
            eprintln!("{}", case.id);
        }
    }

    /// A round has ended.
    pub(super) fn round(&self) {
        self.bar.inc(1);
    }

    /// A case has ended.
    pub(super) fn case(&self, case: &CaseReport) {
        let [id, ours, _, _, peer, ratio, target, _] = row(case);
        let text = format!("  {id:<34} {ours:>16}  peer {peer:>7}  ratio {ratio:>5}  target {target}");
        match self.is_terminal {
            true => self.bar.println(text),
            false => eprintln!("{text}"),
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
