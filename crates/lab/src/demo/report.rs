//! The result: the document for scripts, and the table for people.

use std::fmt::Write;

use program::cli::ByteSize;
use serde::Serialize;

use super::words::{self, Words};

/// Lines of a kernel's log that a terminal shows.
const HIGHLIGHTS_MAX: usize = 16;

/// The version of the document.
pub(super) const VERSION: u32 = 1;

/// The document of `demo -o json`. Keys are added, never renamed.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Report {
    /// [`VERSION`].
    pub version: u32,
    /// Every phase ran to its end, every byte was right and no I/O failed.
    pub ok: bool,
    /// What everything random followed from.
    pub seed: u64,
    /// Path of the page.
    pub report: String,
    /// Bytes that were read back and right.
    pub bytes_verified: u64,
    /// Requests that failed.
    pub io_errors: u64,
    /// Bytes that were wrong, when read or at last on disk.
    pub corrupted_bytes: u64,
    /// The phases that ran.
    pub phases: Vec<Phase>,
    /// Somebody ended the demo before its end.
    pub interrupted: bool,
    /// What was lent.
    pub image: Image,
    /// What was not as it should be, for a person.
    pub problems: Vec<String>,
    /// What was done to the nodes.
    pub events: Vec<Mark>,
    /// The virtual machine that used the drive, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<Guest>,
    /// From start to end, in seconds.
    pub seconds: f64,
}

/// The virtual machine of `--vm`.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Guest {
    /// QEMU's version.
    pub qemu: String,
    /// What ran its processors: `kvm`, or `tcg`, QEMU's translator.
    pub accelerator: String,
    /// The version of its kernel.
    pub kernel: String,
    /// From QEMU's start to the moment the guest's driver had found the drive.
    pub boot_s: f64,
    /// What `e2fsck -fn` said in the guest at the end, where it applies.
    pub file_system: Option<FileSystem>,
    /// Lines of the kernel's log that say that its driver had trouble with the drive: a time-out, a reset, an error.
    pub trouble: Vec<String>,
    /// Lines of it that are about the drive, and other trouble.
    pub highlights: Vec<String>,
    /// All of it.
    pub kernel_log: Vec<String>,
}

/// The lent image at the end.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Image {
    /// What it is.
    pub source: String,
    /// Bytes of it that were compared on disk after both nodes had ended.
    pub compared_bytes: u64,
    /// Of these, bytes that were wrong.
    pub corrupted_bytes: u64,
    /// What `e2fsck -fn` said, where it applies.
    pub file_system: Option<FileSystem>,
}

/// The result of a file system check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct FileSystem {
    /// Nothing was wrong.
    pub clean: bool,
    /// In the words of the checker.
    pub summary: String,
}

impl FileSystem {
    /// By the output of `e2fsck`: its last line, without the label or path before it.
    pub(super) fn checked(clean: bool, output: &str) -> Self {
        let last = output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let summary = last.rsplit_once(": ").map_or(last, |(_, rest)| rest);
        Self { clean, summary: summary.trim().to_owned() }
    }
}

/// One phase.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Phase {
    /// Its name.
    pub name: &'static str,
    /// Bytes that were read back and right.
    pub bytes_verified: u64,
    /// Requests that failed.
    pub io_errors: u64,
    /// The longest time without a completed request.
    pub longest_gap_s: f64,
    /// TLPs that both nodes sent again.
    pub retransmissions: u64,
    /// The longest time from a kill to the first completion of a request that was sent after it.
    pub recovery_s: Option<f64>,
    /// The last process that was killed.
    pub killed_pid: Option<u32>,
    /// Bytes that were read and wrong.
    pub corrupted_bytes: u64,
    /// Requests that completed.
    pub completions: u64,
    /// When it began, from the start of the load.
    pub start_s: f64,
    /// How long it took.
    pub seconds: f64,
    /// As `recovery_s`, of each kill.
    pub recoveries_s: Vec<f64>,
    /// All processes that were killed.
    pub killed_pids: Vec<u32>,
    /// What the node itself measured, from the death to its successor's service, of each kill.
    pub card_recoveries_s: Vec<f64>,
    /// From the cut to the moment the borrower did not call the rail up any more.
    pub rail_down_s: Option<f64>,
    /// From the restoration to the moment it called it up again.
    pub rail_up_again_s: Option<f64>,
    /// Of the frames that the borrower has sent, those over the rail that was slow: 0 to 1.
    pub slow_rail_share: Option<f64>,
}

/// Something that was done to the nodes.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Mark {
    /// When, from the start of the load.
    pub at_s: f64,
    /// What sort.
    pub kind: MarkKind,
    /// For a person.
    pub text: String,
}

/// What sort of a thing was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum MarkKind {
    /// A card, a switch or the manager was killed.
    Kill,
    /// A rail was cut.
    RailCut,
    /// A rail was restored.
    RailRestored,
    /// A rail was made slow.
    RailSlowed,
    /// The manager has given the borrower a drive.
    Assigned,
    /// It has taken it back.
    Unassigned,
    /// Another manager was started.
    ManagerStarted,
}

