//! Draws the memory in use during a step, by category.

use anyhow::{Result, anyhow};
use kiln_metrics::units::thousands;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::colours::{AXES, COLOURS, GRID, colour, dark_rules, escaped};
use super::curves::short;
use super::draw::{FINE, LETTER, inside, text_style};
use crate::diagnose::profile::{MemoryLine, MemoryPoint};

/// Width of the picture in pixels.
const WIDTH: u32 = 640;
/// Height of the areas in pixels.
const AREAS: u32 = 300;
/// Height of a line of text in pixels.
const LINE: u32 = 22;
/// Space of the heading in pixels.
const HEADING: u32 = LETTER + 12;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Problem = DrawingAreaErrorKind<std::io::Error>;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Draws the bytes in use as one area per category on top of each other, as one SVG file that needs nothing else. What a run keeps from step to
/// step is at the bottom.
///
/// # Errors
/// If `plotters` fails.
pub fn file(line: &MemoryLine) -> Result<String> {
    let height = AREAS + LINE * (MemoryPoint::CATEGORIES.len() as u32 + 1);
    let mut drawing = String::new();
    {
        let root = SVGBackend::with_string(&mut drawing, (WIDTH * FINE, height * FINE)).into_drawing_area();
        let (above, below) = root.split_vertically(AREAS * FINE);
        draw_areas(&above, line).map_err(|error| anyhow!("drawing the memory: {error}"))?;
        draw_words(&below, &line.peak).map_err(|error| anyhow!("drawing the names: {error}"))?;
        root.present().map_err(|error| anyhow!("drawing the memory: {error}"))?;
    }

    let words = format!(
        "{}.",
        (0..MemoryPoint::CATEGORIES.len()).map(|at| words(&line.peak, at)).collect::<Vec<_>>().join(". ")
    );
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {} {}\" role=\"img\">\
         <title>Memory of a step</title><desc>At the peak: {}</desc><style>@media (prefers-color-scheme: dark){{{}}}</style>{}</svg>\n",
        WIDTH * FINE,
        height * FINE,
        escaped(&words),
        dark_rules(""),
        inside(&drawing)
    ))
}

/// `activations: 1,234 MiB at the peak`.
fn words(peak: &MemoryPoint, at: usize) -> String {
    format!("{}: {} MiB at the peak", MemoryPoint::CATEGORIES[at], thousands(mib(peak.parts()[at])))
}

fn draw_areas(area: &Area<'_>, line: &MemoryLine) -> Result<(), Problem> {
    let fine = FINE as i32;
    let heading = text_style(LETTER, Pos::new(HPos::Left, VPos::Top));
    let title = format!("memory in use during a step, at most {} MiB", thousands(mib(line.peak.total())));
    area.draw(&Text::new(title, (8 * fine, 6 * fine), heading))?;
    let (_, below) = area.split_vertically(HEADING * FINE);

    let ms = |point: &MemoryPoint| point.micros as f64 / 1e3;
    let end = line.points.iter().map(ms).fold(1e-3, f64::max);
    let mut chart = ChartBuilder::on(&below)
        .margin_left(4 * FINE)
        .margin_right(18 * FINE)
        .x_label_area_size(46 * FINE)
        .y_label_area_size(70 * FINE)
        .build_cartesian_2d(0.0..end, 0.0..mib(line.peak.total()).max(1e-3) * 1.05)?;
    chart
        .configure_mesh()
        .bold_line_style(colour(GRID).stroke_width(FINE))
        .light_line_style(TRANSPARENT)
        .axis_style(colour(AXES).stroke_width(FINE))
        .x_labels(6)
        .y_labels(6)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .label_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .axis_desc_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .set_all_tick_mark_size(4 * FINE)
        .x_desc("milliseconds since the step began")
        .y_desc("MiB")
        .draw()?;

    // The sum of all categories first: each later area covers the part that is not of its own category or of those above.
    for at in (0..MemoryPoint::CATEGORIES.len()).rev() {
        let top = |point: &MemoryPoint| mib(point.parts()[..=at].iter().sum());
        let points = steps(line.points.iter().map(|point| (ms(point), top(point))));
        chart.draw_series(AreaSeries::new(points, 0.0, colour(COLOURS[at]).filled()))?;
    }
    Ok(())
}

/// Keeps each value until the next one that differs.
fn steps(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    let mut last = None;
    for (at, value) in points {
        last = Some((at, value));
        match steps.last() {
            Some(&(_, before)) if before == value => continue,
            Some(&(_, before)) => steps.push((at, before)),
            None => {}
        }
        steps.push((at, value));
    }
    steps.extend(last);
    steps
}

fn draw_words(area: &Area<'_>, peak: &MemoryPoint) -> Result<(), Problem> {
    let fine = FINE as i32;
    // The topmost area first.
    for (row, at) in (0..MemoryPoint::CATEGORIES.len()).rev().enumerate() {
        let middle = (LINE as i32 * row as i32 + LINE as i32 / 2) * fine;
        area.draw(&Circle::new((14 * fine, middle), 5 * fine, colour(COLOURS[at]).filled()))?;
        let style = text_style(LETTER - 2, Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(words(peak, at), (26 * fine, middle), style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(micros: u64, activations: u64) -> MemoryPoint {
        let operator = "linear NN".to_owned();
        MemoryPoint {
            micros,
            operator,
            weights: 10 << 20,
            optimizer: 40 << 20,
            gradients: 0,
            activations,
            other: 1 << 20,
        }
    }

    #[test]
    fn each_category_is_an_area_with_its_name() {
        let points = vec![point(0, 0), point(1000, 200 << 20), point(2500, 0)];
        let svg = file(&MemoryLine { peak: points[1].clone(), points }).expect("drawn");
        for part in ["at most 251 MiB", "activations: 200 MiB at the peak", "weights: 10 MiB at the peak"] {
            assert!(svg.contains(part), "{part} is missing in {svg}");
        }
        assert_eq!(svg.matches("<polygon").count(), MemoryPoint::CATEGORIES.len(), "{svg}");
        assert!(!svg.contains("NaN"), "{svg}");
        assert!(crate::report::picture::png(&svg).is_ok(), "a picture that other programs read");
    }

    #[test]
    fn values_hold_until_the_next_point() {
        let found = steps([(0.0, 1.0), (1.0, 1.0), (2.0, 5.0), (3.0, 5.0)].into_iter());
        assert_eq!(found, [(0.0, 1.0), (2.0, 1.0), (2.0, 5.0), (3.0, 5.0)]);
    }
}
