//! The plot of the gaps between completions over time.

use std::time::Duration;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::report::{MarkKind, Report, seconds};
use crate::chart::{Area, Drawn, FONT, faint, svg};
use crate::workload::{SLOT, Timeline};

const HEIGHT: u32 = 420;
/// Columns of the curve; more than that the picture cannot show.
const COLUMNS_MAX: usize = 900;
/// The vertical axis, as powers of ten of a second: 10 µs at the bottom, at least 100 ms at the top.
const BOTTOM: f64 = -5.0;
const TOP_MIN: f64 = -1.0;
const CURVE: RGBColor = RGBColor(14, 124, 134);
const KILL: RGBColor = RGBColor(214, 57, 57);
const RAIL: RGBColor = RGBColor(201, 126, 17);
const MANAGER: RGBColor = RGBColor(52, 120, 199);
/// Behind the phases, one after the other.
const SHADES: [RGBColor; 5] = [
    RGBColor(120, 130, 140),
    RGBColor(201, 126, 17),
    RGBColor(52, 120, 199),
    RGBColor(214, 57, 57),
    RGBColor(146, 72, 186),
];
const FONT_SIZE: i32 = 15;

type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The plot; `None` where there is nothing to draw.
pub(super) fn plot(report: &Report, timeline: &Timeline) -> Option<String> {
    let columns = columns(timeline);
    if columns.is_empty() || report.phases.is_empty() {
        return None;
    }
    svg(HEIGHT, report.words().plot, |area| draw(area, report, &columns))
}

/// `(time, gap)` in seconds: the longest gap of each column, where something completed.
fn columns(timeline: &Timeline) -> Vec<(f64, f64)> {
    let slots = timeline.len().div_ceil(COLUMNS_MAX).max(1);
    let column = |(number, gaps): (usize, &[Duration])| {
        let gap = gaps.iter().max().filter(|gap| !gap.is_zero())?;
        let end_s = (number * slots + gaps.len()) as f64 * SLOT.as_secs_f64();
        Some((end_s, gap.as_secs_f64()))
    };
    timeline.chunks(slots).enumerate().filter_map(column).collect()
}

fn draw(area: &Area<'_>, report: &Report, columns: &[(f64, f64)]) -> Drawn {
    let end_s = report.phases.iter().map(|phase| phase.start_s + phase.seconds).fold(1.0, f64::max);
    let longest = columns.iter().map(|(_, gap)| gap.log10()).fold(TOP_MIN, f64::max);
    // Room above the curve for the names of the phases.
    let top = longest.ceil() + 0.45;
    let mut chart = ChartBuilder::on(area)
        .margin(8)
        .margin_right(16)
        .x_label_area_size(40)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..end_s, BOTTOM..top)?;
    draw_phases(&mut chart, report, top)?;
    faint(&mut chart.configure_mesh(), FONT_SIZE)
        .disable_x_mesh()
        .y_labels((top - BOTTOM) as usize + 1)
        .x_labels(12)
        .y_label_formatter(&|power| decade(*power))
        .x_label_formatter(&|time| format!("{time:.0} s"))
        .y_desc(report.words().gap)
        .draw()?;
    draw_marks(&mut chart, report, top)?;
    draw_curve(&mut chart, columns, end_s)
}

fn draw_phases(chart: &mut Chart<'_, '_>, report: &Report, top: f64) -> Drawn {
    for (phase, shade) in report.phases.iter().zip(SHADES.iter().cycle()) {
        let end = phase.start_s + phase.seconds;
        let corners = [(phase.start_s, BOTTOM), (end, top)];
        chart.draw_series([Rectangle::new(corners, shade.mix(0.09).filled())])?;
        let place = ((phase.start_s + end) / 2.0, top - 0.1);
        let centred = (FONT, FONT_SIZE).into_font().color(&shade.mix(1.0));
        let centred = centred.pos(plotters::style::text_anchor::Pos::new(
            plotters::style::text_anchor::HPos::Center,
            plotters::style::text_anchor::VPos::Top,
        ));
        chart.draw_series([Text::new(phase.name, place, centred)])?;
    }
    Ok(())
}

