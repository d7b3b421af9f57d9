//! Turns a figure into a PNG file, with `resvg` and a font of its own, so that no library of the system is needed.

use std::sync::Arc;

use anyhow::{Context, Result};
use resvg::tiny_skia::{Color, Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

/// The Latin letters of DejaVu Sans.
const FONT: &[u8] = include_bytes!("font/DejaVuSans-subset.ttf");
/// Pixels per unit of the SVG file: enough for a screen of twice the usual density.
const ZOOM: f32 = 2.0;

/// Draws an SVG file in its light colours on white. Returns the bytes of a PNG file.
///
/// # Errors
/// If the file is not SVG, or too large for the memory.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let mut fonts = Database::new();
    fonts.load_font_data(FONT.to_vec());
    fonts.set_sans_serif_family("DejaVu Sans");
    let options = Options { fontdb: Arc::new(fonts), font_family: "DejaVu Sans".into(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).context("reading the drawing")?;

    let [width, height] = [tree.size().width(), tree.size().height()].map(|side| (side * ZOOM).ceil() as u32);
    let mut pixels =
        Pixmap::new(width, height).with_context(|| format!("no memory for a picture of {width} x {height} pixels"))?;
    pixels.fill(Color::WHITE);
    resvg::render(&tree, Transform::from_scale(ZOOM, ZOOM), &mut pixels.as_mut());
    pixels.encode_png().context("encoding the picture")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_drawn_without_fonts_of_the_system() {
        let svg = |inside: &str| {
            let drawn = png(&format!("<svg xmlns='http://www.w3.org/2000/svg' width='60' height='20'>{inside}</svg>"));
            Pixmap::decode_png(&drawn.expect("a picture")).expect("PNG")
        };
        let dark = |pixels: &Pixmap| pixels.pixels().iter().filter(|pixel| pixel.red() < 128).count();
        let text = svg("<text x='2' y='15' font-family='sans-serif' font-size='15'>Loss é</text>");
        assert_eq!((text.width(), text.height(), dark(&svg(""))), (120, 40, 0));
        assert!(dark(&text) > 100, "{} dark pixels", dark(&text));
        assert!(png("not SVG").is_err());
    }
}
