//! The cells of one row of a table, which quotes and delimiters divide.

use std::ops::Range;

/// How the text of a table is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quoting {
    pub(super) delimiter: u8,
    /// Whether a backslash stands in front of a quote that belongs to the text, rather than a second quote.
    pub(super) has_escapes: bool,
}

/// What stands at the end of the text that has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// All cells are read.
    Whole,
    /// A quote that opens at this byte closes in another line, behind which the cell ends.
    Closed(usize),
    /// A quote that opens at this byte closes in another line, in the middle of a text.
    InText(usize),
    /// No line closes the quote that opens at this byte.
    Open(usize),
}

/// The lines of a row, and its cells.
#[derive(Debug, Clone, Default)]
pub(super) struct RowText {
    text: Vec<u8>,
    /// Where each line begins.
    starts: Vec<usize>,
    /// Where the next cell begins.
    at: usize,
    /// The text before it has no quote that closes the cell.
    searched: usize,
    /// A quote here is text.
    as_text: Option<usize>,
    is_whole: bool,
    pub(super) cells: csv::ByteRecord,
    /// Whether a quote closes in the middle of a text.
    pub(super) is_unclean: bool,
    /// Whether a cell between tabs has a quote in front that belongs to its text.
    pub(super) has_literal: bool,
    /// The cells that are between quotes.
    pub(super) quoted: Vec<usize>,
    /// Whether blanks stand between a delimiter and a quote.
    pub(super) has_blanks: bool,
}

impl RowText {
    /// Begins a row with its first line.
    pub(super) fn begin(&mut self, line: &[u8]) {
        let (mut text, mut starts, mut cells) =
            (std::mem::take(&mut self.text), std::mem::take(&mut self.starts), std::mem::take(&mut self.cells));
        text.clear();
        text.extend_from_slice(line);
        starts.clear();
        starts.push(0);
        cells.clear();
        *self = Self { text, starts, cells, ..Self::default() };
    }

    /// Adds a line that an open quote takes in.
    pub(super) fn add(&mut self, line: &[u8]) {
        self.text.push(b'\n');
        self.starts.push(self.text.len());
        self.text.extend_from_slice(line);
    }

    pub(super) fn n_lines(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.text.len()
    }