fn draw_marks(chart: &mut Chart<'_, '_>, report: &Report, top: f64) -> Drawn {
    for mark in &report.events {
        let colour = match mark.kind {
            MarkKind::Kill => KILL,
            MarkKind::RailCut | MarkKind::RailSlowed | MarkKind::RailRestored => RAIL,
            MarkKind::Assigned | MarkKind::Unassigned | MarkKind::ManagerStarted => MANAGER,
        };
        let line = [(mark.at_s, BOTTOM), (mark.at_s, top - 0.38)];
        chart.draw_series(DashedLineSeries::new(line, 3, 4, colour.mix(0.75).stroke_width(1)))?;
        let place = (mark.at_s, top - 0.38);
        match mark.kind {
            MarkKind::Kill => chart.draw_series([Cross::new(place, 4, colour.stroke_width(2))])?,
            MarkKind::RailCut | MarkKind::RailSlowed => {
                chart.draw_series([TriangleMarker::new(place, -6, colour.filled())])?
            }
            MarkKind::RailRestored => chart.draw_series([TriangleMarker::new(place, 6, colour.filled())])?,
            MarkKind::Assigned | MarkKind::Unassigned | MarkKind::ManagerStarted => {
                chart.draw_series([Circle::new(place, 3, colour.filled())])?
            }
        };
    }
    Ok(())
}

fn draw_curve(chart: &mut Chart<'_, '_>, columns: &[(f64, f64)], end_s: f64) -> Drawn {
    let points = || {
        columns.iter().filter(|(time, _)| *time <= end_s).map(|(time, gap)| (*time, gap.log10().max(BOTTOM)))
    };
    let last = points().next_back().map_or(0.0, |(time, _)| time);
    let first = points().next().map_or(0.0, |(time, _)| time);
    let outline: Vec<_> = [(first, BOTTOM)].into_iter().chain(points()).chain([(last, BOTTOM)]).collect();
    chart.draw_series([Polygon::new(outline, CURVE.mix(0.22))])?;
    chart.draw_series([PathElement::new(points().collect::<Vec<_>>(), CURVE.stroke_width(1))])?;
    Ok(())
}

/// The label of a power of ten of a second; nothing between them.
fn decade(power: f64) -> String {
    if (power - power.round()).abs() > 0.01 {
        String::new()
    } else {
        seconds(10_f64.powf(power.round())).replace(".0 ", " ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::INK_TEXT;
    use crate::demo::report::tests::example;

    #[test]
    fn a_column_shows_the_longest_gap_of_its_time() {
        let mut timeline = vec![Duration::from_micros(50); 4 * COLUMNS_MAX];
        timeline[6] = Duration::from_millis(20);
        timeline[8..12].fill(Duration::ZERO);
        let columns = columns(&timeline);
        assert_eq!(columns.len(), COLUMNS_MAX - 1, "where nothing completed nothing is drawn");
        assert_eq!(columns[0], (0.04, 0.000_05));
        assert_eq!(columns[1], (0.08, 0.02));
        assert!((columns[2].0 - 0.16).abs() < 1e-9);
    }

    #[test]
    fn the_plot_names_the_phases_and_marks_the_kills() {
        let svg = plot(&example(), &vec![Duration::from_micros(70); 2500]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{}", &svg[..200]);
        for text in ["quiet", "rail-cut", "kill-lender-card", "100 µs", "10 ms", "20 s", "currentColor"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains(INK_TEXT) && !svg.contains("width=\"1060\""));
    }

    #[test]
    fn without_data_there_is_no_plot() {
        assert_eq!(plot(&example(), &Vec::new()), None);
        assert_eq!(plot(&Report::default(), &vec![Duration::from_micros(70); 10]), None);
    }

    #[test]
    fn the_axis_speaks_in_decades() {
        assert_eq!([-5.0, -3.0, -2.0, 0.0, -1.5].map(decade), ["10 µs", "1 ms", "10 ms", "1 s", ""]);
    }
}
