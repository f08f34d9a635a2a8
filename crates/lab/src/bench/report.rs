//! What came out: the document, its numbers and its table.

use std::fmt::Write;

use serde::Serialize;

use super::bound::{self, Share};
use super::case::{Better, Case, Paper, Target};
use super::core_to_core::Distance;

/// Version of the document.
pub(super) const VERSION: u32 = 1;
/// 99 of 100 recoveries keep to this many times the target of their median.
const TAIL: f64 = 5.0;

/// Percents of which the latencies are kept: those that fio gives.
pub(super) const PERCENTS: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];

/// The document `report.json`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    pub(super) version: u32,
    /// Of the sources the program was built from, where they are known.
    pub(super) commit: String,
    pub(super) machine: Machine,
    pub(super) cases: Vec<CaseReport>,
    /// Somebody ended it before its last case.
    pub(super) interrupted: bool,
}

/// Where it was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Machine {
    /// The processor's name.
    pub(super) cpu: String,
    /// Cores this process may use.
    pub(super) cores: usize,
    /// Bytes of memory.
    pub(super) memory_bytes: u64,
    /// The kernel's name and release.
    pub(super) kernel: String,
    /// Runnable processes, on average over the last minute, when the measurement began: above 0.5 somebody else worked
    /// too.
    pub(super) load_average: f64,
}

/// One case.
#[derive(Debug, Clone, Serialize)]
pub(super) struct CaseReport {
    pub(super) id: &'static str,
    pub(super) unit: &'static str,
    pub(super) better: Better,
    pub(super) ours: Option<Side>,
    pub(super) peer: Option<Peer>,
    /// Of the medians; above 1 ours is better.
    pub(super) ratio: Option<f64>,
    /// The bound on the median of ours, or on the ratio.
    pub(super) target: Option<f64>,
    /// Which of both.
    pub(super) target_of: Option<&'static str>,
    /// Where it is the ratio: the bound among rounds in which the cores were far.
    /// null where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target_far: Option<Option<f64>>,
    /// Whether the target was kept: the ratio among near rounds and among far ones, each where there are any and there
    /// is a bound, and null where that leaves none; for recoveries also by 99 of 100 within five times the target.
    pub(super) met: Option<bool>,
    /// What a paper has measured in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) paper: Option<Paper>,
    pub(super) cpu_us_per_io: Option<f64>,
    /// How many entries `copies` has; null where nothing is read.
    pub(super) copies_per_byte: Option<usize>,
    /// Where each byte is copied on its way, as the code says: reasoned, not measured.
    pub(super) copies: &'static [&'static str],
    /// What the counted processor times show; null where nothing was measured.
    pub(super) bound_by: Option<String>,
    /// Medians of what each process used of a core.
    pub(super) cpu_shares: Vec<Share>,
    pub(super) command: String,
    /// The same comparison among the rounds in which the cores were near, or far.
    pub(super) by_distance: Vec<ByDistance>,
    /// Why it was not measured.
    pub(super) skipped: Option<String>,
    /// What went wrong while it was measured.
    pub(super) failed: Option<String>,
}

/// What one side did.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Side {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// The smallest value that 99 of 100 rounds do not exceed; where there are that many rounds.
    pub(super) p99: Option<f64>,
    pub(super) rounds: Vec<Round>,
}

/// The other side.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) version: String,
    /// Of the peer and its client.
    pub(super) cpu_us_per_io: Option<f64>,
    #[serde(flatten)]
    pub(super) side: Side,
}

/// One measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Round {
    pub(super) value: f64,
    /// Round trip of a cache line between two cores, the mean of before and after; null where there is one core.
    pub(super) core_to_core_ns: Option<f64>,
    /// Processor time of all processes involved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_us_per_io: Option<f64>,
    /// Latencies of the reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p50_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) p99_us: Option<f64>,
    /// Percents of the requests, and how many microseconds they took at most; where gaps are measured, of the times
    /// between two answers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) latencies_us: Vec<(f64, f64)>,
    /// Of a recovery, the part that the node itself counts: from the notice of the death to its successor's service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) card_ms: Option<f64>,
    /// What each process used of a core meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) cpu_shares: Vec<Share>,
    /// What each process has in memory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) memory_kib: Vec<Held>,
    /// Whose card was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) victim: Option<&'static str>,
}

