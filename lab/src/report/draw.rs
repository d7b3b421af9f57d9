//! Draws a figure as SVG, with `plotters`.
//!
//! Coordinates of the drawing are quarters of a pixel, since `plotters` writes whole numbers. The colours suit a
//! light page. A style sheet in the picture replaces them on a dark one.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::catalogue::{Axis, Style};
use super::colours::{AXES, COLOURS, GRID, INK, colour, dark_rules, escaped};
use super::curves::{Curve, Figure, short};

/// Drawing units per pixel.
pub(super) const FINE: u32 = 4;
/// Width of a picture in pixels.
pub const WIDTH: u32 = 480;
/// Height of the axes and what is inside, in pixels.
const PLOT_HEIGHT: u32 = 236;
/// Size of the letters in pixels: readable where a phone shows the picture at three quarters.
pub(super) const LETTER: u32 = 15;
/// Height of a line of the legend in pixels.
const LEGEND_LINE: u32 = 21;
/// Length of the line before a name in the legend, and the space around it.
const SWATCH: u32 = 30;
/// A wide axis has powers of ten if the largest value is so many times the smallest.
const WIDE: f64 = 50.0;

/// Draws figures below each other as one SVG file that needs nothing else. Each has its heading.
///
/// # Errors
/// If `plotters` fails.
pub fn file(figures: &[Figure]) -> Result<String> {
    let (mut inside, mut top) = (String::new(), 0);
    for figure in figures {
        let (picture, height) = picture(figure, true)?;
        let _ = write!(inside, "<g transform=\"translate(0 {top})\">{picture}</g>");
        top += height + 3 * LETTER * FINE / 2;
    }
    let height = top.saturating_sub(3 * LETTER * FINE / 2);
    let title = figures.iter().map(|figure| figure.title.as_str()).collect::<Vec<_>>().join(", ");
    let words = figures.iter().map(Figure::in_words).collect::<Vec<_>>().join(" ");
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" viewBox=\"0 0 {} {height}\" role=\"img\">\
         <title>{}</title><desc>{}</desc><style>@media (prefers-color-scheme: dark){{{}}}</style>{inside}</svg>\n",
        height / FINE,
        WIDTH * FINE,
        escaped(&title),
        escaped(&words),
        dark_rules("")
    ))
}

/// Draws a figure for a page, which has its style sheet and its heading.
///
/// # Errors
/// If `plotters` fails.
pub fn for_page(figure: &Figure) -> Result<String> {
    let (picture, height) = picture(figure, false)?;
    let id = escaped(&figure.id);
    Ok(format!(
        "<svg viewBox=\"0 0 {} {height}\" width=\"{WIDTH}\" height=\"{}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\
         <title id=\"{id}-title\">{}</title><desc id=\"{id}-desc\">{}</desc>{picture}</svg>",
        WIDTH * FINE,
        height / FINE,
        escaped(&figure.title),
        escaped(&figure.in_words()),
    ))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the inside of the SVG element and its height in drawing units.
fn picture(figure: &Figure, with_heading: bool) -> Result<(String, u32)> {
    let legend = legend_rows(figure);
    let heading = if with_heading { LEGEND_LINE + 6 } else { 0 };
    let above = heading + LEGEND_LINE * legend.len() as u32 + LETTER / 2;
    let height = (above + PLOT_HEIGHT) * FINE;

    let mut drawing = String::new();
    {
        let root = SVGBackend::with_string(&mut drawing, (WIDTH * FINE, height)).into_drawing_area();
        let failed = |error: &dyn std::fmt::Display| anyhow!("drawing the figure {}: {error}", figure.id);
        if with_heading {
            let heading = text_style(LETTER + 2, Pos::new(HPos::Left, VPos::Top));
            root.draw(&Text::new(figure.title.clone(), (6 * FINE as i32, 4 * FINE as i32), heading))
                .map_err(|error| failed(&error))?;
        }
        draw_legend(&root, &legend, heading).map_err(|error| failed(&error))?;
        let (_, below) = root.split_vertically(above * FINE);
        draw_axes(&below, figure).map_err(|error| failed(&error))?;
        root.present().map_err(|error| failed(&error))?;
    }

    Ok((inside(&drawing), height))
}

/// What is inside the SVG element of a drawing, without line breaks.
pub(super) fn inside(drawing: &str) -> String {
    let inside = drawing.find('>').map_or("", |at| &drawing[at + 1..]);
    let inside = inside.rsplit_once("</svg>").map_or(inside, |(inside, _)| inside);
    inside.trim().replace("\n</text>", "</text>").replace(">\n", ">")
}

pub(super) fn text_style(size: u32, pos: Pos) -> TextStyle<'static> {
    // `plotters` writes a smaller size than it is given.
    let font = ("DejaVu Sans, sans-serif", f64::from(size * FINE) * 1.24).into_font();
    font.color(&colour(INK)).pos(pos)
}

