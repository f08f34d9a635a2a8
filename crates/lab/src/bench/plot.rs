//! The plots of the page, as SVGs that take the colours of the page around them.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::case::Kind;
use super::core_to_core::Distance;
use super::report::{CaseReport, PERCENTS, Report, Round, median, number};
use crate::chart::{Area, Drawn, FONT, INK, faint, svg, text};

const OURS: RGBColor = RGBColor(14, 124, 134);
const PEER: RGBColor = RGBColor(201, 126, 17);
const BAD: RGBColor = RGBColor(214, 57, 57);

/// A bar for each case that has a ratio; `None` where none has.
pub(super) fn ratios(report: &Report) -> Option<String> {
    let bars: Vec<(&str, f64)> = report
        .cases
        .iter()
        .filter_map(|case| Some((case.id, case.ratio.filter(|ratio| ratio.is_finite())?)))
        .collect();
    if bars.is_empty() {
        return None;
    }
    let height = 56 + 24 * bars.len() as u32;
    svg(height, "Ratio of ours to the peer, by case", |area| draw_ratios(area, &bars))
}

fn draw_ratios(area: &Area<'_>, bars: &[(&str, f64)]) -> Drawn {
    let most = bars.iter().map(|(_, ratio)| *ratio).fold(1.2, f64::max) * 1.08;
    let count = bars.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_left(290)
        .x_label_area_size(34)
        .build_cartesian_2d(0.0..most, 0.0..count)?;
    faint(&mut chart.configure_mesh(), 13)
        .disable_y_mesh()
        .x_label_formatter(&|ratio| format!("{ratio:.1}"))
        .draw()?;
    for (index, (_, ratio)) in bars.iter().enumerate() {
        let top = count - index as f64;
        let colour = if *ratio >= 1.0 { OURS } else { BAD };
        chart.draw_series([Rectangle::new(
            [(0.0, top - 0.2), (*ratio, top - 0.8)],
            colour.mix(0.75).filled(),
        )])?;
        let label = text(13).pos(Pos::new(HPos::Left, VPos::Center));
        chart.draw_series([Text::new(format!(" {ratio:.2}"), (*ratio, top - 0.5), label)])?;
    }
    chart.draw_series([PathElement::new([(1.0, 0.0), (1.0, count)], INK.mix(0.8).stroke_width(2))])?;
    // Names stand left of the chart, whose rows are as high as they are.
    let rows = chart.plotting_area().get_pixel_range().1;
    for (index, (id, _)) in bars.iter().enumerate() {
        let middle = f64::from(rows.start) + f64::from(rows.end - rows.start) * (index as f64 + 0.5) / count;
        area.draw(&Text::new(
            (*id).to_owned(),
            (284, middle as i32),
            text(13).pos(Pos::new(HPos::Right, VPos::Center)),
        ))?;
    }
    Ok(())
}

/// All rounds of a case, in their order: filled where the cores were near, hollow where they were far.
pub(super) fn rounds(case: &CaseReport) -> Option<String> {
    let ours = &case.ours.as_ref()?.rounds;
    let peer = case.peer.as_ref().map_or(&[][..], |peer| &peer.side.rounds);
    let label = format!("Rounds of {}", case.id);
    svg(220, &label, |area| draw_rounds(area, case, ours, peer))
}

fn draw_rounds(area: &Area<'_>, case: &CaseReport, ours: &[Round], peer: &[Round]) -> Drawn {
    let target = case.target.filter(|_| case.target_of == Some("median"));
    let most = ours.iter().chain(peer).map(|round| round.value).chain(target).fold(0.0, f64::max) * 1.12;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..ours.len() as f64 + 1.0, 0.0..most.max(f64::MIN_POSITIVE))?;
    faint(&mut chart.configure_mesh(), 12)
        .disable_x_mesh()
        .y_labels(5)
        .x_labels(ours.len().min(20))
        .y_label_formatter(&|value| number(*value))
        .x_label_formatter(&|round| format!("{round:.0}"))
        .y_desc(case.unit)
        .draw()?;
    if let Some(target) = target {
        let line = [(0.0, target), (ours.len() as f64 + 1.0, target)];
        chart.draw_series(DashedLineSeries::new(line, 5, 4, BAD.stroke_width(1)))?;
    }
    for (rounds, colour) in [(ours, OURS), (peer, PEER)] {
        for (index, round) in rounds.iter().enumerate() {
            let is_far = Distance::of(round.core_to_core_ns) == Some(Distance::Far);
            let style = if is_far { colour.stroke_width(2) } else { colour.filled() };
            chart.draw_series([Circle::new((index as f64 + 1.0, round.value), 4, style)])?;
        }
    }
    Ok(())
}