/// What a process has in memory, page tables included.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Held {
    pub(super) process: &'static str,
    /// Where loans are counted: of each.
    pub(super) kib: f64,
}

/// Medians of the rounds of one distance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ByDistance {
    pub(super) distance: &'static str,
    pub(super) ours: Option<f64>,
    pub(super) peer: Option<f64>,
    pub(super) ratio: Option<f64>,
}

impl Round {
    /// The round with its latencies.
    pub(super) fn with_latencies(self, latencies_us: Vec<(f64, f64)>) -> Self {
        let of = |wanted: f64| latencies_us.iter().find(|(percent, _)| *percent == wanted).map(|(_, us)| *us);
        Self { p50_us: of(50.0), p99_us: of(99.0), latencies_us, ..self }
    }
}

impl CaseReport {
    /// A case without any result.
    pub(super) fn empty(case: &Case, rounds: u32) -> Self {
        Self {
            id: case.id,
            unit: case.unit,
            better: case.better,
            ours: None,
            peer: None,
            ratio: None,
            target: case.target.map(Target::number),
            target_of: case.target.map(|target| match target {
                Target::Median(_) => "median",
                Target::Ratio { .. } => "ratio",
            }),
            target_far: case.target.and_then(|target| match target {
                Target::Median(_) => None,
                Target::Ratio { far, .. } => Some(far),
            }),
            paper: case.paper,
            met: None,
            cpu_us_per_io: None,
            copies_per_byte: (!case.copies.is_empty()).then_some(case.copies.len()),
            copies: case.copies,
            bound_by: None,
            cpu_shares: Vec::new(),
            command: case.command(rounds),
            by_distance: Vec::new(),
            skipped: None,
            failed: None,
        }
    }

    /// The case with its rounds: everything else follows from them.
    pub(super) fn measured(case: &Case, ours: Vec<Round>, peer: Option<Peer>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let side = Side::of(ours);
        let ratio = peer.as_ref().map(|peer| case.better.ratio(side.median, peer.side.median));
        let peer_rounds = peer.as_ref().map_or(&[][..], |peer| &peer.side.rounds);
        let groups = by_distance(case.better, &side.rounds, peer_rounds);
        let met = case.target.and_then(|target| match target {
            Target::Median(target) => {
                let tail = case.kind.is_recovery().then_some(side.p99).flatten();
                Some(case.better.keeps(side.median, target) && tail.is_none_or(|p99| p99 <= TAIL * target))
            }
            Target::Ratio { near, far } => keeps_ratio(&groups, near, far),
        });
        Self {
            ratio,
            met,
            cpu_us_per_io: median(side.rounds.iter().filter_map(|round| round.cpu_us_per_io)),
            bound_by: bound::bound_by(case, &side.rounds, cores),
            cpu_shares: bound::shares(&side.rounds),
            by_distance: groups,
            command: case.command(side.rounds.len() as u32),
            ours: Some(side),
            peer,
            ..Self::empty(case, 0)
        }
    }
}

impl Side {
    /// The numbers of these rounds, of which there is at least one.
    pub(super) fn of(rounds: Vec<Round>) -> Self {
        let mut values: Vec<f64> = rounds.iter().map(|round| round.value).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (values.first().copied(), values.last().copied());
        Self {
            median: median(values.iter().copied()).unwrap_or_default(),
            min: min.unwrap_or_default(),
            max: max.unwrap_or_default(),
            p99: (values.len() >= 20).then(|| values[(values.len() * 99).div_ceil(100) - 1]),
            rounds,
        }
    }
}

impl Peer {
    /// A peer with these rounds.
    pub(super) fn new(name: &'static str, version: String, rounds: Vec<Round>) -> Self {
        let cpu_us_per_io = median(rounds.iter().filter_map(|round| round.cpu_us_per_io));
        Self { name, version, cpu_us_per_io, side: Side::of(rounds) }
    }
}