impl Report {
    /// How it is told.
    pub(super) fn words(&self) -> &'static Words {
        if self.guest.is_some() { &words::GUEST } else { &words::CLIENT }
    }

    /// The columns of the table, on the page too.
    pub(super) fn columns(&self) -> [&'static str; 6] {
        let gap = self.words().gap;
        ["phase", "bytes verified", "I/O errors", gap, "retransmissions", "recovery time"]
    }

    /// The cells of the table, a row a phase and one for all.
    pub(super) fn rows(&self) -> Vec<[String; 6]> {
        let row = |phase: &Phase| {
            [
                phase.name.to_owned(),
                ByteSize(phase.bytes_verified).to_string(),
                phase.io_errors.to_string(),
                seconds(phase.longest_gap_s),
                phase.retransmissions.to_string(),
                phase.recovery_s.map_or_else(|| "-".to_owned(), seconds),
            ]
        };
        let mut rows: Vec<_> = self.phases.iter().map(row).collect();
        let longest =
            |value: fn(&Phase) -> Option<f64>| self.phases.iter().filter_map(value).reduce(f64::max);
        rows.push([
            "all".to_owned(),
            ByteSize(self.bytes_verified).to_string(),
            self.io_errors.to_string(),
            longest(|phase| Some(phase.longest_gap_s)).map_or_else(|| "-".to_owned(), seconds),
            self.phases.iter().map(|phase| phase.retransmissions).sum::<u64>().to_string(),
            longest(|phase| phase.recovery_s).map_or_else(|| "-".to_owned(), seconds),
        ]);
        rows
    }

    /// One sentence: what came out.
    pub(super) fn verdict(&self) -> String {
        if !self.problems.is_empty() || self.io_errors + self.corrupted_bytes > 0 {
            return format!("{} bytes wrong, {} I/O errors", self.corrupted_bytes, self.io_errors);
        }
        let kills: usize = self.phases.iter().map(|phase| phase.killed_pids.len()).sum();
        let until = if self.interrupted { "Until it was interrupted, every" } else { "Every" };
        let log =
            if self.guest.is_some() { ", and the guest's kernel had no time-out and no reset" } else { "" };
        format!(
            "{until} byte was right and no I/O failed, through {kills} killed cards, switches and managers{log}"
        )
    }

    /// One sentence: the virtual machine.
    pub(super) fn machine(&self) -> Option<String> {
        let Guest { qemu, accelerator, kernel, boot_s, file_system, .. } = self.guest.as_ref()?;
        let mut text =
            format!("Linux {kernel} in QEMU {qemu} ({accelerator}), its drive there after {boot_s:.1} s");
        if let Some(FileSystem { clean, summary }) = file_system {
            let clean = if *clean { "clean" } else { "NOT clean" };
            let _ = write!(text, "; file system {clean} in it ({summary})");
        }
        Some(text)
    }

    /// One sentence: what is on the disk now.
    pub(super) fn on_disk(&self) -> String {
        let image = &self.image;
        let compared = ByteSize(image.compared_bytes);
        let mut text = match (image.compared_bytes, image.corrupted_bytes) {
            (0, _) => "not compared".to_owned(),
            (_, 0) => format!("{compared} compared byte by byte, all as written"),
            (_, wrong) => format!("{compared} compared byte by byte, {wrong} bytes WRONG"),
        };
        match &image.file_system {
            Some(FileSystem { clean: true, summary }) => {
                let _ = write!(text, "; file system clean ({summary})");
            }
            Some(FileSystem { clean: false, summary }) => {
                let _ = write!(text, "; file system NOT clean ({summary})");
            }
            None => {}
        }
        text
    }

    /// What goes to standard output for a person.
    pub(super) fn text(&self) -> String {
        let mut lines = vec![self.columns().map(|column| column.to_uppercase())];
        lines.extend(self.rows());
        let width = |column: usize| lines.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        let mut text = String::new();
        for row in &lines {
            let _ = write!(text, "{:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(widths).skip(1) {
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        let _ = writeln!(text, "\n{}.", self.verdict());
        let _ = writeln!(text, "image   {}: {}", self.image.source, self.on_disk());
        self.guest_text(&mut text);
        if !self.report.is_empty() {
            let _ = writeln!(text, "report  {}", self.report);
        }
        let _ = writeln!(text, "seed    {}", self.seed);
        text
    }

    /// The virtual machine and what its kernel said of the drive.
    fn guest_text(&self, text: &mut String) {
        let (Some(guest), Some(machine)) = (&self.guest, self.machine()) else { return };
        let _ = writeln!(text, "guest   {machine}");
        let _ = writeln!(text, "        its kernel's log has {} lines, among them:", guest.kernel_log.len());
        let (shown, more) = guest.highlights.split_at(guest.highlights.len().min(HIGHLIGHTS_MAX));
        for line in shown {
            let _ = writeln!(text, "        {}", line.replace('\n', "\n        "));
        }
        if !more.is_empty() {
            let _ = writeln!(text, "        and {} more", more.len());
        }
    }

    /// What goes to standard output for scripts.
    pub(super) fn json(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("a report is plain structs, which serialise");
        text.push('\n');
        text
    }
}

/// A time for people: `85 µs`, `3.2 ms`, `1.4 s`.
pub(super) fn seconds(value: f64) -> String {
    match value {
        ..0.000_999_5 => format!("{:.0} µs", value * 1e6),
        ..0.0995 => format!("{:.1} ms", value * 1e3),
        ..0.9995 => format!("{:.0} ms", value * 1e3),
        _ => format!("{value:.1} s"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A report as a good run gives it.
    pub(in super::super) fn example() -> Report {
        let phase = |name, start_s, recoveries_s: &[f64], killed_pids: &[u32]| Phase {
            name,
            bytes_verified: 1 << 30,
            longest_gap_s: 0.0021,
            retransmissions: 12,
            recovery_s: recoveries_s.iter().copied().reduce(f64::max),
            killed_pid: killed_pids.last().copied(),
            completions: 1000,
            start_s,
            seconds: 5.0,
            recoveries_s: recoveries_s.to_vec(),
            killed_pids: killed_pids.to_vec(),
            ..Phase::default()
        };
        let mark = |at_s, kind, text: &str| Mark { at_s, kind, text: text.to_owned() };
        Report {
            version: VERSION,
            ok: true,
            seed: 7,
            report: "/tmp/report.html".to_owned(),
            bytes_verified: 5 << 30,
            phases: vec![
                phase("quiet", 0.0, &[], &[]),
                phase("loss", 5.0, &[], &[]),
                phase("rail-cut", 10.0, &[], &[]),
                phase("kill-borrower-card", 15.0, &[0.004, 0.003], &[11, 12]),
                phase("kill-lender-card", 20.0, &[0.006], &[13]),
            ],
            image: Image {
                source: "a copy of <x> & \"y\"".to_owned(),
                compared_bytes: 96 << 20,
                corrupted_bytes: 0,
                file_system: Some(FileSystem { clean: true, summary: "44 files".to_owned() }),
            },
            events: vec![
                mark(10.0, MarkKind::RailCut, "rail 0 cut"),
                mark(13.0, MarkKind::RailRestored, "rail 0 restored"),
                mark(16.0, MarkKind::Kill, "card 11 of the borrower killed"),
                mark(17.0, MarkKind::Kill, "card 12 of the borrower killed"),
                mark(21.0, MarkKind::Kill, "card 13 of the lender killed"),
            ],
            seconds: 30.0,
            ..Report::default()
        }
    }

    #[test]
    fn the_document_has_the_keys_of_the_interface_and_begins_with_its_version() {
        let text = example().json();
        assert!(text.starts_with("{\n  \"version\": 1,\n"), "{text}");
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in ["ok", "seed", "report", "bytes_verified", "io_errors", "corrupted_bytes", "phases"] {
            assert!(!document[key].is_null(), "{key}");
        }
        let phase = document["phases"][3].as_object().unwrap();
        for key in [
            "name",
            "bytes_verified",
            "io_errors",
            "longest_gap_s",
            "retransmissions",
            "recovery_s",
            "killed_pid",
        ] {
            assert!(phase.contains_key(key), "{key}");
        }
        assert_eq!(phase["recovery_s"], 0.004);
        assert_eq!(phase["killed_pid"], 12);
        assert!(document["phases"][0]["recovery_s"].is_null());
        assert_eq!(document["events"][1]["kind"], "rail-restored");
    }

    #[test]
    fn the_table_is_aligned_and_says_what_came_out() {
        let text = example().text();
        let table: Vec<&str> = text.lines().take(7).collect();
        assert!(table.iter().all(|line| line.chars().count() == table[0].chars().count()), "{text}");
        assert!(table[0].starts_with("PHASE "));
        assert!(table[4].starts_with("kill-borrower-card") && table[4].ends_with("4.0 ms"), "{text}");
        assert!(
            table[6].starts_with("all") && table[6].contains("5 GiB") && table[6].contains(" 60 "),
            "{text}"
        );
        assert!(text.contains("through 3 killed cards, switches and managers"), "{text}");
        assert!(text.contains("file system clean (44 files)"), "{text}");
    }

    #[test]
    fn what_went_wrong_is_the_verdict() {
        let mut report = Report { corrupted_bytes: 3, ..example() };
        report.image.corrupted_bytes = 3;
        assert!(report.text().contains("3 bytes wrong, 0 I/O errors"), "{}", report.text());
        assert!(report.text().contains("3 bytes WRONG"));
    }

    #[test]
    fn times_have_fitting_units() {
        let texts = [0.0, 0.000_085, 0.0032, 0.25, 1.44].map(seconds);
        assert_eq!(texts, ["0 µs", "85 µs", "3.2 ms", "250 ms", "1.4 s"]);
    }
}
