//! The storage results of the papers beside ours.

use std::fmt::Write;

use super::report::{CaseReport, Report, number};

/// What stands below the tables.
const NOTE: &str = "\
Percent of the same drives without a fabric, by way of insecure UDP on this machine; at figure 16 percent of as many
hosts as cards. Flash cards are a timing model with the paper's rates divided by 8, so that UDP carries four of them
here; latencies are not divided. The files are copied through the NBD socket over sealed UDP, from and to memory: what
the paper copied from was a hard disk.
";

/// A table for each figure that was measured; nothing where none was.
pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut place = "";
    for case in &report.cases {
        let Some(paper) = case.paper else { continue };
        if paper.place != place {
            place = paper.place;
            let _ = writeln!(text, "\n{place}");
            let _ = writeln!(
                text,
                "  {:<28} {:<34} {:>9}  {:>16} {:>16}",
                "", "paper", "ours", "fabric", "without"
            );
        }
        let _ = writeln!(text, "  {:<28} {:<34} {}", paper.row, paper.result, result(case));
    }
    if !text.is_empty() {
        let _ = write!(text, "\n{NOTE}");
    }
    text
}

fn result(case: &CaseReport) -> String {
    let (Some(ours), Some(peer), Some(ratio)) = (&case.ours, &case.peer, case.ratio) else {
        let why = case.skipped.as_ref().or(case.failed.as_ref());
        return why.cloned().unwrap_or_else(|| "not measured".to_owned());
    };
    let value = |value: f64| format!("{} {}", number(value), case.unit);
    // Of a latency the difference says more than the quotient.
    let relative = match case.unit {
        "us" => format!("+{:.1} us", ours.median - peer.side.median),
        _ => format!("{:.1} %", ratio * 100.0),
    };
    format!("{relative:>9}  {:>16} {:>16}", value(ours.median), value(peer.side.median))
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::super::report::{Peer, Round, tests::example};
    use super::*;

    #[test]
    fn each_figure_has_its_rows_beside_ours() {
        let mut report = example();
        assert_eq!(text(&report), "");
        let rounds = |value| vec![Round { value, ..Round::default() }];
        for (id, ours, peer) in [("flash-512-read", 22e3, 23.2e3), ("added-latency", 21.0, 8.5)] {
            let case = CASES.iter().find(|case| case.id == id).unwrap();
            let peer = Peer::new("native", String::new(), rounds(peer));
            report.cases.push(CaseReport::measured(case, rounds(ours), Some(peer)));
        }
        let text = text(&report);
        assert!(text.contains("PCIeOE figures 10 and 11") && text.contains("94.8 %"), "{text}");
        assert!(text.contains("Dolphin DX") && text.contains("+12.5 us"), "{text}");
    }
}
