//! Draws how many rows of a data set have which lengths.

use anyhow::{Result, anyhow};
use kiln_data::Lengths;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::colours::{AXES, COLOURS, GRID, colour, dark_rules, escaped};
use super::curves::short;
use super::draw::{FINE, LETTER, WIDTH, inside, text_style};

/// Height of the histogram of one side in pixels, with its heading.
const HEIGHT: u32 = 240;

/// Draws a histogram for each side as one SVG file that needs nothing else.
///
/// # Errors
/// If `plotters` fails.
pub fn file(sides: &[Lengths]) -> Result<String> {
    let (width, height) = (WIDTH * FINE, height_of(sides) * FINE);
    Ok(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\
         <title>Lengths of rows in tokens</title><desc>{}</desc>\
         <style>@media (prefers-color-scheme: dark){{{}}}</style>{}</svg>\n",
        height_of(sides),
        in_words(sides),
        dark_rules(""),
        picture(sides)?
    ))
}

/// Draws the same for a page, which has its style sheet and its heading. `id` is unique on the page.
///
/// # Errors
/// If `plotters` fails.
pub fn for_page(sides: &[Lengths], id: &str) -> Result<String> {
    let (width, height) = (WIDTH * FINE, height_of(sides) * FINE);
    Ok(format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{WIDTH}\" height=\"{}\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\">\
         <title id=\"{id}-title\">Lengths of rows in tokens</title><desc id=\"{id}-desc\">{}</desc>{}</svg>",
        height_of(sides),
        in_words(sides),
        picture(sides)?
    ))
}

/// The height of the histograms of all sides, in pixels.
fn height_of(sides: &[Lengths]) -> u32 {
    HEIGHT * sides.len().max(1) as u32
}

/// Returns the inside of the SVG element.
fn picture(sides: &[Lengths]) -> Result<String> {
    let mut drawing = String::new();
    {
        let root = SVGBackend::with_string(&mut drawing, (WIDTH * FINE, height_of(sides) * FINE)).into_drawing_area();
        for (area, (i, side)) in root.split_evenly((sides.len().max(1), 1)).iter().zip(sides.iter().enumerate()) {
            draw(area, side, COLOURS[i % COLOURS.len()])
                .map_err(|error| anyhow!("drawing the lengths of the {}: {error}", side.side))?;
        }
        root.present().map_err(|error| anyhow!("drawing lengths: {error}"))?;
    }

    Ok(inside(&drawing))
}

/// Says what the histograms show, for those who do not see them; escaped.
fn in_words(sides: &[Lengths]) -> String {
    let words = sides.iter().map(|side| {
        let [half, most, _, longest] = side.quantiles;
        format!(
            "{}: half of the rows have up to {half} tokens, 90 % up to {most}, the longest has {longest}.",
            side.side
        )
    });
    escaped(&words.collect::<Vec<_>>().join(" "))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(area: &Area<'_>, side: &Lengths, bar: [&str; 2]) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
    let fine = FINE as i32;
    let heading = text_style(LETTER, Pos::new(HPos::Left, VPos::Top));
    area.draw(&Text::new(format!("{} lengths", side.side), (8 * fine, 6 * fine), heading))?;
    let (_, below) = area.split_vertically((LETTER + 12) * FINE);

    let width = side.bars.first().map_or(1, |(until, _)| *until).max(1) as f64;
    let (n, highest) = (side.bars.len() as f64, side.bars.iter().map(|(_, rows)| *rows).max().unwrap_or(0));
    let mut chart = ChartBuilder::on(&below)
        .margin_left(4 * FINE)
        .margin_right(18 * FINE)
        .x_label_area_size(46 * FINE)
        .y_label_area_size(70 * FINE)
        .build_cartesian_2d(0.0..n * width, 0.0..highest.max(1) as f64 * 1.05)?;
    chart
        .configure_mesh()
        .bold_line_style(colour(GRID).stroke_width(FINE))
        .light_line_style(TRANSPARENT)
        .axis_style(colour(AXES).stroke_width(FINE))
        .x_labels(6)
        .y_labels(5)
        .x_label_formatter(&|len| short(*len))
        .y_label_formatter(&|rows| short(*rows))
        .label_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .axis_desc_style(text_style(LETTER, Pos::new(HPos::Left, VPos::Top)))
        .set_all_tick_mark_size(4 * FINE)
        .x_desc("tokens; the last bar has all longer rows")
        .y_desc("rows")
        .draw()?;

    let gap = 0.06 * width;
    chart.draw_series(side.bars.iter().enumerate().map(|(i, (_, rows))| {
        let left = i as f64 * width;
        Rectangle::new([(left + gap, 0.0), (left + width - gap, *rows as f64)], colour(bar).filled())
    }))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_its_bars() {
        let side = |side: &str| Lengths {
            side: side.into(),
            rows: 16,
            mean: 3.0,
            quantiles: [2, 3, 4, 9],
            bars: vec![(4, 10), (8, 5), (9, 1)],
        };
        let svg = file(&[side("source"), side("target")]).expect("drawn");
        assert_eq!(svg.matches(&format!("fill=\"{}\"", COLOURS[0][0])).count(), 3 + 1, "bars, and a rule: {svg}");
        assert!(svg.contains("target: half of the rows have up to 2 tokens"), "{svg}");
        let on_page = for_page(&[side("a <b>")], "lengths").expect("drawn");
        assert!(on_page.contains("aria-labelledby=\"lengths-title lengths-desc\"") && !on_page.contains("<style"));
        assert!(on_page.contains("a &lt;b&gt;: half") && !on_page.contains("<b>"), "names are escaped: {on_page}");

        let empty = Lengths { bars: Vec::new(), ..side("source") };
        assert!(!file(&[empty]).expect("drawn").contains("NaN"));
    }
}
