//! CSV and TSV as records: the first row names the fields of the others. Cells may be quoted.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;

use super::cell_list::write_list;
use super::csv_rows::CsvRows;
use super::{Format, Place, Records, RowProblem, Wanted, way_to_utf8, write_string};
use crate::error::{Error, Result};
use crate::terminal::{shell_path, shell_word};

/// Cells between commas, semicolons or tabs, as the first rows show.
pub(super) const CSV: Format = Format {
    name: "csv",
    endings: &["csv"],
    is_binary: false,
    is_all_text: true,
    open: |path, wanted| open(path, wanted, None),
};
/// Cells between tabs.
pub(super) const TSV: Format = Format {
    name: "tsv",
    endings: &["tsv"],
    is_binary: false,
    is_all_text: true,
    open: |path, wanted| open(path, wanted, Some(b'\t')),
};

/// Opens a table. A delimiter that its first line names (`sep=;`) is used, else the given one, else the one that its first rows show.
fn open(path: &Path, wanted: &Wanted, delimiter: Option<u8>) -> Result<Box<dyn Records>> {
    let delimiter = match (CsvRows::named_delimiter(path)?, delimiter) {
        (Some(delimiter), _) | (None, Some(delimiter)) => delimiter,
        (None, None) => CsvRows::first_rows(path)?.0,
    };
    let mut rows = CsvRows::open(path, delimiter)?;
    let mut names = Vec::new();
    if let Some(row) = rows.next_row()? {
        names = row.cells.iter().map(|name| String::from_utf8_lossy(name).trim().to_owned()).collect();
    }
    check_header(path, &names, delimiter, wanted)?;
    let width = Width::of(names.iter());
    let names = named_apart(names);
    let is_list = names.iter().map(|name| wanted.lists.contains(name)).collect();
    Ok(Box::new(TableRecords { rows, names, width, is_list }))
}

/// Numbers the names of columns that others have before them: `Labels` and `Labels 2`.
fn named_apart(names: Vec<String>) -> Vec<String> {
    let mut apart: Vec<String> = Vec::with_capacity(names.len());
    for name in &names {
        let numbered = (2..).map(|number| format!("{name} {number}"));
        let mut free = std::iter::once(name.clone()).chain(numbered.filter(|new| !names.contains(new)));
        let is_free = |new: &String| name.is_empty() || !apart.contains(new);
        apart.push(free.find(is_free).unwrap_or_default());
    }
    apart
}

/// Refuses a first row with a wanted name twice, or with none of the wanted names: it is probably not a header.
fn check_header(path: &Path, names: &[String], delimiter: u8, wanted: &Wanted) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let shown = || names.iter().take(12).map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    let is_wanted = |name: &String| wanted.fields.as_ref().is_some_and(|fields| fields.contains(name));
    let twice = (1..names.len()).find(|at| is_wanted(&names[*at]) && names[..*at].contains(&names[*at]));
    if let Some(at) = twice {
        let to_number = command_for_names(path, names, delimiter)?;
        let found = format!("two columns have the name \"{}\" in the first row: {}{to_number}", names[at], shown());
        return Err(Error::corpus(path, found));
    }
    let Some(fields) = &wanted.fields else { return Ok(()) };
    if fields.is_empty() || fields.iter().any(|field| names.contains(field)) {
        return Ok(());
    }
    let fields: Vec<_> = fields.iter().map(|field| format!("\"{field}\"")).collect();
    let found = format!(
        "the first row names the columns, and none of them is {}: it has {}; name the columns in the configuration, or add a first row \
         with names",
        fields.join(" or "),
        shown()
    );
    Err(Error::corpus(path, found))
}

/// Returns the command that numbers the names of columns which others have before them; empty if the names need quotes.
fn command_for_names(path: &Path, names: &[String], delimiter: u8) -> Result<String> {
    let header = named_apart(names.to_vec()).join(&char::from(delimiter).to_string());
    let needs_quotes = |name: &String| name.contains(['"', '\n', '\r']) || name.as_bytes().contains(&delimiter);
    if names.iter().any(needs_quotes) {
        return Ok(String::new());
    }
    let n_above = if CsvRows::named_delimiter(path)?.is_some() { 3 } else { 2 };
    let file = if delimiter == b'\t' { "rows.tsv" } else { "rows.csv" };
    Ok(format!(
        "; to number the names: (printf '%s\\n' {}; tail -n +{n_above} {}) > {file}",
        shell_word(&header),
        shell_path(path)
    ))
}

/// How many columns the rows below a header have. Names and cells at the end that are blank do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Width {
    /// Columns up to the last one with a name.
    least: usize,
    most: usize,
    /// A hash of the names.
    names: u64,
}

impl Width {
    /// Takes the cells of the header.
    pub(crate) fn of<C: AsRef<[u8]>>(header: impl Iterator<Item = C>) -> Self {
        let (n_filled, most, names) = count_cells(header);
        Self { least: n_filled, most, names }
    }