    /// Returns which line has the byte `at`, counted from 0.
    pub(super) fn line_of(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at) - 1
    }

    /// Returns its lines from this one on, counted from 0.
    pub(super) fn lines_from(&self, number: usize) -> impl DoubleEndedIterator<Item = &[u8]> + Clone {
        (number..self.starts.len()).map(|line| {
            let end = self.starts.get(line + 1).map_or(self.text.len(), |next| next - 1);
            &self.text[self.starts[line]..end]
        })
    }

    /// Returns the row up to the end of the line with the byte `at`, whose quote is text, as are quotes behind it that do not close.
    pub(super) fn with_text_at(&self, at: usize, quoting: Quoting) -> Self {
        let n_lines = self.line_of(at) + 1;
        let end = self.starts.get(n_lines).map_or(self.text.len(), |next| next - 1);
        let mut row = Self {
            text: self.text[..end].to_vec(),
            starts: self.starts[..n_lines].to_vec(),
            as_text: Some(at),
            ..Self::default()
        };
        loop {
            match row.read(quoting) {
                Found::Whole => return row,
                Found::Closed(_) => {}
                Found::InText(at) | Found::Open(at) => row.as_text = Some(at),
            }
        }
    }

    /// Reads cells as far as the text goes.
    pub(super) fn read(&mut self, quoting: Quoting) -> Found {
        while !self.is_whole {
            self.skip_blanks(quoting);
            let (start, is_quoted) = (self.at, self.text.get(self.at) == Some(&b'"') && self.as_text != Some(self.at));
            let mut found = None;
            let next = if is_quoted {
                let from = self.searched.max(start + 1);
                let Some(end) = quoting.closing(&self.text, from) else {
                    self.searched = self.text.len();
                    return Found::Open(start);
                };
                let spans_lines = self.text[start..end].contains(&b'\n');
                match quoting.behind(&self.text, end) {
                    Some(next) => {
                        found = spans_lines.then_some(Found::Closed(start));
                        self.push_quoted(start + 1..end, end + 1..next, quoting);
                        next
                    }
                    None if spans_lines => return Found::InText(start),
                    None => self.push_unclean(start, end, quoting),
                }
            } else {
                let next = quoting.end_of_cell(&self.text, start);
                self.has_literal |= self.as_text == Some(start);
                self.cells.push_field(&self.text[start..next]);
                next
            };

            self.is_whole = next == self.text.len();
            self.at = next + 1;
            if let Some(found) = found {
                return found;
            }
        }
        Found::Whole
    }

    /// Skips blanks between a delimiter and a quote, if the quote closes in the same line in front of another delimiter.
    fn skip_blanks(&mut self, quoting: Quoting) {
        let rest = &self.text[self.at.min(self.text.len())..];
        let n_blank = rest.iter().take_while(|byte| **byte == b' ').count();
        let quote = self.at + n_blank;
        if n_blank == 0 || self.at == 0 || quoting.delimiter == b'\t' || self.text.get(quote) != Some(&b'"') {
            return;
        }
        let closed = quoting.closing(&self.text, quote + 1).filter(|end| !self.text[quote..*end].contains(&b'\n'));
        if closed.is_some_and(|end| quoting.behind(&self.text, end).is_some()) {
            (self.at, self.has_blanks) = (quote, true);
        }
    }

    /// Adds a cell: a text between quotes, and the blanks behind them.
    fn push_quoted(&mut self, inside: Range<usize>, blanks: Range<usize>, quoting: Quoting) {
        self.quoted.push(self.cells.len());
        let mut cell = quoting.unescaped(&self.text[inside]);
        cell.extend_from_slice(&self.text[blanks]);
        self.cells.push_field(&cell);
    }

    /// Adds the cell at `start`, in which the quote at `end` closes in the middle of a text. Returns where the cell ends.
    fn push_unclean(&mut self, start: usize, end: usize, quoting: Quoting) -> usize {
        self.is_unclean = true;
        // An inner quote that opens stands behind a space or a bracket.
        let is_inner = end > start + 1 && b" ([".contains(&self.text[end - 1]);
        if quoting.delimiter == b'\t' {
            let next = quoting.end_of_cell(&self.text, start);
            let cell = &self.text[start..next];
            let is_closed = is_inner && cell.ends_with(b"\"");
            self.has_literal |= !is_closed;
            match is_closed {
                true => self.push_quoted(start + 1..next - 1, next..next, quoting),
                false => self.cells.push_field(cell),
            }
            return next;
        }

        // Inner quotes stand in pairs.
        let quotes = (end + 1..self.text.len()).filter(|at| self.text[*at] == b'"');
        let closing = quotes.enumerate().filter_map(|(n, at)| Some((n + 1, at, quoting.behind(&self.text, at)?)));
        let first = closing.clone().next();
        let found = closing.filter(|(n_inner, ..)| n_inner % 2 == 0).chain(first).next().filter(|_| is_inner);
        if let Some((_, end, next)) = found {
            self.push_quoted(start + 1..end, end + 1..next, quoting);
            return next;
        }
        let next = quoting.end_of_cell(&self.text, end);
        self.push_quoted(start + 1..end, end + 1..next, quoting);
        next
    }
}

impl Quoting {
    /// Returns the first quote from `from` on that closes a text.
    fn closing(self, text: &[u8], from: usize) -> Option<usize> {
        let mut at = from;
        while at < text.len() {
            match text[at] {
                b'\\' if self.has_escapes => at += 2,
                b'"' if !self.has_escapes && text.get(at + 1) == Some(&b'"') => at += 2,
                b'"' => return Some(at),
                _ => at += 1,
            }
        }
        None
    }

