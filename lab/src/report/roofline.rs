//! Draws the operators of a profile under the roofs of their device.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::colours::{AXES, COLOURS, GRID, INK, colour, dark_rules, escaped};
use super::curves::short;
use super::draw::{FINE, LETTER, inside, text_style};
use crate::diagnose::profile::{Profile, Roofs, Row, RowWork};

/// Width of the picture in pixels: the names of operators are long.
const WIDTH: u32 = 640;
/// Height of the roofs in pixels.
const ROOFS: u32 = 300;
/// Height of a bar and of a line of text in pixels.
const LINE: u32 = 22;
/// Space for the axis below the bars, and for the heading above them.
const AROUND_BARS: u32 = 84;
/// The most rows in a picture.
const MOST: usize = 12;
/// A row with less of the time is left out.
const LEAST_SHARE: f64 = 0.005;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Problem = DrawingAreaErrorKind<std::io::Error>;

/// A row with its number in the picture.
struct Hot<'a> {
    number: usize,
    row: &'a Row,
    work: &'a RowWork,
}

impl Hot<'_> {
    fn colour(&self) -> RGBColor {
        colour(COLOURS[(self.number - 1) % COLOURS.len()])
    }

    fn words(&self) -> String {
        let Self { number, row, work } = self;
        let sizes = if row.sizes.is_empty() { String::new() } else { format!(" {}", row.sizes) };
        format!(
            "{number}  {}{sizes}: {:.0} % of the time, {} of the {} roof",
            row.name,
            100.0 * row.share,
            work.percent_of_roof(),
            work.roof.name()
        )
    }
}

/// Draws the operators of `profile` that take most time, by their kernels on a GPU, as one SVG file that needs nothing else.
///
/// Rows with products are dots under both roofs: operations per byte to the right, operations per second upward. Rows without
/// products are bars of bytes per second, with the memory roof as a line.
///
/// # Errors
/// If `plotters` fails.
pub fn file(profile: &Profile) -> Result<String> {
    let hot: Vec<Hot<'_>> = profile
        .operators
        .iter()
        .filter(|row| row.share >= LEAST_SHARE)
        .filter_map(|row| Some((row, row.work.as_ref()?)))
        .take(MOST)
        .enumerate()
        .map(|(at, (row, work))| Hot { number: at + 1, row, work })
        .collect();
    let (dots, bars): (Vec<_>, Vec<_>) = hot.iter().partition(|hot| hot.work.flops > 0.0);

    let bars_height = if bars.is_empty() { 0 } else { AROUND_BARS + LINE * bars.len() as u32 };
    let text_height = LINE * (hot.len() as u32 + 1);
    let height = ROOFS + bars_height + text_height;
    let mut drawing = String::new();
    {
        let root = SVGBackend::with_string(&mut drawing, (WIDTH * FINE, height * FINE)).into_drawing_area();
        let (above, below) = root.split_vertically(ROOFS * FINE);
        let (middle, text) = below.split_vertically(bars_height * FINE);
        draw_dots(&above, &dots, &profile.roofs).map_err(|error| anyhow!("drawing the roofs: {error}"))?;
        if !bars.is_empty() {
            draw_bars(&middle, &bars, &profile.roofs).map_err(|error| anyhow!("drawing the bars: {error}"))?;
        }
        draw_words(&text, &hot).map_err(|error| anyhow!("drawing the names: {error}"))?;
        root.present().map_err(|error| anyhow!("drawing a roofline: {error}"))?;
    }

    let mut words = format!("{} on {}.", profile.model, profile.device);
    hot.iter().for_each(|hot| {
        let _ = write!(words, " {}.", hot.words());
    });
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {} {}\" role=\"img\">\
         <title>Roofline</title><desc>{}</desc><style>@media (prefers-color-scheme: dark){{{}}}</style>{}</svg>\n",
        WIDTH * FINE,
        height * FINE,
        escaped(&words),
        dark_rules(""),
        inside(&drawing)
    ))
}

fn draw_dots(area: &Area<'_>, dots: &[&Hot<'_>], roofs: &Roofs) -> Result<(), Problem> {
    let fine = FINE as i32;
    let heading = text_style(LETTER, Pos::new(HPos::Left, VPos::Top));
    area.draw(&Text::new("matrix products under the roofs", (8 * fine, 6 * fine), heading))?;
    let (_, below) = area.split_vertically((LETTER + 12) * FINE);

    let ends = |value: fn(&RowWork) -> f64| {
        let values = dots.iter().map(|hot| value(hot.work));
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (least, most) = ends(|work| work.flops_per_byte);
    let (left, right) = (least.min(roofs.ridge() / 8.0) / 2.0, most.max(roofs.ridge() * 4.0) * 2.0);
    let (slowest, fastest) = ends(|work| work.flops_per_sec);
    let (low, high) = (slowest.min(roofs.at(left)) / 2.0, fastest.max(roofs.flops_per_sec) * 3.0);

    let mut chart = ChartBuilder::on(&below)
        .margin_left(4 * FINE)
        .margin_right(18 * FINE)
        .x_label_area_size(46 * FINE)
        .y_label_area_size(70 * FINE)
        .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())?;
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
        .x_desc("operations per byte")
        .y_desc("operations per second")
        .draw()?;

    let line = [left, roofs.ridge(), right].map(|at| (at, roofs.at(at)));
    chart.draw_series(LineSeries::new(line, colour(INK).stroke_width(2 * FINE)))?;
    chart.draw_series(dots.iter().map(|hot| {
        let radius = 4.0 + 8.0 * hot.row.share.min(1.0).sqrt();
        let at = (hot.work.flops_per_byte, hot.work.flops_per_sec);
        Circle::new(at, (radius * f64::from(FINE)) as i32, hot.colour().filled())
    }))?;
    let number = text_style(LETTER, Pos::new(HPos::Left, VPos::Bottom));
    chart.draw_series(dots.iter().map(|hot| {
        let at = (hot.work.flops_per_byte, hot.work.flops_per_sec);
        EmptyElement::at(at) + Text::new(hot.number.to_string(), (9 * fine, -5 * fine), number.clone())
    }))?;
    Ok(())
}