    /// Returns what is wrong with a row that has more texts than the header has columns, or fewer cells than it has names: its texts
    /// are probably not below their names. A row that is the header once more is wrong, too.
    pub(crate) fn problem<C: AsRef<[u8]>>(self, row: impl Iterator<Item = C>) -> Option<RowProblem> {
        let (n_filled, n_cells, names) = count_cells(row);
        if n_filled > 1 && n_filled == self.least && names == self.names {
            let found =
                "the row has the names of the columns once more, as where tables are joined: leave this header out";
            return Some(RowProblem::Malformed(found.to_owned()));
        }
        let fits = n_filled <= self.most && n_cells >= self.least;
        (n_filled > 0 && !fits).then(|| {
            RowProblem::Malformed(format!(
                "the row has {n_cells} columns, and the header {}: a delimiter too many or too few moves its texts",
                self.most
            ))
        })
    }
}

/// Counts the cells of a row up to the last one that is not blank, and all of them. The third number is a hash of the former.
fn count_cells<C: AsRef<[u8]>>(cells: impl Iterator<Item = C>) -> (usize, usize, u64) {
    let (mut hasher, mut n_filled, mut n_cells) = (DefaultHasher::new(), 0, 0);
    for cell in cells {
        let cell = cell.as_ref().trim_ascii();
        n_cells += 1;
        if !cell.is_empty() {
            n_filled = n_cells;
            hasher.write_usize(n_cells);
            hasher.write(cell);
        }
    }
    (n_filled, n_cells, hasher.finish())
}

struct TableRecords {
    rows: CsvRows,
    names: Vec<String>,
    width: Width,
    /// Which columns hold words: white space divides them, or the cell is a list.
    is_list: Vec<bool>,
}