fn colour_of(curve: &Curve) -> RGBColor {
    colour(COLOURS[curve.colour % COLOURS.len()])
}

/// The curves of each line of the legend, with their places from the left in pixels. The heading names the only curve of a run.
fn legend_rows(figure: &Figure) -> Vec<Vec<(u32, &Curve)>> {
    if figure.n_runs == 1 && figure.named().count() == 1 {
        return Vec::new();
    }
    let mut rows: Vec<Vec<(u32, &Curve)>> = Vec::new();
    let mut left = WIDTH;
    for curve in figure.named() {
        let width = SWATCH + text_width(&curve.label) + LETTER;
        if left + width > WIDTH {
            rows.push(Vec::new());
            left = 6;
        }
        rows.last_mut().expect("just pushed").push((left, curve));
        left += width;
    }
    rows
}

/// An estimate: letters are a little wider than half their height.
fn text_width(text: &str) -> u32 {
    text.chars().count() as u32 * LETTER * 3 / 5
}

/// As many characters of a name as the picture is wide.
fn fitting(label: &str) -> String {
    let room = ((WIDTH - SWATCH - 2 * LETTER) / (LETTER * 3 / 5)) as usize;
    match label.chars().count() > room {
        true => format!("…{}", label.chars().skip(label.chars().count() + 1 - room).collect::<String>()),
        false => label.to_owned(),
    }
}

fn draw_legend(root: &Area<'_>, rows: &[Vec<(u32, &Curve)>], heading: u32) -> Result<(), Problem> {
    let fine = FINE as i32;
    for (row, curves) in rows.iter().enumerate() {
        let middle = (heading as i32 + LEGEND_LINE as i32 * row as i32 + LEGEND_LINE as i32 / 2) * fine;
        for (left, curve) in curves {
            let (left, colour) = (*left as i32 * fine, colour_of(curve));
            let line = colour.stroke_width(3 * FINE);
            if curve.style == Style::Part {
                let corners = [(left, middle - 6 * fine), (left + 22 * fine, middle + 6 * fine)];
                root.draw(&Rectangle::new(corners, colour.filled()))?;
            } else if curve.style != Style::Dots {
                root.draw(&PathElement::new(vec![(left, middle), (left + 22 * fine, middle)], line))?;
            }
            if matches!(curve.style, Style::Marked | Style::Dots) {
                root.draw(&Circle::new((left + 11 * fine, middle), 4 * fine, colour.filled()))?;
            }
            let style = text_style(LETTER, Pos::new(HPos::Left, VPos::Center));
            root.draw(&Text::new(fitting(&curve.label), (left + SWATCH as i32 * fine, middle), style))?;
        }
    }
    Ok(())
}

type Problem = DrawingAreaErrorKind<std::io::Error>;

/// How values become heights.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scale {
    is_log: bool,
    low: f64,
    high: f64,
}