fn draw_bars(area: &Area<'_>, bars: &[&Hot<'_>], roofs: &Roofs) -> Result<(), Problem> {
    let fine = FINE as i32;
    let heading = text_style(LETTER, Pos::new(HPos::Left, VPos::Top));
    area.draw(&Text::new("other operators and the memory roof", (8 * fine, 6 * fine), heading))?;
    let (_, below) = area.split_vertically((LETTER + 12) * FINE);

    let fastest = bars.iter().map(|hot| hot.work.bytes_per_sec).fold(roofs.bytes_per_sec, f64::max);
    let n = bars.len() as f64;
    let mut chart = ChartBuilder::on(&below)
        .margin_left(4 * FINE)
        .margin_right(18 * FINE)
        .x_label_area_size(46 * FINE)
        .y_label_area_size(70 * FINE)
        .build_cartesian_2d(0.0..fastest * 1.05, 0.0..n)?;
    chart
        .configure_mesh()
        .bold_line_style(colour(GRID).stroke_width(FINE))
        .light_line_style(TRANSPARENT)
        .axis_style(colour(AXES).stroke_width(FINE))
        .disable_y_mesh()
        .y_labels(0)
        .x_labels(6)
        .x_label_formatter(&|value| short(*value))
        .label_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .axis_desc_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .set_all_tick_mark_size(4 * FINE)
        .x_desc("bytes per second")
        .draw()?;

    chart.draw_series(bars.iter().enumerate().map(|(at, hot)| {
        let (top, bottom) = (n - at as f64 - 0.12, n - at as f64 - 0.88);
        Rectangle::new([(0.0, bottom), (hot.work.bytes_per_sec, top)], hot.colour().filled())
    }))?;
    let before = text_style(LETTER, Pos::new(HPos::Right, VPos::Center));
    chart.draw_series(bars.iter().enumerate().map(|(at, hot)| {
        let number = Text::new(hot.number.to_string(), (-10 * fine, 0), before.clone());
        EmptyElement::at((0.0, n - at as f64 - 0.5)) + number
    }))?;
    let roof = [(roofs.bytes_per_sec, 0.0), (roofs.bytes_per_sec, n)];
    chart.draw_series(LineSeries::new(roof, colour(INK).stroke_width(2 * FINE)))?;
    Ok(())
}

fn draw_words(area: &Area<'_>, hot: &[Hot<'_>]) -> Result<(), Problem> {
    let fine = FINE as i32;
    for (at, hot) in hot.iter().enumerate() {
        let middle = (LINE as i32 * at as i32 + LINE as i32 / 2) * fine;
        area.draw(&Circle::new((14 * fine, middle), 5 * fine, hot.colour().filled()))?;
        let style = text_style(LETTER - 2, Pos::new(HPos::Left, VPos::Center));
        area.draw(&Text::new(hot.words(), (26 * fine, middle), style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::profile::{Bound, Roof, RoofSource};

    fn row(name: &str, flops: f64, bytes: f64, of_roof: f64) -> Row {
        let work = RowWork {
            flops,
            bytes,
            flops_per_byte: flops / bytes,
            flops_per_sec: flops / 1e-3,
            bytes_per_sec: bytes / 1e-3,
            of_roof,
            roof: if flops > 0.0 { Roof::Compute } else { Roof::Memory },
            bound: Bound::Code,
        };
        let work = (bytes > 0.0).then_some(work);
        Row { name: name.into(), sizes: "8 x 8".into(), calls: 1, total_ms: 1.0, mean_us: 1e3, share: 0.2, work }
    }

    fn profile(operators: Vec<Row>) -> Profile {
        Profile {
            schema: 1,
            kiln: String::new(),
            model: "a <small> model".into(),
            device: "a device".into(),
            dtype: "f32".into(),
            warm_up: 0,
            steps: Vec::new(),
            total_ms: 5.0,
            tokens_per_sec: 1.0,
            padding_ratio: 0.0,
            host: Vec::new(),
            loader: Vec::new(),
            operators,
            kernels: Vec::new(),
            gpu: None,
            memory: None,
            ranks: Vec::new(),
            roofs: Roofs { flops_per_sec: 1e12, bytes_per_sec: 1e11, source: RoofSource::Measured },
            notes: Vec::new(),
        }
    }

    #[test]
    fn products_are_dots_and_other_operators_bars() {
        let rows = vec![row("product", 4e8, 1e7, 0.4), row("norm", 0.0, 5e7, 0.5), row("unknown", 0.0, 0.0, 0.0)];
        let svg = file(&profile(rows)).expect("drawn");
        assert!(svg.contains("a &lt;small&gt; model on a device."), "{svg}");
        assert!(svg.contains("1  product 8 x 8: 20 % of the time, 40 % of the compute roof"), "{svg}");
        assert!(svg.contains("other operators and the memory roof") && !svg.contains("unknown"), "{svg}");
        // A dot and its name; the name of the bar.
        assert_eq!(svg.matches("<circle").count(), 3, "{svg}");
        assert!(crate::report::picture::png(&svg).is_ok(), "a picture that other programs read");
    }

    #[test]
    fn a_profile_without_products_has_its_roofs() {
        let svg = file(&profile(Vec::new())).expect("drawn");
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("memory roof"), "{svg}");
        assert!(svg.contains("<polyline"), "{svg}");
    }
}
