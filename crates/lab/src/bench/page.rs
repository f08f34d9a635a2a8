//! The page `report.html`: one file that needs nothing else.

use super::plot;
use super::report::{COLUMNS, CaseReport, Report, row};
use crate::page::{STYLE, escape, table};

/// The last row is a case like the others, not the sum of all.
const ROWS: &str =
    "tbody tr:last-child td { border-top: 0; } tbody tr:last-child td + td { font-weight: 400; }\n";

const LEGEND: &str = "<p class=\"legend\"><span>Ours <b style=\"color:#0e7c86\">●</b>, peer \
     <b style=\"color:#c97e11\">●</b></span></p>\n";

/// The page.
pub(super) fn render(report: &Report) -> String {
    let missed = report.cases.iter().filter(|case| case.met == Some(false)).count();
    let failed = report.cases.iter().filter(|case| case.failed.is_some()).count();
    let (class, badge) = match (failed, missed) {
        _ if report.interrupted => ("partial", "interrupted".to_owned()),
        (0, 0) => ("good", "targets met".to_owned()),
        (0, _) => ("partial", format!("{missed} targets missed")),
        _ => ("bad", format!("{failed} cases failed")),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Causeway bench: {badge}</title>\n<style>\n{STYLE}{ROWS}</style>\n</head>\n<body>\n<main>\n\
         <header><h1>Causeway bench</h1><span class=\"badge {class}\">{badge}</span>\n\
         <p class=\"verdict\">{machine}</p>\n{problems}</header>\n\
         <section><h2>What came out</h2>\n{table}\
         <p>Medians. A ratio above 1 is better than the peer. The peer was measured in the same run, in turns with \
         ours.</p></section>\n{plots}{cases}</main>\n</body>\n</html>\n",
        machine = escape(&machine(report)),
        problems = problems(report),
        table = table(COLUMNS, report.cases.iter().map(row)),
        plots = plots(report),
        cases = report.cases.iter().map(case).collect::<String>(),
    )
}

fn machine(report: &Report) -> String {
    let machine = &report.machine;
    let memory = machine.memory_bytes >> 30;
    format!(
        "{}, {} cores, {memory} GiB, {}; commit {}; load average at the start {:.1}",
        machine.cpu, machine.cores, machine.kernel, report.commit, machine.load_average
    )
}

fn problems(report: &Report) -> String {
    let whys = report
        .cases
        .iter()
        .filter_map(|case| Some((case.id, case.failed.as_ref().or(case.skipped.as_ref())?)));
    let items: String = whys.map(|(id, why)| format!("<li><pre>{id}: {}</pre></li>", escape(why))).collect();
    if items.is_empty() { items } else { format!("<ul class=\"problems\">{items}</ul>\n") }
}

fn plots(report: &Report) -> String {
    let section = |title: &str, plot: Option<String>, note: &str| {
        let Some(plot) = plot else { return String::new() };
        format!("<section><h2>{title}</h2>\n<div class=\"plot\">{plot}</div>\n<p>{note}</p></section>\n")
    };
    section(
        "Beside the peer",
        plot::ratios(report),
        "Ours over the peer; the line is where both are the same.",
    ) + &depths(report)
        + &section(
            "Recovery",
            plot::recoveries(report),
            "From <code>kill -9</code> of a card to the next completed I/O: the share of kills that were over after \
             each time. Dashed: the targets of the medians.",
        )
}

fn depths(report: &Report) -> String {
    let pictures = plot::depths(report);
    if pictures.is_empty() {
        return String::new();
    }
    let each = pictures
        .iter()
        .map(|(family, plot)| format!("<h3>{family}</h3>\n<div class=\"plot\">{plot}</div>\n"));
    format!("<section><h2>IOPS over queue depth</h2>\n{}{LEGEND}</section>\n", each.collect::<String>())
}

fn case(case: &CaseReport) -> String {
    let Some(plot) = plot::rounds(case) else { return String::new() };
    let groups = case.by_distance.iter().map(|group| {
        let value = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), super::report::number);
        let ratio = group.ratio.map_or_else(String::new, |ratio| format!(", ratio {ratio:.2}"));
        format!("cores {}: ours {}, peer {}{ratio}", group.distance, value(group.ours), value(group.peer))
    });
    let facts = [
        ("Among rounds of one distance", groups.collect::<Vec<_>>().join("; ")),
        ("Bound by", case.bound_by.clone().unwrap_or_default()),
        ("Copies of each byte", copies(case)),
        (
            "The paper",
            case.paper
                .map(|paper| format!("{}, {}: {}", paper.place, paper.row, paper.result))
                .unwrap_or_default(),
        ),
        (
            "Peer",
            case.peer.as_ref().map(|peer| format!("{} {}", peer.name, peer.version)).unwrap_or_default(),
        ),
        ("Again", case.command.clone()),
    ];
    let facts = facts.iter().filter(|(_, value)| !value.is_empty());
    let facts: String =
        facts.map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(value))).collect();
    format!(
        "<section><h2>{}</h2>\n<div class=\"plot\">{plot}</div>\n<p class=\"legend\"><span>Rounds in their order: ours \
         <b style=\"color:#0e7c86\">●</b>, peer <b style=\"color:#c97e11\">●</b>; hollow where the cores were far from \
         each other.</span></p>\n{latencies}<dl>{facts}</dl></section>\n",
        case.id,
        latencies = latencies(case)
    )
}

fn latencies(case: &CaseReport) -> String {
    let Some(plot) = plot::latencies(case) else { return String::new() };
    let of = if plot::is_of_gaps(case) { "times between two answers were" } else { "requests took" };
    format!(
        "<p>Which share of the {of} at most how long; each step to the right is a tenth of the rest.</p>\n\
         <div class=\"plot\">{plot}</div>\n"
    )
}

/// How many, and where: found in the code.
fn copies(case: &CaseReport) -> String {
    let Some(count) = case.copies_per_byte else { return String::new() };
    format!("{count}, as the code says: {}", case.copies.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;

    #[test]
    fn the_page_has_every_case_and_escapes_what_it_is_told() {
        let page = render(&example());
        for id in example().cases.iter().map(|case| case.id) {
            assert!(page.contains(id), "{id}");
        }
        assert!(page.contains("Some &amp; Any") && page.contains("&lt;not&gt;") && !page.contains("<not>"));
        assert!(page.contains("1 targets missed"));
        assert_eq!(page.matches("<svg").count(), 3 + 4 + 1);
        assert_eq!(page.matches("<section>").count(), page.matches("</section>").count());
    }
}
