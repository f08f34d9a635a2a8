//! What a person sees while the demo runs, on standard error: a bar on a terminal, else a line a phase.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use program::cli::ByteSize;

use super::phases::PLANNED;
use super::report::{Phase, seconds};
use super::words::Words;
use crate::workload::Tally;

/// The progress of one demo.
pub(super) struct Show {
    bar: ProgressBar,
    is_terminal: bool,
    words: &'static Words,
}

impl Show {
    /// A bar that has not moved.
    pub(super) fn start(words: &'static Words) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let target = if is_terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(PLANNED.as_millis() as u64), target);
        if let Ok(style) = ProgressStyle::with_template("  {bar:28.cyan/dim} {elapsed:>4} {msg}") {
            bar.set_style(style.progress_chars("━╸─"));
        }
        Self { bar, is_terminal, words }
    }

    /// A line that stays.
    pub(super) fn note(&self, text: &str) {
        match self.is_terminal {
            true => self.bar.println(text),
            false => eprintln!("{text}"),
        }
    }

    /// What is being done at the moment; not worth a line of a log.
    pub(super) fn doing(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        self.bar.tick();
    }

    /// Something was done to the nodes.
    pub(super) fn event(&self, text: &str) {
        tracing::debug!("{text}");
        self.doing(text);
    }

    /// Something is fetched: the bar is its measure, until it is all there.
    pub(super) fn fetching(&self, what: &str, bytes: u64, total: u64) {
        let is_done = bytes >= total;
        self.bar.set_length(if is_done { PLANNED.as_millis() as u64 } else { total });
        self.bar.set_position(if is_done { 0 } else { bytes });
        self.doing(&format!("fetching {what}, {} of about {}", ByteSize(bytes), ByteSize(total)));
    }

    /// Time has passed in a phase.
    pub(super) fn tick(&mut self, phase: &str, elapsed: Duration, ended: &[Phase], tally: &Tally) {
        let verified = tally.bytes_verified + ended.iter().map(|phase| phase.bytes_verified).sum::<u64>();
        let errors = tally.io_errors + ended.iter().map(|phase| phase.io_errors).sum::<u64>();
        let wrong = tally.corrupted_bytes + ended.iter().map(|phase| phase.corrupted_bytes).sum::<u64>();
        self.bar.set_position(elapsed.as_millis() as u64);
        let gap = seconds(tally.longest_gap.as_secs_f64());
        let verified = ByteSize(verified);
        let trouble = match (errors, wrong) {
            (0, 0) => String::new(),
            _ => format!(", {errors} I/O errors, {wrong} bytes wrong"),
        };
        // A load that measures afterwards knows no gap yet.
        let gap =
            if tally.longest_gap.is_zero() { String::new() } else { format!(", {} {gap}", self.words.gap) };
        self.bar.set_message(format!("{phase}: {verified} verified{gap}{trouble}"));
    }

    /// A phase has ended.
    pub(super) fn phase(&self, phase: &Phase) {
        let mut text = format!(
            "  {:<20} {:>9} verified, {} {}",
            phase.name,
            ByteSize(phase.bytes_verified).to_string(),
            self.words.gap,
            seconds(phase.longest_gap_s)
        );
        if let Some(recovery) = phase.recovery_s {
            text.push_str(&format!(
                ", {} kills, {} at most {}",
                phase.killed_pids.len(),
                self.words.recovered,
                seconds(recovery)
            ));
        }
        if phase.io_errors + phase.corrupted_bytes > 0 {
            text.push_str(&format!(
                ", {} I/O ERRORS, {} BYTES WRONG",
                phase.io_errors, phase.corrupted_bytes
            ));
        }
        self.note(&text);
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
