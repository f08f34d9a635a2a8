//! What the pages of the demo and of the bench share.

use std::fmt::Write;

/// The looks of both pages.
pub(crate) const STYLE: &str = include_str!("page.css");

/// A table with these columns.
pub(crate) fn table<const N: usize>(
    columns: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let heading: String = columns.iter().map(|column| format!("<th>{column}</th>")).collect();
    let mut text = format!("<div class=\"scroll\"><table>\n<thead><tr>{heading}</tr></thead>\n<tbody>\n");
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = writeln!(text, "<tr>{cells}</tr>");
    }
    text.push_str("</tbody></table></div>\n");
    text
}

/// As HTML text.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
