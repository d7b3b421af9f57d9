//! The colours of pictures on light and on dark pages.

use std::fmt::Write;

use kiln_data::terminal::clean;
use plotters::style::RGBColor;

/// The colours of curves on a light and on a dark page, distinct for colour-blind readers (Okabe and Ito 2008, darkened and
/// lightened to a contrast of 3 and more).
pub const COLOURS: [[&str; 2]; 8] = [
    ["#0072B2", "#56B4E9"],
    ["#C24E00", "#FF9A52"],
    ["#007A5A", "#3CCFA4"],
    ["#A8478A", "#E8A3CF"],
    ["#8A6A00", "#F0C948"],
    ["#5B4BC4", "#A99CFF"],
    ["#2F7F92", "#7FD6E8"],
    ["#6B6B6B", "#BDBDBD"],
];

/// Text on a light and on a dark page.
pub const INK: [&str; 2] = ["#1F2A33", "#E6EAEE"];
/// Lines of the grid.
pub const GRID: [&str; 2] = ["#E1E6EA", "#333C44"];
/// Axes.
pub const AXES: [&str; 2] = ["#8794A0", "#74818C"];

/// Returns the style sheet that replaces the colours on a dark page; `within` selects the pictures.
pub fn dark_rules(within: &str) -> String {
    let mut rules = String::new();
    for [light, dark] in COLOURS.into_iter().chain([INK, GRID, AXES]) {
        let _ = write!(rules, "{within}[stroke=\"{light}\"]{{stroke:{dark}}}{within}[fill=\"{light}\"]{{fill:{dark}}}");
    }
    rules
}

/// Returns the colour for a light page, which a style sheet replaces on a dark one.
pub fn colour([light, _]: [&str; 2]) -> RGBColor {
    let part = |at: usize| u8::from_str_radix(&light[at..at + 2], 16).expect("hex digits");
    RGBColor(part(1), part(3), part(5))
}

/// Replaces the characters that have a meaning in XML and HTML.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