impl Report {
    /// What goes to standard output for scripts, and to the file.
    pub(super) fn json(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("a report is plain structs, which serialise");
        text.push('\n');
        text
    }

    /// What goes to standard output for a person.
    pub(super) fn text(&self) -> String {
        let mut lines = vec![COLUMNS.map(|column| column.to_uppercase())];
        lines.extend(self.cases.iter().map(row));
        let width = |column: usize| lines.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
        let mut text = String::new();
        if self.interrupted {
            text.push_str("interrupted; the result is that of what ran until then\n");
        }
        for row in &lines {
            let _ = write!(text, "{:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(widths).skip(1) {
                let _ = write!(text, "  {cell:>width$}");
            }
            text.push('\n');
        }
        for case in &self.cases {
            for why in [&case.skipped, &case.failed].into_iter().flatten() {
                let _ = writeln!(text, "{}: {why}", case.id);
            }
        }
        text
    }
}

/// The columns of the table, on the page too.
pub(super) const COLUMNS: [&str; 8] = ["case", "ours", "min", "max", "peer", "ratio", "target", "cpu us/io"];

/// The cells of a case in the table.
pub(super) fn row(case: &CaseReport) -> [String; COLUMNS.len()] {
    let none = || "-".to_owned();
    let verdict = match (&case.skipped, &case.failed) {
        (Some(_), _) => Some("skipped"),
        (_, Some(_)) => Some("FAILED"),
        _ => None,
    };
    let side = |value: fn(&Side) -> f64| case.ours.as_ref().map_or_else(none, |side| number(value(side)));
    let target = match (case.target, case.met) {
        (Some(target), met) => {
            let of = if case.target_of == Some("ratio") { "x" } else { "" };
            let verdict = met.map_or("", |met| if met { " met" } else { " MISSED" });
            format!("{of}{}{verdict}", number(target))
        }
        (None, _) => none(),
    };
    [
        case.id.to_owned(),
        verdict.map_or_else(|| format!("{} {}", side(|side| side.median), case.unit), str::to_owned),
        side(|side| side.min),
        side(|side| side.max),
        case.peer.as_ref().map_or_else(none, |peer| number(peer.side.median)),
        case.ratio.map_or_else(none, |ratio| format!("{ratio:.2}")),
        target,
        case.cpu_us_per_io.map_or_else(none, |cpu| format!("{cpu:.1}")),
    ]
}

/// A number with three digits that matter.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        0.0..1.0 => format!("{value:.3}"),
        1.0..10.0 => format!("{value:.2}"),
        10.0..100.0 => format!("{value:.1}"),
        100.0..10_000.0 => format!("{value:.0}"),
        _ => format!("{:.1}k", value / 1e3),
    }
}

/// The median; the mean of the two in the middle where there are two.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Whether the ratios of near and of far rounds keep to their bounds; `None` where none has one. A ratio of rounds of
/// which the distance is not known, or is not the same, says nothing about either bound.
fn keeps_ratio(groups: &[ByDistance], near: f64, far: Option<f64>) -> Option<bool> {
    let bound = |group: &ByDistance| if group.distance == Distance::Near.name() { Some(near) } else { far };
    let mut compared = groups.iter().filter_map(|group| Some(group.ratio? >= bound(group)?)).peekable();
    compared.peek()?;
    Some(compared.all(|kept| kept))
}