/// Which share of the recoveries had ended after which time; `None` where none was measured.
pub(super) fn recoveries(report: &Report) -> Option<String> {
    let curves: Vec<(&str, Option<f64>, Vec<f64>)> = report
        .cases
        .iter()
        .filter(|case| is_recovery(case))
        .filter_map(|case| {
            let mut times: Vec<f64> = case.ours.as_ref()?.rounds.iter().map(|round| round.value).collect();
            times.sort_by(f64::total_cmp);
            Some((case.id, case.target, times))
        })
        .collect();
    let longest = curves.iter().flat_map(|(_, target, times)| times.last().into_iter().chain(target));
    let longest = longest.copied().reduce(f64::max)?;
    svg(320, "Share of recoveries that had ended, over time", |area| {
        draw_recoveries(area, &curves, longest * 1.05)
    })
}

fn draw_recoveries(area: &Area<'_>, curves: &[(&str, Option<f64>, Vec<f64>)], end: f64) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(16)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..1.05)?;
    faint(&mut chart.configure_mesh(), 13)
        .y_labels(6)
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .x_label_formatter(&|time| format!("{time:.0} ms"))
        .draw()?;
    for ((id, target, times), colour) in curves.iter().zip([OURS, PEER].into_iter().cycle()) {
        let share = |index: usize| index as f64 / times.len() as f64;
        let steps = times
            .iter()
            .enumerate()
            .flat_map(|(index, time)| [(*time, share(index)), (*time, share(index + 1))]);
        chart.draw_series([PathElement::new(steps.collect::<Vec<_>>(), colour.stroke_width(2))])?;
        if let Some(target) = *target {
            chart.draw_series(DashedLineSeries::new(
                [(target, 0.0), (target, 1.05)],
                5,
                4,
                colour.stroke_width(1),
            ))?;
        }
        let place = (times.last().copied().unwrap_or(0.0).min(end * 0.7), 0.98);
        let label = (FONT, 13).into_font().color(&colour).pos(Pos::new(HPos::Left, VPos::Top));
        chart.draw_series([Text::new(
            format!("  {id}"),
            (place.0, place.1 - if colour == OURS { 0.0 } else { 0.08 }),
            label,
        )])?;
    }
    Ok(())
}

/// How long the requests of a case took: which share of them at most how long; `None` where that is not known.
pub(super) fn latencies(case: &CaseReport) -> Option<String> {
    let ours = median_latencies(&case.ours.as_ref()?.rounds);
    let peer = case.peer.as_ref().map_or_else(Vec::new, |peer| median_latencies(&peer.side.rounds));
    if ours.is_empty() {
        return None;
    }
    let label = format!("Latencies of {}", case.id);
    svg(260, &label, |area| draw_latencies(area, &ours, &peer))
}

/// By percent, the median of the rounds.
fn median_latencies(rounds: &[Round]) -> Vec<(f64, f64)> {
    let of = |percent: f64| {
        let all = rounds.iter().flat_map(|round| &round.latencies_us);
        median(all.filter(|(found, _)| *found == percent).map(|(_, us)| *us))
    };
    PERCENTS.iter().filter_map(|percent| Some((*percent, of(*percent)?))).collect()
}

/// Across: how many nines. Up: microseconds, each decade as high as the others.
fn draw_latencies(area: &Area<'_>, ours: &[(f64, f64)], peer: &[(f64, f64)]) -> Drawn {
    let nines = |percent: f64| -(1.0 - percent / 100.0).log10();
    let times = || ours.iter().chain(peer).map(|(_, us)| us.max(0.1).log10());
    let (low, high) = (times().fold(f64::MAX, f64::min).floor(), times().fold(f64::MIN, f64::max).ceil());
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(16)
        .x_label_area_size(34)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..4.05, low..high.max(low + 1.0))?;
    faint(&mut chart.configure_mesh(), 12)
        .x_labels(5)
        .y_labels((high - low) as usize + 1)
        .x_label_formatter(&|nines| format!("{} %", 100.0 - 10_f64.powf(2.0 - nines)))
        .y_label_formatter(&|us| number(10_f64.powf(*us)))
        .y_desc("us")
        .draw()?;
    for (latencies, colour) in [(ours, OURS), (peer, PEER)] {
        let line = latencies.iter().map(|(percent, us)| (nines(*percent), us.max(0.1).log10()));
        chart.draw_series([PathElement::new(line.collect::<Vec<_>>(), colour.stroke_width(2))])?;
    }
    Ok(())
}