    /// Returns where the cell ends whose text closes at `end`; `None` if other text stands behind the quote.
    fn behind(self, text: &[u8], end: usize) -> Option<usize> {
        let is_blank = |byte: &u8| *byte == b' ' || *byte == b'\t' && self.delimiter != b'\t';
        let n_blank = text[end + 1..].iter().take_while(|byte| is_blank(byte)).count();
        let next = end + 1 + n_blank;
        text.get(next).is_none_or(|byte| *byte == self.delimiter).then_some(next)
    }

    fn end_of_cell(self, text: &[u8], from: usize) -> usize {
        text[from..].iter().position(|byte| *byte == self.delimiter).map_or(text.len(), |n| from + n)
    }

    fn unescaped(self, text: &[u8]) -> Vec<u8> {
        let (mut cell, mut bytes) = (Vec::with_capacity(text.len()), text.iter().copied().peekable());
        while let Some(byte) = bytes.next() {
            let next = bytes.peek().copied();
            let skips = match byte {
                b'\\' if self.has_escapes && matches!(next, Some(b'"' | b'\\')) => true,
                b'"' if !self.has_escapes && next == Some(b'"') => true,
                _ => false,
            };
            cell.push(if skips { bytes.next().unwrap_or(byte) } else { byte });
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_within_a_line_are_read_as_they_are_meant() {
        for (delimiter, has_escapes, text, wanted) in [
            (b',', false, r#"a,"b, ""c""","#, &["a", r#"b, "c""#, ""][..]),
            (b',', false, r#""a" ,b"#, &["a ", "b"]),
            (b',', false, r#"x, "a, b", "c""#, &["x", "a, b", "c"]),
            (b',', false, r#"he said, "so" it is"#, &["he said", r#" "so" it is"#]),
            (b',', false, r#"5" pipe,x"#, &[r#"5" pipe"#, "x"]),
            (b',', false, r#""He said "hi, you" to me",x"#, &[r#"He said "hi, you" to me"#, "x"]),
            (b',', false, r#""He said "hi", and left",x"#, &[r#"He said "hi", and left"#, "x"]),
            (b',', false, r#""He said "hi","other",x"#, &[r#"He said "hi"#, "other", "x"]),
            (b',', false, r#""Hello" he said,"other""#, &["Hello he said", "other"]),
            (b',', true, r#""He \"said\", and left: \\",x"#, &[r#"He "said", and left: \"#, "x"]),
            (b'\t', false, "\"Hello\" he said\tx", &["\"Hello\" he said", "x"]),
            (b'\t', false, "\"Foo\" and \"bar\"\tx", &["\"Foo\" and \"bar\"", "x"]),
            (b'\t', false, "\"a \"b\" c\"\tx", &["a \"b\" c", "x"]),
            (b'\t', false, "\"a\tb\"\tx", &["a\tb", "x"]),
        ] {
            let mut row = RowText::default();
            row.begin(text.as_bytes());
            assert_eq!(row.read(Quoting { delimiter, has_escapes }), Found::Whole, "{text}");
            assert_eq!(row.cells, csv::ByteRecord::from(wanted.to_vec()), "{text}");
        }
    }

    #[test]
    fn a_quote_that_no_line_closes_can_be_text() {
        let quoting = Quoting { delimiter: b',', has_escapes: false };
        let mut row = RowText::default();
        row.begin(b"\"a");
        assert_eq!(row.read(quoting), Found::Open(0));
        row.add(b"b\",\"c");
        assert_eq!((row.read(quoting), row.read(quoting)), (Found::Closed(0), Found::Open(6)));
        row.add(b"d\" e,f");
        assert_eq!((row.read(quoting), row.line_of(6)), (Found::InText(6), 1));
        let row = row.with_text_at(6, quoting);
        assert_eq!((row.cells, row.starts.len()), (csv::ByteRecord::from(vec!["a\nb", "\"c"]), 2));
    }
}