impl Records for TableRecords {
    fn next(&mut self, json: &mut Vec<u8>) -> Result<Option<Place>> {
        let Some(row) = self.rows.next_row()? else { return Ok(None) };
        let problem = row.problem.or_else(|| self.width.problem(row.cells.iter()));
        let mut place = Place { problem, ..Place::at(row.line) };
        let start = json.len();
        json.push(b'{');
        for ((name, is_list), cell) in self.names.iter().zip(&self.is_list).zip(row.cells) {
            let Ok(text) = std::str::from_utf8(cell) else {
                let found = format!("column \"{name}\" is not valid UTF-8: {}", way_to_utf8(cell));
                place.problem.get_or_insert(RowProblem::Malformed(found));
                continue;
            };

            if json.len() > start + 1 {
                json.push(b',');
            }
            write_string(json, name);
            json.push(b':');
            match is_list {
                true => place.problem = place.problem.or(write_list(json, text, name)),
                false => write_string(json, text),
            }
        }
        json.push(b'}');
        Ok(Some(place))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::FileFormat;
    use super::*;

    fn read(name: &str, text: impl AsRef<[u8]>, wanted: &Wanted) -> Result<Vec<(String, Place)>> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, text).expect("writable");
        let mut records = FileFormat::by_name(&path).expect("a known ending").open(&path, wanted)?;
        let mut found = Vec::new();
        loop {
            let mut json = Vec::new();
            let Some(place) = records.next(&mut json)? else { return Ok(found) };
            found.push((String::from_utf8(json).expect("text"), place));
        }
    }

    #[test]
    fn the_first_row_names_the_fields_of_the_others() {
        let text = "label;text\r\ngood;\"a \"\"big\"\" one;\nof two lines\"\r\nbad;short\n";
        let found = read("a.csv", text, &Wanted::all()).expect("a table");
        assert_eq!(found[0].0, r#"{"label":"good","text":"a \"big\" one;\nof two lines"}"#);
        assert_eq!(found[1], (r#"{"label":"bad","text":"short"}"#.to_owned(), Place::at(4)));
        let found = read("a.tsv", "a\tb\n\"x\ty\"\t2\n", &Wanted::all()).expect("a table");
        assert_eq!(found[0].0, r#"{"a":"x\ty","b":"2"}"#);
        assert!(read("a.csv", "", &Wanted::all()).expect("an empty table").is_empty());
    }

    #[test]
    fn rows_that_are_wider_or_narrower_than_the_header_are_not_read_shifted() {
        let text = "a,b,c\n1,2,3\n1,2,3,4\n1,2\n1,,\n1,2,3,,\n,,,\n";
        let found = read("a.csv", text, &Wanted::all()).expect("a table");
        let problems: Vec<_> =
            found.iter().filter_map(|(_, place)| Some((place.line, place.problem.clone()?))).collect();
        assert_eq!(problems.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 4], "{problems:?}");
        assert!(problems[0].1.to_string().starts_with("the row has 4 columns, and the header 3: "), "{problems:?}");

        // The header's last columns have no names, so rows may lack them.
        let found = read("a.csv", "a,b,,\n1,2\n1,2,3\n1,2,3,4\n1\n1,2,3,4,5\n", &Wanted::all()).expect("a table");
        let bad: Vec<u64> =
            found.iter().filter(|(_, place)| place.problem.is_some()).map(|(_, place)| place.line).collect();
        assert_eq!(bad, [5, 6], "{found:?}");
    }

    #[test]
    fn a_header_that_stands_again_between_the_rows_is_not_one_of_them() {
        let wanted = Wanted::only(["text".to_owned()]);
        for (name, text) in [
            ("a.csv", "text,label\na,x\ntext,label\nb,y\n\"text\", label \ntext,x\nlabel,text\n"),
            ("a.tsv", "text\tlabel\t\na\tx\ntext\tlabel\nb\ty\ntext\tlabel\t\ntext\tx\nlabel\ttext\n"),
        ] {
            let found = read(name, text, &wanted).expect("a table");
            let bad: Vec<u64> = found.iter().filter(|(_, at)| at.problem.is_some()).map(|(_, at)| at.line).collect();
            assert_eq!(bad, [3, 5], "{found:?}");
        }
        let found = read("a.csv", "text\na\ntext\n", &wanted).expect("a table");
        assert!(found.iter().all(|(_, place)| place.problem.is_none()), "a text of one word: {found:?}");
    }

    #[test]
    fn a_first_line_can_name_the_delimiter() {
        for (name, start, delimiter) in [
            ("a.csv", "sep=;\r\n", ";"),
            ("a.csv", "\u{feff}sep=|\n", "|"),
            ("a.tsv", "sep=;\n", ";"),
            ("a.tsv", "Sep=\t\r\n", "\t"),
        ] {
            let text =
                format!("{start}label{delimiter}text\r\ngood{delimiter}one, two\r\nbad{delimiter}\"three\nfour\"\n");
            let found = read(name, text, &Wanted::only(["text".to_owned()])).expect("a table");
            assert_eq!(found[0], (r#"{"label":"good","text":"one, two"}"#.to_owned(), Place::at(3)), "{start:?}");
            assert_eq!(found[1].1, Place::at(4), "{start:?}");
        }
        assert!(read("a.csv", "sep=;\n", &Wanted::all()).expect("an empty table").is_empty());
    }

    #[test]
    fn cells_of_lists_are_divided_into_words() {
        let lists = Wanted { lists: vec!["tags".into(), "tokens".into()], ..Wanted::all() };
        let text = "tokens,tags\nin  Rome,\"[\"\"O\"\", 3]\"\n[ok],\n";
        let found = read("a.csv", text, &lists).expect("a table");
        assert_eq!(found[0].0, r#"{"tokens":["in","Rome"],"tags":["O", 3]}"#);
        assert_eq!(found[1].0, r#"{"tokens":["[ok]"],"tags":[]}"#);

        let text = "tokens,tags\n\"['in', \"\"it's\"\"]\",\"['O', 'O']\"\n\"['in', it]\",O O\n";
        let found = read("a.csv", text, &lists).expect("a table");
        assert_eq!(found[0], (r#"{"tokens":["in","it's"],"tags":["O","O"]}"#.to_owned(), Place::at(2)));
        let problem = found[1].1.problem.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(problem.starts_with("column \"tokens\" has a list that cannot be read: ['in', it]: "), "{problem}");
    }

    #[test]
    fn columns_with_the_name_of_another_one_are_numbered() {
        let wanted = Wanted::only(["text".to_owned(), "label".to_owned()]);
        for wanted in [&Wanted::all(), &wanted] {
            let found =
                read("a.csv", "text,tag,tag,label,tag\na,b,c,d,e\ntext,tag,tag,label,tag\n", wanted).expect("rows");
            assert_eq!(found[0].0, r#"{"text":"a","tag":"b","tag 2":"c","label":"d","tag 3":"e"}"#);
            assert!(found[1].1.problem.is_some(), "the header once more");
        }
    }

    #[test]
    fn tables_that_cannot_be_used_are_named() {
        let wanted = Wanted::only(["text".to_owned(), "label".to_owned()]);
        let error = |text: &str| read("a.csv", text, &wanted).expect_err("refused").to_string();
        let text = error("sentence,class\nx,y\n");
        assert!(text.contains("none of them is \"text\" or \"label\": it has \"sentence\", \"class\""), "{text}");
        let twice = error("text,label,label\n");
        assert!(twice.contains("two columns have the name \"label\""), "{twice}");
        assert!(twice.contains("(printf '%s\\n' 'text,label,label 2'; tail -n +2 "), "{twice}");
        let found = read("a.csv", b"text,label\ncaf\xe9,x\n\"open,y\n".as_slice(), &wanted).expect("rows");
        let problem = |at: usize| found[at].1.problem.as_ref().map(ToString::to_string).unwrap_or_default();
        assert!(problem(0).starts_with("column \"text\" is not valid UTF-8"), "{found:?}");
        // In latin1, the bytes 0x80 to 0x9f are control characters, where Windows has quotes and dashes.
        assert!(problem(0).contains("iconv -f cp1252 -t utf-8"), "{found:?}");
    }
}
