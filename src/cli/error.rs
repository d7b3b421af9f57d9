//! Errors of the command line itself.

use std::fmt;

use kiln_metrics::units::first_few;

/// A command that cannot work as it was typed; the text says what to do.
#[derive(Debug)]
pub(super) struct Usage(pub String);

impl std::error::Error for Usage {}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Lines of the input that are not text.
#[derive(Debug)]
pub(super) struct NotUtf8 {
    pub(super) name: String,
    /// The first of the lines, counted from 1.
    pub(super) line: usize,
    /// The byte of that line where its text ends, counted from 1.
    pub(super) byte: usize,
    /// Numbers of further lines of the same chunk.
    pub(super) others: Vec<usize>,
    /// How its encoding becomes UTF-8; `None` for UTF-16.
    pub(super) way: Option<String>,
}

impl std::error::Error for NotUtf8 {}

impl fmt::Display for NotUtf8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, line, byte, others, way } = self;
        write!(f, "line {line} of {name} is not UTF-8 (at its byte {byte})")?;
        if !others.is_empty() {
            write!(f, "; further lines that are not: {}", first_few(others))?;
        }
        let Some(way) = way else {
            return f.write_str("; it seems to be UTF-16: convert the input first, with iconv -f utf-16 -t utf-8");
        };
        write!(
            f,
            "; {}; if its other lines are UTF-8, correct these, or leave out their wrong bytes with iconv -c -f utf-8 -t utf-8",
            way.replace('`', "").replace("convert the file", "convert the input first")
        )
    }
}