impl Scale {
    fn of(axis: Axis, curves: &[Curve]) -> Self {
        let values = || curves.iter().flat_map(|curve| curve.points.iter().map(|point| point.1));
        let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        if axis == Axis::Wide && low > 0.0 && high > WIDE * low {
            let (low, high) = (low.log10(), high.log10());
            return Self { is_log: true, low: low - 0.04 * (high - low), high: high + 0.04 * (high - low) };
        }

        let low = if axis == Axis::FromZero { low.min(0.0) } else { low };
        let room = match high - low {
            0.0 => (high.abs() * 0.1).max(1e-9),
            range => 0.05 * range,
        };
        let below = if axis == Axis::FromZero && low == 0.0 { 0.0 } else { room };
        Self { is_log: false, low: low - below, high: high + room }
    }

    fn height(self, value: f64) -> f64 {
        if self.is_log { value.log10() } else { value }
    }

    fn label(self, height: f64) -> String {
        short(if self.is_log { 10f64.powf(height) } else { height })
    }
}

/// Puts the parts of a whole on top of each other; each becomes the upper edge of its area.
fn stacked(curves: &[Curve]) -> Vec<Curve> {
    let mut below: BTreeMap<u64, f64> = BTreeMap::new();
    let pile = |curve: &Curve| {
        if curve.style != Style::Part {
            return curve.clone();
        }
        let points = curve.points.iter().map(|(step, value)| {
            let edge = below.entry(*step as u64).or_default();
            *edge += value;
            (*step, *edge)
        });
        Curve { points: points.collect(), ..curve.clone() }
    };
    curves.iter().map(pile).collect()
}