/// Requests in a second over the number under way, of cases that differ in nothing else; a picture a family, with its
/// name.
pub(super) fn depths(report: &Report) -> Vec<(String, String)> {
    let mut families: Vec<(String, Vec<Depth>)> = Vec::new();
    for case in &report.cases {
        let (Some((family, depth)), Some(ours)) = (family(case.id), &case.ours) else { continue };
        let peer = case.peer.as_ref().map(|peer| peer.side.median);
        let point = Depth { depth, ours: ours.median, peer };
        match families.iter_mut().find(|(name, _)| *name == family) {
            Some((_, points)) => points.push(point),
            None => families.push((family, vec![point])),
        }
    }
    families.retain(|(_, points)| points.len() > 1);
    let draw = |(family, points): (String, Vec<Depth>)| {
        let picture =
            svg(240, &format!("IOPS over queue depth: {family}"), |area| draw_depths(area, &points))?;
        Some((family, picture))
    };
    families.into_iter().filter_map(draw).collect()
}

/// A point of both curves.
struct Depth {
    depth: u16,
    ours: f64,
    peer: Option<f64>,
}

/// A case's name without its depth, and that.
fn family(id: &str) -> Option<(String, u16)> {
    let (before, rest) = id.split_once("-qd")?;
    let end = rest.find('-').unwrap_or(rest.len());
    Some((format!("{before}{}", &rest[end..]), rest[..end].parse().ok()?))
}

fn draw_depths(area: &Area<'_>, points: &[Depth]) -> Drawn {
    let most = points.iter().flat_map(|point| [point.ours, point.peer.unwrap_or(0.0)]).fold(0.0, f64::max);
    let deepest = points.iter().map(|point| f64::from(point.depth).log2()).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(16)
        .x_label_area_size(34)
        .y_label_area_size(80)
        .build_cartesian_2d(-0.2..deepest + 0.2, 0.0..(most * 1.1).max(1.0))?;
    faint(&mut chart.configure_mesh(), 12)
        .disable_x_mesh()
        .y_labels(5)
        .x_labels(deepest as usize + 1)
        .x_label_formatter(&|depth| format!("QD {:.0}", 2_f64.powf(*depth)))
        .y_label_formatter(&|value| number(*value))
        .y_desc("IOPS")
        .draw()?;
    let ours = points.iter().map(|point| (f64::from(point.depth).log2(), point.ours));
    let peer = points.iter().filter_map(|point| Some((f64::from(point.depth).log2(), point.peer?)));
    for (line, colour) in [(ours.collect::<Vec<_>>(), OURS), (peer.collect(), PEER)] {
        chart.draw_series(line.iter().map(|point| Circle::new(*point, 4, colour.filled())))?;
        chart.draw_series([PathElement::new(line, colour.stroke_width(2))])?;
    }
    Ok(())
}

fn is_recovery(case: &CaseReport) -> bool {
    kind(case).is_some_and(Kind::is_recovery)
}

/// Whether its latencies are times between two answers.
pub(super) fn is_of_gaps(case: &CaseReport) -> bool {
    matches!(kind(case), Some(Kind::ManagerKill(_)))
}

fn kind(case: &CaseReport) -> Option<Kind> {
    super::cases::CASES.iter().find(|known| known.id == case.id).map(|known| known.kind)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::example;
    use super::*;
    use crate::chart::INK_TEXT;

    #[test]
    fn each_plot_shows_what_was_measured() {
        let report = example();
        let ratios = ratios(&report).unwrap();
        assert!(ratios.contains("native-udp-sealed-4k-read-qd1") && ratios.contains("2.35"), "{ratios}");
        let dots = rounds(&report.cases[1]).unwrap();
        assert_eq!(dots.matches("<circle").count(), 6);
        assert!(recoveries(&report).unwrap().contains("recovery-memory"));
        let latencies = latencies(&report.cases[1]).unwrap();
        assert!(latencies.contains("99.9 %") && latencies.matches("<polyline").count() >= 1, "{latencies}");
        assert_eq!(depths(&report).len(), 1);
        assert!(!dots.contains(INK_TEXT) && dots.contains("currentColor"));
    }

    #[test]
    fn cases_that_differ_in_depth_alone_are_a_family() {
        assert_eq!(family("nbd-4k-read-qd32-vs-tls"), Some(("nbd-4k-read-vs-tls".to_owned(), 32)));
        assert_eq!(family("native-512-read-qd1"), Some(("native-512-read".to_owned(), 1)));
        assert_eq!(family("idle-cpu"), None);
    }

    #[test]
    fn nothing_measured_gives_no_plot() {
        let report = Report { cases: Vec::new(), ..example() };
        assert_eq!((ratios(&report), recoveries(&report)), (None, None));
        assert_eq!(rounds(&example().cases[3]), None);
    }
}
