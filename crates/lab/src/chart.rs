//! What the plots of the demo and of the bench share: an SVG that takes the colours of the page around it.

use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Units of the picture across; the page makes it as wide as there is room.
const WIDTH: u32 = 1060;
/// Stands for the text colour of the page: replaced in the finished text, as plotters knows fixed colours only.
pub(crate) const INK: RGBColor = RGBColor(1, 2, 3);
/// The same, as it stands in the text until then.
pub(crate) const INK_TEXT: &str = "#010203";
/// Of all labels.
pub(crate) const FONT: &str = "system-ui, sans-serif";

/// What a plot is drawn on.
pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What drawing gives.
pub(crate) type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;
/// The grid of a plot of two numbers.
type Mesh<'a, 'b, 'c> = MeshStyle<'a, 'b, RangedCoordf64, RangedCoordf64, SVGBackend<'c>>;

/// A picture of this height, `label` for those who do not see it; `None` where it cannot be drawn.
pub(crate) fn svg(height: u32, label: &str, draw: impl FnOnce(&Area<'_>) -> Drawn) -> Option<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    if let Err(error) = draw(&area) {
        tracing::warn!(%error, "a plot cannot be drawn");
        return None;
    }
    drop(area);
    let size = format!("width=\"{WIDTH}\" height=\"{height}\"");
    let fluid = format!("role=\"img\" aria-label=\"{label}\"");
    Some(svg.replace(INK_TEXT, "currentColor").replacen(&size, &fluid, 1))
}

/// A grid that stands back, with labels of this size.
pub(crate) fn faint<'m, 'a, 'b, 'c>(
    mesh: &'m mut Mesh<'a, 'b, 'c>,
    label_size: i32,
) -> &'m mut Mesh<'a, 'b, 'c> {
    mesh.bold_line_style(INK.mix(0.14))
        .light_line_style(INK.mix(0.0))
        .axis_style(INK.mix(0.4))
        .label_style(text(label_size))
        .axis_desc_style(text(label_size))
}

/// Labels in the colour of the page's text.
pub(crate) fn text(size: i32) -> TextStyle<'static> {
    (FONT, size).into_font().color(&INK)
}
