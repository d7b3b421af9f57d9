//! The delimiter of a table, from its first rows.

use super::line_reader::delimiter_line;

/// Delimiters that divide a table without saying so, the most usual first.
pub(super) const DELIMITERS: [u8; 3] = *b",;\t";

/// Rows at the beginning that show which delimiter a table has, and whether the first row differs from the others.
pub(crate) const ROWS_TO_COMPARE: usize = 50;

/// The cells of rows.
pub(super) type Rows = Vec<Vec<String>>;

/// Chooses among the rows that each delimiter makes of a table. It is the first that divides all rows into the same number of columns, or
/// else the first that divides the first row.
pub(super) fn likeliest(mut candidates: Vec<(u8, Rows)>) -> Option<(u8, Rows)> {
    let n_columns = |rows: &Rows| rows.first().map_or(0, Vec::len);
    let is_even = |rows: &Rows| n_columns(rows) > 1 && rows.iter().all(|row| row.len() == n_columns(rows));
    let even = candidates.iter().position(|(_, rows)| is_even(rows));
    // A title or comments may stand above the table.
    let is_above = |row: &&Vec<String>| row.len() == 1 || row.first().is_some_and(|cell| cell.starts_with('#'));
    let is_even_below = |rows: &Rows| {
        let below: Vec<&Vec<String>> = rows.iter().skip_while(is_above).collect();
        let width = below.first().map_or(0, |row| row.len());
        below.len() > 1 && width > 1 && below.iter().all(|row| row.len() == width)
    };
    let is_comment =
        candidates.first().and_then(|(_, rows)| rows.first()?.first()).is_some_and(|cell| cell.starts_with('#'));
    let none_divides = candidates.iter().all(|(_, rows)| n_columns(rows) < 2);
    let below = || candidates.iter().position(|(_, rows)| (is_comment || none_divides) && is_even_below(rows));
    let even = even.or_else(below);
    let chosen = even.or_else(|| candidates.iter().position(|(_, rows)| n_columns(rows) > 1)).unwrap_or(0);
    (chosen < candidates.len()).then(|| candidates.swap_remove(chosen))
}

/// Returns the delimiter of a table from its first lines, as a CSV file is read: the one that a first line `sep=;` names, or the one that
/// divides the rows. `|` divides them if no other delimiter does.
pub fn delimiter_of(lines: &[String]) -> char {
    let text = lines.iter().take(ROWS_TO_COMPARE).fold(String::new(), |text, line| text + line.trim_end() + "\n");
    let text = text.trim_start_matches('\u{feff}');
    if let Some((named, _)) = delimiter_line(text.as_bytes()) {
        return char::from(named);
    }
    let rows = |delimiter: u8| -> Rows {
        let mut builder = csv::ReaderBuilder::new();
        let reader = builder.has_headers(false).flexible(true).delimiter(delimiter).from_reader(text.as_bytes());
        let records = reader.into_records().map_while(std::result::Result::ok);
        records.map(|record| record.iter().map(str::to_owned).collect()).collect()
    };
    let candidates = DELIMITERS.into_iter().chain([b'|']).map(|delimiter| (delimiter, rows(delimiter)));
    likeliest(candidates.collect()).map_or(',', |(delimiter, _)| char::from(delimiter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delimiter_divides_all_rows_alike() {
        for (text, wanted) in [
            ("id;text;label\n1;\"a; b\";x, y\n2;b;x, y, z\n", ';'),
            ("text,label\n\"a;b;c\",x\n", ','),
            ("a\tb\n1, 2\t3\n4\t5\n", '\t'),
            ("text|label\na|b\n", '|'),
            ("\u{feff}sep=|\na,b|c\n", '|'),
            ("text\nno table\n", ','),
            ("A title\nid;text\n1;a, b\n2;c\n", ';'),
            ("# a comment, with a comma\nid;text\n1;a\n", ';'),
            ("", ','),
        ] {
            let lines: Vec<String> = text.lines().map(str::to_owned).collect();
            assert_eq!(delimiter_of(&lines), wanted, "{text}");
        }
    }
}
