//! The page: one file that needs nothing else, with what was built, what came out, and how it went.

use std::fmt::Write;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::plot::plot;
use super::report::{MarkKind, Report};
use crate::page::{STYLE, escape, table};
use crate::workload::Timeline;

/// Tries to find a name that nobody has taken in a folder that everybody can write to.
const TRIES: u32 = 100;

/// Writes the page to `target/demo/report.html` where there is a `target`, else to a new file in the folder for
/// temporary files, and returns its path.
pub(super) fn write(report: &Report, timeline: &Timeline) -> io::Result<PathBuf> {
    let page = render(report, timeline);
    let target = std::env::current_dir().map(|folder| folder.join("target"));
    if let Ok(target) = target
        && target.is_dir()
        && let Ok(path) = write_into(&target.join("demo"), &page)
    {
        return Ok(path);
    }
    write_new(&std::env::temp_dir(), &page)
}

fn write_into(folder: &Path, page: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let path = folder.join("report.html");
    fs::write(&path, page)?;
    Ok(path)
}

fn write_new(folder: &Path, page: &str) -> io::Result<PathBuf> {
    for attempt in 0..TRIES {
        let path = folder.join(format!("causeway-demo-report-{}.{attempt}.html", std::process::id()));
        match File::create_new(&path) {
            Ok(mut file) => return file.write_all(page.as_bytes()).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn render(report: &Report, timeline: &Timeline) -> String {
    let (class, badge) = match (report.ok, report.problems.is_empty()) {
        (true, _) => ("good", "passed"),
        (false, true) => ("partial", "interrupted"),
        (false, false) => ("bad", "failed"),
    };
    let words = report.words();
    let plot = plot(report, timeline).unwrap_or_else(|| "<p>Nothing completed.</p>".to_owned());
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Causeway demo: {badge}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header><h1>Causeway demo</h1><span class=\"badge {class}\">{badge}</span>\n\
         <p class=\"verdict\">{verdict}.</p>\n{problems}</header>\n\
         <section><h2>What ran</h2>\n{topology}\n\
         <p>A node lends {source} as an NVMe drive. {what_ran}</p>\n\
         </section>\n\
         <section><h2>What came out</h2>\n{table}{facts}</section>\n\
         <section><h2>{plot_title}</h2>\n<div class=\"plot\">{plot}</div>\n{legend}</section>\n\
         <section><h2>What was done</h2>\n{events}</section>\n{guest}\
         </main>\n</body>\n</html>\n",
        verdict = escape(&report.verdict()),
        problems = problems(report),
        source = escape(&report.image.source),
        topology = words.topology,
        what_ran = words.what_ran,
        plot_title = words.plot,
        table = table(report.columns(), report.rows()),
        facts = facts(report),
        legend = LEGEND.replace("CURVE", words.curve),
        events = events(report),
        guest = guest(report),
    )
}

const LEGEND: &str = "<p class=\"legend\"><span><i class=\"curve\"></i>CURVE</span>\
    <span><i class=\"kill\">×</i>a card, a switch or the manager killed with <code>kill -9</code></span>\
    <span><i class=\"rail\">▾ ▴</i>a rail cut or slowed, and restored</span>\
    <span><i class=\"manager\">●</i>a drive assigned or taken back, a manager started</span></p>\n";

fn problems(report: &Report) -> String {
    if report.problems.is_empty() {
        return String::new();
    }
    let items = report.problems.iter().map(|problem| format!("<li><pre>{}</pre></li>", escape(problem)));
    format!("<ul class=\"problems\">{}</ul>\n", items.collect::<String>())
}

fn facts(report: &Report) -> String {
    let machine = report.machine();
    let option = if machine.is_some() { " --vm" } else { "" };
    let facts = [
        ("On disk", Some(report.on_disk())),
        ("Guest", machine),
        ("Seed", Some(format!("{} (again: causeway demo{option} --seed {0})", report.seed))),
        ("Time", Some(format!("{:.0} s", report.seconds))),
        ("Recovery time", Some(report.words().recovery.to_owned())),
    ];
    let known = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let items = known.map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(&value)));
    format!("<dl>{}</dl>\n", items.collect::<String>())
}

fn events(report: &Report) -> String {
    let kills = report.phases.iter().flat_map(|phase| &phase.recoveries_s);
    let mut recoveries = kills.map(|recovery| super::report::seconds(*recovery));
    let mut text = "<ol class=\"events\">\n".to_owned();
    for mark in &report.events {
        let recovery = if mark.kind == MarkKind::Kill { recoveries.next() } else { None };
        let recovered = report.words().recovered;
        let after = recovery.map(|time| format!(", {recovered} {time}")).unwrap_or_default();
        let _ = writeln!(text, "<li><b>{:.2} s</b> {}{after}</li>", mark.at_s, escape(&mark.text));
    }
    text.push_str("</ol>\n");
    text
}

/// What the guest's kernel said, from its first word to its last.
fn guest(report: &Report) -> String {
    let Some(guest) = &report.guest else { return String::new() };
    let list = |lines: &[String]| format!("<pre class=\"log\">{}</pre>", escape(&lines.join("\n")));
    format!(
        "<section><h2>What the guest's kernel said</h2>\n{highlights}\n\
         <details><summary>All {count} lines</summary>\n{all}\n</details></section>\n",
        highlights = list(&guest.highlights),
        count = guest.kernel_log.len(),
        all = list(&guest.kernel_log),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::report::tests::example;
    use std::time::Duration;

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let page = render(&example(), &vec![Duration::from_micros(70); 2500]);
        assert!(page.contains("a copy of &lt;x&gt; &amp; &quot;y&quot;"));
        assert!(page.contains("<td>kill-borrower-card</td>"));
        assert!(page.contains("card 13 of the lender killed, I/O back after 6.0 ms"), "{page}");
        assert_eq!(page.matches("<svg").count(), 2, "topology and plot");
        for outside in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn a_failure_is_shown() {
        let report = Report { ok: false, problems: vec!["3 bytes <were> wrong".to_owned()], ..example() };
        let page = render(&report, &Vec::new());
        assert!(page.contains("badge bad") && page.contains("3 bytes &lt;were&gt; wrong"));
    }

    #[test]
    fn a_page_in_a_shared_folder_is_a_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let first = write_new(folder.path(), "one").unwrap();
        let second = write_new(folder.path(), "two").unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read_to_string(first).unwrap(), "one");
        assert_eq!(
            write_into(&folder.path().join("demo"), "x").unwrap(),
            folder.path().join("demo/report.html")
        );
    }
}