fn draw_axes(area: &Area<'_>, figure: &Figure) -> Result<(), Problem> {
    let curves = stacked(&figure.curves);
    let scale = Scale::of(figure.kind.axis, &curves);
    let [first, last] = figure.steps;
    let last = last.max(first + 1.0);

    let mut chart = ChartBuilder::on(area)
        .margin_left(4 * FINE)
        .margin_right(18 * FINE)
        .margin_top(8 * FINE)
        .x_label_area_size(46 * FINE)
        .y_label_area_size(70 * FINE)
        .build_cartesian_2d(first..last, scale.low..scale.high)?;
    chart
        .configure_mesh()
        .bold_line_style(colour(GRID).stroke_width(FINE))
        .light_line_style(TRANSPARENT)
        .axis_style(colour(AXES).stroke_width(FINE))
        .x_labels(5)
        .y_labels(6)
        .x_label_formatter(&|step| short(*step))
        .y_label_formatter(&|height| scale.label(*height))
        .label_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .axis_desc_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .set_all_tick_mark_size(4 * FINE)
        .x_desc("optimizer step")
        .y_desc(figure.kind.unit)
        .draw()?;

    // The upper areas first, so that each lower one covers what is below its edge.
    for curve in curves.iter().rev().filter(|curve| curve.style == Style::Part) {
        let points = curve.points.iter().copied();
        chart.draw_series(AreaSeries::new(points, scale.low, colour_of(curve).filled()))?;
    }
    for curve in curves.iter().filter(|curve| curve.style != Style::Part) {
        let points = || curve.points.iter().map(|(step, value)| (*step, scale.height(*value)));
        let colour = colour_of(curve);
        if curve.style != Style::Dots {
            let style = match curve.is_faint {
                true => colour.mix(0.3).stroke_width(FINE),
                false => colour.stroke_width(2 * FINE),
            };
            chart.draw_series(LineSeries::new(points(), style))?;
        }
        // Marks that would touch each other hide the line.
        let has_marks = curve.style == Style::Dots || curve.style == Style::Marked && curve.points.len() <= 40;
        if has_marks || curve.points.len() == 1 {
            chart.draw_series(points().map(|point| Circle::new(point, 4 * FINE, colour.filled())))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::{FIGURES, find};
    use super::*;

    fn figure(kind: &str, curves: Vec<Curve>) -> Figure {
        let kind = find(kind).expect("known");
        let (id, title) = (kind.id.into(), kind.title.into());
        Figure { id, title, kind, curves, averaged: 1, steps: [1.0, 1000.0], n_runs: 2 }
    }

    fn curve(label: &str, colour: usize, style: Style, points: &[(f64, f64)]) -> Curve {
        Curve { label: label.into(), colour, style, is_faint: false, points: points.to_vec() }
    }

    #[test]
    fn a_picture_has_words_a_legend_and_both_sets_of_colours() {
        let points = [(1.0, 5.0), (100.0, 2.5)];
        let curves = vec![curve("<b> & 'c'", 0, Style::Line, &points), curve("d", 1, Style::Marked, &points)];
        let svg = file(&[figure("loss", curves)]).expect("drawn");
        for part in [
            "<title>Loss</title>",
            "&lt;b&gt; &amp; &#39;c&#39;: 5 at step 1, 2.5 at step 100",
            "prefers-color-scheme: dark",
            "[stroke=\"#0072B2\"]{stroke:#56B4E9}",
            "stroke=\"#0072B2\"",
            "<circle",
            "optimizer step",
            "nats per label",
        ] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert!(!svg.contains("<b>"), "names are escaped: {svg}");
        resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default()).expect("SVG");
    }

    #[test]
    fn every_figure_can_be_drawn_with_any_values() {
        let values: [&[(f64, f64)]; 5] = [
            &[(7.0, 0.0)],
            &[(1.0, 0.0), (2.0, 0.0)],
            &[(1.0, -3.0), (1000.0, 3e30)],
            &[(1.0, 1e-9), (2.0, 1e9)],
            &[(3.0, 5.0), (3.0, 5.0)],
        ];
        for kind in FIGURES {
            for points in values {
                let styles = [Style::Line, Style::Marked, Style::Dots, Style::Part];
                let curves = styles.map(|style| curve("x", 9, style, points)).to_vec();
                let svg = file(&[figure(kind.id, curves)]).expect("drawn");
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}: {svg}", kind.id);
            }
        }
    }

    #[test]
    fn parts_are_stacked_by_their_step() {
        let parts = [
            curve("a", 0, Style::Part, &[(1.0, 30.0), (2.0, 40.0)]),
            curve("b", 1, Style::Part, &[(2.0, 60.0)]),
            curve("c", 2, Style::Line, &[(1.0, 1.0)]),
        ];
        let stacked = stacked(&parts);
        assert_eq!(stacked[1].points, [(2.0, 100.0)]);
        assert_eq!((&stacked[0].points, &stacked[2].points), (&parts[0].points, &parts[2].points));
    }

    #[test]
    fn powers_of_ten_are_for_values_far_apart() {
        let of = |axis, low, high| Scale::of(axis, &[curve("", 0, Style::Line, &[(1.0, low), (2.0, high)])]);
        assert!(of(Axis::Wide, 0.01, 100.0).is_log && !of(Axis::Wide, 1.0, 2.0).is_log);
        assert!(!of(Axis::Wide, 0.0, 100.0).is_log && !of(Axis::Range, 0.01, 100.0).is_log);
        assert_eq!(of(Axis::FromZero, 5.0, 10.0).low, 0.0);
        assert!((of(Axis::Range, 5.0, 10.0).low - 4.75).abs() < 1e-12);
    }

    #[test]
    fn a_legend_breaks_its_lines_and_shortens_long_names() {
        let names: Vec<Curve> =
            (0..8).map(|i| curve(&format!("a run of length {i}"), i, Style::Line, &[(1.0, 1.0)])).collect();
        assert_eq!(legend_rows(&figure("loss", names)).len(), 4);
        let long = "x".repeat(200) + "end";
        assert!(fitting(&long).ends_with("end") && text_width(&fitting(&long)) < WIDTH);
    }
}