fn by_distance(better: Better, ours: &[Round], peer: &[Round]) -> Vec<ByDistance> {
    let of = |rounds: &[Round], distance| {
        let chosen = rounds.iter().filter(|round| Distance::of(round.core_to_core_ns) == Some(distance));
        median(chosen.map(|round| round.value))
    };
    [Distance::Near, Distance::Far]
        .into_iter()
        .map(|distance| {
            let (ours, peer) = (of(ours, distance), of(peer, distance));
            let ratio = ours.zip(peer).map(|(ours, peer)| better.ratio(ours, peer));
            ByDistance { distance: distance.name(), ours, peer, ratio }
        })
        .filter(|group| group.ours.is_some() || group.peer.is_some())
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::cases::CASES;
    use super::*;

    fn rounds(values: &[(f64, f64)]) -> Vec<Round> {
        let round = |&(value, core_to_core_ns): &(f64, f64)| Round {
            value,
            core_to_core_ns: Some(core_to_core_ns),
            cpu_us_per_io: Some(value / 10.0),
            ..Round::default()
        };
        values.iter().map(round).collect()
    }

    fn case(id: &str) -> &'static Case {
        CASES.iter().find(|case| case.id == id).unwrap()
    }

    /// A report as a good run gives it.
    pub(in super::super) fn example() -> Report {
        let near = |values: &[f64]| rounds(&values.iter().map(|value| (*value, 105.0)).collect::<Vec<_>>());
        let mut slow: Vec<f64> = (0..100).map(|number| 3.0 + f64::from(number % 10) / 10.0).collect();
        slow[7] = 24.0;
        let peer =
            Peer::new("nbdkit", "1.32.5".to_owned(), rounds(&[(18e3, 110.0), (9e3, 500.0), (17e3, 101.0)]));
        let mut ours = rounds(&[(40e3, 110.0), (60e3, 90.0), (20e3, 510.0)]);
        for round in &mut ours {
            let latencies = PERCENTS.iter().map(|percent| (*percent, 20.0 + percent / 10.0)).collect();
            *round = std::mem::take(round).with_latencies(latencies);
        }
        let deep = rounds(&[(400e3, 110.0), (390e3, 105.0)]);
        let mut skipped = CaseReport::empty(case("nbd-sealed-4k-read-qd32"), 5);
        skipped.skipped = Some("nbdkit is <not> installed".to_owned());
        Report {
            version: VERSION,
            commit: "0123abc".to_owned(),
            machine: Machine { cpu: "Some & Any".to_owned(), cores: 2, ..Machine::default() },
            cases: vec![
                CaseReport::measured(case("recovery-memory"), near(&slow), None),
                CaseReport::measured(case("native-udp-sealed-4k-read-qd1"), ours, Some(peer)),
                CaseReport::measured(case("native-udp-sealed-4k-read-qd32"), deep, None),
                skipped,
                CaseReport::measured(case("idle-memory"), near(&[70.0, 69.0, 71.0]), None),
            ],
            interrupted: false,
        }
    }

    /// What `report.json` says of a side and of a case follows from its raw rounds, and from nothing else.
    #[test]
    fn whoever_has_the_rounds_can_recompute_the_rest() {
        let document: serde_json::Value = serde_json::from_str(&example().json()).unwrap();
        let values = |side: &serde_json::Value| -> Vec<f64> {
            let rounds = side["rounds"].as_array().into_iter().flatten();
            let mut values: Vec<f64> = rounds.map(|round| round["value"].as_f64().unwrap()).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let middle = |values: &[f64]| (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        let mut compared = 0;
        for case in document["cases"].as_array().unwrap() {
            let sides = [values(&case["ours"]), values(&case["peer"])];
            for (side, values) in ["ours", "peer"].iter().zip(&sides).filter(|(_, values)| !values.is_empty())
            {
                assert_eq!(case[side]["median"], middle(values));
                assert_eq!(
                    (&case[side]["min"], &case[side]["max"]),
                    (&values[0].into(), &values[values.len() - 1].into())
                );
            }
            if sides.iter().any(Vec::is_empty) {
                assert!(case["ratio"].is_null(), "{case}");
                continue;
            }
            let (ours, peer) = (middle(&sides[0]), middle(&sides[1]));
            let ratio = if case["better"] == "higher" { ours / peer } else { peer / ours };
            assert_eq!(case["ratio"].as_f64().unwrap(), ratio);
            compared += 1;
        }
        assert_eq!(compared, 1);
        let case = &document["cases"][1];
        assert_eq!(case["by_distance"][0]["ratio"].as_f64().unwrap(), 50e3 / 17.5e3);
        assert_eq!(case["by_distance"][1]["distance"], "far");
    }

    #[test]
    fn a_ratio_is_kept_among_near_rounds_and_among_far_ones() {
        let group = |distance: Distance, ratio| ByDistance {
            distance: distance.name(),
            ours: None,
            peer: None,
            ratio: Some(ratio),
        };
        let (near, far) = (group(Distance::Near, 1.6), group(Distance::Far, 1.1));
        assert_eq!(keeps_ratio(&[near.clone(), far.clone()], 1.5, Some(1.0)), Some(true));
        assert_eq!(keeps_ratio(std::slice::from_ref(&near), 1.7, Some(1.0)), Some(false));
        assert_eq!(keeps_ratio(&[near.clone(), far.clone()], 1.5, Some(1.2)), Some(false));
        assert_eq!(keeps_ratio(&[near, far.clone()], 1.5, None), Some(true));
        assert_eq!(keeps_ratio(&[far], 0.1, None), None);
        assert_eq!(keeps_ratio(&[], 1.5, Some(1.0)), None);
    }

    #[test]
    fn far_rounds_alone_do_not_meet_a_target_of_near_ones() {
        let far = |value| rounds(&[(value, 500.0); 5]);
        let measured = |id: &str, ours| {
            let peer = Peer::new("native", String::new(), far(10e3));
            CaseReport::measured(case(id), far(ours), Some(peer))
        };
        for ours in [5e3, 20e3] {
            let report = measured("shm-4k-read-qd32", ours);
            assert_eq!(report.met, None);
            assert!(!row(&report)[6].contains("met"), "{:?}", row(&report));
            let document = serde_json::to_value(&report).unwrap();
            assert!(document["met"].is_null() && document["target_far"].is_null());
            assert!(document.as_object().unwrap().contains_key("target_far"));
        }
        assert_eq!(measured("native-4k-read-qd32", 5e3).met, Some(false));
        assert_eq!(measured("native-4k-read-qd32", 8e3).met, Some(true));
    }

    #[test]
    fn the_document_has_the_keys_of_the_interface_and_begins_with_its_version() {
        let text = example().json();
        assert!(text.starts_with("{\n  \"version\": 1,\n"), "{text}");
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(document["commit"].is_string() && document["machine"].is_object());
        for case in document["cases"].as_array().unwrap() {
            let case = case.as_object().unwrap();
            for key in ["id", "unit", "better", "ours", "peer", "ratio", "target", "met", "cpu_us_per_io"] {
                assert!(case.contains_key(key), "{key}");
            }
            assert!(["copies_per_byte", "bound_by", "command"].iter().all(|key| case.contains_key(*key)));
        }
        let peer = document["cases"][1]["peer"].as_object().unwrap();
        assert!(
            ["name", "version", "median", "min", "max", "rounds"].iter().all(|key| peer.contains_key(*key))
        );
        assert!(peer["rounds"][0]["core_to_core_ns"].is_number());
        assert_eq!(document["cases"][0]["better"], "lower");
    }

    #[test]
    fn targets_bind_the_median_and_of_recoveries_the_tail() {
        let report = example();
        // 24 ms once in 100 is allowed: the 99th value counts.
        assert_eq!(report.cases[0].met, Some(true));
        assert_eq!(report.cases[4].met, Some(false));
        // 2.35 times, where 2 are wanted, but of the far rounds ours has 2.2 and of the near ones 2.86.
        assert_eq!(report.cases[1].met, Some(true));
        let mut late = report.cases[0].ours.clone().unwrap().rounds;
        (late[8].value, late[9].value) = (26.0, 27.0);
        let late = CaseReport::measured(case("recovery-memory"), late, None);
        assert_eq!((late.met, late.ours.unwrap().p99), (Some(false), Some(26.0)));
    }

    #[test]
    fn the_table_is_aligned_and_names_what_was_skipped() {
        let text = example().text();
        let table: Vec<&str> = text.lines().take(6).collect();
        assert!(table.iter().all(|line| line.chars().count() == table[0].chars().count()), "{text}");
        assert!(table[2].contains("40.0k IOPS") && table[2].contains("2.35"), "{text}");
        assert!(table[5].contains("64.0 MISSED"), "{text}");
        assert!(text.contains("nbd-sealed-4k-read-qd32: nbdkit is <not> installed"), "{text}");
    }

    #[test]
    fn medians_of_even_numbers_lie_between() {
        assert_eq!(median([4.0, 1.0, 3.0, 2.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }
}
